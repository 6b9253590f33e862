// SPDX-License-Identifier: BSD-3-Clause
// PPQ's observer of the squared error. The head of observers/tools/ppq.hpp says what all PPQ
// observers have in common.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_MSE_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_MSE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/observers/tools/ppq/scheme.hpp>
#include <detent/observers/tools/ppq/two_phase_histogram.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ppq {

/// Options of ppq::mse_observer.
struct mse_options {
  quant_scheme scheme = default_scheme;  ///< the scheme that finalize() will be called with
  /// Number of bins of the histogram, in 1..2^16; fewer for narrow grids (see mse_observer).
  std::size_t bins = 2048;
  parity behaviour = parity::as_published;  ///< whether PPQ's bug is reproduced or repaired
  friend bool operator==(const mse_options&, const mse_options&) = default;
};

/// Reproduces PPQ's "mse", in two phases. The first one finds the range; the second one counts x on
/// min .. max, or |x| on 0 .. max |x| if symmetric, in `bins` bins of width w. With L = qmax - qmin
/// + 1 levels, candidates are intervals of L * step bins that begin at bin `start`:
///
///     start 0, step bins / L + 1 (the whole range)
///     asymmetric  start = 0, 8, 16 ... while start * w + min <= 0, step = 1 .. bins / L
///     symmetric   start = 0, step = 1 .. bins / L
///
/// as long as they end at most L bins behind the last. The error of bin i, in bins, is taken to be
///
///     i < start        start - i - 1/2
///     i > end          i - end + 1/2
///     else             l + 1/4 if l == r, else min(l, r) + 1/2
///                      with l = (i - start) mod step, r = step - l - 1
///
/// and the first candidate with the least sum of count * error^2 / (number of values) wins. Its
/// range is min + start * w .. min + end * w, or -end * w .. end * w if symmetric; the scale is
/// that of scale_rule::ppq. All of it is in double, with the same bits as PPQ without its CUDA
/// kernels.
///
/// Bug of PPQ: symmetric intervals give all L levels to one half of the grid, so that the error is
/// that of half the true step. With parity::fixed, L / 2 takes the place of L above.
///
/// The two phases must see the same data, however split into batches; values outside the range of
/// the first phase are not counted in the second. Neither phase depends on batches.
///
/// Time: O(C * bins) for range() and finalize(), where C is the greatest number of candidates: bins
/// / L if symmetric, else (bins / 8) * (bins / L). C * bins is at most 2^32: for an asymmetric
/// scheme of 8 bits, up to 20000 bins. Memory: O(bins). Not thread-safe: use one per thread, then
/// merge() after each phase.
class mse_observer {
 public:
  /// Throws invalid_argument for a grid without zero and something positive or beyond 17 bits, or
  /// unless 0 < bins <= 2^16 and C * bins <= 2^32.
  explicit mse_observer(mse_options options = {})
      : options_(options), histogram_(options.bins, options.scheme.symmetric) {
    require_options(options, error_kind::invalid_argument);
  }

  /// How many passes over the data are needed: 2.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 2; }
  /// Announces that a phase begins. Throws invalid_argument if phases are out of order, or if phase
  /// 0 has seen nothing, a NaN, an infinity, or a range whose length overflows a float.
  void begin_phase(std::size_t phase) { histogram_.begin_phase(phase, where); }
  /// Observes one batch in the current phase; an empty one changes nothing, a NaN or an infinity
  /// makes range() throw. Throws invalid_argument for null data; and, where the first phase of an
  /// asymmetric scheme saw one value only, if the length of the range of a batch of the second
  /// overflows a float. Then the batch was not seen.
  void observe(std::span<const float> x) { histogram_.observe(x, where); }
  /// Adds what `other` has seen in the current phase. Throws invalid_argument if the options or the
  /// phases differ, or if second phases follow different ranges.
  void merge(const mse_observer& other) {
    require(options_ == other.options_, error_kind::invalid_argument, where,
            ": merging other options");
    histogram_.merge(other.histogram_, where);
  }

  /// The range of the best candidate, rounded to floats. Throws invalid_argument before phase 1, if
  /// nothing, a NaN or an infinity was seen in either phase, or if phase 1 saw nothing in the range
  /// of phase 0.
  [[nodiscard]] value_range range() const {
    const auto [lower, upper] = ends();
    return {static_cast<float>(lower), static_cast<float>(upper)};
  }

