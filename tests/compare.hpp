// SPDX-License-Identifier: BSD-3-Clause
// Bitwise comparison of buffers. One assertion per buffer: doctest's cost more than the kernels.
//
//   CHECK(test::difference(actual, expected) == "");
#ifndef DETENT_TESTS_COMPARE_HPP
#define DETENT_TESTS_COMPARE_HPP

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string>

namespace test {

/// Equal to the bit, except that every NaN equals every NaN.
template <class T>
[[nodiscard]] bool same(T a, T b) noexcept {
  if constexpr (std::same_as<T, float>) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b);
  } else {
    return a == b;
  }
}

/// What prints as a number: the value, or the bits of types without arithmetic.
template <class T>
[[nodiscard]] auto printable(T x) noexcept {
  if constexpr (requires { +x; }) {
    return +x;
  } else {
    return +x.bits;
  }
}

/// Empty if both ranges hold the same values, else where they first differ and in how many places.
template <class Actual, class Expected>
[[nodiscard]] std::string difference(const Actual& actual, const Expected& expected) {
  const std::size_t n = std::size(expected);
  std::ostringstream text;
  if (std::size(actual) != n) {
    text << std::size(actual) << " values, not " << n;
    return text.str();
  }
  const auto* a = std::data(actual);
  const auto* e = std::data(expected);
  if (n == 0 || std::memcmp(a, e, n * sizeof *a) == 0) {
    return {};
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (!same(a[i], e[i]) && ++count == 1) {
      text << std::hexfloat << "element " << i << " of " << n << " is " << printable(a[i])
           << ", not " << printable(e[i]);
    }
  }
  if (count > 1) {
    text << "; " << count << " differ";
  }
  return text.str();
}

}  // namespace test

#endif  // DETENT_TESTS_COMPARE_HPP
