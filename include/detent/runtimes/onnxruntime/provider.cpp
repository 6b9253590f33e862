// SPDX-License-Identifier: BSD-3-Clause
// The shared library that ONNX Runtime loads: the functions that it looks up by name.
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include <onnxruntime_c_api.h>

#include <detent/runtimes/onnxruntime/api.hpp>
#include <detent/runtimes/onnxruntime/custom_operators.hpp>
#include <detent/runtimes/onnxruntime/provider.hpp>

#if defined(_WIN32)
#define DETENT_EXPORTED __declspec(dllexport)
#else
#define DETENT_EXPORTED __attribute__((visibility("default")))
#endif

namespace {

namespace provider = detent::runtimes::onnxruntime;

/// The domain of the library's operators for one ONNX Runtime: a process may hold several, each
/// with functions of its own. The domains live until the library is unloaded.
const provider::custom_operator_domain& domain_of(const provider::api& a) {
  static std::mutex mutex;
  static std::map<const OrtApi*, provider::custom_operator_domain> domains;
  const std::lock_guard lock(mutex);
  return domains.try_emplace(a.core, a).first->second;
}

}  // namespace

extern "C" {

/// Gives ONNX Runtime the factory of providers. It is called once for each registration.
DETENT_EXPORTED OrtStatus* CreateEpFactories(const char* /*registered_name*/,
                                             const OrtApiBase* base,
                                             const OrtLogger* /*default_logger*/,
                                             OrtEpFactory** factories, std::size_t most,
                                             std::size_t* count) {
  const OrtApi* const core = base->GetApi(ORT_API_VERSION);
  if (core == nullptr) {
    // Every version has had the functions of the first one.
    return base->GetApi(1)->CreateStatus(
        ORT_FAIL, "detent: this ONNX Runtime is too old; the provider needs 1.23 or later");
  }
  const provider::api functions{core, core->GetEpApi(),
                                provider::is_at_least(base->GetVersionString(), 25)};
  return provider::as_status(functions, [&] {
    detent::require(most >= 1, detent::error_kind::invalid_argument,
                    "detent: there is no room for a factory");
    factories[0] = new provider::provider_factory(functions);
    *count = 1;
  });
}

/// Ends a factory that CreateEpFactories() made.
DETENT_EXPORTED OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<provider::provider_factory*>(factory);
  return nullptr;
}

/// Makes the library's operators known to the sessions that are made with `options`. ONNX Runtime
/// calls it for each library of custom operators that a program registers.
DETENT_EXPORTED OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const provider::api a{base->GetApi(provider::custom_operator_version), nullptr};
  if (a.core == nullptr) {
    return base->GetApi(1)->CreateStatus(
        ORT_FAIL, "detent: this ONNX Runtime is too old; custom operators need 1.17 or later");
  }
  return provider::as_status(a, [&] { domain_of(a).add_to(options); });
}
}
