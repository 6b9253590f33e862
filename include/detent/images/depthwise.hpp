// SPDX-License-Identifier: BSD-3-Clause
// Depthwise convolutions: the layout of their weights, and where their pixels read. A block is 64
// channels, in four quarters (see kernels::depthwise_panels); a run is a number of neighbouring
// output pixels that read the same way.
#ifndef DETENT_IMAGES_DEPTHWISE_HPP
#define DETENT_IMAGES_DEPTHWISE_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/config.hpp>
#include <detent/images/output_block.hpp>
#include <detent/images/padded_images.hpp>
#include <detent/images/planes.hpp>
#include <detent/kernels/depthwise.hpp>
#include <detent/kernels/depthwise_rows.hpp>
#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/products/product_parts.hpp>
#include <detent/products/wide_sums.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The position of a tap in a filter. A tap whose row is beyond the filter has no weight.
struct tap_position {
  std::size_t row, column;
};

/// The order in which an integer sum takes the taps, in groups of four. If it costs few taps
/// without weight, the four taps of a group stand above each other (vertical), so that pixels side
/// by side can share them; otherwise they follow each other row by row.
class tap_order {
 public:
  tap_order() = default;
  explicit tap_order(const filter_shape& f) {
    using kernels::group_depth;
    const std::size_t row_groups = (f.kernel_height + group_depth - 1) / group_depth;
    const std::size_t dense_groups = (f.taps() + group_depth - 1) / group_depth;
    is_vertical_ = 2 * row_groups * f.kernel_width <= 3 * dense_groups;
    const std::size_t depth = is_vertical_ ? group_depth : 1;
    for (std::size_t row = 0; row < f.kernel_height; row += depth) {
      for (std::size_t column = 0; column < f.kernel_width; ++column) {
        for (std::size_t i = 0; i < depth; ++i) {
          taps_.push_back({row + i, column});
        }
      }
    }
    while (taps_.size() % group_depth != 0) {
      taps_.push_back({f.kernel_height, f.kernel_width - 1});
    }
  }

  [[nodiscard]] std::span<const tap_position> taps() const noexcept { return taps_; }
  [[nodiscard]] bool is_vertical() const noexcept { return is_vertical_; }

 private:
  std::vector<tap_position> taps_;
  bool is_vertical_ = false;
};

/// The kind of filter by which a depthwise product of bytes can be done line by line, if there is
/// one for these filters and this window.
[[nodiscard]] inline std::optional<kernels::depthwise_filter> line_filter(
    const filter_shape& f, const window& w) noexcept {
  using kernels::depthwise_filter;
  if (f.kernel_height != f.kernel_width || w.stride_height != w.stride_width ||
      w.dilation_height != 1 || w.dilation_width != 1) {
    return {};
  }
  if (f.kernel_width == 3 && w.stride_width <= 2) {
    return w.stride_width == 1 ? depthwise_filter::three : depthwise_filter::three_stride2;
  }
  // For few channels, vectors with several pixels in each are faster.
  if (f.kernel_width == 5 && w.stride_width == 1 && f.out_channels > kernels::strip_columns / 4) {
    return depthwise_filter::five;
  }
  return {};
}

/// The taps of the groups of kernels::depthwise_lines_args, four to a group: first the groups that
/// sum up a pixel of the first output line, then those of the second output line, which reads one
/// line (with a stride of 2, two lines) further down. The four bytes of the input that a group
/// reads are these, with lines counted from the first one that the two output lines read:
///
///     three          lines 0, 1, 2, 3 of each column, for both output lines
///     three_stride2  first output line: lines 0, 1, 2 of an even column and line 2 of the odd
///                    column behind it, once for the left and once for the right even column; then
///                    lines 0, 1, 3, 4 of the odd column
///                    second output line: the same groups, with lines 3, 4, 2 of even columns
///     five           lines 1, 2, 3, 4 of each column, for both output lines; after those, line 0
///                    for the first and line 5 for the second output line, in two groups of four
///                    columns that begin at a multiple of four: for each of four pixels, the eight
///                    columns are other taps
[[nodiscard]] inline std::vector<tap_position> line_taps(kernels::depthwise_filter filter) {
  using kernels::depthwise_filter;
  using kernels::group_depth;
  std::vector<tap_position> taps;
  constexpr tap_position none{std::numeric_limits<std::size_t>::max(), 0};
  const auto add = [&](std::size_t size, std::size_t row, std::size_t column) {
    // Positions before the filter wrap around, and so count as beyond it.
    taps.push_back(row < size && column < size ? tap_position{row, column} : none);
  };
  if (filter == depthwise_filter::three_stride2) {
    taps = {{0, 0}, {1, 0}, {2, 0}, {2, 1}, {0, 2}, {1, 2}, {2, 2}, none,
            {0, 1}, {1, 1}, none,   none,   {1, 0}, {2, 0}, {0, 0}, {0, 1},
            {1, 2}, {2, 2}, {0, 2}, none,   none,   none,   {1, 1}, {2, 1}};
    return taps;
  }
  const std::size_t size = filter == depthwise_filter::five ? 5 : 3;
  for (std::size_t line = 0; line < 2; ++line) {
    for (std::size_t column = 0; column < size; ++column) {
      for (std::size_t i = 0; i < group_depth; ++i) {
        add(size, i + (size == 5 ? 1 : 0) - line, column);
      }
    }
  }
  if (filter == depthwise_filter::five) {
    for (const std::size_t row : {std::size_t{0}, std::size_t{4}}) {
      for (std::size_t pixel = 0; pixel < group_depth; ++pixel) {
        for (std::size_t i = 0; i < 2 * group_depth; ++i) {
          add(size, row, i - pixel);
        }
      }
    }
  }
  return taps;
}

