// SPDX-License-Identifier: BSD-3-Clause
// Gram matrices and their observer: exact, the same for every order, split and merge, saved and
// loaded.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "layer_data.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::gram_matrix;
using detent::gram_observer;
using detent::matrix_view;
using test::check_error;
using test::random_source;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

matrix_view<const float> rows_of(const std::vector<float>& x, std::size_t features) {
  return {x.data(), x.size() / features, features};
}

gram_observer observed(const std::vector<float>& x, std::size_t features) {
  gram_observer observer(features);
  observer.observe(rows_of(x, features));
  return observer;
}

}  // namespace

// ----------------------------------------------------------------------------------- gram_observer

TEST_CASE("gram_observer: floats, to the precision it states") {
  random_source random(301);
  INFO("seed ", random.seed());
  for (const std::size_t k : {1U, 2U, 5U, 63U, 64U, 65U, 130U}) {
    const std::size_t samples = random.size(1, 100);
    std::vector<float> x = test::correlated_inputs(random, samples, k);
    for (std::size_t r = 0; r < samples; ++r) {
      const float size = std::ldexp(1.0F, random.integer(-12, 12));
      for (std::size_t c = 0; c < k; ++c) {
        x[r * k + c] *= size;
      }
    }
    const gram_matrix g = observed(x, k).finalize();
    REQUIRE(g.size() == k);
    CHECK_FALSE(g.is_diagonal());
    INFO("features ", k, " samples ", samples);
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = 0; j < k; ++j) {
        double sum = 0.0;
        double bound = 0.0;
        for (std::size_t r = 0; r < samples; ++r) {
          double largest = 0.0;
          for (std::size_t c = 0; c < k; ++c) {
            largest = std::max(largest, std::fabs(static_cast<double>(x[r * k + c])));
          }
          const auto a = static_cast<double>(x[r * k + i]);
          const auto b = static_cast<double>(x[r * k + j]);
          sum += a * b;
          // Each factor is off by at most 2^-21 of the largest.
          bound += 0x1p-21 * largest * (std::fabs(a) + std::fabs(b) + 0x1p-21 * largest);
        }
        CHECK(std::fabs(g(i, j) - sum) <= bound * 1.000001 + 1e-12 * std::fabs(sum));
        CHECK(g(i, j) == g(j, i));
      }
    }
  }
}

TEST_CASE("gram_observer: codes are exact, at any strides") {
  random_source random(302);
  INFO("seed ", random.seed());
  for (int round = 0; round < 30; ++round) {
    const std::size_t k = random.size(1, 150);
    const std::size_t samples = random.size(0, 90);
    const auto u = random.integers<std::uint8_t>(k * samples + 1);
    const auto s = random.integers<std::int8_t>(k * samples + 1);
    const std::int32_t zu = random.integer(0, 255);
    const std::int32_t zs = random.integer(-128, 127);
    gram_observer observer(k);
    observer.observe(matrix_view<const std::uint8_t>(u.data(), samples, k), zu);
    // Stored by columns.
    observer.observe(matrix_view<const std::int8_t>(s.data(), k, samples).transposed(), zs);
    CHECK(observer.count() == 2 * samples);
    if (samples == 0) {
      continue;
    }
    const gram_matrix g = observer.finalize();
    std::vector<double> magnitudes(k);
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        std::int64_t sum = 0;
        for (std::size_t r = 0; r < samples; ++r) {
          sum += std::int64_t{u[r * k + i] - zu} * (u[r * k + j] - zu);
          sum += std::int64_t{s[i * samples + r] - zs} * (s[j * samples + r] - zs);
        }
        CHECK(g(i, j) == static_cast<double>(sum));
      }
      std::int64_t sum = 0;
      for (std::size_t r = 0; r < samples; ++r) {
        sum += std::abs(u[r * k + i] - zu) + std::abs(s[i * samples + r] - zs);
      }
      CHECK(observer.mean_magnitudes()[i] ==
            static_cast<float>(static_cast<double>(sum) / static_cast<double>(2 * samples)));
    }
  }
}

