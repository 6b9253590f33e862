// SPDX-License-Identifier: BSD-3-Clause
// Which parts of a model a runtime hands over, and that these can be replaced by single nodes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/runtimes/integer_regions.hpp>

#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

namespace graph = detent::graph;
namespace runtimes = detent::runtimes;
using graph::element_type;
using graph::tensor;
using runtimes::claim_mode;
using runtimes::region_search;
using test::floats;
using test::list;
using test::make_tensor;
using test::model_builder;
using test::random_source;

/// A DequantizeLinear of random int8 weights, with as many scales as given, one for each filter.
std::string random_weights(model_builder& b, random_source& r, const std::string& name,
                           graph::shape dims, const std::vector<float>& scales) {
  const graph::shape of_scales =
      scales.size() == 1 ? graph::shape{} : graph::shape{static_cast<std::int64_t>(scales.size())};
  const std::size_t count = graph::element_count(dims);
  return b.dequantize_constant(
      name, make_tensor(element_type::s8, std::move(dims), r.integers<std::int8_t>(count)),
      floats(of_scales, scales),
      make_tensor(element_type::s8, of_scales, std::vector<std::int8_t>(scales.size(), 0)), 0);
}

/// A Conv of [1, 4, 8, 8] with int8 weights, between Q/DQ nodes with a scale of 0.05.
std::string quantized_conv(model_builder& b, random_source& r, const std::string& dequantized) {
  const std::string w =
      random_weights(b, r, "w_of_" + dequantized, {4, 4, 3, 3}, {0.01F, 0.02F, 0.01F, 0.03F});
  const std::string y = b.add("Conv", {dequantized, w}, {{"pads", list({1, 1, 1, 1})}});
  return b.pair(y, 0.05F, 120);
}

std::string float_conv(model_builder& b, random_source& r, const std::string& x) {
  const std::string w = "float_w_" + std::to_string(b.get().nodes.size());
  b.constant(w, test::random_floats(r, {4, 4, 1, 1}, -1, 1));
  return b.add("Conv", {x, w});
}

region_search find(const graph::model& m, claim_mode claim = claim_mode::integer) {
  runtimes::region_options options;
  options.claim = claim;
  options.min_multiply_adds = 0;
  return runtimes::find_integer_regions(m, options);
}

/// The operators of the nodes of a region.
std::multiset<std::string> operators(const graph::model& m, const runtimes::integer_region& r) {
  std::multiset<std::string> names;
  for (const std::size_t i : r.nodes) {
    names.insert(m.nodes[i].op_type);
  }
  return names;
}

const std::string& reason_of(const graph::model& m, const region_search& found,
                             std::string_view op_type) {
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    if (m.nodes[i].op_type == op_type) {
      return found.reasons[i];
    }
  }
  FAIL("no node of this operator");
  return found.reasons[0];
}

/// For each node: the indices of the nodes that use what it makes.
std::vector<std::set<std::size_t>> successors(const graph::model& m) {
  const graph::links links(m);
  std::vector<std::set<std::size_t>> all(m.nodes.size());
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    for (const std::string& out : m.nodes[i].outputs) {
      const auto users = links.consumers(out);
      all[i].insert(users.begin(), users.end());
    }
  }
  return all;
}

/// Whether a path leads from the region through a node outside and back.
bool has_detour(const graph::model& m, const runtimes::integer_region& r) {
  const std::vector<std::set<std::size_t>> next = successors(m);
  const std::set<std::size_t> members(r.nodes.begin(), r.nodes.end());
  std::set<std::size_t> outside;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {  // in topological order
    const bool follows = members.count(i) != 0 || outside.count(i) != 0;
    for (const std::size_t user : follows ? next[i] : std::set<std::size_t>()) {
      if (members.count(user) == 0) {
        outside.insert(user);
      } else if (outside.count(i) != 0) {
        return true;
      }
    }
  }
  return false;
}

