// SPDX-License-Identifier: BSD-3-Clause
// Calibration by many processes: for every method, any number of shards in any order makes the
// model that one pass over all samples makes, byte for byte; states that do not belong together,
// and damaged ones, are refused.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/base/byte_format.hpp>
#include <detent/graph/configuration/states_as_told.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/calibration_state.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/quantize/weight_only_state.hpp>
#include <detent/observer_registry.hpp>
#include <detent/parallel.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "temporary_folder.hpp"

namespace {

using namespace test;
using detent::any_observer;
using graph::calibration_state;
using graph::saved_state;
using graph::static_quantization_options;
using graph::weight_only_state;

/// Two convolutions, an average, a product with a constant, and a classifier.
graph::model small_network(random_source& r, bool ends_with_product = false) {
  model_builder b;
  std::string x = b.input("x", {-1, 2, 6, 6});
  x = b.add("Conv", {x, b.constant("w1", random_floats(r, {4, 2, 3, 3}, -1.0F, 1.0F)),
                     b.constant("b1", random_floats(r, {4}, -1.0F, 1.0F))});
  x = b.add("Relu", {x});
  x = b.add("Conv", {x, b.constant("w2", random_floats(r, {5, 4, 2, 2}, -1.0F, 1.0F)),
                     b.constant("b2", random_floats(r, {5}, -1.0F, 1.0F))});
  x = b.add("Mul", {x, b.constant("factors", random_floats(r, {1, 5, 1, 1}, -2.0F, 2.0F))});
  x = b.add("GlobalAveragePool", {x});
  x = b.add("Flatten", {x});
  b.constant("w3", random_floats(r, {5, 7}, -1.0F, 1.0F));
  b.constant("b3", random_floats(r, {7}, -1.0F, 1.0F));
  if (ends_with_product) {  // of three dimensions, which is no Gemm
    x = b.add("Unsqueeze", {x, b.constant("axes", {1})});
    b.output(b.add("Add", {b.add("MatMul", {x, "w3"}), "b3"}));
  } else {
    b.output(b.add("Gemm", {x, "w3", "b3"}));
  }
  return b.get();
}

/// Samples of different magnitudes, the larger ones later, so that histograms grow.
std::vector<sample> growing_samples(random_source& r, std::size_t n) {
  std::vector<sample> samples;
  for (std::size_t i = 0; i < n; ++i) {
    const float most = 0.2F + 0.1F * static_cast<float>(i * 7 % n + i);
    samples.push_back({{"x", random_floats(r, {1, 2, 6, 6}, -most, 1.5F * most)}});
  }
  return samples;
}

struct shard {
  std::size_t first = 0;
  std::vector<sample> samples;
};

/// The samples in `n` shards of different sizes, in another order. Shards without samples are left
/// out.
std::vector<shard> divided(random_source& r, const std::vector<sample>& samples, std::size_t n) {
  std::vector<std::size_t> ends = {0, samples.size()};
  while (ends.size() < n + 1) {
    ends.push_back(r.size(0, samples.size()));
  }
  std::sort(ends.begin(), ends.end());
  std::vector<shard> shards;
  for (std::size_t i = 0; i < n; ++i) {
    if (ends[i] < ends[i + 1]) {
      shards.push_back({ends[i],
                        {samples.begin() + static_cast<std::ptrdiff_t>(ends[i]),
                         samples.begin() + static_cast<std::ptrdiff_t>(ends[i + 1])}});
    }
  }
  for (std::size_t i = shards.size(); i > 1; --i) {
    std::swap(shards[i - 1], shards[r.size(0, i - 1)]);
  }
  return shards;
}

/// Saves the states of shards, each of which begins with `begin`.
std::vector<saved_state> observed(const calibration_state& begin,
                                  const std::vector<shard>& shards) {
  std::vector<saved_state> saved;
  for (const shard& s : shards) {
    calibration_state state = begin;
    state.observe(samples_source(s.samples), s.first);
    saved.push_back({"state " + std::to_string(saved.size()), state.save()});
  }
  return saved;
}

calibration_state merged(calibration_state all, const std::vector<saved_state>& states) {
  for (const saved_state& s : states) {
    all.merge(s);
  }
  return all;
}

/// The merged states of all rounds; the second one has other shards.
calibration_state collected(random_source& r, const graph::model& m,
                            const static_quantization_options& options,
                            const std::vector<sample>& samples, std::size_t n) {
  const calibration_state empty(m, options);
  calibration_state all = merged(empty, observed(empty, divided(r, samples, n)));
  if (empty.rounds() == 2) {
    CHECK(all.round() == 1);
    all.begin_second_round();
    all = merged(empty, observed(all, divided(r, samples, n)));
    CHECK(all.round() == 2);
  }
  CHECK(all.samples() == samples.size());
  return all;
}

std::string bytes_of(const graph::model& m) { return graph::to_onnx(m); }

static_quantization_options options_of(const std::string& method, bool is_symmetric) {
  static_quantization_options o{.method = method};
  o.activations.type = is_symmetric ? element_type::s8 : element_type::u8;
  o.activations.symmetric = is_symmetric;
  return o;
}

/// Whether the observer can be made for the scheme.
bool exists(const static_quantization_options& o) {
  try {
    static_cast<void>(graph::detail::activation_observer(o.activations, o.method));
    return true;
  } catch (const detent::error&) {
    return false;
  }
}

std::vector<std::byte> with_checksum(std::vector<std::byte> bytes) {
  constexpr std::size_t sum = sizeof(std::uint64_t);
  const std::uint64_t value = detent::detail::checksum(std::span(bytes).first(bytes.size() - sum));
  for (std::size_t i = 0; i < sum; ++i) {
    bytes[bytes.size() - sum + i] = static_cast<std::byte>(value >> (8 * i) & 0xFFU);
  }
  return bytes;
}

}  // namespace

