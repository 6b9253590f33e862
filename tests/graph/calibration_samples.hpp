// SPDX-License-Identifier: BSD-3-Clause
// Samples in memory as a source for calibration.
#ifndef DETENT_TESTS_GRAPH_CALIBRATION_SAMPLES_HPP
#define DETENT_TESTS_GRAPH_CALIBRATION_SAMPLES_HPP

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>

#include "model_builder.hpp"
#include "random.hpp"

namespace test {

using sample = tensors;

/// Gives the samples one by one, then nothing, then all of them again.
inline graph::calibration_source samples_source(std::vector<sample> samples) {
  std::size_t next = 0;
  return [samples = std::move(samples), next]() mutable -> std::optional<sample> {
    if (next == samples.size()) {
      next = 0;
      return std::nullopt;
    }
    return samples[next++];
  };
}

/// Random values of one input "x". A mean other than 0 is what makes rounded weights shift results.
inline std::vector<sample> samples_of_x(random_source& r, const shape& dims, std::size_t n,
                                        float lower = -0.5F, float upper = 1.5F) {
  std::vector<sample> samples;
  for (std::size_t i = 0; i < n; ++i) {
    samples.push_back({{"x", random_floats(r, dims, lower, upper)}});
  }
  return samples;
}

/// The same images in one batch.
inline std::vector<sample> one_batch(const std::vector<sample>& samples) {
  shape dims = samples.at(0).at("x").dims();
  dims[0] = 0;
  std::vector<float> all;
  for (const sample& s : samples) {
    const tensor& x = s.at("x");
    dims[0] += x.dim(0);
    all.insert(all.end(), x.data<float>().begin(), x.data<float>().end());
  }
  return {{{"x", floats(dims, all)}}};
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_CALIBRATION_SAMPLES_HPP
