// SPDX-License-Identifier: BSD-3-Clause
// The means of the channels that the layers of a plan take and make in the float model.
#ifndef DETENT_GRAPH_QUANTIZE_LAYER_MEANS_HPP
#define DETENT_GRAPH_QUANTIZE_LAYER_MEANS_HPP

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/channel_sums.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
/// Collects the means of the channels that the layers of a plan take and make, over runs of the
/// float model. A MatMul without an Add of a bias behind it is left out.
class layer_means {
 public:
  /// Prepares sums for the inputs and outputs of all layers of the plan.
  explicit layer_means(const quantization_plan& plan) {
    for (const std::size_t i : plan.layers()) {
      const node& n = plan.float_model().nodes[i];
      if (n.is("MatMul") && plan.bias(i) == nullptr) {
        continue;
      }
      for (const std::string& name : {n.inputs[0], n.outputs[0]}) {
        means_.emplace(std::pair(name, is_convolution(n)), detail::channel_sums(is_convolution(n)));
      }
    }
  }
  /// Adds a value that a run of the float model computes. Values that no layer takes or makes are
  /// ignored.
  void add(const std::string& name, const tensor& value) {
    for (const bool by_convolution : {false, true}) {
      const auto found = means_.find({name, by_convolution});
      if (found != means_.end()) {
        found->second.add(value);
      }
    }
  }
  /// Afterwards these are the means that would have been collected from all samples of both.
  /// Exact: the order of merges does not matter. Throws invalid_argument if `other` is for other
  /// layers, shape_mismatch if a value has another number of channels.
  void merge(const layer_means& other) {
    require(std::equal(means_.begin(), means_.end(), other.means_.begin(), other.means_.end(),
                       [](const auto& a, const auto& b) { return a.first == b.first; }),
            error_kind::invalid_argument, "merging the means of other layers");
    for (auto& [key, sums] : means_) {
      detail::of_tensor(key.first,
                        [&, &one = sums, &more = other.means_.at(key)] { one.merge(more); });
    }
  }
  /// Appends, for each value in the order of names, its sums.
  void write(detent::detail::byte_writer& out) const {
    for (const auto& [key, sums] : means_) {
      sums.write(out);
    }
  }
  /// Replaces all sums by those that write() appended for the same layers. Throws bad_file for
  /// impossible ones.
  void read(detent::detail::byte_reader& in) {
    std::map<value_key, detail::channel_sums> next = means_;
    for (auto& [key, sums] : next) {
      detail::of_tensor(key.first, [&in, &one = sums] { one.read(in); });
    }
    means_ = std::move(next);
  }
  /// The sums of a value that a convolution takes or makes (channels are axis 1), or that a product
  /// does (channels are the last axis). Throws invalid_argument if none does.
  [[nodiscard]] const detail::channel_sums& of(const std::string& name, bool by_convolution) const {
    const auto found = means_.find({name, by_convolution});
    require(found != means_.end(), error_kind::invalid_argument, "there are no sums of the value '",
            name, "'");
    return found->second;
  }

 private:
  // The name of a value, and whether it is of a convolution: a product may take it, too.
  using value_key = std::pair<std::string, bool>;

  std::map<value_key, detail::channel_sums> means_;
};

/// Collects the means of the layers of a plan, from runs of its float model on all samples. Throws
/// invalid_argument if there is no source of samples.
[[nodiscard]] DETENT_GRAPH_DECL layer_means gather_means(const quantization_plan& plan,
                                                         const calibration_source& samples,
                                                         const executor_options& runner = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL layer_means gather_means(const quantization_plan& plan,
                                           const calibration_source& samples,
                                           const executor_options& runner) {
  require(static_cast<bool>(samples), error_kind::invalid_argument,
          "there is no source of calibration samples");
  layer_means means(plan);
  executor float_executor(plan.float_model(), runner);
  while (const auto inputs = samples()) {
    static_cast<void>(float_executor.run(
        *inputs, [&](const std::string& name, const tensor& value) { means.add(name, value); }));
  }
  return means;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_LAYER_MEANS_HPP
