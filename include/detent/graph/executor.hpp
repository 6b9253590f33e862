// SPDX-License-Identifier: BSD-3-Clause
// Runs models: float ones on the float kernels, quantized ones (after graph/lower.hpp) on the
// integer kernels.
#ifndef DETENT_GRAPH_EXECUTOR_HPP
#define DETENT_GRAPH_EXECUTOR_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/error_context.hpp>
#include <detent/graph/ir.hpp>
#include <detent/graph/layout.hpp>
#include <detent/graph/operator.hpp>
#include <detent/graph/registry.hpp>
#include <detent/graph/tensor.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

struct executor_options {
  /// Who runs the parallel parts of large operators; default: the calling thread.
  parallel_for parallel = {};
  /// A node that would make a larger output is an error: files are not trusted.
  std::size_t max_tensor_bytes = std::size_t{2} << 30U;
  /// A Loop that goes on for longer is an error: files are not trusted.
  std::size_t max_iterations = std::size_t{1} << 24U;
};

namespace detail {

/// Keeps freed buffers for the next tensor of about the same size. Thread-safe; buffers may outlive
/// it.
class buffer_pool {
 public:
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    const std::size_t size = (bytes + 64) / 64 * 64;
    std::unique_ptr<std::byte[]> buffer;
    std::size_t capacity = size;
    {
      const std::lock_guard lock(state_->mutex);
      const auto found = state_->free.lower_bound(size);
      if (found != state_->free.end() && found->first <= 2 * size) {
        capacity = found->first;
        buffer = std::move(found->second);
        state_->free.erase(found);
      }
    }
    if (!buffer) {
      buffer.reset(new std::byte[size]);
    }
    std::byte* raw = buffer.release();
    return {raw, [state = state_, capacity](std::byte* p) {
              std::unique_ptr<std::byte[]> returned(p);
              const std::lock_guard lock(state->mutex);
              state->free.emplace(capacity, std::move(returned));
            }};
  }

 private:
  struct shared_state {
    std::mutex mutex;
    std::multimap<std::size_t, std::unique_ptr<std::byte[]>> free;
  };
  std::shared_ptr<shared_state> state_ = std::make_shared<shared_state>();
};

[[nodiscard]] inline bool is_half(const tensor& t) noexcept {
  return t.type() == element_type::f16 || t.type() == element_type::bf16;
}

[[nodiscard]] inline tensor half_to_float(const tensor& t) {
  tensor out(element_type::f32, t.dims());
  out.set_channels_last(t.channels_last());
  if (!t.has_data()) {
    return out;
  }
  out.set_storage(allocate_from_heap(out.bytes()));
  const auto bits = t.data<std::uint16_t>();
  auto values = out.mutable_data<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        t.type() == element_type::f16 ? to_float(float16{bits[i]}) : to_float(bfloat16{bits[i]});
  }
  return out;
}

[[nodiscard]] inline tensor float_to_half(const tensor& t, element_type type) {
  tensor out(type, t.dims());
  out.set_channels_last(t.channels_last());
  if (!t.has_data()) {
    return out;
  }
  out.set_storage(allocate_from_heap(out.bytes()));
  const auto values = t.data<float>();
  auto bits = out.mutable_data<std::uint16_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    bits[i] = type == element_type::f16 ? round_to<float16>(values[i]).bits
                                        : round_to<bfloat16>(values[i]).bits;
  }
  return out;
}

/// float16 models are computed in float, node by node, each result rounded back; the operators
/// listed here look at the types themselves, and so do the nodes of sub-graphs.
[[nodiscard]] inline bool takes_half(const node& n) {
  static constexpr std::string_view types_themselves[] = {
      "Cast",         "CastLike",     "Identity",       "Reshape",         "Flatten",   "Transpose",
      "Concat",       "Split",        "Slice",          "Squeeze",         "Unsqueeze", "Gather",
      "Expand",       "Shape",        "Size",           "ConstantOfShape", "Constant",  "Tile",
      "SpaceToDepth", "DepthToSpace", "QuantizeLinear", "DequantizeLinear"};
  return has_bodies(n) || std::find(std::begin(types_themselves), std::end(types_themselves),
                                    n.op_type) != std::end(types_themselves);
}

