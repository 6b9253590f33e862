// SPDX-License-Identifier: BSD-3-Clause
// Dynamic quantization equals the range, the parameters and quantize() one after the other.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/dynamic_linear.hpp>
#include <detent/dynamic_quantize.hpp>
#include <detent/fused_dynamic_linear.hpp>

#include "check_error.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using detent::quant_params;
using test::for_each_target;
using test::random_source;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

quant_params expected_params(std::span<const float> x, detent::quant_scheme scheme) {
  const auto r = detent::reference::min_max(x.data(), x.size());
  return detent::reference::params_from_range(
      r.count_nan < x.size() ? detent::value_range{r.lower, r.upper} : detent::value_range{},
      scheme);
}

std::vector<float> some_floats(random_source& random, std::size_t n) {
  std::vector<float> x = random.reals(n, -3.0F, 5.0F);
  for (float& v : x) {
    v = random.chance(3) ? nan : random.chance(3) ? 0.0F : v;
  }
  return x;
}

/// Rows that ask everything of the rule for parameters and of the rounding.
void fill_row(random_source& random, std::span<float> x) {
  constexpr float largest = std::numeric_limits<float>::max();
  const int kind = random.integer(0, 11);
  const float unit = std::ldexp(1.0F, random.integer(-140, 110));
  for (float& v : x) {
    switch (kind) {
      case 0:
        v = random.real(-3.0F, 5.0F);
        break;
      case 1:
        v = random.chance(50) ? 0.0F : -0.0F;
        break;
      case 2:
        v = random.chance(50) ? nan : -nan;
        break;
      case 3:
        v = random.chance(10) ? nan : random.real(-1.0F, 1.0F);
        break;
      case 4:
        v = -random.real(1.0F, 2.0F) * unit;
        break;
      case 5:
        v = random.real(1.0F, 2.0F) * unit;
        break;
      case 6:
        v = random.real(-1.0F, 1.0F) * std::numeric_limits<float>::min();
        break;
      case 7:
        v = random.chance(50) ? largest : -largest;
        break;
      case 8:
        v = random.any_float();
        v = std::isinf(v) ? 0.0F : v;
        break;
      case 9:  // half steps of a grid of 255 or 254 steps
        v = static_cast<float>(random.integer(-203, 307)) * 0.5F * unit;
        break;
      case 10:
        v = 0.0F;
        break;
      default:
        v = random.real(-1.0F, 0.25F) * unit;
    }
  }
  if (kind == 9 && x.size() > 1) {
    x.front() = -101.5F * unit;
    x.back() = 153.5F * unit;
  }
  if (kind == 10 && !x.empty()) {
    x[random.size(0, x.size() - 1)] = random.chance(50) ? unit : -unit;
  }
}

}  // namespace

TEST_CASE_TEMPLATE("a tensor", Q, std::uint8_t, std::int8_t, std::uint16_t, std::int16_t) {
  random_source random(1);
  INFO("seed ", random.seed());
  for (const detent::quant_scheme scheme : {detent::asymmetric<Q>, detent::symmetric<Q>}) {
    for (std::size_t n = 0; n < 200; ++n) {
      const std::vector<float> x = some_floats(random, n);
      const quant_params p = expected_params(x, scheme);
      for_each_target([&] {
        std::vector<Q> q(n);
        CHECK(detent::dynamic_quantize<Q>(x, q, scheme) == p);
        for (std::size_t i = 0; i < n; ++i) {
          CHECK(q[i] == detent::reference::quantize(x[i], p, scheme.levels));
        }
      });
    }
  }
}

TEST_CASE_TEMPLATE("sums of codes, modulo 2^32", Q, std::uint8_t, std::int8_t) {
  random_source random(4);
  INFO("seed ", random.seed());
  const auto check = [](std::span<const Q> q) {
    std::int64_t sum = 0;
    for (const Q v : q) {
      sum += v;
    }
    const auto expected = static_cast<std::int32_t>(static_cast<std::uint64_t>(sum));
    for_each_target([&] {
      const auto& table = detent::detail::active<detent::kernels::statistics_kernels>();
      if constexpr (std::is_signed_v<Q>) {
        CHECK(table.sum_s8(q.data(), q.size()) == expected);
      } else {
        CHECK(table.sum_u8(q.data(), q.size()) == expected);
      }
    });
  };
  std::vector<Q> q(400);
  for (const bool extreme : {false, true}) {
    for (Q& v : q) {
      v = static_cast<Q>(!extreme ? random.integer(0, 255) : std::is_signed_v<Q> ? -128 : 255);
    }
    for (std::size_t n = 0; n < 330; ++n) {
      check(std::span<const Q>(q).subspan(n % 67, n));
    }
  }
  q.assign(34000001, std::numeric_limits<Q>::lowest() == 0 ? Q(255) : Q(-128));
  check(q);
}

