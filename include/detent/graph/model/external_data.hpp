// SPDX-License-Identifier: BSD-3-Clause
// Reads the bytes of tensors that a model keeps in other files (ONNX's external data).
#ifndef DETENT_GRAPH_MODEL_EXTERNAL_DATA_HPP
#define DETENT_GRAPH_MODEL_EXTERNAL_DATA_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/files.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// Reads external data below the folder of a model and counts the bytes that were read.
class external_data {
 public:
  /// `folder`: the folder of the model's file, to which all locations are relative.
  explicit external_data(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Reads the bytes of the tensor `name`. `where` holds the entries of its external_data field
  /// (location, offset, length); `stored` is the number of bytes that its type and shape need.
  ///
  /// Throws bad_file if the location is not a relative path without ".." or leads through a link
  /// out of the folder, if offset or length is not a number, if length differs from `stored`, or if
  /// the file is too short; io as input_file().
  [[nodiscard]] std::string read(const std::string& name,
                                 const std::map<std::string, std::string>& where,
                                 std::size_t stored) {
    const auto get = [&](const char* key) {
      const auto found = where.find(key);
      return found == where.end() ? std::string() : found->second;
    };
    const std::string location = get("location");
    const std::filesystem::path relative(location);
    bool inside = !location.empty() && relative.is_relative();
    for (const std::filesystem::path& part : relative) {
      inside = inside && part != "..";
    }
    require(inside, error_kind::bad_file, "tensor '", name, "' has its data in '", location,
            "', which is not a path below the model's folder");
    const auto number = [&](const char* key, std::uint64_t otherwise) {
      const std::string text = get(key);
      if (text.empty()) {
        return otherwise;
      }
      require(text.find_first_not_of("0123456789") == std::string::npos && text.size() < 19,
              error_kind::bad_file, "tensor '", name, "': external ", key, " '", text,
              "' is not a size");
      return static_cast<std::uint64_t>(std::stoull(text));
    };
    const std::uint64_t offset = number("offset", 0);
    const std::uint64_t length = number("length", stored);
    require(length == stored, error_kind::bad_file, "tensor '", name, "' needs ", stored,
            " bytes, its external data has ", length);
    const std::filesystem::path path = folder_ / relative;
    std::error_code failed;
    const std::filesystem::path within =
        std::filesystem::weakly_canonical(folder_.empty() ? "." : folder_, failed);
    const std::filesystem::path real = std::filesystem::weakly_canonical(path, failed);
    require(
        !failed && std::mismatch(within.begin(), within.end(), real.begin(), real.end()).first ==
                       within.end(),
        error_kind::bad_file, "tensor '", name, "' has its data in '", location,
        "', which is a link out of the model's folder");
    return with_context("tensor '" + name + "': external data", [&] {
      input_file in(path);
      require(offset <= in.size() && length <= in.size() - offset, error_kind::bad_file,
              path.string(), " has ", in.size(), " bytes, needed are ", length, " from ", offset);
      std::string bytes(static_cast<std::size_t>(length), '\0');
      in.read(offset, bytes.data(), bytes.size());
      bytes_read_ += length;
      return bytes;
    });
  }

  /// The number of bytes that all calls of read() have returned together.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  std::filesystem::path folder_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_EXTERNAL_DATA_HPP
