// SPDX-License-Identifier: BSD-3-Clause
// oneDNN's reorder, which quantizes and dequantizes, on matrices: version 2 and 3 of its interface.
#ifndef DETENT_BENCH_ONEDNN_HPP
#define DETENT_BENCH_ONEDNN_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

namespace detent_bench {

/// What the elements share a scale with.
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

/// to = from * multiplier + zero point, rounded and saturated where To is an integer type; with
/// from_zero_point instead: (from - zero point) * multiplier.
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

}  // namespace detent_bench

#endif  // DETENT_BENCH_ONEDNN_HPP
