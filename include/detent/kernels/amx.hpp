// SPDX-License-Identifier: BSD-3-Clause
// AMX tiles: configuration, permission, and the instructions that kernels/gemm_amx-inl.hpp needs.
//
// The instructions are written as asm statements with a memory clobber: the intrinsics of GCC 12
// declare less memory read than the instructions read, so that stores to a configuration or to
// copied rows are deleted.
#ifndef DETENT_KERNELS_AMX_HPP
#define DETENT_KERNELS_AMX_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

// Linux only: other systems have other ways to ask for the state's permission.
#if DETENT_ARCH_X86_64 && defined(__linux__) && defined(__GNUC__)
#define DETENT_KERNELS_AMX 1
#else
#define DETENT_KERNELS_AMX 0
#endif

#if DETENT_KERNELS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

/// True while AMX instructions run through an emulator (a handler of SIGILL, in tests). Set it
/// before anything asks cpu_supports() or uses a kernel: then target::amx_int8 counts as supported
/// wherever the rest of it is, and the system is not asked for permission to use real tiles.
[[nodiscard]] DETENT_DECL std::atomic<bool>& amx_is_emulated() noexcept;

/// Asks the system to let this process use AMX tiles. It may refuse: an old kernel, or a signal
/// stack that is too small for them.
[[nodiscard]] DETENT_DECL bool request_amx_permission() noexcept;

#if DETENT_DEFINES_KERNELS

DETENT_DECL std::atomic<bool>& amx_is_emulated() noexcept {
  static std::atomic<bool> is_emulated{false};
  return is_emulated;
}

DETENT_DECL bool request_amx_permission() noexcept {
#if DETENT_KERNELS_AMX
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // the component of the state
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

#endif

#if DETENT_KERNELS_AMX

inline constexpr std::size_t tile_count = 8;
inline constexpr std::size_t tile_rows = 16;
inline constexpr std::size_t tile_row_bytes = 64;

/// What ldtilecfg reads. Rows and bytes of unused tiles are 0.
struct alignas(64) tile_configuration {
  std::uint8_t palette = 0;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  constexpr void set(std::size_t tile, std::size_t row_count, std::size_t bytes) noexcept {
    rows[tile] = static_cast<std::uint8_t>(row_count);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};
static_assert(sizeof(tile_configuration) == 64);

#endif  // DETENT_KERNELS_AMX

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_AMX_HPP
