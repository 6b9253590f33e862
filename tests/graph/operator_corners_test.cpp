// SPDX-License-Identifier: BSD-3-Clause
// Corners of operators that only few models reach, with expected values worked out by hand or by
// loops of their own. Each was once changed by a mutation that no other test here noticed.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/pool_planes.hpp>
#include <detent/graph/ops/unary_functions.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>

#include "check_graph_error.hpp"
#include "for_each_target.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "single_node.hpp"

namespace {

using namespace test;
using detent::error_kind;
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<tensor> run(const graph::model& m, const tensors& inputs,
                        const graph::executor_options& options = {}) {
  return graph::executor(m, options).run(inputs);
}

tensor longs(const std::vector<std::int64_t>& values) {
  return make_tensor(element_type::s64, {static_cast<std::int64_t>(values.size())}, values);
}
tensor bytes(shape dims, const std::vector<std::uint8_t>& values) {
  return make_tensor(element_type::u8, std::move(dims), values);
}
tensor signed_bytes(shape dims, const std::vector<std::int8_t>& values) {
  return make_tensor(element_type::s8, std::move(dims), values);
}

attributes::mapped_type ints(const shape& values) {
  return list(std::vector<std::int64_t>(values.begin(), values.end()));
}

/// Whether both have the same bits, apart from those of NaN.
bool same_or_nan(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) ||
           (std::isnan(x) && std::isnan(y));
  });
}

}  // namespace

TEST_CASE("corners: Resize with align_corners, and one output element") {
  const attributes align{{"mode", text("linear")},
                         {"coordinate_transformation_mode", text("align_corners")}};
  // Coordinates i (4 - 1) / (7 - 1).
  CHECK(values_of<float>(result_of("Resize", {floats({4}, {0, 2, 4, 8}), {}, {}, longs({7})},
                                   align)) == std::vector<float>{0, 1, 2, 3, 4, 6, 8});
  CHECK(values_of<float>(result_of("Resize", {floats({4}, {5, 2, 4, 8}), {}, {}, longs({1})},
                                   align)) == std::vector<float>{5});
}

TEST_CASE("corners: cubic Resize that leaves out weights beyond the edges") {
  const auto resized = [](std::int64_t exclude) {
    return values_of<float>(result_of("Resize", {floats({4}, {1, 2, 4, 8}), {}, {}, longs({8})},
                                      {{"mode", text("cubic")},
                                       {"coordinate_transformation_mode", text("half_pixel")},
                                       {"exclude_outside", number(exclude)}}));
  };
  const std::vector<float> values{1, 2, 4, 8};
  for (const bool exclude : {false, true}) {
    const std::vector<float> y = resized(exclude ? 1 : 0);
    REQUIRE(y.size() == 8);
    for (int i = 0; i < 8; ++i) {
      // The definition: weights of the kernel with a = -0.75 at the four nearest elements.
      const double x = (i + 0.5) / 2 - 0.5;
      const double below = std::floor(x);
      double sum = 0.0;
      double weights = 0.0;
      for (int k = -1; k <= 2; ++k) {
        const double at = below + k;
        const double d = std::fabs(x - at);
        const double a = -0.75;
        const double w = d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1
                                : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
        if (exclude && (at < 0 || at > 3)) {
          continue;
        }
        weights += w;
        sum += w * static_cast<double>(
                       values[static_cast<std::size_t>(std::fmin(std::fmax(at, 0.0), 3.0))]);
      }
      INFO("element ", i, exclude ? " without" : " with", " what is outside");
      CHECK(static_cast<double>(y[static_cast<std::size_t>(i)]) ==
            doctest::Approx(sum / (exclude ? weights : 1.0)).epsilon(1e-6));
    }
  }
  CHECK(resized(0)[0] != resized(1)[0]);
}

TEST_CASE("corners: MaxPool of NaN, wherever in the window it is") {
  for (std::size_t at = 0; at < 4; ++at) {
    std::vector<float> x{1, 2, 3, 4, 5, 6};
    x[at] = quiet_nan;
    const auto y = values_of<float>(
        result_of("MaxPool", {floats({1, 1, 6}, x)}, {{"kernel_shape", list({3})}}));
    INFO("NaN at ", at);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(std::isnan(y[i]) == (at >= i && at < i + 3));
    }
  }
  CHECK(values_of<float>(result_of("MaxPool", {floats({1, 1, 3}, {-infinity, -infinity, -5})},
                                   {{"kernel_shape", list({2})}})) ==
        std::vector<float>{-infinity, -5});
}

TEST_CASE("corners: pools in ceil mode with windows longer than the padded input") {
  const auto pooled = [](const char* op, const tensor& x, const shape& kernel, std::int64_t stride,
                         std::int64_t counted = 0) {
    return values_of<float>(result_of(op, {x},
                                      {{"kernel_shape", ints(kernel)},
                                       {"strides", ints(shape(kernel.size(), stride))},
                                       {"ceil_mode", number(1)},
                                       {"count_include_pad", number(counted)}}));
  };
  CHECK(pooled("AveragePool", floats({1, 1, 2}, {1, 2}), {3}, 3) == std::vector<float>{1.5F});
  CHECK(pooled("AveragePool", floats({1, 1, 2}, {1, 2}), {3}, 3, 1) == std::vector<float>{1.5F});
  CHECK(pooled("MaxPool", floats({1, 2, 2}, {1, 2, 4, 3}), {3}, 2) == std::vector<float>{2, 4});
  CHECK(pooled("LpPool", floats({1, 1, 2}, {3, 4}), {4}, 3) == std::vector<float>{5});
  CHECK(pooled("MaxPool", floats({1, 1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 9}), {3, 3}, 2) ==
        std::vector<float>{7, 9});
  // A window that reaches beyond the input by a stride does not begin.
  check_graph_error(error_kind::bad_file, {"reaches over 5 elements, axis 2 has 2"}, [&] {
    static_cast<void>(pooled("MaxPool", floats({1, 1, 2}, {1, 2}), {5}, 3));
  });
}

