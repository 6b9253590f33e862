// SPDX-License-Identifier: BSD-3-Clause
// Operators that move elements of any type without looking at them: Transpose, Concat, Split,
// Slice, Pad, Tile, SpaceToDepth and DepthToSpace; and helpers for all operators that change
// shapes.
#ifndef DETENT_GRAPH_OPS_MOVEMENT_HPP
#define DETENT_GRAPH_OPS_MOVEMENT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {

// ---- helpers of the families that change shapes

/// A list of integers that is an input since opset `since` and an attribute before. Nothing if the
/// node does not have it. Throws bad_file, naming the node, if it is given in the form of other
/// opsets, because ignoring it would compute something else, or if an input has more than `most`
/// elements.
[[nodiscard]] inline std::optional<std::vector<std::int64_t>> attribute_or_input(
    const operator_context& c, std::string_view attribute_name, std::size_t input,
    std::int64_t since, std::size_t most = 2 * max_tensor_rank) {
  if (c.opset >= since) {
    c.require(c.n().find(attribute_name) == nullptr, "attribute ", attribute_name,
              " became an input in opset ", since, "; this is opset ", c.opset);
    return c.has_input(input) ? std::optional(c.integers(input, most)) : std::nullopt;
  }
  c.require(!c.has_input(input), "input ", input, " is an attribute (", attribute_name,
            ") before opset ", since, "; this is opset ", c.opset);
  const attribute* a = c.n().find(attribute_name);
  if (a == nullptr) {
    return std::nullopt;
  }
  c.require(a->kind == attribute::kind_type::ints, "attribute ", attribute_name,
            " is not a list of integers");
  return a->ints;
}

/// a + b and a * b of sizes >= 0. Dimensions of an empty tensor may be so large that the result
/// would overflow; then they throw bad_file, naming the node.
[[nodiscard]] inline std::int64_t add_sizes(const operator_context& c, std::int64_t a,
                                            std::int64_t b) {
  c.require(a <= (std::numeric_limits<std::int64_t>::max)() - b, "dimension ", a, " + ", b,
            " is too large");
  return a + b;
}
[[nodiscard]] inline std::int64_t multiply_sizes(const operator_context& c, std::int64_t a,
                                                 std::int64_t b) {
  c.require(a == 0 || b <= (std::numeric_limits<std::int64_t>::max)() / a, "dimension ", a, " * ",
            b, " is too large");
  return a * b;
}

/// A list of `rank` flags in which the given axes are set. Throws bad_file, naming the node, if an
/// axis occurs twice or is out of range.
[[nodiscard]] inline std::vector<bool> axis_set(const operator_context& c,
                                                const std::vector<std::int64_t>& axes,
                                                std::size_t rank) {
  std::vector<bool> marked(rank, false);
  for (const std::int64_t a : axes) {
    const std::size_t axis = c.axis(a, rank);
    c.require(!marked[axis], "axis ", a, " is there twice");
    marked[axis] = true;
  }
  return marked;
}

/// The axes to which the entries of a list of `count` values belong: the given ones, or else the
/// first `count` axes.
[[nodiscard]] inline std::vector<std::size_t> listed_axes(
    const operator_context& c, const std::optional<std::vector<std::int64_t>>& given,
    std::size_t count, std::size_t rank) {
  c.require(count <= rank, count, " axes of a tensor of rank ", rank);
  std::vector<std::size_t> axes(count);
  if (!given) {
    for (std::size_t i = 0; i < count; ++i) {
      axes[i] = i;
    }
    return axes;
  }
  c.require(given->size() == count, given->size(), " axes for ", count, " values");
  static_cast<void>(axis_set(c, *given, rank));
  std::transform(given->begin(), given->end(), axes.begin(),
                 [&](std::int64_t a) { return c.axis(a, rank); });
  return axes;
}

