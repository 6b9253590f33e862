// SPDX-License-Identifier: BSD-3-Clause
// Quantization as a configuration file of Neural Compressor describes it.
#ifndef DETENT_CLI_TUNE_HPP
#define DETENT_CLI_TUNE_HPP

#include "commands.hpp"

namespace detent_cli {

/// Carries out `detent quantize` with such a file: tunes if there are samples and a metric to
/// evaluate with, else quantizes by the first setting. An interrupt (Ctrl-C) or SIGTERM ends the
/// search; the best model so far is written then, as it always is. Returns the exit code: 0, or 128
/// and the number of the signal.
int tune(const quantize_arguments& a);

}  // namespace detent_cli

#endif  // DETENT_CLI_TUNE_HPP
