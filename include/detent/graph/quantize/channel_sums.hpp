// SPDX-License-Identifier: BSD-3-Clause
// Exact sums of the channels of values over all samples, from which the corrections of biases take
// means.
#ifndef DETENT_GRAPH_QUANTIZE_CHANNEL_SUMS_HPP
#define DETENT_GRAPH_QUANTIZE_CHANNEL_SUMS_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/base/exact_sum.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/observers/saved_state.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The sum of each channel of a value. Channels are dimension 1 of images, and the last dimension
/// of matrices. The values of a channel in one image are added up in double; such sums, and the
/// single values of matrices, are added up exactly. So the order of images does not matter, nor how
/// they are divided into batches.
class channel_sums {
 public:
  channel_sums() = default;
  explicit channel_sums(bool is_image) : is_image_(is_image) {}

  /// Adds a value; one without elements adds nothing. Throws shape_mismatch if the value has no
  /// axis of channels or another number of channels than those before.
  void add(const tensor& value) {
    if (value.count() == 0) {
      return;
    }
    const tensor t = to_plain(value);
    require(t.rank() > (is_image_ ? 1U : 0U), error_kind::shape_mismatch, "a value of shape ",
            shown(t.dims()), " has no channels");
    const std::size_t axis = is_image_ ? 1 : t.rank() - 1;
    const auto channels = static_cast<std::size_t>(t.dim(axis));
    require_channels(channels);
    std::size_t inner = 1;
    for (std::size_t d = axis + 1; d < t.rank(); ++d) {
      inner *= static_cast<std::size_t>(t.dim(d));
    }
    note_shape(t.dims());
    sums_.resize(channels);
    const auto values = t.data<float>();
    for (std::size_t i = 0; i < values.size(); i += inner) {
      add_run(values.subspan(i, inner), sums_[i / inner % channels]);
    }
    count_ += values.size();
  }
  /// Afterwards this object has also seen everything that `other` has seen. Throws shape_mismatch
  /// if that has another number of channels, overflow if more than 2^60 elements were seen.
  void merge(const channel_sums& other) {
    if (other.count_ == 0) {
      return;
    }
    require_channels(other.sums_.size());
    require(other.count_ <= largest_count - count_, error_kind::overflow,
            "sums of channels: more than 2^60 elements");
    note_shape(other.dims_);
    sums_.resize(other.sums_.size());
    for (std::size_t c = 0; c < sums_.size(); ++c) {
      sums_[c].add(other.sums_[c]);
    }
    squares_.add(other.squares_);
    count_ += other.count_;
    is_finite_ = is_finite_ && other.is_finite_;
  }

  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// The shape of the values, but for dimension 0, which is 1 unless it is that of the channels. Of
  /// several shapes, it is the greatest, compared from the left.
  [[nodiscard]] const shape& dims() const noexcept { return dims_; }
  /// The mean of each channel, rounded twice; NaN if a value was NaN or infinite.
  [[nodiscard]] std::vector<double> means() const {
    std::vector<double> m;
    m.reserve(sums_.size());
    const double each = static_cast<double>(count_) / static_cast<double>(sums_.size());
    for (const exact_sum& sum : sums_) {
      m.push_back(checked(sum.value()) / each);
    }
    return m;
  }
  /// A value of the shape dims() in which each element is the mean of its channel. Throws bad_file
  /// if it would have more than `most_bytes`, because the shape may be from a file; `layer` names
  /// the layer whose input it is.
  [[nodiscard]] tensor mean_value(std::size_t most_bytes, const std::string& layer) const {
    require(is_within(dims_, most_bytes / sizeof(float)), error_kind::bad_file, layer,
            ": an input of shape ", shown(dims_), " is above the limit of ", most_bytes, " bytes");
    const std::vector<double> m = means();
    tensor value = tensor::allocate(element_type::f32, dims_);
    const std::size_t inner = is_image_ ? value.count() / m.size() : 1;
    auto elements = value.mutable_data<float>();
    for (std::size_t k = 0; k < elements.size(); ++k) {
      elements[k] = static_cast<float>(m[k / inner % m.size()]);
    }
    return value;
  }
  /// The standard deviation of all elements, about the mean of all channels together.
  [[nodiscard]] double standard_deviation() const {
    exact_sum sum;
    for (const exact_sum& s : sums_) {
      sum.add(s);
    }
    const auto n = static_cast<double>(count_);
    const double mean = checked(sum.value()) / n;
    const double variance =
        checked(squares_.value()) / n - detent::detail::rounded_product(mean, mean);
    return std::sqrt((std::max)(variance, 0.0));
  }

