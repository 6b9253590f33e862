// SPDX-License-Identifier: BSD-3-Clause
// nncf::quantize() against what NNCF's package did with the same models and samples. The records
// are made by record_nncf.py, which says what their lines mean.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/model/files.hpp>
#include <detent/graph/nncf/nncf.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/run/executor.hpp>

#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "recorded_models.hpp"

namespace {

using namespace test;
namespace nncf = detent::graph::nncf;
using doctest::Approx;

/// A consumer of a value: the first output of a node, and the index of its input.
using consumer = std::pair<std::string, std::size_t>;

/// What a line of the records says.
struct recorded_case {
  std::string name;
  std::string file;
  std::string preset;
  std::string type;
  int samples = 0;
  float low = 0.0F;
  float high = 0.0F;
  struct activation {
    std::string value;
    std::string type;
    std::vector<double> scales;
    std::vector<std::int64_t> zero_points;
  };
  struct weights {
    std::size_t count = 0;
    std::string hash;
    double sum = 0.0;
  };
  std::map<consumer, activation> activations;
  std::map<consumer, weights> layers;
  std::map<consumer, std::vector<double>> biases;
};

/// A search for parameters, as NNCF did it.
struct recorded_search {
  recorded_case samples;  // those of calibration, and behind them those of validation
  int judged = 0;
  std::size_t subset = 0;
  std::vector<std::pair<double, std::string>> trials;  // metric, changed parameters
  std::string best;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}
std::vector<double> numbers(const std::string& text) {
  std::vector<double> values;
  for (const std::string& part : split(text)) {
    values.push_back(std::strtod(part.c_str(), nullptr));
  }
  return values;
}

/// The lines of searches, without those of cases.
std::vector<recorded_search> read_searches(const std::string& file) {
  std::vector<recorded_search> searches;
  std::istringstream lines(graph::read_file(file));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string kind;
    in >> kind;
    const auto rest = [&] {
      std::string text;
      std::getline(in >> std::ws, text);
      return text == "-" ? std::string() : text;
    };
    if (kind == "tune") {
      recorded_search& s = searches.emplace_back();
      recorded_case& c = s.samples;
      in >> c.name >> c.type >> c.samples >> s.judged >> s.subset >> c.low >> c.high;
      c.samples += s.judged;
    } else if (kind == "t") {
      std::string metric;
      in >> metric;
      searches.back().trials.emplace_back(std::strtod(metric.c_str(), nullptr), rest());
    } else if (kind == "best") {
      searches.back().best = rest();
    }
  }
  return searches;
}

bool is_of_search(const std::string& kind) {
  return kind == "tune" || kind == "t" || kind == "best";
}

std::vector<recorded_case> read_cases(const std::string& file) {
  std::vector<recorded_case> cases;
  std::istringstream lines(graph::read_file(file));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string kind;
    in >> kind;
    if (kind == "case") {
      recorded_case& c = cases.emplace_back();
      in >> c.name >> c.file >> c.preset >> c.type >> c.samples >> c.low >> c.high;
    } else if (kind != "#" && !is_of_search(kind)) {
      consumer key;
      in >> key.first >> key.second;
      if (kind == "q") {
        recorded_case::activation& a = cases.back().activations[key];
        std::string scales;
        std::string zero_points;
        in >> a.value >> a.type >> scales >> zero_points;
        a.scales = numbers(scales);
        for (const std::string& z : split(zero_points)) {
          a.zero_points.push_back(std::strtoll(z.c_str(), nullptr, 10));
        }
      } else if (kind == "w") {
        recorded_case::weights& w = cases.back().layers[key];
        std::string sum;
        in >> w.count >> w.hash >> sum;
        w.sum = std::strtod(sum.c_str(), nullptr);
      } else {
        std::string values;
        in >> values;
        cases.back().biases[key] = numbers(values);
      }
    }
  }
  return cases;
}

/// The samples of nncf_cases.py: floats in low .. high, integers in 0 .. high - 1.
std::vector<tensors> samples_of(const graph::model& m, const recorded_case& c) {
  std::vector<tensors> samples;
  for (int k = 0; k < c.samples; ++k) {
    tensors& sample = samples.emplace_back();
    for (std::size_t i = 0; i < m.inputs.size(); ++i) {
      graph::shape dims = m.inputs[i].dims;
      for (auto& d : dims) {
        d = d < 1 ? 1 : d;
      }
      graph::tensor t = graph::tensor::allocate(m.inputs[i].type, dims);
      std::uint32_t state =
          1U + 7919U * static_cast<std::uint32_t>(k) + static_cast<std::uint32_t>(i);
      for (std::size_t j = 0; j < t.count(); ++j) {
        state = 1664525U * state + 1013904223U;
        const float u = static_cast<float>(state >> 8) / 16777216.0F;
        if (t.type() == element_type::f32) {
          const float span = (c.high - c.low) * u;
          t.mutable_data<float>()[j] = c.low + span;
        } else {
          t.mutable_data<std::int64_t>()[j] = static_cast<std::int64_t>(std::floor(u * c.high));
        }
      }
      sample.emplace(m.inputs[i].name, std::move(t));
    }
  }
  return samples;
}

