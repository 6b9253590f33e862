// SPDX-License-Identifier: BSD-3-Clause
// Parameters that do not depend on the data.
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

/// Returns what it was made with, by default scale 1 and zero point 0; looks at values only to say
/// how many there were and in which range.
class constant_observer {
 public:
  /// Throws invalid_argument if the scale is not a positive finite number.
  explicit constant_observer(quant_params params = {}) : params_(params) {
    detail::require_scale(params.scale, "constant_observer");
  }

  void observe(std::span<const float> x) { seen_.observe(x); }
  /// Throws invalid_argument for other parameters.
  void merge(const constant_observer& other) {
    require(params_ == other.params_, error_kind::invalid_argument,
            "constant_observer: merging other parameters");
    seen_.merge(other.seen_);
  }
  /// Throws invalid_argument if the zero point is not of the grid.
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    detail::require_zero_point(params_.zero_point, scheme.levels, "constant_observer");
    scale_solution s;
    s.params = params_;
    s.evidence.method = "constant";
    s.evidence.count = seen_.count();
    if (seen_.count() > 0) {
      s.evidence.lower = seen_.range().lower;
      s.evidence.upper = seen_.range().upper;
    }
    return s;
  }

  void write(detail::byte_writer& out) const {
    out.put(params_.scale);
    out.put(params_.zero_point);
    seen_.write(out);
  }
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
