// SPDX-License-Identifier: BSD-3-Clause
// Passes over a quantized_graph, and pipelines: lists of passes that users can read and edit.
#ifndef DETENT_GRAPH_PPQ_PASS_HPP
#define DETENT_GRAPH_PPQ_PASS_HPP

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// What passes may use besides the graph.
struct pass_context {
  /// The calibration samples. Each pass leaves the source at its beginning. Passes that need no
  /// samples ignore it.
  calibration_source samples = {};
  /// How passes run networks, for example the threads to use.
  executor_options executor = {};
};

/// A step of a pipeline: a function that changes a quantized_graph, and its name.
struct quantization_pass {
  /// The name that error messages give the pass.
  std::string name;
  /// The function that is called with the graph and the context of the pipeline.
  std::function<void(quantized_graph&, pass_context&)> run;
};

/// A list of passes in the order in which they run.
using pipeline = std::vector<quantization_pass>;

namespace detail {

using run_inputs = std::map<std::string, tensor>;

/// Draws the rest of a source, so that it begins anew.
inline void drain(const calibration_source& samples) {
  while (samples()) {
  }
}

/// The first `limit` samples, or all if there are fewer. Throws invalid_argument if there are none.
inline std::vector<run_inputs> take_samples(const calibration_source& samples, std::size_t limit) {
  require(static_cast<bool>(samples), error_kind::invalid_argument,
          "there are no calibration samples");
  std::vector<run_inputs> taken;
  while (taken.size() < limit) {
    auto inputs = samples();
    if (!inputs) {
      break;
    }
    taken.push_back(std::move(*inputs));
  }
  if (taken.size() == limit) {
    drain(samples);
  }
  require(!taken.empty(), error_kind::invalid_argument, "there are no calibration samples");
  return taken;
}

/// Calls f(inputs, number of the run, from 1) `runs` times, with the samples in their order; at
/// their end it begins with the first one again. Throws invalid_argument if there are no samples,
/// or if the source does not begin anew after its end.
template <class Function>
void for_each_run(const calibration_source& samples, std::size_t runs, const Function& f) {
  require(static_cast<bool>(samples), error_kind::invalid_argument,
          "there are no calibration samples");
  bool at_end = false;
  for (std::size_t done = 0; done < runs;) {
    if (const auto inputs = samples()) {
      at_end = false;
      f(*inputs, ++done);
      continue;
    }
    require(done > 0, error_kind::invalid_argument, "there are no calibration samples");
    require(!at_end, error_kind::invalid_argument, "the calibration source ended after ", done,
            " samples and did not begin anew");
    at_end = true;
  }
  drain(samples);
}

}  // namespace detail

/// Runs all passes in their order. Errors that a pass throws get the name of the pass in front of
/// their message; the passes before it have then done their work. Throws invalid_argument for a
/// pass without a function.
inline void run_pipeline(quantized_graph& g, const pipeline& passes, pass_context& context) {
  for (const quantization_pass& pass : passes) {
    require(static_cast<bool>(pass.run), error_kind::invalid_argument, "pass '", pass.name,
            "' has no function");
    graph::detail::with_context("pass '" + pass.name + "'", [&] { pass.run(g, context); });
  }
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_PASS_HPP
