// SPDX-License-Identifier: BSD-3-Clause
// Reductions over axes, ArgMax and ArgMin, CumSum and CumProd. Floats are summed in double, always
// in the same order: one after the other. ReduceSum, ReduceMean, ReduceLogSum, ReduceSumSquare and
// ReduceL2 add rows of 16 and more neighbouring floats in the parts of base/float_rows.hpp. The
// zero that is the largest or smallest element is +0.
#ifndef DETENT_GRAPH_OPS_REDUCTION_HPP
#define DETENT_GRAPH_OPS_REDUCTION_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/axis_view.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/elementwise.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/row_kernels.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

// --- reducers: totals of the elements seen so far ------------------------------------------------
//
// Each reducer has a total that begins as start() and takes elements with add(); result() turns the
// total of `count` elements into the result. Those that have add_row() take long rows of floats
// with it, those that have sum_each() find the totals of several such rows together, and those that
// have add_each() take a float for each of many totals.

namespace reducers {

/// The type of a sum: double for floating-point T, uint64 for integers, whose sums wrap around.
template <class T>
using total_of = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;

/// The most rows whose totals are computed together.
inline constexpr std::size_t rows_together = 16;

/// The length of a row from which on add_row() and sum_each() take less time than add() for each
/// element. The order of the additions differs, so that a row must go one way everywhere.
inline constexpr std::size_t long_row = 16;

/// The sums of the squares of rows of `size` floats, at most rows_together of them.
inline void square_each(const float* x, std::size_t size, std::span<double> totals) {
  const std::array<double, rows_together> centres{};
  sum_squares(x, size, std::span(centres).first(totals.size()), totals);
}

/// The part that most reducers share: a total that begins with 0 and is cast to the result.
template <class T>
struct summing {
  using total = total_of<T>;
  [[nodiscard]] static total start() { return total{0}; }
  [[nodiscard]] static T result(total t, std::size_t /*count*/) { return static_cast<T>(t); }
};

template <class T>
struct sum : summing<T> {
  static void add(total_of<T>& t, T x) { t += static_cast<total_of<T>>(x); }
  static void add_row(double& t, std::span<const float> x) {
    double sum = 0.0;
    sum_rows(x.data(), x.size(), std::span(&sum, 1));
    t += sum;
  }
  static void sum_each(const float* x, std::size_t size, std::span<double> totals) {
    sum_rows(x, size, totals);
  }
  static void add_each(double* totals, std::span<const float> x) {
    row_kernels().add_row(x.data(), x.size(), totals);
  }
};

template <class T>
struct mean : sum<T> {
  [[nodiscard]] static T result(total_of<T> t, std::size_t count) {
    if constexpr (std::is_integral_v<T>) {
      using wide_type = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
      return static_cast<T>(static_cast<wide_type>(t) / static_cast<wide_type>(count));
    } else {
      return static_cast<T>(t / static_cast<double>(count));
    }
  }
};

template <class T>
struct product : summing<T> {
  [[nodiscard]] static total_of<T> start() { return total_of<T>{1}; }
  static void add(total_of<T>& t, T x) { t *= static_cast<total_of<T>>(x); }
};

template <class T>
struct l1 : summing<T> {
  static void add(total_of<T>& t, T x) { t += static_cast<total_of<T>>(unary::abs{}(x)); }
};

template <class T>
struct sum_square : summing<T> {
  static void add(total_of<T>& t, T x) {
    const auto value = static_cast<total_of<T>>(x);
    t += value * value;
  }
  static void add_row(double& t, std::span<const float> x) { t += square_sum(x); }
  static void sum_each(const float* x, std::size_t size, std::span<double> totals) {
    square_each(x, size, totals);
  }
};

/// The root of the sum of squares. Squares of integers are summed in double too, because only the
/// root has to fit the type; it is rounded toward zero and saturated.
template <class T>
struct l2 {
  using total = double;
  [[nodiscard]] static double start() { return 0.0; }
  static void add(double& t, T x) {
    const auto value = static_cast<double>(x);
    t += value * value;
  }
  static void add_row(double& t, std::span<const float> x) { t += square_sum(x); }
  static void sum_each(const float* x, std::size_t size, std::span<double> totals) {
    square_each(x, size, totals);
  }
  [[nodiscard]] static T result(double t, std::size_t /*count*/) {
    if constexpr (std::is_integral_v<T>) {
      return saturate_to<T>(std::sqrt(t));
    } else {
      return static_cast<T>(std::sqrt(t));
    }
  }
};

template <class T>
struct log_sum : sum<T> {
  [[nodiscard]] static T result(total_of<T> t, std::size_t /*count*/) {
    using signed_total =
        std::conditional_t<std::is_signed_v<T> && std::is_integral_v<T>, std::int64_t, total_of<T>>;
    return narrow<T>(std::log(static_cast<double>(static_cast<signed_total>(t))));
  }
};

/// log(sum of e^x) in one pass without overflow: the sum is kept divided by e^largest.
template <class T>
struct log_sum_exp {
  struct total {
    double largest = -std::numeric_limits<double>::infinity();
    double sum = 0.0;
  };
  [[nodiscard]] static total start() { return {}; }
  static void add(total& t, T element) {
    const auto x = static_cast<double>(element);
    if (x > t.largest) {
      t.sum = std::fma(t.sum, detent::detail::portable_exp(t.largest - x), 1.0);
      t.largest = x;
    } else {
      t.sum += x == t.largest
                   ? 1.0
                   : detent::detail::portable_exp(x - t.largest);  // inf - inf would be NaN
    }
  }
  [[nodiscard]] static T result(const total& t, std::size_t /*count*/) {
    return narrow<T>(t.largest + std::log(t.sum));
  }
};

template <class T>
struct max {
  using total = T;
  [[nodiscard]] static T start() {
    using limits = std::numeric_limits<T>;
    return limits::has_infinity ? static_cast<T>(-limits::infinity()) : limits::lowest();
  }
  static void add(T& t, T x) { t = binary::max{}(t, x); }
  static void add_row(float& t, std::span<const float> x) {
    add(t, row_kernels().largest(x.data(), x.size()));
  }
  [[nodiscard]] static T result(T t, std::size_t /*count*/) { return static_cast<T>(t + T{0}); }
};

template <class T>
struct min {
  using total = T;
  [[nodiscard]] static T start() {
    using limits = std::numeric_limits<T>;
    return limits::has_infinity ? limits::infinity() : (limits::max)();
  }
  static void add(T& t, T x) { t = binary::min{}(t, x); }
  static void add_row(float& t, std::span<const float> x) {
    add(t, row_kernels().smallest(x.data(), x.size()));
  }
  [[nodiscard]] static T result(T t, std::size_t /*count*/) { return static_cast<T>(t + T{0}); }
};

}  // namespace reducers

