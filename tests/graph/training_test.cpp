// SPDX-License-Identifier: BSD-3-Clause
// Training: float models, and models that are trained as the quantized ones that they become.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/learn/loss.hpp>
#include <detent/graph/learn/train.hpp>
#include <detent/graph/learn/trained_constant.hpp>
#include <detent/graph/learn/trainer.hpp>
#include <detent/graph/model/nearest_names.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/quantize/quantization_aware_training.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare_models.hpp"
#include "for_each_target.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"
#include "training_models.hpp"

using namespace test;

TEST_CASE("training: a float network learns, with BatchNormalization and without") {
  test::random_source r(900);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 256);
  const graph::training_data validation = bars(r, 100);
  for (const bool normalized : {false, true}) {
    const graph::model m = classifier(r, normalized);
    std::size_t told = 0;
    std::size_t steps = 0;
    graph::training_options o = quick(8);
    o.on_epoch = [&](const graph::epoch_report& e) { CHECK(e.epoch == told++); };
    o.on_step = [&](std::size_t done, std::size_t total, double loss) {
      CHECK(done == ++steps);
      CHECK(total == 8 * 16);
      CHECK(std::isfinite(loss));
    };
    const graph::training_result t = graph::train(m, data, validation, o);
    CHECK(told == 8);
    REQUIRE(t.epochs.size() == 8);
    CHECK(t.epochs[7].loss < 0.5 * t.epochs[0].loss);
    const double before = accuracy(m, validation);
    INFO("normalized ", normalized, ": ", before, " -> ", t.epochs[t.best_epoch.value()].accuracy);
    CHECK(before < 0.6);
    CHECK(t.epochs[t.best_epoch.value()].accuracy > 0.95);
    CHECK(accuracy(t.trained, validation) == t.epochs[t.best_epoch.value()].accuracy);
    // The form of the model is that of the one given; constants alone are others.
    CHECK(t.trained.nodes.size() == m.nodes.size());
    CHECK(t.trained.initializers.size() == m.initializers.size());
    if (normalized) {
      CHECK(first(t.trained, "BatchNormalization").outputs.size() == 1);
      CHECK(values_of<float>(t.trained.initializers.at("mean0")) !=
            values_of<float>(m.initializers.at("mean0")));
    }
  }
}

TEST_CASE("training: the same bytes for any number of threads") {
  test::random_source r(901);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 48);
  const graph::training_data validation = bars(r, 32);
  const graph::model m = classifier(r, true);
  graph::training_options o = quick(2);
  o.augmentation = graph::image_augmentation{.flip = 0.5, .shift = 1};
  o.weight_decay = 0.01;
  o.max_gradient_norm = 1.0;
  const auto trained = [&] { return graph::to_onnx(graph::train(m, data, validation, o).trained); };
  graph::quantization_aware_training_options q;
  q.training = o;
  q.weights.bits = 3;
  q.activations.bits = 4;
  const auto quantized = [&] {
    q.training = o;
    return graph::to_onnx(
        graph::quantization_aware_training(m, data, validation, q).quantized.result);
  };
  const std::string once = trained();
  const std::string once_quantized = quantized();
  for (const auto threads : std::initializer_list<std::size_t>{2, 3}) {
    detent::thread_pool pool(threads);
    o.executor.parallel = pool.parallel();
    CHECK(trained() == once);
    CHECK(quantized() == once_quantized);
  }
  o.executor.parallel = {};
  o.seed = 1;
  CHECK(trained() != once);
}

TEST_CASE("training: the same bytes on every target") {
  test::random_source r(907);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 40);
  const graph::model m = classifier(r, true);
  graph::training_options o = quick(2);
  o.loss.label_smoothing = 0.1;
  graph::quantization_aware_training_options q;
  q.training = o;
  q.training.loss.distillation = 0.5;
  q.weights.bits = 4;
  q.rule = graph::activation_rule::lsq_plus;
  std::string trained;
  std::string quantized;
  for_each_target([&] {
    const std::string now = graph::to_onnx(graph::train(m, data, data, o).trained);
    const std::string also =
        graph::to_onnx(graph::quantization_aware_training(m, data, data, q).quantized.result);
    CHECK((trained.empty() || now == trained));
    CHECK((quantized.empty() || also == quantized));
    trained = now;
    quantized = also;
  });
}

