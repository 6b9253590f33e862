// SPDX-License-Identifier: BSD-3-Clause
// Bias correction: changes biases to compensate for the effect of rounded weights on the mean of
// each output channel.
//
//   fast   layer by layer: the layer is run with float and with rounded weights on an input that
//          holds the mean of each of its channels; the difference is added to the bias
//   full   in topological order: the quantized network is run up to the layer, with the biases
//          corrected so far; what the mean of each channel lacks is added to the bias
//
// Sources: Nagel et al. 2019 ("empirical bias correction"), and NNCF's FastBiasCorrection and
// BiasCorrection, whose rules `bias_correction_rule::nncf` follows.
#ifndef DETENT_GRAPH_QUANTIZE_BIAS_CORRECTION_HPP
#define DETENT_GRAPH_QUANTIZE_BIAS_CORRECTION_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/base/exact_sum.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/network_parts.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/settled_front.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/saved_state.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How the shift of the mean of each output channel is found.
enum class bias_correction : std::uint8_t {
  none,  ///< Biases stay as they are.
  fast,  ///< Each layer alone is run on an input that holds the means of its channels.
  full   ///< The quantized network is run up to each layer, on samples.
};

/// Which layers are corrected.
enum class bias_correction_rule : std::uint8_t {
  /// A layer is corrected if the |shift| of no channel exceeds `threshold` standard deviations of
  /// the layer's float output. Convolutions and Gemm without a bias get one.
  absolute,
  /// NNCF's rule: a layer is corrected if |shift / bias| of each channel is less than `threshold`.
  /// MatMul and layers without a bias are left alone, and so are, with the fast kind, layers with a
  /// bias of 0. The fast kind compares with the recorded mean of the float output; the full kind
  /// leaves activations in float.
  nncf,
};

/// Options of correct_biases().
struct bias_correction_options {
  bias_correction kind = bias_correction::fast;                ///< How the shift is found.
  bias_correction_rule rule = bias_correction_rule::absolute;  ///< Which layers are corrected.
  /// Limit of the rule. 0 stands for the default: 1000 for the full kind by the rule of NNCF, else
  /// 2.
  double threshold = 0.0;
  /// Samples that are used, at most; 0: all. The full kind runs each of them once for each layer.
  std::size_t max_samples = 0;
};

/// Report of what correct_biases() did to one layer.
struct bias_shift {
  std::string node;  ///< Label of the node.
  /// The mean of each output channel in the float model minus that in the quantized one, as the
  /// kind of correction measures it.
  std::vector<double> shift;
  bool applied = false;  ///< Whether the shift was added to the bias.
};

namespace detail {

/// The sum of each channel of a value. Channels are dimension 1 of images, and the last dimension
/// of matrices. The values of a channel in one image are added up in double; such sums, and the
/// single values of matrices, are added up exactly. So the order of images does not matter, nor how
/// they are divided into batches.
class channel_sums {
 public:
  channel_sums() = default;
  explicit channel_sums(bool is_image) : is_image_(is_image) {}