// --- plans: which elements belong to a sum -------------------------------------------------------

/// For each dimension of input 0, whether it is reduced. The axes are an input since opset
/// InputSince and an attribute before. Without axes all dimensions are reduced, or none with
/// noop_with_empty_axes.
template <std::int64_t InputSince>
[[nodiscard]] std::vector<bool> reduced_axes(const operator_context& c) {
  const std::size_t rank = c.input(0).rank();
  if (c.opset >= InputSince) {
    c.require(c.n().find("axes") == nullptr, "axes are an input since operator set ", InputSince);
  } else {
    c.require(!c.has_input(1), "axes are an attribute before operator set ", InputSince);
  }
  const std::vector<std::int64_t> axes =
      c.opset >= InputSince ? c.integers(1) : c.n().get_ints("axes");
  if (axes.empty()) {
    return std::vector<bool>(rank, c.n().get_int("noop_with_empty_axes", 0) == 0);
  }
  std::vector<bool> reduced(rank, false);
  for (const std::int64_t a : axes) {
    const std::size_t i = c.axis(a, rank);
    c.require(!reduced[i], "axis ", a, " is there twice");
    reduced[i] = true;
  }
  return reduced;
}

/// `dims` with 1 in place of each reduced dimension or, if the attribute keepdims is 0, without
/// these dimensions.
[[nodiscard]] inline shape reduced_dims(const operator_context& c, const shape& dims,
                                        const std::vector<bool>& reduced) {
  const bool keep = c.n().get_int("keepdims", 1) != 0;
  shape result;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (!reduced[i] || keep) {
      result.push_back(reduced[i] ? 1 : dims[i]);
    }
  }
  return result;
}

template <std::int64_t InputSince>
void infer_reduction(operator_context& c) {
  const tensor& x = c.input(0);
  c.set_output(0, x.type(), reduced_dims(c, x.dims(), reduced_axes<InputSince>(c)));
}

/// Where the elements of a reduction are. The innermost dimensions, as far as they are all reduced
/// or all kept, form a row of `row` elements: a row is either part of one sum, together with other
/// rows, or adds one element to each of `row` sums side by side.
struct reduction_plan {
  explicit reduction_plan(std::pmr::memory_resource* memory)
      : kept(1, std::size_t{0}, memory), reduced(1, std::size_t{0}, memory) {}

