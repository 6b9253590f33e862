// SPDX-License-Identifier: BSD-3-Clause
#include "commands.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>
#include <detent/parallel.hpp>

#include "comparison.hpp"
#include "json_output.hpp"
#include "overwriting.hpp"
#include "progress.hpp"
#include "samples.hpp"
#include "usage_error.hpp"

namespace detent_cli {
namespace {

using detent::one_line;

namespace graph = detent::graph;
using graph::element_type;
using graph::node;

}  // namespace

// ------------------------------------------------------------------------------------------- eval

int eval(const eval_arguments& a) {
  if (!a.target.empty()) {
    bool found = false;
    for (const detent::target t : detent::compiled_targets()) {
      if (a.target == detent::name(t)) {
        detent::set_target(t);
        found = true;
      }
    }
    if (!found) {
      throw usage_error("--target " + a.target +
                        " is not one of those that 'detent targets' lists");
    }
  }
  graph::model m = graph::read_onnx(a.model, a.read_limits());
  sample_set samples = open_samples(m, a.data, "--data", a);
  const std::size_t batch = batch_size(samples, a.batch);
  // The labels belong to all samples, not only to those of --samples.
  const std::vector<std::int64_t> labels = read_labels(a.labels, samples.size());
  select_range(samples, a.samples);
  const std::vector<graph::value_info> declared = m.outputs;

  detent::thread_pool pool(a.threads);
  graph::executor_options options = a.executor_options();
  if (a.threads > 1) {
    options.parallel = pool.parallel();
  }
  graph::executor executor(graph::for_execution(std::move(m)), options);
  ranks counted;
  double seconds = 0.0;
  progress bar("evaluating", samples.size());
  // The first run packs weights and fills tables, so it takes longer than later ones: not measured.
  static_cast<void>(executor.run(samples.batch(0, samples.fixed_batch() != 0 ? batch : 1)));
  for (std::size_t at = 0; at < samples.size(); at += batch) {
    const std::size_t real = (std::min)(batch, samples.size() - at);
    const std::size_t size = samples.fixed_batch() != 0 ? batch : real;
    const auto inputs = samples.batch(at, size);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<tensor> outputs = executor.run(inputs);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const score_rows scores(outputs, declared, samples, size);
    scores.require_rows(size);
    for (std::size_t i = 0; i < real; ++i) {
      counted.add(scores.data + i * scores.columns, scores.columns,
                  labels[samples.first() + at + i],
                  a.labels + ": label of sample " + std::to_string(samples.first() + at + i));
    }
    bar.advance(at + real);
  }
  const double per_sample = 1000.0 * seconds / static_cast<double>(samples.size());
  if (a.json) {
    print_json({{"model", a.model},
                {"top1", percent(counted.top1, samples.size())},
                {"top5", percent(counted.top5, samples.size())},
                {"n", samples.size()},
                {"seconds", seconds},
                {"batch", batch},
                {"threads", a.threads},
                {"target", detent::name(detent::active_target())}});
  } else {
    std::printf("%s: %.4f ms per sample, batch %zu, %zu thread%s, target %s\n", a.model.c_str(),
                per_sample, batch, a.threads, a.threads == 1 ? "" : "s",
                detent::name(detent::active_target()));
    std::printf("top1 %.2f top5 %.2f n %zu seconds %.2f\n", percent(counted.top1, samples.size()),
                percent(counted.top5, samples.size()), samples.size(), seconds);
  }
  return 0;
}

// -------------------------------------------------------------------------------------------- run

namespace {

/// An output of the model in a file.
struct output_file {
  std::string output;
  std::filesystem::path path;
  tensor value;
};

/// Runs the model on each sample of a folder. The outputs have a sub-folder for each sample too,
/// with the name that the sample has.
std::vector<output_file> run_folder(graph::executor& executor, const sample_set& samples,
                                    const std::vector<graph::value_info>& declared,
                                    const std::filesystem::path& folder) {
  std::vector<output_file> files;
  progress bar("running", samples.size());
  for (std::size_t at = 0; at < samples.size(); ++at) {
    std::vector<tensor> outputs = executor.run(samples.batch(at, 1));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      files.push_back({declared[i].name,
                       folder / samples.folder()->name(samples.first() + at) /
                           ("output_" + std::to_string(i) + ".npy"),
                       std::move(outputs[i])});
    }
    bar.advance(at + 1);
  }
  return files;
}

/// Runs the model on all samples, in one run or in batches that the model fixes, whose outputs are
/// joined.
std::vector<output_file> run_batches(graph::executor& executor, const sample_set& samples,
                                     const std::vector<graph::value_info>& declared,
                                     const std::filesystem::path& folder) {
  const std::size_t batch = samples.fixed_batch() != 0 ? samples.fixed_batch() : samples.size();
  std::vector<std::vector<tensor>> pieces(declared.size());
  std::vector<std::size_t> axes(declared.size(), 0);
  progress bar("running", samples.size());
  for (std::size_t at = 0; at < samples.size(); at += batch) {
    std::vector<tensor> outputs = executor.run(samples.batch(at, batch));
    const std::size_t real = (std::min)(batch, samples.size() - at);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (samples.size() > batch) {
        if (batch == 1 && outputs[i].rank() == 0) {
          outputs[i] = outputs[i].reshaped({1});  // a single value for each sample
        }
        const auto axis = samples.output_axis(declared[i], outputs[i].dims(), batch);
        require(axis.has_value() && (at == 0 || *axis == axes[i]), error_kind::unsupported,
                "output '", declared[i].name, "' of shape ", to_string(outputs[i].dims()),
                " has no axis that surely counts the ", batch, batch == 1 ? " sample" : " samples",
                " of a run, so the outputs of several runs can't be joined; the samples of a "
                "folder get files of their own: --input FOLDER");
        axes[i] = *axis;
        outputs[i] = slice_samples(outputs[i], 0, real, axes[i]);
      }
      pieces[i].push_back(std::move(outputs[i]));
    }
    bar.advance(at + real);
  }
  std::vector<output_file> files;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string& name = declared[i].name;
    tensor whole =
        pieces[i].size() == 1
            ? pieces[i][0]
            : graph::join_samples(pieces[i], "output '" + name + "' of several runs", axes[i]);
    pieces[i].clear();
    files.push_back({name, folder / (graph::file_name_of(name) + ".npy"), std::move(whole)});
  }
  return files;
}

}  // namespace

