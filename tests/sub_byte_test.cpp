// SPDX-License-Identifier: BSD-3-Clause
// Packed integers: the layout by hand, pack() and unpack() against get() and set(), what they
// refuse.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/quantize.hpp>
#include <detent/sub_byte.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::int2;
using detent::int4;
using detent::pack;
using detent::packed_size;
using detent::packed_span;
using detent::uint2;
using detent::uint4;
using detent::unpack;
using test::check_error;
using test::difference;
using test::random_source;

#define ALL_TYPES int4, uint4, int2, uint2

template <class T>
using value_of = typename T::value_type;

static_assert(int4::levels == detent::grid{-8, 7} && int4::bits == 4 && int4::is_signed);
static_assert(uint4::levels == detent::grid{0, 15} && uint4::bits == 4 && !uint4::is_signed);
static_assert(int2::levels == detent::grid{-2, 1} && int2::bits == 2 && int2::is_signed);
static_assert(uint2::levels == detent::grid{0, 3} && uint2::bits == 2 && !uint2::is_signed);
static_assert(detent::packed_type<int4> && !detent::packed_type<std::int8_t> &&
              !detent::packed_type<const int4>);
static_assert(std::is_convertible_v<packed_span<int4>, packed_span<const int4>> &&
              !std::is_convertible_v<packed_span<const int4>, packed_span<int4>> &&
              !std::is_convertible_v<packed_span<uint4>, packed_span<const int4>>);

/// The element that the low bits of `value` are, by arithmetic rather than by bits.
template <class T>
int wrapped(int value) {
  const int count = T::levels.qmax - T::levels.qmin + 1;
  int rest = (value - T::levels.qmin) % count;
  rest += rest < 0 ? count : 0;
  return T::levels.qmin + rest;
}

/// The elements of a byte by division.
template <class T>
std::vector<int> elements_of(int byte) {
  const int count = T::levels.qmax - T::levels.qmin + 1;
  std::vector<int> elements;
  for (std::size_t i = 0; i < detent::elements_per_byte<T>; ++i) {
    elements.push_back(wrapped<T>(byte % count));
    byte /= count;
  }
  return elements;
}

template <class T>
std::vector<value_of<T>> random_elements(random_source& random, std::size_t n) {
  std::vector<value_of<T>> values(n);
  for (value_of<T>& value : values) {
    value = static_cast<value_of<T>>(random.integer(T::levels.qmin, T::levels.qmax));
  }
  return values;
}

}  // namespace

TEST_CASE("packed_size") {
  CHECK(packed_size<int4>(0) == 0);
  CHECK(packed_size<int4>(1) == 1);
  CHECK(packed_size<uint4>(2) == 1);
  CHECK(packed_size<uint4>(3) == 2);
  CHECK(packed_size<int2>(0) == 0);
  CHECK(packed_size<int2>(1) == 1);
  CHECK(packed_size<uint2>(4) == 1);
  CHECK(packed_size<uint2>(5) == 2);
  constexpr std::size_t largest = std::numeric_limits<std::size_t>::max();
  CHECK(packed_size<int4>(largest) == largest / 2 + 1);
  CHECK(packed_size<int2>(largest) == largest / 4 + 1);
}

TEST_CASE("the layout, by hand") {
  // int4 1, -2, 7 is 0001, 1110, 0111: bytes 1110'0001 and 0000'0111.
  const std::int8_t s4[] = {1, -2, 7};
  std::uint8_t bytes[2] = {0xFF, 0xFF};
  pack(s4, packed_span<int4>(bytes, 3));
  CHECK(bytes[0] == 0xE1);
  CHECK(bytes[1] == 0x07);

  // uint4 15, 8, 3, 12.
  const std::uint8_t u4[] = {15, 8, 3, 12};
  pack(u4, packed_span<uint4>(bytes, 4));
  CHECK(bytes[0] == 0x8F);
  CHECK(bytes[1] == 0xC3);

  // int2 -2, 1, 0, -1, -1, 1 is 10, 01, 00, 11, 11, 01: bytes 11'00'01'10 and 00'00'01'11.
  const std::int8_t s2[] = {-2, 1, 0, -1, -1, 1};
  pack(s2, packed_span<int2>(bytes, 6));
  CHECK(bytes[0] == 0xC6);
  CHECK(bytes[1] == 0x07);

  // uint2 3, 0, 1, 2, 2.
  const std::uint8_t u2[] = {3, 0, 1, 2, 2};
  pack(u2, packed_span<uint2>(bytes, 5));
  CHECK(bytes[0] == 0x93);
  CHECK(bytes[1] == 0x02);
}

