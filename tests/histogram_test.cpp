// SPDX-License-Identifier: BSD-3-Clause
// The histogram that observers share: its kernel, its independence of everything but the values,
// what it tells of them, and its bytes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"
#include "strided.hpp"

namespace {

using detent::bin_storage;
using detent::count_histogram;
using detent::error_kind;
using detent::histogram;
using detent::value_bin;
using test::check_error;
using test::for_each_target;
using test::random_source;
using test::same;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// Of many magnitudes, with zeros of both signs and values that come again.
std::vector<float> any_values(random_source& random, std::size_t n) {
  std::vector<float> x(n);
  const int octaves = random.integer(1, 120);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = std::ldexp(random.real(-1.0F, 1.0F), random.integer(-octaves, 0) + 20);
    if (random.chance(10)) {
      x[i] = random.chance(50) ? 0.0F : -0.0F;
    } else if (i > 0 && random.chance(20)) {
      x[i] = x[random.size(0, i - 1)];
    } else if (random.chance(2)) {
      x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()) & 0x807FFFFFU);  // tiny
    }
  }
  return x;
}

template <class Histogram = histogram>
Histogram observed(std::span<const float> x, bin_storage storage = bin_storage::dense) {
  Histogram h(storage);
  h.observe(x);
  return h;
}

/// Bins as a map from the first magnitude, without the help of the library.
struct plain_bin {
  std::uint64_t count = 0;
  long double sum = 0.0L;
};
std::map<float, plain_bin> plain_bins(std::span<const float> x) {
  float largest = 0.0F;
  for (const float value : x) {
    largest = std::max(largest, std::fabs(value));
  }
  // Bins are kept from 30 octaves below that of the largest value.
  const float lowest =
      largest < std::ldexp(1.0F, -126 + 30) ? 0.0F : std::ldexp(1.0F, std::ilogb(largest) - 30);
  std::map<float, plain_bin> bins;
  for (const float value : x) {
    const float magnitude = std::fabs(value);
    float smallest = 0.0F;
    if (magnitude >= lowest && magnitude > 0.0F) {
      smallest = std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) >> 14 << 14);
    } else if (magnitude > 0.0F) {
      smallest = lowest / 2.0F;  // stands for all that is smaller
    }
    if (value == 0.0F) {
      smallest = 0.0F;
    }
    // Subnormal numbers of the first bin begin at 0 as well; tell them from zeros.
    const bool first_bin = value != 0.0F && smallest == 0.0F;
    const float key = first_bin ? std::numeric_limits<float>::denorm_min() : smallest;
    plain_bin& bin = bins[std::signbit(value) && value != 0.0F ? -key : key];
    ++bin.count;
    bin.sum += static_cast<long double>(magnitude);
  }
  return bins;
}

}  // namespace

TEST_CASE("bin_positions: every target, tail and alignment gives what the reference says") {
  random_source random(1);
  INFO("seed ", random.seed());
  constexpr std::size_t max_size = 150;
  test::guarded_memory memory((max_size + 4) * sizeof(float));
  for (std::size_t n = 0; n <= max_size; ++n) {
    for (std::size_t placement = 0; placement < 5; ++placement) {
      const auto x = placement == 4 ? memory.back<float>(n) : memory.front<float>(n, placement);
      for (float& value : x) {
        constexpr float special[] = {quiet_nan, 0.0F, -0.0F, infinity, -infinity, 1e-40F, -3e38F};
        value = random.chance(20) ? special[random.size(0, std::size(special) - 1)]
                                  : random.any_float();
      }
      const std::uint32_t lowest = random.integer(0U, 200U) << 23;
      std::vector<std::uint32_t> expected;
      std::uint32_t largest = 0;
      for (const float value : x) {
        if (value != 0.0F) {
          expected.push_back(detent::reference::bin_position(value, lowest));
        }
        largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU);
      }
      const auto range = detent::reference::min_max(x.data(), n);
      INFO("size ", n, " placement ", placement);
      for_each_target([&] {
        std::vector<std::uint32_t> positions(n + 16, 7);
        const auto r = detent::detail::active<detent::kernels::statistics_kernels>().bin_positions(
            x.data(), n, lowest, positions.data());
        positions.resize(r.count);
        CHECK(positions == expected);
        CHECK(r.largest == largest);
        CHECK(same(r.lower, range.lower));
        CHECK(same(r.upper, range.upper));
      });
    }
  }
}

