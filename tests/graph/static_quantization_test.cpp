// SPDX-License-Identifier: BSD-3-Clause
// Static quantization: its options, and graphs in which constants and results have several uses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/nncf/quantize.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantize_onnx_model.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_rounding.hpp>
#include <detent/graph/rewrite/gemm_factors.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/onnxruntime_guards.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observer_registry.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "compare_models.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

/// Convolutions, a sum, elements that are only moved, a product with a bias that is added.
graph::model network(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 3, 8, 8});
  const auto name = [&](const std::string& n) { b.get().nodes.back().name = n; };
  const auto conv = [&](const std::string& n, const std::string& x, std::int64_t in) {
    const std::string y =
        b.add("Conv",
              {x, b.constant(n + "_w", random_floats(r, {4, in, 3, 3}, -0.4F, 0.4F)),
               b.constant(n + "_b", random_floats(r, {4}, -0.5F, 0.5F))},
              {{"pads", list({1, 1, 1, 1})}});
    name(n);
    return y;
  };
  const std::string stem = b.add("Relu", {conv("stem", "x", 3)});
  const std::string left = conv("left", stem, 4);
  const std::string sum = b.add("Add", {left, stem});
  name("sum");
  std::string y =
      b.add("MaxPool", {sum}, {{"kernel_shape", list({4, 4})}, {"strides", list({4, 4})}});
  name("pool");
  y = b.add("Flatten", {y});
  name("flat");
  y = b.add("MatMul", {y, b.constant("class_w", random_floats(r, {16, 5}, -1.0F, 1.0F))});
  name("class");
  y = b.add("Add", {y, b.constant("class_b", random_floats(r, {5}, -1.0F, 1.0F))});
  name("offset");
  b.output(y);
  return b.get();
}

double snr(const graph::model& real, const graph::model& quantized,
           const std::vector<sample>& samples) {
  const graph::output_judge judge(real, test::samples_source(samples), samples.size());
  double least = std::numeric_limits<double>::infinity();
  for (const graph::signal_error& e : judge.errors(quantized)) {
    least = (std::min)(least, e.snr_db());
  }
  return least;
}

/// x [N, 4, 5, 4] -> ConvTranspose to 6 channels, 3 x 2 kernels, strides 2 and 1 -> y, with weights
/// whose channels differ; those of index 1 are zero in all groups.
struct upsampling {
  static constexpr std::size_t in = 4, out = 6, taps = 6;
  graph::model m;
  std::size_t groups;

  upsampling(test::random_source& r, std::size_t g, bool with_bias) : groups(g) {
    model_builder b;
    b.input("x", {-1, 4, 5, 4});
    tensor w = random_floats(r, {4, static_cast<std::int64_t>(out / groups), 3, 2}, -0.4F, 0.4F);
    const auto values = w.mutable_data<float>();
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::size_t channel = k / taps % per_group();
      values[k] *= channel == 1 ? 0.0F : channel == 0 ? 5.0F : 1.0F;
    }
    b.constant("w", std::move(w));
    std::vector<std::string> inputs{"x", "w"};
    if (with_bias) {
      inputs.push_back(b.constant("b", random_floats(r, {6}, -0.5F, 0.5F)));
    }
    b.output(b.add("ConvTranspose", inputs,
                   {{"group", number(static_cast<std::int64_t>(groups))},
                    {"strides", list({2, 1})},
                    {"pads", list({1, 0, 0, 1})}}));
    b.get().nodes.back().name = "up";
    m = b.get();
  }
  [[nodiscard]] std::size_t per_group() const { return out / groups; }

  /// The result for one input [1, 4, 5, 4], in double, as [6, 10, 4].
  [[nodiscard]] std::vector<double> result(const std::vector<double>& x,
                                           const std::vector<double>& w,
                                           const std::vector<double>& bias) const {
    std::vector<double> y(out * 40, 0.0);
    for (std::size_t c = 0; c < y.size() && !bias.empty(); ++c) {
      y[c] = bias[c / 40];
    }
    for (std::size_t i = 0; i < in; ++i) {
      const std::size_t group = i / (in / groups);
      for (std::size_t o = 0; o < per_group(); ++o) {
        for (std::size_t row = 0; row < 5; ++row) {
          for (std::size_t column = 0; column < 4; ++column) {
            for (std::size_t k = 0; k < taps; ++k) {
              const std::size_t at_row = 2 * row + k / 2;  // one more than it is, for the padding
              const std::size_t at_column = column + k % 2;
              if (at_row >= 1 && at_row <= 10 && at_column < 4) {
                y[((group * per_group() + o) * 10 + at_row - 1) * 4 + at_column] +=
                    x[(i * 5 + row) * 4 + column] * w[(i * per_group() + o) * taps + k];
              }
            }
          }
        }
      }
    }
    return y;
  }
};

/// scale * (code - zero point) of the DequantizeLinear that makes a value from a constant, along
/// `axis` of its codes.
std::vector<double> dequantized_constant(const graph::model& m, const std::string& value,
                                         std::size_t axis) {
  const graph::node& dq = *producer(m, value);
  REQUIRE(dq.is("DequantizeLinear"));
  const tensor& codes = m.initializers.at(dq.inputs[0]);
  const auto scales = m.initializers.at(dq.inputs[1]).data<float>();
  if (scales.size() > 1) {
    CHECK(dq.get_int("axis", 1) == static_cast<std::int64_t>(axis));
    CHECK(static_cast<std::int64_t>(scales.size()) == codes.dim(axis));
  }
  std::size_t inner = 1;
  for (std::size_t d = axis + 1; d < codes.rank(); ++d) {
    inner *= static_cast<std::size_t>(codes.dim(d));
  }
  std::vector<double> values(codes.count());
  for (std::size_t k = 0; k < values.size(); ++k) {
    values[k] = codes.type() == element_type::s8
                    ? static_cast<double>(codes.data<std::int8_t>()[k])
                    : static_cast<double>(codes.data<std::int32_t>()[k]);
    values[k] *= static_cast<double>(scales[k / inner % scales.size()]);
  }
  return values;
}

/// A quarter of the range.
struct quarter_range_observer {
  detent::min_max_observer all;
  void observe(std::span<const float> x) { all.observe(x); }
  [[nodiscard]] detent::quant_params finalize(detent::quant_scheme scheme) const {
    const detent::value_range r = all.range();
    return params_from_range({r.lower / 4.0F, r.upper / 4.0F}, scheme);
  }
};

/// Scale and zero point of every value that has a QuantizeLinear, by what it quantizes.
std::map<std::string, std::pair<float, int>> activations(const graph::model& m) {
  std::map<std::string, std::pair<float, int>> all;
  for (const graph::node& n : m.nodes) {
    if (n.is("QuantizeLinear")) {
      const tensor& z = m.initializers.at(n.inputs[2]);
      all[n.inputs[0]] = {m.initializers.at(n.inputs[1]).data<float>()[0],
                          z.type() == element_type::u8 ? int{z.data<std::uint8_t>()[0]}
                                                       : int{z.data<std::int8_t>()[0]}};
    }
  }
  return all;
}

}  // namespace

TEST_CASE("static: int8 activations are uint8 ones moved by 128") {
  test::random_source r(500);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto samples = test::samples_of_x(r, {2, 3, 8, 8}, 3);
  const auto source = test::samples_source(samples);
  const graph::model u8 = graph::static_quantization(m, source).result;
  const graph::model s8 =
      graph::static_quantization(m, source, {.activations = {.type = element_type::s8}}).result;
  const auto a = activations(u8);
  const auto b = activations(s8);
  REQUIRE(a.size() == b.size());
  REQUIRE(a.size() > 4);
  for (const auto& [name, p] : a) {
    CHECK(b.at(name).first == p.first);
    CHECK(b.at(name).second == p.second - 128);
  }
  for (const auto& s : samples) {
    CHECK(run(graph::for_execution(u8), s) == run(graph::for_execution(s8), s));
  }
  CHECK(snr(m, s8, samples) > 25.0);
}

