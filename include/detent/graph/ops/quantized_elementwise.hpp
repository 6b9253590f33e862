// SPDX-License-Identifier: BSD-3-Clause
// Elementwise operators and Concat on 8-bit tensors: the QLinear* operators of com.microsoft, which
// are also in domain "detent", where graph/rewrite/lower.hpp makes them from float operators
// between quantized values.
//
//   QLinearAdd, QLinearMul (detent also: QLinearSub, QLinearDiv)
//       Q(D(a) op D(b)): operands are dequantized, combined and quantized in float
//   detent.Lookup   the unary function that attribute `function` names, by a table of its results
//                   for all 256 values
//   QLinearConcat   inputs that have other parameters than the output go through such a table
#ifndef DETENT_GRAPH_OPS_QUANTIZED_ELEMENTWISE_HPP
#define DETENT_GRAPH_OPS_QUANTIZED_ELEMENTWISE_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/movement.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/graph/ops/unary_functions.hpp>
#include <detent/kernels/definitions/byte_lookup.hpp>
#include <detent/quantize.hpp>
#include <detent/quantized_elementwise.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

using detent::detail::binary_function;

/// Infers the output of the QLinear* operators of two operands, whose inputs are a, a_scale,
/// a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point. Absent zero points are 0.
inline void infer_quantized_binary(operator_context& c) {
  static_cast<void>(c.input(3));  // b
  static_cast<void>(c.input(4));  // b_scale
  static_cast<void>(c.input(6));  // y_scale
  c.require(c.input(0).type() == c.input(3).type(), "operands of types ", shown(c.inputs[0].type()),
            " and ", shown(c.inputs[3].type()));
  require_type_of_zero_point(c, 2, c.inputs[0]);
  require_type_of_zero_point(c, 5, c.inputs[3]);
  c.set_output(0, c.has_input(7) ? c.inputs[7].type() : c.inputs[0].type(),
               broadcast_dims(c, c.inputs[0].dims(), c.inputs[3].dims()));
}

template <class T>
std::pmr::vector<float> dequantized(const operator_context& c, const tensor& t, quant_params p) {
  std::pmr::vector<float> values(t.count(), c.memory);
  dequantize(t.data<T>(), values, p);
  return values;
}

/// True if the dimensions of an operand, but for leading ones, are the last ones of the result, so
/// that its elements come again and again in the order in which they are stored.
[[nodiscard]] inline bool repeats(const tensor& operand, const shape& result) {
  const shape& dims = operand.dims();
  std::size_t first = 0;
  while (first < dims.size() && dims[first] == 1) {
    ++first;
  }
  return std::equal(dims.begin() + static_cast<std::ptrdiff_t>(first), dims.end(),
                    result.end() - static_cast<std::ptrdiff_t>(dims.size() - first));
}

/// True if `whole` has the shape of the result and `other` is repeated. Only a single element is
/// where the channels are stored last.
[[nodiscard]] inline bool is_beside_repeated(const tensor& whole, const tensor& other,
                                             const shape& result) {
  const bool plain = !whole.channels_last() && !other.channels_last();
  return whole.dims() == result && (other.count() == 1 || (plain && repeats(other, result)));
}

/// The elements of an operand of a result of `count` elements: as many, or fewer that are repeated.
template <class T>
class repeated_codes {
 public:
  repeated_codes(const operator_context& c, const tensor& t, std::size_t count)
      : values_(t.data<T>()), copies_(c.memory), is_repeated_(values_.size() != count) {
    constexpr std::size_t enough = 4096;  // elements, for a call of a kernel
    if (!is_repeated_ || values_.size() > enough / 2) {
      return;
    }
    for (std::size_t times = enough / values_.size(); times > 0; --times) {
      copies_.insert(copies_.end(), values_.begin(), values_.end());
    }
    values_ = copies_;
  }
  repeated_codes(const repeated_codes&) = delete;
  repeated_codes& operator=(const repeated_codes&) = delete;
  ~repeated_codes() = default;

  /// How many elements from number `first` on are stored one behind the other.
  [[nodiscard]] std::size_t run(std::size_t first) const noexcept {
    return values_.size() - place(first);
  }
  /// Elements [first, first + n), n <= run(first).
  [[nodiscard]] std::span<const T> at(std::size_t first, std::size_t n) const noexcept {
    return values_.subspan(place(first), n);
  }

 private:
  [[nodiscard]] std::size_t place(std::size_t first) const noexcept {
    return is_repeated_ ? first % values_.size() : first;
  }

