// SPDX-License-Identifier: BSD-3-Clause
// Rounding of weights by the moments of their inputs: the moments against plain loops, what the
// rounding promises, its limits, and its step of the automatic quantization.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/ops/layout.hpp>
#include <detent/graph/quantize/automatic_quantization.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/input_moments.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_rounding.hpp>
#include <detent/parallel.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::element_type;
using graph::shape;
using graph::tensor;
using test::check_graph_error;
using test::list;
using test::model_builder;
using test::number;
using test::random_floats;
using test::sample;

/// A convolution, by its numbers. One spatial axis: height, its kernel and so on are 1.
struct conv_case {
  std::int64_t batch = 1, channels = 1, outputs = 1, groups = 1;
  std::int64_t height = 1, width = 1, kernel_height = 1, kernel_width = 1;
  std::int64_t stride_height = 1, stride_width = 1, dilation_height = 1, dilation_width = 1;
  std::int64_t top = 0, left = 0, bottom = 0, right = 0;
  bool flat = false;
  std::string auto_pad;

  [[nodiscard]] shape input_dims() const {
    return flat ? shape{batch, channels, width} : shape{batch, channels, height, width};
  }
  [[nodiscard]] std::int64_t out_height() const {
    return (height + top + bottom - dilation_height * (kernel_height - 1) - 1) / stride_height + 1;
  }
  [[nodiscard]] std::int64_t out_width() const {
    return (width + left + right - dilation_width * (kernel_width - 1) - 1) / stride_width + 1;
  }
  [[nodiscard]] std::int64_t features() const {
    return channels / groups * kernel_height * kernel_width;
  }

  [[nodiscard]] graph::model model(test::random_source& r) const {
    model_builder b;
    b.input("x", input_dims());
    const std::int64_t in = channels / groups;
    b.constant("w", random_floats(r,
                                  flat ? shape{outputs, in, kernel_width}
                                       : shape{outputs, in, kernel_height, kernel_width},
                                  -1.0F, 1.0F));
    test::attributes a{{"group", number(groups)}};
    a["strides"] = flat ? list({stride_width}) : list({stride_height, stride_width});
    a["dilations"] = flat ? list({dilation_width}) : list({dilation_height, dilation_width});
    if (!auto_pad.empty()) {
      a["auto_pad"] = test::text(auto_pad);
    } else {
      a["pads"] = flat ? list({left, right}) : list({top, left, bottom, right});
    }
    b.output(b.add("Conv", {"x", "w"}, std::move(a)));
    return b.get();
  }

  /// Codes minus their zero point under the kernel, for one group and output position.
  [[nodiscard]] std::vector<std::int64_t> patch(const std::vector<std::int64_t>& x, std::int64_t n,
                                                std::int64_t group, std::int64_t row,
                                                std::int64_t column) const {
    std::vector<std::int64_t> values;
    const std::int64_t in = channels / groups;
    for (std::int64_t c = group * in; c < (group + 1) * in; ++c) {
      for (std::int64_t u = 0; u < kernel_height; ++u) {
        for (std::int64_t v = 0; v < kernel_width; ++v) {
          const std::int64_t y = row * stride_height + u * dilation_height - top;
          const std::int64_t z = column * stride_width + v * dilation_width - left;
          const bool inside = y >= 0 && y < height && z >= 0 && z < width;
          values.push_back(
              inside ? x[static_cast<std::size_t>(((n * channels + c) * height + y) * width + z)]
                     : 0);
        }
      }
    }
    return values;
  }
};

conv_case random_conv(test::random_source& r) {
  conv_case c;
  c.batch = r.integer(1, 3);
  c.flat = r.chance(25);
  const int kind = r.integer(0, 2);
  if (kind == 0) {  // depthwise, sometimes with two outputs for each channel
    c.groups = c.channels = r.integer(2, 5);
    c.outputs = c.groups * r.integer(1, 2);
  } else {
    c.groups = kind == 1 ? 1 : r.integer(2, 3);
    c.channels = c.groups * r.integer(1, 4);
    c.outputs = c.groups * r.integer(1, 3);
  }
  c.width = r.integer(5, 9);
  c.kernel_width = r.integer(1, 3);
  c.stride_width = r.integer(1, 3);
  c.dilation_width = r.integer(1, 2);
  c.left = r.integer(0, 2);
  c.right = r.integer(0, 2);
  if (!c.flat) {
    c.height = r.integer(5, 9);
    c.kernel_height = r.integer(1, 3);
    c.stride_height = r.integer(1, 3);
    c.dilation_height = r.integer(1, 2);
    c.top = r.integer(0, 2);
    c.bottom = r.integer(0, 2);
  }
  return c;
}

