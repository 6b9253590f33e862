// SPDX-License-Identifier: BSD-3-Clause
// Quantization whose parameters come from the data itself: for a whole tensor, or for each row of a
// matrix (per token). The sums of the quantized rows, which a product with zero points needs, are
// computed on the way.
//
//   range  = smallest and largest of the values that are not NaN
//   params = params_from_range(range, scheme)
//   q      = quantize(x, params)
//
// Every value is read twice. A matrix is processed a few rows at a time (as many as make some
// thousands of elements), so that the second read comes from the first- or second-level cache; only
// of strided matrices without threads and row sums, all ranges are found first. NaN
// becomes the zero point. If all values are NaN, or there are none, the range is 0 .. 0. Infinities
// have no finite range and are an error (invalid_argument).
#ifndef DETENT_DYNAMIC_QUANTIZE_HPP
#define DETENT_DYNAMIC_QUANTIZE_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/base/rows.hpp>
#include <detent/dispatch.hpp>
#include <detent/elementwise/walk.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/elementwise.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The parameters for a range, and the error of dynamic_quantize() if it has none. `any`: whether
/// the range is that of some number; if not, it counts as 0 .. 0.
inline quant_params dynamic_params(kernels::min_max_result r, bool any, quant_scheme scheme,
                                   const char* where) {
  const value_range range = any ? value_range{r.lower, r.upper} : value_range{};
  require(std::isfinite(range.lower) && std::isfinite(range.upper), error_kind::invalid_argument,
          where, ": the range ", range.lower, " .. ", range.upper, " is not finite");
  return params_from_range(range, scheme);
}

/// The parameters that dynamic_params() returns, or none where it throws. The grid of the scheme
/// has been checked.
inline std::optional<quant_params> find_dynamic_params(kernels::min_max_result r, bool any,
                                                       quant_scheme scheme) noexcept {
  const value_range range = any ? value_range{r.lower, r.upper} : value_range{};
  if (!std::isfinite(range.lower) || !std::isfinite(range.upper)) {
    return std::nullopt;
  }
  const quant_params p = reference::params_from_range(range, scheme);
  return std::isfinite(p.scale) ? std::optional(p) : std::nullopt;
}

/// Records the first row that has no parameters: it holds an infinity, or would need a scale that
/// is not finite. Tasks only note it; the error is raised when all have returned. So the error is
/// the same for every split into threads, and the caller's threads need not carry exceptions.
/// note() is thread-safe.
class refused_row {
 public:
  /// Notes a row with its range.
  void note(std::size_t row, kernels::min_max_result range) {
    const std::lock_guard lock(mutex_);
    if (!is_noted_ || row < row_) {
      is_noted_ = true;
      row_ = row;
      range_ = range;
    }
  }
  /// Throws the error of dynamic_params() for the row, if one was noted. Call it when no task runs
  /// any more.
  void raise_if_noted(quant_scheme scheme, const char* where) const {
    if (is_noted_) {
      static_cast<void>(dynamic_params(range_, true, scheme, where));
    }
  }

 private:
  std::mutex mutex_;
  bool is_noted_ = false;
  std::size_t row_ = 0;
  kernels::min_max_result range_{};
};

/// The range of n values that are `stride` elements apart.
inline kernels::min_max_result strided_range(const float* x, std::size_t n, std::ptrdiff_t stride) {
  if (stride == 1 || n <= 1) {
    return active<kernels::statistics_kernels>().min_max(x, n);
  }
  constexpr float infinity = std::numeric_limits<float>::infinity();
  kernels::min_max_result all{infinity, -infinity, 0};
  std::array<float, 1024> piece;
  for (std::size_t first = 0; first < n; first += piece.size()) {
    const std::size_t count = (std::min)(piece.size(), n - first);
    for (std::size_t i = 0; i < count; ++i) {
      piece[i] = x[static_cast<std::ptrdiff_t>(first + i) * stride];
    }
    const kernels::min_max_result r =
        active<kernels::statistics_kernels>().min_max(piece.data(), count);
    all = {(std::min)(all.lower, r.lower), (std::max)(all.upper, r.upper),
           all.count_nan + r.count_nan};
  }
  return all;
}

/// The sum of n quantized values that are `stride` elements apart, modulo 2^32.
template <quantized_type Q>
std::int32_t sum_codes(const Q* q, std::size_t n, std::ptrdiff_t stride) noexcept {
  if constexpr (std::is_same_v<Q, std::uint8_t>) {
    if (stride == 1) {
      return active<kernels::statistics_kernels>().sum_u8(q, n);
    }
  } else if constexpr (std::is_same_v<Q, std::int8_t>) {
    if (stride == 1) {
      return active<kernels::statistics_kernels>().sum_s8(q, n);
    }
  }
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += static_cast<std::uint32_t>(
        static_cast<std::int32_t>(q[static_cast<std::ptrdiff_t>(i) * stride]));
  }
  return static_cast<std::int32_t>(sum);
}

