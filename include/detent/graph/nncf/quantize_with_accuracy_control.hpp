// SPDX-License-Identifier: BSD-3-Clause
// nncf.quantize_with_accuracy_control: nncf::quantize(), then layers left in float until a metric
// is met again.
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

/// The metric of a model on samples that begin anew when they have given nothing.
using validation_function = std::function<double(const model&, const calibration_source&)>;

/// What NNCF's defaults are: an absolute drop of 0.01, layers that share their input together.
[[nodiscard]] inline accuracy_control_options accuracy_control_defaults() {
  accuracy_control_options options;
  options.group_by_input = true;
  options.quantize_again = false;
  return options;
}

/// `validate` is called with the float model and with quantized ones, on all of `validation`, of
/// which the ranking of layers by output errors takes its samples, too. Throws as nncf::quantize()
/// and control_accuracy().
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
