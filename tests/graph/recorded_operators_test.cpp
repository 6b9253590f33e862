// SPDX-License-Identifier: BSD-3-Clause
// What ONNX Runtime computes for more than a thousand small models, which record_operators.py
// recorded.
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/rewrite/lower.hpp>

#include "../../examples/detent/tensor_difference.hpp"
#include "model_builder.hpp"
#include "recorded_models.hpp"
#include "run_model.hpp"

using namespace test;

TEST_CASE("recorded operators: what ONNX Runtime returns") {
  const auto check = [](graph::model m) {
    INFO(m.producer_name);
    const tensors given = take_constants(m, "given/");
    const tensors expected = take_constants(m, "expected/");
    REQUIRE(expected.size() == m.outputs.size());
    for (const bool prepared : {false, true}) {
      INFO((prepared ? "for execution" : "as it is"));
      std::vector<tensor> outputs;
      REQUIRE_NOTHROW(outputs = outputs_of(prepared ? graph::for_execution(m) : m, given));
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        INFO(m.outputs[i].name);
        CHECK(detent_cli::first_difference(outputs[i], expected.at(m.outputs[i].name)) == "");
      }
    }
  };
  CHECK(for_each_recorded_model(DETENT_TEST_RECORDED_OPERATORS, check) > 1000);
}

TEST_CASE("recorded operators: infinities are equal to themselves alone") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto differ = [](float actual, float expected) {
    return !detent_cli::first_difference(floats({1}, {actual}), floats({1}, {expected})).empty();
  };
  CHECK_FALSE(differ(infinity, infinity));
  CHECK_FALSE(differ(-infinity, -infinity));
  CHECK(differ(1.0F, infinity));
  CHECK(differ(infinity, -infinity));
  CHECK(differ(-infinity, infinity));
  CHECK(differ(infinity, 1.0F));
  CHECK(differ(std::numeric_limits<float>::quiet_NaN(), infinity));
  CHECK_FALSE(differ(1.0005F, 1.0F));
  CHECK(differ(1.002F, 1.0F));
}
