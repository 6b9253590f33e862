// SPDX-License-Identifier: BSD-3-Clause
// Layers as plain loops in double, and the ONNX nodes of the same layers.
#ifndef DETENT_TESTS_GRAPH_PLAIN_LAYERS_HPP
#define DETENT_TESTS_GRAPH_PLAIN_LAYERS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/model/tensor.hpp>

#include "model_builder.hpp"
#include "random.hpp"

namespace test {

/// Images, or rows of a matrix: those have one pixel.
struct images {
  std::size_t count = 0, channels = 0, height = 1, width = 1;
  std::vector<double> values;

  [[nodiscard]] std::size_t pixels() const { return height * width; }
  [[nodiscard]] double& at(std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
    return values[((n * channels + c) * height + y) * width + x];
  }
  [[nodiscard]] double at(std::size_t n, std::size_t c, std::size_t y, std::size_t x) const {
    return values[((n * channels + c) * height + y) * width + x];
  }
  /// Of each channel.
  [[nodiscard]] std::vector<double> means() const {
    std::vector<double> m(channels, 0.0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      m[i / pixels() % channels] += values[i] / static_cast<double>(count * pixels());
    }
    return m;
  }
  [[nodiscard]] double standard_deviation() const {
    double mean = 0.0;
    for (const double v : values) {
      mean += v / static_cast<double>(values.size());
    }
    double variance = 0.0;
    for (const double v : values) {
      variance += (v - mean) * (v - mean) / static_cast<double>(values.size());
    }
    return std::sqrt(variance);
  }
};

inline images images_of(const tensor& t) {
  images result;
  result.count = static_cast<std::size_t>(t.dim(0));
  result.channels = static_cast<std::size_t>(t.dim(1));
  result.height = t.rank() > 2 ? static_cast<std::size_t>(t.dim(2)) : 1;
  result.width = t.rank() > 3 ? static_cast<std::size_t>(t.dim(3)) : 1;
  result.values.assign(t.data<float>().begin(), t.data<float>().end());
  return result;
}

/// A convolution, or a fully connected layer: that is one of 1x1 on one pixel.
struct plain_layer {
  std::string name;
  bool is_conv = true;
  std::size_t outputs = 1, inputs = 1, kernel = 1, group = 1, pad = 0, stride = 1;
  std::vector<float> weights;  // [outputs][inputs / group][kernel][kernel]
  std::vector<float> bias;     // empty if there is none
  bool relu = false;
  bool transposed = true;  // Gemm's transB

  [[nodiscard]] std::size_t filter() const { return inputs / group * kernel * kernel; }

  /// The layer with other weights and another bias, without its Relu.
  [[nodiscard]] images run(const images& x, const std::vector<double>& w,
                           const std::vector<double>& b) const {
    images y;
    y.count = x.count;
    y.channels = outputs;
    y.height = (x.height + 2 * pad - kernel) / stride + 1;
    y.width = (x.width + 2 * pad - kernel) / stride + 1;
    y.values.assign(y.count * y.channels * y.pixels(), 0.0);
    const std::size_t in = inputs / group;
    for (std::size_t n = 0; n < y.count; ++n) {
      for (std::size_t o = 0; o < outputs; ++o) {
        const std::size_t first = o / (outputs / group) * in;
        for (std::size_t i = 0; i < y.height; ++i) {
          for (std::size_t j = 0; j < y.width; ++j) {
            double sum = b.empty() ? 0.0 : b[o];
            for (std::size_t c = 0; c < in; ++c) {
              for (std::size_t u = 0; u < kernel; ++u) {
                for (std::size_t v = 0; v < kernel; ++v) {
                  const std::size_t row = i * stride + u;
                  const std::size_t column = j * stride + v;
                  if (row >= pad && row < x.height + pad && column >= pad &&
                      column < x.width + pad) {
                    sum += w[((o * in + c) * kernel + u) * kernel + v] *
                           x.at(n, first + c, row - pad, column - pad);
                  }
                }
              }
            }
            y.at(n, o, i, j) = sum;
          }
        }
      }
    }
    return y;
  }

  [[nodiscard]] std::vector<double> float_weights() const {
    return {weights.begin(), weights.end()};
  }
  [[nodiscard]] std::vector<double> float_bias() const { return {bias.begin(), bias.end()}; }

