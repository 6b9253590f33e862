/* SPDX-License-Identifier: BSD-3-Clause
 * The integer numerics for C and for other toolchains: pack, gemm, dynamic linear, quantize.
 *
 * Link detent::c (the library detent_c). What the functions compute is what the C++ functions of
 * the same name do, to the bit; their headers have the formulas.
 *
 * Every function that can fail returns a status, and then has changed nothing but buffers that it
 * was given to write. No exception leaves the library. All functions are thread-safe; a weights
 * object may be used by many threads, and freed by one when the others are done.
 *
 * Options are structures that begin with their own size: set them with the _init function, then
 * change fields. A library that is newer than the program knows by the size which fields there are.
 */
#ifndef DETENT_C_API_H
#define DETENT_C_API_H

#include <stddef.h>
#include <stdint.h>

#if defined(DETENT_C_API_BUILD) && defined(__GNUC__)
#define DETENT_C_API __attribute__((visibility("default")))
#else
#define DETENT_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum detent_status {
  DETENT_OK = 0,
  DETENT_INVALID_ARGUMENT = 1,
  DETENT_SHAPE_MISMATCH = 2,
  DETENT_OVERFLOW = 3,    /* an exact sum does not fit an output of 32 bits */
  DETENT_UNSUPPORTED = 4, /* no code for it in this build, target or release */
  DETENT_OUT_OF_MEMORY = 5,
  DETENT_INTERNAL = 6, /* a failure that is none of these, of a callback for example */
  DETENT_BAD_FILE = 7  /* bytes are damaged or not what they claim to be */
} detent_status;

typedef enum detent_type {
  DETENT_U8 = 0,
  DETENT_S8 = 1,
  DETENT_S32 = 2,
  DETENT_F32 = 3
} detent_type;

/* "invalid argument" and so on; never null. */
DETENT_C_API const char* detent_status_name(detent_status status);
/* What went wrong in the last call of this thread that failed; "" before. Valid until the next. */
DETENT_C_API const char* detent_last_error(void);
/* "0.1.0" */
DETENT_C_API const char* detent_version(void);
/* The CPU target in use: "avx512_vnni", for example. */
DETENT_C_API const char* detent_active_target(void);
/* For tests and measurements: every later call uses that target. */
DETENT_C_API detent_status detent_set_target(const char* name);

/* ---- Threads are the caller's ----
 *
 * run() calls task(context, i) once for each i in [0, count), in any order and on any threads, and
 * returns when all have returned. Where a parameter of this type is null, the calling thread does
 * everything. Results do not depend on the choice. */
typedef void (*detent_task)(void* context, size_t index);
typedef struct detent_parallel {
  void (*run)(void* user, size_t count, detent_task task, void* context);
  void* user;
} detent_parallel;

/* ---- Weights: K x N, packed once, used often ---- */

typedef struct detent_weights detent_weights;

typedef struct detent_weight_options {
  size_t size;
  const float* scales; /* null: 1. One, or one for each column. */
  size_t scale_count;
  const int32_t* zero_points; /* null: 0 */
  size_t zero_point_count;
  const int32_t* bias; /* null: 0. In units of lhs_scale * scale of the column. */
  size_t bias_count;
} detent_weight_options;
DETENT_C_API void detent_weight_options_init(detent_weight_options* options);

/* type: DETENT_S8 or DETENT_U8. Strides in elements; the transpose of a row-major N x K matrix has
 * row_stride 1 and column_stride K. `options` may be null. *weights is to be freed. */
DETENT_C_API detent_status detent_pack_weights(detent_type type, const void* w, size_t k, size_t n,
                                               ptrdiff_t row_stride, ptrdiff_t column_stride,
                                               const detent_weight_options* options,
                                               detent_weights** weights);
