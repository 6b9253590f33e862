// SPDX-License-Identifier: BSD-3-Clause
// The folder kernels/ is the private layer below the numeric headers: for each family of operations
// a struct of arguments and a table of function pointers, one table per CPU target. It may include
// config.hpp, target.hpp and base/, nothing else of the library. The tables are filled in
// definitions/ from portable/ (plain C++) and vector/ (Highway). Kernels check nothing and do not
// throw.
//
// This file holds the layouts of weight matrices and filters, which are the same on every target,
// and defines the words for them. B is the K x N matrix of weights, A the M x K left side,
// C = A * B; k counts 0 .. K - 1.
//
// panel: 16 neighbouring columns of B with all their k, stored together. strip: 64 neighbouring
// columns, that is four panels.
//
//             column 0        16        32        48        64        80
//                    +---------+---------+---------+---------+---------+--
//             k = 0  |         |         |         |         |         |
//               ...  | panel 0 | panel 1 | panel 2 | panel 3 | panel 4 | ...
//             K - 1  |         |         |         |         |         |
//                    +---------+---------+---------+---------+---------+--
//                    |<-------------- strip 0 -------------->|<-- strip 1
//
// group: 4 consecutive k of one column, in adjacent bytes: what vpdpbusd multiplies and adds in one
// 32-bit lane. The 16 groups of a panel that have the same k fill 64 bytes; "group g of a panel"
// means these 64 bytes, for k = 4g .. 4g + 3. In the picture of a panel, "2.5" is column 2, k = 5.
// For depthwise filters a group is 4 taps of one channel.
//
//      byte    0    1    2    3    4    5    6    7          60   61   62   63
//           +-------------------+-------------------+     +-------------------+
//         0 |0.0  0.1  0.2  0.3 |1.0  1.1  1.2  1.3 | ... |15.0 15.1 15.2 15.3|   group 0
//           +-------------------+-------------------+     +-------------------+
//        64 |0.4  0.5  0.6  0.7 |1.4  1.5  1.6  1.7 | ... |15.4 15.5 15.6 15.7|   group 1
//           +-------------------+-------------------+     +-------------------+
//
// block: 16 consecutive k of one strip, which may be reordered together. pair: two neighbouring k
// in that order, whose products vpmaddubsw adds in 16 bits. The picture is a block that begins at
// k = 32; position i holds k = 32 + order[i].
//
//           position     0    1    2    3    4    5   ...  14   15
//           order[i]     0    9    2    3    4   13   ...  14   15
//           k           32   41   34   35   36   45   ...  46   47
//                       \_pair_/  \_pair_/  \_pair_/       \_pair_/
//                       \_____ group ____/
//
// quarter: 16 of the 64 channels of a depthwise block, which is 64 neighbouring channels.
// Instructions that interleave bytes do so within each 16 bytes of a vector, so that 4 channels of
// every 16 arrive in the same vector of 32-bit lanes; these are a quarter.
//
//           channel  0-3   4-7   8-11 12-15 16-19 20-23 24-27 28-31 32-35 ... 60-63
//           quarter   0     1     2     3     0     1     2     3     0   ...   3
//           lane     0-3   0-3   0-3   0-3   4-7   4-7   4-7   4-7   8-11 ... 12-15
//
// segment: a part of a row of A that may be anywhere in memory. All segments of a product have the
// same size; a convolution has one for each row of its filter.
//
//           row i of A   |   segment 0   |   segment 1   |   segment 2   |
//           address          rows[i]        rows[m + i]   rows[2 * m + i]
//
// run: neighbouring output pixels of a depthwise product that read the same way: every tap of a
// pixel reads `step` elements after the same tap of the pixel before. A pixel whose window is
// partly outside of the image is a run of its own. In the picture of an output line, such pixels
// are "e".
//
//           output line  | e | e | i   i   i   i   i   i   i   i | e | e |
//                         run run  \________ one run ________/  run run
//
// Other uses of the same words carry an adjective: quantization group (k that share a scale), code
// group (four vectors that become one vector of codes), row group and row block (rows that are
// worked on together), line pair (two lines of an image), 128-bit block (16 bytes of a vector). A
// tile is the rows and panels whose sums registers hold at the same time; a chunk is a range of k
// that is multiplied before the next one.
#ifndef DETENT_KERNELS_PANELS_HPP
#define DETENT_KERNELS_PANELS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Columns of a panel. The columns of a matrix are filled up to whole panels.
inline constexpr std::size_t panel_columns = 16;
/// Consecutive k of a group.
inline constexpr std::size_t group_depth = 4;