TEST_CASE("static: activations of 2 to 8 bits") {
  test::random_source r(501);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto samples = test::samples_of_x(r, {2, 3, 8, 8}, 3);
  const auto source = test::samples_source(samples);
  for (const element_type type : {element_type::u8, element_type::s8}) {
    for (const bool symmetric : {false, true}) {
      double before = -10.0;
      for (const auto bits : std::initializer_list<std::size_t>{2, 3, 4, 6, 8}) {
        INFO(graph::name(type), " symmetric ", symmetric, ", ", bits, " bits");
        const graph::model q =
            graph::static_quantization(
                m, source, {.activations = {.type = type, .bits = bits, .symmetric = symmetric}})
                .result;
        const int levels = 1 << bits;
        const int lowest = type == element_type::u8 ? 0 : -levels / 2;
        const int highest = lowest + levels - 1;
        std::set<std::string> codes;
        for (const graph::node& n : q.nodes) {
          if (n.is("QuantizeLinear")) {
            codes.insert(n.outputs[0]);
          }
        }
        REQUIRE(codes.size() > 4);
        int least = 1000;
        int most = -1000;
        graph::executor simulated(q);
        for (const auto& sample : samples) {
          static_cast<void>(simulated.run(sample, [&](const std::string& name, const tensor& t) {
            if (codes.count(name) == 0) {
              return;
            }
            for (std::size_t i = 0; i < t.count(); ++i) {
              const int code = type == element_type::u8 ? int{t.data<std::uint8_t>()[i]}
                                                        : int{t.data<std::int8_t>()[i]};
              least = (std::min)(least, code);
              most = (std::max)(most, code);
            }
          }));
        }
        CHECK(least >= lowest);
        CHECK(most == highest);
        // Clamps join the integer layers, so that none is left behind them.
        const graph::model lowered = graph::for_execution(q);
        CHECK(test::count(lowered, "Clip") <= 1);  // before the input's QuantizeLinear
        const double now = snr(m, lowered, samples);
        CHECK(now > before + 2.0);
        before = now;
      }
      CHECK(before > 25.0);
    }
  }
  for (const std::size_t bits : {std::size_t{0}, std::size_t{1}, std::size_t{9}}) {
    check_graph_error(error_kind::invalid_argument, {std::to_string(bits) + " bits", "2..8"}, [&] {
      static_cast<void>(graph::static_quantization(m, source, {.activations = {.bits = bits}}));
    });
  }
}

TEST_CASE(
    "static: averages that ONNX Runtime would make differently on integers are kept from it") {
  // It makes QLinearAveragePool of a pool between Q and DQ nodes, which has no dilations and
  // divides by all places of a window that reaches beyond the padding.
  using attributes = std::map<std::string, graph::attribute, std::less<>>;
  const std::pair<attributes, bool> forms[] = {
      {{{"kernel_shape", list({2, 2})}}, true},
      {{{"kernel_shape", list({2, 2})}, {"ceil_mode", number(1)}}, true},
      {{{"kernel_shape", list({2, 2})}, {"count_include_pad", number(1)}}, true},
      {{{"kernel_shape", list({2, 2})}, {"dilations", list({2, 2})}}, false},
      {{{"kernel_shape", list({3, 3})},
        {"pads", list({1, 1, 1, 1})},
        {"strides", list({2, 2})},
        {"ceil_mode", number(1)},
        {"count_include_pad", number(1)}},
       false}};
  for (const auto& form : forms) {
    random_source r(93);
    model_builder b(19);
    b.input("x", {1, 3, 10, 10});
    b.constant("w", random_floats(r, {4, 3, 3, 3}, -0.4F, 0.4F));
    b.constant("w2", random_floats(r, {4, 4, 1, 1}, -0.4F, 0.4F));
    const std::string convolved = b.add("Conv", {"x", "w"});
    b.output(b.add("Conv", {b.add("AveragePool", {convolved}, form.first), "w2"}));
    b.output(b.add("Conv", {b.add("AveragePool", {convolved}, form.first), "w2"}));
    const auto samples = test::samples_of_x(r, {1, 3, 10, 10}, 4);
    const graph::model q =
        graph::static_quantization(b.get(), test::samples_source(samples), {.method = "minmax"})
            .result;
    const graph::links l(q);
    for (const graph::node& n : q.nodes) {
      if (n.is("AveragePool")) {
        const std::size_t maker = l.producer(n.inputs[0]);
        REQUIRE(maker != graph::links::none);
        CHECK(q.nodes[maker].op_type == (form.second ? "DequantizeLinear" : "Sum"));
      }
    }
    CHECK(count(q, "AveragePool") == 2);
    std::set<std::string> names;
    for (const graph::node& n : q.nodes) {
      INFO(n.label());
      CHECK(names.insert(n.name).second);
    }
    // Here the pool is computed on integers in any case.
    CHECK(count(graph::for_execution(q), "QLinearAveragePool") == 2);
    CHECK(test::distance(b.get(), graph::for_execution(q), samples[0]) < 0.03);
    graph::model integers = q;
    graph::to_qoperator(integers);
    CHECK(count(integers, "QLinearAveragePool") == (form.second ? 2 : 0));
  }
}

TEST_CASE("static: what is moved and then used by sub-graphs has a pair of its own") {
  // ONNX Runtime 1.18 to 1.32 ends the process if a DequantizeLinear stands in front of the
  // movement alone.
  const auto branch = [](const char* op) {
    const auto g = std::make_shared<graph::graph_body>();
    graph::node n;
    n.op_type = op;
    n.inputs = {"moved"};
    n.outputs = {std::string(op) + "_result"};
    g->nodes.push_back(n);
    g->outputs.push_back({n.outputs[0], element_type::f32, false, {}, {}});
    graph::attribute a;
    a.kind = graph::attribute::kind_type::g;
    a.g = g;
    return a;
  };
  random_source r(95);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  b.input("c", {}, element_type::boolean);
  b.constant("w", random_floats(r, {4, 3, 3, 3}, -0.4F, 0.4F));
  b.constant("shape", std::vector<std::int64_t>{4, 16});
  const std::string y = b.add("Conv", {"x", "w"});
  const std::string flat = b.add("Reshape", {y, "shape"});
  const std::string choice =
      b.add("If", {"c"}, {{"then_branch", branch("Relu")}, {"else_branch", branch("Neg")}});
  b.output(choice);
  graph::model m = b.get();
  for (graph::node& n : m.nodes) {  // Reshape, then Transpose, as the branches know it
    if (n.is("If")) {
      graph::node turn;
      turn.op_type = "Transpose";
      turn.inputs = {flat};
      turn.outputs = {"moved"};
      m.nodes.insert(m.nodes.begin() + (&n - m.nodes.data()), turn);
      break;
    }
  }
  const tensor yes = make_tensor<std::uint8_t>(element_type::boolean, {}, {1});
  const auto images = test::samples_of_x(r, {1, 3, 6, 6}, 4);
  std::vector<tensors> samples;
  for (tensors inputs : images) {
    inputs["c"] = yes;
    samples.push_back(std::move(inputs));
  }
  for (const bool for_files : {false, true}) {
    graph::model q =
        graph::static_quantization(m, test::samples_source(samples), {.method = "minmax"}).result;
    if (for_files) {
      graph::to_qoperator(q);
    }
    const graph::links l(q);
    const std::size_t maker = l.producer("moved");
    REQUIRE(maker != graph::links::none);
    CHECK(q.nodes[maker].is("DequantizeLinear"));
    CHECK(q.nodes[l.producer(q.nodes[maker].inputs[0])].is("QuantizeLinear"));
    CHECK(test::distance(m, q, samples[0]) < 0.02);
  }
}

TEST_CASE("guards for ONNX Runtime leave the indices of a MaxPool alone") {
  const auto g = std::make_shared<graph::graph_body>();
  graph::node inner;
  inner.op_type = "Cast";
  inner.inputs = {"indices"};
  inner.outputs = {"inner"};
  inner.attributes = {{"to", number(1)}};
  g->nodes.push_back(inner);
  g->outputs.push_back({"inner", element_type::f32, false, {}, {}});
  graph::attribute branch;
  branch.kind = graph::attribute::kind_type::g;
  branch.g = g;
  model_builder b;
  b.input("x", {1, 1, 4, 4});
  b.input("c", {}, element_type::boolean);
  const std::string d = b.pair("x", 0.1F, 0);
  b.output(b.add("If", {"c"}, {{"then_branch", branch}, {"else_branch", branch}}));
  graph::model m = b.get();
  graph::node pool;
  pool.op_type = "MaxPool";
  pool.inputs = {d};
  pool.outputs = {"largest", "indices"};
  pool.attributes = {{"kernel_shape", list({2, 2})}};
  m.nodes.insert(m.nodes.end() - 1, pool);
  const std::size_t nodes = m.nodes.size();
  graph::add_onnxruntime_guards(m);
  CHECK(m.nodes.size() == nodes);
}

TEST_CASE("static: several clamps behind a layer are one") {
  test::random_source r(502);
  model_builder b;
  b.input("x", {1, 3, 4, 4});
  const std::string w = b.constant("w", random_floats(r, {4, 3, 1, 1}, -1.0F, 1.0F));
  std::string y = b.add("Conv", {"x", w});
  y = b.add("Relu", {y});
  y = b.add("Clip", {y, b.scalar("a", -1.0F), b.scalar("b", 0.75F)});
  y = b.add("Clip", {y, b.scalar("c", 0.25F), ""});
  y = b.add("Clip", {y, b.scalar("d", 2.0F), b.scalar("e", 3.0F)});  // no common range: stays
  b.output(y);
  const graph::model fused = graph::for_execution(b.get());
  REQUIRE(fused.nodes.size() == 2);
  CHECK(fused.nodes[0].get_float("lower", 9.0F) == 0.25F);
  CHECK(fused.nodes[0].get_float("upper", 9.0F) == 0.75F);
  CHECK(fused.nodes[1].is("Clip"));
  const auto samples = test::samples_of_x(r, {1, 3, 4, 4}, 2);
  for (const auto& sample : samples) {
    CHECK(run(fused, sample) == run(b.get(), sample));
  }
}

