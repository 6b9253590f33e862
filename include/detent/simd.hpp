// SPDX-License-Identifier: BSD-3-Clause
// Functions on arrays of any arithmetic type, written with xsimd and compiled at the flags of the
// including translation unit. They serve element types that the kernel tables do not have. Every
// function takes the architecture as a template parameter, so that translation units with other
// flags instantiate other functions. Without xsimd the same functions are plain loops.
//
// lanes<T> is a register of values, or one value without xsimd; functions of the caller that are
// written for `auto` work on both.
#ifndef DETENT_SIMD_HPP
#define DETENT_SIMD_HPP

#include <cmath>
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

#if DETENT_WITH_XSIMD
/// Number of values in lanes<T, Arch>.
template <class T, class Arch = default_arch>
inline constexpr std::size_t lane_count = [] {
  if constexpr (xsimd::has_simd_register<T, Arch>::value) {
    return xsimd::batch<T, Arch>::size;
  } else {
    return std::size_t{1};
  }
}();
/// A register of values of an arithmetic type on the architecture Arch: xsimd::batch<T, Arch>, or T
/// if there is no such register or no xsimd.
template <class T, class Arch = default_arch>
using lanes = typename std::conditional_t<xsimd::has_simd_register<T, Arch>::value,
                                          std::type_identity<xsimd::batch<T, Arch>>,
                                          std::type_identity<T>>::type;
#else
template <class T, class Arch = default_arch>
inline constexpr std::size_t lane_count = 1;
template <class T, class Arch = default_arch>
using lanes = T;
#endif

/// The lane_count values from `from` on, which need not be aligned.
template <class Arch = default_arch, class T>
[[nodiscard]] lanes<std::remove_const_t<T>, Arch> load(T* from) noexcept {
  if constexpr (lane_count<std::remove_const_t<T>, Arch> == 1) {
    return *from;
  } else {
    return lanes<std::remove_const_t<T>, Arch>::load_unaligned(from);
  }
}
/// The first `count` lanes from `from` on, and 0 in the others; nothing behind them is read.
template <class Arch = default_arch, class T>
[[nodiscard]] lanes<std::remove_const_t<T>, Arch> load(T* from, std::size_t count) noexcept {
  std::remove_const_t<T> all[lane_count<std::remove_const_t<T>, Arch>] = {};
  for (std::size_t i = 0; i < count; ++i) {
    all[i] = from[i];
  }
  return load<Arch>(all);
}
/// Writes all lanes to to[0], to[1], ..., which need not be aligned.
template <class Arch = default_arch, class T>
void store(const std::type_identity_t<lanes<T, Arch>>& x, T* to) noexcept {
  if constexpr (lane_count<T, Arch> == 1) {
    *to = x;
  } else {
    x.store_unaligned(to);
  }
}
/// Writes the first `count` lanes to to[0] .. to[count - 1]; nothing behind them is written.
template <class Arch = default_arch, class T>
void store(const std::type_identity_t<lanes<T, Arch>>& x, T* to, std::size_t count) noexcept {
  constexpr std::size_t size = lane_count<T, Arch>;
  if (count >= size) {
    store<Arch>(x, to);
    return;
  }
  T all[size];
  store<Arch>(x, all);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = all[i];
  }
}

// Functions of registers and of single values, under one name for both. min and max are the
// library's own; the others are xsimd's, which accept single values, too, or without xsimd those of
// the standard library. exp, tanh and erf are approximations that differ in the last bits between
// xsimd's architectures and the standard library; the others are exact, or rounded once.
#if DETENT_WITH_XSIMD
using xsimd::abs;
using xsimd::erf;
using xsimd::exp;
using xsimd::select;
using xsimd::sqrt;
using xsimd::tanh;
#else
using std::abs;
using std::erf;
using std::exp;
using std::sqrt;
using std::tanh;
/// x where the condition holds, y elsewhere.
template <class T>
[[nodiscard]] T select(bool condition, T x, T y) noexcept {
  return condition ? x : y;
}
#endif

/// The smaller value, x < y ? x : y: y if either is NaN, and y if both are zeros of any signs.
template <class T>
requires std::is_arithmetic_v<T>
[[nodiscard]] constexpr T min(T x, T y) noexcept { return x < y ? x : y; }
/// The larger value, x > y ? x : y: y if either is NaN, and y if both are zeros of any signs.
template <class T>
requires std::is_arithmetic_v<T>
[[nodiscard]] constexpr T max(T x, T y) noexcept { return x > y ? x : y; }
#if DETENT_WITH_XSIMD
/// In each lane, min() of single values: x < y ? x : y.
template <class T, class Arch>
[[nodiscard]] xsimd::batch<T, Arch> min(const xsimd::batch<T, Arch>& x,
                                        const xsimd::batch<T, Arch>& y) noexcept {
#if DETENT_ARCH_X86_64
  return xsimd::min(x, y);  // the instructions have this rule
#else
  return xsimd::select(x < y, x, y);
#endif
}
/// In each lane, max() of single values: x > y ? x : y.
template <class T, class Arch>
[[nodiscard]] xsimd::batch<T, Arch> max(const xsimd::batch<T, Arch>& x,
                                        const xsimd::batch<T, Arch>& y) noexcept {
#if DETENT_ARCH_X86_64
  return xsimd::max(x, y);  // the instructions have this rule
#else
  return xsimd::select(x > y, x, y);
#endif
}
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
