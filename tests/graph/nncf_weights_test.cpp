// SPDX-License-Identifier: BSD-3-Clause
// nncf::compress_weights(): codes and scales by hand, which layers get which precision, the written
// forms, and errors.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/nncf/nncf.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>

#include "check_graph_error.hpp"
#include "compare_models.hpp"
#include "for_each_target.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
namespace nncf = detent::graph::nncf;
using mode = nncf::compress_weights_mode;
using options = nncf::compress_weights_options;

/// The integers of a tensor of one byte for each element.
std::vector<int> integers(const tensor& t) {
  const bool is_signed = t.type() == element_type::s8 || t.type() == element_type::s4;
  std::vector<int> values;
  for (std::size_t i = 0; i < t.count(); ++i) {
    values.push_back(is_signed ? t.data<std::int8_t>()[i] : t.data<std::uint8_t>()[i]);
  }
  return values;
}

/// y = x * w, where x has a row of as many numbers as w has rows.
graph::model product(const tensor& w, std::int64_t opset = 21) {
  model_builder b(opset);
  b.output(b.add("MatMul", {b.input("x", {1, w.dim(0)}), b.constant("w", w)}));
  return b.get();
}

/// The options of a mode of 4 bits in which the last layer counts, too.
options int4(mode m, std::int64_t group_size) {
  options o;
  o.mode = m;
  o.group_size = group_size;
  o.all_layers = true;
  return o;
}

/// A chain of products x -> w0 -> w1 ... with square weights of K = 32.
graph::model chain(std::size_t count, std::int64_t opset = 21,
                   const std::map<std::size_t, float>& sizes = {}) {
  random_source r(7);
  model_builder b(opset);
  std::string x = b.input("x", {4, 32});
  for (std::size_t i = 0; i < count; ++i) {
    const auto size = sizes.find(i);
    const float limit = size == sizes.end() ? 1.0F : size->second;
    x = b.add("MatMul",
              {x, b.constant("w" + std::to_string(i), random_floats(r, {32, 32}, -limit, limit))});
  }
  b.output(x);
  return b.get();
}

/// The modes by the names of the constants; nothing for weights in float.
std::map<std::string, std::optional<mode>> modes_of(const nncf::weight_compression& done) {
  std::map<std::string, std::optional<mode>> modes;
  for (const nncf::compressed_weights& layer : done.layers) {
    modes[layer.weights] = layer.mode;
  }
  return modes;
}

/// Checks that a model of 32-wide inputs computes about what the float model does.
void check_close(const graph::model& float_model, const graph::model& compressed, double limit) {
  random_source r(11);
  const tensors inputs = {{"x", random_floats(r, {4, 32}, -1.0F, 1.0F)}};
  const auto exact = run(float_model, inputs)[0];
  const auto result = run(compressed, inputs)[0];
  REQUIRE(exact.size() == result.size());
  double largest = 0.0;
  double error = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    largest = (std::max)(largest, std::abs(static_cast<double>(exact[i])));
    error = (std::max)(error, std::abs(static_cast<double>(exact[i]) - result[i]));
  }
  CHECK(error > 0.0);
  CHECK(error < limit * largest);
}

TEST_CASE("nncf::compress_weights: weights that a Transpose takes have zero points of 0") {
  // ONNX Runtime up to 1.26 does not load them without.
  random_source r(77);
  INFO("seed ", r.seed());
  for (const bool is_moved : {false, true}) {
    model_builder b(17);
    b.input("x", {3, 8});
    b.constant("w", random_floats(r, is_moved ? shape{20, 8} : shape{8, 20}, -1.0F, 1.0F));
    const std::string w = is_moved ? b.add("Transpose", {"w"}, {{"perm", list({1, 0})}}) : "w";
    b.output(b.add("MatMul", {"x", w}));
    b.input("ids", {2}, element_type::s64);
    b.output(b.add("Gather", {"w", "ids"}));
    options o;
    o.mode = mode::int8_sym;
    const graph::model m = nncf::compress_weights(b.get(), o).result;
    std::size_t found = 0;
    for (const graph::node& n : m.nodes) {
      if (n.is("DequantizeLinear")) {
        ++found;
        CHECK(n.inputs.size() == (is_moved ? 3 : 2));
        if (is_moved) {
          const tensor& zeros = *m.initializer(n.inputs[2]);
          CHECK(zeros.type() == element_type::s8);
          CHECK(zeros.dims() == m.initializer(n.inputs[1])->dims());
          CHECK(integers(zeros) == std::vector<int>(zeros.count(), 0));
        }
      }
    }
    CHECK(found == 1);
  }
}

TEST_CASE("8 bits with zero points: codes, scales and zero points by hand") {
  // Columns: -10 .. 117.5 with a tie at 54.5; only positive numbers; zeros.
  const tensor w = floats({4, 3}, {-10.0F, 1.0F, 0.0F, 0.0F, 2.0F, 0.0F,  //
                                   17.25F, 3.0F, 0.0F, 117.5F, 63.75F, 0.0F});
  const nncf::weight_compression done = nncf::compress_weights(product(w));
  const graph::model& m = done.result;
  CHECK(operators(m) == "DequantizeLinear MatMul");
  const graph::node& n = first(m, "DequantizeLinear");
  CHECK(n.inputs == std::vector<std::string>{"w_quantized", "w_scale", "w_zero_point"});
  CHECK(n.get_int("axis", -9) == -1);
  CHECK(m.initializers.at("w_quantized").type() == element_type::u8);
  CHECK(integers(m.initializers.at("w_quantized")) ==
        std::vector<int>{0, 4, 0, 20, 8, 0, 54, 12, 0, 255, 255, 0});
  CHECK(values_of<float>(m.initializers.at("w_scale")) ==
        std::vector<float>{0.5F, 0.25F, std::numeric_limits<float>::epsilon()});
  CHECK(integers(m.initializers.at("w_zero_point")) == std::vector<int>{20, 0, 0});
  CHECK(m.initializer("w") == nullptr);
  REQUIRE(done.layers.size() == 1);
  CHECK(done.layers[0].node == "MatMul_0");
  CHECK(done.layers[0].count == 12);
  CHECK(done.layers[0].group_size == 0);
}

TEST_CASE("4 bits without zero points: the scale has the sign that uses -8") {
  const tensor w = floats({4, 2}, {-4.0F, -1.0F, 1.0F, 4.0F, 0.25F, 1.0F, 3.0F, 0.75F});
  const graph::model m = nncf::compress_weights(product(w), int4(mode::int4_sym, -1)).result;
  CHECK(m.initializers.at("w_quantized").type() == element_type::s4);
  CHECK(m.ir_version == 10);
  CHECK(integers(m.initializers.at("w_quantized")) == std::vector<int>{-8, 2, 2, -8, 0, -2, 6, -2});
  CHECK(values_of<float>(m.initializers.at("w_scale")) == std::vector<float>{0.5F, -0.5F});
  CHECK(first(m, "DequantizeLinear").inputs.size() == 2);
}

TEST_CASE("8 bits without zero points use -128") {
  const tensor w = floats({2, 1}, {-64.0F, 63.0F});
  options o;
  o.mode = mode::int8_sym;
  const graph::model m = nncf::compress_weights(product(w), o).result;
  CHECK(m.initializers.at("w_quantized").type() == element_type::s8);
  CHECK(integers(m.initializers.at("w_quantized")) == std::vector<int>{-128, 126});
}

