// SPDX-License-Identifier: BSD-3-Clause
// Training of a transformer: embeddings, attention, LayerNormalization and Gelu.
#include <doctest/doctest.h>

#include <detent/graph/learn/train.hpp>
#include <detent/graph/quantize/quantization_aware_training.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

#include "random.hpp"
#include "sorting_transformer.hpp"

using namespace test;

TEST_CASE("training: a transformer learns to sort, also with 4 bits for weights") {
  test::random_source r(907);
  INFO("seed ", r.seed());
  const graph::training_data data = unsorted(r, 3000);
  const graph::training_data validation = unsorted(r, 300);
  const graph::training_data unseen = unsorted(r, 500);
  graph::training_options o;
  o.epochs = 12;
  o.batch_size = 50;
  o.learning_rate = 3e-3;
  o.schedule.warmup_steps = 60;
  const graph::training_result t = graph::train(encoder(r).with_layers(2), data, validation, o);
  const auto accuracy = [&](const graph::model& m) {
    graph::executor run(graph::for_execution(m));
    return graph::evaluate(run, unseen, {}, 0, 100).accuracy;
  };
  const double of_float = accuracy(t.trained);
  graph::quantization_aware_training_options q;
  q.weights.bits = 4;
  q.training = o;
  q.training.epochs = 4;
  q.training.learning_rate = 1e-3;
  q.training.loss.distillation = 0.5;
  const auto w4a8 = graph::quantization_aware_training(t.trained, data, validation, q);
  const double of_quantized = accuracy(w4a8.quantized.result);
  MESSAGE("float ", of_float, ", W4A8 static ", w4a8.before.accuracy, " (validation), trained ",
          of_quantized);
  CHECK(of_float > 0.98);
  CHECK(of_quantized >= of_float - 0.01);
}
