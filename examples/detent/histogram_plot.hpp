// SPDX-License-Identifier: BSD-3-Clause
// Bars of equal width to draw, from a histogram of the library or from values.
//
// The bins of a histogram are as wide as their values are large, so that some lie across two bars,
// and where the values are many but their range is narrow and far from zero, a bin is wider than
// all bars together. A bin's count is therefore spread evenly over the part of the range that it
// covers. Placed by its middle it would make ripples: near the largest value a bar has the room of
// five to eleven bins, now one more, now one less.
#ifndef DETENT_CLI_HISTOGRAM_PLOT_HPP
#define DETENT_CLI_HISTOGRAM_PLOT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/types.hpp>

namespace detent_cli {

/// As many bars as are told apart in a plot of a few hundred pixels.
inline constexpr std::size_t default_plot_bars = 96;

/// Fewer where values are few: four times their cube root, but not under 24. (The Rice rule has two
/// times; outliers, which a plot is looked at for, ask for narrower bars.)
[[nodiscard]] inline std::size_t bars_for(std::size_t values) noexcept {
  const auto wish = static_cast<std::size_t>(4.0 * std::cbrt(static_cast<double>(values)));
  return std::clamp(wish, std::size_t{24}, default_plot_bars);
}

/// `count` bars of equal width from `lower` to `upper`. All values are the same where
/// lower == upper; that is one bar.
struct plot_bars {
  double lower = 0.0;
  double upper = 0.0;
  std::size_t count = 0;
};

/// counts[i] values lie between lower + i * w and lower + (i + 1) * w, w = (upper - lower) /
/// counts.size(). Fractions come from bins that lie across two bars. Empty: nothing is known.
struct plot_histogram {
  double lower = 0.0;
  double upper = 0.0;
  std::vector<double> counts;
};

/// Bars between two finite values. Throws invalid_argument if there are none, or upper < lower.
[[nodiscard]] inline plot_bars equal_bars(double lower, double upper,
                                          std::size_t count = default_plot_bars) {
  detent::require(std::isfinite(lower) && std::isfinite(upper) && lower <= upper,
                  detent::error_kind::invalid_argument, "plot: the range ", lower, " .. ", upper,
                  " cannot be drawn");
  detent::require(count > 0, detent::error_kind::invalid_argument, "plot: no bars");
  return {lower, upper, lower < upper ? count : 1};
}

/// At most `most` bars for values that are multiples of `step`, or are compared with such. Each bar
/// holds equally many multiples, or each multiple lies in the middle of one of equally many bars.
/// With others, some bars would catch one multiple more than their neighbours, and the plot would
/// show a comb that is not in the data. Where a bar holds over 64 multiples that cannot be seen;
/// there, and for step <= 0, these are equal_bars(). Throws as equal_bars().
[[nodiscard]] inline plot_bars level_bars(double lower, double upper, double step,
                                          std::size_t most = default_plot_bars) {
  const plot_bars equal = equal_bars(lower, upper, most);
  if (!(step > 0.0) || !std::isfinite(step) ||
      !(upper / step - lower / step < 64.0 * static_cast<double>(most))) {
    return equal;
  }
  const double first = std::nearbyint(lower / step);
  const auto levels = static_cast<std::size_t>(std::nearbyint(upper / step) - first) + 1;
  const std::size_t per_bar = (levels + most - 1) / most;
  std::size_t per_level = per_bar > 1 ? 1 : most / levels;
  per_level -= per_level % 2 == 0 ? 1U : 0U;  // odd, for a bar in the middle
  const std::size_t count = per_bar > 1 ? (levels + per_bar - 1) / per_bar : levels * per_level;
  const double begin = (first - 0.5) * step;
  const double whole = static_cast<double>(per_bar > 1 ? count * per_bar : levels) * step;
  return {begin, begin + whole, count};
}

namespace detail {

/// Where a value stands among the bars: 0 at the lower end, `count` at the upper one. Of halves, as
/// the difference of two doubles may be none.
[[nodiscard]] inline double position(const plot_bars& bars, double x) noexcept {
  const double width = bars.upper / 2 - bars.lower / 2;
  return width > 0.0 ? std::clamp((x / 2 - bars.lower / 2) / width, 0.0, 1.0) *
                           static_cast<double>(bars.count)
                     : 0.0;
}

[[nodiscard]] inline std::size_t bar_at(const plot_bars& bars, double position) noexcept {
  return (std::min)(static_cast<std::size_t>(position), bars.count - 1);
}

}  // namespace detail

/// How many of the values each bar holds: what lies on the edge of two counts in the upper one,
/// what lies outside counts in the first or the last. NaN and infinities are left out.
[[nodiscard]] inline plot_histogram make_plot_histogram(std::span<const float> values,
                                                        const plot_bars& bars) {
  plot_histogram plot{bars.lower, bars.upper, std::vector<double>(bars.count)};
  for (const float x : values) {
    if (std::isfinite(x) && bars.count > 0) {
      plot.counts[detail::bar_at(bars, detail::position(bars, static_cast<double>(x)))] += 1.0;
    }
  }
  return plot;
}

/// `known` and what lies outside of it, of finite values. Without any, lower > upper.
[[nodiscard]] inline detent::value_range finite_range(std::span<const float> values,
                                                      detent::value_range known = {
                                                          HUGE_VALF, -HUGE_VALF}) noexcept {
  for (const float x : values) {
    if (std::isfinite(x)) {
      known.lower = (std::min)(known.lower, x);
      known.upper = (std::max)(known.upper, x);
    }
  }
  return known;
}

/// bars_for() them, between the smallest and the largest; empty without finite values.
[[nodiscard]] inline plot_histogram make_plot_histogram(std::span<const float> values) {
  const detent::value_range range = finite_range(values);
  if (!(range.lower <= range.upper)) {
    return {};
  }
  return make_plot_histogram(
      values, equal_bars(static_cast<double>(range.lower), static_cast<double>(range.upper),
                         bars_for(values.size())));
}

/// Bins that ascend, of values in `range`, spread over bars. Throws as equal_bars().
[[nodiscard]] inline plot_histogram make_plot_histogram(std::span<const detent::value_bin> bins,
                                                        detent::value_range range,
                                                        std::size_t count = default_plot_bars) {
  const plot_bars bars =
      equal_bars(static_cast<double>(range.lower), static_cast<double>(range.upper), count);
  plot_histogram plot{bars.lower, bars.upper, std::vector<double>(bars.count)};
  for (const detent::value_bin& bin : bins) {
    const detent::value_range r = bin.range();
    const double begin = detail::position(bars, static_cast<double>(r.lower));
    const double end = detail::position(bars, static_cast<double>(r.upper));
    const std::size_t first = detail::bar_at(bars, begin);
    const std::size_t last = detail::bar_at(bars, end);
    const auto values = static_cast<double>(bin.count);
    if (first == last) {
      plot.counts[first] += values;
      continue;
    }
    for (std::size_t i = first; i <= last; ++i) {
      const double covered =
          (std::min)(end, static_cast<double>(i + 1)) - (std::max)(begin, static_cast<double>(i));
      plot.counts[i] += values * (covered / (end - begin));
    }
  }
  return plot;
}

/// What an observer has seen, between its smallest and largest value. Throws as
/// basic_histogram::range(): if it has seen nothing, a NaN or an infinity.
template <detent::bin_content kContent>
[[nodiscard]] plot_histogram make_plot_histogram(const detent::basic_histogram<kContent>& histogram,
                                                 std::size_t count = default_plot_bars) {
  const std::vector<detent::value_bin> bins = histogram.bins();
  return make_plot_histogram(bins, histogram.range(), count);
}

/// Weights before and after quantization, on the same bars, for bars_for() them. `step` is the
/// scale where the tensor has one, and 0 where it has several; see level_bars(). Both are empty
/// without finite values.
[[nodiscard]] inline std::pair<plot_histogram, plot_histogram> make_weight_plots(
    std::span<const float> before, std::span<const float> after, double step = 0.0) {
  const detent::value_range range = finite_range(after, finite_range(before));
  if (!(range.lower <= range.upper)) {
    return {};
  }
  const plot_bars bars =
      level_bars(static_cast<double>(range.lower), static_cast<double>(range.upper), step,
                 bars_for((std::max)(before.size(), after.size())));
  return {make_plot_histogram(before, bars), make_plot_histogram(after, bars)};
}

}  // namespace detent_cli

#endif  // DETENT_CLI_HISTOGRAM_PLOT_HPP
