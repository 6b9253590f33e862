// SPDX-License-Identifier: BSD-3-Clause
// Typed tensors of the graph part: element types with ONNX's numbers, shapes, and the tensor
// class, whose copies share their elements.
#ifndef DETENT_GRAPH_MODEL_TENSOR_HPP
#define DETENT_GRAPH_MODEL_TENSOR_HPP

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// The graph part: reads and writes ONNX models, runs them, and quantizes them. It builds on the
/// numerics of namespace detent, which knows nothing of it.
namespace graph {

namespace detail {
using detent::require;
}  // namespace detail

/// The largest rank of tensors that are read from files or computed by an executor. A file of a few
/// hundred bytes could ask for any rank otherwise; operators take time and stack for each axis.
inline constexpr std::size_t max_tensor_rank = 64;

/// The type of a tensor's elements. The numbers are those of ONNX's TensorProto.DataType.
enum class element_type : std::int32_t {
  undefined = 0,  ///< No type: the tensor is absent or nothing is known about it.
  f32 = 1,        ///< IEEE binary32, float.
  u8 = 2,         ///< Unsigned 8-bit integer.
  s8 = 3,         ///< Signed 8-bit integer.
  u16 = 4,        ///< Unsigned 16-bit integer.
  s16 = 5,        ///< Signed 16-bit integer.
  s32 = 6,        ///< Signed 32-bit integer.
  s64 = 7,        ///< Signed 64-bit integer.
  string = 8,     ///< String. Tensors hold them apart from other elements: tensor::strings().
  boolean = 9,    ///< Boolean, one byte per element: 0 is false, every other value is true.
  f16 = 10,       ///< IEEE binary16, held as its 16 bits.
  f64 = 11,       ///< IEEE binary64, double.
  u32 = 12,       ///< Unsigned 32-bit integer.
  u64 = 13,       ///< Unsigned 64-bit integer.
  bf16 = 16,      ///< bfloat16, the upper half of a binary32, held as its 16 bits.
  f8e4m3fn = 17,  ///< float8_e4m3fn, held as its 8 bits: finite up to 448, no infinities.
  f8e5m2 = 19,    ///< float8_e5m2, held as its 8 bits: finite up to 57344, with infinities.
  u4 = 21,        ///< Unsigned 4-bit integer, 0..15; in memory one std::uint8_t per element.
  s4 = 22,        ///< Signed 4-bit integer, -8..7; in memory one std::int8_t per element.
};

/// The name of an element type as ONNX writes it, such as "float32" or "int8"; "type N" for a
/// number N that is not an enumerator.
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
    case element_type::f8e4m3fn:
      return "float8e4m3fn";
    case element_type::f8e5m2:
      return "float8e5m2";
    case element_type::u4:
      return "uint4";
    case element_type::s4:
      return "int4";
  }
  return "type " + std::to_string(static_cast<std::int32_t>(t));
}

/// Prints the name of an element type. Error checks pass this instead of name(), so that the text
/// is made only if the check fails.
struct shown_type {
  element_type type;  ///< The type whose name is printed.
  /// Adds name(type) to a message.
  void append_to(std::string& message) const { message += name(type); }
};
/// Wraps an element type for messages; see shown_type.
[[nodiscard]] inline shown_type shown(element_type t) noexcept { return {t}; }

