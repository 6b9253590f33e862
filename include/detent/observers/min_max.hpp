// SPDX-License-Identifier: BSD-3-Clause
// The range of everything seen: exact, and the same whatever the split into batches, threads or
// merges.
#ifndef DETENT_OBSERVERS_MIN_MAX_HPP
#define DETENT_OBSERVERS_MIN_MAX_HPP

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/base/rows.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/simd.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Observes one tensor. A value type: copy it, merge it. Not thread-safe itself; one per thread,
/// then merge().
class min_max_observer {
 public:
  void observe(std::span<const float> x) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "min_max_observer: null data with size ", x.size());
    const kernels::min_max_result r =
        detail::active<kernels::statistics_kernels>().min_max(x.data(), x.size());
    include(r.lower, r.upper, x.size(), r.count_nan);
  }

  /// Any other arithmetic type. The range is widened to the floats around it.
  template <class T>
  void observe_as(std::span<const T> x) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "min_max_observer: null data with size ", x.size());
    const simd::extrema<T> r = simd::min_max(x.data(), x.size());
    if (x.size() == r.count_nan) {
      count_ += x.size();
      count_nan_ += r.count_nan;
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

  /// As if everything that `other` has seen had been seen here.
  void merge(const min_max_observer& other) noexcept {
    include(other.lower_, other.upper_, other.count_, other.count_nan_);
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t count_nan() const noexcept { return count_nan_; }

  /// Whether range() returns: something was seen, and nothing but finite values.
  [[nodiscard]] bool is_finite() const noexcept {
    return count_ > 0 && count_nan_ == 0 && std::isfinite(lower_) && std::isfinite(upper_);
  }

  /// The range seen. Throws invalid_argument if nothing, a NaN or an infinity was seen; `where` is
  /// who says so, for observers that are made of this one.
  [[nodiscard]] value_range range(const char* where = "min_max_observer") const {
    require(count_ > 0, error_kind::invalid_argument, where, ": nothing was observed");
    require(count_nan_ == 0, error_kind::invalid_argument, where, ": ", count_nan_, " of ", count_,
            " values are NaN");
    require(std::isfinite(lower_) && std::isfinite(upper_), error_kind::invalid_argument, where,
            ": the range ", lower_, " .. ", upper_, " is not finite");
    return {lower_, upper_};
  }

  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme);
  }

  void write(detail::byte_writer& out) const {
    const bool any = lower_ <= upper_;
    out.put(any ? lower_ : 0.0F);
    out.put(any ? upper_ : 0.0F);
    out.put(static_cast<std::uint64_t>(count_));
    out.put(static_cast<std::uint64_t>(count_nan_));
  }
  /// Throws bad_file for what write() has not written.
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
    count_ += count;
    count_nan_ += count_nan;
  }

  float lower_ = std::numeric_limits<float>::infinity();
  float upper_ = -std::numeric_limits<float>::infinity();
  std::size_t count_ = 0;
  std::size_t count_nan_ = 0;
};

/// Observes each channel along an axis of strided views.
class channel_min_max_observer {
 public:
  explicit channel_min_max_observer(std::size_t axis) : axis_(axis) {}

  /// Throws shape_mismatch if the number of channels changes between calls.
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

  [[nodiscard]] std::size_t axis() const noexcept { return axis_; }
  [[nodiscard]] std::span<const min_max_observer> channels() const noexcept { return channels_; }

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

  /// The last axis, neighbours in memory: each row is a value of every channel.
  void observe_columns(tensor_view<const float> x) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> lower(channels_.size(), infinity);
    std::vector<float> upper(channels_.size(), -infinity);
    std::vector<std::uint64_t> count_nan(channels_.size(), 0);
    // Rows that are equally far apart go together: those of the second-last dimension.
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
