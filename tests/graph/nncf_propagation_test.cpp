// SPDX-License-Identifier: BSD-3-Clause
// The propagation of NNCF's quantizers on graphs that are made by hand.
#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/quantizer_propagation.hpp>

namespace {

namespace nncf = detent::graph::nncf;
using nncf::propagation_rule;
using nncf::detail::quantizer_place;

/// A graph and the rules of its vertices.
struct ruled_graph {
  nncf::detail::operator_graph graph;
  std::vector<nncf::detail::vertex_rules> rules;

  std::size_t add(const std::string& kind, const std::vector<std::size_t>& sources,
                  nncf::detail::configs options = {}) {
    nncf::detail::operator_vertex v;
    v.kind = kind;
    for (std::size_t k = 0; k < sources.size(); ++k) {
      v.sources.push_back({sources[k], k, {}, false});
    }
    graph.vertices.push_back(std::move(v));
    const auto of = sources.empty() ? nncf::detail::trait::in_float : nncf::detail::trait_of(kind);
    rules.push_back({of, std::move(options), kind});
    return graph.vertices.size() - 1;
  }
  auto run(propagation_rule rule) const {
    return nncf::detail::quantizer_propagation(graph, rules, rule, false, false).run();
  }
};

}  // namespace

TEST_CASE("nncf propagation: the inputs of two Concat that share one become one group") {
  nncf::quantizer_config symmetric;
  nncf::quantizer_config asymmetric;
  asymmetric.symmetric = false;
  ruled_graph g;
  const std::size_t x = g.add("input", {});
  const std::size_t y = g.add("input", {});
  const std::size_t z = g.add("input", {});
  const std::size_t xy = g.add("Concat", {x, y});
  const std::size_t xz = g.add("Concat", {x, z});
  g.add("Conv", {xy}, {symmetric});
  g.add("Conv", {xz}, {symmetric, asymmetric});
  // With the first rule, the groups join only when a quantizer of xz that stays below x is taken
  // away as redundant.
  for (const propagation_rule rule : {propagation_rule::merge_with_potential_requantization,
                                      propagation_rule::merge_all_in_one}) {
    INFO(static_cast<int>(rule));
    std::map<quantizer_place, std::optional<std::size_t>> groups;
    for (const auto& [q, quantizer] : g.run(rule)) {
      groups[quantizer.at] = quantizer.group;
    }
    REQUIRE(groups.size() == 3);
    for (const std::size_t input : {x, y, z}) {
      REQUIRE(groups.count({input, {}}) == 1);
      REQUIRE(groups.at({input, {}}));
      CHECK(groups.at({input, {}}) == groups.at({x, {}}));
    }
  }
}

TEST_CASE("nncf propagation: quantizers of one input of many layers become one") {
  nncf::quantizer_config symmetric;
  nncf::quantizer_config asymmetric;
  asymmetric.symmetric = false;
  constexpr std::size_t layers = 3000;  // each comparing itself with all others would take minutes
  ruled_graph g;
  const std::size_t x = g.add("input", {});
  for (std::size_t i = 0; i < layers; ++i) {
    g.add("Conv", {x},
          i % 2 == 0 ? nncf::detail::configs{asymmetric, symmetric}
                     : nncf::detail::configs{symmetric, asymmetric});
  }
  const auto quantizers = g.run(propagation_rule::merge_all_in_one);
  REQUIRE(quantizers.size() == 1);
  const nncf::detail::moving_quantizer& one = quantizers.begin()->second;
  CHECK(one.at == quantizer_place{x, {}});
  CHECK(one.serves.size() == layers);
  CHECK(one.options ==
        nncf::detail::configs{symmetric});  // both are first as often; symmetric is preferred
  CHECK(g.run(propagation_rule::do_not_merge_branches).size() == layers);
}

TEST_CASE("nncf propagation: a chain whose every result also feeds a layer") {
  // Each quantizer but the last one waits until those below have come: if each of them looked at
  // all below after every step, this would take minutes.
  constexpr std::size_t layers = 1000;
  ruled_graph g;
  const std::size_t x = g.add("input", {});
  std::size_t result = x;
  for (std::size_t i = 0; i < layers; ++i) {
    g.add("MatMul", {result}, {nncf::quantizer_config{}});
    result = g.add("MaxPool", {result});
  }
  g.add("MatMul", {result}, {nncf::quantizer_config{}});
  const auto quantizers = g.run(propagation_rule::merge_all_in_one);
  REQUIRE(quantizers.size() == 1);
  CHECK(quantizers.begin()->second.at == quantizer_place{x, {}});
  CHECK(quantizers.begin()->second.serves.size() == layers + 1);
}
