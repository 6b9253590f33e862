// SPDX-License-Identifier: BSD-3-Clause
// NNCF's propagation of quantizers: where in a graph the activations are quantized.
//
// A place is a result of a vertex, or a source of a vertex (the connection from a result to one of
// its users). The algorithm:
//
//   start    Each source of a vertex whose trait is takes_integers gets a quantizer, with the
//            configurations that its kind may have. The quantizers wait in a queue.
//   step     The first quantizer of the queue moves one place up, and goes to the end of the queue:
//            - from a source to the result it is connected to. If that result has a quantizer
//              already, or one has passed it, both become one, provided that they may have the same
//              configurations; otherwise the quantizer stays.
//            - from a result to the sources of its vertex, if the vertex only moves elements. With
//              several sources, a copy goes to each; those of a Concat before a layer share scales.
//            It stays where elements are computed with, at integers, and at an input of the model.
//   branch   A result with several users is an obstacle. A quantizer stays below it if an output of
//            the model, or an operator in float, takes the result, be it behind operators that move
//            elements. Otherwise it waits until all quantizers below have arrived or stay. Those
//            that have arrived become one at the result, with the configurations that all of them
//            may have, or stay if there is none.
//   end      A quantizer beside a constant operand of an elementwise operator is taken away if it
//            has not moved past an operator and serves that operator alone. Each of the others
//            takes its first configuration. A quantizer behind another one is taken away if that
//            one's values need no rounding any more.
//
// Source: NNCF 3.4, QuantizerPropagationSolver.
#ifndef DETENT_GRAPH_NNCF_QUANTIZER_PROPAGATION_HPP
#define DETENT_GRAPH_NNCF_QUANTIZER_PROPAGATION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/nncf/common_options.hpp>
#include <detent/graph/nncf/moving_quantizer.hpp>
#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_traits.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

namespace detail {

/// What is known of a vertex besides the graph.
struct vertex_rules {
  trait of = trait::in_float;  ///< in_float also for those that are ignored.
  configs options;             ///< Configurations of quantizers of its sources.
  std::string kind;            ///< The kind; empty for those that are ignored.
};

/// Propagates quantizers through a graph.
class quantizer_propagation {
 public:
  quantizer_propagation(const operator_graph& g, std::vector<vertex_rules> rules,
                        propagation_rule rule, bool quantize_outputs, bool attention_values)
      : g_(g),
        rules_(std::move(rules)),
        rule_(rule),
        quantize_outputs_(quantize_outputs),
        attention_operands_(attention_values ? 3 : 2),
        users_(g.users()),
        has_integer_result_(g.vertices.size(), false),
        affecting_(g.vertices.size()) {
    std::size_t places = 0;
    for (const operator_vertex& v : g.vertices) {
      first_place_.push_back(places);
      places += 1 + v.sources.size();
      for (const operator_vertex::source& s : v.sources) {
        has_integer_result_[s.from] = has_integer_result_[s.from] || s.is_integer;
      }
    }
    places_.resize(places);
  }

  /// Runs the algorithm. The result has the quantizers by their numbers.
  [[nodiscard]] std::map<std::size_t, moving_quantizer> run() {
    start();
    std::size_t idle = 0;
    while (!queue_.empty()) {
      const std::size_t q = queue_.front();
      queue_.pop_front();
      queued_[q] = false;
      if (!waits_at_[q]) {
        idle = 0;
        step(q);
        changes_ += is_within_chain(q) ? 0U : 1U;
        continue;
      }
      const std::size_t branch = *waits_at_[q];
      const bool all_wait = is_awaited_by_all(branch, q);
      enqueue(q);
      // Quantizers that wait for each other at different results would wait forever.
      if (all_wait || ++idle > queue_.size()) {
        idle = 0;
        merge_waiting(branch);
      }
    }
    take_away_beside_constants();
    for (auto& [q, quantizer] : quantizers_) {
      quantizer.options.resize(1);
    }
    take_away_redundant();
    for (auto& [q, quantizer] : quantizers_) {  // only now: what is taken away joins groups, too
      if (quantizer.group) {
        quantizer.group = joined_group(*quantizer.group);
      }
    }
    return quantizers_;
  }

