// SPDX-License-Identifier: BSD-3-Clause
// Quantization of rows with parameters of their own, in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_DYNAMIC_QUANTIZE_HPP
#define DETENT_KERNELS_PORTABLE_DYNAMIC_QUANTIZE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/kernels/elementwise.hpp>
#include <detent/kernels/portable/elementwise.hpp>
#include <detent/kernels/portable/statistics.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// reference::params_from_range without branches on the range; see there.
inline float params_of_range(const min_max_result& range, const dynamic_rows_args& a,
                             std::int32_t* zero_point) noexcept {
  constexpr double rounding_bias_of_doubles = 6755399441055744.0;  // 1.5 * 2^52
  const double lower = range.lower < 0.0F ? static_cast<double>(range.lower) : 0.0;
  const double upper = range.upper > 0.0F ? static_cast<double>(range.upper) : 0.0;
  const std::int32_t middle = (a.qmin + a.qmax + 1) >> 1;
  const std::int32_t half = a.qmax - middle < middle - a.qmin ? a.qmax - middle : middle - a.qmin;
  const double magnitude = -lower > upper ? -lower : upper;
  const double extent = a.symmetric ? magnitude : upper - lower;
  const double steps = a.symmetric ? half : a.qmax - a.qmin;
  float scale = static_cast<float>(extent / steps);
  if (static_cast<double>(scale) * steps < extent) {
    scale = std::nextafter(scale, std::numeric_limits<float>::infinity());
  }
  constexpr float smallest = std::numeric_limits<float>::min();
  scale = extent > 0.0 ? (scale < smallest ? smallest : scale) : 1.0F;
  const double z = (-lower / static_cast<double>(scale) + rounding_bias_of_doubles) -
                   rounding_bias_of_doubles + a.qmin;
  *zero_point = a.symmetric ? middle : z < a.qmax ? static_cast<std::int32_t>(z) : a.qmax;
  return scale;
}

template <class Code>
std::size_t dynamic_rows(const float* x, const dynamic_rows_args& a,
                         typename Code::storage* q) noexcept {
  for (std::size_t r = 0; r < a.rows; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    const float* from = x + row * a.in_stride;
    a.scale[r] = params_of_range(min_max(from, a.columns), a, a.zero_point + r);
    if (!(a.scale[r] <= std::numeric_limits<float>::max())) {
      return r;
    }
    elementwise_args e;
    e.columns = a.columns;
    e.scale = a.scale + r;
    e.zero_point = a.zero_point + r;
    e.qmin = a.qmin;
    e.qmax = a.qmax;
    quantize<Code>(from, e, q + row * a.out_stride);
  }
  return a.rows;
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_DYNAMIC_QUANTIZE_HPP
