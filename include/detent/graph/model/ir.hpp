// SPDX-License-Identifier: BSD-3-Clause
// The folder graph/model/ holds what a model is, in memory and in files: tensors, nodes and graphs,
// the ONNX reader and writer, and helpers for code that builds or changes models. It may include
// itself and public headers of the numeric part that need no kernels (config, error, types,
// formats); it knows nothing of operators or of the executor.
//
// This file holds a model in memory: a list of nodes in topological order whose inputs and outputs
// are values with names. Nodes may hold sub-graphs (the branches of If, the bodies of Loop and
// Scan). A sub-graph captures values of the graphs around it: it uses them by name. Where a
// sub-graph gives that name to a value of its own, it hides the outer value.
#ifndef DETENT_GRAPH_MODEL_IR_HPP
#define DETENT_GRAPH_MODEL_IR_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/name_table.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

struct graph_body;

/// Bytes of protobuf fields, tags included, which the library does not interpret: the reader keeps
/// them beside what it reads from a message, and the writer writes them behind the other fields of
/// the message. Null if there are none. Never changed, so that copies share them. Fields that
/// somebody else makes must be whole, which the writer does not check.
using unread_fields = std::shared_ptr<const std::string>;

/// An attribute of a node: a value of one of several kinds, held in the member that `kind` names.
struct attribute {
  /// Which kind of value an attribute has. The numbers are ONNX's AttributeProto.AttributeType.
  enum class kind_type : std::int32_t {
    undefined = 0,  ///< No value.
    f = 1,          ///< A float, in `f`.
    i = 2,          ///< An integer, in `i`.
    s = 3,          ///< A string, in `s`.
    t = 4,          ///< A tensor, in `t`.
    g = 5,          ///< A sub-graph, in `g`.
    floats = 6,     ///< A list of floats, in `floats`.
    ints = 7,       ///< A list of integers, in `ints`.
    strings = 8,    ///< A list of strings, in `strings`.
    graphs = 10,    ///< A list of sub-graphs, in `graphs`.
    /// A list of tensors, a sparse tensor, a type, or a list of these. The value is not interpreted
    /// and stays in `unread`, together with the number of its kind.
    other = -1,
  };
  kind_type kind = kind_type::undefined;  ///< Says which of the members below holds the value.
  float f = 0.0F;                         ///< Value of kind f.
  std::int64_t i = 0;                     ///< Value of kind i.
  std::string s;                          ///< Value of kind s.
  tensor t;                               ///< Value of kind t.
  /// Value of kind g. It is never changed, so that copies of a node share it; see change_bodies().
  std::shared_ptr<const graph_body> g;
  std::vector<float> floats;         ///< Value of kind floats.
  std::vector<std::int64_t> ints;    ///< Value of kind ints.
  std::vector<std::string> strings;  ///< Value of kind strings.
  /// Value of kind graphs. The sub-graphs are never changed, so that copies of a node share them.
  std::vector<std::shared_ptr<const graph_body>> graphs;
  unread_fields unread = {};  ///< Other fields of its AttributeProto, such as doc_string.

  /// An attribute that holds an integer.
  [[nodiscard]] static attribute of(std::int64_t value) {
    attribute a;
    a.kind = kind_type::i;
    a.i = value;
    return a;
  }
  /// An attribute that holds a float.
  [[nodiscard]] static attribute of(float value) {
    attribute a;
    a.kind = kind_type::f;
    a.f = value;
    return a;
  }
  /// An attribute that holds a list of integers.
  [[nodiscard]] static attribute of(std::vector<std::int64_t> value) {
    attribute a;
    a.kind = kind_type::ints;
    a.ints = std::move(value);
    return a;
  }
  /// An attribute that holds a sub-graph.
  [[nodiscard]] static attribute of(graph_body value);
};

namespace detail {

/// The text or, if it has more than `most` bytes, its beginning of at most that length and "...".
/// No character of UTF-8 is divided.
[[nodiscard]] inline std::string cut_text(std::string_view text, std::size_t most) {
  if (text.size() <= most) {
    return std::string(text);
  }
  const auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U;
  };
  while (most > 0 && continues(most)) {
    --most;
  }
  return std::string(text.substr(0, most)) + "...";
}

}  // namespace detail

