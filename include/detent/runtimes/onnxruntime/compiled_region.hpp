// SPDX-License-Identifier: BSD-3-Clause
// A region of a session's model that was prepared for execution, and its runs, of which several may
// go on at a time.
#ifndef DETENT_RUNTIMES_ONNXRUNTIME_COMPILED_REGION_HPP
#define DETENT_RUNTIMES_ONNXRUNTIME_COMPILED_REGION_HPP

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <onnxruntime_c_api.h>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>
#include <detent/runtimes/onnxruntime/api.hpp>
#include <detent/runtimes/onnxruntime/graph_reader.hpp>

DETENT_NAMESPACE_BEGIN
namespace runtimes::onnxruntime {

/// Where the executors of a session take their threads from.
struct thread_source {
  /// A pool of the provider; null: `uses_session` says what.
  std::shared_ptr<thread_pool> pool;
  /// Whether parallel parts run on the session's own threads; if not, and there is no pool, the
  /// thread that calls runs everything.
  bool uses_session = true;
};

/// Calls body(i) for each i in [0, count) on the threads of the session whose kernel is running.
/// An exception of a body is thrown again when all have ended.
inline void run_on_session(const api& a, const OrtKernelContext* context, std::size_t count,
                           const std::function<void(std::size_t)>& body) {
  struct job {
    const std::function<void(std::size_t)>& body;
    std::mutex mutex;
    std::exception_ptr failure;
  } all{body, {}, {}};
  const auto one = [](void* of, std::size_t i) {
    auto& j = *static_cast<job*>(of);
    try {
      j.body(i);
    } catch (...) {
      const std::lock_guard lock(j.mutex);
      j.failure = std::current_exception();
    }
  };
  a.check(a.core->KernelContext_ParallelFor(context, one, count, 0, &all));
  if (all.failure) {
    std::rethrow_exception(all.failure);
  }
}

/// A region that was prepared. run() may be called by several threads at a time: each call takes an
/// executor of its own. The executors share the packed weights, which the first call packs while
/// others wait.
class compiled_region {
 public:
  /// `m` is the region, whose inputs and outputs are in the order in which ONNX Runtime passes
  /// them. If not all inputs of the kernel are inputs of the region, `positions` has the position
  /// in the kernel of each one that is. Throws as graph::executor().
  compiled_region(const api& a, graph::model m, const thread_source& threads,
                  std::vector<std::size_t> positions = {})
      : api_(a),
        threads_(threads),
        inputs_(m.inputs),
        positions_(std::move(positions)),
        outputs_(m.outputs) {
    for (std::size_t i = positions_.size(); i < inputs_.size(); ++i) {
      positions_.push_back(i);
    }
    graph::model prepared = graph::for_execution(std::move(m));
    // ONNX Runtime checks the inputs of the whole model only: within it, values may have other
    // shapes than those that it declares, as in the body of a Loop.
    for (graph::value_info& v : prepared.inputs) {
      std::fill(v.dims.begin(), v.dims.end(), -1);
    }
    idle_.push_back(std::make_unique<runner>(*this, std::move(prepared)));
  }
  compiled_region(const compiled_region&) = delete;
  compiled_region& operator=(const compiled_region&) = delete;
  ~compiled_region() = default;

  /// Runs the region on the inputs of a kernel and writes its outputs. Throws what
  /// graph::executor::run() throws.
  void run(OrtKernelContext* context) {
    std::unique_ptr<runner> r = take();
    bool has_run = false;
    const finally back{[&] { idle(std::move(r), has_run); }};
    r->context = context;
    std::map<std::string, graph::tensor> values;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const auto* const value =
          get<const OrtValue*>(api_, api_.core->KernelContext_GetInput, context, positions_[i]);
      require(value != nullptr, error_kind::invalid_argument, "input '", inputs_[i].name,
              "' is missing");
      values.emplace(inputs_[i].name, borrowed_tensor(api_, value));
    }
    const std::vector<graph::tensor> results = r->executor.run(values);
    has_run = true;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const graph::tensor& t = results[i];
      OrtValue* out = nullptr;
      api_.check(api_.core->KernelContext_GetOutput(context, i, t.dims().data(), t.rank(), &out));
      if (out == nullptr) {
        continue;
      }
      // ONNX Runtime gives memory for the type that it expects, whatever the executor computed.
      const graph::element_type expected = form_of(api_, out).type;
      require(t.type() == expected, error_kind::unsupported, "output '", outputs_[i].name, "' is ",
              graph::name(t.type()), ", ONNX Runtime expects ", graph::name(expected));
      if (t.bytes() > 0) {
        std::memcpy(get<void*>(api_, api_.core->GetTensorMutableData, out), t.raw(), t.bytes());
      }
    }
  }

 private:
  /// An executor and the kernel for which it is running.
  struct runner {
    runner(const compiled_region& of, graph::model m) : executor(std::move(m), options(of)) {}
    runner(const compiled_region& of, const runner& first)
        : executor(first.executor, options(of)) {}

    graph::executor_options options(const compiled_region& of) {
      graph::executor_options o;
      // The session's model is trusted as far as ONNX Runtime trusts it.
      o.max_tensor_bytes = o.max_memory_bytes = static_cast<std::size_t>(-1) / 2;
      o.max_iterations = static_cast<std::size_t>(-1);
      if (of.threads_.pool) {
        o.parallel = of.threads_.pool->parallel();
      } else if (of.threads_.uses_session) {
        o.parallel = [this, &a = of.api_](std::size_t count,
                                          const std::function<void(std::size_t)>& body) {
          run_on_session(a, context, count, body);
        };
      }
      return o;
    }

    OrtKernelContext* context = nullptr;
    graph::executor executor;
  };
  template <class Function>
  struct finally {
    Function function;
    ~finally() { function(); }
  };
  template <class Function>
  finally(Function) -> finally<Function>;

  /// An executor that is not running. Until one has run and packed the weights, there is only one.
  [[nodiscard]] std::unique_ptr<runner> take() {
    std::unique_lock lock(mutex_);
    came_back_.wait(lock, [this] { return !idle_.empty() || packed_ != nullptr; });
    if (!idle_.empty()) {
      std::unique_ptr<runner> r = std::move(idle_.back());
      idle_.pop_back();
      return r;
    }
    idle_.reserve(executors_ + 1);  // so that idle() needs no memory for it
    auto r = std::make_unique<runner>(*this, *packed_);
    ++executors_;
    return r;
  }

  /// Takes an executor back. `has_run`: without an error, so that it has packed its weights.
  void idle(std::unique_ptr<runner> r, bool has_run) noexcept {
    const std::lock_guard lock(mutex_);
    r->context = nullptr;
    if (packed_ == nullptr && has_run) {
      try {
        packed_ = std::make_unique<runner>(*this, *r);
      } catch (...) {
        // Without memory for another executor, this one stays the only one.
      }
    }
    idle_.push_back(std::move(r));
    came_back_.notify_all();
  }

  const api api_;
  const thread_source threads_;
  const std::vector<graph::value_info> inputs_;
  std::vector<std::size_t> positions_;  // where the kernel has each input
  const std::vector<graph::value_info> outputs_;
  std::mutex mutex_;
  std::condition_variable came_back_;
  std::vector<std::unique_ptr<runner>> idle_;
  std::size_t executors_ = 1;       // idle and running
  std::unique_ptr<runner> packed_;  // never runs: others are made from it
};

}  // namespace runtimes::onnxruntime
DETENT_NAMESPACE_END

#endif  // DETENT_RUNTIMES_ONNXRUNTIME_COMPILED_REGION_HPP
