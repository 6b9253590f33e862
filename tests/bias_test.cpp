// SPDX-License-Identifier: BSD-3-Clause
// Biases of integer products, and weight scales for which they cannot overflow: values derived by
// hand, minimality at every float, what is refused.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/bias.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "random.hpp"

namespace {

using detent::bias_safe_weight_scales;
using detent::error_kind;
using detent::quantize_bias;
using test::check_error;
using test::random_source;
namespace reference = detent::reference;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float flt_max = std::numeric_limits<float>::max();
constexpr float denorm_min = std::numeric_limits<float>::denorm_min();
constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t highest = std::numeric_limits<std::int32_t>::max();

[[nodiscard]] std::int32_t quantized(float bias, float input_scale, float weight_scale) {
  std::int32_t q = 42;
  quantize_bias({&bias, 1}, input_scale, {&weight_scale, 1}, {&q, 1});
  return q;
}

[[nodiscard]] float safe_scale(float bias, float input_scale, float weight_scale,
                               std::int64_t accumulator_bound = 0) {
  float scale = 42.0F;
  bias_safe_weight_scales({&bias, 1}, input_scale, {&weight_scale, 1}, {&scale, 1},
                          accumulator_bound);
  return scale;
}

/// The promise of bias_safe_weight_scales, in other words than those it is computed with.
[[nodiscard]] bool is_safe(float bias, float input_scale, float weight_scale,
                           std::int64_t accumulator_bound) {
  const double scale = static_cast<double>(input_scale) * static_cast<double>(weight_scale);
  const double steps = std::nearbyint(static_cast<double>(bias) / scale);
  return std::fabs(steps) + static_cast<double>(accumulator_bound) <= 2147483647.0;
}

}  // namespace

// --------------------------------------------------------------------------------------
// quantize_bias

TEST_CASE("quantize_bias: by hand") {
  // scale = 0.5 * 0.25 = 1/8
  CHECK(quantized(1.0F, 0.5F, 0.25F) == 8);
  CHECK(quantized(-1.0F, 0.5F, 0.25F) == -8);
  CHECK(quantized(0.0F, 0.5F, 0.25F) == 0);
  CHECK(quantized(-0.0F, 0.5F, 0.25F) == 0);
  // The compiler does not know the value: it may make anything of a NaN that becomes an integer.
  const volatile float unknown = quiet_nan;
  CHECK(detent::reference::quantize_bias(unknown, 0.5F, 0.25F) == 0);
  // ties to even
  CHECK(quantized(0.5F, 1.0F, 1.0F) == 0);
  CHECK(quantized(1.5F, 1.0F, 1.0F) == 2);
  CHECK(quantized(2.5F, 1.0F, 1.0F) == 2);
  CHECK(quantized(-0.5F, 1.0F, 1.0F) == 0);
  CHECK(quantized(-1.5F, 1.0F, 1.0F) == -2);
  CHECK(quantized(-2.5F, 1.0F, 1.0F) == -2);
  CHECK(quantized(std::nextafter(2.5F, 3.0F), 1.0F, 1.0F) == 3);
  // (1 + 2^-23)^2 = 1 + 2^-22 + 2^-46: in float the product is 1 + 2^-22 and the quotient 2^22 +
  // 0.5
  // - 2^-23, in double it is exact. bias = (2^22 + 1) (1 + 2^-22) = 2^22 + 2 + 2^-22 rounds to
  // 2^22 + 2, so that the quotient is 2^22 + 1 - 2^-22 - ...: no tie either way.
  CHECK(quantized(4194306.0F, 0x1.000002p0F, 0x1.000002p0F) == 4194305);
  // A product that is no float: 2^-100 * 2^-100.
  CHECK(quantized(0x1p-149F, 0x1p-75F, 0x1p-75F) == 2);
  CHECK(quantized(0x1p-149F, 0x1p-90F, 0x1p-89F) == 1 << 30);
  CHECK(quantized(flt_max, 0x1p+100F, 0x1p+20F) == 256);  // 2^128 (1 - 2^-24) / 2^120
}

