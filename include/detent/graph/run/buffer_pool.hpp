// SPDX-License-Identifier: BSD-3-Clause
// A pool of buffers, from which executors take the memory of their tensors.
#ifndef DETENT_GRAPH_RUN_BUFFER_POOL_HPP
#define DETENT_GRAPH_RUN_BUFFER_POOL_HPP

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Keeps freed buffers for the next tensor of about the same size. Thread-safe; buffers may outlive
/// the pool.
class buffer_pool {
 public:
  /// A buffer of at least `bytes` bytes: a kept one if there is one of at most twice the size. It
  /// returns to the pool when its last owner releases it.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    const std::size_t size = (bytes + 64) / 64 * 64;
    std::unique_ptr<std::byte[]> buffer;
    std::size_t capacity = size;
    {
      const std::lock_guard lock(state_->mutex);
      auto found = state_->free.lower_bound(size);
      while (found != state_->free.end() && found->first <= 2 * size && found->second.empty()) {
        ++found;
      }
      if (found != state_->free.end() && found->first <= 2 * size) {
        capacity = found->first;
        buffer = std::move(found->second.back());
        found->second.pop_back();
      }
    }
    if (!buffer) {
      buffer.reset(new std::byte[size]);
    }
    std::byte* raw = buffer.release();
    return {raw, [state = state_, capacity](std::byte* p) {
              std::unique_ptr<std::byte[]> returned(p);
              const std::lock_guard lock(state->mutex);
              state->free[capacity].push_back(std::move(returned));
            }};
  }

 private:
  struct shared_state {
    std::mutex mutex;
    // Free buffers by size. Sizes without a free buffer stay as empty lists, because each run asks
    // for the same sizes again.
    std::map<std::size_t, std::vector<std::unique_ptr<std::byte[]>>> free;
  };
  std::shared_ptr<shared_state> state_ = std::make_shared<shared_state>();
};

}  // namespace detail

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_BUFFER_POOL_HPP
