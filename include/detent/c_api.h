/* SPDX-License-Identifier: BSD-3-Clause */
/** @file
 * The C interface of the integer numerics, also for other toolchains: packed weights of 8 and 4
 * bits, matrix products, dynamic linear layers, convolutions, quantization of elements. Further
 * headers: c_api_observers.h (scales from data), c_api_weights.h (codes of weights) and
 * c_api_graph.h (ONNX models, in a library of its own).
 *
 * Link the CMake target detent::c (the library detent_c). Each function returns the same bits as
 * the C++ function or class that does the same, whose documentation has the details. Most have its
 * name behind the prefix.
 *
 * Errors: every function that can fail returns a detent_status. If that is not DETENT_OK, the
 * function has changed nothing but the buffers that it was given to write, and detent_last_error()
 * has a message. An observer that ran out of memory may hold a part of the batch; it then refuses
 * all use but loading a state and freeing. No exception leaves the library.
 *
 * Threads: different threads may call any functions at the same time. Weights, filters and models
 * do not change, so many threads may use one of them; it may be freed when all of them are done.
 * An observer, a Gram observer or a session serves one thread at a time.
 *
 * Options are structures that begin with their own size. Call the _init function of the structure
 * first, which sets the size and the defaults, then change fields. A library that is newer than the
 * program knows by the size which fields the program has, and uses the defaults of the others.
 *
 * Floating point: results are those of the default environment of the calling threads, which the
 * functions neither change nor check: rounding to nearest, denormals neither flushed to 0 nor read
 * as 0.
 *
 * Aliasing: a buffer that a function writes must not overlap another buffer, unless its
 * documentation says that it may.
 */
#ifndef DETENT_C_API_H
#define DETENT_C_API_H

#include <stddef.h>
#include <stdint.h>

#if defined(DETENT_C_API_BUILD) && defined(__GNUC__)
#define DETENT_C_API __attribute__((visibility("default")))
#else
/** Marks the functions that the shared library exports; empty for programs that use it. */
#define DETENT_C_API
#endif

