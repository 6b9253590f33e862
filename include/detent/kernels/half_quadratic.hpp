// SPDX-License-Identifier: BSD-3-Clause
// The family of half-quadratic quantization: what solvers/hqq.hpp adds up over a group of weights,
// again and again.
#ifndef DETENT_KERNELS_HALF_QUADRATIC_HPP
#define DETENT_KERNELS_HALF_QUADRATIC_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// A group of n weights and a zero point z. Weights are in steps of the grid: place = w / scale.
///
///     code  = codes[i], or round_half_even(clamp(place + z, qmin, qmax)) if `codes` is null
///     t     = place - (code - z), the error of a weight
///     power = |t|^exponent, or 1 if |t| is 0 or denormal
struct half_quadratic_args {
  const double* places = nullptr;
  const std::int8_t* codes = nullptr;
  std::size_t n = 0;
  double zero_point = 0.0;
  double qmin = 0.0, qmax = 0.0;
  double exponent = 0.0;
  double shrinkage = 0.0;  // factor of `power` in `shrunk`
};

/// Sums over a group. Each is in eight parts: the term of weight i is added to part i % 8, in
/// ascending order, and the parts are added as detail::sum_of() does it.
struct half_quadratic_sums {
  double objective;   // of power * |t|
  double magnitudes;  // of |t|
  double distances;   // of code - place
  double shrunk;      // of sign(t) max(|t| - shrinkage * power, 0)
};

/// The kernels of half-quadratic quantization. Powers are portable_exp(exponent *
/// portable_log(|t|)) of base/elementary_functions.hpp, and each product is rounded before anything
/// is added to it.
struct half_quadratic_kernels {
  /// Writes the n codes of a group whose `codes` are null; the grid is within int8.
  void (*round)(const half_quadratic_args& group, std::int8_t* codes) noexcept;
  half_quadratic_sums (*sums)(const half_quadratic_args& group) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const half_quadratic_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_HALF_QUADRATIC_HPP