TEST_CASE_TEMPLATE("rows, with their sums, in any layout and on any threads", Q, std::uint8_t,
                   std::int8_t) {
  random_source random(2);
  INFO("seed ", random.seed());
  detent::thread_pool pool(3);
  for (int round = 0; round < 60; ++round) {
    const std::size_t rows = random.size(0, 40);
    const std::size_t columns = random.size(0, 90);
    const bool transposed = random.chance(40);
    const std::size_t gap = random.size(0, 3);
    const auto stride = static_cast<std::ptrdiff_t>((transposed ? rows : columns) + gap);
    const std::size_t size = (transposed ? columns : rows) * static_cast<std::size_t>(stride);
    const std::vector<float> x = some_floats(random, size);
    const auto view = [&]<class T>(T* data) {
      return transposed ? detent::matrix_view<T>(data, rows, columns, 1, stride)
                        : detent::matrix_view<T>(data, rows, columns, stride);
    };
    const auto in = view(x.data());
    INFO("round ", round, " rows ", rows, " columns ", columns);
    for_each_target([&] {
      std::vector<Q> q(size, Q{77});
      std::vector<float> scales(rows);
      std::vector<std::int32_t> zero_points(rows);
      std::vector<std::int32_t> sums(rows);
      detent::dynamic_quantize_rows<Q>(in, view(q.data()), scales, zero_points, sums,
                                       detent::asymmetric<Q>, {pool.parallel()});
      std::size_t untouched = 0;
      for (const Q v : q) {
        untouched += v == Q{77} ? 1 : 0;
      }
      CHECK(untouched >= size - rows * columns);
      for (std::size_t r = 0; r < rows; ++r) {
        std::vector<float> row(columns);
        for (std::size_t c = 0; c < columns; ++c) {
          row[c] = in(r, c);
        }
        const quant_params p = expected_params(row, detent::asymmetric<Q>);
        CHECK(scales[r] == p.scale);
        CHECK(zero_points[r] == p.zero_point);
        std::int32_t sum = 0;
        for (std::size_t c = 0; c < columns; ++c) {
          const Q value = view(q.data())(r, c);
          CHECK(value == detent::reference::quantize(row[c], p, detent::full_grid<Q>));
          sum += value;
        }
        CHECK(sums[r] == sum);
      }
    });
  }
}

TEST_CASE_TEMPLATE("rows of hard ranges, beside pages that must not be touched", Q, std::uint8_t,
                   std::int8_t, std::uint16_t, std::int16_t) {
  random_source random(5);
  INFO("seed ", random.seed());
  constexpr detent::grid whole = detent::full_grid<Q>;
  const detent::quant_scheme schemes[] = {detent::asymmetric<Q>,
                                          detent::symmetric<Q>,
                                          {detent::narrow_grid<Q>, true},
                                          {{whole.qmin + 3, whole.qmax - 100}, false},
                                          {{whole.qmin, whole.qmin + 4}, true},
                                          {{7, 8}, false}};
  test::guarded_memory in_memory(70 * 260 * sizeof(float));
  test::guarded_memory out_memory(70 * 260 * sizeof(Q));
  for (int round = 0; round < 60; ++round) {
    const bool are_long = random.chance(10);
    const std::size_t rows = are_long ? random.size(1, 4) : random.size(1, 70);
    const std::size_t columns = are_long            ? random.size(1000, 4000)
                                : random.chance(30) ? 1 + 16 * random.size(0, 12)
                                                    : random.size(1, 200);
    const std::size_t gap = random.size(0, 5);
    const std::size_t in_size = (rows - 1) * (columns + gap) + columns;
    const std::size_t out_size = rows * columns;
    const detent::quant_scheme scheme = schemes[random.size(0, std::size(schemes) - 1)];
    const std::span<float> in =
        random.chance(50) ? in_memory.back<float>(in_size) : in_memory.front<float>(in_size);
    const std::span<Q> out =
        random.chance(50) ? out_memory.back<Q>(out_size) : out_memory.front<Q>(out_size);
    std::fill(in.begin(), in.end(), infinity);  // between rows
    std::vector<quant_params> params;
    std::vector<std::int32_t> codes;
    for (std::size_t r = 0; r < rows; ++r) {
      const std::span<float> row = in.subspan(r * (columns + gap), columns);
      fill_row(random, row);
      quant_params p = expected_params(row, scheme);
      if (!std::isfinite(p.scale)) {  // steps of a grid of two levels
        std::fill(row.begin(), row.end(), 2.5F);
        p = expected_params(row, scheme);
      }
      params.push_back(p);
      for (const float v : row) {
        codes.push_back(detent::reference::quantize(v, p, scheme.levels));
      }
    }
    INFO("round ", round, " rows ", rows, " columns ", columns, " grid ", scheme.levels.qmin, "..",
         scheme.levels.qmax);
    for_each_target([&] {
      out_memory.repaint();
      std::vector<float> scales(rows);
      std::vector<std::int32_t> zero_points(rows);
      detent::dynamic_quantize_rows<Q>(
          {in.data(), rows, columns, static_cast<std::ptrdiff_t>(columns + gap)},
          {out.data(), rows, columns}, scales, zero_points, {}, scheme);
      std::size_t wrong_params = 0;
      for (std::size_t r = 0; r < rows; ++r) {
        wrong_params += quant_params{scales[r], zero_points[r]} == params[r] ? 0U : 1U;
      }
      std::size_t wrong_codes = 0;
      for (std::size_t i = 0; i < out_size; ++i) {
        wrong_codes += out[i] == codes[i] ? 0U : 1U;
      }
      CHECK(wrong_params == 0);
      CHECK(wrong_codes == 0);
      CHECK(out_memory.intact_around(out));
    });
  }
}