/// Weights in the layouts of kernels::depthwise_panels and kernels::depthwise_lines_args.
class depthwise_weights {
 public:
  depthwise_weights() = default;

  /// `weights` is [kernel row][kernel column][channel].
  depthwise_weights(const std::int8_t* weights, const filter_shape& f,
                    std::span<const std::int32_t> zero_points)
      : order_(f) {
    using kernels::group_depth;
    using kernels::strip_columns;
    const std::span<const tap_position> taps = order_.taps();
    const std::size_t channels = f.out_channels;
    const std::size_t groups = taps.size() / group_depth;
    const std::size_t blocks = (channels + strip_columns - 1) / strip_columns;
    // As many channels as a vector of some target has 32-bit lanes, or more.
    const bool repeats = channels >= 8 && strip_columns % channels == 0;
    words_.assign(blocks * groups * group_depth * strip_columns, 0);
    bytes_.assign(words_.size(), 0);
    bool fits = true;
    for (std::size_t position = 0; position < blocks * strip_columns; ++position) {
      const std::size_t channel = repeats ? position % channels : position;
      if (channel >= channels) {
        break;
      }
      const std::size_t in_block = position % strip_columns;
      const std::size_t i = lane(in_block) % 16;
      const std::size_t quarter = lane(in_block) / 16;
      for (std::size_t t = 0; t < taps.size(); ++t) {
        if (taps[t].row >= f.kernel_height) {
          continue;
        }
        const std::size_t tap = taps[t].row * f.kernel_width + taps[t].column;
        const std::int32_t value = weights[tap * channels + channel] - zero_points[channel];
        const std::size_t q = (position / strip_columns * groups + t / group_depth) * 4 + quarter;
        words_[((q * 2 + t % 2) * 16 + i) * 2 + t % 4 / 2] = static_cast<std::int16_t>(value);
        bytes_[(q * 16 + i) * group_depth + t % group_depth] = static_cast<std::int8_t>(value);
        fits = fits && value >= std::numeric_limits<std::int8_t>::min() &&
               value <= std::numeric_limits<std::int8_t>::max();
      }
    }
    if (!fits) {
      bytes_ = {};
      return;
    }
    for (const std::size_t stride : {std::size_t{1}, std::size_t{2}}) {
      const auto filter = line_filter(f, {.stride_height = stride, .stride_width = stride});
      if (filter) {
        add_lines(*filter, weights, f, zero_points);
      }
    }
  }

  [[nodiscard]] kernels::depthwise_panels panels() const noexcept {
    return {bytes_.empty() ? nullptr : bytes_.data(), words_.data()};
  }
  [[nodiscard]] const tap_order& order() const noexcept { return order_; }
  /// The weights for products line by line (kernels::depthwise_lines_args::weights), or null if
  /// there are none for that kind of filter, or if a weight minus its zero point does not fit a
  /// byte.
  [[nodiscard]] const std::int8_t* lines(kernels::depthwise_filter filter) const noexcept {
    const aligned_vector<std::int8_t>& bytes = lines_[static_cast<std::size_t>(filter)];
    return bytes.empty() ? nullptr : bytes.data();
  }

  /// The most taps whose products with weights minus their zero points add up in 32 bits, as
  /// 255 * 255 * most_exact_taps < 2^31.
  static constexpr std::size_t most_exact_taps = 33025;

