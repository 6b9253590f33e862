// SPDX-License-Identifier: BSD-3-Clause
// The folder graph/run/ runs models: the executor, the registry of operators, shape inference, and
// what these need to apply one node. It may include itself, graph/ops/, graph/model/ and the
// numeric part.
//
// This file holds the executor, which runs a model again and again: float models on the float
// kernels, and models that graph/rewrite/lower.hpp has turned into integer operators on the integer
// kernels.
#ifndef DETENT_GRAPH_RUN_EXECUTOR_HPP
#define DETENT_GRAPH_RUN_EXECUTOR_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/apply_node.hpp>
#include <detent/graph/run/executor_options.hpp>
#include <detent/graph/run/packed_constants.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/run_resources.hpp>
#include <detent/graph/run/subgraph_runner.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>
#include <detent/graph/run/value_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Runs a model as often as wanted. Weights are packed at the first run, and memory of intermediate
/// values is kept for later runs. Sub-graphs run as models of their own, on executors that are made
/// when first needed.
///
/// It runs the nodes that the model has. for_execution() (rewrite/lower.hpp) prepares a model:
/// layers take over the activations behind them, and QuantizeLinear and DequantizeLinear nodes
/// become operators on integers, without which a quantized model runs in float.
///
/// One executor does one run at a time; different executors may run on different threads. The
/// registry must outlive the executor.
///
/// @code{.cpp}
/// #include <cstdio>
/// #include <span>
/// #include <vector>
///
/// #include <detent/graph/onnx.hpp>
/// #include <detent/graph/rewrite/lower.hpp>
/// #include <detent/graph/run/executor.hpp>
///
/// int main() {
///   namespace graph = detent::graph;
///   graph::executor network(graph::for_execution(graph::read_onnx("network.onnx")));
///   const std::vector<float> pixels(3 * 224 * 224);
///   const graph::tensor image = graph::tensor::of(graph::element_type::f32, {1, 3, 224, 224},
///                                                 std::span<const float>(pixels));
///   const std::vector<graph::tensor> outputs = network.run({{"image", image}});
///   for (const float score : outputs[0].data<float>()) {
///     std::printf("%g\n", static_cast<double>(score));
///   }
/// }
/// @endcode
class executor {
 public:
  /// A function that run() calls with the name and the elements of each input and of each value
  /// that a node computes, in the order of the nodes. The elements may be in channels-last order;
  /// to_plain() undoes that. Constants, and values within sub-graphs (which a run may compute many
  /// times or never), are not shown.
  using value_observer = std::function<void(const std::string& name, const tensor& value)>;

  /// Prepares a model, which must have its nodes in topological order as read_onnx() and
  /// sort_and_check() leave them. `registry` holds the operators and must outlive the executor.
  ///
  /// Throws unsupported as require_supported() if a node has no operator or the opset is too new;
  /// bad_file if nothing makes a graph output; invalid_argument for options that do not exist.
  explicit executor(model m, executor_options options = {},
                    const operator_registry& registry = default_operators())
      : executor(std::move(m), std::make_shared<detail::run_resources>(std::move(options), true),
                 true, registry) {}

  /// Prepares another executor of the model of `of`, with options of its own: both may run at the
  /// same time on different threads. What one of them has packed from constants in its first run is
  /// shared by all that begin to run later, not made again; sub-graphs are an exception. Executors
  /// that begin at the same time pack each for itself, and share one result afterwards. Executors
  /// with another winograd_tile share nothing. `of` may run during the call, and end before the new
  /// executor.
  DETENT_GRAPH_DECL executor(const executor& of, executor_options options);

  /// Not copyable: a copy would have to say how it runs, as the constructor above does.
  executor(const executor&) = delete;
  /// Not assignable, as it is not copyable.
  executor& operator=(const executor&) = delete;

  /// The model that this executor runs.
  [[nodiscard]] const model& graph_model() const noexcept { return model_; }
  /// The bytes that count against executor_options::max_memory_bytes now: outputs in use, buffers
  /// that are kept for the values of later runs and, during a run, its values and working memory.
  /// Buffers that none of the last four runs has used are released when a run begins.
  [[nodiscard]] std::size_t memory_in_use() const noexcept { return resources_->pool.bytes(); }

