// SPDX-License-Identifier: BSD-3-Clause
// A walk over the pixels of a depthwise product.
#ifndef DETENT_KERNELS_PORTABLE_DEPTHWISE_ROWS_HPP
#define DETENT_KERNELS_PORTABLE_DEPTHWISE_ROWS_HPP

#include <cstddef>

#include <detent/kernels/depthwise_rows.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// Calls f(tap addresses, offset from them, output pixel) for each pixel.
template <class T, class F>
void for_each_pixel(const depthwise_rows<T>& rows, const F& f) noexcept {
  for (std::size_t r = 0; r < rows.run_count; ++r) {
    const depthwise_run& run = rows.runs[r];
    for (std::size_t p = 0; p < run.pixels; ++p) {
      f(rows.taps + run.tap, p * rows.step, run.pixel + p);
    }
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_DEPTHWISE_ROWS_HPP
