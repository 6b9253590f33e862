// SPDX-License-Identifier: BSD-3-Clause
// Operators that choose elements, or make patterns, by position: Compress, NonZero, OneHot, Trilu,
// EyeLike, ReverseSequence and CenterCropPad.
#ifndef DETENT_GRAPH_OPS_SELECTION_HPP
#define DETENT_GRAPH_OPS_SELECTION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/axis_view.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/inferred_result.hpp>
#include <detent/graph/ops/movement.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace selection {

// --- Compress ------------------------------------------------------------------------------------

/// The input of Compress seen as [outer, length, inner]; without an axis, as a single row.
[[nodiscard]] inline axis_view compress_view(const operator_context& c) {
  const shape& dims = c.input(0).dims();
  if (c.n().find("axis") == nullptr) {
    return {1, c.input(0).count(), 1};
  }
  return view_axis(dims, c.axis(c.n().get_int("axis", 0), dims.size()));
}

/// The indices that a Compress node keeps. A condition that is longer than the axis is cut off.
[[nodiscard]] inline movement::index_map kept_indices(const operator_context& c) {
  const std::span<const std::uint8_t> condition = c.input(1).data<std::uint8_t>();
  const std::size_t count = (std::min)(condition.size(), compress_view(c).length);
  movement::index_map kept(c.memory);
  for (std::size_t i = 0; i < count; ++i) {
    if (condition[i] != 0) {
      kept.push_back(i);
    }
  }
  return kept;
}

inline void infer_compress(operator_context& c) {
  const tensor& condition = c.input(1);
  c.require(condition.type() == element_type::boolean && condition.rank() == 1, "the condition is ",
            shown(condition.type()), " ", shown(condition.dims()), ", not a list of bool");
  require_known(condition);
  shape dims = c.input(0).dims();
  const auto count = static_cast<std::int64_t>(kept_indices(c).size());
  if (c.n().find("axis") == nullptr) {
    dims = {count};
  } else {
    dims[c.axis(c.n().get_int("axis", 0), dims.size())] = count;
  }
  c.set_output(0, c.input(0).type(), std::move(dims));
}

inline void run_compress(operator_context& c) {
  const tensor& in = c.input(0);
  tensor& out = c.make_output(0);
  if (out.bytes() == 0) {
    return;
  }
  const axis_view v = compress_view(c);
  movement::index_map every(v.outer, c.memory);
  for (std::size_t i = 0; i < v.outer; ++i) {
    every[i] = i;
  }
  movement::mapped_copy(element_size(in.type()) * v.inner,
                        {static_cast<std::int64_t>(v.outer), static_cast<std::int64_t>(v.length)},
                        {std::move(every), kept_indices(c)})
      .run(in.raw(), out.mutable_raw(), c.parallel);
}

// --- NonZero -------------------------------------------------------------------------------------

using positions = std::pmr::vector<std::size_t>;

/// Infers the output of NonZero, [rank, count]. A scalar counts as a list of one element.
inline void infer_non_zero(operator_context& c) {
  const tensor& x = c.input(0);
  require_known(x);
  positions found(c.memory);
  const bool known = visit_widest(x.type(), [&]<class T>() {
    const std::pmr::vector<T> values = load_all<T>(c, x);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != T{0}) {
        found.push_back(i);
      }
    }
  });
  c.require_supported(known, "no code for elements of type ", shown(x.type()));
  c.set_output(0, element_type::s64,
               {static_cast<std::int64_t>((std::max)(x.rank(), std::size_t{1})),
                static_cast<std::int64_t>(found.size())});
  keep_result(c, std::move(found));
}

inline void run_non_zero(operator_context& c) {
  const positions found = take_result<positions>(c);
  const shape& dims = c.input(0).dims();
  std::int64_t* out = c.make_output(0).mutable_data<std::int64_t>().data();
  for (std::size_t i = 0; i < found.size(); ++i) {
    std::size_t rest = found[i];
    if (dims.empty()) {
      out[i] = 0;
    }
    for (std::size_t d = dims.size(); d-- > 0;) {
      const auto dim = static_cast<std::size_t>(dims[d]);
      out[d * found.size() + i] = static_cast<std::int64_t>(rest % dim);
      rest /= dim;
    }
  }
}

