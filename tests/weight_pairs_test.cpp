// SPDX-License-Identifier: BSD-3-Clause
// Weights for targets that add pairs of products in 16 bits: no pair overflows, and with the
// corrections they are the weights.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/gemm.hpp>
#include <detent/pack.hpp>

#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using test::random_source;
namespace kernels = detent::kernels;
namespace reference = detent::reference;

/// The largest and smallest a0 * b0 + a1 * b1 with a0, a1 in 0..255 fit 16 bits.
bool is_safe(int b0, int b1) {
  const int high = 255 * (std::max(b0, 0) + std::max(b1, 0));
  const int low = 255 * (std::min(b0, 0) + std::min(b1, 0));
  return high <= std::numeric_limits<std::int16_t>::max() &&
         low >= std::numeric_limits<std::int16_t>::min();
}

/// Checks all that packed_panels promises; returns the number of corrected pairs.
std::size_t check(const std::vector<std::int8_t>& w, std::size_t depth, std::size_t columns) {
  using namespace kernels;
  const auto packed = detent::pack_weights({w.data(), depth, columns});
  const detent::detail::weight_pairs pairs(packed.data(), depth, columns);
  const packed_panels panels = pairs.panels(packed.data().data());
  const std::size_t blocks = (depth + block_depth - 1) / block_depth;
  const std::size_t groups = blocks * block_depth / group_depth;
  constexpr std::size_t group_size = group_depth * panel_columns;
  std::vector<int> sums(blocks * block_depth * columns);
  std::size_t unsafe = 0;
  const auto add = [&](const std::int8_t* group_data, std::size_t panel, std::size_t group) {
    for (std::size_t i = 0; i < group_size; ++i) {
      const std::size_t column = panel * panel_columns + i / group_depth;
      if (i % 2 == 0) {
        unsafe += is_safe(group_data[i], group_data[i + 1]) ? 0U : 1U;
      }
      if (column >= columns) {
        unsafe += group_data[i] == 0 ? 0U : 1U;  // padding
        continue;
      }
      sums[(group * group_depth + i % group_depth) * columns + column] += group_data[i];
    }
  };
  std::size_t corrected = 0;
  for (std::size_t panel = 0; panel * panel_columns < columns; ++panel) {
    for (std::size_t group = 0; group < groups; ++group) {
      add(panels.paired + (panel * groups + group) * group_size, panel, group);
    }
    for (std::size_t i = panels.first_correction[panel]; i < panels.first_correction[panel + 1];
         ++i) {
      CHECK((i == panels.first_correction[panel] ||
             panels.correction_group[i] > panels.correction_group[i - 1]));
      const std::int8_t* correction = panels.corrections + i * group_size;
      add(correction, panel, panels.correction_group[i]);
      for (std::size_t j = 0; j < group_size; j += 2) {
        corrected += correction[j] != 0 || correction[j + 1] != 0 ? 1U : 0U;
      }
    }
  }
  CHECK(unsafe == 0);
  CHECK(corrected == pairs.corrected());
  CHECK(corrected == packed.corrected_pairs());
  std::size_t wrong = 0;
  std::vector<std::uint32_t> offset((columns + panel_columns - 1) / panel_columns * panel_columns);
  for (std::size_t strip = 0; strip * strip_columns < columns; ++strip) {
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::uint8_t* order = panels.order + (strip * blocks + b) * block_depth;
      const std::uint8_t* complement = panels.complement + (strip * blocks + b) * block_depth;
      std::array<bool, block_depth> seen{};
      for (std::size_t i = 0; i < block_depth; ++i) {
        REQUIRE(order[i] < block_depth);
        wrong += seen[order[i]] ? 1U : 0U;
        seen[order[i]] = true;
        wrong += complement[i] == 0 || complement[i] == 255 ? 0U : 1U;
        const std::size_t k = b * block_depth + order[i];
        for (std::size_t c = strip * strip_columns;
             c < std::min(columns, (strip + 1) * strip_columns); ++c) {
          const int weight = k < depth ? w[k * columns + c] : 0;
          // a * weight == (a ^ complement) * value + this column's share of the offset, for all a
          const int value = sums[(b * block_depth + i) * columns + c];
          const int share = complement[i] != 0 ? 255 * weight : 0;
          for (const int a : {0, 1, 255}) {
            wrong += (a ^ complement[i]) * value + share == a * weight ? 0U : 1U;
          }
          offset[c] += static_cast<std::uint32_t>(share);
        }
      }
    }
  }
  for (std::size_t c = 0; c < offset.size(); ++c) {
    wrong += static_cast<std::uint32_t>(panels.offset[c]) == offset[c] ? 0U : 1U;
  }
  CHECK(wrong == 0);
  return corrected;
}

}  // namespace

