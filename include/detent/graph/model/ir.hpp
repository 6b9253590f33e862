// SPDX-License-Identifier: BSD-3-Clause
// A model in memory: a list of nodes in topological order, with names for what flows between them.
// Nodes may hold sub-graphs (the branches of If, the body of Loop and Scan). These use values of
// the graphs around them by name: they capture them. A name that a sub-graph gives to a value of
// its own hides what the graphs around it call so.
#ifndef DETENT_GRAPH_MODEL_IR_HPP
#define DETENT_GRAPH_MODEL_IR_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

struct graph_body;

/// A node's attribute. `kind` is ONNX's AttributeProto.AttributeType.
struct attribute {
  enum class kind_type : std::int32_t {
    undefined = 0,
    f = 1,
    i = 2,
    s = 3,
    t = 4,
    g = 5,  // a sub-graph
    floats = 6,
    ints = 7,
    strings = 8,
    graphs = 10,
    other = -1,  // lists of tensors, sparse tensors, types: read past, not kept
  };
  kind_type kind = kind_type::undefined;
  float f = 0.0F;
  std::int64_t i = 0;
  std::string s;
  tensor t;
  std::shared_ptr<const graph_body> g;  // never changed: copies of a node share it
  std::vector<float> floats;
  std::vector<std::int64_t> ints;
  std::vector<std::string> strings;
  std::vector<std::shared_ptr<const graph_body>> graphs;

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
  [[nodiscard]] static attribute of(graph_body value);
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
  std::string other_type = {};  // of what is no tensor: its TypeProto as the file has it
};

/// What a model and a sub-graph are made of.
struct graph_body {
  std::string graph_name;
  std::vector<node> nodes;
  std::map<std::string, tensor> initializers;
  std::vector<value_info> inputs;  // without those that are initializers
  std::vector<value_info> outputs;
  std::vector<value_info> values;

  [[nodiscard]] const tensor* initializer(const std::string& name) const {
    const auto found = initializers.find(name);
    return found == initializers.end() ? nullptr : &found->second;
  }
  [[nodiscard]] bool is_output(const std::string& name) const {
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const value_info& v) { return v.name == name; });
  }
};

inline attribute attribute::of(graph_body value) {
  attribute a;
  a.kind = kind_type::g;
  a.g = std::make_shared<const graph_body>(std::move(value));
  return a;
}

/// A function that a model brings along, which its nodes may name like an operator. Kept for files;
/// nothing here looks into it.
struct model_function {
  std::string domain;
  std::string name;
  std::string bytes;  // of its FunctionProto
};

struct model : graph_body {
  std::int64_t ir_version = 8;
  std::string producer_name;
  std::string producer_version;
  std::string doc;
  std::map<std::string, std::int64_t> opsets;  // by domain; "" is ONNX's own
  std::map<std::string, std::string> metadata;
  std::vector<model_function> functions;
  std::uint64_t external_bytes = 0;  // that were read from files beside the model's own

