// SPDX-License-Identifier: BSD-3-Clause
// Operators that bring groups of elements to a common scale: normalizations and LRN.
//
// Sums are made in double. Those of InstanceNormalization, GroupNormalization, LayerNormalization
// and RMSNormalization have the parts of base/float_rows.hpp. Factors of a product that is added to
// something are rounded to the type of the elements first: the product of two floats is exact in
// double, so that results have the same bits whether or not the compiler contracts product and sum.
#ifndef DETENT_GRAPH_OPS_NORMALIZATION_HPP
#define DETENT_GRAPH_OPS_NORMALIZATION_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/axis_view.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/row_kernels.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The first input seen as [batch, channels, rest]; a vector has one channel.
[[nodiscard]] inline axis_view channel_view(const operator_context& c) {
  const shape& dims = c.input(0).dims();
  c.require(!dims.empty(), "the input has no dimensions");
  return dims.size() == 1 ? axis_view{static_cast<std::size_t>(dims[0]), 1, 1} : view_axis(dims, 1);
}

/// Input i, which must be a vector of `count` elements of the type of the first input.
template <class T>
[[nodiscard]] std::span<const T> vector_input(const operator_context& c, std::size_t i,
                                              std::size_t count) {
  const tensor& t = c.input(i);
  c.require(t.rank() == 1 && t.count() == count, "input ", i, " has shape ", shown(t.dims()),
            ", not [", count, "]");
  c.require_supported(t.type() == c.input(0).type(), "input ", i, " is ", graph::name(t.type()),
                      ", input 0 is ", graph::name(c.input(0).type()));
  return t.data<T>();
}

[[nodiscard]] inline double epsilon_of(const node& n) {
  return static_cast<double>(n.get_float("epsilon", 1e-5F));
}

/// The function y = x * factor + offset. The factor has the type of x, so that the product of
/// floats is exact in double and contraction does not change the result.
template <class T>
struct line {
  T factor;
  double offset;
  /// The line scale * (x - mean) / sqrt(variance + epsilon) + bias.
  [[nodiscard]] static line through(T scale, double mean, double variance, double epsilon, T bias) {
    line l;
    l.factor = static_cast<T>(static_cast<double>(scale) / std::sqrt(variance + epsilon));
    l.offset = std::fma(-mean, static_cast<double>(l.factor), static_cast<double>(bias));
    return l;
  }
  [[nodiscard]] T operator()(T x) const {
    return static_cast<T>(static_cast<double>(x) * static_cast<double>(factor) + offset);
  }
  /// Writes the values of the line at all x to y.
  void map(std::span<const T> x, T* y) const {
    constexpr std::size_t few = 8;  // which take less time than the call
    if constexpr (std::is_same_v<T, float>) {
      if (x.size() > few) {
        row_kernels().map_by_line(x.data(), x.size(), static_cast<double>(factor), offset, y);
        return;
      }
    }
    std::transform(x.begin(), x.end(), y, *this);
  }
};

// --- BatchNormalization --------------------------------------------------------------------------

/// True if a BatchNormalization node takes the statistics of the batch and updates the running
/// ones. Before opset 14 such a node is known by its outputs, and is not supported.
[[nodiscard]] inline bool trains_statistics(const operator_context& c) {
  return c.opset >= 14 && c.n().get_int("training_mode", 0) != 0;
}

inline void infer_batch_normalization(operator_context& c) {
  bool has_more = false;
  for (std::size_t i = 1; i < c.n().outputs.size(); ++i) {
    has_more = has_more || c.has_output(i);
  }
  c.require_supported(c.opset >= 14 || !has_more,
                      "training is not supported before opset 14; this is opset ", c.opset);
  c.require_supported(c.opset >= 9 || c.n().get_int("spatial", 1) != 0,
                      "spatial=0 is not supported");
  const bool training = trains_statistics(c);
  c.require(training || !has_more, "has more than one output, which is for training");
  infer_like_input(c);
  if (training) {
    c.require(c.input(0).count() > 0, "no elements to take statistics of");
    c.set_output(1, c.input(3).type(), c.input(3).dims());
    c.set_output(2, c.input(4).type(), c.input(4).dims());
  }
}