  /// Adds a value; one without elements adds nothing. Throws shape_mismatch if the value has no
  /// axis of channels or another number of channels than those before.
  void add(const tensor& value) {
    if (value.count() == 0) {
      return;
    }
    const tensor t = to_plain(value);
    require(t.rank() > (is_image_ ? 1U : 0U), error_kind::shape_mismatch, "a value of shape ",
            shown(t.dims()), " has no channels");
    const std::size_t axis = is_image_ ? 1 : t.rank() - 1;
    const auto channels = static_cast<std::size_t>(t.dim(axis));
    require_channels(channels);
    std::size_t inner = 1;
    for (std::size_t d = axis + 1; d < t.rank(); ++d) {
      inner *= static_cast<std::size_t>(t.dim(d));
    }
    note_shape(t.dims());
    sums_.resize(channels);
    const auto values = t.data<float>();
    for (std::size_t i = 0; i < values.size(); i += inner) {
      add_run(values.subspan(i, inner), sums_[i / inner % channels]);
    }
    count_ += values.size();
  }
  /// Afterwards this object has also seen everything that `other` has seen. Throws shape_mismatch
  /// if that has another number of channels, overflow if more than 2^60 elements were seen.
  void merge(const channel_sums& other) {
    if (other.count_ == 0) {
      return;
    }
    require_channels(other.sums_.size());
    require(other.count_ <= largest_count - count_, error_kind::overflow,
            "sums of channels: more than 2^60 elements");
    note_shape(other.dims_);
    sums_.resize(other.sums_.size());
    for (std::size_t c = 0; c < sums_.size(); ++c) {
      sums_[c].add(other.sums_[c]);
    }
    squares_.add(other.squares_);
    count_ += other.count_;
    is_finite_ = is_finite_ && other.is_finite_;
  }

  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// The shape of the values, but for dimension 0, which is 1 unless it is that of the channels. Of
  /// several shapes, it is the greatest, compared from the left.
  [[nodiscard]] const shape& dims() const noexcept { return dims_; }
  /// The mean of each channel, rounded twice; NaN if a value was NaN or infinite.
  [[nodiscard]] std::vector<double> means() const {
    std::vector<double> m;
    m.reserve(sums_.size());
    const double each = static_cast<double>(count_) / static_cast<double>(sums_.size());
    for (const exact_sum& sum : sums_) {
      m.push_back(checked(sum.value()) / each);
    }
    return m;
  }
  /// A value of the shape dims() in which each element is the mean of its channel. Throws bad_file
  /// if it would have more than `most_bytes`, because the shape may be from a file; `layer` names
  /// the layer whose input it is.
  [[nodiscard]] tensor mean_value(std::size_t most_bytes, const std::string& layer) const {
    require(is_within(dims_, most_bytes / sizeof(float)), error_kind::bad_file, layer,
            ": an input of shape ", shown(dims_), " is above the limit of ", most_bytes, " bytes");
    const std::vector<double> m = means();
    tensor value = tensor::allocate(element_type::f32, dims_);
    const std::size_t inner = is_image_ ? value.count() / m.size() : 1;
    auto elements = value.mutable_data<float>();
    for (std::size_t k = 0; k < elements.size(); ++k) {
      elements[k] = static_cast<float>(m[k / inner % m.size()]);
    }
    return value;
  }
  /// The standard deviation of all elements, about the mean of all channels together.
  [[nodiscard]] double standard_deviation() const {
    exact_sum sum;
    for (const exact_sum& s : sums_) {
      sum.add(s);
    }
    const auto n = static_cast<double>(count_);
    const double mean = checked(sum.value()) / n;
    const double variance =
        checked(squares_.value()) / n - detent::detail::rounded_product(mean, mean);
    return std::sqrt((std::max)(variance, 0.0));
  }

  /// Appends u8 is_image, u8 whether all values were finite, u64 count; u64 rank and i64 dimensions
  /// of the shape; u64 channels and the sum of each; the sum of the squares.
  void write(detent::detail::byte_writer& out) const {
    detent::detail::put_choice(out, is_image_);
    detent::detail::put_choice(out, is_finite_);
    out.put(count_);
    detent::detail::put_list(out, dims_);
    out.put(static_cast<std::uint64_t>(sums_.size()));
    for (const exact_sum& sum : sums_) {
      sum.write(out);
    }
    squares_.write(out);
  }
  /// Replaces the sums by those that write() appended for values of the same kind. Throws bad_file
  /// for impossible ones.
  void read(detent::detail::byte_reader& in) {
    constexpr const char* where = "sums of channels";
    channel_sums next;
    next.is_image_ = detent::detail::get_choice(in, true, where);
    next.is_finite_ = detent::detail::get_choice(in, true, where);
    next.count_ = in.get_size(largest_count);
    next.dims_ = detent::detail::get_list<std::int64_t>(in, max_rank);
    const std::size_t channels = in.get_size(in.rest() / (8 * sum_limbs));
    const std::size_t axis = next.is_image_ ? 1 : next.dims_.size() - 1;
    detent::detail::require_state(
        next.is_image_ == is_image_ &&
            (next.count_ == 0 ? channels == 0 && next.dims_.empty()
                              : next.dims_.size() > (next.is_image_ ? 1U : 0U) && channels != 0 &&
                                    next.count_ % channels == 0 &&
                                    next.dims_[axis] == static_cast<std::int64_t>(channels) &&
                                    (axis == 0 || next.dims_[0] == 1)),
        where, "the shape does not fit the sums");
    next.sums_.resize(channels);
    for (exact_sum& sum : next.sums_) {
      sum.read(in);
    }
    next.squares_.read(in);
    detent::detail::require_state(next.are_sums_of_floats(), where, "a sum is too large");
    *this = std::move(next);
  }

