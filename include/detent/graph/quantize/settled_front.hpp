// SPDX-License-Identifier: BSD-3-Clause
// Runs of networks that differ behind a point only. A method that corrects one layer after the
// other runs the network on the same samples again and again, and what is in front of the layer is
// settled by then: its values are kept for each sample, and runs begin with them.
//
//   nodes   n0 n1 n2 n3 | n4 n5 n6 ...
//           settled     a, b         runs begin with the values a and b
//
// A network must compute the same behind the point whether values there are computed or given. So
// it must not be rewritten across the point, as for_execution() does.
#ifndef DETENT_GRAPH_QUANTIZE_SETTLED_FRONT_HPP
#define DETENT_GRAPH_QUANTIZE_SETTLED_FRONT_HPP

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
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The inputs of the network, and the values that nodes before `end` make, that nodes from `end` on
/// take.
[[nodiscard]] inline std::set<std::string> values_across(const model& m, std::size_t end) {
  const links l(m);
  std::set<std::string> across;
  const auto note = [&](const std::string& value) {
    const std::span<const std::size_t> users = l.consumers(value);
    if (std::any_of(users.begin(), users.end(), [&](std::size_t user) { return user >= end; })) {
      across.insert(value);
    }
  };
  for (const value_info& v : m.inputs) {
    note(v.name);
  }
  for (std::size_t i = 0; i < end; ++i) {
    std::for_each(m.nodes[i].outputs.begin(), m.nodes[i].outputs.end(), note);
  }
  return across;
}

/// The values of samples at the end of the settled front of a network. At first nothing is settled,
/// and runs begin with the samples. Once the values of all samples are kept, the source is not
/// drawn any more. Not thread-safe.
class settled_front {
 public:
  /// The names in a network of values that have kept their name in other networks of the same kind;
  /// values that are not listed have kept it in this one, too.
  using new_names = std::map<std::string, std::string>;
  /// A rewrite of each network before it is run.
  using preparation = model (*)(model);

  /// Bytes of the values that are kept for all samples together; runs begin with the samples for
  /// those whose values do not fit.
  static constexpr std::size_t most_bytes = std::size_t{1} << 26;

  explicit settled_front(calibration_source samples, executor_options options = {},
                         preparation prepare = nullptr, std::size_t largest_bytes = most_bytes)
      : samples_(std::move(samples)),
        options_(std::move(options)),
        prepare_(prepare),
        largest_bytes_((std::min)(largest_bytes, options_.max_memory_bytes)) {}

  /// Runs a network on all samples, in their order, and calls take() for each one with the values
  /// `results` of the network, given by their names in it.
  void run(const model& network, const new_names& renamed, const std::vector<std::string>& results,
           const std::function<void(const std::vector<tensor>&)>& take) {
    runners both{network, renamed, infos_of(results), infos_of(results), {}, {}};
    for_each_sample([&](std::size_t k, const network_values* inputs) {
      take(k < kept_.size() ? run_behind(both, kept_[k]) : run_whole(both, *inputs));
    });
  }

  /// Makes the values `end` the end of the front, in place of those before. These must be all
  /// values that a network behind the front takes (values_across()), and each such network must
  /// make them as this one does. Those that this network neither makes nor takes as inputs are left
  /// out. The values are kept for the first samples, as many as fit.
  void advance(const model& network, const new_names& renamed, const std::set<std::string>& end) {
    std::set<std::string> made;
    for (const node& n : network.nodes) {
      made.insert(n.outputs.begin(), n.outputs.end());
    }
    std::set<std::string> inputs_of_network;
    for (const value_info& v : network.inputs) {
      inputs_of_network.insert(v.name);
    }
    std::set<std::string> values;
    std::vector<std::string> results;
    std::vector<std::string> results_behind;
    for (const std::string& value : end) {
      const std::string& name = name_in(renamed, value);
      if (inputs_of_network.count(name) != 0) {
        values.insert(value);
      } else if (made.count(name) != 0) {
        values.insert(value);
        results.push_back(name);
        if (kept_names_.count(value) == 0) {
          results_behind.push_back(name);
        }
      }
    }
    runners both{network, renamed, infos_of(results), infos_of(results_behind), {}, {}};
    std::vector<network_values> next;
    std::size_t bytes = 0;
    bool fit = true;
    for_each_sample([&](std::size_t k, const network_values* inputs) {
      if (!fit) {
        return;
      }
      const bool is_kept = k < kept_.size();
      std::vector<tensor> computed =
          is_kept ? run_behind(both, kept_[k]) : run_whole(both, *inputs);
      const network_values& given = is_kept ? kept_[k] : *inputs;
      network_values of_sample;
      for (std::size_t i = 0; const std::string& value : values) {
        const auto found = given.find(value);
        require(found != given.end() || i < computed.size(), error_kind::invalid_argument,
                "input '", value, "' is missing");
        of_sample[value] = found != given.end() ? found->second : copied(computed[i++]);
        bytes += of_sample[value].bytes();
      }
      fit = bytes <= largest_bytes_;
      if (fit) {
        next.push_back(std::move(of_sample));
      }
    });
    kept_ = std::move(next);
    kept_names_ = std::move(values);
    all_are_kept_ = fit;
  }

