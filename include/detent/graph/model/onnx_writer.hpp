// SPDX-License-Identifier: BSD-3-Clause
// Writes ONNX models to bytes and to files. Elements of constants stay where they are until they
// are written; those of a model that is too large for one file go to a second one beside it, as
// external data.
#ifndef DETENT_GRAPH_MODEL_ONNX_WRITER_HPP
#define DETENT_GRAPH_MODEL_ONNX_WRITER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <protozero/pbf_builder.hpp>
#include <protozero/varint.hpp>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/file_pieces.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/onnx_fields.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// A protozero::pbf_builder that throws std::bad_alloc where there is no memory. Protozero's
/// constructor for a message inside another one allocates, but is noexcept, so that a failure would
/// end the program; this class reserves the memory before it calls that constructor.
template <class Field>
class message_builder : public protozero::pbf_builder<Field> {
 public:
  /// Appends the message to `bytes`.
  explicit message_builder(std::string& bytes)
      : protozero::pbf_builder<Field>(bytes), bytes_(&bytes) {}
  /// The message in `field` of `parent`. Throws std::bad_alloc.
  template <class Parent>
  message_builder(message_builder<Parent>& parent, Parent field)
      : protozero::pbf_builder<Field>(parent.with_room(), field), bytes_(parent.bytes_) {}
  /// Adds whole fields of a message that was read. No message inside this one may be open.
  void add_fields(const std::string& fields) { *bytes_ += fields; }
  /// Adds the fields, unless they are null.
  void add_fields(const unread_fields& fields) {
    if (fields != nullptr) {
      add_fields(*fields);
    }
  }

 private:
  template <class>
  friend class message_builder;

  message_builder& with_room() {
    constexpr std::size_t tag_and_length = 32;  // more than both have
    if (bytes_->capacity() - bytes_->size() < tag_and_length) {
      bytes_->reserve(2 * bytes_->size() + tag_and_length);
    }
    return *this;
  }

  std::string* bytes_;
};

/// Adds the shape of a value to a TypeProto.Tensor.
inline void write_shape(message_builder<onnx::tensor_type_field>& t, const value_info& v) {
  // A builder that is given nothing writes nothing. The shape of a scalar and unnamed open
  // dimensions are empty messages, which therefore have to be added explicitly.
  if (v.dims.empty()) {
    t.add_message(onnx::tensor_type_field::shape, std::string());
  }
  message_builder<onnx::shape_field> dims(t, onnx::tensor_type_field::shape);
  for (std::size_t i = 0; i < v.dims.size(); ++i) {
    std::string text;
    message_builder<onnx::dim_field> dim(text);
    if (v.dims[i] >= 0) {
      dim.add_int64(onnx::dim_field::value, v.dims[i]);
    } else if (i < v.params.size() && !v.params[i].empty()) {
      dim.add_string(onnx::dim_field::param, v.params[i]);
    }
    if (v.notes != nullptr && i < v.notes->dim_fields.size()) {
      dim.add_fields(v.notes->dim_fields[i]);
    }
    dims.add_message(onnx::shape_field::dim, text);
  }
}

/// Adds the type of a value to its declaration.
inline void write_type(message_builder<onnx::value_field>& value, const value_info& v) {
  if (!v.other_type.empty()) {
    value.add_message(onnx::value_field::type, v.other_type);
    return;
  }
  if (v.type == element_type::undefined) {
    return;
  }
  message_builder<onnx::type_field> type(value, onnx::value_field::type);
  {
    message_builder<onnx::tensor_type_field> t(type, onnx::type_field::tensor_type);
    t.add_int32(onnx::tensor_type_field::elem_type, static_cast<std::int32_t>(v.type));
    if (v.has_shape) {
      write_shape(t, v);
    }
  }
  if (v.notes != nullptr) {
    type.add_fields(v.notes->type_fields);
  }
}

