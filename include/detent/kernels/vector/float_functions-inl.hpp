// SPDX-License-Identifier: BSD-3-Clause
// Functions of floats, step by step what base/float_functions.hpp does.

#ifndef DETENT_KERNELS_VECTOR_FLOAT_FUNCTIONS_INL_HPP
#define DETENT_KERNELS_VECTOR_FLOAT_FUNCTIONS_INL_HPP

#include <cstddef>
#include <iterator>
#include <limits>

#include <detent/base/float_functions.hpp>
#include <detent/kernels/float_functions.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/float_functions-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// detail::times_power_of_two() for n = biased - rounding_bias.
HWY_INLINE float_vector times_power_of_two(float_vector p, float_vector biased) noexcept {
#if HWY_TARGET == HWY_AVX2
  const int_tag di;
  const float_tag df;
  const auto n = hn::Sub(hn::BitCast(di, biased), hn::Set(di, rounding_bias_bits));
  const auto half = hn::ShiftRight<1>(n);
  const auto bias = hn::Set(di, 127);
  const auto first = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const auto second = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias)));
  return product(hn::Mul(p, first), second);
#else
  const auto n = hn::Sub(biased, hn::Set(float_tag{}, rounding_bias));
  // The masked form, with all lanes: GCC 12 warns that the other form leaves its result
  // uninitialized.
  return float_vector{_mm512_maskz_scalef_ps(0xFFFF, p.raw, n.raw)};
#endif
}

/// detail::reduced_exponent: `biased` is n + rounding_bias.
struct reduced_exponents {
  float_vector biased, beyond;
  HWY_INLINE explicit reduced_exponents(float_vector x) noexcept {
    using c = detail::float_functions;
    const float_tag df;
    const auto bias = hn::Set(df, rounding_bias);
    biased = hn::MulAdd(x, hn::Set(df, c::inverse_ln2), bias);
    const auto n = hn::Sub(biased, bias);
    const auto high = hn::NegMulAdd(n, hn::Set(df, c::ln2_high), x);
    const auto r = hn::NegMulAdd(n, hn::Set(df, c::ln2_low), high);
    beyond = hn::MulAdd(hn::Mul(r, r), polynomial(c::exp_series, r), r);
  }
};

/// detail::portable_exp() of values in -104..89, or NaN.
HWY_INLINE float_vector exp_inside(float_vector x) noexcept {
  const reduced_exponents e(x);
  return times_power_of_two(hn::Add(hn::Set(float_tag{}, 1.0F), e.beyond), e.biased);
}

/// detail::portable_exp() of values that are not positive, or NaN. x86's maximum returns the second
/// operand if it is NaN.
HWY_INLINE float_vector exp_of_negative(float_vector x) noexcept {
  return exp_inside(hn::Max(hn::Set(float_tag{}, detail::float_functions::least_exponent), x));
}

