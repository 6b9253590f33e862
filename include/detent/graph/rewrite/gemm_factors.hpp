// SPDX-License-Identifier: BSD-3-Clause
// Moves the factors of Gemm nodes into their constants.
#ifndef DETENT_GRAPH_REWRITE_GEMM_FACTORS_HPP
#define DETENT_GRAPH_REWRITE_GEMM_FACTORS_HPP

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// A float32 tensor times a factor, each product rounded to float. Nothing if there is no tensor,
/// or if a product of a finite value is not finite.
[[nodiscard]] inline std::optional<tensor> scaled_copy(const tensor* t, float factor) {
  if (t == nullptr) {
    return std::nullopt;
  }
  tensor scaled = tensor::allocate(element_type::f32, t->dims());
  const auto from = t->data<float>();
  const auto to = scaled.mutable_data<float>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i] = from[i] * factor;
    if (std::isfinite(from[i]) && !std::isfinite(to[i])) {
      return std::nullopt;
    }
  }
  return scaled;
}

}  // namespace detail

/// Multiplies the constant weights and biases of Gemm nodes by their alpha and beta, which become
/// 1, so that such a node is quantized as any other layer. A bias whose beta is 0 is removed. A
/// Gemm with a factor that would have to go into a value that is no float32 constant, or that would
/// make a constant infinite, stays as it is. Results may differ in their last bits.
inline void fold_gemm_factors(model& m) {
  detail::constant_replacer constants(m);
  for (node& n : m.nodes) {
    const float alpha = n.get_float("alpha", 1.0F);
    const float beta = n.get_float("beta", 1.0F);
    if (!n.is("Gemm") || n.inputs.size() < 2 || (alpha == 1.0F && beta == 1.0F) ||
        !std::isfinite(alpha) || !std::isfinite(beta)) {
      continue;
    }
    const bool has_bias = n.inputs.size() > 2 && !n.inputs[2].empty();
    const bool scales_weights = alpha != 1.0F;
    const bool scales_bias = has_bias && beta != 1.0F && beta != 0.0F;
    std::optional<tensor> weights;
    std::optional<tensor> bias;
    if (scales_weights) {
      weights = detail::scaled_copy(detail::float_constant(m, n, 1), alpha);
    }
    if (scales_bias) {
      bias = detail::scaled_copy(detail::float_constant(m, n, 2), beta);
    }
    if (weights.has_value() != scales_weights || bias.has_value() != scales_bias) {
      continue;
    }
    if (has_bias && beta == 0.0F) {
      constants.remove_inputs(n, 2);
    }
    if (weights) {
      constants.replace(n, 1, std::move(*weights));
    }
    if (bias) {
      constants.replace(n, 2, std::move(*bias));
    }
    n.attributes.erase("alpha");
    n.attributes.erase("beta");
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_GEMM_FACTORS_HPP