TEST_CASE("a quantized chain is one region; float operators at its ends stay outside") {
  random_source r(3);
  model_builder b;
  b.input("x", {1, 4, 8, 8});
  const std::string scaled = b.add("Mul", {"x", b.scalar("half", 0.5F)});
  const std::string first = quantized_conv(b, r, b.pair(scaled, 0.05F, 120));
  const std::string between = b.add("Sigmoid", {first});
  const std::string second = quantized_conv(b, r, b.pair(between, 0.05F, 0));
  b.output(b.add("Softmax", {second}));
  const graph::model m = b.get();
  const region_search found = find(m);
  REQUIRE(found.regions.size() == 1);
  CHECK(found.regions[0].products == 2);
  CHECK(found.regions[0].multiply_adds == 2 * 4 * 64 * 36);
  CHECK(operators(m, found.regions[0]).count("Sigmoid") == 1);
  CHECK(found.regions[0].nodes.size() == m.nodes.size() - 2);
  CHECK(reason_of(m, found, "Mul") == "it does not lie between integer products of weights");
  CHECK(reason_of(m, found, "Softmax") == "it does not lie between integer products of weights");
  CHECK(reason_of(m, found, "Sigmoid").empty());

  const graph::model part = runtimes::model_of(m, found.regions[0]);
  REQUIRE(part.inputs.size() == 1);
  CHECK(part.inputs[0].name == scaled);
  REQUIRE(part.outputs.size() == 1);
  CHECK(part.outputs[0].name == second);

  CHECK(find(m, claim_mode::none).regions.empty());
  const region_search all = find(m, claim_mode::all);
  REQUIRE(all.regions.size() == 1);
  CHECK(all.regions[0].nodes.size() == m.nodes.size());
}

TEST_CASE("a product of floats divides two regions") {
  random_source r(4);
  model_builder b;
  b.input("x", {1, 4, 8, 8});
  const std::string first = quantized_conv(b, r, b.pair("x", 0.05F, 120));
  const std::string real = float_conv(b, r, first);
  b.output(quantized_conv(b, r, b.pair(real, 0.05F, 120)));
  const graph::model m = b.get();
  const region_search found = find(m);
  REQUIRE(found.regions.size() == 2);
  CHECK(found.regions[0].products == 1);
  CHECK(found.regions[1].products == 1);
  CHECK(found.regions[0].nodes.size() + found.regions[1].nodes.size() == m.nodes.size() - 1);
  std::size_t refused = 0;
  for (const std::string& reason : found.reasons) {
    refused += reason == "its product is of floats" ? 1U : 0U;
  }
  CHECK(refused == 1);
}

TEST_CASE("what makes a node impossible to claim is said") {
  random_source r(5);
  model_builder b;
  b.input("x", {1, 4, 8, 8});
  const std::string conv = quantized_conv(b, r, b.pair("x", 0.05F, 120));
  b.output(b.add("Unheard", {conv}));
  graph::model m = b.get();
  CHECK(reason_of(m, find(m), "Unheard") == "there is no operator for it");
  CHECK(reason_of(m, find(m, claim_mode::all), "Unheard") == "there is no operator for it");
  CHECK(reason_of(m, find(m, claim_mode::none), "Conv") == "no node is to be claimed");

  runtimes::region_options large;
  large.min_multiply_adds = 4 * 64 * 36 + 1;
  const region_search none = runtimes::find_integer_regions(m, large);
  CHECK(none.regions.empty());
  CHECK(reason_of(m, none, "Conv") == "its region has only 9216 multiply-adds");
  large.min_multiply_adds = 4 * 64 * 36;
  CHECK(runtimes::find_integer_regions(m, large).regions.size() == 1);

  m.nodes.back().op_type = "Relu";
  m.nodes.back().inputs.push_back(conv);
  CHECK(reason_of(m, find(m), "Relu").find("2 inputs, expected 1") != std::string::npos);
}

