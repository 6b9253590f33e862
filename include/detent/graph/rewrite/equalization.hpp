// SPDX-License-Identifier: BSD-3-Clause
// Cross-layer equalization. Where one layer's output goes to another layer through homogeneous
// operators only, each channel can be made larger before them and smaller behind them. With ranges
// u (of the channel's weights before) and d (behind), and the factor c = sqrt(d / u),
//
//   weights before *= c, bias *= c, weights behind /= c      both ranges become sqrt(u d)
//
// and one scale for all channels of a tensor fits all of them better.
//
// Source: Nagel et al., Data-Free Quantization through Weight Equalization and Bias Correction
// (2019), where the factor is called 1 / s. PPQ's layerwise equalization is the same with limits.
#ifndef DETENT_GRAPH_REWRITE_EQUALIZATION_HPP
#define DETENT_GRAPH_REWRITE_EQUALIZATION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/scale_rules.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The magnitudes of the channels of several values, by the name of the value.
using channel_magnitude_map = std::map<std::string, std::vector<float>>;

/// Options of equalize(). For each channel, u is the largest |weight| of the layer before it, d
/// that of the layer behind it, and c = sqrt(d / u) the factor of one sweep.
struct equalization_options {
  std::size_t iterations = 100;  ///< Sweeps over all pairs, at most.
  /// The search ends when max(c, 1 / c) - 1 of all factors of a sweep is at most this.
  double tolerance = 1e-3;
  /// Whether the product of all sweeps' factors is rounded to a power of two, the nearest one in
  /// the logarithm. The rewrite is then exact: the model computes the same bits as before, unless a
  /// value of one of the two models leaves the range of normal floats. But both ranges of a channel
  /// are up to sqrt(2) off their mean, which costs 3 to 4 dB of the weights' SNR with one scale for
  /// each tensor (measured with random weights of a MobileNet's shape).
  bool power_of_two = false;
  /// The factors of one sweep are clamped to [1 / x, x].
  double largest_step = std::numeric_limits<double>::infinity();
  /// The product of all factors of a channel is clamped to [1 / x, x], so that channels that are
  /// almost zero stay small.
  double largest_factor = 1024.0;
  double value_threshold = 0.0;  ///< Channels with u + d below it are left as they are.
  /// If greater than 0, u is at least this times the |bias| of the channel.
  double bias_multiplier = 0.0;
  /// If greater than 0, u is at least this times the channel's magnitude in `activations`.
  double activation_multiplier = 0.0;
  /// The largest |x| of each channel, by the names that pair_values() returns.
  channel_magnitude_map activations = {};

  /// PPQ's default settings: ten sweeps of c = 1 / sqrt(u / d) in [0.1, 10]; channels with u + d
  /// below 0.5 are not changed. PPQ rounds weights to float after each sweep, equalize() once at
  /// the end.
  [[nodiscard]] static equalization_options ppq() {
    equalization_options o;
    o.iterations = 10;
    o.tolerance = 0.0;
    o.largest_step = 10.0;
    o.largest_factor = std::numeric_limits<double>::infinity();
    o.value_threshold = 0.5;
    return o;
  }
};

/// Report of what equalize() did to one pair of layers.
struct equalized_pair {
  std::string upstream;    ///< Label of the node that makes the channels.
  std::string downstream;  ///< Label of the node that takes them.
  /// Factor of each channel, by which the weights of `upstream` were multiplied.
  std::vector<double> factors;
  std::size_t changed = 0;  ///< Number of factors other than 1.
  /// Before equalization: the largest max(u, d) / min(u, d) over the channels whose two ranges u
  /// and d are not 0; 1 if there are no such channels.
  double imbalance_before = 1.0;
  /// The imbalance after equalization.
  double imbalance_after = 1.0;
  /// Before equalization: the mean of (u / largest u) * (d / largest d) over the channels whose two
  /// ranges are not 0. Equalization increases it; it is 1 if all channels are alike.
  double precision_before = 1.0;
  /// The precision after equalization.
  double precision_after = 1.0;
};