  std::span<const T> values_;
  std::pmr::vector<T> copies_;
  bool is_repeated_;
};

template <binary_function F>
void run_quantized_binary(operator_context& c) {
  const quant_params pa = read_params(c, 1, 2);
  const quant_params pb = read_params(c, 4, 5);
  const quant_params py = read_params(c, 6, 7);
  const grid fused = fused_levels(c.n());
  const tensor& a = c.inputs[0];
  const tensor& b = c.inputs[3];
  const auto compute = [&]<class T, class Out>(Out* out) {
    const grid levels = fused.qmin > fused.qmax ? full_grid<Out> : fused;
    detent::detail::require_params<Out>(py, full_grid<Out>, "quantized operator");
    const shape& dims = c.outputs[0].dims();
    if (a.dims() == b.dims() || is_beside_repeated(a, b, dims) || is_beside_repeated(b, a, dims)) {
      constexpr std::size_t piece = 16384;
      const std::size_t count = c.outputs[0].count();
      const repeated_codes<T> left(c, a, count);
      const repeated_codes<T> right(c, b, count);
      const auto run = [&](std::size_t task) {
        const std::size_t end = (std::min)(count, (task + 1) * piece);
        for (std::size_t first = task * piece, n = 0; first < end; first += n) {
          n = (std::min)({end - first, left.run(first), right.run(first)});
          detent::detail::quantized_binary<F>(left.at(first, n), pa, right.at(first, n), pb,
                                              std::span(out + first, n), py, levels,
                                              "quantized operator");
        }
      };
      detent::detail::run_parallel(*c.parallel, (count + piece - 1) / piece, run);
      return;
    }
    const std::pmr::vector<float> left = dequantized<T>(c, a, pa);
    const std::pmr::vector<float> right = dequantized<T>(c, b, pb);
    std::pmr::vector<float> result(c.outputs[0].count(), c.memory);
    map_broadcast(
        c, [](float u, float v) { return kernels::combine(F, u, v); },
        operand<float>{left.data(), &a.dims()}, operand<float>{right.data(), &b.dims()},
        std::span<float>(result), c.outputs[0].dims());
    detent::detail::quantize_levels(std::span<const float>(result), std::span(out, result.size()),
                                    py, levels);
  };
  tensor& y = c.make_output_over(0, {0, 3});
  for_type(c, quantized_types{}, a.type(), [&]<class T>() {
    for_type(c, quantized_types{}, y.type(), [&]<class Out>() {
      compute.template operator()<T, Out>(y.mutable_data<Out>().data());
    });
  });
}

// ---------------------------------------------------------------------------------------- lookup

/// The table of a function between 8-bit types: table[q] = Q(function(D(q))) for every value q of
/// the input type, where values of signed types are taken as their bytes.
template <class Function>
std::array<std::uint8_t, 256> make_table(const operator_context& c, element_type in,
                                         quant_params from, element_type out, quant_params to,
                                         const Function& function) {
  std::array<std::uint8_t, 256> table{};
  for_type(c, quantized_types{}, in, [&]<class In>() {
    for_type(c, quantized_types{}, out, [&]<class Out>() {
      const lookup_table<In, Out> values(function, from, to);
      std::memcpy(table.data(), values.entries().data(), table.size());
    });
  });
  return table;
}

/// Looks each byte of `rows` rows up in a table. Rows are `from_row` and `to_row` bytes apart.
inline void look_up_bytes(const std::array<std::uint8_t, 256>& table, const std::byte* from,
                          std::size_t from_row, std::byte* to, std::size_t to_row, std::size_t rows,
                          std::size_t columns) {
  detent::detail::active<kernels::byte_lookup_kernels>().look_up(
      {.in = reinterpret_cast<const std::uint8_t*>(from),
       .in_stride = from_row,
       .table = table.data(),
       .out = reinterpret_cast<std::uint8_t*>(to),
       .out_stride = to_row,
       .rows = rows,
       .columns = columns});
}

/// The same, divided among the executor's threads.
inline void apply_table(const operator_context& c, const std::array<std::uint8_t, 256>& table,
                        const std::byte* from, std::size_t from_row, std::byte* to,
                        std::size_t to_row, std::size_t rows, std::size_t columns) {
  constexpr std::size_t piece = std::size_t{1} << 16;  // bytes that a thread takes at a time
  const std::size_t height = piece / (std::max)(columns, std::size_t{1}) + 1;
  detent::detail::run_parallel(*c.parallel, (rows + height - 1) / height, [&](std::size_t task) {
    const std::size_t first = task * height;
    look_up_bytes(table, from + first * from_row, from_row, to + first * to_row, to_row,
                  (std::min)(height, rows - first), columns);
  });
}

