// SPDX-License-Identifier: BSD-3-Clause
// quantize_weights_only(): what it writes, read back by plain loops; what the algorithms are worth
// on the samples; and the rewritten model, which computes what the float model does with the
// weights that the codes stand for.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/quantize/weight_only_state.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>

#include "check_graph_error.hpp"
#include "compare.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"
#include "temporary_folder.hpp"

namespace {

using namespace test;
using graph::weight_only_algorithm;
using graph::weight_only_options;
using graph::weight_scale;

weight_only_algorithm algorithm_named(std::string_view wanted) {
  for (const auto a : {weight_only_algorithm::rtn, weight_only_algorithm::gptq,
                       weight_only_algorithm::awq, weight_only_algorithm::hqq}) {
    if (graph::name(a) == wanted) {
      return a;
    }
  }
  FAIL("no algorithm ", wanted);
  return {};
}

std::vector<std::size_t> products(const graph::model& m) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    if (m.nodes[i].op_type == "MatMulNBits") {
      CHECK(m.nodes[i].domain == "com.microsoft");
      all.push_back(i);
    }
  }
  return all;
}

/// What a MatMulNBits node says of its weights, read as the operator's description has it.
struct read_weights {
  std::size_t k = 0, n = 0, bits = 0, block = 0, blocks = 0;
  std::vector<int> codes;          // n x k
  std::vector<float> scales;       // n x blocks
  std::vector<float> zero_points;  // n x blocks
  bool has_zero_points = false;

  read_weights(const graph::model& m, const graph::node& node) {
    const auto size = [&](const char* key) {
      return static_cast<std::size_t>(node.get_int(key, -1));
    };
    k = size("K");
    n = size("N");
    bits = size("bits");
    block = size("block_size");
    blocks = (k + block - 1) / block;
    const auto fields = [&](const tensor& t, std::size_t width) {
      std::vector<int> values;
      const std::size_t row = t.count() / n;
      for (std::size_t j = 0; j < n; ++j) {
        for (std::size_t i = 0; i < width; ++i) {
          int value = 0;
          for (std::size_t bit = 0; bit < bits; ++bit) {
            const std::size_t at = i * bits + bit;
            value |= (t.data<std::uint8_t>()[j * row + at / 8] >> (at % 8) & 1) << bit;
          }
          values.push_back(value);
        }
      }
      return values;
    };
    const auto dim = [](std::size_t d) { return static_cast<std::int64_t>(d); };
    const tensor& b = m.initializers.at(node.inputs.at(1));
    REQUIRE(b.type() == element_type::u8);
    REQUIRE(b.dims() == shape{dim(n), dim(blocks), dim(block * bits / 8)});
    codes = fields(b, k);
    const tensor& s = m.initializers.at(node.inputs.at(2));
    REQUIRE(s.dims() == shape{dim(n), dim(blocks)});
    scales = test::values_of<float>(s);
    has_zero_points = node.inputs.size() > 3;
    if (!has_zero_points) {
      zero_points.assign(n * blocks, static_cast<float>(1 << (bits - 1)));
      return;
    }
    const tensor& z = m.initializers.at(node.inputs[3]);
    if (z.type() == element_type::f32) {
      zero_points = test::values_of<float>(z);
      return;
    }
    REQUIRE(z.dims() == shape{dim(n), dim((blocks * bits + 7) / 8)});
    const std::vector<int> values = fields(z, blocks);
    zero_points.assign(values.begin(), values.end());
  }

  [[nodiscard]] std::size_t at(std::size_t column, std::size_t row) const {
    return column * blocks + row / block;
  }
  [[nodiscard]] float value(std::size_t row, std::size_t column) const {
    return (static_cast<float>(codes[column * k + row]) - zero_points[at(column, row)]) *
           scales[at(column, row)];
  }
  /// K x N, as MatMul takes them.
  [[nodiscard]] tensor dequantized() const {
    std::vector<float> w;
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        w.push_back(value(i, j));
      }
    }
    return floats({static_cast<std::int64_t>(k), static_cast<std::int64_t>(n)}, w);
  }
};

read_weights weights_of(const graph::model& m, std::size_t which = 0) {
  return read_weights(m, m.nodes[products(m).at(which)]);
}

/// y = x W
graph::model single_matmul(const tensor& w, shape x = {}) {
  model_builder b;
  b.input("x", x.empty() ? shape{-1, w.dim(0)} : x);
  b.constant("w", w);
  b.output(b.add("MatMul", {"x", "w"}));
  return b.get();
}

/// Gives samples of the input "x" one by one, again and again; counts how often it was at the end.
class sample_list {
 public:
  explicit sample_list(std::vector<tensor> samples) : samples_(std::move(samples)) {}
  [[nodiscard]] graph::calibration_source source() {
    return [this]() -> std::optional<tensors> {
      if (next_ == samples_.size()) {
        next_ = 0;
        ++passes;
        return std::nullopt;
      }
      return tensors{{"x", samples_[next_++]}};
    };
  }
  std::size_t passes = 0;

