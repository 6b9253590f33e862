// SPDX-License-Identifier: BSD-3-Clause
// The min_max kernel and the observers on it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"
#include "strided.hpp"

namespace {

using detent::channel_min_max_observer;
using detent::error_kind;
using detent::min_max_observer;
using detent::reference::min_max_result;
using test::check_error;
using test::for_each_target;
using test::random_source;
using test::same;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

min_max_result kernel_min_max(std::span<const float> x) {
  return detent::detail::active<detent::kernels::statistics_kernels>().min_max(x.data(), x.size());
}

template <class T>
void shuffle(random_source& random, std::vector<T>& values) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[random.size(0, i - 1)]);
  }
}

bool same_result(const min_max_result& a, const min_max_result& b) {
  return same(a.lower, b.lower) && same(a.upper, b.upper) && a.count_nan == b.count_nan;
}

min_max_observer observed(std::span<const float> x) {
  min_max_observer observer;
  observer.observe(x);
  return observer;
}

}  // namespace

// ----------------------------------------------------------------------------------------- kernel

TEST_CASE("min_max: tails, alignments, bounds, special values") {
  random_source random(1);
  INFO("seed ", random.seed());
  constexpr std::size_t max_size = 200;
  test::guarded_memory memory((max_size + 4) * sizeof(float));
  for (std::size_t n = 0; n <= max_size; ++n) {
    for (std::size_t placement = 0; placement < 5; ++placement) {
      const auto x = placement == 4 ? memory.back<float>(n) : memory.front<float>(n, placement);
      const int percent_special = random.chance(50) ? 0 : random.integer(1, 60);
      for (float& value : x) {
        constexpr float special[] = {quiet_nan, -quiet_nan, 0.0F,   -0.0F,
                                     infinity,  -infinity,  1e-40F, 3e38F};
        value = random.chance(percent_special) ? special[random.size(0, std::size(special) - 1)]
                                               : random.real(-5.0F, 5.0F);
      }
      const min_max_result expected = detent::reference::min_max(x.data(), n);
      INFO("size ", n, " placement ", placement);
      for_each_target([&] { CHECK(same_result(kernel_min_max(x), expected)); });
    }
  }
}

TEST_CASE("min_max: an extreme, a NaN or a zero at every place") {
  for (std::size_t n = 1; n <= 80; ++n) {
    for (std::size_t place = 0; place < n; ++place) {
      for (const float value : {-3.0F, 3.0F, quiet_nan, infinity, -infinity, -0.0F}) {
        std::vector<float> x(n, std::isnan(value) ? 1.0F : 0.0F);
        x[place] = value;
        const min_max_result expected = detent::reference::min_max(x.data(), n);
        INFO("size ", n, " place ", place, " value ", value);
        for_each_target([&] { CHECK(same_result(kernel_min_max(x), expected)); });
      }
    }
  }
}

TEST_CASE("min_max: of nothing, of NaNs, of negative zeros") {
  const std::vector<float> nans(67, quiet_nan);
  const std::vector<float> zeros(67, -0.0F);
  for_each_target([&] {
    CHECK(same_result(kernel_min_max({}), {infinity, -infinity, 0}));
    CHECK(same_result(kernel_min_max(nans), {infinity, -infinity, 67}));
    CHECK(same_result(kernel_min_max(zeros), {0.0F, 0.0F, 0}));
  });
}

TEST_CASE("min_max_columns: every column as by itself") {
  random_source random(9);
  INFO("seed ", random.seed());
  for (int round = 0; round < 300; ++round) {
    const std::size_t rows = random.size(0, 9);
    const std::size_t columns = random.size(1, 70);
    const std::size_t stride = columns + random.size(0, 5);
    test::guarded_memory memory((rows * stride + 1) * sizeof(float));
    const std::size_t used = rows == 0 ? 0 : (rows - 1) * stride + columns;
    const auto x = memory.back<float>(used);
    for (float& value : x) {
      constexpr float special[] = {quiet_nan, -quiet_nan, 0.0F, -0.0F, infinity, -infinity};
      value = random.chance(10) ? special[random.size(0, std::size(special) - 1)]
                                : random.real(-5.0F, 5.0F);
    }
    INFO("round ", round, " rows ", rows, " columns ", columns);
    for_each_target([&] {
      std::vector<float> lower(columns, infinity);
      std::vector<float> upper(columns, -infinity);
      std::vector<std::uint64_t> count_nan(columns, 0);
      detent::detail::active<detent::kernels::statistics_kernels>().min_max_columns(
          x.data(), rows, columns, static_cast<std::ptrdiff_t>(stride), lower.data(), upper.data(),
          count_nan.data());
      for (std::size_t c = 0; c < columns; ++c) {
        std::vector<float> column;
        for (std::size_t r = 0; r < rows; ++r) {
          column.push_back(x[r * stride + c]);
        }
        const min_max_result expected = detent::reference::min_max(column.data(), rows);
        CHECK(same_result({lower[c], upper[c], static_cast<std::size_t>(count_nan[c])}, expected));
      }
    });
  }
}