TEST_CASE("quantize_bias: product and quotient are in double") {
  // bias = 3, scale = 0.1F * 0.1F: 0.0100000003 in double, 0.0100000007 in float. Times 10^6 the
  // integers differ.
  const double product = static_cast<double>(0.1F) * static_cast<double>(0.1F);
  const float rounded_product = 0.1F * 0.1F;
  const auto expected = static_cast<std::int32_t>(std::nearbyint(3e6 / product));
  CHECK(quantized(3e6F, 0.1F, 0.1F) == expected);
  CHECK(expected !=
        static_cast<std::int32_t>(std::nearbyint(3e6 / static_cast<double>(rounded_product))));
}

TEST_CASE("quantize_bias saturates") {
  CHECK(quantized(2147483520.0F, 1.0F, 1.0F) == 2147483520);  // the largest float below 2^31
  CHECK(quantized(2147483648.0F, 1.0F, 1.0F) == highest);
  CHECK(quantized(-2147483648.0F, 1.0F, 1.0F) == lowest);
  CHECK(quantized(-2147483904.0F, 1.0F, 1.0F) == lowest);
  CHECK(quantized(1.0F, 0x1p-20F, 0x1p-20F) == highest);
  CHECK(quantized(-1.0F, 0x1p-20F, 0x1p-20F) == lowest);
  CHECK(quantized(flt_max, denorm_min, denorm_min) == highest);
  CHECK(quantized(-flt_max, denorm_min, denorm_min) == lowest);
  CHECK(quantized(infinity, 1.0F, 1.0F) == highest);
  CHECK(quantized(-infinity, 1.0F, 1.0F) == lowest);
  CHECK(quantized(denorm_min, flt_max, flt_max) == 0);
  // (2^24 - 1) / 2^-7 = 2^31 - 2^7; the quotient by (1 - 2^-24) 2^-7 is 2^31 - 2^7 + 127.99..., and
  // by the float before that one 2^31 + 128, roughly.
  CHECK(quantized(16777215.0F, 1.0F, 0x1p-7F) == highest - 127);
  CHECK(quantized(16777215.0F, 1.0F, 0x1.fffffep-8F) == highest);
  CHECK(quantized(-16777215.0F, 1.0F, 0x1.fffffep-8F) == lowest);
}

TEST_CASE("quantize_bias: a scale for each channel, or one for all") {
  const std::vector<float> bias = {1.0F, -2.0F, 3.0F, -0.375F};
  const std::vector<float> scales = {0.5F, 0.25F, 2.0F, 0.125F};
  std::vector<std::int32_t> q(4);
  quantize_bias(bias, 0.5F, scales, q);
  CHECK(q == std::vector<std::int32_t>{4, -16, 3, -6});
  quantize_bias(bias, 0.5F, std::span(scales).first(1), q);
  CHECK(q == std::vector<std::int32_t>{4, -8, 12, -2});  // -1.5 is a tie
  // No channels: outputs of size 0 inside of memory that must stay as it is.
  const std::vector<std::int32_t> before = q;
  const auto none = std::span(q).subspan(2, 0);
  CHECK_NOTHROW(quantize_bias({}, 0.5F, {}, {}));
  CHECK_NOTHROW(quantize_bias(std::span(bias).first(0), 0.5F, {}, none));
  CHECK_NOTHROW(quantize_bias(std::span(bias).first(0), 0.5F, std::span(scales).first(1), none));
  CHECK(q == before);
}

TEST_CASE("quantize_bias is its scalar definition, and near the real quotient") {
  random_source random(21);
  INFO("seed ", random.seed());
  for (int i = 0; i < 20000; ++i) {
    const float input_scale = std::exp2(random.real(-20.0F, 2.0F));
    const float weight_scale = std::exp2(random.real(-20.0F, 2.0F));
    const float bias = random.chance(50) ? random.real(-2.0F, 2.0F)
                                         : random.real(-3e9F, 3e9F) * input_scale * weight_scale;
    const std::int32_t q = quantized(bias, input_scale, weight_scale);
    CHECK(q == reference::quantize_bias(bias, input_scale, weight_scale));
    const double scale = static_cast<double>(input_scale) * static_cast<double>(weight_scale);
    const double clamped =
        std::clamp(static_cast<double>(bias) / scale, -2147483648.0, 2147483647.0);
    CHECK(std::fabs(q - clamped) <= 0.5);
    CHECK(q == static_cast<std::int32_t>(std::nearbyint(clamped)));
  }
  CHECK(reference::quantize_bias(quiet_nan, 1.0F, 1.0F) == 0);
}

