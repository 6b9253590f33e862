// SPDX-License-Identifier: BSD-3-Clause
// Scatter, ScatterElements, ScatterND and TensorScatter: operators that write updates to given
// places of a copy of their first input.
#ifndef DETENT_GRAPH_OPS_SCATTER_HPP
#define DETENT_GRAPH_OPS_SCATTER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/elementwise.hpp>
#include <detent/graph/ops/gather.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace scattering {

/// How an update is combined with the element in its place.
enum class reduction : std::uint8_t { none, add, mul, max, min };

/// The reduction of a node; the attribute exists since opset 16. Throws bad_file for an unknown
/// one.
[[nodiscard]] inline reduction read_reduction(const operator_context& c) {
  const std::string name = c.opset >= 16 ? c.n().get_string("reduction", "none") : "none";
  constexpr const char* names[] = {"none", "add", "mul", "max", "min"};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (name == names[i]) {
      return static_cast<reduction>(i);
    }
  }
  c.require(false, "reduction '", name, "'");
  return reduction::none;
}

/// Combines `count` elements of type bool with their updates: sums and maxima are true if one of
/// both is, products and minima if both are.
inline void combine_bools(reduction how, std::byte* to, const std::byte* from, std::size_t count) {
  const bool needs_both = how == reduction::mul || how == reduction::min;
  for (std::size_t i = 0; i < count; ++i) {
    const bool a = to[i] != std::byte{0};
    const bool b = from[i] != std::byte{0};
    to[i] = std::byte{needs_both ? a && b : a || b};
  }
}

/// Calls combine(to, from, count), which combines `count` neighbouring elements with their updates.
/// The pointers of combine() are to bytes of elements.
template <class Scatter>
void with_combination(const operator_context& c, element_type type, const Scatter& scatter) {
  const reduction how = read_reduction(c);
  if (how == reduction::none) {
    scatter([size = element_size(type)](std::byte* to, const std::byte* from, std::size_t count) {
      std::memcpy(to, from, count * size);
    });
    return;
  }
  if (type == element_type::boolean) {
    scatter([how](std::byte* to, const std::byte* from, std::size_t count) {
      combine_bools(how, to, from, count);
    });
    return;
  }
  for_type(c, number_types{}, type, [&]<class T>() {
    const auto combining = [&scatter](const auto& f) {
      scatter([&f](std::byte* to, const std::byte* from, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
          std::byte* at = to + i * sizeof(T);
          movement::store(at, static_cast<T>(f(movement::load<T>(at),
                                               movement::load<T>(from + i * sizeof(T)))));
        }
      });
    };
    switch (how) {
      case reduction::none:
        break;
      case reduction::add:
        combining(binary::add{});
        break;
      case reduction::mul:
        combining(binary::mul{});
        break;
      case reduction::max:
        combining(binary::max{});
        break;
      case reduction::min:
        combining(binary::min{});
        break;
    }
  });
}

inline void require_updates(const operator_context& c, std::size_t input) {
  c.require(c.input(input).type() == c.input(0).type(), "updates are ",
            shown(c.input(input).type()), ", the data ", shown(c.input(0).type()));
}

/// Makes output 0 a copy of input 0 and returns its bytes.
inline std::byte* copy_data(operator_context& c) {
  const tensor& in = c.input(0);
  tensor& out = c.make_output(0);
  if (out.bytes() > 0) {
    std::memcpy(out.mutable_raw(), in.raw(), out.bytes());
  }
  return out.mutable_raw();
}

// --- ScatterElements -----------------------------------------------------------------------------

inline void infer_scatter_elements(operator_context& c) {
  const tensor& in = c.input(0);
  const shape& indices = c.input(1).dims();
  movement::require_indices(c);
  require_updates(c, 2);
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), in.rank());
  bool fits = indices.size() == in.rank() && c.input(2).dims() == indices;
  for (std::size_t i = 0; fits && i < indices.size(); ++i) {
    fits = i == axis || indices[i] <= in.dim(i);
  }
  c.require(fits, "indices of shape ", shown(indices), " and updates of shape ",
            shown(c.input(2).dims()), " for a tensor of shape ", shown(in.dims()), " on axis ",
            axis);
  static_cast<void>(read_reduction(c));
  infer_like_input(c);
}

