// SPDX-License-Identifier: BSD-3-Clause
#include "ppq_options.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/ppq/platform.hpp>

#include "usage_error.hpp"
#include "whole_number.hpp"

namespace detent_cli {
namespace {

constexpr const char* ppq_group = "PPQ (--pipeline ppq)";

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    all.append(all.empty() ? "" : ", ").append(name);
  }
  return all;
}

std::string check_platform(const std::string& text) {
  try {
    static_cast<void>(detent::graph::ppq::find_platform(text));
    return {};
  } catch (const detent::error& e) {
    return e.what();
  }
}

std::string check_export(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string kind = text.substr(0, equals);
  if (equals == std::string::npos || equals + 1 == text.size()) {
    return "'" + text + "' is not KIND=FILE; KIND is one of " + joined(ppq_export_kinds);
  }
  const bool known =
      std::find(ppq_export_kinds.begin(), ppq_export_kinds.end(), kind) != ppq_export_kinds.end();
  return known ? "" : "there is no kind '" + kind + "'; there are " + joined(ppq_export_kinds);
}

}  // namespace

ppq_options::ppq_options(CLI::App& command) : command_(command) {
  command
      .add_option("--platform", a_.platform,
                  "Target platform, by PPQ's name (TRT_INT8, NCNN_INT8, PPL_CUDA_INT8, "
                  "OPENVINO_INT8, ONNXRUNTIME, ...); default ONNXRUNTIME")
      ->check(check_platform)
      ->group(ppq_group);
  command
      .add_option("--setting", a_.setting,
                  "JSON file of a QuantizationSetting, as PPQ's to_json() writes it; default: "
                  "PPQ's default_setting()")
      ->group(ppq_group);
  command
      .add_option("--calib-steps", a_.calib_steps,
                  "Calibration runs, one sample each; samples are taken again if there are fewer; "
                  "default 32")
      ->transform(whole_number(8, 512))
      ->group(ppq_group);
  command
      .add_flag("--ppq-observers", a_.ppq_observers,
                "Compute PPQ's numbers: its observers and its rules for scales, instead of the "
                "library's own")
      ->group(ppq_group);
  command
      .add_option(
          "--export", exports_,
          "KIND=FILE: another file about the result: trt-json (ranges for TensorRT), "
          "ncnn-table (for ncnn2int8), ppl-json (for OpenPPL), native (PPQ's own file), onnx (the "
          "float network that these files belong to), setting (the setting as JSON)")
      ->check(check_export)
      ->group(ppq_group);
  command
      .add_option("--error-report", a_.error_report,
                  "FILE.json or FILE.txt: the error of each layer, and of the results with only "
                  "this layer quantized")
      ->group(ppq_group);
  command.add_option("--error-method", a_.error_method, "Measure of --error-report; default snr")
      ->check(CLI::IsMember({"snr", "mse", "cosine"}))
      ->group(ppq_group);
}

ppq_arguments ppq_options::arguments() {
  static const std::set<std::string> common = {
      "MODEL",     "--output", "--calib",        "--samples",  "--json",  "--config",
      "--threads", "--help",   "--memory-limit", "--pipeline", "--plugin"};
  for (const CLI::Option* option : command_.get_options()) {
    const std::string name =
        option->get_lnames().empty() ? option->get_name() : "--" + option->get_lnames()[0];
    if (!option->empty() && option->get_group() != ppq_group && common.count(name) == 0) {
      throw usage_error("--pipeline ppq has no " + name);
    }
  }
  if (a_.error_report.empty() && !command_.get_option("--error-method")->empty()) {
    throw usage_error("--error-method is for --error-report");
  }
  for (const std::string& text : exports_) {
    const std::size_t equals = text.find('=');
    a_.exports.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return std::move(a_);
}

void ppq_options::require_unused() const {
  for (const CLI::Option* option : command_.get_options()) {
    if (!option->empty() && option->get_group() == ppq_group) {
      throw usage_error("--" + option->get_lnames()[0] + " is for --pipeline ppq");
    }
  }
}

}  // namespace detent_cli
