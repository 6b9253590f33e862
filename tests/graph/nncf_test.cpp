// SPDX-License-Identifier: BSD-3-Clause
// NNCF's interface: datasets, range estimators, the numbers of nncf::quantize().
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/float_formats.hpp>
#include <detent/graph/nncf/nncf.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observer_registry.hpp>

#include "check_graph_error.hpp"
#include "compare_models.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
namespace nncf = detent::graph::nncf;
using doctest::Approx;

/// The numbers first, first + 1, ... of which it counts those that are drawn.
class counted {
 public:
  counted(int first, int count, int& drawn) : first_(first), count_(count), drawn_(&drawn) {}

  class iterator {
   public:
    using value_type = int;
    using difference_type = std::ptrdiff_t;
    iterator(int value, int left, int* drawn) : value_(value), left_(left), drawn_(drawn) {
      *drawn_ += left_ > 0 ? 1 : 0;
    }
    iterator(iterator&&) = default;
    iterator& operator=(iterator&&) = default;
    int operator*() const { return value_; }
    iterator& operator++() {
      ++value_;
      --left_;
      *drawn_ += left_ > 0 ? 1 : 0;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& i, std::default_sentinel_t /*end*/) {
      return i.left_ == 0;
    }

   private:
    int value_;
    int left_;
    int* drawn_;
  };
  [[nodiscard]] iterator begin() const { return {first_, count_, drawn_}; }
  [[nodiscard]] static std::default_sentinel_t end() { return {}; }
  void shorten(int count) { count_ = count; }

 private:
  int first_;
  int count_;
  int* drawn_;
};

tensors one_value(int v) { return {{"x", test::floats({1}, {static_cast<float>(v)})}}; }

/// All values of a pass.
std::vector<float> drain(const graph::calibration_source& samples) {
  std::vector<float> all;
  while (const auto inputs = samples()) {
    all.push_back(inputs->at("x").data<float>()[0]);
  }
  return all;
}

double mean(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double v : x) {
    sum += v;
  }
  return sum / static_cast<double>(x.size());
}

double quantile(std::vector<double> x, double q) {
  std::sort(x.begin(), x.end());
  const double place = q * static_cast<double>(x.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = (std::min)(below + 1, x.size() - 1);
  return x[below] + (place - static_cast<double>(below)) * (x[above] - x[below]);
}

struct expected_params {
  double scale;
  int zero_point;
};

/// By the text of scale_rules.hpp, in double, for int8 if the range begins below 0, else uint8.
expected_params symmetric_params(double lower, double upper) {
  const double high = (std::max)({std::fabs(lower), std::fabs(upper), 8e-5});
  return {lower < 0.0 ? high / 127.0 : high / 255.0, 0};
}
expected_params asymmetric_params(double lower, double upper) {
  if (upper - lower <= 8e-4) {
    lower -= 8e-4;
    upper += 8e-4;
  }
  lower = (std::min)(lower, 0.0);
  upper = (std::max)(upper, 0.0);
  const double level = std::nearbyint(-lower * 255.0 / (upper - lower));
  const double other_lower = level < 255.0 ? level / (level - 255.0) * upper : lower;
  const double other_upper = level > 0.0 ? (level - 255.0) / level * lower : upper;
  if (upper - other_lower > other_upper - lower) {
    lower = other_lower;
  } else {
    upper = other_upper;
  }
  const double scale = (upper - lower) / 255.0;
  return {scale, static_cast<int>(std::nearbyint(-lower / scale)) - (lower < 0.0 ? 128 : 0)};
}

void check_params(const nncf::quantizer_parameters& p, expected_params e) {
  REQUIRE(p.scales.size() == 1);
  CHECK(static_cast<double>(p.scales[0]) == Approx(e.scale).epsilon(2e-6));
  CHECK(p.zero_points[0] == e.zero_point);
}

std::vector<tensors> samples_of(test::random_source& r, const shape& dims, int count,
                                float lower = -1.0F) {
  std::vector<tensors> samples;
  for (int i = 0; i < count; ++i) {
    samples.push_back({{"x", random_floats(r, dims, lower, 1.0F + r.real(0.0F, 0.3F))}});
  }
  return samples;
}

std::string layer(model_builder& b, test::random_source& r, const std::string& x,
                  const shape& filters) {
  const std::string id = std::to_string(b.get().nodes.size());
  b.constant("w" + id, random_floats(r, filters, -0.4F, 0.4F));
  b.constant("b" + id, random_floats(r, {filters[0]}, 0.2F, 0.5F));
  if (filters.size() == 2) {
    return b.add("Gemm", {x, "w" + id, "b" + id}, {{"transB", number(1)}});
  }
  return b.add("Conv", {x, "w" + id, "b" + id});
}

/// Conv, Relu, Conv, average, Gemm.
graph::model small_network(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 3, 8, 8});
  std::string y = b.add("Relu", {layer(b, r, "x", {6, 3, 3, 3})});
  y = layer(b, r, y, {5, 6, 3, 3});
  y = b.add("Flatten", {b.add("GlobalAveragePool", {y})});
  b.output(layer(b, r, y, {4, 5}));
  return b.get();
}

bool is_made_by(const graph::model& m, const std::string& value, const char* op) {
  const graph::node* n = producer(m, value);
  return n != nullptr && n->is(op);
}

int largest_code(const graph::tensor& levels) {
  int largest = 0;
  for (const std::int8_t code : levels.data<std::int8_t>()) {
    largest = (std::max)(largest, std::abs(int{code}));
  }
  return largest;
}

/// The parameters of the quantizer of an activation, or null.
const nncf::quantizer_parameters* activation(const nncf::quantization& q,
                                             const std::string& value) {
  for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
    if (q.quantizers[k].value == value && !q.quantizers[k].weights_of) {
      return &q.parameters[k];
    }
  }
  return nullptr;
}

/// The parameters of all quantizers of weights, by the names of the weights.
std::map<std::string, nncf::quantizer_parameters> all_weights(const nncf::quantization& q) {
  std::map<std::string, nncf::quantizer_parameters> found;
  for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
    if (q.quantizers[k].weights_of) {
      found.emplace(q.quantizers[k].value, q.parameters[k]);
    }
  }
  return found;
}

}  // namespace

// -------------------------------------------------------------------------------------------
// datasets

TEST_CASE("nncf::dataset: draws late, no more than the subset, and begins anew") {
  int drawn = 0;
  int transformed = 0;
  const auto transform = [&](int v) {
    ++transformed;
    return one_value(v);
  };
  const nncf::dataset data(counted(10, 7, drawn), transform);
  CHECK(drawn == 0);
  const graph::calibration_source three = data.samples(3);
  CHECK(drawn == 0);
  CHECK(three()->at("x").data<float>()[0] == 10.0F);
  CHECK(drawn == 1);
  CHECK(transformed == 1);
  CHECK(drain(three) == std::vector<float>{11.0F, 12.0F});
  CHECK(drawn == 3);
  CHECK(transformed == 3);
  CHECK(drain(three) == std::vector<float>{10.0F, 11.0F, 12.0F});
  CHECK(drawn == 6);
  // A copy goes on where the other one is; another source has a position of its own.
  const graph::calibration_source copy = three;
  CHECK(three()->at("x").data<float>()[0] == 10.0F);
  CHECK(copy()->at("x").data<float>()[0] == 11.0F);
  CHECK(drain(data.samples(2)) == std::vector<float>{10.0F, 11.0F});
  CHECK(drain(copy) == std::vector<float>{12.0F});
  // More than there are.
  drawn = 0;
  for (const std::size_t subset : {std::size_t{7}, std::size_t{8}, nncf::dataset::all}) {
    CHECK(drain(data.samples(subset)).size() == 7);
  }
  CHECK(drawn == 21);
}

TEST_CASE("nncf::dataset: ranges that are referred to, that are kept, and of maps") {
  std::vector<int> values{1, 2};
  const nncf::dataset referred(values, one_value);
  values.push_back(3);
  CHECK(drain(referred.samples()).size() == 3);
  const std::vector<int> constant{4, 5};
  CHECK(drain(nncf::dataset(constant, one_value).samples()) == std::vector<float>{4.0F, 5.0F});
  std::optional<nncf::dataset> kept;
  {
    std::vector<tensors> maps{one_value(6), one_value(7)};
    kept.emplace(std::move(maps));
  }
  const nncf::dataset copied = *kept;
  kept.reset();
  CHECK(drain(copied.samples(1)) == std::vector<float>{6.0F});
  CHECK(drain(copied.samples()) == std::vector<float>{6.0F, 7.0F});

  // Of a calibration source, which is drained for the next pass.
  std::size_t next = 0;
  const graph::calibration_source source = [&]() -> std::optional<tensors> {
    if (next == 4) {
      next = 0;
      return std::nullopt;
    }
    return one_value(static_cast<int>(next++));
  };
  const nncf::dataset wrapped(nncf::source_items{source});
  CHECK(drain(wrapped.samples(2)) == std::vector<float>{0.0F, 1.0F});
  CHECK(next == 2);
  CHECK(drain(wrapped.samples(3)) == std::vector<float>{0.0F, 1.0F, 2.0F});
  CHECK(drain(wrapped.samples()) == std::vector<float>{0.0F, 1.0F, 2.0F, 3.0F});
  CHECK(drain(wrapped.samples()).size() == 4);
}

TEST_CASE("nncf::dataset: says when passes differ, and goes on after errors") {
  int drawn = 0;
  counted range(0, 5, drawn);
  const nncf::dataset data(range, one_value);
  CHECK(drain(data.samples()).size() == 5);
  range.shorten(3);
  CHECK(drain(data.samples(3)).size() == 3);  // as many as it may want
  check_graph_error(error_kind::invalid_argument, {"gave 3 items", "5"},
                    [&] { drain(data.samples()); });
  range.shorten(0);
  check_graph_error(error_kind::invalid_argument, {"dataset", "no items"},
                    [&] { drain(data.samples(2)); });

  bool fails = true;
  const nncf::dataset failing(std::vector<int>{1, 2, 3}, [&](int v) {
    if (v == 2 && fails) {
      detent::raise(error_kind::io, "detent: cannot read item 2");
    }
    return one_value(v);
  });
  const graph::calibration_source source = failing.samples();
  check_graph_error(error_kind::io, {"item 2"}, [&] { drain(source); });
  fails = false;
  CHECK(drain(source).size() == 3);
}

// -------------------------------------------------------------------------------------------
// range estimators

