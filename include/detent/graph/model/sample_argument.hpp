// SPDX-License-Identifier: BSD-3-Clause
// Parses the texts by which users say where the values of a model's inputs are. Needs protozero.
#ifndef DETENT_GRAPH_MODEL_SAMPLE_ARGUMENT_HPP
#define DETENT_GRAPH_MODEL_SAMPLE_ARGUMENT_HPP

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/sample_file.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The inputs of a model as messages list them: name, type and shape of the first eight, and the
/// number of the others.
[[nodiscard]] inline std::string list_inputs(const model& m) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < m.inputs.size() && i < most; ++i) {
    text.append(i > 0 ? ", " : "").append(describe_input(m.inputs[i]));
  }
  return m.inputs.size() <= most
             ? text
             : text + " and " + std::to_string(m.inputs.size() - most) + " more";
}

/// What a text of the form `[NAME=]FILE[:axis=K|:fixed]` or `FOLDER` says.
struct sample_argument {
  const value_info* input = nullptr;  ///< The input that it is for; null for a folder.
  std::string path;                   ///< The path of the file or folder.
  /// The axis that counts samples, from the end if negative; nothing if the text does not say it.
  std::optional<std::int64_t> axis;
  bool is_fixed = false;  ///< The file holds one value, which all runs take.
};

namespace detail {

/// Takes `:fixed` or `:axis=K` off the end of the path of an argument. Throws invalid_argument if K
/// is not an integer, or for another suffix behind the path of a file.
inline void take_suffix(sample_argument& a) {
  const auto exists = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  const std::size_t colon = a.path.rfind(':');
  if (colon == std::string::npos) {
    return;
  }
  const std::string suffix = a.path.substr(colon);
  const std::string path = a.path.substr(0, colon);
  constexpr std::string_view axis = ":axis=";
  a.is_fixed = suffix == ":fixed";
  const bool has_axis = suffix.starts_with(axis) && suffix.find('/') == std::string::npos;
  if (has_axis) {
    const char* const last = suffix.data() + suffix.size();
    const auto [end, failed] =
        std::from_chars(suffix.data() + axis.size(), last, a.axis.emplace(0));
    require(failed == std::errc() && end == last, error_kind::invalid_argument, a.path, ": axis '",
            suffix.substr(axis.size()), "' is not an integer; write ", path,
            ":axis=K, where axis K counts the samples");
  }
  if (a.is_fixed || has_axis) {
    a.path = path;
    return;
  }
  require(exists(a.path) || !exists(path), error_kind::invalid_argument, a.path, ": '", suffix,
          "' is none of the suffixes of a file: ':axis=K' (axis K counts the samples) and "
          "':fixed' (given whole in each run)");
}

}  // namespace detail

/// Parses `[NAME=]FILE[:axis=K|:fixed]` or `FOLDER`. NAME is the name of an input and may be left
/// out if the model has only one. Only the last suffix of exactly these forms is taken from the
/// path. In messages, `option` stands before what users have to write.
///
/// Throws invalid_argument if the text does not say which input it is for, if the model has no such
/// input, without a file, for a folder with a name or a suffix, for another suffix, and if K is not
/// an integer.
[[nodiscard]] inline sample_argument parse_sample_argument(const model& m, const std::string& text,
                                                           const std::string& option = {}) {
  sample_argument a;
  // A name may hold ':' or '/', and a path may hold '=', so the '=' that counts is the one behind
  // the name of an input. Of names that begin with each other, the longest one counts.
  a.path = text;
  for (const value_info& v : m.inputs) {
    if (text.starts_with(v.name + "=") &&
        (a.input == nullptr || v.name.size() > a.input->name.size())) {
      a.input = &v;
    }
  }
  if (a.input != nullptr) {
    a.path = text.substr(a.input->name.size() + 1);
  }
  detail::take_suffix(a);
  require(!a.path.empty(), error_kind::invalid_argument, "'", text, "' names no file; write ",
          option, a.input != nullptr ? a.input->name : "NAME", "=FILE.npy");
  std::error_code ignored;
  if (std::filesystem::is_directory(a.path, ignored)) {
    require(a.path == text, error_kind::invalid_argument, text,
            ": a folder holds the values of all inputs; write ", option, a.path);
    return a;
  }
  if (a.input != nullptr) {
    return a;
  }
  require(!m.inputs.empty(), error_kind::invalid_argument, text, ": the model has no inputs");
  const std::size_t equals = a.path.find('=');
  require(equals == std::string::npos || std::filesystem::exists(a.path, ignored),
          error_kind::invalid_argument, "the model has no input '", a.path.substr(0, equals),
          "'; its inputs are ", list_inputs(m));
  require(m.inputs.size() == 1, error_kind::invalid_argument, "'", text,
          "' does not say which of the model's ", m.inputs.size(), " inputs it is; write ", option,
          "NAME=", text, ", where NAME is one of ", list_inputs(m));
  a.input = &m.inputs[0];
  return a;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_SAMPLE_ARGUMENT_HPP
