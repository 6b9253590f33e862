// SPDX-License-Identifier: BSD-3-Clause
// The cells of the table in quantize.hpp: an operation on two formats, with a granularity, in
// random layouts, on every target, against reference.hpp bit for bit.
#ifndef DETENT_TESTS_ELEMENTWISE_CELLS_HPP
#define DETENT_TESTS_ELEMENTWISE_CELLS_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "for_each_target.hpp"
#include "random.hpp"
#include "scales.hpp"
#include "strided.hpp"

namespace test {

using detent::bfloat16;
using detent::float16;
using detent::float8_e4m3fn;
using detent::float8_e5m2;
using detent::full_grid;
using detent::grid;
using detent::int2;
using detent::int4;
using detent::packed_span;
using detent::quant_params;
using detent::uint2;
using detent::uint4;

constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, float>) {
    return "float";
  } else if constexpr (std::is_same_v<T, double>) {
    return "double";
  } else if constexpr (std::is_same_v<T, float16>) {
    return "float16";
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return "bfloat16";
  } else if constexpr (std::is_same_v<T, float8_e4m3fn>) {
    return "float8_e4m3fn";
  } else if constexpr (std::is_same_v<T, float8_e5m2>) {
    return "float8_e5m2";
  } else if constexpr (detent::packed_type<T>) {
    return T::bits == 4 ? (T::is_signed ? "int4" : "uint4") : (T::is_signed ? "int2" : "uint2");
  } else {
    return std::is_signed_v<T> ? (sizeof(T) == 1   ? "int8"
                                  : sizeof(T) == 2 ? "int16"
                                                   : "int32")
                               : (sizeof(T) == 1 ? "uint8" : "uint16");
  }
}

/// What an element of T is outside of memory.
template <class T>
struct plain {
  using type = T;
};
template <detent::packed_type T>
struct plain<T> {
  using type = typename T::value_type;
};
template <class T>
using plain_t = typename plain<T>::type;

/// Elements in some layout, all of them painted at first.
template <class T>
class elements {
 public:
  elements(random_source& random, const std::vector<std::size_t>& shape)
      : tensor_(test::random_layout<T>(random, shape, std::bit_cast<T>(paint()))) {}

  void set(const test::tensor_index& index, T value) { tensor_[index] = value; }
  [[nodiscard]] T get(const test::tensor_index& index) { return tensor_[index]; }
  [[nodiscard]] auto read() const { return detent::tensor_view<const T>(tensor_.view); }
  [[nodiscard]] auto write() const { return tensor_.view; }
  /// Memory, gaps included.
  [[nodiscard]] std::vector<T>& memory() { return tensor_.storage; }

 private:
  static auto paint() {
    if constexpr (sizeof(T) == 1) {
      return std::uint8_t{0x35};
    } else if constexpr (sizeof(T) == 2) {
      return std::uint16_t{0x3535};
    } else if constexpr (sizeof(T) == 4) {
      return std::uint32_t{0x35353535};
    } else {
      return std::uint64_t{0x3535353535353535};
    }
  }
  test::strided_tensor<T> tensor_;
};

template <detent::packed_type T>
class elements<T> {
 public:
  elements(random_source&, const std::vector<std::size_t>& shape) : shape_(shape) {
    for (const std::size_t extent : shape) {
      size_ *= extent;
    }
    bytes_.assign(detent::packed_size<T>(size_), 0);
  }
  void set(const test::tensor_index& index, plain_t<T> value) { write().set(flat(index), value); }
  [[nodiscard]] plain_t<T> get(const test::tensor_index& index) { return write().get(flat(index)); }
  [[nodiscard]] packed_span<const T> read() const {
    return packed_span<const T>(std::span<const std::uint8_t>(bytes_), size_);
  }
  [[nodiscard]] packed_span<T> write() {
    return packed_span<T>(std::span<std::uint8_t>(bytes_), size_);
  }
  [[nodiscard]] std::vector<std::uint8_t>& memory() { return bytes_; }

 private:
  [[nodiscard]] std::size_t flat(const test::tensor_index& index) const {
    std::size_t position = 0;
    for (std::size_t i = 0; i < shape_.size(); ++i) {
      position = position * shape_[i] + index[i];
    }
    return position;
  }
  std::vector<std::size_t> shape_;
  std::size_t size_ = 1;
  std::vector<std::uint8_t> bytes_;
};

// ------------------------------------------------------------------------------ the operations

template <class T, class Real>
T real_as(Real x) {
  if constexpr (detent::float_format<T>) {
    return detent::round_to<T>(x);
  } else {
    return static_cast<T>(x);
  }
}

template <class X, class Q>
struct quantizing {
  using input = X;
  using output = Q;
  static constexpr grid levels = full_grid<Q>;
  static constexpr bool has_bias = false;

