// SPDX-License-Identifier: BSD-3-Clause
// The folder graph/learn/ computes gradients of float models, for methods that train quantization
// parameters or weights, and trains float models: losses, schedules, samples with labels, steps and
// epochs. It may include itself, graph/run/, graph/ops/, graph/model/ and the numeric part.
//
// This file holds gradient_graph, which runs a float model forwards and backwards (reverse mode)
// and gives the gradients of a loss for inputs, constants, and the values computed between.
#ifndef DETENT_GRAPH_LEARN_GRADIENT_HPP
#define DETENT_GRAPH_LEARN_GRADIENT_HPP

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/gradient_memory.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/node_segments.hpp>
#include <detent/graph/learn/spare_vectors.hpp>
#include <detent/graph/learn/training_operators.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/buffer_pool.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Runs a small float model forwards and backwards. It keeps all values of the last forward run,
/// and its constants may change between runs. The operators are those of the executor, so that
/// forward values have the same bits.
///
/// Not thread-safe. Memory: all values of one run, or with use_segments() those between segments
/// and those of one segment; and the gradients that are on their way, in double.
///
/// @code{.cpp}
/// detent::graph::gradient_graph g(model);
/// g.forward({{"x", x}});
/// const auto gradients = g.backward({{"y", gradient_of_y}}, {"x", "weights"});
/// const std::vector<double>& gradient_of_weights = gradients.at("weights");
/// @endcode
class gradient_graph {
 public:
  /// Gradients by the name of a value: one number for each element of the value, in the row-major
  /// order of its dimensions.
  using gradient_map = std::map<std::string, std::vector<double>>;
  /// A function that forward() calls with the name and the elements of each input and then of each
  /// value that a node computes, in the order of the nodes, once for each.
  using value_observer = std::function<void(const std::string& name, const tensor& value)>;

  /// Takes a model with its nodes in topological order (sort_and_check()). `registry` holds the
  /// operators and must outlive the object; of `options`, only `parallel` and the limits are used.
  ///
  /// Throws unsupported as require_supported(). An operator without gradient is no error here; it
  /// is one in backward() if a gradient has to pass through it.
  explicit gradient_graph(model m, executor_options options = {},
                          const operator_registry& registry = training_operators())
      : model_(std::move(m)),
        options_(std::move(options)),
        registry_(&registry),
        buffers_(options_.max_memory_bytes, true),
        segments_(model_, 1) {
    require_supported(model_, registry);
  }

  /// The model, with the constants that set_constant() gave it.
  [[nodiscard]] const model& graph_model() const noexcept { return model_; }

  /// Gives a constant other elements, which the next forward() uses. Throws invalid_argument if the
  /// model has no such constant, shape_mismatch if `value` has no elements or another type or shape
  /// than the constant.
  void set_constant(const std::string& name, tensor value) {
    const auto found = model_.initializers.find(name);
    require(found != model_.initializers.end(), error_kind::invalid_argument,
            "gradient_graph: there is no constant '", name, "'");
    require(value.has_data() && value.type() == found->second.type() &&
                value.dims() == found->second.dims(),
            error_kind::shape_mismatch, "gradient_graph: constant '", name, "' is ",
            graph::name(found->second.type()), shown(found->second.dims()), ", given is ",
            graph::name(value.type()), shown(value.dims()));
    found->second = std::move(value);
  }

  /// Divides the nodes into segments, as node_segments does with these arguments. forward() then
  /// keeps only the values that node_segments keeps, and backward() computes the values of each
  /// segment again before it takes its gradients. Gradients have the same bits for every number of
  /// segments. Values of the run before are gone. Throws as node_segments.
  void use_segments(std::size_t count, const std::set<std::string>& kept = {}) {
    segments_ = node_segments(model_, count, kept);
    values_.clear();
    forget_inner();
  }
  /// The number of segments; 1 unless use_segments() gave another one.
  [[nodiscard]] std::size_t segments() const noexcept { return segments_.count(); }

  /// What the last forward run and the calls of backward() behind it have held at a time, at most.
  [[nodiscard]] const gradient_memory& memory() const noexcept { return most_; }

