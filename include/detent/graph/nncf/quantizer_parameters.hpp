// SPDX-License-Identifier: BSD-3-Clause
// The numbers of a quantizer that NNCF has placed: observers of its range, type, and scales and
// zero points, by scale_rule::nncf for integers and by NNCF's rule of FakeConvert for floats of 8
// bits.
#ifndef DETENT_GRAPH_NNCF_QUANTIZER_PARAMETERS_HPP
#define DETENT_GRAPH_NNCF_QUANTIZER_PARAMETERS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/range_estimator.hpp>
#include <detent/observers/channels.hpp>
#include <detent/observers/observer.hpp>
#include <detent/parallel.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// The numbers of a quantizer: real = scale * (level - zero point).
struct quantizer_parameters {
  element_type type = element_type::s8;  ///< Type of the levels: u8, s8, f8e4m3fn or f8e5m2.
  std::size_t axis = 0;                  ///< The axis of the channels, if there are several scales.
  std::vector<float> scales;             ///< One for the tensor, or one for each channel.
  std::vector<std::int32_t> zero_points;  ///< As many as there are scales.
  std::vector<value_range> ranges;        ///< The ranges that the scales were made for.

  /// Whether the quantizer has a scale for each channel.
  [[nodiscard]] bool is_per_channel() const noexcept { return scales.size() > 1; }
};

namespace detail {

/// The axis of the weights along which NNCF has one scale for each index.
[[nodiscard]] inline std::size_t weight_axis(const node& n, std::size_t input, std::size_t rank) {
  std::ptrdiff_t axis = 0;
  if (n.is("ConvTranspose")) {
    axis = 1;
  } else if (n.is("MatMul")) {
    axis = -1;
  } else if (n.is("Gemm")) {
    const bool transposed = n.get_int(input == 0 ? "transA" : "transB", 0) != 0;
    axis = (input == 0) == transposed ? -1 : -2;
  }
  return rank == 1 ? 0 : static_cast<std::size_t>(axis < 0 ? axis + static_cast<int>(rank) : axis);
}

/// Whether the levels of an activation have a sign: whether its range, widened as by
/// scale_rule::nncf, begins below zero.
[[nodiscard]] inline bool is_signed(const value_range& r, bool symmetric) {
  constexpr float shortest = 8e-4F;
  const bool widens = !symmetric && !(r.upper - r.lower > shortest);
  return (widens ? r.lower - shortest : r.lower) < 0.0F;
}

/// Scales and zero points for ranges, one for each channel or one for all. With `half`, weights
/// stay within half of their grid. Throws invalid_argument for a range that is not finite or whose
/// lower end is above its upper end, and for half of an asymmetric grid.
[[nodiscard]] inline quantizer_parameters parameters_of(std::vector<value_range> ranges,
                                                        const quantizer_config& config,
                                                        bool of_weights, bool half) {
  require(config.bits == 8, error_kind::invalid_argument, "quantizers of ", config.bits,
          " bits; ONNX has a form for 8 only");
  require(!half || config.symmetric, error_kind::invalid_argument,
          "the overflow fix for asymmetric weights; it is for symmetric ones");
  quantizer_parameters p;
  float largest = 0.0F;
  bool has_sign = of_weights;
  for (const value_range& r : ranges) {
    largest = (std::max)(largest, r.upper);
    has_sign = has_sign || is_signed(r, config.symmetric);
  }
  has_sign = config.is_signed.value_or(has_sign) || of_weights;
  p.type = has_sign ? element_type::s8 : element_type::u8;
  quant_scheme scheme{has_sign ? full_grid<std::int8_t> : full_grid<std::uint8_t>,
                      config.symmetric};
  if (config.narrow_range) {
    scheme.levels.qmin = has_sign ? -scheme.levels.qmax : 1;
  }
  for (const value_range& r : ranges) {
    // Of symmetric ranges NNCF uses the upper end, which is the largest magnitude.
    const value_range used = config.symmetric ? value_range{0.0F, r.upper} : r;
    const quant_params one = params_from_range(used, scheme, scale_rule::nncf, largest);
    p.scales.push_back(half ? 2.0F * one.scale : one.scale);
    p.zero_points.push_back(one.zero_point);
    require(std::isfinite(p.scales.back()), error_kind::invalid_argument, "twice the scale ",
            one.scale, " is not a float");
  }
  p.ranges = std::move(ranges);
  return p;
}

/// Makes int8 levels uint8 ones, which stand for the same reals.
inline void make_unsigned(quantizer_parameters& p) {
  if (p.type == element_type::s8) {
    p.type = element_type::u8;
    for (std::int32_t& zero_point : p.zero_points) {
      zero_point += 128;
    }
  }
}

/// Scales of floats of 8 bits for ranges, one for each channel or one for all, as NNCF's
/// calculate_convert_parameters() has them, in float:
///
///   factor = largest / max(upper, |lower| + 2^-23), half of it without channels
///   scale  = 1 / max(factor, 2^-23)
///
/// where `largest` is the largest finite value of the type, 448 or 57344. Zero points are 0.
[[nodiscard]] inline quantizer_parameters float8_parameters_of(std::vector<value_range> ranges,
                                                               const quantizer_config& config,
                                                               element_type type) {
  constexpr float epsilon = std::numeric_limits<float>::epsilon();
  quantizer_parameters p;
  p.type = type;
  const float largest = type == element_type::f8e4m3fn
                            ? to_float(float8_e4m3fn{float8_e4m3fn::max_bits})
                            : to_float(float8_e5m2{float8_e5m2::max_bits});
  for (const value_range& r : ranges) {
    const float factor = (config.per_channel ? 1.0F : 0.5F) *
                         (largest / (std::max)(r.upper, std::fabs(r.lower) + epsilon));
    p.scales.push_back(1.0F / (std::max)(factor, epsilon));
    p.zero_points.push_back(0);
  }
  p.ranges = std::move(ranges);
  return p;
}

/// The shortest range that holds all of `ranges`, of which there is at least one.
[[nodiscard]] inline value_range united_range(const std::vector<value_range>& ranges) {
  value_range all = ranges.front();
  for (const value_range& r : ranges) {
    all = {(std::min)(all.lower, r.lower), (std::max)(all.upper, r.upper)};
  }
  return all;
}

/// Finds the range of an activation, or those of its channels, dimension 1. As any_observer asks
/// it to, it has a finalize(), for the range of all channels.
class activation_observer {
 public:
  /// `of_tensor` finds the range of a tensor, `of_channel` that of a channel. With `items`, each
  /// index of the first dimension of a tensor is a sample.
  activation_observer(const range_estimator& of_tensor, const range_estimator& of_channel,
                      const quantizer_config& config, bool items)
      : per_channel_(config.per_channel),
        whole_(of_tensor, config.symmetric, items),
        channels_(any_observer(range_estimator_observer(of_channel, config.symmetric)), 1) {}

