// SPDX-License-Identifier: BSD-3-Clause
// Decides in which translation unit the large functions of the graph part are compiled.
//
// Compiling them takes minutes. A unit that defines DETENT_GRAPH_SEPARATE_COMPILATION only sees
// their declarations; they are compiled where <detent/graph/src.hpp> is included, or its two parts,
// which are there so that a program that only runs models links no code that quantizes or trains
// them. The CMake target detent::graph does all this.
#ifndef DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP
#define DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP

#if defined(DETENT_GRAPH_SEPARATE_COMPILATION)
#define DETENT_GRAPH_DECL
#else
/// Stands before functions that are inline in the header-only mode of the graph part. It is empty
/// with DETENT_GRAPH_SEPARATE_COMPILATION, where they are compiled once. Set by this header, not by
/// users.
#define DETENT_GRAPH_DECL inline
#endif

#if defined(DETENT_COMPILE_GRAPH_EXECUTION) || !defined(DETENT_GRAPH_SEPARATE_COMPILATION)
/// 1 if this translation unit defines the functions of graph/ops/, graph/run/ and graph/rewrite/
/// that are marked with DETENT_GRAPH_DECL, 0 if it only declares them. Set by this header, not by
/// users.
#define DETENT_GRAPH_DEFINES_EXECUTION 1
#else
#define DETENT_GRAPH_DEFINES_EXECUTION 0
#endif

#if defined(DETENT_COMPILE_GRAPH_QUANTIZATION) || !defined(DETENT_GRAPH_SEPARATE_COMPILATION)
/// 1 if this translation unit defines the functions of graph/learn/, graph/quantize/, graph/ppq/,
/// graph/nncf/ and graph/configuration/ that are marked with DETENT_GRAPH_DECL, 0 if it only
/// declares them. Set by this header, not by users.
#define DETENT_GRAPH_DEFINES_QUANTIZATION 1
#else
#define DETENT_GRAPH_DEFINES_QUANTIZATION 0
#endif

#endif  // DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP
