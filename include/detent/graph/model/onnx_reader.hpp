// SPDX-License-Identifier: BSD-3-Clause
// Reads ONNX models from files.
//
// Files are not trusted: lengths, shapes, names and paths are checked. Every error in a file is a
// detent::error (bad_file, unsupported or io) of one line that names the file and, where there is
// one, the tensor or node.
#ifndef DETENT_GRAPH_MODEL_ONNX_READER_HPP
#define DETENT_GRAPH_MODEL_ONNX_READER_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <protozero/data_view.hpp>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/onnx_fields.hpp>
#include <detent/graph/model/onnx_message.hpp>
#include <detent/graph/model/onnx_tensor_reader.hpp>
#include <detent/graph/model/onnx_value_reader.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// Reads the messages of onnx.proto. Errors do not name the file; with_file_name() of
/// onnx_tensor.hpp adds it.
class onnx_reader {
 public:
  /// `folder`: the folder below which external data is looked for.
  explicit onnx_reader(std::filesystem::path folder, const read_limits& limits)
      : tensors_(std::move(folder), limits), max_nodes_(limits.max_nodes) {}

  /// Reads a ModelProto. The nodes stay in the order of the file.
  model read_model(std::string_view bytes) {
    using onnx::model_field;
    model m;
    m.ir_version = 0;
    bool has_graph = false;
    std::string unread;
    std::string unread_of_graph;
    checked_message<model_field> message(protozero::data_view(bytes.data(), bytes.size()));
    while (message.next()) {
      switch (message.tag()) {
        case model_field::ir_version:
          m.ir_version = message.get_int64();
          break;
        case model_field::producer_name:
          m.producer_name = message.get_string();
          break;
        case model_field::producer_version:
          m.producer_version = message.get_string();
          break;
        case model_field::doc_string:
          m.doc = message.get_string();
          break;
        case model_field::graph:
          has_graph = true;
          read_graph(message.get_view(), m, unread_of_graph, 0);
          break;
        case model_field::opset_import:
          read_opset(message.get_view(), m);
          break;
        case model_field::metadata_props: {
          auto [key, value] = read_entry(message.get_view());
          m.metadata[std::move(key)] = std::move(value);
          break;
        }
        case model_field::functions:
          m.functions.push_back(read_function(message.get_view()));
          break;
        case model_field::training_info:
          message.skip();
          break;
        default:
          message.keep(unread);
      }
    }
    m.unread_of_model = to_unread_fields(std::move(unread));
    complete_graph(m, std::move(unread_of_graph));
    require(has_graph && m.ir_version > 0, error_kind::bad_file, "not an ONNX model");
    m.external_bytes = tensors_.external().bytes_found();
    const auto& files = tensors_.external().files();
    m.external_files.assign(files.begin(), files.end());
    return m;
  }

 private:
  static model_function read_function(protozero::data_view bytes) {
    model_function f;
    f.bytes.assign(bytes.data(), bytes.size());
    checked_message<onnx::function_field> message(bytes);
    while (message.next()) {
      switch (message.tag()) {
        case onnx::function_field::name:
          f.name = message.get_string();
          break;
        case onnx::function_field::domain:
          f.domain = message.get_string();
          break;
        default:
          message.skip();
      }
    }
    require(!f.domain.empty() && f.domain != "ai.onnx", error_kind::unsupported, "function '",
            f.name, "' of the model takes the place of an operator of ONNX");
    return f;
  }

  static void read_opset(protozero::data_view bytes, model& m) {
    std::string domain;
    std::int64_t version = 0;
    checked_message<onnx::opset_field> message(bytes);
    while (message.next()) {
      switch (message.tag()) {
        case onnx::opset_field::domain:
          domain = message.get_string();
          break;
        case onnx::opset_field::version:
          version = message.get_int64();
          break;
        default:
          message.skip();
      }
    }
    m.opsets[domain == "ai.onnx" ? "" : domain] = version;
  }

  /// Reads a GraphProto; complete_graph() does the rest. Fields that are not interpreted are
  /// appended to `unread`. `depth`: how many graphs are around this one.
  void read_graph(protozero::data_view bytes, graph_body& m, std::string& unread,
                  std::size_t depth) {
    using onnx::graph_field;
    require(depth <= max_body_depth, error_kind::bad_file, "sub-graphs stand more than ",
            max_body_depth, " deep in each other");
    checked_message<graph_field> message(bytes);
    while (message.next()) {
      switch (message.tag()) {
        case graph_field::node:
          require(++nodes_ <= max_nodes_, error_kind::bad_file, "the model has more than ",
                  max_nodes_, " nodes, the limit");
          m.nodes.push_back(read_node(message.get_view(), depth));
          break;
        case graph_field::name:
          m.graph_name = message.get_string();
          break;
        case graph_field::initializer: {
          std::string name;
          std::string unread_of_tensor;
          tensor t = tensors_.read(message.get_view(), name, unread_of_tensor);
          require(m.initializers.emplace(name, std::move(t)).second, error_kind::bad_file,
                  "two initializers are called '", name, "'");
          if (!unread_of_tensor.empty()) {
            m.unread_of_initializers[name] = to_unread_fields(std::move(unread_of_tensor));
          }
          break;
        }
        case graph_field::input:
          m.inputs.push_back(read_value(message.get_view()));
          break;
        case graph_field::output:
          m.outputs.push_back(read_value(message.get_view()));
          break;
        case graph_field::value_info:
          m.values.push_back(read_value(message.get_view()));
          break;
        case graph_field::sparse_initializer:
          raise(error_kind::unsupported, "detent: sparse initializers are not supported");
        case graph_field::quantization_annotation:
          message.skip();
          break;
        default:
          message.keep(unread);
      }
    }
  }