/// Report of what equalize() did.
struct equalization_result {
  std::vector<equalized_pair> pairs;  ///< All pairs, in the order of cross_layer_pairs().
  std::size_t iterations = 0;         ///< Sweeps that were made.
  double last_change = 0.0;           ///< Largest max(c, 1 / c) - 1 of the last sweep's factors c.
};

namespace detail {

/// The magnitudes of a layer's connections, under factors that have not been applied to it yet.
class scaled_layer {
 public:
  explicit scaled_layer(const linear_layer& layer)
      : layer_(layer),
        magnitudes_(connection_magnitudes(layer)),
        outputs_(layer.outputs, 1.0),
        inputs_(layer.inputs, 1.0) {}

  [[nodiscard]] std::vector<double> output_ranges() const { return ranges(true); }
  [[nodiscard]] std::vector<double> input_ranges() const { return ranges(false); }
  [[nodiscard]] std::vector<double>& output_factors() noexcept { return outputs_; }
  [[nodiscard]] std::vector<double>& input_factors() noexcept { return inputs_; }

 private:
  [[nodiscard]] std::vector<double> ranges(bool of_outputs) const {
    std::vector<double> result(of_outputs ? layer_.outputs : layer_.inputs, 0.0);
    layer_.for_each_connection([&](std::size_t first, std::size_t output, std::size_t input) {
      const auto w = static_cast<double>(magnitudes_[first / layer_.kernel]);
      double& range = result[of_outputs ? output : input];
      range = (std::max)(range, w * outputs_[output] * inputs_[input]);
    });
    return result;
  }

  linear_layer layer_;
  std::vector<float> magnitudes_;
  std::vector<double> outputs_;
  std::vector<double> inputs_;
};

/// The largest value of each channel of the pair, given one value for each input of the second
/// layer. Throws shape_mismatch if their number differs from the number of inputs.
template <class T>
[[nodiscard]] std::vector<T> largest_of_channels(const layer_pair& pair, std::span<const T> values,
                                                 const char* what) {
  require(values.size() == pair.downstream.inputs, error_kind::shape_mismatch,
          pair.downstream.label, ": ", values.size(), " ", what, " for ", pair.downstream.inputs,
          " inputs");
  std::vector<T> largest(pair.upstream.outputs, T{0});
  for (std::size_t i = 0; i < values.size(); ++i) {
    T& channel = largest[pair.channel_of_input(i)];
    channel = (std::max)(channel, values[i]);
  }
  return largest;
}

/// Makes channel c of a pair `factors[c]` times larger before the path and smaller behind it.
inline void scale_pair(model& m, const layer_pair& pair, std::span<const double> factors) {
  scale_outputs(m, *linear_layer_of(m, pair.upstream.node_index), factors);
  scale_path(m, pair.path, factors);
  std::vector<double> inverse(pair.downstream.inputs);
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] = 1.0 / factors[pair.channel_of_input(i)];
  }
  scale_inputs(m, *linear_layer_of(m, pair.downstream.node_index), inverse);
}

/// The magnitudes of the second layer's inputs, by channel of the pair; empty if they are not
/// known. Throws invalid_argument if one is negative or not finite.
[[nodiscard]] inline std::vector<float> pair_activations(const model& m, const layer_pair& pair,
                                                         const channel_magnitude_map& known) {
  const std::string& value = m.nodes[pair.downstream.node_index].inputs[0];
  const auto found = known.find(value);
  if (found == known.end()) {
    return {};
  }
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    require(std::isfinite(found->second[i]) && found->second[i] >= 0.0F,
            error_kind::invalid_argument, "tensor '", value, "': the magnitude of channel ", i,
            " is ", found->second[i]);
  }
  return largest_of_channels<float>(pair, found->second, "magnitudes");
}

