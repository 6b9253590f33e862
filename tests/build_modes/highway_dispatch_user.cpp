// SPDX-License-Identifier: BSD-3-Clause
// The library in separate mode, and after it Highway's own foreach_target.h over this file.
#include <detent/detent.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "highway_dispatch_user.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace user {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
inline float sum(const float* x, std::size_t n) {
  const hn::ScalableTag<float> d;
  auto sums = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    sums = hn::Add(sums, hn::LoadN(d, x + i, n - i));
  }
  return hn::ReduceSum(d, sums);
}
}  // namespace HWY_NAMESPACE
}  // namespace user
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
float sum_of_all_targets(const float* x, std::size_t n);
float sum_of_all_targets(const float* x, std::size_t n) {
  detent::min_max_observer seen;
  seen.observe({x, n});
  return seen.count() == n ? user::HWY_STATIC_DISPATCH(sum)(x, n) : 0.0F;
}
#endif