// --- OneHot --------------------------------------------------------------------------------------

/// The number of classes of OneHot, a single number of any type.
[[nodiscard]] inline std::int64_t one_hot_depth(const operator_context& c) {
  const tensor& t = c.input(1);
  c.require(t.count() == 1 && t.rank() <= 1, "the depth has shape ", shown(t.dims()));
  require_known(t);
  std::int64_t depth = -1;
  const bool known = visit_widest(t.type(), [&]<class T>() {
    const T given = load_all<T>(c, t)[0];
    c.require(given == given, "the depth is NaN");
    depth = narrow<std::int64_t>(given);
  });
  c.require(known && depth >= 0, "the depth is ", depth);
  return depth;
}

/// The axis of OneHot's output along which the classes lie.
[[nodiscard]] inline std::size_t one_hot_axis(const operator_context& c) {
  return c.axis(c.n().get_int("axis", -1), c.input(0).rank() + 1);
}

inline void infer_one_hot(operator_context& c) {
  const tensor& values = c.input(2);
  c.require(values.count() == 2 && values.rank() == 1, "values of shape ", shown(values.dims()),
            ", not [2]");
  shape dims = c.input(0).dims();
  dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(one_hot_axis(c)), one_hot_depth(c));
  c.set_output(0, values.type(), std::move(dims));
}

/// Writes the `off` value everywhere and the `on` value at each index; indices outside
/// [-depth, depth) have no class.
inline void run_one_hot(operator_context& c) {
  const tensor& values = c.input(2);
  const std::size_t size = element_size(values.type());
  tensor& out = c.make_output(0);
  if (out.bytes() == 0) {
    return;
  }
  const axis_view v = view_axis(out.dims(), one_hot_axis(c));
  const auto depth = static_cast<std::int64_t>(v.length);
  std::pmr::vector<std::int64_t> indices(c.input(0).count(), c.memory);
  const bool known = visit_widest(c.input(0).type(), [&]<class T>() {
    const std::pmr::vector<T> wide = load_all<T>(c, c.input(0));
    std::transform(wide.begin(), wide.end(), indices.begin(),
                   [](T x) { return narrow<std::int64_t>(x); });
  });
  c.require_supported(known, "no code for indices of type ", shown(c.input(0).type()));
  fill_elements(out.mutable_raw(), out.count(), values.raw(), size);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < -depth || indices[i] >= depth) {
      continue;
    }
    const auto at = static_cast<std::size_t>(indices[i] < 0 ? indices[i] + depth : indices[i]);
    std::memcpy(out.mutable_raw() + ((i / v.inner * v.length + at) * v.inner + i % v.inner) * size,
                values.raw() + size, size);
  }
}

// --- Trilu and EyeLike ---------------------------------------------------------------------------

/// The number of Trilu's diagonal: 0 is the main one, positive ones are above it.
[[nodiscard]] inline std::int64_t diagonal(const operator_context& c) {
  const std::vector<std::int64_t> k = c.integers(1);
  c.require(!c.has_input(1) || k.size() == 1, "k has ", k.size(), " values, not one");
  return k.empty() ? 0 : k[0];
}

inline void infer_trilu(operator_context& c) {
  c.require(c.input(0).rank() >= 2, "a tensor of shape ", shown(c.input(0).dims()),
            " holds no matrices");
  infer_like_input(c);
}

