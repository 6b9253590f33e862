// SPDX-License-Identifier: BSD-3-Clause
// The transpositions under images whose channels are planes, element by element.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using test::difference;
using test::for_each_target;
using test::random_source;

struct guarded_matrices {
  test::guarded_memory in{1 << 18};
  test::guarded_memory out{1 << 18};
};

/// A matrix with room behind its rows, and its transpose with room behind columns and lines.
struct layout {
  std::size_t rows, columns;
  std::size_t from_stride, to_stride;
  std::size_t line, line_step;

  layout(random_source& random, std::size_t rows_, std::size_t columns_)
      : rows(rows_),
        columns(columns_),
        from_stride(columns + (random.chance(50) ? random.size(0, 70) : 0)),
        to_stride(rows + (random.chance(50) ? random.size(0, 70) : 0)),
        line(random.chance(30) ? columns : random.size(1, columns)),
        line_step(line * to_stride + (random.chance(50) ? random.size(0, 70) : 0)) {}

  [[nodiscard]] std::size_t to(std::size_t row, std::size_t column) const {
    return column / line * line_step + column % line * to_stride + row;
  }
  [[nodiscard]] std::size_t in_size() const { return (rows - 1) * from_stride + columns; }
  [[nodiscard]] std::size_t out_size() const { return to(rows - 1, columns - 1) + 1; }
};

template <class T>
void check(random_source& random, const layout& l, guarded_matrices& memory) {
  INFO(l.rows, " x ", l.columns, " elements of ", sizeof(T), " bytes, strides ", l.from_stride, " ",
       l.to_stride, ", lines ", l.line, " ", l.line_step);
  const std::vector<T> values = random.integers<T>(l.in_size());
  const bool at_end = random.chance(50);
  const std::span<T> in =
      at_end ? memory.in.back<T>(values.size()) : memory.in.front<T>(values.size());
  const std::span<T> out =
      at_end ? memory.out.back<T>(l.out_size()) : memory.out.front<T>(l.out_size());
  std::copy(values.begin(), values.end(), in.begin());
  memory.out.repaint();
  std::vector<T> expected(out.begin(), out.end());  // what lies between is left alone
  for (std::size_t row = 0; row < l.rows; ++row) {
    for (std::size_t column = 0; column < l.columns; ++column) {
      expected[l.to(row, column)] = values[row * l.from_stride + column];
    }
  }
  for_each_target([&] {
    memory.out.repaint();
    detent::kernels::transpose_args t;
    t.from = in.data();
    t.from_stride = l.from_stride;
    t.rows = l.rows;
    t.columns = l.columns;
    t.to = out.data();
    t.to_stride = l.to_stride;
    t.line = l.line;
    t.line_step = l.line_step;
    detent::detail::transpose<T>(t);
    CHECK(difference(out, expected) == "");
    CHECK(memory.out.intact_around(out));
  });
}

}  // namespace

TEST_CASE_TEMPLATE("transposition: every number of rows, around the widths of vectors", T,
                   std::uint8_t, std::uint16_t, std::uint32_t) {
  random_source random(201);
  INFO("seed ", random.seed());
  guarded_matrices memory;
  for (std::size_t rows = 1; rows <= 140; ++rows) {
    for (const std::size_t columns : {random.size(1, 16), random.size(1, 80), std::size_t{64}}) {
      check<T>(random, layout(random, rows, columns), memory);
    }
  }
}

TEST_CASE_TEMPLATE("transposition: every number of columns", T, std::uint8_t, std::uint16_t,
                   std::uint32_t) {
  random_source random(202);
  INFO("seed ", random.seed());
  guarded_matrices memory;
  for (std::size_t columns = 1; columns <= 70; ++columns) {
    for (std::size_t rows = 1; rows <= 5; ++rows) {
      check<T>(random, layout(random, rows, columns), memory);
    }
    check<T>(random, layout(random, random.size(6, 150), columns), memory);
  }
}

TEST_CASE_TEMPLATE("transposition: three planes to dense pixels, lines of every length", T,
                   std::uint8_t, std::uint16_t, std::uint32_t) {
  random_source random(203);
  INFO("seed ", random.seed());
  guarded_matrices memory;
  for (std::size_t line = 1; line <= 140; ++line) {
    layout l(random, 3, line * random.size(1, 4) + random.size(0, line - 1));
    l.to_stride = 3;
    l.line = line;
    l.line_step = 3 * line + random.size(0, 20);
    check<T>(random, l, memory);
  }
}

TEST_CASE("blocks of pixels that begin and end anywhere in a batch") {
  random_source random(204);
  INFO("seed ", random.seed());
  for (int round = 0; round < 300; ++round) {
    const std::size_t batch = random.size(1, 4);
    const std::size_t channels = random.size(1, 40);
    const std::size_t pixels = random.size(1, 50);
    const std::size_t first = random.size(0, batch * pixels - 1);
    const std::size_t count = random.size(1, batch * pixels - first);
    INFO("round ", round, ": ", batch, " x ", channels, " x ", pixels, ", ", count, " from ",
         first);
    const auto planes = random.integers<std::uint8_t>(batch * channels * pixels);
    std::vector<std::uint8_t> rows;  // the block, channels last
    for (std::size_t p = first; p < first + count; ++p) {
      for (std::size_t c = 0; c < channels; ++c) {
        rows.push_back(planes[(p / pixels * channels + c) * pixels + p % pixels]);
      }
    }
    for_each_target([&] {
      const detent::detail::image_batch<const std::uint8_t> images(planes.data(), channels, pixels,
                                                                   detent::activation_layout::nchw);
      const detent::detail::input_pixels<std::uint8_t> in(images, first, count);
      CHECK(difference(std::span(in.data(), rows.size()), rows) == "");

      std::vector<std::uint8_t> written(planes.size(), 0);
      std::vector<std::uint8_t> expected(planes.size(), 0);
      for (std::size_t p = first; p < first + count; ++p) {
        for (std::size_t c = 0; c < channels; ++c) {
          const std::size_t at = (p / pixels * channels + c) * pixels + p % pixels;
          expected[at] = planes[at];
        }
      }
      const detent::detail::image_batch<std::uint8_t> outputs(written.data(), channels, pixels,
                                                              detent::activation_layout::nchw);
      const detent::detail::output_pixels<std::uint8_t> out(outputs, first, count);
      std::copy(rows.begin(), rows.end(), out.data());
      out.store();
      CHECK(difference(written, expected) == "");
    });
  }
}
