// SPDX-License-Identifier: BSD-3-Clause
// PPQ's calibration system: what its states allow, what its passes leave behind on small networks,
// and that exported models compute what quantization by plain loops does.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/ppq/analysis.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/pipeline.hpp>
#include <detent/graph/ppq/policy.hpp>
#include <detent/graph/ppq/state.hpp>
#include <detent/graph/ppq/statistics.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observer_registry.hpp>

#include "check_graph_error.hpp"
#include "compare.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "ppq_graphs.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
using ppq::quantization_configs;
using property = ppq::quantization_property;

constexpr std::array<quantization_state, 8> all_states{
    quantization_state::initial,       quantization_state::baked,
    quantization_state::overlapped,    quantization_state::activated,
    quantization_state::passive,       quantization_state::passive_init,
    quantization_state::passive_baked, quantization_state::fp32};

ppq::quantizer_settings settings(const std::string& name) {
  ppq::quantizer_settings s;
  s.name = name;
  s.variable = name;
  return s;
}

/// Equal but for a share of the value; doctest's own Approx adds 1 to small ones.
doctest::Approx near(double value, double share) {
  return doctest::Approx(value).epsilon(share).scale(1e-30);
}

ppq::tensor_parameters one(float scale, std::int32_t zero_point = 0) {
  return {{scale}, {zero_point}};
}

/// Samples one after the other; counts how many were drawn, and how often the end was reached.
struct counting_source {
  std::vector<tensors> samples;
  std::size_t next = 0;
  std::size_t drawn = 0;
  std::size_t ends = 0;
};
graph::calibration_source source_of(std::shared_ptr<counting_source> s) {
  return [s]() -> std::optional<tensors> {
    if (s->next == s->samples.size()) {
      s->next = 0;
      ++s->ends;
      return std::nullopt;
    }
    ++s->drawn;
    return s->samples[s->next++];
  };
}
std::shared_ptr<counting_source> random_source_of(test::random_source& r, const shape& dims,
                                                  std::size_t n) {
  auto s = std::make_shared<counting_source>();
  for (std::size_t i = 0; i < n; ++i) {
    s->samples.push_back({{"x", random_floats(r, dims, -1.0F, 1.0F)}});
  }
  return s;
}

quantization_state state_of(const quantized_graph& g, config_id id) {
  return g.configs[id].state();
}

/// x -> Conv -> Relu -> MaxPool -> Conv -> (+ MaxPool) -> GlobalAveragePool -> Flatten -> Gemm
graph::model residual_network(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 3, 8, 8});
  b.constant("w1", random_floats(r, {4, 3, 3, 3}, -0.5F, 0.5F));
  b.constant("b1", random_floats(r, {4}, -0.3F, 0.3F));
  b.constant("w2", random_floats(r, {4, 4, 3, 3}, -0.5F, 0.5F));
  b.constant("b2", random_floats(r, {4}, -0.3F, 0.3F));
  b.constant("w3", random_floats(r, {4, 5}, -0.5F, 0.5F));
  b.constant("b3", random_floats(r, {5}, -0.3F, 0.3F));
  const attributes same{{"pads", list({1, 1, 1, 1})}};
  std::string y = b.add("Relu", {b.add("Conv", {"x", "w1", "b1"}, same)});
  const std::string pooled =
      b.add("MaxPool", {y}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  y = b.add("Add", {b.add("Conv", {pooled, "w2", "b2"}, same), pooled});
  y = b.add("Flatten", {b.add("GlobalAveragePool", {y})});
  b.output(b.add("Gemm", {y, "w3", "b3"}));
  return b.get();
}
const shape residual_input{2, 3, 8, 8};

/// A network, calibrated with all passes.
quantized_graph run_all(graph::model m, const ppq::platform& p, const graph::calibration_source& s,
                        const ppq::pipeline_options& options = {},
                        const ppq::quantizer_options& quantizer = {}) {
  quantized_graph g = ppq::make_quantized_graph(std::move(m), p, quantizer);
  ppq::pass_context c{s, {}};
  ppq::run_pipeline(g, ppq::default_pipeline(options), c);
  return g;
}

/// Any rounding rule in double, which holds every quotient of the tests; ties by the table.
double rounded(double x, ppq::rounding_policy rule) {
  const double below = std::floor(x);
  const double fraction = x - below;
  const bool tie = fraction == 0.5;
  const bool even_below = std::fmod(below, 2.0) == 0.0;
  switch (rule) {
    case ppq::rounding_policy::half_even:
      return tie ? (even_below ? below : below + 1.0) : std::floor(x + 0.5);
    case ppq::rounding_policy::half_up:
      return tie ? below + 1.0 : std::floor(x + 0.5);
    case ppq::rounding_policy::half_down:
      return tie ? below : std::floor(x + 0.5);
    case ppq::rounding_policy::half_towards_zero:
      return tie ? (x > 0.0 ? below : below + 1.0) : std::floor(x + 0.5);
    case ppq::rounding_policy::half_far_from_zero:
    case ppq::rounding_policy::to_near_int:
      return tie ? (x > 0.0 ? below + 1.0 : below) : std::floor(x + 0.5);
    case ppq::rounding_policy::up:
      return std::ceil(x);
    case ppq::rounding_policy::down:
      return below;
  }
  return x;
}

double fake(double x, double scale, double zero_point, double qmin, double qmax,
            ppq::rounding_policy rule = ppq::rounding_policy::half_even) {
  const double q = rounded(x / scale, rule) + zero_point;
  return ((std::min)((std::max)(q, qmin), qmax) - zero_point) * scale;
}

}  // namespace

// ------------------------------------------------------------------------------ policy and states

TEST_CASE("ppq: the policies that are accepted are those of the list, and no others") {
  std::set<std::uint32_t> accepted;
  for (const std::uint32_t granularity : {0x01U, 0x02U}) {
    for (const std::uint32_t symmetry : {0x10U, 0x20U}) {
      for (const std::uint32_t power : {0x00U, 0x40U}) {
        for (const std::uint32_t dynamic : {0x00U, 0x80U}) {
          accepted.insert(granularity | symmetry | power | dynamic | 0x04U);
        }
      }
    }
    accepted.insert(granularity | 0x08U | 0x10U | 0x40U);
  }
  CHECK(accepted.size() == 18);
  for (std::uint32_t mask = 0; mask < 0x400; ++mask) {
    INFO("mask ", mask);
    CHECK(ppq::quantization_policy::is_accepted(mask) == (accepted.count(mask) != 0));
    if (accepted.count(mask) != 0) {
      CHECK(ppq::quantization_policy(mask).properties() == mask);
    } else {
      check_graph_error(error_kind::invalid_argument, {"quantization_policy", "accepts"},
                        [&] { static_cast<void>(ppq::quantization_policy(mask)); });
    }
  }
  CHECK(ppq::quantization_policy().properties() == 0x15U);
  CHECK(ppq::quantization_policy(0x2E & ~0x08U).per_tensor().properties() == 0x25U);
  check_graph_error(error_kind::invalid_argument, {"PER_TENSOR | PER_CHANNEL | LINEAR"},
                    [] { static_cast<void>(ppq::quantization_policy(0x07)); });
}

TEST_CASE("ppq: settings are checked") {
  quantization_configs configs;
  const auto rejected = [&](auto change, std::initializer_list<std::string_view> words) {
    ppq::quantizer_settings s = settings("tensor 't'");
    change(s);
    check_graph_error(error_kind::invalid_argument, words, [&] { configs.add(s); });
  };
  rejected([](auto& s) { s.bits = 1; }, {"tensor 't'", "1 bits"});
  rejected([](auto& s) { s.bits = 33; }, {"tensor 't'", "33 bits"});
  rejected([](auto& s) { s.levels = {-128, 128}; }, {"tensor 't'", "-128..128"});
  rejected([](auto& s) { s.levels = {1, 100}; }, {"tensor 't'", "1..100"});
  rejected([](auto& s) { s.levels = {0, 0}; }, {"tensor 't'", "0..0"});
  rejected([](auto& s) { s.channel_axis = 0; }, {"tensor 't'", "PER_TENSOR", "channel axis"});
  rejected([](auto& s) { s.policy = ppq::quantization_policy(0x16); },
           {"tensor 't'", "PER_CHANNEL", "without a channel axis"});
  for (const quantization_state state : all_states) {
    const bool may_begin = state == quantization_state::initial ||
                           state == quantization_state::passive_init ||
                           state == quantization_state::fp32;
    if (may_begin) {
      CHECK(configs[configs.add(settings("a"), state)].state() == state);
    } else {
      check_graph_error(error_kind::invalid_argument, {"begins as", ppq::name(state)},
                        [&] { configs.add(settings("a"), state); });
    }
  }
  ppq::quantizer_settings wide = settings("32 bits");
  wide.bits = 32;
  wide.levels = {std::numeric_limits<std::int32_t>::min(),
                 std::numeric_limits<std::int32_t>::max()};
  CHECK_NOTHROW(configs.add(wide));
}

namespace {

struct example {
  quantization_configs configs;
  config_id id{};
  config_id other{};  // ACTIVATED, scale 0.5
};

/// A configuration 'c' in a state, with the scale 0.25 where it can have its own.
example in_state(quantization_state state) {
  example e;
  e.other = e.configs.add(settings("other"));
  e.configs.set_parameters(e.other, one(0.5F));
  e.configs.transition(e.other, quantization_state::activated);
  const bool passive =
      state == quantization_state::passive || state == quantization_state::passive_baked;
  const bool begins = state == quantization_state::passive_init || passive;
  e.id = e.configs.add(settings("c"),
                       begins ? quantization_state::passive_init : quantization_state::initial);
  e.configs.set_parameters(e.id, one(0.25F));
  switch (state) {
    case quantization_state::initial:
    case quantization_state::passive_init:
      break;
    case quantization_state::overlapped:
      e.configs.dominated_by(e.id, e.other);
      break;
    case quantization_state::activated:
    case quantization_state::baked:
      e.configs.transition(e.id, quantization_state::activated);
      e.configs.transition(e.id, state);
      break;
    case quantization_state::passive:
    case quantization_state::passive_baked:
      e.configs.transition(e.id, quantization_state::passive);
      e.configs.transition(e.id, state);
      break;
    case quantization_state::fp32:
      e.configs.dequantize(e.id);
      break;
  }
  REQUIRE(e.configs[e.id].state() == state);
  return e;
}

}  // namespace

TEST_CASE("ppq: every transition of the table, and none beside it") {
  // A row for each state it starts from; '*' where staying is meant.
  const std::map<std::string, std::string> legal{
      {"INITIAL", "* OVERLAPPED ACTIVATED PASSIVE PASSIVE_INIT FP32"},
      {"BAKED", "* PASSIVE PASSIVE_INIT FP32"},
      {"OVERLAPPED", "* PASSIVE PASSIVE_INIT FP32"},
      {"ACTIVATED", "* INITIAL BAKED OVERLAPPED PASSIVE PASSIVE_INIT FP32"},
      {"PASSIVE", "* PASSIVE_INIT PASSIVE_BAKED FP32"},
      {"PASSIVE_INIT", "* PASSIVE FP32"},
      {"PASSIVE_BAKED", "* PASSIVE PASSIVE_INIT FP32"},
  };
  std::size_t checked = 0;
  for (const quantization_state from : all_states) {
    for (const quantization_state to : all_states) {
      const std::string from_name = ppq::name(from);
      const std::string to_name = ppq::name(to);
      INFO(from_name, " -> ", to_name);
      bool expected = from == to || from == quantization_state::fp32;
      if (from != quantization_state::fp32) {
        expected = expected ||
                   (" " + legal.at(from_name) + " ").find(" " + to_name + " ") != std::string::npos;
      }
      CHECK(ppq::is_legal(from, to) == expected);
      ++checked;
      if (from == quantization_state::fp32) {
        continue;  // what leaves it depends on what was before: below
      }
      example e = in_state(from);
      const auto change = [&] {
        const bool passive =
            to == quantization_state::passive || to == quantization_state::passive_init;
        if (expected && from != to && to == quantization_state::overlapped) {
          e.configs.dominated_by(e.id, e.other);
        } else if (expected && from != to && passive && from == quantization_state::overlapped) {
          const config_id fresh = e.configs.add(settings("fresh"));
          e.configs.master_by(e.id, to == quantization_state::passive ? e.other : fresh);
        } else {
          e.configs.transition(e.id, to);
        }
      };
      if (expected) {
        CHECK_NOTHROW(change());
        CHECK(e.configs[e.id].state() == to);
      } else {
        check_graph_error(error_kind::invalid_argument,
                          {"c: ", "from " + from_name, "to " + to_name}, change);
        CHECK(e.configs[e.id].state() == from);
      }
      // FP32 gives back what was before, and nothing else.
      example off = in_state(from);
      off.configs.dequantize(off.id);
      off.configs.dequantize(off.id);
      CHECK(off.configs[off.id].state() == quantization_state::fp32);
      CHECK(off.configs[off.id].enabled_state() == from);
      if (to == from || to == quantization_state::fp32) {
        CHECK_NOTHROW(off.configs.transition(off.id, to));
        CHECK(off.configs[off.id].state() == to);
      } else {
        check_graph_error(error_kind::invalid_argument, {"c: ", "FP32", to_name, from_name},
                          [&] { off.configs.transition(off.id, to); });
      }
      off.configs.restore(off.id);
      off.configs.restore(off.id);
      CHECK(off.configs[off.id].state() == from);
    }
  }
  CHECK(checked == 64);
  // Preconditions beside the table.
  quantization_configs configs;
  const config_id empty = configs.add(settings("empty"));
  check_graph_error(error_kind::invalid_argument, {"empty", "INITIAL", "ACTIVATED", "scale"},
                    [&] { configs.transition(empty, quantization_state::activated); });
  check_graph_error(error_kind::invalid_argument, {"empty", "INITIAL", "OVERLAPPED", "root"},
                    [&] { configs.transition(empty, quantization_state::overlapped); });
  example e = in_state(quantization_state::overlapped);
  check_graph_error(error_kind::invalid_argument, {"c", "OVERLAPPED", "PASSIVE", "master"},
                    [&] { e.configs.transition(e.id, quantization_state::passive); });
}

