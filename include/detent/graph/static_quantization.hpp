// SPDX-License-Identifier: BSD-3-Clause
// Post-training static quantization: ranges from calibration samples, the result as an ONNX model
// with QuantizeLinear/DequantizeLinear pairs (QDQ).
//
//   activations  uint8, asymmetric, per tensor                    by any observer of the registry
//   weights      int8, symmetric -127..127, per output channel    (or per tensor)
//   bias         int32, scale = x_scale * w_scale, zero point 0
//
// A weight scale is raised where the bias would not fit 2^30 steps, and chosen from the bias where
// all weights of a channel are zero.
#ifndef DETENT_GRAPH_STATIC_QUANTIZATION_HPP
#define DETENT_GRAPH_STATIC_QUANTIZATION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/executor.hpp>
#include <detent/graph/ir.hpp>
#include <detent/graph/lower.hpp>
#include <detent/graph/opset.hpp>
#include <detent/graph/optimize.hpp>
#include <detent/graph/tensor.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/registry.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>
#include <detent/version.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

struct static_quantization_options {
  bool per_channel = true;  // one weight scale for each output channel, or one for the tensor
  /// Of the activations: a name that make_observer() knows. "isotone" is for what classifiers rank,
  /// results of rank 2 that the model returns or a Softmax takes; other activations have "minmax"
  /// then.
  std::string method = "minmax";
  observer_options observer = {};  // what it is made with; the scheme is set
  /// Told of each activation that is quantized, in the order of names.
  std::function<void(const std::string& value, const scale_solution& solution)> on_parameters = {};
  executor_options executor = {};
};

/// Gives the inputs of the next calibration run, or nothing when there are no more; then it begins
/// anew, for observers that want a second pass.
using calibration_source = std::function<std::optional<std::map<std::string, tensor>>()>;

namespace detail {

/// Decides what is quantized and writes the Q and DQ nodes.
class static_quantizer {
 public:
  static_quantizer(model m, static_quantization_options options)
      : m_(std::move(m)), options_(std::move(options)) {
    for (const node& n : m_.nodes) {
      require(!is_quantize_or_dequantize(n) && n.op_type.rfind("QLinear", 0) != 0,
              error_kind::unsupported, "the model is already quantized: ", n.label());
    }
    graph::require_supported(m_);
    options_.observer.scheme = asymmetric<std::uint8_t>;
    static_cast<void>(make_observer(options_.method, options_.observer));  // is there one?
    simplify(m_);
    upgrade_opset(m_);
    known_ = infer_shapes(m_);
    choose();
  }

  model run(const calibration_source& samples) {
    calibrate(samples);
    return rewrite();
  }

  /// How many float activations are quantized.
  [[nodiscard]] std::size_t quantized_values() const noexcept { return values_.size(); }

 private:
  static bool is_layer(const node& n) { return n.is("Conv") || n.is("Gemm") || n.is("MatMul"); }

  [[nodiscard]] bool is_float(const std::string& value) const {
    const auto found = known_.find(value);
    return found != known_.end() && found->second.type() == element_type::f32;
  }

  /// A layer whose weights are constants, and whose bias, if any, is one value for each channel.
  [[nodiscard]] bool is_quantizable_layer(const node& n) const {
    const tensor* weights = float_constant(m_, n, 1);
    if (!is_layer(n) || weights == nullptr || !is_float(n.inputs[0]) ||
        m_.initializer(n.inputs[0]) != nullptr || weights->count() == 0) {
      return false;
    }
    if (n.is("MatMul")) {
      return weights->rank() == 2;
    }
    if (!output_channel_axis(n)) {
      return false;
    }
    if (n.inputs.size() < 3 || n.inputs[2].empty()) {
      return true;
    }
    const tensor* bias = float_constant(m_, n, 2);
    return bias != nullptr && bias->rank() == 1 &&
           bias->dim(0) == weights->dim(*output_channel_axis(n));
  }

  /// Operators that run on 8-bit tensors if their inputs do.
  [[nodiscard]] bool follows(const node& n) const {
    static constexpr std::string_view names[] = {
        "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid"};
    return n.domain.empty() &&
           (moves_elements(n) || clamping_activation(m_, n).has_value() ||
            std::find(std::begin(names), std::end(names), n.op_type) != std::end(names));
  }

  /// Inputs of a node that carry the tensor, as opposed to axes, sizes and the like.
  [[nodiscard]] static std::size_t data_inputs(const node& n) {
    return n.is("Add") || n.is("Mul") ? 2 : n.is("Concat") ? n.inputs.size() : 1;
  }