namespace movement {

// ---- Transpose

/// For each axis of Transpose's output, the axis of the input.
[[nodiscard]] inline std::vector<std::size_t> permutation(const operator_context& c) {
  const std::size_t rank = c.input(0).rank();
  const attribute* given = c.n().find("perm");
  std::vector<std::size_t> p(rank);
  if (given == nullptr) {
    for (std::size_t i = 0; i < rank; ++i) {
      p[i] = rank - 1 - i;
    }
    return p;
  }
  const std::vector<std::int64_t> axes = c.n().get_ints("perm");
  c.require(axes.size() == rank, "perm has ", axes.size(), " axes for a tensor of rank ", rank);
  static_cast<void>(axis_set(c, axes, rank));
  std::transform(axes.begin(), axes.end(), p.begin(),
                 [&](std::int64_t a) { return c.axis(a, rank); });
  return p;
}
inline void infer_transpose(operator_context& c) {
  shape dims;
  for (const std::size_t from : permutation(c)) {
    dims.push_back(c.input(0).dim(from));
  }
  c.set_output(0, c.input(0).type(), std::move(dims));
}
inline void run_transpose(operator_context& c) {
  const tensor& in = c.input(0);
  shape stored = in.dims();
  std::vector<std::size_t> from = permutation(c);
  if (in.channels_last()) {
    // The position of each dimension in storage: the channel comes after the spatial dimensions. A
    // node that itself goes to channels-last order, as detectors do before they reshape, then moves
    // nothing.
    std::rotate(stored.begin() + 1, stored.begin() + 2, stored.end());
    for (std::size_t& d : from) {
      d = d == 0 ? 0 : d == 1 ? stored.size() - 1 : d - 1;
    }
  }
  if (std::is_sorted(from.begin(), from.end())) {
    c.share_output(0, in);
    return;
  }
  std::byte* out = c.make_output(0).mutable_raw();
  transpose_bytes(in.raw(), out, element_size(in.type()), stored, from, c.parallel);
}

// ---- Concat and Split

/// Whether a concatenation of the inputs `first`, `first` + `step`, ... is done in channels-last
/// order: more of their elements are stored in it than in the order of dimensions.
[[nodiscard]] inline bool is_channels_last_concat(const operator_context& c, std::size_t first = 0,
                                                  std::size_t step = 1) {
  std::size_t last = 0;
  std::size_t plain = 0;
  for (std::size_t i = first; i < c.input_count(); i += step) {
    (c.inputs[i].channels_last() ? last : plain) += c.inputs[i].count();
  }
  return last > plain;
}

/// An axis of a tensor that has elements, where they are stored: `outer` rows of `row` elements, of
/// which each has the whole axis.
struct stored_axis {
  std::size_t outer, row;

  stored_axis(const tensor& t, std::size_t axis) {
    shape stored = t.dims();
    std::size_t place = axis;
    if (t.channels_last()) {
      std::rotate(stored.begin() + 1, stored.begin() + 2, stored.end());
      place = axis == 0 ? 0 : axis == 1 ? stored.size() - 1 : axis - 1;
    }
    outer = product(stored, 0, place);
    row = t.count() / outer;
  }
};

inline void infer_concat(operator_context& c) {
  const tensor& first = c.input(0);
  c.require(c.n().find("axis") != nullptr, "no attribute axis");
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), first.rank());
  shape dims = first.dims();
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    const tensor& in = c.input(i);
    c.require(in.type() == first.type(), "input ", i, " is ", name(in.type()), ", input 0 is ",
              name(first.type()));
    shape like_first = in.dims();
    if (axis < like_first.size()) {
      like_first[axis] = first.dim(axis);
      dims[axis] = add_sizes(c, dims[axis], in.dim(axis));
    }
    c.require(like_first == first.dims(), "inputs 0 and ", i, " of shapes ", shown(first.dims()),
              " and ", shown(in.dims()), " do not fit on axis ", axis);
  }
  c.set_output(0, first.type(), std::move(dims));
  c.outputs[0].set_channels_last(is_channels_last_concat(c));
}
inline void run_concat(operator_context& c) {
  if (c.input_count() == 1) {
    c.share_output(0, c.input(0));
    return;
  }
  tensor& out = c.make_output(0);
  if (out.count() == 0) {
    return;
  }
  const bool channels_last = out.channels_last();
  const stored_axis at(out, c.axis(c.n().get_int("axis", 0), out.rank()));
  std::byte* to = out.mutable_raw();
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    const tensor in =
        channels_last ? to_channels_last(c.input(i), c.allocate) : to_plain(c.input(i), c.allocate);
    const std::size_t row = in.count() / at.outer;
    copy_elements(
        in.raw(), to, element_size(in.type()),
        {{at.outer, static_cast<std::ptrdiff_t>(row), static_cast<std::ptrdiff_t>(at.row)},
         {row, 1, 1}},
        c.parallel);
    to += row * element_size(in.type());
  }
}

