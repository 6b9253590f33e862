// SPDX-License-Identifier: BSD-3-Clause
// The gradients of operators that bring groups of elements to mean 0 and variance 1, or to a common
// size, and of LRN.
//
// Those with a mean and a variance of their own share one formula. For a group of n elements with
// x^ = (x - mean) / s, s = sqrt(variance + epsilon), and y = x^ scale + bias:
//
//   E = D scale,  dX = (E - mean of E - x^ * mean of (E x^)) / s
//   dscale = sum of D x^,  dbias = sum of D
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_NORMALIZATION_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_NORMALIZATION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/axis_view.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/normalization.hpp>
#include <detent/graph/ops/softmax.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// Elements in `outer` pieces of `length` neighbours that are `stride` apart: a group of elements
/// that are normalized together.
struct element_group {
  std::size_t first, outer, stride, length;
  [[nodiscard]] double count() const { return static_cast<double>(outer * length); }
  /// Calls each(i) for the elements in order.
  template <class Each>
  void for_each(const Each& each) const {
    for (std::size_t piece = 0; piece < outer; ++piece) {
      for (std::size_t i = 0; i < length; ++i) {
        each(first + piece * stride + i);
      }
    }
  }
};

/// The mean of a group and the divisor sqrt(variance + epsilon).
struct standard_scale {
  double mean = 0.0;
  double divisor = 1.0;
};

[[nodiscard]] inline standard_scale scale_of(const element_group& g, std::span<const float> x,
                                             double epsilon) {
  double sum = 0.0;
  g.for_each([&](std::size_t i) { sum += static_cast<double>(x[i]); });
  const double mean = sum / g.count();
  double squares = 0.0;
  g.for_each([&](std::size_t i) {
    const double difference = static_cast<double>(x[i]) - mean;
    squares += rounded_product(difference, difference);
  });
  return {mean, std::sqrt(squares / g.count() + epsilon)};
}

/// x^ of one element.
[[nodiscard]] inline double standardized(const standard_scale& s, float x) {
  return (static_cast<double>(x) - s.mean) / s.divisor;
}

/// Adds (E - mean of E - x^ * mean of (E x^)) / s for a group, with e(i) = E.
template <class E>
void add_standardized(const element_group& g, const standard_scale& s, std::span<const float> x,
                      const E& e, std::span<double> sum) {
  double of_e = 0.0;
  double of_products = 0.0;
  g.for_each([&](std::size_t i) {
    of_e += e(i);
    of_products += rounded_product(e(i), standardized(s, x[i]));
  });
  of_e /= g.count();
  of_products /= g.count();
  g.for_each([&](std::size_t i) {
    const double rest = e(i) - of_e - rounded_product(standardized(s, x[i]), of_products);
    sum[i] += rest / s.divisor;
  });
}

// --- BatchNormalization --------------------------------------------------------------------------

/// The gradient of BatchNormalization for output 0. With training_mode the statistics are those of
/// the batch, and the formula is that of all normalizations with a channel as the group. Otherwise
/// mean and variance are inputs, and with s = sqrt(variance + epsilon) and x^ = (x - mean) / s:
///
///   dX = D scale / s,                dscale = sum of D x^,   dbias = sum of D
///   dmean = -scale / s * sum of D,   dvariance = -scale / (2 s^2) * sum of D x^
inline void batch_normalization(const gradient_context& c) {
  const ops::axis_view v = ops::channel_view(c.forward);
  const bool training = ops::trains_statistics(c.forward);
  const auto x = c.input(0).data<float>();
  const std::span<const double> d = c.output_gradient();
  const auto scale = c.input(1).data<float>();
  const double epsilon = ops::epsilon_of(c.n());
  for (std::size_t channel = 0; !x.empty() && channel < v.length; ++channel) {
    const element_group g{channel * v.inner, v.outer, v.length * v.inner, v.inner};
    standard_scale s;
    if (training) {
      s = scale_of(g, x, epsilon);
    } else {
      s.mean = static_cast<double>(c.input(3).data<float>()[channel]);
      s.divisor = std::sqrt(static_cast<double>(c.input(4).data<float>()[channel]) + epsilon);
    }
    const auto factor = static_cast<double>(scale[channel]);
    double of_d = 0.0;
    double of_products = 0.0;
    g.for_each([&](std::size_t i) {
      of_d += d[i];
      of_products += rounded_product(d[i], standardized(s, x[i]));
    });
    const auto add = [&](std::size_t input, double value) {
      if (c.wants(input)) {
        c.gradient(input)[channel] += value;
      }
    };
    add(1, of_products);
    add(2, of_d);
    if (!training) {
      add(3, rounded_product(-factor / s.divisor, of_d));
      add(4, rounded_product(-factor / (2.0 * s.divisor * s.divisor), of_products));
    }
    if (!c.wants(0)) {
      continue;
    }
    const std::span<double> sum = c.gradient(0);
    if (training) {
      add_standardized(
          g, s, x, [&](std::size_t i) { return rounded_product(d[i], factor); }, sum);
    } else {
      const double slope = factor / s.divisor;
      g.for_each([&](std::size_t i) { sum[i] += rounded_product(d[i], slope); });
    }
  }
}

