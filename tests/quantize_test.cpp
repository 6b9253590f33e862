// SPDX-License-Identifier: BSD-3-Clause
// quantize, dequantize and requantize: every target returns the bits of reference.hpp.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"
#include "scales.hpp"
#include "strided.hpp"

namespace {

using detent::channel_quant_params;
using detent::full_grid;
using detent::grid;
using detent::quant_params;
using detent::quantized_type;
using test::difference;
using test::for_each_target;
using test::random_source;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Floats that are special whatever the scale.
const std::vector<float>& special_floats() {
  static const std::vector<float> values = {
      0.0F,
      -0.0F,
      infinity,
      -infinity,
      std::numeric_limits<float>::quiet_NaN(),
      -std::numeric_limits<float>::quiet_NaN(),
      std::bit_cast<float>(0x7F800001U),  // a signalling NaN
      std::bit_cast<float>(0xFFFFFFFFU),
      std::numeric_limits<float>::max(),
      std::numeric_limits<float>::lowest(),
      std::numeric_limits<float>::min(),
      -std::numeric_limits<float>::min(),
      std::numeric_limits<float>::denorm_min(),
      -std::numeric_limits<float>::denorm_min(),
      1e-40F,
      8388608.0F,
      -8388609.0F,
      2147483648.0F,
      -2147483648.0F,
      4294967296.0F,
  };
  return values;
}

// The three operations behind one face: inputs that are hard for them, the call, the definition.

template <quantized_type Q>
struct quantizing {
  using input = float;
  using output = Q;
  using stored = Q;

  /// Ties, their neighbours, whole steps, special values, random bits.
  static std::vector<float> inputs(random_source& random, float scale) {
    std::vector<float> values = special_floats();
    for (int k = -290; k <= 290; ++k) {
      const float tie = (static_cast<float>(k) + 0.5F) * scale;
      values.push_back(tie);
      values.push_back(std::nextafter(tie, -infinity));
      values.push_back(std::nextafter(tie, infinity));
      values.push_back(static_cast<float>(k) * scale);
    }
    for (int i = 0; i < 200; ++i) {
      values.push_back(random.any_float());
      values.push_back(random.real(-300.0F, 300.0F) * scale);
    }
    return values;
  }
  static Q expected(float x, quant_params p, grid levels) {
    return static_cast<Q>(detent::reference::quantize(x, p, levels));
  }
  template <class In, class Out, class Params>
  static void run(In in, Out out, const Params& p, grid levels) {
    detent::quantize(in, out, p, levels);
  }
};

template <quantized_type Q>
struct dequantizing {
  using input = Q;
  using output = float;
  using stored = Q;

  static std::vector<Q> inputs(random_source& random, float) {
    std::vector<Q> values;
    for (int q = full_grid<Q>.qmin; q <= full_grid<Q>.qmax; ++q) {
      values.push_back(static_cast<Q>(q));
    }
    values.push_back(
        static_cast<Q>(random.bits()));  // so that the size is not a multiple of anything
    return values;
  }
  static float expected(Q q, quant_params p, grid) { return detent::reference::dequantize(q, p); }
  template <class In, class Out, class Params>
  static void run(In in, Out out, const Params& p, grid) {
    detent::dequantize(in, out, p);
  }
};

template <quantized_type Q>
struct requantizing {
  using input = std::int32_t;
  using output = Q;
  using stored = Q;

