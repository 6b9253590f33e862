// SPDX-License-Identifier: BSD-3-Clause
// Operators that compute each number of the output from one number of each input: arithmetic,
// functions, Max, Min, Mean, Pow, Clip, Identity and Dropout.
#ifndef DETENT_GRAPH_OPS_ELEMENTWISE_HPP
#define DETENT_GRAPH_OPS_ELEMENTWISE_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/dropout.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/unary_functions.hpp>
#include <detent/maxima.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

// --- one input -----------------------------------------------------------------------------------

/// The smallest number of elements of type T that is worth a thread of its own for a function
/// object.
template <class F, class T>
inline constexpr std::size_t piece_of =
    has_kernels<F, T>                                                 ? kernel_piece
    : std::is_same_v<decltype(std::declval<const F&>()(0.0F)), float> ? cheap_piece
                                                                      : costly_piece;

template <class F>
void run_unary(operator_context& c) {
  const tensor& x = c.input(0);
  const F f = make_function<F>(c.n());
  for_type(c, typename F::types{}, x.type(), [&]<class T>() {
    const std::span<const T> from = x.data<T>();
    const std::span<T> to = c.make_output_over(0, {0}).mutable_data<T>();
    for_pieces(c, to.size(), piece_of<F, T>, [&](std::size_t begin, std::size_t end) {
      apply(f, from.subspan(begin, end - begin), to.subspan(begin, end - begin));
    });
  });
}

template <class F>
[[nodiscard]] constexpr operator_definition unary_operator() {
  return {"",
          F::name,
          1,
          1,
          layout_support::elementwise,
          &infer_for<typename F::types, &infer_like_input>,
          &run_unary<F>,
          true};
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

/// Whether a divisor is -1. Dividing the lowest integer by -1 overflows; division by -1 is
/// therefore done as a negation that wraps around.
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

/// The remainder with the sign of the divisor. A floating-point remainder of 0 has that sign too.
struct floor_mod {
  using types = wide_types;
  static constexpr bool divides = true;
  template <class T>
  [[nodiscard]] T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (is_minus_one(b)) {
        return T{0};
      }
      const auto rest = static_cast<T>(a % b);
      return rest != T{0} && (rest < T{0}) != (b < T{0}) ? static_cast<T>(rest + b) : rest;
    } else {
      const T rest = std::fmod(a, b);  // exact
      if (rest == T{0}) {
        return std::copysign(rest, b);
      }
      return (rest < T{0}) != (b < T{0}) ? rest + b : rest;
    }
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

// The result of max and min is NaN if either operand is, as in numpy.
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

}  // namespace binary

/// A function object that must not get an integer divisor of 0.
template <class F>
concept dividing = F::divides;

template <class F>
void run_binary(operator_context& c) {
  for_type(c, typename F::types{}, widened(c.input(0).type()), [&]<class T>() {
    const elements<T> a(c, c.input(0));
    const elements<T> b(c, c.input(1));
    fill_output<T>(
        c,
        [&](std::span<T> out) {
          if constexpr (dividing<F> && std::is_integral_v<T>) {
            c.require(
                out.empty() || std::find(b.view().begin(), b.view().end(), T{0}) == b.view().end(),
                "integer division by zero");
          }
          map_broadcast(c, F{}, a.as_operand(), b.as_operand(), out, c.outputs[0].dims());
        },
        {0, 1});
  });
}

template <class F>
[[nodiscard]] constexpr operator_definition binary_operator() {
  return {"",
          F::name,
          2,
          2,
          layout_support::elementwise,
          &infer_widened<typename F::types, &infer_broadcast>,
          &run_binary<F>,
          true};
}

/// Why the elements of a Mod have no remainder as it is asked for; empty if they have.
[[nodiscard]] inline std::string unsupported_mod(const operator_context& c) {
  const element_type type = c.input(0).type();
  if (c.opset >= 28 || !is_floating(type) || c.n().get_int("fmod", 0) != 0) {
    return {};
  }
  return detent::detail::message("elements of type ", graph::name(type),
                                 " need the attribute fmod=1 before opset 28; this is opset ",
                                 c.opset);
}

inline void infer_mod(operator_context& c) {
  infer_widened<binary::floor_mod::types, &infer_broadcast>(c);
  const std::string unsupported = unsupported_mod(c);
  c.expect_supported(unsupported.empty(), unsupported);
}

