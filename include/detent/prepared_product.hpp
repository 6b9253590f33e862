// SPDX-License-Identifier: BSD-3-Clause
// prepared_product: gemm() with the weights and options of one layer, checked and prepared once for
// many calls. It is meant for products of one or a few rows, which take a few microseconds.
#ifndef DETENT_PREPARED_PRODUCT_HPP
#define DETENT_PREPARED_PRODUCT_HPP

#include <cstddef>
#include <memory>
#include <type_traits>

#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/gemm.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// A product of 8-bit left sides of type A with one matrix of packed weights, to outputs of type T,
/// with fixed options. run() computes what gemm() computes, the same bits; what depends only on the
/// weights and options (their checks, the multipliers and offsets of the columns, weight pairs) is
/// done by the constructor.
///
/// @code{.cpp}
/// #include <cstdint>
/// #include <vector>
///
/// #include <detent/prepared_product.hpp>
///
/// // One layer of a network that handles one token at a time.
/// class layer {
///  public:
///   explicit layer(const detent::packed_weights& weights)
///       : product_(weights, {.lhs_scale = 0.02F, .lhs_zero_point = 128, .output = {0.1F, 3}}) {}
///   void run(const std::vector<std::uint8_t>& x, std::vector<std::uint8_t>& y) const {
///     product_.run(detent::matrix_view<const std::uint8_t>(x.data(), 1, x.size()),
///                  detent::matrix_view<std::uint8_t>(y.data(), 1, y.size()));
///   }
///
///  private:
///   detent::prepared_product<std::uint8_t, std::uint8_t> product_;
/// };
/// @endcode
///
/// The object refers to the weights: they must outlive it and stay where they are. It uses the
/// target that was active when it was made, whatever set_target() says later. It can be moved, and
/// a moved-from object may only be assigned to or destroyed. run() is const and thread-safe.
/// Besides what gemm() keeps in its threads, the object owns up to 12 * N bytes (N rounded up to
/// 16), and 12 * N more if sums may leave 32 bits.
template <quantized_byte A, integer_gemm_output T>
class prepared_product {
 public:
  /// Checks and prepares a product. The options are those of gemm(), but those that belong to the
  /// rows of one product: throws unsupported for lhs_scales, lhs_zero_points, a residual or an
  /// addend; else what gemm() throws for its options.
  explicit prepared_product(const packed_weights& weights, const epilogue_options& options = {})
      : weights_(&weights),
        product_((require_fixed(options, weights.columns()),
                  std::make_unique<const detail::integer_product<T>>(
                      std::type_identity<A>{}, weights, options, detail::terms_memory::owned))) {}

  /// Weights must outlive the product, so that temporary ones are refused.
  explicit prepared_product(const packed_weights&& weights,
                            const epilogue_options& options = {}) = delete;

  /// The weights that left sides are multiplied by.
  [[nodiscard]] const packed_weights& weights() const noexcept { return *weights_; }

  /// Computes gemm(lhs, weights, out, options, parallel) with the weights and options of the
  /// constructor. Layout, exactness and the errors that concern lhs and out are those of gemm().
  /// Thread-safe.
  void run(matrix_view<const A> lhs, matrix_view<T> out, const parallel_for& parallel = {}) const {
    detail::require_product(lhs, weights_->depth(), weights_->columns(), out);
    detail::run_product(*product_, lhs, weights_->columns(), no_rows,
                        detail::product_output<T>(out), parallel);
  }

 private:
  static void require_fixed(const epilogue_options& options, std::size_t columns) {
    require(options.lhs_scales.empty() && options.lhs_zero_points.empty() &&
                options.residual.data == nullptr && options.addend.data == nullptr,
            error_kind::unsupported,
            "prepared_product: parameters of rows, residuals and addends are for gemm");
    detail::require_rows<T, A>(0, columns, options);
  }

  /// The options of rows: none.
  static constexpr epilogue_options no_rows{};

  const packed_weights* weights_;
  std::unique_ptr<const detail::integer_product<T>> product_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_PREPARED_PRODUCT_HPP