TEST_CASE("corners: AveragePool over planes has the bits of that over channels-last images") {
  random_source r(61);
  INFO("seed ", r.seed());
  int over_planes = 0;
  for (int round = 0; round < 300; ++round) {
    const std::size_t axes = r.size(1, 2);
    shape dims{r.integer(1, 2), r.integer(2, 3)};
    shape kernel, strides, dilations, begins, ends;
    for (std::size_t i = 0; i < axes; ++i) {
      dims.push_back(r.chance(10) ? 300 : r.integer(1, 70));
      kernel.push_back(r.integer<std::int64_t>(1, (std::min)(dims.back(), std::int64_t{4})));
      strides.push_back(r.integer(1, 3));
      dilations.push_back(r.integer(1, 2));
      begins.push_back(r.integer<std::int64_t>(0, dilations.back() * (kernel.back() - 1)));
      ends.push_back(r.integer<std::int64_t>(0, dilations.back() * (kernel.back() - 1)));
    }
    shape pads = begins;
    pads.insert(pads.end(), ends.begin(), ends.end());
    attributes a{
        {"kernel_shape", ints(kernel)},         {"strides", ints(strides)},
        {"dilations", ints(dilations)},         {"pads", ints(pads)},
        {"ceil_mode", number(r.integer(0, 1))}, {"count_include_pad", number(r.integer(0, 1))}};
    CAPTURE(graph::to_string(dims));
    CAPTURE(graph::to_string(kernel));
    CAPTURE(graph::to_string(strides));
    CAPTURE(graph::to_string(pads));
    bool fits = true;
    for (std::size_t i = 0; i < axes; ++i) {
      fits = fits && dims[i + 2] + begins[i] + ends[i] > dilations[i] * (kernel[i] - 1);
    }
    if (!fits) {
      continue;
    }
    const std::size_t count = graph::element_count(dims);
    std::vector<float> x = r.reals(count, -9.0F, 9.0F);
    for (float& value : x) {
      value = r.chance(97)   ? value
              : r.chance(50) ? (r.chance(50) ? 0.0F : -0.0F)
              : r.chance(50) ? quiet_nan
              : r.chance(50) ? infinity
                             : -infinity;
    }
    const tensor in = floats(dims, x);
    const graph::model m = single_node("AveragePool", {in}, false, a, "");
    for_each_target([&] {
      const tensor plain = run_twice(m, {in}, false);
      const tensor last = run_twice(m, {graph::to_channels_last(in)}, false);
      REQUIRE(plain.dims() == last.dims());
      CHECK(same_or_nan(values_of<float>(plain), values_of<float>(last)));
      const graph::ops::window_attributes w{kernel, strides, dilations, begins, ends};
      over_planes += graph::ops::plane_windows::fit(dims, plain.dims(), w) ? 1 : 0;
    });
  }
  CHECK(over_planes > 50);
}

TEST_CASE("corners: Max of NaN and of zeros, at every length") {
  random_source r(62);
  INFO("seed ", r.seed());
  for (std::int64_t n = 1; n < 80; ++n) {
    CAPTURE(n);
    std::vector<std::vector<float>> x(3);
    std::vector<tensor> inputs;
    for (std::vector<float>& values : x) {
      values = r.reals(static_cast<std::size_t>(n), -1.0F, 1.0F);
      for (float& value : values) {
        value = r.chance(60) ? value : r.chance(30) ? quiet_nan : r.chance(50) ? 0.0F : -0.0F;
      }
      inputs.push_back(floats({n}, values));
    }
    // NaN wins, and of equal values the second one.
    std::vector<float> expected = x[0];
    for (std::size_t k = 1; k < 3; ++k) {
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const float a = expected[i];
        expected[i] = a > x[k][i] || std::isnan(a) ? a : x[k][i];
      }
      const std::vector<tensor> some(inputs.begin(),
                                     inputs.begin() + static_cast<std::ptrdiff_t>(k + 1));
      const graph::model m = single_node("Max", some, false, {}, "");
      for_each_target(
          [&] { CHECK(same_or_nan(values_of<float>(run_twice(m, some, false)), expected)); });
    }
  }
}

TEST_CASE("corners: ArgMax and ArgMin of equal elements") {
  const tensor x = floats({2, 4}, {3, 7, 7, 1, 0, 0, 0, 0});
  for (const std::int64_t last : {0, 1}) {
    const attributes a{{"axis", number(1)}, {"select_last_index", number(last)}};
    CHECK(values_of<std::int64_t>(result_of("ArgMax", {x}, a)) ==
          std::vector<std::int64_t>{last != 0 ? 2 : 1, last != 0 ? 3 : 0});
    CHECK(values_of<std::int64_t>(result_of("ArgMin", {x}, a)) ==
          std::vector<std::int64_t>{3, last != 0 ? 3 : 0});
  }
}