  std::pmr::vector<std::size_t> kept;  // where the rows of each sum (or sums) begin: offsets of the
                                       // kept dimensions outside the row
  std::pmr::vector<std::size_t> reduced;  // offsets of the rows that are added up: the reduced
                                          // dimensions outside the row
  std::size_t row = 1;
  bool row_is_reduced = true;
  std::size_t count = 1;  // number of elements of a sum
};

/// The list of i * stride + offset for all i < extent and all entries of `offsets`, which vary
/// fastest.
[[nodiscard]] inline std::pmr::vector<std::size_t> spread(
    const std::pmr::vector<std::size_t>& offsets, std::size_t extent, std::size_t stride) {
  std::pmr::vector<std::size_t> all(offsets.get_allocator());
  all.reserve(offsets.size() * extent);
  for (std::size_t i = 0; i < extent; ++i) {
    for (const std::size_t offset : offsets) {
      all.push_back(i * stride + offset);
    }
  }
  return all;
}

[[nodiscard]] inline reduction_plan plan_reduction(const operator_context& c, const shape& dims,
                                                   const std::vector<bool>& reduced) {
  reduction_plan plan(c.memory);
  std::size_t stride = 1;
  bool in_row = true;
  for (std::size_t i = dims.size(); i-- > 0;) {
    const auto extent = static_cast<std::size_t>(dims[i]);
    if (extent == 1) {
      continue;
    }
    if (stride == 1) {
      plan.row_is_reduced = reduced[i];
    }
    in_row = in_row && plan.row_is_reduced == reduced[i];
    if (in_row) {
      plan.row *= extent;
    } else {
      auto& offsets = reduced[i] ? plan.reduced : plan.kept;
      offsets = spread(offsets, extent, stride);
    }
    plan.count *= reduced[i] ? extent : 1;
    stride *= extent;
  }
  return plan;
}

/// Adds an element to each of as many totals.
template <class Reducer, class T>
void add_each(std::span<typename Reducer::total> totals, std::span<const T> row) {
  if constexpr (std::is_same_v<T, float> && requires { Reducer::add_each(totals.data(), row); }) {
    Reducer::add_each(totals.data(), row);
  } else {
    for (std::size_t i = 0; i < row.size(); ++i) {
      Reducer::add(totals[i], row[i]);
    }
  }
}

/// Adds the elements of a row to one total.
template <class Reducer, class T>
void add_row(typename Reducer::total& total, std::span<const T> row) {
  if constexpr (std::is_same_v<T, float> && requires { Reducer::add_row(total, row); }) {
    if (row.size() >= reducers::long_row) {
      Reducer::add_row(total, row);
      return;
    }
  }
  for (const T element : row) {
    Reducer::add(total, element);
  }
}

/// Reduces rows of `size` floats, one behind the other, some at a time.
template <class Reducer>
void reduce_rows(const operator_context& c, std::size_t rows, std::size_t size, const float* x,
                 float* y) {
  for_pieces(c, rows, rows_of(cheap_piece, size), [&](std::size_t begin, std::size_t end) {
    std::array<double, reducers::rows_together> totals;
    for (std::size_t first = begin; first < end; first += totals.size()) {
      const std::size_t count = (std::min)(totals.size(), end - first);
      Reducer::sum_each(x + first * size, size, std::span(totals).first(count));
      for (std::size_t k = 0; k < count; ++k) {
        y[first + k] = Reducer::result(totals[k], size);
      }
    }
  });
}

template <class Reducer, class T>
void reduce(const operator_context& c, const reduction_plan& plan, const T* x, T* y) {
  if constexpr (std::is_same_v<T, float> && requires { &Reducer::sum_each; }) {
    if (plan.row_is_reduced && plan.reduced.size() == 1 && plan.row >= reducers::long_row) {
      return reduce_rows<Reducer>(c, plan.kept.size(), plan.row, x, y);
    }
  }
  const std::size_t width = plan.row_is_reduced ? 1 : plan.row;
  const std::size_t work = plan.row * plan.reduced.size();
  for_pieces(c, plan.kept.size(), rows_of(cheap_piece, work),
             [&](std::size_t begin, std::size_t end) {
               std::pmr::vector<typename Reducer::total> totals(width, c.memory);
               for (std::size_t group = begin; group < end; ++group) {
                 std::fill(totals.begin(), totals.end(), Reducer::start());
                 for (const std::size_t offset : plan.reduced) {
                   const std::span<const T> row(x + plan.kept[group] + offset, plan.row);
                   if (plan.row_is_reduced) {
                     add_row<Reducer>(totals[0], row);
                   } else {
                     add_each<Reducer, T>(totals, row);
                   }
                 }
                 for (std::size_t i = 0; i < width; ++i) {
                   y[group * width + i] = Reducer::result(totals[i], plan.count);
                 }
               }
             });
}

