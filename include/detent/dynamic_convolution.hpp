// SPDX-License-Identifier: BSD-3-Clause
// dynamic_convolve(): convolutions of float images with packed 8-bit filters. The images are
// quantized on the way, with parameters from their own ranges.
#ifndef DETENT_DYNAMIC_CONVOLUTION_HPP
#define DETENT_DYNAMIC_CONVOLUTION_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <detent/base/aligned.hpp>
#include <detent/convolution.hpp>
#include <detent/dynamic_quantize.hpp>
#include <detent/epilogue.hpp>
#include <detent/float_formats.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN

/// How dynamic_convolve() quantizes its input, and what it adds to the sums.
struct dynamic_convolution_options {
  /// True: each image of the batch has a range, scale and zero point of its own, so that its result
  /// does not depend on the other images. False: one for the whole batch.
  bool per_image = true;
  /// Grid of the quantized input, within 0..255, and whether its range is made symmetric.
  quant_scheme input_scheme = asymmetric<std::uint8_t>;
  /// A real value for each output channel, which is added to the scaled sums. Empty means 0.
  std::span<const float> bias = {};
  /// Real values that are added before the clamp, dense and in the layout of the output, as
  /// epilogue_options::residual for convolutions; null means none. May be a float output itself.
  matrix_view<const float> residual = {};
  /// Lower bound of the output. NaN passes through the clamp.
  float lower = -std::numeric_limits<float>::infinity();
  /// Upper bound of the output; it wins where it is less than `lower`.
  float upper = std::numeric_limits<float>::infinity();
};

namespace detail {

/// The body of dynamic_convolve(), for outputs of type T.
template <class T>
void dynamic_convolve_to(std::span<const float> input, const packed_filters& filters,
                         const window& w, std::span<T> output,
                         const dynamic_convolution_options& options, const parallel_for& parallel) {
  const filter_shape& f = filters.shape();
  epilogue_options epilogue;
  epilogue.bias = options.bias;
  epilogue.residual = options.residual;
  epilogue.lower = options.lower;
  epilogue.upper = options.upper;
  require_images(f, w, input, output);
  require_epilogue<T>(f, w, epilogue);
  static_cast<void>(checked_grid<std::uint8_t>(options.input_scheme.levels, "dynamic_convolve"));
  if (output.empty()) {
    return;
  }
  window part = w;
  part.batch = options.per_image ? 1 : w.batch;
  const std::size_t parts = w.batch / part.batch;
  const std::size_t in = input.size() / parts;
  const std::size_t out = output.size() / parts;
  epilogue.residual.rows /= parts;
  leased_memory<std::uint8_t> memory(in);
  const std::span<std::uint8_t> q(memory.data(), in);
  for (std::size_t i = 0; i < parts; ++i) {
    const quant_params p = dynamic_quantize<std::uint8_t>(input.subspan(i * in, in), q,
                                                          options.input_scheme, {parallel});
    epilogue.lhs_scale = p.scale;
    epilogue.lhs_zero_point = p.zero_point;
    if (options.residual.data != nullptr) {
      epilogue.residual.data = options.residual.data + i * out;
    }
    convolve(std::span<const std::uint8_t>(q), filters, part, output.subspan(i * out, out),
             epilogue, parallel);
  }
}

}  // namespace detail

/// Convolves float images with packed 8-bit filters, with an input that is quantized to unsigned
/// bytes on the way. With acc the exact integer sum of convolve() and c the output channel:
///
///     p      = params_from_range(range of the image, or of all images; input_scheme)
///     q      = quantize(input, p), padded with p.zero_point
///     output = clamp(fma(float(acc), p.scale * scale[c], bias[c]) + residual, lower, upper)
///
/// Padding stands for the real value 0, whatever the range (which always covers 0). A range is that
/// of the values that are not NaN; NaN becomes the zero point. The bits are the same on every
/// target and for every split into threads.
///
/// `w` says how input and output are laid out, as for convolve(); they must not overlap. Throws
/// what convolve() throws, and invalid_argument for an infinity in the input, a grid outside
/// 0..255, and a grid of fewer than two levels (symmetric: three); with per_image, earlier images
/// may have been written when an infinity is found. Thread-safe. Besides what convolve() uses, the
/// calling thread keeps a quantized copy of the input (of one image with per_image).
template <class = void>  // so that it is compiled only where it is called
void dynamic_convolve(std::span<const float> input, const packed_filters& filters, const window& w,
                      std::span<float> output, const dynamic_convolution_options& options = {},
                      const parallel_for& parallel = {}) {
  detail::dynamic_convolve_to(input, filters, w, output, options, parallel);
}
/// Convolves float images with packed 8-bit filters and writes bfloat16: the values that
/// dynamic_convolve() computes for a float output (before they are stored), rounded to bfloat16,
/// ties to even. All else is as for float outputs.
template <class = void>  // so that it is compiled only where it is called
void dynamic_convolve(std::span<const float> input, const packed_filters& filters, const window& w,
                      std::span<bfloat16> output, const dynamic_convolution_options& options = {},
                      const parallel_for& parallel = {}) {
  detail::dynamic_convolve_to(input, filters, w, output, options, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_DYNAMIC_CONVOLUTION_HPP
