// SPDX-License-Identifier: BSD-3-Clause
// Read-only views of files in memory (POSIX mmap), and tensors whose elements are such views. Where
// the system has none, mapped_file::open() returns null, and callers read instead.
#ifndef DETENT_GRAPH_MODEL_MAPPED_FILE_HPP
#define DETENT_GRAPH_MODEL_MAPPED_FILE_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
/// 1 if files can be mapped into memory here.
#define DETENT_HAS_FILE_MAPPING 1
#else
#define DETENT_HAS_FILE_MAPPING 0
#endif

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

#if DETENT_HAS_FILE_MAPPING
/// Maps `size` bytes of an open file, from `offset` on, which must be a multiple of the page size.
/// The bytes can only be read, also by this process itself; they are unmapped with the last owner
/// of the result. What is written to the file later shows. Null if the system refuses, for example
/// for want of address space.
[[nodiscard]] inline std::shared_ptr<const std::byte> map_bytes(int file, std::uint64_t offset,
                                                                std::size_t size) {
  // The numbers of off_t, in which a file may be larger than the address space.
  if (size == 0 ||
      offset > static_cast<std::uint64_t>((std::numeric_limits<off_t>::max)()) - size) {
    return nullptr;
  }
  void* const first =
      ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, static_cast<off_t>(offset));
  if (first == MAP_FAILED) {
    return nullptr;
  }
  return {static_cast<const std::byte*>(first),
          [size](const std::byte* p) { ::munmap(const_cast<std::byte*>(p), size); }};
}
#endif

}  // namespace detail

/// A regular file whose bytes can be read at an address. It takes no memory of its own: the system
/// reads pages when they are first touched, and takes them back as it needs. The bytes are those
/// that the file has at that time; if another process makes the file shorter, touching the rest
/// ends this process (SIGBUS). Immutable and thread-safe.
class mapped_file {
 public:
  /// Maps a file. Returns null if the system has no mapping or refuses it, or if the file does not
  /// exist, is empty or is not a regular file; never waits at a pipe.
  [[nodiscard]] static std::shared_ptr<const mapped_file> open(const std::filesystem::path& path) {
#if DETENT_HAS_FILE_MAPPING
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
      return nullptr;
    }
    struct stat status {};
    std::shared_ptr<const std::byte> bytes;
    if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
        static_cast<std::uint64_t>(status.st_size) <= (std::numeric_limits<std::size_t>::max)()) {
      bytes = detail::map_bytes(file, 0, static_cast<std::size_t>(status.st_size));
    }
    ::close(file);  // the mapping stays
    if (bytes == nullptr) {
      return nullptr;
    }
    return std::shared_ptr<const mapped_file>(
        new mapped_file(std::move(bytes), static_cast<std::size_t>(status.st_size)));
#else
    static_cast<void>(path);
    return nullptr;
#endif
  }

  /// The number of bytes, as the file had when it was mapped.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The bytes from `offset` on, which must be at most size(). Every owner of the result keeps the
  /// whole file mapped.
  [[nodiscard]] std::shared_ptr<const std::byte> bytes(std::size_t offset) const {
    return {bytes_, bytes_.get() + offset};
  }

 private:
  mapped_file(std::shared_ptr<const std::byte> bytes, std::size_t size)
      : bytes_(std::move(bytes)), size_(size) {}

  std::shared_ptr<const std::byte> bytes_;
  std::size_t size_;
};

namespace detail {

/// Gives the system advice about the pages of a tensor that is a view of a file; nothing for
/// others.
inline void advise(const tensor& t, [[maybe_unused]] bool is_needed) noexcept {
  if (!t.is_mapped() || t.bytes() == 0) {
    return;
  }
#if DETENT_HAS_FILE_MAPPING
  // Whole pages: neighbours that have a part of one read it again when they want it.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(t.raw());
  const std::uintptr_t first = begin / page * page;
  static_cast<void>(::madvise(reinterpret_cast<void*>(first), begin + t.bytes() - first,
                              is_needed ? MADV_WILLNEED : MADV_DONTNEED));
#endif
}

}  // namespace detail

/// Tells the system that the elements of a tensor are not needed in memory for now, if they are a
/// view of a file (tensor::is_mapped()): the process no longer holds their pages, and the system
/// brings them back when they are touched. Other tensors stay as they are. Thread-safe.
inline void release_pages(const tensor& t) noexcept { detail::advise(t, false); }

/// Tells the system that the elements of a tensor will be read soon, if they are a view of a file.
/// Thread-safe.
inline void expect_pages(const tensor& t) noexcept { detail::advise(t, true); }

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_MAPPED_FILE_HPP