TEST_CASE("nncf::range_estimator_observer: presets against plain loops") {
  for (std::uint64_t seed = 100; seed < 120; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const int n = r.integer(3, 12);
    std::vector<std::vector<float>> samples;
    std::map<std::string, std::vector<double>> of;
    for (int i = 0; i < n; ++i) {
      samples.push_back(r.reals(r.size(20, 400), r.real(-3.0F, -0.1F), r.real(0.1F, 5.0F)));
      const std::vector<double> x(samples.back().begin(), samples.back().end());
      const auto [least, largest] = std::minmax_element(x.begin(), x.end());
      of["min"].push_back(*least);
      of["max"].push_back(*largest);
      of["abs_max"].push_back((std::max)(-*least, *largest));
      of["low"].push_back(quantile(x, 1e-4));
      of["high"].push_back(quantile(x, 1.0 - 1e-4));
    }
    const auto inner_mean = [](const std::vector<double>& x) {
      const double low = quantile(x, 1e-4);
      const double high = quantile(x, 1.0 - 1e-4);
      std::vector<double> kept;
      for (const double v : x) {
        if (v >= low && v <= high) {
          kept.push_back(v);
        }
      }
      return mean(kept);
    };
    struct preset {
      const char* name;
      nncf::range_estimator estimator;
      double lower, upper;
    };
    const auto least = *std::min_element(of["min"].begin(), of["min"].end());
    const auto largest = *std::max_element(of["max"].begin(), of["max"].end());
    for (const bool symmetric : {false, true}) {
      const std::vector<double>& upper = of[symmetric ? "abs_max" : "max"];
      const preset presets[] = {
          {"min_max", nncf::min_max, least, symmetric ? (std::max)(-least, largest) : largest},
          {"mean_min_max", nncf::mean_min_max, mean(of["min"]), mean(upper)},
          {"median_min_max", nncf::median_min_max, quantile(of["min"], 0.5), quantile(upper, 0.5)},
          {"mean_no_outliers_min_max", nncf::mean_no_outliers_min_max, inner_mean(of["min"]),
           inner_mean(upper)},
          {"mean_quantile", nncf::mean_quantile, mean(of["low"]), mean(of["high"])},
      };
      for (const preset& p : presets) {
        INFO(p.name, symmetric ? " symmetric" : "");
        nncf::range_estimator_observer o(p.estimator, symmetric);
        nncf::range_estimator clipped_estimator = p.estimator;
        clipped_estimator.clipping = 0.7F;
        nncf::range_estimator_observer clipped(clipped_estimator, symmetric);
        for (const std::vector<float>& x : samples) {
          o.observe(detent::tensor_view<const float>(x.data(), {x.size()}));
          clipped.observe(detent::tensor_view<const float>(x.data(), {x.size()}));
        }
        CHECK(static_cast<double>(o.range().lower) == Approx(p.lower).epsilon(1e-6));
        CHECK(static_cast<double>(o.range().upper) == Approx(p.upper).epsilon(1e-6));
        const auto clamp = [](double v) { return (std::max)((std::min)(v, 0.7), -0.7); };
        CHECK(static_cast<double>(clipped.range().lower) == Approx(clamp(p.lower)).epsilon(1e-6));
        CHECK(static_cast<double>(clipped.range().upper) == Approx(clamp(p.upper)).epsilon(1e-6));
      }
    }
    detent::any_observer search = detent::make_observer("torch.histogram");
    nncf::range_estimator_observer o(nncf::histogram);
    for (const std::vector<float>& x : samples) {
      search.observe(std::span<const float>(x));
      o.observe(detent::tensor_view<const float>(x.data(), {x.size()}));
    }
    const auto evidence = search.finalize(detent::asymmetric<std::uint8_t>).evidence;
    CHECK(o.range() == detent::value_range{evidence.lower, evidence.upper});
    CHECK(static_cast<double>(o.range().lower) >= least - 0.01);
    CHECK(static_cast<double>(o.range().upper) <= largest + 0.01);
  }
}

TEST_CASE("nncf::range_estimator_observer: items of batches, errors") {
  test::random_source r(121);
  INFO("seed ", r.seed());
  std::vector<double> least;
  std::vector<double> largest;
  nncf::range_estimator_observer items(nncf::mean_min_max, false, true);
  nncf::range_estimator_observer runs(nncf::mean_min_max, false, false);
  double sum_of_least = 0.0;
  for (int run = 0; run < 3; ++run) {
    const std::size_t n = r.size(1, 4);
    const std::vector<float> x = r.reals(n * 10, -2.0F, 2.0F);
    const detent::tensor_view<const float> view(x.data(), {n, 2, 5});
    items.observe(view);
    runs.observe(view);
    for (std::size_t i = 0; i < n; ++i) {
      const auto first = x.begin() + static_cast<std::ptrdiff_t>(i * 10);
      least.push_back(static_cast<double>(*std::min_element(first, first + 10)));
      largest.push_back(static_cast<double>(*std::max_element(first, first + 10)));
    }
    sum_of_least += static_cast<double>(*std::min_element(x.begin(), x.end()));
  }
  CHECK(static_cast<double>(items.range().lower) == Approx(mean(least)).epsilon(1e-6));
  CHECK(static_cast<double>(items.range().upper) == Approx(mean(largest)).epsilon(1e-6));
  CHECK(static_cast<double>(runs.range().lower) == Approx(sum_of_least / 3.0).epsilon(1e-6));

  for (const float clipping : {0.0F, -1.0F, std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()}) {
    check_graph_error(error_kind::invalid_argument, {"clipping"}, [&] {
      static_cast<void>(nncf::range_estimator_observer({.clipping = clipping}));
    });
  }
  const nncf::range_estimator_observer empty(nncf::histogram);
  check_graph_error(error_kind::invalid_argument, {"histogram"},
                    [&] { static_cast<void>(empty.range()); });
}

// -------------------------------------------------------------------------------------------
// quantize

TEST_CASE("nncf::quantize: parameters of activations and weights against plain loops") {
  for (std::uint64_t seed = 200; seed < 206; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    graph::model m = small_network(r);
    // A channel whose weights are far below those of the others.
    for (std::size_t k = 0; k < 54; ++k) {
      m.initializers["w2"].mutable_data<float>()[k] *= 1e-4F;
    }
    const auto samples = samples_of(r, {2, 3, 8, 8}, 5, seed % 2 == 0 ? -1.0F : 0.0F);
    for (const bool mixed : {false, true}) {
      INFO("mixed ", mixed);
      std::set<std::string> told;
      const nncf::quantization q = nncf::quantize(
          m, nncf::dataset(samples),
          {.preset = mixed ? nncf::preset::mixed : nncf::preset::performance,
           .disable_bias_correction = true,
           .overflow_fix = nncf::overflow_fix::none,
           .on_parameters = [&](const std::string& name, const nncf::quantizer_parameters& p) {
             told.insert(name);
             CHECK(p.ranges.at(0).lower < p.ranges.at(0).upper);
           }});
      // Inputs of the layers and of the average; that of the last layer is quantized before it is
      // reshaped. What is returned is float.
      CHECK(told ==
            std::set<std::string>{"x", "Relu_1_out", "Conv_2_out", "GlobalAveragePool_3_out"});
      std::size_t layers = 0;
      for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
        const nncf::quantizer_parameters& p = q.parameters[k];
        INFO(q.quantizers[k].value);
        if (!q.quantizers[k].weights_of) {
          std::vector<double> least;
          std::vector<double> largest;
          std::vector<double> magnitudes;
          for (const tensors& sample : samples) {
            const std::vector<float> values = value_of(m, q.quantizers[k].value, sample);
            least.push_back(static_cast<double>(*std::min_element(values.begin(), values.end())));
            largest.push_back(static_cast<double>(*std::max_element(values.begin(), values.end())));
            magnitudes.push_back((std::max)(-least.back(), largest.back()));
          }
          check_params(p, mixed ? asymmetric_params(mean(least), mean(largest))
                                : symmetric_params(mean(least), mean(magnitudes)));
          continue;
        }
        ++layers;
        CHECK(p.type == element_type::s8);
        const std::vector<float> values =
            test::values_of<float>(q.float_model.initializers.at(q.quantizers[k].value));
        const std::size_t channels = p.scales.size();
        const std::size_t size = values.size() / channels;
        std::vector<double> magnitudes(channels, 0.0);
        for (std::size_t i = 0; i < values.size(); ++i) {
          double& magnitude = magnitudes[i / size];
          magnitude = (std::max)(magnitude, std::fabs(static_cast<double>(values[i])));
        }
        const double most = *std::max_element(magnitudes.begin(), magnitudes.end());
        for (std::size_t c = 0; c < channels; ++c) {
          const double floor = (std::max)(0.01 * most, 8e-5);
          CHECK(static_cast<double>(p.scales[c]) ==
                Approx((std::max)(magnitudes[c], floor) / 127.0).epsilon(1e-6));
        }
        const graph::tensor& levels =
            q.result.initializers.at(q.quantizers[k].value + "_quantized");
        const auto codes = levels.data<std::int8_t>();
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double exact =
              static_cast<double>(values[i]) / static_cast<double>(p.scales[i / size]);
          CHECK(std::fabs(exact - codes[i]) <= 0.5001);
        }
        CHECK(largest_code(levels) == 127);
      }
      CHECK(layers == 3);
      // A file.
      const graph::model again = graph::parse_onnx(graph::to_onnx(q.result), ".");
      CHECK(test::different(q.result, again, samples[0]).empty());
      CHECK(producer(q.result, q.result.outputs[0].name)->is("Gemm"));
    }
  }
}

TEST_CASE("nncf::quantize: near the float model where ranges hold all values") {
  for (std::uint64_t seed = 230; seed < 236; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = small_network(r);
    const auto samples = samples_of(r, {2, 3, 8, 8}, 5);
    graph::executor reference(m);
    for (const nncf::preset preset : {nncf::preset::performance, nncf::preset::mixed}) {
      for (const nncf::overflow_fix fix : {nncf::overflow_fix::none, nncf::overflow_fix::enable}) {
        const nncf::quantization q = nncf::quantize(m, nncf::dataset(samples),
                                                    {.preset = preset,
                                                     .disable_bias_correction = true,
                                                     .overflow_fix = fix,
                                                     .activations_range_estimator = nncf::min_max});
        graph::executor integer(graph::for_execution(q.result));
        double signal = 0.0;
        double noise = 0.0;
        for (const tensors& sample : samples) {
          const std::vector<float> expected = test::values_of<float>(reference.run(sample)[0]);
          const std::vector<float> actual = test::values_of<float>(integer.run(sample)[0]);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const auto e = static_cast<double>(expected[i]);
            const double d = static_cast<double>(actual[i]) - e;
            signal += e * e;
            noise += d * d;
          }
        }
        CHECK(signal > 1000.0 * noise);  // 30 dB
      }
    }
  }
}

