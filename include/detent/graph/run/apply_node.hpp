// SPDX-License-Identifier: BSD-3-Clause
// Applies the operator of one node: converts the inputs to the types and orders of elements that
// the operator takes, checks the declared results, and adds the node's name to errors.
#ifndef DETENT_GRAPH_RUN_APPLY_NODE_HPP
#define DETENT_GRAPH_RUN_APPLY_NODE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/executor_options.hpp>
#include <detent/graph/run/run_resources.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Whether a node gets its float16 and bfloat16 inputs as they are. Otherwise they are converted to
/// float, and each float result is rounded back. The operators listed here deal with the types
/// themselves; so do nodes with sub-graphs, whose inner nodes are converted one by one.
[[nodiscard]] inline bool takes_half(const node& n) {
  static constexpr std::string_view types_themselves[] = {"Cast",           "CastLike",
                                                          "Identity",       "Reshape",
                                                          "Flatten",        "Transpose",
                                                          "Concat",         "Split",
                                                          "Slice",          "Squeeze",
                                                          "Unsqueeze",      "Gather",
                                                          "Expand",         "Shape",
                                                          "Size",           "ConstantOfShape",
                                                          "Constant",       "Tile",
                                                          "SpaceToDepth",   "DepthToSpace",
                                                          "QuantizeLinear", "DequantizeLinear",
                                                          "EyeLike",        "BitCast",
                                                          "Trilu",          "CenterCropPad",
                                                          "ReverseSequence"};
  return has_bodies(n) || std::find(std::begin(types_themselves), std::end(types_themselves),
                                    n.op_type) != std::end(types_themselves);
}

/// What a node's infer() declared in an earlier run, kept so that infer() need not be called again.
/// Used only for operators with operator_definition::infers_from_forms.
struct inferred_forms {
  std::vector<tensor> inputs, outputs;
  std::vector<tensor> spare;  // where apply() may put the results: it saves making a vector

  /// True if the inputs have the forms for which the outputs were declared.
  [[nodiscard]] bool hold_for(std::span<const tensor> given) const noexcept {
    return std::equal(given.begin(), given.end(), inputs.begin(), inputs.end(),
                      [](const tensor& a, const tensor& b) { return a.has_form_of(b); });
  }
};

/// Checks the numbers of inputs and outputs, calls the operator's infer() and checks the sizes that
/// it declared. `channels_last`: whether any input is in channels-last order.
inline void infer_outputs(const operator_definition& definition, const executor_options& options,
                          bool channels_last, operator_context& c) {
  require_arity(c.n(), definition);
  for (std::size_t i = 0; i < definition.min_inputs; ++i) {
    static_cast<void>(c.input(i));
  }
  c.outputs.resize(c.n().outputs.size());
  definition.infer(c);
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    c.require(c.outputs[i].rank() <= max_tensor_rank, "output '", c.n().outputs[i], "' has rank ",
              c.outputs[i].rank(), ", the limit is ", max_tensor_rank);
    c.require(c.outputs[i].bytes() <= options.max_tensor_bytes, "output '", c.n().outputs[i],
              "' of shape ", shown(c.outputs[i].dims()), " has ", c.outputs[i].bytes(),
              " bytes, the limit is ", options.max_tensor_bytes);
    if (channels_last && definition.layout == layout_support::elementwise) {
      c.outputs[i].set_channels_last(true);
    }
  }
}

/// The inputs of a node. apply() replaces tensors by converted ones, but not their types in the
/// model, on which those of the results depend.
class node_inputs {
 public:
  /// Appends an input; an absent one is an empty tensor.
  void add(tensor t) {
    types_.push_back(t.type());
    values.push_back(std::move(t));
  }
  /// Replaces input i.
  void set(std::size_t i, tensor t) {
    types_[i] = t.type();
    values[i] = std::move(t);
  }
  /// The types of the inputs as they were added and set.
  [[nodiscard]] std::span<const element_type> types() const noexcept { return types_; }

  std::vector<tensor> values;

 private:
  std::vector<element_type> types_;
};

