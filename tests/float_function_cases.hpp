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
  void (*float_function_kernels::*kernel)(const float*, std::size_t, float*) noexcept;
  float (*definition)(float) noexcept;
  double (*exact)(double);
  double error;  // in units of the last place of the exact result, as float_functions.hpp says
};

inline const float_function float_functions[] = {
    {"exp", &float_function_kernels::exp, &detent::detail::portable_exp,
     [](double x) { return std::exp(x); }, 1.02},
    {"erf", &float_function_kernels::erf, &detent::detail::portable_erf,
     [](double x) { return std::erf(x); }, 1.14},
    {"tanh", &float_function_kernels::tanh, &detent::detail::portable_tanh,
     [](double x) { return std::tanh(x); }, 2.61},
    {"logistic", &float_function_kernels::logistic, &detent::detail::portable_logistic,
     [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, 2.41},
    {"hard_swish", &float_function_kernels::hard_swish, &detent::reference::hard_swish,
     [](double x) { return x * std::clamp(x + 3.0, 0.0, 6.0) / 6.0; }, 3.0},
    {"floor", &float_function_kernels::floor, [](float x) noexcept { return std::floor(x); },
     [](double x) { return std::floor(x); }, 0.0},
    {"ceil", &float_function_kernels::ceil, [](float x) noexcept { return std::ceil(x); },
     [](double x) { return std::ceil(x); }, 0.0},
    {"round", &float_function_kernels::round, [](float x) noexcept { return std::nearbyint(x); },
     [](double x) { return std::nearbyint(x); }, 0.0},
    {"sqrt", &float_function_kernels::sqrt, [](float x) noexcept { return std::sqrt(x); },
     [](double x) { return std::sqrt(x); }, 0.5},
};

/// How far a result is from the exact one, in units of the last place of a float.
inline double error_in_units(float result, double exact) {
  const auto rounded = static_cast<float>(exact);
  if (std::isinf(rounded) || std::isinf(result) || std::isnan(exact)) {
    const bool same = rounded == result || (std::isnan(exact) && std::isnan(result));
    return same ? 0.0 : std::numeric_limits<double>::infinity();
  }
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(static_cast<double>(result) - exact) / unit;
}

}  // namespace test

#endif  // DETENT_TESTS_FLOAT_FUNCTION_CASES_HPP
