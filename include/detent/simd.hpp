// SPDX-License-Identifier: BSD-3-Clause
// Functions on arrays of any arithmetic type, written with xsimd and compiled at the flags of the
// including translation unit. They serve element types that the kernel tables do not have. Every
// function takes the architecture as a template parameter, so that translation units with other
// flags instantiate other functions. Without xsimd the same functions are plain loops.
#ifndef DETENT_SIMD_HPP
#define DETENT_SIMD_HPP

#include <cstddef>
#include <limits>
#include <type_traits>

#include <detent/config.hpp>

#if DETENT_WITH_XSIMD
#include <xsimd/xsimd.hpp>
#endif

DETENT_NAMESPACE_BEGIN
/// Functions on arrays of any arithmetic type, compiled at the flags of the including translation
/// unit with xsimd, or as plain loops without it.
namespace simd {

#if DETENT_WITH_XSIMD
/// The xsimd architecture that the flags of the translation unit allow.
using default_arch = xsimd::default_arch;
#else
/// Stands for the architecture in builds without xsimd.
struct default_arch {};
#endif

/// The smallest and the largest of the values seen so far, and the number of NaN among them. NaN
/// changes neither end. Before any number is seen, lower > upper.
template <class T>
struct extrema {
  /// Smallest value; before any is seen, +infinity or the largest value of an integer type.
  T lower = std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                 : std::numeric_limits<T>::max();
  /// Largest value; before any is seen, -infinity or the lowest value of an integer type.
  T upper = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                 : std::numeric_limits<T>::lowest();
  std::size_t count_nan = 0;  ///< Number of NaN.

  /// Takes one more value into account.
  void include(T value) noexcept {
    if (value != value) {
      ++count_nan;
      return;
    }
    lower = value < lower ? value : lower;
    upper = value > upper ? value : upper;
  }
};

/// The extrema of the n values from x on. -0 and +0 count as equal: which of them is returned is
/// not defined. NaN is counted and otherwise ignored. T is any arithmetic type; Arch is the xsimd
/// architecture to use. Thread-safe.
template <class Arch = default_arch, class T>
[[nodiscard]] extrema<T> min_max(const T* x, std::size_t n) noexcept {
  static_assert(std::is_arithmetic_v<T>, "detent::simd::min_max: T must be an arithmetic type");
  extrema<T> result;
  std::size_t i = 0;
#if DETENT_WITH_XSIMD
  if constexpr (xsimd::has_simd_register<T, Arch>::value) {
    using batch = xsimd::batch<T, Arch>;
    batch lower(result.lower);
    batch upper(result.upper);
    for (; i + batch::size <= n; i += batch::size) {
      const batch v = batch::load_unaligned(x + i);
      if constexpr (std::is_floating_point_v<T>) {
        if (xsimd::any(xsimd::isnan(v))) [[unlikely]] {
          for (std::size_t j = 0; j < batch::size; ++j) {
            result.include(x[i + j]);
          }
          continue;
        }
      }
      lower = xsimd::min(lower, v);
      upper = xsimd::max(upper, v);
    }
    // Each end is compared by itself: if no batch was whole and free of NaN, the accumulators hold
    // no value of x.
    const T low = xsimd::reduce_min(lower);
    const T high = xsimd::reduce_max(upper);
    result.lower = low < result.lower ? low : result.lower;
    result.upper = high > result.upper ? high : result.upper;
  }
#endif
  for (; i < n; ++i) {
    result.include(x[i]);
  }
  return result;
}

}  // namespace simd
DETENT_NAMESPACE_END

#endif  // DETENT_SIMD_HPP
