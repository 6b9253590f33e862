// SPDX-License-Identifier: BSD-3-Clause
// `detent quantize --pipeline ppq`.
#ifndef DETENT_CLI_PPQ_QUANTIZE_HPP
#define DETENT_CLI_PPQ_QUANTIZE_HPP

#include "commands.hpp"

namespace detent_cli {

/// Quantizes with PPQ's passes, as a.ppq says, and writes all files. Returns the exit code; throws
/// detent::error on failure.
int quantize_with_ppq(const quantize_arguments& a);

}  // namespace detent_cli

#endif  // DETENT_CLI_PPQ_QUANTIZE_HPP
