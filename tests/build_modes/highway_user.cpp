// SPDX-License-Identifier: BSD-3-Clause
// A program that uses Highway itself and the library in separate mode, in the same translation
// unit.
#include <hwy/highway.h>

namespace {
namespace hn = hwy::HWY_NAMESPACE;

float sum_before(const float* x, std::size_t n) {
  const hn::CappedTag<float, 4> d;
  float sum = 0.0F;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    sum += hn::ReduceSum(d, hn::LoadN(d, x + i, n - i));
  }
  return sum;
}
}  // namespace

// clang-format off
#include <detent/detent.hpp>

#include <hwy/highway.h>  // again
// clang-format on

#include <array>
#include <cstdio>
#include <span>

float sum_of_all_targets(const float* x, std::size_t n);  // highway_dispatch_user.cpp

int main() {
  const std::array<float, 7> x = {1.0F, -2.0F, 3.0F, 0.25F, 5.0F, 6.0F, 7.0F};
  std::array<std::uint8_t, 7> q{};
  detent::quantize(x, std::span(q), {0.25F, 8});
  const bool quantized = q == std::array<std::uint8_t, 7>{12, 0, 20, 9, 28, 32, 36};
  const hn::CappedTag<float, 4> d;
  const float first = hn::GetLane(hn::LoadU(d, x.data()));
  const bool summed = sum_before(x.data(), x.size()) == 20.25F && first == 1.0F &&
                      sum_of_all_targets(x.data(), x.size()) == 20.25F;
  std::printf("detent %s, highway %s\n", quantized ? "ok" : "WRONG", summed ? "ok" : "WRONG");
  return quantized && summed ? 0 : 1;
}
