// SPDX-License-Identifier: BSD-3-Clause
// gemm() with an epilogue of the caller's own: instead of writing its results, the product gives
// them to a functor, block by block, while they are in a cache (see fused_epilogue.hpp).
#ifndef DETENT_FUSED_GEMM_HPP
#define DETENT_FUSED_GEMM_HPP

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include <detent/base/aligned.hpp>
#include <detent/cache_sizes.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/fused_epilogue.hpp>
#include <detent/gemm.hpp>
#include <detent/int4_weights.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/products/left_rows.hpp>
#include <detent/products/product_parts.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// The classes of weights that products with fused epilogues multiply by: packed_weights, and with
/// real results packed_int4_weights.
template <class W, class T>
concept fused_weights = std::same_as<W, packed_weights> ||
    (std::same_as<W, packed_int4_weights>&& std::same_as<T, float>);

namespace detail {

/// Divides a part of a product into blocks whose results fill the first-level cache. Few rows of
/// many columns are better than the opposite: functors go along rows.
class result_blocks {
 public:
  /// `products` is the number of products whose blocks are in the cache together.
  result_blocks(const product_part& part, std::size_t tile_rows, std::size_t products,
                const cache_sizes& caches) noexcept
      : part_(part) {
    const std::size_t wanted = (std::max)(wanted_rows, 2 * tile_rows);
    rows_ = {part.rows, tile_rows, (part.rows + wanted - 1) / wanted};
    const std::size_t elements =
        (caches.first_level != 0 ? caches.first_level : default_cache) / sizeof(float);
    const std::size_t rows = (std::min)(wanted, part.rows);
    const std::size_t strips =
        (std::max)(elements / products / (std::max)(rows, std::size_t{1}) / kernels::strip_columns,
                   std::size_t{1});
    columns_ =
        (std::min)(strips * kernels::strip_columns, round_up(part.columns, kernels::panel_columns));
    elements_ = rows * columns_;
  }

  /// The most elements of a block.
  [[nodiscard]] std::size_t most_elements() const noexcept { return elements_; }
  /// Elements from row to row.
  [[nodiscard]] std::size_t stride() const noexcept { return columns_; }
  /// Whether there is more than one block of columns.
  [[nodiscard]] bool divides_columns() const noexcept { return columns_ < part_.columns; }

  /// Calls f(block) for each block; all rows come before the next columns.
  template <class F>
  void for_each(const F& f) const {
    for (std::size_t j = 0; j < part_.columns; j += columns_) {
      for (std::size_t i = 0; i < rows_.count(); ++i) {
        f(product_part{part_.first + rows_.begin(i), rows_.size(i), part_.column + j,
                       (std::min)(columns_, part_.columns - j)});
      }
    }
  }

 private:
  static constexpr std::size_t wanted_rows = 24;
  static constexpr std::size_t default_cache = 32 * 1024;

  product_part part_;
  even_blocks rows_;
  std::size_t columns_ = 0;
  std::size_t elements_ = 0;
};

/// One or more products with the same left side and shapes, whose blocks go to one functor.
template <class A, class Weights, class F, class T, std::size_t N>
class fused_products {
  using product_type = typename product_with<T, Weights>::type;

 public:
  fused_products(std::size_t rows, const std::array<const Weights*, N>& weights,
                 const std::array<const epilogue_options*, N>& options, const F& function)
      : function_(function), caches_(resolved_caches(options[0]->caches)) {
    for (std::size_t i = 0; i < N; ++i) {
      require_rows<T, A>(rows, weights[i]->columns(), *options[i]);
      outputs_[i].emplace(matrix_view<T>{}, *options[i]);
    }
    while (!make_products(weights, options)) {
    }
  }

  [[nodiscard]] const product_type& product() const noexcept { return *products_[0]; }

  /// Multiplies the rows `left` (for each product) of a part and gives the blocks to the functor.
  void multiply(const std::array<left_part, N>& left, const product_part& part) const {
    const result_blocks blocks(part, product().tile_rows(), N, caches_);
    leased_memory<T> memory(N * blocks.most_elements());
    blocks.for_each([&](const product_part& block) {
      multiply_block(left, part.first, block, memory.data(), blocks, std::make_index_sequence<N>{});
    });
  }

  /// Whether a copy of signed rows with 128 added to each value is worth its while for a part.
  [[nodiscard]] bool copies_rows(const product_part& part) const noexcept {
    return std::same_as<A, std::int8_t> && product().shifts_rows() &&
           (!product_type::takes_signed || N > 1 ||
            result_blocks(part, product().tile_rows(), N, caches_).divides_columns());
  }

  void finish() const {
    for (const auto& output : outputs_) {
      output->finish();
    }
  }

 private:
  /// Prepares all products, each of which takes the kernels of the active target. Returns false if
  /// they do not have the same kernels, because set_target() was called meanwhile: they share the
  /// copy of the left side, the parts and the blocks.
  [[nodiscard]] bool make_products(const std::array<const Weights*, N>& weights,
                                   const std::array<const epilogue_options*, N>& options) {
    for (std::size_t i = 0; i < N; ++i) {
      products_[i].emplace(std::type_identity<A>{}, *weights[i], *options[i]);
      if (&products_[i]->target_kernels() != &products_[0]->target_kernels()) {
        return false;
      }
    }
    return true;
  }