TEST_CASE("a node with a constant scale that no run accepts is left alone, and only it") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool open_batch : {false, true}) {
    for (const auto& [scale, said] :
         {std::pair(0.0F, "scale 0 "), std::pair(-0.5F, "scale -0.5 "),
          std::pair(infinity, "scale inf "), std::pair(nan, "scale ")}) {
      random_source r(8);
      model_builder b;
      b.input("x", {open_batch ? -1 : 1, 4, 8, 8});
      const std::string first = quantized_conv(b, r, b.pair("x", 0.05F, 120));
      const std::string w = random_weights(b, r, "w", {4, 4, 1, 1}, {0.1F, 0.1F, scale, 0.1F});
      const std::string second = b.pair(b.add("Conv", {first, w}), 0.05F, 120);
      b.output(quantized_conv(b, r, second));
      graph::model m = b.get();
      for (const graph::node& n : m.nodes) {  // as runtimes do: the types do not depend on scales
        m.values.push_back({n.outputs[0],
                            n.is("QuantizeLinear") ? element_type::u8 : element_type::f32,
                            false,
                            {},
                            {}});
      }
      for (const claim_mode claim : {claim_mode::integer, claim_mode::all}) {
        const region_search found = find(m, claim);
        std::size_t refused = 0;
        for (std::size_t i = 0; i < m.nodes.size(); ++i) {
          if (found.reasons[i].find("is not a positive finite number") != std::string::npos) {
            ++refused;
            CHECK(found.reasons[i].find(said) == 0);
            CHECK(m.nodes[i].inputs[0] == "w");
          }
        }
        CHECK(refused == 1);
        std::size_t claimed = 0;
        std::size_t products = 0;
        for (const runtimes::integer_region& region : found.regions) {
          claimed += region.nodes.size();
          products += region.products;
          // What is claimed runs.
          graph::executor part(graph::for_execution(runtimes::model_of(m, region)));
        }
        // Without its weights the Conv is one of floats, which is claimed with all others only.
        CHECK(claimed == m.nodes.size() - (claim == claim_mode::all ? 1 : 2));
        CHECK(products >= 2);
      }
    }
  }
  // The scale of a quantizer, of an integer operator, and one of 16 bits that is computed.
  model_builder b;
  b.input("x", {1, 4});
  b.constant("half", make_tensor<std::uint16_t>(element_type::f16, {}, {std::uint16_t{0}}));
  const std::string none = b.add("Identity", {"half"});
  const std::string q = b.add("QuantizeLinear", {"x", b.scalar("negative", -1.0F)});
  b.constant("zero_point", make_tensor<std::uint8_t>(element_type::u8, {}, {std::uint8_t{0}}));
  const std::string sum = b.add(
      "QLinearSigmoid", {q, b.scalar("a", 0.1F), "zero_point", b.scalar("c", 0.0F), "zero_point"},
      {}, "com.microsoft");
  b.output(b.add("DequantizeLinear", {sum, none}), element_type::f16);
  const graph::model m = b.get();
  for (const char* op : {"QuantizeLinear", "QLinearSigmoid", "DequantizeLinear"}) {
    INFO(op);
    CHECK(reason_of(m, find(m, claim_mode::all), op).find("is not a positive finite number") !=
          std::string::npos);
  }
}

TEST_CASE("a product that lowering leaves in float stays outside") {
  model_builder b;
  b.input("x", {2, 5, 8});
  random_source r(6);
  // Weights of rank 3 have no integer form.
  const std::string w = random_weights(b, r, "w", {2, 8, 8}, {0.02F});
  const std::string v = random_weights(b, r, "v", {8, 64}, {0.02F});
  const std::string product = b.add("MatMul", {b.pair("x", 0.05F, 120), w});
  const std::string clipped = b.add("Sigmoid", {product});
  b.output(b.add("MatMul", {b.pair(clipped, 1.0F / 255, 0), v}));
  const graph::model m = b.get();
  const region_search found = find(m);
  CHECK(reason_of(m, found, "MatMul") == "its product stays one of floats");
  REQUIRE(found.regions.size() == 1);
  CHECK(found.regions[0].products == 1);
  CHECK(operators(m, found.regions[0]).count("Sigmoid") == 0);
}

