// SPDX-License-Identifier: BSD-3-Clause
// Samples for a model: from files, each with the values of one input, or from a folder with a
// sub-folder for each sample. Needs protozero.
#ifndef DETENT_GRAPH_MODEL_SAMPLES_HPP
#define DETENT_GRAPH_MODEL_SAMPLES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/model/sample_argument.hpp>
#include <detent/graph/model/sample_axis.hpp>
#include <detent/graph/model/sample_file.hpp>
#include <detent/graph/model/sample_folder.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A half-open range of samples.
struct sample_range {
  std::size_t first = 0;                            ///< The first sample.
  std::size_t last = static_cast<std::size_t>(-1);  ///< The sample behind the last one.
};

/// Options of sample_set.
struct sample_options {
  read_limits limits;  ///< Limits of TensorProto files, and of the size of an input in a run.
  std::string option;  ///< What users write before a file, for messages; for example "--input ".
};

/// The samples of a model, read when they are asked for. Memory does not grow with the number of
/// samples in .npy files and folders; a TensorProto that holds several samples is kept as a whole.
///
/// Texts say where the samples are, one for each input:
///
/// | text | meaning |
/// |---|---|
/// | `[NAME=]FILE` | the first axis counts the samples |
/// | `[NAME=]FILE:axis=K` | axis K counts the samples, from the end if K is negative |
/// | `[NAME=]FILE:fixed` | each run takes the whole tensor, for example a state or a table |
/// | `FOLDER` | a sample_folder: the values of all inputs; the only text |
///
/// FILE is a sample_file, which converts some types. A file of rank 0 is fixed. For an input that
/// the model declares with rank 0, a file of rank 1 holds a value for each sample, and a fixed file
/// may have any rank if it holds one value. If all files are fixed, or the model has no inputs,
/// there is one sample.
///
/// Functions throw what npy_file and read_onnx_tensor() throw. Not thread-safe.
class sample_set {
 public:
  /// Opens files or a folder for the inputs of a model.
  ///
  /// Throws invalid_argument as parse_sample_argument() and sample_folder(), if an input has no
  /// file, has two, or has a file without samples, and if there are other texts beside a folder;
  /// shape_mismatch if a file does not fit its input or does not have the axis, if files differ in
  /// the number of samples, or if the model fixes different batch sizes for its inputs; unsupported
  /// if an input is not a tensor.
  sample_set(const model& m, const std::vector<std::string>& texts,
             const sample_options& options = {})
      : limits_(options.limits) {
    for (const value_info& v : m.inputs) {
      require(v.other_type.empty(), error_kind::unsupported, "input '", v.name,
              "' of the model is not a tensor, so there are no samples for it");
    }
    const source* first_counted = nullptr;
    sources_.reserve(texts.size());
    for (const std::string& text : texts) {
      const sample_argument a = parse_sample_argument(m, text, options.option);
      if (a.input == nullptr) {
        require(texts.size() == 1, error_kind::invalid_argument, text,
                " is a folder, which holds the values of all inputs; write only ", options.option,
                text);
        folder_.emplace(m, a.path, options.limits);
        count_ = folder_->size();
        fixed_batch_ = 1;
        is_one_per_run_ = true;
        return;
      }
      require(!has_source(a.input->name), error_kind::invalid_argument, "input '", a.input->name,
              "' is given twice");
      sources_.push_back(open(a, options.limits));
      const source& s = sources_.back();
      if (s.count == 0) {
        continue;
      }
      if (first_counted == nullptr) {
        first_counted = &s;
        count_ = s.count;
      }
      require(
          s.count == first_counted->count, error_kind::shape_mismatch, describe_count(s), ", ",
          describe_count(*first_counted),
          "; behind a file, :axis=K says that axis K counts samples, :fixed that each run takes "
          "it whole");
      agree_on_batch(*a.input, s);
    }
    for (const value_info& v : m.inputs) {
      require(has_source(v.name), error_kind::invalid_argument, "input ", describe_input(v),
              " has no data; write ", options.option, v.name, "=FILE.npy");
    }
    if (first_counted == nullptr) {
      count_ = 1;
      fixed_batch_ = 1;
      is_one_per_run_ = true;
    }
  }