TEST_CASE("static: the bias that is added behind a product is part of it") {
  test::random_source r(931);
  INFO("seed ", r.seed());
  enum class form { row, row_first, three_axes, clamped, matrix, number, goes_elsewhere, ignored };
  for (const form f : {form::row, form::row_first, form::three_axes, form::clamped, form::matrix,
                       form::number, form::goes_elsewhere, form::ignored}) {
    INFO("form ", static_cast<int>(f));
    model_builder b;
    b.input("x", {-1, 3, 9});
    const std::string product =
        b.add("MatMul", {"x", b.constant("w", random_floats(r, {9, 7}, -1.0F, 1.0F))});
    const shape dims = f == form::three_axes ? shape{1, 1, 7}
                       : f == form::matrix   ? shape{3, 7}
                       : f == form::number   ? shape{}
                                             : shape{7};
    const std::string bias = b.constant("b", random_floats(r, dims, -2.0F, 2.0F));
    std::string y =
        f == form::row_first ? b.add("Add", {bias, product}) : b.add("Add", {product, bias});
    b.get().nodes.back().name = "sum";
    y = f == form::clamped ? b.add("Relu", {y}) : y;
    b.output(y);
    if (f == form::goes_elsewhere) {
      b.output(b.add("Sin", {product}));
    }
    const bool is_part =
        f == form::row || f == form::row_first || f == form::three_axes || f == form::clamped;
    const auto samples = samples_of_x(r, {4, 3, 9}, 3);
    graph::static_quantization_options o;
    if (f == form::ignored) {
      o.scope.ignored.names = {"sum"};
    }
    const graph::quantization q = graph::static_quantization(b.get(), samples_source(samples), o);
    // The Add takes the product in 8 bits, unless it is in float.
    CHECK(q.plan.values().count(product) == (is_part || f == form::ignored ? 0 : 1));
    CHECK(q.plan.layer_of_bias(1) == (is_part ? std::optional<std::size_t>(0) : std::nullopt));
    CHECK(q.plan.layer_of_bias(0) == std::nullopt);
    CHECK((q.plan.bias(0) != nullptr) == is_part);
    if (!is_part) {
      continue;
    }
    CHECK(q.plan.quantizes(1));
    CHECK(q.plan.bias(0)->dims() == shape{7});
    CHECK(q.plan.values() == std::set<std::string>{"x", y});
    // The bias is stored as that of a Gemm is.
    const auto sum = std::find_if(q.result.nodes.begin(), q.result.nodes.end(),
                                  [](const graph::node& n) { return n.name == "sum"; });
    REQUIRE(sum != q.result.nodes.end());
    const graph::node* dq = producer(q.result, sum->inputs[f == form::row_first ? 0 : 1]);
    REQUIRE(dq != nullptr);
    const tensor& codes = q.result.initializers.at(dq->inputs[0]);
    const auto scales = values_of<float>(q.result.initializers.at(dq->inputs[1]));
    CHECK(codes.type() == element_type::s32);
    CHECK(codes.dims() == shape{7});
    const graph::layer_weights& w = q.parameters.layers.at(0);
    REQUIRE(scales.size() == 7);
    for (std::size_t c = 0; c < 7; ++c) {
      const float scale = q.parameters.activations.at("x").scale * w.scales[c];
      CHECK(scales[c] == scale);
      CHECK(codes.data<std::int32_t>()[c] ==
            std::nearbyint(static_cast<double>(b.get().initializers.at("b").data<float>()[c]) /
                           static_cast<double>(scale)));
    }
    const graph::model integers = graph::for_execution(q.result);
    CHECK(test::count(integers, "QLinearGemm") == 1);
    CHECK(integers.nodes.size() == 3);  // with the quantizer of x, and one DequantizeLinear
    CHECK(snr(b.get(), q.result, samples) > 35.0);

    // In float again, and with another bias.
    graph::quantization_plan plan = q.plan;
    const tensor other = random_floats(r, {7}, -3.0F, 3.0F);
    plan.set_bias(0, other);
    CHECK(values_of<float>(*plan.bias(0)) == values_of<float>(other));
    CHECK(plan.float_model().nodes[1].inputs[f == form::row_first ? 0 : 1] == plan.bias_name(0));
    plan.leave_out({0});
    CHECK(plan.values().count(product) == 0);
    CHECK(plan.layers().empty());
    CHECK(plan.layer_of_bias(1) == std::nullopt);
    CHECK(values_of<float>(graph::executor(plan.float_model()).run(samples[0])[0]) ==
          values_of<float>(graph::executor(q.plan.float_model()).run(samples[0])[0]));
  }
}

TEST_CASE("static: what only float operators take stays in float") {
  // A block of a transformer: the normalization takes sums, and what it makes goes to a layer, a
  // sum and the caller.
  test::random_source r(934);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 5, 8});
  const auto layer = [&](const std::string& x, std::int64_t from, std::int64_t to) {
    const std::string n = std::to_string(b.get().nodes.size());
    return b.add("Add", {b.add("MatMul",
                               {x, b.constant("w" + n, random_floats(r, {from, to}, -1.0F, 1.0F))}),
                         b.constant("b" + n, random_floats(r, {to}, -1.0F, 1.0F))});
  };
  const auto normalized = [&](const std::string& x) {
    const std::string n = std::to_string(b.get().nodes.size());
    return b.add("LayerNormalization", {x, b.constant("g" + n, random_floats(r, {8}, -1.0F, 1.0F)),
                                        b.constant("h" + n, random_floats(r, {8}, -1.0F, 1.0F))});
  };
  const std::string first = layer("x", 8, 8);
  const std::string sum = b.add("Add", {first, "x"});
  const std::string norm = normalized(sum);
  const std::string hidden = layer(norm, 8, 12);
  const std::string gelu = b.add("Gelu", {hidden});
  const std::string second = layer(gelu, 12, 8);
  const std::string other = b.add("Add", {second, norm});
  b.output(normalized(other));
  b.output(norm);
  b.get().opsets[""] = 20;
  const auto samples = samples_of_x(r, {3, 5, 8}, 4);
  for (const element_type type : {element_type::u8, element_type::s8}) {
    const graph::quantization q = graph::static_quantization(b.get(), samples_source(samples),
                                                             {.activations = {.type = type}});
    CHECK(q.plan.values() == std::set<std::string>{"x", norm, gelu});
    CHECK(q.plan.is_also_float("x"));
    CHECK(q.plan.is_also_float(norm));
    CHECK(!q.plan.is_also_float(gelu));
    CHECK(!q.plan.quantizes(2));
    // The sums take the values as they are, and so does the caller.
    const auto maker = [&](const std::string& value) { return producer(q.result, value); };
    CHECK(maker(sum)->inputs == std::vector<std::string>{first, "x"});
    CHECK(maker(other)->inputs == std::vector<std::string>{second, norm});
    CHECK(maker(norm)->op_type == "LayerNormalization");
    CHECK(maker(maker(maker(hidden)->inputs[0])->inputs[0])->op_type == "DequantizeLinear");
    const graph::model integers = graph::for_execution(q.result);
    CHECK(test::count(integers, "QLinearGemm") == 3);
    CHECK(test::count(integers, "DequantizeLinear") == 0);
    CHECK(snr(b.get(), integers, samples) > 30.0);
    graph::model file = q.result;
    graph::to_qoperator(file);
    CHECK(test::count(file, "MatMulIntegerToFloat") == 3);
  }
}

TEST_CASE("static: a product of two values is on integers if a layer takes it") {
  test::random_source r(936);
  INFO("seed ", r.seed());
  for (const bool is_shared : {false, true}) {
    model_builder b;
    b.input("x", {-1, 5, 8});
    const auto layer = [&](const std::string& x, std::int64_t from) {
      const std::string n = std::to_string(b.get().nodes.size());
      return b.add("MatMul", {x, b.constant("w" + n, random_floats(r, {from, 8}, -1.0F, 1.0F))});
    };
    const std::string left = layer("x", 8);
    const std::string right = layer("x", 8);
    const std::string turned =
        b.add("Transpose", {right}, {{"perm", attribute::of(std::vector<std::int64_t>{0, 2, 1})}});
    const std::string product = b.add("MatMul", {left, turned});
    b.output(b.add("Sin", {layer(product, 5)}));
    if (is_shared) {  // a float operator takes the levels
      b.output(b.add("Cos", {product}));
    }
    const auto samples = samples_of_x(r, {2, 5, 8}, 3);
    const graph::quantization q = graph::static_quantization(b.get(), samples_source(samples));
    CHECK(q.plan.values() == std::set<std::string>{"x", left, right, turned, product});
    CHECK(!q.plan.is_also_float(product));
    CHECK(test::count(graph::for_execution(q.result), "QLinearMatMul") == 1);
  }
}