TEST_CASE("calibration states: all methods, any shards, the bytes of one run") {
  random_source r(411);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = growing_samples(r, 21);
  std::size_t tested = 0;
  for (const bool is_symmetric : {false, true}) {
    for (const std::string& method : detent::default_observers().names()) {
      const static_quantization_options o = options_of(method, is_symmetric);
      if (!exists(o)) {
        continue;
      }
      INFO("method ", method, ", symmetric ", is_symmetric);
      std::string expected;
      std::string refused;
      try {
        expected = bytes_of(graph::static_quantization(m, samples_source(samples), o).result);
      } catch (const detent::error& e) {  // what a method finds may be no scale
        refused = e.what();
      }
      for (const std::size_t n : {std::size_t{1}, std::size_t{3}, std::size_t{8}}) {
        if (is_symmetric != (n == 3)) {
          continue;
        }
        INFO(n, " shards");
        const calibration_state all = collected(r, m, o, samples, n);
        if (refused.empty()) {
          CHECK(bytes_of(graph::static_quantization(m, all, o).result) == expected);
        } else {
          check_graph_error(error_kind::invalid_argument, {},
                            [&] { static_cast<void>(graph::static_quantization(m, all, o)); });
        }
      }
      tested += refused.empty() ? 1U : 0U;
    }
  }
  CHECK(tested >= 55);
}

TEST_CASE("calibration states: any order of merges gives the same bytes") {
  random_source r(412);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = growing_samples(r, 12);
  for (const char* method :
       {"kl", "nncf.mean_minmax", "isotone", "torch.histogram", "ort.entropy"}) {
    INFO("method ", method);
    static_quantization_options o = options_of(method, false);
    o.bias.kind = graph::bias_correction::fast;
    const calibration_state empty(m, o);
    std::vector<shard> shards = divided(r, samples, 5);
    const std::vector<std::byte> first = merged(empty, observed(empty, shards)).save();
    std::reverse(shards.begin(), shards.end());
    std::vector<saved_state> states = observed(empty, shards);
    calibration_state all = merged(empty, states);
    CHECK(all.save() == first);
    // A tree: the first two are merged, saved and merged with the rest.
    calibration_state two = empty;
    two.merge(states[0]);
    two.merge(states[1]);
    calibration_state rest = empty;
    for (std::size_t i = 2; i < states.size(); ++i) {
      rest.merge(states[i]);
    }
    rest.merge({"the first two", two.save()});
    CHECK(rest.save() == first);
    if (empty.rounds() == 2) {
      all.begin_second_round();
      states = observed(all, shards);
      const std::vector<std::byte> second = merged(empty, states).save();
      std::reverse(states.begin(), states.end());
      CHECK(merged(empty, states).save() == second);
    }
  }
}

