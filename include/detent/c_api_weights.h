/* SPDX-License-Identifier: BSD-3-Clause */
/** @file
 * The C interface of weight quantization: codes of the weights of linear layers, by nearest
 * rounding or by a solver that knows the layer's inputs.
 *
 * Weights have a row for each output and a column for each input: row-major N x K. The codes of a
 * solver are packed for products by detent_pack_weights() or detent_pack_int4_weights() with a
 * row_stride of 1 and a column_stride of K, that is, as the K x N transpose. The functions are in
 * the library detent_c; c_api.h states what holds for all of them.
 */
#ifndef DETENT_C_API_WEIGHTS_H
#define DETENT_C_API_WEIGHTS_H

#include <detent/c_api.h>
#include <detent/c_api_observers.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What solvers know of the inputs: G = X^T X ---- */

/** Sums up the Gram matrix G = X^T X of a layer's inputs X, samples x K. Each row is rounded by at
 * most 2^-21 of its largest magnitude (codes, and other whole numbers below 2^24, are not); the
 * sums of the products are exact, so that the result does not depend on the order, the split or the
 * threads. One thread at a time may use an object. */
typedef struct detent_gram_observer detent_gram_observer;

/** Makes an observer of K = `features` inputs, 1..2^20. On success, `*observer` is a new object, to
 * be freed with detent_gram_observer_free(). */
DETENT_C_API detent_status detent_gram_observer_create(size_t features,
                                                       detent_gram_observer** observer);
/** Frees an observer; does nothing for null. */
DETENT_C_API void detent_gram_observer_free(detent_gram_observer* observer);
/** Observes `rows` samples: a row-major rows x K matrix whose rows are `stride` elements apart, of
 * DETENT_F32, DETENT_U8 or DETENT_S8. Integers stand for q - zero_point; `zero_point` is 0 for
 * DETENT_F32. `parallel` may be null. DETENT_INVALID_ARGUMENT for null data, another type, NaN,
 * infinities, and a zero point outside the type. After DETENT_OUT_OF_MEMORY the observer may have
 * seen a part of the samples and can only be freed. */
DETENT_C_API detent_status detent_gram_observer_observe(detent_gram_observer* observer,
                                                        detent_type type, const void* x,
                                                        size_t rows, size_t stride,
                                                        int32_t zero_point,
                                                        const detent_parallel* parallel);
/** Makes `observer` what it would be if it had also seen all that `other` has seen.
 * DETENT_SHAPE_MISMATCH for another number of features. */
DETENT_C_API detent_status detent_gram_observer_merge(detent_gram_observer* observer,
                                                      const detent_gram_observer* other);
/** Number of inputs, K; 0 for null. */
DETENT_C_API size_t detent_gram_observer_features(const detent_gram_observer* observer);
/** Number of samples observed; 0 for null. */
DETENT_C_API uint64_t detent_gram_observer_count(const detent_gram_observer* observer);
/** Writes G, a dense K x K matrix of doubles, to `gram`, and the mean |x| of each input to
 * `magnitudes`, K floats. Each may be null. DETENT_INVALID_ARGUMENT if nothing was observed. */
DETENT_C_API detent_status detent_gram_observer_finalize(const detent_gram_observer* observer,
                                                         double* gram, float* magnitudes);
/** Serializes the state as detent_observer_save() does. */
DETENT_C_API detent_status detent_gram_observer_save(const detent_gram_observer* observer,
                                                     void* buffer, size_t capacity, size_t* needed);
/** Makes an observer of `size` bytes that detent_gram_observer_save() wrote. DETENT_BAD_FILE for
 * damaged bytes, DETENT_UNSUPPORTED for an unknown version. */
DETENT_C_API detent_status detent_gram_observer_load(const void* bytes, size_t size,
                                                     detent_gram_observer** observer);

/* ---- Codes of weights ---- */

/** How detent_quantize_weights() finds codes. With v = scale * (code - zero_point), all but
 * DETENT_WEIGHTS_HQQ lower the error of the outputs, the sum over rows of (w - v)^T G (w - v). */
typedef enum detent_weight_algorithm DETENT_C_ENUM {
  DETENT_WEIGHTS_NEAREST = 0,            /**< Nearest rounding. */
  DETENT_WEIGHTS_COORDINATE_DESCENT = 1, /**< Changes codes and scales step by step. */
  DETENT_WEIGHTS_GPTQ = 2,               /**< GPTQ: later columns make up for errors. */
  DETENT_WEIGHTS_ADAROUND = 3,           /**< AdaRound: decides up or down by gradients. */
  DETENT_WEIGHTS_AWQ = 4,                /**< AWQ: scales columns, clips groups. */
  /** HQQ: chooses zero points, without inputs. They are integers here: with scales of the whole
   * range, none is better than that of nearest rounding. */
  DETENT_WEIGHTS_HQQ = 5
} detent_weight_algorithm;