TEST_CASE("split_pair: every pair") {
  std::size_t wrong = 0;
  for (int b0 = -128; b0 <= 127; ++b0) {
    for (int b1 = -128; b1 <= 127; ++b1) {
      const reference::pair_split s =
          reference::split_pair(static_cast<std::int8_t>(b0), static_cast<std::int8_t>(b1));
      wrong += s.safe[0] + s.rest[0] == b0 && s.safe[1] + s.rest[1] == b1 ? 0U : 1U;
      wrong += is_safe(s.safe[0], s.safe[1]) && is_safe(s.rest[0], s.rest[1]) ? 0U : 1U;
      const bool has_rest = s.rest[0] != 0 || s.rest[1] != 0;
      wrong += has_rest == is_safe(b0, b1) ? 1U : 0U;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("any weights, any size") {
  random_source random(1);
  INFO("seed ", random.seed());
  for (const std::size_t depth : {0U, 1U, 2U, 3U, 4U, 15U, 16U, 17U, 31U, 33U, 100U, 513U}) {
    for (const std::size_t columns : {1U, 2U, 15U, 16U, 17U, 63U, 64U, 65U, 130U}) {
      for (const int spread : {127, 60, 1}) {
        std::vector<std::int8_t> w(depth * columns);
        for (std::int8_t& v : w) {
          v = static_cast<std::int8_t>(
              random.chance(10) && spread == 127 ? -128 : random.integer(-spread, spread));
        }
        INFO(depth, " x ", columns, " spread ", spread);
        const std::size_t corrected = check(w, depth, columns);
        CHECK((spread == 127 || corrected == 0));
      }
    }
  }
}

TEST_CASE("the worst weights, and the usual ones") {
  constexpr std::size_t depth = 64;
  constexpr std::size_t columns = 64;
  const std::vector<std::int8_t> lowest(depth * columns, std::int8_t{-128});
  CHECK(check(lowest, depth, columns) == depth * columns / 2);  // no order and no sign helps
  for (const int value : {127, -127}) {
    // One of two weights with the opposite sign, and all pairs are safe; also of columns that have
    // signs of their own.
    std::vector<std::int8_t> w(depth * columns, static_cast<std::int8_t>(value));
    CHECK(check(w, depth, columns) == 0);
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] = static_cast<std::int8_t>(i % columns % 3 == 0 ? -value : value);
    }
    CHECK(check(w, depth, columns) == 0);
    // A single -128 among them has no opposite, but its partner has.
    w[5 * columns + 7] = -128;
    CHECK(check(w, depth, columns) <= 1);
    CHECK(check(w, depth, columns) == (w[4 * columns + 7] < 0 ? 0U : 1U));
  }
  // Half of each block is large: each of it has a partner that is not.
  std::vector<std::int8_t> halves(depth * columns);
  for (std::size_t k = 0; k < depth; ++k) {
    for (std::size_t j = 0; j < columns; ++j) {
      halves[k * columns + j] = k % 16 < 8 ? 127 : 1;
    }
  }
  CHECK(check(halves, depth, columns) == 0);
  random_source random(2);
  INFO("seed ", random.seed());
  std::vector<std::int8_t> normal(depth * columns);
  for (std::int8_t& v : normal) {
    // A sum of uniform numbers, with a standard deviation of a third of the largest.
    int sum = 0;
    for (int i = 0; i < 4; ++i) {
      sum += random.integer(-36, 36);
    }
    v = static_cast<std::int8_t>(std::clamp(sum, -127, 127));
  }
  CHECK(check(normal, depth, columns) < depth * columns / 2 / 200);
  // Random signs: whatever is chosen, some columns have an unsafe pair, and all columns are right.
  for (std::int8_t& v : normal) {
    v = random.chance(50) ? std::int8_t{127} : std::int8_t{-127};
  }
  CHECK(check(normal, depth, columns) > 0);
}

TEST_CASE("partners are exchanged until that does not help") {
  using detent::detail::pair_order;
  constexpr std::size_t depth = kernels::block_depth;
  random_source random(3);
  INFO("seed ", random.seed());
  const auto unsafe_in = [](const detent::detail::unsafe_columns& unsafe, const pair_order& order) {
    int sum = 0;
    for (std::size_t i = 0; i < depth; i += 2) {
      sum += unsafe[order[i]][order[i + 1]];
    }
    return sum;
  };
  int before = 0;
  int after = 0;
  for (int round = 0; round < 200; ++round) {
    detent::detail::unsafe_columns unsafe{};
    for (std::size_t i = 0; i < depth; ++i) {
      for (std::size_t j = i + 1; j < depth; ++j) {
        unsafe[i][j] = unsafe[j][i] = static_cast<std::uint8_t>(random.integer(0, 3 + round % 60));
      }
    }
    pair_order order = detent::detail::choose_pairs(unsafe);
    before += unsafe_in(unsafe, order);
    detent::detail::exchange_partners(unsafe, order);
    const int least = unsafe_in(unsafe, order);
    after += least;
    pair_order sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < depth; ++i) {
      CHECK(sorted[i] == i);
    }
    // Any two k change places: two pairs exchange a partner, or a pair turns round.
    int better = 0;
    for (std::size_t i = 0; i < depth; ++i) {
      for (std::size_t j = i + 1; j < depth; ++j) {
        pair_order other = order;
        std::swap(other[i], other[j]);
        better += unsafe_in(unsafe, other) < least ? 1 : 0;
      }
    }
    CHECK(better == 0);
  }
  CHECK(after < before);
}

