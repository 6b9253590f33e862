// SPDX-License-Identifier: BSD-3-Clause
// A pool of buffers, from which executors take the memory of their tensors.
#ifndef DETENT_GRAPH_RUN_BUFFER_POOL_HPP
#define DETENT_GRAPH_RUN_BUFFER_POOL_HPP

#include <cstddef>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/memory_budget.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Holds all buffers together to a limit of bytes and, if it `keeps` them, has freed buffers ready
/// for the next tensor of about the same size; these count, too. Buffers that no run has used for a
/// while are released: runs on inputs of ever new sizes would leave buffers of each. Copies share
/// the buffers and the limit. Thread-safe; buffers may outlive the pool.
class buffer_pool {
 public:
  buffer_pool(std::size_t limit, bool keeps)
      : state_(std::make_shared<shared_state>(limit, keeps)) {}

  /// A buffer of at least `bytes` bytes that begins on a cache line, or a page if it is large: a
  /// kept one if there is one of at most twice the size. It returns to the pool when its last owner
  /// releases it. Throws bad_file if the buffer does not fit the limit, also after all kept buffers
  /// have been released.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    const std::size_t size = size_for(bytes);
    memory buffer;
    std::size_t whole = size;
    {
      const std::lock_guard lock(state_->mutex);
      auto found = state_->free.lower_bound(size);
      while (found != state_->free.end() && found->first <= 2 * size &&
             found->second.buffers.empty()) {
        ++found;
      }
      if (found != state_->free.end() && found->first <= 2 * size) {
        whole = found->first;
        buffer = std::move(found->second.buffers.back());
        found->second.buffers.pop_back();
        found->second.last_run = state_->runs;
      } else if (!state_->budget.try_take(size)) {
        state_->release_kept();
        state_->budget.take(size);
      }
    }
    if (!buffer) {
      try {
        buffer = memory(static_cast<std::byte*>(::operator new(size, alignment_of(size))),
                        release{alignment_of(size)});
      } catch (...) {
        state_->budget.give_back(size);
        throw;
      }
    }
    std::byte* const raw = buffer.release();
    return {raw, [](std::byte*) {}, at_end_of_buffer<std::byte>(state_, raw, whole)};
  }

  /// Releases the free buffers of sizes that none of the last four runs has used. To be called at
  /// the beginning of each run.
  void begin_run() {
    const std::lock_guard lock(state_->mutex);
    state_->release_unused();
  }

  /// The bytes that count against the limit now: buffers in use and free ones, scratch memory, and
  /// what was counted.
  [[nodiscard]] std::size_t bytes() const noexcept { return state_->budget.taken(); }

  /// Scratch memory that counts against the limit. It is not kept. The pool, or a copy of it, must
  /// outlive what is allocated.
  [[nodiscard]] std::pmr::memory_resource* scratch() const noexcept { return &state_->budget; }

  /// Counts memory against the limit that is allocated elsewhere. The pool, or a copy of it, must
  /// outlive what is counted.
  [[nodiscard]] memory_counter* counter() const noexcept { return &state_->budget; }

  /// Whether something did not fit the limit since the last call of this function.
  [[nodiscard]] bool forget_refusal() const noexcept { return state_->budget.forget_refusal(); }

 private:
  /// Vectors that cross cache lines take twice as long to load and to store, so that all buffers
  /// begin on one. Large buffers begin on a page. Processors compare addresses within a page at
  /// first, and let a load wait for an earlier store at the same place of another page (4K
  /// aliasing). An operator would wait at each load if its result began a little further on in its
  /// page than its input. It does not wait if both begin on a page.
  static constexpr std::size_t cache_line = 64;
  static constexpr std::size_t page = 4096;
  /// From this size on, the rest of a last page is a small part.
  static constexpr std::size_t large = 16 * page;
  /// The last bytes of a buffer, in which its owners are counted.
  static constexpr std::size_t end_of_buffer = cache_line;
  /// The size of a buffer for a tensor, which is what counts against the limit.
  [[nodiscard]] static std::size_t size_for(std::size_t bytes) noexcept {
    const std::size_t lines = (bytes + cache_line) / cache_line * cache_line + end_of_buffer;
    return lines < large ? lines : (lines + page - 1) / page * page;
  }
  [[nodiscard]] static std::align_val_t alignment_of(std::size_t size) noexcept {
    return std::align_val_t{size < large ? cache_line : page};
  }
  struct release {
    std::align_val_t alignment{cache_line};
    void operator()(std::byte* p) const noexcept { ::operator delete(p, alignment); }
  };
  using memory = std::unique_ptr<std::byte, release>;
  struct shared_state;

  /// The allocator of what std::shared_ptr needs to count the owners of a buffer. It takes the end
  /// of the buffer, so that a kept buffer is handed out again without a call of the heap, and
  /// returns the whole buffer where that memory is given back, which is the last that
  /// std::shared_ptr does.
  template <class T>
  struct at_end_of_buffer {
    using value_type = T;

    at_end_of_buffer(std::shared_ptr<shared_state> of, std::byte* begin, std::size_t size) noexcept
        : state(std::move(of)), buffer(begin), whole(size) {}
    template <class U>
    at_end_of_buffer(const at_end_of_buffer<U>& other) noexcept  // NOLINT: as allocators convert
        : state(other.state), buffer(other.buffer), whole(other.whole) {}

    [[nodiscard]] T* allocate(std::size_t n) const {
      static_assert(sizeof(T) <= end_of_buffer && alignof(T) <= cache_line);
      static_cast<void>(n);  // one object
      return reinterpret_cast<T*>(buffer + whole - end_of_buffer);
    }
    void deallocate(T* /*owners*/, std::size_t /*n*/) const noexcept {
      state->take_back(memory(buffer, release{alignment_of(whole)}), whole);
    }
    template <class U>
    [[nodiscard]] bool operator==(const at_end_of_buffer<U>& other) const noexcept {
      return buffer == other.buffer;
    }

    std::shared_ptr<shared_state> state;
    std::byte* buffer;
    std::size_t whole;
  };

  /// The free buffers of one size.
  struct free_buffers {
    std::vector<memory> buffers;
    std::size_t last_run = 0;  // that has taken or returned one
  };

  struct shared_state {
    shared_state(std::size_t limit, bool kept) : budget(limit), keeps(kept) {}

    /// Keeps a buffer for later, or gives its memory back to the heap.
    void take_back(memory buffer, std::size_t size) noexcept {
      if (keeps) {
        // Without memory for its place in the list, the buffer goes back to the heap: nothing may
        // be thrown where a tensor ends.
        try {
          const std::lock_guard lock(mutex);
          free_buffers& same = free[size];
          same.last_run = runs;
          same.buffers.push_back(std::move(buffer));
          return;
        } catch (...) {
        }
      }
      budget.give_back(size);
    }
    /// Gives the memory of all free buffers back to the heap.
    void release_kept() {
      for (auto& [size, same] : free) {
        budget.give_back(size * same.buffers.size());
        same.buffers.clear();
      }
    }
    void release_unused() {
      constexpr std::size_t kept_runs = 4;
      ++runs;
      for (auto one = free.begin(); one != free.end();) {
        if (one->second.last_run + kept_runs >= runs) {
          ++one;
          continue;
        }
        budget.give_back(one->first * one->second.buffers.size());
        one = free.erase(one);
      }
    }

    memory_budget budget;
    const bool keeps;
    std::mutex mutex;
    std::size_t runs = 0;
    // Free buffers by size. Sizes without a free buffer stay as empty lists for a while, because
    // most runs ask for the same sizes again.
    std::map<std::size_t, free_buffers> free;
  };
  std::shared_ptr<shared_state> state_;
};

}  // namespace detail

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_BUFFER_POOL_HPP
