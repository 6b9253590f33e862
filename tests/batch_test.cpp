// SPDX-License-Identifier: BSD-3-Clause
// detent::batch: every architecture that the flags of this unit allow returns the bits of
// detent::reference, under every policy.
#include <doctest/doctest.h>

#include <detent/batch.hpp>

#if DETENT_WITH_XSIMD

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include <detent/reference.hpp>
#include <detent/rounding.hpp>
#include <detent/types.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using detent::full_grid;
using detent::grid;
using detent::narrow_grid;
using detent::quant_params;
using detent::quantize_policy;
using detent::batch::floats;
using detent::batch::integers;
using detent::batch::lane_params;
using test::difference;
using test::random_source;
namespace division = detent::division;
namespace reference = detent::reference;
namespace rounding = detent::rounding;
namespace zero_point_order = detent::zero_point_order;

using u8 = std::uint8_t;
using s8 = std::int8_t;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// f(policy) for every combination.
template <class Function>
void for_each_policy(std::uint64_t seed, Function f) {
  const auto with_rules = [&]<class Division, class Order>(Division, Order) {
    const auto with = [&]<class... Rule>(Rule... rule) {
      (f(quantize_policy<Rule, Division, Order>{rule}), ...);
    };
    with(rounding::half_even{}, rounding::half_up{}, rounding::half_down{},
         rounding::half_toward_zero{}, rounding::half_away_from_zero{}, rounding::up{},
         rounding::down{}, rounding::toward_zero{}, rounding::stochastic{seed});
  };
  with_rules(division::divide{}, zero_point_order::after_rounding{});
  with_rules(division::divide{}, zero_point_order::before_rounding{});
  with_rules(division::reciprocal{}, zero_point_order::after_rounding{});
  with_rules(division::reciprocal{}, zero_point_order::before_rounding{});
}

/// y[i] = f(lanes of x from i, i), where f takes and returns a batch. The last lanes are padding.
template <class Arch, class Out, class In, class Function>
std::vector<Out> map_lanes(const std::vector<In>& x, Function f) {
  constexpr std::size_t lanes = xsimd::batch<In, Arch>::size;
  static_assert(lanes == xsimd::batch<Out, Arch>::size);
  std::vector<In> padded = x;
  padded.resize((x.size() + lanes - 1) / lanes * lanes);
  std::vector<Out> y(padded.size());
  for (std::size_t i = 0; i < padded.size(); i += lanes) {
    const xsimd::batch<Out, Arch> result =
        f(xsimd::batch<In, Arch>::load_unaligned(&padded[i]), std::uint64_t{i});
    result.store_unaligned(&y[i]);
  }
  y.resize(x.size());
  return y;
}

constexpr grid grids[] = {full_grid<u8>, full_grid<s8>, narrow_grid<s8>, {5, 5},
                          {-10, -1},     {0, 15},       {-65536, 65535}};
constexpr float scales[] = {1.0F,           0.1F,        1.0F / 3.0F, 0x1.fffffep-8F,
                            0x1.000002p-7F, 0x1.8p-130F, 0x1p-126F,   0x1.6a09e6p+126F};

const std::vector<float>& special_floats() {
  static const std::vector<float> values = {
      0.0F,
      -0.0F,
      infinity,
      -infinity,
      quiet_nan,
      -quiet_nan,
      std::bit_cast<float>(0x7F800001U),  // a signalling NaN
      std::bit_cast<float>(0xFFFFFFFFU),
      std::numeric_limits<float>::max(),
      std::numeric_limits<float>::lowest(),
      std::numeric_limits<float>::min(),
      -std::numeric_limits<float>::min(),
      std::numeric_limits<float>::denorm_min(),
      -std::numeric_limits<float>::denorm_min(),
      1e-40F,
      0.49999997F,
      -0.49999997F,
      8388607.5F,
      8388608.0F,
      -8388609.0F,
      2147483520.0F,
      2147483648.0F,
      -2147483648.0F,
      -2147483904.0F,
      4294967296.0F,
      1e20F,
      -1e20F,
  };
  return values;
}

/// Ties, their neighbours, whole steps, special values, random bits.
std::vector<float> hard_inputs(random_source& random, float scale, grid levels) {
  std::vector<float> x = special_floats();
  const int reach = levels.qmax - levels.qmin + 3;
  for (int i = 0; i < 60; ++i) {
    const auto k = static_cast<float>(random.integer(-reach, reach));
    const float tie = (k + 0.5F) * scale;
    x.insert(x.end(), {tie, std::nextafter(tie, -infinity), std::nextafter(tie, infinity),
                       k * scale, random.any_float(), random.real(-300.0F, 300.0F) * scale});
  }
  return x;
}

