// SPDX-License-Identifier: BSD-3-Clause
// An observer for per-channel and per-group parameters: one copy of any observer for each channel.
#ifndef DETENT_OBSERVERS_CHANNELS_HPP
#define DETENT_OBSERVERS_CHANNELS_HPP

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/observers/observer.hpp>
#include <detent/parallel.hpp>
#include <detent/solvers/parts.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Keeps one observer for each index along an axis of the views that it sees, or for each
/// combination of indices along several axes. Groups are axes of their own: weights of shape {n, k}
/// in groups of 32 are a view of shape {n, k / 32, 32}, of which axes 0 and 1 are observed.
///
/// Each observer sees its part of a view as one batch: a view of the remaining axes, in their
/// order. Not thread-safe itself; observe() and solve() can share their work out to threads. After
/// std::bad_alloc in observe(), an object may only be assigned to or destroyed.
class channel_observer {
 public:
  /// Every channel begins with a copy of `prototype`, which should have seen nothing. `axes` are
  /// counted from 0. Throws invalid_argument if there are no axes, max_rank or more, or if they do
  /// not ascend.
  channel_observer(any_observer prototype, std::vector<std::size_t> axes)
      : prototype_(std::move(prototype)), axes_(std::move(axes)) {
    require(!axes_.empty() && axes_.size() < max_rank, error_kind::invalid_argument,
            "channel_observer: ", axes_.size(), " axes");
    for (std::size_t i = 1; i < axes_.size(); ++i) {
      require(axes_[i - 1] < axes_[i], error_kind::invalid_argument, "channel_observer: axis ",
              axes_[i], " after axis ", axes_[i - 1]);
    }
  }
  /// Observes channels along a single axis, counted from 0.
  channel_observer(any_observer prototype, std::size_t axis)
      : channel_observer(std::move(prototype), std::vector<std::size_t>{axis}) {}

  /// Observes one batch. The first call fixes the number of channels; an empty view changes
  /// nothing. Channels are shared out over `parallel`, and the result does not depend on it. Throws
  /// shape_mismatch if the number of channels changes between calls, invalid_argument for an axis
  /// that `x` does not have or null data, and what the observers throw. If it throws, and memory
  /// has not run out, nothing has changed; for that the states are copied first, unless the
  /// observers take any values (any_observer::takes_any_batch()).
  void observe(tensor_view<const float> x, const parallel_for& parallel = {}) {
    require(axes_.back() < x.rank, error_kind::invalid_argument, "channel_observer: axis ",
            axes_.back(), " of a tensor of rank ", x.rank);
    if (x.size() == 0) {
      return;
    }
    require(x.data != nullptr, error_kind::invalid_argument,
            "channel_observer: null data with size ", x.size());
    std::size_t channels = 1;
    for (const std::size_t axis : axes_) {
      channels *= x.shape[axis];
    }
    require_channels(channels);
    const bool is_first = channels_.empty();
    const bool is_copied = !is_first && !prototype_.takes_any_batch();
    std::vector<any_observer> next = is_first    ? std::vector<any_observer>(channels, prototype_)
                                     : is_copied ? channels_
                                                 : std::vector<any_observer>();
    std::vector<any_observer>& observers = is_first || is_copied ? next : channels_;
    // If the last axis is a channel axis, neighbours in memory belong to different channels. They
    // are sorted by channel first, once for all.
    const bool mixed = axes_.back() + 1 == x.rank;
    const std::vector<float> sorted = mixed ? by_channel(x) : std::vector<float>();
    const tensor_view<const float> from = mixed ? sorted_view(x, sorted.data()) : x;
    detail::run_parallel(parallel, channels,
                         [&](std::size_t i) { observers[i].observe(part(from, i)); });
    if (&observers == &next) {
      channels_ = std::move(next);
    }
  }

