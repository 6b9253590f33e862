// SPDX-License-Identifier: BSD-3-Clause
// Reading and writing ONNX files: what is right comes through unchanged, what is wrong is one
// detent::error, whatever the bytes.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#endif

#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

#include "check_graph_error.hpp"
#include "compare.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
namespace graph = detent::graph;
using detent::error_kind;
using graph::element_type;
using graph::shape;
using graph::tensor;
using test::check_graph_error;
using test::temporary_folder;

// ----------------------------------------------------------------- a writer apart from the
// library's

using fields = protozero::pbf_writer;

/// A protobuf message; the numbers of its fields are those of onnx.proto.
std::string message(const std::function<void(fields&)>& fill) {
  std::string bytes;
  fields writer(bytes);
  fill(writer);
  return bytes;
}

std::string tensor_message(const std::string& name, element_type type, const shape& dims,
                           const std::function<void(fields&)>& elements) {
  return message([&](fields& w) {
    for (const std::int64_t d : dims) {
      w.add_int64(1, d);
    }
    w.add_int32(2, static_cast<std::int32_t>(type));
    w.add_string(8, name);
    elements(w);
  });
}

std::string value_message(const std::string& name, element_type type, const shape& dims) {
  return message([&](fields& value) {
    value.add_string(1, name);
    value.add_message(2, message([&](fields& t) {
                        t.add_message(1, message([&](fields& tensor_type) {
                                        tensor_type.add_int32(1, static_cast<std::int32_t>(type));
                                        tensor_type.add_message(
                                            2, message([&](fields& dimensions) {
                                              for (const std::int64_t d : dims) {
                                                dimensions.add_message(1, message([&](fields& w) {
                                                                         w.add_int64(1, d);
                                                                       }));
                                              }
                                            }));
                                      }));
                      }));
  });
}

std::string node_message(const std::string& op, const std::vector<std::string>& inputs,
                         const std::vector<std::string>& outputs, const std::string& name = "") {
  return message([&](fields& w) {
    for (const std::string& input : inputs) {
      w.add_string(1, input);
    }
    for (const std::string& output : outputs) {
      w.add_string(2, output);
    }
    w.add_string(3, name);
    w.add_string(4, op);
  });
}

struct graph_parts {
  std::vector<std::string> nodes, initializers, inputs, outputs;

  [[nodiscard]] std::string model() const {
    return message([&](fields& w) {
      w.add_int64(1, 8);
      w.add_message(7, message([&](fields& g) {
                      for (const std::string& n : nodes) {
                        g.add_message(1, n);
                      }
                      g.add_string(2, "graph");
                      for (const std::string& t : initializers) {
                        g.add_message(5, t);
                      }
                      for (const std::string& v : inputs) {
                        g.add_message(11, v);
                      }
                      for (const std::string& v : outputs) {
                        g.add_message(12, v);
                      }
                    }));
      w.add_message(8, message([](fields& opset) { opset.add_int64(2, 17); }));
    });
  }
};

/// y = Relu(x), to which each test adds what it is about.
graph_parts relu_model() {
  graph_parts parts;
  parts.nodes = {node_message("Relu", {"x"}, {"y"}, "relu")};
  parts.inputs = {value_message("x", element_type::f32, {2, 3})};
  parts.outputs = {value_message("y", element_type::f32, {2, 3})};
  return parts;
}

graph::model read_with(const temporary_folder& folder, const std::string& initializer,
                       const graph::read_limits& limits = {}) {
  graph_parts parts = relu_model();
  parts.initializers = {initializer};
  return graph::read_onnx(folder.write("model.onnx", parts.model()), limits);
}

void check_rejected(const graph_parts& parts, error_kind kind,
                    std::initializer_list<std::string_view> words) {
  const temporary_folder folder;
  const fs::path path = folder.write("model.onnx", parts.model());
  check_graph_error(kind, words, [&] { static_cast<void>(graph::read_onnx(path)); });
  check_graph_error(kind, {path.string() + ": "},
                    [&] { static_cast<void>(graph::read_onnx(path)); });
}

void check_initializer_rejected(const std::string& initializer, error_kind kind,
                                std::initializer_list<std::string_view> words) {
  graph_parts parts = relu_model();
  parts.initializers = {initializer};
  check_rejected(parts, kind, words);
}

/// What the elements of a tensor are, whatever their type.
std::string bytes_of(const tensor& t) {
  return {reinterpret_cast<const char*>(t.raw()), t.bytes()};
}

std::vector<std::string> strings_of(const tensor& t) {
  return {t.strings().begin(), t.strings().end()};
}

constexpr element_type all_types[] = {element_type::f32,  element_type::u8,      element_type::s8,
                                      element_type::u16,  element_type::s16,     element_type::s32,
                                      element_type::s64,  element_type::boolean, element_type::f16,
                                      element_type::f64,  element_type::u32,     element_type::u64,
                                      element_type::bf16, element_type::u4,      element_type::s4};

tensor random_tensor(test::random_source& r, element_type type, shape dims) {
  tensor t = tensor::allocate(type, std::move(dims));
  for (std::size_t i = 0; i < t.bytes(); ++i) {
    auto byte = static_cast<std::uint8_t>(r.bits());
    if (type == element_type::boolean) {
      byte &= 1U;
    } else if (type == element_type::u4) {
      byte &= 15U;
    } else if (type == element_type::s4) {
      byte = static_cast<std::uint8_t>((byte & 15) - 8);
    }
    t.mutable_raw()[i] = std::byte{byte};
  }
  return t;
}

void check_same_tensor(const tensor& actual, const tensor& expected) {
  CHECK(actual.type() == expected.type());
  CHECK(actual.dims() == expected.dims());
  REQUIRE(actual.has_data() == expected.has_data());
  CHECK(bytes_of(actual) == bytes_of(expected));
  CHECK(actual.has_strings() == expected.has_strings());
  CHECK(strings_of(actual) == strings_of(expected));
}

void check_same_values(const std::vector<graph::value_info>& actual,
                       const std::vector<graph::value_info>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    CHECK(actual[i].name == expected[i].name);
    CHECK(actual[i].type == expected[i].type);
    CHECK(actual[i].has_shape == expected[i].has_shape);
    CHECK(actual[i].dims == expected[i].dims);
    CHECK(actual[i].params == expected[i].params);
  }
}

void check_same_model(const graph::model& actual, const graph::model& expected) {
  CHECK(actual.ir_version == expected.ir_version);
  CHECK(actual.producer_name == expected.producer_name);
  CHECK(actual.producer_version == expected.producer_version);
  CHECK(actual.doc == expected.doc);
  CHECK(actual.opsets == expected.opsets);
  CHECK(actual.metadata == expected.metadata);
  CHECK(actual.graph_name == expected.graph_name);
  check_same_values(actual.inputs, expected.inputs);
  check_same_values(actual.outputs, expected.outputs);
  check_same_values(actual.values, expected.values);
  REQUIRE(actual.initializers.size() == expected.initializers.size());
  for (const auto& initializer : expected.initializers) {
    const std::string& name = initializer.first;  // clang 14 cannot capture structured bindings
    const tensor& t = initializer.second;
    INFO("initializer ", name);
    REQUIRE(actual.initializer(name) != nullptr);
    check_same_tensor(*actual.initializer(name), t);
  }
  REQUIRE(actual.nodes.size() == expected.nodes.size());
  for (std::size_t i = 0; i < actual.nodes.size(); ++i) {
    const graph::node& a = actual.nodes[i];
    const graph::node& e = expected.nodes[i];
    CHECK(a.name == e.name);
    CHECK(a.op_type == e.op_type);
    CHECK(a.domain == e.domain);
    CHECK(a.inputs == e.inputs);
    CHECK(a.outputs == e.outputs);
    REQUIRE(a.attributes.size() == e.attributes.size());
    for (const auto& entry : e.attributes) {
      const std::string& key = entry.first;
      const graph::attribute& value = entry.second;
      INFO("attribute ", key);
      const graph::attribute* found = a.find(key);
      REQUIRE(found != nullptr);
      CHECK(found->kind == value.kind);
      CHECK(found->i == value.i);
      CHECK(test::same(found->f, value.f));
      CHECK(found->s == value.s);
      CHECK(found->ints == value.ints);
      CHECK(test::difference(found->floats, value.floats) == "");
      CHECK(found->strings == value.strings);
      CHECK(found->t.defined() == value.t.defined());
      if (value.t.defined()) {
        check_same_tensor(found->t, value.t);
      }
    }
  }
}

