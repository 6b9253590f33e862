// SPDX-License-Identifier: BSD-3-Clause
// How a matrix product is shared out: blocks of rows, and of columns where there are few rows.
#ifndef DETENT_PRODUCT_PARTS_HPP
#define DETENT_PRODUCT_PARTS_HPP

#include <algorithm>
#include <cstddef>

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

/// How a product is shared out: rows first, since whoever has some of the columns has to read and
/// prepare the rows again.
struct product_split {
  std::size_t rows, columns;  // of a task
  bool by_columns = false;    // whether all rows of some columns come before other columns

  /// `shared_cache`, if it is not 0: weights that do not fit half of it are taken in blocks of
  /// columns that do, or all tasks would read all weights from memory.
  product_split(std::size_t m, std::size_t n, std::size_t k, std::size_t rows_per_call,
                bool is_parallel, std::size_t shared_cache = 0) noexcept
      : rows(rows_per_call), columns(n) {
    const std::size_t depth = (std::max)(k, std::size_t{1});
    if (shared_cache != 0 && shared_cache / 2 / depth < n) {
      by_columns = true;
      columns = (std::max)(shared_cache / 2 / depth / kernels::strip_columns, std::size_t{1}) *
                kernels::strip_columns;
    }
    constexpr std::size_t wanted = 16;                          // tasks
    constexpr std::size_t worth_a_task = std::size_t{1} << 20;  // products
    constexpr std::size_t fewest_rows = 64;
    if (!is_parallel) {
      return;
    }
    while (rows > fewest_rows && (m + rows - 1) / rows < wanted) {
      rows /= 2;
    }
    const std::size_t row_tasks = (m + rows - 1) / rows;
    const std::size_t products = (std::min)(m, rows) * k;
    const std::size_t column_tasks =
        (std::min)(wanted / (std::max)(row_tasks, std::size_t{1}), n * products / worth_a_task);
    if (column_tasks > 1) {
      columns = (std::min)(columns,
                           round_up((n + column_tasks - 1) / column_tasks, kernels::strip_columns));
    }
  }
};

/// What one task multiplies.
struct product_part {
  std::size_t first, rows;
  std::size_t column, columns;
};

/// The parts of an m x n product.
class product_parts {
 public:
  product_parts(std::size_t m, std::size_t n, const product_split& split) noexcept
      : m_(m),
        n_(n),
        split_(split),
        columns_(n == 0 ? 1 : (n + split.columns - 1) / split.columns) {}

  [[nodiscard]] std::size_t size() const noexcept {
    return (m_ + split_.rows - 1) / split_.rows * columns_;
  }
  [[nodiscard]] product_part operator[](std::size_t i) const noexcept {
    const std::size_t rows = (m_ + split_.rows - 1) / split_.rows;
    const std::size_t first = (split_.by_columns ? i % rows : i / columns_) * split_.rows;
    const std::size_t column = (split_.by_columns ? i / rows : i % columns_) * split_.columns;
    return {first, (std::min)(split_.rows, m_ - first), column,
            (std::min)(split_.columns, n_ - column)};
  }

 private:
  std::size_t m_, n_;
  product_split split_;
  std::size_t columns_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_PRODUCT_PARTS_HPP
