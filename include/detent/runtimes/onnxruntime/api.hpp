// SPDX-License-Identifier: BSD-3-Clause
// The functions of ONNX Runtime that the provider calls, with its statuses as exceptions, and the
// way back: no exception leaves a function that ONNX Runtime calls.
#ifndef DETENT_RUNTIMES_ONNXRUNTIME_API_HPP
#define DETENT_RUNTIMES_ONNXRUNTIME_API_HPP

#include <charconv>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <onnxruntime_c_api.h>

#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace runtimes::onnxruntime {

/// The tables of functions that ONNX Runtime hands to the library. Both outlive it.
struct api {
  const OrtApi* core = nullptr;  ///< What programs use.
  const OrtEpApi* ep = nullptr;  ///< What execution providers use.
  /// Whether a session may have regions in several graphs: those of an If, for example, and the
  /// graph around it. Releases before 1.25 give them the same name and end with an error.
  bool names_regions_apart = true;

  /// Throws a failure of ONNX Runtime as an error of the kind `io`, with its text.
  void check(OrtStatus* status) const {
    if (status != nullptr) [[unlikely]] {
      const std::unique_ptr<OrtStatus, void (*)(OrtStatus*)> owned(status, core->ReleaseStatus);
      raise(error_kind::io, std::string("ONNX Runtime: ") + core->GetErrorMessage(status));
    }
  }
};

/// Whether the release of ONNX Runtime with this text of its version, such as "1.23.2", is at least
/// 1.`minor`. A text without two numbers counts as a new release.
[[nodiscard]] inline bool is_at_least(std::string_view version, unsigned minor) {
  unsigned numbers[2] = {};
  const char* at = version.data();
  const char* const end = at + version.size();
  for (unsigned& number : numbers) {
    const auto [next, problem] = std::from_chars(at, end, number);
    if (problem != std::errc()) {
      return true;
    }
    at = next == end ? next : next + 1;
  }
  return numbers[0] > 1 || numbers[1] >= minor;
}

/// What `function` returns through its last argument, a pointer, when it is called with
/// `arguments`.
template <class Result, class Function, class... Arguments>
[[nodiscard]] Result get(const api& a, Function function, const Arguments&... arguments) {
  Result result{};
  a.check(function(arguments..., &result));
  return result;
}

/// The list that ONNX Runtime keeps of something: `count` says how long it is, `fill` copies it.
template <class Element, class Count, class Fill, class Of>
[[nodiscard]] std::vector<Element> list(const api& a, Count count, Fill fill, const Of* of) {
  std::vector<Element> all(get<std::size_t>(a, count, of));
  if (!all.empty()) {
    a.check(fill(of, all.data(), all.size()));
  }
  return all;
}

/// Owns an object of ONNX Runtime and releases it with `release`.
template <class Object>
using owned = std::unique_ptr<Object, void (*)(Object*)>;

/// Calls `body` and returns null, or a status with the message of what it threw: for functions that
/// ONNX Runtime calls, which must not throw.
template <class Body>
[[nodiscard]] OrtStatus* as_status(const api& a, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const error& e) {
    const OrtErrorCode code = e.kind() == error_kind::unsupported ? ORT_NOT_IMPLEMENTED
                              : e.kind() == error_kind::io        ? ORT_FAIL
                                                                  : ORT_INVALID_ARGUMENT;
    return a.core->CreateStatus(code, e.what());
  } catch (const std::bad_alloc&) {
    return a.core->CreateStatus(ORT_FAIL, "detent: there is not enough memory");
  } catch (const std::exception& e) {
    return a.core->CreateStatus(ORT_FAIL, e.what());
  } catch (...) {
    return a.core->CreateStatus(ORT_FAIL, "detent: an unknown failure");
  }
}

}  // namespace runtimes::onnxruntime
DETENT_NAMESPACE_END

#endif  // DETENT_RUNTIMES_ONNXRUNTIME_API_HPP
