// SPDX-License-Identifier: BSD-3-Clause
// The family of exponentials: e^x and logarithms of doubles, for solvers.
#ifndef DETENT_KERNELS_EXPONENTIALS_HPP
#define DETENT_KERNELS_EXPONENTIALS_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The kernels of exponentials. Both work in place.
struct exponential_kernels {
  /// Replaces each of n values by detail::portable_exp() of it.
  void (*exp)(double* x, std::size_t n) noexcept;
  /// Replaces each of n positive normal numbers by detail::portable_log() of it.
  void (*log)(double* x, std::size_t n) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const exponential_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_EXPONENTIALS_HPP
