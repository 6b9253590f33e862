// SPDX-License-Identifier: BSD-3-Clause
// Conv, ConvTranspose, ConvInteger, QLinearConv, and detent's own forms of Conv and QLinearConv.
//
// Operators of domain "detent" are never written to files. detent.Conv adds the attributes `lower`
// and `upper` (a fused clamp). detent.QLinearConv adds `qmin` and `qmax` (a fused clamp on the
// quantized grid); if its output scale is absent, it writes floats, clamped to `lower` and `upper`.
#ifndef DETENT_GRAPH_OPS_CONVOLUTION_HPP
#define DETENT_GRAPH_OPS_CONVOLUTION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/convolution.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/graph/ops/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// Checks weights [out, in / groups, kernel ...] against an input [batch, in, spatial ...] with one
/// or two spatial axes, and returns their sizes.
inline filter_shape read_filters(const operator_context& c, const shape& input,
                                 const shape& weights) {
  c.require(weights.size() == input.size() && input.size() >= 3, "input ", shown(input),
            " and weights ", shown(weights), " do not fit together");
  const std::int64_t groups = c.n().get_int("group", 1);
  c.require(groups >= 1 && weights[1] <= std::numeric_limits<std::int32_t>::max() &&
                weights[1] * groups == input[1] && weights[0] % groups == 0,
            input[1], " input channels, weights ", shown(weights), " and ", groups,
            " groups do not fit together");
  c.require_supported(input.size() <= 4, "no code for ", input.size() - 2, " spatial axes");
  filter_shape f;
  f.out_channels = static_cast<std::size_t>(weights[0]);
  f.in_channels = static_cast<std::size_t>(input[1]);
  f.groups = static_cast<std::size_t>(groups);
  f.kernel_width = static_cast<std::size_t>(weights.back());
  f.kernel_height = input.size() == 4 ? static_cast<std::size_t>(weights[2]) : 1;
  return f;
}

/// Checks the attributes and operands of a convolution and declares its output, of type `type` and
/// in channels-last order. `weights`: which input holds the weights.
inline void infer_convolution(operator_context& c, std::size_t weights, element_type type) {
  const shape& in = c.input(0).dims();
  const shape& w = c.input(weights).dims();
  static_cast<void>(read_filters(c, in, w));
  const window_attributes a = read_window(c, in, shape(w.begin() + 2, w.end()));
  shape out{in[0], w[0]};
  for (std::size_t i = 0; i < a.rank(); ++i) {
    out.push_back(output_extent(c, a, i, in[i + 2], false));
  }
  c.set_output(0, type, std::move(out));
  c.outputs[0].set_channels_last(true);
}

/// Keeps the window of a convolution between runs; it is read from the node again only if the input
/// has another form than before.
class window_cache {
 public:
  /// The window for the input that the node has now. `weights`: which input holds the weights. The
  /// output is channels-last, as infer_convolution() declares it, in whichever order the input is.
  [[nodiscard]] const window& get(const operator_context& c, std::size_t weights) {
    const tensor& in = c.inputs[0];
    if (!in.has_form_of(input_)) {
      const shape& w = c.input(weights).dims();
      window_ = to_window(c, read_window(c, in.dims(), shape(w.begin() + 2, w.end())), in.dims());
      window_.input_layout = in.channels_last() ? activation_layout::nhwc : activation_layout::nchw;
      input_ = in.form();
    }
    return window_;
  }

 private:
  tensor input_;
  window window_;
};

struct float_filters_state : operator_state {
  packed_float_filters filters;
  window_cache windows;
};

/// The state of the node, which make(state) fills from the inputs listed in `from`. It is made once
/// if these inputs are the same in every run, otherwise in each run.
template <class State, class Make>
State& cached_state(operator_context& c, std::initializer_list<std::size_t> from,
                    const Make& make) {
  if (*c.state == nullptr || !c.are_constant(from)) {
    auto fresh = std::make_unique<State>();
    make(*fresh);
    *c.state = std::move(fresh);
  }
  return static_cast<State&>(**c.state);
}