inline void run_mod(operator_context& c) {
  if (c.n().get_int("fmod", 0) != 0) {
    run_binary<binary::trunc_mod>(c);
    return;
  }
  const std::string unsupported = unsupported_mod(c);
  c.require(unsupported.empty(), unsupported);
  run_binary<binary::floor_mod>(c);
}

// --- any number of inputs ------------------------------------------------------------------------

/// Computes out = F(a, b), broadcast to `dims`. `out` overlaps neither.
template <class F, class T>
void fold_pair(const operator_context& c, operand<T> a, operand<T> b, std::span<T> out,
               const shape& dims) {
  if constexpr (std::is_same_v<F, binary::max> && std::is_same_v<T, float>) {
    if (*a.dims == dims && *b.dims == dims) {
      // The kernel replaces the first row by what is larger or NaN in the second one, as F does.
      for_pieces(c, out.size(), cheap_piece, [&](std::size_t begin, std::size_t end) {
        const std::array<const float*, 2> rows{b.data + begin, a.data + begin};
        max_of_rows(std::span<const float* const>(rows), out.subspan(begin, end - begin));
      });
      return;
    }
  }
  map_broadcast(c, F{}, a, b, out, dims);
}

/// Folds two or more inputs from left to right with F.
template <class F, class T>
void fold_inputs(const operator_context& c, std::span<T> out) {
  const shape& dims = c.outputs[0].dims();
  const elements<T> first(c, c.input(0));
  const elements<T> second(c, c.input(1));
  fold_pair<F>(c, first.as_operand(), second.as_operand(), out, dims);
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
  return {"",
          name,
          1,
          any_number,
          layout_support::elementwise,
          &infer_widened<Types, &infer_broadcast>,
          &run_fold<F, Types>};
}

// --- Pow -----------------------------------------------------------------------------------------

/// The types of bases of Pow.
using power_types = type_list<float, double, std::int32_t, std::int64_t>;

/// Infers the output of Pow. It has the type of the base; the exponent may have another type.
inline void infer_pow(operator_context& c) {
  require_aligned_last(c);
  c.set_output(0, c.input(0).type(), broadcast_dims(c, c.input(0).dims(), c.input(1).dims()));
}

