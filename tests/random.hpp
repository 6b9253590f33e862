// SPDX-License-Identifier: BSD-3-Clause
// Random test data, the same on every platform. A test prints its seed with INFO("seed ",
// r.seed()); DETENT_TEST_SEED=n in the environment asks for other data.
#ifndef DETENT_TESTS_RANDOM_HPP
#define DETENT_TESTS_RANDOM_HPP

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace test {

/// SplitMix64: small, fast without optimization, and, unlike std distributions, defined to the bit.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : seed_(seed + offset()), state_(seed_) {}

  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

  std::uint64_t bits() noexcept {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  /// Any of first..last, which are included.
  template <class T>
  T integer(T first, T last) noexcept {
    const auto count = static_cast<std::uint64_t>(static_cast<std::int64_t>(last) -
                                                  static_cast<std::int64_t>(first)) +
                       1;
    return static_cast<T>(static_cast<std::int64_t>(first) +
                          static_cast<std::int64_t>(bits() % count));
  }
  std::size_t size(std::size_t first, std::size_t last) noexcept { return integer(first, last); }
  bool chance(int percent) noexcept { return integer(0, 99) < percent; }

  /// lower <= x < upper, or upper by rounding.
  float real(float lower, float upper) noexcept {
    constexpr float unit = 1.0F / 16777216.0F;
    return lower + (upper - lower) * (static_cast<float>(bits() >> 40) * unit);
  }
  /// Any float at all: NaN, infinities and denormals come by.
  float any_float() noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits())); }

  /// Any values of an integer type.
  template <class T>
  std::vector<T> integers(std::size_t n) {
    std::vector<T> values(n);
    for (T& value : values) {
      value = static_cast<T>(bits());
    }
    return values;
  }
  std::vector<float> reals(std::size_t n, float lower, float upper) {
    std::vector<float> values(n);
    for (float& value : values) {
      value = real(lower, upper);
    }
    return values;
  }

 private:
  static std::uint64_t offset() {
    const char* value = std::getenv("DETENT_TEST_SEED");
    return value != nullptr ? std::strtoull(value, nullptr, 0) : 0;
  }

  std::uint64_t seed_;
  std::uint64_t state_;
};

}  // namespace test

#endif  // DETENT_TESTS_RANDOM_HPP
