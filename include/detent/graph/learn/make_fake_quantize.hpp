// SPDX-License-Identifier: BSD-3-Clause
// Nodes of the operator FakeQuantize of domain "detent": quantization followed by dequantization on
// any grid, for training. It stands for QuantizeLinear followed by DequantizeLinear and is never
// written to files.
#ifndef DETENT_GRAPH_LEARN_MAKE_FAKE_QUANTIZE_HPP
#define DETENT_GRAPH_LEARN_MAKE_FAKE_QUANTIZE_HPP

#include <cstdint>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Makes a node of detent.FakeQuantize, which computes y = fake_quantize(x), that is
/// (clamp(round_half_even(x / scale) + zero_point, qmin, qmax) - zero_point) * scale; NaN gives 0.
///
/// The arguments are names of values: x and y are float32 tensors of one shape; scale (float32) and
/// zero_point (int32) have one element each or one for each index of x along `axis`, which counts
/// from the end if negative and is ignored if there is one scale. `levels` is the grid, within
/// -32768..65535. Nothing is checked here; the operator throws when operands do not fit.
[[nodiscard]] inline node make_fake_quantize(std::string x, std::string scale,
                                             std::string zero_point, std::string y, grid levels,
                                             std::int64_t axis = 0) {
  node n;
  n.op_type = "FakeQuantize";
  n.domain = "detent";
  n.name = y;
  n.inputs = {std::move(x), std::move(scale), std::move(zero_point)};
  n.outputs = {std::move(y)};
  n.attributes["qmin"] = attribute::of(std::int64_t{levels.qmin});
  n.attributes["qmax"] = attribute::of(std::int64_t{levels.qmax});
  n.attributes["axis"] = attribute::of(axis);
  return n;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_MAKE_FAKE_QUANTIZE_HPP
