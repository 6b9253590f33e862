// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of training: going on from one gives the bytes of training without a break.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/learn/train.hpp>
#include <detent/graph/learn/training_checkpoint.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/quantization_aware_training.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"
#include "training_models.hpp"

using namespace test;
using graph::training_checkpoint;

namespace {

/// Options that use all of the state: moments, a decay, a schedule with a warm-up, augmentation.
graph::training_options thorough(std::size_t epochs) {
  graph::training_options o = quick(epochs);
  o.weight_decay = 0.01;
  o.schedule.warmup_steps = 5;
  o.augmentation = graph::image_augmentation{.flip = 0.5, .shift = 1};
  o.seed = 5;
  return o;
}

/// The checkpoints of all epochs, as they come back from their bytes.
auto kept_in(std::vector<training_checkpoint>& all) {
  return [&all](const training_checkpoint& c) {
    const std::vector<std::byte> bytes = c.save();
    all.push_back(training_checkpoint::load(bytes));
    CHECK(all.back().save() == bytes);
  };
}

void check_same(const std::vector<graph::epoch_report>& a,
                const std::vector<graph::epoch_report>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("epoch ", i);
    CHECK(a[i].epoch == b[i].epoch);
    CHECK(a[i].learning_rate == b[i].learning_rate);
    CHECK(a[i].loss == b[i].loss);
    CHECK(a[i].validation_loss == b[i].validation_loss);
    CHECK(a[i].accuracy == b[i].accuracy);
    CHECK(a[i].is_best == b[i].is_best);
    CHECK(a[i].scales == b[i].scales);
  }
}

/// Trains a quantized network in one go and from each of its checkpoints, all of which must give
/// the same bytes. Returns the checkpoints and what training in one go gave.
std::pair<std::vector<training_checkpoint>, graph::quantization_aware_training_result>
check_goes_on(const graph::model& m, const graph::training_data& data,
              const graph::training_data& validation,
              graph::quantization_aware_training_options o) {
  std::vector<training_checkpoint> kept;
  o.training.on_checkpoint = kept_in(kept);
  auto whole = graph::quantization_aware_training(m, data, validation, o);
  CHECK(kept.size() == o.training.epochs);
  const std::string bytes = graph::to_onnx(whole.quantized.result);
  o.training.on_checkpoint = {};
  for (const training_checkpoint& c : kept) {
    INFO("after ", c.epochs.size());
    o.training.resumed = c;
    const auto later = graph::quantization_aware_training(m, data, validation, o);
    CHECK(graph::to_onnx(later.quantized.result) == bytes);
    CHECK(later.best_epoch == whole.best_epoch);
    check_same(later.epochs, whole.epochs);
  }
  return {kept, whole};
}

}  // namespace

TEST_CASE("training checkpoint: a float network goes on from every epoch, with every optimizer") {
  random_source r(910);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 56);
  const graph::training_data validation = bars(r, 32);
  const graph::model m = classifier(r, true);
  for (const auto optimizer : {graph::training_optimizer::sgd, graph::training_optimizer::adam,
                               graph::training_optimizer::adamw}) {
    std::vector<training_checkpoint> kept;
    graph::training_options o = thorough(4);
    o.optimizer = optimizer;
    o.on_checkpoint = kept_in(kept);
    const graph::training_result whole = graph::train(m, data, validation, o);
    REQUIRE(kept.size() == 4);
    const std::string bytes = graph::to_onnx(whole.trained);
    o.on_checkpoint = {};
    for (const training_checkpoint& c : kept) {
      INFO("after ", c.epochs.size());
      o.resumed = c;
      const graph::training_result later = graph::train(m, data, validation, o);
      CHECK(graph::to_onnx(later.trained) == bytes);
      CHECK(later.best_epoch == whole.best_epoch);
      check_same(later.epochs, whole.epochs);
    }
  }
}

