// SPDX-License-Identifier: BSD-3-Clause
// Trials of a search as JSON.
#ifndef DETENT_CLI_TUNING_JSON_HPP
#define DETENT_CLI_TUNING_JSON_HPP

#include <detent/graph/quantize/tuning_options.hpp>

#include "json_output.hpp"

namespace detent_cli {

json_object to_json(const detent::graph::tuning_trial& t);

}  // namespace detent_cli

#endif  // DETENT_CLI_TUNING_JSON_HPP
