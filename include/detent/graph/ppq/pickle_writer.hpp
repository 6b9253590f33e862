// SPDX-License-Identifier: BSD-3-Clause
// Writes Python objects as Python's module pickle does.
#ifndef DETENT_GRAPH_PPQ_PICKLE_WRITER_HPP
#define DETENT_GRAPH_PPQ_PICKLE_WRITER_HPP

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/name_table.hpp>
#include <detent/graph/ppq/utf8.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// Builds a pickle value by value. It is of protocol 4, which Python 3.4 and later read, without
/// the optional frames. The caller opens and closes containers and objects in turn; within an open
/// dictionary or object, keys and values alternate. When finish() is called, exactly one value must
/// have been written outside of containers.
///
/// Each distinct text is written once; where it comes again, the pickle refers to the first. Other
/// values that have to be the same object in Python are written once, too, with remember() after
/// them and recall() where they come again.
///
/// Format: Python's standard library, modules pickle and pickletools.
class pickle_writer {
 public:
  /// Names a value that remember() has taken down.
  enum class memo_id : std::uint32_t {};

  /// None.
  void none() { code('N'); }
  /// True or False.
  void boolean(bool truth) { code(truth ? '\x88' : '\x89'); }
  /// An int.
  template <std::integral T>
  void integer(T number) {
    if (std::in_range<std::uint8_t>(number)) {
      code('K');
      little_endian(static_cast<std::uint64_t>(number), 1);
    } else if (std::in_range<std::uint16_t>(number)) {
      code('M');
      little_endian(static_cast<std::uint64_t>(number), 2);
    } else if (std::in_range<std::int32_t>(number)) {
      code('J');
      little_endian(static_cast<std::uint64_t>(number), 4);
    } else {
      long_integer(static_cast<std::uint64_t>(number), number < 0);
    }
  }
  /// A float.
  void real(double number) {
    code('G');
    const auto bits = std::bit_cast<std::uint64_t>(number);
    for (int shift = 56; shift >= 0; shift -= 8) {
      out_ += static_cast<char>(bits >> static_cast<unsigned>(shift) & 0xFFU);
    }
  }
  /// A str. Throws invalid_argument, with the text, for bytes that are not UTF-8: Python could not
  /// read the pickle.
  void text(std::string_view value) {
    if (const std::uint32_t* const known = texts_.find(value)) {
      recall(static_cast<memo_id>(*known));
      return;
    }
    require(is_utf8(value), error_kind::invalid_argument, "pickle: '", std::string(value),
            "' is not UTF-8");
    sized(value, '\x8C', 'X', '\x8D');
    texts_.add(value, static_cast<std::uint32_t>(remember()));
  }
  /// A bytes object.
  void bytes(std::string_view value) { sized(value, 'C', 'B', '\x8E'); }
  /// A bytes object.
  void bytes(std::span<const std::byte> value) {
    bytes(std::string_view(reinterpret_cast<const char*>(value.data()), value.size()));
  }

  /// Begins a list.
  void open_list() { open("]("); }
  /// Ends the list that was begun last.
  void close_list() { close('e', '\0'); }
  /// Begins a dictionary.
  void open_dictionary() { open("}("); }
  /// Ends the dictionary that was begun last.
  void close_dictionary() { close('u', '\0'); }
  /// Begins a tuple.
  void open_tuple() { open("("); }
  /// Ends the tuple that was begun last.
  void close_tuple() { close('t', ')'); }

  /// A class or function, by the names of its module and of itself.
  void global(std::string_view module_name, std::string_view name) {
    const std::string key = std::string(module_name) + "\n" + std::string(name);
    if (const std::uint32_t* const known = globals_.find(key)) {
      recall(static_cast<memo_id>(*known));
      return;
    }
    text(module_name);
    text(name);
    code('\x93');
    globals_.add(key, static_cast<std::uint32_t>(remember()));
  }
  /// The last two values, a callable and a tuple of arguments, become what the call returns.
  void call() { code('R'); }
  /// The last two values, an object and its state, become the object in that state.
  void set_state() { code('b'); }
  /// Begins an instance of a class, made without calling its __init__. Attributes follow as in a
  /// dictionary. The result names the instance, also while it is open.
  memo_id open_object(std::string_view module_name, std::string_view name) {
    global(module_name, name);
    code(')');
    code('\x81');
    const memo_id id = remember();
    open_dictionary();
    return id;
  }
  /// Ends the object that was begun last.
  void close_object() {
    close_dictionary();
    set_state();
  }

  /// Takes down the last value, for recall(). Not for a container that is still open.
  memo_id remember() {
    code('\x94');
    return static_cast<memo_id>(remembered_++);
  }
  /// The value that remember() took down, the same object.
  void recall(memo_id id) {
    const auto number = static_cast<std::uint32_t>(id);
    code(number <= 0xFFU ? 'h' : 'j');
    little_endian(number, number <= 0xFFU ? 1 : 4);
  }

  /// The pickle.
  [[nodiscard]] std::string finish() && {
    code('.');
    return std::move(out_);
  }

 private:
  void code(char opcode) { out_ += opcode; }
  void little_endian(std::uint64_t number, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      out_ += static_cast<char>(number >> (8 * i) & 0xFFU);
    }
  }
  /// Writes an int as two's complement in as few bytes as keep its sign.
  void long_integer(std::uint64_t bits, bool is_negative) {
    const std::uint8_t sign = is_negative ? 0xFFU : 0U;
    std::size_t count = 8;
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(bits >> (8 * i)); };
    while (count > 1 && byte(count - 1) == sign) {
      --count;
    }
    const bool needs_sign = byte(count - 1) >> 7U != (sign & 1U);
    code('\x8A');
    little_endian(count + (needs_sign ? 1 : 0), 1);
    little_endian(bits, count);
    if (needs_sign) {
      little_endian(sign, 1);
    }
  }
  /// Writes bytes after their number, which takes 1, 4 or 8 bytes.
  void sized(std::string_view value, char one, char four, char eight) {
    const bool is_short = value.size() <= 0xFFU;
    const bool is_long = value.size() > 0xFFFFFFFFU;
    code(is_short ? one : is_long ? eight : four);
    little_endian(value.size(), is_short ? 1 : is_long ? 8 : 4);
    out_ += value;
  }
  void open(std::string_view opcodes) {
    out_ += opcodes;
    marks_.push_back(out_.size());
  }
  /// Ends a container. One without items loses its mark and becomes `empty`, if that is an opcode.
  void close(char opcode, char empty) {
    if (marks_.back() != out_.size()) {
      code(opcode);
    } else {
      out_.pop_back();
      out_.append(empty == '\0' ? 0 : 1, empty);
    }
    marks_.pop_back();
  }

  std::string out_ = "\x80\x04";
  std::vector<std::size_t> marks_;  // where the items of open containers begin
  std::uint32_t remembered_ = 0;
  graph::detail::name_table<std::uint32_t> texts_{0};    // the memo_id of each
  graph::detail::name_table<std::uint32_t> globals_{0};  // likewise
};

}  // namespace detail
}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_PICKLE_WRITER_HPP
