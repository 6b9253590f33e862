// SPDX-License-Identifier: BSD-3-Clause
// Winograd convolutions in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_WINOGRAD_HPP
#define DETENT_KERNELS_PORTABLE_WINOGRAD_HPP

#include <algorithm>
#include <cstddef>

#include <detent/kernels/winograd.hpp>
#include <detent/reference.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

template <std::size_t kTile>
void winograd_input(const winograd_input_args& a) noexcept {
  constexpr std::size_t side = kTile + 2;
  float columns[side * side];
  for (std::size_t tile = 0; tile < a.tiles; ++tile) {
    for (std::size_t c = 0; c < a.channels; ++c) {
      const float* in = a.in + tile * kTile * a.channels + c;
      float* out = a.out + tile * a.channels + c;
      for (std::size_t j = 0; j < side; ++j) {
        reference::winograd_input<kTile>(
            in + j * a.channels, static_cast<std::ptrdiff_t>(a.line_step), columns + j, side);
      }
      for (std::size_t i = 0; i < side; ++i) {
        reference::winograd_input<kTile>(columns + i * side, 1, out + i * side * a.position_step,
                                         static_cast<std::ptrdiff_t>(a.position_step));
      }
    }
  }
}

template <std::size_t kTile>
void winograd_output(const winograd_output_args& a) noexcept {
  constexpr std::size_t side = kTile + 2;
  float columns[kTile * side];
  float line[kTile];
  for (std::size_t tile = 0; tile < a.tiles; ++tile) {
    const std::size_t pixels = (std::min)(kTile, a.pixels - tile * kTile);
    for (std::size_t c = 0; c < a.channels; ++c) {
      const float* in = a.in + tile * a.channels + c;
      for (std::size_t j = 0; j < side; ++j) {
        reference::winograd_output<kTile>(in + j * a.position_step,
                                          static_cast<std::ptrdiff_t>(side * a.position_step),
                                          columns + j, side);
      }
      for (std::size_t i = 0; i < a.lines; ++i) {
        reference::winograd_output<kTile>(columns + i * side, 1, line, 1);
        const std::size_t first = i * a.line_step + tile * kTile * a.channels + c;
        for (std::size_t j = 0; j < pixels; ++j) {
          const std::size_t at = first + j * a.channels;
          float y = line[j] + a.bias[c];
          y = a.residual != nullptr ? y + a.residual[at] : y;
          a.out[at] = reference::clamp(y, a.lower, a.upper);
        }
      }
    }
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_WINOGRAD_HPP
