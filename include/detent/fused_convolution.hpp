// SPDX-License-Identifier: BSD-3-Clause
// convolve() with an epilogue of the caller's own (see fused_epilogue.hpp).
#ifndef DETENT_FUSED_CONVOLUTION_HPP
#define DETENT_FUSED_CONVOLUTION_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/convolution.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/fused_epilogue.hpp>
#include <detent/images/convolution_blocks.hpp>
#include <detent/images/output_block.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN

/// Convolves unsigned 8-bit images with packed 8-bit filters, and gives the results to the functor
/// of `epilogue`, block by block:
///
///     fused(f):       f(product_block<float>): the values that convolve() writes to floats
///     fused_sums(f):  f(product_block<std::int32_t>): those that it writes to 32-bit integers
///
/// bit for bit, on every target and for every split into threads and blocks. A row of a block is an
/// output pixel, counted through the batch: row (n * out_height + y) * out_width + x; its columns
/// are the output channels, all of them. `options` are those of convolve() for the type of the
/// values, applied before f gets them. Where and in which layout results are stored is up to f;
/// w.output_layout must be nhwc, which is the layout of a residual, too.
///
/// A block has about 16 KB of values, but at least 48 pixels or, with depthwise filters, one output
/// row. fused() says how f is called. Input, exactness, other errors and memory are those of
/// convolve(), but that each thread keeps memory for a block; throws unsupported for another
/// output_layout. If sums do not fit the 32 bits of fused_sums(), their values in the block are
/// unspecified, and overflow is thrown at the end. Thread-safe.
template <class F, class T>
void convolve(std::span<const std::uint8_t> input, const packed_filters& filters, const window& w,
              const fused_epilogue<F, T>& epilogue, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  const filter_shape& f = filters.shape();
  const std::size_t in = detail::required_input(f, w);
  require(input.size() == in, error_kind::shape_mismatch, "convolution: ", input.size(),
          " inputs, not ", in);
  require(in == 0 || input.data() != nullptr, error_kind::invalid_argument,
          "convolution: null data");
  require(
      w.output_layout == activation_layout::nhwc, error_kind::unsupported,
      "convolution: blocks of a fused epilogue have their channels last (output_layout is nchw)");
  detail::require_epilogue<T>(f, w, options);
  if (detail::required_output(f, w) == 0) {
    return;
  }
  const detail::block_consumer<T> consumer = [&](std::size_t first, std::size_t count, T* results) {
    epilogue.function(product_block<T>(first, 0, count, f.out_channels, results, f.out_channels));
  };
  detail::convolve_to<T>(
      input, filters, w,
      {detail::output_images<T>(f, w, nullptr), options.residual.data, false, &consumer}, options,
      parallel);
}

/// Convolves signed 8-bit images with packed 8-bit filters, with an lhs_zero_point of -128..127,
/// and gives the results to the functor of `epilogue`. The calling thread keeps a copy of the input
/// with 128 added to each value; all else is as with unsigned images.
template <class F, class T>
void convolve(std::span<const std::int8_t> input, const packed_filters& filters, const window& w,
              const fused_epilogue<F, T>& epilogue, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  require(input.size() == detail::required_input(filters.shape(), w), error_kind::shape_mismatch,
          "convolution: ", input.size(), " inputs, not ",
          detail::required_input(filters.shape(), w));
  require(input.empty() || input.data() != nullptr, error_kind::invalid_argument,
          "convolution: null data");
  detail::require_zero_point(options.lhs_zero_point, full_grid<std::int8_t>, "convolution");
  detail::leased_memory<std::uint8_t> memory;
  epilogue_options of_shifted = options;
  of_shifted.lhs_zero_point -= detail::lhs_shift<std::int8_t>;
  convolve(detail::shifted_copy(input, memory, parallel), filters, w, epilogue, of_shifted,
           parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_FUSED_CONVOLUTION_HPP