TEST_CASE("quantize_bias: what it refuses, and nothing is written") {
  std::vector<float> bias = {1.0F, 2.0F, 3.0F};
  std::vector<float> scales = {0.5F, 0.25F, 0.125F};
  std::vector<std::int32_t> q(3, 42);
  const auto refused = [&](error_kind kind, std::initializer_list<std::string_view> words,
                           float input_scale) {
    check_error(kind, words, [&] { quantize_bias(bias, input_scale, scales, q); });
    CHECK(std::count(q.begin(), q.end(), 42) == static_cast<std::ptrdiff_t>(q.size()));
  };
  for (const float bad : {0.0F, -1.0F, quiet_nan, infinity}) {
    refused(error_kind::invalid_argument, {"quantize_bias: input scale"}, bad);
    scales[2] = bad;
    refused(error_kind::invalid_argument, {"quantize_bias: weight scale", "of channel 2 "}, 1.0F);
    scales[2] = 0.125F;
  }
  for (const float bad : {quiet_nan, -quiet_nan}) {
    bias[1] = bad;
    refused(error_kind::invalid_argument, {"quantize_bias: bias of channel 1 is NaN"}, 1.0F);
    bias[1] = 2.0F;
  }
  scales.pop_back();
  refused(error_kind::shape_mismatch, {"quantize_bias: 2 weight scales for 3 channels"}, 1.0F);
  scales.clear();
  refused(error_kind::shape_mismatch, {"quantize_bias: 0 weight scales for 3 channels"}, 1.0F);
  scales = {1.0F};
  q.pop_back();
  refused(error_kind::shape_mismatch, {"quantize_bias: input has 3 elements, output 2"}, 1.0F);
}

// ----------------------------------------------------------------------------
// bias_safe_weight_scales

TEST_CASE("bias_safe_weight_scales: by hand") {
  // Safe already.
  CHECK(safe_scale(1.0F, 0.5F, 0.25F) == 0.25F);
  CHECK(safe_scale(0.0F, denorm_min, denorm_min) == denorm_min);
  CHECK(safe_scale(-0.0F, denorm_min, denorm_min, highest) == denorm_min);
  CHECK(safe_scale(2147483520.0F, 1.0F, 1.0F, 127) == 1.0F);
  // limit = 2^31 - 1 is odd: 2^20 / s < 2^31 - 0.5 asks for s > 2^-11 (1 + 2^-32...). At 2^-11,
  // which is the float nearest to the bound, the bias would be 2^31.
  CHECK(safe_scale(1.0F, 0x1p-20F, 0x1p-20F) == 0x1.000002p-11F);
  CHECK(safe_scale(-1.0F, 0x1p-20F, 0x1p-20F) == 0x1.000002p-11F);
  // limit = 2^30 - 1
  CHECK(safe_scale(1.0F, 0x1p-20F, 0x1p-20F, 1 << 30) == 0x1.000002p-10F);
  // limit = 2^20 is even: 2^20 / s <= 2^20 + 0.5 asks for s >= 1 - 2^-21 + 2^-42; 1 - 2^-21 is a
  // float and too small, the next is 1 - 7 * 2^-24.
  CHECK(safe_scale(1.0F, 0x1p-20F, 0x1p-20F, highest - (1 << 20)) == 0x1.fffff2p-1F);
  // limit = 0: the bias must round to 0, and the tie does.
  CHECK(safe_scale(1.0F, 1.0F, 1.0F, highest) == 2.0F);
  // limit = 1: s > 2/3 = 0x1.5555555...p-1, for 1.5 rounds to 2
  CHECK(safe_scale(1.0F, 1.0F, 0.5F, highest - 1) == 0x1.555556p-1F);
  CHECK(safe_scale(1.0F, 0.75F, 0.5F, highest - 1) == 0x1.c71c72p-1F);  // 8/9 = 0x1.c71c71c...p-1
  // limit = 2: 2.5 rounds to 2, so that s = 1 / 2.5 = 0.4 = 0x1.9999999...p-2 need not be exceeded;
  // 0x1.999998p-2 is under it
  CHECK(safe_scale(1.0F, 1.0F, 0.125F, highest - 2) == 0x1.99999ap-2F);
  CHECK(safe_scale(5.0F, 1.0F, 0.5F, highest - 2) == 2.0F);  // 5 / 2 is the tie itself
  // Subnormal: 2^-110 / s < 2^31 - 0.5 asks for s > 2^-141; the next float is 2^-149 further.
  CHECK(safe_scale(0x1p-100F, 0x1p+10F, denorm_min) == 0x1p-141F + denorm_min);
  // FLT_MAX / (2^-30 s) is 2^30 at s = FLT_MAX, which is the last scale there is and just enough
  // for limit = 2^30; with limit = 2^30 - 1 and half the bias, the next float up is.
  CHECK(safe_scale(flt_max, 0x1p-30F, 1.0F, highest - (1 << 30)) == flt_max);
  CHECK(safe_scale(0x1.fffffep+126F, 0x1p-30F, 1.0F, 1 << 30) == 0x1p+127F);
}

