// SPDX-License-Identifier: BSD-3-Clause
// PPQ's observer of the range.
// See observers/ppq.hpp for what all of them have in common.
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

/// "minmax": the range of everything seen. It has no options.
class min_max_observer {
 public:
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }
  void observe(std::span<const float> x) {
    static_cast<void>(detail::observe_batch(seen_, x, where));
  }
  /// As if everything that `other` has seen had been seen here.
  void merge(const min_max_observer& other) noexcept { seen_.merge(other.seen_); }
  /// Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const { return seen_.range(where); }
  /// scale_rule::ppq of the range; throws what params_from_range throws besides.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::ppq);
  }
  /// The range seen.
  void write(detail::byte_writer& out) const { seen_.write(out); }
  /// Throws bad_file for what write() has not written.
  void read(detail::byte_reader& in) { seen_.read(in); }

  friend bool operator==(const min_max_observer&, const min_max_observer&) = default;

 private:
  static constexpr const char* where = "ppq::min_max_observer";

  detent::min_max_observer seen_;
};

}  // namespace ppq
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_MIN_MAX_HPP
