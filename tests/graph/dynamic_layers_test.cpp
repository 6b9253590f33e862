// SPDX-License-Identifier: BSD-3-Clause
// The operators detent.DynamicLinear, DynamicConv and MatMulNBits: they return the bits of
// dynamic_linear(), dynamic_convolve() and com.microsoft.MatMulNBits, and name what is wrong.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/dynamic_convolution.hpp>
#include <detent/dynamic_linear.hpp>
#include <detent/int4_weights.hpp>
#include <detent/pack.hpp>

#include "check_graph_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "single_node.hpp"

namespace {

using namespace detent;
using namespace test;

template <class T>
tensor bytes(element_type type, shape dims, const std::vector<T>& values) {
  tensor t = tensor::allocate(type, std::move(dims));
  std::memcpy(t.mutable_raw(), values.data(), t.bytes());
  return t;
}

/// The output of one node of the domain `domain`; all inputs but the first are constants if
/// `constant`.
tensor run(const std::string& op, const std::vector<tensor>& inputs, test::attributes a = {},
           bool constant = true, const char* domain = "detent") {
  return run_twice(single_node(op, inputs, constant, std::move(a), domain), inputs, constant);
}

constexpr std::size_t rows = 6;
constexpr std::size_t depth = 37;
constexpr std::size_t columns = 19;

/// Operands of a DynamicLinear.
struct linear_case {
  std::vector<float> x, scales, bias;
  std::vector<std::int8_t> b;  // [K, N]
  std::vector<std::int8_t> zero_points;

