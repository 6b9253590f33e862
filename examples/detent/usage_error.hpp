// SPDX-License-Identifier: BSD-3-Clause
#ifndef DETENT_CLI_USAGE_ERROR_HPP
#define DETENT_CLI_USAGE_ERROR_HPP

#include <stdexcept>
#include <string>

namespace detent_cli {

/// What the command line asks for does not exist, or does not go together: exit code 2.
class usage_error : public std::runtime_error {
 public:
  explicit usage_error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace detent_cli

#endif  // DETENT_CLI_USAGE_ERROR_HPP