  /// One scale for each output, or the largest of them for all: largest magnitude / 127, and the
  /// next float where that one times 127 is less than the magnitude.
  [[nodiscard]] std::vector<float> weight_scales(bool per_channel) const {
    std::vector<float> scales;
    for (std::size_t o = 0; o < outputs; ++o) {
      double magnitude = 0.0;
      for (std::size_t k = o * filter(); k < (o + 1) * filter(); ++k) {
        magnitude = (std::max)(magnitude, std::fabs(static_cast<double>(weights[k])));
      }
      auto scale = static_cast<float>(magnitude / 127.0);
      if (static_cast<double>(scale) * 127.0 < magnitude) {
        scale = std::nextafter(scale, 1e30F);
      }
      scales.push_back(scale);
    }
    if (!per_channel) {
      const float largest = *std::max_element(scales.begin(), scales.end());
      std::fill(scales.begin(), scales.end(), largest);
    }
    return scales;
  }
  /// Weights on the grid of -127..127, as integers.
  [[nodiscard]] std::vector<double> weight_codes(bool per_channel) const {
    const std::vector<float> scales = weight_scales(per_channel);
    std::vector<double> codes(weights.size());
    for (std::size_t k = 0; k < weights.size(); ++k) {
      const float scale = scales[k / filter()];
      codes[k] = scale > 0.0F ? std::nearbyint(static_cast<double>(weights[k] / scale)) : 0.0;
    }
    return codes;
  }
  [[nodiscard]] std::vector<double> rounded_weights(bool per_channel) const {
    const std::vector<float> scales = weight_scales(per_channel);
    std::vector<double> rounded = weight_codes(per_channel);
    for (std::size_t k = 0; k < rounded.size(); ++k) {
      rounded[k] *= static_cast<double>(scales[k / filter()]);
    }
    return rounded;
  }

  /// Adds the node. Its result is before the Relu, if there is one: that is not added.
  [[nodiscard]] std::string add_to(model_builder& b, const std::string& x) const {
    const auto o = static_cast<std::int64_t>(outputs);
    const auto i = static_cast<std::int64_t>(inputs / group);
    const auto k = static_cast<std::int64_t>(kernel);
    std::vector<std::string> in{x, name + "_w"};
    if (is_conv) {
      b.constant(in[1], floats({o, i, k, k}, weights));
    } else if (transposed) {
      b.constant(in[1], floats({o, i}, weights));
    } else {
      std::vector<float> columns(weights.size());
      for (std::size_t r = 0; r < outputs; ++r) {
        for (std::size_t c = 0; c < inputs; ++c) {
          columns[c * outputs + r] = weights[r * inputs + c];
        }
      }
      b.constant(in[1], floats({i, o}, columns));
    }
    if (!bias.empty()) {
      in.push_back(b.constant(name + "_b", floats({o}, bias)));
    }
    attributes a;
    if (is_conv) {
      const auto p = static_cast<std::int64_t>(pad);
      const auto s = static_cast<std::int64_t>(stride);
      a = {{"pads", list({p, p, p, p})},
           {"strides", list({s, s})},
           {"group", number(static_cast<std::int64_t>(group))}};
    } else {
      a = {{"transB", number(transposed ? 1 : 0)}};
    }
    const std::string y = b.add(is_conv ? "Conv" : "Gemm", in, std::move(a));
    b.get().nodes.back().name = name;
    return y;
  }
};

/// A layer without weights.
inline plain_layer layer_shape(std::string name, std::size_t outputs, std::size_t inputs,
                               std::size_t kernel, std::size_t group = 1, std::size_t pad = 0,
                               std::size_t stride = 1) {
  plain_layer l;
  l.name = std::move(name);
  l.outputs = outputs;
  l.inputs = inputs;
  l.kernel = kernel;
  l.group = group;
  l.pad = pad;
  l.stride = stride;
  return l;
}

/// Random weights whose outputs have different magnitudes; biases away from 0.
inline plain_layer random_layer(random_source& r, plain_layer shape_of, bool bias = true) {
  plain_layer l = std::move(shape_of);
  for (std::size_t o = 0; o < l.outputs; ++o) {
    const float magnitude = r.real(0.2F, 1.0F) / std::sqrt(static_cast<float>(l.filter()));
    for (std::size_t k = 0; k < l.filter(); ++k) {
      l.weights.push_back(r.real(-magnitude, magnitude));
    }
    if (bias) {
      l.bias.push_back(r.chance(50) ? r.real(0.2F, 0.8F) : r.real(-0.8F, -0.2F));
    }
  }
  return l;
}

inline images relu(images x) {
  for (double& v : x.values) {
    v = (std::max)(v, 0.0);
  }
  return x;
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_PLAIN_LAYERS_HPP