  void choose() {
    const links l(m_);
    std::set<std::string> available;  // what layers and their followers make
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      const node& n = m_.nodes[i];
      if (n.outputs.empty() || n.inputs.empty()) {
        continue;
      }
      if (is_quantizable_layer(n)) {
        take(n.inputs[0]);
        quantized_nodes_.insert(i);
        take_result(i, l);
        continue;
      }
      if (quantized_nodes_.count(i) != 0 || !follows(n) || n.outputs.size() != 1) {
        continue;
      }
      bool ready = true;
      bool any = false;
      for (std::size_t k = 0; k < data_inputs(n); ++k) {
        const bool constant = float_constant(m_, n, k) != nullptr;
        any = any || values_.count(n.inputs[k]) != 0;
        ready = ready && (constant || values_.count(n.inputs[k]) != 0);
      }
      if (!ready || !any || !is_float(n.outputs[0])) {
        continue;
      }
      quantized_nodes_.insert(i);
      for (std::size_t k = 0; k < data_inputs(n); ++k) {
        if (float_constant(m_, n, k) != nullptr) {
          take(n.inputs[k]);
        }
      }
      take_result(i, l);
      if (moves_elements(n)) {
        share_[n.outputs[0]] = n.inputs[0];
      }
    }
  }

  /// The result of a layer or of an addition or product is stored once: behind the clamping
  /// activation that follows it, if one does.
  void take_result(std::size_t i, const links& l) {
    const node& n = m_.nodes[i];
    const std::size_t next =
        is_layer(n) || n.is("Add") || n.is("Mul") ? sole_consumer(m_, l, i) : links::none;
    if (next == links::none || !clamping_activation(m_, m_.nodes[next])) {
      take(n.outputs[0]);
      return;
    }
    quantized_nodes_.insert(next);
    take(m_.nodes[next].outputs[0]);
  }

  void take(const std::string& value) { values_.insert(value); }

  /// Elements that are only moved keep the parameters they have.
  [[nodiscard]] const std::string& root(const std::string& value) const {
    const std::string* name = &value;
    for (auto found = share_.find(*name); found != share_.end(); found = share_.find(*name)) {
      name = &found->second;
    }
    return *name;
  }

  /// What `f` returns; its errors name the tensor.
  template <class F>
  static auto of_tensor(const std::string& name, const F& f, const std::string& where = {}) {
    try {
      return f();
    } catch (const error& e) {
      constexpr std::string_view prefix = "detent: ";
      std::string_view text = e.what();
      text.remove_prefix(text.rfind(prefix, 0) == 0 ? prefix.size() : 0);
      raise(e.kind(), "detent: tensor '" + name + "': " + std::string(text) + where);
    }
  }

  /// Whether the value is what a classifier ranks; see static_quantization_options::method.
  [[nodiscard]] bool is_ranked(const std::string& value) const {
    const auto found = known_.find(value);
    if (found == known_.end() || found->second.rank() != 2) {
      return false;
    }
    const auto is_value = [&](const value_info& v) { return v.name == value; };
    return std::any_of(m_.outputs.begin(), m_.outputs.end(), is_value) ||
           std::any_of(m_.nodes.begin(), m_.nodes.end(), [&](const node& n) {
             return n.is("Softmax") && !n.inputs.empty() && n.inputs[0] == value;
           });
  }

  [[nodiscard]] any_observer observer_for(const std::string& value) const {
    const std::string method = detent::detail::lower_case(options_.method);
    const bool ranks = method == "isotone" || method == "ppq.isotone";
    // Constants are what they are, and elements that are only moved take the parameters of others.
    const bool range_only =
        m_.initializer(value) != nullptr || root(value) != value || (ranks && !is_ranked(value));
    return range_only ? any_observer(min_max_observer())
                      : make_observer(options_.method, options_.observer);
  }

