// SPDX-License-Identifier: BSD-3-Clause
// Every function of the C interface with sizes, strides, types and parameters that the input gives.
// Each array has exactly the elements that the documentation asks for and ends at a page that must
// not be touched; sizes that no array could have are given, too, where the functions must refuse
// them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <string_view>
#include <vector>

#include <detent/c_api.h>
#include <detent/c_api_observers.h>
#include <detent/c_api_weights.h>

#include "../guarded_memory.hpp"
#include "fuzz_target.hpp"

namespace {

/// Arrays between guard pages, filled with bytes of the input.
class arrays {
 public:
  explicit arrays(fuzz::numbers& in) : in_(in) {}

  /// `count` elements of `size` bytes that end at a guard page.
  void* make(std::size_t count, std::size_t size) {
    memory_.emplace_back(count * size + 1);
    const std::span<unsigned char> bytes = memory_.back().back<unsigned char>(count * size);
    const auto first = in_.get<std::uint8_t>();
    std::uint32_t state = in_.get<std::uint32_t>() | 1U;
    for (unsigned char& b : bytes) {
      state = state * 1664525U + 1013904223U;
      b = first % 4 == 0 ? first : static_cast<unsigned char>(state >> 24U);
    }
    return bytes.data();
  }
  template <class T>
  T* make(std::size_t count) {
    return static_cast<T*>(make(count, sizeof(T)));
  }
  /// Finite floats of moderate size; now and then NaN or infinity.
  float* floats(std::size_t count) {
    float* values = make<float>(count);
    const bool is_odd = in_.get<std::uint8_t>() % 16 == 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, values + i, sizeof bits);
      if (!is_odd) {
        values[i] = static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-24F;
      }
    }
    return values;
  }
  /// Positive scales.
  float* scales(std::size_t count) {
    float* values = make<float>(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, values + i, sizeof bits);
      values[i] = static_cast<float>(bits + 1) * 0x1p-12F;
    }
    return values;
  }
  /// Integers from lower to upper.
  std::int32_t* integers(std::size_t count, std::int32_t lower, std::int32_t upper) {
    auto* values = make<std::int32_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto width = static_cast<std::uint32_t>(upper - lower) + 1;
      values[i] = lower + static_cast<std::int32_t>(static_cast<std::uint32_t>(values[i]) % width);
    }
    return values;
  }
  /// One in eight times true.
  bool rarely() { return in_.get<std::uint8_t>() % 8 == 0; }

 private:
  fuzz::numbers& in_;
  std::deque<test::guarded_memory> memory_;
};

/// Elements from the first to the last of a matrix whose rows and columns have these steps.
std::size_t extent(std::size_t rows, std::size_t columns, std::size_t row_step,
                   std::size_t column_step) {
  return rows == 0 || columns == 0 ? 0 : (rows - 1) * row_step + (columns - 1) * column_step + 1;
}

void check(detent_status status) {
  if (status == DETENT_INTERNAL) {
    fuzz::finding("internal error", detent_last_error());
  }
  if (status != DETENT_OK && std::strchr(detent_last_error(), '\n') != nullptr) {
    fuzz::finding("a message of several lines", detent_last_error());
  }
}

constexpr detent_type types[] = {
    DETENT_U8,  DETENT_S8, DETENT_S32, DETENT_F32,      DETENT_BF16,   DETENT_F16, DETENT_U16,
    DETENT_S16, DETENT_U4, DETENT_S4,  DETENT_F8E4M3FN, DETENT_F8E5M2, DETENT_F64};
detent_type any_type(fuzz::numbers& in) { return types[in.below(std::size(types))]; }

std::size_t size_of(detent_type type) {
  switch (type) {
    case DETENT_F64:
      return 8;
    case DETENT_S32:
    case DETENT_F32:
      return 4;
    case DETENT_BF16:
    case DETENT_F16:
    case DETENT_U16:
    case DETENT_S16:
      return 2;
    default:
      return 1;
  }
}
/// Bytes of n dense elements.
std::size_t bytes_of(detent_type type, std::size_t n) {
  return type == DETENT_U4 || type == DETENT_S4 ? (n + 1) / 2 : n * size_of(type);
}

struct weights {
  detent_weights* value = nullptr;
  weights() = default;
  weights(const weights&) = delete;
  weights& operator=(const weights&) = delete;
  ~weights() { detent_weights_free(value); }
};