TEST_CASE("training checkpoint: a quantized network goes on from every epoch") {
  random_source r(911);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 56);
  const graph::training_data validation = bars(r, 32);
  const graph::model m =
      graph::train(classifier(r, true), bars(r, 128), validation, quick(4)).trained;
  graph::quantization_aware_training_options o;
  o.training = thorough(4);
  o.training.learning_rate = 2e-3;
  o.training.loss.distillation = 0.5;
  o.weights.bits = 2;
  o.activations.bits = 3;
  CHECK(check_goes_on(m, data, validation, o).second.best_epoch);
}

TEST_CASE("training checkpoint: quantizers that are switched on, observed and clipped go on, too") {
  random_source r(916);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 56);
  const graph::training_data validation = bars(r, 32);
  const graph::model m =
      graph::train(classifier(r, false), bars(r, 128), validation, quick(4)).trained;
  for (const auto rule : {graph::activation_rule::straight_through, graph::activation_rule::lsq,
                          graph::activation_rule::lsq_plus, graph::activation_rule::pact}) {
    graph::quantization_aware_training_options o;
    o.training = thorough(5);
    o.training.learning_rate = 2e-3;
    o.weights.bits = 3;
    o.activations.bits = 3;
    o.rule = rule;
    o.clip_penalty = 1e-3;
    // Off in the first epoch; the ranges follow the batches up to the end of the third.
    o.schedule = {.quantize_after = {.epochs = 1}, .observe_for = {.epochs = 3}, .averaging = 0.1};
    INFO("rule ", static_cast<int>(rule));
    const auto [kept, whole] = check_goes_on(m, data, validation, o);
    CHECK(whole.epochs[0].scales != whole.epochs[4].scales);
    const auto refused = [&](std::initializer_list<std::string_view> words) {
      check_graph_error(detent::error_kind::invalid_argument, words, [&] {
        static_cast<void>(graph::quantization_aware_training(m, data, validation, o));
      });
    };
    o.training.resumed = kept[1];
    o.training.resumed->ranges.begin()->second[0] = std::numeric_limits<double>::infinity();
    refused({"does not fit", "range"});
    o.training.resumed = kept[1];
    o.schedule.averaging = 0.2;
    refused({"other options"});
  }
}

TEST_CASE("training checkpoint: normalizations that are trained and frozen go on, too") {
  random_source r(917);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 56);
  const graph::model m = graph::train(classifier(r, true), bars(r, 128), data, quick(4)).trained;
  graph::quantization_aware_training_options o;
  o.training = thorough(4);
  o.training.learning_rate = 2e-3;
  o.weights.bits = 3;
  o.schedule.freeze_statistics_after = graph::training_span{.epochs = 2};
  const auto kept = check_goes_on(m, data, data, o).first;
  CHECK(!kept.back().state.others.empty());  // the running statistics, also behind the freeze
}

TEST_CASE("training: it can be cancelled, and goes on from its checkpoint") {
  random_source r(912);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 56);
  const graph::training_data validation = bars(r, 32);
  const graph::model m = classifier(r, false);
  graph::training_options o = thorough(3);
  const std::string whole = graph::to_onnx(graph::train(m, data, validation, o).trained);
  std::vector<training_checkpoint> kept;
  std::size_t steps = 0;
  o.on_checkpoint = kept_in(kept);
  o.cancelled = [&] { return ++steps > 6; };  // in the middle of the second epoch
  const graph::training_result part = graph::train(m, data, validation, o);
  CHECK(part.epochs.size() == 1);
  REQUIRE(kept.size() == 1);
  o.cancelled = {};
  o.resumed = kept[0];
  CHECK(graph::to_onnx(graph::train(m, data, validation, o).trained) == whole);
  // Before the first step there is nothing but the model that was given.
  o.resumed.reset();
  o.cancelled = [] { return true; };
  const graph::training_result none = graph::train(m, data, validation, o);
  CHECK(none.epochs.empty());
  CHECK(!none.best_epoch);
  CHECK(graph::to_onnx(none.trained) == graph::to_onnx(m));
}