  /// The quantizers that reached a table of embeddings, by their numbers, and the vertex of it.
  [[nodiscard]] const std::map<std::size_t, std::size_t>& at_embeddings() const noexcept {
    return at_embeddings_;
  }

 private:
  enum class status : std::uint8_t { moves, merges, stays, waits };

  /// When it was last looked whether all quantizers that may come to a result wait there.
  struct looked_at {
    std::optional<std::size_t> changes;  ///< The value of changes_.
    std::vector<quantizer_place> way;    ///< To one that was below; empty if none was.
  };

  /// What is known of a place.
  struct place_quantizers {
    std::optional<std::size_t> here;     ///< The quantizer that is there.
    std::vector<std::size_t> affecting;  ///< Those that have passed it, and the one that is there.
  };

  [[nodiscard]] std::size_t index_of(const quantizer_place& p) const {
    return first_place_[p.vertex] + (p.source ? *p.source + 1 : 0);
  }
  [[nodiscard]] std::vector<std::size_t>& affecting(const quantizer_place& p) {
    return places_[index_of(p)].affecting;
  }
  [[nodiscard]] std::optional<std::size_t>& here(const quantizer_place& p) {
    return places_[index_of(p)].here;
  }
  [[nodiscard]] std::optional<std::size_t> here(const quantizer_place& p) const {
    return places_[index_of(p)].here;
  }
  [[nodiscard]] const operator_vertex::source& source(const quantizer_place& p) const {
    return g_.vertices[p.vertex].sources[*p.source];
  }

  void enqueue(std::size_t q) {
    queue_.push_back(q);
    queued_.resize(last_ + 1);
    waits_at_.resize(last_ + 1);
    queued_[q] = true;
  }

  void start() {
    for (std::size_t v = 0; v < g_.vertices.size(); ++v) {
      const vertex_rules& r = rules_[v];
      const bool is_output = r.kind == output_kind;
      if (is_output ? !quantize_outputs_ : r.of != trait::takes_integers) {
        continue;
      }
      for (std::size_t k = 0; k < g_.vertices[v].sources.size(); ++k) {
        const quantizer_place place{v, k};
        // The region and the scales of Resize are no data; NNCF itself quantizes those that are
        // inputs of the model, which makes images of other sizes.
        const bool skipped = (r.kind == "Attention" && source(place).port >= attention_operands_) ||
                             (r.kind == "Resize" && source(place).port > 0);
        if (!source(place).is_integer && !skipped) {
          moving_quantizer q{r.options, place, {v}, {place}, {v}, {place}};
          enqueue(add(std::move(q)));
          affecting_[v].add(last_);
        }
      }
    }
  }

  /// Adds a quantizer at its place; returns its number.
  std::size_t add(moving_quantizer q) {
    ++last_;
    here(q.at) = last_;
    affecting(q.at).push_back(last_);
    quantizers_.emplace(last_, std::move(q));
    return last_;
  }

  void remove(std::size_t q) {
    const moving_quantizer& gone = quantizers_.at(q);
    for (const quantizer_place& p : gone.passed) {
      std::erase(affecting(p), q);
    }
    for (const std::size_t v : gone.passed_vertices) {
      affecting_[v].remove_one(q);
      emptied_ += affecting_[v].empty() ? 1U : 0U;
    }
    if (here(gone.at) == q) {
      here(gone.at).reset();
    }
    at_embeddings_.erase(q);
    quantizers_.erase(q);
  }

  /// A copy of a quantizer that has all its places.
  std::size_t clone(std::size_t q) {
    ++last_;
    const moving_quantizer copy = quantizers_.at(q);
    for (const quantizer_place& p : copy.passed) {
      affecting(p).push_back(last_);
    }
    for (const std::size_t v : copy.passed_vertices) {
      affecting_[v].add(last_);
    }
    quantizers_.emplace(last_, copy);
    return last_;
  }

