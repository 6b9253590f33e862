// SPDX-License-Identifier: BSD-3-Clause
// Ranks the nodes of a quantized model by how much harm their quantization does, for the strategies
// mse, mse_v2 and hawq_v2 of tune().
#ifndef DETENT_GRAPH_QUANTIZE_NODE_RANKING_HPP
#define DETENT_GRAPH_QUANTIZE_NODE_RANKING_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// A node, by the name of its first output, and how much harm its quantization does.
using ranked_node = std::pair<double, std::string>;

/// The names in the order of their scores, the largest first; equal ones keep their order.
[[nodiscard]] inline std::vector<std::string> names_by_score(std::vector<ranked_node> scored) {
  std::stable_sort(scored.begin(), scored.end(),
                   [](const ranked_node& a, const ranked_node& b) { return a.first > b.first; });
  std::vector<std::string> names;
  for (ranked_node& n : scored) {
    names.push_back(std::move(n.second));
  }
  return names;
}

/// Ranks nodes by the mean squared difference of their results in the float model and in a
/// quantized one, which has float values of the same names. A result of the graph that is quantized
/// has the suffix "_float" there. `check`, if it is not empty, is called before each run and with
/// each value, and may throw to end the ranking.
[[nodiscard]] inline std::vector<std::string> rank_by_results(
    const model& float_model, const model& quantized, const std::vector<std::string>& nodes,
    const calibration_source& samples, const executor_options& options,
    const std::function<void()>& check = {}) {
  constexpr std::string_view suffix = "_float";
  const std::set<std::string> wanted(nodes.begin(), nodes.end());
  std::set<std::string> float_names;  // of values that the float model makes itself
  for (const node& n : float_model.nodes) {
    float_names.insert(n.outputs.begin(), n.outputs.end());
  }
  std::map<std::string, signal_error> errors;
  executor reference(float_model, options);
  executor other(quantized, options);
  const auto values_of = [&](executor& runner, const std::map<std::string, tensor>& inputs) {
    std::map<std::string, tensor> values;
    if (check) {
      check();
    }
    static_cast<void>(runner.run(inputs, [&](const std::string& name, const tensor& value) {
      if (check) {
        check();
      }
      if (value.type() != element_type::f32) {
        return;
      }
      if (wanted.count(name) != 0) {
        values.emplace(name, to_plain(value));
      }
      if (name.ends_with(suffix) && float_names.count(name) == 0) {
        const std::string stem = name.substr(0, name.size() - suffix.size());
        if (wanted.count(stem) != 0) {
          values.insert_or_assign(stem, to_plain(value));
        }
      }
    }));
    return values;
  };
  // All samples at first: `check` must not end a pass in the middle.
  std::vector<std::map<std::string, tensor>> all;
  while (auto inputs = samples()) {
    all.push_back(std::move(*inputs));
  }
  for (const std::map<std::string, tensor>& inputs : all) {
    const std::map<std::string, tensor> expected = values_of(reference, inputs);
    const std::map<std::string, tensor> actual = values_of(other, inputs);
    for (const auto& [name, value] : expected) {
      const auto found = actual.find(name);
      if (found != actual.end() && found->second.count() == value.count()) {
        errors[name].add(value.data<float>(), found->second.data<float>());
      }
    }
  }
  std::vector<ranked_node> scored;
  for (const std::string& name : nodes) {
    scored.emplace_back(errors[name].mean_squared_error(), name);
  }
  return names_by_score(std::move(scored));
}

/// A copy of a float tensor whose elements are increased or decreased by `step`, at random.
[[nodiscard]] inline tensor shaken(const tensor& t, float step, std::mt19937_64& random) {
  tensor changed = tensor::allocate(element_type::f32, t.dims());
  const auto from = t.data<float>();
  const auto to = changed.mutable_data<float>();
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    bits = i % 64 == 0 ? random() : bits >> 1U;
    to[i] = (bits & 1U) != 0 ? from[i] + step : from[i] - step;
  }
  return changed;
}

/// Ranks nodes by mean(trace) * |W - quantized W|^2, as tuning_strategy::hawq_v2 says. Nodes
/// without constant weights have the score 0. `check`, if it is not empty, is called before each
/// node and each run, and may throw to end the ranking.
[[nodiscard]] inline std::vector<std::string> rank_by_trace(
    const model& float_model, const std::vector<std::string>& nodes,
    const layer_weight_options& weights, const output_judge& judge, std::uint64_t seed,
    const parallel_for& parallel, const std::function<void()>& check = {}) {
  constexpr int probes = 4;
  std::mt19937_64 random(seed);
  std::map<std::string, std::size_t> makers;
  for (std::size_t i = 0; i < float_model.nodes.size(); ++i) {
    makers[float_model.nodes[i].outputs[0]] = i;
  }
  std::vector<ranked_node> scored;
  for (const std::string& name : nodes) {
    if (check) {
      check();
    }
    node n = float_model.nodes[makers.at(name)];
    const tensor* w = float_constant(float_model, n, 1);
    if (!is_quantizable_layer(float_model, n) || w == nullptr) {
      scored.emplace_back(0.0, name);
      continue;
    }
    n.inputs.resize(2);
    signal_error rounding;
    const tensor quantized =
        dequantized(quantize_layer_weights(float_model, n, 1.0F, weights, parallel));
    rounding.add(w->data<float>(), quantized.data<float>());
    double squares = 0.0;
    for (const float v : w->data<float>()) {
      squares += static_cast<double>(v) * static_cast<double>(v);
    }
    const double step = 0.01 * std::sqrt(squares / static_cast<double>(w->count()));
    double trace = 0.0;
    for (int k = 0; k < probes && step > 0.0; ++k) {
      model changed = float_model;
      // The constant may have other users: only this node gets the changed one.
      const std::string fresh = unused_names(changed).take(n.inputs[1] + "_shaken");
      changed.initializers[fresh] = shaken(*w, static_cast<float>(step), random);
      changed.nodes[makers.at(name)].inputs[1] = fresh;
      trace += judge.noise_to_signal(changed, check) / (step * step) / probes;
    }
    scored.emplace_back(detent::detail::rounded_product(trace, rounding.mean_squared_error()),
                        name);
  }
  return names_by_score(std::move(scored));
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_NODE_RANKING_HPP