TEST_CASE("nncf::quantize: estimators, per tensor, restrictions, outputs") {
  test::random_source r(210);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {2, 3, 8, 8}, 4);
  const nncf::quantize_options plain{.disable_bias_correction = true};
  std::vector<double> medians;
  std::vector<double> items;
  for (const tensors& sample : samples) {
    const std::vector<float> x = value_of(m, "x", sample);
    double largest = 0.0;
    for (const std::size_t half : {std::size_t{0}, x.size() / 2}) {
      double magnitude = 0.0;
      for (std::size_t k = half; k < half + x.size() / 2; ++k) {
        magnitude = (std::max)(magnitude, std::fabs(static_cast<double>(x[k])));
      }
      items.push_back(magnitude);
      largest = (std::max)(largest, magnitude);
    }
    medians.push_back(largest);
  }
  nncf::quantize_options o = plain;
  const auto params_of_x = [&] {
    return *activation(nncf::quantize(m, nncf::dataset(samples), o), "x");
  };
  o.activations_range_estimator = nncf::median_min_max;
  check_params(params_of_x(), symmetric_params(-1.0, quantile(medians, 0.5)));
  o.activations_range_estimator = {.ends = detent::nncf::min_max, .clipping = 0.25F};
  check_params(params_of_x(), symmetric_params(-0.25, 0.25));
  o = plain;
  o.batchwise_statistics = true;
  check_params(params_of_x(), symmetric_params(-1e-3, mean(items)));

  o = plain;
  o.weights_range_estimator.clipping = 0.1F;
  o.overflow_fix = nncf::overflow_fix::none;
  for (const auto& [name, p] : all_weights(nncf::quantize(m, nncf::dataset(samples), o))) {
    for (const float scale : p.scales) {
      CHECK(static_cast<double>(scale) <= 0.1 / 127.0 * (1.0 + 1e-6));
    }
  }

  o = plain;
  o.weights_quantization_params.per_channel = false;
  o.overflow_fix = nncf::overflow_fix::none;
  const auto whole = all_weights(nncf::quantize(m, nncf::dataset(samples), o));
  CHECK(whole.size() == 3);
  for (const auto& [name, p] : whole) {
    REQUIRE(p.scales.size() == 1);
    double most = 0.0;
    for (const float v : m.initializers.at(name).data<float>()) {
      most = (std::max)(most, std::fabs(static_cast<double>(v)));
    }
    CHECK(static_cast<double>(p.scales[0]) == Approx(most / 127.0).epsilon(1e-6));
  }
  // A model of an older opset has no scales per channel.
  graph::model old = m;
  old.opsets[""] = 12;
  o = plain;
  o.overflow_fix = nncf::overflow_fix::none;
  const auto of_old = all_weights(nncf::quantize(old, nncf::dataset(samples), o));
  for (const auto& [name, p] : whole) {
    CHECK(of_old.at(name).scales == p.scales);
  }

  // Asymmetric weights, and activations whatever the preset says.
  o.weights_quantization_params.symmetric = false;
  o.activations_quantization_params.symmetric = false;
  const nncf::quantization asymmetric = nncf::quantize(m, nncf::dataset(samples), o);
  bool any = false;
  for (const auto& [name, p] : all_weights(asymmetric)) {
    any = any || std::any_of(p.zero_points.begin(), p.zero_points.end(),
                             [](std::int32_t z) { return z != 0; });
  }
  CHECK(any);
  for (const tensors& sample : samples) {
    CHECK(test::distance(m, graph::for_execution(asymmetric.result), sample) < 0.05);
  }

  o = plain;
  const std::string& out = m.outputs[0].name;
  CHECK_FALSE(activation(nncf::quantize(m, nncf::dataset(samples), o), out));
  o.quantize_outputs = true;
  const nncf::quantization with_outputs = nncf::quantize(m, nncf::dataset(samples), o);
  CHECK(activation(with_outputs, out));
  CHECK(is_made_by(with_outputs.result, out, "DequantizeLinear"));
}

TEST_CASE("nncf::quantize: the type of an activation is that of its range") {
  test::random_source r(220);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 3);
  const nncf::quantization q = nncf::quantize(m, nncf::dataset(samples));
  CHECK(activation(q, "x")->type == element_type::s8);
  CHECK(activation(q, "Relu_1_out")->type == element_type::u8);
  CHECK(activation(q, "Relu_1_out")->zero_points == std::vector<std::int32_t>{0});
  CHECK(activation(q, "x")->zero_points == std::vector<std::int32_t>{0});
}

TEST_CASE("nncf::quantize: int8 activations as uint8 of the same reals") {
  test::random_source r(233);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 3);
  const nncf::dataset data(samples);
  for (const nncf::preset preset : {nncf::preset::performance, nncf::preset::mixed}) {
    const nncf::quantization before = nncf::quantize(m, data, {.preset = preset});
    const nncf::quantization after =
        nncf::quantize(m, data, {.preset = preset, .unsigned_activations = true});
    REQUIRE(before.parameters.size() == after.parameters.size());
    int moved = 0;
    for (std::size_t k = 0; k < before.parameters.size(); ++k) {
      const nncf::quantizer_parameters& a = before.parameters[k];
      const nncf::quantizer_parameters& b = after.parameters[k];
      const bool moves = !before.quantizers[k].weights_of && a.type == element_type::s8;
      moved += moves ? 1 : 0;
      CHECK(b.type == (moves ? element_type::u8 : a.type));
      CHECK(a.scales == b.scales);
      for (std::size_t c = 0; c < a.zero_points.size(); ++c) {
        CHECK(b.zero_points[c] == a.zero_points[c] + (moves ? 128 : 0));
      }
    }
    CHECK(moved > 0);
    for (const auto& sample : samples) {
      CHECK(run(after.result, sample) == run(before.result, sample));
      CHECK(run(graph::for_execution(after.result), sample) ==
            run(graph::for_execution(before.result), sample));
    }
  }
  check_graph_error(error_kind::unsupported, {"unsigned_activations"}, [&] {
    static_cast<void>(nncf::quantize(
        m, data, {.mode = nncf::quantization_mode::fp8_e4m3, .unsigned_activations = true}));
  });
}

TEST_CASE("nncf::quantize: channels before a depthwise convolution have scales of their own") {
  test::random_source r(221);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 8, 8});
  const std::string y = b.add("Relu", {layer(b, r, "x", {4, 3, 1, 1})});
  b.constant("w", random_floats(r, {4, 1, 3, 3}, -0.4F, 0.4F));
  b.output(b.add("Conv", {y, "w"}, {{"group", number(4)}}));
  const auto samples = samples_of(r, {1, 3, 8, 8}, 3);
  const nncf::quantization q = nncf::quantize(b.get(), nncf::dataset(samples));
  const nncf::quantizer_parameters* p = activation(q, y);
  REQUIRE(p != nullptr);
  REQUIRE(p->scales.size() == 4);
  std::vector<double> largest(4, 0.0);
  for (const tensors& sample : samples) {
    const std::vector<float> values = value_of(b.get(), y, sample);
    for (std::size_t i = 0; i < values.size(); ++i) {
      double& most = largest[i / 64];
      most = (std::max)(most, static_cast<double>(values[i]));
    }
  }
  for (std::size_t c = 0; c < 4; ++c) {
    CHECK(static_cast<double>(p->scales[c]) == Approx(largest[c] / 255.0).epsilon(1e-6));
  }
  CHECK(test::distance(b.get(), graph::for_execution(q.result), samples[0]) < 0.05);
}

TEST_CASE("nncf::quantize: one scale where ONNX Runtime fuses a depthwise convolution") {
  test::random_source r(222);
  INFO("seed ", r.seed());
  struct form {
    bool relu, bias, behind, has_u8, has_channels;
  };
  // A Relu in front, a bias, a quantized result; uint8 activations; whether channels have scales.
  const form forms[] = {{true, false, true, false, false}, {true, true, true, false, true},
                        {true, false, false, false, true}, {false, true, true, false, true},
                        {false, true, true, true, false},  {true, true, true, true, true}};
  for (const form& f : forms) {
    INFO(f.relu, f.bias, f.behind, f.has_u8);
    model_builder b;
    b.input("x", {1, 3, 8, 8});
    std::string y = layer(b, r, "x", {4, 3, 1, 1});
    y = f.relu ? b.add("Relu", {y}) : y;
    std::vector<std::string> inputs{y,
                                    b.constant("w", random_floats(r, {4, 1, 3, 3}, -0.4F, 0.4F))};
    if (f.bias) {
      inputs.push_back(b.constant("c", random_floats(r, {4}, -0.1F, 0.1F)));
    }
    std::string z = b.add("Conv", inputs, {{"group", number(4)}});
    if (f.behind) {
      z = layer(b, r, z, {2, 4, 1, 1});
    }
    b.output(z);
    const auto samples = samples_of(r, {1, 3, 8, 8}, 3);
    const nncf::quantization q =
        nncf::quantize(b.get(), nncf::dataset(samples), {.unsigned_activations = f.has_u8});
    const nncf::quantizer_parameters* p = activation(q, y);
    REQUIRE(p != nullptr);
    CHECK(p->type == (f.relu || f.has_u8 ? element_type::u8 : element_type::s8));
    CHECK(p->scales.size() == (f.has_channels ? 4 : 1));
    CHECK(p->zero_points.size() == p->scales.size());
    // The range of all values.
    float largest = 0.0F;
    for (const tensors& sample : samples) {
      for (const float v : value_of(b.get(), y, sample)) {
        largest = (std::max)(largest, std::fabs(v));
      }
    }
    const float widest = *std::max_element(p->scales.begin(), p->scales.end());
    CHECK(widest == Approx(largest / (f.relu ? 255.0F : 127.0F)).epsilon(0.01));
    CHECK(test::distance(b.get(), graph::for_execution(q.result), samples[0]) < 0.08);
  }
}

TEST_CASE("nncf::quantize: one scale where ONNX Runtime fuses an average or looks past movement") {
  test::random_source r(226);
  INFO("seed ", r.seed());
  struct form {
    const char* between;
    bool bias, has_channels;
  };
  const form forms[] = {{"AveragePool", true, false}, {"GlobalAveragePool", true, false},
                        {"MaxPool", true, true},      {"MaxPool", false, true},
                        {"Transpose", true, true},    {"Transpose", false, false},
                        {"Identity", false, false},   {"Pad", false, false},
                        {"Pad", true, true},          {"Sigmoid", true, true}};
  for (const form& f : forms) {
    INFO(f.between, " bias ", f.bias);
    model_builder b;
    b.input("x", {1, 3, 8, 8});
    const std::string relu = b.add("Relu", {layer(b, r, "x", {4, 3, 1, 1})});
    std::string y;
    if (f.between == std::string("Transpose")) {
      y = b.add("Transpose", {relu}, {{"perm", list({0, 1, 3, 2})}});
    } else if (f.between == std::string("Pad")) {
      b.constant("pads", std::vector<std::int64_t>{0, 0, 1, 1, 0, 0, 1, 1});
      y = b.add("Pad", {relu, "pads"});
    } else if (f.between == std::string("AveragePool") || f.between == std::string("MaxPool")) {
      y = b.add(f.between, {relu}, {{"kernel_shape", list({2, 2})}});
    } else {
      y = b.add(f.between, {relu});
    }
    std::vector<std::string> inputs{y,
                                    b.constant("w", random_floats(r, {4, 1, 1, 1}, -0.4F, 0.4F))};
    if (f.bias) {
      inputs.push_back(b.constant("c", random_floats(r, {4}, -0.1F, 0.1F)));
    }
    b.output(layer(b, r, b.add("Conv", inputs, {{"group", number(4)}}), {2, 4, 1, 1}));
    const auto samples = samples_of(r, {1, 3, 8, 8}, 3);
    for (const bool has_u8 : {false, true}) {
      const nncf::quantization q =
          nncf::quantize(b.get(), nncf::dataset(samples), {.unsigned_activations = has_u8});
      std::size_t found = 0;
      for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
        if (!q.quantizers[k].weights_of && q.quantizers[k].config.per_channel) {
          ++found;
          CHECK(q.parameters[k].scales.size() == (f.has_channels ? 4 : 1));
        }
      }
      CHECK(found == 1);
      CHECK(test::distance(b.get(), graph::for_execution(q.result), samples[0]) < 0.08);
    }
  }
}