/// Packs weights of K x N, of 8 or 4 bits.
void pack(fuzz::numbers& in, arrays& a, std::size_t k, std::size_t n, weights& w) {
  const bool transposed = in.get<std::uint8_t>() % 2 != 0;
  const std::size_t gap = in.below(3);
  const std::size_t row_step = transposed ? 1 : n + gap;
  const std::size_t column_step = transposed ? k + gap : 1;
  const std::size_t elements = extent(k, n, row_step, column_step);
  const auto rows = static_cast<std::ptrdiff_t>(row_step);
  const auto columns = static_cast<std::ptrdiff_t>(column_step);
  if (in.get<std::uint8_t>() % 4 != 0) {
    const detent_type type = a.rarely() ? any_type(in) : in.below(2) != 0 ? DETENT_U8 : DETENT_S8;
    detent_weight_options o;
    detent_weight_options_init(&o);
    const auto optional = [&] { return a.rarely() ? n + 1 : in.below(2) != 0 ? n : 1; };
    if (in.below(2) != 0) {
      o.scale_count = optional();
      o.scales = a.scales(o.scale_count);
    }
    if (in.below(2) != 0) {
      o.zero_point_count = optional();
      o.zero_points = a.integers(o.zero_point_count, type == DETENT_U8 ? 0 : -128, 127);
    }
    if (in.below(2) != 0) {
      o.bias_count = optional();
      o.bias = a.integers(o.bias_count, -1000000, 1000000);
    }
    const void* data = a.make(elements, 1);
    check(detent_pack_weights(type, data, k, n, rows, columns, &o, &w.value));
    return;
  }
  constexpr detent_type codes[] = {DETENT_U4, DETENT_S4, DETENT_U8, DETENT_S8};
  const detent_type type = codes[in.below(4)];
  detent_int4_weight_options o;
  detent_int4_weight_options_init(&o);
  o.group_size = a.rarely() ? in.below(40) : 8 * in.below(5);
  const std::size_t group = o.group_size == 0 || o.group_size > k ? (k == 0 ? 1 : k) : o.group_size;
  const std::size_t groups = (k + group - 1) / group;
  const bool is_signed = type == DETENT_S4 || type == DETENT_S8;
  if (in.below(2) != 0) {
    o.scales = a.scales(groups * n);
  }
  if (in.below(2) != 0) {
    o.zero_points = a.integers(groups * n, is_signed ? -8 : 0, is_signed ? 7 : 15);
  }
  const bool is_packed = type == DETENT_U4 || type == DETENT_S4;
  auto* data = static_cast<unsigned char*>(a.make(is_packed ? (elements + 1) / 2 : elements, 1));
  if (!is_packed && !a.rarely()) {
    for (std::size_t i = 0; i < elements; ++i) {
      const int code = data[i] % 16;
      data[i] = static_cast<unsigned char>(is_signed ? code - 8 : code);
    }
  }
  check(detent_pack_int4_weights(type, data, k, n, rows, columns, &o, &w.value));
}

void save_and_load(arrays& a, const weights& w) {
  std::size_t needed = 0;
  check(detent_weights_save(w.value, nullptr, 0, &needed));
  void* bytes = a.make(needed, 1);
  check(detent_weights_save(w.value, bytes, needed, &needed));
  weights again;
  check(detent_weights_load(bytes, needed, &again.value));
  if (detent_weights_columns(again.value) != detent_weights_columns(w.value) ||
      detent_weights_accumulator_bound(again.value) != detent_weights_accumulator_bound(w.value)) {
    fuzz::finding("saved weights", "are not those that were loaded");
  }
}

