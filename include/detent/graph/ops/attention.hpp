// SPDX-License-Identifier: BSD-3-Clause
// Attention and RotaryEmbedding. The products of Attention are those of the library's float gemm,
// its Softmax is that of floats (base/float_rows.hpp). For double, products are chains of fused
// multiply-adds as well, and the Softmax is that of the operator.
#ifndef DETENT_GRAPH_OPS_ATTENTION_HPP
#define DETENT_GRAPH_OPS_ATTENTION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/computed_floats.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/row_kernels.hpp>
#include <detent/graph/ops/softmax.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace attention {

/// A tensor [batch, heads, length, width], or [batch, length, heads * width] if it has three
/// dimensions.
struct head_view {
  std::size_t batch = 0;
  std::size_t heads = 0;
  std::size_t length = 0;
  std::size_t width = 0;
  bool flat = false;  ///< The tensor has three dimensions.

  /// Where the row of one head at one place of the sequence begins.
  [[nodiscard]] std::size_t row(std::size_t b, std::size_t head, std::size_t place) const {
    return (flat ? (b * length + place) * heads + head : (b * heads + head) * length + place) *
           width;
  }
  /// The number of elements from one place of the sequence to the next.
  [[nodiscard]] std::size_t step() const { return flat ? heads * width : width; }
};

/// Sees input i as heads. `heads`: their number, which a tensor of three dimensions needs.
[[nodiscard]] inline head_view view_heads(const operator_context& c, std::size_t i,
                                          std::int64_t heads) {
  const shape& dims = c.input(i).dims();
  const auto size = [](std::int64_t v) { return static_cast<std::size_t>(v); };
  c.require(dims.size() == 3 || dims.size() == 4, "input ", i, " has shape ", shown(dims));
  if (dims.size() == 4) {
    return {size(dims[0]), size(dims[1]), size(dims[2]), size(dims[3]), false};
  }
  c.require(heads > 0 && dims[2] % heads == 0, "input ", i, " of shape ", shown(dims), " for ",
            heads, " heads");
  return {size(dims[0]), size(heads), size(dims[1]), size(dims[2] / heads), true};
}

/// The sizes of an Attention node.
struct sizes {
  head_view query, key, value;
  std::size_t past = 0;   ///< The number of keys that come before those of the node.
  std::size_t total = 0;  ///< The number of all keys.
};

[[nodiscard]] inline shape dims_of(std::initializer_list<std::size_t> extents) {
  shape dims;
  for (const std::size_t e : extents) {
    dims.push_back(static_cast<std::int64_t>(e));
  }
  return dims;
}

/// Checks the dimensions of the mask, which broadcasts to [batch, heads, length, total]. Since
/// opset 24, its last dimension does not, but may be smaller: keys behind it are hidden.
inline void require_mask(const operator_context& c, const sizes& s) {
  if (!c.has_input(3)) {
    return;
  }
  const tensor& mask = c.inputs[3];
  c.require(mask.type() == element_type::boolean ||
                visit_type(number_types{}, mask.type(), []<class T>() {}),
            "the mask is ", shown(mask.type()));
  const shape full = dims_of({s.query.batch, s.query.heads, s.query.length, s.total});
  bool fits = mask.rank() >= 1 && mask.rank() <= 4 &&
              (c.opset < 24 ? mask.dims().back() == full.back() || mask.dims().back() == 1
                            : mask.dims().back() <= full.back());
  for (std::size_t back = 2; fits && back <= mask.rank(); ++back) {
    const std::int64_t dim = mask.dim(mask.rank() - back);
    fits = dim == 1 || dim == full[4 - back];
  }
  c.require(fits, "a mask of shape ", shown(mask.dims()), " for scores of shape ", shown(full));
}

