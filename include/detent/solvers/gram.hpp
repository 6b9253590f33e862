// SPDX-License-Identifier: BSD-3-Clause
// The Gram matrix G = X^T X of a layer's inputs X (samples x features). It gives the squared error
// at the layer's output that replacing weights w by v costs: |X (w - v)|^2 = (w - v)^T G (w - v),
// however many samples X has.
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
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/dispatch.hpp>
#include <detent/elementwise/operands.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/double_products.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// A symmetric K x K matrix of finite doubles with a diagonal that is not negative, or its diagonal
/// alone. With the diagonal alone, inputs count by their importance only, and everything takes O(K)
/// where a whole matrix takes O(K^2). The solvers require it to be positive semidefinite and do not
/// check that. Immutable and thread-safe.
class gram_matrix {
 public:
  /// An empty matrix of size 0.
  gram_matrix() = default;

  /// Copies the K x K matrix `g`. Throws shape_mismatch if it is not square, invalid_argument if an
  /// element is not finite, if it is not symmetric to the bit, or if a diagonal element is negative
  /// or is zero in a row that is not (which no X^T X has).
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
        require(i != j || value >= 0.0, error_kind::invalid_argument,
                "gram_matrix: the diagonal has ", value, " at ", i);
        require(value == g(j, i), error_kind::invalid_argument, "gram_matrix: ", value, " at row ",
                i, ", column ", j, " but ", g(j, i), " at row ", j, ", column ", i);
        require(value == 0.0 || g(i, i) > 0.0, error_kind::invalid_argument, "gram_matrix: ", value,
                " at row ", i, ", column ", j, " where the diagonal is ", g(i, i));
        result.values_[i * g.rows + j] = value;
      }
    }
    return result;
  }

  /// The matrix whose diagonal is `importance`, one for each input, and whose other elements are 0.
  /// Throws invalid_argument if an importance is negative or not finite.
  [[nodiscard]] static gram_matrix from_diagonal(std::span<const double> importance) {
    gram_matrix result(importance.size(), true);
    for (std::size_t i = 0; i < importance.size(); ++i) {
      require(std::isfinite(importance[i]) && importance[i] >= 0.0, error_kind::invalid_argument,
              "gram_matrix: the diagonal has ", importance[i], " at ", i);
      result.values_[i] = importance[i];
    }
    return result;
  }

  /// Number of inputs, K.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether only the diagonal is stored.
  [[nodiscard]] bool is_diagonal() const noexcept { return is_diagonal_; }
  /// The element at row i, column j; 0 outside a diagonal that is stored alone.
  [[nodiscard]] double operator()(std::size_t i, std::size_t j) const noexcept {
    return is_diagonal_ ? (i == j ? values_[i] : 0.0) : values_[i * size_ + j];
  }
  /// The element G_ii.
  [[nodiscard]] double diagonal(std::size_t i) const noexcept {
    return values_[is_diagonal_ ? i : i * size_ + i];
  }
  /// The mean of the diagonal; 0 for a matrix of size 0.
  [[nodiscard]] double mean_diagonal() const noexcept {
    double sum = 0.0;
    for (std::size_t i = 0; i < size_; ++i) {
      sum += diagonal(i);
    }
    const auto count = static_cast<double>(size_);
    if (std::isfinite(sum)) {
      return size_ == 0 ? 0.0 : sum / count;
    }
    double mean = 0.0;
    for (std::size_t i = 0; i < size_; ++i) {
      mean += diagonal(i) / count;
    }
    return mean;
  }

  /// The matrix that keeps the diagonal alone.
  [[nodiscard]] gram_matrix diagonal_part() const {
    gram_matrix result(size_, true);
    for (std::size_t i = 0; i < size_; ++i) {
      result.values_[i] = diagonal(i);
    }
    return result;
  }
  /// G + fraction * mean_diagonal() * I, which is positive definite if G is positive semidefinite
  /// and neither G nor `fraction` is zero. Throws invalid_argument if `fraction` is negative or not
  /// finite, or if an element becomes infinite.
  [[nodiscard]] gram_matrix dampened(double fraction) && {
    require(std::isfinite(fraction) && fraction >= 0.0, error_kind::invalid_argument,
            "gram_matrix: damping of ", fraction);
    const double added = detail::rounded_product(fraction, mean_diagonal());
    for (std::size_t i = 0; i < size_; ++i) {
      double& element = values_[is_diagonal_ ? i : i * size_ + i];
      element += added;
      require(std::isfinite(element), error_kind::invalid_argument, "gram_matrix: damping of ",
              fraction, " makes element ", i, " of the diagonal infinite");
    }
    return std::move(*this);
  }
  /// The same for a copy.
  [[nodiscard]] gram_matrix dampened(double fraction) const& {
    return gram_matrix(*this).dampened(fraction);
  }
  /// The Gram matrix of inputs that are divided by `divisors`, one for each input: G_ij / (d_i
  /// d_j). Throws shape_mismatch if their number is not K, invalid_argument if a divisor is not
  /// positive and finite or a quotient is not finite.
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

  /// Does y[j] += a * G_ij for j in [first, last); other elements of y are not touched.
  void add_scaled_column(std::size_t i, double a, double* y, std::size_t first,
                         std::size_t last) const noexcept {
    if (!is_diagonal_) {  // symmetric: a column is a row
      detail::active<kernels::double_product_kernels>().add_products(
          {.rows = 1,
           .columns = last - first,
           .depth = 1,
           .a = &a,
           .b = values_.data() + i * size_ + first,
           .b_stride = size_,
           .c = y + first,
           .c_stride = size_});
    } else if (first <= i && i < last) {
      y[i] += detail::rounded_product(a, values_[i]);
    }
  }
  /// Does y(r, j) += x(r, 0) * G_fj, then += x(r, 1) * G_(f+1)j, and so on for all columns of x,
  /// with f = `first`: what add_scaled_column() does for one row and one column. x and y are dense,
  /// with `rows` rows; those of x have `columns` elements, those of y K.
  void add_products(std::size_t rows, std::size_t first, std::size_t columns, const double* x,
                    double* y) const noexcept {
    if (!is_diagonal_) {
      detail::active<kernels::double_product_kernels>().add_products(
          {.rows = rows,
           .columns = size_,
           .depth = columns,
           .a = x,
           .a_row_stride = columns,
           .b = values_.data() + first * size_,
           .b_stride = size_,
           .c = y,
           .c_stride = size_});
      return;
    }
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t j = 0; j < columns; ++j) {
        y[r * size_ + first + j] += detail::rounded_product(x[r * columns + j], values_[first + j]);
      }
    }
  }

  /// e^T G e of each of `rows` rows of K elements, which follow each other at `e`. G is symmetric:
  /// outside of blocks of 64 columns on the diagonal, only its upper half is multiplied. Each sum
  /// runs from the first column to the last.
  [[nodiscard]] std::vector<double> squared_lengths(std::size_t rows, const double* e) const {
    std::vector<double> result(rows);
    if (is_diagonal_) {
      for (std::size_t i = 0; i < rows * size_; ++i) {
        const double product = detail::rounded_product(e[i], values_[i % size_]);
        result[i / size_] += detail::rounded_product(e[i], product);
      }
      return result;
    }
    constexpr std::size_t block = 64;
    std::vector<double> sums(rows * block);
    for (std::size_t first = 0; first < size_; first += block) {
      const std::size_t width = (std::min)(block, size_ - first);
      std::fill(sums.begin(), sums.end(), 0.0);
      kernels::double_product_args args{.rows = rows,
                                        .columns = width,
                                        .depth = first,
                                        .a = e,
                                        .a_row_stride = size_,
                                        .b = values_.data() + first,
                                        .b_stride = size_,
                                        .c = sums.data(),
                                        .c_stride = block};
      const auto& kernels = detail::active<kernels::double_product_kernels>();
      kernels.add_products(args);
      for (double& sum : sums) {
        sum *= 2.0;  // for the lower half
      }
      args.depth = width;
      args.a = e + first;
      args.b += first * size_;
      kernels.add_products(args);
      for (std::size_t r = 0; r < rows; ++r) {
        result[r] += detail::ordered_dot(width, e + r * size_ + first, sums.data() + r * block);
      }
    }
    return result;
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

/// Observes the inputs of a layer, one row for each sample and one column for each of K features,
/// and computes their Gram matrix. The result is the same, to the bit, however the samples are
/// split, ordered, merged and shared out to threads, with any compiler and on any processor,
/// since all sums are exact sums of integers:
///
///     a row whose largest magnitude is in [16^b, 16^(b+1)) is rounded, half to even, to
///     multiples k of 2^(4b - 20): by at most 2^-21 of its largest magnitude
///     sum_b = sum over those rows of k_i k_j
///     G_ij  = sum over b, from the least, of sum_b * 2^(8b - 40)
///
/// Rows of whole numbers below 2^24 in magnitude, such as codes minus their zero point, are not
/// rounded at all. Only the eight largest b seen are kept: rows that are smaller than 16^-7 of
/// the largest do not count, as they would hardly do in a sum of doubles.
///
/// Memory: 4 K^2 bytes for each b that occurs (one to three for most activations, at most eight),
/// twice that after about 2^15 to 2^20 samples. Time: K^2 / 2 multiplications for each sample.
/// Not thread-safe: use one per thread, then merge(). The state can be saved. An object that was
/// moved from, or whose observe() or merge() threw std::bad_alloc, may only be assigned to or
/// destroyed.
class gram_observer {
 public:
  /// Makes an observer of K = `features` inputs. Throws invalid_argument if K is not in 1..2^20.
  explicit gram_observer(std::size_t features) : size_(features) {
    require(features > 0 && features <= largest_size, error_kind::invalid_argument,
            "gram_observer: ", features, " features are not in 1..", largest_size);
  }

  /// Observes the rows of `x`, which may have any strides. Throws shape_mismatch if `x` does not
  /// have K columns, invalid_argument if a value is NaN or infinite, overflow for more than 2^38
  /// samples in all; then nothing has changed.
  /// Tiles of the matrix are shared out by `parallel`; the result does not depend on it.
  void observe(matrix_view<const float> x, const parallel_for& parallel = {}) {
    observe_rows(x, 0, parallel);
  }
  /// Observes rows of quantized inputs as reals of scale 1: k = q - zero_point. The Gram matrix of
  /// the real inputs is scale^2 times the result; the solvers do not depend on that factor. Throws
  /// shape_mismatch if there are not K columns, invalid_argument if the zero point is not a value
  /// of Q, overflow for more than 2^38 samples in all.
  template <quantized_byte Q>
  void observe(matrix_view<const Q> codes, std::int32_t zero_point,
               const parallel_for& parallel = {}) {
    detail::require_zero_point(zero_point, full_grid<Q>, "gram_observer");
    observe_rows(codes, zero_point, parallel);
  }

  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen. Throws shape_mismatch if `other` has another number of features, overflow
  /// for more than 2^38 samples in all; then nothing has changed.
  void merge(const gram_observer& other) {
    require(other.size_ == size_, error_kind::shape_mismatch, "gram_observer: merging ",
            other.size_, " features into ", size_);
    if (&other == this) {
      const gram_observer copy = other;
      merge(copy);
      return;
    }
    require_room(other.count_);
    for (const auto& [bin, sums] : other.sums_) {
      if (partial_sums* const here = sums_of(bin)) {
        add(*here, sums);
      }
    }
    forget_small_bins();
    count_ += other.count_;
  }

  /// Number of features, K.
  [[nodiscard]] std::size_t features() const noexcept { return size_; }
  /// Number of samples observed, rows of zeros included.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  /// The Gram matrix G, not divided by the number of samples. Throws invalid_argument if nothing
  /// was observed.
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
  /// The mean of |x| of each feature over all samples, computed from the rounded values. Throws
  /// invalid_argument if nothing was observed.
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

  /// The state as bytes, in the envelope of byte_format.hpp. The same samples give the same bytes.
  ///
  ///     u64 K, u64 samples, u64 number of b; for each b, from the least:
  ///       i32 b, i32 1 if the sums have high parts, else 0
  ///       K sums of |k| (i64)
  ///       the lower triangle of the sums of k_i k_j, row by row (i64), then their high parts, if
  ///       any (i64); a sum is high * 2^32 + low
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
  /// The observer that save() returned as bytes. Throws bad_file for damaged bytes, unsupported for
  /// an unknown version of the layout.
  [[nodiscard]] static gram_observer load(std::span<const std::byte> bytes) {
    constexpr const char* where = "gram_observer::load";
    detail::byte_reader from(bytes, format, where);
    const std::size_t size = from.get_size(largest_size);
    require(size > 0, error_kind::bad_file, where, ": 0 features");
    gram_observer observer(size);
    observer.count_ = from.get_size(largest_count);
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
      require(s.is_plausible(size, observer.count_) && s == s.canonical(), error_kind::bad_file,
              where, ": sums that save() does not write");
      observer.sums_.emplace(bin, std::move(s));
    }
    from.require_end();
    require(bins == 0 || observer.sums_.rbegin()->first - observer.sums_.begin()->first < kept_bins,
            error_kind::bad_file, where, ": rows that should have been forgotten");
    return observer;
  }

  /// Whether both have the same number of samples and the same sums.
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
  static constexpr int value_bits = 24;  // |k| <= 2^24
  /// With no more samples, sums of |k| are at most 2^62, and the high parts of sums of products at
  /// most 2^54.
  static constexpr std::uint64_t largest_count = std::uint64_t{1} << 38;
  // width of a bin: log2 of the quotient of its largest and least magnitude
  static constexpr int bits_per_bin = 4;
  static constexpr int kept_bins = 8;
  static constexpr int least_bin = -38;  // denormal floats
  static constexpr int largest_bin = 31;
  /// The sums of this many products are at most 2^53 in magnitude, and so exact in double.
  static constexpr std::size_t block_rows_of_floats = std::size_t{1} << (53 - 2 * value_bits);
  static constexpr std::size_t tile = 64;

  /// Index of the first element of a row in the lower triangle, which is stored row by row.
  [[nodiscard]] static constexpr std::size_t triangle(std::size_t row) noexcept {
    return row % 2 == 0 ? row / 2 * (row + 1) : (row + 1) / 2 * row;
  }
  /// The exponent with which a bin's rows become integers: k = x / 2^unit.
  [[nodiscard]] static constexpr int unit(int bin) noexcept {
    return bits_per_bin * (bin + 1) - value_bits;
  }

  struct partial_sums {
    std::vector<std::int64_t> magnitudes;
    std::vector<std::int64_t> low;
    std::vector<std::int64_t> high;  // in units of 2^32; empty: zeros

    /// Moves what the low parts have above 32 bits to the high parts.
    void carry() {
      high.resize(low.size());
      for (std::size_t i = 0; i < low.size(); ++i) {
        high[i] += low[i] >> 32;
        low[i] &= 0xFFFFFFFF;
      }
    }
    /// Calls carry() if a low part on the diagonal is large. No other sum is larger in magnitude
    /// than the largest one on the diagonal, apart from up to 2^32 that carry() leaves.
    void carry_if_large(std::size_t size) {
      constexpr std::int64_t large = std::int64_t{1} << 61;
      for (std::size_t i = 0; i < size; ++i) {
        if (low[triangle(i) + i] > large) {
          carry();
          return;
        }
      }
    }
    /// The same sums in the form that is unique for them: without high parts if all sums fit 63
    /// bits, else with 32 bits in all low parts.
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
    /// Whether these may be sums over at most `count` rows, so that observing and merging can go on
    /// without overflow. The conditions hold for the sums of such sums, too.
    [[nodiscard]] bool is_plausible(std::size_t size, std::uint64_t count) const noexcept {
      constexpr std::int64_t limit = std::int64_t{1} << 62;
      const auto is_large = [](std::int64_t v) { return v <= -limit || v >= limit; };
      if (std::any_of(low.begin(), low.end(), is_large) ||
          std::any_of(high.begin(), high.end(), is_large)) {
        return false;
      }
      const auto largest_magnitude = static_cast<std::int64_t>(count << value_bits);
      const double largest_square = std::ldexp(static_cast<double>(count), 2 * value_bits);
      for (std::size_t i = 0; i < size; ++i) {
        const double square = value(triangle(i) + i);
        if (magnitudes[i] < 0 || magnitudes[i] > largest_magnitude || square < 0.0 ||
            square > largest_square) {
          return false;
        }
      }
      // 2 |k_i k_j| <= k_i^2 + k_j^2; the doubles are rounded.
      constexpr double rounding = 1.0 + 0x1p-50;
      for (std::size_t i = 0; i < size; ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          const double squares = value(triangle(i) + i) + value(triangle(j) + j);
          if (2.0 * std::fabs(value(triangle(i) + j)) > squares * rounding) {
            return false;
          }
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

  void require_room(std::uint64_t more) const {
    require(more <= largest_count - count_, error_kind::overflow, "gram_observer: ", more,
            " more samples than ", count_, " are over 2^38");
  }
  void require_samples() const {
    require(count_ > 0, error_kind::invalid_argument, "gram_observer: nothing was observed");
  }

  /// The sums of a bin, made if there are none yet; null if its rows are too small to count.
  [[nodiscard]] partial_sums* sums_of(int bin) {
    if (!sums_.empty() && bin <= sums_.rbegin()->first - kept_bins) {
      return nullptr;
    }
    const auto found = sums_.find(bin);
    if (found != sums_.end()) {
      return &found->second;
    }
    partial_sums fresh;
    fresh.magnitudes.resize(size_);
    fresh.low.resize(triangle(size_));
    return &sums_.emplace(bin, std::move(fresh)).first->second;
  }
  void forget_small_bins() {
    while (!sums_.empty() && sums_.begin()->first <= sums_.rbegin()->first - kept_bins) {
      sums_.erase(sums_.begin());
    }
  }

  void add(partial_sums& to, const partial_sums& from) const {
    to.carry_if_large(size_);  // now `to` is at most 2^61 and `from` below 2^62
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
    require_room(x.rows);
    std::map<int, std::vector<std::size_t>> rows_of;  // by bin
    for (std::size_t r = 0; r < x.rows; ++r) {
      const float largest = largest_magnitude(x, r, zero_point);
      if (largest > 0.0F) {
        const int exponent = std::ilogb(largest);
        const int bin = exponent >= 0 ? exponent / bits_per_bin
                                      : -((bits_per_bin - 1 - exponent) / bits_per_bin);
        rows_of[bin].push_back(r);
      }
    }
    // With codes, all products of a bin are multiples of the same power of two, so that their sums
    // are exact for longer.
    const std::size_t block_rows = std::is_same_v<T, float> ? block_rows_of_floats : 256;
    std::vector<double> block((std::min)(block_rows, x.rows) * size_);
    for (auto it = rows_of.rbegin(); it != rows_of.rend(); ++it) {  // the large ones first
      const auto& [bin, rows] = *it;
      partial_sums* const sums = sums_of(bin);
      for (std::size_t first = 0; sums != nullptr && first < rows.size(); first += block_rows) {
        const std::size_t n = (std::min)(block_rows, rows.size() - first);
        const double factor = std::ldexp(1.0, -unit(bin));  // exact, and so is what it multiplies
        for (std::size_t r = 0; r < n; ++r) {
          take_row(x, rows[first + r], zero_point, factor, block.data() + r * size_,
                   sums->magnitudes.data());
        }
        add_products(*sums, block.data(), n, parallel);
      }
    }
    forget_small_bins();
    count_ += x.rows;
  }

  /// The largest magnitude in row r. Throws invalid_argument if a value is NaN or infinite.
  template <class T>
  [[nodiscard]] float largest_magnitude(matrix_view<const T> x, std::size_t r,
                                        [[maybe_unused]] std::int32_t zero_point) const {
    if constexpr (std::is_same_v<T, float>) {
      float largest = 0.0F;
      for (std::size_t c = 0; c < size_; ++c) {
        const float one = std::fabs(x(r, c));
        require(std::isfinite(one), error_kind::invalid_argument,
                "gram_observer: the value at row ", r, ", column ", c, " is ", x(r, c));
        largest = (std::max)(largest, one);
      }
      return largest;
    } else {
      std::int32_t largest = 0;
      for (std::size_t c = 0; c < size_; ++c) {
        const std::int32_t k = x(r, c) - zero_point;
        largest = (std::max)(largest, k < 0 ? -k : k);
      }
      return static_cast<float>(largest);
    }
  }

  /// Writes row r in units of its bin to `out`, and adds the magnitudes of that to `magnitudes`.
  template <class T>
  void take_row(matrix_view<const T> x, std::size_t r, [[maybe_unused]] std::int32_t zero_point,
                double factor, double* out, std::int64_t* magnitudes) const {
    if constexpr (std::is_same_v<T, float>) {
      for (std::size_t c = 0; c < size_; ++c) {
        out[c] = reference::round_half_even(static_cast<double>(x(r, c)) * factor);
        magnitudes[c] += static_cast<std::int64_t>(std::fabs(out[c]));
      }
    } else {
      // Nothing is rounded: a code without its zero point has at most 9 bits, and the unit of its
      // bin is at most 2^-12.
      const auto units = static_cast<std::int64_t>(factor);
      for (std::size_t c = 0; c < size_; ++c) {
        const std::int32_t k = x(r, c) - zero_point;
        out[c] = static_cast<double>(k) * factor;
        magnitudes[c] += units * (k < 0 ? -k : k);
      }
    }
  }

  /// sums += block^T block, of so few rows that sums of their products are exact.
  void add_products(partial_sums& sums, const double* block, std::size_t n,
                    const parallel_for& parallel) const {
    const std::size_t tiles = (size_ + tile - 1) / tile;
    detail::run_parallel(parallel, tiles, [&](std::size_t tile_row) {
      const std::size_t i0 = tile_row * tile;
      const std::size_t height = (std::min)(tile, size_ - i0);
      std::array<double, tile * tile> products;
      for (std::size_t j0 = 0; j0 <= i0; j0 += tile) {
        const std::size_t width = (std::min)(tile, size_ - j0);
        std::fill_n(products.begin(), height * tile, 0.0);
        detail::active<kernels::double_product_kernels>().add_products({.rows = height,
                                                                        .columns = width,
                                                                        .depth = n,
                                                                        .a = block + i0,
                                                                        .a_row_stride = 1,
                                                                        .a_depth_stride = size_,
                                                                        .b = block + j0,
                                                                        .b_stride = size_,
                                                                        .c = products.data(),
                                                                        .c_stride = tile});
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
