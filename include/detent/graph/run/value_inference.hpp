// SPDX-License-Identifier: BSD-3-Clause
// Infers types, shapes and small constants of the values of a graph from those that are known
// before it runs. The executor uses this for the bodies of control flow, shape_inference.hpp for
// whole models.
#ifndef DETENT_GRAPH_RUN_VALUE_INFERENCE_HPP
#define DETENT_GRAPH_RUN_VALUE_INFERENCE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/apply_node.hpp>
#include <detent/graph/run/buffer_pool.hpp>
#include <detent/graph/run/executor_options.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/run_resources.hpp>
#include <detent/graph/run/subgraph_runner.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Whether a node with sub-graphs may be computed before a run if all that it uses is constant:
/// only If nodes may, because loops can take long and make large values from small ones.
[[nodiscard]] inline bool is_brief(const node& n) {
  bool brief = true;
  for_each_body(n, [&](const std::string&, const graph_body& body) {
    brief = brief && n.is("If") && std::all_of(body.nodes.begin(), body.nodes.end(), is_brief);
  });
  return brief;
}

/// Whether a node is an If, or has one in its sub-graphs.
[[nodiscard]] inline bool has_choice(const node& n);

/// Whether the sub-graphs of a node have an If.
[[nodiscard]] inline bool has_choice_within(const node& n) {
  bool any = false;
  for_each_body(n, [&](const std::string&, const graph_body& body) {
    any = any || std::any_of(body.nodes.begin(), body.nodes.end(), has_choice);
  });
  return any;
}

[[nodiscard]] inline bool has_choice(const node& n) { return n.is("If") || has_choice_within(n); }

/// Nodes whose inputs and outputs have at most this many elements each are executed before a run:
/// they may be shape arithmetic.
inline constexpr std::size_t most_inferred_elements = 4096;

/// The limits of what infer_values() computes, whatever a run may use: the memory of all values
/// that it keeps and of scratch memory, and the multiply-adds of all nodes.
[[nodiscard]] inline executor_options inference_limits() {
  executor_options limits;
  limits.max_memory_bytes = std::size_t{64} << 20U;
  limits.max_iterations = std::size_t{1} << 20U;
  limits.max_multiply_adds = std::uint64_t{1} << 30U;
  return limits;
}

/// What infer_values() of a graph and of all its sub-graphs share, so that inference_limits() hold
/// for all of them together.
struct inference_scope {
  /// For a graph of which no node calls a function.
  inference_scope() = default;
  explicit inference_scope(const model& m) : functions(m) {}

  function_table functions;  // of the model that the graphs belong to
  buffer_pool pool{inference_limits().max_memory_bytes, false};
  std::uint64_t max_multiply_adds = inference_limits().max_multiply_adds;
  run_work work;  // so far; never more than that
};

/// The work of one node in a scope. What the node has done is added to that of the scope when this
/// object ends, also by an error.
class inferred_node {
 public:
  inferred_node(inference_scope& scope, run_resources& resources)
      : scope_(scope), resources_(resources) {
    renew();
  }
  inferred_node(const inferred_node&) = delete;
  inferred_node& operator=(const inferred_node&) = delete;
  ~inferred_node() { add(); }

  /// Gives the node its share of the multiply-adds of inference_limits() once more.
  void renew() {
    add();
    constexpr std::uint64_t share = std::uint64_t{1} << 20U;
    run_work& work = resources_.work;
    work.iterations = scope_.work.iterations;
    work.multiply_adds = scope_.work.multiply_adds;
    work.max_multiply_adds = (std::min)(scope_.max_multiply_adds, work.multiply_adds + share);
    begin_ = work;
  }

 private:
  void add() {
    scope_.work.iterations += resources_.work.iterations - begin_.iterations;
    scope_.work.multiply_adds += resources_.work.multiply_adds - begin_.multiply_adds;
    begin_ = resources_.work;
  }

  inference_scope& scope_;
  run_resources& resources_;
  run_work begin_ = resources_.work;
};

