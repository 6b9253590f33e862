// SPDX-License-Identifier: BSD-3-Clause
// Tiles of 6 rows x 64 columns with vpdpbusd in AVX-512 registers, for passes with
// DETENT_PASS_ASSEMBLY.
//
// The loop is in assembly, because its 24 sums, 4 vectors of weights and 4 broadcast groups of rows
// fill all 32 registers: compilers then move sums from register to register (GCC 12: 6 to 45 moves
// for 96 multiplications, depending on the code around the loop), and a move takes one of the two
// ports that multiply. The code that stores a tile is short for the same reason: while it runs,
// nothing multiplies.

#ifndef DETENT_KERNELS_VECTOR_TILE_VNNI512_INL_HPP
#define DETENT_KERNELS_VECTOR_TILE_VNNI512_INL_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/vector/byte_steps-inl.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/store_sums-inl.hpp>
#include <detent/kernels/vector/tile_operands-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/tile_vnni512-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

#if DETENT_PASS_ASSEMBLY

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// The arguments of the assembly that it reads from memory; registers hold only what is used all
/// the time.
struct vnni512_tile {
  static constexpr std::size_t stride = 64;  // elements between rows of the sums

  const std::uint8_t* const* rows;
  std::size_t row_stride;    // bytes from the pointers of a segment to those of the next
  std::size_t offset;        // from the start of a row to the end of its whole steps
  std::size_t segments;      // not 0
  std::ptrdiff_t steps;      // minus the bytes of a row's whole steps
  std::size_t rest;          // bytes of the whole groups behind the whole steps
  const std::uint8_t* last;  // the last group of each row, if it is not whole, or null
  std::int32_t* sums;
  std::size_t is_first;  // not 0: sums are set; 0: added to
  std::uint8_t* turned;  // where turned bytes are written, or null
  std::ptrdiff_t saved;  // holds a register meanwhile
  std::uint32_t sign = 0x80808080U;
};

/// Bytes whose signs are turned in one step: as many bytes of the next tile's rows as a step reads
/// of this tile's rows.
inline constexpr std::size_t turned_step = rows_of_tile * groups_per_step * group_depth;

// clang-format off
// One row's products with a group of k: broadcasts the four values at `address` to register `a`.
// Sums are registers 8 to 31, row by row; s0 to s3 are the four of a row.
#define DETENT_TILE_ROW(address, a, s0, s1, s2, s3) \
  "vpbroadcastd " address ", %%zmm" a "\n\t"        \
  "vpdpbusd %%zmm0, %%zmm" a ", %%zmm" s0 "\n\t"    \
  "vpdpbusd %%zmm1, %%zmm" a ", %%zmm" s1 "\n\t"    \
  "vpdpbusd %%zmm2, %%zmm" a ", %%zmm" s2 "\n\t"    \
  "vpdpbusd %%zmm3, %%zmm" a ", %%zmm" s3 "\n\t"
// The products of one group of k: weights at `at` of each panel, and the address of each row's four
// values.
#define DETENT_TILE_GROUP(at, row0, row1, row2, row3, row4, row5) \
  "vmovdqu64 " at "(%[b]), %%zmm0\n\t"                            \
  "vmovdqu64 " at "(%[b],%[panel]), %%zmm1\n\t"                   \
  "vmovdqu64 " at "(%[b],%[panel],2), %%zmm2\n\t"                 \
  "vmovdqu64 " at "(%[b],%[three]), %%zmm3\n\t"                   \
  DETENT_TILE_ROW(row0, "4", "8", "9", "10", "11")                \
  DETENT_TILE_ROW(row1, "5", "12", "13", "14", "15")              \
  DETENT_TILE_ROW(row2, "6", "16", "17", "18", "19")              \
  DETENT_TILE_ROW(row3, "7", "20", "21", "22", "23")              \
  DETENT_TILE_ROW(row4, "4", "24", "25", "26", "27")              \
  DETENT_TILE_ROW(row5, "5", "28", "29", "30", "31")
// DETENT_TILE_GROUP for the values of each row r at r + %[i] + k.
#define DETENT_TILE_GROUP_AT(at, k)                                           \
  DETENT_TILE_GROUP(at, k "(%[r0],%[i])", k "(%[r1],%[i])", k "(%[r2],%[i])", \
                    k "(%[r3],%[i])", k "(%[r4],%[i])", k "(%[r5],%[i])")