TEST_CASE("ppq: where scales may be written, what is active, what is exported") {
  const std::set<quantization_state> writable{
      quantization_state::activated, quantization_state::fp32, quantization_state::initial,
      quantization_state::passive, quantization_state::passive_init};
  const std::set<quantization_state> active{quantization_state::activated,
                                            quantization_state::passive};
  const std::set<quantization_state> exported{
      quantization_state::activated, quantization_state::passive, quantization_state::baked,
      quantization_state::passive_baked};
  for (const quantization_state state : all_states) {
    INFO(ppq::name(state));
    example e = in_state(state);
    CHECK(e.configs.is_active(e.id) == (active.count(state) != 0));
    const bool shown = exported.count(state) != 0;
    CHECK(e.configs.is_exportable(e.id) == shown);
    CHECK(e.configs.is_exportable(e.id, true) ==
          (shown || state == quantization_state::overlapped));
    e.configs.settings(e.id).visibility = ppq::visibility_policy::internal;
    CHECK_FALSE(e.configs.is_exportable(e.id, true));
    e.configs.settings(e.id).visibility = ppq::visibility_policy::force_export;
    CHECK(e.configs.is_exportable(e.id));
    if (writable.count(state) != 0) {
      e.configs.set_parameters(e.id, one(0.125F));
      CHECK(e.configs.parameters(e.id) == one(0.125F));
      CHECK(e.configs[e.id].state() == state);
    } else {
      check_graph_error(error_kind::invalid_argument, {"c: ", "can't be written"},
                        [&] { e.configs.set_parameters(e.id, one(0.125F)); });
    }
  }
  quantization_configs configs;
  const config_id id = configs.add(settings("c"));
  configs.settings(id).visibility = ppq::visibility_policy::force_export;
  CHECK_FALSE(configs.is_exportable(id));  // without a scale
  const auto rejected = [&](ppq::tensor_parameters p, error_kind kind,
                            std::initializer_list<std::string_view> words) {
    check_graph_error(kind, words, [&] { configs.set_parameters(id, p); });
    CHECK(configs.parameters(id).empty());
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  rejected({}, error_kind::shape_mismatch, {"c", "0 scales"});
  rejected({{1.0F}, {}}, error_kind::shape_mismatch, {"c", "1 scales", "0 zero points"});
  rejected({{1.0F, 1.0F}, {0, 0}}, error_kind::shape_mismatch, {"c", "2 scales for a tensor"});
  rejected(one(0.0F), error_kind::invalid_argument, {"c", "scale 0"});
  rejected(one(-1.0F), error_kind::invalid_argument, {"c", "scale -1"});
  rejected(one(nan), error_kind::invalid_argument, {"c", "scale", "nan"});
  rejected(one(1.0F, 128), error_kind::invalid_argument, {"c", "zero point 128", "-128..127"});
}

TEST_CASE("ppq: domination is a forest without cycles whose paths become short") {
  quantization_configs configs;
  std::vector<config_id> ids;
  for (int i = 0; i < 6; ++i) {
    std::string name = "c";
    name += std::to_string(i);
    ids.push_back(configs.add(settings(name)));
  }
  // Roots are joined one behind the other: the deepest one is five links from the last.
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    configs.dominated_by(ids[i], ids[i + 1]);
  }
  CHECK(configs.depth(ids[0]) == 5);
  CHECK(configs.root(ids[0]) == ids[5]);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(configs.depth(ids[i]) == 1);  // also of those in between
    CHECK(configs[ids[i]].state() == quantization_state::overlapped);
    check_graph_error(error_kind::invalid_argument, {"c5", "c" + std::to_string(i), "cycle"},
                      [&] { configs.dominated_by(ids[5], ids[i]); });
    check_graph_error(error_kind::invalid_argument, {"c" + std::to_string(i), "c5", "dominates"},
                      [&] { configs.set_parameters(ids[i], one(1.0F)); });
  }
  check_graph_error(error_kind::invalid_argument, {"c0", "cycle"},
                    [&] { configs.dominated_by(ids[0], ids[0]); });
  check_graph_error(error_kind::invalid_argument, {"c5", "cycle"},
                    [&] { configs.dominated_by(ids[5], ids[5]); });
  CHECK_NOTHROW(configs.dominated_by(ids[0], ids[3]));  // they have a root in common
  configs.set_parameters(ids[5], one(0.5F));
  CHECK(configs.parameters(ids[0]) == one(0.5F));
  const quantization_configs copy = configs;
  configs.set_parameters(ids[5], one(0.25F));
  CHECK(configs.parameters(ids[2]) == one(0.25F));
  CHECK(copy.parameters(ids[2]) == one(0.5F));
  // What another state than INITIAL and ACTIVATED holds can't be overlapped.
  example e = in_state(quantization_state::baked);
  check_graph_error(error_kind::invalid_argument, {"c: ", "BAKED", "OVERLAPPED"},
                    [&] { e.configs.dominated_by(e.id, e.other); });
}

TEST_CASE("ppq: links of configurations that are switched off") {
  quantization_configs configs;
  const config_id a = configs.add(settings("a"));
  const config_id b = configs.add(settings("b"));
  const config_id c = configs.add(settings("c"), quantization_state::fp32);
  configs.dequantize(a);
  configs.dominated_by(a, b);
  configs.set_parameters(b, one(0.5F));
  CHECK(configs[a].state() == quantization_state::fp32);
  CHECK(configs[a].enabled_state() == quantization_state::overlapped);
  check_graph_error(error_kind::invalid_argument, {"a", "b", "dominates"},
                    [&] { configs.set_parameters(a, one(1.0F)); });
  configs.master_by(c, b);
  CHECK(configs[c].state() == quantization_state::fp32);
  CHECK_FALSE(configs.is_exportable(c));
  configs.restore(a);
  configs.restore(c);
  CHECK(configs[a].state() == quantization_state::overlapped);
  CHECK(configs[c].state() == quantization_state::passive);
  CHECK(configs.parameters(a) == one(0.5F));
  CHECK(configs.parameters(c) == one(0.5F));
  CHECK(configs.is_exportable(c));
}

TEST_CASE("ppq: domination against sets, for random sequences") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    quantization_configs configs;
    constexpr std::size_t n = 12;
    std::vector<config_id> ids;
    std::vector<std::size_t> root_of(n);  // the naive form
    for (std::size_t i = 0; i < n; ++i) {
      std::string name = "c";
      name += std::to_string(i);
      ids.push_back(configs.add(settings(name)));
      root_of[i] = i;
    }
    for (int step = 0; step < 40; ++step) {
      const std::size_t a = r.size(0, n - 1);
      const std::size_t b = r.size(0, n - 1);
      const std::size_t slave = root_of[a];
      const std::size_t master = root_of[b];
      const bool cycle = a == b || (slave == master && a == slave);
      if (cycle) {
        check_graph_error(error_kind::invalid_argument, {"cycle"},
                          [&] { configs.dominated_by(ids[a], ids[b]); });
      } else {
        configs.dominated_by(ids[a], ids[b]);
        std::replace(root_of.begin(), root_of.end(), slave, master);
      }
      bool same = true;
      for (std::size_t i = 0; i < n; ++i) {
        const bool ask = r.chance(30);  // paths are not always compressed
        same = same && (!ask || configs.root(ids[i]) == ids[root_of[i]]);
        same = same &&
               (configs[ids[i]].state() ==
                (root_of[i] == i ? quantization_state::initial : quantization_state::overlapped));
      }
      CHECK(same);
    }
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(configs.root(ids[i]) == ids[root_of[i]]);
      CHECK(configs.depth(ids[i]) <= 1);
    }
  }
}

TEST_CASE("ppq: masters lend their parameters") {
  quantization_configs configs;
  const config_id a = configs.add(settings("a"));
  const config_id b = configs.add(settings("b"));
  const config_id c = configs.add(settings("c"));
  const config_id d = configs.add(settings("d"));
  configs.master_by(b, a);
  CHECK(configs[b].state() == quantization_state::passive_init);
  configs.master_by(c, b);
  CHECK(configs[c].state() == quantization_state::passive_init);
  for (const config_id id : {a, b}) {
    check_graph_error(error_kind::invalid_argument, {"a", "cycle"},
                      [&] { configs.master_by(a, id); });
  }
  check_graph_error(error_kind::invalid_argument, {"a", "c", "cycle"},
                    [&] { configs.master_by(a, c); });
  check_graph_error(error_kind::invalid_argument, {"a", "c", "cycle"},
                    [&] { configs.dominated_by(a, c); });
  configs.set_parameters(a, one(0.5F));
  CHECK(configs.parameters(c) == one(0.5F));
  CHECK(configs.source(c) == a);
  CHECK(configs.root(c) == c);
  configs.transition(c, quantization_state::passive);
  configs.master_by(b, a);
  CHECK(configs[b].state() == quantization_state::passive);
  check_graph_error(error_kind::invalid_argument, {"c", "master", "a", "can't be written"},
                    [&] { configs.set_parameters(c, one(1.0F)); });
  // A dominated one leaves; those that were joined through it stay.
  configs.transition(a, quantization_state::activated);
  const config_id e = configs.add(settings("e"));
  const config_id f = configs.add(settings("f"));
  configs.set_parameters(f, one(0.125F));
  configs.transition(f, quantization_state::activated);
  configs.dominated_by(e, d);
  configs.dominated_by(d, a);
  CHECK(configs.root(d) == a);
  configs.master_by(d, f);
  CHECK(configs[d].state() == quantization_state::passive);
  CHECK(configs.parameters(d) == one(0.125F));
  CHECK(configs.root(e) == a);
  CHECK(configs.parameters(e) == one(0.5F));
  CHECK(configs[e].state() == quantization_state::overlapped);
  // A dominated master speaks for its root, until it leaves: then nobody may go round in circles.
  const config_id g = configs.add(settings("g"));
  configs.master_by(g, e);
  CHECK(configs.parameters(g) == one(0.5F));
  check_graph_error(error_kind::invalid_argument, {"e", "g", "cycle"},
                    [&] { configs.master_by(e, g); });
  CHECK(configs.root(e) == a);
}

