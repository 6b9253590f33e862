// SPDX-License-Identifier: BSD-3-Clause
// What the public functions refuse: the right kind, a message that names the argument and its
// value, and nothing written.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"

namespace {

using detent::channel_quant_params;
using detent::error_kind;
using detent::grid;
using detent::matrix_view;
using detent::quant_params;
using detent::tensor_view;
using test::check_error;

constexpr auto invalid = error_kind::invalid_argument;
constexpr auto mismatch = error_kind::shape_mismatch;
constexpr auto unsupported = error_kind::unsupported;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

struct bad_scale {
  float value;
  const char* text;
};
constexpr bad_scale bad_scales[] = {{0.0F, "scale 0 "},       {-0.0F, "scale -0 "},
                                    {-1.5F, "scale -1.5 "},   {quiet_nan, "nan"},
                                    {infinity, "scale inf "}, {-infinity, "scale -inf "}};

/// An output that knows whether it was written to.
template <class T>
class untouched {
 public:
  explicit untouched(std::size_t n) : values_(n, T{42}) {}
  [[nodiscard]] std::span<T> span() { return values_; }
  [[nodiscard]] T* data() { return values_.data(); }
  [[nodiscard]] bool holds() const {
    return std::all_of(values_.begin(), values_.end(), [](T v) { return v == T{42}; });
  }

 private:
  std::vector<T> values_;
};

// The three operations with one signature. dequantize takes no grid.

template <class Q>
struct quantizing {
  using input = float;
  using output = Q;
  using stored = Q;
  static constexpr const char* name = "quantize";
  static constexpr bool takes_grid = true;
  template <class In, class Out, class Params>
  static void run(In in, Out out, const Params& p, grid levels = detent::full_grid<Q>) {
    detent::quantize(in, out, p, levels);
  }
};

template <class Q>
struct dequantizing {
  using input = Q;
  using output = float;
  using stored = Q;
  static constexpr const char* name = "dequantize";
  static constexpr bool takes_grid = false;
  template <class In, class Out, class Params>
  static void run(In in, Out out, const Params& p) {
    detent::dequantize(in, out, p);
  }
};

template <class Q>
struct requantizing {
  using input = std::int32_t;
  using output = Q;
  using stored = Q;
  static constexpr const char* name = "requantize";
  static constexpr bool takes_grid = true;
  template <class In, class Out, class Params>
  static void run(In in, Out out, const Params& p, grid levels = detent::full_grid<Q>) {
    detent::requantize(in, out, p, levels);
  }
};

#define ALL_OPERATIONS                                                           \
  quantizing<std::uint8_t>, quantizing<std::int8_t>, dequantizing<std::uint8_t>, \
      dequantizing<std::int8_t>, requantizing<std::uint8_t>, requantizing<std::int8_t>

}  // namespace

