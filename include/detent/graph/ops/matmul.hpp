// SPDX-License-Identifier: BSD-3-Clause
// Gemm, MatMul, MatMulInteger, QLinearMatMul, and detent's own forms.
//
// Those of the domain "detent" are never written to files. detent.Gemm adds the attributes `lower`
// and `upper` (a fused clamp); detent.MatMul, whose right side is a constant matrix, has them, too,
// and an input 2 (a fused Add). detent.QLinearGemm is QLinearMatMul with a two-dimensional constant
// right side, the attributes `transB`, `qmin` and `qmax`, an int32 bias as ninth input, and float
// output if the output scale is absent, to which a float bias, the tenth input, is added.
// com.microsoft.QGemm is here too.
#ifndef DETENT_GRAPH_OPS_MATMUL_HPP
#define DETENT_GRAPH_OPS_MATMUL_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/computed_floats.hpp>
#include <detent/graph/ops/float_inputs.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The shape of a product of stacks of matrices, as numpy.matmul defines it.
struct matmul_shape {
  std::size_t m = 1, n = 1, k = 1;
  shape lhs, rhs;  // the stacks of matrices, both of the rank of the longer one
  shape out;

  matmul_shape(const operator_context& c, shape a, shape b) {
    c.require(!a.empty() && !b.empty(), "a product needs operands of rank 1 or more");
    const bool row = a.size() == 1;
    const bool column = b.size() == 1;
    if (row) {
      a.insert(a.begin(), 1);
    }
    if (column) {
      b.push_back(1);
    }
    const std::int64_t lhs_k = a.back();
    const std::int64_t rhs_k = b[b.size() - 2];
    c.require(lhs_k == rhs_k, "K is ", lhs_k, " on the left, ", rhs_k, " on the right");
    m = static_cast<std::size_t>(a[a.size() - 2]);
    n = static_cast<std::size_t>(b.back());
    k = static_cast<std::size_t>(lhs_k);
    const std::size_t rank = (std::max)(a.size(), b.size()) - 2;
    lhs.assign(a.begin(), a.end() - 2);
    rhs.assign(b.begin(), b.end() - 2);
    lhs.insert(lhs.begin(), rank - lhs.size(), 1);
    rhs.insert(rhs.begin(), rank - rhs.size(), 1);
    for (std::size_t i = 0; i < rank; ++i) {
      c.require(lhs[i] == rhs[i] || lhs[i] == 1 || rhs[i] == 1, "stacks of ", shown(lhs), " and ",
                shown(rhs), " matrices do not broadcast");
      out.push_back(extent(i));
    }
    if (!row) {
      out.push_back(a[a.size() - 2]);
    }
    if (!column) {
      out.push_back(b.back());
    }
  }

  /// The number of matrices of the result.
  [[nodiscard]] std::size_t count() const noexcept {
    std::size_t matrices = 1;
    for (std::size_t i = 0; i < lhs.size(); ++i) {
      matrices *= static_cast<std::size_t>(extent(i));
    }
    return matrices;
  }

  /// The indices of the left and of the right matrix whose product is matrix `index` of the result.
  [[nodiscard]] std::pair<std::size_t, std::size_t> factors_of(std::size_t index) const noexcept {
    std::pair<std::size_t, std::size_t> factors{0, 0};
    std::size_t lhs_step = 1;
    std::size_t rhs_step = 1;
    for (std::size_t i = lhs.size(); i-- > 0;) {
      const auto length = static_cast<std::size_t>(extent(i));
      const std::size_t at = index % length;
      index /= length;
      // An operand with one matrix along an axis has that matrix for the whole axis.
      factors.first += lhs[i] == 1 ? 0 : at * lhs_step;
      factors.second += rhs[i] == 1 ? 0 : at * rhs_step;
      lhs_step *= static_cast<std::size_t>(lhs[i]);
      rhs_step *= static_cast<std::size_t>(rhs[i]);
    }
    return factors;
  }

  /// True if all left matrices are multiplied by the same right matrix, so that the stack is one
  /// product with more rows.
  [[nodiscard]] bool stacked_rows() const noexcept {
    return std::all_of(rhs.begin(), rhs.end(), [](std::int64_t d) { return d == 1; });
  }

 private:
  [[nodiscard]] std::int64_t extent(std::size_t i) const noexcept {
    return lhs[i] == 1 ? rhs[i] : lhs[i];
  }
};

