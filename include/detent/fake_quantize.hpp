// SPDX-License-Identifier: BSD-3-Clause
// Fake quantization, which is quantize and dequantize in one step, and its gradients. It shows in
// float what a grid does to a network, and lets a network train through the grid.
//
//   xhat = float(q - zero_point) * scale
//   q    = clamp(round_half_even(x / scale) + zero_point, qmin, qmax)
//
// The grid is any range of integers with 2 to 65536 levels within -32768..65535. Nothing is stored
// in an integer type.
//
// All functions are thread-safe, allocate nothing, and throw detent::error (invalid_argument,
// shape_mismatch) before they write anything. An output may be the very buffer of an input (same
// data, same strides); otherwise outputs must overlap neither inputs nor each other.
#ifndef DETENT_FAKE_QUANTIZE_HPP
#define DETENT_FAKE_QUANTIZE_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <detent/base/checked_size.hpp>
#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace reference {

/// xhat = dequantize(quantize(x, p, levels), p): the real that the quantized x stands for. NaN
/// gives 0, the real of the zero point; infinities saturate.
[[nodiscard]] inline float fake_quantize(float x, quant_params p, grid levels) noexcept {
  return dequantize(quantize(x, p, levels), p);
}

/// The partial derivatives of xhat = fake_quantize(x), as fake_quantize_derivatives() returns them.
struct fake_quantize_partials {
  float x = 0.0F;           ///< d xhat / dx.
  float scale = 0.0F;       ///< d xhat / dscale.
  float zero_point = 0.0F;  ///< d xhat / dzero_point.
  friend bool operator==(const fake_quantize_partials&, const fake_quantize_partials&) = default;
};

/// The partial derivatives of xhat = fake_quantize(x, p, levels) at x, with rounding treated as the
/// identity (straight-through estimator; Bengio, Leonard, Courville 2013). The derivative for the
/// scale is that of LSQ (Esser et al. 2020), the derivative for the zero point that of LSQ+
/// (Bhalgat et al. 2020), for xhat = (q - zero_point) * scale.
///
/// They depend on where the level before clamping is, r + zero_point with r = round_half_even(x /
/// scale) of the IEEE quotient:
///
///                                     dx    dscale                dzero_point
///   qmin <= r + zero_point <= qmax    1     r - x / scale         0
///   r + zero_point < qmin             0     qmin - zero_point     -scale
///   r + zero_point > qmax             0     qmax - zero_point     -scale
///   x is NaN                          0     0                     0
///
/// A value up to half a step beyond an outer level thus counts as inside the grid, and so does the
/// tie half a step beyond it if r of the outer level is even. r - x / scale is exact in float. xhat
/// of a NaN is 0 whatever the parameters are, so that it does not depend on them.
[[nodiscard]] inline fake_quantize_partials fake_quantize_derivatives(float x, quant_params p,
                                                                      grid levels) noexcept {
  const float steps = x / p.scale;
  if (std::isnan(steps)) {
    return {};
  }
  const float rounded = round_half_even(steps);
  const auto lowest = static_cast<float>(levels.qmin - p.zero_point);
  const auto highest = static_cast<float>(levels.qmax - p.zero_point);
  if (rounded < lowest) {
    return {0.0F, lowest, -p.scale};
  }
  if (rounded > highest) {
    return {0.0F, highest, -p.scale};
  }
  return {1.0F, rounded - steps, 0.0F};
}

/// Number of elements of a channel (or of the tensor) that fake_quantize_backward() adds up to a
/// partial sum before it adds the partial sums.
inline constexpr std::size_t gradient_block = 1024;
/// Number of sums that a block is added up in: element i of a block goes to sum i % gradient_lanes.
inline constexpr std::size_t gradient_lanes = 8;

}  // namespace reference

namespace detail {

/// One scale, zero point and grid, prepared for loops. The operations are free of branches and
/// return the bits of reference::fake_quantize and reference::fake_quantize_derivatives.
class fake_quantizer {
 public:
  fake_quantizer(float scale, std::int32_t zero_point, grid levels) noexcept
      : scale_(scale),
        lowest_(static_cast<float>(levels.qmin - zero_point)),
        highest_(static_cast<float>(levels.qmax - zero_point)) {}