/// Runs infer() and, unless `shapes_only`, run() of one node. `inputs` may be replaced by their
/// converted forms, so that the next user finds them in the order it needs.
inline std::vector<tensor> apply(const node& n, const operator_definition& definition,
                                 std::int64_t opset, std::vector<tensor>& inputs,
                                 std::span<const bool> constant,
                                 std::unique_ptr<operator_state>& state,
                                 const executor_options& options, const allocator& allocate,
                                 bool shapes_only, subgraph_caller* subgraphs = nullptr) {
  element_type narrow = element_type::undefined;
  if (!takes_half(n)) {
    for (tensor& t : inputs) {
      if (is_half(t)) {
        narrow = t.type();
        t = half_to_float(t);
      }
    }
  }
  bool channels_last = false;
  for (const tensor& t : inputs) {
    channels_last = channels_last || t.channels_last();
  }
  if (channels_last && definition.layout != layout_support::any) {
    const shape* common = nullptr;
    bool same = definition.layout == layout_support::elementwise;
    for (const tensor& t : inputs) {
      if (t.channels_last()) {
        common = &t.dims();
      }
    }
    for (const tensor& t : inputs) {
      // Single elements have every order, but must not add dimensions to the output.
      same = same && (!t.defined() || (t.count() == 1 && t.rank() <= common->size()) ||
                      (t.channels_last() && t.dims() == *common));
    }
    if (!same) {
      channels_last = false;
      for (tensor& t : inputs) {
        t = to_plain(t, allocate);
      }
    }
  }
  operator_context c;
  c.current = &n;
  c.opset = opset;
  c.inputs = inputs;
  c.constant = constant;
  c.outputs.resize(n.outputs.size());
  c.state = &state;
  c.parallel = &options.parallel;
  c.allocate = allocate;
  c.subgraphs = subgraphs;
  c.shapes_only = shapes_only;
  c.max_tensor_bytes = options.max_tensor_bytes;
  c.max_iterations = options.max_iterations;
  c.require(inputs.size() >= definition.min_inputs && inputs.size() <= definition.max_inputs,
            inputs.size(), " inputs, expected ", definition.min_inputs,
            definition.max_inputs == definition.min_inputs ? "" : " or more");
  for (std::size_t i = 0; i < definition.min_inputs; ++i) {
    static_cast<void>(c.input(i));
  }
  try {
    definition.infer(c);
    for (std::size_t i = 0; i < c.outputs.size(); ++i) {
      c.require(c.outputs[i].bytes() <= options.max_tensor_bytes, "output '", n.outputs[i],
                "' of shape ", shown(c.outputs[i].dims()), " has ", c.outputs[i].bytes(),
                " bytes, the limit is ", options.max_tensor_bytes);
      if (channels_last && definition.layout == layout_support::elementwise) {
        c.outputs[i].set_channels_last(true);
      }
    }
    if (!shapes_only) {
      std::vector<bool> flags;
      for (const tensor& t : c.outputs) {
        flags.push_back(t.channels_last());
      }
      definition.run(c);
      for (std::size_t i = 0; i < c.outputs.size(); ++i) {
        // Sharing an input's elements must not lose their order.
        c.outputs[i].set_channels_last(flags[i] && !has_one_order(c.outputs[i].dims()));
      }
    }
  } catch (const error& e) {
    const std::string label = n.label();
    if (std::string_view(e.what()).find(label) != std::string_view::npos) {
      throw;
    }
    raise(e.kind(), label + ": " + message_of(e));
  } catch (const std::bad_alloc&) {
    raise(error_kind::bad_file, n.label() + ": needs more memory than there is");
  } catch (const std::length_error&) {
    raise(error_kind::bad_file, n.label() + ": needs more memory than there is");
  }
  if (narrow != element_type::undefined) {
    for (tensor& t : c.outputs) {
      if (t.type() == element_type::f32) {
        t = float_to_half(t, narrow);
      }
    }
  }
  return std::move(c.outputs);
}

