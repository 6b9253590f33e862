// SPDX-License-Identifier: BSD-3-Clause
// The options that a session gives the provider.
#ifndef DETENT_RUNTIMES_ONNXRUNTIME_OPTIONS_HPP
#define DETENT_RUNTIMES_ONNXRUNTIME_OPTIONS_HPP

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <onnxruntime_c_api.h>

#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/runtimes/integer_regions.hpp>
#include <detent/runtimes/onnxruntime/api.hpp>
#include <detent/target.hpp>

DETENT_NAMESPACE_BEGIN
namespace runtimes::onnxruntime {

/// The name of the provider, by which programs choose it.
inline constexpr const char* provider_name = "DetentExecutionProvider";

/// What a session asks of the provider.
///
///   claim     "integer" (default): regions with integer products; "all": every node that the
///             library has an operator for; "none"
///   threads   "session" (default): the session's own threads; N: a pool of N threads of the
///             provider, which all runs of the session share; 1: the thread that calls
///   target    the processor target, such as "avx2"; it holds for the whole program. Default: the
///             fastest that the processor has
///   report    a file that says for each node whether it was claimed, and if not, why
struct provider_options {
  region_options regions;                ///< From `claim`.
  std::optional<std::size_t> threads;    ///< From `threads`; nothing: the session's own.
  std::optional<detent::target> target;  ///< From `target`; nothing: it stays as it is.
  std::string report;                    ///< From `report`; empty: no report.
};

/// The most threads that a session can ask for.
inline constexpr std::size_t max_threads = 1024;

/// Sets one option. Throws invalid_argument, naming the option and what it can be, for a value that
/// it cannot have; io for a report that cannot be written.
inline void set_option(provider_options& o, std::string_view key, const std::string& value) {
  const auto refuse = [&](const std::string& expected) {
    raise(error_kind::invalid_argument, std::string(provider_name) + ": option " +
                                            std::string(key) + " is '" + value + "', expected " +
                                            expected);
  };
  if (key == "claim") {
    if (value == "integer") {
      o.regions.claim = claim_mode::integer;
    } else if (value == "all") {
      o.regions.claim = claim_mode::all;
    } else if (value == "none") {
      o.regions.claim = claim_mode::none;
    } else {
      refuse("integer, all or none");
    }
  } else if (key == "threads") {
    if (value == "session") {
      o.threads.reset();
      return;
    }
    const bool is_number = !value.empty() && value.size() <= 4 &&
                           value.find_first_not_of("0123456789") == std::string::npos;
    const std::size_t count = is_number ? std::stoul(value) : 0;
    if (count == 0 || count > max_threads) {
      refuse("session or a number from 1 to " + std::to_string(max_threads));
    }
    o.threads = count;
  } else if (key == "target") {
    std::string names;
    for (const detent::target t : available_targets()) {
      names += (names.empty() ? "" : ", ") + std::string(name(t));
      if (value == name(t)) {
        o.target = t;
        return;
      }
    }
    refuse("one of those that this processor has: " + names);
  } else if (key == "report") {
    graph::require_writable(value);  // ONNX Runtime forgives what fails later
    o.report = value;
  }
}

/// The options of a session. Keys that are none of the provider's are errors, as far as ONNX
/// Runtime lets them be seen; errors as set_option().
[[nodiscard]] inline provider_options read_options(const api& a, const OrtSessionOptions* session) {
  provider_options options;
  std::string prefix = std::string("ep.") + provider_name + ".";
  std::transform(prefix.begin(), prefix.end(), prefix.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const owned<OrtKeyValuePairs> entries(
      [&] {
        OrtKeyValuePairs* pairs = nullptr;
        a.check(a.core->GetSessionOptionsConfigEntries(session, &pairs));
        return pairs;
      }(),
      a.core->ReleaseKeyValuePairs);
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  std::size_t count = 0;
  a.core->GetKeyValuePairs(entries.get(), &keys, &values, &count);
  for (std::size_t i = 0; i < count; ++i) {
    std::string_view key = keys[i];
    if (key.substr(0, prefix.size()) != prefix) {
      continue;
    }
    key.remove_prefix(prefix.size());
    const std::string_view known[] = {"claim", "threads", "target", "report"};
    require(std::find(std::begin(known), std::end(known), key) != std::end(known),
            error_kind::invalid_argument, provider_name, ": there is no option '", std::string(key),
            "'; there are claim, threads, target and report");
    set_option(options, key, values[i]);
  }
  return options;
}

}  // namespace runtimes::onnxruntime
DETENT_NAMESPACE_END

#endif  // DETENT_RUNTIMES_ONNXRUNTIME_OPTIONS_HPP
