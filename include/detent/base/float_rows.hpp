// SPDX-License-Identifier: BSD-3-Clause
// What normalizations, reductions, averages and Softmax do with rows of floats, with the same bits
// whatever the compiler and the processor are: sums in double, in an order that vectors of all
// lengths can follow.
//
// These are the definitions that the kernels of kernels/float_rows.hpp equal to the bit.
#ifndef DETENT_BASE_FLOAT_ROWS_HPP
#define DETENT_BASE_FLOAT_ROWS_HPP

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/base/float_functions.hpp>
#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// A sum in 16 parts: term i is added to part i % 16. Terms come in ascending order. Vectors of 2,
/// 4, 8 or 16 doubles can do the same, since neighbouring terms go to neighbouring parts.
class sum_in_parts {
 public:
  static constexpr std::size_t size = 16;

  /// Adds term i.
  void add(std::size_t i, double term) noexcept { parts_[i % size] += term; }
  /// Adds x^2 as term i, fused.
  void add_square(std::size_t i, double x) noexcept {
    parts_[i % size] = std::fma(x, x, parts_[i % size]);
  }
  /// The sum of the parts: part k and part k + 8 first, then as sum_of() adds eight parts.
  [[nodiscard]] double value() const noexcept {
    std::array<double, size / 2> pairs;
    for (std::size_t k = 0; k < pairs.size(); ++k) {
      pairs[k] = parts_[k] + parts_[k + pairs.size()];
    }
    return sum_of(pairs);
  }

 private:
  std::array<double, size> parts_{};
};

/// The sum of a row, in double and in parts.
template <class T>
[[nodiscard]] double sum_of_row(std::span<const T> x) noexcept {
  sum_in_parts sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum.add(i, static_cast<double>(x[i]));
  }
  return sum.value();
}

/// The sum of (x - centre)^2 over a row, in parts; the square is fused with the sum.
template <class T>
[[nodiscard]] double square_sum_of_row(std::span<const T> x, double centre) noexcept {
  sum_in_parts sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum.add_square(i, static_cast<double>(x[i]) - centre);
  }
  return sum.value();
}

/// The largest value of a row; NaN is passed over. -infinity if there is none.
[[nodiscard]] inline float largest_number_of_row(std::span<const float> x) noexcept {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float value : x) {
    largest = value > largest ? value : largest;
  }
  return largest;
}

/// The largest value of a row, NaN if there is a NaN in it, or -infinity if it is empty. Zero is
/// +0, whichever zeros are in the row.
[[nodiscard]] inline float largest_of_row(std::span<const float> x) noexcept {
  for (const float value : x) {
    if (!(value == value)) {
      return value;
    }
  }
  return largest_number_of_row(x) + 0.0F;
}

/// The smallest value of a row, NaN if there is a NaN in it, or infinity if it is empty. Zero is
/// +0, whichever zeros are in the row.
[[nodiscard]] inline float smallest_of_row(std::span<const float> x) noexcept {
  float smallest = std::numeric_limits<float>::infinity();
  for (const float value : x) {
    if (!(value == value)) {
      return value;
    }
    smallest = value < smallest ? value : smallest;
  }
  return smallest + 0.0F;
}

/// sums[i] += x[i] in double.
inline void add_row(std::span<const float> x, double* sums) noexcept {
  for (std::size_t i = 0; i < x.size(); ++i) {
    sums[i] += static_cast<double>(x[i]);
  }
}

/// y[i] = (rows[0][i] + rows[1][i] + ...) / divisor in double, added one after the other, and
/// rounded to T. Sums of floats are multiplied by 1 / divisor, which is rounded to double: that is
/// far more exact than the result. y overlaps no row.
template <class T>
void mean_of_rows(std::span<const T* const> rows, double divisor, std::span<T> y) noexcept {
  const double factor = 1.0 / divisor;
  for (std::size_t i = 0; i < y.size(); ++i) {
    double sum = 0.0;
    for (const T* row : rows) {
      sum += static_cast<double>(row[i]);
    }
    y[i] = static_cast<T>(std::is_same_v<T, float> ? sum * factor : sum / divisor);
  }
}

