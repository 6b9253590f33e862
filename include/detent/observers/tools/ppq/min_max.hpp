// SPDX-License-Identifier: BSD-3-Clause
// PPQ's observer of the range. The head of observers/tools/ppq.hpp says what all PPQ observers have
// in common.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_MIN_MAX_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_MIN_MAX_HPP

#include <cstddef>
#include <span>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ppq {

/// Reproduces PPQ's "minmax": the range of everything seen. It has no options. Not thread-safe: use
/// one per thread, then merge().
class min_max_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }
  /// Observes one batch; an empty one changes nothing, a NaN or an infinity makes range() throw.
  /// Throws invalid_argument for null data.
  void observe(std::span<const float> x) {
    static_cast<void>(detail::observe_batch(seen_, x, where));
  }
  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen.
  void merge(const min_max_observer& other) noexcept { seen_.merge(other.seen_); }
  /// The smallest and the largest value observed. Throws invalid_argument if nothing, a NaN or an
  /// infinity was seen.
  [[nodiscard]] value_range range() const { return seen_.range(where); }
  /// Scale and zero point of range() by scale_rule::ppq. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::ppq);
  }
  /// Appends the range seen.
  void write(detail::byte_writer& out) const { seen_.write(out); }
  /// Replaces the range by one that write() appended. Throws bad_file for an impossible one.
  void read(detail::byte_reader& in) { seen_.read(in); }

  friend bool operator==(const min_max_observer&, const min_max_observer&) = default;

 private:
  static constexpr const char* where = "ppq::min_max_observer";

  detent::min_max_observer seen_;
};

}  // namespace ppq
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_MIN_MAX_HPP
