// SPDX-License-Identifier: BSD-3-Clause
// Models that are too large for one file or for the memory: external data that is written,
// constants that wait in a file, and quantization that takes one weight at a time. The models here
// are small; what decides is set low.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#endif

#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/model/tensor_store.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>
#include <detent/solvers/hqq.hpp>
#include <detent/solvers/quantized_weights.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "temporary_folder.hpp"

namespace {

using namespace test;
namespace fs = std::filesystem;
using graph::weight_only_algorithm;
using graph::weight_only_options;

constexpr bool can_map = DETENT_HAS_FILE_MAPPING == 1;

/// Random bytes that are elements of this type.
tensor random_elements(random_source& r, element_type type, shape dims) {
  tensor t = tensor::allocate(type, std::move(dims));
  for (std::size_t i = 0; i < t.bytes(); ++i) {
    const auto byte = static_cast<unsigned>(r.integer(0, 255));
    t.mutable_raw()[i] = static_cast<std::byte>(type == element_type::boolean ? byte & 1U
                                                : type == element_type::u4    ? byte & 0xFU
                                                                              : byte);
  }
  return t;
}

/// A model that can be written but not run, with constants of all kinds, some in a sub-graph.
graph::model model_of_constants(random_source& r) {
  model_builder b;
  b.input("x", {1});
  b.constant("floats", random_floats(r, {40, 41}, -1.0F, 1.0F));
  b.constant("least", random_elements(r, element_type::u8, {1024}));
  b.constant("less", random_elements(r, element_type::u8, {1023}));
  b.constant("doubles", random_elements(r, element_type::s64, {3000}));
  b.constant("nibbles", random_elements(r, element_type::u4, {5001}));
  b.constant("flags", random_elements(r, element_type::boolean, {6000}));
  b.constant("none", floats({0, 5}, {}));
  b.scalar("scalar", 2.0F);
  model_builder branch;
  branch.constant("inner", random_floats(r, {500}, -1.0F, 1.0F));
  branch.output(branch.add("Identity", {"inner"}));
  b.constant("condition", make_tensor<std::uint8_t>(element_type::boolean, {}, {1}));
  b.output(b.add("If", {"condition"},
                 {{"then_branch", attribute::of(static_cast<graph::graph_body>(branch.get()))},
                  {"else_branch", attribute::of(static_cast<graph::graph_body>(branch.get()))}}));
  return b.get();
}

/// MatMul, Gemm with transposed weights, and MatMul, with more weights than are solved at a time:
/// 31 and 1 of the last rows are a part of their own.
graph::model layers(random_source& r) {
  model_builder b;
  b.input("x", {2, 300});
  b.constant("a", random_floats(r, {300, 1100}, -1.0F, 1.0F));
  b.constant("b", random_floats(r, {801, 1100}, -1.0F, 1.0F));
  b.constant("bias", random_floats(r, {801}, -1.0F, 1.0F));
  b.constant("c", random_floats(r, {801, 655}, -0.1F, 0.1F));
  const std::string first = b.add("MatMul", {"x", "a"});
  const std::string second = b.add("Gemm", {first, "b", "bias"}, {{"transB", number(1)}});
  b.output(b.add("MatMul", {second, "c"}));
  return b.get();
}

#if defined(__unix__) || defined(__APPLE__)
/// Lets files of this process grow to `bytes` only, while it lives.
class file_size_limit {
 public:
  explicit file_size_limit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit less = before_;
    less.rlim_cur = bytes;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &less) == 0);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;
  ~file_size_limit() {
    static_cast<void>(setrlimit(RLIMIT_FSIZE, &before_));
    static_cast<void>(std::signal(SIGXFSZ, handler_));
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};
#endif

}  // namespace

