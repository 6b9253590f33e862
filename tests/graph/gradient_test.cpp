// SPDX-License-Identifier: BSD-3-Clause
// Gradients against central differences of the operators' definitions, in double.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/fake_quantize.hpp>
#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/make_fake_quantize.hpp>
#include <detent/parallel.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::element_type;
using graph::gradient_graph;
using graph::shape;
using graph::tensor;
using test::attributes;
using test::check_graph_error;
using test::floats;
using test::list;
using test::model_builder;
using test::number;
using test::random_floats;
using test::real;
using test::text;

/// A tensor in double, in the order of its dimensions.
struct reals {
  shape dims;
  std::vector<double> values;

  [[nodiscard]] std::size_t rank() const { return dims.size(); }
  [[nodiscard]] std::size_t stride(std::size_t d) const {
    std::size_t s = 1;
    for (std::size_t i = d + 1; i < dims.size(); ++i) {
      s *= static_cast<std::size_t>(dims[i]);
    }
    return s;
  }
  /// The element at an index of a shape that this one is broadcast to.
  [[nodiscard]] double at(const std::vector<std::int64_t>& index) const {
    std::size_t offset = 0;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      const std::int64_t i = index[index.size() - dims.size() + d];
      offset += static_cast<std::size_t>(dims[d] == 1 ? 0 : i) * stride(d);
    }
    return values[offset];
  }
};

reals zeros(shape dims) {
  reals t{std::move(dims), {}};
  t.values.resize(graph::element_count(t.dims));
  return t;
}

/// Calls f(index, number of the element) for all elements of a shape, in order.
void for_each_index(const shape& dims,
                    const std::function<void(const std::vector<std::int64_t>&, std::size_t)>& f) {
  std::vector<std::int64_t> index(dims.size());
  const std::size_t count = graph::element_count(dims);
  for (std::size_t i = 0; i < count; ++i) {
    f(index, i);
    for (std::size_t d = dims.size(); d-- > 0;) {
      if (++index[d] < dims[d]) {
        break;
      }
      index[d] = 0;
    }
  }
}

reals map_elements(const reals& x, const std::function<double(double)>& f) {
  reals y = x;
  std::transform(x.values.begin(), x.values.end(), y.values.begin(), f);
  return y;
}

reals broadcast(const reals& a, const reals& b, const shape& dims,
                const std::function<double(double, double)>& f) {
  reals y = zeros(dims);
  for_each_index(
      dims, [&](const auto& index, std::size_t i) { y.values[i] = f(a.at(index), b.at(index)); });
  return y;
}

std::int64_t or_default(const shape& values, std::size_t i, std::int64_t otherwise) {
  return i < values.size() ? values[i] : otherwise;
}

/// ONNX's Conv with two spatial axes, or one.
reals convolution(const graph::node& n, const std::vector<reals>& in, const shape& dims) {
  const reals& x = in[0];
  const reals& w = in[1];
  reals y = zeros(dims);
  const std::size_t spatial = x.rank() - 2;
  const std::int64_t group_outputs = w.dims[0] / n.get_int("group", 1);
  for_each_index(dims, [&](const auto& index, std::size_t i) {
    double sum = in.size() > 2 ? in[2].values[static_cast<std::size_t>(index[1])] : 0.0;
    shape taps{w.dims[1]};
    taps.insert(taps.end(), w.dims.begin() + 2, w.dims.end());
    for_each_index(taps, [&](const auto& tap, std::size_t) {
      std::vector<std::int64_t> from{index[0], index[1] / group_outputs * w.dims[1] + tap[0]};
      std::vector<std::int64_t> weight{index[1], tap[0]};
      bool inside = true;
      for (std::size_t d = 0; d < spatial; ++d) {
        const std::int64_t p = index[d + 2] * or_default(n.get_ints("strides"), d, 1) -
                               or_default(n.get_ints("pads"), d, 0) +
                               tap[d + 1] * or_default(n.get_ints("dilations"), d, 1);
        inside = inside && p >= 0 && p < x.dims[d + 2];
        from.push_back(p);
        weight.push_back(tap[d + 1]);
      }
      sum += inside ? x.at(from) * w.at(weight) : 0.0;
    });
    y.values[i] = sum;
  });
  return y;
}

reals pool(const graph::node& n, const reals& x, const shape& dims) {
  const bool global = n.is("GlobalAveragePool");
  const shape kernel =
      global ? shape(x.dims.begin() + 2, x.dims.end()) : n.get_ints("kernel_shape");
  reals y = zeros(dims);
  for_each_index(dims, [&](const auto& index, std::size_t i) {
    double sum = 0.0;
    double largest = -1e300;
    double taps = 0.0;
    double padded = 0.0;
    for_each_index(kernel, [&](const auto& tap, std::size_t) {
      std::vector<std::int64_t> from{index[0], index[1]};
      bool inside = true;
      bool within_padding = true;
      for (std::size_t d = 0; d < kernel.size(); ++d) {
        const std::int64_t p = index[d + 2] * or_default(n.get_ints("strides"), d, 1) -
                               or_default(n.get_ints("pads"), d, 0) +
                               tap[d] * or_default(n.get_ints("dilations"), d, 1);
        inside = inside && p >= 0 && p < x.dims[d + 2];
        within_padding = within_padding &&
                         p < x.dims[d + 2] + or_default(n.get_ints("pads"), kernel.size() + d, 0);
        from.push_back(p);
      }
      padded += within_padding ? 1.0 : 0.0;
      if (inside) {
        sum += x.at(from);
        largest = (std::max)(largest, x.at(from));
        taps += 1.0;
      }
    });
    const bool count_padding = n.get_int("count_include_pad", 0) != 0;
    y.values[i] = n.is("MaxPool") ? largest : sum / (count_padding ? padded : taps);
  });
  return y;
}

