// SPDX-License-Identifier: BSD-3-Clause
// Observers of the range (smallest and largest value) of everything seen, per tensor and per
// channel. The range is exact and does not depend on how data was split into batches or threads.
#ifndef DETENT_OBSERVERS_MIN_MAX_HPP
#define DETENT_OBSERVERS_MIN_MAX_HPP

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ranges>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/base/rows.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/parallel.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/simd.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Observes the smallest and the largest value of a tensor. finalize() maps that range to a scale
/// and a zero point, so that nothing is clipped.
///
/// The state is two floats and two counters. It is the same for any order of values, batches and
/// merges, and on any CPU. An object is a value that can be copied; it is not thread-safe: use one
/// per thread, then merge().
///
/// @code{.cpp}
/// const std::vector<float> first_batch = {-1.0F, 0.5F, 2.0F};
/// const std::vector<float> second_batch = {0.25F, 3.0F};
///
/// detent::min_max_observer observer;
/// observer.observe(first_batch);
///
/// detent::min_max_observer other;  // for example on another thread
/// other.observe(second_batch);
/// observer.merge(other);
///
/// // The range is -1 .. 3, so the scale is 4 / 255.
/// const detent::quant_params p = observer.finalize(detent::asymmetric<std::uint8_t>);
/// @endcode
class min_max_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// Observes one batch. NaN values are counted and do not change the range; infinities become part
  /// of it. Either makes range() and finalize() throw. Throws invalid_argument for null data with a
  /// size that is not 0.
  void observe(std::span<const float> x) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "min_max_observer: null data with size ", x.size());
    const kernels::min_max_result r =
        detail::active<kernels::statistics_kernels>().min_max(x.data(), x.size());
    include(r.lower, r.upper, x.size(), r.count_nan);
  }
  /// Observes one batch on several threads, which share out parts of at least 2^18 values. The
  /// result is that of one thread. Throws like observe() of one batch.
  void observe(std::span<const float> x, const parallel_for& parallel) {
    constexpr std::size_t smallest_part = std::size_t{1} << 18;
    const std::size_t parts = parallel ? x.size() / smallest_part : 0;
    if (parts < 2) {
      observe(x);
      return;
    }
    require(x.data() != nullptr, error_kind::invalid_argument,
            "min_max_observer: null data with size ", x.size());
    std::vector<min_max_observer> seen(parts);
    parallel(parts, [&](std::size_t part) {
      const std::size_t first = part * smallest_part;
      seen[part].observe(part + 1 == parts ? x.subspan(first) : x.subspan(first, smallest_part));
    });
    for (const min_max_observer& other : seen) {
      merge(other);
    }
  }

  /// Observes one batch of another arithmetic type. An end of the range that is not a float is
  /// widened outwards to the next float. NaN and null data are treated as by observe().
  template <class T>
  void observe_as(std::span<const T> x) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "min_max_observer: null data with size ", x.size());
    const simd::extrema<T> r = simd::min_max(x.data(), x.size());
    if (x.size() == r.count_nan) {
      add_counts(x.size(), r.count_nan);
      return;
    }
    constexpr float infinity = std::numeric_limits<float>::infinity();
    auto lower = static_cast<float>(r.lower);
    auto upper = static_cast<float>(r.upper);
    lower = static_cast<long double>(lower) > static_cast<long double>(r.lower)
                ? std::nextafter(lower, -infinity)
                : lower;
    upper = static_cast<long double>(upper) < static_cast<long double>(r.upper)
                ? std::nextafter(upper, infinity)
                : upper;
    include(lower, upper, x.size(), r.count_nan);
  }
  /// Observes one batch in a vector, an array or another contiguous range of an arithmetic type:
  /// observe_as() of a span of it.
  template <std::ranges::contiguous_range Values>
  requires std::is_arithmetic_v<std::ranges::range_value_t<Values>>
  void observe_as(const Values& x) {
    observe_as(std::span<const std::ranges::range_value_t<Values>>(std::ranges::data(x),
                                                                   std::ranges::size(x)));
  }

  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen.
  void merge(const min_max_observer& other) noexcept {
    include(other.lower_, other.upper_, other.count_, other.count_nan_);
  }

  /// How many values were observed, NaN values included; at most the largest std::size_t.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// How many NaN values were observed.
  [[nodiscard]] std::size_t count_nan() const noexcept { return count_nan_; }

  /// Whether range() returns instead of throwing: at least one value was observed, and all are
  /// finite.
  [[nodiscard]] bool is_finite() const noexcept {
    return count_ > 0 && count_nan_ == 0 && std::isfinite(lower_) && std::isfinite(upper_);
  }

  /// The smallest and the largest value observed; -0 is reported as 0. Throws invalid_argument if
  /// nothing, a NaN or an infinity was observed. `where` is the name that the error message begins
  /// with, for observers that are built on this one.
  [[nodiscard]] value_range range(const char* where = "min_max_observer") const {
    require(count_ > 0, error_kind::invalid_argument, where, ": nothing was observed");
    require(count_nan_ == 0, error_kind::invalid_argument, where, ": ", count_nan_, " of ", count_,
            " values are NaN");
    require(std::isfinite(lower_) && std::isfinite(upper_), error_kind::invalid_argument, where,
            ": the range ", lower_, " .. ", upper_, " is not finite");
    return {lower_, upper_};
  }

  /// The canonical scale and zero point of range() (params_from_range). Throws what those two
  /// throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme);
  }

  /// Appends f32 lower, f32 upper (both 0 if only NaN or nothing was observed), u64 count, u64
  /// count of NaN.
  void write(detail::byte_writer& out) const {
    const bool any = lower_ <= upper_;
    out.put(any ? lower_ : 0.0F);
    out.put(any ? upper_ : 0.0F);
    out.put(static_cast<std::uint64_t>(count_));
    out.put(static_cast<std::uint64_t>(count_nan_));
  }
  /// Replaces the state by one that write() appended. Throws bad_file for an impossible state.
  void read(detail::byte_reader& in) {
    min_max_observer next;
    const auto lower = in.get<float>();
    const auto upper = in.get<float>();
    next.count_ = in.get_size(std::numeric_limits<std::size_t>::max());
    next.count_nan_ = in.get_size(next.count_);
    require(lower <= upper, error_kind::bad_file, "min_max_observer: the range ", lower, " .. ",
            upper, " is impossible");
    if (next.count_ != next.count_nan_) {
      next.include(lower, upper, 0, 0);
    }
    *this = next;
  }

  friend bool operator==(const min_max_observer&, const min_max_observer&) = default;

 private:
  friend class channel_min_max_observer;

  void include(float lower, float upper, std::size_t count, std::size_t count_nan) noexcept {
    // Adding zero makes -0 +0: the state must not depend on which of them came first.
    lower_ = (lower < lower_ ? lower : lower_) + 0.0F;
    upper_ = (upper > upper_ ? upper : upper_) + 0.0F;
    add_counts(count, count_nan);
  }
  /// Adds to both counters. They stop at their largest value, which only a saved state can bring
  /// them to: a NaN that was seen must not be forgotten.
  void add_counts(std::size_t count, std::size_t count_nan) noexcept {
    count_ = detail::saturating_sum(count_, count);
    count_nan_ = detail::saturating_sum(count_nan_, count_nan);
  }

  float lower_ = std::numeric_limits<float>::infinity();
  float upper_ = -std::numeric_limits<float>::infinity();
  std::size_t count_ = 0;
  std::size_t count_nan_ = 0;
};