/// Parameters of a plan: random ranges that cut some values off, weights rounded to nearest.
graph::quantization_parameters random_parameters(const graph::quantization_plan& plan,
                                                 test::random_source& r, element_type type,
                                                 const graph::layer_weight_options& options = {}) {
  graph::quantization_parameters p;
  p.activation_type = type;
  const int lowest = type == element_type::u8 ? 0 : -128;
  for (const std::string& name : plan.values()) {
    p.activations[name] = {r.real(0.004F, 0.01F), lowest + r.integer(0, 255)};
  }
  for (const std::size_t i : plan.layers()) {
    const graph::node& n = plan.float_model().nodes[i];
    p.layers.emplace(i, graph::quantize_layer_weights(
                            plan.float_model(), n, p.activations.at(n.inputs[0]).scale, options));
  }
  return p;
}

/// What a tensor is in 8 bits, minus the zero point.
std::vector<std::int64_t> codes_of(const tensor& x, detent::quant_params p, element_type type) {
  const double lowest = type == element_type::u8 ? 0.0 : -128.0;
  std::vector<std::int64_t> codes;
  for (const float value : x.data<float>()) {
    const double steps = static_cast<double>(std::nearbyint(value / p.scale));
    const double code = std::clamp(steps + p.zero_point, lowest, lowest + 255.0);
    codes.push_back(static_cast<std::int64_t>(code) - p.zero_point);
  }
  return codes;
}

using int_matrix = std::vector<std::vector<std::int64_t>>;

void add_row(int_matrix& g, const std::vector<std::int64_t>& row) {
  g.resize(row.size(), std::vector<std::int64_t>(row.size(), 0));
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t j = 0; j < row.size(); ++j) {
      g[i][j] += row[i] * row[j];
    }
  }
}

void check_matrix(const detent::gram_matrix& g, const int_matrix& expected) {
  REQUIRE(g.size() == expected.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    for (std::size_t j = 0; j < g.size(); ++j) {
      wrong += g(i, j) != static_cast<double>(expected[i][j]) ? 1U : 0U;
    }
  }
  CHECK(wrong == 0);
}

/// Where the weights of an output channel are: its first one, and the distance to the next.
struct channel_place {
  std::size_t first, step;
};
channel_place place_of(const shape& dims, std::size_t axis, std::size_t channel) {
  if (axis == 1) {
    return {channel, static_cast<std::size_t>(dims[1])};
  }
  return {channel * (graph::element_count(dims) / static_cast<std::size_t>(dims[0])), 1};
}

/// Errors of the weights of one channel, e = w - v.
struct channel_errors {
  double at_outputs = 0.0;  ///< e^T G e
  double damped = 0.0;      ///< e^T D e, where D is G with the damping on its diagonal
  /// How far e^T D e, or e^T G e, in double may be from its real value. Rounding e, an element of
  /// D, two products and two sums of K terms gives each term e_i D_ij e_j a relative error of at
  /// most (2 K + 3) 2^-53, and two more for what exceeds first order.
  double rounding = 0.0;
  /// How much of |e|^2 is due to codes that are not the nearest ones on the grid.
  double excess = 0.0;
  /// The most that it can be if codes are nearest to the quotient w / s in float. Rounding moves
  /// w / s by up to 2^-24 |w / s| =: d, maybe across a tie, and (s / 2 + d s)^2 - (s / 2 - d s)^2
  /// is 2 d s^2 = 2^-23 |w| s.
  double most_excess = 0.0;
};
channel_errors errors_of(const tensor& weights, const graph::layer_weights& w, std::size_t channel,
                         const detent::gram_matrix& g, const detent::gram_matrix& damped) {
  const channel_place at = place_of(weights.dims(), w.axis, channel);
  const auto scale = static_cast<long double>(w.scales[w.scales.size() == 1 ? 0 : channel]);
  std::vector<long double> e;
  long double excess = 0.0L;
  long double most_excess = 0.0L;
  for (std::size_t k = 0; k < g.size(); ++k) {
    const std::size_t i = at.first + k * at.step;
    const auto real = static_cast<long double>(weights.data<float>()[i]);
    e.push_back(real -
                scale * static_cast<long double>(w.codes.data<std::int8_t>()[i] - w.zero_point));
    const long double nearest =
        real - scale * std::clamp(std::nearbyint(real / scale),
                                  static_cast<long double>(w.levels.qmin - w.zero_point),
                                  static_cast<long double>(w.levels.qmax - w.zero_point));
    excess += e[k] * e[k] - nearest * nearest;
    most_excess += std::ldexp(std::fabs(real) * scale, -23);
  }
  long double at_outputs = 0.0L;
  long double with_damping = 0.0L;
  long double magnitudes = 0.0L;
  for (std::size_t i = 0; i < e.size(); ++i) {
    for (std::size_t j = 0; j < e.size(); ++j) {
      at_outputs += e[i] * static_cast<long double>(g(i, j)) * e[j];
      const long double term = e[i] * static_cast<long double>(damped(i, j)) * e[j];
      with_damping += term;
      magnitudes += std::fabs(term);
    }
  }
  return {
      static_cast<double>(at_outputs), static_cast<double>(with_damping),
      std::ldexp(2.0 * static_cast<double>(g.size()) + 5.0, -53) * static_cast<double>(magnitudes),
      static_cast<double>(excess), static_cast<double>(most_excess)};
}