  explicit linear_case(std::uint64_t seed) {
    test::random_source r(seed);
    x = r.reals(rows * depth, -2.0F, 3.0F);
    scales = r.reals(columns, 0.001F, 0.02F);
    bias = r.reals(columns, -1.0F, 1.0F);
    b = r.integers<std::int8_t>(depth * columns);
    zero_points = r.integers<std::int8_t>(columns);
  }
  [[nodiscard]] matrix_view<const std::int8_t> matrix() const { return {b.data(), depth, columns}; }
  [[nodiscard]] tensor lhs() const { return floats({2, 3, depth}, x); }
  [[nodiscard]] std::vector<tensor> inputs() const {
    return {lhs(), bytes(element_type::s8, {depth, columns}, b), floats({columns}, scales),
            bytes(element_type::s8, {columns}, zero_points), floats({columns}, bias)};
  }
  /// What dynamic_linear() computes.
  template <class Weights>
  [[nodiscard]] std::vector<float> expected(const Weights& weights, bool per_row,
                                            bool with_bias = true) const {
    std::vector<float> out(rows * columns);
    dynamic_linear_options o;
    o.per_row = per_row;
    if (with_bias) {
      o.bias = bias;
    }
    dynamic_linear(matrix_view<const float>(x.data(), rows, depth), weights,
                   matrix_view<float>(out.data(), rows, columns), o);
    return out;
  }
};

TEST_CASE("DynamicLinear: the bits of dynamic_linear()") {
  const linear_case c(81);
  std::vector<std::int32_t> zero_points(c.zero_points.begin(), c.zero_points.end());
  const packed_weights packed = pack_weights(c.matrix(), {c.scales, zero_points, {}});
  const packed_weights symmetric = pack_weights(c.matrix(), {c.scales, {}, {}});
  for_each_target([&] {
    for (const int per_row : {0, 1}) {
      CAPTURE(per_row);
      const std::vector<float> expected = c.expected(packed, per_row == 1);
      test::attributes a{{"per_row", number(per_row)}};
      for (const bool constant : {true, false}) {
        const tensor y = run("DynamicLinear", c.inputs(), a, constant);
        CHECK(y.dims() == shape{2, 3, columns});
        CHECK(test::difference(y.data<float>(), expected) == "");
      }
      // The transpose.
      std::vector<std::int8_t> stored(c.b.size());
      std::vector<std::uint8_t> shifted(c.b.size());
      for (std::size_t k = 0; k < depth; ++k) {
        for (std::size_t j = 0; j < columns; ++j) {
          stored[j * depth + k] = c.b[k * columns + j];
          shifted[k * columns + j] = static_cast<std::uint8_t>(c.b[k * columns + j] + 128);
        }
      }
      std::vector<tensor> inputs = c.inputs();
      inputs[1] = bytes(element_type::s8, {columns, depth}, stored);
      a["transB"] = number(1);
      CHECK(test::difference(run("DynamicLinear", inputs, a).data<float>(), expected) == "");
      a.erase("transB");
      // Unsigned weights whose zero points are moved, too.
      inputs[1] = bytes(element_type::u8, {depth, columns}, shifted);
      std::vector<std::uint8_t> moved;
      for (const std::int8_t z : c.zero_points) {
        moved.push_back(static_cast<std::uint8_t>(z + 128));
      }
      inputs[3] = bytes(element_type::u8, {columns}, moved);
      CHECK(test::difference(run("DynamicLinear", inputs, a).data<float>(), expected) == "");
      // Neither zero points nor bias.
      inputs = c.inputs();
      inputs.resize(3);
      CHECK(test::difference(run("DynamicLinear", inputs, a).data<float>(),
                             c.expected(symmetric, per_row == 1, false)) == "");
    }
  });
  // Rows by themselves are the default.
  CHECK(test::difference(run("DynamicLinear", c.inputs()).data<float>(),
                         c.expected(packed, true)) == "");
  // One scale and one zero point for all columns.
  std::vector<tensor> of_all = c.inputs();
  of_all[2] = floats({}, {0.25F});
  of_all[3] = bytes(element_type::s8, {1}, std::vector<std::int8_t>{-9});
  const std::vector<float> scale{0.25F};
  const std::vector<std::int32_t> zero_point{-9};
  CHECK(test::difference(run("DynamicLinear", of_all).data<float>(),
                         c.expected(pack_weights(c.matrix(), {scale, zero_point, {}}), true)) ==
        "");
  std::vector<tensor> none = c.inputs();
  none[0] = floats({2, 0, depth}, {});
  CHECK(run("DynamicLinear", none).dims() == shape{2, 0, columns});
}

TEST_CASE("DynamicLinear: weights in the saved forms of 8 and 4 bits") {
  const linear_case c(82);
  const auto saved = [](const auto& weights) {
    const std::vector<std::byte> all = weights.save();
    return bytes(element_type::u8, {static_cast<std::int64_t>(all.size())}, all);
  };
  const packed_weights of_8_bits = pack_weights(c.matrix(), {c.scales, {}, {}});
  std::vector<std::int8_t> codes;
  for (const std::int8_t w : c.b) {
    codes.push_back(static_cast<std::int8_t>(w >> 4));
  }
  const std::vector<float> group_scales(3 * columns, 0.125F);
  int4_weight_options o;
  o.group_size = 16;
  o.scales = {group_scales.data(), 3, columns};
  const packed_int4_weights of_4_bits =
      pack_int4_weights(matrix_view<const std::int8_t>(codes.data(), depth, columns), o);
  const test::attributes n{{"N", number(columns)}};
  const auto with = [&](const tensor& b) {
    return std::vector<tensor>{c.lhs(), b, {}, {}, floats({columns}, c.bias)};
  };
  CHECK(test::difference(run("DynamicLinear", with(saved(of_8_bits)), n).data<float>(),
                         c.expected(of_8_bits, true)) == "");
  CHECK(test::difference(run("DynamicLinear", with(saved(of_4_bits)), n).data<float>(),
                         c.expected(of_4_bits, true)) == "");

  const auto check = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         const std::vector<tensor>& inputs, const test::attributes& a) {
    check_graph_error(kind, words, [&] { static_cast<void>(run("DynamicLinear", inputs, a)); });
  };
  check(error_kind::bad_file, {"DynamicLinear", "N is 0", "saved form"}, with(saved(of_8_bits)),
        {});
  check(error_kind::bad_file, {"DynamicLinear", "37 x 19", "37 x 20"}, with(saved(of_4_bits)),
        {{"N", number(20)}});
  check(error_kind::bad_file, {"packed_weights::load"},
        with(bytes(element_type::u8, {4}, std::vector<std::uint8_t>{1, 2, 3, 4})), n);
  std::vector<tensor> scaled = with(saved(of_8_bits));
  scaled[2] = floats({1}, {1.0F});
  check(error_kind::bad_file, {"DynamicLinear", "are in the saved form"}, scaled, n);