std::string hash_of(const std::vector<float>& scales) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (const float s : scales) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &s, sizeof bits);
    for (int k = 0; k < 4; ++k) {  // the lowest byte first, as in a file
      value = (value ^ ((bits >> (8 * k)) & 0xFFU)) * 0x100000001B3U;
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

/// The name of a value; that of a product that SmoothQuant has inserted is made of what it takes.
std::string canonical(const graph::model& m, const std::set<std::string>& original,
                      const std::string& value) {
  if (original.count(value) != 0) {
    return value;
  }
  const std::size_t maker = graph::links(m).producer(value);
  REQUIRE(maker != graph::links::none);
  return "smooth(" + canonical(m, original, m.nodes[maker].inputs[0]) + ")";
}

/// The consumers of what a quantizer makes.
std::vector<consumer> consumers_of(const graph::model& m, const std::set<std::string>& original,
                                   const nncf::placed_quantizer& q) {
  std::vector<consumer> found;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    for (std::size_t k = 0; k < m.nodes[i].inputs.size(); ++k) {
      if (m.nodes[i].inputs[k] == q.value && (!q.only || q.only->node == i)) {
        found.emplace_back(canonical(m, original, m.nodes[i].outputs[0]), k);
      }
    }
  }
  return found;
}

/// The tolerance is a tenth of what NNCF's own tests of bias correction allow.
void check_biases(const nncf::quantization& q, const recorded_case& c) {
  for (const auto& [at, before] : q.biases_before) {
    const graph::node& n = q.float_model.nodes[at.node];
    INFO("bias of ", n.outputs[0]);
    const auto expected = c.biases.find({n.outputs[0], at.input});
    REQUIRE(expected != c.biases.end());
    const graph::tensor& bias = q.float_model.initializers.at(n.inputs[at.input]);
    for (std::size_t i = 0; i < expected->second.size(); ++i) {
      CHECK(std::fabs(static_cast<double>(bias.data<float>()[i]) - expected->second[i]) <= 1e-5);
    }
  }
  CHECK(q.biases_before.size() == c.biases.size());
}

/// Whether a result is that of a MatMul whose right side has other dimensions than a matrix.
bool is_no_matrix(const graph::model& m, const std::string& result) {
  const graph::node* n = producer(m, result);
  const graph::tensor* w = n != nullptr && n->is("MatMul") ? m.initializer(n->inputs[1]) : nullptr;
  return w != nullptr && w->rank() != 2;
}

void check_case(const graph::model& m, const recorded_case& c) {
  INFO(c.name, " ", c.preset, " ", c.type);
  const nncf::quantization q = nncf::quantize(
      m, nncf::dataset(samples_of(m, c)),
      {.preset = c.preset == "mixed" ? nncf::preset::mixed : nncf::preset::performance,
       .model_type =
           c.type == "transformer" ? nncf::model_type::transformer : nncf::model_type::none});
  const std::set<std::string> original = graph::value_names(m);
  std::set<consumer> activations;
  std::set<consumer> layers;
  for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
    const nncf::quantizer_parameters& p = q.parameters[k];
    for (const consumer& at : consumers_of(q.float_model, original, q.quantizers[k])) {
      INFO(at.first, " input ", at.second, " reads ", q.quantizers[k].value);
      if (q.quantizers[k].weights_of) {
        layers.insert(at);
        const auto expected = c.layers.find(at);
        REQUIRE(expected != c.layers.end());
        if (m.initializers.count(q.quantizers[k].value) != 0 && at.second == 1 &&
            is_no_matrix(m, at.first)) {
          CHECK(p.scales.size() == 1);  // ONNX Runtime takes no more
          continue;
        }
        CHECK(p.scales.size() == expected->second.count);
        if (c.type == "none") {
          CHECK(hash_of(p.scales) == expected->second.hash);
        }
        double sum = 0.0;
        for (const float s : p.scales) {
          sum += static_cast<double>(s);
        }
        CHECK(sum == Approx(expected->second.sum).epsilon(2e-6));
        continue;
      }
      activations.insert(at);
      const auto expected = c.activations.find(at);
      REQUIRE(expected != c.activations.end());
      CHECK(canonical(q.float_model, original, q.quantizers[k].value) == expected->second.value);
      CHECK((p.type == element_type::s8 ? "int8" : "uint8") == expected->second.type);
      REQUIRE(p.scales.size() == expected->second.scales.size());
      const bool is_input =
          std::any_of(m.inputs.begin(), m.inputs.end(),
                      [&](const graph::value_info& v) { return v.name == q.quantizers[k].value; });
      const auto largest = static_cast<double>(*std::max_element(p.scales.begin(), p.scales.end()));
      for (std::size_t s = 0; s < p.scales.size(); ++s) {
        const double difference = static_cast<double>(p.scales[s]) - expected->second.scales[s];
        CHECK(std::fabs(difference) <= (is_input ? 0.0 : 2e-6 * largest));
        CHECK(p.zero_points[s] == expected->second.zero_points[s]);
      }
    }
  }
  CHECK(activations.size() == c.activations.size());
  CHECK(layers.size() == c.layers.size());
  check_biases(q, c);
}

