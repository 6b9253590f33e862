// SPDX-License-Identifier: BSD-3-Clause
// Multidirectional broadcasting: result shapes, and loops over the elements of up to three
// operands.
#ifndef DETENT_GRAPH_OPS_BROADCAST_HPP
#define DETENT_GRAPH_OPS_BROADCAST_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The smallest number of elements that is worth a thread of its own: `cheap_piece` for operators
/// that cost about as much as reading the memory, `kernel_piece` for those whose kernels take
/// several instructions for a vector, `costly_piece` for those that call into libm for each
/// element.
inline constexpr std::size_t cheap_piece = std::size_t{1} << 16;
inline constexpr std::size_t kernel_piece = std::size_t{1} << 14;
inline constexpr std::size_t costly_piece = std::size_t{1} << 11;

/// Calls body(begin, end) for consecutive pieces that make up [0, count), perhaps at the same time
/// on several threads. A piece has about `least` elements or more, if `count` is not smaller. The
/// body must not throw.
template <class Body>
void for_pieces(const operator_context& c, std::size_t count, std::size_t least, const Body& body) {
  const std::size_t pieces = (std::max)(count / (std::max)(least, std::size_t{1}), std::size_t{1});
  if (pieces == 1 || c.parallel == nullptr || !*c.parallel) {
    body(0, count);
    return;
  }
  const std::size_t size = (count + pieces - 1) / pieces;
  detent::detail::run_parallel(*c.parallel, pieces, [&](std::size_t i) {
    body((std::min)(i * size, count), (std::min)((i + 1) * size, count));
  });
}

/// The number of rows of `row` elements that make up `elements`, as for_pieces() takes it to divide
/// rows among threads.
[[nodiscard]] inline std::size_t rows_of(std::size_t elements, std::size_t row) {
  return elements / (std::max)(row, std::size_t{1});
}

/// The shape that `a` and `b` are broadcast to. Throws bad_file, naming both, if they cannot be
/// broadcast to one shape.
[[nodiscard]] inline shape broadcast_dims(const operator_context& c, const shape& a,
                                          const shape& b) {
  const shape& longer = a.size() >= b.size() ? a : b;
  const shape& shorter = a.size() >= b.size() ? b : a;
  shape dims = longer;
  const std::size_t skipped = longer.size() - shorter.size();
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    const std::int64_t l = longer[skipped + i];
    const std::int64_t s = shorter[i];
    c.require(l == s || l == 1 || s == 1, "shapes ", shown(a), " and ", shown(b),
              " cannot be broadcast");
    dims[skipped + i] = l == 1 ? s : l;
  }
  return dims;
}

/// Before opset 7, an attribute `axis` said with which axis of the first operand the first one of
/// the second operand goes. Throws unsupported if that is not where it goes since then, where the
/// last axes go together.
inline void require_aligned_last(const operator_context& c) {
  if (c.opset >= 7 || c.input_count() != 2 || c.n().get_int("broadcast", 0) == 0) {
    return;
  }
  const auto offset =
      static_cast<std::int64_t>(c.input(0).rank()) - static_cast<std::int64_t>(c.input(1).rank());
  const std::int64_t axis = c.n().get_int("axis", -1);
  c.require_supported(axis == -1 || axis == offset || c.input(1).count() == 1, "axis ", axis,
                      " for shapes ", shown(c.input(0).dims()), " and ", shown(c.input(1).dims()),
                      " in opset ", c.opset, "; since opset 7, the last axes go together");
}

/// An infer() for operators whose inputs have one common type and are broadcast to one shape, which
/// are the type and shape of the output.
inline void infer_broadcast(operator_context& c) {
  require_aligned_last(c);
  shape dims = c.input(0).dims();
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    c.require(c.input(i).type() == c.input(0).type(), "input ", i, " is ", shown(c.input(i).type()),
              ", input 0 is ", shown(c.input(0).type()));
    dims = broadcast_dims(c, dims, c.input(i).dims());
  }
  c.set_output(0, c.input(0).type(), std::move(dims));
}

