// SPDX-License-Identifier: BSD-3-Clause
// The strategies of tune(): in what order settings are tried.
//
// Sources: Intel Neural Compressor, strategies of versions 1.x and 2.x; for hawq_v2 also Dong, Yao,
// Arfeen, Gholami, Mahoney and Keutzer, "HAWQ-V2: Hessian aware trace-weighted quantization of
// neural networks", NeurIPS 2020.
#ifndef DETENT_GRAPH_QUANTIZE_TUNING_STRATEGIES_HPP
#define DETENT_GRAPH_QUANTIZE_TUNING_STRATEGIES_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/gaussian_process.hpp>
#include <detent/graph/quantize/node_ranking.hpp>
#include <detent/graph/quantize/tuning_options.hpp>
#include <detent/graph/quantize/tuning_search.hpp>
#include <detent/graph/quantize/tuning_space.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

[[nodiscard]] inline tuning_setting with_float(tuning_setting s, const std::string& node) {
  s.in_float.insert(node);
  return s;
}
[[nodiscard]] inline tuning_setting without_float(tuning_setting s, const std::string& node) {
  s.in_float.erase(node);
  return s;
}

/// Tries all settings of the space with no node in float. Returns the best one, or nothing if the
/// search is to end.
inline std::optional<tuning_setting> try_space(tuning_search& search) {
  const tuning_space& space = search.options().space;
  for (std::size_t i = 0; i < space.size(); ++i) {
    if (!search.evaluate(space.at(i))) {
      return std::nullopt;
    }
  }
  return search.has_ended() ? std::nullopt : std::optional<tuning_setting>(search.best().setting);
}

/// Leaves one more node at a time in float, in the given order, whether that helps or not.
inline void fall_back(tuning_search& search, tuning_setting setting,
                      const std::vector<std::string>& order) {
  for (const std::string& name : order) {
    setting.in_float.insert(name);
    if (!search.evaluate(setting)) {
      return;
    }
  }
}

/// The trials of a setting with each of the nodes alone in float, or nothing if the search is to
/// end.
inline std::optional<std::vector<tuning_trial>> try_each_in_float(
    tuning_search& search, const tuning_setting& setting, const std::vector<std::string>& nodes) {
  std::vector<tuning_trial> trials;
  for (const std::string& name : nodes) {
    const std::optional<tuning_trial> t = search.evaluate(with_float(setting, name));
    if (!t) {
      return std::nullopt;
    }
    trials.push_back(*t);
  }
  return trials;
}

/// The best setting of the space but `best`, none of them with nodes in float; all of them have
/// been tried. Nothing if there is no other, or the search is to end.
inline std::optional<tuning_setting> second_best(tuning_search& search,
                                                 const tuning_setting& best) {
  const tuning_space& space = search.options().space;
  std::optional<tuning_trial> second;
  for (std::size_t i = 0; i < space.size(); ++i) {
    if (space.at(i) == best) {
      continue;
    }
    const std::optional<tuning_trial> t = search.evaluate(space.at(i));
    if (!t) {
      return std::nullopt;
    }
    if (!second || search.options().goal.is_better(t->metric, second->metric)) {
      second = t;
    }
  }
  return second ? std::optional<tuning_setting>(second->setting) : std::nullopt;
}

inline void tune_basic(tuning_search& search) {
  std::optional<tuning_setting> start = try_space(search);
  if (!start) {
    return;
  }
  std::vector<std::string> names = search.nodes();
  std::reverse(names.begin(), names.end());  // from the outputs backward
  std::optional<std::vector<tuning_trial>> alone = try_each_in_float(search, *start, names);
  if (!alone) {
    return;
  }
  // Where no node helps the best setting, one may help the next one beyond it.
  const std::optional<tuning_trial> best = search.evaluate(*start);
  const auto helps = [&](const tuning_trial& t) {
    return best && search.options().goal.is_better(t.metric, best->metric);
  };
  if (std::none_of(alone->begin(), alone->end(), helps)) {
    if (const std::optional<tuning_setting> next = second_best(search, *start)) {
      const std::optional<std::vector<tuning_trial>> others =
          try_each_in_float(search, *next, names);
      if (!others) {
        return;
      }
      if (std::any_of(others->begin(), others->end(), helps)) {
        start = next;
        alone = others;
      }
    }
  }
  std::vector<std::size_t> order(names.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return search.options().goal.is_better((*alone)[a].metric, (*alone)[b].metric);
  });
  std::vector<std::string> sorted;
  for (const std::size_t i : order) {
    sorted.push_back(names[i]);
  }
  std::optional<tuning_trial> current = search.evaluate(*start);
  for (const std::string& name : sorted) {
    if (!current) {
      return;
    }
    const std::optional<tuning_trial> t = search.evaluate(with_float(current->setting, name));
    if (!t) {
      return;
    }
    if (search.options().goal.is_better(t->metric, current->metric)) {
      current = t;
    }
  }
  fall_back(search, *start, sorted);
}