/// What a node computes. `dims` is the shape of its output.
reals evaluate(const graph::node& n, const std::vector<reals>& in, const shape& dims) {
  const auto element = [&](const std::function<double(double)>& f) {
    return map_elements(in[0], f);
  };
  if (n.is("Conv")) {
    return convolution(n, in, dims);
  }
  if (n.is("MaxPool") || n.is("AveragePool") || n.is("GlobalAveragePool")) {
    return pool(n, in[0], dims);
  }
  if (n.is("Gemm")) {
    const bool ta = n.get_int("transA", 0) != 0;
    const bool tb = n.get_int("transB", 0) != 0;
    reals y = zeros(dims);
    const std::int64_t k = in[0].dims[ta ? 0 : 1];
    for_each_index(dims, [&](const auto& index, std::size_t i) {
      double sum = 0.0;
      for (std::int64_t j = 0; j < k; ++j) {
        sum += in[0].at(ta ? shape{j, index[0]} : shape{index[0], j}) *
               in[1].at(tb ? shape{index[1], j} : shape{j, index[1]});
      }
      y.values[i] = static_cast<double>(n.get_float("alpha", 1.0F)) * sum;
      if (in.size() > 2) {
        y.values[i] += static_cast<double>(n.get_float("beta", 1.0F)) * in[2].at(index);
      }
    });
    return y;
  }
  if (n.is("MatMul")) {
    reals y = zeros(dims);
    for_each_index(dims, [&](const auto& index, std::size_t i) {
      std::vector<std::int64_t> lhs = index;
      std::vector<std::int64_t> rhs = index;
      for (std::int64_t j = 0; j < in[0].dims.back(); ++j) {
        lhs.back() = j;
        rhs[rhs.size() - 2] = j;
        y.values[i] += in[0].at(lhs) * in[1].at(rhs);
      }
    });
    return y;
  }
  if (n.is("Add") || n.is("Sum")) {
    reals y = broadcast(in[0], in[1], dims, [](double a, double b) { return a + b; });
    for (std::size_t i = 2; i < in.size(); ++i) {
      y = broadcast(y, in[i], dims, [](double a, double b) { return a + b; });
    }
    return y;
  }
  if (n.is("Sub")) {
    return broadcast(in[0], in[1], dims, [](double a, double b) { return a - b; });
  }
  if (n.is("Mul")) {
    return broadcast(in[0], in[1], dims, [](double a, double b) { return a * b; });
  }
  if (n.is("Relu")) {
    return element([](double x) { return x > 0.0 ? x : 0.0; });
  }
  if (n.is("LeakyRelu")) {
    const auto alpha = static_cast<double>(n.get_float("alpha", 0.01F));
    return element([alpha](double x) { return x < 0.0 ? alpha * x : x; });
  }
  if (n.is("Clip")) {
    const double lower = in.size() > 1 && !n.inputs[1].empty() ? in[1].values[0] : -1e300;
    const double upper = in.size() > 2 ? in[2].values[0] : 1e300;
    return element([=](double x) { return (std::min)((std::max)(x, lower), upper); });
  }
  if (n.is("Sigmoid")) {
    return element([](double x) { return 1.0 / (1.0 + std::exp(-x)); });
  }
  if (n.is("Flatten") || n.is("Reshape") || n.is("Squeeze") || n.is("Unsqueeze") ||
      n.is("Identity")) {
    return {dims, in[0].values};
  }
  if (n.is("Transpose")) {
    const shape order = n.get_ints("perm");
    reals y = zeros(dims);
    for_each_index(dims, [&](const auto& index, std::size_t i) {
      std::vector<std::int64_t> from(index.size());
      for (std::size_t d = 0; d < index.size(); ++d) {
        from[order.empty() ? index.size() - 1 - d : static_cast<std::size_t>(order[d])] = index[d];
      }
      y.values[i] = in[0].at(from);
    });
    return y;
  }
  REQUIRE(n.is("Concat"));
  const std::int64_t axis = n.get_int("axis", 0);
  const auto at = static_cast<std::size_t>(axis < 0 ? axis + std::ssize(dims) : axis);
  reals y = zeros(dims);
  for_each_index(dims, [&](const auto& index, std::size_t i) {
    std::vector<std::int64_t> from = index;
    std::size_t part = 0;
    while (from[at] >= in[part].dims[at]) {
      from[at] -= in[part++].dims[at];
    }
    y.values[i] = in[part].at(from);
  });
  return y;
}

