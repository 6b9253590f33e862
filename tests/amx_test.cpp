// SPDX-License-Identifier: BSD-3-Clause
// The AMX emulator against plain loops, and against the processor where it has AMX; what the AMX
// kernels do with tiles: how often they load and store them, and that they give them back.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "amx_emulator.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

#if DETENT_KERNELS_AMX

namespace {

using detent::kernels::tile_configuration;
using outcome = test::amx_machine::outcome;

/// The instructions, with rdi as the base and rsi as the stride where there is memory.
struct instruction {
  std::vector<std::uint8_t> code;

  static instruction ldtilecfg() { return {{0xC4, 0xE2, 0x78, 0x49, 0x07}}; }
  static instruction sttilecfg() { return {{0xC4, 0xE2, 0x79, 0x49, 0x07}}; }
  static instruction tilerelease() { return {{0xC4, 0xE2, 0x78, 0x49, 0xC0}}; }
  static instruction tilezero(int tile) { return {{0xC4, 0xE2, 0x7B, 0x49, modrm(3, tile, 0)}}; }
  static instruction tileloadd(int tile) {
    return {{0xC4, 0xE2, 0x7B, 0x4B, modrm(0, tile, 4), 0x37}};
  }
  static instruction tileloaddt1(int tile) {
    return {{0xC4, 0xE2, 0x79, 0x4B, modrm(0, tile, 4), 0x37}};
  }
  static instruction tilestored(int tile) {
    return {{0xC4, 0xE2, 0x7A, 0x4B, modrm(0, tile, 4), 0x37}};
  }
  /// `prefix`: 0 unsigned times unsigned, 1 unsigned times signed, 2 signed times unsigned,
  /// 3 signed times signed.
  static instruction product(int prefix, int sum, int left, int right) {
    return {{0xC4, 0xE2, static_cast<std::uint8_t>((~right & 0xF) << 3 | prefix), 0x5E,
             modrm(3, sum, left)}};
  }

 private:
  static std::uint8_t modrm(int mod, int reg, int rm) {
    return static_cast<std::uint8_t>(mod << 6 | reg << 3 | rm);
  }
};

outcome run(test::amx_machine& machine, const instruction& i, const void* memory = nullptr,
            std::uint64_t stride = 0) {
  std::uint64_t registers[16] = {};
  registers[7] = reinterpret_cast<std::uintptr_t>(memory);
  registers[6] = stride;
  const std::uint8_t* rip = i.code.data();
  const outcome done = machine.execute(rip, registers);
  if (done == outcome::executed) {
    CHECK(rip == i.code.data() + i.code.size());
  } else {
    CHECK(rip == i.code.data());
  }
  return done;
}

tile_configuration shapes(std::size_t m, std::size_t n, std::size_t k) {
  tile_configuration c;
  c.palette = 1;
  c.set(0, m, 4 * n);
  c.set(1, m, k);
  c.set(2, k / 4, 4 * n);
  return c;
}

struct random_tiles {
  std::size_t m, n, k;
  std::vector<std::uint8_t> left, right;
  std::vector<std::int32_t> sums;

