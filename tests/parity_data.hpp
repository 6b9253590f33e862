// SPDX-License-Identifier: BSD-3-Clause
// The data on which other tools were run to get the expected ranges in the parity tests. It is
// defined to the bit, so that any tool can be given the same:
//
//   s = (s * 1664525 + 1013904223) mod 2^32, from s = seed
//   bell = ((sum of the top 18 bits of the next four s) - 2^19) * 2^-17 * scale + offset
#ifndef DETENT_TESTS_PARITY_DATA_HPP
#define DETENT_TESTS_PARITY_DATA_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

namespace test {

using batches = std::vector<std::vector<float>>;

inline std::vector<float> bell(std::uint32_t seed, std::size_t n, float scale, float offset) {
  std::vector<float> values(n);
  std::uint32_t s = seed;
  for (float& value : values) {
    std::int32_t sum = -524288;
    for (int i = 0; i < 4; ++i) {
      s = s * 1664525U + 1013904223U;
      sum += static_cast<std::int32_t>(s >> 14);
    }
    value = static_cast<float>(sum / 131072.0 * static_cast<double>(scale) +
                               static_cast<double>(offset));
  }
  return values;
}

template <class Function>
std::vector<float> mapped(std::vector<float> values, Function f) {
  for (float& value : values) {
    value = f(value);
  }
  return values;
}

/// Batches by name.
inline batches parity_data(std::string_view name) {
  const auto positive = [](float x) { return x > 0.0F ? x : 0.0F; };
  const auto halves = [](float x) { return std::floor(x * 2.0F) / 2.0F + 0.0F; };
  if (name == "growing") {
    return {bell(1, 40, 1, 0), bell(2, 60, 0.5F, 0), bell(3, 80, 1.5F, 0), bell(4, 50, 3, 0)};
  }
  if (name == "relu") {
    return {mapped(bell(5, 200, 1, 0), positive), mapped(bell(6, 200, 2, 0), positive)};
  }
  if (name == "positive") {
    return {bell(7, 100, 0.25F, 4), bell(8, 30, 0.5F, 4), bell(9, 70, 0.25F, 8)};
  }
  if (name == "rounded") {
    return {mapped(bell(10, 64, 2, 0), halves), mapped(bell(11, 64, 4, 0), halves)};
  }
  if (name == "zeros") {
    return {std::vector<float>(10), bell(12, 90, 1, 0), bell(13, 5, 0.5F, -1)};
  }
  if (name == "large") {
    return {bell(14, 3000, 1, 0), bell(15, 3000, 1.5F, 0.5F)};
  }
  REQUIRE(name == "dense");
  return {bell(16, 200000, 1, 0), bell(18, 5, 4, 0)};
}

/// Lets an observer see all batches in each of its phases.
template <class Observer>
Observer observed(Observer observer, const batches& data) {
  for (std::size_t phase = 0; phase < observer.phases(); ++phase) {
    observer.begin_phase(phase);
    for (const std::vector<float>& batch : data) {
      observer.observe(batch);
    }
  }
  return observer;
}

inline void check_range(detent::value_range actual, detent::value_range expected) {
  CHECK(actual.lower == expected.lower);
  CHECK(actual.upper == expected.upper);
}

}  // namespace test

#endif  // DETENT_TESTS_PARITY_DATA_HPP