  static std::vector<std::int32_t> inputs(random_source& random, float multiplier) {
    constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
    constexpr std::int32_t smallest = std::numeric_limits<std::int32_t>::min();
    std::vector<std::int32_t> values = {0, 1, -1, largest, largest - 1, smallest, smallest + 1};
    for (int bit = 22; bit < 31; ++bit) {
      // Around where int32 to float begins to round, half way and not.
      for (int near = -3; near <= 3; ++near) {
        values.push_back((1 << bit) + near);
        values.push_back(-(1 << bit) + near);
      }
    }
    for (int k = -290; k <= 290; ++k) {
      const double tie = (k + 0.5) / static_cast<double>(multiplier);
      if (std::fabs(tie) < 2e9) {
        const auto near = static_cast<std::int32_t>(std::lrint(tie));
        values.insert(values.end(), {near - 1, near, near + 1});
      }
    }
    for (int i = 0; i < 200; ++i) {
      values.push_back(static_cast<std::int32_t>(random.bits()) >> random.integer(0, 31));
    }
    return values;
  }
  static Q expected(std::int32_t acc, quant_params p, grid levels) {
    return static_cast<Q>(detent::reference::requantize(acc, p.scale, p.zero_point, levels));
  }
  template <class In, class Out, class Params>
  static void run(In in, Out out, const Params& p, grid levels) {
    detent::requantize(in, out, p, levels);
  }
};

#define ALL_OPERATIONS                                                           \
  quantizing<std::uint8_t>, quantizing<std::int8_t>, dequantizing<std::uint8_t>, \
      dequantizing<std::int8_t>, requantizing<std::uint8_t>, requantizing<std::int8_t>

template <class Op>
std::vector<typename Op::output> expected_all(std::span<const typename Op::input> in,
                                              quant_params p, grid levels) {
  std::vector<typename Op::output> out;
  out.reserve(in.size());
  for (const typename Op::input x : in) {
    out.push_back(Op::expected(x, p, levels));
  }
  return out;
}

/// The operation on whole spans, on every target.
template <class Op>
void check_all_targets(std::span<const typename Op::input> in, quant_params p, grid levels) {
  INFO("scale ", p.scale, " zero point ", p.zero_point, " grid ", levels.qmin, "..", levels.qmax);
  const std::vector<typename Op::output> expected = expected_all<Op>(in, p, levels);
  std::vector<typename Op::output> out(in.size());
  for_each_target([&] {
    std::fill(out.begin(), out.end(), typename Op::output{77});
    Op::run(in, std::span(out), p, levels);
    CHECK(difference(out, expected) == "");
  });
}

/// Full and narrow range, ranges whose bounds are odd, one level only.
template <quantized_type Q>
std::vector<grid> grids() {
  if (std::is_signed_v<Q>) {
    return {full_grid<Q>, detent::narrow_grid<Q>, {-7, 7}, {-128, -1}, {3, 90}, {0, 1}, {5, 5}};
  }
  return {full_grid<Q>, detent::narrow_grid<Q>, {3, 200}, {0, 15}, {100, 101}, {0, 1}, {5, 5}};
}

}  // namespace

TEST_CASE_TEMPLATE("hard inputs for every scale and grid", Op, ALL_OPERATIONS) {
  random_source random(1);
  INFO("seed ", random.seed());
  for (const float scale : test::hard_scales) {
    const auto in = Op::inputs(random, scale);
    for (const grid levels : grids<typename Op::stored>()) {
      const std::int32_t random_zero_point = random.integer(levels.qmin, levels.qmax);
      for (const std::int32_t zero_point : {levels.qmin, random_zero_point, levels.qmax}) {
        check_all_targets<Op>(in, {scale, zero_point}, levels);
      }
    }
  }
}

TEST_CASE_TEMPLATE("every zero point", Op, ALL_OPERATIONS) {
  random_source random(2);
  INFO("seed ", random.seed());
  constexpr grid levels = full_grid<typename Op::stored>;
  for (const float scale : {0.1F, 0x1.fffffep-3F}) {
    const auto in = Op::inputs(random, scale);
    for (std::int32_t zero_point = levels.qmin; zero_point <= levels.qmax; ++zero_point) {
      check_all_targets<Op>(in, {scale, zero_point}, levels);
    }
  }
}

TEST_CASE_TEMPLATE("random scales", Op, ALL_OPERATIONS) {
  random_source random(3);
  INFO("seed ", random.seed());
  for (int i = 0; i < 300; ++i) {
    // Any positive finite float.
    const float scale =
        std::bit_cast<float>(random.integer<std::uint32_t>(0x00000001U, 0x7F7FFFFFU));
    const grid levels = full_grid<typename Op::stored>;
    const std::int32_t zero_point = random.integer(levels.qmin, levels.qmax);
    check_all_targets<Op>(Op::inputs(random, scale), {scale, zero_point}, levels);
  }
}

