// SPDX-License-Identifier: BSD-3-Clause
// Conversion of float constants to the integers of their quantization configuration, and back.
#ifndef DETENT_GRAPH_PPQ_INTEGERS_HPP
#define DETENT_GRAPH_PPQ_INTEGERS_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/reference.hpp>
#include <detent/rounding.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// Calls f(i, parameters of element i) for each element of a tensor.
template <class Function>
void for_each_element(const tensor& t, const quantizer_settings& s, const tensor_parameters& p,
                      const Function& f) {
  std::size_t inner = 1;
  std::size_t channels = 1;
  if (p.scales.size() > 1) {
    require(s.channel_axis && *s.channel_axis < t.rank() &&
                static_cast<std::size_t>(t.dim(*s.channel_axis)) == p.scales.size(),
            error_kind::shape_mismatch, s.name, ": ", p.scales.size(), " scales for shape ",
            shown(t.dims()));
    channels = p.scales.size();
    for (std::size_t d = *s.channel_axis + 1; d < t.rank(); ++d) {
      inner *= static_cast<std::size_t>(t.dim(d));
    }
  }
  for (std::size_t i = 0; i < t.count(); ++i) {
    const std::size_t channel = i / inner % channels;
    f(i, quant_params{p.scales[channel], p.zero_points[channel]});
  }
}

}  // namespace detail

/// The integers of a float tensor, in the order of its elements:
///
///   q = clamp(round(x / scale) + zero_point, qmin, qmax)
///
/// round() is the rounding of the settings. If `p` has several scales, each index along the channel
/// axis has its own. On grids that reach beyond -65536..65535 (the grids of biases), x / scale is
/// computed in double and rounded half to even. Throws shape_mismatch, naming the configuration, if
/// the number of scales does not fit the shape.
[[nodiscard]] inline std::vector<std::int32_t> quantized_integers(const tensor& t,
                                                                  const quantizer_settings& s,
                                                                  const tensor_parameters& p) {
  std::vector<std::int32_t> q(t.count());
  const auto x = t.data<float>();
  const grid levels = s.levels;
  if (levels.qmin < -65536 || levels.qmax > 65535) {
    detail::for_each_element(t, s, p, [&](std::size_t i, quant_params one) {
      q[i] = reference::quantize(static_cast<double>(x[i]), one, levels);
    });
    return q;
  }
  with_rounding(s.rounding, [&](const auto& policy) {
    detail::for_each_element(t, s, p, [&](std::size_t i, quant_params one) {
      q[i] = reference::quantize(x[i], one, levels, policy);
    });
  });
  return q;
}

/// The values that quantization gives a float tensor: (q - zero_point) * scale of its
/// quantized_integers() q, as DequantizeLinear computes it. Throws what quantized_integers()
/// throws.
[[nodiscard]] inline tensor fake_quantized(const tensor& t, const quantizer_settings& s,
                                           const tensor_parameters& p) {
  const std::vector<std::int32_t> q = quantized_integers(t, s, p);
  tensor out = tensor::allocate(element_type::f32, t.dims());
  auto y = out.mutable_data<float>();
  detail::for_each_element(
      t, s, p, [&](std::size_t i, quant_params one) { y[i] = reference::dequantize(q[i], one); });
  return out;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_INTEGERS_HPP
