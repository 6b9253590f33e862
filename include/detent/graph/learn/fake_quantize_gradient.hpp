// SPDX-License-Identifier: BSD-3-Clause
// The gradient of the operator FakeQuantize of domain "detent".
#ifndef DETENT_GRAPH_LEARN_FAKE_QUANTIZE_GRADIENT_HPP
#define DETENT_GRAPH_LEARN_FAKE_QUANTIZE_GRADIENT_HPP

#include <algorithm>
#include <vector>

#include <detent/config.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/graph/learn/fake_quantize_operator.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/sums.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// The gradient of detent.FakeQuantize for x and the scales, with rounding treated as the identity
/// (straight-through estimator), as fake_quantize_backward() computes it in float. The zero points
/// get no gradient.
inline void straight_through(const gradient_context& c) {
  const detail::fake_quantize_operands o(c.forward);
  if (!o.is_per_channel && c.overwrites) {
    const quant_params p = o.one(c.forward);
    detent::detail::require_fake_params(p, o.levels, "fake_quantize_backward");
    detent::detail::basic_gradient_sums<false> sums;
    sums.add(detent::detail::fake_quantizer(p.scale, p.zero_point, o.levels),
             c.input(0).data<float>().data(), c.output_gradient().data(), c.gradient(0).data(),
             c.gradient(0).size());
    if (c.wants(1)) {
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
    scales[0] = fake_quantize_backward(x, d, o.one(c.forward), o.levels, back).scale;
  }
  if (c.overwrites) {
    std::copy(for_x.begin(), for_x.end(), c.gradient(0).begin());
  } else if (c.wants(0)) {
    add_to(c.gradient(0), for_x);
  }
  if (c.wants(1)) {
    add_to(c.gradient(1), scales);
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_FAKE_QUANTIZE_GRADIENT_HPP
