// SPDX-License-Identifier: BSD-3-Clause
// Statistics of nncf::quantize(): the results of quantization with them, files of them, and what is
// refused.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/base/byte_format.hpp>
#include <detent/graph/nncf/nncf.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/calibration_state.hpp>
#include <detent/graph/quantize/state_file.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "temporary_folder.hpp"

namespace {

using namespace test;
namespace nncf = detent::graph::nncf;
using detent::error_kind;

std::vector<tensors> samples_of(test::random_source& r, const shape& dims, int count) {
  std::vector<tensors> samples;
  for (int i = 0; i < count; ++i) {
    samples.push_back({{"x", random_floats(r, dims, -1.0F, 1.0F + r.real(0.0F, 0.3F))}});
  }
  return samples;
}

/// Conv, Relu, depthwise Conv, average, Gemm.
graph::model network(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 3, 8, 8});
  b.constant("w0", random_floats(r, {6, 3, 3, 3}, -0.4F, 0.4F));
  b.constant("b0", random_floats(r, {6}, 0.2F, 0.5F));
  b.constant("w1", random_floats(r, {6, 1, 3, 3}, -0.4F, 0.4F));
  b.constant("b1", random_floats(r, {6}, 0.2F, 0.5F));
  b.constant("w2", random_floats(r, {4, 6}, -0.4F, 0.4F));
  b.constant("b2", random_floats(r, {4}, 0.2F, 0.5F));
  const std::string first = b.add("Relu", {b.add("Conv", {"x", "w0", "b0"})});
  const std::string depthwise = b.add("Conv", {first, "w1", "b1"}, {{"group", number(6)}});
  const std::string flat = b.add("Flatten", {b.add("GlobalAveragePool", {depthwise})});
  b.output(b.add("Gemm", {flat, "w2", "b2"}, {{"transB", number(1)}}));
  return b.get();
}

/// Two matrix products with a bias.
graph::model transformer(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 4, 8});
  std::string y = "x";
  for (const char* id : {"0", "1"}) {
    const std::string w = std::string("w") + id;
    const std::string bias = std::string("b") + id;
    b.constant(w, random_floats(r, {8, 8}, -1.0F, 1.0F));
    b.constant(bias, random_floats(r, {8}, 0.2F, 0.5F));
    y = b.add("Tanh", {b.add("Add", {b.add("MatMul", {y, w}), bias})});
  }
  b.output(y);
  return b.get();
}

nncf::statistics saved_and_loaded(const nncf::statistics& s) {
  const temporary_folder folder;
  const auto path = folder.path() / "nncf.states";
  graph::write_state_file(path, s.save());
  nncf::statistics again = nncf::statistics::load(graph::read_state_file(path.string()));
  CHECK(again.save() == s.save());
  CHECK(again.samples() == s.samples());
  return again;
}

TEST_CASE("nncf::statistics: other options give what samples give, to the bit") {
  test::random_source r(501);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto samples = samples_of(r, {2, 3, 8, 8}, 5);
  const nncf::dataset data(samples);
  using nncf::preset;
  using nncf::quantization_mode;
  for (const preset collected : {preset::performance, preset::mixed}) {
    const nncf::statistics s =
        saved_and_loaded(nncf::collect_statistics(m, data, {.preset = collected}));
    CHECK(s.samples() == 5);
    const std::vector<nncf::quantize_options> others{
        {},
        {.preset = preset::mixed},
        {.disable_bias_correction = true},
        {.bias_correction_params = {.threshold = 1e-3}},
        {.overflow_fix = nncf::overflow_fix::enable},
        {.weights_range_estimator = nncf::mean_quantile},
        {.mode = quantization_mode::fp8_e4m3},
        {.mode = quantization_mode::fp8_e5m2, .disable_bias_correction = true}};
    for (std::size_t i = 0; i < others.size(); ++i) {
      INFO("options ", i);
      const nncf::quantization from_samples = nncf::quantize(m, data, others[i]);
      const nncf::quantization from_statistics = nncf::quantize(m, s, others[i]);
      CHECK(graph::to_onnx(from_statistics.result) == graph::to_onnx(from_samples.result));
      CHECK(from_statistics.bias_shifts.size() == from_samples.bias_shifts.size());
    }
  }
}