/// Adds the declaration of a value to a GraphProto.
inline void write_value(message_builder<onnx::graph_field>& g, onnx::graph_field field,
                        const value_info& v) {
  message_builder<onnx::value_field> value(g, field);
  value.add_string(onnx::value_field::name, v.name);
  write_type(value, v);
  if (v.notes != nullptr) {
    value.add_fields(v.notes->fields);
  }
}

/// Whether elements of this type are stored two in a byte.
[[nodiscard]] inline bool are_nibbles(element_type type) noexcept {
  return type == element_type::u4 || type == element_type::s4;
}

/// Elements of 4 bits as they are stored, two in a byte, the first in the low half.
[[nodiscard]] inline std::string packed_nibbles(const tensor& t) {
  const auto values = t.data<std::uint8_t>();
  std::string packed((values.size() + 1) / 2, '\0');
  for (std::size_t i = 0; i < values.size(); ++i) {
    packed[i / 2] = static_cast<char>(static_cast<unsigned char>(packed[i / 2]) |
                                      (values[i] & 0xFU) << (i % 2 * 4));
  }
  return packed;
}

/// The second file of a model, with the elements of constants.
class external_file {
 public:
  /// `location`: the name of the file, as the model will say it.
  explicit external_file(std::string location) : location_(std::move(location)) {}

  /// Whether the elements of a constant belong here: small ones stay in the model.
  [[nodiscard]] static bool takes(const tensor& t) noexcept {
    constexpr std::size_t least = 1024;  // bytes, as ONNX's own tools have it
    return (are_nibbles(t.type()) ? (t.count() + 1) / 2 : t.bytes()) >= least;
  }
  /// Adds the elements of a constant and writes to its TensorProto where they are. They begin at a
  /// page, so that readers can map them.
  void add(message_builder<onnx::tensor_field>& out, const tensor& t) {
    constexpr std::size_t page = 4096;
    pieces_.fill_up(page);
    const std::uint64_t offset = pieces_.size();
    if (are_nibbles(t.type())) {
      pieces_.add(packed_nibbles(t));
    } else {
      pieces_.add(t);
    }
    add_entry(out, "location", location_);
    add_entry(out, "offset", std::to_string(offset));
    add_entry(out, "length", std::to_string(pieces_.size() - offset));
    constexpr std::int32_t external = 1;
    out.add_int32(onnx::tensor_field::data_location, external);
  }
  /// The bytes of the file.
  [[nodiscard]] const file_pieces& pieces() const noexcept { return pieces_; }

 private:
  static void add_entry(message_builder<onnx::tensor_field>& out, const char* key,
                        const std::string& value) {
    message_builder<onnx::entry_field> entry(out, onnx::tensor_field::external_data);
    entry.add_string(onnx::entry_field::key, key);
    entry.add_string(onnx::entry_field::value, value);
  }

  std::string location_;
  file_pieces pieces_;
};

/// Writes the fields of a TensorProto but the elements, with others that were read. Throws
/// unsupported for a tensor without elements.
inline void write_form(message_builder<onnx::tensor_field>& out, const std::string& name,
                       const tensor& t, const unread_fields& unread) {
  using onnx::tensor_field;
  const bool is_whole =
      t.type() == element_type::string ? t.strings().size() == t.count() : t.has_data();
  require(is_whole, error_kind::unsupported, "tensor '", name, "' of type ", graph::name(t.type()),
          " cannot be written");
  out.add_packed_int64(tensor_field::dims, t.dims().begin(), t.dims().end());
  out.add_int32(tensor_field::data_type, static_cast<std::int32_t>(t.type()));
  if (!name.empty()) {
    out.add_string(tensor_field::name, name);
  }
  out.add_fields(unread);
}