TEST_CASE("nncf::quantize: one scale where a quantizer stands behind movement and a sum needs it") {
  test::random_source r(227);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 4, 8, 8});
  const std::string moved =
      b.add("Transpose", {b.add("Abs", {"x"})}, {{"perm", list({0, 1, 3, 2})}});
  b.constant("w", random_floats(r, {4, 1, 3, 3}, -0.4F, 0.4F));
  const std::string depthwise = b.add(
      "Relu", {b.add("Conv", {moved, "w"}, {{"group", number(4)}, {"pads", list({1, 1, 1, 1})}})});
  b.output(b.add("Add", {moved, layer(b, r, depthwise, {4, 4, 1, 1})}));
  const auto samples = samples_of(r, {1, 4, 8, 8}, 3);
  for (const nncf::model_type type : {nncf::model_type::none, nncf::model_type::transformer}) {
    const nncf::quantization q = nncf::quantize(b.get(), nncf::dataset(samples),
                                                {.model_type = type, .unsigned_activations = true});
    for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
      if (q.quantizers[k].value == moved) {
        CHECK(q.parameters[k].scales.size() == 1);
      }
    }
    CHECK(test::distance(b.get(), graph::for_execution(q.result), samples[0]) < 0.08);
  }
}

TEST_CASE("nncf::quantize: very many ways to a TopK") {
  // Each sum takes the one before twice, so that there are 2^60 ways from the TopK to the product.
  test::random_source r(228);
  model_builder b;
  b.input("x", {2, 8});
  b.constant("w", random_floats(r, {8, 8}, -1.0F, 1.0F));
  std::string value = b.add("MatMul", {"x", "w"});
  for (int i = 0; i < 60; ++i) {
    value = b.add("Add", {value, value});
    value = b.add("Mul", {value, b.scalar("half" + std::to_string(i), 0.5F)});
  }
  b.constant("k", std::vector<std::int64_t>{3});
  b.output(b.add("TopK", {value, "k"}));
  const auto samples = samples_of(r, {2, 8}, 3);
  const nncf::quantization q = nncf::quantize(b.get(), nncf::dataset(samples));
  CHECK(q.quantizers.size() == 2);  // what is behind the product stays in float
}

TEST_CASE("nncf::quantize: weights that are outputs of the model keep their values") {
  test::random_source r(229);
  for (const bool is_made : {false, true}) {
    INFO(is_made);
    const tensor w = random_floats(r, {8, 8}, -1.0F, 1.0F);
    model_builder b;
    b.input("x", {4, 8});
    std::string weights = "w";
    if (is_made) {
      graph::attribute value;
      value.kind = graph::attribute::kind_type::t;
      value.t = w;
      weights = b.add("Constant", {}, {{"value", value}});
    } else {
      b.constant("w", w);
    }
    b.constant("spread", floats({8}, {1.0F, 3.0F, 0.5F, 2.0F, 0.7F, 1.5F, 1.0F, 2.5F}));
    b.constant("last", random_floats(r, {8, 3}, -1.0F, 1.0F));
    const std::string y = b.add("MatMul", {b.add("Mul", {"x", "spread"}), weights});
    b.output(weights);
    b.output(b.add("MatMul", {b.add("Relu", {y}), "last"}));
    const auto samples = samples_of(r, {4, 8}, 4);
    for (const nncf::model_type type : {nncf::model_type::none, nncf::model_type::transformer}) {
      const nncf::quantization q =
          nncf::quantize(b.get(), nncf::dataset(samples), {.model_type = type});
      const std::vector<tensor> found = test::outputs_of(q.result, samples[0]);
      const auto kept = found[0].data<float>();
      CHECK(std::equal(kept.begin(), kept.end(), w.data<float>().begin()));
      CHECK(test::count(q.result, "QuantizeLinear") > 0);
      CHECK(test::distance(b.get(), graph::for_execution(q.result), samples[0]) < 0.2);
    }
  }
}

TEST_CASE("nncf::quantize: one scale for the right side of a product that is no matrix") {
  test::random_source r(227);
  INFO("seed ", r.seed());
  for (const shape& dims : {shape{6}, shape{1, 6, 5}, shape{2, 6, 5}, shape{6, 5}}) {
    INFO(graph::to_string(dims));
    model_builder b;
    b.input("x", {2, 4, 6});
    b.constant("w", random_floats(r, dims, -1.0F, 1.0F));
    b.output(b.add("MatMul", {b.add("Relu", {"x"}), "w"}));
    const auto samples = samples_of(r, {2, 4, 6}, 3);
    const auto scales_of = [&](nncf::quantization_mode mode) {
      const auto q = nncf::quantize(b.get(), nncf::dataset(samples), {.mode = mode});
      CHECK(test::distance(b.get(), graph::for_execution(q.result), samples[0]) < 0.2);
      return all_weights(q).at("w").scales.size();
    };
    const std::size_t channels = dims.size() == 1 ? 6 : 5;
    CHECK(scales_of(nncf::quantization_mode::int8) == (dims.size() == 2 ? channels : 1));
    CHECK(scales_of(nncf::quantization_mode::fp8_e4m3) == channels);
  }
}

TEST_CASE("nncf::place_quantizers: values whose shape depends on inputs are floats, too") {
  test::random_source r(228);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3, 4, 4});
  b.input("rows", {2}, element_type::s64);
  b.constant("w", random_floats(r, {16, 5}, -0.4F, 0.4F));
  const std::string relu = b.add("Relu", {layer(b, r, "x", {4, 3, 1, 1})});
  const std::string flat = b.add("Reshape", {relu, "rows"});
  const std::string chosen = b.add("ArgMax", {flat});
  const std::string picked = b.add("Gather", {flat, chosen});
  b.output(b.add("MatMul", {flat, "w"}));
  b.output(picked);
  const auto placed = nncf::place_quantizers(b.get(), {});
  std::set<std::string> values;
  for (const nncf::placed_quantizer& q : placed) {
    if (!q.weights_of) {
      values.insert(q.value);
    }
  }
  CHECK(values.count("x") == 1);
  CHECK(values.count(relu) + values.count(flat) == 1);
  CHECK(values.count(chosen) == 0);
}

TEST_CASE("nncf::quantize: subset_size limits what is drawn, in as few passes as possible") {
  test::random_source r(211);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 6);
  int drawn = 0;
  const counted range(0, 6, drawn);
  const nncf::dataset data(range, [&](int i) { return samples[static_cast<std::size_t>(i)]; });
  const auto quantize = [&](const nncf::quantize_options& o) {
    drawn = 0;
    return activation(nncf::quantize(m, data, o), "x")->scales;
  };
  const auto three = quantize({.subset_size = 3});
  CHECK(drawn == 3);  // ranges and means of channels
  quantize({.subset_size = 3, .disable_bias_correction = true});
  CHECK(drawn == 3);
  // A fifth of them for the full correction: once for the float network, and once for all layers.
  quantize({.subset_size = 5, .fast_bias_correction = false});
  CHECK(drawn == 5 + 1 + 1);
  const auto all = quantize({.subset_size = 1000});
  CHECK(drawn == 6);
  CHECK_FALSE(three == all);
  const std::vector<tensors> first(samples.begin(), samples.begin() + 3);
  CHECK(three == activation(nncf::quantize(m, nncf::dataset(first)), "x")->scales);
}

TEST_CASE("nncf::quantize: the overflow fix") {
  test::random_source r(212);
  INFO("seed ", r.seed());
  // Two convolutions that the inputs reach, one through a pooling, and others behind them.
  model_builder b;
  b.input("x", {1, 3, 9, 9});
  const std::string left = layer(b, r, "x", {4, 3, 3, 3});
  const std::string pooled =
      b.add("MaxPool", {"x"}, {{"kernel_shape", list({3, 3})}, {"pads", list({1, 1, 1, 1})}});
  const std::string right = layer(b, r, pooled, {4, 3, 3, 3});
  const std::string sum = b.add("Relu", {b.add("Add", {left, right})});
  const std::string y = layer(b, r, sum, {3, 4, 3, 3});
  b.output(layer(b, r, b.add("Flatten", {b.add("GlobalAveragePool", {y})}), {5, 3}));
  const auto samples = samples_of(r, {1, 3, 9, 9}, 3);
  using nncf::overflow_fix;
  using nncf::target_device;
  const auto quantize = [&](overflow_fix fix, target_device device,
                            const graph::ignored_scope& ignored = {}) {
    return nncf::quantize(b.get(), nncf::dataset(samples),
                          {.target_device = device, .ignored_scope = ignored, .overflow_fix = fix});
  };
  const std::set<std::string> first{"w0", "w2"};
  const std::set<std::string> all{"w0", "w2", "w5", "w8"};
  const auto half = [&](const nncf::quantization& q) {
    std::set<std::string> names;
    for (const auto& [name, p] : all_weights(q)) {
      const int largest = largest_code(q.result.initializers.at(name + "_quantized"));
      CHECK((largest <= 64 || largest == 127));
      CHECK(largest >= 63);
      if (largest <= 64) {
        names.insert(name);
      }
    }
    return names;
  };
  for (const target_device device :
       {target_device::any, target_device::cpu, target_device::gpu, target_device::npu}) {
    CHECK(half(quantize(overflow_fix::first_layer, device)) == first);
  }
  CHECK(half(quantize(overflow_fix::none, target_device::cpu)).empty());
  CHECK(half(quantize(overflow_fix::enable, target_device::any)) == all);
  // Where one is not quantized, the next one is the first.
  CHECK(half(quantize(overflow_fix::first_layer, target_device::any, {.names = {"Conv_0"}})) ==
        std::set<std::string>{"w2", "w5"});
  // The scale is exactly twice that without.
  const auto with = all_weights(quantize(overflow_fix::first_layer, target_device::any));
  const auto without = all_weights(quantize(overflow_fix::none, target_device::any));
  REQUIRE(with.at("w0").scales.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(with.at("w0").scales[i] == 2.0F * without.at("w0").scales[i]);
  }
  CHECK(with.at("w5").scales == without.at("w5").scales);
}