  [[nodiscard]] float operator()(float x) const noexcept {
    const float steps = x / scale_;
    const float number = steps == steps ? steps : 0.0F;
    return round(clamped(number, lowest_, highest_)) * scale_;
  }

  [[nodiscard]] reference::fake_quantize_partials derivatives(float x) const noexcept {
    const float steps = x / scale_;
    // Everything further out gives the same result as one step outside; clamping to it keeps
    // round() in its domain.
    const float rounded = round(clamped(steps, lowest_ - 1.0F, highest_ + 1.0F));
    const bool below = rounded < lowest_;
    const bool above = rounded > highest_;
    const bool inside = (rounded >= lowest_) & (rounded <= highest_);  // false for NaN
    const std::uint32_t scale =
        where(inside, rounded - steps) | where(below, lowest_) | where(above, highest_);
    return {std::bit_cast<float>(where(inside, 1.0F)), std::bit_cast<float>(scale),
            std::bit_cast<float>(where(below | above, -scale_))};
  }
  /// The bits of `value` where the condition holds, else those of 0.
  [[nodiscard]] static std::uint32_t where(bool condition, float value) noexcept {
    return std::bit_cast<std::uint32_t>(value) & (0U - static_cast<std::uint32_t>(condition));
  }

 private:
  /// NaN passes through.
  [[nodiscard]] static float clamped(float x, float lower, float upper) noexcept {
    const float raised = x < lower ? lower : x;
    return raised > upper ? upper : raised;
  }
  /// Rounds half to even for |x| < 2^22. Never returns -0, like an integer that is converted.
  [[nodiscard]] static float round(float x) noexcept {
    constexpr float bias = 12582912.0F;  // 1.5 * 2^23: its neighbours are integers
    return (x + bias) - bias;
  }

  float scale_;
  float lowest_;
  float highest_;
};

/// N operands of one shape that are walked together. strides[d][k] is the stride of operand k along
/// dimension d, in elements.
template <std::size_t N>
struct common_walk {
  using offsets = std::array<std::ptrdiff_t, N>;

  std::size_t rank = 1;
  std::array<std::size_t, max_rank> shape{1};
  std::array<offsets, max_rank> strides{};