// f(offset of a row in the sums, offset in that row, register) for each register of sums; the
// offsets count bytes.
#define DETENT_TILE_FOUR(f, row, s0, s1, s2, s3) \
  f(row, "0", s0) f(row, "64", s1) f(row, "128", s2) f(row, "192", s3)
#define DETENT_TILE_ALL(f)                            \
  DETENT_TILE_FOUR(f, "0", "8", "9", "10", "11")      \
  DETENT_TILE_FOUR(f, "256", "12", "13", "14", "15")  \
  DETENT_TILE_FOUR(f, "512", "16", "17", "18", "19")  \
  DETENT_TILE_FOUR(f, "768", "20", "21", "22", "23")  \
  DETENT_TILE_FOUR(f, "1024", "24", "25", "26", "27") \
  DETENT_TILE_FOUR(f, "1280", "28", "29", "30", "31")
#define DETENT_TILE_CLEAR(row, at, s) "vpxord %%zmm" s ", %%zmm" s ", %%zmm" s "\n\t"
#define DETENT_TILE_ADD(row, at, s) "vpaddd " row "+" at "(%[r0]), %%zmm" s ", %%zmm" s "\n\t"
#define DETENT_TILE_STORE(row, at, s) "vmovdqu64 %%zmm" s ", " row "+" at "(%[r0])\n\t"
// clang-format on