  /// Moves a quantizer one place up, to each place that is there.
  void step(std::size_t q) {
    const quantizer_place at = quantizers_.at(q).at;
    if (at.source) {
      to_result(q);
      return;
    }
    const operator_vertex& v = g_.vertices[at.vertex];
    const trait t = rules_[at.vertex].of;
    if (t == trait::looks_up) {
      at_embeddings_[q] = at.vertex;
    }
    if ((t != trait::moves && t != trait::concat) || v.sources.empty()) {
      return;  // stays
    }
    std::vector<std::size_t> all{q};
    for (std::size_t k = 1; k < v.sources.size(); ++k) {
      all.push_back(clone(q));
    }
    if (rules_[at.vertex].kind == "Concat" && all.size() > 1 && is_before_layer(at.vertex)) {
      share_scales(all);
    }
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (!v.sources[k].is_integer && !has_integer_result_[at.vertex]) {
        move(all[k], {at.vertex, k}, at.vertex);
        enqueue(all[k]);
      } else if (k > 0) {
        remove(all[k]);
      }
    }
  }

  /// From a source to the result it is connected to.
  void to_result(std::size_t q) {
    const quantizer_place at = quantizers_.at(q).at;
    const quantizer_place above{source(at).from, {}};
    switch (way_to_result(q, at)) {
      case status::stays:
        break;
      case status::moves:
        move(q, above, {});
        enqueue(q);
        break;
      case status::merges: {
        const std::vector<std::size_t> survivors =
            here(above) ? std::vector<std::size_t>{*here(above)} : affecting(above);
        merge_into(q, survivors);
        break;
      }
      case status::waits:
        waiting_[above.vertex].insert(q);
        waits_at_[q] = above.vertex;
        enqueue(q);
        break;
    }
  }

  [[nodiscard]] status way_to_result(std::size_t q, const quantizer_place& at) {
    const operator_vertex::source& s = source(at);
    if (has_integer_result_[s.from]) {
      return status::stays;
    }
    const std::vector<std::size_t>& passed = affecting({s.from, {}});
    if (!passed.empty()) {
      return quantizers_.at(q).options == quantizers_.at(passed.front()).options ? status::merges
                                                                                 : status::stays;
    }
    return users_[s.from].size() > 1 ? way_past_branch(q, s.from) : status::moves;
  }

  /// Moves a quantizer to a place above it, past a vertex if one is given.
  void move(std::size_t q, const quantizer_place& to, std::optional<std::size_t> past) {
    moving_quantizer& m = quantizers_.at(q);
    if (here(m.at) == q) {
      here(m.at).reset();
    }
    if (past) {
      m.passed_vertices.insert(*past);
      m.entries.insert(to);
      affecting_[*past].add(q);
      ++m.steps;
    }
    ++m.steps;
    m.at = to;
    m.passed.insert(to);
    affecting(to).push_back(q);
    here(to) = q;
  }

  /// Gives all that a quantizer serves to others, and takes it away.
  void merge_into(std::size_t q, const std::vector<std::size_t>& survivors) {
    const moving_quantizer gone = quantizers_.at(q);
    for (const std::size_t s : survivors) {
      moving_quantizer& m = quantizers_.at(s);
      m.serves.insert(gone.serves.begin(), gone.serves.end());
      m.passed_vertices.insert(gone.passed_vertices.begin(), gone.passed_vertices.end());
      m.stricter.erase(q);
      for (const quantizer_place& p : gone.passed) {
        m.passed.insert(p);
        if (affecting(p).empty() || affecting(p).back() != s) {
          affecting(p).push_back(s);
        }
      }
      for (const quantizer_place& e : gone.entries) {
        m.entries.insert(e);
        affecting_[e.vertex].add(s);
      }
      if (gone.group) {
        join_group(s, *gone.group);
      }
    }
    remove(q);
  }

  /// Adds a quantizer to a group, and all of its own group with it.
  void join_group(std::size_t q, std::size_t group) {
    std::optional<std::size_t>& own = quantizers_.at(q).group;
    if (own && joined_group(*own) != joined_group(group)) {
      groups_[joined_group(*own)] = joined_group(group);
    }
    own = group;
  }

  /// The group that a group has become part of.
  [[nodiscard]] std::size_t joined_group(std::size_t group) {
    while (groups_[group] != group) {
      groups_[group] = groups_[groups_[group]];  // shortens the way of the next search
      group = groups_[group];
    }
    return group;
  }

  void share_scales(const std::vector<std::size_t>& all) {
    if (!quantizers_.at(all[0]).group) {
      groups_.push_back(groups_.size());
      quantizers_.at(all[0]).group = groups_.back();
    }
    for (const std::size_t q : all) {
      join_group(q, *quantizers_.at(all[0]).group);
    }
  }

