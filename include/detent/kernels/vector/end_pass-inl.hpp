// SPDX-License-Identifier: BSD-3-Clause
// Ends a pass: undefines its macros. See for_each_pass-inl.hpp.

#undef DETENT_PASS_NAMESPACE
#undef DETENT_PASS_ATTRIBUTES
#undef DETENT_PASS_PAIRS
#undef DETENT_PASS_ASSEMBLY