 private:
  static constexpr std::size_t lanes = 8;
  // What a saved state may say that was seen. Samples that are observed do not come near it.
  static constexpr std::uint64_t largest_count = std::uint64_t{1} << 60;
  // Sums of floats are multiples of 2^-149, those of their squares of 2^-298. A value has less than
  // 2^40 elements.
  static constexpr std::size_t sum_limbs = 6;
  using exact_sum = detent::detail::exact_sum<-149, sum_limbs>;
  using exact_sum_of_squares = detent::detail::exact_sum<-298, 11>;

  /// Whether the sums may be those of as many floats.
  [[nodiscard]] bool are_sums_of_floats() const {
    constexpr double largest = 0x1p128;  // no float is as large
    const auto n = static_cast<double>(count_);
    const double each = sums_.empty() ? 0.0 : n / static_cast<double>(sums_.size());
    const double squares = squares_.value();
    return squares >= 0.0 && squares <= n * largest * largest &&
           std::all_of(sums_.begin(), sums_.end(), [&](const exact_sum& sum) {
             return std::fabs(sum.value()) <= each * largest;
           });
  }

  void require_channels(std::size_t channels) const {
    require(sums_.empty() || sums_.size() == channels, error_kind::shape_mismatch, "sums of ",
            channels, " channels where there were ", sums_.size());
  }

  void note_shape(shape dims) {
    if (dims.size() > 1) {  // else dimension 0 is that of the channels
      dims[0] = 1;
    }
    dims_ = (std::max)(dims_, dims);
  }

  void add_run(std::span<const float> x, exact_sum& to) {
    double sum = 0.0;
    double square = 0.0;
    std::size_t k = 0;
    if (x.size() >= lanes) {
      // Sums that do not wait for each other; their number is part of the result.
      std::array<double, lanes> some{};
      std::array<double, lanes> squares{};
      for (; k + lanes <= x.size(); k += lanes) {
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          const double v = static_cast<double>(x[k + lane]);
          some[lane] += v;
          squares[lane] += v * v;  // the square is exact
        }
      }
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        sum += some[lane];
        square += squares[lane];
      }
    }
    for (; k < x.size(); ++k) {
      const double v = static_cast<double>(x[k]);
      sum += v;
      square += v * v;
    }
    if (!std::isfinite(square)) {  // and so is the sum, unless a value was not
      is_finite_ = false;
      return;
    }
    to.add(sum);
    squares_.add(square);
  }

  [[nodiscard]] double checked(double sum) const noexcept {
    return is_finite_ ? sum : std::numeric_limits<double>::quiet_NaN();
  }

  bool is_image_ = true;
  bool is_finite_ = true;
  shape dims_;
  std::vector<exact_sum> sums_;
  exact_sum_of_squares squares_;
  std::uint64_t count_ = 0;
};

