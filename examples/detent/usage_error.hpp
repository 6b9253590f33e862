// SPDX-License-Identifier: BSD-3-Clause
#ifndef DETENT_CLI_USAGE_ERROR_HPP
#define DETENT_CLI_USAGE_ERROR_HPP

#include <stdexcept>
#include <string>

namespace detent_cli {

/// The error for arguments of the command line that do not exist or do not go together. The tool
/// exits with code 2.
class usage_error : public std::runtime_error {
 public:
  explicit usage_error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace detent_cli

#endif  // DETENT_CLI_USAGE_ERROR_HPP
