// SPDX-License-Identifier: BSD-3-Clause
// Caches that products are divided for change how, never what is computed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "compare.hpp"
#include "convolution_loops.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "matrix_column.hpp"
#include "random.hpp"

namespace {

using detent::cache_sizes;
using detent::matrix_view;
using test::difference;
using test::for_each_target;
using test::random_source;

constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();

std::vector<cache_sizes> some_sizes() {
  std::vector<cache_sizes> all = {{}, {1, 1, 1}, {huge, huge, huge}};
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{999}, std::size_t{5000}, std::size_t{100000}, huge / 3, huge}) {
    all.push_back({size, 0, 0});
    all.push_back({0, size, 0});
    all.push_back({0, 0, size});
  }
  return all;
}

/// Backwards, so that nothing may depend on the order of tasks.
void run_backwards(std::size_t count, const std::function<void(std::size_t)>& body) {
  for (std::size_t i = count; i-- > 0;) {
    body(i);
  }
}

template <class A>
void check(random_source& random, std::size_t m, std::size_t n, std::size_t k) {
  const auto lhs = random.integers<A>(m * k);
  const auto rhs = random.integers<std::int8_t>(k * n);
  std::vector<std::int32_t> zero_points(n);
  for (std::int32_t& zero_point : zero_points) {
    zero_point = random.integer(-128, 127);
  }
  const auto weights = detent::pack_weights({rhs.data(), k, n}, {.zero_points = zero_points});
  std::vector<std::int32_t> right;
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      std::int32_t sum = 0;
      for (std::size_t at = 0; at < k; ++at) {
        sum += (lhs[i * k + at] - 11) * (rhs[at * n + j] - zero_points[j]);
      }
      right.push_back(sum);
    }
  }
  for (const cache_sizes& caches : some_sizes()) {
    INFO("m ", m, " n ", n, " k ", k, " caches ", caches.first_level, " ", caches.second_level, " ",
         caches.third_level);
    for_each_target([&] {
      for (const bool parallel : {false, true}) {
        std::vector<std::int32_t> out(m * n);
        detent::gemm(matrix_view<const A>(lhs.data(), m, k), weights,
                     matrix_view<std::int32_t>(out.data(), m, n),
                     {.lhs_zero_point = 11, .caches = caches},
                     parallel ? detent::parallel_for(&run_backwards) : detent::parallel_for());
        CHECK(difference(out, right) == "");
      }
    });
  }
}

}  // namespace

TEST_CASE_TEMPLATE("gemm: sizes of caches do not change a bit", A, std::uint8_t, std::int8_t) {
  random_source random(71);
  INFO("seed ", random.seed());
  const std::size_t shapes[][3] = {{0, 5, 5},      {5, 0, 5},      {5, 5, 0},     {1, 1, 1},
                                   {1, 200, 70},   {1, 520, 1099}, {3, 65, 15},   {13, 17, 16},
                                   {33, 130, 67},  {50, 70, 385},  {7, 40, 1100}, {260, 90, 130},
                                   {40, 300, 2100}};
  for (const auto& [m, n, k] : shapes) {
    check<A>(random, m, n, k);
  }
}

TEST_CASE_TEMPLATE("convolve: sizes of caches do not change a bit", A, std::uint8_t, std::int8_t) {
  random_source random(72);
  INFO("seed ", random.seed());
  // One row of the kernel is a segment of K. Chunks of K, which the second level determines, are
  // several segments, one, or a part of one that divides it or does not.
  for (const detent::filter_shape& f : {detent::filter_shape{70, 256, 1, 3, 3},
                                        {65, 20, 1, 3, 3},
                                        {34, 20, 1, 4, 3},
                                        {33, 64, 1, 5, 5},
                                        {48, 300, 1, 1, 1},
                                        {64, 512, 2, 3, 1},
                                        {20, 128, 1, 1, 3}}) {
    // With the least zero point, the padding of unsigned bytes is zeros, and tiles leave out kernel
    // rows of nothing else.
    const std::int32_t zero_point_of_input =
        f.out_channels % 2 == 0 ? std::int32_t{std::numeric_limits<A>::min()} : 11;
    const test::geometry g{
        f, {.in_height = 7, .in_width = 9, .pad_top = 1, .pad_left = 1, .pad_bottom = 2}};
    const auto input = random.integers<A>(g.in_size());
    const auto rhs = random.integers<std::int8_t>(f.size());
    std::vector<std::int32_t> zero_points(f.out_channels);
    for (std::int32_t& zero_point : zero_points) {
      zero_point = random.integer(-128, 127);
    }
    const detent::packed_filters filters(f, rhs, {.zero_points = zero_points});
    std::vector<std::int32_t> right(g.out_size());
    std::size_t channel = 0;
    test::for_each_product(
        g, [&](std::size_t, std::size_t oc) { channel = oc; },
        [&](std::size_t out, std::ptrdiff_t in, std::size_t weight) {
          const std::int32_t x =
              in < 0 ? 0 : input[static_cast<std::size_t>(in)] - zero_point_of_input;
          right[out] += x * (rhs[weight] - zero_points[channel]);
        });
    for (const std::size_t second_level :
         {std::size_t{1}, std::size_t{5000}, std::size_t{20000}, std::size_t{50000},
          std::size_t{98304}, std::size_t{100000}, std::size_t{300000}, huge}) {
      INFO("channels ", f.in_channels, " kernel ", f.kernel_height, " x ", f.kernel_width,
           " second level ", second_level);
      for_each_target([&] {
        std::vector<std::int32_t> out(right.size());
        detent::convolve<std::int32_t>(
            std::span<const A>(input), filters, g.w, out,
            {.lhs_zero_point = zero_point_of_input, .caches = {0, second_level, 0}});
        CHECK(difference(out, right) == "");
      });
    }
  }
}

