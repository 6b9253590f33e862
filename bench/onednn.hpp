// SPDX-License-Identifier: BSD-3-Clause
// oneDNN's operations that detent is compared with: its reorder on matrices, which quantizes and
// dequantizes, its integer convolution, and its integer matrix product. Versions 2 and 3 of
// oneDNN's interface are supported.
#ifndef DETENT_BENCH_ONEDNN_HPP
#define DETENT_BENCH_ONEDNN_HPP

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include <detent/dispatch.hpp>
#include <detent/window.hpp>

namespace detent_bench {

/// The target that is compared with oneDNN: DETENT_BENCH_TARGET in the environment names it;
/// without it, it is the best one. oneDNN is kept to the instructions of this target, which it
/// allows only before its first primitive: so there is one such target in a process.
inline detent::target target_beside_onednn() {
  const auto choose = [] {
    const char* const given = std::getenv("DETENT_BENCH_TARGET");
    const std::string wanted = given != nullptr ? given : detent::name(detent::best_target());
    for (const detent::target t : detent::available_targets()) {
      if (wanted == detent::name(t)) {
        return t;
      }
    }
    throw std::runtime_error("DETENT_BENCH_TARGET: this processor has no target " + wanted);
  };
  static const detent::target chosen = choose();
  static const bool is_limited = [] {
    using dnnl::cpu_isa;
    switch (chosen) {
      case detent::target::portable:
        return dnnl::set_max_cpu_isa(cpu_isa::sse41) == dnnl::status::success;
      case detent::target::avx2:
        return dnnl::set_max_cpu_isa(cpu_isa::avx2) == dnnl::status::success;
      case detent::target::avx_vnni:
        return dnnl::set_max_cpu_isa(cpu_isa::avx2_vnni) == dnnl::status::success;
      case detent::target::avx512:
        return dnnl::set_max_cpu_isa(cpu_isa::avx512_core) == dnnl::status::success;
      case detent::target::avx512_vnni:
        return dnnl::set_max_cpu_isa(cpu_isa::avx512_core_vnni) == dnnl::status::success;
      case detent::target::amx_int8:
        return true;  // whatever oneDNN finds
    }
    return false;
  }();
  if (!is_limited) {
    throw std::runtime_error("oneDNN cannot be kept to the instructions of a target");
  }
  return chosen;
}

/// The elements that share a scale: all of the matrix, those of a row, or those of a column.
enum class onednn_scale { tensor, row, column };

template <class T>
constexpr dnnl::memory::data_type onednn_type() {
  using type = dnnl::memory::data_type;
  if constexpr (std::is_same_v<T, float>) {
    return type::f32;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return type::s32;
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    return type::u8;
  } else {
    static_assert(std::is_same_v<T, std::int8_t>);
    return type::s8;
  }
}

/// Computes to = from * multiplier + zero point, or, with from_zero_point,
/// to = (from - zero point) * multiplier. The result is rounded and saturated if To is an integer
/// type.
class onednn_reorder {
 public:
  template <class From, class To>
  onednn_reorder(const From* from, To* to, std::size_t rows, std::size_t columns,
                 onednn_scale scale, std::vector<float> multipliers, std::int32_t zero_point,
                 bool from_zero_point = false)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        multipliers_(std::move(multipliers)),
        zero_point_(zero_point) {
    using dnnl::memory;
    const memory::dims dims{static_cast<memory::dim>(rows), static_cast<memory::dim>(columns)};
    const memory::desc from_desc(dims, onednn_type<From>(), memory::format_tag::ab);
    const memory::desc to_desc(dims, onednn_type<To>(), memory::format_tag::ab);
    const int mask = scale == onednn_scale::tensor ? 0 : scale == onednn_scale::row ? 1 : 2;
    const int zero_point_of = from_zero_point ? DNNL_ARG_FROM : DNNL_ARG_TO;
    dnnl::primitive_attr attributes;
    arguments_ = {{DNNL_ARG_FROM, memory(from_desc, engine_, const_cast<From*>(from))},
                  {DNNL_ARG_TO, memory(to_desc, engine_, to)}};
#if DNNL_VERSION_MAJOR >= 3
    attributes.set_scales_mask(DNNL_ARG_FROM, mask);
    const memory::desc scales({static_cast<memory::dim>(multipliers_.size())},
                              memory::data_type::f32, memory::format_tag::x);
    arguments_.insert(
        {DNNL_ARG_ATTR_SCALES | DNNL_ARG_FROM, memory(scales, engine_, multipliers_.data())});
    if (zero_point != 0) {
      attributes.set_zero_points_mask(zero_point_of, 0);
      const memory::desc one({1}, memory::data_type::s32, memory::format_tag::x);
      arguments_.insert(
          {DNNL_ARG_ATTR_ZERO_POINTS | zero_point_of, memory(one, engine_, &zero_point_)});
    }
#else
    attributes.set_output_scales(mask, multipliers_);
    if (zero_point != 0) {
      attributes.set_zero_points(zero_point_of, 0, {zero_point_});
    }
#endif
    reorder_ = dnnl::reorder(
        dnnl::reorder::primitive_desc(engine_, from_desc, engine_, to_desc, attributes));
  }
  onednn_reorder(const onednn_reorder&) = delete;
  onednn_reorder& operator=(const onednn_reorder&) = delete;