/// The scalars and arrays of an epilogue for M x N outputs.
detent_epilogue epilogue(fuzz::numbers& in, arrays& a, std::size_t m, std::size_t n) {
  detent_epilogue e;
  detent_epilogue_init(&e);
  e.lhs_scale = static_cast<float>(in.get<std::uint8_t>()) * 0x1p-6F;
  e.lhs_zero_point = in.get<std::int16_t>() % 300;
  e.output_scale = static_cast<float>(in.get<std::uint8_t>()) * 0x1p-2F;
  e.output_zero_point = in.get<std::int8_t>();
  const unsigned which = in.get<std::uint8_t>();
  if ((which & 1U) != 0) {
    e.bias = a.floats(n);
  }
  if ((which & 2U) != 0) {
    e.residual_stride = n + in.below(3);
    e.residual = a.floats(extent(m, n, e.residual_stride, 1));
  }
  if ((which & 4U) != 0) {
    e.addend_stride = n + in.below(3);
    e.addend = a.integers(extent(m, n, e.addend_stride, 1), -1000, 1000);
  }
  if ((which & 8U) != 0) {
    e.lhs_scales = a.scales(m);
  }
  if ((which & 16U) != 0) {
    e.lhs_zero_points = a.integers(m, 0, 127);
  }
  if ((which & 32U) != 0) {
    e.qmin = in.get<std::int8_t>();
    e.qmax = in.get<std::uint8_t>();
  }
  if ((which & 64U) != 0) {
    e.lower = -1.0F;
    e.upper = static_cast<float>(in.get<std::int8_t>());
  }
  if ((which & 128U) != 0) {
    e.first_level_cache = in.get<std::uint16_t>();
    e.second_level_cache = in.get<std::uint16_t>();
    e.third_level_cache = in.get<std::uint16_t>();
  }
  return e;
}

void products(fuzz::numbers& in, arrays& a) {
  const std::size_t k = in.below(80);
  const std::size_t n = in.below(80);
  const std::size_t m = in.below(40);
  weights w;
  pack(in, a, k, n, w);
  if (w.value == nullptr) {
    return;
  }
  if (a.rarely()) {
    save_and_load(a, w);
  }
  check(detent_weights_prepare(w.value, nullptr));
  const std::size_t lda = k + in.below(3);
  const std::size_t ldc = a.rarely() ? n / 2 : n + in.below(3);
  const detent_type a_type = a.rarely() ? any_type(in) : in.below(2) != 0 ? DETENT_U8 : DETENT_S8;
  const detent_type c_type = any_type(in);
  const void* lhs = a.make(extent(m, k, lda, 1), size_of(a_type));
  void* c = a.make(extent(m, n, ldc, 1), size_of(c_type));
  const detent_epilogue e = epilogue(in, a, m, n);
  check(detent_gemm(a_type, lhs, lda, m, w.value, c_type, c, ldc, a.rarely() ? nullptr : &e,
                    nullptr));

  detent_gemm_problem problems[2];
  for (detent_gemm_problem& p : problems) {
    detent_gemm_problem_init(&p);
    const bool turned = in.below(2) != 0;
    p.m = in.below(20);
    p.row_stride = turned ? 1 : static_cast<std::ptrdiff_t>(k + in.below(2));
    p.column_stride = turned ? static_cast<std::ptrdiff_t>(p.m + in.below(2)) : 1;
    p.a = a.make(extent(p.m, k, static_cast<std::size_t>(p.row_stride),
                        static_cast<std::size_t>(p.column_stride)),
                 size_of(a_type));
    p.weights = w.value;
    p.ldc = n + in.below(2);
    p.c = a.make(extent(p.m, n, p.ldc, 1), size_of(c_type));
  }
  check(detent_gemm_batch(a_type, c_type, problems, 2, nullptr));

  detent_dynamic_linear_options o;
  detent_dynamic_linear_options_init(&o);
  o.per_row = static_cast<int>(in.below(2));
  o.symmetric = static_cast<int>(in.below(2));
  o.qmax = in.get<std::uint8_t>();
  if (in.below(2) != 0) {
    o.bias = a.floats(n);
  }
  if (in.below(2) != 0) {
    o.residual_stride = n;
    o.residual = a.floats(m * n);
  }
  check(detent_dynamic_linear(a.floats(extent(m, k, lda, 1)), lda, m, w.value,
                              a.floats(extent(m, n, n, 1)), n, &o, nullptr));
  const detent_type x_type = any_type(in);
  const bool turned = in.below(2) != 0;
  const std::size_t row_step = turned ? 1 : k;
  const std::size_t column_step = turned ? m : 1;
  check(detent_dynamic_linear_strided(
      x_type, a.make(extent(m, k, row_step, column_step), size_of(x_type)),
      static_cast<std::ptrdiff_t>(row_step), static_cast<std::ptrdiff_t>(column_step), m, w.value,
      a.floats(extent(m, n, n, 1)), n, &o, nullptr));
}