  /// Computes the values for these inputs, given by name, and keeps all of them, or with segments
  /// those that use_segments() tells. Values of the run before are gone. `observer` may be empty.
  /// Throws invalid_argument if an input is missing, and what the operators throw, naming the
  /// node. Entries of `inputs` that the model does not know are ignored, and declared types and
  /// shapes are not compared with the inputs'.
  void forward(const std::map<std::string, tensor>& inputs, const value_observer& observer = {}) {
    values_.clear();
    forget_inner();
    buffers_.begin_run();
    kept_bytes_ = 0;
    most_ = {};
    for (const auto& [name, t] : model_.initializers) {
      values_[name] = t;
    }
    for (const value_info& v : model_.inputs) {
      const auto found = inputs.find(v.name);
      require(found != inputs.end() && found->second.has_data(), error_kind::invalid_argument,
              "gradient_graph: input '", v.name, "' is missing");
      const tensor& t = values_[v.name] = to_plain(found->second);
      if (observer) {
        observer(v.name, t);
      }
    }
    detail::run_resources resources(options_, buffers_);
    for (std::size_t s = 0; s < segments_.count(); ++s) {
      compute(s, resources, [&](const std::string& name, const tensor& t) {
        if (segments_.keeps(name)) {
          values_[name] = t;
          kept_bytes_ += t.bytes();
        }
        if (observer) {
          observer(name, t);
        }
      });
    }
  }

  /// A value of the last forward run (an input, a constant or a computed value), with elements in
  /// the order of its dimensions. The reference is valid until the next forward(). Throws
  /// invalid_argument if there is no value of that name, or if it is inside a segment.
  [[nodiscard]] const tensor& value(const std::string& name) const {
    const auto found = values_.find(name);
    require(found != values_.end(), error_kind::invalid_argument,
            "gradient_graph: there is no value '", name, "'",
            segments_.keeps(name) ? "" : ", or it is inside a segment and not kept");
    return found->second;
  }

  /// Computes the gradients of a loss with respect to the values named in `wanted`, at the values
  /// of the last forward run. `seeds` holds the gradients of the loss with respect to some values,
  /// usually outputs, one number for each element. The result has an entry for each wanted value,
  /// all zeros if no seed depends on it.
  ///
  /// Throws invalid_argument for values that are unknown, inside a segment, or not float32;
  /// shape_mismatch for a seed of another size than its value; unsupported, naming the node, if a
  /// gradient would have to pass through an operator without gradient (find_gradient()), through
  /// values of another type than float32 (but for Cast and the like), or into an output of a node
  /// that has none.
  [[nodiscard]] gradient_map backward(const gradient_map& seeds,
                                      const std::set<std::string>& wanted) const {
    const std::set<std::string> active = detail::values_computed_from(model_, wanted);
    for (const std::string& name : wanted) {
      static_cast<void>(value(name));
    }
    gradient_map gradients;
    gradient_bytes_ = 0;
    for (const auto& [name, seed] : seeds) {
      require(seed.size() == float_value(name).count(), error_kind::shape_mismatch,
              "gradient_graph: a gradient of ", seed.size(), " elements for '", name, "' of shape ",
              shown(value(name).dims()));
      // From the spare vectors, because it is given back to them: their number stays the same.
      std::vector<double>& own = gradients[name] = zeros(seed.size());
      std::copy(seed.begin(), seed.end(), own.begin());
    }
    detail::run_resources resources(options_, buffers_);
    for (std::size_t s = segments_.count(); s-- > 0;) {
      if (!is_reached(s, gradients)) {
        continue;
      }
      if (computed_ != s) {
        compute(s, resources, [](const std::string&, const tensor&) {});
      }
      for (std::size_t i = segments_.end(s); i-- > segments_.begin(s);) {
        run_back(model_.nodes[i], active, wanted, gradients);
      }
    }
    gradient_map found;
    for (const std::string& name : wanted) {
      const auto gradient = gradients.find(name);
      found[name] = gradient != gradients.end() ? std::move(gradient->second)
                                                : std::vector<double>(float_value(name).count());
    }
    return found;
  }

