// SPDX-License-Identifier: BSD-3-Clause
// Compiles the kernels. Include this header, before any other header of detent, in exactly one
// translation unit of a program whose other units define DETENT_SEPARATE_COMPILATION. The CMake
// target detent::kernels contains such a unit.
#ifndef DETENT_SRC_HPP
#define DETENT_SRC_HPP

#if defined(DETENT_CONFIG_HPP) && !defined(DETENT_COMPILE_KERNELS)
#error "detent: include <detent/src.hpp> before any other header of detent"
#endif
#ifndef DETENT_COMPILE_KERNELS
/// Defined in the one translation unit that compiles the kernels. Including src.hpp defines it; a
/// user of the single header defines it before including that header.
#define DETENT_COMPILE_KERNELS
#endif

#include <detent/kernels/active_target.hpp>
#include <detent/kernels/cache_sizes.hpp>
#include <detent/kernels/definitions/byte_lookup.hpp>
#include <detent/kernels/definitions/depthwise.hpp>
#include <detent/kernels/definitions/double_products.hpp>
#include <detent/kernels/definitions/elementwise.hpp>
#include <detent/kernels/definitions/exponentials.hpp>
#include <detent/kernels/definitions/float_functions.hpp>
#include <detent/kernels/definitions/float_products.hpp>
#include <detent/kernels/definitions/float_rows.hpp>
#include <detent/kernels/definitions/half_quadratic.hpp>
#include <detent/kernels/definitions/integer_products.hpp>
#include <detent/kernels/definitions/maxima.hpp>
#include <detent/kernels/definitions/nibble_products.hpp>
#include <detent/kernels/definitions/quantized_binary.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/kernels/definitions/transposition.hpp>
#include <detent/kernels/definitions/winograd.hpp>

#endif  // DETENT_SRC_HPP