TEST_CASE("ppq: the roundings of constants") {
  const std::vector<float> steps{-3.5F, -2.5F, -2.25F, -1.5F, -0.75F, -0.5F, -0.25F, 0.0F,
                                 0.25F, 0.5F,  0.75F,  1.5F,  2.25F,  2.5F,  3.5F,   200.0F};
  std::vector<float> x;
  for (const float s : steps) {
    x.push_back(s * 0.25F);
  }
  for (int rule = 0; rule < 8; ++rule) {
    INFO("rule ", rule);
    ppq::quantizer_settings s = settings("t");
    s.rounding = static_cast<ppq::rounding_policy>(rule);
    std::vector<std::int32_t> expected;
    std::vector<float> dequantized;
    for (const float v : steps) {
      const double q = (std::min)(127.0, rounded(static_cast<double>(v), s.rounding) + 3.0);
      expected.push_back(static_cast<std::int32_t>(q));
      dequantized.push_back(static_cast<float>((q - 3.0) * 0.25));
    }
    const tensor t = floats({16}, x);
    CHECK(ppq::quantized_integers(t, s, one(0.25F, 3)) == expected);
    CHECK(difference(ppq::fake_quantized(t, s, one(0.25F, 3)).data<float>(), dequantized) == "");
  }
  // 32 bits, in double: a float quotient would be off by thousands.
  ppq::quantizer_settings wide = settings("bias");
  wide.bits = 32;
  wide.levels = {std::numeric_limits<std::int32_t>::min(),
                 std::numeric_limits<std::int32_t>::max()};
  const tensor bias = floats({4}, {1.0F, -1.0F, 1e9F, -1e9F});
  const double step = static_cast<double>(3e-9F);
  CHECK(ppq::quantized_integers(bias, wide, one(3e-9F)) ==
        std::vector<std::int32_t>{static_cast<std::int32_t>(std::nearbyint(1.0 / step)),
                                  static_cast<std::int32_t>(std::nearbyint(-1.0 / step)),
                                  wide.levels.qmax, wide.levels.qmin});
  // Along an axis in the middle.
  ppq::quantizer_settings channels = settings("channels");
  channels.policy = ppq::quantization_policy(0x16);
  channels.channel_axis = 1;
  const tensor cube = floats({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(ppq::quantized_integers(cube, channels, {{1.0F, 2.0F}, {0, 1}}) ==
        std::vector<std::int32_t>{1, 2, 3, 3, 5, 6, 5, 5});
  check_graph_error(error_kind::shape_mismatch, {"channels", "3 scales", "[2,2,2]"}, [&] {
    static_cast<void>(ppq::quantized_integers(cube, channels, {{1, 1, 1}, {0, 0, 0}}));
  });
}

// ------------------------------------------------------------------------------ platforms, graph

TEST_CASE("ppq: platforms are found, and give their configurations") {
  CHECK(ppq::platforms().size() == 17);
  CHECK(ppq::find_platform("TensorRT").name == "tensorrt");
  CHECK(ppq::find_platform("ORT").name == "onnxruntime");
  check_graph_error(error_kind::invalid_argument,
                    {"no platform 'abacus'", "tensorrt", "openvino", "ncnn", "snpe", "fpga"},
                    [] { static_cast<void>(ppq::find_platform("abacus")); });
  test::random_source r(11);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  struct expectation {
    const char* name;
    std::uint32_t activation, weight;
    int qmin, qmax;
    int bias_bits;
    ppq::rounding_policy rounding;
  };
  const auto even = ppq::rounding_policy::half_even;
  const auto away = ppq::rounding_policy::half_far_from_zero;
  for (const expectation& e : {expectation{"tensorrt", 0x15, 0x16, -128, 127, 0, even},
                               {"ppl_cuda", 0x15, 0x16, -128, 127, 32, even},
                               {"ncnn", 0x15, 0x16, -127, 127, 0, away},
                               {"snpe", 0x25, 0x25, 0, 255, 30, even},
                               {"ascend", 0x25, 0x25, 0, 255, 30, away},
                               {"nxp", 0x55, 0x56, -128, 127, 32, ppq::rounding_policy::half_up},
                               {"fpga", 0x55, 0x55, -128, 127, 32, even}}) {
    INFO(e.name);
    const quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform(e.name));
    CHECK(g.operators.size() == g.network.nodes.size());
    const auto& x = g.configs[input_config(g, "Conv", 0)];
    CHECK(x.policy.properties() == e.activation);
    CHECK(x.levels == detent::grid{e.qmin, e.qmax});
    CHECK(x.rounding == e.rounding);
    CHECK(x.observer == "percentile");
    CHECK(x.state() == quantization_state::initial);
    const auto& w = g.configs[input_config(g, "Conv", 1)];
    CHECK(w.policy.properties() == e.weight);
    CHECK(w.observer == "minmax");
    const bool channels = (e.weight & property::per_channel) != 0;
    CHECK(w.channel_axis == (channels ? std::optional<std::size_t>(0) : std::nullopt));
    CHECK(g.configs[input_config(g, "Gemm", 1)].channel_axis ==
          (channels ? std::optional<std::size_t>(1) : std::nullopt));
    const auto& bias = g.configs[input_config(g, "Gemm", 2)];
    CHECK(bias.state() ==
          (e.bias_bits == 0 ? quantization_state::fp32 : quantization_state::passive_init));
    if (e.bias_bits != 0) {
      CHECK(bias.levels.qmax == static_cast<int>((std::int64_t{1} << (e.bias_bits - 1)) - 1));
      CHECK(bias.levels.qmin == -bias.levels.qmax - 1);
    }
    CHECK(x.name.find("Conv node 'Conv_0', input 0 'x'") == 0);
  }
}

TEST_CASE("ppq: which operators are dispatched") {
  test::random_source r(12);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 4, 4});
  b.constant("w", random_floats(r, {3, 3, 1, 1}, -1.0F, 1.0F));
  b.constant("t", random_floats(r, {3, 2, 2, 2}, -1.0F, 1.0F));
  b.constant("half", floats({4}, {0.5F, 0.5F, 0.5F, 0.5F}));
  const std::string before = b.add("Sigmoid", {"x"});
  const std::string conv = b.add("Conv", {before, "w"});
  const std::string after = b.add("Relu", {conv});
  const std::string mixed = b.add("Add", {after, before});
  const std::string transposed = b.add("ConvTranspose", {after, "t"});
  b.output(mixed);
  b.output(transposed);
  b.output(b.add("Erf", {after}));  // in no list
  // A shape computed in float is no activation.
  const std::string dims = b.add("Cast", {b.add("Shape", {before})}, {{"to", number(1)}});
  const std::string scaled = b.add("Mul", {dims, "half"});
  b.output(b.add("Cast", {scaled}, {{"to", number(7)}}), element_type::s64);
  const ppq::platform& p = ppq::find_platform("tensorrt");
  const auto chosen = [&](const ppq::quantizer_options& o) {
    const quantized_graph g = ppq::make_quantized_graph(b.get(), p, o);
    std::string names;
    for (std::size_t i = 0; i < g.operators.size(); ++i) {
      names += g.operators[i].is_quantized() ? g.network.nodes[i].op_type + " " : "";
    }
    return names;
  };
  CHECK(chosen({}) == "Conv Relu ConvTranspose ");
  CHECK(chosen({ppq::dispatch_scope::all_in, {}}) == "Sigmoid Conv Relu Add ConvTranspose ");
  CHECK(chosen({ppq::dispatch_scope::all_in, [](const graph::node& n) {
                  return n.is("ConvTranspose") || n.is("Sigmoid");
                }}) == "Conv Relu Add ");
  const quantized_graph g = ppq::make_quantized_graph(b.get(), p);
  CHECK(g.configs[input_config(g, "ConvTranspose", 1)].channel_axis == 1);

  model_builder quantized;
  quantized.input("x", {4});
  quantized.output(quantized.pair("x", 0.1F, 3));
  check_graph_error(error_kind::unsupported, {"already quantized", "QuantizeLinear"},
                    [&] { static_cast<void>(ppq::make_quantized_graph(quantized.get(), p)); });
  model_builder unknown;
  unknown.input("x", {4});
  unknown.output(unknown.add("Frobnicate", {"x"}));
  check_graph_error(error_kind::unsupported, {"Frobnicate node 'Frobnicate_0'"},
                    [&] { static_cast<void>(ppq::make_quantized_graph(unknown.get(), p)); });
}

TEST_CASE(
    "ppq: what adds a mask of infinities stays float, and weights of infinities are refused") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto network = [&](float masked, float weight) {
    model_builder b;
    b.input("x", {1, 2, 4});
    b.constant("w", floats({4, 4}, {1, 0, 0, 0, 0, weight, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}));
    b.constant("mask", floats({1, 2, 4}, {0, 0, masked, 0, 0, 0, 0, masked}));
    const std::string scores = b.add("MatMul", {"x", "w"});
    b.output(b.add("MatMul", {b.add("Softmax", {b.add("Add", {scores, "mask"})}), "w"}));
    return b.get();
  };
  const ppq::platform& p = ppq::find_platform("tensorrt");
  const auto is_add_quantized = [&](float masked) {
    const quantized_graph g = ppq::make_quantized_graph(network(masked, 1.0F), p);
    return g.operators[index_of(g, "Add")].is_quantized();
  };
  CHECK(is_add_quantized(-1.0F));
  for (const float masked : {-infinity, infinity, std::numeric_limits<float>::quiet_NaN()}) {
    CHECK_FALSE(is_add_quantized(masked));
  }
  test::random_source r(61);
  INFO("seed ", r.seed());
  const auto source = random_source_of(r, {1, 2, 4}, 8);
  const quantized_graph g = run_all(network(-infinity, 1.0F), p, source_of(source));
  const tensors& sample = source->samples[3];
  CHECK(ppq::measure_error(outputs_of(ppq::to_qdq(g), sample)[0],
                           outputs_of(g.float_model, sample)[0], ppq::error_method::snr) < 0.01);
  check_graph_error(error_kind::invalid_argument, {"'w'"}, [&] {
    static_cast<void>(run_all(network(0.0F, infinity), p, source_of(source)));
  });
}

TEST_CASE("ppq: fusion leaves one quantization for each value") {
  test::random_source r(13);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  ppq::pass_context c;
  quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform("tensorrt"));
  const quantized_graph before = g;
  ppq::fusion_pass()(g, c);
  const config_id relu = output_config(g, "Relu");
  const auto root = [&](config_id id) { return g.configs.root(id); };
  CHECK(root(output_config(g, "Conv", 0)) == relu);
  CHECK(root(input_config(g, "Relu", 0)) == relu);
  CHECK(root(input_config(g, "MaxPool", 0)) == relu);
  CHECK(root(output_config(g, "MaxPool")) == relu);
  CHECK(root(input_config(g, "Conv", 0, 1)) == relu);
  CHECK(root(input_config(g, "Add", 1)) == relu);
  CHECK(root(relu) == relu);
  CHECK(root(input_config(g, "Add", 0)) == output_config(g, "Conv", 1));
  CHECK(root(output_config(g, "Conv", 1)) == output_config(g, "Conv", 1));  // Add is no activation
  CHECK(root(input_config(g, "GlobalAveragePool", 0)) == output_config(g, "Add"));
  CHECK(root(output_config(g, "Flatten")) == output_config(g, "GlobalAveragePool"));
  CHECK(root(input_config(g, "Gemm", 0)) == output_config(g, "GlobalAveragePool"));
  std::size_t initial = 0;
  g.for_each_config([&](config_id id) {
    initial += !g.is_parameter(id) && state_of(g, id) == quantization_state::initial ? 1U : 0U;
    const bool alone = root(id) == id;
    CHECK((state_of(g, id) == quantization_state::overlapped) == !alone);
  });
  CHECK(initial == 6);  // x, Relu, Conv, Add, GlobalAveragePool, Gemm

  // Each part alone.
  g = before;
  ppq::fusion_pass{true, false, false}(g, c);
  CHECK(root(output_config(g, "Conv", 0)) == output_config(g, "Relu"));
  CHECK(root(output_config(g, "MaxPool")) == output_config(g, "MaxPool"));
  CHECK(root(input_config(g, "Gemm", 0)) == input_config(g, "Gemm", 0));
  g = before;
  ppq::fusion_pass{false, true, false}(g, c);
  CHECK(root(output_config(g, "Conv", 0)) == output_config(g, "Conv", 0));
  CHECK(root(output_config(g, "MaxPool")) == input_config(g, "MaxPool", 0));
  g = before;
  ppq::fusion_pass{false, false, true}(g, c);
  CHECK(root(input_config(g, "MaxPool", 0)) == output_config(g, "Relu"));
  CHECK(root(output_config(g, "MaxPool")) == output_config(g, "MaxPool"));

  // An activation is not fused if the layer has another user, or gives a result of the network.
  model_builder b;
  b.input("x", {2, 3});
  b.constant("w", random_floats(r, {3, 3}, -1.0F, 1.0F));
  const std::string first = b.add("Gemm", {"x", "w"});
  b.output(first);
  b.output(b.add("Relu", {first}));
  const std::string second = b.add("Gemm", {"x", "w"});
  const std::string tanh = b.add("Tanh", {second});
  b.output(b.add("Mul", {second, tanh}));
  g = ppq::make_quantized_graph(b.get(), ppq::find_platform("tensorrt"));
  ppq::fusion_pass()(g, c);
  CHECK_FALSE(g.configs.is_dominated(output_config(g, "Gemm", 0)));
  CHECK_FALSE(g.configs.is_dominated(output_config(g, "Gemm", 1)));
  CHECK(root(input_config(g, "Mul", 0)) == output_config(g, "Gemm", 1));
  // Two users of a graph input share; other settings don't.
  CHECK(root(input_config(g, "Gemm", 0, 1)) == input_config(g, "Gemm", 0, 0));
  g = ppq::make_quantized_graph(b.get(), ppq::find_platform("tensorrt"));
  g.configs.settings(input_config(g, "Gemm", 0, 1)).bits = 7;
  ppq::fusion_pass()(g, c);
  CHECK_FALSE(g.configs.is_dominated(input_config(g, "Gemm", 0, 1)));
}

// ------------------------------------------------------------------------------------ calibration

namespace {

/// What an observer that a user brings was told.
struct told {
  std::size_t made = 0;
  std::vector<std::size_t> batches{0, 0};
  std::size_t second_phases = 0;
};

/// Scale: the largest magnitude of the first phase over the number of batches of the second.
class two_phase_observer {
 public:
  explicit two_phase_observer(std::shared_ptr<told> log) : log_(std::move(log)) { ++log_->made; }
  [[nodiscard]] static std::size_t phases() { return 2; }
  void begin_phase(std::size_t phase) {
    phase_ = phase;
    log_->second_phases += phase;
  }
  void observe(std::span<const float> x) {
    ++log_->batches[phase_];
    ++batches_[phase_];
    for (const float v : x) {
      largest_ = (std::max)(largest_, std::fabs(v));
    }
  }
  [[nodiscard]] detent::quant_params finalize(detent::quant_scheme) const {
    return {largest_ / static_cast<float>(batches_[1]), 0};
  }

 private:
  std::shared_ptr<told> log_;
  std::size_t phase_ = 0;
  std::size_t batches_[2] = {0, 0};
  float largest_ = 0.0F;
};

/// The range of every value of the float network over the first n runs, wrapping around.
std::map<std::string, std::pair<float, float>> ranges(const graph::model& m,
                                                      const std::vector<tensors>& samples,
                                                      std::size_t n) {
  std::map<std::string, std::pair<float, float>> all;
  graph::executor e(m);
  for (std::size_t i = 0; i < n; ++i) {
    static_cast<void>(
        e.run(samples[i % samples.size()], [&](const std::string& name, const tensor& value) {
          if (value.type() != element_type::f32) {
            return;
          }
          auto& range =
              all.try_emplace(name, value.data<float>()[0], value.data<float>()[0]).first->second;
          for (const float v : value.data<float>()) {
            range = {(std::min)(range.first, v), (std::max)(range.second, v)};
          }
        }));
  }
  return all;
}

}  // namespace

