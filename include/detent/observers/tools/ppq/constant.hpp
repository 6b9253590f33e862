// SPDX-License-Identifier: BSD-3-Clause
// PPQ's observer that returns fixed parameters. The head of observers/tools/ppq.hpp says what all
// PPQ observers have in common.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_CONSTANT_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_CONSTANT_HPP

#include <cstddef>
#include <span>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ppq {

/// Reproduces PPQ's "constant": scale 1 and zero point 0, whatever is observed. It has no options.
/// Not thread-safe: use one per thread, then merge().
class constant_observer {
 public:
  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }
  /// Observes one batch, only to report its range. Throws invalid_argument for null data.
  void observe(std::span<const float> x) {
    static_cast<void>(detail::observe_batch(seen_, x, where));
  }
  /// Adds what `other` has seen.
  void merge(const constant_observer& other) noexcept { seen_.merge(other.seen_); }
  /// The range of everything observed, which the parameters do not depend on. Throws
  /// invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const { return seen_.range(where); }
  /// Scale 1 and zero point 0, for any scheme.
  [[nodiscard]] quant_params finalize(quant_scheme /*scheme*/) const noexcept { return {1.0F, 0}; }
  /// Appends the range seen.
  void write(detail::byte_writer& out) const { seen_.write(out); }
  /// Replaces the range by one that write() appended. Throws bad_file for an impossible one.
  void read(detail::byte_reader& in) { seen_.read(in); }

  friend bool operator==(const constant_observer&, const constant_observer&) = default;

 private:
  static constexpr const char* where = "ppq::constant_observer";

  detent::min_max_observer seen_;
};

}  // namespace ppq
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_CONSTANT_HPP
