// SPDX-License-Identifier: BSD-3-Clause
// A transformer that sorts tokens, and its samples.
#ifndef DETENT_TESTS_GRAPH_SORTING_TRANSFORMER_HPP
#define DETENT_TESTS_GRAPH_SORTING_TRANSFORMER_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/learn/training_data.hpp>

#include "model_builder.hpp"
#include "random.hpp"

namespace test {

inline constexpr std::int64_t sequence_length = 6;
inline constexpr std::int64_t vocabulary = 6;

/// Sequences of tokens, whose labels are the same tokens in ascending order.
inline graph::training_data unsorted(random_source& r, std::size_t count) {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < count; ++i) {
    std::array<std::int64_t, sequence_length> sequence{};
    for (std::int64_t& token : sequence) {
      token = r.integer<std::int64_t>(0, vocabulary - 1);
    }
    tokens.insert(tokens.end(), sequence.begin(), sequence.end());
    std::sort(sequence.begin(), sequence.end());
    labels.insert(labels.end(), sequence.begin(), sequence.end());
  }
  const auto n = static_cast<std::int64_t>(count);
  return graph::in_memory({{"ids", make_tensor(element_type::s64, {n, sequence_length}, tokens)}},
                          make_tensor(element_type::s64, {n, sequence_length}, labels));
}

/// An encoder as BERT has it, with random weights, that gives logits for each place.
class encoder {
 public:
  explicit encoder(random_source& r) : r_(r) {}

  graph::model with_layers(std::size_t layers) {
    b_.input("ids", {-1, sequence_length}, element_type::s64);
    std::string x = b_.add("Gather", {random("words", {vocabulary, hidden}, 1.0F), "ids"});
    x = normalized(b_.add("Add", {x, random("positions", {1, sequence_length, hidden}, 1.0F)}));
    for (std::size_t i = 0; i < layers; ++i) {
      const std::string mixed = attention(x);
      x = normalized(b_.add("Add", {linear(mixed, hidden, hidden), x}));
      const std::string wide = b_.add("Gelu", {linear(x, hidden, 2 * hidden)});
      x = normalized(b_.add("Add", {linear(wide, 2 * hidden, hidden), x}));
    }
    b_.output(linear(x, hidden, vocabulary));
    return b_.get();
  }

 private:
  static constexpr std::int64_t hidden = 32;
  static constexpr std::int64_t heads = 4;

  std::string random(const std::string& name, shape dims, float range) {
    return b_.constant(name, random_floats(r_, std::move(dims), -range, range));
  }
  std::string fresh(const std::string& name) { return name + std::to_string(count_++); }
  std::string linear(const std::string& x, std::int64_t inputs, std::int64_t outputs) {
    const float range = std::sqrt(3.0F / static_cast<float>(inputs));
    const std::string product =
        b_.add("MatMul", {x, random(fresh("weights"), {inputs, outputs}, range)});
    const std::vector<float> zeros(static_cast<std::size_t>(outputs), 0.0F);
    return b_.add("Add", {product, b_.constant(fresh("bias"), floats({outputs}, zeros))});
  }
  std::string normalized(const std::string& x) {
    const std::vector<float> ones(hidden, 1.0F);
    const std::vector<float> zeros(hidden, 0.0F);
    return b_.add("LayerNormalization",
                  {x, b_.constant(fresh("factor"), floats({hidden}, ones)),
                   b_.constant(fresh("shift"), floats({hidden}, zeros))},
                  {{"axis", number(-1)}});
  }
  std::string split(const std::string& x, std::vector<std::int64_t> order) {
    const std::string parts =
        b_.add("Reshape", {x, b_.constant(fresh("parts"), {0, 0, heads, hidden / heads})});
    return b_.add("Transpose", {parts}, {{"perm", list(std::move(order))}});
  }
  std::string attention(const std::string& x) {
    const std::string q = split(linear(x, hidden, hidden), {0, 2, 1, 3});
    const std::string k = split(linear(x, hidden, hidden), {0, 2, 3, 1});
    const std::string v = split(linear(x, hidden, hidden), {0, 2, 1, 3});
    const float scale = 1.0F / std::sqrt(static_cast<float>(hidden / heads));
    const std::string scores =
        b_.add("Mul", {b_.add("MatMul", {q, k}), b_.scalar(fresh("scale"), scale)});
    const std::string shares = b_.add("Softmax", {scores}, {{"axis", number(-1)}});
    const std::string mixed =
        b_.add("Transpose", {b_.add("MatMul", {shares, v})}, {{"perm", list({0, 2, 1, 3})}});
    return b_.add("Reshape", {mixed, b_.constant(fresh("joined"), {0, 0, hidden})});
  }

  random_source& r_;
  model_builder b_{20};
  std::size_t count_ = 0;
};

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_SORTING_TRANSFORMER_HPP