  // An executor that has packed the weights refuses other depths with the same words.
  graph::model open = single_node("DynamicLinear", with(saved(of_8_bits)), true, n, "detent");
  open.inputs[0].has_shape = false;
  graph::executor kept(open);
  for (const std::int64_t k : {36, 37, 38}) {
    const tensors x{{"x0", floats({1, k}, std::vector<float>(static_cast<std::size_t>(k), 1.0F))}};
    if (k == depth) {
      CHECK(kept.run(x)[0].dims() == shape{1, columns});
      continue;
    }
    check_graph_error(
        error_kind::bad_file,
        {"DynamicLinear", "the saved weights are 37 x 19", "for " + std::to_string(k) + " x 19"},
        [&] { static_cast<void>(kept.run(x)); });
  }
  CHECK(kept.run(feeds(with(saved(of_8_bits)), true))[0].dims() == shape{2, 3, columns});
}

TEST_CASE("DynamicLinear: what is wrong is named") {
  const linear_case c(83);
  const auto check = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         std::size_t i, tensor t, const test::attributes& a = {}) {
    std::vector<tensor> inputs = c.inputs();
    inputs[i] = std::move(t);
    check_graph_error(kind, words, [&] { static_cast<void>(run("DynamicLinear", inputs, a)); });
  };
  check(error_kind::bad_file, {"DynamicLinear", "b_scale is missing"}, 2, {});
  check(error_kind::bad_file, {"DynamicLinear", "N is 20", "[37,19] has 19 columns"}, 0, c.lhs(),
        {{"N", number(20)}});
  check(error_kind::bad_file, {"DynamicLinear", "[2,3,36]", "[37,19]"}, 0,
        floats({2, 3, 36}, std::vector<float>(216)));
  check(error_kind::bad_file, {"DynamicLinear", "transB is 2"}, 0, c.lhs(),
        {{"transB", number(2)}});
  check(error_kind::bad_file, {"DynamicLinear", "per_row is -1"}, 0, c.lhs(),
        {{"per_row", number(-1)}});
  check(error_kind::bad_file, {"DynamicLinear", "scale 0"}, 2, floats({1}, {0.0F}));
  check(error_kind::bad_file, {"DynamicLinear", "2 weight scales", "19"}, 2,
        floats({2}, {1.0F, 2.0F}));
  check(error_kind::bad_file, {"DynamicLinear", "2 zero points"}, 3,
        bytes(element_type::s8, {2}, std::vector<std::int8_t>{1, 2}));
  check(error_kind::bad_file, {"DynamicLinear", "input 4 has 2 values"}, 4,
        floats({2}, {1.0F, 2.0F}));
  check(error_kind::bad_file, {"DynamicLinear", "rank 3"}, 1,
        tensor::allocate(element_type::s8, {1, 37, 19}));
  check(error_kind::unsupported, {"DynamicLinear", "B of type float"}, 1,
        floats({37, 19}, std::vector<float>(703)));
  check(error_kind::unsupported, {"DynamicLinear", "input 0 of type float64"}, 0,
        tensor::allocate(element_type::f64, {3, 37}));
  std::vector<float> infinite = c.x;
  infinite[7] = std::numeric_limits<float>::infinity();
  check(error_kind::invalid_argument, {"DynamicLinear", "inf is not finite"}, 0,
        floats({2, 3, depth}, infinite));
}

