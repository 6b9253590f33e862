// SPDX-License-Identifier: BSD-3-Clause
// QLinearAdd and its relatives against reference::quantized_binary, element by element, for
// operands of one shape, operands that are repeated, and those that are broadcast in other ways.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/run/executor.hpp>
#include <detent/quantized_elementwise.hpp>

#include "for_each_target.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "single_node.hpp"

namespace {

using namespace test;
using detent::quant_params;
using graph::shape;

/// Where an operand has the element that goes to element `at` of the result.
std::size_t operand_index(const shape& operand, const shape& result, std::size_t at) {
  std::size_t index = 0;
  std::size_t step = 1;
  for (std::size_t d = result.size(); d-- > 0;) {
    const std::size_t i = at % static_cast<std::size_t>(result[d]);
    at /= static_cast<std::size_t>(result[d]);
    const std::size_t missing = result.size() - operand.size();
    if (d >= missing && operand[d - missing] != 1) {
      index += i * step;
      step *= static_cast<std::size_t>(operand[d - missing]);
    }
  }
  return index;
}

template <class T>
tensor random_codes(random_source& random, const shape& dims) {
  return make_tensor(graph::type_of<T>(), dims, random.integers<T>(graph::element_count(dims)));
}

struct shapes {
  shape a, b, result;
};

/// Puts a pool with windows of one element, which stores its channels last, before input i.
void pool_input(graph::model& m, std::size_t i) {
  graph::node pool;
  pool.op_type = "MaxPool";
  pool.inputs = {m.nodes.back().inputs[i]};
  pool.outputs = {"pooled" + std::to_string(i)};
  pool.attributes = {{"kernel_shape", list({1, 1})}};
  m.nodes.back().inputs[i] = pool.outputs[0];
  m.nodes.insert(m.nodes.begin(), std::move(pool));
}

/// `pooled`: the operands, 0 and 1, whose channels are stored last.
template <class T>
void check(const std::string& op, const std::function<float(float, float)>& f, const shapes& s,
           random_source& random, const std::vector<std::size_t>& pooled = {}) {
  constexpr std::int32_t low = detent::full_grid<T>.qmin;
  const auto params = [&](float scale) {
    return quant_params{scale, random.integer(low, low + 255)};
  };
  const quant_params pa = params(0.25F);
  const quant_params pb = params(0.0371F);
  const quant_params py = params(op == "QLinearDiv" ? 0.9F : 0.31F);
  const tensor a = random_codes<T>(random, s.a);
  const tensor b = random_codes<T>(random, s.b);
  const auto scale = [](quant_params p) { return floats({}, {p.scale}); };
  const auto zero = [](quant_params p) {
    return make_tensor(graph::type_of<T>(), {}, std::vector<T>{static_cast<T>(p.zero_point)});
  };
  const std::vector<tensor> inputs = {a,         scale(pa), zero(pa),  b,
                                      scale(pb), zero(pb),  scale(py), zero(py)};
  graph::model m = single_node(op, inputs, false, {}, "detent", graph::type_of<T>());
  for (const std::size_t side : pooled) {
    pool_input(m, side * 3);
  }
  for_each_target([&] {
    const tensor y = run_twice(m, inputs, false);
    REQUIRE(y.dims() == s.result);
    for (std::size_t i = 0; i < y.count(); ++i) {
      const std::int32_t expected = detent::reference::quantized_binary(
          f, a.data<T>()[operand_index(s.a, s.result, i)], pa,
          b.data<T>()[operand_index(s.b, s.result, i)], pb, py, detent::full_grid<T>);
      if (y.data<T>()[i] != expected) {
        FAIL(op, " element ", i, " is ", int{y.data<T>()[i]}, ", not ", expected);
      }
    }
  });
}

const std::pair<const char*, std::function<float(float, float)>> functions[] = {
    {"QLinearAdd", [](float x, float y) { return x + y; }},
    {"QLinearSub", [](float x, float y) { return x - y; }},
    {"QLinearMul", [](float x, float y) { return x * y; }},
    {"QLinearDiv", [](float x, float y) { return x / y; }},
};

}  // namespace

TEST_CASE("quantized arithmetic: every way of broadcasting gives the bits of the reference") {
  random_source random(51);
  INFO("seed ", random.seed());
  const shapes all[] = {
      {{3, 5, 7}, {3, 5, 7}, {3, 5, 7}},     // the same
      {{3, 5, 7}, {7}, {3, 5, 7}},           // the last dimension
      {{3, 5, 7}, {1, 1, 7}, {3, 5, 7}},     // with leading ones
      {{5, 7}, {3, 5, 7}, {3, 5, 7}},        // the left operand
      {{3, 5, 7}, {}, {3, 5, 7}},            // a scalar
      {{1}, {3, 5, 7}, {3, 5, 7}},           // one element
      {{3, 5, 7}, {5, 1}, {3, 5, 7}},        // a dimension in the middle
      {{3, 1, 7}, {1, 5, 1}, {3, 5, 7}},     // both
      {{1, 3, 5, 7}, {7}, {1, 3, 5, 7}},     // the result begins with one
      {{5, 1}, {1}, {5, 1}},                 // columns of one element
      {{41, 1000}, {1000}, {41, 1000}},      // several pieces, several periods each
      {{3, 20000}, {20000}, {3, 20000}},     // periods longer than a piece
      {{2, 16385}, {2, 16385}, {2, 16385}},  // several pieces without periods
      {{0, 7}, {7}, {0, 7}},                 // nothing
  };
  for (const auto& [op, f] : functions) {
    for (const shapes& s : all) {
      INFO(detent::detail::message(graph::shown(s.a), " ", graph::shown(s.b)));
      check<std::uint8_t>(op, f, s, random);
      check<std::int8_t>(op, f, s, random);
    }
  }
}

TEST_CASE("quantized arithmetic: operands whose channels are stored last") {
  random_source random(52);
  INFO("seed ", random.seed());
  const shape image = {2, 6, 5, 4};
  const shape others[] = {{2, 6, 5, 4}, {1, 6, 5, 4}, {2, 6, 1, 4}, {1, 6, 5, 1},
                          {2, 6, 1, 1}, {1, 1, 5, 1}, {6, 1, 1},    {6, 5, 4},
                          {1, 5, 4},    {5, 4},       {4},          {}};
  for (const auto& [op, f] : functions) {
    for (const shape& other : others) {
      INFO(detent::detail::message(graph::shown(other)));
      check<std::uint8_t>(op, f, {image, other, image}, random, {0});
      check<std::int8_t>(op, f, {other, image, image}, random, {1});
      if (other.size() == 4) {
        check<std::uint8_t>(op, f, {image, other, image}, random, {0, 1});
        check<std::int8_t>(op, f, {image, other, image}, random, {1});
      }
    }
  }
}
