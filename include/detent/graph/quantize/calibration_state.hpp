// SPDX-License-Identifier: BSD-3-Clause
// Calibration over many processes: each observes its share of the samples, saves what static
// quantization needs of them, and the saved states are merged. What is made of the merged state
// does not depend on the division of the samples or on the order of merges, to the bit.
//
// The content of a saved state, after what state_file.hpp describes:
//
//   u64 number of values; for each, in the order of names: two texts, its name and its method, then
//     merged by merge()   the state of the observer
//     by sample           u64 number of samples; for each its u64 number and an observer of it
//     by extents          u64 number of samples, for each its u64 number and extent; in the second
//                         round the observer (u8 1 and its state, or u8 0), or what "by sample" has
//   u8 whether there are means for bias correction, and the means
#ifndef DETENT_GRAPH_QUANTIZE_CALIBRATION_STATE_HPP
#define DETENT_GRAPH_QUANTIZE_CALIBRATION_STATE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/layer_means.hpp>
#include <detent/graph/quantize/partial_quantization.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/batch_extent.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/saved_state.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// What one activation has shown: an observer, if its state merges in any order; else what its
/// observer needs of each sample, by the number of the sample.
class value_state {
 public:
  value_state(std::string method, any_observer empty)
      : method_(std::move(method)), empty_(empty), total_(std::move(empty)) {
    by_extents_ = empty_.follows();
    by_sample_ = empty_.appends() && (by_extents_ || !empty_.merges_in_any_order());
    require(by_extents_ || by_sample_ || empty_.merges_in_any_order(), error_kind::unsupported,
            "states of the method '", method_, "' cannot be merged");
  }

  [[nodiscard]] const std::string& method() const noexcept { return method_; }
  /// How often each sample has to be observed: once or twice.
  [[nodiscard]] std::size_t rounds() const { return by_extents_ || empty_.phases() == 2 ? 2 : 1; }
  /// Whether the value is observed in a round: 1 or 2.
  [[nodiscard]] bool is_seen_in(std::uint64_t round) const { return round <= rounds(); }

  void begin_second_round() {
    if (!by_extents_ && rounds() == 2) {
      total_.begin_phase(1);
    }
  }

  /// Observes the samples of a shard, one call for each, in their order. Before them,
  /// begin_shard(), and behind them end_shard().
  void begin_shard(std::uint64_t round, std::uint64_t first) {
    if (by_extents_ && round == 2) {
      walker_ = empty_;
      followed_ = 0;
      follow_up_to(first);
    }
  }
  void observe(std::uint64_t round, std::uint64_t sample, const tensor& value) {
    const tensor_view<const float> x = tensor_view_of<float>(value);
    if (by_extents_ && round == 1) {
      add(extents_, sample, batch_extent::of(value.data<float>()));
    } else if (by_extents_) {
      follow_up_to(sample);
      observe_between(sample, value);
    } else if (by_sample_) {
      any_observer one = empty_;
      one.observe(x);
      add(samples_, sample, std::move(one));
    } else {
      total_.observe(x);
    }
  }
  void end_shard() {
    if (!walker_) {
      return;
    }
    if (!by_sample_) {
      follow_up_to(static_cast<std::uint64_t>(-1));
      add_counted(*walker_);
    }
    walker_.reset();
  }

  void merge(const value_state& other, std::uint64_t round) {
    if (!is_seen_in(round)) {
      return;  // both have it from the first round
    }
    if (!by_extents_ && !by_sample_) {
      total_.merge(other.total_);
      return;
    }
    if (round == 1) {
      for (const auto& [sample, extent] : other.extents_) {
        add(extents_, sample, extent);
      }
    }
    for (const auto& [sample, one] : other.samples_) {
      add(samples_, sample, one);
    }
    if (other.is_counted_) {
      add_counted(other.total_);
    }
  }

  /// The observer that has seen all samples in their order.
  [[nodiscard]] any_observer observer() const {
    any_observer all = total_;
    for (const auto& [sample, one] : samples_) {
      all.append(one);
    }
    return all;
  }