TEST_CASE("rows before one without a finite range are done, and those behind it are left alone") {
  random_source random(6);
  INFO("seed ", random.seed());
  for (const std::size_t columns : {1U, 40U, 64U, 100U, 700U, 3000U}) {
    const std::size_t rows = columns > 100 ? 9 : 75;
    const std::vector<float> x = random.reals(rows * columns, -3.0F, 5.0F);
    std::vector<std::uint8_t> expected(x.size());
    for (std::size_t r = 0; r < rows; ++r) {
      const std::span<const float> row = std::span(x).subspan(r * columns, columns);
      const quant_params p = expected_params(row, detent::asymmetric<std::uint8_t>);
      for (std::size_t c = 0; c < columns; ++c) {
        expected[r * columns + c] = static_cast<std::uint8_t>(
            detent::reference::quantize(row[c], p, detent::full_grid<std::uint8_t>));
      }
    }
    for (std::size_t bad = 0; bad < rows; ++bad) {
      std::vector<float> with_infinity = x;
      for (std::size_t r = bad; r < rows; r += 3) {  // the first one counts
        with_infinity[r * columns + random.size(0, columns - 1)] =
            random.chance(50) ? infinity : -infinity;
      }
      INFO("columns ", columns, " bad ", bad);
      for_each_target([&] {
        std::vector<std::uint8_t> q(x.size(), 77);
        std::vector<float> scales(rows);
        std::vector<std::int32_t> zero_points(rows);
        detent::kernels::dynamic_rows_args a;
        a.rows = rows;
        a.columns = columns;
        a.in_stride = static_cast<std::ptrdiff_t>(columns);
        a.out_stride = a.in_stride;
        a.scale = scales.data();
        a.zero_point = zero_points.data();
        a.qmax = 255;
        using family = detent::kernels::dynamic_quantize_kernels<detent::kernels::u8_code>;
        CHECK(detent::detail::active<family>().dynamic_rows(with_infinity.data(), a, q.data()) ==
              bad);
        std::vector<std::uint8_t> right(x.size(), 77);
        std::copy_n(expected.begin(), bad * columns, right.begin());
        CHECK(q == right);
      });
    }
  }
}