/// One node that takes x and constants.
graph::model with_one_node(const std::string& op, const tensor& x,
                           const std::vector<tensor>& constants, test::attributes a = {},
                           const std::string& domain = "") {
  model_builder b(18);
  b.get().opsets["com.microsoft"] = 1;
  b.get().opsets["detent"] = 1;
  std::vector<std::string> inputs{b.input("x", x.dims(), x.type())};
  for (std::size_t i = 0; i < constants.size(); ++i) {
    inputs.push_back(constants[i].defined() ? b.constant("c" + std::to_string(i), constants[i])
                                            : "");
  }
  b.output(b.add(op, std::move(inputs), std::move(a), domain), x.type());
  return b.get();
}

/// Zeros.
tensor zeros(element_type type, graph::shape dims) {
  tensor t = tensor::allocate(type, std::move(dims));
  std::fill_n(static_cast<std::byte*>(t.mutable_raw()), t.bytes(), std::byte{0});
  return t;
}

/// A MatMulNBits of [3, 128] with 40 columns in blocks of 32.
graph::model nbits_model(std::int64_t bits, std::int64_t accuracy_level,
                         const std::string& domain = "com.microsoft", std::vector<tensor> more = {},
                         float scale = 0.1F) {
  std::vector<tensor> constants{zeros(element_type::u8, {40, 4, 32 * bits / 8}),
                                floats({40, 4}, std::vector<float>(160, scale))};
  constants.insert(constants.end(), more.begin(), more.end());
  return with_one_node("MatMulNBits", zeros(element_type::f32, {3, 128}), constants,
                       {{"K", test::number(128)},
                        {"N", test::number(40)},
                        {"bits", test::number(bits)},
                        {"block_size", test::number(32)},
                        {"accuracy_level", test::number(accuracy_level)}},
                       domain);
}

TEST_CASE("a MatMulNBits that multiplies floats is no integer product") {
  const tensor integer_zero_points = zeros(element_type::u8, {40, 2});
  const tensor real_zero_points = zeros(element_type::f32, {40, 4});
  const tensor block_indices = zeros(element_type::s32, {128});
  const auto is_product = [](const graph::model& m) {
    const region_search found = find(m);
    CHECK(find(m, claim_mode::all).regions.size() == 1);
    if (found.regions.empty()) {
      CHECK(found.reasons[0] == "its product is of floats");
      return false;
    }
    CHECK(found.regions[0].products == 1);
    CHECK(found.regions[0].multiply_adds == 3 * 128 * 40);  // whatever the weights' bits are
    return true;
  };
  const char* const microsoft = "com.microsoft";
  CHECK(is_product(nbits_model(4, 4)));
  CHECK(is_product(nbits_model(4, 4, microsoft, {integer_zero_points})));
  CHECK(is_product(nbits_model(4, 4, microsoft, {}, -0.5F)));
  CHECK_FALSE(is_product(nbits_model(4, 0)));
  CHECK_FALSE(is_product(nbits_model(4, 1)));
  CHECK_FALSE(is_product(nbits_model(8, 4)));
  CHECK_FALSE(is_product(nbits_model(2, 4)));
  CHECK_FALSE(is_product(nbits_model(4, 4, microsoft, {real_zero_points})));
  CHECK_FALSE(is_product(nbits_model(4, 4, microsoft, {tensor(), block_indices})));
  CHECK_FALSE(is_product(nbits_model(4, 4, microsoft, {}, std::numeric_limits<float>::infinity())));
  graph::model half = nbits_model(4, 4);  // a run widens floats of 16 bits
  half.inputs[0].type = element_type::f16;
  half.outputs[0].type = element_type::f16;
  for (auto& [name, t] : half.initializers) {
    t = t.type() == element_type::f32 ? graph::detail::float_to_half(t, element_type::f16) : t;
  }
  CHECK(is_product(half));
  // That of the domain "detent" is always one, or is refused.
  CHECK(is_product(nbits_model(4, 0, "detent")));
  CHECK(is_product(nbits_model(2, 0, "detent")));
  for (const auto& refused :
       {std::pair(nbits_model(8, 0, "detent"), "weights of 8 bits"),
        std::pair(nbits_model(4, 0, "detent", {real_zero_points}), "zero points that are no"),
        std::pair(nbits_model(4, 0, "detent", {tensor(), block_indices}), "g_idx")}) {
    INFO(std::string(refused.second));
    for (const claim_mode claim : {claim_mode::integer, claim_mode::all}) {
      const region_search found = find(refused.first, claim);
      CHECK(found.regions.empty());
      CHECK(reason_of(refused.first, found, "MatMulNBits").find(refused.second) !=
            std::string::npos);
    }
  }
}