/// One operation of a graph: an operator, the names of the values it takes and makes, and its
/// attributes.
struct node {
  std::string name;     ///< Name of the node itself; may be empty and need not be unique.
  std::string op_type;  ///< Name of the operator, for example "Conv".
  std::string
      domain;  ///< Domain of the operator. ONNX's own is "", also where files say "ai.onnx".
  std::vector<std::string> inputs;   ///< Names of the inputs; empty for an absent optional one.
  std::vector<std::string> outputs;  ///< Names of the outputs; empty for an output not asked for.
  std::map<std::string, attribute, std::less<>> attributes;  ///< Attributes by name.
  unread_fields unread =
      {};  ///< Other fields of its NodeProto, such as doc_string and metadata_props.

  /// The attribute of this name, or null.
  [[nodiscard]] const attribute* find(std::string_view key) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? nullptr : &found->second;
  }
  /// The integer attribute `key`; `otherwise` if it is absent or of another kind.
  [[nodiscard]] std::int64_t get_int(std::string_view key, std::int64_t otherwise) const {
    const attribute* a = find(key);
    return a != nullptr && a->kind == attribute::kind_type::i ? a->i : otherwise;
  }
  /// The float attribute `key`; `otherwise` if it is absent or of another kind.
  [[nodiscard]] float get_float(std::string_view key, float otherwise) const {
    const attribute* a = find(key);
    return a != nullptr && a->kind == attribute::kind_type::f ? a->f : otherwise;
  }
  /// The string attribute `key`; `otherwise` if it is absent or of another kind.
  [[nodiscard]] std::string get_string(std::string_view key, std::string otherwise) const {
    const attribute* a = find(key);
    return a != nullptr && a->kind == attribute::kind_type::s ? a->s : std::move(otherwise);
  }
  /// The list of integers `key`; `otherwise` if the attribute is absent or of another kind.
  [[nodiscard]] std::vector<std::int64_t> get_ints(std::string_view key,
                                                   std::vector<std::int64_t> otherwise = {}) const {
    const attribute* a = find(key);
    return a != nullptr && a->kind == attribute::kind_type::ints ? a->ints : std::move(otherwise);
  }
  /// True if the node is this operator of ONNX's own domain.
  [[nodiscard]] bool is(std::string_view type) const { return domain.empty() && op_type == type; }

  /// The name of the first output that is asked for, by which settings of the node are kept; empty
  /// if it has none.
  [[nodiscard]] const std::string& first_output() const {
    static const std::string none;
    const auto found = std::find_if(outputs.begin(), outputs.end(),
                                    [](const std::string& output) { return !output.empty(); });
    return found == outputs.end() ? none : *found;
  }
  /// The text by which messages name the node: the operator with the node's name or, if it has
  /// none, with first_output(). Names of more than 256 bytes are cut. Checks that are made for each
  /// of many values use shown() instead.
  [[nodiscard]] std::string label() const {
    constexpr std::size_t most = 256;  // lists of nodes must not need much more than their file
    const std::string full =
        detail::cut_text(domain.empty() ? op_type : domain + "." + op_type, most);
    if (!name.empty()) {
      return full + " node '" + detail::cut_text(name, most) + "'";
    }
    return full + " node of '" + detail::cut_text(first_output(), most) + "'";
  }
};

/// Prints the label of a node in messages; the text is made only if a message is.
struct shown_node {
  const node& of;  ///< The node that is named.
  /// Adds node::label() to a message.
  void append_to(std::string& message) const { message += of.label(); }
};
/// Wraps a node for messages; see shown_node. The node must outlive the result.
[[nodiscard]] inline shown_node shown(const node& n) noexcept { return {n}; }

/// What a file says of a value beside its name, type and shape; see unread_fields.
struct value_notes {
  std::string fields;                   ///< Of its ValueInfoProto: doc_string, metadata_props.
  std::string type_fields;              ///< Of its TypeProto: denotation.
  std::vector<std::string> dim_fields;  ///< Of its dimensions: denotation; may be shorter.
};

/// The declaration of a value: its name, type and shape as far as the model states them.
struct value_info {
  std::string name;                             ///< Name of the value.
  element_type type = element_type::undefined;  ///< Element type; undefined if not declared.
  bool has_shape = false;                       ///< True if a shape is declared.
  shape dims;                                   ///< The declared shape; -1 for an open dimension.
  std::vector<std::string> params;  ///< Names of open dimensions, by position; may be shorter.
  /// For a value that is not a tensor (a sequence, a map, ...): the bytes of its TypeProto, which
  /// the writer writes back. Empty for a tensor.
  std::string other_type = {};
  /// What else the file says of the value; null if nothing. Never changed: copies share it.
  std::shared_ptr<const value_notes> notes = {};
};

