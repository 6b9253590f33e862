// SPDX-License-Identifier: BSD-3-Clause
// The Gram matrix G = X^T X of a layer's inputs: what weights w and their quantized values v cost
// at its output is sum |X (w - v)|^2 = (w - v)^T G (w - v), however many samples X has.
#ifndef DETENT_SOLVERS_GRAM_HPP
#define DETENT_SOLVERS_GRAM_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/elementwise/operands.hpp>
#include <detent/error.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// A symmetric K x K matrix of finite doubles with a diagonal that is not negative, or only its
/// diagonal: then inputs count by their importance alone, and everything takes O(K) where a whole
/// matrix takes O(K^2). The solvers want it positive semidefinite and do not prove it. Immutable;
/// share it freely between threads.
class gram_matrix {
 public:
  gram_matrix() = default;

  /// Copies `g`. Throws shape_mismatch if it is not square, invalid_argument if an element is not
  /// finite, if it is not symmetric to the bit, if the diagonal has a negative element or a zero
  /// one in a row that is not zero (which no X^T X has).
  [[nodiscard]] static gram_matrix from_matrix(matrix_view<const double> g) {
    detail::require_matrix(g, "gram_matrix");
    require(g.rows == g.columns, error_kind::shape_mismatch, "gram_matrix: ", g.rows, " x ",
            g.columns, " is not square");
    gram_matrix result(g.rows, false);
    for (std::size_t i = 0; i < g.rows; ++i) {
      for (std::size_t j = 0; j < g.rows; ++j) {
        const double value = g(i, j);
        require(std::isfinite(value), error_kind::invalid_argument,
                "gram_matrix: the element at row ", i, ", column ", j, " is ", value);
        require(value == g(j, i), error_kind::invalid_argument, "gram_matrix: ", value, " at row ",
                i, ", column ", j, " but ", g(j, i), " at row ", j, ", column ", i);
        require(value == 0.0 || g(i, i) > 0.0, error_kind::invalid_argument, "gram_matrix: ", value,
                " at row ", i, ", column ", j, " where the diagonal is ", g(i, i));
        result.values_[i * g.rows + j] = value;
      }
    }
    return result;
  }

