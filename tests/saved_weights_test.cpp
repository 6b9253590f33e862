// SPDX-License-Identifier: BSD-3-Clause
// Packed weights as bytes and back: the same products, and nothing but what was saved is loaded.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::matrix_view;
using test::random_source;

using bytes = std::vector<std::byte>;

/// Puts a matching checksum behind bytes that were changed on purpose.
void renew_checksum(bytes& b) {
  const std::uint64_t sum =
      detent::detail::checksum(std::span<const std::byte>(b).first(b.size() - 8));
  for (std::size_t i = 0; i < 8; ++i) {
    b[b.size() - 8 + i] = static_cast<std::byte>(sum >> (8 * i) & 0xFF);
  }
}

template <class T>
void put(bytes& b, std::size_t at, T value) {
  std::memcpy(b.data() + at, &value, sizeof value);
  renew_checksum(b);
}

template <class Weights>
void fails(error_kind kind, const char* text, const bytes& b) {
  test::check_error(kind, {text}, [&] { static_cast<void>(Weights::load(b)); });
}

/// Every damage of a single byte, every length, and bytes that are not the header's.
template <class Weights>
void check_damage(const bytes& saved) {
  for (std::size_t i = 0; i < saved.size(); ++i) {
    bytes b = saved;
    b[i] ^= std::byte{1};
    bool is_refused = false;
    try {
      static_cast<void>(Weights::load(b));
    } catch (const detent::error& e) {
      is_refused = e.kind() == error_kind::bad_file || e.kind() == error_kind::unsupported;
    }
    CHECK(is_refused);
  }
  for (std::size_t size = 0; size < saved.size(); ++size) {
    test::check_error(error_kind::bad_file, {}, [&] {
      static_cast<void>(Weights::load(std::span<const std::byte>(saved).first(size)));
    });
  }
  bytes longer = saved;
  longer.push_back(std::byte{0});
  fails<Weights>(error_kind::bad_file, "bytes for a content", longer);
  bytes b = saved;
  b[0] = std::byte{'D'};
  fails<Weights>(error_kind::bad_file, "these are not saved data of the kind detent", b);
  b = saved;
  put(b, 8, std::uint32_t{2});
  fails<Weights>(error_kind::unsupported, "version 2", b);
}

}  // namespace

TEST_CASE("weights of 8 bits survive being saved") {
  random_source random(95);
  INFO("seed ", random.seed());
  for (int round = 0; round < 40; ++round) {
    const std::size_t m = random.size(1, 20);
    const std::size_t n = random.size(0, 70);
    const std::size_t k = random.size(0, 70);
    const auto w = random.integers<std::uint8_t>(k * n);
    const auto scales = random.reals(n, 0.001F, 0.1F);
    std::vector<std::int32_t> zero_points, bias;
    for (std::size_t j = 0; j < n; ++j) {
      zero_points.push_back(random.integer(0, 255));
      bias.push_back(random.integer(-1000, 1000));
    }
    const auto weights =
        detent::pack_weights(matrix_view<const std::uint8_t>(w.data(), k, n),
                             {.scales = scales, .zero_points = zero_points, .bias = bias});
    const bytes saved = weights.save();
    const auto loaded = detent::packed_weights::load(saved);
    CHECK(loaded.save() == saved);
    CHECK(loaded.depth() == k);
    CHECK(loaded.columns() == n);
    CHECK(loaded.certificate().accumulator_bound == weights.certificate().accumulator_bound);
    const auto a = random.integers<std::uint8_t>(m * k);
    const matrix_view<const std::uint8_t> lhs(a.data(), m, k);
    test::for_each_target([&] {
      std::vector<float> x(m * n), y(m * n);
      detent::gemm(lhs, weights, matrix_view<float>(x.data(), m, n), {.lhs_zero_point = 9});
      detent::gemm(lhs, loaded, matrix_view<float>(y.data(), m, n), {.lhs_zero_point = 9});
      CHECK(test::difference(x, y) == "");
    });
  }
}

