// SPDX-License-Identifier: BSD-3-Clause
// The histogram of those PPQ observers that make two passes over the data.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_TWO_PHASE_HISTOGRAM_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_TWO_PHASE_HISTOGRAM_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/observers/tools/torch_arithmetic.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ppq::detail {

using namespace detent::detail;

/// A histogram that is made in two phases: the first finds the range, the second counts
///
///     symmetric   |x| on 0 .. max |x|
///     asymmetric  x on min x .. max x
class two_phase_histogram {
 public:
  two_phase_histogram(std::size_t bins, bool symmetric) : symmetric_(symmetric), bins_(bins) {}

  void begin_phase(std::size_t phase, const char* where) {
    require_next_phase(phase, phase_, 2, seen_[phase_].count() > 0, where);
    if (phase == 1) {
      const value_range r = seen_[0].range(where);
      pytorch::require_length(r.lower, r.upper, where);
      phase_ = 1;
      counts_.assign(bins_, 0);
    }
  }

  /// Throws invalid_argument if all values of the first phase were the same and the length of the
  /// range of a batch of the second overflows a float, overflow if more than 2^48 values would be
  /// counted; then the batch was not seen.
  void observe(std::span<const float> x, const char* where) {
    detent::min_max_observer seen = seen_[phase_];
    const detent::min_max_observer batch = observe_batch(seen, x, where);
    if (phase_ == 1 && batch.is_finite()) {
      require_room(counts_, x.size(), where);
      count(x, where);
    }
    seen_[phase_] = seen;  // a batch that is refused was not seen
  }

  /// Adds what another histogram has seen in the current phase. Throws invalid_argument if that is
  /// in another phase, or in a second phase with another range, overflow if more than 2^48 values
  /// would be counted.
  void merge(const two_phase_histogram& other, const char* where) {
    require(phase_ == other.phase_ && bins_ == other.bins_ && symmetric_ == other.symmetric_,
            error_kind::invalid_argument, where, ": merging another phase");
    require(phase_ == 0 || seen_[0].range(where) == other.seen_[0].range(where),
            error_kind::invalid_argument, where,
            ": merging a second phase that follows another first one");
    require_room(counts_, total_of(other.counts_), where);
    seen_[phase_].merge(other.seen_[phase_]);
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      counts_[i] += other.counts_[i];
    }
  }

  /// Throws invalid_argument unless both phases have seen something, and nothing but finite values.
  void require_complete(const char* where) const {
    static_cast<void>(seen_[0].range(where));
    require(phase_ == 1, error_kind::invalid_argument, where,
            ": phase 1 has not begun; the data must be observed once more");
    static_cast<void>(seen_[1].range(where));
  }

  /// The lower edge of the first bin.
  [[nodiscard]] float first() const { return symmetric_ ? 0.0F : seen_[0].range().lower; }
  /// The width of a bin.
  [[nodiscard]] double width() const {
    const value_range r = seen_[0].range();
    const double length =
        symmetric_ ? static_cast<double>(std::max(std::fabs(r.lower), std::fabs(r.upper)))
                   : static_cast<double>(r.upper) - static_cast<double>(r.lower);
    return length / static_cast<double>(bins_);
  }
  /// The counts of the second phase; empty in the first one.
  [[nodiscard]] const std::vector<std::uint64_t>& counts() const noexcept { return counts_; }

  /// Appends u8 phase; the range seen in phase 0; in phase 1 also the range seen in phase 1 and the
  /// list of u64 counts.
  void write(byte_writer& out) const {
    put_choice(out, phase_);
    seen_[0].write(out);
    if (phase_ == 1) {
      seen_[1].write(out);
      put_list(out, counts_);
    }
  }
  /// Reads what write() appended, into an object that has seen nothing.
  void read(byte_reader& in, const char* where) {
    phase_ = get_choice(in, std::size_t{1}, where);
    seen_[0].read(in);
    if (phase_ == 0) {
      return;
    }
    require_state(
        seen_[0].is_finite() && std::isfinite(seen_[0].range().upper - seen_[0].range().lower),
        where, "a second phase without a range");
    seen_[1].read(in);
    counts_ = get_list<std::uint64_t>(in, bins_);
    require_state(counts_.size() == bins_, where, "the number of bins");
    require_saved_counts(counts_, seen_[1].count(), where);
  }

  friend bool operator==(const two_phase_histogram&, const two_phase_histogram&) = default;

 private:
  /// Adds the counts of a batch.
  void count(std::span<const float> x, const char* where) {
    if (!symmetric_) {
      pytorch::add_histogram<std::uint64_t>(x, first(), static_cast<float>(seen_[0].range().upper),
                                            counts_, where);
      return;
    }
    std::vector<float> magnitudes(x.size());
    std::transform(x.begin(), x.end(), magnitudes.begin(), [](float v) { return std::fabs(v); });
    const double last = rounded_product(width(), static_cast<double>(bins_));
    pytorch::add_histogram<std::uint64_t>(magnitudes, 0.0F, static_cast<float>(last), counts_,
                                          where);
  }

  bool symmetric_;
  std::size_t bins_;
  std::size_t phase_ = 0;
  detent::min_max_observer seen_[2];
  std::vector<std::uint64_t> counts_;
};

}  // namespace ppq::detail
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_TWO_PHASE_HISTOGRAM_HPP
