// SPDX-License-Identifier: BSD-3-Clause
// What an executor keeps between runs (shapes, windows, epilogues, packed weights, buffers) changes
// no result; integer convolutions and products against loops in 64 bits.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/float_formats.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>

#include "check_graph_error.hpp"
#include "for_each_target.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

namespace graph = detent::graph;
using graph::element_type;
using graph::shape;
using graph::tensor;
using test::attributes;
using test::check_graph_error;
using test::error_kind;
using test::floats;
using test::list;
using test::make_tensor;
using test::model_builder;
using test::number;
using test::random_source;
using test::tensors;
using test::values_of;

tensor random_bytes(random_source& r, element_type type, shape dims) {
  const std::size_t count = graph::element_count(dims);
  std::vector<std::uint8_t> bytes = r.integers<std::uint8_t>(count);
  // The ends of the range are common.
  for (std::uint8_t& b : bytes) {
    b = r.chance(20) ? static_cast<std::uint8_t>(r.chance(50) ? 0 : 255) : b;
  }
  return make_tensor(type, std::move(dims), bytes);
}

std::int64_t code_at(const tensor& t, std::size_t i) {
  return t.type() == element_type::u8 ? std::int64_t{t.data<std::uint8_t>()[i]}
                                      : std::int64_t{t.data<std::int8_t>()[i]};
}

tensor single(element_type type, std::int64_t value) {
  return make_tensor<std::uint8_t>(type, {}, {static_cast<std::uint8_t>(value)});
}

/// clamp(round_half_even(sum * multiplier) + zero_point), exact in double where the multiplier is a
/// power of two and the sum has less than 25 bits.
std::int64_t requantized(std::int64_t sum, double multiplier, std::int64_t zero_point,
                         element_type type) {
  const auto steps =
      static_cast<std::int64_t>(std::nearbyint(static_cast<double>(sum) * multiplier));
  const std::int64_t lowest = type == element_type::u8 ? 0 : -128;
  return std::clamp(steps + zero_point, lowest, lowest + 255);
}

struct convolution_case {
  std::int64_t batch, in, out, groups, height, width, kernel_height, kernel_width, stride, dilation,
      pad;
  element_type x_type, w_type, y_type;

  [[nodiscard]] std::int64_t out_height() const { return extent(height, kernel_height); }
  [[nodiscard]] std::int64_t out_width() const { return extent(width, kernel_width); }

 private:
  [[nodiscard]] std::int64_t extent(std::int64_t size, std::int64_t kernel) const {
    return (size + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
  }
};

constexpr float x_scale = 0x1p-3F;
constexpr float y_scale = 0x1p+2F;

float w_scale(std::int64_t channel) { return channel % 2 == 0 ? 0x1p-5F : 0x1p-6F; }

/// The layer's sums, in the order of the output's dimensions.
std::vector<std::int64_t> sums_of(const convolution_case& k, const tensor& x,
                                  std::int64_t x_zero_point, const tensor& w,
                                  const std::vector<std::int32_t>& bias) {
  std::vector<std::int64_t> sums;
  const std::int64_t group_in = k.in / k.groups;
  for (std::int64_t n = 0; n < k.batch; ++n) {
    for (std::int64_t o = 0; o < k.out; ++o) {
      for (std::int64_t y = 0; y < k.out_height(); ++y) {
        for (std::int64_t column = 0; column < k.out_width(); ++column) {
          std::int64_t sum = bias[static_cast<std::size_t>(o)];
          for (std::int64_t i = 0; i < group_in; ++i) {
            const std::int64_t channel = o / (k.out / k.groups) * group_in + i;
            for (std::int64_t a = 0; a < k.kernel_height; ++a) {
              for (std::int64_t b = 0; b < k.kernel_width; ++b) {
                const std::int64_t row = y * k.stride - k.pad + a * k.dilation;
                const std::int64_t at = column * k.stride - k.pad + b * k.dilation;
                if (row < 0 || row >= k.height || at < 0 || at >= k.width) {
                  continue;
                }
                const std::int64_t from = ((n * k.in + channel) * k.height + row) * k.width + at;
                const std::int64_t weight =
                    ((o * group_in + i) * k.kernel_height + a) * k.kernel_width + b;
                sum += (code_at(x, static_cast<std::size_t>(from)) - x_zero_point) *
                       code_at(w, static_cast<std::size_t>(weight));
              }
            }
          }
          sums.push_back(sum);
        }
      }
    }
  }
  return sums;
}

}  // namespace

