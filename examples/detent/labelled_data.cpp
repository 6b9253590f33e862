// SPDX-License-Identifier: BSD-3-Clause
#include "labelled_data.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/ops/operator.hpp>

namespace detent_cli {

namespace graph = detent::graph;
using graph::element_type;

namespace {

/// Labels as int64 or float32.
tensor read_label_file(const std::string& path, std::size_t samples) {
  graph::npy_file file(path);
  const shape& dims = file.dims();
  require(!dims.empty(), error_kind::shape_mismatch, path,
          " holds a single number; labels are one for each sample");
  require(static_cast<std::size_t>(dims[0]) == samples, error_kind::shape_mismatch, path, " has ",
          dims[0], " labels for ", samples, " samples");
  const tensor t = file.read();
  using integers = graph::type_list<std::int64_t, std::int32_t, std::int16_t, std::int8_t,
                                    std::uint32_t, std::uint16_t, std::uint8_t>;
  using reals = graph::type_list<float, double>;
  std::optional<tensor> labels;
  const bool is_class = graph::visit_type(integers{}, t.type(), [&]<class T>() {
    labels = tensor::allocate(element_type::s64, t.dims());
    std::copy(t.data<T>().begin(), t.data<T>().end(), labels->mutable_data<std::int64_t>().begin());
  });
  const bool is_value = graph::visit_type(reals{}, t.type(), [&]<class T>() {
    labels = tensor::allocate(element_type::f32, t.dims());
    std::transform(t.data<T>().begin(), t.data<T>().end(), labels->mutable_data<float>().begin(),
                   [](T v) { return static_cast<float>(v); });
  });
  require(is_class || is_value, error_kind::invalid_argument, path, " holds ",
          graph::name(t.type()),
          "; labels are integers of up to 64 bits with a sign or 32 without (classes), or float32 "
          "(values)");
  return *labels;
}

/// Throws invalid_argument, naming the input and the sample, if floats hold NaN or +infinity.
/// -infinity may be a mask.
void require_numbers(const std::string& option, const std::string& name, const tensor& t) {
  if (t.type() != element_type::f32 || t.count() == 0) {
    return;
  }
  const auto values = t.data<float>();
  const auto wrong = std::find_if(values.begin(), values.end(), [](float v) {
    return !(v < std::numeric_limits<float>::infinity());
  });
  if (wrong != values.end()) {
    const std::size_t of_sample = values.size() / static_cast<std::size_t>(t.dim(0));
    require(false, error_kind::invalid_argument, option, " ", name, ": sample ",
            static_cast<std::size_t>(wrong - values.begin()) / of_sample,
            " (counted from 0) holds ", *wrong);
  }
}

/// Adds inputs that are the same in all runs to a batch.
graph::training_data with_fixed(graph::training_data data, std::map<std::string, tensor> fixed) {
  if (fixed.empty()) {
    return data;
  }
  graph::training_data whole;
  whole.count = data.count;
  whole.batch = [batch = std::move(data.batch),
                 fixed = std::move(fixed)](std::span<const std::size_t> indices) {
    graph::training_batch b = batch(indices);
    b.inputs.insert(fixed.begin(), fixed.end());
    return b;
  };
  return whole;
}

}  // namespace

graph::training_data labelled_data::all() const {
  return with_fixed(graph::in_memory(inputs, labels), fixed);
}

graph::training_data labelled_data::part(std::vector<std::size_t> indices) const {
  graph::training_data of_part;
  of_part.count = indices.size();
  of_part.batch = [data = all(),
                   indices = std::move(indices)](std::span<const std::size_t> wanted) {
    std::vector<std::size_t> own;
    for (const std::size_t i : wanted) {
      own.push_back(indices.at(i));
    }
    return data.batch(own);
  };
  return of_part;
}

void labelled_data::add_to(graph::fingerprint& f) const {
  f.add(inputs);
  f.add(fixed);
  f.add(labels);
}

labelled_data read_labelled_data(const model& m, const std::vector<std::string>& texts,
                                 const std::string& option, const std::string& labels,
                                 const common_arguments& a) {
  const sample_set samples = open_samples(m, texts, option, a);
  require(!m.inputs.empty(), error_kind::invalid_argument,
          "training: the model has no inputs to give samples for");
  require(!samples.is_one_per_run(), error_kind::unsupported, option,
          ": training takes .npy and .pb files whose first axis counts the samples, so that "
          "several can "
          "share a run");
  labelled_data data;
  data.labels = read_label_file(labels, samples.size());
  data.fixed_batch = samples.fixed_batch();
  for (auto& [name, t] : samples.batch(0, samples.size())) {
    const std::size_t axis = samples.sample_axis(name).value_or(0);
    require(axis == 0, error_kind::unsupported, option, " ", name, ": axis ", axis,
            " counts the samples; training takes files whose first axis does");
    if (samples.sample_axis(name)) {
      require_numbers(option, name, t);
    }
    (samples.sample_axis(name) ? data.inputs : data.fixed)[name] = t;
  }
  return data;
}

}  // namespace detent_cli