  [[nodiscard]] std::size_t row_size() const noexcept { return shape[rank - 1]; }
  [[nodiscard]] std::ptrdiff_t row_stride(std::size_t operand) const noexcept {
    return strides[rank - 1][operand];
  }
  [[nodiscard]] offsets advance(offsets at, std::size_t dimension, std::size_t by) const noexcept {
    for (std::size_t k = 0; k < N; ++k) {
      at[k] += static_cast<std::ptrdiff_t>(by) * strides[dimension][k];
    }
    return at;
  }
  /// Calls visit(offsets of the first element) for each row of the last dimension, in order; never
  /// if there are no elements.
  template <class Visit>
  void for_each_row(const Visit& visit, offsets at = {}, std::size_t dimension = 0) const {
    const auto extents = std::span(shape).first(rank);
    if (dimension == 0 && std::find(extents.begin(), extents.end(), 0U) != extents.end()) {
      return;
    }
    if (dimension + 1 == rank) {
      visit(at);
      return;
    }
    for (std::size_t i = 0; i < shape[dimension]; ++i) {
      for_each_row(visit, advance(at, dimension, i), dimension + 1);
    }
  }
};

template <class T, class U>
void require_shape_of_x(const tensor_view<T>& x, const tensor_view<U>& other, const char* name,
                        const char* where) {
  require(x.rank == other.rank, error_kind::shape_mismatch, where, ": x has rank ", x.rank, ", ",
          name, " ", other.rank);
  for (std::size_t i = 0; i < x.rank; ++i) {
    require(x.shape[i] == other.shape[i], error_kind::shape_mismatch, where, ": dimension ", i,
            " is ", x.shape[i], " in x, ", other.shape[i], " in ", name);
  }
  checked_size(where, std::span(x.shape).first(x.rank));
  require(x.size() == 0 || (x.data != nullptr && other.data != nullptr),
          error_kind::invalid_argument, where, ": null data with size ", x.size());
}

/// The walk over views of one shape. Its last operand is the channel index, whose stride is 1 along
/// `axis` and 0 along all other dimensions; with no_channel_axis it is always 0.
template <class First, class... Rest>
[[nodiscard]] common_walk<sizeof...(Rest) + 2> channel_walk(
    std::size_t axis, const tensor_view<First>& first, const tensor_view<Rest>&... rest) noexcept {
  common_walk<sizeof...(Rest) + 2> walk;  // of rank 0: one row of one element
  if (first.rank > 0) {
    walk.rank = first.rank;
    walk.shape = first.shape;
  }
  for (std::size_t i = 0; i < first.rank; ++i) {
    walk.strides[i] = {first.strides[i], rest.strides[i]..., i == axis ? 1 : 0};
  }
  return walk;
}

inline constexpr std::size_t no_channel_axis = max_rank;

inline void require_fake_grid(grid levels, const char* where) {
  require(levels.qmin >= -32768 && levels.qmax <= 65535 && levels.qmin < levels.qmax &&
              levels.qmax - levels.qmin <= 65535,
          error_kind::invalid_argument, where, ": grid ", levels.qmin, "..", levels.qmax,
          " does not have 2 to 65536 levels within -32768..65535");
}

inline void require_fake_params(quant_params p, grid levels, const char* where) {
  require_fake_grid(levels, where);
  require_scale(p.scale, where);
  require_zero_point(p.zero_point, levels, where);
}

inline void require_fake_params(const channel_quant_params& p, tensor_view<const float> x,
                                grid levels, const char* where) {
  require_fake_grid(levels, where);
  require(p.axis < x.rank, error_kind::invalid_argument, where, ": axis ", p.axis,
          " of a tensor of rank ", x.rank);
  const std::size_t channels = x.shape[p.axis];
  require(p.scales.size() == channels && p.zero_points.size() == channels,
          error_kind::shape_mismatch, where, ": ", p.scales.size(), " scales and ",
          p.zero_points.size(), " zero points for ", channels, " channels");
  for (std::size_t i = 0; i < channels; ++i) {
    require_scale_of("channel", i, p.scales[i], where);
    require_zero_point_of("channel", i, p.zero_points[i], levels, where);
  }
}

/// fake_quantize() without its checks; channel c has scales[c] and zero_points[c].
inline void fake_quantize_views(tensor_view<const float> x, tensor_view<float> y, std::size_t axis,
                                const float* scales, const std::int32_t* zero_points, grid levels) {
  const auto walk = channel_walk(axis, x, y);
  const std::size_t n = walk.row_size();
  const std::ptrdiff_t x_stride = walk.row_stride(0);
  const std::ptrdiff_t y_stride = walk.row_stride(1);
  const std::ptrdiff_t channel_stride = walk.row_stride(2);
  walk.for_each_row([&](const common_walk<3>::offsets& at) {
    const float* from = x.data + at[0];
    float* to = y.data + at[1];
    const auto quantizer = [&](std::ptrdiff_t i) {
      const std::ptrdiff_t channel = at[2] + i * channel_stride;
      return fake_quantizer(scales[channel], zero_points[channel], levels);
    };
    const auto end = static_cast<std::ptrdiff_t>(n);
    if (channel_stride == 0 && x_stride == 1 && y_stride == 1) {
      const fake_quantizer q = quantizer(0);
      for (std::ptrdiff_t i = 0; i < end; ++i) {  // the loop that compilers vectorize
        to[i] = q(from[i]);
      }
      return;
    }
    for (std::ptrdiff_t i = 0; i < end; ++i) {
      to[i * y_stride] = quantizer(i)(from[i * x_stride]);
    }
  });
}

}  // namespace detail

