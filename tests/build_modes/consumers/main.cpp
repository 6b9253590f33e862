// SPDX-License-Identifier: BSD-3-Clause
// What a project that uses the library may look like.
#ifdef CONSUMER_VENDORED
#include "quantization.h"
#else
#include <detent/detent.hpp>
#endif

#include <array>
#include <cstdint>
#include <cstdio>
#include <span>

int main() {
  const std::array<float, 6> x = {-1.0F, -0.5F, 0.0F, 0.5F, 1.0F, 1.55F};
  detent::min_max_observer seen;
  seen.observe(x);
  const detent::quant_params p = seen.finalize(detent::asymmetric<std::uint8_t>);
  std::array<std::uint8_t, 6> q{};
  detent::quantize(x, std::span(q), p);

  const std::array<std::int8_t, 6> w = {1, -2, 3, -4, 5, -6};  // 3 x 2
  std::array<std::int32_t, 4> product{};
  detent::gemm(detent::matrix_view<const std::uint8_t>(q.data(), 2, 3),
               detent::pack_weights(detent::matrix_view<const std::int8_t>(w.data(), 3, 2)),
               detent::matrix_view<std::int32_t>(product.data(), 2, 2),
               {.lhs_zero_point = p.zero_point});

  std::printf("zero point %d, product %d %d %d %d on %s\n", p.zero_point, product[0], product[1],
              product[2], product[3], detent::name(detent::active_target()));
  return p.zero_point == 100 && product == std::array<std::int32_t, 4>{-250, 400, 1125, -1430} ? 0
                                                                                               : 1;
}
