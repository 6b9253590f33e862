// SPDX-License-Identifier: BSD-3-Clause
// What a Resize or Upsample node says: its method, the lengths of its axes, and for each element of
// the output along an axis the elements of the input that it is made of, with their weights.
#ifndef DETENT_GRAPH_OPS_RESIZE_WEIGHTS_HPP
#define DETENT_GRAPH_OPS_RESIZE_WEIGHTS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/movement.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace resizing {

enum class mode : std::uint8_t { nearest, linear, cubic };

/// How an index of the output becomes a coordinate of the input (ONNX's
/// coordinate_transformation_mode); see coordinate().
enum class coordinates : std::uint8_t {
  half_pixel,
  half_pixel_symmetric,
  pytorch_half_pixel,
  align_corners,
  asymmetric,
  tf_half_pixel_for_nn,
  tf_crop_and_resize,
};

/// How a coordinate becomes the index of the nearest element (ONNX's nearest_mode).
enum class rounding : std::uint8_t {
  prefer_floor,
  prefer_ceil,
  floor,
  ceil,
  by_direction,  // Upsample, and Resize before opset 11: floor, or ceil if the axis shrinks
};

struct method {
  mode how = mode::nearest;
  coordinates where = coordinates::asymmetric;
  rounding nearest = rounding::by_direction;
  float cubic_a = -0.75F;
  bool exclude_outside = false;
  bool antialias = false;
  float extrapolation = 0.0F;  // for coordinates outside of the input; only tf_crop_and_resize
};

template <class Enum>
struct named_value {
  std::string_view name;
  Enum value;
};
/// The enumerator for the value of a string attribute, among those that are supported. Throws
/// unsupported, naming the node, for any other value.
template <class Enum, std::size_t Count>
[[nodiscard]] Enum choose(const operator_context& c, std::string_view attribute_name,
                          std::string_view otherwise, const named_value<Enum> (&choices)[Count]) {
  const std::string given = c.n().get_string(attribute_name, std::string(otherwise));
  for (const named_value<Enum>& choice : choices) {
    if (choice.name == given) {
      return choice.value;
    }
  }
  c.require_supported(false, "no code for ", attribute_name, " ", given);
  return choices[0].value;
}

[[nodiscard]] inline bool is_upsample(const operator_context& c) {
  return c.n().op_type == "Upsample";
}

[[nodiscard]] inline method method_of(const operator_context& c) {
  // "bilinear" is what Upsample's linear was called before opset 7; converters still write it.
  static constexpr named_value<mode> modes[] = {{"nearest", mode::nearest},
                                                {"linear", mode::linear},
                                                {"bilinear", mode::linear},
                                                {"cubic", mode::cubic}};
  static constexpr named_value<coordinates> transformations[] = {
      {"half_pixel", coordinates::half_pixel},
      {"half_pixel_symmetric", coordinates::half_pixel_symmetric},
      {"pytorch_half_pixel", coordinates::pytorch_half_pixel},
      {"align_corners", coordinates::align_corners},
      {"asymmetric", coordinates::asymmetric},
      {"tf_half_pixel_for_nn", coordinates::tf_half_pixel_for_nn},
      {"tf_crop_and_resize", coordinates::tf_crop_and_resize}};
  static constexpr named_value<rounding> roundings[] = {
      {"round_prefer_floor", rounding::prefer_floor},
      {"round_prefer_ceil", rounding::prefer_ceil},
      {"floor", rounding::floor},
      {"ceil", rounding::ceil}};
  method m;
  m.how = choose(c, "mode", "nearest", modes);
  if (is_upsample(c) || c.opset < 11) {
    return m;
  }
  m.where = choose(c, "coordinate_transformation_mode", "half_pixel", transformations);
  m.nearest = choose(c, "nearest_mode", "round_prefer_floor", roundings);
  m.cubic_a = c.n().get_float("cubic_coeff_a", -0.75F);
  m.exclude_outside = c.n().get_int("exclude_outside", 0) != 0;
  m.antialias = c.n().get_int("antialias", 0) != 0;
  m.extrapolation = c.n().get_float("extrapolation_value", 0.0F);
  return m;
}

