// SPDX-License-Identifier: BSD-3-Clause
// Weights rounded by what their rounding errors do together at the layer's output, not one by one.
//
// Scales stay as they are. With v = scale * (code - zero_point) and G the second moments of the
// layer's inputs (input_moments.hpp), the codes of each output channel minimize
//
//   (w - v)^T (G + damping * mean(diagonal of G) * I) (w - v)
//
// by coordinate descent from nearest rounding (solvers/coordinate_descent.hpp). The damping stands
// for inputs that the samples do not show. It takes nothing from the promise: nearest rounding has
// the least |w - v|^2 on the grid, so that where the sum falls, (w - v)^T G (w - v) falls.
//
// Sources: rounding against the layer's output is that of AdaRound (Nagel et al. 2020), which
// relaxes and takes gradients; coordinate descent in its place that of QuantEase (2023).
#ifndef DETENT_GRAPH_QUANTIZE_WEIGHT_ROUNDING_HPP
#define DETENT_GRAPH_QUANTIZE_WEIGHT_ROUNDING_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
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

struct weight_rounding_options {
  double damping = 0.3;  // see the top of this file
  /// Rows of inputs (output positions of convolutions) that moments are taken of, about: each of n
  /// runs gives at most max(1, rows / n).
  std::size_t rows = 2048;
  std::size_t max_sweeps = 20;                   // over the codes of a channel
  std::size_t max_features = 1152;               // K; layers that have more stay as they are
  std::size_t max_bytes = std::size_t{1} << 28;  // see input_moments_options
};

/// What was done to one layer.
struct rounded_layer {
  std::size_t layer = 0;     // index of the node
  std::string node;          // its label
  std::size_t features = 0;  // K
  std::size_t groups = 1;
  std::uint64_t rows = 0;   // that were looked at
  std::string left_out;     // why it stayed as it was; empty if it was rounded
  std::size_t changed = 0;  // codes that nearest rounding would not give
  bool converged = true;    // no single code can be changed for the better
  /// The squared error at the outputs that rounding the weights makes, summed over the channels,
  /// the mean over the rows: of nearest rounding, and of the codes that were found.
  double nearest_error = 0.0;
  double error = 0.0;
};

namespace detail {

/// The codes, or weights, of one group of a layer: a row for each output channel.
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

/// Rounds one layer by its moments; `w` holds its scales and its grid.
inline void round_layer(const tensor& weights, layer_weights& w, const input_moments& moments,
                        float x_scale, const weight_rounding_options& options,
                        const parallel_for& parallel, rounded_layer& report) {
  tensor codes = tensor::allocate(element_type::s8, w.codes.dims());
  const double unit =
      detent::detail::rounded_product(static_cast<double>(x_scale), static_cast<double>(x_scale)) /
      static_cast<double>(report.rows);
  for (std::size_t group = 0; group < report.groups; ++group) {
    const gram_matrix g = moments.gram(report.layer, group);
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
    const quantized_weights found =
        coordinate_descent(real, g.dampened(options.damping), format,
                           {.max_iterations = options.max_sweeps, .fixed_scales = true}, parallel);
    // What the damping has added to the objectives is that times |w - v|^2.
    const gram_matrix ones = gram_matrix::from_diagonal(std::vector<double>(g.size(), 1.0));
    const quantized_weights nearest = round_to_nearest(real, ones, format, parallel);
    const double added = detent::detail::rounded_product(options.damping, g.mean_diagonal());
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

/// Runs the float model of a plan on samples and gathers the moments of its layers' inputs, with
/// the ranges that `parameters` has. The samples are drawn twice, once to count them. Throws
/// invalid_argument: no samples, NaN or infinity in what a layer takes (naming the value and the
/// sample), `rows` of 0; and as input_moments.
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
  input_moments moments(plan, parameters,
                        {.max_features = options.max_features,
                         .max_bytes = options.max_bytes,
                         .rows_per_run = (std::max)(std::size_t{1}, options.rows / runs)},
                        runner.parallel);
  model fused = plan.float_model();
  fuse_activations(fused);  // no layer takes what goes into the activation
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

/// Rounds the weights of a plan's layers again, with the scales that they have in `parameters`, by
/// the moments of their inputs. Time: K^2 for each channel and sweep. Returns what was done, layer
/// by layer in topological order. The same for any number of threads and on any processor. Throws
/// invalid_argument: parameters that lack a layer, moments of another plan, `max_sweeps` of 0, a
/// damping that is negative or not finite.
inline std::vector<rounded_layer> round_weights(const quantization_plan& plan,
                                                quantization_parameters& parameters,
                                                const input_moments& moments,
                                                const weight_rounding_options& options = {},
                                                const parallel_for& parallel = {}) {
  require(options.max_sweeps > 0, error_kind::invalid_argument, "weight rounding in 0 sweeps");
  require(std::isfinite(options.damping) && options.damping >= 0.0, error_kind::invalid_argument,
          "weight rounding with a damping of ", options.damping);
  const model& m = plan.float_model();
  std::vector<rounded_layer> report;
  for (const std::size_t i : plan.layers()) {
    const node& n = m.nodes[i];
    require(parameters.layers.count(i) != 0, error_kind::invalid_argument, n.label(),
            ": there are no quantized weights for it");
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
        detail::round_layer(m.initializers.at(n.inputs[1]), parameters.layers.at(i), moments,
                            parameters.activations.at(n.inputs[0]).scale, options, parallel, r);
      });
    }
    report.push_back(std::move(r));
  }
  return report;
}

/// The same with moments that are gathered for it.
inline std::vector<rounded_layer> round_weights(const quantization_plan& plan,
                                                quantization_parameters& parameters,
                                                const calibration_source& samples,
                                                const weight_rounding_options& options = {},
                                                const executor_options& runner = {}) {
  return round_weights(plan, parameters, gather_moments(plan, parameters, samples, options, runner),
                       options, runner.parallel);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_WEIGHT_ROUNDING_HPP
