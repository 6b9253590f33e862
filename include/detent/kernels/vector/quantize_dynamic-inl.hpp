// SPDX-License-Identifier: BSD-3-Clause
// Quantization of rows with parameters from their own ranges.
//
// Rows are taken in row groups, two of which fit the first-level cache. While one group is
// quantized, the ranges of the next one are found, each row beside a row that is quantized, so that
// memory is read all the time. No value lies outside the grid of its own row by more than a step,
// so only NaN can be without an integer: whether there may be one is tested once for each row,
// which is then done again.

#ifndef DETENT_KERNELS_VECTOR_QUANTIZE_DYNAMIC_INL_HPP
#define DETENT_KERNELS_VECTOR_QUANTIZE_DYNAMIC_INL_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <detent/kernels/elementwise.hpp>
#include <detent/kernels/vector/quantize-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/quantize_dynamic-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// Stores how far the range of a row reaches on either side of zero: the largest x and the largest
/// -x. Both are -infinity for a row without a number.
HWY_INLINE void store_ends(const range_chains& chains, float* above, float* below) noexcept {
  const float_tag df;
  const float_vector high = chains.highest();
  const float_vector negated = hn::Neg(chains.lowest());
  // One vector holds both from here on.
  float_vector ends =
      hn::Max(hn::ConcatLowerLower(df, negated, high), hn::ConcatUpperUpper(df, negated, high));
  if constexpr (lanes == 16) {
    ends = hn::Max(ends, hn::SwapAdjacentBlocks(ends));
  }
  ends = hn::Max(ends, hn::Shuffle1032(ends));
  ends = hn::Max(ends, hn::Shuffle2301(ends));
  *above = hn::GetLane(ends);
  *below = hn::GetLane(hn::UpperHalf(hn::Half<float_tag>{}, ends));
}

/// Takes a code group into the ranges.
template <std::size_t kChains>
HWY_INLINE void take_group(const float* x, range_chains& chains) noexcept {
  DETENT_UNROLL for (std::size_t k = 0; k < 4; ++k) {
    chains.take(k % kChains, hn::LoadU(float_tag{}, x + k * lanes));
  }
}

/// Takes a row of n floats into the ranges.
HWY_INLINE void take_row(const float* x, std::size_t n, range_chains& chains) noexcept {
  std::size_t i = 0;
  for (; i + group_size <= n; i += group_size) {
    take_group<4>(x + i, chains);
  }
  if (i < n && n >= group_size) {
    take_group<4>(x + n - group_size, chains);  // some elements again
    return;
  }
  for (; i < n; i += lanes) {
    chains.take_some(x + i, n - i < lanes ? n - i : lanes);
  }
}

/// reference::params_from_range for many rows: vectors of doubles.
class range_rule {
  using double_tag = hn::Repartition<double, float_tag>;

 public:
  using half_tag = hn::Rebind<float, double_tag>;
  using half_int_tag = hn::Rebind<std::int32_t, double_tag>;

  /// Number of ranges whose parameters are computed at a time.
  static constexpr std::size_t step = hn::MaxLanes(double_tag{});

  HWY_INLINE explicit range_rule(const dynamic_rows_args& a) noexcept
      : symmetric_(a.symmetric),
        middle_((a.qmin + a.qmax + 1) >> 1),
        qmin_(a.qmin),
        qmax_(a.qmax),
        steps_(a.symmetric
                   ? (a.qmax - middle_ < middle_ - a.qmin ? a.qmax - middle_ : middle_ - a.qmin)
                   : a.qmax - a.qmin) {}