/** The grid of the codes, what is known of the inputs, and options of the algorithms; each reads
 * the fields that concern it. */
typedef struct detent_weight_quantization {
  size_t size;                       /**< Size of the structure in bytes, set by _init. */
  detent_weight_algorithm algorithm; /**< How codes are found. */
  detent_scheme scheme;       /**< The grid, within -128..127, and whether zero points are fixed. */
  size_t group_size;          /**< Neighbouring columns of a row that share a scale; 0: all K. */
  const float* scales;        /**< Null, or rows x groups scales to use; not for AWQ. */
  const int32_t* zero_points; /**< Null, or as many zero points; only with scales. */
  const double* gram;         /**< Null, or G, K x K, symmetric and dense. */
  const double* importance;   /**< Null, or the diagonal of G alone, K values; not with gram. */
  /** Limit of iterations (coordinate descent, AdaRound, HQQ); 0: the algorithm's own, 100, 1000
   * and 20. */
  size_t iterations;
  double damping;          /**< GPTQ: share of the mean diagonal that is added to the diagonal. */
  int activation_order;    /**< GPTQ, not 0: columns in descending order of G's diagonal. */
  int static_groups;       /**< GPTQ, not 0: scales of groups come from the weights as given. */
  double learning_rate;    /**< AdaRound: learning rate of Adam. */
  double regularization;   /**< AdaRound: strength of the term that decides roundings. */
  const float* magnitudes; /**< AWQ: null, or the mean |x| of each input, K values. */
  size_t grid_points;      /**< AWQ: exponents tried. */
  float smallest_clip;     /**< AWQ: least factor of ranges, in (0, 1]; 1: no clipping. */
  double norm;             /**< HQQ: exponent of the error, in (0, 1]. */
  const detent_parallel* parallel; /**< The threads that solve; null: the calling thread. */
} detent_weight_quantization;
/** Sets the size and the defaults: nearest rounding, -127..127, symmetric, one group for each row,
 * inputs of equal importance, and the options of the papers. `options` must not be null. */
DETENT_C_API void detent_weight_quantization_init(detent_weight_quantization* options);

/** How codes were found, and how good they are. */
typedef struct detent_weight_evidence {
  size_t size;              /**< Size of the structure in bytes, set by the _init function. */
  double objective;         /**< The error, as the algorithm defines it. */
  double nearest_objective; /**< The error of nearest rounding. */
  size_t iterations;        /**< Iterations of the row that took the most. */
  int converged;            /**< 1 if all rows ended before the limit of iterations, else 0. */
  size_t kept_nearest;      /**< Rows (HQQ: groups) that kept nearest rounding. */
  double damping;           /**< GPTQ: the damping that was used. */
} detent_weight_evidence;
/** Sets the size, and all else to 0. `evidence` must not be null. */
DETENT_C_API void detent_weight_evidence_init(detent_weight_evidence* evidence);

/** Number of groups in a row of `columns` columns: ceil(columns / group_size); 1 for a group size
 * of 0 or above `columns`. */
DETENT_C_API size_t detent_weight_groups(size_t columns, size_t group_size);

/** Finds codes of a row-major rows x columns float matrix whose rows are `stride` elements apart.
 * Writes rows x columns codes to `codes`, dense; rows x groups scales and zero points to `scales`
 * and `zero_points`. `input_scales` receives `columns` divisors of the inputs, which are 1 for
 * all algorithms but AWQ; AWQ requires it, others take null. `evidence` is null or initialized.
 * `options` may be null. DETENT_INVALID_ARGUMENT for null, NaN, infinities, no columns, and
 * options out of their domain (a symmetric scheme for HQQ is one: its zero points are free);
 * DETENT_OVERFLOW if the error is not finite. Nothing is written then. */
DETENT_C_API detent_status detent_quantize_weights(const float* w, size_t rows, size_t columns,
                                                   size_t stride,
                                                   const detent_weight_quantization* options,
                                                   int8_t* codes, float* scales,
                                                   int32_t* zero_points, float* input_scales,
                                                   detent_weight_evidence* evidence);

/** Computes SmoothQuant's scale of each input: s = a^alpha / m^(1 - alpha), at least 1e-5, with a
 * the largest |x| of the input (`magnitudes`, `columns` values) and m the largest |w| of its
 * column; 1 where either is 0. Inputs are to be divided by their scale, columns of weights
 * multiplied by it. `alpha` is in [0, 1]. Writes `columns` scales. DETENT_INVALID_ARGUMENT for
 * null, NaN, infinities, negative magnitudes, or another alpha. */
DETENT_C_API detent_status detent_smooth_quant_scales(const float* magnitudes, const float* w,
                                                      size_t rows, size_t columns, size_t stride,
                                                      float alpha, float* scales);

#ifdef __cplusplus
}
#endif

#endif /* DETENT_C_API_WEIGHTS_H */
