// SPDX-License-Identifier: BSD-3-Clause
// Products of doubles have the bits of a plain loop on every target, for every size, tail and
// stride, and touch nothing else.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "bits.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::kernels::double_product_args;

double any_double(test::random_source& random) {
  if (random.chance(5)) {
    return random.chance(50) ? 0.0 : -0.0;
  }
  return std::ldexp(static_cast<double>(random.real(-1.0F, 1.0F)), random.integer(-40, 40));
}

std::vector<double> doubles(test::random_source& random, std::size_t n) {
  std::vector<double> x(n);
  for (double& value : x) {
    value = any_double(random);
  }
  return x;
}

/// The definition, element by element. Sums pass through memory, so that nothing is fused.
void plain_products(const double_product_args& p) {
  for (std::size_t i = 0; i < p.rows; ++i) {
    for (std::size_t j = 0; j < p.columns; ++j) {
      for (std::size_t k = 0; k < p.depth; ++k) {
        volatile double product =
            p.a[i * p.a_row_stride + k * p.a_depth_stride] * p.b[k * p.b_stride + j];
        volatile double sum = p.c[i * p.c_stride + j] + product;
        p.c[i * p.c_stride + j] = sum;
      }
    }
  }
}

void check_products(test::random_source& random, std::size_t rows, std::size_t columns,
                    std::size_t depth, bool with_infinities) {
  const bool transposed = random.chance(50);
  const std::size_t a_gap = random.size(0, 3);
  double_product_args p{.rows = rows, .columns = columns, .depth = depth};
  p.a_row_stride = transposed ? 1 : depth + a_gap;
  p.a_depth_stride = transposed ? rows + a_gap : 1;
  p.b_stride = columns + random.size(0, 3);
  p.c_stride = columns + random.size(0, 3);
  std::vector<double> a = doubles(
      random, (transposed ? depth : rows) * (transposed ? p.a_depth_stride : p.a_row_stride));
  std::vector<double> b = doubles(random, depth * p.b_stride);
  const std::vector<double> c = doubles(random, rows * p.c_stride + 1);
  if (with_infinities && !a.empty() && !b.empty()) {
    a[random.size(0, a.size() - 1)] = std::numeric_limits<double>::infinity();
    b[random.size(0, b.size() - 1)] = std::numeric_limits<double>::quiet_NaN();
  }
  p.a = a.data();
  p.b = b.data();
  std::vector<double> expected = c;
  p.c = expected.data();
  plain_products(p);
  const std::vector<std::uint64_t> bits = test::bits_of(expected);
  INFO(rows, " x ", columns, ", depth ", depth, ", transposed ", transposed, ", strides ",
       p.b_stride, " ", p.c_stride);
  test::for_each_target([&] {
    std::vector<double> out = c;
    p.c = out.data();
    detent::detail::active<detent::kernels::double_product_kernels>().add_products(p);
    CHECK(test::bits_of(out) == bits);
  });
}

}  // namespace

TEST_CASE("products of doubles: every tail") {
  test::random_source random(61);
  INFO("seed ", random.seed());
  for (std::size_t rows = 0; rows <= 9; ++rows) {
    for (std::size_t columns = 0; columns <= 41; ++columns) {
      check_products(random, rows, columns, random.size(0, 7), false);
    }
  }
}

TEST_CASE("products of doubles: depths beside the tile's") {
  test::random_source random(62);
  INFO("seed ", random.seed());
  for (const std::size_t depth : {1U, 2U, 3U, 4U, 5U, 255U, 256U, 257U, 511U, 513U}) {
    check_products(random, random.size(1, 9), random.size(1, 70), depth, false);
    check_products(random, 4, 32, depth, true);
  }
}

TEST_CASE("products of doubles: random shapes, infinities and NaN") {
  test::random_source random(63);
  INFO("seed ", random.seed());
  for (int i = 0; i < 200; ++i) {
    check_products(random, random.size(0, 12), random.size(0, 100), random.size(0, 60),
                   random.chance(30));
  }
}