  /// Whether a layer is behind a vertex, with nothing between them but operators that move
  /// elements.
  [[nodiscard]] bool is_before_layer(std::size_t v) const {
    std::vector<std::size_t> next{v};
    std::set<std::size_t> seen;
    while (!next.empty()) {
      const std::size_t from = next.back();
      next.pop_back();
      for (const auto& [user, k] : users_[from]) {
        const std::string& kind = rules_[user].kind;
        if (is_dense_layer(kind) || kind == "Attention") {
          return true;
        }
        if ((rules_[user].of == trait::moves || kind == "Concat") && seen.insert(user).second) {
          next.push_back(user);
        }
      }
    }
    return false;
  }

  // -------------------------------------------------------------------------------- branches

  /// Whether a quantizer may pass a result with several users.
  [[nodiscard]] status way_past_branch(std::size_t q, std::size_t branch) {
    if (must_stay_below(branch)) {
      return status::stays;
    }
    for (const std::size_t v : computing_below(branch)) {
      if (affecting_[v].has_other(q) || (affecting_[v].empty() && may_another_come(v, q))) {
        return status::waits;
      }
    }
    return status::moves;
  }

  /// Whether quantizers stay below a result because something below takes it in float, such as an
  /// output of the model that takes it without computing: unless outputs are quantized, no
  /// quantizer comes from there. Each quantizer that comes to the result asks; the answer that
  /// nothing does is kept while it can't change.
  [[nodiscard]] bool must_stay_below(std::size_t branch) {
    const auto kept = all_affected_.find(branch);
    if (kept != all_affected_.end() && kept->second == emptied_) {
      return false;
    }
    bool all_affected = true;
    bool has_attention = false;
    for (const std::size_t v : computing_below(branch)) {
      if (rules_[v].kind == "Attention" && !has_attention) {
        if (!all_quantized_below(branch)) {
          return true;
        }
        has_attention = true;
      }
      if (affecting_[v].empty()) {
        all_affected = false;
        if (rules_[v].of != trait::concat || !may_another_come(v)) {
          return true;
        }
      }
    }
    if (all_affected && !has_attention) {
      all_affected_[branch] = emptied_;
    }
    return false;
  }

  /// The first vertices below a result that do more than move elements. They are kept, because a
  /// quantizer that waits at a result asks again and again; not all, because they may be many.
  [[nodiscard]] const std::set<std::size_t>& computing_below(std::size_t branch) {
    const auto known = computing_below_.find(branch);
    if (known != computing_below_.end()) {
      return known->second;
    }
    std::set<std::size_t> found;
    walk_below(branch, [&](std::size_t user, std::size_t) {
      const bool moves = rules_[user].of == trait::moves;
      if (!moves) {
        found.insert(user);
      }
      return moves;
    });
    constexpr std::size_t most_kept = 1'000'000;
    kept_ += found.size();
    if (kept_ > most_kept) {
      computing_below_.clear();
      kept_ = found.size();
    }
    return computing_below_[branch] = std::move(found);
  }

  /// Whether each way down from a result meets a quantizer before an operator that computes.
  [[nodiscard]] bool all_quantized_below(std::size_t branch) const {
    bool all = true;
    walk_below(branch, [&](std::size_t user, std::size_t k) {
      if (here({user, k})) {
        return false;
      }
      const bool moves = rules_[user].of == trait::moves;
      all = all && moves;
      return moves && !here({user, {}});
    });
    return all;
  }

  /// Calls passes(user, k) for the users of the result of a vertex, which take it as their source
  /// k, and goes on below those for which it returns true, once below each.
  template <class Passes>
  void walk_below(std::size_t branch, const Passes& passes) const {
    std::set<std::size_t> passed;
    std::vector<std::size_t> next{branch};
    while (!next.empty()) {
      const std::size_t v = next.back();
      next.pop_back();
      for (const auto& [user, k] : users_[v]) {
        if (passes(user, k) && passed.insert(user).second) {
          next.push_back(user);
        }
      }
    }
  }