/// add_tile() for six rows and four panels. Labels: 1 a segment, 2 a step of four groups, 4 a group
/// behind the whole steps, 6 the sums, 8 turns signs.
HWY_INLINE void add_vnni512_tile(const tile_operands& o, std::int32_t* sums) noexcept {
  constexpr std::size_t step = groups_per_step * group_depth;
  static_assert(step == 16, "the loop below takes four groups at a time");
  static_assert(turned_step == 64 + 32);
  std::uint8_t last[6][group_depth];
  const bool has_last = o.depth % group_depth != 0;
  if (has_last) {
    for (std::size_t r = 0; r < 6; ++r) {
      copy_last_group(o, r, last[r]);
    }
  }
  const std::size_t whole = o.depth / step * step;
  vnni512_tile t{o.rows,
                 o.row_stride * sizeof(*o.rows),
                 o.offset + whole,
                 o.segments,
                 -static_cast<std::ptrdiff_t>(whole),
                 (o.depth - whole) / group_depth * group_depth,
                 has_last ? last[0] : nullptr,
                 sums,
                 o.is_first,
                 o.turned,
                 0};
  const std::int8_t* b = o.b;
  const std::int8_t* next = o.next;
  const std::uint8_t *r0, *r1, *r2, *r3, *r4, *r5;
  std::ptrdiff_t i;
  __asm__ volatile(
      DETENT_TILE_ALL(DETENT_TILE_CLEAR)
      "1:\n\t"  // a segment
      "mov %c[rows](%[t]), %[i]\n\t"
      "mov (%[i]), %[r0]\n\t"
      "mov 8(%[i]), %[r1]\n\t"
      "mov 16(%[i]), %[r2]\n\t"
      "mov 24(%[i]), %[r3]\n\t"
      "mov 32(%[i]), %[r4]\n\t"
      "mov 40(%[i]), %[r5]\n\t"
      "add %c[row_stride](%[t]), %[i]\n\t"
      "mov %[i], %c[rows](%[t])\n\t"
      "mov %c[offset](%[t]), %[i]\n\t"
      "add %[i], %[r0]\n\t"
      "add %[i], %[r1]\n\t"
      "add %[i], %[r2]\n\t"
      "add %[i], %[r3]\n\t"
      "add %[i], %[r4]\n\t"
      "add %[i], %[r5]\n\t"
      "mov %c[steps](%[t]), %[i]\n\t"
      "test %[i], %[i]\n\t"
      "jz 3f\n\t"
      ".p2align 5\n\t"
      "2:\n\t"
      "cmpq $0, %c[turned](%[t])\n\t"
      "jne 8f\n\t"
      "prefetcht1 (%[next])\n\t"
      "add $64, %[next]\n\t"
      "9:\n\t"
      DETENT_TILE_GROUP_AT("0", "0")
      DETENT_TILE_GROUP_AT("64", "4")
      DETENT_TILE_GROUP_AT("128", "8")
      DETENT_TILE_GROUP_AT("192", "12")
      "add $256, %[b]\n\t"
      "add $16, %[i]\n\t"
      "jnz 2b\n\t"
      "3:\n\t"  // here %[i] is 0
      "cmp %c[rest](%[t]), %[i]\n\t"
      "jae 5f\n\t"
      "4:\n\t"
      DETENT_TILE_GROUP_AT("0", "0")
      "add $64, %[b]\n\t"
      "add $4, %[i]\n\t"
      "cmp %c[rest](%[t]), %[i]\n\t"
      "jb 4b\n\t"
      "5:\n\t"
      "decq %c[segments](%[t])\n\t"
      "jnz 1b\n\t"
      "mov %c[last](%[t]), %[r0]\n\t"
      "test %[r0], %[r0]\n\t"
      "jz 6f\n\t"
      DETENT_TILE_GROUP("0", "(%[r0])", "4(%[r0])", "8(%[r0])", "12(%[r0])", "16(%[r0])",
                        "20(%[r0])")
      "6:\n\t"
      "mov %c[sums](%[t]), %[r0]\n\t"
      "cmpq $0, %c[is_first](%[t])\n\t"
      "jne 7f\n\t"
      DETENT_TILE_ALL(DETENT_TILE_ADD)
      "7:\n\t"
      DETENT_TILE_ALL(DETENT_TILE_STORE)
      "jmp 10f\n\t"
      "8:\n\t"  // signs are turned
      "mov %[i], %c[saved](%[t])\n\t"
      "mov %c[turned](%[t]), %[i]\n\t"
      "vmovdqu64 (%[next]), %%zmm4\n\t"
      "vmovdqu 64(%[next]), %%ymm5\n\t"
      "vpxord %c[sign](%[t])%{1to16%}, %%zmm4, %%zmm4\n\t"
      "vpxord %c[sign](%[t])%{1to8%}, %%ymm5, %%ymm5\n\t"
      "vmovdqu64 %%zmm4, (%[i])\n\t"
      "vmovdqu %%ymm5, 64(%[i])\n\t"
      "add $96, %[next]\n\t"
      "add $96, %[i]\n\t"
      "mov %[i], %c[turned](%[t])\n\t"
      "mov %c[saved](%[t]), %[i]\n\t"
      "jmp 9b\n\t"
      "10:\n\t"
      : [b] "+r"(b), [next] "+r"(next), [i] "=&r"(i), [r0] "=&r"(r0), [r1] "=&r"(r1),
        [r2] "=&r"(r2), [r3] "=&r"(r3), [r4] "=&r"(r4), [r5] "=&r"(r5)
      : [t] "r"(&t), [panel] "r"(o.panel_stride), [three] "r"(3 * o.panel_stride),
        [rows] "i"(offsetof(vnni512_tile, rows)),
        [row_stride] "i"(offsetof(vnni512_tile, row_stride)),
        [offset] "i"(offsetof(vnni512_tile, offset)), [steps] "i"(offsetof(vnni512_tile, steps)),
        [rest] "i"(offsetof(vnni512_tile, rest)),
        [segments] "i"(offsetof(vnni512_tile, segments)),
        [last] "i"(offsetof(vnni512_tile, last)), [sums] "i"(offsetof(vnni512_tile, sums)),
        [is_first] "i"(offsetof(vnni512_tile, is_first)),
        [turned] "i"(offsetof(vnni512_tile, turned)), [saved] "i"(offsetof(vnni512_tile, saved)),
        [sign] "i"(offsetof(vnni512_tile, sign))
      : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18",
        "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28",
        "xmm29", "xmm30", "xmm31");
}

#undef DETENT_TILE_STORE
#undef DETENT_TILE_ADD
#undef DETENT_TILE_CLEAR
#undef DETENT_TILE_ALL
#undef DETENT_TILE_FOUR
#undef DETENT_TILE_GROUP_AT
#undef DETENT_TILE_GROUP
#undef DETENT_TILE_ROW

