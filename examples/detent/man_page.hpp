// SPDX-License-Identifier: BSD-3-Clause
// The manual page of the tool, made from what the parser knows.
#ifndef DETENT_CLI_MAN_PAGE_HPP
#define DETENT_CLI_MAN_PAGE_HPP

#include <string>

#include <CLI/CLI.hpp>

namespace detent_cli {

/// The page detent(1) in roff, with the macros of man(7).
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace detent_cli

#endif  // DETENT_CLI_MAN_PAGE_HPP
