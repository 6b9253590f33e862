/* SPDX-License-Identifier: BSD-3-Clause */
/** @file
 * The C interface of observers and scale solvers: scales and zero points from data.
 *
 * An observer is made by name, sees batches of values, may be merged with others of its kind, saved
 * and loaded, and says at the end which scale and zero point the values call for. Observers are in
 * the library detent_c; c_api.h states what holds for all functions.
 *
 * Threads: one observer may not be used by two threads at a time. Use one for each thread, then
 * detent_observer_merge(). The results of most observers do not depend on how the data were shared
 * out.
 */
#ifndef DETENT_C_API_OBSERVERS_H
#define DETENT_C_API_OBSERVERS_H

#include <detent/c_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The integers that reals are to be put on, and how a range of reals becomes a scale and a zero
 * point: as in detent_params_from_range(). */
typedef struct detent_scheme {
  int32_t qmin,  /**< Least integer. */
      qmax;      /**< Largest integer, more than qmin. */
  int symmetric; /**< Not 0: the zero point is the middle of the grid, the range symmetric to 0. */
} detent_scheme;

/** How good a scale and a zero point are. */
typedef struct detent_scale_evidence {
  size_t size;        /**< Size of the structure in bytes, set by the _init function. */
  double objective;   /**< What the method minimizes, at the parameters that it returns. */
  double lower_bound; /**< No parameters have a smaller objective; 0 if no bound is known. */
  uint64_t count;     /**< Number of values; 0 from observers that do not count them. */
  float lower, /**< The smallest value. For moving_average, and for names that begin with mean_,
                    median_ or a tool (ort., ppq., ...), the lower end of the range found. */
      upper;   /**< The largest value, or the upper end of that range. */
  double clipped_fraction; /**< Share of the values beyond the ends of the grid, 0..1. */
} detent_scale_evidence;
/** Sets the size, and all else to 0. `evidence` must not be null. */
DETENT_C_API void detent_scale_evidence_init(detent_scale_evidence* evidence);

/* ---- Observers ---- */

/** An observer of a tensor or of its channels. */
typedef struct detent_observer detent_observer;

/** Options of observers. An observer reads the fields that concern it and ignores all others; the
 * C++ structure observer_options has the details. */
typedef struct detent_observer_options {
  size_t size;            /**< Size of the structure in bytes, set by the _init function. */
  detent_scheme scheme;   /**< The scheme that finalize will be called with. */
  double percentile;      /**< Share of the values kept, in percent; 0: the observer's default. */
  int exact_percentile;   /**< Not 0: a second pass over the data finds the exact percentile. */
  double moving_constant; /**< Weight of the newest batch, in (0, 1]. */
  double p;               /**< Exponent of the error for "lp", in 1..8. */
  size_t top_k;           /**< Leading values that keep their order under "isotone". */
  int repaired; /**< Not 0: observers of other tools repair the tools' bugs; 0: they have them. */
  int sparse;   /**< Not 0: histograms are stored sparsely, for many observers. */
} detent_observer_options;
/** Sets the size and the defaults: the scheme 0..255, not symmetric, the observers' own
 * percentiles, a moving constant of 0.01, p = 2.4, top_k = 1, bugs of other tools kept, dense
 * histograms. `options` must not be null. */
DETENT_C_API void detent_observer_options_init(detent_observer_options* options);

/** Number of names that detent_observer_create() knows. */
DETENT_C_API size_t detent_observer_name_count(void);
/** The name with that index, such as "minmax" or "kl"; null for an index that is too large. Valid
 * forever. The names are sorted. */
DETENT_C_API const char* detent_observer_name(size_t index);

/** Makes an observer of a whole tensor. ASCII letter case of the name is ignored. `options` may be
 * null. On success, `*observer` is a new object, to be freed with detent_observer_free().
 * DETENT_INVALID_ARGUMENT for null, an unknown name and options out of their domain. */
DETENT_C_API detent_status detent_observer_create(const char* name,
                                                  const detent_observer_options* options,
                                                  detent_observer** observer);
/** Makes an observer for each index along an axis of the tensors, or for each combination of the
 * indices along `axis_count` axes, which ascend and are counted from 0. The first batch fixes the
 * number of channels. Errors are those of detent_observer_create(), and DETENT_INVALID_ARGUMENT for
 * no axes, more than 7, axes above 7, or axes that do not ascend. */
