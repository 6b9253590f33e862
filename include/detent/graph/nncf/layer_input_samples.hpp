// SPDX-License-Identifier: BSD-3-Clause
// The inputs of layers over the calibration samples, as NNCF's activation-aware methods see them:
// one mean for each channel and sample.
//
// Means are computed in double here and in float32 by NNCF.
//
// Source: NNCF 3.4, quantization/algorithms/weight_compression/activation_stats.py.
#ifndef DETENT_GRAPH_NNCF_LAYER_INPUT_SAMPLES_HPP
#define DETENT_GRAPH_NNCF_LAYER_INPUT_SAMPLES_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// The means of the channels of one value, the last dimension, for each sample.
class layer_input_samples {
 public:
  /// Adds a sample of the value that `name` names: float32 with at least one element. Throws
  /// shape_mismatch if it has no dimensions, or another number of channels than those before.
  void add(const std::string& name, const tensor& value) {
    require(value.rank() > 0, error_kind::shape_mismatch, "tensor '", name,
            "', the input of a layer, has no dimensions");
    const auto channels = static_cast<std::size_t>(value.dims().back());
    const std::size_t before = means_.empty() ? channels : means_.front().size();
    require(before == channels, error_kind::shape_mismatch, "tensor '", name, "' has ", channels,
            " channels where it had ", before);
    const std::span<const float> x = value.data<float>();
    const std::size_t rows = x.size() / channels;
    std::vector<double> sums(channels, 0.0);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < channels; ++c) {
        sums[c] += x[r * channels + c];
      }
    }
    std::vector<float> means(channels);
    std::transform(sums.begin(), sums.end(), means.begin(),
                   [&](double sum) { return static_cast<float>(sum / static_cast<double>(rows)); });
    means_.push_back(std::move(means));
    rows_.push_back(rows);
  }

  /// Multiplies all channels by factors of their own.
  void scale(std::span<const float> factors) {
    for (std::vector<float>& means : means_) {
      for (std::size_t c = 0; c < means.size(); ++c) {
        means[c] *= factors[c];
      }
    }
  }

  /// Whether there is no sample.
  [[nodiscard]] bool is_empty() const noexcept { return means_.empty(); }

  /// The largest |mean| of each channel.
  [[nodiscard]] std::vector<float> magnitudes() const {
    std::vector<float> largest(means_.front().size(), 0.0F);
    for (const std::vector<float>& means : means_) {
      for (std::size_t c = 0; c < means.size(); ++c) {
        largest[c] = (std::max)(largest[c], std::abs(means[c]));
      }
    }
    return largest;
  }

  /// The means of the channels, sample by sample. If there are more than `limit` samples, only each
  /// (count / limit)-th of them, beginning with those that have the most rows.
  [[nodiscard]] std::vector<std::vector<float>> means(std::size_t limit) const {
    if (means_.size() <= limit) {
      return means_;
    }
    std::vector<std::size_t> order(means_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return rows_[a] > rows_[b]; });
    std::vector<std::vector<float>> chosen;
    for (std::size_t i = 0; i < order.size(); i += means_.size() / limit) {
      chosen.push_back(means_[order[i]]);
    }
    return chosen;
  }

 private:
  std::vector<std::vector<float>> means_;
  std::vector<std::size_t> rows_;
};

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_LAYER_INPUT_SAMPLES_HPP
