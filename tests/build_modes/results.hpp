// SPDX-License-Identifier: BSD-3-Clause
// A hash of many results of the library, on inputs chosen to be difficult, for the programs that
// compare build modes. All functions are static: each translation unit must have its own.
#ifndef DETENT_TESTS_BUILD_MODES_RESULTS_HPP
#define DETENT_TESTS_BUILD_MODES_RESULTS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <detent/all.hpp>

namespace {

class hasher {
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    for (const T& value : values) {
      add(value);
    }
  }
  template <class T>
  void add(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    for (const unsigned char byte : bytes) {
      hash_ = (hash_ ^ byte) * 0x100000001b3U;  // FNV-1a
    }
  }
  std::string hex() const {
    std::string text;
    for (int shift = 60; shift >= 0; shift -= 4) {
      text += "0123456789abcdef"[hash_ >> shift & 15U];
    }
    return text;
  }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325U;
};

/// The same numbers in every program.
class generator {
 public:
  std::uint32_t bits() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  template <class T>
  std::vector<T> integers(std::size_t n) {
    std::vector<T> values(n);
    for (T& value : values) {
      value = static_cast<T>(bits());
    }
    return values;
  }
  /// In [-4, 4), with all 24 bits of the significand in use.
  std::vector<float> floats(std::size_t n) {
    std::vector<float> values(n);
    for (float& value : values) {
      value = static_cast<float>(static_cast<std::int32_t>(bits())) / 536870912.0F;
    }
    return values;
  }

 private:
  std::uint64_t state_ = 1;
};

/// Ties of `scale` and the floats next to them, what saturates, subnormals, infinities, NaNs.
[[maybe_unused]] std::vector<float> hard_floats(float scale) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0.0F,    -0.0F,    1e-45F,   -1e-45F,   1.17549435e-38F,
                          3.4e38F, -3.4e38F, infinity, -infinity, std::nanf("")};
  for (int i = -300; i <= 300; ++i) {
    const float tie = (static_cast<float>(i) + 0.5F) * scale;
    x.insert(x.end(), {tie, std::nextafter(tie, infinity), std::nextafter(tie, -infinity)});
  }
  return x;
}

template <class Q>
void hash_elementwise(hasher& h, generator& random) {
  for (const float scale : {0.1F, 1.0F, 0.0078125F, 3e-39F, 1.2e38F, 0.3333F}) {
    const std::vector<float> x = hard_floats(scale);
    for (const std::size_t size : {std::size_t{1}, std::size_t{37}, x.size() - 1}) {
      const std::span<const float> input = std::span(x).last(size);
      std::vector<Q> q(size);
      detent::quantize(input, std::span(q), {scale, 3});
      h.add(q);
      std::vector<float> back(size);
      detent::dequantize(std::span<const Q>(q), std::span(back), {scale, 3});
      h.add(back);
    }
  }
  std::vector<std::int32_t> sums = random.integers<std::int32_t>(333);
  sums.insert(sums.end(), {std::numeric_limits<std::int32_t>::min(), 1 << 24 | 1, 5, -5, 0});
  for (const float multiplier : {0.5F, 1e-7F, 0.00390625F, 17.0F}) {
    std::vector<Q> q(sums.size());
    detent::requantize(std::span<const std::int32_t>(sums), std::span(q), {multiplier, 1});
    h.add(q);
  }
  // Channels of a transposed tensor.
  const std::vector<float> x = random.floats(std::size_t{7} * 19);
  std::vector<Q> q(x.size());
  detent::tensor_view<const float> view(x.data(), {19, 7});
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
  const detent::channel_quant_params p{
      0, {0.01F, 0.02F, 0.03F, 0.5F, 1.0F, 0.1F, 0.015F}, {0, 1, 2, 3, 4, 5, 6}};
  detent::quantize(view, detent::tensor_view<Q>(q.data(), {7, 19}), p);
  h.add(q);
}