std::size_t different(const graph::layer_weights& a, const graph::layer_weights& b) {
  const auto x = a.codes.data<std::int8_t>();
  const auto y = b.codes.data<std::int8_t>();
  std::size_t count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    count += x[i] != y[i] ? 1U : 0U;
  }
  return count;
}

/// Rows whose elements depend on each other: running sums of noise.
tensor correlated(test::random_source& r, const shape& dims) {
  std::vector<float> values(graph::element_count(dims));
  float level = 0.0F;
  for (float& value : values) {
    level = 0.9F * level + r.real(-0.3F, 0.5F);
    value = level;
  }
  return test::floats(dims, values);
}

/// Conv with groups, depthwise, Gemm of both kinds and MatMul, one behind the other.
graph::model mixed_network(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 4, 6, 6});
  const auto weights = [&](const std::string& name, const shape& dims) {
    return b.constant(name, random_floats(r, dims, -0.4F, 0.4F));
  };
  std::string y = b.add("Conv",
                        {"x", weights("grouped", {6, 2, 3, 3}),
                         b.constant("bias", random_floats(r, {6}, -0.2F, 0.2F))},
                        {{"group", number(2)}, {"pads", list({1, 1, 1, 1})}});
  y = b.add("Relu", {y});
  y = b.add("Conv", {y, weights("depthwise", {6, 1, 3, 3})},
            {{"group", number(6)}, {"strides", list({2, 2})}});
  y = b.add("Flatten", {y});  // 24
  y = b.add("Gemm", {y, weights("gemm", {24, 10})});
  y = b.add("Gemm", {y, weights("transposed", {12, 10})}, {{"transB", number(1)}});
  b.output(b.add("MatMul", {y, weights("matmul", {12, 5})}));
  return b.get();
}

/// Few large weights in each layer, so that one scale for all is coarse for the rest of them.
graph::model coarse_network(test::random_source& r) {
  model_builder b;
  std::string y = b.input("x", {-1, 32});
  std::int64_t inputs = 32;
  for (const std::int64_t outputs : {24, 24, 6}) {
    const std::string name = "w" + std::to_string(b.get().nodes.size());
    tensor w = random_floats(r, {inputs, outputs}, -0.1F, 0.1F);
    for (int k = 0; k < 3; ++k) {
      const std::size_t at = r.size(0, w.count() - 1);
      w.mutable_data<float>()[at] = r.chance(50) ? 2.0F : -2.0F;
    }
    y = b.add("Gemm", {y, b.constant(name, w)});
    if (outputs != 6) {
      y = b.add("Relu", {y});
    }
    inputs = outputs;
  }
  b.output(y);
  return b.get();
}

std::vector<sample> correlated_samples(test::random_source& r, const shape& dims, std::size_t n) {
  std::vector<sample> samples;
  for (std::size_t i = 0; i < n; ++i) {
    samples.push_back({{"x", correlated(r, dims)}});
  }
  return samples;
}

}  // namespace

TEST_CASE("moments: convolutions against plain loops") {
  for (std::uint64_t seed = 700; seed < 740; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    conv_case c = random_conv(r);
    if (seed % 8 == 0) {  // pads that the node does not state
      c.stride_width = c.stride_height = c.dilation_width = c.dilation_height = 1;
      c.auto_pad = seed % 16 == 0 ? "SAME_UPPER" : "SAME_LOWER";
      const auto smaller = [](std::int64_t kernel) { return (kernel - 1) / 2; };
      const auto larger = [](std::int64_t kernel) { return kernel / 2; };
      const bool upper = c.auto_pad == "SAME_UPPER";
      c.left = upper ? smaller(c.kernel_width) : larger(c.kernel_width);
      c.right = upper ? larger(c.kernel_width) : smaller(c.kernel_width);
      c.top = upper ? smaller(c.kernel_height) : larger(c.kernel_height);
      c.bottom = upper ? larger(c.kernel_height) : smaller(c.kernel_height);
    }
    const element_type type = r.chance(50) ? element_type::u8 : element_type::s8;
    const graph::quantization_plan plan(c.model(r));
    const graph::quantization_parameters p = random_parameters(plan, r, type);
    const std::size_t layer = plan.layers().at(0);
    graph::input_moments moments(plan, p, {.rows_per_run = 100000});
    std::vector<int_matrix> expected(static_cast<std::size_t>(c.groups));
    for (int run = 0; run < 2; ++run) {
      const tensor x = random_floats(r, c.input_dims(), -1.0F, 1.5F);
      moments.add("x", run == 0 ? x : graph::to_channels_last(x));  // either order of elements
      const std::vector<std::int64_t> codes = codes_of(x, p.activations.at("x"), type);
      for (std::int64_t n = 0; n < c.batch; ++n) {
        for (std::int64_t g = 0; g < c.groups; ++g) {
          for (std::int64_t i = 0; i < c.out_height(); ++i) {
            for (std::int64_t j = 0; j < c.out_width(); ++j) {
              add_row(expected[static_cast<std::size_t>(g)], c.patch(codes, n, g, i, j));
            }
          }
        }
      }
    }
    CHECK(moments.features(layer) == static_cast<std::size_t>(c.features()));
    REQUIRE(moments.groups(layer) == static_cast<std::size_t>(c.groups));
    CHECK(moments.rows(layer) ==
          static_cast<std::uint64_t>(2 * c.batch * c.out_height() * c.out_width()));
    for (std::size_t g = 0; g < expected.size(); ++g) {
      check_matrix(moments.gram(layer, g), expected[g]);
    }
  }
}

