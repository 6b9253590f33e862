// SPDX-License-Identifier: BSD-3-Clause
// The end of a text that is compiled for each target or pass; see for_each_target-inl.hpp.

#ifdef DETENT_KERNELS_LAST_TEXT
#undef DETENT_KERNELS_LAST_TEXT
#undef DETENT_KERNELS_TEXT
#include <detent/kernels/vector/end_pass-inl.hpp>
#endif
