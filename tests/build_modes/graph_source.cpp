// SPDX-License-Identifier: BSD-3-Clause
// All of the graph part in one unit, in header-only mode. The target detent::graph has a unit for
// each half of the floor, in separate mode.
#undef DETENT_GRAPH_SEPARATE_COMPILATION
#include <detent/graph/src.hpp>
