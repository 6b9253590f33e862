// SPDX-License-Identifier: BSD-3-Clause
// A run of an executor that has run before allocates little more than the list of its outputs.
#include <cstddef>
#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

#include "counted_allocations.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

using namespace test;

std::size_t allocations_of_run(const graph::model& m, const tensors& inputs) {
  graph::executor e(graph::for_execution(m));
  return allocations_of([&] { static_cast<void>(e.run(inputs)); });
}

/// Adds a convolution with random weights, and Relu.
std::string add_convolution(model_builder& b, random_source& r, const std::string& x,
                            std::int64_t in, std::int64_t out, std::int64_t kernel,
                            std::int64_t group) {
  const std::string name = "weights of " + x + std::to_string(kernel);
  const std::string y = b.add(
      "Conv",
      {x, b.constant(name, random_floats(r, {out, in / group, kernel, kernel}, -0.5F, 0.5F)),
       b.constant("bias of " + name, random_floats(r, {out}, -0.5F, 0.5F))},
      {{"group", number(group)}, {"pads", list({kernel / 2, kernel / 2, kernel / 2, kernel / 2})}});
  return b.add("Relu", {y});
}

}  // namespace

TEST_CASE("allocations of a run: linear layers") {
  random_source r(1);
  model_builder b;
  std::string x = b.input("x", {4, 64});
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i);
    x = b.add("Gemm", {x, b.constant("w" + n, random_floats(r, {64, 64}, -0.2F, 0.2F)),
                       b.constant("b" + n, random_floats(r, {64}, -0.2F, 0.2F))});
    x = b.add("Relu", {x});
  }
  b.output(x);
  const tensors inputs = {{"x", random_floats(r, {4, 64}, -1.0F, 1.0F)}};
  CHECK(allocations_of_run(b.get(), inputs) == 1);  // the outputs
}

TEST_CASE("allocations of a run: elementwise operators, normalization and Softmax") {
  random_source r(2);
  model_builder b;
  std::string x = b.input("x", {8, 96});
  x = b.add("LayerNormalization", {x, b.constant("scale", random_floats(r, {96}, 0.5F, 2.0F)),
                                   b.constant("bias", random_floats(r, {96}, -0.5F, 0.5F))});
  x = b.add("Sigmoid", {x});
  x = b.add("Mul", {x, b.scalar("two", 2.0F)});
  x = b.add("Tanh", {x});
  x = b.add("Softmax", {x});
  b.output(x);
  const tensors inputs = {{"x", random_floats(r, {8, 96}, -1.0F, 1.0F)}};
  // The outputs, and how the product walks along a scalar.
  CHECK(allocations_of_run(b.get(), inputs) <= 2);
}

TEST_CASE("allocations of a run: a convolutional network") {
  random_source r(3);
  model_builder b;
  const std::string x = b.input("x", {1, 16, 12, 12});
  const std::string first = add_convolution(b, r, x, 16, 16, 3, 1);
  const std::string second = add_convolution(b, r, first, 16, 16, 3, 16);
  const std::string third = add_convolution(b, r, second, 16, 16, 1, 1);
  const std::string sum = b.add("Add", {third, first});
  const std::string pooled = b.add("GlobalAveragePool", {sum});
  const std::string flat = b.add("Flatten", {pooled});
  b.output(b.add("MatMul", {flat, b.constant("w", random_floats(r, {16, 10}, -0.5F, 0.5F))}));
  const tensors inputs = {{"x", random_floats(r, {1, 16, 12, 12}, -1.0F, 1.0F)}};
  // The outputs, and the windows of the pool.
  CHECK(allocations_of_run(b.get(), inputs) <= 12);
}