[[nodiscard]] inline sizes read_sizes(const operator_context& c) {
  sizes s;
  s.query = view_heads(c, 0, c.n().get_int("q_num_heads", 0));
  s.key = view_heads(c, 1, c.n().get_int("kv_num_heads", 0));
  s.value = view_heads(c, 2, c.n().get_int("kv_num_heads", 0));
  c.require(s.query.batch == s.key.batch && s.key.batch == s.value.batch &&
                s.key.heads == s.value.heads && s.key.length == s.value.length &&
                s.query.width == s.key.width && s.key.heads > 0 && s.query.heads % s.key.heads == 0,
            "shapes ", shown(c.input(0).dims()), ", ", shown(c.input(1).dims()), " and ",
            shown(c.input(2).dims()), " do not fit together");
  c.require(s.query.width > 0 && s.value.width > 0, "heads without elements");
  c.require(c.has_input(4) == c.has_input(5), "past_key and past_value belong together");
  if (c.has_input(4)) {
    const shape& past = c.inputs[4].dims();
    c.require(past.size() == 4, "past_key has shape ", shown(past));
    s.past = static_cast<std::size_t>(past[2]);
    for (const std::size_t i : {std::size_t{4}, std::size_t{5}}) {
      const shape expected =
          dims_of({s.key.batch, s.key.heads, s.past, i == 4 ? s.key.width : s.value.width});
      c.require(c.inputs[i].dims() == expected, "input ", i, " has shape ",
                shown(c.inputs[i].dims()), ", expected ", shown(expected));
    }
  }
  s.total = s.past + s.key.length;
  require_mask(c, s);
  if (c.has_input(6)) {
    c.require(!c.has_input(4) && c.inputs[6].type() == element_type::s64 &&
                  c.inputs[6].dims() == dims_of({s.query.batch}),
              "nonpad_kv_seqlen is ", shown(c.inputs[6].type()), " ", shown(c.inputs[6].dims()));
  }
  return s;
}

inline void infer(operator_context& c) {
  const sizes s = read_sizes(c);
  const std::int64_t mode = c.n().get_int("qk_matmul_output_mode", 0);
  c.require(mode >= 0 && mode <= 3, "qk_matmul_output_mode is ", mode);
  const element_type type = c.input(0).type();
  const head_view& q = s.query;
  c.set_output(0, type,
               q.flat ? dims_of({q.batch, q.length, q.heads * s.value.width})
                      : dims_of({q.batch, q.heads, q.length, s.value.width}));
  c.set_output(1, type, dims_of({q.batch, s.key.heads, s.total, s.key.width}));
  c.set_output(2, type, dims_of({q.batch, s.key.heads, s.total, s.value.width}));
  c.set_output(3, type, dims_of({q.batch, q.heads, q.length, s.total}));
}

/// The keys or values of all heads, [batch, heads, total, width]: those of the past, input `past`,
/// then those of the node, input i.
template <class T>
void join_past(const operator_context& c, const head_view& v, std::size_t i, std::size_t past,
               std::size_t before, std::span<T> out) {
  const T* now = c.inputs[i].data<T>().data();
  T* to = out.data();
  for (std::size_t b = 0; b < v.batch; ++b) {
    for (std::size_t h = 0; h < v.heads; ++h) {
      if (before > 0) {
        const std::size_t count = before * v.width;
        to = std::copy_n(c.inputs[past].data<T>().data() + (b * v.heads + h) * count, count, to);
      }
      for (std::size_t place = 0; place < v.length; ++place) {
        to = std::copy_n(now + v.row(b, h, place), v.width, to);
      }
    }
  }
}

/// What is added to the score of a query and a key: 0, a value of the mask, or -infinity for keys
/// that the query must not see.
class score_bias {
 public:
  score_bias(const operator_context& c, const sizes& s)
      : c_(c),
        s_(s),
        causal_(c.n().get_int("is_causal", 0) != 0),
        left_(c.n().get_int("left_window_size", -1)),
        right_(c.n().get_int("right_window_size", -1)) {
    c.require(left_ >= -1 && right_ >= -1, "a window of ", left_, " keys before and ", right_,
              " behind");
    if (!c.has_input(3)) {
      return;
    }
    const shape& dims = c.inputs[3].dims();
    std::size_t step = 1;
    for (std::size_t back = 1; back <= dims.size(); ++back) {
      const auto extent = static_cast<std::size_t>(dims[dims.size() - back]);
      const bool is_broadcast = extent == 1 && (back > 1 || c.opset < 24);
      steps_[4 - back] = is_broadcast ? 0 : step;
      step *= extent;
    }
    mask_length_ = c.opset < 24 ? s.total : static_cast<std::size_t>(dims.back());
  }