TEST_CASE("DequantizeLinear takes scales of both signs: for a tensor, an axis, and blocks") {
  const auto dequantized = [](const tensor& codes, const tensor& scales, const tensor& zero_points,
                              attributes a) {
    model_builder b(21);
    b.output(b.add("DequantizeLinear",
                   {b.input("q", codes.dims(), codes.type()), b.constant("s", scales),
                    b.constant("z", zero_points)},
                   std::move(a)));
    return run(b.get(), {{"q", codes}})[0];
  };
  const tensor codes =
      make_tensor<std::int8_t>(element_type::s8, {2, 4}, {-128, 1, 2, 3, 4, 5, 6, 127});
  const auto zero_points = [](shape dims, const std::vector<std::int8_t>& values) {
    return make_tensor<std::int8_t>(element_type::s8, std::move(dims), values);
  };
  CHECK(dequantized(codes, floats({}, {-0.5F}), zero_points({}, {1}), {}) ==
        std::vector<float>{64.5F, 0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -2.5F, -63.0F});
  CHECK(dequantized(codes, floats({2}, {-1.0F, 2.0F}), zero_points({2}, {0, 4}),
                    {{"axis", number(0)}}) ==
        std::vector<float>{128.0F, -1.0F, -2.0F, -3.0F, 0.0F, 2.0F, 4.0F, 246.0F});
  CHECK(dequantized(codes, floats({2, 2}, {1.0F, -1.0F, 0.5F, -2.0F}),
                    zero_points({2, 2}, {0, 1, 2, 3}),
                    {{"axis", number(1)}, {"block_size", number(2)}}) ==
        std::vector<float>{-128.0F, 1.0F, -1.0F, -2.0F, 1.0F, 1.5F, -6.0F, -248.0F});
  for (const float bad :
       {0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    check_graph_error(error_kind::bad_file, {"DequantizeLinear_0", "scale"}, [&] {
      static_cast<void>(dequantized(codes, floats({2}, {-1.0F, bad}), zero_points({2}, {0, 0}),
                                    {{"axis", number(0)}}));
    });
  }
}

TEST_CASE("groups: a scale for each, in both orders of the weights") {
  // Two groups of two inputs: ranges 0..15 and -15..0 of output 0, 0..30 and 0..7.5 of output 1.
  const std::vector<float> columns = {0.0F, 30.0F, 15.0F, 0.0F, -15.0F, 7.5F, 0.0F, 0.0F};
  const std::vector<float> rows = {0.0F, 15.0F, -15.0F, 0.0F, 30.0F, 0.0F, 7.5F, 0.0F};
  for (const bool is_turned : {false, true}) {
    CAPTURE(is_turned);
    model_builder b(21);
    const std::string x = b.input("x", {1, 4});
    b.output(b.add("Gemm",
                   {x, b.constant("w", is_turned ? floats({2, 4}, rows) : floats({4, 2}, columns))},
                   {{"transB", number(is_turned ? 1 : 0)}}));
    const graph::model m = nncf::compress_weights(b.get(), int4(mode::int4_asym, 2)).result;
    const graph::node& n = first(m, "DequantizeLinear");
    CHECK(n.get_int("axis", -9) == (is_turned ? 1 : 0));
    CHECK(n.get_int("block_size", 0) == 2);
    const tensor& scales = m.initializers.at("w_scale");
    CHECK(scales.dims() == shape{2, 2});
    CHECK(values_of<float>(scales) == (is_turned ? std::vector<float>{1.0F, 1.0F, 2.0F, 0.5F}
                                                 : std::vector<float>{1.0F, 2.0F, 1.0F, 0.5F}));
    CHECK(m.initializers.at("w_zero_point").type() == element_type::u4);
    CHECK(integers(m.initializers.at("w_zero_point")) ==
          (is_turned ? std::vector<int>{0, 15, 0, 0} : std::vector<int>{0, 0, 15, 0}));
    // All weights are multiples of their scale: nothing is lost.
    const tensors inputs = {{"x", floats({1, 4}, {1.0F, 2.0F, 3.0F, 4.0F})}};
    CHECK(run(m, inputs) == run(b.get(), inputs));
  }
}

TEST_CASE("what is written computes what the float model does, in all modes and opsets") {
  for (const std::int64_t opset : {13, 17, 21}) {
    for (const mode m : {mode::int8_asym, mode::int8_sym, mode::int4_asym, mode::int4_sym}) {
      CAPTURE(opset);
      CAPTURE(nncf::name(m));
      const bool has_8_bits = m == mode::int8_asym || m == mode::int8_sym;
      options o = has_8_bits ? options() : int4(m, 16);
      o.mode = m;
      const graph::model given = chain(2, opset);
      const graph::model done = nncf::compress_weights(given, o).result;
      CHECK(count(done, "MatMulNBits") == (has_8_bits || opset >= 21 ? 0U : 2U));
      CHECK(count(done, "DequantizeLinear") == (has_8_bits || opset >= 21 ? 2U : 0U));
      check_close(given, done, has_8_bits ? 0.02 : 0.25);
    }
  }
}

TEST_CASE("MatMulNBits: Gemm keeps its bias, and an Add where it is no vector") {
  for (const bool is_vector : {true, false}) {
    CAPTURE(is_vector);
    random_source r(3);
    model_builder b(17);
    const std::string x = b.input("x", {4, 32});
    const shape of_bias = is_vector ? shape{8} : shape{4, 8};
    b.output(b.add("Gemm",
                   {x, b.constant("w", random_floats(r, {8, 32}, -1.0F, 1.0F)),
                    b.constant("c", random_floats(r, of_bias, -9.0F, 9.0F))},
                   {{"transB", number(1)}}));
    const graph::model m = nncf::compress_weights(b.get(), int4(mode::int4_asym, 32)).result;
    CHECK(operators(m) ==
          (is_vector ? "com.microsoft.MatMulNBits" : "com.microsoft.MatMulNBits Add"));
    check_close(b.get(), m, 0.1);
  }
}

TEST_CASE("weights with three axes have scales for each matrix") {
  random_source r(4);
  model_builder b(21);
  b.output(b.add("MatMul", {b.input("x", {2, 1, 4}),
                            b.constant("w", random_floats(r, {2, 4, 3}, -1.0F, 1.0F))}));
  const graph::model m = nncf::compress_weights(b.get()).result;
  CHECK(m.initializers.at("w_scale").dims() == shape{2, 1, 3});
  CHECK(first(m, "DequantizeLinear").get_int("block_size", 0) == 4);
  model_builder old(17);
  old.get() = b.get();
  old.get().opsets[""] = 17;
  check_graph_error(error_kind::unsupported, {"MatMul_0", "three dimensions", "opset 21", "17"},
                    [&] { static_cast<void>(nncf::compress_weights(old.get())); });
}

/// An embedding, a convolution on what it gives, and three products, the last of which is named
/// `last_w`.
graph::model several_kinds(std::int64_t opset = 21) {
  random_source r(5);
  model_builder b(opset);
  const std::string ids = b.input("ids", {16}, element_type::s64);
  std::string x =
      b.add("Gather", {b.constant("table", random_floats(r, {9, 32}, -1.0F, 1.0F)), ids});
  x = b.add("MatMul", {x, b.constant("a_w", random_floats(r, {32, 32}, -1.0F, 1.0F))});
  x = b.add("Reshape", {x, b.constant("image", std::vector<std::int64_t>{1, 2, 16, 16})});
  x = b.add("Conv", {x, b.constant("c_w", random_floats(r, {2, 2, 1, 1}, -1.0F, 1.0F))});
  x = b.add("Reshape", {x, b.constant("rows", std::vector<std::int64_t>{16, 32})});
  x = b.add("MatMul", {x, b.constant("b_w", random_floats(r, {32, 32}, -1.0F, 1.0F))});
  b.output(b.add("MatMul", {x, b.constant("last_w", random_floats(r, {32, 32}, -1.0F, 1.0F))}));
  return b.get();
}

TEST_CASE("embeddings, convolutions and the last layer have the backup precision") {
  using expected = std::map<std::string, std::optional<mode>>;
  options o;
  o.mode = mode::int4_sym;
  o.group_size = 16;
  const auto modes = [&] { return modes_of(nncf::compress_weights(several_kinds(), o)); };
  CHECK(modes() == expected{{"table", mode::int8_asym},
                            {"a_w", mode::int4_sym},
                            {"c_w", mode::int8_asym},
                            {"b_w", mode::int4_sym},
                            {"last_w", mode::int8_asym}});
  o.backup_mode = nncf::backup_mode::none;
  CHECK(modes() == expected{{"table", std::nullopt},
                            {"a_w", mode::int4_sym},
                            {"c_w", std::nullopt},
                            {"b_w", mode::int4_sym},
                            {"last_w", std::nullopt}});
  o.backup_mode = nncf::backup_mode::int8_sym;
  o.all_layers = true;
  CHECK(modes() == expected{{"table", mode::int4_sym},
                            {"a_w", mode::int4_sym},
                            {"c_w", mode::int8_sym},
                            {"b_w", mode::int4_sym},
                            {"last_w", mode::int4_sym}});
  // The scales of convolutions are vectors, one for each output channel.
  const graph::model m = nncf::compress_weights(several_kinds(), o).result;
  CHECK(m.initializers.at("c_w_scale").dims() == shape{2});
  const tensors inputs = {{"ids", make_tensor<std::int64_t>(element_type::s64, {16},
                                                            std::vector<std::int64_t>(16, 3))}};
  CHECK(run(m, inputs)[0].size() == 16U * 32U);
}

TEST_CASE("ignored layers stay in float; if the last is one, the layer before it counts") {
  options o;
  o.mode = mode::int4_sym;
  o.group_size = 16;
  o.ignored_scope.names = {"MatMul_2"};
  const nncf::weight_compression done = nncf::compress_weights(chain(3), o);
  CHECK(modes_of(done) == std::map<std::string, std::optional<mode>>{{"w0", mode::int4_sym},
                                                                     {"w1", mode::int4_sym},
                                                                     {"w2", std::nullopt}});
  CHECK(named(done.result, "MatMul_2").inputs[1] == "w2");
  o.ignored_scope.names = {"nowhere"};
  check_graph_error(error_kind::invalid_argument, {"nowhere"},
                    [&] { static_cast<void>(nncf::compress_weights(chain(3), o)); });
}

TEST_CASE("the ratio limits the part of the weights with 4 bits; the least sensitive come first") {
  // With small weights, the error of 8 bits is small, and the layer counts as sensitive.
  const graph::model m = chain(5, 21, {{0, 0.1F}, {1, 3.0F}, {2, 1.0F}, {3, 0.5F}});
  const auto chosen = [&](double ratio) {
    options o = int4(mode::int4_asym, 16);
    o.all_layers = false;
    o.ratio = ratio;
    std::set<std::string> names;
    for (const auto& [weights, made] : modes_of(nncf::compress_weights(m, o))) {
      if (made == mode::int4_asym) {
        names.insert(weights);
      }
    }
    return names;
  };
  // Four layers of equal size count; the share of those chosen stays below the ratio.
  CHECK(chosen(0.25).empty());
  CHECK(chosen(0.26) == std::set<std::string>{"w1"});
  CHECK(chosen(0.51) == std::set<std::string>{"w1", "w2"});
  CHECK(chosen(0.99) == std::set<std::string>{"w1", "w2", "w3"});
  CHECK(chosen(1.0) == std::set<std::string>{"w0", "w1", "w2", "w3"});
}

TEST_CASE("sensitivities of inputs: the formulas by hand") {
  // One sample with two rows; identity weights keep what the layers see.
  model_builder b(21);
  const std::string x = b.input("x", {2, 2});
  const tensor w = floats({2, 2}, {3.0F, 0.5F, 0.25F, 1.0F});
  const std::string y = b.add("MatMul", {x, b.constant("w0", w)});
  b.output(b.add("MatMul", {y, b.constant("w1", w)}));
  const std::vector<tensors> samples = {{{"x", floats({2, 2}, {1.0F, 2.0F, 3.0F, -6.0F})}},
                                        {{"x", floats({2, 2}, {0.0F, 0.0F, 0.0F, 2.0F})}}};
  const auto score = [&](nncf::sensitivity_metric metric) {
    options o = int4(mode::int4_asym, 2);
    o.ratio = 0.6;
    o.sensitivity_metric = metric;
    o.dataset = nncf::dataset(samples);
    const nncf::weight_compression done = nncf::compress_weights(b.get(), o);
    REQUIRE(done.layers.size() == 2);
    REQUIRE(done.layers[0].sensitivity.has_value());
    return *done.layers[0].sensitivity;
  };
  using metric = nncf::sensitivity_metric;
  // The error of the weights as int8: columns 0 .. 3 and 0 .. 1.
  const auto noise = [](double a, double scale) {
    const double kept = std::nearbyint(a / scale) * scale;
    return (a - kept) * (a - kept);
  };
  const double first = noise(0.25, 3.0 / 255.0);
  const double second = noise(0.5, 1.0 / 255.0);
  const double weights =
      1.0 / ((std::max)(first, second) / 2.0 + std::numeric_limits<float>::epsilon());
  // Variances of the columns: 1 and 16 in the first sample, 0 and 1 in the second.
  CHECK(score(metric::mean_activation_variance) ==
        doctest::Approx(weights * (8.5 + 0.5) / 2).epsilon(1e-3));
  CHECK(score(metric::max_activation_variance) ==
        doctest::Approx(weights * (16.0 + 1.0) / 2).epsilon(1e-3));
  CHECK(score(metric::mean_activation_magnitude) ==
        doctest::Approx(weights * (4.5 + 1.0) / 2).epsilon(1e-3));
  CHECK(score(metric::weight_quantization_error) == doctest::Approx(weights).epsilon(1e-3));
  CHECK(score(metric::hessian_input_activation) ==
        doctest::Approx(std::sqrt(first + second) * 2 * (50.0 / 4 + 4.0 / 4) / 2).epsilon(1e-3));
}

TEST_CASE("with a dataset, layers are ranked by the largest variance of their inputs") {
  // Both layers have the same weights; the second one sees inputs a hundred times as large.
  random_source r(6);
  model_builder b(21);
  const std::string x = b.input("x", {4, 32});
  const tensor w = random_floats(r, {32, 32}, -1.0F, 1.0F);
  const std::string large = b.add("Mul", {x, b.scalar("hundred", 100.0F)});
  const std::string sum = b.add("Add", {b.add("MatMul", {large, b.constant("w0", w)}),
                                        b.add("MatMul", {x, b.constant("w1", w)})});
  b.output(sum);
  const std::vector<tensors> samples = {{{"x", random_floats(r, {4, 32}, -1.0F, 1.0F)}}};
  options o = int4(mode::int4_sym, 16);
  o.ratio = 0.6;
  CHECK(modes_of(nncf::compress_weights(b.get(), o)).at("w0") ==
        mode::int4_sym);  // the first of equals
  o.dataset = nncf::dataset(samples);
  const auto modes = modes_of(nncf::compress_weights(b.get(), o));
  CHECK(modes.at("w0") == mode::int8_asym);
  CHECK(modes.at("w1") == mode::int4_sym);
}

TEST_CASE("weights that several nodes use are compressed once") {
  random_source r(8);
  for (const std::int64_t opset : {17, 21}) {
    CAPTURE(opset);
    model_builder b(opset);
    const std::string w = b.constant("w", random_floats(r, {32, 32}, -1.0F, 1.0F));
    const std::string y = b.add("MatMul", {b.input("x", {4, 32}), w});
    b.output(b.add("MatMul", {y, w}));
    const nncf::weight_compression done =
        nncf::compress_weights(b.get(), int4(mode::int4_asym, 16));
    CHECK(done.layers.size() == 1);
    CHECK(count(done.result, opset == 17 ? "MatMulNBits" : "DequantizeLinear") ==
          (opset == 17 ? 2U : 1U));
    CHECK(done.result.initializer("w") == nullptr);
    check_close(b.get(), done.result, 0.25);
    CHECK(done.ignored_in_vain.empty());
    // As in NNCF, an ignored layer does not keep weights in float that another layer has, too.
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      options ignoring = int4(mode::int4_asym, 16);
      ignoring.ignored_scope.names = {"MatMul_" + std::to_string(i)};
      const nncf::weight_compression shared = nncf::compress_weights(b.get(), ignoring);
      CHECK(shared.ignored_in_vain ==
            std::vector<std::string>{"MatMul node 'MatMul_" + std::to_string(i) + "'"});
      CHECK(shared.result.initializer("w") == nullptr);
      if (i == 0) {  // nothing is compressed, because the other layer is the last one
        ignoring.backup_mode = nncf::backup_mode::none;
        ignoring.all_layers = false;
        CHECK(nncf::compress_weights(b.get(), ignoring).ignored_in_vain.empty());
      }
    }
  }
}