/// The lengths of Split's outputs along its axis, which has extent `dim`.
[[nodiscard]] inline std::vector<std::int64_t> split_lengths(const operator_context& c,
                                                             std::int64_t dim) {
  const auto given = attribute_or_input(c, "split", 1, 13, c.n().outputs.size());
  const auto parts = static_cast<std::int64_t>(c.n().outputs.size());
  const std::string what = "split of dimension " + std::to_string(dim);
  c.require(parts > 0, "no outputs");
  if (given) {
    c.require(given->size() == c.n().outputs.size(), what, " into lengths ", shown(*given), " for ",
              parts, " outputs");
    std::int64_t sum = 0;
    for (const std::int64_t length : *given) {
      c.require(length >= 0, what, " into lengths ", shown(*given));
      sum = add_sizes(c, sum, length);
    }
    c.require(sum == dim, what, " into lengths ", shown(*given));
    return *given;
  }
  if (c.opset < 18) {
    c.require(dim % parts == 0, what, " into ", parts, " equal parts");
  } else {
    c.require(c.n().get_int("num_outputs", parts) == parts, "num_outputs is ",
              c.n().get_int("num_outputs", parts), ", there are ", parts, " outputs");
  }
  const std::int64_t length = dim / parts + (dim % parts != 0 ? 1 : 0);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(parts), length);
  // length <= dim, so that it has not overflown. length * (parts - 1) must not exceed dim; as that
  // product might overflow, quotients are compared.
  c.require(length == 0 || parts - 1 <= dim / length, what, " into ", parts, " parts of ", length);
  lengths.back() = dim - length * (parts - 1);
  return lengths;
}
inline void infer_split(operator_context& c) {
  const tensor& in = c.input(0);
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), in.rank());
  const std::vector<std::int64_t> lengths = split_lengths(c, in.dim(axis));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    shape dims = in.dims();
    dims[axis] = lengths[i];
    c.set_output(i, in.type(), std::move(dims));
  }
}
inline void run_split(operator_context& c) {
  const tensor& in = c.input(0);
  const std::size_t size = element_size(in.type());
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), in.rank());
  const std::size_t outer = in.count() == 0 ? 1 : product(in.dims(), 0, axis);
  const std::size_t in_row = in.count() / outer;
  const std::byte* from = in.raw();
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    const std::size_t row = c.outputs[i].count() / outer;
    if (c.has_output(i)) {
      copy_elements(from, c.make_output(i).mutable_raw(), size,
                    {{outer, static_cast<std::ptrdiff_t>(in_row), static_cast<std::ptrdiff_t>(row)},
                     {row, 1, 1}},
                    c.parallel);
    }
    from += row * size;
  }
}

// ---- Slice

/// The part of an axis that Slice keeps: `count` elements first, first + step, ...
struct axis_slice {
  std::int64_t first;
  std::int64_t step;
  std::int64_t count;
};

/// The slice that start, end and step describe on an axis of extent `dim`, clamped as ONNX says.
[[nodiscard]] inline axis_slice clamp_slice(std::int64_t dim, std::int64_t start, std::int64_t end,
                                            std::int64_t step) {
  const auto from_end = [dim](std::int64_t i) { return i < 0 ? i + dim : i; };
  const std::int64_t last =
      step > 0 ? dim : dim - 1;  // the largest index that start and end are clamped to
  start = std::clamp<std::int64_t>(from_end(start), 0, (std::max<std::int64_t>)(last, 0));
  end = std::clamp<std::int64_t>(from_end(end), step > 0 ? 0 : -1,
                                 (std::max<std::int64_t>)(last, -1));
  const std::int64_t distance = step > 0 ? end - start : start - end;
  if (dim == 0 || distance <= 0) {
    return {0, 1, 0};
  }
  // |step| is taken as unsigned: the smallest integer has no positive counterpart.
  const auto signed_step = static_cast<std::uint64_t>(step);
  const std::uint64_t size = step > 0 ? signed_step : 0 - signed_step;
  const auto count =
      static_cast<std::int64_t>((static_cast<std::uint64_t>(distance) - 1) / size + 1);
  return {start, count == 1 ? 1 : step, count};
}

