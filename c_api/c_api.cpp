// SPDX-License-Identifier: BSD-3-Clause
// The C interface: types become template arguments, exceptions become statuses.
#define DETENT_C_API_BUILD
#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include <detent/c_api.h>
#include <detent/detent.hpp>

struct detent_weights {
  detent::packed_weights value;
};

namespace {

using detent::error_kind;
using detent::matrix_view;
using detent::detail::require;

std::string& last_error() {
  thread_local std::string message;
  return message;
}

detent_status status_of(error_kind kind) {
  switch (kind) {
    case error_kind::invalid_argument:
      return DETENT_INVALID_ARGUMENT;
    case error_kind::shape_mismatch:
      return DETENT_SHAPE_MISMATCH;
    case error_kind::overflow:
      return DETENT_OVERFLOW;
    case error_kind::unsupported:
      return DETENT_UNSUPPORTED;
    case error_kind::bad_file:
      return DETENT_BAD_FILE;
    default:
      return DETENT_INTERNAL;
  }
}

/// Keeps the message where there is memory for it.
void remember(const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();
  }
}

template <class Body>
detent_status guarded(const Body& body) noexcept {
  try {
    body();
    return DETENT_OK;
  } catch (const detent::error& e) {
    remember(e.what());
    return status_of(e.kind());
  } catch (const std::bad_alloc&) {
    remember("detent: out of memory");
    return DETENT_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    remember(e.what());
  } catch (...) {
    remember("detent: unknown failure");
  }
  return DETENT_INTERNAL;
}

/// The caller's threads. What a body throws must not pass through the caller's frames: it is kept
/// until these have returned.
detent::parallel_for parallel_of(const detent_parallel* parallel) {
  if (parallel == nullptr || parallel->run == nullptr) {
    return {};
  }
  return [p = *parallel](std::size_t count, const std::function<void(std::size_t)>& body) {
    struct job {
      const std::function<void(std::size_t)>& body;
      std::mutex mutex;
      std::exception_ptr failure;
    } context{body, {}, nullptr};
    p.run(
        p.user, count,
        [](void* user, size_t index) noexcept {
          auto& j = *static_cast<job*>(user);
          try {
            j.body(index);
          } catch (...) {
            const std::lock_guard lock(j.mutex);
            j.failure = j.failure ? j.failure : std::current_exception();
          }
        },
        &context);
    if (context.failure) {
      std::rethrow_exception(context.failure);
    }
  };
}

/// A structure of options as this library knows it: fields that the caller does not have keep their
/// defaults.
template <class Options>
Options known_fields(const Options* given, void (*init)(Options*), const char* what) {
  Options o;
  init(&o);
  if (given != nullptr) {
    require(given->size >= sizeof(size_t) && given->size <= sizeof(Options),
            error_kind::invalid_argument, what, ": size ", given->size,
            " is not that of the structure (", sizeof(Options), "); was it initialized?");
    std::memcpy(&o, given, given->size);
  }
  return o;
}

const detent_weights& checked(const detent_weights* weights, const char* where) {
  require(weights != nullptr, error_kind::invalid_argument, where, ": null weights");
  return *weights;
}

template <class T>
std::span<const T> optional_span(const T* data, std::size_t size) {
  return {data, data != nullptr ? size : 0};
}

template <class T>
matrix_view<T> rows_of(T* data, std::size_t rows, std::size_t columns, std::size_t stride,
                       const char* where) {
  require(stride <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()),
          error_kind::invalid_argument, where, ": row stride ", stride);
  return {data, rows, columns, static_cast<std::ptrdiff_t>(stride)};
}

/// Calls f<T>() with the C++ type of a byte.
template <class F>
void with_byte(detent_type type, const char* where, const F& f) {
  switch (type) {
    case DETENT_U8:
      return f.template operator()<std::uint8_t>();
    case DETENT_S8:
      return f.template operator()<std::int8_t>();
    default:
      require(false, error_kind::invalid_argument, where, ": type ", static_cast<int>(type),
              " is neither DETENT_U8 nor DETENT_S8");
  }
}

template <class F>
void with_output(detent_type type, const char* where, const F& f) {
  switch (type) {
    case DETENT_S32:
      return f.template operator()<std::int32_t>();
    case DETENT_F32:
      return f.template operator()<float>();
    default:
      return with_byte(type, where, f);
  }
}

}  // namespace