[[nodiscard]] inline std::int64_t opset_of(const model& m, const node& n) {
  const auto found = m.opsets.find(n.domain);
  return found == m.opsets.end() ? 1 : found->second;
}

}  // namespace detail

namespace detail {
/// `place`: where the graph is, for messages.
inline void find_unsupported(const graph_body& g, const std::string& place,
                             const operator_registry& registry, std::vector<std::string>& all) {
  for (const node& n : g.nodes) {
    if (registry.find(n.domain, n.op_type) == nullptr) {
      all.push_back(n.label() + place);
    }
    for_each_body(n, [&](const std::string& key, const graph_body& body) {
      find_unsupported(body, " in " + key + " of " + n.label() + place, registry, all);
    });
  }
}
}  // namespace detail

/// The nodes that have no operator here, described one by one, those of sub-graphs as well. Empty
/// if the model can be run.
[[nodiscard]] inline std::vector<std::string> unsupported_nodes(
    const model& m, const operator_registry& registry = default_operators()) {
  std::vector<std::string> all;
  detail::find_unsupported(m, std::string(), registry, all);
  return all;
}

/// Throws unsupported, naming the first node that has no operator here and how many more there are.
inline void require_supported(const model& m,
                              const operator_registry& registry = default_operators()) {
  const std::vector<std::string> nodes = unsupported_nodes(m, registry);
  if (!nodes.empty()) {
    detail::raise(error_kind::unsupported,
                  "unsupported operator: " + nodes[0] +
                      (nodes.size() > 1 ? " and " + std::to_string(nodes.size() - 1) + " more nodes"
                                        : std::string()));
  }
}

class executor;

namespace detail {

/// Runs the sub-graphs of one node of a model, each on an executor of its own that is made when it
/// is first needed. The model and the registry must stay.
class subgraph_runner final : public subgraph_caller {
 public:
  subgraph_runner(const model& of, const node& n, executor_options options,
                  const operator_registry& registry);
  ~subgraph_runner() override;

  [[nodiscard]] const std::vector<std::string>& captured() const noexcept { return names_; }
  /// What captured()[i] is. `constant`: in every run; to be said before the first one.
  void set_captured(std::size_t i, tensor value, bool constant = false) {
    values_[i] = std::move(value);
    constant_[i] = constant;
  }
  /// Frees what is not constant.
  void clear_captured() {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!constant_[i]) {
        values_[i] = tensor();
      }
    }
  }

  [[nodiscard]] std::vector<tensor> run(std::string_view attribute,
                                        std::span<const tensor> inputs) override;
  [[nodiscard]] std::vector<tensor> infer(std::string_view attribute,
                                          std::span<const tensor> inputs) override;

 private:
  [[nodiscard]] const graph_body& body(std::string_view attribute) const {
    const graph::attribute* found = node_.find(attribute);
    require(found != nullptr && found->g != nullptr, error_kind::bad_file, "attribute ", attribute,
            " is not a sub-graph");
    return *found->g;
  }
  [[nodiscard]] std::unique_ptr<executor> make_executor(const graph_body& body) const;

  const model& model_;
  const node& node_;
  executor_options options_;
  const operator_registry& registry_;
  std::vector<std::string> names_;
  std::vector<tensor> values_;
  std::vector<bool> constant_;
  std::map<std::string, std::unique_ptr<executor>, std::less<>> executors_;  // by attribute
};

/// Whether a node may be computed before a run, if all that it uses is constant. Loops may take
/// long, and make much of little.
[[nodiscard]] inline bool is_brief(const node& n) {
  bool brief = true;
  for_each_body(n, [&](const std::string&, const graph_body& body) {
    brief = brief && n.is("If") && std::all_of(body.nodes.begin(), body.nodes.end(), is_brief);
  });
  return brief;
}