  [[nodiscard]] double at(std::size_t b, std::size_t head, std::size_t query,
                          std::size_t key) const {
    constexpr double hidden = -std::numeric_limits<double>::infinity();
    const auto length = static_cast<std::int64_t>(s_.query.length);
    const std::int64_t valid = c_.has_input(6) ? c_.inputs[6].data<std::int64_t>()[b]
                                               : static_cast<std::int64_t>(s_.total);
    const std::int64_t offset =
        c_.has_input(6) ? valid - length : static_cast<std::int64_t>(s_.past);
    const auto j = static_cast<std::int64_t>(key);
    // How many keys the query is ahead of this one.
    const std::int64_t ahead = static_cast<std::int64_t>(query) + offset - j;
    if (j >= valid || (causal_ && ahead < 0) || (left_ >= 0 && ahead > left_) ||
        (right_ >= 0 && ahead < -right_)) {
      return hidden;
    }
    if (!c_.has_input(3)) {
      return 0.0;
    }
    if (key >= mask_length_) {
      return hidden;
    }
    const std::size_t element = place(b, head, query, key);
    const tensor& mask = c_.inputs[3];
    if (mask.type() == element_type::boolean) {
      return mask.data<std::uint8_t>()[element] != 0 ? 0.0 : hidden;
    }
    if (mask.type() == element_type::f32) {
      return static_cast<double>(mask.data<float>()[element]);
    }
    double number = 0.0;  // any other number is converted to the type of the scores
    load(c_, mask, element, std::span<double>(&number, 1));
    return c_.inputs[0].type() == element_type::f64
               ? number
               : static_cast<double>(static_cast<float>(number));
  }

  /// The element of the mask for a query and a key. The node must have a mask, and the key must lie
  /// within it.
  [[nodiscard]] std::size_t place(std::size_t b, std::size_t head, std::size_t query,
                                  std::size_t key) const {
    return b * steps_[0] + head * steps_[1] + query * steps_[2] + key * steps_[3];
  }

 private:
  const operator_context& c_;
  const sizes& s_;
  bool causal_;
  std::int64_t left_, right_;
  std::size_t steps_[4] = {0, 0, 0, 0};
  std::size_t mask_length_ = 0;
};

/// Turns the scores of one query into weights that sum up to 1, or into zeros if it sees no key.
/// `reported` takes the scores in the state that qk_matmul_output_mode names; it may be null.
template <class T>
void weigh_scores(const operator_context& c, const score_bias& bias, std::size_t b,
                  std::size_t head, std::size_t query, std::span<T> scores, T* reported) {
  const auto cap = static_cast<double>(c.n().get_float("softcap", 0.0F));
  const std::int64_t mode = c.n().get_int("qk_matmul_output_mode", 0);
  const auto report = [&](std::int64_t state) {
    if (reported != nullptr && mode == state) {
      std::copy(scores.begin(), scores.end(), reported);
    }
  };
  report(0);
  if (cap > 0.0) {
    for (T& x : scores) {
      x = static_cast<T>(cap * detent::detail::portable_tanh(static_cast<double>(x) / cap));
    }
  }
  report(1);
  bool sees_any = false;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const double added = bias.at(b, head, query, j);
    // A mask of NaN hides nothing: it makes the result NaN.
    sees_any = sees_any || !(added == -std::numeric_limits<double>::infinity());
    scores[j] = static_cast<T>(static_cast<double>(scores[j]) + added);
  }
  report(2);
  if (!sees_any) {
    std::fill(scores.begin(), scores.end(), T{0});
  } else if constexpr (std::is_same_v<T, float>) {
    row_kernels().softmax(scores.data(), 1, scores.size(), scores.data());
  } else {
    softmax_rows(scores, scores.size(), c.memory);
  }
  report(3);
}

/// The right side of the products of one head.
template <class T>
class right_side;

template <>
class right_side<float> {
 public:
  right_side(const operator_context& c, matrix_view<const float> w) : weights_(c, w) {}
  void multiply(matrix_view<const float> lhs, matrix_view<float> out) const {
    gemm(lhs, weights_.packed(), out);
  }

 private:
  computed_floats weights_;
};

template <>
class right_side<double> {
 public:
  right_side(const operator_context& /*c*/, matrix_view<const double> w) : weights_(w) {}
  void multiply(matrix_view<const double> lhs, matrix_view<double> out) const {
    for (std::size_t i = 0; i < lhs.rows; ++i) {
      for (std::size_t j = 0; j < weights_.columns; ++j) {
        double sum = 0.0;
        for (std::size_t k = 0; k < lhs.columns; ++k) {
          sum = std::fma(lhs(i, k), weights_(k, j), sum);
        }
        out(i, j) = sum;
      }
    }
  }

 private:
  matrix_view<const double> weights_;
};

