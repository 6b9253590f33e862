// SPDX-License-Identifier: BSD-3-Clause
// Operators on the bits of elements: BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot, BitShift and
// BitCast.
#ifndef DETENT_GRAPH_OPS_BITWISE_HPP
#define DETENT_GRAPH_OPS_BITWISE_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/elementwise.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace bitwise {

/// The wide types of integers (elements.hpp), which keep the bits of all narrower ones.
using wide_integers = type_list<std::int64_t, std::uint64_t>;

struct bit_and {
  static constexpr std::string_view name = "BitwiseAnd";
  using types = wide_integers;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    return static_cast<T>(wide(a) & wide(b));
  }
};

struct bit_or {
  static constexpr std::string_view name = "BitwiseOr";
  using types = wide_integers;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    return static_cast<T>(wide(a) | wide(b));
  }
};

struct bit_xor {
  static constexpr std::string_view name = "BitwiseXor";
  using types = wide_integers;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    return static_cast<T>(wide(a) ^ wide(b));
  }
};

/// True if y is no number of places by which a 64-bit integer can be shifted.
template <class T>
[[nodiscard]] bool is_no_shift(T y) {
  return wide(y) >= 64;
}

/// x shifted to the left by y places; 0 if y is negative or as large as the number of bits.
struct shift_left {
  using types = wide_integers;
  template <class T>
  [[nodiscard]] T operator()(T x, T y) const {
    return is_no_shift(y) ? T{0} : static_cast<T>(wide(x) << wide(y));
  }
};

/// x shifted to the right by y places, with copies of the sign before it; only these remain if y is
/// negative or as large as the number of bits.
struct shift_right {
  using types = wide_integers;
  template <class T>
  [[nodiscard]] T operator()(T x, T y) const {
    if (is_no_shift(y)) {
      return x < T{0} ? static_cast<T>(-1) : T{0};
    }
    return static_cast<T>(x >> y);
  }
};

inline void infer_shift(operator_context& c) {
  const std::string direction = c.n().get_string("direction", "");
  c.require(direction == "LEFT" || direction == "RIGHT", "the direction is '", direction,
            "', not LEFT or RIGHT");
  infer_widened<shift_left::types, &infer_broadcast>(c);
}

inline void run_shift(operator_context& c) {
  if (c.n().get_string("direction", "") == "LEFT") {
    run_binary<shift_left>(c);
  } else {
    run_binary<shift_right>(c);
  }
}

/// The types of BitwiseNot.
using integers = type_list<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t,
                           std::int32_t, std::uint64_t, std::int64_t>;

inline void run_not(operator_context& c) {
  for_type(c, integers{}, c.input(0).type(), [&]<class T>() {
    map_elements(
        c, [](T x) { return static_cast<T>(~wide(x)); }, c.input(0).data<T>(),
        c.make_output_over(0, {0}).mutable_data<T>(), cheap_piece);
  });
}

/// Infers the output of BitCast, whose elements have the size of the input's.
inline void infer_bit_cast(operator_context& c) {
  const std::int64_t declared = c.n().get_int("to", 0);
  c.require(declared > 0 && declared <= std::numeric_limits<std::int32_t>::max(),
            "the attribute 'to' is missing or not a type");
  const auto to = static_cast<element_type>(declared);
  const element_type from = c.input(0).type();
  const auto is_whole = [](element_type t) {
    return element_size(t) != 0 && t != element_type::u4 && t != element_type::s4;
  };
  c.require_supported(is_whole(from) && is_whole(to), "no code from ", shown(from), " to ",
                      shown(to));
  c.require(element_size(from) == element_size(to), shown(from), " and ", shown(to),
            " have different sizes");
  c.set_output(0, to, c.input(0).dims());
}

inline void run_bit_cast(operator_context& c) {
  const tensor& in = c.input(0);
  tensor& out = c.make_output(0);
  if (out.bytes() > 0) {
    std::memcpy(out.mutable_raw(), in.raw(), out.bytes());
  }
}

}  // namespace bitwise

inline constexpr operator_definition bitwise_operators[] = {
    binary_operator<bitwise::bit_and>(),
    binary_operator<bitwise::bit_or>(),
    binary_operator<bitwise::bit_xor>(),
    {"", "BitwiseNot", 1, 1, layout_support::elementwise,
     &infer_for<bitwise::integers, &infer_like_input>, &bitwise::run_not, true},
    {"", "BitShift", 2, 2, layout_support::elementwise, &bitwise::infer_shift, &bitwise::run_shift,
     true},
    {"", "BitCast", 1, 1, layout_support::elementwise, &bitwise::infer_bit_cast,
     &bitwise::run_bit_cast, true},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_BITWISE_HPP
