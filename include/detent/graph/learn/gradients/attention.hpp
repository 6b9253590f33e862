// SPDX-License-Identifier: BSD-3-Clause
// The gradients of Attention and RotaryEmbedding.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_ATTENTION_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_ATTENTION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/slopes.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/attention.hpp>
#include <detent/graph/ops/matmul.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// The rows of one head, [length, width], out of elements that a head_view describes.
template <class T>
[[nodiscard]] std::vector<float> rows_of_head(const ops::attention::head_view& v, const T* from,
                                              std::size_t b, std::size_t head) {
  std::vector<float> rows;
  for (std::size_t place = 0; place < v.length; ++place) {
    const T* row = from + v.row(b, head, place);
    std::transform(row, row + v.width, std::back_inserter(rows),
                   [](T x) { return static_cast<float>(x); });
  }
  return rows;
}

/// The weights P of the keys for each query, and the derivative of the scores that softmax takes
/// for the products of queries and keys; both [queries, keys].
struct attention_weights {
  std::vector<float> weights;
  std::vector<double> slopes;
};

/// Computes the weights from the products Q K^T of one head. Scores are scale Q K^T, which softcap
/// bends to cap tanh(score / cap), plus the mask.
[[nodiscard]] inline attention_weights weigh_keys(const gradient_context& c,
                                                  const ops::attention::score_bias& bias,
                                                  std::size_t b, std::size_t head,
                                                  const std::vector<float>& products,
                                                  std::size_t keys, double scale) {
  constexpr double hidden = -std::numeric_limits<double>::infinity();
  const auto cap = static_cast<double>(c.n().get_float("softcap", 0.0F));
  attention_weights w{std::vector<float>(products.size()),
                      std::vector<double>(products.size(), scale)};
  std::vector<double> scores(keys);
  for (std::size_t query = 0; query * keys < products.size(); ++query) {
    double largest = hidden;
    for (std::size_t j = 0; j < keys; ++j) {
      const std::size_t at = query * keys + j;
      double score = static_cast<double>(products[at]) * scale;
      if (cap > 0.0) {
        const double t = portable_tanh(score / cap);
        score = cap * t;
        w.slopes[at] = scale * (1.0 - t) * (1.0 + t);
      }
      scores[j] = rounded_product(score, 1.0) + bias.at(b, head, query, j);
      largest = (std::max)(largest, scores[j]);
    }
    double sum = 0.0;
    for (double& score : scores) {
      score = largest > hidden ? detent::detail::portable_exp(score - largest) : 0.0;
      sum += score;
    }
    for (std::size_t j = 0; j < keys; ++j) {
      w.weights[query * keys + j] = static_cast<float>(sum > 0.0 ? scores[j] / sum : 0.0);
    }
  }
  return w;
}

/// Adds gradients of keys or values [batch, heads, total, width] to those of input `past`, which
/// has the first of them, and of input i, which has the others.
inline void divide_past(const gradient_context& c, const ops::attention::head_view& v,
                        std::size_t i, std::size_t past, std::size_t before,
                        const std::vector<double>& gradient) {
  const std::size_t total = before + v.length;
  for (std::size_t group = 0; group < v.batch * v.heads; ++group) {
    for (std::size_t place = 0; place < total; ++place) {
      const std::size_t input = place < before ? past : i;
      const std::size_t row = place < before
                                  ? (group * before + place) * v.width
                                  : v.row(group / v.heads, group % v.heads, place - before);
      for (std::size_t k = 0; c.wants(input) && k < v.width; ++k) {
        c.gradient(input)[row + k] += gradient[(group * total + place) * v.width + k];
      }
    }
  }
}

