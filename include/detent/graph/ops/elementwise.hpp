// SPDX-License-Identifier: BSD-3-Clause
// Operators that look at one element of each input at a time: arithmetic, comparisons, logic, Cast,
// Clip.
#ifndef DETENT_GRAPH_OPS_ELEMENTWISE_HPP
#define DETENT_GRAPH_OPS_ELEMENTWISE_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/operator.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

using signed_types =
    type_list<float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t>;
/// Integers wrap: the arithmetic goes through uint64, where nothing is undefined.
template <class T>
[[nodiscard]] constexpr std::uint64_t wide(T x) noexcept {
  return static_cast<std::uint64_t>(x);
}

/// x rounded toward zero and saturated; NaN becomes 0.
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

// --- elements of any type ------------------------------------------------------------------------
//
// Elements are brought to one of three wide types, which hold each of them exactly: double for the
// floating ones, uint64 for uint64, int64 for the rest.

template <class Wide, class Source>
[[nodiscard]] inline Wide widen(Source x) noexcept {
  if constexpr (std::is_same_v<Source, half> || std::is_same_v<Source, bfloat16>) {
    return static_cast<Wide>(to_float(x));
  } else {
    return static_cast<Wide>(x);
  }
}

/// The elements from `begin` on, as many as `out` holds.
template <class Wide, class Source>
void load_as(const tensor& t, std::size_t begin, std::span<Wide> out) {
  const Source* from = t.data<Source>().data() + begin;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = widen<Wide>(from[i]);
  }
}

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
      load_as<Wide, half>(t, begin, out);
      return;
    case element_type::bf16:
      load_as<Wide, bfloat16>(t, begin, out);
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
         type == element_type::bf16;
}

/// All elements of a tensor as double or int64.
template <class Wide>
[[nodiscard]] std::vector<Wide> load_all(const operator_context& c, const tensor& t) {
  std::vector<Wide> values(t.count());
  load(c, t, 0, std::span<Wide>(values));
  return values;
}

/// x to float such that rounding the result to a shorter type rounds x itself: what is not exact is
/// truncated and its last bit set.
[[nodiscard]] inline float round_to_odd(double x) noexcept {
  const auto nearest = static_cast<float>(x);
  const auto back = static_cast<double>(nearest);
  if (back == x || !std::isfinite(nearest)) {
    return nearest;
  }
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  return std::bit_cast<float>((std::fabs(back) > std::fabs(x) ? bits - 1 : bits) | 1U);
}

template <class Wide>
[[nodiscard]] inline float shorten(Wide x) noexcept {
  if constexpr (std::is_same_v<Wide, double>) {
    return round_to_odd(x);
  } else {
    return static_cast<float>(x);
  }
}

/// From floating point: saturates. From integers: drops the higher bits, as ONNX says.
template <class Target, class Wide>
[[nodiscard]] inline Target narrow(Wide x) noexcept {
  if constexpr (std::is_same_v<Target, half>) {
    return to_half(shorten(x));
  } else if constexpr (std::is_same_v<Target, bfloat16>) {
    return to_bfloat16(shorten(x));
  } else if constexpr (std::is_integral_v<Target> && std::is_same_v<Wide, double>) {
    return saturate_to<Target>(x);
  } else {
    return static_cast<Target>(x);
  }
}

template <class Wide>
[[nodiscard]] inline std::uint8_t narrow_to_u4(Wide x) noexcept {
  if constexpr (std::is_same_v<Wide, double>) {
    return (std::min)(saturate_to<std::uint8_t>(x), std::uint8_t{15});
  } else {
    return static_cast<std::uint8_t>(wide(x) & 15U);
  }
}

