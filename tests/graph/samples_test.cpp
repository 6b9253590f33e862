// SPDX-License-Identifier: BSD-3-Clause
// Samples from files and folders: axes that count them, values that are fixed, models with many
// inputs and with none, and files that are not what they should be.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#if defined(__unix__)
#include <sys/stat.h>
#endif

#include <protozero/pbf_writer.hpp>

#include <detent/error.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/model/samples.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "temporary_folder.hpp"

namespace {

using detent::error_kind;
using detent::graph::element_type;
using detent::graph::shape;
using detent::graph::tensor;
namespace fs = std::filesystem;
namespace graph = detent::graph;

/// 0, 1, 2, ... in a shape.
tensor counting(graph::shape dims) {
  std::vector<float> values(graph::element_count(dims));
  std::iota(values.begin(), values.end(), 0.0F);
  return test::floats(std::move(dims), values);
}

bool same(const tensor& a, const tensor& b) {
  return a.type() == b.type() && a.dims() == b.dims() &&
         std::equal(a.raw(), a.raw() + a.bytes(), b.raw());
}

/// A TensorProto with raw elements.
std::string tensor_proto(const tensor& t) {
  std::string bytes;
  protozero::pbf_writer writer(bytes);
  for (const std::int64_t d : t.dims()) {
    writer.add_int64(1, d);
  }
  writer.add_int32(2, static_cast<std::int32_t>(t.type()));
  writer.add_bytes(9, reinterpret_cast<const char*>(t.raw()), t.bytes());
  return bytes;
}

/// A model with these float inputs and nothing else; "N" names open dimensions.
graph::model model_of(const std::vector<std::pair<std::string, graph::shape>>& inputs) {
  graph::model m;
  for (const auto& [name, dims] : inputs) {
    graph::value_info v{name, element_type::f32, true, dims, {}};
    for (const std::int64_t d : dims) {
      v.params.push_back(d < 0 ? "N" : "");
    }
    m.inputs.push_back(std::move(v));
  }
  return m;
}

class sample_files {
 public:
  /// Writes a .npy or .pb file and returns its path.
  std::string write(const std::string& name, const tensor& t) const {
    if (name.ends_with(".pb")) {
      return folder_.write(name, tensor_proto(t)).string();
    }
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    graph::write_npy(path.string(), t);
    return path.string();
  }
  [[nodiscard]] std::string path(const std::string& name = {}) const {
    return (folder_.path() / name).string();
  }

 private:
  test::temporary_folder folder_;
};

/// Checks that a sample_set of these texts is refused.
void refuses(error_kind kind, std::initializer_list<std::string_view> words, const graph::model& m,
             const std::vector<std::string>& texts) {
  test::check_graph_error(kind, words, [&] {
    static_cast<void>(graph::sample_set(m, texts, {{}, "--input "}));
  });
}

}  // namespace

TEST_CASE("samples: pieces of other types and shapes are not joined") {
  const auto of = [](std::vector<std::int64_t> dims, element_type type = element_type::f32) {
    tensor t = tensor::allocate(type, graph::shape(dims.begin(), dims.end()));
    std::fill_n(t.mutable_raw(), t.bytes(), std::byte{1});
    return t;
  };
  CHECK(graph::join_samples({of({2, 3}), of({1, 3}), of({0, 3})}, "y").dims() ==
        graph::shape{3, 3});
  CHECK(graph::join_samples({of({2}), of({2})}, "y").bytes() == 16);
  for (const tensor& other :
       {of({2, 4}), of({2, 3, 1}), of({2}), of({2, 3}, element_type::s64), of({})}) {
    test::check_graph_error(error_kind::shape_mismatch, {"y: ", "[2,3]"}, [&] {
      static_cast<void>(graph::join_samples({of({2, 3}), other}, "y"));
    });
  }
  test::check_graph_error(error_kind::shape_mismatch, {"y: "}, [&] {
    static_cast<void>(graph::join_samples({of({}), of({})}, "y"));
  });
  test::check_graph_error(error_kind::invalid_argument, {"y: "},
                          [] { static_cast<void>(graph::join_samples({}, "y")); });
  CHECK(graph::slice_samples(of({4, 2}), 1, 2).dims() == graph::shape{2, 2});
  CHECK(graph::slice_samples(of({0, 2}), 0, 0).dims() == graph::shape{0, 2});
  for (const tensor& t : {of({2, 2}), of({}), of({0, 2})}) {
    test::check_graph_error(error_kind::shape_mismatch, {"samples 1 to 3"},
                            [&] { static_cast<void>(graph::slice_samples(t, 1, 2)); });
  }
}