  static X random_input(random_source& random, float scale) {
    const float span = static_cast<float>(levels.qmax - levels.qmin) + 8.0F;
    const float step = std::floor(random.real(-span, span));
    switch (random.integer(0, 5)) {
      case 0:
        return real_as<X>(step * scale);
      case 1:
        return real_as<X>((step + 0.5F) * scale);
      case 2:
        return real_as<X>(
            std::nextafter((step + 0.5F) * scale, random.chance(50) ? 0.0F : infinity));
      case 3:
        return real_as<X>(random.any_float());
      default:
        return real_as<X>(random.real(-span, span) * scale);
    }
  }
  static plain_t<Q> expected(X x, quant_params p, grid g, std::int32_t) {
    if constexpr (detent::float_format<X>) {
      return static_cast<plain_t<Q>>(detent::reference::quantize(detent::to_float(x), p, g));
    } else {
      return static_cast<plain_t<Q>>(detent::reference::quantize(x, p, g));
    }
  }
  template <class P>
  static void run(const elements<X>& in, elements<Q>& out, const P& p, grid g,
                  std::span<const std::int32_t>, const detent::execution& e) {
    detent::quantize(in.read(), out.write(), p, g, e);
  }
};

template <class Q, class Y>
struct dequantizing {
  using input = Q;
  using output = Y;
  static constexpr grid levels = [] {
    if constexpr (std::is_same_v<Q, std::int32_t>) {
      return grid{0, 0};
    } else {
      return full_grid<Q>;
    }
  }();
  static constexpr bool has_bias = false;

  static plain_t<Q> random_input(random_source& random, float) {
    if constexpr (std::is_same_v<Q, std::int32_t>) {
      return static_cast<std::int32_t>(random.bits()) >> random.integer(0, 31);
    } else {
      return static_cast<plain_t<Q>>(random.integer(levels.qmin, levels.qmax));
    }
  }
  static Y expected(plain_t<Q> q, quant_params p, grid, std::int32_t) {
    return real_as<Y>(detent::reference::dequantize(q, p));
  }
  template <class P>
  static void run(const elements<Q>& in, elements<Y>& out, const P& p, grid,
                  std::span<const std::int32_t>, const detent::execution& e) {
    detent::dequantize(in.read(), out.write(), p, e);
  }
};

template <class Q>
struct requantizing {
  using input = std::int32_t;
  using output = Q;
  static constexpr grid levels = full_grid<Q>;
  static constexpr bool has_bias = true;

  static std::int32_t random_input(random_source& random, float) {
    return static_cast<std::int32_t>(random.bits()) >> random.integer(0, 31);
  }
  static Q expected(std::int32_t acc, quant_params p, grid g, std::int32_t bias) {
    const auto sum = static_cast<std::int32_t>(static_cast<std::uint32_t>(acc) +
                                               static_cast<std::uint32_t>(bias));
    return static_cast<Q>(detent::reference::requantize(sum, p.scale, p.zero_point, g));
  }
  template <class P>
  static void run(const elements<std::int32_t>& in, elements<Q>& out, const P& p, grid g,
                  std::span<const std::int32_t> bias, const detent::execution& e) {
    detent::requantize(in.read(), out.write(), p, g, bias, e);
  }
};

// ------------------------------------------------------------------------------- the granularities

enum class granularity { tensor, channel, block };

/// Parameters of every granularity in one form, and which of them an element has.
struct parameters {
  granularity kind = granularity::tensor;
  std::size_t axis = 0, block_size = 1;
  std::vector<std::size_t> shape;  // of the parameters
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points, biases;

  [[nodiscard]] std::size_t of(const test::tensor_index& index) const {
    if (kind == granularity::tensor) {
      return 0;
    }
    if (kind == granularity::channel) {
      return index[axis];
    }
    std::size_t position = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      position = position * shape[i] + (i == axis ? index[i] / block_size : index[i]);
    }
    return position;
  }
};

