// SPDX-License-Identifier: BSD-3-Clause
// Ends a pass of gemm_u8s8-inl.hpp.
#undef DETENT_PASS_NAMESPACE
#undef DETENT_PASS_ATTRIBUTES
#undef DETENT_PASS_DOT
#undef DETENT_PASS_PAIRS
#undef DETENT_PASS_ROWS
#undef DETENT_PASS_PANELS
#undef DETENT_PASS_ASSEMBLY
