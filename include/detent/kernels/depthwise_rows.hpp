// SPDX-License-Identifier: BSD-3-Clause
// Which addresses the pixels of a depthwise product read, for integers and floats alike.
#ifndef DETENT_KERNELS_DEPTHWISE_ROWS_HPP
#define DETENT_KERNELS_DEPTHWISE_ROWS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// A run: neighbouring output pixels of a depthwise product that read the same way. With t the
/// number of a tap and c that of a channel,
///
///   sum[pixel + i, c] = sum_t taps[tap + t][i * step + c] * weights[t, c]     for 0 <= i < pixels
struct depthwise_run {
  std::size_t tap = 0;    // index in `taps` of the address of its first tap
  std::size_t pixel = 0;  // index in the output of its first pixel
  std::size_t pixels = 0;
};

/// The runs of a depthwise product, and what all runs have in common.
template <class T>
struct depthwise_rows {
  const T* const* taps = nullptr;
  const depthwise_run* runs = nullptr;
  std::size_t run_count = 0;
  std::size_t tap_count = 0, channels = 0;
  std::size_t step = 0;  // elements between a tap of one pixel and the same tap of the next
  // The width of the filter, if neighbouring pixels of a run can share what they read, else 0. If
  // it is not 0, then in runs of more than one pixel the four addresses of group g * width + i are
  // those of group g * width plus i * step, for 0 <= i < width:
  //
  //   taps[tap + 4 * (g * width + i) + j] = taps[tap + 4 * g * width + j] + i * step,   0 <= j < 4
  std::size_t width = 0;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_DEPTHWISE_ROWS_HPP
