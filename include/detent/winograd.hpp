// SPDX-License-Identifier: BSD-3-Clause
// Winograd convolutions of float images: 3x3 filters with fewer products than convolve() takes
// otherwise, and with larger rounding errors.
#ifndef DETENT_WINOGRAD_HPP
#define DETENT_WINOGRAD_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/base/emptied_by_move.hpp>
#include <detent/config.hpp>
#include <detent/convolution.hpp>
#include <detent/dispatch.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/images/convolution_blocks.hpp>
#include <detent/images/output_block.hpp>
#include <detent/images/padded_images.hpp>
#include <detent/kernels/definitions/float_products.hpp>
#include <detent/kernels/definitions/winograd.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/packed_filters.hpp>
#include <detent/parallel.hpp>
#include <detent/products/product_parts.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN

/// An owned bank of 3x3 float filters, transformed for Winograd's algorithm with tiles of 2 x 2 or
/// 4 x 4 outputs, with a bias for each output channel. It takes 16 or 36 values for a filter and
/// input channel in place of 9. Constant after construction: many threads may use it at the same
/// time. A bank that was moved from is empty. One whose copy assignment ran out of memory may only
/// be assigned to or destroyed.
class winograd_filters {
 public:
  /// An empty filter bank, without channels.
  winograd_filters() = default;
  /// Transforms weights of the shape f, [out_channels][in_channels][3][3], by
  /// reference::winograd_weights(). `bias` is empty (all 0) or has one value for each output
  /// channel; `tile` is 2 or 4. Throws unsupported for filters that are not 3x3 or have several
  /// groups, invalid_argument for another tile and null weights, shape_mismatch for other sizes.
  winograd_filters(const filter_shape& f, std::span<const float> weights,
                   std::span<const float> bias = {}, std::size_t tile = 4)
      : shape_(f), tile_(tile) {
    constexpr const char* where = "winograd_filters";
    detail::require_filters(f, weights.size(), weights.data());
    require(f.kernel_height == 3 && f.kernel_width == 3 && f.groups == 1, error_kind::unsupported,
            where, ": a kernel of ", f.kernel_height, " x ", f.kernel_width, " in ", f.groups,
            " groups; Winograd's algorithm is for 3 x 3 in one group");
    require(tile == 2 || tile == 4, error_kind::invalid_argument, where, ": the tile ", tile,
            " is not 2 or 4");
    require(bias.empty() || bias.size() == f.out_channels, error_kind::shape_mismatch, where, ": ",
            bias.size(), " biases for ", f.out_channels, " channels");
    detail::require_data(bias, where, "biases");
    bias_.resize(detail::round_up(f.out_channels, kernels::panel_columns));
    std::copy(bias.begin(), bias.end(), bias_.begin());
    tile == 2 ? transform<2>(weights.data()) : transform<4>(weights.data());
  }

  /// Whether Winograd's algorithm applies to filters of this shape that move over images like this:
  /// 3x3 in one group, with strides and dilations of 1.
  [[nodiscard]] static bool fits(const filter_shape& f, const window& w) noexcept {
    return f.kernel_height == 3 && f.kernel_width == 3 && f.groups == 1 && w.stride_height == 1 &&
           w.stride_width == 1 && w.dilation_height == 1 && w.dilation_width == 1;
  }

  /// Whether Winograd's algorithm with this tile fits, and is likely to be faster than the direct
  /// sums: it counts products, steps of the transforms and weights that are read from memory. The
  /// factors were measured with AVX-512 and with AVX2. The answer is the same on every machine.
  [[nodiscard]] static bool pays(const filter_shape& f, const window& w,
                                 std::size_t tile) noexcept {
    if (!fits(f, w) || (tile != 2 && tile != 4)) {
      return false;
    }
    const auto count = [](std::size_t n) { return static_cast<double>(n); };
    const double in = count(f.in_channels);
    const double lanes_in = count(detail::round_up(f.in_channels, kernels::panel_columns));
    const double lanes_out = count(detail::round_up(f.out_channels, kernels::panel_columns));
    const double lines = count(w.out_height(f));
    const double pixels = count(w.out_width(f));
    const double side = count(tile);
    const double tiles = std::ceil(lines / side) * std::ceil(pixels / side) * count(w.batch);
    const double weights = (side + 2.0) * (side + 2.0) * in * lanes_out;
    const double transforms = (tile == 2 ? 95.0 : 300.0) * (lanes_in + lanes_out);
    constexpr double near = 0x1p18;         // so many weights stay in a second-level cache
    constexpr double tiles_of_pass = 24.0;  // that share a pass over the weights
    const double reading = weights > near ? 9.0 * weights * std::ceil(tiles / tiles_of_pass) : 0.0;
    const double direct = 9.0 * in * lanes_out * lines * pixels * count(w.batch);
    return tiles * (weights + transforms) + reading < 0.95 * direct;
  }