TEST_CASE_TEMPLATE("quantize, dequantize, requantize", Op, ALL_OPERATIONS) {
  using input = typename Op::input;
  using output = typename Op::output;
  using Q = typename Op::stored;
  constexpr grid full = detent::full_grid<Q>;
  const std::vector<input> values(12, input{1});
  const std::span<const input> in(values);
  const tensor_view<const input> in_view(values.data(), {3, 4});
  untouched<output> out(12);
  const tensor_view<output> out_view(out.data(), {3, 4});

  SUBCASE("scale") {
    for (const bad_scale& s : bad_scales) {
      check_error(invalid, {Op::name, s.text}, [&] {
        Op::run(in, out.span(), quant_params{s.value, 0});
      });
      check_error(invalid, {Op::name, s.text}, [&] {
        Op::run(in_view, out_view, quant_params{s.value, 0});
      });
      // A bad one anywhere among the channels.
      check_error(invalid, {Op::name, s.text}, [&] {
        Op::run(in_view, out_view, channel_quant_params{0, {1.0F, 1.0F, s.value}, {0, 0, 0}});
      });
    }
  }
  SUBCASE("zero point") {
    for (const std::int32_t z :
         {full.qmin - 1, full.qmax + 1, std::numeric_limits<std::int32_t>::min(),
          std::numeric_limits<std::int32_t>::max()}) {
      const std::string text = "zero point " + std::to_string(z);
      check_error(invalid, {Op::name, text}, [&] {
        Op::run(in, out.span(), quant_params{1.0F, z});
      });
      check_error(invalid, {Op::name, text}, [&] {
        Op::run(in_view, out_view, quant_params{1.0F, z});
      });
      check_error(invalid, {Op::name, text}, [&] {
        Op::run(in_view, out_view, channel_quant_params{0, {1.0F, 1.0F, 1.0F}, {0, 0, z}});
      });
    }
  }
  SUBCASE("grid") {
    if constexpr (Op::takes_grid) {
      for (const grid g :
           {grid{full.qmin - 1, full.qmax}, grid{full.qmin, full.qmax + 1}, grid{6, 5}}) {
        const std::string text = std::to_string(g.qmin) + ".." + std::to_string(g.qmax);
        check_error(invalid, {Op::name, "grid", text}, [&] {
          Op::run(in, out.span(), quant_params{1.0F, 5}, g);
        });
        check_error(invalid, {Op::name, "grid", text}, [&] {
          Op::run(in_view, out_view, quant_params{1.0F, 5}, g);
        });
        check_error(invalid, {Op::name, "grid", text}, [&] {
          Op::run(in_view, out_view, channel_quant_params{0, {1.0F, 1.0F, 1.0F}, {0, 0, 0}}, g);
        });
      }
      // Inside the type, outside the grid.
      check_error(invalid, {Op::name, "zero point 2", "3..90"}, [&] {
        Op::run(in, out.span(), quant_params{1.0F, 2}, grid{3, 90});
      });
      check_error(invalid, {Op::name, "zero point 91", "3..90"}, [&] {
        Op::run(in_view, out_view, channel_quant_params{0, {1.0F, 1.0F, 1.0F}, {3, 91, 3}},
                grid{3, 90});
      });
    }
  }
  SUBCASE("sizes and shapes") {
    check_error(mismatch, {Op::name, "12", "11"},
                [&] { Op::run(in, out.span().first(11), quant_params{}); });
    check_error(mismatch, {Op::name, "11", "12"},
                [&] { Op::run(in.first(11), out.span(), quant_params{}); });
    check_error(mismatch, {Op::name, "0", "12"},
                [&] { Op::run(in.first(0), out.span(), quant_params{}); });
    check_error(mismatch, {Op::name, "rank 2", "1"},
                [&] { Op::run(in_view, tensor_view<output>(out.data(), {12}), quant_params{}); });
    check_error(mismatch, {Op::name, "dimension 0", "3", "4"}, [&] {
      Op::run(in_view, tensor_view<output>(out.data(), {4, 3}), quant_params{});
    });
    check_error(mismatch, {Op::name, "dimension 1", "4", "2"}, [&] {
      Op::run(in_view, tensor_view<output>(out.data(), {3, 2}),
              channel_quant_params{0, {1.0F, 1.0F, 1.0F}, {0, 0, 0}});
    });
  }
  SUBCASE("null data") {
    check_error(invalid, {Op::name, "null", "12"}, [&] {
      Op::run(std::span<const input>(static_cast<const input*>(nullptr), 12), out.span(),
              quant_params{});
    });
    check_error(invalid, {Op::name, "null", "12"}, [&] {
      Op::run(in, std::span<output>(static_cast<output*>(nullptr), 12), quant_params{});
    });
    check_error(invalid, {Op::name, "null", "12"}, [&] {  // two null pointers do not overlap
      Op::run(std::span<const input>(static_cast<const input*>(nullptr), 12),
              std::span<output>(static_cast<output*>(nullptr), 12), quant_params{});
    });
    check_error(invalid, {Op::name, "null", "12"}, [&] {
      Op::run(tensor_view<const input>(nullptr, {3, 4}), out_view, quant_params{});
    });
    check_error(invalid, {Op::name, "null", "12"}, [&] {
      Op::run(in_view, tensor_view<output>(nullptr, {3, 4}),
              channel_quant_params{0, {1.0F, 1.0F, 1.0F}, {0, 0, 0}});
    });
  }
  SUBCASE("channels") {
    check_error(invalid, {Op::name, "axis 2", "rank 2"}, [&] {
      Op::run(in_view, out_view, channel_quant_params{2, {1.0F}, {0}});
    });
    check_error(invalid, {Op::name, "axis 0", "rank 0"}, [&] {
      Op::run(tensor_view<const input>(values.data(), {}), tensor_view<output>(out.data(), {}),
              channel_quant_params{0, {1.0F}, {0}});
    });
    check_error(invalid, {Op::name, "axis 100"}, [&] {
      Op::run(in_view, out_view, channel_quant_params{100, {1.0F}, {0}});
    });
    check_error(mismatch, {Op::name, "2 scales", "3 zero points", "3 channels"}, [&] {
      Op::run(in_view, out_view, channel_quant_params{0, {1.0F, 1.0F}, {0, 0, 0}});
    });
    check_error(mismatch, {Op::name, "4 scales", "3 zero points", "4 channels"}, [&] {
      Op::run(in_view, out_view, channel_quant_params{1, {1.0F, 1.0F, 1.0F, 1.0F}, {0, 0, 0}});
    });
    check_error(mismatch, {Op::name, "0 scales"},
                [&] { Op::run(in_view, out_view, channel_quant_params{}); });
  }
  CHECK(out.holds());
}

TEST_CASE("requantize: biases without data") {
  const std::int32_t sums[4] = {1, 2, 3, 4};
  std::uint8_t out[4] = {9, 9, 9, 9};
  constexpr std::int32_t* null = nullptr;
  check_error(invalid, {"requantize", "null data with 1 biases"}, [&] {
    detent::requantize(std::span(sums), std::span(out), detent::quant_params{}, {},
                       std::span<const std::int32_t>(null, 1));
  });
  check_error(invalid, {"requantize", "null data with 2 biases"}, [&] {
    detent::requantize(
        tensor_view<const std::int32_t>(sums, {2, 2}), tensor_view<std::uint8_t>(out, {2, 2}),
        channel_quant_params{1, {1.0F, 1.0F}, {0, 0}}, {}, std::span<const std::int32_t>(null, 2));
  });
  check_error(mismatch, {"requantize", "2 biases for 1 multipliers"}, [&] {
    detent::requantize(std::span(sums), std::span(out), detent::quant_params{}, {},
                       std::span<const std::int32_t>(null, 2));
  });
  CHECK(std::count(std::begin(out), std::end(out), 9) == 4);
}

TEST_CASE("tensor_view") {
  const float x[1] = {};
  const std::vector<std::size_t> nine(9, 1);
  check_error(invalid, {"tensor_view", "rank 9", "8"},
              [&] { static_cast<void>(tensor_view<const float>(x, nine)); });
  const std::size_t shape[] = {1, 1};
  const std::ptrdiff_t strides[] = {1};
  check_error(mismatch, {"tensor_view", "1 strides", "rank 2"},
              [&] { static_cast<void>(tensor_view<const float>(x, shape, strides)); });
}

