// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes the elements of tensors of any type as one of three wide types, which hold each
// element exactly: double for floating-point types, uint64 for uint64, int64 for all others.
#ifndef DETENT_GRAPH_OPS_ELEMENTS_HPP
#define DETENT_GRAPH_OPS_ELEMENTS_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/config.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// x rounded toward zero and saturated to the integer type T; NaN becomes 0.
template <class T>
[[nodiscard]] inline T saturate_to(double x) noexcept {
  using limits = std::numeric_limits<T>;
  constexpr double end = 2.0 * static_cast<double>(limits::max() / 2 + 1);
  if (x >= end) {
    return limits::max();
  }
  if (x <= static_cast<double>(limits::min())) {
    return limits::min();
  }
  return x == x ? static_cast<T>(x) : T{0};
}

/// One element as Wide; floats of 8 and 16 bits go through float, exactly.
template <class Wide, class Source>
[[nodiscard]] inline Wide widen(Source x) noexcept {
  if constexpr (float_format<Source>) {
    return static_cast<Wide>(to_float(x));
  } else {
    return static_cast<Wide>(x);
  }
}

/// Reads the elements [begin, begin + out.size()) of a tensor whose elements are of type Source.
template <class Wide, class Source>
void load_as(const tensor& t, std::size_t begin, std::span<Wide> out) {
  const Source* from = t.data<Source>().data() + begin;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = widen<Wide>(from[i]);
  }
}

/// Reads the elements [begin, begin + out.size()) of a tensor of any type as Wide. Booleans become
/// 0 and 1. Throws unsupported, naming the node, for strings.
template <class Wide>
void load(const operator_context& c, const tensor& t, std::size_t begin, std::span<Wide> out) {
  switch (t.type()) {
    case element_type::f32:
      load_as<Wide, float>(t, begin, out);
      return;
    case element_type::f64:
      load_as<Wide, double>(t, begin, out);
      return;
    case element_type::f16:
      load_as<Wide, float16>(t, begin, out);
      return;
    case element_type::bf16:
      load_as<Wide, bfloat16>(t, begin, out);
      return;
    case element_type::f8e4m3fn:
      load_as<Wide, float8_e4m3fn>(t, begin, out);
      return;
    case element_type::f8e5m2:
      load_as<Wide, float8_e5m2>(t, begin, out);
      return;
    case element_type::u4:
    case element_type::u8:
      load_as<Wide, std::uint8_t>(t, begin, out);
      return;
    case element_type::s4:
    case element_type::s8:
      load_as<Wide, std::int8_t>(t, begin, out);
      return;
    case element_type::u16:
      load_as<Wide, std::uint16_t>(t, begin, out);
      return;
    case element_type::s16:
      load_as<Wide, std::int16_t>(t, begin, out);
      return;
    case element_type::u32:
      load_as<Wide, std::uint32_t>(t, begin, out);
      return;
    case element_type::s32:
      load_as<Wide, std::int32_t>(t, begin, out);
      return;
    case element_type::u64:
      load_as<Wide, std::uint64_t>(t, begin, out);
      return;
    case element_type::s64:
      load_as<Wide, std::int64_t>(t, begin, out);
      return;
    case element_type::boolean:
      load_as<Wide, std::uint8_t>(t, begin, out);
      for (Wide& x : out) {
        x = static_cast<Wide>(x != Wide{0});
      }
      return;
    case element_type::string:
    case element_type::undefined:
      break;
  }
  c.require_supported(false, "no code for elements of type ", graph::name(t.type()));
}

[[nodiscard]] inline bool is_floating(element_type type) noexcept {
  return type == element_type::f32 || type == element_type::f64 || type == element_type::f16 ||
         type == element_type::bf16 || is_float8(type);
}

/// All elements of a tensor as Wide (double, int64 or uint64).
template <class Wide>
[[nodiscard]] std::pmr::vector<Wide> load_all(const operator_context& c, const tensor& t) {
  std::pmr::vector<Wide> values(t.count(), c.memory);
  load(c, t, 0, std::span<Wide>(values));
  return values;
}

