// SPDX-License-Identifier: BSD-3-Clause
// Runs AMX instructions on processors that have none: a handler of SIGILL decodes the instruction
// that was refused, executes it on tiles of the thread, and goes on behind it. The program under
// test is the one that users get, to the byte.
//
// Processors with AMX refuse it, too, as long as the process has not asked for permission. There
// ldtilecfg, sttilecfg and tilerelease are real all the same (they are not part of what needs
// permission); the configuration is then taken from the state that the signal saved.
#ifndef DETENT_TESTS_AMX_EMULATOR_HPP
#define DETENT_TESTS_AMX_EMULATOR_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include <detent/kernels/amx.hpp>

#if DETENT_KERNELS_AMX

namespace test {

/// The instructions a thread has executed.
struct amx_counters {
  std::size_t loads = 0;  // tileloadd and tileloaddt1
  std::size_t stores = 0;
  std::size_t zeros = 0;
  std::size_t products = 0;
};

/// The tiles of one processor, and what executes on them.
class amx_machine {
 public:
  enum class outcome : std::uint8_t { executed, not_amx, fault };

  /// Executes the instruction at `rip`, if it is one of AMX, and moves `rip` behind it. `registers`
  /// are the sixteen general ones in the order of their encoding. What real hardware would refuse
  /// is a fault; message() then says in words what it was.
  outcome execute(const std::uint8_t*& rip, const std::uint64_t* registers,
                  std::uint64_t fs_base = 0, std::uint64_t gs_base = 0);

  /// True where the instruction is ldtilecfg, sttilecfg or tilerelease.
  [[nodiscard]] static bool configures(const std::uint8_t* rip) noexcept;

  [[nodiscard]] bool is_configured() const noexcept { return configuration_.palette != 0; }
  /// What ldtilecfg does with 64 bytes. Null, or what is wrong with them.
  const char* configure(const void* bytes);
  void release();
  [[nodiscard]] const detent::kernels::tile_configuration& configuration() const noexcept {
    return configuration_;
  }
  [[nodiscard]] const char* message() const noexcept { return message_; }

  amx_counters counters;

 private:
  outcome fail(const char* what);
  bool require_tile(const char* name, unsigned tile);
  outcome move(const char* name, unsigned tile, std::uint8_t* memory, std::uint64_t stride,
               bool is_store);
  outcome multiply(unsigned sum, unsigned left, unsigned right, bool left_signed,
                   bool right_signed);

  detent::kernels::tile_configuration configuration_;
  std::uint8_t tiles_[detent::kernels::tile_count][detent::kernels::tile_rows]
                     [detent::kernels::tile_row_bytes] = {};
  char message_[160] = "";
};

/// Installs the handler for the whole process and makes target::amx_int8 available. Call it before
/// anything uses the library. False if this processor cannot run the rest of the kernels.
bool install_amx_emulator();

/// The machine of the calling thread.
amx_machine& this_thread_amx();

}  // namespace test

#endif  // DETENT_KERNELS_AMX
#endif  // DETENT_TESTS_AMX_EMULATOR_HPP