TEST_CASE("static: in a chain of integer operators, sums stay in 8 bits") {
  // A block of a ResNet: the sum goes to the next layer. What is made last goes to the caller.
  test::random_source r(935);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3, 6, 6});
  const auto layer = [&](const std::string& x, std::int64_t channels) {
    const std::string n = std::to_string(b.get().nodes.size());
    return b.add("Conv",
                 {x, b.constant("w" + n, random_floats(r, {4, channels, 1, 1}, -1.0F, 1.0F))});
  };
  const std::string first = b.add("Relu", {layer("x", 3)});
  const std::string second = layer(first, 4);
  const std::string sum = b.add("Relu", {b.add("Add", {second, first})});
  const std::string third = layer(sum, 4);
  const std::string pooled = b.add("AveragePool", {third});
  b.get().nodes.back().attributes["kernel_shape"] = attribute::of(std::vector<std::int64_t>{2, 2});
  const std::string sine = b.add("Sin", {pooled});  // in float
  const std::string late = b.add("Add", {sum, sum});
  b.output(sine);
  b.output(late);
  const auto samples = samples_of_x(r, {2, 3, 6, 6}, 3);
  const graph::quantization q = graph::static_quantization(b.get(), samples_source(samples));
  // A convolution's result is stored, although a float operator takes it; the average is not.
  CHECK(q.plan.values() == std::set<std::string>{"x", first, second, sum, third, late});
  CHECK(!q.plan.is_also_float(third));
  const graph::model integers = graph::for_execution(q.result);
  CHECK(test::count(integers, "QLinearConv") == 3);
  CHECK(test::count(integers, "QLinearAdd") == 2);
  CHECK(test::count(integers, "AveragePool") == 1);
}

TEST_CASE("static: a bias behind a product that its scales cannot hold raises them") {
  test::random_source r(932);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3, 9});
  std::vector<float> weights = r.reals(9 * 7, -1.0F, 1.0F);
  for (std::size_t k = 0; k < 9; ++k) {
    weights[k * 7 + 2] *= 1e-9F;
    weights[k * 7 + 3] = 0.0F;
  }
  const std::vector<float> bias{0.5F, -1.0F, 3.0F, 0.7F, 0.0F, 1.0F, 2.0F};
  b.output(b.add("Add", {b.add("MatMul", {"x", b.constant("w", floats({9, 7}, weights))}),
                         b.constant("b", floats({7}, bias))}));
  const auto samples = samples_of_x(r, {4, 3, 9}, 3);
  const graph::quantization q = graph::static_quantization(b.get(), samples_source(samples));
  const float x = q.parameters.activations.at("x").scale;
  CHECK(q.parameters.layers.at(0).scales[2] >= 3.0F / 1073741824.0F / x);
  CHECK(q.parameters.layers.at(0).scales[3] == 0.7F / 1048576.0F / x);
  CHECK(snr(b.get(), q.result, samples) > 35.0);
}

TEST_CASE("static: ranges stay within the bounds of a Clip") {
  // Twice the range of the values, on both sides.
  struct wide_observer {
    detent::min_max_observer all;
    void observe(std::span<const float> x) { all.observe(x); }
    [[nodiscard]] detent::quant_params finalize(detent::quant_scheme scheme) const {
      const detent::value_range r = all.range();
      return params_from_range({2.0F * r.lower - 1.0F, 2.0F * r.upper + 1.0F}, scheme);
    }
  };
  test::random_source r(508);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 8, 8});
  b.constant("w", random_floats(r, {4, 3, 3, 3}, -2.0F, 2.0F));
  const std::string six = b.scalar("six", 6.0F);
  const std::string behind =
      b.add("Clip", {b.add("Conv", {"x", "w"}), b.scalar("zero", 0.0F), six});
  const std::string alone =
      b.add("Clip", {b.add("MaxPool", {behind}, {{"kernel_shape", list({2, 2})}}),
                     b.scalar("two", -2.0F), b.scalar("three", 3.0F)});
  const std::string half_open = b.add("Relu", {b.add("Add", {alone, b.scalar("four", 4.0F)})});
  b.output(half_open);
  graph::static_quantization_options options;
  options.method = "wide";
  options.activations.observers = detent::default_observers();
  options.activations.observers.add("wide", [](const detent::observer_options&) {
    return detent::any_observer(wide_observer());
  });
  const auto source = test::samples_source(test::samples_of_x(r, {1, 3, 8, 8}, 4, -9.0F, 9.0F));
  for (const element_type type : {element_type::u8, element_type::s8}) {
    for (const bool symmetric : {false, true}) {
      INFO(graph::name(type), symmetric ? " symmetric" : "");
      options.activations.type = type;
      options.activations.symmetric = symmetric;
      const graph::quantization q = graph::static_quantization(b.get(), source, options);
      const auto range = [&](const std::string& value) {
        const detent::quant_params p = q.parameters.activations.at(value);
        const int least = type == element_type::u8 ? 0 : symmetric ? -127 : -128;
        const int most = type == element_type::u8 ? 255 : 127;
        return std::pair(p.scale * static_cast<float>(least - p.zero_point),
                         p.scale * static_cast<float>(most - p.zero_point));
      };
      CHECK(range("x").second > 17.0F);  // nothing bounds it
      CHECK(range(behind).second == doctest::Approx(6.0F));
      CHECK(range(alone).second == doctest::Approx(3.0F).epsilon(0.02));
      if (!symmetric) {
        CHECK(range(behind).first == 0.0F);
        CHECK(range(alone).first == doctest::Approx(-1.0F).epsilon(0.02));  // no bound in the way
        CHECK(range(half_open).first == 0.0F);
      }
      CHECK(range(half_open).second > 10.0F);
      CHECK(q.plan.bounds(behind).upper == 6.0F);
      CHECK(std::isinf(q.plan.bounds("x").upper));
    }
  }
  // What an override says is kept.
  options.activations.overrides[behind].range = detent::value_range{-1.0F, 9.0F};
  const graph::quantization q = graph::static_quantization(b.get(), source, options);
  CHECK(q.parameters.activations.at(behind).scale > 8.9F / 127.0F);
}

TEST_CASE("static: both ends of a range lie within the bounds of a Clip, as floats") {
  test::random_source r(509);
  INFO("seed ", r.seed());
  const auto source = test::samples_source(test::samples_of_x(r, {8, 6}, 4, -9.0F, 9.0F));
  std::vector<std::pair<float, float>> bounds = {
      {-1.0F, 1.0F},  {-0.5F, 0.5F},   {-2.0F, 2.0F},   {-0.5F, 10.0F}, {0.0F, 6.0F},
      {0.0F, 8.142F}, {-1.0F, 0.003F}, {-0.003F, 1.0F}, {0.5F, 3.0F},   {-3.0F, -0.5F}};
  for (int i = 0; i < 40; ++i) {
    bounds.emplace_back(i % 2 == 0 ? 0.0F : r.real(-8.0F, 0.0F), r.real(0.01F, 9.0F));
  }
  for (const auto& bound : bounds) {
    const float lower = bound.first;  // clang 14 cannot capture structured bindings
    const float upper = bound.second;
    model_builder b;
    b.input("x", {8, 6});
    b.constant("w", random_floats(r, {6, 6}, -2.0F, 2.0F));
    b.constant("v", random_floats(r, {6, 6}, -2.0F, 2.0F));
    const std::string clipped = b.add(
        "Clip", {b.add("Gemm", {"x", "w"}), b.scalar("lower", lower), b.scalar("upper", upper)});
    b.output(b.add("Gemm", {clipped, "v"}));
    for (const element_type type : {element_type::u8, element_type::s8}) {
      for (const char* method : {"minmax", "mse"}) {
        INFO(lower, " .. ", upper, " ", graph::name(type), " ", method);
        const graph::quantization q = graph::static_quantization(
            b.get(), source, {.method = method, .activations = {.type = type}});
        const detent::quant_params p = q.parameters.activations.at(clipped);
        const int least = type == element_type::u8 ? 0 : -128;
        const float first = p.scale * static_cast<float>(least - p.zero_point);
        const float last = p.scale * static_cast<float>(least + 255 - p.zero_point);
        CHECK(p.zero_point >= least);
        CHECK(p.zero_point <= least + 255);
        // A symmetric range covers the larger bound.
        const graph::quantization symmetric = graph::static_quantization(
            b.get(), source,
            {.method = "minmax", .activations = {.type = type, .symmetric = true}});
        CHECK(symmetric.parameters.activations.at(clipped).scale * 127.0F >=
              0.97F * (std::max)(-lower, upper));
        CHECK(first >= (std::min)(lower, 0.0F));
        CHECK(last <= (std::max)(upper, 0.0F));
        if (std::string_view(method) == "minmax") {  // and hold nearly all of what is between
          CHECK(last - first >= 0.99F * ((std::max)(upper, 0.0F) - (std::min)(lower, 0.0F)));
        }
      }
    }
  }
}

