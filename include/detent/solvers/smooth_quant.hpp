// SPDX-License-Identifier: BSD-3-Clause
// SmoothQuant: moves outliers of a linear layer's inputs into its weights, feature by feature.
//
//     X W^T = (X / s) (W s)^T
#ifndef DETENT_SOLVERS_SMOOTH_QUANT_HPP
#define DETENT_SOLVERS_SMOOTH_QUANT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/error.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/scale_rules.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of smooth_quant_scales().
struct smooth_quant_options {
  float alpha = 0.5F;  ///< how much of the difficulty moves to the weights, in [0, 1]
  /// Scales are clipped to [max(smallest, their own quantile), largest]. NNCF uses the quantile 0.1
  /// and largest 100.
  float smallest = 1e-5F;
  /// Which quantile of the scales is the least one allowed, in [0, 1), with linear interpolation;
  /// 0: none.
  float smallest_quantile = 0.0F;
  /// The largest scale allowed; finite.
  float largest = std::numeric_limits<float>::max();
  /// Whether scales are rounded to the nearest power of two (in the logarithm) that is not clipped;
  /// if all are, to the largest one below. Such scales change nothing but exponents: X / s and W s
  /// are exact.
  bool power_of_two = false;
};

namespace detail {

/// The power of two that is nearest to x in the logarithm among those from smallest to largest; the
/// largest one below x if there is none. x must be in between.
[[nodiscard]] inline double near_power_of_two(double x, double smallest, double largest) noexcept {
  const double below = std::ldexp(1.0, std::ilogb(x));
  const double above = 2.0 * below;
  const bool is_above_nearer = x / below >= above / x;
  return above <= largest && (is_above_nearer || below < smallest) ? above : below;
}

}  // namespace detail

/// Computes the scale of each feature, one for each column of `weights` (outputs x features):
///
///     s_j = a_j^alpha / w_j^(1 - alpha), clipped
///
/// where a_j = activation_magnitudes[j] is the largest |x| of the feature (as
/// channel_min_max_observer finds it) and w_j the largest |w| of the column. A feature where either
/// is zero has scale 1. Layers that share their inputs must share one vector of scales: pass their
/// weights stacked.
///
/// Throws shape_mismatch if the number of magnitudes is not the number of columns; invalid_argument
/// if a magnitude is negative, NaN or infinite, a weight is NaN or infinite, or an option is out of
/// its domain. Thread-safe; the same bits everywhere.
///
/// Source: Xiao et al., SmoothQuant (2023).
[[nodiscard]] inline std::vector<float> smooth_quant_scales(
    std::span<const float> activation_magnitudes, matrix_view<const float> weights,
    const smooth_quant_options& options = {}) {
  constexpr const char* where = "smooth_quant_scales";
  const auto invalid = error_kind::invalid_argument;
  detail::require_matrix(weights, where);
  require(activation_magnitudes.size() == weights.columns, error_kind::shape_mismatch, where, ": ",
          activation_magnitudes.size(), " magnitudes for ", weights.columns, " features");
  require(options.alpha >= 0.0F && options.alpha <= 1.0F, invalid, where, ": alpha ", options.alpha,
          " is not in [0, 1]");
  require(options.smallest_quantile >= 0.0F && options.smallest_quantile < 1.0F, invalid, where,
          ": the quantile ", options.smallest_quantile, " is not in [0, 1)");
  require(options.smallest >= std::numeric_limits<float>::min() &&
              options.smallest <= options.largest && std::isfinite(options.largest),
          invalid, where, ": scales from ", options.smallest, " to ", options.largest);
  std::vector<double> raw(weights.columns);
  std::vector<double> live;
  for (std::size_t j = 0; j < weights.columns; ++j) {
    const float a = activation_magnitudes[j];
    require(std::isfinite(a) && a >= 0.0F, invalid, where, ": the magnitude of feature ", j, " is ",
            a);
    float w = 0.0F;
    for (std::size_t r = 0; r < weights.rows; ++r) {
      const float one = std::fabs(weights(r, j));
      require(std::isfinite(one), invalid, where, ": the weight at row ", r, ", column ", j, " is ",
              weights(r, j));
      w = one > w ? one : w;
    }
    if (a > 0.0F && w > 0.0F) {
      const double alpha = static_cast<double>(options.alpha);
      raw[j] = detail::portable_power(static_cast<double>(a), alpha) /
               detail::portable_power(static_cast<double>(w), 1.0 - alpha);
      live.push_back(raw[j]);
    }
  }
  auto smallest = static_cast<double>(options.smallest);
  const auto largest = static_cast<double>(options.largest);
  if (options.smallest_quantile > 0.0F && !live.empty()) {
    std::sort(live.begin(), live.end());
    const double place = detail::rounded_product(static_cast<double>(options.smallest_quantile),
                                                 static_cast<double>(live.size() - 1));
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = (std::min)(below + 1, live.size() - 1);
    const double quantile =
        live[below] +
        detail::rounded_product(place - static_cast<double>(below), live[above] - live[below]);
    smallest = (std::min)(largest, (std::max)(smallest, quantile));
  }
  std::vector<float> scales(weights.columns, 1.0F);
  for (std::size_t j = 0; j < scales.size(); ++j) {
    if (raw[j] > 0.0) {
      const double clipped = std::clamp(raw[j], smallest, largest);
      scales[j] = static_cast<float>(
          options.power_of_two ? detail::near_power_of_two(clipped, smallest, largest) : clipped);
    }
  }
  return scales;
}

