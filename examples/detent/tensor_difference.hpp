// SPDX-License-Identifier: BSD-3-Clause
// Where two tensors differ.
#ifndef DETENT_CLI_TENSOR_DIFFERENCE_HPP
#define DETENT_CLI_TENSOR_DIFFERENCE_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>

namespace detent_cli {

/// The largest relative difference of floats that counts as none: 1e-3, as in ONNX's own runner,
/// but at least two units in the last place of a type of 16 bits.
inline double relative_tolerance(detent::graph::element_type type) {
  using detent::graph::element_type;
  return type == element_type::bf16 ? 0x1p-6 : type == element_type::f16 ? 0x1p-9 : 1e-3;
}

/// An element as messages show it, floats with six digits.
template <class T>
std::string shown(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    std::array<char, 32> text;
    std::snprintf(text.data(), text.size(), "%g", static_cast<double>(value));
    return text.data();
  } else {
    return std::to_string(value);
  }
}

/// The text for elements that differ.
template <class T>
std::string difference_at(std::size_t i, T actual, T expected) {
  return "element " + std::to_string(i) + " is " + shown(actual) + ", expected " + shown(expected);
}

/// first_difference() of floats of one type and shape.
inline std::string first_different_float(const detent::graph::tensor& actual,
                                         const detent::graph::tensor& expected) {
  namespace graph = detent::graph;
  using graph::element_type;
  using graph::tensor;
  const auto values = [](const tensor& t) {
    std::vector<double> v(t.count());
    const bool known = graph::visit_type(graph::float_types{}, t.type(), [&]<class T>() {
      std::copy(t.data<T>().begin(), t.data<T>().end(), v.begin());
    });
    const bool is_byte = graph::visit_type(graph::float8_types{}, t.type(), [&]<class T>() {
      std::transform(t.data<T>().begin(), t.data<T>().end(), v.begin(),
                     [](T x) { return static_cast<double>(detent::to_float(x)); });
    });
    if (!known && !is_byte) {
      const auto bits = t.data<std::uint16_t>();
      for (std::size_t i = 0; i < v.size(); ++i) {
        v[i] = static_cast<double>(t.type() == element_type::f16
                                       ? detent::to_float(detent::float16{bits[i]})
                                       : detent::to_float(detent::bfloat16{bits[i]}));
      }
    }
    return v;
  };
  const std::vector<double> a = values(actual);
  const std::vector<double> e = values(expected);
  const double tolerance = relative_tolerance(actual.type());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same =
        a[i] == e[i] || (std::isnan(a[i]) && std::isnan(e[i])) ||
        (std::isfinite(e[i]) && std::fabs(a[i] - e[i]) <= 1e-7 + tolerance * std::fabs(e[i]));
    if (!same) {
      return difference_at(i, a[i], e[i]);
    }
  }
  return {};
}

/// first_difference() of integers of one type and shape, which a double may not hold.
inline std::string first_different_integer(const detent::graph::tensor& actual,
                                           const detent::graph::tensor& expected) {
  namespace graph = detent::graph;
  using graph::element_type;
  const element_type type = actual.type() == element_type::u4        ? element_type::u8
                            : actual.type() == element_type::s4      ? element_type::s8
                            : actual.type() == element_type::boolean ? element_type::u8
                                                                     : actual.type();
  std::string difference;
  const bool known = graph::visit_type(graph::number_types{}, type, [&]<class T>() {
    const T* a = reinterpret_cast<const T*>(actual.raw());
    const T* e = reinterpret_cast<const T*>(expected.raw());
    const std::size_t i =
        static_cast<std::size_t>(std::mismatch(a, a + actual.count(), e).first - a);
    if (i < actual.count()) {
      difference = difference_at(i, a[i], e[i]);
    }
  });
  detent::require(known, detent::error_kind::unsupported, "elements of type ",
                  graph::name(actual.type()), " cannot be compared");
  return difference;
}

/// Describes the first difference between two tensors; empty if there is none. Integers must be
/// equal, floats may differ by 1e-7 + relative_tolerance() |expected|, and NaN is equal to NaN.
inline std::string first_difference(const detent::graph::tensor& actual,
                                    const detent::graph::tensor& expected) {
  namespace graph = detent::graph;
  using graph::element_type;
  if (actual.type() != expected.type() || actual.dims() != expected.dims()) {
    return graph::name(actual.type()) + " " + graph::to_string(actual.dims()) + ", expected " +
           graph::name(expected.type()) + " " + graph::to_string(expected.dims());
  }
  const bool real = actual.type() == element_type::f32 || actual.type() == element_type::f64 ||
                    actual.type() == element_type::f16 || actual.type() == element_type::bf16 ||
                    graph::is_float8(actual.type());
  return real ? first_different_float(actual, expected) : first_different_integer(actual, expected);
}

}  // namespace detent_cli

#endif  // DETENT_CLI_TENSOR_DIFFERENCE_HPP
