// SPDX-License-Identifier: BSD-3-Clause
// Moves the factors of Gemm nodes into their constants.
#ifndef DETENT_GRAPH_REWRITE_GEMM_FACTORS_HPP
#define DETENT_GRAPH_REWRITE_GEMM_FACTORS_HPP

#include <cmath>
#include <cstddef>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// A float32 tensor times a factor, each product rounded to float.
[[nodiscard]] inline tensor scaled_copy(const tensor& t, float factor) {
  tensor scaled = tensor::allocate(element_type::f32, t.dims());
  const auto from = t.data<float>();
  const auto to = scaled.mutable_data<float>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i] = from[i] * factor;
  }
  return scaled;
}

}  // namespace detail

/// Multiplies the constant weights and biases of Gemm nodes by their alpha and beta, which become
/// 1, so that such a node is quantized as any other layer. A bias whose beta is 0 is removed. A
/// Gemm with a factor that would have to go into a value that is no float32 constant stays as it
/// is. Results may differ in their last bits.
inline void fold_gemm_factors(model& m) {
  for (node& n : m.nodes) {
    const float alpha = n.get_float("alpha", 1.0F);
    const float beta = n.get_float("beta", 1.0F);
    if (!n.is("Gemm") || n.inputs.size() < 2 || (alpha == 1.0F && beta == 1.0F) ||
        !std::isfinite(alpha) || !std::isfinite(beta)) {
      continue;
    }
    const bool has_bias = n.inputs.size() > 2 && !n.inputs[2].empty();
    const tensor* weights = detail::float_constant(m, n, 1);
    const tensor* bias = detail::float_constant(m, n, 2);
    if ((alpha != 1.0F && weights == nullptr) ||
        (has_bias && beta != 1.0F && beta != 0.0F && bias == nullptr)) {
      continue;
    }
    if (has_bias && beta == 0.0F) {
      n.inputs.resize(2);
    } else if (has_bias && beta != 1.0F) {
      detail::replace_constant(m, n, 2, detail::scaled_copy(*bias, beta));
    }
    if (alpha != 1.0F) {
      detail::replace_constant(m, n, 1,
                               detail::scaled_copy(*detail::float_constant(m, n, 1), alpha));
    }
    n.attributes.erase("alpha");
    n.attributes.erase("beta");
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_GEMM_FACTORS_HPP