/// A QLinearConv of `channels` channels with a window of 3 x 3.
std::string qlinear_conv(model_builder& b, random_source& r, const std::string& x,
                         std::int64_t channels, std::int64_t pad) {
  const std::string name = "of_" + x;
  const auto count = static_cast<std::size_t>(channels * channels * 9);
  return b.add(
      "QLinearConv",
      {x, b.scalar("xs_" + name, 0.05F), b.constant("xz_" + name, zeros(element_type::u8, {})),
       b.constant("w_" + name, make_tensor(element_type::s8, {channels, channels, 3, 3},
                                           r.integers<std::int8_t>(count))),
       b.scalar("ws_" + name, 0.01F), b.constant("wz_" + name, zeros(element_type::s8, {})),
       b.scalar("ys_" + name, 0.05F), b.constant("yz_" + name, zeros(element_type::u8, {}))},
      {{"pads", list({pad, pad, pad, pad})}});
}

TEST_CASE("products whose size depends on open dimensions count as large") {
  random_source r(9);
  const auto search = [&](graph::shape dims, std::int64_t pad) {
    model_builder b;
    const std::int64_t channels = dims[1];
    b.input("x", std::move(dims), element_type::u8);
    b.output(qlinear_conv(b, r, "x", channels, pad), element_type::u8);
    return runtimes::find_integer_regions(b.get());
  };
  constexpr auto large = static_cast<std::uint64_t>(-1);
  for (const std::int64_t pad : {0, 1}) {
    for (const graph::shape& dims : {graph::shape{1, 16, -1, -1}, graph::shape{-1, 16, -1, -1},
                                     graph::shape{1, 16, -1, 5}, graph::shape{-1, 4, 5, 5}}) {
      const region_search found = search(dims, pad);
      REQUIRE(found.regions.size() == 1);
      CHECK(found.regions[0].multiply_adds == large);
    }
  }
  REQUIRE(search({1, 16, 20, 20}, 1).regions.size() == 1);
  CHECK(search({1, 16, 20, 20}, 1).regions[0].multiply_adds == 16 * 16 * 9 * 400);
  CHECK(search({1, 4, 5, 5}, 1).regions.empty());
  // An open dimension that the product does not depend on.
  model_builder b;
  b.input("x", {1, 4, 5, 5}, element_type::u8);
  b.input("other", {-1});
  b.output(qlinear_conv(b, r, "x", 4, 1), element_type::u8);
  b.output(b.add("Relu", {"other"}));
  CHECK(runtimes::find_integer_regions(b.get()).regions.empty());
}

