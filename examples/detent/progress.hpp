// SPDX-License-Identifier: BSD-3-Clause
// A progress bar on standard error for work that takes over a second. It is not shown if standard
// error is not a terminal.
#ifndef DETENT_CLI_PROGRESS_HPP
#define DETENT_CLI_PROGRESS_HPP

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

#include <unistd.h>

namespace detent_cli {

/// Shows what is being done, and how much of it is done.
class progress {
 public:
  progress(std::string what, std::size_t total)
      : what_(std::move(what)), total_(total), terminal_(isatty(STDERR_FILENO) == 1) {}
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() {
    if (shown_) {
      std::fprintf(stderr, "\r\033[K");
    }
  }

  /// Changes what is being done, of `total` parts. If `counts_samples` is false, advance_samples()
  /// has no effect until the next call.
  void begin(std::string what, std::size_t total, bool counts_samples) {
    what_ = std::move(what);
    total_ = total;
    counts_samples_ = counts_samples;
    is_new_ = true;
  }

  /// Changes the text that is shown with the next advance.
  void describe(std::string what) { what_ = std::move(what); }

  /// Advances a pass over samples, which may be part of other work that is counted itself.
  void advance_samples(std::size_t done) {
    if (counts_samples_) {
      advance(done);
    }
  }

  void advance(std::size_t done) {
    using namespace std::chrono_literals;
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - start_ < 1s || (now - last_ < 100ms && !is_new_) || total_ == 0) {
      return;
    }
    last_ = now;
    shown_ = true;
    is_new_ = false;
    constexpr std::size_t width = 40;
    const std::size_t filled = done < total_ ? width * done / total_ : width;
    std::fprintf(stderr, "\r\033[K%s [%s%s] %zu/%zu", what_.c_str(),
                 std::string(filled, '#').c_str(), std::string(width - filled, '.').c_str(), done,
                 total_);
  }

 private:
  std::string what_;
  std::size_t total_;
  bool terminal_;
  bool shown_ = false;
  bool is_new_ = false;  // what is being done has not been shown yet
  bool counts_samples_ = true;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace detent_cli

#endif  // DETENT_CLI_PROGRESS_HPP
