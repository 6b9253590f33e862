// SPDX-License-Identifier: BSD-3-Clause
// Reads ONNX models and tensors from files.
//
// Files are not trusted: lengths, shapes, names and paths are checked. Every error in a file is a
// detent::error (bad_file, unsupported or io) of one line that names the file and, where there is
// one, the tensor or node.
#ifndef DETENT_GRAPH_MODEL_ONNX_READER_HPP
#define DETENT_GRAPH_MODEL_ONNX_READER_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <protozero/data_view.hpp>
#include <protozero/pbf_message.hpp>
#include <protozero/types.hpp>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/external_data.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/onnx_fields.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// A protobuf message that throws bad_file if a field is not in the encoding of its type. protozero
/// only asserts the encoding, but a damaged file may have any.
template <class Field>
class checked_message {
 public:
  explicit checked_message(protozero::data_view bytes) : m_(bytes) {}

  [[nodiscard]] bool next() {
    field_ = m_.data().data();
    return m_.next();
  }
  [[nodiscard]] Field tag() const { return m_.tag(); }
  [[nodiscard]] bool is_packed() const {
    return m_.wire_type() == protozero::pbf_wire_type::length_delimited;
  }
  void skip() { m_.skip(); }
  /// The bytes of the field with its tag; only behind the call that gets or skips its value.
  [[nodiscard]] std::string_view whole_field() const {
    return {field_, static_cast<std::size_t>(m_.data().data() - field_)};
  }
  /// Skips the field and appends its bytes, with the tag, to `unread`.
  void keep(std::string& unread) {
    m_.skip();
    unread += whole_field();
  }

  protozero::data_view get_view() {
    expect(protozero::pbf_wire_type::length_delimited);
    return m_.get_view();
  }
  std::string get_string() {
    expect(protozero::pbf_wire_type::length_delimited);
    return m_.get_string();
  }
  std::int32_t get_int32() {
    expect(protozero::pbf_wire_type::varint);
    return m_.get_int32();
  }
  std::int64_t get_int64() {
    expect(protozero::pbf_wire_type::varint);
    return m_.get_int64();
  }
  std::uint64_t get_uint64() {
    expect(protozero::pbf_wire_type::varint);
    return m_.get_uint64();
  }
  float get_float() {
    expect(protozero::pbf_wire_type::fixed32);
    return m_.get_float();
  }
  double get_double() {
    expect(protozero::pbf_wire_type::fixed64);
    return m_.get_double();
  }
  // The packed getters check nothing: call them only if is_packed() is true.
  auto get_packed_int32() { return m_.get_packed_int32(); }
  auto get_packed_int64() { return m_.get_packed_int64(); }
  auto get_packed_uint64() { return m_.get_packed_uint64(); }
  auto get_packed_float() { return m_.get_packed_float(); }
  auto get_packed_double() { return m_.get_packed_double(); }

 private:
  void expect(protozero::pbf_wire_type type) const {
    require(m_.wire_type() == type, error_kind::bad_file, "damaged: field ",
            static_cast<std::uint32_t>(m_.tag()), " has encoding ",
            static_cast<std::uint32_t>(m_.wire_type()));
  }

  protozero::pbf_message<Field> m_;
  const char* field_ = nullptr;  // where the field begins
};

/// Fields as models keep them.
[[nodiscard]] inline unread_fields to_unread_fields(std::string bytes) {
  return bytes.empty() ? nullptr : std::make_shared<const std::string>(std::move(bytes));
}

/// Appends one occurrence of a repeated field to `to`. The field may be packed or, as older writers
/// do it, hold one value.
template <class T, class Message, class Packed, class Single>
void append_repeated(Message& m, std::vector<T>& to, Packed packed, Single single) {
  if (m.is_packed()) {
    for (const auto value : (m.*packed)()) {
      to.push_back(static_cast<T>(value));
    }
  } else {
    to.push_back(static_cast<T>((m.*single)()));
  }
}