  void calibrate(const calibration_source& samples) {
    std::map<std::string, any_observer> observers;
    std::size_t phases = 1;
    for (const std::string& name : values_) {
      any_observer& observer = observers.emplace(name, observer_for(name)).first->second;
      phases = (std::max)(phases, observer.phases());
      if (const tensor* t = m_.initializer(name)) {
        observer.observe(t->data<float>());
      }
    }
    model fused = m_;
    fuse_activations(fused);
    executor float_executor(std::move(fused), options_.executor);
    std::size_t count = 0;
    for (std::size_t phase = 0; phase < phases; ++phase) {
      std::size_t seen = 0;
      while (const auto inputs = samples()) {
        ++seen;
        static_cast<void>(
            float_executor.run(*inputs, [&](const std::string& name, const tensor& value) {
              const auto found = observers.find(name);
              if (found != observers.end() && value.type() == element_type::f32 &&
                  value.count() > 0 && phase < found->second.phases()) {
                observe(name, found->second, value, seen);
              }
            }));
      }
      require(phase == 0 || seen == count, error_kind::invalid_argument,
              "the second pass of the calibration had ", seen, " samples, the first ", count);
      count = seen;
      require(count > 0, error_kind::invalid_argument, "there are no calibration samples");
      for (auto& [name, observer] : observers) {
        if (phase + 1 < observer.phases()) {
          of_tensor(name, [&o = observer, phase] { o.begin_phase(phase + 1); });
        }
      }
    }
    for (const auto& [name, observer] : observers) {
      const scale_solution s =
          of_tensor(name, [&o = observer] { return o.finalize(asymmetric<std::uint8_t>); });
      params_[name] = s.params;
      if (options_.on_parameters && root(name) == name) {
        options_.on_parameters(name, s);
      }
    }
    for (auto& [name, p] : params_) {
      const auto found = params_.find(root(name));
      p = found->second;
    }
  }

  /// Shows one run's value to its observer. What has no range is an error at once, while it is
  /// known in which sample it came.
  static void observe(const std::string& name, any_observer& observer, const tensor& value,
                      std::size_t sample) {
    of_tensor(
        name,
        [&] {
          min_max_observer range;
          range.observe(value.data<float>());
          static_cast<void>(range.range());
        },
        " in calibration sample " + std::to_string(sample));
    const std::vector<std::size_t> dims(value.dims().begin(), value.dims().end());
    of_tensor(name, [&] {
      observer.observe(tensor_view<const float>(value.data<float>().data(), dims));
    });
  }

  // ------------------------------------------------------------------------------------- rewriting

  /// A name that nothing has: `wish`, or `wish` with a number.
  std::string fresh(const std::string& wish) {
    std::string name = wish;
    for (int i = 2; !taken_.insert(name).second; ++i) {
      name = wish + "_" + std::to_string(i);
    }
    return name;
  }

  std::string add_initializer(const std::string& wish, tensor t) {
    const std::string name = fresh(wish);
    m_.initializers[name] = std::move(t);
    return name;
  }
  template <class T>
  std::string add_values(const std::string& name, element_type type, const std::vector<T>& values,
                         bool scalar) {
    return add_initializer(
        name,
        tensor::of<T>(type, scalar ? shape{} : shape{static_cast<std::int64_t>(values.size())},
                      values));
  }

  static node make_node(const char* op, const std::string& name, std::vector<std::string> inputs,
                        std::string output) {
    node n;
    n.op_type = op;
    n.name = name;
    n.inputs = std::move(inputs);
    n.outputs = {std::move(output)};
    return n;
  }

  model rewrite() {
    std::vector<node> nodes;
    // Graph outputs keep their names: their float form gets another one.
    for (const value_info& v : m_.outputs) {
      if (values_.count(v.name) != 0 && links(m_).producer(v.name) != links::none) {
        const std::string inner = unused_name(m_, v.name + "_float");
        rename_value(m_, v.name, inner);
        values_.erase(v.name);
        values_.insert(inner);
        move_key(params_, v.name, inner);
        final_name_[inner] = v.name;
      }
    }
    for (const node& n : m_.nodes) {
      taken_.insert(n.outputs.begin(), n.outputs.end());
    }
    for (const value_info& v : m_.inputs) {
      taken_.insert(v.name);
    }
    for (const auto& [name, t] : m_.initializers) {
      taken_.insert(name);
    }
    for (const auto& [inner, name] : final_name_) {
      taken_.insert(name);
    }
    for (const value_info& v : m_.inputs) {
      add_pair(v.name, nodes);
    }
    std::vector<node> originals = std::move(m_.nodes);
    m_.nodes.clear();
    for (std::size_t i = 0; i < originals.size(); ++i) {
      node n = originals[i];
      const bool quantized = quantized_nodes_.count(i) != 0;
      const bool layer = quantized && is_layer(n);
      for (std::size_t k = 0; k < n.inputs.size(); ++k) {
        if (quantized && !layer && m_.initializer(n.inputs[k]) != nullptr && k < data_inputs(n)) {
          n.inputs[k] = quantize_constant(n.inputs[k], nodes);
        } else if (dequantized_.count(n.inputs[k]) != 0) {
          n.inputs[k] = dequantized_[n.inputs[k]];
        }
      }
      if (layer) {
        quantize_layer(n, originals[i].inputs[0], nodes);
      }
      nodes.push_back(n);
      for (const std::string& out : originals[i].outputs) {
        add_pair(out, nodes);
      }
    }
    m_.nodes = std::move(nodes);
    m_.values.clear();
    m_.producer_name = "detent";
    m_.producer_version = std::to_string(DETENT_VERSION_MAJOR) + "." +
                          std::to_string(DETENT_VERSION_MINOR) + "." +
                          std::to_string(DETENT_VERSION_PATCH);
    remove_unused(m_);
    sort_and_check(m_);
    return std::move(m_);
  }