std::int32_t any_int32(random_source& random) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(random.bits())) >>
         random.integer(0, 31);
}

/// Element indices that carry from the lower half of 64 bits to the upper one, wrap, or neither.
std::uint64_t any_index(random_source& random) {
  constexpr std::uint64_t special[] = {0, 0xFFFFFFFDU, 0xFFFFFFFFFFFFFFFDU};
  return random.chance(50) ? special[random.size(0, 2)] : random.bits();
}

quant_params any_params(random_source& random, float scale, grid levels) {
  const std::int32_t zero_points[] = {levels.qmin, levels.qmax,
                                      random.integer(levels.qmin, levels.qmax)};
  return {scale, zero_points[random.size(0, 2)]};
}

/// Parameters of `lanes` lanes: all the same, or different in each.
struct lane_values {
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;

  lane_values(std::size_t lanes, quant_params p)
      : scales(lanes, p.scale), zero_points(lanes, p.zero_point) {}
  lane_values(std::size_t lanes, random_source& random, grid levels) {
    for (std::size_t i = 0; i < lanes; ++i) {
      const quant_params p = any_params(random, random.real(0.001F, 2.0F), levels);
      scales.push_back(p.scale);
      zero_points.push_back(p.zero_point);
    }
  }
  template <class Arch>
  [[nodiscard]] lane_params<Arch> batch() const {
    return {floats<Arch>::load_unaligned(scales.data()),
            integers<Arch>::load_unaligned(zero_points.data())};
  }
  /// Those of element i.
  [[nodiscard]] quant_params operator[](std::size_t i) const {
    return {scales[i % scales.size()], zero_points[i % scales.size()]};
  }
};

template <class Arch, class Policy>
void check_quantize(const std::vector<float>& x, const lane_values& values, grid levels,
                    const Policy& policy, std::uint64_t index) {
  std::vector<std::int32_t> expected(x.size());
  std::vector<float> expected_real(x.size());
  std::vector<std::int32_t> expected_grid(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const quant_params p = values[i];
    expected[i] = reference::quantize(x[i], p, levels, policy, index + i);
    expected_real[i] = reference::dequantize(expected[i], p);
    expected_grid[i] = reference::to_grid(x[i], p.zero_point, levels, policy, index + i);
  }
  const lane_params<Arch> p = values.batch<Arch>();
  using lanes = floats<Arch>;
  const auto quantize = [&](const lanes& v, std::uint64_t i) {
    return detent::batch::quantize(v, p, levels, policy, index + i);
  };
  const auto fake_quantize = [&](const lanes& v, std::uint64_t i) {
    return detent::batch::fake_quantize(v, p, levels, policy, index + i);
  };
  const auto clamp_round = [&](const lanes& v, std::uint64_t i) {
    return detent::batch::clamp_round(v, p.zero_point, levels, policy, index + i);
  };
  CHECK(difference(map_lanes<Arch, std::int32_t>(x, quantize), expected) == "");
  CHECK(difference(map_lanes<Arch, float>(x, fake_quantize), expected_real) == "");
  CHECK(difference(map_lanes<Arch, std::int32_t>(x, clamp_round), expected_grid) == "");
}

template <class Arch, class Policy>
void check_requantize(const std::vector<std::int32_t>& acc, const lane_values& values, grid levels,
                      const Policy& policy, std::uint64_t index) {
  std::vector<std::int32_t> expected(acc.size());
  for (std::size_t i = 0; i < acc.size(); ++i) {
    const quant_params p = values[i];
    expected[i] = reference::requantize(acc[i], p.scale, p.zero_point, levels, policy, index + i);
  }
  const lane_params<Arch> p = values.batch<Arch>();
  const auto requantize = [&](const integers<Arch>& v, std::uint64_t i) {
    return detent::batch::requantize(v, p, levels, policy, index + i);
  };
  CHECK(difference(map_lanes<Arch, std::int32_t>(acc, requantize), expected) == "");
}

// The architectures that the flags of this unit allow, none where they do not.
struct none {};
#if XSIMD_WITH_SSE2
using sse2 = xsimd::sse2;
#else
using sse2 = xsimd::default_arch;
#endif
#if XSIMD_WITH_SSE4_1
using sse4 = xsimd::sse4_1;
#else
using sse4 = none;
#endif
#if XSIMD_WITH_AVX
using avx = xsimd::avx;
#else
using avx = none;
#endif
#if XSIMD_WITH_FMA3_AVX2
using avx2 = xsimd::fma3<xsimd::avx2>;
#else
using avx2 = none;
#endif
#if XSIMD_WITH_AVX512BW
using avx512 = xsimd::avx512bw;
#else
using avx512 = none;
#endif

