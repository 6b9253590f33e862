// SPDX-License-Identifier: BSD-3-Clause
// One of two translation units that use all of the library and are linked together.
#include <string>

#include "results.hpp"

std::string results_a();
std::string results_a() { return results(); }
