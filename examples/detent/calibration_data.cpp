// SPDX-License-Identifier: BSD-3-Clause
#include "calibration_data.hpp"

#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>
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

detent::graph::calibration_source random_source(const model& m, const graph::inc::dataset& d,
                                                std::uint64_t seed) {
  require(d.dummy_shapes.size() == m.inputs.size(), error_kind::invalid_argument,
          "the dataset of random samples has ", d.dummy_shapes.size(), " shapes, the model ",
          m.inputs.size(), " inputs");
  std::mt19937_64 random(seed);
  std::map<std::string, tensor> whole;
  for (std::size_t i = 0; i < m.inputs.size(); ++i) {
    const value_info& v = m.inputs[i];
    require(d.dummy_shapes[i][0] == d.dummy_shapes[0][0], error_kind::shape_mismatch,
            "random samples of shapes ", to_string(d.dummy_shapes[i]), " and ",
            to_string(d.dummy_shapes[0]), " differ in number");
    tensor t = tensor::allocate(v.type, d.dummy_shapes[i]);
    using numbers =
        graph::type_list<float, double, std::int8_t, std::uint8_t, std::int32_t, std::int64_t>;
    const bool known = graph::visit_type(numbers{}, v.type, [&]<class T>() {
      for (T& value : t.mutable_data<T>()) {
        const double unit = static_cast<double>(random() >> 11U) * 0x1p-53;
        const double real =
            static_cast<double>(d.dummy_low) +
            unit * (static_cast<double>(d.dummy_high) - static_cast<double>(d.dummy_low));
        value = static_cast<T>(std::is_floating_point_v<T> ? real : std::floor(real));
      }
    });
    require(known, error_kind::unsupported, "no random samples of ", graph::name(v.type),
            " for input '", v.name, "'");
    whole[v.name] = std::move(t);
  }
  return [whole = std::move(whole), next = std::int64_t{0},
          count = d.dummy_shapes.empty() ? std::int64_t{0} : d.dummy_shapes[0][0]]() mutable
         -> std::optional<std::map<std::string, tensor>> {
    if (next == count) {
      next = 0;
      return std::nullopt;
    }
    std::map<std::string, tensor> one;
    for (const auto& [name, t] : whole) {
      one[name] = slice_samples(t, static_cast<std::size_t>(next), 1);
    }
    ++next;
    return one;
  };
}

}  // namespace detent_cli