/// Observes the range of each channel along one axis of strided views. Channel i gets the values
/// that a min_max_observer would see for index i of the axis. Not thread-safe: use one per thread,
/// then merge().
class channel_min_max_observer {
 public:
  /// Observes channels along `axis` of the views, counted from 0.
  explicit channel_min_max_observer(std::size_t axis) : axis_(axis) {}

  /// Observes one batch of any shape and strides. The first call fixes the number of channels.
  /// Throws shape_mismatch if a later call has another number of channels, invalid_argument if `x`
  /// has no such axis, or for null data with a size that is not 0.
  void observe(tensor_view<const float> x) {
    require(axis_ < x.rank, error_kind::invalid_argument, "channel_min_max_observer: axis ", axis_,
            " of a tensor of rank ", x.rank);
    require(x.size() == 0 || x.data != nullptr, error_kind::invalid_argument,
            "channel_min_max_observer: null data with size ", x.size());
    require_channels(x.shape[axis_]);
    if (x.size() == 0) {
      return;
    }
    if (axis_ + 1 == x.rank && x.strides[axis_] == 1) {
      observe_columns(x);
      return;
    }
    detail::for_each_channel_run(
        x, axis_,
        [&](std::size_t channel, const float* data, std::size_t n, std::ptrdiff_t stride) {
          if (stride == 1) {
            channels_[channel].observe({data, n});
            return;
          }
          for (std::size_t i = 0; i < n; ++i) {
            channels_[channel].observe({data + static_cast<std::ptrdiff_t>(i) * stride, 1});
          }
        });
  }

  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen. Throws shape_mismatch for another axis or another number of channels.
  void merge(const channel_min_max_observer& other) {
    require(axis_ == other.axis_, error_kind::shape_mismatch,
            "channel_min_max_observer: merging axis ", other.axis_, " into axis ", axis_);
    if (other.channels_.empty()) {
      return;
    }
    require_channels(other.channels_.size());
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      channels_[i].merge(other.channels_[i]);
    }
  }

  /// The axis that channels are counted along.
  [[nodiscard]] std::size_t axis() const noexcept { return axis_; }
  /// The observers of the channels, in the order of their indices; empty before the first
  /// observe().
  [[nodiscard]] std::span<const min_max_observer> channels() const noexcept { return channels_; }

  /// The canonical scale and zero point of each channel, in order. Throws invalid_argument if
  /// nothing was observed or the range of a channel is not finite.
  [[nodiscard]] channel_quant_params finalize(quant_scheme scheme) const {
    require(!channels_.empty(), error_kind::invalid_argument,
            "channel_min_max_observer: nothing was observed");
    channel_quant_params p;
    p.axis = axis_;
    for (const min_max_observer& channel : channels_) {
      const quant_params one = channel.finalize(scheme);
      p.scales.push_back(one.scale);
      p.zero_points.push_back(one.zero_point);
    }
    return p;
  }

  friend bool operator==(const channel_min_max_observer&,
                         const channel_min_max_observer&) = default;

 private:
  void require_channels(std::size_t channels) {
    if (channels_.empty()) {
      channels_.resize(channels);
    }
    require(channels_.size() == channels, error_kind::shape_mismatch,
            "channel_min_max_observer: ", channels, " channels after ", channels_.size());
  }

  /// Observes a view whose channels are the last axis and neighbours in memory: each row holds one
  /// value of every channel.
  void observe_columns(tensor_view<const float> x) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> lower(channels_.size(), infinity);
    std::vector<float> upper(channels_.size(), -infinity);
    std::vector<std::uint64_t> count_nan(channels_.size(), 0);
    // All rows of the second-last dimension are equally far apart and take one kernel call.
    const bool has_rows = x.rank > 1;
    const std::size_t rows = has_rows ? x.shape[x.rank - 2] : 1;
    const std::ptrdiff_t row_stride = has_rows ? x.strides[x.rank - 2] : 0;
    detail::for_each_row(x, [&](const float* row, std::size_t n, std::ptrdiff_t /*stride*/,
                                const std::array<std::size_t, max_rank>& index) {
      if (!has_rows || index[x.rank - 2] == 0) {
        detail::active<kernels::statistics_kernels>().min_max_columns(
            row, rows, n, row_stride, lower.data(), upper.data(), count_nan.data());
      }
    });
    const std::size_t each = x.size() / channels_.size();
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      channels_[i].include(lower[i], upper[i], each, static_cast<std::size_t>(count_nan[i]));
    }
  }

  std::size_t axis_;
  std::vector<min_max_observer> channels_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_MIN_MAX_HPP