/// Whether an operator broadcasts its inputs, so that its result has as many dimensions as the
/// input that has most.
[[nodiscard]] inline bool is_broadcasting(const node& n) {
  static constexpr std::string_view names[] = {"Add",
                                               "Sub",
                                               "Mul",
                                               "Div",
                                               "Pow",
                                               "Mod",
                                               "Max",
                                               "Min",
                                               "Sum",
                                               "Mean",
                                               "And",
                                               "Or",
                                               "Xor",
                                               "Where",
                                               "Equal",
                                               "Greater",
                                               "GreaterOrEqual",
                                               "Less",
                                               "LessOrEqual"};
  return n.domain.empty() &&
         std::find(std::begin(names), std::end(names), n.op_type) != std::end(names);
}

/// The result of a broadcasting node whose inputs do not fit together, as sizes that stand for open
/// dimensions may not: of two sizes that differ it has the larger one. Undefined if it is too
/// large, or if an input is missing. `types`: those of the inputs in the model.
[[nodiscard]] inline tensor broadcast_of_any_sizes(const node& n, std::span<const tensor> inputs,
                                                   std::span<const element_type> types) {
  constexpr std::size_t most_elements = std::size_t{1} << 40U;
  shape dims;
  for (const tensor& t : inputs) {
    if (!t.defined()) {
      return {};
    }
    if (t.rank() > dims.size()) {
      dims.insert(dims.begin(), t.rank() - dims.size(), 1);
    }
    const std::size_t first = dims.size() - t.rank();
    for (std::size_t d = 0; d < t.rank(); ++d) {
      dims[first + d] = (std::max)(dims[first + d], t.dim(d));
    }
  }
  const std::size_t like = n.is("Where") ? 1 : 0;
  if (like >= types.size() || !is_within(dims, most_elements)) {
    return {};
  }
  const bool compares = n.op_type == "Equal" || n.op_type[0] == 'G' || n.op_type[0] == 'L';
  return {compares ? element_type::boolean : types[like], dims};
}