  /// The parameters of `step` ranges.
  struct result {
    hn::Vec<half_tag> scale;
    hn::Vec<half_int_tag> zero_point;
    bool is_finite;  // all scales are; they are not if a range is not
  };
  HWY_INLINE result operator()(const float* above, const float* below) const noexcept {
    const double_tag dd;
    const half_tag df;
    const half_int_tag di;
    const auto zero = hn::Zero(dd);
    const auto steps = hn::Set(dd, static_cast<double>(steps_));
    const auto upper = hn::Max(hn::PromoteTo(dd, hn::LoadU(df, above)), zero);
    const auto lower = hn::Max(hn::PromoteTo(dd, hn::LoadU(df, below)), zero);
    const auto extent = symmetric_ ? hn::Max(lower, upper) : hn::Add(upper, lower);
    const auto nearest = hn::DemoteTo(df, hn::Div(extent, steps));
    const auto next = hn::BitCast(df, hn::Add(hn::BitCast(di, nearest), hn::Set(di, 1)));
    const auto rounded = hn::PromoteTo(dd, nearest);
    const auto covering =
        hn::IfThenElse(hn::Lt(hn::Mul(rounded, steps), extent), hn::PromoteTo(dd, next), rounded);
    const auto smallest = hn::Set(dd, static_cast<double>(std::numeric_limits<float>::min()));
    const auto scale =
        hn::IfThenElse(hn::Gt(extent, zero), hn::Max(covering, smallest), hn::Set(dd, 1.0));
    const auto steps_below = symmetric_ ? hn::Set(dd, static_cast<double>(middle_ - qmin_))
                                        : hn::Round(hn::Div(lower, scale));
    const auto zero_point = hn::Min(hn::Add(steps_below, hn::Set(dd, static_cast<double>(qmin_))),
                                    hn::Set(dd, static_cast<double>(qmax_)));
    const auto infinity = hn::Set(dd, std::numeric_limits<double>::infinity());
    return {hn::DemoteTo(df, scale), hn::DemoteTo(di, zero_point),
            hn::AllTrue(dd, hn::Lt(scale, infinity))};
  }

 private:
  bool symmetric_;
  std::int32_t middle_, qmin_, qmax_, steps_;
};

/// A row group: the rows first .. first + rows, with their ranges and divisors.
template <class Code>
struct row_group {
  static constexpr std::size_t most_rows = 32;

  std::size_t first = 0, rows = 0;
  bool regular = false;  // whether all rows may use `divisors`
  divisor_array<most_rows> divisors;
  float above[most_rows] = {};  // the ends of the rows' ranges
  float below[most_rows] = {};

  /// Computes the parameters from the ranges. Removes all rows from the first one on whose scale
  /// would not be finite.
  HWY_INLINE void make_parameters(const range_rule& rule, const dynamic_rows_args& a) noexcept {
    constexpr std::size_t step = range_rule::step;
    const range_rule::half_tag df;
    bool is_finite = true;
    regular = Code::bits != 16;
    for (std::size_t r = 0; r < rows; r += step) {
      const range_rule::result p = rule(above + r, below + r);
      const std::size_t count = rows - r < step ? rows - r : step;
      hn::StoreN(p.scale, df, a.scale + first + r, count);
      hn::StoreN(p.zero_point, range_rule::half_int_tag{}, a.zero_point + first + r, count);
      is_finite &= p.is_finite;
      if constexpr (Code::bits != 16) {
        regular &= divisors.assign(df, r, p.scale);
      }
    }
    if (HWY_UNLIKELY(!is_finite)) {
      std::size_t good = 0;
      while (good < rows && a.scale[first + good] <= std::numeric_limits<float>::max()) {
        ++good;
      }
      rows = good;
    }
  }
};

/// Quantizes a row none of whose values is far outside the grid, and takes the range of another row
/// (`ahead`) on the way. Both have at least group_size values. Returns false if there may be a NaN.
template <class Code, class Divisor>
HWY_INLINE bool quantize_numbers(const float* x, const one_divisor<Divisor>& divisor,
                                 const one_zero_point& z, const code_writer<Code>& writer,
                                 std::size_t columns, typename Code::storage* q, const float* ahead,
                                 range_chains& range) noexcept {
  using steps = typename code_writer<Code>::steps;
  range_chains chains;  // in registers
  const auto run = [&](std::size_t i) HWY_ATTR {
    const group_steps<float_source, one_divisor<Divisor>> g(x + i, float_source{}, divisor, i);
    const steps n{g.n[0], g.n[1], g.n[2], g.n[3]};
    writer.store(n, z, i, false, q + i);
    take_group<2>(ahead + i, chains);
    return n.lowest();
  };
  auto lowest = run(0);
  std::size_t i = group_size;
  for (; i + group_size <= columns; i += group_size) {
    lowest = hn::Min(lowest, run(i));
  }
  if (i < columns) {
    lowest = hn::Min(lowest, run(columns - group_size));  // some elements again
  }
  range = chains;
  return !steps::may_overflow(lowest);
}

