// SPDX-License-Identifier: BSD-3-Clause
// Writes tensors into pickles as NumPy's arrays.
#ifndef DETENT_GRAPH_PPQ_PICKLE_ARRAY_HPP
#define DETENT_GRAPH_PPQ_PICKLE_ARRAY_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/pickle_writer.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// NumPy's short name of an element type, such as "f4"; empty if NumPy has no such type.
[[nodiscard]] constexpr std::string_view numpy_type(element_type t) noexcept {
  switch (t) {
    case element_type::boolean:
      return "b1";
    case element_type::u8:
      return "u1";
    case element_type::s8:
      return "i1";
    case element_type::u16:
      return "u2";
    case element_type::s16:
      return "i2";
    case element_type::f16:
      return "f2";
    case element_type::u32:
      return "u4";
    case element_type::s32:
      return "i4";
    case element_type::f32:
      return "f4";
    case element_type::u64:
      return "u8";
    case element_type::s64:
      return "i8";
    case element_type::f64:
      return "f8";
    default:
      return {};
  }
}

/// Writes an element type as a numpy.dtype. Throws unsupported for a type that NumPy does not have.
inline void write_dtype(pickle_writer& w, element_type t) {
  const std::string_view type = numpy_type(t);
  require(!type.empty(), error_kind::unsupported, "NumPy has no element type ", shown(t));
  w.global("numpy", "dtype");
  w.open_tuple();
  w.text(type);
  w.boolean(false);  // align
  w.boolean(true);   // copy
  w.close_tuple();
  w.call();
  const bool is_little = std::endian::native == std::endian::little;
  w.open_tuple();
  w.integer(3);  // the version of this state
  w.text(type.back() == '1' ? "|" : is_little ? "<" : ">");
  w.none();  // subdtype, names and fields: those of structures
  w.none();
  w.none();
  w.integer(-1);  // size and alignment: those of the type
  w.integer(-1);
  w.integer(0);  // flags
  w.close_tuple();
  w.set_state();
}

/// Writes a tensor as a numpy.ndarray, as NumPy before 2.0 pickles it; later versions read that,
/// too. Throws unsupported for an element type that NumPy does not have, and invalid_argument for a
/// tensor without elements at hand.
inline void write_array(pickle_writer& w, const tensor& t) {
  require(t.has_data() && !t.channels_last(), error_kind::invalid_argument,
          "pickle: a tensor without data, or not in row-major order");
  w.global("numpy.core.multiarray", "_reconstruct");
  w.open_tuple();
  w.global("numpy", "ndarray");
  w.open_tuple();
  w.integer(0);
  w.close_tuple();
  w.bytes(std::string_view("b"));
  w.close_tuple();
  w.call();
  w.open_tuple();
  w.integer(1);  // the version of this state
  w.open_tuple();
  for (const std::int64_t d : t.dims()) {
    w.integer(d);
  }
  w.close_tuple();
  write_dtype(w, t.type());
  w.boolean(false);  // Fortran's order
  if (t.type() == element_type::boolean) {
    std::string truths(t.count(), '\0');  // in NumPy, a true byte is 1
    const auto values = t.data<std::uint8_t>();
    std::transform(values.begin(), values.end(), truths.begin(),
                   [](std::uint8_t v) { return v == 0 ? '\0' : '\1'; });
    w.bytes(std::string_view(truths));
  } else {
    w.bytes(std::span(t.raw(), t.bytes()));
  }
  w.close_tuple();
  w.set_state();
}

}  // namespace detail
}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_PICKLE_ARRAY_HPP
