// SPDX-License-Identifier: BSD-3-Clause
// An observer that returns fixed parameters.
#ifndef DETENT_OBSERVERS_CONSTANT_HPP
#define DETENT_OBSERVERS_CONSTANT_HPP

#include <cstdint>
#include <limits>
#include <span>

#include <detent/base/byte_format.hpp>
#include <detent/elementwise/operands.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Returns the parameters that it was made with, by default scale 1 and zero point 0. It looks at
/// values only to report their number and range in the evidence. Not thread-safe: use one per
/// thread, then merge().
class constant_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// Throws invalid_argument if the scale is not a positive finite number.
  explicit constant_observer(quant_params params = {}) : params_(params) {
    detail::require_scale(params.scale, "constant_observer");
  }

  /// Observes one batch, for the evidence only. Throws invalid_argument for null data with a size
  /// that is not 0.
  void observe(std::span<const float> x) { seen_.observe(x); }
  /// Adds what `other` has seen to the evidence. Throws invalid_argument if it has other
  /// parameters.
  void merge(const constant_observer& other) {
    require(params_ == other.params_, error_kind::invalid_argument,
            "constant_observer: merging other parameters");
    seen_.merge(other.seen_);
  }
  /// The fixed parameters. Throws invalid_argument if the zero point is outside the scheme's grid
  /// or, for the evidence, if a NaN or an infinity was observed. It does not throw if nothing was
  /// observed.
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    detail::require_zero_point(params_.zero_point, scheme.levels, "constant_observer");
    scale_solution s;
    s.params = params_;
    s.evidence.method = "constant";
    s.evidence.count = seen_.count();
    if (seen_.count() > 0) {
      const value_range seen = seen_.range("constant_observer");
      s.evidence.lower = seen.lower;
      s.evidence.upper = seen.upper;
    }
    return s;
  }

  /// Appends f32 scale, i32 zero point, and the state of a min_max_observer.
  void write(detail::byte_writer& out) const {
    out.put(params_.scale);
    out.put(params_.zero_point);
    seen_.write(out);
  }
  /// Replaces the parameters and the state by those that write() appended. Throws bad_file for an
  /// impossible scale or range.
  void read(detail::byte_reader& in) {
    quant_params p;
    p.scale = in.get<float>();
    p.zero_point = in.get<std::int32_t>();
    require(p.scale > 0.0F && p.scale <= std::numeric_limits<float>::max(), error_kind::bad_file,
            "constant_observer: the scale ", p.scale, " is impossible");
    constant_observer next(p);
    next.seen_.read(in);
    *this = next;
  }

 private:
  quant_params params_;
  min_max_observer seen_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_CONSTANT_HPP