  void run() {
    reorder_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<float> multipliers_;
  std::int32_t zero_point_;
  std::unordered_map<int, dnnl::memory> arguments_;
  dnnl::reorder reorder_;
};

/// A channels-last convolution from u8 to u8. Its weights are in the layout that oneDNN chooses. An
/// input zero point of 0 is none.
class onednn_convolution {
 public:
  onednn_convolution(const detent::filter_shape& f, const detent::window& w,
                     const std::uint8_t* input, const std::int8_t* weights,
                     std::vector<std::int32_t> bias, std::vector<float> multipliers,
                     std::int32_t in_zero_point, std::int32_t out_zero_point, std::uint8_t* output)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        bias_(std::move(bias)),
        multipliers_(std::move(multipliers)),
        in_zero_point_(in_zero_point),
        out_zero_point_(out_zero_point) {
    using dnnl::memory;
    using type = memory::data_type;
    using tag = memory::format_tag;
    const auto dim = [](std::size_t n) { return static_cast<memory::dim>(n); };
    const memory::dims in_dims{dim(w.batch), dim(f.in_channels), dim(w.in_height), dim(w.in_width)};
    const memory::dims out_dims{dim(w.batch), dim(f.out_channels), dim(w.out_height(f)),
                                dim(w.out_width(f))};
    const bool grouped = f.groups > 1;
    memory::dims weight_dims{dim(f.out_channels), dim(f.group_in()), dim(f.kernel_height),
                             dim(f.kernel_width)};
    if (grouped) {
      weight_dims[0] = dim(f.group_out());
      weight_dims.insert(weight_dims.begin(), dim(f.groups));
    }
    const memory::desc in_desc(in_dims, type::u8, tag::nhwc);
    const memory::desc out_desc(out_dims, type::u8, tag::nhwc);
    const memory::desc any_desc(weight_dims, type::s8, tag::any);
    const memory::desc given_desc(weight_dims, type::s8, grouped ? tag::goihw : tag::oihw);
#if DNNL_VERSION_MAJOR >= 3
    // It adds the bias behind the scales.
    for (std::size_t i = 0; i < bias_.size(); ++i) {
      scaled_bias_.push_back(static_cast<float>(bias_[i]) * multipliers_[i]);
    }
    const memory::desc bias_desc({dim(f.out_channels)}, type::f32, tag::x);
    void* const bias_data = scaled_bias_.data();
#else
    const memory::desc bias_desc({dim(f.out_channels)}, type::s32, tag::x);
    void* const bias_data = bias_.data();
#endif
    const memory::dims strides{dim(w.stride_height), dim(w.stride_width)};
    const memory::dims dilations{dim(w.dilation_height - 1), dim(w.dilation_width - 1)};
    const memory::dims before{dim(w.pad_top), dim(w.pad_left)};
    const memory::dims after{dim(w.pad_bottom), dim(w.pad_right)};
    dnnl::primitive_attr attributes;
    constexpr auto inference = dnnl::prop_kind::forward_inference;
    constexpr auto direct = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
    attributes.set_scales_mask(DNNL_ARG_WEIGHTS, grouped ? 3 : 1);
    if (in_zero_point != 0) {
      attributes.set_zero_points_mask(DNNL_ARG_SRC, 0);
    }
    attributes.set_zero_points_mask(DNNL_ARG_DST, 0);
    const dnnl::convolution_forward::primitive_desc chosen(engine_, inference, direct, in_desc,
                                                           any_desc, bias_desc, out_desc, strides,
                                                           dilations, before, after, attributes);
#else
    attributes.set_output_scales(2, multipliers_);
    if (in_zero_point != 0) {
      attributes.set_zero_points(DNNL_ARG_SRC, 0, {in_zero_point_});
    }
    attributes.set_zero_points(DNNL_ARG_DST, 0, {out_zero_point_});
    const dnnl::convolution_forward::primitive_desc chosen(
        dnnl::convolution_forward::desc(inference, direct, in_desc, any_desc, bias_desc, out_desc,
                                        strides, dilations, before, after),
        attributes, engine_);
#endif
    memory given(given_desc, engine_, const_cast<std::int8_t*>(weights));
    const memory packed(chosen.weights_desc(), engine_);
    dnnl::reorder(given, packed).execute(stream_, given, const_cast<memory&>(packed));
    stream_.wait();
    arguments_ = {{DNNL_ARG_SRC, memory(in_desc, engine_, const_cast<std::uint8_t*>(input))},
                  {DNNL_ARG_WEIGHTS, packed},
                  {DNNL_ARG_BIAS, memory(bias_desc, engine_, bias_data)},
                  {DNNL_ARG_DST, memory(out_desc, engine_, output)}};
#if DNNL_VERSION_MAJOR >= 3
    const memory::desc one({1}, type::s32, tag::x);
    const memory::desc scales({dim(f.out_channels)}, type::f32, tag::x);
    arguments_.insert(
        {DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, memory(scales, engine_, multipliers_.data())});
    if (in_zero_point != 0) {
      arguments_.insert(
          {DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, memory(one, engine_, &in_zero_point_)});
    }
    arguments_.insert(
        {DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_DST, memory(one, engine_, &out_zero_point_)});
#endif
    convolution_ = dnnl::convolution_forward(chosen);
  }
  onednn_convolution(const onednn_convolution&) = delete;
  onednn_convolution& operator=(const onednn_convolution&) = delete;

