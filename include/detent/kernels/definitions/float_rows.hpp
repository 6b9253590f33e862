// SPDX-License-Identifier: BSD-3-Clause
// The table of the family of float rows.
#ifndef DETENT_KERNELS_DEFINITIONS_FLOAT_ROWS_HPP
#define DETENT_KERNELS_DEFINITIONS_FLOAT_ROWS_HPP

#include <detent/config.hpp>
#include <detent/kernels/float_rows.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/float_rows.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/float_rows-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const float_row_kernels* float_row_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)    \
  case target::id: {                                    \
    static constexpr float_row_kernels kernels = {      \
        .sums = &vectors::sums,                         \
        .square_sums = &vectors::square_sums,           \
        .largest = &vectors::largest,                   \
        .smallest = &vectors::smallest,                 \
        .add_row = &vectors::add_row,                   \
        .mean_of_rows = &vectors::mean_of_rows,         \
        .means_of_windows = &vectors::means_of_windows, \
        .blend_rows = &vectors::blend_rows,             \
        .log_softmax = &vectors::log_softmax,           \
        .softmax = &vectors::softmax,                   \
        .standardize = &vectors::standardize,           \
        .map_by_line = &vectors::map_by_line,           \
    };                                                  \
    return &kernels;                                    \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_FLOAT_ROWS_HPP
