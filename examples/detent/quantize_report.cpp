// SPDX-License-Identifier: BSD-3-Clause
#include "quantize_report.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/statistics/histogram.hpp>

#include "comparison.hpp"

namespace detent_cli {
namespace {

using graph::element_type;
using graph::node;

report_difference difference_of(const graph::signal_error& e) {
  return {e.snr_db(), e.cosine(), e.largest()};
}

/// The share of values beyond [lower, upper], up to the widths of two bins.
double fraction_outside(const detent::count_histogram& h, double lower, double upper) {
  std::uint64_t outside = 0;
  for (const detent::value_bin& bin : h.bins()) {
    const detent::value_range r = bin.range();
    outside += static_cast<double>(r.lower) > upper || static_cast<double>(r.upper) < lower
                   ? bin.count
                   : 0U;
  }
  return static_cast<double>(outside) / static_cast<double>(h.count());
}

void add_activations(report_data& data, const outcome& o, const model_comparison& compared,
                     const std::map<std::string, detent::count_histogram>& histograms) {
  const graph::model& m = o.parts->plan.float_model();
  const auto& p = o.parts->parameters;
  const graph::links l(m);
  std::vector<std::string> order;
  for (const value_info& v : m.inputs) {
    order.push_back(v.name);
  }
  for (const node& n : m.nodes) {
    order.insert(order.end(), n.outputs.begin(), n.outputs.end());
  }
  const bool is_signed = p.activation_type == element_type::s8;
  const detent::grid levels = graph::activation_levels(p.activation_type, p.activation_bits);
  for (const std::string& name : order) {
    const auto params = p.activations.find(name);
    const auto solution = o.solutions.find(name);
    if (params == p.activations.end() || solution == o.solutions.end()) {
      continue;  // it is not quantized, or has the parameters of the value it was moved from
    }
    report_activation a;
    a.tensor = name;
    a.op = l.producer(name) == graph::links::none ? "" : m.nodes[l.producer(name)].label();
    a.scale = static_cast<double>(params->second.scale);
    a.zero_point = params->second.zero_point;
    a.grid = is_signed ? "int8" : "uint8";
    if (p.activation_bits != 8) {
      a.grid += ", " + std::to_string(p.activation_bits) + " bits";
    }
    a.method = o.methods.at(name);
    a.lower = static_cast<double>(solution->second.evidence.lower);
    a.upper = static_cast<double>(solution->second.evidence.upper);
    a.clip_lower = a.scale * static_cast<double>(levels.qmin - a.zero_point);
    a.clip_upper = a.scale * static_cast<double>(levels.qmax - a.zero_point);
    const auto histogram = histograms.find(name);
    const bool has_histogram = histogram != histograms.end() && histogram->second.count() > 0;
    a.clipped_fraction = a.method == "given" && has_histogram
                             ? fraction_outside(histogram->second, a.clip_lower, a.clip_upper)
                             : solution->second.evidence.clipped_fraction;
    for (const tensor_comparison& t : compared.tensors) {
      if (t.name == name) {
        a.difference = difference_of(t.error);
        if (t.rescaled_snr) {
          a.difference.snr_db = t.rescaled_snr;
          a.op += " (its channels were rescaled; the SNR is that without the factors)";
        }
      }
    }
    if (has_histogram) {
      a.histogram = make_plot_histogram(histogram->second);
    }
    data.activations.push_back(std::move(a));
  }
}

void add_weights(report_data& data, const outcome& o) {
  const graph::model& m = o.parts->plan.float_model();
  for (const auto& [index, weights] : o.parts->parameters.layers) {
    const node& n = m.nodes[index];
    const tensor& before = m.initializers.at(n.inputs[1]);
    const tensor after = graph::dequantized(weights);
    const auto [least, most] = std::minmax_element(weights.scales.begin(), weights.scales.end());
    graph::signal_error error;
    error.add(before.data<float>(), after.data<float>());
    const bool per_tensor = weights.scales.size() == 1;
    report_weight w;
    w.tensor = n.inputs[1];
    w.op = n.label();
    w.shape = before.dims();
    w.grid = "int8";
    w.granularity = per_tensor ? "per tensor" : "per channel, axis " + std::to_string(weights.axis);
    w.scales = weights.scales.size();
    w.smallest_scale = static_cast<double>(*least);
    w.largest_scale = static_cast<double>(*most);
    w.mse = error.mean_squared_error();
    w.snr_db = error.snr_db();
    std::tie(w.before, w.after) =
        make_weight_plots(before.data<float>(), after.data<float>(), per_tensor ? *least : 0.0F);
    data.weights.push_back(std::move(w));
  }
}

}  // namespace

std::pair<double, double> accuracy(const graph::model& m, const labelled_samples& labelled,
                                   const graph::executor_options& options) {
  const sample_set& samples = labelled.samples;
  graph::executor runner(graph::for_execution(m), options);
  const std::size_t batch = batch_size(samples, 0);
  ranks counted;
  for (std::size_t at = 0; at < samples.size(); at += batch) {
    const std::vector<tensor> outputs = runner.run(samples.batch(at, batch));
    const score_rows scores(outputs, m.outputs, samples, batch);
    scores.require_rows(batch);
    for (std::size_t i = 0; i < (std::min)(batch, samples.size() - at); ++i) {
      counted.add(scores.data + i * scores.columns, scores.columns,
                  labelled.labels[samples.first() + at + i], labelled.where);
    }
  }
  return {percent(counted.top1, samples.size()), percent(counted.top5, samples.size())};
}

report_data make_report(const quantize_arguments& a, const graph::model& m,
                        const sample_set& samples, const labelled_samples* labelled,
                        const outcome& o) {
  report_data data;
  data.model = a.model;
  data.output = a.output;
  data.calibration_samples = samples.size();
  std::map<std::string, detent::count_histogram> histograms;
  for (const auto& [name, solution] : o.solutions) {
    histograms.try_emplace(name, detent::bin_storage::sparse);
  }
  const model_comparison compared =
      compare_models(m, o.result, samples, batch_size(samples, 0), a.executor_options(),
                     [&](const std::string& name, const tensor& t) {
                       const auto found = histograms.find(name);
                       if (found != histograms.end()) {
                         found->second.observe(t.data<float>());
                       }
                     });
  for (const named_error& e : compared.outputs) {
    data.outputs.push_back({e.first, difference_of(e.second)});
  }
  if (compared.judged > 0) {
    data.agreement = percent(compared.agreed, compared.judged);
  }
  if (o.parts) {
    add_activations(data, o, compared, histograms);
    add_weights(data, o);
  }
  for (const graph::quantization_step& s : o.steps) {
    data.steps.push_back({s.name, "", "noise / signal", s.noise_before, s.noise_after,
                          s.kept ? step_outcome::kept : step_outcome::dropped});
  }
  if (labelled != nullptr) {
    const auto [top1_before, top5_before] = accuracy(m, *labelled, a.executor_options());
    const auto [top1_after, top5_after] = accuracy(o.result, *labelled, a.executor_options());
    data.accuracy = {top1_before, top1_after, top5_before, top5_after, labelled->samples.size()};
  }
  if (o.accuracy && !o.accuracy->left_in_float.empty()) {
    std::string layers;
    for (const std::string& name : o.accuracy->left_in_float) {
      layers.append(layers.empty() ? "" : ", ").append(name);
    }
    data.notes.push_back("Left in float, to keep top-1: " + layers + ".");
  }
  data.options = {{"approach", a.approach},
                  {"format", a.format},
                  {"activations", a.activations.type == element_type::s8 ? "s8" : "u8"},
                  {"granularity", a.weights.per_channel ? "per-channel" : "per-tensor"},
                  {"method", a.approach == "static" ? a.method : "none"},
                  {"bias correction", a.method == "auto" ? "auto" : a.bias_correction},
                  {"target", detent::name(detent::active_target())}};
  if (a.approach == "weight-only") {
    data.notes.push_back("Only weights of products are quantized; activations stay float.");
  } else if (a.approach == "dynamic") {
    data.notes.push_back("Activations get their ranges in each run; none are stored.");
  }
  return data;
}

}  // namespace detent_cli