TEST_CASE("DynamicConv: the bits of dynamic_convolve()") {
  struct convolution_case {
    filter_shape f;
    window w;
    bool is_line;  // one spatial axis
  };
  std::vector<convolution_case> cases(3);
  cases[0].f = {8, 6, 1, 3, 3};
  cases[0].w.in_height = 7;
  cases[0].w.in_width = 9;
  cases[0].w.stride_width = 2;
  cases[0].w.pad_top = cases[0].w.pad_right = 1;
  cases[0].is_line = false;
  cases[1] = cases[0];
  cases[1].f = {8, 8, 8, 3, 3};
  cases[2].f = {6, 4, 2, 1, 5};
  cases[2].w.in_width = 20;
  cases[2].w.dilation_width = 2;
  cases[2].is_line = true;
  test::random_source r(84);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    const filter_shape& f = cases[i].f;
    window w = cases[i].w;
    w.batch = 3;
    w.input_layout = w.output_layout = activation_layout::nchw;
    const std::vector<float> x =
        r.reals(w.batch * f.in_channels * w.in_height * w.in_width, -1.0F, 2.0F);
    const std::vector<std::int8_t> weights = r.integers<std::int8_t>(f.size());
    const std::vector<float> scales = r.reals(f.out_channels, 0.001F, 0.02F);
    const std::vector<float> bias = r.reals(f.out_channels, -1.0F, 1.0F);
    const packed_filters packed(f, weights, {scales, {}, {}});
    const auto size = [](std::size_t v) { return static_cast<std::int64_t>(v); };
    shape in{3, size(f.in_channels)};
    shape kernel{size(f.out_channels), size(f.group_in())};
    shape strides, dilations, pads_begin, pads;
    if (!cases[i].is_line) {
      in.push_back(size(w.in_height));
      kernel.push_back(size(f.kernel_height));
      strides.push_back(size(w.stride_height));
      dilations.push_back(size(w.dilation_height));
      pads = {size(w.pad_top), size(w.pad_left), size(w.pad_bottom), size(w.pad_right)};
    } else {
      pads = {size(w.pad_left), size(w.pad_right)};
    }
    in.push_back(size(w.in_width));
    kernel.push_back(size(f.kernel_width));
    strides.push_back(size(w.stride_width));
    dilations.push_back(size(w.dilation_width));
    std::vector<tensor> inputs{floats(in, x),
                               bytes(element_type::s8, kernel, weights),
                               floats({size(f.out_channels)}, scales),
                               {},
                               floats({size(f.out_channels)}, bias)};
    for_each_target([&] {
      for (const int per_image : {0, 1}) {
        CAPTURE(per_image);
        dynamic_convolution_options o;
        o.per_image = per_image == 1;
        o.bias = bias;
        std::vector<float> expected(w.batch * f.out_channels * w.out_height(f) * w.out_width(f));
        dynamic_convolve(std::span<const float>(x), packed, w, std::span<float>(expected), o);
        test::attributes a{{"strides", list(strides)},
                           {"dilations", list(dilations)},
                           {"pads", list(pads)},
                           {"group", number(size(f.groups))},
                           {"per_image", number(per_image)}};
        if (per_image == 1) {
          a.erase("per_image");  // the default
        }
        for (const bool constant : {true, false}) {
          const tensor y = run("DynamicConv", inputs, a, constant);
          CHECK(y.dim(1) == size(f.out_channels));
          CHECK(test::difference(y.data<float>(), expected) == "");
        }
      }
    });
  }
}

