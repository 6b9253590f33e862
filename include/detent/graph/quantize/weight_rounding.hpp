// SPDX-License-Identifier: BSD-3-Clause
// Rounds the weights of a layer so that their rounding errors together do little harm at the
// layer's output, instead of rounding each weight to nearest.
//
// Scales stay as they are. With v = scale * (code - zero_point) and G the second moments of the
// layer's inputs (input_moments.hpp), the codes of each output channel minimize
//
//   (w - v)^T (G + damping * mean(diagonal of G) * I) (w - v)
//
// by coordinate descent from nearest rounding (solvers/coordinate_descent.hpp). The damping stands
// for inputs that the samples do not show. The guarantee holds with it: nearest rounding has the
// least |w - v|^2 on the grid, so if the sum falls, (w - v)^T G (w - v) falls.
//
// Sources: rounding against the layer's output is the idea of AdaRound (Nagel et al. 2020), which
// relaxes the problem and uses gradients; coordinate descent in its place is that of QuantEase
// (2023).
#ifndef DETENT_GRAPH_QUANTIZE_WEIGHT_ROUNDING_HPP
#define DETENT_GRAPH_QUANTIZE_WEIGHT_ROUNDING_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/input_moments.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>
#include <detent/solvers/coordinate_descent.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Options of round_weights() and gather_moments().
struct weight_rounding_options {
  /// The fraction of the mean diagonal of G that is added to its diagonal; it stands for inputs
  /// that the samples do not show. Not negative.
  double damping = 0.3;
  /// Number of rows of inputs (output positions of convolutions) that moments are computed from,
  /// about: each of n runs contributes at most max(1, rows / n). At least 1.
  std::size_t rows = 2048;
  /// Rows for each feature, about, at most: layers with few features need few rows. Positive.
  double rows_per_feature = 200.0;
  std::size_t max_sweeps = 20;  ///< Sweeps over the codes of a channel, at most; at least 1.
  /// Largest number of features K; layers that have more stay as they are.
  std::size_t max_features = 1152;
  /// Limit of the memory of all moments, as input_moments_options::max_bytes defines it.
  std::size_t max_bytes = std::size_t{1} << 28;
  /// The layers that are rounded, by the indices of their nodes. Without a value: all.
  std::optional<std::set<std::size_t>> layers = {};
  /// Called before each layer is rounded, with the index of its node. It may throw to end the
  /// rounding; layers before it have their new codes then.
  std::function<void(std::size_t layer)> on_layer = {};
};

/// Report of what round_weights() did to one layer.
struct rounded_layer {
  std::size_t layer = 0;     ///< Index of the node.
  std::string node;          ///< Label of the node.
  std::size_t features = 0;  ///< Number of features K.
  std::size_t groups = 1;    ///< Number of groups.
  std::uint64_t rows = 0;    ///< Number of rows that the moments were computed from.
  std::string left_out;      ///< Why the layer stayed as it was; empty if it was rounded.
  std::size_t changed = 0;   ///< Number of codes that differ from nearest rounding.
  /// Whether no change of a single code would reduce the sum that is minimized (with damping)
  /// further.
  bool converged = true;
  /// With nearest rounding: the squared error at the outputs that rounding the weights makes,
  /// summed over the channels, the mean over the rows.
  double nearest_error = 0.0;
  /// The squared error with the codes that were found, computed as `nearest_error`.
  double error = 0.0;
};

