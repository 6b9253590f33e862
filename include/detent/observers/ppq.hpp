// SPDX-License-Identifier: BSD-3-Clause
// The calibration observers of PPQ, per tensor, on a CPU: the same scales, to the bit but where an
// observer says otherwise.
//
// A call of observe() stands for one batch. That makes a difference to percentile_observer alone.
//
// A batch with a NaN or an infinity makes range() and finalize() throw; PPQ lets it through. An
// empty batch changes nothing; PPQ asserts that there is none. Objects are values and not
// thread-safe; one per thread.
//
// Source: PPQ 0.6.6, ppq/quantization/observer.
#ifndef DETENT_OBSERVERS_PPQ_HPP
#define DETENT_OBSERVERS_PPQ_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/parity.hpp>
#include <detent/observers/pytorch.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/reference.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ppq {

/// -128..127, symmetric: what most of PPQ's platforms quantize activations to.
inline constexpr quant_scheme default_scheme{full_grid<std::int8_t>, true};

namespace detail {

using namespace detent::detail;

inline void require_scheme(quant_scheme given, quant_scheme expected, const char* where) {
  require(given == expected, error_kind::invalid_argument, where, ": finalize() for the ",
          given.symmetric ? "symmetric" : "asymmetric", " scheme on ", given.levels.qmin, "..",
          given.levels.qmax, ", observed for the ", expected.symmetric ? "symmetric" : "asymmetric",
          " one on ", expected.levels.qmin, "..", expected.levels.qmax);
}
inline void require_levels(quant_scheme scheme, const char* where,
                           error_kind kind = error_kind::invalid_argument) {
  require(scheme.levels.qmin <= 0 && scheme.levels.qmax > 0 && scheme.levels.qmin >= -65536 &&
              scheme.levels.qmax <= 65536,
          kind, where, ": grid ", scheme.levels.qmin, "..", scheme.levels.qmax);
}

/// The histogram of the observers of two phases, that of the range and that of the counts:
///
///   symmetric   |x| on 0 .. max |x|
///   asymmetric  x on min x .. max x
class two_phase_histogram {
 public:
  two_phase_histogram(std::size_t bins, bool symmetric) : symmetric_(symmetric), counts_(bins) {}

  void begin_phase(std::size_t phase, const char* where) {
    require_next_phase(phase, phase_, 2, seen_[phase_].count() > 0, where);
    if (phase == 1) {
      const value_range r = seen_[0].range(where);
      pytorch::require_length(r.lower, r.upper, where);
      phase_ = 1;
    }
  }

  void observe(std::span<const float> x, const char* where) {
    const min_max_observer batch = observe_batch(seen_[phase_], x, where);
    if (phase_ == 0 || !batch.is_finite()) {
      return;
    }
    if (!symmetric_) {
      pytorch::add_histogram<std::uint64_t>(x, first(), static_cast<float>(seen_[0].range().upper),
                                            counts_);
      return;
    }
    std::vector<float> magnitudes(x.size());
    std::transform(x.begin(), x.end(), magnitudes.begin(), [](float v) { return std::fabs(v); });
    const double last = rounded_product(width(), static_cast<double>(counts_.size()));
    pytorch::add_histogram<std::uint64_t>(magnitudes, 0.0F, static_cast<float>(last), counts_);
  }

  /// Throws invalid_argument unless both phases have seen something, and nothing but finite values.
  void require_complete(const char* where) const {
    static_cast<void>(seen_[0].range(where));
    require(phase_ == 1, error_kind::invalid_argument, where,
            ": phase 1 has not begun; the data must be observed once more");
    static_cast<void>(seen_[1].range(where));
  }

