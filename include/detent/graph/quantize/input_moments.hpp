// SPDX-License-Identifier: BSD-3-Clause
// Second moments of the inputs that the layers of a quantized network multiply by their weights.
//
//   layer         a row x of K features, for one output value of each channel of a group
//   Gemm, MatMul  a row of the input, K = its length; one group
//   Conv          the patch under the kernel, K = inputs / groups * kernel size, in the order of
//                 the weights; padding counts as zeros; one matrix for each group
//   ConvTranspose has no moments: how many products a result sums up depends on its position
//
// With G = sum x x^T over the rows, (w - v)^T G (w - v) is the squared error at the output if
// weights v are used in the place of w (solvers/gram.hpp).
#ifndef DETENT_GRAPH_QUANTIZE_INPUT_MOMENTS_HPP
#define DETENT_GRAPH_QUANTIZE_INPUT_MOMENTS_HPP

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/window.hpp>
#include <detent/graph/quantize/activation_levels.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/parallel.hpp>
#include <detent/quantize.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/types.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Options of input_moments.
struct input_moments_options {
  /// Largest number of features K; layers that have more get no moments.
  std::size_t max_features = 1152;
  /// Limit of the memory of all matrices together, counted as 16 K^2 bytes for each group. Layers
  /// that do not fit any more, in topological order, get no moments.
  std::size_t max_bytes = std::size_t{1} << 28;
  /// Rows of a run that are used, at most, spread evenly over all of them; at least 1.
  std::size_t rows_per_run = 64;
  /// Factor of K, with which the rows of a run that a layer of K features uses are limited further.
  double rows_per_run_and_feature = std::numeric_limits<double>::infinity();
  /// The layers that get moments, by the indices of their nodes. Without a value: all.
  std::optional<std::set<std::size_t>> layers = {};
};

namespace detail {

/// Picks rows of runs: all of them, or `limit` different ones that are spread evenly and differ
/// from run to run. It takes steps of about the golden ratio of the number of rows, which hit all
/// columns of an image alike.
class row_sampler {
 public:
  /// Calls f(row) for the picked rows of 0..total - 1.
  template <class F>
  void pick(std::size_t total, std::size_t limit, const F& f) {
    if (total <= limit) {
      for (std::size_t row = 0; row < total; ++row) {
        f(row);
      }
      return;
    }
    std::size_t step = total / 1000 * 618 + total % 1000 * 618 / 1000 + 1;
    while (std::gcd(step, total) != 1) {
      ++step;
    }
    for (std::size_t k = 0; k < limit; ++k) {
      next_ = (next_ + step) % total;
      f(next_);
    }
  }

 private:
  std::size_t next_ = 0;
};

/// How a layer makes rows of its input. Layers with the same input and the same geometry share a
/// matrix.
struct row_geometry {
  std::string value;  // name of the input
  bool is_image = false;
  std::size_t groups = 1;
  std::size_t features = 0;  // of each group
  shape kernel, strides, dilations, pads;
  std::string auto_pad;
  friend auto operator<=>(const row_geometry&, const row_geometry&) = default;
};

/// The geometry of a layer of a plan.
[[nodiscard]] inline row_geometry row_geometry_of(const model& m, const node& n) {
  const shape& weights = m.initializers.at(n.inputs[1]).dims();
  const auto size = [](std::int64_t v) { return static_cast<std::size_t>(v); };
  row_geometry g;
  g.value = n.inputs[0];
  g.is_image = n.is("Conv");
  if (!g.is_image) {
    g.features = size(weights[1 - weight_channel_axis(n)]);
    return g;
  }
  g.groups = size(n.get_int("group", 1));
  g.kernel.assign(weights.begin() + 2, weights.end());
  g.features = size(weights[1]);
  for (const std::int64_t k : g.kernel) {
    g.features *= size(k);
  }
  g.strides = n.get_ints("strides");
  g.dilations = n.get_ints("dilations");
  g.pads = n.get_ints("pads");
  g.auto_pad = n.get_string("auto_pad", "NOTSET");
  return g;
}

/// The Gram matrices of one geometry, one for each group.
class row_moments {
 public:
  row_moments(row_geometry geometry, node layer, quant_params params, grid levels)
      : geometry_(std::move(geometry)),
        layer_(std::move(layer)),
        params_(params),
        levels_(levels),
        observers_(geometry_.groups, gram_observer(geometry_.features)) {}

