// SPDX-License-Identifier: BSD-3-Clause
// max_of_rows(): the bits of reference::larger on every target, and what it refuses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/maxima.hpp>
#include <detent/reference.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::max_of_rows;
using test::check_error;
using test::difference;
using test::random_source;
namespace reference = detent::reference;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

template <class T>
T element(random_source& random) {
  if constexpr (std::is_same_v<T, float>) {
    if (random.chance(50)) {
      constexpr float special[] = {0.0F,      -0.0F,      infinity, -infinity,
                                   quiet_nan, -quiet_nan, 1.0F,     -1.0F};
      return special[random.size(0, std::size(special) - 1)];
    }
    return random.real(-2.0F, 2.0F);
  } else {
    return static_cast<T>(random.size(0, 255));
  }
}

/// Compares max_of_rows() with its definition, with all rows at either end of readable memory.
template <class T>
void check_shape(random_source& random, std::size_t columns, std::size_t count, std::size_t pixels,
                 std::size_t step) {
  const std::size_t length = (pixels - 1) * step + columns;
  std::vector<std::vector<T>> values(count, std::vector<T>(length));
  for (std::vector<T>& row : values) {
    std::generate(row.begin(), row.end(), [&] { return element<T>(random); });
  }
  std::vector<T> expected;
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t i = p * step; i < p * step + columns; ++i) {
      expected.push_back(values[0][i]);
      for (std::size_t r = 1; r < count; ++r) {
        expected.back() = reference::larger(expected.back(), values[r][i]);
      }
    }
  }
  for (const bool at_end : {true, false}) {
    std::deque<test::guarded_memory> pages;
    const auto place = [&](std::size_t size) {
      test::guarded_memory& page = pages.emplace_back(size * sizeof(T));
      return at_end ? page.template back<T>(size) : page.template front<T>(size);
    };
    std::vector<const T*> rows;
    for (const std::vector<T>& row : values) {
      const std::span<T> copy = place(length);
      std::copy(row.begin(), row.end(), copy.begin());
      rows.push_back(copy.data());
    }
    const std::span<T> out = place(expected.size());
    test::for_each_target([&] {
      std::fill(out.begin(), out.end(), T{3});
      max_of_rows(std::span<const T* const>(rows), out, pixels, step);
      INFO(columns, " columns of ", count, " rows, ", pixels, " pixels, step ", step);
      CHECK(difference(out, expected) == "");
      CHECK(pages.back().intact_around(out));
    });
  }
}

template <class T>
void check_all_shapes() {
  random_source random(20261125);
  for (const std::size_t columns : {1U,  2U,  3U,  4U,  5U,   7U,   8U,   15U,  16U,  17U,  31U,
                                    33U, 63U, 64U, 65U, 100U, 127U, 128U, 255U, 256U, 257U, 300U}) {
    for (const std::size_t count : {1U, 2U, 9U}) {
      check_shape<T>(random, columns, count, 1, 0);
      check_shape<T>(random, columns, count, random.size(2, 6), random.size(0, 2 * columns + 3));
    }
  }
}

TEST_CASE(
    "the largest of several rows has the bits of its definition for every number of columns") {
  check_all_shapes<float>();
  check_all_shapes<std::uint8_t>();
  check_all_shapes<std::int8_t>();
}

TEST_CASE("a NaN stays the largest, and of two zeros the first one stays") {
  test::for_each_target([] {
    const float first[] = {quiet_nan, 1.0F, -0.0F, 0.0F, -infinity};
    const float then[] = {2.0F, quiet_nan, 0.0F, -0.0F, -infinity};
    const float* const rows[] = {first, then};
    float out[5];
    max_of_rows(std::span<const float* const>(rows), std::span<float>(out));
    CHECK(out[0] != out[0]);
    CHECK(out[1] != out[1]);
    CHECK(std::signbit(out[2]));
    CHECK_FALSE(std::signbit(out[3]));
    CHECK(out[4] == -infinity);
  });
}

TEST_CASE("the largest of no rows, and null rows, are refused") {
  float out[2] = {5.0F, 5.0F};
  const float row[2] = {1.0F, 2.0F};
  const float* const rows[] = {row, nullptr};
  const std::span<const float* const> all(rows);
  check_error(error_kind::invalid_argument, {"max_of_rows", "no rows"},
              [&] { max_of_rows(std::span<const float* const>(), std::span<float>(out)); });
  check_error(error_kind::invalid_argument, {"max_of_rows", "null"},
              [&] { max_of_rows(all, std::span<float>(out)); });
  check_error(error_kind::invalid_argument, {"max_of_rows", "null"}, [&] {
    max_of_rows(all.first(1), std::span<float>(static_cast<float*>(nullptr), 2));
  });
  for (const std::size_t pixels : {0U, 3U}) {
    check_error(error_kind::shape_mismatch, {"max_of_rows", "2 outputs"},
                [&] { max_of_rows(all.first(1), std::span<float>(out), pixels, 1); });
  }
  max_of_rows(all, std::span<float>());  // nothing to do
  CHECK(out[0] == 5.0F);
}

}  // namespace