int run(const run_arguments& a) {
  graph::model m = graph::read_onnx(a.model, a.read_limits());
  const sample_set samples = open_samples(m, a.inputs, "--input", a);
  const std::vector<graph::value_info> declared = m.outputs;
  std::set<std::string> names;
  for (const graph::value_info& v : declared) {
    const std::string name = graph::file_name_of(v.name);
    require(samples.folder() != nullptr || names.insert(name).second, error_kind::invalid_argument,
            "two outputs would be written to ", name, ".npy");
  }
  if (samples.folder() == nullptr) {
    std::vector<named_file> written;
    for (const std::string& name : names) {
      written.push_back({"output", (std::filesystem::path(a.output) / (name + ".npy")).string()});
    }
    require_apart(files_named_by("--input", a.inputs), written);
  }
  graph::executor executor(graph::for_execution(std::move(m)), a.executor_options());
  const std::vector<output_file> files = samples.folder() != nullptr
                                             ? run_folder(executor, samples, declared, a.output)
                                             : run_batches(executor, samples, declared, a.output);
  json_object list = json_object::array();
  for (const output_file& file : files) {
    const std::filesystem::path folder = file.path.parent_path();
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    require(!failed, error_kind::io, "cannot make the folder ", folder.string(), ": ",
            failed.message());
    // NumPy has no bfloat16; float32 holds its values.
    const bool is_bfloat16 = file.value.type() == element_type::bf16;
    write_npy(file.path.string(), is_bfloat16 ? graph::as_float32(file.value) : file.value);
    if (a.json) {
      list.push_back({{"output", file.output},
                      {"file", file.path.string()},
                      {"type", graph::name(file.value.type())},
                      {"shape", file.value.dims()}});
    } else {
      std::printf("%s: %s %s\n", one_line(file.path.string()).c_str(),
                  graph::name(file.value.type()).c_str(), to_string(file.value.dims()).c_str());
    }
  }
  if (a.json) {
    print_json({{"outputs", list}});
  }
  return 0;
}