  /// Adds `limit` rows of one run, or all if there are fewer.
  void add(const tensor& value, std::size_t limit, const parallel_for& parallel) {
    if (value.count() == 0) {
      return;
    }
    require_shape(value.dims());
    const tensor x = geometry_.is_image ? value : to_plain(value);
    image_ = geometry_.is_image ? image_of(x) : image();
    const std::size_t total = geometry_.is_image
                                  ? image_.batch * image_.out_height * image_.out_width
                                  : x.count() / geometry_.features;
    std::vector<std::size_t> rows;
    sampler_.pick(total, limit, [&](std::size_t row) { rows.push_back(row); });
    constexpr std::size_t block = 256;
    for (std::size_t first = 0; first < rows.size(); first += block) {
      const std::span<const std::size_t> some(rows.data() + first,
                                              (std::min)(block, rows.size() - first));
      for (std::size_t group = 0; group < geometry_.groups; ++group) {
        observe(x.data<float>(), some, group, parallel);
      }
    }
  }

  [[nodiscard]] std::uint64_t rows() const noexcept { return observers_.front().count(); }
  [[nodiscard]] std::size_t groups() const noexcept { return observers_.size(); }
  [[nodiscard]] std::size_t features() const noexcept { return geometry_.features; }
  [[nodiscard]] gram_matrix gram(std::size_t group) const { return observers_[group].finalize(); }

 private:
  /// The sizes of an input, and where its elements are in memory.
  struct image {
    std::size_t batch = 0, out_height = 0, out_width = 0;
    std::size_t kernel_height = 1, kernel_width = 1;
    std::size_t of_image = 0, of_channel = 0, of_row = 0, of_column = 0;  // strides in memory
    window at{};
  };

  void require_shape(const shape& dims) const {
    const std::size_t rank = geometry_.is_image ? geometry_.kernel.size() + 2 : 1;
    std::size_t size = geometry_.features;
    for (const std::int64_t k : geometry_.kernel) {
      size = size / static_cast<std::size_t>(k);
    }
    const std::size_t channels = size * geometry_.groups;
    const bool fits = geometry_.is_image
                          ? dims.size() == rank && dims[1] == static_cast<std::int64_t>(channels)
                          : !dims.empty() && dims.back() == static_cast<std::int64_t>(channels);
    require(fits, error_kind::shape_mismatch, layer_.label(), ": an input of shape ", shown(dims),
            " for ", geometry_.groups, " groups of ", geometry_.features, " features");
  }

  [[nodiscard]] image image_of(const tensor& x) const {
    operator_context c;
    c.current = &layer_;
    image i;
    i.at = ops::to_window(c, ops::read_window(c, x.dims(), geometry_.kernel), x.dims());
    filter_shape f;
    f.kernel_width = i.kernel_width = static_cast<std::size_t>(geometry_.kernel.back());
    if (geometry_.kernel.size() == 2) {
      f.kernel_height = i.kernel_height = static_cast<std::size_t>(geometry_.kernel[0]);
    }
    i.batch = i.at.batch;
    i.out_height = i.at.out_height(f);
    i.out_width = i.at.out_width(f);
    const auto channels = static_cast<std::size_t>(x.dim(1));
    const bool last = x.channels_last();
    i.of_channel = last ? 1 : i.at.in_height * i.at.in_width;
    i.of_column = last ? channels : 1;
    i.of_row = i.of_column * i.at.in_width;
    i.of_image = channels * i.at.in_height * i.at.in_width;
    return i;
  }

  /// Reads the patch of one output position. Places outside of the image are zeros: coordinates
  /// below 0 wrap around to large numbers, so one comparison finds both sides.
  void read_patch(std::span<const float> x, std::size_t row, std::size_t group, float* to) const {
    const image& i = image_;
    const std::size_t left = row % i.out_width * i.at.stride_width;
    const std::size_t top = row / i.out_width % i.out_height * i.at.stride_height;
    const std::size_t channels = geometry_.features / (i.kernel_height * i.kernel_width);
    const std::size_t first = row / i.out_width / i.out_height * i.of_image;
    for (std::size_t c = group * channels; c < (group + 1) * channels; ++c) {
      for (std::size_t u = 0; u < i.kernel_height; ++u) {
        const std::size_t y = top + u * i.at.dilation_height - i.at.pad_top;
        for (std::size_t v = 0; v < i.kernel_width; ++v) {
          const std::size_t z = left + v * i.at.dilation_width - i.at.pad_left;
          const bool inside = y < i.at.in_height && z < i.at.in_width;
          *to++ = inside ? x[first + c * i.of_channel + y * i.of_row + z * i.of_column] : 0.0F;
        }
      }
    }
  }

