// SPDX-License-Identifier: BSD-3-Clause
// Reads tensors of ONNX files: their elements are in the message or in another file.
#ifndef DETENT_GRAPH_MODEL_ONNX_TENSOR_READER_HPP
#define DETENT_GRAPH_MODEL_ONNX_TENSOR_READER_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <protozero/data_view.hpp>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/external_data.hpp>
#include <detent/graph/model/onnx_fields.hpp>
#include <detent/graph/model/onnx_message.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// Reads the tensors of one model, with their external data, and counts their bytes.
class onnx_tensor_reader {
 public:
  /// `folder`: the folder below which external data is looked for.
  onnx_tensor_reader(std::filesystem::path folder, const read_limits& limits)
      : external_(std::move(folder)), limits_(limits) {}

  /// Reads a TensorProto and sets `name` if it has one. Fields that are not interpreted are
  /// appended to `unread`.
  tensor read(protozero::data_view bytes, std::string& name, std::string& unread) {
    fields f = read_fields(bytes, name, unread);
    const auto element = static_cast<element_type>(f.type);
    require(f.dims.size() <= max_tensor_rank, error_kind::bad_file, "tensor '", name, "' has rank ",
            f.dims.size(), ", the limit is ", max_tensor_rank);
    std::size_t count = 0;
    try {
      count = element_count(f.dims);
    } catch (const error& e) {
      raise(error_kind::bad_file, "detent: tensor '" + name + "': " + message_of(e));
    }
    if (element == element_type::string) {
      return string_tensor(name, f.dims, count, std::move(f.strings));
    }
    const std::size_t size = element_size(element);
    require(size > 0, error_kind::unsupported, "tensor '", name, "' has elements of ",
            graph::name(element));
    // Checked before any memory is taken. count * size cannot overflow: element_count() is bounded.
    require(count * size <= limits_.max_tensor_bytes, error_kind::bad_file, "tensor '", name,
            "' of shape ", shown(f.dims), " has ", count * size, " bytes, the limit is ",
            limits_.max_tensor_bytes);
    count_constant(name, count * size);
    const std::size_t stored = is_nibbles(element) ? (count + 1) / 2 : count * size;
    if (f.external) {
      return read_external(name, f.location, tensor(element, f.dims), stored);
    }
    return f.has_raw ? raw_tensor(name, f, element, stored)
                     : value_tensor(name, f, element, count, stored);
  }

  /// The external data of the tensors so far.
  [[nodiscard]] const external_data& external() const noexcept { return external_; }

 private:
  /// Tensors of fewer bytes are read rather than mapped: a page of each would be touched anyway.
  static constexpr std::size_t least_mapped = 4096;

  /// The fields of a TensorProto. Elements are in one of them, or in another file.
  struct fields {
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
  };

  [[nodiscard]] static bool is_nibbles(element_type t) noexcept {
    return t == element_type::u4 || t == element_type::s4;
  }

  fields read_fields(protozero::data_view bytes, std::string& name, std::string& unread) const {
    using onnx::tensor_field;
    fields f;
    using message_type = checked_message<tensor_field>;
    message_type m(bytes);
    while (m.next()) {
      switch (m.tag()) {
        case tensor_field::dims:
          append_repeated(m, f.dims, &message_type::get_packed_int64, &message_type::get_int64);
          break;
        case tensor_field::data_type:
          f.type = m.get_int32();
          break;
        case tensor_field::float_data:
          append_repeated(m, f.floats, &message_type::get_packed_float, &message_type::get_float);
          break;
        case tensor_field::int32_data:
          append_repeated(m, f.int32s, &message_type::get_packed_int32, &message_type::get_int32);
          break;
        case tensor_field::int64_data:
          append_repeated(m, f.int64s, &message_type::get_packed_int64, &message_type::get_int64);
          break;
        case tensor_field::double_data:
          append_repeated(m, f.doubles, &message_type::get_packed_double,
                          &message_type::get_double);
          break;
        case tensor_field::uint64_data:
          append_repeated(m, f.uint64s, &message_type::get_packed_uint64,
                          &message_type::get_uint64);
          break;
        case tensor_field::name:
          name = m.get_string();
          break;
        case tensor_field::raw_data:
          f.raw = m.get_view();
          f.has_raw = true;
          break;
        case tensor_field::external_data: {
          auto [key, value] = read_entry(m.get_view());
          f.location[std::move(key)] = std::move(value);
          break;
        }
        case tensor_field::data_location:
          f.external = m.get_int32() == 1;
          break;
        case tensor_field::string_data:
          // A string of no characters takes two bytes in the file and sizeof(std::string) here.
          require(f.strings.size() < limits_.max_tensor_bytes / sizeof(std::string),
                  error_kind::bad_file, "tensor '", name, "' has more than ", f.strings.size(),
                  " strings, the limit");
          f.strings.push_back(m.get_string());
          break;
        case tensor_field::segment:
          m.skip();
          break;
        default:
          m.keep(unread);
      }
    }
    return f;
  }

