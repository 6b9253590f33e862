// SPDX-License-Identifier: BSD-3-Clause
// Functions of one element, among them the activations, and apply_unary(), which calls the function
// of a node.
//
// Each operator has a function object, whose `types` are the element types it is for. The functions
// that networks have most, made of e^x, log, erf, tanh and the logistic function, are those of
// base/float_functions.hpp and base/elementary_functions.hpp: floats are computed in float. They
// have map(), too, which does the same to many elements by the kernels of the target. Others with
// exponentials take and return double and call the C library: the double result, rounded once to
// float, nearly never depends on the library's last bits. An object with attributes reads them in
// its constructor, which takes the node.
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
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <detent/base/elementary_functions.hpp>
#include <detent/base/float_functions.hpp>
#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/kernels/definitions/exponentials.hpp>
#include <detent/kernels/definitions/float_functions.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// f(x) rounded to T. Every use of a function object goes through this function or the next one, so
/// that all agree to the bit.
template <class F, class T>
[[nodiscard]] inline T apply(const F& f, T x) {
  return static_cast<T>(f(x));
}

/// True if a function object has map() for elements of type T, which uses the kernels of the
/// target.
template <class F, class T = float>
inline constexpr bool has_kernels = requires(const F& f, std::span<const T> x, T* y) {
  f.map(x, y);
};

/// y[i] = apply(f, x[i]). x and y have one size, and are the same memory or do not overlap.
template <class F, class T>
void apply(const F& f, std::span<const T> x, std::span<T> y) {
  if constexpr (has_kernels<F, T>) {
    f.map(x, y.data());
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

/// A function with a kernel for floats, kFloat, and one for doubles, which works in place.
template <auto kFloat, auto kDouble>
struct with_kernels {
  static void map(std::span<const float> x, float* y) {
    (detent::detail::active<kernels::float_function_kernels>().*kFloat)(x.data(), x.size(), y);
  }
  static void map(std::span<const double> x, double* y) {
    if (x.data() != y) {
      std::copy(x.begin(), x.end(), y);
    }
    (detent::detail::active<kernels::exponential_kernels>().*kDouble)(y, x.size());
  }
};

/// A function with a kernel for floats only, kFloat.
template <auto kFloat>
struct with_float_kernel {
  static void map(std::span<const float> x, float* y) {
    (detent::detail::active<kernels::float_function_kernels>().*kFloat)(x.data(), x.size(), y);
  }
};

/// y = result(x, t), where t is what the kernels of Inner make of argument(x).
template <class Inner, class T, class Argument, class Result>
void map_by(std::span<const T> x, T* y, const Argument& argument, const Result& result) {
  std::array<T, 256> t;
  for (std::size_t first = 0; first < x.size(); first += t.size()) {
    const std::span<const T> block = x.subspan(first, (std::min)(t.size(), x.size() - first));
    std::transform(block.begin(), block.end(), t.begin(), argument);
    Inner::map(std::span<const T>(t).first(block.size()), t.data());
    std::transform(block.begin(), block.end(), t.begin(), y + first, result);
  }
}

struct neg : with_float_kernel<&kernels::float_function_kernels::neg> {
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

struct abs : with_float_kernel<&kernels::float_function_kernels::abs> {
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
    return x < T{0} ? static_cast<T>(-1) : x == T{0} ? T{0} : x;  // NaN stays
  }
};

struct ceil : with_float_kernel<&kernels::float_function_kernels::ceil> {
  static constexpr std::string_view name = "Ceil";
  using types = float_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return std::ceil(x);
  }
};

struct floor : with_float_kernel<&kernels::float_function_kernels::floor> {
  static constexpr std::string_view name = "Floor";
  using types = float_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return std::floor(x);
  }
};

struct round : with_float_kernel<&kernels::float_function_kernels::round> {
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

struct sqrt : with_float_kernel<&kernels::float_function_kernels::sqrt> {
  static constexpr std::string_view name = "Sqrt";
  using types = float_types;
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return std::sqrt(x);
  }
};

