// SPDX-License-Identifier: BSD-3-Clause
// The ranges of activations as JSON for TensorRT, in the form of PPQ's exporter for TRT_INT8.
#ifndef DETENT_GRAPH_PPQ_EXPORT_TENSORRT_HPP
#define DETENT_GRAPH_PPQ_EXPORT_TENSORRT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/exported_text.hpp>
#include <detent/graph/ppq/json_text.hpp>
#include <detent/graph/ppq/policy.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The table of ranges that TensorRT's ITensor::setDynamicRange() takes, as PPQ's
/// TensorRTExporter_JSON writes it:
///
///   {"act_quant_info": {TENSOR: 127 * scale, ...}}
///
/// in the order of the network, with 127 * scale in double. It holds each float value that a
/// quantized operator takes or makes and whose configuration is exportable, those that another one
/// dominates too, with the parameters of their root; not those of Gather, Unsqueeze, Concat,
/// Reshape and Squeeze, as in PPQ. TensorRT runs values that are not in the table in float. A value
/// whose configuration is not symmetric, per tensor, not dynamic, on 8 bits of -128..127 is left
/// out with a warning.
[[nodiscard]] inline exported_text export_tensorrt_json(const quantized_graph& g) {
  static constexpr std::string_view skipped[] = {"Gather", "Unsqueeze", "Concat", "Reshape",
                                                 "Squeeze"};
  constexpr std::uint32_t expected = quantization_property::linear |
                                     quantization_property::symmetrical |
                                     quantization_property::per_tensor;
  exported_text result;
  std::vector<std::pair<std::string, double>> ranges;
  std::map<std::string, std::size_t> places;  // in ranges
  for (std::size_t i = 0; i < g.operators.size(); ++i) {
    const std::string& type = g.network.nodes[i].op_type;
    if (std::find(std::begin(skipped), std::end(skipped), type) != std::end(skipped)) {
      continue;
    }
    g.for_each_config(i, [&](config_id id) {
      const tensor_quantization_config& c = g.configs[id];
      if (g.is_parameter(id) || !g.configs.is_exportable(id, true)) {
        return;
      }
      if (!c.policy.has(expected) || c.policy.has(quantization_property::dynamic) || c.bits != 8 ||
          !(c.levels == grid{-128, 127})) {
        result.warnings.push_back(c.name + " has no symmetric scale for -128..127 and is left out");
        return;
      }
      const double range = 127.0 * static_cast<double>(g.configs.parameters(id).scales[0]);
      const auto [place, is_new] = places.emplace(c.variable, ranges.size());
      if (is_new) {
        ranges.emplace_back(c.variable, range);
      }
      ranges[place->second].second = range;
    });
  }
  detail::json_text text;
  text.open_object();
  text.key("act_quant_info");
  text.open_object();
  for (const auto& [name, range] : ranges) {
    text.key(name);
    text.value(range);
  }
  text.close_object();
  text.close_object();
  result.text = std::move(text).finish();
  return result;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_EXPORT_TENSORRT_HPP