/// A model that uses everything that a file can say.
graph::model rich_model(test::random_source& r) {
  test::model_builder b(17);
  graph::model& m = b.get();
  m.producer_name = "a test";
  m.producer_version = "1.2.3";
  m.doc = "two\nlines";
  m.opsets["com.microsoft"] = 1;
  m.metadata = {{"key", "value"}, {"empty", ""}};
  for (const element_type type : all_types) {
    for (const shape& dims : {shape{}, shape{5}, shape{2, 0, 3}, shape{1, 3, 3}}) {
      b.constant("t_" + graph::name(type) + graph::to_string(dims), random_tensor(r, type, dims));
    }
  }
  b.constant("strings", tensor::of_strings({3, 1}, {"one", "", std::string("\0\xFF", 2)}));
  b.constant("no_strings", tensor::of_strings({0, 2}, {}));
  b.input("x", {-1, 3, -1, 7});
  m.inputs[0].params = {"batch", "", "", ""};
  b.input("of_any_shape", {});
  m.inputs[1].has_shape = false;
  b.input("scalar", {}, element_type::s64);

  graph::node n;
  n.name = "everything";
  n.op_type = "Custom";
  n.domain = "com.microsoft";
  n.inputs = {"x", "", "scalar"};
  n.outputs = {"a", "", "b"};
  n.attributes["f"] = graph::attribute::of(-0.0F);
  n.attributes["nan"] = graph::attribute::of(std::numeric_limits<float>::quiet_NaN());
  n.attributes["i"] = graph::attribute::of(std::numeric_limits<std::int64_t>::min());
  n.attributes["s"] = test::text(std::string("with \0 in it", 12));
  n.attributes["ints"] = graph::attribute::of(std::vector<std::int64_t>{-1, 0, 1});
  n.attributes["no_ints"] = graph::attribute::of(std::vector<std::int64_t>{});
  n.attributes["floats"].kind = graph::attribute::kind_type::floats;
  n.attributes["floats"].floats = {1.5F, -2.5F};
  n.attributes["strings"].kind = graph::attribute::kind_type::strings;
  n.attributes["strings"].strings = {"one", "", "three"};
  n.attributes["t"].kind = graph::attribute::kind_type::t;
  n.attributes["t"].t = random_tensor(r, element_type::s4, {3});
  n.attributes["t_of_strings"].kind = graph::attribute::kind_type::t;
  n.attributes["t_of_strings"].t = tensor::of_strings({}, {"only"});
  m.nodes.push_back(std::move(n));
  b.add("Relu", {"a"});
  m.values.push_back({"a", element_type::f32, true, {-1, 2}, {"batch", ""}});
  b.output("Relu_1_out");
  b.output("b", element_type::undefined);
  return m;
}

}  // namespace

TEST_CASE("onnx: a model that is written is read back as it was") {
  test::random_source r(1);
  INFO("seed ", r.seed());
  const temporary_folder folder;
  const graph::model m = rich_model(r);
  const fs::path path = folder.path() / "model.onnx";
  graph::write_onnx(m, path);
  CHECK(folder.entries() == 1);
  const graph::model again = graph::read_onnx(path);
  check_same_model(again, m);
  CHECK(graph::to_onnx(again) == graph::to_onnx(m));
}

TEST_CASE("onnx: writing replaces a file at once, or leaves all as it was") {
  test::random_source r(2);
  const temporary_folder folder;
  const graph::model m = rich_model(r);
  const fs::path path = folder.write("model.onnx", "older");
  graph::write_onnx(m, path);
  CHECK(folder.entries() == 1);
  check_same_model(graph::read_onnx(path), m);

  check_graph_error(error_kind::io, {"missing"},
                    [&] { graph::write_onnx(m, folder.path() / "missing" / "model.onnx"); });
  CHECK(folder.entries() == 1);

  // The rename fails: a folder that is not empty has the name.
  folder.write("taken/file", "content");
  check_graph_error(error_kind::io, {"taken"},
                    [&] { graph::write_onnx(m, folder.path() / "taken"); });
  CHECK(folder.entries() == 2);

  // What cannot be written is found before anything is.
  graph::model odd = m;
  odd.nodes[0].attributes["sub"].kind = graph::attribute::kind_type::g;
  check_graph_error(error_kind::unsupported, {"everything", "sub"},
                    [&] { graph::write_onnx(odd, folder.path() / "odd.onnx"); });
  CHECK(folder.entries() == 2);
}

TEST_CASE("onnx: elements in typed fields, packed or not, and raw are the same tensor") {
  test::random_source r(3);
  INFO("seed ", r.seed());
  const temporary_folder folder;
  for (const element_type type : all_types) {
    for (const shape& dims : {shape{}, shape{3}, shape{0}, shape{2, 3}}) {
      INFO(graph::name(type), " ", graph::to_string(dims));
      const tensor t = random_tensor(r, type, dims);
      const auto as = [&]<class T>(std::type_identity<T>) { return test::values_of<T>(t); };
      // Field number and elements as that field stores them.
      std::vector<float> f;
      std::vector<double> d;
      std::vector<std::int32_t> i32;
      std::vector<std::int64_t> i64;
      std::vector<std::uint64_t> u64;
      const auto fill = [](auto& to, const auto& from) { to.assign(from.begin(), from.end()); };
      switch (type) {
        case element_type::f32:
          f = as(std::type_identity<float>{});
          break;
        case element_type::f64:
          d = as(std::type_identity<double>{});
          break;
        case element_type::s64:
          i64 = as(std::type_identity<std::int64_t>{});
          break;
        case element_type::u64:
          u64 = as(std::type_identity<std::uint64_t>{});
          break;
        case element_type::u32:
          fill(u64, as(std::type_identity<std::uint32_t>{}));
          break;
        case element_type::s32:
          i32 = as(std::type_identity<std::int32_t>{});
          break;
        case element_type::s16:
          fill(i32, as(std::type_identity<std::int16_t>{}));
          break;
        case element_type::u16:
        case element_type::f16:
        case element_type::bf16:
          fill(i32, as(std::type_identity<std::uint16_t>{}));
          break;
        case element_type::s8:
          fill(i32, as(std::type_identity<std::int8_t>{}));
          break;
        case element_type::u8:
        case element_type::boolean:
          fill(i32, as(std::type_identity<std::uint8_t>{}));
          break;
        default: {  // 4 bits: two in each byte, the first one in the lower half
          const auto values = as(std::type_identity<std::uint8_t>{});
          i32.resize((values.size() + 1) / 2);
          for (std::size_t i = 0; i < values.size(); ++i) {
            i32[i / 2] |= (values[i] & 15) << (i % 2 * 4);
          }
        }
      }
      const auto packed = [&](fields& w) {
        w.add_packed_float(4, f.begin(), f.end());
        w.add_packed_int32(5, i32.begin(), i32.end());
        w.add_packed_int64(7, i64.begin(), i64.end());
        w.add_packed_double(10, d.begin(), d.end());
        w.add_packed_uint64(11, u64.begin(), u64.end());
      };
      const auto single = [&](fields& w) {
        for (const float v : f) {
          w.add_float(4, v);
        }
        for (const std::int32_t v : i32) {
          w.add_int32(5, v);
        }
        for (const std::int64_t v : i64) {
          w.add_int64(7, v);
        }
        for (const double v : d) {
          w.add_double(10, v);
        }
        for (const std::uint64_t v : u64) {
          w.add_uint64(11, v);
        }
      };
      const auto raw = [&](fields& w) {
        std::string bytes = bytes_of(t);
        if (type == element_type::u4 || type == element_type::s4) {
          bytes.assign(i32.begin(), i32.end());
        }
        w.add_bytes(9, bytes);
      };
      for (const std::function<void(fields&)>& elements :
           {std::function<void(fields&)>(packed), std::function<void(fields&)>(single),
            std::function<void(fields&)>(raw)}) {
        const std::string bytes = tensor_message("t", type, dims, elements);
        const graph::model m = read_with(folder, bytes);
        REQUIRE(m.initializer("t") != nullptr);
        check_same_tensor(*m.initializer("t"), t);
        const fs::path path = folder.write("t.pb", bytes);
        check_same_tensor(graph::read_onnx_tensor(path), t);
      }
    }
  }
}

TEST_CASE("onnx: packed dimensions, and attributes without a declared type") {
  const temporary_folder folder;
  const std::string t = message([](fields& w) {
    const std::vector<std::int64_t> dims{2, 2};
    w.add_packed_int64(1, dims.begin(), dims.end());
    w.add_int32(2, 3);
    w.add_string(8, "t");
    w.add_bytes(9, "abcd");
  });
  CHECK(read_with(folder, t).initializer("t")->dims() == shape{2, 2});

  graph_parts parts = relu_model();
  parts.nodes = {node_message("Relu", {"x"}, {"y"}) + message([](fields& w) {
                   w.add_message(5, message([](fields& a) {
                                   const std::vector<std::int64_t> values{4, 5};
                                   a.add_string(1, "packed");
                                   a.add_packed_int64(8, values.begin(), values.end());
                                 }));
                   w.add_message(5, message([](fields& a) {
                                   a.add_string(1, "single");
                                   a.add_int64(3, -7);
                                 }));
                   w.add_string(7, "ai.onnx");
                 })};
  const graph::model m = graph::read_onnx(folder.write("model.onnx", parts.model()));
  CHECK(m.nodes[0].get_ints("packed") == std::vector<std::int64_t>{4, 5});
  CHECK(m.nodes[0].get_int("single", 0) == -7);
  CHECK(m.nodes[0].is("Relu"));
}

