// SPDX-License-Identifier: BSD-3-Clause
// The time that a search for a better quantization may take.
#ifndef DETENT_GRAPH_QUANTIZE_SEARCH_BUDGET_HPP
#define DETENT_GRAPH_QUANTIZE_SEARCH_BUDGET_HPP

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Limit of the time of a search, and the clock that it is measured by.
struct search_budget {
  /// Seconds with fractions.
  using seconds = std::chrono::duration<double>;
  /// The time from the call to its return; positive. Without a value there is no limit, and the
  /// clock is not read.
  std::optional<seconds> limit = {};
  /// Returns the time since any fixed point. Empty: std::chrono::steady_clock.
  std::function<seconds()> clock = {};
};

namespace detail {

/// Thrown within a search when its time is up; the search catches it.
struct budget_ended {};

/// Measures the time of a search. It begins when the object is constructed. Part of the time is
/// reserved for what has to be done after the search.
class search_timer {
 public:
  using seconds = search_budget::seconds;

  /// Throws invalid_argument if the limit is not positive or not finite.
  explicit search_timer(search_budget budget) : budget_(std::move(budget)) {
    if (budget_.limit) {
      require(std::isfinite(budget_.limit->count()) && budget_.limit->count() > 0.0,
              error_kind::invalid_argument, "a budget of ", budget_.limit->count(), " seconds");
      start_ = now();
    }
  }

  [[nodiscard]] bool is_limited() const noexcept { return budget_.limit.has_value(); }
  /// Time since construction; 0 if there is no limit.
  [[nodiscard]] seconds elapsed() const { return budget_.limit ? now() - start_ : seconds::zero(); }
  /// Sets the time that must be left when the search ends.
  void reserve(seconds needed) { reserved_ = needed; }
  /// Lets check() throw from now on, or no longer.
  void enforce(bool is_enforced) noexcept { is_enforced_ = is_enforced; }
  /// Whether the time is up, but for what is reserved.
  [[nodiscard]] bool is_over() const {
    return budget_.limit && elapsed() + reserved_ >= *budget_.limit;
  }
  /// Whether all of the time is up.
  [[nodiscard]] bool is_exhausted() const { return budget_.limit && elapsed() >= *budget_.limit; }
  /// Throws budget_ended if the search has to end.
  void check() const {
    if (is_enforced_ && is_over()) {
      throw budget_ended();
    }
  }

 private:
  [[nodiscard]] seconds now() const {
    return budget_.clock ? budget_.clock()
                         : seconds(std::chrono::steady_clock::now().time_since_epoch());
  }

  search_budget budget_;
  seconds start_{0.0};
  seconds reserved_{0.0};
  bool is_enforced_ = false;
};

/// A source of the samples of another one that looks at the time before each sample. When the time
/// is up, it ends the pass of the other source and throws budget_ended. The timer must outlive it.
[[nodiscard]] inline calibration_source within_budget(calibration_source source,
                                                      const search_timer& timer) {
  return [source = std::move(source),
          &timer]() mutable -> std::optional<std::map<std::string, tensor>> {
    auto next = source();
    if (next) {
      try {
        timer.check();
      } catch (const budget_ended&) {
        while (source()) {
        }
        throw;
      }
    }
    return next;
  };
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_SEARCH_BUDGET_HPP