/// y[i] = (taps[0][at] + taps[1][at] + ...) * factors[i] for `lines` lines of n windows, one behind
/// the other, where at = line * line_step + (i - line * n) * step: window by window what
/// mean_of_rows() does if factors[i] is 1 / divisor. y overlaps no element that is read.
inline void means_of_windows(std::span<const float* const> taps, std::size_t step,
                             std::size_t line_step, std::size_t lines, std::size_t n,
                             const double* factors, float* y) noexcept {
  for (std::size_t line = 0; line < lines; ++line) {
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0.0;
      for (const float* tap : taps) {
        sum += static_cast<double>(tap[line * line_step + i * step]);
      }
      y[line * n + i] = static_cast<float>(sum * factors[line * n + i]);
    }
  }
}

/// y[i] = the sum of weights[k] * x[indices[k] * n + i] over all k, in double, where the products
/// are exact, added one after the other, and rounded to float: a mixture of rows of n floats. y
/// does not overlap x.
inline void blend_rows(const float* x, std::span<const std::size_t> indices, const float* weights,
                       std::span<float> y) noexcept {
  for (std::size_t i = 0; i < y.size(); ++i) {
    double sum = 0.0;
    for (std::size_t k = 0; k < indices.size(); ++k) {
      sum += static_cast<double>(weights[k]) * static_cast<double>(x[indices[k] * y.size() + i]);
    }
    y[i] = static_cast<float>(sum);
  }
}

/// y[i] = e^(x[i] - m) / (sum of all e^(x[k] - m)) with the largest value m of the row, which is
/// not empty. The exponentials are those of floats, the sum is in double and in parts, and each
/// exponential is multiplied by the reciprocal of the sum, rounded to float. A row with NaN or
/// infinity becomes NaN, as does one of nothing but -infinity. x and y are the same row or do not
/// overlap.
inline void softmax_row(std::span<const float> x, float* y) noexcept {
  const float largest = largest_number_of_row(x);
  sum_in_parts sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = portable_exp(x[i] - largest);
    sum.add(i, static_cast<double>(y[i]));
  }
  const auto factor = static_cast<float>(1.0 / sum.value());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] *= factor;
  }
}

/// y[i] = (x[i] - m) - log(sum of all e^(x[k] - m)), where everything is as in softmax_row() and
/// the logarithm is that of doubles, rounded to float.
inline void log_softmax_row(std::span<const float> x, float* y) noexcept {
  const float largest = largest_number_of_row(x);
  sum_in_parts sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum.add(i, static_cast<double>(portable_exp(x[i] - largest)));
  }
  const auto log_sum = static_cast<float>(portable_log(sum.value()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - largest) - log_sum;
  }
}

/// y[i] = (x[i] - centre) * factor in double, rounded to float, and then, if `scale` is not null,
/// y[i] * scale[i] + bias[i], fused; a null `bias` adds nothing. Without a scale there is no bias.
inline void standardize_row(std::span<const float> x, double centre, double factor,
                            const float* scale, const float* bias, float* y) noexcept {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto value = static_cast<float>((static_cast<double>(x[i]) - centre) * factor);
    if (scale == nullptr) {
      y[i] = value;
    } else {
      y[i] = bias == nullptr ? value * scale[i] : std::fma(value, scale[i], bias[i]);
    }
  }
}

/// y[i] = x[i] * factor + offset, fused in double and rounded to float.
inline void map_row_by_line(std::span<const float> x, double factor, double offset,
                            float* y) noexcept {
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = static_cast<float>(std::fma(static_cast<double>(x[i]), factor, offset));
  }
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_FLOAT_ROWS_HPP
