// SPDX-License-Identifier: BSD-3-Clause
// Training with a network in segments, whose values are computed again instead of being kept.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/learn/choose_segments.hpp>
#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/node_segments.hpp>
#include <detent/graph/learn/train.hpp>
#include <detent/graph/learn/trained_constant.hpp>
#include <detent/graph/learn/trainer.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/quantization_aware_training.hpp>
#include <detent/parallel.hpp>

#include "check_graph_error.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"
#include "sorting_transformer.hpp"
#include "training_models.hpp"

using namespace test;

namespace {

constexpr std::initializer_list<std::size_t> numbers_of_segments{1, 2, 3, 8};

/// Six Tanh nodes in a row, whose first value also goes to an Add behind them.
graph::model chain() {
  model_builder b;
  b.input("x", {-1, 3});
  std::string y = b.add("Mul", {"x", b.constant("w", floats({3}, {0.5F, -0.25F, 2.0F}))});
  const std::string first = y;
  for (int i = 0; i < 6; ++i) {
    y = b.add("Tanh", {y});
  }
  b.output(b.add("Add", {y, first}));
  return b.get();
}

/// Checks that `trained`, a function of the number of segments, returns the same bytes for each.
template <class Trained>
void check_same_bytes(const Trained& trained) {
  const std::string once = trained(1);
  for (const std::size_t k : numbers_of_segments) {
    INFO(k, " segments");
    CHECK(trained(k) == once);
  }
}

/// The losses of all epochs and the constants, as exact text.
std::string exact(const std::vector<graph::epoch_report>& epochs, const graph::model& m) {
  std::string all;
  for (const graph::epoch_report& e : epochs) {
    all += std::to_string(std::bit_cast<std::uint64_t>(e.loss)) + " " +
           std::to_string(std::bit_cast<std::uint64_t>(e.validation_loss)) + "\n";
  }
  return all + graph::to_onnx(m);
}

/// A trainer of all constants of a model with labels of classes.
graph::trainer trainer_of(const graph::model& m, const graph::training_options& o) {
  return {graph::training_form(m), graph::trainable_constants(m), o, 100, m.outputs[0].name};
}

}  // namespace

TEST_CASE("node_segments: nodes are divided evenly, and values between segments are kept") {
  const graph::model m = chain();
  REQUIRE(m.nodes.size() == 8);
  const graph::node_segments three(m, 3);
  CHECK(three.count() == 3);
  CHECK(three.begin(0) == 0);
  CHECK(three.end(0) == 2);
  CHECK(three.begin(1) == 2);
  CHECK(three.end(1) == 5);
  CHECK(three.begin(2) == 5);
  CHECK(three.end(2) == 8);
  // Node 0 feeds the last one; nodes 1 and 4 are the last of their segments; node 7 is the output.
  for (std::size_t i = 0; i < 8; ++i) {
    INFO("node ", i);
    CHECK(three.keeps(m.nodes[i].outputs[0]) == (i == 0 || i == 1 || i == 4 || i == 7));
  }
  CHECK(graph::node_segments(m, 3, {"Tanh_3_out"}).keeps("Tanh_3_out"));
  const graph::node_segments one(m, 1);
  CHECK(one.keeps("Tanh_3_out"));
  CHECK(one.end(0) == 8);
  // There are no more segments than nodes; a model without nodes has one.
  const graph::node_segments many(m, (std::numeric_limits<std::size_t>::max)());
  CHECK(many.count() == 8);
  CHECK(many.begin(7) == 7);
  CHECK(many.end(7) == 8);
  graph::model nothing = m;
  nothing.nodes.clear();
  CHECK(graph::node_segments(nothing, 5).count() == 1);
  CHECK(graph::node_segments(nothing, 5).end(0) == 0);
  check_graph_error(error_kind::invalid_argument, {"0 segments"},
                    [&] { graph::node_segments(m, 0); });
  check_graph_error(error_kind::invalid_argument, {"no value 'nothing'"},
                    [&] { graph::node_segments(m, 2, {"nothing"}); });
}