TEST_CASE("training: epochs of fewer steps take the first samples of their order") {
  random_source r(915);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 56);
  graph::training_data watched = data;
  std::vector<std::size_t> seen;
  watched.batch = [&](std::span<const std::size_t> indices) {
    seen.insert(seen.end(), indices.begin(), indices.end());
    return data.batch(indices);
  };
  graph::training_options o = quick(2);
  o.steps_per_epoch = 2;
  o.seed = 3;
  const auto t = graph::train(classifier(r, false), watched, data, o);
  CHECK(t.epochs.size() == 2);
  std::vector<std::size_t> expected;
  for (const std::size_t epoch : std::initializer_list<std::size_t>{0, 1}) {
    const auto order = graph::shuffled(56, 3, epoch);
    expected.insert(expected.end(), order.begin(), order.begin() + 32);
  }
  CHECK(seen == expected);
}

TEST_CASE("training: a model that training makes worse is returned as it was") {
  random_source r(913);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 128);
  const graph::training_result good = graph::train(classifier(r, true), data, data, quick(6));
  const graph::training_data noise = bars(r, 32, 50.0F);
  graph::training_options o = quick(2, 0.5);
  const graph::training_result worse = graph::train(good.trained, noise, data, o);
  CHECK(!worse.best_epoch);
  CHECK(worse.epochs[0].accuracy < worse.before.accuracy);
  CHECK(graph::to_onnx(worse.trained) == graph::to_onnx(good.trained));
}

TEST_CASE("training checkpoint: what does not fit is refused") {
  random_source r(914);
  const graph::training_data data = bars(r, 32);
  const graph::model m = classifier(r, true);
  std::vector<training_checkpoint> kept;
  graph::training_options o = thorough(2);
  o.on_checkpoint = kept_in(kept);
  static_cast<void>(graph::train(m, data, data, o));
  o.on_checkpoint = {};
  const training_checkpoint good = kept[0];
  using words = std::initializer_list<std::string_view>;
  const auto refused = [&](words what, const training_checkpoint& c,
                           const graph::training_options& with, const graph::model& model,
                           const graph::training_data& samples) {
    graph::training_options changed = with;
    changed.resumed = c;
    check_graph_error(detent::error_kind::invalid_argument, what,
                      [&] { static_cast<void>(graph::train(model, samples, data, changed)); });
  };
  const words other{"checkpoint", "another model", "other options"};
  graph::model moved = m;
  moved.initializers["class_b"] = floats({4}, {0.0F, 0.0F, 1.0F, 0.0F});
  refused(other, good, o, moved, data);
  refused(other, good, o, m, bars(r, 33));
  for (const auto change : std::initializer_list<void (*)(graph::training_options&)>{
           [](auto& c) { c.epochs = 3; }, [](auto& c) { c.seed = 6; },
           [](auto& c) { c.batch_size = 8; }, [](auto& c) { c.learning_rate = 0.5; },
           [](auto& c) { c.optimizer = graph::training_optimizer::sgd; },
           [](auto& c) { c.loss.label_smoothing = 0.1; },
           [](auto& c) { c.schedule.warmup_steps = 4; }, [](auto& c) { c.augmentation.reset(); },
           [](auto& c) { c.subject = "other samples"; }}) {
    graph::training_options changed = o;
    change(changed);
    refused(other, good, changed, m, data);
  }
  const auto damaged = [&](const auto& change) {
    training_checkpoint c = good;
    change(c);
    return c;
  };
  refused({"2 epochs"}, damaged([](auto& c) { c.epochs.push_back({}); }), o, m, data);
  refused({"not fit", "class_b"},
          damaged([](auto& c) { c.state.constants["class_b"].push_back(0.0); }), o, m, data);
  refused({"not fit", "class_w"}, damaged([](auto& c) {
            c.state.constants["class_w"][0] = std::numeric_limits<double>::quiet_NaN();
          }),
          o, m, data);
  refused({"not fit"}, damaged([](auto& c) { c.state.constants["more"] = {1.0}; }), o, m, data);
  refused({"not fit", "mean0"}, damaged([](auto& c) { c.state.others["mean0"].clear(); }), o, m,
          data);
  refused({"adam"}, damaged([](auto& c) {
            c.state.optimizers[0].back() = std::numeric_limits<double>::infinity();
          }),
          o, m, data);
  refused({"adam"}, damaged([](auto& c) { c.state.optimizers[0].push_back(0.0); }), o, m, data);
  // What only the end of training needs is refused before the first step.
  REQUIRE(!good.best_constants.empty());
  graph::training_options stopping = o;
  stopping.on_step = [](std::size_t, std::size_t, double) { FAIL("training has begun"); };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused({"not fit", "class_w"}, damaged([&](auto& c) { c.best_constants["class_w"][0] = nan; }),
          stopping, m, data);
  refused({"not fit", "class_w"}, damaged([](auto& c) { c.best_constants.erase("class_w"); }),
          stopping, m, data);
  refused({"best score"}, damaged([](auto& c) { c.best_constants.clear(); }), stopping, m, data);
  refused({"best score"}, damaged([](auto& c) { c.best.accuracy = 7.0; }), stopping, m, data);
  refused({"best score"}, damaged([&](auto& c) { c.best.loss = nan; }), stopping, m, data);
  refused({"scores of epoch 0"}, damaged([](auto& c) { c.epochs[0].is_best = false; }), stopping, m,
          data);
  for (const auto change : std::initializer_list<void (*)(graph::epoch_report&)>{
           [](auto& e) { e.accuracy = 7.0; }, [](auto& e) { e.accuracy = -0.5; },
           [](auto& e) { e.validation_loss = -1.0; },
           [](auto& e) { e.loss = std::numeric_limits<double>::infinity(); }}) {
    refused({"scores of epoch 0"}, damaged([&](auto& c) { change(c.epochs[0]); }), stopping, m,
            data);
  }
  training_checkpoint second = kept[1];
  second.epochs[1].is_best = !second.epochs[1].is_best;
  refused({"scores of epoch 1"}, second, stopping, m, data);

  std::vector<std::byte> bytes = good.save();
  bytes[bytes.size() / 2] ^= std::byte{1};
  check_graph_error(detent::error_kind::bad_file, {"checksum"},
                    [&] { static_cast<void>(training_checkpoint::load(bytes)); });
  check_graph_error(detent::error_kind::bad_file, {"too few"}, [&] {
    static_cast<void>(training_checkpoint::load(std::span<const std::byte>{}));
  });
}