TEST_CASE("calibration states: fast bias correction has the exact means") {
  random_source r(413);
  INFO("seed ", r.seed());
  static_quantization_options o = options_of("minmax", false);
  o.bias.kind = graph::bias_correction::fast;
  o.judge_samples = 0;
  const std::vector<sample> samples = growing_samples(r, 17);
  const graph::model m = small_network(r);
  static_quantization_options without = o;
  without.bias.kind = graph::bias_correction::none;
  for (const graph::model& network : {m, small_network(r, true)}) {
    const std::string expected =
        bytes_of(graph::static_quantization(network, samples_source(samples), o).result);
    const std::string uncorrected =
        bytes_of(graph::static_quantization(network, samples_source(samples), without).result);
    CHECK(uncorrected != expected);
    for (const std::size_t n : {std::size_t{1}, std::size_t{3}, std::size_t{8}}) {
      const calibration_state all = collected(r, network, o, samples, n);
      CHECK(all.has_means());
      CHECK(bytes_of(graph::static_quantization(network, all, o).result) == expected);
      // Means that are not asked for do no harm.
      CHECK(bytes_of(graph::static_quantization(network, all, without).result) == uncorrected);
    }
  }
  const calibration_state no_means(m, without);
  calibration_state with_means(m, o);
  calibration_state seen = no_means;
  seen.observe(samples_source(samples));
  check_graph_error(error_kind::invalid_argument, {"it has no means"},
                    [&] { with_means.merge(seen); });
  check_graph_error(error_kind::invalid_argument, {"it has no means", "a file"}, [&] {
    with_means.merge({"a file", seen.save()});
  });
  check_graph_error(error_kind::invalid_argument, {"no means"},
                    [&] { static_cast<void>(graph::static_quantization(m, seen, o)); });
  o.bias.kind = graph::bias_correction::full;
  check_graph_error(error_kind::unsupported, {"full bias correction"},
                    [&] { const calibration_state s(m, o); });
  check_graph_error(error_kind::unsupported, {"full bias correction"},
                    [&] { static_cast<void>(graph::static_quantization(m, seen, o)); });
}

TEST_CASE("calibration states: batches and threads change nothing") {
  random_source r(414);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = growing_samples(r, 8);
  static_quantization_options o = options_of("mse", false);
  o.bias.kind = graph::bias_correction::fast;
  calibration_state one_by_one(m, o);
  one_by_one.observe(samples_source(samples));
  calibration_state together(m, o);
  together.observe(samples_source(one_batch(samples)));
  detent::thread_pool pool(3);
  static_quantization_options threads = o;
  threads.executor.parallel = pool.parallel();
  calibration_state with_threads(m, threads);
  with_threads.observe(samples_source(samples));
  CHECK(with_threads.save() == one_by_one.save());
  CHECK(bytes_of(graph::static_quantization(m, together, o).result) ==
        bytes_of(graph::static_quantization(m, one_by_one, o).result));
}