TEST_CASE("the multiply-adds of DynamicQuantizeLSTM and of stacked weights") {
  const auto lstm = [](std::int64_t steps) {
    model_builder b;
    b.get().opsets["com.microsoft"] = 1;
    b.input("x", {steps, 3, 6});
    const tensor scale = floats({1}, {0.1F});
    const tensor zero = zeros(element_type::s8, {1});
    const auto constant = [&](const char* name, const tensor& t) { return b.constant(name, t); };
    b.output(b.add(
        "DynamicQuantizeLSTM",
        {"x", constant("w", zeros(element_type::s8, {1, 6, 20})),
         constant("r", zeros(element_type::s8, {1, 5, 20})), "", "", "", "", "",
         constant("ws", scale), constant("wz", zero), constant("rs", scale), constant("rz", zero)},
        {{"hidden_size", test::number(5)}}, "com.microsoft"));
    return find(b.get());
  };
  REQUIRE(lstm(7).regions.size() == 1);
  // Each step of each sequence: 4 gates of 5 rows times 6 inputs and 5 hidden states.
  CHECK(lstm(7).regions[0].multiply_adds == 7 * 3 * 4 * 5 * (6 + 5));
  REQUIRE(lstm(-1).regions.size() == 1);
  CHECK(lstm(-1).regions[0].multiply_adds == static_cast<std::uint64_t>(-1));

  const graph::model stacked = with_one_node("MatMulInteger", zeros(element_type::u8, {3, 4, 5}),
                                             {zeros(element_type::s8, {3, 5, 6})});
  REQUIRE(find(stacked).regions.size() == 1);
  CHECK(find(stacked).regions[0].multiply_adds == 3 * 4 * 5 * 6);
}

