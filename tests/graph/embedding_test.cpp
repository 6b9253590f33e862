// SPDX-License-Identifier: BSD-3-Clause
// Tables of embeddings in 8 bits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/embedding_tables.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

constexpr std::int64_t rows = 300;
constexpr std::int64_t columns = 16;

/// Rows of very different sizes, one of them all zeros.
tensor table(test::random_source& r) {
  tensor t = random_floats(r, {rows, columns}, -1.0F, 1.0F);
  auto values = t.mutable_data<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] *= static_cast<float>(i / columns) / 10.0F;
  }
  return t;
}

/// ids -> Gather(words) -> MatMul -> y
model_builder network(test::random_source& r) {
  model_builder b;
  b.input("ids", {2, 5}, element_type::s64);
  b.constant("words", table(r));
  const std::string x = b.add("Gather", {"words", "ids"});
  b.get().nodes.back().name = "embedding";
  b.constant("w", random_floats(r, {columns, 7}, -1.0F, 1.0F));
  b.output(b.add("MatMul", {x, "w"}));
  b.output(x);
  return b;
}

tensor some_ids(test::random_source& r) {
  std::vector<std::int64_t> ids(10);
  for (std::int64_t& id : ids) {
    id = r.integer<std::int64_t>(-rows, rows - 1);
  }
  ids[0] = 0;  // the row of zeros
  ids[1] = rows - 1;
  return make_tensor(element_type::s64, {2, 5}, ids);
}

}  // namespace

TEST_CASE("embeddings: each row is within half a step of its scale") {
  test::random_source r(1200);
  INFO("seed ", r.seed());
  const model_builder b = network(r);
  const std::vector<float> words = values_of<float>(b.get().initializers.at("words"));
  for (const bool per_row : {true, false}) {
    graph::model m = b.get();
    graph::quantize_embeddings(m, [&](const graph::node&) { return std::optional<bool>(per_row); });
    graph::remove_unused(m);
    CHECK(m.initializers.count("words") == 0);
    CHECK(m.initializers.at("words_quantized").type() == element_type::s8);
    CHECK(operators(m) ==
          (per_row ? "Gather Cast Gather Mul MatMul" : "Gather DequantizeLinear MatMul"));
    CHECK(producer(m, b.get().outputs[1].name)->name == "embedding");
    const tensor ids = some_ids(r);
    const tensor taken = outputs_of(m, {{"ids", ids}})[1];
    CHECK(taken.dims() == shape{2, 5, columns});
    CHECK(doubles(outputs_of(graph::for_execution(m), {{"ids", ids}})[1]) == doubles(taken));
    float largest = 0.0F;
    for (const float w : words) {
      largest = (std::max)(largest, std::fabs(w));
    }
    for (std::size_t i = 0; i < 10; ++i) {
      const std::int64_t id = ids.data<std::int64_t>()[i];
      const auto row = static_cast<std::size_t>(id < 0 ? id + rows : id) * columns;
      float most = 0.0F;
      for (std::size_t k = 0; k < columns; ++k) {
        most = (std::max)(most, std::fabs(words[row + k]));
      }
      const float step = (per_row ? most : largest) / 127.0F;
      for (std::size_t k = 0; k < columns; ++k) {
        CHECK(std::fabs(taken.data<float>()[i * columns + k] - words[row + k]) <= 0.501F * step);
      }
    }
  }
}

TEST_CASE("embeddings: one scale for a table covers its largest magnitude, of either sign") {
  for (const float sign : {1.0F, -1.0F}) {
    CAPTURE(sign);
    model_builder b;
    b.input("ids", {2}, element_type::s64);
    std::vector<float> words(static_cast<std::size_t>(rows * columns), 0.5F);
    words[0] = sign * 127.0F;
    words[columns + 1] = -sign * 3.0F;
    b.constant("words", floats({rows, columns}, words));
    b.output(b.add("Gather", {"words", "ids"}));
    graph::model m = b.get();
    graph::quantize_embeddings(m, [](const graph::node&) { return std::optional<bool>(false); });
    const std::vector<std::int8_t> codes =
        values_of<std::int8_t>(m.initializers.at("words_quantized"));
    CHECK(codes[0] == static_cast<int>(sign) * 127);
    CHECK(codes[columns + 1] == static_cast<int>(-sign) * 3);
  }
}