/// Fake-quantizes x to y with one scale and zero point:
///
///   y = float(q - zero_point) * scale
///   q = clamp(round_half_even(x / scale) + zero_point, qmin, qmax)
///
/// bit for bit reference::fake_quantize, which is also what quantize() followed by dequantize()
/// returns where the grid fits an integer type. NaN gives 0; infinities saturate. x and y have the
/// same shape; y may be x itself (same data and strides), and must not overlap it otherwise.
///
/// Throws shape_mismatch if the shapes differ; invalid_argument if data is null, the scale is not
/// positive and finite, the grid does not have 2 to 65536 levels within -32768..65535, or the zero
/// point is not in the grid. Nothing is written then. Thread-safe.
inline void fake_quantize(tensor_view<const float> x, tensor_view<float> y, quant_params p,
                          grid levels) {
  detail::require_fake_params(p, levels, "fake_quantize");
  detail::require_shape_of_x(x, y, "y", "fake_quantize");
  detail::fake_quantize_views(x, y, detail::no_channel_axis, &p.scale, &p.zero_point, levels);
}

/// Fake-quantizes a contiguous array x to y with one scale and zero point, bit for bit
/// reference::fake_quantize. NaN gives 0; infinities saturate. y has the size of x and may be x
/// itself. Throws shape_mismatch and invalid_argument as the overload for views does. Thread-safe.
inline void fake_quantize(std::span<const float> x, std::span<float> y, quant_params p,
                          grid levels) {
  fake_quantize(tensor_view<const float>(x.data(), {x.size()}),
                tensor_view<float>(y.data(), {y.size()}), p, levels);
}

/// Fake-quantizes x to y with a scale and a zero point for each channel along p.axis, bit for bit
/// reference::fake_quantize. NaN gives 0; infinities saturate. x and y have the same shape; y may
/// be x itself (same data and strides), and must not overlap it otherwise.
///
/// Throws shape_mismatch if the shapes differ or p does not have one scale and zero point for each
/// channel; invalid_argument if data is null, the axis does not exist, a scale is not positive and
/// finite, the grid does not have 2 to 65536 levels within -32768..65535, or a zero point is not in
/// the grid. Nothing is written then. Thread-safe.
template <std::same_as<channel_quant_params> P>  // so that a braced {scale} means quant_params
void fake_quantize(tensor_view<const float> x, tensor_view<float> y, const P& p, grid levels) {
  detail::require_fake_params(p, x, levels, "fake_quantize");
  detail::require_shape_of_x(x, y, "y", "fake_quantize");
  detail::fake_quantize_views(x, y, p.axis, p.scales.data(), p.zero_points.data(), levels);
}

/// The factor by which LSQ (Esser et al. 2020) multiplies the gradient of a scale, so that the
/// scale learns at the pace of the values that share it: 1 / sqrt(count * qmax), computed in double
/// and rounded to float. `count` is the number of values that share the scale. Throws
/// invalid_argument if count or qmax is not positive. Thread-safe.
[[nodiscard]] inline float lsq_gradient_factor(std::size_t count, grid levels) {
  require(count > 0, error_kind::invalid_argument, "lsq_gradient_factor: count is 0");
  require(levels.qmax > 0, error_kind::invalid_argument, "lsq_gradient_factor: qmax ", levels.qmax,
          " is not positive");
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(count) * levels.qmax));
}

/// The gradients of a loss with respect to the parameters of one tensor.
struct quant_params_gradient {
  float scale = 0.0F;       ///< d loss / dscale.
  float zero_point = 0.0F;  ///< d loss / dzero_point.
  friend bool operator==(const quant_params_gradient&, const quant_params_gradient&) = default;
};