 private:
  [[nodiscard]] const tensor& float_value(const std::string& name) const {
    const tensor& t = value(name);
    require(t.type() == element_type::f32, error_kind::invalid_argument, "gradient_graph: '", name,
            "' is ", graph::name(t.type()), ", not float32");
    return t;
  }

  /// A value of the last forward run that is kept, or is inside the segment computed last.
  [[nodiscard]] const tensor& known(const std::string& name) const {
    const auto found = inner_.find(name);
    return found != inner_.end() ? found->second : value(name);
  }

  void forget_inner() const {
    inner_.clear();
    inner_bytes_ = 0;
    computed_ = none;
  }

  /// Computes the values of a segment, shows them to `see`, and keeps those inside it. A node whose
  /// results are all known is not run again.
  template <class See>
  void compute(std::size_t segment, detail::run_resources& resources, const See& see) const {
    forget_inner();
    for (std::size_t i = segments_.begin(segment); i < segments_.end(segment); ++i) {
      const node& n = model_.nodes[i];
      if (std::all_of(n.outputs.begin(), n.outputs.end(), [&](const std::string& name) {
            return name.empty() || values_.count(name) != 0;
          })) {
        continue;
      }
      detail::node_inputs arguments;
      for (const std::string& name : n.inputs) {
        arguments.add(name.empty() ? tensor() : known(name));
      }
      std::unique_ptr<operator_state> state;
      std::vector<tensor> results =
          detail::apply(n, *registry_->find(n.domain, n.op_type), detail::opset_of(model_, n),
                        arguments, {}, state, resources, false);
      for (std::size_t k = 0; k < n.outputs.size(); ++k) {
        if (!n.outputs[k].empty()) {
          const tensor t = to_plain(results[k]);
          see(n.outputs[k], t);
          if (!segments_.keeps(n.outputs[k])) {
            inner_[n.outputs[k]] = t;
            inner_bytes_ += t.bytes();
          }
          most_.values = (std::max)(most_.values, kept_bytes_ + inner_bytes_);
        }
      }
    }
    computed_ = segment;
  }

  /// Whether a value that the segment computes has a gradient. Otherwise it passes none on.
  [[nodiscard]] bool is_reached(std::size_t segment, const gradient_map& gradients) const {
    for (std::size_t i = segments_.begin(segment); i < segments_.end(segment); ++i) {
      for (const std::string& name : model_.nodes[i].outputs) {
        if (gradients.count(name) != 0) {
          return true;
        }
      }
    }
    return false;
  }

  /// A vector of zeros for a gradient.
  [[nodiscard]] std::vector<double> zeros(std::size_t count) const {
    gradient_bytes_ += count * sizeof(double);
    most_.gradients = (std::max)(most_.gradients, gradient_bytes_);
    return spare_.zeros(count);
  }