TEST_CASE("an operator that has no code for a type stays with the runtime") {
  // Between two integer products, after a window that an image of one pixel does not hold.
  for (const std::int64_t extent : {8, -1}) {
    random_source r(10);
    model_builder b;
    b.input("x", {1, 4, extent, extent}, element_type::u8);
    const std::string first = qlinear_conv(b, r, "x", 4, 0);
    const std::string between = b.add("Shrink", {first});
    b.output(qlinear_conv(b, r, between, 4, 0), element_type::u8);
    b.get().values.push_back({between, element_type::u8, false, {}, {}});  // as runtimes do
    const graph::model m = b.get();
    const region_search found = find(m);
    CHECK(reason_of(m, found, "Shrink").find("no code for elements of type uint8") !=
          std::string::npos);
    CHECK(found.regions.size() == 2);
  }
  const auto image = [](element_type type) { return zeros(type, {2, 3, 8, 8}); };
  using test::number;
  struct refused {
    const char* op;
    tensor x;
    std::vector<tensor> constants;
    test::attributes attributes;
  };
  const element_type f64 = element_type::f64;
  std::vector<refused> cases{
      {"Gemm", zeros(f64, {4, 5}), {zeros(f64, {5, 6})}, {}},
      {"Gemm", zeros(element_type::s32, {4, 5}), {zeros(element_type::s32, {5, 6})}, {}},
      {"MatMul", zeros(element_type::u8, {4, 5}), {zeros(element_type::u8, {5, 6})}, {}},
      {"Conv", image(f64), {zeros(f64, {4, 3, 3, 3})}, {}},
      {"ConvTranspose", image(f64), {zeros(f64, {3, 4, 3, 3})}, {}},
      {"MaxPool", image(element_type::s32), {}, {{"kernel_shape", list({2, 2})}}},
      {"GlobalMaxPool", image(element_type::s64), {}, {}},
      {"Resize",
       image(element_type::s64),
       {tensor(), floats({4}, {1, 1, 2, 2})},
       {{"mode", test::text("linear")}}},
      {"QuantizeLinear",
       image(element_type::u8),
       {floats({}, {0.1F}), zeros(element_type::u8, {})},
       {}},
      {"GridSample", image(element_type::s32), {zeros(element_type::f32, {2, 4, 4, 2})}, {}},
      {"Pow", image(element_type::u8), {image(element_type::u8)}, {}},
      {"BitwiseNot", image(element_type::f32), {}, {}},
      {"Neg", image(element_type::u8), {}, {}},
      {"Less", image(element_type::boolean), {image(element_type::boolean)}, {}},
  };
  for (const char* op : {"Shrink", "Sigmoid", "IsNaN", "Sum", "Mean", "AveragePool", "LpPool",
                         "GlobalAveragePool", "GlobalLpPool", "MeanVarianceNormalization",
                         "Softmax", "LogSoftmax", "Hardmax", "LpNormalization"}) {
    const bool is_pool = op == std::string("AveragePool") || op == std::string("LpPool");
    const test::attributes a =
        is_pool ? test::attributes{{"kernel_shape", list({2, 2})}} : test::attributes{};
    for (const element_type type : {element_type::u8, element_type::s32, element_type::s64}) {
      cases.push_back({op, image(type), {}, a});
    }
  }
  for (const refused& c : cases) {
    INFO(std::string(c.op), " of ", std::string(graph::name(c.x.type())));
    const graph::model m = with_one_node(c.op, c.x, c.constants, c.attributes);
    const region_search found = find(m, claim_mode::all);
    CHECK(found.regions.empty());
    CHECK(found.reasons[0].find("elements of type") != std::string::npos);
  }
  // Mod of floats without fmod.
  CHECK(find(with_one_node("Mod", image(element_type::f32), {image(element_type::f32)}),
             claim_mode::all)
            .regions.empty());
  // Quantization parameters for each row of the left side, or for each row of each matrix.
  const auto product_of = [&](const tensor& scales, const tensor& zero_points) {
    return with_one_node(
        "QLinearMatMul", zeros(element_type::u8, {3, 4, 5}),
        {scales, zero_points, zeros(element_type::s8, {5, 6}), floats({}, {0.1F}),
         zeros(element_type::s8, {}), floats({}, {0.1F}), zeros(element_type::u8, {})});
  };
  const tensor one = floats({}, {0.1F});
  CHECK(find(product_of(one, zeros(element_type::u8, {}))).regions.size() == 1);
  const tensor row_scales = floats({4}, {1, 2, 3, 4});
  const tensor row_zero_points = zeros(element_type::u8, {4});
  CHECK(find(product_of(row_scales, row_zero_points)).reasons[0].find("4 scales where one") !=
        std::string::npos);
  const auto integer_product_of = [&](const tensor& zero_points) {
    return with_one_node("MatMulInteger", zeros(element_type::u8, {3, 4, 5}),
                         {zeros(element_type::s8, {5, 6}), zero_points});
  };
  CHECK(find(integer_product_of(row_zero_points)).regions.size() == 1);
  CHECK(find(integer_product_of(zeros(element_type::u8, {1, 4, 1}))).regions.size() == 1);
  const graph::model stacked = integer_product_of(zeros(element_type::u8, {3, 4, 1}));
  CHECK(find(stacked).reasons[0].find("zero points of shape") != std::string::npos);
  // Indices of MaxPool that count columns first.
  for (const std::size_t axes : {1U, 2U, 3U}) {
    graph::shape dims(axes + 2, 4);
    graph::model m = with_one_node(
        "MaxPool", zeros(element_type::f32, dims), {},
        {{"kernel_shape", list(std::vector<std::int64_t>(axes, 2))}, {"storage_order", number(1)}});
    CHECK(find(m, claim_mode::all).regions.size() == 1);  // without indices
    m.nodes[0].outputs.push_back("indices");
    const region_search found = find(m, claim_mode::all);
    CHECK(found.regions.size() == (axes == 2 ? 1 : 0));
    CHECK((axes == 2 || found.reasons[0].find("storage_order 1 of rank") != std::string::npos));
  }
  // Floats of 16 bits are widened before they run.
  for (const element_type half : {element_type::f16, element_type::bf16}) {
    for (const auto& [op, constants] :
         {std::pair<const char*, std::vector<tensor>>("Shrink", {}),
          std::pair<const char*, std::vector<tensor>>("Conv", {zeros(half, {4, 3, 3, 3})}),
          std::pair<const char*, std::vector<tensor>>("Sum", {image(half)})}) {
      const graph::model m = with_one_node(op, image(half), constants);
      REQUIRE(find(m, claim_mode::all).regions.size() == 1);
      graph::executor e(graph::for_execution(m));
      CHECK(e.run({{"x", image(half)}})[0].type() == half);
    }
  }
}

