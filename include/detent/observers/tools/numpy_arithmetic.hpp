// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic of NumPy 2 for arrays of floats, reproduced operation by operation, since tools that
// are written in Python get the last bits of their ranges from it.
#ifndef DETENT_OBSERVERS_TOOLS_NUMPY_ARITHMETIC_HPP
#define DETENT_OBSERVERS_TOOLS_NUMPY_ARITHMETIC_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail::numpy {

/// np.sum of a dense array: up to 8 values are added one after the other, up to 128 in eight
/// partial sums, more in two halves, the first of which has a multiple of 8 values.
template <class T>
[[nodiscard]] T sum(std::span<const T> x) noexcept {
  constexpr std::size_t lanes = 8;
  constexpr std::size_t block = 128;
  const std::size_t n = x.size();
  if (n > block) {
    const std::size_t half = n / 2 - n / 2 % lanes;
    return sum(x.first(half)) + sum(x.subspan(half));
  }
  std::size_t i = 0;
  T total = 0;
  if (n >= lanes) {
    T s[lanes] = {};
    for (; i < n - n % lanes; i += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        s[lane] += x[i + lane];
      }
    }
    total = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
  for (; i < n; ++i) {
    total += x[i];
  }
  return total;
}
template <class T>
[[nodiscard]] T sum(const std::vector<T>& x) noexcept {
  return sum(std::span<const T>(x));
}

/// np.mean of a dense array with at least one value. The quotient of a float and a count is rounded
/// to double first; this does not change it for counts below 2^24, and NumPy does the same for
/// larger ones.
[[nodiscard]] inline float mean(std::span<const float> x) noexcept {
  return static_cast<float>(static_cast<double>(sum(x)) / static_cast<double>(x.size()));
}

/// NumPy's a // b for b > 0.
[[nodiscard]] inline float floor_divide(float a, float b) noexcept {
  const float remainder = std::fmod(a, b);
  const float quotient = (a - remainder) / b - (remainder < 0.0F ? 1.0F : 0.0F);
  const float floor = std::floor(quotient);
  return quotient - floor > 0.5F ? floor + 1.0F : floor;
}

/// The position of the first value of a sorted array that is not below `x`.
template <class T>
[[nodiscard]] std::size_t search_sorted(const std::vector<T>& sorted, T x) {
  return static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), x) -
                                  sorted.begin());
}

/// np.quantile of sorted values, in double: interpolates linearly between the two values around
/// position (n - 1) * q.
[[nodiscard]] inline double quantile(std::span<const double> sorted, double q) noexcept {
  const std::size_t last = sorted.size() - 1;
  const double position = rounded_product(static_cast<double>(last), q);
  const auto below = std::min(static_cast<std::size_t>(position), last);
  const std::size_t above = std::min(below + 1, last);
  const double t = position - static_cast<double>(below);
  const double step = sorted[above] - sorted[below];
  return t < 0.5 ? sorted[below] + rounded_product(step, t)
                 : sorted[above] - rounded_product(step, 1.0 - t);
}

/// The bins of np.histogram for a number of bins and a range; an empty range is widened by 1/2 on
/// either side.
class uniform_bins {
 public:
  uniform_bins() = default;
  /// Throws an error of `kind` if the range overflows a float or has too few floats for the bins.
  uniform_bins(float first, float last, std::size_t bins, const char* where,
               error_kind kind = error_kind::invalid_argument)
      : first_(first == last ? first - 0.5F : first), last_(first == last ? last + 0.5F : last) {
    const float length = last_ - first_;
    require(std::isfinite(length), kind, where, ": the range ", first, " .. ", last,
            " is too long for a float");
    const auto count = static_cast<float>(bins);
    const float step = length / count;
    edges_.resize(bins + 1);
    for (std::size_t i = 0; i < bins; ++i) {
      const auto at = static_cast<float>(i);
      const float distance =
          step == 0.0F ? rounded_product(at / count, length) : rounded_product(at, step);
      edges_[i] = distance + first_;
    }
    edges_[bins] = last_;
    for (std::size_t i = 0; i < bins; ++i) {
      require(edges_[i] < edges_[i + 1], kind, where, ": ", bins,
              " bins are too many for the range ", first_, " .. ", last_,
              ": no float lies between some of their edges");
    }
  }

  [[nodiscard]] const std::vector<float>& edges() const noexcept { return edges_; }

  /// Counts the values that lie in the range.
  void count(std::span<const float> x, std::span<std::uint64_t> counts) const noexcept {
    const std::size_t bins = edges_.size() - 1;
    const auto bins_in_float = static_cast<float>(bins);
    const float length = last_ - first_;
    for (const float value : x) {
      if (!(value >= first_ && value <= last_)) {
        continue;
      }
      auto bin = static_cast<std::size_t>((value - first_) / length * bins_in_float);
      bin -= bin == bins ? 1U : 0U;
      // Rounding may have put a value next to an edge on the wrong side of it.
      bin -= value < edges_[bin] ? 1U : 0U;
      bin += bin + 1 != bins && value >= edges_[bin + 1] ? 1U : 0U;
      ++counts[bin];
    }
  }

  friend bool operator==(const uniform_bins&, const uniform_bins&) = default;

 private:
  float first_ = 0.0F;
  float last_ = 0.0F;
  std::vector<float> edges_;
};

/// np.arange(start, stop, step) of floats: the number of values and the second value are computed
/// in float, the values in double.
[[nodiscard]] inline std::vector<double> arange(float start, float stop, float step) {
  const float count = std::ceil((stop - start) / step);
  std::vector<double> values(count > 0.0F ? static_cast<std::size_t>(count) : 0);
  const double first = start;
  const double distance = static_cast<double>(start + step) - first;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = first + rounded_product(static_cast<double>(i), distance);
  }
  return values;
}

/// np.histogram with given edges, which must not decrease: a bin includes its lower edge, the last
/// bin both edges.
inline void count_between(std::span<const double> edges, std::span<const float> x,
                          std::span<std::uint64_t> counts) {
  for (const float value : x) {
    const double v = value;
    if (v < edges.front() || v > edges.back()) {
      continue;
    }
    const auto above = std::upper_bound(edges.begin(), edges.end(), v) - edges.begin();
    ++counts[std::min(static_cast<std::size_t>(above), counts.size()) - 1];
  }
}

}  // namespace detail::numpy
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_NUMPY_ARITHMETIC_HPP
