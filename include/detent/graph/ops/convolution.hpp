// SPDX-License-Identifier: BSD-3-Clause
// Conv, ConvTranspose, ConvInteger, QLinearConv, and detent's own forms of Conv, ConvInteger and
// QLinearConv.
//
// Those of the domain "detent" are never written to files. detent.Conv adds an input 3 (a fused Add
// of another value, with its broadcast) and the attributes `lower` and `upper` (a fused clamp after
// it). detent.QLinearConv adds `qmin` and `qmax` (a fused clamp on the quantized grid); if its
// output scale is absent, it writes floats, clamped to `lower` and `upper`, after a float bias, the
// tenth input, is added.
// For detent.ConvIntegerToFloat and DynamicQuantizeConv see scaled_sums.hpp.
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
#include <detent/epilogue.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/float_inputs.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/graph/ops/scaled_sums.hpp>
#include <detent/graph/ops/volume_patches.hpp>
#include <detent/graph/ops/window.hpp>
#include <detent/reference.hpp>
#include <detent/winograd.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// Checks weights [out, in / groups, kernel ...] against an input [batch, in, spatial ...], and
/// returns their sizes. With more than two spatial axes, kernel_height stands for all but the last.
inline filter_shape read_filters(const operator_context& c, const shape& input,
                                 const shape& weights) {
  c.require(weights.size() == input.size() && input.size() >= 3, "input ", shown(input),
            " and weights ", shown(weights), " do not fit together");
  const std::int64_t groups = c.n().get_int("group", 1);
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  c.require(groups >= 1 && groups <= most && weights[1] <= most &&
                weights[1] * groups == input[1] && weights[0] % groups == 0,
            input[1], " input channels, weights ", shown(weights), " and ", groups,
            " groups do not fit together");
  filter_shape f;
  f.out_channels = static_cast<std::size_t>(weights[0]);
  f.in_channels = static_cast<std::size_t>(input[1]);
  f.groups = static_cast<std::size_t>(groups);
  f.kernel_width = static_cast<std::size_t>(weights.back());
  f.kernel_height = product(weights, 2, weights.size() - 1);
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

/// Counts the multiply-adds of a convolution with weights of shape `w`.
inline void count_convolution(const operator_context& c, const shape& w) {
  c.count_multiply_adds({c.outputs[0].count(), product(w, 1, w.size())});
}

/// The executor's threads if a convolution with filters `f` is worth them, else none: another
/// thread takes microseconds to begin and to be waited for. `worth` is the number of multiply-adds
/// from which on two threads are faster than one; it was measured with AVX-512 VNNI, and is a
/// sixteenth where kernels have no vectors.
[[nodiscard]] inline const parallel_for& threads_for(const operator_context& c,
                                                     const filter_shape& f, double worth) {
  static const parallel_for none;
  const bool is_depthwise = f.groups > 1 && f.group_in() == 1;
  // Depthwise filters reach an eighth of the speed.
  const double each = static_cast<double>(f.group_in() * f.taps()) * (is_depthwise ? 8.0 : 1.0);
  const double least = active_target() == target::portable ? worth / 16.0 : worth;
  return static_cast<double>(c.outputs[0].count()) * each < least ? none : *c.parallel;
}
/// The `worth` of 8-bit integers and of floats.
inline constexpr double integers_worth_threads = 0x1p20;
inline constexpr double floats_worth_threads = 0x1p18;

// --- convolutions over three or more axes --------------------------------------------------------

/// True if the input has more spatial axes than convolve() takes.
[[nodiscard]] inline bool is_volume(const operator_context& c) { return c.inputs[0].rank() > 4; }

/// Calls run(sizes, patches) with the geometry of a convolution over a volume. `weights`: which
/// input holds the weights. Throws bad_file if there are no channels, for which nothing would bound
/// the work.
template <class Run>
void with_volume(operator_context& c, std::size_t weights, const Run& run) {
  const shape& in = c.inputs[0].dims();
  const shape& w = c.inputs[weights].dims();
  c.require(in[1] > 0 && w[0] > 0, "a convolution of ", in[1], " to ", w[0], " channels");
  const volume_sizes sizes(in, w, c.outputs[0].dims(), c.n().get_int("group", 1));
  const window_attributes a = read_window(c, in, shape(w.begin() + 2, w.end()));
  run(sizes, volume_patches(in, c.outputs[0].dims(), a));
}

/// The packed weights of each group of a layer.
using packed_float_groups = std::vector<packed_floats>;

inline void run_volume_conv(operator_context& c, const fused_clamp& clamp) {
  with_volume(c, 1, [&](const volume_sizes& s, const volume_patches& patches) {
    const auto& state = cached_state<packed_float_groups>(
        c, {1, 2}, s.groups * packed_bytes(s.depth(), s.group_out()),
        [&](packed_float_groups& fresh) {
          const tensor weights = to_plain(c.inputs[1], c.allocate);
          const std::span<const float> bias = optional_floats(c, 2, s.out_channels);
          std::pmr::vector<float> matrix(s.depth() * s.group_out(), c.memory);
          for (std::size_t g = 0; g < s.groups; ++g) {
            volume_matrix(s, weights.data<float>().data() + g * matrix.size(), matrix.data());
            fresh.emplace_back(
                matrix_view<const float>(matrix.data(), s.depth(), s.group_out()),
                bias.empty() ? bias : bias.subspan(g * s.group_out(), s.group_out()));
          }
        });
    const tensor x = to_channels_last(c.inputs[0], c.allocate);
    convolve_volume(c, s, patches, x.data<float>().data(), 0.0F,
                    c.outputs[0].mutable_data<float>().data(),
                    [&](std::size_t g, matrix_view<const float> rows, matrix_view<float> out) {
                      gemm(rows, (*state.packed)[g], out, {clamp.lower, clamp.upper, {}});
                    });
  });
}

/// Infers the output of Conv and detent.Conv.
inline void infer_conv(operator_context& c) {
  infer_convolution(c, 1, c.input(0).type());
  if (!c.has_input(3)) {
    return;
  }
  c.require(c.inputs[3].type() == c.inputs[0].type(), "input 3 is ", shown(c.inputs[3].type()),
            ", input 0 is ", shown(c.inputs[0].type()));
  shape sum = broadcast_dims(c, c.outputs[0].dims(), c.inputs[3].dims());
  if (sum != c.outputs[0].dims()) {
    c.set_output(0, c.inputs[0].type(), std::move(sum));
  }
}

/// The packed filters of a float convolution, for direct sums, for Winograd's algorithm, or both.
struct float_filters {
  std::optional<packed_float_filters> direct;
  std::optional<winograd_filters> winograd;

  /// Whether there are filters for this tile; 0 stands for direct sums.
  [[nodiscard]] bool has(std::size_t tile) const noexcept {
    return tile == 0 ? direct.has_value() : winograd && winograd->tile() == tile;
  }
  /// The bytes that add() needs, for packed weights and for what packing makes on the way.
  [[nodiscard]] static std::size_t bytes(const filter_shape& f, std::size_t tile) noexcept {
    constexpr std::size_t forms = 2;  // transformed and packed weights
    return tile == 0
               ? packed_float_filter_bytes(f)
               : forms * (tile + 2) * (tile + 2) * packed_bytes(f.in_channels, f.out_channels);
  }
  /// Packs the weights of a node for this tile.
  void add(const operator_context& c, std::size_t tile) {
    const filter_shape f = read_filters(c, c.inputs[0].dims(), c.inputs[1].dims());
    const tensor weights = to_plain(c.inputs[1], c.allocate);
    const std::span<const float> bias = optional_floats(c, 2, f.out_channels);
    if (tile == 0) {
      direct.emplace(f, weights.data<float>(), bias);
    } else {
      winograd.emplace(f, weights.data<float>(), bias, tile);
    }
  }
};

/// What an executor keeps for itself of a float convolution of images.
struct float_convolution {
  window_cache windows;
  float_filters more;  // if images of another size are computed in the other way
};

/// The tile with which a convolution is to be computed by Winograd's algorithm; 0 for the direct
/// way.
[[nodiscard]] inline std::size_t winograd_tile(const operator_context& c, const filter_shape& f,
                                               const window& w) {
  return c.winograd_tile != 0 && winograd_filters::pays(f, w, c.winograd_tile) ? c.winograd_tile
                                                                               : 0;
}

/// Computes output 0, which has been made as declared for the convolution alone. The residual may
/// be null, or the output itself; it is in channels-last order, and no volume has one.
inline void convolve_floats(operator_context& c, const fused_clamp& clamp,
                            const float* residual = nullptr) {
  tensor& y = c.outputs[0];
  count_convolution(c, c.inputs[1].dims());
  if (is_volume(c)) {
    run_volume_conv(c, clamp);
    return;
  }
  const filter_shape f = read_filters(c, c.inputs[0].dims(), c.inputs[1].dims());
  window_cache windows;  // of a node that has no state yet
  const auto tile_for = [&](window_cache& cache) { return winograd_tile(c, f, cache.get(c, 1)); };
  auto& state = cached_state<float_filters, float_convolution>(
      c, {1, 2}, c.are_constant({1, 2}) ? 0 : float_filters::bytes(f, tile_for(windows)),
      [&](float_filters& fresh) { fresh.add(c, tile_for(windows)); });
  const std::size_t tile = tile_for(state.own.windows);
  if (!state.packed->has(tile) && !state.own.more.has(tile)) {
    state.own.more.add(c, tile);
  }
  const float_filters& filters = state.packed->has(tile) ? *state.packed : state.own.more;
  float_epilogue_options options{clamp.lower, clamp.upper, {}};
  if (residual != nullptr) {
    options.residual =
        matrix_view<const float>(residual, y.count() / f.out_channels, f.out_channels);
  }
  const std::span<const float> x = c.inputs[0].data<float>();
  const window& w = state.own.windows.get(c, 1);
  const parallel_for& threads = threads_for(c, f, floats_worth_threads);
  if (tile != 0) {
    convolve(x, *filters.winograd, w, y.mutable_data<float>(), options, threads);
  } else {
    convolve(x, *filters.direct, w, y.mutable_data<float>(), options, threads);
  }
}

inline void run_conv(operator_context& c) {
  require_floats(c);
  const fused_clamp clamp(c.n());
  if (!c.has_input(3)) {
    c.make_output(0);
    convolve_floats(c, clamp);
    return;
  }
  const tensor& addend = c.inputs[3];
  if (addend.dims() == c.outputs[0].dims() && c.outputs[0].channels_last() && !is_volume(c)) {
    c.make_output_over(0, {3});
    const tensor residual = to_channels_last(addend, c.allocate);
    convolve_floats(c, clamp, residual.data<float>().data());
    return;
  }
  const tensor declared = c.outputs[0];
  infer_convolution(c, 1, element_type::f32);  // not empty, as the sum is not
  c.make_output(0);
  convolve_floats(c, fused_clamp(node()));
  const tensor images = to_plain(c.outputs[0], c.allocate);
  const tensor plain = to_plain(addend, c.allocate);
  c.outputs[0] = declared;
  c.outputs[0].set_channels_last(false);
  tensor& y = c.make_output(0);
  map_broadcast(
      c, [&](float a, float b) { return reference::clamp(a + b, clamp.lower, clamp.upper); },
      operand_of<float>(images), operand_of<float>(plain), y.mutable_data<float>(), y.dims());
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
  const std::int64_t groups = c.n().get_int("group", 1);
  c.require(groups >= 1 && groups <= std::numeric_limits<std::int32_t>::max() && w[0] == in[1] &&
                in[1] % groups == 0,
            in[1], " input channels, weights ", shown(w), " and ", groups,
            " groups do not fit together");
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
    c.require(t.a.kernel[i] >= 1, "kernel ", shown(t.a.kernel));
    const std::int64_t full = t.a.strides[i] * (in[i + 2] - 1) + output_padding[i] + t.a.reach(i);
    std::int64_t begin = pads[i];
    std::int64_t end = pads[rank + i];
    std::int64_t extent = full - begin - end;
    const bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
    if (!output_shape.empty() || same) {
      c.require(output_shape.empty() || output_shape.size() == rank, "output_shape has ",
                output_shape.size(), " values, not ", rank);
      extent = output_shape.empty() ? in[i + 2] * t.a.strides[i] : output_shape[i];
      c.require(extent > 0, "the output has extent ", extent, " along axis ", i + 2);
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

/// A line is all pixels that differ only along the last axis. For each tap of the window along the
/// other axes, finds the line of the output that this tap adds an input line to; -1 if that is
/// outside.
inline void find_hit_lines(const transposed_window& t, const shape& in, std::size_t line,
                           std::pmr::vector<std::int64_t>& hit) {
  const std::size_t axes = t.a.rank() - 1;
  for (std::size_t k = 0; k < hit.size(); ++k) {
    std::size_t place = line;
    std::size_t tap = k;
    std::int64_t step = 1;
    hit[k] = 0;
    for (std::size_t d = axes; d-- > 0;) {
      const auto extent = static_cast<std::size_t>(in[d + 2]);
      const auto kernel = static_cast<std::size_t>(t.a.kernel[d]);
      const std::int64_t at = static_cast<std::int64_t>(place % extent) * t.a.strides[d] -
                              t.a.pads_begin[d] +
                              static_cast<std::int64_t>(tap % kernel) * t.a.dilations[d];
      place /= extent;
      tap /= kernel;
      hit[k] = hit[k] < 0 || at < 0 || at >= t.out[d] ? -1 : hit[k] + at * step;
      step *= t.out[d];
    }
  }
}

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
  const std::size_t taps = product(w, 2, w.size());

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
  if (x.count() == 0 || out.empty()) {
    return;
  }
  const std::size_t bytes = groups * packed_bytes(group_in, taps * group_out);
  const auto& state =
      cached_state<packed_float_groups>(c, {1}, bytes, [&](packed_float_groups& fresh) {
        const tensor plain = to_plain(c.inputs[1], c.allocate);
        const auto weights = plain.data<float>();
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
          fresh.emplace_back(matrix_view<const float>(matrix.data(), group_in, taps * group_out),
                             std::span<const float>{});
        }
      });
  const std::size_t last = t.a.rank() - 1;
  const std::int64_t in_width = in.back();
  const std::int64_t out_width = t.out[last];
  const std::size_t kernel_width = size(w.back());
  const std::size_t lines = product(in, 2, in.size() - 1);
  const std::size_t out_lines = product(t.out, 0, last);
  std::pmr::vector<float> patches(size(in_width) * taps * group_out, c.memory);
  std::pmr::vector<std::int64_t> hit_lines(taps / kernel_width, c.memory);
  for (std::size_t n = 0; n < size(in[0]); ++n) {
    for (std::size_t line = 0; line < lines; ++line) {
      find_hit_lines(t, in, line, hit_lines);
      for (std::size_t g = 0; g < groups; ++g) {
        const float* from = x.data<float>().data() +
                            (n * lines + line) * size(in_width) * in_channels + g * group_in;
        gemm(matrix_view<const float>(from, size(in_width), group_in,
                                      static_cast<std::ptrdiff_t>(in_channels)),
             (*state.packed)[g],
             matrix_view<float>(patches.data(), size(in_width), taps * group_out));
        for (std::int64_t column = 0; column < in_width; ++column) {
          const float* patch = patches.data() + size(column) * taps * group_out;
          for (std::size_t k = 0; k < taps; ++k, patch += group_out) {
            const std::int64_t hit = hit_lines[k / kernel_width];
            const std::int64_t ox =
                column * t.a.strides[last] - t.a.pads_begin[last] +
                static_cast<std::int64_t>(k % kernel_width) * t.a.dilations[last];
            if (hit < 0 || ox < 0 || ox >= out_width) {
              continue;
            }
            float* to = out.data() +
                        ((n * out_lines + size(hit)) * size(out_width) + size(ox)) * out_channels +
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

/// What an executor keeps for a convolution of images beside the packed filters.
struct convolution_settings {
  window_cache windows;
  std::optional<epilogue_options> epilogue;
};

/// The packed weights of each group of a convolution of volumes.
using packed_integer_groups = std::vector<packed_weights>;

inline void run_integer_volume(operator_context& c, const integer_product_inputs& at,
                               const tensor& lhs, std::optional<std::int32_t> lhs_zero_point) {
  with_volume(c, at.rhs, [&](const volume_sizes& s, const volume_patches& patches) {
    auto& state = cached_state<packed_integer_groups, std::optional<epilogue_options>>(
        c, {at.rhs, at.rhs_scale, at.rhs_zero_point, at.bias},
        s.groups * packed_integer_bytes(s.depth(), s.group_out()),
        [&](packed_integer_groups& fresh) {
          const filter_shape f = read_filters(c, lhs.dims(), c.input(at.rhs).dims());
          const rhs_terms terms(c, at, f.out_channels);
          const std::size_t zero_points =
              c.has_input(at.rhs_zero_point) ? c.inputs[at.rhs_zero_point].count() : 1;
          const signed_operand w = as_signed(c, to_plain(c.input(at.rhs)),
                                             read_zero_points(c, at.rhs_zero_point, zero_points));
          std::pmr::vector<std::int8_t> matrix(s.depth() * s.group_out(), c.memory);
          for (std::size_t g = 0; g < s.groups; ++g) {
            volume_matrix(s, w.values.data<std::int8_t>().data() + g * matrix.size(),
                          matrix.data());
            using detent::detail::group_slice;
            fresh.push_back(pack_weights(
                matrix_view<const std::int8_t>(matrix.data(), s.depth(), s.group_out()),
                {group_slice(std::span<const float>(terms.scales), f, g),
                 group_slice(std::span<const std::int32_t>(w.zero_points), f, g),
                 group_slice(terms.bias, f, g)}));
          }
        });
    epilogue_options options = cached_epilogue(c, at, state.own);
    options.lhs_zero_point = lhs_zero_point.value_or(options.lhs_zero_point);
    const tensor x = to_channels_last(lhs, c.allocate);
    tensor& y = c.outputs[0];
    const std::span<const float> bias = optional_floats(c, at.float_bias, s.groups * s.group_out());
    for_integer_product(c, x, y.type(), [&]<class A, class T>() {
      convolve_volume(c, s, patches, x.data<A>().data(), static_cast<A>(options.lhs_zero_point),
                      y.mutable_data<T>().data(),
                      [&](std::size_t g, matrix_view<const A> rows, matrix_view<T> out) {
                        epilogue_options of_group = options;
                        if (!bias.empty()) {
                          of_group.bias = bias.subspan(g * out.columns, out.columns);
                        }
                        gemm(rows, (*state.packed)[g], out, of_group);
                      });
    });
  });
}

/// Convolves `lhs`, which has the shape and order of input 0. Its zero point is that of the node if
/// none is given.
inline void run_integer_convolution(operator_context& c, const integer_product_inputs& at,
                                    const tensor& lhs,
                                    std::optional<std::int32_t> lhs_zero_point = std::nullopt) {
  if (is_volume(c)) {
    c.make_output(0);
    count_convolution(c, c.inputs[at.rhs].dims());
    run_integer_volume(c, at, lhs, lhs_zero_point);
    return;
  }
  const filter_shape f = read_filters(c, lhs.dims(), c.input(at.rhs).dims());
  auto& state = cached_state<packed_filters, convolution_settings>(
      c, {at.rhs, at.rhs_scale, at.rhs_zero_point, at.bias}, packed_filter_bytes(f),
      [&](packed_filters& fresh) {
        const rhs_terms terms(c, at, f.out_channels);
        const std::size_t zero_points =
            c.has_input(at.rhs_zero_point) ? c.inputs[at.rhs_zero_point].count() : 1;
        const signed_operand w = as_signed(c, to_plain(c.input(at.rhs)),
                                           read_zero_points(c, at.rhs_zero_point, zero_points));
        fresh = packed_filters(f, w.values.data<std::int8_t>(),
                               {terms.scales, w.zero_points, terms.bias});
      });
  epilogue_options options = cached_epilogue(c, at, state.own.epilogue);
  const unsigned_operand x = as_unsigned(c, lhs, lhs_zero_point.value_or(options.lhs_zero_point));
  options.lhs_zero_point = x.zero_point;
  const window& w = state.own.windows.get(c, at.rhs);
  count_convolution(c, c.inputs[at.rhs].dims());
  tensor& y = c.make_output(0);
  options.bias = optional_floats(c, at.float_bias, state.packed->shape().out_channels);
  for_integer_output(c, y.type(), [&]<class T>() {
    convolve<T>(x.values.data<std::uint8_t>(), *state.packed, w, y.mutable_data<T>(), options,
                threads_for(c, state.packed->shape(), integers_worth_threads));
  });
}

inline void run_integer_convolution(operator_context& c, const integer_product_inputs& at) {
  run_integer_convolution(c, at, c.input(at.lhs));
}

inline void infer_qlinear_conv(operator_context& c) {
  const bool quantized = c.has_input(qlinear_inputs.out_scale);
  c.require(quantized || c.n().domain == "detent", "the output scale is missing");
  require_types_of_zero_points(c, qlinear_inputs);
  const element_type type = !quantized       ? element_type::f32
                            : c.has_input(7) ? c.inputs[7].type()
                                             : c.input(0).type();
  infer_convolution(c, 3, type);
}

/// Infers the output, of elements of a type, of a convolution of inputs 0 and 1 whose zero points
/// `at` names.
inline void infer_integer_convolution(operator_context& c, const integer_product_inputs& at,
                                      element_type type) {
  require_types_of_zero_points(c, at);
  infer_convolution(c, 1, type);
}

inline void run_conv_integer_to_float(operator_context& c) {
  run_integer_convolution(c, scaled_sum_inputs);
  finish_scaled_sums(c, static_cast<std::size_t>(c.inputs[1].dim(0)));
}

inline void run_dynamic_convolution(operator_context& c) {
  const dynamic_operand x(c);
  run_integer_convolution(c, dynamic_sum_inputs, x.values, x.params.zero_point);
  finish_scaled_sums(c, static_cast<std::size_t>(c.inputs[1].dim(0)), x.params.scale, 2, 4);
}

inline constexpr operator_definition convolution_operators[] = {
    {"", "Conv", 2, 3, layout_support::any, &infer_for_floats<&infer_conv>, &run_conv, true},
    {"detent", "Conv", 2, 4, layout_support::any, &infer_for_floats<&infer_conv>, &run_conv, true},
    {"", "ConvTranspose", 2, 3, layout_support::any, &infer_for_floats<&infer_conv_transpose>,
     &run_conv_transpose, true},
    {"", "ConvInteger", 2, 4, layout_support::any,
     [](operator_context& c) { infer_integer_convolution(c, integer_inputs, element_type::s32); },
     [](operator_context& c) { run_integer_convolution(c, integer_inputs); }, true},
    {"detent", "ConvIntegerToFloat", 3, 7, layout_support::any,
     [](operator_context& c) {
       infer_integer_convolution(c, scaled_sum_inputs, element_type::f32);
     },
     &run_conv_integer_to_float, true},
    {"detent", "DynamicQuantizeConv", 2, 5, layout_support::any,
     [](operator_context& c) {
       infer_integer_convolution(c, dynamic_sum_inputs, element_type::f32);
     },
     &run_dynamic_convolution, true},
    {"", "QLinearConv", 8, 9, layout_support::any, &infer_qlinear_conv,
     [](operator_context& c) { run_integer_convolution(c, qlinear_inputs); }, true},
    {"detent", "QLinearConv", 5, 10, layout_support::any, &infer_qlinear_conv,
     [](operator_context& c) { run_integer_convolution(c, qlinear_inputs); }, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_CONVOLUTION_HPP
