// SPDX-License-Identifier: BSD-3-Clause
// Gaussian-process regression and expected improvement, by which the bayesian strategy of tune()
// chooses its next trial.
//
// Source: Jones, Schonlau and Welch, "Efficient global optimization of expensive black-box
// functions", Journal of Global Optimization, 1998.
#ifndef DETENT_GRAPH_QUANTIZE_GAUSSIAN_PROCESS_HPP
#define DETENT_GRAPH_QUANTIZE_GAUSSIAN_PROCESS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Phi(z), the distribution function of the standard normal distribution, to about 1e-7. Source:
/// Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.17.
[[nodiscard]] inline double normal_distribution(double z) {
  using detent::detail::portable_exp;
  using detent::detail::rounded_product;
  const double x = std::fabs(z);
  const double t = 1.0 / (1.0 + rounded_product(0.2316419, x));
  double sum = 1.330274429;
  for (const double coefficient : {-1.821255978, 1.781477937, -0.356563782, 0.319381530}) {
    sum = rounded_product(sum, t) + coefficient;
  }
  const double density = 0.3989422804014327 * portable_exp(rounded_product(-0.5 * x, x));
  const double tail = rounded_product(rounded_product(sum, t), density);
  return z > 0.0 ? 1.0 - tail : tail;
}

/// A Gaussian process with the kernel exp(-|x - y|^2 / (2 length^2)) and noise 1e-6, fitted to
/// values that are scaled to mean 0 and variance 1. Points have one coordinate in [0, 1] for each
/// dimension; `length` is half the square root of their number.
class gaussian_process {
 public:
  /// Fits `values` at `points`; there is at least one.
  gaussian_process(std::vector<std::vector<double>> points, const std::vector<double>& values)
      : points_(std::move(points)) {
    const std::size_t n = points_.size();
    for (const double v : values) {
      mean_ += v / static_cast<double>(n);
    }
    double variance = 0.0;
    for (const double v : values) {
      variance += detent::detail::rounded_product(v - mean_, v - mean_) / static_cast<double>(n);
    }
    deviation_ = variance > 0.0 ? std::sqrt(variance) : 1.0;
    // Cholesky's decomposition of the kernel matrix, row by row.
    factor_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      factor_[i].resize(i + 1);
      for (std::size_t j = 0; j <= i; ++j) {
        const double k = kernel(points_[i], points_[j]) + (i == j ? 1e-6 : 0.0);
        const double rest =
            k - detent::detail::ordered_dot(j, factor_[i].data(), factor_[j].data());
        factor_[i][j] = i == j ? std::sqrt((std::max)(rest, 1e-12)) : rest / factor_[j][j];
      }
    }
    for (const double v : values) {
      weights_.push_back((v - mean_) / deviation_);
    }
    solve_lower(weights_);
    for (std::size_t i = n; i-- > 0;) {  // the transposed factor
      double sum = weights_[i];
      for (std::size_t j = i + 1; j < n; ++j) {
        sum -= detent::detail::rounded_product(factor_[j][i], weights_[j]);
      }
      weights_[i] = sum / factor_[i][i];
    }
  }

  /// The expected amount by which the value at `point` exceeds `best`, in standard deviations of
  /// the fitted values.
  [[nodiscard]] double expected_improvement(const std::vector<double>& point, double best) const {
    using detent::detail::rounded_product;
    std::vector<double> k;
    for (const std::vector<double>& p : points_) {
      k.push_back(kernel(p, point));
    }
    const double mean = detent::detail::ordered_dot(k.size(), k.data(), weights_.data());
    solve_lower(k);
    const double explained = detent::detail::ordered_dot(k.size(), k.data(), k.data());
    const double deviation = std::sqrt((std::max)(1.0 - explained, 1e-12));
    const double gain = mean - (best - mean_) / deviation_;
    const double z = gain / deviation;
    const double density =
        0.3989422804014327 * detent::detail::portable_exp(rounded_product(-0.5 * z, z));
    return rounded_product(gain, normal_distribution(z)) + rounded_product(deviation, density);
  }

 private:
  [[nodiscard]] static double kernel(const std::vector<double>& a, const std::vector<double>& b) {
    double distance = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      distance += detent::detail::rounded_product(a[i] - b[i], a[i] - b[i]);
    }
    // 2 length^2 = dimensions / 2.
    return detent::detail::portable_exp(-2.0 * distance / static_cast<double>(a.size()));
  }

  /// Replaces v by the solution x of factor * x = v.
  void solve_lower(std::vector<double>& v) const {
    for (std::size_t i = 0; i < v.size(); ++i) {
      v[i] = (v[i] - detent::detail::ordered_dot(i, factor_[i].data(), v.data())) / factor_[i][i];
    }
  }

  std::vector<std::vector<double>> points_;
  double mean_ = 0.0;
  double deviation_ = 1.0;
  std::vector<std::vector<double>> factor_;  // lower triangle
  std::vector<double> weights_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_GAUSSIAN_PROCESS_HPP