template <class Wide>
[[nodiscard]] inline std::int8_t narrow_to_s4(Wide x) noexcept {
  if constexpr (std::is_same_v<Wide, double>) {
    return std::clamp(saturate_to<std::int8_t>(x), std::int8_t{-8}, std::int8_t{7});
  } else {
    return static_cast<std::int8_t>(static_cast<int>((wide(x) & 15U) ^ 8U) - 8);
  }
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

/// The opposite of load(). infer_cast() has seen to it that the type is one of these.
template <class Wide>
void store(std::span<const Wide> values, tensor& t, std::size_t begin) {
  switch (t.type()) {
    case element_type::f32:
      store_as<float>(values, t, begin);
      return;
    case element_type::f64:
      store_as<double>(values, t, begin);
      return;
    case element_type::f16:
      store_as<half>(values, t, begin);
      return;
    case element_type::bf16:
      store_as<bfloat16>(values, t, begin);
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

template <class Wide>
void convert_elements(const operator_context& c, const tensor& from, tensor& to) {
  for_pieces(c, from.count(), cheap_piece, [&](std::size_t begin, std::size_t end) {
    std::array<Wide, 512> block;
    for (std::size_t i = begin; i < end; i += block.size()) {
      const std::span<Wide> part(block.data(), (std::min)(block.size(), end - i));
      load(c, from, i, part);
      store(std::span<const Wide>(part), to, i);
    }
  });
}

/// Types that operators of several inputs are compiled for. Other integers are widened to int64 and
/// the results cut off, which is the same arithmetic; large tensors of them are rare there.
using wide_types = type_list<float, double, std::int64_t, std::uint64_t>;

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

/// The elements of a tensor as T: where they are or, if that is another type, copies.
template <class T>
class elements {
 public:
  elements(const operator_context& c, const tensor& t) : dims_(&t.dims()) {
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
  std::vector<T> copy_;
  std::span<const T> view_;
};

/// Calls fill(out) with room for the elements of output 0 as T.
template <class T, class Fill>
void fill_output(operator_context& c, const Fill& fill) {
  tensor& out = c.make_output(0);
  if constexpr (std::is_integral_v<T>) {
    if (out.type() != type_of<T>()) {
      std::vector<T> values(out.count());
      fill(std::span<T>(values));
      store(std::span<const T>(values), out, 0);
      return;
    }
  }
  fill(out.mutable_data<T>());
}

// --- one input -----------------------------------------------------------------------------------
//
// A function object per operator. `types` are the elements it is for. Those that call into libm
// take and return double, also for float: the double result, rounded once, does not depend on the
// libm's float functions. An object whose constructor takes the node reads its attributes there.

/// The one place where a function object meets an element.
template <class F, class T>
[[nodiscard]] inline T apply(const F& f, T x) {
  return static_cast<T>(f(x));
}

namespace unary {

struct neg {
  static constexpr std::string_view name = "Neg";
  using types = signed_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(0 - wide(x));
    } else {
      return -x;
    }
  }
};

struct abs {
  static constexpr std::string_view name = "Abs";
  using types = number_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return x < T{0} ? static_cast<T>(0 - wide(x)) : x;
    } else {
      return std::fabs(x);
    }
  }
};

struct sign {
  static constexpr std::string_view name = "Sign";
  using types = number_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    if (x > T{0}) {
      return T{1};
    }
    return x < T{0} ? static_cast<T>(-1) : x;  // zero and NaN stay
  }
};

struct ceil {
  static constexpr std::string_view name = "Ceil";
  using types = float_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return std::ceil(x);
  }
};

struct floor {
  static constexpr std::string_view name = "Floor";
  using types = float_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return std::floor(x);
  }
};

struct round {
  static constexpr std::string_view name = "Round";
  using types = float_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return std::nearbyint(x);  // half to even
  }
};

struct reciprocal {
  static constexpr std::string_view name = "Reciprocal";
  using types = float_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return T{1} / x;
  }
};

struct sqrt {
  static constexpr std::string_view name = "Sqrt";
  using types = float_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return std::sqrt(x);
  }
};

struct exp {
  static constexpr std::string_view name = "Exp";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::exp(x); }
};

struct log {
  static constexpr std::string_view name = "Log";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::log(x); }
};

struct erf {
  static constexpr std::string_view name = "Erf";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::erf(x); }
};