/// Reads the messages of onnx.proto. Errors do not name the file; with_file_name() of
/// onnx_tensor.hpp adds it.
class onnx_reader {
 public:
  /// `folder`: the folder below which external data is looked for.
  explicit onnx_reader(std::filesystem::path folder, const read_limits& limits)
      : external_(std::move(folder)), limits_(limits) {}

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
    m.external_bytes = external_.bytes_found();
    m.external_files.assign(external_.files().begin(), external_.files().end());
    return m;
  }

  /// Reads a TensorProto and sets `name` if it has one. Fields that are not interpreted are
  /// appended to `unread`.
  tensor read_tensor(protozero::data_view bytes, std::string& name, std::string& unread) {
    using onnx::tensor_field;
    shape dims;
    std::int32_t type = 0;
    protozero::data_view raw;
    bool has_raw = false;
    bool external = false;
    std::map<std::string, std::string> location;
    std::vector<float> floats;
    std::vector<double> doubles;
    std::vector<std::int32_t> int32s;
    std::vector<std::int64_t> int64s;
    std::vector<std::uint64_t> uint64s;
    std::vector<std::string> strings;
    using message_type = checked_message<tensor_field>;
    message_type m(bytes);
    while (m.next()) {
      switch (m.tag()) {
        case tensor_field::dims:
          append_repeated(m, dims, &message_type::get_packed_int64, &message_type::get_int64);
          break;
        case tensor_field::data_type:
          type = m.get_int32();
          break;
        case tensor_field::float_data:
          append_repeated(m, floats, &message_type::get_packed_float, &message_type::get_float);
          break;
        case tensor_field::int32_data:
          append_repeated(m, int32s, &message_type::get_packed_int32, &message_type::get_int32);
          break;
        case tensor_field::int64_data:
          append_repeated(m, int64s, &message_type::get_packed_int64, &message_type::get_int64);
          break;
        case tensor_field::double_data:
          append_repeated(m, doubles, &message_type::get_packed_double, &message_type::get_double);
          break;
        case tensor_field::uint64_data:
          append_repeated(m, uint64s, &message_type::get_packed_uint64, &message_type::get_uint64);
          break;
        case tensor_field::name:
          name = m.get_string();
          break;
        case tensor_field::raw_data:
          raw = m.get_view();
          has_raw = true;
          break;
        case tensor_field::external_data: {
          auto [key, value] = read_entry(m.get_view());
          location[std::move(key)] = std::move(value);
          break;
        }
        case tensor_field::data_location:
          external = m.get_int32() == 1;
          break;
        case tensor_field::string_data:
          // A string of no characters takes two bytes in the file and sizeof(std::string) here.
          require(strings.size() < limits_.max_tensor_bytes / sizeof(std::string),
                  error_kind::bad_file, "tensor '", name, "' has more than ", strings.size(),
                  " strings, the limit");
          strings.push_back(m.get_string());
          break;
        case tensor_field::segment:
          m.skip();
          break;
        default:
          m.keep(unread);
      }
    }
    const auto element = static_cast<element_type>(type);
    require(dims.size() <= max_tensor_rank, error_kind::bad_file, "tensor '", name, "' has rank ",
            dims.size(), ", the limit is ", max_tensor_rank);
    std::size_t count = 0;
    try {
      count = element_count(dims);
    } catch (const error& e) {
      raise(error_kind::bad_file, "detent: tensor '" + name + "': " + message_of(e));
    }
    if (element == element_type::string) {
      return string_tensor(name, dims, count, std::move(strings));
    }
    const std::size_t size = element_size(element);
    require(size > 0, error_kind::unsupported, "tensor '", name, "' has elements of ",
            graph::name(element));
    // Checked before any memory is taken. count * size cannot overflow: element_count() is bounded.
    require(count * size <= limits_.max_tensor_bytes, error_kind::bad_file, "tensor '", name,
            "' of shape ", shown(dims), " has ", count * size, " bytes, the limit is ",
            limits_.max_tensor_bytes);
    count_constant(name, count * size);
    const bool nibbles = element == element_type::u4 || element == element_type::s4;
    const std::size_t stored = nibbles ? (count + 1) / 2 : count * size;

    if (external) {
      return read_external(name, location, tensor(element, dims), stored);
    }
    if (has_raw) {
      require(raw.size() == stored, error_kind::bad_file, "tensor '", name, "' of shape ",
              shown(dims), " and type ", graph::name(element), " needs ", stored, " bytes and has ",
              raw.size());
      tensor t = tensor::allocate(element, dims);
      if (nibbles) {
        unpack_nibbles(raw.data(), t);
      } else if (stored > 0) {
        std::memcpy(t.mutable_raw(), raw.data(), stored);
      }
      normalize_booleans(t);
      return t;
    }
    const auto copy = [&](const auto& values, auto convert) {
      require(values.size() == count, error_kind::bad_file, "tensor '", name, "' of shape ",
              shown(dims), " needs ", count, " values and has ", values.size());
      tensor t = tensor::allocate(element, dims);
      using to_type = decltype(convert(values[0]));
      auto out = t.mutable_data<to_type>();
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = convert(values[i]);
      }
      return t;
    };
    switch (element) {
      case element_type::f32:
        return copy(floats, [](float v) { return v; });
      case element_type::f64:
        return copy(doubles, [](double v) { return v; });
      case element_type::s64:
        return copy(int64s, [](std::int64_t v) { return v; });
      case element_type::u64:
        return copy(uint64s, [](std::uint64_t v) { return v; });
      case element_type::u32:
        return copy(uint64s, [](std::uint64_t v) { return static_cast<std::uint32_t>(v); });
      case element_type::s32:
        return copy(int32s, [](std::int32_t v) { return v; });
      case element_type::u16:
      case element_type::s16:
      case element_type::f16:
      case element_type::bf16:
        return copy(int32s, [](std::int32_t v) { return static_cast<std::uint16_t>(v); });
      case element_type::u4:
      case element_type::s4: {
        require(int32s.size() == stored, error_kind::bad_file, "tensor '", name, "' of shape ",
                shown(dims), " needs ", stored, " bytes and has ", int32s.size());
        std::string packed;
        for (const std::int32_t v : int32s) {
          packed.push_back(static_cast<char>(v));
        }
        tensor t = tensor::allocate(element, dims);
        unpack_nibbles(packed.data(), t);
        return t;
      }
      case element_type::boolean:
        return copy(int32s, [](std::int32_t v) { return static_cast<std::uint8_t>(v != 0); });
      default:
        return copy(int32s, [](std::int32_t v) { return static_cast<std::uint8_t>(v); });
    }
  }

 private:
  /// Tensors of fewer bytes are read rather than mapped: a page of each would be touched anyway.
  static constexpr std::size_t least_mapped = 4096;

  /// Counts the bytes of a tensor. Throws bad_file if all tensors have more than the limit.
  void count_constant(const std::string& name, std::size_t bytes) {
    require(bytes <= limits_.max_constant_bytes - constant_bytes_, error_kind::bad_file, "tensor '",
            name, "' has ", bytes, " bytes, the tensors before it have ", constant_bytes_,
            ", the limit of all is ", limits_.max_constant_bytes);
    constant_bytes_ += bytes;
  }

  /// The tensor of `count` strings, which must be there: the format has no other place for them.
  tensor string_tensor(const std::string& name, shape dims, std::size_t count,
                       std::vector<std::string> strings) {
    require(strings.size() == count, error_kind::bad_file, "tensor '", name, "' of shape ",
            shown(dims), " needs ", count, " strings and has ", strings.size());
    std::size_t bytes = count * sizeof(std::string);
    for (const std::string& s : strings) {
      bytes += s.size();
    }
    require(bytes <= limits_.max_tensor_bytes, error_kind::bad_file, "tensor '", name,
            "' of strings has ", bytes, " bytes, the limit is ", limits_.max_tensor_bytes);
    count_constant(name, bytes);
    return tensor::of_strings(std::move(dims), std::move(strings));
  }

  /// The tensor of this form whose `stored` bytes are in another file: a view of the file, or a
  /// copy of its bytes.
  tensor read_external(const std::string& name, const std::map<std::string, std::string>& location,
                       tensor form, std::size_t stored) {
    require(limits_.allow_external_data, error_kind::bad_file, "tensor '", name,
            "' has its data in another file, which may not be read for this model");
    external_bytes from = external_.open(name, location, stored);
    const bool nibbles = form.type() == element_type::u4 || form.type() == element_type::s4;
    const bool is_as_stored = !nibbles && form.type() != element_type::boolean;
    if (limits_.map_external_data && is_as_stored && stored >= least_mapped) {
      if (auto view = external_.map(from, element_size(form.type()))) {
        form.set_mapped_storage(std::move(view));
        return form;
      }
    }
    tensor t = tensor::allocate(form.type(), form.dims());
    if (nibbles) {
      std::string packed(stored, '\0');
      from.read(packed.data());
      unpack_nibbles(packed.data(), t);
    } else {
      from.read(reinterpret_cast<char*>(t.mutable_raw()));
    }
    normalize_booleans(t);
    return t;
  }

  /// Makes every true element of a boolean tensor 1. Other tensors stay as they are.
  static void normalize_booleans(tensor& t) {
    if (t.type() == element_type::boolean) {
      for (std::uint8_t& v : t.mutable_data<std::uint8_t>()) {
        v = v != 0 ? 1 : 0;
      }
    }
  }

  /// Fills a tensor of 4-bit integers from two elements per byte, the first in the low half.
  static void unpack_nibbles(const char* packed, tensor& t) {
    auto out = t.mutable_data<std::uint8_t>();
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto byte = static_cast<std::uint8_t>(packed[i / 2]);
      std::uint8_t value = i % 2 == 0 ? byte & 0xFU : static_cast<std::uint8_t>(byte >> 4U);
      if (t.type() == element_type::s4 && value > 7) {
        value = static_cast<std::uint8_t>(value - 16);
      }
      out[i] = value;
    }
  }

  static std::pair<std::string, std::string> read_entry(protozero::data_view bytes) {
    std::pair<std::string, std::string> entry;
    checked_message<onnx::entry_field> m(bytes);
    while (m.next()) {
      switch (m.tag()) {
        case onnx::entry_field::key:
          entry.first = m.get_string();
          break;
        case onnx::entry_field::value:
          entry.second = m.get_string();
          break;
        default:
          m.skip();
      }
    }
    return entry;
  }

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
          require(++nodes_ <= limits_.max_nodes, error_kind::bad_file, "the model has more than ",
                  limits_.max_nodes, " nodes, the limit");
          m.nodes.push_back(read_node(message.get_view(), depth));
          break;
        case graph_field::name:
          m.graph_name = message.get_string();
          break;
        case graph_field::initializer: {
          std::string name;
          std::string unread_of_tensor;
          tensor t = read_tensor(message.get_view(), name, unread_of_tensor);
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
          a.t = read_tensor(m.get_view(), ignored, ignored);
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

  static value_info read_value(protozero::data_view bytes) {
    value_info v;
    value_notes notes;
    checked_message<onnx::value_field> m(bytes);
    while (m.next()) {
      switch (m.tag()) {
        case onnx::value_field::name:
          v.name = m.get_string();
          break;
        case onnx::value_field::type: {
          const protozero::data_view whole = m.get_view();
          const bool is_tensor = read_type(whole, v, notes);
          v.other_type = is_tensor ? std::string() : std::string(whole.data(), whole.size());
          break;
        }
        default:
          m.keep(notes.fields);
      }
    }
    if (!notes.fields.empty() || !notes.type_fields.empty() || !notes.dim_fields.empty()) {
      v.notes = std::make_shared<const value_notes>(std::move(notes));
    }
    return v;
  }

  /// Reads a TypeProto. Returns whether it is that of a tensor.
  static bool read_type(protozero::data_view bytes, value_info& v, value_notes& notes) {
    bool is_tensor = false;
    checked_message<onnx::type_field> m(bytes);
    while (m.next()) {
      switch (m.tag()) {
        case onnx::type_field::tensor_type:
          is_tensor = true;
          read_tensor_type(m.get_view(), v, notes);
          break;
        case onnx::type_field::denotation:
          m.keep(notes.type_fields);
          break;
        default:
          m.skip();  // a type of another kind, which is kept as a whole
      }
    }
    return is_tensor;
  }

  static void read_tensor_type(protozero::data_view bytes, value_info& v, value_notes& notes) {
    checked_message<onnx::tensor_type_field> m(bytes);
    while (m.next()) {
      switch (m.tag()) {
        case onnx::tensor_type_field::elem_type:
          v.type = static_cast<element_type>(m.get_int32());
          break;
        case onnx::tensor_type_field::shape: {
          v.has_shape = true;
          checked_message<onnx::shape_field> dims(m.get_view());
          while (dims.next()) {
            if (dims.tag() != onnx::shape_field::dim) {
              dims.skip();
              continue;
            }
            std::int64_t value = -1;
            std::string param;
            std::string unread;
            checked_message<onnx::dim_field> dim(dims.get_view());
            while (dim.next()) {
              switch (dim.tag()) {
                case onnx::dim_field::value:
                  value = dim.get_int64();
                  break;
                case onnx::dim_field::param:
                  param = dim.get_string();
                  break;
                default:
                  dim.keep(unread);
              }
            }
            if (!unread.empty()) {
              notes.dim_fields.resize(v.dims.size() + 1);
              notes.dim_fields.back() = std::move(unread);
            }
            v.dims.push_back(value < 0 ? -1 : value);
            v.params.push_back(std::move(param));
          }
          require(v.dims.size() <= max_tensor_rank, error_kind::bad_file, "value '", v.name,
                  "' has rank ", v.dims.size(), ", the limit is ", max_tensor_rank);
          break;
        }
        default:
          m.skip();
      }
    }
  }

  external_data external_;
  read_limits limits_;
  std::size_t constant_bytes_ = 0;  // of all tensors so far
  std::size_t nodes_ = 0;           // of all graphs so far
};

}  // namespace detail

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_READER_HPP
