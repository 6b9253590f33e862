// SPDX-License-Identifier: BSD-3-Clause
// The gradients of operators that move elements: each element of the gradient goes the way back.
//
// Those that are frequent and simple have functions of their own. For the others the operator
// itself tells the way: it runs on tensors whose elements are numbers.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_MOVEMENT_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_MOVEMENT_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/gather.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/movement.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/scatter.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// The gradient of operators that change only the shape or the type, such as Reshape and Cast: D,
/// element for element.
inline void same_elements(const gradient_context& c) {
  const std::span<const double> d = c.output_gradient();
  if (c.overwrites) {
    return;
  }
  for (std::size_t i = 0; c.wants(0) && i < d.size(); ++i) {
    c.gradient(0)[i] += d[i];
  }
}

/// The gradient of Transpose: D, transposed by the inverse permutation.
inline void transpose(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  const std::vector<std::size_t> order = ops::movement::permutation(c.forward);
  std::vector<std::size_t> inverse(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    inverse[order[i]] = i;
  }
  const std::span<const double> d = c.output_gradient();
  std::vector<double> moved(d.size());
  ops::transpose_bytes(reinterpret_cast<const std::byte*>(d.data()),
                       reinterpret_cast<std::byte*>(moved.data()), sizeof(double),
                       c.output().dims(), inverse);
  for (std::size_t i = 0; i < moved.size(); ++i) {
    c.gradient(0)[i] += moved[i];
  }
}

/// Calls each(i, part, whole) for part i of a tensor that is divided along an axis: element `part`
/// of it is element `whole` of the tensor. `whole_dims` is the shape of the tensor, extent(i) that
/// of part i along the axis.
template <class Extent, class Each>
void for_each_part(const shape& whole_dims, std::size_t axis, std::size_t parts,
                   const Extent& extent, const Each& each) {
  const std::size_t outer = ops::product(whole_dims, 0, axis);
  const std::size_t inner = ops::product(whole_dims, axis + 1, whole_dims.size());
  const std::size_t row = static_cast<std::size_t>(whole_dims[axis]) * inner;
  std::size_t before = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t length = extent(i) * inner;
    for (std::size_t o = 0; o < outer; ++o) {
      for (std::size_t k = 0; k < length; ++k) {
        each(i, o * length + k, o * row + before + k);
      }
    }
    before += length;
  }
}

/// The gradient of Concat: each input gets its part of D.
inline void concat(const gradient_context& c) {
  const std::size_t axis = c.forward.axis(c.n().get_int("axis", 0), c.output().rank());
  for_each_part(
      c.output().dims(), axis, c.forward.input_count(),
      [&](std::size_t i) { return static_cast<std::size_t>(c.input(i).dim(axis)); },
      [&](std::size_t i, std::size_t part, std::size_t whole) {
        if (c.wants(i)) {
          c.gradient(i)[part] += c.output_gradient()[whole];
        }
      });
}

/// The gradient of Split: the gradients of all outputs, joined.
inline void split(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  const shape& dims = c.input(0).dims();
  const std::size_t axis = c.forward.axis(c.n().get_int("axis", 0), dims.size());
  const std::vector<std::int64_t> lengths = ops::movement::split_lengths(c.forward, dims[axis]);
  for_each_part(
      dims, axis, lengths.size(),
      [&](std::size_t i) { return static_cast<std::size_t>(lengths[i]); },
      [&](std::size_t i, std::size_t part, std::size_t whole) {
        if (!c.output_gradient(i).empty()) {
          c.gradient(0)[whole] += c.output_gradient(i)[part];
        }
      });
}

/// The gradient of Gather: each row of D is added to the row that was taken.
inline void gather(const gradient_context& c) {
  if (!c.wants(0) || c.output().count() == 0) {
    return;
  }
  const tensor& in = c.input(0);
  const std::size_t axis = c.forward.axis(c.n().get_int("axis", 0), in.rank());
  const std::size_t outer = ops::product(in.dims(), 0, axis);
  const std::size_t inner = ops::product(in.dims(), axis + 1, in.rank());
  const auto indices = ops::load_all<std::int64_t>(c.forward, c.input(1));
  const double* from = c.output_gradient().data();
  for (std::size_t o = 0; o < outer; ++o) {
    for (const std::int64_t index : indices) {
      const std::size_t row = o * static_cast<std::size_t>(in.dim(axis)) +
                              ops::movement::checked_index(c.forward, index, in.dim(axis));
      double* to = c.gradient(0).data() + row * inner;
      for (std::size_t i = 0; i < inner; ++i) {
        to[i] += from[i];
      }
      from += inner;
    }
  }
}

// --- the way that the operator tells -------------------------------------------------------------

