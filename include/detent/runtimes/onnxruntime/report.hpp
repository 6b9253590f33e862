// SPDX-License-Identifier: BSD-3-Clause
// The report of what the provider claims of a model, and why it leaves the rest.
#ifndef DETENT_RUNTIMES_ONNXRUNTIME_REPORT_HPP
#define DETENT_RUNTIMES_ONNXRUNTIME_REPORT_HPP

#include <cstddef>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/runtimes/integer_regions.hpp>

DETENT_NAMESPACE_BEGIN
namespace runtimes::onnxruntime {

/// One line: how many nodes were claimed, and in how many regions.
[[nodiscard]] inline std::string summary(const graph::model& m, const region_search& found) {
  std::size_t nodes = 0;
  std::size_t products = 0;
  for (const integer_region& r : found.regions) {
    nodes += r.nodes.size();
    products += r.products;
  }
  return "detent: graph '" + m.graph_name + "': " + std::to_string(nodes) + " of " +
         std::to_string(m.nodes.size()) + " nodes claimed, in " +
         std::to_string(found.regions.size()) + " regions with " + std::to_string(products) +
         " integer products";
}

/// The summary and a line for each node, in the order of the nodes: "region N: LABEL", or "left:
/// LABEL: " and the reason.
[[nodiscard]] inline std::string report(const graph::model& m, const region_search& found) {
  std::vector<std::size_t> region(m.nodes.size(), 0);
  for (std::size_t r = 0; r < found.regions.size(); ++r) {
    for (const std::size_t i : found.regions[r].nodes) {
      region[i] = r + 1;
    }
  }
  std::string text = summary(m, found) + "\n";
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    text += region[i] != 0 ? "region " + std::to_string(region[i]) + ": " + m.nodes[i].label()
                           : "left: " + m.nodes[i].label() + ": " + found.reasons[i];
    text += "\n";
  }
  return text;
}

}  // namespace runtimes::onnxruntime
DETENT_NAMESPACE_END

#endif  // DETENT_RUNTIMES_ONNXRUNTIME_REPORT_HPP