  /// Where the first bin begins.
  [[nodiscard]] float first() const { return symmetric_ ? 0.0F : seen_[0].range().lower; }
  /// The width of a bin.
  [[nodiscard]] double width() const {
    const value_range r = seen_[0].range();
    const double length =
        symmetric_ ? static_cast<double>(std::max(std::fabs(r.lower), std::fabs(r.upper)))
                   : static_cast<double>(r.upper) - static_cast<double>(r.lower);
    return length / static_cast<double>(counts_.size());
  }
  [[nodiscard]] const std::vector<std::uint64_t>& counts() const noexcept { return counts_; }

  /// u8 phase; the range seen in phase 0; in phase 1 that of phase 1 and the list of u64 counts.
  void write(byte_writer& out) const {
    put_choice(out, phase_);
    seen_[0].write(out);
    if (phase_ == 1) {
      seen_[1].write(out);
      put_list(out, counts_);
    }
  }
  /// Into one that has seen nothing.
  void read(byte_reader& in, const char* where) {
    phase_ = get_choice(in, std::size_t{1}, where);
    seen_[0].read(in);
    if (phase_ == 0) {
      return;
    }
    require_state(
        seen_[0].is_finite() && std::isfinite(seen_[0].range().upper - seen_[0].range().lower),
        where, "a second phase without a range");
    seen_[1].read(in);
    const std::size_t bins = counts_.size();
    counts_ = get_list<std::uint64_t>(in, bins);
    require_state(counts_.size() == bins, where, "the number of bins");
    require_state(are_within(counts_, seen_[1].count()), where, "more was counted than was seen");
  }

  friend bool operator==(const two_phase_histogram&, const two_phase_histogram&) = default;

 private:
  bool symmetric_;
  std::size_t phase_ = 0;
  min_max_observer seen_[2];
  std::vector<std::uint64_t> counts_;
};

}  // namespace detail

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

/// "constant": scale 1 and zero point 0, whatever is observed. It has no options.
class constant_observer {
 public:
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }
  void observe(std::span<const float> x) {
    static_cast<void>(detail::observe_batch(seen_, x, where));
  }
  void merge(const constant_observer& other) noexcept { seen_.merge(other.seen_); }
  /// The range of everything seen, of which nothing is made. Throws invalid_argument if nothing, a
  /// NaN or an infinity was seen.
  [[nodiscard]] value_range range() const { return seen_.range(where); }
  [[nodiscard]] quant_params finalize(quant_scheme /*scheme*/) const noexcept { return {1.0F, 0}; }
  /// The range seen.
  void write(detail::byte_writer& out) const { seen_.write(out); }
  /// Throws bad_file for what write() has not written.
  void read(detail::byte_reader& in) { seen_.read(in); }

  friend bool operator==(const constant_observer&, const constant_observer&) = default;

 private:
  static constexpr const char* where = "ppq::constant_observer";

  detent::min_max_observer seen_;
};

struct percentile_options {
  double percentile = 0.9999;
  friend bool operator==(const percentile_options&, const percentile_options&) = default;
};

/// "percentile". Of each batch of n values in ascending order, x[1] .. x[n]:
///
///   lower  x[trunc(n * (1 - percentile)) + 1]
///   upper  x[min(trunc(n * percentile) + 1, n)]
///
/// with ranks in double; the range is the mean of all lower ones and the mean of all upper ones. In
/// float, added up as PyTorch 1.13 does on a CPU. It depends on how values are split into batches,
/// and in the last bits on their order; hence there is no merge(). (PPQ's CUDA kernel rounds the
/// ranks otherwise.)
///
/// Memory: two floats a batch.
class percentile_observer {
 public:
  /// Throws invalid_argument unless 0 <= percentile <= 1.
  explicit percentile_observer(percentile_options options = {}) : options_(options) {
    require_options(options, error_kind::invalid_argument);
  }

  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  void observe(std::span<const float> x) {
    const detent::min_max_observer batch = detail::observe_batch(seen_, x, where);
    if (!batch.is_finite()) {
      return;
    }
    std::vector<float> values(x.begin(), x.end());
    const std::size_t last = x.size() - 1;
    const auto n = static_cast<double>(x.size());
    const auto low = static_cast<std::size_t>(n * (1.0 - options_.percentile));
    const auto high = static_cast<std::size_t>(n * options_.percentile);
    lower_.push_back(value_of_rank(values, std::min(low, last)));
    upper_.push_back(value_of_rank(values, std::min(high, last)));
  }