void convolutions(fuzz::numbers& in, arrays& a) {
  detent_filter_shape shape;
  detent_filter_shape_init(&shape);
  shape.groups = a.rarely() ? in.below(6) : 1 + in.below(4);
  shape.in_channels = shape.groups * in.below(6);
  shape.out_channels = shape.groups * in.below(6);
  shape.kernel_height = in.below(4);
  shape.kernel_width = in.below(4);
  const std::size_t per_group = shape.groups == 0 ? 0 : shape.in_channels / shape.groups;
  const std::size_t count =
      shape.out_channels * per_group * shape.kernel_height * shape.kernel_width;
  struct filters {
    detent_filters* value = nullptr;
    filters() = default;
    filters(const filters&) = delete;
    filters& operator=(const filters&) = delete;
    ~filters() { detent_filters_free(value); }
  } f;
  if (a.rarely()) {
    // Sizes whose product is `count` modulo 2^64, or whatever it is: to be refused.
    detent_filter_shape odd = shape;
    odd.kernel_height = (std::size_t{1} << in.below(64)) + in.below(2);
    // Few, or more than any memory holds: what is between is the caller's to afford.
    odd.out_channels =
        (std::size_t{1} << (in.below(2) != 0 ? in.below(16) : 49 + in.below(15))) * shape.groups;
    filters none;
    check(detent_pack_filters(&odd, a.make<std::int8_t>(count), count, nullptr, &none.value));
  }
  check(detent_pack_filters(&shape, a.make<std::int8_t>(count), count, nullptr, &f.value));
  if (f.value == nullptr) {
    return;
  }
  detent_window w;
  detent_window_init(&w);
  w.batch = a.rarely() ? std::size_t{1} << in.below(64) : in.below(3);
  w.in_height = in.below(12);
  w.in_width = in.below(12);
  w.stride_height = a.rarely() ? 0 : 1 + in.below(3);
  w.stride_width = 1 + in.below(3);
  w.dilation_height = 1 + in.below(3);
  w.dilation_width = 1 + in.below(3);
  w.pad_top = a.rarely() ? std::size_t{1} << in.below(40) : in.below(3);
  w.pad_left = in.below(3);
  w.pad_bottom = in.below(3);
  w.pad_right = in.below(3);
  w.input_layout = in.below(2) != 0 ? DETENT_NCHW : DETENT_NHWC;
  w.output_layout = in.below(2) != 0 ? DETENT_NCHW : DETENT_NHWC;
  std::size_t height = 0;
  std::size_t width = 0;
  check(detent_convolution_size(f.value, &w, &height, &width));
  std::size_t in_size = w.batch * w.in_height * w.in_width * shape.in_channels;
  std::size_t out_size = w.batch * height * width * shape.out_channels;
  const bool is_small = w.batch < 3 && height < 100 && width < 100;
  if (!is_small) {
    in_size = out_size = in.below(64);  // whatever the window is, these are not its sizes
  }
  const detent_type in_type = in.below(2) != 0 ? DETENT_U8 : DETENT_S8;
  const detent_type out_type = any_type(in);
  detent_epilogue e = epilogue(in, a, 0, shape.out_channels);
  e.residual = in.below(2) != 0 && is_small ? a.floats(out_size) : nullptr;
  e.addend = nullptr;
  e.lhs_scales = nullptr;
  e.lhs_zero_points = nullptr;
  check(detent_convolve(f.value, &w, in_type, a.make(in_size, 1), in_size, out_type,
                        a.make(out_size, size_of(out_type)), out_size, &e, nullptr));
  detent_dynamic_convolution_options o;
  detent_dynamic_convolution_options_init(&o);
  o.per_image = static_cast<int>(in.below(2));
  if (in.below(2) != 0) {
    o.bias = a.floats(shape.out_channels);
  }
  check(detent_dynamic_convolve(f.value, &w, a.floats(in_size), in_size, a.floats(out_size),
                                out_size, &o, nullptr));
}

