// SPDX-License-Identifier: BSD-3-Clause
// NNCF's SmoothQuant: a Mul before layers with constant weights, and weights that undo it.
//
//   a_j  the largest |x| of channel j of the layers' input, over all samples, at least 1e-5
//   w_j  the largest |w| of that channel of a layer's weights, at least 1e-5
//   s_j  = a_j^alpha / (w_j^(1 - alpha) + eps), clipped to [quantile 0.1 of all s, 100]
//
// The weights of channel j are multiplied by s_j, and the input by 1 / s_j. Layers that take the
// same value at the same input share the scales of the layer whose least scale is closest to its
// largest one. Layers whose weights other nodes use, too, are left alone.
//
// This differs from graph::smooth_quant(): a Mul is always inserted, at the place where NNCF
// inserts it, and scales are those of NNCF also where a channel is 0.
//
// Source: NNCF 3.4, SmoothQuant.
#ifndef DETENT_GRAPH_NNCF_SMOOTH_QUANT_HPP
#define DETENT_GRAPH_NNCF_SMOOTH_QUANT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/placement.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/solvers/smooth_quant.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// The exponent alpha of SmoothQuant for each kind of layer, at most 1: the larger alpha is, the
/// more of the activations' outliers moves to the weights. A negative alpha switches SmoothQuant
/// off for that kind.
struct smooth_quant_alphas {
  float convolution = -1.0F;  ///< The alpha of Conv; off by default.
  float matmul = 0.95F;       ///< The alpha of MatMul and Gemm.
};

namespace detail {

/// What SmoothQuant needs to know of a value that layers take.
struct layer_magnitudes {
  std::string value;              ///< Name of the value.
  std::size_t rank = 0;           ///< Its number of dimensions; 0 if it was never seen.
  std::vector<float> magnitudes;  ///< The largest magnitude of each channel over all samples.
};

/// Layers that share one vector of scales.
struct smoothed_layers {
  std::string value;               ///< What they take.
  std::size_t input = 0;           ///< At which input.
  std::vector<std::size_t> nodes;  ///< Their indices.
  std::ptrdiff_t axis = 0;  ///< The axis of the channels of the value; negative: from the end.
  std::vector<float> magnitudes;  ///< Of the channels, over all samples.
  std::size_t rank = 0;           ///< Of the value.
};

/// Applies SmoothQuant to a model.
class smoother {
 public:
  smoother(model& m, const smooth_quant_alphas& alphas) : m_(m), alphas_(alphas), names_(m) {}

  void run(const calibration_source& samples, const executor_options& options) {
    find_layers();
    if (groups_.empty()) {
      return;
    }
    observe(samples, options);
    smooth_all();
  }
  /// Does the same with what seen() returned for an equal model and the same alphas. Throws
  /// invalid_argument if it is for other layers.
  void run(const std::vector<layer_magnitudes>& seen) {
    find_layers();
    require(seen.size() == groups_.size(), error_kind::invalid_argument, "magnitudes of ",
            seen.size(), " values for SmoothQuant, expected ", groups_.size());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      require(seen[i].value == groups_[i].value &&
                  (seen[i].magnitudes.empty() || seen[i].rank >= (groups_[i].axis == -1 ? 1U : 2U)),
              error_kind::invalid_argument, "magnitudes for SmoothQuant do not fit '",
              groups_[i].value, "'");
      groups_[i].rank = seen[i].rank;
      groups_[i].magnitudes = seen[i].magnitudes;
    }
    smooth_all();
  }
  /// What run() has found in samples.
  [[nodiscard]] std::vector<layer_magnitudes> seen() const {
    std::vector<layer_magnitudes> all;
    for (const smoothed_layers& group : groups_) {
      all.push_back({group.value, group.rank, group.magnitudes});
    }
    return all;
  }

