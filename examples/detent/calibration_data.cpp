// SPDX-License-Identifier: BSD-3-Clause
#include "calibration_data.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/ops/operator.hpp>

#include "comparison.hpp"

namespace detent_cli {

namespace graph = detent::graph;
using graph::element_type;

detent::graph::calibration_source source_of(const sample_set& samples, progress& bar) {
  return [&samples, &bar, batch = batch_size(samples, 0),
          next = std::size_t{0}]() mutable -> std::optional<std::map<std::string, tensor>> {
    bar.advance_samples(next);
    // A batch that the samples do not fill would repeat the last sample, so it is left out unless
    // it is the only one.
    if (next >= samples.size() || (next > 0 && next + batch > samples.size())) {
      next = 0;  // for another pass
      return std::nullopt;
    }
    const std::size_t at = next;
    next += batch;
    return samples.batch(at, batch);
  };
}

namespace {

/// The nearest value of the type; integers are rounded down.
template <class T>
T saturated(double real) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(real);
  } else {
    using limits = std::numeric_limits<T>;
    const double whole = std::floor(real);
    return whole <= static_cast<double>((limits::min)())   ? (limits::min)()
           : whole >= static_cast<double>((limits::max)()) ? (limits::max)()
                                                           : static_cast<T>(whole);
  }
}

/// The number of samples in a run that the inputs of a model fix; 1 if they fix none.
std::int64_t fixed_batch(const model& m) {
  const value_info* first = nullptr;
  for (const value_info& v : m.inputs) {
    if (!v.has_shape || v.dims.empty() || v.dims[0] <= 0) {
      continue;
    }
    require(first == nullptr || v.dims[0] == first->dims[0], error_kind::shape_mismatch, "input '",
            v.name, "' takes ", v.dims[0], " random samples in a run, an input before it ",
            first == nullptr ? 0 : first->dims[0]);
    first = &v;
  }
  return first == nullptr ? 1 : first->dims[0];
}

using random_types =
    graph::type_list<float, double, std::int8_t, std::uint8_t, std::int32_t, std::int64_t>;

/// An input of a model whose values are random numbers of its own.
struct random_input {
  std::string name;
  element_type type = element_type::undefined;
  shape dims;
  std::mt19937_64 random;

  /// The next values, between two numbers.
  tensor take(double low, double high) {
    tensor t = tensor::allocate(type, dims);
    static_cast<void>(graph::visit_type(random_types{}, type, [&]<class T>() {
      for (T& value : t.mutable_data<T>()) {
        const double unit = static_cast<double>(random() >> 11U) * 0x1p-53;
        value = saturated<T>(low + unit * (high - low));
      }
    }));
    return t;
  }
};

}  // namespace

detent::graph::calibration_source random_source(const model& m, const graph::inc::dataset& d,
                                                std::uint64_t seed, const random_limits& limits) {
  require(d.dummy_shapes.size() == m.inputs.size(), error_kind::invalid_argument,
          "the dataset of random samples has ", d.dummy_shapes.size(), " shapes, the model ",
          m.inputs.size(), " inputs");
  // As many runs as the samples fill, but at least one.
  const std::int64_t batch = fixed_batch(m);
  const std::int64_t whole =
      d.dummy_shapes.empty() ? 0 : (std::max)(d.dummy_shapes[0][0] / batch, std::int64_t{1});
  const std::size_t runs = (std::min)(static_cast<std::size_t>(whole), limits.most_runs);
  std::vector<random_input> inputs;
  for (std::size_t i = 0; i < m.inputs.size(); ++i) {
    const value_info& v = m.inputs[i];
    require(d.dummy_shapes[i][0] == d.dummy_shapes[0][0], error_kind::shape_mismatch,
            "random samples of shapes ", to_string(d.dummy_shapes[i]), " and ",
            to_string(d.dummy_shapes[0]), " differ in number");
    require(graph::visit_type(random_types{}, v.type, []<class T>() {}), error_kind::unsupported,
            "no random samples of ", graph::name(v.type), " for input '", v.name, "'");
    shape dims = d.dummy_shapes[i];
    dims[0] = batch;
    const std::size_t bytes = graph::element_count(dims) * graph::element_size(v.type);
    require(bytes <= limits.most_bytes, error_kind::invalid_argument, "a random sample of shape ",
            to_string(dims), " for input '", v.name, "' has ", bytes, " bytes, the limit is ",
            limits.most_bytes);
    inputs.push_back({v.name, v.type, std::move(dims), std::mt19937_64(seed + i)});
  }
  return [first = inputs, inputs, next = std::size_t{0}, runs, low = d.dummy_low,
          high = d.dummy_high]() mutable -> std::optional<std::map<std::string, tensor>> {
    if (next == runs) {
      next = 0;
      inputs = first;  // the same samples in the next pass
      return std::nullopt;
    }
    std::map<std::string, tensor> one;
    for (random_input& input : inputs) {
      one[input.name] = input.take(static_cast<double>(low), static_cast<double>(high));
    }
    ++next;
    return one;
  };
}

}  // namespace detent_cli
