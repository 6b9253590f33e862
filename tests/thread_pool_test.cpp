// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace {

using detent::thread_pool;

/// How often each index was run.
class run_counts {
 public:
  explicit run_counts(std::size_t n) : counts_(n) {}
  void add(std::size_t i) { ++counts_[i]; }
  [[nodiscard]] bool all_are(int expected) const {
    return std::all_of(counts_.begin(), counts_.end(),
                       [=](const auto& c) { return c == expected; });
  }

 private:
  std::vector<std::atomic<int>> counts_;
};

}  // namespace

TEST_CASE("a pool runs each index once") {
  for (std::size_t threads = 1; threads <= 7; ++threads) {
    thread_pool pool(threads);
    CHECK(pool.size() == threads);
    for (std::size_t count = 0; count < 40; ++count) {
      run_counts counts(count);
      pool.run(count, [&](std::size_t i) { counts.add(i); });
      CHECK(counts.all_are(1));
      const detent::parallel_for parallel = pool.parallel();
      parallel(count, [&](std::size_t i) { counts.add(i); });
      CHECK(counts.all_are(2));
    }
  }
}

TEST_CASE("zero threads means one per hardware thread") {
  const thread_pool pool;
  CHECK(pool.size() == std::max(1U, std::thread::hardware_concurrency()));
}

TEST_CASE("a pool of one runs on the calling thread, in order") {
  thread_pool pool(1);
  std::vector<std::size_t> order;
  const std::thread::id caller = std::this_thread::get_id();
  pool.run(5, [&](std::size_t i) {
    order.push_back(i);
    CHECK((std::this_thread::get_id() == caller));
  });
  CHECK(order == std::vector<std::size_t>{0, 1, 2, 3, 4});
}

TEST_CASE("a thread that is done takes over what is left of the others'") {
  // The index that comes first waits for all others: the rest of its thread's, too.
  for (std::size_t threads = 2; threads <= 4; ++threads) {
    thread_pool pool(threads);
    constexpr std::size_t count = 23;
    std::atomic<std::size_t> others{0};
    pool.run(count, [&](std::size_t i) {
      if (i != 0) {
        ++others;
        return;
      }
      while (others != count - 1) {
        std::this_thread::yield();
      }
    });
    CHECK(others == count - 1);
  }
}

TEST_CASE("the threads of a pool work at the same time") {
  // Each body waits for all the others: with fewer threads than bodies this would never end.
  constexpr std::size_t threads = 4;
  thread_pool pool(threads);
  std::atomic<std::size_t> arrived{0};
  pool.run(threads, [&](std::size_t) {
    ++arrived;
    while (arrived < threads) {
      std::this_thread::yield();
    }
  });
  CHECK(arrived == threads);
}

TEST_CASE("each thread has the same indices when the same count comes again") {
  // Each body waits for all the others, so that none is taken over.
  constexpr std::size_t threads = 4;
  thread_pool pool(threads);
  std::vector<std::thread::id> first;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread::id> ids(threads);
    std::atomic<std::size_t> arrived{0};
    pool.run(threads, [&](std::size_t i) {
      ids[i] = std::this_thread::get_id();
      ++arrived;
      while (arrived < threads) {
        std::this_thread::yield();
      }
    });
    CHECK((ids[0] == std::this_thread::get_id()));
    if (round == 0) {
      first = ids;
    }
    CHECK((ids == first));
  }
}

