// SPDX-License-Identifier: BSD-3-Clause
// The members of PPQ's enumeration TargetPlatform, by the names and numbers that users of PPQ type
// and that its setting files hold.
#ifndef DETENT_GRAPH_PPQ_TARGET_PLATFORM_HPP
#define DETENT_GRAPH_PPQ_TARGET_PLATFORM_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <detent/config.hpp>
#include <detent/observer_registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// A member of PPQ's TargetPlatform.
struct target_platform {
  std::string_view name;  ///< Its name, for example "TRT_INT8".
  int value;              ///< Its number, as dispatching tables have it.
  /// The name of the preset of platforms() that quantizes for it. Empty if PPQ has no quantizer for
  /// it, or one for floating-point grids (FP8) only.
  std::string_view preset;
};

/// All members of TargetPlatform of PPQ 0.6.6.
inline constexpr std::array<target_platform, 36> target_platforms{{
    {"MNN_INT8", 100, "mnn"},
    {"TRT_INT8", 101, "tensorrt"},
    {"NCNN_INT8", 102, "ncnn"},
    {"OPENVINO_INT8", 103, "openvino"},
    {"TENGINE_INT8", 104, "tengine"},
    {"TRT_FP8", 105, ""},
    {"ASC_INT8", 106, "ascend"},
    {"PPL_CUDA_INT8", 201, "ppl_cuda"},
    {"PPL_CUDA_INT4", 202, ""},
    {"PPL_CUDA_FP16", 203, ""},
    {"PPL_CUDA_MIX", 204, ""},
    {"PPL_DSP_INT8", 301, "ppl_dsp"},
    {"SNPE_INT8", 302, "snpe"},
    {"PPL_DSP_TI_INT8", 303, "ppl_dsp_ti"},
    {"QNN_DSP_INT8", 304, "qnn"},
    {"HOST_INT8", 401, ""},
    {"NXP_INT8", 501, "nxp"},
    {"FPGA_INT8", 502, "fpga"},
    {"RKNN_INT8", 601, "rknn"},
    {"METAX_INT8_C", 701, "metax_c"},
    {"METAX_INT8_T", 702, "metax_t"},
    {"HEXAGON_INT8", 801, ""},
    {"GRAPHCORE_FP8", 901, ""},
    {"FP32", 0, ""},
    {"FP16", 1, ""},
    {"BF16", 2, ""},
    {"FP8", 3, ""},
    {"INT8", 4, ""},
    {"SOI", -1, ""},
    {"UNSPECIFIED", -2, ""},
    {"BOUNDARY", -3, ""},
    {"ONNX", -4, ""},
    {"CAFFE", -5, ""},
    {"NATIVE", -6, ""},
    {"ONNXRUNTIME", -7, "onnxruntime"},
    {"EXTENSION", -10086, ""},
}};

namespace detail {

/// A platform's name in small letters, without PPQ's "TargetPlatform." before it.
[[nodiscard]] inline std::string platform_key(std::string_view name) {
  std::string key = detent::detail::lower_case(name);
  constexpr std::string_view prefix = "targetplatform.";
  if (key.compare(0, prefix.size(), prefix) == 0) {
    key.erase(0, prefix.size());
  }
  return key;
}

}  // namespace detail

/// The member of that name, or null. Capital and small letters are the same, and the name may begin
/// with "TargetPlatform.".
[[nodiscard]] inline const target_platform* find_target_platform(std::string_view name) {
  const std::string key = detail::platform_key(name);
  const auto found = std::find_if(
      target_platforms.begin(), target_platforms.end(),
      [&](const target_platform& p) { return detent::detail::lower_case(p.name) == key; });
  return found == target_platforms.end() ? nullptr : &*found;
}

/// The member of that number, or null.
[[nodiscard]] inline const target_platform* find_target_platform(int value) {
  const auto found = std::find_if(target_platforms.begin(), target_platforms.end(),
                                  [&](const target_platform& p) { return p.value == value; });
  return found == target_platforms.end() ? nullptr : &*found;
}

/// The names of the members for which there is a preset, in the order of target_platforms.
[[nodiscard]] inline std::vector<std::string> quantizing_platform_names() {
  std::vector<std::string> names;
  for (const target_platform& p : target_platforms) {
    if (!p.preset.empty()) {
      names.emplace_back(p.name);
    }
  }
  return names;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_TARGET_PLATFORM_HPP
