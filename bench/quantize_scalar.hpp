// SPDX-License-Identifier: BSD-3-Clause
// The plain scalar loop that kernels are compared with.
#ifndef DETENT_BENCH_QUANTIZE_SCALAR_HPP
#define DETENT_BENCH_QUANTIZE_SCALAR_HPP

#include <cstddef>
#include <cstdint>

/// Quantizes `n` floats as one would without a library; compiled at -O2.
void quantize_scalar(const float* x, std::size_t n, float scale, std::int32_t zero_point,
                     std::uint8_t* q);

#endif  // DETENT_BENCH_QUANTIZE_SCALAR_HPP
