// SPDX-License-Identifier: BSD-3-Clause
// The sizes of caches that products are divided for.
#ifndef DETENT_CACHE_SIZES_HPP
#define DETENT_CACHE_SIZES_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/kernels/cache_sizes.hpp>

DETENT_NAMESPACE_BEGIN

/// Bytes of the first level (of data) and the second of a core, and of the third, which cores
/// share.
using kernels::cache_sizes;

/// Those of this processor, from CPUID leaf 4 or 0x8000001D; what it does not tell is 32 KB, 1 MB
/// and 16 MB. Thread-safe.
[[nodiscard]] inline cache_sizes detected_cache_sizes() noexcept {
  return kernels::processor_caches();
}

namespace detail {

/// The processor's where `chosen` is 0.
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