  /// The matrix that is zero but for its diagonal: the importance of each input. Throws
  /// invalid_argument if one is negative or not finite.
  [[nodiscard]] static gram_matrix from_diagonal(std::span<const double> importance) {
    gram_matrix result(importance.size(), true);
    for (std::size_t i = 0; i < importance.size(); ++i) {
      require(std::isfinite(importance[i]) && importance[i] >= 0.0, error_kind::invalid_argument,
              "gram_matrix: the diagonal has ", importance[i], " at ", i);
      result.values_[i] = importance[i];
    }
    return result;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool is_diagonal() const noexcept { return is_diagonal_; }
  [[nodiscard]] double operator()(std::size_t i, std::size_t j) const noexcept {
    return is_diagonal_ ? (i == j ? values_[i] : 0.0) : values_[i * size_ + j];
  }
  [[nodiscard]] double diagonal(std::size_t i) const noexcept {
    return values_[is_diagonal_ ? i : i * size_ + i];
  }
  /// The mean of the diagonal; 0 of a matrix of size 0.
  [[nodiscard]] double mean_diagonal() const noexcept {
    double sum = 0.0;
    for (std::size_t i = 0; i < size_; ++i) {
      sum += diagonal(i);
    }
    return size_ == 0 ? 0.0 : sum / static_cast<double>(size_);
  }

  [[nodiscard]] gram_matrix diagonal_part() const {
    gram_matrix result(size_, true);
    for (std::size_t i = 0; i < size_; ++i) {
      result.values_[i] = diagonal(i);
    }
    return result;
  }
  /// G + fraction * mean_diagonal() * I, which is positive definite if G is positive semidefinite
  /// and not zero. Throws invalid_argument if `fraction` is negative or not finite.
  [[nodiscard]] gram_matrix dampened(double fraction) const {
    require(std::isfinite(fraction) && fraction >= 0.0, error_kind::invalid_argument,
            "gram_matrix: damping of ", fraction);
    gram_matrix result = *this;
    const double added = detail::rounded_product(fraction, mean_diagonal());
    for (std::size_t i = 0; i < size_; ++i) {
      result.values_[is_diagonal_ ? i : i * size_ + i] += added;
    }
    return result;
  }
  /// The Gram matrix of inputs that are divided by `divisors`, one for each: G_ij / (d_i d_j).
  /// Throws shape_mismatch, and invalid_argument if a divisor is not positive and finite or a
  /// quotient not finite.
  [[nodiscard]] gram_matrix divided_by(std::span<const float> divisors) const {
    require(divisors.size() == size_, error_kind::shape_mismatch, "gram_matrix: ", divisors.size(),
            " divisors for ", size_, " inputs");
    for (std::size_t i = 0; i < size_; ++i) {
      require(std::isfinite(divisors[i]) && divisors[i] > 0.0F, error_kind::invalid_argument,
              "gram_matrix: the divisor ", divisors[i], " at ", i);
    }
    gram_matrix result = *this;
    for (std::size_t i = 0; i < size_; ++i) {
      for (std::size_t j = is_diagonal_ ? i : 0; j < (is_diagonal_ ? i + 1 : size_); ++j) {
        double& value = result.values_[is_diagonal_ ? i : i * size_ + j];
        value /= static_cast<double>(divisors[i]) * static_cast<double>(divisors[j]);  // exact
        require(std::isfinite(value), error_kind::invalid_argument, "gram_matrix: divided by ",
                divisors[i], " and ", divisors[j], ", the element at row ", i, ", column ", j,
                " is ", value);
      }
    }
    return result;
  }

  /// y += a * (column i of G). Only [first, last) of y is touched.
  void add_scaled_column(std::size_t i, double a, double* y, std::size_t first,
                         std::size_t last) const noexcept {
    if (!is_diagonal_) {  // symmetric: a column is a row
      detail::add_scaled(last - first, a, values_.data() + i * size_ + first, y + first);
    } else if (first <= i && i < last) {
      y[i] += detail::rounded_product(a, values_[i]);
    }
  }

  friend bool operator==(const gram_matrix&, const gram_matrix&) = default;

 private:
  friend class gram_observer;
  gram_matrix(std::size_t size, bool is_diagonal)
      : size_(size), is_diagonal_(is_diagonal), values_(is_diagonal ? size : size * size) {}

  std::size_t size_ = 0;
  bool is_diagonal_ = true;
  std::vector<double> values_;
};

/// Observes the inputs of a layer, a row for each sample and a column for each of K features. The
/// result is the same, to the bit, however the samples are split, ordered, merged and shared out to
/// threads, with any compiler and on any processor, since all sums are exact sums of integers:
///
///   a row whose largest magnitude is in [16^b, 16^(b+1)) is rounded, half to even, to multiples of
///   2^(4b - 20): by at most 2^-21 of its largest magnitude
///   sum_b = the sum over the rows of k_i k_j, k being those multiples
///   G_ij = the sum over b, from the least, of sum_b * 2^(8b - 40)
///
/// Rows of whole numbers below 2^24, codes minus their zero point among them, are not rounded at
/// all. Only the eight largest b seen are kept: rows that are smaller than 16^-7 of the largest do
/// not count, as they would hardly do in a sum of doubles.
///
/// Memory: 4 K^2 bytes for each b that occurs (one to three with most activations, eight at most),
/// twice that after about 2^15 to 2^20 samples. Time: K^2 / 2 multiplications for each sample. Not
/// thread-safe itself; one per thread, then merge(). P4 of the observers holds: state can be saved.
class gram_observer {
 public:
  explicit gram_observer(std::size_t features) : size_(features) {
    require(features > 0 && features <= largest_size, error_kind::invalid_argument,
            "gram_observer: ", features, " features are not in 1..", largest_size);
  }

  /// Any strides. Throws shape_mismatch if `x` has not K columns, invalid_argument if a value is
  /// NaN or infinite; nothing has changed then. Tiles of the matrix are shared out by `parallel`.
  void observe(matrix_view<const float> x, const parallel_for& parallel = {}) {
    observe_rows(x, 0, parallel);
  }
  /// Codes, as reals of scale 1: k = q - zero_point. The Gram matrix of the reals is scale^2 times
  /// the result; no solver minds the factor. Throws as above, and invalid_argument if the zero
  /// point is not a value of Q.
  template <quantized_byte Q>
  void observe(matrix_view<const Q> codes, std::int32_t zero_point,
               const parallel_for& parallel = {}) {
    detail::require_zero_point(zero_point, full_grid<Q>, "gram_observer");
    observe_rows(codes, zero_point, parallel);
  }

  /// As if everything that `other` has seen had been seen here. Throws shape_mismatch if it has
  /// another number of features.
  void merge(const gram_observer& other) {
    require(other.size_ == size_, error_kind::shape_mismatch, "gram_observer: merging ",
            other.size_, " features into ", size_);
    if (&other == this) {
      const gram_observer copy = other;
      merge(copy);
      return;
    }
    count_ += other.count_;
    for (const auto& [bin, sums] : other.sums_) {
      if (partial_sums* const here = sums_of(bin)) {
        add(*here, sums);
      }
    }
    forget_small_bins();
  }

