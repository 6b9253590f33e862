// SPDX-License-Identifier: BSD-3-Clause
// com.microsoft.DynamicQuantizeLSTM: LSTM with 8-bit weights, whose inputs and hidden states are
// quantized to uint8 in the run, with the parameters of DynamicQuantizeLinear.
//
// All inputs of the node have common parameters; the hidden states of all sequences have common
// ones in each step. The products are exact sums of integers, scaled to float. The rest is LSTM.
#ifndef DETENT_GRAPH_OPS_DYNAMIC_LSTM_HPP
#define DETENT_GRAPH_OPS_DYNAMIC_LSTM_HPP

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/graph/ops/recurrent.hpp>
#include <detent/quantize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace recurrent {

/// The positions of weights, their scales and their zero points among the inputs.
struct quantized_weights {
  std::size_t values, scale, zero_point;
};
inline constexpr quantized_weights lstm_input_weights{1, 8, 9};
inline constexpr quantized_weights lstm_hidden_weights{2, 10, 11};

/// Checks scales and zero points: one for each direction, or one for each column of each direction.
inline void require_weight_parameters(const operator_context& c, const recurrence& r,
                                      const quantized_weights& at) {
  require_8bit(c, c.input(at.values), "weights");
  const auto directions = static_cast<std::int64_t>(r.directions);
  const shape per_tensor{directions};
  const shape per_column{directions, static_cast<std::int64_t>(4 * r.hidden)};
  for (const std::size_t i : {at.scale, at.zero_point}) {
    const shape& dims = c.input(i).dims();
    c.require(dims == per_tensor || dims == per_column, "input ", i, " has shape ", shown(dims),
              ", expected ", shown(per_tensor), " or ", shown(per_column));
  }
  c.require(c.inputs[at.zero_point].type() == c.inputs[at.values].type(), "the zero points are ",
            shown(c.inputs[at.zero_point].type()), ", the weights ",
            shown(c.inputs[at.values].type()));
}

inline void infer_dynamic_lstm(operator_context& c) {
  const recurrence r = read_lstm(c, true);
  require_weight_parameters(c, r, lstm_input_weights);
  require_weight_parameters(c, r, lstm_hidden_weights);
  infer_lstm(c, true);
}

/// The products of a DynamicQuantizeLSTM node.
class dynamic_products {
 public:
  dynamic_products(operator_context& c, const recurrence& r)
      : context_(c), r_(r), quantized_(c.memory) {
    const std::size_t bytes = packed_integer_bytes(r.inputs, gates() * r.hidden) +
                              packed_integer_bytes(r.hidden, gates() * r.hidden);
    const auto& state =
        cached_state<packed>(c, {1, 2, 8, 9, 10, 11}, r.directions * bytes, [&](packed& fresh) {
          pack(lstm_input_weights, r.inputs, fresh.input);
          pack(lstm_hidden_weights, r.hidden, fresh.hidden);
        });
    packed_ = state.packed.get();
    quantized_.resize(r.batch * (r.batch_first ? r.sequence : r.longest) * r.inputs);
  }

  /// The number of gates.
  [[nodiscard]] static std::size_t gates() { return 4; }
  /// Multiplies all rows of the input.
  void input(std::size_t d, const float* rows, std::size_t count, float* out) const {
    multiply(packed_->input[d], rows, count, r_.inputs, out);
  }
  /// Multiplies the hidden states of all sequences.
  void hidden(std::size_t d, std::size_t /*part*/, const float* rows, std::size_t count,
              float* out) const {
    multiply(packed_->hidden[d], rows, count, r_.hidden, out);
  }

 private:
  struct packed {
    std::vector<packed_weights> input, hidden;
  };

  void pack(const quantized_weights& at, std::size_t depth,
            std::vector<packed_weights>& out) const {
    const std::size_t columns = 4 * r_.hidden;
    const std::vector<float> scales = read_scales(context_, at.scale);
    const tensor& zero_points = context_.inputs[at.zero_point];
    const signed_operand w =
        as_signed(context_, context_.inputs[at.values],
                  read_zero_points(context_, at.zero_point, zero_points.count()));
    for (std::size_t d = 0; d < r_.directions; ++d) {
      const std::size_t scale_count = scales.size() / r_.directions;
      const std::size_t zero_point_count = w.zero_points.size() / r_.directions;
      out.push_back(pack_weights(
          matrix_view<const std::int8_t>(w.values.data<std::int8_t>().data() + d * depth * columns,
                                         depth, columns),
          {std::span(scales).subspan(d * scale_count, scale_count),
           std::span(w.zero_points).subspan(d * zero_point_count, zero_point_count),
           {}}));
    }
  }

  void multiply(const packed_weights& weights, const float* rows, std::size_t count,
                std::size_t depth, float* out) const {
    const std::span<const float> values(rows, count * depth);
    quantized_.resize(values.size());
    const quant_params p = dynamic_quantize_params(context_, values);
    quantize(values, std::span<std::uint8_t>(quantized_), p);
    epilogue_options options;
    options.lhs_scale = p.scale;
    options.lhs_zero_point = p.zero_point;
    gemm(matrix_view<const std::uint8_t>(quantized_.data(), count, depth), weights,
         matrix_view<float>(out, count, 4 * r_.hidden), options, *context_.parallel);
  }

  const operator_context& context_;
  const recurrence& r_;
  const packed* packed_ = nullptr;
  mutable std::pmr::vector<std::uint8_t> quantized_;
};

inline void run_dynamic_lstm(operator_context& c) {
  recurrence r = read_lstm(c, true);
  read_lengths(c, r);
  run_lstm_with(c, r, dynamic_products(c, r));
}

}  // namespace recurrent

inline constexpr operator_definition dynamic_lstm_operators[] = {
    {"com.microsoft", "DynamicQuantizeLSTM", 3, 12, layout_support::plain,
     recurrent::infer_dynamic_lstm, recurrent::run_dynamic_lstm, true},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_DYNAMIC_LSTM_HPP
