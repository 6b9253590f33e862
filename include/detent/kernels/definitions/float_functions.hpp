// SPDX-License-Identifier: BSD-3-Clause
// The table of the family of float functions.
#ifndef DETENT_KERNELS_DEFINITIONS_FLOAT_FUNCTIONS_HPP
#define DETENT_KERNELS_DEFINITIONS_FLOAT_FUNCTIONS_HPP

#include <detent/config.hpp>
#include <detent/kernels/float_functions.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/float_functions.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/float_functions-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const float_function_kernels* float_function_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)        \
  case target::id: {                                        \
    static constexpr float_function_kernels kernels = {     \
        .exp = &vectors::exp,                               \
        .erf = &vectors::erf,                               \
        .tanh = &vectors::tanh,                             \
        .logistic = &vectors::logistic,                     \
        .log = &vectors::log,                               \
        .softplus = &vectors::softplus,                     \
        .mish = &vectors::mish,                             \
        .gelu = &vectors::gelu,                             \
        .gelu_tanh = &vectors::gelu_tanh,                   \
        .abs = &vectors::abs,                               \
        .neg = &vectors::neg,                               \
        .sqrt = &vectors::sqrt,                             \
        .hard_swish = &vectors::hard_swish,                 \
        .floor = &vectors::floor,                           \
        .ceil = &vectors::ceil,                             \
        .round = &vectors::round,                           \
        .exponential_linear = &vectors::exponential_linear, \
        .hard_sigmoid = &vectors::hard_sigmoid,             \
        .clamp = &vectors::clamp,                           \
    };                                                      \
    return &kernels;                                        \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_FLOAT_FUNCTIONS_HPP