/// The moments of one channel in two passes, over all images. The input must not be empty.
template <class T>
[[nodiscard]] moments channel_moments(std::span<const T> x, const axis_view& v,
                                      std::size_t channel) {
  const auto count = static_cast<double>(v.outer * v.inner);
  const auto for_each = [&](const auto& each) {
    for (std::size_t n = 0; n < v.outer; ++n) {
      for (const T element : x.subspan((n * v.length + channel) * v.inner, v.inner)) {
        each(static_cast<double>(element));
      }
    }
  };
  moments m;
  for_each([&m](double element) { m.mean += element; });
  m.mean /= count;
  for_each([&m](double element) {
    const auto difference = static_cast<double>(static_cast<T>(element - m.mean));
    m.variance += difference * difference;
  });
  m.variance /= count;
  return m;
}

/// Writes what becomes of a running statistic of a channel, running * momentum + current *
/// (1 - momentum), to output i if the node has it.
template <class T>
void update_running(operator_context& c, std::size_t i, std::size_t channel, double current) {
  if (!c.has_output(i)) {
    return;
  }
  const float momentum = c.n().get_float("momentum", 0.9F);
  const auto running = static_cast<double>(c.input(i + 2).data<T>()[channel]);
  const double kept = running * static_cast<double>(momentum);  // exact for floats
  const auto rest = static_cast<double>(1.0F - momentum);
  c.outputs[i].mutable_data<T>()[channel] = static_cast<T>(std::fma(current, rest, kept));
}

/// Without training, y = (x - mean) / sqrt(variance + epsilon) * scale + bias with the mean and the
/// variance of inputs 3 and 4. In training these are the running statistics, which are updated, and
/// the mean and the variance (the sum of squares divided by their number) of the batch are used.
template <class T>
void run_batch_normalization_as(operator_context& c) {
  const axis_view v = channel_view(c);
  const bool training = trains_statistics(c);
  const std::span<const T> x = c.input(0).data<T>();
  const std::span<T> y = c.make_output_over(0, {0}).mutable_data<T>();
  const auto scale = vector_input<T>(c, 1, v.length);
  const auto bias = vector_input<T>(c, 2, v.length);
  const auto mean = vector_input<T>(c, 3, v.length);
  const auto variance = vector_input<T>(c, 4, v.length);
  for (std::size_t i = 1; training && i < 3; ++i) {
    if (c.has_output(i)) {
      c.make_output(i);
    }
  }
  if (x.empty()) {
    return;
  }
  const double epsilon = epsilon_of(c.n());
  std::pmr::vector<line<T>> lines(v.length, c.memory);
  for (std::size_t i = 0; i < v.length; ++i) {
    moments m{static_cast<double>(mean[i]), static_cast<double>(variance[i])};
    if (training) {
      m = channel_moments(x, v, i);
      update_running<T>(c, 1, i, m.mean);
      update_running<T>(c, 2, i, m.variance);
    }
    lines[i] = line<T>::through(scale[i], m.mean, m.variance, epsilon, bias[i]);
  }
  for_pieces(c, v.outer * v.length, rows_of(cheap_piece, v.inner),
             [&](std::size_t begin, std::size_t end) {
               for (std::size_t row = begin; row < end; ++row) {
                 const line<T> l = lines[row % v.length];
                 l.map(x.subspan(row * v.inner, v.inner), y.data() + row * v.inner);
               }
             });
}

inline void run_batch_normalization(operator_context& c) {
  for_type(c, float_types{}, c.input(0).type(),
           [&]<class T>() { run_batch_normalization_as<T>(c); });
}

// --- InstanceNormalization and GroupNormalization ------------------------------------------------

/// Normalizes each of `groups` groups of channels by its own mean and variance. Scale and bias have
/// one value for each channel or, if they have fewer, one for each v.length / scale.size()
/// neighbouring channels.
template <class T>
void normalize_groups(operator_context& c, const axis_view& v, std::size_t groups,
                      std::span<const T> scale, std::span<const T> bias) {
  const std::span<const T> x = c.input(0).data<T>();
  const std::span<T> y = c.make_output_over(0, {0}).mutable_data<T>();
  if (x.empty()) {
    return;
  }
  const std::size_t channels = v.length / groups;
  const std::size_t size = channels * v.inner;
  const std::size_t together = v.length / scale.size();
  const double epsilon = epsilon_of(c.n());
  const auto normalize = [&](std::size_t group, const moments& m) {
    for (std::size_t i = 0; i < channels; ++i) {
      const std::size_t given = (group % groups * channels + i) / together;
      const auto l = line<T>::through(scale[given], m.mean, m.variance, epsilon, bias[given]);
      const std::size_t at = group * size + i * v.inner;
      l.map(x.subspan(at, v.inner), y.data() + at);
    }
  };
  for_pieces(c, v.outer * groups, rows_of(cheap_piece, size),
             [&](std::size_t begin, std::size_t end) {
               for_each_moments(x, size, begin, end, normalize);
             });
}

