// SPDX-License-Identifier: BSD-3-Clause
// Random numbers of training: sequences that depend on what they are for, not on when they are
// drawn.
#ifndef DETENT_GRAPH_LEARN_RANDOM_NUMBERS_HPP
#define DETENT_GRAPH_LEARN_RANDOM_NUMBERS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/rounding.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// What a sequence is for: different purposes have unrelated sequences of the same seed.
enum class random_purpose : std::uint8_t { order = 1, augmentation = 2 };

/// A seed that is made of another one and a number. Chains of it make seeds of several numbers.
[[nodiscard]] inline std::uint64_t derived_seed(std::uint64_t seed, std::uint64_t number) noexcept {
  return rounding::stochastic{seed}.bits(number);
}
[[nodiscard]] inline std::uint64_t derived_seed(std::uint64_t seed, random_purpose purpose,
                                                std::uint64_t epoch) noexcept {
  return derived_seed(derived_seed(seed, static_cast<std::uint64_t>(purpose)), epoch);
}

/// SplitMix64 from a seed (rounding::stochastic::bits() has the source), the same everywhere.
class random_sequence {
 public:
  explicit random_sequence(std::uint64_t seed) noexcept : generator_{seed} {}

  /// Any 64 bits.
  std::uint64_t bits() noexcept { return generator_.bits(drawn_++); }

  /// Any of 0..count - 1, each with the same probability; count is at least 1. The numbers that
  /// would make small results more probable are drawn again.
  std::size_t below(std::size_t count) noexcept {
    const auto n = static_cast<std::uint64_t>(count);
    const std::uint64_t surplus = (std::uint64_t{0} - n) % n;  // 2^64 modulo n
    std::uint64_t drawn = bits();
    while (drawn < surplus) {
      drawn = bits();
    }
    return static_cast<std::size_t>(drawn % n);
  }

  /// True with this probability, to within 2^-53; never for 0, always for 1.
  bool chance(double probability) noexcept {
    return static_cast<double>(bits() >> 11) * 0x1p-53 < probability;
  }

 private:
  rounding::stochastic generator_;
  std::uint64_t drawn_ = 0;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_RANDOM_NUMBERS_HPP
