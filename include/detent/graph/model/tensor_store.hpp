// SPDX-License-Identifier: BSD-3-Clause
// Keeps tensors in a temporary file instead of in memory, for models whose constants are made one
// by one and exceed the memory together.
#ifndef DETENT_GRAPH_MODEL_TENSOR_STORE_HPP
#define DETENT_GRAPH_MODEL_TENSOR_STORE_HPP

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Moves elements of tensors to a file that has no name: it disappears with the store and its
/// tensors, however the process ends. The tensors become views of it (mapped_file.hpp), whose pages
/// are not held in memory until they are read.
///
/// The first bytes stay in memory, up to a limit, and so do small tensors; the file is made when
/// the limit is passed. Where the system cannot map files, everything stays in memory. Tensors may
/// outlive the store. Not thread-safe.
class tensor_store {
 public:
  /// `folder`: where the file is to be, on a disk with room for all tensors. `memory`: how many
  /// bytes stay in memory.
  explicit tensor_store(std::filesystem::path folder, std::size_t memory = std::size_t{64} << 20U)
      : folder_(std::move(folder)), memory_(memory) {}
  tensor_store(const tensor_store&) = delete;
  tensor_store& operator=(const tensor_store&) = delete;
  ~tensor_store() {
#if DETENT_HAS_FILE_MAPPING
    if (file_ >= 0) {
      ::close(file_);
    }
#endif
  }

  /// A tensor of the same form with the same elements, which may be in the file. Throws io if the
  /// file cannot be made or written.
  [[nodiscard]] tensor keep(tensor t) {
    const std::size_t size = t.bytes();
    if (DETENT_HAS_FILE_MAPPING == 0 || t.is_mapped() || !t.has_data() || size < least_stored) {
      return t;
    }
    if (size <= memory_ - in_memory_) {
      in_memory_ += size;
      return t;
    }
#if DETENT_HAS_FILE_MAPPING
    if (file_ < 0) {
      create();
    }
    if (size > room_ && !add_segment(size)) {
      return t;
    }
    write(t.raw(), size);
    t.set_mapped_storage({segment_, segment_.get() + used_});
    const std::size_t whole = (std::min)(room_, (size + alignment - 1) / alignment * alignment);
    used_ += whole;
    room_ -= whole;
    in_file_ += size;
#endif
    return t;
  }

  /// The number of bytes of all tensors that are in the file.
  [[nodiscard]] std::uint64_t bytes_in_file() const noexcept { return in_file_; }

 private:
  static constexpr std::size_t least_stored = 4096;
  static constexpr std::size_t alignment = 64;  // of a tensor's elements

#if DETENT_HAS_FILE_MAPPING
  /// Opens a new file and takes its name away.
  void create() {
    std::random_device random;
    do {
      errno = 0;
      const std::filesystem::path path =
          folder_ / ("detent" + std::to_string(random()) + ".tmp" + std::to_string(random()));
      file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (file_ >= 0) {
        ::unlink(path.c_str());
      }
    } while (file_ < 0 && errno == EEXIST);
    check(file_ >= 0);
  }

  /// Adds a part to the file that has room for a tensor of `size` bytes, and maps it. A part holds
  /// many tensors, as a process can only have some ten thousand mappings. False if the system
  /// cannot map it.
  bool add_segment(std::size_t size) {
    constexpr std::size_t least = std::size_t{64} << 20U;  // a multiple of all page sizes
    const std::size_t bytes = ((std::max)(size, least) + least - 1) / least * least;
    const std::uint64_t end = file_size_ + bytes;
    errno = 0;
    // Makes the part exist, without taking space: no view may reach beyond the end of the file.
    check(::ftruncate(file_, static_cast<off_t>(end)) == 0);
    std::shared_ptr<const std::byte> view = detail::map_bytes(file_, file_size_, bytes);
    if (view == nullptr) {
      return false;
    }
    segment_ = std::move(view);
    segment_offset_ = file_size_;
    file_size_ = end;
    used_ = 0;
    room_ = bytes;
    return true;
  }

  /// Writes bytes to the free room of the last part.
  void write(const std::byte* bytes, std::size_t size) {
    for (std::size_t done = 0; done < size;) {
      errno = 0;
      const auto at = static_cast<off_t>(segment_offset_ + used_ + done);
      const ::ssize_t written = ::pwrite(file_, bytes + done, size - done, at);
      if (written < 0 && errno == EINTR) {
        continue;
      }
      check(written > 0);
      done += static_cast<std::size_t>(written);
    }
  }

  void check(bool succeeded) const {
    if (!succeeded) {
      const std::string reason = std::generic_category().message(errno != 0 ? errno : EIO);
      raise(error_kind::io, "detent: cannot write temporary data in " +
                                (folder_.empty() ? std::string(".") : folder_.string()) + ": " +
                                reason);
    }
  }

  int file_ = -1;
  std::uint64_t file_size_ = 0;
  std::shared_ptr<const std::byte> segment_;  // the last part
  std::uint64_t segment_offset_ = 0;          // of the last part in the file
  std::size_t used_ = 0;                      // bytes of the last part
  std::size_t room_ = 0;
#endif
  std::filesystem::path folder_;
  std::size_t memory_;
  std::size_t in_memory_ = 0;
  std::uint64_t in_file_ = 0;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_TENSOR_STORE_HPP