TEST_CASE("a position is the pattern above the lowest, the sign in bit 28") {
  using detent::reference::bin_position;
  const std::uint32_t one = std::bit_cast<std::uint32_t>(1.0F);
  CHECK(bin_position(1.0F, one) == 0);
  CHECK(bin_position(-1.0F, one) == 1U << 28);
  CHECK((bin_position(1.0F + 1.0F / 512.0F, one) >> 14) == 1);
  CHECK(bin_position(std::nextafter(1.0F + 1.0F / 512.0F, 0.0F), one) == 0x3FFF);
  CHECK((bin_position(2.0F, one) >> 14) == 512);
  CHECK(bin_position(0.99F, one) == 31U << 23);
  CHECK(bin_position(-1e-30F, one) == ((31U << 23) | (1U << 28)));
}

TEST_CASE(
    "the histogram is that of the values: any order, split, merge, storage, target, threads") {
  random_source random(2);
  INFO("seed ", random.seed());
  detent::thread_pool pool(3);
  for (int round = 0; round < 60; ++round) {
    INFO("round ", round);
    std::vector<float> x = any_values(random, random.size(1, 6000));
    if (round % 3 == 0) {
      for (int i = 0; i < 5; ++i) {
        x[random.size(0, x.size() - 1)] = random.any_float();  // perhaps a NaN or an infinity
      }
    }
    const std::vector<std::byte> expected = observed(x).save();
    const std::vector<std::byte> expected_counts = observed<count_histogram>(x).save();
    for_each_target([&] {
      CHECK(observed(x).save() == expected);
      CHECK(observed<count_histogram>(x, bin_storage::sparse).save() == expected_counts);
    });
    for (std::size_t i = x.size(); i > 1; --i) {
      std::swap(x[i - 1], x[random.size(0, i - 1)]);
    }
    // A random tree of merges over random parts.
    std::vector<histogram> parts;
    for (std::size_t first = 0; first < x.size();) {
      const std::size_t n = std::min(x.size() - first, random.size(0, 1500));
      parts.push_back(observed(std::span<const float>(x).subspan(first, n),
                               random.chance(50) ? bin_storage::dense : bin_storage::sparse));
      first += n;
    }
    while (parts.size() > 1) {
      const std::size_t a = random.size(0, parts.size() - 2);
      parts[a].merge(parts[a + 1]);
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(a) + 1);
    }
    CHECK(parts[0].save() == expected);
  }
  // Large enough to be shared out.
  std::vector<float> x = random.reals(1300000, -3.0F, 5.0F);
  x[700000] = 4e9F;
  histogram shared;
  shared.observe(x, pool.parallel());
  CHECK(shared.save() == observed(x).save());
  CHECK(shared == observed(x, bin_storage::sparse));
}

