// SPDX-License-Identifier: BSD-3-Clause
// AMX: permission to use tiles, and the configuration that kernels/vector/gemm_amx.hpp loads.
//
// Kernels write the instructions as asm statements with a memory clobber: the intrinsics of GCC 12
// declare less memory read than the instructions read, so that GCC deletes stores to a
// configuration or to copied rows.
#ifndef DETENT_KERNELS_AMX_HPP
#define DETENT_KERNELS_AMX_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

// Linux only: other systems have other ways to ask for permission to use the tiles' state.
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

/// Asks the operating system to let this process use AMX tiles; true if it may. Linux refuses if
/// the kernel is too old or a signal stack is too small for the tiles' state. False on other
/// systems.
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

/// The limits of palette 1: eight tiles of at most 16 rows of 64 bytes.
inline constexpr std::size_t tile_count = 8;
inline constexpr std::size_t tile_rows = 16;
inline constexpr std::size_t tile_row_bytes = 64;

/// The 64-byte operand of ldtilecfg. Tiles that are not used have 0 rows of 0 bytes.
struct alignas(64) tile_configuration {
  std::uint8_t palette = 0;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  /// Gives a tile `row_count` rows of `bytes` bytes.
  constexpr void set(std::size_t tile, std::size_t row_count, std::size_t bytes) noexcept {
    rows[tile] = static_cast<std::uint8_t>(row_count);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};
static_assert(sizeof(tile_configuration) == 64);

#endif  // DETENT_KERNELS_AMX

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_AMX_HPP