// ---------------------------------------------------------------------------------------- compare

int compare(const compare_arguments& a) {
  const graph::model reference = graph::read_onnx(a.reference, a.read_limits());
  const graph::model quantized = graph::read_onnx(a.quantized, a.read_limits());
  for (const value_info& v : quantized.inputs) {
    require(std::any_of(reference.inputs.begin(), reference.inputs.end(),
                        [&](const value_info& other) { return other.name == v.name; }),
            error_kind::invalid_argument, a.quantized, " takes input '", v.name, "', which ",
            a.reference, " does not have");
  }
  sample_set samples = open_samples(reference, a.data, "--data", a);
  select_range(samples, a.samples);
  const model_comparison c =
      compare_models(reference, quantized, samples, batch_size(samples, 0), a.executor_options());
  json_object tensors = json_object::array();
  json_object results = json_object::array();
  const auto row = [&](json_object& list, const std::string& name, const graph::signal_error& d,
                       const std::optional<double>& rescaled) {
    const bool is_measured = d.count() > 0;  // other types than floats, and empty outputs, are not
    if (a.json) {
      const auto number = [&](double value) {
        return is_measured && std::isfinite(value) ? json_object(value) : json_object(nullptr);
      };
      list.push_back({{"name", name},
                      {"snr_db", number(d.snr_db())},
                      {"cosine", number(d.cosine())},
                      {"max_error", number(d.largest())},
                      {"is_rescaled", rescaled.has_value()},
                      {"rescaled_snr_db", rescaled ? number(*rescaled) : json_object(nullptr)}});
    } else if (!is_measured) {
      std::printf("%9s %9s %12s  %s\n", "n/a", "n/a", "n/a", one_line(name).c_str());
    } else {
      std::printf("%9.2f %9.6f %12.6g  %s", d.snr_db(), d.cosine(), d.largest(),
                  one_line(name).c_str());
      if (rescaled) {
        std::printf(" (its channels were rescaled: %.2f dB without the factors)", *rescaled);
      }
      std::printf("\n");
    }
  };
  if (!a.json) {
    std::printf("   SNR dB    cosine    max error  tensor\n");
  }
  for (const tensor_comparison& t : c.tensors) {
    row(tensors, t.name, t.error, t.rescaled_snr);
  }
  for (const auto& [name, error] : c.outputs) {
    row(results, (a.json ? "" : "output ") + name, error, {});
  }
  if (a.json) {
    print_json({{"tensors", tensors},
                {"outputs", results},
                {"agreement",
                 c.judged > 0 ? json_object(percent(c.agreed, c.judged)) : json_object(nullptr)},
                {"n", samples.size()}});
  } else if (c.judged == 0) {
    std::printf("agreement n/a n %zu\n", samples.size());  // no scores to rank
  } else {
    std::printf("agreement %.2f n %zu\n", percent(c.agreed, c.judged), samples.size());
  }
  return 0;
}

// ---------------------------------------------------------------------------------------- inspect