TEST_CASE("groups of weights that another node takes in another way need opset 21") {
  random_source r(8);
  const auto with = [&](std::int64_t opset, const std::string& op) {
    model_builder b(opset);
    b.constant("w", random_floats(r, {32, 32}, -1.0F, 1.0F));
    const std::string y = b.add("MatMul", {b.input("x", {4, 32}), "w"});
    if (op == "Transpose") {
      b.output(b.add("MatMul", {y, b.add("Transpose", {"w"})}));
    } else if (op == "turned") {
      b.output(b.add("Gemm", {y, "w"}, {{"transB", test::number(1)}}));
    } else if (op == "alpha") {
      b.output(b.add("Gemm", {y, "w"}, {{"alpha", test::real(0.5F)}}));
    } else {
      const std::vector<std::string> eight(8, y);  // 32 rows, as the weights have
      b.output(b.add("Gemm", {b.add("Concat", eight, {{"axis", test::number(0)}}), "w", "w"}));
    }
    return b.get();
  };
  for (const char* op : {"Transpose", "turned", "alpha", "twice"}) {
    INFO(op);
    check_graph_error(error_kind::unsupported, {"MatMul_0", "opset 21", "17"}, [&] {
      static_cast<void>(nncf::compress_weights(with(17, op), int4(mode::int4_sym, 16)));
    });
    const graph::model newer = with(21, op);
    const graph::model done = nncf::compress_weights(newer, int4(mode::int4_sym, 16)).result;
    CHECK(done.initializer("w") == nullptr);
    check_close(newer, done, 0.5);
  }
}

