// SPDX-License-Identifier: BSD-3-Clause
// Options of weight-only quantization, and its report on each layer.
#ifndef DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_OPTIONS_HPP
#define DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_OPTIONS_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/nbits_layout.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/run/executor_options.hpp>
#include <detent/solvers/awq.hpp>
#include <detent/solvers/gptq.hpp>
#include <detent/solvers/hqq.hpp>
#include <detent/solvers/parts.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How quantize_weights_only() finds the codes of weights.
enum class weight_only_algorithm : std::uint8_t {
  rtn,   ///< Nearest rounding.
  gptq,  ///< GPTQ where it is better than rtn; needs samples. All layers see the inputs that they
         ///< have in the float model.
  awq,   ///< Scales of the inputs, and clipping; needs samples.
  hqq,   ///< Zero points; not with `symmetric`.
};

/// The name of an algorithm, such as "rtn".
[[nodiscard]] constexpr const char* name(weight_only_algorithm algorithm) noexcept {
  switch (algorithm) {
    case weight_only_algorithm::rtn:
      return "rtn";
    case weight_only_algorithm::gptq:
      return "gptq";
    case weight_only_algorithm::awq:
      return "awq";
    case weight_only_algorithm::hqq:
      return "hqq";
  }
  return "unknown";
}

/// Report of what quantize_weights_only() did to one node.
struct weight_only_layer {
  std::string node;     ///< Name of the node, or of its first output if it has none.
  std::string weights;  ///< Name of the constant that held its weights.
  nbits_layout layout;  ///< Bits, block size, K and N of the codes.
  /// How the codes were found. The objective is the squared error of the layer's outputs over the
  /// calibration samples; without samples (rtn), it is that of the weights; hqq has an objective of
  /// its own.
  solver_evidence evidence;
};

/// Options of quantize_weights_only().
struct weight_only_options {
  std::size_t bits = 4;  ///< Bits of the codes, 4 or 8.
  /// Number of weights along K that share a scale: 16, 32, 64, 128 or 256, the sizes that ONNX
  /// Runtime accepts. 0 and -1 mean a whole column of W if K <= 256, else 256. A block is never
  /// larger than the smallest power of two that holds K (and 16).
  std::int64_t block_size = 32;
  bool symmetric = false;  ///< Whether there are no zero points.
  weight_only_algorithm algorithm = weight_only_algorithm::rtn;  ///< How codes are found.
  /// How scales and zero points are found: absmax (the range of the block, by params_from_range())
  /// or exact_mse (the least squared error of the block's weights). awq accepts only absmax.
  /// exact_mse finds the best of all zero points.
  weight_scale scales = weight_scale::absmax;
  /// Attribute accuracy_level of the nodes: 0 (not written), or activations of 1 float32, 2
  /// float16, 3 bfloat16, 4 int8.
  std::int64_t accuracy_level = 0;
  /// Nodes that stay in float, and bits, block sizes and scales of single operators.
  quantization_scope scope = {};
  /// For awq: whether O(K) statistics of each layer's inputs (mean |x|, mean x^2) are used instead
  /// of the Gram matrix.
  bool diagonal_statistics = false;
  /// Memory in bytes that statistics may take at a time, about. If they need more, the samples are
  /// drawn again for the next layers. One layer is always processed.
  std::size_t calibration_bytes = std::size_t{1} << 30;
  awq_options awq = {};  ///< Options of awq; `activation_magnitudes` is set from the samples.
  /// Options of hqq. `real_zero_points` needs `bits` = 4, because ONNX Runtime has no others;
  /// weights that a rule of `scope` gives 8 bits get integer zero points.
  hqq_options hqq = {};
  gptq_options gptq = {};  ///< Options of gptq.
  /// Called with each constant that is made; the model gets the tensor that it returns, which must
  /// have the same form and elements. tensor_store::keep() puts those of large models in a file.
  /// What it throws ends the quantization.
  std::function<tensor(tensor made)> keep_constant = {};
  /// Called with each node that was rewritten, in their order.
  std::function<void(const weight_only_layer& layer)> on_layer = {};
  /// Called after each matrix of weights was solved, with the number of those that are done and the
  /// number of all. What it throws ends the quantization.
  std::function<void(std::size_t done, std::size_t total)> on_solved = {};
  /// Options of the executor that runs the model; `parallel` is used by the solvers, too.
  executor_options executor = {};
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_OPTIONS_HPP