TEST_CASE("filters survive being saved") {
  random_source random(97);
  INFO("seed ", random.seed());
  for (int round = 0; round < 60; ++round) {
    detent::filter_shape f;
    f.kernel_height = random.size(1, 4);
    f.kernel_width = random.size(1, 4);
    f.groups = random.chance(50) ? 1 : random.size(1, 20);
    const bool is_depthwise = random.chance(40);
    f.in_channels = f.groups * (is_depthwise ? 1 : random.size(1, 6));
    f.out_channels = f.groups * (is_depthwise ? 1 : random.size(1, 20));
    const auto w = random.integers<std::int8_t>(f.size());
    const auto scales = random.reals(random.chance(50) ? f.out_channels : 1, 0.001F, 0.1F);
    std::vector<std::int32_t> zero_points, bias;
    for (std::size_t c = 0; c < f.out_channels; ++c) {
      zero_points.push_back(random.integer(-128, 127));
      bias.push_back(random.integer(-1000, 1000));
    }
    if (random.chance(30)) {
      zero_points.clear();
    }
    if (random.chance(30)) {
      bias.resize(1);
    }
    const detent::packed_filters filters(f, w, {scales, zero_points, bias});
    const bytes saved = filters.save();
    const detent::packed_filters loaded = detent::packed_filters::load(saved);
    CHECK(loaded.save() == saved);
    CHECK(loaded.is_depthwise() == filters.is_depthwise());
    CHECK(loaded.shape().out_channels == f.out_channels);
    CHECK(loaded.groups().size() == filters.groups().size());
    // The weights are in the order in which they were given.
    CHECK(std::equal(w.begin(), w.end(), saved.begin() + 24 + 40,
                     [](std::int8_t a, std::byte b) { return a == static_cast<std::int8_t>(b); }));
    detent::window window;
    window.batch = 2;
    window.in_height = random.size(4, 9);
    window.in_width = random.size(4, 9);
    window.pad_top = window.pad_left = random.size(0, 1);
    const auto x =
        random.integers<std::uint8_t>(2 * window.in_height * window.in_width * f.in_channels);
    const std::size_t size = 2 * window.out_height(f) * window.out_width(f) * f.out_channels;
    test::for_each_target([&] {
      std::vector<float> a(size), b(size);
      detent::convolve<float>(x, filters, window, a, {.lhs_zero_point = 9});
      detent::convolve<float>(x, loaded, window, b, {.lhs_zero_point = 9});
      CHECK(test::difference(a, b) == "");
    });
  }
}

TEST_CASE("saved filters that are damaged or impossible are refused") {
  const std::vector<std::int8_t> w{1, -2, 3, 4, -128, 127, 7, 8};
  const detent::packed_filters filters({4, 4, 4, 1, 2}, w, {});
  check_damage<detent::packed_filters>(filters.save());
  check_damage<detent::packed_filters>(detent::packed_filters({2, 2, 1, 2, 1}, w, {}).save());
  // Filters without channels, and those that were moved from.
  detent::packed_filters moved = filters;
  const detent::packed_filters to = std::move(moved);
  for (const detent::packed_filters& empty :
       {detent::packed_filters(), moved,  // NOLINT(bugprone-use-after-move): that is what is tested
        detent::packed_filters({0, 3, 1, 3, 3}, {}, {})}) {
    CHECK(detent::packed_filters::load(empty.save()).shape().out_channels == 0);
  }
  const auto with = [&](std::size_t at, std::uint64_t value) {
    bytes b = filters.save();
    put(b, at, value);
    return b;
  };
  constexpr std::size_t out = 24, groups = out + 16, height = out + 24, scale = out + 40 + 8;
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{8},
                                    std::uint64_t{1} << 31, ~std::uint64_t{0}}) {
    fails<detent::packed_filters>(error_kind::bad_file, "packed_filters::load",
                                  with(groups, value));
    fails<detent::packed_filters>(error_kind::bad_file, "packed_filters::load",
                                  with(height, value));
    fails<detent::packed_filters>(error_kind::bad_file, "packed_filters::load", with(out, value));
  }
  // Long kernels, with weights and without.
  const std::vector<std::int8_t> long_filter(5000, 3);
  const detent::packed_filters taps({1, 1, 1, 1, 5000}, long_filter, {});
  CHECK(detent::packed_filters::load(taps.save()).save() == taps.save());
  const detent::packed_filters none({0, 1, 1, 5000, 1}, {}, {});
  CHECK(detent::packed_filters::load(none.save()).shape().kernel_height == 5000);
  for (const std::uint64_t value : {(std::uint64_t{1} << 31) - 1, std::uint64_t{1} << 31}) {
    bytes b = none.save();
    put(b, height, value);
    put(b, height + 8, value);
    fails<detent::packed_filters>(error_kind::bad_file, "the shape is impossible", b);
  }
  fails<detent::packed_filters>(error_kind::bad_file, "the scale", with(scale, 0));
  fails<detent::packed_filters>(error_kind::bad_file, "the zero point", with(scale + 16, 128));
}

TEST_CASE("weights of 4 bits survive being saved") {
  random_source random(96);
  INFO("seed ", random.seed());
  for (int round = 0; round < 40; ++round) {
    const std::size_t m = random.size(1, 20);
    const std::size_t n = random.size(1, 70);
    const std::size_t k = random.size(1, 70);
    std::vector<std::uint8_t> w;
    for (std::size_t i = 0; i < k * n; ++i) {
      w.push_back(static_cast<std::uint8_t>(random.integer(0, 15)));
    }
    const std::size_t groups = (k + 15) / 16;
    const auto scales = random.reals(groups * n, 0.001F, 0.1F);
    const auto weights =
        detent::pack_int4_weights(matrix_view<const std::uint8_t>(w.data(), k, n),
                                  {.group_size = 16, .scales = {scales.data(), groups, n}});
    const bytes saved = weights.save();
    const auto loaded = detent::packed_int4_weights::load(saved);
    CHECK(loaded.save() == saved);
    const auto a = random.integers<std::int8_t>(m * k);
    std::vector<float> x(m * n), y(m * n);
    const matrix_view<const std::int8_t> lhs(a.data(), m, k);
    detent::gemm(lhs, weights, matrix_view<float>(x.data(), m, n), {.lhs_zero_point = -9});
    detent::gemm(lhs, loaded, matrix_view<float>(y.data(), m, n), {.lhs_zero_point = -9});
    CHECK(test::difference(x, y) == "");
  }
}