  /// Observes one batch of float16, bfloat16, float8 or double values, each rounded to the nearest
  /// float.
  template <class T>
  requires float_format<T> || std::same_as<T, double>
  void observe(tensor_view<const T> x, const parallel_for& parallel = {}) {
    const std::vector<float> values = detail::floats_of(x);
    observe(tensor_view<const float>(values.data(), std::span(x.shape.data(), x.rank)), parallel);
  }
  /// Observes one batch in memory that may be written; it is only read.
  template <class T>
  requires float_format<T> || std::same_as<T, double>
  void observe(tensor_view<T> x, const parallel_for& parallel = {}) {
    observe(tensor_view<const T>(x), parallel);
  }

  /// How many passes over the data the observers need: 1 or 2.
  [[nodiscard]] std::size_t phases() const { return prototype_.phases(); }
  /// Announces to the observer of every channel that pass `phase` begins. Throws invalid_argument
  /// if the second pass begins before anything was observed, and what the observers throw. If it
  /// throws, nothing has changed.
  void begin_phase(std::size_t phase) {
    require(phase == 0 || !channels_.empty(), error_kind::invalid_argument,
            "channel_observer: nothing was observed");
    std::vector<any_observer> next = channels_;
    for (any_observer& channel : next) {
      channel.begin_phase(phase);
    }
    channels_ = std::move(next);
  }

  /// Merges the observers of `other` channel by channel. Throws shape_mismatch for other axes or
  /// another number of channels, and what the observers throw. If it throws, nothing has changed.
  void merge(const channel_observer& other) {
    require(axes_ == other.axes_, error_kind::shape_mismatch,
            "channel_observer: merging other axes");
    if (other.channels_.empty()) {
      return;
    }
    require_channels(other.channels_.size());
    std::vector<any_observer> next =
        channels_.empty() ? std::vector<any_observer>(other.channels_.size(), prototype_)
                          : channels_;
    for (std::size_t i = 0; i < next.size(); ++i) {
      next[i].merge(other.channels_[i]);
    }
    channels_ = std::move(next);
  }

  /// The state as bytes, in the envelope of byte_format.hpp: u64 number of axes, u64 each axis, u64
  /// number of channels, then the state of each channel. Throws unsupported if the observers cannot
  /// be saved.
  [[nodiscard]] std::vector<std::byte> save() const {
    detail::byte_writer out(format);
    out.put(static_cast<std::uint64_t>(axes_.size()));
    for (const std::size_t axis : axes_) {
      out.put(static_cast<std::uint64_t>(axis));
    }
    out.put(static_cast<std::uint64_t>(channels_.size()));
    for (const any_observer& channel : channels_) {
      channel.write(out);
    }
    return std::move(out).finish();
  }
  /// Replaces the state by one that save() returned for observers of the same type along the same
  /// axes. Throws bad_file if the bytes are damaged or have other axes, unsupported for an unknown
  /// version of the layout. If it throws, nothing has changed.
  void load(std::span<const std::byte> bytes) {
    constexpr const char* where = "channel_observer::load";
    detail::byte_reader in(bytes, format, where);
    std::vector<std::size_t> axes(in.get_size(max_rank));
    for (std::size_t& axis : axes) {
      axis = in.get_size(max_rank);
    }
    require(axes == axes_, error_kind::bad_file, where, ": these are other axes");
    // The state of each channel has at least one byte, so that the rest bounds their number.
    const std::size_t count = in.get_size(in.rest());
    std::vector<any_observer> channels;
    for (std::size_t i = 0; i < count; ++i) {
      channels.push_back(prototype_);
      channels.back().read(in);
    }
    in.require_end();
    channels_ = std::move(channels);
  }

  /// The observers of the channels, in row-major order of the channel axes; empty before the first
  /// batch.
  [[nodiscard]] std::span<const any_observer> channels() const noexcept { return channels_; }

  /// What finalize() of each channel's observer returns, in the order of channels(). Channels are
  /// shared out over `parallel`. Throws invalid_argument if nothing was observed, and what the
  /// observers throw.
  [[nodiscard]] std::vector<scale_solution> solve(quant_scheme scheme,
                                                  const parallel_for& parallel = {}) const {
    require(!channels_.empty(), error_kind::invalid_argument,
            "channel_observer: nothing was observed");
    std::vector<scale_solution> solutions(channels_.size());
    detail::run_parallel(parallel, channels_.size(),
                         [&](std::size_t i) { solutions[i] = channels_[i].finalize(scheme); });
    return solutions;
  }
  /// The scales and zero points of solve() without the evidence. The axis of the result is the
  /// first of the axes; several axes are enumerated in the order of channels(). Throws what solve()
  /// throws.
  [[nodiscard]] channel_quant_params finalize(quant_scheme scheme,
                                              const parallel_for& parallel = {}) const {
    return channel_params(axes_[0], solve(scheme, parallel));
  }

 private:
  void require_channels(std::size_t channels) const {
    require(channels_.empty() || channels_.size() == channels, error_kind::shape_mismatch,
            "channel_observer: ", channels, " channels after ", channels_.size());
  }

  /// Strides, for each dimension of x, of a dense copy that holds one channel behind the other.
  [[nodiscard]] std::array<std::ptrdiff_t, max_rank> strides_by_channel(
      tensor_view<const float> x) const {
    std::array<std::ptrdiff_t, max_rank> strides{};
    std::ptrdiff_t stride = 1;
    for (const bool of_channel : {false, true}) {
      for (std::size_t d = x.rank; d-- > 0;) {
        if (of_channel == (std::find(axes_.begin(), axes_.end(), d) != axes_.end())) {
          strides[d] = stride;
          stride *= static_cast<std::ptrdiff_t>(x.shape[d]);
        }
      }
    }
    return strides;
  }
  /// Copies x into the layout of strides_by_channel().
  [[nodiscard]] std::vector<float> by_channel(tensor_view<const float> x) const {
    const auto strides = strides_by_channel(x);
    // The rank is not 0 here, which g++ does not see.
    const std::ptrdiff_t last_stride = strides[x.rank == 0 ? 0 : x.rank - 1];
    std::vector<float> values(x.size());
    detail::for_each_row(x, [&](const float* row, std::size_t n, std::ptrdiff_t stride,
                                const std::array<std::size_t, max_rank>& index) {
      std::ptrdiff_t offset = 0;
      for (std::size_t d = 0; d + 1 < x.rank; ++d) {
        offset += static_cast<std::ptrdiff_t>(index[d]) * strides[d];
      }
      for (std::size_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        values[static_cast<std::size_t>(offset + at * last_stride)] = row[at * stride];
      }
    });
    return values;
  }
  /// The view of x's shape on values that by_channel() returned.
  [[nodiscard]] tensor_view<const float> sorted_view(tensor_view<const float> x,
                                                     const float* values) const {
    tensor_view<const float> view = x;
    view.data = values;
    view.strides = strides_by_channel(x);
    return view;
  }

  /// The part of a view that belongs to channel `i`: a view of the axes that are not channel axes.
  [[nodiscard]] tensor_view<const float> part(tensor_view<const float> x, std::size_t i) const {
    std::ptrdiff_t offset = 0;
    for (std::size_t a = axes_.size(); a-- > 0;) {
      const std::size_t extent = x.shape[axes_[a]];
      offset += static_cast<std::ptrdiff_t>(i % extent) * x.strides[axes_[a]];
      i /= extent;
    }
    tensor_view<const float> view;
    view.data = x.data == nullptr ? nullptr : x.data + offset;
    for (std::size_t axis = 0; axis < x.rank; ++axis) {
      if (std::find(axes_.begin(), axes_.end(), axis) == axes_.end()) {
        view.shape[view.rank] = x.shape[axis];
        view.strides[view.rank++] = x.strides[axis];
      }
    }
    if (view.rank == 0) {  // one value for each channel
      view.rank = 1;
      view.shape[0] = 1;
      view.strides[0] = 1;
    }
    return view;
  }

  static constexpr detail::byte_format format{"detentoc", 1};

  any_observer prototype_;
  std::vector<std::size_t> axes_;
  std::vector<any_observer> channels_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_CHANNELS_HPP
