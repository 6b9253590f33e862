// SPDX-License-Identifier: BSD-3-Clause
// Patterns of operators that NNCF treats as one: a layer with its normalization and activation, a
// hard swish of several operators, and so on. No quantizer is placed within one. Other patterns
// select operators that stay in float.
//
// A pattern is a small graph whose vertices name kinds of operators. It matches where the vertices
// of an operator_graph have these kinds and exactly these connections among each other. Longer
// patterns go first; a vertex belongs to one match at most.
#ifndef DETENT_GRAPH_NNCF_OPERATOR_PATTERNS_HPP
#define DETENT_GRAPH_NNCF_OPERATOR_PATTERNS_HPP

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/nncf/operator_graph.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {
namespace detail {

/// A list of kinds of operators.
using kinds = std::vector<std::string_view>;

/// What a vertex of a pattern stands for.
enum class pattern_role : unsigned char {
  member,    ///< An operator of one of the kinds.
  any,       ///< An operator of any kind.
  outside,   ///< An operator of any kind that is not part of the match, but must be there.
  excluded,  ///< An operator of one of the kinds that is not part of the match.
};

/// A vertex of a pattern.
struct pattern_vertex {
  kinds of;                                  ///< The kinds, for a member or an excluded one.
  pattern_role role = pattern_role::member;  ///< What it stands for.
};

/// A pattern: vertices, the first of which begins it and the last of which ends it, and
/// connections between them, one entry for each.
struct operator_pattern {
  std::vector<pattern_vertex> vertices;
  std::vector<std::pair<std::size_t, std::size_t>> edges;

  /// Number of vertices without those outside.
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(
        std::count_if(vertices.begin(), vertices.end(),
                      [](const pattern_vertex& v) { return v.role != pattern_role::outside; }));
  }
};

/// A pattern of one operator.
[[nodiscard]] inline operator_pattern one_of(kinds k) { return {{{std::move(k)}}, {}}; }
/// A pattern behind a vertex of a given role, whose edges count that vertex as 0.
[[nodiscard]] inline operator_pattern behind(pattern_role role, std::vector<kinds> members,
                                             std::vector<std::pair<std::size_t, std::size_t>> e) {
  operator_pattern p{{{{}, role}}, std::move(e)};
  for (kinds& k : members) {
    p.vertices.push_back({std::move(k)});
  }
  return p;
}

/// `second` behind `first`: the end of `first` is connected to the beginning of `second`, or takes
/// the place of that vertex if it is outside or any.
[[nodiscard]] inline operator_pattern joined(operator_pattern first, const operator_pattern& second,
                                             std::size_t connections = 1) {
  const std::size_t end = first.vertices.size() - 1;
  const bool replaces = second.vertices[0].role != pattern_role::member;
  const std::size_t shift = replaces ? end : end + 1;
  first.vertices.insert(first.vertices.end(), second.vertices.begin() + (replaces ? 1 : 0),
                        second.vertices.end());
  for (std::size_t k = 0; k < (replaces ? 0 : connections); ++k) {
    first.edges.emplace_back(end, shift);
  }
  for (const auto& [from, to] : second.edges) {
    first.edges.emplace_back(from + shift, to + shift);
  }
  return first;
}

using patterns = std::vector<operator_pattern>;

/// Each alternative of `first` with each of `second` behind it.
[[nodiscard]] inline patterns operator+(const patterns& first, const patterns& second) {
  patterns all;
  for (const operator_pattern& a : first) {
    for (const operator_pattern& b : second) {
      all.push_back(joined(a, b));
    }
  }
  return all;
}

/// The parts that the patterns are made of.
struct pattern_parts {
  static kinds additions() { return {"Add", "Sub"}; }
  patterns linear = {
      one_of({"Conv", "DepthwiseConv", "ConvTranspose", "DeformConv", "Gemm", "MatMul"})};
  patterns arithmetic = {one_of({"Add", "Sub", "Mul", "Div"})};
  patterns norm = {one_of({"BatchNormalization"})};
  patterns squeeze = {one_of({"Squeeze"})};
  patterns input = {one_of({input_kind})};
  patterns scale_shift = {behind(pattern_role::outside, {{"Mul"}, additions()}, {{0, 1}, {1, 2}})};
  patterns shift_scale = {joined(one_of(additions()), one_of({"Mul", "Div"}))};
  patterns swish = {
      behind(pattern_role::outside, {{"Sigmoid"}, {"Mul"}}, {{0, 1}, {1, 2}, {0, 2}})};
  patterns hard_sigmoid_swish = {
      behind(pattern_role::outside, {{"HardSigmoid"}, {"Mul"}}, {{0, 1}, {1, 2}, {0, 2}})};
  patterns hard_swish_product = {
      behind(pattern_role::any, {{"Add"}, {"Relu"}, {"Mul"}}, {{0, 1}, {1, 2}, {2, 3}, {0, 3}})};
  patterns hard_swish = hard_swish_product + patterns{one_of({"Div"})};
  patterns gelu = {behind(pattern_role::outside,
                          {{"Div", "Mul"}, {"Erf"}, additions(), {"Mul", "Div"}},
                          {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {0, 4}})};
  patterns mean_variance = {
      behind(pattern_role::outside,
             {{"ReduceMean"}, {"Sub"}, {"Pow"}, {"ReduceMean"}, {"Add"}, {"Sqrt"}, {"Div"}},
             {{0, 1}, {1, 2}, {0, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}, {2, 7}})};
  patterns activation = [this] {
    patterns all = {one_of({"Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "PRelu", "Sigmoid",
                            "HardSigmoid", "HardSwish", "Selu"})};
    for (const patterns* p :
         {&swish, &hard_sigmoid_swish, &hard_swish, &hard_swish_product, &gelu}) {
      all.insert(all.end(), p->begin(), p->end());
    }
    return all;
  }();
};

/// The patterns of operators that are quantized as one, in the order in which they are tried.
[[nodiscard]] inline patterns fused_patterns() {
  const pattern_parts p;
  const patterns both = {joined(p.linear[0], p.arithmetic[0]),
                         joined(p.linear[0], p.arithmetic[0], 2)};
  patterns all;
  for (const patterns& next :
       std::initializer_list<patterns>{p.mean_variance,
                                       p.mean_variance + p.scale_shift,
                                       p.gelu,
                                       p.scale_shift,
                                       p.shift_scale,
                                       p.swish,
                                       p.hard_sigmoid_swish,
                                       p.hard_swish_product,
                                       p.hard_swish,
                                       p.input + p.scale_shift,
                                       p.input + p.shift_scale,
                                       p.input + patterns{one_of({"Add", "Mul"})},
                                       p.activation + p.norm,
                                       p.activation + p.scale_shift,
                                       p.arithmetic + p.norm,
                                       p.arithmetic + p.activation,
                                       p.arithmetic + p.scale_shift,
                                       p.arithmetic + p.norm + p.activation,
                                       p.arithmetic + p.scale_shift + p.activation,
                                       p.arithmetic + p.activation + p.norm,
                                       p.arithmetic + p.activation + p.scale_shift,
                                       p.norm + p.activation,
                                       p.scale_shift + p.activation,
                                       both,
                                       p.linear + p.norm,
                                       p.linear + p.activation,
                                       p.linear + p.norm + p.activation,
                                       p.linear + p.scale_shift + p.activation,
                                       p.linear + p.activation + p.norm,
                                       p.linear + p.activation + p.scale_shift,
                                       p.linear + p.norm + p.scale_shift + p.activation,
                                       p.linear + p.squeeze + p.activation,
                                       p.linear + p.squeeze + p.arithmetic + p.activation,
                                       p.norm + p.scale_shift + p.activation,
                                       p.linear + p.arithmetic + p.activation,
                                       p.linear + p.shift_scale,
                                       p.linear + p.arithmetic + p.activation + p.arithmetic,
                                       p.linear + p.scale_shift}) {
    all.insert(all.end(), next.begin(), next.end());
  }
  return all;
}

/// The patterns of operators that stay in float: squeeze and excitation; and, with `transformer`,
/// the product of attention with its values, and embeddings of positions.
[[nodiscard]] inline patterns ignored_patterns(bool transformer) {
  const pattern_parts p;
  patterns all;
  if (transformer) {
    const kinds movers = {"Reshape", "Transpose", "Split", "Gather", "Squeeze", "Concat"};
    const kinds products = {"Gemm", "MatMul"};
    all.push_back({{{{"Softmax"}}, {movers}, {products}}, {{0, 2}, {1, 2}}});
    all.push_back({{{{"Softmax"}}, {{"Reshape"}}, {movers}, {products}}, {{0, 1}, {1, 3}, {2, 3}}});
  }
  const operator_pattern pooled{{{{}, pattern_role::outside},
                                 {{"ReduceMean", "GlobalAveragePool"}, pattern_role::excluded},
                                 {{"Conv"}}},
                                {{0, 1}, {1, 2}}};
  const operator_pattern gate{
      {{{"Conv"}}, {{"Sigmoid", "HardSigmoid"}}, {{"Mul"}, pattern_role::excluded}},
      {{0, 1}, {1, 2}}};
  for (operator_pattern& block : patterns{pooled} + p.activation + patterns{gate}) {
    block.edges.emplace_back(0, block.vertices.size() - 1);
    all.push_back(std::move(block));
  }
  if (transformer) {
    all.push_back({{{{"MatMul"}}, {{"Transpose"}}, {{"Concat"}}, {{"Cos"}}, {{"Sin"}}},
                   {{0, 1}, {1, 2}, {2, 3}, {2, 4}}});
    all.push_back({{{{"MatMul"}}, {{"Mul"}}, {{"Cos"}}, {{"Sin"}}, {{"Concat"}}},
                   {{0, 1}, {1, 2}, {1, 3}, {2, 4}, {3, 4}}});
  }
  return all;
}

/// Finds patterns in an operator_graph. A vertex takes a place only if its own connections allow
/// it, so that many users of one vertex do not multiply.
class pattern_matcher {
 public:
  explicit pattern_matcher(const operator_graph& g)
      : g_(g), users_(g.users()), taken_(g.vertices.size(), false) {}

  /// The matches of all patterns: the vertices of each that are part of it, in topological order.
  /// With `closed`, nothing outside of a match may take what its vertices make, but for its last
  /// one, or be taken by them, but for its first one.
  [[nodiscard]] std::vector<std::vector<std::size_t>> run(patterns all, bool closed) {
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
    std::vector<std::vector<std::size_t>> found;
    for (const operator_pattern& p : all) {
      pattern_ = &p;
      closed_ = closed;
      match_.clear();
      has_neighbours_.assign(closed ? 0 : p.vertices.size() * g_.vertices.size(), answer::unknown);
      (void)extend(found);
    }
    return found;
  }

 private:
  enum class answer : unsigned char { unknown, no, yes };

  /// Assigns vertices of the graph to the next vertices of the pattern in all ways. Returns whether
  /// a vertex that was assigned before belongs to a match now, so that no other way is left.
  bool extend(std::vector<std::vector<std::size_t>>& found) {
    const std::size_t k = match_.size();
    if (k == pattern_->vertices.size()) {
      accept(found);
      return true;
    }
    bool has_members = false;
    for (std::size_t place = 0; place < k; ++place) {
      has_members = has_members || is_part(place);
    }
    for (const std::size_t v : candidates(k)) {
      if (fits(k, v)) {
        match_.push_back(v);
        const bool accepted = extend(found);
        match_.pop_back();
        if (accepted && has_members) {
          return true;
        }
      }
    }
    return false;
  }

  /// Whether the vertex at a place of the pattern is part of a match.
  [[nodiscard]] bool is_part(std::size_t place) const {
    const pattern_role role = pattern_->vertices[place].role;
    return role == pattern_role::member || role == pattern_role::any;
  }

  /// The vertices that may take place k, in their order: neighbours of one that is assigned,
  /// neighbours of those that may take a later place beside it, or all of them.
  [[nodiscard]] std::vector<std::size_t> candidates(std::size_t k) const {
    std::optional<std::vector<std::size_t>> fewest;
    const auto offer = [&](std::vector<std::size_t> some) {
      if (!fewest || some.size() < fewest->size()) {
        fewest = std::move(some);
      }
    };
    for (const auto& [from, to] : pattern_->edges) {
      if (to == k && from < k) {
        offer(users(match_[from]));
      } else if (from == k && to < k) {
        offer(sources(match_[to]));
      } else if (!fewest && from < k && to > k && has_edge(k, to)) {
        std::vector<std::size_t> beside;
        for (const std::size_t user : users(match_[from])) {
          if (has_kind(to, user)) {
            const std::vector<std::size_t> more = sources(user);
            beside.insert(beside.end(), more.begin(), more.end());
          }
        }
        offer(std::move(beside));
      }
    }
    if (!fewest) {
      fewest.emplace(g_.vertices.size());
      std::iota(fewest->begin(), fewest->end(), std::size_t{0});
      return *std::move(fewest);
    }
    std::sort(fewest->begin(), fewest->end());
    fewest->erase(std::unique(fewest->begin(), fewest->end()), fewest->end());
    return *std::move(fewest);
  }

  [[nodiscard]] std::vector<std::size_t> users(std::size_t v) const {
    std::vector<std::size_t> all;
    for (const auto& [user, source] : users_[v]) {
      all.push_back(user);
    }
    return all;
  }
  [[nodiscard]] std::vector<std::size_t> sources(std::size_t v) const {
    std::vector<std::size_t> all;
    for (const operator_vertex::source& s : g_.vertices[v].sources) {
      all.push_back(s.from);
    }
    return all;
  }

  [[nodiscard]] std::size_t connections(std::size_t from, std::size_t to) const {
    const auto& made = users_[from];
    const auto& taken = g_.vertices[to].sources;
    return static_cast<std::size_t>(
        made.size() < taken.size()
            ? std::count_if(made.begin(), made.end(), [&](const auto& u) { return u.first == to; })
            : std::count_if(taken.begin(), taken.end(),
                            [&](const auto& s) { return s.from == from; }));
  }
  [[nodiscard]] std::size_t wanted(std::size_t from, std::size_t to) const {
    return static_cast<std::size_t>(
        std::count(pattern_->edges.begin(), pattern_->edges.end(), std::pair(from, to)));
  }
  [[nodiscard]] bool has_edge(std::size_t from, std::size_t to) const {
    return wanted(from, to) != 0;
  }

  [[nodiscard]] bool has_kind(std::size_t place, std::size_t v) const {
    const pattern_vertex& p = pattern_->vertices[place];
    return p.role == pattern_role::any || p.role == pattern_role::outside ||
           std::find(p.of.begin(), p.of.end(), g_.vertices[v].kind) != p.of.end();
  }

  [[nodiscard]] bool fits(std::size_t k, std::size_t v) {
    if (!has_kind(k, v) || (is_part(k) && taken_[v]) ||
        std::find(match_.begin(), match_.end(), v) != match_.end() ||
        !(closed_ ? is_closed(k, v) : has_neighbours(k, v))) {
      return false;
    }
    for (std::size_t other = 0; other < k; ++other) {
      if (connections(match_[other], v) != wanted(other, k) ||
          connections(v, match_[other]) != wanted(k, other)) {
        return false;
      }
    }
    return true;
  }

  /// Whether a vertex at a place has no connections but those of the pattern: the vertices of a
  /// match have these among each other, so that the numbers tell.
  [[nodiscard]] bool is_closed(std::size_t place, std::size_t v) const {
    if (pattern_->vertices[place].role == pattern_role::outside) {
      return true;
    }
    std::size_t in = 0;
    std::size_t out = 0;
    for (const auto& [from, to] : pattern_->edges) {
      in += to == place ? 1U : 0U;
      out += from == place ? 1U : 0U;
    }
    return (out == 0 || users_[v].size() == out) &&
           (in == 0 || g_.vertices[v].sources.size() == in);
  }

  /// Whether a vertex has a neighbour of the right kind for each edge of its place.
  [[nodiscard]] bool has_neighbours(std::size_t place, std::size_t v) {
    answer& known = has_neighbours_[place * g_.vertices.size() + v];
    if (known == answer::unknown) {
      const auto has = [&](std::size_t other, const std::vector<std::size_t>& neighbours) {
        return std::any_of(neighbours.begin(), neighbours.end(),
                           [&](std::size_t n) { return has_kind(other, n); });
      };
      bool all = true;
      for (const auto& [from, to] : pattern_->edges) {
        all = all && (from != place || has(to, users(v))) && (to != place || has(from, sources(v)));
      }
      known = all ? answer::yes : answer::no;
    }
    return known == answer::yes;
  }

  void accept(std::vector<std::vector<std::size_t>>& found) {
    std::vector<std::size_t> members;
    for (std::size_t k = 0; k < match_.size(); ++k) {
      if (is_part(k)) {
        members.push_back(match_[k]);
        taken_[match_[k]] = true;
      }
    }
    found.push_back(std::move(members));
  }

  const operator_graph& g_;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> users_;
  std::vector<bool> taken_;
  const operator_pattern* pattern_ = nullptr;
  bool closed_ = true;
  std::vector<std::size_t> match_;
  std::vector<answer> has_neighbours_;  // by place and vertex, for patterns that are not closed
};

/// The graph with each match of fused_patterns() as one vertex, which takes what the first vertex
/// of the match takes.
[[nodiscard]] inline operator_graph with_fused_operators(const operator_graph& g) {
  std::vector<std::size_t> vertex_of(g.vertices.size());  // the first vertex of the match
  for (std::size_t v = 0; v < vertex_of.size(); ++v) {
    vertex_of[v] = v;
  }
  std::vector<operator_vertex> merged = g.vertices;
  for (const std::vector<std::size_t>& match : pattern_matcher(g).run(fused_patterns(), true)) {
    for (std::size_t k = 1; k < match.size(); ++k) {
      vertex_of[match[k]] = match[0];
      auto& nodes = merged[match[0]].nodes;
      nodes.insert(nodes.end(), g.vertices[match[k]].nodes.begin(),
                   g.vertices[match[k]].nodes.end());
    }
  }
  operator_graph result;
  std::vector<std::size_t> place(g.vertices.size());
  for (std::size_t v = 0; v < merged.size(); ++v) {
    if (vertex_of[v] == v) {
      place[v] = result.vertices.size();
      result.vertices.push_back(merged[v]);
    }
  }
  for (operator_vertex& v : result.vertices) {
    for (operator_vertex::source& s : v.sources) {
      s.from = place[vertex_of[s.from]];
    }
  }
  return result;
}

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_OPERATOR_PATTERNS_HPP