/// Writes the fields of a TensorProto, the elements to `external` if it takes them (null: none), or
/// else as raw_data; strings have a field of their own. Throws as write_form().
inline void write_tensor(message_builder<onnx::tensor_field>& out, const std::string& name,
                         const tensor& t, const unread_fields& unread, external_file* external) {
  write_form(out, name, t, unread);
  if (t.type() == element_type::string) {
    for (const std::string& s : t.strings()) {
      out.add_bytes(onnx::tensor_field::string_data, s);
    }
  } else if (external != nullptr && external_file::takes(t)) {
    external->add(out, t);
  } else if (are_nibbles(t.type())) {
    out.add_bytes(onnx::tensor_field::raw_data, packed_nibbles(t));
  } else {
    out.add_bytes(onnx::tensor_field::raw_data, reinterpret_cast<const char*>(t.raw()), t.bytes());
  }
}

inline void write_graph(message_builder<onnx::graph_field>& g, const graph_body& body,
                        external_file* external);

/// Adds a node. Tensors that are attributes stay in the model: runtimes read no others.
inline void write_node(message_builder<onnx::graph_field>& g, const node& n,
                       external_file* external) {
  using onnx::attribute_field;
  using onnx::node_field;
  using kind = attribute::kind_type;
  message_builder<node_field> out(g, onnx::graph_field::node);
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
    const bool is_known = a.kind != kind::other || a.unread != nullptr;
    require(is_known && is_whole, error_kind::unsupported, n.label(), ": attribute '", key,
            "' of a kind that cannot be written");
    message_builder<attribute_field> attr(out, node_field::attribute);
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
        message_builder<onnx::tensor_field> t(attr, attribute_field::t);
        write_tensor(t, "", a.t, nullptr, nullptr);
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
        message_builder<onnx::graph_field> body(attr, attribute_field::g);
        write_graph(body, *a.g, external);
        break;
      }
      case kind::graphs:
        for (const std::shared_ptr<const graph_body>& one : a.graphs) {
          message_builder<onnx::graph_field> body(attr, attribute_field::graphs);
          write_graph(body, *one, external);
        }
        break;
      case kind::undefined:
      case kind::other:
        break;
    }
    if (a.kind != kind::other) {
      attr.add_int32(attribute_field::type, static_cast<std::int32_t>(a.kind));
    }
    attr.add_fields(a.unread);
  }
  if (!n.domain.empty()) {
    out.add_string(node_field::domain, n.domain);
  }
  out.add_fields(n.unread);
}

/// The fields of an initializer that were read and are not interpreted.
[[nodiscard]] inline unread_fields unread_of_initializer(const graph_body& g,
                                                         const std::string& name) {
  const auto found = g.unread_of_initializers.find(name);
  return found == g.unread_of_initializers.end() ? nullptr : found->second;
}

/// Writes what stands before the constants of a graph.
inline void write_nodes(message_builder<onnx::graph_field>& g, const graph_body& body,
                        external_file* external) {
  for (const node& n : body.nodes) {
    write_node(g, n, external);
  }
  g.add_string(onnx::graph_field::name, body.graph_name.empty() ? "graph" : body.graph_name);
}

/// Writes what stands behind the constants of a graph.
inline void write_values(message_builder<onnx::graph_field>& g, const graph_body& body) {
  using onnx::graph_field;
  for (const value_info& v : body.inputs) {
    write_value(g, graph_field::input, v);
  }
  for (const value_info& v : body.outputs) {
    write_value(g, graph_field::output, v);
  }
  for (const value_info& v : body.values) {
    write_value(g, graph_field::value_info, v);
  }
  g.add_fields(body.unread);
}

/// Writes a sub-graph.
inline void write_graph(message_builder<onnx::graph_field>& g, const graph_body& body,
                        external_file* external) {
  write_nodes(g, body, external);
  for (const auto& [name, t] : body.initializers) {
    message_builder<onnx::tensor_field> tensor_out(g, onnx::graph_field::initializer);
    write_tensor(tensor_out, name, t, unread_of_initializer(body, name), external);
  }
  write_values(g, body);
}