extern "C" {

const char* detent_status_name(detent_status status) {
  switch (status) {
    case DETENT_OK:
      return "ok";
    case DETENT_INVALID_ARGUMENT:
      return "invalid argument";
    case DETENT_SHAPE_MISMATCH:
      return "shape mismatch";
    case DETENT_OVERFLOW:
      return "overflow";
    case DETENT_UNSUPPORTED:
      return "unsupported";
    case DETENT_OUT_OF_MEMORY:
      return "out of memory";
    case DETENT_INTERNAL:
      return "internal";
    case DETENT_BAD_FILE:
      return "bad file";
  }
  return "unknown";
}

const char* detent_last_error(void) { return last_error().c_str(); }

#define DETENT_TEXT(x) #x
#define DETENT_VERSION_TEXT(major, minor, patch) \
  DETENT_TEXT(major) "." DETENT_TEXT(minor) "." DETENT_TEXT(patch)
const char* detent_version(void) {
  return DETENT_VERSION_TEXT(DETENT_VERSION_MAJOR, DETENT_VERSION_MINOR, DETENT_VERSION_PATCH);
}

const char* detent_active_target(void) { return detent::name(detent::active_target()); }

detent_status detent_set_target(const char* name) {
  return guarded([&] {
    require(name != nullptr, error_kind::invalid_argument, "detent_set_target: null name");
    for (const detent::target t : detent::compiled_targets()) {
      if (std::string_view(detent::name(t)) == name) {
        detent::set_target(t);
        return;
      }
    }
    require(false, error_kind::invalid_argument, "detent_set_target: no target is called \"", name,
            "\"");
  });
}

void detent_weight_options_init(detent_weight_options* options) {
  *options = {};
  options->size = sizeof *options;
}

detent_status detent_pack_weights(detent_type type, const void* w, size_t k, size_t n,
                                  ptrdiff_t row_stride, ptrdiff_t column_stride,
                                  const detent_weight_options* options, detent_weights** weights) {
  return guarded([&] {
    constexpr const char* where = "detent_pack_weights";
    require(weights != nullptr, error_kind::invalid_argument, where, ": null result");
    const detent_weight_options o = known_fields(options, &detent_weight_options_init, where);
    with_byte(type, where, [&]<class W>() {
      const matrix_view<const W> view(static_cast<const W*>(w), k, n, row_stride, column_stride);
      *weights = new detent_weights{detent::pack_weights(
          view,
          {optional_span(o.scales, o.scale_count), optional_span(o.zero_points, o.zero_point_count),
           optional_span(o.bias, o.bias_count)})};
    });
  });
}

void detent_weights_free(detent_weights* weights) { delete weights; }
size_t detent_weights_depth(const detent_weights* weights) {
  return weights == nullptr ? 0 : weights->value.depth();
}
size_t detent_weights_columns(const detent_weights* weights) {
  return weights == nullptr ? 0 : weights->value.columns();
}
int64_t detent_weights_accumulator_bound(const detent_weights* weights) {
  return weights == nullptr ? 0 : weights->value.certificate().accumulator_bound;
}

detent_status detent_weights_save(const detent_weights* weights, void* buffer, size_t capacity,
                                  size_t* needed) {
  return guarded([&] {
    constexpr const char* where = "detent_weights_save";
    const std::vector<std::byte> bytes = checked(weights, where).value.save();
    require(needed != nullptr, error_kind::invalid_argument, where, ": null needed");
    *needed = bytes.size();
    if (capacity >= bytes.size()) {
      require(buffer != nullptr, error_kind::invalid_argument, where, ": null buffer");
      std::memcpy(buffer, bytes.data(), bytes.size());
    }
  });
}

detent_status detent_weights_load(const void* bytes, size_t size, detent_weights** weights) {
  return guarded([&] {
    constexpr const char* where = "detent_weights_load";
    require(weights != nullptr, error_kind::invalid_argument, where, ": null result");
    require(bytes != nullptr || size == 0, error_kind::invalid_argument, where, ": null bytes");
    *weights = new detent_weights{
        detent::packed_weights::load({static_cast<const std::byte*>(bytes), size})};
  });
}

void detent_epilogue_init(detent_epilogue* epilogue) {
  *epilogue = {};
  epilogue->size = sizeof *epilogue;
  epilogue->lhs_scale = 1.0F;
  epilogue->output_scale = 1.0F;
  epilogue->qmin = 0;
  epilogue->qmax = -1;
  epilogue->lower = -std::numeric_limits<float>::infinity();
  epilogue->upper = std::numeric_limits<float>::infinity();
}

detent_status detent_gemm(detent_type a_type, const void* a, size_t lda, size_t m,
                          const detent_weights* weights, detent_type c_type, void* c, size_t ldc,
                          const detent_epilogue* epilogue, const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_gemm";
    const detent::packed_weights& w = checked(weights, where).value;
    const detent_epilogue e = known_fields(epilogue, &detent_epilogue_init, where);
    detent::epilogue_options o;
    o.lhs_scale = e.lhs_scale;
    o.lhs_zero_point = e.lhs_zero_point;
    o.output = {e.output_scale, e.output_zero_point};
    o.levels = {e.qmin, e.qmax};
    o.lower = e.lower;
    o.upper = e.upper;
    o.lhs_scales = optional_span(e.lhs_scales, m);
    o.lhs_zero_points = optional_span(e.lhs_zero_points, m);
    o.bias = optional_span(e.bias, w.columns());
    if (e.residual != nullptr) {
      o.residual = rows_of(e.residual, m, w.columns(), e.residual_stride, where);
    }
    if (e.addend != nullptr) {
      o.addend = rows_of(e.addend, m, w.columns(), e.addend_stride, where);
    }
    with_byte(a_type, where, [&]<class A>() {
      with_output(c_type, where, [&]<class T>() {
        detent::gemm(rows_of(static_cast<const A*>(a), m, w.depth(), lda, where), w,
                     rows_of(static_cast<T*>(c), m, w.columns(), ldc, where), o,
                     parallel_of(parallel));
      });
    });
  });
}

