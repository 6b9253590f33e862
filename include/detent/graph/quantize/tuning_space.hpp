// SPDX-License-Identifier: BSD-3-Clause
// The settings that tune() chooses from: what one trial quantizes, and how.
#ifndef DETENT_GRAPH_QUANTIZE_TUNING_SPACE_HPP
#define DETENT_GRAPH_QUANTIZE_TUNING_SPACE_HPP

#include <compare>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/operator_rules.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// One way to quantize a model. Dynamic quantization has no ranges to calibrate: it ignores
/// `samples`, `method` and `symmetric_activations`.
struct tuning_setting {
  std::size_t samples = 0;                      ///< Calibration samples; 0: all that there are.
  std::string method = "minmax";                ///< Name of the observer of the activations.
  bool symmetric_activations = false;           ///< Whether ranges of activations are symmetric.
  bool per_channel = true;                      ///< Whether weights have a scale for each channel.
  weight_scale weights = weight_scale::absmax;  ///< How scales of weights are chosen.
  bias_correction correction = bias_correction::none;  ///< How biases make up for rounding.
  /// Nodes that stay in float, by the names of their first outputs in the simplified model.
  std::set<std::string> in_float = {};

  /// Settings are ordered member by member.
  friend auto operator<=>(const tuning_setting&, const tuning_setting&) = default;
};

/// The values that a search may choose for each member of tuning_setting; each list has at least
/// one. Which nodes stay in float is not listed: a search may leave any of them.
struct tuning_space {
  std::vector<std::size_t> samples = {0};                      ///< For tuning_setting::samples.
  std::vector<std::string> methods = {"minmax"};               ///< For tuning_setting::method.
  std::vector<bool> symmetric_activations = {false};           ///< For the member of that name.
  std::vector<bool> per_channel = {true, false};               ///< For tuning_setting::per_channel.
  std::vector<weight_scale> weights = {weight_scale::absmax};  ///< For the same member.
  std::vector<bias_correction> corrections = {bias_correction::none};  ///< For `correction`.

  /// How many settings there are if no node stays in float.
  [[nodiscard]] std::size_t size() const noexcept {
    return samples.size() * methods.size() * symmetric_activations.size() * per_channel.size() *
           weights.size() * corrections.size();
  }

  /// The setting with number `index`, less than size(), without nodes in float. The number of
  /// samples changes slowest and the bias correction fastest.
  [[nodiscard]] tuning_setting at(std::size_t index) const {
    require(index < size(), error_kind::invalid_argument, "setting ", index, " of ", size());
    const auto digit = [&](std::size_t base) {
      const std::size_t d = index % base;
      index /= base;
      return d;
    };
    tuning_setting s;
    s.correction = corrections[digit(corrections.size())];
    s.weights = weights[digit(weights.size())];
    s.per_channel = per_channel[digit(per_channel.size())];
    s.symmetric_activations = symmetric_activations[digit(symmetric_activations.size())];
    s.method = methods[digit(methods.size())];
    s.samples = samples[digit(samples.size())];
    return s;
  }
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_TUNING_SPACE_HPP
