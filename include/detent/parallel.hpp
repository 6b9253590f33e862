// SPDX-License-Identifier: BSD-3-Clause
// parallel_for, the interface through which functions use the caller's threads, and thread_pool, an
// implementation for callers who have no threads of their own.
#ifndef DETENT_PARALLEL_HPP
#define DETENT_PARALLEL_HPP

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN

/// The type of a function that calls body(i) exactly once for each i in [0, count), in any order
/// and on any threads, and returns when all calls have returned. Functions of the library that take
/// a parallel_for divide their work through it; an empty one means that the calling thread does
/// everything. Results never depend on it. The library never starts threads by itself.
using parallel_for =
    std::function<void(std::size_t count, const std::function<void(std::size_t)>& body)>;

namespace detail {
/// Runs body(0) .. body(count - 1) through `parallel`, or in order on the calling thread if
/// `parallel` is empty or there is at most one index. Allocates nothing itself.
template <class Body>
void run_parallel(const parallel_for& parallel, std::size_t count, const Body& body) {
  if (parallel && count > 1) {
    parallel(count, std::function<void(std::size_t)>(std::cref(body)));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    body(i);
  }
}

/// How often this process was made from another one by fork() since the first watched_fork_count().
inline std::atomic<unsigned>& fork_count() noexcept {
  static std::atomic<unsigned> count{0};
  return count;
}
/// fork_count(), which counts from now on at the latest. Where there is no fork(), it stays 0.
inline unsigned watched_fork_count() noexcept {
#if defined(__unix__) || defined(__APPLE__)
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++fork_count(); });
  static_cast<void>(registered);
#endif
  return fork_count();
}

/// The threads of a thread_pool and what they share.
class pool_workers {
 public:
  explicit pool_workers(std::size_t threads) : shares_(threads) {}
  pool_workers(const pool_workers&) = delete;
  pool_workers& operator=(const pool_workers&) = delete;
  ~pool_workers() = default;

  [[nodiscard]] std::size_t size() const noexcept { return shares_.size(); }