namespace detail {

/// f(x, scale of its column) for each element, dense row by row. Throws overflow if a finite value
/// becomes infinite.
template <class F>
std::vector<float> map_columns(matrix_view<const float> x, std::span<const float> scales,
                               const char* where, const F& f) {
  require_matrix(x, where);
  require(scales.size() == x.columns, error_kind::shape_mismatch, where, ": ", scales.size(),
          " scales for ", x.columns, " columns");
  for (std::size_t c = 0; c < scales.size(); ++c) {
    require_scale_of("column", c, scales[c], where);
  }
  std::vector<float> y(x.rows * x.columns);
  for (std::size_t r = 0; r < x.rows; ++r) {
    for (std::size_t c = 0; c < x.columns; ++c) {
      const float value = f(x(r, c), scales[c]);
      require(std::isfinite(value) || !std::isfinite(x(r, c)), error_kind::overflow, where,
              ": the value ", x(r, c), " at row ", r, ", column ", c, " with the scale ",
              scales[c]);
      y[r * x.columns + c] = value;
    }
  }
  return y;
}

}  // namespace detail

/// W s: each element of `x` times the scale of its column, rounded to float, row by row. NaN and
/// infinities stay. Throws shape_mismatch if there is not one scale for each column,
/// invalid_argument if a scale is not positive and finite, overflow if a finite value becomes
/// infinite. Thread-safe.
[[nodiscard]] inline std::vector<float> multiply_columns(matrix_view<const float> x,
                                                         std::span<const float> scales) {
  return detail::map_columns(x, scales, "multiply_columns", [](float v, float s) { return v * s; });
}
/// X / s: each element of `x` divided by the scale of its column, rounded to float, row by row. NaN
/// and infinities stay. Throws shape_mismatch if there is not one scale for each column,
/// invalid_argument if a scale is not positive and finite, overflow if a finite value becomes
/// infinite. Thread-safe.
[[nodiscard]] inline std::vector<float> divide_columns(matrix_view<const float> x,
                                                       std::span<const float> scales) {
  return detail::map_columns(x, scales, "divide_columns", [](float v, float s) { return v / s; });
}

/// Options of smooth_quant_search().
struct smooth_quant_search_options {
  smooth_quant_options scales = {};  ///< options of the scales; alpha is ignored
  std::size_t grid_points = 11;      ///< number of alphas, equally spaced from 0 to 1; at least 2
  /// The scheme of the activations, which are quantized per tensor with the parameters of their
  /// range.
  quant_scheme activations = asymmetric<std::uint8_t>;
};

/// The result of smooth_quant_search().
struct smooth_quant_result {
  std::optional<float> alpha;      ///< the best alpha; empty if no smoothing is best
  std::vector<float> scales;       ///< scale of each feature
  quant_params activation_params;  ///< parameters of X / scales
  /// Codes of W times scales. Objectives in its evidence are sums of squares over samples and
  /// outputs: objective of this result, nearest_objective of quantization without smoothing.
  quantized_weights weights;
  std::vector<double> errors;  ///< the sum of squares of each alpha of the grid
};

