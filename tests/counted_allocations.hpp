// SPDX-License-Identifier: BSD-3-Clause
// Replaces the functions by which a program allocates with ones that count: for one file of a
// program to include.
#ifndef DETENT_TESTS_COUNTED_ALLOCATIONS_HPP
#define DETENT_TESTS_COUNTED_ALLOCATIONS_HPP

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace test {

/// The calls of operator new since the program began.
inline std::atomic<std::size_t> allocations{0};
/// How many allocations of `least_failing` bytes or more may follow before one fails; negative:
/// none fails.
inline std::atomic<int> large_ones_left{-1};
inline std::atomic<std::size_t> least_failing{std::size_t{1} << 19U};

inline void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  if (large_ones_left >= 0 && size >= least_failing && large_ones_left-- == 0) {
    throw std::bad_alloc();
  }
  const std::size_t rounded = (size + alignment) / alignment * alignment;  // not 0
  void* const memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}

/// Allocations of the third of three calls.
template <class Run>
std::size_t allocations_of(const Run& run) {
  run();
  run();
  const std::size_t before = allocations;
  run();
  return allocations - before;
}

}  // namespace test

// Not inlined: g++ would see that what they return is freed as what aligned_alloc() returned, and
// take that for a mistake.
#if defined(__GNUC__)
#define DETENT_TEST_NOINLINE __attribute__((noinline))
#else
#define DETENT_TEST_NOINLINE
#endif

DETENT_TEST_NOINLINE void* operator new(std::size_t size) {
  return test::counted(size, alignof(std::max_align_t));
}
DETENT_TEST_NOINLINE void* operator new(std::size_t size, std::align_val_t alignment) {
  return test::counted(size, static_cast<std::size_t>(alignment));
}
// std::stable_sort asks for its memory in this way. The standard library's own function would not
// do: sanitizers have one that memory of the functions here does not go with.
DETENT_TEST_NOINLINE void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return test::counted(size, alignof(std::max_align_t));
}
DETENT_TEST_NOINLINE void operator delete(void* memory) noexcept { std::free(memory); }
DETENT_TEST_NOINLINE void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept {
  std::free(memory);
}
DETENT_TEST_NOINLINE void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}
DETENT_TEST_NOINLINE void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
DETENT_TEST_NOINLINE void operator delete(void* memory, std::size_t /*size*/,
                                          std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

#endif  // DETENT_TESTS_COUNTED_ALLOCATIONS_HPP
