// SPDX-License-Identifier: BSD-3-Clause
// Statistics of the inputs of a layer, by which solvers choose the codes of its weights.
#ifndef DETENT_GRAPH_QUANTIZE_LAYER_INPUT_STATISTICS_HPP
#define DETENT_GRAPH_QUANTIZE_LAYER_INPUT_STATISTICS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The diagonal of a Gram matrix, in O(K) memory. Sums are in double, in the order of the samples.
class diagonal_observer {
 public:
  explicit diagonal_observer(std::size_t features) : squares_(features), magnitudes_(features) {}

  /// Adds one row for each sample. Throws invalid_argument if a value is NaN or infinite,
  /// shape_mismatch for another number of features.
  void observe(matrix_view<const float> x, const parallel_for& /*parallel*/) {
    require(x.columns == squares_.size(), error_kind::shape_mismatch, x.columns,
            " features where there were ", squares_.size());
    for (std::size_t r = 0; r < x.rows; ++r) {
      for (std::size_t c = 0; c < x.columns; ++c) {
        const auto value = static_cast<double>(x(r, c));
        require(std::isfinite(value), error_kind::invalid_argument, "the value at row ", r,
                ", column ", c, " is ", value);
        squares_[c] += value * value;  // the square of a float is exact in double, fused or not
        magnitudes_[c] += std::fabs(value);
      }
    }
    count_ += x.rows;
  }
  /// Adds everything that `other` observed, as if it came after the samples observed here.
  void merge(const diagonal_observer& other) {
    require(other.squares_.size() == squares_.size(), error_kind::shape_mismatch,
            other.squares_.size(), " features where there were ", squares_.size());
    for (std::size_t c = 0; c < squares_.size(); ++c) {
      squares_[c] += other.squares_[c];
      magnitudes_[c] += other.magnitudes_[c];
    }
    count_ += other.count_;
  }

  [[nodiscard]] std::size_t features() const noexcept { return squares_.size(); }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] gram_matrix finalize() const { return gram_matrix::from_diagonal(squares_); }
  /// The mean of |x| of each feature.
  [[nodiscard]] std::vector<float> mean_magnitudes() const {
    std::vector<float> means;
    for (const double sum : magnitudes_) {
      means.push_back(static_cast<float>(sum / static_cast<double>(count_)));
    }
    return means;
  }

 private:
  std::uint64_t count_ = 0;
  std::vector<double> squares_;
  std::vector<double> magnitudes_;
};

/// The statistics of a layer's inputs that solvers need: their Gram matrix, or its diagonal.
class input_statistics {
 public:
  input_statistics(std::size_t features, bool diagonal)
      : observer_(diagonal ? observer(std::in_place_type<diagonal_observer>, features)
                           : observer(std::in_place_type<gram_observer>, features)) {}

  void observe(matrix_view<const float> x, const parallel_for& parallel) {
    std::visit([&](auto& o) { o.observe(x, parallel); }, observer_);
  }
  /// Adds the statistics of `other`, which must be of the same kind.
  void merge(const input_statistics& other) {
    std::visit(
        [&](auto& o) { o.merge(std::get<std::remove_cvref_t<decltype(o)>>(other.observer_)); },
        observer_);
  }
  [[nodiscard]] gram_matrix gram() const {
    return std::visit([](const auto& o) { return require_rows(o).finalize(); }, observer_);
  }
  [[nodiscard]] std::vector<float> mean_magnitudes() const {
    return std::visit([](const auto& o) { return require_rows(o).mean_magnitudes(); }, observer_);
  }

  /// Number of features.
  [[nodiscard]] std::size_t features() const {
    return std::visit([](const auto& o) { return o.features(); }, observer_);
  }
  /// Appends u64 size, and the state of the Gram matrix as gram_observer::save() returns it. Throws
  /// unsupported for a diagonal, whose sums are rounded and depend on the order of samples.
  void write(detent::detail::byte_writer& out) const {
    const auto* gram = std::get_if<gram_observer>(&observer_);
    require(gram != nullptr, error_kind::unsupported,
            "statistics of a diagonal alone cannot be saved");
    const std::vector<std::byte> bytes = gram->save();
    out.put(static_cast<std::uint64_t>(bytes.size()));
    out.put_array(std::span<const std::byte>(bytes));
  }
  /// Replaces the statistics by those that write() appended, which must have as many features.
  /// Throws bad_file for damaged ones.
  void read(detent::detail::byte_reader& in) {
    std::vector<std::byte> bytes;
    in.get_array(in.get_size(in.rest()), bytes);
    gram_observer gram = gram_observer::load(bytes);
    require(gram.features() == features(), error_kind::bad_file, gram.features(),
            " features, expected ", features());
    observer_ = std::move(gram);
  }

  /// About the memory in bytes that the statistics of one input take with samples of the usual
  /// spread, including the matrix that is made of them.
  [[nodiscard]] static std::size_t bytes(std::size_t features, bool diagonal) noexcept {
    return 16 * features * (diagonal ? 1 : features);
  }
  /// The memory in bytes that a Gram matrix takes whose rows are all of one magnitude.
  [[nodiscard]] static std::size_t least_bytes(std::size_t features) noexcept {
    return 4 * features * features;
  }

 private:
  using observer = std::variant<gram_observer, diagonal_observer>;

  template <class Observer>
  static const Observer& require_rows(const Observer& o) {
    require(o.count() > 0, error_kind::invalid_argument, "no calibration sample has rows for it");
    return o;
  }

  observer observer_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_LAYER_INPUT_STATISTICS_HPP
