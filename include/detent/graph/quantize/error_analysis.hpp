// SPDX-License-Identifier: BSD-3-Clause
// Measures how far the values of one model are from those of another.
#ifndef DETENT_GRAPH_QUANTIZE_ERROR_ANALYSIS_HPP
#define DETENT_GRAPH_QUANTIZE_ERROR_ANALYSIS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Accumulates the difference between two streams of values: a reference r and another one o. Sums
/// are in double, in the order of the values, so the result does not depend on how the streams are
/// divided into calls.
class signal_error {
 public:
  /// Adds the next values of both streams. Throws shape_mismatch if `other` has not as many values
  /// as `reference`.
  void add(std::span<const float> reference, std::span<const float> other) {
    require(reference.size() == other.size(), error_kind::shape_mismatch,
            "signal_error: ", reference.size(), " reference values and ", other.size(), " others");
    for (std::size_t i = 0; i < reference.size(); ++i) {
      const double r = static_cast<double>(reference[i]);
      const double o = static_cast<double>(other[i]);
      signal_ += r * r;
      other_ += o * o;
      product_ += r * o;
      noise_ += detent::detail::rounded_product(r - o, r - o);
      const double difference = std::fabs(r - o);
      if (difference > largest_ || std::isnan(difference)) {
        largest_ = difference;  // once NaN, it stays
      }
    }
    count_ += reference.size();
  }
  /// Number of values added.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Signal-to-noise ratio in dB, 10 log10(sum r^2 / sum (r - o)^2); infinite if nothing differs.
  [[nodiscard]] double snr_db() const {
    return noise_ == 0.0 ? std::numeric_limits<double>::infinity()
                         : 10.0 * std::log10(signal_ / noise_);
  }
  /// Noise-to-signal ratio, sum (r - o)^2 / sum r^2; 0 if nothing differs, infinite if only the
  /// reference is 0.
  [[nodiscard]] double noise_to_signal() const {
    return noise_ == 0.0    ? 0.0
           : signal_ == 0.0 ? std::numeric_limits<double>::infinity()
                            : noise_ / signal_;
  }
  /// Mean squared error, sum (r - o)^2 / count; 0 if there are no values.
  [[nodiscard]] double mean_squared_error() const {
    return count_ == 0 ? 0.0 : noise_ / static_cast<double>(count_);
  }
  /// Cosine similarity, sum r o / sqrt(sum r^2 sum o^2); if either stream is all 0, it is 1 if both
  /// are and 0 otherwise.
  [[nodiscard]] double cosine() const {
    const double norm = std::sqrt(signal_) * std::sqrt(other_);
    return norm == 0.0 ? (signal_ == other_ ? 1.0 : 0.0) : product_ / norm;
  }
  /// The largest |r - o|; NaN once a difference is NaN.
  [[nodiscard]] double largest() const noexcept { return largest_; }

 private:
  double signal_ = 0.0, other_ = 0.0, product_ = 0.0, noise_ = 0.0, largest_ = 0.0;
  std::size_t count_ = 0;
};

/// Combines the noise-to-signal ratios of several outputs into one number: their geometric mean,
/// which is the mean of their dB, so that an output that is hard to quantize does not dominate the
/// others. For a single output it is signal_error::noise_to_signal().
///
/// Outputs without values do not count. The result is infinite if the ratio of an output is
/// infinite or NaN, or if no output counts. With several outputs, ratios below 1e-12 (120 dB) count
/// as 1e-12.
[[nodiscard]] inline double noise_to_signal(std::span<const signal_error> outputs) {
  constexpr double least = 1e-12;
  double sum = 0.0;
  double last = std::numeric_limits<double>::infinity();
  std::size_t count = 0;
  for (const signal_error& e : outputs) {
    if (e.count() == 0) {
      continue;
    }
    last = e.noise_to_signal();
    if (!std::isfinite(last)) {
      return std::numeric_limits<double>::infinity();
    }
    sum += detent::detail::portable_log((std::max)(last, least));
    ++count;
  }
  return count < 2 ? last : detent::detail::portable_exp(sum / static_cast<double>(count));
}

/// Adds the outputs of one run of each model to `errors`, one for each output. Outputs that are not
/// floats of 32 or 16 bits in both, or that differ in size, are skipped. Both runs must have as
/// many outputs as `errors`.
inline void add_outputs(std::span<signal_error> errors, std::span<const tensor> reference,
                        std::span<const tensor> other) {
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (fits_float(reference[i].type()) && fits_float(other[i].type()) &&
        other[i].count() == reference[i].count()) {
      const tensor expected = as_float32(reference[i]);
      const tensor actual = as_float32(other[i]);
      errors[i].add(expected.data<float>(), actual.data<float>());
    }
  }
}