/// How to walk through N operands at once: stretches ("runs") of `length` neighbouring elements of
/// the output, within which an operand either advances by one element or stays at the same one, and
/// outer dimensions that lead from one to the next.
template <std::size_t N>
struct broadcast_plan {
  std::size_t length = 1;
  std::array<std::size_t, N> step{};               // of each operand within a stretch: 0 or 1
  std::size_t runs = 1;                            // number of stretches: the product of outer
  std::vector<std::size_t> outer;                  // extents of outer dimensions, innermost first
  std::vector<std::array<std::size_t, N>> stride;  // of each operand along the outer dimensions
};

/// Merges neighbouring dimensions along which the same operands are broadcast. If each operand has
/// either the shape of the output or a single element, the plan thus becomes a single stretch, and
/// the order of elements does not matter. `out` must be the shape that all operands are broadcast
/// to, and must not be empty.
template <std::size_t N>
[[nodiscard]] broadcast_plan<N> plan_broadcast(const shape& out,
                                               const std::array<const shape*, N>& operands) {
  broadcast_plan<N> plan;
  std::array<std::size_t, N> passed;  // elements of an operand in the dimensions seen so far
  std::array<bool, N> fixed{};        // the operand is broadcast along the merged dimension
  passed.fill(1);
  bool any = false;
  for (std::size_t back = 1; back <= out.size(); ++back) {
    const auto extent = static_cast<std::size_t>(out[out.size() - back]);
    if (extent == 1) {
      continue;
    }
    std::array<bool, N> stays{};
    for (std::size_t k = 0; k < N; ++k) {
      const shape& dims = *operands[k];
      stays[k] = back > dims.size() || dims[dims.size() - back] == 1;
    }
    const bool merge = any && stays == fixed;
    if (!any) {
      plan.length = extent;
      for (std::size_t k = 0; k < N; ++k) {
        plan.step[k] = stays[k] ? 0 : 1;
      }
    } else if (merge && plan.outer.empty()) {
      plan.length *= extent;
    } else if (merge) {
      plan.outer.back() *= extent;
    } else {
      plan.outer.push_back(extent);
      plan.stride.push_back(passed);
      for (std::size_t k = 0; k < N; ++k) {
        plan.stride.back()[k] = stays[k] ? 0 : passed[k];
      }
    }
    for (std::size_t k = 0; k < N; ++k) {
      passed[k] *= stays[k] ? 1 : extent;
    }
    any = true;
    fixed = stays;
  }
  for (const std::size_t extent : plan.outer) {
    plan.runs *= extent;
  }
  return plan;
}

/// body(at, first, count) computes elements [first, first + count) of the output; operand k begins
/// at its element at[k]. It is passed as std::function, so that the loops around it are compiled
/// only once for each N.
template <std::size_t N>
using stretch_body =
    std::function<void(const std::array<std::size_t, N>& at, std::size_t first, std::size_t count)>;

/// Calls the body for the stretches number begin, ..., end - 1 of a plan.
template <std::size_t N>
void walk_runs(const broadcast_plan<N>& plan, std::size_t begin, std::size_t end,
               const stretch_body<N>& body) {
  std::vector<std::size_t> index(plan.outer.size());
  std::array<std::size_t, N> at{};
  std::size_t rest = begin;
  for (std::size_t d = 0; d < index.size(); ++d) {
    index[d] = rest % plan.outer[d];
    rest /= plan.outer[d];
    for (std::size_t k = 0; k < N; ++k) {
      at[k] += index[d] * plan.stride[d][k];
    }
  }
  for (std::size_t run = begin; run < end; ++run) {
    body(at, run * plan.length, plan.length);
    for (std::size_t d = 0; d < index.size(); ++d) {
      for (std::size_t k = 0; k < N; ++k) {
        at[k] += plan.stride[d][k];
      }
      if (++index[d] < plan.outer[d]) {
        break;
      }
      index[d] = 0;
      for (std::size_t k = 0; k < N; ++k) {
        at[k] -= plan.outer[d] * plan.stride[d][k];
      }
    }
  }
}

