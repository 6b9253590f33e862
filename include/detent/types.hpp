// SPDX-License-Identifier: BSD-3-Clause
// The types that all numeric functions share: grids, quantization schemes and parameters, ranges,
// and views of matrices and tensors. Everywhere in the library a stored integer q stands for
//
//   real = scale * (q - zero_point)
#ifndef DETENT_TYPES_HPP
#define DETENT_TYPES_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>

/// The library: INT8 quantization numerics whose results are the same bits on every CPU target.
DETENT_NAMESPACE_BEGIN

/// The 8-bit integer types, `std::int8_t` and `std::uint8_t`: the operands of integer products.
template <class Q>
concept quantized_byte = std::same_as<Q, std::int8_t> || std::same_as<Q, std::uint8_t>;

/// The integer types of whole bytes that reals are quantized to: 8 and 16 bits, signed or not.
template <class Q>
concept quantized_type =
    quantized_byte<Q> || std::same_as<Q, std::int16_t> || std::same_as<Q, std::uint16_t>;

/// The integers that a quantized value may take: qmin..qmax, both included. The default 0..-1,
/// which has no integer, stands for the whole range of the integer type that a function writes.
/// Functions that write floats, or whose integers have no type of their own, do not know that
/// range: fake_quantize() and the rules of scales refuse it, and those of reference.hpp and
/// batch.hpp, which check nothing, must not get it.
struct grid {
  std::int32_t qmin = 0;   ///< Smallest level.
  std::int32_t qmax = -1;  ///< Largest level.
  friend constexpr bool operator==(const grid&, const grid&) = default;
};

namespace detail {
template <class Q>
consteval grid levels_of() {
  if constexpr (requires { Q::levels; }) {
    return Q::levels;
  } else {
    static_assert(quantized_type<Q>, "detent: not a type that reals are quantized to");
    return {std::numeric_limits<Q>::min(), std::numeric_limits<Q>::max()};
  }
}
}  // namespace detail

/// The grid of every value of the type Q: -128..127 for `std::int8_t`, 0..255 for `std::uint8_t`,
/// -8..7 for int4 (sub_byte.hpp), and so on.
template <class Q>
inline constexpr grid full_grid = detail::levels_of<Q>();

/// The "narrow range" of the type Q: full_grid without its lowest value, so that a signed grid is
/// symmetric about 0. It is -127..127 for `std::int8_t` and 1..255 for `std::uint8_t`.
template <class Q>
inline constexpr grid narrow_grid{full_grid<Q>.qmin + 1, full_grid<Q>.qmax};

namespace detail {
/// The grid, or full_grid<Q> if it is the default one.
template <class Q>
[[nodiscard]] constexpr grid with_whole_range(grid levels) noexcept {
  return levels == grid{} ? full_grid<Q> : levels;
}
}  // namespace detail

/// How a range of reals becomes a scale and a zero point; see params_from_range().
struct quant_scheme {
  grid levels = {};  ///< The integers to use.
  bool symmetric =
      false;  ///< The zero point is the middle of `levels`, the range is symmetric about 0.
  friend constexpr bool operator==(const quant_scheme&, const quant_scheme&) = default;
};

/// The asymmetric scheme on the whole grid of the type Q. The range decides the zero point.
template <class Q>
inline constexpr quant_scheme asymmetric{full_grid<Q>, false};

/// The symmetric scheme of the type Q. Signed types use the narrow grid and zero point 0 (-127..127
/// for `std::int8_t`); unsigned types use the whole grid and its middle (0..255 and zero point 128
/// for `std::uint8_t`).
template <class Q>
inline constexpr quant_scheme symmetric{full_grid<Q>.qmin < 0 ? narrow_grid<Q> : full_grid<Q>,
                                        true};