  explicit random_tiles(test::random_source& random)
      : m(static_cast<std::size_t>(random.integer(1, 16))),
        n(static_cast<std::size_t>(random.integer(1, 16))),
        k(static_cast<std::size_t>(random.integer(1, 16)) * 4),
        left(random.integers<std::uint8_t>(m * k)),
        right(random.integers<std::uint8_t>(k * n)),
        sums(m * n) {
    for (std::int32_t& sum : sums) {
      sum = static_cast<std::int32_t>(random.bits());
    }
  }
};

TEST_CASE("emulated products are those of plain loops, modulo 2^32") {
  test::random_source random(61);
  INFO("seed ", random.seed());
  for (int round = 0; round < 300; ++round) {
    const random_tiles t(random);
    for (const int signs : {0, 1, 2, 3}) {
      test::amx_machine machine;
      const tile_configuration c = shapes(t.m, t.n, t.k);
      REQUIRE(run(machine, instruction::ldtilecfg(), &c) == outcome::executed);
      std::vector<std::int32_t> sums = t.sums;
      REQUIRE(run(machine, instruction::tileloadd(0), sums.data(), 4 * t.n) == outcome::executed);
      REQUIRE(run(machine, instruction::tileloaddt1(1), t.left.data(), t.k) == outcome::executed);
      REQUIRE(run(machine, instruction::tileloadd(2), t.right.data(), 4 * t.n) ==
              outcome::executed);
      REQUIRE(run(machine, instruction::product(signs, 0, 1, 2)) == outcome::executed);
      REQUIRE(run(machine, instruction::tilestored(0), sums.data(), 4 * t.n) == outcome::executed);
      const bool left_signed = signs >= 2;
      const bool right_signed = signs == 1 || signs == 3;
      for (std::size_t i = 0; i < t.m; ++i) {
        for (std::size_t j = 0; j < t.n; ++j) {
          auto expected = static_cast<std::uint32_t>(t.sums[i * t.n + j]);
          for (std::size_t k = 0; k < t.k; ++k) {
            const std::uint8_t a = t.left[i * t.k + k];
            const std::uint8_t b = t.right[(k / 4 * t.n + j) * 4 + k % 4];
            const int x = left_signed ? static_cast<std::int8_t>(a) : a;
            const int y = right_signed ? static_cast<std::int8_t>(b) : b;
            expected += static_cast<std::uint32_t>(x * y);
          }
          REQUIRE(sums[i * t.n + j] == static_cast<std::int32_t>(expected));
        }
      }
      CHECK(machine.counters.loads == 3);
      CHECK(machine.counters.stores == 1);
      CHECK(machine.counters.products == 1);
    }
  }
}

TEST_CASE("what the processor would refuse is a fault that says what it was") {
  test::amx_machine machine;
  const auto fails = [&](const instruction& i, const std::string& message,
                         const void* memory = nullptr) {
    CHECK(run(machine, i, memory, 64) == outcome::fault);
    CHECK(machine.message() == message);
  };
  std::uint8_t memory[2048] = {};
  fails(instruction::tilezero(3), "TILEZERO: no tiles are configured");
  fails(instruction::tileloadd(0), "TILELOADD: no tiles are configured", memory);
  fails(instruction::tilestored(0), "TILESTORED: no tiles are configured", memory);
  fails(instruction::product(1, 0, 1, 2), "TDPBUSD: no tiles are configured");

  tile_configuration c = shapes(5, 3, 12);
  c.set(3, 6, 20);
  REQUIRE(run(machine, instruction::ldtilecfg(), &c) == outcome::executed);
  CHECK(machine.is_configured());
  fails(instruction::tilezero(7), "TILEZERO: tmm7 has no shape");
  fails(instruction::product(1, 0, 1, 1), "TDPBUSD: tmm0, tmm1, tmm1 are not different");
  fails(instruction::product(3, 0, 3, 2),
        "TDPBSSD tmm0(5x12B), tmm3(6x20B), tmm2(3x12B): shapes do not match");
  fails(instruction::product(0, 3, 1, 2),
        "TDPBUUD tmm3(6x20B), tmm1(5x12B), tmm2(3x12B): shapes do not match");

  const auto refuses = [&](auto&& change, const std::string& message) {
    tile_configuration wrong = shapes(5, 3, 12);
    change(wrong);
    fails(instruction::ldtilecfg(), message, &wrong);
  };
  refuses([](tile_configuration& w) { w.palette = 2; },
          "LDTILECFG: the palette is neither 0 nor 1");
  refuses([](tile_configuration& w) { w.reserved[3] = 1; },
          "LDTILECFG: a reserved byte is not zero");
  refuses([](tile_configuration& w) { w.rows[9] = 1; },
          "LDTILECFG: a tile beyond the eighth has a shape");
  refuses([](tile_configuration& w) { w.rows[1] = 17; },
          "LDTILECFG: a tile has more than 16 rows or 64 bytes a row");
  refuses([](tile_configuration& w) { w.row_bytes[1] = 0; },
          "LDTILECFG: a tile has rows without bytes, or bytes without rows");
  CHECK(machine.configuration().rows[3] == 6);  // none of those changed anything

  tile_configuration stored;
  REQUIRE(run(machine, instruction::sttilecfg(), &stored) == outcome::executed);
  CHECK(std::memcmp(&stored, &c, sizeof c) == 0);
  REQUIRE(run(machine, instruction::tilerelease()) == outcome::executed);
  CHECK(!machine.is_configured());
  CHECK(run(machine, {{0x0F, 0x0B, 0, 0, 0, 0}}) == outcome::not_amx);           // ud2
  CHECK(run(machine, {{0xC4, 0xE2, 0x79, 0x18, 0x07, 0}}) == outcome::not_amx);  // vbroadcastss
  CHECK(run(machine, {{0xC4, 0xE2, 0xFB, 0x49, 0xC0, 0}}) == outcome::not_amx);  // W set
}

TEST_CASE("every form of a memory operand is understood") {
  std::uint8_t memory[4096];
  for (std::size_t i = 0; i < sizeof memory; ++i) {
    memory[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  }
  tile_configuration c;
  c.palette = 1;
  c.set(1, 3, 8);
  const std::uint64_t at = reinterpret_cast<std::uintptr_t>(memory) + 1024;
  struct form {
    std::vector<std::uint8_t> code;  // tileloadd ..., tmm1
    std::uint64_t base, stride;      // of the expected tile
    std::uint64_t fs = 0;
  };
  std::uint64_t registers[16] = {};
  registers[3] = at;                      // rbx
  registers[4] = at + 64;                 // rsp
  registers[5] = at + 128;                // rbp
  registers[12] = at + 192;               // r12
  registers[13] = at + 256;               // r13
  registers[1] = 40;                      // rcx
  registers[9] = ~std::uint64_t{0} - 23;  // r9: -24
  const form forms[] = {
      {{0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x0B}, at, 40},                          // (rbx,rcx,1)
      {{0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x8B}, at, 160},                         // (rbx,rcx,4)
      {{0xC4, 0xA2, 0x7B, 0x4B, 0x0C, 0x0B}, at, ~std::uint64_t{0} - 23},      // (rbx,r9,1)
      {{0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x23}, at, 0},                           // (rbx), no index
      {{0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x0C}, at + 64, 40},                     // (rsp,rcx,1)
      {{0xC4, 0xE2, 0x7B, 0x4B, 0x4C, 0x0D, 0x10}, at + 128 + 16, 40},         // 16(rbp,rcx,1)
      {{0xC4, 0xC2, 0x7B, 0x4B, 0x0C, 0x0C}, at + 192, 40},                    // (r12,rcx,1)
      {{0xC4, 0xC2, 0x7B, 0x4B, 0x4C, 0x0D, 0xF0}, at + 256 - 16, 40},         // -16(r13,rcx,1)
      {{0xC4, 0xE2, 0x7B, 0x4B, 0x8C, 0x0B, 0x00, 0x01, 0, 0}, at + 256, 40},  // 256(rbx,rcx,1)
      // No base: a displacement of 32 bits, here on top of the segment fs.
      {{0x64, 0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x0D, 0x20, 0, 0, 0}, at + 32, 40, at},
      {{0x64, 0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x0B}, at, 40, 0},
  };
  for (const form& f : forms) {
    INFO("form ", &f - forms);
    test::amx_machine machine;
    REQUIRE(machine.configure(&c) == nullptr);
    const std::uint8_t* rip = f.code.data();
    REQUIRE(machine.execute(rip, registers, f.fs) == outcome::executed);
    CHECK(rip == f.code.data() + f.code.size());
    std::uint8_t tile[3][8];
    REQUIRE(run(machine, instruction::tilestored(1), tile, 8) == outcome::executed);
    for (std::uint64_t r = 0; r < 3; ++r) {
      const auto* row = reinterpret_cast<const std::uint8_t*>(f.base + r * f.stride);
      CHECK(std::memcmp(tile[r], row, 8) == 0);
    }
  }
  // Relative to the instruction behind it.
  struct {
    std::uint8_t code[9] = {0xC4, 0xE2, 0x78, 0x49, 0x05, 0, 0, 0, 0};  // ldtilecfg x(%rip)
    tile_configuration c;
  } relative;
  const auto distance =
      static_cast<std::int32_t>(reinterpret_cast<std::uint8_t*>(&relative.c) - (relative.code + 9));
  std::memcpy(relative.code + 5, &distance, sizeof distance);
  relative.c = c;
  test::amx_machine machine;
  const std::uint8_t* rip = relative.code;
  REQUIRE(machine.execute(rip, registers) == outcome::executed);
  CHECK(machine.configuration().rows[1] == 3);
}

bool amx_is_real() {
  return !detent::kernels::amx_is_emulated() &&
         detent::kernels::cpu_supports(detent::target::amx_int8);
}

__attribute__((target("amx-tile,amx-int8"))) void real_product(int signs,
                                                               const tile_configuration& c,
                                                               const random_tiles& t,
                                                               std::int32_t* sums) {
  __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm0" ::"r"(sums), "r"(4 * t.n) : "memory");
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm1" ::"r"(t.left.data()), "r"(t.k) : "memory");
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" ::"r"(t.right.data()), "r"(4 * t.n) : "memory");
  switch (signs) {
    case 0:
      __asm__ volatile("tdpbuud %%tmm2, %%tmm1, %%tmm0" ::: "memory");
      break;
    case 1:
      __asm__ volatile("tdpbusd %%tmm2, %%tmm1, %%tmm0" ::: "memory");
      break;
    case 2:
      __asm__ volatile("tdpbsud %%tmm2, %%tmm1, %%tmm0" ::: "memory");
      break;
    default:
      __asm__ volatile("tdpbssd %%tmm2, %%tmm1, %%tmm0" ::: "memory");
  }
  __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(sums), "r"(4 * t.n) : "memory");
  __asm__ volatile("tilerelease" ::: "memory");
}

TEST_CASE("the emulator and the processor agree") {
  if (!amx_is_real()) {
    MESSAGE("skipped: this processor has no AMX, or it is emulated");
    return;
  }
  test::random_source random(62);
  INFO("seed ", random.seed());
  for (int round = 0; round < 3000; ++round) {
    const random_tiles t(random);
    const tile_configuration c = shapes(t.m, t.n, t.k);
    for (const int signs : {0, 1, 2, 3}) {
      std::vector<std::int32_t> real = t.sums;
      real_product(signs, c, t, real.data());
      test::amx_machine machine;
      std::vector<std::int32_t> emulated = t.sums;
      REQUIRE(machine.configure(&c) == nullptr);
      run(machine, instruction::tileloadd(0), emulated.data(), 4 * t.n);
      run(machine, instruction::tileloadd(1), t.left.data(), t.k);
      run(machine, instruction::tileloadd(2), t.right.data(), 4 * t.n);
      run(machine, instruction::product(signs, 0, 1, 2));
      run(machine, instruction::tilestored(0), emulated.data(), 4 * t.n);
      REQUIRE(emulated == real);
    }
  }
}

/// A product of m x n x k on the AMX kernels.
template <class A>
std::vector<std::int32_t> multiply(std::size_t m, std::size_t n, std::size_t k) {
  test::random_source random(63);
  const std::vector<A> a = random.integers<A>(m * k);
  const std::vector<std::int8_t> w = random.integers<std::int8_t>(k * n);
  const detent::packed_weights weights =
      detent::pack_weights(detent::matrix_view<const std::int8_t>(w.data(), k, n));
  std::vector<std::int32_t> c(m * n);
  detent::gemm(detent::matrix_view<const A>(a.data(), m, k), weights,
               detent::matrix_view<std::int32_t>(c.data(), m, n));
  return c;
}

bool use_amx() {
  for (const detent::target t : test::targets_under_test()) {
    if (t == detent::target::amx_int8) {
      detent::set_target(t);
      return true;
    }
  }
  MESSAGE("skipped: target amx_int8 is not available");
  return false;
}

TEST_CASE("a product loads one tile for each product of tiles and stores none between steps") {
  if (!detent::kernels::amx_is_emulated()) {
    MESSAGE("skipped: only the emulator counts instructions");
    return;
  }
  const test::target_restorer restorer;
  REQUIRE(use_amx());
  const auto counted = [](auto&& run) {
    test::this_thread_amx().counters = {};
    run();
    return test::this_thread_amx().counters;
  };
  const auto check = [](const test::amx_counters& found, std::size_t blocks, std::size_t steps) {
    CHECK(found.products == blocks * 4 * steps);
    CHECK(static_cast<double>(found.loads) <= 1.1 * static_cast<double>(found.products));
    CHECK(found.stores == blocks * 4);
    CHECK(found.zeros == blocks * 4);
  };
  check(counted([] { multiply<std::uint8_t>(512, 512, 512); }), 256, 8);
  check(counted([] { multiply<std::int8_t>(512, 512, 512); }), 256, 8);
  // k in steps of 36, and one that goes back to where a whole step begins.
  check(counted([] { multiply<std::uint8_t>(64, 64, 72); }), 4, 2);
  check(counted([] { multiply<std::uint8_t>(64, 64, 147); }), 4, 3);
}

__attribute__((target("amx-tile"))) tile_configuration current_configuration() {
  tile_configuration c;
  __asm__ volatile("sttilecfg %0" : "=m"(c)::"memory");
  return c;
}

TEST_CASE("kernels release their tiles") {
  const test::target_restorer restorer;
  if (!use_amx()) {
    return;
  }
  for (const unsigned m : {1U, 16U, 17U, 32U, 40U}) {
    multiply<std::uint8_t>(m, 48, 100);
    CHECK(current_configuration().palette == 0);
  }
}

__attribute__((target("amx-tile"))) void set_host_tiles(const tile_configuration& c,
                                                        const std::uint8_t* bytes) {
  __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm0" ::"r"(bytes), "r"(64L) : "memory");
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm5" ::"r"(bytes + 1024), "r"(64L) : "memory");
}
__attribute__((target("amx-tile"))) void get_host_tiles(std::uint8_t* bytes) {
  __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(bytes), "r"(64L) : "memory");
  __asm__ volatile("tilestored %%tmm5, (%0,%1,1)" ::"r"(bytes + 1024), "r"(64L) : "memory");
  __asm__ volatile("tilerelease" ::: "memory");
}

