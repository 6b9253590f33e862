// SPDX-License-Identifier: BSD-3-Clause
// A model in memory: a list of nodes in topological order, with names for what flows between them.
#ifndef DETENT_GRAPH_IR_HPP
#define DETENT_GRAPH_IR_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A node's attribute. `kind` is ONNX's AttributeProto.AttributeType.
struct attribute {
  enum class kind_type : std::int32_t {
    undefined = 0,
    f = 1,
    i = 2,
    s = 3,
    t = 4,
    g = 5,  // a sub-graph; read past, not kept
    floats = 6,
    ints = 7,
    strings = 8,
    other = 9,  // lists of tensors or graphs, sparse tensors, types: read past, not kept
  };
  kind_type kind = kind_type::undefined;
  float f = 0.0F;
  std::int64_t i = 0;
  std::string s;
  tensor t;
  std::vector<float> floats;
  std::vector<std::int64_t> ints;
  std::vector<std::string> strings;

  [[nodiscard]] static attribute of(std::int64_t value) {
    attribute a;
    a.kind = kind_type::i;
    a.i = value;
    return a;
  }
  [[nodiscard]] static attribute of(float value) {
    attribute a;
    a.kind = kind_type::f;
    a.f = value;
    return a;
  }
  [[nodiscard]] static attribute of(std::vector<std::int64_t> value) {
    attribute a;
    a.kind = kind_type::ints;
    a.ints = std::move(value);
    return a;
  }
};

/// One operation. An absent optional input or output is an empty name.
struct node {
  std::string name;
  std::string op_type;
  std::string domain;  // "" is ONNX's own; "ai.onnx" is read as ""
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::map<std::string, attribute, std::less<>> attributes;

  [[nodiscard]] const attribute* find(std::string_view key) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::int64_t get_int(std::string_view key, std::int64_t otherwise) const {
    const attribute* a = find(key);
    return a != nullptr && a->kind == attribute::kind_type::i ? a->i : otherwise;
  }
  [[nodiscard]] float get_float(std::string_view key, float otherwise) const {
    const attribute* a = find(key);
    return a != nullptr && a->kind == attribute::kind_type::f ? a->f : otherwise;
  }
  [[nodiscard]] std::string get_string(std::string_view key, std::string otherwise) const {
    const attribute* a = find(key);
    return a != nullptr && a->kind == attribute::kind_type::s ? a->s : std::move(otherwise);
  }
  [[nodiscard]] std::vector<std::int64_t> get_ints(std::string_view key,
                                                   std::vector<std::int64_t> otherwise = {}) const {
    const attribute* a = find(key);
    return a != nullptr && a->kind == attribute::kind_type::ints ? a->ints : std::move(otherwise);
  }
  [[nodiscard]] bool is(std::string_view type) const { return domain.empty() && op_type == type; }

  /// How messages call it: its operator and its name, or what it computes where it has none.
  [[nodiscard]] std::string label() const {
    const std::string full = domain.empty() ? op_type : domain + "." + op_type;
    if (!name.empty()) {
      return full + " node '" + name + "'";
    }
    return full + " node of '" + (outputs.empty() ? std::string() : outputs[0]) + "'";
  }
};

/// What is declared of a value. A dimension that is not fixed is -1; `params` may then name it.
struct value_info {
  std::string name;
  element_type type = element_type::undefined;
  bool has_shape = false;
  shape dims;
  std::vector<std::string> params;
};

struct model {
  std::int64_t ir_version = 8;
  std::string producer_name;
  std::string producer_version;
  std::string doc;
  std::map<std::string, std::int64_t> opsets;  // by domain; "" is ONNX's own
  std::map<std::string, std::string> metadata;

  std::string graph_name;
  std::vector<node> nodes;
  std::map<std::string, tensor> initializers;
  std::vector<value_info> inputs;  // without those that are initializers
  std::vector<value_info> outputs;
  std::vector<value_info> values;