inline void infer_matmul(operator_context& c) {
  c.set_output(0, c.input(0).type(), matmul_shape(c, c.input(0).dims(), c.input(1).dims()).out);
}

/// Calls product(lhs, rhs, out, rows, index) for the products [first, last) of the stack. `index`
/// is that of the right matrix.
template <class A, class B, class C, class Product>
void for_products(const matmul_shape& s, const A* a, const B* b, C* out, std::size_t first,
                  std::size_t last, const Product& product) {
  for (std::size_t i = first; i < last; ++i) {
    const auto [lhs, rhs] = s.factors_of(i);
    product(a + lhs * s.m * s.k, b + rhs * s.k * s.n, out + i * s.m * s.n, s.m, rhs);
  }
}

/// for_products() of the whole stack, or one call with all rows if s.stacked_rows().
template <class A, class B, class C, class Product>
void for_each_product(const matmul_shape& s, const A* a, const B* b, C* out,
                      const Product& product) {
  if (s.stacked_rows()) {
    product(a, b, out, s.m * s.count(), std::size_t{0});
  } else {
    for_products(s, a, b, out, 0, s.count(), product);
  }
}

/// The number of tasks into which the matrices of a stack of floats are shared out, a multiple of
/// four; 1 if threads share the rows of each, because there are few matrices or they are large.
[[nodiscard]] inline std::size_t tasks_of_stack(const matmul_shape& s,
                                                const parallel_for& parallel) {
  constexpr std::size_t worth = detent::detail::worth_a_task / 4;  // floats take longer
  const std::size_t products = (std::max)(s.m * s.n * s.k, std::size_t{1});
  if (!parallel || s.stacked_rows() || products >= 8 * worth) {
    return 1;
  }
  const std::size_t of_a_task = (std::max)(worth / products, std::size_t{1});  // matrices
  const std::size_t tasks = (std::min)(s.count() / of_a_task, detent::detail::wanted_tasks);
  return tasks < 4 ? 1 : tasks / 4 * 4;
}

/// Multiplies a stack of floats, each matrix by a right side that is packed for it.
inline void multiply_stack(const operator_context& c, const matmul_shape& s, const float* a,
                           const float* b, float* out) {
  std::size_t tasks = tasks_of_stack(s, *c.parallel);
  // Counted here, so that nothing in the tasks throws unless the system has no memory.
  std::optional<counted_bytes> counted;
  if (tasks > 1) {
    try {
      counted.emplace(c, tasks * packed_bytes(s.k, s.n));
    } catch (const error&) {
      tasks = 1;  // a run must not need more memory because it has threads
    }
  }
  if (tasks == 1) {
    for_each_product(s, a, b, out,
                     [&](const float* lhs, const float* rhs, float* to, std::size_t rows,
                         std::size_t /*index*/) {
                       const computed_floats right(c, {rhs, s.k, s.n});
                       gemm({lhs, rows, s.k}, right.packed(), {to, rows, s.n}, {}, *c.parallel);
                     });
    return;
  }
  const std::size_t matrices = s.count();
  detent::detail::run_parallel(*c.parallel, tasks, [&](std::size_t task) {
    for_products(s, a, b, out, matrices * task / tasks, matrices * (task + 1) / tasks,
                 [&](const float* lhs, const float* rhs, float* to, std::size_t rows,
                     std::size_t /*index*/) {
                   const packed_floats right({rhs, s.k, s.n}, {});
                   gemm({lhs, rows, s.k}, right, {to, rows, s.n});
                 });
  });
}

/// The types of MatMul. Floats have kernels, the others plain loops.
using matmul_types =
    type_list<float, double, std::int32_t, std::int64_t, std::uint32_t, std::uint64_t>;