TEST_CASE("training: of a quantized model, few bits get back what rounding lost") {
  test::random_source r(903);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 256);
  const graph::training_data validation = bars(r, 200);
  const graph::training_result real = graph::train(classifier(r, true), data, validation, quick(8));
  const double of_float = real.epochs[real.best_epoch.value()].accuracy;
  REQUIRE(of_float > 0.95);
  for (const auto& bits :
       std::initializer_list<std::pair<std::size_t, std::size_t>>{{8, 8}, {4, 4}, {2, 4}}) {
    // Copies, because clang 14 lets no lambda, such as that of INFO, capture a structured binding.
    const std::size_t weights = bits.first;
    const std::size_t activations = bits.second;
    for (const double distillation : {0.0, 1.0}) {
      graph::quantization_aware_training_options o;
      o.training = quick(6, 2e-3);
      o.training.loss.distillation = distillation;
      o.weights.bits = weights;
      o.activations.bits = activations;
      const auto t = graph::quantization_aware_training(real.trained, data, validation, o);
      const double now = accuracy(t.quantized.result, validation);
      INFO("W", weights, "A", activations, " distillation ", distillation, ": float ", of_float,
           ", before ", t.before.accuracy, ", trained ", now);
      CHECK(now >= t.before.accuracy);
      CHECK(now >= of_float - (weights == 2 ? 0.05 : 0.02));
      if (t.best_epoch) {
        CHECK(now == t.epochs[*t.best_epoch].accuracy);
        CHECK(t.epochs[*t.best_epoch].is_best);
      } else {
        CHECK(now == t.before.accuracy);
      }
      // The exported model computes the same in float, as its nodes say, and in integers.
      const auto samples = test::samples_of_x(r, {5, 1, 6, 6}, 2);
      for (const auto& sample : samples) {
        CHECK(different(graph::for_execution(t.quantized.result),
                        graph::for_execution(t.quantized.result, false), sample) == "");
      }
    }
  }
}

TEST_CASE("training: every rule of activations and a schedule of quantizers") {
  test::random_source r(912);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 128);
  const graph::training_data validation = bars(r, 100);
  const graph::model m = graph::train(classifier(r, true), data, validation, quick(6)).trained;
  using rule = graph::activation_rule;
  std::set<double> losses;
  for (const auto which : {rule::straight_through, rule::lsq, rule::lsq_plus, rule::pact}) {
    graph::quantization_aware_training_options o;
    o.training = quick(4, 2e-3);
    o.weights.bits = 3;
    o.activations.bits = 3;
    o.rule = which;
    o.clip_penalty = 1e-3;
    o.schedule = {.quantize_after = {.epochs = 1, .steps = 3},
                  .observe_for = {.epochs = 2},
                  .averaging = 0.1};
    std::string once;
    double last = 0.0;
    for (const auto threads : std::initializer_list<std::size_t>{1, 2, 3}) {
      detent::thread_pool pool(threads);
      o.training.executor.parallel = threads == 1 ? detent::parallel_for{} : pool.parallel();
      const auto t = graph::quantization_aware_training(m, data, validation, o);
      INFO("rule ", static_cast<int>(which), ": before ", t.before.accuracy, ", trained ",
           t.epochs.back().accuracy);
      CHECK(t.best_epoch.has_value());
      CHECK(accuracy(t.quantized.result, validation) > 0.9);
      const std::string bytes = graph::to_onnx(t.quantized.result);
      once = threads == 1 ? bytes : once;
      last = threads == 1 ? t.epochs.back().validation_loss : last;
      CHECK(bytes == once);
      CHECK(t.epochs.back().validation_loss == last);
    }
    CHECK(losses.insert(last).second);  // each rule has made another model of the last epoch
  }
}

TEST_CASE("training: normalizations are trained while their folded weights are quantized") {
  test::random_source r(917);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 128);
  const graph::training_data validation = bars(r, 100);
  const graph::model m = graph::train(classifier(r, true), data, validation, quick(6)).trained;
  graph::quantization_aware_training_options o;
  o.training = quick(4, 2e-3);
  o.weights.bits = 2;
  o.activations.bits = 4;
  const auto plain = graph::quantization_aware_training(m, data, validation, o);
  o.schedule.freeze_statistics_after = graph::training_span{.epochs = 2, .steps = 1};
  std::string once;
  for (const auto threads : std::initializer_list<std::size_t>{1, 2, 3}) {
    detent::thread_pool pool(threads);
    o.training.executor.parallel = threads == 1 ? detent::parallel_for{} : pool.parallel();
    const auto t = graph::quantization_aware_training(m, data, validation, o);
    INFO("before ", t.before.accuracy, ", trained ", t.epochs.back().accuracy);
    CHECK(t.before.accuracy == plain.before.accuracy);
    CHECK(accuracy(t.quantized.result, validation) > t.before.accuracy);
    CHECK(accuracy(t.quantized.result, validation) > 0.9);
    CHECK(test::count(t.quantized.result, "BatchNormalization") == 0);
    CHECK(t.epochs[0].loss != plain.epochs[0].loss);
    const std::string bytes = graph::to_onnx(t.quantized.result);
    once = threads == 1 ? bytes : once;
    CHECK(bytes == once);
  }
}

