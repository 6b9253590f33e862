// SPDX-License-Identifier: BSD-3-Clause
// Measures what quantization does to a network: the errors of its operators and results, and
// statistics of its values.
#ifndef DETENT_GRAPH_PPQ_ANALYSIS_HPP
#define DETENT_GRAPH_PPQ_ANALYSIS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/integers.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/statistics.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observer_registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The measure of how far quantized values q are from float values f. A tensor of rank 2 or more is
/// measured row by row along its first axis, any other tensor as one row; the result is the mean
/// over the rows.
enum class error_method : std::uint8_t {
  /// Noise over signal: sum (q - f)^2 / (sum f^2 + 1e-7). 0 is best.
  snr,
  /// Mean squared error: sum (q - f)^2 / number of values. 0 is best.
  mse,
  /// Cosine of the angle: sum q f / sqrt(sum q^2 * sum f^2). 1 is best. It is 1 if all values of
  /// both
  /// rows are 0, and 0 if all values of one row are.
  cosine,
};

/// The measure named "snr", "mse" or "cosine", in capital or small letters. Throws invalid_argument
/// for any other name.
[[nodiscard]] inline error_method find_error_method(std::string_view name) {
  const std::string key = detent::detail::lower_case(name);
  if (key == "snr") {
    return error_method::snr;
  }
  if (key == "mse") {
    return error_method::mse;
  }
  require(key == "cosine", error_kind::invalid_argument, "there is no error method '", name,
          "'; there are snr, mse, cosine");
  return error_method::cosine;
}

/// The error of a float32 tensor of quantized values against a float32 tensor of expected values,
/// by the given measure. It is computed in double, with sums in the order of the values. Throws
/// shape_mismatch if the shapes differ, and invalid_argument if the tensors have no values.
[[nodiscard]] inline double measure_error(const tensor& quantized, const tensor& expected,
                                          error_method method) {
  require(quantized.dims() == expected.dims(), error_kind::shape_mismatch, "measure_error: shape ",
          shown(quantized.dims()), ", expected ", shown(expected.dims()));
  require(expected.count() > 0, error_kind::invalid_argument, "measure_error: there are no values");
  using detent::detail::rounded_product;
  const tensor q = to_plain(quantized);
  const tensor f = to_plain(expected);
  const std::size_t rows = f.rank() >= 2 ? static_cast<std::size_t>(f.dim(0)) : 1;
  const std::size_t length = f.count() / rows;
  double sum = 0.0;
  for (std::size_t row = 0; row < rows; ++row) {
    double noise = 0.0;
    double signal = 0.0;
    double power = 0.0;
    double dot = 0.0;
    for (std::size_t i = row * length; i < (row + 1) * length; ++i) {
      const auto x = static_cast<double>(q.data<float>()[i]);
      const auto y = static_cast<double>(f.data<float>()[i]);
      noise += rounded_product(x - y, x - y);
      signal += rounded_product(y, y);
      power += rounded_product(x, x);
      dot += rounded_product(x, y);
    }
    switch (method) {
      case error_method::snr:
        sum += noise / (signal + 1e-7);
        break;
      case error_method::mse:
        sum += noise / static_cast<double>(length);
        break;
      case error_method::cosine:
        sum += signal > 0.0 && power > 0.0 ? dot / (std::sqrt(signal) * std::sqrt(power))
               : signal == power           ? 1.0
                                           : 0.0;
        break;
    }
  }
  return sum / static_cast<double>(rows);
}

/// Options of the analyses.
struct analysis_options {
  /// The measure of errors.
  error_method method = error_method::snr;
  /// The number of samples that are run; all samples if there are fewer.
  std::size_t steps = 8;
  /// How networks are run.
  executor_options executor = {};
};

/// The error that an analysis has found for one operator.
struct operator_error {
  std::string operator_name;  ///< The node::label() of the operator.
  std::string value;          ///< The name of the operator's first output.
  double error = 0.0;         ///< The error by the measure of the options.
};

namespace detail {

/// The model as it is run to simulate quantization: constants are dequantized beforehand.
[[nodiscard]] inline model simulation(model m) {
  fold_constants(m, true);
  remove_unused(m);
  return m;
}

/// Runs a model and records the values that are asked for, and the results. Results of 16-bit
/// floats are recorded as float32.
class value_recorder {
 public:
  explicit value_recorder(model m, const executor_options& options)
      : executor_(std::make_unique<executor>(std::move(m), options)) {}