TEST_CASE("moments: rows of matrices against plain loops") {
  for (std::uint64_t seed = 740; seed < 752; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const std::int64_t k = r.integer(1, 12);
    const std::int64_t n = r.integer(1, 6);
    const int kind = r.integer(0, 3);
    const shape dims = kind == 3 ? shape{2, r.integer(1, 4), k} : shape{r.integer(1, 5), k};
    model_builder b;
    b.input("x", dims);
    if (kind >= 2) {
      b.constant("w", random_floats(r, {k, n}, -1.0F, 1.0F));
      b.output(b.add("MatMul", {"x", "w"}));
    } else {
      b.constant("w", random_floats(r, kind == 1 ? shape{n, k} : shape{k, n}, -1.0F, 1.0F));
      b.output(b.add("Gemm", {"x", "w"}, {{"transB", number(kind)}}));
    }
    const element_type type = r.chance(50) ? element_type::u8 : element_type::s8;
    const graph::quantization_plan plan(b.get());
    const graph::quantization_parameters p = random_parameters(plan, r, type);
    graph::input_moments moments(plan, p);
    int_matrix expected;
    for (int run = 0; run < 3; ++run) {
      const tensor x = random_floats(r, dims, -1.0F, 1.5F);
      moments.add("x", x);
      moments.add("nobody's", x);
      const std::vector<std::int64_t> codes = codes_of(x, p.activations.at("x"), type);
      for (std::size_t row = 0; row < codes.size(); row += static_cast<std::size_t>(k)) {
        const auto first = codes.begin() + static_cast<std::ptrdiff_t>(row);
        add_row(expected, {first, first + static_cast<std::ptrdiff_t>(k)});
      }
    }
    check_matrix(moments.gram(plan.layers().at(0)), expected);
  }
}

TEST_CASE("moments: some of the rows of each run, in the end all of them") {
  for (const std::size_t total : {7U, 64U, 100U, 1024U, 3600U, 4410U}) {
    for (const std::size_t parts : {1U, 2U, 5U, 10U}) {
      if (total % parts != 0) {
        continue;
      }
      INFO(total, " rows in ", parts, " parts");
      graph::detail::row_sampler sampler;
      std::set<std::size_t> seen;
      for (std::size_t part = 0; part < parts; ++part) {
        sampler.pick(total, total / parts, [&](std::size_t row) {
          CHECK(row < total);
          CHECK(seen.insert(row).second);
        });
      }
      CHECK(seen.size() == total);
    }
  }
  // Few of many: no stretch of the rows is without one.
  graph::detail::row_sampler sampler;
  std::vector<std::size_t> of_column(32), of_row(32);
  sampler.pick(1024, 64, [&](std::size_t row) {
    ++of_column[row % 32];
    ++of_row[row / 32];
  });
  CHECK(*std::min_element(of_row.begin(), of_row.end()) > 0);
  CHECK(*std::max_element(of_row.begin(), of_row.end()) < 5);
  CHECK(*std::min_element(of_column.begin(), of_column.end()) > 0);
  CHECK(*std::max_element(of_column.begin(), of_column.end()) < 5);

  test::random_source r(760);
  INFO("seed ", r.seed());
  conv_case c;
  c.channels = 2;
  c.outputs = 3;
  c.height = c.width = 6;
  c.kernel_height = c.kernel_width = 3;
  const graph::quantization_plan plan(c.model(r));
  const graph::quantization_parameters p = random_parameters(plan, r, element_type::u8);
  const std::size_t layer = plan.layers().at(0);
  const tensor x = random_floats(r, c.input_dims(), -1.0F, 1.0F);
  graph::input_moments all(plan, p), some(plan, p, {.rows_per_run = 4});
  all.add("x", x);
  for (std::uint64_t run = 1; run <= 4; ++run) {  // 16 positions
    some.add("x", x);
    CHECK(some.rows(layer) == 4 * run);
    CHECK((some.gram(layer) == all.gram(layer)) == (run == 4));
  }
}