inline void run_matmul(operator_context& c) {
  const tensor& a = c.inputs[0];
  const tensor& b = c.inputs[1];
  c.require(a.type() == b.type(), "operands of types ", shown(a.type()), " and ", shown(b.type()));
  const matmul_shape s(c, a.dims(), b.dims());
  tensor& y = c.make_output(0);
  if (y.count() == 0) {
    return;  // a stack of empty matrices may be very high
  }
  c.count_multiply_adds({y.count(), s.k});
  if (a.type() == element_type::f32) {
    if (s.stacked_rows() && c.is_constant(1)) {
      const auto& state =
          cached_state<packed_floats>(c, {1}, packed_bytes(s.k, s.n), [&](packed_floats& fresh) {
            fresh = packed_floats({b.data<float>().data(), s.k, s.n}, {});
          });
      const std::size_t rows = s.m * s.count();
      gemm({a.data<float>().data(), rows, s.k}, *state.packed,
           {y.mutable_data<float>().data(), rows, s.n}, {}, *c.parallel);
      return;
    }
    multiply_stack(c, s, a.data<float>().data(), b.data<float>().data(),
                   y.mutable_data<float>().data());
    return;
  }
  for_type(c, matmul_types{}, a.type(), [&]<class T>() {
    // Sums of integers wrap around: they are made in the unsigned type.
    using sum_type = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                                 std::type_identity<T>>::type;
    for_each_product(
        s, a.data<T>().data(), b.data<T>().data(), y.mutable_data<T>().data(),
        [&](const T* lhs, const T* rhs, T* out, std::size_t rows, std::size_t /*index*/) {
          for (std::size_t i = 0; i < rows; ++i) {
            for (std::size_t j = 0; j < s.n; ++j) {
              sum_type sum{};
              for (std::size_t k = 0; k < s.k; ++k) {
                sum += static_cast<sum_type>(lhs[i * s.k + k]) *
                       static_cast<sum_type>(rhs[k * s.n + j]);
              }
              out[i * s.n + j] = static_cast<T>(sum);
            }
          }
        });
  });
}

inline void infer_matmul_sum(operator_context& c) {
  c.require(c.input(1).rank() == 2, "the right side has ", c.input(1).rank(), " axes, not 2");
  infer_matmul(c);
  c.set_output(0, c.input(0).type(), broadcast_dims(c, c.outputs[0].dims(), c.input(2).dims()));
}

/// Computes detent.MatMul.
inline void run_matmul_sum(operator_context& c) {
  require_floats(c);
  const fused_clamp clamp(c.n());
  const tensor& a = c.inputs[0];
  const tensor& b = c.inputs[1];
  const tensor& addend = c.inputs[2];
  const matmul_shape s(c, a.dims(), b.dims());
  tensor& y = c.make_output_over(0, {2});
  if (y.count() == 0) {
    return;
  }
  c.count_multiply_adds({s.m, s.count(), s.n, s.k});
  const auto& state =
      cached_state<packed_floats>(c, {1}, packed_bytes(s.k, s.n), [&](packed_floats& fresh) {
        fresh = packed_floats({b.data<float>().data(), s.k, s.n}, {});
      });
  const std::size_t rows = s.m * s.count();
  const auto multiply = [&](std::span<float> out, const float_epilogue_options& options) {
    gemm({a.data<float>().data(), rows, s.k}, *state.packed, {out.data(), rows, s.n}, options,
         *c.parallel);
  };
  const bool is_row =
      addend.rank() > 0 && addend.count() == s.n && addend.dims().back() == y.dims().back();
  if (y.dims() == s.out && (is_row || addend.dims() == s.out)) {
    const std::ptrdiff_t stride = is_row ? 0 : static_cast<std::ptrdiff_t>(s.n);
    multiply(y.mutable_data<float>(),
             {clamp.lower, clamp.upper, {addend.data<float>().data(), rows, s.n, stride}});
    return;
  }
  std::pmr::vector<float> product(rows * s.n, c.memory);
  multiply(product, {});
  map_broadcast(
      c, [&](float x, float z) { return reference::clamp(x + z, clamp.lower, clamp.upper); },
      operand<float>{product.data(), &s.out}, operand_of<float>(addend), y.mutable_data<float>(),
      y.dims());
}

// ------------------------------------------------------------------------------------------- Gemm

/// The sizes of a Gemm node: A [m, k] and B [k, n] after their transpositions.
struct gemm_shape {
  std::size_t m, n, k;
  bool transpose_a, transpose_b;