inline void tune_conservative(tuning_search& search) {
  search.take_latest();
  const model& m = search.quantizer().plan().float_model();
  std::map<std::string, std::string> types;
  for (const node& n : m.nodes) {
    types[n.outputs[0]] = n.op_type;
  }
  const std::vector<std::string> names = search.nodes();
  tuning_setting current = search.options().space.at(0);
  if (names.empty()) {
    search.evaluate(current);  // there is always a result
    return;
  }
  current.in_float.insert(names.begin(), names.end());
  // Kinds by the time that they take: layers, then the rest in the order of their first nodes.
  std::vector<std::set<std::string>> kinds = {{"Conv"}, {"ConvTranspose"}, {"Gemm", "MatMul"}};
  for (const std::string& name : names) {
    const std::string& type = types.at(name);
    if (std::none_of(kinds.begin(), kinds.end(),
                     [&](const std::set<std::string>& k) { return k.count(type) != 0; })) {
      kinds.push_back({type});
    }
  }
  const auto try_without = [&](const std::vector<std::string>& group) {
    tuning_setting tried = current;
    for (const std::string& name : group) {
      tried.in_float.erase(name);
    }
    const std::optional<tuning_trial> t = search.evaluate(tried);
    if (t && t->meets_goal) {
      current = tried;
    }
    return t;
  };
  std::vector<std::vector<std::string>> failed;
  for (const std::set<std::string>& kind : kinds) {
    std::vector<std::string> group;
    std::copy_if(names.begin(), names.end(), std::back_inserter(group),
                 [&](const std::string& name) { return kind.count(types.at(name)) != 0; });
    if (group.empty()) {
      continue;
    }
    const std::optional<tuning_trial> t = try_without(group);
    if (!t) {
      return;
    }
    if (!t->meets_goal) {
      failed.push_back(std::move(group));
    }
  }
  for (const std::vector<std::string>& group : failed) {
    for (const std::string& name : group) {
      if (group.size() > 1 && !try_without({name})) {
        return;
      }
    }
  }
}

inline void tune_mse(tuning_search& search) {
  const std::optional<tuning_setting> start = try_space(search);
  if (start) {
    fall_back(search, *start,
              rank_by_results(search.quantizer().plan().float_model(),
                              search.quantizer().quantize_planned(*start), search.nodes(),
                              search.ranking_samples(), search.options().quantizer.executor,
                              [&search] { search.check_end(); }));
  }
}

inline void tune_hawq_v2(tuning_search& search) {
  const std::optional<tuning_setting> start = try_space(search);
  if (!start || search.nodes().empty()) {
    return;
  }
  const tuning_options& o = search.options();
  const model& m = search.quantizer().plan().float_model();
  layer_weight_options weights = o.quantizer.weights;
  weights.per_channel = start->per_channel;
  weights.scale = start->weights;
  const output_judge judge(m, search.ranking_samples(), o.ranking_samples, true,
                           o.quantizer.executor);
  fall_back(search, *start,
            rank_by_trace(m, search.nodes(), weights, judge, o.seed, o.quantizer.executor.parallel,
                          [&search] { search.check_end(); }));
}

