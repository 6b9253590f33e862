// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic of PyTorch for float tensors on a CPU, reproduced operation by operation, since PPQ's
// observers and PyTorch's own get the last bits of their ranges from it. Checked with PyTorch 1.13.
#ifndef DETENT_OBSERVERS_TOOLS_TORCH_ARITHMETIC_HPP
#define DETENT_OBSERVERS_TOOLS_TORCH_ARITHMETIC_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/tools/parity.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail::pytorch {

/// Adds up x[0], x[stride], ...: runs of 2^power values are summed, the sums of as many runs are
/// summed, and so on for four levels.
[[nodiscard]] inline float cascade_sum(const float* x, std::size_t n, std::size_t stride) {
  constexpr std::size_t levels = 4;
  const auto log2_ceiling = static_cast<std::size_t>(std::bit_width(n > 1 ? n - 1 : 0));
  const std::size_t power = std::max<std::size_t>(4, log2_ceiling / levels);
  const std::size_t run = std::size_t{1} << power;
  float sums[levels] = {};
  std::size_t i = 0;
  while (i + run <= n) {
    for (const std::size_t end = i + run; i < end; ++i) {
      sums[0] += x[i * stride];
    }
    for (std::size_t level = 1; level < levels; ++level) {
      sums[level] += sums[level - 1];
      sums[level - 1] = 0.0F;
      if ((i >> (level * power) & (run - 1)) != 0) {
        break;
      }
    }
  }
  for (; i < n; ++i) {
    sums[0] += x[i * stride];
  }
  return ((sums[0] + sums[1]) + sums[2]) + sums[3];
}

/// torch.mean over the rows of a narrow matrix, for one column: four interleaved cascades.
[[nodiscard]] inline float column_mean(std::span<const float> column) {
  constexpr std::size_t interleaved = 4;
  const std::size_t rows = column.size() / interleaved;
  float sums[interleaved];
  for (std::size_t k = 0; k < interleaved; ++k) {
    sums[k] = cascade_sum(column.data() + k, rows, interleaved);
  }
  for (std::size_t i = rows * interleaved; i < column.size(); ++i) {
    sums[0] += column[i];
  }
  return (((sums[0] + sums[1]) + sums[2]) + sums[3]) / static_cast<float>(column.size());
}

/// Value i of torch.linspace(first, last, steps), which is counted from the nearer end. Vectorized
/// code of PyTorch may differ in the last bit, depending on the processor.
[[nodiscard]] inline float linspace_value(float first, float last, std::size_t steps,
                                          std::size_t i) noexcept {
  const float step = (last - first) / static_cast<float>(steps - 1);
  return i < steps / 2 ? first + rounded_product(step, static_cast<float>(i))
                       : last - rounded_product(step, static_cast<float>(steps - 1 - i));
}
/// All values of torch.linspace(first, last, steps).
[[nodiscard]] inline std::vector<float> linspace(float first, float last, std::size_t steps) {
  std::vector<float> values(steps);
  for (std::size_t i = 0; i < steps; ++i) {
    values[i] = linspace_value(first, last, steps, i);
  }
  return values;
}

/// Throws invalid_argument if last - first overflows a float.
inline void require_length(float first, float last, const char* where) {
  require(std::isfinite(last - first), error_kind::invalid_argument, where, ": the range ", first,
          " .. ", last, " is too long for a float");
}

/// torch.histc: adds the number of values in each of `counts.size()` bins on first .. last; values
/// outside are left out. If first == last, the range of the values is used instead, widened by 1 on
/// either side if it is empty as well. Values so large that adding 1 changes nothing count in the
/// last bin. Throws invalid_argument, before anything is counted, if the length of the range
/// overflows a float.
template <class Count>
void add_histogram(std::span<const float> x, float first, float last, std::span<Count> counts,
                   const char* where) {
  if (first == last && !x.empty()) {
    first = *std::min_element(x.begin(), x.end());
    last = *std::max_element(x.begin(), x.end());
    if (first == last) {
      first -= 1.0F;
      last += 1.0F;
    }
  }
  require_length(first, last, where);
  const auto bins = static_cast<float>(counts.size());
  const float length = last - first;
  for (const float value : x) {
    if (!(value >= first && value <= last)) {
      continue;
    }
    const float position = length > 0.0F ? (value - first) / length * bins : bins;
    counts[std::min(static_cast<std::size_t>(position), counts.size() - 1)] += Count{1};
  }
}

}  // namespace detail::pytorch
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_TORCH_ARITHMETIC_HPP
