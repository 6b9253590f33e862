// SPDX-License-Identifier: BSD-3-Clause
// A quantized network, cut into parts that are written, lowered and run one by one. A trial that
// changes a few parameters writes only the parts that use them, and runs only what depends on them.
//
//   nodes   n0 n1 n2 | n3 n4 n5 n6 | n7 n8 ...
//                    a             b
//
// A cut is where all values that cross it are stored in 8 bits, are inputs of the graph, or are not
// float: nothing is fused across it, so that the parts compute what the whole network computes, bit
// for bit. Values that cross a cut are kept as their codes. A value that float operators take
// unrounded is kept in float (is_also_float()), and each part that needs its codes quantizes it.
//
// One exception: where inputs of the network have open dimensions and value_shapes does not know
// the shape of a value that crosses a cut, a part may add the bias behind a MatMul in float.
// Results then differ in last bits from those of the whole network.
#ifndef DETENT_GRAPH_QUANTIZE_NETWORK_PARTS_HPP
#define DETENT_GRAPH_QUANTIZE_NETWORK_PARTS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Values of one run, by name: the codes of quantized values that no float operator takes
/// unrounded, and all other values as they are.
using network_values = std::map<std::string, tensor>;

/// The parts of a plan's network, as executors. The plan must outlive the object. Not thread-safe.
class network_parts {
 public:
  /// Executors that take the place of those of the network, by the index of the part.
  using written_parts = std::map<std::size_t, std::unique_ptr<executor>>;

  /// Cuts the network into parts of at least `least_nodes` nodes that `outputs`, names of values of
  /// the plan's float model, depend on. Parts have no executor before write().
  network_parts(const quantization_plan& plan, const std::vector<std::string>& outputs,
                executor_options options = {}, std::size_t least_nodes = 8)
      : plan_(plan), shapes_(plan.float_model()), options_(std::move(options)), outputs_(outputs) {
    find_values();
    cut((std::max)(least_nodes, std::size_t{1}));
  }

  /// Number of parts.
  [[nodiscard]] std::size_t size() const noexcept { return parts_.size(); }
  /// Indices of the nodes of a part, in topological order.
  [[nodiscard]] const std::vector<std::size_t>& nodes(std::size_t i) const {
    return parts_[i].nodes;
  }

  /// Indices of the parts that use a value whose parameters differ between `a` and `b`. Both must
  /// have the parameters of all values of the plan.
  [[nodiscard]] std::vector<std::size_t> parts_that_differ(const quantization_parameters& a,
                                                           const quantization_parameters& b) const {
    std::vector<std::size_t> changed;
    for (auto [x, y] = std::pair(a.activations.begin(), b.activations.begin());
         x != a.activations.end(); ++x, ++y) {
      const auto users = x->second == y->second ? parts_of_.end() : parts_of_.find(x->first);
      if (users != parts_of_.end()) {
        changed.insert(changed.end(), users->second.begin(), users->second.end());
      }
    }
    std::sort(changed.begin(), changed.end());
    changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    return changed;
  }

  /// Writes some parts with the parameters `p`.
  [[nodiscard]] written_parts written(const quantization_parameters& p,
                                      const std::vector<std::size_t>& parts) const {
    written_parts result;
    for (const std::size_t i : parts) {
      result[i] = std::make_unique<executor>(for_execution(model_of(p, parts_[i])), options_);
    }
    return result;
  }
  /// Writes all parts with the parameters `p`, as parts of the network.
  void write(const quantization_parameters& p) {
    for (part& one : parts_) {
      one.run = std::make_unique<executor>(for_execution(model_of(p, one)), options_);
    }
  }
  /// Writes one part with the parameters `p`, as part of the network.
  void write(const quantization_parameters& p, std::size_t i) {
    parts_[i].run = std::make_unique<executor>(for_execution(model_of(p, parts_[i])), options_);
  }
  /// Drops the executor of a part that is not run any more.
  void release(std::size_t i) { parts_[i].run.reset(); }
  /// Makes written parts parts of the network.
  void install(written_parts written) {
    for (auto& [i, run] : written) {
      parts_[i].run = std::move(run);
    }
  }