TEST_CASE("weight rounding: no channel is worse than with nearest rounding") {
  for (std::uint64_t seed = 770; seed < 786; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::quantization_plan plan(mixed_network(r));
    const graph::model& m = plan.float_model();
    graph::layer_weight_options options;
    options.per_channel = seed % 3 != 0;
    options.asymmetric = seed % 2 == 0;
    options.reduce_range = seed % 4 == 1;
    options.scale = seed % 5 == 0 ? graph::weight_scale::exact_mse : graph::weight_scale::absmax;
    graph::quantization_parameters p =
        random_parameters(plan, r, r.chance(50) ? element_type::u8 : element_type::s8, options);
    detent::grid expected_levels{-127, 127};
    if (options.reduce_range) {
      expected_levels = {-64, 64};
    } else if (options.asymmetric && !options.per_channel) {
      expected_levels = {-128, 127};
    }
    if (seed % 4 == 2) {  // weights beyond the grid
      for (auto& [i, w] : p.layers) {
        for (float& scale : w.scales) {
          scale *= 0.4F;
        }
        const detent::channel_quant_params all{
            w.axis, std::vector<float>(static_cast<std::size_t>(w.codes.dim(w.axis)), w.scales[0]),
            std::vector<std::int32_t>(static_cast<std::size_t>(w.codes.dim(w.axis)), w.zero_point)};
        detent::channel_quant_params q = all;
        if (w.scales.size() > 1) {
          q.scales = w.scales;
        }
        w.codes = tensor::allocate(element_type::s8, w.codes.dims());
        detent::quantize(graph::tensor_view_of<float>(m.initializers.at(m.nodes[i].inputs[1])),
                         graph::mutable_view_of<std::int8_t>(w.codes), q, w.levels);
      }
    }
    const graph::quantization_parameters nearest = p;
    const auto samples = correlated_samples(r, {2, 4, 6, 6}, 3);
    const double damping = std::vector<double>{0.0, 0.01, 1.0}[seed % 3];
    const graph::weight_rounding_options rounding{.damping = damping};
    const graph::input_moments moments =
        graph::gather_moments(plan, p, test::samples_source(samples), rounding);
    const std::vector<graph::rounded_layer> report =
        graph::round_weights(plan, p, moments, rounding);
    REQUIRE(report.size() == plan.layers().size());
    std::size_t changed = 0;
    for (std::size_t k = 0; k < report.size(); ++k) {
      const graph::rounded_layer& one = report[k];
      INFO("layer ", one.node);
      CHECK(one.layer == plan.layers()[k]);
      CHECK(one.left_out.empty());
      const tensor& weights = m.initializers.at(m.nodes[one.layer].inputs[1]);
      const graph::layer_weights& before = nearest.layers.at(one.layer);
      const graph::layer_weights& after = p.layers.at(one.layer);
      CHECK(after.scales == before.scales);
      CHECK(after.zero_point == before.zero_point);
      CHECK(after.axis == before.axis);
      CHECK(after.levels == expected_levels);
      const auto codes = after.codes.data<std::int8_t>();
      CHECK(*std::min_element(codes.begin(), codes.end()) >= expected_levels.qmin);
      CHECK(*std::max_element(codes.begin(), codes.end()) <= expected_levels.qmax);
      const auto channels = static_cast<std::size_t>(weights.dim(after.axis));
      double sum_before = 0.0;
      double sum_after = 0.0;
      double rounding_before = 0.0;
      double rounding_after = 0.0;
      for (std::size_t channel = 0; channel < channels; ++channel) {
        INFO("channel ", channel);
        const detent::gram_matrix g = moments.gram(one.layer, channel / (channels / one.groups));
        const detent::gram_matrix damped = g.dampened(damping);
        const channel_errors of_nearest = errors_of(weights, before, channel, g, damped);
        const channel_errors found = errors_of(weights, after, channel, g, damped);
        // What is minimized does not rise by more than the rounding of four values: the two that
        // the library compares, and these two.
        const double room = 2.0 * (of_nearest.rounding + found.rounding);
        CHECK(found.damped <= of_nearest.damped + room);
        // So the error at the outputs rises by no more than the damping times what |e|^2 falls by,
        // which is at most the excess of nearest rounding: 0 unless a float quotient crosses a tie.
        CHECK(of_nearest.excess <= of_nearest.most_excess);
        const double added = damping * g.mean_diagonal();
        CHECK(found.at_outputs <= of_nearest.at_outputs + added * of_nearest.excess + room);
        sum_before += of_nearest.at_outputs;
        sum_after += found.at_outputs;
        rounding_before += of_nearest.rounding;
        rounding_after += found.rounding;
      }
      // Four roundings again: the report subtracts the damping from e^T D e, sums both over at most
      // 12 channels, which is 24 more roundings and no more than 2 K + 5, and is compared with a
      // rounded sum. (K is less than 10 only where each channel is a group of its own.)
      const double scale = p.activations.at(m.nodes[one.layer].inputs[0]).scale;
      const double unit = scale * scale / static_cast<double>(one.rows);
      CHECK(std::fabs(one.nearest_error - sum_before * unit) <= 4.0 * unit * rounding_before);
      CHECK(std::fabs(one.error - sum_after * unit) <= 4.0 * unit * rounding_after);
      CHECK(one.changed == different(before, after));
      CHECK((one.error < one.nearest_error) == (one.changed > 0));
      changed += one.changed;
    }
    CHECK(changed > 0);
  }
}