TEST_CASE("calibration states: the part of a model that can be run, rules and overrides") {
  random_source r(415);
  INFO("seed ", r.seed());
  graph::model m = small_network(r);
  graph::node unknown;
  unknown.op_type = "Mystery";
  unknown.domain = "nobody";
  unknown.inputs = {m.outputs[0].name};
  unknown.outputs = {"mysterious"};
  m.nodes.push_back(unknown);
  m.opsets["nobody"] = 1;
  m.outputs[0].name = "mysterious";
  const std::vector<sample> samples = growing_samples(r, 9);
  static_quantization_options o = options_of("percentile", false);
  o.activations.observer.percentile = 98.5;
  o.scope.operators.types.push_back({"Gemm", {.method = "kl"}});
  o.activations.overrides["x"].range = detent::value_range{-1.0F, 2.0F};
  o.activations.overrides["Relu_1_out"].method = "mse";
  const std::string expected =
      bytes_of(graph::static_quantization(m, samples_source(samples), o).result);
  const calibration_state all = collected(r, m, o, samples, 3);
  CHECK(bytes_of(graph::static_quantization(m, all, o).result) == expected);

  static_quantization_options other = o;
  other.scope.operators = {};
  check_graph_error(error_kind::invalid_argument,
                    {"a file", "method of tensor", "kl", "percentile"}, [&] {
                      calibration_state(m, other).merge({"a file", all.save()});
                    });
  other = o;
  other.scope.ignored.types.push_back("Gemm");
  other.scope.operators = {};
  check_graph_error(error_kind::invalid_argument, {"a file", "tensors"}, [&] {
    calibration_state(m, other).merge({"a file", all.save()});
  });
}

TEST_CASE("calibration states: what does not belong together is refused by its name") {
  random_source r(416);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  graph::model other_model = m;
  other_model.initializers["b1"] = random_floats(r, {4}, -1.0F, 1.0F);
  const std::vector<sample> samples = growing_samples(r, 6);
  const static_quantization_options o = options_of("percentile", false);
  calibration_state seen(m, o);
  seen.observe(samples_source(samples));
  const saved_state file{"b.states", seen.save()};
  const auto refuse = [&](const graph::model& of, const static_quantization_options& options,
                          std::initializer_list<std::string_view> words) {
    calibration_state state(of, options);
    const std::vector<std::byte> before = state.save();
    check_graph_error(error_kind::invalid_argument, words, [&] { state.merge(file); });
    CHECK(state.save() == before);
    check_graph_error(error_kind::invalid_argument, {},
                      [&] { static_cast<void>(graph::static_quantization(of, seen, options)); });
  };
  refuse(other_model, o, {"b.states", "another model"});
  refuse(m, options_of("kl", false), {"b.states", "method is percentile, expected kl"});
  refuse(m, options_of("percentile", true), {"b.states", "symmetry", "asymmetric"});
  static_quantization_options changed = o;
  changed.activations.observer.percentile = 99.9;
  refuse(m, changed, {"b.states", "percentile is the default, expected 99.9"});
  changed = o;
  changed.activations.bits = 6;
  refuse(m, changed, {"b.states", "bits of activations is 8, expected 6"});
  changed = o;
  changed.activations.type = element_type::s8;
  refuse(m, changed, {"b.states", "type of activations is u8, expected s8"});
  changed = o;
  changed.activations.observer.p = 3.0;
  refuse(m, changed, {"b.states", "other observer options"});

  // The case of letters is no difference.
  calibration_state all(m, options_of("Percentile", false));
  all.merge(file);
  check_graph_error(error_kind::invalid_argument, {"b.states", "in another state as well"},
                    [&] { all.merge(file); });
  check_graph_error(error_kind::invalid_argument, {"observed already"},
                    [&] { all.observe(samples_source(samples)); });
  all.observe(samples_source(samples), 6);  // the same values once more, but numbered
  CHECK(all.samples() == 12);

  const calibration_state nothing(m, o);
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"},
                    [&] { static_cast<void>(graph::static_quantization(m, nothing, o)); });
  calibration_state none = nothing;
  none.merge({"an empty one", nothing.save()});
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"},
                    [&] { none.observe(samples_source({})); });
  check_graph_error(error_kind::invalid_argument, {"no source"}, [&] { none.observe({}); });
  CHECK(none.save() == nothing.save());

  std::vector<sample> with_nan = samples;
  tensor bad = random_floats(r, {1, 2, 6, 6}, 0.0F, 1.0F);
  bad.mutable_data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  with_nan[2]["x"] = bad;
  check_graph_error(error_kind::invalid_argument, {"'x'", "NaN", "sample 43"},
                    [&] { none.observe(samples_source(with_nan), 40); });
  CHECK(none.save() == nothing.save());
}

