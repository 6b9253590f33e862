// SPDX-License-Identifier: BSD-3-Clause
// Ranges of the rows of a product, collected by a fused epilogue while the results are in a cache:
// what the dynamic quantization of the next layer's left side needs.
#ifndef DETENT_ROW_RANGES_HPP
#define DETENT_ROW_RANGES_HPP

#include <atomic>
#include <cstddef>
#include <limits>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/dynamic_quantize.hpp>
#include <detent/error.hpp>
#include <detent/fused_epilogue.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/kernels/statistics.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// The smallest and the largest value of each row of a matrix, taken block by block in any order
/// and on any threads. Minimum and maximum do not depend on the order, so that the ranges, and the
/// parameters that follow from them, are the same for every division into blocks.
///
/// @code{.cpp}
/// #include <vector>
///
/// #include <detent/fused_gemm.hpp>
/// #include <detent/row_ranges.hpp>
///
/// // A layer with float results, and the parameters to quantize each row of them with.
/// detent::channel_quant_params layer(detent::matrix_view<const std::uint8_t> x,
///                                    const detent::packed_weights& weights,
///                                    detent::matrix_view<float> out) {
///   detent::row_ranges ranges(x.rows);
///   detent::gemm(x, weights, detent::fused([&](const detent::product_block<float>& block) {
///                  ranges.include(block);
///                  detent::store_block(block, out);
///                }));
///   return ranges.finalize(detent::asymmetric<std::uint8_t>);
/// }
/// @endcode
class row_ranges {
 public:
  /// Ranges of `rows` rows, of which nothing is known yet.
  explicit row_ranges(std::size_t rows) : cells_(rows) {}

  /// Number of rows.
  [[nodiscard]] std::size_t rows() const noexcept { return cells_.size(); }

  /// Takes the values of a block into account: those that it has when it is called, for rows
  /// block.row() and following. NaN is ignored; infinities become part of the range. Throws
  /// shape_mismatch if the block ends behind the last row. Thread-safe.
  void include(const product_block<float>& block) {
    require(block.row() + block.rows() <= cells_.size(), error_kind::shape_mismatch,
            "row_ranges: a block that ends at row ", block.row() + block.rows(), " of ",
            cells_.size());
    const auto min_max = detail::active<kernels::statistics_kernels>().min_max;
    for (std::size_t i = 0; i < block.rows(); ++i) {
      const kernels::min_max_result r = min_max(block[i].data(), block.columns());
      cell& c = cells_[block.row() + i];
      replace_if(c.lower, r.lower, [](float now, float next) { return next < now; });
      replace_if(c.upper, r.upper, [](float now, float next) { return next > now; });
    }
  }

  /// Whether a number was seen in the row: a value that is not NaN.
  [[nodiscard]] bool has_range(std::size_t row) const noexcept {
    return cells_[row].lower <= cells_[row].upper;
  }
  /// The smallest and the largest value of a row; 0 and 0 if no number was seen in it. Call it when
  /// no include() runs any more.
  [[nodiscard]] value_range range(std::size_t row) const noexcept {
    return has_range(row) ? value_range{cells_[row].lower, cells_[row].upper} : value_range{};
  }
  /// The scale and zero point of each row (axis 0), bit for bit those of dynamic_quantize_rows().
  /// Throws invalid_argument if a range is infinite, and what params_from_range() throws. Call it
  /// when no include() runs any more.
  [[nodiscard]] channel_quant_params finalize(quant_scheme scheme) const {
    channel_quant_params all;
    all.axis = 0;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const kernels::min_max_result r{cells_[i].lower, cells_[i].upper, 0};
      const quant_params p = detail::dynamic_params(r, has_range(i), scheme, "row_ranges");
      all.scales.push_back(p.scale);
      all.zero_points.push_back(p.zero_point);
    }
    return all;
  }

 private:
  struct cell {
    std::atomic<float> lower{std::numeric_limits<float>::infinity()};
    std::atomic<float> upper{-std::numeric_limits<float>::infinity()};
  };

  /// Writes `next` as long as it is better than what is there.
  template <class IsBetter>
  static void replace_if(std::atomic<float>& value, float next,
                         const IsBetter& is_better) noexcept {
    float now = value.load(std::memory_order_relaxed);
    while (is_better(now, next) &&
           !value.compare_exchange_weak(now, next, std::memory_order_relaxed)) {
    }
  }

  std::vector<cell> cells_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_ROW_RANGES_HPP
