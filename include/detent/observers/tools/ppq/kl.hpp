// SPDX-License-Identifier: BSD-3-Clause
// PPQ's observer of the Kullback-Leibler divergence. The head of observers/tools/ppq.hpp says what
// all PPQ observers have in common.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_KL_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_KL_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/exponentials.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/ppq/scheme.hpp>
#include <detent/observers/tools/ppq/two_phase_histogram.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ppq {

/// Options of ppq::kl_observer.
struct kl_options {
  /// The scheme that finalize() will be called with; must be symmetric.
  quant_scheme scheme = default_scheme;
  /// Bins of the histogram, a multiple of B up to 2^22 and to the root of B * 2^32 (see
  /// kl_observer): up to 741376 for 8 bits.
  std::size_t bins = 4096;
  bool power_of_two = false;  ///< whether scales are powers of two, PPQ's POWER_OF_2 policy
  friend bool operator==(const kl_options&, const kl_options&) = default;
};

/// Reproduces PPQ's "kl", symmetric, in two phases. The first one finds max |x|; the second one
/// counts |x| in `bins` bins of width w on 0 .. max |x|. With B = 2^(bits - 1), where bits is what
/// the grid's integers need, and after the first trunc(0.002 * bins) counts were set to 0 and the
/// next one to 1, candidates are r = B, 2 B, ... bins. Each candidate has
///
///     P  the first r counts, with all others added to the last one
///     Q  the first r counts in B groups of r / B: the sum of the group divided by the number of
///        its counts that are not zero, and 0 where the count is zero
///
/// both divided by their sums in float. The candidate with the least sum of P * (log10(P + 1e-30) -
/// log10(Q + 1e-30)), in double, wins, the first of several.
///
///     scale = max(r * w / B, 1e-8), projected to a power of two (half_up) if asked
///
/// PPQ divides by 128, not by 127. The scale is that of PPQ to the bit wherever r is. Logarithms
/// are within two units in the last place, and sums over 2^24 are exact, which PyTorch's are not:
/// where candidates differ in their last bits, PPQ may choose otherwise. Candidates that consist of
/// cleared counts, which exist below 5 bits, are passed over; PPQ divides zeros by zero there, and
/// its choice is up to chance.
///
/// The two phases must see the same data, however split into batches; values outside the range of
/// the first phase are not counted in the second. Neither phase depends on batches.
///
/// Time: O(bins^2 / B) for range() and finalize(), at most 2^32 bins. Memory: O(bins). Not
/// thread-safe: use one per thread, then merge() after each phase.
class kl_observer {
 public:
  /// Throws unsupported for an asymmetric scheme, which PPQ does not have; invalid_argument for a
  /// grid without zero and something positive or beyond 17 bits, or unless bins is a multiple of B
  /// up to 2^22, and bins^2 / B is at most 2^32.
  explicit kl_observer(kl_options options = {})
      : options_(options), histogram_(options.bins, options.scheme.symmetric) {
    require(options.scheme.symmetric, error_kind::unsupported, where,
            ": PPQ has none that is asymmetric");
    require_options(options, error_kind::invalid_argument);
  }

  /// How many passes over the data are needed: 2.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 2; }
  /// Announces that a phase begins. Throws invalid_argument if phases are out of order, or if phase
  /// 0 has seen nothing, a NaN, an infinity, or a range whose length overflows a float.
  void begin_phase(std::size_t phase) { histogram_.begin_phase(phase, where); }
  /// Observes one batch in the current phase; an empty one changes nothing, a NaN or an infinity
  /// makes range() throw. Throws invalid_argument for null data.
  void observe(std::span<const float> x) { histogram_.observe(x, where); }
  /// Adds what `other` has seen in the current phase. Throws invalid_argument if the options or the
  /// phases differ, or if second phases follow different ranges.
  void merge(const kl_observer& other) {
    require(options_ == other.options_, error_kind::invalid_argument, where,
            ": merging other options");
    histogram_.merge(other.histogram_, where);
  }

  /// -r * w .. r * w, the range that the scale stands for. Throws invalid_argument before phase 1,
  /// or if nothing, a NaN or an infinity was seen in either phase.
  [[nodiscard]] value_range range() const {
    const auto end = static_cast<float>(end_of_range());
    return {-end, end};
  }

