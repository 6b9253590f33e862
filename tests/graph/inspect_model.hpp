// SPDX-License-Identifier: BSD-3-Clause
// Which nodes a model has.
#ifndef DETENT_TESTS_GRAPH_INSPECT_MODEL_HPP
#define DETENT_TESTS_GRAPH_INSPECT_MODEL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>

namespace test {

namespace graph = detent::graph;

/// How many nodes of an operator there are, in whatever domain.
inline std::size_t count(const graph::model& m, std::string_view op) {
  return static_cast<std::size_t>(std::count_if(
      m.nodes.begin(), m.nodes.end(), [&](const graph::node& n) { return n.op_type == op; }));
}
inline std::size_t count(const graph::model& m, std::string_view op, std::string_view domain) {
  return static_cast<std::size_t>(
      std::count_if(m.nodes.begin(), m.nodes.end(),
                    [&](const graph::node& n) { return n.op_type == op && n.domain == domain; }));
}

/// The first node of an operator.
inline const graph::node& first(const graph::model& m, std::string_view op) {
  const auto found = std::find_if(m.nodes.begin(), m.nodes.end(),
                                  [&](const graph::node& n) { return n.op_type == op; });
  REQUIRE_MESSAGE(found != m.nodes.end(), std::string(op));
  return *found;
}

/// The node of that name.
inline const graph::node& named(const graph::model& m, const std::string& name) {
  const auto found = std::find_if(m.nodes.begin(), m.nodes.end(),
                                  [&](const graph::node& n) { return n.name == name; });
  REQUIRE_MESSAGE(found != m.nodes.end(), name);
  return *found;
}

/// The node that makes a value; nullptr if none does.
inline const graph::node* producer(const graph::model& m, const std::string& value) {
  const std::size_t i = graph::links(m).producer(value);
  return i == graph::links::none ? nullptr : &m.nodes[i];
}

namespace detail {

inline std::vector<std::string> operator_names(const graph::model& m) {
  std::vector<std::string> names;
  for (const graph::node& n : m.nodes) {
    names.push_back(n.domain.empty() ? n.op_type : n.domain + "." + n.op_type);
  }
  return names;
}
inline std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    all.append(all.empty() ? "" : " ").append(name);
  }
  return all;
}

}  // namespace detail

/// The operators in the order of the nodes, with their domains: "Conv detent.Lookup".
inline std::string operators(const graph::model& m) {
  return detail::joined(detail::operator_names(m));
}
inline std::string sorted_operators(const graph::model& m) {
  std::vector<std::string> names = detail::operator_names(m);
  std::sort(names.begin(), names.end());
  return detail::joined(names);
}

/// The weights of a ConvInteger or MatMulInteger, less their zero point.
inline std::vector<int> centred_weights(const graph::model& m, const graph::node& n) {
  const auto value = [](const graph::tensor& t, std::size_t i) {
    return t.type() == graph::element_type::u8 ? int{t.data<std::uint8_t>()[i]}
                                               : int{t.data<std::int8_t>()[i]};
  };
  const graph::tensor& codes = m.initializers.at(n.inputs[1]);
  const int zero_point = n.inputs.size() < 4 ? 0 : value(m.initializers.at(n.inputs[3]), 0);
  std::vector<int> centred(codes.count());
  for (std::size_t i = 0; i < centred.size(); ++i) {
    centred[i] = value(codes, i) - zero_point;
  }
  return centred;
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_INSPECT_MODEL_HPP