 private:
  using network_values = std::map<std::string, tensor>;  // by the name that stays

  /// A network, the results that are asked of it, and its executors: one begins with the values
  /// that are kept, one with the samples. They are made when the first sample needs them.
  struct runners {
    const model& network;
    const new_names& renamed;
    std::vector<value_info> results;
    std::vector<value_info> results_behind;  // where runs begin with the values that are kept
    std::unique_ptr<executor> whole;
    std::unique_ptr<executor> behind;
  };

  /// A result with storage of its own: a kept result would count against the memory limit of the
  /// executor, and would keep the buffers of that executor from being released.
  [[nodiscard]] static tensor copied(const tensor& t) {
    if (!t.has_data()) {
      return t;
    }
    tensor copy = tensor::allocate(t.type(), t.dims());
    std::copy_n(t.raw(), t.bytes(), copy.mutable_raw());
    return copy;
  }

  /// Calls f(number of the sample, its inputs) for each sample. The inputs are null if the values
  /// of all samples are kept.
  template <class Function>
  void for_each_sample(const Function& f) {
    if (all_are_kept_) {
      for (std::size_t k = 0; k < kept_.size(); ++k) {
        f(k, nullptr);
      }
      return;
    }
    for (std::size_t k = 0; const auto inputs = samples_(); ++k) {
      f(k, &*inputs);
    }
  }

  [[nodiscard]] static const std::string& name_in(const new_names& renamed,
                                                  const std::string& value) {
    const auto found = renamed.find(value);
    return found == renamed.end() ? value : found->second;
  }

  [[nodiscard]] static std::vector<value_info> infos_of(const std::vector<std::string>& values) {
    std::vector<value_info> infos;
    for (const std::string& value : values) {
      infos.push_back({value, element_type::undefined, false, {}, {}});
    }
    return infos;
  }

  [[nodiscard]] std::unique_ptr<executor> runner_of(model m,
                                                    const std::vector<value_info>& results) const {
    m.outputs = results;
    remove_unused(m);
    return std::make_unique<executor>(prepare_ == nullptr ? std::move(m) : prepare_(std::move(m)),
                                      options_);
  }

  [[nodiscard]] std::vector<tensor> run_whole(runners& r, const network_values& inputs) const {
    if (r.whole == nullptr) {
      r.whole = runner_of(r.network, r.results);
    }
    return r.whole->run(inputs);
  }

  [[nodiscard]] std::vector<tensor> run_behind(runners& r, const network_values& kept) const {
    if (r.results_behind.empty()) {
      return {};
    }
    network_values given;
    for (const auto& [value, t] : kept) {
      given[name_in(r.renamed, value)] = t;
    }
    if (r.behind == nullptr) {
      r.behind = runner_of(network_from(r.network, given), r.results_behind);
    }
    return r.behind->run(given);
  }

  /// The network with these values as its inputs.
  [[nodiscard]] static model network_from(model m, const network_values& given) {
    unused_names names(m);
    for (node& n : m.nodes) {
      for (std::string& out : n.outputs) {
        if (given.count(out) != 0) {
          out = names.take(out);
        }
      }
    }
    std::erase_if(m.inputs, [&](const value_info& v) { return given.count(v.name) == 0; });
    std::set<std::string> declared;
    for (const value_info& v : m.inputs) {
      declared.insert(v.name);
    }
    for (const auto& [name, t] : given) {
      if (declared.count(name) == 0) {
        m.inputs.push_back({name, t.type(), false, {}, {}});
      }
    }
    return m;
  }

  calibration_source samples_;
  executor_options options_;
  preparation prepare_;
  std::size_t largest_bytes_;
  std::set<std::string> kept_names_;
  std::vector<network_values> kept_;  // of the first samples
  bool all_are_kept_ = false;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_SETTLED_FRONT_HPP