  explicit gemm_shape(const operator_context& c, std::size_t b_input = 1)
      : transpose_a(c.n().get_int("transA", 0) != 0), transpose_b(c.n().get_int("transB", 0) != 0) {
    const shape& a = c.input(0).dims();
    const shape& b = c.input(b_input).dims();
    c.require(a.size() == 2 && b.size() == 2, "operands ", shown(a), " and ", shown(b),
              " are not matrices");
    m = static_cast<std::size_t>(a[transpose_a ? 1 : 0]);
    k = static_cast<std::size_t>(a[transpose_a ? 0 : 1]);
    n = static_cast<std::size_t>(b[transpose_b ? 0 : 1]);
    const std::int64_t other = b[transpose_b ? 1 : 0];
    c.require(static_cast<std::int64_t>(k) == other, "K is ", k, " on the left, ", other,
              " on the right");
  }

  /// A view of B as [k, n], whichever way it is stored.
  template <class T>
  [[nodiscard]] matrix_view<const T> rhs(const T* data) const {
    const matrix_view<const T> stored(data, transpose_b ? n : k, transpose_b ? k : n);
    return transpose_b ? stored.transposed() : stored;
  }
};

inline void infer_gemm(operator_context& c) {
  const gemm_shape s(c);
  c.set_output(0, c.input(0).type(),
               {static_cast<std::int64_t>(s.m), static_cast<std::int64_t>(s.n)});
  if (c.has_input(2)) {
    c.require(broadcast_dims(c, c.outputs[0].dims(), c.inputs[2].dims()) == c.outputs[0].dims(),
              "C of shape ", shown(c.inputs[2].dims()), " does not broadcast to ",
              shown(c.outputs[0].dims()));
  }
}

/// Writes the transpose [columns, rows] of a row-major matrix [rows, columns].
template <class T>
void transpose_matrix(const T* data, std::size_t rows, std::size_t columns, T* out) {
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      out[j * rows + i] = data[i * columns + j];
    }
  }
}

/// The transpose [columns, rows] of a row-major matrix [rows, columns].
template <class T>
std::vector<T> transposed_copy(const T* data, std::size_t rows, std::size_t columns) {
  std::vector<T> copy(rows * columns);
  transpose_matrix(data, rows, columns, copy.data());
  return copy;
}

inline void run_gemm(operator_context& c) {
  require_floats(c);
  const gemm_shape s(c);
  const float alpha = c.n().get_float("alpha", 1.0F);
  const float beta = c.n().get_float("beta", 1.0F);
  const fused_clamp clamp(c.n());
  // A bias with one value for each column is added by the product itself, before the first
  // product, if it can be packed with the weights: not where these are constant and it is not.
  const bool has_bias = c.has_input(2) && beta != 0.0F;
  const bool row_bias = has_bias && alpha == 1.0F && beta == 1.0F &&
                        (c.is_constant(2) || !c.is_constant(1)) && c.inputs[2].rank() > 0 &&
                        c.inputs[2].count() == s.n &&
                        c.inputs[2].dims().back() == c.outputs[0].dim(1);
  const bool finished = row_bias || (!has_bias && alpha == 1.0F);
  const matrix_view<const float> b = s.rhs(c.inputs[1].data<float>().data());
  const std::span<const float> bias_row =
      row_bias ? c.inputs[2].data<float>() : std::span<const float>{};
  std::optional<computed_floats> computed;
  const packed_floats& right =
      c.is_constant(1) ? *cached_state<packed_floats>(
                              c, {1}, packed_bytes(s.k, s.n),
                              [&](packed_floats& fresh) { fresh = packed_floats(b, bias_row); })
                              .packed
                       : computed.emplace(c, b, bias_row).packed();
  const float* a = c.inputs[0].data<float>().data();
  std::pmr::vector<float> transposed(c.memory);
  if (s.transpose_a) {
    transposed.resize(s.k * s.m);
    transpose_matrix(a, s.k, s.m, transposed.data());
    a = transposed.data();
  }
  auto out = c.make_output(0).mutable_data<float>();
  c.count_multiply_adds({out.size(), s.k});
  float_epilogue_options options;
  if (finished) {
    options = {clamp.lower, clamp.upper, {}};
  }
  gemm({a, s.m, s.k}, right, {out.data(), s.m, s.n}, options, *c.parallel);
  if (finished) {
    return;
  }
  const shape bias_dims = has_bias ? c.inputs[2].dims() : shape{};
  const bool per_row = bias_dims.size() == 2 && bias_dims[0] != 1;
  const bool per_column = !bias_dims.empty() && bias_dims.back() != 1;
  const float* bias = has_bias ? c.inputs[2].data<float>().data() : nullptr;
  for (std::size_t i = 0; i < s.m; ++i) {
    for (std::size_t j = 0; j < s.n; ++j) {
      const std::size_t at = (per_row ? i * (per_column ? s.n : 1) : 0) + (per_column ? j : 0);
      const float scaled = alpha * out[i * s.n + j];
      const float sum = has_bias ? std::fma(beta, bias[at], scaled) : scaled;
      out[i * s.n + j] = reference::clamp(sum, clamp.lower, clamp.upper);
    }
  }
}