TEST_CASE("a group size that does not divide the inputs is an error, or is ignored or adjusted") {
  random_source r(9);
  model_builder b(21);
  std::string x = b.add(
      "MatMul", {b.input("x", {4, 32}), b.constant("w0", random_floats(r, {32, 48}, -1.0F, 1.0F))});
  x = b.add("MatMul", {x, b.constant("w1", random_floats(r, {48, 33}, -1.0F, 1.0F))});
  b.output(b.add("MatMul", {x, b.constant("w2", random_floats(r, {33, 8}, -1.0F, 1.0F))}));
  options o = int4(mode::int4_sym, 32);
  check_graph_error(error_kind::invalid_argument,
                    {"group size 32", "MatMul_1", "48 inputs", "MatMul_2", "33 inputs"},
                    [&] { static_cast<void>(nncf::compress_weights(b.get(), o)); });
  o.group_size_fallback_mode = nncf::group_size_fallback_mode::ignore;
  CHECK(modes_of(nncf::compress_weights(b.get(), o)) ==
        std::map<std::string, std::optional<mode>>{
            {"w0", mode::int4_sym}, {"w1", std::nullopt}, {"w2", std::nullopt}});
  o.group_size_fallback_mode = nncf::group_size_fallback_mode::adjust;
  o.min_adjusted_group_size = 16;
  const nncf::weight_compression done = nncf::compress_weights(b.get(), o);
  CHECK(modes_of(done) == std::map<std::string, std::optional<mode>>{{"w0", mode::int4_sym},
                                                                     {"w1", mode::int4_sym},
                                                                     {"w2", mode::int8_asym}});
  CHECK(done.layers[0].group_size == 32);
  CHECK(done.layers[1].group_size == 16);
  CHECK(done.layers[2].group_size == 0);
}

TEST_CASE("a model without layers that have constant weights stays as it is") {
  model_builder b(21);
  b.output(b.add("Relu", {b.input("x", {4, 32})}));
  for (const options& o : {options(), int4(mode::int4_sym, 16)}) {
    const nncf::weight_compression done = nncf::compress_weights(b.get(), o);
    CHECK(done.layers.empty());
    CHECK(operators(done.result) == "Relu");
  }
  model_builder empty(21);
  CHECK(nncf::compress_weights(empty.get()).layers.empty());
}

TEST_CASE("constants of other types and with one axis stay as they are") {
  model_builder b(21);
  const std::string x = b.input("x", {2, 4});
  b.output(b.add("MatMul", {x, b.constant("w", floats({4}, {1.0F, 2.0F, 3.0F, 4.0F}))}));
  const nncf::weight_compression done = nncf::compress_weights(b.get());
  REQUIRE(done.layers.size() == 1);
  CHECK(!done.layers[0].mode);
  CHECK(operators(done.result) == "MatMul");
}

