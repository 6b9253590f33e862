// SPDX-License-Identifier: BSD-3-Clause
// The bytes of an ONNX model: read, infer shapes, run in float and with integers, make 16-bit
// floats float32, quantize in the ways of the library's own, write, read again, run again.
// Everything may fail with an error; nothing may crash, hang, or take more memory than the limits
// say. What other tools do to models is in pipelines_fuzz.cpp.
#include <cstddef>
#include <cstdint>
#include <utility>

#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/rewrite/widen_floats.hpp>
#include <detent/graph/run/shape_inference.hpp>

#include "fuzz_target.hpp"
#include "hostile_model.hpp"

namespace {

namespace graph = detent::graph;

void quantize(const graph::model& m, unsigned form) {
  graph::model result;
  const bool done = fuzz::harmless("quantize", [&] {
    if (form == 0) {
      graph::dynamic_quantization_options o;
      o.executor = fuzz::small_runs();
      result = graph::quantize_dynamic(m, o, {});
    } else if (form == 1) {
      graph::weight_only_options o;
      o.executor = fuzz::small_runs();
      result = graph::quantize_weights_only(m, o, {});
    } else {
      graph::static_quantization_options o;
      o.executor = fuzz::small_runs();
      o.method = form == 2 ? "minmax" : "percentile";
      o.bias.kind = form == 2 ? graph::bias_correction::fast : graph::bias_correction::full;
      result = graph::static_quantization(m, fuzz::samples_for(m), o).result;
      if (form == 3) {
        graph::to_qoperator(result);
      }
    }
  });
  if (done) {
    fuzz::write_and_read_again(result);
    fuzz::run(result);
    if (form == 2) {
      fuzz::run_with_other_forms(result);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto m = fuzz::read_model(data, size);
  if (!m) {
    return 0;
  }
  fuzz::harmless("infer", [&] { static_cast<void>(graph::infer_shapes(*m)); });
  fuzz::write_and_read_again(*m);
  fuzz::run(*m);
  fuzz::run_with_other_forms(*m);
  fuzz::harmless("widen", [&] {
    graph::model wide = *m;
    if (graph::widen_floats(wide)) {
      fuzz::write_and_read_again(wide);
      fuzz::run(wide);
      m = std::move(wide);
    }
  });
  for (unsigned form = 0; form < 4; ++form) {
    quantize(*m, form);
  }
  return 0;
}
