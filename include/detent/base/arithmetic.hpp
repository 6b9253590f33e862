// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic for observers and solvers that gives the same bits whatever the compiler, its options
// and the processor are: no product is fused with the sum around it, and no sum is reordered.
//
// This is the main header of the folder base/, which holds small tools that any other folder may
// use: arithmetic without contraction, elementary functions, 128-bit integers, aligned memory,
// walks over strided views, and the envelope of saved bytes. A header of base/ may include the
// standard library, other headers of base/, and config.hpp, error.hpp, types.hpp and reference.hpp.
#ifndef DETENT_BASE_ARITHMETIC_HPP
#define DETENT_BASE_ARITHMETIC_HPP

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

// g++ fuses a product with the sum that takes it wherever it may use FMA. An empty instruction that
// claims to read and write the product prevents this and costs nothing.
// (__builtin_assoc_barrier would be plainer, but gets lost where g++ 12 vectorizes a loop.)
#if defined(__GNUC__) && !defined(__clang__)
#if DETENT_ARCH_X86_64
#define DETENT_ROUNDED(value) __asm__("" : "+x"(value))
#elif defined(__aarch64__)
#define DETENT_ROUNDED(value) __asm__("" : "+w"(value))
#else
#define DETENT_ROUNDED(value) __asm__("" : "+m"(value))
#endif
#endif

/// a * b, rounded to double before anything is added to it.
[[nodiscard]] inline double rounded_product(double a, double b) noexcept {
#if defined(__clang__)
#pragma clang fp contract(off)
  return a * b;
#elif defined(DETENT_ROUNDED)
  double product = a * b;
  DETENT_ROUNDED(product);
  return product;
#else
  return a * b;
#endif
}
/// a * b of two floats, rounded to float before anything is added to it. (Multiplying in double
/// would not help: g++ sees that such a product, rounded to float, is a product of floats, and
/// fuses that.)
template <std::same_as<float> Float>
[[nodiscard]] inline Float rounded_product(Float a, Float b) noexcept {
#if defined(__clang__)
#pragma clang fp contract(off)
  return a * b;
#elif defined(DETENT_ROUNDED)
  Float product = a * b;
  DETENT_ROUNDED(product);
  return product;
#else
  return a * b;
#endif
}

/// a + b, or the largest value of the type if that is less: a counter that stops instead of
/// beginning again. The sum of several does not depend on their order.
template <std::unsigned_integral T>
[[nodiscard]] constexpr T saturating_sum(T a, T b) noexcept {
  constexpr T largest = std::numeric_limits<T>::max();
  return b > largest - a ? largest : static_cast<T>(a + b);
}

/// y[i] += a * x[i] for n elements, each product rounded before it is added. The elements do not
/// depend on each other, so that SIMD vectors give the same bits as scalars.
inline void add_scaled(std::size_t n, double a, const double* x, double* y) noexcept {
  std::size_t i = 0;
#if defined(DETENT_ROUNDED) && (DETENT_ARCH_X86_64 || defined(__aarch64__))
#if defined(__AVX__)
  constexpr std::size_t lanes = 4;
#else
  constexpr std::size_t lanes = 2;
#endif
  typedef double batch __attribute__((vector_size(lanes * sizeof(double))));  // NOLINT: no alias
  for (; i + lanes <= n; i += lanes) {
    batch product;
    batch sum;
    std::memcpy(&product, x + i, sizeof product);
    std::memcpy(&sum, y + i, sizeof sum);
    product *= a;
    DETENT_ROUNDED(product);
    sum += product;
    std::memcpy(y + i, &sum, sizeof sum);
  }
#endif
  for (; i < n; ++i) {
    y[i] += rounded_product(a, x[i]);
  }
}

/// y[i] = y[i] * (a * scale[i]) + addend[i] for n floats, each product rounded to float before it
/// goes on. SIMD vectors give the same bits as scalars.
inline void scale_and_add(std::size_t n, float a, const float* scale, const float* addend,
                          float* y) noexcept {
  std::size_t i = 0;
#if defined(DETENT_ROUNDED) && (DETENT_ARCH_X86_64 || defined(__aarch64__))
#if defined(__AVX__)
  constexpr std::size_t lanes = 8;
#else
  constexpr std::size_t lanes = 4;
#endif
  typedef float batch __attribute__((vector_size(lanes * sizeof(float))));  // NOLINT: no alias
  for (; i + lanes <= n; i += lanes) {
    batch product;
    batch factor;
    batch sum;
    std::memcpy(&product, y + i, sizeof product);
    std::memcpy(&factor, scale + i, sizeof factor);
    std::memcpy(&sum, addend + i, sizeof sum);
    product *= factor * a;
    DETENT_ROUNDED(product);
    sum += product;
    std::memcpy(y + i, &sum, sizeof sum);
  }
#endif
  for (; i < n; ++i) {
    y[i] = rounded_product(y[i], a * scale[i]) + addend[i];
  }
}

/// add_scaled() four times: with a[0] and x, then with a[1] and the values that begin `stride`
/// behind x, and so on.
inline void add_four_scaled(std::size_t n, const double (&a)[4], const double* x,
                            std::size_t stride, double* y) noexcept {
  std::size_t i = 0;
#if defined(DETENT_ROUNDED) && (DETENT_ARCH_X86_64 || defined(__aarch64__))
  typedef double pair __attribute__((vector_size(16)));  // NOLINT: no alias
  for (; i + 2 <= n; i += 2) {
    pair sum;
    std::memcpy(&sum, y + i, sizeof sum);
    for (std::size_t k = 0; k < 4; ++k) {
      pair product;
      std::memcpy(&product, x + k * stride + i, sizeof product);
      product *= a[k];
      DETENT_ROUNDED(product);
      sum += product;
    }
    std::memcpy(y + i, &sum, sizeof sum);
  }
#endif
  for (; i < n; ++i) {
    for (std::size_t k = 0; k < 4; ++k) {
      y[i] += rounded_product(a[k], x[k * stride + i]);
    }
  }
}

#undef DETENT_ROUNDED

/// The sum of a[i] * b[i], each product rounded, added in order from the first to the last.
[[nodiscard]] inline double ordered_dot(std::size_t n, const double* a, const double* b) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += rounded_product(a[i], b[i]);
  }
  return sum;
}

/// The sum of n values: value i is added to the sum s[i % 8], and the result is
/// ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7])), which does not wait for one
/// addition after the other.
[[nodiscard]] inline double sum_of(std::span<const double> values) {
  constexpr std::size_t lanes = 8;
  std::array<double, lanes> s{};
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    for (std::size_t k = 0; k < lanes; ++k) {
      s[k] += values[i + k];
    }
  }
  for (std::size_t k = 0; i < values.size(); ++i, ++k) {
    s[k] += values[i];
  }
  return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_ARITHMETIC_HPP