  template <std::size_t... Is>
  void multiply_block(const std::array<left_part, N>& left, std::size_t first,
                      const product_part& block, T* memory, const result_blocks& blocks,
                      std::index_sequence<Is...>) const {
    const auto multiply_one = [&](std::size_t i) {
      T* const c = memory + i * blocks.most_elements();
      products_[i]->multiply(left[i].from(block.first - first), block, *outputs_[i], c,
                             blocks.stride());
    };
    (multiply_one(Is), ...);
    function_(product_block<T>(block.first, block.column, block.rows, block.columns,
                               memory + Is * blocks.most_elements(), blocks.stride())...);
  }

  const F& function_;
  cache_sizes caches_;
  std::array<std::optional<product_type>, N> products_;
  std::array<std::optional<product_output<T>>, N> outputs_;  // without memory for results
};

/// Checks a left side, and that all weights have the same number of columns.
template <class A, class Weights, std::size_t N>
void require_same_columns(matrix_view<const A> lhs, const std::array<const Weights*, N>& weights) {
  for (const Weights* w : weights) {
    require_left_side(lhs, w->depth());
    require(w->columns() == weights[0]->columns(), error_kind::shape_mismatch,
            "gemm: ", weights[0]->columns(), " and ", w->columns(),
            " columns of weights for one epilogue");
  }
}

/// The body of all gemm() functions with a fused epilogue.
template <class A, class Weights, class F, class T, std::size_t N>
void multiply_fused(matrix_view<const A> lhs, const std::array<const Weights*, N>& weights,
                    const std::array<const epilogue_options*, N>& options,
                    const fused_epilogue<F, T>& epilogue, const parallel_for& parallel) {
  require_same_columns(lhs, weights);
  const fused_products<A, Weights, F, T, N> products(lhs.rows, weights, options, epilogue.function);
  const product_parts parts = products.product().parts(lhs.rows, parallel);
  run_parallel(parallel, parts.size(), [&](std::size_t i) {
    const product_part part = parts[i];
    leased_memory<std::uint8_t> memory;
    std::array<left_part, N> left;
    left[0] = left_rows_of(lhs, part, products.copies_rows(part), *options[0],
                           [&](std::size_t size) { return memory.lease(size); });
    for (std::size_t p = 1; p < N; ++p) {
      left[p] = left[0];
      set_row_options(left[p], part, *options[p]);
    }
    products.multiply(left, part);
  });
  products.finish();
}

}  // namespace detail

/// Multiplies an 8-bit M x K matrix (signed or unsigned) by packed K x N weights, and gives the
/// results to the functor of `epilogue`, block by block:
///
///     fused(f):       f(product_block<float>): the values that gemm() writes to floats
///     fused_sums(f):  f(product_block<std::int32_t>): those that it writes to 32-bit integers
///
/// bit for bit, on every target and for every split into threads and blocks. `options` are those of
/// gemm() for the type of the values: with fused(f), scales, bias, residual and clamp have been
/// applied when f gets them. A residual may be memory that f writes to, if f writes no other
/// elements than those of its block.
///
/// @code{.cpp}
/// #include <cstdint>
/// #include <vector>
///
/// #include <detent/fused_gemm.hpp>
///
/// // x * sigmoid(x) of a layer's results, as bytes, and the largest result of each row.
/// void layer(detent::matrix_view<const std::uint8_t> x, const detent::packed_weights& weights,
///            detent::quant_params p, detent::matrix_view<std::uint8_t> out) {
///   const auto swish = [](auto v) { return v / (decltype(v)(1.0F) + detent::simd::exp(-v)); };
///   detent::gemm(x, weights, detent::fused([&](const detent::product_block<float>& block) {
///                  detent::transform(swish, block);
///                  detent::quantize_block(block, out, p);
///                }));
/// }
/// @endcode
///
/// Blocks have up to 24 rows, or those of two tiles of the kernels if these are more, and as many
/// columns as let the blocks (of both products, if there are two) fill the first-level cache
/// (options.caches): a multiple of 64, but for the last columns. The calls of f are concurrent if
/// `parallel` is not empty. If f throws, the product throws, where the parallel_for carries
/// exceptions, and other blocks may have been computed or not.
///
/// Layout, exactness, errors and memory are those of gemm(), but that each thread with tasks keeps
/// memory for a block and, if lhs is signed, for 256 rows. If sums do not fit the 32 bits of
/// fused_sums(), their values in the block are any, and overflow is thrown at the end. Thread-safe.
template <class A, class Weights, class F, class T>
requires quantized_byte<std::remove_const_t<A>> && fused_weights<Weights, T>
void gemm(matrix_view<A> lhs, const Weights& weights, const fused_epilogue<F, T>& epilogue,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply_fused(matrix_view<const std::remove_const_t<A>>(lhs), std::array{&weights},
                         std::array{&options}, epilogue, parallel);
}

/// Multiplies one left side by two matrices of weights of the same shape, and gives the results of
/// both to the functor of `epilogue` together, block by block: f(block of the first product, block
/// of the second), which have the same place in their products. This is what gated layers need,
/// such as SwiGLU: silu(x * first) * (x * second).
///
/// Each product has options of its own. All else is as for gemm() with one matrix of weights.
/// Throws shape_mismatch if the shapes of the weights differ.
template <class A, class Weights, class F, class T>
requires quantized_byte<std::remove_const_t<A>> && fused_weights<Weights, T>
void gemm(matrix_view<A> lhs, const Weights& first, const Weights& second,
          const fused_epilogue<F, T>& epilogue, const epilogue_options& first_options = {},
          const epilogue_options& second_options = {}, const parallel_for& parallel = {}) {
  detail::multiply_fused(matrix_view<const std::remove_const_t<A>>(lhs),
                         std::array{&first, &second}, std::array{&first_options, &second_options},
                         epilogue, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_FUSED_GEMM_HPP