  [[nodiscard]] std::size_t features() const noexcept { return size_; }
  /// Samples seen, those of zeros among them.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  /// G, not divided by the number of samples. Throws invalid_argument if nothing was observed.
  [[nodiscard]] gram_matrix finalize() const {
    require_samples();
    gram_matrix g(size_, false);
    for (const auto& [bin, sums] : sums_) {
      for (std::size_t i = 0; i < size_; ++i) {
        for (std::size_t j = 0; j <= i; ++j) {
          g.values_[i * size_ + j] += std::ldexp(sums.value(triangle(i) + j), 2 * unit(bin));
        }
      }
    }
    for (std::size_t i = 0; i < size_; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        g.values_[j * size_ + i] = g.values_[i * size_ + j];
      }
    }
    return g;
  }
  /// The mean of |x| of each feature, of the rounded values. Throws invalid_argument if nothing was
  /// observed.
  [[nodiscard]] std::vector<float> mean_magnitudes() const {
    require_samples();
    std::vector<double> sums(size_);
    for (const auto& [bin, of_bin] : sums_) {
      for (std::size_t i = 0; i < size_; ++i) {
        sums[i] += std::ldexp(static_cast<double>(of_bin.magnitudes[i]), unit(bin));
      }
    }
    std::vector<float> means(size_);
    for (std::size_t i = 0; i < size_; ++i) {
      means[i] = static_cast<float>(sums[i] / static_cast<double>(count_));
    }
    return means;
  }

  /// The state as bytes, for load(): the envelope of byte_format.hpp around
  ///
  ///   u64 K, u64 samples, u64 number of b; for each of them, from the least
  ///     i32 b, i32 1 if the sums have high parts, else 0
  ///     K sums of |k| (i64)
  ///     the lower triangle of the sums of k_i k_j, row by row (i64); then their high parts, if
  ///     any: the sum is high * 2^32 + low
  ///
  /// The same bytes for the same samples.
  [[nodiscard]] std::vector<std::byte> save() const {
    detail::byte_writer to(format);
    to.put(std::uint64_t{size_});
    to.put(count_);
    to.put(std::uint64_t{sums_.size()});
    for (const auto& [bin, sums] : sums_) {
      const partial_sums s = sums.canonical();
      to.put(static_cast<std::int32_t>(bin));
      to.put(std::int32_t{s.high.empty() ? 0 : 1});
      to.put_array(std::span<const std::int64_t>(s.magnitudes));
      to.put_array(std::span<const std::int64_t>(s.low));
      to.put_array(std::span<const std::int64_t>(s.high));
    }
    return std::move(to).finish();
  }
  /// What save() returned. Throws bad_file for anything else, unsupported for a version that this
  /// release does not know.
  [[nodiscard]] static gram_observer load(std::span<const std::byte> bytes) {
    constexpr const char* where = "gram_observer::load";
    detail::byte_reader from(bytes, format, where);
    const std::size_t size = from.get_size(largest_size);
    require(size > 0, error_kind::bad_file, where, ": 0 features");
    gram_observer observer(size);
    observer.count_ = from.get<std::uint64_t>();
    const std::size_t bins = from.get_size(kept_bins);
    for (std::size_t n = 0; n < bins; ++n) {
      const int bin = from.get<std::int32_t>();
      const int high = from.get<std::int32_t>();
      const int previous = observer.sums_.empty() ? least_bin - 1 : observer.sums_.rbegin()->first;
      require(bin > previous && bin <= largest_bin, error_kind::bad_file, where, ": rows of 16^",
              bin, " after 16^", previous);
      require(high == 0 || high == 1, error_kind::bad_file, where, ": high parts ", high);
      partial_sums s;
      from.get_array(size, s.magnitudes);
      from.get_array(triangle(size), s.low);
      if (high == 1) {
        from.get_array(triangle(size), s.high);
      }
      require(s.is_plausible(size) && s == s.canonical(), error_kind::bad_file, where,
              ": sums that save() does not write");
      observer.sums_.emplace(bin, std::move(s));
    }
    from.require_end();
    require(bins == 0 || observer.sums_.rbegin()->first - observer.sums_.begin()->first < kept_bins,
            error_kind::bad_file, where, ": rows that should have been forgotten");
    return observer;
  }

