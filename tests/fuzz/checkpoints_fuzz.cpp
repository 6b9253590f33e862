// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of training: some bytes of a checkpoint are changed, the checksum is mended so that
// the damage gets past it, and training goes on from what was loaded.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/learn/train.hpp>

#include "envelope.hpp"
#include "fuzz_target.hpp"

namespace {

namespace graph = detent::graph;
using graph::element_type;
using graph::tensor;

template <class T>
tensor filled(graph::shape dims, element_type type, const std::vector<T>& values) {
  tensor t = tensor::allocate(type, std::move(dims));
  std::copy(values.begin(), values.end(), t.mutable_data<T>().begin());
  return t;
}

/// A product, a normalization and a product: weights, biases and running statistics.
graph::model network() {
  graph::model m;
  m.opsets[""] = 17;
  m.inputs = {{"x", element_type::f32, true, {-1, 2}, {}}};
  m.outputs = {{"y", element_type::f32, true, {-1, 2}, {}}};
  m.initializers["w"] = filled<float>({2, 3}, element_type::f32, {1, -1, .5F, .25F, 2, -2});
  for (const char* name : {"gamma", "variance"}) {
    m.initializers[name] = filled<float>({3}, element_type::f32, {1, 1, 1});
  }
  for (const char* name : {"beta", "mean"}) {
    m.initializers[name] = filled<float>({3}, element_type::f32, {0, 0, 0});
  }
  m.initializers["v"] = filled<float>({3, 2}, element_type::f32, {1, -1, .5F, .25F, 2, -2});
  const auto add = [&](const char* op, std::vector<std::string> inputs, const char* output) {
    graph::node n;
    n.op_type = op;
    n.inputs = std::move(inputs);
    n.outputs = {output};
    m.nodes.push_back(std::move(n));
  };
  add("MatMul", {"x", "w"}, "a");
  add("BatchNormalization", {"a", "gamma", "beta", "mean", "variance"}, "b");
  add("MatMul", {"b", "v"}, "y");
  return m;
}

/// What all inputs of the target begin with.
struct trained_once {
  graph::model m = network();
  graph::training_data data =
      graph::in_memory({{"x", filled<float>({4, 2}, element_type::f32, {1, 0, 0, 1, 1, 1, -1, 2})}},
                       filled<std::int64_t>({4}, element_type::s64, {0, 1, 0, 1}));
  graph::training_options options;
  std::vector<std::byte> bytes;  // of the checkpoint behind the first epoch

  explicit trained_once(graph::training_optimizer optimizer) {
    options.epochs = 2;
    options.batch_size = 2;
    options.optimizer = optimizer;
    options.on_checkpoint = [this](const graph::training_checkpoint& c) {
      if (bytes.empty()) {
        bytes = c.save();
      }
    };
    static_cast<void>(graph::train(m, data, data, options));
    options.on_checkpoint = {};
  }
};

/// Replaces or flips up to six bytes behind the subject and the steps, most of which are parts of
/// numbers, so that the checkpoint can still be loaded.
void change_numbers(std::vector<std::byte>& bytes, fuzz::numbers& in) {
  constexpr std::size_t first = detent::detail::envelope_header + 16;
  const std::size_t changes = 1 + in.below(6);
  for (std::size_t i = 0; i < changes; ++i) {
    std::byte& b = bytes[first + in.below(bytes.size() - first)];
    b = in.get<std::uint8_t>() % 2 == 0 ? in.get<std::byte>()
                                        : b ^ static_cast<std::byte>(1U << in.below(8));
  }
  fuzz::mend_envelope(bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const trained_once by_adam(graph::training_optimizer::adamw);
  static const trained_once by_momentum(graph::training_optimizer::sgd);
  fuzz::numbers in({data, size});
  const trained_once& t = in.get<std::uint8_t>() % 2 == 0 ? by_adam : by_momentum;
  std::vector<std::byte> bytes = t.bytes;
  if (in.get<std::uint8_t>() % 4 == 0) {
    fuzz::damage(bytes, in, 12);
  } else {
    change_numbers(bytes, in);
  }
  std::optional<graph::training_checkpoint> loaded;
  if (!fuzz::harmless("load", [&] { loaded = graph::training_checkpoint::load(bytes); })) {
    return 0;
  }
  if (loaded->save() != bytes) {
    fuzz::finding("a checkpoint that was loaded and saved", "");
  }
  fuzz::harmless("train", [&] {
    graph::training_options o = t.options;
    o.resumed = *loaded;
    const graph::training_result r = graph::train(t.m, t.data, t.data, o);
    if (r.epochs.size() != 2 || (r.best_epoch && *r.best_epoch > 1)) {
      fuzz::finding("training that went on from a checkpoint", "");
    }
  });
  return 0;
}
