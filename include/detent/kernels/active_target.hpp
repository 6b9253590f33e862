// SPDX-License-Identifier: BSD-3-Clause
// Which targets are compiled into the program, and which of them is in use: one switch for all
// families of kernels.
#ifndef DETENT_KERNELS_ACTIVE_TARGET_HPP
#define DETENT_KERNELS_ACTIVE_TARGET_HPP

#include <atomic>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Whether kernels for the target are part of this program. Thread-safe.
[[nodiscard]] DETENT_DECL bool is_compiled(target t) noexcept;

/// The target in use as an integer, or no_target until the first request chooses one. There is one
/// slot per program and ABI namespace.
[[nodiscard]] DETENT_DECL std::atomic<int>& active_target_slot() noexcept;
/// The value of active_target_slot() before a target is chosen.
inline constexpr int no_target = -1;

DETENT_KERNELS_NAMESPACE_END

#if DETENT_DEFINES_KERNELS
#include <detent/kernels/cpuid.hpp>
#include <detent/kernels/target_rows.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL bool is_compiled(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise) \
  case target::id:                                   \
    return true;
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return false;
  }
}

DETENT_DECL std::atomic<int>& active_target_slot() noexcept {
  static std::atomic<int> slot{no_target};
  return slot;
}

DETENT_KERNELS_NAMESPACE_END
#endif  // DETENT_DEFINES_KERNELS

#endif  // DETENT_KERNELS_ACTIVE_TARGET_HPP