/// Quantizes the rows of a row group, and finds the ranges of the next one.
template <class Code, class DivisorOf>
HWY_INLINE void quantize_group_rows(const float* x, const dynamic_rows_args& a,
                                    const row_group<Code>& group, row_group<Code>& next,
                                    const DivisorOf& divisor_of, const code_writer<Code>& writer,
                                    typename Code::storage* q) noexcept {
  const elementwise_args careful;
  const bool is_long = a.columns >= group_size;
  const std::size_t rows = (std::max)(group.rows, next.rows);
  for (std::size_t r = 0; r < rows; ++r) {
    range_chains chains;
    const bool has_next = r < next.rows;
    const float* ahead =
        has_next ? x + static_cast<std::ptrdiff_t>(next.first + r) * a.in_stride : nullptr;
    if (has_next && (r >= group.rows || !is_long)) {
      take_row(ahead, a.columns, chains);
    }
    if (r < group.rows) {
      const std::size_t row = group.first + r;
      const float* from = x + static_cast<std::ptrdiff_t>(row) * a.in_stride;
      typename Code::storage* to = q + static_cast<std::ptrdiff_t>(row) * a.out_stride;
      const one_zero_point z(a.zero_point[row]);
      const auto divisor = divisor_of(row, r);
      // Without a next row, the range that is taken is not used.
      if (!is_long || !quantize_numbers<Code>(from, divisor, z, writer, a.columns, to,
                                              has_next ? ahead : from, chains)) {
        quantize_row<Code>(from, float_source{}, divisor, z, writer, a.columns, careful, to);
      }
    }
    if (has_next) {
      store_ends(chains, next.above + r, next.below + r);
    }
  }
}

/// The divisors of the rows of a row group: reciprocals, or scales that are divided by.
template <class Code>
struct row_products {
  const row_group<Code>& group;
  HWY_INLINE one_divisor<product_divisor> operator()(std::size_t, std::size_t r) const noexcept {
    return {group.divisors.one(r)};
  }
};
struct row_quotients {
  const float* scale;
  HWY_INLINE one_divisor<quotient_divisor> operator()(std::size_t row, std::size_t) const noexcept {
    return {{hn::Set(float_tag{}, scale[row])}};
  }
};

template <class Code>
std::size_t dynamic_rows(const float* x, const dynamic_rows_args& a,
                         typename Code::storage* q) noexcept {
  constexpr std::size_t elements_together = std::size_t{1} << 12;  // 16 KB
  const std::size_t together = std::clamp(elements_together / (std::max)(a.columns, std::size_t{1}),
                                          std::size_t{1}, row_group<Code>::most_rows);
  const range_rule rule(a);
  const code_writer<Code> writer(a.qmin, a.qmax);
  row_group<Code> groups[2];
  std::size_t done = 0;
  for (std::size_t i = 0;; ++i) {
    row_group<Code>& next = groups[i % 2];
    next.first = done;
    next.rows = (std::min)(together, a.rows - done);
    const row_group<Code>& ready = groups[(i + 1) % 2];
    if (ready.regular) {
      quantize_group_rows<Code>(x, a, ready, next, row_products<Code>{ready}, writer, q);
    } else {
      quantize_group_rows<Code>(x, a, ready, next, row_quotients{a.scale}, writer, q);
    }
    next.make_parameters(rule, a);
    done += next.rows;
    if (next.rows == 0) {
      return done;
    }
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