TEST_CASE("QLinearConv of channels-first images, signed and unsigned") {
  using enum element_type;
  const convolution_case cases[] = {
      {2, 3, 5, 1, 7, 9, 3, 3, 2, 1, 1, u8, s8, u8},      // a first layer
      {1, 3, 5, 1, 7, 9, 3, 3, 2, 1, 1, s8, s8, s8},      //
      {2, 33, 19, 1, 5, 3, 1, 1, 1, 1, 0, s8, s8, u8},    // a product
      {3, 17, 20, 1, 4, 5, 1, 1, 2, 1, 0, u8, u8, s8},    //
      {1, 6, 9, 3, 6, 5, 3, 2, 1, 2, 1, s8, s8, s8},      // groups
      {2, 24, 24, 24, 6, 20, 3, 3, 1, 1, 1, s8, s8, u8},  // depthwise
      {1, 24, 24, 24, 6, 7, 3, 3, 2, 1, 1, u8, s8, s8},   //
      {2, 1, 16, 1, 12, 6, 5, 4, 2, 1, 2, s8, s8, s8},    // one channel: both orders are the same
      {2, 16, 4, 1, 1, 1, 1, 1, 1, 1, 0, s8, s8, s8},     // one pixel
      {1, 4, 70, 1, 3, 40, 3, 3, 1, 1, 1, u8, s8, u8},    //
  };
  random_source r(11);
  INFO("seed ", r.seed());
  for (const convolution_case& k : cases) {
    INFO("in ", k.in, " out ", k.out, " groups ", k.groups, " kernel ", k.kernel_height, " x ",
         k.kernel_width, " x is ", graph::name(k.x_type));
    model_builder b;
    b.input("x", {-1, k.in, k.height, k.width}, k.x_type);
    const std::int64_t x_zero = k.x_type == u8 ? 131 : -3;
    const std::int64_t y_zero = k.y_type == u8 ? 120 : 7;
    const auto outputs = static_cast<std::size_t>(k.out);
    std::vector<float> scales(outputs);
    std::vector<std::int32_t> bias(outputs);
    for (std::size_t o = 0; o < outputs; ++o) {
      scales[o] = w_scale(static_cast<std::int64_t>(o));
      bias[o] = r.integer(-900, 900);
    }
    const shape w_dims{k.out, k.in / k.groups, k.kernel_height, k.kernel_width};
    const tensor w = random_bytes(r, k.w_type, w_dims);
    b.constant("xs", floats({}, {x_scale}));
    b.constant("xz", single(k.x_type, x_zero));
    b.constant("w", w);
    b.constant("ws", floats({k.out}, scales));
    b.constant("wz", make_tensor(k.w_type, {k.out}, std::vector<std::uint8_t>(outputs, 0)));
    b.constant("ys", floats({}, {y_scale}));
    b.constant("yz", single(k.y_type, y_zero));
    b.constant("b", make_tensor(element_type::s32, {k.out}, bias));
    b.output(b.add("QLinearConv", {"x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"},
                   {{"group", number(k.groups)},
                    {"strides", list({k.stride, k.stride})},
                    {"dilations", list({k.dilation, k.dilation})},
                    {"pads", list({k.pad, k.pad, k.pad, k.pad})}}),
             k.y_type);
    test::for_each_target([&] {
      graph::executor executor(b.get());
      for (const std::int64_t batch : {k.batch, k.batch + 1, k.batch}) {
        convolution_case now = k;
        now.batch = batch;
        const tensor x = random_bytes(r, k.x_type, {batch, k.in, k.height, k.width});
        const std::vector<std::int64_t> sums = sums_of(now, x, x_zero, w, bias);
        const tensor y = executor.run({{"x", x}})[0];
        REQUIRE(y.dims() == shape{batch, k.out, k.out_height(), k.out_width()});
        REQUIRE(y.type() == k.y_type);
        const std::size_t pixels = static_cast<std::size_t>(k.out_height() * k.out_width());
        std::size_t differences = 0;
        for (std::size_t i = 0; i < sums.size(); ++i) {
          const double multiplier = static_cast<double>(x_scale) *
                                    static_cast<double>(scales[i / pixels % outputs]) /
                                    static_cast<double>(y_scale);
          const std::int64_t expected = requantized(sums[i], multiplier, y_zero, k.y_type);
          differences += code_at(y, i) != expected ? 1U : 0U;
        }
        CHECK(differences == 0);
      }
    });
  }
}

