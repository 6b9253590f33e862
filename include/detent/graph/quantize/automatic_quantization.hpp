// SPDX-License-Identifier: BSD-3-Clause
// Static quantization that chooses by measuring: each step is tried on the calibration samples and
// kept only if the outputs of the model come closer to those of the float model.
//
//   1. plain            min/max ranges, absmax weights: the baseline
//   2. equalization     of the ranges of channels across pairs of layers
//   3. SmoothQuant      of layers whose inputs float operators make, with alpha 0.5, 0.8 and 0.95
//   4. alignment        of channels between two convolutions
//   5. weight scales    of least squared error
//   6. weight rounding  against the outputs of each layer, with the scales of 1 and with those of 5
//   7. ranges           all activations by another observer
//   8. range of one     activation by another observer, one at a time
//   9. bias correction  fast, full
//
// The measure is output_judge::noise_to_signal() of the outputs, or of the input of a Softmax that
// makes them. Ranges and biases of a trial come from one half of the samples, the measure from the
// other half. The decisions of the last step that was kept are then repeated with all samples. If
// the outputs themselves are worse than with plain min/max, those of the step before are tried
// instead, and so on; if no step is as good, the result is plain min/max. When the budget has ended
// the search, only the last step is compared, with the samples that it was made with.
//
// Memory: observers (at most a histogram for each activation and method), `judge_samples` samples
// with their float results, and the moments by which weights are rounded.
#ifndef DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_HPP
#define DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_HPP

#include <algorithm>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/quantize/automatic_quantization_options.hpp>
#include <detent/graph/quantize/automatic_search.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/partial_quantization.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/static_quantization.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Quantizes a float model, and chooses how by measuring: tries cross-layer equalization,
/// SmoothQuant, channel alignment, weight scales of least squared error, weight rounding against
/// the layers' outputs, other observers for the ranges, and bias correction, and keeps each step
/// only if it lowers the noise of the model's outputs relative to the float model. The result is no
/// worse, by the outputs for `judge_samples` samples, than static quantization with min/max ranges
/// and absmax weights.
///
/// @code{.cpp}
/// #include <detent/graph/onnx.hpp>
/// #include <detent/graph/quantize/automatic_quantization.hpp>
///
/// detent::graph::model quantize(const detent::graph::model& m,
///                               const detent::graph::calibration_source& samples) {
///   detent::graph::automatic_quantization_options options;
///   options.methods = {"mse", "percentile", "kl"};
///   options.judge_samples = 32;
///   return detent::graph::automatic_quantization(m, samples, options).result;
/// }
/// @endcode
///
/// `samples` is drawn many times. With 8 samples or more, ranges and biases of the trials come from
/// every other sample and the noise is measured with the rest; the final result uses all samples.
/// Deterministic: the result does not depend on the threads.
///
/// If the executor lacks operators of the model, static_quantization() says what happens; the noise
/// is then that of the values which the nodes that cannot be run take from the others, and of the
/// outputs that do not depend on such nodes. If none of these is float, ranges are min/max.
///
/// Throws what static_quantization() throws, and unsupported if the model has no float output.
[[nodiscard]] DETENT_GRAPH_DECL quantization
automatic_quantization(const model& float_model, const calibration_source& samples,
                       const automatic_quantization_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL quantization
automatic_quantization(const model& float_model, const calibration_source& samples,
                       const automatic_quantization_options& options) {
  return detail::quantize_runnable_part(
      float_model, options.scope, [&](const model& runnable, const quantization_scope& scope) {
        const auto returns_float = [](const model& m) {
          return std::any_of(m.outputs.begin(), m.outputs.end(), [](const value_info& v) {
            return fits_float(v.type) || v.type == element_type::undefined;
          });
        };
        if (!returns_float(runnable) && returns_float(float_model)) {
          // There is nothing to measure in the part that can be run.
          static_quantization_options plain{
              .activations = options.activations, .weights = options.weights, .scope = scope};
          plain.executor = options.executor;
          return static_quantization(runnable, samples, plain);
        }
        automatic_quantization_options within = options;
        within.scope = scope;
        return detail::automatic_quantizer(runnable, samples, within).run();
      });
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_HPP