/// The lengths of one axis and the scale that the model gives. The scale need not be the ratio of
/// the lengths: 5 elements scaled by 1.5 make 7, not 7.5.
struct axis_size {
  std::int64_t in = 0;
  std::int64_t out = 0;
  float scale = 1.0F;
  bool sized = true;        // the model gives sizes; if false, it gives scales
  float crop_begin = 0.0F;  // the part of the axis that tf_crop_and_resize takes, of a length of 1
  float crop_end = 1.0F;

  /// An axis that is not resized stays as it is, even where the transformation would shift it.
  [[nodiscard]] bool is_resized() const noexcept {
    return in != out || scale != 1.0F || crop_begin != 0.0F || crop_end != 1.0F;
  }
};

[[nodiscard]] inline axis_size by_scale(const operator_context& c, std::int64_t in, float scale) {
  // In float, as every other implementation computes it: 3 * 1.3333334F is 4.
  const float out = std::floor(static_cast<float>(in) * scale);
  c.require(scale > 0.0F && out < 0x1p40F, "scale ", scale, " of a dimension of ", in);
  c.require(in > 0 || out <= 0.0F, "scale ", scale, " of a dimension of ", in);
  return {in, static_cast<std::int64_t>(out), scale, false};
}
[[nodiscard]] inline axis_size by_size(const operator_context& c, std::int64_t in,
                                       std::int64_t out) {
  c.require(out >= 0 && (in > 0 || out == 0), "size ", out, " for a dimension of ", in);
  const float scale = in == 0 ? 1.0F : static_cast<float>(out) / static_cast<float>(in);
  return {in, out, scale, true};
}

/// Replaces the scales of the listed axes by one factor for all of them: the one of the largest
/// output that is nowhere larger than the given sizes (`not_larger`), or of the smallest output
/// that is nowhere smaller.
inline void keep_aspect_ratio(const operator_context& c, const std::vector<std::size_t>& axes,
                              bool not_larger, std::vector<axis_size>& sizes) {
  std::optional<float> factor;
  for (const std::size_t a : axes) {
    const float scale = sizes[a].scale;
    factor = !factor ? scale : not_larger ? (std::min)(*factor, scale) : (std::max)(*factor, scale);
  }
  for (const std::size_t a : axes) {
    const float out = std::floor(*factor * static_cast<float>(sizes[a].in) + 0.5F);
    c.require(out < 0x1p40F, "size ", out, " for a dimension of ", sizes[a].in);
    sizes[a] = {sizes[a].in, static_cast<std::int64_t>(out), *factor, true};
  }
}

/// The elements of input i, which must be float32. Throws value_unknown if they are not known,
/// which happens only while shapes are inferred.
[[nodiscard]] inline std::vector<float> floats(const operator_context& c, std::size_t i) {
  const tensor& t = c.input(i);
  c.require(t.type() == element_type::f32, "input ", i, " is ", name(t.type()), ", not float32");
  if (!t.has_data()) {
    throw value_unknown{};
  }
  const auto values = t.data<float>();
  return {values.begin(), values.end()};
}

/// The scales of the node, from an attribute or an input depending on operator and opset; nothing
/// if the node gives sizes instead.
[[nodiscard]] inline std::optional<std::vector<float>> scales(const operator_context& c) {
  if (is_upsample(c) && c.opset < 9) {
    const attribute* a = c.n().find("scales");
    c.require(a != nullptr && a->kind == attribute::kind_type::floats, "no attribute scales");
    return a->floats;
  }
  if (is_upsample(c) || c.opset < 11) {
    return floats(c, 1);
  }
  const bool by_scales = c.has_input(2) && c.input(2).count() > 0;
  const bool by_sizes = c.has_input(3) && c.input(3).count() > 0;
  const bool scalar = c.input(0).rank() == 0;
  c.require(by_scales != by_sizes || scalar, "needs scales or sizes, and not both");
  return by_scales ? std::optional(floats(c, 2)) : std::nullopt;
}