 private:
  /// The position of a channel in its block: quarter * 16 + i, with the quarter and i of
  /// kernels::depthwise_panels.
  [[nodiscard]] static constexpr std::size_t lane(std::size_t channel) noexcept {
    return channel % 16 / 4 * 16 + channel / 16 * 4 + channel % 4;
  }

  /// Makes the weights for products line by line with one kind of filter.
  void add_lines(kernels::depthwise_filter filter, const std::int8_t* weights,
                 const filter_shape& f, std::span<const std::int32_t> zero_points) {
    using kernels::group_depth;
    using kernels::strip_columns;
    const std::vector<tap_position> taps = line_taps(filter);
    const std::size_t channels = f.out_channels;
    const std::size_t blocks = (channels + strip_columns - 1) / strip_columns;
    aligned_vector<std::int8_t>& bytes = lines_[static_cast<std::size_t>(filter)];
    bytes.assign(blocks * taps.size() * strip_columns, 0);
    for (std::size_t position = 0; position < blocks * strip_columns; ++position) {
      const std::size_t in_block = position % strip_columns;
      const std::size_t first = position - in_block;
      const std::size_t channel =
          first + in_block % kernels::depthwise_period(filter, channels - first);
      if (channel >= channels) {
        continue;
      }
      for (std::size_t t = 0; t < taps.size(); ++t) {
        if (taps[t].row < f.kernel_height) {
          const std::size_t tap = taps[t].row * f.kernel_width + taps[t].column;
          const std::size_t group =
              first / strip_columns * (taps.size() / group_depth) + t / group_depth;
          bytes[(group * strip_columns + lane(in_block)) * group_depth + t % group_depth] =
              static_cast<std::int8_t>(weights[tap * channels + channel] - zero_points[channel]);
        }
      }
    }
  }

  tap_order order_;
  std::array<aligned_vector<std::int8_t>, kernels::depthwise_filters> lines_;
  aligned_vector<std::int8_t> bytes_;
  aligned_vector<std::int16_t> words_;
};

/// Adds the terms of the channels (biases, and lhs_zero_point times the sums of the weights) to raw
/// depthwise products, pixels x channels, in 64 bits, and stores the results or notes those that do
/// not fit. The products themselves fit 32 bits: there are at most most_exact_taps taps. `e` is the
/// epilogue of these channels and pixels.
template <class T>
void store_wide_pixels(const std::int32_t* products, std::size_t pixels,
                       const packed_weights& weights, std::int32_t lhs_zero_point,
                       const kernels::integer_epilogue& e, const part_overflow& overflow, T* to) {
  for (std::size_t i = 0; i < pixels; ++i) {
    for (std::size_t c = 0; c < weights.columns(); ++c, ++products, ++to) {
      const std::int64_t sum = std::int64_t{*products} + weights.bias()[c] -
                               std::int64_t{lhs_zero_point} * e.column_sum[c];
      store_wide_sum(sum, e, i, c, overflow, *to);
    }
  }
}

/// Divides the output rows of a depthwise convolution into runs, and finds the addresses of their
/// taps. Pixels at either end of a row whose window is partly outside the image are runs of one
/// pixel; those between them are one run.
template <class T>
class depthwise_reader {
 public:
  depthwise_reader(const T* input, const filter_shape& f, const window& w, T padding,
                   std::span<const tap_position> order)
      : input_(input),
        filter_(f),
        window_(w),
        taps_(order.size()),
        offsets_(order.size()),
        // A tap takes a pixel of it even if the image has none.
        blank_((std::max)(w.in_width, std::size_t{1}) * f.in_channels),
        out_height_(w.out_height(f)),
        out_width_(w.out_width(f)) {
    std::fill_n(blank_.data(), (std::max)(w.in_width, std::size_t{1}) * f.in_channels, padding);
    for (std::size_t t = 0; t < taps_; ++t) {
      const std::size_t y = (std::min)(order[t].row, f.kernel_height - 1) * w.dilation_height;
      const std::size_t x = order[t].column * w.dilation_width;
      offsets_.data()[t] = {y, x, (y * w.in_width + x) * f.in_channels};
    }
    const std::size_t reach = w.dilation_width * (f.kernel_width - 1);
    first_inside_ = (std::min)((w.pad_left + w.stride_width - 1) / w.stride_width, out_width_);
    // The last window that is inside begins at in_width - 1 - reach.
    const std::size_t end = w.in_width + w.pad_left;
    end_inside_ = end <= reach ? 0 : (end - 1 - reach) / w.stride_width + 1;
    end_inside_ = (std::clamp)(end_inside_, first_inside_, out_width_);
  }

  /// Number of runs of an output row.
  [[nodiscard]] std::size_t runs_of_row() const noexcept {
    return out_width_ - (end_inside_ - first_inside_) + (end_inside_ > first_inside_ ? 1 : 0);
  }

  /// Appends the runs of output row `row` and the addresses of their taps. Rows are counted through
  /// the batch; the pixels of runs are counted from output row `first_row` on.
  void append(std::size_t row, std::size_t first_row, std::vector<const T*>& taps,
              std::vector<kernels::depthwise_run>& runs) const {
    const std::size_t line_size = window_.in_width * filter_.in_channels;
    const T* image = input_ + row / out_height_ * window_.in_height * line_size;
    // Positions before the image wrap around, and so count as beyond it.
    const std::size_t top = row % out_height_ * window_.stride_height - window_.pad_top;
    const auto add = [&](std::size_t x, std::size_t pixels) {
      runs.push_back({taps.size(), (row - first_row) * out_width_ + x, pixels});
      taps.resize(taps.size() + taps_);
      const T** to = taps.data() + taps.size() - taps_;
      const std::size_t left = x * window_.stride_width - window_.pad_left;
      const std::size_t corner = top * line_size + left * filter_.in_channels;
      const T* const blank = blank_.data();
      for (std::size_t t = 0; t < taps_; ++t) {
        const tap_offset& tap = offsets_.data()[t];
        const bool is_inside = top + tap.y < window_.in_height && left + tap.x < window_.in_width;
        to[t] = is_inside ? image + (corner + tap.values) : blank;
      }
    };
    for (std::size_t x = 0; x < first_inside_; ++x) {
      add(x, 1);
    }
    if (end_inside_ > first_inside_) {
      add(first_inside_, end_inside_ - first_inside_);
    }
    for (std::size_t x = end_inside_; x < out_width_; ++x) {
      add(x, 1);
    }
  }

 private:
  /// Where a tap lies, counted from the first one: lines, pixels, and values in memory.
  struct tap_offset {
    std::size_t y, x, values;
  };

  const T* input_;
  filter_shape filter_;
  window window_;
  std::size_t taps_;
  leased_memory<tap_offset> offsets_;
  leased_memory<T> blank_;  // a line of padding
  std::size_t out_height_;
  std::size_t out_width_;
  std::size_t first_inside_;
  std::size_t end_inside_;
};

[[nodiscard]] inline window without_padding(window w) noexcept {
  w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = 0;
  return w;
}

/// The fewest output lines that are worth a task of their own: another thread takes about a
/// microsecond to begin, in which this one computes some 8192 outputs. At least 2.
[[nodiscard]] inline std::size_t least_depthwise_lines(const filter_shape& f, const window& w) {
  constexpr std::size_t outputs = 8192;
  const std::size_t line = (std::max)(f.out_channels * w.out_width(f), std::size_t{1});
  return (std::max)(outputs / line, std::size_t{2});
}