TEST_CASE("onnx: initializers that are inputs too are constants") {
  const temporary_folder folder;
  graph_parts parts = relu_model();
  parts.nodes = {node_message("Add", {"x", "w"}, {"y"})};
  parts.inputs.push_back(value_message("w", element_type::f32, {1}));
  parts.initializers = {
      tensor_message("w", element_type::f32, {1}, [](fields& w) { w.add_float(4, 2.5F); })};
  const graph::model m = graph::read_onnx(folder.write("model.onnx", parts.model()));
  CHECK(m.inputs.size() == 1);
  CHECK(m.initializers.size() == 1);
}

TEST_CASE("onnx: inputs of a sub-graph that are initializers too are constants") {
  // Up to version 3 of the format every initializer is an input; the node gives no value for it.
  const std::string body = message([](fields& g) {
    g.add_message(1, node_message("Add", {"a", "c"}, {"sum"}));
    g.add_message(1, node_message("Identity", {"goes"}, {"still"}));
    g.add_string(2, "body");
    g.add_message(
        5, tensor_message("c", element_type::f32, {1}, [](fields& w) { w.add_float(4, 10.0F); }));
    g.add_message(11, value_message("i", element_type::s64, {}));
    g.add_message(11, value_message("goes", element_type::boolean, {}));
    g.add_message(11, value_message("a", element_type::f32, {1}));
    g.add_message(11, value_message("c", element_type::f32, {1}));
    g.add_message(12, value_message("still", element_type::boolean, {}));
    g.add_message(12, value_message("sum", element_type::f32, {1}));
  });
  graph_parts parts;
  parts.nodes = {node_message("Loop", {"count", "", "x"}, {"y"}) + message([&](fields& w) {
                   w.add_message(5, message([&](fields& a) {
                                   a.add_string(1, "body");
                                   a.add_message(6, body);
                                   a.add_int32(20, 5);
                                 }));
                 })};
  parts.initializers = {
      tensor_message("count", element_type::s64, {}, [](fields& w) { w.add_int64(7, 2); })};
  parts.inputs = {value_message("x", element_type::f32, {1})};
  parts.outputs = {value_message("y", element_type::f32, {1})};
  graph::model m = graph::parse_onnx(parts.model(), ".");
  CHECK(m.nodes[0].find("body")->g->inputs.size() == 3);
  m = graph::parse_onnx(graph::to_onnx(m), ".");
  graph::executor runner(m);
  const auto result = runner.run({{"x", test::floats({1}, {1.0F})}});
  CHECK(test::values_of<float>(result[0]) == std::vector<float>{21.0F});
}

// -------------------------------------------------------------------------------------- external
// data

namespace {

using entries = std::vector<std::pair<std::string, std::string>>;

/// 3 floats that are in another file.
std::string external(const entries& where, element_type type = element_type::f32,
                     const shape& dims = {3}) {
  return tensor_message("weights", type, dims, [&](fields& w) {
    for (const auto& pair : where) {
      w.add_message(13, message([&](fields& entry) {
                      entry.add_string(1, pair.first);
                      entry.add_string(2, pair.second);
                    }));
    }
    w.add_int32(14, 1);
  });
}

}  // namespace

TEST_CASE("onnx: external data") {
  const temporary_folder folder;
  const std::vector<float> values{1.0F, 2.0F, 3.0F, 4.0F, 5.0F};
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  folder.write("data.bin", bytes);
  folder.write("below/data.bin", bytes);
  folder.write("short.bin", bytes.substr(0, 11));

  const auto read = [&](const entries& where) {
    const graph::model m = read_with(folder, external(where));
    CHECK(m.external_bytes == 12);
    return test::values_of<float>(*m.initializer("weights"));
  };
  const auto rejected = [&](const entries& where, error_kind kind,
                            std::initializer_list<std::string_view> words) {
    check_graph_error(kind, {"weights"}, [&] { static_cast<void>(read(where)); });
    check_graph_error(kind, words, [&] { static_cast<void>(read(where)); });
  };
  CHECK(read({{"location", "data.bin"}}) == std::vector<float>{1, 2, 3});
  CHECK(read({{"location", "below/data.bin"}, {"offset", "4"}}) == std::vector<float>{2, 3, 4});
  CHECK(read({{"location", "./data.bin"}, {"offset", "8"}, {"length", "12"}}) ==
        std::vector<float>{3, 4, 5});
  CHECK(read({{"location", "data.bin"}, {"checksum", "ignored"}}).size() == 3);

  rejected({{"location", "missing.bin"}}, error_kind::io, {"missing.bin"});
  rejected({{"location", "data.bin"}, {"offset", "9"}}, error_kind::bad_file, {"data.bin", "20"});
  rejected({{"location", "data.bin"}, {"offset", "1000"}}, error_kind::bad_file, {"1000"});
  rejected({{"location", "short.bin"}}, error_kind::bad_file, {"short.bin", "11", "12"});
  rejected({{"location", "data.bin"}, {"length", "8"}}, error_kind::bad_file, {"12", "8"});
  rejected({{"location", "data.bin"}, {"offset", "-4"}}, error_kind::bad_file, {"offset", "-4"});
  rejected({{"location", "data.bin"}, {"offset", "4x"}}, error_kind::bad_file, {"offset", "4x"});
  rejected({{"location", "data.bin"}, {"offset", "18446744073709551615"}}, error_kind::bad_file,
           {"offset"});
  rejected({{"location", "data.bin"}, {"offset", "999999999999999999"}}, error_kind::bad_file,
           {"999999999999999999"});

  const std::string absolute = (folder.path() / "data.bin").string();
  rejected({{"location", absolute}}, error_kind::bad_file, {absolute});
  rejected({{"location", "../data.bin"}}, error_kind::bad_file, {"../data.bin"});
  rejected({{"location", "below/../data.bin"}}, error_kind::bad_file, {"below/../data.bin"});
  rejected({{"location", "below/../../x/data.bin"}}, error_kind::bad_file, {".."});
  rejected({{"location", ""}}, error_kind::bad_file, {});
  rejected({}, error_kind::bad_file, {});
  rejected({{"location", "below"}}, error_kind::io, {"below", "is a folder"});

  // Links within the folder are followed, those that lead out of it are not.
  std::filesystem::create_symlink("data.bin", folder.path() / "link.bin");
  CHECK(read({{"location", "link.bin"}}) == std::vector<float>{1, 2, 3});
  const temporary_folder other;
  other.write("secret.bin", bytes);
  std::filesystem::create_symlink(other.path() / "secret.bin", folder.path() / "out.bin");
  std::filesystem::create_directory_symlink(other.path(), folder.path() / "out");
  rejected({{"location", "out.bin"}}, error_kind::bad_file,
           {"out.bin", "out of the model's folder"});
  rejected({{"location", "out/secret.bin"}}, error_kind::bad_file, {"out of the model's folder"});
  rejected({{"location", "out/missing.bin"}}, error_kind::bad_file, {"out of the model's folder"});

  // Without a folder in the model's path.
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto parse = [&](const char* location, bool is_allowed) {
    graph::read_limits limits;
    limits.allow_external_data = is_allowed;
    graph_parts parts = relu_model();
    parts.initializers = {external({{"location", location}})};
    static_cast<void>(graph::parse_onnx(parts.model(), {}, limits));
  };
  CHECK_NOTHROW(parse("data.bin", true));
  check_graph_error(error_kind::io, {"cannot open missing.bin"},
                    [&] { parse("missing.bin", true); });
  check_graph_error(error_kind::bad_file, {"out of the model's folder"},
                    [&] { parse("out.bin", true); });
  check_graph_error(error_kind::bad_file, {"tensor 'weights'", "another file"},
                    [&] { parse("data.bin", false); });
  std::filesystem::current_path(before);
}

