// SPDX-License-Identifier: BSD-3-Clause
// Samples with labels for training, by index; their order in an epoch; their augmentation.
#ifndef DETENT_GRAPH_LEARN_TRAINING_DATA_HPP
#define DETENT_GRAPH_LEARN_TRAINING_DATA_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/image_augmentation.hpp>
#include <detent/graph/learn/random_numbers.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Some samples with their labels. The first axis of all tensors counts the samples of the batch.
struct training_batch {
  std::map<std::string, tensor> inputs;  ///< What the model is given, by the names of its inputs.
  tensor labels;                         ///< Classes (int64) or targets (float32).
};

/// Samples with labels, by index.
struct training_data {
  std::size_t count = 0;  ///< The number of samples.
  /// Gives the samples of some indices below count, in their order; an index may come up again.
  std::function<training_batch(std::span<const std::size_t> indices)> batch;
};

namespace detail {

/// The number of samples of a tensor whose first axis counts them. Throws invalid_argument if it
/// has none.
[[nodiscard]] inline std::size_t samples_of(const tensor& t, const std::string& what) {
  require(t.has_data() && t.rank() > 0 && !t.channels_last(), error_kind::invalid_argument,
          "in_memory: ", what, " of shape ", shown(t.dims()), " has no elements or no first axis");
  return static_cast<std::size_t>(t.dim(0));
}

/// The rows of a tensor along its first axis that have these indices.
[[nodiscard]] inline tensor gather_samples(const tensor& t, std::span<const std::size_t> indices) {
  shape dims = t.dims();
  dims[0] = static_cast<std::int64_t>(indices.size());
  tensor out = tensor::allocate(t.type(), std::move(dims));
  const std::size_t bytes = t.bytes() / static_cast<std::size_t>(t.dim(0));
  for (std::size_t i = 0; i < indices.size() && bytes > 0; ++i) {
    std::memcpy(out.mutable_raw() + i * bytes, t.raw() + indices[i] * bytes, bytes);
  }
  return out;
}

}  // namespace detail

/// Samples that are held in tensors, whose first axis counts them. The tensors are shared, not
/// copied; a batch is a copy of its samples. Any number of threads may ask for batches at once.
///
/// Throws shape_mismatch, naming the input and both numbers, if an input has another number of
/// samples than there are labels; invalid_argument if there are no inputs or no samples, if a
/// tensor has no elements or no axes, and if the labels are neither int64 nor float32. batch()
/// throws invalid_argument for an index that is not below count.
[[nodiscard]] inline training_data in_memory(std::map<std::string, tensor> inputs, tensor labels) {
  const std::size_t count = detail::samples_of(labels, "tensor of labels");
  require(labels.type() == element_type::s64 || labels.type() == element_type::f32,
          error_kind::invalid_argument, "in_memory: labels of ", shown(labels.type()),
          ", not int64 or float32");
  require(count > 0 && !inputs.empty(), error_kind::invalid_argument, "in_memory: ", count,
          " samples of ", inputs.size(), " inputs");
  for (const auto& [name, t] : inputs) {
    const std::size_t own = detail::samples_of(t, "input '" + name + "'");
    require(own == count, error_kind::shape_mismatch, "in_memory: input '", name, "' has ", own,
            " samples, and there are ", count, " labels");
  }
  training_data data;
  data.count = count;
  data.batch = [count, inputs = std::move(inputs),
                labels = std::move(labels)](std::span<const std::size_t> indices) {
    for (const std::size_t index : indices) {
      require(index < count, error_kind::invalid_argument, "in_memory: sample ", index, " of ",
              count);
    }
    training_batch b;
    for (const auto& [name, t] : inputs) {
      b.inputs[name] = detail::gather_samples(t, indices);
    }
    b.labels = detail::gather_samples(labels, indices);
    return b;
  };
  return data;
}

/// The numbers 0..count - 1 in random order, each order with the same probability: the order of
/// the samples in an epoch. It depends on the arguments only and is the same everywhere.
/// Thread-safe.
///
/// Source: the shuffle of Fisher and Yates in Durstenfeld's form (Algorithm 235, 1964).
[[nodiscard]] inline std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed,
                                                       std::size_t epoch) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  detail::random_sequence random(detail::derived_seed(seed, detail::random_purpose::order, epoch));
  for (std::size_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[random.below(left)]);
  }
  return order;
}

/// The samples with the images of one input changed at random. What happens to a sample depends on
/// the seed, the epoch and its index only, not on the batch that it is in. Labels and other inputs
/// stay as they are. Batches may be asked for by several threads if those of `data` may.
///
/// Throws invalid_argument for options out of their domain (image_augmentation). batch() throws
/// what that of `data` does; invalid_argument if the input is not there, or is not named and there
/// are several, and if it is not float32; and shape_mismatch, naming input and shape, if it is not
/// [samples, channels, height, width].
[[nodiscard]] inline training_data augmented(training_data data,
                                             const image_augmentation& augmentation,
                                             std::uint64_t seed, std::size_t epoch) {
  detail::require_augmentation(augmentation);
  training_data changed;
  changed.count = data.count;
  changed.batch = [batch = std::move(data.batch), augmentation, seed,
                   epoch](std::span<const std::size_t> indices) {
    training_batch b = batch(indices);
    const bool is_named = !augmentation.input.empty();
    require(is_named || b.inputs.size() == 1, error_kind::invalid_argument,
            "image_augmentation: no input is named, and there are ", b.inputs.size());
    const auto found = is_named ? b.inputs.find(augmentation.input) : b.inputs.begin();
    require(found != b.inputs.end(), error_kind::invalid_argument,
            "image_augmentation: there is no input '", augmentation.input, "'");
    found->second =
        detail::augmented_images(found->second, indices, found->first, augmentation, seed, epoch);
    return b;
  };
  return changed;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINING_DATA_HPP
