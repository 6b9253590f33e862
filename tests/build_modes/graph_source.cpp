// SPDX-License-Identifier: BSD-3-Clause
// All of the graph floor in one unit, in header-only mode; the target detent::graph compiles it in
// two units, in the other mode.
#undef DETENT_GRAPH_SEPARATE_COMPILATION
#include <detent/graph/src.hpp>