TEST_CASE("gradient_graph: the same gradients and less memory with segments") {
  const graph::model m = chain();
  const std::map<std::string, tensor> inputs{
      {"x", floats({2, 3}, {0.1F, 0.2F, -0.3F, 0.4F, -0.5F, 0.6F})}};
  const std::string output = m.outputs[0].name;
  const graph::gradient_graph::gradient_map seeds{{output, {1.0, 2.0, 3.0, -1.0, -2.0, 0.5}}};
  graph::gradient_graph plain(m);
  plain.forward(inputs);
  const auto expected = plain.backward(seeds, {"x", "w"});
  // Eight values of 6 floats; the gradients of w, the first and the second operand of the Add.
  CHECK(plain.memory().values == 8 * 24);
  for (const std::size_t k : {1U, 2U, 3U, 4U, 7U, 8U, 100U}) {
    INFO(k, " segments");
    graph::gradient_graph g(m);
    g.use_segments(k);
    std::vector<std::string> seen;
    g.forward(inputs, [&](const std::string& name, const tensor&) { seen.push_back(name); });
    CHECK(seen.size() == 9);
    CHECK(seen[0] == "x");
    for (std::size_t i = 0; i < 8 && seen.size() == 9; ++i) {
      CHECK(seen[i + 1] == m.nodes[i].outputs[0]);
    }
    CHECK(g.backward(seeds, {"x", "w"}) == expected);
    CHECK(g.backward(seeds, {"x", "w"}) == expected);  // from the same forward run
    const graph::gradient_memory estimate = graph::estimate_memory(
        m, graph::node_segments(m, k), graph::find_forms(m, inputs, {}), {output}, {"x", "w"});
    CHECK(g.memory().values == estimate.values);
    CHECK(g.memory().gradients <= estimate.gradients);
    CHECK(g.memory().gradients == plain.memory().gradients);
    CHECK(values_of<float>(g.value(output)) == values_of<float>(plain.value(output)));
  }
  // Three segments keep four values, and the largest has two more inside.
  graph::gradient_graph g(m);
  g.use_segments(3);
  g.forward(inputs);
  static_cast<void>(g.backward(seeds, {"w"}));
  CHECK(g.memory().values == 6 * 24);
  check_graph_error(error_kind::invalid_argument, {"'Tanh_3_out'", "inside a segment"},
                    [&] { static_cast<void>(g.value("Tanh_3_out")); });
  check_graph_error(error_kind::invalid_argument, {"'Tanh_3_out'", "inside a segment"},
                    [&] { static_cast<void>(g.backward(seeds, {"Tanh_3_out"})); });
  // A value that is asked for is there, and has a gradient.
  g.use_segments(3, {"Tanh_3_out"});
  CHECK(g.segments() == 3);
  g.forward(inputs);
  CHECK(values_of<float>(g.value("Tanh_3_out")) == values_of<float>(plain.value("Tanh_3_out")));
  CHECK(g.backward(seeds, {"Tanh_3_out"}) == plain.backward(seeds, {"Tanh_3_out"}));
  // A constant that changes counts from the next forward run on, not for values computed again.
  graph::gradient_graph changed(m);
  changed.use_segments(3);
  changed.forward(inputs);
  changed.set_constant("w", floats({3}, {1.0F, 1.0F, 1.0F}));
  CHECK(changed.backward(seeds, {"x", "w"}) == expected);
}