template <template <class> class Reducer, class T, std::int64_t InputSince>
void run_reduction_as(operator_context& c) {
  const elements<T> x(c, c.input(0));
  fill_output<T>(c, [&](std::span<T> y) {
    if (y.empty()) {
      return;
    }
    if (!x.view().empty()) {
      c.count_multiply_adds({x.view().size()});
      const reduction_plan plan = plan_reduction(c, c.input(0).dims(), reduced_axes<InputSince>(c));
      reduce<Reducer<T>>(c, plan, x.view().data(), y.data());
      return;
    }
    // There are results but no elements: each result is the reduction of an empty list.
    if constexpr (std::is_same_v<Reducer<T>, reducers::mean<T>> && std::is_integral_v<T>) {
      c.require(false, "the mean of no integers is not defined");
    }
    std::fill(y.begin(), y.end(), Reducer<T>::result(Reducer<T>::start(), 0));
  });
}

template <template <class> class Reducer, class Types, std::int64_t InputSince>
void run_reduction(operator_context& c) {
  for_type(c, Types{}, widened(c.input(0).type()),
           [&]<class T>() { run_reduction_as<Reducer, T, InputSince>(c); });
}

/// The result of ReduceMax or ReduceMin for an empty axis: the identity of the element type, not of
/// the wider type in which elements are compared.
template <template <class> class Reducer>
void run_extremum_of_nothing(operator_context& c) {
  tensor& y = c.make_output(0);
  if (y.type() == element_type::boolean) {
    const bool start = Reducer<int>::start() > 0;  // true is the largest
    std::fill(y.mutable_data<std::uint8_t>().begin(), y.mutable_data<std::uint8_t>().end(),
              static_cast<std::uint8_t>(start));
    return;
  }
  for_type(c, number_types{}, y.type(), [&]<class T>() {
    std::fill(y.mutable_data<T>().begin(), y.mutable_data<T>().end(), Reducer<T>::start());
  });
}

template <template <class> class Reducer>
void run_extremum(operator_context& c) {
  if (c.input(0).count() == 0) {
    run_extremum_of_nothing<Reducer>(c);
  } else if (c.input(0).type() == element_type::boolean) {
    run_reduction_as<Reducer, std::int64_t, 18>(c);
  } else {
    run_reduction<Reducer, wide_types, 18>(c);
  }
}

template <template <class> class Reducer, class Types, std::int64_t InputSince = 18>
[[nodiscard]] constexpr operator_definition reduction_operator(std::string_view name) {
  return {"",
          name,
          1,
          2,
          layout_support::plain,
          &infer_widened<Types, &infer_reduction<InputSince>>,
          &run_reduction<Reducer, Types, InputSince>};
}

// --- ArgMax and ArgMin ---------------------------------------------------------------------------

[[nodiscard]] inline std::size_t arg_axis(const operator_context& c) {
  return c.axis(c.n().get_int("axis", 0), c.input(0).rank());
}

inline void infer_arg(operator_context& c) {
  const shape& dims = c.input(0).dims();
  std::vector<bool> reduced(dims.size(), false);
  reduced[arg_axis(c)] = true;
  c.set_output(0, element_type::s64, reduced_dims(c, dims, reduced));
}

/// True if x takes the place of `best`, the best element so far. NaN is better than every number,
/// as in numpy. `ties`: a later element that is as good takes the place too.
template <bool Max, class T>
[[nodiscard]] bool beats(T x, T best, bool ties) {
  if (best != best) {
    return ties && x != x;
  }
  return x != x || (Max ? x > best : x < best) || (ties && x == best);
}

