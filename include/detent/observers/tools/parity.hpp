// SPDX-License-Identifier: BSD-3-Clause
// The folder observers/tools/ reproduces the calibration observers of other tools to the bit: ONNX
// Runtime, Intel Neural Compressor, NNCF, PyTorch and PPQ. It is for whoever has to arrive at the
// same scales as such a tool. Headers here may include observers/ and what that folder may include.
//
// This file holds what these observers share: whether a tool's bugs are reproduced or repaired, the
// order of phases, and limits of counts and searches.
#ifndef DETENT_OBSERVERS_TOOLS_PARITY_HPP
#define DETENT_OBSERVERS_TOOLS_PARITY_HPP

#include <cstddef>
#include <cstdint>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// What an observer does where the tool that it reproduces has a bug. Each observer that offers the
/// choice documents what `fixed` changes.
enum class parity : std::uint8_t {
  as_published,  ///< returns what the tool returns
  fixed,         ///< returns what the tool would return without the bug
};

namespace detail {

/// The check of begin_phase(). Phase 0 has begun when an observer is made. Beginning it again is
/// allowed as long as nothing was observed, so that a loop over all phases can begin each of them.
inline void require_next_phase(std::size_t phase, std::size_t current, std::size_t phases,
                               bool observed, const char* where) {
  const bool is_first = phase == 0 && current == 0 && !observed;
  require(is_first || (phase == current + 1 && phase < phases), error_kind::invalid_argument, where,
          ": phase ", phase, " of ", phases, " can't begin in phase ", current,
          observed ? "" : ", in which nothing was observed");
}

/// How many bins a search for a range may look at, all its candidates together. The searches of the
/// tools take quadratic time in the number of bins, or more: options and histograms that would need
/// more are refused, so that finalize() of a saved state ends within minutes, not days.
inline constexpr std::uint64_t largest_search = std::uint64_t{1} << 32;

/// Throws an error of `kind` if a search with so many candidates would look at too many bins.
inline void require_search(std::uint64_t candidates, std::uint64_t bins, const char* where,
                           error_kind kind = error_kind::invalid_argument) {
  require(candidates <= largest_search / bins, kind, where, ": a search among ", candidates,
          " candidates of up to ", bins, " bins takes too long; it may look at 2^32 bins in all");
}

/// How many values a histogram may count: as many as detent's own. Sums of counts then do not wrap.
inline constexpr std::uint64_t largest_counted = std::uint64_t{1} << 48;

/// The number of values in a histogram, which is at most largest_counted.
[[nodiscard]] inline std::uint64_t total_of(std::span<const std::uint64_t> counts) noexcept {
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) {
    total += count;
  }
  return total;
}
/// Throws overflow if a histogram would count more than largest_counted values with `more` values.
inline void require_room(std::span<const std::uint64_t> counts, std::uint64_t more,
                         const char* where) {
  require(more <= largest_counted - total_of(counts), error_kind::overflow, where,
          ": more than 2^48 values");
}
/// Throws bad_file if the sum of the counts of a saved state exceeds `seen` or largest_counted.
inline void require_saved_counts(std::span<const std::uint64_t> counts, std::uint64_t seen,
                                 const char* where) {
  require_state(are_within(counts, seen), where, "more was counted than was seen");
  require_state(are_within(counts, largest_counted), where, "more than 2^48 values were counted");
}

/// Adds a batch to `all`, and returns an observer that has seen this batch alone. Throws
/// invalid_argument for null data.
inline min_max_observer observe_batch(min_max_observer& all, std::span<const float> x,
                                      const char* where) {
  require(x.empty() || x.data() != nullptr, error_kind::invalid_argument, where,
          ": null data with size ", x.size());
  min_max_observer batch;
  batch.observe(x);
  all.merge(batch);
  return batch;
}

inline void require_averaging_constant(float constant, const char* where,
                                       error_kind kind = error_kind::invalid_argument) {
  require(constant >= 0.0F && constant <= 1.0F, kind, where, ": averaging constant ", constant,
          " is not in 0..1");
}

/// average + constant * (x - average), every operation rounded to float.
[[nodiscard]] inline float moving_average(float average, float x, float constant) noexcept {
  return average + rounded_product(constant, x - average);
}
/// moving_average() of both ends.
[[nodiscard]] inline value_range moving_average(value_range average, value_range x,
                                                float constant) noexcept {
  return {moving_average(average.lower, x.lower, constant),
          moving_average(average.upper, x.upper, constant)};
}
[[nodiscard]] inline bool is_finite(value_range range) noexcept {
  return std::isfinite(range.lower) && std::isfinite(range.upper);
}
/// Throws invalid_argument if an average overflows a float. The tools go on with infinities.
inline void require_finite_average(value_range average, const char* where) {
  require(is_finite(average), error_kind::invalid_argument, where, ": the average ", average.lower,
          " .. ", average.upper, " overflows a float");
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PARITY_HPP