namespace {

std::string describe(const graph::value_info& v) {
  std::string text = v.name + " " + graph::name(v.type) + " [";
  for (std::size_t i = 0; i < v.dims.size(); ++i) {
    const bool open = v.dims[i] < 0;
    text += i > 0 ? "," : "";
    text += !open ? std::to_string(v.dims[i]) : v.params[i].empty() ? "?" : v.params[i];
  }
  return text + "]";
}

/// The quantization parameters of a QuantizeLinear or DequantizeLinear node.
struct stated_params {
  std::string value;
  element_type type = element_type::undefined;
  std::size_t scales = 0;
  float smallest = 0.0F, largest = 0.0F;
  std::optional<std::int64_t> zero_point = 0;  // nothing if channels have different ones
  std::int64_t axis = -1;
};

std::vector<stated_params> stated(const graph::model& m) {
  std::vector<stated_params> all;
  std::set<std::string> seen;
  for (const node& n : m.nodes) {
    if (!graph::is_quantize_or_dequantize(n) || n.inputs.size() < 2) {
      continue;
    }
    const std::string& stored = n.is("QuantizeLinear") ? n.outputs[0] : n.inputs[0];
    const tensor* scale = m.initializer(n.inputs[1]);
    if (scale == nullptr || !graph::fits_float(scale->type()) || scale->count() == 0 ||
        !scale->has_data() || !seen.insert(stored).second) {
      continue;
    }
    const tensor scales = graph::as_float32(*scale);
    stated_params p;
    p.value = stored;
    const auto [least, most] =
        std::minmax_element(scales.data<float>().begin(), scales.data<float>().end());
    p.scales = scale->count();
    p.smallest = *least;
    p.largest = *most;
    const tensor* zero = n.inputs.size() > 2 ? m.initializer(n.inputs[2]) : nullptr;
    const tensor* q = m.initializer(stored);
    p.axis = p.scales > 1 ? n.get_int("axis", 1) : -1;
    if (p.scales > 1 && p.axis < 0 && q != nullptr) {
      p.axis += static_cast<std::int64_t>(q->rank());
    }
    p.type = zero != nullptr ? zero->type() : q != nullptr ? q->type() : element_type::u8;
    if (zero != nullptr && zero->count() > 0) {
      using integers =
          graph::type_list<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t>;
      const element_type whole = zero->type() == element_type::u4   ? element_type::u8
                                 : zero->type() == element_type::s4 ? element_type::s8
                                                                    : zero->type();
      static_cast<void>(graph::visit_type(integers{}, whole, [&]<class T>() {
        const auto values = zero->data<T>();
        if (std::all_of(values.begin(), values.end(), [&](T v) { return v == values[0]; })) {
          p.zero_point = values[0];
        } else {
          p.zero_point.reset();
        }
      }));
    }
    all.push_back(std::move(p));
  }
  return all;
}

}  // namespace

