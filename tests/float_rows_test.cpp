// SPDX-License-Identifier: BSD-3-Clause
// The kernels of float rows have the bits of the functions that define them on every target, for
// every length, and these are near the exact results.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>
#include <detent/base/float_rows.hpp>
#include <detent/kernels/definitions/float_rows.hpp>

#include "bits.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::kernels::float_row_kernels;
namespace defined = detent::detail;

/// Rows of every length up to 70 and a few long ones; every other length has rows with values that
/// are not finite, too.
template <class Check>
void for_each_row(std::uint64_t seed, const Check& check) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  test::random_source random(seed);
  INFO("seed ", random.seed());
  std::vector<std::size_t> lengths(71);
  std::iota(lengths.begin(), lengths.end(), std::size_t{0});
  lengths.insert(lengths.end(), {768, 1000, 4097});
  for (const std::size_t n : lengths) {
    CAPTURE(n);
    std::vector<float> x = random.reals(n, -8.0F, 8.0F);
    check(x, random);
    if (n == 0) {
      continue;
    }
    for (const float special : {infinity, -infinity, std::nanf(""), -0.0F, 3e38F, -1e-45F}) {
      CAPTURE(special);
      std::vector<float> other = x;
      other[random.size(0, n - 1)] = special;
      check(other, random);
      check(std::vector<float>(n, special), random);
    }
  }
}

}  // namespace

TEST_CASE("sums of rows have the same bits on all targets") {
  for_each_row(41, [](const std::vector<float>& x, test::random_source& random) {
    const auto centre = static_cast<double>(random.real(-3.0F, 3.0F));
    const double sum = defined::sum_of_row<float>(x);
    const double squares = defined::square_sum_of_row<float>(x, centre);
    test::for_each_target([&] {
      const auto& kernels = detent::detail::active<float_row_kernels>();
      double found = 7.0;
      kernels.sums(x.data(), 1, x.size(), &found);
      CHECK(test::bits_of(found) == test::bits_of(sum));
      kernels.square_sums(x.data(), 1, x.size(), &centre, &found);
      CHECK(test::bits_of(found) == test::bits_of(squares));
    });
  });
}

TEST_CASE("what becomes of a row does not depend on the rows beside it") {
  test::random_source random(47);
  INFO("seed ", random.seed());
  for (std::size_t n = 0; n < 140; n += n < 40 ? 1 : 9) {
    CAPTURE(n);
    for (const std::size_t rows : std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 8, 11}) {
      CAPTURE(rows);
      std::vector<float> x = random.reals(rows * n, -8.0F, 8.0F);
      if (random.chance(30) && !x.empty()) {
        x[random.size(0, x.size() - 1)] = random.chance(50) ? std::nanf("") : -3e38F;
      }
      std::vector<double> centres(rows);
      std::vector<double> sums(rows + 1, 7.0);
      std::vector<double> squares(rows + 1, 7.0);
      std::vector<float> softmax(x.size() + 1, 7.0F);
      std::vector<float> log_softmax(x.size() + 1, 7.0F);
      for (std::size_t row = 0; row < rows; ++row) {
        centres[row] = static_cast<double>(random.real(-3.0F, 3.0F));
        const std::span<const float> values(x.data() + row * n, n);
        sums[row] = defined::sum_of_row<float>(values);
        squares[row] = defined::square_sum_of_row<float>(values, centres[row]);
        if (n > 0) {
          defined::softmax_row(values, softmax.data() + row * n);
          defined::log_softmax_row(values, log_softmax.data() + row * n);
        }
      }
      test::for_each_target([&] {
        const auto& kernels = detent::detail::active<float_row_kernels>();
        std::vector<double> found(rows + 1, 7.0);
        kernels.sums(x.data(), rows, n, found.data());
        CHECK(test::bits_of(found) == test::bits_of(sums));
        kernels.square_sums(x.data(), rows, n, centres.data(), found.data());
        CHECK(test::bits_of(found) == test::bits_of(squares));
        if (n == 0) {
          return;
        }
        std::vector<float> y(x.size() + 1, 7.0F);
        kernels.softmax(x.data(), rows, n, y.data());
        CHECK(test::bits_of(y) == test::bits_of(softmax));
        kernels.log_softmax(x.data(), rows, n, y.data());
        CHECK(test::bits_of(y) == test::bits_of(log_softmax));
      });
    }
  }
}

