// SPDX-License-Identifier: BSD-3-Clause
// dynamic_linear() with an epilogue of the caller's own (see fused_epilogue.hpp).
#ifndef DETENT_FUSED_DYNAMIC_LINEAR_HPP
#define DETENT_FUSED_DYNAMIC_LINEAR_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <detent/dynamic_linear.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/fused_epilogue.hpp>
#include <detent/fused_gemm.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The body of all dynamic_linear() functions with a fused epilogue.
template <class F, class Weights, class Function, std::size_t N>
void dynamic_linear_fused(matrix_view<const F> lhs, const std::array<const Weights*, N>& weights,
                          const std::array<const dynamic_linear_options*, N>& options,
                          const fused_epilogue<Function, float>& epilogue,
                          const parallel_for& parallel) {
  require_same_columns(lhs, weights);
  std::array<epilogue_options, N> quantized;
  std::array<const epilogue_options*, N> pointers;
  quantized[0] = quantized_epilogue(lhs, *options[0], parallel);
  for (std::size_t i = 0; i < N; ++i) {
    quantized[i] = with_real_terms(quantized[0], *options[i]);
    pointers[i] = &quantized[i];
  }
  const fused_products<std::uint8_t, Weights, Function, float, N> products(
      lhs.rows, weights, pointers, epilogue.function);
  for_quantized_parts(lhs, weights[0]->columns(), products.product(), quantized[0], *options[0],
                      parallel, [&](const left_part& left, const product_part& part) {
                        std::array<left_part, N> all;
                        all.fill(left);
                        products.multiply(all, part);
                      });
}

}  // namespace detail

/// Multiplies a real M x K matrix by packed K x N weights, with a left side that is quantized to
/// unsigned bytes on the way, and gives the results to the functor of `epilogue`, block by block:
/// bit for bit the values that dynamic_linear() writes, after bias, residual and clamp of the
/// options. fused() says how the functor is called, and gemm() with a fused epilogue which blocks
/// there are. All else is as for dynamic_linear().
template <class F, linear_weights W, class Function>
requires linear_input<std::remove_const_t<F>>
void dynamic_linear(matrix_view<F> lhs, const W& weights,
                    const fused_epilogue<Function, float>& epilogue,
                    const dynamic_linear_options& options = {}, const parallel_for& parallel = {}) {
  detail::dynamic_linear_fused(matrix_view<const std::remove_const_t<F>>(lhs), std::array{&weights},
                               std::array{&options}, epilogue, parallel);
}

/// Multiplies one left side, quantized once, by two matrices of weights of the same shape, and
/// gives the results of both to the functor of `epilogue` together: f(block of the first product,
/// block of the second). `options` says how the left side is quantized, and has the real terms
/// (bias, residual, lower, upper) of the first product; `second_options` has those of the second,
/// and its per_row and lhs_scheme are not read. Throws shape_mismatch if the shapes of the weights
/// differ.
template <class F, linear_weights W, class Function>
requires linear_input<std::remove_const_t<F>>
void dynamic_linear(matrix_view<F> lhs, const W& first, const W& second,
                    const fused_epilogue<Function, float>& epilogue,
                    const dynamic_linear_options& options = {},
                    const dynamic_linear_options& second_options = {},
                    const parallel_for& parallel = {}) {
  detail::dynamic_linear_fused(matrix_view<const std::remove_const_t<F>>(lhs),
                               std::array{&first, &second}, std::array{&options, &second_options},
                               epilogue, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_FUSED_DYNAMIC_LINEAR_HPP
