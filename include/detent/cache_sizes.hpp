// SPDX-License-Identifier: BSD-3-Clause
// cache_sizes: the sizes of the processor's caches, by which large products are divided.
#ifndef DETENT_CACHE_SIZES_HPP
#define DETENT_CACHE_SIZES_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/kernels/cache_sizes.hpp>

DETENT_NAMESPACE_BEGIN

/// Sizes of caches in bytes: first_level (data) and second_level of one core, and third_level,
/// which cores share.
using kernels::cache_sizes;

/// The cache sizes of the processor that runs this, from CPUID leaf 4 (Intel) or 0x8000001D (AMD).
/// Sizes that the processor does not report are assumed: 32 KB, 1 MB and 16 MB for the first,
/// second and third level. Thread-safe.
[[nodiscard]] inline cache_sizes detected_cache_sizes() noexcept {
  return kernels::processor_caches();
}

namespace detail {

/// The chosen sizes, with each size of 0 replaced by that of the processor.
[[nodiscard]] inline cache_sizes resolved_caches(const cache_sizes& chosen) noexcept {
  const cache_sizes& found = kernels::processor_caches();
  const auto or_found = [](std::size_t size, std::size_t other) {
    return size != 0 ? size : other;
  };
  return {or_found(chosen.first_level, found.first_level),
          or_found(chosen.second_level, found.second_level),
          or_found(chosen.third_level, found.third_level)};
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_CACHE_SIZES_HPP
