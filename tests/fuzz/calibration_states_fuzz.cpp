// SPDX-License-Identifier: BSD-3-Clause
// Calibration states of a small model: a state is made, some of its bytes are changed, the checksum
// is mended so that the damage gets past it, and the state is merged, saved and quantized with.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/quantize/calibration_state.hpp>
#include <detent/graph/quantize/weight_only_state.hpp>
#include <detent/observer_registry.hpp>

#include "envelope.hpp"
#include "fuzz_target.hpp"

namespace graph = detent::graph;

namespace {

graph::tensor floats(graph::shape dims, float step) {
  graph::tensor t = graph::tensor::allocate(graph::element_type::f32, std::move(dims));
  float value = -1.0F;
  for (float& v : t.mutable_data<float>()) {
    v = value;
    value = value > 1.0F ? value - 2.0F : value + step;
  }
  return t;
}

graph::model small_model() {
  graph::model m;
  m.opsets[""] = 17;
  m.inputs = {{"x", graph::element_type::f32, true, {-1, 1, 4, 4}, {"", "", "", ""}}};
  m.initializers = {
      {"w", floats({2, 1, 3, 3}, 0.3F)}, {"b", floats({2}, 0.7F)}, {"v", floats({8, 3}, 0.1F)}};
  graph::node conv;
  conv.op_type = "Conv";
  conv.inputs = {"x", "w", "b"};
  conv.outputs = {"c"};
  graph::node flat;
  flat.op_type = "Flatten";
  flat.inputs = {"c"};
  flat.outputs = {"f"};
  graph::node product;
  product.op_type = "Gemm";
  product.inputs = {"f", "v"};
  product.outputs = {"y"};
  m.nodes = {conv, flat, product};
  m.outputs = {{"y", graph::element_type::f32, false, {}, {}}};
  return m;
}

graph::calibration_source two_samples() {
  return [next = 0]() mutable -> std::optional<std::map<std::string, graph::tensor>> {
    if (next == 2) {
      next = 0;
      return std::nullopt;
    }
    ++next;
    return std::map<std::string, graph::tensor>{
        {"x", floats({1, 1, 4, 4}, 0.25F * static_cast<float>(next))}};
  };
}

/// States of a method: without samples, and after each round.
struct states {
  graph::static_quantization_options options;
  graph::calibration_state empty;
  std::vector<graph::calibration_state> rounds;

  explicit states(const graph::static_quantization_options& o)
      : options(o), empty(small_model(), o) {
    graph::calibration_state s = empty;
    s.observe(two_samples());
    rounds.push_back(s);
    if (s.rounds() == 2) {
      s.begin_second_round();
      s.observe(two_samples());
      rounds.push_back(s);
    }
  }
};

const states& states_of(const std::string& method) {
  static std::map<std::string, states> all;
  const auto found = all.find(method);
  if (found != all.end()) {
    return found->second;
  }
  graph::static_quantization_options o{.method = method};
  o.bias.kind = graph::bias_correction::fast;
  // Bias correction runs layers on inputs of the shapes that states hold.
  o.executor.max_tensor_bytes = std::size_t{1} << 22U;
  o.executor.max_multiply_adds = std::uint64_t{1} << 22U;
  return all.emplace(method, states(o)).first->second;
}

/// The methods that exist for the scheme of the options.
const std::vector<std::string>& methods() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const std::string& name : detent::default_observers().names()) {
      try {
        static_cast<void>(detent::make_observer(name));
        names.push_back(name);
      } catch (const detent::error&) {
        // The observer has no asymmetric scheme.
      }
    }
    return names;
  }();
  return all;
}

void try_static(fuzz::numbers& in) {
  const std::vector<std::string>& names = methods();
  const states& of = states_of(names[in.below(names.size())]);
  const graph::calibration_state& good = of.rounds[in.below(of.rounds.size())];
  graph::saved_state saved{"a state", good.save()};
  fuzz::damage(saved.bytes, in, 15);
  graph::calibration_state loaded = of.empty;
  if (!fuzz::harmless("load", [&] { loaded.merge(saved); })) {
    return;
  }
  fuzz::harmless("save again", [&] {
    graph::calibration_state again = of.empty;
    again.merge({"saved", loaded.save()});
    if (again.save() != loaded.save()) {
      fuzz::finding("a state that was loaded and saved", of.options.method);
    }
  });
  fuzz::harmless("quantize", [&] {
    static_cast<void>(graph::static_quantization(small_model(), loaded, of.options));
  });
  fuzz::harmless("merge", [&] {
    graph::calibration_state other = of.empty;
    other.observe(two_samples(), 2);
    loaded.merge(other);
  });
  fuzz::harmless("second round", [&] {
    loaded.begin_second_round();
    loaded.observe(two_samples());
  });
  fuzz::harmless("quantize", [&] {
    static_cast<void>(graph::static_quantization(small_model(), loaded, of.options));
  });
}

void try_weight_only(fuzz::numbers& in) {
  static const graph::weight_only_options options{.algorithm = graph::weight_only_algorithm::awq};
  static const graph::weight_only_state empty(small_model(), options);
  static const std::vector<std::byte> good = [] {
    graph::weight_only_state s = empty;
    s.observe(two_samples());
    return s.save();
  }();
  graph::saved_state saved{"a state", good};
  fuzz::damage(saved.bytes, in, 15);
  graph::weight_only_state loaded = empty;
  if (!fuzz::harmless("load", [&] { loaded.merge(saved); })) {
    return;
  }
  fuzz::harmless("merge", [&] { loaded.observe(two_samples(), 2); });
  fuzz::harmless("quantize", [&] {
    static_cast<void>(graph::quantize_weights_only(small_model(), options, loaded));
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::numbers in({data, size});
  if (in.below(8) == 0) {
    try_weight_only(in);
  } else {
    try_static(in);
  }
  return 0;
}
