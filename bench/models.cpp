// SPDX-License-Identifier: BSD-3-Clause
// Times ONNX models in detent's executor and in ONNX Runtime by turns.
//
//   bench_models LIBRARY THREADS SECONDS PROFILES WINOGRAD MODEL.onnx...
//
// LIBRARY is the shared library of ONNX Runtime, SECONDS the time for a model. PROFILES is a folder
// for ONNX Runtime's profiles of its nodes, or "-" for none; WINOGRAD is
// executor_options::winograd_tile. For each model, prints a line
//
//   model NAME OURS THEIRS RATIO LOWEST HIGHEST BEST DIFFERENCE
//
// with the medians of both in microseconds (of the processor's time with one thread), the median of
// the ratios THEIRS / OURS of neighbouring turns and its quartiles, the ratio of the shortest
// times, and the largest difference of the outputs in parts of the largest element of the output. A
// turn takes about 2 ms, so that on a busy machine some turns are not interrupted. With profiles
// also a line "node MICROSECONDS OPERATOR OUTPUT" for each node of the executor. bench/models.py
// makes tables of these.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <onnxruntime_c_api.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>

namespace {

namespace graph = detent::graph;
using inputs_by_name = std::map<std::string, graph::tensor>;
/// The time in microseconds: that of the calling thread's processor, which other programs do not
/// disturb, or the time of the day if more threads than that one work.
class stopwatch {
 public:
  explicit stopwatch(bool of_thread)
      : clock_(of_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC) {
    restart();
  }
  void restart() { begin_ = now(); }
  [[nodiscard]] double elapsed() const { return now() - begin_; }

 private:
  [[nodiscard]] double now() const {
    timespec t{};
    clock_gettime(clock_, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
  }

  clockid_t clock_;
  double begin_ = 0.0;
};

/// A session of ONNX Runtime. Its objects live as long as the process.
class other_runtime {
 public:
  other_runtime(const char* library, int threads) : threads_(threads) {
    void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw std::runtime_error(dlerror());
    }
    const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
    api_ = base == nullptr ? nullptr : base()->GetApi(ORT_API_VERSION);
    if (api_ == nullptr) {
      throw std::runtime_error(std::string(library) + " has not this version of the interface");
    }
    check(api_->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "bench", &environment_));
    check(api_->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_));
  }

  /// `profile`: null, or how the names of the files with the profile begin.
  OrtSession* open(const std::string& model, const char* profile) const {
    OrtSessionOptions* options = nullptr;
    check(api_->CreateSessionOptions(&options));
    check(api_->SetIntraOpNumThreads(options, threads_));
    check(api_->SetInterOpNumThreads(options, 1));
    if (profile != nullptr) {
      check(api_->EnableProfiling(options, profile));
    }
    OrtSession* made = nullptr;
    check(api_->CreateSession(environment_, model.c_str(), options, &made));
    api_->ReleaseSessionOptions(options);
    return made;
  }

  void close(OrtSession* session) const { api_->ReleaseSession(session); }

  /// An input. `elements` must outlive it.
  OrtValue* value(const graph::tensor& elements) const {
    OrtValue* made = nullptr;
    check(api_->CreateTensorWithDataAsOrtValue(
        memory_, const_cast<std::byte*>(elements.raw()), elements.bytes(), elements.dims().data(),
        elements.rank(), static_cast<ONNXTensorElementDataType>(elements.type()), &made));
    return made;
  }

  void run(OrtSession* session, std::span<const char* const> input_names,
           std::span<const OrtValue* const> inputs, std::span<const char* const> output_names,
           std::span<OrtValue*> outputs) const {
    check(api_->Run(session, nullptr, input_names.data(), inputs.data(), inputs.size(),
                    output_names.data(), output_names.size(), outputs.data()));
  }

  const void* elements(OrtValue* value) const {
    void* data = nullptr;
    check(api_->GetTensorMutableData(value, &data));
    return data;
  }

  void release(OrtValue*& value) const { api_->ReleaseValue(std::exchange(value, nullptr)); }

 private:
  void check(OrtStatus* status) const {
    if (status != nullptr) {
      throw std::runtime_error(api_->GetErrorMessage(status));
    }
  }

  int threads_;
  const OrtApi* api_ = nullptr;
  OrtEnv* environment_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
};

inputs_by_name random_inputs(const graph::model& m) {
  std::mt19937 bits(1);
  inputs_by_name made;
  for (const graph::value_info& v : m.inputs) {
    graph::shape dims = v.dims;
    std::replace_if(
        dims.begin(), dims.end(), [](std::int64_t d) { return d < 0; }, 1);
    graph::tensor t = graph::tensor::allocate(v.type, dims);
    if (v.type == graph::element_type::f32) {
      std::normal_distribution<float> normal;
      for (float& x : t.mutable_data<float>()) {
        x = normal(bits);
      }
    } else {
      std::fill_n(t.mutable_raw(), t.bytes(), std::byte{});
    }
    made.emplace(v.name, std::move(t));
  }
  return made;
}

