// SPDX-License-Identifier: BSD-3-Clause
// Channel alignment: shifts and scales the channels between two convolutions so that their ranges
// have one center and one length. One scale and one zero point then fit all of them.
#ifndef DETENT_GRAPH_REWRITE_CHANNEL_ALIGNMENT_HPP
#define DETENT_GRAPH_REWRITE_CHANNEL_ALIGNMENT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/tools/nncf.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Report of what align_channels() did to one pair of convolutions.
struct aligned_pair {
  std::string upstream;        ///< Label of the convolution that makes the channels.
  std::string downstream;      ///< Label of the convolution that takes them.
  std::vector<double> shifts;  ///< Value subtracted from each channel between the two.
  std::vector<double> scales;  ///< Value that each shifted channel is then divided by.
};

/// Makes the observer that NNCF uses for the range of a channel: the median, over the samples, of
/// each sample's quantiles 1e-4 and 1 - 1e-4.
///
/// It keeps two doubles for each sample. A percentile_observer over all samples is an alternative
/// whose memory is bounded.
[[nodiscard]] inline any_observer channel_alignment_observer() {
  return any_observer(detent::nncf::range_observer(
      {.lower = {detent::nncf::statistic::quantile, detent::nncf::aggregator::median, 1e-4},
       .upper = {detent::nncf::statistic::quantile, detent::nncf::aggregator::median, 1e-4}}));
}

namespace detail {

/// Whether the node is a Conv with one group, no padding, and strides and dilations of 1. Without
/// padding every output sees all elements of its window, so a constant that is added to an input
/// channel adds one constant to all places of an output channel.
[[nodiscard]] inline bool is_plain_convolution(const node& n) {
  const auto all = [&](const char* name, std::int64_t value) {
    const std::vector<std::int64_t> list = n.get_ints(name);
    return std::all_of(list.begin(), list.end(), [&](std::int64_t x) { return x == value; });
  };
  const std::string padding = n.get_string("auto_pad", "NOTSET");
  return n.is("Conv") && n.get_int("group", 1) == 1 && all("pads", 0) && all("strides", 1) &&
         all("dilations", 1) && (padding == "NOTSET" || padding == "VALID");
}

/// Two convolutions whose channels can be aligned.
struct alignable_pair {
  linear_layer upstream;
  linear_layer downstream;
};

/// All pairs in which the output of a Conv with one group goes to one plain convolution only, and
/// to nothing else. The biases of both are constants or absent.
[[nodiscard]] inline std::vector<alignable_pair> alignable_pairs(const model& m) {
  const links l(m);
  std::vector<alignable_pair> pairs;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    const node& n = m.nodes[i];
    if (!is_plain_convolution(n)) {
      continue;
    }
    const std::size_t producer = l.producer(n.inputs[0]);
    if (producer == links::none || !m.nodes[producer].is("Conv") ||
        m.nodes[producer].get_int("group", 1) != 1 || sole_consumer(m, l, producer) != i) {
      continue;
    }
    auto upstream = linear_layer_of(m, producer);
    auto downstream = linear_layer_of(m, i);
    if (upstream && downstream && upstream->known_bias && downstream->known_bias &&
        upstream->outputs == downstream->inputs) {
      pairs.push_back({std::move(*upstream), std::move(*downstream)});
    }
  }
  return pairs;
}

/// Replaces the bias of a layer by `values`, rounded to float; adds a bias where there is none.
/// Throws overflow if a value is not finite as a float.
inline void set_bias(model& m, const linear_layer& layer, const std::vector<double>& values) {
  tensor bias = tensor::allocate(element_type::f32, {static_cast<std::int64_t>(layer.outputs)});
  for (std::size_t c = 0; c < values.size(); ++c) {
    bias.mutable_data<float>()[c] = static_cast<float>(values[c]);
    require(std::isfinite(bias.data<float>()[c]), error_kind::overflow, layer.label, ": the bias ",
            values[c], " of output ", c, " is not a float");
  }
  node& n = m.nodes[layer.node_index];
  if (layer.bias.defined()) {
    replace_constant(m, n, 2, std::move(bias));
    return;
  }
  const std::string name = unused_names(m).take(n.outputs[0] + "_bias");
  n.inputs.resize(3);
  n.inputs[2] = name;
  m.initializers[name] = std::move(bias);
}

/// The bias of each output channel; zeros if the layer has none.
[[nodiscard]] inline std::vector<double> bias_values(const linear_layer& layer) {
  std::vector<double> values(layer.outputs, 0.0);
  for (std::size_t c = 0; c < values.size() && layer.bias.defined(); ++c) {
    values[c] = static_cast<double>(layer.bias.data<float>()[c]);
  }
  return values;
}