template <class Op>
parameters random_parameters(random_source& random, granularity kind,
                             const std::vector<std::size_t>& shape, std::size_t axis, grid levels) {
  parameters p;
  p.kind = kind;
  p.axis = axis;
  p.shape = shape;
  // Powers of two have code of their own.
  p.block_size = random.chance(50) ? std::size_t{1} << random.size(0, 9) : random.size(1, 40);
  std::size_t count = 1;
  if (kind == granularity::channel) {
    count = shape[axis];
  } else if (kind == granularity::block) {
    p.shape[axis] = (shape[axis] + p.block_size - 1) / p.block_size;
    for (const std::size_t extent : p.shape) {
      count *= extent;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    p.scales.push_back(random.chance(90) ? random.real(0.01F, 0.3F)
                                         : test::hard_scales[random.size(0, 15)]);
    p.zero_points.push_back(random.integer(levels.qmin, levels.qmax));
    p.biases.push_back(random.chance(90) ? random.integer(-5000, 5000)
                                         : static_cast<std::int32_t>(random.bits()));
  }
  return p;
}

template <class Op>
void run(const elements<typename Op::input>& in, elements<typename Op::output>& out,
         const parameters& p, grid levels, bool biased, const detent::execution& e) {
  const std::span<const std::int32_t> bias =
      biased ? std::span<const std::int32_t>(p.biases) : std::span<const std::int32_t>();
  switch (p.kind) {
    case granularity::tensor:
      Op::run(in, out, quant_params{p.scales[0], p.zero_points[0]}, levels, bias, e);
      break;
    case granularity::channel:
      Op::run(in, out, detent::channel_quant_params{p.axis, p.scales, p.zero_points}, levels, bias,
              e);
      break;
    case granularity::block:
      Op::run(in, out, detent::block_quant_params{p.axis, p.block_size, p.scales, p.zero_points},
              levels, bias, e);
      break;
  }
}

template <class T>
bool same_memory(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// One cell: an operation on a shape with parameters of a granularity, on every target.
template <class Op>
void check_cell(random_source& random, granularity kind, const std::vector<std::size_t>& shape,
                const detent::execution& e = {}) {
  const std::size_t axis = shape.empty() ? 0 : random.size(0, shape.size() - 1);
  grid levels = Op::levels;
  if (!std::is_same_v<typename Op::output, float> && random.chance(40) &&
      levels.qmax > levels.qmin && !detent::float_format<typename Op::output>) {
    levels.qmin = random.integer(levels.qmin, levels.qmax);  // any bits inside of the container
    levels.qmax = random.integer(levels.qmin, levels.qmax);
  }
  const parameters p = random_parameters<Op>(random, kind, shape, axis, levels);
  const bool biased = Op::has_bias && random.chance(60);
  elements<typename Op::input> in(random, shape);
  elements<typename Op::output> out(random, shape);
  const auto painted = out.memory();
  test::for_each_index(shape, [&](const test::tensor_index& index) {
    const std::size_t i = p.of(index);
    const auto x = Op::random_input(random, p.scales[i]);
    in.set(index, x);
    out.set(index,
            Op::expected(x, {p.scales[i], p.zero_points[i]}, levels, biased ? p.biases[i] : 0));
  });
  const auto expected = out.memory();  // gaps included
  const std::string_view from = type_name<typename Op::input>();
  const std::string_view to = type_name<typename Op::output>();
  INFO(std::string(from), " -> ", std::string(to), " granularity ", static_cast<int>(kind),
       " axis ", axis, " block ", p.block_size, " grid ", levels.qmin, "..", levels.qmax);
  std::string extents;
  for (const std::size_t extent : shape) {
    extents += ' ' + std::to_string(extent);
  }
  INFO("shape", extents);
  for_each_target([&] {
    out.memory() = painted;
    run<Op>(in, out, p, levels, biased, e);
    CHECK(same_memory(out.memory(), expected));
  });
}

template <class Op>
void check_operation(std::uint64_t seed) {
  random_source random(seed);
  INFO("seed ", random.seed());
  for (const granularity kind : {granularity::tensor, granularity::channel, granularity::block}) {
    for (std::size_t n = 0; n <= 130; ++n) {
      check_cell<Op>(random, kind, {n});
    }
    for (int round = 0; round < 25; ++round) {
      check_cell<Op>(random, kind, test::random_shape(random, 1));
    }
    // Larger than a tile, with tails in each dimension.
    check_cell<Op>(random, kind, {3, 70, 67});
    check_cell<Op>(random, kind, {2, 5, 16, 4});
    check_cell<Op>(random, kind, {1, 4200});
  }
  check_cell<Op>(random, granularity::tensor, {});
}

template <class X>
void check_quantize(std::uint64_t seed) {
  check_operation<quantizing<X, std::uint8_t>>(seed);
  check_operation<quantizing<X, std::int8_t>>(seed + 1);
  check_operation<quantizing<X, std::uint16_t>>(seed + 2);
  check_operation<quantizing<X, std::int16_t>>(seed + 3);
  check_operation<quantizing<X, uint4>>(seed + 4);
  check_operation<quantizing<X, int4>>(seed + 5);
  check_operation<quantizing<X, uint2>>(seed + 6);
  check_operation<quantizing<X, int2>>(seed + 7);
}

template <class Y>
void check_dequantize(std::uint64_t seed) {
  check_operation<dequantizing<std::uint8_t, Y>>(seed);
  check_operation<dequantizing<std::int8_t, Y>>(seed + 1);
  check_operation<dequantizing<std::uint16_t, Y>>(seed + 2);
  check_operation<dequantizing<std::int16_t, Y>>(seed + 3);
  check_operation<dequantizing<uint4, Y>>(seed + 4);
  check_operation<dequantizing<int4, Y>>(seed + 5);
  check_operation<dequantizing<uint2, Y>>(seed + 6);
  check_operation<dequantizing<int2, Y>>(seed + 7);
  check_operation<dequantizing<std::int32_t, Y>>(seed + 8);
}

}  // namespace test

#endif  // DETENT_TESTS_ELEMENTWISE_CELLS_HPP