void elements(fuzz::numbers& in, arrays& a) {
  const std::size_t n = in.below(400);
  const detent_type byte = any_type(in);
  const float scale = static_cast<float>(in.get<std::uint8_t>()) * 0x1p-5F;
  const std::int32_t zero_point = in.get<std::int16_t>() % 300;
  check(detent_quantize(a.floats(n), n, scale, zero_point, byte, a.make(bytes_of(byte, n), 1),
                        nullptr));
  check(detent_dequantize(byte, a.make(bytes_of(byte, n), 1), n, scale, zero_point, a.floats(n),
                          nullptr));
  float found_scale = 0.0F;
  std::int32_t found_zero_point = 0;
  check(detent_dynamic_quantize(a.floats(n), n, byte, a.make(bytes_of(byte, n), 1), &found_scale,
                                &found_zero_point, nullptr));
  const std::size_t rows = in.below(20);
  const std::size_t columns = in.below(40);
  const std::size_t ldx = columns + in.below(3);
  const std::size_t ldq = columns + in.below(3);
  check(detent_dynamic_quantize_rows(
      a.floats(extent(rows, columns, ldx, 1)), ldx, rows, columns, byte,
      static_cast<int>(in.below(2)), a.make(extent(rows, columns, ldq, 1), size_of(byte)), ldq,
      a.make<float>(rows), a.make<std::int32_t>(rows),
      in.below(2) != 0 ? a.make<std::int32_t>(rows) : nullptr, nullptr));
  check(detent_params_from_range(in.get<float>(), in.get<float>(), in.get<std::int32_t>(),
                                 in.get<std::int32_t>(), static_cast<int>(in.below(2)),
                                 &found_scale, &found_zero_point));

  detent_element_params p;
  detent_element_params_init(&p);
  p.channels = in.below(8);
  p.inner = in.below(8);
  const std::size_t count = p.channels * p.inner * in.below(20) + (a.rarely() ? 1 : 0);
  p.scales = a.scales(p.channels);
  if (in.below(2) != 0) {
    p.zero_points = a.integers(p.channels, 0, 7);
  }
  if (in.below(2) != 0) {
    p.bias = a.integers(p.channels, -1000, 1000);
  }
  if (a.rarely()) {
    p.qmin = in.get<std::int8_t>();
    p.qmax = in.get<std::int8_t>();
  }
  if (a.rarely()) {
    p.channels = std::size_t{1} << 33U;
    p.inner = std::size_t{1} << 31U;
  }
  const detent_type x_type = any_type(in);
  const detent_type q_type = any_type(in);
  const auto dense = [&](detent_type type) { return a.make(bytes_of(type, count), 1); };
  check(detent_quantize_elements(x_type, dense(x_type), count, q_type, dense(q_type), &p, nullptr));
  check(
      detent_dequantize_elements(q_type, dense(q_type), count, x_type, dense(x_type), &p, nullptr));
  check(detent_requantize(a.make<std::int32_t>(count), count, q_type, dense(q_type), &p, nullptr));
  check(detent_fake_quantize(a.floats(count), count, q_type, a.floats(count), &p));
  check(detent_convert_floats(x_type, dense(x_type), count, q_type, dense(q_type),
                              static_cast<int>(in.below(2))));
}

/// A scheme that is in order most of the time.
detent_scheme any_scheme(fuzz::numbers& in, arrays& a) {
  if (a.rarely()) {
    return {in.get<std::int32_t>(), in.get<std::int32_t>(), static_cast<int>(in.below(3))};
  }
  const auto qmax = static_cast<std::int32_t>(1 + in.below(127));
  return {-qmax, qmax, static_cast<int>(in.below(2))};
}

struct observer {
  detent_observer* value = nullptr;
  observer() = default;
  observer(const observer&) = delete;
  observer& operator=(const observer&) = delete;
  ~observer() { detent_observer_free(value); }
};

void make(fuzz::numbers& in, arrays& a, const char* name, bool of_channels, observer& o) {
  detent_observer_options options;
  detent_observer_options_init(&options);
  options.scheme = any_scheme(in, a);
  options.sparse = static_cast<int>(in.below(2));
  if (a.rarely()) {
    options.percentile = in.get<double>();
    options.p = in.get<double>();
    options.moving_constant = in.get<double>();
    options.top_k = in.get<std::size_t>();
  }
  const std::size_t axes[2] = {in.below(3), in.below(4)};
  check(of_channels
            ? detent_observer_create_channels(name, &options, axes, 1 + in.below(2), &o.value)
            : detent_observer_create(name, &options, &o.value));
}