TEST_CASE("gram_observer does not care how samples are split, ordered, merged, shared out") {
  random_source random(303);
  INFO("seed ", random.seed());
  detent::thread_pool pool(3);
  for (int round = 0; round < 40; ++round) {
    INFO("round ", round);
    const std::size_t k = random.size(1, 80);
    const std::size_t samples = random.size(1, 120);
    std::vector<float> x(samples * k);
    for (std::size_t r = 0; r < samples; ++r) {
      // Rows of all sizes in some rounds: most of them are forgotten.
      const float size = random.chance(5)
                             ? 0.0F
                             : std::ldexp(1.0F, round % 3 == 0 ? random.integer(-140, 120)
                                                               : random.integer(-5, 5));
      for (std::size_t c = 0; c < k; ++c) {
        x[r * k + c] = random.real(-1.0F, 1.0F) * size;
      }
    }
    const gram_observer whole = observed(x, k);
    for (std::size_t r = samples; r > 1; --r) {
      const std::size_t other = random.size(0, r - 1);
      if (other != r - 1) {
        std::swap_ranges(x.begin() + static_cast<std::ptrdiff_t>((r - 1) * k),
                         x.begin() + static_cast<std::ptrdiff_t>(r * k),
                         x.begin() + static_cast<std::ptrdiff_t>(other * k));
      }
    }
    std::vector<gram_observer> parts(random.size(1, 5), gram_observer(k));
    for (std::size_t first = 0; first < samples;) {
      const std::size_t n = random.size(1, samples - first);
      parts[random.size(0, parts.size() - 1)].observe(
          matrix_view<const float>(x.data() + first * k, n, k),
          random.chance(50) ? pool.parallel() : detent::parallel_for{});
      first += n;
    }
    while (parts.size() > 1) {
      std::swap(parts.back(), parts[random.size(0, parts.size() - 1)]);
      const gram_observer last = parts.back();
      parts.pop_back();
      parts[random.size(0, parts.size() - 1)].merge(last);
    }
    CHECK((parts.front() == whole));
    CHECK((parts.front().finalize() == whole.finalize()));
    CHECK(parts.front().save() == whole.save());
    CHECK(parts.front().mean_magnitudes() == whole.mean_magnitudes());
    gram_observer doubled = whole;
    doubled.merge(doubled);
    gram_observer twice = whole;
    twice.observe(rows_of(x, k));
    CHECK((doubled == twice));
    CHECK_FALSE((doubled == whole));
  }
}

TEST_CASE("gram_observer: rows too small to matter are forgotten, in either order") {
  const float large = 3.0F;
  const float small = std::ldexp(3.0F, -28);      // seven bins below
  const float too_small = std::ldexp(3.0F, -32);  // eight
  const auto total = [](const std::vector<float>& x) { return observed(x, 1).finalize()(0, 0); };
  CHECK(total({large, small}) == 9.0 + std::ldexp(9.0, -56));
  CHECK(total({large, too_small}) == 9.0);
  CHECK(total({too_small, large}) == 9.0);
  CHECK(total({too_small}) == std::ldexp(9.0, -64));
  CHECK((observed({large, too_small}, 1) == observed({too_small, large}, 1)));
  CHECK(total({0.0F, -0.0F}) == 0.0);
  CHECK(total({std::numeric_limits<float>::denorm_min()}) == 0x1p-298);
  CHECK(total({std::numeric_limits<float>::max(), 1.0F}) ==
        static_cast<double>(std::numeric_limits<float>::max()) *
            static_cast<double>(std::numeric_limits<float>::max()));
}

TEST_CASE("gram_observer: sums beyond 64 bits") {
  // Each sample adds almost 2^48 to the sums: 2^15 of them would leave 64 bits.
  const float largest = std::nextafter(16.0F, 0.0F);
  const auto k = static_cast<double>(0xFFFFFF);
  for (const float sign : {1.0F, -1.0F}) {
    std::vector<float> x;
    for (std::size_t r = 0; r < 50000; ++r) {
      x.insert(x.end(), {largest, sign * largest, 1.0F});
    }
    const gram_observer observer = observed(x, 3);
    const double square = k * k;  // 48 bits: times 50000, which has 12 after its zeros, 60 bits
    const double expected = std::ldexp(square * 50000.0, -40);
    const gram_matrix g = observer.finalize();
    CHECK(g(0, 0) == expected);
    CHECK(g(1, 1) == expected);
    CHECK(g(1, 0) == static_cast<double>(sign) * expected);
    CHECK(g(2, 2) == 50000.0);
    CHECK(g(2, 1) == static_cast<double>(sign * largest) * 50000.0);

    // The parts have no high parts, or other ones.
    gram_observer merged(3);
    for (std::size_t first = 0; first < 50000; first += 5000) {
      gram_observer part(3);
      part.observe(matrix_view<const float>(x.data() + first * 3, 5000, 3));
      part.merge(gram_observer::load(merged.save()));
      merged = part;
    }
    CHECK((merged == observer));
    CHECK(merged.save() == observer.save());
    CHECK((gram_observer::load(observer.save()) == observer));
    gram_observer more = observer;
    more.merge(observer);
    CHECK(more.finalize()(0, 0) == 2.0 * expected);
  }
}