  /// Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const {
    static_cast<void>(seen_.range(where));
    return {detail::pytorch::column_mean(lower_), detail::pytorch::column_mean(upper_)};
  }

  /// scale_rule::ppq of the range; throws what params_from_range throws besides.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::ppq);
  }

  /// f64 percentile; the range seen; lists of f32 lower and upper ends of the batches.
  void write(detail::byte_writer& out) const {
    out.put(options_.percentile);
    seen_.write(out);
    detail::put_list(out, lower_);
    detail::put_list(out, upper_);
  }
  /// Throws bad_file for what write() has not written.
  void read(detail::byte_reader& in) {
    percentile_options options;
    options.percentile = in.get<double>();
    require_options(options, error_kind::bad_file);
    percentile_observer next(options);
    next.seen_.read(in);
    next.lower_ = detail::get_finite_list<float>(in, next.seen_.count(), where);
    next.upper_ = detail::get_finite_list<float>(in, next.seen_.count(), where);
    detail::require_state(next.lower_.size() == next.upper_.size() &&
                              (!next.lower_.empty() || !next.seen_.is_finite()),
                          where, "the number of batches");
    *this = std::move(next);
  }

  friend bool operator==(const percentile_observer&, const percentile_observer&) = default;

 private:
  static constexpr const char* where = "ppq::percentile_observer";

  static void require_options(const percentile_options& options, error_kind kind) {
    detail::require(options.percentile >= 0.0 && options.percentile <= 1.0, kind, where,
                    ": percentile ", options.percentile, " is not in 0..1");
  }

  [[nodiscard]] static float value_of_rank(std::vector<float>& values, std::size_t rank) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(values.begin(), at, values.end());
    return *at + 0.0F;  // -0 and 0 have no order among them
  }

  percentile_options options_;
  detent::min_max_observer seen_;
  std::vector<float> lower_;
  std::vector<float> upper_;
};

struct kl_options {
  quant_scheme scheme = default_scheme;  // must be symmetric
  std::size_t bins = 4096;
  bool power_of_two = false;  // PPQ's POWER_OF_2 policy
  friend bool operator==(const kl_options&, const kl_options&) = default;
};

