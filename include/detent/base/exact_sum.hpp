// SPDX-License-Identifier: BSD-3-Clause
// Sums of doubles that do not round: the result does not depend on the order of the terms.
#ifndef DETENT_BASE_EXACT_SUM_HPP
#define DETENT_BASE_EXACT_SUM_HPP

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// An exact sum of doubles that are multiples of 2^kUnit: an integer of 64 * kLimbs bits in two's
/// complement, in units of 2^kUnit. Terms must be finite and smaller in magnitude than 2^(kUnit +
/// 64 * (kLimbs - 1)); then 2^63 of them do not overflow. Bits of a term below 2^kUnit are dropped.
template <int kUnit, std::size_t kLimbs>
class exact_sum {
 public:
  /// Adds one term.
  void add(double x) noexcept {
    const auto bits = std::bit_cast<std::uint64_t>(x);
    const auto exponent = static_cast<int>(bits >> 52 & 0x7FFU);
    std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1U);
    mantissa |= exponent == 0 ? 0 : std::uint64_t{1} << 52;
    int shift = (exponent == 0 ? 1 : exponent) - 1075 - kUnit;
    if (shift < 0) {
      mantissa = shift > -64 ? mantissa >> -shift : 0;
      shift = 0;
    }
    const auto limb = static_cast<std::size_t>(shift) / 64;
    const int bit = shift % 64;
    const std::uint64_t low = mantissa << bit;
    const std::uint64_t high = bit == 0 ? 0 : mantissa >> (64 - bit);
    if (bits >> 63 == 0) {
      add_at(limb, low, high);
    } else {
      subtract_at(limb, low, high);
    }
  }
  /// Adds all terms of another sum.
  void add(const exact_sum& other) noexcept {
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < kLimbs; ++i) {
      const std::uint64_t sum = limbs_[i] + other.limbs_[i];
      const std::uint64_t next = sum + carry;
      carry = (sum < limbs_[i] ? 1U : 0U) | (next < sum ? 1U : 0U);
      limbs_[i] = next;
    }
  }

  /// The sum, rounded to the nearest double (half to even); 2^1024 and more become infinite.
  [[nodiscard]] double value() const noexcept {
    std::array<std::uint64_t, kLimbs> magnitude = limbs_;
    const bool is_negative = limbs_[kLimbs - 1] >> 63 != 0;
    if (is_negative) {
      std::uint64_t carry = 1;
      for (std::uint64_t& limb : magnitude) {
        limb = ~limb + carry;
        carry = carry != 0 && limb == 0 ? 1 : 0;
      }
    }
    std::size_t top = kLimbs;
    while (top > 0 && magnitude[top - 1] == 0) {
      --top;
    }
    if (top == 0) {
      return 0.0;
    }
    // The 64 bits from the highest one down; the lowest of them also stands for all that follow.
    const int zeros = std::countl_zero(magnitude[top - 1]);
    std::uint64_t leading = magnitude[top - 1] << zeros;
    std::uint64_t rest = 0;
    if (top > 1 && zeros != 0) {
      leading |= magnitude[top - 2] >> (64 - zeros);
      rest = magnitude[top - 2] << zeros;
    } else if (top > 1) {
      rest = magnitude[top - 2];
    }
    for (std::size_t i = 0; i + 2 < top; ++i) {
      rest |= magnitude[i];
    }
    leading |= rest != 0 ? 1U : 0U;
    const double rounded =
        std::ldexp(static_cast<double>(leading), static_cast<int>(64 * (top - 1)) - zeros + kUnit);
    return is_negative ? -rounded : rounded;
  }

  /// Appends kLimbs u64, from the lowest.
  void write(byte_writer& out) const {
    for (const std::uint64_t limb : limbs_) {
      out.put(limb);
    }
  }
  /// Replaces the sum by one that write() appended.
  void read(byte_reader& in) {
    for (std::uint64_t& limb : limbs_) {
      limb = in.template get<std::uint64_t>();
    }
  }

  friend bool operator==(const exact_sum&, const exact_sum&) = default;

 private:
  static_assert(kLimbs > 1);

  void add_at(std::size_t limb, std::uint64_t low, std::uint64_t high) noexcept {
    limbs_[limb] += low;
    std::uint64_t carry = limbs_[limb] < low ? 1 : 0;
    for (std::size_t i = limb + 1; i < kLimbs && (high | carry) != 0; ++i) {
      const std::uint64_t more = high + carry;  // high has 53 bits at most
      limbs_[i] += more;
      carry = limbs_[i] < more ? 1 : 0;
      high = 0;
    }
  }
  void subtract_at(std::size_t limb, std::uint64_t low, std::uint64_t high) noexcept {
    std::uint64_t borrow = limbs_[limb] < low ? 1 : 0;
    limbs_[limb] -= low;
    for (std::size_t i = limb + 1; i < kLimbs && (high | borrow) != 0; ++i) {
      const std::uint64_t less = high + borrow;
      borrow = limbs_[i] < less ? 1 : 0;
      limbs_[i] -= less;
      high = 0;
    }
  }

  std::array<std::uint64_t, kLimbs> limbs_{};
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_EXACT_SUM_HPP