/// exp_of_negative() of several vectors, in place, step by step side by side. Each step waits for
/// the one before, and processors do not look far enough ahead to find the next vector meanwhile.
template <std::size_t kVectors>
HWY_INLINE void exp_of_negatives(float_vector (&x)[kVectors]) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  const auto bias = hn::Set(df, rounding_bias);
  float_vector biased[kVectors];
  float_vector sum[kVectors];
  const auto for_each = [](const auto& step) HWY_ATTR {
    DETENT_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      step(k);
    }
  };
  for_each([&](std::size_t k) HWY_ATTR { x[k] = hn::Max(hn::Set(df, c::least_exponent), x[k]); });
  for_each([&](std::size_t k)
               HWY_ATTR { biased[k] = hn::MulAdd(x[k], hn::Set(df, c::inverse_ln2), bias); });
  for_each([&](std::size_t k) HWY_ATTR { sum[k] = hn::Sub(biased[k], bias); });
  for_each([&](std::size_t k)
               HWY_ATTR { x[k] = hn::NegMulAdd(sum[k], hn::Set(df, c::ln2_high), x[k]); });
  for_each([&](std::size_t k)
               HWY_ATTR { x[k] = hn::NegMulAdd(sum[k], hn::Set(df, c::ln2_low), x[k]); });
  for_each([&](std::size_t k) HWY_ATTR { sum[k] = hn::Set(df, c::exp_series[0]); });
  for (std::size_t step = 1; step < std::size(c::exp_series); ++step) {
    const auto coefficient = hn::Set(df, c::exp_series[step]);
    for_each([&](std::size_t k) HWY_ATTR { sum[k] = hn::MulAdd(sum[k], x[k], coefficient); });
  }
  for_each([&](std::size_t k) HWY_ATTR { sum[k] = hn::MulAdd(hn::Mul(x[k], x[k]), sum[k], x[k]); });
  for_each([&](std::size_t k) HWY_ATTR { sum[k] = hn::Add(hn::Set(df, 1.0F), sum[k]); });
  for_each([&](std::size_t k) HWY_ATTR { x[k] = times_power_of_two(sum[k], biased[k]); });
}

/// detail::portable_exp().
HWY_INLINE float_vector exp_of(float_vector x) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  return exp_inside(
      clamp_ordered(x, hn::Set(df, c::least_exponent), hn::Set(df, c::largest_exponent)));
}

/// `result`, or x where x is NaN.
HWY_INLINE float_vector unless_nan(float_vector x, float_vector result) noexcept {
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}

HWY_INLINE float_vector erf_of(float_vector x) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  const auto distance = hn::Abs(x);
  const auto is_near = hn::Lt(distance, hn::Set(df, c::erf_near_zero_end));
  const auto end = hn::Set(df, c::erf_is_one);
  const auto m = hn::IfThenElse(hn::Lt(distance, end), distance, end);
  // Both polynomials have as many coefficients: each lane takes its own.
  const auto argument = hn::IfThenElse(is_near, hn::Mul(x, x), m);
  const auto coefficient = [&](std::size_t k) HWY_ATTR {
    return hn::IfThenElse(is_near, hn::Set(df, c::erf_near_zero[k]),
                          hn::Set(df, c::erf_away_from_zero[k]));
  };
  auto sum = coefficient(0);
  for (std::size_t k = 1; k < 6; ++k) {
    sum = hn::MulAdd(sum, argument, coefficient(k));
  }
  const auto rest = exp_inside(hn::Neg(hn::Mul(m, sum)));
  const auto away = hn::CopySign(hn::Sub(hn::Set(df, 1.0F), rest), x);
  return unless_nan(x, hn::IfThenElse(is_near, hn::MulAdd(x, sum, x), away));
}

HWY_INLINE float_vector tanh_of(float_vector x) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  const int_tag di;
  const auto distance = hn::Abs(x);
  const auto end = hn::Set(df, c::tanh_is_one);
  const auto m = hn::IfThenElse(hn::Lt(distance, end), distance, end);
  const reduced_exponents e(hn::Add(m, m));
  // 2^n, of whose bits only the lowest ones, those of n, are left after the shift.
  const auto one_bits = hn::Set(di, 127 << 23);
  const auto power =
      hn::BitCast(df, hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, e.biased)), one_bits));
  const auto t = hn::MulAdd(power, e.beyond, hn::Sub(power, hn::Set(df, 1.0F)));
  const auto result = hn::Div(t, hn::Add(t, hn::Set(df, 2.0F)));
  return unless_nan(x, hn::CopySign(result, x));
}

