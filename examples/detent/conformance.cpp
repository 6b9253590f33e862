// SPDX-License-Identifier: BSD-3-Clause
// Runs ONNX node tests: folders with model.onnx and test_data_set_*/{input,output}_*.pb.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

#include "commands.hpp"
#include "json_output.hpp"
#include "samples.hpp"
#include "tensor_difference.hpp"

namespace detent_cli {
namespace {

using detent::one_line;

namespace fs = std::filesystem;
namespace graph = detent::graph;
using graph::element_type;

enum class verdict { passed, failed, skipped };

struct folder_outcome {
  verdict result = verdict::passed;
  std::string reason;
};

/// The path of a value's file in a set of test data.
fs::path file_of(const fs::path& set, const std::string& kind, std::size_t index) {
  return set / (kind + "_" + std::to_string(index) + ".pb");
}

/// Throws bad_file if a set has files of values beyond those that the model has.
void require_no_more_files(const fs::path& set, const std::string& kind, std::size_t values) {
  for (const fs::directory_entry& entry : fs::directory_iterator(set)) {
    const fs::path file = entry.path();
    bool is_known = file.filename().string().rfind(kind + "_", 0) != 0 || file.extension() != ".pb";
    for (std::size_t i = 0; i < values && !is_known; ++i) {
      is_known = file == file_of(set, kind, i);
    }
    require(is_known, error_kind::bad_file, file.string(), ": the model has ", values, " ", kind,
            values == 1 ? "" : "s");
  }
}

/// Reads the value of an input or output, whose type tensors can hold. Throws bad_file if the file
/// holds another type, and what read_onnx_tensor() throws, but never unsupported.
tensor read_value(const fs::path& file, const graph::value_info& v, const common_arguments& a) {
  tensor t;
  try {
    t = graph::read_onnx_tensor(file, a.read_limits());
  } catch (const detent::error& e) {
    detent::raise(e.kind() == error_kind::unsupported ? error_kind::bad_file : e.kind(), e.what());
  }
  require(t.type() == v.type, error_kind::bad_file, file.string(), ": a tensor of ",
          graph::shown_type{t.type()}, ", expected ", graph::shown_type{v.type});
  return t;
}

folder_outcome run_folder(const fs::path& folder, const common_arguments& a) {
  try {
    graph::model m = graph::read_onnx(folder / "model.onnx", a.read_limits());
    for (const auto* list : {&m.inputs, &m.outputs}) {
      for (const graph::value_info& v : *list) {
        if (v.type == element_type::undefined) {
          return {verdict::skipped, "'" + v.name + "' is not a tensor"};
        }
        if (v.type == element_type::string) {
          return {verdict::skipped, "'" + v.name + "' holds strings"};
        }
        if (graph::element_size(v.type) == 0) {
          return {verdict::skipped, "'" + v.name + "' holds elements of " + graph::name(v.type)};
        }
      }
    }
    std::vector<fs::path> sets;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.is_directory() &&
          entry.path().filename().string().rfind("test_data_set_", 0) == 0) {
        sets.push_back(entry.path());
      }
    }
    std::sort(sets.begin(), sets.end());
    if (sets.empty()) {
      return {verdict::skipped, "no test_data_set_* folder"};
    }
    const std::vector<graph::value_info> inputs = m.inputs;
    const std::vector<graph::value_info> outputs = m.outputs;
    graph::require_supported(m);
    graph::executor executor(graph::for_execution(std::move(m)), a.executor_options());
    for (const fs::path& set : sets) {
      require_no_more_files(set, "input", inputs.size());
      require_no_more_files(set, "output", outputs.size());
      std::map<std::string, tensor> given;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        given[inputs[i].name] = read_value(file_of(set, "input", i), inputs[i], a);
      }
      const std::vector<tensor> results = executor.run(given);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const tensor expected = read_value(file_of(set, "output", i), outputs[i], a);
        const std::string difference = first_difference(results.at(i), expected);
        if (!difference.empty()) {
          return {verdict::failed, "output '" + outputs[i].name + "': " + difference};
        }
      }
    }
    return {};
  } catch (const detent::error& e) {
    return {e.kind() == error_kind::unsupported ? verdict::skipped : verdict::failed, e.what()};
  } catch (const std::exception& e) {
    return {verdict::failed, e.what()};
  }
}

/// Links to folders inside `folder` are not followed: they may lead back to it.
void find_folders(const fs::path& folder, std::vector<fs::path>& found) {
  std::error_code failed;
  if (fs::exists(folder / "model.onnx", failed)) {
    found.push_back(folder);
    return;
  }
  std::vector<fs::path> inner;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory(failed) && !entry.is_symlink(failed)) {
      inner.push_back(entry.path());
    }
  }
  std::sort(inner.begin(), inner.end());
  for (const fs::path& path : inner) {
    find_folders(path, found);
  }
}

}  // namespace

int conformance(const conformance_arguments& a) {
  std::vector<fs::path> folders;
  for (const std::string& name : a.folders) {
    require(fs::is_directory(name), error_kind::io, name.empty() ? "''" : name, " is not a folder");
    const std::size_t before = folders.size();
    find_folders(name, folders);
    require(folders.size() > before, error_kind::io, name, " holds no model.onnx");
  }
  std::map<verdict, std::size_t> count;
  json_object list = json_object::array();
  for (const fs::path& folder : folders) {
    const folder_outcome o = run_folder(folder, a);
    ++count[o.result];
    if (o.result == verdict::passed) {
      continue;
    }
    const char* word = o.result == verdict::failed ? "FAILED" : "skipped";
    if (a.json) {
      list.push_back({{"folder", folder.string()}, {"result", word}, {"reason", o.reason}});
    } else {
      std::printf("%s %s: %s\n", word, one_line(folder).c_str(), one_line(o.reason).c_str());
    }
  }
  if (a.json) {
    print_json({{"passed", count[verdict::passed]},
                {"failed", count[verdict::failed]},
                {"skipped", count[verdict::skipped]},
                {"cases", list}});
  } else {
    std::printf("%zu passed, %zu failed, %zu skipped\n", count[verdict::passed],
                count[verdict::failed], count[verdict::skipped]);
  }
  return count[verdict::failed] == 0 ? 0 : 1;
}

}  // namespace detent_cli