inline void tune_mse_v2(tuning_search& search) {
  const std::optional<tuning_setting> start = try_space(search);
  // Where the goal is met with all nodes quantized, none needs to stay in float.
  if (!start || search.nodes().empty() || search.best().meets_goal) {
    return;
  }
  const tuning_options& o = search.options();
  const output_judge judge(search.quantizer().plan().float_model(), search.ranking_samples(),
                           o.ranking_samples, true, o.quantizer.executor);
  // A trial that meets the goal is not the end: nodes are quantized again then.
  search.take_latest();
  tuning_setting current = *start;
  std::vector<std::string> taken;
  std::vector<std::string> left = search.nodes();
  bool is_met = false;
  while (!left.empty() && !is_met) {
    std::vector<ranked_node> scored;
    for (const std::string& name : left) {
      search.check_end();
      scored.emplace_back(
          -judge.noise_to_signal(search.quantizer().quantize_planned(with_float(current, name)),
                                 [&search] { search.check_end(); }),
          name);
    }
    const std::string chosen = names_by_score(std::move(scored)).front();
    std::erase(left, chosen);
    taken.push_back(chosen);
    current.in_float.insert(chosen);
    const std::optional<tuning_trial> t = search.evaluate(current);
    if (!t) {
      return;
    }
    is_met = t->meets_goal;
  }
  if (!is_met) {
    return;
  }
  taken.pop_back();  // without the last one the goal was not met
  while (!taken.empty()) {
    const std::optional<tuning_trial> t = search.evaluate(without_float(current, taken.back()));
    if (!t) {
      return;
    }
    if (t->meets_goal) {
      current = t->setting;
    }
    taken.pop_back();
  }
}

/// A random setting: each member from its list, and between none and half of the nodes in float.
[[nodiscard]] inline tuning_setting random_setting(const tuning_space& space,
                                                   const std::vector<std::string>& nodes,
                                                   std::mt19937_64& random) {
  tuning_setting s = space.at(random() % space.size());
  std::size_t count = nodes.size() < 2 ? 0 : random() % (nodes.size() / 2 + 1);
  while (s.in_float.size() < count) {
    s.in_float.insert(nodes[random() % nodes.size()]);
  }
  return s;
}

/// Calls draw(), at most 1000 times, until it gives a setting that was not tried; nothing if it
/// gives none.
template <class Draw>
[[nodiscard]] std::optional<tuning_setting> untried(const std::set<tuning_setting>& tried,
                                                    const Draw& draw) {
  for (int k = 0; k < 1000; ++k) {
    tuning_setting s = draw();
    if (tried.count(s) == 0) {
      return s;
    }
  }
  return std::nullopt;
}

inline void tune_random(tuning_search& search) {
  const tuning_options& o = search.options();
  const std::vector<std::string> nodes = search.nodes();
  std::mt19937_64 random(o.seed);
  std::set<tuning_setting> tried;
  while (const auto s = untried(tried, [&] { return random_setting(o.space, nodes, random); })) {
    tried.insert(*s);
    if (!search.evaluate(*s)) {
      return;
    }
  }
}

/// The values with numbers in place of what a process cannot be fitted to: the lowest finite value
/// for NaN and -infinity, the highest one for infinity, 0 if there is none.
[[nodiscard]] inline std::vector<double> finite_values(std::vector<double> values) {
  double lowest = std::numeric_limits<double>::infinity();
  double highest = -lowest;
  for (const double v : values) {
    if (std::isfinite(v)) {
      lowest = (std::min)(lowest, v);
      highest = (std::max)(highest, v);
    }
  }
  const bool has_any = lowest <= highest;
  for (double& v : values) {
    if (!std::isfinite(v)) {
      v = !has_any ? 0.0 : v > 0.0 ? highest : lowest;
    }
  }
  return values;
}