/// Holds the state of equalize(): the factors of all pairs until they are applied at the end.
class equalizer {
 public:
  equalizer(const model& m, const equalization_options& options)
      : options_(options), pairs_(cross_layer_pairs(m)) {
    const auto positive = [](double x) { return x >= 0.0; };  // false for NaN
    require(options.largest_step >= 1.0 && options.largest_factor >= 1.0,
            error_kind::invalid_argument, "equalize: factors up to ", options.largest_step,
            " a sweep and ", options.largest_factor, " in all must not be below 1");
    require(positive(options.tolerance) && positive(options.value_threshold) &&
                positive(options.bias_multiplier) && positive(options.activation_multiplier),
            error_kind::invalid_argument,
            "equalize: a tolerance, threshold or multiplier is negative");
    for (const layer_pair& pair : pairs_) {
      layers_.try_emplace(pair.upstream.node_index, pair.upstream);
      layers_.try_emplace(pair.downstream.node_index, pair.downstream);
      floors_.push_back(floor_of(m, pair));
    }
  }

  equalization_result run(model& m) {
    equalization_result result;
    for (const layer_pair& pair : pairs_) {
      equalized_pair evidence;
      evidence.upstream = pair.upstream.label;
      evidence.downstream = pair.downstream.label;
      measure(pair, evidence.imbalance_before, evidence.precision_before);
      evidence.factors.assign(pair.upstream.outputs, 1.0);
      result.pairs.push_back(std::move(evidence));
    }
    bool settled = pairs_.empty();
    while (result.iterations < options_.iterations && !settled) {
      result.last_change = 0.0;
      for (std::size_t p = 0; p < pairs_.size(); ++p) {
        const double farthest = sweep(pairs_[p], floors_[p], result.pairs[p].factors);
        result.last_change = (std::max)(result.last_change, farthest - 1.0);
      }
      settled = result.last_change <= options_.tolerance;
      ++result.iterations;
    }
    model next = m;
    for (std::size_t p = 0; p < pairs_.size(); ++p) {
      finish(pairs_[p], result.pairs[p]);
    }
    for (std::size_t p = 0; p < pairs_.size(); ++p) {
      equalized_pair& evidence = result.pairs[p];
      measure(pairs_[p], evidence.imbalance_after, evidence.precision_after);
      if (evidence.changed > 0) {
        scale_pair(next, pairs_[p], evidence.factors);
      }
    }
    m = std::move(next);
    return result;
  }

 private:
  /// The lower bound of u for each channel: from its bias and from its activations.
  [[nodiscard]] std::vector<double> floor_of(const model& m, const layer_pair& pair) const {
    std::vector<double> floor(pair.upstream.outputs, 0.0);
    if (options_.bias_multiplier > 0.0 && pair.upstream.bias.defined()) {
      const tensor bias = bias_by_output(pair.upstream);
      for (std::size_t k = 0; k < bias.count(); ++k) {
        const float b = bias.data<float>()[k];
        require(std::isfinite(b), error_kind::invalid_argument, pair.upstream.label,
                ": its bias holds ", b);
        double& of_channel = floor[k % floor.size()];
        of_channel =
            (std::max)(of_channel, options_.bias_multiplier * static_cast<double>(std::fabs(b)));
      }
    }
    if (options_.activation_multiplier > 0.0) {
      const std::vector<float> activations = pair_activations(m, pair, options_.activations);
      for (std::size_t c = 0; c < activations.size(); ++c) {
        floor[c] = (std::max)(floor[c],
                              options_.activation_multiplier * static_cast<double>(activations[c]));
      }
    }
    return floor;
  }

  [[nodiscard]] std::vector<double> downstream_ranges(const layer_pair& pair) {
    const std::vector<double> ranges = layers_.at(pair.downstream.node_index).input_ranges();
    return largest_of_channels<double>(pair, ranges, "ranges");
  }

  void apply(const layer_pair& pair, std::size_t channel, double factor) {
    layers_.at(pair.upstream.node_index).output_factors()[channel] *= factor;
    std::vector<double>& inputs = layers_.at(pair.downstream.node_index).input_factors();
    const std::size_t repeat = inputs.size() / pair.upstream.outputs;
    for (std::size_t i = channel * repeat; i < (channel + 1) * repeat; ++i) {
      inputs[i] /= factor;
    }
  }