TEST_CASE_TEMPLATE("nncf::quantize: floats of 8 bits", F, detent::float8_e4m3fn,
                   detent::float8_e5m2) {
  constexpr bool is_e4m3 = std::is_same_v<F, detent::float8_e4m3fn>;
  constexpr auto mode =
      is_e4m3 ? nncf::quantization_mode::fp8_e4m3 : nncf::quantization_mode::fp8_e5m2;
  constexpr auto type = is_e4m3 ? element_type::f8e4m3fn : element_type::f8e5m2;
  constexpr double largest = is_e4m3 ? 448.0 : 57344.0;
  test::random_source r(214);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {2, 3, 8, 8}, 5);
  const nncf::dataset data(samples);
  const nncf::quantization q =
      nncf::quantize(m, data, {.mode = mode, .disable_bias_correction = true});
  CHECK(q.result.opset() == 19);
  const nncf::quantization integers = nncf::quantize(m, data, {.disable_bias_correction = true});
  REQUIRE(q.quantizers.size() == integers.quantizers.size());
  for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
    const std::string& name = q.quantizers[k].value;
    INFO(name);
    CHECK(name == integers.quantizers[k].value);
    const nncf::quantizer_parameters& p = q.parameters[k];
    CHECK(p.type == type);
    CHECK(std::all_of(p.zero_points.begin(), p.zero_points.end(), [](int z) { return z == 0; }));
    if (!q.quantizers[k].weights_of) {
      // The largest value is at half of what the type can hold.
      double magnitude = 0.0;
      for (const tensors& sample : samples) {
        float top = 0.0F;
        for (const float x : value_of(m, name, sample)) {
          top = (std::max)(top, std::fabs(x));
        }
        magnitude += static_cast<double>(top) / static_cast<double>(samples.size());
      }
      REQUIRE(p.scales.size() == 1);
      CHECK(static_cast<double>(p.scales[0]) == Approx(2.0 * magnitude / largest).epsilon(2e-6));
      const std::vector<float> before = value_of(q.result, name, samples[0]);
      const std::vector<float> after = value_of(q.result, name + "_dequantized", samples[0]);
      for (std::size_t i = 0; i < before.size(); ++i) {
        CHECK(after[i] ==
              detent::to_float(detent::round_to<F>(before[i] / p.scales[0])) * p.scales[0]);
      }
      continue;
    }
    const std::vector<float> weights = values_of<float>(m.initializers.at(name));
    const tensor& levels = q.result.initializers.at(name + "_quantized");
    CHECK(levels.type() == type);
    const std::size_t channels = p.scales.size();
    CHECK(channels == static_cast<std::size_t>(m.initializers.at(name).dim(0)));
    const std::size_t each = weights.size() / channels;
    for (std::size_t c = 0; c < channels; ++c) {
      float top = 0.0F;
      for (std::size_t i = 0; i < each; ++i) {
        const float w = weights[c * each + i];
        top = (std::max)(top, std::fabs(w));
        CHECK(levels.data<F>()[c * each + i] == detent::round_to<F>(w / p.scales[c]));
      }
      CHECK(static_cast<double>(p.scales[c]) ==
            Approx(static_cast<double>(top) / largest).epsilon(2e-6));
    }
  }
  // As near to the float network as the mantissa allows.
  std::vector<double> exact;
  std::vector<double> rounded;
  for (const tensors& sample : samples) {
    for (const auto& [of, to] : {std::pair(&m, &exact), std::pair(&q.result, &rounded)}) {
      const std::vector<float> output = run(*of, sample)[0];
      for (const float x : output) {
        to->push_back(static_cast<double>(x));
      }
    }
  }
  double signal = 0.0;
  double noise = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    signal += exact[i] * exact[i];
    noise += (exact[i] - rounded[i]) * (exact[i] - rounded[i]);
  }
  CHECK(noise > 0.0);
  CHECK(signal / noise > (is_e4m3 ? 300.0 : 80.0));

  for (const bool fast : {true, false}) {
    const nncf::quantization corrected =
        nncf::quantize(m, data, {.mode = mode, .fast_bias_correction = fast});
    CHECK(corrected.bias_shifts.size() == 3);
    CHECK(values_of<float>(corrected.float_model.initializers.at("b0")).size() == 6);
    CHECK(!corrected.biases_before.empty());
  }
}

TEST_CASE("nncf::quantize: floats of 8 bits of old models, of transformers, and what they refuse") {
  test::random_source r(215);
  INFO("seed ", r.seed());
  using nncf::quantization_mode;
  model_builder old(11);
  old.input("x", {1, 3, 8, 8});
  old.output(layer(old, r, "x", {6, 3, 3, 3}));
  const auto samples = samples_of(r, {1, 3, 8, 8}, 2);
  const nncf::dataset data(samples);
  const nncf::quantization q =
      nncf::quantize(old.get(), data, {.mode = quantization_mode::fp8_e4m3});
  CHECK(q.result.opset() == 19);
  CHECK(all_weights(q).at("w0").scales.size() == 6);

  // All operands of Attention, where integers leave its values in float.
  model_builder attention(23);
  tensors operands;
  for (const char* name : {"q", "k", "v"}) {
    attention.input(name, {1, 2, 4, 8});
    operands[name] = random_floats(r, {1, 2, 4, 8}, -1.0F, 1.0F);
  }
  attention.output(attention.add("Attention", {"q", "k", "v"}));
  const std::vector<tensors> operand_samples{operands};
  for (const bool is_float : {false, true}) {
    const nncf::quantization of =
        nncf::quantize(attention.get(), nncf::dataset(operand_samples),
                       {.mode = is_float ? quantization_mode::fp8_e5m2 : quantization_mode::int8});
    CHECK((activation(of, "q") != nullptr && activation(of, "k") != nullptr));
    CHECK((activation(of, "v") != nullptr) == is_float);
    if (is_float) {
      CHECK(activation(of, "q")->zero_points[0] == 0);
      CHECK(of.result.opset() == 23);
    }
  }

  // The quantizers of Attention are symmetric even if the preset and the restrictions of quantizers
  // say asymmetric, as those of transformers do.
  for (const nncf::quantize_options& o :
       {nncf::quantize_options{.preset = nncf::preset::mixed},
        nncf::quantize_options{.model_type = nncf::model_type::transformer},
        nncf::quantize_options{.activations_quantization_params = {.symmetric = false}}}) {
    const nncf::quantization of =
        nncf::quantize(attention.get(), nncf::dataset(operand_samples), o);
    for (const char* name : {"q", "k"}) {
      REQUIRE(activation(of, name) != nullptr);
      CHECK(activation(of, name)->zero_points == std::vector<std::int32_t>{0});
    }
    CHECK(activation(of, "v") == nullptr);
  }

  const auto refuses = [&](nncf::quantize_options o, const char* what) {
    o.mode = quantization_mode::fp8_e5m2;
    check_graph_error(error_kind::unsupported, {"fp8_e5m2", what},
                      [&] { static_cast<void>(nncf::quantize(old.get(), data, o)); });
  };
  refuses({.preset = nncf::preset::mixed}, "preset");
  refuses({.target_device = nncf::target_device::npu}, "target device");
  refuses({.overflow_fix = nncf::overflow_fix::first_layer}, "overflow fix");
  refuses({.quantize_outputs = true}, "quantize_outputs");
  refuses({.activations_quantization_params = {.per_channel = false}},
          "activations_quantization_params");
  refuses({.weights_quantization_params = {.per_channel = false}}, "weights_quantization_params");
  // Transformers are symmetric, too, without being told.
  static_cast<void>(nncf::quantize(
      old.get(), data,
      {.mode = quantization_mode::fp8_e4m3, .model_type = nncf::model_type::transformer}));
  static_cast<void>(nncf::quantize(old.get(), data,
                                   {.mode = quantization_mode::fp8_e4m3,
                                    .preset = nncf::preset::performance,
                                    .target_device = nncf::target_device::cpu,
                                    .overflow_fix = nncf::overflow_fix::none}));
}

TEST_CASE("nncf::quantize: what goes into a Concat before a layer shares one range") {
  test::random_source r(213);
  INFO("seed ", r.seed());
  for (const bool before_layer : {true, false}) {
    model_builder b;
    b.input("x", {1, 3, 6, 6});
    const std::string left = layer(b, r, "x", {4, 3, 1, 1});
    const std::string right = b.add("Relu", {layer(b, r, "x", {2, 3, 1, 1})});
    const std::string joined = b.add("Concat", {left, right}, {{"axis", number(1)}});
    b.output(before_layer ? layer(b, r, joined, {2, 6, 1, 1})
                          : b.add("GlobalAveragePool", {joined}));
    const auto samples = samples_of(r, {1, 3, 6, 6}, 4);
    const nncf::quantization q =
        nncf::quantize(b.get(), nncf::dataset(samples), {.preset = nncf::preset::mixed});
    const auto ends = [&](const std::string& name) {
      std::vector<double> least;
      std::vector<double> largest;
      for (const tensors& sample : samples) {
        const std::vector<float> values = value_of(b.get(), name, sample);
        least.push_back(static_cast<double>(*std::min_element(values.begin(), values.end())));
        largest.push_back(static_cast<double>(*std::max_element(values.begin(), values.end())));
      }
      return std::pair(mean(least), mean(largest));
    };
    const auto [l, u] = ends(left);
    const auto [other_l, other_u] = ends(right);
    REQUIRE(activation(q, left) != nullptr);
    REQUIRE(activation(q, right) != nullptr);
    CHECK(activation(q, joined) == nullptr);
    if (before_layer) {
      const auto shared = asymmetric_params((std::min)(l, other_l), (std::max)(u, other_u));
      check_params(*activation(q, left), shared);
      check_params(*activation(q, right), shared);
    } else {
      check_params(*activation(q, left), asymmetric_params(l, u));
      check_params(*activation(q, right), asymmetric_params(other_l, other_u));
    }
  }
}

TEST_CASE("nncf::quantize: bias correction") {
  test::random_source r(214);
  INFO("seed ", r.seed());
  graph::model m = small_network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 5);
  m.initializers["b2"].mutable_data<float>()[1] = 0.0F;
  const auto biases = [&](const nncf::quantize_options& o) {
    const nncf::quantization q = nncf::quantize(m, nncf::dataset(samples), o);
    std::vector<std::vector<float>> all;
    for (const graph::node& n : q.float_model.nodes) {
      if (n.is("Conv") || n.is("Gemm")) {
        all.push_back(test::values_of<float>(q.float_model.initializers.at(n.inputs[2])));
      }
    }
    CHECK(q.bias_shifts.size() == (o.disable_bias_correction ? 0 : 3));
    return all;
  };
  const auto original = biases({.disable_bias_correction = true});
  REQUIRE(original.size() == 3);
  CHECK(original[1] == test::values_of<float>(m.initializers.at("b2")));
  const auto fast = biases({});
  const auto full = biases({.fast_bias_correction = false});
  for (std::size_t i = 0; i < 3; ++i) {
    INFO("layer ", i);
    // The one with a bias of 0 is left alone.
    CHECK((fast[i] == original[i]) == (i == 1));
    CHECK((full[i] == original[i]) == (i == 1));
    for (std::size_t c = 0; c < original[i].size(); ++c) {
      CHECK(std::fabs(full[i][c] - original[i][c]) < 0.1F);
    }
  }
  // A threshold that nothing passes.
  CHECK(biases({.bias_correction_params = {.threshold = 0.0}}) == original);

  // The bias of a MatMul is that of the Add behind it.
  model_builder b;
  b.input("x", {1, 4, 6});
  b.constant("w", random_floats(r, {6, 5}, -1.0F, 1.0F));
  b.constant("b", random_floats(r, {5}, 0.5F, 1.0F));
  b.output(b.add("Add", {b.add("MatMul", {"x", "w"}), "b"}));
  std::vector<tensors> rows;
  for (int i = 0; i < 3; ++i) {
    rows.push_back({{"x", random_floats(r, {1, 4, 6}, -1.0F, 3.0F)}});
  }
  const nncf::quantization q = nncf::quantize(b.get(), nncf::dataset(rows));
  REQUIRE(q.bias_shifts.size() == 1);
  CHECK(q.bias_shifts[0].applied);
  const graph::node& add = first(q.float_model, "Add");
  const std::vector<float> corrected =
      test::values_of<float>(q.float_model.initializers.at(add.inputs[1]));
  for (std::size_t c = 0; c < 5; ++c) {
    CHECK(static_cast<double>(corrected[c]) ==
          Approx(static_cast<double>(b.get().initializers.at("b").data<float>()[c]) +
                 q.bias_shifts[0].shift[c])
              .epsilon(1e-6));
  }
}