TEST_CASE("calibration states: the rounds of a method are complete, and of the same samples") {
  random_source r(417);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = growing_samples(r, 6);
  const std::vector<shard> shards = {{0, {samples.begin(), samples.begin() + 2}},
                                     {2, {samples.begin() + 2, samples.end()}}};
  for (const char* method : {"ppq.mse", "ort.entropy", "inc.percentile", "torch.histogram"}) {
    INFO("method ", method);
    const static_quantization_options o = options_of(method, false);
    const calibration_state empty(m, o);
    CHECK(empty.rounds() == 2);
    calibration_state first = merged(empty, observed(empty, shards));
    check_graph_error(error_kind::invalid_argument, {"need a second round"},
                      [&] { static_cast<void>(graph::static_quantization(m, first, o)); });
    calibration_state second = first;
    second.begin_second_round();
    check_graph_error(error_kind::invalid_argument, {"second round has begun"},
                      [&] { second.begin_second_round(); });
    const std::vector<saved_state> states = observed(second, shards);
    check_graph_error(error_kind::invalid_argument, {"second round has 2 samples, the first 6"},
                      [&] {
                        const calibration_state part = merged(empty, {states[0]});
                        static_cast<void>(graph::static_quantization(m, part, o));
                      });
    check_graph_error(error_kind::invalid_argument, {"state 0", "round 2", "round 1"},
                      [&] { first.merge(states[0]); });
    // The second round of another first one: of one shard only.
    calibration_state other = merged(empty, {observed(empty, shards)[0]});
    other.begin_second_round();
    const std::vector<saved_state> strange = observed(other, {shards[0]});
    calibration_state all = merged(empty, {states[1]});
    check_graph_error(error_kind::invalid_argument, {"another first round"},
                      [&] { all.merge(strange[0]); });
  }
  for (const char* method : {"ort.entropy", "torch.histogram"}) {
    const calibration_state empty(m, options_of(method, false));
    calibration_state second = merged(empty, observed(empty, shards));
    second.begin_second_round();
    check_graph_error(error_kind::invalid_argument, {"sample 1", "not that of the first"}, [&] {
      second.observe(samples_source({samples[0], samples[3]}));
    });
    check_graph_error(error_kind::invalid_argument, {"sample 6", "not that of the first"},
                      [&] { second.observe(samples_source({samples[0]}), 6); });
  }
  calibration_state one_round(m, options_of("minmax", false));
  one_round.observe(samples_source(samples));
  check_graph_error(error_kind::invalid_argument, {"no second round"},
                    [&] { one_round.begin_second_round(); });
  const calibration_state empty(m, options_of("isotone", false));
  check_graph_error(error_kind::invalid_argument, {"before a first one"}, [&] {
    calibration_state state = empty;
    state.begin_second_round();
  });

  // Samples that are not numbered meet where the order matters.
  const calibration_state ordered(m, options_of("moving_average", false));
  calibration_state a = ordered;
  a.observe(samples_source({samples[0]}));
  calibration_state b = ordered;
  b.observe(samples_source({samples[1]}));
  check_graph_error(error_kind::invalid_argument, {"sample 0 was observed twice"},
                    [&] { a.merge(b); });
}

namespace {

/// Has neither merge() nor append().
struct counting_observer {
  void observe(std::span<const float> x) { count += x.size(); }
  [[nodiscard]] detent::quant_params finalize(detent::quant_scheme) const {
    return {static_cast<float>(count), 0};
  }
  std::size_t count = 0;
};

}  // namespace

TEST_CASE("calibration states: an observer without merge() is refused") {
  random_source r(418);
  static_quantization_options o = options_of("counting", false);
  o.activations.observers.add("counting", [](const detent::observer_options&) {
    return any_observer(counting_observer());
  });
  check_graph_error(error_kind::unsupported, {"'counting'", "cannot be merged"},
                    [&] { const calibration_state s(small_network(r), o); });
}

