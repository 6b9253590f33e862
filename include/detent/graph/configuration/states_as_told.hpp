// SPDX-License-Identifier: BSD-3-Clause
// Does a quantization_job over many processes: each of them observes samples and saves a state, and
// one quantizes with all states.
#ifndef DETENT_GRAPH_CONFIGURATION_STATES_AS_TOLD_HPP
#define DETENT_GRAPH_CONFIGURATION_STATES_AS_TOLD_HPP

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/configuration/quantization_job.hpp>
#include <detent/graph/configuration/quantize_as_told.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/calibration_state.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/quantize/weight_only_state.hpp>
#include <detent/graph/run/executor_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

namespace detail {

/// Reads a number that a state has as text; leaves the number as it is if it is no number.
template <class Number>
void read_number(const std::string& text, Number& number) {
  static_cast<void>(std::from_chars(text.data(), text.data() + text.size(), number));
}

/// Merges all states of a source, one at a time.
template <class State>
void merge_all(State& state, const state_source& source) {
  while (const auto one = source ? source() : std::nullopt) {
    state.merge(*one);
  }
}

}  // namespace detail

/// Completes settings that are not given by those that a saved state was collected with: approach,
/// method, percentile, and type, bits and symmetry of activations; `from_states` is set. With
/// `observes`, bias correction as well, whose means are merged; it is otherwise done only if it is
/// given. Throws bad_file or unsupported, naming the state, if it is damaged or unknown.
inline void complete_from_state(quantization_settings& settings, const saved_state& state,
                                bool observes) {
  const std::map<std::string, std::string> known = settings_of_state(state);
  const auto take = [&](const char* option, const char* key, const auto& set) {
    const auto found = known.find(key);
    if (settings.given.count(option) == 0 && found != known.end()) {
      set(found->second);
    }
  };
  quantization_settings& s = settings;
  s.from_states = true;
  if (s.given.count("format") == 0) {
    take("approach", "approach", [&](const std::string& v) { s.approach = v; });
  }
  if (s.approach == "weight-only" || s.format == "matmulnbits") {
    return;
  }
  const bool has_percentile = s.given.count("percentile") != 0;
  take("method", "method", [&](const std::string& v) {
    s.method = v;
    s.given.insert("method");
  });
  const auto percentile = known.find("percentile");
  if (!has_percentile && percentile != known.end() && percentile->second != "the default") {
    detail::read_number(percentile->second, s.percentile);
  }
  take("activations", "type of activations", [&](const std::string& v) { s.activations = v; });
  take("activation-bits", "bits of activations", [&](const std::string& v) {
    detail::read_number(v, s.activation_bits);
    if (s.activation_bits != quantization_settings().activation_bits) {
      s.given.insert("activation-bits");
    }
  });
  take("symmetric-activations", "symmetry of activations",
       [&](const std::string& v) { s.symmetric_activations = v == "symmetric"; });
  if (observes) {
    take("bias-correction", detail::means_setting, [&](const std::string& v) {
      s.bias_correction = v == "yes" ? "fast" : "none";
      s.given.insert("bias-correction");
    });
  }
}

/// What observe_as_told() has made.
struct observed_state {
  std::vector<std::byte> bytes;  ///< The state, to be saved.
  std::uint64_t samples = 0;     ///< Runs of the model that it has seen in its round.
  std::size_t round = 1;         ///< The round that it is in.
  std::size_t rounds = 1;        ///< The rounds that the methods need.
};

/// Collects a state for a job, whose settings have `from_states`. `first` is the number of the
/// first sample among all samples.
///
///     earlier states   samples
///     no               yes       observes the samples
///     yes              no        merges the states
///     yes              yes       merges the states, and observes the samples in a second round
///
/// Throws what calibration_state and weight_only_state throw; invalid_argument without both, and
/// for a second round that the methods do not need.
[[nodiscard]] DETENT_GRAPH_DECL observed_state observe_as_told(
    const quantization_job& job, const model& m, const calibration_source& samples,
    std::uint64_t first, const state_source& earlier, const executor_options& runner = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL observed_state observe_as_told(const quantization_job& job, const model& m,
                                                 const calibration_source& samples,
                                                 std::uint64_t first, const state_source& earlier,
                                                 const executor_options& runner) {
  require(samples || earlier, error_kind::invalid_argument, "there are neither samples nor states");
  if (job.approach == "weight-only") {
    require(!samples || !earlier, error_kind::invalid_argument,
            "weight-only quantization needs no second round");
    weight_only_state state(m, detail::weight_only_options_of(job, runner));
    detail::merge_all(state, earlier);
    if (samples) {
      state.observe(samples, first);
    }
    return {state.save(), state.samples(), 1, 1};
  }
  calibration_state state(m, detail::static_options_of(job, runner));
  detail::merge_all(state, earlier);
  if (samples) {
    if (earlier) {
      state.begin_second_round();
    }
    state.observe(samples, first);
  }
  return {state.save(), state.samples_of_round(), state.round(), state.rounds()};
}
#endif

/// Quantizes a model as a job says, whose settings have `from_states`, with the states of all
/// samples, in any order. Throws what calibration_state, weight_only_state, and the quantization
/// with them throw; each message about a state names it.
[[nodiscard]] DETENT_GRAPH_DECL quantization_outcome
quantize_as_told(const quantization_job& job, const model& m, const state_source& states,
                 const quantization_run& run = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL quantization_outcome quantize_as_told(const quantization_job& job, const model& m,
                                                        const state_source& states,
                                                        const quantization_run& run) {
  quantization_outcome o;
  if (job.approach == "weight-only") {
    weight_only_options options = detail::weight_only_options_of(job, run.executor);
    weight_only_state all(m, options);
    detail::merge_all(all, states);
    detail::note_weights(options, run, o);
    o.result = quantize_weights_only(m, options, all);
    o.samples_of_states = all.samples();
    return o;
  }
  static_quantization_options options = detail::static_options_of(job, run.executor);
  calibration_state all(m, options);
  detail::merge_all(all, states);
  options.activations.on_parameters = detail::noted_parameters(o);
  o.parts = static_quantization(m, all, options);
  o.samples_of_states = all.samples();
  detail::finish_static(job, run, o);
  return o;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_CONFIGURATION_STATES_AS_TOLD_HPP
