// SPDX-License-Identifier: BSD-3-Clause
// How NNCF finds the range of a value from samples.
#ifndef DETENT_GRAPH_NNCF_RANGE_ESTIMATOR_HPP
#define DETENT_GRAPH_NNCF_RANGE_ESTIMATOR_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/tools/nncf.hpp>
#include <detent/observers/tools/torch.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// Of each end of a range: a statistic of each sample and what is made of the samples' statistics;
/// see detent::nncf::range_observer.
struct range_estimator {
  detent::nncf::range_options ends = detent::nncf::mean_min_max;
  /// PyTorch's search in a histogram of 2048 bins instead (torch::histogram_observer).
  bool histogram = false;
  /// Both ends are clamped to -clipping .. clipping at last.
  std::optional<float> clipping = std::nullopt;
};

/// NNCF's presets.
inline constexpr range_estimator min_max{.ends = detent::nncf::min_max};
inline constexpr range_estimator mean_min_max{.ends = detent::nncf::mean_min_max};
inline constexpr range_estimator median_min_max{.ends = detent::nncf::median_min_max};
inline constexpr range_estimator mean_no_outliers_min_max{
    .ends = detent::nncf::mean_no_outliers_min_max};
inline constexpr range_estimator mean_quantile{.ends = detent::nncf::mean_quantile};
inline constexpr range_estimator histogram{.histogram = true};

/// A range estimator at work. A call of observe() is one sample, or with `items` a batch: then each
/// index of the first dimension is a sample.
class range_estimator_observer {
 public:
  /// `symmetric`: the statistic max becomes abs_max. Throws invalid_argument for a clipping that is
  /// negative, zero or not finite, and what detent::nncf::range_observer throws.
  explicit range_estimator_observer(const range_estimator& estimator, bool symmetric = false,
                                    bool items = false)
      : inner_(inner(estimator, symmetric)), clipping_(estimator.clipping), items_(items) {
    detent::require(!clipping_ || (std::isfinite(*clipping_) && *clipping_ > 0.0F),
                    error_kind::invalid_argument, "range_estimator: clipping ",
                    clipping_.value_or(0.0F), " is not a positive finite number");
  }

  void observe(tensor_view<const float> x) {
    if (!items_ || x.rank == 0) {
      inner_.observe(x);
      return;
    }
    const std::span<const std::size_t> shape(x.shape.data() + 1, x.rank - 1);
    const std::span<const std::ptrdiff_t> strides(x.strides.data() + 1, x.rank - 1);
    for (std::size_t i = 0; i < x.shape[0]; ++i) {
      inner_.observe(tensor_view<const float>(
          x.data + static_cast<std::ptrdiff_t>(i) * x.strides[0], shape, strides));
    }
  }

  /// Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const {
    const auto* ends = inner_.target<detent::nncf::range_observer>();
    const value_range r =
        ends != nullptr ? ends->range() : inner_.target<torch::histogram_observer>()->range();
    if (!clipping_) {
      return r;
    }
    return {std::clamp(r.lower, -*clipping_, *clipping_),
            std::clamp(r.upper, -*clipping_, *clipping_)};
  }
  /// scale_rule::nncf of the range; throws what params_from_range throws besides.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::nncf);
  }

 private:
  [[nodiscard]] static any_observer inner(const range_estimator& estimator, bool symmetric) {
    if (estimator.histogram) {
      return any_observer(torch::histogram_observer());
    }
    detent::nncf::range_options ends = estimator.ends;
    ends.use_abs_max = ends.use_abs_max || symmetric;
    return any_observer(detent::nncf::range_observer(ends));
  }

  any_observer inner_;
  std::optional<float> clipping_;
  bool items_;
};

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_RANGE_ESTIMATOR_HPP
