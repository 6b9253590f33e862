// SPDX-License-Identifier: BSD-3-Clause
// Operators with booleans: comparisons, tests for NaN and infinity, logic, and Where, which chooses
// by them.
#ifndef DETENT_GRAPH_OPS_COMPARISON_HPP
#define DETENT_GRAPH_OPS_COMPARISON_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

// --- comparisons and logic -----------------------------------------------------------------------

namespace binary {

struct equal {
  template <class T>
  [[nodiscard]] bool operator()(T a, T b) const {
    return a == b;
  }
};

struct less {
  template <class T>
  [[nodiscard]] bool operator()(T a, T b) const {
    return a < b;
  }
};

struct less_or_equal {
  template <class T>
  [[nodiscard]] bool operator()(T a, T b) const {
    return a <= b;
  }
};

// Booleans are read as bytes: a tensor may hold bytes other than 0 and 1, which a C++ bool must
// not.
using byte = std::uint8_t;

struct logical_and {
  static constexpr std::string_view name = "And";
  [[nodiscard]] bool operator()(byte a, byte b) const { return a != 0 && b != 0; }
};

struct logical_or {
  static constexpr std::string_view name = "Or";
  [[nodiscard]] bool operator()(byte a, byte b) const { return a != 0 || b != 0; }
};

struct logical_xor {
  static constexpr std::string_view name = "Xor";
  [[nodiscard]] bool operator()(byte a, byte b) const { return (a != 0) != (b != 0); }
};

struct logical_equal {
  [[nodiscard]] bool operator()(byte a, byte b) const { return (a != 0) == (b != 0); }
};

}  // namespace binary

inline void infer_comparison(operator_context& c) {
  infer_broadcast(c);
  c.set_output(0, element_type::boolean, c.outputs[0].dims());
}

template <class F>
void run_logic(operator_context& c) {
  for (std::size_t i = 0; i < 2; ++i) {
    c.require(c.input(i).type() == element_type::boolean, "input ", i, " is ",
              graph::name(c.input(i).type()), ", not bool");
  }
  using binary::byte;
  map_broadcast(c, F{}, operand_of<byte>(c.input(0)), operand_of<byte>(c.input(1)),
                c.make_output(0).mutable_data<byte>(), c.outputs[0].dims());
}

/// Computes F(input First, the other input). Greater is Less with First = 1, that is with the
/// inputs exchanged.
template <class F, std::size_t First>
void run_comparison(operator_context& c) {
  if constexpr (std::is_same_v<F, binary::equal>) {
    if (c.input(0).type() == element_type::boolean) {
      run_logic<binary::logical_equal>(c);
      return;
    }
  }
  for_type(c, wide_types{}, widened(c.input(0).type()), [&]<class T>() {
    const elements<T> a(c, c.input(First));
    const elements<T> b(c, c.input(1 - First));
    map_broadcast(c, F{}, a.as_operand(), b.as_operand(),
                  c.make_output(0).mutable_data<std::uint8_t>(), c.outputs[0].dims());
  });
}

/// Infers the output of run_comparison<F>().
template <class F>
void infer_comparison_of(operator_context& c) {
  infer_comparison(c);
  if (!std::is_same_v<F, binary::equal> || c.input(0).type() != element_type::boolean) {
    expect_type(c, wide_types{}, widened(c.input(0).type()));
  }
}

template <class F, std::size_t First = 0>
[[nodiscard]] constexpr operator_definition comparison_operator(std::string_view name) {
  return {"",
          name,
          2,
          2,
          layout_support::elementwise,
          &infer_comparison_of<F>,
          &run_comparison<F, First>};
}

template <class F>
[[nodiscard]] constexpr operator_definition logic_operator() {
  return {"", F::name, 2, 2, layout_support::elementwise, &infer_comparison, &run_logic<F>};
}

inline void infer_not(operator_context& c) {
  c.require(c.input(0).type() == element_type::boolean, "input is ", graph::name(c.input(0).type()),
            ", not bool");
  infer_like_input(c);
}