/// Bytes of one element in memory, 1 for the 4-bit types; 0 for types whose elements a tensor
/// cannot hold (undefined, string, and unknown numbers).
[[nodiscard]] inline std::size_t element_size(element_type t) noexcept {
  switch (t) {
    case element_type::u8:
    case element_type::s8:
    case element_type::boolean:
    case element_type::f8e4m3fn:
    case element_type::f8e5m2:
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

/// Whether elements of this type are floats of 8 bits: f8e4m3fn or f8e5m2.
[[nodiscard]] inline bool is_float8(element_type t) noexcept {
  return t == element_type::f8e4m3fn || t == element_type::f8e5m2;
}

/// The extents of a tensor, outermost dimension first; empty for a scalar. In declared shapes
/// (value_info) -1 stands for an open dimension.
using shape = std::vector<std::int64_t>;

/// A shape as text, for example "[1,3,224,224]".
[[nodiscard]] inline std::string to_string(const shape& dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    text += i > 0 ? "," : "";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

/// Prints a shape. Error checks pass this instead of to_string(), so that the text is made only if
/// the check fails. It refers to the shape: do not keep it.
struct shown_shape {
  const shape& dims;  ///< The shape that is printed.
  /// Adds to_string(dims) to a message.
  void append_to(std::string& message) const { message += to_string(dims); }
};
/// Wraps a shape for messages; see shown_shape. The shape must outlive the result.
[[nodiscard]] inline shown_shape shown(const shape& dims) noexcept { return {dims}; }

/// The number of elements of a shape: the product of its dimensions, 1 for a scalar, 0 if any
/// dimension is 0. Throws bad_file if a dimension is negative or beyond 2^32, or if there are more
/// than 2^40 elements.
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

namespace detail {

/// Whether a tensor of that shape has at least one and at most `most` elements.
[[nodiscard]] inline bool is_within(const shape& dims, std::size_t most) noexcept {
  for (const std::int64_t d : dims) {
    if (d <= 0 || static_cast<std::uint64_t>(d) > most) {
      return false;
    }
    most /= static_cast<std::size_t>(d);
  }
  return most > 0;
}

}  // namespace detail

/// A shape, an element type and, unless only the shape is known, the elements. Copies are cheap:
/// they share the shape and the elements. Elements must not change once a tensor has been handed
/// on; then any number of threads may read a tensor and its copies.
class tensor {
 public:
  /// An absent tensor: type undefined, rank 0, no elements; defined() is false.
  tensor() = default;
  /// A tensor of this type and shape without elements. Throws as element_count().
  tensor(element_type type, shape dims) : type_(type), count_(element_count(dims)) {
    if (!dims.empty()) {
      dims_ = std::make_shared<const shape>(std::move(dims));
    }
  }
  /// A tensor with uninitialised elements of its own; fill them through mutable_data() before
  /// handing the tensor on. Throws as element_count().
  [[nodiscard]] static tensor allocate(element_type type, shape dims) {
    tensor t(type, std::move(dims));
    t.set_storage(std::shared_ptr<std::byte>(new std::byte[t.bytes() + 1],
                                             [](const std::byte* p) { delete[] p; }));
    return t;
  }
  /// A tensor with a copy of `values`, one for each element in row-major order. Throws
  /// shape_mismatch if their number differs from element_count(dims), invalid_argument if T has
  /// another size than the elements, and as element_count().
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
  /// A tensor of strings, one for each element in row-major order. No operator reads them:
  /// has_data() is false. Throws shape_mismatch if their number differs from element_count(dims),
  /// and as element_count().
  [[nodiscard]] static tensor of_strings(shape dims, std::vector<std::string> values) {
    tensor t(element_type::string, std::move(dims));
    require(values.size() == t.count(), error_kind::shape_mismatch, "tensor: ", values.size(),
            " strings for shape ", shown(t.dims()));
    t.strings_ = std::make_shared<const std::vector<std::string>>(std::move(values));
    return t;
  }

  /// The type of the elements; undefined for an absent tensor.
  [[nodiscard]] element_type type() const noexcept { return type_; }
  /// The extents, outermost first; empty for a scalar.
  [[nodiscard]] const shape& dims() const noexcept { return dims_ ? *dims_ : no_dims(); }
  /// The extent of dimension i. Throws invalid_argument if i is not below rank().
  [[nodiscard]] std::int64_t dim(std::size_t i) const {
    require(i < rank(), error_kind::invalid_argument, "dimension ", i, " of a tensor of shape ",
            shown(dims()));
    return dims()[i];
  }
  /// The number of dimensions.
  [[nodiscard]] std::size_t rank() const noexcept { return dims().size(); }
  /// The number of elements; 0 for an absent tensor, 1 for a scalar.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// The number of bytes that the elements take in memory.
  [[nodiscard]] std::size_t bytes() const noexcept { return count_ * element_size(type_); }
  /// True if the elements are there, not only type and shape.
  [[nodiscard]] bool has_data() const noexcept { return storage_ != nullptr; }
  /// True if the tensor is one of strings that are there, not only type and shape.
  [[nodiscard]] bool has_strings() const noexcept { return strings_ != nullptr; }
  /// The strings of a tensor; empty without has_strings().
  [[nodiscard]] std::span<const std::string> strings() const noexcept {
    return has_strings() ? std::span<const std::string>(*strings_) : std::span<const std::string>();
  }
  /// True unless the tensor is absent or of unknown type.
  [[nodiscard]] bool defined() const noexcept { return type_ != element_type::undefined; }

  /// True if the elements are stored in the order batch, spatial dimensions, channel, although
  /// dims() is [batch, channel, spatial ...]. Such tensors exist only between the executor, its
  /// operators and its observers; to_plain() reorders them.
  [[nodiscard]] bool channels_last() const noexcept { return channels_last_; }
  /// Declares in which order the elements are stored (see channels_last()). Moves no elements.
  void set_channels_last(bool on) noexcept { channels_last_ = on; }

  /// The tensor without its elements: type, shape, and the order in which elements are stored.
  [[nodiscard]] tensor form() const {
    tensor t = *this;
    t.set_storage(nullptr);
    t.strings_ = nullptr;
    return t;
  }
  /// True if both tensors have the same type, the same shape and the same order of elements.
  [[nodiscard]] bool has_form_of(const tensor& other) const noexcept {
    return type_ == other.type_ && channels_last_ == other.channels_last_ &&
           (dims_ == other.dims_ || dims() == other.dims());
  }

  /// All elements as T, in the order in which they are stored. Only the size of T is checked:
  /// 16-bit floats may be read as std::uint16_t. Throws invalid_argument if sizeof(T) is not the
  /// size of an element or if there are no elements.
  template <class T>
  [[nodiscard]] std::span<const T> data() const {
    check_access(sizeof(T));
    return {reinterpret_cast<const T*>(storage_.get()), count_};
  }
  /// All elements as T for writing, with the rules and errors of data(). Copies of the tensor share
  /// the elements and see the change: write only before the tensor is handed on. A view of a file
  /// (is_mapped()) is copied to memory first, for this tensor alone.
  template <class T>
  [[nodiscard]] std::span<T> mutable_data() {
    check_access(sizeof(T));
    own_elements();
    return {reinterpret_cast<T*>(storage_.get()), count_};
  }
  /// The address of the bytes() bytes of the elements; null without elements.
  [[nodiscard]] const std::byte* raw() const noexcept { return storage_.get(); }
  /// The address of the elements for writing, under the rule of mutable_data(); null without
  /// elements.
  [[nodiscard]] std::byte* mutable_raw() {
    own_elements();
    return storage_.get();
  }

  /// Gives the tensor other storage for its elements. It must have at least bytes() bytes and be
  /// aligned for any element type; neither is checked. Null takes the elements away.
  void set_storage(std::shared_ptr<std::byte> storage) noexcept {
    storage_ = std::move(storage);
    is_mapped_ = false;
  }

  /// Makes the elements a view of a file that is mapped into memory (mapped_file.hpp). The view
  /// must have at least bytes() bytes and be aligned for the element type; neither is checked.
  void set_mapped_storage(std::shared_ptr<const std::byte> view) noexcept {
    storage_ = std::const_pointer_cast<std::byte>(std::move(view));
    is_mapped_ = storage_ != nullptr;
  }
  /// True if the elements are in memory that no other tensor refers to at this moment.
  [[nodiscard]] bool owns_elements_alone() const noexcept {
    if (is_mapped_ || storage_.use_count() != 1) {
      return false;
    }
    // What other owners read before they let go happens before what the caller writes.
    std::atomic_thread_fence(std::memory_order_acquire);
    return true;
  }
  /// True if the elements are a view of a file, which can only be read.
  [[nodiscard]] bool is_mapped() const noexcept { return is_mapped_; }

  /// Shares the elements of `source` under this tensor's own shape and type, without copying. The
  /// elements of both must have the same size, which is not checked. Throws shape_mismatch if their
  /// numbers of elements differ.
  void share_elements(const tensor& source) {
    require(source.count_ == count_, error_kind::shape_mismatch, "cannot reshape ",
            shown(source.dims()), " to ", shown(dims()));
    storage_ = source.storage_;
    is_mapped_ = source.is_mapped_;
    strings_ = source.strings_;
  }

  /// A tensor of another shape that shares the elements of this one, without copying. Throws
  /// shape_mismatch if the number of elements differs, and as element_count().
  [[nodiscard]] tensor reshaped(shape dims) const {
    tensor t(type_, std::move(dims));
    t.share_elements(*this);
    return t;
  }
  /// A tensor of another element type that shares the bytes of this one, without copying. Both
  /// types must have elements of the same size, which is not checked.
  [[nodiscard]] tensor retyped(element_type type) const {
    tensor t = *this;
    t.type_ = type;
    t.strings_ = type == type_ ? strings_ : nullptr;
    return t;
  }

 private:
  void check_access(std::size_t size) const {
    require(size == element_size(type_), error_kind::invalid_argument, "tensor of ", shown(type_),
            " accessed as elements of ", size, " bytes");
    require(storage_ != nullptr, error_kind::invalid_argument, "tensor has no data");
  }

  /// Copies elements that can only be read to memory of this tensor.
  void own_elements() {
    if (is_mapped_) {
      tensor own = allocate(type_, dims());
      std::memcpy(own.storage_.get(), storage_.get(), bytes());
      set_storage(std::move(own.storage_));
    }
  }

  static const shape& no_dims() noexcept {
    static const shape none;
    return none;
  }

  element_type type_ = element_type::undefined;
  std::shared_ptr<const shape> dims_;  // null for rank 0
  std::size_t count_ = 0;
  std::shared_ptr<std::byte> storage_;
  std::shared_ptr<const std::vector<std::string>> strings_;  // null unless the type is string
  bool channels_last_ = false;
  bool is_mapped_ = false;  // the elements must not be written
};

/// A read-only view of the elements under the tensor's shape. The tensor must outlive the view and
/// must not be in channels-last order, which is not checked. Throws invalid_argument if the rank is
/// over max_rank, and as tensor::data().
template <class T>
[[nodiscard]] tensor_view<const T> tensor_view_of(const tensor& t) {
  const std::vector<std::size_t> dims(t.dims().begin(), t.dims().end());
  return {t.data<T>().data(), dims};
}
/// A writable view of the elements under the tensor's shape, under the conditions and with the
/// errors of tensor_view_of(). Copies of the tensor share what is written.
template <class T>
[[nodiscard]] tensor_view<T> mutable_view_of(tensor& t) {
  const std::vector<std::size_t> dims(t.dims().begin(), t.dims().end());
  return {t.mutable_data<T>().data(), dims};
}

/// False if a float32 tensor holds NaN or infinity; true for tensors of other types.
[[nodiscard]] inline bool is_finite(const tensor& t) {
  if (t.type() != element_type::f32) {
    return true;
  }
  constexpr std::uint32_t exponent = 0x7F800000U;
  std::uint32_t found = 0;
  for (const float v : t.data<float>()) {  // a loop that compilers vectorize
    found |= (std::bit_cast<std::uint32_t>(v) & exponent) == exponent ? 1U : 0U;
  }
  return found == 0;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_TENSOR_HPP
