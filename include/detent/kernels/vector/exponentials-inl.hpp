// SPDX-License-Identifier: BSD-3-Clause
// Exponentials and their relatives, step by step what base/elementary_functions.hpp does.

#ifndef DETENT_KERNELS_VECTOR_EXPONENTIALS_INL_HPP
#define DETENT_KERNELS_VECTOR_EXPONENTIALS_INL_HPP

#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/base/elementary_functions.hpp>
#include <detent/kernels/exponentials.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/exponentials-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

using long_tag = hn::RebindToSigned<double_tag>;

/// The low bits of n + detail::rounding_bias, for an integer n, hold n: these are the bits for 0.
inline constexpr std::int64_t double_bias_bits = 0x4338000000000000;

/// detail::polynomial() of several vectors. A multiplication takes several cycles, and a polynomial
/// is a chain of them: side by side, the chains do not wait for each other.
template <std::size_t kCount, std::size_t N>
HWY_INLINE void polynomials(const double (&coefficients)[N], const double_vector (&x)[kCount],
                            double_vector (&sums)[kCount]) noexcept {
  const double_tag dd;
  DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) { sums[v] = hn::Set(dd, coefficients[0]); }
  DETENT_UNROLL for (std::size_t k = 1; k < N; ++k) {
    DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
      sums[v] = hn::MulAdd(sums[v], x[v], hn::Set(dd, coefficients[k]));
    }
  }
}
template <std::size_t N>
HWY_INLINE double_vector polynomial(const double (&coefficients)[N], double_vector x) noexcept {
  const double_vector all[1] = {x};
  double_vector sums[1];
  polynomials(coefficients, all, sums);
  return sums[0];
}

/// Replaces vectors by their exponentials.
template <std::size_t kCount>
HWY_INLINE void exp_of(double_vector (&x)[kCount]) noexcept {
  const double_tag dd;
  const long_tag di;
  const auto largest = hn::Set(dd, detail::largest_exponent);
  const auto least = hn::Set(dd, detail::least_exponent);
  const auto bias = hn::Set(dd, detail::rounding_bias);
  double_vector biased[kCount];
  double_vector rest[kCount];
  double_vector sums[kCount];
  DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
    const auto is_inside = hn::And(hn::Ge(x[v], least), hn::Le(x[v], largest));
    const auto inside = hn::IfThenElseZero(is_inside, x[v]);
    biased[v] = hn::MulAdd(inside, hn::Set(dd, detail::inverse_ln2), bias);
    const auto n = hn::Sub(biased[v], bias);
    const auto high = hn::NegMulAdd(n, hn::Set(dd, detail::ln2_high), inside);
    rest[v] = hn::NegMulAdd(n, hn::Set(dd, detail::ln2_low), high);
  }
  polynomials(detail::exp_series, rest, sums);
  const auto infinity = hn::Set(dd, std::numeric_limits<double>::infinity());
  DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
    const auto is_inside = hn::And(hn::Ge(x[v], least), hn::Le(x[v], largest));
    const auto exponent =
        hn::Sub(hn::BitCast(di, biased[v]), hn::Set(di, double_bias_bits - std::int64_t{1023}));
    const auto result = hn::Mul(sums[v], hn::BitCast(dd, hn::ShiftLeft<52>(exponent)));
    // What is neither inside, too large nor too small is NaN.
    const auto outside = hn::IfThenElse(hn::Gt(x[v], largest), infinity,
                                        hn::IfThenZeroElse(hn::Lt(x[v], least), x[v]));
    x[v] = hn::IfThenElse(is_inside, result, outside);
  }
}
[[nodiscard]] HWY_INLINE double_vector exp_of(double_vector x) noexcept {
  double_vector all[1] = {x};
  exp_of(all);
  return all[0];
}

/// Replaces vectors by their logarithms.
template <std::size_t kCount>
HWY_INLINE void log_of(double_vector (&x)[kCount]) noexcept {
  const double_tag dd;
  const long_tag di;
  const auto one = hn::Set(dd, 1.0);
  double_vector exponents[kCount];
  double_vector fractions[kCount];
  double_vector squares[kCount];
  double_vector series[kCount];
  DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
    const auto bits = hn::BitCast(di, x[v]);
    const auto fraction = hn::And(bits, hn::Set(di, (std::int64_t{1} << 52) - 1));
    const auto m = hn::BitCast(dd, hn::Or(fraction, hn::Set(di, std::int64_t{1022} << 52)));
    // The exponent as a double, by its bits. Signs are 0.
    const auto biased = hn::Add(hn::ShiftRight<52>(bits), hn::Set(di, double_bias_bits - 1022));
    const auto exponent = hn::Sub(hn::BitCast(dd, biased), hn::Set(dd, detail::rounding_bias));
    const auto is_low = hn::Lt(m, hn::Set(dd, 0x1.6a09e667f3bcdp-1));
    const auto near_one = hn::IfThenElse(is_low, hn::Add(m, m), m);
    exponents[v] = hn::IfThenElse(is_low, hn::Sub(exponent, one), exponent);
    fractions[v] = hn::Div(hn::Sub(near_one, one), hn::Add(near_one, one));
    squares[v] = product(fractions[v], fractions[v]);
  }
  polynomials(detail::log_series, squares, series);
  DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
    const auto twice = hn::Add(fractions[v], fractions[v]);
    const auto log_m = hn::MulAdd(product(series[v], squares[v]), twice, twice);
    const auto low = hn::MulAdd(exponents[v], hn::Set(dd, detail::log2_low), log_m);
    x[v] = hn::MulAdd(exponents[v], hn::Set(dd, detail::log2_high), low);
  }
}