std::string text_of(const nncf::changed_parameters& changed) {
  std::string text;
  for (const auto& [name, value] : changed) {
    text += (text.empty() ? "" : ";") + name + "=" + value;
  }
  return text;
}

/// 1 - the mean of the absolute errors of a model's outputs.
class closeness {
 public:
  explicit closeness(const graph::model& m) : exact_(m) {}

  double operator()(const graph::model& m, const graph::calibration_source& samples) {
    graph::executor tried(m);
    double sum = 0.0;
    std::size_t count = 0;
    while (const auto inputs = samples()) {
      const std::vector<graph::tensor> a = exact_.run(*inputs);
      const std::vector<graph::tensor> b = tried.run(*inputs);
      for (std::size_t k = 0; k < a.size(); ++k) {
        double errors = 0.0;
        for (std::size_t i = 0; i < a[k].count(); ++i) {
          errors += std::fabs(static_cast<double>(a[k].data<float>()[i]) -
                              static_cast<double>(b[k].data<float>()[i]));
        }
        sum += errors / static_cast<double>(a[k].count()) / static_cast<double>(a.size());
      }
      ++count;
    }
    return 1.0 - sum / static_cast<double>(count);
  }

 private:
  graph::executor exact_;
};

/// The same models are tried in the same order, and one in a hundred of the error may differ: what
/// rounds up here and down there.
void check_search(const graph::model& m, const recorded_search& expected) {
  INFO(expected.samples.name, " ", expected.samples.type);
  std::vector<tensors> calibration = samples_of(m, expected.samples);
  const std::vector<tensors> judged(calibration.end() - expected.judged, calibration.end());
  calibration.resize(calibration.size() - judged.size());
  closeness measured(m);
  const nncf::validation_function validate = std::ref(measured);
  nncf::quantize_options options{.subset_size = expected.subset};
  if (expected.samples.type == "transformer") {
    options.model_type = nncf::model_type::transformer;
  }
  const auto result = nncf::quantize_with_accuracy_control(
      m, nncf::dataset(calibration), nncf::dataset(judged), validate, options,
      {.goal = {.max_drop = 0.0}, .max_iterations = 1, .tune_hyperparams = true});
  REQUIRE(result.tuning_trials.size() == expected.trials.size());
  for (std::size_t i = 0; i < expected.trials.size(); ++i) {
    const double metric = expected.trials[i].first;
    const std::string& changed = expected.trials[i].second;
    INFO("trial ", i, ": ", changed);
    CHECK(text_of(result.tuning_trials[i].changed) == changed);
    CHECK(1.0 - result.tuning_trials[i].metric == Approx(1.0 - metric).epsilon(0.01));
  }
  CHECK(text_of(result.tuned) == expected.best);
}

/// A model of the repository or of the shared folder; nothing if it is not here.
std::optional<graph::model> model_of(const std::string& file) {
  const std::filesystem::path here = std::filesystem::path(__FILE__).parent_path();
  const char* shared = std::getenv("DETENT_SHARED");
  const std::filesystem::path path =
      file == "digits.onnx"
          ? here / "../../examples/digits" / file
          : (shared != nullptr ? std::filesystem::path(shared) : here / "../../../shared") /
                "models" / file;
  if (!std::filesystem::exists(path)) {
    const char* ci = std::getenv("CI");
    REQUIRE_MESSAGE((ci == nullptr || std::string(ci) != "true"), "no file ", path.string());
    MESSAGE("skipped: no file ", path.string());
    return {};
  }
  return graph::read_onnx(path);
}

}  // namespace

TEST_CASE("nncf::quantize: quantizers, scales and biases as NNCF has them") {
  std::map<std::string, graph::model> models;
  const std::size_t count =
      for_each_recorded_model(DETENT_TEST_RECORDED_NNCF_MODELS, [&](graph::model m) {
        const std::string name = m.graph_name;
        models.emplace(name, std::move(m));
      });
  CHECK(count == models.size());
  const std::vector<recorded_case> cases = read_cases(DETENT_TEST_RECORDED_NNCF);
  CHECK(cases.size() > 50);
  for (const recorded_case& c : cases) {
    if (c.file != "-" && models.count(c.name) == 0) {
      if (auto m = model_of(c.file)) {
        models.emplace(c.name, std::move(*m));
      }
    }
    const auto m = models.find(c.name);
    if (m != models.end()) {
      check_case(m->second, c);
    } else {
      CHECK(c.file != "-");
    }
  }
}

TEST_CASE("nncf::tune_hyperparams: the order of trials and the parameters as NNCF has them") {
  std::map<std::string, graph::model> models;
  static_cast<void>(for_each_recorded_model(DETENT_TEST_RECORDED_NNCF_MODELS, [&](graph::model m) {
    const std::string name = m.graph_name;
    models.emplace(name, std::move(m));
  }));
  const std::vector<recorded_search> searches = read_searches(DETENT_TEST_RECORDED_NNCF);
  CHECK(searches.size() == 2);
  for (const recorded_search& s : searches) {
    check_search(models.at(s.samples.name), s);
  }
}