TEST_CASE(
    "lines of a view keep its elements and their order; views are observed element by element") {
  random_source random(20);
  INFO("seed ", random.seed());
  for (int round = 0; round < 400; ++round) {
    INFO("round ", round);
    std::vector<std::size_t> shape = test::random_shape(random, 0);
    const bool is_long = round % 4 == 0;  // lines that need no gathering, and others beside them
    if (is_long && !shape.empty() && shape.size() < 4) {
      shape.back() = random.size(500, 2500);
    }
    while (round % 10 == 1 && shape.size() < detent::max_rank) {
      shape.push_back(random.size(1, 2));
    }
    auto x = test::random_layout<float>(random, shape, quiet_nan);
    std::vector<float> values;
    test::for_each_index(shape, [&](const test::tensor_index& index) {
      values.push_back(random.chance(5) ? 0.0F : random.real(-3.0F, 3.0F));
      if (round % 20 == 3 && random.chance(1)) {
        values.back() = random.chance(50) ? quiet_nan : infinity;
      }
      x[index] = values.back();
    });
    if (!values.empty()) {
      const bool has_nan =
          std::any_of(values.begin(), values.end(), [](float v) { return v != v; });
      std::vector<float> visited;
      std::size_t lines = 0;
      const auto merged = detent::detail::merge_dimensions(x.view);
      CHECK(merged.size() == values.size());
      detent::detail::for_each_row(
          merged, [&](const float* line, std::size_t n, std::ptrdiff_t stride, const auto&) {
            ++lines;
            for (std::size_t i = 0; i < n; ++i) {
              visited.push_back(line[static_cast<std::ptrdiff_t>(i) * stride]);
            }
          });
      CHECK((visited == values || has_nan));
      const detent::tensor_view<float> dense(values.data(), shape);
      CHECK(detent::detail::merge_dimensions(dense).rank == (values.size() > 1 ? 1 : 0));
      std::size_t lines_before = 0;
      detent::detail::for_each_row(
          x.view, [&](const float*, std::size_t, std::ptrdiff_t, const auto&) { ++lines_before; });
      CHECK(lines <= lines_before);
    }
    for (const bin_storage storage : {bin_storage::dense, bin_storage::sparse}) {
      histogram h(storage);
      h.observe(detent::tensor_view<const float>(x.view));
      CHECK(h == observed(values));
    }
  }
  // A view that repeats its elements.
  const float one[2] = {1.0F, -2.0F};
  const std::size_t shape[] = {3, 2};
  const std::ptrdiff_t strides[] = {0, 1};
  histogram h;
  h.observe(detent::tensor_view<const float>(one, shape, strides));
  CHECK(h == observed(std::vector<float>{1.0F, 1.0F, 1.0F, -2.0F, -2.0F, -2.0F}));
  const std::size_t deeper[] = {2, 3, 2};
  const std::ptrdiff_t repeated[] = {0, 0, 1};
  const detent::tensor_view<const float> six(one, deeper, repeated);
  CHECK(detent::detail::merge_dimensions(six).rank == 2);
  histogram twice;
  twice.observe(six);
  h.merge(h);
  CHECK(twice == h);
}

TEST_CASE("bins hold what they say: counts, exact sums, ranges") {
  random_source random(3);
  INFO("seed ", random.seed());
  for (int round = 0; round < 40; ++round) {
    INFO("round ", round);
    const std::vector<float> x = any_values(random, random.size(1, 3000));
    const histogram h = observed(x);
    const auto expected = plain_bins(x);
    const std::vector<value_bin> bins = h.bins();
    const auto [least, most] = std::minmax_element(x.begin(), x.end());
    CHECK(h.range().lower == *least);
    CHECK(h.range().upper == *most);
    CHECK(h.count() == x.size());
    REQUIRE(bins.size() == expected.size());
    auto entry = expected.begin();
    for (const value_bin& bin : bins) {
      CHECK(bin.count == entry->second.count);
      CHECK(bin.negative == std::signbit(entry->first));
      if (bin.excess_known) {
        const long double unit =
            bin.smallest == 0.0F && bin.largest == 0.0F
                ? 0.0L
                : static_cast<long double>(std::nextafter(bin.smallest, 1e38F)) -
                      static_cast<long double>(bin.smallest);
        const long double sum = static_cast<long double>(bin.count) * bin.smallest +
                                static_cast<long double>(bin.excess) * unit;
        CHECK(sum == entry->second.sum);
      }
      ++entry;
    }
  }
}

TEST_CASE("the rank of a decimal fraction is that of the decimal number") {
  // In thousandths of a percent, so that the exact rank is found with integers.
  for (std::uint64_t thousandths = 0; thousandths <= 100000; thousandths += 1) {
    const double percent = static_cast<double>(thousandths) / 1000.0;
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{100}, std::uint64_t{999},
                                      std::uint64_t{1000}, std::uint64_t{12345600}}) {
      const std::uint64_t exact =
          (std::max)((thousandths * count + 99999) / 100000, std::uint64_t{1});
      const std::uint64_t rank = detent::quantile_rank(percent / 100.0, count);
      if (rank != exact) {
        INFO(percent, " % of ", count);
        REQUIRE(rank == exact);
      }
    }
  }
  CHECK(detent::quantile_rank(std::nextafter(0.5, 1.0), 1ULL << 60) == (1ULL << 59) + 128);
  CHECK(detent::quantile_rank(0.5 + 0x1p-40, 1000) == 501);
  CHECK(detent::quantile_rank(1.0, ~std::uint64_t{0}) == ~std::uint64_t{0});
}