/// Replaces each output of the graph that a Softmax makes, directly or through operators that only
/// reshape, copy or quantize, by the input of that Softmax. A Softmax hides most errors and
/// magnifies a few; its input tells models apart with fewer samples. The result is for measuring
/// models, not for files.
inline void expose_logits(model& m) {
  const links l(m);
  for (value_info& v : m.outputs) {
    std::string name = v.name;
    std::size_t at = l.producer(name);
    while (at != links::none &&
           (m.nodes[at].is("Identity") || m.nodes[at].is("Reshape") || m.nodes[at].is("Flatten") ||
            m.nodes[at].is("Squeeze") || m.nodes[at].is("Unsqueeze") ||
            m.nodes[at].is("QuantizeLinear") || m.nodes[at].is("DequantizeLinear"))) {
      name = m.nodes[at].inputs[0];
      at = l.producer(name);
    }
    if (at != links::none && m.nodes[at].is("Softmax")) {
      v = {m.nodes[at].inputs[0], v.type, false, {}, {}};
    }
  }
}

/// Measures how far the outputs of quantized models are from those of a float model, for some
/// samples. It keeps the samples and the float results; `max_samples` bounds their memory.
class output_judge {
 public:
  /// Runs the float model on the first `max_samples` samples. With `by_logits`, an output that a
  /// Softmax makes is measured by the input of that Softmax, as expose_logits() defines it. Throws
  /// invalid_argument if there are no samples; unsupported if the model has no float output.
  output_judge(const model& float_model, calibration_source samples, std::size_t max_samples,
               bool by_logits = false, const executor_options& options = {})
      : by_logits_(by_logits), options_(options) {
    executor reference(for_execution(judged(float_model), false), options_);
    const calibration_source some = first_samples(std::move(samples), max_samples);
    while (auto inputs = some()) {
      expected_.push_back(reference.run(*inputs));
      inputs_.push_back(std::move(*inputs));
    }
    require(!expected_.empty(), error_kind::invalid_argument, "there are no calibration samples");
    const bool any = std::any_of(expected_[0].begin(), expected_[0].end(),
                                 [](const tensor& t) { return fits_float(t.type()); });
    require(any, error_kind::unsupported, "the model returns no float tensor to judge by");
  }

  /// Number of samples, at least 1.
  [[nodiscard]] std::size_t samples() const noexcept { return inputs_.size(); }
  /// The inputs of a sample, by name.
  [[nodiscard]] const std::map<std::string, tensor>& inputs(std::size_t sample) const {
    return inputs_[sample];
  }
  /// The outputs of the float model for a sample.
  [[nodiscard]] std::span<const tensor> expected(std::size_t sample) const {
    return expected_[sample];
  }
  /// Whether outputs are measured by the inputs of the Softmax that makes them.
  [[nodiscard]] bool by_logits() const noexcept { return by_logits_; }

  /// Runs a quantized model on the samples, on the integer kernels, and returns one error for each
  /// output. Those of outputs that are not float stay empty. `before_run`, if it is not empty, is
  /// called before each sample and may throw to end the measurement.
  [[nodiscard]] std::vector<signal_error> errors(
      const model& quantized, const std::function<void()>& before_run = {}) const {
    executor other(for_execution(judged(quantized)), options_);
    std::vector<signal_error> all(expected_[0].size());
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      if (before_run) {
        before_run();
      }
      add_outputs(all, expected_[k], other.run(inputs_[k]));
    }
    return all;
  }

  /// The noise-to-signal ratio of a quantized model, over all of its outputs:
  /// detent::graph::noise_to_signal() of errors().
  [[nodiscard]] double noise_to_signal(const model& quantized,
                                       const std::function<void()>& before_run = {}) const {
    return graph::noise_to_signal(errors(quantized, before_run));
  }

 private:
  [[nodiscard]] model judged(model m) const {
    if (by_logits_) {
      expose_logits(m);
      remove_unused(m);
    }
    return m;
  }

  std::vector<std::map<std::string, tensor>> inputs_;
  bool by_logits_;
  executor_options options_;
  std::vector<std::vector<tensor>> expected_;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_ERROR_ANALYSIS_HPP