  std::map<std::string, tensor> run(const run_inputs& inputs, const std::set<std::string>& wanted) {
    std::map<std::string, tensor> values;
    results = executor_->run(inputs, [&](const std::string& name, const tensor& value) {
      if (wanted.count(name) != 0) {
        values[name] = to_plain(value);
      }
    });
    for (tensor& t : results) {
      t = as_float32(t);
    }
    return values;
  }
  std::vector<tensor> results;

 private:
  std::unique_ptr<executor> executor_;
};

[[nodiscard]] inline bool is_comparable(const tensor& a, const tensor& b) {
  return a.type() == element_type::f32 && b.type() == element_type::f32 && a.count() > 0 &&
         a.dims() == b.dims();
}

/// The names of some values in the quantized model: after their pair, if they have one.
[[nodiscard]] inline std::map<std::string, std::string> quantized_names(
    const qdq_model& m, const std::set<std::string>& values) {
  std::map<std::string, std::string> names;
  for (const std::string& value : values) {
    const auto quantized = m.quantized.find(value);
    const auto computed = m.computed.find(value);
    names[value] = quantized != m.quantized.end() ? quantized->second
                   : computed != m.computed.end() ? computed->second
                                                  : value;
  }
  return names;
}

[[nodiscard]] inline std::set<std::string> values_of(
    const std::map<std::string, std::string>& names) {
  std::set<std::string> all;
  for (const auto& [from, to] : names) {
    all.insert(to);
  }
  return all;
}

/// The indices of the layers that are quantized.
[[nodiscard]] inline std::vector<std::size_t> quantized_layers(const quantized_graph& g) {
  std::vector<std::size_t> layers;
  for (std::size_t i = 0; i < g.operators.size(); ++i) {
    if (is_compute_operator(g.network.nodes[i]) && g.operators[i].is_quantized()) {
      layers.push_back(i);
    }
  }
  return layers;
}

}  // namespace detail

/// The error of the output of every quantized layer, in the order of the network, when the whole
/// network is quantized. An error is the mean over the samples. If the layer's output is quantized,
/// the output is taken after that. Layers whose outputs cannot be compared, because they are not
/// float or have another shape, are left out. `samples` is left at its beginning. Throws
/// invalid_argument without samples, and what to_qdq() and the executor throw.
[[nodiscard]] DETENT_GRAPH_DECL std::vector<operator_error> graphwise_error_analysis(
    const quantized_graph& g, const calibration_source& samples,
    const analysis_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<operator_error> graphwise_error_analysis(
    const quantized_graph& g, const calibration_source& samples, const analysis_options& options) {
  const std::vector<detail::run_inputs> inputs = detail::take_samples(samples, options.steps);
  qdq_model q = to_qdq_model(g);
  std::vector<operator_error> errors;
  std::set<std::string> wanted;
  for (const std::size_t i : detail::quantized_layers(g)) {
    errors.push_back({g.network.nodes[i].label(), g.network.nodes[i].outputs[0], 0.0});
    wanted.insert(errors.back().value);
  }
  const std::map<std::string, std::string> names = detail::quantized_names(q, wanted);
  const std::set<std::string> quantized_wanted = detail::values_of(names);
  detail::value_recorder float_run(g.float_model, options.executor);
  detail::value_recorder quantized_run(detail::simulation(std::move(q.network)), options.executor);
  std::map<std::string, std::size_t> counts;
  for (const detail::run_inputs& sample : inputs) {
    const auto expected = float_run.run(sample, wanted);
    const auto found = quantized_run.run(sample, quantized_wanted);
    for (operator_error& e : errors) {
      const auto f = expected.find(e.value);
      const auto x = found.find(names.at(e.value));
      if (f != expected.end() && x != found.end() && detail::is_comparable(x->second, f->second)) {
        e.error += measure_error(x->second, f->second, options.method);
        ++counts[e.value];
      }
    }
  }
  std::vector<operator_error> measured;
  for (operator_error& e : errors) {
    const auto count = counts.find(e.value);
    if (count != counts.end()) {
      e.error /= static_cast<double>(count->second);
      measured.push_back(std::move(e));
    }
  }
  return measured;
}
#endif

namespace detail {

/// The mean of the errors of results, over results and samples.
class mean_of_errors {
 public:
  explicit mean_of_errors(error_method method) : method_(method) {}

  /// Adds the results of one sample. Those that are not comparable, and those of `quantized` that
  /// `expected` has no counterpart for, are left out.
  void add(const std::vector<tensor>& quantized, const std::vector<tensor>& expected) {
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const tensor q = as_float32(quantized[k]);
      const tensor f = as_float32(expected[k]);
      if (is_comparable(q, f)) {
        sum_ += measure_error(q, f, method_);
        ++count_;
      }
    }
  }
  /// Throws invalid_argument, with `what` in the message, if there is nothing to compare.
  [[nodiscard]] double value(const char* what) const {
    require(count_ > 0, error_kind::invalid_argument, what, ": the network has no float results");
    return sum_ / static_cast<double>(count_);
  }

 private:
  error_method method_;
  double sum_ = 0.0;
  std::size_t count_ = 0;
};

/// Compares other networks with a float network: the mean error of their float results.
class result_comparison {
 public:
  /// Runs the float network on the samples, and keeps samples and results.
  result_comparison(const model& float_model, std::vector<run_inputs> inputs,
                    const analysis_options& options)
      : options_(options), inputs_(std::move(inputs)) {
    executor float_run(float_model, options_.executor);
    for (const run_inputs& sample : inputs_) {
      expected_.push_back(float_run.run(sample));
    }
  }

  /// The mean error over samples and results. Throws invalid_argument, with `what` in the message,
  /// if there is nothing to compare.
  [[nodiscard]] double mean_error(model quantized, const char* what) const {
    executor quantized_run(simulation(std::move(quantized)), options_.executor);
    mean_of_errors mean(options_.method);
    for (std::size_t s = 0; s < inputs_.size(); ++s) {
      mean.add(quantized_run.run(inputs_[s]), expected_[s]);
    }
    return mean.value(what);
  }

 private:
  analysis_options options_;
  std::vector<run_inputs> inputs_;
  std::vector<std::vector<tensor>> expected_;
};

}  // namespace detail