/// Multiples of 0.01 and a half, each once, in some order: no two of them are so near to each other
/// or to zero that a small difference would cross a kink.
tensor apart(test::random_source& r, const shape& dims) {
  std::vector<float> values(graph::element_count(dims));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<float>(i) - static_cast<float>(values.size() / 2) + 0.5F) * 0.01F;
  }
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[r.size(0, i - 1)]);
  }
  return floats(dims, values);
}

struct checked_gradients {
  std::size_t count = 0;  // of elements, compared or not
  double largest = 0.0;   // of those expected
};

/// The loss is a random weighted sum of the model's output. Compares the gradients for everything
/// in `wanted` with central differences: of large tensors those of every third element, because
/// each difference runs the model twice.
checked_gradients check_gradients(test::random_source& r, const graph::model& m,
                                  const std::map<std::string, tensor>& inputs,
                                  const std::set<std::string>& wanted) {
  gradient_graph g(m);
  g.forward(inputs);
  const std::string output = m.outputs[0].name;
  const std::size_t size = g.value(output).count();
  std::vector<double> weights(size);
  for (double& w : weights) {
    w = static_cast<double>(r.real(-1.0F, 1.0F));
  }
  const auto found = g.backward({{output, weights}}, wanted);
  CHECK(found.size() == wanted.size());

  std::map<std::string, reals> known;
  const auto keep = [&](const std::string& name, const tensor& t) {
    if (t.type() == element_type::f32) {
      known[name] = {t.dims(), {t.data<float>().begin(), t.data<float>().end()}};
    }
  };
  for (const auto& [name, t] : m.initializers) {
    keep(name, t);
  }
  for (const auto& [name, t] : inputs) {
    keep(name, t);
  }
  const auto loss = [&] {
    std::map<std::string, reals> values = known;
    for (const graph::node& n : m.nodes) {
      std::vector<reals> arguments;
      for (const std::string& name : n.inputs) {
        arguments.push_back(values[name]);
      }
      values[n.outputs[0]] = evaluate(n, arguments, g.value(n.outputs[0]).dims());
    }
    double sum = 0.0;
    for (std::size_t i = 0; i < size; ++i) {
      sum += weights[i] * values[output].values[i];
    }
    return sum;
  };
  checked_gradients checked;
  for (const std::string& name : wanted) {
    const std::vector<double>& gradient = found.at(name);
    REQUIRE(gradient.size() == known[name].values.size());
    checked.count += gradient.size();
    const std::size_t step_of_elements = gradient.size() > 40 ? 3 : 1;
    for (std::size_t i = r.size(0, step_of_elements - 1); i < gradient.size();
         i += step_of_elements) {
      double& x = known[name].values[i];
      const double before = x;
      constexpr double step = 1e-5;
      x = before + step;
      const double above = loss();
      x = before - step;
      const double below = loss();
      x = before;
      const double expected = (above - below) / (2.0 * step);
      INFO("gradient of '", name, "', element ", i, ": ", gradient[i], ", expected ", expected);
      CHECK(std::fabs(gradient[i] - expected) <= 1e-4 * (1.0 + std::fabs(expected)));
      checked.largest = (std::max)(checked.largest, std::fabs(expected));
    }
  }
  return checked;
}

/// One node on constants and one input; all float operands are checked.
void check_operator(const std::string& op, const std::vector<std::pair<std::string, tensor>>& in,
                    const attributes& a, test::random_source& r,
                    const std::set<std::string>& skipped = {}) {
  INFO("operator ", op, ", seed ", r.seed());
  model_builder b;
  std::vector<std::string> names;
  std::set<std::string> wanted;
  for (const auto& [name, t] : in) {
    names.push_back(name);
    if (name.empty()) {
      continue;
    }
    if (name == "x") {
      b.input(name, t.dims());
    } else {
      b.constant(name, t);
    }
    if (t.type() == element_type::f32 && skipped.count(name) == 0) {
      wanted.insert(name);
    }
  }
  b.output(b.add(op, names, a));
  const checked_gradients c = check_gradients(r, b.get(), {{"x", in[0].second}}, wanted);
  CHECK(c.count >= in[0].second.count());
  CHECK(c.largest > 0.01);
}

}  // namespace

TEST_CASE("gradients: convolutions of any window") {
  test::random_source r(101);
  struct geometry {
    shape x;
    shape w;
    attributes a;
  };
  const std::vector<geometry> cases{
      {{2, 3, 5, 4}, {4, 3, 3, 3}, {}},
      {{2, 3, 5, 4}, {4, 3, 3, 2}, {{"pads", list({1, 0, 2, 1})}}},
      {{1, 4, 6, 7},
       {6, 2, 3, 3},
       {{"group", number(2)}, {"strides", list({2, 3})}, {"pads", list({1, 1, 1, 1})}}},
      {{2, 3, 7, 7},
       {3, 1, 3, 3},
       {{"group", number(3)}, {"dilations", list({2, 3})}, {"pads", list({2, 3, 2, 3})}}},
      {{1, 2, 4, 4}, {5, 2, 1, 1}, {{"strides", list({2, 2})}}},
      {{2, 3, 9}, {4, 3, 3}, {{"strides", list({2})}, {"pads", list({1, 1})}}},
      // More padding than a layout with a place for each element of it could have.
      {{1, 1, 1, 1, 1},
       {1, 1, 1, 1, 1},
       {{"pads", list(std::vector<std::int64_t>(6, 1 << 21))},
        {"strides", list(std::vector<std::int64_t>(3, 1 << 21))}}},
      {{2, 3, 4},
       {3, 1, 1},
       {{"group", number(3)}, {"pads", list({70000, 70000})}, {"strides", list({70000})}}},
  };
  for (const geometry& g : cases) {
    for (const bool bias : {false, true}) {
      std::vector<std::pair<std::string, tensor>> in{{"x", random_floats(r, g.x, -1.0F, 1.0F)},
                                                     {"w", random_floats(r, g.w, -1.0F, 1.0F)}};
      if (bias) {
        in.emplace_back("b", random_floats(r, {g.w[0]}, -1.0F, 1.0F));
      }
      check_operator("Conv", in, g.a, r);
    }
  }
}