TEST_CASE("QLinearMatMul of signed and unsigned left sides") {
  random_source r(12);
  INFO("seed ", r.seed());
  struct matmul_case {
    shape a, b;
    std::int64_t stacks;
  };
  const matmul_case cases[] = {
      {{5, 37}, {37, 21}, 1}, {{3, 4, 9}, {9, 17}, 3}, {{3, 4, 9}, {3, 9, 17}, 3}};
  for (const matmul_case& k : cases) {
    for (const element_type a_type : {element_type::u8, element_type::s8}) {
      for (const element_type b_type : {element_type::u8, element_type::s8}) {
        INFO(graph::to_string(k.a), " x ", graph::to_string(k.b), " of ", graph::name(a_type),
             " and ", graph::name(b_type));
        const bool is_stack = k.b.size() == 3;
        const std::int64_t a_zero = a_type == element_type::u8 ? 100 : -100;
        const std::int64_t b_zero = b_type == element_type::u8 ? 130 : 2;
        model_builder m;
        m.input("a", k.a, a_type);
        const tensor b = random_bytes(r, b_type, k.b);
        m.constant("b", b);
        m.constant("as", floats({}, {x_scale}));
        m.constant("az", single(a_type, a_zero));
        m.constant("bs", floats({}, {0x1p-5F}));
        m.constant("bz", single(b_type, b_zero));
        m.constant("ys", floats({}, {y_scale}));
        m.constant("yz", single(a_type, 4));
        m.output(m.add("QLinearMatMul", {"a", "as", "az", "b", "bs", "bz", "ys", "yz"}), a_type);
        test::for_each_target([&] {
          graph::executor executor(m.get());
          for (int run = 0; run < 2; ++run) {
            const tensor a = random_bytes(r, a_type, k.a);
            const tensor y = executor.run({{"a", a}})[0];
            const std::int64_t depth = k.a.back();
            const std::int64_t columns = k.b.back();
            const std::int64_t rows = static_cast<std::int64_t>(a.count()) / depth / k.stacks;
            std::size_t differences = 0;
            for (std::int64_t i = 0; i < k.stacks * rows; ++i) {
              const std::int64_t matrix = is_stack ? i / rows * depth * columns : 0;
              for (std::int64_t j = 0; j < columns; ++j) {
                std::int64_t sum = 0;
                for (std::int64_t d = 0; d < depth; ++d) {
                  const std::int64_t from = matrix + d * columns + j;
                  sum += (code_at(a, static_cast<std::size_t>(i * depth + d)) - a_zero) *
                         (code_at(b, static_cast<std::size_t>(from)) - b_zero);
                }
                const std::int64_t expected = requantized(sum, 0x1p-10, 4, a_type);
                const auto at = static_cast<std::size_t>(i * columns + j);
                differences += code_at(y, at) != expected ? 1U : 0U;
              }
            }
            CHECK(differences == 0);
          }
        });
      }
    }
  }
}

TEST_CASE("what an executor keeps follows scales, zero points and weights that are no constants") {
  model_builder b;
  b.input("x", {1, 2, 2, 2}, element_type::u8);
  b.input("xs", {});
  b.input("xz", {}, element_type::u8);
  b.input("w", {1, 2, 1, 1}, element_type::s8);
  b.constant("ws", floats({}, {1.0F}));
  b.constant("wz", single(element_type::s8, 0));
  b.input("ys", {});
  b.input("yz", {}, element_type::u8);
  b.output(b.add("QLinearConv", {"x", "xs", "xz", "w", "ws", "wz", "ys", "yz"}), element_type::u8);
  b.output(b.add("ConvInteger", {"x", "w", "xz"}), element_type::s32);
  b.output(b.add("DequantizeLinear", {"x", "xs", "xz"}));
  graph::executor executor(b.get());
  const tensor x =
      make_tensor<std::uint8_t>(element_type::u8, {1, 2, 2, 2}, {10, 20, 30, 40, 1, 2, 3, 4});
  struct run_case {
    float x_scale;
    int x_zero;
    std::vector<std::uint8_t> w;
    float y_scale;
    int y_zero;
    std::vector<std::uint8_t> quantized;
    std::vector<std::int32_t> sums;
    std::vector<float> reals;
  };
  const run_case runs[] = {
      {1.0F, 0, {1, 2}, 2.0F, 0, {6, 12, 18, 24}, {12, 24, 36, 48}, {10, 20, 30, 40, 1, 2, 3, 4}},
      {2.0F, 1, {1, 0}, 2.0F, 5, {14, 24, 34, 44}, {9, 19, 29, 39}, {18, 38, 58, 78, 0, 2, 4, 6}},
      {2.0F, 1, {1, 0}, 1.0F, 5, {23, 43, 63, 83}, {9, 19, 29, 39}, {18, 38, 58, 78, 0, 2, 4, 6}},
      {2.0F, 1, {0, 1}, 1.0F, 0, {0, 2, 4, 6}, {0, 1, 2, 3}, {18, 38, 58, 78, 0, 2, 4, 6}},
  };
  for (const run_case& k : runs) {
    const auto y = executor.run({{"x", x},
                                 {"xs", floats({}, {k.x_scale})},
                                 {"xz", single(element_type::u8, k.x_zero)},
                                 {"w", make_tensor(element_type::s8, {1, 2, 1, 1}, k.w)},
                                 {"ys", floats({}, {k.y_scale})},
                                 {"yz", single(element_type::u8, k.y_zero)}});
    CHECK(values_of<std::uint8_t>(y[0]) == k.quantized);
    CHECK(values_of<std::int32_t>(y[1]) == k.sums);
    CHECK(values_of<float>(y[2]) == k.reals);
  }
}

