// SPDX-License-Identifier: BSD-3-Clause
// What functions of the C interface on observers and solvers share: the caller's schemes, and
// observers that ran out of memory in the middle of a batch.
#ifndef DETENT_C_API_SCHEMES_HPP
#define DETENT_C_API_SCHEMES_HPP

#include <new>

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

/// The caller's observer; `is_partial` tells whether it has seen a batch in part. Throws
/// invalid_argument for null and for such an observer.
template <class Handle>
Handle& whole(Handle* handle, const char* where, const char* what) {
  Handle& h = checked(handle, where, what);
  require(!h.is_partial, error_kind::invalid_argument, where, ": the ", what,
          " has seen a batch in part, as memory ran out");
  return h;
}

/// Calls body(), which shows a batch to an observer, and marks the observer if memory runs out.
template <class Handle, class Body>
void observe_batch(Handle& handle, const Body& body) {
  try {
    body();
  } catch (const std::bad_alloc&) {
    handle.is_partial = true;
    throw;
  }
}

}  // namespace detent_c

#endif  // DETENT_C_API_SCHEMES_HPP