  /// Runs the model once. `inputs` holds a tensor for each input of the model by name, with
  /// elements in the order of its dimensions; `observer` may be empty. Returns the outputs in the
  /// order in which the model lists them, with elements in the order of their dimensions. They stay
  /// valid after later runs and after the executor is gone.
  ///
  /// Throws invalid_argument if an input is missing, unknown to the model, without elements, or of
  /// another type than declared; shape_mismatch if it has another shape than declared (an open
  /// dimension takes any size); and what the operators throw, with the node's name, for a node in a
  /// sub-graph after those of the nodes around it. The executor may be used again after an
  /// exception. Not thread-safe.
  [[nodiscard]] DETENT_GRAPH_DECL std::vector<tensor> run(
      const std::map<std::string, tensor>& inputs, const value_observer& observer = {});

 private:
  friend class detail::subgraph_runner;

  static constexpr std::size_t no_slot = static_cast<std::size_t>(-1);

  /// One node and what it needs from run to run. A slot is an index into slots_.
  struct step {
    const node* current = nullptr;
    const operator_definition* definition = nullptr;
    std::int64_t opset = 0;
    std::vector<std::size_t> inputs;
    std::unique_ptr<bool[]> constant;
    std::unique_ptr<bool[]> last_use;  // of each input: nothing behind it needs the value; an input
                                       // that is there twice has its last use at the last place
    detail::node_inputs arguments;  // constant ones are kept between runs, in the order of elements
                                    // and the type that the operator took
    std::vector<std::size_t> outputs;
    std::vector<std::size_t> last_use_of;
    std::unique_ptr<operator_state> state;
    detail::inferred_forms inferred;
    std::unique_ptr<detail::subgraph_runner> subgraphs;
    std::vector<std::size_t> captured;  // slots of the values that the sub-graphs capture
  };

