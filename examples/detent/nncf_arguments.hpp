// SPDX-License-Identifier: BSD-3-Clause
// What the options of `detent quantize --pipeline nncf` say.
#ifndef DETENT_CLI_NNCF_ARGUMENTS_HPP
#define DETENT_CLI_NNCF_ARGUMENTS_HPP

#include <cstdint>
#include <optional>
#include <string>

#include <detent/graph/quantize/ignored_scope.hpp>

namespace detent_cli {

/// What --compress and the options that go with it say; empty texts for those not given.
struct nncf_compression_arguments {
  std::string mode, sensitivity, backup, group_size_fallback;
  std::optional<double> ratio;
  std::optional<std::int64_t> group_size;
  bool all_layers = false;
  bool awq = false;
  bool scale_estimation = false;
};

struct nncf_arguments {
  std::string mode = "int8";             // int8, fp8-e4m3, fp8-e5m2
  std::string preset;                    // performance, mixed; empty: by the model type
  std::string model_type = "none";       // none, transformer
  std::string target_device = "any";     // any, cpu, gpu, npu
  std::string overflow_fix;              // none, enable, first-layer; empty: by the mode
  std::string bias_correction = "fast";  // none, fast, full
  bool unsigned_activations = false;
  float smooth_quant = 0.95F;  // alpha of MatMul and Gemm; negative: none
  detent::graph::ignored_scope ignored;
  // With --compress, in place of all of the above but the ignored nodes.
  std::optional<nncf_compression_arguments> compression;
};

}  // namespace detent_cli

#endif  // DETENT_CLI_NNCF_ARGUMENTS_HPP