inline void infer_with_channels(operator_context& c) {
  c.require(c.input(0).rank() >= 2, "an input of shape ", shown(c.input(0).dims()),
            " has no channels");
  infer_like_input(c);
}

inline void run_instance_normalization(operator_context& c) {
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    const axis_view v = channel_view(c);
    normalize_groups(c, v, v.length, vector_input<T>(c, 1, v.length),
                     vector_input<T>(c, 2, v.length));
  });
}

inline void run_group_normalization(operator_context& c) {
  const axis_view v = channel_view(c);
  const std::int64_t attribute = c.n().get_int("num_groups", 0);
  c.require(attribute > 0 && v.length % static_cast<std::size_t>(attribute) == 0, "num_groups is ",
            attribute, " for ", v.length, " channels");
  const auto groups = static_cast<std::size_t>(attribute);
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    const std::size_t given =
        c.opset < 21 ? groups : v.length;  // opset 18: one value for each group
    normalize_groups(c, v, groups, vector_input<T>(c, 1, given), vector_input<T>(c, 2, given));
  });
}

// --- LayerNormalization --------------------------------------------------------------------------

/// The type of the means and deviations that LayerNormalization returns: the attribute stash_type,
/// which must be float or bfloat16 then. It also names the type in which ONNX makes them; here they
/// are made in double whatever it is, and rounded once.
[[nodiscard]] inline element_type stash_type(const operator_context& c) {
  const auto type = static_cast<element_type>(c.n().get_int("stash_type", 1));
  const bool is_returned = c.has_output(1) || c.has_output(2);
  const bool is_of_results = type == element_type::f32 || type == element_type::bf16;
  c.require_supported(
      is_of_results || (!is_returned && (type == element_type::undefined ||
                                         type == element_type::f16 || type == element_type::f64)),
      "stash_type ", shown(type), is_returned ? " of returned means" : "");
  return type;
}

inline void infer_layer_normalization(operator_context& c) {
  const tensor& x = c.input(0);
  const std::size_t first = c.axis(c.n().get_int("axis", -1), x.rank());
  const element_type stashed = stash_type(c);
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    if (c.has_input(i)) {
      c.require(broadcast_dims(c, x.dims(), c.input(i).dims()) == x.dims(), "input ", i,
                " has shape ", shown(c.input(i).dims()), ", the first ", shown(x.dims()));
      c.require_supported(c.input(i).type() == x.type(), "input ", i, " is ",
                          graph::name(c.input(i).type()), ", input 0 is ", graph::name(x.type()));
    }
  }
  infer_like_input(c);
  shape statistics = x.dims();
  std::fill(statistics.begin() + static_cast<std::ptrdiff_t>(first), statistics.end(), 1);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (c.has_output(i)) {
      c.set_output(i, stashed, statistics);
    }
  }
}

/// (x - centre) * factor for a row, times a scale and plus a bias for each element if they are
/// there (the bias only with a scale), as detail::standardize_row() has it for floats.
template <class T>
void standardize(std::span<const T> x, double centre, double factor, const T* scale, const T* bias,
                 T* y) {
  if constexpr (std::is_same_v<T, float>) {
    row_kernels().standardize(x.data(), x.size(), centre, factor, scale, bias, y);
  } else {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T value = (x[i] - centre) * factor;
      y[i] = scale == nullptr  ? value
             : bias == nullptr ? value * scale[i]
                               : std::fma(value, scale[i], bias[i]);
    }
  }
}

