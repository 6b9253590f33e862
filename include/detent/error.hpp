// SPDX-License-Identifier: BSD-3-Clause
// How the library reports failures: it throws detent::error or, in a build without exceptions,
// calls a handler and aborts.
#ifndef DETENT_ERROR_HPP
#define DETENT_ERROR_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN

/// The cause of an error, for callers that handle causes differently.
enum class error_kind : std::uint8_t {
  invalid_argument,  ///< An argument is out of its domain: scale <= 0, zero point off the grid, ...
  shape_mismatch,    ///< Sizes that must agree do not agree.
  overflow,          ///< The exact result may not fit the type that was asked for.
  unsupported,       ///< The request is valid, but this build, target or release cannot serve it.
  bad_file,          ///< A file is damaged, hostile or not what it claims to be.
  io,                ///< The operating system refused to read or write.
};

/// The exception that public functions throw when they fail. `what()` names the offending argument
/// and its value; functions on ONNX graphs also name file, node and tensor.
class error : public std::runtime_error {
 public:
  /// An error with the given kind and text, which `what()` returns unchanged.
  error(error_kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  /// The cause of the error.
  [[nodiscard]] error_kind kind() const noexcept { return kind_; }

 private:
  error_kind kind_;
};

/// A function that is called instead of throwing where the library is compiled with
/// -fno-exceptions. It must not return; if it does, std::abort() follows.
using error_handler = void (*)(error_kind kind, const char* message);

/// The handler in use by builds without exceptions; null (the default) means std::abort() at once.
/// Assign to it before the first call into the library: the variable is not synchronized.
inline error_handler& error_handler_without_exceptions() noexcept {
  static error_handler handler = nullptr;
  return handler;
}

/// `text` with each control character replaced by '?': those below U+0020, among them line ends and
/// the escape that begins a terminal's commands, and U+007F to U+009F in UTF-8. Names that come
/// from files may hold any of them.
[[nodiscard]] inline std::string one_line(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte < 0x20U || byte == 0x7FU) {
      text[i] = '?';
    } else if (byte == 0xC2U && next >= 0x80U && next <= 0x9FU) {
      text.replace(i, 2, "?");
    }
  }
  return text;
}

/// Throws detent::error with this kind and with one_line(message). In a build without exceptions it
/// calls the handler and then std::abort(). Use it in your own operators and observers, so that
/// their errors look like those of the library. Thread-safe.
[[noreturn]] inline void raise(error_kind kind, const std::string& message) {
#if DETENT_WITH_EXCEPTIONS
  throw error(kind, one_line(message));
#else
  if (error_handler_without_exceptions() != nullptr) {
    error_handler_without_exceptions()(kind, one_line(message).c_str());
  }
  std::abort();
#endif
}

namespace detail {

/// A part of a message: text, a number, or an object that has append_to(std::string&) const, which
/// is called only if the message is made. Refers to what it is made of. Neither templates nor
/// streams stand behind it, since every check of the library makes some.
class message_part {
 public:
  template <class T>
  message_part(const T& value) noexcept {  // NOLINT: implicit
    if constexpr (std::is_same_v<T, char>) {
      kind_ = kind::character;
      signed_ = value;
    } else if constexpr (std::is_floating_point_v<T>) {
      kind_ = kind::real;
      real_ = static_cast<double>(value);
    } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
      kind_ = kind::signed_integer;
      signed_ = value;
    } else if constexpr (std::is_integral_v<T>) {
      kind_ = kind::unsigned_integer;
      unsigned_ = value;
    } else if constexpr (requires(std::string & out) { value.append_to(out); }) {
      kind_ = kind::writer;
      object_ = &value;
      write_ = [](const void* object, std::string& out) {
        static_cast<const T*>(object)->append_to(out);
      };
    } else {
      kind_ = kind::text;
      text_ = value;
    }
  }

  /// Adds it as `operator<<` of streams prints it.
  void append_to(std::string& out) const {
    char digits[32];
    switch (kind_) {
      case kind::text:
        out += text_;
        break;
      case kind::character:
        out += static_cast<char>(signed_);
        break;
      case kind::signed_integer:
        out += std::to_string(signed_);
        break;
      case kind::unsigned_integer:
        out += std::to_string(unsigned_);
        break;
      case kind::real:
        std::snprintf(digits, sizeof digits, "%g", real_);
        out += digits;
        break;
      case kind::writer:
        write_(object_, out);
        break;
    }
  }

 private:
  enum class kind : std::uint8_t {
    text,
    character,
    signed_integer,
    unsigned_integer,
    real,
    writer
  };
  kind kind_ = kind::text;
  std::string_view text_;
  long long signed_ = 0;
  unsigned long long unsigned_ = 0;
  double real_ = 0.0;
  const void* object_ = nullptr;
  void (*write_)(const void* object, std::string& out) = nullptr;
};

[[nodiscard]] inline std::string joined_message(std::initializer_list<message_part> parts) {
  std::string out;
  for (const message_part& part : parts) {
    part.append_to(out);
  }
  return out;
}

/// Joins its arguments as `operator<<` of streams prints them, bytes as numbers.
template <class... Parts>
std::string message(const Parts&... parts) {
  return joined_message({message_part(parts)...});
}

}  // namespace detail

/// raise() with a message that is joined from parts; see require().
template <class First, class... Parts>
[[noreturn]] void raise(error_kind kind, const First& first,
                        const Parts&... parts) requires(sizeof...(Parts) > 0) {
  raise(kind,
        detail::joined_message({detail::message_part(first), detail::message_part(parts)...}));
}

/// Checks an argument: if `condition` is false, raises an error of this kind whose message is
/// "detent: " and the parts, joined. A part is text, a number, which is written as streams write it
/// (bytes as numbers, too), or an object with append_to(std::string&) const. Parts are turned into
/// text only if the check fails. Thread-safe.
template <class... Parts>
void require(bool condition, error_kind kind, const Parts&... parts) {
  if (!condition) [[unlikely]] {
    raise(kind, detail::joined_message(
                    {detail::message_part("detent: "), detail::message_part(parts)...}));
  }
}

DETENT_NAMESPACE_END

#endif  // DETENT_ERROR_HPP
