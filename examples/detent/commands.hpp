// SPDX-License-Identifier: BSD-3-Clause
// The commands of the tool and the arguments that they take. Each command returns the exit code,
// and throws detent::error on failure.
#ifndef DETENT_CLI_COMMANDS_HPP
#define DETENT_CLI_COMMANDS_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <detent/graph/configuration/quantization_job.hpp>
#include <detent/graph/inc/configuration.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/run/executor_options.hpp>
#include <detent/parallel.hpp>

#include "common_arguments.hpp"
#include "nncf_arguments.hpp"
#include "ppq_arguments.hpp"

namespace detent_cli {

struct quantize_arguments : common_arguments, detent::graph::quantization_job {
  std::string model, output;
  std::vector<std::string> calibration;  // files or a folder of samples, as sample_set takes them
  std::vector<std::string> states;       // files with states, in the place of samples
  std::size_t samples = 0;               // how many are used; 0: all
  std::optional<double> max_drop;        // the drop of top-1 that is allowed, in points of percent
  std::vector<std::string> validation;   // like calibration; empty: the calibration samples
  std::string labels;                    // .npy with the labels of these samples; may be empty
  std::string report;                    // HTML file to write; empty: none
  // A model of so many bytes or more is written with external data.
  std::size_t external_data_from = std::size_t{1} << 31U;
  std::size_t threads = 1;
  detent::parallel_for parallel;  // runs the threads; empty: the calling thread runs everything

  /// The options for runs of models, with the threads.
  [[nodiscard]] detent::graph::executor_options executor_options() const {
    detent::graph::executor_options options = common_arguments::executor_options();
    options.parallel = parallel;
    return options;
  }
  // What a configuration file of Neural Compressor says; most of the members above do not count
  // then.
  std::optional<detent::graph::inc::configuration> tuning;
  std::optional<nncf_arguments> nncf;  // with --pipeline nncf
  std::optional<ppq_arguments>
      ppq;  // of --pipeline ppq; then most of the members above do not count
};
int quantize(const quantize_arguments& a);

struct observe_arguments : common_arguments, detent::graph::quantization_job {
  std::string model, output;
  std::vector<std::string> calibration;       // like that of quantize
  std::vector<std::string> states;            // files to merge, or to go on from
  std::string samples;                        // A:B, the range of samples; empty: all
  std::optional<std::uint64_t> first_sample;  // number of the first of these among all
  std::size_t threads = 1;
  std::optional<nncf_arguments> nncf;  // with --pipeline nncf; then the job does not count
};
int observe(const observe_arguments& a);

struct eval_arguments : common_arguments {
  std::string model, labels;
  std::vector<std::string> data;
  std::string samples;    // A:B, the range of samples; empty: all
  std::size_t batch = 0;  // 0: the batch size that the model fixes, or 1
  std::size_t threads = 1;
  std::string target;
};
int eval(const eval_arguments& a);

struct run_arguments : common_arguments {
  std::string model, output;
  std::vector<std::string> inputs;
};
int run(const run_arguments& a);

struct compare_arguments : common_arguments {
  std::string reference, quantized;
  std::vector<std::string> data;
  std::string samples;
};
int compare(const compare_arguments& a);

struct inspect_arguments : common_arguments {
  std::string model;
};
int inspect(const inspect_arguments& a);

struct conformance_arguments : common_arguments {
  std::vector<std::string> folders;
};
int conformance(const conformance_arguments& a);

int targets(bool json);

}  // namespace detent_cli

#endif  // DETENT_CLI_COMMANDS_HPP
