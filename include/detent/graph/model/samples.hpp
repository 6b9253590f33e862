// SPDX-License-Identifier: BSD-3-Clause
// Samples for a model, from one .npy file for each of its inputs. The first axis counts the
// samples.
#ifndef DETENT_GRAPH_MODEL_SAMPLES_HPP
#define DETENT_GRAPH_MODEL_SAMPLES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A half-open range of samples.
struct sample_range {
  std::size_t first = 0;                            ///< The first sample.
  std::size_t last = static_cast<std::size_t>(-1);  ///< The sample behind the last one.
};

/// A copy of the samples first .. first + count - 1 of a tensor. Throws shape_mismatch if it is a
/// single value or does not have so many samples.
[[nodiscard]] inline tensor slice_samples(const tensor& t, std::size_t first, std::size_t count) {
  shape dims = t.dims();
  const std::size_t all = dims.empty() ? 0 : static_cast<std::size_t>(dims[0]);
  require(!dims.empty() && first <= all && count <= all - first, error_kind::shape_mismatch,
          "samples ", first, " to ", first + count, " of a tensor of shape ", to_string(dims));
  const std::size_t size = all == 0 ? 0 : t.bytes() / all;
  dims[0] = static_cast<std::int64_t>(count);
  tensor out = tensor::allocate(t.type(), dims);
  std::memcpy(out.mutable_raw(), t.raw() + first * size, count * size);
  return out;
}

/// Joins tensors along their first axis, in their order. Throws shape_mismatch, with both shapes,
/// if they differ in the type of their elements, in rank, or in another axis, or are single values;
/// invalid_argument if there are none. Messages begin with `what`.
[[nodiscard]] inline tensor join_samples(const std::vector<tensor>& pieces,
                                         const std::string& what) {
  require(!pieces.empty(), error_kind::invalid_argument, what, ": there is nothing to join");
  const tensor& first = pieces[0];
  std::int64_t count = 0;
  for (const tensor& piece : pieces) {
    require(piece.type() == first.type() && piece.rank() == first.rank() && piece.rank() > 0 &&
                std::equal(piece.dims().begin() + 1, piece.dims().end(), first.dims().begin() + 1),
            error_kind::shape_mismatch, what, ": ", graph::name(piece.type()), " ",
            to_string(piece.dims()), " does not fit behind ", graph::name(first.type()), " ",
            to_string(first.dims()));
    count += piece.dim(0);
  }
  shape dims = first.dims();
  dims[0] = count;
  tensor whole = tensor::allocate(first.type(), std::move(dims));
  std::size_t offset = 0;
  for (const tensor& piece : pieces) {
    if (piece.bytes() > 0) {
      std::memcpy(whole.mutable_raw() + offset, piece.raw(), piece.bytes());
      offset += piece.bytes();
    }
  }
  return whole;
}

