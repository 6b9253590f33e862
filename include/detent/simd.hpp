// SPDX-License-Identifier: BSD-3-Clause
// Register-level templates on xsimd, compiled at the flags of the including translation unit: what
// has no row in the kernel table because the element type is the user's. Every function takes the
// architecture as a template parameter, so that units with other flags instantiate other functions.
// Without xsimd the same functions are plain loops.
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
namespace simd {

#if DETENT_WITH_XSIMD
using default_arch = xsimd::default_arch;
#else
struct default_arch {};
#endif

/// Smallest and largest value; lower > upper where nothing has been seen. NaNs are counted apart.
template <class T>
struct extrema {
  T lower = std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                 : std::numeric_limits<T>::max();
  T upper = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                 : std::numeric_limits<T>::lowest();
  std::size_t count_nan = 0;

  void include(T value) noexcept {
    if (value != value) {
      ++count_nan;
      return;
    }
    lower = value < lower ? value : lower;
    upper = value > upper ? value : upper;
  }
};

/// The extrema of n values of any arithmetic type. -0 and +0 count as equal.
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
    // Each end by itself: where no batch was whole, the accumulators hold no value of x.
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
