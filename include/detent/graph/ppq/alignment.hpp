// SPDX-License-Identifier: BSD-3-Clause
// The pass that gives the tensors of one operator the same scale and zero point where hardware
// needs it.
#ifndef DETENT_GRAPH_PPQ_ALIGNMENT_HPP
#define DETENT_GRAPH_PPQ_ALIGNMENT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/observing.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/quantize.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// How alignment_pass gives the tensors of an operator the same parameters.
enum class alignment_method : std::uint8_t {
  none,       ///< Every tensor keeps its own parameters.
  to_large,   ///< The inputs take the parameters of the union of the ranges that they represent.
  to_input,   ///< The output takes the parameters of the first input.
  to_output,  ///< The inputs take the parameters of the first output.
};

/// PPQ's QuantAlignmentPass, to be run after calibration. It gives the tensors of an operator the
/// same scale and zero point, by the method that a member names for the type of the operator:
///
///   to_large   The range is the least scale * (qmin - zero_point) of all inputs to the greatest
///              scale * (qmax - zero_point). With a parity, the parameters of this range follow by
///              PPQ's rule, else by the canonical one. Without a parity, symmetric inputs take the
///              largest of their scales instead: where the grid has one more level below zero, the
///              rules would make the scale larger each time. Inputs that were always 0 have no part
///              in it, unless all were. The first input has these parameters;
///              it becomes the master of the other inputs (PASSIVE).
///   to_input   The first input becomes the master of the output (PASSIVE).
///   to_output  An input whose value nobody else needs quantized is dominated by the output
///              (OVERLAPPED: it is quantized once, after the operator). The output becomes the
///              master of the other inputs (PASSIVE).
///
/// Constants keep their own parameters. So do tensors whose scheme differs from that of the tensor
/// they would be aligned with, and tensors with several scales or a DYNAMIC policy.
///
/// If the pass runs again after a calibration with override, it aligns what is ACTIVATED then. What
/// it has made PASSIVE before stays with its master and has no part in unions.
struct alignment_pass {
  /// The method for Add, Sub and Sum.
  alignment_method elementwise = alignment_method::to_large;
  /// The method for Concat.
  alignment_method concat = alignment_method::to_output;
  /// The method for AveragePool and GlobalAveragePool.
  alignment_method average_pool = alignment_method::none;
  /// The method for Resize and Upsample.
  alignment_method resize = alignment_method::to_output;
  /// Whether a configuration that makes the value of an aligned operator's input, and that
  /// fusion_pass has not joined with the input's configuration, becomes dominated by it.
  bool force_overlap = true;
  /// Whether to_output makes every input PASSIVE, none OVERLAPPED. Concat then computes the same,
  /// and engines can run it on integers, since its inputs are exported with pairs of their own.
  bool keep_inputs = false;
  /// With a value, to_large uses PPQ's rule for parameters, else the canonical one.
  ppq_parity parity = {};

  /// Runs the pass. It needs no samples.
  void operator()(quantized_graph& g, pass_context& /*context*/) const {
    const links l(g.network);
    reader_index readers(g);
    for (std::size_t i = 0; i < g.network.nodes.size(); ++i) {
      if (!g.operators[i].is_quantized() || g.operators[i].outputs[0] == no_config) {
        continue;
      }
      switch (method_of(g.network.nodes[i])) {
        case alignment_method::none:
          continue;
        case alignment_method::to_large:
          align_to_large(g, readers, i);
          break;
        case alignment_method::to_input:
          align_to_input(g, readers, i);
          break;
        case alignment_method::to_output:
          align_to_output(g, l, readers, i);
          break;
      }
      if (force_overlap) {
        overlap_makers(g, l, readers, i);
      }
    }
  }

 private:
  /// The configurations of nodes by the source that they read their parameters from. It follows the
  /// links that the pass makes, so that no operator needs to look at all configurations.
  class reader_index {
   public:
    /// A configuration, and the node that has it.
    using reader = std::pair<std::size_t, config_id>;