TEST_CASE("an executor that met other shapes before computes what a new one does") {
  random_source r(13);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3, -1, -1});
  b.constant("w", test::random_floats(r, {4, 3, 3, 3}, -1.0F, 1.0F));
  b.constant("shape", std::vector<std::int64_t>{0, -1});
  const std::string q = b.pair("x", 0.05F, 117);
  const std::string conv = b.add("Conv", {q, "w"}, {{"pads", list({1, 1, 1, 1})}});
  const std::string relu = b.add("Relu", {conv});
  const std::string pool =
      b.add("MaxPool", {relu}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  const std::string sum = b.add("Add", {relu, conv});
  const std::string moved = b.add("Transpose", {sum}, {{"perm", list({0, 2, 3, 1})}});
  const std::string flat = b.add("Flatten", {b.add("GlobalAveragePool", {sum})});
  const std::string soft = b.add("Softmax", {moved});
  const std::string rows =
      b.add("Reshape", {b.add("Concat", {conv, relu}, {{"axis", number(1)}}), "shape"});
  for (const std::string& name : {pool, moved, flat, soft, rows}) {
    b.output(name);
  }
  graph::executor kept(b.get());
  const shape forms[] = {{1, 3, 6, 8}, {2, 3, 6, 8}, {1, 3, 6, 8}, {1, 3, 2, 2},
                         {2, 3, 5, 7}, {1, 3, 2, 3}, {1, 3, 6, 8}};
  for (const shape& dims : forms) {
    INFO(graph::to_string(dims));
    const tensors inputs{{"x", test::random_floats(r, dims, -4.0F, 4.0F)}};
    const std::vector<tensor> again = kept.run(inputs);
    const std::vector<tensor> once = test::outputs_of(b.get(), inputs);
    REQUIRE(again.size() == once.size());
    for (std::size_t i = 0; i < once.size(); ++i) {
      CHECK(again[i].dims() == once[i].dims());
      CHECK(values_of<float>(again[i]) == values_of<float>(once[i]));
    }
  }
}

TEST_CASE("QLinearBatchNormalization: later runs must have as many channels") {
  const std::vector<std::uint8_t> codes{0, 3, 100, 253, 127, 128};
  for (const element_type type : {element_type::u8, element_type::s8}) {
    model_builder b;
    b.input("x", {-1, -1, -1}, type);
    b.scalar("x_scale", 0.25F);
    b.constant("zero", single(type, 0));
    b.scalar("y_scale", 0.125F);
    b.constant("ones", floats({2}, {1.0F, 1.0F}));
    b.constant("shift", floats({2}, {0.5F, -0.25F}));
    b.output(b.add("QLinearBatchNormalization",
                   {"x", "x_scale", "zero", "ones", "shift", "shift", "ones", "y_scale"},
                   {{"epsilon", test::real(0.0F)}}, "detent"),
             type);
    graph::executor kept(b.get());
    static_cast<void>(kept.run({{"x", make_tensor(type, {1, 2, 3}, codes)}}));
    graph::executor sharing(kept, {});
    for (graph::executor* e : {&kept, &sharing, &kept}) {
      for (const shape& other : {shape{1, 3, 2}, shape{6, 1, 1}, shape{1, 600, 1}}) {
        const std::vector<std::uint8_t> more(graph::element_count(other), 7);
        const tensors inputs{{"x", make_tensor(type, other, more)}};
        check_graph_error(error_kind::bad_file,
                          {"QLinearBatchNormalization_0", "input 3 is float32 of shape [2]",
                           "[" + std::to_string(other[1]) + "]"},
                          [&] { static_cast<void>(e->run(inputs)); });
      }
      const tensor x = make_tensor(type, {1, 2, 3}, codes);
      const tensor y = e->run({{"x", x}})[0];
      REQUIRE(y.type() == type);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        // x - mean + bias is x; the output has half the scale.
        const std::int64_t lowest = type == element_type::u8 ? 0 : -128;
        CHECK(code_at(y, i) == std::clamp(2 * code_at(x, i), lowest, lowest + 255));
      }
    }
  }
}

