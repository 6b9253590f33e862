// SPDX-License-Identifier: BSD-3-Clause
// What the fuzz targets share. A target is a function LLVMFuzzerTestOneInput(), which libFuzzer
// calls (preset fuzz, clang), or driver.cpp, which needs no special compiler.
#ifndef DETENT_TESTS_FUZZ_FUZZ_TARGET_HPP
#define DETENT_TESTS_FUZZ_FUZZ_TARGET_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include <detent/error.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

/// Ends the process with a message: a finding.
[[noreturn]] inline void finding(const char* what, std::string_view detail) {
  std::fprintf(stderr, "FINDING: %s: %.*s\n", what, static_cast<int>(detail.size()), detail.data());
  std::abort();
}

/// Calls f. It may throw detent::error with a message of one line; returns false then. Anything
/// else is a finding.
template <class Function>
bool harmless(const char* what, const Function& f) {
  try {
    f();
    return true;
  } catch (const detent::error& e) {
    const std::string_view message = e.what();
    if (message.find_first_of("\n\r") != std::string_view::npos) {
      finding("a message of several lines", message);
    }
  } catch (const std::exception& e) {
    finding(what, e.what());
  } catch (...) {
    finding(what, "an exception of another kind");
  }
  return false;
}

/// Takes numbers from the front of the input. An input that is used up gives zeros.
class numbers {
 public:
  explicit numbers(std::span<const std::uint8_t> bytes) : rest_(bytes) {}

  template <class T>
  [[nodiscard]] T get() {
    T value{};
    const std::size_t n = rest_.size() < sizeof(T) ? rest_.size() : sizeof(T);
    if (n > 0) {  // an empty input may have a null pointer, which memcpy() must not get
      std::memcpy(&value, rest_.data(), n);
    }
    rest_ = rest_.subspan(n);
    return value;
  }
  /// A number from 0 up to, not including, `end`.
  [[nodiscard]] std::size_t below(std::size_t end) {
    return end == 0 ? 0 : get<std::uint32_t>() % end;
  }
  [[nodiscard]] std::span<const std::uint8_t> rest() const noexcept { return rest_; }

 private:
  std::span<const std::uint8_t> rest_;
};

/// The bytes as a file. There is one for each process; it is overwritten each time.
inline std::string as_file(std::span<const std::uint8_t> bytes, const char* ending) {
  static const std::filesystem::path folder = [] {
    std::string name = (std::filesystem::temp_directory_path() / "detent_fuzz_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      finding("cannot make a folder", name);
    }
    return std::filesystem::path(name);
  }();
  static const struct cleanup {
    ~cleanup() {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    }
  } at_exit;
  static_cast<void>(at_exit);
  const std::filesystem::path path = folder / (std::string("input") + ending);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  return path.string();
}

}  // namespace fuzz

#endif  // DETENT_TESTS_FUZZ_FUZZ_TARGET_HPP