TEST_CASE("bias_safe_weight_scales: safe, and the smallest such float") {
  random_source random(22);
  INFO("seed ", random.seed());
  int raised = 0;
  for (int i = 0; i < 30000; ++i) {
    const float input_scale = std::exp2(random.real(-40.0F, 4.0F));
    const float weight_scale = std::exp2(random.real(-40.0F, 4.0F));
    const float bias =
        random.chance(90) ? random.real(-100.0F, 100.0F) : std::exp2(random.real(-60.0F, 60.0F));
    const std::int64_t bound = random.chance(30)   ? 0
                               : random.chance(50) ? random.integer<std::int64_t>(0, highest)
                                                   : highest - random.integer<std::int64_t>(0, 50);
    INFO("bias ", bias, " input scale ", input_scale, " weight scale ", weight_scale, " bound ",
         bound);
    const float scale = safe_scale(bias, input_scale, weight_scale, bound);
    REQUIRE(scale >= weight_scale);
    REQUIRE(is_safe(bias, input_scale, scale, bound));
    if (scale > weight_scale) {
      ++raised;
      CHECK_FALSE(is_safe(bias, input_scale, std::nextafter(scale, 0.0F), bound));
    }
    // What it is for: the stored bias is the one that was asked for, and no sum leaves 32 bits.
    const std::int64_t q = quantized(bias, input_scale, scale);
    CHECK((q < 0 ? -q : q) + bound <= highest);
    CHECK(safe_scale(bias, input_scale, scale, bound) == scale);
  }
  CHECK(raised > 5000);
}

TEST_CASE("bias_safe_weight_scales: the whole range of floats") {
  random_source random(23);
  INFO("seed ", random.seed());
  int raised = 0;
  for (int i = 0; i < 30000; ++i) {
    const float bias = random.any_float();
    const float input_scale = std::fabs(random.any_float());
    const float weight_scale = std::fabs(random.any_float());
    if (!std::isfinite(bias) || !(input_scale > 0.0F && input_scale < infinity) ||
        !(weight_scale > 0.0F && weight_scale < infinity) ||
        !is_safe(bias, input_scale, flt_max, 1000)) {
      continue;
    }
    INFO("bias ", bias, " input scale ", input_scale, " weight scale ", weight_scale);
    const float scale = safe_scale(bias, input_scale, weight_scale, 1000);
    CHECK(scale >= weight_scale);
    CHECK(is_safe(bias, input_scale, scale, 1000));
    if (scale > weight_scale) {
      ++raised;
      CHECK_FALSE(is_safe(bias, input_scale, std::nextafter(scale, 0.0F), 1000));
    }
  }
  CHECK(raised > 1000);
}

TEST_CASE("bias_safe_weight_scales: a larger scale stays safe") {
  random_source random(24);
  INFO("seed ", random.seed());
  for (int i = 0; i < 300; ++i) {
    const float bias = random.real(-100.0F, 100.0F);
    const float input_scale = std::exp2(random.real(-30.0F, -20.0F));
    const std::int64_t bound = random.integer<std::int64_t>(0, highest);
    float scale = safe_scale(bias, input_scale, 1e-9F, bound);
    for (int step = 0; step < 100; ++step) {
      scale = std::nextafter(scale, infinity);
      REQUIRE(is_safe(bias, input_scale, scale, bound));
    }
  }
}

