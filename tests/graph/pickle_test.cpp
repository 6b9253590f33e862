// SPDX-License-Identifier: BSD-3-Clause
// Pickles that the library writes, read back by read_pickle.hpp. Expected bytes are those of
// Python's pickle module (protocol 4, without frames).
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/pickle_array.hpp>
#include <detent/graph/ppq/pickle_writer.hpp>

#include "check_graph_error.hpp"
#include "read_pickle.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::element_type;
using graph::ppq::detail::pickle_writer;
using namespace test;
using namespace std::string_literals;

template <class Function>
std::string pickle(const Function& write) {
  pickle_writer w;
  write(w);
  return std::move(w).finish();
}

/// What was written, read back.
class round_trip {
 public:
  template <class Function>
  explicit round_trip(const Function& write) : bytes_(pickle(write)), reader_(bytes_) {
    value_ = reader_.read();
    CHECK(reader_.at_end());
  }
  const python_value* operator->() const { return value_.get(); }

 private:
  std::string bytes_;
  pickle_reader reader_;
  value_ptr value_;
};

/// The bytes between the protocol and the end.
template <class Function>
std::string body(const Function& write) {
  const std::string bytes = pickle(write);
  REQUIRE(bytes.substr(0, 2) == "\x80\x04");
  REQUIRE(bytes.back() == '.');
  return bytes.substr(2, bytes.size() - 3);
}
template <class T>
std::string integer(T number) {
  return body([&](pickle_writer& w) { w.integer(number); });
}

TEST_CASE("pickle: an integer takes the fewest bytes that keep its sign") {
  CHECK(integer(0) == "K\0"s);
  CHECK(integer(std::int8_t{127}) == "K\x7F");
  CHECK(integer(255U) == "K\xFF");
  CHECK(integer(256) == "M\0\x01"s);
  CHECK(integer(std::uint16_t{65535}) == "M\xFF\xFF");
  CHECK(integer(65536) == "J\0\0\x01\0"s);
  CHECK(integer(-1) == "J\xFF\xFF\xFF\xFF");
  CHECK(integer(std::int8_t{-128}) == "J\x80\xFF\xFF\xFF");
  CHECK(integer((std::numeric_limits<std::int32_t>::max)()) == "J\xFF\xFF\xFF\x7F");
  CHECK(integer((std::numeric_limits<std::int32_t>::min)()) == "J\0\0\0\x80"s);
  // Beyond 32 bits: what Python's pickle.encode_long() makes.
  CHECK(integer(2147483648U) == "\x8A\x05\0\0\0\x80\0"s);
  CHECK(integer(-2147483649LL) == "\x8A\x05\xFF\xFF\xFF\x7F\xFF");
  CHECK(integer(std::int64_t{1} << 39) == "\x8A\x06\0\0\0\0\x80\0"s);
  CHECK(integer((std::int64_t{1} << 39) - 1) == "\x8A\x05\xFF\xFF\xFF\xFF\x7F");
  CHECK(integer(-(std::int64_t{1} << 39)) == "\x8A\x05\0\0\0\0\x80"s);
  CHECK(integer(-(std::int64_t{1} << 40)) == "\x8A\x06\0\0\0\0\0\xFF"s);
  CHECK(integer((std::numeric_limits<std::int64_t>::max)()) ==
        "\x8A\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F");
  CHECK(integer((std::numeric_limits<std::int64_t>::min)()) == "\x8A\x08\0\0\0\0\0\0\0\x80"s);
  CHECK(integer((std::numeric_limits<std::uint64_t>::max)()) ==
        "\x8A\x09\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0"s);
}

TEST_CASE("pickle: floats, None and truth values") {
  const auto real = [](double x) { return body([&](pickle_writer& w) { w.real(x); }); };
  CHECK(real(1.0) == "G\x3F\xF0\0\0\0\0\0\0"s);
  CHECK(real(-0.0) == "G\x80\0\0\0\0\0\0\0"s);
  CHECK(real(0.0) == "G\0\0\0\0\0\0\0\0"s);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(real(infinity) == "G\x7F\xF0\0\0\0\0\0\0"s);
  CHECK(real(-infinity) == "G\xFF\xF0\0\0\0\0\0\0"s);
  for (const double x : {std::numeric_limits<double>::denorm_min(), 0.1, -1e308}) {
    CHECK(round_trip([&](pickle_writer& w) { w.real(x); })->real == x);
  }
  const auto nan =
      round_trip([](pickle_writer& w) { w.real(std::numeric_limits<double>::quiet_NaN()); });
  CHECK(std::isnan(nan->real));
  CHECK(body([](pickle_writer& w) { w.none(); }) == "N");
  CHECK(body([](pickle_writer& w) { w.boolean(true); }) == "\x88");
  CHECK(body([](pickle_writer& w) { w.boolean(false); }) == "\x89");
}