/// The epilogue of a whole tile, six rows and four panels, if rows and elements have no terms of
/// their own.
template <integer_output kOutput>
HWY_INLINE void store_tile(const integer_epilogue& e, const std::int32_t* sums, std::size_t column,
                           void* c, std::size_t index, std::size_t ldc) noexcept {
  constexpr std::size_t kRows = rows_of_tile;
  constexpr std::size_t kStride = vnni512_tile::stride;
  constexpr std::size_t kVectors = kStride / lanes;
  if constexpr (is_bytes<kOutput>) {
    const byte_steps<byte_of<kOutput>> grid(e);
    int_vector offset[kVectors];
    float_vector multiplier[kVectors];
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      offset[v] = hn::LoadU(int_tag{}, e.column_offset + column + v * lanes);
      multiplier[v] = hn::LoadU(float_tag{}, e.multiplier + column + v * lanes);
    }
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      int_vector steps[kVectors];
      DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
        const int_vector sum = hn::Load(int_tag{}, sums + r * kStride + v * lanes);
        steps[v] = grid.steps(hn::Add(sum, offset[v]), multiplier[v]);
      }
      grid.store(steps, static_cast<byte_of<kOutput>*>(c) + index + r * ldc);
    }
  } else {
    using columns = column_epilogue<kOutput, false, false>;
    const columns all[kVectors] = {columns(e, column), columns(e, column + lanes),
                                   columns(e, column + 2 * lanes), columns(e, column + 3 * lanes)};
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
        all[v].store(e, sums + r * kStride + v * lanes, 0, lanes, c, index + r * ldc + v * lanes);
      }
    }
  }
}

/// Multiplies `tiles` tiles of six rows by the four panels from `column` on, one after the other;
/// each is stored when all of k has been added. Weights are prefetched from t.next to next_end,
/// then from the beginning again.
template <integer_output kOutput>
void multiply_tiles(const gemm_u8s8_args& g, tile_operands t, std::size_t tiles, std::size_t row,
                    std::size_t column, const std::int8_t* next_end, rows_to_turn turn) noexcept {
  constexpr std::size_t kRows = rows_of_tile;
  alignas(64) std::int32_t sums[kRows * vnni512_tile::stride];
  const std::int8_t* const next_begin = t.next;
  for (; tiles > 0; --tiles, row += kRows) {
    const std::int8_t* const next = t.next;
    const bool turns = turn.from != nullptr && tiles > 1;
    if (turns) {
      turn.from += kRows * t.depth;
      turn.to += kRows * t.depth;
      t.next = reinterpret_cast<const std::int8_t*>(turn.from);
      t.turned = turn.to;
    }
    tile_operands tile = t;
    if (t.zero_segment != nullptr) {
      leave_out_zeros<kRows>(tile);
    }
    add_vnni512_tile(tile, sums);
    if (turns) {
      const std::size_t done = t.depth / (groups_per_step * group_depth) * turned_step;
      turn_signs(turn.from + done, kRows * t.depth - done, turn.to + done);
      t.next = next;
      t.turned = nullptr;
    }
    store_tile<kOutput>(g.epilogue, sums, column, g.c, row * g.ldc + column, g.ldc);
    t.rows += kRows;
    t.next += t.next_bytes();
    t.next = t.next < next_end ? t.next : next_begin;
  }
}

/// multiply_tiles() for the output type of g.
inline void multiply_tiles(const gemm_u8s8_args& g, const tile_operands& t, std::size_t tiles,
                           std::size_t row, std::size_t column, const std::int8_t* next_end,
                           const rows_to_turn& turn) noexcept {
  switch (g.epilogue.output) {
    case integer_output::s32:
      return multiply_tiles<integer_output::s32>(g, t, tiles, row, column, next_end, turn);
    case integer_output::f32:
      return multiply_tiles<integer_output::f32>(g, t, tiles, row, column, next_end, turn);
    case integer_output::bf16:
      return multiply_tiles<integer_output::bf16>(g, t, tiles, row, column, next_end, turn);
    case integer_output::u8:
      return multiply_tiles<integer_output::u8>(g, t, tiles, row, column, next_end, turn);
    case integer_output::s8:
      return multiply_tiles<integer_output::s8>(g, t, tiles, row, column, next_end, turn);
  }
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#endif  // DETENT_PASS_ASSEMBLY

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
