// SPDX-License-Identifier: BSD-3-Clause
// Compiles the operators, regular expressions and gradients of the graph floor once. Include this
// header in exactly one translation unit of a program whose other units define
// DETENT_GRAPH_SEPARATE_COMPILATION; the CMake target detent::graph does both. Unlike the kernels,
// this unit must be compiled with the same -m options as the units that call it: the options are
// part of the names of its functions, and with other options the linker does not find them.
#ifndef DETENT_GRAPH_SRC_HPP
#define DETENT_GRAPH_SRC_HPP

#if defined(DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP) && !defined(DETENT_COMPILE_GRAPH)
#error "detent: include <detent/graph/src.hpp> before any other header of the graph floor"
#endif
#ifndef DETENT_COMPILE_GRAPH
/// Marks the one translation unit that defines the functions which the graph floor compiles once.
/// This header defines the macro; users do not set it.
#define DETENT_COMPILE_GRAPH
#endif
#ifndef DETENT_GRAPH_SEPARATE_COMPILATION
/// Users define this macro in every translation unit that includes the graph floor and is to leave
/// operators, regular expressions and gradients to the one unit that includes
/// `<detent/graph/src.hpp>`.
#define DETENT_GRAPH_SEPARATE_COMPILATION
#endif

#include <detent/graph/learn/training_operators.hpp>
#include <detent/graph/rewrite/node_pattern.hpp>
#include <detent/graph/run/registry.hpp>

#endif  // DETENT_GRAPH_SRC_HPP