/// What a model and a sub-graph have in common: nodes, constants, and declared values.
struct graph_body {
  std::string graph_name;                      ///< Name of the graph.
  std::vector<node> nodes;                     ///< Nodes in topological order (sort_and_check()).
  std::map<std::string, tensor> initializers;  ///< Constants by name.
  std::vector<value_info> inputs;              ///< Inputs, without those that are initializers.
  std::vector<value_info> outputs;             ///< Outputs.
  std::vector<value_info> values;              ///< Declarations of other values; may be empty.
  unread_fields unread = {};  ///< Other fields of its GraphProto, such as doc_string.
  /// Other fields of the TensorProto of an initializer, by its name. Names that have no initializer
  /// any more are ignored.
  std::map<std::string, unread_fields> unread_of_initializers = {};

  /// The constant of this name, or null.
  [[nodiscard]] const tensor* initializer(const std::string& name) const {
    const auto found = initializers.find(name);
    return found == initializers.end() ? nullptr : &found->second;
  }
  /// True if the graph has an output of this name.
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

/// A function that a model defines and that its nodes may call like an operator. The library keeps
/// functions only to write them back; it neither runs nor rewrites them.
struct model_function {
  std::string domain;  ///< Domain of the function; the reader rejects ONNX's own.
  std::string name;    ///< Name of the function.
  std::string bytes;   ///< The bytes of its FunctionProto.
};

/// A whole model: its graph and what ONNX's ModelProto says about it.
struct model : graph_body {
  std::int64_t ir_version = 8;   ///< Version of ONNX's file format.
  std::string producer_name;     ///< Name of the tool that made the model.
  std::string producer_version;  ///< Version of that tool.
  std::string doc;               ///< Description of the model.
  /// Version of the operators by domain; ONNX's own domain is "".
  std::map<std::string, std::int64_t> opsets;
  std::map<std::string, std::string> metadata;  ///< Key/value pairs that tools attached.
  std::vector<model_function> functions;        ///< Functions that the model defines.
  unread_fields unread_of_model = {};  ///< Other fields of its ModelProto: domain, model_version.
  /// Bytes that the reader took from external data files.
  std::uint64_t external_bytes = 0;
  std::vector<std::string> external_files;  ///< Paths of these files, each once.

