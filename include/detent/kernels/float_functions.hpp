// SPDX-License-Identifier: BSD-3-Clause
// The family of float functions: e^x, log and their relatives, activations, roots, rounding and
// clamps of floats, for operators.
#ifndef DETENT_KERNELS_FLOAT_FUNCTIONS_HPP
#define DETENT_KERNELS_FLOAT_FUNCTIONS_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The kernels of float functions. Each writes to y what a function makes of the n values x, to the
/// bit; which NaN it makes does not matter. x and y are the same memory or do not overlap.
struct float_function_kernels {
  void (*exp)(const float* x, std::size_t n, float* y) noexcept;   ///< detail::portable_exp().
  void (*erf)(const float* x, std::size_t n, float* y) noexcept;   ///< detail::portable_erf().
  void (*tanh)(const float* x, std::size_t n, float* y) noexcept;  ///< detail::portable_tanh().
  void (*logistic)(const float* x, std::size_t n,
                   float* y) noexcept;                            ///< detail::portable_logistic().
  void (*log)(const float* x, std::size_t n, float* y) noexcept;  ///< detail::portable_log().
  void (*softplus)(const float* x, std::size_t n,
                   float* y) noexcept;                             ///< detail::portable_softplus().
  void (*mish)(const float* x, std::size_t n, float* y) noexcept;  ///< detail::portable_mish().
  void (*gelu)(const float* x, std::size_t n, float* y) noexcept;  ///< detail::portable_gelu().
  void (*gelu_tanh)(const float* x, std::size_t n,
                    float* y) noexcept;                           ///< detail::portable_gelu_tanh().
  void (*abs)(const float* x, std::size_t n, float* y) noexcept;  ///< |x|.
  void (*neg)(const float* x, std::size_t n, float* y) noexcept;  ///< -x.
  void (*sqrt)(const float* x, std::size_t n, float* y) noexcept;  ///< std::sqrt().

  void (*hard_swish)(const float* x, std::size_t n,
                     float* y) noexcept;                            ///< reference::hard_swish().
  void (*floor)(const float* x, std::size_t n, float* y) noexcept;  ///< std::floor().
  void (*ceil)(const float* x, std::size_t n, float* y) noexcept;   ///< std::ceil().
  void (*round)(const float* x, std::size_t n, float* y) noexcept;  ///< Half to even.
  /// detail::portable_exponential_linear().
  void (*exponential_linear)(const float* x, std::size_t n, float positive, float negative,
                             float divisor, float* y) noexcept;
  /// reference::hard_sigmoid().
  void (*hard_sigmoid)(const float* x, std::size_t n, float alpha, float beta, float* y) noexcept;
  /// reference::clamp().
  void (*clamp)(const float* x, std::size_t n, float lower, float upper, float* y) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const float_function_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_FLOAT_FUNCTIONS_HPP
