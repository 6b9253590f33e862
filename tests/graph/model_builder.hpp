// SPDX-License-Identifier: BSD-3-Clause
// Small models in memory, made node by node.
#ifndef DETENT_TESTS_GRAPH_MODEL_BUILDER_HPP
#define DETENT_TESTS_GRAPH_MODEL_BUILDER_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>

#include "random.hpp"

namespace test {

namespace graph = detent::graph;
using graph::attribute;
using graph::element_type;
using graph::shape;
using graph::tensor;

using attributes = std::map<std::string, attribute, std::less<>>;
using tensors = std::map<std::string, tensor>;

inline attribute text(std::string value) {
  attribute a;
  a.kind = attribute::kind_type::s;
  a.s = std::move(value);
  return a;
}
inline attribute number(std::int64_t value) { return attribute::of(value); }
inline attribute real(float value) { return attribute::of(value); }
inline attribute list(std::vector<std::int64_t> values) { return attribute::of(std::move(values)); }

template <class T>
tensor make_tensor(element_type type, shape dims, const std::vector<T>& values) {
  return tensor::of<T>(type, std::move(dims), std::span<const T>(values));
}
inline tensor floats(shape dims, const std::vector<float>& values) {
  return make_tensor(element_type::f32, std::move(dims), values);
}
inline tensor random_floats(random_source& r, shape dims, float lower, float upper) {
  const std::size_t count = graph::element_count(dims);
  return floats(std::move(dims), r.reals(count, lower, upper));
}
template <class T>
std::vector<T> values_of(const tensor& t) {
  return {t.data<T>().begin(), t.data<T>().end()};
}
/// Floats, in double.
inline std::vector<double> doubles(const tensor& t) {
  return {t.data<float>().begin(), t.data<float>().end()};
}

/// The level of an 8-bit type that is as far above its least one as `of_u8` is in uint8.
inline int level(element_type type, int of_u8) {
  return type == element_type::u8 ? of_u8 : of_u8 - 128;
}

class model_builder {
 public:
  explicit model_builder(std::int64_t opset = 17) {
    m_.ir_version = 8;
    m_.opsets[""] = opset;
    m_.graph_name = "test";
  }

  std::string input(const std::string& name, shape dims, element_type type = element_type::f32) {
    graph::value_info v;
    v.name = name;
    v.type = type;
    v.has_shape = true;
    v.params.resize(dims.size());
    v.dims = std::move(dims);
    m_.inputs.push_back(std::move(v));
    return name;
  }
  std::string constant(const std::string& name, tensor t) {
    m_.initializers[name] = std::move(t);
    return name;
  }
  std::string constant(const std::string& name, const std::vector<std::int64_t>& values) {
    return constant(
        name, make_tensor(element_type::s64, {static_cast<std::int64_t>(values.size())}, values));
  }
  std::string scalar(const std::string& name, float value) {
    return constant(name, floats({}, {value}));
  }

  /// Adds a node with one output, named after its operator and place.
  std::string add(const std::string& op, std::vector<std::string> inputs, attributes a = {},
                  const std::string& domain = "") {
    graph::node n;
    n.op_type = op;
    n.domain = domain;
    n.name = op + "_" + std::to_string(m_.nodes.size());
    n.inputs = std::move(inputs);
    n.outputs = {n.name + "_out"};
    n.attributes = std::move(a);
    m_.nodes.push_back(std::move(n));
    return m_.nodes.back().outputs[0];
  }

  void output(const std::string& name, element_type type = element_type::f32) {
    graph::value_info v;
    v.name = name;
    v.type = type;
    m_.outputs.push_back(std::move(v));
  }

  /// QuantizeLinear with constants for its parameters; 8 bits.
  std::string quantize(const std::string& value, float scale, int zero_point,
                       element_type type = element_type::u8) {
    const auto [s, z] = params(value, scale, zero_point, type);
    return add("QuantizeLinear", {value, s, z});
  }
  std::string dequantize(const std::string& value, float scale, int zero_point,
                         element_type type = element_type::u8) {
    const auto [s, z] = params(value, scale, zero_point, type);
    return add("DequantizeLinear", {value, s, z});
  }
  /// DequantizeLinear of constants; along `axis` if they have several scales.
  std::string dequantize_constant(const std::string& name, tensor levels, tensor scales,
                                  tensor zero_points, std::int64_t axis) {
    attributes a;
    if (scales.rank() != 0) {
      a["axis"] = number(axis);
    }
    return add("DequantizeLinear",
               {constant(name, std::move(levels)), constant(name + "_scale", std::move(scales)),
                constant(name + "_zero_point", std::move(zero_points))},
               std::move(a));
  }
  /// Both.
  std::string pair(const std::string& value, float scale, int zero_point,
                   element_type type = element_type::u8) {
    return dequantize(quantize(value, scale, zero_point, type), scale, zero_point, type);
  }

  [[nodiscard]] const graph::model& get() const noexcept { return m_; }
  [[nodiscard]] graph::model& get() noexcept { return m_; }

 private:
  std::pair<std::string, std::string> params(const std::string& value, float scale, int zero_point,
                                             element_type type) {
    const std::string base = value + "_" + std::to_string(m_.nodes.size());
    const auto z = static_cast<std::uint8_t>(zero_point);
    return {scalar(base + "_scale", scale),
            constant(base + "_zero_point", make_tensor<std::uint8_t>(type, {}, {z}))};
  }

  graph::model m_;
};

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_MODEL_BUILDER_HPP
