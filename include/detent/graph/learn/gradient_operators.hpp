// SPDX-License-Identifier: BSD-3-Clause
// The gradients of float operators: from the gradient of a loss with respect to the output of an
// operator, each function computes the gradients with respect to its inputs.
//
// Gradients are kept in double. Products of matrices run on the float kernels (reference::dot); all
// other sums are made in double in the order of elements, so that results have the same bits on
// every machine.
#ifndef DETENT_GRAPH_LEARN_GRADIENT_OPERATORS_HPP
#define DETENT_GRAPH_LEARN_GRADIENT_OPERATORS_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/learn/fake_quantize_operator.hpp>
#include <detent/graph/learn/gradient_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/convolution.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/elementwise.hpp>
#include <detent/graph/ops/matmul.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/pooling.hpp>
#include <detent/graph/ops/window.hpp>
#include <detent/pack.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The gradients of the single operators. find_gradient() chooses among them.
///
/// In the formulas, D is the gradient of the loss with respect to the output, and dX the
/// contribution to the gradient with respect to X.
namespace gradients {

using detent::detail::rounded_product;

/// The matrix product lhs * rhs [lhs.rows, rhs.columns()] by the float kernels, row-major without
/// gaps.
[[nodiscard]] inline std::vector<float> product(const gradient_context& c,
                                                matrix_view<const float> lhs,
                                                const packed_floats& rhs) {
  std::vector<float> out(lhs.rows * rhs.columns());
  if (!out.empty() && lhs.columns > 0) {
    gemm(lhs, rhs, matrix_view<float>(out.data(), lhs.rows, rhs.columns()),
         -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(),
         *c.forward.parallel);
  }
  return out;
}
/// The matrix product lhs * rhs [lhs.rows, rhs.columns] by the float kernels, row-major without
/// gaps.
[[nodiscard]] inline std::vector<float> product(const gradient_context& c,
                                                matrix_view<const float> lhs,
                                                matrix_view<const float> rhs) {
  return rhs.rows == 0 ? std::vector<float>(lhs.rows * rhs.columns)
                       : product(c, lhs, packed_floats(rhs, {}));
}

/// sum[i] += values[i] * factor in double; each product is rounded before it is added.
inline void add_to(std::span<double> sum, std::span<const float> values, double factor = 1.0) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum[i] += rounded_product(static_cast<double>(values[i]), factor);
  }
}

// ------------------------------------------------------------------------------------ convolution

/// Copies the pixels under a convolution's windows, for one group of channels of one image, into a
/// matrix with a row for each output pixel (im2col), and adds such a matrix back to an image
/// (col2im).
class image_patches {
 public:
  /// Reads the window and the sizes from a Conv node with one or two spatial axes.
  explicit image_patches(const gradient_context& c) : channels_(extent(c.input(1).dim(1))) {
    const shape& in = c.input(0).dims();
    const shape& weights = c.input(1).dims();
    const ops::window_attributes w =
        ops::read_window(c.forward, in, shape(weights.begin() + 2, weights.end()));
    const std::size_t rank = w.rank();
    const shape& out = c.output().dims();
    for (std::size_t i = 0; i < rank; ++i) {
      const std::size_t j = 2 - rank + i;  // one spatial axis: height 1
      in_[j] = in[i + 2];
      out_[j] = out[i + 2];
      kernel_[j] = w.kernel[i];
      stride_[j] = w.strides[i];
      dilation_[j] = w.dilations[i];
      pad_[j] = w.pads_begin[i];
    }
  }

  /// Number of pixels of an input image.
  [[nodiscard]] std::size_t in_pixels() const { return extent(in_[0] * in_[1]); }
  /// Number of pixels of an output image: the rows of the matrix.
  [[nodiscard]] std::size_t out_pixels() const { return extent(out_[0] * out_[1]); }
  /// Channels of a group times pixels of the kernel: the columns of the matrix.
  [[nodiscard]] std::size_t length() const { return channels_ * extent(kernel_[0] * kernel_[1]); }

  /// Fills `patches` [out_pixels(), length()] from `image`, which holds the channels of one group
  /// of one image; padding is 0.
  void read(const float* image, std::vector<float>& patches) const {
    patches.assign(out_pixels() * length(), 0.0F);
    for_each([&](std::size_t at, std::size_t from) { patches[at] = image[from]; });
  }
  /// Adds each element of `patches` [out_pixels(), length()] to the place in `image` from which
  /// read() took it; elements of the padding are dropped.
  void add_back(const std::vector<float>& patches, double* image) const {
    for_each(
        [&](std::size_t at, std::size_t to) { image[to] += static_cast<double>(patches[at]); });
  }