TEST_CASE("gradients: auto_pad is the padding that it stands for") {
  test::random_source r(102);
  INFO("seed ", r.seed());
  const tensor x = random_floats(r, {1, 2, 6, 5}, -1.0F, 1.0F);
  const tensor w = random_floats(r, {3, 2, 3, 3}, -1.0F, 1.0F);
  std::vector<gradient_graph::gradient_map> found;
  for (const attributes& a :
       {attributes{{"auto_pad", text("SAME_UPPER")}, {"strides", list({2, 2})}},
        attributes{{"pads", list({0, 1, 1, 1})}, {"strides", list({2, 2})}}}) {
    model_builder b;
    b.input("x", {1, 2, 6, 5});
    b.constant("w", w);
    const std::string y = b.add("Conv", {"x", "w"}, a);
    b.output(y);
    gradient_graph g(b.get());
    g.forward({{"x", x}});
    std::vector<double> seed(g.value(y).count());
    for (std::size_t i = 0; i < seed.size(); ++i) {
      seed[i] = 0.25 * static_cast<double>(i % 7) - 0.5;
    }
    found.push_back(g.backward({{y, seed}}, {"x", "w"}));
  }
  CHECK(found[0] == found[1]);
}

TEST_CASE("gradients: products of matrices") {
  test::random_source r(103);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const shape& c : {shape{}, shape{5}, shape{1, 5}, shape{3, 1}, shape{3, 5}}) {
        const attributes a{{"transA", number(ta)},
                           {"transB", number(tb)},
                           {"alpha", real(0.75F)},
                           {"beta", real(-1.5F)}};
        check_operator("Gemm",
                       {{"x", random_floats(r, ta ? shape{4, 3} : shape{3, 4}, -1.0F, 1.0F)},
                        {"w", random_floats(r, tb ? shape{5, 4} : shape{4, 5}, -1.0F, 1.0F)},
                        {"c", random_floats(r, c, -1.0F, 1.0F)}},
                       a, r);
      }
    }
  }
  check_operator(
      "Gemm",
      {{"x", random_floats(r, {3, 4}, -1.0F, 1.0F)}, {"w", random_floats(r, {4, 5}, -1.0F, 1.0F)}},
      {}, r);
  for (const auto& [a, b] : std::vector<std::pair<shape, shape>>{{{3, 4}, {4, 5}},
                                                                 {{2, 3, 4}, {4, 5}},
                                                                 {{2, 3, 4}, {2, 4, 5}},
                                                                 {{2, 1, 3, 4}, {3, 4, 2}},
                                                                 {{1, 3, 4}, {3, 4, 2}}}) {
    check_operator(
        "MatMul",
        {{"x", random_floats(r, a, -1.0F, 1.0F)}, {"w", random_floats(r, b, -1.0F, 1.0F)}}, {}, r);
  }
}

TEST_CASE("gradients: elementwise operators are summed where they broadcast") {
  test::random_source r(104);
  const std::vector<std::pair<shape, shape>> cases{{{2, 3, 4}, {2, 3, 4}}, {{2, 3, 4}, {4}},
                                                   {{2, 3, 4}, {3, 1}},    {{2, 1, 4}, {1, 3, 1}},
                                                   {{4}, {2, 3, 1}},       {{2, 3}, {}}};
  for (const auto& [a, b] : cases) {
    for (const char* op : {"Add", "Sub", "Mul"}) {
      check_operator(
          op, {{"x", random_floats(r, a, -1.0F, 1.0F)}, {"w", random_floats(r, b, -1.0F, 1.0F)}},
          {}, r);
    }
  }
  check_operator("Sum",
                 {{"x", random_floats(r, {2, 3}, -1.0F, 1.0F)},
                  {"w", random_floats(r, {3}, -1.0F, 1.0F)},
                  {"v", random_floats(r, {2, 1}, -1.0F, 1.0F)}},
                 {}, r);
}