// --------------------------------------------------------------------------------------- observers

TEST_CASE("the observer does not care how values are split, ordered and merged") {
  random_source random(2);
  INFO("seed ", random.seed());
  for (int round = 0; round < 100; ++round) {
    INFO("round ", round);
    std::vector<float> x = random.reals(random.size(1, 300), -10.0F, 10.0F);
    for (float& value : x) {
      if (random.chance(10)) {
        value = random.chance(50) ? -0.0F : 0.0F;
      } else if (round % 4 == 0 && random.chance(10)) {
        value = random.any_float();
      }
    }
    const min_max_observer whole = observed(x);
    CHECK(whole.count() == x.size());
    CHECK(whole.count_nan() == detent::reference::min_max(x.data(), x.size()).count_nan);
    for_each_target([&] {
      shuffle(random, x);
      std::vector<min_max_observer> parts(random.size(1, 6));
      for (std::size_t first = 0; first < x.size();) {
        const std::size_t n = random.size(0, x.size() - first);
        parts[random.size(0, parts.size() - 1)].observe(std::span(x).subspan(first, n));
        first += n;
      }
      while (parts.size() > 1) {
        shuffle(random, parts);
        const min_max_observer last = parts.back();
        parts.pop_back();
        parts.back().merge(last);
      }
      CHECK(parts.front() == whole);
    });
  }
}

TEST_CASE("range and finalize") {
  for_each_target([] {
    const std::vector<float> x = {-0.5F, 2.0F, 0.25F};
    const min_max_observer observer = observed(x);
    CHECK(observer.range() == detent::value_range{-0.5F, 2.0F});
    CHECK(observer.finalize(detent::asymmetric<std::uint8_t>) ==
          detent::params_from_range({-0.5F, 2.0F}, detent::asymmetric<std::uint8_t>));
    CHECK(observer.finalize(detent::symmetric<std::int8_t>) ==
          detent::params_from_range({-0.5F, 2.0F}, detent::symmetric<std::int8_t>));
    // The range itself does not include zero; that is up to params_from_range.
    CHECK(observed(std::span(x).subspan(1)).range() == detent::value_range{0.25F, 2.0F});
    CHECK(same(observed(std::vector<float>{-0.0F}).range().lower, 0.0F));
  });
}

TEST_CASE("ranges that are none") {
  const auto invalid = error_kind::invalid_argument;
  check_error(invalid, {"min_max_observer", "nothing"},
              [] { static_cast<void>(min_max_observer().range()); });
  check_error(invalid, {"nothing"}, [] { static_cast<void>(observed({}).range()); });
  check_error(invalid, {"2 of 3", "NaN"}, [] {
    static_cast<void>(observed(std::vector<float>{quiet_nan, 1.0F, quiet_nan}).range());
  });
  check_error(invalid, {"1 .. inf", "finite"}, [] {
    static_cast<void>(observed(std::vector<float>{1.0F, infinity}).range());
  });
  check_error(invalid, {"-inf .. 1", "finite"}, [] {
    static_cast<void>(
        observed(std::vector<float>{1.0F, -infinity}).finalize(detent::asymmetric<std::int8_t>));
  });
  check_error(invalid, {"null", "5"}, [] {
    min_max_observer().observe(std::span<const float>(static_cast<float*>(nullptr), 5));
  });
  check_error(invalid, {"null", "5"}, [] {
    min_max_observer().observe_as(std::span<const int>(static_cast<int*>(nullptr), 5));
  });
}