TEST_CASE("params_from_range") {
  const auto attempt = [](float lower, float upper, detent::quant_scheme scheme) {
    return [=] { static_cast<void>(detent::params_from_range({lower, upper}, scheme)); };
  };
  constexpr auto u8 = detent::asymmetric<std::uint8_t>;
  check_error(invalid, {"params_from_range", "nan", "finite"}, attempt(quiet_nan, 1.0F, u8));
  check_error(invalid, {"params_from_range", "nan", "finite"}, attempt(0.0F, quiet_nan, u8));
  check_error(invalid, {"params_from_range", "-inf .. 1"}, attempt(-infinity, 1.0F, u8));
  check_error(invalid, {"params_from_range", "0 .. inf"}, attempt(0.0F, infinity, u8));
  check_error(invalid, {"params_from_range", "2 .. 1"}, attempt(2.0F, 1.0F, u8));
  check_error(invalid, {"params_from_range", "grid 5..5"}, attempt(0.0F, 1.0F, {{5, 5}, false}));
  check_error(invalid, {"params_from_range", "grid 5..4"}, attempt(0.0F, 1.0F, {{5, 4}, true}));
  // Its difference is beyond 32 bits, and positive in the lower ones.
  check_error(invalid, {"params_from_range", "grid 2049560204..-1057792080"},
              attempt(0.0F, 1.0F, {{2049560204, -1057792080}, false}));
}

TEST_CASE("pack_weights") {
  const std::int8_t w[12] = {};
  const matrix_view<const std::int8_t> view(w, 3, 4);
  const auto attempt = [&](const detent::weight_options& options) {
    return [=] { static_cast<void>(detent::pack_weights(view, options)); };
  };
  const float scales[] = {1.0F, 1.0F, 1.0F};
  const std::int32_t numbers[] = {0, 0, 0, 0, 0};
  check_error(invalid, {"pack_weights", "null", "3 x 4"}, [] {
    static_cast<void>(detent::pack_weights(matrix_view<const std::int8_t>(nullptr, 3, 4)));
  });
  check_error(mismatch, {"pack_weights", "3 scales", "4 columns"}, attempt({.scales = scales}));
  check_error(mismatch, {"pack_weights", "5 zero points", "4 columns"},
              attempt({.zero_points = numbers}));
  check_error(mismatch, {"pack_weights", "5 biases", "4 columns"}, attempt({.bias = numbers}));
  for (const bad_scale& s : bad_scales) {
    const float values[] = {1.0F, 1.0F, 1.0F, s.value};
    check_error(invalid, {"pack_weights", s.text}, attempt({.scales = values}));
    check_error(invalid, {"pack_weights", s.text}, attempt({.scales = {&s.value, 1}}));
  }
  for (const std::int32_t z : {-129, 128}) {
    const std::int32_t values[] = {0, 0, z, 0};
    check_error(invalid, {"pack_weights", "zero point " + std::to_string(z), "-128..127"},
                attempt({.zero_points = values}));
  }
}

TEST_CASE("sizes whose products would wrap") {
  constexpr std::size_t huge = std::size_t{1} << 60U;
  const std::int8_t w[1] = {1};
  const float f[1] = {1.0F};
  struct extents {
    std::size_t rows, columns;
  };
  for (const extents& e : {extents{huge, 1},
                           {1, huge},
                           {huge, 0},
                           {0, huge},
                           {std::size_t{1} << 32U, std::size_t{1} << 32U}}) {
    INFO(e.rows, " x ", e.columns);
    const std::initializer_list<std::string_view> words = {"more than 281474976710656 elements"};
    const matrix_view<const std::int8_t> bytes(w, e.rows, e.columns);
    check_error(invalid, words, [&] { static_cast<void>(detent::pack_weights(bytes)); });
    check_error(invalid, words, [&] { static_cast<void>(detent::pack_int4_weights(bytes)); });
    check_error(invalid, words, [&] {
      static_cast<void>(detent::packed_floats(matrix_view<const float>(f, e.rows, e.columns), {}));
    });
  }
  // 2^33 x 2^31 = 2^64 weights of which the caller has none.
  constexpr std::size_t many = std::size_t{1} << 33U;
  constexpr std::size_t other = std::size_t{1} << 31U;
  for (const detent::filter_shape& shape : {detent::filter_shape{many, other, 1, 1, 1},
                                            {other, many, 1, 1, 1},
                                            {many, 1, 1, other, 1},
                                            {huge, huge, huge, 1, 1},
                                            {huge, 0, 1, 1, 1}}) {
    check_error(invalid, {"convolution", "elements"},
                [&] { static_cast<void>(detent::packed_filters(shape, {})); });
    check_error(invalid, {"convolution", "elements"},
                [&] { static_cast<void>(detent::packed_float_filters(shape, {}, {})); });
  }
  // No weights at all, but loops over groups and taps that would not end.
  for (const detent::filter_shape& shape :
       {detent::filter_shape{0, 0, huge, 1, 1}, {huge, 0, huge, 1, 1}, {0, huge, huge, 1, 1}}) {
    check_error(mismatch, {"convolution", "groups"},
                [&] { static_cast<void>(detent::packed_filters(shape, {})); });
  }
  const detent::packed_filters tall({1, 0, 1, std::size_t{1} << 47U, 1}, {});
  CHECK(tall.shape().size() == 0);
  const std::int8_t weights[4] = {1, 1, 1, 1};
  const detent::packed_filters filters({4, 1, 1, 1, 1}, weights);
  const float float_weights[4] = {1, 1, 1, 1};
  const detent::packed_float_filters float_filters({4, 1, 1, 1, 1}, float_weights, {});
  const std::uint8_t in[1] = {1};
  untouched<std::int32_t> out(4);
  untouched<float> float_out(4);
  // 4 (2^62 + 1) outputs are 4 modulo 2^64.
  for (const std::size_t batch : {(std::size_t{1} << 62U) + 1, huge}) {
    const detent::window window{.batch = batch};
    check_error(invalid, {"convolution", "elements"},
                [&] { detent::convolve(std::span(in), filters, window, out.span()); });
    check_error(invalid, {"convolution", "elements"},
                [&] { detent::convolve(std::span(f), float_filters, window, float_out.span()); });
  }
  CHECK(out.holds());
  CHECK(float_out.holds());
}

