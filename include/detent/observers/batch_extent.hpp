// SPDX-License-Identifier: BSD-3-Clause
// The extent of a batch: what observers whose histogram grows with the batches need to know of
// those that another process observes.
#ifndef DETENT_OBSERVERS_BATCH_EXTENT_HPP
#define DETENT_OBSERVERS_BATCH_EXTENT_HPP

#include <algorithm>
#include <cmath>
#include <span>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// The range of a batch, and its least magnitude.
struct batch_extent {
  value_range range;             ///< The smallest and the largest value.
  float least_magnitude = 0.0F;  ///< The smallest |x|.

  /// The extent of a batch. Throws invalid_argument if it is empty or holds NaN or infinity.
  [[nodiscard]] static batch_extent of(std::span<const float> x) {
    min_max_observer seen;
    seen.observe(x);
    batch_extent e{seen.range("batch_extent"), std::fabs(x.empty() ? 0.0F : x[0])};
    for (const float value : x) {
      e.least_magnitude = (std::min)(e.least_magnitude, std::fabs(value));
    }
    return e;
  }

  /// The larger of the magnitudes of the range's ends.
  [[nodiscard]] float largest_magnitude() const noexcept {
    return (std::max)(std::fabs(range.lower), std::fabs(range.upper));
  }

  /// Appends f32 lower end, f32 upper end, f32 least magnitude.
  void write(detail::byte_writer& out) const {
    detail::put_range(out, range);
    out.put(least_magnitude);
  }
  /// Reads what write() appended. Throws bad_file for an impossible extent.
  [[nodiscard]] static batch_extent read(detail::byte_reader& in) {
    batch_extent e;
    e.range = detail::get_finite_range(in, "batch_extent");
    e.least_magnitude = in.get<float>();
    // Values of one sign: the end next to 0 is the least magnitude.
    const float nearest = (std::max)(e.range.lower, -e.range.upper);
    detail::require_state(e.range.lower <= e.range.upper &&
                              (nearest > 0.0F ? e.least_magnitude == nearest
                                              : e.least_magnitude >= 0.0F &&
                                                    e.least_magnitude <= e.largest_magnitude()),
                          "batch_extent", "a range and a least magnitude");
    return e;
  }

  friend bool operator==(const batch_extent&, const batch_extent&) = default;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_BATCH_EXTENT_HPP