/// A wide element as Target. To an integer type from double it rounds toward zero and saturates;
/// from an integer it drops the higher bits, as ONNX says.
template <class Target, class Wide>
[[nodiscard]] inline Target narrow(Wide x) noexcept {
  if constexpr (float_format<Target> && std::is_same_v<Wide, double>) {
    return round_to<Target>(x);
  } else if constexpr (float_format<Target>) {
    return round_to<Target>(static_cast<float>(x));
  } else if constexpr (std::is_integral_v<Target> && std::is_same_v<Wide, double>) {
    return saturate_to<Target>(x);
  } else {
    return static_cast<Target>(x);
  }
}

/// A wide element as a float of 8 bits, rounded once. `saturate` says what becomes of overflow, as
/// in round_to().
template <float8_format Target, class Wide>
[[nodiscard]] inline Target narrow_to_float8(Wide x, bool saturate) noexcept {
  // Integers that a double does not hold exactly are far above the largest finite value.
  return round_to<Target>(static_cast<double>(x), saturate);
}

/// A wide element as uint4: its lowest four bits; a double is rounded toward zero first.
template <class Wide>
[[nodiscard]] inline std::uint8_t narrow_to_u4(Wide x) noexcept {
  return static_cast<std::uint8_t>(wide(narrow<std::int64_t>(x)) & 15U);
}

/// A wide element as int4: its lowest four bits, sign-extended; a double is rounded toward zero
/// first.
template <class Wide>
[[nodiscard]] inline std::int8_t narrow_to_s4(Wide x) noexcept {
  return static_cast<std::int8_t>(static_cast<int>(narrow_to_u4(x) ^ 8U) - 8);
}

template <class Target, class Wide, class Convert>
void store_as(std::span<const Wide> values, tensor& t, std::size_t begin, const Convert& convert) {
  Target* to = t.mutable_data<Target>().data() + begin;
  for (std::size_t i = 0; i < values.size(); ++i) {
    to[i] = convert(values[i]);
  }
}

template <class Target, class Wide>
void store_as(std::span<const Wide> values, tensor& t, std::size_t begin) {
  store_as<Target>(values, t, begin, [](Wide x) { return narrow<Target>(x); });
}

/// Writes `values` to the elements of a tensor from `begin` on, narrowed to the tensor's type. In
/// floats of 8 bits, overflow becomes the largest finite value, or, unless `saturate`, what
/// round_to() says. Does nothing for strings, which infer_cast_to() has rejected.
template <class Wide>
void store(std::span<const Wide> values, tensor& t, std::size_t begin, bool saturate = true) {
  switch (t.type()) {
    case element_type::f32:
      store_as<float>(values, t, begin);
      return;
    case element_type::f64:
      store_as<double>(values, t, begin);
      return;
    case element_type::f16:
      store_as<float16>(values, t, begin);
      return;
    case element_type::bf16:
      store_as<bfloat16>(values, t, begin);
      return;
    case element_type::f8e4m3fn:
      store_as<float8_e4m3fn>(values, t, begin, [saturate](Wide x) {
        return narrow_to_float8<float8_e4m3fn>(x, saturate);
      });
      return;
    case element_type::f8e5m2:
      store_as<float8_e5m2>(values, t, begin, [saturate](Wide x) {
        return narrow_to_float8<float8_e5m2>(x, saturate);
      });
      return;
    case element_type::u8:
      store_as<std::uint8_t>(values, t, begin);
      return;
    case element_type::s8:
      store_as<std::int8_t>(values, t, begin);
      return;
    case element_type::u16:
      store_as<std::uint16_t>(values, t, begin);
      return;
    case element_type::s16:
      store_as<std::int16_t>(values, t, begin);
      return;
    case element_type::u32:
      store_as<std::uint32_t>(values, t, begin);
      return;
    case element_type::s32:
      store_as<std::int32_t>(values, t, begin);
      return;
    case element_type::u64:
      store_as<std::uint64_t>(values, t, begin);
      return;
    case element_type::s64:
      store_as<std::int64_t>(values, t, begin);
      return;
    case element_type::u4:
      store_as<std::uint8_t>(values, t, begin, [](Wide x) { return narrow_to_u4(x); });
      return;
    case element_type::s4:
      store_as<std::int8_t>(values, t, begin, [](Wide x) { return narrow_to_s4(x); });
      return;
    case element_type::boolean:
      store_as<std::uint8_t>(values, t, begin,
                             [](Wide x) { return static_cast<std::uint8_t>(x != Wide{0}); });
      return;
    case element_type::string:
    case element_type::undefined:
      return;
  }
}