TEST_CASE("gram_observer: saved and loaded, and not from anything else") {
  random_source random(304);
  INFO("seed ", random.seed());
  const std::vector<float> x = random.reals(5 * 7, -20.0F, 20.0F);
  const gram_observer observer = observed(x, 5);
  const std::vector<std::byte> saved = observer.save();
  gram_observer loaded = gram_observer::load(saved);
  CHECK((loaded == observer));
  CHECK(loaded.count() == 7);
  CHECK(loaded.features() == 5);
  CHECK(loaded.save() == saved);
  loaded.observe(rows_of(x, 5));
  CHECK_FALSE((loaded == observer));

  for (std::size_t i = 0; i < saved.size(); ++i) {
    std::vector<std::byte> damaged = saved;
    damaged[i] ^= std::byte{1};
    bool is_refused = false;
    try {
      static_cast<void>(gram_observer::load(damaged));
    } catch (const detent::error& e) {
      is_refused = e.kind() == error_kind::bad_file || e.kind() == error_kind::unsupported;
    }
    CHECK(is_refused);
    check_error(error_kind::bad_file, {"gram_observer::load"}, [&] {
      static_cast<void>(gram_observer::load(std::span<const std::byte>(saved).first(i)));
    });
  }

  // Content that the checksum vouches for, and that is nonsense nevertheless.
  const auto with = [&](std::size_t at, auto value) {
    std::vector<std::byte> b = saved;
    std::memcpy(b.data() + 24 + at, &value, sizeof value);
    const std::uint64_t sum =
        detent::detail::checksum(std::span<const std::byte>(b).first(b.size() - 8));
    std::memcpy(b.data() + b.size() - 8, &sum, sizeof sum);
    return b;
  };
  const auto fails = [&](const std::vector<std::byte>& b) {
    check_error(error_kind::bad_file, {"gram_observer::load"},
                [&] { static_cast<void>(gram_observer::load(b)); });
  };
  CHECK((gram_observer::load(with(8, std::uint64_t{7})) == observer));
  fails(with(0, std::uint64_t{0}));
  fails(with(0, std::uint64_t{6}));
  fails(with(0, std::uint64_t{1} << 50));
  fails(with(16, std::uint64_t{9}));
  fails(with(24, std::int32_t{32}));
  fails(with(24, std::int32_t{-39}));
  fails(with(28, std::int32_t{1}));
  fails(with(28, std::int32_t{2}));
  fails(with(32, std::int64_t{-1}));  // a sum of |k|
  fails(with(72, std::int64_t{-1}));  // a square
  fails(with(72, std::numeric_limits<std::int64_t>::max()));
  fails(with(80, std::numeric_limits<std::int64_t>::max()));  // not a square
  fails(with(80, std::int64_t{1} << 61));
}