  template <class Map>
  static void move_key(Map& map, const std::string& from, const std::string& to) {
    auto entry = map.extract(from);
    entry.key() = to;
    map.insert(std::move(entry));
  }

  /// Q and DQ behind a value, if it is one of those that are quantized.
  void add_pair(const std::string& value, std::vector<node>& nodes) {
    const auto found = params_.find(value);
    if (found == params_.end()) {
      return;
    }
    const auto final_name = final_name_.find(value);
    const std::string base = final_name != final_name_.end() ? final_name->second : value;
    const std::string q = fresh(base + "_quantized");
    const std::string dq = final_name != final_name_.end() ? base : fresh(base + "_dequantized");
    const auto [scale, zero_point] = add_params(base, found->second);
    nodes.push_back(
        make_node("QuantizeLinear", base + "_QuantizeLinear", {value, scale, zero_point}, q));
    nodes.push_back(
        make_node("DequantizeLinear", base + "_DequantizeLinear", {q, scale, zero_point}, dq));
    dequantized_[value] = dq;
  }

  std::pair<std::string, std::string> add_params(const std::string& base, quant_params p) {
    return {add_values<float>(base + "_scale", element_type::f32, {p.scale}, true),
            add_values<std::uint8_t>(base + "_zero_point", element_type::u8,
                                     {static_cast<std::uint8_t>(p.zero_point)}, true)};
  }

  /// A constant operand, stored as uint8.
  std::string quantize_constant(const std::string& name, std::vector<node>& nodes) {
    const auto done = dequantized_.find(name);
    if (done != dequantized_.end()) {
      return done->second;
    }
    const tensor& t = m_.initializers.at(name);
    const quant_params p = params_.at(name);
    tensor q = tensor::allocate(element_type::u8, t.dims());
    quantize(t.data<float>(), q.mutable_data<std::uint8_t>(), p);
    const auto [scale, zero_point] = add_params(name, p);
    nodes.push_back(
        make_node("DequantizeLinear", name + "_DequantizeLinear",
                  {add_initializer(name + "_quantized", std::move(q)), scale, zero_point},
                  fresh(name + "_dequantized")));
    return dequantized_[name] = nodes.back().outputs[0];
  }

  void quantize_layer(node& n, const std::string& input, std::vector<node>& nodes) {
    const float x_scale = params_.at(input).scale;
    const tensor weights = m_.initializers.at(n.inputs[1]);
    const std::size_t axis = n.is("MatMul") ? 1 : *output_channel_axis(n);
    const auto channels = static_cast<std::size_t>(weights.dim(axis));
    const bool has_bias = n.inputs.size() > 2 && !n.inputs[2].empty();
    const tensor bias = has_bias ? m_.initializers.at(n.inputs[2]) : tensor();

    const std::vector<std::size_t> dims(weights.dims().begin(), weights.dims().end());
    const tensor_view<const float> view(weights.data<float>().data(), dims);
    channel_min_max_observer observer(axis);
    observer.observe(view);
    channel_quant_params p{axis, {}, std::vector<std::int32_t>(channels, 0)};
    value_range whole{0.0F, 0.0F};
    for (const min_max_observer& channel : observer.channels()) {
      const value_range r = of_tensor(n.inputs[1], [&] { return channel.range(); });
      whole = {(std::min)(whole.lower, r.lower), (std::max)(whole.upper, r.upper)};
      p.scales.push_back(params_from_range(r, symmetric<std::int8_t>).scale);
    }
    if (!options_.per_channel) {
      p.scales.assign(channels, params_from_range(whole, symmetric<std::int8_t>).scale);
    }
    fit_bias(p.scales, observer, x_scale, bias, n);

    const std::string base = n.inputs[1];
    tensor q = tensor::allocate(element_type::s8, weights.dims());
    quantize(view, tensor_view<std::int8_t>(q.mutable_data<std::int8_t>().data(), dims), p,
             narrow_grid<std::int8_t>);
    const bool scalar = !options_.per_channel;
    std::vector<float> scales = p.scales;
    scales.resize(scalar ? 1 : channels);
    const std::vector<std::int8_t> zeros(scales.size(), 0);
    node dq =
        make_node("DequantizeLinear", base + "_DequantizeLinear",
                  {add_initializer(base + "_quantized", std::move(q)),
                   add_values<float>(base + "_scale", element_type::f32, scales, scalar),
                   add_values<std::int8_t>(base + "_zero_point", element_type::s8, zeros, scalar)},
                  fresh(base + "_dequantized"));
    if (!scalar) {
      dq.attributes["axis"] = attribute::of(static_cast<std::int64_t>(axis));
    }
    n.inputs[1] = dq.outputs[0];
    nodes.push_back(std::move(dq));
    if (has_bias) {
      n.inputs[2] = quantize_bias(n.inputs[2], bias, x_scale, scales, nodes);
    }
  }