/// Adds to `known` what follows from it; see infer_shapes(). `of` is the model that the graph is or
/// belongs to. `lenient`: what would be an error leaves values unknown.
inline void infer_values(const graph_body& g, const model& of, std::map<std::string, tensor>& known,
                         bool lenient, const operator_registry& registry) {
  constexpr std::size_t small = 4096;  // shape arithmetic is executed, anything larger is not
  const executor_options options;
  executor_options in_bodies;
  in_bodies.max_tensor_bytes = small * 8;
  for (const node& n : g.nodes) {
    const operator_definition* definition = registry.find(n.domain, n.op_type);
    if (definition == nullptr) {
      continue;
    }
    const bool with_bodies = has_bodies(n);
    std::vector<tensor> inputs;
    bool missing = false;
    bool all_data = true;
    const auto look_up = [&](const std::string& name) {
      const auto found = known.find(name);
      const tensor t = name.empty() || found == known.end() ? tensor() : found->second;
      missing = missing || (!name.empty() && found == known.end());
      all_data = all_data && (name.empty() || t.has_data()) && t.count() <= small;
      return t;
    };
    for (const std::string& name : n.inputs) {
      inputs.push_back(look_up(name));
    }
    std::unique_ptr<subgraph_runner> subgraphs;
    if (with_bodies) {
      subgraphs = std::make_unique<subgraph_runner>(of, n, in_bodies, registry);
      for (std::size_t i = 0; i < subgraphs->captured().size(); ++i) {
        subgraphs->set_captured(i, look_up(subgraphs->captured()[i]), true);
      }
      if (n.is("If") && inputs.size() == 1 && !inputs[0].defined()) {
        inputs[0] = tensor(element_type::boolean, {});  // whatever it is, both branches are there
      }
    }
    if (missing && !(n.is("If") || n.is("Loop") || n.is("Scan"))) {
      continue;
    }
    std::unique_ptr<operator_state> state;
    const auto apply = [&](bool shapes_only) {
      return detail::apply(n, *definition, opset_of(of, n), inputs, {}, state, options,
                           allocate_from_heap, shapes_only, subgraphs.get());
    };
    try {
      std::vector<tensor> outputs = apply(true);
      std::size_t size = 0;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        size += outputs[i].count();
        all_data = all_data && (outputs[i].defined() || !with_bodies);
      }
      if (all_data && size <= small && with_bodies) {
        try {
          if (is_brief(n)) {
            outputs = apply(false);
          }
        } catch (const error&) {
          // A body that is no shape arithmetic. If something is wrong with it, a run will tell.
        }
      } else if (all_data && size <= small) {
        outputs = apply(false);
      } else if (n.is("Shape") && !n.inputs.empty()) {
        inputs[0].set_storage(allocate_from_heap(1));  // only its shape is looked at
        outputs = apply(false);
      }
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i].defined() && !n.outputs[i].empty()) {
          known[n.outputs[i]] = to_plain(outputs[i]);
        }
      }
    } catch (const value_unknown&) {
      continue;
    } catch (const error&) {
      if (!lenient) {
        throw;
      }
    }
  }
}

}  // namespace detail

/// What is known of every value before a run: type and shape, and the elements where they do not
/// depend on the inputs. Values whose shape depends on the inputs' elements are missing. Those that
/// an If makes are known where its condition is, or where both branches agree; those that a Loop or
/// a Scan carries, where no iteration changes their shapes. Values of sub-graphs are not listed.
///
/// `input_dims` gives shapes for inputs that do not declare a fixed one; other open dimensions
/// count as 1.
[[nodiscard]] inline std::map<std::string, tensor> infer_shapes(
    const model& m, const std::map<std::string, shape>& input_dims = {},
    const operator_registry& registry = default_operators()) {
  std::map<std::string, tensor> known;
  for (const auto& [name, t] : m.initializers) {
    known[name] = t;
  }
  bool is_open = false;
  for (const value_info& v : m.inputs) {
    const auto given = input_dims.find(v.name);
    if (given == input_dims.end() && !v.has_shape) {
      continue;
    }
    shape dims = given != input_dims.end() ? given->second : v.dims;
    for (std::int64_t& d : dims) {
      is_open = is_open || d < 0;
      d = d < 0 ? 1 : d;
    }
    known[v.name] = tensor(v.type, dims);
  }
  // A model may not have sizes of 1 where it leaves them open: what comes of them is unknown.
  detail::infer_values(m, m, known, is_open, registry);
  return known;
}