TEST_CASE("products of weights with no, few and many unsafe pairs") {
  random_source random(5);
  INFO("seed ", random.seed());
  std::size_t kept_with_corrections = 0;
  std::size_t forgotten = 0;
  for (int round = 0; round < 120; ++round) {
    const std::size_t m = random.size(0, 30);
    const std::size_t n = random.size(1, 300);
    const std::size_t k = random.chance(20) ? random.size(500, 1100) : random.size(0, 130);
    const int large = std::array{0, 16, 100}[random.size(0, 2)];  // per cent of the weights
    std::vector<std::int8_t> w(k * n);
    for (std::int8_t& v : w) {
      v = static_cast<std::int8_t>(random.chance(large) ? random.integer(-128, 127)
                                                        : random.integer(-40, 40));
    }
    const auto packed = detent::pack_weights({w.data(), k, n});
    const kernels::packed_panels panels = detent::detail::packed_access::panels(packed, true);
    kept_with_corrections += panels.paired != nullptr && packed.corrected_pairs() > 0 ? 1U : 0U;
    forgotten += k > 0 && panels.paired == nullptr ? 1U : 0U;
    const auto a = random.integers<std::uint8_t>(m * k);
    std::vector<std::int8_t> s(m * k);  // a - 128, so that sums are the same
    std::vector<std::int32_t> expected(m * n);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t l = 0; l < k; ++l) {
        s[i * k + l] = static_cast<std::int8_t>(a[i * k + l] - 128);
        for (std::size_t j = 0; j < n; ++j) {
          expected[i * n + j] += (a[i * k + l] - 9) * w[l * n + j];
        }
      }
    }
    INFO("m ", m, " n ", n, " k ", k, " large ", large);
    test::for_each_target([&] {
      std::vector<std::int32_t> out(m * n);
      const detent::matrix_view<std::int32_t> to(out.data(), m, n);
      detent::gemm(detent::matrix_view<const std::uint8_t>(a.data(), m, k), packed, to,
                   {.lhs_zero_point = 9});
      CHECK(out == expected);
      detent::gemm(detent::matrix_view<const std::int8_t>(s.data(), m, k), packed, to,
                   {.lhs_zero_point = 9 - 128});
      CHECK(out == expected);
    });
  }
  CHECK(kept_with_corrections > 5);
  CHECK(forgotten > 5);
}