TEST_CASE("pickle: text and bytes of any length") {
  CHECK(body([](pickle_writer& w) { w.text(""); }) == "\x8C\0\x94"s);
  CHECK(body([](pickle_writer& w) { w.bytes(std::string_view()); }) == "C\0"s);
  for (const std::size_t size : {1U, 255U, 256U, 65535U, 65536U, 70000U}) {
    INFO(size);
    std::string text(size, 'x');
    text.back() = 'y';
    const auto t = round_trip([&](pickle_writer& w) { w.text(text); });
    CHECK(t->type == "str");
    CHECK(t->text == text);
    text.back() = '\0';
    const auto b = round_trip([&](pickle_writer& w) { w.bytes(std::string_view(text)); });
    CHECK(b->type == "bytes");
    CHECK(b->text == text);
  }
  const std::string words = "\xC3\xA9 \xE9\x87\x8F \xF0\x9F\x98\x80 \0 \x7F"s;
  CHECK(round_trip([&](pickle_writer& w) { w.text(words); })->text == words);
  for (const char* bad : {"\xFF", "ab\xC3", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80"}) {
    check_graph_error(error_kind::invalid_argument, {"UTF-8"}, [&] {
      pickle_writer w;
      w.text(bad);
    });
  }
}

TEST_CASE("pickle: containers, empty ones too") {
  CHECK(body([](pickle_writer& w) {
          w.open_tuple();
          w.open_list();
          w.close_list();
          w.open_dictionary();
          w.close_dictionary();
          w.open_tuple();
          w.close_tuple();
          w.close_tuple();
        }) == "(]})t");
  CHECK(body([](pickle_writer& w) {
          w.open_list();
          w.open_tuple();
          w.integer(1);
          w.close_tuple();
          w.open_dictionary();
          w.integer(2);
          w.none();
          w.close_dictionary();
          w.close_list();
        }) == "]((K\x01t}(K\x02Nue");
  const auto long_list = round_trip([](pickle_writer& w) {
    w.open_list();
    for (int i = 0; i < 3000; ++i) {
      w.integer(i);
    }
    w.close_list();
  });
  REQUIRE(long_list->items.size() == 3000);
  CHECK(long_list->items[2999]->text == "2999");
}

TEST_CASE("pickle: what comes again is the same object") {
  // More than 256 texts and objects: the numbers of some take four bytes.
  pickle_writer w;
  w.open_list();
  std::vector<pickle_writer::memo_id> objects;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 300; ++i) {
      w.text("text " + std::to_string(i));
      if (round == 0) {
        objects.push_back(w.open_object("module", "class"));
        w.text("self");
        w.recall(objects.back());
        w.close_object();
      } else {
        w.recall(objects[static_cast<std::size_t>(i)]);
      }
    }
  }
  w.global("module", "class");
  w.global("module", "other");
  w.text("module");
  w.close_list();
  const std::string bytes = std::move(w).finish();
  pickle_reader r(bytes);
  const value_ptr list = r.read();
  REQUIRE(list->items.size() == 1203);
  CHECK(r.remembered() == 300 + 300 + 6);  // also self, module, class, other and two globals
  for (std::size_t i = 0; i < 600; ++i) {
    INFO(i);
    CHECK(list->items[i] == list->items[600 + i]);
  }
  CHECK(list->items[598]->text == "text 299");
  const value_ptr object = list->items[599];
  CHECK(object->type == "object");
  CHECK(object->items[0] == list->items[1200]);
  CHECK(object->items[0]->text == "module.class");
  REQUIRE(object->state != nullptr);
  CHECK(object->state->type == "dict");
  CHECK(object->state->items[1] == object);
  CHECK(object != list->items[597]);
  CHECK(list->items[1201]->text == "module.other");
  CHECK(list->items[1202]->text == "module");

  // An object without attributes, and a call.
  CHECK(body([](pickle_writer& p) {
          p.open_object("m", "c");
          p.close_object();
        }) ==
        "\x8C\x01m\x94\x8C\x01"
        "c\x94\x93\x94)\x81\x94}b");
  CHECK(body([](pickle_writer& p) {
          p.global("m", "f");
          p.open_tuple();
          p.integer(7);
          p.close_tuple();
          p.call();
        }) ==
        "\x8C\x01m\x94\x8C\x01"
        "f\x94\x93\x94(K\x07tR");
}

/// What NumPy makes of a pickled array: type, shape and bytes.
struct array_facts {
  std::string type;
  std::vector<std::string> dims;
  std::string bytes;
};

