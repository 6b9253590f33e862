// SPDX-License-Identifier: BSD-3-Clause
// Functions of floats in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_FLOAT_FUNCTIONS_HPP
#define DETENT_KERNELS_PORTABLE_FLOAT_FUNCTIONS_HPP

#include <cmath>
#include <cstddef>

#include <detent/base/float_functions.hpp>
#include <detent/kernels/float_functions.hpp>
#include <detent/reference.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

template <class Function>
void map(const float* x, std::size_t n, float* y, const Function& function) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    y[i] = function(x[i]);
  }
}

DETENT_DECL void exp(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_exp(v); });
}
DETENT_DECL void erf(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_erf(v); });
}
DETENT_DECL void tanh(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_tanh(v); });
}
DETENT_DECL void logistic(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_logistic(v); });
}
DETENT_DECL void log(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_log(v); });
}
DETENT_DECL void softplus(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_softplus(v); });
}
DETENT_DECL void mish(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_mish(v); });
}
DETENT_DECL void gelu(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_gelu(v); });
}
DETENT_DECL void gelu_tanh(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return detail::portable_gelu_tanh(v); });
}
DETENT_DECL void exponential_linear(const float* x, std::size_t n, float positive, float negative,
                                    float divisor, float* y) noexcept {
  map(x, n, y,
      [=](float v) { return detail::portable_exponential_linear(v, positive, negative, divisor); });
}
DETENT_DECL void abs(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return std::fabs(v); });
}
DETENT_DECL void neg(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return -v; });
}
DETENT_DECL void sqrt(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return std::sqrt(v); });
}
DETENT_DECL void hard_swish(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return reference::hard_swish(v); });
}
DETENT_DECL void floor(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return std::floor(v); });
}
DETENT_DECL void ceil(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return std::ceil(v); });
}
DETENT_DECL void round(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float v) { return std::nearbyint(v); });
}
DETENT_DECL void hard_sigmoid(const float* x, std::size_t n, float alpha, float beta,
                              float* y) noexcept {
  map(x, n, y, [=](float v) { return reference::hard_sigmoid(v, alpha, beta); });
}
DETENT_DECL void clamp(const float* x, std::size_t n, float lower, float upper, float* y) noexcept {
  map(x, n, y, [=](float v) { return reference::clamp(v, lower, upper); });
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_FLOAT_FUNCTIONS_HPP