  /// Whether the same samples were seen, as far as can be told.
  friend bool operator==(const gram_observer& a, const gram_observer& b) {
    return a.size_ == b.size_ && a.count_ == b.count_ &&
           std::equal(a.sums_.begin(), a.sums_.end(), b.sums_.begin(), b.sums_.end(),
                      [](const auto& x, const auto& y) {
                        return x.first == y.first && x.second.canonical() == y.second.canonical();
                      });
  }

 private:
  static constexpr detail::byte_format format{"detentGr", 1};
  static constexpr std::size_t largest_size = std::size_t{1} << 20;
  static constexpr int value_bits = 24;   // |k| <= 2^24
  static constexpr int bits_per_bin = 4;  // of largest magnitudes
  static constexpr int kept_bins = 8;
  static constexpr int least_bin = -38;  // denormals
  static constexpr int largest_bin = 31;
  /// Sums of so many products are below 2^53 in magnitude, or equal: exact in double.
  static constexpr std::size_t block_rows = std::size_t{1} << (53 - 2 * value_bits);
  static constexpr std::size_t tile = 64;

  /// The lower triangle, row by row.
  [[nodiscard]] static constexpr std::size_t triangle(std::size_t row) noexcept {
    return row % 2 == 0 ? row / 2 * (row + 1) : (row + 1) / 2 * row;
  }
  /// k = x / 2^unit.
  [[nodiscard]] static constexpr int unit(int bin) noexcept {
    return bits_per_bin * (bin + 1) - value_bits;
  }

  struct partial_sums {
    std::vector<std::int64_t> magnitudes;
    std::vector<std::int64_t> low;
    std::vector<std::int64_t> high;  // in units of 2^32; empty: zeros

    /// Moves what `low` has above 32 bits to `high`.
    void carry() {
      high.resize(low.size());
      for (std::size_t i = 0; i < low.size(); ++i) {
        high[i] += low[i] >> 32;
        low[i] &= 0xFFFFFFFF;
      }
    }
    /// No sum is larger in magnitude than the largest on the diagonal, but for 2^32 left by
    /// carry().
    void carry_if_large(std::size_t size) {
      constexpr std::int64_t large = std::int64_t{1} << 61;
      for (std::size_t i = 0; i < size; ++i) {
        if (low[triangle(i) + i] > large) {
          carry();
          return;
        }
      }
    }
    /// Without high parts if all sums fit 63 bits, with 32 bits in all low parts otherwise.
    [[nodiscard]] partial_sums canonical() const {
      partial_sums s = *this;
      if (s.high.empty()) {
        return s;
      }
      s.carry();
      constexpr std::int64_t limit = std::int64_t{1} << 30;
      if (std::all_of(s.high.begin(), s.high.end(),
                      [](std::int64_t h) { return -limit <= h && h < limit; })) {
        for (std::size_t i = 0; i < s.low.size(); ++i) {
          s.low[i] += s.high[i] * (std::int64_t{1} << 32);
        }
        s.high.clear();
      }
      return s;
    }
    /// Whether these may be sums of a Gram matrix that can go on observing without overflow.
    [[nodiscard]] bool is_plausible(std::size_t size) const noexcept {
      constexpr std::int64_t limit = std::int64_t{1} << 62;
      const auto is_large = [](std::int64_t v) { return v <= -limit || v >= limit; };
      if (std::any_of(low.begin(), low.end(), is_large) ||
          std::any_of(high.begin(), high.end(), is_large)) {
        return false;
      }
      double largest = 0.0;
      for (std::size_t i = 0; i < size; ++i) {
        const double square = value(triangle(i) + i);
        if (magnitudes[i] < 0 || is_large(magnitudes[i]) || square < 0.0) {
          return false;
        }
        largest = square > largest ? square : largest;
      }
      for (std::size_t i = 0; i < low.size(); ++i) {
        if (std::fabs(value(i)) > largest) {
          return false;
        }
      }
      return true;
    }
    [[nodiscard]] double value(std::size_t i) const noexcept {
      if (high.empty()) {
        return static_cast<double>(low[i]);
      }
      const std::int64_t h = high[i] + (low[i] >> 32);
      return static_cast<double>(h) * 0x1p32 + static_cast<double>(low[i] & 0xFFFFFFFF);
    }
    friend bool operator==(const partial_sums&, const partial_sums&) = default;
  };

  void require_samples() const {
    require(count_ > 0, error_kind::invalid_argument, "gram_observer: nothing was observed");
  }

  /// Null for rows too small to count.
  [[nodiscard]] partial_sums* sums_of(int bin) {
    if (!sums_.empty() && bin <= sums_.rbegin()->first - kept_bins) {
      return nullptr;
    }
    partial_sums& sums = sums_[bin];
    sums.magnitudes.resize(size_);
    sums.low.resize(triangle(size_));
    return &sums;
  }
  void forget_small_bins() {
    while (!sums_.empty() && sums_.begin()->first <= sums_.rbegin()->first - kept_bins) {
      sums_.erase(sums_.begin());
    }
  }

