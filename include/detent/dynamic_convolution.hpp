// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of real images with 8-bit filters: the images are quantized on the way, from their
// own ranges.
//
//   p      = params_from_range(range of the image, or of all images, input_scheme)
//   q      = quantize(input, p), padded with p.zero_point
//   output = clamp(fma(float(acc), p.scale * scale[c], bias[c]) + residual, lower, upper)
//
// with the exact integer sum acc of convolve(); bfloat16 is rounded from that, half to even.
// Padding is the real value 0, whatever the range.
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

struct dynamic_convolution_options {
  bool per_image = true;  // a range for each image of the batch, or one for all of them
  quant_scheme input_scheme = asymmetric<std::uint8_t>;
  std::span<const float> bias = {};        // none, or one for each output channel
  matrix_view<const float> residual = {};  // as convolve() takes it
  float lower = -std::numeric_limits<float>::infinity();
  float upper = std::numeric_limits<float>::infinity();
};

namespace detail {

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
  require_grid<std::uint8_t>(options.input_scheme.levels, "dynamic_convolve");
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

/// Input and output are laid out as convolve() has them and do not overlap. With per_image the
/// result of an image does not depend on what else is in the batch. NaN becomes the zero point; an
/// infinity is an invalid_argument, and with per_image images before it may have been written.
/// Throws what convolve() throws. Thread-safe. The calling thread keeps memory of the size of the
/// quantized images (of one with per_image), besides what convolve() keeps.
inline void dynamic_convolve(std::span<const float> input, const packed_filters& filters,
                             const window& w, std::span<float> output,
                             const dynamic_convolution_options& options = {},
                             const parallel_for& parallel = {}) {
  detail::dynamic_convolve_to(input, filters, w, output, options, parallel);
}
inline void dynamic_convolve(std::span<const float> input, const packed_filters& filters,
                             const window& w, std::span<bfloat16> output,
                             const dynamic_convolution_options& options = {},
                             const parallel_for& parallel = {}) {
  detail::dynamic_convolve_to(input, filters, w, output, options, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_DYNAMIC_CONVOLUTION_HPP
