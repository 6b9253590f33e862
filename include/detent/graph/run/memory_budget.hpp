// SPDX-License-Identifier: BSD-3-Clause
// Counts the memory that a run of a model uses, and holds it to a limit.
#ifndef DETENT_GRAPH_RUN_MEMORY_BUDGET_HPP
#define DETENT_GRAPH_RUN_MEMORY_BUDGET_HPP

#include <atomic>
#include <cstddef>
#include <memory_resource>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Counts bytes that are in use and rejects what would exceed a limit. As a memory resource it
/// allocates from the heap and counts what it allocates. Thread-safe.
class memory_budget final : public std::pmr::memory_resource, public memory_counter {
 public:
  explicit memory_budget(std::size_t limit) : limit_(limit) {}
  memory_budget(const memory_budget&) = delete;
  memory_budget& operator=(const memory_budget&) = delete;
  ~memory_budget() override = default;

  /// Counts `bytes` if they fit; returns false, without a change, if they do not.
  [[nodiscard]] bool try_take(std::size_t bytes) noexcept {
    std::size_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ - used) {
        return false;
      }
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  /// Counts `bytes`. Throws bad_file if they do not fit.
  void take(std::size_t bytes) override {
    const bool fits = try_take(bytes);
    if (!fits) {
      refused_.store(true, std::memory_order_relaxed);
    }
    require(fits, error_kind::bad_file, "needs ", bytes, " more bytes of memory, ",
            used_.load(std::memory_order_relaxed), " are in use, the limit is ", limit_);
  }
  /// The bytes that are counted now.
  [[nodiscard]] std::size_t taken() const noexcept { return used_.load(std::memory_order_relaxed); }
  /// Whether take() has thrown since the last call of this function.
  [[nodiscard]] bool forget_refusal() noexcept {
    return refused_.exchange(false, std::memory_order_relaxed);
  }
  /// Takes back what take() or try_take() has counted.
  void give_back(std::size_t bytes) noexcept override {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
  }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    take(bytes);
    try {
      return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    } catch (...) {
      give_back(bytes);
      throw;
    }
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
    give_back(bytes);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  const std::size_t limit_;
  std::atomic<std::size_t> used_{0};
  std::atomic<bool> refused_{false};
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_MEMORY_BUDGET_HPP