// Every size up to several vectors, at every alignment, next to memory that may not be touched.
TEST_CASE_TEMPLATE("tails, alignments and bounds", Op, ALL_OPERATIONS) {
  using input = typename Op::input;
  using output = typename Op::output;
  random_source random(4);
  INFO("seed ", random.seed());
  constexpr std::size_t max_size = 130;
  constexpr grid levels = full_grid<typename Op::stored>;
  const quant_params tensor{0.1F, random.integer(levels.qmin, levels.qmax)};
  const std::vector<input> candidates = Op::inputs(random, tensor.scale);

  test::guarded_memory in_memory(max_size * sizeof(input) + 64);
  test::guarded_memory out_memory(max_size * sizeof(output) + 64);
  for (std::size_t n = 0; n <= max_size; ++n) {
    std::vector<input> in(n);
    channel_quant_params columns;
    std::vector<output> by_tensor(n);
    std::vector<output> by_column(n);
    for (std::size_t i = 0; i < n; ++i) {
      in[i] = candidates[random.size(0, candidates.size() - 1)];
      columns.scales.push_back(random.chance(80) ? random.real(0.01F, 0.3F)
                                                 : test::hard_scales[random.size(0, 15)]);
      columns.zero_points.push_back(random.integer(levels.qmin, levels.qmax));
      by_tensor[i] = Op::expected(in[i], tensor, levels);
      by_column[i] = Op::expected(in[i], {columns.scales[i], columns.zero_points[i]}, levels);
    }
    constexpr std::size_t placements =
        5;  // 0..3: so many elements after the page; 4: before the page
    for (std::size_t placement = 0; placement < placements; ++placement) {
      const bool at_end = placement == placements - 1;
      const std::span<input> x =
          at_end ? in_memory.back<input>(n) : in_memory.front<input>(n, placement);
      const std::span<output> q =
          at_end ? out_memory.back<output>(n) : out_memory.front<output>(n, placement);
      std::copy(in.begin(), in.end(), x.begin());
      INFO("size ", n, " placement ", placement);
      for_each_target([&] {
        out_memory.repaint();
        Op::run(std::span<const input>(x), q, tensor, levels);
        CHECK(difference(q, by_tensor) == "");
        CHECK(out_memory.intact_around(q));

        out_memory.repaint();
        Op::run(detent::tensor_view<const input>(x.data(), {n}),
                detent::tensor_view<output>(q.data(), {n}), columns, levels);
        CHECK(difference(q, by_column) == "");
        CHECK(out_memory.intact_around(q));
      });
    }
  }
}

TEST_CASE_TEMPLATE("strided views, per tensor and per channel on any axis", Op, ALL_OPERATIONS) {
  using input = typename Op::input;
  using output = typename Op::output;
  random_source random(5);
  INFO("seed ", random.seed());
  const std::vector<input> candidates = Op::inputs(random, 0.1F);
  const output untouched = static_cast<output>(random.integer(1, 100));
  for (int round = 0; round < 150; ++round) {
    const bool by_channel = random.chance(70);
    const std::vector<std::size_t> shape = test::random_shape(random, by_channel ? 1 : 0);
    const std::vector<grid> choices = grids<typename Op::stored>();
    // dequantize knows no grid, so only the full one holds every zero point.
    const grid levels = choices[random.size(0, choices.size() - 1)];
    auto in = test::random_layout<input>(random, shape, input{});
    auto out = test::random_layout<output>(random, shape, untouched);
    for (input& x : in.storage) {
      x = candidates[random.size(0, candidates.size() - 1)];
    }
    const quant_params tensor{0.1F, random.integer(levels.qmin, levels.qmax)};
    channel_quant_params channels;
    if (by_channel) {
      channels.axis = random.size(0, shape.size() - 1);
      for (std::size_t i = 0; i < shape[channels.axis]; ++i) {
        channels.scales.push_back(random.real(0.01F, 0.3F));
        channels.zero_points.push_back(random.integer(levels.qmin, levels.qmax));
      }
    }
    // The expected storage, gaps included: what the view does not reach must stay.
    std::vector<output> expected(out.storage);
    test::for_each_index(shape, [&](const test::tensor_index& index) {
      const std::size_t c = by_channel ? index[channels.axis] : 0;
      const quant_params p =
          by_channel ? quant_params{channels.scales[c], channels.zero_points[c]} : tensor;
      expected[test::offset_of(out.view, out.storage.data(), index)] =
          Op::expected(in[index], p, levels);
    });
    INFO("round ", round, " rank ", shape.size());
    for_each_target([&] {
      std::fill(out.storage.begin(), out.storage.end(), untouched);
      if (by_channel) {
        Op::run(detent::tensor_view<const input>(in.view), out.view, channels, levels);
      } else {
        Op::run(detent::tensor_view<const input>(in.view), out.view, tensor, levels);
      }
      CHECK(difference(out.storage, expected) == "");
    });
  }
}