TEST_CASE("onnx: mapped and copied external data are the same, and their damage is refused alike") {
  const temporary_folder folder;
  constexpr std::int64_t count = 3000;  // more than a page
  std::string bytes(4 * (count + 2), '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * 7 % 251 % 128);  // no NaN
  }
  folder.write("data.bin", bytes);
  folder.write("short.bin", bytes.substr(0, 4 * count - 1));
  folder.write("below/data.bin", bytes);
  const temporary_folder other;
  other.write("secret.bin", bytes);
  std::filesystem::create_symlink(other.path() / "secret.bin", folder.path() / "out.bin");
#if DETENT_HAS_FILE_MAPPING
  REQUIRE(mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
#endif
  const graph::read_limits copying{.map_external_data = false};
  for (const graph::read_limits& limits : {graph::read_limits(), copying}) {
    const auto read = [&](const entries& where, element_type type = element_type::f32,
                          shape dims = {}) {
      dims = dims.empty() ? shape{count} : dims;
      const graph::model m = read_with(folder, external(where, type, dims), limits);
      return *m.initializer("weights");
    };
    for (const std::size_t offset : {std::size_t{0}, std::size_t{8}, std::size_t{1}}) {
      const tensor t = read({{"location", "data.bin"}, {"offset", std::to_string(offset)}});
      // Floats are mapped only at addresses of floats.
      CHECK(t.is_mapped() ==
            (DETENT_HAS_FILE_MAPPING == 1 && limits.map_external_data && offset % 4 == 0));
      CHECK(std::memcmp(t.raw(), bytes.data() + offset, t.bytes()) == 0);
      graph::expect_pages(t);
      graph::release_pages(t);
      CHECK(std::memcmp(t.raw(), bytes.data() + offset, t.bytes()) == 0);
    }
    // What is not stored as it is in memory is copied.
    const tensor flags = read({{"location", "data.bin"}}, element_type::boolean, {5000});
    CHECK(!flags.is_mapped());
    for (std::size_t i = 0; i < flags.count(); ++i) {
      REQUIRE(flags.data<std::uint8_t>()[i] == (bytes[i] != 0 ? 1 : 0));
    }
    const tensor nibbles = read({{"location", "data.bin"}}, element_type::u4, {9999});
    CHECK(!nibbles.is_mapped());
    CHECK(nibbles.data<std::uint8_t>()[9998] == (static_cast<unsigned char>(bytes[4999]) & 0xFU));
    CHECK(!read({{"location", "data.bin"}}, element_type::f32, {1023}).is_mapped());

    const auto rejected = [&](const entries& where, error_kind kind,
                              std::initializer_list<std::string_view> words) {
      check_graph_error(kind, {"weights"}, [&] { static_cast<void>(read(where)); });
      check_graph_error(kind, words, [&] { static_cast<void>(read(where)); });
    };
    rejected({{"location", "missing.bin"}}, error_kind::io, {"missing.bin"});
    rejected({{"location", "short.bin"}}, error_kind::bad_file, {"short.bin", "11999", "12000"});
    rejected({{"location", "data.bin"}, {"offset", "12"}}, error_kind::bad_file, {"12008"});
    for (const char* offset : {"999999999999999996", "18446744073709551612", "-4"}) {
      rejected({{"location", "data.bin"}, {"offset", offset}}, error_kind::bad_file, {offset});
    }
    rejected({{"location", "below"}}, error_kind::io, {"below", "is a folder"});
    rejected({{"location", "out.bin"}}, error_kind::bad_file, {"out of the model's folder"});
    rejected({{"location", "../data.bin"}}, error_kind::bad_file, {"../data.bin"});
#if DETENT_HAS_FILE_MAPPING
    rejected({{"location", "pipe"}}, error_kind::io, {"pipe is not a regular file"});
#endif
    // The limits count mapped bytes, too.
    graph::read_limits less = limits;
    less.max_constant_bytes = 11999;
    const std::string tensor_of_12000 =
        external({{"location", "data.bin"}}, element_type::f32, {count});
    check_graph_error(error_kind::bad_file, {"weights", "12000", "11999"},
                      [&] { static_cast<void>(read_with(folder, tensor_of_12000, less)); });
  }
}

TEST_CASE("onnx: a mapped tensor is never written, and outlives its file's name") {
  const temporary_folder folder;
  constexpr std::int64_t count = 2000;
  const std::string bytes(4 * count, '\0');
  folder.write("data.bin", bytes);
  graph::model m =
      read_with(folder, external({{"location", "data.bin"}}, element_type::f32, {count}));
  tensor& weights = m.initializers.at("weights");
  const tensor before = weights;
  const tensor shaped = weights.reshaped({2, count / 2});
  const tensor form = weights.form();
  CHECK(before.is_mapped() == (DETENT_HAS_FILE_MAPPING == 1));
  CHECK(shaped.is_mapped() == before.is_mapped());
  CHECK(!form.is_mapped());
  weights.mutable_data<float>()[7] = 1.0F;
  CHECK(!weights.is_mapped());
  CHECK(weights.data<float>()[7] == 1.0F);
  CHECK(weights.data<float>()[8] == 0.0F);
  graph::release_pages(weights);  // which is no view now
  CHECK(weights.data<float>()[7] == 1.0F);
  if (before.is_mapped()) {
    CHECK(before.data<float>()[7] == 0.0F);
    tensor raw = before;
    raw.mutable_raw()[0] = std::byte{1};
    CHECK(before.raw()[0] == std::byte{0});
  }
  CHECK(graph::read_file(folder.path() / "data.bin") == bytes);
  graph::write_file(folder.path() / "data.bin", "other");
  m = graph::model();
  CHECK(std::memcmp(before.raw(), bytes.data(), bytes.size()) == 0);
  CHECK(std::memcmp(shaped.raw(), bytes.data(), bytes.size()) == 0);
}

// ------------------------------------------------------------------------------------------ bad
// files

TEST_CASE("onnx: names that do not fit together") {
  graph_parts parts = relu_model();
  parts.nodes.push_back(node_message("Relu", {"x"}, {"y"}, "second"));
  check_rejected(parts, error_kind::bad_file, {"second", "'y'"});

  parts = relu_model();
  parts.nodes = {node_message("Relu", {"x"}, {"x"}, "loop")};
  check_rejected(parts, error_kind::bad_file, {"loop", "'x'"});

  parts = relu_model();
  parts.inputs.push_back(parts.inputs[0]);
  check_rejected(parts, error_kind::bad_file, {"'x'"});

  parts = relu_model();
  const std::string w =
      tensor_message("w", element_type::f32, {}, [](fields& f) { f.add_float(4, 1.0F); });
  parts.initializers = {w, w};
  check_rejected(parts, error_kind::bad_file, {"'w'"});

  parts = relu_model();
  parts.nodes = {node_message("Relu", {"nothing"}, {"y"}, "dangling")};
  check_rejected(parts, error_kind::bad_file, {"dangling", "'nothing'"});

  parts = relu_model();
  parts.outputs.push_back(value_message("z", element_type::f32, {1}));
  check_rejected(parts, error_kind::bad_file, {"'z'"});

  parts = relu_model();
  parts.nodes = {node_message("Add", {"x", "b"}, {"a"}, "first"),
                 node_message("Relu", {"a"}, {"b"}, "second"),
                 node_message("Relu", {"x"}, {"y"}, "free")};
  check_rejected(parts, error_kind::bad_file, {"first", "cycle"});

  // A node that has no name is called by what it makes.
  parts.nodes[0] = node_message("Add", {"x", "b"}, {"a"});
  check_rejected(parts, error_kind::bad_file, {"Add", "'a'", "cycle"});
}

TEST_CASE("onnx: nodes in any order are sorted") {
  const temporary_folder folder;
  graph_parts parts = relu_model();
  parts.nodes = {node_message("Relu", {"b"}, {"y"}, "third"),
                 node_message("Neg", {"x"}, {"a"}, "first"),
                 node_message("Abs", {"a"}, {"b"}, "second")};
  const graph::model m = graph::read_onnx(folder.write("model.onnx", parts.model()));
  REQUIRE(m.nodes.size() == 3);
  CHECK(m.nodes[0].name == "first");
  CHECK(m.nodes[1].name == "second");
  CHECK(m.nodes[2].name == "third");
}

/// A FunctionProto with one node, y = op(x).
std::string function_message(const std::string& domain, const std::string& name,
                             const std::string& op) {
  return message([&](fields& w) {
    w.add_string(1, name);
    w.add_string(4, "x");
    w.add_string(5, "y");
    w.add_message(7, message([&](fields& n) {
                    n.add_string(1, "x");
                    n.add_string(2, "y");
                    n.add_string(4, op);
                  }));
    w.add_string(10, domain);
  });
}

/// Two nodes one after the other, the second one called "call", and functions. `overload`: of the
/// call.
std::string model_with_functions(const std::string& domain, const std::string& op,
                                 const std::vector<std::string>& functions,
                                 const std::string& overload = "", std::int64_t opset = 17) {
  return message([&](fields& w) {
    w.add_int64(1, 8);
    w.add_message(7, message([&](fields& g) {
                    g.add_message(1, message([&](fields& n) {
                                    n.add_string(1, "x");
                                    n.add_string(2, "between");
                                    n.add_string(4, "Relu");
                                  }));
                    g.add_message(1, message([&](fields& n) {
                                    n.add_string(1, "between");
                                    n.add_string(2, "y");
                                    n.add_string(3, "call");
                                    n.add_string(4, op);
                                    n.add_string(7, domain);
                                    if (!overload.empty()) {
                                      n.add_string(8, overload);
                                    }
                                  }));
                    g.add_message(11, value_message("x", element_type::f32, {2}));
                    g.add_message(12, value_message("y", element_type::f32, {2}));
                  }));
    w.add_message(8, message([&](fields& o) {
                    o.add_string(1, "");
                    o.add_int64(2, opset);
                  }));
    for (const std::string& f : functions) {
      w.add_message(25, f);
    }
  });
}

TEST_CASE("onnx: functions of a model are kept, and calls of them are refused by name") {
  const std::string negate = function_message("custom", "Negate", "Neg");
  const std::string multiply = function_message("com.microsoft", "MulInteger", "Abs");
  const auto x = test::floats({2}, {-3.0F, 5.0F});

  SUBCASE("nobody calls them") {
    const graph::model m =
        graph::parse_onnx(model_with_functions("", "Neg", {negate, multiply}), {});
    for (const graph::model& same : {m, graph::parse_onnx(graph::to_onnx(m), {})}) {
      REQUIRE(same.functions.size() == 2);
      CHECK(same.functions[0].domain == "custom");
      CHECK(same.functions[0].name == "Negate");
      CHECK(same.functions[0].bytes == negate);
      CHECK(same.functions[1].bytes == multiply);
    }
    graph::executor run(m);
    CHECK(run.run({{"x", x}})[0].data<float>()[1] == -5.0F);
  }
  SUBCASE("they are called") {
    // The second one would be an operator here if the model did not say otherwise.
    for (const auto& [domain, name] :
         {std::pair("custom", "Negate"), {"com.microsoft", "MulInteger"}}) {
      const std::string label = std::string(domain) + "." + name + " node 'call'";
      const graph::model m =
          graph::parse_onnx(model_with_functions(domain, name, {negate, multiply}), {});
      CHECK(graph::unsupported_nodes(m) ==
            std::vector<std::string>{label + ", which calls a function of the model"});
      CHECK(graph::infer_shapes(m).count("between") == 1);
      CHECK(graph::infer_shapes(m).count("y") == 0);
      check_graph_error(error_kind::unsupported, {label, "a function of the model"},
                        [&] { graph::executor run(m); });
      // Written, it is what it was.
      const graph::model read = graph::parse_onnx(graph::to_onnx(m), {});
      CHECK(graph::function_table(read).function_of(m.nodes[1]) != nullptr);
    }
  }
  SUBCASE("an old opset") {
    graph::model uncalled =
        graph::parse_onnx(model_with_functions("", "Neg", {negate}, "", 11), {});
    graph::upgrade_opset(uncalled);
    CHECK(uncalled.opset() == 13);
    CHECK(uncalled.functions.empty());
    graph::model called =
        graph::parse_onnx(model_with_functions("custom", "Negate", {negate}, "", 11), {});
    check_graph_error(error_kind::unsupported, {"custom.Negate node 'call'", "opset 11"},
                      [&] { graph::upgrade_opset(called); });
  }
  SUBCASE("what would be taken for something else") {
    check_graph_error(error_kind::unsupported, {"function 'Relu'", "operator of ONNX"}, [&] {
      static_cast<void>(graph::parse_onnx(
          model_with_functions("", "Neg", {function_message("", "Relu", "Neg")}), {}));
    });
    check_graph_error(
        error_kind::unsupported, {"custom.Negate node 'call'", "overload 'second'"}, [&] {
          static_cast<void>(
              graph::parse_onnx(model_with_functions("custom", "Negate", {negate}, "second"), {}));
        });
  }
}

// --------------------------------------------------------------------------- fields that are
// only kept

namespace {

/// The values of all fields that a path of numbers leads to: bytes, and numbers as text.
std::vector<std::string> fields_at(std::string_view bytes, const std::vector<std::uint32_t>& path,
                                   std::size_t depth = 0) {
  std::vector<std::string> found;
  protozero::pbf_reader reader(bytes.data(), bytes.size());
  while (reader.next()) {
    if (reader.tag() != path[depth]) {
      reader.skip();
    } else if (reader.wire_type() != protozero::pbf_wire_type::length_delimited) {
      found.push_back(std::to_string(reader.get_int64()));
    } else if (depth + 1 == path.size()) {
      found.push_back(reader.get_string());
    } else {
      const protozero::data_view view = reader.get_view();
      const auto within = fields_at({view.data(), view.size()}, path, depth + 1);
      found.insert(found.end(), within.begin(), within.end());
    }
  }
  return found;
}

std::string entry_message(const std::string& key) {
  return message([&](fields& w) {
    w.add_string(1, key);
    w.add_string(2, "value of " + key);
  });
}

/// The declaration of a float value of shape [2, n, ?] with all that it can say.
std::string described_value(const std::string& name) {
  const std::string dims = message([](fields& w) {
    w.add_message(1, message([](fields& dim) { dim.add_int64(1, 2); }));
    w.add_message(1, message([](fields& dim) {
                    dim.add_string(2, "n");
                    dim.add_string(3, "DATA_CHANNEL");
                  }));
    w.add_message(1, message([](fields& dim) { dim.add_string(3, "DATA_FEATURE"); }));
  });
  return message([&](fields& w) {
    w.add_string(1, name);
    w.add_message(2, message([&](fields& type) {
                    type.add_message(1, message([&](fields& t) {
                                       t.add_int32(1, 1);
                                       t.add_message(2, dims);
                                     }));
                    type.add_string(6, "IMAGE");
                  }));
    w.add_string(3, "text of value " + name);
    w.add_message(4, entry_message("value " + name));
  });
}

std::string described_node(const std::string& op, const std::string& in, const std::string& out,
                           const std::string& attributes = "") {
  return node_message(op, {in}, {out}) + attributes + message([&](fields& w) {
           w.add_string(6, "text of " + op);
           w.add_message(9, entry_message(op));
           w.add_message(10, message([](fields& device) { device.add_string(1, "device"); }));
           w.add_string(99, "new field of " + op);
         });
}

std::string described_branch(const std::string& name, const std::string& op) {
  const std::string body = message([&](fields& g) {
    g.add_message(1, described_node(op, "x", name));
    g.add_string(2, name);
    g.add_string(10, "text of " + name);
    g.add_message(12, described_value(name));
  });
  return message([&](fields& node) {
    node.add_message(5, message([&](fields& a) {
                       a.add_string(1, name);
                       a.add_message(6, body);
                       a.add_string(13, "text of attribute " + name);
                       a.add_int32(20, 5);
                     }));
  });
}

/// A model in which everything is described, and that has what cannot be kept.
std::string described_model() {
  const std::string inner = message([](fields& g) {
    g.add_message(1, described_node("If", "condition", "chosen",
                                    described_branch("else_branch", "Neg") +
                                        described_branch("then_branch", "Abs")));
    g.add_message(1, described_node("Relu", "chosen", "y"));
    g.add_string(2, "graph");
    g.add_message(5, tensor_message("w", element_type::f32, {2000}, [](fields& w) {
                    w.add_bytes(9, std::string(8000, 'w'));
                    w.add_string(12, "text of tensor");
                    w.add_message(16, entry_message("tensor"));
                  }));
    g.add_string(10, "text of graph");
    g.add_message(11, described_value("x"));
    g.add_message(11, value_message("condition", element_type::boolean, {}));
    g.add_message(12, described_value("y"));
    g.add_message(13, described_value("chosen"));
    g.add_message(14, message([](fields& w) { w.add_string(1, "chosen"); }));
    g.add_message(16, entry_message("graph"));
    g.add_string(99, "new field of graph");
  });
  return message([&](fields& w) {
    w.add_int64(1, 10);
    w.add_string(4, "org.example");
    w.add_int64(5, 42);
    w.add_message(7, inner);
    w.add_message(8, message([](fields& opset) { opset.add_int64(2, 17); }));
    w.add_message(20, message([](fields& training) { training.add_string(1, "training"); }));
    w.add_string(99, "new field of model");
  });
}

const std::vector<std::vector<std::uint32_t>> kept_paths = {
    {4},                     // domain
    {5},                     // model_version
    {99},                    // what later versions may add
    {7, 10},                 // the graph: doc_string
    {7, 16},                 //   metadata_props
    {7, 99},                 //
    {7, 1, 6},               // nodes: doc_string
    {7, 1, 9},               //   metadata_props
    {7, 1, 99},              //
    {7, 1, 5, 13},           // attributes: doc_string
    {7, 1, 5, 6, 10},        // sub-graphs
    {7, 1, 5, 6, 1, 6},      //
    {7, 1, 5, 6, 1, 9},      //
    {7, 1, 5, 6, 12, 3},     //
    {7, 5, 12},              // initializers: doc_string
    {7, 5, 16},              //   metadata_props
    {7, 11, 3},              // inputs: doc_string
    {7, 11, 4},              //   metadata_props
    {7, 11, 2, 6},           //   denotation of the type
    {7, 11, 2, 1, 2, 1, 3},  //   denotations of dimensions
    {7, 12, 3},              // outputs
    {7, 12, 4},              //
    {7, 12, 2, 6},           //
    {7, 12, 2, 1, 2, 1, 3},  //
    {7, 13, 3},              // inner values
    {7, 13, 2, 1, 2, 1, 3},  //
};

}  // namespace

TEST_CASE("onnx: fields that are not interpreted are written back") {
  const std::string bytes = described_model();
  const temporary_folder folder;
  const graph::model m = graph::read_onnx(folder.write("described.onnx", bytes));
  const fs::path path = folder.path() / "external.onnx";
  graph::write_onnx(m, path, {.external_data_from = 1});
  for (const std::string& written : {graph::to_onnx(m), graph::read_file(path)}) {
    for (const std::vector<std::uint32_t>& at : kept_paths) {
      INFO("field ", at.back(), " of depth ", at.size());
      CHECK(!fields_at(bytes, at).empty());
      CHECK(fields_at(written, at) == fields_at(bytes, at));
    }
    // A dimension that has no denotation gets none.
    const auto dims = fields_at(written, {7, 11, 2, 1, 2, 1});
    CHECK(dims == fields_at(bytes, {7, 11, 2, 1, 2, 1}));
    // These name values that rewrites may remove or rename.
    for (const std::vector<std::uint32_t>& at :
         {std::vector<std::uint32_t>{20}, {7, 14}, {7, 1, 10}}) {
      CHECK(!fields_at(bytes, at).empty());
      CHECK(fields_at(written, at).empty());
    }
  }
  CHECK(graph::onnx_size(m) == graph::to_onnx(m).size());
  CHECK(graph::to_onnx(graph::parse_onnx(graph::to_onnx(m), ".")) == graph::to_onnx(m));
}

TEST_CASE(
    "onnx: fields that are not interpreted change no fingerprint, and cost nothing if absent") {
  graph_parts parts = relu_model();
  const graph::model plain = graph::parse_onnx(parts.model(), ".");
  CHECK(plain.unread_of_model == nullptr);
  CHECK(plain.unread == nullptr);
  CHECK(plain.unread_of_initializers.empty());
  CHECK(plain.nodes[0].unread == nullptr);
  CHECK(plain.inputs[0].notes == nullptr);
  parts.nodes[0] += message([](fields& w) { w.add_string(6, "text"); });
  parts.outputs[0] += message([](fields& w) { w.add_string(3, "text"); });
  const graph::model described = graph::parse_onnx(parts.model(), ".");
  CHECK(described.nodes[0].unread != nullptr);
  CHECK(described.outputs[0].notes != nullptr);
  const auto fingerprint_of = [](const graph::model& m) {
    graph::fingerprint f;
    f.add(m);
    return f.value();
  };
  CHECK(fingerprint_of(described) == fingerprint_of(plain));
}

TEST_CASE("onnx: nodes that a rewrite leaves keep their fields") {
  graph_parts parts = relu_model();
  parts.nodes = {described_node("Identity", "x", "same"), described_node("Relu", "same", "y")};
  graph::model m = graph::parse_onnx(parts.model(), ".");
  graph::remove_no_ops(m);
  const std::string written = graph::to_onnx(m);
  CHECK(fields_at(written, {7, 1, 6}) == std::vector<std::string>{"text of Relu"});
}

TEST_CASE("onnx: attributes of kinds that are not interpreted are written back") {
  const auto attribute = [](const std::string& name, std::uint32_t field, std::int32_t type) {
    return message([&](fields& node) {
      node.add_message(5, message([&](fields& a) {
                         a.add_string(1, name);
                         a.add_message(field, entry_message(name));
                         if (type != 0) {
                           a.add_int32(20, type);
                         }
                       }));
    });
  };
  graph_parts parts = relu_model();
  parts.nodes[0] += attribute("a", 10, 9) + attribute("b", 14, 13) + attribute("c", 22, 11) +
                    attribute("d", 23, 0);
  const std::string bytes = parts.model();
  const graph::model m = graph::parse_onnx(bytes, ".");
  const std::string written = graph::to_onnx(m);
  for (const std::uint32_t field : {1U, 10U, 14U, 20U, 22U, 23U}) {
    INFO("field ", field);
    CHECK(fields_at(written, {7, 1, 5, field}) == fields_at(bytes, {7, 1, 5, field}));
  }
  // One that has no value to write is refused.
  graph::model odd = m;
  odd.nodes[0].attributes["a"].unread = nullptr;
  check_graph_error(error_kind::unsupported, {"relu", "'a'"},
                    [&] { static_cast<void>(graph::to_onnx(odd)); });
}

TEST_CASE("onnx: constants of strings") {
  const auto strings = [](const std::vector<std::string>& values) {
    return [values](fields& w) {
      for (const std::string& s : values) {
        w.add_string(6, s);
      }
    };
  };
  const auto labels = [&](const std::vector<std::string>& values) {
    return tensor_message("labels", element_type::string,
                          {static_cast<std::int64_t>(values.size())}, strings(values));
  };
  const temporary_folder folder;
  const graph::model m = read_with(folder, labels({"cat", "", "dog"}));
  const tensor& t = *m.initializer("labels");
  CHECK(strings_of(t) == std::vector<std::string>{"cat", "", "dog"});
  CHECK(!t.has_data());
  CHECK(strings_of(t.reshaped({3, 1})) == strings_of(t));
  CHECK(!t.form().has_strings());
  CHECK(!t.retyped(element_type::u8).has_strings());
  CHECK_THROWS_AS(static_cast<void>(tensor::of_strings({2}, {"one"})), detent::error);
  CHECK(fields_at(graph::to_onnx(m), {7, 5, 6}) == strings_of(t));
  CHECK(fields_at(graph::to_onnx(m), {7, 5, 9}).empty());
  graph::write_onnx(m, folder.path() / "external.onnx", {.external_data_from = 1});
  check_same_model(graph::read_onnx(folder.path() / "external.onnx"), m);
  const auto fingerprint_of = [](const tensor& value) {
    graph::fingerprint f;
    f.add(value);
    return f.value();
  };
  CHECK(fingerprint_of(t) != fingerprint_of(tensor::of_strings({3}, {"cat", "", "cow"})));
  check_graph_error(error_kind::unsupported, {"labels", "string"}, [&] {
    graph::model without = m;
    without.initializers["labels"] = t.form();
    static_cast<void>(graph::to_onnx(without));
  });

  // Their number and their size in memory are checked.
  check_initializer_rejected(
      tensor_message("labels", element_type::string, {3}, strings({"one", "two"})),
      error_kind::bad_file, {"labels", "[3]", "3 strings", "2"});
  check_initializer_rejected(
      tensor_message("labels", element_type::string, {1}, [](fields& w) { w.add_bytes(9, "raw"); }),
      error_kind::bad_file, {"labels", "1 strings", "0"});
  graph::read_limits limits;
  limits.max_tensor_bytes = 4 * sizeof(std::string);
  CHECK_NOTHROW(static_cast<void>(read_with(folder, labels({"", "", "", ""}), limits)));
  check_graph_error(error_kind::bad_file, {"labels", "4 strings"}, [&] {
    static_cast<void>(read_with(folder, labels({"", "", "", "", ""}), limits));
  });
  check_graph_error(error_kind::bad_file, {"labels", std::to_string(limits.max_tensor_bytes + 1)},
                    [&] {
                      static_cast<void>(read_with(folder, labels({"", "x", "", ""}), limits));
                    });
  limits = {};
  limits.max_constant_bytes = sizeof(std::string);
  check_graph_error(error_kind::bad_file, {"labels", "the limit of all"},
                    [&] { static_cast<void>(read_with(folder, labels({"x"}), limits)); });
}

TEST_CASE("onnx: Constant nodes of strings become initializers, and their users stay") {
  test::model_builder b(17);
  b.input("ids", {2}, element_type::s64);
  graph::attribute several;
  several.kind = graph::attribute::kind_type::strings;
  several.strings = {"cat", "dog"};
  graph::attribute whole;
  whole.kind = graph::attribute::kind_type::t;
  whole.t = tensor::of_strings({1}, {"cow"});
  const std::string one = b.add("Constant", {}, {{"value_string", test::text("bird")}});
  const std::string list = b.add("Constant", {}, {{"value_strings", several}});
  const std::string given = b.add("Constant", {}, {{"value", whole}});
  b.output(b.add("Gather", {list, "ids"}), element_type::string);
  b.output(b.add("Concat", {given, given}, {{"axis", test::number(0)}}), element_type::string);
  b.output(b.add("Reshape", {one, b.constant("shape", {1})}), element_type::string);
  CHECK(graph::to_onnx(graph::parse_onnx(graph::to_onnx(b.get()), ".")) == graph::to_onnx(b.get()));
  const auto known = graph::infer_shapes(b.get());
  CHECK(known.at(list).dims() == shape{2});

  graph::model m = b.get();
  graph::fold_constants(m, false);
  CHECK(m.nodes.size() == 3);
  CHECK(strings_of(m.initializers.at(one)) == std::vector<std::string>{"bird"});
  CHECK(m.initializers.at(one).dims().empty());
  CHECK(strings_of(m.initializers.at(list)) == several.strings);
  CHECK(strings_of(m.initializers.at(given)) == std::vector<std::string>{"cow"});
  check_same_model(graph::parse_onnx(graph::to_onnx(m), "."), m);

  // They cannot be computed with.
  CHECK_THROWS_AS(static_cast<void>(graph::executor(m).run(
                      {{"ids", test::make_tensor<std::int64_t>(element_type::s64, {2}, {1, 0})}})),
                  detent::error);
}

TEST_CASE("onnx: tensors that lie about themselves") {
  const auto no_elements = [](fields&) {};
  const auto twelve_bytes = [](fields& w) { w.add_bytes(9, std::string(12, 'x')); };
  const auto reject =
      [&](element_type type, const shape& dims, const std::function<void(fields&)>& elements,
          std::initializer_list<std::string_view> words, error_kind kind = error_kind::bad_file) {
        check_initializer_rejected(tensor_message("weights", type, dims, elements), kind, words);
      };
  // 2 GB and much more, in a file of 100 bytes.
  reject(element_type::f32, {1 << 29}, no_elements, {"weights", "536870912"});
  reject(element_type::f32, {1 << 29}, twelve_bytes, {"weights", "2147483648", "12"});
  reject(element_type::u8, {std::int64_t{1} << 39}, no_elements, {"weights"});
  reject(element_type::f32, {std::int64_t{1} << 32, std::int64_t{1} << 32}, twelve_bytes,
         {"weights"});
  reject(element_type::f32, {std::numeric_limits<std::int64_t>::max(), 2}, twelve_bytes,
         {"weights"});
  reject(element_type::f64, {1 << 20, 1 << 20, 1 << 20, 0, -1}, twelve_bytes, {"weights", "-1"});
  reject(element_type::f32, {-3}, twelve_bytes, {"weights", "-3"});
  reject(element_type::f32, {-1, -3}, twelve_bytes, {"weights"});
  reject(element_type::f32, shape(65, 1), twelve_bytes, {"weights", "65"});
  reject(element_type::f32, {4}, twelve_bytes, {"weights", "16", "12"});
  reject(element_type::f32, {2}, twelve_bytes, {"weights", "8", "12"});
  reject(element_type::s4, {5}, twelve_bytes, {"weights", "3", "12"});
  reject(element_type::f32, {2}, [](fields& w) { w.add_int32(5, 1); }, {"weights", "2", "0"});
  reject(element_type::s4, {5}, [](fields& w) { w.add_int32(5, 1); }, {"weights", "3", "1"});
  reject(static_cast<element_type>(18), {12}, twelve_bytes, {"weights", "18"},
         error_kind::unsupported);
  reject(static_cast<element_type>(99), {12}, twelve_bytes, {"weights", "99"},
         error_kind::unsupported);
  reject(static_cast<element_type>(-1), {12}, twelve_bytes, {"weights", "-1"},
         error_kind::unsupported);
  reject(element_type::undefined, {12}, twelve_bytes, {"weights"}, error_kind::unsupported);

  // A length that is larger than the file.
  graph_parts parts = relu_model();
  std::string bytes = parts.model();
  bytes += "\x3A\xFF\xFF\xFF\xFF\x07";  // graph, 2^31 - 1 bytes
  const temporary_folder folder;
  const fs::path path = folder.write("model.onnx", bytes);
  CHECK_THROWS_WITH_AS(static_cast<void>(graph::read_onnx(path)),
                       doctest::Contains("damaged or truncated"), detent::error);
}

TEST_CASE("onnx: elements of type bool are 0 or 1") {
  // Whatever the file holds; anything else would be undefined behaviour later.
  const temporary_folder folder;
  for (const bool raw : {true, false}) {
    const std::string bytes = tensor_message("flags", element_type::boolean, {3}, [&](fields& w) {
      if (raw) {
        w.add_bytes(9, std::string("\x00\x02\xFF", 3));
      } else {
        const std::vector<std::int32_t> values{0, 2, 256};
        w.add_packed_int32(5, values.begin(), values.end());
      }
    });
    try {
      const graph::model m = read_with(folder, bytes);
      CHECK(test::values_of<std::uint8_t>(*m.initializer("flags")) ==
            std::vector<std::uint8_t>{0, 1, 1});
    } catch (const detent::error& e) {
      CHECK(e.kind() == error_kind::bad_file);
    }
  }
}

TEST_CASE("onnx: what is no model at all") {
  const temporary_folder folder;
  const auto kind_of = [](const fs::path& path) -> std::optional<error_kind> {
    try {
      static_cast<void>(graph::read_onnx(path));
    } catch (const detent::error& e) {
      CHECK(std::string_view(e.what()).find(path.string()) != std::string_view::npos);
      return e.kind();
    }
    return std::nullopt;
  };
  CHECK(kind_of(folder.path() / "missing.onnx") == error_kind::io);
  CHECK(kind_of(folder.path()) == error_kind::io);
  CHECK(kind_of(folder.write("empty.onnx", "")) == error_kind::bad_file);
  CHECK(kind_of(folder.write("text.onnx", "This is not a model.\n")) == error_kind::bad_file);
  CHECK(kind_of(folder.write("zeros.onnx", std::string(1000, '\0'))) == error_kind::bad_file);
  CHECK(kind_of(folder.write("ones.onnx", std::string(1000, '\xFF'))) == error_kind::bad_file);
  CHECK(kind_of(folder.write("no_graph.onnx", message([](fields& w) { w.add_int64(1, 8); }))) ==
        error_kind::bad_file);
}

// ------------------------------------------------------------------------------------- damaged
// files

namespace {

/// A float network with a bit of everything.
std::string float_network(test::random_source& r) {
  test::model_builder b(17);
  b.input("x", {1, 2, 6, 6});
  b.constant("w", test::random_floats(r, {3, 2, 3, 3}, -1.0F, 1.0F));
  b.constant("b", test::random_floats(r, {3}, -1.0F, 1.0F));
  std::string v = b.add("Conv", {"x", "w", "b"}, {{"pads", test::list({1, 1, 1, 1})}});
  v = b.add("Relu", {v});
  v = b.add("MaxPool", {v},
            {{"kernel_shape", test::list({2, 2})}, {"strides", test::list({2, 2})}});
  b.constant("shape", {1, -1});
  v = b.add("Reshape", {v, "shape"});
  b.constant("m", test::random_floats(r, {27, 4}, -1.0F, 1.0F));
  v = b.add("MatMul", {v, "m"});
  v = b.add("Softmax", {v}, {{"axis", test::number(-1)}});
  b.output(v);
  return graph::to_onnx(b.get());
}

/// A quantized one.
std::string quantized_network(test::random_source& r) {
  test::model_builder b(17);
  b.input("x", {2, 5});
  const std::string x = b.pair("x", 0.05F, 3);
  b.constant("w",
             test::make_tensor<std::int8_t>(element_type::s8, {4, 5}, r.integers<std::int8_t>(20)));
  b.constant("scales", test::random_floats(r, {4}, 0.01F, 0.02F));
  b.constant("zeros", test::make_tensor<std::int8_t>(element_type::s8, {4}, {0, 0, 0, 0}));
  const std::string w =
      b.add("DequantizeLinear", {"w", "scales", "zeros"}, {{"axis", test::number(0)}});
  std::string v = b.add("Gemm", {x, w}, {{"transB", test::number(1)}});
  v = b.pair(v, 0.1F, 128);
  v = b.pair(b.add("Sigmoid", {v}), 1.0F / 256.0F, 0);
  v = b.add("Transpose", {v}, {{"perm", test::list({1, 0})}});
  b.output(b.pair(v, 1.0F / 256.0F, 0));
  return graph::to_onnx(b.get());
}

/// A loop, and within it a branch that captures what is around both.
std::string control_flow_network(test::random_source& r) {
  const auto node = [](const char* op, std::vector<std::string> inputs, const char* output) {
    graph::node n;
    n.op_type = op;
    n.inputs = std::move(inputs);
    n.outputs = {output};
    return n;
  };
  const auto value = [](const char* name, element_type type) {
    return graph::value_info{name, type, false, {}, {}};
  };
  const auto branch = [&](const char* op, std::vector<std::string> inputs, const char* output) {
    graph::graph_body body;
    body.nodes = {node(op, std::move(inputs), output)};
    body.outputs = {value(output, element_type::f32)};
    return graph::attribute::of(body);
  };
  graph::graph_body body;
  body.inputs = {value("i", element_type::s64), value("goes", element_type::boolean),
                 value("v", element_type::f32)};
  graph::node choice = node("If", {"goes"}, "chosen");
  choice.attributes["then_branch"] = branch("MatMul", {"v", "w"}, "t");
  choice.attributes["else_branch"] = branch("Neg", {"x"}, "e");
  body.initializers["last"] = test::make_tensor<std::int64_t>(element_type::s64, {}, {1});
  body.nodes = {choice, node("Less", {"i", "last"}, "still"), node("Identity", {"chosen"}, "part")};
  body.outputs = {value("still", element_type::boolean), value("chosen", element_type::f32),
                  value("part", element_type::f32)};
  test::model_builder b(17);
  b.input("x", {2, 3});
  b.constant("w", test::random_floats(r, {3, 3}, -1.0F, 1.0F));
  b.constant("count", test::make_tensor<std::int64_t>(element_type::s64, {}, {3}));
  graph::node loop = node("Loop", {"count", "", "x"}, "y");
  loop.outputs.push_back("parts");
  loop.attributes["body"] = graph::attribute::of(body);
  b.get().nodes.push_back(loop);
  b.output("y");
  b.output("parts");
  return graph::to_onnx(b.get());
}

bool is_small(const graph::model& m) {
  for (const graph::value_info& v : m.inputs) {
    std::int64_t count = 1;
    for (const std::int64_t d : v.dims) {
      const std::int64_t size = d < 0 ? 1 : d;
      if (size > 1000) {
        return false;
      }
      count *= size;
      if (count > 100000) {
        return false;
      }
    }
  }
  return true;
}

/// Does all that can be done with the bytes of a model. True if nothing was wrong with them.
bool exercise(std::string_view bytes) {
  try {
    graph::model m = graph::parse_onnx(bytes, ".");
    if (!is_small(m)) {
      return false;
    }
    static_cast<void>(graph::infer_shapes(m));
    std::map<std::string, tensor> inputs;
    for (const graph::value_info& v : m.inputs) {
      shape dims = v.dims;
      for (std::int64_t& d : dims) {
        d = d < 0 ? 1 : d;
      }
      tensor t = tensor::allocate(v.type, dims);
      std::memset(t.mutable_raw(), 1, t.bytes());
      inputs[v.name] = t;
    }
    graph::executor_options options;
    options.max_tensor_bytes = 1 << 24;
    options.max_iterations = 100;
    graph::executor as_it_is(m, options);
    static_cast<void>(as_it_is.run(inputs));
    graph::executor lowered(graph::for_execution(std::move(m)), options);
    static_cast<void>(lowered.run(inputs));
    return true;
  } catch (const detent::error& e) {
    CHECK(!std::string_view(e.what()).empty());  // names from the file stand in it as they are
  } catch (const protozero::exception&) {
    // parse_onnx() leaves these to read_onnx(), which knows the file's name.
  }
  return false;
}

/// What went wrong when anything but detent::error came out; empty if nothing did.
std::string escaped(std::string_view bytes) {
  try {
    exercise(bytes);
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("onnx: every truncated model is an error or a valid model") {
  test::random_source r(4);
  for (const std::string& bytes :
       {float_network(r), quantized_network(r), control_flow_network(r)}) {
    REQUIRE(exercise(bytes));
    std::size_t valid = 0;
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      INFO("first ", n, " of ", bytes.size(), " bytes");
      const std::string piece = bytes.substr(0, n);  // ends where its memory does
      std::string what;
      try {
        valid += exercise(piece) ? 1U : 0U;
      } catch (const std::exception& e) {
        what = e.what();
      }
      CHECK(what == "");
    }
    CHECK(valid < 10);
  }
}

TEST_CASE("onnx: damaged models are errors or models") {
  test::random_source r(5);
  MESSAGE("seed ", r.seed());
  for (const std::string& original :
       {float_network(r), quantized_network(r), control_flow_network(r)}) {
    for (int round = 0; round < 2500; ++round) {
      std::string bytes = original;
      std::string damage;
      const std::size_t changes = r.size(1, 4);
      for (std::size_t i = 0; i < changes && !bytes.empty(); ++i) {
        const std::size_t at = r.size(0, bytes.size() - 1);
        switch (r.integer(0, 4)) {
          case 0:
            bytes[at] = static_cast<char>(bytes[at] ^ 1 << r.integer(0, 7));
            break;
          case 1:
            bytes[at] = static_cast<char>(r.bits());
            break;
          case 2:
            bytes[at] = "\x00\x01\x7F\x80\xFF"[r.size(0, 4)];
            break;
          case 3:
            bytes.insert(at, 1, static_cast<char>(r.bits()));
            break;
          default:
            bytes.erase(at, r.size(1, 3));
        }
        damage += ' ';  // not " " + ..., at which g++ 12 warns (-Wrestrict)
        damage += std::to_string(at);
      }
      INFO("seed ", r.seed(), " round ", round, " damage at", damage);
      CHECK(escaped(bytes) == "");
    }
  }
}

// --------------------------------------------------------------------------------------- half
// floats

namespace {

/// The nearest half of a float by exact comparison of distances, ties to the even one.
std::uint16_t nearest_half(float x) {
  if (std::isnan(x)) {
    return 0x7E00;
  }
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double magnitude = std::fabs(static_cast<double>(x));
  int exponent = 0;
  static_cast<void>(std::frexp(magnitude, &exponent));                  // magnitude < 2^exponent
  const double unit = std::ldexp(1.0, (std::max)(exponent - 11, -24));  // between neighbours
  const double steps = std::nearbyint(magnitude / unit);  // exact division, half to even
  const double rounded = steps * unit;
  if (rounded >= 65536.0) {
    return static_cast<std::uint16_t>(sign | 0x7C00);
  }
  if (rounded < std::ldexp(1.0, -14)) {
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(rounded, 24)));
  }
  int e = 0;
  const double fraction = std::frexp(rounded, &e);  // in [0.5, 1)
  const int mantissa = static_cast<int>(std::ldexp(fraction, 11)) - 1024;
  return static_cast<std::uint16_t>(sign | (e + 14) << 10 | mantissa);
}

std::uint16_t canonical(std::uint16_t bits) { return (bits & 0x7FFF) > 0x7C00 ? 0x7E00 : bits; }

}  // namespace

TEST_CASE("onnx: every half and every bfloat16 comes back from float") {
  std::size_t wrong = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float h = detent::to_float(detent::float16{bits});
    const float b = detent::to_float(detent::bfloat16{bits});
    const bool half_nan = (bits & 0x7FFF) > 0x7C00;
    const bool bfloat_nan = (bits & 0x7FFF) > 0x7F80;
    wrong += std::isnan(h) != half_nan || std::isnan(b) != bfloat_nan ? 1U : 0U;
    wrong +=
        (half_nan ? (detent::round_to<detent::float16>(h).bits & 0x7FFF) <= 0x7C00
                  : detent::round_to<detent::float16>(h).bits != bits || nearest_half(h) != bits)
            ? 1U
            : 0U;
    const std::uint16_t back = detent::round_to<detent::bfloat16>(b).bits;
    wrong += (bfloat_nan ? (back & 0x7FFF) <= 0x7F80 : back != bits) ? 1U : 0U;
  }
  CHECK(wrong == 0);
}