TEST_CASE("weights that do not fit the shared cache are taken in blocks of columns") {
  using detent::detail::product_part;
  using detent::detail::product_parts;
  struct shape {
    std::size_t m, n, k, cache;
    bool by_columns;
  };
  for (const shape& s : {shape{200, 1000, 100, 100000, true}, shape{200, 1000, 100, 199999, true},
                         shape{200, 1000, 100, 200000, false}, shape{200, 1000, 100, 0, false},
                         shape{200, 1000, 100, 1, true}, shape{1, 1000, 100, 40000, true},
                         shape{7, 5, 0, 1, true}, shape{0, 100, 10, 5, true}}) {
    for (const bool is_parallel : {false, true}) {
      const product_parts parts(
          s.m, s.n, s.k, detent::detail::active<detent::kernels::integer_product_kernels>().rows,
          is_parallel, cache_sizes{0, 0, s.cache});
      INFO("m ", s.m, " n ", s.n, " k ", s.k, " cache ", s.cache);
      CHECK(parts.by_columns() == s.by_columns);
      // Each element is in one part, and no columns come twice.
      std::vector<int> seen(s.m * s.n);
      std::set<std::size_t> done;
      std::size_t last = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const product_part p = parts[i];
        CHECK(p.column % detent::kernels::strip_columns == 0);
        if (s.by_columns) {
          CHECK(p.columns <= std::max(s.cache / 2 / std::max(s.k, std::size_t{1}),
                                      detent::kernels::strip_columns));
        }
        if (s.by_columns && p.column != last) {
          CHECK(done.insert(last).second);
          CHECK(done.count(p.column) == 0);
          last = p.column;
        }
        for (std::size_t r = p.first; r < p.first + p.rows; ++r) {
          for (std::size_t c = p.column; c < p.column + p.columns; ++c) {
            ++seen[r * s.n + c];
          }
        }
      }
      CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
    }
  }
}

TEST_CASE("tasks of a product are of nearly the same size, and no larger than a kernel wants") {
  for_each_target([&] {
    const auto counts = detent::detail::active<detent::kernels::integer_product_kernels>().rows;
    const std::size_t tile = counts.per_tile;
    CHECK(counts.per_call % tile == 0);
    for (const std::size_t m :
         {1U, 5U, 47U, 127U, 128U, 196U, 240U, 784U, 1024U, 3136U, 4096U, 100000U}) {
      for (const std::size_t n : {1U, 64U, 513U, 768U, 4096U}) {
        for (const bool is_parallel : {false, true}) {
          for (const std::size_t second_level : {std::size_t{0}, std::size_t{1} << 16}) {
            const detent::detail::product_parts parts(m, n, 768, counts, is_parallel,
                                                      cache_sizes{0, second_level, 0});
            INFO("m ", m, " n ", n, " parallel ", is_parallel, " cache ", second_level);
            REQUIRE(parts.size() > 0);
            const detent::detail::product_part some = parts[0];
            for (std::size_t i = 0; i < parts.size(); ++i) {
              const detent::detail::product_part p = parts[i];
              CHECK(p.rows <= counts.per_call);
              CHECK(p.first % tile == 0);
              CHECK(p.rows < some.rows + 2 * tile);
              CHECK(some.rows < p.rows + 2 * tile);
              CHECK(p.columns < some.columns + 2 * detent::kernels::strip_columns);
              CHECK(some.columns < p.columns + 2 * detent::kernels::strip_columns);
            }
            const std::size_t worth = m * n * 768 / detent::detail::worth_a_task;
            if (is_parallel && m >= 1024 && worth >= 16) {
              CHECK(parts.size() % 16 == 0);
            }
            if (is_parallel && m >= 128 && worth >= 2) {
              CHECK(parts.size() > 1);
            }
            if (m <= counts.per_call && worth < 2) {
              CHECK(parts.size() == 1);  // another thread would take longer to wake
            }
          }
        }
      }
    }
  });
}

