// SPDX-License-Identifier: BSD-3-Clause
// Compiles the large functions of the graph part once. Include this header in exactly one
// translation unit of a program whose other units define DETENT_GRAPH_SEPARATE_COMPILATION; the
// CMake target detent::graph does both. The two headers that this one includes may also have a unit
// each: then both compile at the same time, and programs that only run models link the first one
// alone. Unlike the kernels, these units must be compiled with the same -m options as the units
// that call them: the options are part of the names of the functions, and with other options the
// linker does not find them.
#ifndef DETENT_GRAPH_SRC_HPP
#define DETENT_GRAPH_SRC_HPP

#if (defined(DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP) || \
     defined(DETENT_OBSERVER_REGISTRY_REGISTRY_HPP)) &&      \
    !defined(DETENT_COMPILE_GRAPH_EXECUTION)
#error "detent: include <detent/graph/src.hpp> before any other header of detent"
#endif
// The headers of the graph part read both macros, hence these stand before the first of them.
#ifndef DETENT_COMPILE_GRAPH_EXECUTION
#define DETENT_COMPILE_GRAPH_EXECUTION
#endif
#ifndef DETENT_COMPILE_GRAPH_QUANTIZATION
#define DETENT_COMPILE_GRAPH_QUANTIZATION
#endif

#include <detent/graph/src/execution.hpp>
#include <detent/graph/src/quantization.hpp>

#endif  // DETENT_GRAPH_SRC_HPP
