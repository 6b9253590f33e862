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

/// detail::polynomial().
template <std::size_t N>
HWY_INLINE double_vector polynomial(const double (&coefficients)[N], double_vector x) noexcept {
  const double_tag dd;
  auto sum = hn::Set(dd, coefficients[0]);
  for (std::size_t k = 1; k < N; ++k) {
    sum = hn::MulAdd(sum, x, hn::Set(dd, coefficients[k]));
  }
  return sum;
}

HWY_INLINE double_vector exp_of(double_vector x) noexcept {
  const double_tag dd;
  const long_tag di;
  const auto largest = hn::Set(dd, detail::largest_exponent);
  const auto least = hn::Set(dd, detail::least_exponent);
  const auto is_inside = hn::And(hn::Ge(x, least), hn::Le(x, largest));
  const auto inside = hn::IfThenElseZero(is_inside, x);
  const auto bias = hn::Set(dd, detail::rounding_bias);
  const auto biased = hn::MulAdd(inside, hn::Set(dd, detail::inverse_ln2), bias);
  const auto n = hn::Sub(biased, bias);
  const auto high = hn::NegMulAdd(n, hn::Set(dd, detail::ln2_high), inside);
  const auto r = hn::NegMulAdd(n, hn::Set(dd, detail::ln2_low), high);
  const auto sum = polynomial(detail::exp_series, r);
  const auto exponent =
      hn::Sub(hn::BitCast(di, biased), hn::Set(di, double_bias_bits - std::int64_t{1023}));
  const auto result = hn::Mul(sum, hn::BitCast(dd, hn::ShiftLeft<52>(exponent)));
  const auto infinity = hn::Set(dd, std::numeric_limits<double>::infinity());
  // What is neither inside, too large nor too small is NaN.
  const auto outside =
      hn::IfThenElse(hn::Gt(x, largest), infinity, hn::IfThenZeroElse(hn::Lt(x, least), x));
  return hn::IfThenElse(is_inside, result, outside);
}

HWY_INLINE double_vector log_of(double_vector x) noexcept {
  const double_tag dd;
  const long_tag di;
  const auto bits = hn::BitCast(di, x);
  const auto fraction = hn::And(bits, hn::Set(di, (std::int64_t{1} << 52) - 1));
  const auto m = hn::BitCast(dd, hn::Or(fraction, hn::Set(di, std::int64_t{1022} << 52)));
  // The exponent as a double, by its bits. Signs are 0.
  const auto biased = hn::Add(hn::ShiftRight<52>(bits), hn::Set(di, double_bias_bits - 1022));
  const auto exponent = hn::Sub(hn::BitCast(dd, biased), hn::Set(dd, detail::rounding_bias));
  const auto one = hn::Set(dd, 1.0);
  const auto is_low = hn::Lt(m, hn::Set(dd, 0x1.6a09e667f3bcdp-1));
  const auto near_one = hn::IfThenElse(is_low, hn::Add(m, m), m);
  const auto e = hn::IfThenElse(is_low, hn::Sub(exponent, one), exponent);
  const auto f = hn::Div(hn::Sub(near_one, one), hn::Add(near_one, one));
  const auto square = product(f, f);
  auto series = hn::Zero(dd);
  for (int k = 23; k >= 3; k -= 2) {
    series = hn::MulAdd(series, square, hn::Set(dd, 1.0 / k));
  }
  const auto twice = hn::Add(f, f);
  const auto log_m = hn::MulAdd(product(series, square), twice, twice);
  const auto low = hn::MulAdd(e, hn::Set(dd, detail::log2_low), log_m);
  return hn::MulAdd(e, hn::Set(dd, detail::log2_high), low);
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

/// Replaces values by what `function` makes of them, two vectors at a time: each waits for its own
/// divisions.
template <class Function>
HWY_INLINE void replace(double* x, std::size_t n, const Function& function) noexcept {
  const double_tag dd;
  const std::size_t lane_count = hn::Lanes(dd);
  std::size_t i = 0;
  for (; i + 2 * lane_count <= n; i += 2 * lane_count) {
    const auto first = function(hn::LoadU(dd, x + i));
    const auto second = function(hn::LoadU(dd, x + i + lane_count));
    hn::StoreU(first, dd, x + i);
    hn::StoreU(second, dd, x + i + lane_count);
  }
  for (; i < n; i += lane_count) {
    const std::size_t count = n - i < lane_count ? n - i : lane_count;
    hn::StoreN(function(hn::LoadNOr(hn::Set(dd, 1.0), dd, x + i, count)), dd, x + i, count);
  }
}

inline void exp(double* x, std::size_t n) noexcept {
  replace(x, n, [](double_vector v) HWY_ATTR { return exp_of(v); });
}
inline void log(double* x, std::size_t n) noexcept {
  replace(x, n, [](double_vector v) HWY_ATTR { return log_of(v); });
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
