// SPDX-License-Identifier: BSD-3-Clause
// The bytes of an ONNX model: read, infer shapes, run in float and with integers, quantize in every
// way, write, read again, run again. Everything may fail with an error; nothing may crash, hang, or
// take more memory than the limits say.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/graph/model/onnx_writer.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

#include "fuzz_target.hpp"

namespace {

namespace graph = detent::graph;
using graph::element_type;
using graph::tensor;

graph::read_limits small_files() {
  return {.max_tensor_bytes = std::size_t{1} << 24U,
          .max_constant_bytes = std::size_t{1} << 26U,
          .max_nodes = 10000};
}
graph::executor_options small_runs() {
  graph::executor_options o;
  o.max_tensor_bytes = std::size_t{1} << 22U;
  o.max_memory_bytes = std::size_t{1} << 25U;
  o.max_iterations = 100;
  o.max_multiply_adds = 3000000;
  return o;
}

/// Inputs of the declared types and shapes, open dimensions taken as 2; nothing if they would be
/// large.
std::optional<std::map<std::string, tensor>> inputs_for(const graph::model& m) {
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

void run(const graph::model& m) {
  fuzz::harmless("run", [&] {
    if (const auto inputs = inputs_for(m)) {
      graph::executor runner(m, small_runs());
      static_cast<void>(runner.run(*inputs));
      static_cast<void>(runner.run(*inputs));
    }
  });
  fuzz::harmless("run for execution", [&] {
    if (const auto inputs = inputs_for(m)) {
      graph::executor runner(graph::for_execution(m), small_runs());
      static_cast<void>(runner.run(*inputs));
    }
  });
}

void write_and_read_again(const graph::model& m) {
  std::string bytes;
  if (fuzz::harmless("write", [&] { bytes = graph::to_onnx(m); })) {
    fuzz::harmless("read again", [&] {
      const graph::model again = graph::parse_onnx(bytes, {}, small_files());
      if (graph::to_onnx(again) != bytes) {
        fuzz::finding("writing again", "gives other bytes");
      }
    });
  }
}

/// One sample, as often as the source is asked for a pass.
graph::calibration_source samples_for(const graph::model& m) {
  auto inputs = inputs_for(m);
  return [inputs = std::move(inputs),
          given = false]() mutable -> std::optional<std::map<std::string, tensor>> {
    given = !given;
    return given ? inputs : std::nullopt;
  };
}

void quantize(const graph::model& m, unsigned form) {
  graph::model result;
  const bool done = fuzz::harmless("quantize", [&] {
    if (form == 0) {
      graph::dynamic_quantization_options o;
      o.executor = small_runs();
      result = graph::quantize_dynamic(m, o, {});
    } else if (form == 1) {
      graph::weight_only_options o;
      o.executor = small_runs();
      result = graph::quantize_weights_only(m, o, {});
    } else {
      graph::static_quantization_options o;
      o.executor = small_runs();
      o.method = form == 2 ? "minmax" : "percentile";
      o.bias.kind = form == 2 ? graph::bias_correction::fast : graph::bias_correction::full;
      result = graph::static_quantization(m, samples_for(m), o).result;
      if (form == 3) {
        graph::to_qoperator(result);
      }
    }
  });
  if (done) {
    write_and_read_again(result);
    run(result);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  graph::model m;
  if (!fuzz::harmless("read", [&] {
        m = graph::parse_onnx(std::string_view(reinterpret_cast<const char*>(data), size), {},
                              small_files());
      })) {
    return 0;
  }
  fuzz::harmless("infer", [&] { static_cast<void>(graph::infer_shapes(m)); });
  write_and_read_again(m);
  run(m);
  for (unsigned form = 0; form < 4; ++form) {
    quantize(m, form);
  }
  return 0;
}