TEST_CASE_TEMPLATE("every byte", T, ALL_TYPES) {
  constexpr std::size_t n = detent::elements_per_byte<T>;
  for (int byte = 0; byte < 256; ++byte) {
    INFO("byte ", byte);
    const auto stored = static_cast<std::uint8_t>(byte);
    const packed_span<const T> packed({&stored, 1}, n);
    const std::vector<int> expected = elements_of<T>(byte);
    std::array<value_of<T>, n> values{};
    unpack(packed, values);
    std::uint8_t again = 0x5A;
    pack(values, packed_span<T>({&again, 1}, n));
    bool same = again == stored;
    for (std::size_t i = 0; i < n; ++i) {
      same = same && packed.get(i) == expected[i] && values[i] == expected[i];
    }
    CHECK(same);
  }
}

TEST_CASE_TEMPLATE("set writes one element, and the low bits of any value", T, ALL_TYPES) {
  constexpr std::size_t n = detent::elements_per_byte<T>;
  for (int byte = 0; byte < 256; ++byte) {
    bool same = true;
    for (std::size_t i = 0; i < n; ++i) {
      for (int value = std::numeric_limits<value_of<T>>::min();
           value <= std::numeric_limits<value_of<T>>::max(); ++value) {
        auto stored = static_cast<std::uint8_t>(byte);
        packed_span<T>({&stored, 1}, n).set(i, static_cast<value_of<T>>(value));
        std::vector<int> expected = elements_of<T>(byte);
        expected[i] = wrapped<T>(value);
        same = same && elements_of<T>(stored) == expected;
      }
    }
    INFO("byte ", byte);
    CHECK(same);
  }
}

TEST_CASE_TEMPLATE("pack keeps the low bits of any value", T, ALL_TYPES) {
  for (int value = std::numeric_limits<value_of<T>>::min();
       value <= std::numeric_limits<value_of<T>>::max(); ++value) {
    INFO("value ", value);
    // Enough elements for the vectorized loop and the last byte.
    const std::vector<value_of<T>> values(131, static_cast<value_of<T>>(value));
    std::vector<std::uint8_t> bytes(packed_size<T>(131));
    pack(values, packed_span<T>(bytes, 131));
    std::vector<value_of<T>> unpacked(131);
    unpack(packed_span<T>(bytes, 131), unpacked);
    const std::vector<value_of<T>> expected(131, static_cast<value_of<T>>(wrapped<T>(value)));
    CHECK(difference(unpacked, expected) == "");
  }
}

TEST_CASE_TEMPLATE("pack and unpack are set and get, at every size", T, ALL_TYPES) {
  random_source random(30);
  INFO("seed ", random.seed());
  test::guarded_memory packed_memory(300);
  test::guarded_memory value_memory(300);
  for (std::size_t n = 0; n <= 270; ++n) {
    INFO("size ", n);
    const std::vector<value_of<T>> values = random_elements<T>(random, n);
    std::vector<std::uint8_t> expected(packed_size<T>(n), 0);
    const packed_span<T> by_element(expected, n);
    for (std::size_t i = 0; i < n; ++i) {
      by_element.set(i, values[i]);
    }
    for (const bool at_end : {false, true}) {
      packed_memory.repaint();
      value_memory.repaint();
      const auto bytes = at_end ? packed_memory.back<std::uint8_t>(packed_size<T>(n))
                                : packed_memory.front<std::uint8_t>(packed_size<T>(n), n % 3);
      const auto out =
          at_end ? value_memory.back<value_of<T>>(n) : value_memory.front<value_of<T>>(n, n % 5);
      const packed_span<T> packed(bytes, n);
      CHECK(packed.size() == n);
      CHECK(packed.size_bytes() == bytes.size());
      CHECK(packed.data() == bytes.data());
      pack(values, packed);
      CHECK(difference(bytes, expected) == "");
      CHECK(packed_memory.intact_around(bytes));

      // Bits behind the last element are not read.
      if (n % detent::elements_per_byte<T> != 0) {
        const auto used = static_cast<unsigned>(n % detent::elements_per_byte<T>) * T::bits;
        bytes.back() = static_cast<std::uint8_t>(bytes.back() | 0xFFU << used);
      }
      unpack(packed_span<const T>(packed), out);
      CHECK(difference(out, values) == "");
      CHECK(value_memory.intact_around(out));
      std::vector<value_of<T>> got;
      for (std::size_t i = 0; i < n; ++i) {
        got.push_back(packed.get(i));
      }
      CHECK(difference(got, values) == "");
    }
  }
}

