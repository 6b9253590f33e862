// SPDX-License-Identifier: BSD-3-Clause
// Histograms of 16-bit formats with a bin for every value: all that follows from them is exact.
#ifndef DETENT_OBSERVERS_PATTERN_HISTOGRAM_HPP
#define DETENT_OBSERVERS_PATTERN_HISTOGRAM_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Counts of the 65536 patterns of float16 or bfloat16; 512 KiB. Zeros of both signs are one value.
/// Its bins are single values, so that order_statistic() is the order statistic and
/// exact_mse(bins(), range(), scheme) has one error for a lower and an upper bound.
///
/// A value type: copy it, merge it; the same whatever the order of values and merges. Not
/// thread-safe itself.
template <float_format F>
requires(sizeof(F) == 2) class pattern_histogram {
 public:
  pattern_histogram() : counts_(patterns, 0) {}

  /// Throws invalid_argument for null data, overflow beyond histogram::largest_count values.
  void observe(std::span<const F> x) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "pattern_histogram: null data with size ", x.size());
    require_room(x.size());
    for (const F value : x) {
      ++counts_[value.bits];
    }
    count_ += x.size();
  }

  /// As if everything that `other` has seen had been seen here. Throws overflow as observe().
  void merge(const pattern_histogram& other) {
    require_room(other.count_);
    for (std::size_t i = 0; i < patterns; ++i) {
      counts_[i] += other.counts_[i];
    }
    count_ += other.count_;
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  /// One for each value that was seen, ascending. Throws invalid_argument if nothing, a NaN or an
  /// infinity was.
  [[nodiscard]] std::vector<value_bin> bins() const {
    require(count_ > 0, error_kind::invalid_argument, "pattern_histogram: nothing was observed");
    std::vector<value_bin> result;
    for (std::size_t i = sign; i-- > 1;) {
      add(sign + i, result);
    }
    value_bin zero;
    zero.count = counts_[0] + counts_[sign];
    if (zero.count != 0) {
      result.push_back(zero);
    }
    for (std::size_t i = 1; i < sign; ++i) {
      add(i, result);
    }
    return result;
  }

  /// The range of the values. Throws as bins().
  [[nodiscard]] value_range range() const {
    const std::vector<value_bin> all = bins();
    return {all.front().range().lower, all.back().range().upper};
  }

  /// The order statistic itself. Throws as bins() and quantile_rank().
  [[nodiscard]] float quantile(double fraction) const {
    return order_statistic(bins(), quantile_rank(fraction, count_)).upper;
  }

  /// Bytes in the envelope of byte_format.hpp: u32 bits of the mantissa, u32 patterns, and for each
  /// one that was seen, ascending, u32 pattern and u64 count.
  [[nodiscard]] std::vector<std::byte> save() const {
    detail::byte_writer out(format);
    out.put(static_cast<std::uint32_t>(F::mantissa_bits));
    std::uint32_t seen = 0;
    for (const std::uint64_t count : counts_) {
      seen += count != 0 ? 1U : 0U;
    }
    out.put(seen);
    for (std::size_t i = 0; i < patterns; ++i) {
      if (counts_[i] != 0) {
        out.put(static_cast<std::uint32_t>(i));
        out.put(counts_[i]);
      }
    }
    return std::move(out).finish();
  }
  /// Throws bad_file for bytes that save() has not made, unsupported for a newer version of them.
  [[nodiscard]] static pattern_histogram load(std::span<const std::byte> bytes) {
    constexpr const char* where = "pattern_histogram::load";
    detail::byte_reader in(bytes, format, where);
    require(in.get<std::uint32_t>() == static_cast<std::uint32_t>(F::mantissa_bits),
            error_kind::bad_file, where, ": these are values of another format");
    const auto seen = in.get<std::uint32_t>();
    pattern_histogram h;
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < seen; ++i) {
      const auto pattern = in.get<std::uint32_t>();
      const auto count = in.get<std::uint64_t>();
      require(pattern >= next && pattern < patterns && count != 0 &&
                  count <= histogram::largest_count - h.count_,
              error_kind::bad_file, where, ": a pattern or its count is impossible");
      next = std::size_t{pattern} + 1;
      h.counts_[pattern] = count;
      h.count_ += count;
    }
    in.require_end();
    return h;
  }

  friend bool operator==(const pattern_histogram&, const pattern_histogram&) = default;

 private:
  static constexpr std::size_t patterns = 65536;
  static constexpr std::size_t sign = 32768;
  static constexpr detail::byte_format format{"detentph", 1};

  void require_room(std::uint64_t more) const {
    require(more <= histogram::largest_count - count_, error_kind::overflow,
            "pattern_histogram: more than 2^48 values");
  }

  void add(std::size_t pattern, std::vector<value_bin>& to) const {
    if (counts_[pattern] == 0) {
      return;
    }
    const float value = to_float(F{static_cast<typename F::bits_type>(pattern)});
    require(std::isfinite(value), error_kind::invalid_argument,
            "pattern_histogram: ", counts_[pattern], " of ", count_, " values are ", value);
    value_bin bin;
    bin.negative = value < 0.0F;
    bin.smallest = std::fabs(value);
    bin.largest = bin.smallest;
    bin.count = counts_[pattern];
    to.push_back(bin);
  }

  std::vector<std::uint64_t> counts_;  // [pattern]
  std::uint64_t count_ = 0;
};

using float16_histogram = pattern_histogram<float16>;
using bfloat16_histogram = pattern_histogram<bfloat16>;

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_PATTERN_HISTOGRAM_HPP