namespace detail {

/// A sum of terms in blocks of reference::gradient_block, each in reference::gradient_lanes sums.
class block_sum {
 public:
  /// Adds the products a[i] * b[i]. They are exact in double, so that the sum is the same whether
  /// or not the compiler contracts them with the additions. `at` is the number of terms that the
  /// block has, which does not become larger than a block has.
  void add(std::size_t at, const float* a, const float* b, std::size_t n) noexcept {
    std::size_t i = 0;
    for (; (at + i) % lanes != 0 && i < n; ++i) {
      sums_[(at + i) % lanes] += term(a[i], b[i]);
    }
    std::array<double, lanes> sums = sums_;
    for (; i + lanes <= n; i += lanes) {
      std::array<double, lanes> terms;
      for (std::size_t k = 0; k < lanes; ++k) {
        terms[k] = term(a[i + k], b[i + k]);
      }
      for (std::size_t k = 0; k < lanes; ++k) {
        sums[k] += terms[k];
      }
    }
    sums_ = sums;
    for (; i < n; ++i) {
      sums_[(at + i) % lanes] += term(a[i], b[i]);
    }
  }
  void close_block() noexcept {
    total_ += ((sums_[0] + sums_[4]) + (sums_[1] + sums_[5])) +
              ((sums_[2] + sums_[6]) + (sums_[3] + sums_[7]));
    sums_ = {};
  }
  [[nodiscard]] double total() const noexcept { return total_; }

 private:
  static constexpr std::size_t lanes = reference::gradient_lanes;
  [[nodiscard]] static double term(float a, float b) noexcept {
    return static_cast<double>(a) * static_cast<double>(b);
  }

  std::array<double, lanes> sums_{};
  double total_ = 0.0;
};

/// The gradient sums of one channel, or of its scale alone.
template <bool WithZeroPoint>
class basic_gradient_sums {
 public:
  /// Takes n neighbours with their upstream gradients, which are rounded to float, and writes the
  /// gradients of x. `grad_x` may be the buffer of `grad_y` or of x.
  template <class Gradient>
  void add(const fake_quantizer& q, const float* x, const Gradient* grad_y, Gradient* grad_x,
           std::size_t n) noexcept {
    std::array<float, piece> gradients;
    std::array<float, piece> for_x;
    terms scales;
    terms zero_points;
    for (std::size_t first = 0; first < n;) {
      const std::size_t left = (std::min)(n - first, reference::gradient_block - count_);
      const std::size_t count = (std::min)(left, piece);
      // Loops that compilers vectorize; the buffers may be the same.
      for (std::size_t i = 0; i < count; ++i) {
        gradients[i] = static_cast<float>(grad_y[first + i]);
      }
      for (std::size_t i = 0; i < count; ++i) {
        const reference::fake_quantize_partials d = q.derivatives(x[first + i]);
        scales.set(i, gradients[i], d.scale);
        if constexpr (WithZeroPoint) {
          zero_points.set(i, gradients[i], d.zero_point);
        }
        for_x[i] = std::bit_cast<float>(fake_quantizer::where(d.x != 0.0F, gradients[i]));
      }
      for (std::size_t i = 0; i < count; ++i) {
        grad_x[first + i] = static_cast<Gradient>(for_x[i]);
      }
      scale_.add(count_, scales.gradients.data(), scales.derivatives.data(), count);
      if constexpr (WithZeroPoint) {
        zero_point_.add(count_, zero_points.gradients.data(), zero_points.derivatives.data(),
                        count);
      }
      first += count;
      count_ += count;
      if (count_ == reference::gradient_block) {
        close_block();
      }
    }
  }

  [[nodiscard]] quant_params_gradient finalize(float factor) noexcept {
    close_block();
    return {static_cast<float>(scale_.total() * static_cast<double>(factor)),
            static_cast<float>(zero_point_.total() * static_cast<double>(factor))};
  }

 private:
  static constexpr std::size_t piece = 256;
  /// The factors of the terms of a sum. Where the derivative is 0, so is the gradient, which may be
  /// NaN.
  struct terms {
    void set(std::size_t i, float gradient, float derivative) noexcept {
      gradients[i] = std::bit_cast<float>(fake_quantizer::where(derivative != 0.0F, gradient));
      derivatives[i] = derivative;
    }
    std::array<float, piece> gradients;
    std::array<float, piece> derivatives;
  };

  void close_block() noexcept {
    scale_.close_block();
    zero_point_.close_block();
    count_ = 0;
  }

