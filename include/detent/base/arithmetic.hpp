// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic for observers and solvers that gives the same bits whatever the compiler, its options
// and the processor are: no product is fused with the sum around it, no sum is reordered, and exp,
// log and powers are computed here, because those of the C library differ between releases and
// processors.
//
// This is the main header of the room base/, which holds small tools that any other room may use:
// arithmetic without contraction, 128-bit integers, aligned memory, walks over strided views, and
// the envelope of saved bytes. A header of base/ may include the standard library, other headers of
// base/, and config.hpp, error.hpp, types.hpp and reference.hpp.
#ifndef DETENT_BASE_ARITHMETIC_HPP
#define DETENT_BASE_ARITHMETIC_HPP

#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

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

#undef DETENT_ROUNDED

/// y[i] += a[0] * x[0][i] + a[1] * x[1][i] + a[2] * x[2][i] + a[3] * x[3][i] for n elements, where
/// x[k] begins `stride` elements behind x[k - 1]. For values whose products and sums are exact: the
/// order of the additions, and whether they are fused, do not matter then.
inline void add_four_exact(std::size_t n, const double* a, std::size_t a_stride, const double* x,
                           std::size_t stride, double* y) noexcept {
  const double a0 = a[0];
  const double a1 = a[a_stride];
  const double a2 = a[2 * a_stride];
  const double a3 = a[3 * a_stride];
  const double* const x1 = x + stride;
  const double* const x2 = x1 + stride;
  const double* const x3 = x2 + stride;
  std::size_t i = 0;
#if (defined(__GNUC__) || defined(__clang__)) && (DETENT_ARCH_X86_64 || defined(__aarch64__))
  typedef double pair __attribute__((vector_size(16)));  // NOLINT: no alias
  const auto load = [](const double* from) {
    pair p;
    std::memcpy(&p, from, sizeof p);
    return p;
  };
  for (; i + 2 <= n; i += 2) {
    const pair sum = (load(y + i) + load(x + i) * a0) + (load(x1 + i) * a1) +
                     (load(x2 + i) * a2 + load(x3 + i) * a3);
    std::memcpy(y + i, &sum, sizeof sum);
  }
#endif
  for (; i < n; ++i) {
    y[i] += (a0 * x[i] + a1 * x1[i]) + (a2 * x2[i] + a3 * x3[i]);
  }
}

/// The sum of a[i] * b[i], each product rounded, added in order from the first to the last.
[[nodiscard]] inline double ordered_dot(std::size_t n, const double* a, const double* b) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += rounded_product(a[i], b[i]);
  }
  return sum;
}

/// The high part of log(2) has 33 bits, so that its product with an exponent is exact.
inline constexpr double ln2_high = 0x1.62e42fee00000p-1;
inline constexpr double ln2_low = 0x1.a39ef35793c76p-33;

/// m * 2^e for |m| in [1/2, 2) and e in -1021..1023: a normal number, so that nothing is rounded.
[[nodiscard]] inline double times_power_of_two(double m, int e) noexcept {
  return m * std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52);
}

/// e^x of several values at once: the divisions of one do not wait for those of the others. Above
/// 709 the result is infinity, below -708 it is 0; NaN gives NaN.
template <std::size_t kLanes>
void portable_exp_of(double* values) noexcept {
  constexpr double largest = 709.0;
  constexpr double smallest = -708.0;
  // Adding and subtracting 1.5 * 2^52 rounds to an integer, half to even.
  constexpr double rounding_bias = 6755399441055744.0;
  double n[kLanes];
  double r[kLanes];
  double sum[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double x = values[i] >= smallest && values[i] <= largest ? values[i] : 0.0;
    n[i] = (x / 0.6931471805599453 + rounding_bias) - rounding_bias;
    const double high = x - rounded_product(n[i], ln2_high);
    r[i] = high - rounded_product(n[i], ln2_low);
    sum[i] = 1.0;
  }
  // Taylor's series: |r| <= 0.35, so that the first term left out is below 1e-17.
  for (int k = 14; k >= 1; --k) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      sum[i] = 1.0 + rounded_product(r[i], sum[i]) / k;
    }
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double x = values[i];
    values[i] = x > largest    ? std::numeric_limits<double>::infinity()
                : x < smallest ? 0.0
                : x <= largest ? times_power_of_two(sum[i], static_cast<int>(n[i]))
                               : x;
  }
}

/// e^x to a few units in the last place. Above 709 the result is infinity, below -708 it is 0; NaN
/// gives NaN.
[[nodiscard]] inline double portable_exp(double x) noexcept {
  portable_exp_of<1>(&x);
  return x;
}
/// Replaces each of n values by portable_exp() of it.
inline void portable_exp(std::size_t n, double* x) noexcept {
  constexpr std::size_t lanes = 8;
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    portable_exp_of<lanes>(x + i);
  }
  for (; i < n; ++i) {
    portable_exp_of<1>(x + i);
  }
}

/// log(2) for logarithms: the high part is 11 bits short, so that its product with an exponent is
/// exact.
inline constexpr double log2_high = 0x1.62e42fefa3800p-1;
inline constexpr double log2_low = 0x1.ef35793c76730p-45;

/// The natural logarithm of a positive normal number, to about one unit in the last place.
///
///   x = m * 2^e with sqrt(1/2) <= m < sqrt(2), f = (m - 1) / (m + 1)
///   log(x) = e * log(2) + 2 * (f + f^3 / 3 + f^5 / 5 + ...)
///
/// Since f^2 < 0.0295, the terms after f^23 / 23 are together less than 2^-63 of the sum.
[[nodiscard]] inline double portable_log(double x) noexcept {
  constexpr double odd_inverses[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                     1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0x1.6a09e667f3bcdp-1) {
    m += m;
    --exponent;
  }
  const double f = (m - 1.0) / (m + 1.0);
  const double square = rounded_product(f, f);
  double series = 0.0;
  for (const double inverse : odd_inverses) {
    series = std::fma(series, square, inverse);
  }
  const double twice = f + f;
  const double log_m = std::fma(rounded_product(series, square), twice, twice);
  const auto e = static_cast<double>(exponent);
  return std::fma(e, log2_high, std::fma(e, log2_low, log_m));
}

/// x^y for x >= 0. 0^0 = 1, 0^y = 0 for y > 0 and infinity for y < 0.
[[nodiscard]] inline double portable_power(double x, double y) noexcept {
  if (y == 0.0) {
    return 1.0;
  }
  if (x == 0.0) {
    return y > 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return portable_exp(rounded_product(y, portable_log(x)));
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_ARITHMETIC_HPP
