// SPDX-License-Identifier: BSD-3-Clause
// What nncf::quantize() learns from samples, kept so that other options can be tried without
// running them again: ranges of activations, means for fast bias correction, and magnitudes for
// SmoothQuant.
//
// A saved state is what state_file.hpp describes, of the approach "nncf", without rounds and
// shards, and then
//
//   u64 number of values that SmoothQuant has looked at; for each a text, its name, u64 rank,
//     u64 number of channels, and the f32 magnitude of each
//   u64 number of ranges of values, in ascending order; for each a text, the name of the value,
//     u8 whether it is for symmetric quantizers, u8 whether for each channel, u64 number of
//     channels, and f32 lower and upper end of each
//   u64 number of means; for each a text, the name of the value, u8 whether it is of a convolution,
//     and the sums
#ifndef DETENT_GRAPH_NNCF_STATISTICS_HPP
#define DETENT_GRAPH_NNCF_STATISTICS_HPP

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/bias_correction.hpp>
#include <detent/graph/nncf/dataset.hpp>
#include <detent/graph/nncf/smooth_quant.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

class statistics;
struct quantize_options;
[[nodiscard]] statistics collect_statistics(model m, const dataset& samples,
                                            const quantize_options& options);

namespace detail {

class quantizer;

/// A form in which the range of a value was observed.
struct range_key {
  std::string value;
  bool symmetric = false;
  bool per_channel = false;
  friend auto operator<=>(const range_key&, const range_key&) = default;
};

/// The content of statistics.
struct collected_statistics {
  graph::detail::state_origin origin;
  graph::detail::state_progress progress;
  std::vector<layer_magnitudes> smoothed;
  std::map<range_key, std::vector<value_range>> ranges;
  biased_means means;

  void write(detent::detail::byte_writer& out) const {
    origin.write(out);
    progress.write(out);
    out.put(static_cast<std::uint64_t>(smoothed.size()));
    for (const layer_magnitudes& one : smoothed) {
      graph::detail::put_text(out, one.value);
      out.put(static_cast<std::uint64_t>(one.rank));
      out.put(static_cast<std::uint64_t>(one.magnitudes.size()));
      out.put_array(std::span<const float>(one.magnitudes));
    }
    out.put(static_cast<std::uint64_t>(ranges.size()));
    for (const auto& [key, channels] : ranges) {
      graph::detail::put_text(out, key.value);
      detent::detail::put_choice(out, key.symmetric);
      detent::detail::put_choice(out, key.per_channel);
      out.put(static_cast<std::uint64_t>(channels.size()));
      for (const value_range& r : channels) {
        out.put(r.lower);
        out.put(r.upper);
      }
    }
    means.write(out);
  }

  /// Reads what write() appended, behind the origin. Throws bad_file for what cannot be.
  void read(detent::detail::byte_reader& in) {
    progress = graph::detail::state_progress::read(in);
    require(progress.round == 1 && progress.shards.empty() && progress.samples > 0,
            error_kind::bad_file, "statistics have one round, no shards, and at least one sample");
    // Each entry has more bytes than its text has in front.
    for (std::size_t left = in.get_size(in.rest() / sizeof(std::uint64_t)); left > 0; --left) {
      layer_magnitudes one;
      one.value = graph::detail::get_text(in);
      one.rank = in.get_size(max_tensor_rank);
      in.get_array(in.get_size(in.rest()), one.magnitudes);
      require(std::all_of(one.magnitudes.begin(), one.magnitudes.end(),
                          [](float v) { return !std::isnan(v) && !std::signbit(v); }),
              error_kind::bad_file, "a magnitude of '", graph::detail::beginning_of(one.value),
              "' is negative or NaN");
      smoothed.push_back(std::move(one));
    }
    for (std::size_t left = in.get_size(in.rest() / sizeof(std::uint64_t)); left > 0; --left) {
      range_key key;
      key.value = graph::detail::get_text(in);
      key.symmetric = detent::detail::get_choice(in, true, "a range");
      key.per_channel = detent::detail::get_choice(in, true, "a range");
      std::vector<value_range> channels(in.get_size(in.rest() / (2 * sizeof(float))));
      for (value_range& r : channels) {
        r.lower = in.get<float>();
        r.upper = in.get<float>();
        require(std::isfinite(r.lower) && std::isfinite(r.upper), error_kind::bad_file,
                "a range of '", graph::detail::beginning_of(key.value), "' is not finite");
      }
      require(!channels.empty() && (key.per_channel || channels.size() == 1), error_kind::bad_file,
              "there are ", channels.size(), " ranges of '", graph::detail::beginning_of(key.value),
              "'");
      require(ranges.empty() || ranges.rbegin()->first < key, error_kind::bad_file,
              "the ranges are out of order");
      ranges.emplace_hint(ranges.end(), std::move(key), std::move(channels));
    }
    means.read(in);
    in.require_end();
  }
};

}  // namespace detail

/// What nncf::quantize() learns from samples. collect_statistics() makes it, and quantize() takes
/// it in the place of samples. It can be saved and loaded; write_state_file() and read_state_file()
/// deal with the file. A value: copies are independent, and threads may read one at the same time.
class statistics {
 public:
  /// The number of samples that were observed.
  [[nodiscard]] std::uint64_t samples() const noexcept { return content_.progress.samples; }

  /// The statistics as bytes. Equal statistics have the same bytes.
  [[nodiscard]] std::vector<std::byte> save() const {
    detent::detail::byte_writer out(graph::detail::state_format);
    content_.write(out);
    return std::move(out).finish();
  }
  /// Statistics that were saved. Throws, naming the state: bad_file if the bytes are damaged or
  /// truncated, unsupported for an unknown version of the layout, and invalid_argument for the
  /// state of another approach.
  [[nodiscard]] static statistics load(const saved_state& saved) {
    statistics s;
    s.name_ = saved.name;
    detent::detail::byte_reader in(saved.bytes, graph::detail::state_format, saved.name.c_str());
    s.content_.origin = graph::detail::state_origin::read(in);
    const std::string approach = s.content_.origin.settings["approach"];
    require(approach == "nncf", error_kind::invalid_argument, saved.name, ": its approach is ",
            graph::detail::beginning_of(approach), ", expected nncf");
    graph::detail::with_context(saved.name, [&] { s.content_.read(in); });
    return s;
  }

 private:
  friend class detail::quantizer;
  friend statistics collect_statistics(model m, const dataset& samples,
                                       const quantize_options& options);
  statistics() = default;

  std::string name_ = "the statistics";
  detail::collected_statistics content_;
};

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_STATISTICS_HPP