TEST_CASE("training checkpoint: best constants of which no quantized model can be made") {
  random_source r(917);
  INFO("seed ", r.seed());
  const graph::training_data data = bars(r, 48);
  const graph::model m = classifier(r, true);
  graph::quantization_aware_training_options o;
  o.training = quick(3, 3e-2);
  o.calibration_samples = 16;
  o.rule = graph::activation_rule::lsq;
  o.schedule = {.quantize_after = {.steps = 1}, .observe_for = {.epochs = 2}};
  std::vector<training_checkpoint> kept;
  o.training.on_checkpoint = kept_in(kept);
  static_cast<void>(graph::quantization_aware_training(m, data, data, o));
  o.training.on_checkpoint = {};
  o.training.on_step = [](std::size_t, std::size_t, double) { FAIL("training has begun"); };
  REQUIRE(!kept[0].best_constants.empty());
  const auto refused = [&](std::string_view what, const std::string& constant, double wrong) {
    INFO(constant, " ", wrong);
    o.training.resumed = kept[0];
    std::vector<double>& values = o.training.resumed->best_constants.at(constant);
    values.assign(values.size(), wrong);
    check_graph_error(detent::error_kind::invalid_argument, {what}, [&] {
      static_cast<void>(graph::quantization_aware_training(m, data, data, o));
    });
  };
  std::size_t scales = 0;
  std::size_t zero_points = 0;
  for (const auto& [name, values] : kept[0].best_constants) {
    if (name.ends_with("_scale")) {
      refused("scale -1", name, -1.0);
      ++scales;
    } else if (name.ends_with("_zero_point")) {
      refused(name.ends_with("_typed_zero_point") ? "not fit" : "zero point 1000", name, 1000.0);
      ++zero_points;
    }
  }
  CHECK(scales > 1);
  CHECK(zero_points > 0);
}
