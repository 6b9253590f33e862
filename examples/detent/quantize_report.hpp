// SPDX-License-Identifier: BSD-3-Clause
// What a quantization came to, and the page about it.
#ifndef DETENT_CLI_QUANTIZE_REPORT_HPP
#define DETENT_CLI_QUANTIZE_REPORT_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/automatic_quantization.hpp>
#include <detent/graph/quantize/static_quantization.hpp>

#include "commands.hpp"
#include "report.hpp"
#include "samples.hpp"

namespace detent_cli {

namespace graph = detent::graph;

/// What came out, and how.
struct outcome {
  graph::model result;
  std::optional<graph::quantization> parts;  // of the static approach
  std::map<std::string, detent::scale_solution> solutions;
  std::map<std::string, std::string> methods;  // that they are from
  std::vector<graph::quantization_step> steps;
  std::size_t layers = 0;
  std::optional<graph::accuracy_control_result> accuracy;  // of --max-drop
};

/// Samples whose labels are known.
struct labelled_samples {
  const sample_set& samples;
  const std::vector<std::int64_t>& labels;  // of all samples of the files
  std::string where;                        // for messages
};

/// top-1 and top-5 in percent.
std::pair<double, double> accuracy(const graph::model& m, const labelled_samples& labelled);

/// All but the sizes of the files and the time it took. `labelled` may be null.
report_data make_report(const quantize_arguments& a, const graph::model& m,
                        const sample_set& samples, const labelled_samples* labelled,
                        const outcome& o);

}  // namespace detent_cli

#endif  // DETENT_CLI_QUANTIZE_REPORT_HPP
