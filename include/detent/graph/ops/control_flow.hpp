// SPDX-License-Identifier: BSD-3-Clause
// If, Loop and Scan: operators that run their sub-graphs.
//
// The executor runs the sub-graphs and supplies what they capture (subgraph_caller). The operators
// here decide which sub-graph runs, how often, on which inputs, and what becomes of its outputs.
#ifndef DETENT_GRAPH_OPS_CONTROL_FLOW_HPP
#define DETENT_GRAPH_OPS_CONTROL_FLOW_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace control_flow {

/// The sub-graph of an attribute. Throws bad_file if the node has none of that name.
[[nodiscard]] inline const graph_body& body_of(const operator_context& c, std::string_view key) {
  const attribute* a = c.n().find(key);
  c.require(a != nullptr && a->kind == attribute::kind_type::g && a->g != nullptr, "attribute ",
            key, " is not a sub-graph");
  c.require(c.subgraphs != nullptr, "nothing here runs sub-graphs");
  return *a->g;
}

/// The value of a condition. ONNX allows a tensor of one element in place of a scalar.
[[nodiscard]] inline bool condition_of(const operator_context& c, const tensor& t,
                                       std::string_view what) {
  c.require(t.type() == element_type::boolean && t.count() == 1, what, " is ",
            graph::name(t.type()), " ", shown(t.dims()), ", expected one bool");
  return t.data<std::uint8_t>()[0] != 0;
}

/// Type and shape of a tensor without its elements. While shapes are inferred, values that
/// iterations change must not pass for known ones.
[[nodiscard]] inline tensor without_data(const tensor& t) {
  return t.defined() ? tensor(t.type(), t.dims()) : tensor();
}

// ---------------------------------------------------------------------------------------------- If

/// Checks that both branches of an If take no inputs and make the outputs of the node, with types
/// that agree as far as they are declared.
inline void check_branches(const operator_context& c) {
  const graph_body& yes = body_of(c, "then_branch");
  const graph_body& no = body_of(c, "else_branch");
  for (const auto& [key, branch] :
       {std::pair("then_branch", &yes), std::pair("else_branch", &no)}) {
    c.require(branch->inputs.empty(), key, " has ", branch->inputs.size(),
              " inputs, expected none");
    c.require(branch->outputs.size() == c.n().outputs.size(), key, " has ", branch->outputs.size(),
              " outputs, expected ", c.n().outputs.size());
  }
  for (std::size_t i = 0; i < yes.outputs.size(); ++i) {
    const element_type a = yes.outputs[i].type;
    const element_type b = no.outputs[i].type;
    c.require(a == b || a == element_type::undefined || b == element_type::undefined, "output ", i,
              " is ", graph::name(a), " in then_branch, ", graph::name(b), " in else_branch");
  }
}

inline void infer_if(operator_context& c) {
  check_branches(c);
  if (!c.shapes_only) {
    return;
  }
  const tensor& condition = c.input(0);
  if (condition.has_data()) {
    const bool taken = condition_of(c, condition, "the condition");
    c.outputs = c.subgraphs->infer(taken ? "then_branch" : "else_branch", {});
    return;
  }
  const std::vector<tensor> yes = c.subgraphs->infer("then_branch", {});
  const std::vector<tensor> no = c.subgraphs->infer("else_branch", {});
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    if (yes[i].type() == no[i].type() && yes[i].dims() == no[i].dims()) {
      c.outputs[i] = without_data(yes[i]);
    }
  }
}

inline void run_if(operator_context& c) {
  const bool taken = condition_of(c, c.input(0), "the condition");
  c.outputs = c.subgraphs->run(taken ? "then_branch" : "else_branch", {});
}

// ---------------------------------------------------------------------------------- Loop and Scan

/// The inputs and outputs of the body of an operator that repeats it.
struct repetition {
  const graph_body* body = nullptr;
  std::size_t carried = 0;        // number of values that an iteration gets from the one before
  std::size_t first_carried = 0;  // position of the first of them among the body's inputs
  std::size_t first_output = 0;   // position of the first of them among the body's outputs
  std::size_t scanned = 0;        // number of outputs that are stacked from all iterations
};

/// An output of the node that stacks the results of all iterations along a new axis.
class scan_output {
 public:
  explicit scan_output(const operator_context& c) : parts_(c.memory) {}

