// SPDX-License-Identifier: BSD-3-Clause
// Scales that are hard in one way or another, shared by the tests of quantize.
#ifndef DETENT_TESTS_SCALES_HPP
#define DETENT_TESTS_SCALES_HPP

namespace test {

inline constexpr float hard_scales[] = {
    1.0F, 0.5F, 0x1p-7F, 0.1F, 1.0F / 3.0F,
    0x1.fffffep-3F,  // the mantissa is all ones
    0x1.000002p-5F,  // one step above a power of two
    0x1.6a09e6p-9F,  // sqrt(2)
    0x1.921fb6p+1F,  // pi
    0x1.555556p-8F,  // 1/192
    // 24-bit mantissas within a few of a multiple of 2^16 and of 2^8: see quantize-inl.hpp
    0x1.020002p-4F, 0x1.02000ap-4F, 0x1.02000cp-4F, 0x1.01fff6p-4F, 0x1.01fffep-4F, 0x1.00020ap-4F,
    0x1.0001f6p-4F, 255.0F, 3.7e10F,
    0x1p-126F,         // the smallest normal number
    0x1.fffffcp-127F,  // the largest subnormal
    1e-40F,
    0x1p-149F,  // the smallest positive number
    0x1p+126F,  // the largest whose reciprocal is normal
    0x1.000002p+126F, 0x1p+127F,
    0x1.fffffep+127F,  // FLT_MAX
};

}  // namespace test

#endif  // DETENT_TESTS_SCALES_HPP