TEST_CASE("calibration states: damaged states are refused") {
  random_source r(419);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = growing_samples(r, 3);
  for (const char* method : {"minmax", "isotone", "nncf.mean_minmax", "ort.percentile"}) {
    INFO("method ", method);
    static_quantization_options o = options_of(method, false);
    o.bias.kind = graph::bias_correction::fast;
    const calibration_state empty(m, o);
    calibration_state state = empty;
    state.observe(samples_source(samples));
    if (state.rounds() == 2) {
      state.begin_second_round();
      state.observe(samples_source(samples));
    }
    const std::vector<std::byte> good = state.save();
    calibration_state copy = empty;
    copy.merge({"good", good});
    CHECK(copy.save() == good);
    const auto refused = [&](const std::vector<std::byte>& bytes) {
      calibration_state s = empty;
      try {
        s.merge({"bad", bytes});
      } catch (const detent::error& e) {
        CHECK(std::string(e.what()).find("bad") != std::string::npos);
        return true;
      }
      return false;
    };
    for (std::size_t size = 0; size < good.size(); size += 1 + size / 64) {
      std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
      CHECK(refused(cut));
      if (size > 40) {  // cut, but with the right size and checksum
        for (std::size_t i = 0; i < 8; ++i) {
          cut[16 + i] = static_cast<std::byte>((size - 32) >> (8 * i) & 0xFFU);
        }
        CHECK(refused(with_checksum(cut)));
      }
    }
    for (int i = 0; i < 200; ++i) {
      std::vector<std::byte> flipped = good;
      flipped[r.size(0, good.size() - 1)] ^= static_cast<std::byte>(1U << r.size(0, 7));
      CHECK(refused(flipped));
    }
    std::vector<std::byte> version = good;
    version[8] = std::byte{2};
    check_graph_error(error_kind::unsupported, {"a.states", "version 2"}, [&] {
      calibration_state s = empty;
      s.merge({"a.states", with_checksum(version)});
    });
  }
  check_graph_error(error_kind::bad_file, {"x", "too few"}, [&] {
    static_cast<void>(graph::settings_of_state({"x", {}}));
  });
}

TEST_CASE("calibration states: counts that cannot be are refused") {
  using graph::detail::state_progress;
  constexpr detent::detail::byte_format format{"TESTTEST", 1};
  const auto read_again = [&](const state_progress& p) {
    detent::detail::byte_writer out(format);
    p.write(out);
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "progress");
    return state_progress::read(in);
  };
  CHECK(read_again({.round = 2, .samples = 3, .second_samples = 2, .first_round = 9})
            .second_samples == 2);
  for (const state_progress& wrong : {state_progress{.samples = 3, .second_samples = 1},
                                      state_progress{.samples = 3, .first_round = 9}}) {
    check_graph_error(error_kind::bad_file, {"a state of round 1 has a second round"},
                      [&] { static_cast<void>(read_again(wrong)); });
  }
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t round : {1U, 2U}) {
    INFO("round ", round);
    state_progress p{.round = round, .samples = most - 2, .second_samples = most - 2};
    const state_progress more{
        .round = round, .samples = 3, .second_samples = 3, .shards = {std::uint64_t{5}}};
    check_graph_error(error_kind::overflow, {"b.states", "its 3 samples"},
                      [&] { p.merge(more, "b.states"); });
    CHECK(p.shards.empty());
    check_graph_error(error_kind::overflow, {"calibration"}, [&] { p.add(6, 3, "calibration"); });
    p.merge({.round = round, .samples = 2, .second_samples = 2}, "c.states");
    CHECK((round == 1 ? p.samples : p.second_samples) == most);
  }
}