/// How far the means of `a` are above those of `b`, channel by channel; nothing if one of them has
/// seen no values. `layer` names the layer whose results both have seen. Throws shape_mismatch if
/// they have different numbers of channels: sums may be from a file.
[[nodiscard]] inline std::vector<double> mean_difference(const channel_sums& a,
                                                         const channel_sums& b,
                                                         const std::string& layer) {
  if (a.empty() || b.empty()) {
    return {};
  }
  std::vector<double> difference = a.means();
  const std::vector<double> means = b.means();
  require(difference.size() == means.size(), error_kind::shape_mismatch, layer, ": sums of ",
          difference.size(), " channels for a result of ", means.size());
  for (std::size_t c = 0; c < means.size(); ++c) {
    difference[c] -= means[c];
  }
  return difference;
}

}  // namespace detail

/// Collects the means of the channels that the layers of a plan take and make, over runs of the
/// float model. A MatMul without an Add of a bias behind it is left out.
class layer_means {
 public:
  /// Prepares sums for the inputs and outputs of all layers of the plan.
  explicit layer_means(const quantization_plan& plan) {
    for (const std::size_t i : plan.layers()) {
      const node& n = plan.float_model().nodes[i];
      if (n.is("MatMul") && plan.bias(i) == nullptr) {
        continue;
      }
      for (const std::string& name : {n.inputs[0], n.outputs[0]}) {
        means_.emplace(std::pair(name, is_convolution(n)), detail::channel_sums(is_convolution(n)));
      }
    }
  }
  /// Adds a value that a run of the float model computes. Values that no layer takes or makes are
  /// ignored.
  void add(const std::string& name, const tensor& value) {
    for (const bool by_convolution : {false, true}) {
      const auto found = means_.find({name, by_convolution});
      if (found != means_.end()) {
        found->second.add(value);
      }
    }
  }
  /// Afterwards these are the means that would have been collected from all samples of both.
  /// Exact: the order of merges does not matter. Throws invalid_argument if `other` is for other
  /// layers, shape_mismatch if a value has another number of channels.
  void merge(const layer_means& other) {
    require(std::equal(means_.begin(), means_.end(), other.means_.begin(), other.means_.end(),
                       [](const auto& a, const auto& b) { return a.first == b.first; }),
            error_kind::invalid_argument, "merging the means of other layers");
    for (auto& [key, sums] : means_) {
      detail::of_tensor(key.first,
                        [&, &one = sums, &more = other.means_.at(key)] { one.merge(more); });
    }
  }
  /// Appends, for each value in the order of names, its sums.
  void write(detent::detail::byte_writer& out) const {
    for (const auto& [key, sums] : means_) {
      sums.write(out);
    }
  }
  /// Replaces all sums by those that write() appended for the same layers. Throws bad_file for
  /// impossible ones.
  void read(detent::detail::byte_reader& in) {
    std::map<value_key, detail::channel_sums> next = means_;
    for (auto& [key, sums] : next) {
      detail::of_tensor(key.first, [&in, &one = sums] { one.read(in); });
    }
    means_ = std::move(next);
  }
  /// The sums of a value that a convolution takes or makes (channels are axis 1), or that a product
  /// does (channels are the last axis). Throws invalid_argument if none does.
  [[nodiscard]] const detail::channel_sums& of(const std::string& name, bool by_convolution) const {
    const auto found = means_.find({name, by_convolution});
    require(found != means_.end(), error_kind::invalid_argument, "there are no sums of the value '",
            name, "'");
    return found->second;
  }

 private:
  // The name of a value, and whether it is of a convolution: a product may take it, too.
  using value_key = std::pair<std::string, bool>;

  std::map<value_key, detail::channel_sums> means_;
};

namespace detail {

/// Corrects the layers of a plan one after the other, in topological order.
class bias_corrector {
 public:
  bias_corrector(quantization_plan& plan, const quantization_parameters& parameters,
                 const layer_means& means, const bias_correction_options& options,
                 const executor_options& runner)
      : plan_(plan), p_(parameters), means_(means), options_(options), runner_(runner) {
    if (options_.threshold == 0.0) {
      options_.threshold =
          options.kind == bias_correction::full && options.rule == bias_correction_rule::nncf
              ? 1000.0
              : 2.0;
    }
  }