TEST_CASE("weight rounding: less error at the outputs of a coarse layer, on other samples") {
  double all_before = 0.0;
  double all_after = 0.0;
  for (std::uint64_t seed = 790; seed < 796; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    conv_case c;
    c.channels = 4;
    c.outputs = 8;
    c.groups = seed % 2 == 0 ? 1 : 4;
    c.height = c.width = 8;
    c.kernel_height = c.kernel_width = 3;
    c.top = c.left = c.bottom = c.right = 1;
    const graph::model m = c.model(r);
    const auto samples = correlated_samples(r, c.input_dims(), 16);
    graph::quantization q = graph::static_quantization(m, test::samples_source(samples));
    const std::size_t layer = q.plan.layers().at(0);
    const tensor& weights = m.initializers.at("w");
    graph::layer_weights& w = q.parameters.layers.at(layer);
    w.levels = {-3, 3};
    for (float& scale : w.scales) {
      scale *= 127.0F / 3.0F;
    }
    const std::size_t filter = static_cast<std::size_t>(c.features());
    w.codes = tensor::allocate(element_type::s8, w.codes.dims());
    for (std::size_t k = 0; k < weights.count(); ++k) {
      w.codes.mutable_data<std::int8_t>()[k] =
          static_cast<std::int8_t>(std::nearbyint(weights.data<float>()[k] / w.scales[k / filter]));
    }
    const graph::layer_weights nearest = w;
    const auto report = graph::round_weights(q.plan, q.parameters, test::samples_source(samples));
    CHECK(report.at(0).changed > 0);

    double error_before = 0.0;
    double error_after = 0.0;
    for (const sample& s : correlated_samples(r, c.input_dims(), 8)) {
      const std::vector<std::int64_t> codes =
          codes_of(s.at("x"), q.parameters.activations.at("x"), element_type::u8);
      for (std::int64_t i = 0; i < c.out_height(); ++i) {
        for (std::int64_t j = 0; j < c.out_width(); ++j) {
          for (std::size_t o = 0; o < static_cast<std::size_t>(c.outputs); ++o) {
            const auto group = static_cast<std::int64_t>(o) / (c.outputs / c.groups);
            const std::vector<std::int64_t> x = c.patch(codes, 0, group, i, j);
            double before = 0.0;
            double after = 0.0;
            for (std::size_t k = 0; k < filter; ++k) {
              const std::size_t at = o * filter + k;
              const double real = weights.data<float>()[at];
              const double scale = w.scales[o];
              const auto input = static_cast<double>(x[k]);
              before += input * (real - scale * nearest.codes.data<std::int8_t>()[at]);
              after += input * (real - scale * w.codes.data<std::int8_t>()[at]);
            }
            error_before += before * before;
            error_after += after * after;
          }
        }
      }
    }
    INFO("error ", error_before, " -> ", error_after);
    CHECK(error_after < 0.95 * error_before);
    all_before += error_before;
    all_after += error_after;
  }
  INFO("all errors ", all_before, " -> ", all_after);
  CHECK(all_after < 0.65 * all_before);
}

TEST_CASE("weight rounding: limits are kept and told") {
  test::random_source r(800);
  INFO("seed ", r.seed());
  const graph::quantization_plan plan(mixed_network(r));
  const graph::quantization_parameters nearest = random_parameters(plan, r, element_type::u8);
  const auto samples = correlated_samples(r, {1, 4, 6, 6}, 4);
  const auto source = test::samples_source(samples);
  const std::vector<std::size_t> features{18, 9, 24, 10, 12};
  const std::vector<std::size_t> groups{2, 6, 1, 1, 1};
  const auto run = [&](const graph::weight_rounding_options& options) {
    graph::quantization_parameters p = nearest;
    const auto report = graph::round_weights(plan, p, source, options);
    REQUIRE(report.size() == 5);
    std::string left;
    for (std::size_t k = 0; k < report.size(); ++k) {
      CHECK(report[k].features == features[k]);
      CHECK(report[k].groups == groups[k]);
      const std::size_t changed =
          different(nearest.layers.at(report[k].layer), p.layers.at(report[k].layer));
      CHECK(report[k].changed == changed);
      if (!report[k].left_out.empty()) {
        CHECK(report[k].rows == 0);
        CHECK(changed == 0);
        CHECK(report[k].error == 0.0);
        left += std::to_string(k) + ": " + report[k].left_out + "; ";
      }
    }
    return left;
  };
  CHECK(run({}) == "");
  CHECK(run({.max_features = 17}) ==
        "0: 18 features, the limit is 17; 2: 24 features, the limit is 17; ");
  CHECK(run({.max_features = 9}).find("1:") == std::string::npos);
  // 2 * 18^2 + 6 * 9^2 + 24^2 + 10^2 + 12^2 = 1954 elements of 16 bytes.
  CHECK(run({.max_bytes = 16 * 1954}) == "");
  CHECK(run({.max_bytes = 16 * 1954 - 1}) ==
        "4: no room for 1 matrices of 12 features in the 2303 bytes that are left of 31263; ");
  CHECK(run({.max_bytes = 16 * 648}).find("0:") == std::string::npos);
  const std::string none = run({.max_bytes = 0});
  for (const char* text : {"0: no room for 2 matrices of 18", "1: no room for 6 matrices of 9",
                           "4: no room for 1 matrices of 12"}) {
    CHECK(none.find(text) != std::string::npos);
  }

  // 36 and 4 output positions in a run, rows of matrices 1.
  const auto rows = [&](std::size_t wanted) {
    graph::quantization_parameters p = nearest;
    std::vector<std::uint64_t> seen;
    for (const graph::rounded_layer& l : graph::round_weights(plan, p, source, {.rows = wanted})) {
      seen.push_back(l.rows);
    }
    return seen;
  };
  CHECK(rows(1000) == std::vector<std::uint64_t>{144, 16, 4, 4, 4});
  CHECK(rows(40) == std::vector<std::uint64_t>{40, 16, 4, 4, 4});
  CHECK(rows(11) == std::vector<std::uint64_t>{8, 8, 4, 4, 4});
  CHECK(rows(1) == std::vector<std::uint64_t>{4, 4, 4, 4, 4});
}

