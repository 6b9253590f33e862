// SPDX-License-Identifier: BSD-3-Clause
// The room observers/tools/ reproduces the calibration observers of other tools to the bit: ONNX
// Runtime, Intel Neural Compressor, NNCF, PyTorch and PPQ. It is for whoever has to arrive at the
// same scales as such a tool. Headers here may include observers/ and what that room may include.
//
// This file holds what these observers share: whether a tool's bugs are reproduced or repaired, and
// the order of phases.
#ifndef DETENT_OBSERVERS_TOOLS_PARITY_HPP
#define DETENT_OBSERVERS_TOOLS_PARITY_HPP

#include <cstddef>
#include <cstdint>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
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