 private:
  static std::size_t extent(std::int64_t v) { return static_cast<std::size_t>(v); }

  /// Calls f(index in the patches, index in the image) for each place that is not padding.
  template <class Function>
  void for_each(const Function& f) const {
    const std::size_t taps = extent(kernel_[0] * kernel_[1]);
    for (std::int64_t oy = 0; oy < out_[0]; ++oy) {
      for (std::int64_t ox = 0; ox < out_[1]; ++ox) {
        const std::size_t row = extent(oy * out_[1] + ox) * length();
        for (std::int64_t ky = 0; ky < kernel_[0]; ++ky) {
          const std::int64_t y = oy * stride_[0] - pad_[0] + ky * dilation_[0];
          for (std::int64_t kx = 0; kx < kernel_[1]; ++kx) {
            const std::int64_t x = ox * stride_[1] - pad_[1] + kx * dilation_[1];
            if (y < 0 || y >= in_[0] || x < 0 || x >= in_[1]) {
              continue;
            }
            const std::size_t tap = extent(ky * kernel_[1] + kx);
            const std::size_t pixel = extent(y * in_[1] + x);
            for (std::size_t ch = 0; ch < channels_; ++ch) {
              f(row + ch * taps + tap, ch * in_pixels() + pixel);
            }
          }
        }
      }
    }
  }

  std::size_t channels_;
  std::int64_t in_[2] = {1, 1};
  std::int64_t out_[2] = {1, 1};
  std::int64_t kernel_[2] = {1, 1};
  std::int64_t stride_[2] = {1, 1};
  std::int64_t dilation_[2] = {1, 1};
  std::int64_t pad_[2] = {0, 0};
};

/// The gradient of Conv. For each image and group, with the patches X [pixels, K], the weights W
/// [outputs, K] and the output gradient D [outputs, pixels]:
///
///   dW += D X,  dX = D^T W,  db += sums of the rows of D
///
/// where dX is the gradient of the patches, added back to the image.
inline void convolution(const gradient_context& c) {
  const tensor& x = c.input(0);
  const tensor& w = c.input(1);
  const filter_shape f = ops::read_filters(c.forward, x.dims(), w.dims());
  const image_patches patches(c);
  const std::size_t pixels = patches.out_pixels();
  const std::size_t length = patches.length();
  const std::size_t outputs = f.out_channels / f.groups;
  const std::size_t inputs = f.in_channels / f.groups;
  const auto batch = static_cast<std::size_t>(x.dim(0));
  if (c.output().count() == 0) {
    return;
  }
  const std::vector<float> upstream = c.output_gradient_as_float();
  std::vector<packed_floats> filters;
  for (std::size_t g = 0; g < f.groups && c.wants(0); ++g) {
    filters.emplace_back(
        matrix_view<const float>(w.data<float>().data() + g * outputs * length, outputs, length),
        std::span<const float>{});
  }
  std::vector<float> columns;
  for (std::size_t n = 0; n < batch; ++n) {
    for (std::size_t g = 0; g < f.groups; ++g) {
      const std::size_t image = (n * f.in_channels + g * inputs) * patches.in_pixels();
      const float* d = upstream.data() + (n * f.out_channels + g * outputs) * pixels;
      if (c.wants(1)) {
        patches.read(x.data<float>().data() + image, columns);
        add_to(c.gradient(1).subspan(g * outputs * length),
               product(c, matrix_view<const float>(d, outputs, pixels),
                       matrix_view<const float>(columns.data(), pixels, length)));
      }
      if (c.wants(0)) {
        const std::vector<float> by_pixel = ops::transposed_copy(d, outputs, pixels);
        patches.add_back(
            product(c, matrix_view<const float>(by_pixel.data(), pixels, outputs), filters[g]),
            c.gradient(0).data() + image);
      }
    }
  }
  for (std::size_t i = 0; c.wants(2) && i < batch * f.out_channels; ++i) {
    double sum = 0.0;
    for (const double v : c.output_gradient.subspan(i * pixels, pixels)) {
      sum += v;
    }
    c.gradient(2)[i % f.out_channels] += sum;
  }
}

