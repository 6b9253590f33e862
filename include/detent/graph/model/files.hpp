// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes files: all of what the graph part and the command line tool open goes through
// here, so that no reader waits at a pipe and no writer leaves half a file.
#ifndef DETENT_GRAPH_MODEL_FILES_HPP
#define DETENT_GRAPH_MODEL_FILES_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ios>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

namespace detail {

/// Throws io for what cannot be the path of a file: an empty one, and one with a null character,
/// which the system would take for the end of it. `verb` begins the message: "cannot open ".
inline void require_path(const std::filesystem::path& path, const char* verb) {
  require(!path.empty(), error_kind::io, verb, "a file: its name is empty");
  require(path.native().find(std::filesystem::path::value_type{}) ==
              std::filesystem::path::string_type::npos,
          error_kind::io, verb, path.string(), ": the name has a null character");
}

}  // namespace detail

/// A regular file that is open to be read. Not thread-safe.
class input_file {
 public:
  /// Opens a file. Throws io, naming it: it does not exist, is a folder, or is neither a file nor a
  /// link to one (a pipe could let the reader wait forever, and has no size); it cannot be opened;
  /// the path is empty or has a null character.
  explicit input_file(std::filesystem::path path) : path_(std::move(path)) {
    detail::require_path(path_, "cannot open ");
    std::error_code failed;
    const std::filesystem::file_status status = std::filesystem::status(path_, failed);
    require(!std::filesystem::is_directory(status), error_kind::io, path_.string(),
            " is a folder, not a file");
    require(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
            error_kind::io, path_.string(), " is not a regular file");
    errno = 0;
    stream_.open(path_, std::ios::binary | std::ios::ate);
    const int reason = errno;
    require(stream_.is_open(), error_kind::io, "cannot open ", path_.string(),
            reason != 0 ? ": " + std::generic_category().message(reason) : "");
    const std::streamoff end = stream_.tellg();
    require(end >= 0, error_kind::io, "cannot read ", path_.string());
    size_ = static_cast<std::uint64_t>(end);
  }

  /// The number of its bytes when it was opened.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Reads `count` bytes that begin `offset` bytes behind the start of the file. Throws io if it
  /// has fewer or cannot be read.
  void read(std::uint64_t offset, char* to, std::size_t count) {
    const bool inside = offset <= size_ && count <= size_ - offset;
    if (inside) {
      stream_.clear();
      stream_.seekg(static_cast<std::streamoff>(offset));
      stream_.read(to, static_cast<std::streamsize>(count));
    }
    require(inside && stream_.gcount() == static_cast<std::streamsize>(count), error_kind::io,
            "cannot read ", path_.string());
  }

 private:
  std::filesystem::path path_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

/// The bytes of a whole file. Throws io as input_file().
[[nodiscard]] inline std::string read_file(const std::filesystem::path& path) {
  input_file file(path);
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, bytes.data(), bytes.size());
  return bytes;
}

/// Writes a file that appears as a whole or not at all: the bytes go to a temporary file beside it,
/// which commit() renames. Until then, and if anything fails, what was there stays as it was.
///
/// The temporary file has a random name and is never one that exists already. If the file exists,
/// its permissions are kept. A symbolic link stays, and what it points to is replaced. Devices and
/// pipes are written to directly. Not thread-safe; several writers of one file do not mix.
class replacement_file {
 public:
  /// Creates the temporary file. Throws io if it cannot, and for a path that is empty or has a null
  /// character.
  explicit replacement_file(std::filesystem::path path) : target_(std::move(path)) {
    namespace fs = std::filesystem;
    detail::require_path(target_, "cannot write ");
    std::error_code failed;
    if (fs::is_symlink(target_, failed)) {
      fs::path pointed_to = fs::canonical(target_, failed);
      target_ = failed ? target_ : std::move(pointed_to);
    }
    const fs::file_status status = fs::status(target_, failed);
    is_special_ = fs::exists(status) && !fs::is_directory(status) && !fs::is_regular_file(status);
    if (is_special_) {
      open(target_, "wb");
    } else {
      std::random_device random;
      do {
        temporary_ = target_;
        temporary_ += ".tmp" + std::to_string(random());
        open(temporary_, "wbx");
      } while (file_ == nullptr && reason_ == EEXIST);
    }
    check(file_ != nullptr);
    if (fs::is_regular_file(status)) {
      fs::permissions(temporary_, status.permissions(), failed);
      if (failed) {
        discard();
        fail(failed.message());
      }
    }
  }
  replacement_file(const replacement_file&) = delete;
  replacement_file& operator=(const replacement_file&) = delete;
  /// Removes the temporary file if commit() has not renamed it.
  ~replacement_file() { discard(); }

  /// Writes bytes behind those that were written before. Throws io.
  void write(const void* bytes, std::size_t size) {
    errno = 0;
    const bool written = size == 0 || std::fwrite(bytes, 1, size, file_) == size;
    reason_ = errno;
    check(written);
  }

  /// Where the file will be: the path, or what it leads to if it is a link.
  [[nodiscard]] const std::filesystem::path& target() const noexcept { return target_; }
  /// Whether that is a device or a pipe, which is written to directly.
  [[nodiscard]] bool is_special() const noexcept { return is_special_; }

  /// Ends the writing: all bytes are in the temporary file. To be called after all bytes; commit()
  /// calls it if nobody has. Throws io.
  void close() {
    if (file_ != nullptr) {
      errno = 0;
      const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
      reason_ = errno;
      check(closed);
    }
  }

  /// Gives the file its name. To be called once, after all bytes. Throws io.
  void commit() {
    close();
    if (!is_special_) {
      std::error_code failed;
      std::filesystem::rename(temporary_, target_, failed);
      reason_ = failed.value();
      check(!failed);
      temporary_.clear();
    }
  }

 private:
  void open(const std::filesystem::path& path, const char* mode) {
    errno = 0;
    file_ = std::fopen(path.string().c_str(), mode);
    reason_ = errno;
    if (file_ == nullptr) {
      temporary_.clear();
    }
  }
  void check(bool succeeded) const {
    if (!succeeded) {
      fail(std::generic_category().message(reason_));
    }
  }
  [[noreturn]] void fail(const std::string& reason) const {
    raise(error_kind::io, "detent: cannot write " + target_.string() + ": " + reason);
  }
  void discard() {
    if (file_ != nullptr) {
      static_cast<void>(std::fclose(std::exchange(file_, nullptr)));
    }
    if (!temporary_.empty()) {
      std::error_code ignored;
      std::filesystem::remove(temporary_, ignored);
      temporary_.clear();
    }
  }

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty if there is none
  std::FILE* file_ = nullptr;
  int reason_ = 0;           // errno of the last step
  bool is_special_ = false;  // whether the target is a device or a pipe
};

/// Writes a file as replacement_file does. Throws io.
inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  replacement_file file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

/// Throws io if write_file() could not write this file: its folder does not exist, or files cannot
/// be made there; it is a folder itself; its path is empty or has a null character. Asks before
/// work that takes long; what is there stays, and devices and pipes are not opened.
inline void require_writable(const std::filesystem::path& path) {
  detail::require_path(path, "cannot write ");
  std::error_code failed;
  const std::filesystem::file_status status = std::filesystem::status(path, failed);
  require(!std::filesystem::is_directory(status), error_kind::io, "cannot write ", path.string(),
          ": it is a folder");
  if (std::filesystem::is_regular_file(status) || !std::filesystem::exists(status)) {
    const replacement_file probe(path);
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_FILES_HPP