/// The samples of .npy files, one file for each input of a model, read when they are asked for:
/// memory does not grow with their number. Functions throw what read_npy() throws. Not thread-safe.
class sample_set {
 public:
  /// Opens the files, which are of the form [NAME=]X.npy; without a name, a file serves the model's
  /// only input.
  sample_set(const model& m, const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      const auto [name, path] = split(m, file);
      const value_info& input = find_input(m, name, path);
      auto file_of_samples = std::make_unique<npy_file>(path);
      check(input, *file_of_samples);
      const std::size_t count = static_cast<std::size_t>(file_of_samples->dims()[0]);
      require(count_ == 0 || count_ == count, error_kind::shape_mismatch, path, " has ", count,
              " samples, the file before it ", count_);
      count_ = count;
      require(inputs_.emplace(name, std::move(file_of_samples)).second,
              error_kind::invalid_argument, "input '", name, "' is given twice");
      if (!input.dims.empty() && input.dims[0] > 0) {
        fixed_batch_ = static_cast<std::size_t>(input.dims[0]);
      }
    }
    for (const value_info& v : m.inputs) {
      require(inputs_.count(v.name) != 0, error_kind::invalid_argument, "input '", v.name,
              "' of the model has no data");
    }
    require(count_ > 0, error_kind::invalid_argument, files.empty() ? "no data" : files[0],
            " holds no samples");
  }

  /// The number of samples in the selected range.
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// The index in the files of the first sample of the range.
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  /// The batch size that the model fixes; 0 if it takes any.
  [[nodiscard]] std::size_t fixed_batch() const noexcept { return fixed_batch_; }
  /// Leaves out all samples but those of a range, whose end may lie beyond the last sample. Throws
  /// invalid_argument if none is left.
  void select(sample_range range) {
    require(range.first < range.last && range.first < count_, error_kind::invalid_argument,
            "samples ", range.first, " to ", range.last, ": there are only ", count_, " samples");
    count_ = (std::min)(range.last, count_) - range.first;
    first_ += range.first;
  }
  /// Leaves out all but the first `count` samples.
  void limit(std::size_t count) { count_ = (std::min)(count, count_); }

  /// The inputs for `batch_size` samples from `at` on. If there are fewer samples, the last one is
  /// repeated to fill the batch; the caller has to ignore the outputs for the repeated ones.
  [[nodiscard]] std::map<std::string, tensor> batch(std::size_t at, std::size_t batch_size) const {
    std::map<std::string, tensor> inputs;
    const std::size_t real = (std::min)(batch_size, count_ - at);
    for (const auto& [name, file] : inputs_) {
      tensor t = file->read_samples(first_ + at, real);
      if (real == batch_size) {
        inputs[name] = std::move(t);
        continue;
      }
      const std::size_t size = t.bytes() / real;
      shape dims = t.dims();
      dims[0] = static_cast<std::int64_t>(batch_size);
      tensor padded = tensor::allocate(t.type(), dims);
      for (std::size_t i = 0; i < batch_size; ++i) {
        std::memcpy(padded.mutable_raw() + i * size, t.raw() + (std::min)(i, real - 1) * size,
                    size);
      }
      inputs[name] = std::move(padded);
    }
    return inputs;
  }

 private:
  static std::pair<std::string, std::string> split(const model& m, const std::string& text) {
    // A name may hold ':' or '/', and a path may hold '=', so the '=' that counts is the one after
    // the name of an input.
    for (const value_info& v : m.inputs) {
      if (text.rfind(v.name + "=", 0) == 0) {
        return {v.name, text.substr(v.name.size() + 1)};
      }
    }
    if (m.inputs.size() == 1) {
      const std::size_t equals = text.find('=');
      require(equals == std::string::npos || std::filesystem::exists(text),
              error_kind::invalid_argument, "the model has no input '", text.substr(0, equals),
              "'; its input is '", m.inputs[0].name, "'");
      return {m.inputs[0].name, text};
    }
    detent::raise(error_kind::invalid_argument,
                  "detent: '" + text + "' does not say which of the model's " +
                      std::to_string(m.inputs.size()) + " inputs it is; write NAME=" + text);
  }

  static const value_info& find_input(const model& m, const std::string& name,
                                      const std::string& path) {
    for (const value_info& v : m.inputs) {
      if (v.name == name) {
        return v;
      }
    }
    detent::raise(error_kind::invalid_argument,
                  "detent: " + path + ": the model has no input '" + name + "'");
  }

  static void check(const value_info& input, const npy_file& file) {
    const shape& dims = file.dims();
    require(input.type == file.type(), error_kind::invalid_argument, file.path(), " holds ",
            graph::name(file.type()), ", input '", input.name, "' is ", graph::name(input.type));
    require(!dims.empty(), error_kind::shape_mismatch, file.path(),
            " is a single value, not samples");
    require(dims[0] > 0, error_kind::invalid_argument, file.path(), " holds no samples");
    if (!input.has_shape) {
      return;
    }
    bool same = input.dims.size() == dims.size();
    for (std::size_t i = 1; same && i < dims.size(); ++i) {
      same = input.dims[i] < 0 || input.dims[i] == dims[i];
    }
    require(same, error_kind::shape_mismatch, file.path(), " has shape ", to_string(dims),
            ", input '", input.name, "' ", to_string(input.dims),
            " (first axis = samples, -1: any)");
  }

  std::map<std::string, std::unique_ptr<npy_file>> inputs_;  // read sample by sample
  std::size_t count_ = 0;
  std::size_t first_ = 0;
  std::size_t fixed_batch_ = 0;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_SAMPLES_HPP
