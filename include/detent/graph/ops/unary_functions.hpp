// SPDX-License-Identifier: BSD-3-Clause
// Functions of one element, among them the activations, and apply_unary(), which calls the function
// of a node.
//
// Each operator has a function object, whose `types` are the element types it is for. Objects with
// exponentials take and return double, also for float elements. Those that networks have most, made
// of e^x, erf, tanh and the logistic function, are those of base/elementary_functions.hpp. They
// have replace(), too, which does the same to many doubles in place by the kernels of the target.
// The others call the C library: the double result, rounded once to float, nearly never depends on
// the library's last bits. An object with attributes reads them in its constructor, which takes the
// node.
//
// NaN passes through all functions: conditions are written so that NaN takes the branch that keeps
// it. Where a product is added to something, either the product is exact in double for float
// elements or std::fma is called, so that it does not matter whether the compiler contracts.
#ifndef DETENT_GRAPH_OPS_UNARY_FUNCTIONS_HPP
#define DETENT_GRAPH_OPS_UNARY_FUNCTIONS_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/kernels/definitions/exponentials.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// f(x) rounded to T. Every use of a function object goes through this function or the next one, so
/// that all agree to the bit.
template <class F, class T>
[[nodiscard]] inline T apply(const F& f, T x) {
  return static_cast<T>(f(x));
}

/// y[i] = apply(f, x[i]). x and y have one size, and are the same memory or do not overlap.
template <class F, class T>
void apply(const F& f, std::span<const T> x, std::span<T> y) {
  if constexpr (requires(std::span<double> values) { f.replace(values); }) {
    std::array<double, 256> block;
    for (std::size_t first = 0; first < x.size(); first += block.size()) {
      const std::size_t count = (std::min)(block.size(), x.size() - first);
      for (std::size_t i = 0; i < count; ++i) {
        block[i] = static_cast<double>(x[first + i]);
      }
      f.replace(std::span<double>(block).first(count));
      for (std::size_t i = 0; i < count; ++i) {
        y[first + i] = static_cast<T>(block[i]);
      }
    }
  } else {
    const T* from = x.data();
    T* to = y.data();
    for (std::size_t i = 0; i < x.size(); ++i) {
      to[i] = apply(f, from[i]);
    }
  }
}

namespace unary {

using detent::detail::portable_erf;
using detent::detail::portable_exp;
using detent::detail::portable_logistic;
using detent::detail::portable_tanh;

/// The kernels of exponentials for this machine.
[[nodiscard]] inline const kernels::exponential_kernels& exponentials() {
  return detent::detail::active<kernels::exponential_kernels>();
}

/// Replaces each x by result(x, t), where t is what the kernel makes of argument(x).
template <class Argument, class Result>
void replace_by(std::span<double> x, void (*kernel)(double*, std::size_t) noexcept,
                const Argument& argument, const Result& result) {
  std::array<double, 256> t;
  for (std::size_t first = 0; first < x.size(); first += t.size()) {
    const std::span<double> block = x.subspan(first, (std::min)(t.size(), x.size() - first));
    std::transform(block.begin(), block.end(), t.begin(), argument);
    kernel(t.data(), block.size());
    std::transform(block.begin(), block.end(), t.begin(), block.begin(), result);
  }
}

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
  [[nodiscard]] double operator()(double x) const { return portable_exp(x); }
  void replace(std::span<double> x) const { exponentials().exp(x.data(), x.size()); }
};

struct log {
  static constexpr std::string_view name = "Log";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::log(x); }
};

struct erf {
  static constexpr std::string_view name = "Erf";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return portable_erf(x); }
  void replace(std::span<double> x) const { exponentials().erf(x.data(), x.size()); }
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

struct tan {
  static constexpr std::string_view name = "Tan";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::tan(x); }
};

struct asin {
  static constexpr std::string_view name = "Asin";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::asin(x); }
};

struct acos {
  static constexpr std::string_view name = "Acos";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::acos(x); }
};

struct atan {
  static constexpr std::string_view name = "Atan";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::atan(x); }
};

struct sinh {
  static constexpr std::string_view name = "Sinh";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::sinh(x); }
};

struct cosh {
  static constexpr std::string_view name = "Cosh";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::cosh(x); }
};

struct asinh {
  static constexpr std::string_view name = "Asinh";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::asinh(x); }
};

struct acosh {
  static constexpr std::string_view name = "Acosh";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::acosh(x); }
};

struct atanh {
  static constexpr std::string_view name = "Atanh";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return std::atanh(x); }
};