  /// Appends u8 is_image, u8 whether all values were finite, u64 count; u64 rank and i64 dimensions
  /// of the shape; u64 channels and the sum of each; the sum of the squares.
  void write(detent::detail::byte_writer& out) const {
    detent::detail::put_choice(out, is_image_);
    detent::detail::put_choice(out, is_finite_);
    out.put(count_);
    detent::detail::put_list(out, dims_);
    out.put(static_cast<std::uint64_t>(sums_.size()));
    for (const exact_sum& sum : sums_) {
      sum.write(out);
    }
    squares_.write(out);
  }
  /// Replaces the sums by those that write() appended for values of the same kind. Throws bad_file
  /// for impossible ones.
  void read(detent::detail::byte_reader& in) {
    constexpr const char* where = "sums of channels";
    channel_sums next;
    next.is_image_ = detent::detail::get_choice(in, true, where);
    next.is_finite_ = detent::detail::get_choice(in, true, where);
    next.count_ = in.get_size(largest_count);
    next.dims_ = detent::detail::get_list<std::int64_t>(in, max_rank);
    const std::size_t channels = in.get_size(in.rest() / (8 * sum_limbs));
    const std::size_t axis = next.is_image_ ? 1 : next.dims_.size() - 1;
    detent::detail::require_state(
        next.is_image_ == is_image_ &&
            (next.count_ == 0 ? channels == 0 && next.dims_.empty()
                              : next.dims_.size() > (next.is_image_ ? 1U : 0U) && channels != 0 &&
                                    next.count_ % channels == 0 &&
                                    next.dims_[axis] == static_cast<std::int64_t>(channels) &&
                                    (axis == 0 || next.dims_[0] == 1)),
        where, "the shape does not fit the sums");
    next.sums_.resize(channels);
    for (exact_sum& sum : next.sums_) {
      sum.read(in);
    }
    next.squares_.read(in);
    detent::detail::require_state(next.are_sums_of_floats(), where, "a sum is too large");
    *this = std::move(next);
  }

 private:
  static constexpr std::size_t lanes = 8;
  // What a saved state may say that was seen. Samples that are observed do not come near it.
  static constexpr std::uint64_t largest_count = std::uint64_t{1} << 60;
  // Sums of floats are multiples of 2^-149, those of their squares of 2^-298. A value has less than
  // 2^40 elements.
  static constexpr std::size_t sum_limbs = 6;
  using exact_sum = detent::detail::exact_sum<-149, sum_limbs>;
  using exact_sum_of_squares = detent::detail::exact_sum<-298, 11>;

  /// Whether the sums may be those of as many floats.
  [[nodiscard]] bool are_sums_of_floats() const {
    constexpr double largest = 0x1p128;  // no float is as large
    const auto n = static_cast<double>(count_);
    const double each = sums_.empty() ? 0.0 : n / static_cast<double>(sums_.size());
    const double squares = squares_.value();
    return squares >= 0.0 && squares <= n * largest * largest &&
           std::all_of(sums_.begin(), sums_.end(), [&](const exact_sum& sum) {
             return std::fabs(sum.value()) <= each * largest;
           });
  }

  void require_channels(std::size_t channels) const {
    require(sums_.empty() || sums_.size() == channels, error_kind::shape_mismatch, "sums of ",
            channels, " channels where there were ", sums_.size());
  }

  void note_shape(shape dims) {
    if (dims.size() > 1) {  // else dimension 0 is that of the channels
      dims[0] = 1;
    }
    dims_ = (std::max)(dims_, dims);
  }

  void add_run(std::span<const float> x, exact_sum& to) {
    double sum = 0.0;
    double square = 0.0;
    std::size_t k = 0;
    if (x.size() >= lanes) {
      // Sums that do not wait for each other; their number is part of the result.
      std::array<double, lanes> some{};
      std::array<double, lanes> squares{};
      for (; k + lanes <= x.size(); k += lanes) {
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          const double v = static_cast<double>(x[k + lane]);
          some[lane] += v;
          squares[lane] += v * v;  // the square is exact
        }
      }
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        sum += some[lane];
        square += squares[lane];
      }
    }
    for (; k < x.size(); ++k) {
      const double v = static_cast<double>(x[k]);
      sum += v;
      square += v * v;
    }
    if (!std::isfinite(square)) {  // and so is the sum, unless a value was not
      is_finite_ = false;
      return;
    }
    to.add(sum);
    squares_.add(square);
  }

  [[nodiscard]] double checked(double sum) const noexcept {
    return is_finite_ ? sum : std::numeric_limits<double>::quiet_NaN();
  }

  bool is_image_ = true;
  bool is_finite_ = true;
  shape dims_;
  std::vector<exact_sum> sums_;
  exact_sum_of_squares squares_;
  std::uint64_t count_ = 0;
};

/// How far the means of `a` are above those of `b`, channel by channel; nothing if one of them has
/// seen no values. `layer` names the layer whose results both have seen. Throws shape_mismatch if
/// they have different numbers of channels: sums may be from a file.
[[nodiscard]] inline std::vector<double> mean_difference(const channel_sums& a,
                                                         const channel_sums& b,
                                                         const std::string& layer) {
  if (a.empty() || b.empty()) {
    return {};
  }
  std::vector<double> difference = a.means();
  const std::vector<double> means = b.means();
  require(difference.size() == means.size(), error_kind::shape_mismatch, layer, ": sums of ",
          difference.size(), " channels for a result of ", means.size());
  for (std::size_t c = 0; c < means.size(); ++c) {
    difference[c] -= means[c];
  }
  return difference;
}

}  // namespace detail

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_CHANNEL_SUMS_HPP