TEST_CASE("tiles of the caller survive a product") {
  const test::target_restorer restorer;
  if (!use_amx()) {
    return;
  }
  tile_configuration c;
  c.palette = 1;
  c.set(0, 16, 64);
  c.set(5, 7, 20);
  test::random_source random(64);
  const std::vector<std::uint8_t> bytes = random.integers<std::uint8_t>(2048);
  const std::vector<std::int32_t> expected = multiply<std::uint8_t>(40, 48, 100);
  set_host_tiles(c, bytes.data());
  const std::vector<std::int32_t> found = multiply<std::uint8_t>(40, 48, 100);
  const tile_configuration kept = current_configuration();
  std::vector<std::uint8_t> after(2048);
  get_host_tiles(after.data());
  CHECK(found == expected);
  CHECK(std::memcmp(&kept, &c, sizeof c) == 0);
  CHECK(std::memcmp(after.data(), bytes.data(), 1024) == 0);
  for (std::size_t r = 0; r < 7; ++r) {
    CHECK(std::memcmp(&after[1024 + r * 64], &bytes[1024 + r * 64], 20) == 0);
  }
}

}  // namespace

#else

TEST_CASE("AMX kernels") { MESSAGE("skipped: AMX kernels are not compiled here"); }

#endif  // DETENT_KERNELS_AMX