/// Computes (x - mean) / sqrt(variance + epsilon) for each row of `size` elements into output 0,
/// with standardize(), and stores mean and 1 / sqrt(variance + epsilon) of each row if the node has
/// outputs for them.
template <class T>
void standardize_rows(operator_context& c, std::size_t rows, std::size_t size, const T* scale,
                      const T* bias) {
  const double epsilon = epsilon_of(c.n());
  const std::span<const T> x = c.input(0).data<T>();
  const std::span<T> y = c.make_output_over(0, {0}).mutable_data<T>();
  std::array<tensor*, 2> statistics{};
  for (std::size_t i = 0; i < 2; ++i) {
    if (c.has_output(i + 1)) {
      statistics[i] = &c.make_output(i + 1);
    }
  }
  if (x.empty() && statistics[0] == nullptr && statistics[1] == nullptr) {
    return;  // there may be very many rows of no elements
  }
  for_pieces(c, rows, rows_of(cheap_piece, size), [&](std::size_t begin, std::size_t end) {
    for_each_moments(x, size, begin, end, [&](std::size_t row, const moments& m) {
      const auto from = x.subspan(row * size, size);
      const double inverse = 1.0 / std::sqrt(m.variance + epsilon);
      standardize(from, m.mean, inverse, scale, bias, y.data() + row * size);
      const std::array<double, 2> values{m.mean, inverse};
      for (std::size_t i = 0; i < 2; ++i) {
        if (statistics[i] != nullptr) {
          store(std::span<const double>(&values[i], 1), *statistics[i], row);
        }
      }
    });
  });
}

/// True if a factor of normalized rows has one value for each element of a row, and they are the
/// same in all rows.
[[nodiscard]] inline bool is_for_elements(const tensor& t, const axis_view& v, std::size_t rank,
                                          std::size_t axis) {
  return t.count() == v.length && t.rank() <= rank - axis;
}

inline void run_layer_normalization(operator_context& c) {
  const shape& dims = c.input(0).dims();
  const std::size_t first = c.axis(c.n().get_int("axis", -1), dims.size());
  const axis_view v = view_dims(dims, first, dims.size());
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    const bool has_bias = c.has_input(2);
    if (is_for_elements(c.input(1), v, dims.size(), first) &&
        (!has_bias || is_for_elements(c.input(2), v, dims.size(), first))) {
      standardize_rows<T>(c, v.outer, v.length, c.input(1).data<T>().data(),
                          has_bias ? c.input(2).data<T>().data() : nullptr);
      return;
    }
    standardize_rows<T>(c, v.outer, v.length, nullptr, nullptr);
    const std::span<T> y = c.outputs[0].mutable_data<T>();
    const operand<T> normalized{y.data(), &dims};
    const operand<T> scale = operand_of<T>(c.input(1));
    if (!has_bias) {
      map_broadcast(
          c, [](T x, T s) { return x * s; }, normalized, scale, y, dims);
      return;
    }
    const auto scale_and_shift = [](T x, T s, T b) { return std::fma(x, s, b); };
    map_broadcast(c, scale_and_shift, normalized, scale, operand_of<T>(c.input(2)), y, dims);
  });
}

// --- RMSNormalization ----------------------------------------------------------------------------

inline void infer_rms_normalization(operator_context& c) {
  const shape& dims = c.input(0).dims();
  static_cast<void>(c.axis(c.n().get_int("axis", -1), dims.size()));
  c.require(
      c.input(1).type() == c.input(0).type() && broadcast_dims(c, dims, c.input(1).dims()) == dims,
      "a scale of ", shown(c.input(1).type()), " ", shown(c.input(1).dims()), " for ",
      shown(c.input(0).type()), " ", shown(dims));
  infer_like_input(c);
}

/// y = x / sqrt(mean of x^2 + epsilon) * scale, where the mean is over the dimensions from the axis
/// on.
inline void run_rms_normalization(operator_context& c) {
  const shape& dims = c.input(0).dims();
  const std::size_t first = c.axis(c.n().get_int("axis", -1), dims.size());
  const axis_view v = view_dims(dims, first, dims.size());
  const double epsilon = epsilon_of(c.n());
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    const std::span<const T> x = c.input(0).data<T>();
    const std::span<T> y = c.make_output_over(0, {0}).mutable_data<T>();
    if (x.empty()) {
      return;
    }
    const bool for_elements = is_for_elements(c.input(1), v, dims.size(), first);
    const T* const scale = for_elements ? c.input(1).data<T>().data() : nullptr;
    for_pieces(c, v.outer, rows_of(cheap_piece, v.length), [&](std::size_t begin, std::size_t end) {
      for (std::size_t row = begin; row < end; ++row) {
        const auto from = x.subspan(row * v.length, v.length);
        const double squares = square_sum(from);
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(v.length) + epsilon);
        standardize<T>(from, 0.0, factor, scale, nullptr, y.data() + row * v.length);
      }
    });
    if (!for_elements) {
      map_broadcast(
          c, [](T a, T s) { return a * s; }, operand<T>{y.data(), &dims}, operand_of<T>(c.input(1)),
          y, dims);
    }
  });
}

// --- ImageScaler ---------------------------------------------------------------------------------

