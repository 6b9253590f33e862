// SPDX-License-Identifier: BSD-3-Clause
// How com.microsoft.MatMulNBits stores its weights.
//
//   B            [N, blocks, block_size * bits / 8]   for each column of the weights its K codes,
//                padded to whole blocks; several to a byte, the first in the lowest bits
//   scales       [N, blocks]                          blocks = ceil(K / block_size)
//   zero points  [N, ceil(blocks * bits / 8)]         packed like B; or [N, blocks] in the type of
//                the scales; or absent, which stands for 2^(bits - 1)
//
//   weight[k, n] = (code[n, k] - zero_point[n, k / block_size]) * scale[n, k / block_size]
//
// Source: the schema of the operator in ONNX Runtime, com.microsoft version 1.
#ifndef DETENT_GRAPH_OPS_NBITS_LAYOUT_HPP
#define DETENT_GRAPH_OPS_NBITS_LAYOUT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/sub_byte.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The sizes of the stored weights of MatMulNBits, which follow from bits (2, 4 or 8), block size
/// (a power of two, 16 or more), K and N.
struct nbits_layout {
  std::size_t bits = 4;
  std::size_t block_size = 32;
  std::size_t depth = 0;    // K
  std::size_t columns = 0;  // N

  /// Number of blocks of one column of the weights.
  [[nodiscard]] std::size_t blocks() const noexcept {
    return (depth + block_size - 1) / block_size;
  }
  /// Bytes of the codes of one block.
  [[nodiscard]] std::size_t block_bytes() const noexcept { return block_size * bits / 8; }
  /// Bytes of the codes of one column of the weights.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return blocks() * block_bytes(); }
  /// Bytes of the packed zero points of one column of the weights.
  [[nodiscard]] std::size_t zero_point_bytes() const noexcept { return (blocks() * bits + 7) / 8; }
  /// The zero point of weights that have none stored: the middle of the grid.
  [[nodiscard]] std::int32_t default_zero_point() const noexcept { return 1 << (bits - 1); }
};

namespace detail {

/// Calls f.operator()<T>() with the packed type uint2 or uint4. Throws invalid_argument for other
/// bits.
template <class Function>
void for_packed_bits(std::size_t bits, const Function& f) {
  if (bits == 2) {
    f.template operator()<uint2>();
  } else {
    detent::require(bits == 4, error_kind::invalid_argument, "codes of ", bits,
                    " bits, expected 2, 4 or 8");
    f.template operator()<uint4>();
  }
}

}  // namespace detail

/// Packs codes below 2^bits into bytes, the first in the lowest bits; bytes behind the last code
/// become zero. Throws shape_mismatch if there are fewer bytes than the codes take,
/// invalid_argument if `bits` is not 2, 4 or 8.
inline void pack_nbits(std::size_t bits, std::span<const std::uint8_t> codes,
                       std::span<std::uint8_t> bytes) {
  const std::size_t size = (codes.size() * bits + 7) / 8;
  detent::require(size <= bytes.size(), error_kind::shape_mismatch, "pack_nbits: ", bytes.size(),
                  " bytes for ", codes.size(), " codes of ", bits, " bits");
  if (bits == 8) {
    std::copy(codes.begin(), codes.end(), bytes.begin());
  } else {
    detail::for_packed_bits(
        bits, [&]<class T>() { pack(codes, packed_span<T>(bytes.first(size), codes.size())); });
  }
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(size), bytes.end(), std::uint8_t{0});
}

/// Unpacks the first codes.size() codes of `bytes`. Throws as pack_nbits().
inline void unpack_nbits(std::size_t bits, std::span<const std::uint8_t> bytes,
                         std::span<std::uint8_t> codes) {
  const std::size_t size = (codes.size() * bits + 7) / 8;
  detent::require(size <= bytes.size(), error_kind::shape_mismatch, "unpack_nbits: ", codes.size(),
                  " codes of ", bits, " bits in ", bytes.size(), " bytes");
  if (bits == 8) {
    std::copy_n(bytes.begin(), codes.size(), codes.begin());
    return;
  }
  detail::for_packed_bits(bits, [&]<class T>() {
    unpack(packed_span<const T>(bytes.first(size), codes.size()), codes);
  });
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_NBITS_LAYOUT_HPP
