// SPDX-License-Identifier: BSD-3-Clause
// How sensitive layers are to the precision of their weights, and which of them get the primary
// precision of compress_weights().
//
// Sums are computed in double here and in float32 by NNCF, so that scores differ by rounding:
// layers whose scores agree to about six digits can change places.
//
// Source: NNCF 3.4, quantization/algorithms/weight_compression/mixed_precision.py.
#ifndef DETENT_GRAPH_NNCF_LAYER_SENSITIVITY_HPP
#define DETENT_GRAPH_NNCF_LAYER_SENSITIVITY_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/graph/nncf/weight_groups.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// What the weights of a layer contribute to its sensitivity. `channels` has a group for each
/// channel.
[[nodiscard]] inline double weight_score(std::span<const float> weights,
                                         const weight_groups& channels, sensitivity_metric metric) {
  const integer_weights q = quantize_by_range(weights, channels, integer_mode{8, true});
  const std::vector<double> errors = squared_errors(weights, channels, q);
  if (metric == sensitivity_metric::hessian_input_activation) {
    return std::sqrt(std::accumulate(errors.begin(), errors.end(), 0.0));
  }
  const double largest =
      *std::max_element(errors.begin(), errors.end()) / static_cast<double>(channels.size());
  return 1.0F / (static_cast<float>(largest) + std::numeric_limits<float>::epsilon());
}

/// What the inputs of layers contribute to their sensitivity.
class activation_scores {
 public:
  /// Scores the values of these names. `metric` is one that needs samples.
  activation_scores(sensitivity_metric metric, const std::set<std::string>& values)
      : metric_(metric) {
    for (const std::string& value : values) {
      sums_[value] = {};
    }
  }

  /// Adds what one sample shows of a value; values of other names are passed over. Throws
  /// invalid_argument for a value with fewer than two dimensions.
  void add(const std::string& name, const tensor& value) {
    const auto found = sums_.find(name);
    if (found == sums_.end()) {
      return;
    }
    require(value.rank() >= 2, error_kind::invalid_argument, "tensor '", name, "' of shape ",
            shown(value.dims()),
            ": a sensitivity metric that needs samples takes inputs of two or more dimensions");
    found->second.sum += score(value);
    ++found->second.count;
  }

  /// The mean over the samples.
  [[nodiscard]] double mean(const std::string& name) const {
    const total& t = sums_.at(name);
    require(t.count > 0, error_kind::invalid_argument, "tensor '", name,
            "' has no values in the samples");
    return t.sum / static_cast<double>(t.count);
  }

 private:
  struct total {
    double sum = 0.0;
    std::size_t count = 0;
  };

  [[nodiscard]] double score(const tensor& value) const {
    const std::span<const float> x = value.data<float>();
    if (metric_ == sensitivity_metric::hessian_input_activation) {
      double squares = 0.0;
      for (const float v : x) {
        squares += static_cast<double>(v) * v;
      }
      return 2.0 * squares / static_cast<double>(x.size());
    }
    const auto rows = static_cast<std::size_t>(value.dim(value.rank() - 2));
    const auto columns = static_cast<std::size_t>(value.dim(value.rank() - 1));
    double sum = 0.0;
    double largest = 0.0;
    const std::size_t matrices = x.size() / (rows * columns);
    for (std::size_t k = 0; k < matrices; ++k) {
      for (std::size_t c = 0; c < columns; ++c) {
        const double s = column_score(x.subspan(k * rows * columns + c), rows, columns);
        sum += s;
        largest = (std::max)(largest, s);
      }
    }
    return metric_ == sensitivity_metric::max_activation_variance
               ? largest
               : sum / static_cast<double>(matrices * columns);
  }

  /// The variance, or the largest magnitude, of x[0], x[stride], ...
  [[nodiscard]] double column_score(std::span<const float> x, std::size_t rows,
                                    std::size_t stride) const {
    double sum = 0.0;
    double largest = 0.0;
    for (std::size_t r = 0; r < rows; ++r) {
      sum += x[r * stride];
      largest = (std::max)(largest, std::abs(static_cast<double>(x[r * stride])));
    }
    if (metric_ == sensitivity_metric::mean_activation_magnitude) {
      return largest;
    }
    const double mean = sum / static_cast<double>(rows);
    double squares = 0.0;
    for (std::size_t r = 0; r < rows; ++r) {
      squares += (x[r * stride] - mean) * (x[r * stride] - mean);
    }
    return squares / static_cast<double>(rows);
  }

  sensitivity_metric metric_;
  std::map<std::string, total> sums_;
};

/// The layers that get the primary precision, by index: the least sensitive ones, the first of
/// equals first, as long as their weights are less than `ratio` of all weights.
[[nodiscard]] inline std::set<std::size_t> least_sensitive(const std::vector<double>& scores,
                                                           const std::vector<std::size_t>& counts,
                                                           double ratio) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  const auto all =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  std::set<std::size_t> chosen;
  std::size_t weights = 0;
  for (const std::size_t i : order) {
    weights += counts[i];
    if (static_cast<double>(weights) / all >= ratio) {
      break;
    }
    chosen.insert(i);
  }
  return chosen;
}

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_LAYER_SENSITIVITY_HPP
