// SPDX-License-Identifier: BSD-3-Clause
// 8-bit depthwise products in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_DEPTHWISE_HPP
#define DETENT_KERNELS_PORTABLE_DEPTHWISE_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/depthwise.hpp>
#include <detent/kernels/portable/depthwise_rows.hpp>
#include <detent/kernels/portable/grid.hpp>
#include <detent/kernels/portable/store_sums.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

DETENT_DECL void depthwise_u8(const depthwise_u8_args& d) noexcept {
  const std::size_t groups = (d.rows.tap_count + group_depth - 1) / group_depth;
  for_each_pixel(
      d.rows, [&](const std::uint8_t* const* taps, std::size_t offset, std::size_t pixel) {
        for (std::size_t c = 0; c < d.rows.channels; ++c) {
          const std::size_t lane = c % strip_columns;
          const std::size_t i = lane / 16 * 4 + lane % 4;
          const std::size_t quarter = lane % 16 / 4;
          std::uint32_t sum = 0;
          for (std::size_t t = 0; t < d.rows.tap_count; ++t) {
            const std::size_t group = c / strip_columns * groups + t / group_depth;
            const std::int32_t weight =
                d.weights.words[(((group * 4 + quarter) * 2 + t % 2) * 16 + i) * 2 + t % 4 / 2];
            sum += wrapping(taps[t][offset + c] * weight);
          }
          store(d.epilogue, sum, pixel, c, d.c, pixel * d.rows.channels + c);
        }
      });
}

/// Line by line is no faster here.
inline constexpr void (*depthwise_lines)(const depthwise_lines_args& d) noexcept = nullptr;

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_DEPTHWISE_HPP