  /// The tensor whose `stored` bytes are in the field of raw data.
  static tensor raw_tensor(const std::string& name, const fields& f, element_type element,
                           std::size_t stored) {
    require(f.raw.size() == stored, error_kind::bad_file, "tensor '", name, "' of shape ",
            shown(f.dims), " and type ", graph::name(element), " needs ", stored, " bytes and has ",
            f.raw.size());
    tensor t = tensor::allocate(element, f.dims);
    if (is_nibbles(element)) {
      unpack_nibbles(f.raw.data(), t);
    } else if (stored > 0) {
      std::memcpy(t.mutable_raw(), f.raw.data(), stored);
    }
    normalize_booleans(t);
    return t;
  }

  /// The tensor whose `count` elements are in the field for values of its type.
  static tensor value_tensor(const std::string& name, const fields& f, element_type element,
                             std::size_t count, std::size_t stored) {
    const auto copy = [&](const auto& values, auto convert) {
      require(values.size() == count, error_kind::bad_file, "tensor '", name, "' of shape ",
              shown(f.dims), " needs ", count, " values and has ", values.size());
      tensor t = tensor::allocate(element, f.dims);
      using to_type = decltype(convert(values[0]));
      auto out = t.mutable_data<to_type>();
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = convert(values[i]);
      }
      return t;
    };
    switch (element) {
      case element_type::f32:
        return copy(f.floats, [](float v) { return v; });
      case element_type::f64:
        return copy(f.doubles, [](double v) { return v; });
      case element_type::s64:
        return copy(f.int64s, [](std::int64_t v) { return v; });
      case element_type::u64:
        return copy(f.uint64s, [](std::uint64_t v) { return v; });
      case element_type::u32:
        return copy(f.uint64s, [](std::uint64_t v) { return static_cast<std::uint32_t>(v); });
      case element_type::s32:
        return copy(f.int32s, [](std::int32_t v) { return v; });
      case element_type::u16:
      case element_type::s16:
      case element_type::f16:
      case element_type::bf16:
        return copy(f.int32s, [](std::int32_t v) { return static_cast<std::uint16_t>(v); });
      case element_type::u4:
      case element_type::s4: {
        require(f.int32s.size() == stored, error_kind::bad_file, "tensor '", name, "' of shape ",
                shown(f.dims), " needs ", stored, " bytes and has ", f.int32s.size());
        std::string packed;
        for (const std::int32_t v : f.int32s) {
          packed.push_back(static_cast<char>(v));
        }
        tensor t = tensor::allocate(element, f.dims);
        unpack_nibbles(packed.data(), t);
        return t;
      }
      case element_type::boolean:
        return copy(f.int32s, [](std::int32_t v) { return static_cast<std::uint8_t>(v != 0); });
      default:
        return copy(f.int32s, [](std::int32_t v) { return static_cast<std::uint8_t>(v); });
    }
  }

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
    const bool nibbles = is_nibbles(form.type());
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

  external_data external_;
  read_limits limits_;
  std::size_t constant_bytes_ = 0;  // of all tensors so far
};

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_TENSOR_READER_HPP