TEST_CASE("samples: a range that begins behind the last one, and arrays that cannot be written") {
  const test::temporary_folder folder;
  const std::string path = (folder.path() / "x.npy").string();
  tensor t = tensor::allocate(element_type::f32, {2, 3, 4, 5});
  std::fill_n(t.mutable_raw(), t.bytes(), std::byte{0});
  graph::write_npy(path, t);
  graph::model m;
  m.inputs.push_back({"x", element_type::f32, true, {-1, 3, 4, 5}, {}});
  graph::sample_set samples(m, {path});
  for (const std::size_t first : {2U, 3U}) {
    test::check_graph_error(error_kind::invalid_argument, {"there are only 2 samples"}, [&] {
      samples.select({first, 7});
    });
  }
  test::check_graph_error(error_kind::invalid_argument, {"samples 1 to 1"}, [&] {
    samples.select({1, 1});
  });
  CHECK(samples.size() == 2);
  samples.select({1, 7});
  CHECK(samples.size() == 1);
  t.set_channels_last(true);
  test::check_graph_error(error_kind::invalid_argument, {"order of its dimensions"},
                          [&] { graph::write_npy(path, t); });
  CHECK(graph::read_npy(path).dims() == graph::shape{2, 3, 4, 5});
}

TEST_CASE("samples: any axis is cut, padded, joined and moved to the front") {
  const tensor t = counting({2, 3, 4});
  for (std::size_t axis = 0; axis < 3; ++axis) {
    CAPTURE(axis);
    const auto size = static_cast<std::size_t>(t.dim(axis));
    std::vector<tensor> pieces;
    for (std::size_t i = 0; i < size; ++i) {
      pieces.push_back(graph::slice_samples(t, i, 1, axis));
    }
    CHECK(same(graph::join_samples(pieces, "t", axis), t));
    const tensor padded = graph::pad_samples(t, size + 2, axis);
    CHECK(same(graph::slice_samples(padded, 0, size, axis), t));
    for (const std::size_t i : {size, size + 1}) {
      CHECK(same(graph::slice_samples(padded, i, 1, axis), pieces.back()));
    }
    CHECK(same(graph::pad_samples(t, size, axis), t));
    std::vector<tensor> rows;
    for (const tensor& piece : pieces) {
      graph::shape dims = piece.dims();
      dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
      dims.insert(dims.begin(), 1);
      rows.push_back(piece.reshaped(dims));
    }
    CHECK(same(graph::samples_first(t, axis), graph::join_samples(rows, "t")));
  }
  // Element (0, k, 2) of counting({2, 3, 4}) is 4 k + 2.
  CHECK(test::values_of<float>(graph::slice_samples(graph::slice_samples(t, 0, 1), 2, 1, 2)) ==
        std::vector<float>{2, 6, 10});
  test::check_graph_error(error_kind::shape_mismatch, {"axis 3", "[2,3,4]"},
                          [&] { static_cast<void>(graph::slice_samples(t, 0, 1, 3)); });
  for (const std::size_t count : {1U, 0U}) {
    test::check_graph_error(error_kind::shape_mismatch, {"[2,3,4]"},
                            [&] { static_cast<void>(graph::pad_samples(t, count, 0)); });
  }
}

TEST_CASE("samples: slices of a file are those of the tensor, for short and for long rows") {
  const sample_files files;
  // Rows of 400 KB are read several at a time, rows of 1.6 MB each for itself.
  for (const graph::shape& dims : {graph::shape{2, 3, 4}, graph::shape{5, 4, 100000},
                                   graph::shape{7}, graph::shape{2, 0, 3}}) {
    const tensor t = counting(dims);
    graph::npy_file file(files.write("t.npy", t));
    for (std::size_t axis = 0; axis < dims.size(); ++axis) {
      const auto size = static_cast<std::size_t>(dims[axis]);
      for (std::size_t first = 0; first <= size; first += size / 3 + 1) {
        for (const std::size_t count : {std::size_t{0}, (size - first) / 2, size - first}) {
          INFO(graph::to_string(dims), " axis ", axis, ": ", first, " + ", count);
          CHECK(same(file.read_slice(axis, first, count),
                     graph::slice_samples(t, first, count, axis)));
        }
      }
    }
    test::check_graph_error(error_kind::shape_mismatch, {graph::to_string(dims)}, [&] {
      static_cast<void>(file.read_slice(0, 1, static_cast<std::size_t>(dims[0])));
    });
    test::check_graph_error(error_kind::shape_mismatch, {graph::to_string(dims)},
                            [&] { static_cast<void>(file.read_slice(dims.size(), 0, 0)); });
  }
}