TEST_CASE("ppq: calibration takes INITIAL activations only, and counts runs") {
  test::random_source r(21);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  const auto source = random_source_of(r, residual_input, 11);
  source->samples[10] = {{"x", random_floats(r, residual_input, -9.0F, 9.0F)}};
  for (const std::size_t steps : {std::size_t{8}, std::size_t{25}}) {
    for (const bool parity : {false, true}) {
      INFO("steps ", steps, parity ? " parity" : "");
      quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
      const auto expected = ranges(g.network, source->samples, steps);
      ppq::pass_context c{source_of(source), {}};
      ppq::fusion_pass()(g, c);
      const config_id fixed = output_config(g, "Add");
      g.configs.set_parameters(fixed, one(0.375F));
      g.configs.transition(fixed, quantization_state::activated);
      const config_id off = output_config(g, "GlobalAveragePool");
      g.configs.dequantize(off);
      ppq::runtime_calibration_pass pass{.calib_steps = steps};
      if (parity) {
        pass.parity = detent::parity::as_published;
      }
      source->drawn = source->ends = 0;
      pass(g, c);
      // One pass over the data for all; then it stands at its beginning again.
      CHECK(source->next == 0);
      CHECK(source->drawn == (steps == 8 ? 11 : 33));
      CHECK(source->ends == (steps == 8 ? 1 : 3));
      std::size_t calibrated = 0;
      g.for_each_config([&](config_id id) {
        const auto& config = g.configs[id];
        INFO(config.name);
        if (g.is_parameter(id)) {
          CHECK((config.state() == quantization_state::initial ||
                 config.state() == quantization_state::fp32));
          CHECK(g.configs.parameters(id).empty());
        } else if (id == fixed) {
          CHECK(g.configs.parameters(id) == one(0.375F));
        } else if (id == off) {
          CHECK(config.enabled_state() == quantization_state::initial);
          CHECK(g.configs.parameters(id).empty());
        } else if (g.configs.is_dominated(id)) {
          CHECK(config.state() == quantization_state::overlapped);
        } else {
          ++calibrated;
          CHECK(config.state() == quantization_state::activated);
          const auto [lower, upper] = expected.at(config.variable);
          const double magnitude =
              static_cast<double>((std::max)(std::fabs(lower), std::fabs(upper)));
          const double scale = static_cast<double>(g.configs.parameters(id).scales[0]);
          if (parity) {
            CHECK(g.configs.parameters(id).scales[0] ==
                  static_cast<float>(2.0 * magnitude / 255.0));
          } else {  // the largest value is on the grid, and hardly more
            CHECK(scale * 127.0 >= magnitude);
            CHECK(scale * 127.0 <= magnitude * (1.0 + 1e-6));
          }
          CHECK(g.configs.parameters(id).zero_points[0] == 0);
        }
      });
      CHECK(calibrated == 4);

      // Once more: there is nothing INITIAL left, nothing is drawn.
      source->drawn = 0;
      pass(g, c);
      CHECK(source->drawn == 0);
      // Override: what is ACTIVATED and its own root, but not what is switched off or constant.
      ppq::parameter_quantization_pass()(g, c);
      const ppq::tensor_parameters weights = g.configs.parameters(input_config(g, "Conv", 1));
      pass.override = true;
      pass(g, c);
      CHECK(source->drawn == (steps == 8 ? 11 : 33));
      const auto [lower, upper] = expected.at(g.configs[fixed].variable);
      CHECK(g.configs.parameters(fixed) != one(0.375F));
      CHECK(static_cast<double>(g.configs.parameters(fixed).scales[0]) * 127.5 >=
            0.999 * static_cast<double>((std::max)(-lower, upper)));
      CHECK(g.configs.parameters(off).empty());
      CHECK(state_of(g, off) == quantization_state::fp32);
      CHECK(g.configs.parameters(input_config(g, "Conv", 1)) == weights);
      CHECK(state_of(g, input_config(g, "Relu", 0)) == quantization_state::overlapped);
    }
  }
}

TEST_CASE("ppq: an observer of the user's own is found in any case and gets its second phase") {
  test::random_source r(22);
  INFO("seed ", r.seed());
  const auto log = std::make_shared<told>();
  detent::observer_registry observers = detent::default_observers();
  observers.add("Users.TwoPhase", [log](const detent::observer_options&) {
    return detent::any_observer(two_phase_observer(log));
  });
  const graph::model m = residual_network(r);
  const auto source = random_source_of(r, residual_input, 9);
  for (const bool parity : {false, true}) {
    *log = told();
    quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
    const auto expected = ranges(g.network, source->samples, 12);
    ppq::pass_context c{source_of(source), {}};
    ppq::fusion_pass()(g, c);
    ppq::runtime_calibration_pass pass{
        .method = "USERS.twophase", .calib_steps = 12, .observers = observers};
    if (parity) {
      pass.parity = detent::parity::fixed;
    }
    source->drawn = 0;
    pass(g, c);
    CHECK(source->drawn == 2 * 18);
    CHECK(log->made == 6);
    CHECK(log->second_phases == 6);
    CHECK(log->batches == std::vector<std::size_t>{6 * 12, 6 * 12});
    for (const config_id id : {input_config(g, "Conv", 0), output_config(g, "Gemm")}) {
      const auto [lower, upper] = expected.at(g.configs[id].variable);
      CHECK(g.configs.parameters(id) == one((std::max)(-lower, upper) / 12.0F));
      CHECK(g.configs[id].observer == "USERS.twophase");
    }
  }
}

TEST_CASE("ppq: methods, parity, and what becomes of the scales") {
  CHECK(ppq::observer_name("MinMax", {}) == "minmax");
  CHECK(ppq::observer_name("PPQ.KL", {}) == "ppq.kl");
  for (const char* method : {"minmax", "KL", "percentile", "mse", "Isotone", "constant"}) {
    CHECK(ppq::observer_name(method, detent::parity::as_published) ==
          "ppq." + detent::detail::lower_case(method));
  }
  CHECK(ppq::observer_name("octav", detent::parity::fixed) == "octav");

  test::random_source r(23);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  const auto source = random_source_of(r, residual_input, 8);
  for (const char* name : {"tensorrt", "snpe"}) {
    for (const char* method : {"MINMAX", "Percentile", "kl", "MSE", "constant", "moving_average"}) {
      for (const bool parity : {false, true}) {
        const std::string key(method);
        INFO(name, " ", method, parity ? " parity" : "");
        quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform(name));
        ppq::pass_context c{source_of(source), {}};
        ppq::runtime_calibration_pass pass{.method = method, .calib_steps = 8};
        if (parity) {
          pass.parity = detent::parity::as_published;
        }
        if (parity && key == "kl" && std::string(name) == "snpe") {
          check_graph_error(error_kind::unsupported, {"Conv node 'Conv_0'", "asymmetric"},
                            [&] { pass(g, c); });
          continue;
        }
        pass(g, c);
        const config_id x = input_config(g, "Conv", 0);
        const auto& p = g.configs.parameters(x);
        if (key == "constant") {
          CHECK(p == one(1.0F));
        } else {
          CHECK(p.scales[0] > 0.001F);
          CHECK(p.scales[0] < 0.01F);
        }
      }
    }
  }
  // PPQ's percentile is the mean over batches of order statistics, by its own rule of 1A.4.
  quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform("snpe"));
  ppq::pass_context c{source_of(source), {}};
  const config_id x = input_config(g, "Conv", 0);
  g.configs.settings(x).overrides.percentile = 0.9;
  ppq::runtime_calibration_pass{.calib_steps = 8, .parity = detent::parity::as_published}(g, c);
  double lower = 0.0;
  double upper = 0.0;
  for (const tensors& sample : source->samples) {
    std::vector<float> v = values_of<float>(sample.at("x"));
    std::sort(v.begin(), v.end());
    const auto n = static_cast<double>(v.size());
    lower += static_cast<double>(v[static_cast<std::size_t>(n * (1.0 - 0.9))]) / 8.0;
    upper += static_cast<double>(v[static_cast<std::size_t>(n * 0.9)]) / 8.0;
  }
  const double scale = (upper - lower) / 255.0;
  CHECK(g.configs.parameters(x).scales[0] == near(scale, 1e-6));
  CHECK(g.configs.parameters(x).zero_points[0] ==
        static_cast<std::int32_t>(std::nearbyint(-lower / scale)));

  // Isotone is for what is ranked.
  model_builder b;
  b.input("x", {4, 6});
  b.constant("w", random_floats(r, {6, 5}, -1.0F, 1.0F));
  b.constant("v", random_floats(r, {5, 5}, -1.0F, 1.0F));
  const std::string first = b.add("Gemm", {"x", "w"});
  const std::string second = b.add("Gemm", {first, "v"});
  b.output(b.add("Softmax", {second}, {{"axis", number(0)}}));
  g = ppq::make_quantized_graph(b.get(), ppq::find_platform("snpe"));
  auto rows = random_source_of(r, {4, 6}, 8);
  c.samples = source_of(rows);
  for (const bool parity : {false, true}) {
    ppq::runtime_calibration_pass pass{.method = "ISOTONE", .override = true, .calib_steps = 8};
    if (parity) {
      pass.parity = detent::parity::fixed;
    }
    pass(g, c);
    CHECK(g.configs[output_config(g, "Gemm", 0)].observer == "minmax");
    CHECK(g.configs[output_config(g, "Gemm", 1)].observer == "ISOTONE");
    CHECK(g.configs[output_config(g, "Softmax")].observer == "ISOTONE");
    CHECK(g.configs[output_config(g, "Softmax")].overrides.isotone_axis == 0);
    CHECK(g.configs[output_config(g, "Gemm", 0)].overrides.isotone_axis == -1);
  }
  // Columns are the rows: the same scale as of the transposed tensor along its last axis.
  ppq::quantizer_settings s = settings("t");
  s.observer = "isotone";
  const tensor t = random_floats(r, {4, 6}, -1.0F, 1.0F);
  tensor transposed = tensor::allocate(element_type::f32, {6, 4});
  for (std::size_t i = 0; i < 24; ++i) {
    transposed.mutable_data<float>()[i] = t.data<float>()[i % 4 * 6 + i / 4];
  }
  for (const bool parity : {false, true}) {
    const ppq::ppq_parity p = parity ? ppq::ppq_parity(detent::parity::fixed) : ppq::ppq_parity();
    ppq::config_observer along_last(s, p);
    along_last.observe(transposed);
    ppq::quantizer_settings first_axis = s;
    first_axis.overrides.isotone_axis = 0;
    ppq::config_observer along_first(first_axis, p);
    along_first.observe(t);
    CHECK(along_first.finalize() == along_last.finalize());
  }

  // Powers of two, and zero points that PPQ leaves outside of the grid.
  s.observer = "minmax";
  s.policy = ppq::quantization_policy(0x65);
  s.levels = {-128, 127};
  const tensor range = floats({2}, {-1.0F, 3.0F});
  ppq::config_observer power(s, {});
  power.observe(range);
  const auto p = power.finalize();
  CHECK(p.scales[0] == 1.0F / 32.0F);  // 4 / 255 is above 1 / 64
  CHECK(p.zero_points[0] == -128 + 32);
  s.policy = ppq::quantization_policy(0x25);
  ppq::config_observer published(s, detent::parity::as_published);
  published.observe(range);
  CHECK(published.finalize().zero_points[0] == 64);
  ppq::config_observer fixed(s, detent::parity::fixed);
  fixed.observe(range);
  CHECK(fixed.finalize().zero_points[0] == -64);
}

TEST_CASE("ppq: bad input of calibration, and that it changes nothing") {
  test::random_source r(24);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  const auto source = random_source_of(r, residual_input, 9);
  quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
  ppq::pass_context c{source_of(source), {}};
  ppq::runtime_calibration_pass{.calib_steps = 8}(g, c);
  const config_id x = input_config(g, "Conv", 0);
  const ppq::tensor_parameters before = g.configs.parameters(x);
  const auto rejected = [&](const ppq::runtime_calibration_pass& pass,
                            const graph::calibration_source& samples,
                            std::initializer_list<std::string_view> words) {
    ppq::pass_context context{samples, {}};
    check_graph_error(error_kind::invalid_argument, words, [&] { pass(g, context); });
    CHECK(state_of(g, x) == quantization_state::activated);
    CHECK(g.configs.parameters(x) == before);
    CHECK(g.configs[x].observer == "minmax");
  };
  source->drawn = 0;
  rejected({.override = true, .calib_steps = 7}, source_of(source), {"calib_steps 7", "8..512"});
  rejected({.override = true, .calib_steps = 513}, source_of(source), {"calib_steps 513"});
  rejected({.method = "crystal ball", .override = true}, source_of(source),
           {"no observer 'crystal ball'", "minmax", "percentile", "ppq.kl"});
  CHECK(source->drawn == 0);
  rejected({.override = true}, {}, {"no calibration samples"});
  rejected({.override = true}, source_of(std::make_shared<counting_source>()),
           {"no calibration samples"});
  std::size_t given = 0;  // gives three samples and no more
  rejected({.override = true},
           [&]() -> std::optional<tensors> {
             return given++ < 3 ? std::optional<tensors>(source->samples[0]) : std::nullopt;
           },
           {"ended after 3 samples", "did not begin anew"});
  auto bad = random_source_of(r, residual_input, 9);
  bad->samples[4]["x"].mutable_data<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  rejected({.override = true}, source_of(bad), {"Conv node 'Conv_0', input 0 'x'", "run 5"});
  bad->next = 0;
  bad->samples[4]["x"].mutable_data<float>()[7] = std::numeric_limits<float>::infinity();
  rejected({.override = true}, source_of(bad), {"Conv node 'Conv_0', input 0 'x'", "run 5"});

  // Policies without a scale to find, and channels with observers that know none.
  g.configs.settings(x).policy = ppq::quantization_policy(0x59);
  check_graph_error(error_kind::unsupported, {"Conv node 'Conv_0', input 0 'x'", "FLOATING"},
                    [&] { ppq::runtime_calibration_pass{.override = true}(g, c); });
  g.configs.settings(x).policy = ppq::quantization_policy(0x16);
  g.configs.settings(x).channel_axis = 1;
  g.configs.settings(x).observer = "percentile";
  check_graph_error(error_kind::unsupported, {"Conv node 'Conv_0', input 0 'x'", "channels"}, [&] {
    ppq::runtime_calibration_pass{.override = true, .parity = detent::parity::fixed}(g, c);
  });
  // The library's own do know them.
  source->next = 0;
  ppq::runtime_calibration_pass{.override = true, .calib_steps = 8}(g, c);
  CHECK(g.configs.parameters(x).scales.size() == 3);

  // A pipeline says which pass failed.
  quantized_graph fresh = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
  ppq::pipeline passes = ppq::default_pipeline({.calibration = {.calib_steps = 3}});
  check_graph_error(error_kind::invalid_argument, {"pass 'runtime calibration'", "calib_steps 3"},
                    [&] { ppq::run_pipeline(fresh, passes, c); });
  // A pass of the user's own sees what those before it have left, and those behind it see its work.
  passes = ppq::default_pipeline({.calibration = {.calib_steps = 8}});
  std::vector<std::string> names;
  for (const ppq::quantization_pass& pass : passes) {
    names.push_back(pass.name);
  }
  CHECK(names == std::vector<std::string>{"fusion", "parameter quantization", "runtime calibration",
                                          "alignment", "passive parameters", "baking"});
  passes.insert(passes.begin() + 2, {"mine", [](quantized_graph& graph, ppq::pass_context&) {
                                       const config_id own = input_config(graph, "Conv", 0);
                                       CHECK(state_of(graph, own) == quantization_state::initial);
                                       CHECK(state_of(graph, input_config(graph, "Conv", 1)) ==
                                             quantization_state::activated);
                                       graph.configs.settings(own).observer = "constant";
                                     }});
  ppq::run_pipeline(fresh, passes, c);
  CHECK(fresh.configs.parameters(input_config(fresh, "Conv", 0)) == one(1.0F));
  CHECK(state_of(fresh, input_config(fresh, "Conv", 1)) == quantization_state::baked);
  passes[0].run = nullptr;
  check_graph_error(error_kind::invalid_argument, {"pass 'fusion'", "no function"},
                    [&] { ppq::run_pipeline(fresh, passes, c); });
}