array_facts facts_of(const graph::tensor& t) {
  const round_trip a([&](pickle_writer& w) { graph::ppq::detail::write_array(w, t); });
  REQUIRE(a->type == "call");
  CHECK(a->items[0]->text == "numpy.core.multiarray._reconstruct");
  const std::vector<value_ptr>& arguments = a->items[1]->items;
  REQUIRE(arguments.size() == 3);
  CHECK(arguments[0]->text == "numpy.ndarray");
  CHECK(arguments[1]->items.at(0)->text == "0");
  CHECK(arguments[2]->type == "bytes");
  CHECK(arguments[2]->text == "b");
  REQUIRE(a->state != nullptr);
  const std::vector<value_ptr>& state = a->state->items;
  REQUIRE(state.size() == 5);
  CHECK(state[0]->text == "1");
  CHECK(state[3]->type == "bool");
  CHECK(state[3]->text == "0");
  array_facts facts;
  for (const value_ptr& d : state[1]->items) {
    facts.dims.push_back(d->text);
  }
  const value_ptr type = state[2];
  CHECK(type->items[0]->text == "numpy.dtype");
  REQUIRE(type->state != nullptr);
  CHECK(type->state->items.size() == 8);
  facts.type = type->state->items.at(1)->text + type->items[1]->items.at(0)->text;
  CHECK(state[4]->type == "bytes");
  facts.bytes = state[4]->text;
  return facts;
}

template <class T>
array_facts facts_of(element_type type, graph::shape dims, const std::vector<T>& values) {
  return facts_of(graph::tensor::of<T>(type, std::move(dims), values));
}

TEST_CASE("pickle: arrays of NumPy") {
  const std::string order = std::endian::native == std::endian::little ? "<" : ">";
  const auto bytes_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()),
                       values.size() * sizeof(values[0]));
  };
  const std::vector<float> floats{1.0F,
                                  -0.0F,
                                  std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<float>::quiet_NaN(),
                                  1e-45F,
                                  3.5F};
  const array_facts f32 = facts_of(element_type::f32, {2, 1, 3}, floats);
  CHECK(f32.type == order + "f4");
  CHECK(f32.dims == std::vector<std::string>{"2", "1", "3"});
  CHECK(f32.bytes == bytes_of(floats));

  const array_facts scalar = facts_of(element_type::f32, {}, std::vector<float>{2.0F});
  CHECK(scalar.dims.empty());
  CHECK(scalar.bytes.size() == 4);
  const array_facts empty = facts_of(element_type::f32, {0, 70000}, std::vector<float>{});
  CHECK(empty.dims == std::vector<std::string>{"0", "70000"});
  CHECK(empty.bytes.empty());

  const std::vector<std::int64_t> whole{-1, (std::numeric_limits<std::int64_t>::min)()};
  CHECK(facts_of(element_type::s64, {2}, whole).bytes == bytes_of(whole));
  CHECK(facts_of(element_type::s64, {2}, whole).type == order + "i8");
  const std::vector<std::uint16_t> halves{0x3C00, 0x7C00, 0x8000};
  CHECK(facts_of(element_type::f16, {3}, halves).type == order + "f2");
  CHECK(facts_of(element_type::f16, {3}, halves).bytes == bytes_of(halves));
  // Every byte but 0 is true, and NumPy has 1 for it.
  const array_facts truths =
      facts_of(element_type::boolean, {4}, std::vector<std::uint8_t>{0, 1, 2, 255});
  CHECK(truths.type == "|b1");
  CHECK(truths.bytes == "\0\1\1\1"s);
  const std::map<element_type, std::string> others{
      {element_type::u8, "|u1"},         {element_type::s8, "|i1"},
      {element_type::u16, order + "u2"}, {element_type::s16, order + "i2"},
      {element_type::u32, order + "u4"}, {element_type::s32, order + "i4"},
      {element_type::u64, order + "u8"}, {element_type::f64, order + "f8"}};
  for (const auto& [type, name] : others) {
    graph::tensor t = graph::tensor::allocate(type, {3});
    for (std::size_t i = 0; i < t.bytes(); ++i) {
      t.mutable_raw()[i] = static_cast<std::byte>(i + 1);
    }
    const array_facts facts = facts_of(t);
    CHECK(facts.type == name);
    CHECK(facts.bytes == std::string(reinterpret_cast<const char*>(t.raw()), t.bytes()));
  }

  std::vector<std::int32_t> large(40000);
  for (std::size_t i = 0; i < large.size(); ++i) {
    large[i] = static_cast<std::int32_t>(i * 2654435761U);
  }
  CHECK(facts_of(element_type::s32, {200, 200}, large).bytes == bytes_of(large));

  for (const element_type type : {element_type::bf16, element_type::f8e4m3fn, element_type::s4}) {
    check_graph_error(error_kind::unsupported, {name(type)}, [&] {
      pickle_writer w;
      graph::ppq::detail::write_array(w, graph::tensor::allocate(type, {2}));
    });
  }
  check_graph_error(error_kind::invalid_argument, {"without data"}, [] {
    pickle_writer w;
    graph::ppq::detail::write_array(w, graph::tensor(element_type::f32, {2}));
  });
}

}  // namespace