/// Computes what the node asks for of one head, some queries at a time: the output, the scores, or
/// both.
template <class T>
void run_head(operator_context& c, const sizes& s, const score_bias& bias, std::size_t b,
              std::size_t head, const T* keys, const T* values, T scale) {
  constexpr std::size_t block = 64;
  const head_view& q = s.query;
  const std::size_t width = s.value.width;
  const right_side<T> all_keys(c, matrix_view<const T>(keys, s.total, q.width).transposed());
  const std::size_t used_values = c.has_output(0) ? s.total : 0;
  const right_side<T> all_values(c, matrix_view<const T>(values, used_values, width));
  std::pmr::vector<T> queries((std::min)(block, q.length) * q.width, c.memory);
  std::pmr::vector<T> scores((std::min)(block, q.length) * s.total, c.memory);
  const T* from = c.inputs[0].data<T>().data();
  const head_view out{q.batch, q.heads, q.length, width, q.flat};
  T* to = c.has_output(0) ? c.outputs[0].mutable_data<T>().data() : nullptr;
  T* reported = c.has_output(3) ? c.outputs[3].mutable_data<T>().data() +
                                      (b * q.heads + head) * q.length * s.total
                                : nullptr;
  for (std::size_t begin = 0; begin < q.length; begin += block) {
    const std::size_t rows = (std::min)(block, q.length - begin);
    for (std::size_t i = 0; i < rows; ++i) {
      std::transform(from + q.row(b, head, begin + i), from + q.row(b, head, begin + i) + q.width,
                     queries.data() + i * q.width, [scale](T x) { return x * scale; });
    }
    all_keys.multiply(matrix_view<const T>(queries.data(), rows, q.width),
                      matrix_view<T>(scores.data(), rows, s.total));
    for (std::size_t i = 0; i < rows; ++i) {
      weigh_scores(c, bias, b, head, begin + i, std::span<T>(scores).subspan(i * s.total, s.total),
                   reported == nullptr ? nullptr : reported + (begin + i) * s.total);
    }
    if (to == nullptr) {
      continue;
    }
    all_values.multiply(matrix_view<const T>(scores.data(), rows, s.total),
                        matrix_view<T>(to + out.row(b, head, begin), rows, width,
                                       static_cast<std::ptrdiff_t>(out.step())));
  }
}

/// Y = softmax(softcap(scale Q K^T) + mask) V for each head. Query and keys are each multiplied by
/// the root of the scale.
template <class T>
void run_as(operator_context& c) {
  const sizes s = read_sizes(c);
  const T default_scale = T{1} / std::sqrt(static_cast<T>(s.query.width));
  const double scale = c.n().find("scale") == nullptr
                           ? static_cast<double>(default_scale)
                           : static_cast<double>(c.n().get_float("scale", 0.0F));
  c.require(scale >= 0.0, "scale is ", scale);
  const T root = static_cast<T>(std::sqrt(scale));
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    if (c.has_output(i)) {
      c.make_output(i);
    }
  }
  if (c.has_input(6)) {
    for (const std::int64_t valid : c.inputs[6].data<std::int64_t>()) {
      c.require(valid >= 0 && static_cast<std::size_t>(valid) <= s.total, "nonpad_kv_seqlen is ",
                valid, " of ", s.total);
    }
  }
  const std::size_t groups = s.key.batch * s.key.heads;
  std::pmr::vector<T> keys(groups * s.total * s.key.width, c.memory);
  std::pmr::vector<T> values(groups * s.total * s.value.width, c.memory);
  join_past<T>(c, s.key, 1, 4, s.past, keys);
  join_past<T>(c, s.value, 2, 5, s.past, values);
  if (c.has_output(1)) {
    std::copy(keys.begin(), keys.end(), c.outputs[1].mutable_data<T>().begin());
  }
  if (c.has_output(2)) {
    std::copy(values.begin(), values.end(), c.outputs[2].mutable_data<T>().begin());
  }
  std::transform(keys.begin(), keys.end(), keys.begin(), [root](T x) { return x * root; });
  const std::size_t heads = s.query.heads;
  c.count_multiply_adds(
      {s.query.batch * heads, s.query.length, s.total, s.key.width + s.value.width});
  const score_bias bias(c, s);
  const auto is_wanted = [&c](std::size_t i) {
    return c.has_output(i) && c.outputs[i].count() > 0;
  };
  if (!is_wanted(0) && !is_wanted(3)) {
    return;
  }
  detent::detail::run_parallel(*c.parallel, s.query.batch * heads, [&](std::size_t task) {
    const std::size_t b = task / heads;
    const std::size_t group = b * s.key.heads + task % heads / (heads / s.key.heads);
    run_head<T>(c, s, bias, b, task % heads, keys.data() + group * s.total * s.key.width,
                values.data() + group * s.total * s.value.width, root);
  });
}

inline void run(operator_context& c) {
  for (const std::size_t i : {1U, 2U, 4U, 5U}) {
    c.require_supported(!c.has_input(i) || c.inputs[i].type() == c.inputs[0].type(), "input ", i,
                        " is ", shown(c.inputs[i].type()), ", input 0 is ",
                        shown(c.inputs[0].type()));
  }
  for_type(c, float_types{}, c.inputs[0].type(), [&]<class T>() { run_as<T>(c); });
}

