// SPDX-License-Identifier: BSD-3-Clause
// The folder solvers/ chooses scales, zero points and codes. Its scale solvers take a distribution
// or a histogram and return a scale and a zero point: exact_mse, lp_norm, kl, and the estimates of
// estimates.hpp; parts.hpp applies them per channel or per block. Its weight solvers take the
// weights of a linear layer and return codes. Headers here may include statistics/, base/,
// elementwise/, the definitions of kernels, and the public headers of quantization and packing, and
// nothing of observers/ or graph/. Only eigen_views.hpp needs Eigen.
//
// This file holds what all weight solvers take and return: weights with a row for each output and a
// column for each input, on a grid of at most 8 bits, with a scale and a zero point for each row or
// for each group of columns of a row.
//
//     round_to_nearest    here: the yardstick of all others
//     coordinate_descent  lowers (w - v)^T G (w - v) by changing codes and scales step by step
//     gptq                rounds column by column and passes the error on to later columns
//     adaround            decides up or down for each weight, by gradients
//     awq, smooth_quant   scale the inputs
//     hqq                 chooses zero points, without any inputs
//
// Here v = scale * (code - zero_point), computed in double, where it is exact, and G is the Gram
// matrix of the layer's inputs (gram.hpp). All return the same bits with any compiler, on any
// processor and for any parallel_for.
#ifndef DETENT_SOLVERS_QUANTIZED_WEIGHTS_HPP
#define DETENT_SOLVERS_QUANTIZED_WEIGHTS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/elementwise/operands.hpp>
#include <detent/error.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// The grid that a weight solver puts weights on, and where its scales and zero points come from.
struct weight_format {
  /// The scheme; codes are stored as int8, so its levels must be within -128..127.
  quant_scheme scheme = symmetric<std::int8_t>;
  /// How many neighbouring columns of a row share a scale; 0, or more than K, for all of them.
  std::size_t group_size = 0;
  /// Scales to use, rows x groups, row by row. If empty, each group's scale is that of the range of
  /// its weights, as params_from_range() computes it.
  std::span<const float> scales = {};
  /// Zero points to use, rows x groups; they may be given only together with `scales`. If empty,
  /// they are the middle of the grid (0 for signed grids) if scales are given, else those of the
  /// weights' ranges.
  std::span<const std::int32_t> zero_points = {};
};

/// How a weight solver arrived at its result, and how good the result is.
struct solver_evidence {
  std::string_view method;  ///< name of the solver function, a string literal
  /// The sum over the rows of (w - v)^T G (w - v); for hqq, the sum of |w - v|^p.
  double objective = 0.0;
  /// The objective of rounding to nearest with the scales and zero points that the solver began
  /// with.
  double nearest_objective = 0.0;
  std::size_t iterations = 0;  ///< iterations of the row that took the most
  bool converged = true;       ///< whether all rows converged before the limit of iterations
  /// How many rows (for hqq: groups) kept nearest rounding, because the solver's solution was no
  /// better.
  std::size_t kept_nearest = 0;
  /// For gptq: the fraction of the mean diagonal of G that was added to the diagonal.
  double damping = 0.0;
};

/// Codes of a weight matrix with their parameters. Weight (r, c) stands for scale * (code -
/// zero_point).
struct quantized_weights {
  std::size_t rows = 0;            ///< number of rows (outputs)
  std::size_t columns = 0;         ///< number of columns (inputs), K
  grid levels{};                   ///< the grid of the codes
  std::vector<std::int8_t> codes;  ///< rows x columns, row by row
  /// Scales and zero points, rows x groups; axis 1, as detent::dequantize takes them.
  block_quant_params params;
  /// Zero points that are not integers, rows x groups; filled only by hqq with real_zero_points.
  /// Then params.zero_points holds the nearest integers, which do not belong to the codes.
  std::vector<float> real_zero_points;
  solver_evidence evidence;  ///< how the codes were found and how good they are