/// x < 0 ? x * factor : x. The factor is selected by its bits, because GCC compiles every other
/// form that treats infinities, NaN and -0 correctly to a jump and does not vectorize it.
template <class T>
[[nodiscard]] inline T scale_negative(T x, T factor) {
  if constexpr (std::is_integral_v<T>) {
    return x < T{0} ? static_cast<T>(wide(x) * wide(factor)) : x;
  } else {
    using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    const bits negative = bits{0} - static_cast<bits>(x < T{0});
    return x * std::bit_cast<T>((std::bit_cast<bits>(factor) & negative) |
                                (std::bit_cast<bits>(T{1}) & ~negative));
  }
}

/// x + bias below -lambd, x - bias above lambd, 0 between.
struct shrink {
  static constexpr std::string_view name = "Shrink";
  using types = float_types;
  float bias;
  float lambd;
  explicit shrink(const node& n)
      : bias(n.get_float("bias", 0.0F)), lambd(n.get_float("lambd", 0.5F)) {}
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    if (x < -static_cast<T>(lambd)) {
      return x + static_cast<T>(bias);
    }
    if (x > static_cast<T>(lambd)) {
      return x - static_cast<T>(bias);
    }
    return x == x ? T{0} : x;
  }
};

/// log(1 + e^x), without overflow.
[[nodiscard]] inline double log_1p_exp(double x) {
  return x > 0.0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

struct relu {
  static constexpr std::string_view name = "Relu";
  using types = number_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return x < T{0} ? T{0} : x;
  }
};

struct leaky_relu {
  static constexpr std::string_view name = "LeakyRelu";
  using types = float_types;
  float alpha;
  explicit leaky_relu(const node& n) : alpha(n.get_float("alpha", 0.01F)) {}
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return scale_negative(x, static_cast<T>(alpha));
  }
};

struct elu {
  static constexpr std::string_view name = "Elu";
  using types = float_types;
  double alpha;
  explicit elu(const node& n) : alpha(static_cast<double>(n.get_float("alpha", 1.0F))) {}
  [[nodiscard]] double operator()(double x) const { return x < 0.0 ? alpha * std::expm1(x) : x; }
};

struct selu {
  static constexpr std::string_view name = "Selu";
  using types = float_types;
  double alpha;
  double gamma;
  explicit selu(const node& n)
      : alpha(static_cast<double>(n.get_float("alpha", 1.67326319217681884765625F))),
        gamma(static_cast<double>(n.get_float("gamma", 1.05070102214813232421875F))) {}
  [[nodiscard]] double operator()(double x) const {
    return gamma * (x > 0.0 ? x : alpha * std::expm1(x));
  }
};

struct celu {
  static constexpr std::string_view name = "Celu";
  using types = float_types;
  double alpha;
  explicit celu(const node& n) : alpha(static_cast<double>(n.get_float("alpha", 1.0F))) {}
  [[nodiscard]] double operator()(double x) const {
    return x > 0.0 ? x : alpha * std::expm1(x / alpha);
  }
};

struct thresholded_relu {
  static constexpr std::string_view name = "ThresholdedRelu";
  using types = float_types;
  float alpha;
  explicit thresholded_relu(const node& n) : alpha(n.get_float("alpha", 1.0F)) {}
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return x <= static_cast<T>(alpha) ? T{0} : x;
  }
};

struct sigmoid {
  static constexpr std::string_view name = "Sigmoid";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return portable_logistic(x); }
  void replace(std::span<double> x) const { exponentials().logistic(x.data(), x.size()); }
};

struct tanh {
  static constexpr std::string_view name = "Tanh";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return portable_tanh(x); }
  void replace(std::span<double> x) const { exponentials().tanh(x.data(), x.size()); }
};

struct hard_sigmoid {
  static constexpr std::string_view name = "HardSigmoid";
  using types = float_types;
  double alpha;
  double beta;
  explicit hard_sigmoid(const node& n)
      : alpha(static_cast<double>(n.get_float("alpha", 0.2F))),
        beta(static_cast<double>(n.get_float("beta", 0.5F))) {}
  [[nodiscard]] double operator()(double x) const {
    const double line = alpha * x + beta;
    const double raised = line < 0.0 ? 0.0 : line;
    return raised > 1.0 ? 1.0 : raised;
  }
};

struct hard_swish {
  static constexpr std::string_view name = "HardSwish";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const {
    const double line = x + 3.0;
    const double raised = line < 0.0 ? 0.0 : line;
    return x * (raised > 6.0 ? 6.0 : raised) / 6.0;
  }
};

struct softplus {
  static constexpr std::string_view name = "Softplus";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return log_1p_exp(x); }
};