[[maybe_unused]] void hash_ranges(hasher& h, generator& random) {
  std::vector<float> x = random.floats(1001);
  detent::min_max_observer seen;
  seen.observe(std::span(x).first(500));
  seen.observe(std::span(x).subspan(500));
  for (const detent::quant_scheme scheme :
       {detent::asymmetric<std::uint8_t>, detent::symmetric<std::int8_t>}) {
    const detent::quant_params p = seen.finalize(scheme);
    h.add(p.scale);
    h.add(p.zero_point);
  }
  x[777] = std::nanf("");
  seen.observe(x);
  h.add(seen.count_nan());
  const std::vector<std::int16_t> integers = random.integers<std::int16_t>(515);
  detent::min_max_observer wide;
  wide.observe_as(std::span<const std::int16_t>(integers));
  h.add(wide.range().lower);
  h.add(wide.range().upper);
}

template <class T>
std::vector<T> integer_product(generator random, std::size_t m, std::size_t n, std::size_t k,
                               bool zero_points) {
  const std::vector<std::uint8_t> a = random.integers<std::uint8_t>(m * k);
  const std::vector<std::int8_t> b = random.integers<std::int8_t>(k * n);
  const std::vector<std::int32_t> bias(n, 77);
  std::vector<float> scales(n);
  std::vector<std::int32_t> rhs_zero_points(zero_points ? n : 0);
  for (std::size_t j = 0; j < n; ++j) {
    scales[j] = static_cast<float>(j + 10) / 1000.0F;  // nothing that FMA could contract
  }
  std::iota(rhs_zero_points.begin(), rhs_zero_points.end(), -8);
  const detent::packed_weights w =
      detent::pack_weights(detent::matrix_view<const std::int8_t>(b.data(), k, n),
                           {.scales = scales, .zero_points = rhs_zero_points, .bias = bias});
  std::vector<T> c(m * n);
  detent::gemm(
      detent::matrix_view<const std::uint8_t>(a.data(), m, k), w,
      detent::matrix_view<T>(c.data(), m, n),
      {.lhs_scale = 0.03F, .lhs_zero_point = 131, .output = {.scale = 3.7F, .zero_point = 5}});
  return c;
}

[[maybe_unused]] void hash_products(hasher& h, generator& random) {
  struct size {
    std::size_t m, n, k;
  };
  for (const size s : {size{1, 1, 1}, size{7, 33, 5}, size{50, 70, 129}, size{3, 16, 800}}) {
    for (const bool zero_points : {false, true}) {
      h.add(integer_product<std::int32_t>(random, s.m, s.n, s.k, zero_points));
      h.add(integer_product<float>(random, s.m, s.n, s.k, zero_points));
      h.add(integer_product<std::uint8_t>(random, s.m, s.n, s.k, zero_points));
      h.add(integer_product<std::int8_t>(random, s.m, s.n, s.k, zero_points));
    }
    const std::vector<float> a = random.floats(s.m * s.k);
    const std::vector<float> b = random.floats(s.k * s.n);
    const std::vector<float> bias = random.floats(s.n);
    std::vector<float> c(s.m * s.n);
    detent::gemm(detent::matrix_view<const float>(a.data(), s.m, s.k),
                 detent::packed_floats({b.data(), s.k, s.n}, bias),
                 detent::matrix_view<float>(c.data(), s.m, s.n), {.lower = -100.0F});
    h.add(c);
  }
}