/// Keeps the elements above the diagonal (column - row >= k), or those below it
/// (column - row <= k) if the attribute upper is 0, and writes zeros elsewhere.
inline void run_trilu(operator_context& c) {
  const tensor& in = c.input(0);
  const std::size_t size = element_size(in.type());
  const bool upper = c.n().get_int("upper", 1) != 0;
  const std::int64_t k = diagonal(c);
  tensor& out = c.make_output(0);
  if (out.bytes() == 0) {
    return;
  }
  const std::int64_t rows = in.dim(in.rank() - 2);
  const std::int64_t columns = in.dims().back();
  // With k in [-rows, columns], sums of it and an index do not overflow.
  const std::int64_t near = std::clamp(k, -rows, columns);
  for (std::size_t row = 0; row < in.count() / static_cast<std::size_t>(columns); ++row) {
    const auto i = static_cast<std::int64_t>(row) % rows;
    const std::int64_t edge = std::clamp<std::int64_t>(i + near + (upper ? 0 : 1), 0, columns);
    const std::size_t start = row * static_cast<std::size_t>(columns) * size;
    const std::size_t middle = static_cast<std::size_t>(edge) * size;
    const std::size_t end = static_cast<std::size_t>(columns) * size;
    const std::size_t first = upper ? middle : 0;
    const std::size_t last = upper ? end : middle;
    std::memset(out.mutable_raw() + start, 0, end);
    std::memcpy(out.mutable_raw() + start + first, in.raw() + start + first, last - first);
  }
}

inline void infer_eye_like(operator_context& c) {
  const tensor& in = c.input(0);
  c.require(in.rank() == 2, "a tensor of shape ", shown(in.dims()), " is no matrix");
  const std::int64_t declared = c.n().get_int("dtype", static_cast<std::int64_t>(in.type()));
  c.require(declared > 0 && declared <= std::numeric_limits<std::int32_t>::max(), "dtype is ",
            declared);
  const auto type = static_cast<element_type>(declared);
  c.require_supported(element_size(type) != 0, "no code for elements of type ", shown(type));
  c.set_output(0, type, in.dims());
}

inline void run_eye_like(operator_context& c) {
  tensor& out = c.make_output(0);
  if (out.count() == 0) {
    return;
  }
  std::memset(out.mutable_raw(), 0, out.bytes());
  const std::int64_t rows = out.dim(0);
  const std::int64_t columns = out.dim(1);
  const std::int64_t k = std::clamp(c.n().get_int("k", 0), -rows, columns);
  const std::int64_t one[] = {1};
  for (std::int64_t i = (std::max)(std::int64_t{0}, -k); i < rows && i + k < columns; ++i) {
    store(std::span<const std::int64_t>(one), out, static_cast<std::size_t>(i * columns + i + k));
  }
}

// --- ReverseSequence -----------------------------------------------------------------------------

/// The axes of ReverseSequence: one of them is 0 and the other 1.
struct sequence_axes {
  std::size_t batch;
  std::size_t time;
};
[[nodiscard]] inline sequence_axes read_sequence_axes(const operator_context& c) {
  const shape& dims = c.input(0).dims();
  c.require(dims.size() >= 2, "a tensor of shape ", shown(dims), " holds no sequences");
  const std::size_t batch = c.axis(c.n().get_int("batch_axis", 1), dims.size());
  const std::size_t time = c.axis(c.n().get_int("time_axis", 0), dims.size());
  c.require(batch + time == 1, "batch_axis ", batch, " and time_axis ", time, " are not 0 and 1");
  return {batch, time};
}

inline void infer_reverse_sequence(operator_context& c) {
  const sequence_axes axes = read_sequence_axes(c);
  const tensor& lengths = c.input(1);
  c.require(lengths.type() == element_type::s64 && lengths.rank() == 1 &&
                lengths.dim(0) == c.input(0).dim(axes.batch),
            "sequence_lens are ", shown(lengths.type()), " ", shown(lengths.dims()),
            " for a tensor of shape ", shown(c.input(0).dims()));
  infer_like_input(c);
}