  void run() {
    convolution_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<std::int32_t> bias_;
  std::vector<float> scaled_bias_;
  std::vector<float> multipliers_;
  std::int32_t in_zero_point_;
  std::int32_t out_zero_point_;
  std::unordered_map<int, dnnl::memory> arguments_;
  dnnl::convolution_forward convolution_;
};

/// Computes C = (A - zero point) * B. If C is u8, the product is multiplied by `multiplier`,
/// rounded, and C has a zero point of its own. B is in the layout that oneDNN chooses.
class onednn_matmul {
 public:
  template <class A, class T>
  onednn_matmul(std::size_t m, std::size_t n, std::size_t k, const A* a, const std::int8_t* b, T* c,
                std::int32_t a_zero_point, float multiplier, std::int32_t c_zero_point)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        a_zero_point_(a_zero_point),
        c_zero_point_(c_zero_point),
        multiplier_(multiplier) {
    using dnnl::memory;
    using tag = memory::format_tag;
    const auto dim = [](std::size_t d) { return static_cast<memory::dim>(d); };
    constexpr bool requantizes = std::is_same_v<T, std::uint8_t>;
    const memory::desc a_desc({dim(m), dim(k)}, onednn_type<A>(), tag::ab);
    const memory::desc any_desc({dim(k), dim(n)}, memory::data_type::s8, tag::any);
    const memory::desc b_desc({dim(k), dim(n)}, memory::data_type::s8, tag::ab);
    const memory::desc c_desc({dim(m), dim(n)}, onednn_type<T>(), tag::ab);
    const memory::desc one({1}, memory::data_type::s32, tag::x);
    dnnl::primitive_attr attributes;
    arguments_ = {{DNNL_ARG_SRC, memory(a_desc, engine_, const_cast<A*>(a))},
                  {DNNL_ARG_DST, memory(c_desc, engine_, c)}};
#if DNNL_VERSION_MAJOR >= 3
    attributes.set_zero_points_mask(DNNL_ARG_SRC, 0);
    arguments_.insert(
        {DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, memory(one, engine_, &a_zero_point_)});
    if (requantizes) {
      attributes.set_scales_mask(DNNL_ARG_WEIGHTS, 0);
      attributes.set_zero_points_mask(DNNL_ARG_DST, 0);
      const memory::desc scale({1}, memory::data_type::f32, tag::x);
      arguments_.insert(
          {DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, memory(scale, engine_, &multiplier_)});
      arguments_.insert(
          {DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_DST, memory(one, engine_, &c_zero_point_)});
    }
    const dnnl::matmul::primitive_desc chosen(engine_, a_desc, any_desc, c_desc, attributes);
#else
    attributes.set_zero_points(DNNL_ARG_SRC, 0, {DNNL_RUNTIME_S32_VAL});
    arguments_.insert(
        {DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, memory(one, engine_, &a_zero_point_)});
    if (requantizes) {
      attributes.set_output_scales(0, {multiplier_});
      attributes.set_zero_points(DNNL_ARG_DST, 0, {DNNL_RUNTIME_S32_VAL});
      arguments_.insert(
          {DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_DST, memory(one, engine_, &c_zero_point_)});
    }
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(a_desc, any_desc, c_desc),
                                              attributes, engine_);
#endif
    memory given(b_desc, engine_, const_cast<std::int8_t*>(b));
    memory packed(chosen.weights_desc(), engine_);
    dnnl::reorder(given, packed).execute(stream_, given, packed);
    stream_.wait();
    arguments_.insert({DNNL_ARG_WEIGHTS, packed});
    matmul_ = dnnl::matmul(chosen);
  }
  onednn_matmul(const onednn_matmul&) = delete;
  onednn_matmul& operator=(const onednn_matmul&) = delete;

  void run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::int32_t a_zero_point_;
  std::int32_t c_zero_point_;
  float multiplier_;
  std::unordered_map<int, dnnl::memory> arguments_;
  dnnl::matmul matmul_;
};

}  // namespace detent_bench

#endif  // DETENT_BENCH_ONEDNN_HPP