void detent_dynamic_linear_options_init(detent_dynamic_linear_options* options) {
  *options = {};
  options->size = sizeof *options;
  options->per_row = 1;
  options->qmin = 0;
  options->qmax = 255;
  options->lower = -std::numeric_limits<float>::infinity();
  options->upper = std::numeric_limits<float>::infinity();
}

detent_status detent_dynamic_linear(const float* a, size_t lda, size_t m,
                                    const detent_weights* weights, float* c, size_t ldc,
                                    const detent_dynamic_linear_options* options,
                                    const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_dynamic_linear";
    const detent::packed_weights& w = checked(weights, where).value;
    const detent_dynamic_linear_options given =
        known_fields(options, &detent_dynamic_linear_options_init, where);
    detent::dynamic_linear_options o;
    o.per_row = given.per_row != 0;
    o.lhs_scheme = {{given.qmin, given.qmax}, given.symmetric != 0};
    o.lower = given.lower;
    o.upper = given.upper;
    o.bias = optional_span(given.bias, w.columns());
    if (given.residual != nullptr) {
      o.residual = rows_of(given.residual, m, w.columns(), given.residual_stride, where);
    }
    detent::dynamic_linear(rows_of(a, m, w.depth(), lda, where), w,
                           rows_of(c, m, w.columns(), ldc, where), o, parallel_of(parallel));
  });
}

detent_status detent_quantize(const float* x, size_t n, float scale, int32_t zero_point,
                              detent_type type, void* q, const detent_parallel* parallel) {
  return guarded([&] {
    with_byte(type, "detent_quantize", [&]<class Q>() {
      detent::quantize(std::span<const float>(x, n), std::span<Q>(static_cast<Q*>(q), n),
                       {scale, zero_point}, detent::full_grid<Q>,
                       {.parallel = parallel_of(parallel)});
    });
  });
}

detent_status detent_dequantize(detent_type type, const void* q, size_t n, float scale,
                                int32_t zero_point, float* x, const detent_parallel* parallel) {
  return guarded([&] {
    with_byte(type, "detent_dequantize", [&]<class Q>() {
      detent::dequantize(std::span<const Q>(static_cast<const Q*>(q), n), std::span<float>(x, n),
                         detent::quant_params{scale, zero_point},
                         {.parallel = parallel_of(parallel)});
    });
  });
}

detent_status detent_dynamic_quantize(const float* x, size_t n, detent_type type, void* q,
                                      float* scale, int32_t* zero_point,
                                      const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_dynamic_quantize";
    require(scale != nullptr && zero_point != nullptr, error_kind::invalid_argument, where,
            ": null results");
    with_byte(type, where, [&]<class Q>() {
      const detent::quant_params p = detent::dynamic_quantize<Q>(
          std::span<const float>(x, n), std::span<Q>(static_cast<Q*>(q), n), detent::asymmetric<Q>,
          {.parallel = parallel_of(parallel)});
      *scale = p.scale;
      *zero_point = p.zero_point;
    });
  });
}

}  // extern "C"