TEST_CASE("what can't be quantized is an error") {
  using detent::error_kind;
  std::vector<float> x = {1.0F, infinity, 2.0F, 3.0F};
  std::vector<std::uint8_t> q(4, 9);
  std::vector<float> scales(2);
  std::vector<std::int32_t> zero_points(2);
  std::vector<std::int32_t> sums(1);
  const detent::matrix_view<const float> in(x.data(), 2, 2);
  const detent::matrix_view<std::uint8_t> out(q.data(), 2, 2);
  test::check_error(error_kind::invalid_argument, {"is not finite"},
                    [&] { detent::dynamic_quantize<std::uint8_t>(x, q); });
  test::check_error(error_kind::shape_mismatch, {"4 elements, output 3"},
                    [&] { detent::dynamic_quantize<std::uint8_t>(x, std::span(q).first(3)); });
  test::check_error(error_kind::invalid_argument, {"grid"}, [&] {
    detent::dynamic_quantize<std::uint8_t>(x, q, detent::asymmetric<std::int8_t>);
  });
  test::check_error(error_kind::shape_mismatch, {"1 row sums for 2 rows"}, [&] {
    detent::dynamic_quantize_rows<std::uint8_t>(in, out, scales, zero_points, sums);
  });
  test::check_error(error_kind::shape_mismatch, {"1 scales"}, [&] {
    detent::dynamic_quantize_rows<std::uint8_t>(in, out, std::span(scales).first(1), zero_points);
  });
  test::check_error(error_kind::shape_mismatch, {"output 2 x 1"}, [&] {
    detent::dynamic_quantize_rows<std::uint8_t>(
        in, detent::matrix_view<std::uint8_t>(q.data(), 2, 1), scales, zero_points);
  });
  std::vector<std::uint8_t> room(9, 9);
  using strides = std::pair<std::ptrdiff_t, std::ptrdiff_t>;
  for (const auto& [row, column] : {strides{1, 1}, strides{0, 1}, strides{-1, 1}, strides{1, 0},
                                    strides{2, 2}, strides{0, 0}}) {
    const detent::matrix_view<std::uint8_t> overlapping(&room[4], 2, 2, row, column);
    test::check_error(
        error_kind::invalid_argument, {"share an address", "2 x 2 with strides"},
        [&] { detent::dynamic_quantize_rows<std::uint8_t>(in, overlapping, scales, zero_points); });
  }
  CHECK(room == std::vector<std::uint8_t>(9, 9));
  CHECK(q == std::vector<std::uint8_t>(4, 9));

  const std::vector<float> largest = {3.4e38F, -3.4e38F, 0.0F, 0.0F};
  for_each_target([&] {
    const auto rows = [&](const std::vector<float>& values, detent::quant_scheme scheme) {
      detent::dynamic_quantize_rows<std::uint8_t>({values.data(), 2, 2}, out, scales, zero_points,
                                                  {}, scheme);
    };
    test::check_error(error_kind::invalid_argument, {"dynamic_quantize_rows", "1 .. inf"},
                      [&] { rows(x, detent::asymmetric<std::uint8_t>); });
    test::check_error(error_kind::invalid_argument, {"grid 5..5 is too small"}, [&] {
      rows({0.0F, 0.0F, 0.0F, 0.0F}, {{5, 5}, false});
    });
    test::check_error(error_kind::invalid_argument, {"needs a scale that is not finite"}, [&] {
      rows(largest, {{0, 1}, false});
    });
  });
}