  /// Appends the result of an iteration for output i of the node.
  void add(const operator_context& c, std::size_t i, const tensor& t) {
    c.require(parts_.empty() || (t.type() == parts_[0].type() && t.dims() == parts_[0].dims()),
              "output ", i, " is ", graph::name(t.type()), " ", shown(t.dims()), " in iteration ",
              parts_.size(), ", before it was ",
              parts_.empty() ? std::string()
                             : graph::name(parts_[0].type()) + " " + to_string(parts_[0].dims()));
    bytes_ += t.bytes();
    c.require(bytes_ <= c.max_tensor_bytes, "output '", c.n().outputs[i], "' has more than ",
              c.max_tensor_bytes, " bytes, the limit");
    parts_.push_back(t);
  }

  /// Makes output i of the node from the results that were added, stacked along `axis`.
  /// `backwards`: the last result comes first. `like`: if no result was added, the type and shape
  /// that one would have had.
  void finish(operator_context& c, std::size_t i, const tensor& like, std::int64_t axis,
              bool backwards) {
    const tensor& one = parts_.empty() ? like : parts_[0];
    const std::size_t at = c.axis(axis, one.rank() + 1);
    shape dims = one.dims();
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(at),
                static_cast<std::int64_t>(parts_.size()));
    std::size_t outer = 1;
    for (std::size_t d = 0; d < at; ++d) {
      outer *= static_cast<std::size_t>(one.dim(d));
    }
    c.outputs[i] = tensor(one.type(), std::move(dims));
    std::byte* to = c.make_output(i).mutable_raw();
    const std::size_t piece = outer == 0 ? 0 : one.bytes() / outer;
    for (std::size_t k = 0; k < parts_.size() && piece > 0; ++k) {
      const std::size_t place = backwards ? parts_.size() - 1 - k : k;
      for (std::size_t o = 0; o < outer; ++o) {
        std::memcpy(to + (o * parts_.size() + place) * piece, parts_[k].raw() + o * piece, piece);
      }
    }
  }

 private:
  std::pmr::vector<tensor> parts_;
  std::size_t bytes_ = 0;
};

/// The types and shapes that the outputs of a body that are stacked would have if there were an
/// iteration: those that are declared, otherwise those that are inferred from the inputs. Open
/// dimensions count as 0.
[[nodiscard]] inline std::vector<tensor> unmade_outputs(const operator_context& c,
                                                        const repetition& r,
                                                        std::span<const tensor> arguments) {
  std::vector<tensor> inferred;
  std::vector<tensor> all;
  for (std::size_t k = r.first_output + r.carried; k < r.body->outputs.size(); ++k) {
    const value_info& declared = r.body->outputs[k];
    element_type type = declared.type;
    shape dims = declared.dims;
    if (type == element_type::undefined || !declared.has_shape) {
      if (inferred.empty()) {
        inferred = c.subgraphs->infer("body", arguments);
      }
      type = type == element_type::undefined ? inferred[k].type() : type;
      dims = declared.has_shape ? dims : inferred[k].dims();
    }
    c.require(type != element_type::undefined, "makes no iteration, and the type of '",
              declared.name, "' is not declared");
    std::replace_if(
        dims.begin(), dims.end(), [](std::int64_t d) { return d < 0; }, 0);
    all.emplace_back(type, std::move(dims));
  }
  return all;
}

/// One scan_output for each output of the node that is stacked.
[[nodiscard]] inline std::vector<scan_output> scan_outputs(const operator_context& c,
                                                           const repetition& r) {
  std::vector<scan_output> all;
  for (std::size_t k = 0; k < r.scanned; ++k) {
    all.emplace_back(c);
  }
  return all;
}

/// Moves the carried values from the results of an iteration to the inputs of the next one. An
/// iteration must not change their types.
inline void carry(const operator_context& c, const repetition& r, std::size_t iteration,
                  std::vector<tensor>& results, std::vector<tensor>& arguments) {
  for (std::size_t i = 0; i < r.carried; ++i) {
    tensor& before = arguments[r.first_carried + i];
    tensor& now = results[r.first_output + i];
    c.require(now.type() == before.type(), "'", r.body->outputs[r.first_output + i].name, "' is ",
              graph::name(now.type()), " after iteration ", iteration, ", before it was ",
              graph::name(before.type()));
    before = std::move(now);
  }
}