/// The end of a slice of opset 10, where INT_MAX (or the largest int64) stands for the end of the
/// dimension in either direction. In later opsets the largest integer does so forwards and the
/// smallest one backwards, which clamping takes care of.
[[nodiscard]] inline std::int64_t end_in_opset_10(std::int64_t end, std::int64_t step) {
  const bool to_the_end = end == (std::numeric_limits<std::int32_t>::max)() ||
                          end == (std::numeric_limits<std::int64_t>::max)();
  return step < 0 && to_the_end ? (std::numeric_limits<std::int64_t>::min)() : end;
}

[[nodiscard]] inline std::vector<axis_slice> slices(const operator_context& c) {
  const shape& dims = c.input(0).dims();
  const auto starts = attribute_or_input(c, "starts", 1, 10);
  const auto ends = attribute_or_input(c, "ends", 2, 10);
  const auto axes = attribute_or_input(c, "axes", 3, 10);
  c.require(starts.has_value() && ends.has_value(), "no starts or no ends");
  c.require(starts->size() == ends->size(), starts->size(), " starts and ", ends->size(), " ends");
  std::vector<std::int64_t> steps(starts->size(), 1);
  if (c.has_input(4)) {
    c.require(c.opset >= 10, "steps before opset 10");
    steps = c.integers(4);
    c.require(steps.size() == starts->size(), starts->size(), " starts and ", steps.size(),
              " steps");
  }
  std::vector<axis_slice> result;
  for (const std::int64_t dim : dims) {
    result.push_back({0, 1, dim});
  }
  const std::vector<std::size_t> listed = listed_axes(c, axes, starts->size(), dims.size());
  for (std::size_t i = 0; i < listed.size(); ++i) {
    c.require(steps[i] != 0, "step of axis ", listed[i], " is 0");
    const std::int64_t end = c.opset == 10 ? end_in_opset_10((*ends)[i], steps[i]) : (*ends)[i];
    result[listed[i]] = clamp_slice(dims[listed[i]], (*starts)[i], end, steps[i]);
  }
  return result;
}
inline void infer_slice(operator_context& c) {
  shape dims;
  for (const axis_slice& s : slices(c)) {
    dims.push_back(s.count);
  }
  c.set_output(0, c.input(0).type(), std::move(dims));
}
inline void run_slice(operator_context& c) {
  const tensor& in = c.input(0);
  const std::vector<axis_slice> parts = slices(c);
  const bool all = std::all_of(parts.begin(), parts.end(), [](auto& s) { return s.step == 1; });
  if (all && c.outputs.at(0).dims() == in.dims()) {
    c.share_output(0, in);
    return;
  }
  tensor& out = c.make_output(0);
  if (out.count() == 0) {
    return;
  }
  const std::vector<std::ptrdiff_t> in_steps = row_major_steps(in.dims());
  const std::vector<std::ptrdiff_t> out_steps = row_major_steps(out.dims());
  std::ptrdiff_t first = 0;
  std::vector<copy_loop> loops;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    first += parts[i].first * in_steps[i];
    loops.push_back(
        {static_cast<std::size_t>(parts[i].count), parts[i].step * in_steps[i], out_steps[i]});
  }
  const std::size_t size = element_size(in.type());
  copy_elements(in.raw() + static_cast<std::size_t>(first) * size, out.mutable_raw(), size,
                std::move(loops), c.parallel);
}

// ---- Pad

/// What Pad does to one axis: it cuts off `skip` elements in front, keeps `kept` elements, and adds
/// `before` elements in front and `after` elements behind. Negative pads cut off.
struct axis_padding {
  std::int64_t before;
  std::int64_t skip;
  std::int64_t kept;
  std::int64_t after;
};