// ---------------------------------------------------------------------- passive, aligned and baked

TEST_CASE("ppq: biases take the scales of input and weights") {
  test::random_source r(31);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  const auto source = random_source_of(r, residual_input, 8);
  for (const char* name : {"ppl_cuda", "snpe", "nxp"}) {
    INFO(name);
    quantized_graph g = run_all(m, minmax_platform(name), source_of(source), {.bake = false});
    const auto check = [&] {
      for (const auto& entry :
           {std::pair<std::string, std::size_t>("Conv", 0), {"Conv", 1}, {"Gemm", 0}}) {
        const auto& op = entry.first;  // clang 14 cannot capture structured bindings
        const auto& which = entry.second;
        INFO(op, " ", which);
        const config_id bias = input_config(g, op, 2, which);
        CHECK(state_of(g, bias) == quantization_state::passive);
        const float x = g.configs.parameters(input_config(g, op, 0, which)).scales.at(0);
        const auto& w = g.configs.parameters(input_config(g, op, 1, which)).scales;
        std::vector<float> expected;
        for (const float s : w) {
          expected.push_back(x * s);
        }
        CHECK(g.configs.parameters(bias).scales == expected);
        CHECK(g.configs.parameters(bias).zero_points ==
              std::vector<std::int32_t>(expected.size(), 0));
        CHECK(w.size() == (std::string(name) == "snpe" ? 1 : op == "Gemm" ? 5 : 4));
      }
    };
    check();
    // Once more after a scale has changed.
    const config_id relu = g.configs.source(input_config(g, "Conv", 0, 1));
    g.configs.set_parameters(relu, one(0.75F));
    ppq::pass_context c;
    ppq::passive_parameter_pass()(g, c);
    check();
  }
  // A bias that stays float is left alone.
  const quantized_graph plain =
      run_all(m, minmax_platform("tensorrt"), source_of(source), {.bake = false});
  CHECK(state_of(plain, input_config(plain, "Conv", 2)) == quantization_state::fp32);

  // Without a calibrated input there is no scale.
  quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("ppl_cuda"));
  ppq::pass_context c{source_of(source), {}};
  ppq::pipeline passes = ppq::default_pipeline();
  passes.erase(passes.begin() + 2);
  check_graph_error(error_kind::invalid_argument,
                    {"pass 'passive parameters'", "Conv node 'Conv_0', input 2 'b1'",
                     "Conv node 'Conv_0', input 0 'x'", "not quantized"},
                    [&] { ppq::run_pipeline(g, passes, c); });
  g = run_all(m, minmax_platform("ppl_cuda"), source_of(source), {.bake = false});
  g.configs.dequantize(g.configs.root(input_config(g, "Conv", 0, 1)));
  check_graph_error(error_kind::invalid_argument, {"Conv node 'Conv_3'", "not quantized"},
                    [&] { ppq::passive_parameter_pass()(g, c); });
}

TEST_CASE("ppq: groups of ConvTranspose share the scales of their weights") {
  test::random_source r(37);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 4, 3, 3});
  b.constant("w", random_floats(r, {4, 3, 2, 2}, -1.0F, 1.0F));
  b.constant("b", random_floats(r, {6}, -1.0F, 1.0F));
  b.output(b.add("ConvTranspose", {"x", "w", "b"}, {{"group", number(2)}}));
  const auto source = random_source_of(r, {1, 4, 3, 3}, 8);
  const quantized_graph g = run_all(b.get(), minmax_platform("ppl_cuda"), source_of(source));
  const auto& w = g.configs.parameters(input_config(g, "ConvTranspose", 1)).scales;
  const auto& bias = g.configs.parameters(input_config(g, "ConvTranspose", 2)).scales;
  const float x = g.configs.parameters(input_config(g, "ConvTranspose", 0)).scales[0];
  REQUIRE(w.size() == 3);
  CHECK(bias == std::vector<float>{x * w[0], x * w[1], x * w[2], x * w[0], x * w[1], x * w[2]});
  const tensor& weights = b.get().initializers.at("w");
  for (std::size_t channel = 0; channel < 3; ++channel) {
    float largest = 0.0F;
    for (std::size_t i = 0; i < weights.count(); ++i) {
      largest =
          i / 4 % 3 == channel ? (std::max)(largest, std::fabs(weights.data<float>()[i])) : largest;
    }
    CHECK(w[channel] == near(largest / 127.0F, 1e-6));
  }
  CHECK(ppq::measure_error(outputs_of(ppq::to_qdq(g), source->samples[0])[0],
                           outputs_of(g.float_model, source->samples[0])[0],
                           ppq::error_method::snr) < 1e-3);
}

TEST_CASE("ppq: biases that would saturate") {
  test::random_source r(32);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3});
  // Output channels: zeros, tiny weights, ordinary ones, zeros without a bias.
  b.constant("w", floats({3, 4}, {0, 1e-12F, 0.5F, 0, 0, -1e-12F, 0.25F, 0, 0, 1e-12F, -1.0F, 0}));
  b.constant("b", floats({4}, {2.0F, 3.0F, 0.5F, 0.0F}));
  b.output(b.add("Gemm", {"x", "w", "b"}));
  const auto source = random_source_of(r, {2, 3}, 8);
  for (const char* name : {"ppl_cuda", "nxp", "snpe"}) {
    INFO(name);
    const quantized_graph g = run_all(b.get(), minmax_platform(name), source_of(source));
    const config_id bias = input_config(g, "Gemm", 2);
    const auto& scales = g.configs.parameters(bias).scales;
    const double limit = std::string(name) == "snpe" ? 536870911.0 : 1073741824.0;
    const float* values = b.get().initializers.at("b").data<float>().data();
    for (std::size_t i = 0; i < 4; ++i) {
      const double steps =
          static_cast<double>(values[i]) / static_cast<double>(scales[scales.size() == 1 ? 0 : i]);
      CHECK(std::fabs(steps) <= limit + 1.0);
    }
    if (std::string(name) == "ppl_cuda") {
      CHECK(2.0 / static_cast<double>(scales[0]) == near(1048576.0, 1e-6));
    }
    const std::vector<tensor> y =
        outputs_of(ppq::to_qdq(g), {{"x", floats({2, 3}, {0, 0, 0, 0, 0, 0})}});
    const double step =
        static_cast<double>(g.configs.parameters(output_config(g, "Gemm")).scales[0]);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(std::fabs(static_cast<double>(y[0].data<float>()[i]) -
                      static_cast<double>(values[i])) <= 0.51 * step);
    }
  }
  // PPQ lets them saturate.
  ppq::pipeline_options parity = ppq::parity_options(detent::parity::as_published);
  const quantized_graph g =
      run_all(b.get(), minmax_platform("ppl_cuda"), source_of(source), parity);
  CHECK(g.configs.parameters(input_config(g, "Gemm", 1)).scales[0] == 1e-8F);
  CHECK(g.network.initializers.at("b").data<float>()[0] < 1.0F);

  model_builder bad;
  bad.input("x", {2, 3});
  bad.constant("w", random_floats(r, {3, 2}, -1.0F, 1.0F));
  bad.constant("b", floats({2}, {1.0F, std::numeric_limits<float>::infinity()}));
  bad.output(bad.add(
      "Relu", {bad.add("Clip", {bad.add("Gemm", {"x", "w", "b"}), "", bad.scalar("hi", 9.0F)})}));
  check_graph_error(error_kind::invalid_argument, {"pass 'passive parameters'", "'b'", "inf"}, [&] {
    static_cast<void>(run_all(bad.get(), minmax_platform("ppl_cuda"), source_of(source)));
  });
}

TEST_CASE("ppq: bounds of Clip and the value of Pad follow the input") {
  test::random_source r(33);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3});
  b.constant("w", random_floats(r, {3, 4}, -1.0F, 1.0F));
  const std::string clipped = b.add(
      "Clip", {b.add("Gemm", {"x", "w"}), b.scalar("low", -0.3137F), b.scalar("high", 0.4142F)});
  b.output(b.add("Pad", {clipped, b.constant("pads", {0, 1, 0, 0}), b.scalar("value", 0.1234F)}));
  const auto source = random_source_of(r, {2, 3}, 8);
  for (const char* name : {"tensorrt", "snpe", "ncnn"}) {
    INFO(name);
    const quantized_graph g =
        run_all(b.get(), minmax_platform(name), source_of(source), {.bake = false});
    const quantized_graph baked = run_all(b.get(), minmax_platform(name), source_of(source));
    for (const auto& entry :
         {std::pair<const char*, std::size_t>("Clip", 1), {"Clip", 2}, {"Pad", 2}}) {
      const auto& op = entry.first;  // clang 14 cannot capture structured bindings
      const auto& slot = entry.second;
      INFO(op, " ", slot);
      const config_id id = input_config(g, op, slot);
      CHECK(state_of(g, id) == quantization_state::passive);
      CHECK(g.configs.source(id) == output_config(g, "Clip"));
      const ppq::tensor_parameters p = g.configs.parameters(output_config(g, "Clip"));
      CHECK(g.configs.parameters(id) == p);
      CHECK_FALSE(g.configs.is_exportable(id, true));
      CHECK(state_of(baked, id) == quantization_state::passive_baked);
      const std::string& value = g.configs[id].variable;
      const auto& c = g.configs[id];
      CHECK(static_cast<double>(baked.network.initializers.at(value).data<float>()[0]) ==
            near(fake(static_cast<double>(g.network.initializers.at(value).data<float>()[0]),
                      static_cast<double>(p.scales[0]), p.zero_points[0], c.levels.qmin,
                      c.levels.qmax, c.rounding),
                 1e-6));
    }
    CHECK(count(ppq::to_qdq(g), "QuantizeLinear") == 2);  // x and what comes out of Clip
  }
}

namespace {

/// a = x w1, b = x w2 with another range; with what is given to `finish` as their names.
template <class Finish>
graph::model two_branches(test::random_source& r, const Finish& finish) {
  model_builder b;
  b.input("x", {1, 2, 4, 4});
  b.constant("w1", random_floats(r, {2, 2, 1, 1}, -0.5F, 0.5F));
  b.constant("w2", random_floats(r, {2, 2, 1, 1}, -2.0F, 2.0F));
  const std::string first = b.add("Conv", {"x", "w1"});
  finish(b, first, b.add("Conv", {"x", "w2"}));
  return b.get();
}

}  // namespace