  std::vector<bias_shift> run(const calibration_source& some) {
    if (options_.kind == bias_correction::full) {
      return nncf() ? run_rounded(some) : run_parts(some);
    }
    std::vector<bias_shift> shifts;
    for (const std::size_t i : plan_.layers()) {
      if (has_bias(i)) {
        shifts.push_back(correct(i, fast_shift(i)));
      }
    }
    return shifts;
  }

 private:
  /// Bytes of the values that are kept between two parts of the network, for all samples.
  static constexpr std::size_t largest_bytes = std::size_t{1} << 26;

  /// Whether a layer has a bias or may get one. Throws invalid_argument if there are no samples.
  [[nodiscard]] bool has_bias(std::size_t i) const {
    const node& n = plan_.float_model().nodes[i];
    // This rule of NNCF's is for convolutions and Gemm; nncf/ has the whole algorithm.
    const bool is_product = n.is("MatMul");
    if ((is_product && nncf()) || ((is_product || nncf()) && plan_.bias(i) == nullptr)) {
      return false;
    }
    require(!means_.of(n.inputs[0], is_convolution(n)).empty(), error_kind::invalid_argument,
            "there are no calibration samples");
    return true;
  }

  [[nodiscard]] bias_shift correct(std::size_t i, std::vector<double> shift) {
    bias_shift s;
    s.node = plan_.float_model().nodes[i].label();
    s.shift = std::move(shift);
    s.applied = !s.shift.empty() && is_acceptable(i, s.shift);
    if (s.applied) {
      apply(i, s.shift);
    }
    return s;
  }

  /// Corrects by the full kind, part by part of the network. The values between two parts are kept
  /// for as many samples as `largest_bytes` allows; the network is run up to the part for the rest.
  std::vector<bias_shift> run_parts(const calibration_source& samples) {
    std::vector<std::string> outputs;
    for (const value_info& v : plan_.float_model().outputs) {
      outputs.push_back(v.name);
    }
    network_parts parts(plan_, outputs, runner_);
    const std::set<std::size_t> layers(plan_.layers().begin(), plan_.layers().end());
    std::size_t count = 0;
    while (samples()) {
      ++count;
    }
    std::vector<network_values> kept(count);
    std::vector<bias_shift> shifts;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      for (const std::size_t i : parts.nodes(part)) {
        if (layers.count(i) == 0 || !has_bias(i)) {
          continue;
        }
        const node& n = plan_.float_model().nodes[i];
        executor beginning(for_execution(parts.model_up_to(p_, part, n.outputs[0])), runner_);
        channel_sums sums(is_convolution(n));
        for (std::size_t k = 0; const auto inputs = samples(); ++k) {
          network_values values;
          if (k >= kept.size()) {
            parts.run(*inputs, values, part);
          }
          sums.add(parts.run_up_to(beginning, *inputs, k < kept.size() ? kept[k] : values).front());
        }
        shifts.push_back(correct(
            i, mean_difference(means_.of(n.outputs[0], is_convolution(n)), sums, n.label())));
      }
      parts.write(p_, part);
      std::size_t bytes = 0;
      const bool all_kept = kept.size() == count;
      for (std::size_t k = 0; const auto inputs = samples(); ++k) {
        if (k >= kept.size()) {
          continue;
        }
        parts.run_part(part, *inputs, kept[k]);
        parts.forget(kept[k], part + 1);
        for (const auto& [name, value] : kept[k]) {
          bytes += value.bytes();
        }
        if (bytes > largest_bytes) {
          kept.resize(k);
        }
      }
      if (kept.size() == count) {
        parts.release(part);
      } else if (all_kept) {  // from now on, some samples need all parts
        for (std::size_t before = 0; before < part; ++before) {
          parts.write(p_, before);
        }
      }
    }
    return shifts;
  }

  [[nodiscard]] bool nncf() const noexcept { return options_.rule == bias_correction_rule::nncf; }