TEST_CASE("a sum has sixteen parts, which are added in pairs") {
  // With steps of 2^53, a part of less than half a step is lost unless it is added to others first.
  std::vector<float> x(16, 0.0F);
  x[0] = 0x1p53F;
  x[8] = 1.0F;
  x[4] = 1.0F;
  CHECK(defined::sum_of_row<float>(x) == 0x1p53);  // neither meets the other before the large one
  x[8] = 0.0F;
  x[12] = 1.0F;
  CHECK(defined::sum_of_row<float>(x) == 0x1p53 + 2.0);  // part 12 is added to part 4
  CHECK(defined::sum_of_row<float>({}) == 0.0);
  CHECK(defined::square_sum_of_row<float>(std::vector<float>{3.0F, 5.0F}, 1.0) == 20.0);
}

TEST_CASE("largest and smallest values of rows have the same bits on all targets") {
  for_each_row(45, [](const std::vector<float>& x, test::random_source&) {
    const float largest = defined::largest_of_row(x);
    const float smallest = defined::smallest_of_row(x);
    test::for_each_target([&] {
      const auto& kernels = detent::detail::active<float_row_kernels>();
      CHECK(test::bits_of(kernels.largest(x.data(), x.size())) == test::bits_of(largest));
      CHECK(test::bits_of(kernels.smallest(x.data(), x.size())) == test::bits_of(smallest));
    });
  });
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> zeros = {-0.0F, -1.0F, 0.0F, -0.0F};
  CHECK(!std::signbit(defined::largest_of_row(zeros)));
  CHECK(defined::smallest_of_row(zeros) == -1.0F);
  CHECK(!std::signbit(defined::smallest_of_row(std::vector<float>{1.0F, -0.0F})));
  CHECK(std::isnan(defined::largest_of_row(std::vector<float>{1.0F, std::nanf(""), 2.0F})));
  CHECK(std::isnan(defined::smallest_of_row(std::vector<float>{1.0F, std::nanf(""), 2.0F})));
  CHECK(defined::largest_of_row({}) == -infinity);
  CHECK(defined::smallest_of_row({}) == infinity);
}

TEST_CASE("sums and means of rows side by side have the same bits on all targets") {
  for_each_row(46, [](const std::vector<float>& x, test::random_source& random) {
    std::vector<std::vector<float>> rows(random.size(0, 5), x);
    std::vector<const float*> pointers;
    for (std::vector<float>& row : rows) {
      if (!row.empty()) {
        row[random.size(0, row.size() - 1)] = random.real(-9.0F, 9.0F);
      }
      pointers.push_back(row.data());
    }
    const double divisor = static_cast<double>(random.size(1, 9));
    std::vector<float> means(x.size());
    defined::mean_of_rows<float>(pointers, divisor, means);
    std::vector<double> sums(x.size(), 0x1p30);
    defined::add_row(x, sums.data());
    const std::vector<float> table = random.reals(7 * x.size(), -9.0F, 9.0F);
    std::vector<std::size_t> indices(rows.size());
    for (std::size_t& index : indices) {
      index = random.size(0, 6);
    }
    const std::vector<float> weights = random.reals(rows.size(), -2.0F, 2.0F);
    std::vector<float> blend(x.size());
    defined::blend_rows(table.data(), indices, weights.data(), blend);
    test::for_each_target([&] {
      const auto& kernels = detent::detail::active<float_row_kernels>();
      std::vector<float> y(x.size() + 1, 7.0F);
      kernels.mean_of_rows(pointers.data(), pointers.size(), divisor, x.size(), y.data());
      CHECK(y.back() == 7.0F);
      y.pop_back();
      CHECK(test::bits_of(y) == test::bits_of(means));
      std::vector<float> mixture(x.size() + 1, 7.0F);
      kernels.blend_rows(table.data(), indices.data(), weights.data(), indices.size(), x.size(),
                         mixture.data());
      CHECK(mixture.back() == 7.0F);
      mixture.pop_back();
      CHECK(test::bits_of(mixture) == test::bits_of(blend));
      std::vector<double> total(x.size() + 1, 0x1p30);
      kernels.add_row(x.data(), x.size(), total.data());
      CHECK(total.back() == 0x1p30);
      total.pop_back();
      CHECK(test::bits_of(total) == test::bits_of(sums));
    });
  });
  const std::vector<float> a = {1.0F, 3e38F};
  const std::vector<float> b = {2.0F, 3e38F};
  const std::vector<const float*> rows = {a.data(), b.data()};
  std::vector<float> y(2);
  defined::mean_of_rows<float>(rows, 2.0, y);
  CHECK(y == std::vector<float>{1.5F, 3e38F});  // the sum does not overflow
  const std::vector<float> table = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  const std::vector<std::size_t> indices = {2, 0};
  const std::vector<float> weights = {0.25F, 0.75F};
  defined::blend_rows(table.data(), indices, weights.data(), y);
  CHECK(y == std::vector<float>{2.0F, 3.0F});
}