/// Tries alphas 0, 1 / (n - 1), ..., 1 and no smoothing at all on a sample X (samples x features),
/// and takes the one with the least sum of squares of
///
///     X W^T - dequantize(quantize(X / s)) dequantize(quantize(W s))^T
///
/// where X / s is quantized per tensor on options.activations and W s by `format`; of equally good
/// ones the first, no smoothing coming before all alphas. So it is never worse than no smoothing.
/// Sums run in a fixed order, in double: the same bits everywhere. Time: n + 1 products of the
/// sizes of the layer.
///
/// Throws what smooth_quant_scales() and round_to_nearest() throw, and invalid_argument if there
/// are fewer than two alphas, no samples, a value of X that is NaN or infinite, or if `format` has
/// scales, since the weights change with alpha. Thread-safe; the result does not depend on
/// `parallel`.
[[nodiscard]] inline smooth_quant_result smooth_quant_search(
    matrix_view<const float> activations, matrix_view<const float> weights,
    const weight_format& format = {}, const smooth_quant_search_options& options = {},
    const parallel_for& parallel = {}) {
  constexpr const char* where = "smooth_quant_search";
  detail::require_matrix(activations, where);
  require(activations.columns == weights.columns, error_kind::shape_mismatch, where, ": ",
          activations.columns, " features for weights of ", weights.columns, " columns");
  require(options.grid_points >= 2, error_kind::invalid_argument, where, ": ", options.grid_points,
          " alphas");
  require(activations.rows > 0, error_kind::invalid_argument, where, ": no samples");
  require(format.scales.empty(), error_kind::invalid_argument, where,
          ": the weights change with alpha, their scales cannot be given");
  const detail::weight_problem problem(weights, format, where);
  const std::size_t samples = activations.rows;
  const std::size_t features = activations.columns;
  std::vector<float> magnitudes(features);
  std::vector<double> x(features * samples);  // transposed
  for (std::size_t r = 0; r < samples; ++r) {
    for (std::size_t c = 0; c < features; ++c) {
      const float value = activations(r, c);
      require(std::isfinite(value), error_kind::invalid_argument, where, ": the activation at row ",
              r, ", column ", c, " is ", value);
      magnitudes[c] = (std::max)(magnitudes[c], std::fabs(value));
      x[c * samples + r] = static_cast<double>(value);
    }
  }

  const auto attempt = [&](std::vector<float> scales) {
    smooth_quant_result result;
    const std::vector<float> smooth = divide_columns(activations, scales);
    const std::vector<float> scaled = multiply_columns(weights, scales);
    const auto [lower, upper] = std::minmax_element(smooth.begin(), smooth.end());
    result.activation_params = params_from_range({*lower, *upper}, options.activations);
    const quant_params p = result.activation_params;
    std::vector<double> xq(x.size());
    for (std::size_t r = 0; r < samples; ++r) {
      for (std::size_t c = 0; c < features; ++c) {
        const std::int32_t q =
            reference::quantize(smooth[r * features + c], p, options.activations.levels);
        xq[c * samples + r] = static_cast<double>(q - p.zero_point) * static_cast<double>(p.scale);
      }
    }
    const detail::weight_problem scaled_problem(
        matrix_view<const float>(scaled.data(), weights.rows, weights.columns), format, where);
    result.weights = scaled_problem.nearest();
    std::vector<double> errors(problem.rows);
    problem.for_row_blocks(parallel, [&](std::size_t first_row, std::size_t count) {
      std::vector<double> y(samples);
      for (std::size_t r = first_row; r < first_row + count; ++r) {
        std::fill(y.begin(), y.end(), 0.0);
        for (std::size_t c = 0; c < features; ++c) {
          detail::add_scaled(samples, static_cast<double>(problem.row(r)[c]),
                             x.data() + c * samples, y.data());
          detail::add_scaled(samples, -result.weights.value(r, c), xq.data() + c * samples,
                             y.data());
        }
        errors[r] = detail::ordered_dot(samples, y.data(), y.data());
      }
    });
    result.weights.evidence.objective = detail::ordered_sum(errors);
    detail::require_finite_objective(result.weights.evidence.objective, where);
    result.scales = std::move(scales);
    return result;
  };

  smooth_quant_result best = attempt(std::vector<float>(features, 1.0F));
  const double unsmoothed = best.weights.evidence.objective;
  std::vector<double> errors;
  for (std::size_t i = 0; i < options.grid_points; ++i) {
    smooth_quant_options of_alpha = options.scales;
    of_alpha.alpha = static_cast<float>(i) / static_cast<float>(options.grid_points - 1);
    smooth_quant_result result = attempt(smooth_quant_scales(magnitudes, weights, of_alpha));
    errors.push_back(result.weights.evidence.objective);
    if (errors.back() < best.weights.evidence.objective) {
      best = std::move(result);
      best.alpha = of_alpha.alpha;
    }
  }
  best.errors = std::move(errors);
  best.weights.evidence.method = where;
  best.weights.evidence.nearest_objective = unsmoothed;
  best.weights.evidence.iterations = options.grid_points + 1;
  return best;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_SMOOTH_QUANT_HPP
