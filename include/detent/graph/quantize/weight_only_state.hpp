// SPDX-License-Identifier: BSD-3-Clause
// Statistics of layers' inputs for weight-only quantization, collected by many processes: each
// observes its share of the samples, and the saved states are merged. All sums are exact, so that
// they do not depend on the division of the samples or on the order of merges.
//
// The content of a saved state, after what state_file.hpp describes:
//
//   u64 number of inputs; for each, in the order of names: a text, its name; u64 size and the bytes
//   of the Gram matrix as gram_observer::save() returns them
#ifndef DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_STATE_HPP
#define DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_STATE_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/layer_input_statistics.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/graph/quantize/weight_only.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What gptq and awq need of calibration samples: the Gram matrix of the inputs of each layer.
/// Processes collect it from their shares of the samples; quantize_weights_only() takes the merged
/// state in the place of samples, and makes the same model.
///
/// For K features, a Gram matrix takes 4 K^2 bytes for each power of 16 among the largest
/// magnitudes of its rows (one to three for most activations), whatever the number of samples. The
/// limit `calibration_bytes` of the options does not hold here: all matrices are collected at once.
///
/// A value. Not thread-safe.
class weight_only_state {
 public:
  /// A state that has seen nothing. Of the options, `scope` and `executor` count. Throws what
  /// quantize_weights_only() throws for the model and the options, and unsupported for
  /// `diagonal_statistics`, whose sums depend on the order of samples.
  explicit weight_only_state(const model& float_model, const weight_only_options& options = {})
      : model_(float_model), options_(options) {
    require(!options.diagonal_statistics, error_kind::unsupported,
            "diagonal statistics are rounded sums, whose states cannot be merged");
    origin_.model = detail::fingerprint_of(float_model);
    origin_.settings = {{"release of detent", detail::release_text()}, {"approach", "weight-only"}};
    statistics_ = detail::weight_only_quantizer(model_, options_).empty_statistics();
  }

  /// How many samples have been observed: calls of a source.
  [[nodiscard]] std::uint64_t samples() const noexcept { return progress_.samples; }

  /// Observes samples: runs the float model on one pass of the source. `first` is the number of its
  /// first sample among all samples; it only tells shards with equal samples apart. Throws
  /// invalid_argument if there is no source or no sample, if the same samples were observed before
  /// with the same number, or if an input holds NaN or infinity; and what the executor throws. If
  /// it throws, nothing has changed.
  void observe(const calibration_source& samples, std::uint64_t first = 0) {
    require(static_cast<bool>(samples), error_kind::invalid_argument,
            "there is no source of calibration samples");
    fingerprint shard;
    shard.add(first);
    const calibration_source noted = [&] {
      auto inputs = samples();
      if (inputs) {
        detail::add_inputs(shard, *inputs);
      }
      return inputs;
    };
    detail::weight_only_quantizer quantizer(model_, options_);
    std::map<std::string, detail::input_statistics> more = quantizer.empty_statistics();
    const std::size_t count = quantizer.add_samples(noted, more);
    detail::state_progress progress = progress_;
    progress.add(shard.value(), count, "the calibration");
    take_over(std::move(progress), std::move(more));
  }

  /// Afterwards this state has also seen everything that `other` has seen. Throws invalid_argument
  /// if the two cannot be merged, naming the difference. If it throws, nothing has changed.
  void merge(const weight_only_state& other) { merge(other, "a state"); }
  /// Merges a saved state. Throws bad_file if the bytes are damaged, unsupported for an unknown
  /// version of the layout, invalid_argument if it is for another model or release, has other
  /// inputs, or has samples in common with this one; each names the state and the difference. If it
  /// throws, nothing has changed.
  void merge(const saved_state& saved) {
    weight_only_state other(model_, options_);
    other.read(saved);
    merge(other, saved.name);
  }

  /// The state as bytes. Equal states have the same bytes.
  [[nodiscard]] std::vector<std::byte> save() const {
    detent::detail::byte_writer out(detail::state_format);
    origin_.write(out);
    progress_.write(out);
    out.put(static_cast<std::uint64_t>(statistics_.size()));
    for (const auto& [name, one] : statistics_) {
      detail::put_text(out, name);
      one.write(out);
    }
    return std::move(out).finish();
  }

 private:
  friend model quantize_weights_only(model m, const weight_only_options& options,
                                     const weight_only_state& state);

  /// Adds the statistics so far to `more`, which then become those of the state, so that an error
  /// changes nothing. The order of the two does not matter: all sums are exact.
  void take_over(detail::state_progress progress,
                 std::map<std::string, detail::input_statistics> more) {
    for (const auto& [name, one] : statistics_) {
      more.at(name).merge(one);
    }
    statistics_ = std::move(more);
    progress_ = std::move(progress);
  }

  void merge(const weight_only_state& other, const std::string& name) {
    origin_.require_same(other.origin_, name);
    require_inputs(other, name);
    detail::state_progress progress = progress_;
    progress.merge(other.progress_, name);
    take_over(std::move(progress), other.statistics_);
  }
  /// Throws invalid_argument unless another state has the same inputs.
  void require_inputs(const weight_only_state& other, const std::string& name) const {
    require(statistics_.size() == other.statistics_.size(), error_kind::invalid_argument, name,
            ": it has ", other.statistics_.size(), " inputs of layers, expected ",
            statistics_.size(), ": other rules for operators");
    for (const auto& [input, one] : statistics_) {
      const auto found = other.statistics_.find(input);
      require(found != other.statistics_.end() && found->second.features() == one.features(),
              error_kind::invalid_argument, name, ": it has no tensor '", input, "' of ",
              one.features(), " features: other rules for operators");
    }
  }

  void read(const saved_state& saved) {
    detent::detail::byte_reader in(saved.bytes, detail::state_format, saved.name.c_str());
    origin_.require_same(detail::state_origin::read(in), saved.name);
    detail::with_context(saved.name, [&] {
      progress_ = detail::state_progress::read(in);
      require(progress_.round == 1, error_kind::bad_file, "there is no second round");
      const auto count = in.get<std::uint64_t>();
      require(count == statistics_.size(), error_kind::invalid_argument, "it has ", count,
              " inputs of layers, expected ", statistics_.size(), ": other rules for operators");
      for (auto& [name, one] : statistics_) {
        const std::string own = detail::get_text(in);
        require(own == name, error_kind::invalid_argument, "it has a state of tensor '",
                detail::beginning_of(own), "', expected '", name, "': other rules for operators");
        detail::of_tensor(name, [&in, &here = one] { here.read(in); });
      }
      in.require_end();
    });
  }

  model model_;
  weight_only_options options_;
  detail::state_origin origin_;
  detail::state_progress progress_;
  std::map<std::string, detail::input_statistics> statistics_;
};

/// Quantizes weights by a state that was collected from all calibration samples of the same model
/// and with the same `scope`; bits, blocks and algorithm may differ. The result is that of
/// quantize_weights_only() with these samples. Throws invalid_argument if the state is for another
/// model or has other inputs, or if it has seen nothing; and what that throws.
[[nodiscard]] inline model quantize_weights_only(model m, const weight_only_options& options,
                                                 const weight_only_state& state) {
  weight_only_state expected(m, options);
  expected.origin_.require_same(state.origin_, "the calibration state");
  expected.require_inputs(state, "the calibration state");
  require(state.samples() > 0, error_kind::invalid_argument,
          "there are no calibration samples in the states");
  return detail::weight_only_quantizer(std::move(m), options).run(state.statistics_);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_STATE_HPP