// ---------------------------------------------------------------------------------------- integer

/// The number of values of input i, a scale or zero point of the right side `rhs` of n columns: 1,
/// or n with one value for each column. The shape may be [..., 1, n] with ones in front: all
/// matrices of a stack share the values. If it is that of the stack, [stack ..., 1, n], each matrix
/// has n values of its own. Throws unsupported for any other shape.
inline std::size_t column_values(const operator_context& c, std::size_t i, const tensor& rhs,
                                 std::size_t n) {
  if (!c.has_input(i)) {
    return 1;
  }
  shape stacked = rhs.dims();
  if (stacked.size() > 2) {
    stacked[stacked.size() - 2] = 1;
  }
  if (stacked.size() <= 2 || c.inputs[i].dims() != stacked) {
    require_row(c, i, n);
  }
  return c.inputs[i].count();
}

/// Packs one right matrix with its scales, zero points and bias.
inline packed_weights pack_rhs(const operator_context& c, const integer_product_inputs& at,
                               matrix_view<const std::int8_t> values,
                               std::span<const std::int32_t> zero_points) {
  const rhs_terms terms(c, at, values.columns);
  return pack_weights(values, {terms.scales, zero_points, terms.bias});
}

/// Why run_integer_matmul() does not support the zero points of a left side with matrices of `rows`
/// rows; empty if it does: one, or one for each row, in the shape [rows] or [..., rows, 1] with
/// ones in front.
inline std::string unsupported_lhs_zero_points(const operator_context& c,
                                               const integer_product_inputs& at, std::size_t rows) {
  if (!c.has_input(at.lhs_zero_point)) {
    return {};
  }
  const tensor& t = c.inputs[at.lhs_zero_point];
  const shape& dims = t.dims();
  const std::size_t count = t.count();
  const bool is_column = dims.size() > 1 && dims.back() == 1 &&
                         dims[dims.size() - 2] == static_cast<std::int64_t>(rows);
  if (count == 1 || (count == rows && (dims.size() == 1 || is_column))) {
    return {};
  }
  return detent::detail::message("zero points of shape ", shown(dims), " for ", rows, " rows");
}