// --- RotaryEmbedding -----------------------------------------------------------------------------

/// The number of leading elements of each head that RotaryEmbedding turns.
[[nodiscard]] inline std::size_t rotated_width(const operator_context& c, const head_view& x) {
  const std::int64_t given = c.n().get_int("rotary_embedding_dim", 0);
  const std::int64_t width = given == 0 ? static_cast<std::int64_t>(x.width) : given;
  c.require(width > 0 && width % 2 == 0 && width <= static_cast<std::int64_t>(x.width),
            "rotary_embedding_dim is ", width, " of ", x.width);
  return static_cast<std::size_t>(width);
}

inline void infer_rotary(operator_context& c) {
  const head_view x = view_heads(c, 0, c.n().get_int("num_heads", 0));
  const auto half = static_cast<std::int64_t>(rotated_width(c, x) / 2);
  const shape& cache = c.input(1).dims();
  const shape places = dims_of({x.batch, x.length});
  const bool fits = c.has_input(3)
                        ? cache.size() == 2 && c.inputs[3].dims() == places
                        : cache.size() == 3 && cache[0] == places[0] && cache[1] == places[1];
  c.require(fits && cache.back() == half && c.input(2).dims() == cache, "caches of shapes ",
            shown(cache), " and ", shown(c.input(2).dims()), " for an input of shape ",
            shown(c.input(0).dims()));
  c.require(!c.has_input(3) || c.inputs[3].type() == element_type::s64,
            "position_ids are not int64");
  infer_like_input(c);
}

/// Calls each(a, b, turn) for the pairs of elements (a, b) of each head that RotaryEmbedding turns
/// by an angle: `turn` is the index of its cosine and its sine in the caches. A pair consists of
/// neighbours if `interleaved`, otherwise of elements that are half the width apart.
template <class Each>
void for_each_rotation(const operator_context& c, const Each& each) {
  const head_view x = view_heads(c, 0, c.n().get_int("num_heads", 0));
  const std::size_t half = rotated_width(c, x) / 2;
  const bool interleaved = c.n().get_int("interleaved", 0) != 0;
  for (std::size_t b = 0; b < x.batch; ++b) {
    for (std::size_t place = 0; place < x.length; ++place) {
      std::size_t row = b * x.length + place;
      if (c.has_input(3)) {
        const std::int64_t at = c.inputs[3].data<std::int64_t>()[row];
        c.require(at >= 0 && at < c.input(1).dim(0), "position ", at, " in caches of ",
                  c.input(1).dim(0));
        row = static_cast<std::size_t>(at);
      }
      for (std::size_t head = 0; head < x.heads; ++head) {
        const std::size_t first = x.row(b, head, place);
        for (std::size_t i = 0; i < half; ++i) {
          each(first + (interleaved ? 2 * i : i), first + (interleaved ? 2 * i + 1 : half + i),
               row * half + i);
        }
      }
    }
  }
}

/// Turns pairs of elements (a, b) of each head: (cos a - sin b, sin a + cos b).
inline void run_rotary(operator_context& c) {
  for (std::size_t i = 0; i < 3; ++i) {
    c.require_supported(c.input(i).type() == element_type::f32, "input ", i,
                        " has no code for elements of type ", shown(c.input(i).type()));
  }
  const std::span<const float> in = c.input(0).data<float>();
  const float* cosines = c.input(1).data<float>().data();
  const float* sines = c.input(2).data<float>().data();
  const std::span<float> out = c.make_output(0).mutable_data<float>();
  std::copy(in.begin(), in.end(), out.begin());
  if (in.empty()) {
    return;
  }
  for_each_rotation(c, [&](std::size_t at_a, std::size_t at_b, std::size_t turn) {
    const auto cosine = static_cast<double>(cosines[turn]);
    const auto sine = static_cast<double>(sines[turn]);
    const auto a = static_cast<double>(in[at_a]);
    const auto p = static_cast<double>(in[at_b]);
    // Products of floats are exact in double.
    out[at_a] = static_cast<float>(cosine * a - sine * p);
    out[at_b] = static_cast<float>(sine * a + cosine * p);
  });
}

}  // namespace attention

inline constexpr operator_definition attention_operators[] = {
    {"", "Attention", 3, 7, layout_support::plain, attention::infer, attention::run, true},
    {"", "RotaryEmbedding", 3, 4, layout_support::plain, attention::infer_rotary,
     attention::run_rotary, true},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_ATTENTION_HPP