  void write(detent::detail::byte_writer& out, std::uint64_t round) const {
    if (by_extents_) {
      out.put(static_cast<std::uint64_t>(extents_.size()));
      for (const auto& [sample, extent] : extents_) {
        out.put(sample);
        extent.write(out);
      }
    }
    if (by_sample_ && is_written(round)) {
      out.put(static_cast<std::uint64_t>(samples_.size()));
      for (const auto& [sample, one] : samples_) {
        out.put(sample);
        one.write(out);
      }
    } else if (by_extents_ && is_written(round)) {
      detent::detail::put_choice(out, is_counted_);
    }
    if (!by_sample_ && (!by_extents_ || is_counted_)) {
      total_.write(out);
    }
  }
  /// Replaces the state by one that write() appended. Throws bad_file for an impossible one.
  void read(detent::detail::byte_reader& in, std::uint64_t round) {
    *this = value_state(method_, empty_);
    if (by_extents_) {
      read_list(in, extents_, [&] { return batch_extent::read(in); });
    }
    if (by_sample_ && is_written(round)) {
      read_list(in, samples_, [&] {
        any_observer one = empty_;
        one.read(in);
        return one;
      });
    } else if (by_extents_ && is_written(round)) {
      is_counted_ = detent::detail::get_choice(in, true, "a state");
    }
    if (!by_sample_ && (!by_extents_ || is_counted_)) {
      total_.read(in);
      require_mergeable(round);
    }
  }

 private:
  template <class T>
  static void add(std::map<std::uint64_t, T>& to, std::uint64_t sample, T one) {
    require(to.emplace(sample, std::move(one)).second, error_kind::invalid_argument, "sample ",
            sample,
            " was observed twice; where the method depends on the order of samples, the "
            "shards number them");
  }

  template <class T, class Read>
  static void read_list(detent::detail::byte_reader& in, std::map<std::uint64_t, T>& to,
                        const Read& read) {
    std::map<std::uint64_t, T> next;
    // Each entry has more bytes than its number.
    const std::size_t count = in.get_size(in.rest() / sizeof(std::uint64_t));
    for (std::size_t i = 0; i < count; ++i) {
      const auto sample = in.get<std::uint64_t>();
      require(next.empty() || next.rbegin()->first < sample, error_kind::bad_file,
              "the samples are out of order");
      next.emplace_hint(next.end(), sample, read());
    }
    to = std::move(next);
  }

  /// Whether the lists of samples, or counts of histograms, are there in a round.
  [[nodiscard]] bool is_written(std::uint64_t round) const { return !by_extents_ || round == 2; }

  /// Throws bad_file unless what was read can be merged with states of this method and these
  /// options.
  void require_mergeable(std::uint64_t round) const {
    if (by_extents_ || (round == 2 && rounds() == 2)) {
      return;  // it is compared with the others when they are merged
    }
    any_observer mine = empty_;
    try {
      mine.merge(total_);
    } catch (const error& e) {
      raise(error_kind::bad_file, "detent: " + message_of(e));
    }
  }

  void follow_up_to(std::uint64_t end) {
    for (auto next = extents_.lower_bound(followed_); next != extents_.end() && next->first < end;
         ++next) {
      walker_->follow(next->second);
    }
    followed_ = end;
  }
  /// Observes a sample whose predecessors have been followed.
  void observe_between(std::uint64_t sample, const tensor& value) {
    const batch_extent extent = batch_extent::of(value.data<float>());
    const auto before = extents_.find(sample);
    require(before != extents_.end() && before->second == extent, error_kind::invalid_argument,
            "sample ", sample, " of the second round is not that of the first");
    if (by_sample_) {
      any_observer one = *walker_;
      one.observe(tensor_view_of<float>(value));
      add(samples_, sample, std::move(one));
      walker_->follow(extent);
    } else {
      walker_->observe(tensor_view_of<float>(value));
    }
    followed_ = sample + 1;
  }
  void add_counted(const any_observer& counted) {
    if (is_counted_) {
      total_.merge(counted);
    } else {
      total_ = counted;
      is_counted_ = true;
    }
  }

