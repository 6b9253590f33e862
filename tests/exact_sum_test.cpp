// SPDX-License-Identifier: BSD-3-Clause
// Exact sums: the order of terms and the division into parts do not matter, and the value is
// rounded once.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/base/byte_format.hpp>
#include <detent/base/exact_sum.hpp>

#include "random.hpp"

namespace {

using sum_of_floats = detent::detail::exact_sum<-149, 6>;

}  // namespace

TEST_CASE("exact_sum: the sum of integers, in any order and in parts, rounded once") {
  test::random_source r(431);
  INFO("seed ", r.seed());
  for (int trial = 0; trial < 2000; ++trial) {
    // Terms k * 2^(shift + unit), whose sum is below 2^63 * 2^unit: 13 bits of k, shifts below 44,
    // 6 bits for up to 60 terms.
    std::vector<double> terms;
    sum_of_floats all;
    std::int64_t expected = 0;
    const int unit = r.integer<int>(-149, 100);
    const std::size_t n = r.size(0, 60);
    for (std::size_t i = 0; i < n; ++i) {
      const auto k = r.integer<std::int32_t>(-(1 << 12), 1 << 12);
      const int shift = r.integer<int>(0, 43);
      expected += std::int64_t{k} * (std::int64_t{1} << shift);
      terms.push_back(std::ldexp(static_cast<double>(k), shift + unit));
      all.add(terms.back());
    }
    // An integer is rounded to the nearest double, half to even.
    CHECK(all.value() == std::ldexp(static_cast<double>(expected), unit));
    for (std::size_t i = terms.size(); i > 1; --i) {
      std::swap(terms[i - 1], terms[r.size(0, i - 1)]);
    }
    sum_of_floats parts[3];
    for (const double term : terms) {
      parts[r.size(0, 2)].add(term);
    }
    parts[1].add(parts[2]);
    parts[1].add(parts[0]);
    CHECK(parts[1] == all);
    for (const double term : terms) {
      parts[1].add(-term);
    }
    CHECK(parts[1] == sum_of_floats());
  }
}

TEST_CASE("exact_sum: ties, cancellation, and the ends of its range") {
  sum_of_floats s;
  CHECK(s.value() == 0.0);
  s.add(0.0);
  s.add(-0.0);
  CHECK(s == sum_of_floats());
  s.add(0x1p60);
  s.add(-0x1p-149);
  CHECK(s.value() == 0x1p60);
  s.add(-0x1p60);
  CHECK(s.value() == -0x1p-149);
  // Half a unit in the last place: to even, unless anything is beyond it.
  sum_of_floats tie;
  tie.add(1.0);
  tie.add(0x1p-53);
  CHECK(tie.value() == 1.0);
  tie.add(0x1p-149);
  CHECK(tie.value() == 1.0 + 0x1p-52);
  sum_of_floats odd;
  odd.add(1.0 + 0x1p-52);
  odd.add(0x1p-53);
  CHECK(odd.value() == 1.0 + 0x1p-51);
  odd.add(-0x1p-149);
  CHECK(odd.value() == 1.0 + 0x1p-52);
  // The largest sum of a value of 2^40 floats, many times, and the negative of it.
  for (const double sign : {1.0, -1.0}) {
    sum_of_floats large;
    for (int i = 0; i < 1000; ++i) {
      large.add(sign * static_cast<double>(std::numeric_limits<float>::max()) * 0x1p40);
    }
    CHECK(large.value() ==
          sign * 1000.0 * static_cast<double>(std::numeric_limits<float>::max()) * 0x1p40);
  }
  // A carry, and a borrow, through all limbs.
  sum_of_floats carry;
  carry.add(-0x1p-149);
  CHECK(carry.value() == -0x1p-149);
  carry.add(0x1p-149);
  CHECK(carry == sum_of_floats());
  // What lies below the unit is dropped.
  sum_of_floats dropped;
  dropped.add(0x1p-150);
  dropped.add(-0x1p-1000);
  dropped.add(std::numeric_limits<double>::denorm_min());
  CHECK(dropped == sum_of_floats());
}

TEST_CASE("exact_sum: what is written is read") {
  test::random_source r(432);
  INFO("seed ", r.seed());
  sum_of_floats s;
  for (int i = 0; i < 100; ++i) {
    s.add(static_cast<double>(r.real(-1e6F, 1e6F)));
  }
  constexpr detent::detail::byte_format format{"detenttt", 1};
  detent::detail::byte_writer out(format);
  s.write(out);
  const std::vector<std::byte> bytes = std::move(out).finish();
  detent::detail::byte_reader in(bytes, format, "exact_sum_test");
  sum_of_floats read;
  read.read(in);
  in.require_end();
  CHECK(read == s);
}
