// SPDX-License-Identifier: BSD-3-Clause
// The sizes of the processor's caches, by which kernels divide products.
#ifndef DETENT_KERNELS_CACHE_SIZES_HPP
#define DETENT_KERNELS_CACHE_SIZES_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Sizes of caches in bytes: the first level (data) and the second level of one core, and the third
/// level, which cores share. Products are divided so that operands which are read repeatedly stay
/// in a cache; results do not depend on these sizes.
struct cache_sizes {
  std::size_t first_level = 0;
  std::size_t second_level = 0;
  std::size_t third_level = 0;
  friend constexpr bool operator==(const cache_sizes&, const cache_sizes&) = default;
};

/// The cache sizes of the processor that runs the program. A size that the processor does not
/// report is taken as 32 KB, 1 MB or 16 MB (first, second, third level). Thread-safe.
[[nodiscard]] DETENT_DECL const cache_sizes& processor_caches() noexcept;

/// How many bytes of a first-level cache may be taken by operands that are read again and again
/// while other data passes through: max(L1 / 2, min(3/4 * L1, 24 KB)).
[[nodiscard]] inline constexpr std::size_t reused_part(std::size_t first_level) noexcept {
  constexpr std::size_t enough = std::size_t{24} << 10;
  const std::size_t most = first_level - first_level / 4;
  const std::size_t bounded = most < enough ? most : enough;
  return bounded > first_level / 2 ? bounded : first_level / 2;
}

DETENT_KERNELS_NAMESPACE_END

#if DETENT_DEFINES_KERNELS
#include <detent/kernels/cpuid.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

#if DETENT_ARCH_X86_64

/// Stores in `sizes` the caches that a CPUID leaf describes, one cache per subleaf: leaf 4 on
/// Intel, leaf 0x8000001D on AMD; the registers have the same layout. A leaf that the processor
/// does not have returns zeros, which is the end of the list.
DETENT_DECL void read_cache_leaf(std::uint32_t leaf, cache_sizes& sizes) noexcept {
  constexpr std::uint32_t most_caches = 16;
  for (std::uint32_t i = 0; i < most_caches; ++i) {
    const cpuid_registers r = cpuid(leaf, i);
    const std::uint32_t type = r.eax & 0x1FU;  // 0 none, 1 data, 2 instructions, 3 both
    if (type == 0) {
      return;
    }
    const std::size_t ways = (r.ebx >> 22) + std::size_t{1};
    const std::size_t partitions = (r.ebx >> 12 & 0x3FFU) + std::size_t{1};
    const std::size_t line = (r.ebx & 0xFFFU) + std::size_t{1};
    const std::size_t sets = r.ecx + std::size_t{1};
    const std::size_t size = ways * partitions * line * sets;
    const std::uint32_t level = r.eax >> 5 & 7U;
    if (type != 2 && level == 1) {
      sizes.first_level = size;
    } else if (type != 2 && level == 2) {
      sizes.second_level = size;
    } else if (type != 2 && level == 3) {
      sizes.third_level = size;
    }
  }
}

#endif

DETENT_DECL const cache_sizes& processor_caches() noexcept {
  static const cache_sizes found = [] {
    cache_sizes sizes;
#if DETENT_ARCH_X86_64
    read_cache_leaf(4, sizes);
    if (sizes == cache_sizes{}) {
      read_cache_leaf(0x8000001DU, sizes);
    }
#endif
    const auto or_usual = [](std::size_t size, std::size_t usual) {
      return size != 0 ? size : usual;
    };
    sizes.first_level = or_usual(sizes.first_level, std::size_t{32} << 10);
    sizes.second_level = or_usual(sizes.second_level, std::size_t{1} << 20);
    sizes.third_level = or_usual(sizes.third_level, std::size_t{16} << 20);
    return sizes;
  }();
  return found;
}

DETENT_KERNELS_NAMESPACE_END
#endif  // DETENT_DEFINES_KERNELS

#endif  // DETENT_KERNELS_CACHE_SIZES_HPP
