// SPDX-License-Identifier: BSD-3-Clause
// Ends a text that is compiled for each target or pass: undefines the macros of the last one. See
// for_each_target-inl.hpp.

#ifdef DETENT_KERNELS_LAST_TEXT
#undef DETENT_KERNELS_LAST_TEXT
#undef DETENT_KERNELS_TEXT
#include <detent/kernels/vector/end_pass-inl.hpp>
#endif