TEST_CASE_TEMPLATE("a stride of zero repeats an input", Op, ALL_OPERATIONS) {
  using input = typename Op::input;
  using output = typename Op::output;
  random_source random(6);
  INFO("seed ", random.seed());
  const std::vector<input> candidates = Op::inputs(random, 0.1F);
  const quant_params p{0.1F, 3};
  const std::size_t shape[] = {3, 40};
  const std::ptrdiff_t by_row[] = {1, 0};
  const std::ptrdiff_t by_column[] = {0, 1};
  const auto levels = full_grid<typename Op::stored>;
  std::vector<output> out(120);
  for_each_target([&] {
    Op::run(detent::tensor_view<const input>(candidates.data(), shape, by_row),
            detent::tensor_view<output>(out.data(), shape), p, levels);
    for (std::size_t i = 0; i < out.size(); ++i) {
      CHECK(test::same(out[i], Op::expected(candidates[i / 40], p, levels)));
    }
    Op::run(detent::tensor_view<const input>(candidates.data(), shape, by_column),
            detent::tensor_view<output>(out.data(), shape), p, levels);
    for (std::size_t i = 0; i < out.size(); ++i) {
      CHECK(test::same(out[i], Op::expected(candidates[i % 40], p, levels)));
    }
  });
}

TEST_CASE_TEMPLATE("nothing in, nothing out", Op, ALL_OPERATIONS) {
  using input = typename Op::input;
  using output = typename Op::output;
  const auto levels = full_grid<typename Op::stored>;
  // Operands without memory: a read or a write of them would crash.
  const detent::tensor_view<const input> no_input(nullptr, {4, 0, 2});
  const detent::tensor_view<output> no_output(nullptr, {4, 0, 2});
  // Operands of size 0 that have memory. There is none of their own before the input and behind the
  // output, and what is painted must stay as it is.
  test::guarded_memory in_memory(64 * sizeof(input));
  test::guarded_memory out_memory(64 * sizeof(output));
  const std::span<const input> in = in_memory.front<input>(0);
  const std::span<output> out_front = out_memory.front<output>(0);
  const std::span<output> out_back = out_memory.back<output>(0);
  const channel_quant_params of_no_channels{1, {}, {}};
  const channel_quant_params of_two_channels{2, {0.5F, 2.0F}, {1, 3}};
  for_each_target([&] {
    CHECK_NOTHROW(Op::run(std::span<const input>(), std::span<output>(), quant_params{}, levels));
    CHECK_NOTHROW(Op::run(no_input, no_output, quant_params{}, levels));
    CHECK_NOTHROW(Op::run(no_input, no_output, of_no_channels, levels));
    CHECK_NOTHROW(Op::run(no_input, no_output, of_two_channels, levels));
    for (const std::span<output> out : {out_front, out_back}) {
      const detent::tensor_view<const input> in_view(in.data(), {4, 0, 2});
      const detent::tensor_view<output> out_view(out.data(), {4, 0, 2});
      CHECK_NOTHROW(Op::run(in, out, quant_params{}, levels));
      CHECK_NOTHROW(Op::run(in_view, out_view, quant_params{}, levels));
      CHECK_NOTHROW(Op::run(in_view, out_view, of_two_channels, levels));
      CHECK(out_memory.intact_around(out));
    }
    CHECK(in_memory.intact_around(in));
  });
}

// exhaustive_quantize.cpp does all of them.
TEST_CASE_TEMPLATE("quantize: a slice of all floats", Q, std::uint8_t, std::int8_t) {
  constexpr std::uint64_t step = 4099;
  std::vector<float> in;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += step) {
    in.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (const float scale :
       {1.0F, 0.1F, 1.0F / 3.0F, 0x1.fffffep-3F, 0x1.000002p-5F, 0x1.6a09e6p-9F, 0x1.921fb6p+1F,
        0x1.555556p-8F, 3.7e10F, 0x1.0p-126F, 1e-40F, 0x1.6a09e6p+126F, 0x1.fffffep+127F,
        0.0078125F, 0x1.b333b4p-60F, 0x1.8p+31F}) {
    check_all_targets<quantizing<Q>>(in, {scale, Q{11}}, full_grid<Q>);
  }
}

