// SPDX-License-Identifier: BSD-3-Clause
// Writes ONNX models to bytes and to files.
#ifndef DETENT_GRAPH_MODEL_ONNX_WRITER_HPP
#define DETENT_GRAPH_MODEL_ONNX_WRITER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include <protozero/pbf_builder.hpp>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/onnx_fields.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Adds the declaration of a value to a GraphProto.
inline void write_value(protozero::pbf_builder<onnx::graph_field>& g, onnx::graph_field field,
                        const value_info& v) {
  protozero::pbf_builder<onnx::value_field> value(g, field);
  value.add_string(onnx::value_field::name, v.name);
  if (!v.other_type.empty()) {
    value.add_message(onnx::value_field::type, v.other_type);
    return;
  }
  if (v.type == element_type::undefined) {
    return;
  }
  protozero::pbf_builder<onnx::type_field> type(value, onnx::value_field::type);
  protozero::pbf_builder<onnx::tensor_type_field> t(type, onnx::type_field::tensor_type);
  t.add_int32(onnx::tensor_type_field::elem_type, static_cast<std::int32_t>(v.type));
  if (!v.has_shape) {
    return;
  }
  // A builder that is given nothing writes nothing. The shape of a scalar and unnamed open
  // dimensions are empty messages, which therefore have to be added explicitly.
  if (v.dims.empty()) {
    t.add_message(onnx::tensor_type_field::shape, std::string());
  }
  protozero::pbf_builder<onnx::shape_field> dims(t, onnx::tensor_type_field::shape);
  for (std::size_t i = 0; i < v.dims.size(); ++i) {
    const bool has_name = i < v.params.size() && !v.params[i].empty();
    if (v.dims[i] < 0 && !has_name) {
      dims.add_message(onnx::shape_field::dim, std::string());
      continue;
    }
    protozero::pbf_builder<onnx::dim_field> dim(dims, onnx::shape_field::dim);
    if (v.dims[i] >= 0) {
      dim.add_int64(onnx::dim_field::value, v.dims[i]);
    } else {
      dim.add_string(onnx::dim_field::param, v.params[i]);
    }
  }
}

/// Writes the fields of a TensorProto, the elements as raw_data. Throws unsupported for a tensor
/// without elements, such as one of strings.
inline void write_tensor(protozero::pbf_builder<onnx::tensor_field>& out, const std::string& name,
                         const tensor& t) {
  using onnx::tensor_field;
  require(t.has_data(), error_kind::unsupported, "tensor '", name, "' of type ",
          graph::name(t.type()), " cannot be written");
  out.add_packed_int64(tensor_field::dims, t.dims().begin(), t.dims().end());
  out.add_int32(tensor_field::data_type, static_cast<std::int32_t>(t.type()));
  if (!name.empty()) {
    out.add_string(tensor_field::name, name);
  }
  if (t.type() == element_type::u4 || t.type() == element_type::s4) {
    const auto values = t.data<std::uint8_t>();
    std::string packed((values.size() + 1) / 2, '\0');
    for (std::size_t i = 0; i < values.size(); ++i) {
      packed[i / 2] = static_cast<char>(static_cast<unsigned char>(packed[i / 2]) |
                                        (values[i] & 0xFU) << (i % 2 * 4));
    }
    out.add_bytes(tensor_field::raw_data, packed);
    return;
  }
  out.add_bytes(tensor_field::raw_data, reinterpret_cast<const char*>(t.raw()), t.bytes());
}

inline void write_graph(protozero::pbf_builder<onnx::graph_field>& g, const graph_body& body);