  std::string method_;
  any_observer empty_;
  any_observer total_;
  bool by_extents_ = false;
  bool by_sample_ = false;
  bool is_counted_ = false;                        // by extents: whether total_ has been observed
  std::map<std::uint64_t, any_observer> samples_;  // by sample: an observer of each
  std::map<std::uint64_t, batch_extent> extents_;  // by extents
  std::optional<any_observer> walker_;             // within a shard of the second round
  std::uint64_t followed_ = 0;                     // samples before this one have been followed
};

}  // namespace detail

/// What static quantization needs of calibration samples: the states of the observers of all
/// activations, and the means for bias correction. It is collected by many processes, saved, and
/// merged; static_quantization() takes the merged state in the place of samples.
///
/// The quantized model is the same to the byte however the samples were divided into shards, and in
/// whatever order these were merged: that which static_quantization() makes of all samples, but
/// that a bias correction is not judged, and so never taken back. The merged state does not depend
/// on the order of merges either.
///
///     method of an activation                          rounds   bytes of its state
///     most                                             1        bounded, up to 0.6 MB
///     isotone, ppq.kl, ppq.mse                         2        bounded, up to 0.6 MB
///     moving averages, nncf.* but nncf.minmax,
///     ppq.percentile, ppq.isotone                      1        44 to 85 for each sample
///     ort.entropy, ort.percentile, inc.*               2        20 for each sample, 8 for each bin
///     torch.histogram                                  2        8 KiB for each sample
///
/// Methods that keep something of each sample depend on the order of samples: `first` of observe()
/// says where in the whole a shard begins. Where a method needs two rounds, the shards of the first
/// are merged, begin_second_round() is called, and each process observes samples once more with a
/// state that goes on from there.
///
/// @code{.cpp}
/// #include <cstddef>
/// #include <cstdint>
/// #include <string>
/// #include <vector>
///
/// #include <detent/graph/onnx.hpp>
/// #include <detent/graph/quantize/calibration_state.hpp>
///
/// namespace graph = detent::graph;
///
/// std::vector<std::byte> observe_shard(const graph::calibration_source& shard,
///                                      std::uint64_t first) {
///   graph::calibration_state state(graph::read_onnx("float.onnx"), {.method = "kl"});
///   state.observe(shard, first);
///   return state.save();
/// }
///
/// void quantize(std::vector<std::string> shards) {
///   const graph::model m = graph::read_onnx("float.onnx");
///   const graph::static_quantization_options options{.method = "kl"};
///   graph::calibration_state all(m, options);
///   for (const std::string& shard : shards) {
///     all.merge(graph::read_state_file(shard));
///   }
///   graph::write_onnx(graph::static_quantization(m, all, options).result, "int8.onnx");
/// }
/// @endcode
///
/// A value; copies share the model. Not thread-safe.
class calibration_state {
 public:
  /// A state that has seen nothing. Of the options, those count that say what is observed:
  /// `method`, `activations`, `scope`, and whether `bias.kind` is fast, for which means are kept;
  /// and `executor`. Throws what static_quantization() throws for the model and for these options;
  /// unsupported for full bias correction, which has to run the quantized network on samples, and
  /// if states of a method cannot be merged.
  explicit calibration_state(model float_model, const static_quantization_options& options = {})
      : runner_(options.executor) {
    require(options.bias.kind != bias_correction::full, error_kind::unsupported,
            "full bias correction runs the quantized network on samples, which states do not "
            "hold; there is the fast one");
    origin_ = origin_of(float_model, options);
    quantization_scope scope = options.scope;
    const std::optional<divided_model> divided =
        detail::divided_for_calibration(float_model, scope);
    plan_ = std::make_shared<const quantization_plan>(
        divided ? divided->runnable() : std::move(float_model), scope);
    for (const observed_value& v : detail::activation_observers(*plan_, options)) {
      if (plan_->float_model().initializer(v.name) == nullptr) {
        const std::string own = detail::own_method(*plan_, v.name, options.activations.overrides);
        detail::of_tensor(v.name, [&] {
          values_.emplace(
              v.name,
              detail::value_state(detent::detail::lower_case(own.empty() ? options.method : own),
                                  v.observer));
        });
      }
    }
    if (options.bias.kind == bias_correction::fast) {
      means_.emplace(*plan_);
    }
  }