// --- InstanceNormalization and GroupNormalization ------------------------------------------------

/// The gradient of the normalization of `groups` groups of channels; see normalize_groups() for the
/// channels that share a scale.
inline void normalized_groups(const gradient_context& c, std::size_t groups) {
  const ops::axis_view v = ops::channel_view(c.forward);
  const auto x = c.input(0).data<float>();
  const std::span<const double> d = c.output_gradient();
  const auto scale = c.input(1).data<float>();
  if (x.empty()) {
    return;
  }
  const std::size_t size = v.length / groups * v.inner;
  const std::size_t together = v.length / scale.size();
  const auto given = [&](std::size_t i) { return i / v.inner % v.length / together; };
  for (std::size_t group = 0; group < v.outer * groups; ++group) {
    const element_group g{group * size, 1, size, size};
    const standard_scale s = scale_of(g, x, ops::epsilon_of(c.n()));
    g.for_each([&](std::size_t i) {
      if (c.wants(1)) {
        c.gradient(1)[given(i)] += rounded_product(d[i], standardized(s, x[i]));
      }
      if (c.wants(2)) {
        c.gradient(2)[given(i)] += d[i];
      }
    });
    if (c.wants(0)) {
      add_standardized(
          g, s, x,
          [&](std::size_t i) {
            return rounded_product(d[i], static_cast<double>(scale[given(i)]));
          },
          c.gradient(0));
    }
  }
}
/// The gradient of InstanceNormalization.
inline void instance_normalization(const gradient_context& c) {
  normalized_groups(c, ops::channel_view(c.forward).length);
}
/// The gradient of GroupNormalization.
inline void group_normalization(const gradient_context& c) {
  normalized_groups(c, static_cast<std::size_t>(c.n().get_int("num_groups", 1)));
}

// --- LayerNormalization and RMSNormalization -----------------------------------------------------

/// The rows that LayerNormalization and RMSNormalization normalize: all dimensions from the axis
/// on.
[[nodiscard]] inline ops::axis_view rows_from_axis(const gradient_context& c) {
  const shape& dims = c.input(0).dims();
  return ops::view_dims(dims, c.forward.axis(c.n().get_int("axis", -1), dims.size()), dims.size());
}

/// D times the scale, input 1, which is broadcast to the output.
[[nodiscard]] inline std::vector<double> scaled_gradient(const gradient_context& c) {
  std::vector<double> scaled(c.output_gradient().size());
  const auto scale = c.input(1).data<float>();
  const shape& dims = c.input(1).dims();
  for_each_broadcast(c, dims, dims, [&](std::size_t k, std::size_t, std::size_t i) {
    scaled[i] = rounded_product(c.output_gradient()[i], static_cast<double>(scale[k]));
  });
  return scaled;
}