TEST_CASE("nncf::statistics: places that only some presets and modes have") {
  test::random_source r(506);
  INFO("seed ", r.seed());
  model_builder table;
  table.input("ids", {2, 3}, element_type::s64);
  table.constant("table", random_floats(r, {10, 8}, -1.0F, 1.0F));
  table.constant("w", random_floats(r, {8, 8}, -1.0F, 1.0F));
  const std::string e = table.add("Gather", {"table", "ids"});
  table.output(table.add("MatMul", {e, "w"}));
  std::vector<tensors> samples;
  for (std::int64_t i = 0; i < 3; ++i) {
    samples.push_back({{"ids", make_tensor(element_type::s64, {2, 3},
                                           std::vector<std::int64_t>{i, 1, 2, 3, 4, 5 + i})}});
  }
  const nncf::dataset data(samples);
  for (const nncf::preset collected : {nncf::preset::performance, nncf::preset::mixed}) {
    const nncf::statistics s = nncf::collect_statistics(table.get(), data, {.preset = collected});
    for (const nncf::preset tried : {nncf::preset::performance, nncf::preset::mixed}) {
      CHECK(graph::to_onnx(nncf::quantize(table.get(), s, {.preset = tried}).result) ==
            graph::to_onnx(nncf::quantize(table.get(), data, {.preset = tried}).result));
    }
  }
}

TEST_CASE("nncf::statistics: SmoothQuant, subsets and estimators") {
  test::random_source r(502);
  INFO("seed ", r.seed());
  const graph::model m = transformer(r);
  const auto samples = samples_of(r, {1, 4, 8}, 6);
  const nncf::dataset data(samples);
  nncf::quantize_options o{.subset_size = 4, .model_type = nncf::model_type::transformer};
  o.activations_range_estimator = nncf::median_min_max;
  o.batchwise_statistics = true;
  const nncf::statistics s = saved_and_loaded(nncf::collect_statistics(m, data, o));
  CHECK(s.samples() == 4);
  for (const nncf::preset preset : {nncf::preset::mixed, nncf::preset::performance}) {
    o.preset = preset;
    CHECK(graph::to_onnx(nncf::quantize(m, s, o).result) ==
          graph::to_onnx(nncf::quantize(m, data, o).result));
  }
  const auto refuses = [&](const nncf::quantize_options& other, const char* what) {
    check_graph_error(error_kind::invalid_argument, {"nncf.states", what},
                      [&] { static_cast<void>(nncf::quantize(m, s, other)); });
  };
  nncf::quantize_options other = o;
  other.smooth_quant_alphas.matmul = 0.5F;
  refuses(other, "SmoothQuant alpha of matrix products");
  other.smooth_quant_alphas.matmul = 0.95000005F;  // the next float
  refuses(other, "SmoothQuant alpha of matrix products");
  other.smooth_quant_alphas.matmul = -1.0F;
  refuses(other, "SmoothQuant alpha of matrix products");
  other = o;
  other.model_type = nncf::model_type::none;
  refuses(other, "SmoothQuant");
  other = o;
  other.activations_range_estimator = nncf::mean_min_max;
  refuses(other, "range estimator of activations");
  other.activations_range_estimator.reset();
  refuses(other, "range estimator of activations");
  other = o;
  other.batchwise_statistics = false;
  refuses(other, "batchwise");
}