/// Declares the outputs for carried values if an iteration leaves all their types and shapes as
/// they are, because every other iteration then does so too. Otherwise nothing is declared.
inline void infer_carried(operator_context& c, const repetition& r,
                          const std::vector<tensor>& arguments) {
  const std::vector<tensor> results = c.subgraphs->infer("body", arguments);
  for (std::size_t i = 0; i < r.carried; ++i) {
    const tensor& before = arguments[r.first_carried + i];
    const tensor& after = results[r.first_output + i];
    if (before.defined() && (after.type() != before.type() || after.dims() != before.dims())) {
      return;
    }
  }
  for (std::size_t i = 0; i < r.carried; ++i) {
    c.outputs[i] = arguments[r.first_carried + i];
  }
}

/// Checks the inputs and outputs of a Loop and its body.
[[nodiscard]] inline repetition loop_form(const operator_context& c) {
  repetition r;
  r.body = &body_of(c, "body");
  c.require(c.input_count() >= 2, c.input_count(), " inputs, expected 2 or more");
  r.carried = c.input_count() - 2;
  r.first_carried = 2;
  r.first_output = 1;
  const std::size_t outputs = c.n().outputs.size();
  c.require(r.body->inputs.size() == 2 + r.carried, "its body has ", r.body->inputs.size(),
            " inputs, expected ", 2 + r.carried);
  c.require(r.body->outputs.size() == 1 + outputs, "its body has ", r.body->outputs.size(),
            " outputs, expected ", 1 + outputs);
  c.require(outputs >= r.carried, outputs, " outputs for ", r.carried, " carried values");
  r.scanned = outputs - r.carried;
  return r;
}

/// Whether the condition that a loop's body makes is certain to stay true: it is the condition that
/// the body got, or a constant that is true.
[[nodiscard]] inline bool keeps_condition(const graph_body& body) {
  std::string name = body.outputs[0].name;
  for (std::size_t i = body.nodes.size(); i-- > 0;) {
    const node& n = body.nodes[i];
    if (std::find(n.outputs.begin(), n.outputs.end(), name) == n.outputs.end()) {
      continue;
    }
    const attribute* value = n.is("Constant") ? n.find("value") : nullptr;
    if (value != nullptr) {
      const tensor& t = value->t;
      return t.type() == element_type::boolean && t.has_data() && t.count() == 1 &&
             t.data<std::uint8_t>()[0] != 0;
    }
    if (!n.is("Identity") || n.inputs.empty()) {
      return false;
    }
    name = n.inputs[0];
  }
  const tensor* t = body.initializer(name);
  return name == body.inputs[1].name ||
         (t != nullptr && t->type() == element_type::boolean && t->has_data() && t->count() == 1 &&
          t->data<std::uint8_t>()[0] != 0);
}

inline void infer_loop(operator_context& c) {
  const repetition r = loop_form(c);
  if (!c.shapes_only) {
    return;
  }
  std::vector<tensor> arguments{tensor(element_type::s64, {}), tensor(element_type::boolean, {})};
  for (std::size_t i = 0; i < r.carried; ++i) {
    arguments.push_back(without_data(c.inputs[2 + i]));
  }
  infer_carried(c, r, arguments);
}

template <class T>
[[nodiscard]] tensor scalar(element_type type, T value) {
  return tensor::of<T>(type, {}, std::span<const T>(&value, 1));
}

