// SPDX-License-Identifier: BSD-3-Clause
// Single-layer scaling search (SSD): scales the channels between two layers, and keeps a scaling
// only if a measured loss drops enough.
//
// For a channel let w = the largest |weight| before it, n = the largest |weight| behind it, a = the
// largest |activation| between, and k_c = max(w) / w_c, n_c = max(n) / n_c, a_c = max(a) / a_c with
// the maxima over the channels of the pair:
//
//   ssd             f = min(k_c / n_c, a_c / n_c, 8), divided by the least f, in [1, 2]
//   ssd_root        f = sqrt(a_c * sqrt(k_c / n_c)), in [1, 2]
//   equalization    f = sqrt(n / w), in [0.1, 10]
//
// Weights and bias before are multiplied by f, weights behind are divided by f.
//
// Source: PPQ 0.6.6, SSDEqualizationPass, implemented from its description. PPQ's option of a
// channel ratio is not offered, because its definition is not known here.
#ifndef DETENT_GRAPH_REWRITE_SCALING_SEARCH_HPP
#define DETENT_GRAPH_REWRITE_SCALING_SEARCH_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How scaling_factors() computes the factor f of a channel. w and n are its largest |weight|
/// before and behind, a its largest |activation|; kc = max(w) / w, ac = max(a) / a and nc = max(n)
/// / n, with the maxima over all channels.
enum class scaling_rule : std::uint8_t {
  ssd,          ///< f = min(kc / nc, ac / nc, 8), divided by the least f, clamped to [1, 2].
  ssd_root,     ///< f = sqrt(ac * sqrt(kc / nc)), clamped to [1, 2].
  equalization  ///< f = sqrt(n / w), clamped to [0.1, 10].
};

/// Computes one factor for each channel of a pair of layers, by the formula of `rule`. The
/// arguments are magnitudes of the channels: the largest |weight| of the layer before, the largest
/// |activation| between, and the largest |weight| of the layer behind. A channel with a magnitude
/// of 0 has factor 1 and is not considered for the least factor. Computed in double. Thread-safe.
///
/// Throws shape_mismatch if the three spans differ in length; invalid_argument if a magnitude is
/// negative or not finite.
[[nodiscard]] inline std::vector<double> scaling_factors(scaling_rule rule,
                                                         std::span<const float> weights,
                                                         std::span<const float> activations,
                                                         std::span<const float> next_weights) {
  constexpr double largest_ratio = 8.0;
  require(weights.size() == activations.size() && weights.size() == next_weights.size(),
          error_kind::shape_mismatch, "scaling_factors: magnitudes of ", weights.size(), ", ",
          activations.size(), " and ", next_weights.size(), " channels");
  double largest[3] = {0.0, 0.0, 0.0};
  const std::span<const float> all[3] = {weights, activations, next_weights};
  for (std::size_t i = 0; i < 3; ++i) {
    for (const float x : all[i]) {
      require(std::isfinite(x) && x >= 0.0F, error_kind::invalid_argument,
              "scaling_factors: a magnitude is ", x);
      largest[i] = (std::max)(largest[i], static_cast<double>(x));
    }
  }
  const auto is_live = [&](std::size_t c) {
    return weights[c] > 0.0F && activations[c] > 0.0F && next_weights[c] > 0.0F;
  };
  std::vector<double> factors(weights.size(), 1.0);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t c = 0; c < factors.size(); ++c) {
    if (!is_live(c)) {
      continue;
    }
    const double k = largest[0] / static_cast<double>(weights[c]);
    const double a = largest[1] / static_cast<double>(activations[c]);
    const double n = largest[2] / static_cast<double>(next_weights[c]);
    switch (rule) {
      case scaling_rule::ssd:
        factors[c] = (std::min)({k / n, a / n, largest_ratio});
        break;
      case scaling_rule::ssd_root:
        factors[c] = std::clamp(std::sqrt(a * std::sqrt(k / n)), 1.0, 2.0);
        break;
      case scaling_rule::equalization:
        factors[c] = std::clamp(
            std::sqrt(static_cast<double>(next_weights[c]) / static_cast<double>(weights[c])), 0.1,
            10.0);
        break;
    }
    least = (std::min)(least, factors[c]);
  }
  for (std::size_t c = 0; c < factors.size() && rule == scaling_rule::ssd; ++c) {
    factors[c] = is_live(c) ? std::clamp(factors[c] / least, 1.0, 2.0) : 1.0;
  }
  return factors;
}

