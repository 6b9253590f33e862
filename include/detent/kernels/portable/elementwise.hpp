// SPDX-License-Identifier: BSD-3-Clause
// quantize, dequantize and requantize in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_ELEMENTWISE_HPP
#define DETENT_KERNELS_PORTABLE_ELEMENTWISE_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/elementwise.hpp>
#include <detent/kernels/portable/grid.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// Element i of a row of codes.
template <class Code>
std::int32_t get_code(const typename Code::storage* row, std::size_t i) noexcept {
  if constexpr (Code::bits == 4) {
    const std::int32_t nibble = row[i / 2] >> (i % 2 * 4) & 15;
    return Code::is_signed ? (nibble ^ 8) - 8 : nibble;
  } else {
    return row[i];
  }
}

/// Sets it; of the elements of a byte, the lower ones first.
template <class Code>
void set_code(typename Code::storage* row, std::size_t i, std::int32_t v) noexcept {
  using storage = typename Code::storage;
  if constexpr (Code::bits == 4) {
    const unsigned nibble = static_cast<unsigned>(v) & 15U;
    row[i / 2] = static_cast<storage>(i % 2 == 0 ? nibble : row[i / 2] | nibble << 4);
  } else {
    row[i] = static_cast<storage>(v);
  }
}

/// The distance in storage units of elements that are `elements` apart.
template <class Code>
constexpr std::ptrdiff_t storage_offset(std::ptrdiff_t elements) noexcept {
  return Code::bits == 4 ? elements / 2 : elements;
}

/// Calls f(row, first parameter of the row) for each row.
template <class F>
void for_each_row(const elementwise_args& a, const F& f) noexcept {
  for (std::size_t r = 0; r < a.rows; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    f(row, row * a.parameter_step);
  }
}

template <class Code>
void quantize(const float* x, const elementwise_args& a, typename Code::storage* q) noexcept {
  for_each_row(a, [&](std::ptrdiff_t row, std::ptrdiff_t parameter) {
    const float* from = x + row * a.in_stride;
    typename Code::storage* to = q + storage_offset<Code>(row * a.out_stride);
    const float* scale = a.scale + parameter;
    const std::int32_t* zero_point = a.zero_point + parameter;
    const std::size_t step = a.per_column ? 1 : 0;
    for (std::size_t c = 0; c < a.columns; ++c) {
      set_code<Code>(to, c,
                     to_grid(from[c] / scale[c * step], zero_point[c * step], a.qmin, a.qmax));
    }
  });
}

template <class Code>
void dequantize(const typename Code::storage* q, const elementwise_args& a, float* x) noexcept {
  for_each_row(a, [&](std::ptrdiff_t row, std::ptrdiff_t parameter) {
    const typename Code::storage* from = q + storage_offset<Code>(row * a.in_stride);
    float* to = x + row * a.out_stride;
    const float* scale = a.scale + parameter;
    const std::int32_t* zero_point = a.zero_point + parameter;
    const std::size_t step = a.per_column ? 1 : 0;
    for (std::size_t c = 0; c < a.columns; ++c) {
      const std::int32_t value = get_code<Code>(from, c);
      to[c] = static_cast<float>(value - zero_point[c * step]) * scale[c * step];
    }
  });
}

template <class Code>
void requantize(const std::int32_t* acc, const elementwise_args& a,
                typename Code::storage* q) noexcept {
  for_each_row(a, [&](std::ptrdiff_t row, std::ptrdiff_t parameter) {
    const std::int32_t* from = acc + row * a.in_stride;
    typename Code::storage* to = q + row * a.out_stride;
    const float* multiplier = a.scale + parameter;
    const std::int32_t* zero_point = a.zero_point + parameter;
    const std::size_t step = a.per_column ? 1 : 0;
    for (std::size_t c = 0; c < a.columns; ++c) {
      const std::uint32_t bias =
          a.bias == nullptr ? 0U
                            : wrapping(a.bias[parameter + static_cast<std::ptrdiff_t>(c * step)]);
      const auto sum = static_cast<std::int32_t>(wrapping(from[c]) + bias);
      set_code<Code>(to, c,
                     to_grid(static_cast<float>(sum) * multiplier[c * step], zero_point[c * step],
                             a.qmin, a.qmax));
    }
  });
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_ELEMENTWISE_HPP
