// SPDX-License-Identifier: BSD-3-Clause
// Threads are the caller's: whatever can run a body for 0..count-1 can be passed as a parallel_for.
#ifndef DETENT_PARALLEL_HPP
#define DETENT_PARALLEL_HPP

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
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
class thread_pool {
 public:
  /// `threads` counts the caller's: 1 starts none, 0 means one per hardware thread.
  explicit thread_pool(std::size_t threads = 0) {
    if (threads == 0) {
      threads = std::thread::hardware_concurrency();
    }
    for (std::size_t i = 1; i < threads; ++i) {
      workers_.emplace_back([this] { work(); });
    }
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return workers_.size() + 1; }

  [[nodiscard]] parallel_for parallel() {
    return [this](std::size_t count, const std::function<void(std::size_t)>& body) {
      run(count, body);
    };
  }

  void run(std::size_t count, const std::function<void(std::size_t)>& body) {
    const std::lock_guard one_job(job_mutex_);
    std::unique_lock lock(mutex_);
    body_ = &body;
    next_ = 0;
    count_ = count;
    failure_ = nullptr;
    ++jobs_;
    wake_.notify_all();
    take(lock);
    wait_awake(lock, [this] { return running_ == 0; });
    done_.wait(lock, [this] { return running_ == 0; });
    body_ = nullptr;
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      const std::size_t seen = jobs_;
      wait_awake(lock, [&] { return jobs_ != seen || stopping_; });
      wake_.wait(lock, [this] { return stopping_ || (body_ != nullptr && next_ < count_); });
      if (stopping_) {
        return;
      }
      take(lock);
    }
  }

  /// Waits without the lock for what only atomics say, for some 50 us: to fall asleep and to be
  /// woken takes as long as a small product. Others may run meanwhile.
  template <class Ready>
  static void wait_awake(std::unique_lock<std::mutex>& lock, const Ready& ready) {
    constexpr int patience = 200;
    lock.unlock();
    for (int i = 0; i < patience && !ready(); ++i) {
      std::this_thread::yield();
    }
    lock.lock();
  }

  /// Runs indices until none is left. Holds the lock between bodies.
  void take(std::unique_lock<std::mutex>& lock) {
    ++running_;
    while (next_ < count_) {
      const std::size_t i = next_++;
      lock.unlock();
      std::exception_ptr failure;
#if DETENT_WITH_EXCEPTIONS
      try {
        (*body_)(i);
      } catch (...) {
        failure = std::current_exception();
      }
#else
      (*body_)(i);
#endif
      lock.lock();
      if (failure) {
        failure_ = failure_ ? failure_ : failure;
        next_ = count_;
      }
    }
    if (--running_ == 0) {
      done_.notify_all();
    }
  }

  std::mutex job_mutex_;  // held for a whole job
  std::mutex mutex_;      // guards what follows
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::size_t next_ = 0;
  std::size_t count_ = 0;
  std::exception_ptr failure_;
  // Changed with the lock held, read without it by threads that wait awake.
  std::atomic<std::size_t> jobs_{0};
  std::atomic<std::size_t> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_PARALLEL_HPP