TEST_CASE("samples: two inputs with different sample axes, in .npy and .pb files") {
  const sample_files files;
  const graph::model m = model_of({{"x", {-1, 3}}, {"y", {2, -1, 4}}});
  const tensor x = counting({5, 3});
  const tensor y = counting({2, 5, 4});
  for (const char* ending : {".npy", ".pb"}) {
    const std::string x_text = "x=" + files.write(std::string("x") + ending, x);
    const std::string y_text = "y=" + files.write(std::string("y") + ending, y);
    for (const char* suffix : {":axis=1", ":axis=-2"}) {
      graph::sample_set samples(m, {y_text + suffix, x_text});
      CHECK(samples.size() == 5);
      CHECK(samples.fixed_batch() == 0);
      CHECK(samples.folder() == nullptr);
      samples.select({1, 4});
      const auto inputs = samples.batch(1, 4);  // samples 2 and 3, and 3 twice more
      REQUIRE(inputs.size() == 2);
      CHECK(same(inputs.at("x"), graph::pad_samples(graph::slice_samples(x, 2, 2), 4)));
      CHECK(same(inputs.at("y"), graph::pad_samples(graph::slice_samples(y, 2, 2, 1), 4, 1)));
    }
    refuses(error_kind::shape_mismatch,
            {"/y.", "has 2 samples of input 'y' (axis 0 of [2,5,4])", "/x.",
             "has 5 samples of input 'x'", ":axis=K", ":fixed"},
            m, {x_text, y_text});
    refuses(error_kind::shape_mismatch, {"[2,5,4]", "no axis 3"}, m, {x_text, y_text + ":axis=3"});
    refuses(error_kind::shape_mismatch, {"[2,5,4]", "no axis -4"}, m,
            {x_text, y_text + ":axis=-4"});
    refuses(error_kind::shape_mismatch, {"[2,5,4]", "'y' [2,-1,5]", "axis 1 counts samples"},
            model_of({{"x", {-1, 3}}, {"y", {2, -1, 5}}}), {x_text, y_text + ":axis=1"});
  }
}

TEST_CASE("samples: values that are fixed, and single values") {
  const sample_files files;
  const graph::model m = model_of({{"x", {-1, 3}}, {"state", {1, 2}}, {"s", {}}});
  const std::string x = "x=" + files.write("x.npy", counting({4, 3}));
  const std::string state = "state=" + files.write("state.npy", counting({1, 2})) + ":fixed";
  const std::string scalar = "s=" + files.write("s.npy", counting({}));
  const std::string scalars = "s=" + files.write("all.pb", counting({4}));

  const graph::sample_set together(m, {x, state, scalar});
  CHECK(together.size() == 4);
  CHECK(together.fixed_batch() == 0);
  CHECK(!together.is_one_per_run());
  const auto three = together.batch(0, 3);
  CHECK(three.at("x").dims() == graph::shape{3, 3});
  CHECK(same(three.at("state"), counting({1, 2})));
  CHECK(same(three.at("s"), counting({})));

  const graph::sample_set one_by_one(m, {x, state, scalars});
  CHECK(one_by_one.size() == 4);
  CHECK(one_by_one.fixed_batch() == 1);
  CHECK(one_by_one.is_one_per_run());
  const auto third = one_by_one.batch(2, 1);
  CHECK(third.at("x").dims() == graph::shape{1, 3});
  CHECK(same(third.at("s"), test::floats({}, {2})));
  test::check_graph_error(error_kind::invalid_argument, {"cannot share a run"},
                          [&] { static_cast<void>(one_by_one.batch(0, 2)); });

  const std::string of_rank_1 = "s=" + files.write("one.npy", test::floats({1}, {7}));
  const graph::sample_set rank_1(m, {x, state, of_rank_1 + ":fixed"});
  CHECK(rank_1.size() == 4);
  CHECK(same(rank_1.batch(0, 2).at("s"), test::floats({}, {7})));

  const graph::sample_set only_one(m, {x + ":fixed", state, scalar + ":fixed"});
  CHECK(only_one.size() == 1);
  CHECK(only_one.fixed_batch() == 1);
  CHECK(only_one.batch(0, 1).at("x").dims() == graph::shape{4, 3});

  refuses(error_kind::shape_mismatch, {"s.npy", "no axis 0"}, m, {x, state, scalar + ":axis=0"});
  refuses(error_kind::shape_mismatch, {"all.pb", "[4]", "'s' []", "given whole"}, m,
          {x, state, scalars + ":fixed"});
  refuses(error_kind::shape_mismatch, {"s.npy", "[]", "'x' [-1,3]"}, m,
          {"x=" + files.path("s.npy"), state, scalar});
  refuses(error_kind::shape_mismatch, {"'s' float32 []", "takes 1 sample", "before it 2", ":fixed"},
          model_of({{"x", {2, 3}}, {"s", {}}}), {x, scalars});
}

