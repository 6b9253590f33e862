// SPDX-License-Identifier: BSD-3-Clause
// A small task, networks that learn it, and options for tests of training.
#ifndef DETENT_TESTS_GRAPH_TRAINING_MODELS_HPP
#define DETENT_TESTS_GRAPH_TRAINING_MODELS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <detent/graph/learn/train.hpp>
#include <detent/graph/run/executor.hpp>

#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace test {

/// Images of 6 x 6 pixels with a horizontal bar, a vertical one, a diagonal, or a square, and
/// noise.
inline graph::training_data bars(random_source& r, std::size_t count, float noise = 0.25F) {
  std::vector<float> pixels;
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < count; ++i) {
    const auto label = r.integer<std::int64_t>(0, 3);
    const std::size_t at = r.size(0, 4);
    const std::size_t left = r.size(0, 4);
    for (std::size_t y = 0; y < 6; ++y) {
      for (std::size_t x = 0; x < 6; ++x) {
        const bool on = label == 0   ? y == at
                        : label == 1 ? x == at
                        : label == 2 ? x == y
                                     : (y == at || y == at + 1) && (x == left || x == left + 1);
        pixels.push_back((on ? 1.0F : 0.0F) + r.real(-noise, noise));
      }
    }
    labels.push_back(label);
  }
  const auto n = static_cast<std::int64_t>(count);
  return graph::in_memory({{"x", floats({n, 1, 6, 6}, pixels)}},
                          make_tensor(element_type::s64, {n}, labels));
}

/// Convolutions with and without BatchNormalization behind them, pools, and a classifier.
inline graph::model classifier(random_source& r, bool normalized) {
  model_builder b;
  b.input("x", {-1, 1, 6, 6});
  std::string y = "x";
  std::int64_t in = 1;
  for (const std::int64_t out : {8, 8}) {
    const std::string n = std::to_string(b.get().nodes.size());
    const float most = std::sqrt(6.0F / static_cast<float>(in * 9));
    std::vector<std::string> inputs{
        y, b.constant("w" + n, random_floats(r, {out, in, 3, 3}, -most, most))};
    if (!normalized) {
      inputs.push_back(b.constant("b" + n, floats({out}, std::vector<float>(8, 0.0F))));
    }
    y = b.add("Conv", inputs, {{"pads", list({1, 1, 1, 1})}});
    if (normalized) {
      y = b.add("BatchNormalization",
                {y, b.constant("gamma" + n, floats({out}, std::vector<float>(8, 1.0F))),
                 b.constant("beta" + n, floats({out}, std::vector<float>(8, 0.0F))),
                 b.constant("mean" + n, floats({out}, std::vector<float>(8, 0.0F))),
                 b.constant("variance" + n, floats({out}, std::vector<float>(8, 1.0F)))});
    }
    y = b.add("Relu", {y});
    in = out;
  }
  y = b.add("MaxPool", {y}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  y = b.add("Flatten", {y});
  y = b.add("Gemm",
            {y, b.constant("class_w", random_floats(r, {4, 72}, -0.2F, 0.2F)),
             b.constant("class_b", floats({4}, {0.0F, 0.0F, 0.0F, 0.0F}))},
            {{"transB", number(1)}});
  b.output(y);
  return b.get();
}

inline graph::training_options quick(std::size_t epochs, double rate = 1e-2) {
  graph::training_options o;
  o.epochs = epochs;
  o.batch_size = 16;
  o.learning_rate = rate;
  return o;
}

inline double accuracy(const graph::model& m, const graph::training_data& data) {
  graph::executor run(m);
  return graph::evaluate(run, data, {}, 0, 50).accuracy;
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_TRAINING_MODELS_HPP
