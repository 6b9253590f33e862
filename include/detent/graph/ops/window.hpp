// SPDX-License-Identifier: BSD-3-Clause
// Reads the attributes that convolutions and pools share: kernel_shape, strides, dilations, pads
// and auto_pad.
#ifndef DETENT_GRAPH_OPS_WINDOW_HPP
#define DETENT_GRAPH_OPS_WINDOW_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <detent/config.hpp>
#include <detent/convolution.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The largest number of spatial axes that pools take.
inline constexpr std::size_t most_pooled_axes = 3;

/// The window along each spatial axis, as the attributes of the node give it, with the padding that
/// auto_pad stands for.
struct window_attributes {
  shape kernel, strides, dilations, pads_begin, pads_end;

  [[nodiscard]] std::size_t rank() const noexcept { return kernel.size(); }
  /// The number of elements along axis i from the first to the last that the window covers.
  [[nodiscard]] std::int64_t reach(std::size_t i) const {
    return dilations[i] * (kernel[i] - 1) + 1;
  }
};

/// A list attribute of `count` values from `lowest` to 2^28; if it is absent, all are `otherwise`.
/// Throws bad_file, naming the node, for other numbers or values.
inline shape axis_list(const operator_context& c, std::string_view key, std::size_t count,
                       std::int64_t otherwise, std::int64_t lowest) {
  shape values = c.n().get_ints(key);
  if (values.empty()) {
    values.assign(count, otherwise);
  }
  c.require(values.size() == count, key, " has ", values.size(), " values, not ", count);
  constexpr std::int64_t highest = std::int64_t{1}
                                   << 28;  // products with dimensions stay below 2^63
  for (const std::int64_t v : values) {
    c.require(v >= lowest && v <= highest, key, " holds ", v);
  }
  return values;
}

/// Reads the attributes of a node for an input of shape [batch, channel, spatial ...]. `kernel` is
/// the spatial shape of the weights, with which kernel_shape must agree and which takes its place
/// if the attribute is absent; if `kernel` is empty, the attribute is required.
inline window_attributes read_window(const operator_context& c, const shape& dims,
                                     const shape& kernel) {
  c.require(dims.size() >= 3, "input of rank ", dims.size(), " has no spatial axes");
  const std::size_t rank = dims.size() - 2;
  window_attributes w;
  w.kernel = c.n().get_ints("kernel_shape");
  w.kernel = w.kernel.empty() ? kernel : axis_list(c, "kernel_shape", rank, 1, 1);
  c.require(w.kernel.size() == rank, "kernel of rank ", w.kernel.size(), " for ", rank,
            " spatial axes");
  c.require(kernel.empty() || kernel == w.kernel, "kernel_shape ", shown(w.kernel),
            " differs from that of the weights ", shown(kernel));
  for (const std::int64_t k : w.kernel) {
    c.require(k >= 1, "kernel ", shown(w.kernel));
  }
  w.strides = axis_list(c, "strides", rank, 1, 1);
  w.dilations = axis_list(c, "dilations", rank, 1, 1);
  const shape pads = axis_list(c, "pads", 2 * rank, 0, 0);
  w.pads_begin.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(rank));
  w.pads_end.assign(pads.begin() + static_cast<std::ptrdiff_t>(rank), pads.end());

  const std::string automatic = c.n().get_string("auto_pad", "NOTSET");
  c.require(automatic == "NOTSET" || automatic == "VALID" || automatic == "SAME_UPPER" ||
                automatic == "SAME_LOWER",
            "auto_pad '", automatic, "'");
  if (automatic == "NOTSET" || automatic.empty()) {
    return w;
  }
  for (std::size_t i = 0; i < rank; ++i) {
    std::int64_t total = 0;
    if (automatic != "VALID") {
      const std::int64_t out = (dims[i + 2] + w.strides[i] - 1) / w.strides[i];
      total = (std::max)(std::int64_t{0}, (out - 1) * w.strides[i] + w.reach(i) - dims[i + 2]);
    }
    const std::int64_t smaller = total / 2;
    w.pads_begin[i] = automatic == "SAME_LOWER" ? total - smaller : smaller;
    w.pads_end[i] = total - w.pads_begin[i];
  }
  return w;
}

/// The extent of the output along spatial axis i for an input of extent `in`. Throws bad_file,
/// naming the node, if the window does not fit even once; in ceil mode it may reach beyond the
/// padding by less than a stride.
inline std::int64_t output_extent(const operator_context& c, const window_attributes& w,
                                  std::size_t i, std::int64_t in, bool ceil_mode) {
  const std::int64_t padded = in + w.pads_begin[i] + w.pads_end[i];
  const std::int64_t room = padded - w.reach(i);
  c.require(room >= 0 || (ceil_mode && room > -w.strides[i]), "the window reaches over ",
            w.reach(i), " elements, axis ", i + 2, " has ", padded, " with padding");
  std::int64_t out = (ceil_mode ? room + w.strides[i] - 1 : room) / w.strides[i] + 1;
  // A window that starts in the padding behind the input is dropped.
  if (ceil_mode && (out - 1) * w.strides[i] >= in + w.pads_begin[i]) {
    --out;
  }
  return out;
}

/// The window as the numeric part takes it, for one or two spatial axes; a single axis becomes
/// the width, with height 1. Throws unsupported, naming the node, for more.
inline window to_window(const operator_context& c, const window_attributes& w, const shape& dims) {
  c.require_supported(w.rank() <= 2, "no code for ", w.rank(), " spatial axes");
  const std::size_t last = w.rank() - 1;
  const auto size = [](std::int64_t v) { return static_cast<std::size_t>(v); };
  window out;
  out.batch = size(dims[0]);
  out.in_width = size(dims[last + 2]);
  out.stride_width = size(w.strides[last]);
  out.dilation_width = size(w.dilations[last]);
  out.pad_left = size(w.pads_begin[last]);
  out.pad_right = size(w.pads_end[last]);
  if (w.rank() == 2) {
    out.in_height = size(dims[2]);
    out.stride_height = size(w.strides[0]);
    out.dilation_height = size(w.dilations[0]);
    out.pad_top = size(w.pads_begin[0]);
    out.pad_bottom = size(w.pads_end[0]);
  }
  return out;
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_WINDOW_HPP