/// An operator that adds what it has packed from its constant input, and counts how often it packs.
std::atomic<int> packed_additions{0};

void infer_packed_add(graph::operator_context& c) {
  c.set_output(0, c.input(0).type(), c.input(0).dims());
}

void run_packed_add(graph::operator_context& c) {
  const auto& state = graph::ops::cached_state<std::vector<float>>(c, {1}, 0, [&](auto& packed) {
    ++packed_additions;
    const std::span<const float> values = c.inputs[1].data<float>();
    packed.assign(values.begin(), values.end());
  });
  const std::span<const float> in = c.inputs[0].data<float>();
  const std::span<float> out = c.make_output(0).mutable_data<float>();
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = in[i] + (*state.packed)[i % state.packed->size()];
  }
}

TEST_CASE("executors of one model share what is packed, and run at the same time") {
  graph::operator_registry registry = graph::default_operators();
  registry.add(graph::operator_definition{"", "PackedAdd", 2, 2, graph::layout_support::plain,
                                          infer_packed_add, run_packed_add});
  random_source r(23);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3, -1, -1});
  b.constant("filters", test::random_floats(r, {8, 3, 3, 3}, -1, 1));
  b.constant("s", floats({}, {0.05F}));
  b.constant("z", single(element_type::u8, 100));
  b.constant("w", random_bytes(r, element_type::s8, {4, 8, 1, 1}));
  b.constant("wz", single(element_type::s8, 0));
  b.constant("added", floats({2}, {0.5F, -0.25F}));
  const std::string y = b.add("Conv", {"x", "filters"});
  const std::string q = b.add("QuantizeLinear", {y, "s", "z"});
  const std::string p = b.add("QLinearConv", {q, "s", "z", "w", "s", "wz", "s", "z"});
  const std::string d = b.add("DequantizeLinear", {p, "s", "z"});
  b.output(b.add("PackedAdd", {d, "added"}));
  const auto image = [&](std::int64_t batch, std::int64_t width) {
    return test::random_floats(r, {batch, 3, 9, width}, -4, 4);
  };
  for (const bool has_run : {true, false}) {
    packed_additions = 0;
    auto first = std::make_unique<graph::executor>(b.get(), graph::executor_options{}, registry);
    if (has_run) {
      static_cast<void>(first->run({{"x", image(1, 5)}}));
    }
    constexpr std::size_t runners = 3;
    std::vector<tensor> images;
    std::vector<tensor> expected;
    for (std::size_t i = 0; i < runners; ++i) {
      images.push_back(image(static_cast<std::int64_t>(i) + 1, 7 + static_cast<std::int64_t>(i)));
      graph::executor alone(b.get(), {}, registry);
      expected.push_back(alone.run({{"x", images[i]}})[0]);
    }
    packed_additions = has_run ? 1 : 0;
    std::vector<std::unique_ptr<graph::executor>> others;
    for (std::size_t i = 0; i < runners; ++i) {
      others.push_back(std::make_unique<graph::executor>(*first, graph::executor_options{}));
    }
    first.reset();
    std::vector<std::thread> threads;
    std::array<std::size_t, runners> differences{};
    for (std::size_t i = 0; i < runners; ++i) {
      threads.emplace_back([&, i] {
        for (int run = 0; run < 20; ++run) {
          const std::vector<float> now = values_of<float>(others[i]->run({{"x", images[i]}})[0]);
          differences[i] += now == values_of<float>(expected[i]) ? 0U : 1U;
        }
      });
    }
    for (std::thread& t : threads) {
      t.join();
    }
    CHECK(differences == std::array<std::size_t, runners>{});
    CHECK(packed_additions >= 1);
    CHECK(packed_additions <= (has_run ? 1 : static_cast<int>(runners)));
  }
  // Made before any of them has run, also after a run that failed.
  packed_additions = 0;
  graph::executor origin(b.get(), {}, registry);
  graph::executor second(origin, {});
  graph::executor third(second, {});
  check_graph_error(error_kind::shape_mismatch, {"'x'"}, [&] {
    static_cast<void>(second.run({{"x", test::random_floats(r, {1, 2, 9, 9}, -4, 4)}}));
  });
  const tensors inputs{{"x", image(2, 6)}};
  const std::vector<float> y_of_second = values_of<float>(second.run(inputs)[0]);
  for (graph::executor* e : {&origin, &third, &second}) {
    CHECK(values_of<float>(e->run(inputs)[0]) == y_of_second);
  }
  CHECK(packed_additions == 1);
}