TEST_CASE("weight rounding: layers of one input share its moments") {
  test::random_source r(805);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 2, 8, 8});
  const auto conv = [&](const std::string& name, const shape& dims, std::int64_t dilation) {
    b.constant(name, random_floats(r, dims, -1.0F, 1.0F));
    b.output(b.add("Conv", {"x", name}, {{"dilations", list({dilation, dilation})}}));
  };
  conv("a", {16, 2, 3, 3}, 1);
  conv("b", {20, 2, 3, 3}, 1);  // as a
  conv("c", {3, 2, 3, 3}, 2);
  const graph::quantization_plan plan(b.get());
  graph::quantization_parameters p = random_parameters(plan, r, element_type::s8);
  const auto samples = correlated_samples(r, {1, 2, 8, 8}, 4);
  const auto report =
      graph::round_weights(plan, p, test::samples_source(samples), {.max_bytes = 16 * 18 * 18});
  REQUIRE(report.size() == 3);
  CHECK(report[0].changed > 0);
  CHECK(report[1].changed > 0);
  CHECK(report[0].rows == 4 * 36);
  CHECK(report[1].rows == 4 * 36);
  CHECK(report[2].left_out.find("no room") != std::string::npos);
}

TEST_CASE("weight rounding: the same bits with threads, and again") {
  test::random_source r(810);
  INFO("seed ", r.seed());
  const graph::quantization_plan plan(mixed_network(r));
  const graph::quantization_parameters nearest = random_parameters(plan, r, element_type::u8);
  const auto source = test::samples_source(correlated_samples(r, {3, 4, 6, 6}, 5));
  graph::quantization_parameters once = nearest;
  const auto report = graph::round_weights(plan, once, source, {.rows = 60});
  detent::thread_pool pool(3);
  graph::executor_options threads;
  threads.parallel = pool.parallel();
  for (const graph::executor_options& runner : {graph::executor_options(), threads}) {
    graph::quantization_parameters again = nearest;
    const auto other = graph::round_weights(plan, again, source, {.rows = 60}, runner);
    for (std::size_t k = 0; k < report.size(); ++k) {
      CHECK(different(once.layers.at(report[k].layer), again.layers.at(report[k].layer)) == 0);
      CHECK(report[k].error == other[k].error);
    }
  }
}

TEST_CASE("automatic: weight rounding is tried, kept where it helps, and left out on demand") {
  std::size_t kept = 0;
  double gain = 0.0;
  for (std::uint64_t seed = 820; seed < 824; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = coarse_network(r);
    const auto source = test::samples_source(correlated_samples(r, {2, 32}, 64));
    std::vector<graph::quantization_step> steps;
    graph::automatic_quantization_options options;
    options.weights.per_channel = false;
    options.single_runs = 40;
    options.rounding = std::nullopt;
    options.on_step = [&](const graph::quantization_step& s) { steps.push_back(s); };
    const graph::quantization without = graph::automatic_quantization(m, source, options);
    for (const graph::quantization_step& s : steps) {
      CHECK(s.name.find("rounding") == std::string::npos);
    }
    // Weights that are remembered from one trial to the next are those of the final ranges.
    std::size_t equal = 0;
    for (const graph::weight_scale scale :
         {graph::weight_scale::absmax, graph::weight_scale::exact_mse}) {
      const auto layers =
          graph::quantize_layers(without.plan, without.parameters.activations,
                                 {.weights = {.per_channel = false, .scale = scale}});
      equal += std::all_of(layers.begin(), layers.end(), [&](const auto& entry) {
        const graph::layer_weights& other = without.parameters.layers.at(entry.first);
        return entry.second.scales == other.scales && different(entry.second, other) == 0;
      });
    }
    CHECK(equal >= 1);

    steps.clear();
    options.rounding.emplace();
    const graph::quantization with = graph::automatic_quantization(m, source, options);
    std::size_t tried = 0;
    double before = 0.0;
    double after = 0.0;
    bool rounded = false;
    for (const graph::quantization_step& s : steps) {
      if (s.name.rfind("weight rounding: ", 0) == 0) {
        CHECK((s.name == "weight rounding: absmax scales" ||
               s.name == "weight rounding: exact_mse scales"));
        CHECK(s.kept == (s.noise_after < s.noise_before));
        rounded = rounded || s.kept;
        before = tried == 0 ? s.noise_before : before;
        after = s.kept ? s.noise_after : s.noise_before;
        if (++tried == 2) {
          gain += 10.0 * std::log10(before / after);  // on samples that it has not seen
        }
      } else if (tried > 0 && s.name.find("on its own samples") == std::string::npos) {
        CHECK(s.noise_before == after);  // it begins where rounding has ended
        after = s.kept ? s.noise_after : after;
      }
    }
    CHECK(tried == 2);
    kept += rounded ? 1U : 0U;
    const graph::output_judge judge(m, source, 64);
    CHECK(judge.noise_to_signal(with.result) <=
          judge.noise_to_signal(
              graph::static_quantization(m, source, {.weights = {.per_channel = false}}).result));
  }
  INFO("kept ", kept, " times, mean gain ", gain / 4.0, " dB");
  CHECK(kept >= 2);
  CHECK(gain / 4.0 > 0.5);
}