/// The largest difference of two outputs in parts of the largest element, or of 1e-3 if that is
/// more: ONNX Runtime's Sigmoid may be wrong by 1e-7 however small it is. Infinity if elements that
/// are not finite differ.
template <class T>
double difference(std::span<const T> ours, const void* others) {
  const auto* const theirs = static_cast<const T*>(others);
  double error = 0.0;
  double scale = 1e-3;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto a = static_cast<double>(ours[i]);
    const auto b = static_cast<double>(theirs[i]);
    if (std::isfinite(a) && std::isfinite(b)) {
      error = (std::max)(error, std::fabs(a - b));
      scale = (std::max)(scale, std::fabs(b));
    } else if (a != b && !(std::isnan(a) && std::isnan(b))) {
      return std::numeric_limits<double>::infinity();
    }
  }
  return error / scale;
}

/// The largest difference of all outputs.
double difference(const std::vector<graph::tensor>& ours, std::span<OrtValue* const> theirs,
                  const other_runtime& runtime) {
  double largest = 0.0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const void* const elements = runtime.elements(theirs[i]);
    const auto of = [&]<class T>(T /*element*/) { return difference(ours[i].data<T>(), elements); };
    switch (ours[i].type()) {
      case graph::element_type::f32:
        largest = (std::max)(largest, of(float{}));
        break;
      case graph::element_type::u8:
        largest = (std::max)(largest, of(std::uint8_t{}));
        break;
      case graph::element_type::s8:
        largest = (std::max)(largest, of(std::int8_t{}));
        break;
      case graph::element_type::s64:
        largest = (std::max)(largest, of(std::int64_t{}));
        break;
      default:
        throw std::runtime_error("outputs of type " + graph::name(ours[i].type()) +
                                 " are not compared");
    }
  }
  return largest;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

/// Prints the median time of each node: the time between the observer's call for the value before
/// and that for its own first output.
void print_nodes(graph::executor& network, const inputs_by_name& inputs, bool of_thread, int runs) {
  std::map<std::string, std::vector<double>> times;
  stopwatch watch(of_thread);
  for (int i = 0; i < runs; ++i) {
    static_cast<void>(network.run(inputs, [&](const std::string& name, const graph::tensor&) {
      times[name].push_back(watch.elapsed());
      watch.restart();
    }));
  }
  for (const graph::node& n : network.graph_model().nodes) {
    const std::string domain = n.domain.empty() ? "" : n.domain + ".";
    std::printf("node %.2f %s%s %s\n", quantile(times.at(n.outputs.at(0)), 0.5), domain.c_str(),
                n.op_type.c_str(), n.outputs[0].c_str());
  }
}

/// The microseconds of a run, from `count` runs.
template <class Run>
double time_of(bool of_thread, int count, const Run& run) {
  run();  // at first, the caches hold the data of the other side
  const stopwatch watch(of_thread);
  for (int i = 0; i < count; ++i) {
    run();
  }
  return watch.elapsed() / count;
}

/// ONNX Runtime's side of a model.
class their_model {
 public:
  their_model(const other_runtime& runtime, const graph::model& m, const inputs_by_name& inputs,
              const std::string& path, const char* profile)
      : runtime_(runtime), session_(runtime.open(path, profile)) {
    for (const graph::value_info& v : m.inputs) {
      input_names_.push_back(v.name.c_str());
      given_.push_back(runtime.value(inputs.at(v.name)));
    }
    for (const graph::value_info& v : m.outputs) {
      output_names_.push_back(v.name.c_str());
    }
    results_.resize(output_names_.size());
  }
  their_model(const their_model&) = delete;
  their_model& operator=(const their_model&) = delete;
  ~their_model() { runtime_.close(session_); }

  std::span<OrtValue* const> run() {
    for (OrtValue*& value : results_) {
      if (value != nullptr) {
        runtime_.release(value);
      }
    }
    runtime_.run(session_, input_names_, given_, output_names_, results_);
    return results_;
  }

 private:
  const other_runtime& runtime_;
  OrtSession* session_;
  std::vector<const char*> input_names_, output_names_;
  std::vector<const OrtValue*> given_;
  std::vector<OrtValue*> results_;
};

