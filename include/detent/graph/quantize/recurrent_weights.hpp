// SPDX-License-Identifier: BSD-3-Clause
// Integer weights of LSTM nodes, for com.microsoft.DynamicQuantizeLSTM.
#ifndef DETENT_GRAPH_QUANTIZE_RECURRENT_WEIGHTS_HPP
#define DETENT_GRAPH_QUANTIZE_RECURRENT_WEIGHTS_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/quantize.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Whether a node is an LSTM that com.microsoft.DynamicQuantizeLSTM can replace: its weights and
/// recurrent weights are float32 constants of rank 3 with values, and the batch is not the first
/// axis (`layout` 0).
[[nodiscard]] inline bool is_quantizable_lstm(const model& m, const node& n) {
  const auto is_matrix = [&](std::size_t i) {
    const tensor* t = detail::float_constant(m, n, i);
    return t != nullptr && t->rank() == 3 && t->count() > 0;
  };
  return n.is("LSTM") && n.get_int("layout", 0) == 0 && is_matrix(1) && is_matrix(2);
}

/// Weights of an LSTM as codes: symmetric, -127..127.
struct recurrent_weights {
  tensor codes;               ///< int8 of shape [directions, inputs, 4 * hidden].
  std::vector<float> scales;  ///< One for each direction, or one for each of its 4 * hidden rows.
};

/// Quantizes weights of an LSTM, float32 of shape [directions, 4 * hidden, inputs]. `per_channel`
/// says whether each row gets a scale of its own, `rule` how scales are chosen. Throws
/// invalid_argument if a weight is NaN or infinite.
[[nodiscard]] DETENT_GRAPH_DECL recurrent_weights quantize_recurrent_weights(const tensor& weights,
                                                                             bool per_channel,
                                                                             weight_scale rule);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL recurrent_weights quantize_recurrent_weights(const tensor& weights,
                                                               bool per_channel,
                                                               weight_scale rule) {
  const quant_scheme scheme = symmetric<std::int8_t>;
  const auto directions = static_cast<std::size_t>(weights.dim(0));
  const auto rows = static_cast<std::size_t>(weights.dim(1));
  const auto columns = static_cast<std::size_t>(weights.dim(2));
  const auto values = weights.data<float>();
  recurrent_weights result{
      tensor::allocate(element_type::s8, {weights.dim(0), weights.dim(2), weights.dim(1)}), {}};
  const auto to = result.codes.mutable_data<std::int8_t>();
  const std::size_t size = (per_channel ? 1 : rows) * columns;
  std::vector<std::int8_t> codes(values.size());
  for (std::size_t at = 0; at < values.size(); at += size) {
    const std::span<const float> part = values.subspan(at, size);
    const quant_params p = rule == weight_scale::exact_mse
                               ? exact_mse(part, scheme).params
                               : params_from_range(distribution(part).range(), scheme);
    result.scales.push_back(p.scale);
    quantize(part, std::span(codes).subspan(at, size), p, scheme.levels);
  }
  for (std::size_t d = 0; d < directions; ++d) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        to[(d * columns + c) * rows + r] = codes[(d * rows + r) * columns + c];
      }
    }
  }
  return result;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_RECURRENT_WEIGHTS_HPP