  /// Adds to `gradients` what the gradients of the node's outputs contribute to its active inputs,
  /// and drops the gradients of the outputs unless they are wanted.
  void run_back(const node& n, const std::set<std::string>& active,
                const std::set<std::string>& wanted, gradient_map& gradients) const {
    gradient_context c;
    bool any_gradient = false;
    for (const std::string& name : n.outputs) {
      const auto found = name.empty() ? gradients.end() : gradients.find(name);
      c.output_gradients.push_back(found == gradients.end() ? std::span<const double>{}
                                                            : std::span(found->second));
      any_gradient = any_gradient || found != gradients.end();
    }
    if (!any_gradient) {
      return;
    }
    const gradient_definition* defined = find_gradient(n);
    std::vector<tensor> inputs;
    bool any = false;
    for (const std::string& name : n.inputs) {
      const bool has_none = defined != nullptr && !defined->passes_to(inputs.size());
      inputs.push_back(name.empty() ? tensor() : known(name));
      const bool wants = !has_none && !name.empty() && active.count(name) != 0 &&
                         ops::is_floating(inputs.back().type());
      c.wanted.push_back(wants);
      any = any || wants;
    }
    if (any) {
      const gradient_definition& gradient = checked(n, defined, c, gradients);
      c.overwrites = gradient.in_place && overwrites(n, c, wanted, gradients);
      if (c.overwrites) {
        auto moved = gradients.extract(n.outputs[0]);
        moved.key() = n.inputs[0];
        gradients.insert(std::move(moved));
      }
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        c.input_gradients.emplace_back();
        if (c.wanted[i]) {
          require_type(n, gradient, n.inputs[i]);
          std::vector<double>& sum = gradients[n.inputs[i]];
          if (sum.size() != inputs[i].count()) {
            sum = zeros(inputs[i].count());
          }
          c.input_gradients.back() = sum;
        }
      }
      c.forward.current = &n;
      c.forward.opset = detail::opset_of(model_, n);
      c.forward.inputs = inputs;
      for (const std::string& name : n.outputs) {
        c.forward.outputs.push_back(name.empty() ? tensor() : known(name));
      }
      c.forward.parallel = &options_.parallel;
      c.definition = registry_->find(n.domain, n.op_type);
      gradient.function(c);
    }
    for (const std::string& name : n.outputs) {
      const auto found = gradients.find(name);
      if (found != gradients.end() && wanted.count(name) == 0) {
        gradient_bytes_ -= found->second.size() * sizeof(double);
        spare_.give_back(std::move(found->second));
        gradients.erase(found);
      }
    }
  }

  /// Whether nobody else needs the gradient of output 0, and nothing has been added to that of
  /// input 0, which has its size.
  [[nodiscard]] bool overwrites(const node& n, const gradient_context& c,
                                const std::set<std::string>& wanted,
                                const gradient_map& gradients) const {
    return c.wants(0) && !c.output_gradients[0].empty() && wanted.count(n.outputs[0]) == 0 &&
           gradients.count(n.inputs[0]) == 0 &&
           std::count(n.inputs.begin(), n.inputs.end(), n.inputs[0]) == 1 &&
           known(n.inputs[0]).count() == c.output_gradients[0].size();
  }

  /// The gradient of the node's operator, as it was found. Throws unsupported, naming the node, if
  /// there is none, or none for an output that has one.
  [[nodiscard]] const gradient_definition& checked(const node& n, const gradient_definition* found,
                                                   const gradient_context& c,
                                                   const gradient_map& gradients) const {
    require(found != nullptr, error_kind::unsupported, n.label(), ": its operator has no gradient");
    for (std::size_t k = 0; k < n.outputs.size(); ++k) {
      require(k == 0 || found->every_output || gradients.count(n.outputs[k]) == 0,
              error_kind::unsupported, shown(n), ": no gradient of output ", k, " '", n.outputs[k],
              "'");
      if (!c.output_gradients[k].empty()) {
        require_type(n, *found, n.outputs[k]);
      }
    }
    return *found;
  }

  /// Throws unsupported, naming the node, if the gradient does not take values of this type.
  void require_type(const node& n, const gradient_definition& gradient,
                    const std::string& name) const {
    const element_type type = known(name).type();
    require(gradient.any_floating || type == element_type::f32, error_kind::unsupported, n.label(),
            ": no gradient of ", graph::name(type), " '", name, "'");
  }

  model model_;
  executor_options options_;
  const operator_registry* registry_;
  detail::buffer_pool buffers_;
  node_segments segments_;
  mutable detail::spare_vectors spare_;
  std::map<std::string, tensor> values_;  // constants, inputs, and values that segments_ keeps
  std::size_t kept_bytes_ = 0;            // of the computed ones among them
  // backward() computes segments again: these are the other values of the one computed last.
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  mutable std::map<std::string, tensor> inner_;
  mutable std::size_t inner_bytes_ = 0;
  mutable std::size_t computed_ = none;  // the segment, if all its values are there
  mutable std::size_t gradient_bytes_ = 0;
  mutable gradient_memory most_;
};

/// Describes each node of the model whose operator has no gradient (find_gradient()). Nodes of
/// sub-graphs are not listed.
[[nodiscard]] inline std::vector<std::string> nodes_without_gradient(const model& m) {
  std::vector<std::string> all;
  for (const node& n : m.nodes) {
    if (find_gradient(n) == nullptr) {
      all.push_back(n.label());
    }
  }
  return all;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENT_HPP
