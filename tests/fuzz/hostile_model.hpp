// SPDX-License-Identifier: BSD-3-Clause
// What fuzz targets do with a model: small limits, inputs and samples for it, runs, and writing it.
#ifndef DETENT_TESTS_FUZZ_HOSTILE_MODEL_HPP
#define DETENT_TESTS_FUZZ_HOSTILE_MODEL_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <detent/graph/model/onnx_writer.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

#include "fuzz_target.hpp"

namespace fuzz {

namespace graph = detent::graph;
using graph::element_type;
using graph::tensor;

inline graph::read_limits small_files() {
  return {.max_tensor_bytes = std::size_t{1} << 24U,
          .max_constant_bytes = std::size_t{1} << 26U,
          .max_nodes = 10000};
}
inline graph::executor_options small_runs() {
  graph::executor_options o;
  o.max_tensor_bytes = std::size_t{1} << 22U;
  o.max_memory_bytes = std::size_t{1} << 25U;
  o.max_iterations = 100;
  o.max_multiply_adds = 3000000;
  return o;
}

/// Inputs of the declared types and shapes, open dimensions taken as 2; nothing if they would be
/// large.
inline std::optional<std::map<std::string, tensor>> inputs_for(const graph::model& m) {
  std::map<std::string, tensor> inputs;
  for (const graph::value_info& v : m.inputs) {
    graph::shape dims = v.dims;
    for (std::int64_t& d : dims) {
      d = d < 0 ? 2 : d;
    }
    const element_type type = v.type == element_type::undefined ? element_type::f32 : v.type;
    if (graph::element_size(type) == 0) {
      return std::nullopt;
    }
    tensor t(type, dims);
    if (t.bytes() > std::size_t{1} << 20U) {
      return std::nullopt;
    }
    t = tensor::allocate(type, dims);
    for (std::size_t i = 0; i < t.bytes(); ++i) {
      t.mutable_raw()[i] = static_cast<std::byte>(type == element_type::boolean ? i % 2 : 0);
    }
    if (type == element_type::f32) {
      for (std::size_t i = 0; i < t.count(); ++i) {
        t.mutable_data<float>()[i] = static_cast<float>(i % 13) - 6.0F;
      }
    }
    inputs.emplace(v.name, std::move(t));
  }
  return inputs;
}

inline void run(const graph::model& m) {
  harmless("run", [&] {
    if (const auto inputs = inputs_for(m)) {
      graph::executor runner(m, small_runs());
      static_cast<void>(runner.run(*inputs));
      static_cast<void>(runner.run(*inputs));
    }
  });
  harmless("run for execution", [&] {
    if (const auto inputs = inputs_for(m)) {
      graph::executor runner(graph::for_execution(m), small_runs());
      static_cast<void>(runner.run(*inputs));
    }
  });
}

inline void write_and_read_again(const graph::model& m) {
  std::string bytes;
  if (harmless("write", [&] { bytes = graph::to_onnx(m); })) {
    harmless("read again", [&] {
      const graph::model again = graph::parse_onnx(bytes, {}, small_files());
      if (graph::to_onnx(again) != bytes) {
        finding("writing again", "gives other bytes");
      }
    });
  }
}

/// One sample, as often as the source is asked for a pass.
inline graph::calibration_source samples_for(const graph::model& m) {
  auto inputs = inputs_for(m);
  return [inputs = std::move(inputs),
          given = false]() mutable -> std::optional<std::map<std::string, tensor>> {
    given = !given;
    return given ? inputs : std::nullopt;
  };
}

/// The model that the bytes are; nothing if they are none.
inline std::optional<graph::model> read_model(const std::uint8_t* data, std::size_t size) {
  std::optional<graph::model> m;
  harmless("read", [&] {
    m = graph::parse_onnx(std::string_view(reinterpret_cast<const char*>(data), size), {},
                          small_files());
  });
  return m;
}

}  // namespace fuzz

#endif  // DETENT_TESTS_FUZZ_HOSTILE_MODEL_HPP
