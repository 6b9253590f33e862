/* SPDX-License-Identifier: BSD-3-Clause
 * The integer numerics for C and for other toolchains: weights of 8 and 4 bits, gemm, dynamic
 * linear, convolutions, quantize.
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
 *
 * Buffers that are written overlap no other ones, where it is not said that they may.
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
/* Values that are none of an enumeration's can come from any program: without a type of its own,
 * C++ would not even let the library look at them. */
#define DETENT_C_ENUM : int
#else
#define DETENT_C_ENUM
#endif

typedef enum detent_status DETENT_C_ENUM {
  DETENT_OK = 0,
  DETENT_INVALID_ARGUMENT = 1,
  DETENT_SHAPE_MISMATCH = 2,
  DETENT_OVERFLOW = 3,    /* an exact sum does not fit an output of 32 bits */
  DETENT_UNSUPPORTED = 4, /* no code for it in this build, target or release */
  DETENT_OUT_OF_MEMORY = 5,
  DETENT_INTERNAL = 6, /* a failure that is none of these, of a callback for example */
  DETENT_BAD_FILE = 7  /* bytes are damaged or not what they claim to be */
} detent_status;

typedef enum detent_type DETENT_C_ENUM {
  DETENT_U8 = 0,
  DETENT_S8 = 1,
  DETENT_S32 = 2,
  DETENT_F32 = 3,
  DETENT_BF16 = 4, /* bfloat16: the upper half of a float */
  DETENT_F16 = 5,  /* IEEE 754 binary16 */
  DETENT_U16 = 6,
  DETENT_S16 = 7,
  DETENT_U4 = 8, /* two to a byte, the first in the low bits: n take (n + 1) / 2 bytes */
  DETENT_S4 = 9
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

/* ---- Weights: K x N, packed once, used often; of 8 or 4 bits ---- */

typedef struct detent_weights detent_weights;

typedef struct detent_weight_options {
  size_t size;
  const float* scales; /* null: 1. One, or one for each column. */
  size_t scale_count;
  const int32_t* zero_points; /* null: 0 */
  size_t zero_point_count;
  const int32_t* bias; /* null: 0. In units of lhs_scale * scale of the column. */
  size_t bias_count;
  const detent_parallel* parallel; /* of detent_pack_weights; null: the calling thread packs */
} detent_weight_options;
DETENT_C_API void detent_weight_options_init(detent_weight_options* options);

/* type: DETENT_S8 or DETENT_U8. Strides in elements; the transpose of a row-major N x K matrix has
 * row_stride 1 and column_stride K. `options` may be null. *weights is to be freed. */
DETENT_C_API detent_status detent_pack_weights(detent_type type, const void* w, size_t k, size_t n,
                                               ptrdiff_t row_stride, ptrdiff_t column_stride,
                                               const detent_weight_options* options,
                                               detent_weights** weights);

/* Scales and zero points of 4-bit weights belong to groups of K: those of group g and column j are
 * at g * group_stride + j * column_stride. Where both strides are 0, the groups are dense rows of
 * N. */
typedef struct detent_int4_weight_options {
  size_t size;
  size_t group_size;          /* a multiple of 8; 0, or more than K: all of K is one group */
  const float* scales;        /* null: 1 */
  const int32_t* zero_points; /* null: 0. Values of the codes' type. */
  ptrdiff_t group_stride;
  ptrdiff_t column_stride;
  const detent_parallel* parallel;
} detent_int4_weight_options;
DETENT_C_API void detent_int4_weight_options_init(detent_int4_weight_options* options);

/* type: DETENT_S4 or DETENT_S8 for codes of -8..7, DETENT_U4 or DETENT_U8 for codes of 0..15.
 * Strides in elements, as above; of packed types (U4, S4) they are not negative. Such weights
 * multiply to DETENT_F32 only. */
DETENT_C_API detent_status detent_pack_int4_weights(detent_type type, const void* codes, size_t k,
                                                    size_t n, ptrdiff_t row_stride,
                                                    ptrdiff_t column_stride,
                                                    const detent_int4_weight_options* options,
                                                    detent_weights** weights);

/* All of these take null, and then return 0. */
DETENT_C_API void detent_weights_free(detent_weights* weights);
DETENT_C_API size_t detent_weights_depth(const detent_weights* weights);   /* K */
DETENT_C_API size_t detent_weights_columns(const detent_weights* weights); /* N */
DETENT_C_API int detent_weights_bits(const detent_weights* weights);       /* 8 or 4 */
/* k of a group; of 8-bit weights all of K */
DETENT_C_API size_t detent_weights_group_size(const detent_weights* weights);
/* Of 8-bit weights: no sum is larger in magnitude, whatever the left side. Products are fastest up
 * to 2^31 - 1. 0 of 4-bit weights: the sums of their groups always fit. */
DETENT_C_API int64_t detent_weights_accumulator_bound(const detent_weights* weights);

/* Makes what products on the active target read besides the packed weights now, on these threads,
 * instead of with the first product. `parallel` may be null. */
DETENT_C_API detent_status detent_weights_prepare(const detent_weights* weights,
                                                  const detent_parallel* parallel);

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
  float lower, upper;      /* of float outputs, as all that is called that here: F32 and BF16 */
  const float* lhs_scales; /* null, or M: instead of lhs_scale; float outputs */
  const int32_t* lhs_zero_points; /* null, or M: instead of lhs_zero_point */
  const float* bias;              /* null, or N; float outputs */
  const float* residual;          /* null, or M x N; float outputs, may be the output */
  size_t residual_stride;
  const int32_t* addend; /* null, or M x N; outputs of DETENT_S32, may be the output */
  size_t addend_stride;
  /* Bytes of the caches that products with 8-bit weights are divided for; 0: what the processor
   * has. The results do not depend on them. */
  size_t first_level_cache, second_level_cache, third_level_cache;
} detent_epilogue;
DETENT_C_API void detent_epilogue_init(detent_epilogue* epilogue);