TEST_CASE("gradients: activations") {
  test::random_source r(105);
  const shape dims{3, 4, 5};
  check_operator("Relu", {{"x", apart(r, dims)}}, {}, r);
  check_operator("LeakyRelu", {{"x", apart(r, dims)}}, {}, r);
  check_operator("LeakyRelu", {{"x", apart(r, dims)}}, {{"alpha", real(0.3F)}}, r);
  check_operator("Sigmoid", {{"x", random_floats(r, dims, -4.0F, 4.0F)}}, {}, r);
  check_operator("Identity", {{"x", apart(r, dims)}}, {}, r);
  const tensor low = floats({}, {-0.11F});
  const tensor high = floats({}, {0.07F});
  check_operator("Clip", {{"x", apart(r, dims)}, {"low", low}, {"high", high}}, {}, r);
  check_operator("Clip", {{"x", apart(r, dims)}, {"low", low}}, {}, r);
  check_operator("Clip", {{"x", apart(r, dims)}, {"", tensor()}, {"high", high}}, {}, r);
}

TEST_CASE("gradients: at the kinks") {
  model_builder b;
  b.input("x", {3});
  b.constant("low", floats({}, {-1.0F}));
  b.constant("high", floats({}, {1.0F}));
  const std::string relu = b.add("Relu", {"x"});
  const std::string leaky = b.add("LeakyRelu", {"x"}, {{"alpha", real(0.5F)}});
  const std::string elu = b.add("Elu", {"x"}, {{"alpha", real(0.5F)}});
  const std::string clip = b.add("Clip", {"x", "low", "high"});
  b.output(relu);
  gradient_graph g(b.get());
  g.forward({{"x", floats({3}, {0.0F, -1.0F, 1.0F})}});
  const std::vector<double> ones(3, 1.0);
  CHECK(g.backward({{relu, ones}}, {"x"})["x"] == std::vector<double>{0.0, 0.0, 1.0});
  CHECK(g.backward({{leaky, ones}}, {"x"})["x"] == std::vector<double>{1.0, 0.5, 1.0});
  const std::vector<double> of_elu = g.backward({{elu, ones}}, {"x"})["x"];
  CHECK(of_elu[0] == 0.5);
  CHECK(of_elu[2] == 1.0);
  CHECK(g.backward({{clip, ones}}, {"x"})["x"] == ones);
  CHECK(g.backward({{clip, ones}}, {"low"})["low"] == std::vector<double>{0.0});

  model_builder p;
  p.input("x", {1, 1, 2, 2});
  const std::string pooled = p.add("MaxPool", {"x"}, {{"kernel_shape", list({2, 2})}});
  p.output(pooled);
  gradient_graph pool_graph(p.get());
  pool_graph.forward({{"x", floats({1, 1, 2, 2}, {0.0F, 2.0F, 2.0F, 1.0F})}});
  CHECK(pool_graph.backward({{pooled, {3.0}}}, {"x"})["x"] ==
        std::vector<double>{0.0, 3.0, 0.0, 0.0});
}

TEST_CASE("gradients: at ties and other kinks, all of it goes to the first") {
  model_builder b;
  b.input("x", {3});
  b.constant("c", floats({3}, {0.0F, 2.0F, -1.0F}));
  const std::string outputs[] = {b.add("Abs", {"x"}), b.add("Max", {"x", "c"}),
                                 b.add("Min", {"c", "x"}), b.add("ReduceMax", {"x"}),
                                 b.add("PRelu", {"x", "c"})};
  b.output(outputs[0]);
  gradient_graph g(b.get());
  g.forward({{"x", floats({3}, {0.0F, 2.0F, 2.0F})}});
  const std::vector<std::vector<double>> of_x{
      {0.0, 1.0, 1.0}, {1.0, 1.0, 1.0}, {0.0, 0.0, 0.0}, {0.0, 1.0, 0.0}, {1.0, 1.0, 1.0}};
  const std::vector<std::vector<double>> of_c{
      {0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}, {1.0, 1.0, 1.0}, {0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}};
  for (std::size_t i = 0; i < std::size(outputs); ++i) {
    INFO(outputs[i]);
    const std::vector<double> ones(g.value(outputs[i]).count(), 1.0);
    const auto found = g.backward({{outputs[i], ones}}, {"x", "c"});
    CHECK(found.at("x") == of_x[i]);
    CHECK(found.at("c") == of_c[i]);
  }
}

TEST_CASE("gradients: of values between, which are wanted and passed through") {
  model_builder b;
  b.input("x", {2});
  const std::string between = b.add("Neg", {"x"});
  const std::string y = b.add("Mul", {between, between});
  b.output(y);
  gradient_graph g(b.get());
  g.forward({{"x", floats({2}, {3.0F, -1.0F})}});
  const auto found = g.backward({{y, {1.0, 10.0}}}, {"x", between});
  CHECK(found.at(between) == std::vector<double>{-6.0, 20.0});
  CHECK(found.at("x") == std::vector<double>{6.0, -20.0});
}

TEST_CASE("gradients: through casts to other floating-point types, but not operators on these") {
  model_builder b;
  b.input("x", {2});
  const std::string half = b.add("Cast", {"x"}, {{"to", number(10)}});
  const std::string back = b.add("Cast", {b.add("Identity", {half})}, {{"to", number(1)}});
  const std::string sum = b.add("Cast", {b.add("Add", {half, half})}, {{"to", number(1)}});
  const std::string whole = b.add("Cast", {"x"}, {{"to", number(7)}});
  b.output(back);
  CHECK(graph::nodes_without_gradient(b.get()).size() == 1);
  gradient_graph g(b.get());
  g.forward({{"x", floats({2}, {3.0F, -1.0F})}});
  CHECK(g.backward({{back, {2.0, 5.0}}}, {"x"})["x"] == std::vector<double>{2.0, 5.0});
  check_graph_error(error_kind::unsupported, {"Add", "float16"}, [&] {
    static_cast<void>(g.backward({{sum, {1.0, 1.0}}}, {"x"}));
  });
}