  /// Number of groups in a row.
  [[nodiscard]] std::size_t groups() const noexcept {
    // The block size may be as large as a size can be.
    return params.block_size == 0 || columns == 0 ? 0 : (columns - 1) / params.block_size + 1;
  }
  /// The codes as a matrix view, valid as long as this object is not changed.
  [[nodiscard]] matrix_view<const std::int8_t> view() const noexcept {
    return {codes.data(), rows, columns};
  }
  /// The value that a code stands for, scale * (code - zero_point); exact unless the zero point is
  /// a real one.
  [[nodiscard]] double value(std::size_t row, std::size_t column) const noexcept {
    const std::size_t at = row * groups() + column / params.block_size;
    const double code = codes[row * columns + column];
    const double zero_point = real_zero_points.empty() ? static_cast<double>(params.zero_points[at])
                                                       : static_cast<double>(real_zero_points[at]);
    return detail::rounded_product(code - zero_point, static_cast<double>(params.scales[at]));
  }
  /// All values rounded to float, rows x columns, row by row.
  [[nodiscard]] std::vector<float> dequantized() const {
    std::vector<float> w(rows * columns);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        w[r * columns + c] = static_cast<float>(value(r, c));
      }
    }
    return w;
  }
};

namespace detail {

/// How many rows one task solves. The results do not depend on it.
inline constexpr std::size_t solver_rows_per_task = 8;

/// What every weight solver begins with: dense, checked weights and their starting parameters. The
/// constructor throws, with `where` in the message, what round_to_nearest() describes.
struct weight_problem {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t group_size = 0;
  std::size_t groups = 0;
  quant_scheme scheme{};
  std::vector<float> weights;
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;