namespace detail {

/// A matrix of the codes or weights of one group of a layer, with one row for each output channel.
template <class T>
[[nodiscard]] matrix_view<T> channel_rows(T* data, const shape& dims, std::size_t axis,
                                          std::size_t groups, std::size_t group) {
  const auto first = static_cast<std::size_t>(dims[0]);
  std::size_t rest = 1;
  for (std::size_t d = 1; d < dims.size(); ++d) {
    rest *= static_cast<std::size_t>(dims[d]);
  }
  const std::size_t rows = first / groups;
  const matrix_view<T> stored(data + group * rows * rest, rows, rest);
  return axis == 0 ? stored : stored.transposed();
}

/// Rounds one layer by its moments; `w` holds its scales and its grid, and receives the codes.
inline void round_layer(const tensor& weights, layer_weights& w, const input_moments& moments,
                        float x_scale, const weight_rounding_options& options,
                        const parallel_for& parallel, rounded_layer& report) {
  tensor codes = tensor::allocate(element_type::s8, w.codes.dims());
  const double unit =
      detent::detail::rounded_product(static_cast<double>(x_scale), static_cast<double>(x_scale)) /
      static_cast<double>(report.rows);
  for (std::size_t group = 0; group < report.groups; ++group) {
    gram_matrix g = moments.gram(report.layer, group);
    // Damping adds `added` * |w - v|^2 to the objectives; the report is without it.
    const double added = detent::detail::rounded_product(options.damping, g.mean_diagonal());
    g = std::move(g).dampened(options.damping);
    const auto real =
        channel_rows(weights.data<float>().data(), weights.dims(), w.axis, report.groups, group);
    std::vector<float> scales(real.rows, w.scales[0]);
    if (w.scales.size() > 1) {
      std::copy_n(w.scales.begin() + static_cast<std::ptrdiff_t>(group * real.rows), real.rows,
                  scales.begin());
    }
    const std::vector<std::int32_t> zero_points(real.rows, w.zero_point);
    const weight_format format{
        .scheme = {w.levels, false}, .scales = scales, .zero_points = zero_points};
    const quantized_weights found = coordinate_descent(
        real, g, format, {.max_iterations = options.max_sweeps, .fixed_scales = true}, parallel);
    const gram_matrix ones = gram_matrix::from_diagonal(std::vector<double>(g.size(), 1.0));
    const quantized_weights nearest = round_to_nearest(real, ones, format, parallel);
    const auto undamped = [&](double objective, double squares) {
      return (std::max)(0.0, objective - detent::detail::rounded_product(added, squares));
    };
    report.nearest_error += detent::detail::rounded_product(
        unit, undamped(found.evidence.nearest_objective, nearest.evidence.objective));
    report.error += detent::detail::rounded_product(
        unit, undamped(found.evidence.objective, output_error(real, found, ones, parallel)));
    report.converged = report.converged && found.evidence.converged;
    const auto to = channel_rows(codes.mutable_data<std::int8_t>().data(), codes.dims(), w.axis,
                                 report.groups, group);
    for (std::size_t r = 0; r < found.rows; ++r) {
      for (std::size_t c = 0; c < found.columns; ++c) {
        const std::size_t k = r * found.columns + c;
        to(r, c) = found.codes[k];
        report.changed += found.codes[k] != nearest.codes[k] ? 1U : 0U;
      }
    }
  }
  w.codes = std::move(codes);
}

}  // namespace detail

/// Runs the float model of a plan on samples and gathers the moments of the inputs of its layers,
/// quantized with the ranges that `parameters` has. The samples are drawn twice; the first pass
/// only counts them.
///
/// Throws invalid_argument if there are no samples, if the input of a layer holds NaN or infinity
/// (naming the value and the sample), if `options.rows` is 0 or `options.rows_per_feature` is not
/// positive; and what input_moments throws.
[[nodiscard]] inline input_moments gather_moments(const quantization_plan& plan,
                                                  const quantization_parameters& parameters,
                                                  const calibration_source& samples,
                                                  const weight_rounding_options& options = {},
                                                  const executor_options& runner = {}) {
  require(static_cast<bool>(samples), error_kind::invalid_argument,
          "there is no source of calibration samples");
  require(options.rows > 0, error_kind::invalid_argument, "weight rounding by 0 rows of inputs");
  std::size_t runs = 0;
  while (samples()) {
    ++runs;
  }
  require(runs > 0, error_kind::invalid_argument, "there are no calibration samples");
  input_moments moments(
      plan, parameters,
      {.max_features = options.max_features,
       .max_bytes = options.max_bytes,
       .rows_per_run = (std::max)(std::size_t{1}, options.rows / runs),
       .rows_per_run_and_feature = options.rows_per_feature / static_cast<double>(runs),
       .layers = options.layers},
      runner.parallel);
  model fused = plan.float_model();
  fuse_activations(fused);  // no layer takes the input of an activation that is fused
  executor float_executor(std::move(fused), runner);
  std::size_t run = 0;
  while (const auto inputs = samples()) {
    ++run;
    static_cast<void>(float_executor.run(*inputs, [&](const std::string& name, const tensor& t) {
      detail::with_context("calibration sample " + std::to_string(run),
                           [&] { moments.add(name, t); });
    }));
  }
  return moments;
}