enum class pad_mode : std::uint8_t { constant, edge, reflect, wrap };
[[nodiscard]] inline pad_mode padding_mode(const operator_context& c) {
  const std::string mode = c.n().get_string("mode", "constant");
  if (mode == "edge") {
    return pad_mode::edge;
  }
  if (mode == "reflect") {
    return pad_mode::reflect;
  }
  if (mode == "wrap") {
    return pad_mode::wrap;
  }
  c.require(mode == "constant", "pad mode ", mode);
  return pad_mode::constant;
}

[[nodiscard]] inline axis_padding pad_axis(const operator_context& c, std::int64_t dim,
                                           std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t limit = std::int64_t{1} << 40;
  c.require(begin >= -dim && end >= -dim && begin <= limit && end <= limit, "pads ", begin, " and ",
            end, " of a dimension of ", dim);
  axis_padding p{};
  p.before = (std::max<std::int64_t>)(begin, 0);
  p.after = (std::max<std::int64_t>)(end, 0);
  p.skip = p.before - begin;
  p.kept = dim - p.skip - (p.after - end);
  c.require(p.kept >= 0, "pads ", begin, " and ", end, " of a dimension of ", dim);
  return p;
}

[[nodiscard]] inline std::vector<axis_padding> paddings(const operator_context& c) {
  const shape& dims = c.input(0).dims();
  const auto pads = attribute_or_input(c, "pads", 1, 11);
  c.require(pads.has_value() && pads->size() % 2 == 0, "no pads, or an odd number of them");
  c.require(!c.has_input(2) || c.opset >= 11, "constant_value is an input before opset 11");
  c.require(!c.has_input(3) || c.opset >= 18, "axes before opset 18");
  std::optional<std::vector<std::int64_t>> axes;
  if (c.has_input(3)) {
    axes = c.integers(3);
  }
  const std::size_t count = pads->size() / 2;
  c.require(axes.has_value() || count == dims.size(), pads->size(), " pads for a tensor of rank ",
            dims.size());
  std::vector<axis_padding> result;
  for (const std::int64_t dim : dims) {
    result.push_back({0, 0, dim, 0});
  }
  const std::vector<std::size_t> listed = listed_axes(c, axes, count, dims.size());
  for (std::size_t i = 0; i < count; ++i) {
    result[listed[i]] = pad_axis(c, dims[listed[i]], (*pads)[i], (*pads)[count + i]);
  }
  return result;
}

inline void infer_pad(operator_context& c) {
  const tensor& in = c.input(0);
  const bool constant = padding_mode(c) == pad_mode::constant;
  shape dims;
  for (const axis_padding& p : paddings(c)) {
    const std::int64_t added = p.before + p.after;
    c.require(constant || added == 0 || p.kept > 0, "nothing to repeat in a dimension of 0");
    dims.push_back(add_sizes(c, p.kept, added));
  }
  if (c.has_input(2)) {
    const tensor& value = c.input(2);
    c.require(value.type() == in.type() && value.count() == 1, "constant_value of ",
              name(value.type()), " ", shown(value.dims()), " for a tensor of ", name(in.type()));
  }
  c.set_output(0, in.type(), std::move(dims));
}

/// The bytes of the element that Pad adds in mode "constant".
[[nodiscard]] inline element<8> pad_value(const operator_context& c) {
  element<8> value{};
  const element_type type = c.input(0).type();
  if (c.has_input(2)) {
    std::memcpy(value.bytes, c.input(2).raw(), element_size(type));
  } else if (const float v = c.opset < 11 ? c.n().get_float("value", 0.0F) : 0.0F; v != 0.0F) {
    switch (type) {
      case element_type::f32:
        store(value.bytes, v);
        break;
      case element_type::f64:
        store(value.bytes, static_cast<double>(v));
        break;
      case element_type::f16:
        store(value.bytes, round_to<float16>(v));
        break;
      default:
        c.require_supported(false, "no code to pad ", name(type), " with attribute value ", v);
    }
  }
  return value;
}

/// The index in the kept part of an axis of the element that Pad repeats at index i. Both count
/// from the beginning of the kept part; i is negative in front of it.
[[nodiscard]] inline std::int64_t repeated_index(pad_mode mode, std::int64_t i, std::int64_t kept) {
  if (mode == pad_mode::edge) {
    return std::clamp<std::int64_t>(i, 0, kept - 1);
  }
  const std::int64_t period =
      mode == pad_mode::wrap ? kept : (std::max<std::int64_t>)(2 * (kept - 1), 1);
  const std::int64_t phase = (i % period + period) % period;
  return phase < kept ? phase : period - phase;
}

