// SPDX-License-Identifier: BSD-3-Clause
// Vectors that begin on a cache line, and scratch memory of a thread. Kernels read packed weights
// in whole SIMD vectors, and a load that lies across two cache lines costs twice.
#ifndef DETENT_BASE_ALIGNED_HPP
#define DETENT_BASE_ALIGNED_HPP

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// An allocator whose memory begins on a cache line (64 bytes).
template <class T>
struct cache_line_allocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};

  cache_line_allocator() = default;
  template <class U>
  constexpr cache_line_allocator(const cache_line_allocator<U>& /*other*/) noexcept {}  // NOLINT

  [[nodiscard]] T* allocate(std::size_t n) {
    // The product does not overflow: std::vector asks for no more than max_size() elements.
    return static_cast<T*>(::operator new(n * sizeof(T), alignment));
  }
  void deallocate(T* p, std::size_t /*n*/) noexcept { ::operator delete(p, alignment); }
  friend constexpr bool operator==(const cache_line_allocator&,
                                   const cache_line_allocator&) noexcept {
    return true;
  }
};

/// A vector whose data begins on a cache line.
template <class T>
using aligned_vector = std::vector<T, cache_line_allocator<T>>;

/// Scratch memory of the calling thread, one array for each element type T. It grows to what the
/// largest operation needs and is kept. Use it within one task only: while a parallel_for runs, the
/// thread may begin other tasks, which get the same memory. Across tasks, use leased_memory.
template <class T>
[[nodiscard]] T* block_memory(std::size_t size) {
  thread_local aligned_vector<T> memory;
  if (memory.size() < size) {
    memory.resize(size);
  }
  return memory.data();
}

/// Scratch memory that belongs to this object while it lives. It comes from a store of the calling
/// thread, which keeps memory for later objects. The object must be destroyed on the thread that
/// made it; other threads may read and write the memory.
template <class T>
class leased_memory {
 public:
  /// Leases nothing yet.
  leased_memory() noexcept = default;
  explicit leased_memory(std::size_t size) { static_cast<void>(lease(size)); }
  leased_memory(const leased_memory&) = delete;
  leased_memory& operator=(const leased_memory&) = delete;
  ~leased_memory() {
    if (is_leased_) {
      store& s = stored();
      --s.leased;
      s.free.push_back(std::move(memory_));
    }
  }

  /// Takes memory for `size` elements out of the store. Once per object.
  T* lease(std::size_t size) {
    store& s = stored();
    // Reserves room, so that the destructor can give the memory back without allocating.
    s.free.reserve(s.free.size() + s.leased + 1);
    if (!s.free.empty()) {
      memory_ = std::move(s.free.back());
      s.free.pop_back();
    }
    if (memory_.size() < size) {
      memory_.resize(size);
    }
    ++s.leased;
    is_leased_ = true;
    return memory_.data();
  }

  [[nodiscard]] T* data() noexcept { return memory_.data(); }
  [[nodiscard]] const T* data() const noexcept { return memory_.data(); }

 private:
  struct store {
    std::vector<aligned_vector<T>> free;
    std::size_t leased = 0;
  };
  static store& stored() {
    thread_local store s;
    return s;
  }

  aligned_vector<T> memory_;
  bool is_leased_ = false;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_ALIGNED_HPP