/// The elements of input i, a float tensor of `count` elements; empty if the input is absent.
inline std::span<const float> optional_floats(const operator_context& c, std::size_t i,
                                              std::size_t count) {
  if (!c.has_input(i)) {
    return {};
  }
  c.require(c.inputs[i].count() == count, "input ", i, " has ", c.inputs[i].count(),
            " values, not ", count);
  return c.inputs[i].data<float>();
}

inline void require_floats(const operator_context& c) {
  for (const tensor& t : c.inputs) {
    c.require_supported(!t.defined() || t.type() == element_type::f32,
                        "no code for elements of type ", shown(t.type()));
  }
}

/// Counts the multiply-adds of a convolution with weights of shape `w`.
inline void count_convolution(const operator_context& c, const shape& w) {
  c.count_multiply_adds({c.outputs[0].count(), product(w, 1, w.size())});
}

inline void infer_conv(operator_context& c) { infer_convolution(c, 1, c.input(0).type()); }

inline void run_conv(operator_context& c) {
  require_floats(c);
  auto& state = cached_state<float_filters_state>(c, {1, 2}, [&](float_filters_state& s) {
    const filter_shape f = read_filters(c, c.inputs[0].dims(), c.inputs[1].dims());
    const tensor weights = to_plain(c.inputs[1]);
    s.filters =
        packed_float_filters(f, weights.data<float>(), optional_floats(c, 2, f.out_channels));
  });
  tensor& y = c.make_output(0);
  count_convolution(c, c.inputs[1].dims());
  const fused_clamp clamp(c.n());
  convolve(c.inputs[0].data<float>(), state.filters, state.windows.get(c, 1),
           y.mutable_data<float>(), clamp.lower, clamp.upper, *c.parallel);
}

// ---------------------------------------------------------------------------------- ConvTranspose

/// The window of a transposed convolution, with its padding, and the spatial shape of its output.
struct transposed_window {
  window_attributes a;
  shape out;  // spatial dimensions only
};

inline transposed_window read_transposed(const operator_context& c) {
  const shape& in = c.input(0).dims();
  const shape& w = c.input(1).dims();
  c.require(in.size() == w.size() && in.size() >= 3, "input ", shown(in), " and weights ", shown(w),
            " do not fit together");
  c.require_supported(in.size() <= 4, "no code for ", in.size() - 2, " spatial axes");
  const std::int64_t groups = c.n().get_int("group", 1);
  c.require(groups >= 1 && w[0] == in[1] && in[1] % groups == 0, in[1], " input channels, weights ",
            shown(w), " and ", groups, " groups do not fit together");
  const std::size_t rank = in.size() - 2;
  transposed_window t;
  t.a.kernel.assign(w.begin() + 2, w.end());
  t.a.strides = axis_list(c, "strides", rank, 1, 1);
  t.a.dilations = axis_list(c, "dilations", rank, 1, 1);
  const shape pads = axis_list(c, "pads", 2 * rank, 0, 0);
  const shape output_padding = axis_list(c, "output_padding", rank, 0, 0);
  const shape output_shape = c.n().get_ints("output_shape");
  const std::string automatic = c.n().get_string("auto_pad", "NOTSET");
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t full = t.a.strides[i] * (in[i + 2] - 1) + output_padding[i] + t.a.reach(i);
    std::int64_t begin = pads[i];
    std::int64_t end = pads[rank + i];
    std::int64_t extent = full - begin - end;
    const bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
    if (!output_shape.empty() || same) {
      c.require(output_shape.empty() || output_shape.size() == rank, "output_shape has ",
                output_shape.size(), " values, not ", rank);
      extent = output_shape.empty() ? in[i + 2] * t.a.strides[i] : output_shape[i];
      const std::int64_t total = (std::max)(std::int64_t{0}, full - extent);
      const std::int64_t smaller = total / 2;
      begin = automatic == "SAME_UPPER" ? smaller : total - smaller;
      end = total - begin;
    } else if (automatic == "VALID") {
      begin = end = 0;
      extent = full;
    }
    c.require(extent > 0, "the output has extent ", extent, " along axis ", i + 2);
    t.a.pads_begin.push_back(begin);
    t.a.pads_end.push_back(end);
    t.out.push_back(extent);
  }
  return t;
}