TEST_CASE("static: symmetric activations") {
  test::random_source r(501);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto samples = test::samples_of_x(r, {2, 3, 8, 8}, 3);
  const auto source = test::samples_source(samples);
  for (const element_type type : {element_type::u8, element_type::s8}) {
    std::map<std::string, float> largest;
    const graph::model q =
        graph::static_quantization(
            m, source,
            {.activations = {.type = type,
                             .symmetric = true,
                             .on_parameters =
                                 [&](const std::string& name, const std::string& /*method*/,
                                     const detent::scale_solution& s) {
                                   largest[name] = static_cast<float>(
                                       (std::max)(-s.evidence.lower, s.evidence.upper));
                                 }}})
            .result;
    for (const auto& [name, p] : activations(q)) {
      CHECK(p.second == (type == element_type::u8 ? 128 : 0));
    }
    for (const auto& [name, p] : activations(q)) {
      if (largest.count(name) != 0) {
        CHECK(p.first == doctest::Approx(largest[name] / 127.0F).epsilon(1e-5));
      }
    }
    CHECK(snr(m, q, samples) > 20.0);
  }
  check_graph_error(error_kind::invalid_argument, {"int32", "uint8"}, [&] {
    static_cast<void>(
        graph::static_quantization(m, source, {.activations = {.type = element_type::s32}}).result);
  });
}

TEST_CASE("static: what is said of one activation") {
  test::random_source r(502);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto source = test::samples_source(test::samples_of_x(r, {2, 3, 8, 8}, 3));
  const graph::quantization plain = graph::static_quantization(m, source);
  const std::string sum = named(plain.plan.float_model(), "sum").outputs[0];
  const std::string moved = named(plain.plan.float_model(), "pool").outputs[0];
  const auto with = [&](const std::string& value, const graph::activation_override& o,
                        element_type type = element_type::u8, std::size_t bits = 8) {
    graph::static_quantization_options options;
    options.activations.type = type;
    options.activations.bits = bits;
    options.activations.overrides[value] = o;
    options.activations.observers.add("quarter_range", [](const detent::observer_options&) {
      return detent::any_observer(quarter_range_observer());
    });
    return graph::static_quantization(m, source, options).parameters.activations;
  };
  const auto changed = [&](const std::map<std::string, detent::quant_params>& p) {
    std::string names;
    for (const auto& [name, params] : p) {
      if (!(params == plain.parameters.activations.at(name))) {
        names += name + " ";
      }
    }
    return names;
  };
  const detent::quant_params own{0.125F, 17};
  const auto given = with("x", {.params = own});
  CHECK(given.at("x") == own);
  CHECK(changed(given) == "x ");
  CHECK(activations(graph::static_quantization(
                        m, source, {.activations = {.overrides = {{"x", {.params = own}}}}})
                        .result)
            .at("x") == std::pair(0.125F, 17));

  const auto range = with("x", {.range = detent::value_range{0.5F, 25.5F}});
  CHECK(range.at("x").scale == doctest::Approx(0.1F).epsilon(1e-6));  // made to hold 0
  CHECK(range.at("x").zero_point == 0);
  CHECK(changed(range) == "x ");

  const auto method = with("x", {.method = "Quarter_Range"});
  CHECK(changed(method) == "x ");
  CHECK(method.at("x").scale ==
        doctest::Approx(plain.parameters.activations.at("x").scale / 4.0F).epsilon(1e-6));

  // What has its elements takes part in it.
  const auto of_sum = with(sum, {.params = own});
  CHECK(of_sum.at(moved) == own);

  const auto says = [&](error_kind kind, std::initializer_list<std::string_view> words,
                        const std::string& value, const graph::activation_override& o,
                        element_type type = element_type::u8, std::size_t bits = 8) {
    check_graph_error(kind, words, [&] { static_cast<void>(with(value, o, type, bits)); });
  };
  constexpr error_kind invalid = error_kind::invalid_argument;
  says(invalid, {"'nobody'", "not quantized"}, "nobody", {.params = own});
  says(invalid, {"'" + moved + "'", "'" + sum + "'"}, moved, {.params = own});
  says(invalid, {"'x'", "2"}, "x", {.params = own, .method = "mse"});
  says(invalid, {"'x'", "0"}, "x", {});
  says(invalid, {"'x'", "'magic'", "minmax"}, "x", {.method = "magic"});
  says(invalid, {"'x'", "scale 0"}, "x", {.params = detent::quant_params{0.0F, 3}});
  says(invalid, {"'x'", "zero point 256"}, "x", {.params = detent::quant_params{0.1F, 256}});
  says(invalid, {"'x'", "zero point 128"}, "x", {.params = detent::quant_params{0.1F, 128}},
       element_type::s8);
  says(invalid, {"'x'", "zero point 200"}, "x", {.params = detent::quant_params{0.1F, 200}},
       element_type::u8, 4);
  says(invalid, {"'x'", "zero point -9"}, "x", {.params = detent::quant_params{0.1F, -9}},
       element_type::s8, 4);
  CHECK(with("x", {.params = detent::quant_params{0.1F, -8}}, element_type::s8, 4)
            .at("x")
            .zero_point == -8);
  says(invalid, {"'x'"}, "x",
       {.range = detent::value_range{0.0F, std::numeric_limits<float>::infinity()}});
}

TEST_CASE("static: images whose sizes are open are quantized as those of a fixed size") {
  random_source r(96);
  INFO("seed ", r.seed());
  // Windows that do not fit into an image of one pixel.
  const auto network_of = [&](const shape& in) {
    random_source weights(97);
    model_builder b;
    b.input("x", in);
    std::string y = "x";
    for (const char* w : {"w0", "w1", "w2"}) {
      const std::int64_t channels = y == "x" ? 3 : 4;
      b.constant(w, random_floats(weights, {4, channels, 3, 3}, -0.4F, 0.4F));
      y = b.add("Relu", {b.add("Conv", {y, w})});
    }
    y = b.add("AveragePool", {y}, {{"kernel_shape", list({2, 2})}});
    b.output(b.add("Add", {y, b.add("Sigmoid", {y})}));
    return b.get();
  };
  const graph::model open = network_of({-1, 3, -1, -1});
  const graph::model fixed = network_of({-1, 3, 12, 12});
  std::vector<sample> samples;
  for (int i = 0; i < 8; ++i) {
    samples.push_back({{"x", random_floats(r, {1, 3, 12, 12}, -2.0F, 2.0F)}});
  }
  const auto check = [&](const char* what, const auto& quantized) {
    INFO(what);
    const graph::model a = quantized(open);
    const graph::model b = quantized(fixed);
    CHECK(count(b, "QuantizeLinear") >= 5);
    CHECK(operators(a) == operators(b));
    CHECK(operators(graph::for_execution(a)) == operators(graph::for_execution(b)));
  };
  check("static", [&](const graph::model& m) {
    return graph::static_quantization(m, samples_source(samples)).result;
  });
  check("nncf", [&](const graph::model& m) {
    return graph::nncf::quantize(m, graph::nncf::dataset(samples)).result;
  });
  check("ppq", [&](const graph::model& m) {
    return graph::ppq::to_qdq(graph::ppq::quantize_onnx_model(
        {.onnx_import_file = m, .calib_dataloader = samples_source(samples), .calib_steps = 8}));
  });
}

