// SPDX-License-Identifier: BSD-3-Clause
// The output of --json.
#ifndef DETENT_CLI_JSON_OUTPUT_HPP
#define DETENT_CLI_JSON_OUTPUT_HPP

#include <cstdio>

#include <nlohmann/json.hpp>

namespace detent_cli {

using json_object = nlohmann::ordered_json;

/// Prints a JSON value on standard output. Names in it come from files, so bytes that are not UTF-8
/// are replaced.
inline void print_json(const json_object& j) {
  std::printf("%s\n", j.dump(2, ' ', false, json_object::error_handler_t::replace).c_str());
}

}  // namespace detent_cli

#endif  // DETENT_CLI_JSON_OUTPUT_HPP