/// Reads the part of each listed axis that tf_crop_and_resize takes: input 1 holds where the parts
/// begin, then where they end.
inline void read_crops(const operator_context& c, const std::vector<std::size_t>& axes,
                       std::vector<axis_size>& sizes) {
  const std::vector<float> roi = floats(c, 1);
  c.require(roi.size() == 2 * axes.size(), "roi has ", roi.size(), " values for ", axes.size(),
            " axes");
  for (std::size_t i = 0; i < axes.size(); ++i) {
    axis_size& s = sizes[axes[i]];
    s.crop_begin = roi[i];
    s.crop_end = roi[axes.size() + i];
    c.require(std::fabs(s.crop_begin) <= 0x1p30F && std::fabs(s.crop_end) <= 0x1p30F,
              "a part from ", s.crop_begin, " to ", s.crop_end, " of an axis");
    if (!s.sized) {
      const float out =
          std::floor(static_cast<float>(s.in) * (s.crop_end - s.crop_begin) * s.scale);
      c.require(out >= 0.0F && out < 0x1p40F, "a part from ", s.crop_begin, " to ", s.crop_end,
                " of a dimension of ", s.in, ", scaled by ", s.scale);
      s.out = static_cast<std::int64_t>(out);
    }
  }
}

[[nodiscard]] inline std::vector<axis_size> axis_sizes(const operator_context& c) {
  const shape& dims = c.input(0).dims();
  std::vector<axis_size> result;
  for (const std::int64_t dim : dims) {
    result.push_back({dim, dim, 1.0F, true});
  }
  std::optional<std::vector<std::int64_t>> given_axes;
  if (!is_upsample(c) && c.opset >= 18 && c.n().find("axes") != nullptr) {
    given_axes = c.n().get_ints("axes");
  }
  const std::size_t count = given_axes ? given_axes->size() : dims.size();
  const std::vector<std::size_t> axes = listed_axes(c, given_axes, count, dims.size());
  if (const auto factors = scales(c)) {
    c.require(factors->size() == count, factors->size(), " scales for ", count, " axes");
    for (std::size_t i = 0; i < count; ++i) {
      result[axes[i]] = by_scale(c, dims[axes[i]], (*factors)[i]);
    }
    if (method_of(c).where == coordinates::tf_crop_and_resize) {
      read_crops(c, axes, result);
    }
    return result;
  }
  const std::vector<std::int64_t> sizes = c.integers(3);
  c.require(sizes.size() == count, sizes.size(), " sizes for ", count, " axes");
  for (std::size_t i = 0; i < count; ++i) {
    result[axes[i]] = by_size(c, dims[axes[i]], sizes[i]);
  }
  const std::string policy =
      c.opset >= 18 ? c.n().get_string("keep_aspect_ratio_policy", "stretch") : "stretch";
  c.require(policy == "stretch" || policy == "not_larger" || policy == "not_smaller",
            "keep_aspect_ratio_policy ", policy);
  if (policy != "stretch") {
    keep_aspect_ratio(c, axes, policy == "not_larger", result);
  }
  if (method_of(c).where == coordinates::tf_crop_and_resize) {
    read_crops(c, axes, result);
  }
  return result;
}

/// The input coordinate of output element `i`. It is computed in float, so that ties in the choice
/// of the nearest element fall where other implementations have them.
[[nodiscard]] inline float coordinate(coordinates where, const axis_size& s, std::int64_t i) {
  const auto x = static_cast<float>(i);
  const float scaled = s.scale * static_cast<float>(s.in);  // length before rounding down
  switch (where) {
    case coordinates::half_pixel:
      return (x + 0.5F) / s.scale - 0.5F;
    case coordinates::half_pixel_symmetric: {
      // In double the product is exact: the same bits with and without contraction.
      const auto outside = static_cast<double>(1.0F - static_cast<float>(s.out) / scaled);
      const double offset = static_cast<double>(s.in) / 2.0 * outside;
      return static_cast<float>(offset + static_cast<double>((x + 0.5F) / s.scale - 0.5F));
    }
    case coordinates::pytorch_half_pixel:
      return s.out > 1 ? (x + 0.5F) / s.scale - 0.5F : 0.0F;
    case coordinates::align_corners: {
      // If the model gives scales, the last corner is that of the length before rounding, as in
      // ONNX's tests.
      const float length = s.sized ? static_cast<float>(s.out) : scaled;
      return s.out > 1 ? x * static_cast<float>(s.in - 1) / (length - 1.0F) : 0.0F;
    }
    case coordinates::asymmetric:
      return x / s.scale;
    case coordinates::tf_half_pixel_for_nn:
      return (x + 0.5F) / s.scale;
    case coordinates::tf_crop_and_resize: {
      // In double, where the products of floats are exact; rounded where the input would be left.
      const auto last = static_cast<double>(s.in - 1);
      const auto begin = static_cast<double>(s.crop_begin);
      const auto end = static_cast<double>(s.crop_end);
      const double at = s.out > 1 ? static_cast<double>(i) / static_cast<double>(s.out - 1) : 0.5;
      return static_cast<float>(std::fma(end - begin, at, begin) * last);
    }
  }
  return x;
}

