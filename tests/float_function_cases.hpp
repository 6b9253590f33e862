// SPDX-License-Identifier: BSD-3-Clause
// The functions of floats: kernels, definitions, exact results in double, and the errors that
// base/float_functions.hpp promises.
#ifndef DETENT_TESTS_FLOAT_FUNCTION_CASES_HPP
#define DETENT_TESTS_FLOAT_FUNCTION_CASES_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include <detent/base/float_functions.hpp>
#include <detent/kernels/definitions/float_functions.hpp>

namespace test {

using detent::kernels::float_function_kernels;

struct float_function {
  const char* name;
  void (*run)(const float_function_kernels& kernels, const float* x, std::size_t n, float* y);
  float (*definition)(float) noexcept;
  double (*exact)(double);
  double error;  // in units of the last place of the exact result, as float_functions.hpp says
  /// Units are those of this number, where the exact result is smaller.
  double (*size)(double) = [](double) { return 0.0; };
};

/// Calls a kernel that needs nothing else.
template <auto kKernel>
void run(const float_function_kernels& kernels, const float* x, std::size_t n, float* y) {
  (kernels.*kKernel)(x, n, y);
}

/// Calls the kernel of exponential linear units: x, and e^(x / divisor) - 1 for x that are not
/// positive.
template <int kDivisor>
void run_exponential_linear(const float_function_kernels& kernels, const float* x, std::size_t n,
                            float* y) {
  kernels.exponential_linear(x, n, 1.0F, 1.0F, static_cast<float>(kDivisor), y);
}

inline const float_function float_functions[] = {
    {"exp", &run<&float_function_kernels::exp>, &detent::detail::portable_exp,
     [](double x) { return std::exp(x); }, 1.02},
    {"erf", &run<&float_function_kernels::erf>, &detent::detail::portable_erf,
     [](double x) { return std::erf(x); }, 1.14},
    {"tanh", &run<&float_function_kernels::tanh>, &detent::detail::portable_tanh,
     [](double x) { return std::tanh(x); }, 2.61},
    {"logistic", &run<&float_function_kernels::logistic>, &detent::detail::portable_logistic,
     [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, 2.41},
    {"expm1 of numbers below zero", &run_exponential_linear<1>,
     [](float x) noexcept {
       return detent::detail::portable_exponential_linear(x, 1.0F, 1.0F, 1.0F);
     },
     [](double x) { return x > 0.0 ? x : std::expm1(x); }, 1.47},
    {"expm1 of numbers above zero", &run_exponential_linear<-1>,
     [](float x) noexcept {
       return detent::detail::portable_exponential_linear(x, 1.0F, 1.0F, -1.0F);
     },
     [](double x) { return x > 0.0 ? x : std::expm1(-x); }, 1.47},
    {"log", &run<&float_function_kernels::log>, &detent::detail::portable_log,
     [](double x) { return std::log(x); }, 0.92},
    {"softplus", &run<&float_function_kernels::softplus>, &detent::detail::portable_softplus,
     [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }, 1.75},
    {"mish", &run<&float_function_kernels::mish>, &detent::detail::portable_mish,
     [](double x) {
       const double e = std::exp(std::min(x, 300.0));
       const double n = e * (e + 2.0);
       return x * (n / (n + 2.0));
     },
     4.66, [](double) { return 0x1p-118; }},
    {"gelu", &run<&float_function_kernels::gelu>, &detent::detail::portable_gelu,
     [](double x) { return 0.5 * x * std::erfc(-0.70710678118654752440 * x); }, 2.0,
     [](double x) { return x < 0.0 ? -x / 2.0 : x; }},
    {"gelu_tanh", &run<&float_function_kernels::gelu_tanh>, &detent::detail::portable_gelu_tanh,
     [](double x) {
       const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
       return x * (1.0 / (1.0 + std::exp(-2.0 * u)));
     },
     2.0, [](double x) { return std::fabs(x); }},
    {"hard_swish", &run<&float_function_kernels::hard_swish>, &detent::reference::hard_swish,
     [](double x) { return x * std::clamp(x + 3.0, 0.0, 6.0) / 6.0; }, 3.0},
    {"floor", &run<&float_function_kernels::floor>, [](float x) noexcept { return std::floor(x); },
     [](double x) { return std::floor(x); }, 0.0},
    {"ceil", &run<&float_function_kernels::ceil>, [](float x) noexcept { return std::ceil(x); },
     [](double x) { return std::ceil(x); }, 0.0},
    {"round", &run<&float_function_kernels::round>,
     [](float x) noexcept { return std::nearbyint(x); }, [](double x) { return std::nearbyint(x); },
     0.0},
    {"abs", &run<&float_function_kernels::abs>, [](float x) noexcept { return std::fabs(x); },
     [](double x) { return std::fabs(x); }, 0.0},
    {"neg", &run<&float_function_kernels::neg>, [](float x) noexcept { return -x; },
     [](double x) { return -x; }, 0.0},
    {"sqrt", &run<&float_function_kernels::sqrt>, [](float x) noexcept { return std::sqrt(x); },
     [](double x) { return std::sqrt(x); }, 0.5},
};

/// How far a result is from the exact one, in units of the last place of a float that is as large
/// as the exact one or `size`.
inline double error_in_units(float result, double exact, double size) {
  const auto rounded = static_cast<float>(exact);
  if (std::isinf(rounded) || std::isinf(result) || std::isnan(exact)) {
    const bool same = rounded == result || (std::isnan(exact) && std::isnan(result));
    return same ? 0.0 : std::numeric_limits<double>::infinity();
  }
  int exponent = 0;
  std::frexp(std::max(std::fabs(exact), size), &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(static_cast<double>(result) - exact) / unit;
}

}  // namespace test

#endif  // DETENT_TESTS_FLOAT_FUNCTION_CASES_HPP