TEST_CASE("an order statistic lies in the range that is given for it") {
  random_source random(4);
  INFO("seed ", random.seed());
  for (int round = 0; round < 60; ++round) {
    std::vector<float> x = any_values(random, random.size(1, 2000));
    const histogram h = observed(x);
    const count_histogram counts = observed<count_histogram>(x);
    const auto all_magnitudes = magnitudes(h.bins());
    std::vector<float> absolute = x;
    for (float& value : absolute) {
      value = std::fabs(value);
    }
    std::sort(x.begin(), x.end());
    std::sort(absolute.begin(), absolute.end());
    for (const double fraction : {0.0, 0.001, 0.25, 0.5, 0.9, 0.999, 0.9999, 1.0}) {
      const auto rank = static_cast<std::size_t>(detent::quantile_rank(fraction, x.size()));
      INFO("round ", round, " fraction ", fraction, " rank ", rank);
      const auto exact = x[rank - 1] + 0.0F;
      const detent::value_range r = h.quantile(fraction);
      CHECK(r.lower <= exact);
      CHECK(exact <= r.upper);
      CHECK((r.upper - r.lower <= std::fabs(exact) / 511.0F ||
             std::fabs(exact) < absolute.back() * 1e-8F));
      const detent::value_range c = counts.quantile(fraction);
      CHECK(c.lower <= exact);
      CHECK(exact <= c.upper);
      const detent::value_range m = detent::order_statistic(all_magnitudes, rank);
      CHECK(m.lower <= absolute[rank - 1]);
      CHECK(absolute[rank - 1] <= m.upper);
    }
    CHECK(h.quantile(0.0).lower >= x.front());
    CHECK(h.quantile(1.0).upper == x.back());
  }
  const std::vector<float> four = {1.0F, 2.0F, 3.0F, 4.0F};
  CHECK(observed(four).quantile(0.5) == detent::value_range{2.0F, 2.0F});
  CHECK(observed(four).quantile(0.51) == detent::value_range{3.0F, 3.0F});
  CHECK(observed(four).quantile(0.0) == detent::value_range{1.0F, 1.0F});
}

TEST_CASE("other formats are observed as the nearest floats") {
  random_source random(5);
  INFO("seed ", random.seed());
  std::vector<detent::float16> halves;
  std::vector<float> as_floats;
  for (std::uint32_t pattern = 0; pattern < 0x10000U; ++pattern) {
    const detent::float16 value{static_cast<std::uint16_t>(pattern)};
    if (std::isfinite(to_float(value))) {
      halves.push_back(value);
      as_floats.push_back(to_float(value));
    }
  }
  histogram h;
  h.observe(std::span<const detent::float16>(halves));
  CHECK(h == observed(as_floats));

  std::vector<double> doubles(5000);
  std::vector<float> rounded(doubles.size());
  for (std::size_t i = 0; i < doubles.size(); ++i) {
    doubles[i] = std::ldexp(static_cast<double>(random.bits()), random.integer(-100, -60));
    rounded[i] = static_cast<float>(doubles[i]);
  }
  histogram d;
  d.observe(std::span<const double>(doubles));
  CHECK(d == observed(rounded));
  const double beyond = 1e300;
  d.observe(std::span<const double>(&beyond, 1));
  CHECK(d.count_infinite() == 1);
}

TEST_CASE("counts are repetitions; views are what they show") {
  random_source random(6);
  INFO("seed ", random.seed());
  const std::vector<float> x = any_values(random, 300);
  std::vector<std::uint64_t> counts(x.size());
  std::vector<float> repeated;
  for (std::size_t i = 0; i < x.size(); ++i) {
    counts[i] = random.integer(0U, 9U);
    repeated.insert(repeated.end(), counts[i], x[i]);
  }
  histogram h;
  h.observe(x, counts);
  CHECK(h == observed(repeated));

  // Every second column of a 6 x 50 matrix, rows backwards.
  const std::size_t shape[] = {6, 25};
  const std::ptrdiff_t strides[] = {-50, 2};
  std::vector<float> shown;
  for (std::size_t r = 6; r-- > 0;) {
    for (std::size_t c = 0; c < 50; c += 2) {
      shown.push_back(x[r * 50 + c]);
    }
  }
  histogram v;
  v.observe(detent::tensor_view<const float>(x.data() + 250, shape, strides));
  CHECK(v == observed(shown));
}

