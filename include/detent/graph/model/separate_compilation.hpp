// SPDX-License-Identifier: BSD-3-Clause
// Decides in which translation unit the large functions of the graph floor are compiled.
//
// Compiling the operators, regular expressions and gradients takes most of a minute. A unit that
// defines DETENT_GRAPH_SEPARATE_COMPILATION leaves them to the one unit that includes
// <detent/graph/src.hpp>; the CMake target detent::graph does both.
#ifndef DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP
#define DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP

#if defined(DETENT_GRAPH_SEPARATE_COMPILATION)
#define DETENT_GRAPH_DECL
#else
/// Stands before functions that are inline in the header-only mode of the graph floor. It is empty
/// with DETENT_GRAPH_SEPARATE_COMPILATION, where they are compiled once. Set by this header, not by
/// users.
#define DETENT_GRAPH_DECL inline
#endif

#if defined(DETENT_COMPILE_GRAPH) || !defined(DETENT_GRAPH_SEPARATE_COMPILATION)
/// 1 if this translation unit defines the functions that are marked with DETENT_GRAPH_DECL, 0 if it
/// only declares them. Set by this header, not by users.
#define DETENT_GRAPH_DEFINES 1
#else
#define DETENT_GRAPH_DEFINES 0
#endif

#endif  // DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP
