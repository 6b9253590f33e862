// SPDX-License-Identifier: BSD-3-Clause
// Products of sizes that cannot wrap.
#ifndef DETENT_BASE_CHECKED_SIZE_HPP
#define DETENT_BASE_CHECKED_SIZE_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <initializer_list>
#include <span>

#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The largest number of elements that an argument may have: 2^48 on 64-bit machines, more than
/// their address spaces hold. Sizes up to this may be rounded up to panels and multiplied by the
/// size of an element without wrapping.
inline constexpr std::size_t largest_size = (static_cast<std::size_t>(-1) >> 16U) + 1;

/// The product of sizes that come from the caller. Throws invalid_argument, with `where` in front,
/// if the sizes, each taken as at least 1, have a product above largest_size. (A size next to one
/// of 0 must not wrap either where it is rounded up or divided by.)
inline std::size_t checked_size(const char* where, std::span<const std::size_t> sizes) {
  std::size_t product = 1;
  // The product is below 2^bits: as a rule it fits, and nothing has to be divided.
  int bits = 0;
  for (const std::size_t size : sizes) {
    product *= size;
    bits += static_cast<int>(std::bit_width((std::max)(size, std::size_t{1})));
  }
  if (bits < static_cast<int>(std::bit_width(largest_size))) {
    return product;
  }
  product = 1;
  std::size_t left = largest_size;
  for (const std::size_t size : sizes) {
    require(size <= left, error_kind::invalid_argument, where, ": a size of ", size,
            " beside the others makes more than ", largest_size, " elements");
    left /= (std::max)(size, std::size_t{1});
    product *= size;
  }
  return product;
}
inline std::size_t checked_size(const char* where, std::initializer_list<std::size_t> sizes) {
  return checked_size(where, std::span<const std::size_t>(sizes.begin(), sizes.size()));
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_CHECKED_SIZE_HPP
