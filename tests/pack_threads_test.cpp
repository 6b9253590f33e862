// SPDX-License-Identifier: BSD-3-Clause
// Packed weights are the same bytes for every split into threads, and those of the documented
// layout.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::matrix_view;
using test::difference;
using test::for_each_target;
using test::random_source;

/// Runs tasks backwards and keeps the largest number of them.
struct backwards {
  std::size_t* tasks;
  void operator()(std::size_t count, const std::function<void(std::size_t)>& body) const {
    *tasks = std::max(*tasks, count);
    for (std::size_t i = count; i-- > 0;) {
      body(i);
    }
  }
};

template <class T>
bool same_bytes(const T* a, const T* b, std::size_t n) {
  return std::equal(a, a + n, b);
}

/// Whether kernels read the same of two sets of pairs, both of the same size and not forgotten.
bool same_panels(const detent::kernels::packed_panels& x, const detent::kernels::packed_panels& y,
                 std::size_t rows, std::size_t columns) {
  using namespace detent::kernels;
  const std::size_t panels = (columns + panel_columns - 1) / panel_columns;
  const std::size_t strips = (columns + strip_columns - 1) / strip_columns;
  const std::size_t depth = (rows + block_depth - 1) / block_depth * block_depth;
  if (!same_bytes(x.first_correction, y.first_correction, panels + 1)) {
    return false;
  }
  const std::size_t corrections = x.first_correction[panels];
  return same_bytes(x.paired, y.paired, panels * depth * panel_columns) &&
         same_bytes(x.order, y.order, strips * depth) &&
         same_bytes(x.complement, y.complement, strips * depth) &&
         same_bytes(x.offset, y.offset, panels * panel_columns) &&
         same_bytes(x.correction_group, y.correction_group, corrections) &&
         same_bytes(x.corrections, y.corrections, corrections * group_depth * panel_columns);
}

/// Everything that kernels read of the pairs that two weights keep, if they do.
bool same_pairs(const detent::packed_weights& a, const detent::packed_weights& b) {
  const auto x = detent::detail::packed_access::pairs(a).panels(a.data().data());
  const auto y = detent::detail::packed_access::pairs(b).panels(b.data().data());
  if (a.corrected_pairs() != b.corrected_pairs() ||
      (x.first_correction == nullptr) != (y.first_correction == nullptr)) {
    return false;
  }
  return x.first_correction == nullptr || same_panels(x, y, a.depth(), a.columns());
}

/// The panels as kernels::packed_panels describes them, by plain loops.
template <class W>
std::vector<std::int8_t> panels_of(matrix_view<const W> w) {
  using namespace detent::kernels;
  const std::size_t groups = (w.rows + group_depth - 1) / group_depth;
  const std::size_t panels = (w.columns + panel_columns - 1) / panel_columns;
  std::vector<std::int8_t> data(panels * groups * panel_columns * group_depth, 0);
  for (std::size_t k = 0; k < w.rows; ++k) {
    for (std::size_t j = 0; j < w.columns; ++j) {
      data[((j / panel_columns * groups + k / group_depth) * panel_columns + j % panel_columns) *
               group_depth +
           k % group_depth] =
          static_cast<std::int8_t>(std::is_unsigned_v<W> ? w(k, j) - 128 : w(k, j));
    }
  }
  return data;
}