/// Quantization parameters of a whole tensor: real = scale * (q - zero_point).
struct quant_params {
  float scale = 1.0F;           ///< Distance of two neighbouring levels; positive and finite.
  std::int32_t zero_point = 0;  ///< The integer that stands for the real 0.
  friend constexpr bool operator==(const quant_params&, const quant_params&) = default;
};

/// Quantization parameters per channel: one scale and one zero point for each index along one axis
/// of a view. Both vectors have as many elements as that axis.
struct channel_quant_params {
  std::size_t axis = 0;                   ///< The dimension of the view that channels are along.
  std::vector<float> scales;              ///< Scale of each channel; positive and finite.
  std::vector<std::int32_t> zero_points;  ///< Zero point of each channel.
};

/// Quantization parameters of blocks ("per group", ONNX's blocked quantization): one scale and one
/// zero point for every `block_size` neighbouring elements along `axis` of a view. The last block
/// along the axis may be shorter. Both vectors are dense and row-major in the shape of the view,
/// except that `axis` has ceil(extent / block_size) entries.
struct block_quant_params {
  std::size_t axis = 0;                   ///< The dimension of the view that blocks divide.
  std::size_t block_size = 0;             ///< Elements in a block; at least 1.
  std::vector<float> scales;              ///< Scale of each block; positive and finite.
  std::vector<std::int32_t> zero_points;  ///< Zero point of each block.
};

/// A closed range of reals, lower <= upper.
struct value_range {
  float lower = 0.0F;  ///< Smallest value.
  float upper = 0.0F;  ///< Largest value.
  friend constexpr bool operator==(const value_range&, const value_range&) = default;
};

/// A view of a matrix anywhere in memory: element (r, c) is
/// data[r * row_stride + c * column_stride]. The view owns nothing and checks nothing.
template <class T>
struct matrix_view {
  T* data = nullptr;                 ///< Address of element (0, 0).
  std::size_t rows = 0;              ///< Number of rows.
  std::size_t columns = 0;           ///< Number of columns.
  std::ptrdiff_t row_stride = 0;     ///< Elements from one row to the next; may be negative.
  std::ptrdiff_t column_stride = 1;  ///< Elements from one column to the next; may be negative.

  /// An empty view.
  constexpr matrix_view() = default;
  /// A dense row-major matrix.
  constexpr matrix_view(T* data_, std::size_t rows_, std::size_t columns_)
      : matrix_view(data_, rows_, columns_, static_cast<std::ptrdiff_t>(columns_)) {}
  /// A matrix with strides in elements; with the default column stride it is row-major.
  constexpr matrix_view(T* data_, std::size_t rows_, std::size_t columns_,
                        std::ptrdiff_t row_stride_, std::ptrdiff_t column_stride_ = 1)
      : data(data_),
        rows(rows_),
        columns(columns_),
        row_stride(row_stride_),
        column_stride(column_stride_) {}
  /// Converts a view of mutable elements to a view of const ones.
  template <class U>
  requires(std::is_const_v<T>&& std::same_as<std::remove_const_t<T>, U>) constexpr matrix_view(
      const matrix_view<U>& other)  // NOLINT(google-explicit-constructor)
      : matrix_view(other.data, other.rows, other.columns, other.row_stride, other.column_stride) {}

  /// Element in row r and column c; the indices are not checked.
  [[nodiscard]] constexpr T& operator()(std::size_t r, std::size_t c) const noexcept {
    return data[static_cast<std::ptrdiff_t>(r) * row_stride +
                static_cast<std::ptrdiff_t>(c) * column_stride];
  }
  /// The same memory with rows and columns exchanged.
  [[nodiscard]] constexpr matrix_view transposed() const noexcept {
    return {data, columns, rows, column_stride, row_stride};
  }
};

/// The largest number of dimensions that a tensor_view has.
inline constexpr std::size_t max_rank = 8;

