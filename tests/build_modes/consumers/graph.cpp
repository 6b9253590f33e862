// SPDX-License-Identifier: BSD-3-Clause
// A model made by hand, run by the operators of the graph part.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <detent/graph/run/executor.hpp>

int main() {
  namespace graph = detent::graph;
  using graph::element_type;
  const auto floats = [](const std::vector<float>& values) {
    return graph::tensor::of<float>(element_type::f32, {static_cast<std::int64_t>(values.size())},
                                    values);
  };
  graph::model m;
  m.opsets[""] = 17;
  m.inputs = {{"x", element_type::f32, true, {3}, {}}};
  m.outputs = {{"y", element_type::f32, true, {3}, {}}};
  m.initializers["half"] = floats({0.5F, 0.5F, 0.5F});
  graph::node n;
  n.op_type = "Add";
  n.inputs = {"x", "half"};
  n.outputs = {"y"};
  m.nodes = {n};
  graph::executor executor(m);
  const std::vector<graph::tensor> y =
      executor.run(std::map<std::string, graph::tensor>{{"x", floats({1.0F, -2.0F, 0.25F})}});
  const auto values = y.at(0).data<float>();
  return values.size() == 3 && values[0] == 1.5F && values[1] == -1.5F && values[2] == 0.75F ? 0
                                                                                             : 1;
}
