// SPDX-License-Identifier: BSD-3-Clause
// NNCF's range estimators, which find the range of a value from samples: their presets, and the
// observer that carries one out.
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

/// How the range of a value is found from samples: each end of the range is a statistic of each
/// sample, aggregated over the samples, as detent::nncf::range_observer computes it.
struct range_estimator {
  /// The statistic and the aggregator of the lower and of the upper end.
  detent::nncf::range_options ends = detent::nncf::mean_min_max;
  /// Ignores `ends` and takes the range from PyTorch's search in a histogram of 2048 bins
  /// (torch::histogram_observer).
  bool histogram = false;
  /// If given, both ends of the final range are clamped to -clipping .. clipping. It must be
  /// positive and finite.
  std::optional<float> clipping = std::nullopt;
};

/// NNCF's preset "min_max": the smallest value of all samples to the largest value of all samples.
inline constexpr range_estimator min_max{.ends = detent::nncf::min_max};
/// NNCF's preset "mean_min_max": the mean of the samples' minima to the mean of their maxima.
inline constexpr range_estimator mean_min_max{.ends = detent::nncf::mean_min_max};
/// NNCF's preset "median_min_max": the median of the samples' minima to the median of their maxima.
inline constexpr range_estimator median_min_max{.ends = detent::nncf::median_min_max};
/// NNCF's preset "mean_no_outliers_min_max": the means of the samples' minima and of their maxima,
/// without the minima and maxima that lie outside their quantiles 1e-4 and 1 - 1e-4.
inline constexpr range_estimator mean_no_outliers_min_max{
    .ends = detent::nncf::mean_no_outliers_min_max};
/// NNCF's preset "mean_quantile": the mean of the samples' quantiles 1e-4 to the mean of their
/// quantiles 1 - 1e-4.
inline constexpr range_estimator mean_quantile{.ends = detent::nncf::mean_quantile};
/// NNCF's preset "histogram": PyTorch's search in a histogram of 2048 bins.
inline constexpr range_estimator histogram{.histogram = true};

/// Carries out a range estimator: observes samples, then computes the range and the parameters. An
/// observer is a value and not thread-safe; use one per thread.
class range_estimator_observer {
 public:
  /// Makes an observer that has seen nothing.
  ///
  /// With `symmetric`, the statistic max of the upper end becomes abs_max, the largest |x|. With
  /// `items`, each index of the first dimension of an observed tensor is a sample; otherwise each
  /// call of observe() is a sample. Throws invalid_argument for a clipping that is negative, zero
  /// or not finite, and what detent::nncf::range_observer throws.
  explicit range_estimator_observer(const range_estimator& estimator, bool symmetric = false,
                                    bool items = false)
      : inner_(inner(estimator, symmetric)), clipping_(estimator.clipping), items_(items) {
    detent::require(!clipping_ || (std::isfinite(*clipping_) && *clipping_ > 0.0F),
                    error_kind::invalid_argument, "range_estimator: clipping ",
                    clipping_.value_or(0.0F), " is not a positive finite number");
  }

  /// Observes one sample, or, if the observer was made with `items` and x has at least one
  /// dimension, each x[i, ...] as a sample. A NaN or an infinity in x makes range() throw.
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

  /// The range of what was observed, clamped if the estimator has a clipping. It need not include
  /// zero, and quantiles or aggregators that differ at the two ends can make lower > upper. Throws
  /// invalid_argument if no value, a NaN or an infinity was observed.
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
  /// The scale and zero point of range() by NNCF's rule, scale_rule::nncf. Throws what range() and
  /// params_from_range() throw.
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