  block_sum scale_;
  block_sum zero_point_;
  std::size_t count_ = 0;  // elements of the block
};
using gradient_sums = basic_gradient_sums<true>;

/// The checked operands of fake_quantize_backward().
struct backward_operands {
  tensor_view<const float> x;
  tensor_view<const float> grad_y;
  tensor_view<float> grad_x;
  std::size_t axis = no_channel_axis;
  std::span<const float> scales;
  std::span<const std::int32_t> zero_points;
  grid levels;
};

inline void require_backward(tensor_view<const float> x, tensor_view<const float> grad_y,
                             tensor_view<float> grad_x, float factor) {
  constexpr const char* where = "fake_quantize_backward";
  require_shape_of_x(x, grad_y, "grad_y", where);
  require_shape_of_x(x, grad_x, "grad_x", where);
  require(std::isfinite(factor) && factor > 0.0F, error_kind::invalid_argument, where,
          ": gradient factor ", factor, " is not a positive finite number");
}

/// Writes grad_x and calls finish(channel, sums) for every channel. It takes several channels at a
/// time, so that memory is walked in order even if the channels are the last dimension. The
/// elements of each channel are added in their order either way.
template <class Finish>
void fake_quantize_backward(const backward_operands& o, const Finish& finish) {
  constexpr std::size_t tile = 64;
  constexpr std::size_t channel_operand = 3;
  auto walk = channel_walk(o.axis, o.x, o.grad_y, o.grad_x);
  const auto step = walk.strides[walk.rank - 1];
  const std::size_t channels = o.scales.size();
  for (std::size_t first = 0; first < channels; first += tile) {
    const std::size_t count = (std::min)(tile, channels - first);
    std::array<gradient_sums, tile> sums{};
    common_walk<4>::offsets begin{};
    if (o.axis != no_channel_axis) {
      walk.shape[o.axis] = count;
      begin = walk.advance(begin, o.axis, first);
    }
    const auto end = static_cast<std::ptrdiff_t>(walk.row_size());
    walk.for_each_row(
        [&](const common_walk<4>::offsets& at) {
          // A row of neighbours is taken at once, other elements one by one.
          const bool is_row = step[0] == 1 && step[1] == 1 && step[2] == 1 && step[3] == 0;
          const std::ptrdiff_t size = is_row ? end : 1;
          for (std::ptrdiff_t i = 0; i < end; i += size) {
            const auto channel =
                static_cast<std::size_t>(at[channel_operand] + i * step[channel_operand]);
            const fake_quantizer q(o.scales[channel], o.zero_points[channel], o.levels);
            sums[channel - first].add(
                q, o.x.data + at[0] + i * step[0], o.grad_y.data + at[1] + i * step[1],
                o.grad_x.data + at[2] + i * step[2], static_cast<std::size_t>(size));
          }
        },
        begin);
    for (std::size_t c = 0; c < count; ++c) {
      finish(first + c, sums[c]);
    }
  }
}

}  // namespace detail

/// The gradients of a loss through y = fake_quantize(x, p, levels), given the gradient grad_y of
/// the loss for y. With d = reference::fake_quantize_derivatives(x[i], p, levels) it writes grad_x
/// and returns the gradients of the parameters:
///
///   grad_x[i]   = d.x is 1 ? grad_y[i] : 0
///   scale       = factor * sum of grad_y[i] * d.scale
///   zero_point  = factor * sum of grad_y[i] * d.zero_point
///
/// A derivative of 0 contributes 0 even if grad_y is NaN or infinite; elsewhere NaN and infinities
/// propagate. If x[i] is NaN, grad_x[i] is 0 and the sums do not change. lsq_gradient_factor()
/// gives the factor that LSQ uses.
///
/// The sums are computed in double. The products, which are exact, are taken in the order of the
/// elements (last dimension fastest) in blocks of reference::gradient_block elements. Element i of
/// a block is added to the sum s[i % reference::gradient_lanes] of the block, and the sum of the
/// block is ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7])); then the sums of the
/// blocks are added in their order. The last block is shorter if elements are left over. The total
/// is multiplied by the factor in double and rounded to float. Hence the results depend on the
/// values alone, not on strides or the processor.
///
/// x, grad_y and grad_x have the same shape; grad_x may be the buffer of x or of grad_y. Throws
/// shape_mismatch if the shapes differ; invalid_argument if data is null, `factor` or the scale is
/// not positive and finite, the grid does not have 2 to 65536 levels within -32768..65535, or the
/// zero point is not in the grid. Nothing is written then. Thread-safe.
inline quant_params_gradient fake_quantize_backward(tensor_view<const float> x,
                                                    tensor_view<const float> grad_y, quant_params p,
                                                    grid levels, tensor_view<float> grad_x,
                                                    float factor = 1.0F) {
  detail::require_fake_params(p, levels, "fake_quantize_backward");
  detail::require_backward(x, grad_y, grad_x, factor);
  quant_params_gradient result;
  detail::fake_quantize_backward(
      {.x = x,
       .grad_y = grad_y,
       .grad_x = grad_x,
       .scales = {&p.scale, 1},
       .zero_points = {&p.zero_point, 1},
       .levels = levels},
      [&](std::size_t, detail::gradient_sums& sums) { result = sums.finalize(factor); });
  return result;
}