/// An observer of any name sees batches, is merged, saved, loaded and finalized.
void observers(fuzz::numbers& in, arrays& a) {
  const char* name = detent_observer_name(in.below(detent_observer_name_count()));
  if (std::string_view(name) == "ort.entropy") {
    name = "minmax";  // takes O(bins^2), and bins grow with the range of the batches: minutes here
  }
  const bool of_channels = in.below(2) != 0;
  observer o;
  observer other;
  make(in, a, name, of_channels, o);
  make(in, a, a.rarely() ? "minmax" : name, a.rarely() != of_channels, other);
  const std::size_t shape[3] = {1 + in.below(4), 1 + in.below(4), in.below(40)};
  for (std::size_t phase = 0; phase < 2; ++phase) {
    check(detent_observer_begin_phase(o.value, phase));
    for (std::size_t batch = in.below(3); batch < 3; ++batch) {
      const detent_type type = any_type(in);
      const bool is_float = in.below(4) != 0;
      const std::size_t count = shape[0] * shape[1] * shape[2];
      const void* data = is_float ? a.floats(count) : a.make(count, size_of(type));
      check(detent_observer_observe(batch == 1 ? other.value : o.value,
                                    is_float ? DETENT_F32 : type, data, shape, nullptr, 3,
                                    nullptr));
    }
  }
  const std::size_t wraps[3] = {std::size_t{1} << 33U, std::size_t{1} << 31U, in.below(3)};
  check(detent_observer_observe(o.value, DETENT_F32, a.make(1, 4), wraps, nullptr, 3, nullptr));
  check(detent_observer_merge(o.value, other.value));
  std::size_t size = 0;
  check(detent_observer_save(o.value, nullptr, 0, &size));
  void* bytes = a.make(size, 1);
  check(detent_observer_save(o.value, bytes, size, &size));
  if (size > 0 && a.rarely()) {
    static_cast<unsigned char*>(bytes)[in.below(size)] ^= 1U;
  }
  check(detent_observer_load(other.value, bytes, size));
  const std::size_t channels = detent_observer_channels(other.value);
  detent_scale_evidence* evidence = a.make<detent_scale_evidence>(channels);
  for (std::size_t i = 0; i < channels; ++i) {
    detent_scale_evidence_init(evidence + i);
  }
  check(detent_observer_finalize(other.value, any_scheme(in, a), a.make<float>(channels),
                                 a.make<std::int32_t>(channels),
                                 in.below(2) != 0 ? evidence : nullptr, channels, nullptr));

  detent_scale_options so;
  detent_scale_options_init(&so);
  so.method = static_cast<detent_scale_method>(in.below(9));
  so.scheme = any_scheme(in, a);
  so.channels = 1 + in.below(4);
  so.inner = 1 + in.below(4);
  so.steps = in.below(20);
  const std::size_t n = so.channels * so.inner * in.below(20) + (a.rarely() ? 1 : 0);
  check(detent_solve_scales(a.floats(n), n, &so, a.make<float>(so.channels),
                            a.make<std::int32_t>(so.channels), nullptr, nullptr));
}

/// Gram matrices, and codes of weights by every algorithm.
void weight_solvers(fuzz::numbers& in, arrays& a) {
  const std::size_t rows = in.below(6);
  const std::size_t columns = 1 + in.below(24);
  const std::size_t samples = in.below(20);
  detent_gram_observer* gram = nullptr;
  check(detent_gram_observer_create(columns, &gram));
  const detent_type byte = in.below(2) != 0 ? DETENT_U8 : DETENT_S8;
  check(detent_gram_observer_observe(gram, DETENT_F32, a.floats(samples * columns), samples,
                                     columns, 0, nullptr));
  check(detent_gram_observer_observe(gram, byte, a.make(samples * columns, 1), samples, columns,
                                     in.get<std::int16_t>() % 130, nullptr));
  check(detent_gram_observer_merge(gram, gram));
  std::size_t size = 0;
  check(detent_gram_observer_save(gram, nullptr, 0, &size));
  void* bytes = a.make(size, 1);
  check(detent_gram_observer_save(gram, bytes, size, &size));
  if (a.rarely()) {
    static_cast<unsigned char*>(bytes)[in.below(size)] ^= 1U;
  }
  detent_gram_observer* loaded = nullptr;
  check(detent_gram_observer_load(bytes, size, &loaded));
  double* g = a.make<double>(columns * columns);
  float* magnitudes = a.make<float>(columns);
  const bool has_gram = detent_gram_observer_finalize(gram, g, magnitudes) == DETENT_OK;
  detent_gram_observer_free(gram);
  detent_gram_observer_free(loaded);

  detent_weight_quantization o;
  detent_weight_quantization_init(&o);
  o.algorithm = static_cast<detent_weight_algorithm>(in.below(7));
  o.scheme = any_scheme(in, a);
  o.group_size = in.below(40);
  o.gram = has_gram || a.rarely() ? g : nullptr;
  o.magnitudes = has_gram && in.below(2) != 0 ? magnitudes : nullptr;
  o.iterations = 1 + in.below(20);
  o.grid_points = in.below(4);
  if (a.rarely()) {
    o.damping = in.get<double>();
    o.learning_rate = in.get<double>();
    o.regularization = in.get<double>();
    o.norm = in.get<double>();
    o.smallest_clip = in.get<float>();
  }
  const std::size_t groups = rows * detent_weight_groups(columns, o.group_size);
  if (a.rarely()) {
    o.scales = a.scales(groups);
  }
  const std::size_t stride = columns + in.below(3);
  const float* w = a.floats(extent(rows, columns, stride, 1));
  detent_weight_evidence evidence;
  detent_weight_evidence_init(&evidence);
  check(detent_quantize_weights(w, rows, columns, stride, &o, a.make<std::int8_t>(rows * columns),
                                a.make<float>(groups), a.make<std::int32_t>(groups),
                                a.make<float>(columns), &evidence));
  check(detent_smooth_quant_scales(magnitudes, w, rows, columns, stride, in.get<float>(),
                                   a.make<float>(columns)));
}