HWY_INLINE float_vector logistic_of(float_vector x) noexcept {
  const float_tag df;
  const auto one = hn::Set(df, 1.0F);
  const auto e = exp_of_negative(hn::Neg(hn::Abs(x)));
  const auto numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(df)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

/// detail::portable_expm1().
HWY_INLINE float_vector expm1_of(float_vector x) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  const int_tag di;
  const auto one = hn::Set(df, 1.0F);
  const reduced_exponents e(
      clamp_ordered(x, hn::Set(df, c::expm1_is_minus_one), hn::Set(df, c::largest_exponent)));
  const auto largest = hn::Set(df, rounding_bias + static_cast<float>(c::largest_power));
  // 2^-n, of whose bits only the lowest ones, those of n, are left after the shift.
  const auto power = hn::ShiftLeft<23>(hn::BitCast(di, hn::Min(e.biased, largest)));
  const auto inverse = hn::BitCast(df, hn::Sub(hn::Set(di, 127 << 23), power));
  const auto result = times_power_of_two(hn::Add(hn::Sub(one, inverse), e.beyond), e.biased);
  const auto zero = hn::Zero(df);
  return hn::IfThenElse(hn::Or(hn::Gt(x, zero), hn::Lt(x, zero)), result, x);
}

/// detail::log_of_parts().
HWY_INLINE float_vector log_of_parts(float_vector f, float_vector k) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  const auto log_m = hn::MulAdd(hn::Mul(f, f), polynomial(c::log_series, f), f);
  return hn::MulAdd(k, hn::Set(df, c::ln2_high), hn::MulAdd(k, hn::Set(df, c::ln2_low), log_m));
}

HWY_INLINE float_vector log_of(float_vector x) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  const int_tag di;
  const auto infinity = hn::Set(df, std::numeric_limits<float>::infinity());
  const auto is_denormal = hn::Lt(x, hn::Set(df, std::numeric_limits<float>::min()));
  const auto normal = hn::IfThenElse(is_denormal, hn::Mul(x, hn::Set(df, 0x1p23F)), x);
  const auto sqrt_half = hn::Set(di, c::sqrt_half_bits);
  const auto bits = hn::Sub(hn::BitCast(di, normal), sqrt_half);
  const auto m = hn::Add(hn::And(bits, hn::Set(di, 0x7FFFFF)), sqrt_half);
  const auto f = hn::Sub(hn::BitCast(df, m), hn::Set(df, 1.0F));
  const auto k = hn::ConvertTo(df, hn::ShiftRight<23>(bits));
  const auto shift = hn::IfThenElseZero(is_denormal, hn::Set(df, 23.0F));
  const auto inside = hn::IfThenElse(hn::Lt(x, infinity), log_of_parts(f, hn::Sub(k, shift)), x);
  const auto of_zero = hn::IfThenElse(hn::Eq(x, hn::Zero(df)), hn::Neg(infinity),
                                      hn::Set(df, std::numeric_limits<float>::quiet_NaN()));
  return hn::IfThenElse(hn::Gt(x, hn::Zero(df)), inside, of_zero);
}

HWY_INLINE float_vector softplus_of(float_vector x) noexcept {
  const float_tag df;
  const auto one = hn::Set(df, 1.0F);
  const auto e = exp_of_negative(hn::Neg(hn::Abs(x)));
  const auto is_halved = hn::Gt(e, hn::Set(df, detail::float_functions::sqrt_2_minus_1));
  const auto halved = hn::Mul(hn::Set(df, 0.5F), hn::Sub(e, one));
  const auto rest =
      log_of_parts(hn::IfThenElse(is_halved, halved, e), hn::IfThenElseZero(is_halved, one));
  return hn::IfThenElse(hn::Gt(x, hn::Zero(df)), hn::Add(x, rest), rest);
}

HWY_INLINE float_vector mish_of(float_vector x) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  const auto two = hn::Set(df, 2.0F);
  const auto e = exp_of(hn::Min(hn::Set(df, c::mish_is_line), x));
  const auto n = product(e, hn::Add(e, two));
  return hn::Mul(x, hn::Div(n, hn::Add(n, two)));
}