/// The scale of each channel: its length divided by the median length, clamped to [0.01, 100]. The
/// median is over the channels that are longer than FLT_EPSILON; all other channels get scale 1.
[[nodiscard]] inline std::vector<double> alignment_scales(const std::vector<double>& lengths) {
  constexpr auto smallest = static_cast<double>(std::numeric_limits<float>::epsilon());
  std::vector<double> live;
  std::copy_if(lengths.begin(), lengths.end(), std::back_inserter(live),
               [](double length) { return length > smallest; });
  std::vector<double> scales(lengths.size(), 1.0);
  if (live.empty()) {
    return scales;
  }
  std::sort(live.begin(), live.end());
  const double median = (live[(live.size() - 1) / 2] + live[live.size() / 2]) / 2.0;
  for (std::size_t c = 0; c < scales.size(); ++c) {
    if (lengths[c] > smallest) {
      scales[c] = std::clamp(lengths[c] / median, 1e-2, 1e2);
    }
  }
  return scales;
}

}  // namespace detail

/// Lists the values that align_channels() needs ranges for, each with the axis of its channels (1).
/// Pass the result to observe_channels().
[[nodiscard]] inline std::map<std::string, std::size_t> alignment_values(const model& m) {
  std::map<std::string, std::size_t> axes;
  for (const detail::alignable_pair& pair : detail::alignable_pairs(m)) {
    axes[m.nodes[pair.downstream.node_index].inputs[0]] = 1;
  }
  return axes;
}

/// Aligns the channels between pairs of convolutions of a float model, which simplify() should have
/// prepared. A pair is two convolutions that follow each other with nothing in between, both with
/// one group; the second has no padding, and strides and dilations of 1. For the range lower ..
/// upper of each channel of the first one's output:
///
///     shift = (lower + upper) / 2
///     scale = (upper - lower) / median of the lengths, in [0.01, 100]; 1 where the range is empty
///     W1' = W1 / scale    b1' = (b1 - shift) / scale
///     W2' = W2 * scale    b2' = b2 + sum over inputs and kernel of W2 * shift
///
/// A range counts as empty if it is not longer than FLT_EPSILON; the median does not include such
/// ranges. The model computes the same function up to rounding. A convolution without a bias gets
/// one. Sums are accumulated in double, in the order of memory, so results are bit-identical on all
/// platforms.
///
/// `ranges` has, by the names that alignment_values() returns, one range for each channel. Pairs
/// whose value is missing from it are left alone. Returns one entry for each pair that was aligned.
///
/// Throws, naming the node: invalid_argument if a range is not finite, if its lower end is greater
/// than its upper end, or if a weight is not finite; shape_mismatch if the number of ranges is not
/// the number of channels; overflow if a result is not finite as a float. If it throws, the model
/// is unchanged.
///
/// Source: NNCF, ChannelAlignment. channel_alignment_observer() measures the ranges as NNCF does.
inline std::vector<aligned_pair> align_channels(
    model& m, const std::map<std::string, std::vector<value_range>>& ranges) {
  model next = m;
  std::vector<aligned_pair> result;
  for (const detail::alignable_pair& pair : detail::alignable_pairs(m)) {
    const auto found = ranges.find(m.nodes[pair.downstream.node_index].inputs[0]);
    if (found == ranges.end()) {
      continue;
    }
    const std::size_t channels = pair.upstream.outputs;
    require(found->second.size() == channels, error_kind::shape_mismatch, pair.upstream.label, ": ",
            found->second.size(), " ranges for ", channels, " outputs");
    aligned_pair evidence;
    evidence.upstream = pair.upstream.label;
    evidence.downstream = pair.downstream.label;
    std::vector<double> lengths;
    for (const value_range& r : found->second) {
      require(std::isfinite(r.lower) && std::isfinite(r.upper) && r.lower <= r.upper,
              error_kind::invalid_argument, pair.upstream.label, ": the range ", r.lower, " .. ",
              r.upper, " of output ", lengths.size());
      const auto lower = static_cast<double>(r.lower);
      const auto upper = static_cast<double>(r.upper);
      evidence.shifts.push_back((lower + upper) / 2.0);
      lengths.push_back(upper - lower);
    }
    evidence.scales = detail::alignment_scales(lengths);

    linear_layer upstream = *linear_layer_of(next, pair.upstream.node_index);
    std::vector<double> bias = detail::bias_values(upstream);
    std::vector<double> inverse(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      bias[c] = (bias[c] - evidence.shifts[c]) / evidence.scales[c];
      inverse[c] = 1.0 / evidence.scales[c];
    }
    upstream.bias = tensor();  // scale_outputs() must not touch it: set_bias() follows
    scale_outputs(next, upstream, inverse);
    detail::set_bias(next, *linear_layer_of(next, pair.upstream.node_index), bias);

    const linear_layer downstream = *linear_layer_of(next, pair.downstream.node_index);
    static_cast<void>(input_magnitudes(downstream));  // throws if a weight is not finite
    std::vector<double> next_bias = detail::bias_values(downstream);
    const auto w = downstream.weights.data<float>();
    downstream.for_each_connection([&](std::size_t first, std::size_t output, std::size_t input) {
      for (std::size_t k = first; k < first + downstream.kernel; ++k) {
        next_bias[output] +=
            detent::detail::rounded_product(static_cast<double>(w[k]), evidence.shifts[input]);
      }
    });
    scale_inputs(next, downstream, evidence.scales);
    detail::set_bias(next, *linear_layer_of(next, pair.downstream.node_index), next_bias);
    result.push_back(std::move(evidence));
  }
  m = std::move(next);
  return result;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_CHANNEL_ALIGNMENT_HPP