  /// The scale that the class describes, and zero point 0. The scale is not derived from range().
  /// Throws invalid_argument if `scheme` is not that of the options, where range() throws, and if
  /// the scale overflows.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    constexpr double smallest_scale = 1e-8;
    detail::require_scheme(scheme, options_.scheme, where);
    const double scale =
        std::max(end_of_range() / static_cast<double>(half_levels()), smallest_scale);
    const quant_params p{
        static_cast<float>(options_.power_of_two ? reference::project_to_power_of_two(
                                                       scale, power_of_two_rounding::half_up)
                                                 : scale),
        0};
    require(std::isfinite(p.scale), error_kind::invalid_argument, where, ": the scale ", scale,
            " overflows");
    return p;
  }

  /// Appends i32 qmin, i32 qmax, u8 symmetric, u64 bins, u8 power_of_two; u8 phase; the range seen
  /// in phase 0; in phase 1 also the range seen in phase 1 and the list of u64 counts.
  void write(detail::byte_writer& out) const {
    detail::put_scheme(out, options_.scheme);
    out.put(static_cast<std::uint64_t>(options_.bins));
    detail::put_choice(out, options_.power_of_two);
    histogram_.write(out);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    kl_options options;
    options.scheme = detail::get_scheme(in, where);
    options.bins = in.get_size(largest_bins);
    options.power_of_two = detail::get_choice(in, true, where);
    detail::require_state(options.scheme.symmetric, where, "an asymmetric scheme");
    require_options(options, error_kind::bad_file);
    kl_observer next(options);
    next.histogram_.read(in, where);
    *this = std::move(next);
  }

  friend bool operator==(const kl_observer&, const kl_observer&) = default;

 private:
  static constexpr const char* where = "ppq::kl_observer";
  static constexpr std::size_t largest_bins = std::size_t{1} << 22;

  static void require_options(const kl_options& options, error_kind kind) {
    detail::require_levels(options.scheme, where, kind);
    const std::size_t multiple = half_levels(options.scheme.levels);
    require(options.bins > 0 && options.bins <= largest_bins && options.bins % multiple == 0, kind,
            where, ": ", options.bins, " bins are not a multiple of ", multiple, " up to 2^22");
    detail::require_search(options.bins / multiple, options.bins, where, kind);
  }

  [[nodiscard]] static std::size_t half_levels(grid levels) noexcept {
    const auto steps = static_cast<std::uint32_t>(levels.qmax - levels.qmin);
    return std::bit_ceil(std::size_t{steps} + 1) / 2;
  }
  [[nodiscard]] std::size_t half_levels() const noexcept {
    return half_levels(options_.scheme.levels);
  }

  [[nodiscard]] double end_of_range() const {
    histogram_.require_complete(where);
    return detail::rounded_product(static_cast<double>(best_candidate()), histogram_.width());
  }

  [[nodiscard]] std::size_t best_candidate() const {
    std::vector<std::uint64_t> counts = histogram_.counts();
    const auto cleared = static_cast<std::size_t>(static_cast<double>(counts.size()) * 0.002);
    std::fill_n(counts.begin(), cleared, 0);
    counts[cleared] = 1;
    const std::vector<double> logs = logs_of_shares(counts);
    std::size_t best = 0;
    double least = 0.0;
    for (std::size_t r = half_levels(); r <= counts.size(); r += half_levels()) {
      if (r <= cleared) {
        continue;
      }
      const double divergence = divergence_of(counts, logs, r);
      if (best == 0 || divergence < least) {
        best = r;
        least = divergence;
      }
    }
    return best;
  }

  /// log(P + 1e-30) of each count, where nothing is added to it.
  [[nodiscard]] static std::vector<double> logs_of_shares(
      const std::vector<std::uint64_t>& counts) {
    const auto total = static_cast<float>(detail::total_of(counts));
    std::vector<double> logs;
    logs.reserve(counts.size());
    for (const std::uint64_t count : counts) {
      logs.push_back(static_cast<double>(static_cast<float>(count) / total) + little);
    }
    detail::active<kernels::exponential_kernels>().log(logs.data(), logs.size());
    return logs;
  }

  /// `logs` is what logs_of_shares() returns.
  [[nodiscard]] double divergence_of(const std::vector<std::uint64_t>& counts,
                                     const std::vector<double>& logs, std::size_t r) const {
    std::uint64_t kept = 0;
    for (std::size_t i = 0; i < r; ++i) {
      kept += counts[i];
    }
    std::uint64_t total = kept;
    for (std::size_t i = r; i < counts.size(); ++i) {
      total += counts[i];
    }
    const std::size_t group_size = r / half_levels();
    double sum = 0.0;
    for (std::size_t begin = 0; begin < r; begin += group_size) {
      std::uint64_t group = 0;
      std::uint64_t nonzero = 0;
      for (std::size_t i = begin; i < begin + group_size; ++i) {
        group += counts[i];
        nonzero += counts[i] != 0 ? 1U : 0U;
      }
      const float share =
          nonzero == 0 ? 0.0F : static_cast<float>(group) / static_cast<float>(nonzero);
      const double log_of_share = log_of(share / static_cast<float>(kept));
      for (std::size_t i = begin; i < begin + group_size; ++i) {
        // The share of what lies beyond r joins the last count.
        const std::uint64_t count = counts[i] + (i + 1 == r ? total - kept : 0);
        if (count == 0) {
          continue;  // P is zero, and so is the term
        }
        const float p = static_cast<float>(count) / static_cast<float>(total);
        const double log_p = count == counts[i] ? logs[i] : log_of(p);
        const double log_q = counts[i] == 0 ? log_of(0.0F) : log_of_share;
        sum = std::fma(static_cast<double>(p), (log_p - log_q) / log_of_ten, sum);
      }
    }
    return sum;
  }
  static double log_of(float share) noexcept {
    return detail::portable_log(static_cast<double>(share) + little);
  }
  static constexpr double little = 1e-30;
  static constexpr double log_of_ten = 0x1.26bb1bbb55516p+1;

  kl_options options_;
  detail::two_phase_histogram histogram_;
};

}  // namespace ppq
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_KL_HPP
