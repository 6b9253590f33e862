// SPDX-License-Identifier: BSD-3-Clause
// What exporters of parameter tables have in common.
#ifndef DETENT_GRAPH_PPQ_EXPORTED_TEXT_HPP
#define DETENT_GRAPH_PPQ_EXPORTED_TEXT_HPP

#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The text of a file for another engine. It goes with quantized_graph::network, whose names it
/// has.
struct exported_text {
  std::string text;                   ///< The file, in UTF-8.
  std::vector<std::string> warnings;  ///< A sentence for each tensor that had to be left out.
};

namespace detail {

/// The name by which files of other engines know an operator: its own or, if it has none, that of
/// its first output.
[[nodiscard]] inline std::string operator_name(const node& n) {
  return n.name.empty() ? n.first_output() : n.name;
}

}  // namespace detail
}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_EXPORTED_TEXT_HPP