TEST_CASE("training: observed ranges are moving averages of the batches, then frozen") {
  test::random_source r(913);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 64);
  const graph::model m = classifier(r, false);
  graph::quantization_aware_training_options o;
  o.training = quick(1, 1e-2);
  o.training.batch_size = 8;
  o.activations.bits = 8;
  o.rule = graph::activation_rule::straight_through;
  o.calibration_samples = 4;
  o.schedule = {.observe_for = {.steps = 6}, .averaging = 0.25};
  // The ranges of the input depend on the samples alone.
  const auto batch_of = [&](std::size_t step) {
    const std::vector<std::size_t> order = graph::shuffled(64, 0, 0);
    return data.batch(std::span<const std::size_t>(order).subspan(step * 8, 8));
  };
  const auto q = graph::static_quantization(
      m,
      [&, at = std::size_t{0}]() mutable -> std::optional<std::map<std::string, tensor>> {
        if (at == 4) {
          at = 0;
          return std::nullopt;
        }
        const std::array<std::size_t, 1> index{at++};
        return data.batch(index).inputs;
      },
      {.method = o.method});
  const detent::quant_params p = q.parameters.activations.at("x");
  double lower = (0.0 - p.zero_point) * static_cast<double>(p.scale);
  double upper = (255.0 - p.zero_point) * static_cast<double>(p.scale);
  for (std::size_t step = 0; step < 6; ++step) {
    const auto x = values_of<float>(batch_of(step).inputs.at("x"));
    const auto [least, most] = std::minmax_element(x.begin(), x.end());
    lower += 0.25 * (static_cast<double>(*least) - lower);
    upper += 0.25 * (static_cast<double>(*most) - upper);
  }
  const auto t = graph::quantization_aware_training(m, data, data, o);
  REQUIRE(t.best_epoch == std::optional<std::size_t>(0));
  const detent::quant_params found = t.quantized.parameters.activations.at("x");
  CHECK(static_cast<double>(found.scale) == doctest::Approx((upper - lower) / 255.0).epsilon(1e-5));
  CHECK(found.zero_point == std::lround(-lower / ((upper - lower) / 255.0)));
  CHECK(found.scale != p.scale);
  // All values are observed; their grids cover what the frozen average covers.
  std::size_t moved = 0;
  for (const auto& [value, now] : t.quantized.parameters.activations) {
    moved += now.scale != q.parameters.activations.at(value).scale ? 1U : 0U;
  }
  CHECK(moved == t.quantized.parameters.activations.size());
  // An activation with an override keeps it.
  o.activations.overrides["x"] = {.params = detent::quant_params{0.01F, 100}};
  const auto kept = graph::quantization_aware_training(m, data, data, o);
  CHECK(kept.quantized.parameters.activations.at("x") == detent::quant_params{0.01F, 100});
}

TEST_CASE("training: a penalty of a constant is part of the loss and its gradient") {
  model_builder b;
  b.input("x", {-1, 2});
  std::string y = b.add("Mul", {"x", b.constant("used", floats({2}, {1.0F, 2.0F}))});
  b.output(b.add("Add", {y, b.constant("other", floats({2}, {3.0F, -4.0F}))}));
  graph::training_options o;
  o.optimizer = graph::training_optimizer::sgd;
  o.momentum = 0.0;
  o.learning_rate = 0.5;
  o.schedule = {.schedule = graph::learning_rate_schedule::constant};
  o.loss.target = graph::training_target::values;
  graph::trainer t(
      b.get(),
      {{"used", graph::constant_role::weight}, {"other", graph::constant_role::bias, 0.25}}, o, 10,
      b.get().outputs[0].name);
  // The output is the label: the loss is the penalty alone, 0.25 / 2 * (9 + 16).
  const graph::training_batch batch{{{"x", floats({1, 2}, {1.0F, 1.0F})}},
                                    floats({1, 2}, {4.0F, -2.0F})};
  CHECK(t.step(batch) == doctest::Approx(3.125));
  CHECK(values_of<float>(t.network().initializers.at("used")) == std::vector<float>{1.0F, 2.0F});
  CHECK(values_of<float>(t.network().initializers.at("other")) ==
        std::vector<float>{2.625F, -3.5F});
  // What set_constant() gives is what training goes on from.
  t.set_constant("other", floats({2}, {3.0F, -4.0F}));
  CHECK(t.step(batch) == doctest::Approx(3.125));
  CHECK(values_of<float>(t.network().initializers.at("other")) ==
        std::vector<float>{2.625F, -3.5F});
  check_graph_error(error_kind::invalid_argument, {"penalty", "'other'", "-1"}, [&] {
    graph::trainer(b.get(), {{"other", graph::constant_role::bias, -1.0}}, o, 10,
                   b.get().outputs[0].name);
  });
}