TEST_CASE("samples: a model without inputs has one sample") {
  const graph::model m;
  const graph::sample_set samples(m, {});
  CHECK(samples.size() == 1);
  CHECK(samples.fixed_batch() == 1);
  CHECK(samples.batch(0, 1).empty());
  const sample_files files;
  refuses(error_kind::invalid_argument, {"x.npy", "no inputs"}, m,
          {files.write("x.npy", counting({1}))});
}

TEST_CASE("samples: a batch that the model fixes is filled up, but not to any size") {
  const sample_files files;
  const std::string x = files.write("x.npy", counting({3, 5}));
  const graph::sample_set filled(model_of({{"x", {3, 4}}}), {x + ":axis=1"}, {});
  CHECK(filled.fixed_batch() == 4);
  CHECK(!filled.is_one_per_run());
  CHECK(same(filled.batch(4, 4).at("x"),
             graph::pad_samples(graph::slice_samples(counting({3, 5}), 4, 1, 1), 4, 1)));
  const std::int64_t huge = std::int64_t{1} << 60;
  const graph::sample_set too_many(model_of({{"x", {huge, 5}}}), {x});
  test::check_graph_error(error_kind::bad_file, {"input 'x'", "bytes", "limit"},
                          [&] { static_cast<void>(too_many.batch(0, too_many.fixed_batch())); });
}

TEST_CASE("samples: the axis of an output that counts samples") {
  const sample_files files;
  const graph::sample_set samples(model_of({{"x", {2, -1}}}),
                                  {files.write("x.npy", counting({2, 6})) + ":axis=1"});
  const auto axis = [&](const graph::shape& dims, std::vector<std::string> names = {}) {
    graph::value_info output{"y", element_type::f32, true, dims, std::move(names)};
    return samples.output_axis(output, dims, 3);
  };
  CHECK(axis({3, 3, 3}, {"", "", "N"}) == 2U);  // the name of the input's axis
  CHECK(axis({3, 3, 4}, {"", "", "N"}) == 1U);  // its size is another: the axis of the input
  CHECK(axis({3, 4}) == 0U);
  CHECK(!axis({4, 4}).has_value());
  const graph::sample_set mixed(model_of({{"x", {2, 2}}, {"y", {4, 1, 2}}}),
                                {"x=" + files.write("x.npy", counting({6, 2})),
                                 "y=" + files.write("y.npy", counting({4, 1, 6})) + ":axis=2"});
  const graph::value_info output{"z", element_type::f32, false, {}, {}};
  CHECK(mixed.output_axis(output, {3, 1, 2}, 2) == 2U);
  CHECK(mixed.output_axis(output, {2, 1, 3}, 2) == 0U);
  CHECK(!mixed.output_axis(output, {2, 1, 2}, 2).has_value());  // it could be either
  CHECK(mixed.output_axis(output, {1, 1, 1}, 1) == 0U);         // the elements stand in any case so
  CHECK(!axis({}).has_value());
}