TEST_CASE("large models: a model that reaches the limit is written as two files") {
  random_source r(21);
  INFO("seed ", r.seed());
  const temporary_folder folder;
  const graph::model m = model_of_constants(r);
  const std::string one = graph::to_onnx(m);
  CHECK(graph::onnx_size(m) == one.size());
  const fs::path path = folder.path() / "m.onnx";
  const fs::path data = folder.path() / "m.onnx.data";

  // One byte below, and the bytes are those of to_onnx().
  graph::written_onnx written = graph::write_onnx(m, path, {.external_data_from = one.size() + 1});
  CHECK(written.model_bytes == one.size());
  CHECK(written.external.empty());
  CHECK(graph::read_file(path) == one);
  CHECK(folder.entries() == 1);

  written = graph::write_onnx(m, path, {.external_data_from = one.size()});
  CHECK(written.external == data);
  CHECK(written.external_bytes == fs::file_size(data));
  CHECK(written.model_bytes == fs::file_size(path));
  CHECK(folder.entries() == 2);
  const std::string text = graph::read_file(path);
  CHECK(text.size() < 4096);
  CHECK(text.find("m.onnx.data") != std::string::npos);
  for (const bool mapped : {true, false}) {
    const graph::model read = graph::read_onnx(path, {.map_external_data = mapped});
    CHECK(graph::to_onnx(read) == one);
    CHECK(read.initializer("floats")->is_mapped() == (mapped && can_map));
    // 6560, 1024, 24000, 2501, 6000 bytes, and 2000 of each branch.
    CHECK(read.external_bytes == 6560 + 1024 + 24000 + 2501 + 6000 + 2 * 2000);
    // A model that is a view of the files is written in their place.
    static_cast<void>(graph::write_onnx(read, path, {.external_data_from = 1}));
    CHECK(graph::to_onnx(read) == one);
    CHECK(graph::read_file(path) == text);
    CHECK(folder.entries() == 2);
  }
  // Nothing is large enough for the second file.
  model_builder small;
  small.output(small.add("Relu", {small.input("x", {1})}));
  CHECK(graph::write_onnx(small.get(), folder.path() / "small.onnx", {.external_data_from = 1})
            .external.empty());
  CHECK(folder.entries() == 3);
  check_graph_error(error_kind::invalid_argument, {"2147483649", "2147483648"}, [&] {
    static_cast<void>(
        graph::write_onnx(m, path, {.external_data_from = graph::onnx_file_limit + 1}));
  });
}

TEST_CASE("large models: what cannot be written leaves nothing and replaces nothing") {
  random_source r(22);
  INFO("seed ", r.seed());
  const graph::model m = model_of_constants(r);
  const auto two_files = [&](const fs::path& path) {
    static_cast<void>(graph::write_onnx(m, path, {.external_data_from = 1}));
  };
  {
    const temporary_folder folder;
    fs::create_directory(folder.path() / "m.onnx.data");
    check_graph_error(error_kind::io, {"cannot write", "m.onnx.data"},
                      [&] { two_files(folder.path() / "m.onnx"); });
    CHECK(folder.entries() == 1);
  }
  {
    const temporary_folder folder;
    fs::create_directory(folder.path() / "m.onnx");
    check_graph_error(error_kind::io, {"cannot write", "m.onnx"},
                      [&] { two_files(folder.path() / "m.onnx"); });
    CHECK(folder.entries() == 1);  // the data, which had its name already, is gone again
    folder.write("m.onnx.data", "of others");
    check_graph_error(error_kind::io, {"cannot write", "m.onnx"},
                      [&] { two_files(folder.path() / "m.onnx"); });
    CHECK(folder.entries() == 2);
  }
#if defined(__unix__) || defined(__APPLE__)
  {
    const temporary_folder folder;
    const fs::path path = folder.write("m.onnx", "before");
    const fs::path data = folder.write("m.onnx.data", "data before");
    for (const rlim_t limit : {rlim_t{0}, rlim_t{100}, rlim_t{20000}}) {
      const file_size_limit full(limit);
      check_graph_error(error_kind::io, {"cannot write", "m.onnx"}, [&] { two_files(path); });
      check_graph_error(error_kind::io, {"cannot write", "m.onnx"},
                        [&] { static_cast<void>(graph::write_onnx(m, path)); });
    }
    CHECK(graph::read_file(path) == "before");
    CHECK(graph::read_file(data) == "data before");
    CHECK(folder.entries() == 2);
    // A link is followed, and both files stand where it leads.
    const temporary_folder other;
    fs::create_symlink(path, other.path() / "link.onnx");
    two_files(other.path() / "link.onnx");
    CHECK(other.entries() == 1);
    CHECK(folder.entries() == 2);
    CHECK(graph::to_onnx(graph::read_onnx(path)) == graph::to_onnx(m));
    // A device has no place beside it.
    static_cast<void>(graph::write_onnx(m, "/dev/null", {.external_data_from = 1}));
    CHECK(!fs::exists("/dev/null.data"));
  }
#endif
}

