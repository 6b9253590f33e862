// SPDX-License-Identifier: BSD-3-Clause
// What a model computes in one run.
#ifndef DETENT_TESTS_GRAPH_RUN_MODEL_HPP
#define DETENT_TESTS_GRAPH_RUN_MODEL_HPP

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/run/executor.hpp>

#include "model_builder.hpp"

namespace test {

/// The outputs of a model.
inline std::vector<tensor> outputs_of(const graph::model& m, const tensors& inputs) {
  graph::executor e(m);
  return e.run(inputs);
}

/// The outputs of a model, all of them float.
inline std::vector<std::vector<float>> run(const graph::model& m, const tensors& inputs) {
  std::vector<std::vector<float>> outputs;
  for (const tensor& t : outputs_of(m, inputs)) {
    outputs.push_back(values_of<float>(t));
  }
  return outputs;
}

/// One float value of a model, an input or what a node makes, in the order of its dimensions.
inline std::vector<float> value_of(const graph::model& m, const std::string& name,
                                   const tensors& inputs) {
  graph::executor e(m);
  bool found = false;
  std::vector<float> values;
  static_cast<void>(e.run(inputs, [&](const std::string& made, const tensor& t) {
    if (made == name) {
      found = true;
      values = values_of<float>(graph::to_plain(t));
    }
  }));
  REQUIRE_MESSAGE(found, name);
  return values;
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_RUN_MODEL_HPP