  void start() {
    for (std::size_t i = 1; i < size(); ++i) {
      workers_.emplace_back([this, i] { work(i); });
    }
  }
  void stop() {
    stopping_ = true;
    wake_sleepers();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  /// What thread_pool::run() does, for a count above 0.
  void run(std::size_t count, const std::function<void(std::size_t)>& body) {
    const std::lock_guard one_job(job_mutex_);
    body_ = &body;
    std::size_t first = 0;
    for (std::size_t t = 0; t < size(); ++t) {
      shares_[t].next = first;
      first += count / size() + (t < count % size() ? 1 : 0);
      shares_[t].end = first;
    }
    is_open_ = true;
    ++jobs_;
    wake_sleepers();
    take(0);
    is_open_ = false;
    const auto all_are_back = [this] { return running_ == 0; };
    wait_awake(all_are_back);
    if (!all_are_back()) {
      std::unique_lock lock(mutex_);
      done_.wait(lock, all_are_back);
    }
    if (failure_) {
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
  }

 private:
  /// The indices of a job that one thread begins with: next, ..., end - 1. Each share has a cache
  /// line of its own.
  struct alignas(64) share {
    std::atomic<std::size_t> next{0};
    std::size_t end = 0;
  };

  void work(std::size_t self) {
    std::size_t seen = 0;
    const auto is_wanted = [&] { return jobs_ != seen || stopping_; };
    while (true) {
      wait_awake(is_wanted);
      if (!is_wanted()) {
        std::unique_lock lock(mutex_);
        ++sleepers_;
        wake_.wait(lock, is_wanted);
        --sleepers_;
      }
      if (stopping_) {
        return;
      }
      seen = jobs_;
      // The order matters: first running_, then is_open_. Either this thread sees that the job is
      // over, or run() sees that this thread is at it and waits.
      ++running_;
      if (is_open_) {
        take(self);
      }
      if (--running_ == 0) {
        const std::lock_guard lock(mutex_);
        done_.notify_one();
      }
    }
  }

  /// Wakes all sleeping threads. Callers change what the threads wait for first; work() counts a
  /// sleeper before it looks at that: either the thread is counted here, or it sees the change and
  /// does not sleep.
  void wake_sleepers() {
    if (sleepers_ != 0) {
      const std::lock_guard lock(mutex_);
      wake_.notify_all();
    }
  }

  /// Spins until ready(), for some 50 us at most: to fall asleep and be woken takes as long as a
  /// small product. Other threads of the processor may run meanwhile.
  template <class Ready>
  static void wait_awake(const Ready& ready) {
    constexpr int patience = 200;
    for (int i = 0; i < patience && !ready(); ++i) {
      std::this_thread::yield();
    }
  }

  /// Runs indices until none is left: first those of share `self`, then those of the other shares.
  void take(std::size_t self) {
    for (std::size_t t = 0; t < size(); ++t) {
      share& from = shares_[(self + t) % size()];
      if (from.next >= from.end) {
        continue;  // an increment would take the cache line from others
      }
      for (std::size_t i = from.next++; i < from.end; i = from.next++) {
#if DETENT_WITH_EXCEPTIONS
        try {
          (*body_)(i);
        } catch (...) {
          note_failure();
        }
#else
        (*body_)(i);
#endif
      }
    }
  }

#if DETENT_WITH_EXCEPTIONS
  /// Keeps the first exception and drops the indices that have not begun.
  void note_failure() {
    const std::lock_guard lock(mutex_);
    failure_ = failure_ ? failure_ : std::current_exception();
    for (share& s : shares_) {
      s.next = s.end;
    }
  }
#endif

  std::mutex job_mutex_;  // held for a whole job
  // The job, in these two members: written only while it is not open and no worker runs.
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::vector<share> shares_;  // one for each thread
  std::atomic<bool> is_open_{false};
  std::atomic<std::size_t> jobs_{0};      // number of jobs so far
  std::atomic<std::size_t> running_{0};   // workers that are at the job
  std::atomic<std::size_t> sleepers_{0};  // workers that are asleep, or about to be
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards failure_, and the transitions to sleep
  std::condition_variable wake_;
  std::condition_variable done_;
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

}  // namespace detail

/// A fixed set of threads for callers who have none: pass pool.parallel() as the parallel_for. The
/// thread that calls works, too.
///
/// Thread-safe. The pool runs one job at a time: concurrent callers wait for each other. A body
/// must not call into its own pool (it would wait forever). If bodies throw, the indices that have
/// not begun are dropped, and the first exception is rethrown to the caller. Threads without a job
/// spin for some 50 us, yielding the processor to others, and sleep after that.
///
/// In a process that fork() has made, a pool of the parent has no threads: there it runs jobs on
/// the calling thread alone, and its end releases nothing that the parent's threads used.
///
/// For the same count, each thread begins with the same part of the indices, so that data which it
/// wrote in one job are in its caches in the next. A thread that has done its part takes indices of
/// the others.
class thread_pool {
 public:
  /// Starts the threads. `threads` includes the caller's thread: 1 starts none; 0 means one for
  /// each hardware thread. Throws std::system_error if a thread cannot be started.
  explicit thread_pool(std::size_t threads = 0)
      : workers_(std::make_unique<detail::pool_workers>(
            threads != 0 ? threads : (std::max)(std::thread::hardware_concurrency(), 1U))) {
#if DETENT_WITH_EXCEPTIONS
    try {
      workers_->start();
    } catch (...) {  // the system gave no further thread: end those that were started
      workers_->stop();
      throw;
    }
#else
    workers_->start();
#endif
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  /// Ends the threads. No job may be running.
  ~thread_pool() {
    if (is_forked()) {
      // The threads are those of the parent. What they wait for cannot be destroyed here.
      static_cast<void>(workers_.release());
    } else {
      workers_->stop();
    }
  }

  /// Number of threads that work on a job, the caller's included.
  [[nodiscard]] std::size_t size() const noexcept { return workers_->size(); }

  /// A parallel_for that calls run(). It must not be used after the pool's end.
  [[nodiscard]] parallel_for parallel() {
    return [this](std::size_t count, const std::function<void(std::size_t)>& body) {
      run(count, body);
    };
  }

  /// Calls body(i) once for each i in [0, count) on the pool's threads and the calling one, and
  /// returns when all calls have returned. Rethrows the first exception of a body. Waits for the
  /// jobs of other callers first.
  void run(std::size_t count, const std::function<void(std::size_t)>& body) {
    if (is_forked()) {
      detail::run_parallel({}, count, body);
    } else if (count > 0) {
      workers_->run(count, body);
    }
  }

 private:
  [[nodiscard]] bool is_forked() const noexcept { return forks_ != detail::fork_count(); }

  const unsigned forks_ = detail::watched_fork_count();
  std::unique_ptr<detail::pool_workers> workers_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_PARALLEL_HPP
