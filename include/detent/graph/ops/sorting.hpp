// SPDX-License-Identifier: BSD-3-Clause
// TopK and Unique: operators that put elements in order. NaN counts as larger than every number and
// as equal to itself, as in numpy.
#ifndef DETENT_GRAPH_OPS_SORTING_HPP
#define DETENT_GRAPH_OPS_SORTING_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/axis_view.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/inferred_result.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace sorting {

/// True if a is smaller than b; NaN is larger than every number.
template <class T>
[[nodiscard]] bool is_smaller(T a, T b) {
  return a < b || (b != b && a == a);
}

/// Counts the work of sorting `length` things, each of `size` elements. Things without elements
/// are sorted, too.
inline void count_sort(const operator_context& c, std::size_t size, std::size_t length) {
  c.count_multiply_adds(
      {(std::max)(size, std::size_t{1}), length, static_cast<std::size_t>(std::bit_width(length))});
}

// --- TopK ----------------------------------------------------------------------------------------

[[nodiscard]] inline std::size_t top_axis(const operator_context& c) {
  return c.axis(c.n().get_int("axis", -1), c.input(0).rank());
}

/// The number of elements that TopK takes of each row: an input since opset 10, an attribute
/// before.
[[nodiscard]] inline std::int64_t top_count(const operator_context& c) {
  if (c.opset < 10) {
    c.require(!c.has_input(1), "k is an attribute before opset 10; this is opset ", c.opset);
    return c.n().get_int("k", -1);
  }
  static_cast<void>(c.input(1));
  const std::vector<std::int64_t> k = c.integers(1);
  c.require(k.size() == 1, "k has ", k.size(), " values, not one");
  return k[0];
}

inline void infer_top_k(operator_context& c) {
  const tensor& x = c.input(0);
  const std::size_t axis = top_axis(c);
  const std::int64_t k = top_count(c);
  c.require(k >= 0 && k <= x.dim(axis), "k is ", k, " for a dimension of ", x.dim(axis));
  shape dims = x.dims();
  dims[axis] = k;
  c.set_output(0, x.type(), dims);
  c.set_output(1, element_type::s64, std::move(dims));
}

/// Writes the indices of the `best` first elements of a row in their order to the front of
/// `indices`. Of equal elements, that with the lower index comes first.
template <class T>
void order_row(const T* row, std::size_t step, bool largest, std::size_t best,
               std::span<std::size_t> indices) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    indices[i] = i;
  }
  const auto comes_first = [&](std::size_t i, std::size_t j) {
    const T a = row[i * step];
    const T b = row[j * step];
    if (largest ? is_smaller(b, a) : is_smaller(a, b)) {
      return true;
    }
    return !(largest ? is_smaller(a, b) : is_smaller(b, a)) && i < j;
  };
  std::partial_sort(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(best),
                    indices.end(), comes_first);
}

inline void run_top_k(operator_context& c) {
  const tensor& x = c.input(0);
  const axis_view v = view_axis(x.dims(), top_axis(c));
  const bool largest = c.opset < 11 || c.n().get_int("largest", 1) != 0;
  const auto k = static_cast<std::size_t>(c.outputs[0].dim(top_axis(c)));
  count_sort(c, v.outer * v.inner, v.length);
  tensor& values = c.make_output(0);
  std::byte* to = values.mutable_raw();
  std::int64_t* positions =
      c.has_output(1) ? c.make_output(1).mutable_data<std::int64_t>().data() : nullptr;
  if (values.count() == 0) {
    return;
  }
  const std::size_t size = element_size(x.type());
  for_type(c, wide_types{}, widened(x.type()), [&]<class T>() {
    const elements<T> wide(c, x);
    std::pmr::vector<std::size_t> indices(v.length, c.memory);
    for (std::size_t row = 0; row < v.outer * v.inner; ++row) {
      const std::size_t from = row / v.inner * v.length * v.inner + row % v.inner;
      const std::size_t first = row / v.inner * k * v.inner + row % v.inner;
      order_row(wide.view().data() + from, v.inner, largest, k, std::span<std::size_t>(indices));
      for (std::size_t i = 0; i < k; ++i) {
        const std::size_t at = first + i * v.inner;
        std::memcpy(to + at * size, x.raw() + (from + indices[i] * v.inner) * size, size);
        if (positions != nullptr) {
          positions[at] = static_cast<std::int64_t>(indices[i]);
        }
      }
    }
  });
}

// --- Unique --------------------------------------------------------------------------------------

/// The different slices of a tensor along an axis, in the order of the output.
struct unique_slices {
  std::pmr::vector<std::size_t> first;    ///< For each, the index of its first occurrence.
  std::pmr::vector<std::size_t> counts;   ///< For each, how often it occurs.
  std::pmr::vector<std::size_t> inverse;  ///< For each slice of the input, which of these it is.

  /// Lists for `count` different slices of `length` ones.
  unique_slices(std::pmr::memory_resource* memory, std::size_t count, std::size_t length)
      : first(count, memory), counts(count, memory), inverse(length, memory) {}
};

