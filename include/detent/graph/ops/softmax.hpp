// SPDX-License-Identifier: BSD-3-Clause
// Operators that look at the rows along one axis: Softmax, LogSoftmax, Hardmax, LpNormalization.
//
// Softmax and LogSoftmax of floats are those of base/float_rows.hpp. All other rows are computed in
// double, many short ones at a time. Exponentials are those of base/elementary_functions.hpp; their
// sums are made of eight parts, whatever the target (detail::sum_of() of base/arithmetic.hpp).
#ifndef DETENT_GRAPH_OPS_SOFTMAX_HPP
#define DETENT_GRAPH_OPS_SOFTMAX_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/axis_view.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/row_kernels.hpp>
#include <detent/kernels/definitions/exponentials.hpp>
#include <detent/kernels/definitions/float_rows.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// Computes output 0 from the rows along the middle dimension of the view: takes some rows as
/// Value, one behind the other, changes them in place by f(rows, length), and stores them rounded
/// to the type of the elements.
template <class T, class Value, class F>
void map_rows(operator_context& c, const axis_view& v, const F& f) {
  const std::span<const T> x = c.input(0).data<T>();
  const std::span<T> y = c.make_output_over(0, {0}).mutable_data<T>();
  if (x.empty()) {
    return;
  }
  // Enough that the call for a block costs little, few enough that it stays in the first cache.
  constexpr std::size_t block = 1024;
  const std::size_t rows_of_block = (std::max)(block / v.length, std::size_t{1});
  for_pieces(c, v.outer * v.inner, rows_of(costly_piece, v.length),
             [&](std::size_t begin, std::size_t end) {
               std::pmr::vector<Value> values((std::min)(rows_of_block, end - begin) * v.length,
                                              c.memory);
               for (std::size_t r = begin; r < end; r += rows_of_block) {
                 const std::size_t count = (std::min)(rows_of_block, end - r);
                 const auto for_each_element = [&](const auto& visit) {
                   for (std::size_t k = 0; k < count; ++k) {
                     const std::size_t outer = (r + k) / v.inner;
                     const std::size_t column = (r + k) % v.inner;
                     const std::size_t first = outer * v.length * v.inner + column;
                     for (std::size_t i = 0; i < v.length; ++i) {
                       visit(values[k * v.length + i], first + i * v.inner);
                     }
                   }
                 };
                 for_each_element(
                     [&](Value& value, std::size_t at) { value = static_cast<Value>(x[at]); });
                 f(std::span<Value>(values).first(count * v.length), v.length);
                 for_each_element(
                     [&](const Value& value, std::size_t at) { y[at] = static_cast<T>(value); });
               }
             });
}

/// The largest of some values; NaN is passed over. -infinity if there is none.
[[nodiscard]] inline double largest_of(std::span<const double> values) {
  constexpr std::size_t lanes = 8;
  double largest[lanes];
  std::fill(largest, largest + lanes, -std::numeric_limits<double>::infinity());
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    for (std::size_t k = 0; k < lanes; ++k) {
      largest[k] = values[i + k] > largest[k] ? values[i + k] : largest[k];
    }
  }
  for (; i < values.size(); ++i) {
    largest[0] = values[i] > largest[0] ? values[i] : largest[0];
  }
  return *std::max_element(largest, largest + lanes);
}

/// Replaces values by e to their power.
inline void exponentiate(std::span<double> values) {
  detent::detail::active<kernels::exponential_kernels>().exp(values.data(), values.size());
}

/// Softmax of rows of `length` values, in place: e^(x - m) / (sum of e^(x - m)) with the largest
/// value m of the row. A row with NaN or +infinity, or of -infinity alone, becomes NaN.
inline void softmax_rows(std::span<double> rows, std::size_t length,
                         std::pmr::memory_resource* /*memory*/) {
  for (std::size_t first = 0; first < rows.size(); first += length) {
    const std::span<double> row = rows.subspan(first, length);
    const double largest = largest_of(row);
    for (double& x : row) {
      x -= largest;
    }
  }
  exponentiate(rows);
  for (std::size_t first = 0; first < rows.size(); first += length) {
    const std::span<double> row = rows.subspan(first, length);
    const double sum = detent::detail::sum_of(row);
    for (double& x : row) {
      x /= sum;
    }
  }
}

/// LogSoftmax of rows of `length` values, in place: x - m - log(sum of e^(x - m)).
inline void log_softmax_rows(std::span<double> rows, std::size_t length,
                             std::pmr::memory_resource* memory) {
  std::pmr::vector<double> powers(length, memory);
  for (std::size_t first = 0; first < rows.size(); first += length) {
    const std::span<double> row = rows.subspan(first, length);
    const double largest = largest_of(row);
    for (std::size_t i = 0; i < length; ++i) {
      row[i] -= largest;
      powers[i] = row[i];
    }
    exponentiate(powers);
    // At least 1, the term of the largest value, or NaN.
    const double log_sum = detent::detail::portable_log(detent::detail::sum_of(powers));
    for (double& x : row) {
      x -= log_sum;
    }
  }
}

/// Sets the first of the largest elements of a row to 1 and all others to 0.
inline void hardmax_row(std::span<double> row) {
  const auto largest = std::max_element(row.begin(), row.end());
  const auto at = static_cast<std::size_t>(largest - row.begin());
  std::fill(row.begin(), row.end(), 0.0);
  row[at] = 1.0;
}