TEST_CASE("large models: tensors in a store are the same, and its file has no name") {
  random_source r(23);
  INFO("seed ", r.seed());
  const temporary_folder folder;
  std::vector<tensor> made;
  std::vector<tensor> kept;
  {
    graph::tensor_store store(folder.path(), 20000);
    for (const std::int64_t count : {5000, 4095, 15000, 1, 4096, 4099, 70000, 0, 1 << 20}) {
      for (const element_type type : {element_type::u8, element_type::f32}) {
        made.push_back(random_elements(r, type, {count}));
        kept.push_back(store.keep(made.back()));
        CHECK(kept.back().has_form_of(made.back()));
        CHECK(folder.entries() == 0);
      }
    }
    // In memory are 5000 and 15000 bytes, which fill the room, and what is small.
    const auto is_mapped = [&](std::size_t i) { return kept[i].is_mapped(); };
    CHECK(!is_mapped(0));
    CHECK(is_mapped(1) == can_map);
    CHECK(!is_mapped(2));
    CHECK(is_mapped(3) == can_map);
    CHECK(!is_mapped(4));
    CHECK(is_mapped(5) == can_map);
    CHECK(!is_mapped(6));
    CHECK(is_mapped(8) == can_map);
    std::uint64_t in_file = 0;
    for (const tensor& t : kept) {
      in_file += t.is_mapped() ? t.bytes() : 0;
    }
    CHECK(store.bytes_in_file() == in_file);
    CHECK(store.keep(kept.back()).raw() == kept.back().raw());  // it is in the file already
    CHECK(store.keep(tensor(element_type::f32, {5000})).has_data() == false);
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    graph::release_pages(kept[i]);
    CHECK(std::equal(made[i].raw(), made[i].raw() + made[i].bytes(), kept[i].raw()));
    CHECK(reinterpret_cast<std::uintptr_t>(kept[i].raw()) % 8 == 0);
  }
  const tensor large = random_elements(r, element_type::u8, {10000});
  if (can_map) {
    graph::tensor_store nowhere(folder.path() / "nowhere", 0);
    check_graph_error(error_kind::io, {"temporary data", "nowhere"},
                      [&] { static_cast<void>(nowhere.keep(large)); });
#if defined(__unix__) || defined(__APPLE__)
    const file_size_limit full(1000);
    graph::tensor_store store(folder.path(), 0);
    check_graph_error(error_kind::io, {"cannot write temporary data", folder.path().string()},
                      [&] { static_cast<void>(store.keep(large)); });
    CHECK(folder.entries() == 0);
#endif
  }
}