TEST_CASE("training: hidden values are drawn to those of the float model") {
  test::random_source r(936);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 64);
  const graph::training_data validation = bars(r, 100);
  const graph::model m = classifier(r, false);
  const graph::training_batch batch = data.batch(std::vector<std::size_t>{5, 6, 7, 8});
  graph::training_options o;
  o.optimizer = graph::training_optimizer::sgd;
  o.momentum = 0.0;
  o.schedule = {.schedule = graph::learning_rate_schedule::constant};
  const std::vector<graph::trained_constant> constants = graph::trainable_constants(m);
  const std::string output = m.outputs[0].name;
  // The teacher has another bias b2: values behind it differ by a step that is known.
  graph::model teacher = m;
  teacher.initializers["b2"] = floats({8}, std::vector<float>(8, 0.5F));
  graph::trainer plain(m, constants, o, 10, output);
  const double by_labels = plain.step(batch);
  for (const double weight : {0.0, 1.0, 3.0}) {
    INFO("weight ", weight);
    o.loss.hidden = {"Conv_2_out"};
    o.loss.hidden_weight = weight;
    graph::trainer t(m, constants, o, 10, output, &teacher, output);
    CHECK(t.step(batch) == doctest::Approx(by_labels + weight * 0.25).epsilon(1e-6));
    // Of two values, the second one equals that of the teacher.
    o.loss.hidden = {"Conv_2_out", "Relu_1_out"};
    graph::trainer both(m, constants, o, 10, output, &teacher, output);
    CHECK(both.step(batch) == doctest::Approx(by_labels + weight * 0.25).epsilon(1e-6));
    CHECK(both.constants() == t.constants());
    // The gradient of b2 by the hidden term is weight * 2 * (0 - 0.5) / 8 for each channel.
    const auto now = t.constants().at("b2");
    const auto without = plain.constants().at("b2");
    for (std::size_t k = 0; k < 8; ++k) {
      CHECK(now[k] - without[k] ==
            doctest::Approx(o.learning_rate * weight * 2.0 * 0.5 / 8.0).epsilon(1e-3));
    }
  }
  // Training as a quantized model: hidden values come closer to those of the float model.
  const graph::model real = graph::train(m, data, data, quick(6)).trained;
  graph::quantization_aware_training_options q;
  q.training = quick(6, 2e-3);
  q.weights.bits = 2;
  q.activations.bits = 3;
  const std::string hidden = "Relu_3_out";
  const auto error_of = [&](double weight) {
    q.training.loss.hidden.clear();
    if (weight > 0.0) {
      q.training.loss.hidden = {hidden};
      q.training.loss.hidden_weight = weight;
    }
    const auto t = graph::quantization_aware_training(real, data, validation, q);
    REQUIRE(t.best_epoch.has_value());
    // The loss of an epoch holds the hidden term, so values are compared in the written model.
    graph::executor taught(real);
    graph::executor student(graph::for_execution(t.quantized.result, false));
    std::map<std::string, tensor> a;
    std::map<std::string, tensor> b;
    static_cast<void>(taught.run(batch.inputs, [&](const std::string& name, const tensor& v) {
      a[name] = graph::to_plain(v);
    }));
    static_cast<void>(student.run(batch.inputs, [&](const std::string& name, const tensor& v) {
      b[name] = graph::to_plain(v);
    }));
    return graph::mean_squared_error(b.at(hidden + "_dequantized"), a.at(hidden)).value;
  };
  const double without = error_of(0.0);
  const double with = error_of(10.0);
  MESSAGE("mean squared error of the hidden value: ", without, ", with its term ", with);
  CHECK(with < 0.9 * without);
}