/// Converts inputs of 16-bit floats to float.
inline void widen_inputs(std::vector<tensor>& inputs, const allocator& allocate) {
  for (tensor& t : inputs) {
    if (is_half(t.type())) {
      t = half_to_float(t, allocate);
    }
  }
}

/// The type of float output i of a node whose inputs have these types: ONNX ties it to the type of
/// one of them, as a rule the first one of floats. Undefined if there is none.
[[nodiscard]] inline element_type float_output_type(const node& n, std::size_t i,
                                                    std::span<const element_type> given) {
  const auto type_of_input = [&](std::size_t at) {
    return at < given.size() ? given[at] : element_type::undefined;
  };
  if (n.is("LayerNormalization") && i > 0) {
    return element_type::undefined;  // the operator stores these in the type of stash_type itself
  }
  if (n.is("BatchNormalization") && i > 0) {
    return type_of_input(i + 2);  // running means and variances
  }
  if (n.is("RMSNormalization")) {
    return type_of_input(1);  // the scale
  }
  if (n.is("OneHot") || (n.is("Attention") && i == 2)) {
    return type_of_input(2);  // `values` of OneHot; V of Attention, which present_value continues
  }
  const auto first = std::find_if(given.begin(), given.end(), [](element_type t) {
    return t == element_type::f32 || t == element_type::f64 || t == element_type::f16 ||
           t == element_type::bf16;
  });
  return first == given.end() ? element_type::undefined : *first;
}

/// Reorders inputs in channels-last order if the operator does not take them as they are. Returns
/// whether any input is in that order then.
inline bool order_inputs(const operator_definition& definition, std::vector<tensor>& inputs,
                         const allocator& allocate) {
  const shape* common = nullptr;
  for (const tensor& t : inputs) {
    common = t.channels_last() ? &t.dims() : common;
  }
  if (common == nullptr || definition.layout == layout_support::any) {
    return common != nullptr;
  }
  const bool same = definition.layout == layout_support::elementwise &&
                    std::all_of(inputs.begin(), inputs.end(), [&](const tensor& t) {
                      // A single element fits every order, but must not add dimensions to the
                      // output.
                      return !t.defined() || (t.count() == 1 && t.rank() <= common->size()) ||
                             (t.channels_last() && t.dims() == *common);
                    });
  if (!same) {
    for (tensor& t : inputs) {
      t = to_plain(t, allocate);
    }
  }
  return same;
}

/// True if all outputs that a node asks for are known to be empty, so that there is nothing to
/// compute. Operators may loop over the other dimensions, of which an empty tensor of a few bytes
/// can have 2^64.
[[nodiscard]] inline bool makes_nothing(const operator_context& c) {
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    if (c.has_output(i) && (!c.outputs[i].defined() || c.outputs[i].count() > 0)) {
      return false;
    }
  }
  return !has_bodies(c.n());
}

/// Drops the state of a node where the run of its operator ends, also by an error, if the state was
/// made from inputs that are not constant.
class state_of_one_run {
 public:
  explicit state_of_one_run(std::unique_ptr<operator_state>& state) noexcept : state_(state) {}
  state_of_one_run(const state_of_one_run&) = delete;
  state_of_one_run& operator=(const state_of_one_run&) = delete;
  ~state_of_one_run() {
    if (state_ != nullptr && state_->for_one_run) {
      state_.reset();
    }
  }

 private:
  std::unique_ptr<operator_state>& state_;
};