inline void run_not(operator_context& c) {
  map_elements(
      c, [](std::uint8_t x) { return x == 0; }, c.input(0).data<std::uint8_t>(),
      c.make_output(0).mutable_data<std::uint8_t>(), cheap_piece);
}

// --- IsNaN and IsInf -----------------------------------------------------------------------------

/// Infers the output of IsNaN and IsInf.
inline void infer_test(operator_context& c) {
  c.set_output(0, element_type::boolean, c.input(0).dims());
}

/// Computes test(x) for each element as bool.
template <class Test>
void run_test(operator_context& c, const Test& test) {
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    map_elements(c, test, c.input(0).data<T>(), c.make_output(0).mutable_data<std::uint8_t>(),
                 cheap_piece);
  });
}

inline void run_is_nan(operator_context& c) {
  run_test(c, [](auto x) { return x != x; });
}

inline void run_is_inf(operator_context& c) {
  const bool negative = c.n().get_int("detect_negative", 1) != 0;
  const bool positive = c.n().get_int("detect_positive", 1) != 0;
  run_test(c, [negative, positive](auto x) {
    constexpr auto infinity = std::numeric_limits<decltype(x)>::infinity();
    return (positive && x == infinity) || (negative && x == -infinity);
  });
}

// --- Where ---------------------------------------------------------------------------------------

inline void infer_where(operator_context& c) {
  c.require(c.input(0).type() == element_type::boolean, "the condition is ",
            graph::name(c.input(0).type()), ", not bool");
  c.require(c.input(1).type() == c.input(2).type(), "the choices are ",
            graph::name(c.input(1).type()), " and ", graph::name(c.input(2).type()));
  const shape choices = broadcast_dims(c, c.input(1).dims(), c.input(2).dims());
  c.set_output(0, c.input(1).type(), broadcast_dims(c, c.input(0).dims(), choices));
}

/// Computes Where for elements of any type. Bits is an unsigned type of the size of an element;
/// elements are only copied.
template <class Bits>
void run_where_as(operator_context& c) {
  map_broadcast(
      c, [](std::uint8_t condition, Bits x, Bits y) { return condition != 0 ? x : y; },
      operand_of<std::uint8_t>(c.input(0)), operand_of<Bits>(c.input(1)),
      operand_of<Bits>(c.input(2)), c.make_output_over(0, {1, 2}).mutable_data<Bits>(),
      c.outputs[0].dims());
}

inline void run_where(operator_context& c) {
  switch (element_size(c.input(1).type())) {
    case 1:
      run_where_as<std::uint8_t>(c);
      return;
    case 2:
      run_where_as<std::uint16_t>(c);
      return;
    case 4:
      run_where_as<std::uint32_t>(c);
      return;
    case 8:
      run_where_as<std::uint64_t>(c);
      return;
    default:
      c.require_supported(false, "no code for elements of type ", graph::name(c.input(1).type()));
  }
}

inline constexpr operator_definition comparison_operators[] = {
    {"", "IsNaN", 1, 1, layout_support::elementwise, &infer_for<float_types, &infer_test>,
     &run_is_nan, true},
    {"", "IsInf", 1, 1, layout_support::elementwise, &infer_for<float_types, &infer_test>,
     &run_is_inf, true},
    comparison_operator<binary::equal>("Equal"),
    comparison_operator<binary::less, 1>("Greater"),
    comparison_operator<binary::less>("Less"),
    comparison_operator<binary::less_or_equal, 1>("GreaterOrEqual"),
    comparison_operator<binary::less_or_equal>("LessOrEqual"),
    logic_operator<binary::logical_and>(),
    logic_operator<binary::logical_or>(),
    logic_operator<binary::logical_xor>(),
    {"", "Not", 1, 1, layout_support::elementwise, &infer_not, &run_not, true},
    {"", "Where", 3, 3, layout_support::elementwise, &infer_where, &run_where, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_COMPARISON_HPP
