// SPDX-License-Identifier: BSD-3-Clause
// Vectors that begin on a cache line: kernels read packed weights in whole vectors, and one that
// lies across two lines costs twice.
#ifndef DETENT_ALIGNED_HPP
#define DETENT_ALIGNED_HPP

#include <cstddef>
#include <new>
#include <vector>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

template <class T>
struct cache_line_allocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};

  cache_line_allocator() = default;
  template <class U>
  constexpr cache_line_allocator(const cache_line_allocator<U>& /*other*/) noexcept {}  // NOLINT

  [[nodiscard]] T* allocate(std::size_t n) {
    // std::vector asks for no more than max_size(), so that this does not overflow.
    return static_cast<T*>(::operator new(n * sizeof(T), alignment));
  }
  void deallocate(T* p, std::size_t /*n*/) noexcept { ::operator delete(p, alignment); }
  friend constexpr bool operator==(const cache_line_allocator&,
                                   const cache_line_allocator&) noexcept {
    return true;
  }
};

template <class T>
using aligned_vector = std::vector<T, cache_line_allocator<T>>;

/// Memory of the calling thread, one for each type of element, which grows to what the largest
/// operation needs and stays: for what an operation prepares and nothing keeps.
template <class T>
[[nodiscard]] T* block_memory(std::size_t size) {
  thread_local aligned_vector<T> memory;
  if (memory.size() < size) {
    memory.resize(size);
  }
  return memory.data();
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_ALIGNED_HPP