TEST_CASE("ppq: elementwise operators are aligned to the union of their ranges") {
  test::random_source r(34);
  INFO("seed ", r.seed());
  const graph::model m = two_branches(r, [](model_builder& b, const auto& x, const auto& y) {
    const std::string sum = b.add("Add", {x, y});
    b.output(b.add("Sub", {sum, y}));
  });
  const auto source = random_source_of(r, {1, 2, 4, 4}, 8);
  for (const char* name : {"tensorrt", "snpe"}) {
    for (const bool parity : {false, true}) {
      INFO(name, parity ? " parity" : "");
      ppq::pipeline_options options;
      if (parity) {
        options = ppq::parity_options(detent::parity::as_published);
      }
      options.alignment.elementwise = ppq::alignment_method::none;
      const quantized_graph apart = run_all(m, minmax_platform(name), source_of(source), options);
      // By hand, for Add: inputs are the outputs of both layers.
      const auto& a = apart.configs.parameters(output_config(apart, "Conv", 0));
      const auto& b = apart.configs.parameters(output_config(apart, "Conv", 1));
      CHECK(a.scales != b.scales);
      const double qmin = std::string(name) == "snpe" ? 0.0 : -128.0;
      const double qmax = std::string(name) == "snpe" ? 255.0 : 127.0;
      double lower = 0.0;
      double upper = 0.0;
      for (const auto* p : {&a, &b}) {
        const auto s = static_cast<double>(p->scales[0]);
        lower = (std::min)(lower, s * (qmin - p->zero_points[0]));
        upper = (std::max)(upper, s * (qmax - p->zero_points[0]));
      }
      double scale = (upper - lower) / 255.0;
      if (qmin < 0.0) {
        scale = parity ? 2.0 * (std::max)(-lower, upper) / 255.0
                       : static_cast<double>((std::max)(a.scales[0], b.scales[0]));
      }
      options.alignment.elementwise = ppq::alignment_method::to_large;
      quantized_graph g = ppq::make_quantized_graph(m, minmax_platform(name));
      ppq::pipeline passes = ppq::default_pipeline(options);
      ppq::pass_context c{source_of(source), {}};
      // Sub is out of the way at first.
      const std::size_t sub = index_of(g, "Sub");
      const ppq::operator_configs removed = std::exchange(g.operators[sub], {});
      ppq::run_pipeline(g, passes, c);
      const config_id left = g.configs.source(input_config(g, "Add", 0));
      const config_id right = g.configs.root(input_config(g, "Add", 1));
      CHECK(state_of(g, left) == quantization_state::activated);
      CHECK(state_of(g, right) == quantization_state::passive);
      CHECK(g.configs.source(right) == left);
      CHECK(static_cast<double>(g.configs.parameters(left).scales[0]) == near(scale, 1e-6));
      CHECK(g.configs.parameters(left).zero_points[0] ==
            (qmin < 0.0 ? 0 : static_cast<std::int32_t>(std::nearbyint(-lower / scale))));
      CHECK(g.configs.parameters(output_config(g, "Add")) !=
            g.configs.parameters(left));  // not the output

      // Both, one behind the other: the second input of Sub is one of Add's.
      g = run_all(m, minmax_platform(name), source_of(source), options);
      for (const config_id id : {input_config(g, "Add", 0), input_config(g, "Add", 1),
                                 input_config(g, "Sub", 0), input_config(g, "Sub", 1)}) {
        CHECK(g.configs.parameters(id) == g.configs.parameters(input_config(g, "Sub", 0)));
      }
      CHECK(outputs_of(ppq::to_qdq(g), source->samples[0]).size() == 1);
    }
  }
  // A constant keeps its own parameters.
  model_builder b;
  b.input("x", {2, 3});
  b.constant("w", random_floats(r, {3, 3}, -1.0F, 1.0F));
  b.constant("offset", random_floats(r, {2, 3}, -9.0F, 9.0F));
  b.output(b.add("Add", {b.add("Gemm", {"x", "w"}), "offset"}));
  const auto rows = random_source_of(r, {2, 3}, 8);
  const quantized_graph g =
      run_all(b.get(), minmax_platform("tensorrt"), source_of(rows), {.bake = false});
  const config_id offset = input_config(g, "Add", 1);
  CHECK(state_of(g, offset) == quantization_state::activated);
  CHECK(g.configs.parameters(offset) != g.configs.parameters(input_config(g, "Add", 0)));
}

TEST_CASE("ppq: an addend that is always 0 has no part in the union of ranges") {
  test::random_source r(37);
  INFO("seed ", r.seed());
  const graph::model m = two_branches(r, [](model_builder& b, const auto& x, const auto& y) {
    b.constant("low", floats({}, {-1000.0F}));
    const std::string dead = b.add("Relu", {b.add("Add", {y, "low"})});
    b.output(b.add("Sub", {x, dead}));
  });
  const auto source = random_source_of(r, {1, 2, 4, 4}, 8);
  for (const char* name : {"tensorrt", "snpe"}) {
    INFO(name);
    const quantized_graph g = run_all(m, minmax_platform(name), source_of(source), {});
    const ppq::tensor_parameters& first = g.configs.parameters(input_config(g, "Sub", 0));
    // Without the other addend: its conventional scale of 1 would cost six bits of these values.
    ppq::pipeline_options options;
    options.alignment.elementwise = ppq::alignment_method::none;
    const quantized_graph apart = run_all(m, minmax_platform(name), source_of(source), options);
    CHECK(first.scales[0] < 0.1F);
    CHECK(first.scales == apart.configs.parameters(input_config(apart, "Sub", 0)).scales);
    CHECK(g.configs.parameters(input_config(g, "Sub", 1)).scales == first.scales);
    CHECK_FALSE(first.of_zeros);
  }
  // The mark stays where all addends are 0.
  const graph::model zeros = two_branches(r, [](model_builder& b, const auto& x, const auto& y) {
    b.constant("low", floats({}, {-1000.0F}));
    const std::string one = b.add("Relu", {b.add("Add", {x, "low"})});
    const std::string other = b.add("Relu", {b.add("Add", {y, "low"})});
    b.output(b.add("Sub", {one, other}));
  });
  const quantized_graph g = run_all(zeros, minmax_platform("tensorrt"), source_of(source), {});
  CHECK(g.configs.parameters(input_config(g, "Sub", 0)).of_zeros);
}

TEST_CASE("ppq: Concat, pools and Resize are aligned") {
  test::random_source r(35);
  INFO("seed ", r.seed());
  const graph::model m = two_branches(r, [](model_builder& b, const auto& x, const auto& y) {
    const attributes window{{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}};
    const std::string all = b.add(
        "Concat", {b.add("MaxPool", {b.add("Relu", {x})}, window), b.add("MaxPool", {y}, window)},
        {{"axis", number(1)}});
    b.output(b.add("GlobalAveragePool", {all}));
    b.output(b.add("Sigmoid", {y}));  // y is needed elsewhere
  });
  const auto source = random_source_of(r, {1, 2, 4, 4}, 8);
  const ppq::platform p = minmax_platform("tensorrt");
  quantized_graph g = run_all(m, p, source_of(source));
  const config_id out = output_config(g, "Concat");
  CHECK(state_of(g, out) == quantization_state::activated);
  CHECK(g.configs.root(output_config(g, "Relu")) == out);
  CHECK(g.configs.root(output_config(g, "Conv", 0)) == out);
  CHECK(state_of(g, output_config(g, "Conv", 1)) == quantization_state::passive);
  CHECK(g.configs.source(output_config(g, "Conv", 1)) == out);
  CHECK(g.configs.parameters(input_config(g, "Concat", 0)) == g.configs.parameters(out));
  CHECK(g.configs.parameters(input_config(g, "Concat", 1)) == g.configs.parameters(out));
  // One pair fewer, and the values behind Concat are the same as with a pair before it.
  const graph::model written = ppq::to_qdq(g);
  CHECK(count(written, "QuantizeLinear") == 5);  // x, y, Concat, GlobalAveragePool, Sigmoid
  const graph::model all_pairs = ppq::to_qdq(g, {.overlapped = true});
  CHECK(count(all_pairs, "QuantizeLinear") > 5);
  for (const tensors& sample : source->samples) {
    CHECK(difference(outputs_of(written, sample)[0].data<float>(),
                     outputs_of(all_pairs, sample)[0].data<float>()) == "");
  }

  ppq::pipeline_options options;
  options.alignment.keep_inputs = true;
  const quantized_graph kept = run_all(m, p, source_of(source), options);
  CHECK(state_of(kept, output_config(kept, "Relu")) == quantization_state::passive);
  CHECK(kept.configs.parameters(output_config(kept, "Relu")) ==
        kept.configs.parameters(output_config(kept, "Concat")));
  const graph::model kept_pairs = ppq::to_qdq(kept, {.moved_values = true});
  for (const tensors& sample : source->samples) {
    CHECK(difference(outputs_of(written, sample)[0].data<float>(),
                     outputs_of(kept_pairs, sample)[0].data<float>()) == "");
  }
  const graph::model lowered = graph::for_execution(kept_pairs);
  CHECK(count(lowered, "Concat") == 0);
  CHECK(std::count_if(lowered.nodes.begin(), lowered.nodes.end(), [](const graph::node& n) {
          return n.domain == "detent" && n.op_type == "QLinearConcat";
        }) == 1);
  options = {};
  options.alignment.concat = ppq::alignment_method::none;
  options.alignment.average_pool = ppq::alignment_method::to_input;
  g = run_all(m, p, source_of(source), options);
  CHECK(g.configs.root(output_config(g, "Relu")) == output_config(g, "Relu"));
  const config_id average = output_config(g, "GlobalAveragePool");
  CHECK(state_of(g, average) == quantization_state::passive);
  CHECK(g.configs.parameters(average) == g.configs.parameters(output_config(g, "Concat")));
  options.alignment.average_pool = ppq::alignment_method::to_output;
  g = run_all(m, p, source_of(source), options);
  CHECK(g.configs.root(output_config(g, "Concat")) == output_config(g, "GlobalAveragePool"));

  const graph::model resized = two_branches(r, [](model_builder& b, const auto& x, const auto& y) {
    b.constant("scales", floats({4}, {1, 1, 2, 2}));
    const std::string large = b.add("Resize", {x, "", "scales"}, {{"mode", text("linear")}});
    b.output(large);
    b.output(y);
  });
  g = run_all(resized, p, source_of(source));
  CHECK(g.configs.root(output_config(g, "Conv", 0)) == output_config(g, "Resize"));
  CHECK(count(ppq::to_qdq(g), "QuantizeLinear") == 3);

  // Configurations that fusion has not joined.
  options = {};
  options.fusion = {false, false, false};
  for (const bool force : {true, false}) {
    options.alignment.force_overlap = force;
    g = run_all(resized, p, source_of(source), options);
    CHECK(g.configs.root(input_config(g, "Resize", 0)) == output_config(g, "Resize"));
    CHECK((state_of(g, output_config(g, "Conv", 0)) == quantization_state::overlapped) == force);
  }
}

TEST_CASE("ppq: what others rely on is not overlapped by force") {
  test::random_source r(38);
  INFO("seed ", r.seed());
  const graph::model m = two_branches(r, [](model_builder& b, const auto& x, const auto& y) {
    b.constant("scales", floats({4}, {1, 1, 2, 2}));
    b.output(b.add("Resize", {b.add("Relu", {x}), "", "scales"}, {{"mode", text("linear")}}));
    b.output(y);
  });
  const auto source = random_source_of(r, {1, 2, 4, 4}, 8);
  ppq::pipeline_options options;
  options.fusion.remove_useless = false;
  // The layer before Relu leaves quantization to it; Resize has an input of its own.
  const quantized_graph g = run_all(m, minmax_platform("tensorrt"), source_of(source), options);
  CHECK(g.configs.root(output_config(g, "Conv", 0)) == output_config(g, "Relu"));
  CHECK(state_of(g, output_config(g, "Relu")) == quantization_state::activated);
  CHECK(g.configs.root(input_config(g, "Resize", 0)) == output_config(g, "Resize"));
}

TEST_CASE("ppq: baking stores what quantization makes of constants") {
  test::random_source r(36);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3});
  b.constant("w", random_floats(r, {3, 3}, -1.0F, 1.0F));
  b.constant("b1", random_floats(r, {3}, -1.0F, 1.0F));
  const std::string first = b.add("Gemm", {"x", "w", "b1"});
  b.output(b.add("Gemm", {first, "w"}, {{"transB", number(1)}}));  // the same weights, other axis
  const auto source = random_source_of(r, {2, 3}, 8);
  for (const char* name : {"ppl_cuda", "ascend", "tensorrt"}) {
    INFO(name);
    const ppq::platform p = minmax_platform(name);
    const quantized_graph before = run_all(b.get(), p, source_of(source), {.bake = false});
    const quantized_graph g = run_all(b.get(), p, source_of(source));
    for (const auto& entry : {std::pair<std::size_t, std::size_t>(0, 1), {1, 1}, {0, 2}}) {
      const auto& which = entry.first;  // clang 14 cannot capture structured bindings
      const auto& slot = entry.second;
      INFO(which, " ", slot);
      const config_id id = input_config(g, "Gemm", slot, which);
      if (slot == 2 && p.bias_bits == 0) {
        CHECK(state_of(g, id) == quantization_state::fp32);
        CHECK(difference(g.network.initializers.at("b1").data<float>(),
                         b.get().initializers.at("b1").data<float>()) == "");
        continue;
      }
      CHECK(state_of(g, id) ==
            (slot == 2 ? quantization_state::passive_baked : quantization_state::baked));
      CHECK(g.network.nodes[index_of(g, "Gemm", which)].inputs[slot] == g.configs[id].variable);
      const auto& c = g.configs[id];
      const auto& q = g.configs.parameters(id);
      const tensor& from = b.get().initializers.at(slot == 2 ? "b1" : "w");
      std::vector<float> expected;
      for (std::size_t i = 0; i < from.count(); ++i) {
        const std::size_t channel = q.scales.size() == 1  ? 0
                                    : slot == 2           ? i
                                    : c.channel_axis == 1 ? i % 3
                                                          : i / 3;
        expected.push_back(static_cast<float>(
            fake(static_cast<double>(from.data<float>()[i]), static_cast<double>(q.scales[channel]),
                 q.zero_points[channel], static_cast<double>(c.levels.qmin),
                 static_cast<double>(c.levels.qmax), c.rounding)));
      }
      CHECK(difference(g.network.initializers.at(c.variable).data<float>(), expected) == "");
    }
    CHECK(g.configs[input_config(g, "Gemm", 1, 0)].variable !=
          g.configs[input_config(g, "Gemm", 1, 1)].variable);
    // Baked or not, the exported model computes the same.
    for (const tensors& sample : source->samples) {
      CHECK(difference(outputs_of(ppq::to_qdq(before), sample)[0].data<float>(),
                       outputs_of(ppq::to_qdq(g), sample)[0].data<float>()) == "");
    }
    // Nodes have names of their own, also where one constant has two pairs, and where the model
    // uses such a name.
    for (const quantized_graph* one : {&before, &g}) {
      quantized_graph named = *one;
      named.network.nodes[0].name = "x_QuantizeLinear";
      const graph::model written = ppq::to_qdq(named);
      std::set<std::string> names;
      for (const graph::node& n : written.nodes) {
        CHECK(names.insert(n.name).second);
      }
    }
    // Switched off, constants are what they were.
    quantized_graph off = g;
    g.for_each_config([&](config_id id) { off.configs.dequantize(id); });
    CHECK(difference(outputs_of(ppq::to_qdq(off), source->samples[0])[0].data<float>(),
                     outputs_of(g.float_model, source->samples[0])[0].data<float>()) == "");
    CHECK(count(ppq::to_qdq(off), "QuantizeLinear") == 0);
    CHECK(count(ppq::to_qdq(off), "DequantizeLinear") == 0);
  }
}