TEST_CASE("embeddings: static and dynamic quantization store them, rules leave them in float") {
  test::random_source r(1201);
  INFO("seed ", r.seed());
  const model_builder b = network(r);
  std::vector<sample> samples;
  for (int i = 0; i < 4; ++i) {
    samples.push_back({{"ids", some_ids(r)}});
  }
  const auto source = samples_source(samples);
  const auto check = [&](const graph::model& q, std::size_t casts, bool in_float) {
    CHECK(q.initializers.count("words") == (in_float ? 1 : 0));
    CHECK(count(q, "Cast") == casts);
    const graph::model file = graph::parse_onnx(graph::to_onnx(q), ".");
    const std::vector<double> exact = doubles(outputs_of(b.get(), samples[0])[0]);
    const std::vector<double> ours = doubles(outputs_of(graph::for_execution(file), samples[0])[0]);
    double largest = 0.0;
    double most = 0.0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      largest = (std::max)(largest, std::fabs(exact[i]));
      most = (std::max)(most, std::fabs(exact[i] - ours[i]));
    }
    CHECK(most < 0.02 * largest);
  };
  check(graph::static_quantization(b.get(), source).result, 1, false);
  check(graph::quantize_dynamic(b.get()), 2, false);  // one behind the product
  graph::quantization_scope scope;
  scope.ignored.types = {"Gather"};
  check(graph::static_quantization(b.get(), source, {.scope = scope}).result, 0, true);
  check(graph::quantize_dynamic(b.get(), {.scope = scope}), 1, true);
  scope = {};
  scope.operators.names = {{"embedding", {.per_channel = false}}};
  const graph::model whole = graph::quantize_dynamic(b.get(), {.scope = scope});
  check(whole, 1, false);
  CHECK(count(whole, "DequantizeLinear") == 1);
}

TEST_CASE("embeddings: tables with other uses, and what is no table") {
  test::random_source r(1202);
  INFO("seed ", r.seed());
  const auto always = [](const graph::node&) { return std::optional<bool>(true); };
  model_builder b;
  b.input("ids", {3}, element_type::s64);
  b.constant("words", table(r));
  b.constant("few", random_floats(r, {16, 16}, -1.0F, 1.0F));
  b.constant("narrow", random_floats(r, {1000, 8}, -1.0F, 1.0F));
  b.constant("cube", random_floats(r, {20, 16, 16}, -1.0F, 1.0F));
  b.constant("chosen", {1, 2});
  b.output(b.add("Gather", {"words", "ids"}));
  b.output(b.add("Gather", {"words", "ids"}));
  b.output(b.add("Neg", {"words"}));
  graph::model m = b.get();
  graph::quantize_embeddings(m, always);
  graph::remove_unused(m);
  CHECK(count(m, "Mul") == 2);
  CHECK(m.initializers.count("words") == 1);  // Neg takes it
  CHECK(m.initializers.count("words_quantized") == 1);
  CHECK(m.initializers.size() == 3);

  for (const auto& [name, indices, axis] :
       {std::tuple("few", "ids", 0), std::tuple("narrow", "ids", 0), std::tuple("cube", "ids", 0),
        std::tuple("words", "chosen", 0), std::tuple("words", "ids", 1)}) {
    model_builder other = b;
    other.get().nodes.clear();
    other.get().outputs.clear();
    other.output(other.add("Gather", {name, indices}, {{"axis", number(axis)}}));
    graph::model n = other.get();
    graph::quantize_embeddings(n, always);
    CHECK(operators(n) == "Gather");
  }

  b.get().initializers.at("words").mutable_data<float>()[77] =
      std::numeric_limits<float>::infinity();
  check_graph_error(error_kind::invalid_argument, {"words"},
                    [&] { static_cast<void>(graph::quantize_dynamic(b.get())); });
}
