// SPDX-License-Identifier: BSD-3-Clause
// Histograms with bars of equal width, to be drawn, from a histogram of the library or from values.
//
// The width of a histogram's bin grows with the magnitude of its values. Some bins therefore lie
// across two bars, and if the range of the values is narrow and far from zero, a bin can be wider
// than all bars together. So the count of a bin is spread evenly over the part of the range that
// the bin covers. If a bin were placed by its middle, there would be ripples: near the largest
// value, a bar is as wide as five to eleven bins, and would catch sometimes one bin more, sometimes
// one less.
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

/// The default number of bars: as many as one can tell apart in a plot of a few hundred pixels.
inline constexpr std::size_t default_plot_bars = 96;

/// The number of bars for so many values: four times their cube root, but at least 24 and at most
/// default_plot_bars. (The Rice rule says twice the cube root; outliers, which are what one looks
/// for in a plot, need narrower bars.)
[[nodiscard]] inline std::size_t bars_for(std::size_t values) noexcept {
  const auto wish = static_cast<std::size_t>(4.0 * std::cbrt(static_cast<double>(values)));
  return std::clamp(wish, std::size_t{24}, default_plot_bars);
}

/// The bars of a plot: `count` bars of equal width from `lower` to `upper`. If lower == upper, all
/// values are the same, and there is one bar.
struct plot_bars {
  double lower = 0.0;
  double upper = 0.0;
  std::size_t count = 0;
};

/// A histogram with bars of equal width w = (upper - lower) / counts.size(): counts[i] values lie
/// between lower + i * w and lower + (i + 1) * w. Counts can have fractions, from bins that lie
/// across two bars. Without counts, nothing is known.
struct plot_histogram {
  double lower = 0.0;
  double upper = 0.0;
  std::vector<double> counts;
};

/// `count` bars between two values. Throws invalid_argument if a value is not finite, if
/// upper < lower, or if count is 0.
[[nodiscard]] inline plot_bars equal_bars(double lower, double upper,
                                          std::size_t count = default_plot_bars) {
  detent::require(std::isfinite(lower) && std::isfinite(upper) && lower <= upper,
                  detent::error_kind::invalid_argument, "plot: the range ", lower, " .. ", upper,
                  " cannot be drawn");
  detent::require(count > 0, detent::error_kind::invalid_argument, "plot: no bars");
  return {lower, upper, lower < upper ? count : 1};
}

/// At most `most` bars for values that are multiples of `step`, or that are compared with such
/// values. Either each bar holds equally many multiples, or there are equally many bars for each
/// multiple, which lies in the middle of one of them. With other bars, some would catch one
/// multiple more than their neighbours, and the plot would show a comb that is not in the data. If
/// bars hold more than 64 multiples, no comb can be seen; then, and for step <= 0, the bars are
/// those of equal_bars(). Throws what equal_bars() throws.
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
  per_level -= per_level % 2 == 0 ? 1U : 0U;  // odd, so that there is a bar in the middle
  const std::size_t count = per_bar > 1 ? (levels + per_bar - 1) / per_bar : levels * per_level;
  const double begin = (first - 0.5) * step;
  const double whole = static_cast<double>(per_bar > 1 ? count * per_bar : levels) * step;
  return {begin, begin + whole, count};
}

namespace detail {

/// The position of a value among the bars: 0 at the lower end, `count` at the upper end. It is
/// computed from halves, because the difference of two doubles may be infinite.
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

/// Counts how many values each bar holds. A value on the edge of two bars counts in the upper one,
/// and a value outside of all bars in the first or the last one. NaN and infinities are left out.
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

/// The range `known`, extended to hold all finite values. If `known` is empty and no value is
/// finite, the result is empty: lower > upper.
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

/// A histogram of the values with bars_for() their number, from the smallest to the largest one. It
/// is empty if no value is finite.
[[nodiscard]] inline plot_histogram make_plot_histogram(std::span<const float> values) {
  const detent::value_range range = finite_range(values);
  if (!(range.lower <= range.upper)) {
    return {};
  }
  return make_plot_histogram(
      values, equal_bars(static_cast<double>(range.lower), static_cast<double>(range.upper),
                         bars_for(values.size())));
}

/// A histogram of bins in ascending order, whose values lie in `range`. The count of a bin is
/// spread evenly over the bars that it covers. Throws what equal_bars() throws.
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

/// A histogram of the values that an observer has seen, from the smallest to the largest one.
/// Throws what basic_histogram::range() throws: an error if it has seen nothing, a NaN or an
/// infinity.
template <detent::bin_content kContent>
[[nodiscard]] plot_histogram make_plot_histogram(const detent::basic_histogram<kContent>& histogram,
                                                 std::size_t count = default_plot_bars) {
  const std::vector<detent::value_bin> bins = histogram.bins();
  return make_plot_histogram(bins, histogram.range(), count);
}

/// Histograms of weights before and after quantization, with the same bars_for() their number.
/// `step` is the scale if the tensor has one scale, and 0 if it has several; the bars are those of
/// level_bars(). Both histograms are empty if no value is finite.
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