  void observe(std::span<const float> x, std::span<const std::size_t> rows, std::size_t group,
               const parallel_for& parallel) {
    const std::size_t features = geometry_.features;
    std::vector<float> values(rows.size() * features);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (geometry_.is_image) {
        read_patch(x, rows[r], group, values.data() + r * features);
      } else {
        std::copy_n(x.data() + rows[r] * features, features, values.data() + r * features);
      }
    }
    for (const float value : values) {
      require(std::isfinite(value), error_kind::invalid_argument, "it holds ", value);
    }
    if (levels_.qmin == 0) {  // that of int8 is negative
      observe_codes<std::uint8_t>(values, group, parallel);
    } else {
      observe_codes<std::int8_t>(values, group, parallel);
    }
  }

  template <class Q>
  void observe_codes(std::span<const float> values, std::size_t group,
                     const parallel_for& parallel) {
    std::vector<Q> codes(values.size());
    quantize(values, codes, params_, levels_);
    const std::size_t features = geometry_.features;
    observers_[group].observe(
        matrix_view<const Q>(codes.data(), values.size() / features, features), params_.zero_point,
        parallel);
  }

  row_geometry geometry_;
  node layer_;  // any layer with the geometry
  quant_params params_;
  grid levels_;
  image image_;  // of the current run
  row_sampler sampler_;
  std::vector<gram_observer> observers_;
};

}  // namespace detail

/// Gathers the second moments of the inputs of a plan's layers, from runs of its float model. add()
/// must be shown every value that a run computes.
///
/// For each layer (and group of a convolution) it accumulates G = sum x x^T over rows x of K
/// features. For Gemm and MatMul, a row is a row of the input. For Conv it is the patch under the
/// kernel at any of the output positions, in the order of the weights, with zeros for padding; a
/// Conv with more than two spatial axes gets no moments.
///
/// The rows hold codes minus their zero point, so G is in units of the squared input scale: each
/// layer's input is quantized as the parameters say. This is what the quantized network computes
/// with; values that are clipped and values that round to zero are included. The layers before it
/// are float, so that one pass serves all layers, and their errors do not influence the weights of
/// this layer. Sums are exact: they do not depend on the order of rows, on the threads or on the
/// processor.
class input_moments {
 public:
  /// Prepares matrices for the layers of the plan, as far as the limits of the options allow.
  /// Throws invalid_argument if `rows_per_run` is 0, if the parameters lack the input of a layer,
  /// or if activations are neither uint8 nor int8.
  input_moments(const quantization_plan& plan, const quantization_parameters& parameters,
                const input_moments_options& options = {}, parallel_for parallel = {})
      : options_(options), parallel_(std::move(parallel)) {
    require(options.rows_per_run > 0, error_kind::invalid_argument,
            "moments of 0 rows of each run");
    require(parameters.activation_type == element_type::u8 ||
                parameters.activation_type == element_type::s8,
            error_kind::invalid_argument, "activations of type ",
            graph::name(parameters.activation_type), "; they are uint8 or int8");
    std::size_t room = options.max_bytes;
    for (const std::size_t i : plan.layers()) {
      const node& n = plan.float_model().nodes[i];
      const auto params = parameters.activations.find(n.inputs[0]);
      require(params != parameters.activations.end(), error_kind::invalid_argument, n.label(),
              ": there are no parameters for its input '", n.inputs[0], "'");
      layer_entry& l = layers_[i];
      if (n.is("ConvTranspose")) {
        l.left_out = "there are no moments for ConvTranspose";
        continue;
      }
      detail::row_geometry g = detail::row_geometry_of(plan.float_model(), n);
      l.features = g.features;
      l.groups = g.groups;
      if (options.layers && options.layers->count(i) == 0) {
        l.left_out = "not chosen";
        continue;
      }
      if (g.features > options.max_features) {
        l.left_out =
            detent::detail::message(g.features, " features, the limit is ", options.max_features);
        continue;
      }
      if (g.kernel.size() > 2) {
        l.left_out = detent::detail::message(g.kernel.size(), " spatial axes, the limit is 2");
        continue;
      }
      if (const auto known = index_.find(g); known != index_.end()) {
        l.moments = known->second;
        continue;
      }
      if (room / 16 / g.features / g.features < g.groups) {
        l.left_out = detent::detail::message("no room for ", g.groups, " matrices of ", g.features,
                                             " features in the ", room, " bytes that are left of ",
                                             options.max_bytes);
        continue;
      }
      room -= 16 * g.features * g.features * g.groups;
      l.moments = moments_.size();
      moments_.emplace_back(
          g, n, params->second,
          activation_levels(parameters.activation_type, parameters.activation_bits));
      of_value_[g.value].push_back(l.moments);
      index_.emplace(std::move(g), l.moments);
    }
  }