inline void run_reverse_sequence(operator_context& c) {
  const tensor& in = c.input(0);
  const sequence_axes axes = read_sequence_axes(c);
  tensor& out = c.make_output(0);
  if (out.bytes() == 0) {
    return;
  }
  const std::span<const std::int64_t> lengths = c.input(1).data<std::int64_t>();
  const auto times = static_cast<std::size_t>(in.dim(axes.time));
  const std::size_t bytes = product(in.dims(), 2, in.rank()) * element_size(in.type());
  const std::size_t batch_step = axes.batch == 0 ? times : 1;
  const std::size_t time_step = axes.time == 0 ? lengths.size() : 1;
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    c.require(lengths[b] >= 0 && lengths[b] <= in.dim(axes.time), "a sequence of ", lengths[b],
              " elements where there are ", times);
    const auto length = static_cast<std::size_t>(lengths[b]);
    for (std::size_t t = 0; t < times; ++t) {
      const std::size_t from = t < length ? length - 1 - t : t;
      std::memcpy(out.mutable_raw() + (b * batch_step + t * time_step) * bytes,
                  in.raw() + (b * batch_step + from * time_step) * bytes, bytes);
    }
  }
}

// --- CenterCropPad -------------------------------------------------------------------------------

inline void infer_center_crop_pad(operator_context& c) {
  shape dims = c.input(0).dims();
  static_cast<void>(c.input(1));
  const std::vector<std::int64_t> asked = c.integers(1);
  const bool has_axes = c.n().find("axes") != nullptr;
  const std::vector<std::size_t> axes =
      listed_axes(c, has_axes ? std::optional(c.n().get_ints("axes")) : std::nullopt, asked.size(),
                  dims.size());
  c.require(has_axes || asked.size() == dims.size(), asked.size(), " sizes for a tensor of shape ",
            shown(dims));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    dims[axes[i]] = asked[i];
  }
  c.set_output(0, c.input(0).type(), std::move(dims));
}

/// Copies the centre of the input to the centre of the output. Where an odd number of elements is
/// cut off or added, one more lies at the end.
inline void run_center_crop_pad(operator_context& c) {
  const tensor& in = c.input(0);
  tensor& out = c.make_output(0);
  if (out.bytes() == 0) {
    return;
  }
  std::memset(out.mutable_raw(), 0, out.bytes());
  if (in.count() == 0) {
    return;
  }
  const std::vector<std::ptrdiff_t> in_steps = row_major_steps(in.dims());
  const std::vector<std::ptrdiff_t> out_steps = row_major_steps(out.dims());
  std::ptrdiff_t from = 0;
  std::ptrdiff_t to = 0;
  std::vector<copy_loop> loops;
  for (std::size_t i = 0; i < in.rank(); ++i) {
    const std::int64_t added = out.dim(i) - in.dim(i);
    (added < 0 ? from : to) += (added < 0 ? -added / 2 * in_steps[i] : added / 2 * out_steps[i]);
    loops.push_back(
        {static_cast<std::size_t>((std::min)(in.dim(i), out.dim(i))), in_steps[i], out_steps[i]});
  }
  const std::size_t size = element_size(in.type());
  copy_elements(in.raw() + static_cast<std::size_t>(from) * size,
                out.mutable_raw() + static_cast<std::size_t>(to) * size, size, std::move(loops),
                c.parallel);
}

}  // namespace selection

inline constexpr operator_definition selection_operators[] = {
    {"", "Compress", 2, 2, layout_support::plain, selection::infer_compress,
     selection::run_compress},
    {"", "NonZero", 1, 1, layout_support::plain, selection::infer_non_zero,
     selection::run_non_zero},
    {"", "OneHot", 3, 3, layout_support::plain, selection::infer_one_hot, selection::run_one_hot},
    {"", "Trilu", 1, 2, layout_support::plain, selection::infer_trilu, selection::run_trilu, true},
    {"", "EyeLike", 1, 1, layout_support::plain, selection::infer_eye_like, selection::run_eye_like,
     true},
    {"", "ReverseSequence", 2, 2, layout_support::plain, selection::infer_reverse_sequence,
     selection::run_reverse_sequence, true},
    {"", "CenterCropPad", 2, 2, layout_support::plain, selection::infer_center_crop_pad,
     selection::run_center_crop_pad},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_SELECTION_HPP
