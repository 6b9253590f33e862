// SPDX-License-Identifier: BSD-3-Clause
// What integer products must store, from their exact sum; shared by the tests of gemm and
// convolution.
#ifndef DETENT_TESTS_ORACLE_HPP
#define DETENT_TESTS_ORACLE_HPP

#include <concepts>
#include <cstdint>

#include <detent/detent.hpp>

namespace test {

/// The value stored for the sum `acc` of a column whose weights have `scale`.
template <class T>
[[nodiscard]] T stored_value(std::int64_t acc, float scale, const detent::epilogue_options& o) {
  const auto sum = static_cast<std::int32_t>(acc);
  if constexpr (std::same_as<T, std::int32_t>) {
    return sum;
  } else if constexpr (std::same_as<T, float>) {
    const float multiplier = o.lhs_scale * scale;
    return detent::reference::clamp(static_cast<float>(sum) * multiplier, o.lower, o.upper);
  } else {
    const float multiplier =
        detent::reference::requantize_multiplier(o.lhs_scale, scale, o.output.scale);
    const detent::grid levels = o.levels.qmin > o.levels.qmax ? detent::full_grid<T> : o.levels;
    return static_cast<T>(
        detent::reference::requantize(sum, multiplier, o.output.zero_point, levels));
  }
}

}  // namespace test

#endif  // DETENT_TESTS_ORACLE_HPP
