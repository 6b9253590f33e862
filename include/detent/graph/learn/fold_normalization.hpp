// SPDX-License-Identifier: BSD-3-Clause
// The operator FoldNormalization of domain "detent": the weights and bias of a layer that has taken
// a BatchNormalization into itself, for training both. It is never written to files.
#ifndef DETENT_GRAPH_LEARN_FOLD_NORMALIZATION_HPP
#define DETENT_GRAPH_LEARN_FOLD_NORMALIZATION_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/folded_channels.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Makes a node of detent.FoldNormalization with the inputs
///
///   weights, scale, shift, mean, variance    float32
///
/// and the outputs weights', bias' and factor of folded_channels for a layer without a bias,
/// float32. The channels are along `axis` of the weights; weights' has their shape, bias' is
/// [channels], and factor is [channels, 1, ...] with `ones` dimensions of 1, so that what the layer
/// computes can be divided by it. Nothing is checked here; the operator throws when operands do not
/// fit. Mean and variance get no gradient: they are statistics.
[[nodiscard]] inline node make_fold_normalization(std::vector<std::string> inputs,
                                                  std::vector<std::string> outputs,
                                                  std::size_t axis, std::size_t ones,
                                                  float epsilon) {
  node n;
  n.op_type = "FoldNormalization";
  n.domain = "detent";
  n.name = outputs[0];
  n.inputs = std::move(inputs);
  n.outputs = std::move(outputs);
  n.attributes["axis"] = attribute::of(static_cast<std::int64_t>(axis));
  n.attributes["ones"] = attribute::of(static_cast<std::int64_t>(ones));
  n.attributes["epsilon"] = attribute::of(epsilon);
  return n;
}

namespace detail {

/// The operands of a FoldNormalization node: the weights are viewed as [any, channels, inner].
struct fold_operands {
  explicit fold_operands(const operator_context& c)
      : channels(static_cast<std::size_t>(
            c.input(0).dim(c.axis(c.n().get_int("axis", 0), c.input(0).rank())))) {
    const tensor& w = c.input(0);
    for (std::size_t d = c.axis(c.n().get_int("axis", 0), w.rank()) + 1; d < w.rank(); ++d) {
      inner *= static_cast<std::size_t>(w.dim(d));
    }
    for (std::size_t i = 0; i < 5; ++i) {
      c.require(
          c.input(i).type() == element_type::f32 && (i == 0 || c.input(i).count() == channels),
          "input ", i, " does not have ", channels, " floats");
    }
  }
  [[nodiscard]] std::size_t channel(std::size_t i) const { return i / inner % channels; }
  [[nodiscard]] std::vector<double> factors(const folded_channels& f) const {
    std::vector<double> all;
    for (std::size_t k = 0; k < channels; ++k) {
      all.push_back(f.factor(k));
    }
    return all;
  }
  [[nodiscard]] static folded_channels parameters(const operator_context& c) {
    return {c.inputs[1].data<float>(), c.inputs[2].data<float>(), c.inputs[3].data<float>(),
            c.inputs[4].data<float>(), static_cast<double>(c.n().get_float("epsilon", 1e-5F))};
  }

  std::size_t channels;
  std::size_t inner = 1;
};

inline void infer_fold_normalization(operator_context& c) {
  const fold_operands o(c);
  const auto count = static_cast<std::int64_t>(o.channels);
  const std::int64_t ones = c.n().get_int("ones", 0);
  c.require(ones >= 0 && ones < std::int64_t{max_tensor_rank}, "ones is ", ones);
  shape factor{count};
  factor.resize(1 + static_cast<std::size_t>(ones), 1);
  c.set_output(0, element_type::f32, c.input(0).dims());
  c.set_output(1, element_type::f32, {count});
  c.set_output(2, element_type::f32, std::move(factor));
}

inline void run_fold_normalization(operator_context& c) {
  const fold_operands o(c);
  const folded_channels f = fold_operands::parameters(c);
  const auto w = c.inputs[0].data<float>();
  const auto weights = c.make_output(0).mutable_data<float>();
  const auto bias = c.make_output(1).mutable_data<float>();
  const auto factor = c.make_output(2).mutable_data<float>();
  const std::vector<double> factors = o.factors(f);
  for (std::size_t i = 0; i < w.size(); ++i) {
    weights[i] = static_cast<float>(static_cast<double>(w[i]) * factors[o.channel(i)]);
  }
  for (std::size_t k = 0; k < o.channels; ++k) {
    bias[k] = f.bias(k, 0.0);
    factor[k] = static_cast<float>(factors[k]);
  }
}

}  // namespace detail

/// The definition of detent.FoldNormalization; see make_fold_normalization().
inline constexpr operator_definition fold_normalization_operator{"detent",
                                                                 "FoldNormalization",
                                                                 5,
                                                                 5,
                                                                 layout_support::plain,
                                                                 &detail::infer_fold_normalization,
                                                                 &detail::run_fold_normalization};

namespace gradients {

/// The gradient of detent.FoldNormalization, with W, B and F the gradients of its outputs:
///
///     dweights = W * factor
///     dscale   = (F + sum of W * weights - B * mean) / sqrt(variance + epsilon)
///     dshift   = B
inline void fold_normalization(const gradient_context& c) {
  using detent::detail::rounded_product;
  const detail::fold_operands o(c.forward);
  const folded_channels f = detail::fold_operands::parameters(c.forward);
  const std::span<const double> of_weights = c.output_gradient(0);
  const std::span<const double> of_bias = c.output_gradient(1);
  const std::span<const double> of_factor = c.output_gradient(2);
  const auto w = c.input(0).data<float>();
  const std::vector<double> factors = o.factors(f);
  std::vector<double> sums(o.channels);
  for (std::size_t i = 0; i < of_weights.size(); ++i) {
    const std::size_t k = o.channel(i);
    sums[k] += rounded_product(of_weights[i], static_cast<double>(w[i]));
    if (c.wants(0)) {
      c.gradient(0)[i] += rounded_product(of_weights[i], factors[k]);
    }
  }
  for (std::size_t k = 0; k < o.channels; ++k) {
    if (!of_bias.empty()) {
      sums[k] -= rounded_product(of_bias[k], static_cast<double>(f.mean[k]));
      if (c.wants(2)) {
        c.gradient(2)[k] += of_bias[k];
      }
    }
    sums[k] += of_factor.empty() ? 0.0 : of_factor[k];
    if (c.wants(1)) {
      c.gradient(1)[k] += sums[k] / f.divisor(k);
    }
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_FOLD_NORMALIZATION_HPP