struct sin {
  static constexpr std::string_view name = "Sin";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::sin(x); }
};

struct cos {
  static constexpr std::string_view name = "Cos";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::cos(x); }
};

}  // namespace unary

using unary_functions = type_list<unary::neg, unary::abs, unary::sign, unary::ceil, unary::floor,
                                  unary::round, unary::reciprocal, unary::sqrt, unary::exp,
                                  unary::log, unary::erf, unary::sin, unary::cos>;

template <class F>
[[nodiscard]] F make_function(const node& n) {
  if constexpr (std::is_constructible_v<F, const node&>) {
    return F(n);
  } else {
    return F{};
  }
}

/// True of functions that are written for each element type, which are the cheap ones.
template <class F>
inline constexpr bool is_cheap = std::is_same_v<decltype(std::declval<const F&>()(0.0F)), float>;

template <class F>
void run_unary(operator_context& c) {
  const tensor& x = c.input(0);
  const F f = make_function<F>(c.n());
  for_type(c, typename F::types{}, x.type(), [&]<class T>() {
    map_elements(
        c, [&f](T element) { return apply(f, element); }, x.data<T>(),
        c.make_output(0).mutable_data<T>(), is_cheap<F> ? cheap_piece : costly_piece);
  });
}

template <class F>
[[nodiscard]] constexpr operator_definition unary_operator() {
  return {"", F::name, 1, 1, layout_support::elementwise, &infer_like_input, &run_unary<F>};
}

// --- two inputs ----------------------------------------------------------------------------------

namespace binary {

struct add {
  static constexpr std::string_view name = "Add";
  using types = wide_types;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(wide(a) + wide(b));
    } else {
      return a + b;
    }
  }
};

struct sub {
  static constexpr std::string_view name = "Sub";
  using types = wide_types;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(wide(a) - wide(b));
    } else {
      return a - b;
    }
  }
};

struct mul {
  static constexpr std::string_view name = "Mul";
  using types = wide_types;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(wide(a) * wide(b));
    } else {
      return a * b;
    }
  }
};

/// lowest / -1 overflows. Negation, which wraps, is right for all division by -1.
template <class T>
[[nodiscard]] constexpr bool is_minus_one(T x) noexcept {
  return std::is_signed_v<T> && x == static_cast<T>(-1);
}

struct div {
  static constexpr std::string_view name = "Div";
  using types = wide_types;
  static constexpr bool divides = true;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return is_minus_one(b) ? static_cast<T>(0 - wide(a)) : static_cast<T>(a / b);
    } else {
      return a / b;
    }
  }
};

/// The remainder with the sign of the divisor.
struct floor_mod {
  using types = type_list<std::int64_t, std::uint64_t>;
  static constexpr bool divides = true;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    if (is_minus_one(b)) {
      return T{0};
    }
    const auto rest = static_cast<T>(a % b);
    return rest != T{0} && (rest < T{0}) != (b < T{0}) ? static_cast<T>(rest + b) : rest;
  }
};

/// The remainder with the sign of the dividend.
struct trunc_mod {
  using types = wide_types;
  static constexpr bool divides = true;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return is_minus_one(b) ? T{0} : static_cast<T>(a % b);
    } else {
      return std::fmod(a, b);  // exact
    }
  }
};