TEST_CASE("samples: which input and which file a text names") {
  const sample_files files;
  const std::string odd = files.write("odd:name=1.npy", counting({2, 3}));
  const std::string fixed = files.write("x.npy:fixed", counting({2, 3}));
  const graph::model one = model_of({{"a:0", {-1, 3}}});
  for (const std::string& text :
       {odd, "a:0=" + odd, odd + ":axis=0", "a:0=" + odd + ":axis=0", fixed + ":axis=0"}) {
    CAPTURE(text);
    CHECK(graph::sample_set(one, {text}).size() == 2);
  }
  const std::string inside = files.write("d:axis=1/x.npy", counting({2, 3}));
  CHECK(graph::sample_set(one, {inside}).size() == 2);
  // The longest name counts, wherever it stands.
  const graph::model two = model_of({{"a", {-1, 3}}, {"a=b", {-1, 3}}});
  const graph::model turned = model_of({{"a=b", {-1, 3}}, {"a", {-1, 3}}});
  CHECK(graph::sample_set(turned, {"a=b=" + odd, "a=" + odd}).size() == 2);
  const graph::sample_set samples(two, {"a=b=" + odd, "a=" + odd});
  CHECK(samples.batch(0, 1).size() == 2);

  refuses(error_kind::io, {"x.npy"}, one, {fixed});  // the suffix is taken: there is no x.npy
  refuses(error_kind::invalid_argument, {":first", ":axis=K", ":fixed"}, one, {odd + ":first"});
  refuses(error_kind::invalid_argument, {"'two' is not an integer", ":axis=K"}, one,
          {odd + ":axis=two"});
  for (const char* number : {"", "1x", "0x1", "1.0", " 1", "99999999999999999999"}) {
    refuses(error_kind::invalid_argument, {"not an integer"}, one, {odd + ":axis=" + number});
  }
  refuses(error_kind::invalid_argument, {"no input 'nope'", "'a:0' float32 [-1,3]"}, one,
          {"nope=" + files.path("x.npy")});
  refuses(error_kind::invalid_argument,
          {"no input 'nope'", "'a' float32 [-1,3], 'a=b' float32 [-1,3]"}, two,
          {"nope=" + odd + ":axis=0"});
  refuses(error_kind::invalid_argument, {"2 inputs", "--input NAME=" + odd, "'a=b'"}, two, {odd});
  refuses(error_kind::invalid_argument, {"input 'a' float32 [-1,3]", "--input a=FILE.npy"}, two,
          {"a=b=" + odd});
  refuses(error_kind::invalid_argument, {"'a' is given twice"}, two, {"a=" + odd, "a=" + odd});
  for (const char* text : {"a:0=", "a:0=:fixed", "", ":axis=1"}) {
    refuses(error_kind::invalid_argument, {"names no file", "=FILE.npy"}, one, {text});
  }
  graph::model sequence = one;
  sequence.inputs[0].other_type = "a sequence";
  refuses(error_kind::unsupported, {"'a:0'", "not a tensor"}, sequence, {odd});
  graph::model many;
  for (int i = 0; i < 20; ++i) {
    many.inputs.push_back({"i" + std::to_string(i), element_type::f32, true, {-1}, {}});
  }
  refuses(error_kind::invalid_argument, {"'i7' float32 [-1] and 12 more"}, many, {"x=" + odd});
}