/// Applies an operator to inputs under a node, in the surroundings of the context, and returns its
/// outputs with their elements in the order of their dimensions.
[[nodiscard]] inline std::vector<tensor> run_again(const gradient_context& c,
                                                   const operator_definition& definition,
                                                   const node& n, std::span<const tensor> inputs) {
  std::unique_ptr<operator_state> state;
  operator_context again;
  again.current = &n;
  again.opset = c.forward.opset;
  again.inputs = inputs;
  again.state = &state;
  again.parallel = c.forward.parallel;
  again.allocate = allocate_from_heap;
  again.outputs.resize(n.outputs.size());
  definition.infer(again);
  definition.run(again);
  std::vector<tensor> plain;
  for (const tensor& t : again.outputs) {
    plain.push_back(to_plain(t));
  }
  return plain;
}

/// The tensor with its elements replaced by the numbers next, next + 1, ... as int64; advances
/// `next` behind them.
[[nodiscard]] inline tensor numbered(const tensor& t, std::int64_t& next) {
  tensor numbers = tensor::allocate(element_type::s64, t.dims());
  for (std::int64_t& number : numbers.mutable_data<std::int64_t>()) {
    number = next++;
  }
  return numbers;
}

/// The gradient of operators whose output consists of elements of their inputs `moved` and of zeros
/// or other constants. The operator runs on inputs whose elements are numbered from 1 on; the
/// numbers in its output tell where each element of D goes, and 0 that it goes nowhere. An element
/// that was taken several times gets the sum, in the order of the output.
inline void moved_elements(const gradient_context& c, std::span<const std::size_t> moved) {
  std::vector<tensor> inputs(c.forward.inputs.begin(), c.forward.inputs.end());
  std::vector<std::int64_t> first(inputs.size(), 0);  // the number of the first element
  std::int64_t next = 1;
  for (const std::size_t i : moved) {
    if (i < inputs.size() && inputs[i].defined()) {
      first[i] = next;
      inputs[i] = numbered(inputs[i], next);
    }
  }
  // What some operators write where there is no element must not be a number.
  node n = c.n();
  n.attributes.erase("value");
  n.attributes.erase("extrapolation_value");
  n.outputs.resize(1);
  const tensor numbers = run_again(c, *c.definition, n, inputs)[0];
  const auto from = numbers.data<std::int64_t>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t source = 0;
    for (const std::size_t k : moved) {
      source = k < first.size() && first[k] > 0 && first[k] <= from[i] ? k : source;
    }
    if (from[i] > 0 && c.wants(source)) {
      c.gradient(source)[static_cast<std::size_t>(from[i] - first[source])] +=
          c.output_gradient()[i];
    }
  }
}

/// The gradient of an operator that moves elements of the inputs Moved, in ascending order.
template <std::size_t... Moved>
void movement(const gradient_context& c) {
  constexpr std::size_t moved[] = {Moved...};
  moved_elements(c, moved);
}

// --- scattering and sorting ----------------------------------------------------------------------

/// True for a node of a scattering operator that replaces elements or adds to them.
[[nodiscard]] inline bool replaces_or_adds(const node& n) {
  const std::string reduction = n.get_string("reduction", "none");
  return reduction == "none" || reduction == "add";
}

/// The gradient of Scatter, ScatterElements and ScatterND. If updates replace elements, D goes to
/// what is in the output. If they are added, D goes to the data, and to each update from its place.
inline void scatter(const gradient_context& c) {
  if (ops::scattering::read_reduction(c.forward) == ops::scattering::reduction::none) {
    movement<0, 2>(c);
    return;
  }
  same_elements(c);
  if (!c.wants(2)) {
    return;
  }
  // The places of the updates are those that a gathering operator with the same indices takes.
  std::int64_t next = 0;
  const tensor inputs[] = {numbered(c.input(0), next), c.input(1)};
  const operator_definition& gathering = ops::gather_operators[c.n().is("ScatterND") ? 2 : 1];
  const tensor places = run_again(c, gathering, c.n(), inputs)[0];
  const auto from = places.data<std::int64_t>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    c.gradient(2)[i] += c.output_gradient()[static_cast<std::size_t>(from[i])];
  }
}

/// The gradient of TopK for the values: D goes to the elements that were chosen.
inline void top_k(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  node n = c.n();
  n.outputs = {"values", "indices"};
  const tensor chosen = run_again(c, *c.definition, n, c.forward.inputs)[1];
  const auto indices = chosen.data<std::int64_t>();
  const std::size_t axis = c.forward.axis(c.n().get_int("axis", -1), c.input(0).rank());
  const std::size_t inner = ops::product(c.output().dims(), axis + 1, c.output().rank());
  const auto kept = static_cast<std::size_t>(c.output().dim(axis));
  const auto length = static_cast<std::size_t>(c.input(0).dim(axis));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t row = i / (kept * inner) * length + static_cast<std::size_t>(indices[i]);
    c.gradient(0)[row * inner + i % inner] += c.output_gradient()[i];
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_MOVEMENT_HPP