// ---------------------------------------------------------------------------- export and analysis

namespace {

/// rows x depth times depth x columns, plus bias; in double.
std::vector<double> product(const std::vector<double>& x, const std::vector<double>& w,
                            const std::vector<double>& bias) {
  const std::size_t columns = bias.size();
  const std::size_t depth = w.size() / columns;
  std::vector<double> y(x.size() / depth * columns);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = bias[i % columns];
    for (std::size_t k = 0; k < depth; ++k) {
      y[i] += x[i / columns * depth + k] * w[k * columns + i % columns];
    }
  }
  return y;
}
std::vector<double> relu(std::vector<double> x) {
  for (double& v : x) {
    v = (std::max)(v, 0.0);
  }
  return x;
}

/// What a configuration with one scale makes of values.
std::vector<double> quantized(std::vector<double> x, const quantized_graph& g, config_id id) {
  const ppq::tensor_parameters& p = g.configs.parameters(id);
  const auto& c = g.configs[id];
  REQUIRE(p.scales.size() == 1);
  for (double& v : x) {
    v = fake(v, static_cast<double>(p.scales[0]), p.zero_points[0], c.levels.qmin, c.levels.qmax,
             c.rounding);
  }
  return x;
}

/// x -> Gemm -> Relu -> Gemm -> Add of a constant
graph::model perceptron(test::random_source& r) {
  model_builder b;
  b.input("x", {3, 6});
  b.constant("w1", random_floats(r, {6, 5}, -1.0F, 1.0F));
  b.constant("b1", random_floats(r, {5}, -1.0F, 1.0F));
  b.constant("w2", random_floats(r, {5, 4}, -1.0F, 1.0F));
  b.constant("b2", random_floats(r, {4}, -1.0F, 1.0F));
  b.constant("offset", random_floats(r, {3, 4}, -1.0F, 1.0F));
  const std::string hidden = b.add("Relu", {b.add("Gemm", {"x", "w1", "b1"})});
  b.output(b.add("Add", {b.add("Gemm", {hidden, "w2", "b2"}), "offset"}));
  return b.get();
}

double loop_error(const std::vector<double>& q, const std::vector<double>& f, std::size_t rows,
                  ppq::error_method method) {
  double sum = 0.0;
  const std::size_t n = f.size() / rows;
  for (std::size_t i = 0; i < rows; ++i) {
    double noise = 0.0;
    double qq = 0.0;
    double ff = 0.0;
    double qf = 0.0;
    for (std::size_t k = i * n; k < (i + 1) * n; ++k) {
      noise += std::pow(q[k] - f[k], 2.0);
      qq += q[k] * q[k];
      ff += f[k] * f[k];
      qf += q[k] * f[k];
    }
    sum += method == ppq::error_method::snr   ? noise / (ff + 1e-7)
           : method == ppq::error_method::mse ? noise / static_cast<double>(n)
                                              : qf / std::sqrt(qq * ff);
  }
  return sum / static_cast<double>(rows);
}

}  // namespace

TEST_CASE("ppq: the exported model computes what plain loops do") {
  for (std::uint64_t seed = 41; seed < 46; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = perceptron(r);
    const auto source = random_source_of(r, {3, 6}, 8);
    // Scales are powers of 2: every sum is exact in float, whatever its order.
    const quantized_graph g =
        run_all(m, minmax_platform("fpga"), source_of(source), {.bake = false});
    const graph::model written = ppq::to_qdq(g);
    CHECK(written.outputs[0].name == m.outputs[0].name);
    CHECK(written.inputs[0].name == "x");
    CHECK(count(written, "QuantizeLinear") == 4);    // x, Relu, Gemm, Add
    CHECK(count(written, "DequantizeLinear") == 9);  // and two weights, two biases, one constant
    for (const graph::node& n : written.nodes) {
      if (n.is("QuantizeLinear")) {
        CHECK(written.initializers.at(n.inputs[2]).type() == element_type::s8);
      } else if (n.is("Gemm")) {
        const graph::links l(written);
        const graph::node& w = written.nodes.at(l.producer(n.inputs[1]));
        const graph::node& bias = written.nodes.at(l.producer(n.inputs[2]));
        CHECK(written.initializers.at(w.inputs[0]).type() == element_type::s8);
        CHECK(written.initializers.at(bias.inputs[0]).type() == element_type::s32);
        CHECK(bias.inputs.size() == 2);
      }
    }
    const auto constant = [&](const char* op, std::size_t slot, std::size_t which = 0) {
      const config_id id = input_config(g, op, slot, which);
      return quantized(doubles(m.initializers.at(g.configs[id].variable)), g, id);
    };
    for (std::size_t s = 0; s < 12; ++s) {
      const tensors inputs =
          s < 8 ? source->samples[s] : tensors{{"x", random_floats(r, {3, 6}, -4.0F, 4.0F)}};
      std::vector<double> x = quantized(doubles(inputs.at("x")), g, input_config(g, "Gemm", 0, 0));
      x = relu(product(x, constant("Gemm", 1), constant("Gemm", 2)));
      x = quantized(std::move(x), g, output_config(g, "Relu"));
      x = product(x, constant("Gemm", 1, 1), constant("Gemm", 2, 1));
      x = quantized(std::move(x), g, output_config(g, "Gemm", 1));
      const std::vector<double> offset = constant("Add", 1);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] += offset[i];
      }
      x = quantized(std::move(x), g, output_config(g, "Add"));
      const std::vector<float> expected(x.begin(), x.end());
      CHECK(difference(outputs_of(written, inputs)[0].data<float>(), expected) == "");
      CHECK(difference(outputs_of(graph::for_execution(written, false), inputs)[0].data<float>(),
                       expected) == "");
      CHECK(difference(outputs_of(graph::for_execution(written, true), inputs)[0].data<float>(),
                       expected) == "");
    }
  }
}

TEST_CASE("ppq: values between operators are on the grid that their configuration says") {
  test::random_source r(51);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  const auto source = random_source_of(r, residual_input, 8);
  ppq::platform four_bits = minmax_platform("snpe");
  four_bits.activation.levels = {0, 15};
  four_bits.activation.bits = 4;
  for (const ppq::platform& p : {minmax_platform("tensorrt"), minmax_platform("ncnn"), four_bits}) {
    INFO(p.name, " ", p.activation.bits, " bits");
    const quantized_graph g = run_all(m, p, source_of(source));
    const ppq::qdq_model q = ppq::to_qdq_model(g);
    CHECK(q.quantized.count("x") == 1);
    std::map<std::string, std::vector<float>> values;
    graph::executor e(q.network);
    // Much larger than what was calibrated with: grids saturate on both sides.
    const tensor large = random_floats(r, residual_input, -5.0F, 5.0F);
    static_cast<void>(e.run({{"x", large}}, [&](const std::string& name, const tensor& value) {
      if (value.type() == element_type::f32) {
        values[name] = values_of<float>(graph::to_plain(value));
      }
    }));
    for (const auto& entry : std::map<std::string, int>{{"x", 2}, {"Conv", 0}, {"Add", 0}}) {
      const auto& op = entry.first;  // clang 14 cannot capture structured bindings
      const auto& ends = entry.second;
      INFO(op);
      const config_id id = op == "x"      ? input_config(g, "Conv", 0)
                           : op == "Conv" ? output_config(g, "Conv", 1)
                                          : output_config(g, "Add");
      const std::string& variable = g.configs[id].variable;
      const auto computed = q.computed.find(variable);
      const std::vector<float>& from =
          values.at(computed == q.computed.end() ? variable : computed->second);
      const std::vector<float>& to = values.at(q.quantized.at(variable));
      const auto& c = g.configs[id];
      const auto& params = g.configs.parameters(id);
      REQUIRE(from.size() == to.size());
      std::vector<float> expected;
      std::set<double> seen;
      for (const float v : from) {
        // The quotient is that of floats.
        const double steps = static_cast<double>(v / params.scales[0]);
        const double level =
            std::clamp(rounded(steps, ppq::rounding_policy::half_even) + params.zero_points[0],
                       static_cast<double>(c.levels.qmin), static_cast<double>(c.levels.qmax));
        seen.insert(level);
        expected.push_back(static_cast<float>(level - params.zero_points[0]) * params.scales[0]);
      }
      CHECK(difference(to, expected) == "");
      if (ends == 2) {
        CHECK(seen.count(c.levels.qmin) == 1);
        CHECK(seen.count(c.levels.qmax) == 1);
      }
    }
  }
  // Grids that no 8-bit type contains.
  ppq::platform wide = minmax_platform("tensorrt");
  wide.activation.bits = 16;
  wide.activation.levels = {-32768, 32767};
  const quantized_graph g = run_all(m, wide, source_of(source));
  check_graph_error(error_kind::unsupported, {"Conv node 'Conv_0', input 0 'x'", "-32768..32767"},
                    [&] { static_cast<void>(ppq::to_qdq(g)); });
}

TEST_CASE("ppq: users of one value share its pair, and those in float do without") {
  test::random_source r(58);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3});
  b.constant("w1", random_floats(r, {3, 3}, -1.0F, 1.0F));
  b.constant("w2", random_floats(r, {3, 3}, -1.0F, 1.0F));
  b.output(b.add("Gemm", {"x", "w1"}));
  b.output(b.add("Erf", {"x"}));
  b.output(b.add("Gemm", {"x", "w2"}));
  const auto source = random_source_of(r, {2, 3}, 8);
  for (const bool fused : {true, false}) {  // by domination, or by equal parameters
    ppq::pipeline_options options;
    options.fusion.remove_useless = fused;
    quantized_graph g = run_all(b.get(), minmax_platform("tensorrt"), source_of(source), options);
    const auto state = state_of(g, input_config(g, "Gemm", 0, 1));
    CHECK((state == quantization_state::overlapped) == fused);
    const ppq::qdq_model q = ppq::to_qdq_model(g);
    CHECK(count(q.network, "QuantizeLinear") == 3);
    for (const graph::node& n : q.network.nodes) {
      if (n.is("Gemm")) {
        CHECK(n.inputs[0] == q.quantized.at("x"));
      } else if (n.is("Erf")) {
        CHECK(n.inputs[0] == "x");
      }
    }
    // Switched off, a user takes the value as it is.
    g.configs.dequantize(input_config(g, "Gemm", 0, 1));
    const graph::model off = ppq::to_qdq(g);
    CHECK(off.nodes.at(graph::links(off).producer(b.get().outputs[2].name + "_float")).inputs[0] ==
          "x");
    if (!fused) {  // other parameters: a pair of its own
      g.configs.restore(input_config(g, "Gemm", 0, 1));
      g.configs.set_parameters(input_config(g, "Gemm", 0, 1), one(0.25F));
      CHECK(count(ppq::to_qdq(g), "QuantizeLinear") == 4);
    }
  }
}

TEST_CASE("ppq: pairs on moved values change nothing and make layers integer") {
  test::random_source r(52);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  const auto source = random_source_of(r, residual_input, 8);
  for (const char* name : {"ppl_cuda", "snpe", "tensorrt"}) {
    INFO(name);
    const quantized_graph g = run_all(m, minmax_platform(name), source_of(source));
    const graph::model plain = ppq::to_qdq(g);
    const graph::model moved = ppq::to_qdq(g, {.moved_values = true});
    CHECK(count(plain, "QuantizeLinear") == 6);
    CHECK(count(moved, "QuantizeLinear") == 8);  // MaxPool and Flatten
    for (const tensors& sample : source->samples) {
      CHECK(difference(outputs_of(plain, sample)[0].data<float>(),
                       outputs_of(moved, sample)[0].data<float>()) == "");
    }
    const graph::model lowered = graph::for_execution(moved);
    CHECK(std::count_if(lowered.nodes.begin(), lowered.nodes.end(), [](const graph::node& n) {
            return n.domain == "detent" && n.op_type == "QLinearConv";
          }) == 2);
    CHECK(count(lowered, "Conv") == 0);
    CHECK(count(lowered, "Add") == 0);
  }
  // Forced, and kept back.
  quantized_graph g = run_all(m, minmax_platform("tensorrt"), source_of(source));
  g.configs.settings(output_config(g, "Conv", 0)).visibility = ppq::visibility_policy::force_export;
  CHECK(count(ppq::to_qdq(g), "QuantizeLinear") == 7);
  g.configs.settings(output_config(g, "Conv", 0)).visibility = ppq::visibility_policy::internal;
  g.configs.settings(output_config(g, "Gemm")).visibility = ppq::visibility_policy::internal;
  CHECK(count(ppq::to_qdq(g), "QuantizeLinear") == 5);
}