/// The index of the element of a row that ArgMax or ArgMin chooses; `ties` is that of beats(). The
/// elements are `stride` apart.
template <bool Max, class T>
[[nodiscard]] std::size_t index_of_best(const T* row, std::size_t length, std::size_t stride,
                                        bool ties) {
  if constexpr (std::is_same_v<T, float>) {
    if (stride == 1) {
      const auto kernel = Max ? row_kernels().largest : row_kernels().smallest;
      const float best = kernel(row, length);
      for (std::size_t step = 0; step < length; ++step) {
        const std::size_t i = ties ? length - 1 - step : step;
        if (row[i] == best) {
          return i;
        }
      }
      // Reached for NaN, and where the processor replaces denormal results by zeros.
    }
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (beats<Max>(row[i * stride], row[best * stride], ties)) {
      best = i;
    }
  }
  return best;
}

template <bool Max>
void run_arg(operator_context& c) {
  const tensor& x = c.input(0);
  const axis_view v = view_axis(x.dims(), arg_axis(c));
  const std::span<std::int64_t> y = c.make_output(0).mutable_data<std::int64_t>();
  c.count_multiply_adds({c.input(0).count()});
  c.require(v.length > 0 || y.empty(), "there is no element to choose in a tensor of shape ",
            shown(x.dims()));
  const bool ties = c.n().get_int("select_last_index", 0) != 0;
  for_type(c, wide_types{}, widened(x.type()), [&]<class T>() {
    const elements<T> values(c, x);
    for_pieces(
        c, y.size(), rows_of(cheap_piece, v.length), [&](std::size_t begin, std::size_t end) {
          for (std::size_t row = begin; row < end; ++row) {
            const T* from =
                values.view().data() + row / v.inner * v.length * v.inner + row % v.inner;
            y[row] = static_cast<std::int64_t>(index_of_best<Max>(from, v.length, v.inner, ties));
          }
        });
  });
}

// --- CumSum and CumProd --------------------------------------------------------------------------

/// Replaces each element by the total, of class Reducer, of the elements up to it.
template <template <class> class Reducer>
void run_cumulative(operator_context& c) {
  const tensor& x = c.input(0);
  const std::vector<std::int64_t> axis = c.integers(1);
  c.require(axis.size() == 1, "the axis is not a single integer");
  const axis_view v = view_axis(x.dims(), c.axis(axis[0], x.rank()));
  const bool exclusive = c.n().get_int("exclusive", 0) != 0;
  const bool reverse = c.n().get_int("reverse", 0) != 0;
  for_type(c, wide_types{}, widened(x.type()), [&]<class T>() {
    const elements<T> values(c, x);
    const std::span<const T> from = values.view();
    fill_output<T>(c, [&](std::span<T> to) {
      for (std::size_t row = 0; !from.empty() && row < v.outer * v.inner; ++row) {
        const std::size_t first = row / v.inner * v.length * v.inner + row % v.inner;
        auto total = Reducer<T>::start();
        for (std::size_t step = 0; step < v.length; ++step) {
          const std::size_t at = first + (reverse ? v.length - 1 - step : step) * v.inner;
          const T before = static_cast<T>(total);
          Reducer<T>::add(total, from[at]);
          to[at] = exclusive ? before : static_cast<T>(total);
        }
      }
    });
  });
}

inline constexpr operator_definition reduction_operators[] = {
    reduction_operator<reducers::sum, wide_types, 13>("ReduceSum"),
    reduction_operator<reducers::mean, wide_types>("ReduceMean"),
    reduction_operator<reducers::product, wide_types>("ReduceProd"),
    reduction_operator<reducers::l1, wide_types>("ReduceL1"),
    reduction_operator<reducers::l2, wide_types>("ReduceL2"),
    reduction_operator<reducers::sum_square, wide_types>("ReduceSumSquare"),
    reduction_operator<reducers::log_sum, wide_types>("ReduceLogSum"),
    reduction_operator<reducers::log_sum_exp, wide_types>("ReduceLogSumExp"),
    {"", "ReduceMax", 1, 2, layout_support::plain, &infer_reduction<18>,
     &run_extremum<reducers::max>},
    {"", "ReduceMin", 1, 2, layout_support::plain, &infer_reduction<18>,
     &run_extremum<reducers::min>},
    {"", "ArgMax", 1, 1, layout_support::plain, &infer_widened<wide_types, &infer_arg>,
     &run_arg<true>, true},
    {"", "ArgMin", 1, 1, layout_support::plain, &infer_widened<wide_types, &infer_arg>,
     &run_arg<false>, true},
    {"", "CumSum", 2, 2, layout_support::plain, &infer_widened<wide_types, &infer_like_input>,
     &run_cumulative<reducers::sum>},
    {"", "CumProd", 2, 2, layout_support::plain, &infer_widened<wide_types, &infer_like_input>,
     &run_cumulative<reducers::product>},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_REDUCTION_HPP