TEST_CASE("training: the same bytes for any number of segments, with BatchNormalization") {
  test::random_source r(931);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 72);
  const graph::training_data validation = bars(r, 32);
  const graph::model m = classifier(r, true);
  graph::training_options o = quick(2);
  o.augmentation = graph::image_augmentation{.flip = 0.5, .shift = 1};
  check_same_bytes([&](std::size_t segments) {
    o.segments = segments;
    const auto t = graph::train(m, data, validation, o);
    return exact(t.epochs, t.trained);
  });
  // Running means and variances follow each batch once.
  o.segments = 3;
  o.optimizer = graph::training_optimizer::sgd;
  o.learning_rate = 1e-30;
  graph::trainer once = trainer_of(m, o);
  o.segments = 1;
  graph::trainer plain = trainer_of(m, o);
  const graph::training_batch batch = data.batch(std::vector<std::size_t>{1, 2, 3, 4, 5});
  for (int i = 0; i < 3; ++i) {
    CHECK(once.step(batch) == plain.step(batch));
  }
  CHECK(once.segments() == 3);
  CHECK(once.constants() == plain.constants());
  CHECK(once.constants().at("mean0") != std::vector<double>(8, 0.0));

  graph::quantization_aware_training_options q;
  q.training = quick(4, 2e-3);
  q.training.loss.distillation = 0.5;
  q.training.loss.hidden = {"Relu_2_out"};
  q.weights.bits = 3;
  q.activations.bits = 4;
  for (const auto rule : {graph::activation_rule::lsq_plus, graph::activation_rule::pact}) {
    q.rule = rule;
    for (const bool with_schedule : {false, true}) {
      if (with_schedule) {
        q.schedule = {.quantize_after = {.steps = 2},
                      .observe_for = {.epochs = 1, .steps = 1},
                      .freeze_statistics_after = graph::training_span{.epochs = 2},
                      .averaging = 0.1};
      }
      check_same_bytes([&](std::size_t segments) {
        q.training.segments = segments;
        const auto t = graph::quantization_aware_training(m, data, validation, q);
        return exact(t.epochs, t.quantized.result);
      });
    }
    q.schedule = {};
  }
}

TEST_CASE("training: the same bytes for any number of segments of a transformer") {
  test::random_source r(932);
  INFO("seed ", r.seed());
  const graph::training_data data = unsorted(r, 60);
  const graph::training_data validation = unsorted(r, 30);
  const graph::model m = encoder(r).with_layers(2);
  graph::training_options o = quick(2, 3e-3);
  o.batch_size = 20;
  check_same_bytes([&](std::size_t segments) {
    o.segments = segments;
    const auto t = graph::train(m, data, validation, o);
    return exact(t.epochs, t.trained);
  });
  graph::quantization_aware_training_options q;
  q.weights.bits = 4;
  q.training = o;
  q.training.loss.distillation = 0.5;
  check_same_bytes([&](std::size_t segments) {
    q.training.segments = segments;
    detent::thread_pool pool(2);
    q.training.executor.parallel = segments == 3 ? pool.parallel() : detent::parallel_for{};
    const auto t = graph::quantization_aware_training(m, data, validation, q);
    q.training.executor.parallel = {};
    return exact(t.epochs, t.quantized.result);
  });
  // What a step holds.
  std::map<std::size_t, graph::gradient_memory> held;
  const graph::training_batch batch = data.batch(std::vector<std::size_t>{1, 2, 3, 4, 5, 6});
  for (const std::size_t k : numbers_of_segments) {
    o.segments = k;
    graph::trainer t = trainer_of(m, o);
    static_cast<void>(t.step(batch));
    held[k] = t.memory();
    CHECK(t.segments() == k);
    MESSAGE(k, " segments: ", held[k].values, " bytes of values, ", held[k].gradients,
            " of gradients");
    CHECK(held[k].gradients == held[1].gradients);
  }
  CHECK(held[2].values < held[1].values * 7 / 10);
  CHECK(held[8].values < held[1].values * 4 / 10);
}

