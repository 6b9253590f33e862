// SPDX-License-Identifier: BSD-3-Clause
// Memory between two pages that must not be touched: a kernel that reads or writes past either end
// crashes, one that writes a little beside its output is found by the paint around it.
#ifndef DETENT_TESTS_GUARDED_MEMORY_HPP
#define DETENT_TESTS_GUARDED_MEMORY_HPP

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#define DETENT_TESTS_HAVE_MMAP 1
#else
#define DETENT_TESTS_HAVE_MMAP 0
#endif

namespace test {

class guarded_memory {
 public:
  /// Room for `bytes`, rounded up to whole pages.
  explicit guarded_memory(std::size_t bytes) {
#if DETENT_TESTS_HAVE_MMAP
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    size_ = (bytes + page - 1) / page * page;
    mapped_ = size_ + 2 * page;
    void* memory = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::bad_alloc();
    }
    mapping_ = static_cast<std::byte*>(memory);
    first_ = mapping_ + page;
    if (mprotect(first_, size_, PROT_READ | PROT_WRITE) != 0) {
      munmap(memory, mapped_);
      throw std::bad_alloc();
    }
#else
    size_ = bytes;
    mapping_ = new std::byte[size_];
    first_ = mapping_;
#endif
    paint_.assign(size_, paint_value);
    repaint();
  }
  guarded_memory(const guarded_memory&) = delete;
  guarded_memory& operator=(const guarded_memory&) = delete;
  ~guarded_memory() {
#if DETENT_TESTS_HAVE_MMAP
    munmap(mapping_, mapped_);
#else
    delete[] mapping_;
#endif
  }

  /// n elements that begin `gap` elements after the guard page.
  template <class T>
  [[nodiscard]] std::span<T> front(std::size_t n, std::size_t gap = 0) noexcept {
    return {reinterpret_cast<T*>(first_) + gap, n};
  }
  /// n elements that end right before the other guard page.
  template <class T>
  [[nodiscard]] std::span<T> back(std::size_t n) noexcept {
    return {reinterpret_cast<T*>(first_ + size_) - n, n};
  }

  void repaint() noexcept { std::memcpy(first_, paint_.data(), size_); }

  /// True if all paint outside of `used` is as it was.
  template <class T>
  [[nodiscard]] bool intact_around(std::span<T> used) const noexcept {
    const auto* begin = reinterpret_cast<const std::byte*>(used.data());
    const auto before = static_cast<std::size_t>(begin - first_);
    const std::byte* end = begin + used.size_bytes();
    return std::memcmp(first_, paint_.data(), before) == 0 &&
           std::memcmp(end, paint_.data(), size_ - before - used.size_bytes()) == 0;
  }

 private:
  static constexpr std::byte paint_value{0xA5};
  std::byte* mapping_ = nullptr;
  std::byte* first_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;
  std::vector<std::byte> paint_;
};

/// A copy of values that ends right before a guard page.
template <class T>
class guarded_copy {
 public:
  explicit guarded_copy(const std::vector<T>& values)
      : memory_(values.size() * sizeof(T) + 1), values_(memory_.back<T>(values.size())) {
    std::copy(values.begin(), values.end(), values_.begin());
  }
  [[nodiscard]] std::span<const T> values() const noexcept { return values_; }

 private:
  guarded_memory memory_;
  std::span<T> values_;
};

}  // namespace test

#endif  // DETENT_TESTS_GUARDED_MEMORY_HPP