/// "kl", symmetric, in two phases: the first one finds max |x|, the second one counts |x| in `bins`
/// bins on 0 .. max |x|, which are w wide. With B = 2^(bits - 1), bits being what the grid's
/// integers need, and after the first trunc(0.002 * bins) counts were set to 0 and the next one to
/// 1, candidates are r = B, 2 B, ... bins. Of each:
///
///   P  the first r counts, with all others added to the last one
///   Q  the first r counts in B groups of r / B: the sum of the group divided by how many of its
///      counts are not zero, wherever they are not
///
/// both divided by their sums in float. The candidate with the least sum of P * (log10(P + 1e-30) -
/// log10(Q + 1e-30)), in double, wins, the first one of several.
///
///   scale = max(r * w / B, 1e-8), projected to a power of two (half_up) if asked
///
/// (PPQ divides by 128, not by 127.) The scale is that of PPQ to the bit wherever r is. Logarithms
/// are within two units in the last place and sums over 2^24 are exact, which PyTorch's are not:
/// where candidates differ in their last bits, PPQ may choose otherwise. Candidates that consist of
/// cleared counts, as there are below 5 bits, are passed over; PPQ divides zeros by zero there, and
/// what it chooses is up to chance.
///
/// The two phases must see the same data, however split into batches; what lies outside of the
/// range of the first phase is not counted in the second. Neither phase depends on batches.
///
/// Time: O(bins^2 / B) to finalize. Memory: O(bins).
class kl_observer {
 public:
  /// Throws unsupported for an asymmetric scheme, invalid_argument for a grid without zero and
  /// something positive or beyond 17 bits, or unless bins is a multiple of B up to 2^22.
  explicit kl_observer(kl_options options = {})
      : options_(options), histogram_(options.bins, options.scheme.symmetric) {
    detail::require(options.scheme.symmetric, error_kind::unsupported, where,
                    ": PPQ has none that is asymmetric");
    require_options(options, error_kind::invalid_argument);
  }

  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 2; }
  /// Throws invalid_argument if phases are out of order, or as range() does where phase 0 has seen
  /// what has no range.
  void begin_phase(std::size_t phase) { histogram_.begin_phase(phase, where); }
  void observe(std::span<const float> x) { histogram_.observe(x, where); }

  /// -r * w .. r * w, the range that the scale stands for. Throws invalid_argument before phase 1,
  /// or if nothing, a NaN or an infinity was seen in either phase.
  [[nodiscard]] value_range range() const {
    const auto end = static_cast<float>(end_of_range());
    return {-end, end};
  }

  /// The scale is made without a range. `scheme` must be that of the options; throws
  /// invalid_argument otherwise, where range() does, and if the scale overflows.
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
    detail::require(std::isfinite(p.scale), error_kind::invalid_argument, where, ": the scale ",
                    scale, " overflows");
    return p;
  }

  /// The scheme (i32 qmin, i32 qmax, u8 symmetric), u64 bins, u8 power_of_two; u8 phase; the range
  /// seen in phase 0; in phase 1 that of phase 1 and the list of u64 counts.
  void write(detail::byte_writer& out) const {
    detail::put_scheme(out, options_.scheme);
    out.put(static_cast<std::uint64_t>(options_.bins));
    detail::put_choice(out, options_.power_of_two);
    histogram_.write(out);
  }
  /// Throws bad_file for what write() has not written.
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
    detail::require(
        options.bins > 0 && options.bins <= largest_bins && options.bins % multiple == 0, kind,
        where, ": ", options.bins, " bins are not a multiple of ", multiple, " up to 2^22");
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
    std::size_t best = 0;
    double least = 0.0;
    for (std::size_t r = half_levels(); r <= counts.size(); r += half_levels()) {
      if (r <= cleared) {
        continue;
      }
      const double divergence = divergence_of(counts, r);
      if (best == 0 || divergence < least) {
        best = r;
        least = divergence;
      }
    }
    return best;
  }

  [[nodiscard]] double divergence_of(const std::vector<std::uint64_t>& counts,
                                     std::size_t r) const {
    constexpr double little = 1e-30;
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
      for (std::size_t i = begin; i < begin + group_size; ++i) {
        // The share of what lies beyond r joins the last count.
        const std::uint64_t count = counts[i] + (i + 1 == r ? total - kept : 0);
        if (count == 0) {
          continue;  // P is zero, and so is the term
        }
        const float p = static_cast<float>(count) / static_cast<float>(total);
        const float q = counts[i] == 0 ? 0.0F : share / static_cast<float>(kept);
        const double log_p = detail::portable_log(static_cast<double>(p) + little);
        const double log_q = detail::portable_log(static_cast<double>(q) + little);
        sum = std::fma(static_cast<double>(p), (log_p - log_q) / log_of_ten, sum);
      }
    }
    return sum;
  }
  static constexpr double log_of_ten = 0x1.26bb1bbb55516p+1;

  kl_options options_;
  detail::two_phase_histogram histogram_;
};

struct mse_options {
  quant_scheme scheme = default_scheme;
  std::size_t bins = 2048;
  parity behaviour = parity::as_published;
  friend bool operator==(const mse_options&, const mse_options&) = default;
};