/* a_type: DETENT_U8 or DETENT_S8; c_type: DETENT_S32, DETENT_F32, DETENT_BF16, DETENT_U8 or
 * DETENT_S8. Row-major, rows lda and ldc elements apart. `epilogue` and `parallel` may be null. */
DETENT_C_API detent_status detent_gemm(detent_type a_type, const void* a, size_t lda, size_t m,
                                       const detent_weights* weights, detent_type c_type, void* c,
                                       size_t ldc, const detent_epilogue* epilogue,
                                       const detent_parallel* parallel);

/* One product of a batch. One of the strides of A is 1: A row-major has column_stride 1, as after
 * _init; A column-major (the transpose of a row-major K x M matrix) has row_stride 1. */
typedef struct detent_gemm_problem {
  size_t size;
  const void* a; /* M x K */
  size_t m;
  ptrdiff_t row_stride, column_stride; /* of A, in elements */
  const detent_weights* weights;
  void* c;
  size_t ldc;
  const detent_epilogue* epilogue; /* may be null */
} detent_gemm_problem;
DETENT_C_API void detent_gemm_problem_init(detent_gemm_problem* problem);

/* All products at once, their parts shared out together: heads, experts, images of a batch. The
 * shapes may differ; the weights are all of 8 bits or all of 4. All problems are checked before the
 * first output is written. */