/// Threads of a caller that do not carry exceptions. One that leaves a task would end the program;
/// here it is counted.
struct bare_threads {
  std::atomic<int>* escaped;
  void operator()(std::size_t count, const std::function<void(std::size_t)>& body) const {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([this, &body, i] {
        try {
          body(i);
        } catch (...) {
          ++*escaped;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
};

TEST_CASE("rows that can't be quantized are errors of the call, not of its tasks") {
  using detent::matrix_view;
  constexpr std::size_t m = 600, k = 32, n = 16;
  constexpr float largest = std::numeric_limits<float>::max();
  const std::vector<float> ones(m * k, 1.0F);
  std::vector<float> two_bad = ones;  // the first one is named
  two_bad[311 * k + 3] = infinity;
  two_bad[590 * k] = -infinity;
  std::vector<float> too_wide = ones;
  too_wide[400 * k] = -largest;
  too_wide[400 * k + 1] = largest;
  const auto weights = detent::pack_weights({std::vector<std::int8_t>(k * n, 1).data(), k, n});
  const auto codes = detent::pack_int4_weights({std::vector<std::uint8_t>(k * n, 1).data(), k, n});
  const struct {
    const std::vector<float>& x;
    detent::quant_scheme scheme;
    const char* text;         // of the error for rows of their own
    const char* text_of_all;  // of the error for one range
    std::size_t bad;          // a row that must not reach the functor
  } cases[] = {{two_bad, detent::asymmetric<std::uint8_t>, "the range 1 .. inf is not finite",
                "the range -inf .. inf is not finite", 311},
               {too_wide,
                {{0, 1}, false},
                "needs a scale that is not finite",
                "needs a scale that is not finite",
                400},
               {ones, {{7, 7}, false}, "grid 7..7 is too small", "grid 7..7 is too small", 0},
               {ones, {{7, 8}, true}, "grid 7..8 is too small", "grid 7..8 is too small", 0}};
  std::atomic<int> escaped{0};
  const detent::parallel_for parallel = bare_threads{&escaped};
  const auto refuses = [&](const char* text, const auto& call) {
    test::check_error(detent::error_kind::invalid_argument, {text}, call);
    CHECK(escaped == 0);
  };
  std::vector<std::uint8_t> q(m * k);
  std::vector<float> scales(m), out(m * n);
  std::vector<std::int32_t> zero_points(m), sums(m);
  std::size_t bad = 0;
  std::atomic<int> wrong_blocks{0};
  const auto epilogue = detent::fused([&](const detent::product_block<float>& block) {
    wrong_blocks += block.row() <= bad && bad < block.row() + block.rows() ? 1 : 0;
  });
  const auto both = detent::fused(
      [](const detent::product_block<float>&, const detent::product_block<float>&) {});
  for_each_target([&] {
    for (const auto& c : cases) {
      bad = c.bad;
      const matrix_view<const float> x(c.x.data(), m, k);
      // The same values by columns, which are quantized a few rows at a time.
      std::vector<float> columns(m * k);
      for (std::size_t i = 0; i < m * k; ++i) {
        columns[i % k * m + i / k] = c.x[i];
      }
      const auto by_columns = matrix_view<const float>(columns.data(), k, m).transposed();
      const matrix_view<std::uint8_t> to(q.data(), m, k);
      const auto to_columns = matrix_view<std::uint8_t>(q.data(), k, m).transposed();
      const matrix_view<float> y(out.data(), m, n);
      for (const auto& from : {x, by_columns}) {
        for (const auto& t : {to, to_columns}) {
          refuses(c.text, [&] {
            detent::dynamic_quantize_rows<std::uint8_t>(from, t, scales, zero_points, sums,
                                                        c.scheme, {parallel});
          });
        }
        const detent::dynamic_linear_options options{.lhs_scheme = c.scheme};
        refuses(c.text, [&] { detent::dynamic_linear(from, weights, y, options, parallel); });
        refuses(c.text, [&] { detent::dynamic_linear(from, codes, y, options, parallel); });
        refuses(c.text,
                [&] { detent::dynamic_linear(from, weights, epilogue, options, parallel); });
        refuses(c.text, [&] {
          detent::dynamic_linear(from, weights, weights, both, options, {}, parallel);
        });
        refuses(c.text_of_all, [&] {
          detent::dynamic_linear(from, weights, y, {.per_row = false, .lhs_scheme = c.scheme},
                                 parallel);
        });
      }
    }
  });
  CHECK(wrong_blocks == 0);
}

TEST_CASE("rows may lie in any way in which no two elements share an address") {
  using detent::detail::has_shared_elements;
  // Against all pairs of elements.
  const auto share = [](const detent::matrix_view<const float>& m) {
    std::set<std::ptrdiff_t> places;
    for (std::size_t r = 0; r < m.rows; ++r) {
      for (std::size_t c = 0; c < m.columns; ++c) {
        const auto place = static_cast<std::ptrdiff_t>(r) * m.row_stride +
                           static_cast<std::ptrdiff_t>(c) * m.column_stride;
        if (!places.insert(place).second) {
          return true;
        }
      }
    }
    return false;
  };
  for (std::size_t rows = 0; rows < 5; ++rows) {
    for (std::size_t columns = 0; columns < 5; ++columns) {
      for (std::ptrdiff_t row_stride = -7; row_stride <= 7; ++row_stride) {
        for (std::ptrdiff_t column_stride = -7; column_stride <= 7; ++column_stride) {
          const detent::matrix_view<const float> m(nullptr, rows, columns, row_stride,
                                                   column_stride);
          INFO(rows, " x ", columns, ", strides ", row_stride, " and ", column_stride);
          CHECK(has_shared_elements(m) == share(m));
        }
      }
    }
  }
  constexpr auto least = std::numeric_limits<std::ptrdiff_t>::min();
  CHECK_FALSE(has_shared_elements(detent::matrix_view<const float>(nullptr, 2, 2, least, 1)));
  CHECK(has_shared_elements(detent::matrix_view<const float>(nullptr, 2, 2, least, least)));
  // Rows of no columns, with a stride: nothing is added to null.
  std::vector<float> scales(3);
  std::vector<std::int32_t> zero_points(3);
  detent::dynamic_quantize_rows<std::uint8_t>(detent::matrix_view<const float>(nullptr, 3, 0, 4),
                                              detent::matrix_view<std::uint8_t>(nullptr, 3, 0, 4),
                                              scales, zero_points);
  CHECK(scales == std::vector<float>(
                      3, detent::params_from_range({}, detent::asymmetric<std::uint8_t>).scale));
}
