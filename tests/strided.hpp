// SPDX-License-Identifier: BSD-3-Clause
// Tensors in random layouts: permuted axes, gaps, negative strides.
#ifndef DETENT_TESTS_STRIDED_HPP
#define DETENT_TESTS_STRIDED_HPP

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <detent/detent.hpp>

#include "random.hpp"

namespace test {

using tensor_index = std::array<std::size_t, detent::max_rank>;

template <class T>
[[nodiscard]] std::size_t offset_of(const detent::tensor_view<T>& v, const T* base,
                                    const tensor_index& index) {
  std::ptrdiff_t offset = v.data - base;
  for (std::size_t i = 0; i < v.rank; ++i) {
    offset += static_cast<std::ptrdiff_t>(index[i]) * v.strides[i];
  }
  return static_cast<std::size_t>(offset);
}

/// Calls visit(index) for each element, last axis fastest.
template <class Visit>
void for_each_index(std::span<const std::size_t> shape, const Visit& visit) {
  for (const std::size_t extent : shape) {
    if (extent == 0) {
      return;
    }
  }
  tensor_index index{};
  while (true) {
    visit(std::as_const(index));
    std::size_t i = shape.size();
    while (i > 0 && ++index[i - 1] == shape[i - 1]) {
      index[--i] = 0;
    }
    if (i == 0) {
      return;
    }
  }
}

/// Storage and a view into it that reaches each element once and leaves gaps.
template <class T>
struct strided_tensor {
  std::vector<T> storage;
  detent::tensor_view<T> view;

  [[nodiscard]] T& operator[](const tensor_index& index) {
    return storage[offset_of(view, storage.data(), index)];
  }
};

template <class T>
strided_tensor<T> random_layout(random_source& random, const std::vector<std::size_t>& shape,
                                T fill) {
  const std::size_t rank = shape.size();
  std::vector<std::size_t> order(rank);  // outermost in memory first
  for (std::size_t i = 0; i < rank; ++i) {
    order[i] = i;
  }
  if (random.chance(60)) {
    for (std::size_t i = rank; i > 1; --i) {
      std::swap(order[i - 1], order[random.size(0, i - 1)]);
    }
  }
  const bool has_gaps = random.chance(50);
  const bool has_reversals = random.chance(50);
  std::vector<std::ptrdiff_t> strides(rank);
  std::ptrdiff_t step = 1;
  std::ptrdiff_t first = 0;
  for (std::size_t i = rank; i-- > 0;) {
    const std::size_t axis = order[i];
    const auto extent = static_cast<std::ptrdiff_t>(shape[axis]);
    step += has_gaps && random.chance(40) ? random.integer<std::ptrdiff_t>(1, 3) : 0;
    strides[axis] = step;
    if (has_reversals && random.chance(40)) {
      strides[axis] = -step;
      first += extent > 0 ? (extent - 1) * step : 0;
    }
    step *= extent > 0 ? extent : 1;
  }
  strided_tensor<T> result;
  result.storage.assign(static_cast<std::size_t>(step) + 1, fill);
  result.view = detent::tensor_view<T>(result.storage.data() + first, shape, strides);
  return result;
}

/// Rank 0 to 5, a few hundred elements at the most; sometimes empty, often with axes of one
/// element.
inline std::vector<std::size_t> random_shape(random_source& random, std::size_t min_rank) {
  std::vector<std::size_t> shape(random.size(min_rank, 5));
  for (std::size_t& extent : shape) {
    extent = random.chance(3)    ? 0
             : random.chance(20) ? 1
             : random.chance(15) ? random.size(5, 40)
                                 : random.size(2, 4);
  }
  return shape;
}

}  // namespace test

#endif  // DETENT_TESTS_STRIDED_HPP
