// SPDX-License-Identifier: BSD-3-Clause
// The list of the passes that every quantized network goes through.
#ifndef DETENT_GRAPH_PPQ_QUANTIZING_PASSES_HPP
#define DETENT_GRAPH_PPQ_QUANTIZING_PASSES_HPP

#include <detent/config.hpp>
#include <detent/graph/ppq/alignment.hpp>
#include <detent/graph/ppq/calibration.hpp>
#include <detent/graph/ppq/fusion.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/passive_parameters.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The pipeline of the passes that quantize a network, in this order: "fusion", "parameter
/// quantization", "runtime calibration", "alignment" and "passive parameters". Each is given with
/// its settings.
[[nodiscard]] inline pipeline quantizing_passes(
    const fusion_pass& fusion = {}, const parameter_quantization_pass& parameters = {},
    const runtime_calibration_pass& calibration = {}, const alignment_pass& alignment = {},
    const passive_parameter_pass& passive_parameters = {}) {
  return {{"fusion", fusion},
          {"parameter quantization", parameters},
          {"runtime calibration", calibration},
          {"alignment", alignment},
          {"passive parameters", passive_parameters}};
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_QUANTIZING_PASSES_HPP