/// Adds the gradient of the scale, D x^, and if there is one, that of the bias.
template <class Normalized>
void add_scale_and_bias(const gradient_context& c, const Normalized& normalized) {
  if (c.wants(1)) {
    const shape& dims = c.input(1).dims();
    add_broadcast(c, c.gradient(1), dims, dims,
                  [&](std::size_t, std::size_t, std::size_t i) { return normalized(i); });
  }
  if (c.wants(2)) {
    const shape& dims = c.input(2).dims();
    add_broadcast(c, c.gradient(2), dims, dims,
                  [](std::size_t, std::size_t, std::size_t) { return 1.0; });
  }
}

/// The gradient of LayerNormalization for output 0.
inline void layer_normalization(const gradient_context& c) {
  const ops::axis_view v = rows_from_axis(c);
  const auto x = c.input(0).data<float>();
  if (x.empty()) {
    return;
  }
  std::vector<standard_scale> rows(v.outer);
  for (std::size_t row = 0; row < v.outer; ++row) {
    rows[row] = scale_of({row * v.length, 1, v.length, v.length}, x, ops::epsilon_of(c.n()));
  }
  add_scale_and_bias(c, [&](std::size_t i) { return standardized(rows[i / v.length], x[i]); });
  if (!c.wants(0)) {
    return;
  }
  const std::vector<double> e = scaled_gradient(c);
  for (std::size_t row = 0; row < v.outer; ++row) {
    add_standardized(
        {row * v.length, 1, v.length, v.length}, rows[row], x, [&](std::size_t i) { return e[i]; },
        c.gradient(0));
  }
}

/// The gradient of RMSNormalization, y = x^ scale with x^ = x / r, r = sqrt(mean of x^2 + epsilon):
///
///   E = D scale,  dX = (E - x^ * mean of (E x^)) / r,  dscale = sum of D x^
inline void rms_normalization(const gradient_context& c) {
  const ops::axis_view v = rows_from_axis(c);
  const auto x = c.input(0).data<float>();
  if (x.empty()) {
    return;
  }
  const auto size = static_cast<double>(v.length);
  std::vector<double> roots(v.outer);
  for (std::size_t row = 0; row < v.outer; ++row) {
    double sum = 0.0;
    for (const float element : x.subspan(row * v.length, v.length)) {
      sum += static_cast<double>(element) * static_cast<double>(element);  // exact
    }
    roots[row] = std::sqrt(sum / size + ops::epsilon_of(c.n()));
  }
  const auto normalized = [&](std::size_t i) {
    return static_cast<double>(x[i]) / roots[i / v.length];
  };
  add_scale_and_bias(c, normalized);
  if (!c.wants(0)) {
    return;
  }
  const std::vector<double> e = scaled_gradient(c);
  for (std::size_t row = 0; row < v.outer; ++row) {
    double products = 0.0;
    for (std::size_t i = row * v.length; i < (row + 1) * v.length; ++i) {
      products += rounded_product(e[i], normalized(i));
    }
    products /= size;
    for (std::size_t i = row * v.length; i < (row + 1) * v.length; ++i) {
      c.gradient(0)[i] += (e[i] - rounded_product(normalized(i), products)) / roots[row];
    }
  }
}

// --- ImageScaler ---------------------------------------------------------------------------------

/// The gradient of ImageScaler, y = scale * x + bias[channel]: scale * D.
inline void image_scaler(const gradient_context& c) {
  const auto scale = static_cast<double>(c.n().get_float("scale", 1.0F));
  const std::span<const double> d = c.output_gradient();
  const std::span<double> sum = c.gradient(0);
  for (std::size_t i = 0; i < d.size(); ++i) {
    sum[i] += rounded_product(scale, d[i]);
  }
}

// --- MeanVarianceNormalization -------------------------------------------------------------------