TEST_CASE("weights that operators make of constants are compressed") {
  random_source r(11);
  INFO("seed ", r.seed());
  model_builder b(21);
  std::string x = b.input("x", {1, 4});
  b.constant("w", random_floats(r, {6, 4}, -1.0F, 1.0F));
  b.constant("v", random_floats(r, {6, 6}, -1.0F, 1.0F));
  b.constant("factor", floats({}, {0.5F}));
  const std::string turned = b.add("Transpose", {"w"}, {{"perm", list({1, 0})}});
  x = b.add("MatMul", {x, turned});
  x = b.add("MatMul", {x, b.add("Mul", {b.add("Identity", {"v"}), "factor"})});
  b.output(x);
  const nncf::weight_compression done = nncf::compress_weights(b.get());
  REQUIRE(done.layers.size() == 2);
  for (const nncf::compressed_weights& layer : done.layers) {
    CHECK(layer.mode == mode::int8_asym);
  }
  CHECK(sorted_operators(done.result) == "DequantizeLinear DequantizeLinear MatMul MatMul");
  const tensors inputs{{"x", random_floats(r, {1, 4}, -1.0F, 1.0F)}};
  CHECK(test::distance(b.get(), done.result, inputs) < 0.03);

  // A layer that is ignored, also by the name of what makes its weights.
  for (const char* name : {"MatMul_1", "Transpose_0"}) {
    options o;
    o.ignored_scope.names = {name};
    const graph::model m = nncf::compress_weights(b.get(), o).result;
    CHECK(count(m, "Transpose") == (std::string(name) == "MatMul_1" ? 1 : 0));
  }

  // Constants that are used elsewhere, and those that are no weights, stay as they are.
  model_builder tied(21);
  x = tied.input("x", {1, 4});
  tied.constant("w", random_floats(r, {6, 4}, -1.0F, 1.0F));
  tied.constant("size", make_tensor<std::int64_t>(element_type::s64, {2}, {64, 64}));
  tied.output(tied.add("Add", {x, tied.add("ReduceSum", {tied.add("ConstantOfShape", {"size"})})}));
  tied.output(tied.add("MatMul", {x, tied.add("Transpose", {"w"}, {{"perm", list({1, 0})}})}));
  tied.output(tied.add("Gemm", {x, "w"}, {{"transB", number(1)}}));
  const graph::model m = nncf::compress_weights(tied.get()).result;
  CHECK(sorted_operators(m) ==
        "Add ConstantOfShape DequantizeLinear Gemm MatMul ReduceSum Transpose");
  CHECK(m.initializers.count("w") == 0);
}

TEST_CASE("angles of positional encodings stay in float") {
  random_source r(10);
  model_builder b(21);
  std::string x = b.add(
      "MatMul", {b.input("x", {1, 4, 2}), b.constant("w", random_floats(r, {2, 8}, -1.0F, 1.0F))});
  x = b.add("Transpose", {x}, {{"perm", list({0, 2, 1})}});
  x = b.add("Concat", {x, x}, {{"axis", number(1)}});
  b.output(b.add("Cos", {x}));
  b.output(b.add("Sin", {x}));
  CHECK(!nncf::compress_weights(b.get()).layers.at(0).mode);
  b.get().nodes.pop_back();  // without Sin, the product is a layer like any other
  b.get().outputs.pop_back();
  CHECK(nncf::compress_weights(b.get()).layers.at(0).mode == mode::int8_asym);
}

TEST_CASE("awq without samples: the scales are the means of the weights") {
  model_builder b(21);
  const std::string x = b.add("Relu", {b.input("x", {1, 2})});
  b.output(b.add("MatMul", {x, b.constant("w", floats({2, 2}, {1.0F, -3.0F, 0.5F, 0.5F}))}));
  options o = int4(mode::int4_sym, 2);
  CHECK(count(nncf::compress_weights(b.get(), o).result, "Mul") == 0);
  o.awq = true;
  const graph::model m = nncf::compress_weights(b.get(), o).result;
  CHECK(sorted_operators(m) == "DequantizeLinear MatMul Mul Relu");
  CHECK(first(m, "Mul").name == "Relu_0/awq_mul");
  CHECK(values_of<float>(m.initializers.at(first(m, "Mul").inputs[1])) ==
        std::vector<float>{2.0F, 0.5F});
  // The scaled weights are 0.5 and -1.5, 1 and 1: largest magnitudes 1 and -1.5.
  CHECK(values_of<float>(m.initializers.at("w_scale")) == std::vector<float>{-0.125F, 0.1875F});
  CHECK(integers(m.initializers.at("w_quantized")) == std::vector<int>{-4, -8, -8, 5});
}

TEST_CASE("awq: activation, Mul, layer; not where something else takes the value") {
  const auto scaled = [](bool has_product, bool is_output, const char* activation) {
    random_source r(12);
    model_builder b(21);
    const std::string x = b.input("x", {4, 32});
    const std::string a = b.add(activation, {x});
    const std::string y = has_product ? b.add("Mul", {x, a}) : a;
    b.output(b.add("MatMul", {y, b.constant("w", random_floats(r, {32, 8}, -1.0F, 1.0F))}));
    if (is_output) {
      b.output(a);
    }
    options o = int4(mode::int4_asym, 16);
    o.awq = true;
    const graph::model m = nncf::compress_weights(b.get(), o).result;
    check_close(b.get(), m, 0.25);
    return count(m, "Mul") == (has_product ? 2U : 1U);
  };
  for (const char* activation : {"Relu", "Sigmoid", "HardSwish", "LeakyRelu"}) {
    CAPTURE(activation);
    CHECK(scaled(false, false, activation));
    CHECK(scaled(true, false, activation));
    CHECK(!scaled(false, true, activation));
    CHECK(!scaled(true, true, activation));
  }
  CHECK(!scaled(false, false, "Tanh"));
}

TEST_CASE("awq: behind a Mul of another layer, the weights of that layer are divided") {
  for (const bool is_turned : {false, true}) {
    for (const bool has_bias : {false, true}) {
      CAPTURE(is_turned);
      CAPTURE(has_bias);
      random_source r(14);
      model_builder b(21);
      const std::string x = b.input("x", {4, 32});
      const auto layer = [&](const std::string& input, const std::string& name) {
        std::vector<std::string> inputs = {
            input, b.constant(name, random_floats(r, {32, 32}, -1.0F, 1.0F))};
        if (has_bias) {
          inputs.push_back(b.constant(name + "_bias", random_floats(r, {32}, -1.0F, 1.0F)));
        }
        return b.add("Gemm", inputs, {{"transB", number(is_turned ? 1 : 0)}});
      };
      const std::string up = layer(x, "up");
      const std::string y = b.add("Mul", {b.add("Tanh", {x}), up});
      b.output(layer(y, "down"));
      options o = int4(mode::int4_asym, 16);
      o.awq = true;
      o.ignored_scope.names = {"Gemm_0"};  // its weights are divided nevertheless
      const graph::model m = nncf::compress_weights(b.get(), o).result;
      CHECK(count(m, "Mul") == (has_bias ? 2U : 1U));
      const tensor& before = b.get().initializers.at("up");
      const bool is_kept = values_of<float>(m.initializers.at("up")) == values_of<float>(before);
      CHECK(is_kept == has_bias);
      check_close(b.get(), m, 0.25);
      // With large samples, the scales keep the results of the divided layer in the range of
      // float16, as NNCF estimates them: the mean weight of an output, times the largest input,
      // times 32.
      o.ignored_scope.names.clear();
      o.awq_params.percent_to_apply = 1.0;
      const std::vector<float> large(4 * 32, 1e4F);
      const std::vector<tensors> samples = {{{"x", floats({4, 32}, large)}}};
      o.dataset = nncf::dataset(samples);
      const graph::model limited = nncf::compress_weights(b.get(), o).result;
      const auto up_weights = value_of(limited, "up_dequantized", samples[0]);
      double largest = 0.0;
      for (std::size_t n = 0; n < 32; ++n) {
        double sum = 0.0;
        for (std::size_t k = 0; k < 32; ++k) {
          sum += std::abs(up_weights[is_turned ? n * 32 + k : k * 32 + n]);
        }
        largest = (std::max)(largest, sum * 1e4);
      }
      CHECK((largest < 1.2 * 0.25 * 65504.0) == !has_bias);
    }
  }
}