/// Counts the objects of this type that live.
struct counted {
  static inline std::atomic<int> living{0};
  counted() { ++living; }
  counted(const counted&) = delete;
  counted& operator=(const counted&) = delete;
  ~counted() { --living; }
};

void run_counted(graph::operator_context& c) {
  static_cast<void>(graph::ops::cached_state<counted>(c, {1}, 0, [](counted&) {}));
  CHECK(counted::living == 1);
  c.require(c.inputs[0].data<float>()[0] >= 0.0F, "the first value is negative");
  c.share_output(0, c.input(0));
}

TEST_CASE("what is packed of an input that is no constant ends with the run") {
  graph::operator_registry registry = graph::default_operators();
  registry.add(graph::operator_definition{"", "Counted", 2, 2, graph::layout_support::plain,
                                          infer_packed_add, run_counted});
  for (const bool is_constant : {false, true}) {
    INFO(is_constant);
    model_builder b;
    b.input("x", {2});
    tensors inputs{{"x", floats({2}, {1, 2})}};
    if (is_constant) {
      b.constant("w", inputs["x"]);
    } else {
      b.input("w", {2});
      inputs["w"] = inputs["x"];
    }
    b.output(b.add("Counted", {"x", "w"}));
    {
      graph::executor executor(b.get(), {}, registry);
      for (int run = 0; run < 3; ++run) {
        static_cast<void>(executor.run(inputs));
        CHECK(counted::living == (is_constant ? 1 : 0));
      }
      // Also if the run ends with an error.
      inputs["x"] = floats({2}, {-1, 2});
      test::check_graph_error(detent::error_kind::bad_file, {"the first value is negative"},
                              [&] { static_cast<void>(executor.run(inputs)); });
      CHECK(counted::living == (is_constant ? 1 : 0));
    }
    CHECK(counted::living == 0);
  }
}

TEST_CASE("outputs are the caller's: later runs do not write to them") {
  model_builder b;
  b.input("x", {4});
  b.output(b.add("Neg", {b.add("Neg", {"x"})}));
  graph::executor executor(b.get());
  std::vector<tensor> kept;
  for (int run = 0; run < 5; ++run) {
    const auto value = static_cast<float>(run);
    kept.push_back(executor.run({{"x", floats({4}, {value, 1.0F, 2.0F, 3.0F})}})[0]);
  }
  for (std::size_t run = 0; run < kept.size(); ++run) {
    CHECK(values_of<float>(kept[run]) ==
          std::vector<float>{static_cast<float>(run), 1.0F, 2.0F, 3.0F});
  }
}

TEST_CASE("a run that failed in the middle leaves nothing behind") {
  model_builder b;
  b.input("x", {-1, 4});
  b.constant("shape", std::vector<std::int64_t>{3, 4});
  const std::string doubled = b.add("Add", {"x", "x"});
  b.output(b.add("Reshape", {doubled, "shape"}));
  graph::executor executor(b.get());
  const tensor good = floats({3, 4}, std::vector<float>(12, 1.5F));
  for (int i = 0; i < 2; ++i) {
    CHECK(values_of<float>(executor.run({{"x", good}})[0]) == std::vector<float>(12, 3.0F));
    check_graph_error(error_kind::bad_file, {"Reshape", "[2,4]", "[3,4]"}, [&] {
      static_cast<void>(executor.run({{"x", floats({2, 4}, std::vector<float>(8, 1.0F))}}));
    });
  }
  CHECK(values_of<float>(executor.run({{"x", good}})[0]) == std::vector<float>(12, 3.0F));
}

