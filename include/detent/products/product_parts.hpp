// SPDX-License-Identifier: BSD-3-Clause
// How a matrix product is shared out: blocks of rows, and of columns where there are few rows.
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

/// Rows in one unit of parallel work, where no kernel says how many it wants: enough to read the
/// weights for, few enough to share out.
inline constexpr std::size_t rows_per_task = 48;

/// Calls body(first row, rows) for blocks of `block` rows.
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

/// 0 .. size in `count` blocks (fewer, if there are fewer units), which differ by one unit at most
/// but for what the last unit lacks.
class even_blocks {
 public:
  even_blocks() = default;
  even_blocks(std::size_t size, std::size_t unit, std::size_t count) noexcept
      : size_(size),
        unit_(unit),
        units_((size + unit - 1) / unit),
        count_((std::min)((std::max)(count, std::size_t{1}), units_)) {}

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Where block i begins; block count() would begin at the end. count() is not 0.
  [[nodiscard]] std::size_t begin(std::size_t i) const noexcept {
    return (std::min)(units_ * i / count_ * unit_, size_);
  }
  [[nodiscard]] std::size_t size(std::size_t i) const noexcept { return begin(i + 1) - begin(i); }

 private:
  std::size_t size_ = 0, unit_ = 1, units_ = 0, count_ = 0;
};

/// What one task multiplies.
struct product_part {
  std::size_t first, rows;
  std::size_t column, columns;
};

/// Tasks that a product is divided into for threads, as far as that is worth it. Blocks are powers
/// of two, or multiples of it: the same work for each of 2, 4, 8 and 16 threads.
inline constexpr std::size_t wanted_tasks = 16;
inline constexpr std::size_t fewest_rows = 64;                     // of a task
inline constexpr std::size_t worth_a_task = std::size_t{1} << 20;  // products

/// The blocks of m rows that a kernel wants, with as many more as threads do if `divides`.
[[nodiscard]] inline std::size_t count_row_blocks(std::size_t m, kernels::row_counts counts,
                                                  bool is_parallel, bool divides) noexcept {
  const std::size_t least = (m + counts.per_call - 1) / counts.per_call;
  if (!is_parallel) {
    return least;
  }
  const std::size_t shared =
      least > wanted_tasks ? round_up(least, wanted_tasks) : std::bit_ceil(least);
  return divides ? (std::max)(shared, std::bit_floor((std::min)(m / fewest_rows, wanted_tasks)))
                 : shared;
}

/// Tasks of rows alone, for those that prepare their rows; no fewer blocks of rows than
/// product_parts has.
[[nodiscard]] inline even_blocks row_tasks(std::size_t m, kernels::row_counts counts,
                                           bool is_parallel) noexcept {
  return {m, counts.per_tile, count_row_blocks(m, counts, is_parallel, true)};
}

/// The tasks of an m x n product: blocks of rows first, since whoever has some of the columns has
/// to read and prepare the rows again, and of columns where there are few rows.
///
/// Weights are divided where they do not fit caches that are known: those that half of the third
/// level does not hold are taken in blocks of columns that it does, or all tasks would read all
/// weights from memory; those that half of a second level does not hold are shared out before rows
/// are, so that every core has a part that stays in its own.
class product_parts {
 public:
  product_parts(std::size_t m, std::size_t n, std::size_t k, kernels::row_counts counts,
                bool is_parallel, const cache_sizes& caches = {}) noexcept {
    const std::size_t depth = (std::max)(k, std::size_t{1});
    const auto fit_half_of = [size = n * depth](std::size_t cache) {
      return cache == 0 || size <= cache / 2;
    };
    const bool rows_first = fit_half_of(caches.second_level);
    std::size_t row_blocks = count_row_blocks(m, counts, is_parallel, rows_first);
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
      // What columns were too few for.
      row_blocks = (std::max)(
          row_blocks, std::bit_floor((std::min)(m / fewest_rows, wanted_tasks / columns_.count())));
    }
    rows_ = {m, counts.per_tile, row_blocks};
  }

  /// Whether all rows of some columns come before other columns.
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