[[maybe_unused]] void hash_convolutions(hasher& h, generator& random) {
  const detent::window w{.batch = 2,
                         .in_height = 9,
                         .in_width = 8,
                         .stride_height = 2,
                         .dilation_width = 2,
                         .pad_top = 1,
                         .pad_left = 2,
                         .pad_right = 1};
  for (const std::size_t groups : {1U, 2U, 18U}) {  // dense, grouped, depthwise
    const detent::filter_shape f{.out_channels = 18,
                                 .in_channels = 18,
                                 .groups = groups,
                                 .kernel_height = 3,
                                 .kernel_width = 3};
    const std::size_t in = w.batch * w.in_height * w.in_width * f.in_channels;
    const std::size_t out = w.batch * w.out_height(f) * w.out_width(f) * f.out_channels;
    const std::vector<std::uint8_t> images = random.integers<std::uint8_t>(in);
    const std::vector<std::int8_t> weights = random.integers<std::int8_t>(f.size());
    std::vector<std::int8_t> q(out);
    detent::convolve(std::span<const std::uint8_t>(images), detent::packed_filters(f, weights), w,
                     std::span(q), {.lhs_zero_point = 9, .output = {.scale = 999.0F}});
    h.add(q);
    const std::vector<float> float_images = random.floats(in);
    const std::vector<float> float_weights = random.floats(f.size());
    const std::vector<float> bias = random.floats(f.out_channels);
    std::vector<float> x(out);
    detent::convolve(float_images, detent::packed_float_filters(f, float_weights, bias), w, x);
    h.add(x);
  }
}

[[maybe_unused]] void hash_weights(hasher& h, const detent::quantized_weights& q) {
  h.add(q.codes);
  h.add(q.params.scales);
  h.add(q.params.zero_points);
  h.add(q.evidence.objective);
  h.add(q.evidence.nearest_objective);
}

[[maybe_unused]] void hash_solvers(hasher& h, generator& random) {
  const std::size_t k = 75;
  std::vector<float> x = random.floats(100 * k);
  for (std::size_t i = 1; i < x.size(); ++i) {
    x[i] = x[i - 1] / 2.0F + x[i];  // exact quotient
  }
  std::vector<float> w = random.floats(6 * k);
  detent::gram_observer observer(k);
  observer.observe(detent::matrix_view<const float>(x.data(), 100, k));
  for (const std::byte b : observer.save()) {
    h.add(static_cast<unsigned char>(b));
  }
  const detent::gram_matrix g = observer.finalize();
  const std::vector<float> magnitudes = observer.mean_magnitudes();
  h.add(magnitudes);
  const detent::matrix_view<const float> weights(w.data(), 6, k);
  const detent::weight_format format{.scheme = detent::asymmetric<detent::int4>, .group_size = 32};
  hash_weights(h, detent::round_to_nearest(weights, g, format));
  hash_weights(h, detent::coordinate_descent(weights, g, format));
  hash_weights(h, detent::adaround(weights, g, format, {.iterations = 200}));
  hash_weights(h, detent::gptq(weights, g, format));
  hash_weights(h, detent::hqq(weights, format, {.relative = true}));
  const detent::awq_weights a =
      detent::awq(weights, g, format, {.activation_magnitudes = magnitudes});
  hash_weights(h, a.weights);
  h.add(a.input_scales);
  const detent::smooth_quant_result s = detent::smooth_quant_search(
      detent::matrix_view<const float>(x.data(), 100, k), weights, format);
  hash_weights(h, s.weights);
  h.add(s.scales);
  h.add(s.errors);
}

/// A line for each group of operations, computed on the active target.
[[maybe_unused]] std::string results_of_active_target() {
  generator random;
  std::string lines;
  const auto group = [&](const char* name, auto&& run) {
    hasher h;
    run(h, random);
    lines += std::string(name) + " " + h.hex() + "\n";
  };
  group("elementwise u8", hash_elementwise<std::uint8_t>);
  group("elementwise s8", hash_elementwise<std::int8_t>);
  group("ranges        ", hash_ranges);
  group("products      ", hash_products);
  group("convolutions  ", hash_convolutions);
  group("solvers       ", hash_solvers);
  return lines;
}

/// The lines on which all targets agree, or a complaint.
[[maybe_unused]] std::string results() {
  std::string targets = "targets";
  std::string agreed;
  for (const detent::target t : detent::available_targets()) {
    detent::set_target(t);
    targets += std::string(" ") + detent::name(t);
    const std::string lines = results_of_active_target();
    if (!agreed.empty() && lines != agreed) {
      return targets + " is where the targets begin to differ:\n" + agreed + lines;
    }
    agreed = lines;
  }
  return targets + "\n" + agreed;
}

}  // namespace

#endif  // DETENT_TESTS_BUILD_MODES_RESULTS_HPP