  /// How many rounds over the samples the methods need: 1 or 2.
  [[nodiscard]] std::size_t rounds() const {
    std::size_t most = 1;
    for (const auto& [name, value] : values_) {
      most = (std::max)(most, value.rounds());
    }
    return most;
  }
  /// The round that this state is in: 1, or 2 after begin_second_round().
  [[nodiscard]] std::size_t round() const noexcept {
    return static_cast<std::size_t>(progress_.round);
  }
  /// How many samples have been observed, in the first round: calls of a source.
  [[nodiscard]] std::uint64_t samples() const noexcept { return progress_.samples; }
  /// How many samples have been observed in the round that this state is in.
  [[nodiscard]] std::uint64_t samples_of_round() const noexcept {
    return progress_.round == 1 ? progress_.samples : progress_.second_samples;
  }
  /// Whether there are means for bias correction.
  [[nodiscard]] bool has_means() const noexcept { return means_.has_value(); }

  /// Observes samples: runs the float model on one pass of the source. `first` is the number of its
  /// first sample among all samples; methods that depend on the order of samples need it. Throws
  /// invalid_argument if there is no source or no sample, if the same samples were observed before
  /// with the same number, if a value holds NaN or infinity (naming the value and the sample), or
  /// if a sample of a second round is not that of the first; and what the executor throws. If it
  /// throws, nothing has changed.
  void observe(const calibration_source& samples, std::uint64_t first = 0) {
    require(static_cast<bool>(samples), error_kind::invalid_argument,
            "there is no source of calibration samples");
    calibration_state next = *this;
    next.observe_shard(samples, first);
    *this = std::move(next);
  }

  /// Begins the second round, once all states of the first one are merged. Throws invalid_argument
  /// if it has begun, if the methods do not need it, or if nothing was observed.
  void begin_second_round() {
    require(progress_.round == 1, error_kind::invalid_argument, "the second round has begun");
    require(rounds() == 2, error_kind::invalid_argument,
            "the methods of these states need no second round");
    require(progress_.samples > 0, error_kind::invalid_argument,
            "a second round before a first one");
    calibration_state next = *this;
    next.progress_.first_round = detent::detail::checksum(save());
    next.progress_.round = 2;
    next.progress_.shards.clear();
    for (auto& [name, value] : next.values_) {
      detail::of_tensor(name, [&one = value] { one.begin_second_round(); });
    }
    *this = std::move(next);
  }

  /// Afterwards this state has also seen everything that `other` has seen. Throws invalid_argument
  /// if the two cannot be merged, naming the difference. If it throws, nothing has changed.
  void merge(const calibration_state& other) { merge(other, "a state"); }
  /// Merges a saved state. Throws bad_file if the bytes are damaged, unsupported for an unknown
  /// version of the layout, invalid_argument if it is for another model, release, method or option,
  /// or if it has samples in common with this one; each names the state and the difference. If it
  /// throws, nothing has changed.
  void merge(const saved_state& saved) {
    calibration_state other = *this;
    other.read(saved);
    merge(other, saved.name);
  }

  /// The state as bytes. Equal states have the same bytes.
  [[nodiscard]] std::vector<std::byte> save() const {
    detent::detail::byte_writer out(detail::state_format);
    origin_.write(out);
    progress_.write(out);
    out.put(static_cast<std::uint64_t>(values_.size()));
    for (const auto& [name, value] : values_) {
      detail::put_text(out, name);
      detail::put_text(out, value.method());
      value.write(out, progress_.round);
    }
    detent::detail::put_choice(out, has_means());
    if (means_) {
      means_->write(out);
    }
    return std::move(out).finish();
  }

 private:
  friend quantization static_quantization(model m, const calibration_state& state,
                                          const static_quantization_options& options);