  /// Adds a value that a run of the float model computed. Values that are not the input of a layer
  /// are ignored. Throws, naming the value: invalid_argument if a row that is used holds NaN or
  /// infinity; shape_mismatch if the value does not fit the weights of the layer.
  void add(const std::string& name, const tensor& value) {
    const auto found = of_value_.find(name);
    if (found == of_value_.end()) {
      return;
    }
    detail::of_tensor(name, [&] {
      for (const std::size_t i : found->second) {
        const double rows = std::ceil(detent::detail::rounded_product(
            options_.rows_per_run_and_feature, static_cast<double>(moments_[i].features())));
        moments_[i].add(value,
                        rows < static_cast<double>(options_.rows_per_run)
                            ? (std::max)(std::size_t{1}, static_cast<std::size_t>(rows))
                            : options_.rows_per_run,
                        parallel_);
      }
    });
  }

  /// Why a layer has no moments; empty if it has. `layer` is the index of its node, here as in all
  /// other members; they throw invalid_argument if it is not a layer of the plan.
  [[nodiscard]] const std::string& left_out(std::size_t layer) const { return of(layer).left_out; }
  /// Number of features K of a layer, also of one without moments; 0 for ConvTranspose.
  [[nodiscard]] std::size_t features(std::size_t layer) const { return of(layer).features; }
  /// Number of groups of a layer.
  [[nodiscard]] std::size_t groups(std::size_t layer) const { return of(layer).groups; }
  /// Number of rows that were added for each group of a layer; 0 if the layer has no moments.
  [[nodiscard]] std::uint64_t rows(std::size_t layer) const {
    return left_out(layer).empty() ? moments_[of(layer).moments].rows() : 0;
  }
  /// The matrix G of a layer, given by the index of its node, and of one of its groups. Throws
  /// invalid_argument if that is not a layer of the plan, if it has no moments, if it has no such
  /// group, or if no rows were added.
  [[nodiscard]] gram_matrix gram(std::size_t layer, std::size_t group = 0) const {
    const auto& l = of(layer);
    require(l.left_out.empty(), error_kind::invalid_argument, "layer ", layer,
            " has no moments: ", l.left_out);
    require(group < l.groups, error_kind::invalid_argument, "layer ", layer, " has ", l.groups,
            " groups, there is no ", group);
    return moments_[l.moments].gram(group);
  }

 private:
  struct layer_entry {
    std::size_t features = 0;
    std::size_t groups = 1;
    std::size_t moments = 0;  // index in moments_
    std::string left_out;
  };

  [[nodiscard]] const layer_entry& of(std::size_t index) const {
    const auto found = layers_.find(index);
    require(found != layers_.end(), error_kind::invalid_argument, "node ", index,
            " is not a layer of the plan");
    return found->second;
  }

  input_moments_options options_;
  parallel_for parallel_;
  std::map<std::size_t, layer_entry> layers_;  // by index of the node
  std::vector<detail::row_moments> moments_;
  std::map<detail::row_geometry, std::size_t> index_;
  std::map<std::string, std::vector<std::size_t>> of_value_;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_INPUT_MOMENTS_HPP