TEST_CASE("BatchNormalization in training updates the running statistics") {
  model_builder b;
  b.get().opsets[""] = 15;
  b.input("x", {2, 2, 2});
  b.constant("scale", floats({2}, {2.0F, 1.0F}));
  b.constant("bias", floats({2}, {0.5F, 0.0F}));
  b.constant("mean", floats({2}, {10.0F, -10.0F}));
  b.constant("variance", floats({2}, {4.0F, 1.0F}));
  const std::string y =
      b.add("BatchNormalization", {"x", "scale", "bias", "mean", "variance"},
            {{"training_mode", number(1)}, {"momentum", real(0.75F)}, {"epsilon", real(0.0F)}});
  b.get().nodes[0].outputs = {y, "new_mean", "new_variance"};
  b.output(y);
  gradient_graph g(b.get());
  // Channel 0 holds 1, 3, 5, 7: mean 4, variance 5. Channel 1 holds 2, 2, 4, 4: mean 3, variance 1.
  g.forward({{"x", floats({2, 2, 2}, {1.0F, 3.0F, 2.0F, 2.0F, 5.0F, 7.0F, 4.0F, 4.0F})}});
  CHECK(test::values_of<float>(g.value("new_mean")) == std::vector<float>{8.5F, -6.75F});
  CHECK(test::values_of<float>(g.value("new_variance")) == std::vector<float>{4.25F, 1.0F});
  const std::vector<double> found = test::doubles(g.value(y));
  const double step = 2.0 / std::sqrt(5.0);
  const std::vector<double> expected{0.5 - 3.0 * step, 0.5 - step,       -1.0, -1.0,
                                     0.5 + step,       0.5 + 3.0 * step, 1.0,  1.0};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  }
  // Before opset 14 a node is known by its outputs, and is not supported.
  b.get().opsets[""] = 13;
  gradient_graph old(b.get());
  check_graph_error(error_kind::unsupported, {"training", "13"}, [&] {
    old.forward({{"x", floats({2, 2, 2}, std::vector<float>(8, 1.0F))}});
  });
}

TEST_CASE("gradients: pools") {
  test::random_source r(106);
  const attributes windows[] = {
      {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}},
      {{"kernel_shape", list({3, 2})}, {"strides", list({1, 2})}, {"pads", list({1, 0, 2, 1})}},
      {{"kernel_shape", list({3, 3})}, {"strides", list({2, 2})}, {"ceil_mode", number(1)}},
  };
  for (const attributes& a : windows) {
    check_operator("MaxPool", {{"x", apart(r, {2, 3, 6, 5})}}, a, r);
    check_operator("AveragePool", {{"x", apart(r, {2, 3, 6, 5})}}, a, r);
    attributes padded = a;
    padded["count_include_pad"] = number(1);
    check_operator("AveragePool", {{"x", apart(r, {2, 3, 6, 5})}}, padded, r);
  }
  check_operator("MaxPool", {{"x", apart(r, {1, 2, 9, 9})}},
                 {{"kernel_shape", list({3, 2})}, {"dilations", list({2, 3})}}, r);
  check_operator("MaxPool", {{"x", apart(r, {2, 2, 7})}},
                 {{"kernel_shape", list({3})}, {"strides", list({2})}}, r);
  check_operator("GlobalAveragePool", {{"x", apart(r, {2, 3, 4, 5})}}, {}, r);
}

TEST_CASE("gradients: moved elements") {
  test::random_source r(107);
  const tensor x = random_floats(r, {2, 3, 4}, -1.0F, 1.0F);
  const auto integers = [](const std::vector<std::int64_t>& values) {
    return test::make_tensor<std::int64_t>(element_type::s64,
                                           {static_cast<std::int64_t>(values.size())}, values);
  };
  check_operator("Transpose", {{"x", x}}, {}, r);
  check_operator("Transpose", {{"x", x}}, {{"perm", list({1, 2, 0})}}, r);
  check_operator("Transpose", {{"x", x}}, {{"perm", list({0, 2, 1})}}, r);
  check_operator("Flatten", {{"x", x}}, {{"axis", number(2)}}, r);
  check_operator("Reshape", {{"x", x}, {"dims", integers({4, -1})}}, {}, r);
  check_operator("Unsqueeze", {{"x", x}, {"axes", integers({1})}}, {}, r);
  check_operator("Squeeze", {{"x", x.reshaped({2, 1, 12})}, {"axes", integers({1})}}, {}, r);
  for (const std::int64_t axis : {0, 1, 2, -1}) {
    shape other{2, 3, 4};
    other[static_cast<std::size_t>(axis < 0 ? 2 : axis)] = 5;
    check_operator("Concat",
                   {{"x", x},
                    {"w", random_floats(r, other, -1.0F, 1.0F)},
                    {"v", random_floats(r, {2, 3, 4}, -1.0F, 1.0F)}},
                   {{"axis", number(axis)}}, r);
  }
}

