// SPDX-License-Identifier: BSD-3-Clause
// Histograms of 16-bit floating-point formats with one bin for every bit pattern, so that every
// statistic derived from them is exact.
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

/// Counts how often each of the 65536 bit patterns of float16 or bfloat16 occurs; 512 KiB. Zeros of
/// both signs are one value. Each bin is a single value: order_statistic(bins(), rank) is the order
/// statistic itself, and the lower and upper bound that exact_mse(bins(), range(), scheme) returns
/// are the error itself.
///
/// The state does not depend on the order of values and merges. An object is a value that can be
/// copied; one that was moved from may only be assigned to or destroyed. Not thread-safe: use one
/// per thread, then merge().
template <float_format F>
requires(sizeof(F) == 2) class pattern_histogram {
 public:
  /// A histogram that has seen nothing.
  pattern_histogram() : counts_(patterns, 0) {}

  /// Counts the values of a batch; NaN and infinities are counted as well and make bins() throw.
  /// Throws invalid_argument for null data with a size that is not 0, overflow if the total exceeds
  /// histogram::largest_count (2^48). If it throws, nothing was counted.
  void observe(std::span<const F> x) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "pattern_histogram: null data with size ", x.size());
    require_room(x.size());
    for (const F value : x) {
      ++counts_[value.bits];
    }
    count_ += x.size();
  }

  /// Adds the counts of `other`. Throws overflow if the total exceeds histogram::largest_count.
  void merge(const pattern_histogram& other) {
    require_room(other.count_);
    for (std::size_t i = 0; i < patterns; ++i) {
      counts_[i] += other.counts_[i];
    }
    count_ += other.count_;
  }

  /// How many values were observed, NaN and infinities included.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  /// One bin for each distinct value that was observed, in ascending order. Throws invalid_argument
  /// if nothing, a NaN or an infinity was observed.
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

  /// The smallest and the largest value observed. Throws what bins() throws.
  [[nodiscard]] value_range range() const {
    const std::vector<value_bin> all = bins();
    return {all.front().range().lower, all.back().range().upper};
  }

  /// The exact order statistic of rank quantile_rank(fraction, count()). Throws what bins() and
  /// quantile_rank() throw.
  [[nodiscard]] float quantile(double fraction) const {
    return order_statistic(bins(), quantile_rank(fraction, count_)).upper;
  }

  /// The state as bytes, in the envelope of byte_format.hpp: u32 bits of the format's mantissa, u32
  /// number of patterns observed, and for each of them, ascending, u32 pattern and u64 count.
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
  /// The histogram that save() returned as bytes. Throws bad_file for damaged bytes or those of
  /// another format, unsupported for an unknown version of the layout.
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

  /// Appends the bin of a pattern, if it occurred, to `to`.
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

/// The histogram of float16 (IEEE binary16) values.
using float16_histogram = pattern_histogram<float16>;
/// The histogram of bfloat16 values.
using bfloat16_histogram = pattern_histogram<bfloat16>;

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_PATTERN_HISTOGRAM_HPP