template <class Arch>
inline constexpr bool available = !std::is_same_v<Arch, none>;
using widest = std::conditional_t<
    available<avx512>, avx512,
    std::conditional_t<available<avx2>, avx2, std::conditional_t<available<sse4>, sse4, sse2>>>;

/// f(architecture) for each of them.
template <class Function>
void for_each_arch(Function f) {
  const auto call = [&]<class... Arch>(Arch... arch) {
    const auto call_one = [&]<class One>(One one) {
      if constexpr (available<One>) {
        INFO(One::name());
        f(one);
      }
    };
    (call_one(arch), ...);
  };
  call(sse2{}, sse4{}, avx{}, avx2{}, avx512{});
}

/// f(architecture, policy): all policies on the widest architecture, for the time that it takes to
/// compile them, and two that share no rule on the others.
template <class Function>
void for_each_arch_and_policy(std::uint64_t seed, Function f) {
  for_each_arch([&]<class Arch>(Arch arch) {
    const auto call = [&]<class Policy>(const Policy& policy) {
      INFO(typeid(Policy).name());
      f(arch, policy);
    };
    if constexpr (std::is_same_v<Arch, widest>) {
      for_each_policy(seed, call);
    } else {
      call(quantize_policy<>{});
      call(quantize_policy<rounding::stochastic, division::reciprocal,
                           zero_point_order::before_rounding>{{seed}});
    }
  });
}

}  // namespace

TEST_CASE("batch: quantize, fake_quantize and clamp_round under every policy") {
  random_source random(1);
  INFO("seed ", random.seed());
  for_each_arch_and_policy(random.bits(), [&]<class Arch, class Policy>(Arch,
                                                                        const Policy& policy) {
    for (const grid levels : grids) {
      for (const float scale : scales) {
        const quant_params p = any_params(random, scale, levels);
        INFO("grid ", levels.qmin, "..", levels.qmax, " zero point ", p.zero_point, " scale ",
             scale);
        check_quantize<Arch>(hard_inputs(random, scale, levels), {floats<Arch>::size, p}, levels,
                             policy, any_index(random));
      }
      INFO("grid ", levels.qmin, "..", levels.qmax, ", parameters of lanes");
      check_quantize<Arch>(hard_inputs(random, 1.0F, levels), {floats<Arch>::size, random, levels},
                           levels, policy, any_index(random));
    }
  });
}

TEST_CASE("batch: requantize under every policy") {
  random_source random(2);
  INFO("seed ", random.seed());
  constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t smallest = std::numeric_limits<std::int32_t>::min();
  for_each_arch_and_policy(random.bits(), [&]<class Arch, class Policy>(Arch,
                                                                        const Policy& policy) {
    for (const grid levels : grids) {
      for (const float multiplier : {0.5F, 0.1F, 0.75F, 0x1p-24F, 0x1p-25F, 1e-45F, 3e38F}) {
        std::vector<std::int32_t> acc = {0,        1,        -1,       largest,  largest - 1,
                                         smallest, 16777217, 16777219, -16777217};
        for (int i = 0; i < 100; ++i) {
          acc.push_back(any_int32(random));
        }
        const quant_params p = any_params(random, multiplier, levels);
        INFO("grid ", levels.qmin, "..", levels.qmax, " zero point ", p.zero_point, " multiplier ",
             multiplier);
        check_requantize<Arch>(acc, {integers<Arch>::size, p}, levels, policy, any_index(random));
        check_requantize<Arch>(acc, {integers<Arch>::size, random, levels}, levels, policy,
                               any_index(random));
      }
    }
  });
}

TEST_CASE("batch: the default policy is the canonical quantizer") {
  random_source random(3);
  INFO("seed ", random.seed());
  for_each_arch([&]<class Arch>(Arch) {
    const quant_params p{0.1F, 100};
    std::vector<float> x = hard_inputs(random, p.scale, full_grid<u8>);
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 4099) {
      x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
    std::vector<std::int32_t> expected(x.size());
    std::transform(x.begin(), x.end(), expected.begin(),
                   [&](float v) { return reference::quantize(v, p, full_grid<u8>); });
    const auto quantize = [&](const floats<Arch>& v, std::uint64_t) {
      return detent::batch::quantize(v, p, full_grid<u8>);
    };
    CHECK(difference(map_lanes<Arch, std::int32_t>(x, quantize), expected) == "");

    std::vector<std::int32_t> acc(1000);
    std::generate(acc.begin(), acc.end(), [&] { return any_int32(random); });
    expected.resize(acc.size());
    std::transform(acc.begin(), acc.end(), expected.begin(), [&](std::int32_t v) {
      return reference::requantize(v, p.scale, p.zero_point, full_grid<u8>);
    });
    const auto requantize = [&](const integers<Arch>& v, std::uint64_t) {
      return detent::batch::requantize(v, p, full_grid<u8>);
    };
    CHECK(difference(map_lanes<Arch, std::int32_t>(acc, requantize), expected) == "");
  });
}

