// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes whole files.
#ifndef DETENT_GRAPH_MODEL_FILES_HPP
#define DETENT_GRAPH_MODEL_FILES_HPP

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <system_error>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
/// The bytes of a whole file. Throws io if `path` is a folder or cannot be opened or read.
inline std::string read_file(const std::filesystem::path& path) {
  std::error_code failed;
  require(!std::filesystem::is_directory(path, failed), error_kind::io, path.string(),
          " is a folder, not a file");
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  require(in.good(), error_kind::io, "cannot open ", path.string());
  const std::streamoff size = in.tellg();
  require(size >= 0, error_kind::io, "cannot read ", path.string());
  std::string bytes(static_cast<std::size_t>(size), '\0');
  in.seekg(0);
  in.read(bytes.data(), size);
  require(in.gcount() == size, error_kind::io, "cannot read ", path.string());
  return bytes;
}

/// Writes to a temporary file beside the target (`path` with ".tmp" appended) and renames it, so
/// that no reader ever sees half a file. A symbolic link stays, its target is replaced. Devices and
/// pipes are written to directly. Throws io.
inline void write_file(std::filesystem::path path, std::string_view bytes) {
  std::error_code unknown;
  if (std::filesystem::is_symlink(path, unknown)) {
    const std::filesystem::path target = std::filesystem::canonical(path, unknown);
    path = unknown ? path : target;  // replaces what the link points to
  }
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_directory(path, unknown) &&
      !std::filesystem::is_regular_file(path, unknown)) {
    // Renaming would replace a device or a pipe by a file, hence it is written to.
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    require(static_cast<bool>(out), error_kind::io, "cannot write ", path.string());
    return;
  }
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    require(out.good(), error_kind::io, "cannot write ", path.string());
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) {
      std::error_code ignored;
      std::filesystem::remove(temporary, ignored);
      raise(error_kind::io, "detent: cannot write " + path.string());
    }
  }
  std::error_code failed;
  std::filesystem::rename(temporary, path, failed);
  if (failed) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    raise(error_kind::io, "detent: cannot write " + path.string() + ": " + failed.message());
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_FILES_HPP
