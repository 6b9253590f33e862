// SPDX-License-Identifier: BSD-3-Clause
// The folder products/ holds the parts of matrix products that gemm(), dynamic_linear() and
// convolutions share: division into tasks, copies of left sides, calls of kernels, sums beyond 32
// bits. It may include base/, kernels/, weights/, and of the folder above cache_sizes, config,
// epilogue, error, float_formats, pack, parallel, reference and types; gemm.hpp and images/ include
// it.
//
// This file divides a matrix product into tasks: blocks of rows, and of columns if there are few
// rows or if the weights are larger than a cache.
#ifndef DETENT_PRODUCTS_PRODUCT_PARTS_HPP
#define DETENT_PRODUCTS_PRODUCT_PARTS_HPP

#include <algorithm>
#include <bit>
#include <cstddef>

#include <detent/cache_sizes.hpp>
#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Number of rows of a task if no kernel says how many it wants: enough that reading the weights
/// for them pays, and few enough that there are tasks for all threads.
inline constexpr std::size_t rows_per_task = 48;

/// The number of rows of a task. Without threads it is `most`. With threads it may be smaller, so
/// that the number of tasks is a multiple of four: two or four threads then have equal shares of
/// all `rows`. Where tasks would have less than `least` rows, there are half as many, or a quarter,
/// as far as `most` allows.
[[nodiscard]] inline std::size_t rows_of_even_tasks(std::size_t rows, std::size_t least,
                                                    std::size_t most,
                                                    const parallel_for& parallel) noexcept {
  if (!parallel || rows == 0) {
    return most;
  }
  constexpr std::size_t threads = 4;
  std::size_t tasks = (rows + threads * most - 1) / (threads * most) * threads;
  while (tasks > 1 && rows / tasks < least && (rows + tasks / 2 - 1) / (tasks / 2) <= most) {
    tasks /= 2;
  }
  return (std::min)(most, (rows + tasks - 1) / tasks);
}

/// Calls body(first row, number of rows) for blocks of `block` rows; the last one may be smaller.
template <class Body>
void for_row_blocks(std::size_t rows, std::size_t block, const parallel_for& parallel,
                    const Body& body) {
  if (rows == 0) {
    return;
  }
  run_parallel(parallel, (rows + block - 1) / block, [&](std::size_t i) {
    const std::size_t first = i * block;
    body(first, (std::min)(block, rows - first));
  });
}

/// The numbers 0 .. size - 1, divided into `count` blocks of whole units (fewer blocks if there are
/// fewer units). The blocks differ by at most one unit, besides what the last unit lacks.
class even_blocks {
 public:
  /// No blocks.
  even_blocks() = default;
  even_blocks(std::size_t size, std::size_t unit, std::size_t count) noexcept
      : size_(size),
        unit_(unit),
        units_((size + unit - 1) / unit),
        count_((std::min)((std::max)(count, std::size_t{1}), units_)) {}

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Where block i begins, for i of 0 .. count(); begin(count()) is the size. count() must not be
  /// 0.
  [[nodiscard]] std::size_t begin(std::size_t i) const noexcept {
    return (std::min)(units_ * i / count_ * unit_, size_);
  }
  [[nodiscard]] std::size_t size(std::size_t i) const noexcept { return begin(i + 1) - begin(i); }

 private:
  std::size_t size_ = 0, unit_ = 1, units_ = 0, count_ = 0;
};

/// The rows and columns of the output that one task computes.
struct product_part {
  std::size_t first, rows;
  std::size_t column, columns;
};

/// Number of tasks that a product is divided into for threads, as far as tasks stay large enough.
/// Counts of blocks are powers of two up to this number, or multiples of it: equal work for each of
/// 2, 4, 8 and 16 threads.
inline constexpr std::size_t wanted_tasks = 16;
/// Fewest rows of a task that is made only to have more tasks.
inline constexpr std::size_t fewest_rows = 64;
/// Fewest multiplications of a task that is made only to have more tasks: some two microseconds of
/// AVX-512 VNNI, where giving another thread a task takes up to one.
inline constexpr std::size_t worth_a_task = std::size_t{1} << 20;

/// Whether a product of m rows, each of which takes `products` multiplications, has no two tasks
/// that are worth the threads of `parallel`.
[[nodiscard]] inline bool stays_on_one_thread(std::size_t m, std::size_t products,
                                              const parallel_for& parallel) noexcept {
  return !parallel || m * products < 2 * worth_a_task;
}

