// SPDX-License-Identifier: BSD-3-Clause
// How a matrix product is shared out: blocks of rows, and of columns where there are few rows.
#ifndef DETENT_PRODUCT_PARTS_HPP
#define DETENT_PRODUCT_PARTS_HPP

#include <algorithm>
#include <bit>
#include <cstddef>

#include <detent/cache_sizes.hpp>
#include <detent/kernels/table.hpp>
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
/// but for what the last unit lacks. Longer ones come first.
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
    const std::size_t units = units_ / count_ * i + (std::min)(i, units_ % count_);
    return (std::min)(units * unit_, size_);
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

/// The tasks of an m x n product: blocks of rows first, since whoever has some of the columns has
/// to read and prepare the rows again, and of columns where there are few rows.
///
/// Weights are divided where they do not fit caches that are known: those that half of the third
/// level does not hold are taken in blocks of columns that it does, or all tasks would read all
/// weights from memory; those that half of a second level does not hold are shared out before rows
/// are divided further than a kernel wants, so that every core has a part that stays in its own.
class product_parts {
 public:
  product_parts(std::size_t m, std::size_t n, std::size_t k, const kernels::kernel_table& table,
                bool is_parallel, const cache_sizes& caches = {}) noexcept {
    const auto fit_half_of = [size = n * (std::max)(k, std::size_t{1})](std::size_t cache) {
      return cache == 0 || size <= cache / 2;
    };
    std::size_t row_blocks = (m + table.rows_per_call - 1) / table.rows_per_call;
    std::size_t column_blocks = 1;
    if (!fit_half_of(caches.third_level)) {
      by_columns_ = true;
      const std::size_t depth = (std::max)(k, std::size_t{1});
      const std::size_t strips =
          (std::max)(caches.third_level / 2 / depth / kernels::strip_columns, std::size_t{1});
      const std::size_t columns = strips * kernels::strip_columns;
      column_blocks = (n + columns - 1) / columns;
    }
    if (is_parallel) {
      // Powers of two, or multiples of it: the same work for each of 2, 4, 8 and 16 threads.
      constexpr std::size_t wanted = 16;
      constexpr std::size_t fewest_rows = 64;
      constexpr std::size_t worth_a_task = std::size_t{1} << 20;  // products
      row_blocks = row_blocks > wanted ? round_up(row_blocks, wanted) : std::bit_ceil(row_blocks);
      if (fit_half_of(caches.second_level)) {
        row_blocks = (std::max)(row_blocks, std::bit_floor((std::min)(m / fewest_rows, wanted)));
      } else {
        by_columns_ = true;
      }
      const std::size_t products = (m + row_blocks - 1) / row_blocks * k;
      column_blocks =
          (std::max)(column_blocks, (std::min)(wanted / row_blocks, n * products / worth_a_task));
    }
    rows_ = {m, table.rows_per_tile, row_blocks};
    columns_ = {n, kernels::strip_columns, column_blocks};
  }

  /// Whether all rows of some columns come before other columns.
  [[nodiscard]] bool by_columns() const noexcept { return by_columns_; }
  [[nodiscard]] const even_blocks& rows() const noexcept { return rows_; }
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

#endif  // DETENT_PRODUCT_PARTS_HPP
