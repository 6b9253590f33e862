// SPDX-License-Identifier: BSD-3-Clause
// Reads the fields of one message of onnx.proto, in whatever encoding a file has them.
#ifndef DETENT_GRAPH_MODEL_ONNX_MESSAGE_HPP
#define DETENT_GRAPH_MODEL_ONNX_MESSAGE_HPP

#include <cstddef>
#include <cstdint>
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
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/onnx_fields.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

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

/// Reads a StringStringEntryProto: a key and its value.
[[nodiscard]] inline std::pair<std::string, std::string> read_entry(protozero::data_view bytes) {
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

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_MESSAGE_HPP