TEST_CASE("bias_safe_weight_scales: a scale for each channel, one for all, in place") {
  const std::vector<float> bias = {1.0F, -1.0F, 0.0F};
  std::vector<float> scales = {0x1p-20F, 1.0F, 0x1p-30F};
  std::vector<float> out(3);
  bias_safe_weight_scales(bias, 0x1p-20F, scales, out);
  CHECK(out == std::vector<float>{0x1.000002p-11F, 1.0F, 0x1p-30F});
  bias_safe_weight_scales(bias, 0x1p-20F, std::span(scales).first(1), out);
  CHECK(out == std::vector<float>{0x1.000002p-11F, 0x1.000002p-11F, 0x1p-20F});
  // The largest is safe for all.
  std::vector<std::int32_t> q(3);
  quantize_bias(bias, 0x1p-20F, std::span(out).first(1), q);
  // 2^31 / (1 + 2^-23) = 2^31 - 2^8 + 2^-15
  CHECK(q == std::vector<std::int32_t>{2147483392, -2147483392, 0});
  bias_safe_weight_scales(bias, 0x1p-20F, scales, scales);
  CHECK(scales == std::vector<float>{0x1.000002p-11F, 1.0F, 0x1p-30F});
  // No channels: an output of size 0 inside of memory that must stay as it is.
  const std::vector<float> before = out;
  CHECK_NOTHROW(bias_safe_weight_scales({}, 1.0F, {}, {}));
  CHECK_NOTHROW(
      bias_safe_weight_scales(std::span(bias).first(0), 1.0F, {}, std::span(out).subspan(1, 0)));
  CHECK(out == before);
}

TEST_CASE("bias_safe_weight_scales: what it refuses, and nothing is written") {
  std::vector<float> bias = {1.0F, 2.0F, 3.0F};
  std::vector<float> scales = {0.5F, 0.25F, 0.125F};
  std::vector<float> out(3, 42.0F);
  const auto refused = [&](error_kind kind, std::initializer_list<std::string_view> words,
                           float input_scale, std::int64_t bound) {
    check_error(kind, words,
                [&] { bias_safe_weight_scales(bias, input_scale, scales, out, bound); });
    CHECK(std::count(out.begin(), out.end(), 42.0F) == static_cast<std::ptrdiff_t>(out.size()));
  };
  constexpr auto invalid = error_kind::invalid_argument;
  for (const float bad : {0.0F, -1.0F, quiet_nan, infinity}) {
    refused(invalid, {"bias_safe_weight_scales: input scale"}, bad, 0);
    scales[0] = bad;
    refused(invalid, {"weight scale", "of channel 0 "}, 1.0F, 0);
    scales[0] = 0.5F;
  }
  for (const float bad : {quiet_nan, infinity, -infinity}) {
    bias[2] = bad;
    refused(invalid, {"bias", "of channel 2 is not finite"}, 1.0F, 0);
    bias[2] = 3.0F;
  }
  for (const std::int64_t bad :
       {std::int64_t{-1}, std::int64_t{highest} + 1, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    refused(invalid, {"accumulator bound", "0..2147483647"}, 1.0F, bad);
  }
  // 2^127 / (2^-31 s): at FLT_MAX over 2^30, which no scale brings below 2^20.
  bias[1] = 0x1p+127F;
  refused(error_kind::overflow, {"of channel 1 fits 32 bits with no finite weight scale"}, 0x1p-31F,
          highest - (1 << 20));
  // One less than what FLT_MAX is just enough for.
  bias[1] = flt_max;
  refused(error_kind::overflow, {"of channel 1 "}, 0x1p-30F, 1 << 30);
  bias[1] = 2.0F;
  scales.pop_back();
  refused(error_kind::shape_mismatch, {"2 weight scales for 3 channels"}, 1.0F, 0);
  scales = {1.0F};
  out.pop_back();
  refused(error_kind::shape_mismatch, {"input has 3 elements, output 2"}, 1.0F, 0);
}