TEST_CASE("counters of a loaded state stop at their end, so that no NaN is forgotten") {
  constexpr detent::detail::byte_format format{"detentxx", 1};
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const auto loaded = [&](std::uint64_t count, std::uint64_t count_nan) {
    detent::detail::byte_writer out(format);
    out.put(1.0F);
    out.put(2.0F);
    out.put(count);
    out.put(count_nan);
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "test");
    detent::min_max_observer observer;
    observer.read(in);
    return observer;
  };
  const auto check = [&](const detent::min_max_observer& observer) {
    CHECK(observer.count() == most);
    CHECK(observer.count_nan() == most);
    CHECK_FALSE(observer.is_finite());
    check_error(error_kind::invalid_argument, {"NaN"},
                [&] { static_cast<void>(observer.range()); });
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  detent::min_max_observer observer = loaded(most, most);
  observer.observe(std::vector<float>{nan, 1.0F});
  check(observer);
  observer.observe_as(std::span<const float>(&nan, 1));
  check(observer);
  // Half of each: together, 2^64 of 2^64 + 2.
  detent::min_max_observer half = loaded(most / 2 + 2, most / 2 + 1);
  half.merge(loaded(most / 2 + 2, most / 2 + 1));
  check(half);
}

// ------------------------------------------------------------------------------ other element
// types

namespace {

/// The largest float that is not above x.
float float_below(long double x) {
  const auto f = static_cast<float>(x);
  return static_cast<long double>(f) > x ? std::nextafter(f, -infinity) : f;
}
float float_above(long double x) { return -float_below(-x); }

template <class T>
T any_value(random_source& random) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(random.real(-1.0F, 1.0F)) * static_cast<T>(1.1);  // not a float
  } else {
    return static_cast<T>(static_cast<T>(random.bits()) / T(1 + random.integer(0, 1) * 50));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("observe_as widens to the floats around the range", T, float, double,
                   long double, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t,
                   std::int32_t, std::uint32_t, std::int64_t, std::uint64_t) {
  random_source random(3);
  INFO("seed ", random.seed());
  // From fewer than a register holds to several.
  for (std::size_t n = 1; n <= 140; ++n) {
    std::vector<T> x(n);
    for (T& value : x) {
      value = any_value<T>(random);
    }
    min_max_observer observer;
    observer.observe_as(std::span<const T>(x));
    const auto [least, greatest] = std::minmax_element(x.begin(), x.end());
    INFO("size ", n);
    CHECK(observer.count() == n);
    CHECK(observer.range().lower == float_below(*least));
    CHECK(observer.range().upper == float_above(*greatest));
  }
}

TEST_CASE("observe_as: values next to a float") {
  const auto range_of = [](auto value) {
    min_max_observer observer;
    observer.observe_as(std::span<const decltype(value)>(&value, 1));
    return observer.range();
  };
  CHECK(range_of(0.1) == detent::value_range{0x1.999998p-4F, 0x1.99999ap-4F});
  CHECK(range_of(0.5) == detent::value_range{0.5F, 0.5F});
  CHECK(range_of(16777217) == detent::value_range{16777216.0F, 16777218.0F});
  CHECK(range_of(-16777217) == detent::value_range{-16777218.0F, -16777216.0F});
  CHECK(range_of(std::uint8_t{200}) == detent::value_range{200.0F, 200.0F});
  CHECK(range_of(std::numeric_limits<std::uint64_t>::max()).upper == 0x1p64F);
  CHECK(range_of(std::numeric_limits<std::int64_t>::min()).lower == -0x1p63F);
  CHECK(range_of(1e-60) == detent::value_range{0.0F, 0x1p-149F});
  CHECK(same(range_of(-0.0).lower, 0.0F));
  check_error(error_kind::invalid_argument, {"finite"},
              [&] { static_cast<void>(range_of(1e300)); });
}

TEST_CASE_TEMPLATE("observe_as: NaN, infinities and nothing", T, float, double) {
  constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();
  for (std::size_t n = 0; n <= 40; ++n) {
    INFO("size ", n);
    const std::vector<T> nans(n, not_a_number);
    min_max_observer observer;
    observer.observe_as(std::span<const T>(nans));
    CHECK(observer.count() == n);
    CHECK(observer.count_nan() == n);
    CHECK((observer == observed(std::vector<float>(n, quiet_nan))));
    for (std::size_t place = 0; place < n; ++place) {
      std::vector<T> x(n, T(2));
      x[place] = not_a_number;
      min_max_observer with_one;
      with_one.observe_as(std::span<const T>(x));
      CHECK(with_one.count_nan() == 1);
      std::vector<float> expected(x.begin(), x.end());
      CHECK((with_one == observed(expected)));
      x[place] = -std::numeric_limits<T>::infinity();
      expected[place] = -infinity;
      min_max_observer infinite;
      infinite.observe_as(std::span<const T>(x));
      CHECK((infinite == observed(expected)));
    }
  }
}

// --------------------------------------------------------------------------------------- channels

TEST_CASE("channels: any axis, any strides, any split") {
  random_source random(4);
  INFO("seed ", random.seed());
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::size_t> shape = test::random_shape(random, 1);
    const std::size_t axis = random.size(0, shape.size() - 1);
    auto x = test::random_layout<float>(random, shape,
                                        quiet_nan);  // a gap that is read would be counted
    std::vector<min_max_observer> expected(shape[axis]);
    test::for_each_index(shape, [&](const test::tensor_index& index) {
      x[index] = random.real(-10.0F, 10.0F);
      expected[index[axis]].observe({&x[index], 1});
    });
    const detent::tensor_view<const float> view = x.view;
    INFO("round ", round, " rank ", shape.size(), " axis ", axis);
    for_each_target([&] {
      channel_min_max_observer whole(axis);
      whole.observe(view);
      CHECK(whole.axis() == axis);
      REQUIRE(whole.channels().size() == shape[axis]);
      CHECK(std::equal(expected.begin(), expected.end(), whole.channels().begin()));

      // In two batches, cut along another axis, merged either way.
      const std::size_t cut_axis = random.size(0, shape.size() - 1);
      if (cut_axis == axis || shape[cut_axis] == 0) {
        return;
      }
      detent::tensor_view<const float> first = view;
      detent::tensor_view<const float> second = view;
      first.shape[cut_axis] = random.size(0, shape[cut_axis]);
      second.shape[cut_axis] -= first.shape[cut_axis];
      second.data += static_cast<std::ptrdiff_t>(first.shape[cut_axis]) * view.strides[cut_axis];
      channel_min_max_observer a(axis);
      channel_min_max_observer b(axis);
      a.observe(first);
      b.observe(second);
      channel_min_max_observer merged(axis);
      merged.merge(b);
      merged.merge(a);
      CHECK((merged == whole));
      a.observe(second);
      CHECK((a == whole));
    });
  }
}

