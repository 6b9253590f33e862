// SPDX-License-Identifier: BSD-3-Clause
// The gradients of the operators FakeQuantize and FakeQuantizeBias of domain "detent".
#ifndef DETENT_GRAPH_LEARN_FAKE_QUANTIZE_GRADIENT_HPP
#define DETENT_GRAPH_LEARN_FAKE_QUANTIZE_GRADIENT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/graph/learn/fake_quantize_operator.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// The gradient of the scale of a PACT quantizer: the sum of d[i] * (qmax - zero_point) over the
/// values x[i] that round to more than qmax.
[[nodiscard]] inline double clip_gradient(std::span<const float> x, std::span<const double> d,
                                          quant_params p, grid levels) {
  double sum = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const reference::fake_quantize_partials at =
        reference::fake_quantize_derivatives(x[i], p, levels);
    if (at.x == 0.0F && at.scale > 0.0F) {
      sum += d[i];
    }
  }
  return sum * static_cast<double>(levels.qmax - p.zero_point);
}

/// The gradient of detent.FakeQuantize for x, the scales and the offset, with rounding treated as
/// the identity (straight-through estimator), as fake_quantize_backward() computes it in float. The
/// zero points get no gradient. With D the gradient of y and z the zero point:
///
///   dx       D inside the grid, 0 outside
///   dscale   sum of D * (round(x / scale) - x / scale) inside, D * (qmin - z) below and
///            D * (qmax - z) above (LSQ); with an offset D * qmin and D * qmax outside, because the
///            zero point follows the scale (LSQ+); with `clips` only the part above (PACT)
///   doffset  sum of D outside (LSQ+)
///
/// With the attribute `fixed` scale and offset get none.
///
/// Sources: Esser et al., Learned step size quantization (2020); Bhalgat et al., LSQ+: Improving
/// low-bit quantization through learnable offsets and better initialization (2020); Choi et al.,
/// PACT: Parameterized clipping activation for quantized neural networks (2018).
inline void straight_through(const gradient_context& c) {
  const detail::fake_quantize_operands o(c.forward);
  const bool is_fixed = c.n().get_int("fixed", 0) != 0;
  const bool has_offset = c.forward.has_input(4);
  const bool clips = c.n().get_int("clips", 0) != 0;
  if (!o.is_per_channel && c.overwrites && !has_offset && !clips) {
    const quant_params p = o.one(c.forward);
    detent::detail::require_fake_params(p, o.levels, "fake_quantize_backward");
    detent::detail::basic_gradient_sums<false> sums;
    sums.add(detent::detail::fake_quantizer(p.scale, p.zero_point, o.levels),
             c.input(0).data<float>().data(), c.output_gradient().data(), c.gradient(0).data(),
             c.gradient(0).size());
    if (c.wants(1) && !is_fixed) {
      c.gradient(1)[0] += static_cast<double>(sums.finalize(1.0F).scale);
    }
    return;
  }
  const std::vector<float> upstream = as_floats(c.output_gradient());
  std::vector<float> for_x(upstream.size());
  const auto x = o.view(c.input(0).data<float>().data());
  const auto d = o.view(upstream.data());
  const auto back = o.view(for_x.data());
  std::vector<float> scales(c.input(1).count());
  if (o.is_per_channel) {
    std::vector<float> zero_points(scales.size());
    fake_quantize_backward(x, d, o.channels(c.forward), o.levels, back, scales, zero_points);
  } else {
    const quant_params p = o.one(c.forward);
    const quant_params_gradient g = fake_quantize_backward(x, d, p, o.levels, back);
    scales[0] = g.scale;
    if (has_offset) {
      // The gradient of a real zero point is the sum of -scale * D outside the grid.
      const double outside = -static_cast<double>(g.zero_point) / static_cast<double>(p.scale);
      scales[0] = static_cast<float>(static_cast<double>(g.scale) +
                                     rounded_product(outside, static_cast<double>(p.zero_point)));
      if (c.wants(4) && !is_fixed) {
        c.gradient(4)[0] += outside;
      }
    } else if (clips) {
      scales[0] = static_cast<float>(
          clip_gradient(c.input(0).data<float>(), c.output_gradient(), p, o.levels));
    }
  }
  if (c.overwrites) {
    std::copy(for_x.begin(), for_x.end(), c.gradient(0).begin());
  } else if (c.wants(0)) {
    add_to(c.gradient(0), for_x);
  }
  if (c.wants(1) && !is_fixed) {
    add_to(c.gradient(1), scales);
  }
}

/// The gradient of detent.FakeQuantizeBias: that of y passes to the bias, the scales get none.
inline void bias_straight_through(const gradient_context& c) {
  if (c.wants(0)) {
    const std::span<const double> d = c.output_gradient();
    for (std::size_t i = 0; i < d.size(); ++i) {
      c.gradient(0)[i] += d[i];
    }
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_FAKE_QUANTIZE_GRADIENT_HPP