TEST_CASE("static: factors of a Gemm go into its constants") {
  random_source r(98);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 6});
  b.constant("w", random_floats(r, {6, 6}, -0.4F, 0.4F));
  b.constant("c", random_floats(r, {6}, -0.5F, 0.5F));
  b.constant("v", random_floats(r, {6, 6}, -0.4F, 0.4F));
  const auto factors = [](float alpha, float beta) {
    return test::attributes{{"alpha", graph::attribute::of(alpha)},
                            {"beta", graph::attribute::of(beta)},
                            {"transB", number(1)}};
  };
  // The second one shares its weights, the third one has a bias that does not count.
  std::string y = b.add("Gemm", {"x", "w", "c"}, factors(0.7F, 3.0F));
  y = b.add("Gemm", {b.add("Relu", {y}), "w", "c"}, factors(1.0F, -1.0F));
  y = b.add("Gemm", {b.add("Relu", {y}), "v", "c"}, factors(2.5F, 0.0F));
  b.output(y);
  const auto samples = test::samples_of_x(r, {4, 6}, 6);
  const graph::model q = graph::static_quantization(b.get(), test::samples_source(samples)).result;
  CHECK(snr(b.get(), q, samples) > 25.0);
  CHECK(count(graph::for_execution(q), "QLinearGemm", "detent") == 3);

  // Weights that an operator makes of a constant, when nothing but the plan has folded it.
  model_builder made;
  made.input("x", {-1, 6});
  made.constant("w", random_floats(r, {6, 6}, -0.4F, 0.4F));
  made.output(made.add("Gemm", {"x", made.add("Transpose", {"w"}, {{"perm", list({1, 0})}})},
                       {{"alpha", graph::attribute::of(0.5F)}}));
  CHECK(graph::quantization_plan(made.get()).layers().size() == 1);

  // A bias that does not count may be computed.
  model_builder unused;
  unused.input("x", {2, 3});
  unused.input("c", {2});
  unused.constant("w", random_floats(r, {3, 2}, -1.0F, 1.0F));
  unused.output(unused.add("Gemm", {"x", "w", "c"}, {{"beta", graph::attribute::of(0.0F)}}));
  graph::model without = unused.get();
  graph::fold_gemm_factors(without);
  CHECK(without.nodes[0].inputs == std::vector<std::string>{"x", "w"});
  CHECK(without.nodes[0].attributes.empty());

  // Constants that something else uses keep their values. The last user may change them, unless
  // they are outputs.
  model_builder shared;
  shared.input("x", {2, 3});
  shared.constant("w", random_floats(r, {3, 3}, -1.0F, 1.0F));
  shared.constant("c", random_floats(r, {3}, -1.0F, 1.0F));
  for (const float beta : {0.0F, 0.5F, 3.0F, 2.0F}) {
    shared.output(shared.add(
        "Gemm", {"x", "w", "c"},
        {{"alpha", graph::attribute::of(beta + 0.75F)}, {"beta", graph::attribute::of(beta)}}));
  }
  shared.output("c");
  graph::model apart = shared.get();
  graph::fold_gemm_factors(apart);
  const auto inputs_of = [&](std::size_t i) { return apart.nodes[i].inputs; };
  CHECK(inputs_of(0) == std::vector<std::string>{"x", "w_scaled"});
  CHECK(inputs_of(1) == std::vector<std::string>{"x", "w_scaled_2", "c_scaled"});
  CHECK(inputs_of(2) == std::vector<std::string>{"x", "w_scaled_3", "c_scaled_2"});
  CHECK(inputs_of(3) == std::vector<std::string>{"x", "w", "c_scaled_3"});
  CHECK(snr(shared.get(), apart, test::samples_of_x(r, {2, 3}, 2)) > 100.0);

  // A factor of what is computed stays, and one that would make a weight infinite.
  model_builder computed;
  computed.input("x", {2, 3});
  computed.input("z", {3, 2});
  computed.input("c", {2});
  computed.constant("w", random_floats(r, {3, 2}, -1.0F, 1.0F));
  computed.output(computed.add("Gemm", {"x", "z"}, {{"alpha", graph::attribute::of(0.5F)}}));
  computed.output(computed.add("Gemm", {"x", "w", "c"}, {{"beta", graph::attribute::of(0.5F)}}));
  computed.constant("large", random_floats(r, {3, 2}, 1e38F, 2e38F));
  computed.output(
      computed.add("Gemm", {"x", "large", "c"}, {{"alpha", graph::attribute::of(8.0F)}}));
  graph::model same = computed.get();
  graph::fold_gemm_factors(same);
  CHECK(graph::to_onnx(same) == graph::to_onnx(computed.get()));
}

TEST_CASE("static: ignored nodes") {
  test::random_source r(503);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto samples = test::samples_of_x(r, {2, 3, 8, 8}, 3);
  const auto source = test::samples_source(samples);
  const auto left = [&](const graph::ignored_scope& scope) {
    graph::static_quantization_options options;
    options.scope.ignored = scope;
    const graph::model q = graph::static_quantization(m, source, options).result;
    CHECK(snr(m, q, samples) > 25.0);
    std::string names;
    for (const graph::node& n : q.nodes) {
      if (graph::is_layer(n) && q.initializer(n.inputs[1]) != nullptr) {
        names += n.name + " ";
        if (n.inputs.size() > 2) {
          CHECK(q.initializer(n.inputs[2]) != nullptr);
        }
      }
      if (n.name == "sum" && q.is_output(n.outputs[0])) {
        names += "sum ";
      }
    }
    return names;
  };
  CHECK(left({}) == "");
  CHECK(left({.names = {"left"}}) == "left ");
  CHECK(left({.patterns = {".*e[mf].*"}}) == "stem left ");
  CHECK(left({.patterns = {"off.*"}}) == "class ");  // both are one Gemm
  CHECK(left({.types = {"MatMul"}}) == "class ");
  CHECK(left({.names = {"offset"}}) == "class ");
  CHECK(left({.first_layer = true}) == "stem ");
  CHECK(left({.last_layer = true}) == "class ");
  CHECK(left({.types = {"Conv", "MatMul"}}) == "stem left class ");
  CHECK(left({.names = {"sum"}, .patterns = {"ste"}, .validate = false}) == "");
  const auto no = [&](std::initializer_list<std::string_view> words,
                      const graph::ignored_scope& scope) {
    graph::static_quantization_options options;
    options.scope.ignored = scope;
    check_graph_error(error_kind::invalid_argument, words, [&] {
      static_cast<void>(graph::static_quantization(m, source, options).result);
    });
  };
  no({"name", "'nobody'"}, {.names = {"left", "nobody"}});
  no({"type", "'Gelu'"}, {.types = {"Gelu"}});
  no({"pattern", "'lef'"}, {.patterns = {"lef"}});  // the whole name
  no({"pattern", "'(left'", "regular expression"}, {.patterns = {"(left"}});

  // Sums stay float as well: no pair behind them.
  const graph::model q =
      graph::static_quantization(m, source, {.scope = {.ignored = {.names = {"sum"}}}}).result;
  for (const graph::node& n : q.nodes) {
    CHECK((!n.is("QuantizeLinear") || n.inputs[0] != named(q, "sum").outputs[0]));
  }

  // A node whose result an Identity returns, and something else uses, has the Identity's name.
  model_builder b;
  b.input("x", {1, 3, 4, 4});
  b.constant("w", random_floats(r, {3, 3, 1, 1}, -1.0F, 1.0F));
  const std::string y = b.add("Conv", {"x", "w"});
  b.get().nodes.back().name = "kept";
  b.output(b.add("Identity", {y}));
  b.output(b.add("Conv", {b.add("Relu", {y}), "w"}));
  const graph::model kept =
      graph::static_quantization(b.get(),
                                 test::samples_source(test::samples_of_x(r, {1, 3, 4, 4}, 2)),
                                 {.scope = {.ignored = {.names = {"kept"}}}})
          .result;
  CHECK(kept.initializer(named(kept, "kept").inputs[1]) != nullptr);
}

TEST_CASE("static: weights of 7 bits, and of least squared error") {
  test::random_source r(504);
  INFO("seed ", r.seed());
  graph::model m = network(r);
  tensor& w = m.initializers.at("left_w");
  w = test::floats(w.dims(), test::values_of<float>(w));
  for (float& v : w.mutable_data<float>()) {
    v = v * v * v * 10.0F;
  }
  const auto source = test::samples_source(test::samples_of_x(r, {2, 3, 8, 8}, 2));
  const auto error = [&](const graph::static_quantization_options& o, int largest) {
    const graph::model q = graph::static_quantization(m, source, o).result;
    const graph::node& dq = *producer(q, named(q, "left").inputs[1]);
    const auto codes = q.initializers.at(dq.inputs[0]).data<std::int8_t>();
    const auto scales = q.initializers.at(dq.inputs[1]).data<float>();
    double sum = 0.0;
    int most = 0;
    for (std::size_t k = 0; k < codes.size(); ++k) {
      most = (std::max)(most, std::abs(int{codes[k]}));
      const double d = static_cast<double>(scales[scales.size() == 1 ? 0 : k / 36]) * codes[k] -
                       static_cast<double>(w.data<float>()[k]);
      sum += d * d;
    }
    CHECK(most <= largest);
    CHECK((most == largest || o.weights.scale == graph::weight_scale::exact_mse));
    return sum;
  };
  for (const bool per_channel : {true, false}) {
    const double plain = error({.weights = {.per_channel = per_channel}}, 127);
    CHECK(error({.weights = {.per_channel = per_channel, .scale = graph::weight_scale::exact_mse}},
                127) < plain);
    CHECK(error({.weights = {.per_channel = per_channel, .reduce_range = true}}, 64) > plain);
  }
}