TEST_CASE("training: segments for a limit of memory") {
  test::random_source r(933);
  INFO("seed ", r.seed());
  const graph::training_data data = unsorted(r, 64);
  const graph::model m = encoder(r).with_layers(2);
  graph::training_options o = quick(2, 3e-3);
  o.batch_size = 32;
  const auto plain = graph::train(m, data, data, o);
  // The memory of each number of segments, by the trainer's own count.
  const graph::training_batch batch = data.batch(std::vector<std::size_t>(32, 7));
  const auto held = [&](std::size_t segments) {
    graph::training_options with = o;
    with.segments = segments;
    graph::trainer t = trainer_of(m, with);
    static_cast<void>(t.step(batch));
    return t.memory();
  };
  std::vector<graph::segment_choice> told;
  o.segments = 0;
  o.on_segments = [&](const graph::segment_choice& c) { told.push_back(c); };
  // Without a limit that matters, one segment.
  CHECK(graph::to_onnx(graph::train(m, data, data, o).trained) == graph::to_onnx(plain.trained));
  REQUIRE(told.size() == 1);
  CHECK(told[0].segments == 1);
  const std::size_t gradients = told[0].memory.gradients;
  CHECK(told[0].memory.values == held(1).values);
  CHECK(gradients >= held(1).gradients);
  for (const std::size_t k : {2U, 4U, 8U}) {
    INFO(k, " segments");
    told.clear();
    o.executor.max_memory_bytes = held(k).values + gradients;
    const auto t = graph::train(m, data, data, o);
    REQUIRE(told.size() == 1);
    CHECK(told[0].segments == k);
    CHECK(told[0].memory.values == held(k).values);
    CHECK(graph::to_onnx(t.trained) == graph::to_onnx(plain.trained));
  }
  o.executor.max_memory_bytes = gradients;
  check_graph_error(error_kind::invalid_argument,
                    {"segments", std::to_string(gradients), "Smaller batches"},
                    [&] { static_cast<void>(graph::train(m, data, data, o)); });

  // Segments are chosen again for larger batches and for other nodes, and for nothing else.
  o.executor = {};
  told.clear();
  graph::trainer t = trainer_of(m, o);
  for (const std::size_t size : {4U, 2U, 1U, 4U, 6U}) {
    static_cast<void>(t.step(data.batch(std::vector<std::size_t>(size, 3))));
  }
  CHECK(told.size() == 2);
  t.use_nodes(graph::training_form(m));
  static_cast<void>(t.step(data.batch(std::vector<std::size_t>(2, 3))));
  CHECK(told.size() == 3);
}

TEST_CASE("training: a checkpoint goes on with another number of segments") {
  test::random_source r(934);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 48);
  const graph::model m = classifier(r, true);
  graph::quantization_aware_training_options q;
  q.training = quick(4, 2e-3);
  q.schedule = {.observe_for = {.epochs = 3}, .averaging = 0.2};
  std::optional<graph::training_checkpoint> second;
  q.training.on_checkpoint = [&](const graph::training_checkpoint& c) {
    second = c.epochs.size() == 2 ? std::optional(c) : second;
  };
  const auto whole = graph::quantization_aware_training(m, data, data, q);
  REQUIRE(second);
  q.training.on_checkpoint = {};
  q.training.resumed = second;
  q.training.segments = 3;
  const auto rest = graph::quantization_aware_training(m, data, data, q);
  CHECK(exact(rest.epochs, rest.quantized.result) == exact(whole.epochs, whole.quantized.result));
}

TEST_CASE("training: what is not finite is named in a segment, too") {
  test::random_source r(935);
  graph::model m = classifier(r, false);
  std::vector<float> weights = values_of<float>(m.initializers.at("w2"));
  weights[0] = std::numeric_limits<float>::infinity();
  m.initializers["w2"] = floats(m.initializers.at("w2").dims(), weights);
  const graph::training_data data = bars(r, 20);
  graph::training_options o = quick(1);
  for (const std::size_t k : numbers_of_segments) {
    o.segments = k;
    check_graph_error(error_kind::overflow, {"step 1", "Conv", "not finite"},
                      [&] { static_cast<void>(graph::train(m, data, data, o)); });
  }
}