TEST_CASE("nncf::statistics: what they are not for is refused") {
  test::random_source r(503);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto samples = samples_of(r, {2, 3, 8, 8}, 2);
  const nncf::dataset data(samples);
  const nncf::statistics s = nncf::collect_statistics(m, data);
  const auto refuses = [&](const graph::model& of, const nncf::statistics& seen,
                           const nncf::quantize_options& o, error_kind kind, const char* what) {
    check_graph_error(kind, {what}, [&] { static_cast<void>(nncf::quantize(of, seen, o)); });
  };
  graph::model other = m;
  other.initializers["b0"] = random_floats(r, {6}, 0.2F, 0.5F);
  refuses(other, s, {}, error_kind::invalid_argument, "another model");
  refuses(m, s, {.fast_bias_correction = false}, error_kind::unsupported, "full bias correction");
  refuses(m, s, {.disable_channel_alignment = false}, error_kind::unsupported, "channel alignment");
  check_graph_error(error_kind::unsupported, {"channel alignment"}, [&] {
    static_cast<void>(nncf::collect_statistics(m, data, {.disable_channel_alignment = false}));
  });
  // A place that was not quantized when they were collected.
  const nncf::statistics fewer =
      nncf::collect_statistics(m, data, {.ignored_scope = {.types = {"Gemm"}}});
  refuses(m, fewer, {}, error_kind::invalid_argument, "no range of");
  const nncf::statistics of_tensors = nncf::collect_statistics(
      m, data, {.activations_quantization_params = {.per_channel = false}});
  refuses(m, of_tensors, {}, error_kind::invalid_argument, "for each channel");
  const nncf::statistics without =
      nncf::collect_statistics(m, data, {.disable_bias_correction = true});
  refuses(m, without, {}, error_kind::invalid_argument, "no means of");
  static_cast<void>(nncf::quantize(m, without, {.disable_bias_correction = true}));
  check_graph_error(error_kind::invalid_argument, {"subset_size"}, [&] {
    static_cast<void>(nncf::collect_statistics(m, data, {.subset_size = 0}));
  });
}

TEST_CASE("nncf::statistics: damaged states and those of other approaches are refused") {
  test::random_source r(504);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto samples = samples_of(r, {1, 3, 8, 8}, 2);
  const std::vector<std::byte> bytes = nncf::collect_statistics(m, nncf::dataset(samples)).save();
  const auto load = [](std::vector<std::byte> b) {
    return nncf::statistics::load({"a.states", std::move(b)});
  };
  CHECK(load(bytes).save() == bytes);
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 8) {
    check_graph_error(error_kind::bad_file, {"a.states"}, [&] {
      static_cast<void>(load({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}));
    });
  }
  for (std::size_t at = 24; at < bytes.size(); at += 97) {
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x10};
    check_graph_error(error_kind::bad_file, {"a.states"},
                      [&] { static_cast<void>(load(damaged)); });
  }
  std::vector<std::byte> newer = bytes;
  newer[8] = std::byte{77};
  check_graph_error(error_kind::unsupported, {"a.states", "version 77"},
                    [&] { static_cast<void>(load(newer)); });
  const graph::calibration_state other(m, {});
  check_graph_error(error_kind::invalid_argument, {"a.states", "static", "nncf"},
                    [&] { static_cast<void>(load(other.save())); });
}

/// Writes statistics, changes a text of their bytes, and reads them again.
nncf::detail::collected_statistics read_again(const nncf::detail::collected_statistics& written,
                                              std::string_view text = "",
                                              std::string_view instead = "") {
  constexpr detent::detail::byte_format format{"TESTTEST", 1};
  detent::detail::byte_writer out(format);
  written.write(out);
  std::vector<std::byte> bytes = std::move(out).finish();
  if (!text.empty()) {
    const auto found = std::search(bytes.begin(), bytes.end(), text.begin(), text.end(),
                                   [](std::byte a, char c) { return a == std::byte(c); });
    REQUIRE(found != bytes.end());
    std::transform(instead.begin(), instead.end(), found, [](char c) { return std::byte(c); });
    const std::uint64_t sum =
        detent::detail::checksum(std::span<const std::byte>(bytes).first(bytes.size() - 8));
    std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
  }
  detent::detail::byte_reader in(bytes, format, "statistics");
  nncf::detail::collected_statistics again;
  again.origin = graph::detail::state_origin::read(in);
  again.read(in);
  return again;
}

