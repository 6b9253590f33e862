// SPDX-License-Identifier: BSD-3-Clause
// What the steps of values, from one level of a grid to the next, add to the two sums of
// assignment_search.hpp: a step of a value x from level k - 1 to level k adds |x| to b and 2k - 1
// to c. plain_steps are for values that count once, weighted_steps for others.
#ifndef DETENT_SOLVERS_ASSIGNMENT_STEPS_HPP
#define DETENT_SOLVERS_ASSIGNMENT_STEPS_HPP

#include <cstdint>

#include <detent/base/arithmetic.hpp>
#include <detent/base/uint128.hpp>
#include <detent/base/uint64_pair.hpp>
#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// What steps of values with weight 1 add to b and c. Sums of the two halves of magnitudes need no
/// carries for up to 2^31 steps.
class plain_steps {
 public:
  static constexpr bool merges_equals = false;
  using amount = uint64_pair;  // the low and the high half of the magnitude
  /// What a step adds to c and to the count: 2k - 1 and 1.
  class to_level {
   public:
    explicit to_level(std::uint32_t level) noexcept : change_(2 * std::uint64_t{level} - 1, 1) {}
    void advance() noexcept { change_ += uint64_pair(2, 0); }

   private:
    friend plain_steps;
    uint64_pair change_;
  };

  static amount amount_of(const uint128& sum, std::uint64_t /*weight*/) noexcept {
    return {sum.low & 0xFFFFFFFFU, sum.low >> 32};
  }
  static uint128 sum_in(const amount& a) noexcept { return {0, a.second() << 32 | a.first()}; }
  static std::uint64_t weight_in(const amount& /*a*/) noexcept { return 1; }

  void add(const amount& a, const to_level& level) noexcept {
    b_ += a;
    c_and_count_ += level.change_;
  }
  void remove(const amount& a, const to_level& level) noexcept {
    b_ -= a;
    c_and_count_ -= level.change_;
  }
  /// Adds the first `level` steps of a value.
  void add_levels(const amount& a, std::uint64_t level) noexcept {
    b_ += amount(a.first() * level, a.second() * level);
    c_and_count_ += uint64_pair(level * level, level);
  }
  plain_steps& operator+=(const plain_steps& other) noexcept {
    b_ += other.b_;
    c_and_count_ += other.c_and_count_;
    return *this;
  }
  [[nodiscard]] uint128 b() const noexcept {
    return uint128{b_.second() >> 32, b_.second() << 32} + uint128{0, b_.first()};
  }
  [[nodiscard]] uint128 c() const noexcept { return {0, c_and_count_.first()}; }
  /// b and c with relative errors below 2^-51. None of the integers has more than 63 bits.
  [[nodiscard]] double near_b() const noexcept {
    return rounded_product(static_cast<double>(static_cast<std::int64_t>(b_.second())), 0x1p32) +
           static_cast<double>(static_cast<std::int64_t>(b_.first()));
  }
  [[nodiscard]] double near_c() const noexcept {
    return static_cast<double>(static_cast<std::int64_t>(c_and_count_.first()));
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return c_and_count_.second(); }

 private:
  uint64_pair b_;
  uint64_pair c_and_count_;
};

/// What steps of values with any weights add to b and c.
class weighted_steps {
 public:
  static constexpr bool merges_equals = true;  // the ends of neighbouring bins
  struct amount {
    uint128 sum;
    std::uint64_t weight;
  };
  class to_level {
   public:
    explicit to_level(std::uint32_t level) noexcept : odd_(2 * std::uint64_t{level} - 1) {}
    void advance() noexcept { odd_ += 2; }

   private:
    friend weighted_steps;
    std::uint64_t odd_;
  };

  static amount amount_of(const uint128& sum, std::uint64_t weight) noexcept {
    return {sum, weight};
  }
  static const uint128& sum_in(const amount& a) noexcept { return a.sum; }
  static std::uint64_t weight_in(const amount& a) noexcept { return a.weight; }

  void add(const amount& a, const to_level& level) noexcept {
    b_ += a.sum;
    c_ += multiply(a.weight, level.odd_);
    ++count_;
  }
  void remove(const amount& a, const to_level& level) noexcept {
    b_ -= a.sum;
    c_ -= multiply(a.weight, level.odd_);
    --count_;
  }
  void add_levels(const amount& a, std::uint64_t level) noexcept {
    b_ += multiply(a.sum, level);
    c_ += multiply(a.weight, level * level);
    count_ += level;
  }
  weighted_steps& operator+=(const weighted_steps& other) noexcept {
    b_ += other.b_;
    c_ += other.c_;
    count_ += other.count_;
    return *this;
  }
  [[nodiscard]] const uint128& b() const noexcept { return b_; }
  [[nodiscard]] const uint128& c() const noexcept { return c_; }
  [[nodiscard]] double near_b() const noexcept { return b_.to_double(); }
  [[nodiscard]] double near_c() const noexcept { return c_.to_double(); }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

 private:
  uint128 b_;
  uint128 c_;
  std::uint64_t count_ = 0;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_ASSIGNMENT_STEPS_HPP
