// SPDX-License-Identifier: BSD-3-Clause
// Defines which operators the integer form of a model consists of, and what they can express.
#ifndef DETENT_GRAPH_REWRITE_INTEGER_OPERATORS_HPP
#define DETENT_GRAPH_REWRITE_INTEGER_OPERATORS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/quantized_values.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Whether QLinearAveragePool of com.microsoft averages as this AveragePool does. It has no
/// dilations, and divides by all places of a window that reaches beyond the padding. ONNX Runtime
/// makes that operator of a pool between a DequantizeLinear and a QuantizeLinear, too, and does not
/// look at these attributes.
[[nodiscard]] inline bool has_integer_average(const node& n) {
  return n.find("dilations") == nullptr &&
         (n.get_int("ceil_mode", 0) == 0 || n.get_int("count_include_pad", 0) == 0);
}

/// The set of operators that the integer form consists of.
enum class integer_operators : std::uint8_t {
  detent,  ///< For execution: everything that has a kernel.
  /// For files: ONNX's own operators and those of com.microsoft. Anything that they cannot express
  /// stays as it is.
  onnx,
};

/// Tells what a set of operators can express of a model and its values. The model and the values
/// must outlive it.
class integer_form {
 public:
  integer_form(integer_operators operators, const model& m, const quantized_values& values)
      : for_files_(operators == integer_operators::onnx), m_(m), values_(values) {}

  [[nodiscard]] bool for_files() const noexcept { return for_files_; }

  /// Makes a node of the operator, in the domain that defines it.
  [[nodiscard]] node make(std::string op) const {
    node n;
    const bool is_onnx = op == "QLinearConv" || op == "QLinearMatMul";
    n.domain = !for_files_ ? "detent" : is_onnx ? "" : "com.microsoft";
    n.op_type = std::move(op);
    return n;
  }

  /// Whether the operators can produce the destination. Those for files have 8-bit outputs, and no
  /// clamp except that of the output type.
  [[nodiscard]] bool can_make(const destination& d) const {
    return !for_files_ || (d.is_quantized() && (!d.bounds || values_.quantized_bounds(d) ==
                                                                 full_grid_of(d.value.type)));
  }

  /// Whether the operators can multiply these operands, to a float result. ONNX Runtime has kernels
  /// for an int8 first operand only with int8 weights.
  [[nodiscard]] bool can_multiply(const quantized_value& x, const quantized_value& w) const {
    return !for_files_ || x.type == element_type::u8 || w.type == element_type::s8;
  }
  /// Whether the operators can multiply these operands, to a quantized result. ONNX lets its type
  /// differ from that of the first operand, but ONNX Runtime has no kernels for that.
  [[nodiscard]] bool can_multiply(const quantized_value& x, const quantized_value& w,
                                  const destination& d) const {
    return can_multiply(x, w) && (!for_files_ || d.value.type == x.type);
  }

  /// Whether the operators can convolve: can_multiply(), and all filters have one zero point,
  /// because ONNX Runtime's QLinearConv takes no others.
  [[nodiscard]] bool can_convolve(const quantized_value& x, const quantized_value& w,
                                  const destination& d) const {
    return can_multiply(x, w, d) && (!for_files_ || has_one_zero_point(w));
  }

  /// Whether there is an operator that averages as this AveragePool does.
  [[nodiscard]] bool can_average(const node& n) const {
    return !for_files_ || has_integer_average(n);
  }

  /// Whether an operator that moves elements has kernels for both uint8 and int8.
  [[nodiscard]] bool can_move_bytes(const node& n) const {
    static constexpr std::string_view names[] = {"Reshape",   "Flatten", "Transpose", "Squeeze",
                                                 "Unsqueeze", "Slice",   "Gather",    "Expand",
                                                 "MaxPool",   "Tile",    "Identity",  "Resize"};
    return !for_files_ ||
           (std::find(std::begin(names), std::end(names), n.op_type) != std::end(names) &&
            (!n.is("MaxPool") || m_.opset() >= 12));
  }

 private:
  [[nodiscard]] bool has_one_zero_point(const quantized_value& w) const {
    if (w.zero_point.empty()) {
      return true;
    }
    const tensor& zeros = *values_.constant(w.zero_point);
    const std::byte* bytes = zeros.raw();
    return std::all_of(bytes, bytes + zeros.bytes(), [&](std::byte b) { return b == bytes[0]; });
  }

  bool for_files_;
  const model& m_;
  const quantized_values& values_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_INTEGER_OPERATORS_HPP