/// Adds to `known` what can be inferred from it for the values of a graph; see infer_shapes(). `of`
/// is the model that the graph is or belongs to. `lenient`: errors of operators are swallowed and
/// leave the outputs of the node unknown, except where inputs do not fit together that are
/// broadcast. So does exceeding inference_limits(), in any case.
/// `unsupported`, if not null, gets the nodes whose operators refuse such inputs or attributes,
/// with their messages. `undecided`, if not null, has nodes of `g` with has_choice() for which a
/// run may choose another branch than the known values do: the condition of such an If counts as
/// unknown, and nothing is known of what a node makes that has an If in its sub-graphs. `scope`:
/// that of the graph around, if the graph is a sub-graph.
inline void infer_values_within(inference_scope& scope, const graph_body& g, const model& of,
                                std::map<std::string, tensor>& known, bool lenient,
                                const operator_registry& registry,
                                std::map<const node*, std::string>* unsupported = nullptr,
                                const std::set<const node*>* undecided = nullptr) {
  constexpr std::size_t small = most_inferred_elements;
  executor_options limits = inference_limits();
  if (lenient) {  // open dimensions may have made-up sizes, which no run has
    limits.max_tensor_bytes = static_cast<std::size_t>(-1);
  }
  run_resources resources(limits, scope.pool);
  executor_options options_of_bodies = inference_limits();
  options_of_bodies.max_tensor_bytes = small * 8;
  const auto in_bodies = std::make_shared<run_resources>(options_of_bodies, scope.pool);
  in_bodies->inference = &scope;
  for (const node& n : g.nodes) {
    const operator_definition* definition = registry.find(n.domain, n.op_type);
    if (definition == nullptr || scope.functions.function_of(n) != nullptr) {
      continue;
    }
    const bool with_bodies = has_bodies(n);
    const bool is_undecided = undecided != nullptr && undecided->count(&n) != 0;
    if (is_undecided && has_choice_within(n)) {
      continue;
    }
    node_inputs inputs;
    bool missing = false;
    bool all_data = !is_undecided;
    const auto look_up = [&](const std::string& name) {
      const auto found = known.find(name);
      const tensor t = name.empty() || found == known.end() ? tensor() : found->second;
      missing = missing || (!name.empty() && found == known.end());
      all_data = all_data && (name.empty() || t.has_data()) && t.count() <= small;
      // No shape depends on so many elements but those of NonZero and its like, which would compute
      // their results here.
      return t.count() <= small ? t : t.form();
    };
    for (const std::string& name : n.inputs) {
      inputs.add(look_up(name));
    }
    std::unique_ptr<subgraph_runner> subgraphs;
    if (with_bodies) {
      subgraphs = std::make_unique<subgraph_runner>(of, n, in_bodies, registry);
      for (std::size_t i = 0; i < subgraphs->captured().size(); ++i) {
        subgraphs->set_captured(i, look_up(subgraphs->captured()[i]), true);
      }
      if (n.is("If") && n.inputs.size() == 1 && (is_undecided || !inputs.values[0].defined())) {
        // With an unknown condition infer() compares the branches, whatever the condition is.
        inputs.set(0, tensor(element_type::boolean, {}));
      }
    }
    if (missing && !(n.is("If") || n.is("Loop") || n.is("Scan"))) {
      continue;
    }
    const inferred_node work(scope, resources);
    inferred_node work_in_bodies(scope, *in_bodies);
    std::unique_ptr<operator_state> state;
    const auto apply = [&](bool shapes_only) {
      return detail::apply(n, *definition, opset_of(of, n), inputs, {}, state, resources,
                           shapes_only, subgraphs.get());
    };
    try {
      std::vector<tensor> outputs = apply(true);
      const std::string refusal = resources.refusal;
      if (unsupported != nullptr && !refusal.empty()) {
        unsupported->emplace(&n, refusal);
      }
      all_data = all_data && refusal.empty();
      std::size_t size = 0;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        size += outputs[i].count();
        all_data = all_data && (outputs[i].defined() || !with_bodies);
      }
      if (all_data && size <= small && with_bodies) {
        try {
          if (is_brief(n)) {
            work_in_bodies.renew();
            outputs = apply(false);
          }
        } catch (const error&) {
          // The body cannot be computed yet. If something is wrong with it, a run will tell.
          static_cast<void>(resources.forget_refusal());
        }
      } else if (all_data && size <= small) {
        outputs = apply(false);
      } else if (n.is("Shape") && !n.inputs.empty()) {
        // run() needs an input with data, but Shape looks only at the dimensions.
        inputs.values[0].set_storage(allocate_from_heap(1));
        outputs = apply(false);
      }
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i].defined() && !n.outputs[i].empty()) {
          known[n.outputs[i]] = to_plain(outputs[i]);
        }
      }
    } catch (const value_unknown&) {
      continue;
    } catch (const error& e) {
      if (!resources.forget_refusal() && !lenient) {
        throw;
      }
      if (lenient && e.kind() != error_kind::unsupported && is_broadcasting(n) &&
          !n.outputs.empty() && !n.outputs[0].empty()) {
        tensor any = broadcast_of_any_sizes(n, inputs.values, inputs.types());
        if (any.defined()) {
          known[n.outputs[0]] = std::move(any);
        }
      }
      if (unsupported != nullptr && e.kind() == error_kind::unsupported) {
        unsupported->emplace(&n, message_of(e));
      }
    }
  }
}

/// infer_values_within() of a graph that is no sub-graph.
inline void infer_values(const graph_body& g, const model& of, std::map<std::string, tensor>& known,
                         bool lenient, const operator_registry& registry,
                         std::map<const node*, std::string>* unsupported = nullptr,
                         const std::set<const node*>* undecided = nullptr) {
  inference_scope scope(of);
  infer_values_within(scope, g, of, known, lenient, registry, unsupported, undecided);
}

}  // namespace detail

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_VALUE_INFERENCE_HPP