TEST_CASE("memory does not grow with what is observed") {
  random_source random(7);
  std::vector<float> x = any_values(random, 4096);
  histogram h = observed(x);
  count_histogram c = observed<count_histogram>(x);
  const std::size_t memory = h.memory();
  const std::size_t count_memory = c.memory();
  CHECK(memory <= 512U * 1024U);
  CHECK(count_memory <= 256U * 1024U);
  for (int batch = 1; batch < 10000; ++batch) {
    for (float& value : x) {
      value = std::ldexp(random.real(-1.0F, 1.0F), batch % 60 - 20);
    }
    h.observe(x);
    c.observe(x);
  }
  CHECK(h.memory() == memory);
  CHECK(c.memory() == count_memory);
  CHECK(observed(x, bin_storage::sparse).memory() < memory);
}

TEST_CASE("what is loaded takes the memory of its bins, and all bins only when values come") {
  const auto check = [](auto h) {
    using type = decltype(h);
    const std::size_t unused = type().memory();
    h.observe(std::vector<float>{1.0F, -0.5F, 0.0F});
    const std::size_t dense = h.memory();
    CHECK(dense > 200U * 1024U);
    type loaded = type::load(h.save());
    CHECK(loaded == h);
    CHECK(loaded.memory() < unused + 16U * 1024U);
    // Merged and copied as it is.
    type merged;
    merged.merge(loaded);
    merged.merge(type::load(loaded.save()));
    CHECK(merged.memory() < unused + 16U * 1024U);
    CHECK(type(merged).memory() < unused + 16U * 1024U);
    CHECK(merged.count() == 6);
    // From then on it is as any other. The last value moves bins.
    const std::vector<float> more = {2.0F, 1e-12F, -3.0F, 1e6F};
    h.observe(more);
    loaded.observe(more);
    CHECK(loaded == h);
    CHECK(loaded.memory() == dense);
    type other = h;
    other.merge(merged);
    merged.merge(h);
    CHECK(merged == other);
    CHECK(merged.memory() == dense);
    const std::vector<std::uint64_t> twice = {2};
    type counted = type::load(h.save());
    counted.observe(std::vector<float>{1e9F}, twice);
    h.observe(std::vector<float>{1e9F, 1e9F});
    CHECK(counted == h);
    CHECK(counted.bins().size() == h.bins().size());
  };
  check(histogram());
  check(count_histogram());
}

TEST_CASE("saved histograms come back the same, and damaged ones do not") {
  random_source random(8);
  INFO("seed ", random.seed());
  const std::vector<float> x = any_values(random, 60);
  const auto saved = observed(x).save();
  for (const bin_storage storage : {bin_storage::dense, bin_storage::sparse}) {
    histogram h = histogram::load(saved, storage);
    CHECK(h == observed(x));
    h.observe(x);
    histogram twice = observed(x);
    twice.merge(observed(x));
    CHECK(h == twice);
  }
  CHECK(histogram::load(histogram().save()) == histogram());
  const auto nans = std::vector<float>{quiet_nan, infinity};
  CHECK(histogram::load(observed(nans).save()).count_nan() == 1);
  const auto zeros = std::vector<float>{0.0F, -0.0F};
  CHECK(histogram::load(observed(zeros).save()) == observed(zeros));
  // The sign of a zero is not kept, so that it can't make two states of the same values.
  const auto zero = observed(std::vector<float>{0.0F}).save();
  CHECK(observed(std::vector<float>{-0.0F}).save() == zero);
  for (const std::size_t end : {0U, 4U}) {  // the header, the content, four counts, the range
    auto negative = zero;
    const float value = -0.0F;
    std::memcpy(negative.data() + 24 + 8 + 32 + end, &value, sizeof value);
    const std::uint64_t sum =
        detent::detail::checksum(std::span<const std::byte>(negative).first(negative.size() - 8));
    std::memcpy(negative.data() + negative.size() - 8, &sum, 8);
    CHECK(histogram::load(negative).save() == zero);
  }

  for (std::size_t i = 0; i < saved.size(); ++i) {
    auto damaged = saved;
    damaged[i] ^= std::byte{1};
    CHECK_THROWS_AS(static_cast<void>(histogram::load(damaged)), detent::error);
    // With a checksum that fits, too, whatever does not throw is a histogram.
    const std::uint64_t sum =
        detent::detail::checksum(std::span<const std::byte>(damaged).first(damaged.size() - 8));
    std::memcpy(damaged.data() + damaged.size() - 8, &sum, 8);
    try {
      const histogram h = histogram::load(damaged);
      CHECK(h.save() == damaged);
    } catch (const detent::error& e) {
      CHECK((e.kind() == error_kind::bad_file || e.kind() == error_kind::unsupported));
    }
  }
  for (std::size_t size = 0; size < saved.size(); ++size) {
    CHECK_THROWS_AS(static_cast<void>(histogram::load(std::span(saved).first(size))),
                    detent::error);
  }
  check_error(error_kind::bad_file, {"other content"},
              [&] { static_cast<void>(count_histogram::load(saved)); });
  auto newer = saved;
  newer[8] = std::byte{2};
  check_error(error_kind::unsupported, {"version 2"},
              [&] { static_cast<void>(histogram::load(newer)); });
}