TEST_CASE("nncf::quantize: the biases that NNCF's own tests expect") {
  // NumPy's RandomState(0).rand(1, 1, 4, 4), as float32.
  const std::vector<tensors> samples{
      {{"x", test::floats({1, 1, 4, 4}, {0.54881352F, 0.71518934F, 0.60276335F, 0.54488319F,
                                         0.42365479F, 0.64589411F, 0.43758720F, 0.89177299F,
                                         0.96366274F, 0.38344151F, 0.79172504F, 0.52889490F,
                                         0.56804454F, 0.92559665F, 0.07103606F, 0.08712930F})}}};
  // A tenth of the tolerance of those tests.
  constexpr double tolerance = 1e-5;
  const auto check_biases = [&](const std::vector<float>& gain, const nncf::quantize_options& o,
                                const std::vector<double>& expected) {
    std::vector<float> weights{0.1F, -2.0F, 1.0F, 0.1F, 0.1F, 2.0F, -1.0F, 0.1F};
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] *= gain[i / 4];
    }
    model_builder b;
    b.input("x", {1, 1, 4, 4});
    b.constant("w", test::floats({2, 1, 2, 2}, weights));
    b.constant("b", test::floats({2}, {0.1F, 1.0F}));
    b.output(b.add("Conv", {"x", "w", "b"}));
    const nncf::quantization q = nncf::quantize(b.get(), nncf::dataset(samples), o);
    const std::vector<double> biases =
        test::doubles(q.float_model.initializers.at(first(q.float_model, "Conv").inputs[2]));
    REQUIRE(biases.size() == 2);
    for (std::size_t c = 0; c < 2; ++c) {
      INFO("channel ", c, ": ", biases[c], ", expected ", expected[c]);
      CHECK(std::fabs(biases[c] - expected[c]) < tolerance);
    }
  };
  // Its ConvTestModel, and its ConvBNTestModel, whose normalization is folded into the weights.
  check_biases({1.0F, 1.0F}, {}, {0.0288348, 1.0838453});
  check_biases({0.2F / std::sqrt(1.00001F), 2.0F / std::sqrt(1.00001F)},
               {.overflow_fix = nncf::overflow_fix::none}, {0.08396978, 1.1676897});
}

TEST_CASE("nncf::quantize: transformers") {
  test::random_source r(215);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 4, 8});
  b.constant("g", random_floats(r, {8}, 0.5F, 1.5F));
  b.constant("shift", random_floats(r, {8}, 1.0F, 2.0F));
  const std::string normed =
      b.add("LayerNormalization", {"x", "g", "shift"}, {{"axis", number(-1)}});
  b.constant("q", random_floats(r, {8, 8}, -1.0F, 1.0F));
  b.constant("k", random_floats(r, {8, 8}, -1.0F, 1.0F));
  b.constant("o", random_floats(r, {8, 3}, -1.0F, 1.0F));
  const std::string query = b.add("MatMul", {normed, "q"});
  const std::string key = b.add("MatMul", {normed, "k"});
  const std::string turned = b.add("Transpose", {key}, {{"perm", list({0, 2, 1})}});
  const std::string product = b.add("MatMul", {query, turned});
  const std::string attention = b.add("Softmax", {product}, {{"axis", number(-1)}});
  const std::string values = b.add("Transpose", {query}, {{"perm", list({0, 1, 2})}});
  const std::string mixed = b.add("Tanh", {b.add("MatMul", {attention, values})});
  b.output(b.add("MatMul", {mixed, "o"}));
  std::vector<tensors> samples;
  for (int i = 0; i < 4; ++i) {
    samples.push_back({{"x", random_floats(r, {2, 4, 8}, -3.0F, 2.0F)}});
    for (std::size_t k = 0; k < 64; k += 8) {
      samples.back().at("x").mutable_data<float>()[k] *= 20.0F;
    }
  }
  int drawn = 0;
  const counted range(0, 4, drawn);
  const nncf::dataset data(range, [&](int i) { return samples[static_cast<std::size_t>(i)]; });
  const auto quantize = [&](nncf::quantize_options o) {
    drawn = 0;
    o.model_type = nncf::model_type::transformer;
    o.activations_range_estimator = nncf::min_max;
    return nncf::quantize(b.get(), data, o);
  };
  const nncf::quantization q = quantize({});
  CHECK(drawn == 8);  // magnitudes of features; ranges and means
  // A Mul before the first two layers, and one before the last one.
  CHECK(count(q.float_model, "Mul") == 2);
  CHECK(test::distance(b.get(), q.float_model, samples[0]) < 1e-4);
  CHECK(test::distance(b.get(), graph::for_execution(q.result), samples[0]) < 0.1);
  // Both operands of the product of two activations are quantized, symmetrically; the attention and
  // its values are not.
  for (const std::string& name : {key, query}) {
    REQUIRE(activation(q, name) != nullptr);
    CHECK(activation(q, name)->zero_points == std::vector<std::int32_t>{0});
  }
  CHECK(activation(q, attention) == nullptr);
  CHECK(activation(q, values) == nullptr);
  // Others are asymmetric: the zero point is where the range puts it.
  CHECK(std::any_of(q.parameters.begin(), q.parameters.end(), [](const auto& p) {
    return p.zero_points[0] != 0 && p.zero_points[0] != -128;
  }));

  // The Mul of a graph input stays float: only what it makes is quantized.
  model_builder direct;
  direct.input("x", {2, 4, 8});
  direct.output(
      direct.add("MatMul", {"x", direct.constant("w", random_floats(r, {8, 6}, -1.0F, 1.0F))}));
  const nncf::quantization smoothed = nncf::quantize(
      direct.get(), data,
      {.model_type = nncf::model_type::transformer, .activations_range_estimator = nncf::min_max});
  CHECK(count(smoothed.result, "Mul") == 1);
  CHECK(count(smoothed.result, "QuantizeLinear") == 1);
  CHECK(first(smoothed.result, "Mul").inputs[0] == "x");

  // Ignored nodes are found again in the smoothed model.
  const std::string last = b.get().nodes.back().name;
  const nncf::quantization partly = quantize({.ignored_scope = {.names = {last}}});
  CHECK(all_weights(partly).size() == 2);
  const graph::node& left = named(partly.result, last);
  CHECK(producer(partly.result, left.inputs[1]) == nullptr);
  CHECK(is_made_by(partly.result, left.inputs[0], "Mul"));
  // Off, and without transformers: symmetric, no pass for it.
  const nncf::quantization off = quantize({.smooth_quant_alphas = {.matmul = -1.0F}});
  CHECK(drawn == 4);
  CHECK(count(off.float_model, "Mul") == 0);
  const nncf::quantization plain = nncf::quantize(b.get(), data);
  CHECK(count(plain.float_model, "Mul") == 0);
  for (const nncf::quantizer_parameters& p : plain.parameters) {
    CHECK(p.zero_points[0] == 0);
  }
  CHECK(activation(plain, attention) != nullptr);
}

TEST_CASE("nncf::quantize: channel alignment") {
  test::random_source r(216);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 8, 8});
  const std::string a = test::uneven_convolution(b, r, "x", "a", {6, 3, 3, 3});
  b.output(test::uneven_convolution(b, r, a, "b", {4, 6, 3, 3}));
  const auto samples = samples_of(r, {1, 3, 8, 8}, 5);
  int drawn = 0;
  const counted range(0, 5, drawn);
  const nncf::dataset data(range, [&](int i) { return samples[static_cast<std::size_t>(i)]; });
  const nncf::quantization without =
      nncf::quantize(b.get(), data, {.disable_bias_correction = true});
  CHECK(drawn == 5);
  const nncf::quantization with = nncf::quantize(
      b.get(), data, {.disable_bias_correction = true, .disable_channel_alignment = false});
  CHECK(drawn == 5 + 10);
  CHECK(test::distance(b.get(), with.float_model, samples[0]) < 1e-4);
  // Channels between the two are of one size: the largest weight of each is no longer 2^12 apart.
  const auto spread = [](const nncf::quantization& q) {
    for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
      const auto& of = q.quantizers[k].weights_of;
      if (of && q.float_model.nodes[of->node].name == "Conv_0") {
        const std::vector<float>& scales = q.parameters[k].scales;
        return *std::max_element(scales.begin(), scales.end()) /
               *std::min_element(scales.begin(), scales.end());
      }
    }
    return 0.0F;
  };
  CHECK(spread(without) > 50.0F);
  CHECK(spread(with) > 0.0F);
  CHECK(spread(with) < spread(without));
  CHECK(test::distance(b.get(), graph::for_execution(with.result), samples[0]) < 0.2);
}

