// SPDX-License-Identifier: BSD-3-Clause
// The parameters of a network as the JSON that OpenPPL's CUDA engine takes (--quant-file).
#ifndef DETENT_GRAPH_PPQ_EXPORT_PPL_HPP
#define DETENT_GRAPH_PPQ_EXPORT_PPL_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/exported_text.hpp>
#include <detent/graph/ppq/json_text.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/state.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// Writes one number if `one` says so, else a list of them.
template <class T>
void write_numbers(json_text& text, const char* key, const std::vector<T>& numbers, bool one) {
  text.key(key);
  if (one) {
    text.value(numbers.at(0));
    return;
  }
  text.open_list();
  for (const T number : numbers) {
    text.value(number);
  }
  text.close_list();
}

/// The real number of a grid's end for each scale, scale * (end - zero point), in float.
[[nodiscard]] inline std::vector<float> reals_of(const tensor_parameters& p, std::int32_t end) {
  std::vector<float> reals;
  for (std::size_t i = 0; i < p.scales.size(); ++i) {
    reals.push_back(p.scales[i] * static_cast<float>(std::int64_t{end} - p.zero_points[i]));
  }
  return reals;
}

inline void write_ppl_config(json_text& text, const quantized_graph& g, config_id id) {
  const tensor_quantization_config& c = g.configs[id];
  const tensor_parameters& p = g.configs.parameters(id);
  const bool one = !c.policy.is_per_channel();
  text.open_object();
  text.key("bit_width");
  text.value(c.bits);
  text.key("per_channel");
  text.value(!one);
  text.key("quant_flag");
  text.value(true);
  text.key("sym");
  text.value(c.policy.is_symmetrical());
  write_numbers(text, "scale", p.scales, one);
  write_numbers(text, "zero_point", p.zero_points, one);
  write_numbers(text, "tensor_min", reals_of(p, c.levels.qmin), one);
  write_numbers(text, "tensor_max", reals_of(p, c.levels.qmax), one);
  text.key("q_min");
  text.value(c.levels.qmin);
  text.key("q_max");
  text.value(c.levels.qmax);
  text.key("hash");
  text.value(static_cast<std::size_t>(id));
  text.key("dominator");
  text.value(static_cast<std::size_t>(g.configs.root(id)));
  text.close_object();
}

}  // namespace detail

/// The parameters of all tensors as PPQ's PPLBackendExporter writes them:
///
///   {"quant_info": {TENSOR: {"bit_width", "per_channel", "quant_flag", "sym", "scale",
///                            "zero_point", "tensor_min", "tensor_max", "q_min", "q_max", "hash",
///                            "dominator"}, ...},
///    "op_info": {OPERATOR: {"data_type": "INT8"}, ...}}
///
/// in the order of the network. `scale`, `zero_point`, `tensor_min` and `tensor_max` are numbers,
/// or lists per channel; tensor_min = scale * (q_min - zero_point) in float. `hash` is the number
/// of the configuration and `dominator` that of its root, which tell configurations apart as PPQ's
/// random numbers do. Tensors with more than 8 bits (biases), and configurations that are not
/// exportable or are OVERLAPPED, are left out; a tensor with several configurations has the last
/// one, but a PASSIVE one does not replace another. Throws unsupported, naming the configuration,
/// for a DYNAMIC policy.
[[nodiscard]] inline exported_text export_ppl_json(const quantized_graph& g) {
  std::vector<std::pair<std::string, config_id>> tensors;
  std::map<std::string, std::size_t> places;  // in tensors
  g.for_each_config([&](config_id id) {
    const tensor_quantization_config& c = g.configs[id];
    if (!g.configs.is_exportable(id) || c.bits > 8 || c.state() == quantization_state::fp32) {
      return;
    }
    require(!g.configs.is_dynamic(id), error_kind::unsupported, c.name,
            ": PPL has scales that are known before the run only");
    const auto [place, is_new] = places.emplace(c.variable, tensors.size());
    if (is_new) {
      tensors.emplace_back(c.variable, id);
    } else if (c.state() != quantization_state::passive) {
      tensors[place->second].second = id;
    }
  });
  detail::json_text text;
  text.open_object();
  text.key("quant_info");
  text.open_object();
  for (const auto& [name, id] : tensors) {
    text.key(name);
    detail::write_ppl_config(text, g, id);
  }
  text.close_object();
  text.key("op_info");
  text.open_object();
  for (std::size_t i = 0; i < g.operators.size(); ++i) {
    if (g.operators[i].is_quantized()) {
      text.key(detail::operator_name(g.network.nodes[i]));
      text.open_object();
      text.key("data_type");
      text.value("INT8");
      text.close_object();
    }
  }
  text.close_object();
  text.close_object();
  return {std::move(text).finish(), {}};
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_EXPORT_PPL_HPP
