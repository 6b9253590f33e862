// SPDX-License-Identifier: BSD-3-Clause
// The schemes that PPQ's observers are made for, and checks of them.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_SCHEME_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_SCHEME_HPP

#include <cstdint>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// What reproduces PPQ: observers and rewrites with the results of that tool.
namespace ppq {

/// The symmetric scheme on -128..127, which most of PPQ's platforms quantize activations to.
inline constexpr quant_scheme default_scheme{full_grid<std::int8_t>, true};

namespace detail {

using namespace detent::detail;

/// Throws invalid_argument unless finalize() is called with the scheme that the observer was made
/// for.
inline void require_scheme(quant_scheme given, quant_scheme expected, const char* where) {
  require(given == expected, error_kind::invalid_argument, where, ": finalize() for the ",
          given.symmetric ? "symmetric" : "asymmetric", " scheme on ", given.levels.qmin, "..",
          given.levels.qmax, ", observed for the ", expected.symmetric ? "symmetric" : "asymmetric",
          " one on ", expected.levels.qmin, "..", expected.levels.qmax);
}
/// Throws an error of `kind` unless the grid has zero and something positive, within -65536..65536.
inline void require_levels(quant_scheme scheme, const char* where,
                           error_kind kind = error_kind::invalid_argument) {
  require(scheme.levels.qmin <= 0 && scheme.levels.qmax > 0 && scheme.levels.qmin >= -65536 &&
              scheme.levels.qmax <= 65536,
          kind, where, ": grid ", scheme.levels.qmin, "..", scheme.levels.qmax);
}

}  // namespace detail
}  // namespace ppq
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_SCHEME_HPP