  /// The version of ONNX's own operators that the model uses; 1 if it states none.
  [[nodiscard]] std::int64_t opset() const {
    const auto found = opsets.find("");
    return found == opsets.end() ? 1 : found->second;
  }
};

/// The functions of a model by domain and name. The model must outlive it and keep its functions.
class function_table {
 public:
  /// No functions.
  function_table() = default;
  /// Lists the functions of the model; of several with one name, the first.
  explicit function_table(const model& m) {
    for (const model_function& f : m.functions) {
      functions_.emplace(std::pair<std::string_view, std::string_view>(f.domain, f.name), &f);
    }
  }
  /// The function that a node calls, or null if it calls none.
  [[nodiscard]] const model_function* function_of(const node& n) const {
    const auto found = functions_.find({n.domain, n.op_type});
    return found == functions_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::pair<std::string_view, std::string_view>, const model_function*> functions_;
};

/// How deep sub-graphs may be nested. Files are not trusted, and code that walks through a model
/// recurses this deep; the reader and sort_and_check() therefore reject deeper models.
inline constexpr std::size_t max_body_depth = 32;

/// Calls f(key, body) for every sub-graph of a node, where `key` is the name of its attribute.
/// Sub-graphs within these sub-graphs are not visited.
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

/// Replaces each sub-graph of a node by a copy that f(body) has changed. Other nodes that share the
/// sub-graph keep the old one.
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

/// True if the node has at least one sub-graph.
[[nodiscard]] inline bool has_bodies(const node& n) {
  bool any = false;
  for_each_body(n, [&](const std::string&, const graph_body&) { any = true; });
  return any;
}

/// Calls f(name) for all values of a graph (inputs, constants, outputs of nodes), those of its
/// sub-graphs included. A name that several graphs use is passed several times.
template <class Function>
void for_each_value_name(const graph_body& g, const Function& f) {
  for (const value_info& v : g.inputs) {
    f(v.name);
  }
  for (const auto& [name, t] : g.initializers) {
    f(name);
  }
  for (const node& n : g.nodes) {
    for (const std::string& name : n.outputs) {
      if (!name.empty()) {
        f(name);
      }
    }
    for_each_body(
        n, [&](const std::string&, const graph_body& body) { for_each_value_name(body, f); });
  }
}

/// The names of all values of a graph as for_each_value_name() passes them.
[[nodiscard]] inline std::set<std::string> value_names(const graph_body& g) {
  std::set<std::string> names;
  for_each_value_name(g, [&](const std::string& name) { names.insert(name); });
  return names;
}

/// The names of the outer values that the sub-graphs of a node use, directly or in sub-graphs of
/// their own. They are not necessarily among the node's inputs.
[[nodiscard]] inline std::set<std::string> captured_values(const node& n);

/// The names of the outer values that a sub-graph uses, itself or in sub-graphs within it.
[[nodiscard]] inline std::set<std::string> captured_values(const graph_body& body) {
  detail::name_table<detail::no_value> own(body.inputs.size() + body.initializers.size() +
                                           body.nodes.size());
  own.add("");
  for (const value_info& v : body.inputs) {
    own.add(v.name);
  }
  for (const auto& [name, t] : body.initializers) {
    own.add(name);
  }
  for (const node& n : body.nodes) {
    for (const std::string& output : n.outputs) {
      own.add(output);
    }
  }
  std::set<std::string> captured;
  const auto use = [&](const std::string& name) {
    if (!own.has(name)) {
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

[[nodiscard]] inline std::set<std::string> captured_values(const node& n) {
  std::set<std::string> captured;
  for_each_body(n, [&](const std::string&, const graph_body& body) {
    captured.merge(captured_values(body));
  });
  return captured;
}

namespace detail {

/// What links knows of a value.
struct value_links {
  std::size_t producer = static_cast<std::size_t>(-1);
  std::size_t first = 0;   // where its consumers begin in the list of all
  std::size_t count = 0;   // how many consumers it has
  std::size_t placed = 0;  // how many of them are in the list, while it is made
  bool is_output = false;
};

}  // namespace detail

/// An index of a model: which node makes each value, which nodes use it, and which values are
/// outputs. It is valid until the nodes or outputs of the model change. Values within sub-graphs
/// are not indexed.
class links {
 public:
  /// Builds the index of `m`, which is not kept.
  explicit links(const model& m) : values_(m.nodes.size() + m.initializers.size()) {
    // Each use: the value, and the node that uses it.
    std::vector<std::pair<detail::value_links*, std::size_t>> uses;
    uses.reserve(2 * m.nodes.size());
    const auto use = [&](const std::string& name, std::size_t node) {
      detail::value_links* const value = values_.add(name).first;
      ++value->count;
      uses.emplace_back(value, node);
    };
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      for (const std::string& out : m.nodes[i].outputs) {
        if (!out.empty()) {
          values_.add(out).first->producer = i;
        }
      }
      for (const std::string& in : m.nodes[i].inputs) {
        if (!in.empty()) {
          use(in, i);
        }
      }
      for (const std::string& in : captured_values(m.nodes[i])) {
        use(in, i);
      }
    }
    for (const value_info& v : m.outputs) {
      values_.add(v.name).first->is_output = true;
    }
    // The consumers of a value stand side by side, in the order of the nodes.
    consumers_.resize(uses.size());
    std::size_t next = 0;
    for (const auto& [value, node] : uses) {
      if (value->placed == 0) {
        value->first = next;
        next += value->count;
      }
      consumers_[value->first + value->placed++] = node;
    }
  }
  /// What producer() returns for a value that no node makes.
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  /// The index in `nodes` of the node that makes the value; `none` if no node does, as for inputs
  /// and constants.
  [[nodiscard]] std::size_t producer(const std::string& value) const {
    const detail::value_links* const found = values_.find(value);
    return found == nullptr ? none : found->producer;
  }
  /// The indices in `nodes` of the nodes that use the value, one entry for each use: a node that
  /// has the value as two inputs is listed twice. A node whose sub-graphs capture the value is
  /// listed once more for that.
  [[nodiscard]] std::span<const std::size_t> consumers(const std::string& value) const {
    const detail::value_links* const found = values_.find(value);
    return found == nullptr ? std::span<const std::size_t>()
                            : std::span(consumers_).subspan(found->first, found->count);
  }
  /// Whether the value is an output of the model.
  [[nodiscard]] bool is_output(const std::string& value) const {
    const detail::value_links* const found = values_.find(value);
    return found != nullptr && found->is_output;
  }

 private:
  detail::name_table<detail::value_links> values_;
  std::vector<std::size_t> consumers_;
};

namespace detail {

/// The names of values that are visible to a sub-graph: those of the graph around it and of all
/// graphs around that one.
struct name_scope {
  const name_table<std::size_t>& names;
  const name_scope* outer;

  [[nodiscard]] bool has(const std::string& name) const {
    return names.has(name) || (outer != nullptr && outer->has(name));
  }
};

/// Does sort_and_check() for one graph and, by recursion, for its sub-graphs. `around`: the values
/// that it may capture, null for the model's own graph. `depth`: how many graphs are around it.
inline void sort_and_check(graph_body& g, const name_scope* around, std::size_t depth) {
  require(depth <= max_body_depth, error_kind::bad_file, "sub-graphs stand more than ",
          max_body_depth, " deep in each other");
  // The index of the node that makes a value; `given` for inputs and constants.
  constexpr std::size_t given = static_cast<std::size_t>(-1);
  name_table<std::size_t> makers(g.inputs.size() + g.initializers.size() + g.nodes.size());
  for (const value_info& input : g.inputs) {
    require(!input.name.empty(), error_kind::bad_file, "an input has no name");
    require(makers.add(input.name, given).second, error_kind::bad_file, "two inputs are called '",
            input.name, "'");
  }
  for (const auto& [name, value] : g.initializers) {
    makers.add(name, given);
  }
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    require(!g.nodes[i].outputs.empty(), error_kind::bad_file, shown(g.nodes[i]), " has no output");
    for (const std::string& out : g.nodes[i].outputs) {
      require(out.empty() || makers.add(out, i).second, error_kind::bad_file, shown(g.nodes[i]),
              " makes '", out, "', which already exists");
    }
  }
  std::vector<std::set<std::string>> captured;  // by the index of the node, if any node has bodies
  if (std::any_of(g.nodes.begin(), g.nodes.end(), has_bodies)) {
    captured.resize(g.nodes.size());
    const name_scope scope{makers, around};
    for (std::size_t i = 0; i < g.nodes.size(); ++i) {
      change_bodies(g.nodes[i], [&](graph_body& body) { sort_and_check(body, &scope, depth + 1); });
      captured[i] = captured_values(g.nodes[i]);
    }
  }
  // Calls each(maker) for what node i uses that other nodes of the graph make.
  const auto for_each_maker = [&](std::size_t i, const auto& each) {
    const auto use = [&](const std::string& in) {
      if (in.empty()) {
        return;
      }
      if (const std::size_t* const maker = makers.find(in)) {
        if (*maker != given) {
          each(*maker);
        }
        return;
      }
      require(around != nullptr && around->has(in), error_kind::bad_file, shown(g.nodes[i]),
              " uses '", in, "', which nothing makes");
    };
    std::for_each(g.nodes[i].inputs.begin(), g.nodes[i].inputs.end(), use);
    if (!captured.empty()) {
      std::for_each(captured[i].begin(), captured[i].end(), use);
    }
  };
  bool is_sorted = true;
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    for_each_maker(i, [&](std::size_t maker) { is_sorted = is_sorted && maker < i; });
  }
  for (const value_info& out : g.outputs) {
    require(makers.has(out.name) || (around != nullptr && around->has(out.name)),
            error_kind::bad_file, "graph output '", out.name, "' is made by nothing");
  }
  if (is_sorted) {
    return;
  }
  // Kahn's algorithm. Of the nodes that could come next, the one that came first does.
  std::vector<std::size_t> missing(g.nodes.size(), 0);
  std::vector<std::vector<std::size_t>> users(g.nodes.size());
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    for_each_maker(i, [&](std::size_t maker) {
      ++missing[i];
      users[maker].push_back(i);
    });
  }
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
      require(missing[i] == 0, error_kind::bad_file, shown(g.nodes[i]), " is part of a cycle");
    }
  }
  g.nodes = std::move(sorted);
}

}  // namespace detail

/// Checks that the names of values fit together and puts the nodes in topological order, in all
/// sub-graphs too. A model that is in order keeps the order of its nodes.
///
/// Throws bad_file, naming the node and the value, if an input has no name, two inputs have the
/// same name, a node has no output, a value is made twice, a value is used or declared as output
/// but never made, nodes form a cycle, or sub-graphs are nested more than max_body_depth deep. The
/// model must not be used after an exception.
inline void sort_and_check(model& m) { detail::sort_and_check(m, nullptr, 0); }

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_IR_HPP