/// Rounds the weights of a plan's layers again, with the scales that they have in `parameters`, so
/// that the squared error at the output of each layer falls. For each output channel with weights
/// w, and with v = scale * (code - zero_point), coordinate descent from nearest rounding minimizes
///
///     (w - v)^T (G + damping * mean(diagonal of G) * I) (w - v)
///
/// where G is the layer's matrix in `moments`. The undamped error is never larger than that of
/// nearest rounding. It takes O(K^2) time for each channel, O(K) for each sweep and change.
/// Replaces the codes in `parameters`; returns one entry for each layer, in topological order.
/// Layers without moments stay as they are. Results do not depend on the number of threads or the
/// processor.
///
/// Throws invalid_argument if the parameters lack a layer, if the moments are those of another
/// plan, if `max_sweeps` is 0, or if the damping is negative or not finite.
///
/// Sources: AdaRound (Nagel et al. 2020) for rounding against the layer's output; QuantEase (2023)
/// for coordinate descent.
DETENT_GRAPH_DECL std::vector<rounded_layer> round_weights(
    const quantization_plan& plan, quantization_parameters& parameters,
    const input_moments& moments, const weight_rounding_options& options = {},
    const parallel_for& parallel = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<rounded_layer> round_weights(const quantization_plan& plan,
                                                           quantization_parameters& parameters,
                                                           const input_moments& moments,
                                                           const weight_rounding_options& options,
                                                           const parallel_for& parallel) {
  require(options.max_sweeps > 0, error_kind::invalid_argument, "weight rounding in 0 sweeps");
  require(std::isfinite(options.damping) && options.damping >= 0.0, error_kind::invalid_argument,
          "weight rounding with a damping of ", options.damping);
  const model& m = plan.float_model();
  std::vector<rounded_layer> report;
  for (const std::size_t i : plan.layers()) {
    const node& n = m.nodes[i];
    require(parameters.layers.count(i) != 0, error_kind::invalid_argument, n.label(),
            ": there are no quantized weights for it");
    if (options.on_layer) {
      options.on_layer(i);
    }
    rounded_layer r;
    r.layer = i;
    r.node = n.label();
    r.features = moments.features(i);
    r.groups = moments.groups(i);
    r.rows = moments.rows(i);
    r.left_out = moments.left_out(i);
    if (r.left_out.empty() && r.rows == 0) {
      r.left_out = "the samples have no rows for it";
    }
    if (r.left_out.empty()) {
      detail::with_context(r.node, [&] {
        detail::round_layer(
            m.initializers.at(n.inputs[1]), parameters.layers.at(i), moments,
            detail::entry_of(parameters.activations, n.inputs[0], "parameters for the activation")
                .scale,
            options, parallel, r);
      });
    }
    report.push_back(std::move(r));
  }
  return report;
}
#endif

/// Gathers the moments of the layers' inputs from samples with gather_moments(), then rounds the
/// weights of the plan's layers with them. Returns one entry for each layer, in topological order.
/// Throws what gather_moments() and round_weights() with moments throw.
DETENT_GRAPH_DECL std::vector<rounded_layer> round_weights(
    const quantization_plan& plan, quantization_parameters& parameters,
    const calibration_source& samples, const weight_rounding_options& options = {},
    const executor_options& runner = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<rounded_layer> round_weights(const quantization_plan& plan,
                                                           quantization_parameters& parameters,
                                                           const calibration_source& samples,
                                                           const weight_rounding_options& options,
                                                           const executor_options& runner) {
  return round_weights(plan, parameters, gather_moments(plan, parameters, samples, options, runner),
                       options, runner.parallel);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_WEIGHT_ROUNDING_HPP
