// SPDX-License-Identifier: BSD-3-Clause
// Finds out whether two tensors differ by a factor for each channel, as equalization and
// SmoothQuant leave them.
#ifndef DETENT_CLI_CHANNEL_SCALES_HPP
#define DETENT_CLI_CHANNEL_SCALES_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <detent/graph/model/tensor.hpp>

namespace detent_cli {

/// Sums over all values of a tensor, by channels: of the second axis and of the last one.
class channel_scales {
 public:
  /// Adds values of both tensors, whose shape is `dims` but for the first extent.
  void add(const detent::graph::shape& dims, std::span<const float> reference,
           std::span<const float> other) {
    if (dims.size() < 2) {
      return;
    }
    std::size_t inner = 1;
    for (std::size_t d = 2; d < dims.size(); ++d) {
      inner *= static_cast<std::size_t>(dims[d]);
    }
    add_along(axes_[0], static_cast<std::size_t>(dims[1]), inner, reference, other);
    if (dims.size() > 2) {
      add_along(axes_[1], static_cast<std::size_t>(dims.back()), 1, reference, other);
    }
  }

  /// The SNR in dB that remains if each channel of the other tensor is multiplied by the factor
  /// that fits it best. Nothing unless that is at least 10 dB more than `snr_db`, the factors are
  /// positive and differ by more than 5 %, and each channel that has a factor other than 1 fits
  /// with 10 dB or more: a channel that is wrong is not rescaled.
  [[nodiscard]] std::optional<double> snr_of_scaled(double snr_db) const {
    std::optional<double> best;
    for (const axis_sums& axis : axes_) {
      const std::optional<double> snr = snr_of_scaled(axis);
      if (snr && *snr >= snr_db + 10.0 && (!best || *snr > *best)) {
        best = snr;
      }
    }
    return best;
  }

 private:
  struct sums {
    double reference = 0.0, other = 0.0, product = 0.0;  // of squares and products
    std::size_t count = 0;
  };
  struct axis_sums {
    std::vector<sums> channels;
    bool varies = false;  // its extent: then it is no axis of channels
  };

  static void add_along(axis_sums& to, std::size_t channels, std::size_t inner,
                        std::span<const float> reference, std::span<const float> other) {
    if (to.channels.empty()) {
      to.channels.resize(channels);
    }
    to.varies = to.varies || to.channels.size() != channels || channels == 0 || inner == 0;
    for (std::size_t i = 0; i < reference.size() && !to.varies;) {
      for (std::size_t c = 0; c < channels && i < reference.size(); ++c) {
        const std::size_t last = (std::min)(i + inner, reference.size());
        sums& s = to.channels[c];
        s.count += last - i;
        for (; i < last; ++i) {
          const auto r = static_cast<double>(reference[i]);
          const auto o = static_cast<double>(other[i]);
          s.reference += r * r;
          s.other += o * o;
          s.product += r * o;
        }
      }
    }
  }

  [[nodiscard]] static std::optional<double> snr_of_scaled(const axis_sums& axis) {
    constexpr std::size_t least_count = 16;  // a few values fit any factor
    constexpr double largest_change = 0.05;
    double signal = 0.0;
    double noise = 0.0;
    double smallest = std::numeric_limits<double>::infinity();
    double largest = 0.0;
    for (const sums& s : axis.channels) {
      if (!std::isfinite(s.reference + s.other) || s.count < least_count) {
        return std::nullopt;
      }
      if (s.reference == 0.0 && s.other == 0.0) {
        continue;
      }
      if (!(s.product > 0.0)) {
        return std::nullopt;
      }
      const double factor = s.product / s.other;
      const double own =
          std::fmax(0.0, s.reference - 2.0 * factor * s.product + factor * factor * s.other);
      if (std::fabs(factor - 1.0) > largest_change && own > 0.1 * s.reference) {
        return std::nullopt;
      }
      signal += s.reference;
      noise += own;
      smallest = std::fmin(smallest, factor);
      largest = std::fmax(largest, factor);
    }
    if (axis.varies || !(largest > smallest * (1.0 + largest_change))) {
      return std::nullopt;
    }
    return noise > 0.0 ? 10.0 * std::log10(signal / noise)
                       : std::numeric_limits<double>::infinity();
  }

  std::array<axis_sums, 2> axes_;
};

}  // namespace detent_cli

#endif  // DETENT_CLI_CHANNEL_SCALES_HPP