  /// The number of samples in the selected range.
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// The index in the files of the first sample of the range.
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  /// The number of samples that each run has to take; 0 if a run takes any. It is the batch size
  /// that the model fixes, or 1 if is_one_per_run().
  [[nodiscard]] std::size_t fixed_batch() const noexcept { return fixed_batch_; }
  /// True if samples cannot share a run, so that each has one of its own and is given as it is:
  /// those of a folder, values for inputs of rank 0, and the only sample where nothing counts
  /// samples.
  [[nodiscard]] bool is_one_per_run() const noexcept { return is_one_per_run_; }
  /// The axis of an input that counts samples. Nothing if each run takes the input as a whole, if
  /// there is no such input, and if the samples come from a folder.
  [[nodiscard]] std::optional<std::size_t> sample_axis(const std::string& input) const {
    const auto found = std::find_if(sources_.begin(), sources_.end(),
                                    [&](const source& s) { return s.name == input; });
    return found == sources_.end() || found->count == 0 ? std::nullopt : std::optional(found->axis);
  }
  /// The folder that the samples come from; null if they come from files. Its index of sample i is
  /// first() + i.
  [[nodiscard]] const sample_folder* folder() const noexcept {
    return folder_ ? &*folder_ : nullptr;
  }
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
  /// repeated to fill the batch; the caller has to ignore the outputs for the repeated ones. Throws
  /// invalid_argument if there is no sample `at`, or if is_one_per_run() and batch_size is not 1;
  /// bad_file if repeated samples make an input larger than sample_options::limits allow.
  [[nodiscard]] std::map<std::string, tensor> batch(std::size_t at, std::size_t batch_size) const {
    require(at < count_ && batch_size > 0, error_kind::invalid_argument, "a batch of ", batch_size,
            " from sample ", at, " of ", count_);
    require(batch_size == 1 || !is_one_per_run_, error_kind::invalid_argument, "a batch of ",
            batch_size, " of samples that cannot share a run");
    if (folder_) {
      return folder_->read(first_ + at);
    }
    const std::size_t real = (std::min)(batch_size, count_ - at);
    std::map<std::string, tensor> inputs;
    for (const source& s : sources_) {
      if (s.count == 0) {
        inputs[s.name] = s.fixed;
        continue;
      }
      tensor t = s.file->read_slice(s.axis, first_ + at, real);
      if (real < batch_size) {
        // The size of the batch comes from the model, which may ask for any.
        require(
            batch_size <= limits_.max_tensor_bytes / (std::max)(t.bytes() / real, std::size_t{1}),
            error_kind::bad_file, "input '", s.name, "' with ", batch_size,
            " samples in a run has more than ", limits_.max_tensor_bytes, " bytes, the limit");
        t = pad_samples(t, batch_size, s.axis);
      }
      inputs[s.name] = s.is_scalar ? t.reshaped({}) : t;
    }
    return inputs;
  }

  /// The axis of an output that counts samples, if a run of `batch_size` samples gave it shape
  /// `dims`. It is the first axis of this size among those that the model names like the sample
  /// axis of an input, the sample axis that all inputs share, and axis 0. If inputs have different
  /// sample axes, several of them may have this size: then there is none, unless batch_size is 1,
  /// where the first one will do. Nothing if no axis has this size.
  [[nodiscard]] std::optional<std::size_t> output_axis(const value_info& output, const shape& dims,
                                                       std::size_t batch_size) const {
    const auto counts = [&](std::size_t axis) {
      return axis < dims.size() && dims[axis] == static_cast<std::int64_t>(batch_size);
    };
    for (std::size_t i = 0; i < output.params.size(); ++i) {
      if (axis_names_.count(output.params[i]) != 0 && counts(i)) {
        return i;
      }
    }
    std::set<std::size_t> possible = axes_;
    if (possible.size() == 1 && counts(*possible.begin())) {
      return *possible.begin();
    }
    possible.insert(0);
    std::erase_if(possible, [&](std::size_t axis) { return !counts(axis); });
    return possible.size() == 1 || (!possible.empty() && batch_size == 1)
               ? std::optional(*possible.begin())
               : std::nullopt;
  }