TEST_CASE("gradients: a network with branches, from its output to every constant") {
  test::random_source r(108);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3, 6, 6});
  b.constant("w1", random_floats(r, {4, 3, 3, 3}, -0.5F, 0.5F));
  b.constant("b1", random_floats(r, {4}, -0.3F, 0.3F));
  b.constant("w2", random_floats(r, {4, 1, 3, 3}, -0.5F, 0.5F));
  b.constant("factor", random_floats(r, {4, 1, 1}, 0.5F, 1.5F));
  b.constant("w3", random_floats(r, {8, 5}, -0.5F, 0.5F));
  b.constant("b3", random_floats(r, {5}, -0.3F, 0.3F));
  const attributes same{{"pads", list({1, 1, 1, 1})}};
  const std::string first = b.add("Relu", {b.add("Conv", {"x", "w1", "b1"}, same)});
  const std::string second =
      b.add("Conv", {first, "w2"}, {{"pads", list({1, 1, 1, 1})}, {"group", number(4)}});
  const std::string gate = b.add("Sigmoid", {second});
  const std::string gated = b.add("Mul", {b.add("Mul", {first, gate}), "factor"});
  const std::string joined =
      b.add("Concat", {b.add("Add", {gated, second}), first}, {{"axis", number(1)}});
  const std::string row = b.add("Flatten", {b.add("GlobalAveragePool", {joined})});
  b.output(b.add("Gemm", {row, "w3", "b3"}));
  const tensor x = random_floats(r, {2, 3, 6, 6}, -1.0F, 1.0F);
  const checked_gradients c =
      check_gradients(r, b.get(), {{"x", x}}, {"x", "w1", "b1", "w2", "factor", "w3", "b3"});
  CHECK(c.count == 2 * 3 * 36 + 108 + 4 + 36 + 4 + 40 + 5);
  CHECK(c.largest > 0.05);

  // Threads change nothing.
  std::vector<gradient_graph::gradient_map> found;
  for (const bool parallel : {false, true}) {
    graph::executor_options options;
    if (parallel) {
      options.parallel = [](std::size_t count, const std::function<void(std::size_t)>& body) {
        for (std::size_t i = count; i-- > 0;) {
          body(i);
        }
      };
    }
    gradient_graph g(b.get(), options);
    g.forward({{"x", x}});
    found.push_back(g.backward({{b.get().outputs[0].name, std::vector<double>(10, 0.5)}},
                               {"x", "w1", "w2", "w3"}));
  }
  CHECK(found[0] == found[1]);
}

TEST_CASE("gradients: FakeQuantize is straight through, with LSQ's gradient of the scale") {
  test::random_source r(109);
  INFO("seed ", r.seed());
  for (const bool per_channel : {false, true}) {
    const detent::grid levels{-4, 3};
    const std::vector<float> scales =
        per_channel ? std::vector<float>{0.1F, 0.25F, 0.07F} : std::vector<float>{0.2F};
    const std::vector<std::int32_t> zero_points =
        per_channel ? std::vector<std::int32_t>{0, 1, -2} : std::vector<std::int32_t>{-1};
    const auto channels = static_cast<std::int64_t>(scales.size());
    graph::model m;
    m.opsets[""] = 17;
    m.inputs.push_back({"x", element_type::f32, false, {}, {}});
    m.initializers["s"] = floats(per_channel ? shape{channels} : shape{}, scales);
    m.initializers["z"] = test::make_tensor<std::int32_t>(
        element_type::s32, per_channel ? shape{channels} : shape{}, zero_points);
    m.nodes.push_back(graph::make_fake_quantize("x", "s", "z", "y", levels, 1));
    m.outputs.push_back({"y", element_type::f32, false, {}, {}});
    gradient_graph g(m);
    const tensor x = random_floats(r, {4, 3, 5}, -1.0F, 1.0F);
    g.forward({{"x", x}});
    std::vector<double> seed(x.count());
    for (double& v : seed) {
      v = static_cast<double>(r.real(-1.0F, 1.0F));
    }
    const auto found = g.backward({{"y", seed}}, {"x", "s"});
    std::vector<double> expected(scales.size());
    std::size_t inside = 0;
    std::size_t outside = 0;
    for (std::size_t i = 0; i < x.count(); ++i) {
      const std::size_t ch = per_channel ? i / 5 % 3 : 0;
      const double steps = static_cast<double>(x.data<float>()[i] / scales[ch]);
      const double rounded = std::nearbyint(steps);
      const double lowest = levels.qmin - zero_points[ch];
      const double highest = levels.qmax - zero_points[ch];
      const double clamped = (std::min)((std::max)(rounded, lowest), highest);
      const bool is_inside = clamped == rounded;
      (is_inside ? inside : outside) += 1;
      CHECK(static_cast<double>(g.value("y").data<float>()[i]) ==
            doctest::Approx(clamped * static_cast<double>(scales[ch])));
      CHECK(found.at("x")[i] ==
            (is_inside ? static_cast<double>(static_cast<float>(seed[i])) : 0.0));
      expected[ch] += seed[i] * (is_inside ? rounded - steps : clamped);
    }
    CHECK(inside > 5);
    CHECK(outside > 5);
    for (std::size_t ch = 0; ch < scales.size(); ++ch) {
      CHECK(found.at("s")[ch] == doctest::Approx(expected[ch]).epsilon(1e-5));
    }
  }
}