struct softsign {
  static constexpr std::string_view name = "Softsign";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return x / (1.0 + std::fabs(x)); }
};

struct gelu {
  static constexpr std::string_view name = "Gelu";
  using types = float_types;
  bool by_tanh;
  explicit gelu(const node& n) {
    const std::string approximate = n.get_string("approximate", "none");
    by_tanh = approximate == "tanh";
    if (!by_tanh && approximate != "none") {
      detent::raise(
          error_kind::bad_file,
          detent::detail::message(n.label(), ": no approximation is called '", approximate, "'"));
    }
  }
  [[nodiscard]] double operator()(double x) const {
    return half_of(x, by_tanh ? portable_tanh(argument_of_tanh(x)) : portable_erf(sqrt_half * x));
  }
  void replace(std::span<double> x) const {
    if (by_tanh) {
      replace_by(x, exponentials().tanh, argument_of_tanh, half_of);
    } else {
      replace_by(
          x, exponentials().erf, [](double v) { return sqrt_half * v; }, half_of);
    }
  }

 private:
  static constexpr double sqrt_half = 0.70710678118654752440;
  [[nodiscard]] static double argument_of_tanh(double x) {
    constexpr double sqrt_2_over_pi = 0.79788456080286535588;
    return sqrt_2_over_pi * std::fma(0.044715 * x * x, x, x);
  }
  [[nodiscard]] static double half_of(double x, double t) { return 0.5 * x * (1.0 + t); }
};

struct swish {
  static constexpr std::string_view name = "Swish";
  using types = float_types;
  double alpha;
  explicit swish(const node& n) : alpha(static_cast<double>(n.get_float("alpha", 1.0F))) {}
  [[nodiscard]] double operator()(double x) const { return x * portable_logistic(alpha * x); }
  void replace(std::span<double> x) const {
    replace_by(
        x, exponentials().logistic, [this](double v) { return alpha * v; },
        [](double v, double t) { return v * t; });
  }
};

struct mish {
  static constexpr std::string_view name = "Mish";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return x * portable_tanh(log_1p_exp(x)); }
};

}  // namespace unary

using unary_functions =
    type_list<unary::neg, unary::abs, unary::sign, unary::ceil, unary::floor, unary::round,
              unary::reciprocal, unary::sqrt, unary::exp, unary::log, unary::erf, unary::sin,
              unary::cos, unary::tan, unary::asin, unary::acos, unary::atan, unary::sinh,
              unary::cosh, unary::asinh, unary::acosh, unary::atanh, unary::shrink>;

using activation_functions =
    type_list<unary::relu, unary::leaky_relu, unary::elu, unary::selu, unary::celu,
              unary::thresholded_relu, unary::sigmoid, unary::tanh, unary::hard_sigmoid,
              unary::hard_swish, unary::softplus, unary::softsign, unary::gelu, unary::swish,
              unary::mish>;

/// The function object F for a node, with its attributes if it has some.
template <class F>
[[nodiscard]] F make_function(const node& n) {
  if constexpr (std::is_constructible_v<F, const node&>) {
    return F(n);
  } else {
    return F{};
  }
}

/// Calls visit.operator()<F>() with the type of the node's function object. Returns false, without
/// a call, if it is not in the list.
template <class... Functions, class Visitor>
bool visit_function(type_list<Functions...>, const node& n, const Visitor& visit) {
  return ((n.is(Functions::name) && (visit.template operator()<Functions>(), true)) || ...);
}

/// visit_function() among all functions of this file.
template <class Visitor>
bool visit_unary(const node& n, const Visitor& visit) {
  return visit_function(activation_functions{}, n, visit) ||
         visit_function(unary_functions{}, n, visit);
}

/// True if the node computes a function of single elements: the activations except PRelu, and Neg,
/// Abs, Exp, ... A table of its results for all values of a quantized input then says all about the
/// node.
[[nodiscard]] inline bool is_unary_activation(const node& n) {
  return visit_unary(n, []<class F>() {});
}

/// The result of a node of which is_unary_activation() is true for the element x, to the bit what
/// the executor computes. Throws unsupported for any other node. The opset does not matter, because
/// the functions are the same in all of them.
[[nodiscard]] inline float apply_unary(const node& n, std::int64_t /*opset*/, float x) {
  float y = 0.0F;
  const bool known = visit_unary(n, [&]<class F>() { y = apply(make_function<F>(n), x); });
  detent::require(known, error_kind::unsupported, n.label(), " is no unary function");
  return y;
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_UNARY_FUNCTIONS_HPP