  /// Calls f(i, constant inputs, state, inputs) for each step i.
  template <class F>
  void for_each_state(const F& f) {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      step& s = steps_[i];
      f(i, std::span<const bool>(s.constant.get(), s.inputs.size()), s.state,
        std::span<tensor>(s.arguments.values));
    }
  }

  /// `is_outermost`: the executor is not that of a sub-graph, so its runs begin with no work done.
  DETENT_GRAPH_DECL executor(model m, std::shared_ptr<detail::run_resources> resources,
                             bool is_outermost, const operator_registry& registry);

  /// Hands the values that the sub-graphs of a step capture to them.
  void capture_values(step& s, const allocator& allocate) {
    for (std::size_t i = 0; i < s.captured.size(); ++i) {
      if (!constant_[s.captured[i]]) {
        const tensor& value = slots_[s.captured[i]];
        require(value.has_data(), error_kind::bad_file, shown(*s.current), " uses '",
                s.subgraphs->captured()[i], "' in a sub-graph, and nothing has made it");
        s.subgraphs->set_captured(i, to_plain(value, allocate));
      }
    }
  }

  /// Throws invalid_argument, naming it, if a name is none of the model's inputs.
  void require_known_inputs(const std::map<std::string, tensor>& inputs) const {
    // The names of inputs differ from each other, so that in most cases counting is enough.
    const auto is_given = [&](const value_info& v) { return inputs.count(v.name) != 0; };
    const auto given = std::count_if(model_.inputs.begin(), model_.inputs.end(), is_given);
    if (static_cast<std::size_t>(given) == inputs.size()) {
      return;
    }
    std::set<std::string> known;
    for (const value_info& v : model_.inputs) {
      known.insert(v.name);
    }
    for (const auto& [name, t] : inputs) {
      require(known.count(name) != 0, error_kind::invalid_argument, "the model has no input '",
              name, "'");
    }
  }

  static void check_input(const value_info& v, const tensor& t) {
    require(t.defined() && (v.type == element_type::undefined || t.type() == v.type),
            error_kind::invalid_argument, "input '", v.name, "' is ", shown(v.type), ", given is ",
            shown(t.type()));
    require(t.has_data(), error_kind::invalid_argument, "input '", v.name,
            "' has a shape, but no elements");
    if (!v.has_shape) {
      return;
    }
    bool same = v.dims.size() == t.rank();
    for (std::size_t i = 0; same && i < v.dims.size(); ++i) {
      same = v.dims[i] < 0 || v.dims[i] == t.dim(i);
    }
    require(same, error_kind::shape_mismatch, "input '", v.name, "' has shape ", shown(v.dims),
            " (-1: any), given is ", shown(t.dims()));
  }

  void clear_value(std::size_t value) {
    if (!constant_[value]) {
      slots_[value] = tensor();
    }
  }

  void clear_values() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      clear_value(i);
    }
    for (step& s : steps_) {
      for (std::size_t i = 0; i < s.inputs.size(); ++i) {
        if (!s.constant[i]) {
          s.arguments.set(i, tensor());
        }
      }
      if (s.subgraphs) {
        s.subgraphs->clear_captured();
      }
    }
  }

  model model_;
  std::shared_ptr<detail::run_resources> resources_;  // shared with the executors of sub-graphs
  const operator_registry* registry_;
  bool is_outermost_;
  std::vector<tensor> slots_;
  std::vector<bool> constant_;
  std::vector<std::size_t> input_slots_, output_slots_;  // in the order of the model's lists
  std::vector<step> steps_;
  std::shared_ptr<detail::packed_constants> packed_;  // shared with executors of the same model
  bool has_run_ = false;                              // to the end, so that all is packed
  bool has_values_ = false;  // slots hold values of a run that is going on or has thrown
};

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL executor::executor(model m, std::shared_ptr<detail::run_resources> resources,
                                     bool is_outermost, const operator_registry& registry)
    : model_(std::move(m)),
      resources_(std::move(resources)),
      registry_(&registry),
      is_outermost_(is_outermost) {
  const std::size_t tile = resources_->options.winograd_tile;
  require(tile == 0 || tile == 2 || tile == 4, error_kind::invalid_argument,
          "executor: winograd_tile is ", tile, ", not 0, 2 or 4");
  require_supported(model_, registry);
  detail::name_table<std::size_t> index(model_.initializers.size() + model_.inputs.size() +
                                        model_.nodes.size());
  for (const auto& [name, t] : model_.initializers) {
    slots_.push_back(t);
    constant_.push_back(true);
    index.add(name, slots_.size() - 1);
  }
  const std::size_t first_value = slots_.size();
  const auto slot = [&](const std::string& name) {
    if (name.empty()) {
      return no_slot;
    }
    const auto [found, added] = index.add(name, slots_.size());
    if (added) {
      slots_.emplace_back();
      constant_.push_back(false);
    }
    return *found;
  };
  for (const value_info& v : model_.inputs) {
    input_slots_.push_back(slot(v.name));
  }
  std::vector<std::size_t> last_use;  // by slot: the index in steps_, or no_slot
  const auto use = [&](std::size_t value) {
    if (value != no_slot) {
      last_use.resize((std::max)(last_use.size(), slots_.size()), no_slot);
      last_use[value] = steps_.size();
    }
  };
  for (const node& n : model_.nodes) {
    step s;
    s.current = &n;
    s.definition = registry.find(n.domain, n.op_type);
    s.opset = detail::opset_of(model_, n);
    for (const std::string& name : n.inputs) {
      s.inputs.push_back(slot(name));
      use(s.inputs.back());
    }
    for (const std::string& name : n.outputs) {
      s.outputs.push_back(slot(name));
      use(s.outputs.back());
    }
    s.constant = std::make_unique<bool[]>(s.inputs.size());
    s.last_use = std::make_unique<bool[]>(s.inputs.size());
    for (std::size_t i = 0; i < s.inputs.size(); ++i) {
      s.constant[i] = s.inputs[i] != no_slot && constant_[s.inputs[i]];
      s.arguments.add(s.constant[i] ? slots_[s.inputs[i]] : tensor());
    }
    if (has_bodies(n)) {
      s.subgraphs = std::make_unique<detail::subgraph_runner>(model_, n, resources_, registry);
      for (std::size_t i = 0; i < s.subgraphs->captured().size(); ++i) {
        const std::size_t from = slot(s.subgraphs->captured()[i]);
        if (constant_[from]) {
          s.subgraphs->set_captured(i, slots_[from], true);
        }
        s.captured.push_back(from);
        use(from);
      }
    }
    steps_.push_back(std::move(s));
  }
  for (const value_info& v : model_.outputs) {
    const std::size_t* const found = index.find(v.name);
    require(found != nullptr, error_kind::bad_file, "graph output '", v.name,
            "' is made by nothing");
    if (*found < last_use.size()) {
      last_use[*found] = no_slot;
    }
    output_slots_.push_back(*found);
  }
  for (std::size_t value = first_value; value < last_use.size(); ++value) {
    if (last_use[value] != no_slot) {
      step& s = steps_[last_use[value]];
      s.last_use_of.push_back(value);
      const auto last = std::find(s.inputs.rbegin(), s.inputs.rend(), value);
      if (last != s.inputs.rend()) {  // not only captured by a sub-graph, and not an output
        s.last_use[static_cast<std::size_t>(s.inputs.rend() - last) - 1] = true;
      }
    }
  }
  if (is_outermost_) {
    packed_ = std::make_shared<detail::packed_constants>(steps_.size());
  }
}