TEST_CASE("nncf::quantize: ignored scope, and what it refuses") {
  test::random_source r(217);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 2);
  const nncf::dataset data(samples);
  using names = std::set<std::string>;
  const auto weights = [](const nncf::quantization& q) {
    names found;
    for (const auto& [name, p] : all_weights(q)) {
      found.insert(name);
    }
    return found;
  };
  const auto layers = [&](const graph::ignored_scope& scope) {
    return weights(nncf::quantize(m, data, {.ignored_scope = scope}));
  };
  CHECK(layers({}) == names{"w0", "w2", "w5"});
  CHECK(layers({.names = {"Conv_2"}}) == names{"w0", "w5"});
  CHECK(layers({.types = {"Conv"}}) == names{"w5"});
  CHECK(layers({.patterns = {"Conv_.*", "G.*5"}}).empty());
  CHECK(layers({.first_layer = true}) == names{"w2", "w5"});
  CHECK(layers({.last_layer = true}) == names{"w0", "w2"});
  CHECK(layers({.names = {"absent"}, .validate = false}).size() == 3);
  CHECK(weights(nncf::quantize(
            m, data, {.ignored_subgraphs = {{.inputs = {"Relu_1"}, .outputs = {"Flatten_4"}}}})) ==
        names{"w0", "w5"});
  const auto invalid = error_kind::invalid_argument;
  check_graph_error(invalid, {"name 'absent'"}, [&] { layers({.names = {"absent"}}); });
  check_graph_error(invalid, {"type 'Gelu'"}, [&] { layers({.types = {"Gelu"}}); });
  check_graph_error(invalid, {"pattern 'Conv'"}, [&] { layers({.patterns = {"Conv"}}); });
  check_graph_error(invalid, {"pattern '('"}, [&] { layers({.patterns = {"("}}); });

  const auto refuse = [&](error_kind kind, std::initializer_list<std::string_view> words,
                          const nncf::quantize_options& o) {
    check_graph_error(kind, words, [&] { static_cast<void>(nncf::quantize(m, data, o)); });
  };
  refuse(invalid, {"no node 'nowhere'"},
         {.ignored_subgraphs = {{.inputs = {"nowhere"}, .outputs = {"Gemm_5"}}}});
  refuse(invalid, {"no way"},
         {.ignored_subgraphs = {{.inputs = {"Gemm_5"}, .outputs = {"Conv_0"}}}});
  refuse(invalid, {"subset_size 0"}, {.subset_size = 0});
  refuse(invalid, {"alpha of 1.5"}, {.smooth_quant_alphas = {.matmul = 1.5F}});
  refuse(invalid, {"clipping -3"}, {.activations_range_estimator = {{.clipping = -3.0F}}});
  refuse(invalid, {"clipping -4"}, {.weights_range_estimator = {.clipping = -4.0F}});
  refuse(error_kind::unsupported, {"cpu_spr"}, {.target_device = nncf::target_device::cpu_spr});
  // Restrictions that no operator's table has.
  refuse(invalid, {"no quantizer", "Conv node"}, {.activations_quantization_params = {.bits = 4}});
  refuse(invalid, {"16 bits"}, {.activations_quantization_params = {.bits = 16}});
  refuse(invalid, {"no quantizer", "Conv node"},
         {.weights_quantization_params = {.is_signed = false}});
  refuse(invalid, {"overflow fix", "asymmetric"},
         {.weights_quantization_params = {.symmetric = false}});
  const std::vector<tensors> none;
  check_graph_error(invalid, {"dataset", "no items"},
                    [&] { static_cast<void>(nncf::quantize(m, nncf::dataset(none))); });
  auto bad = samples;
  bad[1].at("x") = test::floats({1, 3, 8, 8}, std::vector<float>(192, NAN));
  check_graph_error(invalid, {"tensor 'x'", "sample 2"},
                    [&] { static_cast<void>(nncf::quantize(m, nncf::dataset(bad))); });
  // Everything in float needs no samples.
  CHECK(nncf::quantize(m, nncf::dataset(none), {.ignored_scope = {.patterns = {".*"}}})
            .quantizers.empty());
}

TEST_CASE("nncf::quantize_with_accuracy_control: metrics and goals that nothing can meet") {
  test::random_source r(220);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const nncf::dataset samples(samples_of(r, {1, 3, 8, 8}, 2));
  const nncf::validation_function one = [](const graph::model&, const graph::calibration_source&) {
    return 1.0;
  };
  const auto fails = [&](std::initializer_list<std::string_view> words,
                         const nncf::validation_function& validate,
                         const graph::accuracy_goal& goal) {
    check_graph_error(error_kind::invalid_argument, words, [&] {
      static_cast<void>(
          nncf::quantize_with_accuracy_control(m, samples, samples, validate, {}, {.goal = goal}));
    });
  };
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  fails({"without a metric"}, {}, {});
  fails({"drop of nan"}, one, {.max_drop = nan});
  fails({"drop of 2", "relative"}, one, {.max_drop = 2.0, .drop = graph::drop_type::relative});
  fails({"metric of the float model", "NaN"},
        [&](const graph::model&, const graph::calibration_source&) { return nan; }, {});
}

TEST_CASE("nncf::tune_hyperparams: one parameter after the other, on the samples that lose most") {
  test::random_source r(219);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 2);
  std::vector<tensors> judged = samples_of(r, {1, 3, 8, 8}, 4);
  for (std::size_t i = 0; i < judged.size(); ++i) {
    judged[i].at("x").mutable_data<float>()[0] = static_cast<float>(i);
  }
  const nncf::quantize_options options{.subset_size = 2};
  const nncf::quantization q = nncf::quantize(m, nncf::dataset(samples), options);
  using changes = nncf::changed_parameters;
  // The metric of each model that is tried, in this order; of equal ones, the first one stays.
  const std::vector<std::pair<changes, double>> script = {
      {{}, 0.5},
      {{{"quantizer_propagation_rule", "merge_if_all_branches_same"}}, 0.5},
      {{{"preset", "performance"}}, 0.4},
      {{{"preset", "mixed"}}, 0.6},
      {{{"preset", "mixed"}, {"weights_range_estimator", "min_max"}}, 0.6},
      {{{"preset", "mixed"}, {"activations_range_estimator", "min, max"}}, 0.1},
      {{{"preset", "mixed"}, {"activations_range_estimator", "min, quantile 1e-3"}}, 0.2},
      {{{"preset", "mixed"}, {"activations_range_estimator", "min, quantile 1e-4"}}, 0.8},
      {{{"preset", "mixed"}, {"activations_range_estimator", "quantile 1e-3, max"}}, 0.7},
      {{{"preset", "mixed"}, {"activations_range_estimator", "quantile 1e-3, quantile 1e-3"}}, 0.8},
      {{{"preset", "mixed"}, {"activations_range_estimator", "quantile 1e-3, quantile 1e-4"}},
       std::numeric_limits<double>::quiet_NaN()},
      {{{"preset", "mixed"}, {"activations_range_estimator", "quantile 1e-4, max"}}, 0.3},
      {{{"preset", "mixed"}, {"activations_range_estimator", "quantile 1e-4, quantile 1e-3"}}, 0.3},
      {{{"preset", "mixed"}, {"activations_range_estimator", "quantile 1e-4, quantile 1e-4"}}, 0.3},
      {{{"preset", "mixed"},
        {"activations_range_estimator", "min, quantile 1e-4"},
        {"fast_bias_correction", "true"}},
       0.8},
      {{{"preset", "mixed"},
        {"activations_range_estimator", "min, quantile 1e-4"},
        {"fast_bias_correction", "false"}},
       0.9}};
  for (const bool higher_is_better : {true, false}) {
    INFO("higher is better: ", higher_is_better);
    const double sign = higher_is_better ? 1.0 : -1.0;
    const std::vector<double> losses{0.1, 0.3, 0.2, 0.3};  // of the quantized model, by samples
    std::size_t calls = 0;
    const nncf::validation_function validate = [&](const graph::model& tried,
                                                   const graph::calibration_source& source) {
      std::vector<std::size_t> seen;
      for (int pass = 0; pass < 2; ++pass) {  // the source begins anew
        seen.clear();
        while (const auto item = source()) {
          seen.push_back(static_cast<std::size_t>(item->at("x").data<float>()[0]));
        }
      }
      const bool is_quantized = count(tried, "DequantizeLinear") > 0;
      if (calls < 2 * judged.size()) {  // each sample alone, by the float and the quantized model
        CHECK(seen == std::vector<std::size_t>{calls / 2});
        CHECK(is_quantized == (calls % 2 == 1));
        return sign * (1.0 - (calls++ % 2 == 1 ? losses[seen.at(0)] : 0.0));
      }
      CHECK(is_quantized);
      CHECK(seen == std::vector<std::size_t>{1, 3});
      return sign * script.at(calls++ - 2 * judged.size()).second;
    };
    const nncf::tuned_options found =
        nncf::tune_hyperparams(m, q.result, nncf::dataset(samples), nncf::dataset(judged), validate,
                               options, higher_is_better);
    REQUIRE(found.trials.size() == script.size());
    for (std::size_t i = 0; i < script.size(); ++i) {
      INFO("trial ", i);
      CHECK(found.trials[i].changed == script[i].first);
      CHECK((found.trials[i].metric == sign * script[i].second || std::isnan(script[i].second)));
    }
    CHECK(found.changed == script.back().first);
    CHECK(found.best.preset == nncf::preset::mixed);
    CHECK_FALSE(found.best.fast_bias_correction);
    REQUIRE(found.best.activations_range_estimator);
    const auto& ends = found.best.activations_range_estimator->ends;
    using detent::nncf::aggregator;
    using detent::nncf::statistic;
    CHECK(ends.lower == detent::nncf::end_options{statistic::min, aggregator::min});
    CHECK(ends.upper == detent::nncf::end_options{statistic::quantile, aggregator::mean, 1e-4});
    CHECK(found.best.quantizer_propagation_rule == nncf::propagation_rule::merge_all_in_one);
  }
  // Without bias correction there is no choice of it; transformers get SmoothQuant first.
  const auto trials = [&](const nncf::quantize_options& o) {
    return nncf::tune_hyperparams(
               m, q.result, nncf::dataset(samples), nncf::dataset(judged),
               [](const graph::model&, const graph::calibration_source&) { return 0.0; }, o)
        .trials;
  };
  CHECK(trials({.disable_bias_correction = true}).size() == 14);
  const auto of_transformer = trials({.model_type = nncf::model_type::transformer});
  REQUIRE(of_transformer.size() == 6 + 16);
  CHECK(of_transformer[1].changed == changes{{"smooth_quant_alphas", "0.15"}});
  CHECK(of_transformer[6].changed.empty());
  check_graph_error(error_kind::unsupported, {"tune_hyperparams", "modes of floats"}, [&] {
    static_cast<void>(trials({.mode = nncf::quantization_mode::fp8_e4m3}));
  });
}

TEST_CASE("nncf::place_quantizers: what becomes of quantizers below a value with several users") {
  test::random_source r(222);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 8, 8});
  const std::string y = b.add("Relu", {layer(b, r, "x", {4, 3, 1, 1})});
  b.constant("w", random_floats(r, {4, 1, 3, 3}, -0.4F, 0.4F));
  const std::string left = b.add("Conv", {y, "w"}, {{"group", number(4)}});
  const std::string right = layer(b, r, y, {4, 4, 3, 3});
  b.output(left);
  b.output(right);
  using rule = nncf::propagation_rule;
  const auto of_y = [&](rule way) {
    std::vector<nncf::placed_quantizer> found = nncf::place_quantizers(b.get(), {.rule = way});
    std::erase_if(found, [&](const auto& q) { return q.value != y; });
    return found;
  };
  // One for all, with one scale, since one of the users has no others.
  const auto one = of_y(rule::merge_all_in_one);
  REQUIRE(one.size() == 1);
  CHECK_FALSE(one[0].only);
  CHECK_FALSE(one[0].config.per_channel);
  CHECK(one[0].serves.size() == 2);
  for (const rule way : {rule::do_not_merge_branches, rule::merge_if_all_branches_same}) {
    const auto both = of_y(way);
    REQUIRE(both.size() == 2);
    for (const nncf::placed_quantizer& q : both) {
      REQUIRE(q.only);
      CHECK(q.config.per_channel == (b.get().nodes[q.only->node].outputs[0] == left));
    }
  }
}

