// SPDX-License-Identifier: BSD-3-Clause
// AWQ: scales up the columns of the weights that matter before they are rounded, and scales their
// inputs down; then clips outliers of each group where that pays.
#ifndef DETENT_SOLVERS_AWQ_HPP
#define DETENT_SOLVERS_AWQ_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/solvers/smooth_quant.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of awq().
struct awq_options {
  /// The mean |x| of each input (gram_observer::mean_magnitudes). If empty, the square root of G's
  /// diagonal.
  std::span<const float> activation_magnitudes = {};
  /// Whether the scales are s = a^r / w^(1 - r), where w is the mean |w| of a column, instead of s
  /// = a^r.
  bool weight_magnitudes = false;
  /// Number n of exponents tried: r = 0, 1 / n, ..., (n - 1) / n.
  std::size_t grid_points = 20;
  /// The smallest factor that ranges of groups are clipped to, in (0, 1]; 1: ranges are not
  /// clipped.
  float smallest_clip = 0.91F;
  /// Distance of the factors that are tried, in (0, 1).
  float clip_step = 0.01F;
};

/// The result of awq().
struct awq_weights {
  quantized_weights weights;        ///< codes of the weights times their columns' input_scales
  std::vector<float> input_scales;  ///< what the inputs must be divided by, one for each
  std::optional<double> ratio;      ///< the exponent r found; empty if all scales are 1
};

namespace detail {

/// Chooses the clip factor of each group of a row, from the first to the last; each is the best
/// while the others stay.
inline void clip_row(const weight_problem& problem, const gram_matrix& g, std::size_t row,
                     const awq_options& options, quantized_weights& q) {
  const std::size_t columns = problem.columns;
  const float* const w = problem.row(row);
  std::vector<double> gradient(columns);  // G (w - v)
  for (std::size_t c = 0; c < columns; ++c) {
    const double e = static_cast<double>(w[c]) - q.value(row, c);
    if (e != 0.0) {
      g.add_scaled_column(c, e, gradient.data(), 0, columns);
    }
  }
  std::vector<double> change(columns);   // how w - v changes
  std::vector<double> product(columns);  // G change
  std::vector<double> best_change(columns);
  // Whole steps down to the smallest factor. Float rounding must not lose the last one.
  const double steps =
      (1.0 - static_cast<double>(options.smallest_clip)) / static_cast<double>(options.clip_step);
  const auto ratios = static_cast<std::size_t>((std::min)(std::floor(steps + 1e-4), 1e6));
  for (std::size_t group = 0; group < problem.groups; ++group) {
    const std::size_t first = problem.first(group);
    const std::size_t last = problem.last(group);
    const std::size_t at = row * problem.groups + group;
    double best_gain = 0.0;
    quant_params best = problem.params(row, group);
    for (std::size_t i = 1; i <= ratios; ++i) {
      const auto ratio = (std::max)(
          options.smallest_clip,
          static_cast<float>(1.0 - rounded_product(static_cast<double>(i),
                                                   static_cast<double>(options.clip_step))));
      const quant_params p = problem.range_params(row, group, ratio);
      std::fill(product.begin(), product.end(), 0.0);
      double slope = 0.0;
      for (std::size_t c = first; c < last; ++c) {
        const std::int32_t code = reference::quantize(w[c], p, problem.scheme.levels);
        const double v = static_cast<double>(code - p.zero_point) * static_cast<double>(p.scale);
        change[c] = q.value(row, c) - v;
        if (change[c] != 0.0) {
          g.add_scaled_column(c, change[c], product.data(), first, last);
          slope += rounded_product(change[c], gradient[c]);
        }
      }
      double curvature = 0.0;
      for (std::size_t c = first; c < last; ++c) {
        curvature += rounded_product(change[c], product[c]);
      }
      const double gain = -2.0 * slope - curvature;
      if (gain > best_gain) {
        best_gain = gain;
        best = p;
        std::copy(change.begin() + static_cast<std::ptrdiff_t>(first),
                  change.begin() + static_cast<std::ptrdiff_t>(last),
                  best_change.begin() + static_cast<std::ptrdiff_t>(first));
      }
    }
    if (best_gain > 0.0) {
      q.params.scales[at] = best.scale;
      q.params.zero_points[at] = best.zero_point;
      for (std::size_t c = first; c < last; ++c) {
        q.codes[row * columns + c] =
            static_cast<std::int8_t>(reference::quantize(w[c], best, problem.scheme.levels));
        if (best_change[c] != 0.0) {
          g.add_scaled_column(c, best_change[c], gradient.data(), 0, columns);
        }
      }
    }
  }
}

/// s_j = max(a_j^r [/ w_j^(1 - r)], 1e-4), divided by the square root of the product of the largest
/// and the smallest of them.
[[nodiscard]] inline std::vector<float> awq_scales(std::span<const double> activations,
                                                   std::span<const double> weights, double ratio) {
  constexpr double floor = 1e-4;
  std::vector<double> raw(activations.size());
  double smallest = std::numeric_limits<double>::infinity();
  double largest = 0.0;
  for (std::size_t j = 0; j < raw.size(); ++j) {
    const double up = portable_power(activations[j], ratio);
    const double scale = weights.empty() ? up : up / portable_power(weights[j], 1.0 - ratio);
    const bool is_zero = !weights.empty() && weights[j] == 0.0;
    raw[j] = scale > floor && !is_zero ? scale : floor;
    smallest = (std::min)(smallest, raw[j]);
    largest = (std::max)(largest, raw[j]);
  }
  const double middle = std::sqrt(rounded_product(largest, smallest));
  std::vector<float> scales(raw.size());
  for (std::size_t j = 0; j < raw.size(); ++j) {
    scales[j] = static_cast<float>(raw[j] / middle);
  }
  return scales;
}

}  // namespace detail

