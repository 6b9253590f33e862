// SPDX-License-Identifier: BSD-3-Clause
// Moments and a histogram of a set of values, computed in two passes over the values.
#ifndef DETENT_GRAPH_PPQ_STATISTICS_HPP
#define DETENT_GRAPH_PPQ_STATISTICS_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/ppq/policy.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// Number of bins of value_statistics::histogram.
inline constexpr std::size_t statistics_bins = 32;

/// Statistics of n values x, computed in double with sums in the order of the values. The formulas
/// of the members use m, the mean, and s, the standard deviation.
struct value_statistics {
  std::uint64_t count = 0;          ///< The number of values, n.
  double mean = 0.0;                ///< m = sum x / n.
  double standard_deviation = 0.0;  ///< s = sqrt(sum (x - m)^2 / n).
  double minimum = 0.0;             ///< The smallest value.
  double maximum = 0.0;             ///< The largest value.
  double skewness = 0.0;            ///< sum ((x - m) / s)^3 / n, or 0 if s is 0.
  /// sum ((x - m) / s)^4 / n, or 0 if s is 0. It is 3 for a normal distribution.
  double kurtosis = 0.0;
  /// The number of values in each of 32 bins of equal width from minimum to maximum. The maximum
  /// belongs to the last bin. If all values are equal, they are in the first bin.
  std::array<std::uint64_t, statistics_bins> histogram{};
  /// Whether all members are equal.
  friend bool operator==(const value_statistics&, const value_statistics&) = default;
};

/// Collects value_statistics. observe() has to see all values, then, after begin_second_pass(), the
/// same values once more. Not thread-safe.
class statistics_collector {
 public:
  /// Begins the second pass. Throws invalid_argument if no value was observed.
  void begin_second_pass() {
    require(count_ > 0, error_kind::invalid_argument, "statistics_collector: there are no values");
    second_ = true;
    mean_ = sum_ / static_cast<double>(count_);
  }

  /// Observes values of type float or double. Throws invalid_argument for a NaN or an infinity, and
  /// in the second pass for a value outside the range of the first pass.
  template <class Real>
  void observe(std::span<const Real> x) {
    for (const Real value : x) {
      const auto v = static_cast<double>(value);
      require(std::isfinite(v), error_kind::invalid_argument, "statistics_collector: the value ", v,
              " is not finite");
      if (second_) {
        add_second(v);
      } else {
        ++count_;
        sum_ += v;
        minimum_ = (std::min)(minimum_, v);
        maximum_ = (std::max)(maximum_, v);
      }
    }
  }

  /// The statistics. Throws invalid_argument unless the second pass had as many values as the first
  /// one.
  [[nodiscard]] value_statistics result() const {
    require(second_ && seen_again_ == count_, error_kind::invalid_argument,
            "statistics_collector: ", seen_again_, " values in the second pass, ", count_,
            " in the first");
    const auto n = static_cast<double>(count_);
    value_statistics s;
    s.count = count_;
    s.mean = mean_;
    s.standard_deviation = std::sqrt(squares_ / n);
    s.minimum = minimum_;
    s.maximum = maximum_;
    if (s.standard_deviation > 0.0) {
      const double variance = squares_ / n;
      s.skewness = cubes_ / n / (variance * s.standard_deviation);
      s.kurtosis = fourths_ / n / (variance * variance);
    }
    s.histogram = histogram_;
    return s;
  }

 private:
  void add_second(double v) {
    using detent::detail::rounded_product;
    require(v >= minimum_ && v <= maximum_, error_kind::invalid_argument,
            "statistics_collector: the value ", v, " was not in the first pass");
    ++seen_again_;
    const double d = v - mean_;
    const double square = rounded_product(d, d);
    squares_ += square;
    cubes_ += rounded_product(square, d);
    fourths_ += rounded_product(square, square);
    const double length = maximum_ - minimum_;
    const double bins = static_cast<double>(statistics_bins);
    const auto bin =
        length > 0.0 ? static_cast<std::size_t>((v - minimum_) / length * bins) : std::size_t{0};
    ++histogram_[(std::min)(bin, statistics_bins - 1)];
  }

  bool second_ = false;
  std::uint64_t count_ = 0;
  std::uint64_t seen_again_ = 0;
  double sum_ = 0.0;
  double mean_ = 0.0;
  double minimum_ = std::numeric_limits<double>::infinity();
  double maximum_ = -std::numeric_limits<double>::infinity();
  double squares_ = 0.0;
  double cubes_ = 0.0;
  double fourths_ = 0.0;
  std::array<std::uint64_t, statistics_bins> histogram_{};
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_STATISTICS_HPP
