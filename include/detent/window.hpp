// SPDX-License-Identifier: BSD-3-Clause
// The geometry of convolutions; convolution.hpp says how tensors are laid out.
#ifndef DETENT_WINDOW_HPP
#define DETENT_WINDOW_HPP

#include <cstddef>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN

/// The shape of a filter bank.
struct filter_shape {
  std::size_t out_channels = 0;
  std::size_t in_channels = 0;  // of the whole input, all groups together
  std::size_t groups = 1;
  std::size_t kernel_height = 1;
  std::size_t kernel_width = 1;

  [[nodiscard]] std::size_t group_in() const noexcept { return in_channels / groups; }
  [[nodiscard]] std::size_t group_out() const noexcept { return out_channels / groups; }
  [[nodiscard]] std::size_t taps() const noexcept { return kernel_height * kernel_width; }
  [[nodiscard]] std::size_t size() const noexcept { return out_channels * group_in() * taps(); }
  [[nodiscard]] bool depthwise() const noexcept {
    return groups > 1 && groups == in_channels && groups == out_channels;
  }
};

/// How the values of images, in integers or floats, follow each other in memory.
enum class activation_layout {
  nhwc,  // channels last: [batch][height][width][channels]
  nchw,  // channels first: [batch][channels][height][width]
};

/// How the filters move over an input, and how input and output are laid out.
struct window {
  std::size_t batch = 1;
  std::size_t in_height = 1, in_width = 1;
  std::size_t stride_height = 1, stride_width = 1;
  std::size_t dilation_height = 1, dilation_width = 1;
  std::size_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
  activation_layout input_layout = activation_layout::nhwc;
  activation_layout output_layout = activation_layout::nhwc;

  [[nodiscard]] std::size_t out_height(const filter_shape& f) const noexcept {
    return extent(in_height + pad_top + pad_bottom, f.kernel_height, dilation_height,
                  stride_height);
  }
  [[nodiscard]] std::size_t out_width(const filter_shape& f) const noexcept {
    return extent(in_width + pad_left + pad_right, f.kernel_width, dilation_width, stride_width);
  }

 private:
  /// 0 where the kernel is larger than the padded input.
  static std::size_t extent(std::size_t in, std::size_t kernel, std::size_t dilation,
                            std::size_t stride) noexcept {
    const std::size_t reach = dilation * (kernel - 1) + 1;
    return in < reach ? 0 : (in - reach) / stride + 1;
  }
};

DETENT_NAMESPACE_END

#endif  // DETENT_WINDOW_HPP