/// Calls the body for stretches that make up the whole output, perhaps on several threads. A plan
/// of a single stretch is divided. `least`: elements worth a thread, see for_pieces().
template <std::size_t N>
void for_stretches(const operator_context& c, const broadcast_plan<N>& plan, std::size_t least,
                   const stretch_body<N>& body) {
  if (plan.runs == 1) {
    for_pieces(c, plan.length, least, [&](std::size_t begin, std::size_t end) {
      std::array<std::size_t, N> at;
      for (std::size_t k = 0; k < N; ++k) {
        at[k] = begin * plan.step[k];
      }
      body(at, begin, end - begin);
    });
    return;
  }
  for_pieces(c, plan.runs, least / plan.length,
             [&](std::size_t begin, std::size_t end) { walk_runs(plan, begin, end, body); });
}

/// The elements of an operand and its shape. Neither is owned.
template <class T>
struct operand {
  const T* data;
  const shape* dims;
};
template <class T>
[[nodiscard]] operand<T> operand_of(const tensor& t) {
  return {t.data<T>().data(), &t.dims()};
}

/// Computes out[i] = f(a[i]) for all i, perhaps on several threads.
template <class F, class A, class R>
void map_elements(const operator_context& c, const F& f, std::span<const A> a, std::span<R> out,
                  std::size_t least) {
  for_pieces(c, out.size(), least, [&](std::size_t begin, std::size_t end) {
    const A* from = a.data();
    R* to = out.data();
    for (std::size_t i = begin; i < end; ++i) {
      to[i] = static_cast<R>(f(from[i]));
    }
  });
}

/// Computes a stretch of `count` elements from two operands with steps 0 or 1. For float the loops
/// of each combination of steps are written out, so that the compiler vectorizes them.
template <class F, class A, class B, class R>
void map_stretch(const F& f, const A* a, std::size_t step_a, const B* b, std::size_t step_b, R* out,
                 std::size_t count) {
  if constexpr (std::is_same_v<A, float> && std::is_same_v<B, float>) {
    if (step_a == 1 && step_b == 1) {
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = static_cast<R>(f(a[i], b[i]));
      }
      return;
    }
    if (step_a == 1) {
      const B y = *b;
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = static_cast<R>(f(a[i], y));
      }
      return;
    }
    if (step_b == 1) {
      const A x = *a;
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = static_cast<R>(f(x, b[i]));
      }
      return;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<R>(f(a[i * step_a], b[i * step_b]));
  }
}

/// Computes out = f(a, b) for two operands that are broadcast to `dims`. `out` may be the memory of
/// an operand of shape `dims`.
template <class F, class A, class B, class R>
void map_broadcast(const operator_context& c, const F& f, operand<A> a, operand<B> b,
                   std::span<R> out, const shape& dims, std::size_t least = cheap_piece) {
  if (out.empty()) {
    return;
  }
  const auto plan = plan_broadcast<2>(dims, {a.dims, b.dims});
  for_stretches<2>(c, plan, least,
                   [&](const std::array<std::size_t, 2>& at, std::size_t first, std::size_t count) {
                     map_stretch(f, a.data + at[0], plan.step[0], b.data + at[1], plan.step[1],
                                 out.data() + first, count);
                   });
}

/// Computes out = f(x, y, z) for three operands that are broadcast to `dims`. `out` may be the
/// memory of an operand of shape `dims`.
template <class F, class X, class Y, class Z, class R>
void map_broadcast(const operator_context& c, const F& f, operand<X> x, operand<Y> y, operand<Z> z,
                   std::span<R> out, const shape& dims, std::size_t least = cheap_piece) {
  if (out.empty()) {
    return;
  }
  const auto plan = plan_broadcast<3>(dims, {x.dims, y.dims, z.dims});
  for_stretches<3>(c, plan, least,
                   [&](const std::array<std::size_t, 3>& at, std::size_t first, std::size_t count) {
                     const X* px = x.data + at[0];
                     const Y* py = y.data + at[1];
                     const Z* pz = z.data + at[2];
                     R* to = out.data() + first;
                     for (std::size_t i = 0; i < count; ++i) {
                       to[i] = static_cast<R>(
                           f(px[i * plan.step[0]], py[i * plan.step[1]], pz[i * plan.step[2]]));
                     }
                   });
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_BROADCAST_HPP