TEST_CASE("means of windows have the same bits on all targets") {
  test::random_source random(48);
  INFO("seed ", random.seed());
  for (std::size_t n = 1; n < 80; ++n) {
    for (const std::size_t step : {std::size_t{1}, std::size_t{2}}) {
      CAPTURE(n);
      CAPTURE(step);
      const std::size_t lines = random.size(1, 3);
      const std::size_t line_step = random.size(1, 200);
      // Each tap ends with its last element: kernels read nothing behind it.
      const std::size_t size = (lines - 1) * line_step + (n - 1) * step + 1;
      std::vector<std::vector<float>> rows(random.size(1, 9));
      std::vector<const float*> taps;
      for (std::vector<float>& row : rows) {
        row = random.reals(size, -9.0F, 9.0F);
        if (random.chance(10)) {
          row[random.size(0, size - 1)] = random.chance(50) ? std::nanf("") : 3e38F;
        }
        taps.push_back(row.data());
      }
      std::vector<double> factors(lines * n);
      for (double& factor : factors) {
        factor = 1.0 / static_cast<double>(random.size(1, 9));
      }
      std::vector<float> expected(lines * n + 1, 7.0F);
      defined::means_of_windows(taps, step, line_step, lines, n, factors.data(), expected.data());
      test::for_each_target([&] {
        std::vector<float> y(lines * n + 1, 7.0F);
        detent::detail::active<float_row_kernels>().means_of_windows(
            taps.data(), taps.size(), step, line_step, lines, n, factors.data(), y.data());
        CHECK(test::bits_of(y) == test::bits_of(expected));
      });
    }
  }
  const std::vector<float> x = {1.0F, 2.0F, 3.0F, 5.0F, 7.0F, 11.0F};
  const std::vector<const float*> pairs = {x.data(), x.data() + 1};
  const std::vector<double> factors = {0.5, 1.0, 0.5, 1.0};
  std::vector<float> y(4);
  defined::means_of_windows(pairs, 1, 3, 2, 2, factors.data(), y.data());
  CHECK(y == std::vector<float>{1.5F, 5.0F, 6.0F, 18.0F});
}

TEST_CASE("Softmax and LogSoftmax of rows have the same bits on all targets") {
  struct form {
    void (*definition)(std::span<const float>, float*) noexcept;
    void (*float_row_kernels::*kernel)(const float*, std::size_t, std::size_t, float*) noexcept;
  };
  const form forms[] = {{&defined::softmax_row, &float_row_kernels::softmax},
                        {&defined::log_softmax_row, &float_row_kernels::log_softmax}};
  for_each_row(42, [&](const std::vector<float>& x, test::random_source&) {
    if (x.empty()) {
      return;
    }
    for (const form& f : forms) {
      std::vector<float> expected(x.size());
      f.definition(x, expected.data());
      test::for_each_target([&] {
        const auto kernel = detent::detail::active<float_row_kernels>().*f.kernel;
        std::vector<float> y(x.size() + 1, 7.0F);
        kernel(x.data(), 1, x.size(), y.data());
        CHECK(y.back() == 7.0F);
        y.pop_back();
        CHECK(test::bits_of(y) == test::bits_of(expected));
        std::vector<float> in_place = x;
        kernel(in_place.data(), 1, in_place.size(), in_place.data());
        CHECK(test::bits_of(in_place) == test::bits_of(expected));
      });
    }
  });
}