 private:
  void smooth_all() {
    std::map<std::size_t, std::vector<node>> before;
    for (const smoothed_layers& group : groups_) {
      if (!group.magnitudes.empty()) {
        smooth(group, before);
      }
    }
    std::vector<node> nodes;
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      for (node& n : before[i]) {
        nodes.push_back(std::move(n));
      }
      nodes.push_back(std::move(m_.nodes[i]));
    }
    m_.nodes = std::move(nodes);
  }

  [[nodiscard]] float alpha_of(const node& n) const {
    return n.is("Conv") ? alphas_.convolution : alphas_.matmul;
  }

  void find_layers() {
    const links l(m_);
    std::map<std::string, element_type> constants;
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      const node& n = m_.nodes[i];
      const std::string kind = operator_kind(m_, l, n);
      if (!is_among(kind, {"Conv", "Gemm", "MatMul"}) || alpha_of(n) < 0.0F) {
        continue;
      }
      const std::vector<std::size_t> weights = weight_inputs(m_, l, i, kind);
      if (weights.size() != 1) {
        continue;
      }
      const std::size_t input = kind == "Conv" ? 0 : 1 - weights[0];
      const std::string& value = n.inputs[input];
      const std::size_t maker = l.producer(value);
      const bool is_moved = kind == "Conv" && maker != links::none &&
                            trait_of(operator_kind(m_, l, m_.nodes[maker])) == trait::moves;
      const tensor* w = m_.initializer(n.inputs[weights[0]]);
      if (is_moved || w == nullptr || w->rank() < 2 ||
          l.consumers(n.inputs[weights[0]]).size() > 1 || l.is_output(n.inputs[weights[0]]) ||
          m_.initializer(value) != nullptr) {
        continue;
      }
      std::vector<std::size_t>& of_value = groups_of_[value];
      const auto found = std::find_if(of_value.begin(), of_value.end(), [&](std::size_t k) {
        const smoothed_layers& g = groups_[k];
        return g.input == input && g.axis == value_axis(n, input) &&
               (m_.nodes[g.nodes[0]].is("Conv") == n.is("Conv"));
      });
      if (found != of_value.end()) {
        groups_[*found].nodes.push_back(i);
      } else {
        of_value.push_back(groups_.size());
        groups_.push_back({value, input, {i}, value_axis(n, input), {}, 0});
      }
    }
  }

  /// The axis of the channels that a layer sums over, in the value it takes.
  [[nodiscard]] static std::ptrdiff_t value_axis(const node& n, std::size_t input) {
    if (n.is("Conv")) {
      return 1;
    }
    const bool transposed = n.is("Gemm") && n.get_int(input == 0 ? "transA" : "transB", 0) != 0;
    return (input == 0) == transposed ? -2 : -1;
  }
  /// The same axis in the weights.
  [[nodiscard]] static std::ptrdiff_t weights_axis(const node& n, std::size_t input) {
    return n.is("Conv") ? 1 : value_axis(n, 1 - input);
  }
  [[nodiscard]] static std::size_t index_of(std::ptrdiff_t axis, std::size_t rank) {
    return static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::ptrdiff_t>(rank) : axis);
  }

  /// The largest magnitude of each index along an axis, in `into`.
  static void add_magnitudes(std::vector<float>& into, const tensor& t, std::size_t axis) {
    const auto channels = static_cast<std::size_t>(t.dim(axis));
    std::size_t inner = 1;
    for (std::size_t d = axis + 1; d < t.rank(); ++d) {
      inner *= static_cast<std::size_t>(t.dim(d));
    }
    into.resize((std::max)(into.size(), channels), 0.0F);
    const auto x = t.data<float>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      float& most = into[i / inner % channels];
      most = (std::max)(most, std::fabs(x[i]));
    }
  }

  void observe(const calibration_source& samples, const executor_options& options) {
    executor runner(m_, options);
    const auto add = [&](const std::string& name, const tensor& value) {
      const auto found = groups_of_.find(name);
      if (found == groups_of_.end()) {
        return;
      }
      const tensor t = to_plain(value);
      for (const std::size_t k : found->second) {
        smoothed_layers& g = groups_[k];
        if (t.type() == element_type::f32 && t.count() > 0 &&
            t.rank() >= (g.axis == -1 ? 1U : 2U)) {
          g.rank = t.rank();
          add_magnitudes(g.magnitudes, t, index_of(g.axis, t.rank()));
        }
      }
    };
    std::size_t count = 0;
    while (const auto inputs = samples()) {
      ++count;
      static_cast<void>(runner.run(*inputs, add));
    }
    require(count > 0, error_kind::invalid_argument, "there are no calibration samples");
  }

  /// The scales of one layer, by the formula above.
  [[nodiscard]] static std::vector<float> scales_of(const std::vector<float>& a,
                                                    const std::vector<float>& w, float alpha) {
    constexpr float least = 1e-5F;
    constexpr float eps = std::numeric_limits<float>::epsilon();
    std::vector<float> scales(a.size());
    const double power = static_cast<double>(alpha);
    const auto raised = [&](float x, double to) {
      return static_cast<float>(
          detent::detail::portable_power(static_cast<double>((std::max)(x, least)), to));
    };
    for (std::size_t j = 0; j < a.size(); ++j) {
      scales[j] = raised(a[j], power) / (raised(w[j], 1.0 - power) + eps);
    }
    std::vector<float> sorted = scales;
    std::sort(sorted.begin(), sorted.end());
    const double place = 0.1 * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = (std::min)(below + 1, sorted.size() - 1);
    const double share = place - static_cast<double>(below);
    const double from = static_cast<double>(sorted[below]);
    const auto smallest = static_cast<float>(
        from + detent::detail::rounded_product(share, static_cast<double>(sorted[above]) - from));
    constexpr float largest = 100.0F;
    for (float& s : scales) {
      s = (std::min)((std::max)(s, smallest), largest);
    }
    return scales;
  }

  /// The scales of a group: those whose least one is closest to the largest one.
  [[nodiscard]] std::vector<float> best_scales(const smoothed_layers& group) const {
    std::vector<float> best;
    float best_ratio = 0.0F;
    for (const std::size_t i : group.nodes) {
      const node& n = m_.nodes[i];
      const tensor& w = m_.initializers.at(n.inputs[1 - group.input]);
      std::vector<float> magnitudes;
      add_magnitudes(magnitudes, w, index_of(weights_axis(n, group.input), w.rank()));
      require(magnitudes.size() == group.magnitudes.size(), error_kind::shape_mismatch, n.label(),
              ": ", group.magnitudes.size(), " channels of its input, ", magnitudes.size(),
              " of its weights");
      std::vector<float> scales = scales_of(group.magnitudes, magnitudes, alpha_of(n));
      const auto [least, most] = std::minmax_element(scales.begin(), scales.end());
      const float ratio = *least / (*most + std::numeric_limits<float>::epsilon());
      if (ratio > best_ratio) {
        best_ratio = ratio;
        best = std::move(scales);
      }
    }
    return best;
  }

  void smooth(const smoothed_layers& group, std::map<std::size_t, std::vector<node>>& before) {
    const std::vector<float> scales = of_tensor(group.value, [&] { return best_scales(group); });
    if (scales.empty()) {
      return;
    }
    for (const std::size_t i : group.nodes) {
      node& n = m_.nodes[i];
      std::string& weights = n.inputs[1 - group.input];
      const tensor& old = m_.initializers.at(weights);
      tensor scaled =
          multiplied(old, index_of(weights_axis(n, group.input), old.rank()), scales, weights);
      m_.initializers[weights] = std::move(scaled);
    }
    shape dims(group.rank, 1);
    dims[index_of(group.axis, group.rank)] = static_cast<std::int64_t>(scales.size());
    tensor inverse = tensor::allocate(element_type::f32, dims);
    for (std::size_t j = 0; j < scales.size(); ++j) {
      inverse.mutable_data<float>()[j] = 1.0F / scales[j];
    }
    node mul;
    mul.op_type = "Mul";
    mul.name = names_.take(group.value + "_smooth");
    mul.inputs = {group.value, mul.name};
    mul.outputs = {names_.take(mul.name + "_out")};
    m_.initializers[mul.name] = std::move(inverse);
    for (const std::size_t i : group.nodes) {
      m_.nodes[i].inputs[group.input] = mul.outputs[0];  // not a residual that is the same value
    }
    before[group.nodes[0]].push_back(std::move(mul));
  }

  /// A copy, because tensors share their elements.
  [[nodiscard]] static tensor multiplied(const tensor& t, std::size_t axis,
                                         const std::vector<float>& by, const std::string& name) {
    std::size_t inner = 1;
    for (std::size_t d = axis + 1; d < t.rank(); ++d) {
      inner *= static_cast<std::size_t>(t.dim(d));
    }
    tensor result = tensor::allocate(element_type::f32, t.dims());
    const auto x = t.data<float>();
    auto y = result.mutable_data<float>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = x[i] * by[i / inner % by.size()];
      require(std::isfinite(y[i]), error_kind::overflow, "tensor '", name,
              "': a weight times its SmoothQuant scale is not finite");
    }
    return result;
  }

  model& m_;
  smooth_quant_alphas alphas_;
  unused_names names_;
  std::vector<smoothed_layers> groups_;
  std::map<std::string, std::vector<std::size_t>> groups_of_;  // by what they take: their indices
};

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_SMOOTH_QUANT_HPP