TEST_CASE("gram_observer: saved sums are those of so many samples, and can go on") {
  using sums = std::vector<std::int64_t>;
  const auto saved = [](std::uint64_t count, const sums& magnitudes, const sums& low,
                        const sums& high) {
    detent::detail::byte_writer out({"detentGr", 1});
    out.put(std::uint64_t{magnitudes.size()});
    out.put(count);
    out.put(std::uint64_t{1});
    out.put(std::int32_t{0});
    out.put(std::int32_t{high.empty() ? 0 : 1});
    for (const sums* values : {&magnitudes, &low, &high}) {
      out.put_array(std::span<const std::int64_t>(*values));
    }
    return std::move(out).finish();
  };
  const auto refuses = [](const std::vector<std::byte>& bytes) {
    check_error(error_kind::bad_file, {"gram_observer::load"},
                [&] { static_cast<void>(detent::gram_observer::load(bytes)); });
  };
  constexpr std::int64_t one = 1;
  constexpr std::uint64_t most = std::uint64_t{1} << 38;
  constexpr std::int64_t end = (one << 62) - 1;
  refuses(saved(1, {end}, {0}, {end}));
  // A sample adds up to 2^24 to magnitudes and up to 2^48 to squares.
  static_cast<void>(detent::gram_observer::load(saved(2, {one << 25}, {one << 49}, {})));
  refuses(saved(2, {(one << 25) + 1}, {one << 49}, {}));
  refuses(saved(2, {one << 25}, {(one << 49) + 1}, {}));
  refuses(saved(0, {1}, {1}, {}));
  // Twice a product is at most the sum of the squares of its factors.
  static_cast<void>(detent::gram_observer::load(saved(1, {1, 1}, {2, -5, 8}, {})));
  refuses(saved(1, {1, 1}, {0, 5, 8}, {}));
  refuses(saved(1, {1, 1}, {1, -5, 8}, {}));

  // As many samples as there may be, with the largest sums: nothing more is taken.
  refuses(saved(most + 1, {1}, {1}, {}));
  detent::gram_observer full =
      detent::gram_observer::load(saved(most, {one << 62}, {0}, {one << 54}));
  CHECK(full.finalize()(0, 0) == std::ldexp(1.0, 38 + 2 * 4));
  const auto bytes = full.save();
  const std::vector<float> x = {1.0F};
  check_error(error_kind::overflow, {"gram_observer", "2^38"},
              [&] { full.observe(detent::matrix_view<const float>(x.data(), 1, 1)); });
  check_error(error_kind::overflow, {"gram_observer", "2^38"}, [&] { full.merge(full); });
  CHECK(full.save() == bytes);
  // Half as many twice are as many.
  detent::gram_observer half =
      detent::gram_observer::load(saved(most / 2, {one << 61}, {0}, {one << 53}));
  half.merge(half);
  CHECK(half.save() == bytes);
}

TEST_CASE("gram_observer: errors change nothing") {
  const auto invalid = error_kind::invalid_argument;
  check_error(invalid, {"0 features"}, [] { gram_observer(0); });
  check_error(invalid, {"nothing"}, [] { static_cast<void>(gram_observer(3).finalize()); });
  check_error(invalid, {"nothing"}, [] { static_cast<void>(gram_observer(3).mean_magnitudes()); });
  gram_observer observer = observed({1.0F, 2.0F, 3.0F}, 3);
  const gram_observer before = observer;
  for (const float bad : {quiet_nan, infinity, -infinity}) {
    const std::vector<float> x = {1.0F, 2.0F, 3.0F, 4.0F, bad, 6.0F};
    check_error(invalid, {"row 1, column 1"}, [&] { observer.observe(rows_of(x, 3)); });
  }
  check_error(error_kind::shape_mismatch, {"2 features after 3"}, [&] {
    observer.observe(rows_of({1.0F, 2.0F}, 2));
  });
  check_error(invalid, {"null", "4 x 3"},
              [&] { observer.observe(matrix_view<const float>(nullptr, 4, 3)); });
  check_error(error_kind::shape_mismatch, {"4 features into 3"},
              [&] { observer.merge(gram_observer(4)); });
  const std::vector<std::uint8_t> codes(3);
  check_error(invalid, {"256"},
              [&] { observer.observe(matrix_view<const std::uint8_t>(codes.data(), 1, 3), 256); });
  CHECK((observer == before));
}

// ------------------------------------------------------------------------------------- gram_matrix

