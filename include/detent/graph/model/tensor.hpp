// SPDX-License-Identifier: BSD-3-Clause
// Typed tensors of the graph floor, with ONNX's element types.
#ifndef DETENT_GRAPH_MODEL_TENSOR_HPP
#define DETENT_GRAPH_MODEL_TENSOR_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

namespace detail {
using detent::require;
}  // namespace detail

/// The numbers are ONNX's TensorProto.DataType.
enum class element_type : std::int32_t {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  s8 = 3,
  u16 = 4,
  s16 = 5,
  s32 = 6,
  s64 = 7,
  string = 8,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  bf16 = 16,
  u4 = 21,  // in memory: one byte per element
  s4 = 22,
};

[[nodiscard]] inline std::string name(element_type t) {
  switch (t) {
    case element_type::undefined:
      return "undefined";
    case element_type::f32:
      return "float32";
    case element_type::u8:
      return "uint8";
    case element_type::s8:
      return "int8";
    case element_type::u16:
      return "uint16";
    case element_type::s16:
      return "int16";
    case element_type::s32:
      return "int32";
    case element_type::s64:
      return "int64";
    case element_type::string:
      return "string";
    case element_type::boolean:
      return "bool";
    case element_type::f16:
      return "float16";
    case element_type::f64:
      return "float64";
    case element_type::u32:
      return "uint32";
    case element_type::u64:
      return "uint64";
    case element_type::bf16:
      return "bfloat16";
    case element_type::u4:
      return "uint4";
    case element_type::s4:
      return "int4";
  }
  return "type " + std::to_string(static_cast<std::int32_t>(t));
}

/// The same for messages, made only if one is printed.
struct shown_type {
  element_type type;
  friend std::ostream& operator<<(std::ostream& out, const shown_type& s) {
    return out << name(s.type);
  }
};
[[nodiscard]] inline shown_type shown(element_type t) noexcept { return {t}; }

/// Bytes of one element in memory; 0 for types that tensors here cannot hold.
[[nodiscard]] inline std::size_t element_size(element_type t) noexcept {
  switch (t) {
    case element_type::u8:
    case element_type::s8:
    case element_type::boolean:
    case element_type::u4:
    case element_type::s4:
      return 1;
    case element_type::u16:
    case element_type::s16:
    case element_type::f16:
    case element_type::bf16:
      return 2;
    case element_type::f32:
    case element_type::s32:
    case element_type::u32:
      return 4;
    case element_type::f64:
    case element_type::s64:
    case element_type::u64:
      return 8;
    case element_type::undefined:
    case element_type::string:
      return 0;
  }
  return 0;
}

using shape = std::vector<std::int64_t>;

[[nodiscard]] inline std::string to_string(const shape& dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    text += i > 0 ? "," : "";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

/// The same for messages, made only if one is printed. Not to be kept.
struct shown_shape {
  const shape& dims;
  friend std::ostream& operator<<(std::ostream& out, const shown_shape& s) {
    return out << to_string(s.dims);
  }
};
[[nodiscard]] inline shown_shape shown(const shape& dims) noexcept { return {dims}; }

/// The product of the dimensions. Throws bad_file on a negative one, one beyond 2^32, or beyond
/// 2^40 elements.
[[nodiscard]] inline std::size_t element_count(const shape& dims) {
  constexpr std::int64_t limit = std::int64_t{1} << 40;
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t d : dims) {
    require(d >= 0 && d <= std::int64_t{1} << 32, error_kind::bad_file, "shape ", shown(dims),
            " has a dimension out of range");
    empty = empty || d == 0;
  }
  for (const std::int64_t d : dims) {
    if (empty) {
      return 0;
    }
    require(d <= limit / count, error_kind::bad_file, "shape ", shown(dims),
            " has too many elements");
    count *= d;
  }
  return static_cast<std::size_t>(count);
}

/// A shape, an element type and (unless only the shape is known) the elements. Copies share both;
/// elements never change once a tensor has been handed on.
class tensor {
 public:
  tensor() = default;
  /// Shape and type only.
  tensor(element_type type, shape dims) : type_(type), count_(element_count(dims)) {
    if (!dims.empty()) {
      dims_ = std::make_shared<const shape>(std::move(dims));
    }
  }
  /// Owns uninitialised elements; fill them through mutable_data() before handing the tensor on.
  [[nodiscard]] static tensor allocate(element_type type, shape dims) {
    tensor t(type, std::move(dims));
    t.set_storage(std::shared_ptr<std::byte>(new std::byte[t.bytes() + 1],
                                             [](const std::byte* p) { delete[] p; }));
    return t;
  }
  /// A copy of `values`.
  template <class T>
  [[nodiscard]] static tensor of(element_type type, shape dims, std::span<const T> values) {
    tensor t = allocate(type, std::move(dims));
    require(values.size() == t.count(), error_kind::shape_mismatch, "tensor: ", values.size(),
            " values for shape ", shown(t.dims()));
    if (!values.empty()) {
      std::memcpy(t.mutable_data<T>().data(), values.data(), values.size_bytes());
    }
    return t;
  }