TEST_CASE("corners: indices of Gather at and beyond both ends") {
  const tensor x = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  CHECK(values_of<float>(result_of("Gather", {x, longs({-3, 2, -1})})) ==
        std::vector<float>{1, 2, 5, 6, 5, 6});
  for (const std::int64_t index :
       {std::int64_t{-4}, std::int64_t{3}, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    for (const char* op : {"Gather", "GatherElements", "GatherND"}) {
      INFO(op, " ", index);
      const bool along_rows = std::string(op) == "GatherElements";
      const tensor at = along_rows
                            ? make_tensor<std::int64_t>(element_type::s64, {1, 2}, {0, index})
                            : longs({index});
      check_graph_error(error_kind::bad_file, {op, "index " + std::to_string(index)}, [&] {
        static_cast<void>(result_of(op, {x, at}));
      });
    }
  }
}

TEST_CASE("corners: ConvTranspose with an output_shape") {
  // Input [1, 2], weights [1, 10, 100], stride 2: the full result is [1, 10, 102, 20, 200].
  const std::vector<tensor> inputs{floats({1, 1, 2}, {1, 2}), floats({1, 1, 3}, {1, 10, 100})};
  const auto cut = [&](std::int64_t extent, const char* automatic) {
    attributes a{{"strides", list({2})}, {"output_shape", list({extent})}};
    if (automatic != nullptr) {
      a.emplace("auto_pad", text(automatic));
    }
    return values_of<float>(result_of("ConvTranspose", inputs, a));
  };
  CHECK(cut(5, nullptr) == std::vector<float>{1, 10, 102, 20, 200});
  // If an odd number of elements is cut off, the odd one is the first, except for SAME_UPPER.
  CHECK(cut(4, nullptr) == std::vector<float>{10, 102, 20, 200});
  CHECK(cut(4, "NOTSET") == std::vector<float>{10, 102, 20, 200});
  CHECK(cut(4, "SAME_LOWER") == std::vector<float>{10, 102, 20, 200});
  CHECK(cut(4, "SAME_UPPER") == std::vector<float>{1, 10, 102, 20});
  CHECK(cut(2, nullptr) == std::vector<float>{102, 20});
}

TEST_CASE("corners: QLinearConcat of pieces of both types and different scales") {
  model_builder b;
  b.constant("ys", floats({}, {0.5F}));
  b.constant("yz", bytes({}, {10}));
  b.constant("as", floats({}, {0.25F}));
  b.constant("az", bytes({}, {3}));
  b.constant("bs", floats({}, {1.0F}));
  b.constant("bz", signed_bytes({}, {-4}));
  b.input("a", {1, 3}, element_type::u8);
  b.input("b", {1, 2}, element_type::s8);
  b.output(b.add("QLinearConcat", {"ys", "yz", "a", "as", "az", "b", "bs", "bz"},
                 {{"axis", number(1)}}, "com.microsoft"),
           element_type::u8);
  // (q - z) * s / 0.5 + 10, ties to even, clamped to 0..255.
  const tensor y =
      run(b.get(), {{"a", bytes({1, 3}, {3, 4, 255})}, {"b", signed_bytes({1, 2}, {-4, -128})}})[0];
  CHECK(values_of<std::uint8_t>(y) == std::vector<std::uint8_t>{10, 10, 136, 10, 0});
  // The parameters of the result, but the other type: the same reals, where the result holds them.
  b.constant("bs", floats({}, {0.5F}));
  b.constant("bz", signed_bytes({}, {10}));
  const tensor z =
      run(b.get(), {{"a", bytes({1, 3}, {3, 4, 255})}, {"b", signed_bytes({1, 2}, {12, -20})}})[0];
  CHECK(values_of<std::uint8_t>(z) == std::vector<std::uint8_t>{10, 10, 136, 12, 0});
}

TEST_CASE("corners: QuantizeLinear in blocks, of which the last one is shorter") {
  const attributes blocks{{"axis", number(1)}, {"block_size", number(3)}};
  const tensor x = floats({2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const tensor scales = floats({2, 2}, {1, 2, 0.5F, 4});
  const tensor zeros = bytes({2, 2}, {0, 1, 2, 3});
  const tensor q = result_of("QuantizeLinear", {x, scales, zeros}, blocks, 21);
  CHECK(values_of<std::uint8_t>(q) == std::vector<std::uint8_t>{1, 2, 3, 3, 3, 14, 16, 18, 5, 5});
  CHECK(values_of<float>(result_of("DequantizeLinear", {q, scales, zeros}, blocks, 21)) ==
        std::vector<float>{1, 2, 3, 4, 4, 6, 7, 8, 8, 8});
  check_graph_error(error_kind::bad_file, {"QuantizeLinear", "[2,1]", "[2,2]"}, [&] {
    static_cast<void>(result_of("QuantizeLinear",
                                {x, floats({2, 1}, {1, 2}), bytes({2, 1}, {0, 1})}, blocks, 21));
  });
}

TEST_CASE("corners: a blocked DequantizeLinear behind a Conv keeps the layer in float") {
  model_builder b(21);
  b.input("x", {1, 1, 2, 2});
  b.constant("w", floats({2, 1, 1, 1}, {1.0F, -2.0F}));
  b.constant("s", floats({1, 1, 2, 2}, {1, 2, 3, 4}));
  const std::string c = b.add("Conv", {"x", "w"});
  b.constant("s2", floats({1, 2, 1, 2}, {1, 2, 1, 2}));
  b.constant("z2", bytes({1, 2, 1, 2}, {128, 128, 128, 128}));
  const attributes a{{"axis", number(2)}, {"block_size", number(2)}};
  const std::string q = b.add("QuantizeLinear", {c, "s2", "z2"}, a);
  b.output(b.add("DequantizeLinear", {q, "s2", "z2"}, a));
  const tensors inputs{{"x", floats({1, 1, 2, 2}, {1, 3, 5, 8})}};
  const auto expected = values_of<float>(run(b.get(), inputs)[0]);
  CHECK(expected == std::vector<float>{1, 4, 5, 8, -2, -6, -10, -16});
  CHECK(values_of<float>(run(graph::for_execution(b.get()), inputs)[0]) == expected);
}

TEST_CASE("corners: a movement between uint8 and int8 of the same scale is no plain move") {
  for (const char* op : {"Transpose", "Reshape", "MaxPool"}) {
    INFO(op);
    model_builder b(13);
    b.input("x", {1, 1, 2, 3});
    b.constant("shape", std::vector<std::int64_t>{3, 2});
    std::vector<std::string> inputs{
        b.dequantize(b.quantize("x", 0.5F, 100, element_type::u8), 0.5F, 100, element_type::u8)};
    attributes a;
    if (std::string(op) == "Reshape") {
      inputs.emplace_back("shape");
    } else if (std::string(op) == "MaxPool") {
      a.emplace("kernel_shape", list({1, 1}));
    }
    const std::string moved = b.add(op, inputs, a);
    // The zero points are as numbers the same, the types are not.
    b.output(
        b.dequantize(b.quantize(moved, 0.5F, 100, element_type::s8), 0.5F, 100, element_type::s8));
    const tensors given{{"x", floats({1, 1, 2, 3}, {-30, -1, 0, 5, 13, 60})}};
    CHECK(values_of<float>(run(graph::for_execution(b.get()), given)[0]) ==
          values_of<float>(run(b.get(), given)[0]));
  }
}

TEST_CASE("corners: integers at the end of their type") {
  const auto doubles = [](const std::vector<double>& v) {
    return make_tensor(element_type::f64, {static_cast<std::int64_t>(v.size())}, v);
  };
  const auto cast = [&](element_type type, const std::vector<double>& v) {
    return result_of("Cast", {doubles(v)}, {{"to", number(static_cast<std::int64_t>(type))}}, 21);
  };
  constexpr auto largest = std::numeric_limits<std::int64_t>::max();
  CHECK(values_of<std::int64_t>(cast(element_type::s64, {0x1p63, -0x1p63, 0x1p62})) ==
        std::vector<std::int64_t>{largest, -largest - 1, std::int64_t{1} << 62});
  CHECK(values_of<std::uint8_t>(cast(element_type::u8, {256.0, 255.0, 1e30, -1.0})) ==
        std::vector<std::uint8_t>{255, 255, 255, 0});
  CHECK(values_of<std::uint8_t>(cast(element_type::u4, {20.0, 15.0, -1.0})) ==
        std::vector<std::uint8_t>{4, 15, 15});
  // 1 / (-1)^n, and 1 / 2^n rounded toward zero.
  CHECK(
      values_of<std::int64_t>(result_of("Pow", {longs({-1, -1, 1, 2}), longs({-2, -3, -5, -1})})) ==
      std::vector<std::int64_t>{1, -1, 1, 0});
  const auto range = [](std::int64_t start, std::int64_t limit, std::int64_t delta) {
    const auto one = [](std::int64_t v) {
      return make_tensor(element_type::s64, {}, std::vector{v});
    };
    return values_of<std::int64_t>(result_of("Range", {one(start), one(limit), one(delta)}));
  };
  CHECK(range(5, 0, -2) == std::vector<std::int64_t>{5, 3, 1});
  CHECK(range(0, 5, -1).empty());
  CHECK(range(0, 5, 2) == std::vector<std::int64_t>{0, 2, 4});
  CHECK(range(5, 0, 1).empty());
  // In operator set 10 the largest int32 stands for the end of the axis, forwards and backwards.
  constexpr std::int64_t end = std::numeric_limits<std::int32_t>::max();
  const tensor x = floats({4}, {1, 2, 3, 4});
  CHECK(values_of<float>(result_of("Slice", {x, longs({1}), longs({end}), longs({0}), longs({1})},
                                   {}, 10)) == std::vector<float>{2, 3, 4});
  CHECK(values_of<float>(result_of("Slice", {x, longs({2}), longs({end}), longs({0}), longs({-1})},
                                   {}, 10)) == std::vector<float>{3, 2, 1});
}

TEST_CASE("corners: where Resize takes its elements from") {
  const auto resize = [](const std::vector<float>& x, std::vector<tensor> more, attributes a,
                         std::int64_t opset = 17) {
    std::vector<tensor> inputs = {floats({static_cast<std::int64_t>(x.size())}, x)};
    inputs.insert(inputs.end(), more.begin(), more.end());
    return values_of<float>(result_of("Resize", inputs, std::move(a), opset));
  };
  const auto text = [](const std::string& value) {
    graph::attribute a;
    a.kind = graph::attribute::kind_type::s;
    a.s = value;
    return a;
  };
  // 3 elements times 1.5 are 4.5, of which 4 are made; the last corner is that of 4.5.
  const auto corners =
      resize({0, 7, 14}, {tensor(), floats({1}, {1.5F})},
             {{"mode", text("linear")}, {"coordinate_transformation_mode", text("align_corners")}});
  REQUIRE(corners.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(corners[i] == doctest::Approx(4.0F * static_cast<float>(i)));
  }
  // A single element is the first one.
  CHECK(resize({1, 2, 3, 4}, {tensor(), tensor(), longs({1})},
               {{"mode", text("linear")},
                {"coordinate_transformation_mode", text("pytorch_half_pixel")}}) ==
        std::vector<float>{1});
  // In operator set 10, coordinates are rounded up where there are fewer elements, else down.
  CHECK(resize({1, 2, 3, 4}, {floats({1}, {0.75F})}, {}, 10) == std::vector<float>{1, 3, 4});
  CHECK(resize({1, 2, 3}, {floats({1}, {1.5F})}, {}, 10) == std::vector<float>{1, 1, 2, 3});
}

TEST_CASE("corners: shapes that do not fit are refused") {
  const auto fails = [](std::initializer_list<std::string_view> words, const std::string& op,
                        const std::vector<tensor>& inputs, const attributes& a = {}) {
    check_graph_error(error_kind::bad_file, words,
                      [&] { static_cast<void>(result_of(op, inputs, a)); });
  };
  const auto ones = [](const shape& dims) {
    return floats(dims, std::vector<float>(graph::element_count(dims), 1.0F));
  };
  fails({"reaches over 4", "has 3"}, "Conv", {ones({1, 1, 3, 9}), ones({1, 1, 4, 2})});
  fails({"reaches over 5", "has 4"}, "MaxPool", {ones({1, 1, 4, 9})},
        {{"kernel_shape", list({3, 1})}, {"dilations", list({2, 1})}});
  fails({"K is 3", "4"}, "Gemm", {ones({2, 3}), ones({4, 5})});
  fails({"Split"}, "Split", {ones({3}), longs({2, 2})});
  model_builder parts(18);  // two elements each would be used up before the last part
  parts.input("x", {5});
  parts.output(parts.add("Split", {"x"}, {{"num_outputs", number(4)}}));
  for (const char* name : {"b", "c", "d"}) {
    parts.get().nodes[0].outputs.emplace_back(name);
    parts.output(name);
  }
  check_graph_error(error_kind::bad_file, {"Split", "into 4 parts of 2"}, [&] {
    static_cast<void>(run(parts.get(), {{"x", ones({5})}}));
  });
  fails({"cannot be broadcast"}, "Add", {ones({2, 3}), ones({2})});
}

TEST_CASE("corners: copies that threads share out unevenly") {
  // 1009 is a prime: no two parts need have the same length.
  random_source random(5);
  INFO("seed ", random.seed());
  model_builder b;
  b.input("x", {1009, 40, 30});
  b.constant("0", longs({0}));
  b.constant("30", longs({30}));
  b.constant("2", longs({2}));
  b.output(b.add("Slice", {"x", "0", "30", "2", "2"}));
  std::vector<float> x = random.reals(1009 * 40 * 30, -1.0F, 1.0F);
  const tensors given = {{"x", floats({1009, 40, 30}, x)}};
  std::vector<float> every_other;
  for (std::size_t i = 0; i < x.size(); i += 2) {
    every_other.push_back(x[i]);
  }
  std::fill(x.begin(), x.end(), 7.0F);
  const tensors sevens = {{"x", floats({1009, 40, 30}, x)}};
  detent::thread_pool pool(3);
  graph::executor_options options;
  options.parallel = pool.parallel();
  graph::executor shared(b.get(), options);
  // The second run gets the memory of the first one's result.
  static_cast<void>(shared.run(sevens));
  CHECK((values_of<float>(shared.run(given)[0]) == every_other));
}

TEST_CASE("corners: sums of uint8 and products of more elements than one piece holds") {
  random_source random(99);
  INFO("seed ", random.seed());
  constexpr std::size_t n = 16384 * 2 + 777;
  const auto a = random.integers<std::uint8_t>(n);
  const auto c = random.integers<std::uint8_t>(n);
  const detent::quant_params pa{0.25F, 7};
  const detent::quant_params pc{0.5F, 130};
  const detent::quant_params py{1.5F, 90};
  detent::thread_pool pool(3);
  for (const char* op : {"Add", "Mul"}) {
    model_builder b;
    b.input("a", {static_cast<std::int64_t>(n)}, element_type::u8);
    b.input("c", {static_cast<std::int64_t>(n)}, element_type::u8);
    for (const auto& [name, p] : {std::pair("a", pa), std::pair("c", pc), std::pair("y", py)}) {
      b.constant(std::string(name) + "s", floats({}, {p.scale}));
      b.constant(std::string(name) + "z", bytes({}, {static_cast<std::uint8_t>(p.zero_point)}));
    }
    b.output(b.add(std::string("QLinear") + op, {"a", "as", "az", "c", "cs", "cz", "ys", "yz"}, {},
                   "com.microsoft"),
             element_type::u8);
    for (const bool is_parallel : {false, true}) {
      graph::executor_options options;
      if (is_parallel) {
        options.parallel = pool.parallel();
      }
      const auto y = values_of<std::uint8_t>(run(b.get(),
                                                 {{"a", bytes({static_cast<std::int64_t>(n)}, a)},
                                                  {"c", bytes({static_cast<std::int64_t>(n)}, c)}},
                                                 options)[0]);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const float u = detent::reference::dequantize(a[i], pa);
        const float v = detent::reference::dequantize(c[i], pc);
        const float r = std::string(op) == "Add" ? u + v : u * v;
        wrong += y[i] != detent::reference::quantize(r, py, detent::full_grid<std::uint8_t>);
      }
      INFO(op, is_parallel ? " on threads" : "");
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("corners: LayerNormalization and RMSNormalization with scales of every shape") {
  test::random_source random(30);
  INFO("seed ", random.seed());
  struct broadcast {
    shape x, scale;
    std::int64_t axis;
  };
  const broadcast all[] = {
      {{4, 3, 4}, {4}, -1},        // a scale for each element
      {{4, 3, 4}, {4, 1, 1}, -1},  // as many, but one for each row
      {{4, 3, 4}, {1, 1, 4}, -1},  // with leading ones
      {{4, 3, 4}, {}, -1},         // one
      {{2, 3, 4}, {3, 4}, 1},      // for each element of two axes
      {{2, 3, 4}, {4}, 1},         // for the last of two axes
      {{2, 3, 4}, {2, 3, 4}, 2},   // for all elements
      {{2, 3, 100}, {100}, -1},    // longer than a vector
      {{5, 1}, {1}, -1},           // rows of one element
  };
  for (const broadcast& b : all) {
    INFO(detent::detail::message(graph::shown(b.x), " ", graph::shown(b.scale)));
    const tensor x = random_floats(random, b.x, -2.0F, 3.0F);
    const tensor scale = random_floats(random, b.scale, -2.0F, 2.0F);
    const tensor bias = random_floats(random, b.scale, -1.0F, 1.0F);
    const attributes axis = {{"axis", number(b.axis)}};
    const tensor layer = result_of("LayerNormalization", {x, scale, bias}, axis);
    const tensor unbiased = result_of("LayerNormalization", {x, scale}, axis);
    const tensor root = result_of("RMSNormalization", {x, scale}, axis, 23);
    const std::size_t rank = b.x.size();
    const auto first =
        static_cast<std::size_t>(b.axis < 0 ? b.axis + static_cast<std::int64_t>(rank) : b.axis);
    std::size_t length = 1;
    for (std::size_t d = first; d < rank; ++d) {
      length *= static_cast<std::size_t>(b.x[d]);
    }
    for (std::size_t i = 0; i < x.count(); ++i) {
      CAPTURE(i);
      std::size_t at = 0;  // of the scale
      std::size_t step = 1;
      std::size_t rest = i;
      for (std::size_t d = rank; d-- > 0;) {
        const std::size_t missing = rank - b.scale.size();
        if (d >= missing && b.scale[d - missing] != 1) {
          at += rest % static_cast<std::size_t>(b.x[d]) * step;
          step *= static_cast<std::size_t>(b.x[d]);
        }
        rest /= static_cast<std::size_t>(b.x[d]);
      }
      const auto row = x.data<float>().subspan(i / length * length, length);
      double mean = 0.0;
      double squares = 0.0;
      for (const float v : row) {
        mean += static_cast<double>(v) / static_cast<double>(length);
        squares += static_cast<double>(v) * static_cast<double>(v) / static_cast<double>(length);
      }
      double variance = 0.0;
      for (const float v : row) {
        const double difference = static_cast<double>(v) - mean;
        variance += difference * difference / static_cast<double>(length);
      }
      const auto value = static_cast<double>(x.data<float>()[i]);
      const auto s = static_cast<double>(scale.data<float>()[at]);
      const double normalized = s * (value - mean) / std::sqrt(variance + 1e-5);
      const auto near = [](float actual, double expected) {
        return std::fabs(static_cast<double>(actual) - expected) <=
               1e-6 * (1 + std::fabs(expected));
      };
      CHECK(near(layer.data<float>()[i], normalized + static_cast<double>(bias.data<float>()[at])));
      CHECK(near(unbiased.data<float>()[i], normalized));
      CHECK(near(root.data<float>()[i], s * value / std::sqrt(squares + 1e-5)));
    }
  }
}

TEST_CASE("corners: the largest and smallest elements of rows, with NaN, ties and zeros") {
  test::random_source random(34);
  INFO("seed ", random.seed());
  for (const std::size_t length : {1U, 2U, 15U, 16U, 17U, 64U, 100U, 1000U}) {
    for (const float special : {1.0F, quiet_nan, infinity, -infinity, -0.0F}) {
      CAPTURE(length);
      CAPTURE(special);
      // Small integers, so that there are ties; the last row has nothing but zeros of both signs.
      std::vector<float> x(4 * length);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = i < 3 * length ? static_cast<float>(random.integer(-3, 3))
                              : std::copysign(0.0F, random.real(-1.0F, 1.0F));
      }
      x[random.size(0, length - 1)] = special;
      x[length + random.size(0, length - 1)] = special;
      x[length + random.size(0, length - 1)] = special;
      const tensor in = floats({4, static_cast<std::int64_t>(length)}, x);
      for (const bool largest : {true, false}) {
        CAPTURE(largest);
        const auto better = [largest](float a, float b) { return largest ? a > b : a < b; };
        const auto extremes = values_of<float>(
            result_of(largest ? "ReduceMax" : "ReduceMin", {in, longs({1})}, {}, 18));
        const auto index_of = [&](std::int64_t last) {
          return values_of<std::int64_t>(
              result_of(largest ? "ArgMax" : "ArgMin", {in},
                        {{"axis", number(1)}, {"select_last_index", number(last)}}));
        };
        const std::vector<std::int64_t> first_index = index_of(0);
        const std::vector<std::int64_t> last_index = index_of(1);
        for (std::size_t row = 0; row < 4; ++row) {
          std::size_t first = 0;
          std::size_t last = 0;
          const float* values = x.data() + row * length;
          for (std::size_t i = 1; i < length; ++i) {
            const float best = values[first];
            if (std::isnan(best) ? std::isnan(values[i]) : values[i] == best) {
              last = i;
            } else if (!std::isnan(best) && (std::isnan(values[i]) || better(values[i], best))) {
              first = last = i;
            }
          }
          CHECK(first_index[row] == static_cast<std::int64_t>(first));
          CHECK(last_index[row] == static_cast<std::int64_t>(last));
          CHECK((std::isnan(values[first]) ? std::isnan(extremes[row])
                                           : extremes[row] == values[first]));
          CHECK(!(extremes[row] == 0.0F && std::signbit(extremes[row])));
        }
      }
    }
  }
}

TEST_CASE("corners: sums of columns, and averages of windows with and without padding") {
  test::random_source random(35);
  INFO("seed ", random.seed());
  for (const std::int64_t columns : {1, 7, 8, 33, 100}) {
    CAPTURE(columns);
    const tensor x = random_floats(random, {3, 5, columns}, -9.0F, 9.0F);
    const auto in = x.data<float>();
    const auto sums = values_of<float>(result_of("ReduceSum", {x, longs({0, 1})}));
    const auto means = values_of<float>(result_of("ReduceMean", {x, longs({1})}, {}, 18));
    const auto n = static_cast<std::size_t>(columns);
    for (std::size_t k = 0; k < n; ++k) {
      double all = 0.0;
      for (std::size_t outer = 0; outer < 3; ++outer) {
        double sum = 0.0;
        for (std::size_t row = 0; row < 5; ++row) {
          sum += static_cast<double>(in[(outer * 5 + row) * n + k]);
        }
        CHECK(means[outer * n + k] == static_cast<float>(sum / 5.0));
        all += sum;
      }
      CHECK(std::fabs(static_cast<double>(sums[k]) - all) <= 1e-5);
    }
    // Channels are averaged side by side.
    for (const std::int64_t with_padding : {0, 1}) {
      const tensor image = random_floats(random, {2, columns, 4}, -9.0F, 9.0F);
      const auto averages =
          values_of<float>(result_of("AveragePool", {image},
                                     {{"kernel_shape", list({3})},
                                      {"pads", list({1, 1})},
                                      {"count_include_pad", number(with_padding)}}));
      for (std::size_t row = 0; row < 2 * n; ++row) {
        for (std::size_t at = 0; at < 4; ++at) {
          double sum = 0.0;
          int count = 0;
          for (std::size_t tap = at == 0 ? 1 : 0; tap < 3 && at + tap < 5; ++tap) {
            sum += static_cast<double>(image.data<float>()[row * 4 + at + tap - 1]);
            ++count;
          }
          const double divisor = with_padding != 0 ? 3.0 : static_cast<double>(count);
          CHECK(averages[row * 4 + at] == static_cast<float>(sum / divisor));
        }
      }
    }
  }
}

TEST_CASE("corners: squares, and functions with an exponential on one side") {
  const std::vector<float> x = {-2.5F, -0.0F, 0.0F, 0.3F, 1e30F, -infinity, quiet_nan, 1e-30F};
  const tensor in = floats({8}, x);
  const auto squares = result_of("Pow", {in, floats({1, 1}, {2.0F})});
  CHECK(squares.dims() == shape{1, 8});
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK((x[i] == x[i] ? squares.data<float>()[i] == x[i] * x[i]
                        : std::isnan(squares.data<float>()[i])));
  }
  const auto cubes = values_of<float>(result_of("Pow", {in, floats({1}, {3.0F})}));
  CHECK(cubes[0] == -15.625F);
  const auto near = [](float actual, double expected) {
    return std::fabs(static_cast<double>(actual) - expected) <= 4e-7 * std::fabs(expected);
  };
  const auto zeros = values_of<float>(result_of("Elu", {in}));
  CHECK((zeros[1] == 0.0F && std::signbit(zeros[1])));
  CHECK((zeros[2] == 0.0F && !std::signbit(zeros[2])));
  CHECK(zeros[5] == -1.0F);
  const tensor values = floats({4}, {-1.5F, -0.01F, 0.25F, 3.0F});
  const auto elu = values_of<float>(result_of("Elu", {values}, {{"alpha", test::real(0.5F)}}));
  const auto selu = values_of<float>(
      result_of("Selu", {values}, {{"alpha", test::real(0.5F)}, {"gamma", test::real(2.0F)}}));
  const auto celu = values_of<float>(result_of("Celu", {values}, {{"alpha", test::real(0.5F)}}));
  const auto rising = values_of<float>(result_of("Celu", {values}, {{"alpha", test::real(-0.5F)}}));
  for (std::size_t i = 0; i < 4; ++i) {
    const auto v = static_cast<double>(values.data<float>()[i]);
    CHECK(near(elu[i], v > 0.0 ? v : 0.5 * std::expm1(v)));
    CHECK(near(selu[i], 2.0 * (v > 0.0 ? v : 0.5 * std::expm1(v))));
    CHECK(near(celu[i], v > 0.0 ? v : 0.5 * std::expm1(v / 0.5)));
    CHECK(near(rising[i], v > 0.0 ? v : -0.5 * std::expm1(v / -0.5)));
  }
}

TEST_CASE("corners: functions of single elements, however many there are") {
  test::random_source random(31);
  INFO("seed ", random.seed());
  std::vector<float> x = {0.0F, -0.0F, 1.0F, infinity, -infinity, quiet_nan, 1e-40F, 3e38F, -3e38F};
  while (x.size() < 1500) {  // more than the blocks that functions are computed in
    x.push_back(std::ldexp(random.real(-1.0F, 1.0F), random.integer(-20, 7)));
  }
  const auto same = [](float a, float b) {
    return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
  };
  const std::vector<std::pair<const char*, attributes>> functions = {
      {"Exp", {}},
      {"Erf", {}},
      {"Sigmoid", {}},
      {"Tanh", {}},
      {"Gelu", {}},
      {"Gelu", {{"approximate", text("tanh")}}},
      {"Swish", {}},
      {"Mish", {}},
      {"Swish", {{"alpha", test::real(-1.7F)}}},
      {"Softplus", {}},
      {"Log", {}},
      {"Elu", {}},
      {"Elu", {{"alpha", test::real(0.7F)}}},
      {"Selu", {}},
      {"Selu", {{"alpha", test::real(0.3F)}, {"gamma", test::real(1.4F)}}},
      {"Celu", {{"alpha", test::real(1.7F)}}},
      {"HardSwish", {}},
      {"HardSigmoid", {}},
      {"HardSigmoid", {{"alpha", test::real(0.3F)}, {"beta", test::real(0.4F)}}},
      {"Sqrt", {}},
      {"Floor", {}},
      {"Ceil", {}},
      {"Round", {}}};
  for (const auto& function : functions) {
    const char* const op = function.first;
    const attributes& a = function.second;
    CAPTURE(op);
    graph::node n;
    n.op_type = op;
    n.attributes = a;
    for (const std::size_t size : {std::size_t{1}, std::size_t{255}, std::size_t{256},
                                   std::size_t{257}, std::size_t{513}, x.size()}) {
      const std::vector<float> some(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(size));
      const tensor y = result_of(
          op, {make_tensor(element_type::f32, {static_cast<std::int64_t>(size)}, some)}, a, 24);
      for (std::size_t i = 0; i < size; ++i) {
        CAPTURE(some[i]);
        CHECK(same(y.data<float>()[i], graph::ops::apply_unary(n, 24, some[i])));
      }
    }
  }
}

TEST_CASE("corners: Softmax and LogSoftmax of rows of any length, along any axis") {
  test::random_source random(32);
  INFO("seed ", random.seed());
  // The difference to the largest element is rounded to float, and so is what follows.
  const auto close = [](double actual, long double expected, long double distance) {
    const auto units = static_cast<double>(3.0L - distance);
    return std::fabs(actual - static_cast<double>(expected)) <=
           0x1p-24 * units * static_cast<double>(expected);
  };
  for (const std::int64_t length : {1, 2, 3, 7, 8, 9, 100, 1023, 1024, 1025, 5000}) {
    for (const bool last : {true, false}) {
      CAPTURE(length);
      const shape dims = last ? shape{2, 3, length} : shape{2, length, 3};
      std::vector<float> x(static_cast<std::size_t>(6 * length));
      for (float& value : x) {
        value = random.real(-30.0F, 30.0F);
      }
      const attributes axis = {{"axis", number(last ? 2 : 1)}};
      const tensor in = make_tensor(element_type::f32, dims, x);
      const tensor y = result_of("Softmax", {in}, axis);
      const tensor z = result_of("LogSoftmax", {in}, axis);
      const std::size_t step = last ? 1 : 3;
      for (std::size_t row = 0; row < 6; ++row) {
        const std::size_t n = static_cast<std::size_t>(length);
        const std::size_t first = last ? row * n : row / 3 * n * 3 + row % 3;
        long double largest = -1e30L;
        long double sum = 0.0L;
        for (std::size_t i = 0; i < n; ++i) {
          largest = (std::max)(largest, static_cast<long double>(x[first + i * step]));
        }
        for (std::size_t i = 0; i < n; ++i) {
          sum += std::exp(static_cast<long double>(x[first + i * step]) - largest);
        }
        for (std::size_t i = 0; i < n; ++i) {
          const long double distance = static_cast<long double>(x[first + i * step]) - largest;
          const std::size_t at = first + i * step;
          CHECK(
              close(static_cast<double>(y.data<float>()[at]), std::exp(distance) / sum, distance));
          CHECK(std::fabs(static_cast<double>(z.data<float>()[at]) -
                          static_cast<double>(distance - std::log(sum))) < 7e-6);
        }
      }
    }
  }
  // A row with NaN or infinity becomes NaN; those beside it do not.
  for (const float bad : {quiet_nan, infinity}) {
    const tensor in = make_tensor(element_type::f32, {2, 3},
                                  std::vector<float>{1.0F, bad, 2.0F, 1.0F, 1.0F, 1.0F});
    for (const char* op : {"Softmax", "LogSoftmax"}) {
      const tensor y = result_of(op, {in}, {{"axis", number(1)}});
      CHECK(std::isnan(y.data<float>()[0]));
      CHECK(std::isnan(y.data<float>()[1]));
      CHECK(std::fabs(y.data<float>()[3] - (*op == 'S' ? 1.0F / 3.0F : -std::log(3.0F))) < 1e-6F);
    }
  }
  const tensor hidden =
      make_tensor(element_type::f32, {1, 3}, std::vector<float>{-infinity, 0.0F, -infinity});
  const tensor y = result_of("Softmax", {hidden}, {{"axis", number(1)}});
  CHECK(y.data<float>()[0] == 0.0F);
  CHECK(y.data<float>()[1] == 1.0F);
}