TEST_CASE("what was moved from is empty, and may be used") {
  const std::int8_t w[4] = {-128, -128, 127, 127};
  const std::uint8_t lhs[2] = {255, 255};
  detent::packed_weights from = detent::pack_weights({w, 2, 2});
  const detent::packed_weights copy = from;
  const detent::packed_weights to = std::move(from);
  CHECK(from.depth() == 0);  // NOLINT(bugprone-use-after-move): that is what is tested
  CHECK(from.columns() == 0);
  CHECK(from.scales().empty());
  CHECK(from.slices().size() == 1);
  CHECK(from.corrected_pairs() == 0);
  CHECK(!from.has_zero_points());
  CHECK(from.certificate().accumulator_bound == 0);
  from.prepare();
  CHECK(detent::packed_weights::load(from.save()).columns() == 0);
  std::int32_t none = 42;
  detent::gemm({lhs, 2, 0}, from, matrix_view<std::int32_t>(&none, 2, 0));
  CHECK(none == 42);
  for (const detent::packed_weights* full : {&copy, &to}) {
    std::int32_t sums[2] = {};
    detent::gemm({lhs, 1, 2}, *full, matrix_view<std::int32_t>(sums, 1, 2));
    CHECK(sums[0] == 255 * -1);
    CHECK(full->corrected_pairs() == to.corrected_pairs());
  }
  from = copy;
  CHECK(from.columns() == 2);

  const float floats[4] = {1, 2, 3, 4};
  detent::packed_floats float_from({floats, 2, 2}, {});
  const detent::packed_floats float_to = std::move(float_from);
  CHECK(float_from.depth() + float_from.columns() == 0);  // NOLINT(bugprone-use-after-move)
  CHECK(float_to.depth() == 2);
  detent::packed_filters filters_from({2, 2, 2, 1, 1}, std::span(w, 2));
  const detent::packed_filters filters_to = std::move(filters_from);
  CHECK(filters_from.shape().out_channels == 0);  // NOLINT(bugprone-use-after-move)
  CHECK(!filters_from.is_depthwise());
  CHECK(filters_to.is_depthwise());
  const std::int8_t codes[4] = {-8, 7, 0, 1};
  auto nibbles_from = detent::pack_int4_weights(matrix_view<const std::int8_t>(codes, 2, 2));
  const auto nibbles_to = std::move(nibbles_from);
  CHECK(nibbles_from.depth() + nibbles_from.columns() == 0);  // NOLINT(bugprone-use-after-move)
  CHECK(nibbles_to.columns() == 2);

  // Moved to itself, through a name that compilers do not see through.
  detent::packed_weights* const same = &from;
  from = std::move(*same);
  CHECK(from.depth() == 0);
  CHECK(from.columns() == 0);
  detent::gemm({lhs, 2, 0}, from, matrix_view<std::int32_t>(&none, 2, 0));
  CHECK(none == 42);
}

TEST_CASE("packed_floats") {
  const float w[12] = {};
  const float bias[3] = {};
  check_error(invalid, {"packed_floats:", "null", "3 x 4"}, [] {
    static_cast<void>(detent::packed_floats(matrix_view<const float>(nullptr, 3, 4), {}));
  });
  check_error(mismatch, {"packed_floats:", "3 biases", "4 columns"}, [&] {
    static_cast<void>(detent::packed_floats(matrix_view<const float>(w, 3, 4), bias));
  });
  const float* const null = nullptr;
  check_error(invalid, {"packed_floats:", "null biases", "4"}, [&] {
    static_cast<void>(detent::packed_floats(matrix_view<const float>(w, 3, 4), {null, 4}));
  });
  check_error(invalid, {"convolution:", "null biases", "4"}, [&] {
    static_cast<void>(detent::packed_float_filters({4, 3, 1, 1, 1}, w, {null, 4}));
  });
}

