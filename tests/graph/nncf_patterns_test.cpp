// SPDX-License-Identifier: BSD-3-Clause
// The search for NNCF's patterns of operators: it finds what a search through all assignments
// finds, and ends soon where many vertices have many users.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_patterns.hpp>

#include "random.hpp"

namespace {

namespace nncf = detent::graph::nncf;
using nncf::detail::operator_graph;
using nncf::detail::operator_pattern;
using nncf::detail::pattern_role;
using matches = std::vector<std::vector<std::size_t>>;

/// The definition of a match, tried for each vertex in each place.
class plain_matcher {
 public:
  explicit plain_matcher(const operator_graph& g) : g_(g) {}

  matches run(nncf::detail::patterns all, bool closed) {
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
    matches found;
    std::set<std::size_t> taken;
    for (const operator_pattern& p : all) {
      std::vector<std::size_t> match;
      extend(p, closed, match, taken, found);
    }
    return found;
  }

 private:
  std::size_t connections(std::size_t from, std::size_t to) const {
    const auto& sources = g_.vertices[to].sources;
    return static_cast<std::size_t>(std::count_if(sources.begin(), sources.end(),
                                                  [&](const auto& s) { return s.from == from; }));
  }

  bool fits(const operator_pattern& p, const std::vector<std::size_t>& match, std::size_t v) const {
    const std::size_t k = match.size();
    const auto& of = p.vertices[k].of;
    const pattern_role role = p.vertices[k].role;
    bool ok = role == pattern_role::any || role == pattern_role::outside ||
              std::count(of.begin(), of.end(), g_.vertices[v].kind) != 0;
    for (std::size_t other = 0; other < k && ok; ++other) {
      const auto wanted = [&](std::size_t from, std::size_t to) {
        return static_cast<std::size_t>(
            std::count(p.edges.begin(), p.edges.end(), std::pair(from, to)));
      };
      ok = match[other] != v && connections(match[other], v) == wanted(other, k) &&
           connections(v, match[other]) == wanted(k, other);
    }
    return ok;
  }

  bool is_closed(const operator_pattern& p, const std::vector<std::size_t>& match) const {
    for (std::size_t k = 0; k < match.size(); ++k) {
      if (p.vertices[k].role == pattern_role::outside) {
        continue;
      }
      const auto is_begin = [&](const auto& e) { return e.second == k; };
      const auto is_end = [&](const auto& e) { return e.first == k; };
      for (std::size_t v = 0; v < g_.vertices.size(); ++v) {
        const bool own = std::count(match.begin(), match.end(), v) != 0;
        if (!own && ((connections(v, match[k]) != 0 &&
                      std::any_of(p.edges.begin(), p.edges.end(), is_begin)) ||
                     (connections(match[k], v) != 0 &&
                      std::any_of(p.edges.begin(), p.edges.end(), is_end)))) {
          return false;
        }
      }
    }
    return true;
  }

  void extend(const operator_pattern& p, bool closed, std::vector<std::size_t>& match,
              std::set<std::size_t>& taken, matches& found) const {
    if (match.size() < p.vertices.size()) {
      for (std::size_t v = 0; v < g_.vertices.size(); ++v) {
        if (fits(p, match, v)) {
          match.push_back(v);
          extend(p, closed, match, taken, found);
          match.pop_back();
        }
      }
      return;
    }
    std::vector<std::size_t> members;
    for (std::size_t k = 0; k < match.size(); ++k) {
      if (p.vertices[k].role == pattern_role::member || p.vertices[k].role == pattern_role::any) {
        members.push_back(match[k]);
      }
    }
    const bool is_free = std::none_of(members.begin(), members.end(),
                                      [&](std::size_t v) { return taken.count(v) != 0; });
    if (is_free && (!closed || is_closed(p, match))) {
      taken.insert(members.begin(), members.end());
      found.push_back(members);
    }
  }