TEST_CASE(
    "large models: weights-only quantization is the same in parts, in a file, by any threads") {
  random_source r(24);
  INFO("seed ", r.seed());
  const temporary_folder folder;
  const graph::model in_memory = layers(r);
  static_cast<void>(
      graph::write_onnx(in_memory, folder.path() / "m.onnx", {.external_data_from = 1}));
  const graph::model mapped = graph::read_onnx(folder.path() / "m.onnx");
  CHECK(mapped.initializer("a")->is_mapped() == can_map);
  struct form {
    std::size_t bits;
    bool symmetric;
    weight_only_algorithm algorithm;
  };
  for (const form& f :
       {form{4, false, weight_only_algorithm::rtn}, form{8, true, weight_only_algorithm::rtn},
        form{8, false, weight_only_algorithm::rtn}, form{4, false, weight_only_algorithm::hqq}}) {
    weight_only_options o{.bits = f.bits, .symmetric = f.symmetric, .algorithm = f.algorithm};
    o.hqq.iterations = 1;
    std::vector<double> objectives;
    o.on_layer = [&](const graph::weight_only_layer& l) {
      objectives.push_back(l.evidence.objective);
    };
    const std::string expected = graph::to_onnx(graph::quantize_weights_only(in_memory, o));
    const std::vector<double> expected_objectives = std::exchange(objectives, {});
    REQUIRE(expected_objectives.size() == 3);
    for (const std::size_t threads : {1U, 2U, 3U}) {
      detent::thread_pool pool(threads);
      o.executor.parallel = pool.parallel();
      graph::tensor_store store(folder.path(), 0);
      o.keep_constant = [&](tensor t) { return store.keep(std::move(t)); };
      const graph::model q = graph::quantize_weights_only(mapped, o);
      CHECK((store.bytes_in_file() > 0) == can_map);
      CHECK(graph::to_onnx(q) == expected);
      CHECK(std::exchange(objectives, {}) == expected_objectives);
      CHECK(folder.entries() == 2);
    }
  }
}

TEST_CASE("large models: the parts of a matrix have the codes of the whole one") {
  random_source r(25);
  INFO("seed ", r.seed());
  const graph::model m = layers(r);
  for (const auto algorithm : {weight_only_algorithm::rtn, weight_only_algorithm::hqq}) {
    weight_only_options o{.bits = 8, .block_size = 64, .algorithm = algorithm};
    o.hqq.iterations = 1;
    std::vector<graph::weight_only_layer> told;
    o.on_layer = [&](const graph::weight_only_layer& l) { told.push_back(l); };
    const graph::model q = graph::quantize_weights_only(m, o);
    REQUIRE(told.size() == 3);
    for (const graph::weight_only_layer& l : told) {
      const tensor& w = *m.initializer(l.weights);
      const detent::matrix_view<const float> stored(w.data<float>().data(),
                                                    static_cast<std::size_t>(w.dim(0)),
                                                    static_cast<std::size_t>(w.dim(1)));
      const detent::matrix_view<const float> whole =
          l.weights == "b" ? stored : stored.transposed();
      CHECK(whole.rows * whole.columns > std::size_t{1} << 18U);  // it has several parts
      detent::weight_format format;
      format.scheme = {detent::full_grid<std::int8_t>, false};
      format.group_size = 64;
      const detent::quantized_weights expected =
          algorithm == weight_only_algorithm::hqq
              ? detent::hqq(whole, format, o.hqq)
              : detent::round_to_nearest(
                    whole,
                    detent::gram_matrix::from_diagonal(std::vector<double>(whole.columns, 1.0)),
                    format);
      const auto codes = q.initializer(l.weights + "_quantized")->data<std::uint8_t>();
      const auto scales = q.initializer(l.weights + "_scales")->data<float>();
      const auto zeros = q.initializer(l.weights + "_zero_points")->data<std::uint8_t>();
      REQUIRE(scales.size() == expected.params.scales.size());
      CHECK(std::equal(scales.begin(), scales.end(), expected.params.scales.begin()));
      CHECK(std::equal(zeros.begin(), zeros.end(), expected.params.zero_points.begin(),
                       [](std::uint8_t z, std::int32_t e) { return z == e + 128; }));
      const std::size_t width = l.layout.row_bytes();
      std::size_t different = 0;
      for (std::size_t i = 0; i < expected.codes.size(); ++i) {
        const std::size_t at = i / whole.columns * width + i % whole.columns;
        different += codes[at] == expected.codes[i] + 128 ? 0U : 1U;
      }
      CHECK(different == 0);
      CHECK(std::fabs(l.evidence.objective - expected.evidence.objective) <=
            1e-9 * expected.evidence.objective);
      CHECK(std::fabs(l.evidence.nearest_objective - expected.evidence.nearest_objective) <=
            1e-9 * expected.evidence.nearest_objective);
      CHECK(l.evidence.kept_nearest == expected.evidence.kept_nearest);
      CHECK(l.evidence.iterations == expected.evidence.iterations);
      CHECK(l.evidence.converged == expected.evidence.converged);
    }
  }
}

