// SPDX-License-Identifier: BSD-3-Clause
// Include this in exactly one translation unit of a program whose other units define
// DETENT_GRAPH_SEPARATE_COMPILATION. It compiles the operators of the graph floor; the CMake target
// detent::graph does it. Unlike the kernels, it must be compiled with the -m options of its
// callers, or it is not found when linking.
#ifndef DETENT_GRAPH_SRC_HPP
#define DETENT_GRAPH_SRC_HPP

#if defined(DETENT_GRAPH_REGISTRY_HPP) && !defined(DETENT_COMPILE_GRAPH)
#error "detent: include <detent/graph/src.hpp> before any other header of the graph floor"
#endif
#ifndef DETENT_COMPILE_GRAPH
#define DETENT_COMPILE_GRAPH
#endif
#ifndef DETENT_GRAPH_SEPARATE_COMPILATION
#define DETENT_GRAPH_SEPARATE_COMPILATION
#endif

#include <detent/graph/run/registry.hpp>

#endif  // DETENT_GRAPH_SRC_HPP