  /// The result of a layer alone, with given weights and bias, for one input.
  [[nodiscard]] tensor run_layer(const node& n, const tensor& weights, const tensor* bias,
                                 const tensor& input) const {
    model m;
    m.opsets = plan_.float_model().opsets;
    m.inputs = {{"x", element_type::f32, false, {}, {}}};
    m.initializers["w"] = weights;
    node layer = n;
    layer.inputs = {"x", "w"};
    if (bias != nullptr) {
      m.initializers["b"] = *bias;
      layer.inputs.push_back("b");
    }
    layer.outputs = {"y"};
    m.outputs = {{"y", element_type::f32, false, {}, {}}};
    m.nodes = {std::move(layer)};
    executor one(std::move(m), runner_);
    return one.run({{"x", input}})[0];
  }

  /// The shift of each output channel, from the means of the input channels.
  [[nodiscard]] std::vector<double> fast_shift(std::size_t i) const {
    const model& m = plan_.float_model();
    const node& n = m.nodes[i];
    const tensor input =
        means_.of(n.inputs[0], is_convolution(n)).mean_value(runner_.max_tensor_bytes, n.label());
    const tensor* bias = float_constant(m, n, 2);
    const auto means_of = [&](const tensor& weights) {
      channel_sums sums(is_convolution(n));
      sums.add(run_layer(n, weights, bias, input));
      return sums;
    };
    const channel_sums rounded =
        means_of(dequantized(entry_of(p_.layers, i, "integer weights for the layer with index")));
    return mean_difference(nncf() ? means_.of(n.outputs[0], is_convolution(n))
                                  : means_of(m.initializers.at(n.inputs[1])),
                           rounded, n.label());
  }

  /// Corrects by the full kind with the rule of NNCF: the network has rounded weights and computes
  /// in float.
  std::vector<bias_shift> run_rounded(const calibration_source& samples) {
    model network = plan_.float_model();
    unused_names names(network);
    for (const auto& [layer, weights] : p_.layers) {
      // Layers may share weights, but each one has rounded weights of its own.
      const std::string name = names.take("rounded");
      network.initializers[name] = dequantized(weights);
      network.nodes[layer].inputs[1] = name;
    }
    settled_front runs(samples, runner_);
    std::vector<bias_shift> shifts;
    for (const std::size_t i : plan_.layers()) {
      if (!has_bias(i)) {
        continue;
      }
      const node& n = plan_.float_model().nodes[i];
      runs.advance(network, {}, values_across(network, i));
      channel_sums sums(is_convolution(n));
      runs.run(network, {}, {n.outputs[0]},
               [&](const std::vector<tensor>& results) { sums.add(results[0]); });
      shifts.push_back(
          correct(i, mean_difference(means_.of(n.outputs[0], is_convolution(n)), sums, n.label())));
      network.nodes[i].inputs[2] = n.inputs[2];
      network.initializers[n.inputs[2]] = *plan_.bias(i);
    }
    return shifts;
  }

  [[nodiscard]] bool is_acceptable(std::size_t i, const std::vector<double>& shift) const {
    const model& m = plan_.float_model();
    const node& n = m.nodes[i];
    if (nncf()) {
      const auto bias = float_constant(m, n, 2)->data<float>();
      const bool full = options_.kind == bias_correction::full;
      double largest = 0.0;
      for (std::size_t c = 0; c < shift.size(); ++c) {
        const double b = static_cast<double>(bias[c]) + (full ? 1e-7 : 0.0);
        const double ratio = std::fabs(shift[c] / b);
        largest = ratio > largest || std::isnan(ratio) ? ratio : largest;
      }
      return largest < options_.threshold;
    }
    const double limit =
        options_.threshold * means_.of(n.outputs[0], is_convolution(n)).standard_deviation();
    return std::all_of(shift.begin(), shift.end(), [&](double s) { return std::fabs(s) <= limit; });
  }

  void apply(std::size_t i, const std::vector<double>& shift) {
    const tensor* old = plan_.bias(i);
    tensor bias = tensor::allocate(element_type::f32, {static_cast<std::int64_t>(shift.size())});
    for (std::size_t c = 0; c < shift.size(); ++c) {
      const double before = old == nullptr ? 0.0 : static_cast<double>(old->data<float>()[c]);
      bias.mutable_data<float>()[c] = static_cast<float>(before + shift[c]);
    }
    plan_.set_bias(i, std::move(bias));
  }

