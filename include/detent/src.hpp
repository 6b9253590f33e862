// SPDX-License-Identifier: BSD-3-Clause
// Include this, before any other header of detent, in exactly one translation unit of a program
// whose other units define DETENT_SEPARATE_COMPILATION. It compiles the kernels; the CMake target
// detent::kernels does it.
#ifndef DETENT_SRC_HPP
#define DETENT_SRC_HPP

#if defined(DETENT_KERNELS_DISPATCH_HPP) && !defined(DETENT_COMPILE_KERNELS)
#error "detent: include <detent/src.hpp> before any other header of detent"
#endif
#ifndef DETENT_COMPILE_KERNELS
#define DETENT_COMPILE_KERNELS
#endif

#include <detent/kernels/dispatch.hpp>

#endif  // DETENT_SRC_HPP
