// SPDX-License-Identifier: BSD-3-Clause
// The table in quantize.hpp: dequantize.
#include <doctest/doctest.h>

#include "elementwise_cells.hpp"

using detent::bfloat16;
using detent::float16;
using detent::float8_e4m3fn;
using detent::float8_e5m2;
using test::check_dequantize;

TEST_CASE_TEMPLATE("dequantize: every cell", Y, float, float16, bfloat16, float8_e4m3fn,
                   float8_e5m2) {
  check_dequantize<Y>(200);
}
