// SPDX-License-Identifier: BSD-3-Clause
// Which targets there are, which the processor can run, and choosing one.
#include <algorithm>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "for_each_target.hpp"

namespace {

using detent::target;
using detent::kernels::cpu_supports;

constexpr target all_targets[] = {target::portable, target::avx2,        target::avx_vnni,
                                  target::avx512,   target::avx512_vnni, target::amx_int8};

}  // namespace

TEST_CASE("names and numbers of targets") {
  constexpr std::string_view names[] = {"portable", "avx2",        "avx_vnni",
                                        "avx512",   "avx512_vnni", "amx_int8"};
  for (std::size_t i = 0; i < std::size(all_targets); ++i) {
    CHECK(static_cast<std::size_t>(all_targets[i]) == i);
    CHECK(detent::name(all_targets[i]) == names[i]);
  }
  CHECK(detent::name(static_cast<target>(200)) == std::string_view("unknown"));
}

TEST_CASE("a processor that supports a target supports what it builds on") {
  CHECK(cpu_supports(target::portable));
  CHECK((!cpu_supports(target::avx_vnni) || cpu_supports(target::avx2)));
  CHECK((!cpu_supports(target::avx512) || cpu_supports(target::avx2)));
  CHECK((!cpu_supports(target::avx512_vnni) || cpu_supports(target::avx512)));
  CHECK((!cpu_supports(target::amx_int8) || cpu_supports(target::avx512_vnni)));
  CHECK(!cpu_supports(static_cast<target>(200)));
}

#if (defined(__GNUC__) || defined(__clang__)) && DETENT_ARCH_X86_64
TEST_CASE("cpu_supports agrees with the compiler's runtime") {
  __builtin_cpu_init();
  // The runtime knows some of the features of each group: it may say yes where we say no, for a
  // feature it does not know, but no real processor has the one without the other.
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
                    __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0 &&
                    __builtin_cpu_supports("popcnt") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512cd") != 0;
  const bool avx512_vnni = avx512 && __builtin_cpu_supports("avx512vnni") != 0;
  CHECK(cpu_supports(target::avx2) == avx2);
  CHECK(cpu_supports(target::avx512) == avx512);
  CHECK(cpu_supports(target::avx512_vnni) == avx512_vnni);
}
#endif

TEST_CASE("lists of targets") {
  const std::vector<target> compiled = detent::compiled_targets();
  const std::vector<target> available = detent::available_targets();
  REQUIRE(!available.empty());
  CHECK(compiled.front() == target::portable);
  CHECK(available.front() == target::portable);
  CHECK(std::is_sorted(compiled.begin(), compiled.end()));
  CHECK(std::adjacent_find(compiled.begin(), compiled.end()) == compiled.end());
  CHECK(std::includes(compiled.begin(), compiled.end(), available.begin(), available.end()));
  for (const target t : compiled) {
    const bool is_available = std::find(available.begin(), available.end(), t) != available.end();
    CHECK(is_available == cpu_supports(t));
  }
  CHECK(detent::best_target() == available.back());
#if DETENT_WITH_HIGHWAY
  CHECK(compiled.size() == std::size(all_targets));
#else
  CHECK(compiled.size() == (DETENT_WITH_AVX2_WORDS ? 2 : 1));
#endif
}

TEST_CASE("set_target chooses the kernels of that target, in every family") {
  const test::target_restorer restorer;
  for (const target t : detent::available_targets()) {
    detent::set_target(t);
    CHECK(detent::active_target() == t);
    using detent::kernels::statistics_kernels;
    CHECK(&detent::detail::active<statistics_kernels>() == statistics_kernels::of(t));
    using detent::kernels::integer_product_kernels;
    CHECK(&detent::detail::active<integer_product_kernels>() == integer_product_kernels::of(t));
    // It does not change what is best.
    CHECK(detent::best_target() == detent::available_targets().back());
    target seen_elsewhere{};
    std::thread([&] { seen_elsewhere = detent::active_target(); }).join();
    CHECK(seen_elsewhere == t);
  }
}

TEST_CASE("set_target refuses what is not available, and changes nothing") {
  const target before = detent::active_target();
  const std::vector<target> available = detent::available_targets();
  for (const target t : all_targets) {
    if (std::find(available.begin(), available.end(), t) == available.end()) {
      test::check_error(detent::error_kind::unsupported, {"set_target", detent::name(t)},
                        [t] { detent::set_target(t); });
    }
  }
  test::check_error(detent::error_kind::unsupported, {"set_target", "unknown"},
                    [] { detent::set_target(static_cast<target>(200)); });
  CHECK(detent::active_target() == before);
}
