// SPDX-License-Identifier: BSD-3-Clause
// Reads the names, types and shapes that ONNX files declare for values.
#ifndef DETENT_GRAPH_MODEL_ONNX_VALUE_READER_HPP
#define DETENT_GRAPH_MODEL_ONNX_VALUE_READER_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <protozero/data_view.hpp>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/onnx_fields.hpp>
#include <detent/graph/model/onnx_message.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// Reads a Dimension and appends it to the shape of `v`.
inline void read_dimension(protozero::data_view bytes, value_info& v, value_notes& notes) {
  std::int64_t value = -1;
  std::string param;
  std::string unread;
  checked_message<onnx::dim_field> m(bytes);
  while (m.next()) {
    switch (m.tag()) {
      case onnx::dim_field::value:
        value = m.get_int64();
        break;
      case onnx::dim_field::param:
        param = m.get_string();
        break;
      default:
        m.keep(unread);
    }
  }
  if (!unread.empty()) {
    notes.dim_fields.resize(v.dims.size() + 1);
    notes.dim_fields.back() = std::move(unread);
  }
  v.dims.push_back(value < 0 ? -1 : value);
  v.params.push_back(std::move(param));
}

/// Reads the element type and shape of a tensor.
inline void read_tensor_type(protozero::data_view bytes, value_info& v, value_notes& notes) {
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
          if (dims.tag() == onnx::shape_field::dim) {
            read_dimension(dims.get_view(), v, notes);
          } else {
            dims.skip();
          }
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

/// Reads a TypeProto. Returns whether it is that of a tensor.
inline bool read_type(protozero::data_view bytes, value_info& v, value_notes& notes) {
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

/// Reads a ValueInfoProto: the name and type of a value.
[[nodiscard]] inline value_info read_value(protozero::data_view bytes) {
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

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_VALUE_READER_HPP