int inspect(const inspect_arguments& a) {
  const graph::model m = graph::read_onnx(a.model, a.read_limits());
  const std::vector<std::string> unsupported = graph::unsupported_nodes(m);
  std::map<std::string, std::size_t> operators;
  for (const node& n : m.nodes) {
    ++operators[n.domain.empty() ? n.op_type : n.domain + "." + n.op_type];
  }
  std::size_t constant_bytes = 0;
  for (const auto& [name, t] : m.initializers) {
    constant_bytes += t.bytes();
  }
  const std::map<std::string, tensor> known =
      graph::with_file_name(a.model, [&] { return graph::infer_shapes(m); });
  const std::vector<stated_params> params = stated(m);
  const auto is_supported = [](const std::string& full) {
    const std::size_t dot = full.rfind('.');
    return graph::default_operators().find(
               dot == std::string::npos ? "" : full.substr(0, dot),
               dot == std::string::npos ? full : full.substr(dot + 1)) != nullptr;
  };
  if (a.json) {
    json_object j;
    j["model"] = a.model;
    j["ir_version"] = m.ir_version;
    j["opset"] = m.opset();
    j["producer"] = m.producer_name;
    for (const auto* list : {&m.inputs, &m.outputs}) {
      json_object values = json_object::array();
      for (const graph::value_info& v : *list) {
        values.push_back({{"name", v.name}, {"type", graph::name(v.type)}, {"shape", v.dims}});
      }
      j[list == &m.inputs ? "inputs" : "outputs"] = values;
    }
    json_object ops = json_object::array();
    for (const auto& [name, count] : operators) {
      ops.push_back({{"operator", name}, {"count", count}, {"supported", is_supported(name)}});
    }
    j["operators"] = ops;
    j["initializers"] = m.initializers.size();
    j["initializer_bytes"] = constant_bytes;
    json_object tensors = json_object::array();
    for (const node& n : m.nodes) {
      for (const std::string& out : n.outputs) {
        const auto found = known.find(out);
        if (found != known.end()) {
          tensors.push_back({{"name", out},
                             {"type", graph::name(found->second.type())},
                             {"shape", found->second.dims()}});
        }
      }
    }
    j["tensors"] = tensors;
    json_object quantization = json_object::array();
    for (const stated_params& p : params) {
      quantization.push_back({{"name", p.value},
                              {"type", graph::name(p.type)},
                              {"scales", p.scales},
                              {"scale_min", p.smallest},
                              {"scale_max", p.largest},
                              {"zero_point", p.zero_point ? json_object(*p.zero_point) : nullptr},
                              {"axis", p.axis}});
    }
    j["quantization"] = quantization;
    j["unsupported_nodes"] = unsupported;
    print_json(j);
    return 0;
  }
  std::printf("%s: IR version %lld, opset %lld, producer %s\n", a.model.c_str(),
              static_cast<long long>(m.ir_version), static_cast<long long>(m.opset()),
              m.producer_name.empty() ? "not stated" : one_line(m.producer_name).c_str());
  for (const graph::value_info& v : m.inputs) {
    std::printf("input  %s\n", one_line(describe(v)).c_str());
  }
  for (const graph::value_info& v : m.outputs) {
    std::printf("output %s\n", one_line(describe(v)).c_str());
  }
  std::printf("%zu nodes, %zu initializers of %zu bytes\n", m.nodes.size(), m.initializers.size(),
              constant_bytes);
  for (const auto& [name, count] : operators) {
    std::printf("%6zu %s%s\n", count, one_line(name).c_str(),
                is_supported(name) ? "" : "   NOT SUPPORTED");
  }
  std::printf("tensors (open dimensions taken as 1)\n");
  for (const node& n : m.nodes) {
    for (const std::string& out : n.outputs) {
      const auto found = known.find(out);
      if (found != known.end()) {
        std::printf("  %-8s %-20s %s\n", graph::name(found->second.type()).c_str(),
                    to_string(found->second.dims()).c_str(), one_line(out).c_str());
      }
    }
  }
  if (!params.empty()) {
    std::printf("quantization parameters\n");
    for (const stated_params& p : params) {
      if (p.scales == 1) {
        std::printf("  %-6s scale %-14.9g zero_point %-4lld %s\n", graph::name(p.type).c_str(),
                    static_cast<double>(p.smallest),
                    static_cast<long long>(p.zero_point.value_or(0)), one_line(p.value).c_str());
      } else {
        std::printf("  %-6s %zu scales %.9g .. %.9g along axis %lld %s\n",
                    graph::name(p.type).c_str(), p.scales, static_cast<double>(p.smallest),
                    static_cast<double>(p.largest), static_cast<long long>(p.axis),
                    one_line(p.value).c_str());
      }
    }
  }
  for (const std::string& n : unsupported) {
    std::printf("not supported: %s\n", one_line(n).c_str());
  }
  return 0;
}

// ---------------------------------------------------------------------------------------- targets

int targets(bool json) {
  const detent::target active = detent::active_target();
  json_object list = json_object::array();
  for (const detent::target t : detent::compiled_targets()) {
    const bool supported = detent::kernels::cpu_supports(t);
    if (json) {
      list.push_back({{"target", detent::name(t)},
                      {"compiled", true},
                      {"supported", supported},
                      {"active", t == active}});
    } else {
      std::printf("%-12s compiled, %s%s\n", detent::name(t),
                  supported ? "supported" : "not supported by this processor",
                  t == active ? ", active" : "");
    }
  }
  if (json) {
    print_json({{"targets", list}});
  }
  return 0;
}

}  // namespace detent_cli
