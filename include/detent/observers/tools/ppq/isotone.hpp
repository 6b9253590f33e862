// SPDX-License-Identifier: BSD-3-Clause
// PPQ's observer of the two largest values of each row. The head of observers/tools/ppq.hpp says
// what all PPQ observers have in common.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_ISOTONE_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_ISOTONE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/observers/tools/ppq/scheme.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ppq {

/// Options of ppq::isotone_observer.
struct isotone_options {
  quant_scheme scheme = default_scheme;     ///< the scheme that finalize() will be called with
  parity behaviour = parity::as_published;  ///< whether PPQ's bugs are reproduced or repaired
  friend bool operator==(const isotone_options&, const isotone_options&) = default;
};

/// Reproduces PPQ's "isotone", for the outputs of classifiers. The two largest values L1 >= L2 of a
/// row allow scales from L2 / (qmax - 0.51), or 0 if that is negative, to 2 * (L1 - max(L2, 0)), at
/// which they are half a step apart. Rows with an empty interval or without a positive L1 are left
/// out. The scale is the lower end at which most intervals overlap, the least one of several; the
/// zero point is 0. Where one interval ends as another begins, they do not overlap. If there is no
/// interval, the scale is that of the range 0 .. L1. All of it is in double, the difference in
/// float.
///
/// Bugs of PPQ:
/// - For a symmetric scheme, L1 and L2 are the magnitudes of the two largest values, not the two
///   largest magnitudes.
/// - The range that is used without any interval is that of the last row.
/// - Where most intervals begin at 0, the scale is 0; finalize() then throws invalid_argument.
///
/// parity::fixed takes the two largest magnitudes, the largest L1 of all rows, and the next end of
/// an interval instead of 0.
///
/// range() is the range that is used without any interval, since the scale is not derived from a
/// range. Batches make no difference, but the order of rows does, for the bug of the last row;
/// hence merge() requires parity::fixed.
///
/// Time: O(rows * log(rows)) to finalize. Memory: two floats a row. Not thread-safe.
///
/// Source: besides the tool, NumPy 1, which divides a float by a number of Python in double.
class isotone_observer {
 public:
  /// Values are never refused, also NaN and infinities; rows that are too short are.
  static constexpr bool takes_any_batch = true;

  /// Throws invalid_argument for a grid without zero and something positive or beyond 17 bits.
  explicit isotone_observer(isotone_options options = {}) : options_(options) {
    detail::require_levels(options.scheme, where);
  }

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Observes rows of `row_length` values, one behind the other. A NaN or an infinity makes range()
  /// throw. Throws invalid_argument if rows are shorter than two values or for null data,
  /// shape_mismatch if x is not a whole number of rows.
  void observe(std::span<const float> x, std::size_t row_length) {
    require(row_length >= 2, error_kind::invalid_argument, where, ": rows of ", row_length,
            " have no second value");
    require(x.size() % row_length == 0, error_kind::shape_mismatch, where, ": ", x.size(),
            " values are not a whole number of rows of ", row_length);
    const detent::min_max_observer batch = detail::observe_batch(seen_, x, where);
    if (!batch.is_finite()) {
      return;
    }
    const bool magnitudes = options_.scheme.symmetric;
    const bool before = magnitudes && options_.behaviour == parity::fixed;
    for (std::size_t row = 0; row < x.size(); row += row_length) {
      constexpr float infinity = std::numeric_limits<float>::infinity();
      top_two top{-infinity, -infinity};
      for (const float value : x.subspan(row, row_length)) {
        const float v = before ? std::fabs(value) : value;
        top.second = std::max(top.second, std::min(top.first, v));
        top.first = std::max(top.first, v);
      }
      rows_.push_back(magnitudes ? top_two{std::fabs(top.first), std::fabs(top.second)} : top);
    }
  }
  /// Observes one row. Throws invalid_argument if it is shorter than two values.
  void observe(std::span<const float> x) { observe(x, x.size()); }
  /// Observes the rows along the last axis of a view, a view of rank 0 being one row of one value;
  /// an empty view changes nothing. Throws what the form with `row_length` throws.
  void observe(tensor_view<const float> x) {
    const std::vector<float> values = detail::floats_of(x);
    if (!values.empty()) {
      observe(values, x.rank == 0 ? 1 : x.shape[x.rank - 1]);
    }
  }