/// Runs a model again and again. Construction names the first unsupported operator; weights are
/// packed at the first run. One run at a time for each executor. The registry must stay.
///
/// Sub-graphs run as models of their own, with what they capture among their inputs. Errors name
/// the node in the sub-graph behind those around it.
class executor {
 public:
  /// Called with each value that a run computes, in the order of the nodes. Elements may stand in
  /// channels-last order; to_plain() undoes that. Values of sub-graphs, which a run may compute
  /// many times or never, are not shown.
  using value_observer = std::function<void(const std::string& name, const tensor& value)>;

  explicit executor(model m, executor_options options = {},
                    const operator_registry& registry = default_operators())
      : model_(std::move(m)), options_(std::move(options)) {
    require_supported(model_, registry);
    for (const auto& [name, t] : model_.initializers) {
      slots_.push_back(t);
      constant_.push_back(true);
      index_[name] = slots_.size() - 1;
    }
    const std::size_t first_value = slots_.size();
    const auto slot = [&](const std::string& name) {
      if (name.empty()) {
        return no_slot;
      }
      const auto [found, added] = index_.emplace(name, slots_.size());
      if (added) {
        slots_.emplace_back();
        constant_.push_back(false);
      }
      return found->second;
    };
    for (const value_info& v : model_.inputs) {
      slot(v.name);
    }
    std::unordered_map<std::size_t, std::size_t> last_use;
    for (const node& n : model_.nodes) {
      step s;
      s.current = &n;
      s.definition = registry.find(n.domain, n.op_type);
      s.opset = detail::opset_of(model_, n);
      for (const std::string& name : n.inputs) {
        s.inputs.push_back(slot(name));
        last_use[s.inputs.back()] = steps_.size();
      }
      for (const std::string& name : n.outputs) {
        s.outputs.push_back(slot(name));
        last_use.emplace(s.outputs.back(), steps_.size());
      }
      s.constant = std::make_unique<bool[]>(s.inputs.size());
      for (std::size_t i = 0; i < s.inputs.size(); ++i) {
        s.constant[i] = s.inputs[i] != no_slot && constant_[s.inputs[i]];
        s.arguments.push_back(s.constant[i] ? slots_[s.inputs[i]] : tensor());
      }
      if (has_bodies(n)) {
        s.subgraphs = std::make_unique<detail::subgraph_runner>(model_, n, options_, registry);
        for (std::size_t i = 0; i < s.subgraphs->captured().size(); ++i) {
          const std::size_t from = slot(s.subgraphs->captured()[i]);
          if (constant_[from]) {
            s.subgraphs->set_captured(i, slots_[from], true);
          }
          s.captured.push_back(from);
          last_use[from] = steps_.size();
        }
      }
      steps_.push_back(std::move(s));
    }
    for (const value_info& v : model_.outputs) {
      const auto found = index_.find(v.name);
      detail::require(found != index_.end(), error_kind::bad_file, "graph output '", v.name,
                      "' is made by nothing");
      last_use.erase(found->second);
    }
    for (const auto& [value, i] : last_use) {
      if (value != no_slot && value >= first_value) {
        steps_[i].last_use_of.push_back(value);
      }
    }
  }

  executor(const executor&) = delete;
  executor& operator=(const executor&) = delete;

  [[nodiscard]] const model& graph_model() const noexcept { return model_; }