/// Looks each byte of `from` up in a table; the results are the bytes from `to` on.
inline void apply_table(const operator_context& c, const std::array<std::uint8_t, 256>& table,
                        const tensor& from, std::byte* to) {
  constexpr std::size_t row = 4096;
  const std::size_t rows = from.count() / row;
  apply_table(c, table, from.raw(), row, to, row, rows, row);
  const std::size_t done = rows * row;
  look_up_bytes(table, from.raw() + done, 0, to + done, 0, 1, from.count() - done);
}

/// The float operator whose table a Lookup node applies, as a node of its own. Also for
/// com.microsoft's QLinearSigmoid and QLinearLeakyRelu.
inline node lookup_function(const node& n) {
  node function = n;
  function.domain.clear();
  if (n.op_type == "Lookup") {
    function.op_type = n.get_string("function", "");
  } else {
    function.op_type = n.op_type.substr(std::string_view("QLinear").size());
  }
  return function;
}

/// Infers the output of Lookup, QLinearSigmoid and QLinearLeakyRelu, whose inputs are x, x_scale,
/// x_zero_point, y_scale, y_zero_point. Absent zero points are 0.
inline void infer_lookup(operator_context& c) {
  static_cast<void>(c.input(3));  // y_scale
  require_type_of_zero_point(c, 2, c.input(0));
  const node function = lookup_function(c.n());
  c.require_supported(function.op_type == "Clip" || is_unary_activation(function), "function '",
                      function.op_type, "'");
  c.set_output(0, c.has_input(4) ? c.inputs[4].type() : c.input(0).type(), c.input(0).dims());
}

/// The tables of a node, and the types of its inputs and outputs that they are for. Models need not
/// declare the types of codes without zero points, so that another run may have other ones.
struct node_tables {
  std::vector<element_type> types;
  std::vector<std::optional<std::array<std::uint8_t, 256>>> tables;
};

/// The tables of a node, which add(tables) makes if there are none for these types. `is_constant`:
/// as for cached_state().
template <class Add>
[[nodiscard]] auto cached_tables(operator_context& c, bool is_constant,
                                 const std::vector<element_type>& types, const Add& add) -> const
    decltype(node_tables::tables)& {
  if (*c.state != nullptr &&
      static_cast<node_state<node_tables>&>(**c.state).packed->types != types) {
    c.state->reset();
  }
  const std::size_t bytes = types.size() * sizeof(node_tables::tables[0]);
  const auto& state = cached_state<node_tables>(c, is_constant, bytes, [&](node_tables& made) {
    made.types = types;
    add(made.tables);
  });
  return state.packed->tables;
}

inline void run_lookup(operator_context& c) {
  const element_type in = c.inputs[0].type();
  const element_type out = c.outputs[0].type();
  const auto& tables = cached_tables(c, c.are_constant({1, 2, 3, 4}), {in, out}, [&](auto& made) {
    const node function = lookup_function(c.n());
    const auto opset = c.n().get_int("function_opset", c.opset);
    made.push_back(make_table(c, in, read_params(c, 1, 2), out, read_params(c, 3, 4), [&](float x) {
      if (function.op_type == "Clip") {
        const fused_clamp bounds(function);
        return reference::clamp(x, bounds.lower, bounds.upper);
      }
      return apply_unary(function, opset, x);
    }));
  });
  std::byte* const to = c.make_output_over(0, {0}).mutable_raw();
  apply_table(c, *tables[0], c.inputs[0], to);
}

// ---------------------------------------------------------------------------------------- concat

