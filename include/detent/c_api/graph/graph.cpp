// SPDX-License-Identifier: BSD-3-Clause
// The C interface's functions on models and sessions.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/base/checked_size.hpp>
#include <detent/c_api_graph.h>
#include <detent/dispatch.hpp>
#include <detent/graph/configuration/quantization_job.hpp>
#include <detent/graph/configuration/quantize_as_told.hpp>
#include <detent/graph/model/onnx_writer.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/widen_floats.hpp>
#include <detent/graph/run/executor.hpp>

#include "../calls.hpp"
#include "tensors.hpp"

struct detent_model {
  detent::graph::model value;
};
struct detent_session {
  detent::graph::executor value;
};
struct detent_results {
  std::vector<detent::graph::tensor> values;
  std::vector<std::vector<std::uint8_t>> packed;  // of the 4-bit outputs
};

using namespace detent_c;  // NOLINT(google-build-using-namespace): this is their only purpose

namespace {

graph::read_limits read_limits_of(const detent_graph_limits& l) {
  graph::read_limits own;
  own.max_constant_bytes = l.max_constant_bytes;
  // In older programs, the limit of outputs is that of constants, too.
  const bool has_own = l.size > offsetof(detent_graph_limits, max_constant_tensor_bytes);
  own.max_tensor_bytes = has_own ? l.max_constant_tensor_bytes : l.max_tensor_bytes;
  own.max_nodes = l.max_nodes;
  return own;
}

graph::executor_options executor_options_of(const detent_graph_limits* limits,
                                            const detent_parallel* parallel, const char* where) {
  const detent_graph_limits l = known_fields(limits, &detent_graph_limits_init, where);
  graph::executor_options own;
  own.parallel = parallel_of(parallel);
  own.max_tensor_bytes = l.max_tensor_bytes;
  own.max_memory_bytes = l.max_memory_bytes;
  own.max_iterations = l.max_iterations;
  own.max_multiply_adds = l.max_multiply_adds;
  return own;
}

/// This library has kernels of its own, which run on the target that detent_set_target() has
/// chosen.
void follow_target() {
  const std::string_view name = detent_active_target();
  for (const detent::target t : detent::compiled_targets()) {
    if (detent::name(t) == name && t != detent::active_target()) {
      detent::set_target(t);
    }
  }
}

void describe(const std::vector<graph::value_info>& values, std::size_t index,
              detent_value_info* info, const char* where) {
  require(index < values.size(), error_kind::invalid_argument, where, ": index ", index, " of ",
          values.size());
  const graph::value_info& v = values[index];
  write_known_fields(
      &checked(info, where, "info"),
      {0, v.name.c_str(), type_of(v.type), v.has_shape ? 1 : 0, v.dims.size(), v.dims.data()},
      where);
}

/// The inputs of one run, by name.
std::map<std::string, graph::tensor> inputs_of(const graph::model& m, const detent_tensor* given,
                                               const std::string& what) {
  std::map<std::string, graph::tensor> inputs;
  for (std::size_t i = 0; i < m.inputs.size(); ++i) {
    inputs[m.inputs[i].name] = tensor_of(given[i], what + ": input '" + m.inputs[i].name + "'");
  }
  return inputs;
}

/// Tells the caller how far a job has come; throws `cancelled` if the caller wants no more.
class progress_reporter {
 public:
  explicit progress_reporter(const detent_quantize_options& o)
      : progress_(o.progress), user_(o.user) {}

  void operator()(const char* step, std::size_t done, std::size_t total) const {
    if (progress_ != nullptr && progress_(user_, step, done, total) != 0) {
      throw cancelled();
    }
  }

 private:
  detent_progress progress_;
  void* user_;
};

/// The caller's samples as a source, which tells of each one.
graph::calibration_source source_of(const graph::model& m, std::vector<detent_tensor> samples,
                                    std::size_t count, const progress_reporter& report) {
  return [&m, samples = std::move(samples), count, &report,
          next = std::size_t{0}]() mutable -> std::optional<std::map<std::string, graph::tensor>> {
    report("calibrating", next, count);
    if (next == count) {
      next = 0;  // for another pass
      return std::nullopt;
    }
    const std::size_t at = next++;
    return inputs_of(m, samples.data() + at * m.inputs.size(),
                     "detent_model_quantize: sample " + std::to_string(at));
  };
}

}  // namespace