// --------------------------------------------------------------------------------------- matrices

/// Adds to `sum`, the gradient of an operand of shape `dims` that was broadcast to the output, the
/// output gradient times a factor: each element of the output contributes to the element of the
/// operand that it was computed from. `factor` gets the index of the element in the other operand,
/// of shape `other`.
template <class Factor>
void add_broadcast(const gradient_context& c, std::span<double> sum, const shape& dims,
                   const shape& other, const Factor& factor) {
  if (c.output_gradient.empty()) {
    return;
  }
  const auto plan = ops::plan_broadcast<2>(c.output().dims(), {&dims, &other});
  ops::walk_runs<2>(
      plan, 0, plan.runs,
      [&](const std::array<std::size_t, 2>& at, std::size_t first, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
          sum[at[0] + i * plan.step[0]] +=
              rounded_product(c.output_gradient[first + i], factor(at[1] + i * plan.step[1]));
        }
      });
}

/// The gradient of Gemm, Y = alpha A B + beta C, with A and B after their transpositions:
///
///   dA = alpha D B^T,  dB = alpha A^T D,  dC = beta D, summed where C was broadcast
inline void gemm_operator(const gradient_context& c) {
  const ops::gemm_shape s(c.forward);
  const auto alpha = static_cast<double>(c.forward.n().get_float("alpha", 1.0F));
  const auto beta = static_cast<double>(c.forward.n().get_float("beta", 1.0F));
  const std::vector<float> d = c.output_gradient_as_float();
  const matrix_view<const float> rows(d.data(), s.m, s.n);
  const float* a = c.input(0).data<float>().data();
  if (c.wants(0)) {
    const std::vector<float> found =
        product(c, rows, s.rhs(c.input(1).data<float>().data()).transposed());
    add_to(c.gradient(0), s.transpose_a ? ops::transposed_copy(found.data(), s.m, s.k) : found,
           alpha);
  }
  if (c.wants(1)) {
    const std::vector<float> columns =
        s.transpose_a ? std::vector<float>(a, a + s.k * s.m) : ops::transposed_copy(a, s.m, s.k);
    const std::vector<float> found =
        product(c, matrix_view<const float>(columns.data(), s.k, s.m), rows);
    add_to(c.gradient(1), s.transpose_b ? ops::transposed_copy(found.data(), s.k, s.n) : found,
           alpha);
  }
  if (c.wants(2)) {
    const shape& dims = c.input(2).dims();
    add_broadcast(c, c.gradient(2), dims, dims, [&](std::size_t) { return beta; });
  }
}

/// The gradient of MatMul. For each product A B of the stacks of matrices:
///
///   dA += D B^T,  dB += A^T D
inline void matmul(const gradient_context& c) {
  const ops::matmul_shape s(c.forward, c.input(0).dims(), c.input(1).dims());
  const std::vector<float> upstream = c.output_gradient_as_float();
  const float* a = c.input(0).data<float>().data();
  const float* b = c.input(1).data<float>().data();
  if (upstream.empty()) {
    return;
  }
  const bool stacked = s.stacked_rows();
  const std::size_t rows = stacked ? s.m * s.count() : s.m;
  for (std::size_t i = 0; i < (stacked ? 1 : s.count()); ++i) {
    const auto factors = s.factors_of(i);
    const std::size_t lhs = stacked ? 0 : factors.first * s.m * s.k;
    const std::size_t rhs = stacked ? 0 : factors.second * s.k * s.n;
    const matrix_view<const float> d(upstream.data() + i * s.m * s.n, rows, s.n);
    if (c.wants(0)) {
      const matrix_view<const float> right(b + rhs, s.k, s.n);
      add_to(c.gradient(0).subspan(lhs), product(c, d, right.transposed()));
    }
    if (c.wants(1)) {
      const std::vector<float> columns = ops::transposed_copy(a + lhs, rows, s.k);
      add_to(c.gradient(1).subspan(rhs),
             product(c, matrix_view<const float>(columns.data(), s.k, rows), d));
    }
  }
}

// ------------------------------------------------------------------------------------- elementwise