/// The index clamped to [0, in). The result is clamped once more as an integer, because beyond 2^24
/// the float of in - 1 may be rounded up to an index outside.
[[nodiscard]] inline std::size_t clamped(float index, std::int64_t in) {
  const auto last = static_cast<float>(in - 1);
  const auto inside = static_cast<std::int64_t>((std::min)((std::max)(index, 0.0F), last));
  return static_cast<std::size_t>((std::min)(inside, in - 1));
}

[[nodiscard]] inline float round_coordinate(rounding how, float x, float scale) {
  switch (how) {
    case rounding::prefer_floor:
      return std::ceil(x - 0.5F);
    case rounding::prefer_ceil:
      return std::floor(x + 0.5F);
    case rounding::floor:
      return std::floor(x);
    case rounding::ceil:
      return std::ceil(x);
    case rounding::by_direction:
      return scale < 1.0F ? std::ceil(x) : std::floor(x);
  }
  return x;
}

[[nodiscard]] inline movement::index_map nearest_map(const operator_context& c, const method& m,
                                                     const axis_size& s) {
  movement::index_map map(c.memory);
  map.reserve(static_cast<std::size_t>(s.out));
  for (std::int64_t i = 0; i < s.out; ++i) {
    const float x = coordinate(m.where, s, i);
    map.push_back(s.is_resized() ? clamped(round_coordinate(m.nearest, x, s.scale), s.in)
                                 : static_cast<std::size_t>(i));
  }
  return map;
}

/// For each output element along an axis, the `taps` input elements that it is computed from and
/// their weights.
struct weighted_map {
  std::size_t taps = 0;
  std::pmr::vector<std::size_t> index;
  std::pmr::vector<float> weight;
};

