// SPDX-License-Identifier: BSD-3-Clause
// The folder c_api/ implements the C interface, <detent/c_api.h>, on top of the C++ functions. It
// may include every header of the numerics (detent.hpp), but not graph/; nothing includes it. Its
// .cpp files make the library detent_c.
//
// This file has what the functions of the C interface share: types become template arguments,
// exceptions become statuses, and structures of options are read as far as the caller knows them.
#ifndef DETENT_C_API_CALLS_HPP
#define DETENT_C_API_CALLS_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include <detent/c_api.h>
#include <detent/detent.hpp>

namespace detent_c {

using detent::error_kind;
using detent::matrix_view;
using detent::require;

/// The status that stands for a kind of error.
inline detent_status status_of(error_kind kind) {
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
    case error_kind::io:
      return DETENT_IO;
    default:
      return DETENT_INTERNAL;
  }
}

/// Thrown when the caller's progress function asks to stop. No error of the library, so that
/// nothing on the way takes it for one.
struct cancelled {};

/// Runs the body of a function and turns what it throws into a status and a message.
template <class Body>
detent_status guarded(const Body& body) noexcept {
  try {
    body();
    return DETENT_OK;
  } catch (const detent::error& e) {
    detent_set_last_error(e.what());
    return status_of(e.kind());
  } catch (const cancelled&) {
    detent_set_last_error("detent: the progress function ended the call");
    return DETENT_CANCELLED;
  } catch (const std::bad_alloc&) {
    detent_set_last_error("detent: out of memory");
    return DETENT_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    detent_set_last_error(e.what());
  } catch (...) {
    detent_set_last_error("detent: unknown failure");
  }
  return DETENT_INTERNAL;
}

/// The caller's threads as a parallel_for. Exceptions of a body must not pass through the caller's
/// C frames: the first one is kept, and rethrown when run() has returned.
inline detent::parallel_for parallel_of(const detent_parallel* parallel) {
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

/// Throws invalid_argument unless a release of the structure may have this size. Sizes are
/// multiples of the alignment, so that no pointer is known by half.
template <class Structure>
void require_structure_size(std::size_t size, const char* what) {
  require(size >= sizeof(size_t) && size <= sizeof(Structure) && size % alignof(Structure) == 0,
          error_kind::invalid_argument, what, ": size ", size, " is not that of the structure (",
          sizeof(Structure), "); was it initialized?");
}

/// A copy of the caller's structure of options in the size that this library knows: fields that the
/// caller's version does not have keep their defaults. Null means the defaults. Throws
/// invalid_argument if the size is larger than that of this library or was not set.
template <class Options>
Options known_fields(const Options* given, void (*init)(Options*), const char* what) {
  Options o;
  init(&o);
  if (given != nullptr) {
    require_structure_size<Options>(given->size, what);
    std::memcpy(&o, given, given->size);
  }
  return o;
}

/// The caller's array of `count` structures in the size that this library knows. The distance of
/// the structures is the size that the first one states; all must state the same. `one` names an
/// element in messages.
template <class Options>
std::vector<Options> known_array(const Options* given, std::size_t count, void (*init)(Options*),
                                 const char* where, const char* one) {
  std::vector<Options> known;
  require(count == 0 || given != nullptr, error_kind::invalid_argument, where, ": null ", one, "s");
  const auto* at = reinterpret_cast<const std::byte*>(given);
  for (std::size_t i = 0; i < count; ++i, at += given->size) {
    known.push_back(known_fields(reinterpret_cast<const Options*>(at), init, where));
    require(known.back().size == given->size, error_kind::invalid_argument, where, ": ", one, " ",
            i, " has size ", known.back().size, ", the first one ", given->size);
  }
  return known;
}

/// Writes a structure of results into the caller's one, as far as the caller's version has fields.
/// Throws invalid_argument if its size is larger than that of this library or was not set.
template <class Result>
void write_known_fields(Result* to, Result value, const char* what) {
  const std::size_t size = to->size;
  require_structure_size<Result>(size, what);
  value.size = size;
  std::memcpy(static_cast<void*>(to), &value, size);
}

/// Tells how many bytes there are, and copies them if the caller's buffer holds them all.
inline void hand_out(std::span<const std::byte> bytes, void* buffer, std::size_t capacity,
                     std::size_t* needed, const char* where) {
  require(needed != nullptr, error_kind::invalid_argument, where, ": null needed");
  require(capacity < bytes.size() || buffer != nullptr, error_kind::invalid_argument, where,
          ": null buffer");
  *needed = bytes.size();
  if (capacity >= bytes.size() && !bytes.empty()) {
    std::memcpy(buffer, bytes.data(), bytes.size());
  }
}

/// The caller's bytes. Throws invalid_argument for null with a size.
inline std::span<const std::byte> bytes_of(const void* bytes, std::size_t size, const char* where) {
  require(bytes != nullptr || size == 0, error_kind::invalid_argument, where, ": null bytes");
  return {static_cast<const std::byte*>(bytes), size};
}

/// Dereferences a pointer; throws invalid_argument if it is null.
template <class T>
T& checked(T* pointer, const char* where, const char* what) {
  require(pointer != nullptr, error_kind::invalid_argument, where, ": null ", what);
  return *pointer;
}

/// A span of `size` values, or an empty one for null.
template <class T>
std::span<const T> optional_span(const T* data, std::size_t size) {
  return {data, data != nullptr ? size : 0};
}

/// A row-major matrix whose rows are `stride` elements apart. If it is written to, its rows must
/// not overlap.
template <class T>
matrix_view<T> rows_of(T* data, std::size_t rows, std::size_t columns, std::size_t stride,
                       const char* where) {
  require(stride <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()),
          error_kind::invalid_argument, where, ": row stride ", stride);
  if constexpr (!std::is_const_v<T>) {
    require(rows <= 1 || stride >= columns, error_kind::invalid_argument, where, ": rows of ",
            columns, " elements that are ", stride, " apart would overwrite each other");
  }
  return {data, rows, columns, static_cast<std::ptrdiff_t>(stride)};
}