/// The gradient of Add, Sum and Sub: D for each input, -D for the second input of Sub, summed where
/// an input was broadcast.
inline void sum(const gradient_context& c) {
  const bool subtracts = c.forward.n().is("Sub");
  for (std::size_t i = 0; i < c.forward.input_count(); ++i) {
    if (c.wants(i)) {
      const shape& dims = c.input(i).dims();
      const double sign = subtracts && i == 1 ? -1.0 : 1.0;
      add_broadcast(c, c.gradient(i), dims, dims, [&](std::size_t) { return sign; });
    }
  }
}

/// The gradient of Mul: D times the other input, summed where an input was broadcast.
inline void multiplication(const gradient_context& c) {
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (c.wants(i)) {
      const tensor& other = c.input(1 - i);
      const auto values = other.data<float>();
      add_broadcast(c, c.gradient(i), c.input(i).dims(), other.dims(),
                    [&](std::size_t at) { return static_cast<double>(values[at]); });
    }
  }
}

/// The gradient of a function of single elements. slope(x, y) is its derivative at an element x of
/// the input with the result y.
template <class Slope>
void elementwise(const gradient_context& c, const Slope& slope) {
  if (!c.wants(0)) {
    return;
  }
  const auto x = c.input(0).data<float>();
  const auto y = c.output().data<float>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    c.gradient(0)[i] += rounded_product(c.output_gradient[i], slope(x[i], y[i]));
  }
}

/// The gradient of Relu: D where x > 0, else 0 (also at 0 and for NaN).
inline void relu(const gradient_context& c) {
  elementwise(c, [](float x, float) { return x > 0.0F ? 1.0 : 0.0; });
}
/// The gradient of LeakyRelu: D times the attribute alpha where x < 0, else D (also at 0).
inline void leaky_relu(const gradient_context& c) {
  const auto alpha = static_cast<double>(c.forward.n().get_float("alpha", 0.01F));
  elementwise(c, [alpha](float x, float) { return x < 0.0F ? alpha : 1.0; });
}
/// The gradient of Sigmoid: D y (1 - y).
inline void sigmoid(const gradient_context& c) {
  elementwise(c, [](float, float y) {
    return rounded_product(static_cast<double>(y), 1.0 - static_cast<double>(y));
  });
}
/// The gradient of Clip: D for elements from one bound to the other, both included. The gradient of
/// a bound is the sum of D over the elements that it replaces.
inline void clip(const gradient_context& c) {
  const float lower =
      ops::clip_bound<float>(c.forward, 1, "min", std::numeric_limits<float>::lowest());
  const float upper =
      ops::clip_bound<float>(c.forward, 2, "max", (std::numeric_limits<float>::max)());
  const auto x = c.input(0).data<float>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float raised = x[i] < lower ? lower : x[i];
    const std::size_t from = raised > upper ? 2 : x[i] < lower ? 1 : 0;
    if (c.wants(from)) {
      c.gradient(from)[from == 0 ? i : 0] += c.output_gradient[i];
    }
  }
}

// ------------------------------------------------------------------------------------------ pools

/// Calls each(first, output, taps, padded) for every window of a pool: `first` is the index of the
/// first element of the channel of the image, `output` that of the output element, `taps` the
/// pixels under the window (offsets from `first`), `padded` the number of places of the window that
/// lie within the image or its padding.
template <class Each>
void for_each_window(const gradient_context& c, bool global, const Each& each) {
  const shape& in = c.input(0).dims();
  const ops::window_attributes w =
      global ? ops::whole_image(in) : ops::read_window(c.forward, in, {});
  const ops::pool_windows windows(c.forward, in, c.output().dims(), w);
  const std::size_t images =
      c.output().count() == 0 ? 0 : c.output().count() / windows.out_pixels();
  windows.for_each(0, images == 0 ? 0 : windows.out_pixels(),
                   [&](std::size_t pixel, std::span<const std::size_t> taps, std::size_t padded) {
                     for (std::size_t i = 0; i < images; ++i) {
                       each(i * windows.in_pixels(), i * windows.out_pixels() + pixel, taps,
                            padded);
                     }
                   });
}

