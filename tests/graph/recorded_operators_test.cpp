// SPDX-License-Identifier: BSD-3-Clause
// What ONNX Runtime computes for more than a thousand small models, which record_operators.py
// recorded.
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/model/files.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/rewrite/lower.hpp>

#include "../../examples/detent/tensor_difference.hpp"
#include "model_builder.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

/// Takes the constants whose names begin with `prefix` out of the model, under the rest of their
/// names.
tensors take_constants(graph::model& m, std::string_view prefix) {
  tensors taken;
  std::erase_if(m.initializers, [&](const auto& entry) {
    if (entry.first.rfind(prefix, 0) != 0) {
      return false;
    }
    taken.emplace(entry.first.substr(prefix.size()), entry.second);
    return true;
  });
  return taken;
}

}  // namespace

TEST_CASE("recorded operators: what ONNX Runtime returns") {
  const std::string recorded = graph::read_file(DETENT_TEST_RECORDED_OPERATORS);
  std::size_t cases = 0;
  for (std::size_t at = 0; at < recorded.size(); ++cases) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      size |= std::size_t{static_cast<unsigned char>(recorded.at(at + i))} << (8 * i);
    }
    const std::string_view bytes = std::string_view(recorded).substr(at + 4, size);
    REQUIRE(bytes.size() == size);
    at += 4 + size;
    graph::model m = graph::parse_onnx(bytes, {});
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
  }
  CHECK(cases > 1000);
}