inline void infer_conv_transpose(operator_context& c) {
  const transposed_window t = read_transposed(c);
  const shape& in = c.input(0).dims();
  shape out{in[0], c.input(1).dim(1) * c.n().get_int("group", 1)};
  out.insert(out.end(), t.out.begin(), t.out.end());
  c.set_output(0, c.input(0).type(), std::move(out));
  c.outputs[0].set_channels_last(true);
}

struct transposed_state : operator_state {
  std::vector<packed_floats> groups;
};

/// Computes ConvTranspose: each input pixel times the weights gives a patch of output pixels, and
/// patches are added where they overlap, in the order of the input pixels.
inline void run_conv_transpose(operator_context& c) {
  require_floats(c);
  const transposed_window t = read_transposed(c);
  const auto size = [](std::int64_t v) { return static_cast<std::size_t>(v); };
  const shape& in = c.inputs[0].dims();
  const shape& w = c.inputs[1].dims();
  const std::size_t groups = size(c.n().get_int("group", 1));
  const std::size_t in_channels = size(in[1]);
  const std::size_t group_in = in_channels / groups;
  const std::size_t group_out = size(w[1]);
  const std::size_t out_channels = group_out * groups;
  const bool flat = in.size() == 3;
  const std::size_t taps = size(w.back()) * (flat ? 1 : size(w[2]));

  const auto& state = cached_state<transposed_state>(c, {1}, [&](transposed_state& s) {
    const auto weights = c.inputs[1].data<float>();
    std::pmr::vector<float> matrix(group_in * taps * group_out, c.memory);
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t i = 0; i < group_in; ++i) {
        for (std::size_t o = 0; o < group_out; ++o) {
          for (std::size_t k = 0; k < taps; ++k) {
            matrix[(i * taps + k) * group_out + o] =
                weights[((g * group_in + i) * group_out + o) * taps + k];
          }
        }
      }
      s.groups.emplace_back(matrix_view<const float>(matrix.data(), group_in, taps * group_out),
                            std::span<const float>{});
    }
  });

  const tensor x = to_channels_last(c.inputs[0], c.allocate);
  c.count_multiply_adds({x.count(), taps, group_out});
  tensor& y = c.make_output(0);
  auto out = y.mutable_data<float>();
  const std::span<const float> bias = optional_floats(c, 2, out_channels);
  for (std::size_t i = 0; i < out.size(); i += out_channels) {
    for (std::size_t o = 0; o < out_channels; ++o) {
      out[i + o] = bias.empty() ? 0.0F : bias[o];
    }
  }
  const std::size_t last = t.a.rank() - 1;
  const std::int64_t in_height = flat ? 1 : in[2];
  const std::int64_t in_width = in.back();
  const std::int64_t out_height = flat ? 1 : t.out[0];
  const std::int64_t out_width = t.out[last];
  const std::int64_t kernel_height = flat ? 1 : w[2];
  const std::int64_t kernel_width = w.back();
  std::pmr::vector<float> patches(size(in_width) * taps * group_out, c.memory);
  for (std::int64_t n = 0; n < in[0]; ++n) {
    for (std::int64_t row = 0; row < in_height; ++row) {
      for (std::size_t g = 0; g < groups; ++g) {
        const float* line = x.data<float>().data() +
                            size((n * in_height + row) * in_width) * in_channels + g * group_in;
        gemm(matrix_view<const float>(line, size(in_width), group_in,
                                      static_cast<std::ptrdiff_t>(in_channels)),
             state.groups[g], matrix_view<float>(patches.data(), size(in_width), taps * group_out));
        for (std::int64_t column = 0; column < in_width; ++column) {
          const float* patch = patches.data() + size(column) * taps * group_out;
          for (std::int64_t k = 0; k < kernel_height * kernel_width; ++k, patch += group_out) {
            const std::int64_t ky = k / kernel_width;
            const std::int64_t kx = k % kernel_width;
            const std::int64_t oy =
                flat ? 0 : row * t.a.strides[0] - t.a.pads_begin[0] + ky * t.a.dilations[0];
            const std::int64_t ox =
                column * t.a.strides[last] - t.a.pads_begin[last] + kx * t.a.dilations[last];
            if (oy < 0 || oy >= out_height || ox < 0 || ox >= out_width) {
              continue;
            }
            float* to = out.data() + size((n * out_height + oy) * out_width + ox) * out_channels +
                        g * group_out;
            for (std::size_t o = 0; o < group_out; ++o) {
              to[o] += patch[o];
            }
          }
        }
      }
    }
  }
}

