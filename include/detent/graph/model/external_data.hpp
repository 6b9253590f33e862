// SPDX-License-Identifier: BSD-3-Clause
// Finds the bytes of tensors that a model keeps in other files (ONNX's external data).
#ifndef DETENT_GRAPH_MODEL_EXTERNAL_DATA_HPP
#define DETENT_GRAPH_MODEL_EXTERNAL_DATA_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/mapped_file.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// The bytes of a tensor in another file, which is open and has them all.
struct external_bytes {
  input_file file;             ///< The file.
  std::filesystem::path path;  ///< Its path.
  std::uint64_t offset = 0;    ///< Where the bytes begin.
  std::size_t length = 0;      ///< How many there are.
  std::string context;         ///< What messages begin with.

  /// Copies the bytes to `to`. Throws io if they cannot be read.
  void read(char* to) {
    with_context(context, [&] { file.read(offset, to, length); });
  }
};

/// Finds external data below the folder of a model, and counts its bytes.
class external_data {
 public:
  /// `folder`: the folder of the model's file, to which all locations are relative.
  explicit external_data(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Finds the bytes of the tensor `name`. `where` holds the entries of its external_data field
  /// (location, offset, length); `stored` is the number of bytes that its type and shape need.
  ///
  /// Throws bad_file if the location is not a relative path without ".." or leads through a link
  /// out of the folder, if offset or length is not a number, if length differs from `stored`, or if
  /// the file is too short; io as input_file().
  [[nodiscard]] external_bytes open(const std::string& name,
                                    const std::map<std::string, std::string>& where,
                                    std::size_t stored) {
    const auto get = [&](const char* key) {
      const auto found = where.find(key);
      return found == where.end() ? std::string() : found->second;
    };
    const std::string location = get("location");
    const std::filesystem::path relative(location);
    bool inside =
        !location.empty() && location.find('\0') == std::string::npos && relative.is_relative();
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
    // weakly_canonical() makes a path absolute only if it begins with something that exists. With
    // "." in front, the path of a missing file becomes absolute, too, and can be compared.
    const std::filesystem::path folder = folder_.empty() ? std::filesystem::path(".") : folder_;
    std::error_code failed;
    const std::filesystem::path within = std::filesystem::weakly_canonical(folder, failed);
    const std::filesystem::path real = std::filesystem::weakly_canonical(folder / relative, failed);
    require(
        !failed && std::mismatch(within.begin(), within.end(), real.begin(), real.end()).first ==
                       within.end(),
        error_kind::bad_file, "tensor '", name, "' has its data in '", location,
        "', which is a link out of the model's folder; copy the file into the folder (cp -L)");
    std::string context = "tensor '" + name + "': external data";
    return with_context(context, [&] {
      input_file in(path);
      require(offset <= in.size() && length <= in.size() - offset, error_kind::bad_file,
              path.string(), " has ", in.size(), " bytes, needed are ", length, " from ", offset);
      bytes_found_ += length;
      files_.insert(path.string());
      return external_bytes{std::move(in), path, offset, stored, std::move(context)};
    });
  }

  /// The bytes as a view of their file (mapped_file), at an address that is a multiple of
  /// `alignment`. Null if the system cannot map the file, or if its bytes lie otherwise.
  [[nodiscard]] std::shared_ptr<const std::byte> map(const external_bytes& at,
                                                     std::size_t alignment) {
    if (at.offset % alignment != 0) {
      return nullptr;
    }
    const auto [found, is_new] = mapped_.try_emplace(at.path);
    if (is_new) {
      found->second = mapped_file::open(at.path);
    }
    const std::shared_ptr<const mapped_file>& file = found->second;
    // The file may have become another one since `at` was found.
    const bool has_all = file != nullptr && at.offset <= file->size() &&
                         at.length <= file->size() - static_cast<std::size_t>(at.offset);
    return has_all ? file->bytes(static_cast<std::size_t>(at.offset)) : nullptr;
  }

  /// The number of bytes that all calls of open() have found together.
  [[nodiscard]] std::uint64_t bytes_found() const noexcept { return bytes_found_; }
  /// The paths of the files that hold them.
  [[nodiscard]] const std::set<std::string>& files() const noexcept { return files_; }

 private:
  std::filesystem::path folder_;
  std::map<std::filesystem::path, std::shared_ptr<const mapped_file>> mapped_;  // null: not mapped
  std::set<std::string> files_;
  std::uint64_t bytes_found_ = 0;
};

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_EXTERNAL_DATA_HPP
