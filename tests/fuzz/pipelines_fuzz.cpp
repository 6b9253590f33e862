// SPDX-License-Identifier: BSD-3-Clause
// The bytes of an ONNX model, through what needs samples or rewrites the model: NNCF's quantization
// and compression of weights, PPQ's passes, weight-only quantization by samples, and gradients.
// Everything may fail with an error; nothing may crash, hang, or take more memory than the limits
// say.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/nncf/compress_weights.hpp>
#include <detent/graph/nncf/quantize.hpp>
#include <detent/graph/ppq/quantize_onnx_model.hpp>
#include <detent/graph/quantize/weight_only.hpp>

#include "fuzz_target.hpp"
#include "hostile_model.hpp"

namespace {

namespace graph = detent::graph;
namespace nncf = graph::nncf;
namespace ppq = graph::ppq;

using inputs = std::map<std::string, graph::tensor>;

template <class Make>
void quantize(const char* what, const Make& make) {
  graph::model result;
  if (fuzz::harmless(what, [&] { result = make(); })) {
    fuzz::write_and_read_again(result);
    fuzz::run(result);
  }
}

void quantize_as_nncf(const graph::model& m, const inputs& sample) {
  for (const bool fast : {true, false}) {
    quantize("nncf::quantize", [&] {
      nncf::quantize_options o;
      o.executor = fuzz::small_runs();
      o.fast_bias_correction = fast;
      o.model_type = fast ? nncf::model_type::none : nncf::model_type::transformer;
      o.disable_channel_alignment = fast;
      return nncf::quantize(m, nncf::dataset(std::vector<inputs>{sample}), o).result;
    });
  }
  for (const bool awq : {true, false}) {
    quantize("nncf::compress_weights", [&] {
      nncf::compress_weights_options o;
      o.executor = fuzz::small_runs();
      o.mode = awq ? nncf::compress_weights_mode::int4_sym : nncf::compress_weights_mode::int4_asym;
      o.group_size = -1;
      o.all_layers = true;
      o.awq = awq;
      o.scale_estimation = !awq;
      o.dataset = nncf::dataset(std::vector<inputs>{sample});
      return nncf::compress_weights(m, o).result;
    });
  }
}

void quantize_as_ppq(const graph::model& m, const inputs& sample) {
  quantize("ppq::quantize_onnx_model", [&] {
    ppq::quantize_onnx_arguments a{.onnx_import_file = m};
    a.calib_dataloader = [&, given = false]() mutable {
      given = !given;
      return given ? std::optional(sample) : std::nullopt;
    };
    a.calib_steps = 8;
    a.executor = fuzz::small_runs();
    a.setting.equalization = true;
    a.setting.channel_split = true;
    a.setting.weight_split = true;
    a.setting.ssd_equalization = true;
    a.setting.bias_correct = true;
    return ppq::to_qdq(ppq::quantize_onnx_model(std::move(a)));
  });
}

void quantize_weights(const graph::model& m) {
  for (const auto algorithm :
       {graph::weight_only_algorithm::gptq, graph::weight_only_algorithm::awq}) {
    quantize("quantize_weights_only", [&] {
      graph::weight_only_options o;
      o.executor = fuzz::small_runs();
      o.algorithm = algorithm;
      return graph::quantize_weights_only(m, o, fuzz::samples_for(m));
    });
  }
}

/// Runs the model forward and backward, with a gradient of 1 for each element of its outputs.
void differentiate(const graph::model& m, const inputs& sample) {
  fuzz::harmless("gradient_graph", [&] {
    graph::gradient_graph g(m, fuzz::small_runs());
    g.forward(sample);
    graph::gradient_graph::gradient_map seeds;
    for (const graph::value_info& v : m.outputs) {
      if (g.value(v.name).type() == graph::element_type::f32) {
        seeds[v.name] = std::vector<double>(g.value(v.name).count(), 1.0);
      }
    }
    std::set<std::string> wanted;
    for (const auto& [name, t] : m.initializers) {
      if (t.type() == graph::element_type::f32) {
        wanted.insert(name);
      }
    }
    static_cast<void>(g.backward(seeds, wanted));
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto m = fuzz::read_model(data, size);
  std::optional<inputs> sample;
  if (!m || !fuzz::harmless("make inputs", [&] { sample = fuzz::inputs_for(*m); }) || !sample) {
    return 0;
  }
  quantize_as_nncf(*m, *sample);
  quantize_as_ppq(*m, *sample);
  quantize_weights(*m);
  differentiate(*m, *sample);
  return 0;
}