/// The weights of the cubic convolution kernel with parameter a for 4 neighbouring elements and a
/// coordinate that is x, 0 <= x < 1, beyond the second of them.
inline void cubic_weights(double a, double x, double (&w)[4]) {
  const auto near = [a](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  const auto far = [a](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  w[0] = far(x + 1);
  w[1] = near(x);
  w[2] = near(1 - x);
  w[3] = far(2 - x);
}

inline void add_cubic(const method& m, const axis_size& s, float x, weighted_map& map) {
  const float below = std::floor(x);
  double w[4];
  cubic_weights(static_cast<double>(m.cubic_a), static_cast<double>(x - below), w);
  double sum = 0.0;
  for (int k = 0; k < 4; ++k) {
    const float at = below + static_cast<float>(k - 1);
    if (m.exclude_outside && (at < 0.0F || at > static_cast<float>(s.in - 1))) {
      w[k] = 0.0;
    }
    sum += w[k];
    map.index.push_back(clamped(at, s.in));
  }
  for (const double v : w) {
    map.weight.push_back(static_cast<float>(m.exclude_outside && sum != 0.0 ? v / sum : v));
  }
}

inline void add_linear(const axis_size& s, float x, weighted_map& map) {
  const float inside = (std::min)((std::max)(x, 0.0F), static_cast<float>(s.in - 1));
  const float below = std::floor(inside);
  const float fraction = inside - below;
  map.index.push_back(clamped(below, s.in));
  map.index.push_back(clamped(below + 1.0F, s.in));
  map.weight.push_back(1.0F - fraction);
  map.weight.push_back(fraction);
}

/// The kernel of an interpolation at distance d from its centre.
[[nodiscard]] inline double kernel_at(const method& m, double d) {
  const double x = std::fabs(d);
  if (m.how == mode::linear) {
    return x < 1.0 ? 1.0 - x : 0.0;
  }
  double w[4];
  if (x <= 1.0) {
    cubic_weights(static_cast<double>(m.cubic_a), x, w);
    return w[1];
  }
  if (x >= 2.0) {
    return 0.0;
  }
  cubic_weights(static_cast<double>(m.cubic_a), 2.0 - x, w);
  return w[3];
}

/// The factor by which antialias stretches the kernel of an axis that shrinks.
[[nodiscard]] inline double stretch(const axis_size& s) {
  return static_cast<double>((std::min)(s.scale, 1.0F));
}

/// The number of input elements on either side of a coordinate that the stretched kernel covers.
[[nodiscard]] inline std::int64_t reach(const method& m, const axis_size& s) {
  const double width = m.how == mode::cubic ? 2.0 : 1.0;
  return -static_cast<std::int64_t>(std::floor(-width / stretch(s)));
}

/// Adds the weights of a kernel that is stretched over more input elements if the axis shrinks, so
/// that each of these counts. Their sum is 1.
inline void add_antialiased(const method& m, const axis_size& s, float x, weighted_map& map) {
  const float below = std::ceil(x) - 1.0F;  // the elements lie at distances (0, 1], (1, 2], ...
  const auto distance = static_cast<double>(x - below);
  const std::int64_t far = reach(m, s);
  std::pmr::vector<double> w(map.weight.get_allocator().resource());
  double sum = 0.0;
  for (std::int64_t k = 1 - far; k <= far; ++k) {
    const float at = below + static_cast<float>(k);
    const bool inside = at >= 0.0F && at < static_cast<float>(s.in);
    const bool counts = inside || !m.exclude_outside;
    w.push_back(counts ? kernel_at(m, (static_cast<double>(k) - distance) * stretch(s)) : 0.0);
    sum += w.back();
    map.index.push_back(clamped(at, s.in));
  }
  for (const double v : w) {
    map.weight.push_back(static_cast<float>(sum != 0.0 ? v / sum : v));
  }
}

[[nodiscard]] inline weighted_map weights(const operator_context& c, const method& m,
                                          const axis_size& s) {
  c.require(!m.antialias || s.scale > 0x1p-32F, "scale ", s.scale, " with antialias");
  const std::size_t taps = m.antialias            ? static_cast<std::size_t>(2 * reach(m, s))
                           : m.how == mode::cubic ? 4
                                                  : 2;
  c.count_multiply_adds({taps, static_cast<std::size_t>(s.out)});
  weighted_map map{taps, std::pmr::vector<std::size_t>(c.memory),
                   std::pmr::vector<float>(c.memory)};
  map.index.reserve(taps * static_cast<std::size_t>(s.out));
  map.weight.reserve(taps * static_cast<std::size_t>(s.out));
  for (std::int64_t i = 0; i < s.out; ++i) {
    const float x = s.is_resized() ? coordinate(m.where, s, i) : static_cast<float>(i);
    if (m.antialias) {
      add_antialiased(m, s, x, map);
    } else if (m.how == mode::cubic) {
      add_cubic(m, s, x, map);
    } else {
      add_linear(s, x, map);
    }
  }
  return map;
}

/// True if every output element is the input element of the same index.
[[nodiscard]] inline bool changes_nothing(const weighted_map& map, const axis_size& s) {
  if (s.in != s.out) {
    return false;
  }
  for (std::size_t i = 0; i < map.index.size(); ++i) {
    const bool same = map.index[i] == i / map.taps;
    if (map.weight[i] != 0.0F && !(same && map.weight[i] == 1.0F)) {
      return false;
    }
  }
  return true;
}

}  // namespace resizing
}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_RESIZE_WEIGHTS_HPP