/// The gradient of MeanVarianceNormalization, y = (x - mean) / t with t = s + 1e-9 and the standard
/// deviation s:
///
///   dX = (D - mean of D) / t - (x - mean) * mean of (D (x - mean)) / (t^2 s)
inline void mean_variance_normalization(const gradient_context& c) {
  if (!c.wants(0) || c.input(0).count() == 0) {
    return;
  }
  const shape& dims = c.input(0).dims();
  const std::vector<bool> reduced = ops::mean_axes(c.forward);
  const auto x = c.input(0).data<float>();
  const std::span<const double> d = c.output_gradient();
  std::size_t groups = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    groups *= reduced[i] ? 1 : static_cast<std::size_t>(dims[i]);
  }
  const auto size = static_cast<double>(x.size() / groups);
  struct group_sums {
    double mean = 0.0, squares = 0.0, of_d = 0.0, of_products = 0.0;
  };
  std::vector<group_sums> all(groups);
  const auto visit = [&](const auto& f) {
    ops::for_each_in_groups(dims, reduced, x.size(),
                            [&](std::size_t i, std::size_t group) { f(i, all[group]); });
  };
  visit([&](std::size_t i, group_sums& g) { g.mean += static_cast<double>(x[i]) / size; });
  visit([&](std::size_t i, group_sums& g) {
    const double difference = static_cast<double>(x[i]) - g.mean;
    g.squares += rounded_product(difference, difference);
    g.of_d += d[i];
    g.of_products += rounded_product(d[i], difference);
  });
  visit([&](std::size_t i, group_sums& g) {
    const double s = std::sqrt(g.squares / size);
    const double t = s + 1e-9;
    const double difference = static_cast<double>(x[i]) - g.mean;
    const double through_scale = s == 0.0 ? 0.0 : difference * (g.of_products / size) / (t * t * s);
    c.gradient(0)[i] += (d[i] - g.of_d / size) / t - rounded_product(through_scale, 1.0);
  });
}

// --- LRN -----------------------------------------------------------------------------------------

/// The gradient of LRN, y = x b^-beta with b = bias + alpha / size * sum of x^2 over the window of
/// channels around each:
///
///   dX_i = D_i b_i^-beta - 2 alpha beta / size * x_i * sum of D_j x_j b_j^(-beta - 1)
///
/// over the channels j whose window has channel i.
inline void local_response_normalization(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  const auto size = static_cast<std::size_t>(c.n().get_int("size", 1));
  const auto bias = static_cast<double>(c.n().get_float("bias", 1.0F));
  const auto beta = static_cast<double>(c.n().get_float("beta", 0.75F));
  const double alpha =
      static_cast<double>(c.n().get_float("alpha", 0.0001F)) / static_cast<double>(size);
  const ops::axis_view v = ops::channel_view(c.forward);
  const auto x = c.input(0).data<float>();
  const std::span<const double> d = c.output_gradient();
  const std::size_t below = (size - 1) / 2;
  const std::size_t above = size / 2;
  // Calls each(j) for the channels from `before` below channel i to `behind` above it.
  const auto window = [&](std::size_t i, std::size_t before, std::size_t behind, const auto& each) {
    const std::size_t last = (std::min)(i + behind, v.length - 1);
    for (std::size_t j = i - (std::min)(before, i); j <= last; ++j) {
      each(j);
    }
  };
  std::vector<double> direct(v.length);
  std::vector<double> products(v.length);
  for (std::size_t row = 0; !x.empty() && row < v.outer * v.inner; ++row) {
    const std::size_t first = row / v.inner * v.length * v.inner + row % v.inner;
    const auto at = [&](std::size_t channel) { return first + channel * v.inner; };
    for (std::size_t i = 0; i < v.length; ++i) {
      double squares = 0.0;
      window(i, below, above, [&](std::size_t j) {
        const auto value = static_cast<double>(x[at(j)]);
        squares += value * value;  // exact
      });
      const double base = std::fma(alpha, squares, bias);
      direct[i] = detent::detail::portable_power(base, -beta);
      products[i] = d[at(i)] * static_cast<double>(x[at(i)]) * direct[i] / base;
    }
    for (std::size_t i = 0; i < v.length; ++i) {
      double sum = 0.0;
      window(i, above, below, [&](std::size_t j) { sum += products[j]; });
      const double through_sums = 2.0 * alpha * beta * static_cast<double>(x[at(i)]) * sum;
      c.gradient(0)[at(i)] +=
          rounded_product(d[at(i)], direct[i]) - rounded_product(through_sums, 1.0);
    }
  }
}

