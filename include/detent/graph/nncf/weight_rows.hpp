// SPDX-License-Identifier: BSD-3-Clause
// The weights of a layer as a matrix of outputs and inputs, and products of parts of it with
// samples of the inputs. Sums of products run from the first input to the last; products of floats
// are exact in double, so that results are the same on every processor.
#ifndef DETENT_GRAPH_NNCF_WEIGHT_ROWS_HPP
#define DETENT_GRAPH_NNCF_WEIGHT_ROWS_HPP

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/graph/nncf/weight_groups.hpp>
#include <detent/graph/nncf/weight_lanes.hpp>
#include <detent/kernels/definitions/double_products.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// The weights of a layer with K inputs and N outputs, as a matrix.
struct weight_rows {
  std::span<const float> weights;
  const weight_groups& groups;  // divides the axis of the inputs

  [[nodiscard]] std::size_t inputs() const noexcept { return groups.middle; }
  [[nodiscard]] std::size_t outputs() const noexcept { return groups.outer * groups.inner; }
  [[nodiscard]] float at(std::size_t output, std::size_t input) const noexcept {
    return weights[index(output, input)];
  }
  /// The index of a weight. That of the next input is `groups.inner` larger.
  [[nodiscard]] std::size_t index(std::size_t output, std::size_t input) const noexcept {
    return (output / groups.inner * groups.middle + input) * groups.inner + output % groups.inner;
  }
  /// The index of the scale of a weight.
  [[nodiscard]] std::size_t group(std::size_t output, std::size_t input) const noexcept {
    return (output / groups.inner * (groups.middle / groups.block) + input / groups.block) *
               groups.inner +
           output % groups.inner;
  }

  /// How many times lane_count outputs there are, the last time perhaps fewer.
  [[nodiscard]] std::size_t tiles() const noexcept {
    return (outputs() + lane_count - 1) / lane_count;
  }
  /// The number of outputs in a tile.
  [[nodiscard]] std::size_t tile_outputs(std::size_t tile) const noexcept {
    return (std::min)(lane_count, outputs() - tile * lane_count);
  }
  /// Copies the weights of a tile for the inputs from `first` on, one for each element of `to`.
  /// Lanes without an output are 0.
  void copy_tile(std::size_t tile, std::size_t first, std::span<lanes<float>> to) const noexcept {
    const std::size_t count = tile_outputs(tile);
    lanes<std::size_t> from{};
    for (std::size_t l = 0; l < count; ++l) {
      from[l] = index(tile * lane_count + l, first);
    }
    for (std::size_t k = 0; k < to.size(); ++k) {
      to[k] = {};
      for (std::size_t l = 0; l < count; ++l) {
        to[k][l] = weights[from[l] + k * groups.inner];
      }
    }
  }
};

/// A matrix of samples: a row for each, with a column for each input of a layer.
struct sample_rows {
  std::size_t count = 0;
  std::size_t inputs = 0;
  std::vector<double> values;
};

/// A matrix of the inputs from `first` on, divided by divisors, one for each of them.
[[nodiscard]] inline sample_rows divided_rows(const std::vector<std::vector<float>>& samples,
                                              std::size_t first, std::span<const float> divisors) {
  sample_rows rows{samples.size(), divisors.size(), {}};
  rows.values.reserve(rows.count * rows.inputs);
  for (const std::vector<float>& sample : samples) {
    for (std::size_t k = 0; k < rows.inputs; ++k) {
      rows.values.push_back(static_cast<double>(sample[first + k] / divisors[k]));
    }
  }
  return rows;
}

/// A matrix of all inputs.
[[nodiscard]] inline sample_rows rows_of(const std::vector<std::vector<float>>& samples) {
  sample_rows rows{samples.size(), samples.empty() ? 0 : samples.front().size(), {}};
  for (const std::vector<float>& sample : samples) {
    rows.values.insert(rows.values.end(), sample.begin(), sample.end());
  }
  return rows;
}

/// The weights of one tile as doubles: lane_count of them for each input.
class tile_values {
 public:
  explicit tile_values(std::size_t inputs) : values_(inputs * lane_count) {}

  /// Sets the weights of one input.
  void set(std::size_t input, const lanes<float>& weights) noexcept {
    lanes<double> wide;
    for (std::size_t l = 0; l < lane_count; ++l) {
      wide[l] = static_cast<double>(weights[l]);
    }
    std::copy(wide.begin(), wide.end(), values_.data() + input * lane_count);
  }

  /// Computes the outputs of the tile for each sample, whose inputs from `first` on count:
  /// lane_count of them for each sample, with distances of `stride` between samples.
  void multiply(const sample_rows& samples, std::size_t first, double* outputs,
                std::size_t stride) const noexcept {
    for (std::size_t s = 0; s < samples.count; ++s) {
      std::fill_n(outputs + s * stride, lane_count, 0.0);
    }
    detent::detail::active<kernels::double_product_kernels>().add_products(
        {.rows = samples.count,
         .columns = lane_count,
         .depth = values_.size() / lane_count,
         .a = samples.values.data() + first,
         .a_row_stride = samples.inputs,
         .b = values_.data(),
         .b_stride = lane_count,
         .c = outputs,
         .c_stride = stride});
  }

 private:
  std::vector<double> values_;
};

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_WEIGHT_ROWS_HPP