DETENT_C_API detent_status detent_observer_create_channels(const char* name,
                                                           const detent_observer_options* options,
                                                           const size_t* axes, size_t axis_count,
                                                           detent_observer** observer);
/** Copies an observer with all that it has seen. On success, `*copy` is a new object, to be freed
 * with detent_observer_free(). */
DETENT_C_API detent_status detent_observer_copy(const detent_observer* observer,
                                                detent_observer** copy);
/** Frees an observer; does nothing for null. */
DETENT_C_API void detent_observer_free(detent_observer* observer);

/** Number of passes over the data that the observer needs, 1 or 2; 0 for null. */
DETENT_C_API size_t detent_observer_phases(const detent_observer* observer);
/** Number of channels: 1 for an observer of whole tensors; 0 for one of channels before its first
 * batch, and for null. */
DETENT_C_API size_t detent_observer_channels(const detent_observer* observer);
/** Announces that pass `phase`, counted from 0, begins. It may be left out for pass 0.
 * DETENT_INVALID_ARGUMENT for a phase that the observer does not have, or if the pass before has
 * seen nothing. */
DETENT_C_API detent_status detent_observer_begin_phase(detent_observer* observer, size_t phase);

/** Observes a batch: a tensor of `rank` dimensions, at most 8, of DETENT_F32, DETENT_F64,
 * DETENT_F16, DETENT_BF16, DETENT_F8E4M3FN or DETENT_F8E5M2; each value is rounded to the nearest
 * float. `shape` has the extents; `strides` has the distances of neighbours in elements, or is null
 * for a dense row-major tensor. A rank of 0 is a single value. Channels are shared out over
 * `parallel`, which may be null. DETENT_INVALID_ARGUMENT for null data of a tensor that is not
 * empty, other types, and extents whose product leaves the address space; DETENT_SHAPE_MISMATCH
 * for another number of channels than before. NaN and infinities are counted, and are errors of
 * detent_observer_finalize(); but moving_average and the names that begin with mean_ or median_
 * refuse the batch, which is DETENT_INVALID_ARGUMENT. So do inc.kl, inc.percentile, ort.entropy,
 * ort.percentile and torch.histogram if the range of the values is too long for a float; the first
 * four also if it is too short for their bins. A batch that is refused changes nothing. After
 * DETENT_OUT_OF_MEMORY the observer may have seen a part of the batch; all functions but
 * detent_observer_load() and detent_observer_free() refuse it then. */
DETENT_C_API detent_status detent_observer_observe(detent_observer* observer, detent_type type,
                                                   const void* data, const size_t* shape,
                                                   const ptrdiff_t* strides, size_t rank,
                                                   const detent_parallel* parallel);
/** Makes `observer` what it would be if it had also seen all that `other` has seen. Both must have
 * been made with the same name. The options of `observer` stay. DETENT_INVALID_ARGUMENT for null,
 * for observers of different names, for one of channels and one of whole tensors, and for other
 * options if the state depends on them; DETENT_SHAPE_MISMATCH for other axes or another number of
 * channels. Observers that reproduce other tools may need the batches in order:
 * nncf.mean_*, nncf.median_minmax, ppq.isotone, ppq.percentile and torch.* do not merge, which is
 * DETENT_UNSUPPORTED, and ort.entropy, ort.percentile, inc.kl and inc.percentile only if both have
 * seen batches of the same ranges, else DETENT_INVALID_ARGUMENT. With moving_average, the batches
 * of `other` come after those of `observer`. */
DETENT_C_API detent_status detent_observer_merge(detent_observer* observer,
                                                 const detent_observer* other);

/** Computes scales and zero points of all that was observed: `count` values each, one for each
 * channel, in row-major order of the channel axes. `evidence` is null or an array of `count`
 * structures, all of them initialized. `parallel` may be null. DETENT_INVALID_ARGUMENT for null
 * results, a scheme out of its domain, and if nothing, a NaN or an infinity was observed;
 * DETENT_SHAPE_MISMATCH if `count` is not the number of channels. */