TEST_CASE("calibration states: files") {
  random_source r(420);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = growing_samples(r, 5);
  const static_quantization_options o = options_of("kl", false);
  calibration_state state(m, o);
  state.observe(samples_source(samples));
  const temporary_folder folder;
  const std::string path = (folder.path() / "a.states").string();
  graph::write_state_file(path, state.save());
  CHECK(folder.entries() == 1);
  const saved_state read = graph::read_state_file(path);
  CHECK(read.name == path);
  CHECK(read.bytes == state.save());
  CHECK(graph::settings_of_state(read).at("method") == "kl");
  graph::state_source all = graph::states_in_files({path, path});
  CHECK(all()->bytes == read.bytes);
  CHECK(all().has_value());
  CHECK(!all().has_value());
  check_graph_error(error_kind::bad_file, {"a.states", "the limit is 10"},
                    [&] { static_cast<void>(graph::read_state_file(path, 10)); });
  check_graph_error(error_kind::io, {"nothing.states"},
                    [&] { static_cast<void>(graph::states_in_files({"nothing.states"})()); });
}

TEST_CASE("calibration states: jobs take what they do not say from a state") {
  random_source r(421);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = growing_samples(r, 7);
  graph::quantization_settings said;
  said.method = "percentile";
  said.percentile = 99.25;
  said.activations = "s8";
  said.activation_bits = 7;
  said.symmetric_activations = true;
  said.bias_correction = "fast";
  said.from_states = true;
  said.given = {
      "method",         "percentile", "activations", "activation-bits", "symmetric-activations",
      "bias-correction"};
  const graph::quantization_job observing = graph::make_quantization_job(said);
  const graph::observed_state made =
      graph::observe_as_told(observing, m, samples_source(samples), 0, {});
  CHECK(made.samples == 7);
  const saved_state file{"a.states", made.bytes};
  const auto source_of = [](std::vector<saved_state> files) -> graph::state_source {
    return
        [files = std::move(files), next = std::size_t{0}]() mutable -> std::optional<saved_state> {
          return next == files.size() ? std::nullopt : std::optional(files[next++]);
        };
  };
  graph::quantization_settings little;
  graph::complete_from_state(little, file, false);
  const graph::quantization_job job = graph::make_quantization_job(little);
  CHECK(job.method == "percentile");
  CHECK(job.percentile == 99.25);
  CHECK(job.activations.bits == 7);
  CHECK(job.needs_samples.empty());
  const graph::quantization_outcome o = graph::quantize_as_told(job, m, source_of({file}));
  CHECK(o.samples_of_states == 7);
  CHECK(!o.solutions.empty());
  static_quantization_options direct = options_of("percentile", true);
  direct.activations.bits = 7;
  direct.activations.observer.percentile = 99.25;
  CHECK(bytes_of(o.result) ==
        bytes_of(graph::static_quantization(m, samples_source(samples), direct).result));

  graph::quantization_settings merging;
  graph::complete_from_state(merging, file, true);
  CHECK(merging.bias_correction == "fast");
  const graph::observed_state again =
      graph::observe_as_told(graph::make_quantization_job(merging), m, {}, 0, source_of({file}));
  CHECK(again.bytes == made.bytes);

  const auto refuse = [&](const char* word, const auto& set) {
    graph::quantization_settings s;
    s.from_states = true;
    set(s);
    check_graph_error(error_kind::invalid_argument, {word},
                      [&] { static_cast<void>(graph::make_quantization_job(s, "--")); });
  };
  refuse("--method auto", [](auto& s) { s.given = {"method"}; });
  refuse("--bias-correction full", [](auto& s) {
    s.bias_correction = "full";
    s.given = {"bias-correction"};
  });
  refuse("--approach dynamic", [](auto& s) {
    s.approach = "dynamic";
    s.given = {"approach"};
  });
  refuse("--weight-algorithm hqq", [](auto& s) {
    s.approach = "weight-only";
    s.weight_algorithm = "hqq";
    s.given = {"approach", "weight-algorithm"};
  });
  check_graph_error(error_kind::invalid_argument, {"neither samples nor states"},
                    [&] { static_cast<void>(graph::observe_as_told(job, m, {}, 0, {})); });
}