HWY_INLINE float_vector gelu_of(float_vector x) noexcept {
  const float_tag df;
  const auto argument = hn::Mul(hn::Set(df, detail::float_functions::sqrt_half), x);
  const auto sum = hn::Add(hn::Set(df, 1.0F), erf_of(argument));
  return hn::Mul(hn::Mul(hn::Set(df, 0.5F), x), sum);
}

HWY_INLINE float_vector gelu_tanh_of(float_vector x) noexcept {
  using c = detail::float_functions;
  const float_tag df;
  const auto factor =
      hn::MulAdd(hn::Mul(x, x), hn::Set(df, c::gelu_cubic_factor), hn::Set(df, c::gelu_factor));
  return hn::Mul(x, logistic_of(hn::Mul(x, factor)));
}

/// y = function(x), two vectors at a time: each waits for its own steps.
template <class Function>
HWY_INLINE void map(const float* x, std::size_t n, float* y, const Function& function) noexcept {
  const float_tag df;
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto first = function(hn::LoadU(df, x + i));
    const auto second = function(hn::LoadU(df, x + i + lanes));
    hn::StoreU(first, df, y + i);
    hn::StoreU(second, df, y + i + lanes);
  }
  for (; i < n; i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    hn::StoreN(function(hn::LoadN(df, x + i, count)), df, y + i, count);
  }
}

inline void exp(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return exp_of(v); });
}
inline void erf(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return erf_of(v); });
}
inline void tanh(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return tanh_of(v); });
}
inline void logistic(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return logistic_of(v); });
}
inline void log(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return log_of(v); });
}
inline void softplus(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return softplus_of(v); });
}
inline void mish(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return mish_of(v); });
}
inline void gelu(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return gelu_of(v); });
}
inline void gelu_tanh(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return gelu_tanh_of(v); });
}
inline void exponential_linear(const float* x, std::size_t n, float positive, float negative,
                               float divisor, float* y) noexcept {
  const float_tag df;
  const auto above = hn::Set(df, positive);
  const auto below = hn::Set(df, negative);
  const auto divisors = hn::Set(df, divisor);
  map(x, n, y, [&](float_vector v) HWY_ATTR {
    return hn::IfThenElse(hn::Gt(v, hn::Zero(df)), hn::Mul(above, v),
                          hn::Mul(below, expm1_of(hn::Div(v, divisors))));
  });
}
inline void abs(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return hn::Abs(v); });
}
inline void neg(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return hn::Neg(v); });
}
inline void sqrt(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return hn::Sqrt(v); });
}
inline void floor(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return hn::Floor(v); });
}
inline void ceil(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return hn::Ceil(v); });
}
inline void round(const float* x, std::size_t n, float* y) noexcept {
  map(x, n, y, [](float_vector v) HWY_ATTR { return hn::Round(v); });
}
inline void hard_swish(const float* x, std::size_t n, float* y) noexcept {
  const float_tag df;
  map(x, n, y, [df](float_vector v) HWY_ATTR {
    const auto line = hn::Add(v, hn::Set(df, 3.0F));
    const auto clamped = clamp_ordered(line, hn::Zero(df), hn::Set(df, 6.0F));
    return hn::Mul(v, hn::Mul(clamped, hn::Set(df, 1.0F / 6.0F)));
  });
}
inline void hard_sigmoid(const float* x, std::size_t n, float alpha, float beta,
                         float* y) noexcept {
  const float_tag df;
  const auto factor = hn::Set(df, alpha);
  const auto offset = hn::Set(df, beta);
  map(x, n, y, [&](float_vector v) HWY_ATTR {
    return clamp_ordered(hn::MulAdd(factor, v, offset), hn::Zero(df), hn::Set(df, 1.0F));
  });
}
inline void clamp(const float* x, std::size_t n, float lower, float upper, float* y) noexcept {
  const float_tag df;
  const auto lowest = hn::Set(df, lower);
  const auto highest = hn::Set(df, upper);
  map(x, n, y, [&](float_vector v) HWY_ATTR { return clamp_ordered(v, lowest, highest); });
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif
