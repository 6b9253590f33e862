// SPDX-License-Identifier: BSD-3-Clause
// filter_shape and window: the geometry of 1-D and 2-D convolutions, and the layouts of their
// inputs and outputs.
#ifndef DETENT_WINDOW_HPP
#define DETENT_WINDOW_HPP

#include <cstddef>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN

/// The shape of a filter bank. Weights are [out_channels][in_channels / groups][kernel_height]
/// [kernel_width], as in ONNX. Output channel c reads the input channels of group number
/// c / (out_channels / groups) only.
struct filter_shape {
  std::size_t out_channels = 0;   ///< Output channels of all groups together; a multiple of groups.
  std::size_t in_channels = 0;    ///< Input channels of all groups together; a multiple of groups.
  std::size_t groups = 1;         ///< Number of groups, at least 1.
  std::size_t kernel_height = 1;  ///< Rows of a filter; 1 for a 1-D convolution.
  std::size_t kernel_width = 1;   ///< Columns of a filter.

  /// Input channels that one filter reads.
  [[nodiscard]] std::size_t group_in() const noexcept { return in_channels / groups; }
  /// Output channels of one group.
  [[nodiscard]] std::size_t group_out() const noexcept { return out_channels / groups; }
  /// Positions of the kernel: kernel_height * kernel_width.
  [[nodiscard]] std::size_t taps() const noexcept { return kernel_height * kernel_width; }
  /// Number of weights of all filters.
  [[nodiscard]] std::size_t size() const noexcept { return out_channels * group_in() * taps(); }
  /// Whether each channel is a group of its own, with one filter (a channel multiplier of 1), and
  /// there are several channels.
  [[nodiscard]] bool depthwise() const noexcept {
    return groups > 1 && groups == in_channels && groups == out_channels;
  }
};

/// The order of the values of a batch of images in memory.
enum class activation_layout {
  nhwc,  ///< Channels last: [batch][height][width][channels].
  nchw,  ///< Channels first: [batch][channels][height][width], as in ONNX.
};

/// How filters move over a batch of images, and how input and output are laid out. All extents are
/// in pixels. A 1-D convolution has height 1. Padding stands for the real value 0: for integers,
/// the zero point of the input.
struct window {
  /// Number of images.
  std::size_t batch = 1;
  std::size_t in_height = 1,        ///< Height of the input, without padding.
      in_width = 1;                 ///< Width of the input, without padding.
  std::size_t stride_height = 1,    ///< Vertical distance of neighbouring windows, at least 1.
      stride_width = 1;             ///< Horizontal distance of neighbouring windows, at least 1.
  std::size_t dilation_height = 1,  ///< Vertical distance of neighbouring taps, at least 1 (dense).
      dilation_width = 1;   ///< Horizontal distance of neighbouring taps, at least 1 (dense).
  std::size_t pad_top = 0,  ///< Lines of padding above the input.
      pad_left = 0,         ///< Columns of padding left of the input.
      pad_bottom = 0,       ///< Lines of padding below the input.
      pad_right = 0;        ///< Columns of padding right of the input.
  /// Layout of the input.
  activation_layout input_layout = activation_layout::nhwc;
  /// Layout of the output; it may differ from that of the input.
  activation_layout output_layout = activation_layout::nhwc;

  /// Height of the output: floor((in_height + pad_top + pad_bottom - reach) / stride_height) + 1
  /// with reach = dilation_height * (kernel_height - 1) + 1, or 0 if the kernel's reach is larger
  /// than the padded input.
  [[nodiscard]] std::size_t out_height(const filter_shape& f) const noexcept {
    return extent(in_height + pad_top + pad_bottom, f.kernel_height, dilation_height,
                  stride_height);
  }
  /// Width of the output: floor((in_width + pad_left + pad_right - reach) / stride_width) + 1 with
  /// reach = dilation_width * (kernel_width - 1) + 1, or 0 if the kernel's reach is larger than the
  /// padded input.
  [[nodiscard]] std::size_t out_width(const filter_shape& f) const noexcept {
    return extent(in_width + pad_left + pad_right, f.kernel_width, dilation_width, stride_width);
  }

 private:
  /// Extent of the output in one direction; 0 if the kernel's reach is larger than the padded
  /// input, and for a stride of 0, which convolutions refuse.
  static std::size_t extent(std::size_t in, std::size_t kernel, std::size_t dilation,
                            std::size_t stride) noexcept {
    const std::size_t reach = dilation * (kernel - 1) + 1;
    return in < reach || stride == 0 ? 0 : (in - reach) / stride + 1;
  }
};

DETENT_NAMESPACE_END

#endif  // DETENT_WINDOW_HPP
