// SPDX-License-Identifier: BSD-3-Clause
// Channel alignment: between two convolutions the ranges of all channels are brought to the middle
// and to one length, so that one scale and zero point fit them.
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
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/tools/nncf.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What happened to a pair of convolutions.
struct aligned_pair {
  std::string upstream;  // labels of the nodes
  std::string downstream;
  std::vector<double> shifts;  // taken from each channel between them
  std::vector<double> scales;  // then divided by
};

/// What NNCF observes a channel with: the median, over samples, of its quantiles 1e-4 and 1 - 1e-4.
/// Its memory is two doubles a sample; a percentile_observer over all samples is one of bounded
/// memory.
[[nodiscard]] inline any_observer channel_alignment_observer() {
  return any_observer(detent::nncf::range_observer(
      {.lower = {detent::nncf::statistic::quantile, detent::nncf::aggregator::median, 1e-4},
       .upper = {detent::nncf::statistic::quantile, detent::nncf::aggregator::median, 1e-4}}));
}

namespace detail {

/// Whether every output of the layer sees all elements of its window: a constant that is added to
/// an input channel is the same constant in all places of the output.
[[nodiscard]] inline bool is_plain_convolution(const node& n) {
  const auto all = [&](const char* name, std::int64_t value) {
    const std::vector<std::int64_t> list = n.get_ints(name);
    return std::all_of(list.begin(), list.end(), [&](std::int64_t x) { return x == value; });
  };
  const std::string padding = n.get_string("auto_pad", "NOTSET");
  return n.is("Conv") && n.get_int("group", 1) == 1 && all("pads", 0) && all("strides", 1) &&
         all("dilations", 1) && (padding == "NOTSET" || padding == "VALID");
}

struct alignable_pair {
  linear_layer upstream;
  linear_layer downstream;
};

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

/// Replaces the bias of a layer by `values`, rounded to float; adds one where there is none.
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
  const std::string name = unused_name(m, n.outputs[0] + "_bias");
  n.inputs.resize(3);
  n.inputs[2] = name;
  m.initializers[name] = std::move(bias);
}

[[nodiscard]] inline std::vector<double> bias_values(const linear_layer& layer) {
  std::vector<double> values(layer.outputs, 0.0);
  for (std::size_t c = 0; c < values.size() && layer.bias.defined(); ++c) {
    values[c] = static_cast<double>(layer.bias.data<float>()[c]);
  }
  return values;
}

/// range / median(range) of the channels whose range is over FLT_EPSILON, in [0.01, 100]; 1 of the
/// others.
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

/// The values that align_channels() looks at, for observers: the axis of their channels by their
/// names.
[[nodiscard]] inline std::map<std::string, std::size_t> alignment_values(const model& m) {
  std::map<std::string, std::size_t> axes;
  for (const detail::alignable_pair& pair : detail::alignable_pairs(m)) {
    axes[m.nodes[pair.downstream.node_index].inputs[0]] = 1;
  }
  return axes;
}

/// Aligns the channels between convolutions of a simplified float model that follow each other with
/// nothing in between, both with one group, the second without padding and with strides and
/// dilations of 1. With the range lower .. upper of each channel of the first one's output:
///
///   shift = (lower + upper) / 2        scale = (upper - lower) / median over the channels, in
///                                              [0.01, 100]; 1 where the range is empty
///   W1' = W1 / scale    b1' = (b1 - shift) / scale
///   W2' = W2 * scale    b2' = b2 + sum over inputs and kernel of W2 * shift
///
/// The model computes the same function up to rounding. Where there is no bias, one is added. Sums
/// run in double, in the order of memory: the same bits everywhere.
///
/// `ranges` are by the names of alignment_values(); pairs without them are left alone. Throws
/// invalid_argument (a range that is not finite or the wrong way round, weights that are not
/// finite), shape_mismatch, overflow, naming the node. The model is then as before.
///
/// Source: NNCF, ChannelAlignment, whose quantiles channel_alignment_observer() takes.
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
    upstream.bias = tensor();  // scale_outputs() is to leave it alone
    scale_outputs(next, upstream, inverse);
    detail::set_bias(next, *linear_layer_of(next, pair.upstream.node_index), bias);

    const linear_layer downstream = *linear_layer_of(next, pair.downstream.node_index);
    static_cast<void>(input_magnitudes(downstream));  // all are finite
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
