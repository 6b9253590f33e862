// SPDX-License-Identifier: BSD-3-Clause
// Runs an ONNX model in ONNX Runtime with detent's kernels and without them, and compares:
//
//   onnxruntime_run LIBONNXRUNTIME MODEL.onnx LIBDETENT_ONNXRUNTIME [KEY=VALUE]...
//
// LIBONNXRUNTIME is the shared library of ONNX Runtime 1.23 or later, which is opened when the
// program runs: programs that link it need not do that. Prints the largest difference of each
// output and the time of a run with and without the provider. Exit codes: 0 both ran, 1 something
// failed, 2 wrong usage.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <dlfcn.h>

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

namespace {

/// The functions of the ONNX Runtime in a shared library.
const OrtApi* open_runtime(const char* library) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (opened == nullptr) {
    throw std::runtime_error(dlerror());
  }
  using get_base = const OrtApiBase* (*)();
  const auto base = reinterpret_cast<get_base>(dlsym(opened, "OrtGetApiBase"));
  const OrtApi* const api = base == nullptr ? nullptr : base()->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    throw std::runtime_error(std::string(library) + " is no ONNX Runtime of version 1." +
                             std::to_string(ORT_API_VERSION) + " or later");
  }
  return api;
}

/// A session that runs everything with ONNX Runtime's own kernels.
Ort::Session plain_session(const Ort::Env& env, const char* model) {
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  return {env, model, options};
}

/// A session that hands to detent what detent does faster. This is all that a program needs.
Ort::Session fast_session(Ort::Env& env, const char* model, const char* provider,
                          const std::unordered_map<std::string, std::string>& settings) {
  // ONNX Runtime looks for relative paths beside its own library.
  env.RegisterExecutionProviderLibrary("detent", std::filesystem::absolute(provider).c_str());
  std::vector<Ort::ConstEpDevice> devices;
  for (const Ort::ConstEpDevice& device : env.GetEpDevices()) {
    if (std::string_view(device.EpName()) == "DetentExecutionProvider" && devices.empty()) {
      devices.push_back(device);
    }
  }
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  options.AppendExecutionProvider_V2(env, devices, settings);
  return {env, model, options};
}

/// Inputs and outputs of a model, and values for its inputs, which must be float tensors.
struct job {
  explicit job(const Ort::Session& session) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < session.GetInputCount(); ++i) {
      input_names.emplace_back(session.GetInputNameAllocated(i, allocator).get());
      const Ort::TypeInfo type = session.GetInputTypeInfo(i);
      const auto form = type.GetTensorTypeAndShapeInfo();
      if (form.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
        throw std::runtime_error("input '" + input_names.back() + "' is not a float tensor");
      }
      std::vector<std::int64_t> dims = form.GetShape();
      std::replace_if(
          dims.begin(), dims.end(), [](std::int64_t d) { return d < 0; }, 1);
      inputs.push_back(Ort::Value::CreateTensor<float>(allocator, dims.data(), dims.size()));
      std::generate_n(inputs.back().GetTensorMutableData<float>(),
                      inputs.back().GetTensorTypeAndShapeInfo().GetElementCount(),
                      [&] { return normal(generator); });
    }
    for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
      output_names.emplace_back(session.GetOutputNameAllocated(i, allocator).get());
    }
  }

  [[nodiscard]] std::vector<Ort::Value> run(Ort::Session& session) const {
    std::vector<const char*> from;
    std::vector<const char*> to;
    for (const std::string& name : input_names) {
      from.push_back(name.c_str());
    }
    for (const std::string& name : output_names) {
      to.push_back(name.c_str());
    }
    return session.Run(Ort::RunOptions{}, from.data(), inputs.data(), inputs.size(), to.data(),
                       to.size());
  }

  std::vector<std::string> input_names, output_names;
  std::vector<Ort::Value> inputs;
};

/// The median time of a run in microseconds.
double time_of(const job& j, Ort::Session& session) {
  std::vector<double> times;
  for (int i = 0; i < 100; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    static_cast<void>(j.run(session));
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::nth_element(times.begin(), times.begin() + 50, times.end());
  return times[50];
}

void compare(const job& j, const std::vector<Ort::Value>& ours,
             const std::vector<Ort::Value>& theirs) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto form = ours[i].GetTensorTypeAndShapeInfo();
    if (form.GetShape() != theirs[i].GetTensorTypeAndShapeInfo().GetShape()) {
      throw std::runtime_error("output '" + j.output_names[i] + "' has another shape");
    }
    if (form.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
      std::printf("output '%s' is no float tensor\n", j.output_names[i].c_str());
      continue;
    }
    double difference = 0;
    for (std::size_t k = 0; k < form.GetElementCount(); ++k) {
      difference = std::max(difference, std::fabs(double{ours[i].GetTensorData<float>()[k]} -
                                                  double{theirs[i].GetTensorData<float>()[k]}));
    }
    std::printf("output '%s': largest difference %g\n", j.output_names[i].c_str(), difference);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr,
                 "usage: %s LIBONNXRUNTIME MODEL.onnx LIBDETENT_ONNXRUNTIME [KEY=VALUE]...\n",
                 argv[0]);
    return 2;
  }
  try {
    Ort::InitApi(open_runtime(argv[1]));
    std::unordered_map<std::string, std::string> settings;
    for (int i = 4; i < argc; ++i) {
      const std::string setting = argv[i];
      const std::size_t sign = setting.find('=');
      if (sign == std::string::npos) {
        std::fprintf(stderr, "%s: '%s' is not KEY=VALUE\n", argv[0], argv[i]);
        return 2;
      }
      settings.emplace(setting.substr(0, sign), setting.substr(sign + 1));
    }
    Ort::Env env;
    Ort::Session plain = plain_session(env, argv[2]);
    Ort::Session fast = fast_session(env, argv[2], argv[3], settings);
    const job j(plain);
    compare(j, j.run(fast), j.run(plain));
    const double ours = time_of(j, fast);
    const double theirs = time_of(j, plain);
    std::printf("%.1f us with detent, %.1f us without, ratio %.2f\n", ours, theirs, theirs / ours);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", argv[0], e.what());
    return 1;
  }
}
