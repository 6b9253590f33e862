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
// thousands of elements), so that the second read comes from the first- or second-level cache. NaN
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
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

inline quant_params dynamic_params(kernels::min_max_result r, bool any, quant_scheme scheme,
                                   const char* where) {
  const value_range range = any ? value_range{r.lower, r.upper} : value_range{};
  require(std::isfinite(range.lower) && std::isfinite(range.upper), error_kind::invalid_argument,
          where, ": the range ", range.lower, " .. ", range.upper, " is not finite");
  return params_from_range(range, scheme);
}

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
/// throws invalid_argument if a row holds an infinity or would need a scale that is not finite;
/// other rows may then have been written. Thread-safe.
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
  const std::ptrdiff_t in_strides[] = {x.row_stride, x.column_stride};
  const std::ptrdiff_t out_strides[] = {q.row_stride, q.column_stride};
  const auto run_dense = [&](const float* from, Q* to, std::size_t first, std::size_t rows) {
    kernels::dynamic_rows_args a;
    a.rows = rows;
    a.columns = x.columns;
    a.in_stride = x.row_stride;
    a.out_stride = q.row_stride;
    a.scale = &scales[first];
    a.zero_point = &zero_points[first];
    a.symmetric = scheme.symmetric;
    a.qmin = scheme.levels.qmin;
    a.qmax = scheme.levels.qmax;
    const std::size_t done =
        detail::active<kernels::dynamic_quantize_kernels<detail::code_of<Q>>>().dynamic_rows(from,
                                                                                             a, to);
    if (done < rows) {  // raises the error that says what is wrong with that row
      const kernels::min_max_result r = detail::active<kernels::statistics_kernels>().min_max(
          from + static_cast<std::ptrdiff_t>(done) * x.row_stride, x.columns);
      static_cast<void>(detail::dynamic_params(r, true, scheme, where));
    }
  };
  const auto run_strided = [&](const float* from, Q* to, std::size_t first, std::size_t rows) {
    for (std::size_t r = 0; r < rows; ++r) {
      const kernels::min_max_result range = detail::strided_range(
          from + static_cast<std::ptrdiff_t>(r) * x.row_stride, x.columns, x.column_stride);
      const quant_params p =
          detail::dynamic_params(range, range.count_nan < x.columns, scheme, where);
      scales[first + r] = p.scale;
      zero_points[first + r] = p.zero_point;
    }
    const std::size_t shape[] = {rows, x.columns};
    detail::parameter_view params{&scales[first], &zero_points[first], rows, {}};
    params.strides[0] = 1;
    detail::run_elementwise<detail::quantize_row<Q>>(
        detail::operand_of(tensor_view<const float>(from, shape, in_strides)),
        detail::operand_of(tensor_view<Q>(to, shape, out_strides)), params, scheme.levels, nullptr,
        {});
  };
  const bool dense = x.column_stride == 1 && q.column_stride == 1;
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
    if (dense) {
      run_dense(from, to, first, rows);
    } else {
      run_strided(from, to, first, rows);
    }
    for (std::size_t r = 0; r < rows && !row_sums.empty(); ++r) {
      row_sums[first + r] = detail::sum_codes(to + static_cast<std::ptrdiff_t>(r) * q.row_stride,
                                              x.columns, q.column_stride);
    }
  });
}

DETENT_NAMESPACE_END

#endif  // DETENT_DYNAMIC_QUANTIZE_HPP