  /// Whether merge() works with the options, in any order: with parity::fixed.
  [[nodiscard]] bool merges_in_any_order() const noexcept {
    return options_.behaviour == parity::fixed;
  }
  /// Afterwards this observer is in the state it would have if the rows of `later` had come after
  /// its own. Throws invalid_argument if `later` has other options.
  void append(const isotone_observer& later) {
    require(options_ == later.options_, error_kind::invalid_argument, where,
            ": appending other options");
    const isotone_observer copy = later;  // it may be this object
    seen_.merge(copy.seen_);
    rows_.insert(rows_.end(), copy.rows_.begin(), copy.rows_.end());
  }
  /// Afterwards this observer is in the state it would have if it had also seen the rows of
  /// `other`. Throws invalid_argument for other options, unsupported without parity::fixed.
  void merge(const isotone_observer& other) {
    require(options_ == other.options_, error_kind::invalid_argument, where,
            ": merging other options");
    require(merges_in_any_order(), error_kind::unsupported, where,
            ": only observers with parity::fixed can be merged");
    seen_.merge(other.seen_);
    const std::vector<top_two> rows = other.rows_;  // a copy: `other` may be this object
    rows_.insert(rows_.end(), rows.begin(), rows.end());
  }

  /// 0 .. L1 of the last row, or of the largest L1 with parity::fixed; 0 .. 0 if that is negative.
  /// Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const {
    static_cast<void>(seen_.range(where));
    float upper = rows_.back().first;
    if (options_.behaviour == parity::fixed) {
      for (const top_two& row : rows_) {
        upper = std::max(upper, row.first);
      }
    }
    return {0.0F, std::max(upper, 0.0F)};
  }

  /// The scale that the class describes, and zero point 0 (without any interval, the parameters of
  /// range() by scale_rule::ppq). Throws invalid_argument if `scheme` is not that of the options,
  /// where range() throws, and if the scale is zero or overflows.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    detail::require_scheme(scheme, options_.scheme, where);
    const value_range fallback = range();
    const std::vector<end_point> ends = sorted_ends();
    if (ends.empty()) {
      return params_from_range(fallback, scheme, scale_rule::ppq);
    }
    std::size_t overlapping = 0;
    std::size_t most = 0;
    double scale = 0.0;
    bool may_grow = false;
    for (const end_point& end : ends) {
      if (may_grow && end.scale > 0.0) {
        scale = end.scale;
        may_grow = false;
      }
      overlapping = end.begins ? overlapping + 1 : overlapping - 1;
      if (overlapping > most) {
        most = overlapping;
        scale = end.scale;
        may_grow = options_.behaviour == parity::fixed && scale == 0.0;
      }
    }
    const quant_params p{static_cast<float>(scale), 0};
    require(p.scale > 0.0F && std::isfinite(p.scale), error_kind::invalid_argument, where,
            ": the scale is ", scale);
    return p;
  }

  /// Appends i32 qmin, i32 qmax, u8 symmetric, u8 behaviour; the range seen; the list of f32 L1 and
  /// L2, row after row.
  void write(detail::byte_writer& out) const {
    detail::put_scheme(out, options_.scheme);
    detail::put_choice(out, options_.behaviour);
    seen_.write(out);
    out.put(static_cast<std::uint64_t>(2 * rows_.size()));
    for (const top_two& row : rows_) {
      out.put(row.first);
      out.put(row.second);
    }
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    isotone_options options;
    options.scheme = detail::get_scheme(in, where);
    options.behaviour = detail::get_choice(in, parity::fixed, where);
    detail::require_levels(options.scheme, where, error_kind::bad_file);
    isotone_observer next(options);
    next.seen_.read(in);
    // Every row has two values at least.
    const auto values = detail::get_finite_list<float>(in, next.seen_.count(), where);
    detail::require_state(values.size() % 2 == 0 && (!values.empty() || !next.seen_.is_finite()),
                          where, "the number of rows");
    for (std::size_t i = 0; i < values.size(); i += 2) {
      next.rows_.push_back({values[i], values[i + 1]});
    }
    *this = std::move(next);
  }

  friend bool operator==(const isotone_observer&, const isotone_observer&) = default;

 private:
  static constexpr const char* where = "ppq::isotone_observer";

  struct top_two {
    float first;
    float second;
    friend bool operator==(const top_two&, const top_two&) = default;
  };
  struct end_point {
    double scale;
    bool begins;
  };

  [[nodiscard]] std::vector<end_point> sorted_ends() const {
    std::vector<end_point> ends;
    for (const top_two& row : rows_) {
      const double quotient =
          static_cast<double>(row.second) / (options_.scheme.levels.qmax - 0.51);
      const double least = std::max(quotient, 0.0);
      const double greatest = 2.0 * static_cast<double>(row.first - std::max(row.second, 0.0F));
      if (greatest > least && row.first > 0.0F) {
        ends.push_back({least, true});
        ends.push_back({greatest, false});
      }
    }
    std::sort(ends.begin(), ends.end(), [](const end_point& a, const end_point& b) {
      return a.scale != b.scale ? a.scale < b.scale : !a.begins && b.begins;
    });
    return ends;
  }

  isotone_options options_;
  detent::min_max_observer seen_;
  std::vector<top_two> rows_;
};

}  // namespace ppq
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_ISOTONE_HPP