TEST_CASE("an exception reaches the caller, and the pool goes on") {
  for (std::size_t threads = 1; threads <= 4; ++threads) {
    thread_pool pool(threads);
    for (std::size_t bad = 0; bad < 20; ++bad) {
      std::atomic<int> started{0};
      bool caught = false;
      try {
        pool.run(20, [&](std::size_t i) {
          ++started;
          if (i == bad) {
            throw std::runtime_error("body 13");
          }
        });
      } catch (const std::runtime_error& e) {
        caught = e.what() == std::string_view("body 13");
      }
      CHECK(caught);
      // The indices of a thread's share are handed out in order.
      const std::size_t longer = 20 % threads;  // shares, by one index
      const std::size_t whole = 20 / threads + 1;
      const std::size_t before =
          bad < longer * whole ? bad % whole : (bad - longer * whole) % (20 / threads);
      CHECK(started >= static_cast<int>(before) + 1);
      run_counts counts(50);
      pool.run(50, [&](std::size_t i) { counts.add(i); });
      CHECK(counts.all_are(1));
    }
    CHECK_THROWS_AS(pool.run(30, [](std::size_t i) { throw i; }), std::size_t);
  }
}

TEST_CASE("callers from several threads wait for each other") {
  thread_pool pool(3);
  std::atomic<bool> ok{true};
  const auto caller = [&] {
    for (int round = 0; round < 200; ++round) {
      run_counts counts(17);
      pool.run(17, [&](std::size_t i) { counts.add(i); });
      if (!counts.all_are(1)) {
        ok = false;
      }
    }
  };
  std::thread first(caller);
  std::thread second(caller);
  first.join();
  second.join();
  CHECK(ok);
}

TEST_CASE("a body may use another pool") {
  thread_pool outer(2);
  thread_pool inner(3);
  std::atomic<int> sum{0};
  outer.run(10, [&](std::size_t) { inner.run(10, [&](std::size_t) { ++sum; }); });
  CHECK(sum == 100);
}

TEST_CASE("many pools come and go") {
  for (int i = 0; i < 50; ++i) {
    const thread_pool unused(3);
    thread_pool used(3);
    std::atomic<int> sum{0};
    used.run(3, [&](std::size_t) { ++sum; });
    CHECK(sum == 3);
  }
}

#if defined(__unix__)
TEST_CASE(
    "a pool of the parent runs jobs on one thread in a forked process, and can be destroyed") {
  for (const std::size_t threads : {1U, 2U, 5U}) {
    auto pool = std::make_unique<thread_pool>(threads);
    std::atomic<int> before{0};
    pool->run(100, [&](std::size_t) { ++before; });
    CHECK(before == 100);
    for (const bool is_asleep : {false, true}) {
      // The threads of the pool give up spinning after some hundred turns.
      for (int i = 0; i < (is_asleep ? 100000 : 0); ++i) {
        std::this_thread::yield();
      }
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        // No test macros here: the child ends without the test framework.
        const auto self = std::this_thread::get_id();
        int runs = 0;
        bool is_alone = true;
        pool->run(100, [&](std::size_t) {
          ++runs;
          is_alone = is_alone && std::this_thread::get_id() == self;
        });
        bool threw = false;
        try {
          pool->run(3, [](std::size_t) { throw std::runtime_error("expected"); });
        } catch (const std::runtime_error&) {
          threw = true;
        }
        pool.reset();
        thread_pool own(2);  // a pool that the child starts has its threads
        std::atomic<int> sum{0};
        own.run(10, [&](std::size_t) { ++sum; });
        _exit(runs == 100 && is_alone && threw && sum == 10 ? 0 : 1);
      }
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 0);
    }
    std::atomic<int> after{0};
    pool->run(100, [&](std::size_t) { ++after; });
    CHECK(after == 100);
  }
}
#endif

TEST_CASE("an operation takes any parallel_for") {
  // Backwards and on the calling thread.
  const detent::parallel_for backwards = [](std::size_t count,
                                            const std::function<void(std::size_t)>& body) {
    for (std::size_t i = count; i-- > 0;) {
      body(i);
    }
  };
  const std::vector<std::uint8_t> lhs(200 * 3, 2);
  const std::int8_t rhs[] = {1, 2, 3};
  const auto weights = detent::pack_weights({rhs, 3, 1});
  std::vector<std::int32_t> out(200);
  detent::gemm({lhs.data(), 200, 3}, weights, detent::matrix_view(out.data(), 200, 1), {},
               backwards);
  CHECK(out == std::vector<std::int32_t>(200, 12));
}