TEST_CASE("training: the loss takes what goes into a Softmax") {
  test::random_source r(906);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 64);
  const graph::model logits = classifier(r, false);
  graph::model probabilities = logits;
  graph::node softmax;
  softmax.op_type = "Softmax";
  softmax.inputs = {logits.outputs[0].name};
  softmax.outputs = {"probabilities"};
  probabilities.nodes.push_back(softmax);
  probabilities.outputs[0].name = "probabilities";
  const graph::training_result a = graph::train(logits, data, data, quick(2));
  const graph::training_result b = graph::train(probabilities, data, data, quick(2));
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(a.epochs[i].loss == b.epochs[i].loss);
    CHECK(a.epochs[i].validation_loss == b.epochs[i].validation_loss);
    CHECK(a.epochs[i].accuracy == b.epochs[i].accuracy);
  }
  CHECK(b.trained.outputs[0].name == "probabilities");
  const auto q =
      graph::quantization_aware_training(probabilities, data, data, {.training = quick(1)});
  CHECK(q.quantized.result.outputs[0].name == "probabilities");
  CHECK(q.epochs[0].loss < 2.0);
  // Also where an Identity stands behind the Softmax.
  graph::model passed_on = probabilities;
  graph::node identity;
  identity.op_type = "Identity";
  identity.inputs = {"probabilities"};
  identity.outputs = {"passed_on"};
  passed_on.nodes.push_back(identity);
  passed_on.outputs[0].name = "passed_on";
  const graph::training_result c = graph::train(passed_on, data, data, quick(2));
  CHECK(c.epochs[1].loss == a.epochs[1].loss);
  CHECK(c.epochs[1].validation_loss == a.epochs[1].validation_loss);
  // The last axis may be counted from the front, and is the default before opset 13 by its number.
  for (const std::int64_t opset : {11, 13}) {
    graph::model counted = probabilities;
    counted.opsets[""] = opset;
    if (opset == 13) {
      counted.nodes.back().attributes["axis"] = number(1);
    }
    CHECK(graph::train(counted, data, data, quick(2)).epochs[0].loss == a.epochs[0].loss);
    const auto trained =
        graph::quantization_aware_training(counted, data, data, {.training = quick(1)});
    CHECK(trained.epochs[0].loss == q.epochs[0].loss);
    CHECK(trained.before.loss == q.before.loss);
  }
  // Probabilities along another axis are no classes.
  graph::model across = probabilities;
  across.nodes.back().attributes["axis"] = number(0);
  CHECK(graph::train(across, data, data, quick(2)).epochs[0].loss != a.epochs[0].loss);
}

TEST_CASE("training: shapes and conditions need no gradient") {
  test::random_source r(907);
  const graph::training_data data = bars(r, 40);
  graph::model m = classifier(r, false);
  // The form of x.view(x.size(0), -1), and a comparison that chooses.
  const auto flatten = std::find_if(m.nodes.begin(), m.nodes.end(),
                                    [](const graph::node& n) { return n.is("Flatten"); });
  REQUIRE(flatten != m.nodes.end());
  const std::string pooled = flatten->inputs[0];
  const auto make = [](const std::string& op, std::vector<std::string> inputs,
                       const std::string& result, attributes a = {}) {
    graph::node n;
    n.op_type = op;
    n.name = op;
    n.inputs = std::move(inputs);
    n.outputs = {result};
    n.attributes = std::move(a);
    return n;
  };
  m.initializers["first"] = test::make_tensor<std::int64_t>(element_type::s64, {1}, {0});
  m.initializers["all"] = test::make_tensor<std::int64_t>(element_type::s64, {1}, {-1});
  m.initializers["zero"] = floats({}, {0.0F});
  const std::vector<graph::node> added{
      make("Greater", {pooled, "zero"}, "is_positive"),
      make("Where", {"is_positive", pooled, "zero"}, "chosen"), make("Shape", {"chosen"}, "shape"),
      make("Gather", {"shape", "first"}, "batch"),
      make("Concat", {"batch", "all"}, "wanted", {{"axis", number(0)}})};
  graph::model viewed = m;
  viewed.nodes.insert(viewed.nodes.begin() + (flatten - m.nodes.begin()), added.begin(),
                      added.end());
  for (graph::node& n : viewed.nodes) {
    if (n.is("Flatten")) {
      n.op_type = "Reshape";
      n.inputs = {"chosen", "wanted"};
    }
  }
  const auto expected = graph::train(m, data, data, quick(2));
  const auto found = graph::train(viewed, data, data, quick(2));
  CHECK(found.epochs[1].loss == expected.epochs[1].loss);
  CHECK(graph::quantization_aware_training(viewed, data, data, {.training = quick(1)})
            .epochs.size() == 1);
}

TEST_CASE("training: constants that the loss does not depend on stay as they are") {
  test::random_source r(908);
  const graph::training_data data = bars(r, 40);
  graph::model m = classifier(r, false);
  const std::string features = m.nodes.back().inputs[0];
  graph::node head = m.nodes.back();
  head.name = "head";
  head.inputs = {features, "head_w", "head_b"};
  head.outputs = {"head"};
  m.initializers["head_w"] = random_floats(r, {4, 72}, -0.2F, 0.2F);
  m.initializers["head_b"] = random_floats(r, {4}, -0.2F, 0.2F);
  m.nodes.push_back(head);
  graph::value_info v = m.outputs[0];
  v.name = "head";
  m.outputs.push_back(v);
  for (const auto optimizer : {graph::training_optimizer::sgd, graph::training_optimizer::adam,
                               graph::training_optimizer::adamw}) {
    graph::training_options o = quick(2);
    o.optimizer = optimizer;
    o.weight_decay = 0.5;
    graph::trainer t(m, graph::trainable_constants(m), o, 2, m.outputs[0].name);
    constexpr std::array<std::size_t, 4> batch{0, 1, 2, 3};
    for (int step = 0; step < 2; ++step) {
      t.step(data.batch(batch));
    }
    const auto& now = t.network().initializers;
    CHECK(values_of<float>(now.at("head_w")) == values_of<float>(m.initializers.at("head_w")));
    CHECK(values_of<float>(now.at("class_w")) != values_of<float>(m.initializers.at("class_w")));
  }
}