inline void run_scatter_elements(operator_context& c) {
  const tensor& in = c.input(0);
  const tensor& updates = c.input(2);
  const std::size_t size = element_size(in.type());
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), in.rank());
  const std::pmr::vector<std::int64_t> indices = load_all<std::int64_t>(c, c.input(1));
  std::byte* out = copy_data(c);
  if (indices.empty() || size == 0) {
    return;
  }
  c.require(in.count() > 0, "index ", indices[0], " in a dimension of 0");
  c.count_multiply_adds({indices.size()});
  const std::vector<std::ptrdiff_t> steps = row_major_steps(in.dims());
  with_combination(c, in.type(), [&](const auto& combine) {
    std::vector<std::int64_t> at(in.rank(), 0);
    std::size_t base = 0;  // offset of index `at` in the output, without the part of the axis
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::size_t to = base + movement::checked_index(c, indices[i], in.dim(axis)) *
                                        static_cast<std::size_t>(steps[axis]);
      combine(out + to * size, updates.raw() + i * size, 1);
      for (std::size_t d = in.rank(); d-- > 0;) {
        const std::size_t step = d == axis ? 0 : static_cast<std::size_t>(steps[d]);
        base += step;
        if (++at[d] < updates.dim(d)) {
          break;
        }
        base -= step * static_cast<std::size_t>(at[d]);
        at[d] = 0;
      }
    }
  });
}

// --- ScatterND -----------------------------------------------------------------------------------

/// The number of dimensions that each index of ScatterND addresses. With 0, each update is for the
/// whole tensor.
[[nodiscard]] inline std::size_t index_depth(const operator_context& c) {
  const shape& in = c.input(0).dims();
  const shape& indices = c.input(1).dims();
  c.require(!in.empty() && !indices.empty(), "a scalar has no elements to replace");
  const std::int64_t depth = indices.back();
  c.require(depth >= 0 && depth <= static_cast<std::int64_t>(in.size()), "indices of ", depth,
            " numbers for a tensor of shape ", shown(in));
  return static_cast<std::size_t>(depth);
}

inline void infer_scatter_nd(operator_context& c) {
  const shape& in = c.input(0).dims();
  const shape& indices = c.input(1).dims();
  movement::require_indices(c);
  require_updates(c, 2);
  shape expected(indices.begin(), indices.end() - (indices.empty() ? 0 : 1));
  expected.insert(expected.end(), in.begin() + static_cast<std::ptrdiff_t>(index_depth(c)),
                  in.end());
  c.require(c.input(2).dims() == expected, "updates of shape ", shown(c.input(2).dims()),
            ", expected ", shown(expected));
  static_cast<void>(read_reduction(c));
  infer_like_input(c);
}

inline void run_scatter_nd(operator_context& c) {
  const tensor& in = c.input(0);
  const tensor& updates = c.input(2);
  const std::size_t depth = index_depth(c);
  const std::pmr::vector<std::int64_t> indices = load_all<std::int64_t>(c, c.input(1));
  std::byte* out = copy_data(c);
  const std::size_t inner = product(in.dims(), depth, in.rank());
  const std::size_t bytes = inner * element_size(in.type());
  // Where there is nothing to write, indices are still checked.
  const std::size_t tuples = bytes > 0   ? updates.count() / inner
                             : depth > 0 ? indices.size() / depth
                                         : 0;
  c.count_multiply_adds({updates.count()});
  c.count_multiply_adds({indices.size()});
  with_combination(c, in.type(), [&](const auto& combine) {
    for (std::size_t i = 0; i < tuples; ++i) {
      std::size_t row = 0;
      for (std::size_t k = 0; k < depth; ++k) {
        const std::int64_t dim = in.dim(k);
        row = row * static_cast<std::size_t>(dim) +
              movement::checked_index(c, indices[i * depth + k], dim);
      }
      if (bytes > 0) {
        combine(out + row * bytes, updates.raw() + i * bytes, inner);
      }
    }
  });
}

