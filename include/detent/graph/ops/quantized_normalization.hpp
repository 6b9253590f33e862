// SPDX-License-Identifier: BSD-3-Clause
// BatchNormalization of 8-bit tensors:
//
//   detent.QLinearBatchNormalization   Q(clamp(BatchNormalization(D(x)))), by a table of the
//                                      results for all 256 values of each channel
//
// graph/rewrite/lower.hpp makes it from a BatchNormalization between quantized values.
#ifndef DETENT_GRAPH_OPS_QUANTIZED_NORMALIZATION_HPP
#define DETENT_GRAPH_OPS_QUANTIZED_NORMALIZATION_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/normalization.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/graph/ops/quantized_elementwise.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// Infers the output of QLinearBatchNormalization, whose inputs are x, x_scale, x_zero_point,
/// scale, bias, mean, variance, y_scale and y_zero_point. Its attributes are `epsilon`, `lower` and
/// `upper` (a fused clamp before quantization).
inline void infer_quantized_batch_normalization(operator_context& c) {
  require_type_of_zero_point(c, 2, c.input(0));
  const std::size_t channels = channel_view(c).length;
  for (const std::size_t i : {3U, 4U, 5U, 6U}) {
    const tensor& t = c.input(i);
    c.require(t.type() == element_type::f32 && t.rank() == 1 && t.count() == channels, "input ", i,
              " is ", graph::name(t.type()), " of shape ", shown(t.dims()),
              ", not float of shape [", channels, "]");
  }
  c.set_output(0, c.has_input(8) ? c.inputs[8].type() : c.input(0).type(), c.input(0).dims());
  c.outputs[0].set_channels_last(c.inputs[0].channels_last());
}

/// One table for each channel.
using channel_tables = std::vector<std::array<std::uint8_t, 256>>;

inline void make_channel_tables(const operator_context& c, channel_tables& tables) {
  const std::size_t channels = channel_view(c).length;
  const auto scale = c.inputs[3].data<float>();
  const auto bias = c.inputs[4].data<float>();
  const auto mean = c.inputs[5].data<float>();
  const auto variance = c.inputs[6].data<float>();
  const fused_clamp bounds(c.n());
  const double epsilon = epsilon_of(c.n());
  tables.resize(channels);
  for (std::size_t i = 0; i < channels; ++i) {
    const auto l = line<float>::through(scale[i], static_cast<double>(mean[i]),
                                        static_cast<double>(variance[i]), epsilon, bias[i]);
    tables[i] = make_table(
        c, c.inputs[0].type(), read_params(c, 1, 2), c.outputs[0].type(), read_params(c, 7, 8),
        [&](float x) { return reference::clamp(l(x), bounds.lower, bounds.upper); });
  }
}

inline void run_quantized_batch_normalization(operator_context& c) {
  const std::size_t bytes = c.inputs[3].count() * sizeof(channel_tables::value_type);
  const auto& state =
      cached_state<channel_tables>(c, {1, 2, 3, 4, 5, 6, 7, 8}, bytes,
                                   [&](channel_tables& tables) { make_channel_tables(c, tables); });
  const axis_view v = channel_view(c);
  const std::array<std::uint8_t, 256>* tables = state.packed->data();
  const std::byte* from = c.inputs[0].raw();
  std::byte* to = c.make_output_over(0, {0}).mutable_raw();
  // A row is a pixel with all its channels, or all pixels of one channel.
  const bool channels_last = c.inputs[0].channels_last();
  const std::size_t rows = v.outer * (channels_last ? v.inner : v.length);
  const std::size_t row_size = channels_last ? v.length : v.inner;
  const std::size_t channels = v.length;
  for_pieces(c, rows, rows_of(cheap_piece, row_size), [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      const std::byte* x = from + row * row_size;
      std::byte* y = to + row * row_size;
      if (channels_last) {
        for (std::size_t i = 0; i < row_size; ++i) {
          y[i] = static_cast<std::byte>(tables[i][std::to_integer<std::size_t>(x[i])]);
        }
      } else {
        const auto& table = tables[row % channels];
        constexpr std::size_t vectors = 64;  // bytes that are worth loading a table into registers
        if (row_size >= vectors) {
          look_up_bytes(table, x, 0, y, 0, 1, row_size);
          continue;
        }
        for (std::size_t i = 0; i < row_size; ++i) {
          y[i] = static_cast<std::byte>(table[std::to_integer<std::size_t>(x[i])]);
        }
      }
    }
  });
}

inline constexpr operator_definition quantized_normalization_operators[] = {
    {"detent", "QLinearBatchNormalization", 8, 9, layout_support::any,
     &infer_quantized_batch_normalization, &run_quantized_batch_normalization, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_QUANTIZED_NORMALIZATION_HPP