  /// Equalizes one pair. Returns the largest max(factor, 1 / factor).
  double sweep(const layer_pair& pair, const std::vector<double>& floor,
               std::vector<double>& factors) {
    const std::vector<double> u = layers_.at(pair.upstream.node_index).output_ranges();
    const std::vector<double> d = downstream_ranges(pair);
    double farthest = 1.0;
    for (std::size_t c = 0; c < u.size(); ++c) {
      const double before = (std::max)(u[c], floor[c] * factors[c]);
      if (!(before > 0.0) || !(d[c] > 0.0) || before + d[c] < options_.value_threshold) {
        continue;
      }
      double factor = std::sqrt(d[c] / before);
      factor = std::clamp(factor, 1.0 / options_.largest_step, options_.largest_step);
      // Clamp so that the product of all sweeps stays within the limit.
      const double limit = options_.largest_factor;
      factor = std::clamp(factors[c] * factor, 1.0 / limit, limit) / factors[c];
      apply(pair, c, factor);
      factors[c] *= factor;
      farthest = (std::max)(farthest, (std::max)(factor, 1.0 / factor));
    }
    return farthest;
  }

  /// Rounds the factors of a pair to powers of two if that is asked for, and counts those that are
  /// not 1.
  void finish(const layer_pair& pair, equalized_pair& evidence) {
    for (std::size_t c = 0; c < evidence.factors.size(); ++c) {
      double& factor = evidence.factors[c];
      if (options_.power_of_two) {
        const double power =
            reference::project_to_power_of_two(factor, power_of_two_rounding::half_up);
        apply(pair, c, power / factor);
        factor = power;
      }
      evidence.changed += factor != 1.0 ? 1 : 0;
    }
  }

  /// Computes the members `imbalance_...` and `precision_...` of equalized_pair.
  void measure(const layer_pair& pair, double& imbalance, double& precision) {
    const std::vector<double> u = layers_.at(pair.upstream.node_index).output_ranges();
    const std::vector<double> d = downstream_ranges(pair);
    std::vector<std::size_t> live;
    double largest_u = 0.0;
    double largest_d = 0.0;
    imbalance = 1.0;
    for (std::size_t c = 0; c < u.size(); ++c) {
      if (u[c] > 0.0 && d[c] > 0.0) {
        live.push_back(c);
        largest_u = (std::max)(largest_u, u[c]);
        largest_d = (std::max)(largest_d, d[c]);
        imbalance = (std::max)(imbalance, (std::max)(u[c], d[c]) / (std::min)(u[c], d[c]));
      }
    }
    double sum = 0.0;
    for (const std::size_t c : live) {
      sum += detent::detail::rounded_product(u[c] / largest_u, d[c] / largest_d);
    }
    precision = live.empty() ? 1.0 : sum / static_cast<double>(live.size());
  }

  const equalization_options& options_;
  std::vector<layer_pair> pairs_;
  std::map<std::size_t, scaled_layer> layers_;  // by index of the node
  std::vector<std::vector<double>> floors_;     // of u, for each of pairs_
};

}  // namespace detail

/// Equalizes the channels of all cross_layer_pairs() of a float model, which simplify() should have
/// prepared. The model computes the same function, up to the rounding of its weights.
///
/// For the ranges u and d of a channel, the largest |weight| of the layer before it and of the
/// layer behind it, the factor is c = sqrt(d / u). Weights and bias before are multiplied by the
/// product of all sweeps' factors, weights behind are divided by it. Pairs are equalized in turn
/// and repeatedly until nothing changes, because a layer may be part of two pairs. Channels that
/// are zero on either side stay as they are. Ranges and factors are computed in double; weights are
/// rounded once for each pair that they are part of. Results are bit-identical on all platforms.
/// Thread-safe.
///
/// Throws invalid_argument if a weight is not finite (naming the node), if an option is out of its
/// domain, or if an activation magnitude is negative or not finite; shape_mismatch if the
/// activations have another number of channels; overflow if a bias or weight would not be finite as
/// a float. If it throws, the model is unchanged.
///
/// Source: Nagel et al., Data-Free Quantization through Weight Equalization and Bias Correction
/// (2019).
DETENT_GRAPH_DECL equalization_result equalize(model& m, const equalization_options& options = {});

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL equalization_result equalize(model& m, const equalization_options& options) {
  return detail::equalizer(m, options).run(m);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_EQUALIZATION_HPP
