// SPDX-License-Identifier: BSD-3-Clause
// Measures what changes of the parameters of a few activations do to the outputs of a quantized
// network, sample by sample, with only those parts of the network run that a change has an effect
// on.
#ifndef DETENT_GRAPH_QUANTIZE_RANGE_TRIALS_HPP
#define DETENT_GRAPH_QUANTIZE_RANGE_TRIALS_HPP

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/network_parts.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Trials of parameters on the first samples of a judge. Plan and judge must outlive the object.
class range_trials {
 public:
  /// Runs the network with the parameters `p` on the first `samples` samples of the judge. Keeps
  /// the values between parts for as many of them as `largest_bytes` allows.
  range_trials(const quantization_plan& plan, const output_judge& judge, std::size_t samples,
               quantization_parameters p, const executor_options& options)
      : judge_(judge),
        samples_((std::min)(samples, judge.samples())),
        p_(std::move(p)),
        parts_(plan, outputs_of(plan.float_model(), judge.by_logits()), options) {
    parts_.write(p_);
    std::size_t bytes = 0;
    for (std::size_t k = 0; k < samples_; ++k) {
      network_values values;
      parts_.run(judge_.inputs(k), values);
      add(errors_, k, values, {});
      noise_.push_back(graph::noise_to_signal(errors_));
      for (const auto& [name, value] : values) {
        bytes += value.bytes();
      }
      if (bytes <= largest_bytes) {
        values_.push_back(std::move(values));
      }
    }
  }

  /// Number of samples that a trial is measured with.
  [[nodiscard]] std::size_t samples() const noexcept { return samples_; }
  /// The parameters that are the best so far.
  [[nodiscard]] const quantization_parameters& parameters() const noexcept { return p_; }

  /// Tries other parameters for the same plan. If they leave less than `factor` of the noise, they
  /// are the best so far from then on, and the result is true. A trial ends early if the noise of
  /// the first n samples exceeds that of the best so far for these samples by the share 0.2 / n.
  bool improves(const quantization_parameters& p, double factor) {
    const std::vector<std::size_t> changed = parts_.parts_that_differ(p_, p);
    if (changed.empty()) {
      return false;
    }
    network_parts::written_parts written = parts_.written(p, changed);
    std::vector<signal_error> errors;
    std::vector<double> noise;
    for (std::size_t k = 0; k < samples_; ++k) {
      network_values computed;
      const network_values& before = values_before(k, computed);
      add(errors, k, parts_.run_with(written, judge_.inputs(k), before), before);
      noise.push_back(graph::noise_to_signal(errors));
      // The fewer samples, the less they say of the rest.
      const double most = k + 1 < samples_ ? 1.0 + 0.2 / static_cast<double>(k + 1) : factor;
      if (noise[k] >= noise_[k] * most) {
        return false;
      }
    }
    for (std::size_t k = 0; k < values_.size(); ++k) {
      network_values values = parts_.run_with(written, judge_.inputs(k), values_[k]);
      values.merge(values_[k]);
      values_[k] = std::move(values);
    }
    parts_.install(std::move(written));
    noise_ = std::move(noise);
    p_ = p;
    return true;
  }

 private:
  static constexpr std::size_t largest_bytes = std::size_t{1} << 25;

  [[nodiscard]] static std::vector<std::string> outputs_of(const model& float_model,
                                                           bool by_logits) {
    model m;
    m.nodes = float_model.nodes;
    m.outputs = float_model.outputs;
    if (by_logits) {
      expose_logits(m);
    }
    std::vector<std::string> names;
    for (const value_info& v : m.outputs) {
      names.push_back(v.name);
    }
    return names;
  }

  /// The values of a sample with the best parameters: those that are kept, or `computed`.
  [[nodiscard]] const network_values& values_before(std::size_t sample, network_values& computed) {
    if (sample < values_.size()) {
      return values_[sample];
    }
    parts_.run(judge_.inputs(sample), computed);
    return computed;
  }

  void add(std::vector<signal_error>& errors, std::size_t sample, const network_values& values,
           const network_values& otherwise) const {
    errors.resize(judge_.expected(sample).size());
    add_outputs(errors, judge_.expected(sample),
                parts_.outputs(judge_.inputs(sample), values, otherwise));
  }

  const output_judge& judge_;
  std::size_t samples_;
  quantization_parameters p_;  // the best so far
  network_parts parts_;
  std::vector<network_values> values_;  // of the first samples
  std::vector<signal_error> errors_;    // of the parameters that the object was made with
  std::vector<double> noise_;           // by the number of samples less 1
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_RANGE_TRIALS_HPP
