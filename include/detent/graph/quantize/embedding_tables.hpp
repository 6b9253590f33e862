// SPDX-License-Identifier: BSD-3-Clause
// Stores the tables of embeddings in 8 bits: the constants from which a Gather takes whole rows.
// Only the rows that are taken become float again:
//
//   one scale for each row    y = float(Gather(codes, ids)) * Gather(scales, ids)
//   one scale for the table   y = DequantizeLinear(Gather(codes, ids), scale, 0)
#ifndef DETENT_GRAPH_QUANTIZE_EMBEDDING_TABLES_HPP
#define DETENT_GRAPH_QUANTIZE_EMBEDDING_TABLES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/observers/channels.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Whether a node takes rows of a table that quantize_embeddings() stores in 8 bits: a Gather along
/// axis 0 of a float32 constant matrix with at least 16 columns and 4096 values, whose indices are
/// not constant. Smaller tables would save next to nothing.
[[nodiscard]] inline bool is_embedding(const model& m, const node& n) {
  const tensor* table = n.is("Gather") ? detail::float_constant(m, n, 0) : nullptr;
  return table != nullptr && n.inputs.size() == 2 && n.get_int("axis", 0) == 0 &&
         table->rank() == 2 && table->dim(1) >= 16 && table->count() >= 4096 &&
         m.initializer(n.inputs[1]) == nullptr;
}

namespace detail {

/// Stores the tables of embeddings of one model in 8 bits.
class embedding_quantizer {
 public:
  explicit embedding_quantizer(model& m) : m_(m), writer_(m) {}

  /// Calls per_row(n) for each embedding: whether its table gets one scale for each row or one for
  /// the table, or nothing if it stays in float.
  template <class PerRow>
  void run(const PerRow& per_row) {
    std::vector<node> nodes;
    for (node& n : m_.nodes) {
      const std::optional<bool> rows = is_embedding(m_, n) ? per_row(n) : std::nullopt;
      if (rows) {
        rewrite(n, table_of(n.inputs[0], *rows), nodes);
      } else {
        nodes.push_back(std::move(n));
      }
    }
    m_.nodes = std::move(nodes);
  }

 private:
  /// The names of the constants that a table became.
  struct stored_table {
    std::string codes, scales;
    bool has_row_scales = false;
  };

  const stored_table& table_of(const std::string& name, bool per_row) {
    const auto [found, is_new] = tables_.try_emplace({name, per_row});
    if (is_new) {
      found->second = store(name, per_row);
    }
    return found->second;
  }

  [[nodiscard]] stored_table store(const std::string& name, bool per_row) {
    const tensor table = m_.initializers.at(name);
    const tensor_view<const float> view = tensor_view_of<float>(table);
    const quant_scheme scheme = symmetric<std::int8_t>;
    std::vector<float> scales;
    channel_min_max_observer observer(0);
    observer.observe(view);
    float largest = 0.0F;
    for (const min_max_observer& row : observer.channels()) {
      const value_range r = of_tensor(name, [&] { return row.range(); });
      scales.push_back(params_from_range(r, scheme).scale);
      largest = (std::max)({largest, -r.lower, r.upper});
    }
    if (!per_row) {
      std::fill(scales.begin(), scales.end(), params_from_range({-largest, largest}, scheme).scale);
    }
    tensor codes = tensor::allocate(element_type::s8, table.dims());
    const std::vector<std::int32_t> zeros(scales.size(), 0);
    quantize(view, mutable_view_of<std::int8_t>(codes), channel_quant_params{0, scales, zeros},
             scheme.levels);
    release_pages(table);
    const std::int64_t rows = table.dim(0);
    return {writer_.add_initializer(name + "_quantized", std::move(codes)),
            per_row
                ? writer_.add_values(name + "_scale", element_type::f32, {rows, 1}, scales)
                : writer_.add_values<float>(name + "_scale", element_type::f32, {}, {scales[0]}),
            per_row};
  }

  void rewrite(const node& n, const stored_table& table, std::vector<node>& nodes) {
    const std::string base = n.name.empty() ? n.outputs[0] : n.name;
    const auto add = [&](const char* op, std::vector<std::string> inputs, std::string output) {
      nodes.push_back(writer_.make_node(op, base + "_" + op, std::move(inputs), std::move(output)));
      return nodes.back().outputs[0];
    };
    const std::string codes =
        add("Gather", {table.codes, n.inputs[1]}, writer_.fresh(n.outputs[0] + "_quantized"));
    if (!table.has_row_scales) {
      add("DequantizeLinear", {codes, table.scales}, n.outputs[0]);
    } else {
      const std::string real = add("Cast", {codes}, writer_.fresh(n.outputs[0] + "_Cast"));
      nodes.back().attributes["to"] = attribute::of(static_cast<std::int64_t>(element_type::f32));
      const std::string scales =
          add("Gather", {table.scales, n.inputs[1]}, writer_.fresh(n.outputs[0] + "_scale"));
      add("Mul", {real, scales}, n.outputs[0]);
    }
    nodes.back().name = n.name;  // what makes the value keeps its name
  }

  model& m_;
  graph_writer writer_;
  std::map<std::pair<std::string, bool>, stored_table> tables_;
};

}  // namespace detail

/// Stores the tables of a model's embeddings in 8 bits, symmetric -127..127. `per_row(node)` says
/// for each Gather that is_embedding() accepts whether its table gets one scale for each row (true)
/// or one for all (false), or leaves it in float (nothing). Values keep their names; constants that
/// nothing uses any more are left to remove_unused(). Throws invalid_argument, naming the table, if
/// it holds NaN or infinity.
template <class PerRow>
void quantize_embeddings(model& m, const PerRow& per_row) {
  if (std::any_of(m.nodes.begin(), m.nodes.end(),
                  [&](const node& n) { return is_embedding(m, n); })) {
    detail::embedding_quantizer(m).run(per_row);
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_EMBEDDING_TABLES_HPP