  quantization_plan& plan_;
  const quantization_parameters& p_;
  const layer_means& means_;
  bias_correction_options options_;
  executor_options runner_;
};

}  // namespace detail

/// Collects the means of the layers of a plan, from runs of its float model on all samples. Throws
/// invalid_argument if there is no source of samples.
[[nodiscard]] DETENT_GRAPH_DECL layer_means gather_means(const quantization_plan& plan,
                                                         const calibration_source& samples,
                                                         const executor_options& runner = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL layer_means gather_means(const quantization_plan& plan,
                                           const calibration_source& samples,
                                           const executor_options& runner) {
  require(static_cast<bool>(samples), error_kind::invalid_argument,
          "there is no source of calibration samples");
  layer_means means(plan);
  executor float_executor(plan.float_model(), runner);
  while (const auto inputs = samples()) {
    static_cast<void>(float_executor.run(
        *inputs, [&](const std::string& name, const tensor& value) { means.add(name, value); }));
  }
  return means;
}
#endif

/// Corrects the biases of the plan's layers with the means that gather_means() has collected from
/// the same samples. Otherwise like the form below. The fast kind draws no samples, so that
/// `samples` may be empty for it. Throws invalid_argument if the means are empty, and for the full
/// kind, which has to run the network, if there are no samples.
DETENT_GRAPH_DECL std::vector<bias_shift> correct_biases(
    quantization_plan& plan, const quantization_parameters& parameters, const layer_means& means,
    const bias_correction_options& options = {}, const executor_options& runner = {},
    const calibration_source& samples = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<bias_shift> correct_biases(quantization_plan& plan,
                                                         const quantization_parameters& parameters,
                                                         const layer_means& means,
                                                         const bias_correction_options& options,
                                                         const executor_options& runner,
                                                         const calibration_source& samples) {
  require(options.kind != bias_correction::full || samples, error_kind::invalid_argument,
          "full bias correction from means, without samples");
  if (options.kind == bias_correction::none) {
    return {};
  }
  return detail::bias_corrector(plan, parameters, means, options, runner)
      .run(options.kind == bias_correction::full && options.max_samples != 0
               ? first_samples(samples, options.max_samples)
               : samples);
}
#endif

/// Corrects the biases of the plan's layers, so that the mean of each output channel is that of the
/// float model again: bias' = bias + shift, where the shift is the float mean minus the quantized
/// mean. The fast kind draws the samples once; the full kind draws them twice, and once more for
/// each layer and each part of the network (by NNCF's rule twice in all, or twice more for each
/// layer if the values in front of it do not fit); between parts, it keeps up to 64 MiB of values,
/// and runs the network from its inputs for the samples that do not fit. Returns one entry for each
/// layer that has a bias or may get one, in topological order; layers whose shift the rule rejects
/// are in it, too. With kind none, nothing changes and the result is empty. Deterministic; the
/// result does not depend on how many samples are batched in one run.
///
/// Throws invalid_argument if there are no samples.
DETENT_GRAPH_DECL std::vector<bias_shift> correct_biases(
    quantization_plan& plan, const quantization_parameters& parameters,
    const calibration_source& samples, const bias_correction_options& options = {},
    const executor_options& runner = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<bias_shift> correct_biases(quantization_plan& plan,
                                                         const quantization_parameters& parameters,
                                                         const calibration_source& samples,
                                                         const bias_correction_options& options,
                                                         const executor_options& runner) {
  if (options.kind == bias_correction::none) {
    return {};
  }
  const calibration_source some =
      options.max_samples == 0 ? samples : first_samples(samples, options.max_samples);
  return correct_biases(plan, parameters, gather_means(plan, some, runner), options, runner, some);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_BIAS_CORRECTION_HPP