struct exp
    : with_kernels<&kernels::float_function_kernels::exp, &kernels::exponential_kernels::exp> {
  static constexpr std::string_view name = "Exp";
  using types = float_types;
  template <std::floating_point T>
  [[nodiscard]] T operator()(T x) const {
    return portable_exp(x);
  }
};

struct log : with_float_kernel<&kernels::float_function_kernels::log> {
  static constexpr std::string_view name = "Log";
  using types = float_types;
  [[nodiscard]] float operator()(float x) const { return detent::detail::portable_log(x); }
  [[nodiscard]] double operator()(double x) const { return std::log(x); }
};

struct erf
    : with_kernels<&kernels::float_function_kernels::erf, &kernels::exponential_kernels::erf> {
  static constexpr std::string_view name = "Erf";
  using types = float_types;
  template <std::floating_point T>
  [[nodiscard]] T operator()(T x) const {
    return portable_erf(x);
  }
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

/// x + bias below -lambd, x - bias above lambd, 0 between and for NaN.
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
    return T{0};
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

/// positive * x for positive x, and negative * (e^(x / divisor) - 1) for others.
struct exponential_linear {
  using types = float_types;
  double positive;
  double negative;
  double divisor;
  [[nodiscard]] float operator()(float x) const {
    return detent::detail::portable_exponential_linear(
        x, static_cast<float>(positive), static_cast<float>(negative), static_cast<float>(divisor));
  }
  [[nodiscard]] double operator()(double x) const {
    return x > 0.0 ? positive * x : negative * std::expm1(x / divisor);
  }
  void map(std::span<const float> x, float* y) const {
    detent::detail::active<kernels::float_function_kernels>().exponential_linear(
        x.data(), x.size(), static_cast<float>(positive), static_cast<float>(negative),
        static_cast<float>(divisor), y);
  }
};

struct elu : exponential_linear {
  static constexpr std::string_view name = "Elu";
  explicit elu(const node& n)
      : exponential_linear{1.0, static_cast<double>(n.get_float("alpha", 1.0F)), 1.0} {}
};

struct selu : exponential_linear {
  static constexpr std::string_view name = "Selu";
  explicit selu(const node& n) : exponential_linear{1.0, 1.0, 1.0} {
    positive = static_cast<double>(n.get_float("gamma", 1.05070102214813232421875F));
    negative = positive * static_cast<double>(n.get_float("alpha", 1.67326319217681884765625F));
  }
};

struct celu : exponential_linear {
  static constexpr std::string_view name = "Celu";
  explicit celu(const node& n) : exponential_linear{1.0, 1.0, 1.0} {
    divisor = negative = static_cast<double>(n.get_float("alpha", 1.0F));
  }
};

struct thresholded_relu {
  static constexpr std::string_view name = "ThresholdedRelu";
  using types = float_types;
  float alpha;
  explicit thresholded_relu(const node& n) : alpha(n.get_float("alpha", 1.0F)) {}
  template <class T>
  [[nodiscard]] T operator()(T x) const {
    return x > static_cast<T>(alpha) ? x : T{0};  // also for NaN
  }
};

struct sigmoid : with_kernels<&kernels::float_function_kernels::logistic,
                              &kernels::exponential_kernels::logistic> {
  static constexpr std::string_view name = "Sigmoid";
  using types = float_types;
  template <std::floating_point T>
  [[nodiscard]] T operator()(T x) const {
    return portable_logistic(x);
  }
};

struct tanh
    : with_kernels<&kernels::float_function_kernels::tanh, &kernels::exponential_kernels::tanh> {
  static constexpr std::string_view name = "Tanh";
  using types = float_types;
  template <std::floating_point T>
  [[nodiscard]] T operator()(T x) const {
    return portable_tanh(x);
  }
};

struct hard_sigmoid {
  static constexpr std::string_view name = "HardSigmoid";
  using types = float_types;
  float alpha;
  float beta;
  explicit hard_sigmoid(const node& n)
      : alpha(n.get_float("alpha", 0.2F)), beta(n.get_float("beta", 0.5F)) {}
  [[nodiscard]] float operator()(float x) const {
    return detent::reference::hard_sigmoid(x, alpha, beta);
  }
  [[nodiscard]] double operator()(double x) const {
    const double line = std::fma(static_cast<double>(alpha), x, static_cast<double>(beta));
    const double raised = line < 0.0 ? 0.0 : line;
    return raised > 1.0 ? 1.0 : raised;
  }
  void map(std::span<const float> x, float* y) const {
    detent::detail::active<kernels::float_function_kernels>().hard_sigmoid(x.data(), x.size(),
                                                                           alpha, beta, y);
  }
};

struct hard_swish : with_float_kernel<&kernels::float_function_kernels::hard_swish> {
  static constexpr std::string_view name = "HardSwish";
  using types = float_types;
  [[nodiscard]] float operator()(float x) const { return detent::reference::hard_swish(x); }
  [[nodiscard]] double operator()(double x) const {
    const double line = x + 3.0;
    const double raised = line < 0.0 ? 0.0 : line;
    return x * (raised > 6.0 ? 6.0 : raised) / 6.0;
  }
};

struct softplus : with_float_kernel<&kernels::float_function_kernels::softplus> {
  static constexpr std::string_view name = "Softplus";
  using types = float_types;
  [[nodiscard]] float operator()(float x) const { return detent::detail::portable_softplus(x); }
  [[nodiscard]] double operator()(double x) const { return log_1p_exp(x); }
};

struct softsign {
  static constexpr std::string_view name = "Softsign";
  using types = float_types;
  [[nodiscard]] double operator()(double x) const { return x / (1.0 + std::fabs(x)); }
};

/// x (1 + erf(x / sqrt(2))) / 2, or its approximation by tanh, x / (1 + e^-2u) with
/// u = sqrt(2 / pi) (x + 0.044715 x^3).
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
  [[nodiscard]] float operator()(float x) const {
    return by_tanh ? detent::detail::portable_gelu_tanh(x) : detent::detail::portable_gelu(x);
  }
  [[nodiscard]] double operator()(double x) const {
    if (by_tanh) {
      constexpr double factor = 1.59576912160573071176;  // 2 sqrt(2 / pi)
      return x * portable_logistic(x * std::fma(x * x, 0.044715 * factor, factor));
    }
    constexpr double sqrt_half = 0.70710678118654752440;
    return 0.5 * x * (1.0 + portable_erf(sqrt_half * x));
  }
  void map(std::span<const float> x, float* y) const {
    const auto& kernels = detent::detail::active<kernels::float_function_kernels>();
    (by_tanh ? kernels.gelu_tanh : kernels.gelu)(x.data(), x.size(), y);
  }
};

struct swish {
  static constexpr std::string_view name = "Swish";
  using types = float_types;
  double alpha;
  explicit swish(const node& n) : alpha(static_cast<double>(n.get_float("alpha", 1.0F))) {}
  template <std::floating_point T>
  [[nodiscard]] T operator()(T x) const {
    return x * portable_logistic(static_cast<T>(alpha) * x);
  }
  void map(std::span<const float> x, float* y) const { map_as(x, y); }
  void map(std::span<const double> x, double* y) const { map_as(x, y); }

 private:
  template <class T>
  void map_as(std::span<const T> x, T* y) const {
    map_by<sigmoid>(
        x, y, [a = static_cast<T>(alpha)](T v) { return a * v; }, [](T v, T t) { return v * t; });
  }
};

struct mish : with_float_kernel<&kernels::float_function_kernels::mish> {
  static constexpr std::string_view name = "Mish";
  using types = float_types;
  [[nodiscard]] float operator()(float x) const { return detent::detail::portable_mish(x); }
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
