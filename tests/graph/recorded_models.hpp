// SPDX-License-Identifier: BSD-3-Clause
// Reads files of small models with their inputs and expected results, as record_operators.py and
// record_gradients.py write them.
#ifndef DETENT_TESTS_GRAPH_RECORDED_MODELS_HPP
#define DETENT_TESTS_GRAPH_RECORDED_MODELS_HPP

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <detent/graph/model/files.hpp>
#include <detent/graph/onnx.hpp>

#include "model_builder.hpp"

namespace test {

/// Takes the constants whose names begin with `prefix` out of the model, under the rest of their
/// names.
inline tensors take_constants(graph::model& m, std::string_view prefix) {
  tensors taken;
  std::erase_if(m.initializers, [&](const auto& entry) {
    if (entry.first.rfind(prefix, 0) != 0) {
      return false;
    }
    taken.emplace(entry.first.substr(prefix.size()), entry.second);
    return true;
  });
  return taken;
}

/// Calls each(model) for the models of a file, and returns their number.
inline std::size_t for_each_recorded_model(const std::string& file,
                                           const std::function<void(graph::model)>& each) {
  const std::string recorded = graph::read_file(file);
  std::size_t models = 0;
  for (std::size_t at = 0; at < recorded.size(); ++models) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      size |= std::size_t{static_cast<unsigned char>(recorded.at(at + i))} << (8 * i);
    }
    const std::string_view bytes = std::string_view(recorded).substr(at + 4, size);
    REQUIRE(bytes.size() == size);
    at += 4 + size;
    each(graph::parse_onnx(bytes, {}));
  }
  return models;
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_RECORDED_MODELS_HPP
