// SPDX-License-Identifier: BSD-3-Clause
// Include this, before any other header of detent, in exactly one translation unit of a program
// whose other units define DETENT_SEPARATE_COMPILATION. It compiles the kernels; the CMake target
// detent::kernels does it.
#ifndef DETENT_SRC_HPP
#define DETENT_SRC_HPP

#if defined(DETENT_CONFIG_HPP) && !defined(DETENT_COMPILE_KERNELS)
#error "detent: include <detent/src.hpp> before any other header of detent"
#endif
#ifndef DETENT_COMPILE_KERNELS
#define DETENT_COMPILE_KERNELS
#endif

#include <detent/kernels/active_target.hpp>
#include <detent/kernels/cache_sizes.hpp>
#include <detent/kernels/definitions/depthwise.hpp>
#include <detent/kernels/definitions/elementwise.hpp>
#include <detent/kernels/definitions/float_products.hpp>
#include <detent/kernels/definitions/integer_products.hpp>
#include <detent/kernels/definitions/nibble_products.hpp>
#include <detent/kernels/definitions/quantized_binary.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/kernels/definitions/transposition.hpp>

#endif  // DETENT_SRC_HPP