 private:
  std::vector<tensor> samples_;
  std::size_t next_ = 0;
};

/// Rows whose features share a few causes, some of them much larger than others: what activations
/// are like.
std::vector<tensor> correlated_samples(test::random_source& r, std::size_t count, std::size_t rows,
                                       std::size_t features) {
  constexpr std::size_t causes = 6;
  const std::vector<float> mix = r.reals(causes * features, -1.0F, 1.0F);
  std::vector<float> size;
  for (std::size_t i = 0; i < features; ++i) {
    size.push_back(i % 11 == 3 ? 8.0F : 1.0F);
  }
  std::vector<tensor> all;
  for (std::size_t s = 0; s < count; ++s) {
    std::vector<float> x;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::vector<float> cause = r.reals(causes, -1.0F, 1.0F);
      for (std::size_t f = 0; f < features; ++f) {
        float sum = r.real(-0.1F, 0.1F);
        for (std::size_t c = 0; c < causes; ++c) {
          sum += cause[c] * mix[c * features + f];
        }
        x.push_back(sum * size[f]);
      }
    }
    all.push_back(
        floats({static_cast<std::int64_t>(rows), static_cast<std::int64_t>(features)}, x));
  }
  return all;
}

/// The squared error of a model's only output against that of another, over samples of "x".
double output_error(const graph::model& actual, const graph::model& expected,
                    const std::vector<tensor>& samples) {
  double error = 0.0;
  graph::executor a(actual);
  graph::executor e(expected);
  for (const tensor& x : samples) {
    const tensor y = a.run({{"x", x}})[0];
    const tensor z = e.run({{"x", x}})[0];
    for (std::size_t i = 0; i < y.count(); ++i) {
      const double d =
          static_cast<double>(y.data<float>()[i]) - static_cast<double>(z.data<float>()[i]);
      error += d * d;
    }
  }
  return error;
}