/// Multiplies `lhs`, whose zero points are one or one for each row of a matrix, by the right side.
/// `options` need no zero points and no bias.
inline void run_integer_matmul(operator_context& c, const integer_product_inputs& at,
                               const tensor& lhs, std::span<const std::int32_t> lhs_zero_points,
                               epilogue_options options) {
  const tensor& b = c.input(at.rhs);
  const matmul_shape s(c, lhs.dims(), b.dims());
  tensor& y = c.make_output(0);
  if (y.count() == 0) {
    return;  // a stack of empty matrices may be very high
  }
  c.count_multiply_adds({y.count(), s.k});
  const std::size_t zero_point_count = lhs_zero_points.size();
  const std::string unsupported = unsupported_lhs_zero_points(c, at, s.m);
  c.require_supported(unsupported.empty(), unsupported);
  options.bias = optional_floats(c, at.float_bias, s.n);
  const auto signed_rhs = [&] {
    return as_signed(
        c, b, read_zero_points(c, at.rhs_zero_point, column_values(c, at.rhs_zero_point, b, s.n)));
  };
  const packed_weights* weights = nullptr;  // the right side of all products; null if they differ
  signed_operand rhs;
  std::vector<float> scales{1.0F};
  if (s.stacked_rows()) {
    weights =
        cached_state<packed_weights>(
            c, {at.rhs, at.rhs_scale, at.rhs_zero_point, at.bias}, packed_integer_bytes(s.k, s.n),
            [&](packed_weights& fresh) {
              const signed_operand w = signed_rhs();
              fresh =
                  pack_rhs(c, at, {w.values.data<std::int8_t>().data(), s.k, s.n}, w.zero_points);
            })
            .packed.get();
  } else {
    rhs = signed_rhs();
    if (c.has_input(at.rhs_scale)) {
      static_cast<void>(column_values(c, at.rhs_scale, b, s.n));
      scales = read_scales(c, at.rhs_scale);
    }
  }
  // Returns the values of one matrix of the stack.
  const auto of_matrix = [&s](const auto& values, std::size_t index) {
    const std::span all(values);
    return all.size() > s.n ? all.subspan(index * s.n, s.n) : all;
  };
  const std::int8_t* matrices =
      weights == nullptr ? rhs.values.data<std::int8_t>().data() : nullptr;
  const std::size_t product_rows = s.stacked_rows() ? s.m * s.count() : s.m;
  std::pmr::vector<std::int32_t> row_zero_points(zero_point_count == 1 ? 0 : product_rows,
                                                 c.memory);
  for (std::size_t i = 0; i < row_zero_points.size(); ++i) {
    row_zero_points[i] = lhs_zero_points[i % zero_point_count];
  }
  options.lhs_zero_point = zero_point_count == 1 ? lhs_zero_points[0] : 0;
  options.lhs_zero_points = row_zero_points;
  for_integer_product(c, lhs, y.type(), [&]<class A, class T>() {
    for_each_product(
        s, lhs.data<A>().data(), matrices, y.mutable_data<T>().data(),
        [&](const A* left, const std::int8_t* matrix, T* out, std::size_t rows, std::size_t index) {
          packed_weights once;
          std::optional<counted_bytes> counted;
          if (weights == nullptr) {
            counted.emplace(c, packed_integer_bytes(s.k, s.n));
            once = pack_weights(matrix_view<const std::int8_t>(matrix, s.k, s.n),
                                {of_matrix(scales, index), of_matrix(rhs.zero_points, index), {}});
          }
          gemm(matrix_view<const A>(left, rows, s.k), weights == nullptr ? once : *weights,
               matrix_view<T>(out, rows, s.n), options, *c.parallel);
        });
  });
}

/// run_integer_matmul() of the node's own left side.
inline void run_integer_matmul(operator_context& c, const integer_product_inputs& at) {
  const std::size_t zero_points =
      c.has_input(at.lhs_zero_point) ? c.inputs[at.lhs_zero_point].count() : 1;
  run_integer_matmul(c, at, c.input(at.lhs), read_zero_points(c, at.lhs_zero_point, zero_points),
                     product_epilogue(c, at));
}

inline void infer_matmul_integer(operator_context& c) {
  require_types_of_zero_points(c, integer_inputs);
  const matmul_shape s(c, c.input(0).dims(), c.input(1).dims());
  if (c.has_input(2) && c.inputs[2].has_data()) {
    // How many rows there are is not certain here, as they may stand for an open dimension: as many
    // as there are zero points.
    const shape& dims = c.inputs[2].dims();
    const std::int64_t rows = dims.size() > 1 ? dims[dims.size() - 2] : dims.empty() ? 1 : dims[0];
    const std::string unsupported =
        unsupported_lhs_zero_points(c, integer_inputs, static_cast<std::size_t>(rows));
    c.expect_supported(unsupported.empty(), unsupported);
  }
  c.set_output(0, element_type::s32, s.out);
}

inline void infer_qlinear_matmul(operator_context& c) {
  require_types_of_zero_points(c, qlinear_inputs);
  const element_type type = c.has_input(7) ? c.inputs[7].type() : c.input(0).type();
  expect_one_scale(c, qlinear_inputs.lhs_scale);
  expect_one_scale(c, qlinear_inputs.out_scale);
  c.set_output(0, type, matmul_shape(c, c.input(0).dims(), c.input(3).dims()).out);
}

/// Infers the output of QLinearGemm and QGemm. The left side may have any rank; all dimensions but
/// the last are rows.
inline void infer_quantized_gemm(operator_context& c, const integer_product_inputs& at) {
  require_types_of_zero_points(c, at);
  const shape& a = c.input(at.lhs).dims();
  const shape& b = c.input(at.rhs).dims();
  const bool transposed = c.n().get_int("transB", 0) != 0;
  c.require_supported(c.n().get_int("transA", 0) == 0, "transA = 1");
  c.require(!a.empty() && b.size() == 2 && a.back() == b[transposed ? 1 : 0], "operands ", shown(a),
            " and ", shown(b), " do not fit together");
  shape out = a;
  out.back() = b[transposed ? 0 : 1];
  const element_type type = !c.has_input(at.out_scale)       ? element_type::f32
                            : c.has_input(at.out_zero_point) ? c.inputs[at.out_zero_point].type()
                                                             : c.input(at.lhs).type();
  c.set_output(0, type, std::move(out));
}