/// Products of two activations.
void activation_products(fuzz::numbers& in, arrays& a) {
  const detent_type a_type = in.below(2) != 0 ? DETENT_U8 : DETENT_S8;
  const detent_type b_type = a.rarely() ? any_type(in) : DETENT_S8;
  const detent_type c_type = any_type(in);
  detent_activation_product p[2];
  for (detent_activation_product& one : p) {
    detent_activation_product_init(&one);
    one.m = in.below(8);
    one.n = in.below(20);
    one.k = in.below(30);
    one.a_row_stride = static_cast<std::ptrdiff_t>(one.k + in.below(2));
    one.b_row_stride = 1;
    one.b_column_stride = static_cast<std::ptrdiff_t>(one.k + in.below(2));
    one.ldc = one.n + in.below(3);
    one.b_zero_point = in.get<std::int8_t>();
    one.a = a.make(extent(one.m, one.k, static_cast<std::size_t>(one.a_row_stride), 1), 1);
    one.b = a.make(extent(one.n, one.k, static_cast<std::size_t>(one.b_column_stride), 1),
                   size_of(b_type));
    one.c = a.make(extent(one.m, one.n, one.ldc, 1), size_of(c_type));
  }
  if (a.rarely()) {
    p[1].n = std::size_t{1} << (49 + in.below(15));
  }
  check(detent_multiply_activations(a_type, b_type, c_type, p, 2, nullptr));
}

/// Sizes that no matrix has, and null where an object is required.
void refusals(fuzz::numbers& in, arrays& a) {
  weights w;
  const std::size_t k = std::size_t{1} << (49 + in.below(15));
  const std::size_t n = 1 + in.below(64);
  check(detent_pack_weights(DETENT_S8, a.make(1, 1), k, n, 1, 1, nullptr, &w.value));
  check(detent_pack_weights(DETENT_U8, a.make(1, 1), n, k, 1, 1, nullptr, &w.value));
  check(detent_pack_int4_weights(DETENT_S4, a.make(1, 1), k, n, 1, 1, nullptr, &w.value));
  if (w.value != nullptr) {
    fuzz::finding("weights of a size that no memory has", "were packed");
  }
  const std::size_t size = in.below(200);
  check(detent_weights_load(a.make(size, 1), size, &w.value));
  check(detent_gemm(DETENT_U8, nullptr, 1, 1, nullptr, DETENT_S32, nullptr, 1, nullptr, nullptr));
  check(detent_convolution_size(nullptr, nullptr, nullptr, nullptr));
  check(detent_set_target("no such target"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::numbers in({data, size});
  arrays a(in);
  switch (in.get<std::uint8_t>() % 14) {
    case 0:
      refusals(in, a);
      break;
    case 1:
    case 2:
      elements(in, a);
      break;
    case 3:
    case 4:
      convolutions(in, a);
      break;
    case 5:
    case 6:
      observers(in, a);
      break;
    case 7:
    case 8:
      weight_solvers(in, a);
      break;
    case 9:
      activation_products(in, a);
      break;
    default:
      products(in, a);
  }
  return 0;
}