  /// Scale and zero point, by scale_rule::ppq, of the range before it is rounded to floats. Throws
  /// invalid_argument if `scheme` is not that of the options, where range() throws, and if the
  /// scale overflows.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    detail::require_scheme(scheme, options_.scheme, where);
    const auto [lower, upper] = ends();
    const quant_params p = reference::params_from_ends_ppq(lower, upper, scheme);
    require(std::isfinite(p.scale), error_kind::invalid_argument, where, ": the scale of ", lower,
            " .. ", upper, " overflows");
    return p;
  }

  /// Appends i32 qmin, i32 qmax, u8 symmetric, u64 bins, u8 behaviour; u8 phase; the range seen in
  /// phase 0; in phase 1 also the range seen in phase 1 and the list of u64 counts.
  void write(detail::byte_writer& out) const {
    detail::put_scheme(out, options_.scheme);
    out.put(static_cast<std::uint64_t>(options_.bins));
    detail::put_choice(out, options_.behaviour);
    histogram_.write(out);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    mse_options options;
    options.scheme = detail::get_scheme(in, where);
    options.bins = in.get_size(largest_bins);
    options.behaviour = detail::get_choice(in, parity::fixed, where);
    require_options(options, error_kind::bad_file);
    mse_observer next(options);
    next.histogram_.read(in, where);
    *this = std::move(next);
  }

  friend bool operator==(const mse_observer&, const mse_observer&) = default;

 private:
  static constexpr const char* where = "ppq::mse_observer";
  static constexpr std::size_t largest_bins = std::size_t{1} << 16;

  static void require_options(const mse_options& options, error_kind kind) {
    detail::require_levels(options.scheme, where, kind);
    require(options.bins > 0 && options.bins <= largest_bins, kind, where, ": ", options.bins,
            " bins, not 1..2^16");
    const std::size_t starts =
        options.scheme.symmetric ? 1 : (options.bins + start_interval - 1) / start_interval;
    detail::require_search(starts * (options.bins / levels_of(options)), options.bins, where, kind);
  }
  static constexpr std::size_t start_interval = 8;

  /// How many levels the intervals of candidates are divided into.
  [[nodiscard]] static std::size_t levels_of(const mse_options& options) noexcept {
    const grid g = options.scheme.levels;
    const auto all = static_cast<std::size_t>(g.qmax - g.qmin + 1);
    const bool halve = options.scheme.symmetric && options.behaviour == parity::fixed;
    return halve ? all / 2 : all;
  }

  struct candidate {
    std::size_t start;
    std::size_t step;
    std::size_t end;
  };
  struct bin {
    std::size_t index;
    double count;
  };

  [[nodiscard]] std::pair<double, double> ends() const {
    histogram_.require_complete(where);
    const candidate c = best_candidate();
    const double width = histogram_.width();
    const double first = histogram_.first();
    const double upper = detail::rounded_product(static_cast<double>(c.end), width) + first;
    return {options_.scheme.symmetric
                ? -upper
                : detail::rounded_product(static_cast<double>(c.start), width) + first,
            upper};
  }

  [[nodiscard]] candidate best_candidate() const {
    const std::vector<std::uint64_t>& counts = histogram_.counts();
    std::vector<bin> bins;  // those that are not empty
    double total = 0.0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] != 0) {
        bins.push_back({i, static_cast<double>(counts[i])});
        total += static_cast<double>(counts[i]);
      }
    }
    require(!bins.empty(), error_kind::invalid_argument, where,
            ": nothing of phase 1 lies in the range of phase 0");

    const bool symmetric = options_.scheme.symmetric;
    const std::size_t levels = levels_of(options_);
    const std::size_t steps = counts.size() / levels;
    const double width = histogram_.width();
    const double first = histogram_.first();

    candidate best{0, steps + 1, levels * (steps + 1)};
    double least = loss(bins, total, best);
    for (std::size_t start = 0; start < (symmetric ? 1 : counts.size()); start += start_interval) {
      if (!symmetric && detail::rounded_product(static_cast<double>(start), width) + first > 0.0) {
        break;
      }
      for (std::size_t step = 1; step <= steps; ++step) {
        const candidate c{start, step, start + levels * step};
        if (c.end > counts.size() + levels) {
          break;
        }
        const double value = loss(bins, total, c);
        if (value < least) {
          least = value;
          best = c;
        }
      }
    }
    return best;
  }

  [[nodiscard]] static double loss(const std::vector<bin>& bins, double total,
                                   candidate c) noexcept {
    double sum = 0.0;
    for (const bin& b : bins) {
      double error = 0.0;
      if (b.index < c.start) {
        error = static_cast<double>(c.start - b.index - 1) + 0.5;
      } else if (b.index > c.end) {
        error = static_cast<double>(b.index - c.end) + 0.5;
      } else {
        const std::size_t left = (b.index - c.start) % c.step;
        const std::size_t right = c.step - left - 1;
        error = left == right ? static_cast<double>(left) + 0.25
                              : static_cast<double>(std::min(left, right)) + 0.5;
      }
      sum += b.count * error * error / total;
    }
    return sum;
  }

  mse_options options_;
  detail::two_phase_histogram histogram_;
};

}  // namespace ppq
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_MSE_HPP