TEST_CASE("gram_matrix: whole and diagonal") {
  const std::vector<double> values = {2.0, -1.0, 0.5, -1.0, 3.0, 0.0, 0.5, 0.0, 1.0};
  const gram_matrix g = gram_matrix::from_matrix(matrix_view<const double>(values.data(), 3, 3));
  CHECK(g(0, 1) == -1.0);
  CHECK(g(2, 0) == 0.5);
  CHECK(g.diagonal(1) == 3.0);
  CHECK(g.mean_diagonal() == 2.0);
  const gram_matrix d = g.diagonal_part();
  CHECK(d.is_diagonal());
  CHECK(d(1, 1) == 3.0);
  CHECK(d(0, 1) == 0.0);
  CHECK((d == gram_matrix::from_diagonal(std::vector<double>{2.0, 3.0, 1.0})));
  CHECK(g.dampened(0.25)(0, 0) == 2.5);
  CHECK(g.dampened(0.25)(0, 1) == -1.0);
  CHECK(d.dampened(0.5)(2, 2) == 2.0);
  CHECK(g(0, 0) == 2.0);
  CHECK(g.diagonal_part().dampened(0.5)(2, 2) == 2.0);
  gram_matrix taken = g;
  taken = std::move(taken).dampened(0.25);
  CHECK(taken(1, 1) == 3.5);
  CHECK(taken(0, 1) == -1.0);
  const std::vector<float> divisors = {2.0F, 1.0F, 0.5F};
  CHECK(g.divided_by(divisors)(0, 0) == 0.5);
  CHECK(g.divided_by(divisors)(0, 1) == -0.5);
  CHECK(g.divided_by(divisors)(2, 0) == 0.5);
  CHECK(d.divided_by(divisors)(2, 2) == 4.0);
  CHECK((g.divided_by(divisors).diagonal_part() == d.divided_by(divisors)));
  // Sums beyond the range of doubles.
  const gram_matrix huge = gram_matrix::from_diagonal(std::vector<double>(4, 1e308));
  CHECK(huge.mean_diagonal() == 1e308);
  CHECK(huge.dampened(0.5)(3, 3) == 1.5e308);
  check_error(error_kind::invalid_argument, {"damping of 10", "infinite"},
              [&] { static_cast<void>(huge.dampened(10.0)); });
  for (const gram_matrix& m : {g, d}) {
    std::vector<double> y = {1.0, 1.0, 1.0};
    m.add_scaled_column(0, 2.0, y.data(), 0, 2);
    CHECK(y == std::vector<double>{5.0, 1.0 + 2.0 * m(0, 1), 1.0});
  }
}

TEST_CASE("gram_matrix: what is none") {
  const auto invalid = error_kind::invalid_argument;
  const auto matrix = [](std::vector<double> v, std::size_t rows, std::size_t columns) {
    static_cast<void>(gram_matrix::from_matrix({v.data(), rows, columns}));
  };
  check_error(error_kind::shape_mismatch, {"1 x 2"}, [&] { matrix({1.0, 2.0}, 1, 2); });
  check_error(invalid, {"row 1, column 0", "nan"}, [&] {
    matrix({1.0, 0.0, std::numeric_limits<double>::quiet_NaN(), 1.0}, 2, 2);
  });
  check_error(invalid, {"0.5", "row 0, column 1", "0.25"}, [&] {
    matrix({1.0, 0.5, 0.25, 1.0}, 2, 2);
  });
  check_error(invalid, {"the diagonal has -1 at 0"}, [&] { matrix({-1.0}, 1, 1); });
  check_error(invalid, {"row 0, column 1", "diagonal is 0"}, [&] {
    matrix({0.0, 0.5, 0.5, 1.0}, 2, 2);
  });
  check_error(invalid, {"inf", "at 1"}, [] {
    static_cast<void>(gram_matrix::from_diagonal(
        std::vector<double>{1.0, std::numeric_limits<double>::infinity()}));
  });
  check_error(invalid, {"-2"},
              [] { static_cast<void>(gram_matrix::from_diagonal(std::vector<double>{-2.0})); });
  const gram_matrix g = gram_matrix::from_diagonal(std::vector<double>{1.0, 2.0});
  check_error(invalid, {"damping", "-1"}, [&] { static_cast<void>(g.dampened(-1.0)); });
  check_error(error_kind::shape_mismatch, {"1 divisors"},
              [&] { static_cast<void>(g.divided_by(std::vector<float>{1.0F})); });
  check_error(invalid, {"divisor 0 at 1"}, [&] {
    static_cast<void>(g.divided_by(std::vector<float>{1.0F, 0.0F}));
  });
}