TEST_CASE("large models: a weight that is not finite is named by its place in the matrix") {
  random_source r(26);
  INFO("seed ", r.seed());
  graph::model m = layers(r);
  // Row 700 of b as stored, which is an output; in c an output is a column.
  for (const auto& [name, at, row, column] :
       {std::tuple{"b", 700 * 1100 + 33, "row 700", "column 33"},
        std::tuple{"c", 33 * 655 + 654, "row 654", "column 33"}}) {
    graph::model bad = m;
    tensor w = floats(m.initializer(name)->dims(), values_of<float>(*m.initializer(name)));
    w.mutable_data<float>()[static_cast<std::size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
    bad.initializers[name] = w;
    for (const std::size_t threads : {1U, 2U}) {
      detent::thread_pool pool(threads);
      weight_only_options o;
      o.executor.parallel = pool.parallel();
      check_graph_error(error_kind::invalid_argument,
                        {"weights '" + std::string(name) + "'", row, column, "nan"},
                        [&] { static_cast<void>(graph::quantize_weights_only(bad, o)); });
    }
  }
}

TEST_CASE("large models: dynamic quantization is the same in a file, by any threads") {
  random_source r(27);
  INFO("seed ", r.seed());
  const temporary_folder folder;
  const graph::model in_memory = layers(r);
  static_cast<void>(
      graph::write_onnx(in_memory, folder.path() / "m.onnx", {.external_data_from = 1}));
  const graph::model mapped = graph::read_onnx(folder.path() / "m.onnx");
  for (const element_type type : {element_type::u8, element_type::s8}) {
    graph::dynamic_quantization_options o;
    o.weights.scale = graph::weight_scale::absmax;
    o.weight_type = type;
    const std::string expected = graph::to_onnx(graph::quantize_dynamic(in_memory, o));
    for (const std::size_t threads : {1U, 2U, 3U}) {
      detent::thread_pool pool(threads);
      o.executor.parallel = pool.parallel();
      graph::tensor_store store(folder.path(), 0);
      std::size_t constants = 0;
      o.keep_constant = [&](tensor t) {
        ++constants;
        return store.keep(std::move(t));
      };
      const graph::model q = graph::quantize_dynamic(mapped, o);
      CHECK(constants == 3);
      CHECK(graph::to_onnx(q) == expected);
      for (const char* name : {"a", "b", "c"}) {
        const tensor& codes = *q.initializer(std::string(name) + "_quantized");
        CHECK(codes.type() == type);
        CHECK(codes.is_mapped() == can_map);
      }
    }
  }
}

TEST_CASE("large models: a mapped model runs like a copied one") {
  random_source r(28);
  INFO("seed ", r.seed());
  const temporary_folder folder;
  const graph::model in_memory = layers(r);
  const fs::path path = folder.path() / "m.onnx";
  static_cast<void>(graph::write_onnx(in_memory, path, {.external_data_from = 1}));
  const tensor x = random_floats(r, {2, 300}, -1.0F, 1.0F);
  const auto run = [&](const graph::model& m) {
    graph::executor network(m);
    return values_of<float>(network.run({{"x", x}})[0]);
  };
  const std::vector<float> expected = run(in_memory);
  CHECK(run(graph::read_onnx(path)) == expected);
  CHECK(run(graph::read_onnx(path, {.map_external_data = false})) == expected);
}
