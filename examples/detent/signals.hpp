// SPDX-License-Identifier: BSD-3-Clause
// Work that a signal ends early, with the best result so far.
#ifndef DETENT_CLI_SIGNALS_HPP
#define DETENT_CLI_SIGNALS_HPP

#include <csignal>

namespace detent_cli {

/// The signal that a signal_guard has noted; 0 if there was none.
inline volatile std::sig_atomic_t interrupted = 0;

/// Notes a signal instead of ending the program, while it exists. When the signal comes again, it
/// ends the program. A signal that is ignored, as under nohup, stays ignored.
class signal_guard {
 public:
  explicit signal_guard(int signal) : signal_(signal), before_(std::signal(signal, &on_signal)) {
    if (before_ == SIG_IGN) {
      static_cast<void>(std::signal(signal, SIG_IGN));
    }
  }
  signal_guard(const signal_guard&) = delete;
  signal_guard& operator=(const signal_guard&) = delete;
  ~signal_guard() { static_cast<void>(std::signal(signal_, before_)); }

 private:
  static void on_signal(int signal) {
    interrupted = signal;
    static_cast<void>(std::signal(signal, SIG_DFL));
  }

  int signal_;
  void (*before_)(int);
};

}  // namespace detent_cli

#endif  // DETENT_CLI_SIGNALS_HPP