inline void run_pad_constant(operator_context& c, const std::vector<axis_padding>& pads) {
  const tensor& in = c.input(0);
  tensor& out = c.make_output(0);
  const std::size_t size = element_size(in.type());
  const element<8> value = pad_value(c);
  fill_elements(out.mutable_raw(), out.count(), value.bytes, size);
  if (out.count() == 0 || in.count() == 0) {
    return;
  }
  const std::vector<std::ptrdiff_t> in_steps = row_major_steps(in.dims());
  const std::vector<std::ptrdiff_t> out_steps = row_major_steps(out.dims());
  std::ptrdiff_t from = 0;
  std::ptrdiff_t to = 0;
  std::vector<copy_loop> loops;
  for (std::size_t i = 0; i < pads.size(); ++i) {
    if (pads[i].kept == 0) {
      return;
    }
    from += pads[i].skip * in_steps[i];
    to += pads[i].before * out_steps[i];
    loops.push_back({static_cast<std::size_t>(pads[i].kept), in_steps[i], out_steps[i]});
  }
  copy_elements(in.raw() + static_cast<std::size_t>(from) * size,
                out.mutable_raw() + static_cast<std::size_t>(to) * size, size, std::move(loops),
                c.parallel);
}
inline void run_pad(operator_context& c) {
  const std::vector<axis_padding> pads = paddings(c);
  const pad_mode mode = padding_mode(c);
  if (mode == pad_mode::constant) {
    run_pad_constant(c, pads);
    return;
  }
  const tensor& in = c.input(0);
  tensor& out = c.make_output(0);
  if (out.count() == 0) {
    return;
  }
  std::vector<index_map> maps;
  for (const axis_padding& p : pads) {
    index_map map(c.memory);
    map.reserve(static_cast<std::size_t>(p.before + p.kept + p.after));
    for (std::int64_t i = -p.before; i < p.kept + p.after; ++i) {
      map.push_back(static_cast<std::size_t>(p.skip + repeated_index(mode, i, p.kept)));
    }
    maps.push_back(std::move(map));
  }
  mapped_copy(element_size(in.type()), in.dims(), std::move(maps))
      .run(in.raw(), out.mutable_raw(), c.parallel);
}

// ---- Tile

inline void infer_tile(operator_context& c) {
  const tensor& in = c.input(0);
  static_cast<void>(c.input(1));
  const std::vector<std::int64_t> repeats = c.integers(1);
  c.require(repeats.size() == in.rank(), repeats.size(), " repeats for a tensor of rank ",
            in.rank());
  shape dims = in.dims();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    c.require(repeats[i] >= 0, "repeats ", shown(repeats));
    dims[i] = multiply_sizes(c, dims[i], repeats[i]);
  }
  c.set_output(0, in.type(), std::move(dims));
}
inline void run_tile(operator_context& c) {
  const tensor& in = c.input(0);
  tensor& out = c.make_output(0);
  if (out.count() == 0) {
    return;
  }
  const std::vector<std::ptrdiff_t> in_steps = row_major_steps(in.dims());
  const std::vector<std::ptrdiff_t> out_steps = row_major_steps(out.dims());
  std::vector<copy_loop> loops;
  for (std::size_t i = 0; i < in.rank(); ++i) {
    loops.push_back(
        {static_cast<std::size_t>(out.dim(i) / in.dim(i)), 0, out_steps[i] * in.dim(i)});
    loops.push_back({static_cast<std::size_t>(in.dim(i)), in_steps[i], out_steps[i]});
  }
  copy_elements(in.raw(), out.mutable_raw(), element_size(in.type()), std::move(loops), c.parallel);
}

// ---- SpaceToDepth and DepthToSpace

