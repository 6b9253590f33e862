// SPDX-License-Identifier: BSD-3-Clause
// What `detent quantize --pipeline ppq` is told besides the model and the samples.
#ifndef DETENT_CLI_PPQ_ARGUMENTS_HPP
#define DETENT_CLI_PPQ_ARGUMENTS_HPP

#include <cstddef>
#include <string>
#include <vector>

namespace detent_cli {

struct ppq_arguments {
  /// A file to write besides the model.
  struct file {
    std::string kind;  // one of ppq_export_kinds
    std::string path;
  };
  std::string platform = "ONNXRUNTIME";
  std::string setting;  // a JSON file; empty: PPQ's defaults
  std::size_t calib_steps = 32;
  bool ppq_observers = false;  // whether observers compute PPQ's numbers instead of the library's
  std::vector<file> exports;
  std::string error_report;  // .json, or any other file for text; empty: none
  std::string error_method = "snr";
};

/// The kinds of files that --export writes.
inline const std::vector<std::string> ppq_export_kinds = {"trt-json", "ncnn-table", "ppl-json",
                                                          "native",   "onnx",       "setting"};

}  // namespace detent_cli

#endif  // DETENT_CLI_PPQ_ARGUMENTS_HPP