inline void run_loop(operator_context& c) {
  const repetition r = loop_form(c);
  const bool is_counted = c.has_input(0);
  std::int64_t trips = (std::numeric_limits<std::int64_t>::max)();
  if (is_counted) {
    c.require(c.input(0).type() == element_type::s64 && c.input(0).count() == 1,
              "the trip count is ", graph::name(c.input(0).type()), " ", shown(c.input(0).dims()),
              ", expected one int64");
    trips = c.input(0).data<std::int64_t>()[0];
  }
  bool goes_on = !c.has_input(1) || condition_of(c, c.input(1), "the condition");
  c.require(is_counted || !goes_on || !keeps_condition(*r.body),
            "would never end: it has no trip count, and its condition stays true");
  std::vector<tensor> arguments{scalar<std::int64_t>(element_type::s64, 0),
                                scalar<std::uint8_t>(element_type::boolean, goes_on ? 1 : 0)};
  for (std::size_t i = 0; i < r.carried; ++i) {
    arguments.push_back(c.input(2 + i));
  }
  std::vector<scan_output> scans = scan_outputs(c, r);
  std::size_t iteration = 0;
  for (; goes_on && static_cast<std::int64_t>(iteration) < trips; ++iteration) {
    c.count_iteration();
    arguments[0] = scalar<std::int64_t>(element_type::s64, static_cast<std::int64_t>(iteration));
    std::vector<tensor> results = c.subgraphs->run("body", arguments);
    goes_on = condition_of(c, results[0], "the condition that its body makes");
    arguments[1] = results[0];
    for (std::size_t k = 0; k < r.scanned; ++k) {
      scans[k].add(c, r.carried + k, results[1 + r.carried + k]);
    }
    carry(c, r, iteration, results, arguments);
  }
  const std::vector<tensor> unmade =
      iteration == 0 ? unmade_outputs(c, r, arguments) : std::vector<tensor>(r.scanned);
  for (std::size_t k = 0; k < r.scanned; ++k) {
    scans[k].finish(c, r.carried + k, unmade[k], 0, false);
  }
  for (std::size_t i = 0; i < r.carried; ++i) {
    c.outputs[i] = std::move(arguments[2 + i]);
  }
}

// -------------------------------------------------------------------------------------------- Scan

/// Checks the inputs and outputs of a Scan and its body.
[[nodiscard]] inline repetition scan_form(const operator_context& c) {
  c.require_supported(c.opset >= 9, "Scan of opset ", c.opset, ", which has a batch axis");
  repetition r;
  r.body = &body_of(c, "body");
  const std::int64_t sequences = c.n().get_int("num_scan_inputs", 0);
  c.require(sequences >= 1 && static_cast<std::uint64_t>(sequences) <= c.input_count(),
            "num_scan_inputs ", sequences, " of ", c.input_count(), " inputs");
  r.carried = c.input_count() - static_cast<std::size_t>(sequences);
  const std::size_t outputs = c.n().outputs.size();
  c.require(r.body->inputs.size() == c.input_count(), "its body has ", r.body->inputs.size(),
            " inputs, expected ", c.input_count());
  c.require(r.body->outputs.size() == outputs, "its body has ", r.body->outputs.size(),
            " outputs, expected ", outputs);
  c.require(outputs >= r.carried, outputs, " outputs for ", r.carried, " states");
  r.scanned = outputs - r.carried;
  return r;
}

/// Entry i of a list attribute, which must have `count` entries; 0 if the attribute is absent.
[[nodiscard]] inline std::int64_t entry(const operator_context& c, std::string_view key,
                                        std::size_t i, std::size_t count) {
  const std::vector<std::int64_t> all = c.n().get_ints(key);
  c.require(all.empty() || all.size() == count, key, " has ", all.size(), " entries, expected ",
            count);
  return all.empty() ? 0 : all[i];
}

/// Entry i of a list attribute of directions: false for 0 (forwards), true for 1 (backwards).
[[nodiscard]] inline bool is_backwards(const operator_context& c, std::string_view key,
                                       std::size_t i, std::size_t count) {
  const std::int64_t direction = entry(c, key, i, count);
  c.require(direction == 0 || direction == 1, key, " has ", direction, ", expected 0 or 1");
  return direction == 1;
}

/// The axis along which Scan cuts its sequence k into parts, in [0, rank).
[[nodiscard]] inline std::size_t sequence_axis(const operator_context& c, const repetition& r,
                                               std::size_t k) {
  const tensor& t = c.input(r.carried + k);
  return c.axis(entry(c, "scan_input_axes", k, c.input_count() - r.carried), t.rank());
}

[[nodiscard]] inline shape without_axis(shape dims, std::size_t axis) {
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
  return dims;
}

/// A copy of the part of a tensor at index `place` of an axis; the part does not have that axis.
[[nodiscard]] inline tensor part_of(const operator_context& c, const tensor& t, std::size_t axis,
                                    std::size_t place) {
  tensor part(t.type(), without_axis(t.dims(), axis));
  part.set_storage(c.allocate(part.bytes()));
  std::size_t outer = 1;
  for (std::size_t d = 0; d < axis; ++d) {
    outer *= static_cast<std::size_t>(t.dim(d));
  }
  const std::size_t piece = outer == 0 ? 0 : part.bytes() / outer;
  const auto length = static_cast<std::size_t>(t.dim(axis));
  for (std::size_t o = 0; o < outer && piece > 0; ++o) {
    std::memcpy(part.mutable_raw() + o * piece, t.raw() + (o * length + place) * piece, piece);
  }
  return part;
}

