// SPDX-License-Identifier: BSD-3-Clause
// Must not compile: the kernels have been declared, and would not be compiled.
#define DETENT_SEPARATE_COMPILATION
#include <detent/dispatch.hpp>
// before src.hpp
#include <detent/src.hpp>