  [[nodiscard]] element_type type() const noexcept { return type_; }
  [[nodiscard]] const shape& dims() const noexcept { return dims_ ? *dims_ : no_dims(); }
  [[nodiscard]] std::int64_t dim(std::size_t i) const { return dims().at(i); }
  [[nodiscard]] std::size_t rank() const noexcept { return dims().size(); }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return count_ * element_size(type_); }
  [[nodiscard]] bool has_data() const noexcept { return storage_ != nullptr; }
  [[nodiscard]] bool defined() const noexcept { return type_ != element_type::undefined; }

  /// True if the elements stand in the order batch, spatial dimensions, channel, although dims() is
  /// [batch, channel, spatial ...]. Only the executor and its operators meet such tensors.
  [[nodiscard]] bool channels_last() const noexcept { return channels_last_; }
  void set_channels_last(bool on) noexcept { channels_last_ = on; }

  /// Type, shape and order of the elements without the elements.
  [[nodiscard]] tensor form() const {
    tensor t = *this;
    t.storage_ = nullptr;
    return t;
  }
  [[nodiscard]] bool has_form_of(const tensor& other) const noexcept {
    return type_ == other.type_ && channels_last_ == other.channels_last_ &&
           (dims_ == other.dims_ || dims() == other.dims());
  }

  template <class T>
  [[nodiscard]] std::span<const T> data() const {
    check_access(sizeof(T));
    return {reinterpret_cast<const T*>(storage_.get()), count_};
  }
  template <class T>
  [[nodiscard]] std::span<T> mutable_data() {
    check_access(sizeof(T));
    return {reinterpret_cast<T*>(storage_.get()), count_};
  }
  [[nodiscard]] const std::byte* raw() const noexcept { return storage_.get(); }
  [[nodiscard]] std::byte* mutable_raw() noexcept { return storage_.get(); }

  /// Takes storage of at least bytes() bytes, aligned for any element type.
  void set_storage(std::shared_ptr<std::byte> storage) noexcept { storage_ = std::move(storage); }

  /// Takes the elements of a tensor of as many, as large ones, in its own shape and type.
  void share_elements(const tensor& source) {
    require(source.count_ == count_, error_kind::shape_mismatch, "cannot reshape ",
            shown(source.dims()), " to ", shown(dims()));
    storage_ = source.storage_;
  }

  /// The same elements under another shape of the same size.
  [[nodiscard]] tensor reshaped(shape dims) const {
    tensor t(type_, std::move(dims));
    t.share_elements(*this);
    return t;
  }
  /// The same bytes under another element type of the same size.
  [[nodiscard]] tensor retyped(element_type type) const {
    tensor t = *this;
    t.type_ = type;
    return t;
  }

 private:
  void check_access(std::size_t size) const {
    require(size == element_size(type_), error_kind::invalid_argument, "tensor of ", shown(type_),
            " accessed as elements of ", size, " bytes");
    require(storage_ != nullptr, error_kind::invalid_argument, "tensor has no data");
  }

  static const shape& no_dims() noexcept {
    static const shape none;
    return none;
  }

  element_type type_ = element_type::undefined;
  std::shared_ptr<const shape> dims_;  // null for rank 0
  std::size_t count_ = 0;
  std::shared_ptr<std::byte> storage_;
  bool channels_last_ = false;
};

/// The elements in the order of dims(). The tensor must stay alive, and not stand in channels-last
/// order. Throws invalid_argument for ranks that views do not have.
template <class T>
[[nodiscard]] tensor_view<const T> tensor_view_of(const tensor& t) {
  const std::vector<std::size_t> dims(t.dims().begin(), t.dims().end());
  return {t.data<T>().data(), dims};
}
template <class T>
[[nodiscard]] tensor_view<T> mutable_view_of(tensor& t) {
  const std::vector<std::size_t> dims(t.dims().begin(), t.dims().end());
  return {t.mutable_data<T>().data(), dims};
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_TENSOR_HPP