/// Divides a row by its norm. A row of zeros stays as it is, as ONNX's text for version 22 says.
inline void divide_row(std::span<double> row, double norm) {
  if (norm == 0.0) {
    return;
  }
  for (double& x : row) {
    x /= norm;
  }
}

inline void l1_row(std::span<double> row) {
  double sum = 0.0;
  for (const double x : row) {
    sum += std::fabs(x);
  }
  divide_row(row, sum);
}

inline void l2_row(std::span<double> row) {
  double sum = 0.0;
  for (const double x : row) {
    sum += x * x;
  }
  divide_row(row, std::sqrt(sum));
}

/// Calls Row for each row of `length` values.
template <void (*Row)(std::span<double>)>
void each_row(std::span<double> rows, std::size_t length, std::pmr::memory_resource* /*memory*/) {
  for (std::size_t first = 0; first < rows.size(); first += length) {
    Row(rows.subspan(first, length));
  }
}

/// The input of Softmax seen as [outer, length, inner], where `length` is normalized: one axis
/// since opset 13, all dimensions from the axis on before.
[[nodiscard]] inline axis_view softmax_view(const operator_context& c) {
  const shape& dims = c.input(0).dims();
  if (c.opset >= 13) {
    // A scalar has no axis, but is let through as a vector of one.
    return dims.empty() ? axis_view{}
                        : view_axis(dims, c.axis(c.n().get_int("axis", -1), dims.size()));
  }
  const std::size_t first = c.axis(c.n().get_int("axis", 1), dims.size(), true);
  return view_dims(dims, first, dims.size());
}

inline void infer_softmax(operator_context& c) {
  static_cast<void>(softmax_view(c));
  infer_like_input(c);
}

/// Runs an operator of the rows of floats that Softmax would take: `kernel` computes some rows, one
/// behind the other.
inline void run_on_float_rows(operator_context& c, const axis_view& v,
                              void (*kernel)(const float* x, std::size_t rows, std::size_t length,
                                             float* y) noexcept) {
  if (v.inner > 1) {
    map_rows<float, float>(c, v, [kernel](std::span<float> rows, std::size_t length) {
      kernel(rows.data(), rows.size() / length, length, rows.data());
    });
    return;
  }
  const std::span<const float> x = c.input(0).data<float>();
  const std::span<float> y = c.make_output_over(0, {0}).mutable_data<float>();
  if (x.empty()) {
    return;
  }
  for_pieces(c, v.outer, rows_of(kernel_piece, v.length), [&](std::size_t begin, std::size_t end) {
    kernel(x.data() + begin * v.length, end - begin, v.length, y.data() + begin * v.length);
  });
}

/// A function that changes rows of `length` elements, one behind the other, in place. Its scratch
/// comes from `memory`.
using rows_function = void (*)(std::span<double> rows, std::size_t length,
                               std::pmr::memory_resource* memory);

/// Runs an operator of rows along the middle dimension of the view, in double.
inline void run_on_rows_of(operator_context& c, const axis_view& v, rows_function rows) {
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    map_rows<T, double>(
        c, v, [&](std::span<double> some, std::size_t length) { rows(some, length, c.memory); });
  });
}

/// Runs an operator of the rows that Softmax would take, in double.
template <rows_function Rows>
void run_on_rows(operator_context& c) {
  run_on_rows_of(c, softmax_view(c), Rows);
}
/// The same with a kernel for floats.
template <rows_function Rows, auto kKernel>
void run_on_rows(operator_context& c) {
  if (c.input(0).type() == element_type::f32) {
    run_on_float_rows(c, softmax_view(c), row_kernels().*kKernel);
  } else {
    run_on_rows<Rows>(c);
  }
}

inline void infer_lp_normalization(operator_context& c) {
  const std::int64_t p = c.n().get_int("p", 2);
  c.require(p == 1 || p == 2, "the attribute 'p' is ", p, ", not 1 or 2");
  static_cast<void>(c.axis(c.n().get_int("axis", -1), c.input(0).rank()));
  infer_like_input(c);
}

inline void run_lp_normalization(operator_context& c) {
  const shape& dims = c.input(0).dims();
  const axis_view v = view_axis(dims, c.axis(c.n().get_int("axis", -1), dims.size()));
  const bool absolute = c.n().get_int("p", 2) == 1;
  run_on_rows_of(c, v, absolute ? each_row<l1_row> : each_row<l2_row>);
}

inline constexpr operator_definition softmax_operators[] = {
    {"", "Softmax", 1, 1, layout_support::plain, &infer_for<float_types, &infer_softmax>,
     &run_on_rows<softmax_rows, &kernels::float_row_kernels::softmax>, true},
    {"", "LogSoftmax", 1, 1, layout_support::plain, &infer_for<float_types, &infer_softmax>,
     &run_on_rows<log_softmax_rows, &kernels::float_row_kernels::log_softmax>, true},
    {"", "Hardmax", 1, 1, layout_support::plain, &infer_for<float_types, &infer_softmax>,
     &run_on_rows<each_row<hardmax_row>>, true},
    {"", "LpNormalization", 1, 1, layout_support::plain,
     &infer_for<float_types, &infer_lp_normalization>, &run_lp_normalization, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_SOFTMAX_HPP
