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

}  // namespace

detent::graph::calibration_source random_source(const model& m, const graph::inc::dataset& d,
                                                std::uint64_t seed) {
  require(d.dummy_shapes.size() == m.inputs.size(), error_kind::invalid_argument,
          "the dataset of random samples has ", d.dummy_shapes.size(), " shapes, the model ",
          m.inputs.size(), " inputs");
  std::mt19937_64 random(seed);
  // As many runs as the samples fill, but at least one.
  const std::int64_t batch = fixed_batch(m);
  const std::int64_t runs =
      d.dummy_shapes.empty() ? 0 : (std::max)(d.dummy_shapes[0][0] / batch, std::int64_t{1});
  std::map<std::string, tensor> whole;
  for (std::size_t i = 0; i < m.inputs.size(); ++i) {
    const value_info& v = m.inputs[i];
    require(d.dummy_shapes[i][0] == d.dummy_shapes[0][0], error_kind::shape_mismatch,
            "random samples of shapes ", to_string(d.dummy_shapes[i]), " and ",
            to_string(d.dummy_shapes[0]), " differ in number");
    shape dims = d.dummy_shapes[i];
    dims[0] = runs * batch;
    tensor t = tensor::allocate(v.type, dims);
    using numbers =
        graph::type_list<float, double, std::int8_t, std::uint8_t, std::int32_t, std::int64_t>;
    const bool known = graph::visit_type(numbers{}, v.type, [&]<class T>() {
      for (T& value : t.mutable_data<T>()) {
        const double unit = static_cast<double>(random() >> 11U) * 0x1p-53;
        const double real =
            static_cast<double>(d.dummy_low) +
            unit * (static_cast<double>(d.dummy_high) - static_cast<double>(d.dummy_low));
        value = saturated<T>(real);
      }
    });
    require(known, error_kind::unsupported, "no random samples of ", graph::name(v.type),
            " for input '", v.name, "'");
    whole[v.name] = std::move(t);
  }
  return [whole = std::move(whole), next = std::int64_t{0}, runs,
          batch]() mutable -> std::optional<std::map<std::string, tensor>> {
    if (next == runs) {
      next = 0;
      return std::nullopt;
    }
    std::map<std::string, tensor> one;
    for (const auto& [name, t] : whole) {
      one[name] =
          slice_samples(t, static_cast<std::size_t>(next * batch), static_cast<std::size_t>(batch));
    }
    ++next;
    return one;
  };
}

}  // namespace detent_cli