  void add(partial_sums& to, const partial_sums& from) const {
    to.carry_if_large(size_);  // then neither is above 2^61 and 2^53
    if (!from.high.empty()) {
      to.high.resize(to.low.size());
      for (std::size_t i = 0; i < to.high.size(); ++i) {
        to.high[i] += from.high[i];
      }
    }
    for (std::size_t i = 0; i < to.low.size(); ++i) {
      to.low[i] += from.low[i];
    }
    for (std::size_t i = 0; i < size_; ++i) {
      to.magnitudes[i] += from.magnitudes[i];
    }
    to.carry_if_large(size_);
  }

  template <class T>
  void observe_rows(matrix_view<const T> x, std::int32_t zero_point, const parallel_for& parallel) {
    detail::require_matrix(x, "gram_observer");
    require(x.columns == size_, error_kind::shape_mismatch, "gram_observer: ", x.columns,
            " features after ", size_);
    const auto value = [&](std::size_t r, std::size_t c) {
      return static_cast<float>(x(r, c)) - static_cast<float>(zero_point);  // exact: or z is 0
    };
    std::map<int, std::vector<std::size_t>> rows_of;  // by bin
    for (std::size_t r = 0; r < x.rows; ++r) {
      float largest = 0.0F;
      for (std::size_t c = 0; c < size_; ++c) {
        const float one = std::fabs(value(r, c));
        require(std::isfinite(one), error_kind::invalid_argument,
                "gram_observer: the value at row ", r, ", column ", c, " is ", value(r, c));
        largest = one > largest ? one : largest;
      }
      if (largest > 0.0F) {
        const int exponent = std::ilogb(largest);
        const int bin = exponent >= 0 ? exponent / bits_per_bin
                                      : -((bits_per_bin - 1 - exponent) / bits_per_bin);
        rows_of[bin].push_back(r);
      }
    }
    std::vector<double> block(block_rows * size_);
    for (auto it = rows_of.rbegin(); it != rows_of.rend(); ++it) {  // the large ones first
      const auto& [bin, rows] = *it;
      partial_sums* const sums = sums_of(bin);
      for (std::size_t first = 0; sums != nullptr && first < rows.size(); first += block_rows) {
        const std::size_t n = (std::min)(block_rows, rows.size() - first);
        for (std::size_t r = 0; r < n; ++r) {
          for (std::size_t c = 0; c < size_; ++c) {
            const double k = reference::round_half_even(
                std::ldexp(static_cast<double>(value(rows[first + r], c)), -unit(bin)));
            block[r * size_ + c] = k;
            sums->magnitudes[c] += static_cast<std::int64_t>(std::fabs(k));
          }
        }
        add_products(*sums, block.data(), n, parallel);
      }
    }
    forget_small_bins();
    count_ += x.rows;
  }

  /// sums += block^T block, of n <= block_rows rows.
  void add_products(partial_sums& sums, const double* block, std::size_t n,
                    const parallel_for& parallel) const {
    const std::size_t tiles = (size_ + tile - 1) / tile;
    detail::run_parallel(parallel, tiles, [&](std::size_t tile_row) {
      const std::size_t i0 = tile_row * tile;
      const std::size_t height = (std::min)(tile, size_ - i0);
      std::array<double, tile * tile> products;
      for (std::size_t j0 = 0; j0 <= i0; j0 += tile) {
        const std::size_t width = (std::min)(tile, size_ - j0);
        products.fill(0.0);
        for (std::size_t r = 0; r < n; ++r) {
          const double* const left = block + r * size_ + i0;
          const double* const right = block + r * size_ + j0;
          for (std::size_t i = 0; i < height; ++i) {
            double* const out = products.data() + i * tile;
            for (std::size_t j = 0; j < width; ++j) {
              out[j] += left[i] * right[j];  // exact, fused or not
            }
          }
        }
        for (std::size_t i = 0; i < height; ++i) {
          std::int64_t* const out = sums.low.data() + triangle(i0 + i) + j0;
          for (std::size_t j = 0; j < width && j0 + j <= i0 + i; ++j) {
            out[j] += static_cast<std::int64_t>(products[i * tile + j]);
          }
        }
      }
    });
    sums.carry_if_large(size_);
  }

  std::size_t size_;
  std::uint64_t count_ = 0;
  std::map<int, partial_sums> sums_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_GRAM_HPP