  /// Ends the reading of a graph. Inputs that are initializers too become constants, in sub-graphs
  /// as well: there, up to version 3 of the file format, every initializer is an input too, and the
  /// node that has the sub-graph gives no value for it.
  static void complete_graph(graph_body& g, std::string unread) {
    std::erase_if(g.inputs, [&](const value_info& v) { return g.initializers.count(v.name) != 0; });
    g.unread = to_unread_fields(std::move(unread));
  }

  node read_node(protozero::data_view bytes, std::size_t depth) {
    using onnx::node_field;
    node n;
    std::string overload;
    std::string unread;
    checked_message<node_field> m(bytes);
    while (m.next()) {
      switch (m.tag()) {
        case node_field::input:
          n.inputs.push_back(m.get_string());
          break;
        case node_field::output:
          n.outputs.push_back(m.get_string());
          break;
        case node_field::name:
          n.name = m.get_string();
          break;
        case node_field::op_type:
          n.op_type = m.get_string();
          break;
        case node_field::domain:
          n.domain = m.get_string();
          break;
        case node_field::attribute:
          read_attribute(m.get_view(), n, depth);
          break;
        case node_field::overload:
          overload = m.get_string();
          break;
        case node_field::device_configurations:
          m.skip();
          break;
        default:
          m.keep(unread);
      }
    }
    n.unread = to_unread_fields(std::move(unread));
    if (n.domain == "ai.onnx") {
      n.domain.clear();
    }
    require(overload.empty(), error_kind::unsupported, n.label(), " calls overload '", overload,
            "' of a function: overloads are not supported");
    return n;
  }

  std::shared_ptr<const graph_body> read_body(protozero::data_view bytes, std::size_t depth) {
    const auto body = std::make_shared<graph_body>();
    std::string unread;
    read_graph(bytes, *body, unread, depth + 1);
    complete_graph(*body, std::move(unread));
    return body;
  }

  void read_attribute(protozero::data_view bytes, node& n, std::size_t depth) {
    using onnx::attribute_field;
    using kind = attribute::kind_type;
    std::string name;
    attribute a;
    kind implied = kind::undefined;
    std::int32_t declared = 0;
    std::string type_field;
    std::string unread;
    using message_type = checked_message<attribute_field>;
    message_type m(bytes);
    while (m.next()) {
      switch (m.tag()) {
        case attribute_field::name:
          name = m.get_string();
          break;
        case attribute_field::f:
          a.f = m.get_float();
          implied = kind::f;
          break;
        case attribute_field::i:
          a.i = m.get_int64();
          implied = kind::i;
          break;
        case attribute_field::s:
          a.s = m.get_string();
          implied = kind::s;
          break;
        case attribute_field::t: {
          std::string ignored;
          a.t = tensors_.read(m.get_view(), ignored, ignored);
          implied = kind::t;
          break;
        }
        case attribute_field::floats:
          append_repeated(m, a.floats, &message_type::get_packed_float, &message_type::get_float);
          implied = kind::floats;
          break;
        case attribute_field::ints:
          append_repeated(m, a.ints, &message_type::get_packed_int64, &message_type::get_int64);
          implied = kind::ints;
          break;
        case attribute_field::strings:
          a.strings.push_back(m.get_string());
          implied = kind::strings;
          break;
        case attribute_field::type:
          declared = m.get_int32();
          type_field = m.whole_field();
          break;
        case attribute_field::g:
          a.g = read_body(m.get_view(), depth);
          implied = kind::g;
          break;
        case attribute_field::graphs:
          a.graphs.push_back(read_body(m.get_view(), depth));
          implied = kind::graphs;
          break;
        case attribute_field::doc_string:
          m.keep(unread);
          break;
        case attribute_field::tensors:
        default:
          m.keep(unread);
          implied = implied == kind::undefined ? kind::other : implied;
      }
    }
    if (declared == 0) {
      a.kind = implied;
    } else {
      // 1..8 are FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS and STRINGS; 10 is GRAPHS.
      const bool is_kept = (declared >= 1 && declared <= 8) || declared == 10;
      a.kind = is_kept ? static_cast<kind>(declared) : kind::other;
      unread += is_kept ? std::string() : type_field;
    }
    a.unread = to_unread_fields(std::move(unread));
    require(a.kind != kind::g || a.g != nullptr, error_kind::bad_file, "attribute '", name,
            "' is a graph and has none");
    n.attributes[name] = std::move(a);
  }

  onnx_tensor_reader tensors_;
  std::size_t max_nodes_;
  std::size_t nodes_ = 0;  // of all graphs so far
};

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_READER_HPP