namespace {

/// Shapes that gemm refuses, whatever the types. `weights` are 3 x 4.
template <class In, class Weights, class Out>
void check_gemm_shapes(const Weights& weights) {
  const std::vector<In> lhs(60, In{1});
  untouched<Out> out(60);
  const auto attempt = [&](matrix_view<const In> a, matrix_view<Out> c) {
    return [&weights, a, c] { detent::gemm(a, weights, c); };
  };
  const matrix_view<const In> a(lhs.data(), 5, 3);
  const matrix_view<Out> c(out.data(), 5, 4);
  check_error(mismatch, {"gemm", "K is 4", "3"}, attempt({lhs.data(), 5, 4}, c));
  check_error(mismatch, {"gemm", "K is 2", "3"}, attempt({lhs.data(), 5, 2}, c));
  check_error(mismatch, {"gemm", "4 x 4", "5 x 4"}, attempt(a, {out.data(), 4, 4}));
  check_error(mismatch, {"gemm", "5 x 5", "5 x 4"}, attempt(a, {out.data(), 5, 5}));
  check_error(invalid, {"gemm", "null", "5 x 3"}, attempt({nullptr, 5, 3}, c));
  check_error(invalid, {"gemm", "null", "5 x 4"}, attempt(a, {nullptr, 5, 4}));
  check_error(invalid, {"gemm", "overlap", "left side", "2"}, attempt({lhs.data(), 5, 3, 2}, c));
  check_error(invalid, {"gemm", "overlap", "output", "3"}, attempt(a, {out.data(), 5, 4, 3}));
  check_error(invalid, {"gemm", "overlap", "0"}, attempt(a, {out.data(), 5, 4, 0}));
  check_error(invalid, {"gemm", "overlap", "-4"}, attempt(a, {out.data() + 16, 5, 4, -4}));
  check_error(invalid, {"gemm", "overlap", "-3"}, attempt({lhs.data() + 12, 5, 3, -3}, c));
  check_error(unsupported, {"gemm", "dense", "left side", "2"},
              attempt({lhs.data(), 5, 3, 6, 2}, c));
  check_error(unsupported, {"gemm", "dense", "output", "2"}, attempt(a, {out.data(), 5, 4, 8, 2}));
  CHECK(out.holds());
  // One row has no stride, one column none within a row.
  detent::gemm(matrix_view<const In>(lhs.data(), 1, 3, 0), weights,
               matrix_view<Out>(out.data(), 1, 4, 0));
  CHECK(!out.holds());
}

/// Epilogues that gemm and convolve refuse; `run` calls one of them with an output of type T.
template <class T, class Run>
void check_epilogues(const char* where, const Run& run) {
  const auto attempt = [&](const detent::epilogue_options& o) { return [&run, o] { run(o); }; };
  if constexpr (!std::is_same_v<T, std::int32_t>) {
    for (const bad_scale& s : bad_scales) {
      check_error(invalid, {where, s.text}, attempt({.lhs_scale = s.value}));
    }
  }
  check_error(invalid, {where, "zero point -1", "0..255"}, attempt({.lhs_zero_point = -1}));
  check_error(invalid, {where, "zero point 256", "0..255"}, attempt({.lhs_zero_point = 256}));
  if constexpr (detent::quantized_type<T>) {
    constexpr grid full = detent::full_grid<T>;
    for (const bad_scale& s : bad_scales) {
      check_error(invalid, {where, s.text}, attempt({.output = {s.value, 0}}));
    }
    for (const std::int32_t z : {full.qmin - 1, full.qmax + 1}) {
      check_error(invalid, {where, "zero point " + std::to_string(z)},
                  attempt({.output = {1.0F, z}}));
    }
    check_error(invalid, {where, "grid", std::to_string(full.qmin - 1)},
                attempt({.levels = {full.qmin - 1, 5}}));
    check_error(invalid, {where, "grid", std::to_string(full.qmax + 1)},
                attempt({.levels = {5, full.qmax + 1}}));
    check_error(invalid, {where, "grid 10..5"}, attempt({.levels = {10, 5}}));
    check_error(invalid, {where, "multiplier", "1e+20", "1e-20", "finite"},
                attempt({.lhs_scale = 1e20F, .output = {1e-20F, 0}}));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("gemm", T, std::int32_t, float, std::uint8_t, std::int8_t) {
  const std::int8_t w[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const detent::packed_weights weights = detent::pack_weights({w, 3, 4});
  check_gemm_shapes<std::uint8_t, detent::packed_weights, T>(weights);

  const std::uint8_t lhs[3] = {1, 2, 3};
  untouched<T> out(4);
  check_epilogues<T>("gemm", [&](const detent::epilogue_options& o) {
    detent::gemm(matrix_view<const std::uint8_t>(lhs, 1, 3), weights,
                 matrix_view<T>(out.data(), 1, 4), o);
  });
  CHECK(out.holds());
}

TEST_CASE("products: each scale has a name in messages, and sums are not scaled") {
  const std::int8_t ones[4] = {1, 1, 1, 1};
  const detent::packed_weights weights = detent::pack_weights({ones, 2, 2});
  const std::uint8_t lhs[4] = {1, 2, 3, 4};
  const matrix_view<const std::uint8_t> a(lhs, 2, 2);
  untouched<std::uint8_t> bytes(4);
  untouched<float> reals(4);
  const auto to_bytes = [&](const detent::epilogue_options& o) {
    return [&, o] { detent::gemm(a, weights, matrix_view<std::uint8_t>(bytes.data(), 2, 2), o); };
  };
  const auto to_reals = [&](const detent::epilogue_options& o) {
    return [&, o] { detent::gemm(a, weights, matrix_view<float>(reals.data(), 2, 2), o); };
  };
  const float row_scales[] = {1.0F, -2.0F};
  const std::int32_t row_zero_points[] = {0, 256};
  check_error(invalid, {"gemm: lhs_scale -2 "}, to_reals({.lhs_scale = -2.0F}));
  check_error(invalid, {"gemm: output scale -2 "}, to_bytes({.output = {-2.0F, 0}}));
  check_error(invalid, {"gemm: scale -2 of left row 1"}, to_reals({.lhs_scales = row_scales}));
  check_error(invalid, {"gemm: zero point 256 of left row 1"},
              to_reals({.lhs_zero_points = row_zero_points}));
  const float* const null = nullptr;
  const std::int32_t* const null_integers = nullptr;
  check_error(invalid, {"gemm: null biases", "2"}, to_reals({.bias = {null, 2}}));
  check_error(invalid, {"gemm: null scales of rows", "2"}, to_reals({.lhs_scales = {null, 2}}));
  check_error(invalid, {"gemm: null zero points of rows", "2"},
              to_reals({.lhs_zero_points = {null_integers, 2}}));
  CHECK(bytes.holds());
  CHECK(reals.holds());
  // Sums of integers have no scale.
  std::int32_t sums[4] = {};
  detent::gemm(a, weights, matrix_view<std::int32_t>(sums, 2, 2), {.lhs_scale = quiet_nan});
  CHECK(sums[0] == 3);
  CHECK(sums[3] == 7);
  const detent::packed_filters filters({1, 1, 1, 1, 1}, std::vector<std::int8_t>{1});
  detent::convolve(std::span<const std::uint8_t>(lhs), filters, {.in_height = 2, .in_width = 2},
                   std::span<std::int32_t>(sums), {.lhs_scale = 0.0F});
  CHECK(sums[3] == 4);
  untouched<float> pixels(4);
  check_error(invalid, {"convolution: null biases", "1"}, [&] {
    detent::convolve(std::span<const std::uint8_t>(lhs), filters, {.in_height = 2, .in_width = 2},
                     pixels.span(), {.bias = {null, 1}});
  });
  CHECK(pixels.holds());
}

TEST_CASE("errors name the channel, the block or the column of a wrong parameter") {
  const std::vector<float> x(6);
  untouched<std::int8_t> q(6);
  const std::size_t shape[] = {2, 3};
  const tensor_view<const float> in(x.data(), shape);
  const tensor_view<std::int8_t> out(q.data(), shape);
  check_error(invalid, {"quantize: scale -1 of channel 2 "}, [&] {
    detent::quantize(in, out, channel_quant_params{1, {1.0F, 1.0F, -1.0F}, {0, 0, 0}});
  });
  check_error(invalid, {"quantize: zero point 300 of channel 1 "}, [&] {
    detent::quantize(in, out, channel_quant_params{1, {1.0F, 1.0F, 1.0F}, {0, 300, 0}});
  });
  check_error(invalid, {"quantize: scale 0 of block 3 "}, [&] {
    detent::quantize(in, out,
                     detent::block_quant_params{1, 2, {1.0F, 1.0F, 1.0F, 0.0F}, {0, 0, 0, 0}});
  });
  check_error(invalid, {"quantize: scale 0 is "}, [&] { detent::quantize(in, out, {0.0F, 0}); });
  CHECK(q.holds());
  const std::int8_t w[6] = {};
  const float scales[] = {1.0F, 0.0F, 1.0F};
  const std::int32_t zero_points[] = {0, 0, -129};
  check_error(invalid, {"pack_weights: scale 0 of column 1 "}, [&] {
    static_cast<void>(detent::pack_weights({w, 2, 3}, {.scales = scales}));
  });
  check_error(invalid, {"pack_weights: zero point -129 of column 2 "}, [&] {
    static_cast<void>(detent::pack_weights({w, 2, 3}, {.zero_points = zero_points}));
  });
}

TEST_CASE("float gemm") {
  const float w[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const detent::packed_floats weights(matrix_view<const float>(w, 3, 4), {});
  check_gemm_shapes<float, detent::packed_floats, float>(weights);

  const float lhs[6] = {1, 2, 3, 4, 5, 6};
  const float residual[20] = {};
  untouched<float> out(8);
  const auto attempt = [&](matrix_view<const float> added) {
    return [&, added] {
      detent::gemm(matrix_view<const float>(lhs, 2, 3), weights,
                   matrix_view<float>(out.data(), 2, 4),
                   detent::float_epilogue_options{.residual = added});
    };
  };
  check_error(mismatch, {"gemm", "residual", "1 x 4", "2 x 4"}, attempt({residual, 1, 4}));
  check_error(mismatch, {"gemm", "residual", "2 x 5", "2 x 4"}, attempt({residual, 2, 5}));
  check_error(unsupported, {"gemm", "residual", "dense", "2"}, attempt({residual, 2, 4, 8, 2}));
  check_error(unsupported, {"gemm", "residual", "-4"}, attempt({residual + 4, 2, 4, -4}));
  CHECK(out.holds());
}

TEST_CASE("filters") {
  const std::vector<std::int8_t> w(24, 1);
  const auto attempt = [&](const detent::filter_shape& f, std::size_t size,
                           const detent::weight_options& options = {}) {
    return [=, &w] {
      static_cast<void>(detent::packed_filters(f, std::span(w).first(size), options));
    };
  };
  check_error(mismatch, {"convolution", "3 input", "4 output", "2 groups"},
              attempt({4, 3, 2, 1, 1}, 6));
  check_error(mismatch, {"convolution", "4 input", "3 output", "2 groups"},
              attempt({3, 4, 2, 1, 1}, 6));
  check_error(mismatch, {"convolution", "0 groups"}, attempt({4, 4, 0, 1, 1}, 16));
  check_error(invalid, {"convolution", "kernel 0 x 3"}, attempt({2, 2, 1, 0, 3}, 0));
  check_error(invalid, {"convolution", "kernel 3 x 0"}, attempt({2, 2, 1, 3, 0}, 0));
  check_error(mismatch, {"convolution", "23 weights", "24"}, attempt({2, 2, 1, 2, 3}, 23));
  check_error(invalid, {"convolution", "null", "24"}, [] {
    const std::span<const std::int8_t> none(static_cast<const std::int8_t*>(nullptr), 24);
    static_cast<void>(detent::packed_filters({2, 2, 1, 2, 3}, none));
  });
  const float scales[3] = {1.0F, 1.0F, 1.0F};
  const std::int32_t numbers[3] = {};
  // Groups, no groups, depthwise.
  for (const detent::filter_shape& f :
       {detent::filter_shape{4, 2, 2, 1, 1}, {4, 6, 1, 1, 1}, {4, 4, 4, 2, 3}}) {
    check_error(mismatch, {"3", "4"}, attempt(f, f.size(), {.scales = scales}));
    check_error(mismatch, {"3", "4"}, attempt(f, f.size(), {.zero_points = numbers}));
    check_error(mismatch, {"3", "4"}, attempt(f, f.size(), {.bias = numbers}));
    const std::vector<float> floats(f.size(), 1.0F);
    check_error(mismatch, {"convolution", "3 biases", "4 channels"},
                [&] { static_cast<void>(detent::packed_float_filters(f, floats, scales)); });
    for (const bad_scale& s : bad_scales) {
      const float values[] = {1.0F, 1.0F, 1.0F, s.value};
      check_error(invalid, {s.text}, attempt(f, f.size(), {.scales = values}));
    }
    const std::int32_t zero_points[] = {0, 0, 0, 128};
    check_error(invalid, {"zero point 128"}, attempt(f, f.size(), {.zero_points = zero_points}));
  }
}

TEST_CASE_TEMPLATE("convolve", T, std::int32_t, float, detent::bfloat16, std::uint8_t,
                   std::int8_t) {
  // With all channels in one, and depthwise; channels last and first.
  using detent::activation_layout;
  for (const auto& [groups, layout] : {std::pair(std::size_t{1}, activation_layout::nhwc),
                                       std::pair(std::size_t{2}, activation_layout::nhwc),
                                       std::pair(std::size_t{1}, activation_layout::nchw),
                                       std::pair(std::size_t{2}, activation_layout::nchw)}) {
    const detent::filter_shape f{2, 2, groups, 2, 2};
    const std::vector<std::int8_t> w(f.size(), 1);
    const std::vector<float> float_w(f.size(), 1.0F);
    const detent::packed_filters filters(f, w);
    const detent::packed_float_filters float_filters(f, float_w, {});
    const detent::window good{
        .in_height = 3, .in_width = 3, .input_layout = layout, .output_layout = layout};
    const std::vector<std::uint8_t> in(18, 1);
    const std::vector<float> float_in(18, 1.0F);
    untouched<T> out(8);
    untouched<float> float_out(8);

    const auto refuses = [&](error_kind kind, std::initializer_list<std::string_view> words,
                             const detent::window& window, std::size_t in_size,
                             std::size_t out_size) {
      check_error(kind, words, [&] {
        detent::convolve(std::span(in).first(in_size), filters, window, out.span().first(out_size));
      });
      check_error(kind, words, [&] {
        detent::convolve(std::span(float_in).first(in_size), float_filters, window,
                         float_out.span().first(out_size));
      });
    };
    refuses(mismatch, {"convolution", "17", "18"}, good, 17, 8);
    refuses(mismatch, {"convolution", "7", "8"}, good, 18, 7);
    for (std::size_t detent::window::*member :
         {&detent::window::stride_height, &detent::window::stride_width,
          &detent::window::dilation_height, &detent::window::dilation_width}) {
      detent::window bad = good;
      bad.*member = 0;
      refuses(invalid, {"convolution", "positive"}, bad, 18, 8);
    }
    const std::span<const std::uint8_t> null_in(static_cast<const std::uint8_t*>(nullptr), 18);
    const std::span<T> null_out(static_cast<T*>(nullptr), 8);
    check_error(invalid, {"convolution", "null"},
                [&] { detent::convolve(null_in, filters, good, out.span()); });
    check_error(invalid, {"convolution", "null"},
                [&] { detent::convolve(std::span(in), filters, good, null_out); });
    check_epilogues<T>("convolution", [&](const detent::epilogue_options& o) {
      detent::convolve(std::span(in), filters, good, out.span(), o);
    });

    const auto refuses_epilogue = [&](error_kind kind,
                                      std::initializer_list<std::string_view> words,
                                      const detent::epilogue_options& o) {
      check_error(kind, words,
                  [&] { detent::convolve(std::span(in), filters, good, out.span(), o); });
    };
    const std::vector<float> reals(8, 1.0F);
    const std::vector<std::int32_t> integers(8, 1);
    refuses_epilogue(unsupported, {"convolution", "rows"}, {.lhs_scales = reals});
    refuses_epilogue(unsupported, {"convolution", "rows"}, {.lhs_zero_points = integers});
    refuses_epilogue(unsupported, {"convolution", "addends"}, {.addend = {integers.data(), 4, 2}});
    // Pixels, or planes of four of them.
    const bool planes = layout == activation_layout::nchw;
    const std::size_t rows = planes ? 2 : 4;
    const std::size_t columns = planes ? 4 : 2;
    const std::string shape = std::to_string(rows) + " x " + std::to_string(columns);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, detent::bfloat16>) {
      refuses_epilogue(mismatch, {"convolution", "3 biases", "2 channels"},
                       {.bias = std::span(reals).first(3)});
      const auto refuses_residual = [&](error_kind kind,
                                        std::initializer_list<std::string_view> words,
                                        matrix_view<const float> residual) {
        refuses_epilogue(kind, words, {.residual = residual});
        check_error(kind, words, [&] {
          detent::convolve(std::span(float_in), float_filters, good, float_out.span(),
                           detent::float_epilogue_options{.residual = residual});
        });
      };
      refuses_residual(mismatch, {"convolution", "residual", "1 x 8", shape}, {reals.data(), 1, 8});
      refuses_residual(mismatch, {"convolution", "residual", shape}, {reals.data(), columns, rows});
      refuses_residual(unsupported, {"convolution", "residual", "column stride is 2"},
                       {reals.data(), rows, columns, 1, 2});
      refuses_residual(unsupported, {"convolution", "residual", "row stride is -4"},
                       {reals.data(), rows, columns, -4});
      refuses_residual(unsupported, {"convolution", "residual must be dense", "row stride is 5"},
                       {reals.data(), rows, columns, 5});
    } else {
      refuses_epilogue(unsupported, {"convolution", "real biases"}, {.bias = reals});
      refuses_epilogue(unsupported, {"convolution", "residuals"},
                       {.residual = {reals.data(), rows, columns}});
    }

    if constexpr (std::is_same_v<T, std::int32_t>) {
      const std::int32_t huge = std::numeric_limits<std::int32_t>::max();
      const detent::packed_filters overflowing(f, w, {.bias = {&huge, 1}});
      const std::int64_t sum = huge + std::int64_t{4} * static_cast<std::int64_t>(2 / groups);
      check_error(error_kind::overflow,
                  {"convolution", std::to_string(sum), "pixel 0, channel 0", "32 bits"},
                  [&] { detent::convolve(std::span(in), overflowing, good, out.span()); });
    }
    CHECK(out.holds());
    CHECK(float_out.holds());
  }
}

TEST_CASE("messages are one line, whatever names they hold") {
  const std::string name = "a\nb\x1b[31m\x7f\tc \xc2\x9b m\xc3\xa9 \xc2\xa0";
  CHECK(detent::one_line(name) == "a?b?[31m??c ? m\xc3\xa9 \xc2\xa0");
  CHECK(detent::one_line("\xc2") == "\xc2");
  CHECK(detent::one_line("").empty());
  check_error(error_kind::bad_file, {"'a?b?[31m??c"},
              [&] { detent::raise(error_kind::bad_file, "detent: '" + name + "'"); });
  check_error(error_kind::bad_file, {"'a?b?[31m??c"},
              [&] { detent::require(false, error_kind::bad_file, "'", name, "'"); });
}

TEST_CASE("an error is a runtime_error and knows its kind") {
  const detent::error e(error_kind::bad_file, "text");
  CHECK(e.kind() == error_kind::bad_file);
  CHECK(std::string(e.what()) == "text");
  CHECK_THROWS_AS(throw e, std::runtime_error);
}

TEST_CASE("one wrong parameter among many is found, and the extremes are right") {
  constexpr std::size_t n = 37;
  const std::vector<float> x(n, 1.0F);
  std::vector<float> scales(n, 0.5F);
  std::vector<std::int32_t> zero_points(n, 3);
  // Whether all outputs were written; 42 is no result of these inputs.
  const auto quantize = [&](auto q, grid levels) {
    std::vector<decltype(q)> out(n, decltype(q){42});
    detent::quantize(std::span<const float>(x), std::span(out),
                     channel_quant_params{0, scales, zero_points}, levels);
    return std::count(out.begin(), out.end(), decltype(q){42}) == 0;
  };
  constexpr float tiny = std::numeric_limits<float>::denorm_min();
  constexpr float largest = std::numeric_limits<float>::max();
  constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t highest = std::numeric_limits<std::int32_t>::max();
  for (const std::size_t at : {std::size_t{0}, std::size_t{3}, std::size_t{31}, n - 1}) {
    INFO("position ", at);
    for (const float wrong : {0.0F, -0.0F, -1.0F, -tiny, -largest, quiet_nan,
                              std::copysign(quiet_nan, -1.0F), infinity, -infinity}) {
      INFO("scale ", wrong);
      scales[at] = wrong;
      check_error(invalid, {"scale"}, [&] { quantize(std::uint8_t{}, {0, 255}); });
    }
    for (const float right : {tiny, largest, 1.0F}) {
      scales[at] = right;
      CHECK(quantize(std::uint8_t{}, {0, 255}));
    }
    for (const std::int32_t wrong : {lowest, lowest + 1, -129, 128, highest - 1, highest}) {
      INFO("zero point ", wrong);
      zero_points[at] = wrong;
      check_error(invalid, {"zero point"}, [&] { quantize(std::int8_t{}, {-128, 127}); });
    }
    for (const std::int32_t right : {-128, 127, 0}) {
      zero_points[at] = right;
      CHECK(quantize(std::int8_t{}, {-128, 127}));
    }
  }
}

TEST_CASE("errors: views of more elements than there can be") {
  constexpr std::size_t huge = std::size_t{1} << 60U;
  const std::vector<float> x(16, 1.0F);
  const std::size_t shape[] = {huge + 1, 16};  // 16 elements if the product wrapped
  const std::ptrdiff_t repeated[] = {0, 1};
  const auto refused = [](const auto& call) { check_error(invalid, {"makes more than"}, call); };
  refused([&] { static_cast<void>(tensor_view<const float>(x.data(), shape)); });
  refused([&] { static_cast<void>(tensor_view<const float>(x.data(), shape, repeated)); });
  // The members of a view can be set to anything.
  tensor_view<const float> view(x.data(), {1, 16});
  view.shape[0] = huge + 1;
  view.strides[0] = 0;
  CHECK(view.size() == std::numeric_limits<std::size_t>::max());
  untouched<std::uint8_t> codes(16);
  refused([&] { detent::quantize(view, codes.span(), quant_params{1.0F, 0}); });
  untouched<float> reals(16);
  tensor_view<float> out(reals.data(), {1, 16});
  out.shape = view.shape;
  refused([&] { detent::fake_quantize(view, out, quant_params{1.0F, 0}, {0, 255}); });
  view.data = nullptr;
  refused([&] { detent::quantize(view, codes.span(), quant_params{1.0F, 0}); });
  CHECK(codes.holds());
  CHECK(reals.holds());
  view.shape[1] = 0;
  CHECK(view.size() == 0);
}