/// The gradient of Attention for output 0. For each head, with the weights P of the keys:
///
///   dV = P^T D,  dP = D V^T,  dS = P (dP - sum of dP P),  dmask = dS
///   dQ = (dS s) K,  dK = (dS s)^T Q
///
/// where s is the derivative of the scores for Q K^T: the scale, or with softcap scale (1 -
/// tanh^2). Keys and values that several heads share, and a mask that is broadcast, get the sum.
inline void attention(const gradient_context& c) {
  namespace a = ops::attention;
  const a::sizes s = a::read_sizes(c.forward);
  const auto width = static_cast<float>(s.query.width);
  const auto scale = static_cast<double>(c.n().get_float("scale", 1.0F / std::sqrt(width)));
  const std::size_t groups = s.key.batch * s.key.heads;
  std::vector<float> keys(groups * s.total * s.key.width);
  std::vector<float> values(groups * s.total * s.value.width);
  a::join_past<float>(c.forward, s.key, 1, 4, s.past, keys);
  a::join_past<float>(c.forward, s.value, 2, 5, s.past, values);
  std::vector<double> of_keys(keys.size());
  std::vector<double> of_values(values.size());
  const a::score_bias bias(c.forward, s);
  const std::size_t heads = s.query.heads;
  const std::size_t rows = s.query.length;
  const a::head_view out{s.query.batch, heads, rows, s.value.width, s.query.flat};
  for (std::size_t task = 0; rows > 0 && s.total > 0 && task < s.query.batch * heads; ++task) {
    const std::size_t b = task / heads;
    const std::size_t head = task % heads;
    const std::size_t group = b * s.key.heads + head / (heads / s.key.heads);
    const std::vector<float> q = rows_of_head(s.query, c.input(0).data<float>().data(), b, head);
    const std::vector<float> d = rows_of_head(out, c.output_gradient().data(), b, head);
    const matrix_view<const float> query(q.data(), rows, s.query.width);
    const matrix_view<const float> upstream(d.data(), rows, s.value.width);
    const matrix_view<const float> key(keys.data() + group * s.total * s.key.width, s.total,
                                       s.key.width);
    const matrix_view<const float> value(values.data() + group * s.total * s.value.width, s.total,
                                         s.value.width);
    const attention_weights w =
        weigh_keys(c, bias, b, head, product(c, query, key.transposed()), s.total, scale);
    const std::vector<float> by_key = ops::transposed_copy(w.weights.data(), rows, s.total);
    add_to(std::span(of_values).subspan(group * s.total * s.value.width),
           product(c, matrix_view<const float>(by_key.data(), s.total, rows), upstream));
    const std::vector<float> of_weights = product(c, upstream, value.transposed());
    std::vector<float> of_products(of_weights.size());
    for (std::size_t i = 0; i < rows; ++i) {
      double sum = 0.0;
      for (std::size_t j = i * s.total; j < (i + 1) * s.total; ++j) {
        sum += static_cast<double>(of_weights[j]) * static_cast<double>(w.weights[j]);  // exact
      }
      for (std::size_t j = 0; j < s.total; ++j) {
        const std::size_t at = i * s.total + j;
        const double of_score =
            static_cast<double>(w.weights[at]) * (static_cast<double>(of_weights[at]) - sum);
        if (c.wants(3) && w.weights[at] > 0.0F) {
          c.gradient(3)[bias.place(b, head, i, j)] += rounded_product(of_score, 1.0);
        }
        of_products[at] = static_cast<float>(of_score * w.slopes[at]);
      }
    }
    const matrix_view<const float> g(of_products.data(), rows, s.total);
    if (c.wants(0)) {
      const std::vector<float> found = product(c, g, key);
      for (std::size_t i = 0; i < rows; ++i) {
        add_to(c.gradient(0).subspan(s.query.row(b, head, i), s.query.width),
               std::span(found).subspan(i * s.query.width, s.query.width));
      }
    }
    const std::vector<float> products_by_key =
        ops::transposed_copy(of_products.data(), rows, s.total);
    add_to(std::span(of_keys).subspan(group * s.total * s.key.width),
           product(c, matrix_view<const float>(products_by_key.data(), s.total, rows), query));
  }
  divide_past(c, s.key, 1, 4, s.past, of_keys);
  divide_past(c, s.value, 2, 5, s.past, of_values);
}

/// The gradient of RotaryEmbedding, (y, z) = (cos a - sin b, sin a + cos b):
///
///   da = cos Dy + sin Dz,  db = cos Dz - sin Dy,  dcos = Dy a + Dz b,  dsin = Dz a - Dy b
///
/// Elements that are not turned get D.
inline void rotary_embedding(const gradient_context& c) {
  const auto x = c.input(0).data<float>();
  const auto cosines = c.input(1).data<float>();
  const auto sines = c.input(2).data<float>();
  const std::span<const double> d = c.output_gradient();
  std::vector<double> turned(d.begin(), d.end());
  const auto add = [&](std::size_t input, std::size_t at, double first, double second) {
    if (c.wants(input)) {
      c.gradient(input)[at] += first + second;
    }
  };
  if (x.empty()) {
    return;
  }
  ops::attention::for_each_rotation(c.forward, [&](std::size_t a, std::size_t b, std::size_t turn) {
    const auto cosine = static_cast<double>(cosines[turn]);
    const auto sine = static_cast<double>(sines[turn]);
    turned[a] = rounded_product(cosine, d[a]) + rounded_product(sine, d[b]);
    turned[b] = rounded_product(cosine, d[b]) - rounded_product(sine, d[a]);
    const auto first = static_cast<double>(x[a]);
    const auto second = static_cast<double>(x[b]);
    add(1, turn, rounded_product(d[a], first), rounded_product(d[b], second));
    add(2, turn, rounded_product(d[b], first), -rounded_product(d[a], second));
  });
  for (std::size_t i = 0; c.wants(0) && i < turned.size(); ++i) {
    c.gradient(0)[i] += turned[i];
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_ATTENTION_HPP
