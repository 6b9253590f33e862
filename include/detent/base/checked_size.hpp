// SPDX-License-Identifier: BSD-3-Clause
// Products of sizes that cannot wrap.
#ifndef DETENT_BASE_CHECKED_SIZE_HPP
#define DETENT_BASE_CHECKED_SIZE_HPP

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <utility>

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
inline std::size_t checked_size(const char* where, std::initializer_list<std::size_t> sizes) {
  std::size_t product = 1;
  std::size_t left = largest_size;
  for (const std::size_t size : sizes) {
    require(size <= left, error_kind::invalid_argument, where, ": a size of ", size,
            " beside the others makes more than ", largest_size, " elements");
    left /= (std::max)(size, std::size_t{1});
    product *= size;
  }
  return product;
}

/// A value that is T{} again after it was moved from, for members that describe other members which
/// a move empties.
template <class T>
class emptied_by_move {
 public:
  emptied_by_move() = default;
  emptied_by_move(T value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)
  emptied_by_move(const emptied_by_move&) = default;
  emptied_by_move& operator=(const emptied_by_move&) = default;
  emptied_by_move(emptied_by_move&& other) noexcept : value_(std::exchange(other.value_, T{})) {}
  emptied_by_move& operator=(emptied_by_move&& other) noexcept {
    value_ = std::exchange(other.value_, T{});
    return *this;
  }
  ~emptied_by_move() = default;

  operator const T&() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] const T& value() const noexcept { return value_; }
  [[nodiscard]] T& value() noexcept { return value_; }

 private:
  T value_{};
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_CHECKED_SIZE_HPP