  [[nodiscard]] static detail::state_origin origin_of(const model& m,
                                                      const static_quantization_options& options) {
    const observer_options& o = options.activations.observer;
    fingerprint others;
    others.add(static_cast<std::uint8_t>(o.exact_percentile));
    others.add(o.moving_constant);
    others.add(o.p);
    others.add(static_cast<std::uint64_t>(o.top_k));
    others.add(static_cast<std::uint8_t>(o.behaviour));
    detail::state_origin origin;
    origin.model = detail::fingerprint_of(m);
    origin.settings = {
        {"release of detent", detail::release_text()},
        {"approach", "static"},
        {"method", detent::detail::lower_case(options.method)},
        {"percentile", o.percentile ? detail::shortest_text(*o.percentile) : "the default"},
        {"type of activations", options.activations.type == element_type::s8 ? "s8" : "u8"},
        {"bits of activations", std::to_string(options.activations.bits)},
        {"symmetry of activations", options.activations.symmetric ? "symmetric" : "asymmetric"},
        {"fingerprint of other observer options", others.text()},
        {detail::means_setting, options.bias.kind == bias_correction::none ? "no" : "yes"}};
    return origin;
  }

  void observe_shard(const calibration_source& samples, std::uint64_t first) {
    const std::uint64_t round = progress_.round;
    std::vector<std::string> names;
    for (auto& [name, value] : values_) {
      if (value.is_seen_in(round)) {
        names.push_back(name);
        value.begin_shard(round, first);
      }
    }
    const bool takes_means = means_.has_value() && round == 1;
    executor runner =
        detail::calibration_executor(plan_->float_model(), names, takes_means, runner_);
    fingerprint shard;
    shard.add(first);
    std::uint64_t count = 0;
    for (; const auto inputs = samples(); ++count) {
      detail::add_inputs(shard, *inputs);
      static_cast<void>(runner.run(*inputs, [&](const std::string& name, const tensor& value) {
        show(name, value, first + count);
        if (takes_means) {
          means_->add(name, value);
        }
      }));
    }
    require(count > 0, error_kind::invalid_argument, "there are no calibration samples");
    for (auto& [name, value] : values_) {
      detail::of_tensor(name, [&one = value] { one.end_shard(); });
    }
    progress_.add(shard.value(), count, "the calibration");
  }

  void show(const std::string& name, const tensor& stored, std::uint64_t sample) {
    const auto found = values_.find(name);
    if (found == values_.end() || !found->second.is_seen_in(progress_.round) ||
        !detail::is_observable(stored)) {
      return;
    }
    // Observers may depend on the shape or on the order of the elements.
    const tensor value = to_plain(stored);
    detail::require_finite(name, value, sample + 1);
    detail::of_tensor(name, [&] { found->second.observe(progress_.round, sample, value); });
  }

  void merge(const calibration_state& other, const std::string& name) {
    origin_.require_same(other.origin_, name);
    require(!means_ || other.means_, error_kind::invalid_argument, name,
            ": it has no means for bias correction");
    if (other.progress_.samples == 0) {
      return;
    }
    calibration_state next = *this;
    if (progress_.samples == 0) {
      next.progress_ = other.progress_;
      next.values_ = other.values_;
      if (means_) {
        next.means_ = other.means_;
      }
    } else {
      next.progress_.merge(other.progress_, name);
      detail::with_context(name, [&] { next.merge_values(other); });
    }
    *this = std::move(next);
  }
  void merge_values(const calibration_state& other) {
    for (auto& [name, value] : values_) {
      const auto& more = detail::entry_of(other.values_, name, "states of the tensor");
      detail::of_tensor(name, [&, &one = value, &two = more] { one.merge(two, progress_.round); });
    }
    if (means_ && progress_.round == 1) {
      means_->merge(*other.means_);
    }
  }

  /// Replaces this state, which must be made for the same model and options, by a saved one.
  void read(const saved_state& saved) {
    detent::detail::byte_reader in(saved.bytes, detail::state_format, saved.name.c_str());
    origin_.require_same(detail::state_origin::read(in), saved.name);
    detail::with_context(saved.name, [&] {
      progress_ = detail::state_progress::read(in);
      require(progress_.round <= rounds(), error_kind::bad_file,
              "a second round, which the methods do not need");
      const auto count = in.get<std::uint64_t>();
      require(count == values_.size(), error_kind::invalid_argument, "it has states of ", count,
              " tensors, expected ", values_.size(), ": other rules for operators");
      for (auto& [name, value] : values_) {
        read_value(in, name, value);
      }
      const bool has = detent::detail::get_choice(in, true, "the means");
      require(has || !means_, error_kind::invalid_argument, "it has no means for bias correction");
      layer_means unused(*plan_);
      if (has) {
        (means_ ? *means_ : unused).read(in);
      }
      in.require_end();
    });
  }
  void read_value(detent::detail::byte_reader& in, const std::string& name,
                  detail::value_state& value) const {
    const std::string own = detail::get_text(in);
    require(own == name, error_kind::invalid_argument, "it has a state of tensor '",
            detail::beginning_of(own), "', expected '", name, "': other rules for operators");
    const std::string method = detail::get_text(in);
    require(method == value.method(), error_kind::invalid_argument, "its method of tensor '", name,
            "' is ", detail::beginning_of(method), ", expected ", value.method());
    detail::of_tensor(name, [&] { value.read(in, progress_.round); });
  }