DETENT_GRAPH_DECL executor::executor(const executor& of, executor_options options)
    : executor(of.model_, std::make_shared<detail::run_resources>(std::move(options), true), true,
               *of.registry_) {
  if (resources_->options.winograd_tile == of.resources_->options.winograd_tile) {
    packed_ = of.packed_;
  }
}

DETENT_GRAPH_DECL std::vector<tensor> executor::run(const std::map<std::string, tensor>& inputs,
                                                    const value_observer& observer) {
  if (has_values_) {  // the last run threw and left its values
    clear_values();
  }
  has_values_ = true;
  require_known_inputs(inputs);
  for (std::size_t i = 0; i < input_slots_.size(); ++i) {
    const value_info& v = model_.inputs[i];
    const auto found = inputs.find(v.name);
    require(found != inputs.end(), error_kind::invalid_argument, "input '", v.name, "' is missing");
    check_input(v, found->second);
    slots_[input_slots_[i]] = found->second;
    if (observer) {
      observer(v.name, found->second);
    }
  }
  const allocator& allocate = resources_->allocate;
  if (is_outermost_) {
    resources_->pool.begin_run();
    resources_->work.iterations = 0;
    resources_->work.multiply_adds = 0;
    if (!has_run_) {
      for_each_state([&](std::size_t i, auto constant, auto& state, auto values) {
        packed_->take(i, constant, state, values);
      });
    }
  }
  for (step& s : steps_) {
    capture_values(s, allocate);
    for (std::size_t i = 0; i < s.inputs.size(); ++i) {
      if (s.inputs[i] != no_slot && !s.constant[i]) {
        // Nothing else holds a value at its last use, so that the operator may write over it.
        tensor& value = slots_[s.inputs[i]];
        s.arguments.set(i, s.last_use[i] ? std::exchange(value, tensor()) : value);
      }
    }
    std::vector<tensor> results =
        detail::apply(*s.current, *s.definition, s.opset, s.arguments,
                      {s.constant.get(), s.inputs.size()}, s.state, *resources_, false,
                      s.subgraphs.get(), &s.inferred, {s.last_use.get(), s.inputs.size()});
    if (s.subgraphs) {
      s.subgraphs->clear_captured();
    }
    for (std::size_t i = 0; i < s.inputs.size(); ++i) {
      if (s.inputs[i] == no_slot || s.constant[i]) {
        continue;
      }
      // If the operator's input was reordered, later users of the value take the reordered form.
      // (If it was converted to another type, they take the original.)
      tensor& taken = s.arguments.values[i];
      if (!s.last_use[i] && taken.type() == slots_[s.inputs[i]].type()) {
        slots_[s.inputs[i]] = std::move(taken);
      }
      taken = tensor();
    }
    for (std::size_t i = 0; i < s.outputs.size(); ++i) {
      if (s.outputs[i] != no_slot) {
        if (!results[i].has_data()) {
          raise(error_kind::unsupported,
                s.current->label() + ": output " + std::to_string(i) + " is not computed");
        }
        if (observer) {
          observer(s.current->outputs[i], results[i]);
        }
        slots_[s.outputs[i]] = std::move(results[i]);
      }
    }
    for (const std::size_t value : s.last_use_of) {
      slots_[value] = tensor();
    }
    for (tensor& t : results) {  // those that no slot takes
      t = tensor();
    }
    s.inferred.spare = std::move(results);
  }
  std::vector<tensor> outputs;
  outputs.reserve(output_slots_.size());
  for (const std::size_t value : output_slots_) {
    outputs.push_back(to_plain(slots_[value], allocate));
  }
  // All other values were released after their last use.
  for (const std::vector<std::size_t>* values : {&input_slots_, &output_slots_}) {
    for (const std::size_t value : *values) {
      clear_value(value);
    }
  }
  has_values_ = false;
  if (is_outermost_ && !has_run_) {
    for_each_state([&](std::size_t i, auto constant, auto& state, auto values) {
      packed_->exchange(i, constant, state, values);
    });
    has_run_ = true;
  }
  return outputs;
}