    explicit reader_index(const quantized_graph& g) {
      for (std::size_t i = 0; i < g.operators.size(); ++i) {
        g.for_each_config(
            i, [&](config_id id) { by_source_[g.configs.source(id)].emplace_back(i, id); });
      }
    }
    /// Those that read from `source`.
    [[nodiscard]] const std::vector<reader>& of(config_id source) const {
      static const std::vector<reader> none;
      const auto found = by_source_.find(source);
      return found == by_source_.end() ? none : found->second;
    }
    /// Notes that all that read from `from` now read from `to`.
    void move(config_id from, config_id to) {
      if (from == to) {
        return;
      }
      std::vector<reader> moved = std::move(by_source_[from]);
      by_source_.erase(from);
      std::vector<reader>& all = by_source_[to];
      if (all.size() < moved.size()) {
        all.swap(moved);
      }
      all.insert(all.end(), moved.begin(), moved.end());
    }

   private:
    std::map<config_id, std::vector<reader>> by_source_;
  };

  static void master_by(quantized_graph& g, reader_index& readers, config_id id, config_id master) {
    g.configs.master_by(id, master);
    readers.move(id, g.configs.source(id));
  }
  static void dominated_by(quantized_graph& g, reader_index& readers, config_id id,
                           config_id dominator) {
    g.configs.dominated_by(id, dominator);
    readers.move(id, g.configs.source(id));
  }

  [[nodiscard]] alignment_method method_of(const node& n) const {
    if (n.is("Add") || n.is("Sub") || n.is("Sum")) {
      return elementwise;
    }
    if (n.is("Concat")) {
      return concat;
    }
    if (n.is("AveragePool") || n.is("GlobalAveragePool")) {
      return average_pool;
    }
    return n.is("Resize") || n.is("Upsample") ? resize : alignment_method::none;
  }

  /// The configurations whose parameters the tensors have, each once. Only configurations that are
  /// ACTIVATED, per tensor, and have the scheme of the first one found are taken.
  static std::vector<config_id> sources(const quantized_graph& g,
                                        const std::vector<config_id>& ids) {
    std::vector<config_id> found;
    std::set<config_id> known;
    for (const config_id id : ids) {
      if (id == no_config || g.is_parameter(id)) {
        continue;
      }
      const config_id source = g.configs.source(id);
      const tensor_quantization_config& c = g.configs[source];
      if (c.state() == quantization_state::activated && !c.policy.is_per_channel() &&
          !g.configs.is_dynamic(source) && !g.is_parameter(source) &&
          (found.empty() || same_scheme(g, source, found[0])) && known.insert(source).second) {
        found.push_back(source);
      }
    }
    return found;
  }
  static bool same_scheme(const quantized_graph& g, config_id a, config_id b) {
    const quantizer_settings& x = g.configs[a];
    const quantizer_settings& y = g.configs[b];
    return x.policy == y.policy && x.levels == y.levels && x.rounding == y.rounding;
  }

  void align_to_large(quantized_graph& g, reader_index& readers, std::size_t i) const {
    const std::vector<config_id> all = sources(g, g.operators[i].inputs);
    if (all.size() < 2) {
      return;
    }
    const quantizer_settings& s = g.configs[all[0]];
    value_range range{0.0F, 0.0F};
    quant_params largest{0.0F, 0};
    const bool any_values = std::any_of(
        all.begin(), all.end(), [&](config_id id) { return !g.configs.parameters(id).of_zeros; });
    for (const config_id id : all) {
      const tensor_parameters& p = g.configs.parameters(id);
      if (p.of_zeros && any_values && !parity) {  // PPQ's rule gives them a scale of almost 0
        continue;
      }
      const auto end = [&](std::int32_t level) {  // the product is exact in double
        return static_cast<float>(static_cast<double>(p.scales[0]) *
                                  (static_cast<double>(level) - p.zero_points[0]));
      };
      range.lower = (std::min)(range.lower, end(s.levels.qmin));
      range.upper = (std::max)(range.upper, end(s.levels.qmax));
      largest = p.scales[0] > largest.scale ? quant_params{p.scales[0], p.zero_points[0]} : largest;
    }
    quant_params joint = largest;
    if (parity) {
      joint = params_from_range(range, s.scheme(), scale_rule::ppq);
    } else if (!s.policy.is_symmetrical()) {
      joint = params_from_range(range, s.scheme());
    }
    joint = detail::fitted(joint, s, parity == detent::parity::fixed);
    g.configs.set_parameters(all[0], {{joint.scale}, {joint.zero_point}, !any_values});
    for (std::size_t k = 1; k < all.size(); ++k) {
      master_by(g, readers, all[k], all[0]);
    }
  }

