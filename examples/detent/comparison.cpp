// SPDX-License-Identifier: BSD-3-Clause
#include "comparison.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/quantize.hpp>

#include "channel_scales.hpp"
#include "progress.hpp"

namespace detent_cli {
namespace {

namespace graph = detent::graph;
using detent::graph::to_plain;
using graph::element_type;
using graph::node;

/// The float value that an integer tensor of a quantized model stands for, and its quantization
/// parameters.
struct stored_form {
  std::string value;
  detent::quant_params params;
};

/// The index of the input of an integer operator that is the scale of its result, if the operator
/// is one. The next input is the zero point.
std::optional<std::size_t> result_scale(const node& n) {
  const std::string& op = n.op_type;
  if (op == "QuantizeLinear") {
    return 1;
  }
  if (op == "QLinearConv" || op == "QLinearMatMul" || op == "QLinearAdd" || op == "QLinearMul") {
    return 6;
  }
  if (op == "QGemm") {
    return 7;
  }
  if (op == "QLinearConcat") {
    return 0;
  }
  return op.rfind("QLinear", 0) == 0 ? std::optional<std::size_t>(3) : std::nullopt;
}

std::map<std::string, stored_form> stored_forms(const model& m) {
  constexpr std::string_view suffix = "_quantized";
  std::map<std::string, stored_form> all;
  for (const node& n : m.nodes) {
    const auto at = result_scale(n);
    if (!at || n.inputs.size() <= *at || n.outputs.empty()) {
      continue;
    }
    const tensor* scale = m.initializer(n.inputs[*at]);
    const tensor* zero = n.inputs.size() > *at + 1 ? m.initializer(n.inputs[*at + 1]) : nullptr;
    if (scale == nullptr || scale->type() != element_type::f32 || scale->count() != 1) {
      continue;
    }
    stored_form s{n.inputs[0], {scale->data<float>()[0], 0}};
    if (n.op_type != "QuantizeLinear") {
      s.value = n.outputs[0];
      if (s.value.size() > suffix.size() && s.value.ends_with(suffix)) {
        s.value.resize(s.value.size() - suffix.size());
      }
    }
    if (zero != nullptr && zero->type() == element_type::s8) {
      s.params.zero_point = zero->data<std::int8_t>()[0];
    } else if (zero != nullptr && zero->type() == element_type::u8) {
      s.params.zero_point = zero->data<std::uint8_t>()[0];
    } else if (zero != nullptr) {
      continue;  // not 8 bits
    }
    all[n.outputs[0]] = std::move(s);
  }
  return all;
}

std::vector<float> real_values(const tensor& t, const detent::quant_params& p) {
  std::vector<float> values(t.count());
  if (t.type() == element_type::u8) {
    detent::dequantize(t.data<std::uint8_t>(), values, p);
  } else {
    detent::dequantize(t.data<std::int8_t>(), values, p);
  }
  return values;
}

}  // namespace

double percent(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::optional<std::size_t> arg_max(const float* scores, std::size_t n) {
  const bool has_nan = std::any_of(scores, scores + n, [](float x) { return x != x; });
  return has_nan || n == 0 ? std::nullopt
                           : std::optional(static_cast<std::size_t>(
                                 std::max_element(scores, scores + n) - scores));
}

tensor in_rows(const tensor& output, const value_info& declared, const sample_set& samples,
               std::size_t batch) {
  const std::size_t axis =
      batch == 1 ? 0 : samples.output_axis(declared, output.dims(), batch).value_or(0);
  return axis == 0 ? output : graph::samples_first(output, axis);
}

score_rows::score_rows(const std::vector<tensor>& outputs, const std::vector<value_info>& declared,
                       const sample_set& samples, std::size_t batch) {
  require(!outputs.empty(), error_kind::invalid_argument, "the model has no output");
  const tensor& t = outputs[0];
  require(graph::fits_float(t.type()) && batch > 0 && t.count() % batch == 0 && t.count() > 0,
          error_kind::unsupported, "the model's first output is ", graph::name(t.type()), " ",
          to_string(t.dims()), ", which are not float scores for ", batch, " samples");
  scores = in_rows(graph::as_float32(t), declared[0], samples, batch);
  data = scores.data<float>().data();
  const bool is_whole = samples.is_one_per_run() && t.rank() > 1;
  rows = is_whole ? static_cast<std::size_t>(t.dim(0)) : batch;
  columns = t.count() / rows;
}

void score_rows::require_rows(std::size_t batch) const {
  std::size_t axes = 0;  // but that of the samples, and those of one element
  const bool has_batch = scores.rank() > 0 && scores.dim(0) == static_cast<std::int64_t>(batch);
  for (std::size_t i = has_batch ? 1 : 0; i < scores.rank(); ++i) {
    axes += scores.dim(i) != 1 ? 1U : 0U;
  }
  require(rows != batch || axes <= 1, error_kind::unsupported,
          "the model's first output has shape ", to_string(scores.dims()),
          ", which is no row of scores for each sample: labels need one");
  require(rows == batch, error_kind::unsupported, "the model's first output has shape ",
          to_string(scores.dims()), ": ", rows, " rows of scores for ", batch,
          batch == 1 ? " sample and its label" : " samples and their labels");
}

void ranks::add(const float* scores, std::size_t classes, std::int64_t label,
                const std::string& where) {
  require(label >= 0 && static_cast<std::size_t>(label) < classes, error_kind::invalid_argument,
          where, " is ", label, ", which is not one of ", classes, " classes");
  const float own = scores[label];
  std::size_t rank = 0;
  for (std::size_t k = 0; k < classes; ++k) {
    rank += scores[k] > own || (scores[k] == own && static_cast<std::int64_t>(k) < label) ? 1U : 0U;
  }
  const bool number = own == own;
  top1 += number && rank == 0 ? 1U : 0U;
  top5 += number && rank < 5 ? 1U : 0U;
}

std::size_t batch_size(const sample_set& samples, std::size_t asked) {
  if (samples.fixed_batch() != 0) {
    require(asked == 0 || asked == samples.fixed_batch(), error_kind::invalid_argument, "--batch ",
            asked, ": each run takes ", samples.fixed_batch(),
            samples.fixed_batch() == 1 ? " sample" : " samples", " of these inputs");
    return samples.fixed_batch();
  }
  return asked == 0 ? 1 : asked;
}

std::vector<std::int64_t> read_labels(const std::string& path, std::size_t samples) {
  graph::npy_file file(path);
  const shape& dims = file.dims();
  require(dims.size() == 1 || (dims.size() == 2 && dims[1] == 1), error_kind::shape_mismatch, path,
          " has shape ", to_string(dims), ", labels are one integer for each sample");
  require(static_cast<std::uint64_t>(dims[0]) == samples, error_kind::shape_mismatch, path, " has ",
          dims[0], " labels for ", samples, " samples");
  const tensor t = file.read();
  std::vector<std::int64_t> labels(t.count());
  using integers = graph::type_list<std::int64_t, std::int32_t, std::int16_t, std::int8_t,
                                    std::uint32_t, std::uint16_t, std::uint8_t>;
  const bool known = graph::visit_type(integers{}, t.type(), [&]<class T>() {
    std::copy(t.data<T>().begin(), t.data<T>().end(), labels.begin());
  });
  require(known, error_kind::invalid_argument, path, " holds ", graph::name(t.type()),
          ", labels are integers");
  return labels;
}

model_comparison compare_models(
    const model& reference, const model& quantized, const sample_set& samples, std::size_t batch,
    const graph::executor_options& options,
    const std::function<void(const std::string& name, const tensor& value)>& on_value) {
  require(reference.outputs.size() == quantized.outputs.size(), error_kind::shape_mismatch,
          "the float model has ", reference.outputs.size(), " outputs, the quantized one ",
          quantized.outputs.size());
  const std::vector<value_info> outputs = reference.outputs;
  const std::map<std::string, stored_form> forms = stored_forms(quantized);
  // The values that the quantized model stores are outputs of the float one here, so that no node
  // that makes one of them becomes part of another node.
  model observed = reference;
  const graph::links nodes(reference);
  for (const auto& [stored, form] : forms) {
    if (nodes.producer(form.value) != graph::links::none && !observed.is_output(form.value)) {
      observed.outputs.push_back({form.value, element_type::undefined, false, {}, {}});
    }
  }
  graph::executor float_executor(graph::for_execution(std::move(observed), false), options);
  graph::executor integer_executor(graph::for_execution(quantized), options);

  model_comparison result;
  std::map<std::string, std::size_t> index;
  for (const value_info& v : outputs) {
    result.outputs.emplace_back(v.name, graph::signal_error());
  }
  std::vector<channel_scales> scales;  // of result.tensors
  const auto add = [&](const std::string& name, const tensor& expected_values,
                       std::span<const float> actual, std::size_t real) {
    const auto [entry, added] = index.emplace(name, result.tensors.size());
    if (added) {
      result.tensors.push_back({name, {}, {}});
      scales.emplace_back();
    }
    const std::span<const float> expected = expected_values.data<float>();
    // If the samples do not fill the last batch, it repeats the last sample, which counts only
    // once.
    const std::size_t count =
        expected.size() % batch == 0 ? expected.size() / batch * real : expected.size();
    result.tensors[entry->second].error.add(expected.first(count), actual.first(count));
    scales[entry->second].add(expected_values.dims(), expected.first(count), actual.first(count));
  };
  progress bar("comparing", samples.size());
  for (std::size_t at = 0; at < samples.size(); at += batch) {
    const auto inputs = samples.batch(at, batch);
    const std::size_t real = (std::min)(batch, samples.size() - at);
    std::map<std::string, tensor> values;
    auto expected = float_executor.run(inputs, [&](const std::string& name, const tensor& t) {
      if (graph::fits_float(t.type())) {
        values[name] = to_plain(graph::as_float32(t));
        if (on_value) {
          on_value(name, values[name]);
        }
      }
    });
    expected.resize(outputs.size());
    const auto actual = integer_executor.run(inputs, [&](const std::string& name, const tensor& t) {
      const auto form = forms.find(name);
      const bool is_float = graph::fits_float(t.type());
      const bool is_byte = t.type() == element_type::u8 || t.type() == element_type::s8;
      if (inputs.count(name) != 0 || reference.is_output(name) ||
          !(is_float || (is_byte && form != forms.end()))) {
        return;
      }
      const std::string& value = is_float ? name : form->second.value;
      const auto original = values.find(value);
      if (original == values.end() || original->second.count() != t.count()) {
        return;
      }
      // The repeated samples of a batch that is not full have to stand last.
      const auto ordered = [&](const tensor& stored) {
        return real < batch ? in_rows(stored, {}, samples, batch) : stored;
      };
      const tensor expected_rows = ordered(original->second);
      const tensor actual_rows = ordered(to_plain(graph::as_float32(t)));
      if (is_float) {
        add(value, expected_rows, actual_rows.data<float>(), real);
      } else {
        add(value, expected_rows, real_values(actual_rows, form->second.params), real);
      }
    });
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      require(expected[i].dims() == actual[i].dims() && expected[i].type() == actual[i].type(),
              error_kind::shape_mismatch, "output '", outputs[i].name, "' is ",
              graph::name(expected[i].type()), " ", to_string(expected[i].dims()),
              " in the float model, ", graph::name(actual[i].type()), " ",
              to_string(actual[i].dims()), " in the quantized one");
      if (graph::fits_float(expected[i].type())) {
        const std::size_t count = expected[i].count() % batch == 0
                                      ? expected[i].count() / batch * real
                                      : expected[i].count();
        const auto rows = [&](const tensor& t) {
          return in_rows(graph::as_float32(t), outputs[i], samples, batch);
        };
        const tensor wanted = rows(expected[i]);
        const tensor given = rows(actual[i]);
        result.outputs[i].second.add(wanted.data<float>().first(count),
                                     given.data<float>().first(count));
      }
    }
    if (!expected.empty() && graph::fits_float(expected[0].type()) && expected[0].count() > 0 &&
        expected[0].count() % batch == 0) {
      const score_rows first(expected, outputs, samples, batch);
      const score_rows second(actual, outputs, samples, batch);
      for (std::size_t i = 0; i < (samples.is_one_per_run() ? first.rows : real); ++i) {
        const auto wanted = arg_max(first.data + i * first.columns, first.columns);
        const auto given = arg_max(second.data + i * second.columns, second.columns);
        result.agreed += wanted && wanted == given ? 1U : 0U;
        ++result.judged;
      }
    }
    bar.advance(at + real);
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    tensor_comparison& t = result.tensors[i];
    t.rescaled_snr = scales[i].snr_of_scaled(t.error.snr_db());
  }
  return result;
}

}  // namespace detent_cli