  /// Computes the outputs, in the order of the model. Throws if an input is missing, unknown, or of
  /// another type or shape than declared, and whatever the operators throw, naming the node.
  [[nodiscard]] std::vector<tensor> run(const std::map<std::string, tensor>& inputs,
                                        const value_observer& observer = {}) {
    clear_values();
    for (const auto& [name, t] : inputs) {
      bool known = false;
      for (const value_info& v : model_.inputs) {
        known = known || v.name == name;
      }
      detail::require(known, error_kind::invalid_argument, "the model has no input '", name, "'");
    }
    for (const value_info& v : model_.inputs) {
      const auto found = inputs.find(v.name);
      detail::require(found != inputs.end(), error_kind::invalid_argument, "input '", v.name,
                      "' is missing");
      check_input(v, found->second);
      slots_[index_.at(v.name)] = found->second;
      if (observer) {
        observer(v.name, found->second);
      }
    }
    const allocator allocate = [this](std::size_t bytes) { return pool_.allocate(bytes); };
    for (step& s : steps_) {
      for (std::size_t i = 0; i < s.inputs.size(); ++i) {
        if (s.inputs[i] != no_slot && !s.constant[i]) {
          s.arguments[i] = slots_[s.inputs[i]];
        }
      }
      capture_values(s, allocate);
      std::vector<tensor> results = detail::apply(*s.current, *s.definition, s.opset, s.arguments,
                                                  {s.constant.get(), s.inputs.size()}, s.state,
                                                  options_, allocate, false, s.subgraphs.get());
      if (s.subgraphs) {
        s.subgraphs->clear_captured();
      }
      for (std::size_t i = 0; i < s.inputs.size(); ++i) {
        if (s.inputs[i] == no_slot || s.constant[i]) {
          continue;
        }
        // Another order of the same elements serves later users too.
        if (s.arguments[i].type() == slots_[s.inputs[i]].type()) {
          slots_[s.inputs[i]] = s.arguments[i];
        }
        s.arguments[i] = tensor();
      }
      for (std::size_t i = 0; i < s.outputs.size(); ++i) {
        if (s.outputs[i] != no_slot) {
          detail::require(results[i].has_data(), error_kind::unsupported, s.current->label(),
                          ": output ", i, " is not computed");
          if (observer) {
            observer(s.current->outputs[i], results[i]);
          }
          slots_[s.outputs[i]] = std::move(results[i]);
        }
      }
      for (const std::size_t value : s.last_use_of) {
        slots_[value] = tensor();
      }
    }
    std::vector<tensor> outputs;
    for (const value_info& v : model_.outputs) {
      outputs.push_back(to_plain(slots_[index_.at(v.name)], allocate));
    }
    clear_values();
    return outputs;
  }

 private:
  static constexpr std::size_t no_slot = static_cast<std::size_t>(-1);

  struct step {
    const node* current = nullptr;
    const operator_definition* definition = nullptr;
    std::int64_t opset = 0;
    std::vector<std::size_t> inputs;
    std::unique_ptr<bool[]> constant;
    std::vector<tensor> arguments;  // constant ones stay, in the form that the operator took them
    std::vector<std::size_t> outputs;
    std::vector<std::size_t> last_use_of;
    std::unique_ptr<operator_state> state;
    std::unique_ptr<detail::subgraph_runner> subgraphs;
    std::vector<std::size_t> captured;  // the slots of what those capture
  };

  void capture_values(step& s, const allocator& allocate) {
    for (std::size_t i = 0; i < s.captured.size(); ++i) {
      if (!constant_[s.captured[i]]) {
        const tensor& value = slots_[s.captured[i]];
        detail::require(value.has_data(), error_kind::bad_file, s.current->label(), " uses '",
                        s.subgraphs->captured()[i], "' in a sub-graph, and nothing has made it");
        s.subgraphs->set_captured(i, to_plain(value, allocate));
      }
    }
  }

  static void check_input(const value_info& v, const tensor& t) {
    detail::require(t.has_data() && (v.type == element_type::undefined || t.type() == v.type),
                    error_kind::invalid_argument, "input '", v.name, "' is ", graph::name(v.type),
                    ", given is ", graph::name(t.type()));
    if (!v.has_shape) {
      return;
    }
    bool same = v.dims.size() == t.rank();
    for (std::size_t i = 0; same && i < v.dims.size(); ++i) {
      same = v.dims[i] < 0 || v.dims[i] == t.dim(i);
    }
    detail::require(same, error_kind::shape_mismatch, "input '", v.name, "' has shape ",
                    shown(v.dims), " (-1: any), given is ", shown(t.dims()));
  }