/// A layer behind Relu with one group, and samples of one row in which one input is far larger than
/// the others.
struct layer_with_outlier {
  graph::model m;
  std::vector<tensors> samples;

  layer_with_outlier() {
    random_source r(13);
    model_builder b(21);
    const std::string x = b.add("Relu", {b.input("x", {1, 32})});
    b.output(b.add("MatMul", {x, b.constant("w", random_floats(r, {32, 8}, -1.0F, 1.0F))}));
    m = b.get();
    for (std::size_t i = 0; i < 24; ++i) {
      std::vector<float> row = r.reals(32, 0.0F, 1.0F);
      row[5] *= 40.0F;
      samples.push_back({{"x", floats({1, 32}, row)}});
    }
  }

  /// The errors of all outputs: the mean over the samples of |error|^power.
  [[nodiscard]] std::vector<double> errors(const options& o, int power) const {
    const graph::model done = nncf::compress_weights(m, o).result;
    std::vector<double> sums(8, 0.0);
    for (const tensors& sample : samples) {
      const auto exact = run(m, sample)[0];
      const auto result = run(done, sample)[0];
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] += std::pow(std::abs(static_cast<double>(exact[i]) - result[i]), power) /
                   static_cast<double>(samples.size());
      }
    }
    return sums;
  }
};

TEST_CASE("awq with samples makes the outputs better") {
  const layer_with_outlier layer;
  for (const mode m : {mode::int4_sym, mode::int4_asym}) {
    CAPTURE(nncf::name(m));
    options o = int4(m, -1);
    const auto total = [&] {
      const auto all = layer.errors(o, 1);
      return std::accumulate(all.begin(), all.end(), 0.0);
    };
    const double plain = total();
    o.awq = true;
    o.dataset = nncf::dataset(layer.samples);
    CHECK(total() < 0.8 * plain);
    // Only the exponent 0: all scales are 1.
    o.awq_params.steps = 1;
    CHECK(total() == doctest::Approx(plain).epsilon(1e-5));
  }
}

TEST_CASE("scale estimation makes no output worse") {
  const layer_with_outlier layer;
  for (const mode m : {mode::int4_sym, mode::int4_asym}) {
    CAPTURE(nncf::name(m));
    options o = int4(m, -1);
    const std::vector<double> plain = layer.errors(o, 2);
    o.scale_estimation = true;
    o.dataset = nncf::dataset(layer.samples);
    const std::vector<double> estimated = layer.errors(o, 2);
    double better = 0.0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      CHECK(estimated[i] <= plain[i] * (1.0 + 1e-4));
      better += estimated[i] / plain[i] / static_cast<double>(plain.size());
    }
    CHECK(better < 0.8);
    // Without steps, the scales are those of the ranges.
    o.scale_estimation_params.initial_steps = 0;
    o.scale_estimation_params.scale_steps = 0;
    CHECK(layer.errors(o, 2) == plain);
  }
}

TEST_CASE("scale estimation: one step by hand") {
  // Codes -8 and 4 with a scale of 0.5: targets -8 and 4, of importance 1/4 and 3/4.
  model_builder b(21);
  b.output(b.add("MatMul", {b.input("x", {1, 2}), b.constant("w", floats({2, 1}, {-4.0F, 2.2F}))}));
  const std::vector<tensors> samples = {{{"x", floats({1, 2}, {1.0F, 3.0F})}}};
  options o = int4(mode::int4_sym, 2);
  o.scale_estimation = true;
  o.dataset = nncf::dataset(samples);
  o.scale_estimation_params.initial_steps = 1;
  o.scale_estimation_params.scale_steps = 0;
  const graph::model m = nncf::compress_weights(b.get(), o).result;
  CHECK(m.initializers.at("w_scale").data<float>()[0] ==
        doctest::Approx(0.25 * 4.0 / 8.0 + 0.75 * 2.2 / 4.0).epsilon(1e-6));
}

namespace {

/// (code - zero point) of each weight of a group, by the definition.
std::vector<double> targets_of(const std::vector<float>& w, float scale, float zero_point,
                               float low, float high) {
  std::vector<double> t;
  for (const float x : w) {
    const float code = std::nearbyint(x / scale + zero_point);
    t.push_back(static_cast<double>((std::min)((std::max)(code, low), high) - zero_point));
  }
  return t;
}

/// The scale that scale estimation finds for a group of 4-bit weights, by the formulas of its
/// header.
float estimated_scale(const std::vector<float>& w, const std::vector<float>& magnitudes,
                      const std::vector<std::vector<float>>& samples, float first, float zero_point,
                      bool asymmetric, const nncf::scale_estimation_params& params) {
  const float low = asymmetric ? 0.0F : -8.0F;
  const float high = asymmetric ? 15.0F : 7.0F;
  const auto targets = [&](float scale) { return targets_of(w, scale, zero_point, low, high); };
  const std::vector<double> before = targets(first);
  double all = 0x1p-23;
  for (std::size_t k = 0; k < w.size(); ++k) {
    all += before[k] != 0.0 ? static_cast<double>(magnitudes[k]) : 0.0;
  }
  const auto error = [&](float scale) {
    const std::vector<double> t = targets(scale);
    double of_outputs = 0.0;
    double of_weights = 0.0;
    for (const std::vector<float>& x : samples) {
      double exact = 0.0;
      double rounded = 0.0;
      for (std::size_t k = 0; k < w.size(); ++k) {
        exact += static_cast<double>(w[k]) * static_cast<double>(x[k]);
        rounded += t[k] * static_cast<double>(scale) * static_cast<double>(x[k]);
      }
      of_outputs += (exact - rounded) * (exact - rounded);
    }
    for (std::size_t k = 0; k < w.size(); ++k) {
      const double difference = t[k] * static_cast<double>(scale) - static_cast<double>(w[k]);
      of_weights += difference * difference;
    }
    return of_outputs / static_cast<double>(samples.size()) +
           (std::max)(params.weight_penalty, 0.0) * of_weights / static_cast<double>(w.size());
  };
  float best = first;
  double least = error(first);
  const auto step = [&](const std::vector<double>& t) {
    double sum = 0.0;
    for (std::size_t k = 0; k < w.size(); ++k) {
      const double importance = before[k] != 0.0 ? static_cast<double>(magnitudes[k]) / all : 0.0;
      sum += importance * std::fabs(static_cast<double>(w[k])) /
             (t[k] == 0.0 ? 0.001 : std::fabs(t[k]));
    }
    const auto tried = static_cast<float>(std::copysign(sum, first));
    if (tried != 0.0F && error(tried) <= least) {
      least = error(tried);
      best = tried;
    }
  };
  for (std::size_t i = 0; i < params.initial_steps; ++i) {
    step(targets(best));
  }
  for (std::size_t i = 0; i < params.scale_steps; ++i) {
    step(targets(static_cast<float>(1.0 - 0.05 * static_cast<double>(i)) * first));
  }
  return best;
}

}  // namespace

namespace {

/// Samples of one row each.
nncf::detail::layer_input_samples inputs_of(const std::vector<std::vector<float>>& samples) {
  nncf::detail::layer_input_samples inputs;
  for (const std::vector<float>& x : samples) {
    inputs.add("x", floats({1, static_cast<std::int64_t>(x.size())}, x));
  }
  return inputs;
}

}  // namespace