  [[nodiscard]] std::int64_t opset() const {
    const auto found = opsets.find("");
    return found == opsets.end() ? 1 : found->second;
  }
  [[nodiscard]] const tensor* initializer(const std::string& name) const {
    const auto found = initializers.find(name);
    return found == initializers.end() ? nullptr : &found->second;
  }
  [[nodiscard]] bool is_output(const std::string& name) const {
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const value_info& v) { return v.name == name; });
  }
};

/// Who makes and who uses each value of a model; valid until the model changes.
class links {
 public:
  explicit links(const model& m) {
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      for (const std::string& out : m.nodes[i].outputs) {
        if (!out.empty()) {
          producer_[out] = i;
        }
      }
      for (const std::string& in : m.nodes[i].inputs) {
        if (!in.empty()) {
          consumers_[in].push_back(i);
        }
      }
    }
  }
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  /// The index of the node that makes the value, or none.
  [[nodiscard]] std::size_t producer(const std::string& value) const {
    const auto found = producer_.find(value);
    return found == producer_.end() ? none : found->second;
  }
  /// One entry for each use: a node that uses a value twice is there twice.
  [[nodiscard]] const std::vector<std::size_t>& consumers(const std::string& value) const {
    static const std::vector<std::size_t> nobody;
    const auto found = consumers_.find(value);
    return found == consumers_.end() ? nobody : found->second;
  }

 private:
  std::unordered_map<std::string, std::size_t> producer_;
  std::unordered_map<std::string, std::vector<std::size_t>> consumers_;
};

/// Checks that names fit together and puts the nodes in topological order. Throws bad_file naming
/// the node and the value: made twice, used but never made, cycles, outputs that nothing makes.
inline void sort_and_check(model& m) {
  using detent::detail::require;
  std::unordered_set<std::string> known;
  for (const value_info& input : m.inputs) {
    require(known.insert(input.name).second, error_kind::bad_file, "two inputs are called '",
            input.name, "'");
  }
  for (const auto& [name, value] : m.initializers) {
    known.insert(name);
  }
  std::unordered_map<std::string, std::size_t> producer;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    for (const std::string& out : m.nodes[i].outputs) {
      require(out.empty() || (known.count(out) == 0 && producer.emplace(out, i).second),
              error_kind::bad_file, m.nodes[i].label(), " makes '", out, "', which already exists");
    }
  }
  std::vector<std::size_t> missing(m.nodes.size(), 0);
  std::vector<std::vector<std::size_t>> users(m.nodes.size());
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    for (const std::string& in : m.nodes[i].inputs) {
      if (in.empty() || known.count(in) != 0) {
        continue;
      }
      const auto made = producer.find(in);
      require(made != producer.end(), error_kind::bad_file, m.nodes[i].label(), " uses '", in,
              "', which nothing makes");
      ++missing[i];
      users[made->second].push_back(i);
    }
  }
  for (const value_info& out : m.outputs) {
    require(known.count(out.name) != 0 || producer.count(out.name) != 0, error_kind::bad_file,
            "graph output '", out.name, "' is made by nothing");
  }
  // Kahn's algorithm, smallest index first: a model that is in order stays as it is.
  std::set<std::size_t> ready;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    if (missing[i] == 0) {
      ready.insert(i);
    }
  }
  std::vector<node> sorted;
  sorted.reserve(m.nodes.size());
  while (!ready.empty()) {
    const std::size_t i = *ready.begin();
    ready.erase(ready.begin());
    for (const std::size_t user : users[i]) {
      if (--missing[user] == 0) {
        ready.insert(user);
      }
    }
    sorted.push_back(std::move(m.nodes[i]));
  }
  if (sorted.size() < m.nodes.size()) {
    for (std::size_t i = 0; i < missing.size(); ++i) {
      require(missing[i] == 0, error_kind::bad_file, m.nodes[i].label(), " is part of a cycle");
    }
  }
  m.nodes = std::move(sorted);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_IR_HPP