TEST_CASE("DynamicConv: what is wrong is named") {
  const std::vector<tensor> good{floats({1, 2, 4, 4}, std::vector<float>(32, 1.0F)),
                                 tensor::allocate(element_type::s8, {3, 2, 3, 3}),
                                 floats({3}, {1.0F, 2.0F, 3.0F})};
  const auto check = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         std::size_t i, tensor t, const test::attributes& a = {}) {
    std::vector<tensor> inputs = good;
    inputs[i] = std::move(t);
    check_graph_error(kind, words, [&] { static_cast<void>(run("DynamicConv", inputs, a)); });
  };
  check(error_kind::bad_file, {"DynamicConv", "3 input channels"}, 0,
        floats({1, 3, 4, 4}, std::vector<float>(48)));
  check(error_kind::unsupported, {"DynamicConv", "5 dimensions"}, 0,
        floats({1, 2, 4, 4, 4}, std::vector<float>(128)));
  check(error_kind::unsupported, {"DynamicConv", "W of type float"}, 1,
        floats({3, 2, 3, 3}, std::vector<float>(54)));
  check(error_kind::bad_file, {"DynamicConv", "2 weight scales", "3"}, 2,
        floats({2}, {1.0F, 2.0F}));
  check(error_kind::bad_file, {"DynamicConv", "per_image is 2"}, 0, good[0],
        {{"per_image", number(2)}});
  check(error_kind::bad_file, {"DynamicConv", "strides has 1 values"}, 0, good[0],
        {{"strides", list({1})}});
}

TEST_CASE("MatMulNBits of the domain detent: integers without being allowed by accuracy_level") {
  test::random_source r(85);
  const std::vector<float> x = r.reals(3 * 40, -1.0F, 1.0F);
  const std::vector<std::uint8_t> b = r.integers<std::uint8_t>(9 * 3 * 8);
  std::vector<float> scales = r.reals(9 * 3, 0.01F, 0.1F);
  scales[4] = -scales[4];
  const std::vector<tensor> inputs{floats({3, 40}, x), bytes(element_type::u8, {9, 3, 8}, b),
                                   floats({9, 3}, scales)};
  const test::attributes a{
      {"K", number(40)}, {"N", number(9)}, {"bits", number(4)}, {"block_size", number(16)}};
  test::attributes allowed = a;
  allowed["accuracy_level"] = number(4);
  const tensor ours = run("MatMulNBits", inputs, a);
  const tensor theirs = run("MatMulNBits", inputs, allowed, true, "com.microsoft");
  const tensor real = run("MatMulNBits", inputs, a, true, "com.microsoft");
  CHECK(test::difference(ours.data<float>(), theirs.data<float>()) == "");
  CHECK(test::difference(ours.data<float>(), real.data<float>()) != "");

  // 2 bits: the float product of the same weights, up to what rounding the rows to 8 bits takes.
  std::vector<tensor> two_bits = inputs;
  two_bits[1] = bytes(element_type::u8, {9, 3, 4}, r.integers<std::uint8_t>(9 * 3 * 4));
  test::attributes of_two_bits = a;
  of_two_bits["bits"] = number(2);
  const tensor y = run("MatMulNBits", two_bits, of_two_bits);
  const tensor exact = run("MatMulNBits", two_bits, of_two_bits, true, "com.microsoft");
  for (std::size_t i = 0; i < y.count(); ++i) {
    // 40 products, each off by half a step of a range of 2 times a weight of at most 2 * 0.1.
    CHECK(std::abs(y.data<float>()[i] - exact.data<float>()[i]) < 0.032F);
  }

  const auto check = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         const std::vector<tensor>& given, const test::attributes& with) {
    check_graph_error(kind, words, [&] { static_cast<void>(run("MatMulNBits", given, with)); });
  };
  test::attributes of_8_bits = a;
  of_8_bits["bits"] = number(8);
  std::vector<tensor> wide = inputs;
  wide[1] = tensor::allocate(element_type::u8, {9, 3, 16});
  check(error_kind::unsupported, {"MatMulNBits", "8 bits", "DynamicLinear"}, wide, of_8_bits);
  std::vector<tensor> real_zero_points = inputs;
  real_zero_points.push_back(floats({9, 3}, std::vector<float>(27, 7.5F)));
  check(error_kind::unsupported, {"MatMulNBits", "no integers"}, real_zero_points, a);
  std::vector<tensor> infinite = inputs;
  infinite[2] = floats({9, 3}, std::vector<float>(27, std::numeric_limits<float>::infinity()));
  check(error_kind::bad_file, {"MatMulNBits", "scale inf"}, infinite, a);
}

}  // namespace