DETENT_C_API detent_status detent_observer_finalize(const detent_observer* observer,
                                                    detent_scheme scheme, float* scales,
                                                    int32_t* zero_points,
                                                    detent_scale_evidence* evidence, size_t count,
                                                    const detent_parallel* parallel);

/** Serializes the observer's name, options and state to bytes that detent_observer_load() reads on
 * any machine. Observers in C++ neither write nor read this format: theirs has no name. Sets
 * `*needed` to the number of bytes. If `capacity` is at least that, writes them to `buffer`;
 * otherwise writes nothing (`buffer` may be null then) and returns DETENT_OK all the same.
 * DETENT_UNSUPPORTED if the kind cannot be saved. */
DETENT_C_API detent_status detent_observer_save(const detent_observer* observer, void* buffer,
                                                size_t capacity, size_t* needed);
/** Replaces the state by one that detent_observer_save() wrote for an observer of the same name,
 * options and axes. Of the options, those count that the observer reads; `sparse` may differ.
 * DETENT_BAD_FILE for bytes that are damaged or were saved by an observer with another name, other
 * options or other axes, DETENT_UNSUPPORTED for an unknown version; the observer is unchanged then.
 */
DETENT_C_API detent_status detent_observer_load(detent_observer* observer, const void* bytes,
                                                size_t size);

/* ---- Scale solvers: scales of values that are all at hand ---- */

/** How detent_solve_scales() chooses a scale and a zero point. */
typedef enum detent_scale_method DETENT_C_ENUM {
  DETENT_SCALE_ABSMAX = 0,       /**< The range of the values: nothing is clipped. */
  DETENT_SCALE_EXACT_MSE = 1,    /**< The least mean squared error of all scales. */
  DETENT_SCALE_LP_NORM = 2,      /**< The least mean of |error|^p of all scales. */
  DETENT_SCALE_GRID_MSE = 3,     /**< The least squared error of equally spaced clip values. */
  DETENT_SCALE_OCTAV = 4,        /**< OCTAV (Sakr et al., 2022). */
  DETENT_SCALE_ACIQ_LAPLACE = 5, /**< ACIQ (Banner et al., 2019) with a Laplace distribution. */
  DETENT_SCALE_ACIQ_GAUSS = 6,   /**< ACIQ with a normal distribution. */
  DETENT_SCALE_KL = 7 /**< The least Kullback-Leibler divergence, of the values' histogram. */
} detent_scale_method;

/** What values detent_solve_scales() gives a scale, and how. */
typedef struct detent_scale_options {
  size_t size;                /**< Size of the structure in bytes, set by the _init function. */
  detent_scale_method method; /**< How scales are chosen. */
  detent_scheme scheme;       /**< The grid, and whether the range is symmetric. */
  double p;                   /**< Exponent for DETENT_SCALE_LP_NORM, in 1..8. */
  size_t steps;               /**< Candidates of DETENT_SCALE_GRID_MSE, at least 1. */
  size_t channels;            /**< Channels as in detent_element_params, at least 1. */
  size_t inner;               /**< Elements behind each element of the axis, at least 1. */
} detent_scale_options;
/** Sets the size and the defaults: DETENT_SCALE_EXACT_MSE, -127..127, symmetric, p = 2.4, 100
 * steps, one channel. `options` must not be null. */
DETENT_C_API void detent_scale_options_init(detent_scale_options* options);

/** Chooses a scale and a zero point for each channel of n dense floats; element i belongs to
 * channel i / inner modulo `channels`, as in detent_element_params. `scales` and `zero_points`
 * have `channels` elements; `evidence` is null or an array of as many initialized structures.
 * `options` (defaults) and `parallel` may be null. DETENT_INVALID_ARGUMENT for null, no values,
 * NaN, infinities, another method and options out of their domain; DETENT_SHAPE_MISMATCH if n is
 * no multiple of channels * inner; DETENT_UNSUPPORTED for more than 256 levels with a method that
 * searches all scales. */
DETENT_C_API detent_status detent_solve_scales(const float* x, size_t n,
                                               const detent_scale_options* options, float* scales,
                                               int32_t* zero_points,
                                               detent_scale_evidence* evidence,
                                               const detent_parallel* parallel);

#ifdef __cplusplus
}
#endif

#endif /* DETENT_C_API_OBSERVERS_H */
