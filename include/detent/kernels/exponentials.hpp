// SPDX-License-Identifier: BSD-3-Clause
// The family of exponentials: e^x, logarithms and functions made of e^x, of doubles, for solvers
// and operators.
#ifndef DETENT_KERNELS_EXPONENTIALS_HPP
#define DETENT_KERNELS_EXPONENTIALS_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The kernels of exponentials. Each replaces n values in place by what the function of
/// base/elementary_functions.hpp makes of them, to the bit.
struct exponential_kernels {
  void (*exp)(double* x, std::size_t n) noexcept;       ///< detail::portable_exp().
  void (*log)(double* x, std::size_t n) noexcept;       ///< detail::portable_log().
  void (*erf)(double* x, std::size_t n) noexcept;       ///< detail::portable_erf().
  void (*tanh)(double* x, std::size_t n) noexcept;      ///< detail::portable_tanh().
  void (*logistic)(double* x, std::size_t n) noexcept;  ///< detail::portable_logistic().

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const exponential_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_EXPONENTIALS_HPP
