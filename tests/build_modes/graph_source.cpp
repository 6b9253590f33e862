// SPDX-License-Identifier: BSD-3-Clause
// Both parts of the graph floor in one unit; the target detent::graph has a unit for each.
#include <detent/graph/src.hpp>