TEST_CASE("samples: a folder with a sub-folder for each sample") {
  const sample_files files;
  const graph::model m = model_of({{"x", {-1, 3}}, {"a/b", {}}});
  for (const int i : {0, 2, 10, 9}) {  // numeric order, with gaps
    const std::string sample = "samples/sample_" + std::to_string(i) + "/";
    files.write(sample + (i == 2   ? "x.npy"
                          : i == 9 ? "input_0.pb"
                                   : "input_0.npy"),
                counting({i + 1, 3}));
    files.write(sample + (i == 10 ? "a_b.pb" : "input_1.npy"),
                test::floats({}, {static_cast<float>(i)}));
  }
  files.write("samples/other.npy", counting({1}));
  const std::string folder = files.path("samples");
  graph::sample_set samples(m, {folder});
  CHECK(samples.size() == 4);
  CHECK(samples.fixed_batch() == 1);
  samples.select({1, 9});
  const float numbers[] = {2, 9, 10};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto inputs = samples.batch(i, 1);
    REQUIRE(inputs.size() == 2);
    CHECK(inputs.at("x").dim(0) == static_cast<std::int64_t>(numbers[i]) + 1);
    CHECK(inputs.at("a/b").rank() == 0);
    CHECK(inputs.at("a/b").data<float>()[0] == numbers[i]);
    REQUIRE(samples.folder() != nullptr);
    CHECK(samples.folder()->name(samples.first() + i) ==
          "sample_" + std::to_string(static_cast<int>(numbers[i])));
  }
  test::check_graph_error(error_kind::invalid_argument, {"cannot share a run"},
                          [&] { static_cast<void>(samples.batch(0, 2)); });
  CHECK(samples.is_one_per_run());

  refuses(error_kind::invalid_argument,
          {"a folder holds the values of all inputs", "--input " + folder}, m, {"x=" + folder});
  refuses(error_kind::invalid_argument, {"a folder holds", ":axis=1"}, m, {folder + ":axis=1"});
  refuses(error_kind::invalid_argument, {"write only --input " + folder}, m,
          {folder, "x=" + files.path("samples/sample_0/input_0.npy")});
  refuses(error_kind::invalid_argument,
          {"sample_0", "input 'z' float32 [1]", "input_2.npy", "z.npy"},
          model_of({{"x", {-1, 3}}, {"a/b", {}}, {"z", {1}}}), {folder});
  refuses(error_kind::invalid_argument, {"input_1.npy", "only 1 input"}, model_of({{"x", {-1, 3}}}),
          {folder});
  files.write("samples/sample_9/x.npy", counting({1, 3}));
  refuses(error_kind::invalid_argument, {"both", "input_0.pb", "x.npy", "'x'"}, m, {folder});
  fs::remove(files.path("samples/sample_9/x.npy"));
  files.write("samples/sample_11", counting({1}));
  refuses(error_kind::invalid_argument, {"sample_11", "not a folder"}, m, {folder});
  fs::remove(files.path("samples/sample_11"));
  files.write("samples/test_data_set_0/input_0.pb", counting({1, 3}));
  refuses(error_kind::invalid_argument, {"both sample_I and test_data_set_I"}, m, {folder});
  refuses(error_kind::invalid_argument, {"holds no samples", "sample_0"}, m,
          {files.path("samples/sample_0")});
}

TEST_CASE("samples: an input that is called like the file of another one") {
  const sample_files files;
  const graph::model m = model_of({{"input_1", {-1}}, {"input_2", {-1, 2}}});
  files.write("good/sample_0/input_0.npy", counting({3}));
  files.write("good/sample_0/input_1.npy", counting({3, 2}));
  CHECK(graph::sample_set(m, {files.path("good")}).batch(0, 1).at("input_2").rank() == 2);
  files.write("names/sample_0/input_1.npy", counting({3}));
  files.write("names/sample_0/input_2.npy", counting({3, 2}));
  refuses(error_kind::invalid_argument, {"no data for input 'input_1'", "input_0.npy"}, m,
          {files.path("names")});
}

TEST_CASE("samples: short integers become floats, floats those of 16 bits") {
  const sample_files files;
  const auto check = [&](element_type of_input, const tensor& stored, const tensor& expected) {
    INFO(graph::name(stored.type()), " for ", graph::name(of_input));
    graph::model m = model_of({{"x", {-1, 3}}});
    m.inputs[0].type = of_input;
    files.write("x.npy", stored);
    files.write("x.pb", stored);
    files.write("in/sample_0/input_0.npy", stored);
    for (const char* name : {"x.npy", "x.pb"}) {
      const graph::sample_set set(m, {files.path(name)});
      CHECK(same(set.batch(0, 2).at("x"), expected));
      CHECK(same(set.batch(1, 1).at("x"), graph::slice_samples(expected, 1, 1, 0)));
      CHECK(
          same(graph::sample_set(m, {files.path(name) + ":fixed"}).batch(0, 1).at("x"), expected));
    }
    CHECK(same(graph::sample_set(m, {files.path("in")}).batch(0, 1).at("x"), expected));
  };
  const shape dims{2, 3};
  check(element_type::f32,
        test::make_tensor<std::uint8_t>(element_type::u8, dims, {0, 1, 127, 128, 254, 255}),
        test::floats(dims, {0, 1, 127, 128, 254, 255}));
  check(element_type::f32,
        test::make_tensor<std::int8_t>(element_type::s8, dims, {-128, -1, 0, 1, 2, 127}),
        test::floats(dims, {-128, -1, 0, 1, 2, 127}));
  check(element_type::f32,
        test::make_tensor<std::uint16_t>(element_type::u16, dims, {0, 1, 255, 256, 65534, 65535}),
        test::floats(dims, {0, 1, 255, 256, 65534, 65535}));
  check(element_type::f32,
        test::make_tensor<std::int16_t>(element_type::s16, dims, {-32768, -1, 0, 1, 2, 32767}),
        test::floats(dims, {-32768, -1, 0, 1, 2, 32767}));
  const tensor reals = test::floats(dims, {1.0F, 1.0009765625F, 0.1F, 65520.0F, -2.0F, 1e-9F});
  for (const element_type half : {element_type::f16, element_type::bf16}) {
    check(half, reals, graph::detail::float_to_half(reals, half));
  }
}