/// A model whose nodes take values of any nodes before them. Some nodes have no operator.
graph::model random_model(random_source& r) {
  model_builder b;
  b.input("x", {1, 4, 8, 8});
  std::vector<std::string> made{b.pair("x", 0.05F, 120)};
  const auto any = [&] {
    return made[static_cast<std::size_t>(r.integer(0, static_cast<int>(made.size()) - 1))];
  };
  const int nodes = r.integer(2, 12);
  for (int i = 0; i < nodes; ++i) {
    const int kind = r.integer(0, 5);
    const std::string x = any();
    if (kind <= 1) {
      made.push_back(quantized_conv(b, r, x));
    } else if (kind == 2) {
      made.push_back(b.pair(b.add("Add", {x, any()}), 0.1F, 100));
    } else if (kind == 3) {
      made.push_back(b.add("Tanh", {x}));
    } else if (kind == 4) {
      made.push_back(b.add("Unheard", {x}));
    } else {
      made.push_back(float_conv(b, r, x));
    }
  }
  for (const std::string& name : made) {
    if (r.chance(30) || name == made.back()) {
      b.output(name);
    }
  }
  return b.get();
}

TEST_CASE("regions of random models have no detours, and compute what the model computes") {
  random_source r(7);
  INFO("seed ", r.seed());
  std::size_t regions = 0;
  for (int k = 0; k < 300; ++k) {
    INFO("model ", k);
    const graph::model m = random_model(r);
    for (const claim_mode claim : {claim_mode::integer, claim_mode::all}) {
      const region_search found = find(m, claim);
      std::set<std::size_t> members;
      for (const runtimes::integer_region& region : found.regions) {
        ++regions;
        CHECK(std::is_sorted(region.nodes.begin(), region.nodes.end()));
        CHECK_FALSE(has_detour(m, region));
        CHECK((claim == claim_mode::all || region.products > 0));
        for (const std::size_t i : region.nodes) {
          CHECK(members.insert(i).second);
          CHECK(m.nodes[i].op_type != "Unheard");
        }
      }
      for (std::size_t i = 0; i < m.nodes.size(); ++i) {
        CHECK(found.reasons[i].empty() == (members.count(i) != 0));
      }
    }
  }
  CHECK(regions > 300);
}

TEST_CASE("the regions compute the values of the model") {
  random_source r(8);
  INFO("seed ", r.seed());
  int compared = 0;
  for (int k = 0; k < 60; ++k) {
    INFO("model ", k);
    graph::model m = random_model(r);
    for (graph::node& n : m.nodes) {  // so that the whole model can run, too
      n.op_type = n.op_type == "Unheard" ? "Neg" : n.op_type;
    }
    const region_search found = find(m);
    std::map<std::string, tensor> values;
    graph::executor whole(m);
    const test::tensors inputs{{"x", test::random_floats(r, {1, 4, 8, 8}, -4, 4)}};
    static_cast<void>(whole.run(inputs, [&](const std::string& name, const tensor& value) {
      values[name] = graph::to_plain(value);
    }));
    for (const runtimes::integer_region& region : found.regions) {
      const graph::model part = runtimes::model_of(m, region);
      test::tensors taken;
      for (const graph::value_info& v : part.inputs) {
        taken.emplace(v.name, values.at(v.name));
      }
      graph::executor plain(part);
      const std::vector<tensor> results = plain.run(taken);
      for (std::size_t i = 0; i < results.size(); ++i) {
        CHECK(test::values_of<float>(results[i]) ==
              test::values_of<float>(values.at(part.outputs[i].name)));
        ++compared;
      }
      // Prepared as integers, it runs on the same inputs.
      graph::executor integer(graph::for_execution(part));
      CHECK(integer.run(taken).size() == results.size());
    }
  }
  CHECK(compared > 30);
}

}  // namespace