TEST_CASE("scale estimation: groups of weights beside the formulas") {
  random_source r(21);
  INFO("seed ", r.seed());
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const bool asymmetric = round % 2 == 0;
    const std::size_t size = r.size(1, 24);
    // Many weights round to zero.
    std::vector<float> w = r.reals(size, -0.2F, 0.2F);
    w[0] = r.chance(50) ? 1.0F : -1.0F;
    std::vector<std::vector<float>> samples;
    std::vector<float> magnitudes(size, 0.0F);
    for (int i = 0; i < 5; ++i) {
      samples.push_back(r.reals(size, -1.0F, 1.0F));
      for (std::size_t k = 0; k < size; ++k) {
        samples.back()[k] *= k % 3 == 0 ? 4.0F : 1.0F;
        magnitudes[k] = (std::max)(magnitudes[k], std::fabs(samples.back()[k]));
      }
    }
    nncf::scale_estimation_params params;
    params.initial_steps = r.size(0, 4);
    params.scale_steps = r.size(0, 6);
    params.weight_penalty = r.chance(50) ? 3.0 : -1.0;
    const nncf::detail::integer_mode four_bits{4, asymmetric};
    const nncf::detail::weight_groups one{1, size, 1, false, size};
    const nncf::detail::integer_weights q = nncf::detail::quantize_by_range(w, one, four_bits);
    const std::int32_t zero_point = q.zero_points.empty() ? 0 : q.zero_points[0];
    nncf::detail::integer_weights estimated = q;
    nncf::detail::estimate_scales(w, one, four_bits, params, inputs_of(samples), estimated);
    const float scale = estimated.scales[0];
    CHECK(static_cast<double>(scale) ==
          doctest::Approx(static_cast<double>(estimated_scale(w, magnitudes, samples, q.scales[0],
                                                              static_cast<float>(zero_point),
                                                              asymmetric, params)))
              .epsilon(1e-6));
  }
}

TEST_CASE("scale estimation: each of many groups has the scale that it has alone, on any threads") {
  random_source r(23);
  INFO("seed ", r.seed());
  constexpr std::size_t outputs = 70;
  constexpr std::size_t block = 12;
  constexpr std::size_t inputs = 2 * block;
  std::vector<std::vector<float>> samples;
  std::vector<std::vector<float>> halves[2];
  for (int i = 0; i < 5; ++i) {
    samples.push_back(r.reals(inputs, -1.0F, 1.0F));
    const auto middle = samples.back().begin() + static_cast<std::ptrdiff_t>(block);
    halves[0].emplace_back(samples.back().begin(), middle);
    halves[1].emplace_back(middle, samples.back().end());
  }
  detent::thread_pool pool(3);
  const nncf::scale_estimation_params params;
  for (const bool asymmetric : {false, true}) {
    for (const bool is_turned : {false, true}) {
      CAPTURE(asymmetric);
      CAPTURE(is_turned);
      const nncf::detail::integer_mode four_bits{4, asymmetric};
      const nncf::detail::weight_groups groups =
          is_turned ? nncf::detail::weight_groups{outputs, inputs, 1, false, block}
                    : nncf::detail::weight_groups{1, inputs, outputs, false, block};
      const std::vector<float> w = r.reals(outputs * inputs, -1.0F, 1.0F);
      const auto by_range = nncf::detail::quantize_by_range(w, groups, four_bits);
      auto expected = by_range;
      for (std::size_t n = 0; n < outputs; ++n) {
        for (const std::size_t half : {0U, 1U}) {
          std::vector<float> alone;
          for (std::size_t k = half * block; k < (half + 1) * block; ++k) {
            alone.push_back(w[is_turned ? n * inputs + k : k * outputs + n]);
          }
          const nncf::detail::weight_groups one{1, block, 1, false, block};
          auto q = nncf::detail::quantize_by_range(alone, one, four_bits);
          nncf::detail::estimate_scales(alone, one, four_bits, params, inputs_of(halves[half]), q);
          expected.scales[is_turned ? n * 2 + half : half * outputs + n] = q.scales[0];
        }
      }
      CHECK(expected.scales != by_range.scales);
      for_each_target([&] {
        for (const detent::parallel_for& parallel : {detent::parallel_for(), pool.parallel()}) {
          auto q = by_range;
          nncf::detail::estimate_scales(w, groups, four_bits, params, inputs_of(samples), q,
                                        parallel);
          CHECK(q.scales == expected.scales);
        }
      });
    }
  }
}

