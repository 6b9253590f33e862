// SPDX-License-Identifier: BSD-3-Clause
// Models of one node, for tests of operators.
#ifndef DETENT_TESTS_GRAPH_SINGLE_NODE_HPP
#define DETENT_TESTS_GRAPH_SINGLE_NODE_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/run/executor.hpp>

#include "model_builder.hpp"

namespace test {

/// One node whose inputs are graph inputs x0, x1, ... or, all but the first if `constant`,
/// initializers. A tensor without a type is an absent input.
inline graph::model single_node(const std::string& op, const std::vector<tensor>& inputs,
                                bool constant, attributes a, const std::string& domain,
                                element_type out = element_type::f32) {
  model_builder b;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = "x" + std::to_string(i);
    if (!inputs[i].defined()) {
      names.emplace_back();
    } else if (constant && i > 0) {
      names.push_back(b.constant(name, inputs[i]));
    } else {
      names.push_back(b.input(name, inputs[i].dims(), inputs[i].type()));
    }
  }
  b.output(b.add(op, names, std::move(a), domain), out);
  return b.get();
}

/// The values of the graph inputs of single_node().
inline tensors feeds(const std::vector<tensor>& inputs, bool constant) {
  tensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && !(constant && i > 0)) {
      all["x" + std::to_string(i)] = inputs[i];
    }
  }
  return all;
}

/// The output of a single_node(). It runs twice, so that what is kept between runs serves again.
inline tensor run_twice(graph::model m, const std::vector<tensor>& inputs, bool constant) {
  graph::executor executor(std::move(m));
  static_cast<void>(executor.run(feeds(inputs, constant)));
  return executor.run(feeds(inputs, constant))[0];
}

/// The first output of a node with constant inputs. A tensor without a type is an absent input.
inline tensor result_of(const std::string& op, const std::vector<tensor>& inputs, attributes a = {},
                        std::int64_t opset = 17, const std::string& domain = "") {
  model_builder b(opset);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) {
      names.emplace_back();
      continue;
    }
    names.push_back("in" + std::to_string(i));
    b.constant(names.back(), inputs[i]);
  }
  const std::string y = b.add(op, names, std::move(a), domain);
  b.output(y, element_type::undefined);
  return graph::executor(b.get()).run({})[0];
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_SINGLE_NODE_HPP
