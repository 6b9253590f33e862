// SPDX-License-Identifier: BSD-3-Clause
// Cross-layer equalization: where one layer's output goes to another one through operators that are
// homogeneous, each channel can be made larger before them and smaller behind them. With ranges u
// (the channel's weights before) and d (behind), and the factor c = sqrt(d / u),
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
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/scale_rules.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Magnitudes of channels by the name of the value that has them.
using channel_magnitude_map = std::map<std::string, std::vector<float>>;

struct equalization_options {
  std::size_t iterations = 100;  // sweeps over all pairs, at most
  double tolerance = 1e-3;       // a sweep whose factors are all this close to 1 is the last
  /// Nearest powers of two (in the logarithm) for the product of all sweeps' factors. The rewrite
  /// is exact then: the model computes the same bits as before, unless a value of one of the two
  /// models leaves the range of normal floats. But both ranges of a channel are up to sqrt(2) off
  /// their mean, which costs 3 to 4 dB of the weights' SNR with one scale for each tensor (random
  /// weights of a MobileNet's shape).
  bool power_of_two = false;
  double largest_step = std::numeric_limits<double>::infinity();  // a sweep's factors: [1/x, x]
  double largest_factor = 1024.0;  // their product; channels that are as good as dead stay small
  double value_threshold = 0.0;    // channels with u + d below it are left as they are
  /// If over 0, u is not less than this times the channel's |bias|, or times its magnitude among
  /// `activations`, of the values that pair_values() names.
  double bias_multiplier = 0.0;
  double activation_multiplier = 0.0;
  channel_magnitude_map activations = {};

  /// PPQ's default settings: ten sweeps of c = 1 / sqrt(u / d) in [0.1, 10], channels with u + d
  /// below 0.5 untouched. PPQ rounds weights to float after each sweep, this in the end.
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

/// What happened to a pair of layers.
struct equalized_pair {
  std::string upstream;  // labels of the nodes
  std::string downstream;
  std::vector<double> factors;  // of the channels between them, on the first layer
  std::size_t changed = 0;      // factors other than 1
  /// The largest of max(u, d) / min(u, d) over the channels that have both; 1 if there are none.
  double imbalance_before = 1.0;
  double imbalance_after = 1.0;
  /// The mean over these channels of (u / largest u) * (d / largest d): what equalization is to
  /// make large, and 1 if all channels are alike.
  double precision_before = 1.0;
  double precision_after = 1.0;
};

struct equalization_result {
  std::vector<equalized_pair> pairs;
  std::size_t iterations = 0;
  double last_change = 0.0;  // max(c, 1 / c) - 1 of the last sweep's factor that is farthest from 1
};

namespace detail {

/// The magnitudes of a layer's connections under factors that are not applied yet.
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

/// Of values that stand for inputs of the second layer, the largest of each channel of the pair.
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

/// Makes channel c of a pair factors[c] times larger before, and smaller behind.
inline void scale_pair(model& m, const layer_pair& pair, std::span<const double> factors) {
  scale_outputs(m, *linear_layer_of(m, pair.upstream.node_index), factors);
  scale_path(m, pair.path, factors);
  std::vector<double> inverse(pair.downstream.inputs);
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] = 1.0 / factors[pair.channel_of_input(i)];
  }
  scale_inputs(m, *linear_layer_of(m, pair.downstream.node_index), inverse);
}

/// The magnitudes of what the second layer takes, by channel; empty if they are not known. Throws
/// invalid_argument if one is negative or not finite.
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

class equalizer {
 public:
  equalizer(const model& m, const equalization_options& options)
      : options_(options), pairs_(cross_layer_pairs(m)) {
    const auto positive = [](double x) { return x >= 0.0; };  // not NaN
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
  /// What u is not less than.
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

  /// Equalizes one pair. Returns the factor that is farthest from 1, or its inverse.
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
      // Not beyond the limit of the product.
      const double limit = options_.largest_factor;
      factor = std::clamp(factors[c] * factor, 1.0 / limit, limit) / factors[c];
      apply(pair, c, factor);
      factors[c] *= factor;
      farthest = (std::max)(farthest, (std::max)(factor, 1.0 / factor));
    }
    return farthest;
  }

  /// The factors that are applied in the end.
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
  std::map<std::size_t, scaled_layer> layers_;  // by node
  std::vector<std::vector<double>> floors_;     // by pair
};

}  // namespace detail

/// Equalizes all cross_layer_pairs() of a simplified float model; it computes the same function, up
/// to the rounding of its weights. Pairs are equalized in turn, again and again until nothing
/// changes, since a layer may be part of two. Channels that are zero on either side stay as they
/// are. Ranges and factors are computed in double; weights are rounded once for each pair that they
/// are part of. Thread-safe; the same bits everywhere.
///
/// Throws invalid_argument (weights that are not finite, naming the node; options out of their
/// domain; activations that are negative or not finite), shape_mismatch (activations of another
/// number of channels), overflow (a bias or weight that would leave the floats). The model is then
/// as before.
inline equalization_result equalize(model& m, const equalization_options& options = {}) {
  return detail::equalizer(m, options).run(m);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_EQUALIZATION_HPP
