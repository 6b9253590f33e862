// SPDX-License-Identifier: BSD-3-Clause
// How the library says no: detent::error, or a handler where exceptions are off.
#ifndef DETENT_ERROR_HPP
#define DETENT_ERROR_HPP

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN

enum class error_kind : std::uint8_t {
  invalid_argument,  // an argument is out of its domain (scale <= 0, zero point outside the type,
                     // ...)
  shape_mismatch,    // sizes that must agree do not
  overflow,          // the exact result may not fit the type that was asked for
  unsupported,       // right in principle, but this build, target or release has no code for it
  bad_file,          // a file is damaged, hostile or not what it claims to be
  io,                // the operating system refused to read or write
};

/// What every public entry point throws. `what()` names the offending argument and its value;
/// the graph floor also names file, node and tensor.
class error : public std::runtime_error {
 public:
  error(error_kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] error_kind kind() const noexcept { return kind_; }

 private:
  error_kind kind_;
};

/// Called instead of throwing where the library is compiled with -fno-exceptions. It must not
/// return; if it does, std::abort() follows. Set it before the first call into the library.
using error_handler = void (*)(error_kind kind, const char* message);
inline error_handler& error_handler_without_exceptions() noexcept {
  static error_handler handler = nullptr;
  return handler;
}

/// Throws detent::error with the message as it is or, without exceptions, calls the handler and
/// then std::abort(). For operators and observers of one's own, whose errors should look like the
/// library's. Thread-safe.
[[noreturn]] inline void raise(error_kind kind, const std::string& message) {
#if DETENT_WITH_EXCEPTIONS
  throw error(kind, message);
#else
  if (error_handler_without_exceptions() != nullptr) {
    error_handler_without_exceptions()(kind, message.c_str());
  }
  std::abort();
#endif
}

namespace detail {

/// Joins its arguments as operator<< prints them. Bytes print as numbers.
template <class... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream out;
  [[maybe_unused]] const auto print = [&out](const auto& part) {
    using part_type = std::decay_t<decltype(part)>;
    if constexpr (std::is_same_v<part_type, std::int8_t> ||
                  std::is_same_v<part_type, std::uint8_t>) {
      out << static_cast<int>(part);
    } else {
      out << part;
    }
  };
  (print(parts), ...);
  return out.str();
}

}  // namespace detail

/// Checks an argument: if `condition` does not hold, raises an error whose message is "detent: "
/// and the parts, joined as operator<< prints them (bytes as numbers). The parts are not evaluated
/// into a string unless the check fails. Thread-safe.
template <class... Parts>
void require(bool condition, error_kind kind, const Parts&... parts) {
  if (!condition) [[unlikely]] {
    raise(kind, detail::message("detent: ", parts...));
  }
}

DETENT_NAMESPACE_END

#endif  // DETENT_ERROR_HPP