HWY_INLINE double_vector erf_of(double_vector x) noexcept {
  const double_tag dd;
  const auto one = hn::Set(dd, 1.0);
  const auto two = hn::Set(dd, 2.0);
  const auto distance = hn::Abs(x);
  const auto end = hn::Set(dd, detail::erf_is_one);
  const auto m = hn::IfThenElse(hn::Lt(distance, end), distance, end);
  const auto square = product(m, m);
  const auto near_zero = product(m, polynomial(detail::erf_near_zero, square));
  const auto rest =
      polynomial(detail::erf_away_from_zero, hn::Div(hn::Sub(m, two), hn::Add(m, two)));
  const auto away = hn::NegMulAdd(exp_of(hn::Neg(square)), rest, one);
  const auto result = hn::CopySign(hn::IfThenElse(hn::Lt(m, one), near_zero, away), x);
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}

HWY_INLINE double_vector tanh_of(double_vector x) noexcept {
  const double_tag dd;
  const auto one = hn::Set(dd, 1.0);
  const auto m = hn::Abs(x);
  const auto square = product(m, m);
  const auto near_zero =
      hn::MulAdd(product(m, square), polynomial(detail::tanh_near_zero, square), m);
  const auto e = exp_of(hn::Mul(hn::Set(dd, -2.0), m));
  const auto away = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  const auto is_near = hn::Lt(m, hn::Set(dd, detail::tanh_near_zero_end));
  return hn::CopySign(hn::IfThenElse(is_near, near_zero, away), x);
}

HWY_INLINE double_vector logistic_of(double_vector x) noexcept {
  const auto one = hn::Set(double_tag{}, 1.0);
  return hn::Div(one, hn::Add(one, exp_of(hn::Neg(x))));
}

/// How many vectors exp() and log() take side by side.
inline constexpr std::size_t vectors_together = 4;

/// Replaces values by what `function` makes of kCount vectors of them at a time.
template <std::size_t kCount, class Function>
HWY_INLINE void replace_several(double* x, std::size_t n, const Function& function) noexcept {
  const double_tag dd;
  const std::size_t lane_count = hn::Lanes(dd);
  std::size_t i = 0;
  for (; i + kCount * lane_count <= n; i += kCount * lane_count) {
    double_vector all[kCount];
    DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
      all[v] = hn::LoadU(dd, x + i + v * lane_count);
    }
    function(all);
    DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
      hn::StoreU(all[v], dd, x + i + v * lane_count);
    }
  }
  for (; i < n; i += lane_count) {
    const std::size_t count = n - i < lane_count ? n - i : lane_count;
    double_vector one[1] = {hn::LoadNOr(hn::Set(dd, 1.0), dd, x + i, count)};
    function(one);
    hn::StoreN(one[0], dd, x + i, count);
  }
}

/// Replaces values by what `function` makes of a vector of them.
template <class Function>
HWY_INLINE void replace(double* x, std::size_t n, const Function& function) noexcept {
  replace_several<2>(x, n, [&](auto& all) HWY_ATTR {
    for (double_vector& v : all) {
      v = function(v);
    }
  });
}

inline void exp(double* x, std::size_t n) noexcept {
  replace_several<vectors_together>(x, n, [](auto& all) HWY_ATTR { exp_of(all); });
}
inline void log(double* x, std::size_t n) noexcept {
  replace_several<vectors_together>(x, n, [](auto& all) HWY_ATTR { log_of(all); });
}
inline void erf(double* x, std::size_t n) noexcept {
  replace(x, n, [](double_vector v) HWY_ATTR { return erf_of(v); });
}
inline void tanh(double* x, std::size_t n) noexcept {
  replace(x, n, [](double_vector v) HWY_ATTR { return tanh_of(v); });
}
inline void logistic(double* x, std::size_t n) noexcept {
  replace(x, n, [](double_vector v) HWY_ATTR { return logistic_of(v); });
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
