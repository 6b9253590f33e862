// SPDX-License-Identifier: BSD-3-Clause
#include "observe_options.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <detent/error.hpp>
#include <detent/graph/configuration/states_as_told.hpp>
#include <detent/graph/quantize/state_file.hpp>

#include "overwriting.hpp"
#include "quantize_config.hpp"
#include "quantize_options.hpp"
#include "usage_error.hpp"
#include "whole_number.hpp"

namespace detent_cli {

namespace graph = detent::graph;

observe_options::observe_options(CLI::App& command) : command_(command), nncf_(command, true) {
  command.add_option("MODEL", a_.model, "Float ONNX model")->required();
  command.add_option("-o,--output", a_.output, "File for the state")->required();
  command.add_option(
      "--config", config_,
      "The YAML file of detent quantize, whose rules and options count here as well");
  command.add_option(
      "--calib", a_.calibration,
      "[NAME=]FILE[:axis=K|:fixed] or FOLDER: samples; FILE is .npy or .pb, its axis "
      "K (0) counts samples, or each run takes it whole (:fixed)");
  command.add_option("--samples", a_.samples, "A:B: only samples A up to, not including, B");
  command
      .add_option("--first-sample", a_.first_sample,
                  "Number of the first of these samples among all; by default A of --samples, or "
                  "0. Methods that depend on the order of samples need it for files of their own")
      ->transform(whole_number(0, std::uint64_t{1} << 62U));
  command.add_option("--states", a_.states,
                     "FILE...: with --calib, all states of the first round, for methods that need "
                     "a second one; without, states to merge");
  command
      .add_option("--pipeline", pipeline_,
                  "What the state is for: detent quantize as its options say (auto), or with "
                  "--pipeline nncf")
      ->check(CLI::IsMember({"auto", "nncf"}));
  add_range_options(command, s_);
  command.get_option("--approach")
      ->description(
          "What the samples are for: ranges of activations (static), or the weights alone "
          "(weight-only)");
  command.get_option("--method")
      ->description(
          "How ranges of activations are found (minmax|percentile|kl|mse|isotone|...); "
          "minmax is the default");
  command.get_option("--bias-correction")
      ->description(
          "fast, the default, keeps the means that fast bias correction needs; none "
          "leaves them out");
  command.get_option("--weight-algorithm")
      ->description(
          "How weights are rounded (weight-only): gptq or awq, which take the same states");
  command
      .add_option("--threads", a_.threads, "Threads; the result does not depend on their number")
      ->transform(whole_number(1, 1024));
}

observe_arguments observe_options::arguments() {
  if (has("--config")) {
    read_config();
  }
  require_nothing_overwritten(command_);
  s_.given = given_options(command_);
  if (a_.calibration.empty() && a_.states.empty()) {
    throw usage_error("--calib is required, or --states to merge");
  }
  if (a_.calibration.empty() && (has("--samples") || has("--first-sample"))) {
    throw usage_error("--samples and --first-sample are for --calib");
  }
  if (pipeline_ == "nncf") {
    read_nncf();
    return std::move(a_);
  }
  nncf_.require_none(s_.given, pipeline_);
  try {
    s_.from_states = true;
    if (!a_.states.empty()) {
      const graph::saved_state first = graph::read_state_file(a_.states[0]);
      if (is_state_of_nncf(first)) {
        throw usage_error(a_.states[0] + " is a state of --pipeline nncf, which cannot be merged");
      }
      graph::complete_from_state(s_, first, true);
    }
    if (s_.given.count("weight-algorithm") == 0 && s_.approach == "weight-only") {
      s_.weight_algorithm = "awq";  // gptq takes the same states
    }
    if (s_.given.count("bias-correction") == 0 && s_.approach == "static") {
      s_.bias_correction = "fast";  // which keeps means, for whoever needs them
      if (s_.given.insert("bias-correction").second && s_.given.count("method") == 0) {
        s_.method = s_.percentile != 0.0 ? "percentile" : "minmax";
        s_.given.insert("method");
      }
    }
    static_cast<graph::quantization_job&>(a_) = graph::make_quantization_job(std::move(s_), "--");
  } catch (const detent::error& e) {
    if (e.kind() == detent::error_kind::invalid_argument) {
      throw usage_error(e.what());
    }
    throw;  // a file with a state
  }
  return std::move(a_);
}

/// Reads the options of --pipeline nncf.
void observe_options::read_nncf() {
  for (const char* name : {"states", "first-sample"}) {
    if (s_.given.count(name) != 0) {
      throw usage_error(std::string("--pipeline nncf has no --") + name +
                        " here: its states hold all samples, and cannot be merged");
    }
  }
  if (s_.given.count("activations") != 0) {
    throw usage_error("--pipeline nncf has no --activations here: it does not change its states");
  }
  a_.nncf = nncf_.arguments(s_.given, s_.bias_correction);
  add_ignored_nodes(*a_.nncf, s_.scope, s_.overrides);
}

/// Takes from a configuration file what concerns samples. The options of quantize that do not are
/// passed over, so that both commands take one file.
void observe_options::read_config() {
  if (config_.empty()) {
    throw usage_error("--config names no file");
  }
  quantize_config file = read_quantize_config(config_);
  static const std::set<std::string> of_weights = {"format",
                                                   "weights",
                                                   "granularity",
                                                   "weight-scales",
                                                   "reduce-range",
                                                   "bits",
                                                   "samples",
                                                   "block-size",
                                                   "max-drop",
                                                   "validation",
                                                   "labels",
                                                   "report",
                                                   "budget",
                                                   "preset",
                                                   "target-device",
                                                   "overflow-fix",
                                                   "external-data-from"};
  std::erase_if(file.options,
                [&](const quantize_config::option& o) { return of_weights.count(o.name) != 0; });
  apply_flags(command_, file.options);
  s_.scope = std::move(file.scope);
  s_.overrides = std::move(file.activations);
  s_.source = config_;
}

}  // namespace detent_cli