/// Some rows of a matrix, and where their integers, scales and zero points go. `first` is the index
/// of the first of them in the whole matrix.
template <quantized_type Q>
struct rows_to_quantize {
  matrix_view<const float> x;
  matrix_view<Q> q;
  float* scales;
  std::int32_t* zero_points;
  std::size_t first;
};

/// quantize_rows() for dense rows.
template <quantized_type Q>
bool quantize_dense_rows(const rows_to_quantize<Q>& rows, quant_scheme scheme,
                         refused_row& refused) {
  kernels::dynamic_rows_args a;
  a.rows = rows.x.rows;
  a.columns = rows.x.columns;
  a.in_stride = rows.x.row_stride;
  a.out_stride = rows.q.row_stride;
  a.scale = rows.scales;
  a.zero_point = rows.zero_points;
  a.symmetric = scheme.symmetric;
  a.qmin = scheme.levels.qmin;
  a.qmax = scheme.levels.qmax;
  const std::size_t done = active<kernels::dynamic_quantize_kernels<code_of<Q>>>().dynamic_rows(
      rows.x.data, a, rows.q.data);
  if (done == a.rows) {
    return true;
  }
  refused.note(rows.first + done,
               active<kernels::statistics_kernels>().min_max(
                   rows.x.data + static_cast<std::ptrdiff_t>(done) * a.in_stride, a.columns));
  return false;
}

/// quantize_rows() for any strides.
template <quantized_type Q>
bool quantize_strided_rows(const rows_to_quantize<Q>& rows, quant_scheme scheme,
                           refused_row& refused) {
  const matrix_view<const float>& x = rows.x;
  for (std::size_t r = 0; r < x.rows; ++r) {
    const kernels::min_max_result range = strided_range(
        x.data + static_cast<std::ptrdiff_t>(r) * x.row_stride, x.columns, x.column_stride);
    const std::optional<quant_params> p =
        find_dynamic_params(range, range.count_nan < x.columns, scheme);
    if (!p) {
      refused.note(rows.first + r, range);
      return false;
    }
    rows.scales[r] = p->scale;
    rows.zero_points[r] = p->zero_point;
  }
  const std::size_t shape[] = {x.rows, x.columns};
  const std::ptrdiff_t in_strides[] = {x.row_stride, x.column_stride};
  const std::ptrdiff_t out_strides[] = {rows.q.row_stride, rows.q.column_stride};
  parameter_view params{rows.scales, rows.zero_points, x.rows, {}};
  params.strides[0] = 1;
  run_elementwise<quantize_row<Q>>(operand_of(tensor_view<const float>(x.data, shape, in_strides)),
                                   operand_of(tensor_view<Q>(rows.q.data, shape, out_strides)),
                                   params, scheme.levels, nullptr, {});
  return true;
}

/// Quantizes each row with parameters of its own. The grid of the scheme has been checked. Where a
/// row has no parameters, notes it, leaves it and those after it in any state, and returns false.
/// Throws nothing, so that tasks may call it.
template <quantized_type Q>
bool quantize_rows(rows_to_quantize<Q> rows, quant_scheme scheme, refused_row& refused) {
  if (rows.x.columns == 0) {  // data may be null: nothing may be added to it
    rows.x.row_stride = rows.q.row_stride = 0;
  }
  const bool dense = rows.x.column_stride == 1 && rows.q.column_stride == 1;
  return dense ? quantize_dense_rows(rows, scheme, refused)
               : quantize_strided_rows(rows, scheme, refused);
}

}  // namespace detail

/// Quantizes x to q with parameters from the range of x, and returns them:
///
///   p = params_from_range(range of the values of x that are not NaN, scheme)
///   q[i] = reference::quantize(x[i], p, scheme.levels)
///
/// NaN becomes the zero point. The range is 0 .. 0 if x has no number. x and q must not overlap.
/// Throws shape_mismatch if the sizes differ, invalid_argument if data is null, x holds an
/// infinity, the grid of the scheme does not fit the type of q, or the scale would not be finite;
/// nothing is written then. Thread-safe.
template <quantized_type Q>
quant_params dynamic_quantize(std::span<const float> x, std::span<Q> q,
                              quant_scheme scheme = asymmetric<Q>, const execution& e = {}) {
  constexpr const char* where = "dynamic_quantize";
  detail::require_spans(x, q, where);
  scheme = detail::checked_scheme<Q>(scheme, where);
  const kernels::min_max_result r =
      detail::active<kernels::statistics_kernels>().min_max(x.data(), x.size());
  const quant_params p = detail::dynamic_params(r, r.count_nan < x.size(), scheme, where);
  quantize(x, q, p, scheme.levels, e);
  return p;
}

