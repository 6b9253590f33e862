// SPDX-License-Identifier: BSD-3-Clause
// The part of <detent/graph/src.hpp> that runs models: the operators, the executor, and what
// rewrites models for it.
#ifndef DETENT_GRAPH_SRC_EXECUTION_HPP
#define DETENT_GRAPH_SRC_EXECUTION_HPP

#if defined(DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP) && !defined(DETENT_COMPILE_GRAPH_EXECUTION)
#error "detent: include <detent/graph/src/execution.hpp> before any other header of the graph part"
#endif
#ifndef DETENT_COMPILE_GRAPH_EXECUTION
/// Marks the translation unit that defines the functions which run and rewrite models. This header
/// defines the macro; users do not set it.
#define DETENT_COMPILE_GRAPH_EXECUTION
#endif
#ifndef DETENT_GRAPH_SEPARATE_COMPILATION
/// Users define this macro in every translation unit that includes the graph part and is to leave
/// its large functions to the units that include `<detent/graph/src.hpp>` or its parts. So is
/// default_observers(), which is compiled with what quantizes models.
#define DETENT_GRAPH_SEPARATE_COMPILATION
#endif

#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/node_pattern.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/smooth_quant.hpp>
#include <detent/graph/rewrite/widen_floats.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/shape_inference.hpp>

#endif  // DETENT_GRAPH_SRC_EXECUTION_HPP
