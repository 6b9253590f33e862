// SPDX-License-Identifier: BSD-3-Clause
// An observer whose range is an exponential moving average over batches.
#ifndef DETENT_OBSERVERS_MOVING_AVERAGE_HPP
#define DETENT_OBSERVERS_MOVING_AVERAGE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Averages the ends of the batches' ranges, with exponentially falling weights of older batches.
/// The first batch sets lower and upper to its own range; each later batch does, in double,
///
///     lower += constant * (smallest value of the batch - lower)
///     upper += constant * (largest value of the batch - upper)
///
/// The result depends on the order of batches and on how values are split into batches; empty
/// batches change nothing. merge(other) means that the batches of `other` came after those seen
/// here. Not thread-safe.
class moving_average_observer {
 public:
  /// `constant` is the weight of each new batch. Throws invalid_argument if it is not in (0, 1].
  explicit moving_average_observer(double constant = 0.01) : constant_(constant) {
    require(constant > 0.0 && constant <= 1.0, error_kind::invalid_argument,
            "moving_average_observer: the constant ", constant, " is not in (0, 1]");
  }

  /// Observes one batch; an empty one changes nothing. Throws invalid_argument for null data, a NaN
  /// or an infinity.
  void observe(std::span<const float> x) {
    if (x.empty()) {
      return;
    }
    min_max_observer batch;
    batch.observe(x);
    const value_range r = batch.range("moving_average_observer");
    if (batches_ == 0) {
      first_ = {r.lower, r.upper};
      now_ = first_;
    } else {
      now_ = {moved(now_.lower, r.lower), moved(now_.upper, r.upper)};
    }
    add_counts(1, x.size());
  }

  /// Whether merge() gives the same state for any order: no.
  [[nodiscard]] static constexpr bool merges_in_any_order() noexcept { return false; }
  /// merge(), of an observer that has seen one batch.
  void append(const moving_average_observer& later) { merge(later); }
  /// Afterwards this observer is in the state it would have if the batches of `other` had come
  /// after its own, up to rounding; exactly, if that is one batch. Throws invalid_argument if
  /// `other` has another constant.
  void merge(const moving_average_observer& other) {
    require(constant_ == other.constant_, error_kind::invalid_argument,
            "moving_average_observer: merging the constant ", other.constant_, " into ", constant_);
    if (other.batches_ == 0) {
      return;
    }
    if (batches_ == 0) {
      *this = other;
      return;
    }
    if (other.batches_ == 1) {
      now_ = {moved(now_.lower, other.now_.lower), moved(now_.upper, other.now_.upper)};
      add_counts(1, other.count_);
      return;
    }
    // `other` began with its first batch where this average would have continued: after n batches
    // the difference that this makes has shrunk by (1 - constant)^n.
    const double left =
        detail::portable_power(1.0 - constant_, static_cast<double>(other.batches_));
    now_ = {other.now_.lower + detail::rounded_product(left, now_.lower - other.first_.lower),
            other.now_.upper + detail::rounded_product(left, now_.upper - other.first_.upper)};
    now_.upper = (std::max)(now_.lower, now_.upper);
    add_counts(other.batches_, other.count_);
  }

  /// How many values were observed.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  /// The averaged range, rounded to float. Throws invalid_argument if nothing was observed.
  [[nodiscard]] value_range range() const {
    require(batches_ > 0, error_kind::invalid_argument,
            "moving_average_observer: nothing was observed");
    return {static_cast<float>(now_.lower), static_cast<float>(now_.upper)};
  }
  /// The canonical scale and zero point of range() (params_from_range). Throws what those two
  /// throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme);
  }

  /// Appends f64 constant, f64 ends of the first batch's range, f64 ends of the average, u64 number
  /// of batches, u64 number of values.
  void write(detail::byte_writer& out) const {
    for (const double value : {constant_, first_.lower, first_.upper, now_.lower, now_.upper}) {
      out.put(value);
    }
    out.put(batches_);
    out.put(count_);
  }
  /// Replaces the state by one that write() appended. Throws bad_file for an impossible state.
  void read(detail::byte_reader& in) {
    moving_average_observer next;
    next.constant_ = in.get<double>();
    next.first_.lower = in.get<double>();
    next.first_.upper = in.get<double>();
    next.now_.lower = in.get<double>();
    next.now_.upper = in.get<double>();
    next.batches_ = in.get<std::uint64_t>();
    next.count_ = in.get<std::uint64_t>();
    constexpr double largest = std::numeric_limits<float>::max();
    const auto is_range = [](const ends& e) {
      return e.lower >= -largest && e.lower <= e.upper && e.upper <= largest;
    };
    require(next.constant_ > 0.0 && next.constant_ <= 1.0 && is_range(next.first_) &&
                is_range(next.now_) && next.batches_ <= next.count_,
            error_kind::bad_file, "moving_average_observer: the state is impossible");
    *this = next;
  }

 private:
  struct ends {
    double lower = 0.0;
    double upper = 0.0;
  };
  /// `from` moved towards `to` by the constant; clamped, so that rounding cannot leave the interval
  /// between the two.
  [[nodiscard]] double moved(double from, double to) const noexcept {
    const double next = from + detail::rounded_product(constant_, to - from);
    return std::clamp(next, (std::min)(from, to), (std::max)(from, to));
  }
  /// Adds to both counters, which stop at their largest value; only a saved state can bring them
  /// there.
  void add_counts(std::uint64_t batches, std::uint64_t count) noexcept {
    batches_ = detail::saturating_sum(batches_, batches);
    count_ = detail::saturating_sum(count_, count);
  }

  double constant_;
  ends first_;  // range of the first batch
  ends now_;    // the average
  std::uint64_t batches_ = 0;
  std::uint64_t count_ = 0;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_MOVING_AVERAGE_HPP