TEST_CASE("a product is refused in each run, not only in the first one") {
  model_builder b;
  b.input("x", {1, 2, 1, 1}, element_type::u8);
  b.constant("w", make_tensor(element_type::s8, {1, 2, 1, 1}, std::vector<std::int8_t>{1, 1}));
  b.constant("zero", make_tensor(element_type::u8, {2}, std::vector<std::uint8_t>{100, 100}));
  b.output(b.add("ConvInteger", {"x", "w", "zero"}), element_type::s32);
  graph::executor executor(b.get());
  const tensor x = make_tensor(element_type::u8, {1, 2, 1, 1}, std::vector<std::uint8_t>{101, 102});
  for (int run = 0; run < 3; ++run) {
    check_graph_error(error_kind::bad_file, {"ConvInteger", "2 zero points"}, [&] {
      static_cast<void>(executor.run({{"x", x}}));
    });
  }
}

TEST_CASE("operators that infer from forms look at no elements") {
  // Whether the operator accepts inputs of these forms, none of which has elements.
  const auto accepts = [](const graph::operator_definition& definition,
                          const std::vector<tensor>& inputs, attributes a) {
    graph::node n;
    n.op_type = definition.name;
    n.domain = definition.domain;
    n.outputs = {"y"};
    n.attributes = std::move(a);
    graph::operator_context c;
    c.current = &n;
    c.opset = 17;
    c.inputs = inputs;
    c.outputs.resize(1);
    try {
      definition.infer(c);
      return c.outputs[0].defined();
    } catch (const graph::value_unknown&) {
      FAIL_CHECK("asks for integers");
    } catch (const detent::error& e) {
      CHECK(std::string(e.what()).find("no data") == std::string::npos);
    }
    return false;
  };
  // Operators whose inputs have forms that differ, or that need other attributes.
  struct example {
    std::vector<tensor> inputs;
    attributes a;
  };
  const auto real = [](shape dims) { return tensor(element_type::f32, std::move(dims)); };
  const auto whole = [](shape dims) { return tensor(element_type::s64, std::move(dims)); };
  const tensor heads = real({2, 4, 6, 8});
  const tensor code = tensor(element_type::s8, {1, 3, 16});
  const tensor scale = real({1});
  const tensor zero = tensor(element_type::s8, {1});
  const std::map<std::string_view, example> examples = {
      {"Attention", {{heads, heads, heads, real({6, 6})}, {}}},
      {"BitCast", {{real({4})}, {{"to", number(6)}}}},
      {"Cast", {{real({4})}, {{"to", number(6)}}}},
      {"DepthToSpace", {{real({1, 8, 3, 3})}, {{"blocksize", number(2)}}}},
      {"BitShift", {{code, code}, {{"direction", test::text("LEFT")}}}},
      {"DynamicConv",
       {{real({1, 3, 8, 8}), tensor(element_type::s8, {4, 3, 2, 2}), scale, zero}, {}}},
      {"DynamicLinear", {{real({2, 3}), tensor(element_type::s8, {3, 5}), scale, zero}, {}}},
      {"DynamicQuantizeLSTM",
       {{real({2, 1, 3}),
         code,
         tensor(element_type::s8, {1, 4, 16}),
         {},
         {},
         {},
         {},
         {},
         scale,
         zero,
         scale,
         zero},
        {}}},
      {"Einsum", {{real({2, 3})}, {{"equation", test::text("ij->ji")}}}},
      {"Gather", {{real({5, 3}), whole({2, 2})}, {}}},
      {"GridSample", {{real({1, 2, 5, 5}), real({1, 3, 3, 2})}, {}}},
      {"GRU", {{real({2, 1, 3}), real({1, 12, 3}), real({1, 12, 4})}, {}}},
      {"LSTM", {{real({2, 1, 3}), real({1, 16, 3}), real({1, 16, 4})}, {}}},
      {"RNN", {{real({2, 1, 3}), real({1, 4, 3}), real({1, 4, 4})}, {}}},
      {"Not", {{tensor(element_type::boolean, {4})}, {}}},
      {"QuantizeLinear", {{real({4, 3}), real({}), tensor(element_type::u8, shape())}, {}}},
      {"QLinearBatchNormalization",
       {{code, scale, zero, real({3}), real({3}), real({3}), real({3}), scale, zero}, {}}},
      {"ReverseSequence", {{real({4, 3}), whole({3})}, {}}},
      {"RoiAlign", {{real({1, 2, 5, 5}), real({3, 4}), whole({3})}, {}}},
      {"SpaceToDepth", {{real({1, 2, 6, 6})}, {{"blocksize", number(2)}}}},
      {"Where", {{tensor(element_type::boolean, {4}), real({4}), real({4})}, {}}},
      {"RotaryEmbedding", {{heads, real({9, 4}), real({9, 4}), whole({2, 6})}, {}}},
  };
  std::size_t count = 0;
  for (const auto& entry : graph::default_operators().all()) {
    const auto& definition = entry.second;
    if (!definition.infers_from_forms) {
      continue;
    }
    const std::size_t inputs =
        definition.max_inputs == graph::any_number ? definition.min_inputs : definition.max_inputs;
    INFO(std::string(definition.domain), " ", std::string(definition.name));
    const auto own = examples.find(definition.name);
    bool accepted = own != examples.end() && accepts(definition, own->second.inputs, own->second.a);
    for (const element_type type : {element_type::f32, element_type::u8, element_type::s8}) {
      for (const shape& dims : {shape{4, 4, 6, 6}, shape{4, 4}}) {
        for (const bool with_kernel : {false, true}) {
          attributes a{{"axis", number(1)}, {"function", test::text("Relu")}};
          if (with_kernel) {
            a["kernel_shape"] = list({2, 2});
          }
          accepted =
              accepts(definition, std::vector<tensor>(inputs, tensor(type, dims)), std::move(a)) ||
              accepted;
        }
      }
    }
    CHECK(accepted);
    ++count;
  }
  CHECK(count > 110);
}

