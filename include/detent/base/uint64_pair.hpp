// SPDX-License-Identifier: BSD-3-Clause
// Two unsigned integers of 64 bits that are added at once.
#ifndef DETENT_BASE_UINT64_PAIR_HPP
#define DETENT_BASE_UINT64_PAIR_HPP

#include <cstdint>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Two integers modulo 2^64, in one vector register where the compiler has vectors of its own.
class uint64_pair {
 public:
  uint64_pair() noexcept = default;
  uint64_pair(std::uint64_t first, std::uint64_t second) noexcept : values_{first, second} {}

  [[nodiscard]] std::uint64_t first() const noexcept { return values_[0]; }
  [[nodiscard]] std::uint64_t second() const noexcept { return values_[1]; }

#if defined(__GNUC__)
  uint64_pair& operator+=(const uint64_pair& other) noexcept {
    values_ += other.values_;
    return *this;
  }
  uint64_pair& operator-=(const uint64_pair& other) noexcept {
    values_ -= other.values_;
    return *this;
  }

 private:
  typedef std::uint64_t values __attribute__((vector_size(16)));  // NOLINT: no alias
  values values_{0, 0};
#else
  uint64_pair& operator+=(const uint64_pair& other) noexcept {
    values_[0] += other.values_[0];
    values_[1] += other.values_[1];
    return *this;
  }
  uint64_pair& operator-=(const uint64_pair& other) noexcept {
    values_[0] -= other.values_[0];
    values_[1] -= other.values_[1];
    return *this;
  }

 private:
  std::uint64_t values_[2] = {0, 0};
#endif
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_UINT64_PAIR_HPP
