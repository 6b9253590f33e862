// SPDX-License-Identifier: BSD-3-Clause
// The table of scales that ncnn's tool ncnn2int8 reads.
#ifndef DETENT_GRAPH_PPQ_EXPORT_NCNN_HPP
#define DETENT_GRAPH_PPQ_EXPORT_NCNN_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/exported_text.hpp>
#include <detent/graph/ppq/json_text.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// The scales of a layer's weights as ncnn has them: one for each output channel or, for a Conv
/// with several groups, the largest of each group, because ncnn has one for each group.
[[nodiscard]] inline std::vector<float> ncnn_weight_scales(const node& n,
                                                           const std::vector<float>& scales) {
  const auto groups = static_cast<std::size_t>(n.is("Conv") ? n.get_int("group", 1) : 1);
  if (groups <= 1) {
    return scales;
  }
  std::vector<float> largest;
  const auto size = static_cast<std::ptrdiff_t>(scales.size() / groups);
  for (auto first = scales.begin(); first != scales.end(); first += size) {
    largest.push_back(*std::max_element(first, first + size));
  }
  return largest;
}

}  // namespace detail

/// The table of scales for ncnn2int8: for each quantized layer, first the reciprocal scales of its
/// weights, then, after those of all layers, that of its input.
///
///   NAME_param_0 1/scale 1/scale ...
///   NAME 1/scale
///
/// 1 / scale is computed in float and written so that it reads back as the same float. Layers whose
/// weights or input have no exportable configuration are left out; ncnn runs them in float. PPQ's
/// NCNNExporter writes six digits behind the point. Throws unsupported, naming the operator, for a
/// scheme that ncnn does not have: ncnn takes symmetric scales, per output channel for weights and
/// per tensor for the input, known before the run; and for a name with white space, which the table
/// cannot hold.
[[nodiscard]] inline exported_text export_ncnn_table(const quantized_graph& g) {
  exported_text result;
  std::string inputs;
  for (std::size_t i = 0; i < g.operators.size(); ++i) {
    const node& n = g.network.nodes[i];
    const std::vector<config_id>& ids = g.operators[i].inputs;
    if (!is_compute_operator(n) || ids.size() <= detail::weight_slot || ids[0] == no_config ||
        ids[detail::weight_slot] == no_config ||
        g.network.initializer(n.inputs[detail::weight_slot]) == nullptr) {
      continue;
    }
    const config_id input = ids[0];
    const config_id weights = ids[detail::weight_slot];
    if (!g.configs.is_exportable(input, true) || !g.configs.is_exportable(weights, true)) {
      result.warnings.push_back(n.label() + " is not quantized and is left out");
      continue;
    }
    for (const config_id id : {input, weights}) {
      require(g.configs[id].policy.is_symmetrical() && !g.configs.is_dynamic(id),
              error_kind::unsupported, g.configs[id].name,
              ": ncnn has symmetric scales that are known before the run only");
    }
    require(!g.configs[input].policy.is_per_channel(), error_kind::unsupported,
            g.configs[input].name, ": ncnn has one scale for an input");
    require(g.configs[weights].policy.is_per_channel(), error_kind::unsupported,
            g.configs[weights].name, ": ncnn has a scale for each output channel of weights");
    const std::string name = detail::operator_name(n);
    require(name.find_first_of(" \t\r\n\v\f") == std::string::npos, error_kind::unsupported,
            n.label(), ": ncnn's table has no names with white space");
    result.text += name + "_param_0";
    for (const float scale : detail::ncnn_weight_scales(n, g.configs.parameters(weights).scales)) {
      result.text += " " + detail::decimal(1.0F / scale);
    }
    result.text += "\n";
    inputs += name + " " + detail::decimal(1.0F / g.configs.parameters(input).scales[0]) + "\n";
  }
  result.text += inputs;
  return result;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_EXPORT_NCNN_HPP