/// The gradients of a loss through fake_quantize() of a contiguous array: writes grad_x and returns
/// the gradients of scale and zero point, with the definitions, the order of sums and the errors of
/// the overload for views. All spans have the same size; grad_x may be the buffer of x or of
/// grad_y. Thread-safe.
inline quant_params_gradient fake_quantize_backward(std::span<const float> x,
                                                    std::span<const float> grad_y, quant_params p,
                                                    grid levels, std::span<float> grad_x,
                                                    float factor = 1.0F) {
  return fake_quantize_backward(tensor_view<const float>(x.data(), {x.size()}),
                                tensor_view<const float>(grad_y.data(), {grad_y.size()}), p, levels,
                                tensor_view<float>(grad_x.data(), {grad_x.size()}), factor);
}

/// The gradients of a loss through fake_quantize() with parameters per channel along p.axis: writes
/// grad_x, and grad_scales[c] and grad_zero_points[c] for every channel c.
///
/// The definitions are those of the overload for one scale, with the parameters of the element's
/// channel. The sums of a channel take its own elements in their order, in blocks of
/// reference::gradient_block elements of that channel.
///
/// x, grad_y and grad_x have the same shape; grad_x may be the buffer of x or of grad_y. Throws
/// shape_mismatch if the shapes differ or p, grad_scales or grad_zero_points do not have one
/// element for each channel; invalid_argument if data is null, `factor` or a scale is not positive
/// and finite, the axis does not exist, the grid does not have 2 to 65536 levels within
/// -32768..65535, or a zero point is not in the grid. Nothing is written then. Thread-safe.
inline void fake_quantize_backward(tensor_view<const float> x, tensor_view<const float> grad_y,
                                   const channel_quant_params& p, grid levels,
                                   tensor_view<float> grad_x, std::span<float> grad_scales,
                                   std::span<float> grad_zero_points, float factor = 1.0F) {
  detail::require_fake_params(p, x, levels, "fake_quantize_backward");
  detail::require_backward(x, grad_y, grad_x, factor);
  require(grad_scales.size() == p.scales.size() && grad_zero_points.size() == p.scales.size(),
          error_kind::shape_mismatch, "fake_quantize_backward: gradients of ", grad_scales.size(),
          " scales and ", grad_zero_points.size(), " zero points for ", p.scales.size(),
          " channels");
  detail::fake_quantize_backward({.x = x,
                                  .grad_y = grad_y,
                                  .grad_x = grad_x,
                                  .axis = p.axis,
                                  .scales = p.scales,
                                  .zero_points = p.zero_points,
                                  .levels = levels},
                                 [&](std::size_t channel, detail::gradient_sums& sums) {
                                   const quant_params_gradient g = sums.finalize(factor);
                                   grad_scales[channel] = g.scale;
                                   grad_zero_points[channel] = g.zero_point;
                                 });
}

DETENT_NAMESPACE_END

#endif  // DETENT_FAKE_QUANTIZE_HPP