/// "mse", in two phases: the first one finds the range, the second one counts x on min .. max, or
/// |x| on 0 .. max |x| if symmetric, in `bins` bins, which are w wide. With L = qmax - qmin + 1
/// levels, candidates are intervals of L * step bins from bin `start`:
///
///   start 0, step bins / L + 1 (the whole range)
///   asymmetric  start = 0, 8, 16 ... while start * w + min <= 0, step = 1 .. bins / L
///   symmetric   start = 0, step = 1 .. bins / L
///
/// as long as they end at most L bins behind the last. Bin i is taken to be off by, in bins,
///
///   i < start        start - i - 1/2
///   i > end          i - end + 1/2
///   else             l + 1/4 if l == r, else min(l, r) + 1/2
///                    with l = (i - start) mod step, r = step - l - 1
///
/// and the first candidate with the least sum of count * error^2 / (number of values) wins. Its
/// range is min + start * w .. min + end * w, or -end * w .. end * w; the scale is that of
/// scale_rule::ppq. In double, the same bits as PPQ without its CUDA kernels.
///
/// Bug of PPQ: symmetric intervals give all L levels to one half of the grid, so that the error is
/// that of half the true step. parity::fixed gives them L / 2 levels, where that is L above.
///
/// The two phases must see the same data, however split into batches; what lies outside of the
/// range of the first phase is not counted in the second. Neither phase depends on batches.
///
/// Time: O(bins^2 * bins / L / 8) to finalize. Memory: O(bins).
class mse_observer {
 public:
  /// Throws invalid_argument for a grid without zero and something positive or beyond 17 bits, or
  /// unless 0 < bins <= 2^16.
  explicit mse_observer(mse_options options = {})
      : options_(options), histogram_(options.bins, options.scheme.symmetric) {
    require_options(options, error_kind::invalid_argument);
  }

  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 2; }
  /// Throws invalid_argument if phases are out of order, or as range() does where phase 0 has seen
  /// what has no range.
  void begin_phase(std::size_t phase) { histogram_.begin_phase(phase, where); }
  void observe(std::span<const float> x) { histogram_.observe(x, where); }

  /// The range of the best candidate, rounded to floats. Throws invalid_argument before phase 1, or
  /// if nothing, a NaN or an infinity was seen in either phase, or nothing in the range of phase 0.
  [[nodiscard]] value_range range() const {
    const auto [lower, upper] = ends();
    return {static_cast<float>(lower), static_cast<float>(upper)};
  }

  /// scale_rule::ppq of the range before it is rounded to floats. `scheme` must be that of the
  /// options; throws invalid_argument otherwise, where range() does, and if the scale overflows.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    detail::require_scheme(scheme, options_.scheme, where);
    const auto [lower, upper] = ends();
    const quant_params p = reference::params_from_ends_ppq(lower, upper, scheme);
    detail::require(std::isfinite(p.scale), error_kind::invalid_argument, where, ": the scale of ",
                    lower, " .. ", upper, " overflows");
    return p;
  }

  /// The scheme (i32 qmin, i32 qmax, u8 symmetric), u64 bins, u8 behaviour; the rest as
  /// kl_observer.
  void write(detail::byte_writer& out) const {
    detail::put_scheme(out, options_.scheme);
    out.put(static_cast<std::uint64_t>(options_.bins));
    detail::put_choice(out, options_.behaviour);
    histogram_.write(out);
  }
  /// Throws bad_file for what write() has not written.
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
    detail::require(options.bins > 0 && options.bins <= largest_bins, kind, where, ": ",
                    options.bins, " bins, not 1..2^16");
  }
  static constexpr std::size_t start_interval = 8;

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
    std::vector<bin> bins;  // that are not empty
    double total = 0.0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] != 0) {
        bins.push_back({i, static_cast<double>(counts[i])});
        total += static_cast<double>(counts[i]);
      }
    }
    detail::require(!bins.empty(), error_kind::invalid_argument, where,
                    ": nothing of phase 1 lies in the range of phase 0");

    const bool symmetric = options_.scheme.symmetric;
    const auto all_levels =
        static_cast<std::size_t>(options_.scheme.levels.qmax - options_.scheme.levels.qmin + 1);
    const bool halve = symmetric && options_.behaviour == parity::fixed;
    const std::size_t levels = halve ? all_levels / 2 : all_levels;
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

