// SPDX-License-Identifier: BSD-3-Clause
// Reads the pickles that the library writes, by the documentation of Python's pickletools.
#ifndef DETENT_TESTS_GRAPH_READ_PICKLE_HPP
#define DETENT_TESTS_GRAPH_READ_PICKLE_HPP

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace test {

/// A value of Python. Values that are the same object in Python are the same object here.
struct python_value {
  std::string type;  // None, bool, int, float, str, bytes, list, dict, tuple, global, call, object
  std::string text;  // of str, bytes and global; the digits of bool; the bytes of an int
  double real = 0.0;
  std::vector<std::shared_ptr<python_value>>
      items;                            // of containers; function and arguments of a call
  std::shared_ptr<python_value> state;  // that was set last

  /// The value behind a text of a dictionary, or of an object's attributes.
  [[nodiscard]] const std::shared_ptr<python_value>& at(std::string_view key) const {
    const std::vector<std::shared_ptr<python_value>>& all = type == "object" ? state->items : items;
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
      if (all[i]->type == "str" && all[i]->text == key) {
        return all[i + 1];
      }
    }
    FAIL("no key ", std::string(key));
    return all.at(0);
  }
};
using value_ptr = std::shared_ptr<python_value>;

/// Reads pickles, one after the other, of the opcodes that pickle_writer has. The bytes must
/// outlive it. Values have their items and their state as long as the reader lives: objects of
/// Python may hold each other in circles.
class pickle_reader {
 public:
  explicit pickle_reader(std::string_view bytes) : bytes_(bytes) {}
  pickle_reader(const pickle_reader&) = delete;
  pickle_reader& operator=(const pickle_reader&) = delete;
  ~pickle_reader() {
    for (const value_ptr& value : values_) {
      value->items.clear();
      value->state = nullptr;
    }
  }

  /// The value of the next pickle.
  value_ptr read() {
    stack_.clear();
    memo_.clear();
    REQUIRE(take(2) == "\x80\x04");
    for (;;) {
      const char code = take(1)[0];
      if (code == '.') {
        REQUIRE(stack_.size() == 1);
        REQUIRE(marks_.empty());
        return stack_[0];
      }
      step(code);
    }
  }
  [[nodiscard]] bool at_end() const { return at_ == bytes_.size(); }
  /// How many values the last pickle had taken down.
  [[nodiscard]] std::size_t remembered() const { return memo_.size(); }

 private:
  std::string_view take(std::size_t count) {
    REQUIRE(count <= bytes_.size() - at_);
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  std::uint64_t number(std::size_t count) {
    std::uint64_t n = 0;
    const std::string_view bytes = take(count);
    for (std::size_t i = 0; i < count; ++i) {
      n |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return n;
  }
  void push(std::string type, std::string text = {}) {
    values_.push_back(std::make_shared<python_value>());
    stack_.push_back(values_.back());
    stack_.back()->type = std::move(type);
    stack_.back()->text = std::move(text);
  }
  value_ptr pop() {
    REQUIRE(!stack_.empty());
    value_ptr top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<value_ptr> pop_to_mark() {
    REQUIRE(!marks_.empty());
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<value_ptr> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    REQUIRE(!items.empty());  // empty containers have no marks
    return items;
  }
  void push_int(std::int64_t n) {
    push("int");
    stack_.back()->text = std::to_string(n);
  }
  void step(char code) {
    switch (code) {
      case 'N':
        return push("None");
      case '\x88':
        return push("bool", "1");
      case '\x89':
        return push("bool", "0");
      case 'K':
        return push_int(static_cast<std::int64_t>(number(1)));
      case 'M':
        return push_int(static_cast<std::int64_t>(number(2)));
      case 'J':
        return push_int(static_cast<std::int32_t>(number(4)));
      case '\x8A':
        return push("int", "bytes " + std::string(take(number(1))));
      case 'G': {
        std::uint64_t bits = 0;
        for (const char c : take(8)) {
          bits = bits << 8U | static_cast<unsigned char>(c);
        }
        push("float");
        stack_.back()->real = std::bit_cast<double>(bits);
        return;
      }
      case '\x8C':
        return push("str", std::string(take(number(1))));
      case 'X':
        return push("str", std::string(take(number(4))));
      case 'C':
        return push("bytes", std::string(take(number(1))));
      case 'B':
        return push("bytes", std::string(take(number(4))));
      case ']':
        return push("list");
      case '}':
        return push("dict");
      case ')':
        return push("tuple");
      case '(':
        marks_.push_back(stack_.size());
        return;
      case 'e':
      case 'u': {
        std::vector<value_ptr> items = pop_to_mark();
        REQUIRE(stack_.back()->type == (code == 'e' ? "list" : "dict"));
        REQUIRE((code == 'e' || items.size() % 2 == 0));
        stack_.back()->items = std::move(items);
        return;
      }
      case 't': {
        std::vector<value_ptr> items = pop_to_mark();
        push("tuple");
        stack_.back()->items = std::move(items);
        return;
      }
      case '\x93': {
        const std::string name = pop()->text;
        const std::string module_name = pop()->text;
        return push("global", module_name + "." + name);
      }
      case 'R':
      case '\x81': {
        const value_ptr arguments = pop();
        const value_ptr function = pop();
        REQUIRE(arguments->type == "tuple");
        REQUIRE(function->type == "global");
        push(code == 'R' ? "call" : "object");
        stack_.back()->items = {function, arguments};
        return;
      }
      case 'b': {
        const value_ptr state = pop();
        stack_.back()->state = state;
        return;
      }
      case '\x94':
        memo_.push_back(stack_.back());
        return;
      case 'h':
        return stack_.push_back(memo_.at(number(1)));
      case 'j':
        return stack_.push_back(memo_.at(number(4)));
      default:
        FAIL("opcode ", static_cast<int>(code));
    }
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::vector<value_ptr> stack_;
  std::vector<std::size_t> marks_;
  std::vector<value_ptr> memo_;
  std::vector<value_ptr> values_;  // all that were made
};

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_READ_PICKLE_HPP