// --- operators along one axis --------------------------------------------------------------------

/// Calls row(x, y, d, sum) for each row along the middle dimension of the view, where x, y and d
/// are the elements of the input, the output and the output gradient as double. What it writes to
/// `sum` is added to the gradient. Several threads may make calls at once.
template <class Row>
void for_each_row(const gradient_context& c, const ops::axis_view& v, const Row& row) {
  if (!c.wants(0) || c.input(0).count() == 0) {
    return;
  }
  const auto x = c.input(0).data<float>();
  const auto y = c.output().data<float>();
  ops::for_pieces(c.forward, v.outer * v.inner, ops::rows_of(ops::costly_piece, v.length),
                  [&](std::size_t begin, std::size_t end) {
                    std::vector<double> rows[4];
                    for (std::vector<double>& r : rows) {
                      r.resize(v.length);
                    }
                    for (std::size_t r = begin; r < end; ++r) {
                      const std::size_t first = r / v.inner * v.length * v.inner + r % v.inner;
                      for (std::size_t i = 0; i < v.length; ++i) {
                        const std::size_t at = first + i * v.inner;
                        rows[0][i] = static_cast<double>(x[at]);
                        rows[1][i] = static_cast<double>(y[at]);
                        rows[2][i] = c.output_gradient()[at];
                      }
                      row(std::span<const double>(rows[0]), std::span<const double>(rows[1]),
                          std::span<const double>(rows[2]), std::span<double>(rows[3]));
                      for (std::size_t i = 0; i < v.length; ++i) {
                        c.gradient(0)[first + i * v.inner] += rows[3][i];
                      }
                    }
                  });
}

/// The gradient of Softmax: y (D - sum of D y).
inline void softmax(const gradient_context& c) {
  for_each_row(c, ops::softmax_view(c.forward),
               [](std::span<const double>, std::span<const double> y, std::span<const double> d,
                  std::span<double> sum) {
                 const double dot = detent::detail::ordered_dot(y.size(), d.data(), y.data());
                 for (std::size_t i = 0; i < y.size(); ++i) {
                   sum[i] = rounded_product(y[i], d[i] - dot);
                 }
               });
}

/// The gradient of LogSoftmax: D - e^y * sum of D.
inline void log_softmax(const gradient_context& c) {
  for_each_row(c, ops::softmax_view(c.forward),
               [](std::span<const double>, std::span<const double> y, std::span<const double> d,
                  std::span<double> sum) {
                 double total = 0.0;
                 for (const double v : d) {
                   total += v;
                 }
                 for (std::size_t i = 0; i < y.size(); ++i) {
                   sum[i] = d[i] - rounded_product(detent::detail::portable_exp(y[i]), total);
                 }
               });
}

/// The gradient of LpNormalization, y = x / N with the norm N: (D - y * sum of D y) / N for p = 2,
/// and (D - sign(x) * sum of D y) / N for p = 1; 0 if N is 0.
inline void lp_normalization(const gradient_context& c) {
  const shape& dims = c.input(0).dims();
  const bool absolute = c.n().get_int("p", 2) == 1;
  for_each_row(c, ops::view_axis(dims, c.forward.axis(c.n().get_int("axis", -1), dims.size())),
               [absolute](std::span<const double> x, std::span<const double>,
                          std::span<const double> d, std::span<double> sum) {
                 double norm = 0.0;
                 for (const double v : x) {
                   norm += absolute ? std::fabs(v) : v * v;  // squares of floats are exact
                 }
                 norm = absolute ? norm : std::sqrt(norm);
                 const double dot = detent::detail::ordered_dot(x.size(), d.data(), x.data());
                 for (std::size_t i = 0; i < x.size(); ++i) {
                   const double direction = !absolute    ? x[i] / norm
                                            : x[i] > 0.0 ? 1.0
                                            : x[i] < 0.0 ? -1.0
                                                         : 0.0;
                   sum[i] =
                       norm > 0.0 ? (d[i] - rounded_product(direction, dot / norm)) / norm : 0.0;
                 }
               });
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_NORMALIZATION_HPP
