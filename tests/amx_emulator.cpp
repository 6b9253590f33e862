// SPDX-License-Identifier: BSD-3-Clause
#include "amx_emulator.hpp"

#if DETENT_KERNELS_AMX

#include <cstdio>
#include <cstring>

#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <detent/detent.hpp>

namespace test {
namespace {

using detent::kernels::tile_configuration;
using detent::kernels::tile_count;
using detent::kernels::tile_row_bytes;
using detent::kernels::tile_rows;

/// An instruction of the map 0F38 in three-byte VEX encoding: all of AMX is.
struct vex_instruction {
  bool is_valid = false;
  std::uint8_t opcode = 0;
  unsigned prefix = 0;  // 0: none, 1: 66, 2: F3, 3: F2
  unsigned reg = 0, rm = 0, vvvv = 0;
  bool is_register = false;  // no memory operand
  bool has_sib = false;
  std::uint64_t base = 0;    // of the memory operand, with displacement and segment
  std::uint64_t stride = 0;  // the index register
  unsigned scale = 0;        // its shift
  std::size_t size = 0;
};

constexpr unsigned no_prefix = 0;
constexpr unsigned prefix_66 = 1;
constexpr unsigned prefix_f3 = 2;
constexpr unsigned prefix_f2 = 3;

vex_instruction decode(const std::uint8_t* at, const std::uint64_t* registers,
                       std::uint64_t fs_base, std::uint64_t gs_base) {
  vex_instruction i;
  const std::uint8_t* p = at;
  std::uint64_t segment = 0;
  for (; *p == 0x64 || *p == 0x65; ++p) {
    segment = *p == 0x64 ? fs_base : gs_base;
  }
  if (p[0] != 0xC4 || (p[1] & 0x1F) != 0x02 || (p[2] & 0x84) != 0) {
    return i;  // not VEX, another map, or W or L set
  }
  const bool high_reg = (p[1] & 0x80) == 0;  // the three are stored inverted
  const bool high_index = (p[1] & 0x40) == 0;
  const bool high_base = (p[1] & 0x20) == 0;
  i.vvvv = ~(p[2] >> 3) & 0x0F;
  i.prefix = p[2] & 0x03;
  i.opcode = p[3];
  if (i.opcode != 0x49 && i.opcode != 0x4B && i.opcode != 0x5E) {
    return i;
  }
  const std::uint8_t modrm = p[4];
  p += 5;
  const unsigned mod = modrm >> 6;
  i.reg = (modrm >> 3 & 7) | (high_reg ? 8 : 0);
  i.rm = (modrm & 7) | (high_base ? 8 : 0);
  i.is_register = mod == 3;
  if (!i.is_register) {
    bool has_base = true;
    bool is_relative = false;
    unsigned base = i.rm;
    if ((modrm & 7) == 4) {
      const std::uint8_t sib = *p++;
      i.has_sib = true;
      i.scale = sib >> 6;
      const unsigned index = (sib >> 3 & 7) | (high_index ? 8 : 0);
      i.stride = index == 4 ? 0 : registers[index];
      base = (sib & 7) | (high_base ? 8 : 0);
      has_base = !((sib & 7) == 5 && mod == 0);
    } else if ((modrm & 7) == 5 && mod == 0) {
      is_relative = true;
    }
    std::int64_t displacement = 0;
    if (mod == 1) {
      displacement = static_cast<std::int8_t>(*p++);
    } else if (mod == 2 || is_relative || !has_base) {
      std::int32_t four = 0;
      std::memcpy(&four, p, sizeof four);
      displacement = four;
      p += sizeof four;
    }
    i.base = segment + static_cast<std::uint64_t>(displacement);
    if (is_relative) {
      i.base += reinterpret_cast<std::uintptr_t>(p);
    } else if (has_base) {
      i.base += registers[base];
    }
  }
  i.size = static_cast<std::size_t>(p - at);
  const bool is_known =
      i.opcode == 0x5E   ? i.is_register
      : i.opcode == 0x4B ? !i.is_register && i.has_sib && i.prefix != no_prefix && i.vvvv == 0
      : i.is_register
          ? (i.prefix == no_prefix && i.reg == 0 && (modrm & 7) == 0) ||
                (i.prefix == prefix_f2 && (modrm & 7) == 0)
          : (i.prefix == no_prefix || i.prefix == prefix_66) && (i.reg & 7) == 0 && i.vvvv == 0;
  i.is_valid = is_known;
  return i;
}

}  // namespace

bool amx_machine::configures(const std::uint8_t* rip) noexcept {
  constexpr std::uint64_t none[16] = {};
  const vex_instruction i = decode(rip, none, 0, 0);
  return i.is_valid && i.opcode == 0x49 && !(i.is_register && i.prefix == prefix_f2);
}

amx_machine::outcome amx_machine::fail(const char* what) {
  if (what != message_) {
    std::snprintf(message_, sizeof message_, "%s", what);
  }
  return outcome::fault;
}

const char* amx_machine::configure(const void* bytes) {
  tile_configuration c;
  std::memcpy(&c, bytes, sizeof c);
  if (c.palette == 0) {
    release();
    return nullptr;
  }
  if (c.palette != 1) {
    return "LDTILECFG: the palette is neither 0 nor 1";
  }
  for (const std::uint8_t byte : c.reserved) {
    if (byte != 0) {
      return "LDTILECFG: a reserved byte is not zero";
    }
  }
  for (std::size_t tile = 0; tile < 16; ++tile) {
    if (tile >= tile_count && (c.rows[tile] != 0 || c.row_bytes[tile] != 0)) {
      return "LDTILECFG: a tile beyond the eighth has a shape";
    }
    if (c.rows[tile] > tile_rows || c.row_bytes[tile] > tile_row_bytes) {
      return "LDTILECFG: a tile has more than 16 rows or 64 bytes a row";
    }
    if ((c.rows[tile] == 0) != (c.row_bytes[tile] == 0)) {
      return "LDTILECFG: a tile has rows without bytes, or bytes without rows";
    }
  }
  configuration_ = c;
  std::memset(tiles_, 0, sizeof tiles_);
  return nullptr;
}

void amx_machine::release() {
  configuration_ = {};
  std::memset(tiles_, 0, sizeof tiles_);
}

bool amx_machine::require_tile(const char* name, unsigned tile) {
  if (!is_configured()) {
    std::snprintf(message_, sizeof message_, "%s: no tiles are configured", name);
    return false;
  }
  if (tile >= tile_count || configuration_.rows[tile] == 0) {
    std::snprintf(message_, sizeof message_, "%s: tmm%u has no shape", name, tile);
    return false;
  }
  return true;
}

amx_machine::outcome amx_machine::move(const char* name, unsigned tile, std::uint8_t* memory,
                                       std::uint64_t stride, bool is_store) {
  if (!require_tile(name, tile)) {
    return outcome::fault;
  }
  if (configuration_.row_bytes[tile] % 4 != 0) {
    std::snprintf(message_, sizeof message_, "%s: a row of tmm%u has %u bytes", name, tile,
                  unsigned{configuration_.row_bytes[tile]});
    return outcome::fault;
  }
  for (std::size_t r = 0; r < tile_rows; ++r) {
    if (r < configuration_.rows[tile]) {
      std::uint8_t* row = memory + static_cast<std::ptrdiff_t>(r * stride);
      if (is_store) {
        std::memcpy(row, tiles_[tile][r], configuration_.row_bytes[tile]);
        continue;
      }
      std::memset(tiles_[tile][r], 0, tile_row_bytes);
      std::memcpy(tiles_[tile][r], row, configuration_.row_bytes[tile]);
    } else if (!is_store) {
      std::memset(tiles_[tile][r], 0, tile_row_bytes);
    }
  }
  ++(is_store ? counters.stores : counters.loads);
  return outcome::executed;
}

amx_machine::outcome amx_machine::multiply(unsigned sum, unsigned left, unsigned right,
                                           bool left_signed, bool right_signed) {
  const char* const names[] = {"TDPBUUD", "TDPBUSD", "TDPBSUD", "TDPBSSD"};
  const char* name = names[(left_signed ? 2 : 0) + (right_signed ? 1 : 0)];
  if (!require_tile(name, sum) || !require_tile(name, left) || !require_tile(name, right)) {
    return outcome::fault;
  }
  const tile_configuration& c = configuration_;
  if (sum == left || sum == right || left == right) {
    std::snprintf(message_, sizeof message_, "%s: tmm%u, tmm%u, tmm%u are not different", name, sum,
                  left, right);
    return outcome::fault;
  }
  if (c.rows[sum] != c.rows[left] || c.row_bytes[sum] != c.row_bytes[right] ||
      c.row_bytes[left] != c.rows[right] * 4 || c.row_bytes[right] % 4 != 0) {
    std::snprintf(message_, sizeof message_,
                  "%s tmm%u(%ux%uB), tmm%u(%ux%uB), tmm%u(%ux%uB): shapes do not match", name, sum,
                  unsigned{c.rows[sum]}, unsigned{c.row_bytes[sum]}, left, unsigned{c.rows[left]},
                  unsigned{c.row_bytes[left]}, right, unsigned{c.rows[right]},
                  unsigned{c.row_bytes[right]});
    return outcome::fault;
  }
  const auto value = [](std::uint8_t byte, bool is_signed) {
    return is_signed ? std::int32_t{static_cast<std::int8_t>(byte)} : std::int32_t{byte};
  };
  for (std::size_t m = 0; m < c.rows[sum]; ++m) {
    for (std::size_t n = 0; n < c.row_bytes[sum] / 4U; ++n) {
      std::uint32_t total = 0;
      std::memcpy(&total, &tiles_[sum][m][4 * n], sizeof total);
      for (std::size_t k = 0; k < c.row_bytes[left]; ++k) {
        total +=
            static_cast<std::uint32_t>(value(tiles_[left][m][k], left_signed) *
                                       value(tiles_[right][k / 4][4 * n + k % 4], right_signed));
      }
      std::memcpy(&tiles_[sum][m][4 * n], &total, sizeof total);
    }
  }
  ++counters.products;
  return outcome::executed;
}

amx_machine::outcome amx_machine::execute(const std::uint8_t*& rip, const std::uint64_t* registers,
                                          std::uint64_t fs_base, std::uint64_t gs_base) {
  const vex_instruction i = decode(rip, registers, fs_base, gs_base);
  if (!i.is_valid) {
    return outcome::not_amx;
  }
  auto* memory = reinterpret_cast<std::uint8_t*>(static_cast<std::uintptr_t>(i.base));
  outcome done = outcome::executed;
  if (i.opcode == 0x5E) {
    const bool left_signed = i.prefix == prefix_f2 || i.prefix == prefix_f3;
    const bool right_signed = i.prefix == prefix_f2 || i.prefix == prefix_66;
    done = multiply(i.reg, i.rm, i.vvvv, left_signed, right_signed);
  } else if (i.opcode == 0x4B) {
    const char* const names[] = {"", "TILELOADDT1", "TILESTORED", "TILELOADD"};
    done = move(names[i.prefix], i.reg, memory, i.stride << i.scale, i.prefix == prefix_f3);
  } else if (!i.is_register) {
    if (i.prefix == prefix_66) {
      std::memcpy(memory, &configuration_, sizeof configuration_);
    } else if (const char* wrong = configure(memory); wrong != nullptr) {
      done = fail(wrong);
    }
  } else if (i.prefix == no_prefix) {
    release();
  } else if (require_tile("TILEZERO", i.reg)) {
    std::memset(tiles_[i.reg], 0, sizeof tiles_[i.reg]);
    ++counters.zeros;
  } else {
    done = outcome::fault;
  }
  if (done == outcome::executed) {
    rip += i.size;
  }
  return done;
}

amx_machine& this_thread_amx() {
  static thread_local amx_machine machine;
  return machine;
}

namespace {

bool has_real_configuration = false;
std::size_t configuration_offset = 0;

/// The tile configuration in the state that the signal saved; null if it is that of a processor
/// without tiles, or the initial one.
const void* saved_configuration(const ucontext_t& context) {
  const auto* state = reinterpret_cast<const std::uint8_t*>(context.uc_mcontext.fpregs);
  std::uint64_t present = 0;
  std::memcpy(&present, state + 512, sizeof present);  // XSTATE_BV
  return (present >> 17 & 1) != 0 ? state + configuration_offset : nullptr;
}

void take_real_configuration(amx_machine& machine, const ucontext_t& context) {
  const void* saved = saved_configuration(context);
  if (saved == nullptr) {
    machine.release();
  } else if (std::memcmp(saved, &machine.configuration(), sizeof(tile_configuration)) != 0) {
    machine.configure(saved);  // which the processor has accepted
  }
}

[[noreturn]] void die(const char* what) {
  const char* const lines[] = {"AMX emulator: ", what, "\n"};
  for (const char* line : lines) {
    if (::write(STDERR_FILENO, line, std::strlen(line)) < 0) {
      break;
    }
  }
  ::signal(SIGILL, SIG_DFL);
  ::raise(SIGILL);
  ::_exit(1);
}

void on_illegal_instruction(int /*signal*/, siginfo_t* /*info*/, void* c) {
  auto& context = *static_cast<ucontext_t*>(c);
  greg_t* const g = context.uc_mcontext.gregs;
  constexpr int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                             REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                             REG_R12, REG_R13, REG_R14, REG_R15};
  std::uint64_t registers[16];
  for (int i = 0; i < 16; ++i) {
    registers[i] = static_cast<std::uint64_t>(g[order[i]]);
  }
  amx_machine& machine = this_thread_amx();
  if (has_real_configuration) {
    take_real_configuration(machine, context);
  }
  const auto* const first = reinterpret_cast<const std::uint8_t*>(g[REG_RIP]);
  const std::uint8_t* rip = first;
  unsigned long fs_base = 0;
  unsigned long gs_base = 0;
  constexpr long get_fs = 0x1003;  // ARCH_GET_FS
  constexpr long get_gs = 0x1004;
  syscall(SYS_arch_prctl, get_fs, &fs_base);
  syscall(SYS_arch_prctl, get_gs, &gs_base);
  // A trap costs more than what it stands for: all that follow each other are done in one.
  while (!(has_real_configuration && rip != first && amx_machine::configures(rip))) {
    switch (machine.execute(rip, registers, fs_base, gs_base)) {
      case amx_machine::outcome::executed:
        continue;
      case amx_machine::outcome::not_amx:
        if (rip == first) {
          die("an illegal instruction that is none of AMX");
        }
        break;
      case amx_machine::outcome::fault:
        die(machine.message());
    }
    break;
  }
  g[REG_RIP] = reinterpret_cast<greg_t>(rip);
}

}  // namespace

bool install_amx_emulator() {
  detent::kernels::amx_is_emulated() = true;
  if (!detent::kernels::cpu_supports(detent::target::amx_int8)) {
    return false;
  }
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 24 & 1) != 0) {  // amx-tile
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    has_real_configuration = (low >> 17 & 3) == 3;  // the system saves tiles
  }
  if (has_real_configuration && __get_cpuid_count(0x0D, 17, &eax, &ebx, &ecx, &edx) != 0) {
    configuration_offset = ebx;
  }
  struct sigaction action = {};
  action.sa_sigaction = &on_illegal_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return ::sigaction(SIGILL, &action, nullptr) == 0;
}

}  // namespace test

#endif  // DETENT_KERNELS_AMX