inline void tune_bayesian(tuning_search& search) {
  constexpr std::size_t first_trials = 5;
  constexpr std::size_t candidates = 200;
  const tuning_options& o = search.options();
  const std::vector<std::string> nodes = search.nodes();
  std::mt19937_64 random(o.seed);
  // A setting as a point: the place of each member in its list, and 1 for each node in float.
  const auto point_of = [&](const tuning_setting& s) {
    std::vector<double> p;
    const auto place = [&](const auto& list, const auto& value) {
      const auto at = std::find(list.begin(), list.end(), value) - list.begin();
      p.push_back(list.size() < 2 ? 0.0
                                  : static_cast<double>(at) / static_cast<double>(list.size() - 1));
    };
    place(o.space.samples, s.samples);
    place(o.space.methods, s.method);
    place(o.space.symmetric_activations, s.symmetric_activations);
    place(o.space.per_channel, s.per_channel);
    place(o.space.weights, s.weights);
    place(o.space.corrections, s.correction);
    for (const std::string& name : nodes) {
      p.push_back(s.in_float.count(name) != 0 ? 1.0 : 0.0);
    }
    return p;
  };
  const auto value_of = [&](const tuning_trial& t) {
    return o.goal.higher_is_better ? t.metric : -t.metric;
  };
  std::set<tuning_setting> tried;
  std::vector<std::vector<double>> points;
  std::vector<double> values;
  std::size_t best_at = 0;
  const auto draw = [&] { return random_setting(o.space, nodes, random); };
  tuning_setting next = o.space.at(0);
  for (;;) {
    tried.insert(next);
    const std::optional<tuning_trial> t = search.evaluate(next);
    if (!t) {
      return;
    }
    points.push_back(point_of(next));
    values.push_back(value_of(*t));
    if (o.goal.is_better(t->metric, search.trials()[best_at].metric)) {
      best_at = values.size() - 1;
    }
    if (points.size() < first_trials) {
      const auto s = untried(tried, draw);
      if (!s) {
        return;
      }
      next = *s;
      continue;
    }
    const std::vector<double> fitted = finite_values(values);
    const gaussian_process process(points, fitted);
    const double best = fitted[best_at];
    const tuning_setting around = search.trials()[best_at].setting;
    double most = -std::numeric_limits<double>::infinity();
    std::optional<tuning_setting> chosen;
    for (std::size_t k = 0; k < candidates; ++k) {
      // Every other candidate is a neighbour of the best setting.
      tuning_setting s = draw();
      if (k % 2 == 1 && !nodes.empty()) {
        s = around;
        const std::string& name = nodes[random() % nodes.size()];
        s = s.in_float.count(name) != 0 ? without_float(s, name) : with_float(s, name);
      }
      if (tried.count(s) != 0) {
        continue;
      }
      const double gain = process.expected_improvement(point_of(s), best);
      if (gain > most) {
        most = gain;
        chosen = s;
      }
    }
    if (!chosen) {
      return;
    }
    next = *chosen;
  }
}

inline void tune_exhaustive(tuning_search& search) {
  const tuning_space& space = search.options().space;
  const std::vector<std::string> nodes = search.nodes();
  for (std::size_t count = 0; count <= nodes.size(); ++count) {
    std::vector<std::size_t> chosen(count);
    for (std::size_t i = 0; i < count; ++i) {
      chosen[i] = i;
    }
    for (;;) {
      for (std::size_t i = 0; i < space.size(); ++i) {
        tuning_setting s = space.at(i);
        for (const std::size_t k : chosen) {
          s.in_float.insert(nodes[k]);
        }
        if (!search.evaluate(s)) {
          return;
        }
      }
      // The next subset of this size in lexicographic order.
      std::size_t at = count;
      while (at > 0 && chosen[at - 1] == nodes.size() - count + at - 1) {
        --at;
      }
      if (at == 0) {
        break;
      }
      ++chosen[at - 1];
      for (std::size_t i = at; i < count; ++i) {
        chosen[i] = chosen[i - 1] + 1;
      }
    }
  }
}

inline void choose_trials(tuning_strategy strategy, tuning_search& search) {
  switch (strategy) {
    case tuning_strategy::basic:
      return tune_basic(search);
    case tuning_strategy::conservative:
      return tune_conservative(search);
    case tuning_strategy::mse:
      return tune_mse(search);
    case tuning_strategy::mse_v2:
      return tune_mse_v2(search);
    case tuning_strategy::hawq_v2:
      return tune_hawq_v2(search);
    case tuning_strategy::bayesian:
      return tune_bayesian(search);
    case tuning_strategy::random:
      return tune_random(search);
    case tuning_strategy::exhaustive:
      return tune_exhaustive(search);
  }
}

/// Makes the trials of a strategy until it has nothing left to try or the search ends.
inline void run_strategy(tuning_strategy strategy, tuning_search& search) {
  try {
    choose_trials(strategy, search);
  } catch (const search_ended&) {
    // while nodes were ranked
  }
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_TUNING_STRATEGIES_HPP
