// SPDX-License-Identifier: BSD-3-Clause
// Cast and CastLike.
#ifndef DETENT_GRAPH_OPS_CAST_HPP
#define DETENT_GRAPH_OPS_CAST_HPP

#include <cstdint>
#include <limits>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

inline void infer_cast_to(operator_context& c, element_type to) {
  for (const element_type type : {c.input(0).type(), to}) {
    c.require_supported(element_size(type) != 0, "no code for elements of type ",
                        graph::name(type));
  }
  c.set_output(0, to, c.input(0).dims());
}

inline void infer_cast(operator_context& c) {
  const std::int64_t to = c.n().get_int("to", 0);
  c.require(to > 0 && to <= std::numeric_limits<std::int32_t>::max(),
            "the attribute 'to' is missing or not a type");
  infer_cast_to(c, static_cast<element_type>(to));
}

inline void infer_cast_like(operator_context& c) { infer_cast_to(c, c.input(1).type()); }

inline void run_cast(operator_context& c) {
  const tensor& x = c.input(0);
  if (x.type() == c.outputs[0].type()) {
    c.share_output(0, x);
    return;
  }
  tensor& y = c.make_output(0);
  const bool saturate = c.n().get_int("saturate", 1) != 0;
  if (is_floating(x.type())) {
    convert_elements<double>(c, x, y, saturate);
  } else if (x.type() == element_type::u64) {
    convert_elements<std::uint64_t>(c, x, y, saturate);
  } else {
    convert_elements<std::int64_t>(c, x, y, saturate);
  }
}

inline constexpr operator_definition cast_operators[] = {
    {"", "Cast", 1, 1, layout_support::elementwise, &infer_cast, &run_cast, true},
    // The second input gives only its type, so the order of its elements must not matter: plain.
    {"", "CastLike", 2, 2, layout_support::plain, &infer_cast_like, &run_cast, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_CAST_HPP
