// SPDX-License-Identifier: BSD-3-Clause
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include <detent/error.hpp>
#include <detent/graph/configuration/states_as_told.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/parallel.hpp>

#include "calibration_data.hpp"
#include "commands.hpp"
#include "comparison.hpp"
#include "float_model.hpp"
#include "json_output.hpp"
#include "nncf_pipeline.hpp"
#include "samples.hpp"

namespace detent_cli {

namespace graph = detent::graph;

namespace {

/// The number, among the runs of all samples, of the run that begins with the first sample.
std::uint64_t first_run(const observe_arguments& a, const sample_set& samples) {
  const std::uint64_t first = a.first_sample.value_or(samples.first());
  const std::size_t batch = batch_size(samples, 0);
  require(first % batch == 0, error_kind::invalid_argument, "sample ", first,
          " does not begin a run: the model takes ", batch, " samples at a time");
  return first / batch;
}

}  // namespace

int observe(const observe_arguments& a) {
  detent::thread_pool pool(a.threads);
  graph::executor_options runner = a.executor_options();
  if (a.threads > 1) {
    runner.parallel = pool.parallel();
  }
  const graph::model m = read_float_model(a.model, a.read_limits());
  graph::require_writable(a.output);
  std::optional<sample_set> samples;
  if (!a.calibration.empty()) {
    samples.emplace(open_samples(m, a.calibration, "--calib", a));
    if (!a.samples.empty()) {
      select_range(*samples, a.samples);
    }
  }
  std::optional<progress> bar(std::in_place, "observing", samples ? samples->size() : 0);
  const graph::calibration_source source =
      samples ? source_of(*samples, *bar) : graph::calibration_source();
  const graph::state_source earlier =
      a.states.empty() ? graph::state_source()
                       : graph::states_in_files(a.states, a.read_limits().max_constant_bytes);
  const graph::observed_state made = graph::with_file_name(a.model, [&] {
    if (a.nncf) {
      return observe_for_nncf(*a.nncf, m, source, runner);
    }
    return graph::observe_as_told(a, m, source, samples ? first_run(a, *samples) : 0, earlier,
                                  runner);
  });
  bar.reset();
  graph::write_state_file(a.output, made.bytes);
  if (a.json) {
    print_json({{"model", a.model},
                {"output", a.output},
                {"samples", made.samples},
                {"round", made.round},
                {"rounds", made.rounds},
                {"bytes", made.bytes.size()},
                {"pipeline", a.nncf ? "nncf" : "auto"},
                {"approach", a.approach},
                {"method", a.approach == "static" && !a.nncf ? json_object(a.method)
                                                             : json_object(nullptr)}});
    return 0;
  }
  const std::string round = made.rounds == 1 ? ""
                                             : ", round " + std::to_string(made.round) + " of " +
                                                   std::to_string(made.rounds);
  std::printf("%s: %ju samples observed%s, %zu bytes\n", a.output.c_str(),
              static_cast<std::uintmax_t>(made.samples), round.c_str(), made.bytes.size());
  return 0;
}

}  // namespace detent_cli