TEST_CASE("channels: finalize") {
  const float x[] = {-1.0F, 2.0F, 0.0F, 4.0F, 0.0F, -3.0F};
  channel_min_max_observer observer(1);
  observer.observe(detent::tensor_view<const float>(x, {2, 3}));
  const detent::channel_quant_params p = observer.finalize(detent::symmetric<std::int8_t>);
  CHECK(p.axis == 1);
  REQUIRE(p.scales.size() == 3);
  const float extents[] = {4.0F, 2.0F, 3.0F};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto one = detent::params_from_range({-extents[i], 0.0F}, detent::symmetric<std::int8_t>);
    CHECK(p.scales[i] == one.scale);
    CHECK(p.zero_points[i] == 0);
  }
}

TEST_CASE("channels: errors") {
  const auto invalid = error_kind::invalid_argument;
  const auto mismatch = error_kind::shape_mismatch;
  const float x[12] = {};
  channel_min_max_observer observer(1);
  check_error(invalid, {"nothing"},
              [&] { static_cast<void>(observer.finalize(detent::symmetric<std::int8_t>)); });
  check_error(invalid, {"axis 1", "rank 1"},
              [&] { observer.observe(detent::tensor_view<const float>(x, {12})); });
  observer.observe(detent::tensor_view<const float>(x, {4, 3}));
  const channel_min_max_observer before = observer;
  check_error(mismatch, {"4 channels after 3"}, [&] {
    observer.observe(detent::tensor_view<const float>(x, {3, 4}));
  });
  check_error(invalid, {"null", "12"}, [&] {
    observer.observe(detent::tensor_view<const float>(nullptr, {4, 3}));
  });
  check_error(mismatch, {"axis 0", "axis 1"}, [&] { observer.merge(channel_min_max_observer(0)); });
  channel_min_max_observer other(1);
  other.observe(detent::tensor_view<const float>(x, {3, 4}));
  check_error(mismatch, {"4 channels after 3"}, [&] { observer.merge(other); });
  CHECK((observer == before));
  // A batch of nothing tells how many channels there are, and nothing about them.
  channel_min_max_observer empty(1);
  empty.observe(detent::tensor_view<const float>(nullptr, {0, 3}));
  REQUIRE(empty.channels().size() == 3);
  for (const detent::min_max_observer& channel : empty.channels()) {
    CHECK((channel == detent::min_max_observer()));
  }
  check_error(invalid, {"nothing"},
              [&] { static_cast<void>(empty.finalize(detent::symmetric<std::int8_t>)); });
}
