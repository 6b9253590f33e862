// SPDX-License-Identifier: BSD-3-Clause
// How weights and filters are stored for the kernels of integer products: in panels of columns, the
// same on every target.
#ifndef DETENT_KERNELS_PANELS_HPP
#define DETENT_KERNELS_PANELS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// A panel: this many neighbouring columns of a weight matrix, stored together. The columns of a
/// matrix are filled up to whole panels.
inline constexpr std::size_t panel_columns = 16;
/// A group: this many consecutive k of one column, stored side by side, as many as vpdpbusd
/// multiplies and adds in one 32-bit lane.
inline constexpr std::size_t group_depth = 4;

/// Signed 8-bit weights, k x n:
///
///   data[((panel * groups + group) * 16 + column) * 4 + depth]
///
/// with groups = ceil(k / 4) and zeros where k or n end early.
///
/// Where an instruction adds the products of two neighbouring k in 16 bits (vpmaddubsw), `paired`
/// is read instead, of which no pair overflows with any u8. Each strip of strip_columns columns has
/// an order of its own of the k within blocks of block_depth, and takes 255 - a in place of some a,
/// with the opposite weights, both chosen so that hardly any pair would:
///
///   k = block * block_depth + order[i]
///   a'(i) = a(k) ^ complement[i]                                         (complement: 0 or 255)
///   paired(block * block_depth + i, j) = data(k, j) - correction         where complement[i] is 0
///                                       -data(k, j) - correction         where it is 255
///   offset[j] = 255 * sum of data(k, j) over those k                     (modulo 2^32)
///
/// with 16 bytes of order and of complement for each block of each strip, and zeros up to a whole
/// block, and offsets up to a whole panel. Corrections are what is left: those of a panel are
/// first_correction[panel] .. first_correction[panel + 1]; number i belongs to group
/// correction_group[i] of that order, ascending within a panel, and is laid out like a group. All
/// but `data` is null for tables without adds_pairs.
struct packed_panels {
  const std::int8_t* data = nullptr;
  const std::int8_t* paired = nullptr;
  const std::uint8_t* order = nullptr;
  const std::uint8_t* complement = nullptr;
  const std::int32_t* offset = nullptr;
  const std::size_t* first_correction = nullptr;
  const std::size_t* correction_group = nullptr;
  const std::int8_t* corrections = nullptr;
};
inline constexpr std::size_t block_depth = 16;
inline constexpr std::size_t strip_columns = 64;

/// 4-bit weights, k x n, as codes 0..15 with a zero point and a scale for each column of each group
/// of group_size (a multiple of nibble_depth) k. Eight k of a column stand in four bytes, the first
/// four in their low halves:
///
///   data[((panel * steps + k / 8) * 16 + column) * 4 + k % 4]             steps = ceil(k / 8)
///   scale[(panel * groups + group) * 16 + column]                         groups = ceil(k /
///   group_size)
///
/// zero_point and column_sum (of codes less their zero points) as scale. Panels are filled up to a
/// multiple of strip_columns columns.
struct packed_nibbles {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* zero_point = nullptr;
  const float* scale = nullptr;
  const std::int32_t* column_sum = nullptr;
  std::size_t group_size = 0;
};
inline constexpr std::size_t nibble_depth = 8;
inline constexpr std::size_t nibble_panel_bytes = panel_columns * nibble_depth / 2;

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PANELS_HPP