  const operator_graph& g_;
};

void connect(operator_graph& g, std::size_t from, std::size_t to) {
  auto& sources = g.vertices[to].sources;
  sources.push_back({from, sources.size(), {}, false});
}

/// Patterns behind each other, with connections too many now and then.
operator_graph random_graph(test::random_source& r, const nncf::detail::patterns& all) {
  operator_graph g;
  g.vertices.push_back({std::string(nncf::detail::input_kind), {}, {}, {}});
  const auto below = [&](std::size_t n) { return r.size(0, n - 1); };
  while (g.vertices.size() < 40) {
    const operator_pattern& p = all[below(all.size())];
    std::vector<std::size_t> place;
    for (const auto& v : p.vertices) {
      const bool is_outside = v.of.empty() && place.empty();
      if (is_outside) {
        place.push_back(below(g.vertices.size()));
        continue;
      }
      place.push_back(g.vertices.size());
      g.vertices.push_back(
          {v.of.empty() ? std::string("Relu") : std::string(v.of[below(v.of.size())]), {}, {}, {}});
      if (below(12) == 0) {
        connect(g, below(place.back()), place.back());
      }
    }
    for (const auto& [from, to] : p.edges) {
      if (place[from] < place[to]) {
        connect(g, place[from], place[to]);
      }
    }
    for (const std::size_t v : place) {
      if (g.vertices[v].sources.empty() && v != 0) {
        connect(g, below(v), v);
      }
    }
  }
  return g;
}

}  // namespace

TEST_CASE("nncf patterns: the search finds what trying all assignments finds") {
  std::size_t number_of_closed = 0;
  std::size_t number_of_open = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const nncf::detail::patterns fused = nncf::detail::fused_patterns();
    const nncf::detail::patterns ignored = nncf::detail::ignored_patterns(seed % 2 == 0);
    nncf::detail::patterns all = ignored;
    if (seed % 3 != 0) {
      all.insert(all.end(), fused.begin(), fused.end());
    }
    const operator_graph g = random_graph(r, all);
    const matches closed = nncf::detail::pattern_matcher(g).run(fused, true);
    CHECK(closed == plain_matcher(g).run(fused, true));
    const matches open = nncf::detail::pattern_matcher(g).run(ignored, false);
    CHECK(open == plain_matcher(g).run(ignored, false));
    number_of_closed += closed.size();
    number_of_open += open.size();
  }
  CHECK(number_of_closed > 100);
  CHECK(number_of_open > 40);
}

TEST_CASE("nncf patterns: many layers before one operator, and many users behind it") {
  constexpr std::size_t width = 3000;  // a search through all pairs and triples would not end
  operator_graph g;
  const auto add = [&](const char* kind, const std::vector<std::size_t>& sources) {
    g.vertices.push_back({kind, {}, {}, {}});
    for (const std::size_t from : sources) {
      connect(g, from, g.vertices.size() - 1);
    }
    return g.vertices.size() - 1;
  };
  const std::size_t input = add("input", {});
  std::vector<std::size_t> layers;
  std::vector<std::size_t> moved;
  for (std::size_t i = 0; i < width; ++i) {
    layers.push_back(add("MatMul", {input}));
    moved.push_back(add("Transpose", {add("MatMul", {input})}));
  }
  const std::size_t sum = add("Add", layers);
  const std::size_t joined = add("Concat", moved);
  for (std::size_t i = 0; i < width; ++i) {
    add("Relu", {sum});
    add("Cos", {joined});
  }
  const auto fused = [&] {
    return nncf::detail::pattern_matcher(g).run(nncf::detail::fused_patterns(), true);
  };
  const auto ignored = [&] {
    return nncf::detail::pattern_matcher(g).run(nncf::detail::ignored_patterns(true), false);
  };
  CHECK(fused().empty());
  CHECK(ignored().empty());
  // One more vertex each makes a match.
  const std::size_t layer = add("MatMul", {input});
  const std::size_t bias = add("Add", {layer});
  const std::size_t activation = add("Relu", {bias});
  CHECK(fused() == matches{{layer, bias, activation}});
  const std::size_t sine = add("Sin", {joined});
  CHECK(ignored() == matches{{moved[0] - 1, moved[0], joined, joined + 2, sine}});
}