// NaN wins, as in numpy.
struct max {
  using types = wide_types;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

struct min {
  using types = wide_types;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

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

// Booleans are read as bytes: a file may hold others than 0 and 1, which a C++ bool must not be.
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

template <class F>
concept dividing = F::divides;

template <class F>
void run_binary(operator_context& c) {
  for_type(c, typename F::types{}, widened(c.input(0).type()), [&]<class T>() {
    const elements<T> a(c, c.input(0));
    const elements<T> b(c, c.input(1));
    fill_output<T>(c, [&](std::span<T> out) {
      if constexpr (dividing<F> && std::is_integral_v<T>) {
        c.require(
            out.empty() || std::find(b.view().begin(), b.view().end(), T{0}) == b.view().end(),
            "integer division by zero");
      }
      map_broadcast(c, F{}, a.as_operand(), b.as_operand(), out, c.outputs[0].dims());
    });
  });
}

template <class F>
[[nodiscard]] constexpr operator_definition binary_operator() {
  return {"", F::name, 2, 2, layout_support::elementwise, &infer_broadcast, &run_binary<F>};
}

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

/// Compares input First with the other one: Greater is Less the other way around.
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

template <class F, std::size_t First = 0>
[[nodiscard]] constexpr operator_definition comparison_operator(std::string_view name) {
  return {
      "", name, 2, 2, layout_support::elementwise, &infer_comparison, &run_comparison<F, First>};
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

inline void run_mod(operator_context& c) {
  if (c.n().get_int("fmod", 0) != 0) {
    run_binary<binary::trunc_mod>(c);
    return;
  }
  const element_type type = c.input(0).type();
  c.require(type != element_type::f32 && type != element_type::f64, "elements of type ",
            graph::name(type), " need the attribute fmod=1");
  run_binary<binary::floor_mod>(c);
}

// --- any number of inputs ------------------------------------------------------------------------

/// Folds the inputs from left to right with F.
template <class F, class T>
void fold_inputs(const operator_context& c, std::span<T> out) {
  const shape& dims = c.outputs[0].dims();
  const elements<T> first(c, c.input(0));
  const elements<T> second(c, c.input(1));
  map_broadcast(c, F{}, first.as_operand(), second.as_operand(), out, dims);
  for (std::size_t i = 2; i < c.input_count(); ++i) {
    const elements<T> next(c, c.input(i));
    map_broadcast(c, F{}, operand<T>{out.data(), &dims}, next.as_operand(), out, dims);
  }
}

template <class F, class Types>
void run_fold(operator_context& c) {
  for_type(c, Types{}, widened(c.input(0).type()), [&]<class T>() {
    if (c.input_count() == 1) {
      c.share_output(0, c.input(0));
    } else {
      fill_output<T>(c, [&](std::span<T> out) { fold_inputs<F, T>(c, out); });
    }
  });
}

inline void run_mean(operator_context& c) {
  run_fold<binary::add, float_types>(c);
  if (c.input_count() == 1) {
    return;
  }
  for_type(c, float_types{}, c.outputs[0].type(), [&]<class T>() {
    const auto count = static_cast<T>(c.input_count());
    for (T& x : c.outputs[0].mutable_data<T>()) {
      x /= count;
    }
  });
}

template <class F, class Types>
[[nodiscard]] constexpr operator_definition fold_operator(std::string_view name) {
  return {
      "", name, 1, any_number, layout_support::elementwise, &infer_broadcast, &run_fold<F, Types>};
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

/// Bits is an unsigned type of the size of an element, which is only copied.
template <class Bits>
void run_where_as(operator_context& c) {
  map_broadcast(
      c, [](std::uint8_t condition, Bits x, Bits y) { return condition != 0 ? x : y; },
      operand_of<std::uint8_t>(c.input(0)), operand_of<Bits>(c.input(1)),
      operand_of<Bits>(c.input(2)), c.make_output(0).mutable_data<Bits>(), c.outputs[0].dims());
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

// --- Cast ----------------------------------------------------------------------------------------

inline void infer_cast_to(operator_context& c, element_type to) {
  for (const element_type type : {c.input(0).type(), to}) {
    c.require_supported(element_size(type) != 0, "no code for elements of type ",
                        graph::name(type));
  }
  c.set_output(0, to, c.input(0).dims());
}

inline void infer_cast(operator_context& c) {
  const std::int64_t to = c.n().get_int("to", 0);
  c.require(to > 0 && to <= std::numeric_limits<std::int32_t>::max(),
            "the attribute 'to' is missing or not a type");
  infer_cast_to(c, static_cast<element_type>(to));
}

inline void infer_cast_like(operator_context& c) { infer_cast_to(c, c.input(1).type()); }

inline void run_cast(operator_context& c) {
  const tensor& x = c.input(0);
  if (x.type() == c.outputs[0].type()) {
    c.share_output(0, x);
    return;
  }
  tensor& y = c.make_output(0);
  if (is_floating(x.type())) {
    convert_elements<double>(c, x, y);
  } else if (x.type() == element_type::u64) {
    convert_elements<std::uint64_t>(c, x, y);
  } else {
    convert_elements<std::int64_t>(c, x, y);
  }
}

// --- Pow -----------------------------------------------------------------------------------------

/// Output and base have the same type; that of the exponent is free.
inline void infer_pow(operator_context& c) {
  c.set_output(0, c.input(0).type(), broadcast_dims(c, c.input(0).dims(), c.input(1).dims()));
}

struct power {
  /// Of integers: wraps; 1 / x^n is rounded toward zero, and 0 for x = 0.
  template <class T>
  [[nodiscard]] T operator()(T base, std::int64_t exponent) const {
    if (exponent < 0) {
      if (base == T{-1}) {
        return exponent % 2 == 0 ? T{1} : T{-1};
      }
      return base == T{1} ? T{1} : T{0};
    }
    std::uint64_t result = 1;
    std::uint64_t square = wide(base);
    for (std::uint64_t e = wide(exponent); e != 0; e >>= 1U) {
      result *= (e & 1U) != 0 ? square : 1;
      square *= square;
    }
    return static_cast<T>(result);
  }
  template <class T>
  [[nodiscard]] T operator()(T base, double exponent) const {
    const auto x = static_cast<double>(base);
    const double result = exponent == 2.0 ? x * x : std::pow(x, exponent);
    if constexpr (std::is_integral_v<T>) {
      return saturate_to<T>(result);
    } else {
      return static_cast<T>(result);
    }
  }
};

/// Exponents are brought to Exponent first.
template <class Base, class Exponent>
void run_pow_as(operator_context& c) {
  const std::vector<Exponent> exponents = load_all<Exponent>(c, c.input(1));
  map_broadcast(c, power{}, operand_of<Base>(c.input(0)),
                operand<Exponent>{exponents.data(), &c.input(1).dims()},
                c.make_output(0).mutable_data<Base>(), c.outputs[0].dims(), costly_piece);
}

inline void run_pow(operator_context& c) {
  using base_types = type_list<float, double, std::int32_t, std::int64_t>;
  for_type(c, base_types{}, c.input(0).type(), [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      if (!is_floating(c.input(1).type())) {
        run_pow_as<T, std::int64_t>(c);
        return;
      }
    }
    run_pow_as<T, double>(c);
  });
}

// --- Clip ----------------------------------------------------------------------------------------

/// A bound of Clip: an input since version 11, an attribute before.
template <class T>
[[nodiscard]] T clip_bound(const operator_context& c, std::size_t input, std::string_view attribute,
                           T otherwise) {
  if (c.opset < 11) {
    const graph::attribute* a = c.n().find(attribute);
    return a != nullptr ? static_cast<T>(c.n().get_float(attribute, 0.0F)) : otherwise;
  }
  if (!c.has_input(input)) {
    return otherwise;
  }
  const tensor& t = c.input(input);
  c.require(t.type() == c.input(0).type() && t.count() == 1, "'", attribute, "' is ",
            graph::name(t.type()), to_string(t.dims()), ", not a single ",
            graph::name(c.input(0).type()));
  return t.data<T>()[0];
}

inline void run_clip(operator_context& c) {
  const tensor& x = c.input(0);
  for_type(c, number_types{}, x.type(), [&]<class T>() {
    const T low = clip_bound<T>(c, 1, "min", std::numeric_limits<T>::lowest());
    const T high = clip_bound<T>(c, 2, "max", (std::numeric_limits<T>::max)());
    map_elements(
        c,
        [low, high](T element) {
          const T raised = element < low ? low : element;  // NaN passes
          return raised > high ? high : raised;
        },
        x.data<T>(), c.make_output(0).mutable_data<T>(), cheap_piece);
  });
}

// --- Identity and Dropout ------------------------------------------------------------------------

inline void run_identity(operator_context& c) { c.share_output(0, c.input(0)); }

/// The mask is bool since version 10; before, it has the type of the data.
inline void infer_dropout(operator_context& c) {
  const tensor& x = c.input(0);
  c.set_output(0, x.type(), x.dims());
  c.set_output(1, c.opset < 10 ? x.type() : element_type::boolean, x.dims());
}

/// Whether the node drops anything: with training_mode and a ratio above 0, both inputs since
/// version 12.
[[nodiscard]] inline bool drops_elements(const operator_context& c) {
  if (c.opset < 12 || !c.has_input(2)) {
    return false;
  }
  const tensor& training = c.input(2);
  c.require(training.type() == element_type::boolean && training.count() == 1,
            "training_mode is not a single bool");
  if (training.data<std::uint8_t>()[0] == 0) {
    return false;
  }
  if (!c.has_input(1)) {
    return true;  // the ratio is 0.5 then
  }
  c.require(c.input(1).count() == 1, "ratio is not a single number");
  return load_all<double>(c, c.input(1))[0] != 0.0;
}

inline void run_dropout(operator_context& c) {
  c.require_supported(!drops_elements(c), "training is not supported");
  c.share_output(0, c.input(0));
  if (!c.has_output(1)) {
    return;
  }
  tensor& mask = c.make_output(1);  // nothing is dropped: all ones
  const std::vector<std::int64_t> ones(mask.count(), 1);
  store(std::span<const std::int64_t>(ones), mask, 0);
}

inline constexpr operator_definition elementwise_operators[] = {
    unary_operator<unary::neg>(),
    unary_operator<unary::abs>(),
    unary_operator<unary::sign>(),
    unary_operator<unary::ceil>(),
    unary_operator<unary::floor>(),
    unary_operator<unary::round>(),
    unary_operator<unary::reciprocal>(),
    unary_operator<unary::sqrt>(),
    unary_operator<unary::exp>(),
    unary_operator<unary::log>(),
    unary_operator<unary::erf>(),
    unary_operator<unary::sin>(),
    unary_operator<unary::cos>(),
    binary_operator<binary::add>(),
    binary_operator<binary::sub>(),
    binary_operator<binary::mul>(),
    binary_operator<binary::div>(),
    {"", "Mod", 2, 2, layout_support::elementwise, &infer_broadcast, &run_mod},
    {"", "Pow", 2, 2, layout_support::elementwise, &infer_pow, &run_pow},
    fold_operator<binary::max, wide_types>("Max"),
    fold_operator<binary::min, wide_types>("Min"),
    fold_operator<binary::add, float_types>("Sum"),
    {"", "Mean", 1, any_number, layout_support::elementwise, &infer_broadcast, &run_mean},
    comparison_operator<binary::equal>("Equal"),
    comparison_operator<binary::less, 1>("Greater"),
    comparison_operator<binary::less>("Less"),
    comparison_operator<binary::less_or_equal, 1>("GreaterOrEqual"),
    comparison_operator<binary::less_or_equal>("LessOrEqual"),
    logic_operator<binary::logical_and>(),
    logic_operator<binary::logical_or>(),
    logic_operator<binary::logical_xor>(),
    {"", "Not", 1, 1, layout_support::elementwise, &infer_not, &run_not},
    {"", "Where", 3, 3, layout_support::elementwise, &infer_where, &run_where},
    {"", "Cast", 1, 1, layout_support::elementwise, &infer_cast, &run_cast},
    // Only the type of the second input counts, so its order of elements must not.
    {"", "CastLike", 2, 2, layout_support::plain, &infer_cast_like, &run_cast},
    {"", "Clip", 1, 3, layout_support::elementwise, &infer_like_input, &run_clip},
    {"", "Identity", 1, 1, layout_support::elementwise, &infer_like_input, &run_identity},
    {"", "Dropout", 1, 3, layout_support::elementwise, &infer_dropout, &run_dropout},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_ELEMENTWISE_HPP