  /// Runs the network on `inputs`, the inputs of the graph, up to the part `end`, and adds all
  /// values that cross a cut or are outputs to `values`.
  void run(const network_values& inputs, network_values& values, std::size_t end) {
    for (std::size_t i = 0; i < (std::min)(end, parts_.size()); ++i) {
      run_part(parts_[i], *parts_[i].run, inputs, values, {});
    }
  }
  void run(const network_values& inputs, network_values& values) {
    run(inputs, values, parts_.size());
  }
  /// Runs one part. `values` must have the values that it takes.
  void run_part(std::size_t i, const network_values& inputs, network_values& values) {
    run_part(parts_[i], *parts_[i].run, inputs, values, {});
  }
  /// Removes the values that no part from `next` on takes, and that are no outputs.
  void forget(network_values& values, std::size_t next) const {
    std::erase_if(values, [&](const auto& entry) {
      const auto found = last_part_.find(entry.first);
      return found == last_part_.end() || found->second < next;
    });
  }

  /// Returns the values that differ, or may differ, if `written` takes the place of the parts of
  /// those indices: it runs these parts and those that take a value which may differ. `before` has
  /// the values of a run of the network on `inputs`.
  [[nodiscard]] network_values run_with(const written_parts& written, const network_values& inputs,
                                        const network_values& before) {
    network_values changed;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto own = written.find(i);
      const bool takes_changed =
          std::any_of(parts_[i].inputs.begin(), parts_[i].inputs.end(),
                      [&](const std::string& name) { return changed.count(name) != 0; });
      if (own != written.end()) {
        run_part(parts_[i], *own->second, inputs, changed, before);
      } else if (takes_changed) {
        run_part(parts_[i], *parts_[i].run, inputs, changed, before);
      }
    }
    return changed;
  }

  /// The values of the outputs, in the order of their names in the constructor: those of `values`,
  /// else of `otherwise`; or constants or inputs of the graph that it returns.
  [[nodiscard]] std::vector<tensor> outputs(const network_values& inputs,
                                            const network_values& values,
                                            const network_values& otherwise = {}) const {
    std::vector<tensor> result;
    for (const std::string& name : outputs_) {
      const auto found = values.find(name + float_suffix);
      const auto other = otherwise.find(name + float_suffix);
      if (found != values.end()) {
        result.push_back(found->second);
      } else if (other != otherwise.end()) {
        result.push_back(other->second);
      } else if (const tensor* constant = plan_.float_model().initializer(name)) {
        result.push_back(*constant);
      } else {
        result.push_back(entry_of(inputs, name, "the output"));
      }
    }
    return result;
  }

  /// The QDQ model of the beginning of a part, up to a value that it computes, which is its only
  /// output: the value before it is stored in 8 bits. Inputs are as those of the part.
  [[nodiscard]] model model_up_to(const quantization_parameters& p, std::size_t i,
                                  const std::string& value) const {
    return model_of(p, parts_[i], &value);
  }
  /// Runs a model that model_up_to() returned, as an executor.
  [[nodiscard]] std::vector<tensor> run_up_to(executor& beginning, const network_values& inputs,
                                              const network_values& values) const {
    network_values given;
    for (const value_info& v : beginning.graph_model().inputs) {
      const auto found = values.find(v.name);
      given[v.name] = found != values.end() ? found->second : entry_of(inputs, v.name, "the input");
    }
    return beginning.run(given);
  }

 private:
  /// Outputs are kept in float; the same value may cross a cut as codes.
  static constexpr const char* float_suffix = "\n";

  struct part {
    std::vector<std::size_t> nodes;
    std::vector<std::string> inputs;   // values of other parts, or inputs of the graph
    std::vector<std::string> crosses;  // values that later parts take
    std::vector<std::string> outputs;  // of the network, that this part computes
    std::unique_ptr<executor> run;
  };

  [[nodiscard]] static std::set<std::string> used_by(const node& n) {
    std::set<std::string> used = captured_values(n);
    used.insert(n.inputs.begin(), n.inputs.end());
    used.erase("");
    return used;
  }

  void find_values() {
    const model& m = plan_.float_model();
    for (const value_info& v : m.inputs) {
      graph_inputs_.insert(v.name);
    }
    const std::set<std::string> results(outputs_.begin(), outputs_.end());
    needed_.assign(m.nodes.size(), false);
    for (std::size_t i = m.nodes.size(); i-- > 0;) {
      const node& n = m.nodes[i];
      needed_[i] = std::any_of(n.outputs.begin(), n.outputs.end(), [&](const std::string& name) {
        return results.count(name) != 0 || last_use_.count(name) != 0;
      });
      if (needed_[i]) {
        for (const std::string& name : used_by(n)) {
          last_use_.emplace(name, i);  // those of later nodes are there already
        }
      }
    }
  }

  /// Whether the codes of a value are kept where it crosses a cut: it is stored in 8 bits, and no
  /// float operator takes it as it is.
  [[nodiscard]] bool is_kept_as_codes(const std::string& name) const {
    return plan_.values().count(name) != 0 && !plan_.is_also_float(name);
  }

  /// Whether nothing is lost or fused away where a value is kept between two nodes.
  [[nodiscard]] bool may_cross(const std::string& name) const {
    if (plan_.values().count(name) != 0) {
      return true;
    }
    const auto found = plan_.known().find(name);
    return found != plan_.known().end() && found->second.type() != element_type::f32 &&
           found->second.defined();
  }

  void cut(std::size_t least_nodes) {
    const model& m = plan_.float_model();
    std::multiset<std::size_t> obstacles;        // last uses of values that may not cross a cut
    std::map<std::string, std::size_t> made_by;  // part
    part current;
    const auto finish = [&] {
      std::set<std::string> inputs;
      for (const std::size_t i : current.nodes) {
        for (const std::string& name : used_by(m.nodes[i])) {
          const auto maker = made_by.find(name);
          if (graph_inputs_.count(name) != 0 ||
              (maker != made_by.end() && maker->second != parts_.size())) {
            inputs.insert(name);
            last_part_[name] = parts_.size();
          }
        }
      }
      current.inputs.assign(inputs.begin(), inputs.end());
      parts_.push_back(std::move(current));
      current = part();
    };
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      if (!needed_[i]) {
        continue;
      }
      current.nodes.push_back(i);
      for (const std::string& name : m.nodes[i].outputs) {
        made_by[name] = parts_.size();
        const auto last = last_use_.find(name);
        if (last != last_use_.end() && !may_cross(name)) {
          obstacles.insert(last->second);
        }
      }
      obstacles.erase(obstacles.begin(), obstacles.upper_bound(i));
      if (current.nodes.size() >= least_nodes && obstacles.empty()) {
        finish();
      }
    }
    if (!current.nodes.empty()) {
      finish();
    }
    for (std::size_t k = 0; k < parts_.size(); ++k) {
      for (const std::size_t i : parts_[k].nodes) {
        for (const std::string& name : m.nodes[i].outputs) {
          const auto last = last_part_.find(name);
          if (last != last_part_.end() && last->second > k) {
            parts_[k].crosses.push_back(name);
          }
          if (std::find(outputs_.begin(), outputs_.end(), name) != outputs_.end()) {
            parts_[k].outputs.push_back(name);
            last_part_[name + float_suffix] = parts_.size();
          }
          parts_of_[name].push_back(k);
        }
        for (const std::string& name : used_by(m.nodes[i])) {
          parts_of_[name].push_back(k);
        }
      }
    }
  }

  [[nodiscard]] value_info info_of(const std::string& name) const {
    for (const value_info& v : plan_.float_model().inputs) {
      if (v.name == name) {
        return v;
      }
    }
    value_info v{name, element_type::f32, false, {}, {}};
    const auto found = plan_.known().find(name);
    if (found != plan_.known().end()) {
      v.type = found->second.type();
      const std::optional<std::size_t> rank = shapes_.rank(name);
      v.has_shape = rank.has_value();
      v.dims = rank ? shapes_.dims(name).value_or(shape(*rank, -1)) : shape();
    }
    return v;
  }

  /// The QDQ model of a part. Its inputs and outputs that cross cuts are codes, if they are kept as
  /// such. `only`: the only output, in float.
  [[nodiscard]] model model_of(const quantization_parameters& p, const part& one,
                               const std::string* only = nullptr) const {
    const model& whole = plan_.float_model();
    model m;
    m.ir_version = whole.ir_version;
    m.opsets = whole.opsets;
    m.functions = whole.functions;
    for (const std::size_t i : one.nodes) {
      m.nodes.push_back(whole.nodes[i]);
      for (const std::string& name : used_by(whole.nodes[i])) {
        if (const tensor* t = whole.initializer(name)) {
          m.initializers[name] = *t;
        }
      }
    }
    for (const std::string& name : one.inputs) {
      m.inputs.push_back(info_of(name));
    }
    std::set<std::string> results(one.crosses.begin(), one.crosses.end());
    results.insert(one.outputs.begin(), one.outputs.end());
    if (only != nullptr) {
      results = {*only};
    }
    for (const std::string& name : results) {
      m.outputs.push_back({name, element_type::f32, false, {}, {}});
    }
    qdq_writer writer(plan_, p, std::move(m), one.nodes);
    m = writer.run();
    if (only != nullptr) {
      m.outputs = {{writer.name_of(*only), element_type::f32, false, {}, {}}};
    }
    take_codes(m, p.activation_type, writer);
    if (only == nullptr) {
      return_codes(m, one);
    }
    remove_unused(m);
    return m;
  }

  /// Lets a model take the codes of its inputs that are not inputs of the graph: removes their
  /// QuantizeLinear nodes, and what the writer has put before these.
  void take_codes(model& m, element_type type, const qdq_writer& writer) const {
    std::set<std::string> inputs;
    for (value_info& v : m.inputs) {
      if (graph_inputs_.count(v.name) == 0 && is_kept_as_codes(v.name)) {
        v.type = type;
        inputs.insert(v.name);
      }
    }
    std::map<std::string, std::string> names;  // of the codes, as the writer calls them
    std::erase_if(m.nodes, [&](const node& n) {
      const bool quantizes =
          n.is("QuantizeLinear") && inputs.count(writer.quantized_by(n.inputs[0])) != 0;
      if (quantizes) {
        names.emplace(n.outputs[0], writer.quantized_by(n.inputs[0]));
      }
      return quantizes || (n.is("Clip") && inputs.count(n.inputs[0]) != 0 &&
                           writer.quantized_by(n.outputs[0]) == n.inputs[0]);
    });
    for (node& n : m.nodes) {
      for (std::string& name : n.inputs) {
        const auto found = names.find(name);
        name = found != names.end() ? found->second : name;
      }
    }
  }

  /// Lets a model return the codes of quantized values that cross cuts. Outputs of the network are
  /// returned in float, too.
  void return_codes(model& m, const part& one) const {
    const links l(m);
    std::vector<value_info> outputs;
    for (const std::string& name : one.crosses) {
      const std::size_t maker = l.producer(name);
      outputs.push_back({is_kept_as_codes(name) ? m.nodes[maker].inputs[0] : name,
                         element_type::undefined,
                         false,
                         {},
                         {}});
    }
    for (const std::string& name : one.outputs) {
      outputs.push_back({name, element_type::f32, false, {}, {}});
    }
    m.outputs = std::move(outputs);
  }

  void run_part(const part& one, executor& run, const network_values& inputs,
                network_values& values, const network_values& before) const {
    network_values given;
    for (const value_info& v : run.graph_model().inputs) {
      const auto found = values.find(v.name);
      const auto other = found == values.end() ? before.find(v.name) : found;
      given[v.name] = found != values.end()   ? found->second
                      : other != before.end() ? other->second
                                              : entry_of(inputs, v.name, "the input");
    }
    std::vector<tensor> results = run.run(given);
    std::size_t k = 0;
    for (const std::string& name : one.crosses) {
      values[name] = std::move(results[k++]);
    }
    for (const std::string& name : one.outputs) {
      values[name + float_suffix] = std::move(results[k++]);
    }
  }

  const quantization_plan& plan_;
  value_shapes shapes_;
  executor_options options_;
  std::vector<std::string> outputs_;
  std::set<std::string> graph_inputs_;
  std::vector<bool> needed_;                      // by node: whether an output depends on it
  std::map<std::string, std::size_t> last_use_;   // node that uses a value
  std::map<std::string, std::size_t> last_part_;  // that takes a value of another part
  std::map<std::string, std::vector<std::size_t>> parts_of_;  // that a value occurs in
  std::vector<part> parts_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_NETWORK_PARTS_HPP