/// Options of search_scaling().
struct scaling_search_options {
  scaling_rule rule = scaling_rule::ssd;  ///< Formula of the factors.
  /// Attempts at each pair, at most; the first one that is not kept ends them.
  std::size_t iterations = 3;
  /// An attempt is kept if the loss falls below this times the current loss; >= 0.
  double loss_threshold = 0.8;
};

/// Report of what search_scaling() did to one pair of layers.
struct searched_pair {
  std::string upstream;         ///< Label of the node that makes the channels.
  std::string downstream;       ///< Label of the node that takes them.
  std::vector<double> factors;  ///< For each channel, the product of the factors that were kept.
  std::size_t kept = 0;         ///< Number of attempts that were kept.
};

/// Report of what search_scaling() did.
struct scaling_search_result {
  /// All pairs that were tried, in the order of cross_layer_pairs().
  std::vector<searched_pair> pairs;
  double loss_before = 0.0;  ///< Loss of the model that was given.
  double loss_after = 0.0;   ///< Loss of the model that was found.
};

/// Scales the channels of each of the cross_layer_pairs() of a float model by scaling_factors(),
/// and keeps a scaling if it reduces `loss` enough. simplify() should have prepared the model. Its
/// float function stays the same up to rounding.
///
/// `activations` has the largest |x| of each channel of the values that pair_values() names; pairs
/// whose value is missing are skipped. Factors that are kept scale these magnitudes, too. `loss` is
/// given a float model; it should quantize it and return how far its outputs are off. Results are
/// bit-identical on all platforms if those of `loss` are.
///
/// Throws invalid_argument if the threshold is negative or NaN, if a magnitude or weight is not
/// finite, or if the loss is NaN; shape_mismatch if the number of magnitudes is not that of the
/// channels; overflow if a scaled constant is not finite; and what `loss` throws. If it throws, the
/// model is unchanged.
inline scaling_search_result search_scaling(model& m, const channel_magnitude_map& activations,
                                            const std::function<double(const model&)>& loss,
                                            const scaling_search_options& options = {}) {
  require(options.loss_threshold >= 0.0, error_kind::invalid_argument,
          "search_scaling: the loss threshold is ", options.loss_threshold);
  const auto measure = [&](const model& candidate) {
    const double value = loss(candidate);
    require(!std::isnan(value), error_kind::invalid_argument, "search_scaling: the loss is NaN");
    return value;
  };
  model best = m;
  scaling_search_result result;
  result.loss_before = result.loss_after = measure(best);
  for (const layer_pair& pair : cross_layer_pairs(m)) {
    std::vector<float> magnitudes = detail::pair_activations(m, pair, activations);
    if (magnitudes.empty()) {
      continue;
    }
    searched_pair evidence;
    evidence.upstream = pair.upstream.label;
    evidence.downstream = pair.downstream.label;
    evidence.factors.assign(pair.upstream.outputs, 1.0);
    for (std::size_t i = 0; i < options.iterations; ++i) {
      const auto upstream = linear_layer_of(best, pair.upstream.node_index);
      const auto downstream = linear_layer_of(best, pair.downstream.node_index);
      const std::vector<float> next = input_magnitudes(*downstream);
      const std::vector<double> factors =
          scaling_factors(options.rule, output_magnitudes(*upstream), magnitudes,
                          detail::largest_of_channels<float>(pair, next, "magnitudes"));
      if (std::all_of(factors.begin(), factors.end(), [](double f) { return f == 1.0; })) {
        break;
      }
      model candidate = best;
      detail::scale_pair(candidate, pair, factors);
      const double value = measure(candidate);
      if (!(value < options.loss_threshold * result.loss_after)) {
        break;
      }
      best = std::move(candidate);
      result.loss_after = value;
      ++evidence.kept;
      for (std::size_t c = 0; c < factors.size(); ++c) {
        evidence.factors[c] *= factors[c];
        magnitudes[c] = static_cast<float>(static_cast<double>(magnitudes[c]) * factors[c]);
      }
    }
    result.pairs.push_back(std::move(evidence));
  }
  m = std::move(best);
  return result;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_SCALING_SEARCH_HPP