  /// Also after a run that threw.
  void clear_values() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!constant_[i]) {
        slots_[i] = tensor();
      }
    }
    for (step& s : steps_) {
      for (std::size_t i = 0; i < s.inputs.size(); ++i) {
        if (!s.constant[i]) {
          s.arguments[i] = tensor();
        }
      }
      if (s.subgraphs) {
        s.subgraphs->clear_captured();
      }
    }
  }

  model model_;
  executor_options options_;
  detail::buffer_pool pool_;
  std::vector<tensor> slots_;
  std::vector<bool> constant_;
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<step> steps_;
};

namespace detail {

inline subgraph_runner::subgraph_runner(const model& of, const node& n, executor_options options,
                                        const operator_registry& registry)
    : model_(of), node_(n), options_(std::move(options)), registry_(registry) {
  const std::set<std::string> captured = captured_values(n);
  names_.assign(captured.begin(), captured.end());
  values_.resize(names_.size());
  constant_.resize(names_.size(), false);
}

inline subgraph_runner::~subgraph_runner() = default;

inline std::unique_ptr<executor> subgraph_runner::make_executor(const graph_body& body) const {
  model m;
  static_cast<graph_body&>(m) = body;
  m.ir_version = model_.ir_version;
  m.opsets = model_.opsets;
  for (value_info& v : m.inputs) {
    v.has_shape = false;  // what a loop carries may change its shape, whatever is declared
    m.initializers.erase(v.name);
  }
  const std::set<std::string> captured = captured_values(body);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (captured.count(names_[i]) == 0) {
      continue;
    }
    if (constant_[i]) {
      m.initializers[names_[i]] = values_[i];
    } else {
      m.inputs.push_back({names_[i], element_type::undefined, false, {}, {}});
    }
  }
  return std::make_unique<executor>(std::move(m), options_, registry_);
}

inline std::vector<tensor> subgraph_runner::run(std::string_view attribute,
                                                std::span<const tensor> inputs) {
  const graph_body& g = body(attribute);
  auto found = executors_.find(attribute);
  if (found == executors_.end()) {
    found = executors_.emplace(attribute, make_executor(g)).first;
  }
  std::map<std::string, tensor> given;
  for (std::size_t i = 0; i < g.inputs.size(); ++i) {
    given.emplace(g.inputs[i].name, inputs[i]);
  }
  const std::vector<value_info>& wanted = found->second->graph_model().inputs;
  for (std::size_t i = 0, k = g.inputs.size(); i < names_.size() && k < wanted.size(); ++i) {
    if (wanted[k].name == names_[i]) {  // both are in the order of names
      given.emplace(names_[i], values_[i]);
      ++k;
    }
  }
  return found->second->run(given);
}

inline std::vector<tensor> subgraph_runner::infer(std::string_view attribute,
                                                  std::span<const tensor> inputs) {
  const graph_body& g = body(attribute);
  std::map<std::string, tensor> known;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (values_[i].defined()) {
      known[names_[i]] = values_[i];
    }
  }
  for (const auto& [name, t] : g.initializers) {
    known[name] = t;
  }
  for (std::size_t i = 0; i < g.inputs.size(); ++i) {
    known.erase(g.inputs[i].name);
    if (inputs[i].defined()) {
      known[g.inputs[i].name] = inputs[i];
    }
  }
  for (const node& n : g.nodes) {
    for (const std::string& out : n.outputs) {
      known.erase(out);  // of a graph around it
    }
  }
  // A branch may never be taken, and a loop's body never run: errors in them are none yet.
  infer_values(g, model_, known, true, registry_);
  std::vector<tensor> outputs;
  for (const value_info& v : g.outputs) {
    const auto found = known.find(v.name);
    outputs.push_back(found == known.end() ? tensor() : found->second);
  }
  return outputs;
}

}  // namespace detail

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_EXECUTOR_HPP