/// Runs kernel(arguments) over blocks of the output, two output lines at a time. `d` has the
/// filter, the weights and the epilogue set; the rest of the arguments is filled in here.
template <class Out, class Kernel>
void for_depthwise_lines(const std::uint8_t* input, const filter_shape& f, const window& w,
                         std::uint8_t padding, const image_batch<Out>& output,
                         const parallel_for& parallel, const kernels::depthwise_lines_args& d,
                         const Kernel& kernel) {
  // A copy only if channels are planes, to transpose them: the kernel adds the padding.
  const padded_images<std::uint8_t> images(input, f, without_padding(w), padding, 0, parallel);
  const std::size_t line_size = w.in_width * f.in_channels;
  const std::vector<std::uint8_t> blank(line_size, padding);
  const std::size_t out_width = w.out_width(f);
  const std::size_t out_height = w.out_height(f);
  const std::size_t pairs_of_image = (out_height + 1) / 2;
  const std::size_t all_pairs = w.batch * pairs_of_image;
  constexpr std::size_t bytes_per_task = 48 * 1024;
  const std::size_t pixels_per_task = (std::min)(
      (std::max<std::size_t>)(bytes_per_task / f.out_channels, 256), pixels_that_wait<Out>(output));
  const std::size_t pairs_of_task =
      rows_of_even_tasks(all_pairs, least_depthwise_lines(f, w) / 2,
                         (std::max<std::size_t>)(pixels_per_task / (2 * out_width), 1), parallel);
  const std::size_t input_lines = kernels::depthwise_input_lines(d.filter);
  // The first pixel of two output lines, counted through the batch.
  const auto pixel_of = [&](std::size_t pair) {
    const std::size_t line = pair / pairs_of_image * out_height + pair % pairs_of_image * 2;
    return line * out_width;
  };
  run_parallel(parallel, (all_pairs + pairs_of_task - 1) / pairs_of_task, [&](std::size_t task) {
    thread_local std::vector<const std::uint8_t*> lines;
    thread_local std::vector<kernels::depthwise_pair> pairs;
    lines.clear(), pairs.clear();
    const std::size_t first = task * pairs_of_task;
    const std::size_t end = (std::min)(first + pairs_of_task, all_pairs);
    for (std::size_t pair = first; pair < end; ++pair) {
      const std::size_t row = pair % pairs_of_image * 2;
      pairs.push_back(
          {pixel_of(pair) - pixel_of(first), (std::min<std::size_t>)(out_height - row, 2)});
      const std::uint8_t* image = images.data() + pair / pairs_of_image * w.in_height * line_size;
      for (std::size_t i = 0; i < input_lines; ++i) {
        // Lines before the image wrap around, and so count as beyond it.
        const std::size_t y = row * w.stride_height + i - w.pad_top;
        lines.push_back(y < w.in_height ? image + y * line_size : blank.data());
      }
    }
    const std::size_t pixel = pixel_of(first);
    const output_pixels<Out> pixels(output, pixel,
                                    pairs.back().pixel + pairs.back().lines * out_width);
    kernels::depthwise_lines_args part = d;
    part.lines = lines.data();
    part.pairs = pairs.data();
    part.pair_count = pairs.size();
    part.channels = f.in_channels;
    part.in_width = w.in_width;
    part.out_width = out_width;
    part.pad_left = w.pad_left;
    part.padding = padding;
    part.c = reinterpret_cast<std::uint8_t*>(pixels.data());
    kernel(part);
    pixels.store();
  });
}

/// Runs kernel(rows, block) over blocks of output rows. The pixels of the runs in `rows` are
/// counted from the first one of the block. `order` is the order of the taps in the weights.
template <class T, class Out, class Kernel>
void for_depthwise_rows(const T* input, const filter_shape& f, const window& w, T padding,
                        std::span<const tap_position> order, bool is_vertical,
                        const convolution_output<Out>& output, const parallel_for& parallel,
                        const Kernel& kernel) {
  const std::size_t pixels_per_task = (std::min)(std::size_t{256}, output.most_pixels());
  // In narrow images many pixels are at the ends of rows. They cost more than a padded copy, but
  // for floats of more than a vector of channels.
  constexpr std::size_t narrow = 16;
  constexpr std::size_t few_channels = sizeof(T) == 1 ? static_cast<std::size_t>(-1) : 16;
  std::optional<padded_images<T>> images;
  window moved = w;
  if (w.out_width(f) < narrow && f.in_channels <= few_channels) {
    images.emplace(input, f, w, padding, 0, parallel);
    moved = images->window();
  } else if (is_planar(w.input_layout, f.in_channels, w.in_height * w.in_width)) {
    images.emplace(input, f, without_padding(w), padding, 0, parallel);
  }
  const depthwise_reader<T> reader(images ? images->data() : input, f, moved, padding, order);
  const std::size_t out_width = w.out_width(f);
  const std::size_t rows = w.batch * w.out_height(f);
  const std::size_t rows_of_task =
      rows_of_even_tasks(rows, least_depthwise_lines(f, w),
                         (std::max<std::size_t>)(pixels_per_task / out_width, 1), parallel);
  run_parallel(parallel, (rows + rows_of_task - 1) / rows_of_task, [&](std::size_t task) {
    thread_local std::vector<const T*> taps;
    thread_local std::vector<kernels::depthwise_run> runs;
    taps.clear(), runs.clear();
    const std::size_t first = task * rows_of_task;
    const std::size_t end = (std::min)(first + rows_of_task, rows);
    runs.reserve((end - first) * reader.runs_of_row());
    taps.reserve((end - first) * reader.runs_of_row() * order.size());
    for (std::size_t row = first; row < end; ++row) {
      reader.append(row, first, taps, runs);
    }
    const output_block<Out> block(output, first * out_width, (end - first) * out_width);
    kernels::depthwise_rows<T> all;
    all.taps = taps.data();
    all.runs = runs.data();
    all.run_count = runs.size();
    all.tap_count = order.size();
    all.channels = f.in_channels;
    all.step = w.stride_width * f.in_channels;
    all.width = is_vertical && w.stride_width == 1 && w.dilation_width == 1 ? f.kernel_width : 0;
    kernel(all, block);
    block.store();
  });
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_IMAGES_DEPTHWISE_HPP