namespace detail {

DETENT_GRAPH_DECL subgraph_runner::subgraph_runner(const model& of, const node& n,
                                                   std::shared_ptr<run_resources> resources,
                                                   const operator_registry& registry)
    : model_(of), node_(n), resources_(std::move(resources)), registry_(registry) {
  const std::set<std::string> captured = captured_values(n);
  names_.assign(captured.begin(), captured.end());
  values_.resize(names_.size());
  constant_.resize(names_.size(), false);
}

DETENT_GRAPH_DECL subgraph_runner::~subgraph_runner() = default;

DETENT_GRAPH_DECL std::unique_ptr<executor> subgraph_runner::make_executor(
    const graph_body& body) const {
  model m;
  static_cast<graph_body&>(m) = body;
  m.ir_version = model_.ir_version;
  m.opsets = model_.opsets;
  for (value_info& v : m.inputs) {
    v.has_shape = false;  // a value that a loop carries may change its shape, whatever is declared
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
  return std::unique_ptr<executor>(new executor(std::move(m), resources_, false, registry_));
}

DETENT_GRAPH_DECL std::vector<tensor> subgraph_runner::run(std::string_view attribute,
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
    if (wanted[k].name == names_[i]) {  // captured values come in the order of names in both lists
      given.emplace(names_[i], values_[i]);
      ++k;
    }
  }
  return found->second->run(given);
}

DETENT_GRAPH_DECL std::vector<tensor> subgraph_runner::infer(std::string_view attribute,
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
      known.erase(out);  // a captured value that this name of the sub-graph hides
    }
  }
  // Lenient: a branch may never be taken and a loop's body never run, so that what would be an
  // error in them is not one before a run gets there.
  if (resources_->inference != nullptr) {
    infer_values_within(*resources_->inference, g, model_, known, true, registry_);
  } else {  // in a run, where no node calls a function, and whose limit holds for this work, too
    inference_scope scope;
    run_work& work = resources_->work;
    scope.max_multiply_adds =
        (std::min)(scope.max_multiply_adds, work.max_multiply_adds - work.multiply_adds);
    infer_values_within(scope, g, model_, known, true, registry_);
    work.multiply_adds += scope.work.multiply_adds;
  }
  std::vector<tensor> outputs;
  for (const value_info& v : g.outputs) {
    const auto found = known.find(v.name);
    outputs.push_back(found == known.end() ? tensor() : found->second);
  }
  return outputs;
}

}  // namespace detail
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_EXECUTOR_HPP