TEST_CASE("batch: 4096 floats on each side of each half step of a small grid") {
  std::vector<float> x;
  for (int halves = -9; halves <= 9; ++halves) {
    const auto middle = std::bit_cast<std::uint32_t>(static_cast<float>(std::abs(halves)) * 0.5F);
    for (std::uint32_t step = 0; step <= 8192; ++step) {
      const auto near = std::bit_cast<float>(middle < 4096 ? step : middle - 4096 + step);
      x.push_back(halves < 0 ? -near : near);
    }
  }
  constexpr grid levels{-6, 6};
  for_each_arch_and_policy(5, [&]<class Arch, class Policy>(Arch, const Policy& policy) {
    std::vector<std::int32_t> expected(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      expected[i] = reference::to_grid(x[i], 1, levels, policy, i);
    }
    const auto clamp_round = [&](const floats<Arch>& v, std::uint64_t i) {
      return detent::batch::clamp_round(v, 1, levels, policy, i);
    };
    CHECK(difference(map_lanes<Arch, std::int32_t>(x, clamp_round), expected) == "");
  });
}

TEST_CASE("batch: dequantize") {
  random_source random(4);
  INFO("seed ", random.seed());
  for_each_arch([&]<class Arch>(Arch) {
    for (const grid levels : {full_grid<u8>, full_grid<s8>, grid{-65536, 65535}}) {
      std::vector<std::int32_t> q;
      for (std::int32_t value = levels.qmin; value <= levels.qmax; ++value) {
        q.push_back(value);
      }
      const auto check = [&](const lane_values& values) {
        std::vector<float> expected(q.size());
        for (std::size_t i = 0; i < q.size(); ++i) {
          expected[i] = reference::dequantize(q[i], values[i]);
        }
        const lane_params<Arch> p = values.batch<Arch>();
        const auto dequantize = [&](const integers<Arch>& v, std::uint64_t) {
          return detent::batch::dequantize(v, p);
        };
        CHECK(difference(map_lanes<Arch, float>(q, dequantize), expected) == "");
      };
      check({floats<Arch>::size, random, levels});
      for (const float scale : scales) {
        check({floats<Arch>::size, any_params(random, scale, levels)});
      }
    }
  });
}

namespace {

template <class Arch, class Q>
void check_store() {
  constexpr std::size_t lanes = integers<Arch>::size;
  constexpr Q untouched = 85;
  for (std::size_t offset = 0; offset < 5; ++offset) {
    for (std::int32_t first = full_grid<Q>.qmin;
         first + static_cast<std::int32_t>(lanes) - 1 <= full_grid<Q>.qmax; ++first) {
      std::int32_t values[lanes];
      std::vector<Q> expected(lanes + 8, untouched);
      for (std::size_t i = 0; i < lanes; ++i) {
        values[i] = first + static_cast<std::int32_t>(i);
        expected[offset + i] = static_cast<Q>(values[i]);
      }
      std::vector<Q> out(expected.size(), untouched);
      detent::batch::store_8bit(&out[offset], integers<Arch>::load_unaligned(values));
      CHECK(difference(out, expected) == "");
    }
  }
}

}  // namespace

TEST_CASE("batch: store_8bit writes its bytes and no other") {
  for_each_arch([]<class Arch>(Arch) {
    check_store<Arch, u8>();
    check_store<Arch, s8>();
  });
}

TEST_CASE("batch: a call names no architecture") {
  // What users write: the default architecture, parameters and policies as temporaries.
  const xsimd::batch<float> x(2.5F);
  const auto first = [](const auto& b) { return b.get(0); };
  CHECK(first(detent::batch::quantize(x, {1.0F, 3}, full_grid<u8>)) == 5);
  CHECK(first(detent::batch::quantize(x, {1.0F, 3}, full_grid<u8>,
                                      quantize_policy<rounding::half_up>{})) == 6);
  CHECK(first(detent::batch::clamp_round(x, 3, full_grid<u8>)) == 5);
  CHECK(first(detent::batch::fake_quantize(x, {1.0F, 3}, full_grid<u8>)) == 2.0F);
  const xsimd::batch<std::int32_t> q(5);
  CHECK(first(detent::batch::dequantize(q, {0.5F, 3})) == 1.0F);
  CHECK(first(detent::batch::requantize(q, {0.5F, 3}, full_grid<u8>)) == 5);
}

#else

TEST_CASE("batch: without xsimd the header compiles") {}

#endif  // DETENT_WITH_XSIMD
