// SPDX-License-Identifier: BSD-3-Clause
// What promises to allocate nothing when the same sizes come again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "counted_allocations.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::matrix_view;
using test::allocations;
using test::allocations_of;
using test::for_each_target;
using test::large_ones_left;
using test::least_failing;
using test::random_source;

template <class A, class T>
void check_product(std::size_t m, std::size_t n, std::size_t k, std::int32_t lhs_zero_point) {
  random_source random(1);
  std::vector<std::int8_t> weights(k * n);
  std::vector<A> a(m * k);
  std::vector<float> scales(n, 0.5F);
  const std::vector<float> bias(n, 0.25F);
  for (std::int8_t& w : weights) {
    w = static_cast<std::int8_t>(random.integer(-128, 127));
  }
  for (A& v : a) {
    v = static_cast<A>(random.integer(detent::full_grid<A>.qmin, detent::full_grid<A>.qmax));
  }
  const detent::packed_weights packed =
      detent::pack_weights({weights.data(), k, n}, {.scales = scales});
  std::vector<T> c(m * n);
  detent::epilogue_options options{.lhs_scale = 0.125F, .lhs_zero_point = lhs_zero_point};
  if constexpr (std::is_same_v<T, float>) {
    options.bias = bias;
  }
  CHECK(allocations_of([&] {
          detent::gemm(matrix_view<const A>(a.data(), m, k), packed, matrix_view<T>(c.data(), m, n),
                       options);
        }) == 0);
}

}  // namespace

TEST_CASE("allocations are counted") {
  const void* volatile seen = nullptr;  // compilers may leave out what nobody looks at
  CHECK(allocations_of([&] {
          const std::vector<int> plain(3);
          const detent::detail::aligned_vector<int> aligned(3);
          seen = plain.data();
          seen = aligned.data();
        }) == 2);
}

TEST_CASE("products allocate nothing when the same sizes come again") {
  for_each_target([] {
    check_product<std::uint8_t, std::int32_t>(1, 768, 64, 3);
    check_product<std::uint8_t, float>(50, 70, 33, 0);
    check_product<std::uint8_t, float>(7, 33, 129, 3);
    check_product<std::uint8_t, std::uint8_t>(13, 64, 128, 255);
    check_product<std::int8_t, std::int8_t>(49, 17, 40, -128);
    check_product<std::int8_t, detent::bfloat16>(3, 80, 300, 0);
  });
}

namespace {

/// Calls change(copy of `before`) with the first, the second, ... allocation failing until none
/// does, and check(copy) after each that failed. Returns how many did.
template <class T, class Change, class Check>
int with_failing_allocations(const T& before, const Change& change, const Check& check) {
  int failed = 0;
  least_failing = 1;
  for (bool threw = true; threw; failed += threw ? 1 : 0) {
    T changed = before;
    threw = false;
    large_ones_left = failed;
    try {
      change(changed);
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    large_ones_left = -1;
    if (threw) {
      check(changed);
    }
  }
  least_failing = std::size_t{1} << 19U;
  return failed;
}

/// Values of few or many magnitudes.
std::vector<float> values_around(random_source& r, int lowest, int highest, std::size_t count) {
  std::vector<float> x(count);
  for (float& v : x) {
    v = std::ldexp(r.real(-1.0F, 1.0F), r.integer(lowest, highest));
  }
  return x;
}

}  // namespace

TEST_CASE("a histogram for which memory does not suffice has counted whole blocks") {
  random_source r(31);
  INFO("seed ", r.seed());
  for (const detent::bin_storage storage :
       {detent::bin_storage::sparse, detent::bin_storage::dense}) {
    detent::histogram empty(storage);
    detent::histogram before(storage);
    before.observe(values_around(r, 0, 1, 500));
    const std::vector<float> near = values_around(r, -20, 1, 2000);
    std::vector<float> above = values_around(r, -3, 12, 2000);
    above[7] = std::numeric_limits<float>::infinity();
    above[9] = std::numeric_limits<float>::quiet_NaN();
    detent::histogram other(storage);
    other.observe(above);
    const std::uint64_t twice[] = {2};
    const auto changes_nothing = [&](const detent::histogram& h, const auto& change) {
      const std::vector<std::byte> expected = h.save();
      return with_failing_allocations(h, change, [&](const detent::histogram& after) {
        CHECK(after.save() == expected);
        CHECK_NOTHROW(static_cast<void>(detent::histogram::load(after.save())));
      });
    };
    int failed = 0;
    for (const detent::histogram* h : {&empty, &before}) {
      failed += changes_nothing(*h, [&](detent::histogram& to) { to.observe(near); });
      failed += changes_nothing(*h, [&](detent::histogram& to) { to.observe(above); });
      failed += changes_nothing(*h, [&](detent::histogram& to) { to.merge(other); });
      failed += changes_nothing(*h, [&](detent::histogram& to) { to = other; });
      failed += changes_nothing(
          *h, [&](detent::histogram& to) { to.observe(std::span(above.data(), 1), twice); });
    }
    CHECK(failed >= 8);
    // Of several blocks, the first ones may have been counted.
    std::vector<float> blocks = near;
    blocks.insert(blocks.end(), above.begin(), above.end());
    blocks.insert(blocks.end(), above.begin(), above.end());
    CHECK(with_failing_allocations(
              before, [&](detent::histogram& to) { to.observe(blocks); },
              [&](const detent::histogram& after) {
                CHECK((after.count() - before.count()) % 2048 == 0);
                CHECK_NOTHROW(static_cast<void>(detent::histogram::load(after.save())));
              }) > 0);
  }
}

TEST_CASE("weights in slices after memory did not suffice") {
  constexpr std::size_t k = 2 * detent::packed_weights::slice_depth;
  constexpr std::size_t n = 16;
  std::vector<std::int8_t> values(k * n, 127);
  std::fill(values.begin() + k / 2 * n, values.end(), std::int8_t{100});
  const auto weights = detent::pack_weights({values.data(), k, n}, {});
  const std::vector<std::uint8_t> lhs(k, 1);
  std::vector<float> out(n);
  const auto multiply = [&] {
    detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), 1, k), weights,
                 matrix_view<float>(out.data(), 1, n));
  };
  large_ones_left = 1;  // the first slice finds memory, the second one does not
  CHECK_THROWS_AS(multiply(), std::bad_alloc);
  large_ones_left = -1;
  multiply();
  CHECK(weights.slices().size() == 2);
  CHECK(out == std::vector<float>(n, static_cast<float>(k / 2 * 227)));
}