TEST_CASE("weights beyond the second level are shared out by columns, and rows where those end") {
  const std::size_t level = std::size_t{1} << 20;
  struct shape {
    std::size_t m, n, k, tasks, columns;
  };
  // For a kernel that takes 240 rows, six at a time.
  const detent::kernels::row_counts counts{.per_call = 240, .per_tile = 6};
  for (const shape& s :
       {shape{512, 768, 512, 16, 2}, shape{512, 3072, 768, 16, 4}, shape{128, 3072, 768, 16, 16},
        shape{960, 64, 32768, 8, 1}, shape{128, 100, 60000, 4, 2}}) {
    const detent::detail::product_parts parts(s.m, s.n, s.k, counts, true,
                                              cache_sizes{0, level, 0});
    std::set<std::size_t> columns;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      columns.insert(parts[i].column);
    }
    INFO("m ", s.m, " n ", s.n, " k ", s.k);
    CHECK(parts.size() == s.tasks);
    CHECK(columns.size() == s.columns);
    CHECK(parts.by_columns() == (s.n * s.k > level / 2));
  }
}

TEST_CASE("dynamic products of many rows are shared out by rows alone") {
  const std::size_t m = 512;
  const std::size_t n = 1024;
  const std::size_t k = 1024;
  const std::vector<std::int8_t> codes(k * n, 1);
  const auto weights = detent::pack_weights({codes.data(), k, n});
  const std::vector<float> x(m * k, 1.0F);
  std::vector<float> out(m * n);
  std::size_t most = 0;
  const detent::parallel_for counting = [&](std::size_t count,
                                            const std::function<void(std::size_t)>& body) {
    most = std::max(most, count);
    for (std::size_t i = 0; i < count; ++i) {
      body(i);
    }
  };
  detent::dynamic_linear(matrix_view<const float>(x.data(), m, k), weights,
                         detent::matrix_view<float>(out.data(), m, n), {.per_row = true}, counting);
  CHECK(most >= 8);
}

TEST_CASE_TEMPLATE("gemm: tiles, last rows, last k and lone columns, rows at any distance", A,
                   std::uint8_t, std::int8_t) {
  random_source random(73);
  INFO("seed ", random.seed());
  struct shape {
    std::size_t m, n, k, gap;
  };
  for (const shape& s : {shape{30, 130, 67, 0}, shape{30, 130, 67, 5}, shape{13, 64, 16, 64},
                         shape{250, 65, 33, 1}, shape{490, 66, 96, 0}, shape{12, 1, 4096, 0},
                         shape{12, 2, 4093, 3}, shape{13, 1, 4097, 0}, shape{12, 2, 0, 7}}) {
    const std::size_t lda = s.k + s.gap;
    const std::size_t size = (s.m - 1) * lda + s.k;
    test::guarded_memory memory(size + 1);
    const std::span<A> lhs = memory.back<A>(size);
    const auto codes = random.integers<A>(size);
    std::copy(codes.begin(), codes.end(), lhs.begin());
    const auto rhs = random.integers<std::int8_t>(s.k * s.n);
    const auto weights = detent::pack_weights({rhs.data(), s.k, s.n});
    std::vector<std::int32_t> right;
    for (std::size_t i = 0; i < s.m; ++i) {
      for (std::size_t j = 0; j < s.n; ++j) {
        right.push_back(static_cast<std::int32_t>(
            detent::reference::dot(lhs.data() + i * lda, test::column_of(rhs, j),
                                   static_cast<std::ptrdiff_t>(s.n), s.k, 11, 0, 0)));
      }
    }
    INFO("m ", s.m, " n ", s.n, " k ", s.k, " gap ", s.gap);
    for_each_target([&] {
      std::vector<std::int32_t> out(s.m * s.n);
      detent::gemm(matrix_view<const A>(lhs.data(), s.m, s.k, static_cast<std::ptrdiff_t>(lda)),
                   weights, matrix_view<std::int32_t>(out.data(), s.m, s.n),
                   {.lhs_zero_point = 11});
      CHECK(difference(out, right) == "");
    });
  }
}

TEST_CASE("the processor's caches are known, or are the usual ones") {
  const cache_sizes found = detent::detected_cache_sizes();
  CHECK(found == detent::detected_cache_sizes());
  CHECK(found.first_level >= 4096);
  CHECK(found.first_level <= std::size_t{4} << 20);
  CHECK(found.second_level > found.first_level);
  CHECK(found.third_level >= found.second_level);
  INFO("first ", found.first_level, " second ", found.second_level, " third ", found.third_level);
}

TEST_CASE("the part of the first-level cache for what is read again") {
  using detent::kernels::reused_part;
  struct cache {
    std::size_t size, part;
  };
  for (const cache& c : {cache{0, 0}, cache{1, 1}, cache{16384, 12288}, cache{32768, 24576},
                         cache{49152, 24576}, cache{65536, 32768}}) {
    INFO("size ", c.size);
    CHECK(reused_part(c.size) == c.part);
  }
  CHECK(reused_part(huge) == huge / 2);
}