/// Infers the output of QLinearConcat, whose inputs are y_scale, y_zero_point and then, for each
/// tensor that is joined, the tensor, its scale and its zero point.
inline void infer_quantized_concat(operator_context& c) {
  c.require(c.input_count() >= 5 && (c.input_count() - 2) % 3 == 0, c.input_count(),
            " inputs, expected 2 and three for each piece");
  shape dims = c.input(2).dims();
  const std::size_t axis = c.axis(c.n().get_int("axis", 1), dims.size());
  for (std::size_t i = 5; i < c.input_count(); i += 3) {
    const shape& piece = c.input(i).dims();
    c.require(piece.size() == dims.size(), "pieces of rank ", piece.size(), " and ", dims.size());
    for (std::size_t d = 0; d < dims.size(); ++d) {
      c.require(d == axis || piece[d] == dims[d], "pieces ", shown(piece), " and ", shown(dims),
                " do not fit along axis ", axis);
    }
    dims[axis] += piece[axis];
  }
  const auto require_bytes = [&](const tensor& t) {
    c.require_supported(t.type() == element_type::u8 || t.type() == element_type::s8,
                        "elements of type ", shown(t.type()));
  };
  for (std::size_t i = 2; i < c.input_count(); i += 3) {
    require_bytes(c.input(i));
    require_type_of_zero_point(c, i + 2, c.inputs[i]);
  }
  const tensor& typed = c.has_input(1) ? c.inputs[1] : c.inputs[2];
  require_bytes(typed);
  c.set_output(0, typed.type(), std::move(dims));
  c.outputs[0].set_channels_last(movement::is_channels_last_concat(c, 2, 3));
}

inline void run_quantized_concat(operator_context& c) {
  tensor& y = c.make_output(0);
  if (y.count() == 0) {
    return;
  }
  bool is_constant = c.are_constant({0, 1});
  std::vector<element_type> types{y.type()};
  for (std::size_t i = 2; i < c.input_count(); i += 3) {
    is_constant = is_constant && c.are_constant({i + 1, i + 2});
    types.push_back(c.inputs[i].type());
  }
  // A piece with the type and the parameters of the output has no table: it is copied.
  const auto& tables = cached_tables(c, is_constant, types, [&](auto& made) {
    const quant_params to = read_params(c, 0, 1);
    for (std::size_t i = 2; i < c.input_count(); i += 3) {
      const quant_params from = read_params(c, i + 1, i + 2);
      const element_type in = c.inputs[i].type();
      made.emplace_back();
      if (from != to || in != y.type()) {
        made.back() = make_table(c, in, from, y.type(), to, [](float x) { return x; });
      }
    }
  });
  const movement::stored_axis at(y, c.axis(c.n().get_int("axis", 1), y.rank()));
  std::byte* out = y.mutable_raw();
  auto table = tables.begin();
  for (std::size_t i = 2; i < c.input_count(); i += 3, ++table) {
    const tensor piece = y.channels_last() ? to_channels_last(c.inputs[i], c.allocate)
                                           : to_plain(c.inputs[i], c.allocate);
    const std::size_t row = piece.count() / at.outer;
    if (table->has_value()) {
      apply_table(c, **table, piece.raw(), row, out, at.row, at.outer, row);
    } else {
      copy_elements(
          piece.raw(), out, 1,
          {{at.outer, static_cast<std::ptrdiff_t>(row), static_cast<std::ptrdiff_t>(at.row)},
           {row, 1, 1}},
          c.parallel);
    }
    out += row;
  }
}

inline constexpr operator_definition quantized_elementwise_operators[] = {
    {"detent", "QLinearAdd", 2, 8, layout_support::elementwise, &infer_quantized_binary,
     &run_quantized_binary<binary_function::add>, true},
    {"detent", "QLinearSub", 2, 8, layout_support::elementwise, &infer_quantized_binary,
     &run_quantized_binary<binary_function::sub>, true},
    {"detent", "QLinearMul", 2, 8, layout_support::elementwise, &infer_quantized_binary,
     &run_quantized_binary<binary_function::mul>, true},
    {"detent", "QLinearDiv", 2, 8, layout_support::elementwise, &infer_quantized_binary,
     &run_quantized_binary<binary_function::div>, true},
    {"com.microsoft", "QLinearAdd", 2, 8, layout_support::elementwise, &infer_quantized_binary,
     &run_quantized_binary<binary_function::add>, true},
    {"com.microsoft", "QLinearMul", 2, 8, layout_support::elementwise, &infer_quantized_binary,
     &run_quantized_binary<binary_function::mul>, true},
    {"detent", "Lookup", 2, 5, layout_support::elementwise, &infer_lookup, &run_lookup, true},
    {"com.microsoft", "QLinearSigmoid", 2, 5, layout_support::elementwise, &infer_lookup,
     &run_lookup, true},
    {"com.microsoft", "QLinearLeakyRelu", 2, 5, layout_support::elementwise, &infer_lookup,
     &run_lookup, true},
    {"detent", "QLinearConcat", 5, any_number, layout_support::any, &infer_quantized_concat,
     &run_quantized_concat, true},
    {"com.microsoft", "QLinearConcat", 5, any_number, layout_support::any, &infer_quantized_concat,
     &run_quantized_concat, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_QUANTIZED_ELEMENTWISE_HPP
