// SPDX-License-Identifier: BSD-3-Clause
// A value that a move resets, so that classes which own memory need no move functions of their own.
#ifndef DETENT_BASE_EMPTIED_BY_MOVE_HPP
#define DETENT_BASE_EMPTIED_BY_MOVE_HPP

#include <utility>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// A value that is T{} again after it was moved from, also to itself, for members that describe
/// other members which a move empties.
template <class T>
class emptied_by_move {
 public:
  emptied_by_move() = default;
  emptied_by_move(T value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)
  emptied_by_move(const emptied_by_move&) = default;
  emptied_by_move& operator=(const emptied_by_move&) = default;
  emptied_by_move(emptied_by_move&& other) noexcept : value_(std::exchange(other.value_, T{})) {}
  emptied_by_move& operator=(emptied_by_move&& other) noexcept {
    T taken = std::exchange(other.value_, T{});
    value_ = &other == this ? T{} : std::move(taken);  // as a vector, which is empty then
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

#endif  // DETENT_BASE_EMPTIED_BY_MOVE_HPP
