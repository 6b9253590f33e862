// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic by which a BatchNormalization becomes part of the layer before it.
#ifndef DETENT_GRAPH_OPS_FOLDED_CHANNELS_HPP
#define DETENT_GRAPH_OPS_FOLDED_CHANNELS_HPP

#include <cmath>
#include <cstddef>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The parameters of a BatchNormalization, one of each for every channel, in double:
///
///     factor   = scale / sqrt(variance + epsilon)
///     weights' = weights * factor
///     bias'    = (bias - mean) * factor + shift
///
/// The folded numbers are rounded once to float. Thread-safe.
struct folded_channels {
  std::span<const float> scale;     ///< Factor behind the normalization.
  std::span<const float> shift;     ///< Summand behind the normalization.
  std::span<const float> mean;      ///< Mean of what is normalized.
  std::span<const float> variance;  ///< Variance of what is normalized.
  double epsilon = 1e-5;            ///< Added to the variance.

  /// The standard deviation that a channel is divided by.
  [[nodiscard]] double divisor(std::size_t channel) const {
    return std::sqrt(static_cast<double>(variance[channel]) + epsilon);
  }
  /// What the weights of a channel are multiplied by.
  [[nodiscard]] double factor(std::size_t channel) const {
    return static_cast<double>(scale[channel]) / divisor(channel);
  }
  /// The bias of a channel of the folded layer.
  [[nodiscard]] float bias(std::size_t channel, double before) const {
    return static_cast<float>(detent::detail::rounded_product(
                                  before - static_cast<double>(mean[channel]), factor(channel)) +
                              static_cast<double>(shift[channel]));
  }
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_FOLDED_CHANNELS_HPP
