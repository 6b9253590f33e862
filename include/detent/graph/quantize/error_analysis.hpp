// SPDX-License-Identifier: BSD-3-Clause
// How far the values of one model are from those of another.
#ifndef DETENT_GRAPH_QUANTIZE_ERROR_ANALYSIS_HPP
#define DETENT_GRAPH_QUANTIZE_ERROR_ANALYSIS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What two streams of values differ by. Sums are in double, in the order of the values: the result
/// does not depend on how the stream is cut.
class signal_error {
 public:
  /// Both have the same size.
  void add(std::span<const float> reference, std::span<const float> other) {
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
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// 10 log10(sum r^2 / sum (r - o)^2); infinite where nothing differs.
  [[nodiscard]] double snr_db() const {
    return noise_ == 0.0 ? std::numeric_limits<double>::infinity()
                         : 10.0 * std::log10(signal_ / noise_);
  }
  /// sum (r - o)^2 / sum r^2; 0 where nothing differs, infinite where only the reference is 0.
  [[nodiscard]] double noise_to_signal() const {
    return noise_ == 0.0    ? 0.0
           : signal_ == 0.0 ? std::numeric_limits<double>::infinity()
                            : noise_ / signal_;
  }
  [[nodiscard]] double mean_squared_error() const {
    return count_ == 0 ? 0.0 : noise_ / static_cast<double>(count_);
  }
  [[nodiscard]] double cosine() const {
    const double norm = std::sqrt(signal_) * std::sqrt(other_);
    return norm == 0.0 ? (signal_ == other_ ? 1.0 : 0.0) : product_ / norm;
  }
  [[nodiscard]] double largest() const noexcept { return largest_; }

 private:
  double signal_ = 0.0, other_ = 0.0, product_ = 0.0, noise_ = 0.0, largest_ = 0.0;
  std::size_t count_ = 0;
};

/// noise / signal of the float output; of several, the geometric mean, which is the mean of their
/// dB: one that is hard to quantize does not drown out the others. Outputs that nothing was added
/// to do not count. Infinite if one has no signal, or NaN, or if none counts; with several, 120 dB
/// is as good as exact.
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

/// Adds what a run returned to the errors of the outputs, where both are float and of one size.
inline void add_outputs(std::span<signal_error> errors, std::span<const tensor> reference,
                        std::span<const tensor> other) {
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (reference[i].type() == element_type::f32 && other[i].type() == element_type::f32 &&
        other[i].count() == reference[i].count()) {
      errors[i].add(reference[i].data<float>(), other[i].data<float>());
    }
  }
}

/// Makes graph outputs that a Softmax makes (through operators that only reshape) the Softmax's
/// input. A Softmax hides most errors and magnifies few: what goes into it tells models apart with
/// fewer samples. For judging, not for files.
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

/// Measures models against a float one by what they return for some samples. Samples and
/// float results are kept: `max_samples` bounds their memory.
class output_judge {
 public:
  /// `by_logits`: see expose_logits(). Throws invalid_argument if there are no samples,
  /// unsupported if there are no float outputs.
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
                                 [](const tensor& t) { return t.type() == element_type::f32; });
    require(any, error_kind::unsupported, "the model returns no float tensor to judge by");
  }

  /// One for each output of the model; those that are not float stay empty. The quantized model is
  /// run on the integer kernels.
  [[nodiscard]] std::vector<signal_error> errors(const model& quantized) const {
    executor other(for_execution(judged(quantized)), options_);
    std::vector<signal_error> all(expected_[0].size());
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      add_outputs(all, expected_[k], other.run(inputs_[k]));
    }
    return all;
  }

  /// noise_to_signal() of what errors() returns.
  [[nodiscard]] double noise_to_signal(const model& quantized) const {
    return graph::noise_to_signal(errors(quantized));
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