struct power {
  /// A power of integers; it wraps around. For a negative exponent, 1 / base^-exponent is rounded
  /// toward zero; for base 0 the result is 0.
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
  /// A power in double, rounded once to a floating-point T; for an integer T rounded toward zero
  /// and saturated. A square is x * x, of which it does not matter in which type it is computed.
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

/// Computes Pow for bases of type Base; the exponents are converted to Exponent first.
template <class Base, class Exponent>
void run_pow_as(operator_context& c) {
  const std::pmr::vector<Exponent> exponents = load_all<Exponent>(c, c.input(1));
  if constexpr (std::is_floating_point_v<Base>) {
    if (exponents.size() == 1 && exponents[0] == 2.0) {
      const operand<Base> x = operand_of<Base>(c.input(0));
      map_broadcast(c, binary::mul{}, x, x, c.make_output(0).mutable_data<Base>(),
                    c.outputs[0].dims());
      return;
    }
  }
  map_broadcast(c, power{}, operand_of<Base>(c.input(0)),
                operand<Exponent>{exponents.data(), &c.input(1).dims()},
                c.make_output(0).mutable_data<Base>(), c.outputs[0].dims(), costly_piece);
}

inline void run_pow(operator_context& c) {
  for_type(c, power_types{}, c.input(0).type(), [&]<class T>() {
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

/// A bound of Clip, which is an input since opset 11 and an attribute before; `otherwise` if the
/// node has none.
template <class T>
[[nodiscard]] T clip_bound(const operator_context& c, std::size_t input, std::string_view attribute,
                           T otherwise) {
  if (c.opset < 11) {
    const graph::attribute* a = c.n().find(attribute);
    return a == nullptr ? otherwise
           : std::is_floating_point_v<T>
               ? static_cast<T>(c.n().get_float(attribute, 0.0F))
               : saturate_to<T>(static_cast<double>(c.n().get_float(attribute, 0.0F)));
  }
  if (!c.has_input(input)) {
    return otherwise;
  }
  const tensor& t = c.input(input);
  c.require(t.type() == c.input(0).type() && t.count() == 1, "'", attribute, "' is ",
            graph::name(t.type()), shown(t.dims()), ", not a single ",
            graph::name(c.input(0).type()));
  return t.data<T>()[0];
}

inline void run_clip(operator_context& c) {
  const tensor& x = c.input(0);
  for_type(c, number_types{}, x.type(), [&]<class T>() {
    const T low = clip_bound<T>(c, 1, "min", std::numeric_limits<T>::lowest());
    const T high = clip_bound<T>(c, 2, "max", (std::numeric_limits<T>::max)());
    const std::span<const T> from = x.data<T>();
    const std::span<T> to = c.make_output_over(0, {0}).mutable_data<T>();
    if constexpr (std::is_same_v<T, float>) {
      const auto clamp = detent::detail::active<kernels::float_function_kernels>().clamp;
      for_pieces(c, from.size(), cheap_piece, [&](std::size_t begin, std::size_t end) {
        clamp(from.data() + begin, end - begin, low, high, to.data() + begin);
      });
    } else {
      map_elements(
          c,
          [low, high](T element) {
            const T raised = element < low ? low : element;  // NaN passes
            return raised > high ? high : raised;
          },
          from, to, cheap_piece);
    }
  });
}

// --- Identity and Dropout ------------------------------------------------------------------------

inline void run_identity(operator_context& c) { c.share_output(0, c.input(0)); }

/// Infers the outputs of Dropout. The mask is bool since opset 10; before, it has the type of the
/// data.
inline void infer_dropout(operator_context& c) {
  const tensor& x = c.input(0);
  c.set_output(0, x.type(), x.dims());
  c.set_output(1, c.opset < 10 ? x.type() : element_type::boolean, x.dims());
}

/// Whether a Dropout node drops anything: only if training_mode is true and the ratio is not 0.
/// Both are inputs since opset 12. From opset 7 to 11, nothing is dropped.
[[nodiscard]] inline bool drops_elements(const operator_context& c) {
  if (c.opset < 12 || !c.has_input(2)) {
    return is_dropout_in_training(c.n(), c.opset);
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
  c.require_supported(!drops_elements(c), "training is not supported",
                      c.opset < 7 ? "; before opset 7, is_test is 0 by default" : "");
  c.share_output(0, c.input(0));
  if (!c.has_output(1)) {
    return;
  }
  tensor& mask = c.make_output(1);  // nothing is dropped: all ones
  std::array<std::int64_t, 1024> ones;
  ones.fill(1);
  for (std::size_t at = 0; at < mask.count(); at += ones.size()) {
    const std::size_t count = (std::min)(ones.size(), mask.count() - at);
    store(std::span<const std::int64_t>(ones).first(count), mask, at);
  }
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
    unary_operator<unary::tan>(),
    unary_operator<unary::asin>(),
    unary_operator<unary::acos>(),
    unary_operator<unary::atan>(),
    unary_operator<unary::sinh>(),
    unary_operator<unary::cosh>(),
    unary_operator<unary::asinh>(),
    unary_operator<unary::acosh>(),
    unary_operator<unary::atanh>(),
    unary_operator<unary::shrink>(),
    binary_operator<binary::add>(),
    binary_operator<binary::sub>(),
    binary_operator<binary::mul>(),
    binary_operator<binary::div>(),
    {"", "Mod", 2, 2, layout_support::elementwise, &infer_mod, &run_mod, true},
    {"", "Pow", 2, 2, layout_support::elementwise, &infer_for<power_types, &infer_pow>, &run_pow,
     true},
    fold_operator<binary::max, wide_types>("Max"),
    fold_operator<binary::min, wide_types>("Min"),
    fold_operator<binary::add, float_types>("Sum"),
    {"", "Mean", 1, any_number, layout_support::elementwise,
     &infer_widened<float_types, &infer_broadcast>, &run_mean},
    {"", "Clip", 1, 3, layout_support::elementwise, &infer_for<number_types, &infer_like_input>,
     &run_clip, true},
    {"", "Identity", 1, 1, layout_support::elementwise, &infer_like_input, &run_identity, true},
    {"", "Dropout", 1, 3, layout_support::elementwise, &infer_dropout, &run_dropout},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_ELEMENTWISE_HPP