TEST_CASE("training: a mask of -infinity before a Softmax is no error") {
  test::random_source r(909);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  model_builder b(13);
  b.input("x", {-1, 3});
  const std::string scores =
      b.add("MatMul", {"x", b.constant("w", random_floats(r, {3, 3}, -1.0F, 1.0F))});
  const std::string masked =
      b.add("Add", {scores, b.constant("mask", floats({3}, {0.0F, 0.0F, -infinity}))});
  b.output(b.add("MatMul", {b.add("Softmax", {masked}),
                            b.constant("v", random_floats(r, {3, 2}, -1.0F, 1.0F))}));
  const graph::training_data data = graph::in_memory(
      {{"x", random_floats(r, {8, 3}, -1.0F, 1.0F)}},
      test::make_tensor<std::int64_t>(element_type::s64, {8}, {0, 1, 0, 1, 0, 1, 0, 1}));
  const auto result = graph::train(b.get(), data, data, quick(3));
  CHECK(result.epochs.size() == 3);
  CHECK(std::isfinite(result.epochs.back().loss));
  CHECK(values_of<float>(result.trained.initializers.at("mask")) ==
        std::vector<float>{0.0F, 0.0F, -infinity});
  CHECK(graph::trainable_constants(b.get()).size() == 2);
}

TEST_CASE("training: samples that are no numbers are named") {
  test::random_source r(910);
  const graph::training_data data = bars(r, 40);
  const graph::model m = classifier(r, false);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    graph::training_data wrong = data;
    wrong.batch = [&](std::span<const std::size_t> indices) {
      graph::training_batch batch = data.batch(indices);
      for (std::size_t i = 0; i < indices.size(); ++i) {
        if (indices[i] == 23) {
          batch.inputs.at("x").mutable_data<float>()[i * 36 + 5] = value;
        }
      }
      return batch;
    };
    const std::string text = std::isnan(value) ? "nan" : "inf";
    check_graph_error(error_kind::invalid_argument, {"input 'x' of sample 23", text},
                      [&] { static_cast<void>(graph::train(m, wrong, data, quick(1))); });
    check_graph_error(error_kind::invalid_argument, {"input 'x' of validation sample 23", text},
                      [&] { static_cast<void>(graph::train(m, data, wrong, quick(1))); });
  }
}

TEST_CASE("training: nodes that make constants, and normalizations of old opsets") {
  test::random_source r(911);
  const graph::training_data data = bars(r, 40);
  for (const bool normalized : {false, true}) {
    graph::model m = classifier(r, normalized);
    m.opsets[""] = 13;
    const auto expected = graph::train(
        [&] {
          graph::model newer = m;
          newer.opsets[""] = 17;
          return newer;
        }(),
        data, data, quick(2));
    // Weights that a Constant node makes, and transposed ones.
    graph::model old = m;
    graph::node constant;
    constant.op_type = "Constant";
    constant.name = "constant";
    constant.outputs = {"class_w_before"};
    attribute value;
    value.kind = attribute::kind_type::t;
    const std::vector<float> w = values_of<float>(m.initializers.at("class_w"));
    std::vector<float> transposed(w.size());
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t k = 0; k < 72; ++k) {
        transposed[k * 4 + i] = w[i * 72 + k];
      }
    }
    value.t = floats({72, 4}, transposed);
    constant.attributes["value"] = value;
    graph::node transpose;
    transpose.op_type = "Transpose";
    transpose.name = "transpose";
    transpose.inputs = {"class_w_before"};
    transpose.outputs = {"class_w"};
    old.initializers.erase("class_w");
    old.nodes.insert(old.nodes.begin(), {constant, transpose});
    const auto found = graph::train(old, data, data, quick(2));
    CHECK(found.epochs[1].loss == expected.epochs[1].loss);
    CHECK(found.epochs[1].validation_loss == expected.epochs[1].validation_loss);
    CHECK(found.trained.opset() == 13);
    if (found.best_epoch) {
      CHECK(values_of<float>(found.trained.initializers.at("class_w")) ==
            values_of<float>(expected.trained.initializers.at("class_w")));
    }
    if (normalized) {
      CHECK(count(found.trained, "BatchNormalization", "") == 2);
      graph::quantization_aware_training_options o{.training = quick(2)};
      o.schedule.freeze_statistics_after = graph::training_span{.epochs = 1};
      CHECK(graph::quantization_aware_training(m, data, data, o).epochs.size() == 2);
    }
  }
}