TEST_CASE("containers convert to spans") {
  const std::vector<float> x = {-1.0F, 0.0F, 0.5F, 1.5F, 400.0F};
  std::vector<std::uint8_t> q(x.size());
  std::vector<float> back(x.size());
  detent::quantize(x, q, {1.0F, 10});
  CHECK(q == std::vector<std::uint8_t>{9, 10, 10, 12, 255});
  detent::dequantize(q, back, {1.0F, 10});
  CHECK(back == std::vector<float>{-1.0F, 0.0F, 0.0F, 2.0F, 245.0F});
  const std::int32_t acc[] = {-5, 5, 7};
  std::int8_t out[3];
  detent::requantize(acc, out, {0.5F, -1});
  CHECK(out[0] == -3);
  CHECK(out[1] == 1);
  CHECK(out[2] == 3);
}

// Long outputs are split at the first cache line: what stands before and behind it must agree.
TEST_CASE_TEMPLATE("long rows to outputs that begin anywhere in a cache line", Q, std::uint8_t,
                   std::int8_t, std::uint16_t, std::int16_t) {
  constexpr std::size_t n = 1500;
  random_source random(15);
  INFO("seed ", random.seed());
  const std::vector<float> x = random.reals(n, -300.0F, 300.0F);
  const std::vector<Q> codes = random.integers<Q>(n);
  const std::vector<std::int32_t> sums = random.integers<std::int32_t>(n);
  const std::vector<std::int32_t> bias = random.integers<std::int32_t>(n);
  channel_quant_params p{1, random.reals(n, 0.5F, 3.0F), {}};
  for (std::size_t i = 0; i < n; ++i) {
    p.zero_points.push_back(random.integer(full_grid<Q>.qmin, full_grid<Q>.qmax));
  }
  channel_quant_params multipliers = p;
  multipliers.scales = random.reals(n, 1e-7F, 1e-6F);
  std::vector<Q> memory(n + 128);
  std::vector<float> real_memory(n + 32);
  const auto line_of = [](auto& all) {
    auto* first = all.data();
    while (reinterpret_cast<std::uintptr_t>(first) % 64 != 0) {
      ++first;
    }
    return first;
  };
  const std::size_t shape[] = {1, n};
  const std::ptrdiff_t strides[] = {static_cast<std::ptrdiff_t>(n), 1};
  for (std::size_t offset = 0; offset < 64 / sizeof(Q); offset += 1 + offset / 5) {
    for (const auto stores : {detent::store_policy::cached, detent::store_policy::streaming}) {
      const detent::execution e{.stores = stores};
      INFO("offset ", offset);
      for_each_target([&] {
        const detent::tensor_view<Q> q(line_of(memory) + offset, shape, strides);
        detent::quantize(detent::tensor_view<const float>(x.data(), shape, strides), q, p,
                         full_grid<Q>, e);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i) {
          wrong += q.data[i] != detent::reference::quantize(x[i], {p.scales[i], p.zero_points[i]},
                                                            full_grid<Q>)
                       ? 1U
                       : 0U;
        }
        CHECK(wrong == 0);
        detent::requantize(detent::tensor_view<const std::int32_t>(sums.data(), shape, strides), q,
                           multipliers, full_grid<Q>, bias, e);
        for (std::size_t i = 0; i < n; ++i) {
          const auto sum = static_cast<std::int32_t>(static_cast<std::uint32_t>(sums[i]) +
                                                     static_cast<std::uint32_t>(bias[i]));
          wrong += q.data[i] != detent::reference::requantize(sum, multipliers.scales[i],
                                                              p.zero_points[i], full_grid<Q>)
                       ? 1U
                       : 0U;
        }
        CHECK(wrong == 0);
        const detent::tensor_view<float> y(line_of(real_memory) + offset % 16, shape, strides);
        detent::dequantize(detent::tensor_view<const Q>(codes.data(), shape, strides), y, p, e);
        for (std::size_t i = 0; i < n; ++i) {
          wrong +=
              y.data[i] != static_cast<float>(codes[i] - p.zero_points[i]) * p.scales[i] ? 1U : 0U;
        }
        CHECK(wrong == 0);
      });
    }
  }
}
