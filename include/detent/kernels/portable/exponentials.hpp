// SPDX-License-Identifier: BSD-3-Clause
// Exponentials and their relatives in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_EXPONENTIALS_HPP
#define DETENT_KERNELS_PORTABLE_EXPONENTIALS_HPP

#include <cstddef>

#include <detent/base/elementary_functions.hpp>
#include <detent/kernels/exponentials.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

template <double (*Function)(double) noexcept>
void replace(double* x, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = Function(x[i]);
  }
}

DETENT_DECL void exp(double* x, std::size_t n) noexcept { replace<detail::portable_exp>(x, n); }
DETENT_DECL void log(double* x, std::size_t n) noexcept { replace<detail::portable_log>(x, n); }
DETENT_DECL void erf(double* x, std::size_t n) noexcept { replace<detail::portable_erf>(x, n); }
DETENT_DECL void tanh(double* x, std::size_t n) noexcept { replace<detail::portable_tanh>(x, n); }
DETENT_DECL void logistic(double* x, std::size_t n) noexcept {
  replace<detail::portable_logistic>(x, n);
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_EXPONENTIALS_HPP