TEST_CASE_TEMPLATE("quantize leaves the bits after the last element zero", T, ALL_TYPES) {
  for (std::size_t n = 1; n <= 9; ++n) {
    std::vector<std::uint8_t> bytes(packed_size<T>(n), 0xFF);
    const packed_span<T> q(bytes, n);
    const std::vector<float> x(n, 0.0F);
    const auto check = [&] {
      for (std::size_t bit = n * T::bits; bit < 8 * bytes.size(); ++bit) {
        CHECK((bytes[bit / 8] >> bit % 8 & 1) == 0);
      }
      std::fill(bytes.begin(), bytes.end(), std::uint8_t{0xFF});
    };
    detent::quantize(x, q, detent::quant_params{});
    check();
    detent::quantize(x, q,
                     detent::channel_quant_params{0, std::vector<float>(n, 1.0F),
                                                  std::vector<std::int32_t>(n, 0)});
    check();
  }
}

TEST_CASE("errors") {
  constexpr auto invalid = error_kind::invalid_argument;
  constexpr auto mismatch = error_kind::shape_mismatch;
  std::vector<std::uint8_t> bytes(3, 42);
  const auto view = [&bytes](std::size_t n) {
    return [&bytes, n] { static_cast<void>(packed_span<int4>(bytes, n)); };
  };
  view(5)();
  view(6)();
  check_error(mismatch, {"packed_span", "3 bytes", "4 elements of 4 bits", "take 2"}, view(4));
  check_error(mismatch, {"packed_span", "3 bytes", "7 elements of 4 bits", "take 4"}, view(7));
  check_error(mismatch, {"packed_span", "3 bytes", "0 elements", "take 0"}, view(0));
  check_error(mismatch, {"packed_span", "3 bytes", "13 elements of 2 bits", "take 4"},
              [&] { static_cast<void>(packed_span<const uint2>(bytes, 13)); });
  check_error(invalid, {"packed_span", "null", "size 6"}, [] {
    static_cast<void>(
        packed_span<int4>(std::span<std::uint8_t>(static_cast<std::uint8_t*>(nullptr), 3), 6));
  });

  const packed_span<int4> packed(bytes, 6);
  std::vector<std::int8_t> values(7, 42);
  check_error(mismatch, {"detent: pack", "7 elements", "output 6"}, [&] { pack(values, packed); });
  check_error(mismatch, {"detent: pack", "0 elements", "output 6"}, [&] { pack({}, packed); });
  check_error(mismatch, {"detent: unpack", "6 elements", "output 7"},
              [&] { unpack(packed, values); });
  const std::span<std::int8_t> null_values(static_cast<std::int8_t*>(nullptr), 6);
  check_error(invalid, {"detent: pack", "null", "6"}, [&] { pack(null_values, packed); });
  check_error(invalid, {"detent: unpack", "null", "6"}, [&] { unpack(packed, null_values); });
  CHECK(bytes == std::vector<std::uint8_t>(3, 42));
  CHECK(values == std::vector<std::int8_t>(7, 42));

  // Nothing is a valid amount.
  pack({}, packed_span<uint2>());
  unpack(packed_span<const uint2>(), {});
}

TEST_CASE_TEMPLATE("dequantize: packed codes to outputs that begin anywhere in a cache line", Q,
                   detent::int4, detent::uint4, detent::int2, detent::uint2) {
  random_source random(7);
  INFO("seed ", random.seed());
  const detent::quant_params p{0.5F, 1};
  std::vector<float> memory(5000 + 32);
  auto* line = memory.data();
  while (reinterpret_cast<std::uintptr_t>(line) % 64 != 0) {
    ++line;
  }
  for (const std::size_t n : {1U, 7U, 64U, 300U, 1030U, 5000U}) {
    const std::vector<std::uint8_t> bytes =
        random.integers<std::uint8_t>(detent::packed_size<Q>(n));
    const detent::packed_span<const Q> q(std::span<const std::uint8_t>(bytes), n);
    for (std::size_t offset = 0; offset < 16; ++offset) {
      for (const auto stores : {detent::store_policy::cached, detent::store_policy::streaming}) {
        INFO("n ", n, " offset ", offset);
        test::for_each_target([&] {
          const std::span<float> x(line + offset, n);
          detent::dequantize(q, x, p, {.stores = stores});
          std::size_t wrong = 0;
          for (std::size_t i = 0; i < n; ++i) {
            wrong += x[i] != static_cast<float>(q.get(i) - p.zero_point) * p.scale ? 1U : 0U;
          }
          CHECK(wrong == 0);
        });
      }
    }
  }
}