TEST_CASE("static: weights that are not finite are named, not the sample that meets them") {
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    model_builder b;
    b.input("x", {2, 2});
    b.constant("w", test::floats({2, 2}, {1.0F, 2.0F, wrong, 3.0F}));
    b.output(b.add("Relu", {b.add("MatMul", {"x", "w"})}));
    check_graph_error(error_kind::invalid_argument, {"MatMul_0", "weights 'w'"},
                      [&] { static_cast<void>(graph::quantization_plan(b.get())); });
    // A bias of -infinity is no weight: it switches an output off.
    b.get().initializers["w"] = test::floats({2, 2}, {1.0F, 2.0F, 0.5F, 3.0F});
    graph::node& relu = b.get().nodes.back();
    relu.op_type = "Add";
    relu.inputs.push_back(b.constant("b", test::floats({2}, {0.0F, wrong})));
    CHECK(graph::quantization_plan(b.get()).layers().size() == 1);
  }
}

TEST_CASE("static: transposed convolutions, by plain loops") {
  for (const std::size_t groups : {std::size_t{1}, std::size_t{2}}) {
    for (const bool per_channel : {true, false}) {
      for (const bool with_bias : {true, false}) {
        test::random_source r(505 + groups);
        INFO("seed ", r.seed(), ", ", groups, " groups, per channel ", per_channel, ", bias ",
             with_bias);
        const upsampling net(r, groups, with_bias);
        const auto samples = test::samples_of_x(r, {1, 4, 5, 4}, 6);
        const graph::quantization q = graph::static_quantization(
            net.m, test::samples_source(samples), {.weights = {.per_channel = per_channel}});
        CHECK(snr(net.m, q.result, samples) > 30.0);
        const graph::node& up = named(q.result, "up");
        CHECK(sorted_operators(q.result) ==
              (with_bias ? "ConvTranspose DequantizeLinear DequantizeLinear DequantizeLinear "
                           "DequantizeLinear QuantizeLinear QuantizeLinear"
                         : "ConvTranspose DequantizeLinear DequantizeLinear DequantizeLinear "
                           "QuantizeLinear QuantizeLinear"));

        // Weights: one scale for each index of axis 1, which all groups share, or one for all.
        const auto w = net.m.initializers.at("w").data<float>();
        const graph::layer_weights& codes = q.parameters.layers.begin()->second;
        REQUIRE(codes.scales.size() == (per_channel ? net.per_group() : 1));
        std::vector<float> largest(codes.scales.size(), 0.0F);
        for (std::size_t k = 0; k < w.size(); ++k) {
          float& most = largest[k / net.taps % largest.size()];
          most = (std::max)(most, std::fabs(w[k]));
        }
        const float x_scale = q.parameters.activations.at("x").scale;
        for (std::size_t c = 0; c < largest.size(); ++c) {
          // Where all weights are zero, the largest bias of the groups has 2^20 steps.
          float bias = 0.0F;
          for (std::size_t g = 0; with_bias && g < groups; ++g) {
            bias = (std::max)(
                bias, std::fabs(net.m.initializers.at("b").data<float>()[g * net.per_group() + c]));
          }
          const float expected = largest[c] > 0.0F ? largest[c] / 127.0F
                                 : with_bias       ? bias / 1048576.0F / x_scale
                                                   : codes.scales[c];
          CHECK(codes.scales[c] == doctest::Approx(expected).epsilon(1e-6));
        }
        const std::vector<double> rounded = dequantized_constant(q.result, up.inputs[1], 1);
        for (std::size_t k = 0; k < w.size(); ++k) {
          const double scale =
              static_cast<double>(codes.scales[k / net.taps % codes.scales.size()]);
          CHECK(std::fabs(rounded[k] - static_cast<double>(w[k])) <= 0.5000001 * scale);
        }
        CHECK(test::difference(graph::dequantized(codes).data<float>(),
                               std::vector<float>(rounded.begin(), rounded.end())) == "");

        // The bias: one scale for each output channel.
        std::vector<double> bias;
        if (with_bias) {
          bias = dequantized_constant(q.result, up.inputs[2], 0);
          REQUIRE(bias.size() == net.out);
          for (std::size_t c = 0; c < bias.size(); ++c) {
            const double step = static_cast<double>(x_scale) *
                                static_cast<double>(codes.scales[c % codes.scales.size()]);
            const auto real = static_cast<double>(net.m.initializers.at("b").data<float>()[c]);
            CHECK(std::fabs(bias[c] - real) <= 0.5001 * step);
          }
        }

        // What both executors compute: the codes of the real result, but for ties.
        const detent::quant_params x_params = q.parameters.activations.at("x");
        const std::string output = net.m.outputs[0].name;
        const detent::quant_params y_params = q.parameters.activations.at(output);
        graph::model integers = q.result;
        graph::to_qoperator(integers);
        CHECK(count(integers, "ConvTranspose") == 1);  // it has no integer operator
        for (const sample& s : samples) {
          std::vector<double> x = doubles(s.at("x"));
          for (double& v : x) {
            const double code =
                std::nearbyint(v / static_cast<double>(x_params.scale)) + x_params.zero_point;
            v = (std::clamp(code, 0.0, 255.0) - x_params.zero_point) *
                static_cast<double>(x_params.scale);
          }
          const std::vector<double> real = net.result(x, rounded, bias);
          const std::vector<float> y = values_of<float>(outputs_of(q.result, s)[0]);
          REQUIRE(y.size() == real.size());
          for (std::size_t k = 0; k < y.size(); ++k) {
            const double steps = real[k] / static_cast<double>(y_params.scale);
            const double code =
                std::clamp(std::nearbyint(steps) + y_params.zero_point, 0.0, 255.0) -
                y_params.zero_point;
            const double actual = static_cast<double>(y[k]) / static_cast<double>(y_params.scale);
            const bool is_tie = std::fabs(steps - std::floor(steps) - 0.5) < 1e-4;
            CHECK(std::fabs(actual - code) < (is_tie ? 1.001 : 0.001));
          }
          for (const graph::model& other : {q.result, integers}) {
            CHECK(test::difference(outputs_of(graph::for_execution(other), s)[0].data<float>(),
                                   y) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("static: what may be done to the weights and biases of transposed convolutions") {
  for (const std::size_t groups : {std::size_t{1}, std::size_t{2}}) {
    test::random_source r(508 + groups);
    INFO("seed ", r.seed(), ", ", groups, " groups");
    const upsampling net(r, groups, true);
    const auto samples = test::samples_of_x(r, {1, 4, 5, 4}, 8, 0.0F, 1.0F);
    const auto source = test::samples_source(samples);
    const graph::quantization q =
        graph::static_quantization(net.m, source, {.weights = {.per_channel = false, .bits = 4}});
    const auto distance = [&](const graph::model& m) {  // of the means of channels
      std::vector<double> means(net.out, 0.0);
      for (const sample& s : samples) {
        const std::vector<double> real = doubles(outputs_of(net.m, s)[0]);
        const std::vector<double> y = doubles(outputs_of(graph::for_execution(m), s)[0]);
        for (std::size_t k = 0; k < y.size(); ++k) {
          means[k / 40] += (y[k] - real[k]) / 40.0 / static_cast<double>(samples.size());
        }
      }
      double most = 0.0;
      for (const double mean : means) {
        most = (std::max)(most, std::fabs(mean));
      }
      return most;
    };
    for (const auto kind : {graph::bias_correction::fast, graph::bias_correction::full}) {
      graph::quantization_plan plan = q.plan;
      const auto shifts = graph::correct_biases(plan, q.parameters, source, {.kind = kind});
      REQUIRE(shifts.size() == 1);
      CHECK(shifts[0].shift.size() == net.out);
      CHECK(shifts[0].applied);
      CHECK(distance(graph::write_qdq(plan, q.parameters)) < 0.4 * distance(q.result));
    }
    graph::quantization_parameters p = q.parameters;
    const auto report = graph::round_weights(q.plan, p, source);
    REQUIRE(report.size() == 1);
    CHECK(report[0].left_out.find("ConvTranspose") != std::string::npos);

    const auto left = [&](const graph::ignored_scope& scope) {
      return named(graph::static_quantization(net.m, source, {.scope = {.ignored = scope}}).result,
                   "up")
                 .inputs[1] == "w";
    };
    CHECK_FALSE(left({}));
    CHECK(left({.types = {"ConvTranspose"}}));
    CHECK(left({.last_layer = true}));
  }

  // A bias that does not have one value for each output channel is no bias that can be stored.
  test::random_source r(511);
  upsampling net(r, 2, true);
  const graph::node& up = named(net.m, "up");
  CHECK(graph::is_quantizable_layer(net.m, up));
  net.m.initializers["b"] = random_floats(r, {3}, -0.5F, 0.5F);
  CHECK_FALSE(graph::is_quantizable_layer(net.m, up));
}

TEST_CASE("static: constants with several uses") {
  test::random_source r(505);
  INFO("seed ", r.seed());
  const auto samples = test::samples_of_x(r, {2, 4, 6, 6}, 3);
  const auto source = test::samples_source(samples);
  const test::attributes padded{{"pads", list({1, 1, 1, 1})}};
  for (const bool per_channel : {true, false}) {
    for (const bool operand_first : {false, true}) {
      INFO("per channel ", per_channel, " operand first ", operand_first);
      // Two layers with the same weights and bias, behind different scales; the bias is an operand
      // of a sum, too, and the weights are returned.
      model_builder b;
      b.input("x", {-1, 4, 6, 6});
      b.constant("w", random_floats(r, {4, 4, 3, 3}, -0.5F, 0.5F));
      b.constant("b", random_floats(r, {4}, -1.0F, 1.0F));
      std::string y = b.add("Conv", {"x", "w", "b"}, padded);
      b.get().nodes.back().name = "one";
      if (operand_first) {
        y = b.add("Add", {b.add("Relu", {y}), b.constant("c", random_floats(r, {4, 1, 1}, -1, 1))});
        // rows of width 4 and a bias of 4: they broadcast along the last dimension
        y = b.add("Transpose", {y}, {{"perm", list({0, 2, 3, 1})}});
        y = b.add("Mul", {y, "b"});
        y = b.add("Transpose", {y}, {{"perm", list({0, 3, 1, 2})}});
      }
      y = b.add("Conv", {y, "w", "b"}, padded);
      b.get().nodes.back().name = "two";
      if (!operand_first) {
        y = b.add("Transpose", {y}, {{"perm", list({0, 2, 3, 1})}});
        y = b.add("Mul", {b.add("Add", {y, "b"}), "b"});
      }
      b.output(y);
      b.output("w");
      const graph::model q =
          graph::static_quantization(b.get(), source, {.weights = {.per_channel = per_channel}})
              .result;
      for (const char* name : {"one", "two"}) {
        const graph::node& n = named(q, name);
        const graph::node* weights = producer(q, n.inputs[1]);
        const graph::node* bias = producer(q, n.inputs[2]);
        REQUIRE(weights != nullptr);
        REQUIRE(bias != nullptr);
        CHECK(q.initializers.at(weights->inputs[0]).type() == element_type::s8);
        CHECK(q.initializers.at(bias->inputs[0]).type() == element_type::s32);
        const float x_scale =
            q.initializers.at(producer(q, n.inputs[0])->inputs[1]).data<float>()[0];
        const auto w_scales = q.initializers.at(weights->inputs[1]).data<float>();
        const auto b_scales = q.initializers.at(bias->inputs[1]).data<float>();
        REQUIRE(b_scales.size() == w_scales.size());
        for (std::size_t i = 0; i < w_scales.size(); ++i) {
          CHECK(b_scales[i] == x_scale * w_scales[i]);
        }
      }
      // The operand is stored in 8 bits, once.
      std::size_t stored = 0;
      for (const graph::node& n : q.nodes) {
        const tensor* t = n.is("DequantizeLinear") ? q.initializer(n.inputs[0]) : nullptr;
        stored += t != nullptr && t->type() == element_type::u8 && t->dims() == shape{4} ? 1U : 0U;
      }
      CHECK(stored == 1);
      CHECK(test::difference(q.initializers.at("w").data<float>(),
                             b.get().initializers.at("w").data<float>()) == "");
      CHECK(q.outputs[1].name == "w");
      CHECK(snr(b.get(), q, samples) > 20.0);
      graph::model again = graph::parse_onnx(graph::to_onnx(q), ".");
      graph::sort_and_check(again);
      CHECK(run(graph::for_execution(again), samples[0]) ==
            run(graph::for_execution(q), samples[0]));
    }
  }

  // A factor that is the bound of a Clip, too: the bound stays a constant.
  model_builder b;
  b.input("x", {-1, 4, 6, 6});
  b.constant("w", random_floats(r, {4, 4, 3, 3}, -0.5F, 0.5F));
  b.scalar("factor", 0.7F);
  std::string y = b.add("Mul", {b.add("Conv", {"x", "w"}), "factor"});
  b.output(b.add("Clip", {y, "", "factor"}));
  b.get().nodes.back().name = "clip";
  b.output(b.add("Sqrt", {"factor"}));  // in float
  b.get().nodes.back().name = "float user";
  const graph::model q = graph::static_quantization(b.get(), source).result;
  REQUIRE(named(q, "clip").inputs.size() == 3);
  CHECK(named(q, "clip").inputs[2] == "factor");
  CHECK(named(q, "float user").inputs[0] == "factor");
  CHECK(snr(b.get(), q, samples) > 25.0);
}

TEST_CASE("static: results that are used further, and constants that are results") {
  test::random_source r(506);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 4, 6, 6});
  b.constant("w", random_floats(r, {4, 4, 3, 3}, -0.5F, 0.5F));
  b.constant("v", random_floats(r, {4, 4, 1, 1}, -0.5F, 0.5F));
  const std::string one = b.add("Conv", {"x", "w"}, {{"pads", list({1, 1, 1, 1})}});
  const std::string clamped = b.add("Relu", {one});
  const std::string two = b.add("Conv", {clamped, "v"});
  const std::string sum = b.add("Add", {two, clamped});
  b.constant("lonely", random_floats(r, {3}, -1.0F, 1.0F));
  b.constant("operand", random_floats(r, {4, 1, 1}, -1.0F, 1.0F));
  const std::string product = b.add("Mul", {sum, "operand"});
  b.output(one);
  b.output(clamped);
  b.output(sum);
  b.output("lonely");
  b.output("operand");
  b.output(product);
  b.output("x");
  const auto samples = test::samples_of_x(r, {2, 4, 6, 6}, 3);
  for (const graph::bias_correction kind :
       {graph::bias_correction::none, graph::bias_correction::full}) {
    const graph::model q =
        graph::static_quantization(b.get(), test::samples_source(samples), {.bias = {.kind = kind}})
            .result;
    REQUIRE(q.outputs.size() == 7);
    for (std::size_t i = 0; i < 7; ++i) {
      CHECK(q.outputs[i].name == b.get().outputs[i].name);
    }
    const auto expected = run(graph::for_execution(b.get()), samples[0]);
    const auto actual = run(graph::for_execution(q), samples[0]);
    for (const std::size_t same : {3U, 4U, 6U}) {
      CHECK(test::difference(actual[same], expected[same]) == "");
    }
    CHECK(snr(b.get(), q, samples) > 25.0);
    // What follows sees what is returned.
    for (const std::string& value : {one, clamped, sum, product}) {
      CHECK(producer(q, value)->is("DequantizeLinear"));
    }
    graph::model again = graph::parse_onnx(graph::to_onnx(q), ".");
    graph::sort_and_check(again);
    CHECK(run(graph::for_execution(again), samples[0]) == actual);
  }
}

TEST_CASE("static_quantization: an Add is no bias where the number of rows decides on its axes") {
  test::random_source r(77);
  INFO("seed ", r.seed());
  const auto branch = [](const char* op, std::vector<std::string> inputs) {
    model_builder body;
    body.output(body.add(op, std::move(inputs)));
    return graph::attribute::of(static_cast<graph::graph_body>(body.get()));
  };
  // The constant has three axes. So has the product of one row; that of more rows has two.
  model_builder b;
  b.input("x", {-1, 8});
  b.constant("zero", make_tensor(element_type::s64, {}, std::vector<std::int64_t>{0}));
  b.constant("one", make_tensor(element_type::s64, {}, std::vector<std::int64_t>{1}));
  b.constant("axis", std::vector<std::int64_t>{0});
  b.constant("w", random_floats(r, {8, 5}, -1.0F, 1.0F));
  b.constant("row", random_floats(r, {1, 1, 5}, -1.0F, 1.0F));
  const std::string rows = b.add("Gather", {b.add("Shape", {"x"}), "zero"});
  const std::string chosen = b.add("If", {b.add("Equal", {rows, "one"})},
                                   {{"then_branch", branch("Unsqueeze", {"x", "axis"})},
                                    {"else_branch", branch("Identity", {"x"})}});
  b.output(b.add("Add", {b.add("MatMul", {chosen, "w"}), "row"}));
  std::vector<tensors> samples;
  for (const std::int64_t n : {1, 3, 1, 4}) {
    samples.push_back({{"x", random_floats(r, {n, 8}, -1.0F, 1.0F)}});
  }
  const graph::model quantized =
      graph::static_quantization(b.get(), samples_source(samples)).result;
  for (const tensors& sample : samples) {
    const tensor expected = outputs_of(b.get(), sample)[0];
    const tensor found = outputs_of(quantized, sample)[0];
    CHECK(found.dims() == expected.dims());
  }
}
