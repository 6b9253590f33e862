// SPDX-License-Identifier: BSD-3-Clause
// The family of Winograd convolutions: what comes before and after their matrix products.
#ifndef DETENT_KERNELS_WINOGRAD_HPP
#define DETENT_KERNELS_WINOGRAD_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The inputs of `tiles` tiles that lie side by side, channels last: B^T D B of each tile and
/// channel, as reference::winograd_input() has it. A tile of t x t outputs reads (t + 2)^2 pixels,
/// and begins t pixels behind the one before.
///
///     element (i, j) of channel c of tile n goes to out[(i (t + 2) + j) * position_step
///                                                       + n * channels + c]
struct winograd_input_args {
  const float* in = nullptr;  // the first pixel of the first tile
  std::size_t line_step = 0;  // from a line of the image to the next, in values
  std::size_t channels = 0;   // also from a pixel to the next
  std::size_t tiles = 0;
  float* out = nullptr;
  std::size_t position_step = 0;
};

/// The outputs of `tiles` tiles that lie side by side: A^T M A of each tile and channel, as
/// reference::winograd_output() has it, with M where winograd_input_args puts V; then
///
///     out = clamp((A^T M A + bias[c]) + residual, lower, upper)
///
/// Of each tile, `lines` lines are written, and of all tiles together `pixels` pixels of each line:
/// the last tile may reach beyond the image.
struct winograd_output_args {
  const float* in = nullptr;
  std::size_t position_step = 0;
  std::size_t channels = 0;
  std::size_t tiles = 0;
  const float* bias = nullptr;
  const float* residual = nullptr;  // null, or values in the order of `out`, which may be `out`
  float* out = nullptr;             // the first pixel of the first tile, channels last
  std::size_t line_step = 0;        // from a line of the image to the next, in values
  std::size_t lines = 0;
  std::size_t pixels = 0;
  float lower = 0.0F, upper = 0.0F;
};

/// The kernels of Winograd convolutions with tiles of 2 x 2 and of 4 x 4 outputs.
struct winograd_kernels {
  void (*input_2)(const winograd_input_args& args) noexcept;
  void (*input_4)(const winograd_input_args& args) noexcept;
  void (*output_2)(const winograd_output_args& args) noexcept;
  void (*output_4)(const winograd_output_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const winograd_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_WINOGRAD_HPP