/// A process of its own that times runs of the other side. It is stopped while it is not asked:
/// threads of ONNX Runtime that have nothing to do spin for a long time, and would take processors
/// from the threads of detent.
class other_process {
 public:
  /// `times(count)` is called in the other process.
  template <class Times>
  explicit other_process(const Times& times) {
    if (pipe(questions_) != 0 || pipe(answers_) != 0 || (process_ = fork()) < 0) {
      throw std::runtime_error("no process for ONNX Runtime");
    }
    if (process_ == 0) {
      close(questions_[1]);
      int result = 0;
      try {
        times([this](int& count) { return read(questions_[0], &count, sizeof count) > 0; },
              [this](double time) { return write(answers_[1], &time, sizeof time) > 0; });
      } catch (const std::exception& e) {
        std::fprintf(stderr, "bench_models: %s\n", e.what());
        result = 1;
      }
      std::_Exit(result);
    }
    close(questions_[0]);
    close(answers_[1]);
  }
  other_process(const other_process&) = delete;
  other_process& operator=(const other_process&) = delete;
  ~other_process() {
    kill(process_, SIGCONT);
    close(questions_[1]);
    close(answers_[0]);
    waitpid(process_, nullptr, 0);
  }

  double time_of(int count) {
    double time = 0.0;
    kill(process_, SIGCONT);
    if (write(questions_[1], &count, sizeof count) < 0 ||
        read(answers_[0], &time, sizeof time) <= 0) {
      throw std::runtime_error("ONNX Runtime's process has ended");
    }
    kill(process_, SIGSTOP);
    // A thread of detent that wakes while the processors are busy may share one with another.
    waitpid(process_, nullptr, WUNTRACED);
    return time;
  }

 private:
  int questions_[2], answers_[2];
  pid_t process_;
};

void measure(const other_runtime& runtime, detent::thread_pool& pool, double seconds,
             const std::string& profiles, std::size_t winograd_tile, const std::string& path) {
  const graph::model m = graph::read_onnx(path);
  const inputs_by_name inputs = random_inputs(m);
  const bool alone = pool.size() == 1;
  const bool profiled = profiles != "-";
  const std::string stem = path.substr(path.find_last_of('/') + 1);
  other_process others([&](const auto& next, const auto& answer) {
    their_model theirs(runtime, m, inputs, path, nullptr);
    int count = 0;
    while (next(count) && answer(time_of(alone, count, [&] { theirs.run(); }))) {
    }
  });
  graph::executor_options options;
  if (!alone) {
    options.parallel = pool.parallel();
  }
  options.winograd_tile = winograd_tile;
  graph::executor network(graph::for_execution(m), options);
  double error = 0.0;
  {
    their_model theirs(runtime, m, inputs, path, nullptr);
    error = difference(network.run(inputs), theirs.run(), runtime);
  }
  const auto ours = [&] { static_cast<void>(network.run(inputs)); };
  const auto count_for = [](double microseconds) {
    return (std::max)(1, static_cast<int>(2e3 / microseconds));
  };
  const int our_runs = count_for(time_of(alone, 3, ours));
  const int their_runs = count_for(others.time_of(3));
  std::vector<double> our_times;
  std::vector<double> their_times;
  std::vector<double> ratios;
  const stopwatch watch(false);
  while (watch.elapsed() < seconds * 1e6 || ratios.size() < 5) {
    our_times.push_back(time_of(alone, our_runs, ours));
    their_times.push_back(others.time_of(their_runs));
    ratios.push_back(their_times.back() / our_times.back());
  }
  std::printf("model %s %.2f %.2f %.3f %.3f %.3f %.3f %.1e\n", stem.c_str(),
              quantile(our_times, 0.5), quantile(their_times, 0.5), quantile(ratios, 0.5),
              quantile(ratios, 0.25), quantile(ratios, 0.75),
              quantile(their_times, 0.0) / quantile(our_times, 0.0), error);
  if (profiled) {  // in runs of their own: to write a profile takes time
    print_nodes(network, inputs, alone, 20 * our_runs);
    const std::string profile = profiles + "/" + stem;
    their_model theirs(runtime, m, inputs, path, profile.c_str());
    for (int i = 0; i < 20 * their_runs; ++i) {
      theirs.run();
    }
  }
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 7) {
    std::fprintf(stderr, "bench_models LIBRARY THREADS SECONDS PROFILES WINOGRAD MODEL.onnx...\n");
    return 2;
  }
  try {
    const int threads = std::atoi(arguments[2]);
    const other_runtime runtime(arguments[1], threads);
    const auto winograd_tile = static_cast<std::size_t>(std::atoi(arguments[5]));
    for (int i = 6; i < count; ++i) {
      detent::thread_pool pool(static_cast<std::size_t>(threads));
      measure(runtime, pool, std::atof(arguments[3]), arguments[4], winograd_tile, arguments[i]);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_models: %s\n", e.what());
    return 1;
  }
}