namespace {

/// The scales that AWQ finds for the inputs of a layer, weights [outputs, inputs], by the
/// description in its header, with groups of `block` inputs.
std::vector<float> aware_scales(const std::vector<float>& w, std::size_t inputs, std::size_t block,
                                const std::vector<std::vector<float>>& samples,
                                const nncf::awq_params& params,
                                nncf::detail::integer_mode integers_of) {
  const std::size_t outputs = w.size() / inputs;
  std::vector<float> magnitudes(inputs, 0.0F);
  for (const std::vector<float>& x : samples) {
    for (std::size_t k = 0; k < inputs; ++k) {
      magnitudes[k] = (std::max)(magnitudes[k], std::fabs(x[k]));
    }
  }
  // The inputs of the largest magnitudes choose the groups.
  std::vector<std::size_t> order(inputs);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return magnitudes[a] > magnitudes[b]; });
  const auto part = static_cast<std::size_t>(static_cast<double>(inputs) * params.percent_to_apply);
  order.resize((std::max)(part, std::size_t{1}));
  std::vector<float> result(inputs, 1.0F);
  for (std::size_t first = 0; first < inputs; first += block) {
    if (std::none_of(order.begin(), order.end(),
                     [&](std::size_t k) { return k / block == first / block; })) {
      continue;
    }
    std::vector<float> sorted(magnitudes.begin() + static_cast<std::ptrdiff_t>(first),
                              magnitudes.begin() + static_cast<std::ptrdiff_t>(first + block));
    std::sort(sorted.begin(), sorted.end());
    const double at = 0.1 * static_cast<double>(block - 1);
    const auto low = static_cast<std::size_t>(at);
    const float low_value = sorted[low];
    const float high_value = sorted[(std::min)(low + 1, block - 1)];
    const auto least =
        static_cast<float>(low_value + (at - static_cast<double>(low)) * (high_value - low_value));
    const auto outputs_of = [&](const std::vector<float>& weights,
                                const std::vector<float>& scales) {
      std::vector<double> y;
      for (const std::vector<float>& x : samples) {
        for (std::size_t n = 0; n < outputs; ++n) {
          double sum = 0.0;
          for (std::size_t k = 0; k < block; ++k) {
            sum += static_cast<double>(weights[n * block + k]) *
                   static_cast<double>(x[first + k] / scales[k]);
          }
          y.push_back(sum);
        }
      }
      return y;
    };
    std::vector<float> weights;
    for (std::size_t n = 0; n < outputs; ++n) {
      for (std::size_t k = 0; k < block; ++k) {
        weights.push_back(w[n * inputs + first + k]);
      }
    }
    const std::vector<double> exact = outputs_of(weights, std::vector<float>(block, 1.0F));
    double least_error = 0.0;
    for (const double y : exact) {
      least_error = (std::max)(least_error, std::fabs(y));
    }
    double alpha = params.alpha_min;
    for (std::size_t step = 0; step < params.steps; ++step) {
      std::vector<float> scales(block);
      std::vector<float> scaled = weights;
      for (std::size_t k = 0; k < block; ++k) {
        const float limited = (std::min)((std::max)(magnitudes[first + k], least), 100.0F);
        scales[k] = std::pow(limited, static_cast<float>(alpha));
        for (std::size_t n = 0; n < outputs; ++n) {
          scaled[n * block + k] *= scales[k];
        }
      }
      const nncf::detail::weight_groups rows{outputs, block, 1, false, block};
      const auto q = nncf::detail::quantize_by_range(scaled, rows, integers_of);
      rows.for_each([&](std::size_t i, std::size_t g) { scaled[i] = q.value(i, g); });
      const std::vector<double> found = outputs_of(scaled, scales);
      double error = 0.0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        error += std::fabs(found[i] - exact[i]) / static_cast<double>(found.size());
      }
      if (error < least_error) {
        least_error = error;
        std::copy(scales.begin(), scales.end(),
                  result.begin() + static_cast<std::ptrdiff_t>(first));
      }
      alpha += (params.alpha_max - params.alpha_min) / static_cast<double>(params.steps);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("awq: scales of inputs beside the formulas") {
  random_source r(22);
  INFO("seed ", r.seed());
  detent::thread_pool pool(3);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    constexpr std::size_t block = 8;
    const std::size_t inputs = block * r.size(1, 4);
    const std::size_t outputs = r.chance(70) ? r.size(1, 5) : r.size(30, 70);
    const std::vector<float> w = r.reals(outputs * inputs, -1.0F, 1.0F);
    // Magnitudes of all sizes, some beyond the limit of 100.
    std::vector<float> sizes(inputs);
    for (float& size : sizes) {
      size = std::ldexp(1.0F, r.integer(-3, 9));
    }
    std::vector<std::vector<float>> samples;
    for (int i = 0; i < 6; ++i) {
      samples.push_back(r.reals(inputs, -1.0F, 1.0F));
      for (std::size_t k = 0; k < inputs; ++k) {
        samples.back()[k] *= sizes[k];
      }
    }
    nncf::awq_params params;
    params.percent_to_apply = r.chance(50) ? 0.002 : 0.1;
    params.steps = 12;
    const nncf::detail::integer_mode four_bits{4, r.chance(50)};
    const nncf::detail::weight_groups groups{outputs, inputs, 1, false, block};
    const nncf::detail::weight_rows rows{w, groups};
    const nncf::detail::activation_aware_scaler scaler(rows, four_bits, params, inputs_of(samples),
                                                       {});
    const std::vector<float> scales = scaler.run();
    for_each_target([&] {
      CHECK(scaler.run() == scales);
      CHECK(scaler.run(pool.parallel()) == scales);
    });
    const std::vector<float> expected = aware_scales(w, inputs, block, samples, params, four_bits);
    for (std::size_t k = 0; k < inputs; ++k) {
      CAPTURE(k);
      CHECK(static_cast<double>(scales[k]) ==
            doctest::Approx(static_cast<double>(expected[k])).epsilon(1e-5));
    }
  }
}

TEST_CASE("errors name what is wrong") {
  const auto fails = [](error_kind kind, std::initializer_list<std::string_view> words,
                        const options& o, const graph::model& m = chain(2)) {
    check_graph_error(kind, words, [&] { static_cast<void>(nncf::compress_weights(m, o)); });
  };
  constexpr auto invalid = error_kind::invalid_argument;
  constexpr auto unsupported = error_kind::unsupported;
  options o = int4(mode::int4_sym, 16);
  for (const double ratio : {0.0, -0.5, 1.5, std::nan("")}) {
    o.ratio = ratio;
    fails(invalid, {"ratio"}, o);
  }
  for (const std::int64_t size : {0, -2}) {
    fails(invalid, {"group size", std::to_string(size)}, int4(mode::int4_sym, size));
  }
  o = int4(mode::int4_sym, 16);
  o.subset_size = 0;
  fails(invalid, {"subset_size"}, o);
  o = int4(mode::int4_sym, 16);
  o.sensitivity_metric = nncf::sensitivity_metric::mean_activation_variance;
  fails(invalid, {"sensitivity metric", "dataset"}, o);
  o.dataset = nncf::dataset(std::vector<tensors>());
  o.ratio = 0.5;
  fails(invalid, {"dataset", "no items"}, o);
  for (const mode refused :
       {mode::nf4, mode::cb4, mode::codebook, mode::adaptive_codebook, mode::fp4, mode::mxfp4,
        mode::nvfp4, mode::mxfp8_e4m3, mode::fp8_e4m3}) {
    options other;
    other.mode = refused;
    fails(unsupported, {nncf::name(refused)}, other);
  }
  options gptq;
  gptq.gptq = true;
  fails(unsupported, {"gptq"}, gptq);

  const auto advanced = [&](const char* word, const auto& set) {
    options given = int4(mode::int4_sym, 16);
    set(given);
    fails(invalid, {word}, given);
  };
  advanced("scale_estimation", [](options& g) { g.scale_estimation = true; });  // no dataset
  advanced("scale_steps", [](options& g) { g.scale_estimation_params.scale_steps = 21; });
  advanced("subset_size", [](options& g) { g.scale_estimation_params.subset_size = 0; });
  advanced("steps", [](options& g) { g.awq_params.steps = 0; });
  advanced("percent_to_apply", [](options& g) { g.awq_params.percent_to_apply = 1.5; });
  advanced("alphas", [](options& g) { g.awq_params.alpha_min = 2.0; });

  // The modes of 8 bits have no other options.
  const auto int8_refuses = [&](const char* word, const auto& set) {
    options given;
    set(given);
    fails(invalid, {"int8_asym", word}, given);
  };
  int8_refuses("awq", [](options& g) { g.awq = true; });
  int8_refuses("scale_estimation", [](options& g) { g.scale_estimation = true; });
  int8_refuses("ratio", [](options& g) { g.ratio = 0.5; });
  int8_refuses("group_size", [](options& g) { g.group_size = 16; });
  int8_refuses("all_layers", [](options& g) { g.all_layers = true; });
  int8_refuses("backup_mode", [](options& g) { g.backup_mode = nncf::backup_mode::none; });
  int8_refuses("dataset", [](options& g) { g.dataset = nncf::dataset(std::vector<tensors>()); });
  int8_refuses("sensitivity_metric", [](options& g) {
    g.sensitivity_metric = nncf::sensitivity_metric::weight_quantization_error;
  });

  // What the model's opset does not have.
  fails(unsupported, {"opset 12", "13"}, options(), chain(2, 12));
  fails(unsupported, {"MatMul_0", "opset 21", "17"}, int4(mode::int4_sym, -1), chain(2, 17));
  fails(unsupported, {"MatMul_0", "group size 8", "17"}, int4(mode::int4_sym, 8), chain(2, 17));
  fails(unsupported, {"Gather_0", "opset 21"}, int4(mode::int4_sym, 16), several_kinds(17));

  // Weights that are no numbers.
  fails(invalid, {"'w'"}, options(),
        product(floats({2, 1}, {std::numeric_limits<float>::quiet_NaN(), 1.0F})));
  fails(invalid, {"'w'", "range"}, options(), product(floats({2, 1}, {-3e38F, 3e38F})));
  fails(unsupported, {"already quantized"}, options(), nncf::compress_weights(chain(1)).result);
}

}  // namespace