/// The bias of each channel, from the attribute `bias`. Throws unless there is one for each.
[[nodiscard]] inline std::span<const float> channel_biases(const operator_context& c) {
  const attribute* a = c.n().find("bias");
  const std::span<const float> biases = a == nullptr ? std::span<const float>() : a->floats;
  const std::int64_t channels = c.input(0).dim(1);
  c.require(channels < 0 || static_cast<std::size_t>(channels) == biases.size(), biases.size(),
            " values in bias for ", channels, " channels");
  return biases;
}

inline void infer_image_scaler(operator_context& c) {
  infer_with_channels(c);
  static_cast<void>(channel_biases(c));
}

/// y = scale * x + bias[channel], with the product rounded: an operator that ONNX had up to release
/// 1.4 and that ONNX Runtime still runs.
inline void run_image_scaler(operator_context& c) {
  const std::span<const float> biases = channel_biases(c);
  const float scale = c.n().get_float("scale", 1.0F);
  const axis_view v = channel_view(c);
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    const std::span<const T> x = c.input(0).data<T>();
    const std::span<T> y = c.make_output_over(0, {0}).mutable_data<T>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T product = detent::detail::rounded_product(x[i], static_cast<T>(scale));
      y[i] = product + static_cast<T>(biases[i / v.inner % v.length]);
    }
  });
}

// --- MeanVarianceNormalization -------------------------------------------------------------------

/// The axes over which MeanVarianceNormalization takes mean and variance. By default these are 0, 2
/// and 3, as far as the input has them. The text of ONNX assumes images; ONNX Runtime reads it so
/// for other ranks.
[[nodiscard]] inline std::vector<bool> mean_axes(const operator_context& c) {
  const std::size_t rank = c.input(0).rank();
  std::vector<bool> reduced(rank, false);
  if (c.n().find("axes") == nullptr) {
    for (const std::size_t i : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
      if (i < rank) {
        reduced[i] = true;
      }
    }
  }
  for (const std::int64_t a : c.n().get_ints("axes")) {
    reduced[c.axis(a, rank)] = true;
  }
  c.require_supported(std::find(reduced.begin(), reduced.end(), true) != reduced.end(),
                      "no axes for an input of rank ", rank);
  return reduced;
}

inline void infer_mean_variance(operator_context& c) {
  static_cast<void>(mean_axes(c));
  infer_like_input(c);
}

/// Calls visit(i, group) for each element i and the number of the group that it belongs to:
/// elements of one group differ only along the reduced axes. `dims` must not be empty of elements.
template <class Visit>
void for_each_in_groups(const shape& dims, const std::vector<bool>& reduced, std::size_t count,
                        const Visit& visit) {
  std::vector<std::size_t> steps(dims.size(), 0);
  std::size_t groups = 1;
  for (std::size_t d = dims.size(); d-- > 0;) {
    if (!reduced[d]) {
      steps[d] = groups;
      groups *= static_cast<std::size_t>(dims[d]);
    }
  }
  std::vector<std::int64_t> at(dims.size(), 0);
  std::size_t group = 0;
  for (std::size_t i = 0; i < count; ++i) {
    visit(i, group);
    for (std::size_t d = dims.size(); d-- > 0;) {
      group += steps[d];
      if (++at[d] < dims[d]) {
        break;
      }
      group -= steps[d] * static_cast<std::size_t>(dims[d]);
      at[d] = 0;
    }
  }
}

/// y = (x - mean) / (sqrt(variance) + 1e-9), as the function of ONNX has it.
inline void run_mean_variance(operator_context& c) {
  const shape& dims = c.input(0).dims();
  const std::vector<bool> reduced = mean_axes(c);
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    const std::span<const T> x = c.input(0).data<T>();
    const std::span<T> y = c.make_output_over(0, {0}).mutable_data<T>();
    if (x.empty()) {
      return;
    }
    std::size_t groups = 1;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      groups *= reduced[d] ? 1 : static_cast<std::size_t>(dims[d]);
    }
    const auto size = static_cast<double>(x.size() / groups);
    std::pmr::vector<double> mean(groups, 0.0, c.memory);
    std::pmr::vector<double> divisor(groups, 0.0, c.memory);
    for_each_in_groups(dims, reduced, x.size(), [&](std::size_t i, std::size_t group) {
      mean[group] += static_cast<double>(x[i]);
    });
    for (double& m : mean) {
      m /= size;
    }
    for_each_in_groups(dims, reduced, x.size(), [&](std::size_t i, std::size_t group) {
      const double difference = static_cast<double>(x[i]) - mean[group];
      divisor[group] = std::fma(difference, difference, divisor[group]);
    });
    for (double& d : divisor) {
      d = std::sqrt(d / size) + 1e-9;
    }
    for_each_in_groups(dims, reduced, x.size(), [&](std::size_t i, std::size_t group) {
      y[i] = static_cast<T>((static_cast<double>(x[i]) - mean[group]) / divisor[group]);
    });
  });
}