/// Appends the key and the length of a field of `length` bytes that follow.
template <class Field>
void append_header(std::string& text, Field field, std::uint64_t length) {
  constexpr unsigned length_delimited = 2;
  const auto append = [&](std::uint64_t number) {
    protozero::write_varint(std::back_inserter(text), number);
  };
  append(static_cast<std::uint64_t>(field) << 3U | length_delimited);
  append(length);
}

/// Adds a constant to the pieces of a GraphProto, as write_tensor() writes it.
inline void add_constant(file_pieces& g, const std::string& name, const tensor& t,
                         const unread_fields& unread, external_file* external) {
  constexpr std::size_t least_apart = 4096;  // bytes of the smallest tensor that is a piece
  const bool stays = external == nullptr || !external_file::takes(t);
  const bool is_apart = stays && t.has_data() && !are_nibbles(t.type()) && t.bytes() >= least_apart;
  std::string fields;
  {
    message_builder<onnx::tensor_field> out(fields);
    if (is_apart) {
      write_form(out, name, t, unread);
    } else {
      write_tensor(out, name, t, unread, external);
    }
  }
  if (is_apart) {
    append_header(fields, onnx::tensor_field::raw_data, t.bytes());
  }
  std::string text;
  append_header(text, onnx::graph_field::initializer, fields.size() + (is_apart ? t.bytes() : 0));
  g.add(text + fields);
  if (is_apart) {
    g.add(t);
  }
}

/// The GraphProto of a model.
[[nodiscard]] inline file_pieces graph_pieces(const model& m, external_file* external) {
  file_pieces g;
  const auto add_text = [&](const auto& write) {
    std::string text;
    message_builder<onnx::graph_field> out(text);
    write(out);
    g.add(text);
  };
  add_text([&](auto& out) { write_nodes(out, m, external); });
  for (const auto& [name, t] : m.initializers) {
    add_constant(g, name, t, unread_of_initializer(m, name), external);
  }
  add_text([&](auto& out) { write_values(out, m); });
  return g;
}

/// The ModelProto of a model. Elements of constants go to `external`, if it is not null.
[[nodiscard]] inline file_pieces model_pieces(const model& m, external_file* external = nullptr) {
  using onnx::model_field;
  std::string before;
  {
    message_builder<model_field> out(before);
    // Before version 4, initializers had to be graph inputs as well.
    out.add_int64(model_field::ir_version, (std::max)(m.ir_version, std::int64_t{4}));
    out.add_string(model_field::producer_name, m.producer_name);
    out.add_string(model_field::producer_version, m.producer_version);
    if (!m.doc.empty()) {
      out.add_string(model_field::doc_string, m.doc);
    }
  }
  file_pieces g = graph_pieces(m, external);
  append_header(before, model_field::graph, g.size());
  std::string behind;
  {
    message_builder<model_field> out(behind);
    for (const auto& [domain, version] : m.opsets) {
      message_builder<onnx::opset_field> opset(out, model_field::opset_import);
      opset.add_string(onnx::opset_field::domain, domain);
      opset.add_int64(onnx::opset_field::version, version);
    }
    for (const auto& [key, value] : m.metadata) {
      message_builder<onnx::entry_field> entry(out, model_field::metadata_props);
      entry.add_string(onnx::entry_field::key, key);
      entry.add_string(onnx::entry_field::value, value);
    }
    for (const model_function& f : m.functions) {
      out.add_message(model_field::functions, f.bytes);
    }
    out.add_fields(m.unread_of_model);
  }
  file_pieces all;
  all.add(before);
  all.add(std::move(g));
  all.add(behind);
  return all;
}

/// Writes pieces behind what a file has.
inline void write_pieces(replacement_file& file, const file_pieces& pieces) {
  pieces.write([&](const char* bytes, std::size_t size) { file.write(bytes, size); });
}

}  // namespace detail