  /// The shape that the filters were given with.
  [[nodiscard]] const filter_shape& shape() const noexcept { return shape_; }
  /// The number of lines, and of columns, of outputs in a tile: 2 or 4.
  [[nodiscard]] std::size_t tile() const noexcept { return tile_; }
  /// The transformed weights of each of the (tile() + 2)^2 positions, row by row: a matrix of
  /// in_channels rows and out_channels columns.
  [[nodiscard]] std::span<const packed_floats> positions() const noexcept { return positions_; }
  /// The bias of each output channel, then zeros up to a multiple of 16 values.
  [[nodiscard]] std::span<const float> bias() const noexcept { return bias_; }

 private:
  template <std::size_t kTile>
  void transform(const float* weights) {
    constexpr std::size_t side = kTile + 2;
    const filter_shape& f = shape_;
    const std::size_t size = f.in_channels * f.out_channels;
    std::vector<float> all(side * side * size);
    for (std::size_t k = 0; k < f.in_channels; ++k) {
      for (std::size_t n = 0; n < f.out_channels; ++n) {
        const float* filter = weights + (n * f.in_channels + k) * 9;
        std::array<double, 9> g;
        std::copy_n(filter, 9, g.begin());
        std::array<double, 3 * side> rows;
        std::array<double, side * side> u;
        for (std::size_t i = 0; i < 3; ++i) {
          reference::winograd_weights<kTile>(g.data() + 3 * i, 1, rows.data() + side * i, 1);
        }
        for (std::size_t j = 0; j < side; ++j) {
          reference::winograd_weights<kTile>(rows.data() + j, side, u.data() + j, side);
        }
        for (std::size_t p = 0; p < u.size(); ++p) {
          all[p * size + k * f.out_channels + n] = static_cast<float>(u[p]);
        }
      }
    }
    positions_.reserve(side * side);
    for (std::size_t p = 0; p < side * side; ++p) {
      positions_.emplace_back(
          matrix_view<const float>(all.data() + p * size, f.in_channels, f.out_channels));
    }
  }

  detail::emptied_by_move<filter_shape> shape_;
  detail::emptied_by_move<std::size_t> tile_;
  std::vector<packed_floats> positions_;
  std::vector<float> bias_;
};

namespace detail {

/// A Winograd convolution of a batch of images. Its tiles are counted in rows of tiles, through the
/// batch; those of consecutive rows compute consecutive lines of the output.
class winograd_convolution {
 public:
  winograd_convolution(const winograd_filters& filters, const window& w)
      : filters_(filters),
        out_height_(w.out_height(filters.shape())),
        out_width_(w.out_width(filters.shape())),
        rows_of_image_((out_height_ + filters.tile() - 1) / filters.tile()),
        tiles_of_row_((out_width_ + filters.tile() - 1) / filters.tile()),
        rows_(w.batch * rows_of_image_) {}

  /// The window with padding to the right and below for whole tiles.
  [[nodiscard]] window padded(window w) const noexcept {
    w.pad_bottom += rows_of_image_ * filters_.tile() - out_height_;
    w.pad_right += tiles_of_row_ * filters_.tile() - out_width_;
    return w;
  }

  void run(const padded_images<float>& images, const convolution_output<float>& output,
           const float_epilogue_options& options, const parallel_for& parallel) const {
    const filter_shape& f = filters_.shape();
    // What is computed of a row of tiles: products, and values between the steps.
    const std::size_t positions = filters_.positions().size();
    const std::size_t products =
        tiles_of_row_ * positions * (std::max)(f.in_channels * f.out_channels, std::size_t{1});
    const std::size_t values = positions * (f.in_channels + f.out_channels);
    // Enough tiles that reading the transformed weights pays, and no more than fit the cache.
    constexpr std::size_t cache = std::size_t{1} << 17;  // values
    const std::size_t tiles = std::clamp<std::size_t>(cache / values, rows_per_task / 2, 96);
    const std::size_t most = (std::max)(tiles / tiles_of_row_, std::size_t{1});
    constexpr std::size_t least_products = std::size_t{1} << 19;  // of a task
    const std::size_t block =
        rows_of_even_tasks(rows_, least_products / products + 1, most, parallel);
    for_row_blocks(rows_, block, parallel, [&](std::size_t first, std::size_t count) {
      compute(first, count, images, output, options);
    });
  }

 private:
  /// The first pixel of a row of tiles, counted through the batch.
  [[nodiscard]] std::size_t pixel_of(std::size_t row) const noexcept {
    return (row / rows_of_image_ * out_height_ + row % rows_of_image_ * filters_.tile()) *
           out_width_;
  }
  /// The number of output lines that a row of tiles has.
  [[nodiscard]] std::size_t lines_of(std::size_t row) const noexcept {
    return (std::min)(filters_.tile(), out_height_ - row % rows_of_image_ * filters_.tile());
  }