/// Throws invalid_argument for a type that a function does not take; `wanted` lists those it does.
[[noreturn]] inline void raise_type(detent_type type, const char* where, const char* wanted) {
  detent::raise(error_kind::invalid_argument,
                detent::detail::message("detent: ", where, ": type ", static_cast<int>(type),
                                        " is not ", wanted));
}

/// Calls f<T>() with the C++ type of an 8-bit type.
template <class F>
void with_byte(detent_type type, const char* where, const F& f) {
  switch (type) {
    case DETENT_U8:
      return f.template operator()<std::uint8_t>();
    case DETENT_S8:
      return f.template operator()<std::int8_t>();
    default:
      raise_type(type, where, "DETENT_U8 or DETENT_S8");
  }
}

/// Calls f<T>() with the C++ type of a floating-point type.
template <class F>
void with_real(detent_type type, const char* where, const F& f) {
  switch (type) {
    case DETENT_F32:
      return f.template operator()<float>();
    case DETENT_F16:
      return f.template operator()<detent::float16>();
    case DETENT_BF16:
      return f.template operator()<detent::bfloat16>();
    default:
      raise_type(type, where, "DETENT_F32, DETENT_F16 or DETENT_BF16");
  }
}

/// Calls f<T>() with the C++ type of a floating-point type, those of 8 bits included.
template <class F>
void with_any_real(detent_type type, const char* where, const F& f) {
  switch (type) {
    case DETENT_F8E4M3FN:
      return f.template operator()<detent::float8_e4m3fn>();
    case DETENT_F8E5M2:
      return f.template operator()<detent::float8_e5m2>();
    case DETENT_F32:
    case DETENT_F16:
    case DETENT_BF16:
      return with_real(type, where, f);
    default:
      raise_type(type, where,
                 "DETENT_F32, DETENT_F16, DETENT_BF16, DETENT_F8E4M3FN or DETENT_F8E5M2");
  }
}

/// Calls f<T>() with the C++ type of any floating-point type, double included.
template <class F>
void with_float(detent_type type, const char* where, const F& f) {
  switch (type) {
    case DETENT_F64:
      return f.template operator()<double>();
    case DETENT_F32:
    case DETENT_F16:
    case DETENT_BF16:
    case DETENT_F8E4M3FN:
    case DETENT_F8E5M2:
      return with_any_real(type, where, f);
    default:
      raise_type(
          type, where,
          "DETENT_F32, DETENT_F16, DETENT_BF16, DETENT_F8E4M3FN, DETENT_F8E5M2 or DETENT_F64");
  }
}

/// The shape [outer][channels][inner] of n dense elements. Throws shape_mismatch if n is no
/// multiple of channels * inner.
inline std::array<std::size_t, 3> channel_shape(std::size_t n, std::size_t channels,
                                                std::size_t inner, const char* where) {
  require(channels > 0 && inner > 0 &&
              inner <= std::numeric_limits<std::size_t>::max() / channels &&
              n % (channels * inner) == 0,
          error_kind::shape_mismatch, where, ": ", n, " elements are not a multiple of ", channels,
          " channels times ", inner);
  return {n / (channels * inner), channels, inner};
}

/// Calls f<T>() with the C++ type of an output of integer products.
template <class F>
void with_output(detent_type type, const char* where, const F& f) {
  switch (type) {
    case DETENT_S32:
      return f.template operator()<std::int32_t>();
    case DETENT_F32:
      return f.template operator()<float>();
    case DETENT_BF16:
      return f.template operator()<detent::bfloat16>();
    case DETENT_U8:
      return f.template operator()<std::uint8_t>();
    case DETENT_S8:
      return f.template operator()<std::int8_t>();
    default:
      raise_type(type, where, "DETENT_S32, DETENT_F32, DETENT_BF16, DETENT_U8 or DETENT_S8");
  }
}

/// The options that do not depend on a shape; the pointers of the epilogue are left out.
inline detent::epilogue_options scalar_options(const detent_epilogue& e) {
  detent::epilogue_options o;
  o.lhs_scale = e.lhs_scale;
  o.lhs_zero_point = e.lhs_zero_point;
  o.output = {e.output_scale, e.output_zero_point};
  o.levels = e.qmin > e.qmax ? detent::grid{} : detent::grid{e.qmin, e.qmax};
  o.lower = e.lower;
  o.upper = e.upper;
  o.caches = {e.first_level_cache, e.second_level_cache, e.third_level_cache};
  return o;
}

/// A span of `count` values that a structure gives with their number. Throws shape_mismatch, naming
/// the array, for null with a count and for an array without one, which the caller must have
/// forgotten.
template <class T>
std::span<const T> counted_span(const T* data, std::size_t count, const char* where,
                                const char* name) {
  require((data == nullptr) == (count == 0), error_kind::shape_mismatch, where, ": ", count,
          data == nullptr ? " " : " is the number of ", name,
          data == nullptr ? " at a null pointer" : ", which are not null");
  return {data, count};
}

/// The C++ form of weight options. Throws what counted_span() throws.
inline detent::weight_options weight_options_of(const detent_weight_options& o, const char* where) {
  return {counted_span(o.scales, o.scale_count, where, "scales"),
          counted_span(o.zero_points, o.zero_point_count, where, "zero points"),
          counted_span(o.bias, o.bias_count, where, "biases")};
}

}  // namespace detent_c

#endif  // DETENT_C_API_CALLS_HPP