TEST_CASE("ppq: every platform makes a model that runs and is near the float one") {
  test::random_source r(53);
  INFO("seed ", r.seed());
  const graph::model m = residual_network(r);
  const auto source = random_source_of(r, residual_input, 16);
  for (const ppq::platform& p : ppq::platforms()) {
    for (const bool parity : {false, true}) {
      INFO(p.name, parity ? " parity" : "");
      const quantized_graph g = run_all(
          m, p, source_of(source),
          parity ? ppq::parity_options(detent::parity::as_published) : ppq::pipeline_options());
      const tensors& sample = source->samples[3];
      const double noise =
          ppq::measure_error(outputs_of(ppq::to_qdq(g), sample)[0],
                             outputs_of(g.float_model, sample)[0], ppq::error_method::snr);
      CHECK(noise > 0.0);
      CHECK(noise < 0.01);
    }
  }
}

TEST_CASE("ppq: error measures") {
  test::random_source r(54);
  INFO("seed ", r.seed());
  const tensor f = random_floats(r, {3, 4, 2}, -2.0F, 2.0F);
  const tensor q = random_floats(r, {3, 4, 2}, -2.0F, 2.0F);
  for (const auto method :
       {ppq::error_method::snr, ppq::error_method::mse, ppq::error_method::cosine}) {
    CHECK(ppq::measure_error(q, f, method) ==
          near(loop_error(doubles(q), doubles(f), 3, method), 1e-12));
    CHECK(ppq::measure_error(q.reshaped({24}), f.reshaped({24}), method) ==
          near(loop_error(doubles(q), doubles(f), 1, method), 1e-12));
    CHECK(ppq::measure_error(f, f, method) ==
          near(method == ppq::error_method::cosine ? 1.0 : 0.0, 1e-9));
  }
  const tensor zeros = floats({2}, {0.0F, 0.0F});
  CHECK(ppq::measure_error(zeros, zeros, ppq::error_method::cosine) == 1.0);
  CHECK(ppq::measure_error(zeros, floats({2}, {1.0F, 0.0F}), ppq::error_method::cosine) == 0.0);
  CHECK(ppq::measure_error(floats({2}, {1.0F, 0.0F}), zeros, ppq::error_method::snr) ==
        near(1e7, 1e-9));
  CHECK(ppq::find_error_method("Cosine") == ppq::error_method::cosine);
  CHECK(ppq::find_error_method("SNR") == ppq::error_method::snr);
  CHECK(ppq::find_error_method("mse") == ppq::error_method::mse);
  check_graph_error(error_kind::invalid_argument, {"no error method 'l7'", "snr, mse, cosine"},
                    [] { static_cast<void>(ppq::find_error_method("l7")); });
  check_graph_error(error_kind::shape_mismatch, {"[3,4,2]", "[24]"}, [&] {
    static_cast<void>(ppq::measure_error(q, f.reshaped({24}), ppq::error_method::mse));
  });
}

TEST_CASE("ppq: graphwise and layerwise errors against plain loops") {
  test::random_source r(55);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r);
  const auto source = random_source_of(r, {3, 6}, 9);
  const quantized_graph g = run_all(m, minmax_platform("fpga"), source_of(source), {.bake = false});
  const quantized_graph baked = run_all(m, minmax_platform("fpga"), source_of(source));
  const auto raw = [&](const char* op, std::size_t slot, std::size_t which) {
    return doubles(m.initializers.at(g.configs[input_config(g, op, slot, which)].variable));
  };
  const auto stored = [&](const char* op, std::size_t slot, std::size_t which) {
    return quantized(raw(op, slot, which), g, input_config(g, op, slot, which));
  };
  const auto plus = [](std::vector<double> a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] += b[i];
    }
    return a;
  };
  const config_id in = input_config(g, "Gemm", 0, 0);
  const config_id hidden = output_config(g, "Relu");
  const config_id sum = output_config(g, "Gemm", 1);
  for (const auto method :
       {ppq::error_method::snr, ppq::error_method::mse, ppq::error_method::cosine}) {
    double graphwise[2] = {0.0, 0.0};
    double layerwise[2] = {0.0, 0.0};
    constexpr std::size_t steps = 5;
    for (std::size_t s = 0; s < steps; ++s) {
      const std::vector<double> x = doubles(source->samples[s].at("x"));
      const std::vector<double> y = product(x, raw("Gemm", 1, 0), raw("Gemm", 2, 0));
      const std::vector<double> z = product(relu(y), raw("Gemm", 1, 1), raw("Gemm", 2, 1));
      const std::vector<double> out = plus(z, raw("Add", 1, 0));
      const std::vector<double> yq =
          product(quantized(x, g, in), stored("Gemm", 1, 0), stored("Gemm", 2, 0));
      const std::vector<double> hq = quantized(relu(yq), g, hidden);
      const std::vector<double> zq =
          quantized(product(hq, stored("Gemm", 1, 1), stored("Gemm", 2, 1)), g, sum);
      // The first layer's own output is not quantized: the activation's is.
      graphwise[0] += loop_error(yq, y, 3, method) / static_cast<double>(steps);
      graphwise[1] += loop_error(zq, z, 3, method) / static_cast<double>(steps);
      const std::vector<double> only_first =
          plus(product(hq, raw("Gemm", 1, 1), raw("Gemm", 2, 1)), raw("Add", 1, 0));
      const std::vector<double> only_second = plus(
          quantized(
              product(quantized(relu(y), g, hidden), stored("Gemm", 1, 1), stored("Gemm", 2, 1)), g,
              sum),
          raw("Add", 1, 0));
      layerwise[0] += loop_error(only_first, out, 3, method) / static_cast<double>(steps);
      layerwise[1] += loop_error(only_second, out, 3, method) / static_cast<double>(steps);
    }
    for (const quantized_graph* which : {&g, &baked}) {
      source->drawn = 0;
      const auto graph_errors = ppq::graphwise_error_analysis(*which, source_of(source),
                                                              {.method = method, .steps = steps});
      CHECK(source->drawn == 9);  // to its end
      CHECK(source->next == 0);
      const auto layer_errors = ppq::layerwise_error_analysis(*which, source_of(source),
                                                              {.method = method, .steps = steps});
      REQUIRE(graph_errors.size() == 2);
      REQUIRE(layer_errors.size() == 2);
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(graph_errors[i].operator_name == "Gemm node 'Gemm_" + std::to_string(2 * i) + "'");
        CHECK(graph_errors[i].value == "Gemm_" + std::to_string(2 * i) + "_out");
        CHECK(layer_errors[i].operator_name == graph_errors[i].operator_name);
        CHECK(graph_errors[i].error == near(graphwise[i], 1e-3));
        CHECK(layer_errors[i].error == near(layerwise[i], 1e-3));
      }
    }
  }
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"},
                    [&] { static_cast<void>(ppq::graphwise_error_analysis(g, {})); });
  // The more bits, the smaller the errors.
  ppq::platform coarse = minmax_platform("snpe");
  coarse.activation.bits = coarse.weight.bits = 4;
  coarse.activation.levels = coarse.weight.levels = {0, 15};
  const auto fine_errors = ppq::graphwise_error_analysis(
      run_all(m, minmax_platform("snpe"), source_of(source)), source_of(source));
  const auto coarse_errors =
      ppq::graphwise_error_analysis(run_all(m, coarse, source_of(source)), source_of(source));
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(fine_errors[i].error * 20.0 < coarse_errors[i].error);
  }
}

TEST_CASE("ppq: statistics") {
  test::random_source r(56);
  INFO("seed ", r.seed());
  const std::vector<float> x = r.reals(1000, -3.0F, 5.0F);
  ppq::statistics_collector c;
  c.observe(std::span<const float>(x).first(300));
  c.observe(std::span<const float>(x).subspan(300));
  c.begin_second_pass();
  c.observe(std::span<const float>(x));
  const ppq::value_statistics s = c.result();
  const double n = 1000.0;
  double mean = 0.0;
  for (const float v : x) {
    mean += static_cast<double>(v) / n;
  }
  double moments[5] = {};
  for (const float v : x) {
    for (int k = 2; k < 5; ++k) {
      moments[k] += std::pow(static_cast<double>(v) - mean, k) / n;
    }
  }
  CHECK(s.count == 1000);
  CHECK(s.mean == near(mean, 1e-12));
  CHECK(s.standard_deviation == near(std::sqrt(moments[2]), 1e-12));
  CHECK(s.skewness == near(moments[3] / std::pow(moments[2], 1.5), 1e-9));
  CHECK(s.kurtosis == near(moments[4] / std::pow(moments[2], 2.0), 1e-9));
  CHECK(s.minimum == static_cast<double>(*std::min_element(x.begin(), x.end())));
  CHECK(s.maximum == static_cast<double>(*std::max_element(x.begin(), x.end())));
  CHECK(std::accumulate(s.histogram.begin(), s.histogram.end(), std::uint64_t{0}) == 1000);
  std::array<std::uint64_t, 32> histogram{};
  for (const float v : x) {
    std::size_t bin = 0;
    while (bin < 31 && static_cast<double>(v) >= s.minimum + (s.maximum - s.minimum) / 32.0 *
                                                                 static_cast<double>(bin + 1)) {
      ++bin;
    }
    ++histogram[bin];
  }
  std::uint64_t moved = 0;  // the two forms of a bin's end may differ in the last bit
  for (std::size_t i = 0; i < 32; ++i) {
    moved += histogram[i] > s.histogram[i] ? histogram[i] - s.histogram[i] : 0;
  }
  CHECK(moved <= 1);

  ppq::statistics_collector same;
  const std::vector<float> equal(7, 2.5F);
  same.observe(std::span<const float>(equal));
  same.begin_second_pass();
  same.observe(std::span<const float>(equal));
  CHECK(same.result().standard_deviation == 0.0);
  CHECK(same.result().skewness == 0.0);
  CHECK(same.result().kurtosis == 0.0);
  CHECK(same.result().histogram[0] == 7);
  check_graph_error(error_kind::invalid_argument, {"14 values in the second pass, 7"}, [&] {
    same.observe(std::span<const float>(equal));
    static_cast<void>(same.result());
  });
  check_graph_error(error_kind::invalid_argument, {"3.5", "first pass"}, [&] {
    const std::vector<float> other{3.5F};
    same.observe(std::span<const float>(other));
  });
  ppq::statistics_collector none;
  check_graph_error(error_kind::invalid_argument, {"no values"}, [&] { none.begin_second_pass(); });
  check_graph_error(error_kind::invalid_argument, {"inf", "not finite"}, [&] {
    const std::vector<float> bad{std::numeric_limits<float>::infinity()};
    none.observe(std::span<const float>(bad));
  });
}

TEST_CASE("ppq: statistics of variables and parameters") {
  test::random_source r(57);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r);
  const auto source = random_source_of(r, {3, 6}, 9);
  const quantized_graph g = run_all(m, minmax_platform("ppl_cuda"), source_of(source));
  const auto reports = ppq::variable_analysis(g, source_of(source), {.steps = 4});
  REQUIRE(reports.size() == 4);
  CHECK(reports[0].name == "Gemm_0_out");
  CHECK(reports[3].name == m.outputs[0].name);
  CHECK(source->next == 0);
  double float_sum = 0.0;
  double quantized_sum = 0.0;
  double worst = 0.0;
  for (std::size_t s = 0; s < 4; ++s) {
    const std::vector<double> f = doubles(outputs_of(g.float_model, source->samples[s])[0]);
    const std::vector<double> q = doubles(outputs_of(ppq::to_qdq(g), source->samples[s])[0]);
    for (std::size_t i = 0; i < f.size(); ++i) {
      float_sum += f[i];
      quantized_sum += q[i];
      worst = (std::max)(worst, q[i] - f[i]);
    }
  }
  const ppq::statistics_report& last = reports[3];
  CHECK(last.float_values.count == 4 * 12);
  CHECK(last.float_values.mean == near(float_sum / 48.0, 1e-9));
  CHECK(last.quantized_values.mean == near(quantized_sum / 48.0, 1e-9));
  CHECK(last.noise.mean == near((quantized_sum - float_sum) / 48.0, 1e-6));
  CHECK(last.noise.maximum == worst);
  CHECK(reports[1].float_values.minimum == 0.0);  // behind Relu

  const quantized_graph loose =
      run_all(m, minmax_platform("ppl_cuda"), source_of(source), {.bake = false});
  const auto parameters = ppq::parameter_analysis(g);
  const auto unbaked = ppq::parameter_analysis(loose);
  REQUIRE(parameters.size() == 5);
  REQUIRE(unbaked.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    INFO(parameters[i].name);
    CHECK(parameters[i].name == unbaked[i].name);
    CHECK(parameters[i].float_values == unbaked[i].float_values);
    CHECK(parameters[i].quantized_values == unbaked[i].quantized_values);
    CHECK(parameters[i].noise == unbaked[i].noise);
    const tensor& t = m.initializers.at(parameters[i].name);
    CHECK(parameters[i].float_values.count == t.count());
    CHECK(parameters[i].noise.standard_deviation > 0.0);
    CHECK(parameters[i].noise.maximum <= 0.5 / 127.0 + 1e-6);
  }
  // What stays float has no noise.
  for (const ppq::statistics_report& report :
       ppq::parameter_analysis(run_all(m, minmax_platform("tensorrt"), source_of(source)))) {
    const bool bias = report.name == "b1" || report.name == "b2";
    CHECK((report.noise.minimum == 0.0 && report.noise.maximum == 0.0) == bias);
  }
}
