// SPDX-License-Identifier: BSD-3-Clause
// The table of the family of statistics.
#ifndef DETENT_KERNELS_DEFINITIONS_STATISTICS_HPP
#define DETENT_KERNELS_DEFINITIONS_STATISTICS_HPP

#include <detent/config.hpp>
#include <detent/kernels/statistics.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/statistics.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/reduce-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const statistics_kernels* statistics_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)  \
  case target::id: {                                  \
    static constexpr statistics_kernels kernels = {   \
        .min_max = &vectors::min_max,                 \
        .min_max_columns = &vectors::min_max_columns, \
        .bin_positions = &vectors::bin_positions,     \
        .sum_u8 = &vectors::sum_codes<std::uint8_t>,  \
        .sum_s8 = &vectors::sum_codes<std::int8_t>,   \
    };                                                \
    return &kernels;                                  \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_STATISTICS_HPP
