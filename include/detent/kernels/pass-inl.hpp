// SPDX-License-Identifier: BSD-3-Clause
// The kernels of integer products, which kernels/dispatch.hpp includes once per Highway target and
// once more for each instruction that Highway's target lacks. Before, it has defined
//
//   DETENT_PASS_NAMESPACE    the namespace of this pass
//   DETENT_PASS_ATTRIBUTES   the target string of its functions
//   DETENT_PASS_DOT(sum, a, b)   sum + a0*b0 + a1*b1 + a2*b2 + a3*b3 in each 32-bit lane, modulo
//                                2^32, for unsigned a and signed b
//   DETENT_PASS_PAIRS            1 if it adds a0*b0 + a1*b1 and a2*b2 + a3*b3 in 16 bits
//   DETENT_PASS_ROWS, DETENT_PASS_PANELS   the largest tile that fits the registers
//   DETENT_PASS_ASSEMBLY         1 if that tile is the one of tile_vnni512-inl.hpp

// Each needs those before it.
// clang-format off
#include <detent/kernels/store_sums-inl.hpp>
#include <detent/kernels/tile_operands-inl.hpp>
#include <detent/kernels/tile_vnni512-inl.hpp>
#include <detent/kernels/gemm_u8s8-inl.hpp>
#include <detent/kernels/gemm_u8s8_pairs-inl.hpp>
#include <detent/kernels/gemm_u8u4-inl.hpp>
#include <detent/kernels/depthwise_u8-inl.hpp>
#include <detent/kernels/depthwise_u8_lines-inl.hpp>
// clang-format on

#undef DETENT_PASS_NAMESPACE
#undef DETENT_PASS_ATTRIBUTES
#undef DETENT_PASS_DOT
#undef DETENT_PASS_PAIRS
#undef DETENT_PASS_ROWS
#undef DETENT_PASS_PANELS
#undef DETENT_PASS_ASSEMBLY