extern "C" {

void detent_graph_limits_init(detent_graph_limits* limits) {
  const graph::read_limits reading;
  const graph::executor_options running;
  *limits = {};
  limits->size = sizeof *limits;
  limits->max_constant_bytes = reading.max_constant_bytes;
  limits->max_tensor_bytes = running.max_tensor_bytes;
  limits->max_nodes = reading.max_nodes;
  limits->max_memory_bytes = running.max_memory_bytes;
  limits->max_iterations = running.max_iterations;
  limits->max_multiply_adds = running.max_multiply_adds;
  limits->max_constant_tensor_bytes = reading.max_tensor_bytes;
}

detent_status detent_model_read(const char* path, const detent_graph_limits* limits,
                                detent_model** model) {
  return guarded([&] {
    constexpr const char* where = "detent_model_read";
    checked(path, where, "path");
    detent_model*& result = checked(model, where, "result");
    const detent_graph_limits l = known_fields(limits, &detent_graph_limits_init, where);
    result = new detent_model{graph::read_onnx(path, read_limits_of(l))};
  });
}

detent_status detent_model_parse(const void* bytes, size_t size, const detent_graph_limits* limits,
                                 detent_model** model) {
  return guarded([&] {
    constexpr const char* where = "detent_model_parse";
    const std::span<const std::byte> from = bytes_of(bytes, size, where);
    detent_model*& result = checked(model, where, "result");
    const detent_graph_limits l = known_fields(limits, &detent_graph_limits_init, where);
    graph::read_limits reading = read_limits_of(l);
    reading.allow_external_data = false;
    result = new detent_model{
        graph::parse_onnx({reinterpret_cast<const char*>(from.data()), from.size()}, {}, reading)};
  });
}

void detent_model_free(detent_model* model) { delete model; }

detent_status detent_model_write(const detent_model* model, const char* path) {
  return guarded([&] {
    constexpr const char* where = "detent_model_write";
    const graph::model& m = checked(model, where, "model").value;
    graph::write_onnx(m, &checked(path, where, "path"));
  });
}

detent_status detent_model_serialize(const detent_model* model, void* buffer, size_t capacity,
                                     size_t* needed) {
  return guarded([&] {
    constexpr const char* where = "detent_model_serialize";
    const graph::model& m = checked(model, where, "model").value;
    std::size_t& size = checked(needed, where, "needed");
    const graph::detail::file_pieces pieces = graph::detail::model_pieces(m);
    require(pieces.size() < graph::onnx_file_limit, error_kind::unsupported, where,
            ": the model has ", pieces.size(), " bytes; a file of this format holds 2 GiB");
    require(capacity < pieces.size() || buffer != nullptr, error_kind::invalid_argument, where,
            ": null buffer");
    size = static_cast<std::size_t>(pieces.size());
    if (capacity >= size) {
      auto* to = static_cast<char*>(buffer);
      pieces.write(
          [&to](const char* piece, std::size_t count) { to = std::copy_n(piece, count, to); });
    }
  });
}

void detent_value_info_init(detent_value_info* info) {
  *info = {};
  info->size = sizeof *info;
}

size_t detent_model_input_count(const detent_model* model) {
  return model == nullptr ? 0 : model->value.inputs.size();
}
size_t detent_model_output_count(const detent_model* model) {
  return model == nullptr ? 0 : model->value.outputs.size();
}

detent_status detent_model_input(const detent_model* model, size_t index, detent_value_info* info) {
  return guarded([&] {
    constexpr const char* where = "detent_model_input";
    describe(checked(model, where, "model").value.inputs, index, info, where);
  });
}
detent_status detent_model_output(const detent_model* model, size_t index,
                                  detent_value_info* info) {
  return guarded([&] {
    constexpr const char* where = "detent_model_output";
    describe(checked(model, where, "model").value.outputs, index, info, where);
  });
}

void detent_tensor_init(detent_tensor* tensor) {
  *tensor = {};
  tensor->size = sizeof *tensor;
}

void detent_quantize_outcome_init(detent_quantize_outcome* outcome) {
  *outcome = {};
  outcome->size = sizeof *outcome;
}

void detent_quantize_options_init(detent_quantize_options* options) {
  *options = {};
  options->size = sizeof *options;
}

detent_status detent_model_quantize(const detent_model* model, const char* text, size_t text_size,
                                    const detent_tensor* samples, size_t sample_count,
                                    const detent_quantize_options* options, detent_model** result) {
  return guarded([&] {
    constexpr const char* where = "detent_model_quantize";
    const graph::model& m = checked(model, where, "model").value;
    detent_model*& made = checked(result, where, "result");
    require(text != nullptr || text_size == 0, error_kind::invalid_argument, where, ": null text");
    const detent_quantize_options o = known_fields(options, &detent_quantize_options_init, where);
    const graph::quantization_job job = graph::read_quantization_job(
        text == nullptr ? std::string() : std::string(text, text_size), "options");
    require(sample_count > 0 || job.needs_samples.empty(), error_kind::invalid_argument, where,
            ": ", job.needs_samples, ", and there are none");
    const std::size_t tensors =
        detent::detail::checked_size(where, {sample_count, m.inputs.size()});
    graph::quantization_run run{.executor = executor_options_of(o.limits, o.parallel, where)};
    if (o.outcome != nullptr) {
      write_known_fields(o.outcome, {}, where);
    }
    const progress_reporter report(o);
    run.on_progress = [&report](const graph::quantization_progress& p) {
      report(p.step.c_str(), p.done, p.total);
    };
    graph::calibration_source source;
    if (sample_count > 0) {
      source = source_of(m, known_array(samples, tensors, &detent_tensor_init, where, "tensor"),
                         sample_count, report);
    }
    follow_target();
    report("quantizing", 0, 0);
    graph::model widened = m;  // shares the constants, unless they have 16 bits
    graph::widen_floats(widened);
    graph::quantization_outcome done = graph::quantize_as_told(job, widened, source, run);
    if (o.outcome != nullptr) {
      write_known_fields(
          o.outcome,
          {0, done.layers, done.parts ? done.parts->parameters.activations.size() : std::size_t{0},
           done.parts ? done.parts->not_run.size() : std::size_t{0},
           done.parts && done.parts->bias_correction_taken_back ? 1 : 0},
          where);
    }
    made = new detent_model{std::move(done.result)};
  });
}

detent_status detent_session_create(const detent_model* model, const detent_graph_limits* limits,
                                    const detent_parallel* parallel, detent_session** session) {
  return guarded([&] {
    constexpr const char* where = "detent_session_create";
    const graph::model& m = checked(model, where, "model").value;
    detent_session*& result = checked(session, where, "result");
    graph::executor_options options = executor_options_of(limits, parallel, where);
    follow_target();
    result = new detent_session{graph::executor(graph::for_execution(m), std::move(options))};
  });
}

detent_status detent_session_share(const detent_session* session, const detent_graph_limits* limits,
                                   const detent_parallel* parallel, detent_session** shared) {
  return guarded([&] {
    constexpr const char* where = "detent_session_share";
    const graph::executor& of = checked(session, where, "session").value;
    detent_session*& result = checked(shared, where, "result");
    graph::executor_options options = executor_options_of(limits, parallel, where);
    result = new detent_session{graph::executor(of, std::move(options))};
  });
}

void detent_session_free(detent_session* session) { delete session; }

detent_status detent_session_run(detent_session* session, const detent_tensor* inputs,
                                 size_t input_count, detent_results** results) {
  return guarded([&] {
    constexpr const char* where = "detent_session_run";
    graph::executor& network = checked(session, where, "session").value;
    detent_results*& result = checked(results, where, "result");
    const graph::model& m = network.graph_model();
    require(input_count == m.inputs.size(), error_kind::invalid_argument, where, ": ", input_count,
            " tensors for ", m.inputs.size(), " inputs");
    const std::vector<detent_tensor> known =
        known_array(inputs, input_count, &detent_tensor_init, where, "tensor");
    follow_target();
    auto made = std::make_unique<detent_results>();
    made->values = network.run(inputs_of(m, known.data(), where));
    for (const graph::tensor& t : made->values) {
      made->packed.push_back(packed_elements(t));
    }
    result = made.release();
  });
}

size_t detent_results_count(const detent_results* results) {
  return results == nullptr ? 0 : results->values.size();
}

detent_status detent_results_tensor(const detent_results* results, size_t index,
                                    detent_tensor* tensor) {
  return guarded([&] {
    constexpr const char* where = "detent_results_tensor";
    const detent_results& r = checked(results, where, "results");
    require(index < r.values.size(), error_kind::invalid_argument, where, ": index ", index, " of ",
            r.values.size());
    const graph::tensor& t = r.values[index];
    const detent_type type = type_of(t.type());
    require(type != DETENT_NO_TYPE, error_kind::unsupported, where, ": output ", index, " is ",
            graph::name(t.type()));
    const void* data = is_packed(t.type()) ? static_cast<const void*>(r.packed[index].data())
                                           : static_cast<const void*>(t.raw());
    write_known_fields(&checked(tensor, where, "tensor"),
                       {0, type, t.rank(), t.dims().data(), data, caller_bytes(t)}, where);
  });
}

void detent_results_free(detent_results* results) { delete results; }

}  // extern "C"
