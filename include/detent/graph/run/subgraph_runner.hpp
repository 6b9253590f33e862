// SPDX-License-Identifier: BSD-3-Clause
// Runs the sub-graphs of control flow. A sub-graph runs on an executor of its own, and executors
// run sub-graphs: therefore the functions that are only declared here are defined at the end of
// executor.hpp.
#ifndef DETENT_GRAPH_RUN_SUBGRAPH_RUNNER_HPP
#define DETENT_GRAPH_RUN_SUBGRAPH_RUNNER_HPP

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/run_resources.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

class executor;

namespace detail {

/// Runs the sub-graphs of one node of a model, each on an executor of its own that is made when it
/// is first needed. The model, the node and the registry must outlive the runner.
class subgraph_runner final : public subgraph_caller {
 public:
  /// `of`: the model that the node `n` belongs to, whose opsets apply. `resources`: those of the
  /// run that the node belongs to.
  subgraph_runner(const model& of, const node& n, std::shared_ptr<run_resources> resources,
                  const operator_registry& registry);
  ~subgraph_runner() override;

  /// The names of the outer values that the sub-graphs use, in ascending order.
  [[nodiscard]] const std::vector<std::string>& captured() const noexcept { return names_; }
  /// Sets the value of captured()[i]. `constant`: the value is the same in every run; this must be
  /// stated before the first run.
  void set_captured(std::size_t i, tensor value, bool constant = false) {
    values_[i] = std::move(value);
    constant_[i] = constant;
  }
  /// Releases the captured values that are not constant.
  void clear_captured() {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!constant_[i]) {
        values_[i] = tensor();
      }
    }
  }

  [[nodiscard]] std::vector<tensor> run(std::string_view attribute,
                                        std::span<const tensor> inputs) override;
  [[nodiscard]] std::vector<tensor> infer(std::string_view attribute,
                                          std::span<const tensor> inputs) override;

 private:
  [[nodiscard]] const graph_body& body(std::string_view attribute) const {
    const graph::attribute* found = node_.find(attribute);
    require(found != nullptr && found->g != nullptr, error_kind::bad_file, "attribute ", attribute,
            " is not a sub-graph");
    return *found->g;
  }
  [[nodiscard]] std::unique_ptr<executor> make_executor(const graph_body& body) const;

  const model& model_;
  const node& node_;
  std::shared_ptr<run_resources> resources_;
  const operator_registry& registry_;
  std::vector<std::string> names_;
  std::vector<tensor> values_;
  std::vector<bool> constant_;
  // By the name of the attribute that holds the sub-graph.
  std::map<std::string, std::unique_ptr<executor>, std::less<>> executors_;
};

}  // namespace detail

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_SUBGRAPH_RUNNER_HPP