/// The mean error of the float results of the network, over results and samples, when the whole
/// network is quantized. `samples` is left at its beginning. Throws invalid_argument without
/// samples and if the network has no float results, and what to_qdq() and the executor throw.
[[nodiscard]] inline double output_error(const quantized_graph& g,
                                         const calibration_source& samples,
                                         const analysis_options& options = {}) {
  const detail::result_comparison results(g.float_model,
                                          detail::take_samples(samples, options.steps), options);
  return results.mean_error(to_qdq(g), "output_error");
}

/// For each quantized layer, in the order of the network, the mean error of the float results of
/// the network when only that layer is quantized, with the configurations that quantize its inputs
/// and its output, and everything else is float. `samples` is left at its beginning. Throws
/// invalid_argument without samples and if the network has no float results, and what to_qdq() and
/// the executor throw.
[[nodiscard]] DETENT_GRAPH_DECL std::vector<operator_error> layerwise_error_analysis(
    const quantized_graph& g, const calibration_source& samples,
    const analysis_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<operator_error> layerwise_error_analysis(
    const quantized_graph& g, const calibration_source& samples, const analysis_options& options) {
  const detail::result_comparison results(g.float_model,
                                          detail::take_samples(samples, options.steps), options);
  std::vector<operator_error> errors;
  for (const std::size_t i : detail::quantized_layers(g)) {
    std::set<config_id> kept;
    g.for_each_config(i, [&](config_id id) {
      kept.insert(id);
      kept.insert(g.configs.root(id));
    });
    quantized_graph one = g;
    g.for_each_config([&](config_id id) {
      if (kept.count(id) == 0) {
        one.configs.dequantize(id);
      }
    });
    errors.push_back({g.network.nodes[i].label(), g.network.nodes[i].outputs[0],
                      results.mean_error(to_qdq(one), "layerwise_error_analysis")});
  }
  return errors;
}
#endif

/// Statistics of a tensor in float and quantized.
struct statistics_report {
  std::string name;                   ///< The name of the tensor in quantized_graph::network.
  value_statistics float_values;      ///< Statistics of the float values f.
  value_statistics quantized_values;  ///< Statistics of the quantized values q.
  value_statistics noise;             ///< Statistics of the differences q - f, computed in double.
};

namespace detail {

struct report_collector {
  statistics_collector float_values;
  statistics_collector quantized_values;
  statistics_collector noise;

  void begin_second_pass() {
    float_values.begin_second_pass();
    quantized_values.begin_second_pass();
    noise.begin_second_pass();
  }
  void observe(const tensor& f, const tensor& q) {
    const auto x = f.data<float>();
    const auto y = q.data<float>();
    float_values.observe(x);
    quantized_values.observe(y);
    std::vector<double> difference(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      difference[i] = static_cast<double>(y[i]) - static_cast<double>(x[i]);
    }
    noise.observe(std::span<const double>(difference));
  }
  [[nodiscard]] statistics_report report(std::string name) const {
    return {std::move(name), float_values.result(), quantized_values.result(), noise.result()};
  }
};

}  // namespace detail

/// Statistics of every float value that a quantized operator makes, in the order of the network,
/// over up to options.steps samples. Each sample is run twice. `samples` is left at its beginning.
/// Throws invalid_argument without samples, and what to_qdq() and the executor throw.
[[nodiscard]] DETENT_GRAPH_DECL std::vector<statistics_report> variable_analysis(
    const quantized_graph& g, const calibration_source& samples,
    const analysis_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<statistics_report> variable_analysis(
    const quantized_graph& g, const calibration_source& samples, const analysis_options& options) {
  const std::vector<detail::run_inputs> inputs = detail::take_samples(samples, options.steps);
  qdq_model q = to_qdq_model(g);
  std::vector<std::string> order;
  for (std::size_t i = 0; i < g.operators.size(); ++i) {
    for (std::size_t k = 0; k < g.operators[i].outputs.size(); ++k) {
      if (g.operators[i].outputs[k] != no_config) {
        order.push_back(g.network.nodes[i].outputs[k]);
      }
    }
  }
  const std::set<std::string> wanted(order.begin(), order.end());
  const std::map<std::string, std::string> names = detail::quantized_names(q, wanted);
  const std::set<std::string> quantized_wanted = detail::values_of(names);
  detail::value_recorder float_run(g.float_model, options.executor);
  detail::value_recorder quantized_run(detail::simulation(std::move(q.network)), options.executor);
  std::map<std::string, detail::report_collector> collectors;
  for (const bool second : {false, true}) {
    if (second) {
      for (auto& [name, collector] : collectors) {
        collector.begin_second_pass();
      }
    }
    for (const detail::run_inputs& sample : inputs) {
      const auto expected = float_run.run(sample, wanted);
      const auto found = quantized_run.run(sample, quantized_wanted);
      for (const auto& [name, f] : expected) {
        const auto x = found.find(names.at(name));
        if (x != found.end() && detail::is_comparable(x->second, f)) {
          collectors[name].observe(f, x->second);
        }
      }
    }
  }
  std::vector<statistics_report> reports;
  for (const std::string& name : order) {
    const auto found = collectors.find(name);
    if (found != collectors.end()) {
      reports.push_back(found->second.report(name));
    }
  }
  return reports;
}
#endif

/// Statistics of every constant that has a configuration, in the order of the network. The noise of
/// a constant that is not quantized, or not yet, is 0.
[[nodiscard]] DETENT_GRAPH_DECL std::vector<statistics_report> parameter_analysis(
    const quantized_graph& g);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<statistics_report> parameter_analysis(const quantized_graph& g) {
  std::vector<statistics_report> reports;
  std::set<std::string> seen;
  g.for_each_config([&](config_id id) {
    const std::string& variable = g.configs[id].variable;
    const tensor* now = g.network.initializer(variable);
    if (now == nullptr || now->count() == 0 || !seen.insert(variable).second) {
      return;
    }
    const auto before = g.float_constants.find(variable);
    const tensor f = before == g.float_constants.end() ? *now : before->second;
    const bool off = g.configs[id].state() == quantization_state::fp32;
    const tensor q = g.configs.is_active(id)
                         ? fake_quantized(*now, g.configs[id], g.configs.parameters(id))
                         : (off ? f : *now);
    detail::report_collector collector;
    collector.observe(f, q);
    collector.begin_second_pass();
    collector.observe(f, q);
    reports.push_back(collector.report(variable));
  });
  return reports;
}
#endif

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_ANALYSIS_HPP
