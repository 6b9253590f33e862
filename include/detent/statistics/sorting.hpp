// SPDX-License-Identifier: BSD-3-Clause
// Sorts the bit patterns of floats, for distributions of weights.
#ifndef DETENT_STATISTICS_SORTING_HPP
#define DETENT_STATISTICS_SORTING_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Sorts what is nearly in order, and anything else in n log n steps.
template <class T, class Less = std::less<T>>
void sort_nearly_sorted(std::span<T> x, const Less& less = {}) {
  std::size_t moves = 16 * x.size();  // beyond these, moving one by one does not pay
  for (std::size_t i = 1; i < x.size(); ++i) {
    if (!less(x[i], x[i - 1])) {
      continue;
    }
    const T value = x[i];
    std::size_t at = i;
    for (; at > 0 && less(value, x[at - 1]); --at) {
      x[at] = x[at - 1];
    }
    x[at] = value;
    if (i - at > moves) {
      std::sort(x.begin(), x.end(), less);
      return;
    }
    moves -= i - at;
  }
}

/// Moves numbers to `to` in the order of the digit (x - least) >> shift, equal digits in the order
/// they have.
template <int Bits>
void sort_by_digit(std::span<const std::uint32_t> from, std::span<std::uint32_t> to,
                   std::uint32_t least, int shift) noexcept {
  constexpr std::uint32_t mask = (1U << Bits) - 1;
  std::array<std::uint32_t, std::size_t{1} << Bits> place{};
  for (const std::uint32_t x : from) {
    ++place[((x - least) >> shift) & mask];
  }
  std::uint32_t sum = 0;
  for (std::uint32_t& p : place) {
    sum += std::exchange(p, sum);
  }
  for (const std::uint32_t x : from) {
    to[place[((x - least) >> shift) & mask]++] = x;
  }
}

/// Sorts numbers in ascending order: by two or three digits that hold the leading bits of their
/// differences, then one by one. `buffer` is resized. From 2^32 numbers on, places do not fit the
/// tables of digits, and std::sort does it.
inline void sort_ascending(std::vector<std::uint32_t>& x, std::vector<std::uint32_t>& buffer) {
  constexpr std::size_t few = 24;
  constexpr std::size_t many = 8192;
  if (x.size() <= few) {
    sort_nearly_sorted(std::span(x));
    return;
  }
  if (x.size() >> 32 != 0) {
    std::sort(x.begin(), x.end());
    return;
  }
  std::uint32_t least = x[0];
  std::uint32_t largest = x[0];
  for (const std::uint32_t value : x) {
    least = (std::min)(least, value);
    largest = (std::max)(largest, value);
  }
  buffer.resize(x.size());
  const int width = static_cast<int>(std::bit_width(largest - least));
  const auto sort = [&]<int Bits>(int passes, std::integral_constant<int, Bits>) {
    const int dropped = (std::max)(0, width - passes * Bits);
    for (int shift = dropped; shift < width; shift += Bits) {
      sort_by_digit<Bits>(x, buffer, least, shift);
      x.swap(buffer);
    }
    if (dropped > 0) {
      sort_nearly_sorted(std::span(x));
    }
  };
  if (x.size() <= many) {
    sort(2, std::integral_constant<int, 8>{});
  } else {
    sort(3, std::integral_constant<int, 11>{});
  }
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_STATISTICS_SORTING_HPP