template <class W>
void check_weights(random_source& random, std::size_t k, std::size_t n, std::size_t* most_tasks) {
  const auto values = random.integers<W>(k * n);
  std::vector<std::int32_t> zero_points(n), bias(n);
  for (std::size_t j = 0; j < n; ++j) {
    zero_points[j] = random.integer(detent::full_grid<W>.qmin, detent::full_grid<W>.qmax);
    bias[j] = random.integer(-1000, 1000);
  }
  const detent::weight_options options{.zero_points = zero_points, .bias = bias};
  const matrix_view<const W> by_rows(values.data(), k, n);
  const matrix_view<const W> by_columns = matrix_view<const W>(values.data(), n, k).transposed();
  for (const matrix_view<const W>& w : {by_rows, by_columns}) {
    INFO("k ", k, " n ", n, " column stride ", w.column_stride);
    const auto serial = detent::pack_weights(w, options);
    CHECK(difference(serial.data(), panels_of(w)) == "");
    std::int64_t bound = 0;
    for (std::size_t j = 0; j < n; ++j) {
      std::int64_t sum = 0;
      std::int64_t magnitude = 0;
      for (std::size_t i = 0; i < k; ++i) {
        sum += std::is_unsigned_v<W> ? w(i, j) - 128 : w(i, j);
        magnitude += std::abs(w(i, j) - zero_points[j]);
      }
      CHECK(serial.column_sums()[j] == sum);
      bound = std::max(bound, 255 * magnitude + std::abs(bias[j]));
    }
    CHECK(serial.certificate().accumulator_bound == bound);
    for (const std::size_t threads : {1U, 2U, 5U}) {
      detent::thread_pool pool(threads);
      for (const bool in_order : {true, false}) {
        const detent::parallel_for parallel =
            in_order ? pool.parallel() : detent::parallel_for(backwards{most_tasks});
        const auto packed = detent::pack_weights(w, options, parallel);
        CHECK(packed.save() == serial.save());
        CHECK(difference(packed.column_sums(), serial.column_sums()) == "");
        CHECK(packed.certificate().accumulator_bound == bound);
        for_each_target([&] { packed.prepare(parallel); });
        CHECK(same_pairs(packed, serial));
        const std::span<const std::int8_t> data = packed.data();
        const detent::detail::weight_pairs divided(data, packed.depth(), packed.columns(),
                                                   parallel);
        const detent::detail::weight_pairs whole(data, packed.depth(), packed.columns());
        CHECK(same_panels(divided.panels(data.data()), whole.panels(data.data()), packed.depth(),
                          packed.columns()));
        CHECK(divided.corrected() == whole.corrected());
      }
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("packed weights do not depend on threads", W, std::int8_t, std::uint8_t) {
  random_source random(61);
  INFO("seed ", random.seed());
  std::size_t tasks = 0;
  for (int round = 0; round < 12; ++round) {
    check_weights<W>(random, random.size(0, 70), random.size(0, 150), &tasks);
  }
  check_weights<W>(random, 3, 0, &tasks);
  check_weights<W>(random, 0, 3, &tasks);
  check_weights<W>(random, 700, 333, &tasks);
  CHECK(tasks > 1);
}

TEST_CASE("what is prepared is what products use") {
  random_source random(62);
  INFO("seed ", random.seed());
  constexpr std::size_t slice = detent::packed_weights::slice_depth;
  detent::thread_pool pool(3);
  for (const std::size_t k : {std::size_t{500}, slice + 20000}) {
    const std::size_t n = 70;
    const std::size_t m = 3;
    std::vector<std::int8_t> w = random.integers<std::int8_t>(k * n);
    for (std::int8_t& value : w) {
      value = value < 0 ? std::int8_t{-128} : std::int8_t{127};  // not to fit 32 bits
    }
    const auto lhs = random.integers<std::uint8_t>(m * k);
    const auto lazy = detent::pack_weights({w.data(), k, n});
    CHECK(lazy.certificate().fits_s32() == (k < slice));
    for_each_target([&] {
      const auto packed = detent::pack_weights({w.data(), k, n}, {}, pool.parallel());
      packed.prepare(pool.parallel());
      packed.prepare(pool.parallel());  // makes nothing again
      const auto slices = packed.slices();
      std::vector<float> right(m * n), out(m * n);
      detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), m, k), lazy,
                   matrix_view<float>(right.data(), m, n));
      detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), m, k), packed,
                   matrix_view<float>(out.data(), m, n));
      CHECK(difference(out, right) == "");
      CHECK(packed.slices().data() == slices.data());
    });
  }
}

TEST_CASE("weights that are prepared are not prepared again") {
  random_source random(67);
  INFO("seed ", random.seed());
  constexpr std::size_t k = 700, n = 333;
  const auto w = random.integers<std::int8_t>(k * n);
  for_each_target([&] {
    std::size_t tasks = 0;
    const detent::parallel_for counts = backwards{&tasks};
    const auto packed = detent::pack_weights({w.data(), k, n});
    packed.prepare(counts);
    const bool makes_pairs =
        detent::detail::active<detent::kernels::integer_product_kernels>().adds_pairs;
    CHECK((tasks > 0) == makes_pairs);
    tasks = 0;
    packed.prepare(counts);
    CHECK(tasks == 0);
    const auto used = detent::pack_weights({w.data(), k, n});
    static_cast<void>(used.corrected_pairs());  // makes the pairs
    const auto copy = used;
    copy.prepare(counts);
    CHECK(tasks == 0);
    CHECK(same_pairs(used, packed));
  });
}

