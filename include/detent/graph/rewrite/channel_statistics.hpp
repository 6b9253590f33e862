// SPDX-License-Identifier: BSD-3-Clause
// Collects statistics of the channels of a float model's values over calibration samples.
#ifndef DETENT_GRAPH_REWRITE_CHANNEL_STATISTICS_HPP
#define DETENT_GRAPH_REWRITE_CHANNEL_STATISTICS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/channels.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/percentile.hpp>
#include <detent/observers/tools/nncf.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Channel observers by the name of the value that they observe.
using channel_statistics = std::map<std::string, channel_observer>;

/// Runs a float model on calibration samples and observes the channels of some of its values.
///
/// `axes` has the names of the values, each with the axis of its channels. Every channel is
/// observed by its own copy of `prototype`. `samples` returns the inputs of the next run, or
/// nothing at the end of a pass; it must then start again, for observers that need two passes. Each
/// run uses `options.parallel`. Memory is that of the observers: it grows with the number of
/// samples only if theirs does. Empty tensors are skipped.
///
/// Throws invalid_argument if a name is not that of an input or of a node's output, if there are no
/// samples, or if the second pass has another number of samples than the first; unsupported if a
/// value is not float32; and what the observers throw, with the names of the tensor and the number
/// of the sample.
[[nodiscard]] inline channel_statistics observe_channels(
    const model& m, const std::function<std::optional<std::map<std::string, tensor>>()>& samples,
    const std::map<std::string, std::size_t>& axes,
    const any_observer& prototype = any_observer(min_max_observer()),
    const executor_options& options = {}) {
  std::set<std::string> values;
  for (const value_info& v : m.inputs) {
    values.insert(v.name);
  }
  for (const node& n : m.nodes) {
    values.insert(n.outputs.begin(), n.outputs.end());
  }
  channel_statistics statistics;
  for (const auto& [name, axis] : axes) {
    require(!name.empty() && values.count(name) != 0, error_kind::invalid_argument,
            "observe_channels: the model has no value '", name, "'");
    statistics.emplace(name, channel_observer(prototype, axis));
  }
  executor float_executor(m, options);
  std::size_t count = 0;
  for (std::size_t phase = 0; phase < prototype.phases(); ++phase) {
    if (phase > 0) {
      for (auto& [name, observer] : statistics) {
        observer.begin_phase(phase);
      }
    }
    std::size_t seen = 0;
    while (const auto inputs = samples()) {
      ++seen;
      const auto show = [&](const std::string& name, const tensor& value) {
        const auto found = statistics.find(name);
        if (found == statistics.end() || value.count() == 0) {
          return;
        }
        require(value.type() == element_type::f32, error_kind::unsupported, "tensor '", name,
                "' is ", graph::name(value.type()), ", not float32");
        const tensor plain = to_plain(value);
        const std::vector<std::size_t> dims(plain.dims().begin(), plain.dims().end());
        detail::of_tensor(
            name,
            [&] {
              found->second.observe(tensor_view<const float>(plain.data<float>().data(), dims),
                                    options.parallel);
            },
            " in calibration sample " + std::to_string(seen));
      };
      static_cast<void>(float_executor.run(*inputs, show));
    }
    require(seen > 0, error_kind::invalid_argument, "there are no calibration samples");
    require(phase == 0 || seen == count, error_kind::invalid_argument,
            "the second pass of the calibration had ", seen, " samples, the first ", count);
    count = seen;
  }
  return statistics;
}

/// The range of each channel, in the order of the channels. The observers must be min_max_observer,
/// percentile_observer (whose asymmetric range is taken) or nncf::range_observer. Throws
/// unsupported for other observers, and what range() of the observers throws.
[[nodiscard]] inline std::vector<value_range> channel_ranges(const channel_observer& statistics) {
  std::vector<value_range> ranges;
  for (const any_observer& channel : statistics.channels()) {
    if (const auto* min_max = channel.target<min_max_observer>()) {
      ranges.push_back(min_max->range());
    } else if (const auto* percentile = channel.target<percentile_observer>()) {
      ranges.push_back(percentile->range(false));
    } else if (const auto* samples = channel.target<detent::nncf::range_observer>()) {
      ranges.push_back(samples->range());
    } else {
      raise(error_kind::unsupported, "detent: channel_ranges: this observer does not tell a range");
    }
  }
  return ranges;
}

/// The magnitude of each channel: max(|lower|, |upper|) of its range. With min_max_observer this is
/// the largest |x| seen. Throws what channel_ranges() throws.
[[nodiscard]] inline std::vector<float> channel_magnitudes(const channel_observer& statistics) {
  std::vector<float> magnitudes;
  for (const value_range& range : channel_ranges(statistics)) {
    magnitudes.push_back((std::max)(std::fabs(range.lower), std::fabs(range.upper)));
  }
  return magnitudes;
}
/// The magnitudes of the channels of several values, by the name of the value. Throws what
/// channel_ranges() throws.
[[nodiscard]] inline std::map<std::string, std::vector<float>> channel_magnitudes(
    const channel_statistics& statistics) {
  std::map<std::string, std::vector<float>> magnitudes;
  for (const auto& [name, observer] : statistics) {
    magnitudes[name] = channel_magnitudes(observer);
  }
  return magnitudes;
}
/// The ranges of the channels of several values, by the name of the value. Throws unsupported if an
/// observer does not provide a range, and what range() of the observers throws.
[[nodiscard]] inline std::map<std::string, std::vector<value_range>> channel_ranges(
    const channel_statistics& statistics) {
  std::map<std::string, std::vector<value_range>> ranges;
  for (const auto& [name, observer] : statistics) {
    ranges[name] = channel_ranges(observer);
  }
  return ranges;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_CHANNEL_STATISTICS_HPP