inline void write_node(protozero::pbf_builder<onnx::graph_field>& g, const node& n) {
  using onnx::attribute_field;
  using onnx::node_field;
  using kind = attribute::kind_type;
  protozero::pbf_builder<node_field> out(g, onnx::graph_field::node);
  for (const std::string& input : n.inputs) {
    out.add_string(node_field::input, input);
  }
  for (const std::string& output : n.outputs) {
    out.add_string(node_field::output, output);
  }
  out.add_string(node_field::name, n.name);
  out.add_string(node_field::op_type, n.op_type);
  for (const auto& [key, a] : n.attributes) {
    const bool is_whole =
        a.kind == kind::g ? a.g != nullptr
                          : std::find(a.graphs.begin(), a.graphs.end(), nullptr) == a.graphs.end();
    require(a.kind != kind::other && is_whole, error_kind::unsupported, n.label(), ": attribute '",
            key, "' of a kind that cannot be written");
    protozero::pbf_builder<attribute_field> attr(out, node_field::attribute);
    attr.add_string(attribute_field::name, key);
    switch (a.kind) {
      case kind::f:
        attr.add_float(attribute_field::f, a.f);
        break;
      case kind::i:
        attr.add_int64(attribute_field::i, a.i);
        break;
      case kind::s:
        attr.add_string(attribute_field::s, a.s);
        break;
      case kind::t: {
        protozero::pbf_builder<onnx::tensor_field> t(attr, attribute_field::t);
        write_tensor(t, "", a.t);
        break;
      }
      case kind::floats:
        // Unpacked, one value at a time: that is the default of proto2, whose parsers read ONNX.
        for (const float v : a.floats) {
          attr.add_float(attribute_field::floats, v);
        }
        break;
      case kind::ints:
        for (const std::int64_t v : a.ints) {
          attr.add_int64(attribute_field::ints, v);
        }
        break;
      case kind::strings:
        for (const std::string& v : a.strings) {
          attr.add_string(attribute_field::strings, v);
        }
        break;
      case kind::g: {
        protozero::pbf_builder<onnx::graph_field> body(attr, attribute_field::g);
        write_graph(body, *a.g);
        break;
      }
      case kind::graphs:
        for (const std::shared_ptr<const graph_body>& one : a.graphs) {
          protozero::pbf_builder<onnx::graph_field> body(attr, attribute_field::graphs);
          write_graph(body, *one);
        }
        break;
      case kind::undefined:
      case kind::other:
        break;
    }
    attr.add_int32(attribute_field::type, static_cast<std::int32_t>(a.kind));
  }
  if (!n.domain.empty()) {
    out.add_string(node_field::domain, n.domain);
  }
}

inline void write_graph(protozero::pbf_builder<onnx::graph_field>& g, const graph_body& body) {
  using onnx::graph_field;
  for (const node& n : body.nodes) {
    write_node(g, n);
  }
  g.add_string(graph_field::name, body.graph_name.empty() ? "graph" : body.graph_name);
  for (const auto& [name, t] : body.initializers) {
    protozero::pbf_builder<onnx::tensor_field> tensor_out(g, graph_field::initializer);
    write_tensor(tensor_out, name, t);
  }
  for (const value_info& v : body.inputs) {
    write_value(g, graph_field::input, v);
  }
  for (const value_info& v : body.outputs) {
    write_value(g, graph_field::output, v);
  }
  for (const value_info& v : body.values) {
    write_value(g, graph_field::value_info, v);
  }
}

}  // namespace detail

/// The bytes of a model as an ONNX ModelProto, with all elements of tensors in raw_data; nothing
/// goes to external files. The version of the file format becomes at least 4.
///
/// Throws unsupported, naming the tensor or node, for tensors without elements (strings) and for
/// attributes of kind `other` or with a missing sub-graph.
[[nodiscard]] inline std::string to_onnx(const model& m) {
  using onnx::model_field;
  std::string bytes;
  protozero::pbf_builder<model_field> out(bytes);
  // Before version 4, initializers had to be graph inputs as well.
  out.add_int64(model_field::ir_version, (std::max)(m.ir_version, std::int64_t{4}));
  out.add_string(model_field::producer_name, m.producer_name);
  out.add_string(model_field::producer_version, m.producer_version);
  if (!m.doc.empty()) {
    out.add_string(model_field::doc_string, m.doc);
  }
  {
    protozero::pbf_builder<onnx::graph_field> g(out, model_field::graph);
    detail::write_graph(g, m);
  }
  for (const auto& [domain, version] : m.opsets) {
    protozero::pbf_builder<onnx::opset_field> opset(out, model_field::opset_import);
    opset.add_string(onnx::opset_field::domain, domain);
    opset.add_int64(onnx::opset_field::version, version);
  }
  for (const auto& [key, value] : m.metadata) {
    protozero::pbf_builder<onnx::entry_field> entry(out, model_field::metadata_props);
    entry.add_string(onnx::entry_field::key, key);
    entry.add_string(onnx::entry_field::value, value);
  }
  for (const model_function& f : m.functions) {
    out.add_message(model_field::functions, f.bytes);
  }
  return bytes;
}

/// Writes a model to a file, which appears as a whole or not at all (replacement_file). Throws
/// unsupported as to_onnx() and for models of 2 GiB or more, which the format does not allow; io if
/// the file cannot be written.
inline void write_onnx(const model& m, const std::filesystem::path& path) {
  const std::string bytes = to_onnx(m);
  detent::require(bytes.size() < (std::size_t{1} << 31), error_kind::unsupported, path.string(),
                  ": the model has ", bytes.size(), " bytes; a file of this format holds 2 GiB");
  write_file(path, bytes);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_WRITER_HPP