#ifdef __cplusplus
extern "C" {
/* The type behind an enumeration, for the headers of the C interface. Programs may pass values that
 * are not enumerators. In C++, reading such a value is only defined if the enumeration has a fixed
 * underlying type. */
#define DETENT_C_ENUM : int
#else
#define DETENT_C_ENUM
#endif

/** The result of a function. */
typedef enum detent_status DETENT_C_ENUM {
  DETENT_OK = 0,               /**< The function did what it promises. */
  DETENT_INVALID_ARGUMENT = 1, /**< An argument is out of its domain. */
  DETENT_SHAPE_MISMATCH = 2,   /**< Sizes that must agree do not. */
  DETENT_OVERFLOW = 3,         /**< A result, a sum or an error measure does not fit its type. */
  DETENT_UNSUPPORTED = 4,      /**< This build, target or release has no code for the request. */
  /** Memory could not be allocated. Sizes in a model that need more memory than there is are
   * DETENT_BAD_FILE. */
  DETENT_OUT_OF_MEMORY = 5,
  DETENT_INTERNAL = 6, /**< Another failure, such as an exception from a callback. */
  DETENT_BAD_FILE = 7, /**< Bytes are damaged or not what they claim to be. */
  DETENT_IO = 8,       /**< The operating system refused to read or write a file. */
  DETENT_CANCELLED = 9 /**< The caller's progress function ended the call. */
} detent_status;

/** The type of the elements of a buffer. */
typedef enum detent_type DETENT_C_ENUM {
  DETENT_NO_TYPE = -1, /**< No type, or one that this interface does not have. */
  DETENT_U8 = 0,       /**< Unsigned 8-bit integers (uint8_t). */
  DETENT_S8 = 1,       /**< Signed 8-bit integers (int8_t). */
  DETENT_S32 = 2,      /**< Signed 32-bit integers (int32_t). */
  DETENT_F32 = 3,      /**< IEEE 754 binary32 (float). */
  DETENT_BF16 = 4,     /**< bfloat16: the upper 16 bits of a float. */
  DETENT_F16 = 5,      /**< IEEE 754 binary16. */
  DETENT_U16 = 6,      /**< Unsigned 16-bit integers (uint16_t). */
  DETENT_S16 = 7,      /**< Signed 16-bit integers (int16_t). */
  DETENT_U4 = 8, /**< 0..15, two to a byte, the first in the low bits: n take (n + 1) / 2 bytes. */
  DETENT_S4 = 9, /**< -8..7, two to a byte, the first in the low bits: n take (n + 1) / 2 bytes. */
  DETENT_F8E4M3FN = 10, /**< 8-bit float: 4 bits of exponent, 3 of mantissa, no infinities. */
  DETENT_F8E5M2 = 11,   /**< 8-bit float: 5 bits of exponent, 2 of mantissa. */
  DETENT_F64 = 12,      /**< IEEE 754 binary64 (double). */
  DETENT_U32 = 13,      /**< Unsigned 32-bit integers (uint32_t); tensors of graphs only. */
  DETENT_U64 = 14,      /**< Unsigned 64-bit integers (uint64_t); tensors of graphs only. */
  DETENT_S64 = 15,      /**< Signed 64-bit integers (int64_t); tensors of graphs only. */
  DETENT_BOOL = 16      /**< Bytes of 0 (false) or 1 (true); tensors of graphs only. */
} detent_type;

/** The name of a status: "ok", "invalid argument" and so on; "unknown" for other values. Never
 * null; valid forever. */
DETENT_C_API const char* detent_status_name(detent_status status);
/** The message of the last call of this thread that failed; "" if none did. Never null; valid until
 * the next call of this thread that fails. */
DETENT_C_API const char* detent_last_error(void);
/** Sets what detent_last_error() returns for this thread, for libraries on top of this one; they
 * share its messages. Null stands for "". Without memory for the message, it is "". */
DETENT_C_API void detent_set_last_error(const char* message);
/** The version of the library as major.minor.patch, such as "0.1.0". Never null; valid forever. */
DETENT_C_API const char* detent_version(void);
/** The name of the CPU target in use: "portable", "avx2", "avx_vnni", "avx512", "avx512_vnni" or
 * "amx_int8". Never null; valid forever. */
DETENT_C_API const char* detent_active_target(void);
/** Makes all later calls of all threads use the target of that name, for tests and measurements;
 * results do not depend on it. DETENT_INVALID_ARGUMENT for null and unknown names or targets that
 * are not compiled in, DETENT_UNSUPPORTED if this processor cannot run it. */
DETENT_C_API detent_status detent_set_target(const char* name);

/* ---- Threads are the caller's ---- */

/** The type of the task that detent_parallel::run runs for each index. */
typedef void (*detent_task)(void* context, size_t index);
/** The caller's threads. Where a parameter of this type (or its run) is null, the calling thread
 * does everything. Results do not depend on it. */
typedef struct detent_parallel {
  /** Calls task(context, i) exactly once for each i in [0, count), in any order and on any threads,
   * and returns when all calls have returned. `user` is the field of that name. The task does not
   * throw. */
  void (*run)(void* user, size_t count, detent_task task, void* context);
  void* user; /**< Passed to run; the library does not look at it. */
} detent_parallel;

/* ---- Weights: K x N, packed once, used often; of 8 or 4 bits ---- */

/** A packed K x N matrix of 8-bit or 4-bit weights. Constant after it was made. */
typedef struct detent_weights detent_weights;

/** The quantization parameters of 8-bit weights or filters. Each array is null with a count of 0,
 * has one value for all columns (output channels), or has one value for each. Packing copies the
 * values. */
typedef struct detent_weight_options {
  size_t size;                /**< Size of the structure in bytes, set by the _init function. */
  const float* scales;        /**< Scales, positive and finite; null means 1. */
  size_t scale_count;         /**< Number of scales: 1, or one for each column. */
  const int32_t* zero_points; /**< Zero points, values of the weights' type; null means 0. */
  size_t zero_point_count;    /**< Number of zero points: 1, or one for each column. */
  const int32_t* bias;        /**< Biases, in units of lhs_scale * scale of the column; null: 0. */
  size_t bias_count;          /**< Number of biases: 1, or one for each column. */
  /** The threads that pack, for detent_pack_weights(); null means the calling thread. */
  const detent_parallel* parallel;
} detent_weight_options;
/** Sets the size and the defaults: scales of 1, no zero points, no biases, the calling thread.
 * `options` must not be null. */
DETENT_C_API void detent_weight_options_init(detent_weight_options* options);

/** Copies and packs a K x N matrix of 8-bit weights. `type` is DETENT_S8 or DETENT_U8. Element (i,
 * j) is at w[i * row_stride + j * column_stride]: a row-major K x N matrix has strides N and 1, the
 * transpose of a row-major N x K matrix has strides 1 and K. `options` may be null. On success,
 * `*weights` is a new object, to be freed with detent_weights_free(). DETENT_SHAPE_MISMATCH for
 * arrays of another size; DETENT_INVALID_ARGUMENT for null data, another type, a scale that is not
 * positive and finite, or a zero point outside the type. */
DETENT_C_API detent_status detent_pack_weights(detent_type type, const void* w, size_t k, size_t n,
                                               ptrdiff_t row_stride, ptrdiff_t column_stride,
                                               const detent_weight_options* options,
                                               detent_weights** weights);

/** The quantization parameters of 4-bit weights. K is divided into ceil(K / group_size)
 * quantization groups. The scale and the zero point of group g and column j are at index g *
 * group_stride + j * column_stride of their arrays. Packing copies the values. */
typedef struct detent_int4_weight_options {
  size_t size; /**< Size of the structure in bytes, set by the _init function. */
  /** Number of consecutive k in a quantization group: a multiple of 8. 0 and sizes above K mean one
   * group for all of K. */
  size_t group_size;
  const float* scales; /**< Scales, positive and finite; null means 1. */
  /** Zero points, -8..7 for signed codes and 0..15 for unsigned ones; null means 0. */
  const int32_t* zero_points;
  /** From a group to the next one, in elements. If both strides are 0, each group is a dense row of
   * N values. */
  ptrdiff_t group_stride;
  ptrdiff_t column_stride;         /**< From a column to the next one, in elements. */
  const detent_parallel* parallel; /**< The threads that pack; null means the calling thread. */
} detent_int4_weight_options;
/** Sets the size and the defaults: one group for all of K, scales of 1, no zero points, strides of
 * 0, the calling thread. `options` must not be null. */
DETENT_C_API void detent_int4_weight_options_init(detent_int4_weight_options* options);

/** Copies and packs a K x N matrix of 4-bit codes. `type` is DETENT_S4 or DETENT_S8 for codes of
 * -8..7, DETENT_U4 or DETENT_U8 for codes of 0..15. Element (i, j) is element number
 * i * row_stride + j * column_stride; the strides of DETENT_S4 and DETENT_U4 must not be negative.
 * Products with such weights write DETENT_F32 only. `options` may be null. On success, `*weights`
 * is a new object, to be freed with detent_weights_free(). DETENT_INVALID_ARGUMENT for null data,
 * another type, a group size that is no multiple of 8, or a code, scale or zero point out of range;
 * DETENT_UNSUPPORTED for negative strides of a packed type; DETENT_OVERFLOW for more than 561433 k
 * in a group. */
DETENT_C_API detent_status detent_pack_int4_weights(detent_type type, const void* codes, size_t k,
                                                    size_t n, ptrdiff_t row_stride,
                                                    ptrdiff_t column_stride,
                                                    const detent_int4_weight_options* options,
                                                    detent_weights** weights);

/** Frees weights; does nothing for null. No other thread may be using them. */
DETENT_C_API void detent_weights_free(detent_weights* weights);
/** Number of rows of the weights, K; 0 for null. */
DETENT_C_API size_t detent_weights_depth(const detent_weights* weights);
/** Number of columns of the weights, N; 0 for null. */
DETENT_C_API size_t detent_weights_columns(const detent_weights* weights);
/** Bits of a weight, 8 or 4; 0 for null. */
DETENT_C_API int detent_weights_bits(const detent_weights* weights);
/** Number of k that share a scale: for 4-bit weights that of a quantization group, a multiple of 8;
 * for 8-bit weights K; 0 for null. */
DETENT_C_API size_t detent_weights_group_size(const detent_weights* weights);
/** For 8-bit weights, a bound of the magnitudes of all sums of a product, whatever the left side.
 * Products are fastest if it is at most 2^31 - 1, and exact in any case. 0 for 4-bit weights, the
 * sums of whose groups always fit 32 bits, and for null. */
DETENT_C_API int64_t detent_weights_accumulator_bound(const detent_weights* weights);

/** Makes now, on the threads of `parallel` (null: the calling thread), what products on the active
 * target would otherwise make with the first product: another form of the weights on avx2 and
 * avx512, and copies of those whose sums may leave 32 bits. A second call changes nothing.
 * DETENT_INVALID_ARGUMENT for null weights. */
DETENT_C_API detent_status detent_weights_prepare(const detent_weights* weights,
                                                  const detent_parallel* parallel);

/** Serializes packed weights to bytes that detent_weights_load() reads on any machine. Sets
 * `*needed` to their number. If `capacity` is at least that, writes them to `buffer`; otherwise
 * writes nothing (`buffer` may be null then) and returns DETENT_OK all the same. */
DETENT_C_API detent_status detent_weights_save(const detent_weights* weights, void* buffer,
                                               size_t capacity, size_t* needed);
/** Makes weights of `size` bytes that detent_weights_save() wrote. On success, `*weights` is a new
 * object, to be freed with detent_weights_free(). DETENT_BAD_FILE for bytes that are damaged or
 * were made by something else, DETENT_UNSUPPORTED for a version or a layout that this release does
 * not know. */
DETENT_C_API detent_status detent_weights_load(const void* bytes, size_t size,
                                               detent_weights** weights);

/* ---- C[M x N] = epilogue(A[M x K] * weights) ---- */

/** How an integer product turns its exact sums into outputs. "Float outputs" are DETENT_F32 and
 * DETENT_BF16. With i a row, j a column, and absent values taken as 0:
 *
 *     acc = weight_bias[j] + sum_k (a[i,k] - lhs_zero_point) * (b[k,j] - zero_point[j])
 *           (exact, of as many bits as it takes)
 *
 *     S32:    acc + addend[i,j]; a sum that does not fit is a DETENT_OVERFLOW
 *     F32:    clamp(fma(float(acc), lhs_scale * scale[j], bias[j]) + residual[i,j], lower, upper)
 *     BF16:   the F32 result, rounded to bfloat16, ties to even
 *     U8, S8: clamp(round_half_even(float(acc) * m[j]) + output_zero_point, qmin, qmax)
 *             with m[j] = (lhs_scale * scale[j]) / output_scale, each step rounded to float */
typedef struct detent_epilogue {
  size_t size;            /**< Size of the structure in bytes, set by the _init function. */
  float lhs_scale;        /**< Scale of the left side; positive and finite. Not for DETENT_S32. */
  int32_t lhs_zero_point; /**< Zero point of the left side, a value of its type. */
  float output_scale;     /**< Scale of 8-bit outputs; positive and finite. */
  int32_t output_zero_point; /**< Zero point of 8-bit outputs, a value of their type. */
  int32_t qmin,              /**< Least value of 8-bit outputs; qmin > qmax means the whole type. */
      qmax;                  /**< Largest value of 8-bit outputs. */
  float lower,               /**< Lower bound of float outputs. */
      upper;                 /**< Upper bound of float outputs. */
  const float* lhs_scales;   /**< Null, or M scales used instead of lhs_scale; float outputs. */
  const int32_t* lhs_zero_points; /**< Null, or M zero points used instead of lhs_zero_point. */
  const float* bias;              /**< Null, or N values to add; float outputs. */
  const float* residual;          /**< Null, or an M x N matrix; float outputs. May be C if F32. */
  size_t residual_stride;         /**< From a row of the residual to the next one, in elements. */
  const int32_t* addend; /**< Null, or an M x N matrix to add; S32 outputs. May be the output. */
  size_t addend_stride;  /**< From a row of the addend to the next one, in elements. */
  /* Sizes in bytes of the caches that products with 8-bit weights are divided for; the results do
   * not depend on them. */
  size_t first_level_cache, /**< First level (data); 0 means that of the processor. */
      second_level_cache,   /**< Second level; 0 means that of the processor. */
      third_level_cache;    /**< Third level; 0 means that of the processor. */
} detent_epilogue;
/** Sets the size and the defaults: scales of 1, zero points of 0, the whole type, no bounds, null
 * pointers, the processor's caches. `epilogue` must not be null. */
DETENT_C_API void detent_epilogue_init(detent_epilogue* epilogue);

/** Multiplies a row-major M x K matrix A by packed weights: C = epilogue(A * weights). `a_type` is
 * DETENT_U8 or DETENT_S8; `c_type` is DETENT_S32, DETENT_F32, DETENT_BF16, DETENT_U8 or DETENT_S8
 * for 8-bit weights, DETENT_F32 for 4-bit weights. C is M x N and row-major. The rows of A and C
 * are lda and ldc elements apart, lda at least K and ldc at least N if M is above 1. `epilogue`
 * (defaults) and `parallel` (the calling thread) may be null. With DETENT_OVERFLOW, the elements
 * that do not fit keep their values, and all others are written; other errors come before anything
 * is written. */
DETENT_C_API detent_status detent_gemm(detent_type a_type, const void* a, size_t lda, size_t m,
                                       const detent_weights* weights, detent_type c_type, void* c,
                                       size_t ldc, const detent_epilogue* epilogue,
                                       const detent_parallel* parallel);

/** One product of a batch. A row-major A has a column_stride of 1 (the default) and a row_stride of
 * at least K; a column-major A (the transpose of a row-major K x M matrix) has a row_stride of 1
 * and a column_stride of at least M. */
typedef struct detent_gemm_problem {
  size_t size;                   /**< Size of the structure in bytes, set by the _init function. */
  const void* a;                 /**< The left side, M x K. */
  size_t m;                      /**< Number of rows, M. */
  ptrdiff_t row_stride,          /**< From a row of A to the next one, in elements. */
      column_stride;             /**< From a column of A to the next one, in elements. */
  const detent_weights* weights; /**< The weights, K x N; not null. */
  void* c;                       /**< The output, M x N, row-major. */
  size_t ldc;                    /**< From a row of C to the next one, in elements; at least N. */
  const detent_epilogue* epilogue; /**< The epilogue; null means the defaults. */
} detent_gemm_problem;
/** Sets the size and the defaults: a column_stride of 1, all else 0 and null. `problem` must not be
 * null. */
DETENT_C_API void detent_gemm_problem_init(detent_gemm_problem* problem);

/** Computes `count` products, whose parts are shared out to threads together: heads, experts,
 * images of a batch. `problems` is an array of structures of one size. Shapes, weights and
 * epilogues may differ; the weights are all of 8 bits or all of 4 (otherwise DETENT_UNSUPPORTED).
 * Types and errors are those of detent_gemm(). All problems are checked before the first output is
 * written. `parallel` may be null. */
DETENT_C_API detent_status detent_gemm_batch(detent_type a_type, detent_type c_type,
                                             const detent_gemm_problem* problems, size_t count,
                                             const detent_parallel* parallel);

/** One product of two quantized activations, as between queries and keys: neither side is constant,
 * so that nothing is packed beforehand. */
typedef struct detent_activation_product {
  size_t size;            /**< Size of the structure in bytes, set by the _init function. */
  size_t m,               /**< Number of rows of A and C, M. */
      n,                  /**< Number of columns of B and C, N. */
      k;                  /**< Number of columns of A and rows of B, K. */
  const void* a;          /**< The left side, M x K; element (i, k) as in detent_gemm_problem. */
  ptrdiff_t a_row_stride, /**< From a row of A to the next one, in elements. */
      a_column_stride;    /**< From a column of A to the next one; one of the two is 1. */
  const void* b;          /**< The right side, K x N. */
  ptrdiff_t b_row_stride, /**< From a row of B to the next one, in elements. */
      b_column_stride;    /**< From a column of B to the next one, in elements. */
  float b_scale;          /**< Scale of B, positive and finite. */
  int32_t b_zero_point;   /**< Zero point of B, a value of its type. */
  void* c;                /**< The output, M x N, row-major. */
  size_t ldc;             /**< From a row of C to the next one, in elements; at least N. */
  const detent_epilogue* epilogue; /**< The epilogue; null means the defaults. */
} detent_activation_product;
/** Sets the size and the defaults: column strides of 1, a b_scale of 1, all else 0 and null.
 * `product` must not be null. */
DETENT_C_API void detent_activation_product_init(detent_activation_product* product);

/** Computes `count` products of two activations, whose parts are shared out to threads together:
 * heads, images of a batch. C = epilogue(A * B), with the formulas of detent_epilogue and B in the
 * place of the weights. `a_type` and `b_type` are DETENT_U8 or DETENT_S8, `c_type` is DETENT_S32,
 * DETENT_F32, DETENT_BF16, DETENT_U8 or DETENT_S8. `products` is an array of structures of one
 * size. Results are those of detent_pack_weights() and detent_gemm(), and so are the errors; all
 * products are checked before the first output is written. Memory: packed copies of all B.
 * `parallel` may be null. */
DETENT_C_API detent_status detent_multiply_activations(detent_type a_type, detent_type b_type,
                                                       detent_type c_type,
                                                       const detent_activation_product* products,
                                                       size_t count,
                                                       const detent_parallel* parallel);

/** How a dynamic linear layer quantizes its left side, and what it adds to the product. */
typedef struct detent_dynamic_linear_options {
  size_t size;            /**< Size of the structure in bytes, set by the _init function. */
  int per_row;            /**< Not 0: each row has a range of its own; 0: one range for all rows. */
  int32_t qmin,           /**< Least value of the quantized left side, 0..255. */
      qmax;               /**< Largest value of it, 0..255; qmin 0 and qmax -1 mean 0..255. */
  int symmetric;          /**< Not 0: the range is made symmetric about 0. */
  float lower,            /**< Lower bound of the output. */
      upper;              /**< Upper bound of the output. */
  const float* bias;      /**< Null, or N values to add. */
  const float* residual;  /**< Null, or an M x N matrix to add before the clamp; may be C. */
  size_t residual_stride; /**< From a row of the residual to the next one, in elements. */
} detent_dynamic_linear_options;
/** Sets the size and the defaults: a range for each row, the grid 0..255, not symmetric, no bounds,
 * null pointers. `options` must not be null. */
DETENT_C_API void detent_dynamic_linear_options_init(detent_dynamic_linear_options* options);

/** Multiplies a row-major float M x K matrix A by packed weights of 8 or 4 bits, with A quantized
 * to unsigned bytes on the way: for each row, or for all of A, scale and zero point come from the
 * range of its values. C is a row-major M x N matrix of floats. The rows of A and C are lda and ldc
 * elements apart, lda at least K and ldc at least N if M is above 1. NaN becomes the zero point; an
 * infinity is a DETENT_INVALID_ARGUMENT, and other rows may have been written then. `options` and
 * `parallel` may be null. */
DETENT_C_API detent_status detent_dynamic_linear(const float* a, size_t lda, size_t m,
                                                 const detent_weights* weights, float* c,
                                                 size_t ldc,
                                                 const detent_dynamic_linear_options* options,
                                                 const detent_parallel* parallel);
/** Multiplies as detent_dynamic_linear() does, for A of another type or layout: `a_type` is
 * DETENT_F32, DETENT_F16 or DETENT_BF16, and element (i, k) is at
 * a[i * row_stride + k * column_stride], where one of the strides is 1; DETENT_UNSUPPORTED if none
 * is. */
DETENT_C_API detent_status detent_dynamic_linear_strided(
    detent_type a_type, const void* a, ptrdiff_t row_stride, ptrdiff_t column_stride, size_t m,
    const detent_weights* weights, float* c, size_t ldc,
    const detent_dynamic_linear_options* options, const detent_parallel* parallel);

/* ---- Convolutions ---- */

/** A packed filter bank of signed 8-bit weights. Constant after it was made. */
typedef struct detent_filters detent_filters;

/** The shape of a filter bank. Output channel c reads the input channels of group number
 * c / (out_channels / groups). */
typedef struct detent_filter_shape {
  size_t size;          /**< Size of the structure in bytes, set by the _init function. */
  size_t out_channels;  /**< Output channels of all groups together; a multiple of groups. */
  size_t in_channels;   /**< Input channels of all groups together; a multiple of groups. */
  size_t groups;        /**< Number of groups, at least 1. */
  size_t kernel_height, /**< Rows of a filter, at least 1; 1 for a 1-D convolution. */
      kernel_width;     /**< Columns of a filter, at least 1. */
} detent_filter_shape;
/** Sets the size and the defaults: one group and a kernel of 1 x 1; the channels, which are 0, are
 * to be set. `shape` must not be null. */
DETENT_C_API void detent_filter_shape_init(detent_filter_shape* shape);

/** Copies and packs a filter bank: `count` weights in the order
 * [out_channels][in_channels / groups][kernel_height][kernel_width], as in ONNX. Scales, zero
 * points and biases have one value or one for each output channel; options->parallel is not used.
 * `options` may be null. On success,
 * `*filters` is a new object, to be freed with detent_filters_free(). DETENT_SHAPE_MISMATCH for
 * channels that do not divide into the groups and for arrays of another size;
 * DETENT_INVALID_ARGUMENT for a kernel of size 0, null data, a scale that is not positive and
 * finite, or a zero point out of range. */
DETENT_C_API detent_status detent_pack_filters(const detent_filter_shape* shape,
                                               const int8_t* weights, size_t count,
                                               const detent_weight_options* options,
                                               detent_filters** filters);
/** Frees filters; does nothing for null. No other thread may be using them. */
DETENT_C_API void detent_filters_free(detent_filters* filters);
/** Tells the shape that filters were packed with, as far as the caller's structure has fields.
 * DETENT_INVALID_ARGUMENT for null. */
DETENT_C_API detent_status detent_filters_shape(const detent_filters* filters,
                                                detent_filter_shape* shape);
/** Serializes filters to bytes that detent_filters_load() reads on any machine. Sets `*needed` to
 * their number. If `capacity` is at least that, writes them to `buffer`; otherwise writes nothing
 * (`buffer` may be null then) and returns DETENT_OK all the same. */
DETENT_C_API detent_status detent_filters_save(const detent_filters* filters, void* buffer,
                                               size_t capacity, size_t* needed);
/** Packs filters of `size` bytes that detent_filters_save() wrote. On success, `*filters` is a new
 * object, to be freed with detent_filters_free(). DETENT_BAD_FILE for bytes that are damaged or
 * were made by something else, DETENT_UNSUPPORTED for a version that this release does not know. */
DETENT_C_API detent_status detent_filters_load(const void* bytes, size_t size,
                                               detent_filters** filters);

/** The order of the values of a batch of images in memory. */
typedef enum detent_layout DETENT_C_ENUM {
  DETENT_NHWC = 0, /**< Channels last: [batch][height][width][channels]. */
  DETENT_NCHW = 1  /**< Channels first: [batch][channels][height][width], as in ONNX. */
} detent_layout;

/** How filters move over a batch of images, and how input and output are laid out. All extents are
 * in pixels. Padding stands for the real value 0: for integers, lhs_zero_point. */
typedef struct detent_window {
  size_t size;                /**< Size of the structure in bytes, set by the _init function. */
  size_t batch;               /**< Number of images. */
  size_t in_height,           /**< Height of the input, without padding. */
      in_width;               /**< Width of the input, without padding. */
  size_t stride_height,       /**< Vertical distance of neighbouring windows, at least 1. */
      stride_width;           /**< Horizontal distance of neighbouring windows, at least 1. */
  size_t dilation_height,     /**< Vertical distance of neighbouring taps, at least 1 (dense). */
      dilation_width;         /**< Horizontal distance of neighbouring taps, at least 1 (dense). */
  size_t pad_top,             /**< Lines of padding above the input. */
      pad_left,               /**< Columns of padding left of the input. */
      pad_bottom,             /**< Lines of padding below the input. */
      pad_right;              /**< Columns of padding right of the input. */
  detent_layout input_layout, /**< Layout of the input. */
      output_layout;          /**< Layout of the output; it may differ from that of the input. */
} detent_window;
/** Sets the size and the defaults: one image of one pixel, strides and dilations of 1, no padding,
 * channels last. `window` must not be null. */
DETENT_C_API void detent_window_init(detent_window* window);

/** Computes the height and the width of the output. Each is 0 if the kernel with its dilation is
 * larger than the padded input in that direction. DETENT_INVALID_ARGUMENT for null pointers,
 * strides or dilations of 0, and a window beyond 2^32. */
DETENT_C_API detent_status detent_convolution_size(const detent_filters* filters,
                                                   const detent_window* window, size_t* out_height,
                                                   size_t* out_width);

/** Convolves 8-bit images with packed filters. `input_type` is DETENT_U8 or DETENT_S8;
 * `output_type` is DETENT_S32, DETENT_F32, DETENT_BF16, DETENT_U8 or DETENT_S8. `input_size` and
 * `output_size` are numbers of elements; another size than that of the images is a
 * DETENT_SHAPE_MISMATCH. Input and output are dense, in the layouts of the window. Padding has the
 * value lhs_zero_point.
 *
 * The epilogue is that of detent_gemm(), with output channels as columns. A residual is dense, in
 * the size and layout of the output; residual_stride is ignored. lhs_scales, lhs_zero_points and
 * addend are DETENT_UNSUPPORTED. `epilogue` and `parallel` may be null. With DETENT_OVERFLOW, the
 * elements that do not fit keep their values, and all others are written; other errors come before
 * anything is written. */
DETENT_C_API detent_status detent_convolve(const detent_filters* filters,
                                           const detent_window* window, detent_type input_type,
                                           const void* input, size_t input_size,
                                           detent_type output_type, void* output,
                                           size_t output_size, const detent_epilogue* epilogue,
                                           const detent_parallel* parallel);

/** How a dynamic convolution quantizes its input, and what it adds to the sums. */
typedef struct detent_dynamic_convolution_options {
  size_t size;       /**< Size of the structure in bytes, set by the _init function. */
  int per_image;     /**< Not 0: each image has a range of its own; 0: one range for the batch. */
  int32_t qmin,      /**< Least value of the quantized input, 0..255. */
      qmax;          /**< Largest value of it, 0..255; qmin 0 and qmax -1 mean 0..255. */
  int symmetric;     /**< Not 0: the range is made symmetric about 0. */
  float lower,       /**< Lower bound of the output. */
      upper;         /**< Upper bound of the output. */
  const float* bias; /**< Null, or a value to add for each output channel. */
} detent_dynamic_convolution_options;
/** Sets the size and the defaults: a range for each image, the grid 0..255, not symmetric, no
 * bounds, no bias. `options` must not be null. */
DETENT_C_API void detent_dynamic_convolution_options_init(
    detent_dynamic_convolution_options* options);

/** Convolves float images with packed 8-bit filters, with the input quantized to unsigned bytes on
 * the way: for each image, or for the batch, scale and zero point come from the range of its
 * values. Sizes (in elements) and layouts are those of detent_convolve(). NaN becomes the zero
 * point; an infinity is a DETENT_INVALID_ARGUMENT, and earlier images may have been written then.
 * `options` and `parallel` may be null. */
DETENT_C_API detent_status detent_dynamic_convolve(
    const detent_filters* filters, const detent_window* window, const float* input,
    size_t input_size, float* output, size_t output_size,
    const detent_dynamic_convolution_options* options, const detent_parallel* parallel);

/* ---- Elements with one scale; type: DETENT_U8 or DETENT_S8 ---- */

/** Quantizes n floats: q = clamp(round_half_even(x / scale) + zero_point), clamped to the type,
 * with the IEEE quotient. NaN gives the zero point; infinities saturate. `type` is DETENT_U8 or
 * DETENT_S8. `parallel` may be null. */
DETENT_C_API detent_status detent_quantize(const float* x, size_t n, float scale,
                                           int32_t zero_point, detent_type type, void* q,
                                           const detent_parallel* parallel);
/** Dequantizes n integers of DETENT_U8 or DETENT_S8: x = float(q - zero_point) * scale. `parallel`
 * may be null. */
DETENT_C_API detent_status detent_dequantize(detent_type type, const void* q, size_t n, float scale,
                                             int32_t zero_point, float* x,
                                             const detent_parallel* parallel);
/** Quantizes n floats with the scale and zero point that cover the range of the data and 0, and
 * sets `*scale` and `*zero_point` to them. `type` is DETENT_U8 (grid 0..255) or DETENT_S8
 * (-128..127). NaN does not count for the range and becomes the zero point; an infinity is a
 * DETENT_INVALID_ARGUMENT. `parallel` may be null. */
DETENT_C_API detent_status detent_dynamic_quantize(const float* x, size_t n, detent_type type,
                                                   void* q, float* scale, int32_t* zero_point,
                                                   const detent_parallel* parallel);
/** Quantizes each row of a float M x K matrix with a scale and a zero point that cover the range of
 * the row and 0; they are written to `scales` and `zero_points`, M values each. The rows of x and q
 * are ldx and ldq elements apart. `row_sums` is null or receives M sums of the integers of a row,
 * modulo 2^32. If `symmetric` is not 0, DETENT_S8 uses zero point 0 and the grid -127..127,
 * DETENT_U8 zero point 128 and the grid 0..255. NaN becomes the zero point; an infinity is a
 * DETENT_INVALID_ARGUMENT, and other rows may have been written then. `parallel` may be null. */
DETENT_C_API detent_status detent_dynamic_quantize_rows(const float* x, size_t ldx, size_t m,
                                                        size_t k, detent_type type, int symmetric,
                                                        void* q, size_t ldq, float* scales,
                                                        int32_t* zero_points, int32_t* row_sums,
                                                        const detent_parallel* parallel);
/** Computes the scale and zero point with which the grid qmin..qmax covers the range lower..upper
 * and 0. If `symmetric` is not 0, the range is made symmetric about 0 and the zero point is the
 * middle of the grid, ceil((qmin + qmax) / 2). DETENT_INVALID_ARGUMENT for a range that is not
 * finite or not ordered, and for a grid that is too small or reaches beyond -65536..65535. */
DETENT_C_API detent_status detent_params_from_range(float lower, float upper, int32_t qmin,
                                                    int32_t qmax, int symmetric, float* scale,
                                                    int32_t* zero_point);

/* ---- Elements of more types, with scales of channels or blocks ---- */

/** The quantization parameters of a dense tensor. Element i belongs to channel i / inner (rounded
 * down), modulo `channels`: the tensor has an axis of `channels` elements with `inner` elements
 * behind each. inner = 1 means the last axis. Blocks of b elements along the last axis, of r rows
 * of s elements, are r * (s / b) channels with inner = b. */
typedef struct detent_element_params {
  size_t size;                /**< Size of the structure in bytes, set by the _init function. */
  const float* scales;        /**< A scale for each channel, positive and finite; not null. */
  const int32_t* zero_points; /**< A zero point for each channel, in the grid; null means 0. */
  const int32_t* bias; /**< For detent_requantize(): a bias for each channel; null means 0. */
  size_t channels;     /**< Number of channels, at least 1; 1 means parameters of the tensor. */
  size_t inner;        /**< Number of elements behind each element of the axis, at least 1. */
  int32_t qmin,        /**< Least integer that is made; qmin > qmax means the whole type. */
      qmax;            /**< Largest integer that is made. */
} detent_element_params;
/** Sets the size and the defaults: one channel, zero points of 0, the whole type; the scales are to
 * be set. `params` must not be null. */
DETENT_C_API void detent_element_params_init(detent_element_params* params);

/** Quantizes n elements: q = clamp(round_half_even(x / scale) + zero_point, qmin, qmax), with the
 * scale and zero point of the element's channel. `x_type` is DETENT_F32, DETENT_F16, DETENT_BF16,
 * DETENT_F8E4M3FN or DETENT_F8E5M2;
 * `q_type` is DETENT_U8, DETENT_S8, DETENT_U16, DETENT_S16, DETENT_U4 or DETENT_S4. NaN gives the
 * zero point; infinities saturate. DETENT_SHAPE_MISMATCH if n is no multiple of channels * inner,
 * or one of these is 0. `parallel` may be null. */
DETENT_C_API detent_status detent_quantize_elements(detent_type x_type, const void* x, size_t n,
                                                    detent_type q_type, void* q,
                                                    const detent_element_params* params,
                                                    const detent_parallel* parallel);
/** Dequantizes n elements: x = float(q - zero_point) * scale, rounded to the type of x, with the
 * scale and zero point of the element's channel. `q_type` is DETENT_U8, DETENT_S8, DETENT_U16,
 * DETENT_S16, DETENT_U4, DETENT_S4, or DETENT_S32 with zero points of 0; `x_type` is DETENT_F32,
 * DETENT_F16, DETENT_BF16, DETENT_F8E4M3FN or DETENT_F8E5M2. DETENT_SHAPE_MISMATCH if n is no
 * multiple of channels * inner. `parallel` may be null. */
DETENT_C_API detent_status detent_dequantize_elements(detent_type q_type, const void* q, size_t n,
                                                      detent_type x_type, void* x,
                                                      const detent_element_params* params,
                                                      const detent_parallel* parallel);
/** Requantizes n accumulators: q = clamp(round_half_even(float(acc + bias) * scale) + zero_point,
 * qmin, qmax), with acc + bias modulo 2^32. The `scales` of the parameters are the multipliers,
 * lhs_scale * scale of the weights / scale of the output. `q_type` is DETENT_U8, DETENT_S8,
 * DETENT_U16 or DETENT_S16. DETENT_SHAPE_MISMATCH if n is no multiple of channels * inner.
 * `parallel` may be null. */
DETENT_C_API detent_status detent_requantize(const int32_t* acc, size_t n, detent_type q_type,
                                             void* q, const detent_element_params* params,
                                             const detent_parallel* parallel);
/** Quantizes and dequantizes n floats: y = dequantize(quantize(x)) on the grid that
 * detent_quantize_elements() uses for `q_type` and the parameters. NaN gives 0; infinities
 * saturate. DETENT_INVALID_ARGUMENT for a grid of one level; DETENT_SHAPE_MISMATCH if n is no
 * multiple of channels * inner. */
DETENT_C_API detent_status detent_fake_quantize(const float* x, size_t n, detent_type q_type,
                                                float* y, const detent_element_params* params);

/** Converts n floats from one format to another: each is rounded to the nearest value of `to_type`,
 * ties to even, directly from `from_type`. Both types are DETENT_F32, DETENT_F16, DETENT_BF16,
 * DETENT_F8E4M3FN, DETENT_F8E5M2 or DETENT_F64. Values too large for `to_type` become infinity
 * (DETENT_F8E4M3FN, which has none: NaN); if `saturate` is not 0 and `to_type` is an 8-bit format,
 * they and infinities become its largest finite value. NaN stays NaN. */
DETENT_C_API detent_status detent_convert_floats(detent_type from_type, const void* from, size_t n,
                                                 detent_type to_type, void* to, int saturate);

#ifdef __cplusplus
}
#endif

#endif /* DETENT_C_API_H */