  static void align_to_input(quantized_graph& g, reader_index& readers, std::size_t i) {
    const std::vector<config_id> both =
        sources(g, {g.operators[i].inputs[0], g.operators[i].outputs[0]});
    if (both.size() == 2) {
      master_by(g, readers, both[1], both[0]);
    }
  }

  void align_to_output(quantized_graph& g, const links& l, reader_index& readers,
                       std::size_t i) const {
    std::vector<config_id> ids{g.operators[i].outputs[0]};
    const config_id output = g.configs.source(ids[0]);
    ids.insert(ids.end(), g.operators[i].inputs.begin(), g.operators[i].inputs.end());
    const std::vector<config_id> all = sources(g, ids);
    if (all.empty() || all[0] != output) {
      return;
    }
    for (std::size_t k = 1; k < all.size(); ++k) {
      if (!keep_inputs && only_feeds(g, l, readers, all[k], i)) {
        dominated_by(g, readers, all[k], output);
      } else {
        master_by(g, readers, all[k], output);
      }
    }
  }

  /// Whether every configuration that reads its parameters from `source` lies on the way to the
  /// node at index `at`. Then values need not be quantized before they come out of that node.
  static bool only_feeds(const quantized_graph& g, const links& l, const reader_index& readers,
                         config_id source, std::size_t at) {
    const auto follows = [&](config_id id) {
      return id != no_config && g.configs.root(id) == source;
    };
    std::set<std::string_view> stay;  // values that were looked at already
    return std::all_of(
        readers.of(source).begin(), readers.of(source).end(), [&](const reader_index::reader& r) {
          const auto& [i, id] = r;
          if (!follows(id)) {
            return false;
          }
          const std::string& value = g.configs[id].variable;
          if (stay.insert(value).second && !value_stays(g, l, value, follows)) {
            return false;
          }
          const operator_configs& o = g.operators[i];
          const bool reads = i != at && std::any_of(o.inputs.begin(), o.inputs.end(), follows);
          return !reads || (!is_compute_operator(g.network.nodes[i]) &&
                            std::all_of(o.outputs.begin(), o.outputs.end(), [&](config_id out) {
                              return out == no_config || follows(out);
                            }));
        });
  }
  /// Whether follows(configuration) is true for every use of a value.
  template <class Follows>
  static bool value_stays(const quantized_graph& g, const links& l, const std::string& value,
                          const Follows& follows) {
    if (g.network.is_output(value)) {
      return false;
    }
    std::size_t last = links::none;
    for (const std::size_t user : l.consumers(value)) {
      if (std::exchange(last, user) == user) {
        continue;  // it takes the value several times
      }
      if (captured_values(g.network.nodes[user]).count(value) != 0) {
        return false;
      }
      for (std::size_t slot = 0; slot < g.network.nodes[user].inputs.size(); ++slot) {
        if (g.network.nodes[user].inputs[slot] == value &&
            !(slot < g.operators[user].inputs.size() && follows(g.operators[user].inputs[slot]))) {
          return false;
        }
      }
    }
    return true;
  }

  static void overlap_makers(quantized_graph& g, const links& l, reader_index& readers,
                             std::size_t i) {
    for (std::size_t slot = 0; slot < g.operators[i].inputs.size(); ++slot) {
      const config_id id = g.operators[i].inputs[slot];
      const config_id maker = g.producer_config(l, g.network.nodes[i].inputs[slot]);
      if (id == no_config || maker == no_config ||
          g.configs.source(maker) == g.configs.source(id) ||
          g.configs[maker].state() != quantization_state::activated ||
          g.configs.is_dynamic(maker) || !same_scheme(g, id, maker)) {
        continue;
      }
      if (readers.of(maker).size() <= 1) {  // nobody else relies on what it quantizes
        dominated_by(g, readers, maker, id);
      }
    }
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_ALIGNMENT_HPP