TEST_CASE("empty weights survive being saved, and groups that are larger than K") {
  for (const std::size_t n : {0U, 1U, 100U}) {
    const detent::packed_weights of_8 =
        detent::pack_weights(matrix_view<const std::int8_t>(nullptr, 0, n));
    CHECK(detent::packed_weights::load(of_8.save()).columns() == n);
    const detent::packed_int4_weights of_4 =
        detent::pack_int4_weights(matrix_view<const std::int8_t>(nullptr, 0, n));
    CHECK(detent::packed_int4_weights::load(of_4.save()).columns() == n);
  }
  const std::vector<std::int8_t> w(64 * 4, 3);
  for (const std::size_t group_size : {std::size_t{64}, std::size_t{1} << 40, ~std::size_t{7}}) {
    const auto weights = detent::pack_int4_weights({w.data(), 64, 4}, {.group_size = group_size});
    CHECK(weights.groups() == 1);
    CHECK(weights.group_size() == 64);
    CHECK(detent::packed_int4_weights::load(weights.save()).save() == weights.save());
  }
}

TEST_CASE("the format is what it is documented to be") {
  const std::int8_t w[6] = {1, 2, 3, 4, 5, 6};  // 3 x 2
  const float scales[2] = {0.5F, 2.0F};
  const bytes b = detent::pack_weights({w, 3, 2}, {.scales = scales}).save();
  // envelope, K, N, layout, 16 columns of 4 k, three arrays of two, checksum
  REQUIRE(b.size() == 24 + 16 + 8 + 64 + 24 + 8);
  CHECK(std::memcmp(b.data(), "detentW8\1\0\0\0\0\0\0\0\x70\0\0\0\0\0\0\0", 24) == 0);
  CHECK(std::memcmp(b.data() + 24, "\3\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\x10\0\0\0\4\0\0\0", 24) == 0);
  CHECK(std::memcmp(b.data() + 48, "\1\3\5\0\2\4\6\0\0", 9) == 0);
  CHECK(std::memcmp(b.data() + 112, "\0\0\0\x3F\0\0\0\x40", 8) == 0);
  // FNV-1a of nothing and of "a", as published.
  CHECK(detent::detail::checksum({}) == 0xCBF29CE484222325U);
  const std::byte letter{'a'};
  CHECK(detent::detail::checksum({&letter, 1}) == 0xAF63DC4C8601EC8CU);
}

TEST_CASE("damaged and foreign bytes are refused") {
  const std::int8_t w[6] = {1, 2, 3, 4, 5, 6};
  const bytes of_8 = detent::pack_weights({w, 3, 2}).save();
  const bytes of_4 = detent::pack_int4_weights({w, 3, 2}).save();
  check_damage<detent::packed_weights>(of_8);
  check_damage<detent::packed_int4_weights>(of_4);
  fails<detent::packed_weights>(error_kind::bad_file,
                                "these are not saved data of the kind detentW8", of_4);
  // What a matching checksum does not save.
  const auto changed = [](bytes b, std::size_t at, auto value) {
    put(b, at, value);
    return b;
  };
  using w8 = detent::packed_weights;
  using w4 = detent::packed_int4_weights;
  fails<w8>(error_kind::bad_file, "ends early", changed(of_8, 24, std::uint64_t{1000}));
  fails<w8>(error_kind::bad_file, "is larger than", changed(of_8, 24, ~std::uint64_t{0}));
  fails<w8>(error_kind::bad_file, "ends early", changed(of_8, 32, std::uint64_t{60}));
  fails<w8>(error_kind::bad_file, "bytes too many", changed(of_8, 32, std::uint64_t{1}));
  fails<w8>(error_kind::unsupported, "panels of 8", changed(of_8, 40, std::uint32_t{8}));
  fails<w8>(error_kind::bad_file, "the scale 0", changed(of_8, 112, 0.0F));
  fails<w8>(error_kind::bad_file, "the zero point 200", changed(of_8, 120, std::int32_t{200}));
  fails<w4>(error_kind::bad_file, "the group size 12", changed(of_4, 40, std::uint64_t{12}));
  fails<w4>(error_kind::bad_file, "the group size 0", changed(of_4, 40, std::uint64_t{0}));
  fails<w4>(error_kind::unsupported, "steps of 4 k", changed(of_4, 52, std::uint32_t{4}));
  // A header alone, whose size wraps around to what follows it: nothing, less a checksum of 8.
  bytes header(of_8.begin(), of_8.begin() + 24);
  const std::uint64_t wrapped = 0 - std::uint64_t{8};
  std::memcpy(header.data() + 16, &wrapped, sizeof wrapped);
  test::check_error(error_kind::bad_file, {"24 bytes for a content of"},
                    [&] { static_cast<void>(w8::load(header)); });
}