  /// Raises weight scales until the bias of each channel fits 2^30 steps; see the top of this file.
  void fit_bias(std::vector<float>& scales, const channel_min_max_observer& observer, float x_scale,
                const tensor& bias, const node& n) const {
    constexpr float fine = 1048576.0F;  // 2^20 steps: where only the bias matters
    constexpr float coarse =
        1073741824.0F;  // 2^30 steps: leaves half of the int32 range to the sums
    float largest = 0.0F;
    for (std::size_t i = 0; i < scales.size(); ++i) {
      const value_range r = observer.channels()[i].range();
      const bool zero = r.lower == 0.0F && r.upper == 0.0F && options_.per_channel;
      const float b = bias.defined() ? std::fabs(bias.data<float>()[i]) : 0.0F;
      require(std::isfinite(b), error_kind::invalid_argument, n.label(), ": its bias holds ", b);
      if (b > 0.0F) {
        const float least = b / (zero ? fine : coarse) / x_scale;
        scales[i] = zero ? (std::max)(least, std::numeric_limits<float>::min())
                         : (std::max)(scales[i], least);
      }
      largest = (std::max)(largest, scales[i]);
    }
    if (!options_.per_channel) {
      std::fill(scales.begin(), scales.end(), largest);
    }
  }

  std::string quantize_bias(const std::string& name, const tensor& bias, float x_scale,
                            const std::vector<float>& weight_scales, std::vector<node>& nodes) {
    std::vector<float> scales;
    for (const float s : weight_scales) {
      scales.push_back(x_scale * s);
    }
    std::vector<std::int32_t> q;
    for (std::size_t i = 0; i < bias.count(); ++i) {
      const auto scale = static_cast<double>(x_scale) *
                         static_cast<double>(weight_scales[weight_scales.size() == 1 ? 0 : i]);
      const double steps = static_cast<double>(bias.data<float>()[i]) / scale;
      q.push_back(static_cast<std::int32_t>(
          std::clamp(std::nearbyint(steps), -2147483647.0, 2147483647.0)));
    }
    const bool scalar = scales.size() == 1 && !options_.per_channel;
    node dq = make_node("DequantizeLinear", name + "_DequantizeLinear",
                        {add_values<std::int32_t>(name + "_quantized", element_type::s32, q, false),
                         add_values<float>(name + "_scale", element_type::f32, scales, scalar)},
                        fresh(name + "_dequantized"));
    if (!scalar) {
      dq.attributes["axis"] = attribute::of(std::int64_t{0});
    }
    nodes.push_back(dq);
    return dq.outputs[0];
  }

  model m_;
  static_quantization_options options_;
  std::map<std::string, tensor> known_;
  std::set<std::size_t> quantized_nodes_;
  std::set<std::string> values_;  // that are quantized
  std::map<std::string, std::string> share_;
  std::map<std::string, quant_params> params_;
  std::map<std::string, std::string> dequantized_;
  std::map<std::string, std::string> final_name_;
  std::set<std::string> taken_;
};

}  // namespace detail

/// Quantizes a float model. `samples` is drawn until it is empty, once for each pass that the
/// observer wants; each sample is run through the float executor, all tensors together. Throws
/// unsupported (naming the operator that cannot be run, or if the model is quantized already),
/// invalid_argument (no samples, NaN or infinity in a tensor, naming it; an unknown method, naming
/// those that there are).
[[nodiscard]] inline model quantize_static(model m, const calibration_source& samples,
                                           const static_quantization_options& options = {}) {
  return detail::static_quantizer(std::move(m), options).run(samples);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_STATIC_QUANTIZATION_HPP