TEST_CASE("training: additions before normalizations, and weights that are tied") {
  test::random_source r(913);
  const graph::training_data data = bars(r, 40);
  graph::model m = classifier(r, true);
  const auto conv = m.nodes.begin();
  graph::node add;
  add.op_type = "Add";
  add.name = "add";
  add.inputs = {conv->outputs[0], "offset"};
  add.outputs = {"moved"};
  m.initializers["offset"] = random_floats(r, {8, 1, 1}, -0.5F, 0.5F);
  m.nodes[1].inputs[0] = "moved";
  m.nodes.insert(m.nodes.begin() + 1, add);
  for (const bool is_frozen : {false, true}) {
    graph::quantization_aware_training_options o{.training = quick(2)};
    if (is_frozen) {
      o.schedule.freeze_statistics_after = graph::training_span{.epochs = 1};
    }
    CHECK(graph::quantization_aware_training(m, data, data, o).epochs.size() == 2);
  }

  model_builder b(13);
  b.input("x", {-1, 6});
  const std::string hidden =
      b.add("Tanh", {b.add("MatMul", {"x", b.constant("e", random_floats(r, {6, 6}, -1, 1))})});
  b.output(b.add("MatMul", {hidden, b.add("Transpose", {"e"}, {{"perm", list({1, 0})}})}));
  const graph::training_data rows = graph::in_memory(
      {{"x", random_floats(r, {32, 6}, -1.0F, 1.0F)}}, random_floats(r, {32, 6}, -1.0F, 1.0F));
  graph::training_options o = quick(3);
  o.loss.target = graph::training_target::values;
  const graph::training_result tied = graph::train(b.get(), rows, rows, o);
  CHECK(count(tied.trained, "Transpose", "") == 1);
  CHECK(tied.trained.initializers.size() == 1);
  CHECK(values_of<float>(tied.trained.initializers.at("e")) !=
        values_of<float>(b.get().initializers.at("e")));
}

TEST_CASE("training: a model with a fixed batch") {
  test::random_source r(912);
  const graph::training_data data = bars(r, 40);
  graph::model m = classifier(r, false);
  m.inputs[0].dims[0] = 20;
  graph::training_options o = quick(1);
  o.batch_size = 20;
  const auto fixed =
      graph::quantization_aware_training(m, data, data, {.training = o, .method = "minmax"});
  m.inputs[0].dims[0] = -1;
  const auto open =
      graph::quantization_aware_training(m, data, data, {.training = o, .method = "minmax"});
  CHECK(fixed.epochs[0].loss == open.epochs[0].loss);
  CHECK(fixed.before.loss == open.before.loss);
}

TEST_CASE("training: which constants are trained") {
  test::random_source r(904);
  model_builder b;
  b.input("x", {-1, 4});
  std::string y = b.add("MatMul", {"x", b.constant("w", random_floats(r, {4, 4}, -1.0F, 1.0F))});
  y = b.add("Add", {y, b.constant("b", random_floats(r, {4}, -1.0F, 1.0F))});
  y = b.add("Mul", {y, b.scalar("half", 0.5F)});
  y = b.add("Clip", {y, b.scalar("lower", -1.0F)});
  y = b.add("Add", {y, b.constant("shared", random_floats(r, {1, 4}, -1.0F, 1.0F))});
  y = b.add("Div", {y, "shared"});
  b.output(y);
  std::map<std::string, graph::constant_role> found;
  for (const graph::trained_constant& c : graph::trainable_constants(b.get())) {
    CHECK(found.emplace(c.name, c.role).second);
  }
  CHECK(found == std::map<std::string, graph::constant_role>{{"w", graph::constant_role::weight},
                                                             {"b", graph::constant_role::bias}});
}