TEST_CASE("gradients: constants change between runs, and so do batches") {
  test::random_source r(110);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3});
  b.constant("w", random_floats(r, {3, 2}, -1.0F, 1.0F));
  const std::string y = b.add("Gemm", {"x", "w"});
  b.output(y);
  gradient_graph g(b.get());
  g.forward({{"x", floats({1, 3}, {1.0F, 2.0F, 3.0F})}});
  CHECK(g.backward({{y, {1.0, 0.0}}}, {"w"})["w"] ==
        std::vector<double>{1.0, 0.0, 2.0, 0.0, 3.0, 0.0});
  g.set_constant("w", floats({3, 2}, {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}));
  g.forward({{"x", floats({2, 3}, {1.0F, 0.0F, 0.0F, 0.0F, 0.0F, 1.0F})}});
  CHECK(test::values_of<float>(g.value(y)) == std::vector<float>{1.0F, 2.0F, 5.0F, 6.0F});
  CHECK(g.backward({{y, {1.0, 1.0, 0.0, 1.0}}}, {"x"})["x"] ==
        std::vector<double>{3.0, 7.0, 11.0, 2.0, 4.0, 6.0});
  // What the loss does not depend on.
  CHECK(g.backward({}, {"x"})["x"] == std::vector<double>(6, 0.0));
}

TEST_CASE("gradients: what cannot be done is said") {
  model_builder b;
  b.input("x", {2, 3});
  b.constant("w", floats({2, 3}, {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}));
  b.constant("axes", {1});
  const std::string soft = b.add("Round", {"x"});
  const std::string sum = b.add("Add", {soft, "w"});
  b.output(sum);
  CHECK(graph::nodes_without_gradient(b.get()) == std::vector<std::string>{"Round node 'Round_0'"});
  gradient_graph g(b.get());
  check_graph_error(error_kind::invalid_argument, {"no value", "x"},
                    [&] { static_cast<void>(g.value("x")); });
  check_graph_error(error_kind::invalid_argument, {"input 'x'", "missing"}, [&] { g.forward({}); });
  g.forward({{"x", floats({2, 3}, {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F})}});
  const std::vector<double> seed(6, 1.0);
  // A constant behind the operator has a gradient all the same.
  CHECK(g.backward({{sum, seed}}, {"w"})["w"] == seed);
  check_graph_error(error_kind::unsupported, {"Round_0", "no gradient"}, [&] {
    static_cast<void>(g.backward({{sum, seed}}, {"x"}));
  });
  check_graph_error(error_kind::shape_mismatch, {"2 elements", sum, "[2,3]"}, [&] {
    static_cast<void>(g.backward({{sum, {1.0, 2.0}}}, {"w"}));
  });
  check_graph_error(error_kind::invalid_argument, {"no value", "nothing"}, [&] {
    static_cast<void>(g.backward({{sum, seed}}, {"nothing"}));
  });
  check_graph_error(error_kind::invalid_argument, {"axes", "int64"}, [&] {
    static_cast<void>(g.backward({{sum, seed}}, {"axes"}));
  });
  check_graph_error(error_kind::invalid_argument, {"no constant", "nothing"},
                    [&] { g.set_constant("nothing", floats({1}, {1.0F})); });
  check_graph_error(error_kind::shape_mismatch, {"constant 'w'", "[2,3]", "[3]"}, [&] {
    g.set_constant("w", floats({3}, {1.0F, 2.0F, 3.0F}));
  });
  model_builder statistics;
  statistics.input("x", {4});
  statistics.constant("scale", floats({4}, {1.0F, 1.0F, 1.0F, 1.0F}));
  statistics.output(statistics.add("LayerNormalization", {"x", "scale"}));
  statistics.get().nodes[0].outputs.push_back("mean");
  statistics.output("mean");
  gradient_graph outputs(statistics.get());
  outputs.forward({{"x", floats({4}, {1.0F, 2.0F, 3.0F, 4.0F})}});
  check_graph_error(error_kind::unsupported, {"no gradient of output 1 'mean'"}, [&] {
    static_cast<void>(outputs.backward({{"mean", {1.0}}}, {"x"}));
  });
  model_builder scales;
  scales.input("x", {2, 3});
  scales.constant("s", floats({2}, {0.5F, 0.25F}));
  scales.constant("z", test::make_tensor<std::int32_t>(element_type::s32, {2}, {0, 0}));
  scales.get().nodes.push_back(graph::make_fake_quantize("x", "s", "z", "y", {-4, 3}, 1));
  scales.output("y");
  gradient_graph quantized(scales.get());
  check_graph_error(error_kind::bad_file, {"2 scales for axis 1"}, [&] {
    quantized.forward({{"x", floats({2, 3}, {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F})}});
  });
  model_builder unknown;
  unknown.input("x", {1});
  unknown.output(unknown.add("NoSuchOperator", {"x"}));
  check_graph_error(error_kind::unsupported, {"NoSuchOperator"},
                    [&] { gradient_graph fails(unknown.get()); });
}
