// SPDX-License-Identifier: BSD-3-Clause
// Threads are the caller's: whatever can run a body for 0..count-1 can be passed as a parallel_for.
#ifndef DETENT_PARALLEL_HPP
#define DETENT_PARALLEL_HPP

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN

/// Calls body(i) once for each i in [0, count), in any order and on any threads, and returns when
/// all have returned. An empty function means the calling thread. Results never depend on the
/// choice.
using parallel_for =
    std::function<void(std::size_t count, const std::function<void(std::size_t)>& body)>;

namespace detail {
inline void run_parallel(const parallel_for& parallel, std::size_t count,
                         const std::function<void(std::size_t)>& body) {
  if (parallel && count > 1) {
    parallel(count, body);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    body(i);
  }
}
}  // namespace detail

/// A fixed set of threads for callers who have none. `pool.parallel()` is the parallel_for to pass.
/// One job at a time: concurrent callers wait for each other; a body must not call into its own
/// pool. The first exception that a body throws is rethrown to the caller. Threads without a job
/// wait awake for some 50 us, yielding to others, and asleep after that.
///
/// Each thread has the same part of the indices whenever the same count comes again, so that what
/// it wrote and will read or write again is in its caches. Who is done helps the others.
class thread_pool {
 public:
  /// `threads` counts the caller's: 1 starts none, 0 means one per hardware thread.
  explicit thread_pool(std::size_t threads = 0) {
    if (threads == 0) {
      threads = (std::max)(std::thread::hardware_concurrency(), 1U);
    }
    shares_ = std::vector<share>(threads);
#if DETENT_WITH_EXCEPTIONS
    try {
      start();
    } catch (...) {  // there is no other thread
      stop();
      throw;
    }
#else
    start();
#endif
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() { stop(); }

  [[nodiscard]] std::size_t size() const noexcept { return shares_.size(); }

  [[nodiscard]] parallel_for parallel() {
    return [this](std::size_t count, const std::function<void(std::size_t)>& body) {
      run(count, body);
    };
  }

  void run(std::size_t count, const std::function<void(std::size_t)>& body) {
    if (count == 0) {
      return;
    }
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
  /// Indices of a job that are a thread's, on a cache line of their own.
  struct alignas(64) share {
    std::atomic<std::size_t> next{0};
    std::size_t end = 0;
  };

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
      // In this order: either the job is seen to be over, or its end waits for this thread.
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

  /// In the order of work(), too: either a thread is counted as asleep, or it sees what it is to be
  /// woken for.
  void wake_sleepers() {
    if (sleepers_ != 0) {
      const std::lock_guard lock(mutex_);
      wake_.notify_all();
    }
  }

  /// Waits for some 50 us at most: to fall asleep and to be woken takes as long as a small product.
  /// Others may run meanwhile.
  template <class Ready>
  static void wait_awake(const Ready& ready) {
    constexpr int patience = 200;
    for (int i = 0; i < patience && !ready(); ++i) {
      std::this_thread::yield();
    }
  }

  /// Runs indices until none is left: those of a thread's share, then those of the other ones.
  void take(std::size_t self) {
    for (std::size_t t = 0; t < size(); ++t) {
      share& from = shares_[(self + t) % size()];
      if (from.next >= from.end) {
        continue;  // without taking its cache line from others
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
  void note_failure() {
    const std::lock_guard lock(mutex_);
    failure_ = failure_ ? failure_ : std::current_exception();
    for (share& s : shares_) {
      s.next = s.end;
    }
  }
#endif

  std::mutex job_mutex_;  // held for a whole job
  // The job; written while it is not open and no worker runs.
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::vector<share> shares_;  // one for each thread
  std::atomic<bool> is_open_{false};
  std::atomic<std::size_t> jobs_{0};     // so far
  std::atomic<std::size_t> running_{0};  // workers that are at the job
  std::atomic<std::size_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards failure_, and falling asleep
  std::condition_variable wake_;
  std::condition_variable done_;
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_PARALLEL_HPP
