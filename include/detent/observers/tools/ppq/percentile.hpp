// SPDX-License-Identifier: BSD-3-Clause
// PPQ's observer of percentiles. The head of observers/tools/ppq.hpp says what all PPQ observers
// have in common.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_PERCENTILE_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_PERCENTILE_HPP

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/observers/tools/torch_arithmetic.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ppq {

/// Options of ppq::percentile_observer.
struct percentile_options {
  double percentile = 0.9999;  ///< the upper quantile of each batch, in 0..1 (not in percent)
  friend bool operator==(const percentile_options&, const percentile_options&) = default;
};

/// Reproduces PPQ's "percentile". For each batch of n values in ascending order, x[1] .. x[n], it
/// takes
///
///     lower  x[trunc(n * (1 - percentile)) + 1]
///     upper  x[min(trunc(n * percentile) + 1, n)]
///
/// with ranks in double (lower limited to x[n] as well). The range is the mean of all lower values
/// and the mean of all upper values, in float, added up as PyTorch 1.13 does on a CPU. It depends
/// on how values are split into batches, and in the last bits on the order of batches; hence there
/// is append(), but no merge(). PPQ's CUDA kernel rounds the ranks differently.
///
/// Memory: two floats a batch. Not thread-safe.
class percentile_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// Throws invalid_argument unless 0 <= percentile <= 1.
  explicit percentile_observer(percentile_options options = {}) : options_(options) {
    require_options(options, error_kind::invalid_argument);
  }

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Observes one batch; an empty one changes nothing, a NaN or an infinity makes range() throw.
  /// Throws invalid_argument for null data.
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

  /// Afterwards this observer is in the state it would have if the batches of `later` had come
  /// after its own. Throws invalid_argument if `later` has other options.
  void append(const percentile_observer& later) {
    require(options_ == later.options_, error_kind::invalid_argument, where,
            ": appending other options");
    const percentile_observer batches = later;  // it may be this object
    seen_.merge(batches.seen_);
    lower_.insert(lower_.end(), batches.lower_.begin(), batches.lower_.end());
    upper_.insert(upper_.end(), batches.upper_.begin(), batches.upper_.end());
  }

  /// The means of the batches' lower and upper values. Throws invalid_argument if nothing, a NaN or
  /// an infinity was seen.
  [[nodiscard]] value_range range() const {
    static_cast<void>(seen_.range(where));
    return {detail::pytorch::column_mean(lower_), detail::pytorch::column_mean(upper_)};
  }

  /// Scale and zero point of range() by scale_rule::ppq. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::ppq);
  }

  /// Appends f64 percentile; the range seen; lists of f32 lower and upper values of the batches.
  void write(detail::byte_writer& out) const {
    out.put(options_.percentile);
    seen_.write(out);
    detail::put_list(out, lower_);
    detail::put_list(out, upper_);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
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
    require(options.percentile >= 0.0 && options.percentile <= 1.0, kind, where, ": percentile ",
            options.percentile, " is not in 0..1");
  }

  [[nodiscard]] static float value_of_rank(std::vector<float>& values, std::size_t rank) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(values.begin(), at, values.end());
    return *at + 0.0F;  // makes -0 +0: the two have no order among them
  }

  percentile_options options_;
  detent::min_max_observer seen_;
  std::vector<float> lower_;
  std::vector<float> upper_;
};

}  // namespace ppq
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_PERCENTILE_HPP