TEST_CASE("layouts: every element size goes to channels-last and back") {
  random_source r(15);
  INFO("seed ", r.seed());
  for (const element_type type :
       {element_type::u8, element_type::f16, element_type::f32, element_type::s64}) {
    for (const shape& dims : {shape{2, 3, 5, 7}, shape{1, 17, 33}, shape{3, 2, 1, 2},
                              shape{2, 70, 9, 9}, shape{0, 3, 4, 4}, shape{2, 3, 0, 4}}) {
      INFO(graph::name(type), " ", graph::to_string(dims));
      const std::size_t size = graph::element_size(type);
      const std::size_t count = graph::element_count(dims);
      tensor t = tensor::allocate(type, dims);
      const std::vector<std::uint8_t> bytes = r.integers<std::uint8_t>(count * size);
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::uint8_t*>(t.mutable_raw()));
      test::for_each_target([&] {
        const tensor last = graph::to_channels_last(t);
        CHECK(last.channels_last());
        CHECK(last.dims() == dims);
        const auto channels = static_cast<std::size_t>(dims[1]);
        const std::size_t pixels =
            count == 0 ? 0 : count / static_cast<std::size_t>(dims[0]) / channels;
        std::size_t differences = 0;
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t image = i / (channels * pixels);
          const std::size_t channel = i / pixels % channels;
          const std::size_t to = (image * pixels + i % pixels) * channels + channel;
          differences +=
              std::equal(t.raw() + i * size, t.raw() + (i + 1) * size, last.raw() + to * size) ? 0U
                                                                                               : 1U;
        }
        CHECK(differences == 0);
        const tensor back = graph::to_plain(last);
        CHECK(!back.channels_last());
        CHECK(std::equal(back.raw(), back.raw() + count * size, t.raw()));
      });
    }
  }
}

TEST_CASE("a quantized average whose sum may not fit 32 bits is refused") {
  model_builder b;
  b.get().opsets["com.microsoft"] = 1;
  b.input("x", {1, 1, 1, -1}, element_type::u8);
  b.constant("s", floats({}, {1.0F}));
  b.constant("z", single(element_type::u8, 0));
  b.output(b.add("QLinearGlobalAveragePool", {"x", "s", "z", "s", "z"}, {}, "com.microsoft"),
           element_type::u8);
  graph::executor executor(b.get());
  constexpr std::int64_t largest = 8421504;  // times 255 is the last multiple below 2^31
  const auto image = [](std::int64_t pixels) {
    return make_tensor(element_type::u8, {1, 1, 1, pixels},
                       std::vector<std::uint8_t>(static_cast<std::size_t>(pixels), 255));
  };
  CHECK(values_of<std::uint8_t>(executor.run({{"x", image(largest)}})[0]) ==
        std::vector<std::uint8_t>{255});
  check_graph_error(error_kind::overflow, {"QLinearGlobalAveragePool", "8421505"}, [&] {
    static_cast<void>(executor.run({{"x", image(largest + 1)}}));
  });
}