TEST_CASE("Softmax and LogSoftmax of rows are near the exact results") {
  test::random_source random(43);
  INFO("seed ", random.seed());
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> x = random.reals(random.size(1, 300), -20.0F, 20.0F);
    double sum = 0.0;
    for (const float value : x) {
      sum += std::exp(static_cast<double>(value));
    }
    std::vector<float> y(x.size());
    std::vector<float> logarithm(x.size());
    defined::softmax_row(x, y.data());
    defined::log_softmax_row(x, logarithm.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i])) / sum;
      // x - m is rounded, which counts for up to |x - m| / 2^24 of the result.
      CHECK(std::fabs(static_cast<double>(y[i]) - exact) <= 3e-6 * exact);
      // Both differences are below 64 and are rounded, and so is the logarithm, which is below 8.
      CHECK(std::fabs(static_cast<double>(logarithm[i]) - std::log(exact)) <= 5e-6);
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> row = {0.0F, -infinity};
  defined::softmax_row(row, row.data());
  CHECK(row == std::vector<float>{1.0F, 0.0F});
  row = {0.0F, -infinity};
  defined::log_softmax_row(row, row.data());
  CHECK(row == std::vector<float>{0.0F, -infinity});
  for (std::vector<float> bad :
       {std::vector<float>{1.0F, infinity}, {std::nanf(""), 1.0F}, {-infinity, -infinity}}) {
    std::vector<float> logarithm(bad.size());
    defined::log_softmax_row(bad, logarithm.data());
    CHECK(std::isnan(logarithm[0]));
    CHECK(std::isnan(logarithm[1]));
    defined::softmax_row(bad, bad.data());
    CHECK(std::isnan(bad[0]));
    CHECK(std::isnan(bad[1]));
  }
}

TEST_CASE("normalized rows have the same bits on all targets") {
  for_each_row(44, [](const std::vector<float>& x, test::random_source& random) {
    const auto centre = static_cast<double>(random.real(-3.0F, 3.0F));
    const auto factor = static_cast<double>(random.real(0.1F, 3.0F)) / 3.0;
    const std::vector<float> scale = random.reals(x.size(), -2.0F, 2.0F);
    const std::vector<float> bias = random.reals(x.size(), -2.0F, 2.0F);
    for (int form = 0; form < 4; ++form) {
      CAPTURE(form);
      const float* const scales = form == 1 || form == 2 ? scale.data() : nullptr;
      const float* const biases = form == 2 ? bias.data() : nullptr;
      std::vector<float> expected(x.size());
      if (form == 3) {
        defined::map_row_by_line(x, factor, centre, expected.data());
      } else {
        defined::standardize_row(x, centre, factor, scales, biases, expected.data());
      }
      test::for_each_target([&] {
        const auto& kernels = detent::detail::active<float_row_kernels>();
        const auto run = [&](const float* from, float* to) {
          if (form == 3) {
            kernels.map_by_line(from, x.size(), factor, centre, to);
          } else {
            kernels.standardize(from, x.size(), centre, factor, scales, biases, to);
          }
        };
        std::vector<float> y(x.size() + 1, 7.0F);
        run(x.data(), y.data());
        CHECK(y.back() == 7.0F);
        y.pop_back();
        CHECK(test::bits_of(y) == test::bits_of(expected));
        std::vector<float> in_place = x;
        run(in_place.data(), in_place.data());
        CHECK(test::bits_of(in_place) == test::bits_of(expected));
      });
    }
  });
}
