// SPDX-License-Identifier: BSD-3-Clause
// The outcome of a quantization, and the data of the report about it.
#ifndef DETENT_CLI_QUANTIZE_REPORT_HPP
#define DETENT_CLI_QUANTIZE_REPORT_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/configuration/quantize_as_told.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/automatic_quantization.hpp>
#include <detent/graph/quantize/static_quantization.hpp>

#include "commands.hpp"
#include "report.hpp"
#include "samples.hpp"

namespace detent_cli {

namespace graph = detent::graph;

/// The outcome of a quantization, and how it came about.
struct outcome : graph::quantization_outcome {
  std::optional<graph::accuracy_control_result> accuracy;  // only with --max-drop
  std::vector<std::string> ignored_in_vain;                // only with --pipeline nncf
  std::size_t scaled_layers = 0;                           // only with --awq
};

/// Samples whose labels are known.
struct labelled_samples {
  const sample_set& samples;
  const std::vector<std::int64_t>& labels;  // the labels of all samples in the files
  std::string where;                        // what messages call a label
};

/// The top-1 and the top-5 accuracy of a model, in percent.
std::pair<double, double> accuracy(const graph::model& m, const labelled_samples& labelled,
                                   const graph::executor_options& options);

/// The data of the report, but for the sizes of the files and the time that quantization took.
/// `labelled` may be null; then there is no accuracy in the report.
report_data make_report(const quantize_arguments& a, const graph::model& m,
                        const sample_set& samples, const labelled_samples* labelled,
                        const outcome& o);

}  // namespace detent_cli

#endif  // DETENT_CLI_QUANTIZE_REPORT_HPP