/// Quantizes x to a vector of the same size: dynamic_quantize() to a span of it.
template <quantized_type Q>
quant_params dynamic_quantize(std::span<const float> x, std::vector<Q>& q,
                              quant_scheme scheme = asymmetric<Q>, const execution& e = {}) {
  return dynamic_quantize(x, std::span<Q>(q), scheme, e);
}

/// Quantizes each row of the matrix x to the same row of q with parameters from the range of that
/// row, which are written to scales[r] and zero_points[r]. If `row_sums` is not empty, row_sums[r]
/// becomes the sum of the integers of row r of q, modulo 2^32.
///
/// NaN becomes the zero point; the range of a row without numbers is 0 .. 0. `scales`,
/// `zero_points` and `row_sums` (if any) have x.rows elements. Inputs and outputs must not overlap.
/// Throws shape_mismatch if sizes differ, and invalid_argument if data is null, elements of q share
/// an address or the grid of the scheme does not fit the type of q; nothing is written then. Also
/// throws invalid_argument if a row holds an infinity or would need a scale that is not finite, for
/// the first such row; other rows may then have been written. The calls of e.parallel do not throw.
/// Thread-safe.
template <quantized_type Q>
void dynamic_quantize_rows(matrix_view<const float> x, matrix_view<Q> q, std::span<float> scales,
                           std::span<std::int32_t> zero_points,
                           std::span<std::int32_t> row_sums = {},
                           quant_scheme scheme = asymmetric<Q>, const execution& e = {}) {
  constexpr const char* where = "dynamic_quantize_rows";
  require(x.rows == q.rows && x.columns == q.columns, error_kind::shape_mismatch, where,
          ": input is ", x.rows, " x ", x.columns, ", output ", q.rows, " x ", q.columns);
  require(x.rows == 0 || x.columns == 0 || (x.data != nullptr && q.data != nullptr),
          error_kind::invalid_argument, where, ": null data");
  require(!detail::has_shared_elements(q), error_kind::invalid_argument, where,
          ": elements of the output share an address (it is ", q.rows, " x ", q.columns,
          " with strides ", q.row_stride, " and ", q.column_stride, ")");
  require(scales.size() == x.rows && zero_points.size() == x.rows, error_kind::shape_mismatch,
          where, ": ", scales.size(), " scales and ", zero_points.size(), " zero points for ",
          x.rows, " rows");
  require(row_sums.empty() || row_sums.size() == x.rows, error_kind::shape_mismatch, where, ": ",
          row_sums.size(), " row sums for ", x.rows, " rows");
  scheme = detail::checked_scheme<Q>(scheme, where);
  if (x.rows != 0) {
    static_cast<void>(params_from_range({}, scheme));  // checks the grid
  }
  if (x.columns == 0) {  // data may be null: nothing may be added to it
    x.row_stride = q.row_stride = 0;
  }
  detail::refused_row refused;
  // Short rows are taken together, so that a task is worth its start. If row sums are wanted, the
  // integers are read again while they are in a cache.
  const std::size_t fewest =
      (std::max)(detail::task_size / 4 / (std::max)(x.columns, std::size_t{1}), std::size_t{1});
  const std::size_t together =
      e.parallel || !row_sums.empty() ? fewest : (std::max)(x.rows, std::size_t{1});
  detail::run_parallel(e.parallel, (x.rows + together - 1) / together, [&](std::size_t task) {
    const std::size_t first = task * together;
    const std::size_t rows = (std::min)(together, x.rows - first);
    const float* from = x.data + static_cast<std::ptrdiff_t>(first) * x.row_stride;
    Q* to = q.data + static_cast<std::ptrdiff_t>(first) * q.row_stride;
    const bool is_done =
        detail::quantize_rows<Q>({{from, rows, x.columns, x.row_stride, x.column_stride},
                                  {to, rows, x.columns, q.row_stride, q.column_stride},
                                  scales.data() + first,
                                  zero_points.data() + first,
                                  first},
                                 scheme, refused);
    for (std::size_t r = 0; is_done && r < rows && !row_sums.empty(); ++r) {
      row_sums[first + r] = detail::sum_codes(to + static_cast<std::ptrdiff_t>(r) * q.row_stride,
                                              x.columns, q.column_stride);
    }
  });
  refused.raise_if_noted(scheme, where);
}

DETENT_NAMESPACE_END

#endif  // DETENT_DYNAMIC_QUANTIZE_HPP