  /// The function that a node calls, or null.
  [[nodiscard]] const model_function* function_of(const node& n) const {
    const auto found = std::find_if(
        functions.begin(), functions.end(),
        [&](const model_function& f) { return f.domain == n.domain && f.name == n.op_type; });
    return found == functions.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::int64_t opset() const {
    const auto found = opsets.find("");
    return found == opsets.end() ? 1 : found->second;
  }
};

/// How deep sub-graphs may stand in each other. Files are not trusted: whatever walks through a
/// model goes as deep.
inline constexpr std::size_t max_body_depth = 32;

/// Calls f(key, body) for every sub-graph of a node, not for those within them.
template <class Function>
void for_each_body(const node& n, const Function& f) {
  using kind = attribute::kind_type;
  for (const auto& [key, a] : n.attributes) {
    if (a.kind == kind::g && a.g != nullptr) {
      f(key, *a.g);
    } else if (a.kind == kind::graphs) {
      for (const std::shared_ptr<const graph_body>& body : a.graphs) {
        if (body != nullptr) {
          f(key, *body);
        }
      }
    }
  }
}

/// Gives a node changed copies of its sub-graphs: f(body) changes one.
template <class Function>
void change_bodies(node& n, const Function& f) {
  using kind = attribute::kind_type;
  const auto change = [&](std::shared_ptr<const graph_body>& body) {
    if (body != nullptr) {
      const auto changed = std::make_shared<graph_body>(*body);
      f(*changed);
      body = changed;
    }
  };
  for (auto& [key, a] : n.attributes) {
    if (a.kind == kind::g) {
      change(a.g);
    } else if (a.kind == kind::graphs) {
      std::for_each(a.graphs.begin(), a.graphs.end(), change);
    }
  }
}

[[nodiscard]] inline bool has_bodies(const node& n) {
  bool any = false;
  for_each_body(n, [&](const std::string&, const graph_body&) { any = true; });
  return any;
}

/// Every name that a value has, in sub-graphs as well.
[[nodiscard]] inline std::set<std::string> value_names(const graph_body& g) {
  std::set<std::string> names;
  for (const value_info& v : g.inputs) {
    names.insert(v.name);
  }
  for (const auto& [name, t] : g.initializers) {
    names.insert(name);
  }
  for (const node& n : g.nodes) {
    names.insert(n.outputs.begin(), n.outputs.end());
    for_each_body(
        n, [&](const std::string&, const graph_body& body) { names.merge(value_names(body)); });
  }
  names.erase("");
  return names;
}

[[nodiscard]] inline std::set<std::string> captured_values(const node& n);

/// The values of the graphs around it that a sub-graph uses, or one within it.
[[nodiscard]] inline std::set<std::string> captured_values(const graph_body& body) {
  std::unordered_set<std::string> own{""};
  for (const value_info& v : body.inputs) {
    own.insert(v.name);
  }
  for (const auto& [name, t] : body.initializers) {
    own.insert(name);
  }
  for (const node& n : body.nodes) {
    own.insert(n.outputs.begin(), n.outputs.end());
  }
  std::set<std::string> captured;
  const auto use = [&](const std::string& name) {
    if (own.count(name) == 0) {
      captured.insert(name);
    }
  };
  for (const node& n : body.nodes) {
    std::for_each(n.inputs.begin(), n.inputs.end(), use);
    const std::set<std::string> within = captured_values(n);
    std::for_each(within.begin(), within.end(), use);
  }
  for (const value_info& v : body.outputs) {
    use(v.name);
  }
  return captured;
}

/// The values that the sub-graphs of a node use without that they are among its inputs.
[[nodiscard]] inline std::set<std::string> captured_values(const node& n) {
  std::set<std::string> captured;
  for_each_body(n, [&](const std::string&, const graph_body& body) {
    captured.merge(captured_values(body));
  });
  return captured;
}

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
      for (const std::string& in : captured_values(m.nodes[i])) {
        consumers_[in].push_back(i);
      }
    }
  }
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  /// The index of the node that makes the value, or none.
  [[nodiscard]] std::size_t producer(const std::string& value) const {
    const auto found = producer_.find(value);
    return found == producer_.end() ? none : found->second;
  }
  /// One entry for each use: a node that uses a value twice is there twice. What sub-graphs of a
  /// node capture, it uses once more.
  [[nodiscard]] const std::vector<std::size_t>& consumers(const std::string& value) const {
    static const std::vector<std::size_t> nobody;
    const auto found = consumers_.find(value);
    return found == consumers_.end() ? nobody : found->second;
  }

 private:
  std::unordered_map<std::string, std::size_t> producer_;
  std::unordered_map<std::string, std::vector<std::size_t>> consumers_;
};

namespace detail {

/// The names that a sub-graph finds around it.
struct name_scope {
  const std::unordered_set<std::string>& names;
  const name_scope* outer;