TEST_CASE("slices of weights are the weights") {
  random_source random(63);
  INFO("seed ", random.seed());
  constexpr std::size_t slice = detent::packed_weights::slice_depth;
  for (const std::size_t k : {slice, slice + 1, 2 * slice + 7}) {
    const std::size_t n = 19;
    const auto w = random.integers<std::int8_t>(k * n);
    const auto packed = detent::pack_weights({w.data(), k, n});
    std::size_t first = 0;
    for (const detent::packed_weights& part : packed.slices()) {
      CHECK(part.depth() <= slice);
      CHECK(part.columns() == n);
      CHECK(!part.has_zero_points());
      // The worst that 8-bit left sides can do without zero points.
      CHECK(std::int64_t{255} * 128 * static_cast<std::int64_t>(part.depth()) < std::int64_t{1}
                                                                                    << 31);
      const matrix_view<const std::int8_t> same(w.data() + first * n, part.depth(), n);
      CHECK(difference(part.data(), panels_of(same)) == "");
      first += part.depth();
    }
    CHECK(first == k);
  }
}

TEST_CASE("weights may be prepared by many threads at once, and while products run") {
  random_source random(64);
  INFO("seed ", random.seed());
  constexpr std::size_t k = 300, n = 200;
  const auto w = random.integers<std::int8_t>(k * n);
  const std::vector<std::uint8_t> lhs(k, 200);
  const auto alone = detent::pack_weights({w.data(), k, n});
  std::vector<std::int32_t> right(n);
  const matrix_view<const std::uint8_t> row(lhs.data(), 1, k);
  for_each_target([&] {
    detent::gemm(row, alone, matrix_view<std::int32_t>(right.data(), 1, n));
    const auto packed = detent::pack_weights({w.data(), k, n});
    detent::thread_pool pool(2);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        if (i % 2 == 0) {
          packed.prepare(pool.parallel());
        }
        std::vector<std::int32_t> out(n);
        detent::gemm(row, packed, matrix_view<std::int32_t>(out.data(), 1, n));
        wrong += out == right ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("packed floats do not depend on threads") {
  random_source random(65);
  INFO("seed ", random.seed());
  std::size_t tasks = 0;
  for (const auto& [k, n] : std::initializer_list<std::pair<std::size_t, std::size_t>>{
           {0, 5}, {5, 0}, {3, 17}, {700, 300}}) {
    const auto w = random.reals(k * n, -2.0F, 2.0F);
    const auto bias = random.reals(n, -2.0F, 2.0F);
    const matrix_view<const float> view(w.data(), k, n);
    const detent::packed_floats serial(view, bias);
    const detent::packed_floats packed(view, bias, backwards{&tasks});
    CHECK(difference(packed.data(), serial.data()) == "");
    CHECK(difference(packed.bias(), serial.bias()) == "");
  }
  CHECK(tasks > 1);
}

TEST_CASE_TEMPLATE("packed 4-bit weights do not depend on threads", W, std::int8_t, std::uint8_t) {
  random_source random(66);
  INFO("seed ", random.seed());
  std::size_t tasks = 0;
  detent::thread_pool pool(3);
  const std::int32_t lowest = std::is_signed_v<W> ? -8 : 0;
  for (const auto& [k, n] : std::initializer_list<std::pair<std::size_t, std::size_t>>{
           {1, 1}, {5, 16}, {33, 17}, {700, 300}}) {
    std::vector<W> codes(k * n);
    for (W& code : codes) {
      code = static_cast<W>(random.integer(lowest, lowest + 15));
    }
    const matrix_view<const W> view(codes.data(), k, n);
    const auto serial = detent::pack_int4_weights(view, {.group_size = 16});
    CHECK(detent::pack_int4_weights(view, {.group_size = 16}, backwards{&tasks}).save() ==
          serial.save());
    CHECK(detent::pack_int4_weights(view, {.group_size = 16}, pool.parallel()).save() ==
          serial.save());
    // The first bad code by columns is the one that is named, in whatever order they are seen.
    codes[(k - 1) * n + n - 1] = 77;
    codes[k / 2 * n + n / 2] = 99;
    const std::string text =
        "of row " + std::to_string(k / 2) + ", column " + std::to_string(n / 2);
    test::check_error(
        detent::error_kind::invalid_argument, {"the code 99", text, "is outside"}, [&] {
          static_cast<void>(detent::pack_int4_weights(view, {.group_size = 16}, backwards{&tasks}));
        });
  }
  CHECK(tasks > 1);
}