struct isotone_options {
  quant_scheme scheme = default_scheme;
  parity behaviour = parity::as_published;
  friend bool operator==(const isotone_options&, const isotone_options&) = default;
};

/// "isotone", for the outputs of classifiers: of each row, the two largest values L1 >= L2 quantize
/// to different levels with scales from L2 / (qmax - 0.51) (or 0 if that is negative) to
/// 2 * (L1 - max(L2, 0)). Rows with an empty interval or without a positive L1 are left out. The
/// scale is the lower end at which most intervals overlap, the least one of several; zero_point =
/// 0. Where an interval ends as another begins, they do not overlap. Without any interval, the
/// scale is that of the range 0 .. L1. In double; the difference in float.
///
/// Bugs of PPQ: for a symmetric scheme, L1 and L2 are the magnitudes of the two largest values, not
/// the two largest magnitudes. The range without any interval is that of the last row. Where most
/// intervals begin at 0, the scale is 0; finalize() then throws invalid_argument. parity::fixed
/// takes the two largest magnitudes, the largest L1 of all rows, and instead of 0 the next end of
/// an interval.
///
/// The range is that of the fallback, since the scale is not made of one. Batches make no
/// difference, but the order of rows does for the bug of the last one; hence merge() for
/// parity::fixed only.
///
/// Time: O(rows * log(rows)) to finalize. Memory: two floats a row.
///
/// Source: besides the tool, NumPy 1, which divides a float by a number of Python in double.
class isotone_observer {
 public:
  /// Throws invalid_argument for a grid without zero and something positive or beyond 17 bits.
  explicit isotone_observer(isotone_options options = {}) : options_(options) {
    detail::require_levels(options.scheme, where);
  }

  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Rows of `row_length` values, one behind the other. Throws invalid_argument if a row is shorter
  /// than two, shape_mismatch if x is not a whole number of rows.
  void observe(std::span<const float> x, std::size_t row_length) {
    detail::require(row_length >= 2, error_kind::invalid_argument, where, ": rows of ", row_length,
                    " have no second value");
    detail::require(x.size() % row_length == 0, error_kind::shape_mismatch, where, ": ", x.size(),
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
  /// One row.
  void observe(std::span<const float> x) { observe(x, x.size()); }
  /// Rows along the last axis.
  void observe(tensor_view<const float> x) {
    const std::vector<float> values = detail::floats_of(x);
    if (!values.empty()) {
      observe(values, x.shape[x.rank - 1]);
    }
  }

  /// As if everything that `other` has seen had been seen here. Throws invalid_argument unless both
  /// have equal options with parity::fixed.
  void merge(const isotone_observer& other) {
    detail::require(options_ == other.options_ && options_.behaviour == parity::fixed,
                    error_kind::invalid_argument, where,
                    ": only observers with equal options and parity::fixed can be merged");
    seen_.merge(other.seen_);
    const std::vector<top_two> rows = other.rows_;  // which may be these
    rows_.insert(rows_.end(), rows.begin(), rows.end());
  }

  /// 0 .. L1 of the last row, or the largest L1 with parity::fixed; 0 .. 0 if that is negative.
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

  /// `scheme` must be that of the options; throws invalid_argument otherwise, where range() does,
  /// and if the scale is zero or overflows.
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
    detail::require(p.scale > 0.0F && std::isfinite(p.scale), error_kind::invalid_argument, where,
                    ": the scale is ", scale);
    return p;
  }

  /// The scheme (i32 qmin, i32 qmax, u8 symmetric), u8 behaviour; the range seen; the list of f32
  /// L1 and L2, row after row.
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
  /// Throws bad_file for what write() has not written.
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

#endif  // DETENT_OBSERVERS_PPQ_HPP
