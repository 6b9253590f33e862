// SPDX-License-Identifier: BSD-3-Clause
// The bits of floating-point numbers, for tests that compare to the bit. Which NaN a result is does
// not matter: all have the same bits here.
#ifndef DETENT_TESTS_BITS_HPP
#define DETENT_TESTS_BITS_HPP

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace test {

template <std::floating_point T>
using bits_type = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <std::floating_point T>
bits_type<T> bits_of(T x) {
  return std::isnan(x) ? static_cast<bits_type<T>>(-1) : std::bit_cast<bits_type<T>>(x);
}
template <std::floating_point T>
std::vector<bits_type<T>> bits_of(const std::vector<T>& x) {
  std::vector<bits_type<T>> bits;
  for (const T value : x) {
    bits.push_back(bits_of(value));
  }
  return bits;
}

}  // namespace test

#endif  // DETENT_TESTS_BITS_HPP