/// AWQ: searches scales s of the inputs that lower (w - v / s)^T G (w - v / s), summed over rows,
/// where v is w s rounded to nearest:
///
///     s_j = max(a_j^r, 1e-4), divided by the square root of the product of the largest and the
///     smallest of them, for each r of the grid; with weight_magnitudes a_j^r / w_j^(1 - r)
///
/// and takes the s of least objective, s = 1 included; of equally good ones the first. Then each
/// group's range is multiplied by 1, 1 - clip_step, ... down to smallest_clip, whichever is best
/// for its row's objective, group by group. Neither step makes the objective larger.
///
/// In the evidence, objective is that of the result, nearest_objective that of nearest rounding
/// without scales and clipping, iterations the number of scale vectors tried, and kept_nearest the
/// number of rows that are not clipped.
///
/// Columns of zeros, and inputs that are always zero, have nothing to gain: with r > 0 they get the
/// smallest scale.
///
/// Throws what round_to_nearest() throws; also invalid_argument if a magnitude is negative, NaN or
/// infinite, there are no grid points, smallest_clip is not in (0, 1], clip_step is not in (0, 1),
/// or `format` has scales; overflow if scaled weights leave the range of floats. Time: O(K^2) for
/// each row and grid point, and about as much again for each clip factor; O(K) with a diagonal G.
/// Thread-safe; the same bits everywhere.
///
/// Source: Lin et al., AWQ (2023); weight magnitudes and the steps of clipping as in Intel Neural
/// Compressor. Those measure the error on samples and group by group; here it is the error of the
/// whole row, computed with G.
[[nodiscard]] inline awq_weights awq(matrix_view<const float> weights, const gram_matrix& g,
                                     const weight_format& format = {},
                                     const awq_options& options = {},
                                     const parallel_for& parallel = {}) {
  constexpr const char* where = "awq";
  const auto invalid = error_kind::invalid_argument;
  require(format.scales.empty(), invalid, where,
          ": the weights are scaled, their scales cannot be given");
  require(options.grid_points > 0, invalid, where, ": no grid points");
  require(options.smallest_clip > 0.0F && options.smallest_clip <= 1.0F, invalid, where,
          ": ranges clipped to ", options.smallest_clip);
  require(options.clip_step > 0.0F && options.clip_step < 1.0F, invalid, where,
          ": clipping by steps of ", options.clip_step);
  const detail::weight_problem problem(weights, format, where);
  problem.require_gram(g, where);
  const std::size_t columns = problem.columns;
  const std::span<const float> given = options.activation_magnitudes;
  require(given.empty() || given.size() == columns, error_kind::shape_mismatch, where, ": ",
          given.size(), " magnitudes for ", columns, " inputs");
  std::vector<double> activation_magnitudes(columns);
  std::vector<double> weight_magnitudes(options.weight_magnitudes ? columns : 0);
  for (std::size_t j = 0; j < columns; ++j) {
    activation_magnitudes[j] =
        given.empty() ? std::sqrt(g.diagonal(j)) : static_cast<double>(given[j]);
    require(std::isfinite(activation_magnitudes[j]) && activation_magnitudes[j] >= 0.0, invalid,
            where, ": the magnitude of input ", j, " is ", activation_magnitudes[j]);
    for (std::size_t r = 0; r < problem.rows && options.weight_magnitudes; ++r) {
      weight_magnitudes[j] +=
          std::fabs(static_cast<double>(problem.row(r)[j])) / static_cast<double>(problem.rows);
    }
  }

  // One vector of scales, and the weights rounded to nearest with it.
  struct attempt {
    detail::weight_problem problem;
    gram_matrix g;
    quantized_weights q;
  };
  const auto rounded = [&](std::span<const float> scales) {
    const std::vector<float> scaled = multiply_columns(weights, scales);
    attempt a{detail::weight_problem(matrix_view<const float>(scaled.data(), problem.rows, columns),
                                     format, where),
              g.divided_by(scales),
              {}};
    a.q = a.problem.nearest();
    a.q.evidence.objective = detail::ordered_sum(a.problem.objectives(a.g, a.q, parallel));
    detail::require_finite_objective(a.q.evidence.objective, where);
    return a;
  };
  awq_weights result;
  result.input_scales.assign(columns, 1.0F);
  attempt best = rounded(result.input_scales);
  const double nearest_objective = best.q.evidence.objective;
  for (std::size_t i = 0; i < options.grid_points; ++i) {
    const double ratio = static_cast<double>(i) / static_cast<double>(options.grid_points);
    std::vector<float> scales = detail::awq_scales(activation_magnitudes, weight_magnitudes, ratio);
    attempt a = rounded(scales);
    if (a.q.evidence.objective < best.q.evidence.objective) {
      best = std::move(a);
      result.ratio = ratio;
      result.input_scales = std::move(scales);
    }
  }

  quantized_weights clipped = best.q;
  if (options.smallest_clip < 1.0F) {
    best.problem.for_row_blocks(parallel, [&](std::size_t first_row, std::size_t count) {
      for (std::size_t r = first_row; r < first_row + count; ++r) {
        detail::clip_row(best.problem, best.g, r, options, clipped);
      }
    });
  }
  detail::keep_better_rows(best.problem, best.g, best.q, clipped, parallel, where);
  result.weights = std::move(clipped);
  result.weights.evidence.method = where;
  result.weights.evidence.nearest_objective = nearest_objective;
  result.weights.evidence.iterations = options.grid_points + 1;
  return result;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_AWQ_HPP