  /// Calls goes_on(q) for the first quantizer below the result of a vertex on each way down, the
  /// nearest first, until it returns false. Returns the places on the way to that one, its own at
  /// the end; nothing if goes_on() never returned false.
  template <class GoesOn>
  std::vector<quantizer_place> way_to_first_below(std::size_t v, const GoesOn& goes_on) const {
    std::vector<std::pair<quantizer_place, std::size_t>> seen{{{v, {}}, 0}};  // and the one before
    std::set<quantizer_place> known{{v, {}}};
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const quantizer_place p = seen[i].first;
      const auto add = [&](const quantizer_place& below) {
        if (known.insert(below).second) {
          seen.emplace_back(below, i);
        }
      };
      if (const auto q = here(p)) {
        if (!goes_on(*q)) {
          std::vector<quantizer_place> way{p};
          for (std::size_t k = i; k != 0; k = seen[k].second) {
            way.push_back(seen[seen[k].second].first);
          }
          std::reverse(way.begin(), way.end());
          return way;
        }
      } else if (p.source) {
        add({p.vertex, {}});
      } else {
        for (const auto& [user, k] : users_[p.vertex]) {
          add({user, k});
        }
      }
    }
    return {};
  }

  /// Whether one of the first quantizers below a result, other than `q`, is in the queue.
  [[nodiscard]] bool may_another_come(std::size_t v, std::optional<std::size_t> q = {}) const {
    return !way_to_first_below(v, [&](std::size_t other) {
              return other == q || !queued_[other];
            }).empty();
  }

  /// Whether all quantizers that may still come to a result with several users wait there. `q`,
  /// which waits there, is not in the queue. A quantizer that is far away needs many steps. This
  /// function is called in each of them; so it searches again only after a change, and first looks
  /// at the place below where a quantizer had not come the last time.
  [[nodiscard]] bool is_awaited_by_all(std::size_t branch, std::size_t q) {
    looked_at& before = looked_[branch];
    const std::set<std::size_t>& waiting = waiting_[branch];
    const auto comes = [&](std::size_t other) {
      return (other == q || queued_[other]) && waiting.count(other) == 0;
    };
    if (before.changes == changes_) {
      return false;
    }
    before.changes = changes_;
    if (!before.way.empty()) {
      const auto last = before.way.end() - 1;
      const auto missing = here(*last);
      if (missing && comes(*missing) &&
          std::none_of(before.way.begin(), last,
                       [&](const quantizer_place& p) { return here(p).has_value(); })) {
        return false;
      }
    }
    std::set<std::size_t> found;
    before.way = way_to_first_below(branch, [&](std::size_t other) {
      if (waiting.count(other) != 0 && (other == q || queued_[other])) {
        found.insert(other);
      }
      return !comes(other);
    });
    return before.way.empty() && found == waiting;
  }

  /// Whether the step that a quantizer has just made was along a chain: no other quantizer sees a
  /// difference.
  [[nodiscard]] bool is_within_chain(std::size_t q) const {
    if (queue_.empty() || queue_.back() != q || waits_at_[q]) {
      return false;
    }
    const std::size_t v = quantizers_.at(q).at.vertex;
    return users_[v].size() == 1 && g_.vertices[v].sources.size() == 1;
  }

  /// Ends the waiting at a result with several users.
  void merge_waiting(std::size_t branch) {
    ++changes_;
    const std::set<std::size_t> waiting = waiting_[branch];
    waiting_.erase(branch);
    for (const std::size_t q : waiting) {
      waits_at_[q].reset();
    }
    // While they waited, an operator below may have turned out to stay in float.
    configs common;
    if (!waiting.empty() && !must_stay_below(branch)) {
      std::vector<const configs*> options;
      for (const std::size_t q : waiting) {
        options.push_back(&quantizers_.at(q).options);
      }
      common = common_options(options, rule_);
    }
    std::erase_if(queue_, [&](std::size_t q) { return waiting.count(q) != 0; });
    for (const std::size_t q : waiting) {
      queued_[q] = false;
    }
    if (common.empty()) {
      return;
    }
    const std::size_t merged = add({common, {branch, {}}, {}, {{branch, {}}}});
    for (const std::size_t q : waiting) {
      const bool remains = rule_ == propagation_rule::merge_with_potential_requantization &&
                           !same_options(quantizers_.at(q).options, common);
      const std::set<std::size_t> serves = quantizers_.at(q).serves;
      if (remains) {
        quantizers_.at(merged).stricter.insert(q);
      } else {
        merge_into(q, {merged});
      }
      quantizers_.at(merged).serves.insert(serves.begin(), serves.end());
    }
    enqueue(merged);
  }

  // ------------------------------------------------------------------------------------- end

  void take_away_beside_constants() {
    std::vector<std::size_t> gone;
    for (const auto& [q, m] : quantizers_) {
      if (m.serves.size() == 1 && m.steps <= 1 && is_elementwise(rules_[*m.serves.begin()].kind) &&
          affecting_[*m.serves.begin()].size() == 1) {
        gone.push_back(q);
      }
    }
    std::for_each(gone.begin(), gone.end(), [&](std::size_t q) { remove(q); });
  }

  /// Takes away quantizers behind others whose values they would not change.
  void take_away_redundant() {
    for (std::size_t v = 0; v < g_.vertices.size(); ++v) {
      if (g_.vertices[v].sources.empty()) {
        take_away_redundant_below(v);
      }
    }
  }

  /// Walks down from one input, depth first, and knows at each place the quantizer above it.
  void take_away_redundant_below(std::size_t input) {
    std::set<quantizer_place> seen;
    std::vector<std::pair<quantizer_place, std::optional<std::size_t>>> next{{{input, {}}, {}}};
    while (!next.empty()) {
      auto [p, upper] = next.back();
      next.pop_back();
      if (!seen.insert(p).second) {
        continue;
      }
      if (const auto q = here(p)) {
        if (upper &&
            makes_redundant(quantizers_.at(*upper).options[0], quantizers_.at(*q).options[0])) {
          merge_into(*q, {*upper});
        } else {
          upper = q;
        }
      }
      if (p.source) {
        const bool passes = rules_[p.vertex].of == trait::moves;
        next.push_back({{p.vertex, {}}, passes ? upper : std::nullopt});
        continue;
      }
      const auto& users = users_[p.vertex];
      for (auto u = users.rbegin(); u != users.rend(); ++u) {  // so that the first one comes first
        const bool integer = g_.vertices[u->first].sources[u->second].is_integer;
        next.push_back({{u->first, u->second}, integer ? std::nullopt : upper});
      }
    }
  }

  [[nodiscard]] static bool makes_redundant(const quantizer_config& upper,
                                            const quantizer_config& lower) {
    return upper.bits == lower.bits && (upper.symmetric || !lower.symmetric) &&
           (!upper.per_channel || lower.per_channel) && upper.narrow_range == lower.narrow_range;
  }

  const operator_graph& g_;
  std::vector<vertex_rules> rules_;
  propagation_rule rule_;
  bool quantize_outputs_;
  std::size_t attention_operands_;  // how many operands of Attention are quantized
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> users_;
  std::vector<bool> has_integer_result_;
  std::vector<quantizer_counts> affecting_;          // quantizers of each vertex
  std::size_t emptied_ = 0;                          // how often one of affecting_ became empty
  std::map<std::size_t, std::size_t> all_affected_;  // emptied_ when a branch was looked at
  std::size_t last_ = 0;
  std::vector<std::size_t> groups_;  // for each group, one that it has become part of, or itself
  std::map<std::size_t, moving_quantizer> quantizers_;
  std::vector<std::size_t>
      first_place_;  // index in places_ of each vertex's result; sources follow
  std::vector<place_quantizers> places_;
  std::deque<std::size_t> queue_;
  std::vector<bool> queued_;                              // by their numbers: those in queue_
  std::map<std::size_t, std::set<std::size_t>> waiting_;  // by the vertex of the result
  std::vector<std::optional<std::size_t>> waits_at_;  // by their numbers: the vertex, if they wait
  std::map<std::size_t, std::size_t> at_embeddings_;
  std::size_t changes_ = 0;                  // steps that were not within a chain, and merges
  std::map<std::size_t, looked_at> looked_;  // by branch
  std::map<std::size_t, std::set<std::size_t>> computing_below_;
  std::size_t kept_ = 0;  // vertices in computing_below_
};

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_QUANTIZER_PROPAGATION_HPP