/// The gradient of an average: D divided by the number of pixels that were averaged goes to each
/// pixel of the window. `global`: the window is the whole image.
inline void average(const gradient_context& c, bool global) {
  const bool count_padding = !global && c.forward.n().get_int("count_include_pad", 0) != 0;
  if (!c.wants(0)) {
    return;
  }
  for_each_window(c, global,
                  [&](std::size_t image, std::size_t at, std::span<const std::size_t> taps,
                      std::size_t padded) {
                    const double share = c.output_gradient[at] /
                                         static_cast<double>(count_padding ? padded : taps.size());
                    for (const std::size_t tap : taps) {
                      c.gradient(0)[image + tap] += share;
                    }
                  });
}
/// The gradient of AveragePool.
inline void average_pool(const gradient_context& c) { average(c, false); }
/// The gradient of GlobalAveragePool.
inline void global_average_pool(const gradient_context& c) { average(c, true); }

/// The gradient of MaxPool: D goes to the first of the largest pixels of each window in row-major
/// order.
inline void max_pool(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  const auto x = c.input(0).data<float>();
  const auto y = c.output().data<float>();
  for_each_window(
      c, false,
      [&](std::size_t image, std::size_t at, std::span<const std::size_t> taps, std::size_t) {
        for (const std::size_t tap : taps) {
          if (x[image + tap] == y[at]) {
            c.gradient(0)[image + tap] += c.output_gradient[at];
            return;
          }
        }
      });
}

// --------------------------------------------------------------------------------------- movement

/// The gradient of operators that change only the shape, such as Reshape: D, element for element.
inline void same_elements(const gradient_context& c) {
  for (std::size_t i = 0; c.wants(0) && i < c.output_gradient.size(); ++i) {
    c.gradient(0)[i] += c.output_gradient[i];
  }
}

/// The gradient of Transpose: D, transposed by the inverse permutation.
inline void transpose(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  const shape& out = c.output().dims();
  std::vector<std::size_t> inverse(out.size());
  const shape order = c.forward.n().get_ints("perm");
  for (std::size_t i = 0; i < out.size(); ++i) {
    inverse[order.empty() ? out.size() - 1 - i : static_cast<std::size_t>(order[i])] = i;
  }
  std::vector<double> moved(c.output_gradient.size());
  ops::transpose_bytes(reinterpret_cast<const std::byte*>(c.output_gradient.data()),
                       reinterpret_cast<std::byte*>(moved.data()), sizeof(double), out, inverse);
  for (std::size_t i = 0; i < moved.size(); ++i) {
    c.gradient(0)[i] += moved[i];
  }
}

/// The gradient of Concat: each input gets its part of D.
inline void concat(const gradient_context& c) {
  const std::size_t axis = c.forward.axis(c.forward.n().get_int("axis", 0), c.output().rank());
  std::size_t inner = 1;
  for (std::size_t d = axis + 1; d < c.output().rank(); ++d) {
    inner *= static_cast<std::size_t>(c.output().dim(d));
  }
  const std::size_t row = static_cast<std::size_t>(c.output().dim(axis)) * inner;
  std::size_t before = 0;
  for (std::size_t i = 0; i < c.forward.input_count(); ++i) {
    const std::size_t part = static_cast<std::size_t>(c.input(i).dim(axis)) * inner;
    for (std::size_t k = 0; c.wants(i) && k < c.input(i).count(); ++k) {
      c.gradient(i)[k] += c.output_gradient[k / part * row + before + k % part];
    }
    before += part;
  }
}

// --------------------------------------------------------------------------------- quantization

/// The gradient of detent.FakeQuantize for x and the scales, with rounding treated as the identity
/// (straight-through estimator), as fake_quantize_backward() computes it in float. The zero points
/// get no gradient.
inline void straight_through(const gradient_context& c) {
  const detail::fake_quantize_operands o(c.forward);
  const std::vector<float> upstream = c.output_gradient_as_float();
  std::vector<float> for_x(upstream.size());
  const auto x = o.view(c.input(0).data<float>().data());
  const auto d = o.view(upstream.data());
  const auto back = o.view(for_x.data());
  std::vector<float> scales(c.input(1).count());
  if (o.is_per_channel) {
    std::vector<float> zero_points(scales.size());
    fake_quantize_backward(x, d, o.channels(c.forward), o.levels, back, scales, zero_points);
  } else {
    scales[0] = fake_quantize_backward(x, d, o.one(c.forward), o.levels, back).scale;
  }
  if (c.wants(0)) {
    add_to(c.gradient(0), for_x);
  }
  if (c.wants(1)) {
    add_to(c.gradient(1), scales);
  }
}

}  // namespace gradients

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENT_OPERATORS_HPP