  weight_problem(matrix_view<const float> w, const weight_format& f, const char* where)
      : rows(w.rows),
        columns(w.columns),
        scheme{with_whole_range<std::int8_t>(f.scheme.levels), f.scheme.symmetric} {
    require_matrix(w, where);
    require(columns > 0, error_kind::invalid_argument, where, ": the weights are ", rows, " x 0");
    const grid levels = scheme.levels;
    require(levels.qmin >= -128 && levels.qmax <= 127 && levels.qmin < levels.qmax,
            error_kind::invalid_argument, where, ": the grid ", levels.qmin, "..", levels.qmax,
            " is not within -128..127");
    group_size = f.group_size == 0 ? columns : (std::min)(f.group_size, columns);
    groups = (columns + group_size - 1) / group_size;
    weights.resize(rows * columns);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        require(std::isfinite(w(r, c)), error_kind::invalid_argument, where, ": the weight at row ",
                r, ", column ", c, " is ", w(r, c));
        weights[r * columns + c] = w(r, c);
      }
    }
    const std::size_t count = rows * groups;
    require(f.scales.empty() || f.scales.size() == count, error_kind::shape_mismatch, where, ": ",
            f.scales.size(), " scales for ", rows, " rows of ", groups, " groups");
    require(f.zero_points.empty() || f.scales.size() == f.zero_points.size(),
            error_kind::shape_mismatch, where, ": ", f.zero_points.size(), " zero points with ",
            f.scales.size(), " scales");
    if (f.scales.empty()) {
      for (std::size_t i = 0; i < count; ++i) {
        const quant_params p = range_params(i / groups, i % groups, 1.0F);
        scales.push_back(p.scale);
        zero_points.push_back(p.zero_point);
      }
      return;
    }
    scales.assign(f.scales.begin(), f.scales.end());
    zero_points.assign(count, (levels.qmin + levels.qmax + 1) >> 1);
    if (!f.zero_points.empty()) {
      zero_points.assign(f.zero_points.begin(), f.zero_points.end());
    }
    for (std::size_t i = 0; i < count; ++i) {
      require_scale_of("group", i, scales[i], where);
      require_zero_point_of("group", i, zero_points[i], levels, where);
    }
  }

  [[nodiscard]] std::size_t first(std::size_t group) const noexcept { return group * group_size; }
  [[nodiscard]] std::size_t last(std::size_t group) const noexcept {
    return (std::min)(columns, (group + 1) * group_size);
  }
  [[nodiscard]] const float* row(std::size_t r) const noexcept {
    return weights.data() + r * columns;
  }
  /// The parameters for the range of `values`, with both ends multiplied by `ratio`.
  [[nodiscard]] quant_params params_of(std::span<const float> values, float ratio) const {
    value_range range;
    for (const float value : values) {
      range.lower = value < range.lower ? value : range.lower;
      range.upper = value > range.upper ? value : range.upper;
    }
    return params_from_range({range.lower * ratio, range.upper * ratio}, scheme);
  }
  [[nodiscard]] quant_params range_params(std::size_t r, std::size_t group, float ratio) const {
    return params_of({row(r) + first(group), last(group) - first(group)}, ratio);
  }
  [[nodiscard]] quant_params params(std::size_t r, std::size_t group) const noexcept {
    return {scales[r * groups + group], zero_points[r * groups + group]};
  }

  void require_gram(const gram_matrix& g, const char* where) const {
    require(g.size() == columns, error_kind::shape_mismatch, where, ": a Gram matrix of ", g.size(),
            " inputs for weights of ", columns, " columns");
  }

  /// Nearest codes with the starting parameters, without evidence.
  [[nodiscard]] quantized_weights nearest() const {
    quantized_weights q;
    q.rows = rows;
    q.columns = columns;
    q.levels = scheme.levels;
    q.params = {1, group_size, scales, zero_points};
    q.codes.resize(weights.size());
    for (std::size_t r = 0; r < rows; ++r) {
      round_row(r, q);
    }
    return q;
  }
  /// Sets the codes of a row to the nearest ones for the parameters in `q`.
  void round_row(std::size_t r, quantized_weights& q) const noexcept {
    for (std::size_t group = 0; group < groups; ++group) {
      const std::size_t at = r * columns + first(group);
      const std::size_t count = last(group) - first(group);
      const std::size_t params = r * groups + group;
      quantize(std::span<const float>(weights.data() + at, count),
               std::span<std::int8_t>(q.codes.data() + at, count),
               quant_params{q.params.scales[params], q.params.zero_points[params]}, scheme.levels);
    }
  }

  /// Writes (w - v)^T G (w - v) of each of some rows to `result`.
  void objectives(const gram_matrix& g, const quantized_weights& q, std::size_t first_row,
                  std::size_t row_count, double* result) const {
    std::vector<double> e(row_count * columns);
    for (std::size_t r = 0; r < row_count; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        e[r * columns + c] = static_cast<double>(row(first_row + r)[c]) - q.value(first_row + r, c);
      }
    }
    const std::vector<double> lengths = g.squared_lengths(row_count, e.data());
    std::copy(lengths.begin(), lengths.end(), result);
  }
  [[nodiscard]] std::vector<double> objectives(const gram_matrix& g, const quantized_weights& q,
                                               const parallel_for& parallel) const {
    std::vector<double> result(rows);
    for_row_blocks(parallel, [&](std::size_t first_row, std::size_t count) {
      objectives(g, q, first_row, count, result.data() + first_row);
    });
    return result;
  }

  /// Calls body(first row, number of rows) for blocks of rows, shared out over `parallel`.
  template <class Body>
  void for_row_blocks(const parallel_for& parallel, const Body& body) const {
    const std::size_t tasks = (rows + solver_rows_per_task - 1) / solver_rows_per_task;
    run_parallel(parallel, tasks, [&](std::size_t task) {
      const std::size_t first_row = task * solver_rows_per_task;
      body(first_row, (std::min)(solver_rows_per_task, rows - first_row));
    });
  }
};

[[nodiscard]] inline double ordered_sum(std::span<const double> values) noexcept {
  double sum = 0.0;
  for (const double value : values) {
    sum += value;
  }
  return sum;
}

/// Throws overflow unless the objective is finite. Only weights and Gram matrices near the ends of
/// their types make it infinite.
inline void require_finite_objective(double objective, const char* where) {
  require(std::isfinite(objective), error_kind::overflow, where, ": the objective is ", objective);
}