  /// Throws invalid_argument unless all samples have been observed in all rounds.
  void require_complete() const {
    require(progress_.samples > 0, error_kind::invalid_argument,
            "there are no calibration samples in the states");
    require(progress_.round == rounds(), error_kind::invalid_argument,
            "the methods of these states need a second round over the samples: detent observe "
            "MODEL --calib SAMPLES --states STATES -o NEW");
    require(progress_.round == 1 || progress_.second_samples == progress_.samples,
            error_kind::invalid_argument, "the second round has ", progress_.second_samples,
            " samples, the first ", progress_.samples);
  }

  /// The observers of a plan's values, which have seen all samples and the constants.
  [[nodiscard]] std::vector<observed_value> observers(
      const quantization_plan& plan, const static_quantization_options& options) const {
    std::vector<observed_value> observed = detail::activation_observers(plan, options);
    for (observed_value& v : observed) {
      if (const tensor* constant = plan.float_model().initializer(v.name)) {
        detail::require_finite(v.name, *constant, 0);
        v.observer.observe(tensor_view_of<float>(to_plain(*constant)));
      } else {
        v.observer = detail::of_tensor(v.name, [&] {
          return detail::entry_of(values_, v.name, "states of the tensor").observer();
        });
      }
    }
    return observed;
  }

  executor_options runner_;
  detail::state_origin origin_;
  std::shared_ptr<const quantization_plan> plan_;
  detail::state_progress progress_;
  std::map<std::string, detail::value_state> values_;  // without constants
  std::optional<layer_means> means_;
};

/// Quantizes a float model with ranges from a state that was collected from all calibration
/// samples. The model and the options that say what is observed (method, type, bits, symmetry and
/// observers of activations, scope) must be those that the state was made with; the options of
/// weights may differ. Fast bias correction takes the means of the state, and is not judged.
/// Otherwise like static_quantization() with samples.
///
/// Throws invalid_argument if the state is for another model or other options, naming the
/// difference, if it has seen nothing, or if a round is not complete; unsupported for full bias
/// correction; and what static_quantization() throws.
[[nodiscard]] DETENT_GRAPH_DECL quantization static_quantization(
    model m, const calibration_state& state, const static_quantization_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL quantization static_quantization(model m, const calibration_state& state,
                                                   const static_quantization_options& options) {
  require(options.bias.kind != bias_correction::full, error_kind::unsupported,
          "full bias correction runs the quantized network on samples, which states do not hold; "
          "there is the fast one");
  calibration_state::origin_of(m, options).require_same(state.origin_, "the calibration state");
  require(options.bias.kind == bias_correction::none || state.means_, error_kind::invalid_argument,
          "the calibration state has no means for bias correction");
  state.require_complete();
  return detail::quantize_runnable_part(
      std::move(m), options.scope, [&](model runnable, const quantization_scope& scope) {
        quantization q{quantization_plan(std::move(runnable), scope), {}, {}};
        q.parameters.activation_type = options.activations.type;
        q.parameters.activation_bits = options.activations.bits;
        q.parameters.activations =
            detail::solved_activations(q.plan, state.observers(q.plan, options), options);
        q.parameters.layers = quantize_layers(q.plan, q.parameters.activations, options);
        if (options.bias.kind == bias_correction::fast) {
          static_cast<void>(
              correct_biases(q.plan, q.parameters, *state.means_, options.bias, options.executor));
        }
        q.result = write_qdq(q.plan, q.parameters);
        return q;
      });
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_CALIBRATION_STATE_HPP