TEST_CASE(
    "nncf::place_quantizers: an output of the graph stays in float unless outputs are quantized") {
  test::random_source r(225);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 8, 8});
  const std::string y = b.add("Relu", {layer(b, r, "x", {4, 3, 1, 1})});
  b.output(y);
  b.output(layer(b, r, y, {4, 4, 3, 3}));
  b.output(layer(b, r, y, {2, 4, 1, 1}));
  for (const bool outputs : {false, true}) {
    CAPTURE(outputs);
    std::vector<nncf::placed_quantizer> found =
        nncf::place_quantizers(b.get(), {.quantize_outputs = outputs});
    std::erase_if(found, [&](const auto& q) { return q.value != y; });
    REQUIRE(!found.empty());
    for (const nncf::placed_quantizer& q : found) {
      CHECK(q.only.has_value() == !outputs);  // only for a layer, or for all that take the value
    }
  }
}

TEST_CASE("nncf::place_quantizers: beside a constant, quantizers stay that have moved further") {
  // As NNCF 3.4 places them: of an addition of a constant, the input is quantized only if the
  // quantizer has moved past something else.
  test::random_source r(226);
  INFO("seed ", r.seed());
  for (const bool has_pool : {false, true}) {
    CAPTURE(has_pool);
    model_builder b;
    std::string x = b.input("x", {1, 3, 8, 8});
    if (has_pool) {
      x = b.add("MaxPool", {x}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
    }
    b.constant("c", random_floats(r, {1, 3, 1, 1}, -1.0F, 1.0F));
    const std::string sum = b.add("Add", {x, "c"});
    b.output(layer(b, r, sum, {4, 3, 1, 1}));
    std::set<std::string> values;
    for (const nncf::placed_quantizer& q : nncf::place_quantizers(b.get(), {})) {
      if (b.get().initializers.count(q.value) == 0) {
        values.insert(q.value);
      }
    }
    CHECK(values == (has_pool ? std::set<std::string>{"x", sum} : std::set<std::string>{sum}));
  }
}

TEST_CASE("nncf::quantize: the scales of Resize are no data") {
  test::random_source r(224);
  INFO("seed ", r.seed());
  model_builder b(13);
  b.input("x", {1, 1, 3, 4});
  b.input("roi", {0});
  b.input("scales", {4});
  b.output(b.add("Resize", {"x", "roi", "scales"},
                 {{"nearest_mode", test::text("floor")},
                  {"coordinate_transformation_mode", test::text("asymmetric")}}));
  const tensors one{{"x", test::random_floats(r, {1, 1, 3, 4}, -1.0F, 1.0F)},
                    {"roi", test::floats({0}, {})},
                    {"scales", test::floats({4}, {1.0F, 1.0F, 0.4F, 2.0F})}};
  const nncf::quantization q =
      nncf::quantize(b.get(), nncf::dataset(std::vector<tensors>{one, one}));
  CHECK(count(q.result, "QuantizeLinear") == 1);
  CHECK(test::outputs_of(q.result, one)[0].dims() == shape{1, 1, 1, 8});
}

TEST_CASE("nncf::quantize: products whose biases and weights have other forms") {
  test::random_source r(225);
  INFO("seed ", r.seed());
  const auto check = [&](const char* what, model_builder& b, const shape& x, bool transformer) {
    INFO(what, transformer ? ", transformer" : "");
    std::vector<tensors> samples;
    for (int i = 0; i < 3; ++i) {
      samples.push_back({{"x", random_floats(r, x, -1.0F, 1.0F)}});
    }
    nncf::quantize_options options;
    options.model_type = transformer ? nncf::model_type::transformer : nncf::model_type::none;
    const nncf::quantization q = nncf::quantize(b.get(), nncf::dataset(samples), options);
    const tensor expected = test::outputs_of(b.get(), samples[0])[0];
    const tensor found = test::outputs_of(q.result, samples[0])[0];
    REQUIRE(found.dims() == expected.dims());
    const auto e = values_of<float>(expected);
    const auto f = values_of<float>(found);
    for (std::size_t i = 0; i < e.size(); ++i) {
      CHECK(std::fabs(e[i] - f[i]) < 0.2F);
    }
  };
  for (const bool transformer : {false, true}) {
    {
      model_builder b;
      b.input("x", {4, 6});
      b.constant("w", random_floats(r, {6, 5}, -1.0F, 1.0F));
      b.constant("b", test::floats({1, 1, 1}, {3.0F}));
      b.output(b.add("Add", {b.add("MatMul", {"x", "w"}), "b"}));
      check("a bias with more dimensions", b, {4, 6}, transformer);
    }
    for (const shape& dims : {shape{4, 1}, shape{4, 5}, shape{1, 5}, shape{5}, shape{1}, shape{}}) {
      model_builder b;
      b.input("x", {4, 6});
      b.constant("w", random_floats(r, {6, 5}, -1.0F, 1.0F));
      b.constant("b", random_floats(r, dims, 1.0F, 2.0F));
      b.output(b.add("Gemm", {"x", "w", "b"}));
      check(graph::to_string(dims).c_str(), b, {4, 6}, transformer);
    }
    {
      model_builder b;
      b.input("x", {6, 4});
      b.constant("w", random_floats(r, {6, 5}, -1.0F, 1.0F));
      b.constant("v", random_floats(r, {4, 5}, -1.0F, 1.0F));
      b.constant("b", random_floats(r, {5}, 1.0F, 2.0F));
      const std::string left = b.add("Gemm", {"x", "w", "b"}, {{"transA", test::number(1)}});
      const std::string right = b.add("Gemm", {"x", "v", "b"});
      b.output(b.add("Concat", {left, right}, {{"axis", test::number(0)}}));
      check("a transposed input beside another product", b, {6, 4}, transformer);
    }
    {
      model_builder b;
      b.input("x", {5, 8});
      b.constant("w", random_floats(r, {2, 5}, -1.0F, 1.0F));
      b.constant("b", random_floats(r, {1, 8}, 1.0F, 2.0F));
      b.output(b.add("Add", {b.add("MatMul", {"w", "x"}), "b"}));
      check("weights on the left", b, {5, 8}, transformer);
    }
    {
      model_builder b;
      b.input("x", {2, 4, 6});
      b.constant("w", random_floats(r, {6}, -1.0F, 1.0F));
      b.constant("b", test::floats({1}, {2.0F}));
      b.output(b.add("Add", {b.add("MatMul", {"x", "w"}), "b"}));
      check("weights of one dimension", b, {2, 4, 6}, transformer);
    }
    {
      model_builder b;
      b.input("x", {6, 6});
      b.constant("w", random_floats(r, {6, 6}, -1.0F, 1.0F));
      b.output(b.add("Gemm", {"x", "w", "x"}));
      check("a residual that is the left side", b, {6, 6}, transformer);
    }
  }
}

TEST_CASE("nncf: groups of quantizers, and models without some of them") {
  test::random_source r(223);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 3);
  const nncf::quantization q = nncf::quantize(m, nncf::dataset(samples));
  const std::vector<nncf::quantizer_group> groups = nncf::quantizer_groups(q);
  CHECK(groups.size() == 4);  // two convolutions, the average, the last layer
  std::set<std::size_t> all;
  for (const nncf::quantizer_group& g : groups) {
    CHECK(g.nodes.size() == 1);
    all.insert(g.quantizers.begin(), g.quantizers.end());
  }
  CHECK(all.size() == q.quantizers.size());
  const nncf::quantization none = nncf::without_quantizers(q, all);
  CHECK(test::different(m, none.result, samples[0]).empty());  // also the biases of before
  CHECK(count(none.result, "QuantizeLinear") == 0);
  const nncf::quantization same = nncf::without_quantizers(q, {});
  CHECK(test::different(q.result, same.result, samples[0]).empty());
  check_graph_error(error_kind::invalid_argument, {"without_quantizers"},
                    [&] { static_cast<void>(nncf::without_quantizers(q, {99})); });
}

TEST_CASE(
    "nncf: layers that share weights are ignored in vain, and get their biases back together") {
  test::random_source r(229);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 8, 8});
  b.constant("w", random_floats(r, {3, 3, 1, 1}, -0.4F, 0.4F));
  b.constant("c", random_floats(r, {3}, 0.2F, 0.5F));
  b.constant("d", random_floats(r, {3}, 0.2F, 0.5F));
  const std::string first = b.add("Conv", {"x", "w", "c"});
  const std::string second = b.add("Conv", {b.add("Relu", {first}), "w", "d"});
  b.output(b.add("Sigmoid", {second}));
  const auto samples = samples_of(r, {1, 3, 8, 8}, 3);
  const nncf::quantization q = nncf::quantize(b.get(), nncf::dataset(samples));
  CHECK(q.ignored_in_vain.empty());
  CHECK(q.biases_before.size() == 2);
  std::set<std::size_t> all;
  for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
    if (q.quantizers[k].weights_of) {
      all.insert(k);
    }
  }
  REQUIRE(all.size() == 1);
  const nncf::quantization rest = nncf::without_quantizers(q, all);
  CHECK(rest.biases_before.empty());
  for (const graph::node& n : rest.float_model.nodes) {
    if (n.is("Conv")) {
      CHECK((n.inputs[2] == "c" || n.inputs[2] == "d"));
    }
  }
  const graph::model m = b.get();
  nncf::quantize_options options;
  options.ignored_scope.names = {m.nodes.front().name.empty() ? first : m.nodes.front().name};
  const nncf::quantization other = nncf::quantize(m, nncf::dataset(samples), options);
  REQUIRE(other.ignored_in_vain.size() == 1);
  CHECK(other.ignored_in_vain[0] == m.nodes.front().label());
}

TEST_CASE("calibrate: observers see values in the order of their dimensions") {
  struct values_observer {
    std::vector<float> seen = {};
    std::vector<std::size_t> dims = {};
    void observe(detent::tensor_view<const float> x) {
      seen.assign(x.data, x.data + x.size());
      dims.assign(x.shape.begin(), x.shape.begin() + static_cast<std::ptrdiff_t>(x.rank));
    }
    [[nodiscard]] detent::quant_params finalize(detent::quant_scheme) const { return {}; }
  };
  test::random_source r(218);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 1);
  std::vector<graph::observed_value> observed;
  for (const char* name : {"Conv_0_out", "Relu_1_out", "Conv_2_out", "x"}) {
    observed.push_back({name, detent::any_observer(values_observer())});
  }
  graph::calibrate(m, observed, nncf::dataset(samples).samples());
  for (const graph::observed_value& o : observed) {
    INFO(o.name);
    const auto* seen = o.observer.target<values_observer>();
    REQUIRE(seen != nullptr);
    CHECK(seen->seen == value_of(m, o.name, samples[0]));
    CHECK(seen->dims.size() == 4);
  }
}
