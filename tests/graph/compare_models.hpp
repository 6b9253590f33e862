// SPDX-License-Identifier: BSD-3-Clause
// Whether two models compute the same.
#ifndef DETENT_TESTS_GRAPH_COMPARE_MODELS_HPP
#define DETENT_TESTS_GRAPH_COMPARE_MODELS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>

#include "compare.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace test {

/// Empty if both models give the same bits.
inline std::string different(const graph::model& a, const graph::model& b, const tensors& inputs) {
  const auto x = run(a, inputs);
  const auto y = run(b, inputs);
  if (x.size() != y.size()) {
    return "another number of outputs";
  }
  std::string all;
  for (std::size_t i = 0; i < x.size(); ++i) {
    all += difference(x[i], y[i]);
  }
  return all;
}

/// The largest distance of the outputs, as a share of the largest value of the first model.
inline double distance(const graph::model& a, const graph::model& b, const tensors& inputs) {
  const auto x = run(a, inputs);
  const auto y = run(b, inputs);
  REQUIRE(x.size() == y.size());
  double most = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    REQUIRE(x[i].size() == y[i].size());
    double largest = 1e-30;
    double farthest = 0.0;
    for (std::size_t k = 0; k < x[i].size(); ++k) {
      const auto one = static_cast<double>(x[i][k]);
      largest = (std::max)(largest, std::fabs(one));
      farthest = (std::max)(farthest, std::fabs(one - static_cast<double>(y[i][k])));
    }
    most = (std::max)(most, farthest / largest);
  }
  return most;
}

/// The float constants of a model, in the order of their names.
inline std::vector<std::vector<float>> constants(const graph::model& m) {
  std::vector<std::vector<float>> all;
  for (const auto& [name, t] : m.initializers) {
    if (t.type() == element_type::f32) {
      all.push_back(values_of<float>(t));
    }
  }
  return all;
}

/// Random weights whose indices along `axis` have ranges that differ by up to 2^13, and
/// by 2^11 at least.
inline tensor uneven(random_source& r, shape dims, std::size_t axis) {
  tensor t = random_floats(r, dims, -1.0F, 1.0F);
  std::size_t inner = 1;
  for (std::size_t d = axis + 1; d < dims.size(); ++d) {
    inner *= static_cast<std::size_t>(dims[d]);
  }
  std::vector<float> factors;
  for (std::int64_t i = 0; i < dims[axis]; ++i) {
    const int exponent = i == 0 ? 6 : i + 1 == dims[axis] ? -6 : r.integer(-4, 4);
    factors.push_back(std::ldexp(r.real(0.5F, 1.0F), exponent));
  }
  for (std::size_t k = 0; k < t.count(); ++k) {
    t.mutable_data<float>()[k] *= factors[k / inner % factors.size()];
  }
  return t;
}

/// A convolution with such weights, its constants called `name`_w and `name`_b.
inline std::string uneven_convolution(model_builder& b, random_source& r, const std::string& x,
                                      const std::string& name, const shape& filters,
                                      attributes a = {}, bool bias = true) {
  std::vector<std::string> inputs{x, b.constant(name + "_w", uneven(r, filters, 0))};
  if (bias) {
    inputs.push_back(b.constant(name + "_b", random_floats(r, {filters[0]}, -1.0F, 1.0F)));
  }
  return b.add("Conv", inputs, std::move(a));
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_COMPARE_MODELS_HPP