// ------------------------------------------------------------------------------------- integer

struct integer_filters_state : operator_state {
  packed_filters filters;
  window_cache windows;
  std::optional<epilogue_options> epilogue;
};

inline void run_integer_convolution(operator_context& c, const integer_product_inputs& at) {
  auto& state = cached_state<integer_filters_state>(
      c, {at.rhs, at.rhs_scale, at.rhs_zero_point, at.bias}, [&](integer_filters_state& s) {
        const filter_shape f = read_filters(c, c.input(at.lhs).dims(), c.input(at.rhs).dims());
        const rhs_terms terms(c, at, f.out_channels);
        const std::size_t zero_points =
            c.has_input(at.rhs_zero_point) ? c.inputs[at.rhs_zero_point].count() : 1;
        const signed_operand w = as_signed(c, to_plain(c.input(at.rhs)),
                                           read_zero_points(c, at.rhs_zero_point, zero_points));
        s.filters = packed_filters(f, w.values.data<std::int8_t>(),
                                   {terms.scales, w.zero_points, terms.bias});
      });
  epilogue_options options = cached_epilogue(c, at, state.epilogue);
  const unsigned_operand x = as_unsigned(c, c.inputs[at.lhs], options.lhs_zero_point);
  options.lhs_zero_point = x.zero_point;
  const window& w = state.windows.get(c, at.rhs);
  count_convolution(c, c.inputs[at.rhs].dims());
  tensor& y = c.make_output(0);
  for_integer_output(c, y.type(), [&]<class T>() {
    convolve<T>(x.values.data<std::uint8_t>(), state.filters, w, y.mutable_data<T>(), options,
                *c.parallel);
  });
}

inline void infer_qlinear_conv(operator_context& c) {
  const bool quantized = c.has_input(qlinear_inputs.out_scale);
  c.require(quantized || c.n().domain == "detent", "the output scale is missing");
  const element_type type = !quantized       ? element_type::f32
                            : c.has_input(7) ? c.inputs[7].type()
                                             : c.input(0).type();
  infer_convolution(c, 3, type);
}

inline void infer_conv_integer(operator_context& c) { infer_convolution(c, 1, element_type::s32); }

inline constexpr operator_definition convolution_operators[] = {
    {"", "Conv", 2, 3, layout_support::any, &infer_conv, &run_conv, true},
    {"detent", "Conv", 2, 3, layout_support::any, &infer_conv, &run_conv, true},
    {"", "ConvTranspose", 2, 3, layout_support::any, &infer_conv_transpose, &run_conv_transpose,
     true},
    {"", "ConvInteger", 2, 4, layout_support::any, &infer_conv_integer,
     [](operator_context& c) { run_integer_convolution(c, integer_inputs); }, true},
    {"", "QLinearConv", 8, 9, layout_support::any, &infer_qlinear_conv,
     [](operator_context& c) { run_integer_convolution(c, qlinear_inputs); }, true},
    {"detent", "QLinearConv", 5, 9, layout_support::any, &infer_qlinear_conv,
     [](operator_context& c) { run_integer_convolution(c, qlinear_inputs); }, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_CONVOLUTION_HPP