TEST_CASE("training: what is refused") {
  test::random_source r(905);
  const graph::training_data data = bars(r, 20);
  const graph::model m = classifier(r, false);
  using words = std::initializer_list<std::string_view>;
  const auto refused = [&](error_kind kind, words what, const graph::training_options& o,
                           const graph::model& with, const graph::training_data& samples) {
    check_graph_error(kind, what, [&] { static_cast<void>(graph::train(with, samples, data, o)); });
  };
  graph::training_options o = quick(1);
  o.epochs = 0;
  refused(error_kind::invalid_argument, {"0 epochs"}, o, m, data);
  o = quick(1);
  o.batch_size = 0;
  refused(error_kind::invalid_argument, {"batches of 0"}, o, m, data);
  o = quick(1, -1.0);
  refused(error_kind::invalid_argument, {"learning rate", "-1"}, o, m, data);
  o = quick(1);
  o.loss.output = "nowhere";
  refused(error_kind::invalid_argument, {"no output 'nowhere'"}, o, m, data);
  o = quick(1);
  o.loss.distillation = 0.5;
  refused(error_kind::invalid_argument, {"distillation"}, o, m, data);

  o.loss.distillation = 0.0;
  o.loss.hidden = {"Relu_1_out"};
  refused(error_kind::invalid_argument, {"hidden values", "teaches"}, o, m, data);
  graph::quantization_aware_training_options with_hidden{.training = o};
  CHECK(graph::quantization_aware_training(m, data, data, with_hidden).epochs.size() == 1);
  const auto refused_hidden = [&](words what, const std::string& name, const graph::model& with) {
    with_hidden.training.loss.hidden = {name};
    check_graph_error(error_kind::invalid_argument, what, [&] {
      static_cast<void>(graph::quantization_aware_training(with, data, data, with_hidden));
    });
  };
  refused_hidden({"'Relu_1_oui'", "no node", "nearest in both: 'Relu_1_out', 'Relu_3_out'"},
                 "Relu_1_oui", m);
  refused_hidden({"'x'", "no node"}, "x", m);
  // What goes into a BatchNormalization is gone when that is folded.
  refused_hidden({"'Conv_0_out'", "folding has removed it", "nearest in both: '"}, "Conv_0_out",
                 classifier(r, true));

  // Labels that are no class.
  graph::training_data wrong = data;
  wrong.batch = [&](std::span<const std::size_t> indices) {
    graph::training_batch batch = data.batch(indices);
    batch.labels.mutable_data<std::int64_t>()[0] = 4;
    return batch;
  };
  refused(error_kind::invalid_argument, {"label", "4"}, quick(1), m, wrong);

  // An operator without a gradient is named before anything is run.
  graph::model rounded = m;
  graph::node round;
  round.op_type = "Round";
  round.name = "the_round";
  round.inputs = {m.outputs[0].name};
  round.outputs = {"rounded"};
  rounded.nodes.push_back(round);
  rounded.outputs[0].name = "rounded";
  refused(error_kind::unsupported, {"the_round", "no gradient"}, quick(1), rounded, data);

  // Infinity: the first value that has it is named.
  graph::model infinite = m;
  std::vector<float> weights = values_of<float>(m.initializers.at("w2"));
  weights[0] = std::numeric_limits<float>::infinity();
  infinite.initializers["w2"] = floats(m.initializers.at("w2").dims(), weights);
  refused(error_kind::overflow, {"step 1", "Conv", "not finite"}, quick(1), infinite, data);
  graph::training_options fast = quick(50, 1e30);
  refused(error_kind::overflow, {"step ", "smaller learning rate"}, fast, m, data);
  // A constant that no float holds is named before anything takes it.
  const graph::training_options wild = quick(2, 1e60);
  refused(error_kind::overflow, {"step 1: constant '", "becomes", "smaller learning rate"}, wild, m,
          data);
  check_graph_error(error_kind::overflow, {"step 1: constant '", "becomes"}, [&] {
    static_cast<void>(graph::quantization_aware_training(m, data, data, {.training = wild}));
  });

  // Schedules and penalties of quantizers.
  const auto refused_quantizers = [&](words what,
                                      const graph::quantization_aware_training_options& with) {
    check_graph_error(error_kind::invalid_argument, what, [&] {
      static_cast<void>(graph::quantization_aware_training(m, data, data, with));
    });
  };
  graph::quantization_aware_training_options q{.training = quick(1)};
  q.schedule.averaging = 0.0;
  refused_quantizers({"averaging", "0", "(0, 1]"}, q);
  q.schedule.averaging = std::numeric_limits<double>::quiet_NaN();
  refused_quantizers({"averaging", "nan"}, q);
  q.schedule = {.quantize_after = {.epochs = 1}};
  refused_quantizers({"off for 2 of 2 steps"}, q);
  q.schedule = {};
  q.rule = graph::activation_rule::pact;
  q.clip_penalty = -1.0;
  refused_quantizers({"penalty", "-1"}, q);
}

TEST_CASE("training: a model is not evaluated in batches of no samples") {
  random_source r(918);
  const graph::training_data data = bars(r, 8);
  const graph::model m = classifier(r, false);
  check_graph_error(error_kind::invalid_argument, {"batch of 0"},
                    [&] { static_cast<void>(graph::evaluate(m, data, {}, 0)); });
  CHECK(graph::evaluate(m, data, {}, 3).loss ==
        doctest::Approx(graph::evaluate(m, data, {}, 8).loss));
}

TEST_CASE("training: the names that are most like another one") {
  using graph::detail::edit_distance;
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("ab", "ba") == 2);
  CHECK(edit_distance("/layer.1/Add_output", "/layer.2/Add_output") == 1);
  CHECK(edit_distance(std::string(300, 'a'), std::string(300, 'a') + "b") == 0);
  CHECK(graph::nearest_names("bcd", {"xyz", "bcde", "abc", "bcd"}) == "'bcd', 'bcde', 'abc'");
  CHECK(graph::nearest_names("a", {"c", "b"}, 1) == "'c'");
  CHECK(graph::nearest_names("a", {}).empty());
}