/// Converts all elements of `from` to the type of `to` by way of Wide, with `saturate` as store().
template <class Wide>
void convert_elements(const operator_context& c, const tensor& from, tensor& to, bool saturate) {
  for_pieces(c, from.count(), cheap_piece, [&](std::size_t begin, std::size_t end) {
    std::array<Wide, 512> block;
    for (std::size_t i = begin; i < end; i += block.size()) {
      const std::span<Wide> part(block.data(), (std::min)(block.size(), end - i));
      load(c, from, i, part);
      store(std::span<const Wide>(part), to, i, saturate);
    }
  });
}

/// The types that operators of several inputs are compiled for. Other integers are widened to
/// int64, and the results lose their higher bits, which is the same arithmetic. The copies cost
/// little, because large tensors of such integers are rare in these operators.
using wide_types = type_list<float, double, std::int64_t, std::uint64_t>;

/// The one of wide_types in which elements of this type are computed; the type itself for types
/// that are not widened.
[[nodiscard]] inline element_type widened(element_type type) noexcept {
  switch (type) {
    case element_type::u8:
    case element_type::s8:
    case element_type::u16:
    case element_type::s16:
    case element_type::u32:
    case element_type::s32:
      return element_type::s64;
    default:
      return type;
  }
}

/// infer_for() of an operator that computes in the wider type.
template <class Types, void (*Infer)(operator_context&)>
void infer_widened(operator_context& c) {
  Infer(c);
  expect_type(c, Types{}, widened(c.input(0).type()));
}

/// The elements of a tensor as T: a view of them if they have that type, otherwise a converted
/// copy. The tensor must outlive the object.
template <class T>
class elements {
 public:
  elements(const operator_context& c, const tensor& t) : dims_(&t.dims()), copy_(c.memory) {
    if (t.type() == type_of<T>()) {
      view_ = t.data<T>();
    } else {
      copy_ = load_all<T>(c, t);
      view_ = copy_;
    }
  }
  elements(const elements&) = delete;
  elements& operator=(const elements&) = delete;
  ~elements() = default;

  [[nodiscard]] std::span<const T> view() const noexcept { return view_; }
  [[nodiscard]] operand<T> as_operand() const noexcept { return {view_.data(), dims_}; }

 private:
  const shape* dims_;
  std::pmr::vector<T> copy_;
  std::span<const T> view_;
};

/// Makes output 0 and calls fill(out), which writes its elements as T. If the output has another
/// integer type, the elements are then narrowed to it. `over`: inputs in whose memory the output
/// may be, as make_output_over() says.
template <class T, class Fill>
void fill_output(operator_context& c, const Fill& fill,
                 std::initializer_list<std::size_t> over = {}) {
  tensor& out = c.make_output_over(0, over);
  if constexpr (std::is_integral_v<T>) {
    if (out.type() != type_of<T>()) {
      std::pmr::vector<T> values(out.count(), c.memory);
      fill(std::span<T>(values));
      store(std::span<const T>(values), out, 0);
      return;
    }
  }
  fill(out.mutable_data<T>());
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_ELEMENTS_HPP