/// The float bias of a node as a matrix that is added to a float result of `rows` rows; a null
/// matrix if it has none. It is added after the sums are scaled and rounded, as an Add node does.
inline matrix_view<const float> bias_rows(const operator_context& c,
                                          const integer_product_inputs& at, std::size_t rows,
                                          std::size_t columns) {
  const std::span<const float> bias = optional_floats(c, at.float_bias, columns);
  return bias.empty() ? matrix_view<const float>()
                      : matrix_view<const float>(bias.data(), rows, columns, 0);
}

inline void run_quantized_gemm(operator_context& c, const integer_product_inputs& at) {
  const bool transposed = c.n().get_int("transB", 0) != 0;
  const tensor& b = c.inputs[at.rhs];
  const std::size_t n = static_cast<std::size_t>(b.dim(transposed ? 0 : 1));
  const std::size_t k = static_cast<std::size_t>(b.dim(transposed ? 1 : 0));
  auto& state = cached_state<packed_weights, std::optional<epilogue_options>>(
      c, {at.rhs, at.rhs_scale, at.rhs_zero_point, at.bias}, packed_integer_bytes(k, n),
      [&](packed_weights& fresh) {
        const signed_operand w = as_signed(
            c, b,
            read_zero_points(c, at.rhs_zero_point, column_values(c, at.rhs_zero_point, b, n)));
        const matrix_view<const std::int8_t> stored(w.values.data<std::int8_t>().data(),
                                                    static_cast<std::size_t>(b.dim(0)),
                                                    static_cast<std::size_t>(b.dim(1)));
        fresh = pack_rhs(c, at, transposed ? stored.transposed() : stored, w.zero_points);
      });
  epilogue_options options = cached_epilogue(c, at, state.own);
  options.lhs_scale *= c.n().get_float("alpha", 1.0F);
  const tensor& a = c.inputs[at.lhs];
  tensor& y = c.make_output(0);
  c.count_multiply_adds({y.count(), k});
  const std::size_t rows = n == 0 ? 0 : y.count() / n;
  options.residual = bias_rows(c, at, rows, n);
  for_integer_product(c, a, y.type(), [&]<class A, class T>() {
    gemm(matrix_view<const A>(a.data<A>().data(), rows, k), *state.packed,
         matrix_view<T>(y.mutable_data<T>().data(), rows, n), options, *c.parallel);
  });
}

inline constexpr operator_definition matmul_operators[] = {
    {"", "MatMul", 2, 2, layout_support::plain, &infer_for<matmul_types, &infer_matmul>,
     &run_matmul, true},
    {"detent", "MatMul", 3, 3, layout_support::plain, &infer_for_floats<&infer_matmul_sum>,
     &run_matmul_sum, true},
    {"", "Gemm", 2, 3, layout_support::plain, &infer_for_floats<&infer_gemm>, &run_gemm, true},
    {"detent", "Gemm", 2, 3, layout_support::plain, &infer_for_floats<&infer_gemm>, &run_gemm,
     true},
    {"", "MatMulInteger", 2, 4, layout_support::plain, &infer_matmul_integer,
     [](operator_context& c) { run_integer_matmul(c, integer_inputs); }, true},
    {"", "QLinearMatMul", 8, 8, layout_support::plain, &infer_qlinear_matmul,
     [](operator_context& c) { run_integer_matmul(c, qlinear_inputs); }, true},
    {"detent", "QLinearGemm", 5, 10, layout_support::plain,
     [](operator_context& c) { infer_quantized_gemm(c, qlinear_inputs); },
     [](operator_context& c) { run_quantized_gemm(c, qlinear_inputs); }, true},
    {"com.microsoft", "QGemm", 6, 9, layout_support::plain,
     [](operator_context& c) { infer_quantized_gemm(c, qgemm_inputs); },
     [](operator_context& c) { run_quantized_gemm(c, qgemm_inputs); }, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_MATMUL_HPP
