// SPDX-License-Identifier: BSD-3-Clause
// The C interface without memory: a run of calls is repeated, and each time another allocation
// fails, from the first to the last. One call may say that there is no memory, all others must
// succeed; an exception that left the library would end the process.
//
//   c_api_memory_test DIGITS.onnx
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <detent/c_api_graph.h>
#include <detent/c_api_observers.h>
#include <detent/c_api_weights.h>

namespace {

// Allocations that still succeed. The libraries use these operators, too: the linker knows one
// operator new in a process.
std::atomic<long> left{-1};
std::atomic<bool> has_failed{false};
bool was_reported = false;  // whether a call of this run has returned an error

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  if (left.load() == 0) {
    has_failed = true;
    left = -1;  // one failure for each run: what follows it must work again
    return nullptr;
  }
  if (left.load() > 0) {
    --left;
  }
  return std::aligned_alloc(alignment, (size + alignment) / alignment * alignment);
}
void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* memory = allocate(size, alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return allocate_or_throw(size, 16); }
void* operator new[](std::size_t size) { return allocate_or_throw(size, 16); }
void* operator new(std::size_t size, std::align_val_t a) {
  return allocate_or_throw(size, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t size, std::align_val_t a) {
  return allocate_or_throw(size, static_cast<std::size_t>(a));
}
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return allocate(size, 16);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*a*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t /*a*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/, std::align_val_t /*a*/) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t /*size*/, std::align_val_t /*a*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }

namespace {

int failures = 0;

/// Whether the call did what it promises. Of each run, one call may fail for want of memory; models
/// say DETENT_BAD_FILE then, with the name of the node.
bool done(detent_status status, const char* call) {
  const bool is_memory =
      status == DETENT_OUT_OF_MEMORY ||
      (status == DETENT_BAD_FILE &&
       (std::strstr(detent_last_error(), "needs more memory than there is") != nullptr ||
        // Not even for the message was there memory.
        detent_last_error()[0] == '\0'));
  const bool is_excused = is_memory && has_failed && !was_reported;
  was_reported = was_reported || status != DETENT_OK;
  if (status != DETENT_OK && !is_excused) {
    std::fprintf(stderr, "%s: %s: %s\n", call, detent_status_name(status), detent_last_error());
    ++failures;
  }
  return status == DETENT_OK;
}
#define DONE(call) done(call, #call)

/// Observers of channels, codes of weights, a product.
void numerics() {
  static float x[8 * 16];
  for (std::size_t i = 0; i < 8 * 16; ++i) {
    x[i] = static_cast<float>(i * 37 % 101) * 0.25F - 12.0F;
  }
  const std::size_t shape[2] = {8, 16};
  const std::size_t axis[1] = {0};
  float scales[8];
  std::int32_t zero_points[8];
  detent_observer* o = nullptr;
  detent_observer* copy = nullptr;
  std::size_t size = 0;
  if (DONE(detent_observer_create_channels("kl", nullptr, axis, 1, &o))) {
    const bool is_whole =
        DONE(detent_observer_observe(o, DETENT_F32, x, shape, nullptr, 2, nullptr));
    if (!is_whole && (detent_observer_save(o, nullptr, 0, &size) != DETENT_INVALID_ARGUMENT ||
                      std::strstr(detent_last_error(), "in part") == nullptr)) {
      std::fprintf(stderr, "an observer that has seen a batch in part was not refused\n");
      ++failures;
    }
    if (is_whole && DONE(detent_observer_copy(o, &copy))) {
      DONE(detent_observer_merge(o, copy));
      DONE(detent_observer_save(o, nullptr, 0, &size));
      if (detent_observer_channels(o) == 8) {
        DONE(detent_observer_finalize(o, {-127, 127, 1}, scales, zero_points, nullptr, 8, nullptr));
      }
    }
  }
  detent_observer_free(o);
  detent_observer_free(copy);

  detent_gram_observer* gram = nullptr;
  static double g[16 * 16];
  if (DONE(detent_gram_observer_create(16, &gram)) &&
      DONE(detent_gram_observer_observe(gram, DETENT_F32, x, 8, 16, 0, nullptr)) &&
      DONE(detent_gram_observer_finalize(gram, g, nullptr))) {
    std::int8_t codes[8 * 16];
    std::int32_t sums[2 * 8];
    const std::uint8_t a[2 * 16] = {1, 2, 3};
    detent_weight_quantization q;
    detent_weight_quantization_init(&q);
    q.algorithm = DETENT_WEIGHTS_COORDINATE_DESCENT;
    q.gram = g;
    detent_weights* w = nullptr;
    if (DONE(detent_quantize_weights(x, 8, 16, 16, &q, codes, scales, zero_points, nullptr,
                                     nullptr)) &&
        DONE(detent_pack_weights(DETENT_S8, codes, 16, 8, 1, 16, nullptr, &w))) {
      DONE(detent_gemm(DETENT_U8, a, 16, 2, w, DETENT_S32, sums, 8, nullptr, nullptr));
    }
    detent_weights_free(w);
  }
  detent_gram_observer_free(gram);
}

const char* file = nullptr;

/// A model is read, quantized without samples, run twice, serialized.
void models() {
  static const float image[64] = {1.0F, 2.0F};
  static const std::int64_t shape[4] = {1, 1, 8, 8};
  static const char options[] = "{\"approach\": \"dynamic\"}";
  detent_tensor x;
  detent_tensor_init(&x);
  x.type = DETENT_F32;
  x.rank = 4;
  x.shape = shape;
  x.data = image;
  x.bytes = sizeof image;
  detent_model* m = nullptr;
  detent_model* quantized = nullptr;
  detent_session* session = nullptr;
  std::size_t size = 0;
  if (DONE(detent_model_read(file, nullptr, &m)) &&
      DONE(
          detent_model_quantize(m, options, sizeof options - 1, nullptr, 0, nullptr, &quantized)) &&
      DONE(detent_session_create(quantized, nullptr, nullptr, &session))) {
    for (int i = 0; i < 2; ++i) {
      detent_results* results = nullptr;
      DONE(detent_session_run(session, &x, 1, &results));
      detent_results_free(results);
    }
    DONE(detent_model_serialize(quantized, nullptr, 0, &size));
  }
  detent_session_free(session);
  detent_model_free(quantized);
  detent_model_free(m);
}

/// Runs the calls with the n-th allocation failing, for n = 0, step, 2 step, ... until none fails.
/// Returns how many runs there were.
long exhaust(void (*calls)(), long step) {
  calls();  // what is made once in a process is made with memory
  for (long n = 0;; n += step) {
    has_failed = false;
    was_reported = false;
    left = n;
    calls();
    left = -1;
    if (!has_failed) {
      return n / step;
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: c_api_memory_test DIGITS.onnx\n");
    return 2;
  }
  file = arguments[1];
  const long of_numerics = exhaust(&numerics, 1);
  const long of_models = exhaust(&models, 29);  // a prime: all kinds of allocations in turn
  std::printf("%ld and %ld runs, %d failures\n", of_numerics, of_models, failures);
  return failures == 0 && of_numerics > 100 && of_models > 100 ? 0 : 1;
}
