// SPDX-License-Identifier: BSD-3-Clause
// Gradients of single operators against central differences in double, which record_gradients.py
// recorded, and which operators have a gradient at all.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/training_operators.hpp>
#include <detent/graph/run/registry.hpp>

#include "for_each_target.hpp"
#include "model_builder.hpp"
#include "recorded_models.hpp"

namespace {

using namespace test;
using graph::gradient_graph;

/// The gradients for `wanted` of a loss whose gradients for the outputs are the seeds.
gradient_graph::gradient_map gradients_of(const graph::model& m, const tensors& given,
                                          const gradient_graph::gradient_map& seeds,
                                          const std::set<std::string>& wanted,
                                          graph::executor_options options = {}) {
  gradient_graph g(m, std::move(options));
  g.forward(given);
  return g.backward(seeds, wanted);
}

/// Float kernels round products to float. So a gradient may differ by 1e-4 of itself, and near 0 by
/// 2e-6 of the largest gradient of the tensor.
void check_near(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  double largest = 0.0;
  for (const double e : expected) {
    largest = (std::max)(largest, std::fabs(e));
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO("element ", i, ": ", found[i], ", expected ", expected[i]);
    CHECK(std::fabs(found[i] - expected[i]) <= 1e-4 * std::fabs(expected[i]) + 2e-6 * largest);
  }
}

/// A case of the file: a model of one operator.
struct recorded_case {
  graph::model m;
  tensors given;
  gradient_graph::gradient_map seeds, expected;
  std::set<std::string> wanted;

  explicit recorded_case(graph::model recorded) : m(std::move(recorded)) {
    given = take_constants(m, "given/");
    for (const auto& [name, t] : take_constants(m, "seed/")) {
      seeds[name] = doubles(t);
    }
    for (const auto& [name, t] : take_constants(m, "expected/")) {
      expected[name] = doubles(t);
      wanted.insert(name);
    }
  }
};

void for_each_case(const std::function<void(const recorded_case&)>& each) {
  for_each_recorded_model(DETENT_TEST_RECORDED_GRADIENTS,
                          [&](graph::model m) { each(recorded_case(std::move(m))); });
}

/// Why operators have no gradient.
const std::map<std::string_view, std::vector<std::string_view>>& without_gradient() {
  static const std::map<std::string_view, std::vector<std::string_view>> reasons{
      {"gives bools",
       {"And", "Or", "Xor", "Not", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
        "IsNaN", "IsInf"}},
      {"gives integers",
       {"ArgMax", "ArgMin", "NonZero", "NonMaxSuppression", "BitShift", "BitwiseAnd", "BitwiseNot",
        "BitwiseOr", "BitwiseXor"}},
      {"takes bits apart", {"BitCast"}},
      {"constant between jumps", {"Ceil", "Floor", "Round", "Sign", "Hardmax"}},
      {"looks at no float", {"Constant", "ConstantOfShape", "EyeLike", "Shape", "Size"}},
      {"makes numbers of which there are more or fewer", {"Range", "Unique"}},
      {"interpolates at points that are computed", {"AffineGrid", "GridSample", "RoiAlign"}},
      {"control flow", {"If", "Loop", "Scan"}},
      {"quantized",
       {"ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
        "com.microsoft.DequantizeLinear",
        "com.microsoft.DynamicQuantizeLSTM",
        "com.microsoft.DynamicQuantizeMatMul",
        "com.microsoft.MatMulIntegerToFloat",
        "com.microsoft.MatMulNBits",
        "com.microsoft.MulInteger",
        "com.microsoft.QGemm",
        "com.microsoft.QLinearAdd",
        "com.microsoft.QLinearAveragePool",
        "com.microsoft.QLinearConcat",
        "com.microsoft.QLinearGlobalAveragePool",
        "com.microsoft.QLinearLeakyRelu",
        "com.microsoft.QLinearMul",
        "com.microsoft.QLinearSigmoid",
        "com.microsoft.QuantizeLinear",
        "detent.ConvIntegerToFloat",
        "detent.DynamicConv",
        "detent.DynamicLinear",
        "detent.DynamicQuantizeConv",
        "detent.DynamicQuantizeMatMul",
        "detent.Lookup",
        "detent.MatMulIntegerToFloat",
        "detent.MatMulNBits",
        "detent.OffsetZeroPoint",
        "detent.QLinearAdd",
        "detent.QLinearAveragePool",
        "detent.QLinearBatchNormalization",
        "detent.QLinearConcat",
        "detent.QLinearConv",
        "detent.QLinearDiv",
        "detent.QLinearGemm",
        "detent.QLinearGlobalAveragePool",
        "detent.QLinearMul",
        "detent.QLinearSub"}},
      {"made for execution only, from operators with a gradient",
       {"detent.Conv", "detent.Gemm", "detent.MatMul"}},
  };
  return reasons;
}

}  // namespace

