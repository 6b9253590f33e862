// SPDX-License-Identifier: BSD-3-Clause
#include "nncf_compression.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/nncf/compress_weights.hpp>

#include "usage_error.hpp"

namespace detent_cli {
namespace {

namespace nncf = detent::graph::nncf;

template <class T>
using choices = std::map<std::string, T>;

const choices<nncf::compress_weights_mode> modes = {
    {"int8-asym", nncf::compress_weights_mode::int8_asym},
    {"int8-sym", nncf::compress_weights_mode::int8_sym},
    {"int4-asym", nncf::compress_weights_mode::int4_asym},
    {"int4-sym", nncf::compress_weights_mode::int4_sym}};
const choices<nncf::sensitivity_metric> metrics = {
    {"weight-quantization-error", nncf::sensitivity_metric::weight_quantization_error},
    {"hessian-input-activation", nncf::sensitivity_metric::hessian_input_activation},
    {"mean-activation-variance", nncf::sensitivity_metric::mean_activation_variance},
    {"max-activation-variance", nncf::sensitivity_metric::max_activation_variance},
    {"mean-activation-magnitude", nncf::sensitivity_metric::mean_activation_magnitude}};
const choices<nncf::backup_mode> backups = {{"none", nncf::backup_mode::none},
                                            {"int8-sym", nncf::backup_mode::int8_sym},
                                            {"int8-asym", nncf::backup_mode::int8_asym}};
const choices<nncf::group_size_fallback_mode> fallbacks = {
    {"error", nncf::group_size_fallback_mode::error},
    {"ignore", nncf::group_size_fallback_mode::ignore},
    {"adjust", nncf::group_size_fallback_mode::adjust}};

template <class T>
std::vector<std::string> keys(const choices<T>& all) {
  std::vector<std::string> list;
  for (const auto& [key, value] : all) {
    list.push_back(key);
  }
  return list;
}

nncf::compress_weights_options options_of(const nncf_compression_arguments& a) {
  nncf::compress_weights_options o;
  o.mode = modes.at(a.mode);
  o.ratio = a.ratio;
  o.group_size = a.group_size;
  o.all_layers = a.all_layers;
  o.awq = a.awq;
  o.scale_estimation = a.scale_estimation;
  if (!a.sensitivity.empty()) {
    o.sensitivity_metric = metrics.at(a.sensitivity);
  }
  if (!a.backup.empty()) {
    o.backup_mode = backups.at(a.backup);
  }
  if (!a.group_size_fallback.empty()) {
    o.group_size_fallback_mode = fallbacks.at(a.group_size_fallback);
  }
  return o;
}

}  // namespace

nncf_compression_flags::nncf_compression_flags(CLI::App& command) {
  command
      .add_option("--compress", a_.mode,
                  "Weights become integers, all else stays in float: of 8 bits, or of 4 where that "
                  "harms least (pipeline nncf)")
      ->check(CLI::IsMember(keys(modes)));
  command
      .add_option("--ratio", a_.ratio,
                  "Part of the weights that may have 4 bits (1), with --compress int4-*")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--group-size", a_.group_size,
                     "Weights that share a scale (128); -1: all inputs of an output; with "
                     "--compress int4-*");
  command
      .add_option("--group-size-fallback", a_.group_size_fallback,
                  "What happens to layers that the group size does not divide, with --compress "
                  "int4-*: an error, float, or another group size")
      ->check(CLI::IsMember(keys(fallbacks)));
  command
      .add_option("--sensitivity", a_.sensitivity,
                  "How layers are ranked with --ratio; all but weight-quantization-error need "
                  "--calib, and max-activation-variance is the default with it")
      ->check(CLI::IsMember(keys(metrics)));
  command
      .add_option("--backup", a_.backup,
                  "Weights that do not get 4 bits (int8-asym), with --compress int4-*")
      ->check(CLI::IsMember(keys(backups)));
  command.add_flag("--all-layers", a_.all_layers,
                   "Embeddings and the last layer may have 4 bits, too");
  command.add_flag("--awq", a_.awq,
                   "Inputs of layers with 4 bits are scaled so that the weights lose less, with "
                   "samples if there are some");
  command.add_flag("--scale-estimation", a_.scale_estimation,
                   "Scales of weights of 4 bits are chosen by the outputs of the layers; needs "
                   "--calib");
}

const std::vector<std::string>& nncf_compression_flags::names() {
  static const std::vector<std::string> all = {
      "compress", "ratio",      "group-size", "group-size-fallback", "sensitivity",
      "backup",   "all-layers", "awq",        "scale-estimation"};
  return all;
}

std::optional<nncf_compression_arguments> nncf_compression_flags::arguments(
    const std::set<std::string>& given) const {
  if (given.count("compress") == 0) {
    for (const std::string& name : names()) {
      if (given.count(name) != 0) {
        throw usage_error("--" + name + " needs --compress");
      }
    }
    return std::nullopt;
  }
  for (const char* name : {"mode", "preset", "model-type", "target-device", "smooth-quant",
                           "overflow-fix", "bias-correction", "format", "activations"}) {
    if (given.count(name) != 0) {
      throw usage_error(std::string("--compress has no --") + name);
    }
  }
  if (a_.mode.rfind("int8", 0) == 0) {
    for (const std::string& name : names()) {
      if (name != "compress" && given.count(name) != 0) {
        throw usage_error("--compress " + a_.mode + " has no --" + name +
                          ": all layers have 8 bits and a scale for each channel");
      }
    }
    if (given.count("calib") != 0) {
      throw usage_error("--compress " + a_.mode + " has no --calib: it needs no samples");
    }
  }
  if (a_.group_size && *a_.group_size != -1 && *a_.group_size < 1) {
    throw usage_error("--group-size " + std::to_string(*a_.group_size) +
                      ": expected a positive number, or -1 for all inputs of an output");
  }
  if (a_.ratio && *a_.ratio == 0.0) {
    throw usage_error("--ratio 0: expected a number above 0 and at most 1");
  }
  return a_;
}

std::string reason_for_samples(const nncf_compression_arguments& a) {
  const bool ranks_by_samples =
      !a.sensitivity.empty() && a.sensitivity != "weight-quantization-error";
  if (a.scale_estimation) {
    return "--scale-estimation needs calibration samples";
  }
  return ranks_by_samples ? "--sensitivity " + a.sensitivity + " needs calibration samples" : "";
}

outcome compress_by_nncf(const quantize_arguments& a, const graph::model& m,
                         const graph::calibration_source& samples) {
  nncf::compress_weights_options options = options_of(*a.nncf->compression);
  options.executor = a.executor_options();
  options.ignored_scope = a.nncf->ignored;
  options.subset_size = nncf::dataset::all;
  nncf::source_items items(samples);
  if (samples) {
    options.dataset = nncf::dataset(items);
  }
  nncf::weight_compression done = nncf::compress_weights(m, options);
  outcome o;
  for (const nncf::compressed_weights& layer : done.layers) {
    o.layers += layer.mode ? 1U : 0U;
  }
  o.ignored_in_vain = std::move(done.ignored_in_vain);
  o.scaled_layers = done.scaled_layers;
  o.result = std::move(done.result);
  return o;
}

}  // namespace detent_cli