// --- TensorScatter -------------------------------------------------------------------------------

[[nodiscard]] inline std::size_t sequence_axis(const operator_context& c) {
  const std::size_t axis = c.axis(c.n().get_int("axis", -2), c.input(0).rank());
  c.require(axis != 0, "the axis is that of the batch");
  return axis;
}

[[nodiscard]] inline bool is_circular(const operator_context& c) {
  const std::string mode = c.n().get_string("mode", "linear");
  c.require(mode == "linear" || mode == "circular", "mode '", mode, "'");
  return mode == "circular";
}

inline void infer_tensor_scatter(operator_context& c) {
  const shape& in = c.input(0).dims();
  const std::size_t axis = sequence_axis(c);
  require_updates(c, 1);
  static_cast<void>(is_circular(c));
  shape expected = c.input(1).dims();
  const bool fits = expected.size() == in.size() && expected[axis] <= in[axis];
  if (fits) {
    expected[axis] = in[axis];
  }
  c.require(fits && expected == in, "an update of shape ", shown(c.input(1).dims()),
            " for a tensor of shape ", shown(in), " on axis ", axis);
  if (c.has_input(2)) {
    c.require(c.inputs[2].type() == element_type::s64 && c.inputs[2].dims() == shape{in[0]},
              "write_indices are ", shown(c.inputs[2].type()), " ", shown(c.inputs[2].dims()),
              ", not int64 with ", in[0], " values");
  }
  infer_like_input(c);
}

inline void run_tensor_scatter(operator_context& c) {
  const tensor& in = c.input(0);
  const tensor& update = c.input(1);
  const std::size_t axis = sequence_axis(c);
  const bool circular = is_circular(c);
  const std::vector<std::int64_t> first =
      c.integers(2, in.rank() == 0 ? 0 : static_cast<std::size_t>(in.dim(0)));
  std::byte* out = copy_data(c);
  if (update.bytes() == 0) {
    return;
  }
  const auto batch = static_cast<std::size_t>(in.dim(0));
  const std::size_t heads = product(in.dims(), 1, axis);
  const auto length = static_cast<std::size_t>(in.dim(axis));
  const auto added = static_cast<std::size_t>(update.dim(axis));
  const std::size_t row = product(in.dims(), axis + 1, in.rank()) * element_size(in.type());
  for (std::size_t b = 0; b < batch; ++b) {
    const std::int64_t begin = first.empty() ? 0 : first[b];
    c.require(begin >= 0 && begin < in.dim(axis) &&
                  (circular || begin <= in.dim(axis) - update.dim(axis)),
              "write index ", begin, " for ", added, " of ", length, " places");
    for (std::size_t h = b * heads; h < (b + 1) * heads; ++h) {
      for (std::size_t i = 0; i < added; ++i) {
        const std::size_t place = (static_cast<std::size_t>(begin) + i) % length;
        std::memcpy(out + (h * length + place) * row, update.raw() + (h * added + i) * row, row);
      }
    }
  }
}

}  // namespace scattering

inline constexpr operator_definition scatter_operators[] = {
    {"", "Scatter", 3, 3, layout_support::plain, scattering::infer_scatter_elements,
     scattering::run_scatter_elements},
    {"", "ScatterElements", 3, 3, layout_support::plain, scattering::infer_scatter_elements,
     scattering::run_scatter_elements},
    {"", "ScatterND", 3, 3, layout_support::plain, scattering::infer_scatter_nd,
     scattering::run_scatter_nd},
    {"", "TensorScatter", 2, 3, layout_support::plain, scattering::infer_tensor_scatter,
     scattering::run_tensor_scatter},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_SCATTER_HPP
