// SPDX-License-Identifier: BSD-3-Clause
// The vocabulary of the numerics floor: grids, schemes, parameters, views.
//
//   real = scale * (q - zero_point)
#ifndef DETENT_TYPES_HPP
#define DETENT_TYPES_HPP

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN

/// The integer types of the products: what activations and weights are stored in.
template <class Q>
concept quantized_byte = std::same_as<Q, std::int8_t> || std::same_as<Q, std::uint8_t>;

/// The integer types of a whole number of bytes that reals are quantized to.
template <class Q>
concept quantized_type =
    quantized_byte<Q> || std::same_as<Q, std::int16_t> || std::same_as<Q, std::uint16_t>;

/// The integers that a quantized value may take: qmin..qmax, both included.
struct grid {
  std::int32_t qmin;
  std::int32_t qmax;
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

/// Every value of the type: -128..127, 0..255, for int4 (packed.hpp) -8..7, and so on.
template <class Q>
inline constexpr grid full_grid = detail::levels_of<Q>();

/// "Narrow range": one value less, so that a signed grid is symmetric: -127..127 or 1..255.
template <class Q>
inline constexpr grid narrow_grid{full_grid<Q>.qmin + 1, full_grid<Q>.qmax};

/// How a range of reals becomes a scale and a zero point.
struct quant_scheme {
  grid levels;
  bool symmetric;  // zero_point is the middle of the grid and the range is made symmetric about 0
  friend constexpr bool operator==(const quant_scheme&, const quant_scheme&) = default;
};

/// The whole grid, zero point wherever the range puts it.
template <class Q>
inline constexpr quant_scheme asymmetric{full_grid<Q>, false};

/// Signed: -127..127, zero point 0. Unsigned: 0..255, zero point 128.
template <class Q>
inline constexpr quant_scheme symmetric{full_grid<Q>.qmin < 0 ? narrow_grid<Q> : full_grid<Q>,
                                        true};

/// Parameters of one tensor.
struct quant_params {
  float scale = 1.0F;
  std::int32_t zero_point = 0;
  friend constexpr bool operator==(const quant_params&, const quant_params&) = default;
};

/// Parameters of each channel along `axis` of a view; both vectors have that axis's extent.
struct channel_quant_params {
  std::size_t axis = 0;
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
};

/// Parameters of each block of `block_size` elements along `axis` of a view; the last block of a
/// line may be shorter. Both vectors are dense, in the shape of the view but for that axis, which
/// has ceil(extent / block_size) blocks (ONNX's blocked quantization, "per group").
struct block_quant_params {
  std::size_t axis = 0;
  std::size_t block_size = 0;
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
};

/// A range of reals, lower <= upper.
struct value_range {
  float lower = 0.0F;
  float upper = 0.0F;
  friend constexpr bool operator==(const value_range&, const value_range&) = default;
};

/// A matrix anywhere in memory: element (r, c) is data[r * row_stride + c * column_stride].
template <class T>
struct matrix_view {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t column_stride = 1;

  constexpr matrix_view() = default;
  /// Row-major and dense unless `row_stride_` (in elements) says otherwise.
  constexpr matrix_view(T* data_, std::size_t rows_, std::size_t columns_)
      : matrix_view(data_, rows_, columns_, static_cast<std::ptrdiff_t>(columns_)) {}
  constexpr matrix_view(T* data_, std::size_t rows_, std::size_t columns_,
                        std::ptrdiff_t row_stride_, std::ptrdiff_t column_stride_ = 1)
      : data(data_),
        rows(rows_),
        columns(columns_),
        row_stride(row_stride_),
        column_stride(column_stride_) {}
  /// A view of mutable elements serves where a view of const ones is asked for.
  template <class U>
  requires(std::is_const_v<T>&& std::same_as<std::remove_const_t<T>, U>) constexpr matrix_view(
      const matrix_view<U>& other)  // NOLINT(google-explicit-constructor)
      : matrix_view(other.data, other.rows, other.columns, other.row_stride, other.column_stride) {}

  [[nodiscard]] constexpr T& operator()(std::size_t r, std::size_t c) const noexcept {
    return data[static_cast<std::ptrdiff_t>(r) * row_stride +
                static_cast<std::ptrdiff_t>(c) * column_stride];
  }
  [[nodiscard]] constexpr matrix_view transposed() const noexcept {
    return {data, columns, rows, column_stride, row_stride};
  }
};

inline constexpr std::size_t max_rank = 8;

/// A strided view of up to eight dimensions. Strides are in elements and may be negative or zero
/// (zero only for reading).
template <class T>
struct tensor_view {
  T* data = nullptr;
  std::size_t rank = 0;
  std::array<std::size_t, max_rank> shape{};
  std::array<std::ptrdiff_t, max_rank> strides{};

  constexpr tensor_view() = default;
  /// Dense, last dimension fastest.
  tensor_view(T* data_, std::span<const std::size_t> shape_) : data(data_), rank(shape_.size()) {
    require(rank <= max_rank, error_kind::invalid_argument, "tensor_view: rank ", rank, " is over ",
            max_rank);
    std::ptrdiff_t stride = 1;
    for (std::size_t i = rank; i-- > 0;) {
      shape[i] = shape_[i];
      strides[i] = stride;
      stride *= static_cast<std::ptrdiff_t>(shape_[i]);
    }
  }
  tensor_view(T* data_, std::initializer_list<std::size_t> shape_)
      : tensor_view(data_, std::span<const std::size_t>(shape_.begin(), shape_.size())) {}
  tensor_view(T* data_, std::span<const std::size_t> shape_,
              std::span<const std::ptrdiff_t> strides_)
      : tensor_view(data_, shape_) {
    require(strides_.size() == rank, error_kind::shape_mismatch, "tensor_view: ", strides_.size(),
            " strides for rank ", rank);
    for (std::size_t i = 0; i < rank; ++i) {
      strides[i] = strides_[i];
    }
  }
  template <class U>
  requires(std::is_const_v<T>&& std::same_as<std::remove_const_t<T>, U>) constexpr tensor_view(
      const tensor_view<U>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data), rank(other.rank), shape(other.shape), strides(other.strides) {}

  [[nodiscard]] constexpr std::size_t size() const noexcept {
    std::size_t product = 1;
    for (std::size_t i = 0; i < rank; ++i) {
      product *= shape[i];
    }
    return product;
  }
};

DETENT_NAMESPACE_END

#endif  // DETENT_TYPES_HPP
