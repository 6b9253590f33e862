// SPDX-License-Identifier: BSD-3-Clause
// max_of_rows(): the largest of several rows, column by column, of floats or 8-bit integers. A max
// pool over channels-last images takes the pixels under a window as rows.
#ifndef DETENT_MAXIMA_HPP
#define DETENT_MAXIMA_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/maxima.hpp>
#include <detent/kernels/maxima.hpp>

DETENT_NAMESPACE_BEGIN

/// Computes out[i] = the largest of rows[0][i], rows[1][i], ... for each i, by applying
/// reference::larger() to the rows in their order: once one of them is NaN, the result is the last
/// NaN; of equal zeros, the first one stays. T is float, std::uint8_t or std::int8_t. The bits are
/// the same on every target.
///
/// `rows` holds the address of each row. With more than one of `pixels`, the same is done for each:
/// out has out.size() / pixels elements for each pixel, and pixel p reads the rows from element p *
/// step on. `out` must not overlap what is read. Throws invalid_argument if there are no rows, or
/// for a null address if out is not empty; shape_mismatch if out.size() is not a multiple of
/// pixels. Thread-safe.
template <class T>
requires std::same_as<T, float> || std::same_as<T, std::uint8_t> || std::same_as<T, std::int8_t>
void max_of_rows(std::span<const T* const> rows, std::span<T> out, std::size_t pixels = 1,
                 std::size_t step = 0) {
  require(!rows.empty(), error_kind::invalid_argument, "max_of_rows: no rows");
  if (out.empty()) {
    return;
  }
  require(pixels > 0 && out.size() % pixels == 0, error_kind::shape_mismatch,
          "max_of_rows: ", out.size(), " outputs for ", pixels, " pixels");
  bool present = out.data() != nullptr;
  for (const T* row : rows) {
    present = present && row != nullptr;
  }
  require(present, error_kind::invalid_argument, "max_of_rows: null data");
  detail::active<kernels::maximum_kernels<T>>().max_of_rows(
      {rows.data(), rows.size(), out.size() / pixels, pixels, step, out.data()});
}

DETENT_NAMESPACE_END

#endif  // DETENT_MAXIMA_HPP