/// The bytes of a model as an ONNX ModelProto, with all elements of tensors in raw_data; nothing
/// goes to external files. The version of the file format becomes at least 4.
///
/// What the reader kept of other fields (unread_fields) is written back, behind the fields that the
/// library knows.
///
/// Throws unsupported, naming the tensor or node, for tensors without elements and for attributes
/// with a missing sub-graph, or of kind `other` that the reader has not made.
[[nodiscard]] inline std::string to_onnx(const model& m) {
  const detail::file_pieces pieces = detail::model_pieces(m);
  std::string bytes;
  bytes.reserve(static_cast<std::size_t>(pieces.size()));
  pieces.write([&](const char* piece, std::size_t size) { bytes.append(piece, size); });
  return bytes;
}

/// The number of bytes that to_onnx() would return. Throws as to_onnx().
[[nodiscard]] inline std::uint64_t onnx_size(const model& m) {
  return detail::model_pieces(m).size();
}

/// The size in bytes that ONNX model files stay below: no reader takes larger ones.
inline constexpr std::uint64_t onnx_file_limit = std::uint64_t{1} << 31U;

/// Options of write_onnx().
struct onnx_write_options {
  /// A model of so many bytes or more is written with external data; at most onnx_file_limit.
  std::uint64_t external_data_from = onnx_file_limit;
};

/// The files that write_onnx() has written.
struct written_onnx {
  std::uint64_t model_bytes = 0;     ///< Bytes of the model's own file.
  std::uint64_t external_bytes = 0;  ///< Bytes of its external data.
  std::filesystem::path external;    ///< The file with the external data; empty if there is none.
};

/// Writes a model to a file, which appears as a whole or not at all (replacement_file).
///
/// A model that has too many bytes for one file, or more than the options allow, becomes two: its
/// constants of 1024 bytes and more, those of sub-graphs too, go to the file `path` + ".data"
/// beside it, each to an offset that is a multiple of 4096. The data get their name first, the
/// model last, so that no model is without its data. Both files stand in the folder that `path`
/// leads to if it is a link.
///
/// Needs no memory for the elements of constants but for those of 4 bits. The model may refer to
/// the files that are replaced (mapped_file). Throws unsupported as to_onnx(), and if the model has
/// 2 GiB or more without these constants, or is to go to a device; io if a file cannot be written;
/// invalid_argument if an option is out of its range.
inline written_onnx write_onnx(const model& m, const std::filesystem::path& path,
                               const onnx_write_options& options = {}) {
  namespace fs = std::filesystem;
  detent::require(options.external_data_from <= onnx_file_limit, error_kind::invalid_argument,
                  "external data from ", options.external_data_from, " bytes, expected at most ",
                  onnx_file_limit);
  detail::file_pieces pieces = detail::model_pieces(m);
  replacement_file file(path);
  written_onnx written;
  fs::path data = file.target();
  data += ".data";
  std::optional<detail::external_file> external;
  if (pieces.size() >= options.external_data_from && !file.is_special()) {
    external.emplace(data.filename().string());
    pieces = detail::model_pieces(m, &*external);
  }
  written.model_bytes = pieces.size();
  detent::require(pieces.size() < onnx_file_limit, error_kind::unsupported, path.string(),
                  ": the model has ", pieces.size(), " bytes",
                  external ? " without its external data" : "",
                  "; a file of this format holds 2 GiB");
  if (!external || external->pieces().size() == 0) {
    detail::write_pieces(file, pieces);
    file.commit();
    return written;
  }
  replacement_file data_file(data);
  detail::write_pieces(data_file, external->pieces());
  data_file.close();
  detail::write_pieces(file, pieces);
  file.close();
  const bool is_new = !fs::exists(data);
  data_file.commit();
  try {
    file.commit();
  } catch (const error&) {
    std::error_code ignored;
    if (is_new) {
      fs::remove(data, ignored);
    }
    throw;
  }
  written.external_bytes = external->pieces().size();
  written.external = std::move(data);
  return written;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_WRITER_HPP