DETENT_C_API detent_status detent_gemm_batch(detent_type a_type, detent_type c_type,
                                             const detent_gemm_problem* problems, size_t count,
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
/* The same for A of DETENT_F32, DETENT_F16 or DETENT_BF16, row- or column-major as in
 * detent_gemm_problem. */
DETENT_C_API detent_status detent_dynamic_linear_strided(
    detent_type a_type, const void* a, ptrdiff_t row_stride, ptrdiff_t column_stride, size_t m,
    const detent_weights* weights, float* c, size_t ldc,
    const detent_dynamic_linear_options* options, const detent_parallel* parallel);

/* ---- Convolutions ---- */

typedef struct detent_filters detent_filters;

typedef struct detent_filter_shape {
  size_t size;
  size_t out_channels;
  size_t in_channels; /* of the whole input, all groups together */
  size_t groups;
  size_t kernel_height, kernel_width;
} detent_filter_shape;
/* One group, 1 x 1. */
DETENT_C_API void detent_filter_shape_init(detent_filter_shape* shape);

/* `weights` are [out_channels][in_channels / groups][kernel_height][kernel_width], `count` in all;
 * scales, zero points and biases are one or one for each output channel. `options` may be null.
 * *filters is to be freed. */
DETENT_C_API detent_status detent_pack_filters(const detent_filter_shape* shape,
                                               const int8_t* weights, size_t count,
                                               const detent_weight_options* options,
                                               detent_filters** filters);
DETENT_C_API void detent_filters_free(detent_filters* filters); /* takes null */

typedef enum detent_layout DETENT_C_ENUM {
  DETENT_NHWC = 0, /* [batch][height][width][channels] */
  DETENT_NCHW = 1  /* [batch][channels][height][width] */
} detent_layout;

typedef struct detent_window {
  size_t size;
  size_t batch;
  size_t in_height, in_width;
  size_t stride_height, stride_width;
  size_t dilation_height, dilation_width;
  size_t pad_top, pad_left, pad_bottom, pad_right;
  detent_layout input_layout, output_layout;
} detent_window;
/* One pixel, strides and dilations of 1, no padding, channels last. */
DETENT_C_API void detent_window_init(detent_window* window);

/* 0 x 0 where the kernel is larger than the padded input in that direction. */
DETENT_C_API detent_status detent_convolution_size(const detent_filters* filters,
                                                   const detent_window* window, size_t* out_height,
                                                   size_t* out_width);

/* Input: DETENT_U8 or DETENT_S8. Sizes of input and output in elements. Padding is lhs_zero_point.
 * Of the epilogue those fields count that detent_gemm has for the output's type, with N output
 * channels. A residual has the size and the layout of the output, is dense, and residual_stride is
 * not looked at. Parameters of rows and addends are DETENT_UNSUPPORTED. `epilogue` and `parallel`
 * may be null. */
DETENT_C_API detent_status detent_convolve(const detent_filters* filters,
                                           const detent_window* window, detent_type input_type,
                                           const void* input, size_t input_size,
                                           detent_type output_type, void* output,
                                           size_t output_size, const detent_epilogue* epilogue,
                                           const detent_parallel* parallel);

typedef struct detent_dynamic_convolution_options {
  size_t size;
  int per_image;      /* 1: a range for each image of the batch; 0: one for all */
  int32_t qmin, qmax; /* of the quantized input, within 0..255 */
  int symmetric;
  float lower, upper;
  const float* bias; /* null, or one for each output channel */
} detent_dynamic_convolution_options;
DETENT_C_API void detent_dynamic_convolution_options_init(
    detent_dynamic_convolution_options* options);

/* Float images, which are quantized on the way. `options` and `parallel` may be null. */
DETENT_C_API detent_status detent_dynamic_convolve(
    const detent_filters* filters, const detent_window* window, const float* input,
    size_t input_size, float* output, size_t output_size,
    const detent_dynamic_convolution_options* options, const detent_parallel* parallel);

/* ---- Elements with one scale; type: DETENT_U8 or DETENT_S8 ---- */

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
/* The same for each row of an M x K matrix, whose rows are ldx elements apart, and those of q ldq:
 * M scales and zero points; `row_sums` is null or receives M sums of the integers of a row.
 * symmetric: zero point 0 and -127..127 of DETENT_S8, 128 and 0..255 of DETENT_U8. */
DETENT_C_API detent_status detent_dynamic_quantize_rows(const float* x, size_t ldx, size_t m,
                                                        size_t k, detent_type type, int symmetric,
                                                        void* q, size_t ldq, float* scales,
                                                        int32_t* zero_points, int32_t* row_sums,
                                                        const detent_parallel* parallel);
/* The scale and zero point whose grid qmin..qmax covers lower..upper and zero. */
DETENT_C_API detent_status detent_params_from_range(float lower, float upper, int32_t qmin,
                                                    int32_t qmax, int symmetric, float* scale,
                                                    int32_t* zero_point);

/* ---- Elements of more types, with scales of channels or blocks ----
 *
 * Element i of a dense tensor belongs to channel i / inner % channels: an axis of `channels`
 * elements with `inner` elements behind each. inner = 1 is the last axis; blocks of b along the
 * last axis of r rows are r * (axis / b) channels with inner = b. */
typedef struct detent_element_params {
  size_t size;
  const float* scales;        /* one for each channel */
  const int32_t* zero_points; /* null: 0 */
  const int32_t* bias;        /* of detent_requantize; null: 0 */
  size_t channels;
  size_t inner;
  int32_t qmin, qmax; /* of the integers that are made; qmin > qmax: the whole type */
} detent_element_params;
/* One channel. The scales are to be set. */
DETENT_C_API void detent_element_params_init(detent_element_params* params);

/* x_type: DETENT_F32, DETENT_F16, DETENT_BF16; q_type: U8, S8, U16, S16, U4, S4, and to dequantize
 * also DETENT_S32 with zero points of 0. `n` is a multiple of channels * inner. */
DETENT_C_API detent_status detent_quantize_elements(detent_type x_type, const void* x, size_t n,
                                                    detent_type q_type, void* q,
                                                    const detent_element_params* params,
                                                    const detent_parallel* parallel);
DETENT_C_API detent_status detent_dequantize_elements(detent_type q_type, const void* q, size_t n,
                                                      detent_type x_type, void* x,
                                                      const detent_element_params* params,
                                                      const detent_parallel* parallel);
/* q = clamp(round_half_even(float(acc + bias) * scale) + zero_point, qmin, qmax), with acc + bias
 * modulo 2^32; the scale is the multiplier, lhs_scale * scale of the weights / scale of the output.
 * q_type: U8, S8, U16, S16. */
DETENT_C_API detent_status detent_requantize(const int32_t* acc, size_t n, detent_type q_type,
                                             void* q, const detent_element_params* params,
                                             const detent_parallel* parallel);
/* y = dequantize(quantize(x)); NaN becomes 0. q_type as of detent_quantize_elements. */
DETENT_C_API detent_status detent_fake_quantize(const float* x, size_t n, detent_type q_type,
                                                float* y, const detent_element_params* params);

#undef DETENT_C_ENUM

#ifdef __cplusplus
}
#endif

#endif /* DETENT_C_API_H */