// --- LRN -----------------------------------------------------------------------------------------

/// Local response normalization, where the sum is over `size` neighbouring channels:
///
///   y = x / (bias + alpha / size * sum of x^2)^beta
template <class T>
void run_lrn_as(operator_context& c, std::size_t size) {
  const double bias = static_cast<double>(c.n().get_float("bias", 1.0F));
  const double beta = static_cast<double>(c.n().get_float("beta", 0.75F));
  const double alpha =
      static_cast<double>(c.n().get_float("alpha", 0.0001F)) / static_cast<double>(size);
  const axis_view v = channel_view(c);
  const std::size_t below = (size - 1) / 2;
  const std::size_t above = size / 2;  // (size - 1) / 2, rounded up
  const std::span<const T> x = c.input(0).data<T>();
  const std::span<T> y = c.make_output(0).mutable_data<T>();
  if (x.empty()) {
    return;
  }
  c.count_multiply_adds({x.size(), (std::min)(size, v.length)});
  constexpr std::size_t block = 256;  // pixels whose sums are in the cache
  for_pieces(c, v.outer * v.length, rows_of(costly_piece, v.inner),
             [&](std::size_t begin, std::size_t end) {
               std::array<double, block> squares;
               for (std::size_t row = begin; row < end; ++row) {
                 const std::size_t channel = row % v.length;
                 const std::size_t first = row - (std::min)(below, channel);
                 const std::size_t last = row + (std::min)(above, v.length - 1 - channel);
                 for (std::size_t pixel = 0; pixel < v.inner; pixel += block) {
                   const std::size_t pixels = (std::min)(block, v.inner - pixel);
                   squares.fill(0.0);
                   for (std::size_t other = first; other <= last; ++other) {
                     for (std::size_t i = 0; i < pixels; ++i) {
                       const auto value = static_cast<double>(x[other * v.inner + pixel + i]);
                       squares[i] += value * value;
                     }
                   }
                   for (std::size_t i = 0; i < pixels; ++i) {
                     const double divisor = std::pow(std::fma(alpha, squares[i], bias), beta);
                     const std::size_t at = row * v.inner + pixel + i;
                     y[at] = static_cast<T>(static_cast<double>(x[at]) / divisor);
                   }
                 }
               }
             });
}

inline void run_lrn(operator_context& c) {
  const std::int64_t size = c.n().get_int("size", 0);
  c.require(size > 0, "the attribute 'size' is ", size);
  for_type(c, float_types{}, c.input(0).type(),
           [&]<class T>() { run_lrn_as<T>(c, static_cast<std::size_t>(size)); });
}

inline constexpr operator_definition normalization_operators[] = {
    {"", "BatchNormalization", 5, 5, layout_support::plain,
     &infer_for<float_types, &infer_batch_normalization>, &run_batch_normalization, true},
    {"", "InstanceNormalization", 3, 3, layout_support::plain,
     &infer_for<float_types, &infer_with_channels>, &run_instance_normalization, true},
    {"", "GroupNormalization", 3, 3, layout_support::plain,
     &infer_for<float_types, &infer_with_channels>, &run_group_normalization, true},
    {"", "LayerNormalization", 2, 3, layout_support::plain,
     &infer_for<float_types, &infer_layer_normalization>, &run_layer_normalization, true},
    {"", "RMSNormalization", 2, 2, layout_support::plain,
     &infer_for<float_types, &infer_rms_normalization>, &run_rms_normalization, true},
    {"", "MeanVarianceNormalization", 1, 1, layout_support::plain,
     &infer_for<float_types, &infer_mean_variance>, &run_mean_variance, true},
    {"", "ImageScaler", 1, 1, layout_support::plain, &infer_for<float_types, &infer_image_scaler>,
     &run_image_scaler},
    {"", "LRN", 1, 1, layout_support::plain, &infer_for<float_types, &infer_with_channels>,
     &run_lrn, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_NORMALIZATION_HPP