TEST_CASE("samples: files of a folder that are not what they should be") {
  const sample_files files;
  const graph::model m = model_of({{"x", {-1, 3}}});
  const auto fails = [&](error_kind kind, std::initializer_list<std::string_view> words) {
    test::check_graph_error(kind, words, [&] {
      static_cast<void>(graph::sample_set(m, {files.path("in")}).batch(0, 1));
    });
    fs::remove_all(files.path("in"));
  };
  files.write("in/sample_0/input_0.npy", counting({2, 4}));
  fails(error_kind::shape_mismatch, {"input_0.npy", "[2,4]", "'x' [-1,3]"});
  files.write("in/sample_0/input_0.pb",
              test::make_tensor<std::int32_t>(element_type::s32, {1, 3}, {1, 2, 3}));
  fails(error_kind::invalid_argument, {"input_0.pb", "int32", "'x' is float32"});
  files.write("in/sample_0/input_0.pb",
              test::make_tensor<double>(element_type::f64, {1, 3}, {1, 2, 3}));
  fails(error_kind::invalid_argument, {"float64", "'x' is float32", "astype('float32')"});
  fs::create_directories(files.path("in/sample_0/input_0.npy"));
  fails(error_kind::io, {"input_0.npy is a folder"});
  fs::create_directories(files.path("in/sample_0"));
  std::ofstream(files.path("in/sample_0/input_0.pb")) << "text";
  fails(error_kind::bad_file, {"input_0.pb"});
  fs::create_directories(files.path("in/sample_0"));
  fs::create_symlink("/nowhere", files.path("in/sample_0/input_0.npy"));
  fails(error_kind::io, {"input_0.npy"});
  // Elements of a TensorProto that are in another file stay below its folder.
  std::string bytes;
  protozero::pbf_writer writer(bytes);
  writer.add_int64(1, 1);
  writer.add_int64(1, 3);
  writer.add_int32(2, 1);
  std::string entry;
  protozero::pbf_writer(entry).add_string(1, "location");
  protozero::pbf_writer(entry).add_string(2, "../secret");
  writer.add_message(13, entry);
  writer.add_int32(14, 1);
  files.write("in/secret.npy", counting({3}));
  fs::create_directories(files.path("in/sample_0"));
  std::ofstream(files.path("in/sample_0/input_0.pb"), std::ios::binary) << bytes;
  fails(error_kind::bad_file, {"input_0.pb", "'../secret'"});
  // A tensor that is larger than the limit.
  files.write("in/sample_0/input_0.pb", counting({100, 3}));
  graph::sample_options options;
  options.limits.max_tensor_bytes = 1000;
  test::check_graph_error(error_kind::bad_file, {"input_0.pb", "1200 bytes", "limit"}, [&] {
    static_cast<void>(graph::sample_set(m, {files.path("in")}, options).batch(0, 1));
  });
#if defined(__unix__)
  fs::remove_all(files.path("in"));
  fs::create_directories(files.path("in/sample_0"));
  REQUIRE(mkfifo(files.path("in/sample_0/input_0.pb").c_str(), 0600) == 0);
  fails(error_kind::io, {"input_0.pb is not a regular file"});
  REQUIRE(mkfifo(files.path("pipe").c_str(), 0600) == 0);
  refuses(error_kind::io, {"pipe is not a regular file"}, m, {files.path("pipe") + ":fixed"});
#endif
}