TEST_CASE("nncf::statistics: ranges that cannot be are refused") {
  const std::vector<detent::value_range> two = {{-1.0F, 1.0F}, {0.0F, 2.0F}};
  nncf::detail::collected_statistics good;
  good.progress.samples = 3;
  good.ranges[{"first value", true, true}] = two;
  good.ranges[{"other value", true, false}] = {{-2.0F, 3.0F}};
  CHECK(read_again(good).ranges == good.ranges);
  check_graph_error(error_kind::bad_file, {"out of order"},
                    [&] { static_cast<void>(read_again(good, "first value", "zirst value")); });
  check_graph_error(error_kind::bad_file, {"out of order"}, [&] {
    static_cast<void>(read_again(good, "first value", "other value"));  // with its channels behind
  });
  for (const std::size_t count : {0U, 2U}) {
    nncf::detail::collected_statistics bad = good;
    bad.ranges[{"other value", true, false}] = {two.begin(),
                                                two.begin() + static_cast<std::ptrdiff_t>(count)};
    check_graph_error(error_kind::bad_file, {"ranges of 'other value'"},
                      [&] { static_cast<void>(read_again(bad)); });
  }
  nncf::detail::collected_statistics none = good;
  none.ranges[{"first value", true, true}].clear();
  check_graph_error(error_kind::bad_file, {"there are 0 ranges of 'first value'"},
                    [&] { static_cast<void>(read_again(none)); });
}

TEST_CASE("nncf::statistics: a range whose estimators cross is saved, too") {
  test::random_source r(506);
  INFO("seed ", r.seed());
  const graph::model m = transformer(r);
  // Without outliers among two samples, the mean of equal minima is 0.5, that of maxima 0.
  std::vector<tensors> samples;
  for (const float largest : {3.0F, 3.5F}) {
    std::vector<float> values(32, 1.0F);
    values[0] = 0.5F;
    values[1] = largest;
    samples.push_back({{"x", floats({1, 4, 8}, values)}});
  }
  const nncf::dataset data(samples);
  nncf::quantize_options o{.preset = nncf::preset::performance};
  o.activations_range_estimator = nncf::mean_no_outliers_min_max;
  const nncf::statistics s = saved_and_loaded(nncf::collect_statistics(m, data, o));
  CHECK(graph::to_onnx(nncf::quantize(m, s, o).result) ==
        graph::to_onnx(nncf::quantize(m, data, o).result));
  // Asymmetric quantizers have no scale for such a range.
  o.preset = nncf::preset::mixed;
  check_graph_error(error_kind::invalid_argument, {"'x'"},
                    [&] { static_cast<void>(nncf::quantize(m, s, o)); });
}

TEST_CASE("nncf::statistics: magnitudes and counts that cannot be are refused") {
  nncf::detail::collected_statistics good;
  good.progress.samples = 3;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  good.smoothed.push_back({.value = "v", .rank = 2, .magnitudes = {0.0F, 1.5F, infinity}});
  CHECK(read_again(good).smoothed[0].magnitudes == good.smoothed[0].magnitudes);
  for (const float wrong : {-1.0F, -0.0F, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    nncf::detail::collected_statistics bad = good;
    bad.smoothed[0].magnitudes[1] = wrong;
    check_graph_error(error_kind::bad_file, {"a magnitude of 'v'"},
                      [&] { static_cast<void>(read_again(bad)); });
  }
  for (const auto change : std::initializer_list<void (*)(graph::detail::state_progress&)>{
           [](auto& p) { p.samples = 0; }, [](auto& p) { p.round = 2; },
           [](auto& p) { p.shards.insert(7); }}) {
    nncf::detail::collected_statistics bad = good;
    change(bad.progress);
    check_graph_error(error_kind::bad_file, {"at least one sample"},
                      [&] { static_cast<void>(read_again(bad)); });
  }
}

}  // namespace
