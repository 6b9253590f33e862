// SPDX-License-Identifier: BSD-3-Clause
// What functions of the C interface that choose scales share: the caller's schemes.
#ifndef DETENT_C_API_SCHEMES_HPP
#define DETENT_C_API_SCHEMES_HPP

#include <detent/c_api_observers.h>

#include "calls.hpp"

namespace detent_c {

/// The C++ form of a scheme. Throws invalid_argument for a grid that is reversed or a single
/// integer: some methods would find nothing on it, others would clamp to bounds in no order.
inline detent::quant_scheme scheme_of(const detent_scheme& s, const char* where) {
  require(s.qmin < s.qmax, error_kind::invalid_argument, where, ": the grid ", s.qmin, "..", s.qmax,
          " does not ascend");
  return {{s.qmin, s.qmax}, s.symmetric != 0};
}

}  // namespace detent_c

#endif  // DETENT_C_API_SCHEMES_HPP