/// The input of Unique seen as [outer, length, inner]; without an axis, all elements are slices.
[[nodiscard]] inline axis_view unique_view(const operator_context& c) {
  const shape& dims = c.input(0).dims();
  if (c.n().find("axis") == nullptr) {
    return {1, c.input(0).count(), 1};
  }
  return view_axis(dims, c.axis(c.n().get_int("axis", 0), dims.size()));
}

/// -1, 0 or 1 as slice i is before, equal to or behind slice j in the order of their elements.
template <class T>
[[nodiscard]] int compare_slices(const T* data, const axis_view& v, std::size_t i, std::size_t j) {
  for (std::size_t outer = 0; v.inner > 0 && outer < v.outer; ++outer) {
    const T* a = data + (outer * v.length + i) * v.inner;
    const T* b = data + (outer * v.length + j) * v.inner;
    for (std::size_t k = 0; k < v.inner; ++k) {
      if (is_smaller(a[k], b[k])) {
        return -1;
      }
      if (is_smaller(b[k], a[k])) {
        return 1;
      }
    }
  }
  return 0;
}

template <class T>
[[nodiscard]] unique_slices find_unique(const operator_context& c) {
  const axis_view v = unique_view(c);
  const std::pmr::vector<T> data = load_all<T>(c, c.input(0));
  std::pmr::vector<std::size_t> order(v.length, c.memory);
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    const int sign = compare_slices(data.data(), v, i, j);
    return sign < 0 || (sign == 0 && i < j);
  });
  unique_slices u(c.memory, 0, v.length);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || compare_slices(data.data(), v, order[i - 1], order[i]) != 0) {
      u.first.push_back(order[i]);
      u.counts.push_back(0);
    }
    ++u.counts.back();
    u.inverse[order[i]] = u.first.size() - 1;
  }
  return u;
}

/// Brings the slices from ascending order into that of their first occurrences.
inline void order_by_occurrence(const operator_context& c, unique_slices& u) {
  std::pmr::vector<std::size_t> order(u.first.size(), c.memory);
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t i, std::size_t j) { return u.first[i] < u.first[j]; });
  unique_slices sorted(c.memory, order.size(), u.inverse.size());
  std::pmr::vector<std::size_t> place(order.size(), c.memory);
  for (std::size_t i = 0; i < order.size(); ++i) {
    sorted.first[i] = u.first[order[i]];
    sorted.counts[i] = u.counts[order[i]];
    place[order[i]] = i;
  }
  for (std::size_t i = 0; i < u.inverse.size(); ++i) {
    sorted.inverse[i] = place[u.inverse[i]];
  }
  u = std::move(sorted);
}

inline void infer_unique(operator_context& c) {
  const tensor& x = c.input(0);
  const axis_view v = unique_view(c);
  require_known(x);
  count_sort(c, v.outer * v.inner, v.length);
  unique_slices u(c.memory, 0, 0);
  const bool known = visit_widest(x.type(), [&]<class T>() { u = find_unique<T>(c); });
  c.require_supported(known, "no code for elements of type ", shown(x.type()));
  if (c.n().get_int("sorted", 1) == 0) {
    order_by_occurrence(c, u);
  }
  const auto count = static_cast<std::int64_t>(u.first.size());
  shape dims = x.dims();
  if (c.n().find("axis") == nullptr) {
    dims = {count};
  } else {
    dims[c.axis(c.n().get_int("axis", 0), dims.size())] = count;
  }
  c.set_output(0, x.type(), std::move(dims));
  c.set_output(1, element_type::s64, {count});
  c.set_output(2, element_type::s64, {static_cast<std::int64_t>(v.length)});
  c.set_output(3, element_type::s64, {count});
  keep_result(c, std::move(u));
}

inline void run_unique(operator_context& c) {
  const unique_slices u = take_result<unique_slices>(c);
  const tensor& x = c.input(0);
  const axis_view v = unique_view(c);
  if (c.has_output(0)) {
    tensor& y = c.make_output(0);
    const std::size_t slice = v.inner * element_size(x.type());
    for (std::size_t outer = 0; y.bytes() > 0 && outer < v.outer; ++outer) {
      for (std::size_t i = 0; i < u.first.size(); ++i) {
        std::memcpy(y.mutable_raw() + (outer * u.first.size() + i) * slice,
                    x.raw() + (outer * v.length + u.first[i]) * slice, slice);
      }
    }
  }
  const std::pmr::vector<std::size_t>* lists[] = {&u.first, &u.inverse, &u.counts};
  for (std::size_t i = 0; i < 3; ++i) {
    if (c.has_output(i + 1)) {
      std::copy(lists[i]->begin(), lists[i]->end(),
                c.make_output(i + 1).mutable_data<std::int64_t>().begin());
    }
  }
}

}  // namespace sorting

inline constexpr operator_definition sorting_operators[] = {
    {"", "TopK", 1, 2, layout_support::plain, sorting::infer_top_k, sorting::run_top_k},
    {"", "Unique", 1, 1, layout_support::plain, sorting::infer_unique, sorting::run_unique},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_SORTING_HPP
