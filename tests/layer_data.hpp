// SPDX-License-Identifier: BSD-3-Clause
// Inputs and weights of linear layers as they are met: correlated features of different sizes.
#ifndef DETENT_TESTS_LAYER_DATA_HPP
#define DETENT_TESTS_LAYER_DATA_HPP

#include <cmath>
#include <cstddef>
#include <vector>

#include <detent/all.hpp>

#include "random.hpp"

namespace test {

inline float gaussian(random_source& random) {
  float sum = -6.0F;
  for (int i = 0; i < 12; ++i) {
    sum += random.real(0.0F, 1.0F);
  }
  return sum;
}

/// samples x features: each feature resembles the one before, some are much larger.
inline std::vector<float> correlated_inputs(random_source& random, std::size_t samples,
                                            std::size_t features, float correlation = 0.9F) {
  std::vector<float> sizes(features);
  for (float& size : sizes) {
    size = random.chance(5) ? 10.0F : random.real(0.3F, 1.5F);
  }
  const float rest = std::sqrt(1.0F - correlation * correlation);
  std::vector<float> x(samples * features);
  for (std::size_t r = 0; r < samples; ++r) {
    float state = gaussian(random);
    for (std::size_t c = 0; c < features; ++c) {
      state = correlation * state + rest * gaussian(random);
      x[r * features + c] = state * sizes[c];
    }
  }
  return x;
}

inline std::vector<float> gaussian_weights(random_source& random, std::size_t n) {
  std::vector<float> w(n);
  for (float& value : w) {
    value = 0.05F * gaussian(random);
  }
  return w;
}

inline detent::gram_matrix gram_of(const std::vector<float>& x, std::size_t features) {
  detent::gram_observer observer(features);
  observer.observe(detent::matrix_view<const float>(x.data(), x.size() / features, features));
  return observer.finalize();
}

}  // namespace test

#endif  // DETENT_TESTS_LAYER_DATA_HPP