/// Signed 8-bit weights b(k, j), K x N. Kernels that add four products in 32 bits (portable code,
/// vpdpbusd, AMX) read `data`, panels of groups:
///
///   data[((panel * groups + group) * 16 + column) * 4 + depth]
///       = b(4 * group + depth, 16 * panel + column)              groups = ceil(K / 4)
///
/// with zeros behind the last k and the last column.
///
/// Kernels that add the products of a pair in 16 bits (vpmaddubsw) read `paired` instead, in which
/// no pair overflows, whatever the unsigned bytes of A are. To reach that, each strip has an order
/// of the k within each of its blocks, and multiplies some k by 255 - a with the opposite weight
/// instead of by a; both are chosen so that hardly any pair would overflow. For position i of a
/// block:
///
///   k                         = block * 16 + order[i]
///   a'(block * 16 + i)        = a(k) ^ complement[i]             complement[i]: 0 or 255
///   paired(block * 16 + i, j) = b(k, j) - correction             where complement[i] is 0
///                               -b(k, j) - correction            where complement[i] is 255
///   offset[j]                 = 255 * (sum of b(k, j) over the k whose complement is 255)
///
/// so that the sum over k of a(k) * b(k, j) is offset[j] + the sum of a' * (paired + correction),
/// all modulo 2^32. `paired` is laid out like `data`, with 4 * ceil(K / 16) groups, zeros up to a
/// whole block. `order` and `complement` have 16 bytes for each block of each strip; those of
/// position i are at (strip * ceil(K / 16) + block) * 16 + i. `offset` is filled up to a whole
/// panel.
///
/// Corrections are the parts of weights that neither order nor sign made safe, as sparse groups.
/// Panel p has the corrections i for which first_correction[p] <= i < first_correction[p + 1].
/// Correction i belongs to group correction_group[i] of `paired`, ascending within a panel, and is
/// 64 bytes of `corrections`, laid out like a group of the panel.
///
/// Every member but `data` is null for tables without adds_pairs, and where so many pairs would
/// need a correction that kernels multiply `data` as 16-bit values instead.
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
/// Consecutive k of a block (of pair weights).
inline constexpr std::size_t block_depth = 16;
/// Columns of a strip: four panels. Also the channels of a depthwise block.
inline constexpr std::size_t strip_columns = 64;

/// 4-bit weights, K x N, as codes 0..15 with a zero point and a scale for each column of each
/// quantization group: group_size consecutive k, a multiple of nibble_depth. Eight consecutive k of
/// a column (a step) are four bytes: the first four k in the low halves, the other four in the high
/// halves:
///
///   byte       0           1           2           3
///           +-----+-----+-----+-----+-----+-----+-----+-----+
///           | k 4 | k 0 | k 5 | k 1 | k 6 | k 2 | k 7 | k 3 |    (high half, low half)
///           +-----+-----+-----+-----+-----+-----+-----+-----+
///
///   data[((panel * steps + k / 8) * 16 + column) * 4 + k % 4]    steps = ceil(K / 8)
///   scale[(panel * groups + g) * 16 + column]                    groups = ceil(K / group_size)
///
/// `zero_point` and `column_sum` (the sum over the group's k of code - zero point) are indexed like
/// `scale`. Columns are filled up to a multiple of strip_columns.
struct packed_nibbles {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* zero_point = nullptr;
  const float* scale = nullptr;
  const std::int32_t* column_sum = nullptr;
  std::size_t group_size = 0;
};
/// Consecutive k of a step of 4-bit weights.
inline constexpr std::size_t nibble_depth = 8;
/// Bytes of one step of one panel.
inline constexpr std::size_t nibble_panel_bytes = panel_columns * nibble_depth / 2;

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PANELS_HPP