TEST_CASE("weight rounding: says no") {
  test::random_source r(830);
  const graph::quantization_plan plan(mixed_network(r));
  graph::quantization_parameters p = random_parameters(plan, r, element_type::u8);
  const std::size_t first = plan.layers().at(0);
  auto samples = test::samples_of_x(r, {1, 4, 6, 6}, 2);
  const auto source = test::samples_source(samples);
  const auto rounds = [&](const graph::weight_rounding_options& options) {
    graph::quantization_parameters copy = p;
    static_cast<void>(graph::round_weights(plan, copy, source, options));
  };
  check_graph_error(error_kind::invalid_argument, {"0 rows"}, [&] { rounds({.rows = 0}); });
  check_graph_error(error_kind::invalid_argument, {"0 sweeps"}, [&] { rounds({.max_sweeps = 0}); });
  check_graph_error(error_kind::invalid_argument, {"damping", "-0.5"},
                    [&] { rounds({.damping = -0.5}); });
  check_graph_error(error_kind::invalid_argument, {"damping", "nan"},
                    [&] { rounds({.damping = std::nan("")}); });
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"}, [&] {
    static_cast<void>(graph::round_weights(plan, p, test::samples_source({})));
  });
  check_graph_error(error_kind::invalid_argument, {"no source"}, [&] {
    static_cast<void>(graph::round_weights(plan, p, graph::calibration_source()));
  });
  samples[1].at("x") =
      test::floats({1, 4, 6, 6}, std::vector<float>(144, std::numeric_limits<float>::quiet_NaN()));
  check_graph_error(error_kind::invalid_argument, {"sample 2", "tensor 'x'", "nan"}, [&] {
    static_cast<void>(graph::round_weights(plan, p, test::samples_source(samples)));
  });

  graph::quantization_parameters lacking = p;
  lacking.layers.erase(first);
  check_graph_error(error_kind::invalid_argument, {"Conv_0", "no quantized weights"},
                    [&] { static_cast<void>(graph::round_weights(plan, lacking, source)); });
  lacking = p;
  lacking.activations.erase("x");
  check_graph_error(error_kind::invalid_argument, {"Conv_0", "no parameters", "'x'"},
                    [&] { static_cast<void>(graph::round_weights(plan, lacking, source)); });
  lacking = p;
  lacking.activation_type = element_type::f32;
  check_graph_error(error_kind::invalid_argument, {"float32", "uint8"},
                    [&] { static_cast<void>(graph::round_weights(plan, lacking, source)); });

  check_graph_error(error_kind::invalid_argument, {"0 rows"},
                    [&] { static_cast<void>(graph::input_moments(plan, p, {.rows_per_run = 0})); });
  graph::input_moments moments(plan, p, {.max_features = 18});
  check_graph_error(error_kind::shape_mismatch, {"tensor 'x'", "Conv_0", "[1,3,6,6]"}, [&] {
    moments.add("x", random_floats(r, {1, 3, 6, 6}, 0.0F, 1.0F));
  });
  check_graph_error(error_kind::shape_mismatch, {"tensor 'x'", "[4,6]"}, [&] {
    moments.add("x", random_floats(r, {4, 6}, 0.0F, 1.0F));
  });
  check_graph_error(error_kind::invalid_argument, {"nothing was observed"},
                    [&] { static_cast<void>(moments.gram(first)); });
  check_graph_error(error_kind::invalid_argument, {"2 groups", "no 2"},
                    [&] { static_cast<void>(moments.gram(first, 2)); });
  check_graph_error(error_kind::invalid_argument, {"not a layer", "1000"},
                    [&] { static_cast<void>(moments.features(1000)); });
  check_graph_error(error_kind::invalid_argument, {"24 features", "18"},
                    [&] { static_cast<void>(moments.gram(plan.layers().at(2))); });
  // Without rows, layers stay as they are.
  for (const graph::rounded_layer& l : graph::round_weights(plan, p, moments)) {
    CHECK(l.changed == 0);
    CHECK((l.left_out == "the samples have no rows for it" || l.features == 24));
  }
}
