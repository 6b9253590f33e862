// SPDX-License-Identifier: BSD-3-Clause
// Runs a model in several sessions with the execution provider, and in several threads each:
//
//   concurrent_runs LIBONNXRUNTIME MODEL.onnx LIBDETENT_ONNXRUNTIME RUNS
//
// All runs together are RUNS, on 4 sessions with 2 threads each. Each thread has inputs of its own;
// every run must return the bits of a first one. For ThreadSanitizer, compile this program and the
// provider with -fsanitize=thread. Exit codes: 0 all runs were right, 1 they were not, 2 usage.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include <dlfcn.h>

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

namespace {

constexpr std::size_t session_count = 4;
constexpr std::size_t threads_per_session = 2;

const OrtApi* open_runtime(const char* library) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  using get_base = const OrtApiBase* (*)();
  const auto base =
      opened == nullptr ? nullptr : reinterpret_cast<get_base>(dlsym(opened, "OrtGetApiBase"));
  const OrtApi* const api = base == nullptr ? nullptr : base()->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    throw std::runtime_error(std::string(library) + " is no ONNX Runtime of this version");
  }
  return api;
}

/// Random values for the only input of a model, which is float; open dimensions are 1.
Ort::Value random_input(const Ort::Session& session, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  const Ort::TypeInfo type = session.GetInputTypeInfo(0);
  std::vector<std::int64_t> dims = type.GetTensorTypeAndShapeInfo().GetShape();
  std::replace_if(
      dims.begin(), dims.end(), [](std::int64_t d) { return d < 0; }, 1);
  const Ort::AllocatorWithDefaultOptions allocator;
  Ort::Value input = Ort::Value::CreateTensor<float>(allocator, dims.data(), dims.size());
  std::generate_n(input.GetTensorMutableData<float>(),
                  input.GetTensorTypeAndShapeInfo().GetElementCount(),
                  [&] { return normal(generator); });
  return input;
}

std::vector<float> output_of(Ort::Session& session, const std::string& from, const std::string& to,
                             const Ort::Value& input) {
  const char* const inputs[] = {from.c_str()};
  const char* const outputs[] = {to.c_str()};
  const auto made = session.Run(Ort::RunOptions{}, inputs, &input, 1, outputs, 1);
  const float* const first = made[0].GetTensorData<float>();
  return {first, first + made[0].GetTensorTypeAndShapeInfo().GetElementCount()};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Returns the number of runs that went wrong.
std::size_t run_all(const char* model, const char* provider, std::size_t runs) {
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "concurrent_runs");
  env.RegisterExecutionProviderLibrary("detent", std::filesystem::absolute(provider).c_str());
  std::vector<Ort::ConstEpDevice> devices;
  for (const Ort::ConstEpDevice& device : env.GetEpDevices()) {
    if (std::string_view(device.EpName()) == "DetentExecutionProvider" && devices.empty()) {
      devices.push_back(device);
    }
  }
  std::vector<Ort::Session> sessions;
  for (std::size_t i = 0; i < session_count; ++i) {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(i % 2 == 0 ? 1 : 2);
    const std::unordered_map<std::string, std::string> settings{{"claim", "all"}};
    options.AppendExecutionProvider_V2(env, devices, settings);
    sessions.emplace_back(env, model, options);
  }
  Ort::AllocatorWithDefaultOptions allocator;
  const std::string from = sessions[0].GetInputNameAllocated(0, allocator).get();
  const std::string to = sessions[0].GetOutputNameAllocated(0, allocator).get();
  constexpr std::size_t thread_count = session_count * threads_per_session;
  std::vector<Ort::Value> inputs;
  std::vector<std::vector<float>> expected;
  for (std::size_t i = 0; i < thread_count; ++i) {
    inputs.push_back(random_input(sessions[0], static_cast<unsigned>(i)));
    expected.push_back(output_of(sessions[0], from, to, inputs[i]));
  }
  std::atomic<std::size_t> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t k = i; k < runs; k += thread_count) {
        try {
          const auto got = output_of(sessions[i % session_count], from, to, inputs[i]);
          wrong += same_bits(got, expected[i]) ? 0U : 1U;
        } catch (const std::exception& e) {
          std::fprintf(stderr, "concurrent_runs: %s\n", e.what());
          ++wrong;
        }
      }
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 || std::atoll(argv[4]) <= 0) {
    std::fprintf(stderr, "usage: %s LIBONNXRUNTIME MODEL LIBDETENT_ONNXRUNTIME RUNS\n", argv[0]);
    return 2;
  }
  try {
    Ort::InitApi(open_runtime(argv[1]));
    const auto runs = static_cast<std::size_t>(std::atoll(argv[4]));
    const std::size_t wrong = run_all(argv[2], argv[3], runs);
    std::printf("%zu runs, %zu wrong\n", runs, wrong);
    return wrong == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "concurrent_runs: %s\n", e.what());
    return 1;
  }
}
