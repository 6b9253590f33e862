// SPDX-License-Identifier: BSD-3-Clause
// What fuzz targets do with a model: small limits, inputs and samples for it, runs, and writing it.
#ifndef DETENT_TESTS_FUZZ_HOSTILE_MODEL_HPP
#define DETENT_TESTS_FUZZ_HOSTILE_MODEL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

using tensors = std::map<std::string, tensor>;

/// A tensor with small values; nothing if it would be large, or has no whole bytes.
inline std::optional<tensor> small_values(element_type type, const graph::shape& dims) {
  if (graph::element_size(type) == 0 || tensor(type, dims).bytes() > std::size_t{1} << 20U) {
    return std::nullopt;
  }
  tensor t = tensor::allocate(type, dims);
  for (std::size_t i = 0; i < t.bytes(); ++i) {
    t.mutable_raw()[i] = static_cast<std::byte>(type == element_type::boolean ? i % 2 : 0);
  }
  if (type == element_type::f32) {
    for (std::size_t i = 0; i < t.count(); ++i) {
      t.mutable_data<float>()[i] = static_cast<float>(i % 13) - 6.0F;
    }
  }
  return t;
}

/// Inputs of the declared types and shapes, open dimensions taken as 2; nothing if they would be
/// large.
inline std::optional<tensors> inputs_for(const graph::model& m) {
  tensors inputs;
  for (const graph::value_info& v : m.inputs) {
    graph::shape dims = v.dims;
    for (std::int64_t& d : dims) {
      d = d < 0 ? 2 : d;
    }
    auto t = small_values(v.type == element_type::undefined ? element_type::f32 : v.type, dims);
    if (!t) {
      return std::nullopt;
    }
    inputs.emplace(v.name, std::move(*t));
  }
  return inputs;
}

/// The model without declared shapes and without the types of bytes, so that each run may have
/// others.
inline graph::model without_forms(graph::model m) {
  for (graph::value_info& v : m.inputs) {
    v.has_shape = false;
    v.dims.clear();
    v.params.clear();
    if (v.type == element_type::u8 || v.type == element_type::s8) {
      v.type = element_type::undefined;
    }
  }
  return m;
}

/// Inputs of another form than before: `axis` of each is one longer; bytes change their sign if
/// there is no such axis.
inline tensors of_another_form(const tensors& inputs, std::size_t axis) {
  tensors changed;
  for (const auto& [name, t] : inputs) {
    graph::shape dims = t.dims();
    element_type type = t.type();
    if (axis < dims.size()) {
      ++dims[axis];
    } else if (type == element_type::u8 || type == element_type::s8) {
      type = type == element_type::u8 ? element_type::s8 : element_type::u8;
    }
    changed.emplace(name, small_values(type, dims).value_or(t));
  }
  return changed;
}

/// What two executors made of the same inputs must be the same; NaN are equal.
inline void require_same(const std::vector<tensor>& kept, const std::vector<tensor>& fresh) {
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const tensor& a = kept[i];
    const tensor& b = fresh[i];
    if (a.type() != b.type() || a.dims() != b.dims()) {
      finding("another form", "after runs with other inputs");
    }
    bool same = true;
    if (a.type() == element_type::f32) {
      same = std::equal(a.data<float>().begin(), a.data<float>().end(), b.data<float>().begin(),
                        [](float x, float y) { return x == y || (x != x && y != y); });
    } else if (graph::element_size(a.type()) != 0 && a.type() != element_type::f16 &&
               a.type() != element_type::bf16 && a.type() != element_type::f64) {
      same = std::equal(a.raw(), a.raw() + a.bytes(), b.raw());
    }
    if (!same) {
      finding("other results", "after runs with other inputs");
    }
  }
}

/// Runs the model in one executor with inputs of several forms. A new executor must agree with it;
/// only bounds on memory and work may differ, which what was packed before does not count against.
inline void run_with_other_forms(const graph::model& m) {
  std::optional<tensors> declared;
  if (!harmless("make inputs", [&] { declared = inputs_for(m); }) || !declared) {
    return;
  }
  std::size_t bytes = 0;
  for (const auto& input : *declared) {
    bytes += input.second.bytes();
  }
  constexpr std::size_t quick = 4096;  // fourteen runs of larger inputs take too long
  if (bytes == 0 || bytes > quick) {
    return;
  }
  harmless("run with other forms", [&] {
    const graph::model open = graph::for_execution(without_forms(m));
    graph::executor kept(open, small_runs());
    std::vector<tensors> forms{*declared};
    for (std::size_t axis = 0; axis < 5; ++axis) {
      forms.push_back(of_another_form(*declared, axis));
    }
    forms.push_back(*declared);
    for (const tensors& inputs : forms) {
      std::vector<tensor> again;
      std::vector<tensor> once;
      const bool ran = harmless("run again", [&] { again = kept.run(inputs); });
      const bool runs = harmless("run once", [&] {
        graph::executor fresh(open, small_runs());
        once = fresh.run(inputs);
      });
      if (ran && runs) {
        require_same(again, once);
      }
    }
  });
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
