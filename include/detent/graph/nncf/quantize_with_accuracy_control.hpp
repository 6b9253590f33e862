// SPDX-License-Identifier: BSD-3-Clause
// NNCF's quantize_with_accuracy_control: nncf::quantize(), then layers are left in float until the
// quantized model's metric is close enough to that of the float model.
#ifndef DETENT_GRAPH_NNCF_QUANTIZE_WITH_ACCURACY_CONTROL_HPP
#define DETENT_GRAPH_NNCF_QUANTIZE_WITH_ACCURACY_CONTROL_HPP

#include <functional>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/nncf/dataset.hpp>
#include <detent/graph/nncf/quantize.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/calibration.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// Computes the metric of a model on samples. The source of samples begins anew after it has given
/// nothing.
using validation_function = std::function<double(const model&, const calibration_source&)>;

/// The options of accuracy control that have NNCF's defaults: an absolute drop of the metric of at
/// most 0.01; layers that take the same value are left in float together; layers that were left in
/// float are not quantized again in the end.
[[nodiscard]] inline accuracy_control_options accuracy_control_defaults() {
  accuracy_control_options options;
  options.group_by_input = true;
  options.quantize_again = false;
  return options;
}

/// Quantizes a float model with nncf::quantize() on the samples of `calibration`, then leaves
/// layers in float, the most harmful ones first, until the metric meets the goal of `control`.
///
/// `validate` is called with the float model and with quantized models, each time with all samples
/// of `validation`. The ranking of layers by output errors takes its samples from `validation`,
/// too. The result says whether the goal is met; if not, it is the model with the best metric.
/// Throws what nncf::quantize(), control_accuracy() and `validate` throw.
[[nodiscard]] inline accuracy_control_result quantize_with_accuracy_control(
    const model& float_model, const dataset& calibration, const dataset& validation,
    const validation_function& validate, const quantize_options& options = {},
    const accuracy_control_options& control = accuracy_control_defaults()) {
  const auto metric = [&](const model& m) { return validate(m, validation.samples()); };
  return control_accuracy(float_model, quantize(float_model, calibration, options),
                          validation.samples(), metric, control);
}

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_QUANTIZE_WITH_ACCURACY_CONTROL_HPP
