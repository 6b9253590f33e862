// SPDX-License-Identifier: BSD-3-Clause
// Scale solvers applied to each channel or each block of a tensor.
#ifndef DETENT_SOLVERS_PARTS_HPP
#define DETENT_SOLVERS_PARTS_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include <detent/base/rows.hpp>
#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// A scale solver: exact_mse, octav, absmax, or any callable that returns the solution for a
/// distribution and a scheme. It may be called from several threads at once.
using scale_solver = std::function<scale_solution(const distribution& d, quant_scheme scheme)>;

namespace detail {

/// Solves each list of values as a distribution of its own.
[[nodiscard]] inline std::vector<scale_solution> solve_lists(
    const std::vector<std::vector<float>>& parts, quant_scheme scheme, const scale_solver& solver,
    const parallel_for& parallel) {
  std::vector<scale_solution> solutions(parts.size());
  run_parallel(parallel, parts.size(), [&](std::size_t i) {
    solutions[i] = solver(distribution(std::span<const float>(parts[i])), scheme);
  });
  return solutions;
}

inline void require_solvable(tensor_view<const float> x, std::size_t axis, const char* where) {
  require(axis < x.rank, error_kind::invalid_argument, where, ": axis ", axis,
          " of a tensor of rank ", x.rank);
  require(x.size() > 0, error_kind::invalid_argument, where, ": the tensor has no values");
  require(x.data != nullptr, error_kind::invalid_argument, where, ": null data with size ",
          x.size());
}

}  // namespace detail

/// Applies `solver` to the values of each channel along `axis`, and returns the solutions in the
/// order of the channels. Throws invalid_argument for an axis that the tensor does not have, a
/// tensor without values, or null data, and what the solver throws. Channels are shared out over
/// `parallel`; the result does not depend on it.
[[nodiscard]] inline std::vector<scale_solution> solve_channels(tensor_view<const float> x,
                                                                std::size_t axis,
                                                                quant_scheme scheme,
                                                                const scale_solver& solver,
                                                                const parallel_for& parallel = {}) {
  detail::require_solvable(x, axis, "solve_channels");
  std::vector<std::vector<float>> parts(x.shape[axis]);
  detail::for_each_channel_run(
      x, axis, [&](std::size_t channel, const float* data, std::size_t n, std::ptrdiff_t stride) {
        for (std::size_t i = 0; i < n; ++i) {
          parts[channel].push_back(data[static_cast<std::ptrdiff_t>(i) * stride]);
        }
      });
  return detail::solve_lists(parts, scheme, solver, parallel);
}

/// Applies `solver` to each block of `block_size` neighbours along `axis`, and returns the
/// solutions in the order of block_quant_params. The last block of a line may be shorter. Throws
/// invalid_argument for a block size of 0, an axis that the tensor does not have, a tensor without
/// values, or null data, and what the solver throws. Blocks are shared out over `parallel`; the
/// result does not depend on it.
[[nodiscard]] inline std::vector<scale_solution> solve_blocks(
    tensor_view<const float> x, std::size_t axis, std::size_t block_size, quant_scheme scheme,
    const scale_solver& solver, const parallel_for& parallel = {}) {
  detail::require_solvable(x, axis, "solve_blocks");
  require(block_size > 0, error_kind::invalid_argument, "solve_blocks: block size 0");
  const std::size_t blocks = (x.shape[axis] - 1) / block_size + 1;
  std::vector<std::vector<float>> parts(x.size() / x.shape[axis] * blocks);
  detail::for_each_row(x, [&](const float* row, std::size_t n, std::ptrdiff_t stride,
                              std::array<std::size_t, max_rank> index) {
    for (std::size_t i = 0; i < n; ++i) {
      index[x.rank - 1] = i;
      std::size_t part = 0;
      for (std::size_t d = 0; d < x.rank; ++d) {
        part = d == axis ? part * blocks + index[d] / block_size : part * x.shape[d] + index[d];
      }
      parts[part].push_back(row[static_cast<std::ptrdiff_t>(i) * stride]);
    }
  });
  return detail::solve_lists(parts, scheme, solver, parallel);
}

/// The scales and zero points of solve_channels() without the evidence.
[[nodiscard]] inline channel_quant_params channel_params(
    std::size_t axis, std::span<const scale_solution> solutions) {
  channel_quant_params p;
  p.axis = axis;
  for (const scale_solution& s : solutions) {
    p.scales.push_back(s.params.scale);
    p.zero_points.push_back(s.params.zero_point);
  }
  return p;
}

/// The scales and zero points of solve_blocks() without the evidence.
[[nodiscard]] inline block_quant_params block_params(std::size_t axis, std::size_t block_size,
                                                     std::span<const scale_solution> solutions) {
  const channel_quant_params lists = channel_params(axis, solutions);
  return {axis, block_size, lists.scales, lists.zero_points};
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_PARTS_HPP