/* All of these take null, and then return 0. */
DETENT_C_API void detent_weights_free(detent_weights* weights);
DETENT_C_API size_t detent_weights_depth(const detent_weights* weights);   /* K */
DETENT_C_API size_t detent_weights_columns(const detent_weights* weights); /* N */
/* No sum is larger in magnitude, whatever the left side. Products are fastest up to 2^31 - 1. */
DETENT_C_API int64_t detent_weights_accumulator_bound(const detent_weights* weights);

/* Packed weights as bytes, to be kept and loaded on any machine: *needed is how many there are, and
 * where `capacity` is not less, they are in `buffer`; otherwise nothing is written (buffer may be
 * null then). Bytes that are damaged or were made by something else are a DETENT_BAD_FILE, those of
 * a version or a layout that this release does not know are DETENT_UNSUPPORTED. */
DETENT_C_API detent_status detent_weights_save(const detent_weights* weights, void* buffer,
                                               size_t capacity, size_t* needed);
DETENT_C_API detent_status detent_weights_load(const void* bytes, size_t size,
                                               detent_weights** weights);

/* ---- C[M x N] = epilogue(A[M x K] * weights) ---- */

typedef struct detent_epilogue {
  size_t size;
  float lhs_scale;
  int32_t lhs_zero_point;
  float output_scale; /* of 8-bit outputs */
  int32_t output_zero_point;
  int32_t qmin, qmax;      /* qmin > qmax: the whole type */
  float lower, upper;      /* of float outputs */
  const float* lhs_scales; /* null, or M: instead of lhs_scale */
  const int32_t* lhs_zero_points;
  const float* bias;     /* null, or N; float outputs */
  const float* residual; /* null, or M x N; float outputs */
  size_t residual_stride;
  const int32_t* addend; /* null, or M x N; outputs of DETENT_S32, may be the output */
  size_t addend_stride;
} detent_epilogue;
DETENT_C_API void detent_epilogue_init(detent_epilogue* epilogue);

/* a_type: DETENT_U8 or DETENT_S8; c_type: any. Row-major, rows lda and ldc elements apart.
 * `epilogue` and `parallel` may be null. */
DETENT_C_API detent_status detent_gemm(detent_type a_type, const void* a, size_t lda, size_t m,
                                       const detent_weights* weights, detent_type c_type, void* c,
                                       size_t ldc, const detent_epilogue* epilogue,
                                       const detent_parallel* parallel);

typedef struct detent_dynamic_linear_options {
  size_t size;
  int per_row;        /* 1: a range for each row; 0: one for all */
  int32_t qmin, qmax; /* of the quantized left side, within 0..255 */
  int symmetric;
  float lower, upper;
  const float* bias;
  const float* residual;
  size_t residual_stride;
} detent_dynamic_linear_options;
DETENT_C_API void detent_dynamic_linear_options_init(detent_dynamic_linear_options* options);

/* C = A * weights with float A, which is quantized on the way. */
DETENT_C_API detent_status detent_dynamic_linear(const float* a, size_t lda, size_t m,
                                                 const detent_weights* weights, float* c,
                                                 size_t ldc,
                                                 const detent_dynamic_linear_options* options,
                                                 const detent_parallel* parallel);

/* ---- Elements; type: DETENT_U8 or DETENT_S8 ---- */

/* q = clamp(round_half_even(x / scale) + zero_point, the type) */
DETENT_C_API detent_status detent_quantize(const float* x, size_t n, float scale,
                                           int32_t zero_point, detent_type type, void* q,
                                           const detent_parallel* parallel);
/* x = (q - zero_point) * scale */
DETENT_C_API detent_status detent_dequantize(detent_type type, const void* q, size_t n, float scale,
                                             int32_t zero_point, float* x,
                                             const detent_parallel* parallel);
/* Quantizes with the scale and zero point of the data's range, and returns them. */
DETENT_C_API detent_status detent_dynamic_quantize(const float* x, size_t n, detent_type type,
                                                   void* q, float* scale, int32_t* zero_point,
                                                   const detent_parallel* parallel);

#ifdef __cplusplus
}
#endif

#endif /* DETENT_C_API_H */