TEST_CASE("calibration states: Gram matrices of weight-only quantization") {
  random_source r(422);
  INFO("seed ", r.seed());
  model_builder b;
  std::string x = b.input("x", {-1, 24});
  x = b.add("MatMul", {x, b.constant("w1", random_floats(r, {24, 40}, -1.0F, 1.0F))});
  x = b.add("Relu", {x});
  x = b.add("Gemm", {x, b.constant("w2", random_floats(r, {40, 10}, -1.0F, 1.0F)),
                     b.constant("b2", random_floats(r, {10}, -1.0F, 1.0F))});
  b.output(x);
  const graph::model m = b.get();
  std::vector<sample> samples;
  for (std::size_t i = 0; i < 15; ++i) {
    const float most = std::ldexp(1.0F, static_cast<int>(i % 6) * 2);
    samples.push_back({{"x", random_floats(r, {3, 24}, -most, most)}});
  }
  for (const auto algorithm :
       {graph::weight_only_algorithm::awq, graph::weight_only_algorithm::gptq}) {
    const graph::weight_only_options o{.algorithm = algorithm};
    const std::string expected =
        bytes_of(graph::quantize_weights_only(m, o, samples_source(samples)));
    for (const std::size_t n : {std::size_t{1}, std::size_t{3}, std::size_t{8}}) {
      const weight_only_state empty(m, o);
      weight_only_state all = empty;
      for (const shard& s : divided(r, samples, n)) {
        weight_only_state one = empty;
        one.observe(samples_source(s.samples), s.first);
        all.merge({"a shard", one.save()});
      }
      CHECK(all.samples() == samples.size());
      CHECK(bytes_of(graph::quantize_weights_only(m, o, all)) == expected);
    }
  }
  weight_only_state state(m);
  state.observe(samples_source(samples));
  const saved_state file{"g.states", state.save()};
  check_graph_error(error_kind::invalid_argument, {"g.states", "in another state as well"},
                    [&] { state.merge(file); });
  graph::weight_only_options ignoring;
  ignoring.scope.ignored.last_layer = true;
  check_graph_error(error_kind::invalid_argument, {"g.states", "2 inputs", "expected 1"},
                    [&] { weight_only_state(m, ignoring).merge(file); });
  graph::model other = m;
  other.initializers["w2"] = random_floats(r, {40, 10}, -1.0F, 1.0F);
  check_graph_error(error_kind::invalid_argument, {"g.states", "another model"},
                    [&] { weight_only_state(other).merge(file); });
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"}, [&] {
    static_cast<void>(graph::quantize_weights_only(
        m, {.algorithm = graph::weight_only_algorithm::awq}, weight_only_state(m)));
  });
  check_graph_error(error_kind::unsupported, {"diagonal"}, [&] {
    const weight_only_state s(
        m, {.algorithm = graph::weight_only_algorithm::awq, .diagonal_statistics = true});
  });
  // States of the other kind.
  check_graph_error(error_kind::invalid_argument, {"g.states", "approach"},
                    [&] { calibration_state(m).merge(file); });
  calibration_state ranges(m);
  ranges.observe(samples_source(samples));
  check_graph_error(error_kind::invalid_argument, {"r.states", "approach is static"}, [&] {
    weight_only_state(m).merge({"r.states", ranges.save()});
  });
  std::vector<std::byte> cut = file.bytes;
  cut.resize(cut.size() / 2);
  check_graph_error(error_kind::bad_file, {"g.states"}, [&] {
    weight_only_state(m).merge({"g.states", cut});
  });
}

TEST_CASE("calibration states: settings that differ are named, one by one") {
  graph::detail::state_origin mine;
  mine.settings = {{"a", "1"}, {"b", "2"}};
  graph::detail::state_origin other = mine;
  mine.require_same(other, "x");
  other.settings.erase("b");
  check_graph_error(error_kind::invalid_argument, {"x", "no b", "expected 2"},
                    [&] { mine.require_same(other, "x"); });
  other.settings = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
  check_graph_error(error_kind::invalid_argument, {"x", "its c is 3", "expected none"},
                    [&] { mine.require_same(other, "x"); });
  other = mine;
  other.model = 5;
  check_graph_error(error_kind::invalid_argument, {"x", "another model"},
                    [&] { mine.require_same(other, "x"); });
}
