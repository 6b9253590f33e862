// SPDX-License-Identifier: BSD-3-Clause
// Measures what tune() makes small: the time of a run, the size of the file, the memory of a run.
#ifndef DETENT_GRAPH_QUANTIZE_TUNING_OBJECTIVES_HPP
#define DETENT_GRAPH_QUANTIZE_TUNING_OBJECTIVES_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_hash.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

[[nodiscard]] inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The median of some values; of an even number, the lower one of the two in the middle.
[[nodiscard]] inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The median times of a run of the float model and of a quantized one, in seconds. Runs take turns
/// and begin with `warmup` runs that are not counted.
[[nodiscard]] inline std::pair<double, double> latencies(
    const model& float_model, const model& quantized, const std::map<std::string, tensor>& inputs,
    std::size_t warmup, std::size_t runs, const executor_options& options,
    const std::function<double()>& clock) {
  executor reference(for_execution(float_model, false), options);
  executor other(for_execution(quantized), options);
  std::vector<double> times[2];
  for (std::size_t i = 0; i < warmup + runs; ++i) {
    for (std::size_t side = 0; side < 2; ++side) {
      const double start = clock();
      static_cast<void>((side == 0 ? reference : other).run(inputs));
      const double seconds = clock() - start;
      if (i >= warmup) {
        times[side].push_back(seconds);
      }
    }
  }
  return {median(times[0]), median(times[1])};
}

/// Bytes of the constants of a model that is prepared for execution, and of the values that are
/// alive at a time in one run of it: each from the node that makes it to the last one that takes
/// it.
[[nodiscard]] inline std::size_t footprint(const model& prepared,
                                           const std::map<std::string, tensor>& inputs,
                                           const executor_options& options) {
  std::size_t bytes = 0;
  for (const auto& [name, t] : prepared.initializers) {
    bytes += t.bytes();
  }
  detail::name_map<std::size_t> sizes;
  executor runner(prepared, options);
  static_cast<void>(runner.run(
      inputs, [&](const std::string& name, const tensor& value) { sizes[name] = value.bytes(); }));
  const links l(prepared);
  std::vector<std::vector<std::string>> ends(prepared.nodes.size());
  std::size_t alive = 0;
  for (const value_info& v : prepared.inputs) {
    alive += sizes[v.name];
  }
  for (std::size_t i = 0; i < prepared.nodes.size(); ++i) {
    for (const std::string& out : prepared.nodes[i].outputs) {
      const auto users = l.consumers(out);
      if (!out.empty() && !l.is_output(out)) {
        ends[users.empty() ? i : *std::max_element(users.begin(), users.end())].push_back(out);
      }
    }
  }
  std::size_t most = alive;
  for (std::size_t i = 0; i < prepared.nodes.size(); ++i) {
    for (const std::string& out : prepared.nodes[i].outputs) {
      const auto found = sizes.find(out);
      alive += found == sizes.end() ? 0 : found->second;
    }
    most = (std::max)(most, alive);
    for (const std::string& name : ends[i]) {
      const auto found = sizes.find(name);
      alive -= found == sizes.end() ? 0 : found->second;
    }
  }
  return bytes + most;
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_TUNING_OBJECTIVES_HPP