  void observe(tensor_view<const float> x) {
    if (per_channel_) {
      channels_.observe(x);
    } else {
      whole_.observe(x);
    }
  }
  [[nodiscard]] std::vector<value_range> ranges() const {
    if (!per_channel_) {
      return {whole_.range()};
    }
    std::vector<value_range> all;
    for (const any_observer& channel : channels_.channels()) {
      all.push_back(channel.target<range_estimator_observer>()->range());
    }
    require(!all.empty(), error_kind::invalid_argument, "activation_observer: no values");
    return all;
  }
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(united_range(ranges()), scheme, scale_rule::nncf);
  }

 private:
  bool per_channel_;
  range_estimator_observer whole_;
  channel_observer channels_;
};

/// The ranges of weights: of each index along an axis, or of the tensor.
[[nodiscard]] inline std::vector<value_range> weight_ranges(const tensor& weights, std::size_t axis,
                                                            const quantizer_config& config,
                                                            const range_estimator& estimator,
                                                            const parallel_for& parallel) {
  range_estimator_observer whole(estimator, config.symmetric);
  const tensor_view<const float> view = tensor_view_of<float>(weights);
  if (!config.per_channel) {
    whole.observe(view);
    return {whole.range()};
  }
  channel_observer channels{any_observer(whole), axis};
  channels.observe(view, parallel);
  std::vector<value_range> all;
  for (const any_observer& channel : channels.channels()) {
    all.push_back(channel.target<range_estimator_observer>()->range());
  }
  return all;
}

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_QUANTIZER_PARAMETERS_HPP