TEST_CASE("views without dimensions are one value; what is moved from has seen nothing") {
  const float value = 2.5F;
  const detent::tensor_view<const float> scalar(&value, std::span<const std::size_t>());
  for (const bin_storage storage : {bin_storage::dense, bin_storage::sparse}) {
    histogram h(storage);
    h.observe(scalar);
    CHECK(h == observed(std::span<const float>(&value, 1)));
    histogram taken = std::move(h);
    CHECK(taken.count() == 1);
    h.observe(scalar);  // NOLINT(bugprone-use-after-move)
    CHECK(h == taken);
  }
  detent::any_observer o = detent::make_observer("mse");
  o.observe(scalar);
  const detent::float16 half = detent::round_to<detent::float16>(1.5F);
  o.observe(detent::tensor_view<const detent::float16>(&half, std::span<const std::size_t>()));
  CHECK(o.finalize(detent::asymmetric<std::uint8_t>).evidence.upper == 2.5F);
  CHECK(o.finalize(detent::asymmetric<std::uint8_t>).evidence.lower == 1.5F);
}

TEST_CASE("saved histograms whose bins do not fit their range are refused") {
  const float x[] = {0.5F, 1.0F};
  const auto saved = observed(std::span<const float>(x)).save();
  // After the header of 24 bytes: 8 of content, four counts, the range, the lowest pattern, bins.
  constexpr std::size_t range_at = 24 + 8 + 32;
  const auto with = [&](std::size_t at, auto number) {
    auto bytes = saved;
    std::memcpy(bytes.data() + at, &number, sizeof number);
    const std::uint64_t sum =
        detent::detail::checksum(std::span<const std::byte>(bytes).first(bytes.size() - 8));
    std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
    return bytes;
  };
  CHECK(histogram::load(with(range_at, 0.5F)) == observed(std::span<const float>(x)));
  for (const auto& bytes : {with(range_at, -1.0F), with(range_at, 0.25F), with(range_at, 0.75F),
                            with(range_at + 4, 1.5F)}) {
    check_error(error_kind::bad_file, {"histogram::load"},
                [&] { static_cast<void>(histogram::load(bytes)); });
  }
  // A bin without values, whose count another one has.
  {
    auto bytes = with(range_at + 20, std::uint64_t{0});
    const std::uint64_t both = 2;
    std::memcpy(bytes.data() + range_at + 40, &both, sizeof both);
    const std::uint64_t sum =
        detent::detail::checksum(std::span<const std::byte>(bytes).first(bytes.size() - 8));
    std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
    check_error(error_kind::bad_file, {"a bin's count"},
                [&] { static_cast<void>(histogram::load(bytes)); });
  }
  // More values in sum than the bins have.
  check_error(error_kind::bad_file, {"do not add up"},
              [&] { static_cast<void>(histogram::load(with(24 + 8, std::uint64_t{3}))); });
  // The first bin made one of negative values.
  check_error(error_kind::bad_file, {"histogram::load"},
              [&] { static_cast<void>(histogram::load(with(range_at + 16, 0x4000U))); });
  // Sums that the range does not allow: 1.0 is the largest value, and the smallest one of its bin.
  // Each bin takes 20 bytes; its sum is behind its number and its count.
  const auto sum_of_last = saved.size() - 8 - 8;
  check_error(error_kind::bad_file, {"a bin's sum"},
              [&] { static_cast<void>(histogram::load(with(sum_of_last, std::uint64_t{1}))); });
  // Values in the bin below all others of a sign that the range does not have.
  const float tiny[] = {-1e-12F, 0.0F, 1.0F};
  const auto below = observed(std::span<const float>(tiny)).save();
  auto bytes = below;
  const float zero = 0.0F;
  std::memcpy(bytes.data() + range_at, &zero, sizeof zero);
  const std::uint64_t sum =
      detent::detail::checksum(std::span<const std::byte>(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
  CHECK(histogram::load(below) == observed(std::span<const float>(tiny)));
  check_error(error_kind::bad_file, {"beyond the range"},
              [&] { static_cast<void>(histogram::load(bytes)); });
}

TEST_CASE("a distribution leaves out values that are as good as zero") {
  // The window of a histogram ends 2^-30 below the largest magnitude.
  const float x[] = {1.0F, -0.5F, 1e-12F, -1e-12F, 0.0F};
  const detent::distribution d(observed(std::span<const float>(x)));
  CHECK(d.weight() == 5);
  CHECK(d.positive().size() == 1);
  CHECK(d.negative().size() == 1);
}

TEST_CASE("bins of one value, and of magnitudes of both signs") {
  // A single value is known from the sum of its bin.
  const float x[] = {0.7001F};
  const auto bins = observed(std::span<const float>(x)).bins();
  REQUIRE(bins.size() == 1);
  CHECK(bins[0].range() == detent::value_range{0.7001F, 0.7001F});
  // Of magnitudes the sum is known if it is known of both signs.
  for (const bool known : {true, false}) {
    for (const std::size_t unknown : {0U, 1U}) {
      std::vector<detent::value_bin> both = {bins[0], bins[0]};
      both[0].negative = true;
      both[unknown].excess_known = known;
      const auto merged = detent::magnitudes(both);
      REQUIRE(merged.size() == 1);
      CHECK(merged[0].count == 2);
      CHECK(merged[0].excess_known == known);
    }
  }
}

TEST_CASE("bad input is named") {
  histogram h;
  check_error(error_kind::invalid_argument, {"nothing was observed"},
              [&] { static_cast<void>(h.range()); });
  check_error(error_kind::invalid_argument, {"null data", "3"},
              [&] { h.observe(std::span<const float>(static_cast<const float*>(nullptr), 3)); });
  detent::thread_pool pool(2);
  check_error(error_kind::invalid_argument, {"null data"}, [&] {
    h.observe(std::span<const float>(static_cast<const float*>(nullptr), 1U << 20),
              pool.parallel());
  });
  const float values[] = {1.0F, 2.0F};
  const std::uint64_t counts[] = {1};
  check_error(error_kind::shape_mismatch, {"2 values", "1 counts"}, [&] {
    h.observe(std::span<const float>(values), std::span<const std::uint64_t>(counts));
  });
  const std::uint64_t many[] = {std::uint64_t{1} << 48, 1};
  check_error(error_kind::overflow, {"2^48"}, [&] {
    h.observe(std::span<const float>(values), std::span<const std::uint64_t>(many));
  });
  CHECK(h.count() == 0);
  h.observe(std::span<const float>(values));
  check_error(error_kind::invalid_argument, {"1.5"}, [&] { static_cast<void>(h.quantile(1.5)); });
  check_error(error_kind::invalid_argument, {"rank 3 of 2"},
              [&] { static_cast<void>(detent::order_statistic(h.bins(), 3)); });
  const float bad[] = {quiet_nan, infinity, 1.0F};
  h.observe(std::span<const float>(bad));
  check_error(error_kind::invalid_argument, {"1 of 5", "NaN"},
              [&] { static_cast<void>(h.bins()); });
  CHECK(h.count_infinite() == 1);
}