  [[nodiscard]] bool has(const std::string& name) const {
    return names.count(name) != 0 || (outer != nullptr && outer->has(name));
  }
};

inline void sort_and_check(graph_body& g, const name_scope* around, std::size_t depth) {
  require(depth <= max_body_depth, error_kind::bad_file, "sub-graphs stand more than ",
          max_body_depth, " deep in each other");
  std::unordered_set<std::string> known;
  for (const value_info& input : g.inputs) {
    require(known.insert(input.name).second, error_kind::bad_file, "two inputs are called '",
            input.name, "'");
  }
  for (const auto& [name, value] : g.initializers) {
    known.insert(name);
  }
  std::unordered_map<std::string, std::size_t> producer;
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    for (const std::string& out : g.nodes[i].outputs) {
      require(out.empty() || (known.count(out) == 0 && producer.emplace(out, i).second),
              error_kind::bad_file, g.nodes[i].label(), " makes '", out, "', which already exists");
    }
  }
  std::vector<std::set<std::string>> captured(g.nodes.size());
  if (std::any_of(g.nodes.begin(), g.nodes.end(), has_bodies)) {
    std::unordered_set<std::string> visible = known;
    for (const auto& made : producer) {
      visible.insert(made.first);
    }
    const name_scope scope{visible, around};
    for (std::size_t i = 0; i < g.nodes.size(); ++i) {
      change_bodies(g.nodes[i], [&](graph_body& body) { sort_and_check(body, &scope, depth + 1); });
      captured[i] = captured_values(g.nodes[i]);
    }
  }
  std::vector<std::size_t> missing(g.nodes.size(), 0);
  std::vector<std::vector<std::size_t>> users(g.nodes.size());
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    const auto use = [&](const std::string& in) {
      if (in.empty() || known.count(in) != 0) {
        return;
      }
      const auto made = producer.find(in);
      if (made == producer.end()) {
        require(around != nullptr && around->has(in), error_kind::bad_file, g.nodes[i].label(),
                " uses '", in, "', which nothing makes");
        return;
      }
      ++missing[i];
      users[made->second].push_back(i);
    };
    std::for_each(g.nodes[i].inputs.begin(), g.nodes[i].inputs.end(), use);
    std::for_each(captured[i].begin(), captured[i].end(), use);
  }
  for (const value_info& out : g.outputs) {
    require(known.count(out.name) != 0 || producer.count(out.name) != 0 ||
                (around != nullptr && around->has(out.name)),
            error_kind::bad_file, "graph output '", out.name, "' is made by nothing");
  }
  // Kahn's algorithm, smallest index first: a model that is in order stays as it is.
  std::set<std::size_t> ready;
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    if (missing[i] == 0) {
      ready.insert(i);
    }
  }
  std::vector<node> sorted;
  sorted.reserve(g.nodes.size());
  while (!ready.empty()) {
    const std::size_t i = *ready.begin();
    ready.erase(ready.begin());
    for (const std::size_t user : users[i]) {
      if (--missing[user] == 0) {
        ready.insert(user);
      }
    }
    sorted.push_back(std::move(g.nodes[i]));
  }
  if (sorted.size() < g.nodes.size()) {
    for (std::size_t i = 0; i < missing.size(); ++i) {
      require(missing[i] == 0, error_kind::bad_file, g.nodes[i].label(), " is part of a cycle");
    }
  }
  g.nodes = std::move(sorted);
}

}  // namespace detail

/// Checks that names fit together, in sub-graphs too, and puts the nodes in topological order.
/// Throws bad_file naming the node and the value: made twice, used but never made, cycles, outputs
/// that nothing makes; and if sub-graphs stand more than max_body_depth deep in each other.
inline void sort_and_check(model& m) { detail::sort_and_check(m, nullptr, 0); }

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_IR_HPP