inline void infer_scan(operator_context& c) {
  const repetition r = scan_form(c);
  if (!c.shapes_only) {
    return;
  }
  std::vector<tensor> arguments;
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    const tensor& t = c.inputs[i];
    if (i < r.carried || !t.defined()) {
      arguments.push_back(without_data(t));
    } else {
      arguments.emplace_back(t.type(), without_axis(t.dims(), sequence_axis(c, r, i - r.carried)));
    }
  }
  infer_carried(c, r, arguments);
}

inline void run_scan(operator_context& c) {
  const repetition r = scan_form(c);
  const std::size_t sequences = c.input_count() - r.carried;
  std::vector<tensor> arguments;
  for (std::size_t i = 0; i < r.carried; ++i) {
    arguments.push_back(c.input(i));
  }
  std::vector<std::size_t> axes;
  std::vector<bool> backwards;
  for (std::size_t k = 0; k < sequences; ++k) {
    axes.push_back(sequence_axis(c, r, k));
    backwards.push_back(is_backwards(c, "scan_input_directions", k, sequences));
    const tensor& t = c.input(r.carried + k);
    const std::int64_t length = c.input(r.carried).dim(axes[0]);
    c.require(t.dim(axes[k]) == length, "sequence ", k, " has ", t.dim(axes[k]),
              " parts, the first one ", length);
    arguments.emplace_back(t.type(), without_axis(t.dims(), axes[k]));
  }
  const auto length = static_cast<std::size_t>(c.input(r.carried).dim(axes[0]));
  std::vector<scan_output> scans = scan_outputs(c, r);
  for (std::size_t iteration = 0; iteration < length; ++iteration) {
    c.count_iteration();
    for (std::size_t k = 0; k < sequences; ++k) {
      const std::size_t place = backwards[k] ? length - 1 - iteration : iteration;
      arguments[r.carried + k] = part_of(c, c.input(r.carried + k), axes[k], place);
    }
    std::vector<tensor> results = c.subgraphs->run("body", arguments);
    for (std::size_t k = 0; k < r.scanned; ++k) {
      scans[k].add(c, r.carried + k, results[r.carried + k]);
    }
    carry(c, r, iteration, results, arguments);
  }
  const std::vector<tensor> unmade =
      length == 0 ? unmade_outputs(c, r, arguments) : std::vector<tensor>(r.scanned);
  for (std::size_t k = 0; k < r.scanned; ++k) {
    scans[k].finish(c, r.carried + k, unmade[k], entry(c, "scan_output_axes", k, r.scanned),
                    is_backwards(c, "scan_output_directions", k, r.scanned));
  }
  for (std::size_t i = 0; i < r.carried; ++i) {
    c.outputs[i] = std::move(arguments[i]);
  }
}

}  // namespace control_flow

/// If, Loop and Scan (opset 9 and later) of ONNX.
///
/// The trip count of a Loop, its condition, or both may be absent. As in ONNX Runtime, and unlike
/// ONNX's text, the condition that the body makes counts even if the node has none. Scan outputs of
/// a loop that makes no iteration have the declared shape, with 0 for open dimensions.
///
/// They throw bad_file, naming the node, for sub-graphs that are missing or have another number of
/// inputs or outputs than the node asks for, branches whose outputs are declared with different
/// types, conditions and trip counts that are not one bool and one int64, carried values that
/// change their type, scan outputs that change type or shape, a Loop that would never end, loops
/// of more than executor_options::max_iterations iterations, and outputs beyond
/// max_tensor_bytes. They throw unsupported for Scan of opset 8.
inline constexpr operator_definition control_flow_operators[] = {
    {"", "If", 1, 1, layout_support::plain, control_flow::infer_if, control_flow::run_if},
    {"", "Loop", 0, any_number, layout_support::plain, control_flow::infer_loop,
     control_flow::run_loop},
    {"", "Scan", 0, any_number, layout_support::plain, control_flow::infer_scan,
     control_flow::run_scan},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_CONTROL_FLOW_HPP
