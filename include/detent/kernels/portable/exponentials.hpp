// SPDX-License-Identifier: BSD-3-Clause
// Exponentials and logarithms in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_EXPONENTIALS_HPP
#define DETENT_KERNELS_PORTABLE_EXPONENTIALS_HPP

#include <cstddef>

#include <detent/base/arithmetic.hpp>
#include <detent/kernels/exponentials.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

DETENT_DECL void exp(double* x, std::size_t n) noexcept { detail::portable_exp(n, x); }

DETENT_DECL void log(double* x, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = detail::portable_log(x[i]);
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_EXPONENTIALS_HPP