/// The body of apply(), which adds the node's name to its errors.
inline std::vector<tensor> apply_unnamed(const operator_definition& definition, node_inputs& given,
                                         run_resources& resources, inferred_forms* known,
                                         operator_context& c) {
  std::vector<tensor>& inputs = given.values;
  const bool widens =
      std::any_of(given.types().begin(), given.types().end(), is_half) && !takes_half(c.n());
  if (widens) {
    widen_inputs(inputs, resources.allocate);
  }
  const bool channels_last = order_inputs(definition, inputs, resources.allocate);
  c.inputs = inputs;
  if (known != nullptr && !known->outputs.empty() && known->hold_for(inputs)) {
    c.outputs = std::move(known->spare);
    c.outputs = known->outputs;
  } else {
    infer_outputs(definition, resources.options, channels_last, c);
    if (known != nullptr && definition.infers_from_forms) {
      known->inputs.clear();
      for (const tensor& t : inputs) {
        known->inputs.push_back(t.form());
      }
      known->outputs = c.outputs;
    }
  }
  if (!c.shapes_only) {
    for (const tensor& t : c.outputs) {
      c.count_multiply_adds({t.count()});
    }
    if (makes_nothing(c)) {
      for (std::size_t i = 0; i < c.outputs.size(); ++i) {
        if (c.has_output(i)) {
          c.make_output(i);
        }
      }
    } else {
      const state_of_one_run state(*c.state);
      definition.run(c);
    }
    for (tensor& t : c.outputs) {
      // Operators declare channels-last results also where both orders are the same. Such a
      // result counts as plain, so that nobody reorders it later.
      t.set_channels_last(t.channels_last() && !has_one_order(t.dims()));
    }
  }
  for (std::size_t i = 0; widens && i < c.outputs.size(); ++i) {
    const element_type type = float_output_type(c.n(), i, given.types());
    if (is_half(type) && c.outputs[i].type() == element_type::f32) {
      c.outputs[i] = float_to_half(c.outputs[i], type, resources.allocate);
    }
  }
  return std::move(c.outputs);
}

/// Calls the operator's infer() and, unless `shapes_only` or all outputs are empty, its run() for
/// one node, and returns the outputs. Inputs that had to be converted are replaced in
/// `inputs.values` by their converted forms, so that the caller can hand these to the next user of
/// the value, and apply() the node again. `known`, if not null, keeps what infer() declared and
/// saves the call when the forms of the inputs are the same again. `last_use`: see
/// operator_context; the elements of such inputs may be gone afterwards.
///
/// Errors of the operator keep their kind and get the node's label in front, unless they have it
/// already; running out of memory becomes bad_file. With `shapes_only`, value_unknown passes.
inline std::vector<tensor> apply(const node& n, const operator_definition& definition,
                                 std::int64_t opset, node_inputs& inputs,
                                 std::span<const bool> constant,
                                 std::unique_ptr<operator_state>& state, run_resources& resources,
                                 bool shapes_only, subgraph_caller* subgraphs = nullptr,
                                 inferred_forms* known = nullptr,
                                 std::span<const bool> last_use = {}) {
  operator_context c;
  c.current = &n;
  c.opset = opset;
  c.constant = constant;
  c.last_use = last_use;
  c.state = &state;
  c.parallel = &resources.options.parallel;
  c.allocate = resources.allocate;
  c.memory = resources.pool.scratch();
  c.counter = resources.pool.counter();
  c.subgraphs = subgraphs;
  c.shapes_only = shapes_only;
  resources.refusal.clear();
  c.refusal = shapes_only ? &resources.refusal : nullptr;
  c.max_tensor_bytes = resources.options.max_tensor_bytes;
  c.work = &resources.work;
  c.winograd_tile = resources.options.winograd_tile;
  try {
    return apply_unnamed(definition, inputs, resources, known, c);
  } catch (const error& e) {
    const std::string label = n.label();
    if (std::string_view(e.what()).find(label) != std::string_view::npos) {
      throw;
    }
    raise(e.kind(), label + ": " + message_of(e));
  } catch (const value_unknown&) {
    if (shapes_only) {
      throw;
    }
    // In a run all tensors have elements but those of types that tensors do not hold.
    raise(error_kind::bad_file, n.label() + ": needs the elements of an input that has none");
  } catch (const std::bad_alloc&) {
    raise(error_kind::bad_file, n.label() + ": needs more memory than there is");
  } catch (const std::length_error&) {
    raise(error_kind::bad_file, n.label() + ": needs more memory than there is");
  }
}

/// The version of the operators of the node's domain that the model uses; 1 if it states none.
[[nodiscard]] inline std::int64_t opset_of(const model& m, const node& n) {
  const auto found = m.opsets.find(n.domain);
  return found == m.opsets.end() ? 1 : found->second;
}

}  // namespace detail

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_APPLY_NODE_HPP