[[nodiscard]] inline std::int64_t block_size(const operator_context& c) {
  const std::int64_t block = c.n().get_int("blocksize", 0);
  c.require(c.input(0).rank() == 4, "a tensor of shape ", shown(c.input(0).dims()),
            " where [N,C,H,W] is needed");
  c.require(block >= 1 && block <= 1 << 20, "blocksize ", block);
  return block;
}
/// True if the channel is the outer part of the index of deep channels (mode CRD), false if it is
/// the inner part (mode DCR). `since`: the opset that added the attribute; before, the mode is DCR.
[[nodiscard]] inline bool column_row_depth(const operator_context& c, std::int64_t since) {
  const std::string mode = c.opset >= since ? c.n().get_string("mode", "DCR") : "DCR";
  c.require(mode == "DCR" || mode == "CRD", "mode ", mode);
  return mode == "CRD";
}
[[nodiscard]] inline bool space_to_depth_crd(const operator_context& c) {
  return column_row_depth(c, 28);
}
[[nodiscard]] inline bool depth_to_space_crd(const operator_context& c) {
  return column_row_depth(c, 11);
}

inline void infer_space_to_depth(operator_context& c) {
  const std::int64_t b = block_size(c);
  static_cast<void>(space_to_depth_crd(c));
  const shape& in = c.input(0).dims();
  c.require(in[2] % b == 0 && in[3] % b == 0, "blocksize ", b, " for shape ", shown(in));
  c.set_output(0, c.input(0).type(),
               {in[0], multiply_sizes(c, in[1], b * b), in[2] / b, in[3] / b});
}
inline void run_space_to_depth(operator_context& c) {
  const tensor& in = c.input(0);
  const std::int64_t b = block_size(c);
  const shape split = {in.dim(0), in.dim(1), in.dim(2) / b, b, in.dim(3) / b, b};
  constexpr std::size_t to_crd[] = {0, 1, 3, 5, 2, 4};
  constexpr std::size_t to_dcr[] = {0, 3, 5, 1, 2, 4};
  std::byte* out = c.make_output(0).mutable_raw();
  transpose_bytes(in.raw(), out, element_size(in.type()), split,
                  space_to_depth_crd(c) ? to_crd : to_dcr, c.parallel);
}

inline void infer_depth_to_space(operator_context& c) {
  const std::int64_t b = block_size(c);
  static_cast<void>(depth_to_space_crd(c));
  const shape& in = c.input(0).dims();
  c.require(in[1] % (b * b) == 0, "blocksize ", b, " for shape ", shown(in));
  c.set_output(0, c.input(0).type(),
               {in[0], in[1] / (b * b), multiply_sizes(c, in[2], b), multiply_sizes(c, in[3], b)});
}
inline void run_depth_to_space(operator_context& c) {
  const tensor& in = c.input(0);
  const std::int64_t b = block_size(c);
  const std::int64_t channels = in.dim(1) / (b * b);
  const bool crd = depth_to_space_crd(c);
  const shape split = crd ? shape{in.dim(0), channels, b, b, in.dim(2), in.dim(3)}
                          : shape{in.dim(0), b, b, channels, in.dim(2), in.dim(3)};
  constexpr std::size_t from_crd[] = {0, 1, 4, 2, 5, 3};
  constexpr std::size_t from_dcr[] = {0, 3, 4, 1, 5, 2};
  std::byte* out = c.make_output(0).mutable_raw();
  transpose_bytes(in.raw(), out, element_size(in.type()), split, crd ? from_crd : from_dcr,
                  c.parallel);
}

}  // namespace movement

inline constexpr operator_definition movement_operators[] = {
    {"", "Transpose", 1, 1, layout_support::any, movement::infer_transpose, movement::run_transpose,
     true},
    {"", "Concat", 1, any_number, layout_support::any, movement::infer_concat, movement::run_concat,
     true},
    {"", "Split", 1, 2, layout_support::plain, movement::infer_split, movement::run_split},
    {"", "Slice", 1, 5, layout_support::plain, movement::infer_slice, movement::run_slice},
    {"", "Pad", 1, 4, layout_support::plain, movement::infer_pad, movement::run_pad},
    {"", "Tile", 2, 2, layout_support::plain, movement::infer_tile, movement::run_tile},
    {"", "SpaceToDepth", 1, 1, layout_support::plain, movement::infer_space_to_depth,
     movement::run_space_to_depth, true},
    {"", "DepthToSpace", 1, 1, layout_support::plain, movement::infer_depth_to_space,
     movement::run_depth_to_space, true},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_MOVEMENT_HPP
