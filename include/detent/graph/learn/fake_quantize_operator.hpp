// SPDX-License-Identifier: BSD-3-Clause
// The code of the operator FakeQuantize of domain "detent"; see make_fake_quantize().
#ifndef DETENT_GRAPH_LEARN_FAKE_QUANTIZE_OPERATOR_HPP
#define DETENT_GRAPH_LEARN_FAKE_QUANTIZE_OPERATOR_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <detent/config.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

namespace detail {

/// The operands of a FakeQuantize node after its checks. A tensor of any rank is viewed as [before,
/// channels, behind], where the middle dimension is the axis of the scales.
struct fake_quantize_operands {
  explicit fake_quantize_operands(const operator_context& c)
      : levels{level(c, "qmin"), level(c, "qmax")} {
    const tensor& x = c.input(0);
    const tensor& scale = c.input(1);
    const tensor& zero_point = c.input(2);
    c.require(x.type() == element_type::f32 && scale.type() == element_type::f32 &&
                  zero_point.type() == element_type::s32,
              "operands of types ", graph::name(x.type()), ", ", graph::name(scale.type()), ", ",
              graph::name(zero_point.type()), ", expected float32, float32, int32");
    c.require(scale.count() > 0 && scale.count() == zero_point.count(), scale.count(),
              " scales and ", zero_point.count(), " zero points");
    is_per_channel = scale.count() > 1;
    if (!is_per_channel) {
      dims[2] = x.count();
      return;
    }
    const std::size_t axis = c.axis(c.n().get_int("axis", 0), x.rank());
    c.require(static_cast<std::size_t>(x.dim(axis)) == scale.count(), scale.count(),
              " scales for axis ", axis, " of shape ", shown(x.dims()));
    for (std::size_t d = 0; d < x.rank(); ++d) {
      dims[d < axis ? 0 : d == axis ? 1 : 2] *= static_cast<std::size_t>(x.dim(d));
    }
  }

  [[nodiscard]] channel_quant_params channels(const operator_context& c) const {
    const auto scales = c.inputs[1].data<float>();
    const auto zero_points = c.inputs[2].data<std::int32_t>();
    return {1, {scales.begin(), scales.end()}, {zero_points.begin(), zero_points.end()}};
  }
  [[nodiscard]] quant_params one(const operator_context& c) const {
    return {c.inputs[1].data<float>()[0], c.inputs[2].data<std::int32_t>()[0]};
  }
  template <class T>
  [[nodiscard]] tensor_view<T> view(T* data) const {
    return {data, std::span<const std::size_t>(dims)};
  }

  grid levels;
  bool is_per_channel = false;
  std::size_t dims[3] = {1, 1, 1};

 private:
  static std::int32_t level(const operator_context& c, const char* key) {
    const std::int64_t value = c.n().get_int(key, std::numeric_limits<std::int64_t>::max());
    c.require(value >= -32768 && value <= 65535, key, " is ", value, ", not -32768..65535");
    return static_cast<std::int32_t>(value);
  }
};

inline void run_fake_quantize(operator_context& c) {
  const fake_quantize_operands o(c);
  const auto x = o.view(c.inputs[0].data<float>().data());
  const auto y = o.view(c.make_output(0).mutable_data<float>().data());
  if (o.is_per_channel) {
    fake_quantize(x, y, o.channels(c), o.levels);
  } else {
    fake_quantize(x, y, o.one(c), o.levels);
  }
}

}  // namespace detail

/// The definition of detent.FakeQuantize, for registries of operators; see make_fake_quantize() for
/// its inputs and attributes.
inline constexpr operator_definition fake_quantize_operator{"detent",
                                                            "FakeQuantize",
                                                            3,
                                                            3,
                                                            layout_support::plain,
                                                            &infer_like_input,
                                                            &detail::run_fake_quantize};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_FAKE_QUANTIZE_OPERATOR_HPP