 private:
  /// Where the values of an input come from.
  struct source {
    std::string name;
    std::unique_ptr<sample_file> file;
    std::size_t axis = 0;
    std::size_t count = 0;   // number of samples; 0 if the value is fixed
    bool is_scalar = false;  // a sample is a single value without an axis
    tensor fixed;            // the value, if it is fixed
  };

  [[nodiscard]] bool has_source(const std::string& name) const {
    return std::any_of(sources_.begin(), sources_.end(),
                       [&](const source& s) { return s.name == name; });
  }

  [[nodiscard]] static std::string describe_count(const source& s) {
    return s.file->path() + " has " + std::to_string(s.count) +
           (s.count == 1 ? " sample" : " samples") + " of input '" + s.name + "' (axis " +
           std::to_string(s.axis) + " of " + to_string(s.file->dims()) + ")";
  }

  [[nodiscard]] static source open(const sample_argument& a, const read_limits& limits) {
    const value_info& input = *a.input;
    source s;
    s.name = input.name;
    s.file = std::make_unique<sample_file>(a.path, input, limits);
    const shape& dims = s.file->dims();
    const bool is_scalar = input.has_shape && input.dims.empty();
    if (a.is_fixed || (dims.empty() && !a.axis)) {
      const bool is_one = is_scalar && element_count(dims) == 1;
      value_info whole = input;
      whole.dims = is_one ? dims : input.dims;
      require_fit(whole, *s.file, std::nullopt);
      s.fixed = is_one ? s.file->read().reshaped({}) : s.file->read();
      s.file.reset();
      return s;
    }
    const auto rank = static_cast<std::int64_t>(dims.size());
    s.is_scalar = is_scalar && rank == 1;
    value_info samples = input;
    if (s.is_scalar) {
      samples.dims = {-1};
    }
    const std::int64_t axis = a.axis.value_or(0);
    require(axis >= -rank && axis < rank, error_kind::shape_mismatch, a.path, " has shape ",
            to_string(dims), ", which has no axis ", axis, " to count samples");
    s.axis = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
    require_fit(samples, *s.file, s.axis);
    s.count = static_cast<std::size_t>(dims[s.axis]);
    require(s.count > 0, error_kind::invalid_argument, a.path, " holds no samples: its shape is ",
            to_string(dims));
    return s;
  }

  /// Takes over how many samples an input takes in a run.
  void agree_on_batch(const value_info& input, const source& s) {
    const bool is_open = !s.is_scalar && (!input.has_shape || input.dims[s.axis] < 0);
    if (is_open) {
      if (s.axis < input.params.size() && !input.params[s.axis].empty()) {
        axis_names_.insert(input.params[s.axis]);
      }
      axes_.insert(s.axis);
      return;
    }
    const auto batch = s.is_scalar ? std::size_t{1} : static_cast<std::size_t>(input.dims[s.axis]);
    require(fixed_batch_ == 0 || fixed_batch_ == batch, error_kind::shape_mismatch, "input ",
            describe_input(input), " takes ", batch, batch == 1 ? " sample" : " samples",
            " in a run, an input before it ", fixed_batch_,
            "; write :fixed behind a file that is given whole in each run");
    fixed_batch_ = batch;
    if (s.is_scalar) {
      is_one_per_run_ = true;
    } else {
      axes_.insert(s.axis);
    }
  }

  std::vector<source> sources_;  // one for each input, unless there is a folder
  std::optional<sample_folder> folder_;
  std::set<std::string> axis_names_;  // names that the model gives to sample axes of inputs
  std::set<std::size_t> axes_;        // sample axes of inputs
  bool is_one_per_run_ = false;
  read_limits limits_;
  std::size_t count_ = 0;
  std::size_t first_ = 0;
  std::size_t fixed_batch_ = 0;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_SAMPLES_HPP