/// Replaces rows of `q` that are no better than those of `nearest` by the latter, and fills in the
/// evidence.
inline void keep_better_rows(const weight_problem& problem, const gram_matrix& g,
                             const quantized_weights& nearest, quantized_weights& q,
                             const parallel_for& parallel, const char* where) {
  const std::vector<double> before = problem.objectives(g, nearest, parallel);
  std::vector<double> after = problem.objectives(g, q, parallel);
  const auto copy_row = [](const auto& from, auto& to, std::size_t r, std::size_t width) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(r * width), width,
                to.begin() + static_cast<std::ptrdiff_t>(r * width));
  };
  q.evidence.kept_nearest = 0;
  for (std::size_t r = 0; r < problem.rows; ++r) {
    if (!(after[r] < before[r])) {
      copy_row(nearest.codes, q.codes, r, problem.columns);
      copy_row(nearest.params.scales, q.params.scales, r, problem.groups);
      copy_row(nearest.params.zero_points, q.params.zero_points, r, problem.groups);
      after[r] = before[r];
      ++q.evidence.kept_nearest;
    }
  }
  q.evidence.nearest_objective = ordered_sum(before);
  q.evidence.objective = ordered_sum(after);
  require_finite_objective(q.evidence.nearest_objective, where);
}

}  // namespace detail

/// Rounds weights to nearest: code = clamp(round_half_even(w / scale) + zero_point), as
/// detent::quantize does. The evidence has the error (w - v)^T G (w - v) at the output, summed over
/// the rows. A group of zeros has scale 1.
///
/// Throws shape_mismatch if sizes do not agree; invalid_argument if a weight is NaN or infinite,
/// there are no columns, or the grid, a scale or a zero point is out of its domain; overflow if the
/// objective is not finite. All other weight solvers throw these, too. Thread-safe; the result does
/// not depend on `parallel`.
[[nodiscard]] inline quantized_weights round_to_nearest(matrix_view<const float> weights,
                                                        const gram_matrix& g,
                                                        const weight_format& format = {},
                                                        const parallel_for& parallel = {}) {
  constexpr const char* where = "round_to_nearest";
  const detail::weight_problem problem(weights, format, where);
  problem.require_gram(g, where);
  quantized_weights q = problem.nearest();
  q.evidence.method = where;
  q.evidence.objective = detail::ordered_sum(problem.objectives(g, q, parallel));
  q.evidence.nearest_objective = q.evidence.objective;
  detail::require_finite_objective(q.evidence.objective, where);
  return q;
}

/// The sum over the rows of (w - v)^T G (w - v) for any codes of `weights`. Throws shape_mismatch
/// if sizes do not agree, invalid_argument if a weight is NaN or infinite, there are no columns or
/// the block size is 0, overflow if the result is not finite. Thread-safe; the result does not
/// depend on `parallel`.
[[nodiscard]] inline double output_error(matrix_view<const float> weights,
                                         const quantized_weights& quantized, const gram_matrix& g,
                                         const parallel_for& parallel = {}) {
  constexpr const char* where = "output_error";
  require(quantized.params.block_size > 0, error_kind::invalid_argument, where, ": block size 0");
  const detail::weight_problem problem(
      weights, {.scheme = {quantized.levels, false}, .group_size = quantized.params.block_size},
      where);
  problem.require_gram(g, where);
  require(quantized.rows == problem.rows && quantized.columns == problem.columns &&
              quantized.codes.size() == problem.weights.size() &&
              quantized.params.scales.size() == problem.scales.size() &&
              quantized.params.zero_points.size() == problem.scales.size() &&
              (quantized.real_zero_points.empty() ||
               quantized.real_zero_points.size() == problem.scales.size()),
          error_kind::shape_mismatch, where, ": quantized weights of ", quantized.rows, " x ",
          quantized.columns, " for weights of ", problem.rows, " x ", problem.columns);
  const double error = detail::ordered_sum(problem.objectives(g, quantized, parallel));
  detail::require_finite_objective(error, where);
  return error;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_QUANTIZED_WEIGHTS_HPP