TEST_CASE("recorded gradients: central differences of the operators' definitions") {
  std::set<std::string> seen;
  for_each_case([&](const recorded_case& c) {
    INFO(c.m.producer_name);
    seen.insert(c.m.nodes.at(0).op_type);
    gradient_graph::gradient_map found;
    REQUIRE_NOTHROW(found = gradients_of(c.m, c.given, c.seeds, c.wanted));
    for (const auto& entry : c.expected) {
      INFO("gradient of ", entry.first);
      check_near(found.at(entry.first), entry.second);
    }
  });
  // Each operator with a gradient occurs.
  for (const auto& [key, definition] : graph::default_operators().all()) {
    graph::node n;
    n.domain = key.first;
    n.op_type = key.second;
    n.attributes["to"] = number(1);
    INFO(n.op_type);
    CHECK((graph::find_gradient(n) != nullptr) == (n.domain.empty() && seen.count(n.op_type) != 0));
  }
}

TEST_CASE("recorded gradients: the same bits for any order of parallel parts and any target") {
  for_each_case([&](const recorded_case& c) {
    INFO(c.m.producer_name);
    const auto once = gradients_of(c.m, c.given, c.seeds, c.wanted);
    graph::executor_options backwards;
    backwards.parallel = [](std::size_t count, const std::function<void(std::size_t)>& body) {
      for (std::size_t i = count; i-- > 0;) {
        body(i);
      }
    };
    CHECK(gradients_of(c.m, c.given, c.seeds, c.wanted, backwards) == once);
    for_each_target([&] { CHECK(gradients_of(c.m, c.given, c.seeds, c.wanted) == once); });
  });
}

TEST_CASE("every operator of the executor has a gradient, or a reason for having none") {
  std::set<std::string> listed;
  for (const auto& [reason, names] : without_gradient()) {
    for (const std::string_view name : names) {
      INFO(name);
      CHECK(listed.emplace(name).second);
    }
  }
  std::set<std::string> known;
  for (const auto& [key, definition] : graph::training_operators().all()) {
    graph::node n;
    n.domain = key.first;
    n.op_type = key.second;
    n.attributes["to"] = number(1);
    const std::string name = (n.domain.empty() ? "" : n.domain + ".") + n.op_type;
    INFO(name);
    CHECK((graph::find_gradient(n) != nullptr) == (listed.count(name) == 0));
    known.insert(name);
  }
  // Nothing is listed that does not exist.
  for (const std::string& name : listed) {
    INFO(name);
    CHECK(known.count(name) != 0);
  }
}

TEST_CASE("gradients that only some nodes of an operator have") {
  const auto has = [](const char* op, const attributes& a) {
    graph::node n;
    n.op_type = op;
    for (const auto& [key, value] : a) {
      n.attributes[key] = value;
    }
    return graph::find_gradient(n) != nullptr;
  };
  CHECK(has("Cast", {{"to", number(1)}}));
  CHECK(has("Cast", {{"to", number(10)}}));
  CHECK(!has("Cast", {{"to", number(7)}}));
  for (const char* op : {"ScatterElements", "ScatterND"}) {
    CHECK(has(op, {}));
    CHECK(has(op, {{"reduction", text("add")}}));
    CHECK(!has(op, {{"reduction", text("mul")}}));
    CHECK(!has(op, {{"reduction", text("max")}}));
  }
}