  /// Computes `count` rows of tiles from row `first` on.
  void compute(std::size_t first, std::size_t count, const padded_images<float>& images,
               const convolution_output<float>& output,
               const float_epilogue_options& options) const {
    const filter_shape& f = filters_.shape();
    const bool is_small = filters_.tile() == 2;
    const auto& transforms = active<kernels::winograd_kernels>();
    const auto& products = active<kernels::float_product_kernels>();
    const std::size_t positions = filters_.positions().size();
    const std::size_t tiles = count * tiles_of_row_;
    const std::size_t in_step = step_of(tiles * f.in_channels);
    const std::size_t out_step = step_of(tiles * f.out_channels);
    leased_memory<float> inputs(positions * in_step);
    leased_memory<float> sums(positions * out_step);
    const std::size_t line = images.window().in_width * f.in_channels;
    for (std::size_t row = 0; row < count; ++row) {
      const std::size_t number = first + row;
      const std::size_t y = number / rows_of_image_ * images.window().in_height +
                            number % rows_of_image_ * filters_.tile();
      kernels::winograd_input_args a;
      a.in = images.data() + y * line;
      a.line_step = line;
      a.channels = f.in_channels;
      a.tiles = tiles_of_row_;
      a.out = inputs.data() + row * tiles_of_row_ * f.in_channels;
      a.position_step = in_step;
      (is_small ? transforms.input_2 : transforms.input_4)(a);
    }
    for (std::size_t p = 0; p < positions; ++p) {
      const packed_floats& weights = filters_.positions()[p];
      kernels::gemm_f32_args g;
      g.a = inputs.data() + p * in_step;
      g.lda = f.in_channels;
      g.packed_b = weights.data().data();
      g.bias = weights.bias().data();
      g.c = sums.data() + p * out_step;
      g.ldc = f.out_channels;
      g.m = tiles;
      g.n = f.out_channels;
      g.k = f.in_channels;
      g.lower = -std::numeric_limits<float>::infinity();
      g.upper = std::numeric_limits<float>::infinity();
      products.gemm_f32(g);
    }
    const std::size_t last = first + count - 1;
    const std::size_t pixel = pixel_of(first);
    const output_block<float> block(output, pixel,
                                    pixel_of(last) + lines_of(last) * out_width_ - pixel);
    for (std::size_t row = 0; row < count; ++row) {
      const std::size_t at = (pixel_of(first + row) - pixel) * f.out_channels;
      kernels::winograd_output_args a;
      a.in = sums.data() + row * tiles_of_row_ * f.out_channels;
      a.position_step = out_step;
      a.channels = f.out_channels;
      a.tiles = tiles_of_row_;
      a.bias = filters_.bias().data();
      a.residual = block.residual() == nullptr ? nullptr : block.residual() + at;
      a.out = block.data() + at;
      a.line_step = out_width_ * f.out_channels;
      a.lines = lines_of(first + row);
      a.pixels = out_width_;
      a.lower = options.lower;
      a.upper = options.upper;
      (is_small ? transforms.output_2 : transforms.output_4)(a);
    }
    block.store();
  }

  /// The distance between two positions of some values. An odd number of cache lines: the values
  /// of all positions would share a few lines of the cache otherwise.
  [[nodiscard]] static std::size_t step_of(std::size_t values) noexcept {
    constexpr std::size_t line = 64 / sizeof(float);
    return ((values + line - 1) / line | 1U) * line;
  }

  const winograd_filters& filters_;
  std::size_t out_height_, out_width_;
  std::size_t rows_of_image_, tiles_of_row_;
  std::size_t rows_;
};

}  // namespace detail

/// Convolves float images with filters that were transformed for Winograd's algorithm:
///
///     output = clamp((winograd sums + bias) + residual, lower, upper)
///
/// The sums are those of the 3x3 convolution but for rounding: see reference::winograd_input(),
/// which defines each bit. They are the same on every target and for every split into threads, but
/// not those of convolve() with packed_float_filters, and an infinity or a NaN in the input may
/// reach any output of its tiles, also those whose windows do not contain it. Rounding errors are
/// about those of the direct sums for tiles of 2, and four to seven times as large for tiles of 4;
/// docs/winograd.md has measurements.
///
/// Layouts and sizes are those of convolve() for integers; input and output must not overlap, but
/// the residual may be the output itself. Throws unsupported if winograd_filters::fits() does not
/// hold or the residual is not dense, and shape_mismatch and invalid_argument as convolve(), before
/// anything is written. Thread-safe. The calling thread keeps a padded copy of the input; each
/// thread keeps 2^18 values, or those of 24 tiles or one row of tiles if they are more.
template <class = void>  // so that it is compiled only where it is called
void convolve(std::span<const float> input, const winograd_filters& filters, const window& w,
              std::span<float> output, const float_epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  const filter_shape& f = filters.shape();
  detail::require_images(f, w, input, output);
  detail::require_residual(f, w, options.residual);
  if (output.empty()) {
    return;
  }
  require(winograd_filters::fits(f, w), error_kind::unsupported,
          "convolution: Winograd's algorithm is for strides and dilations of 1");
  const detail::winograd_convolution convolution(filters, w);
  const detail::padded_images<float> images(input.data(), f, convolution.padded(w), 0.0F, 0,
                                            parallel);
  convolution.run(images,
                  {detail::output_images<float>(f, w, output.data()), options.residual.data},
                  options, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_WINOGRAD_HPP
