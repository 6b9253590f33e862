// SPDX-License-Identifier: BSD-3-Clause
// Reads samples from a folder that has a sub-folder for each of them, as ONNX's test data does.
// Needs protozero.
#ifndef DETENT_GRAPH_MODEL_SAMPLE_FOLDER_HPP
#define DETENT_GRAPH_MODEL_SAMPLE_FOLDER_HPP

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/model/sample_file.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The name of a value as the name of a file: each '/' is '_', so that it stays in its folder, and
/// so is each control character of ASCII and of UTF-8, which terminals may obey.
[[nodiscard]] inline std::string file_name_of(std::string_view value) {
  const auto byte = [&](std::size_t i) {
    return i < value.size() ? static_cast<unsigned char>(value[i]) : 0U;
  };
  std::string name;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool is_pair = byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) <= 0x9f;
    const bool is_control = byte(i) < 0x20 || byte(i) == 0x7f || is_pair;
    name += is_control || value[i] == '/' ? '_' : value[i];
    i += is_pair ? 1U : 0U;
  }
  return name;
}

/// A folder with a sub-folder for each sample: `sample_0`, `sample_1`, ... or, as in ONNX's test
/// data, `test_data_set_0`, `test_data_set_1`, ... They are read in the order of their numbers,
/// which may have gaps; other entries of the folder are ignored.
///
/// A sub-folder holds one file for each input of the model, with the whole value of the input:
/// `input_I.npy` or `input_I.pb`, I being the position of the input in the model, or `NAME.npy` or
/// `NAME.pb`, where '/' in the name of the input is '_'. A number in `input_I` is always a
/// position, also if an input has such a name. Samples are read when they are asked for; their
/// shapes may differ where the model leaves dimensions open.
class sample_folder {
 public:
  /// Lists a folder and checks that each sample has a file for each input of the model.
  ///
  /// Throws io if the folder cannot be read; invalid_argument if it has no sub-folder of a sample,
  /// or has sub-folders of both names; if one of these names is not a folder; if a sample has no
  /// file for an input, or several, or has a file `input_I` behind the last input.
  sample_folder(const model& m, std::filesystem::path folder, const read_limits& limits = {})
      : inputs_(m.inputs), folder_(std::move(folder)), limits_(limits) {
    list();
    for (const std::string& sample : samples_) {
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        static_cast<void>(file_of(sample, i));
      }
      const std::string behind = "input_" + std::to_string(inputs_.size());
      for (const char* ending : {".npy", ".pb"}) {
        const std::filesystem::path file = folder_ / sample / (behind + ending);
        require(!exists(file), error_kind::invalid_argument, file.string(), ": the model has only ",
                inputs_.size(), " inputs, the first is input_0");
      }
    }
  }

  /// The number of samples.
  [[nodiscard]] std::size_t size() const noexcept { return samples_.size(); }
  /// The name of the sub-folder of a sample. Not checked: `index` is below size().
  [[nodiscard]] const std::string& name(std::size_t index) const { return samples_[index]; }

  /// Reads the inputs of a sample, by name. Throws what sample_file() and require_fit() throw. Not
  /// checked: `index` is below size().
  [[nodiscard]] std::map<std::string, tensor> read(std::size_t index) const {
    std::map<std::string, tensor> values;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      sample_file file(file_of(samples_[index], i), inputs_[i], limits_);
      require_fit(inputs_[i], file, std::nullopt);
      values[inputs_[i].name] = file.read();
    }
    return values;
  }

 private:
  static constexpr std::string_view digits = "0123456789";

  [[nodiscard]] static bool exists(const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
  }

  /// Lists the sub-folders of samples in the order of their numbers.
  void list() {
    struct entry {
      std::string number, name;  // the number without leading zeros
    };
    std::vector<entry> found[2];
    std::error_code failed;
    std::filesystem::directory_iterator at(folder_, failed);
    for (; !failed && at != std::filesystem::directory_iterator(); at.increment(failed)) {
      const std::string name = at->path().filename().string();
      for (std::size_t kind = 0; kind < 2; ++kind) {
        const std::string_view prefix = kind == 0 ? "sample_" : "test_data_set_";
        if (!name.starts_with(prefix) || name.size() == prefix.size() ||
            name.find_first_not_of(digits, prefix.size()) != std::string::npos) {
          continue;
        }
        std::error_code ignored;
        require(at->is_directory(ignored), error_kind::invalid_argument, at->path().string(),
                " is not a folder, so it holds no sample");
        const std::size_t zeros = name.find_first_not_of('0', prefix.size());
        found[kind].push_back({zeros == std::string::npos ? "" : name.substr(zeros), name});
      }
    }
    require(!failed, error_kind::io, "cannot read the folder ", folder_.string(), ": ",
            failed.message());
    require(found[0].empty() || found[1].empty(), error_kind::invalid_argument, folder_.string(),
            " holds both sample_I and test_data_set_I folders; only one kind can be the samples");
    std::vector<entry>& entries = found[0].empty() ? found[1] : found[0];
    require(!entries.empty(), error_kind::invalid_argument, folder_.string(),
            " holds no samples: no folder sample_0 or test_data_set_0 with the files of a sample");
    std::sort(entries.begin(), entries.end(), [](const entry& a, const entry& b) {
      return std::make_tuple(a.number.size(), std::string_view(a.number),
                             std::string_view(a.name)) <
             std::make_tuple(b.number.size(), std::string_view(b.number), std::string_view(b.name));
    });
    for (entry& e : entries) {
      samples_.push_back(std::move(e.name));
    }
  }

  /// The path of the only file that a sample has for input `i`.
  [[nodiscard]] std::string file_of(const std::string& sample, std::size_t i) const {
    const std::string by_position = "input_" + std::to_string(i);
    const std::string by_name = file_name_of(inputs_[i].name);
    const bool is_position =
        by_name.starts_with("input_") && by_name.find_first_not_of(digits, 6) == std::string::npos;
    std::vector<std::string> stems{by_position};
    if (!is_position) {
      stems.push_back(by_name);
    }
    std::vector<std::string> found;
    for (const std::string& stem : stems) {
      for (const char* ending : {".npy", ".pb"}) {
        const std::string path = (folder_ / sample / (stem + ending)).string();
        if (exists(path)) {
          found.push_back(path);
        }
      }
    }
    require(!found.empty(), error_kind::invalid_argument, (folder_ / sample).string(),
            " has no data for input ", describe_input(inputs_[i]), "; write it to ", by_position,
            ".npy or ", by_position, ".pb", is_position ? "" : ", or to " + by_name + ".npy");
    require(found.size() == 1, error_kind::invalid_argument, "both ", found[0], " and ",
            found.back(), " hold input '", inputs_[i].name, "'");
    return found[0];
  }

  std::vector<value_info> inputs_;
  std::filesystem::path folder_;
  read_limits limits_;
  std::vector<std::string> samples_;  // names of sub-folders
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_SAMPLE_FOLDER_HPP