/// A strided view of a tensor of up to eight dimensions: element (i0, i1, ...) is
/// data[i0 * strides[0] + i1 * strides[1] + ...]. Strides are in elements and may be negative, or
/// zero if the view is only read. A view of rank 0 has one element. The view owns nothing.
template <class T>
struct tensor_view {
  T* data = nullptr;                               ///< Address of element (0, 0, ...).
  std::size_t rank = 0;                            ///< Number of dimensions, at most max_rank.
  std::array<std::size_t, max_rank> shape{};       ///< Extents; the first `rank` are used.
  std::array<std::ptrdiff_t, max_rank> strides{};  ///< Strides in elements, as many as extents.

  /// A view of rank 0 with null data.
  constexpr tensor_view() = default;
  /// A dense view whose last dimension is contiguous. Throws invalid_argument if the shape has more
  /// than max_rank dimensions or makes more than 2^48 elements.
  tensor_view(T* data_, std::span<const std::size_t> shape_) : data(data_), rank(shape_.size()) {
    require(rank <= max_rank, error_kind::invalid_argument, "tensor_view: rank ", rank, " is over ",
            max_rank);
    std::size_t stride = 1;  // it may wrap beside an extent of 0
    for (std::size_t i = rank; i-- > 0;) {
      shape[i] = shape_[i];
      strides[i] = static_cast<std::ptrdiff_t>(stride);
      stride *= shape_[i];
    }
    constexpr std::size_t most = (static_cast<std::size_t>(-1) >> 16U) + 1;
    require(size() <= most, error_kind::invalid_argument, "tensor_view: the shape makes more than ",
            most, " elements");
  }
  /// A dense view whose last dimension is contiguous, with the shape as a braced list. Throws what
  /// the form with a span throws.
  tensor_view(T* data_, std::initializer_list<std::size_t> shape_)
      : tensor_view(data_, std::span<const std::size_t>(shape_.begin(), shape_.size())) {}
  /// A view with any strides, in elements. Throws what the form without strides throws, and
  /// shape_mismatch if there is not one stride for each dimension.
  tensor_view(T* data_, std::span<const std::size_t> shape_,
              std::span<const std::ptrdiff_t> strides_)
      : tensor_view(data_, shape_) {
    require(strides_.size() == rank, error_kind::shape_mismatch, "tensor_view: ", strides_.size(),
            " strides for rank ", rank);
    for (std::size_t i = 0; i < rank; ++i) {
      strides[i] = strides_[i];
    }
  }
  /// Converts a view of mutable elements to a view of const ones.
  template <class U>
  requires(std::is_const_v<T>&& std::same_as<std::remove_const_t<T>, U>) constexpr tensor_view(
      const tensor_view<U>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data), rank(other.rank), shape(other.shape), strides(other.strides) {}

  /// Number of elements: the product of the extents, 1 for rank 0. The largest std::size_t if the
  /// product is above it, as that of extents that were written into `shape` may be.
  [[nodiscard]] constexpr std::size_t size() const noexcept {
    std::size_t product = 1;
    // The product is below 2^bits: as a rule it fits, and nothing has to be divided.
    int bits = 0;
    for (std::size_t i = 0; i < rank; ++i) {
      product *= shape[i];
      bits += static_cast<int>(std::bit_width(shape[i]));
    }
    return bits <= std::numeric_limits<std::size_t>::digits ? product : size_of_large();
  }

 private:
  [[nodiscard]] constexpr std::size_t size_of_large() const noexcept {
    constexpr auto most = static_cast<std::size_t>(-1);
    const auto last = shape.begin() + static_cast<std::ptrdiff_t>(rank);
    if (std::find(shape.begin(), last, std::size_t{0}) != last) {
      return 0;
    }
    std::size_t product = 1;
    for (std::size_t i = 0; i < rank; ++i) {
      product = product > most / shape[i] ? most : product * shape[i];
    }
    return product;
  }
};

DETENT_NAMESPACE_END

#endif  // DETENT_TYPES_HPP
