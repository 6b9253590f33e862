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
/// listed here look at the types themselves.
[[nodiscard]] inline bool takes_half(const node& n) {
  static constexpr std::string_view types_themselves[] = {
      "Cast",         "CastLike",     "Identity",       "Reshape",         "Flatten",   "Transpose",
      "Concat",       "Split",        "Slice",          "Squeeze",         "Unsqueeze", "Gather",
      "Expand",       "Shape",        "Size",           "ConstantOfShape", "Constant",  "Tile",
      "SpaceToDepth", "DepthToSpace", "QuantizeLinear", "DequantizeLinear"};
  return std::find(std::begin(types_themselves), std::end(types_themselves), n.op_type) !=
         std::end(types_themselves);
}

/// Runs infer() and, unless `shapes_only`, run() of one node. `inputs` may be replaced by their
/// converted forms, so that the next user finds them in the order it needs.
inline std::vector<tensor> apply(const node& n, const operator_definition& definition,
                                 std::int64_t opset, std::vector<tensor>& inputs,
                                 std::span<const bool> constant,
                                 std::unique_ptr<operator_state>& state,
                                 const executor_options& options, const allocator& allocate,
                                 bool shapes_only) {
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

/// The nodes that have no operator here, described one by one. Empty if the model can be run.
[[nodiscard]] inline std::vector<std::string> unsupported_nodes(
    const model& m, const operator_registry& registry = default_operators()) {
  std::vector<std::string> all;
  for (const node& n : m.nodes) {
    if (registry.find(n.domain, n.op_type) == nullptr) {
      all.push_back(n.label());
    }
  }
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

/// What is known of every value before a run: type and shape, and the elements where they do not
/// depend on the inputs. Values whose shape depends on the inputs' elements are missing.
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
  constexpr std::size_t small = 4096;  // shape arithmetic is executed, anything larger is not
  const executor_options options;
  for (const node& n : m.nodes) {
    const operator_definition* definition = registry.find(n.domain, n.op_type);
    if (definition == nullptr) {
      continue;
    }
    std::vector<tensor> inputs;
    bool missing = false;
    bool all_data = true;
    for (const std::string& name : n.inputs) {
      const auto found = known.find(name);
      missing = missing || (!name.empty() && found == known.end());
      inputs.push_back(name.empty() || missing ? tensor() : found->second);
      all_data =
          all_data && (name.empty() || inputs.back().has_data()) && inputs.back().count() <= small;
    }
    if (missing) {
      continue;
    }
    std::unique_ptr<operator_state> state;
    const auto apply = [&](bool shapes_only) {
      return detail::apply(n, *definition, detail::opset_of(m, n), inputs, {}, state, options,
                           allocate_from_heap, shapes_only);
    };
    try {
      std::vector<tensor> outputs = apply(true);
      std::size_t size = 0;
      for (const tensor& t : outputs) {
        size += t.count();
      }
      if (all_data && size <= small) {
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
      // A model may not have sizes of 1 where it leaves them open: what comes of them is unknown.
      if (!is_open) {
        throw;
      }
    }
  }
  return known;
}

/// Runs a model again and again. Construction names the first unsupported operator; weights are
/// packed at the first run. One run at a time for each executor.
class executor {
 public:
  /// Called with each value that a run computes, in the order of the nodes. Elements may stand in
  /// channels-last order; to_plain() undoes that.
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
      std::vector<tensor> results =
          detail::apply(*s.current, *s.definition, s.opset, s.arguments,
                        {s.constant.get(), s.inputs.size()}, s.state, options_, allocate, false);
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
  };

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

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_EXECUTOR_HPP