/// Fewest rows of a task that is made only to have more tasks, where each row takes `products`
/// multiplications.
[[nodiscard]] inline std::size_t fewest_rows_for(std::size_t products) noexcept {
  return (std::max)(fewest_rows, worth_a_task / (std::max)(products, std::size_t{1}));
}

/// The number of blocks that m rows are divided into, where each row takes `products`
/// multiplications: at least so many that no block has more than counts.per_call rows; with
/// threads, rounded up to a power of two or, beyond wanted_tasks, to a multiple of it; and, if
/// `divides`, as many more as wanted_tasks and fewest_rows_for() allow.
[[nodiscard]] inline std::size_t count_row_blocks(std::size_t m, std::size_t products,
                                                  kernels::row_counts counts, bool is_parallel,
                                                  bool divides) noexcept {
  const std::size_t least = (m + counts.per_call - 1) / counts.per_call;
  if (!is_parallel) {
    return least;
  }
  const std::size_t shared =
      least > wanted_tasks ? round_up(least, wanted_tasks) : std::bit_ceil(least);
  const std::size_t further = (std::min)(m / fewest_rows_for(products), wanted_tasks);
  return divides ? (std::max)(shared, std::bit_floor(further)) : shared;
}

/// The tasks of a product whose rows are prepared (quantized) by the task that multiplies them:
/// blocks of rows, with all columns. There are no fewer blocks of rows than in product_parts. Each
/// row takes `products` multiplications.
[[nodiscard]] inline even_blocks row_tasks(std::size_t m, std::size_t products,
                                           kernels::row_counts counts, bool is_parallel) noexcept {
  return {m, counts.per_tile, count_row_blocks(m, products, counts, is_parallel, true)};
}

/// The tasks of an m x n product with depth k. Rows are divided first, because tasks that share
/// rows must each read and prepare them again; columns are divided if there are too few rows.
///
/// If the sizes of caches are given, weights that do not fit them are divided by columns: weights
/// larger than half of the third level are taken in blocks of columns that fit it, as otherwise
/// every task would read all weights from memory; weights larger than half of the second level are
/// shared out before rows are, so that every core keeps its part in its own cache.
class product_parts {
 public:
  product_parts(std::size_t m, std::size_t n, std::size_t k, kernels::row_counts counts,
                bool is_parallel, const cache_sizes& caches = {}) noexcept {
    const std::size_t depth = (std::max)(k, std::size_t{1});
    const auto fit_half_of = [size = n * depth](std::size_t cache) {
      return cache == 0 || size <= cache / 2;
    };
    const bool rows_first = fit_half_of(caches.second_level);
    std::size_t row_blocks = count_row_blocks(m, n * depth, counts, is_parallel, rows_first);
    std::size_t column_blocks = 1;
    if (!fit_half_of(caches.third_level)) {
      by_columns_ = true;
      const std::size_t strips =
          (std::max)(caches.third_level / 2 / depth / kernels::strip_columns, std::size_t{1});
      const std::size_t columns = strips * kernels::strip_columns;
      column_blocks = (n + columns - 1) / columns;
    }
    if (is_parallel) {
      by_columns_ = by_columns_ || !rows_first;
      const std::size_t products = (m + row_blocks - 1) / row_blocks * k;
      column_blocks = (std::max)(
          column_blocks, (std::min)(wanted_tasks / row_blocks, n * products / worth_a_task));
    }
    columns_ = {n, kernels::strip_columns, column_blocks};
    if (is_parallel && !rows_first && columns_.count() != 0) {
      // There were too few columns for all tasks: divide rows for the rest.
      row_blocks =
          (std::max)(row_blocks, std::bit_floor((std::min)(m / fewest_rows_for(n * depth),
                                                           wanted_tasks / columns_.count())));
    }
    rows_ = {m, counts.per_tile, row_blocks};
  }

  /// Whether all rows of a block of columns come before the next block of columns in the order of
  /// the tasks.
  [[nodiscard]] bool by_columns() const noexcept { return by_columns_; }
  [[nodiscard]] std::size_t size() const noexcept { return rows_.count() * columns_.count(); }
  [[nodiscard]] product_part operator[](std::size_t i) const noexcept {
    const std::size_t row = by_columns_ ? i % rows_.count() : i / columns_.count();
    const std::size_t column = by_columns_ ? i / rows_.count() : i % columns_.count();
    return {rows_.begin(row), rows_.size(row), columns_.begin(column), columns_.size(column)};
  }

 private:
  even_blocks rows_, columns_;
  bool by_columns_ = false;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_PRODUCTS_PRODUCT_PARTS_HPP