TEST_CASE("onnx: round_to<float16>() rounds to nearest, ties to even") {
  test::random_source r(6);
  INFO("seed ", r.seed());
  std::size_t wrong = 0;
  const auto check = [&](float x) {
    const std::uint16_t actual = canonical(detent::round_to<detent::float16>(x).bits);
    const std::uint16_t expected = nearest_half(x);
    if ((std::isnan(x) ? actual & 0x7FFF : actual) != expected) {
      ++wrong;
      CHECK_MESSAGE(wrong > 5, x, " becomes ", actual, ", not ", expected);
    }
  };
  // Between each two neighbours: the tie and the floats on either side of it.
  for (std::uint16_t bits = 0; bits < 0x7C00; ++bits) {
    const float low = detent::to_float(detent::float16{bits});
    const float high =
        bits == 0x7BFF ? 65536.0F
                       : detent::to_float(detent::float16{static_cast<std::uint16_t>(bits + 1)});
    const float tie = low + (high - low) / 2;  // exact: a float has 13 bits more
    for (const float x : {low, tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 1e9F),
                          std::nextafter(low, 1e9F)}) {
      check(x);
      check(-x);
    }
  }
  for (int i = 0; i < 2000000; ++i) {
    check(r.any_float());
  }
  for (int i = 0; i < 1000000; ++i) {
    check(std::ldexp(r.real(-2.0F, 2.0F), r.integer(-28, 17)));
  }
  check(std::numeric_limits<float>::infinity());
  check(-std::numeric_limits<float>::infinity());
  CHECK(wrong == 0);
}