double weight_error(const tensor& w, const read_weights& q, double power = 2.0) {
  double sum = 0.0;
  for (std::size_t i = 0; i < q.k; ++i) {
    for (std::size_t j = 0; j < q.n; ++j) {
      sum += std::pow(std::fabs(static_cast<double>(w.data<float>()[i * q.n + j]) -
                                static_cast<double>(q.value(i, j))),
                      power);
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("weight only: rtn, by plain loops") {
  test::random_source r(71);
  INFO("seed ", r.seed());
  for (const std::size_t bits : {4U, 8U}) {
    for (const bool symmetric : {false, true}) {
      for (const std::int64_t block : {16, 32, 64, 128, 256, 0, -1}) {
        for (const std::int64_t k : {1, 15, 32, 50, 300}) {
          const std::int64_t n = r.integer<std::int64_t>(1, 9);
          tensor w = test::random_floats(r, {k, n}, -3.0F, 2.0F);
          if (k == 50) {  // a column of zeros, one of positive values, one constant
            for (std::int64_t i = 0; i < k; ++i) {
              float* const row = w.mutable_data<float>().data() + i * n;
              row[0] = 0.0F;
              row[n - 1] = n > 1 ? 0.75F : 0.0F;
              row[n / 2] = n > 2 ? std::fabs(row[n / 2]) : row[n / 2];
            }
          }
          INFO("bits ", bits, symmetric ? " symmetric" : "", " block ", block, " K ", k, " N ", n);
          weight_only_options options;
          options.bits = bits;
          options.block_size = block;
          options.symmetric = symmetric;
          const graph::model m = graph::quantize_weights_only(single_matmul(w), options);
          const read_weights q = weights_of(m);
          REQUIRE(q.k == static_cast<std::size_t>(k));
          REQUIRE(q.n == static_cast<std::size_t>(n));
          CHECK(q.bits == bits);
          CHECK(q.has_zero_points == !symmetric);
          // The least power of two that holds K is enough for any.
          std::size_t expected_block = 16;
          while (expected_block < q.k &&
                 expected_block < (block > 0 ? static_cast<std::size_t>(block) : 256U)) {
            expected_block *= 2;
          }
          CHECK(q.block == expected_block);

          const int top = (1 << bits) - 1;
          const int middle = 1 << (bits - 1);
          std::size_t wrong = 0;
          for (std::size_t j = 0; j < q.n; ++j) {
            for (std::size_t first = 0; first < q.k; first += q.block) {
              const std::size_t last = (std::min)(q.k, first + q.block);
              double lower = 0.0;
              double upper = 0.0;
              for (std::size_t i = first; i < last; ++i) {
                const auto x = static_cast<double>(w.data<float>()[i * q.n + j]);
                lower = (std::min)(lower, x);
                upper = (std::max)(upper, x);
              }
              const double extent = symmetric ? (std::max)(-lower, upper) : upper - lower;
              const double steps = symmetric ? middle - 1 : top;
              float scale = extent > 0.0 ? static_cast<float>(extent / steps) : 1.0F;
              if (static_cast<double>(scale) * steps < extent) {
                scale = std::nextafter(scale, 1e9F);
              }
              const double zero_point =
                  symmetric ? middle
                            : (std::min)(static_cast<double>(top),
                                         std::nearbyint(-lower / static_cast<double>(scale)));
              wrong += q.scales[q.at(j, first)] != scale;
              wrong += static_cast<double>(q.zero_points[q.at(j, first)]) != zero_point;
              for (std::size_t i = first; i < last; ++i) {
                const double place =
                    std::nearbyint(static_cast<double>(w.data<float>()[i * q.n + j] / scale)) +
                    zero_point;
                wrong += q.codes[j * q.k + i] !=
                         static_cast<int>(std::clamp(place, 0.0, static_cast<double>(top)));
                wrong += std::fabs(static_cast<double>(w.data<float>()[i * q.n + j]) -
                                   static_cast<double>(q.value(i, j))) >
                         static_cast<double>(scale) * 0.50001;
              }
            }
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("weight only: the rewritten model is the float model with the weights of the codes") {
  test::random_source r(72);
  INFO("seed ", r.seed());
  for (const std::size_t bits : {4U, 8U}) {
    for (const char* algorithm : {"rtn", "hqq"}) {
      for (const shape& x : {shape{3, 45}, shape{2, 3, 45}, shape{45}, shape{2, 2, 2, 45}}) {
        const graph::model m = single_matmul(test::random_floats(r, {45, 7}, -1.0F, 1.0F), x);
        weight_only_options options;
        options.bits = bits;
        options.block_size = 16;
        options.algorithm = algorithm_named(algorithm);
        const graph::model q = graph::quantize_weights_only(m, options);
        CHECK(operators(q) == "com.microsoft.MatMulNBits");
        CHECK(q.opsets.at("com.microsoft") == 1);
        CHECK(q.opset() == m.opset());
        CHECK(q.initializers.count("w") == 0);
        CHECK(q.nodes[0].name == m.nodes[0].name);
        CHECK(q.nodes[0].find("accuracy_level") == nullptr);
        graph::model expected = m;
        expected.initializers["w"] = weights_of(q).dequantized();
        const tensors inputs{{"x", test::random_floats(r, x, -2.0F, 2.0F)}};
        const tensor y = outputs_of(q, inputs)[0];
        const tensor e = outputs_of(expected, inputs)[0];
        CHECK(y.dims() == e.dims());
        CHECK(test::difference(y.data<float>(), e.data<float>()) == "");
      }
    }
  }
}

TEST_CASE("weight only: Gemm with and without an addend, weights either way round") {
  test::random_source r(73);
  INFO("seed ", r.seed());
  for (const bool transposed : {false, true}) {
    for (const int addend : {0, 1, 2, 3}) {
      model_builder b;
      b.input("x", {3, 45});
      b.constant("w",
                 test::random_floats(r, transposed ? shape{7, 45} : shape{45, 7}, -1.0F, 1.0F));
      std::vector<std::string> inputs{"x", "w"};
      if (addend == 1) {
        inputs.push_back(b.constant("c", test::random_floats(r, {7}, -1.0F, 1.0F)));
      } else if (addend == 2) {
        inputs.push_back(b.constant("c", test::random_floats(r, {3, 1}, -1.0F, 1.0F)));
      } else if (addend == 3) {
        inputs.push_back(b.input("c", {1, 7}));
      }
      b.output(b.add("Gemm", inputs, {{"transB", number(transposed ? 1 : 0)}}));
      INFO("transB ", transposed, " addend ", addend);
      weight_only_options options;
      options.accuracy_level = 1;
      const graph::model q = graph::quantize_weights_only(b.get(), options);
      CHECK(operators(q) ==
            (addend == 0 ? "com.microsoft.MatMulNBits" : "com.microsoft.MatMulNBits Add"));
      CHECK(q.nodes[0].get_int("accuracy_level", 0) == 1);
      CHECK(q.outputs[0].name == b.get().outputs[0].name);
      tensors given{{"x", test::random_floats(r, {3, 45}, -2.0F, 2.0F)}};
      if (addend == 3) {
        given["c"] = test::random_floats(r, {1, 7}, -2.0F, 2.0F);
      }
      graph::model expected = b.get();
      expected.initializers["w"] = weights_of(q).dequantized();
      expected.nodes[0].attributes.erase("transB");
      const tensor y = outputs_of(q, given)[0];
      const tensor e = outputs_of(expected, given)[0];
      REQUIRE(y.dims() == e.dims());
      for (std::size_t i = 0; i < y.count(); ++i) {
        CHECK(std::fabs(y.data<float>()[i] - e.data<float>()[i]) <= 1e-4F);
      }
    }
  }
}

TEST_CASE("weight only: nodes that stay") {
  test::random_source r(74);
  model_builder b;
  b.input("x", {20, 20});
  b.constant("w", test::random_floats(r, {20, 20}, -1.0F, 1.0F));
  b.constant("stack", test::random_floats(r, {1, 20, 20}, -1.0F, 1.0F));
  b.constant("row", test::random_floats(r, {20}, -1.0F, 1.0F));
  b.constant("empty", floats({20, 0}, {}));
  b.output(b.add("MatMul", {"x", "x"}));
  b.output(b.add("MatMul", {"w", "x"}));
  b.output(b.add("MatMul", {"x", "stack"}));
  b.output(b.add("MatMul", {"x", "row"}));
  b.output(b.add("MatMul", {"x", "empty"}));
  b.output(b.add("MatMul", {"w", "w"}));
  b.output(b.add("Gemm", {"x", "w", "x"}, {{"beta", test::real(0.5F)}}));
  b.output(b.add("Gemm", {"x", "w"}, {{"transA", number(1)}}));
  const std::string taken = b.add("MatMul", {"x", "w"});
  b.output(taken);
  const graph::model q = graph::quantize_weights_only(b.get());
  REQUIRE(products(q).size() == 1);
  CHECK(q.nodes[products(q)[0]].outputs[0] == taken);
  CHECK(q.nodes.size() == b.get().nodes.size());
  CHECK(q.initializers.count("w") == 1);  // still used
}

TEST_CASE("weight only: factors of a Gemm go into its weights and bias") {
  test::random_source r(76);
  model_builder b;
  b.input("x", {3, 32});
  b.constant("w", test::random_floats(r, {32, 4}, -1.0F, 1.0F));
  b.constant("c", test::random_floats(r, {4}, -1.0F, 1.0F));
  b.output(
      b.add("Gemm", {"x", "w", "c"}, {{"alpha", test::real(0.3F)}, {"beta", test::real(-2.0F)}}));
  weight_only_options options;
  options.bits = 8;
  const graph::model q = graph::quantize_weights_only(b.get(), options);
  CHECK(products(q).size() == 1);
  const tensors inputs{{"x", test::random_floats(r, {3, 32}, -1.0F, 1.0F)}};
  const auto expected = values_of<float>(outputs_of(b.get(), inputs)[0]);
  const auto found = values_of<float>(outputs_of(q, inputs)[0]);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(std::fabs(found[i] - expected[i]) < 0.02F);
  }
}

TEST_CASE("weight only: shared weights are stored once") {
  test::random_source r(75);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {4, 24});
  b.input("ids", {2}, element_type::s64);
  b.constant("w", test::random_floats(r, {24, 24}, -1.0F, 1.0F));
  std::string y = b.add("MatMul", {"x", "w"});
  y = b.add("Relu", {y});
  y = b.add("MatMul", {y, "w"});
  y = b.add("Gemm", {y, "w"}, {{"transB", number(1)}});  // other columns: codes of its own
  b.output(y);
  b.output(b.add("Gather", {"w", "ids"}));
  for (const char* algorithm : {"rtn", "gptq", "awq"}) {
    weight_only_options options;
    options.algorithm = algorithm_named(algorithm);
    options.block_size = 16;
    std::vector<tensor> rows = correlated_samples(r, 3, 4, 24);
    std::size_t next = 0;
    const graph::calibration_source samples = [&]() -> std::optional<tensors> {
      if (next == rows.size()) {
        next = 0;
        return std::nullopt;
      }
      return tensors{{"x", rows[next++]},
                     {"ids", test::make_tensor<std::int64_t>(element_type::s64, {2}, {0, 3})}};
    };
    std::vector<std::string> told;
    options.on_layer = [&](const graph::weight_only_layer& l) {
      told.push_back(l.node + " " + l.weights);
      CHECK(l.layout.depth == 24);
      CHECK(l.evidence.objective <= l.evidence.nearest_objective);
    };
    INFO(algorithm);
    const graph::model q = graph::quantize_weights_only(b.get(), options, samples);
    CHECK(told == std::vector<std::string>{"MatMul_0 w", "MatMul_2 w", "Gemm_3 w"});
    const std::vector<std::size_t> at = products(q);
    REQUIRE(at.size() == 3);
    for (const std::size_t i : {1U, 2U, 3U}) {
      CHECK(q.nodes[at[0]].inputs[i] == q.nodes[at[1]].inputs[i]);
      CHECK(q.nodes[at[0]].inputs[i] != q.nodes[at[2]].inputs[i]);
    }
    CHECK(q.initializers.count("w") == 1);  // for Gather
    static_cast<void>(outputs_of(q, *samples()));
  }
}

TEST_CASE("weight only: shared weights count the inputs of all their nodes") {
  test::random_source r(87);
  INFO("seed ", r.seed());
  const tensor w = test::random_floats(r, {30, 8}, -1.0F, 1.0F);
  model_builder b;
  b.input("x", {-1, 30});
  b.input("z", {-1, 30});
  b.constant("w", w);
  b.output(b.add("MatMul", {"x", "w"}));
  b.output(b.add("MatMul", {"z", "w"}));
  const std::vector<tensor> x = correlated_samples(r, 3, 5, 30);
  const std::vector<tensor> z = correlated_samples(r, 3, 7, 30);
  std::vector<tensor> both = x;
  both.insert(both.end(), z.begin(), z.end());
  for (const char* algorithm : {"gptq", "awq"}) {
    weight_only_options options;
    options.algorithm = algorithm_named(algorithm);
    std::size_t next = 0;
    const auto samples = [&]() -> std::optional<tensors> {
      if (next == x.size()) {
        return std::nullopt;
      }
      ++next;
      return tensors{{"x", x[next - 1]}, {"z", z[next - 1]}};
    };
    const auto bytes = [](const graph::model& m) {
      return test::values_of<std::uint8_t>(m.initializers.at("w_quantized"));
    };
    INFO(algorithm);
    const auto shared = bytes(graph::quantize_weights_only(b.get(), options, samples));
    sample_list all(both);
    CHECK(shared == bytes(graph::quantize_weights_only(single_matmul(w), options, all.source())));
    sample_list one(x);
    CHECK(shared != bytes(graph::quantize_weights_only(single_matmul(w), options, one.source())));
  }
}

TEST_CASE("weight only: exact_mse never has a larger error than absmax") {
  test::random_source r(76);
  INFO("seed ", r.seed());
  for (const std::size_t bits : {4U, 8U}) {
    for (const bool symmetric : {false, true}) {
      std::vector<float> values;
      for (std::size_t i = 0; i < 70 * 9; ++i) {  // long tails
        const float u = r.real(-1.0F, 1.0F);
        values.push_back(u * u * u * 4.0F);
      }
      const tensor w = floats({70, 9}, values);
      weight_only_options options;
      options.bits = bits;
      options.symmetric = symmetric;
      const double absmax =
          weight_error(w, weights_of(graph::quantize_weights_only(single_matmul(w), options)));
      options.scales = weight_scale::exact_mse;
      const double exact =
          weight_error(w, weights_of(graph::quantize_weights_only(single_matmul(w), options)));
      INFO("bits ", bits, symmetric ? " symmetric" : "");
      CHECK(exact < absmax);
    }
  }
}

TEST_CASE("weight only: gptq and awq have less error at the outputs than rtn") {
  for (const std::uint64_t seed : {77U, 78U, 79U}) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const tensor w = test::random_floats(r, {70, 12}, -1.0F, 1.0F);
    const graph::model m = single_matmul(w);
    const std::vector<tensor> samples = correlated_samples(r, 6, 20, 70);
    for (const bool symmetric : {false, true}) {
      weight_only_options options;
      options.symmetric = symmetric;
      const double rtn = output_error(graph::quantize_weights_only(m, options), m, samples);
      for (const char* algorithm : {"gptq", "awq", "awq diagonal", "gptq exact_mse"}) {
        const std::string name(algorithm);
        options.algorithm = algorithm_named(name.substr(0, name.find(' ')));
        options.diagonal_statistics = name == "awq diagonal";
        options.scales = name == "gptq exact_mse" ? weight_scale::exact_mse : weight_scale::absmax;
        double told = 0.0;
        options.on_layer = [&](const graph::weight_only_layer& l) { told = l.evidence.objective; };
        sample_list list(samples);
        const graph::model q = graph::quantize_weights_only(m, options, list.source());
        const double error = output_error(q, m, samples);
        INFO(algorithm, symmetric ? " symmetric" : "", ": ", error, ", rtn ", rtn);
        // With the whole Gram matrix the error is what the solver minimized.
        CHECK(error < rtn);
        if (name != "awq diagonal") {
          CHECK(std::fabs(told - error) <= 1e-3 * error + 1e-6);
        }
        CHECK(list.passes == 1);
        const bool has_scales = name.rfind("awq", 0) == 0;
        CHECK(operators(q) ==
              (has_scales ? "Mul com.microsoft.MatMulNBits" : "com.microsoft.MatMulNBits"));
      }
    }
  }
}

TEST_CASE("weight only: awq's Mul takes the inputs, and the weights are those of scaled columns") {
  test::random_source r(80);
  INFO("seed ", r.seed());
  const tensor w = test::random_floats(r, {48, 6}, -1.0F, 1.0F);
  const std::vector<tensor> samples = correlated_samples(r, 4, 10, 48);
  weight_only_options options;
  options.algorithm = weight_only_algorithm::awq;
  options.awq.smallest_clip = 1.0F;  // then only rounding is between the weights and the codes
  sample_list list(samples);
  const graph::model q = graph::quantize_weights_only(single_matmul(w), options, list.source());
  REQUIRE(operators(q) == "Mul com.microsoft.MatMulNBits");
  CHECK(q.nodes[0].inputs[0] == "x");
  CHECK(q.nodes[1].inputs[0] == q.nodes[0].outputs[0]);
  const tensor& inverse = q.initializers.at(q.nodes[0].inputs[1]);
  REQUIRE(inverse.dims() == shape{48});
  const read_weights codes = weights_of(q);
  for (std::size_t i = 0; i < 48; ++i) {
    for (std::size_t j = 0; j < 6; ++j) {
      const float scaled = w.data<float>()[i * 6 + j] / inverse.data<float>()[i];
      CHECK(std::fabs(codes.value(i, j) - scaled) <= codes.scales[codes.at(j, i)] * 0.501F);
    }
  }
}

TEST_CASE("weight only: hqq lowers its norm of the errors; real zero points") {
  test::random_source r(81);
  INFO("seed ", r.seed());
  std::vector<float> values;
  for (std::size_t i = 0; i < 64 * 10; ++i) {
    const float u = r.real(-1.0F, 1.0F);
    values.push_back(u * u * u * 3.0F + 0.2F);
  }
  const tensor w = floats({64, 10}, values);
  const graph::model m = single_matmul(w);
  weight_only_options options;
  options.hqq.relative = true;
  const double rtn = weight_error(w, weights_of(graph::quantize_weights_only(m, options)), 0.7);
  options.algorithm = weight_only_algorithm::hqq;
  const double integer = weight_error(w, weights_of(graph::quantize_weights_only(m, options)), 0.7);
  options.hqq.real_zero_points = true;
  const graph::model q = graph::quantize_weights_only(m, options);
  const double real = weight_error(w, weights_of(q), 0.7);
  CHECK(integer <= rtn * (1.0 + 1e-6));
  CHECK(real < rtn);
  CHECK(q.initializers.at(q.nodes[0].inputs.at(3)).type() == element_type::f32);
  // A rule for 8 bits: integers, with which there is nothing to gain.
  const auto of_8_bits = [&](weight_only_algorithm algorithm) {
    weight_only_options o = options;
    o.algorithm = algorithm;
    graph::operator_settings eight;
    eight.weight_bits = 8;
    o.scope.operators.types.push_back({.pattern = "MatMul", .settings = eight});
    return graph::to_onnx(graph::quantize_weights_only(m, o));
  };
  CHECK(of_8_bits(weight_only_algorithm::hqq) == of_8_bits(weight_only_algorithm::rtn));
  graph::model expected = m;
  expected.initializers["w"] = weights_of(q).dequantized();
  const tensors inputs{{"x", test::random_floats(r, {3, 64}, -1.0F, 1.0F)}};
  CHECK(test::difference(outputs_of(q, inputs)[0].data<float>(),
                         outputs_of(expected, inputs)[0].data<float>()) == "");
}

TEST_CASE("weight only: little memory means more passes, threads and splits the same bits") {
  test::random_source r(82);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 40});
  std::string y = "x";
  for (const char* name : {"w0", "w1", "w2"}) {
    b.constant(name, test::random_floats(r, {40, 40}, -0.3F, 0.3F));
    y = b.add("Relu", {b.add("MatMul", {y, name})});
  }
  b.output(y);
  const std::vector<tensor> samples = correlated_samples(r, 4, 6, 40);
  std::vector<tensor> split;
  for (const tensor& s : samples) {
    const std::vector<float> all = test::values_of<float>(s);
    split.push_back(floats({5, 40}, {all.begin(), all.begin() + 200}));
    split.push_back(floats({1, 40}, {all.begin() + 200, all.end()}));
  }
  detent::thread_pool pool(3);
  for (const char* algorithm : {"gptq", "awq", "awq diagonal"}) {
    const std::string name(algorithm);
    weight_only_options options;
    options.algorithm = algorithm_named(name.substr(0, name.find(' ')));
    options.diagonal_statistics = name == "awq diagonal";
    INFO(algorithm);
    sample_list list(samples);
    const std::string expected =
        graph::to_onnx(graph::quantize_weights_only(b.get(), options, list.source()));
    CHECK(list.passes == 1);
    options.calibration_bytes = 1;
    sample_list again(samples);
    CHECK(graph::to_onnx(graph::quantize_weights_only(b.get(), options, again.source())) ==
          expected);
    CHECK(again.passes == 3);
    options.executor.parallel = pool.parallel();
    sample_list parts(split);
    CHECK(graph::to_onnx(graph::quantize_weights_only(b.get(), options, parts.source())) ==
          expected);
  }
}

TEST_CASE("weight only: statistics of inputs have the memory of a run, no more") {
  test::random_source r(84);
  model_builder b;
  b.input("x", {-1, 40});
  b.constant("w", test::random_floats(r, {40, 40}, -0.3F, 0.3F));
  b.output(b.add("MatMul", {"x", "w"}));
  const std::vector<tensor> samples = correlated_samples(r, 4, 6, 40);
  for (const char* algorithm : {"gptq", "awq"}) {
    weight_only_options options;
    options.algorithm = algorithm_named(algorithm);
    options.executor.max_memory_bytes = 200000;
    sample_list list(samples);
    static_cast<void>(graph::quantize_weights_only(b.get(), options, list.source()));
    CHECK(graph::weight_only_state(b.get(), options).samples() == 0);
    options.executor.max_memory_bytes = 6000;  // of 16 * 40 * 40, and of 4 * 40 * 40
    sample_list again(samples);
    test::check_graph_error(error_kind::bad_file, {"'x'", "40 features", "6000"}, [&] {
      static_cast<void>(graph::quantize_weights_only(b.get(), options, again.source()));
    });
    test::check_graph_error(error_kind::bad_file, {"'x'", "40 features", "6000"},
                            [&] { const graph::weight_only_state state(b.get(), options); });
  }
}

TEST_CASE("weight only: constants are folded, files are read back") {
  test::random_source r(83);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3, 33});
  b.constant("w", test::random_floats(r, {5, 33}, -1.0F, 1.0F));
  b.output(b.add("MatMul", {"x", b.add("Transpose", {"w"})}));
  const graph::model q = graph::quantize_weights_only(b.get());
  CHECK(operators(q) == "com.microsoft.MatMulNBits");
  const test::temporary_folder folder;
  graph::write_onnx(q, folder.path() / "q.onnx");
  const graph::model read = graph::read_onnx(folder.path() / "q.onnx");
  CHECK(read.opsets.at("com.microsoft") == 1);
  const tensors inputs{{"x", test::random_floats(r, {2, 3, 33}, -1.0F, 1.0F)}};
  CHECK(test::difference(outputs_of(read, inputs)[0].data<float>(),
                         outputs_of(q, inputs)[0].data<float>()) == "");
}

TEST_CASE("weight only: sub-graphs may use what they like") {
  test::random_source r(84);
  model_builder b;
  b.input("x", {2, 16});
  b.input("condition", {}, element_type::boolean);
  b.constant("w", test::random_floats(r, {16, 16}, -1.0F, 1.0F));
  b.constant("unseen", test::random_floats(r, {16}, -1.0F, 1.0F));
  b.constant("forgotten", test::random_floats(r, {16}, -1.0F, 1.0F));
  const std::string made = b.add("Transpose", {"w"});  // for a branch alone
  b.output(b.add("MatMul", {"x", "w"}));
  const auto branch = [](const std::string& result, std::vector<std::string> inputs) {
    graph::node n;
    n.op_type = "Sum";
    n.inputs = std::move(inputs);
    n.outputs = {result};
    graph::graph_body body;
    body.nodes = {n};
    body.outputs = {{result, element_type::f32, false, {}, {}}};
    return graph::attribute::of(std::move(body));
  };
  b.output(b.add(
      "If", {"condition"},
      {{"then_branch", branch("t", {made, "w"})}, {"else_branch", branch("e", {"unseen", "w"})}}));
  const graph::model q = graph::quantize_weights_only(b.get());
  REQUIRE(operators(q) == "com.microsoft.MatMulNBits If");
  CHECK(q.nodes[1].inputs == b.get().nodes[2].inputs);
  CHECK(graph::captured_values(q.nodes[1]) == std::set<std::string>{made, "unseen", "w"});
  CHECK(q.initializers.count(made) == 1);  // folded
  CHECK(q.initializers.count("forgotten") == 0);
  for (const char* name : {"w", "unseen"}) {
    REQUIRE(q.initializers.count(name) == 1);
    CHECK(test::difference(q.initializers.at(name).data<float>(),
                           b.get().initializers.at(name).data<float>()) == "");
  }
}

TEST_CASE("weight only: ignored nodes") {
  test::random_source r(85);
  model_builder b;
  b.input("x", {2, 16});
  std::string y = "x";
  for (int i = 0; i < 4; ++i) {
    y = b.add("MatMul", {y, b.constant("w" + std::to_string(i),
                                       test::random_floats(r, {16, 16}, -1.0F, 1.0F))});
  }
  b.output(y);
  b.get().nodes[0].name = "/layer.0/attention/MatMul";
  b.get().nodes[1].name = "/layer.0/output/MatMul";
  b.get().nodes[2].name = "";
  const auto rewritten = [&](std::vector<std::string> names, std::vector<std::string> patterns) {
    weight_only_options options;
    options.scope.ignored.names = std::move(names);
    options.scope.ignored.patterns = std::move(patterns);
    std::string all;
    for (const graph::node& n : graph::quantize_weights_only(b.get(), options).nodes) {
      all += n.op_type == "MatMulNBits" ? 'q' : 'f';
    }
    return all;
  };
  CHECK(rewritten({}, {}) == "qqqq");
  CHECK(rewritten({"/layer.0/output/MatMul"}, {}) == "qfqq");
  CHECK(rewritten({"MatMul_2_out"}, {".*/attention/.*"}) == "fqfq");
  CHECK(rewritten({}, {"/layer\\.0/.*", "MatMul_3"}) == "ffqf");
  const auto check = [&](std::initializer_list<std::string_view> words,
                         std::vector<std::string> names, std::vector<std::string> patterns) {
    check_graph_error(error_kind::invalid_argument, words,
                      [&] { static_cast<void>(rewritten(names, patterns)); });
  };
  check({"name 'MatMul_9'", "matches no node"}, {"MatMul_3", "MatMul_9"}, {});
  check({"pattern 'attention'", "matches no node"}, {}, {"attention"});  // not the whole name
  check({"pattern '(x'", "regular expression"}, {}, {"(x"});
  check({"no MatMul or Gemm"}, {}, {".*"});
}

TEST_CASE("weight only: what is wrong is named") {
  test::random_source r(86);
  const tensor w = test::random_floats(r, {40, 4}, -1.0F, 1.0F);
  const auto check = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         const weight_only_options& options, const graph::model& m,
                         const graph::calibration_source& samples = {}) {
    check_graph_error(
        kind, words, [&] { static_cast<void>(graph::quantize_weights_only(m, options, samples)); });
  };
  const auto with = [](const std::function<void(weight_only_options&)>& change) {
    weight_only_options options;
    change(options);
    return options;
  };
  const auto invalid = error_kind::invalid_argument;
  const graph::model m = single_matmul(w);
  using options = weight_only_options;
  check(invalid, {"3 bits"}, with([](options& o) { o.bits = 3; }), m);
  check(invalid, {"2 bits"}, with([](options& o) { o.bits = 2; }), m);
  for (const std::int64_t block : {-2, 8, 24, 512}) {
    check(invalid, {"block size " + std::to_string(block)},
          with([&](options& o) { o.block_size = block; }), m);
  }
  check(invalid, {"accuracy level 5"}, with([](options& o) { o.accuracy_level = 5; }), m);
  check(invalid, {"hqq", "symmetric"}, with([](options& o) {
          o.algorithm = weight_only_algorithm::hqq;
          o.symmetric = true;
        }),
        m);
  check(invalid, {"awq", "exact_mse"}, with([](options& o) {
          o.algorithm = weight_only_algorithm::awq;
          o.scales = weight_scale::exact_mse;
        }),
        m);
  check(error_kind::unsupported, {"8-bit"}, with([](options& o) {
          o.algorithm = weight_only_algorithm::hqq;
          o.bits = 8;
          o.hqq.real_zero_points = true;
        }),
        m);
  for (const char* algorithm : {"gptq", "awq"}) {
    const auto o = with([&](options& to) { to.algorithm = algorithm_named(algorithm); });
    check(invalid, {algorithm, "needs calibration samples"}, o, m);
    sample_list none({});
    check(invalid, {"no calibration samples"}, o, m, none.source());
    sample_list empty({floats({0, 40}, {})});
    check(invalid, {"weights 'w'", "no calibration sample has rows"}, o, m, empty.source());
    tensor bad = test::random_floats(r, {3, 40}, -1.0F, 1.0F);
    bad.mutable_data<float>()[85] = std::numeric_limits<float>::quiet_NaN();
    for (const bool diagonal : {false, true}) {
      auto changed = o;
      changed.diagonal_statistics = diagonal;
      sample_list with_nan({test::random_floats(r, {3, 40}, -1.0F, 1.0F), bad});
      check(invalid, {"tensor 'x'", "calibration sample 2", "row 2, column 5"}, changed, m,
            with_nan.source());
    }
  }
  {
    model_builder b;
    b.input("x", {2, 40});
    b.constant("w", w);
    b.output(b.add("MatMul", {b.add("Fancy", {"x"}, {}, "com.example"), "w"}));
    CHECK(products(graph::quantize_weights_only(b.get())).size() == 1);  // it is not run
    sample_list list({test::random_floats(r, {2, 40}, -1.0F, 1.0F)});
    CHECK(products(graph::quantize_weights_only(
                       b.get(), with([](options& o) { o.algorithm = weight_only_algorithm::awq; }),
                       list.source()))
              .size() == 1);
  }
  {
    // A second pass that is shorter than the first.
    model_builder b;
    b.input("x", {-1, 40});
    b.constant("w", test::random_floats(r, {40, 40}, -1.0F, 1.0F));
    b.constant("v", test::random_floats(r, {40, 40}, -1.0F, 1.0F));
    b.output(b.add("MatMul", {b.add("MatMul", {"x", "w"}), "v"}));
    std::size_t calls = 0;
    const tensor x = test::random_floats(r, {2, 40}, -1.0F, 1.0F);
    const auto samples = [&]() -> std::optional<tensors> {
      constexpr bool has_sample[] = {true, true, false, true, false};
      return has_sample[calls++] ? std::optional<tensors>({{"x", x}}) : std::nullopt;
    };
    const auto o = with([](options& to) {
      to.algorithm = weight_only_algorithm::awq;
      to.calibration_bytes = 0;
    });
    check(invalid, {"had 1 samples, the first 2"}, o, b.get(), samples);
  }
  tensor bad = test::random_floats(r, {40, 4}, -1.0F, 1.0F);
  bad.mutable_data<float>()[9] = std::numeric_limits<float>::infinity();
  check(invalid, {"weights 'w'", "inf"}, {}, single_matmul(bad));
  check(invalid, {"weights 'w'"}, with([](options& o) { o.scales = weight_scale::exact_mse; }),
        single_matmul(bad));
  graph::model old = m;
  old.opsets[""] = 6;
  check(error_kind::unsupported, {"opset 6"}, {}, old);
}
