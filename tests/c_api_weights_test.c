/* SPDX-License-Identifier: BSD-3-Clause
 * The C interface's Gram matrices and codes of weights: against sums worked out here, and through
 * the products that the codes are for.
 */
#include <math.h>
#include <stddef.h>

#include <detent/c_api_weights.h>

#include "c_check.h"

#define WRAPS (SIZE_MAX / 2 + 1) /* times 2 is 2^64 */

enum { rows = 20, columns = 32, samples = 40 };
static float w[rows * columns], x[samples * columns];
static double gram[columns * columns], importance[columns];
static float magnitudes[columns];

static void gram_matrices(void) {
  const uint8_t bytes[4] = {128, 130, 125, 128};
  detent_gram_observer *a = NULL, *b = NULL, *loaded = NULL;
  double g[columns * columns];
  unsigned char* saved;
  size_t size = 0, i, j, s;
  for (i = 0; i < samples * columns; ++i) {
    x[i] = random_real();
  }
  CHECK(detent_gram_observer_create(columns, &a) == DETENT_OK);
  CHECK(detent_gram_observer_create(columns, &b) == DETENT_OK);
  CHECK_ERROR(detent_gram_observer_finalize(a, g, NULL), DETENT_INVALID_ARGUMENT, "observ");
  CHECK(detent_gram_observer_observe(a, DETENT_F32, x, 10, columns, 0, NULL) == DETENT_OK);
  CHECK(detent_gram_observer_observe(b, DETENT_F32, x + 10 * columns, samples - 10, columns, 0,
                                     NULL) == DETENT_OK);
  CHECK(detent_gram_observer_merge(a, b) == DETENT_OK);
  CHECK(detent_gram_observer_features(a) == columns && detent_gram_observer_count(a) == samples);
  CHECK(detent_gram_observer_finalize(a, gram, magnitudes) == DETENT_OK);
  for (i = 0; i < columns; ++i) {
    double mean = 0.0;
    for (s = 0; s < samples; ++s) {
      mean += fabs((double)x[s * columns + i]) / samples;
    }
    CHECK(fabs(mean - (double)magnitudes[i]) < 1e-6 * mean);
    importance[i] = gram[i * columns + i];
    for (j = 0; j < columns; ++j) {
      double sum = 0.0; /* multiples of 2^-12: exact */
      for (s = 0; s < samples; ++s) {
        sum += (double)x[s * columns + i] * (double)x[s * columns + j];
      }
      CHECK(gram[i * columns + j] == sum);
    }
  }
  CHECK(detent_gram_observer_finalize(a, NULL, NULL) == DETENT_OK);
  CHECK(detent_gram_observer_save(a, NULL, 0, &size) == DETENT_OK && size > 0);
  saved = (unsigned char*)allocate(size);
  CHECK(detent_gram_observer_save(a, saved, size, &size) == DETENT_OK);
  CHECK(detent_gram_observer_load(saved, size, &loaded) == DETENT_OK);
  CHECK(detent_gram_observer_finalize(loaded, g, NULL) == DETENT_OK);
  CHECK(memcmp(g, gram, sizeof g) == 0);
  detent_gram_observer_free(loaded);
  loaded = NULL;
  saved[size / 2] ^= 16U;
  CHECK(detent_gram_observer_load(saved, size, &loaded) == DETENT_BAD_FILE);
  CHECK(detent_gram_observer_load(saved, size - 1, &loaded) == DETENT_BAD_FILE);
  CHECK_ERROR(detent_gram_observer_load(NULL, 1, &loaded), DETENT_INVALID_ARGUMENT, "null bytes");
  CHECK_ERROR(detent_gram_observer_load(saved, size, NULL), DETENT_INVALID_ARGUMENT, "null result");
  CHECK(loaded == NULL);
  free(saved);
  detent_gram_observer_free(b);

  /* Integers stand for q - zero_point: rows (0, 2) and (-3, 0). */
  CHECK(detent_gram_observer_create(2, &b) == DETENT_OK);
  CHECK(detent_gram_observer_observe(b, DETENT_U8, bytes, 2, 2, 128, NULL) == DETENT_OK);
  CHECK(detent_gram_observer_finalize(b, g, NULL) == DETENT_OK);
  CHECK(g[0] == 9.0 && g[1] == 0.0 && g[2] == 0.0 && g[3] == 4.0);
  CHECK(detent_gram_observer_observe(b, DETENT_S8, bytes, 1, 2, -100, NULL) == DETENT_OK);
  CHECK(detent_gram_observer_count(b) == 3);

  CHECK_ERROR(detent_gram_observer_create(0, &loaded), DETENT_INVALID_ARGUMENT, "0 features");
  CHECK_ERROR(detent_gram_observer_create(SIZE_MAX, &loaded), DETENT_INVALID_ARGUMENT, "features");
  CHECK_ERROR(detent_gram_observer_create(1, NULL), DETENT_INVALID_ARGUMENT, "null result");
  CHECK_ERROR(detent_gram_observer_observe(NULL, DETENT_F32, x, 1, 2, 0, NULL),
              DETENT_INVALID_ARGUMENT, "null observer");
  CHECK(detent_gram_observer_observe(b, DETENT_F32, NULL, 1, 2, 0, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK_ERROR(detent_gram_observer_observe(b, DETENT_F32, x, 1, 2, 1, NULL),
              DETENT_INVALID_ARGUMENT, "zero point of 1");
  CHECK_ERROR(detent_gram_observer_observe(b, DETENT_F16, x, 1, 2, 0, NULL),
              DETENT_INVALID_ARGUMENT, "type 5");
  CHECK_ERROR(detent_gram_observer_observe(b, DETENT_U8, bytes, 1, 2, 256, NULL),
              DETENT_INVALID_ARGUMENT, "256");
  CHECK_ERROR(detent_gram_observer_observe(b, DETENT_F32, x, 1, SIZE_MAX, 0, NULL),
              DETENT_INVALID_ARGUMENT, "row stride");
  CHECK(detent_gram_observer_observe(b, DETENT_F32, x, WRAPS, 2, 0, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK_ERROR(detent_gram_observer_merge(a, b), DETENT_SHAPE_MISMATCH, "2 features");
  CHECK_ERROR(detent_gram_observer_merge(a, NULL), DETENT_INVALID_ARGUMENT, "null other");
  CHECK_ERROR(detent_gram_observer_merge(NULL, a), DETENT_INVALID_ARGUMENT, "null observer");
  CHECK_ERROR(detent_gram_observer_finalize(NULL, g, NULL), DETENT_INVALID_ARGUMENT,
              "null observer");
  CHECK_ERROR(detent_gram_observer_save(NULL, NULL, 0, &size), DETENT_INVALID_ARGUMENT,
              "null observer");
  CHECK_ERROR(detent_gram_observer_save(a, NULL, 0, NULL), DETENT_INVALID_ARGUMENT, "null needed");
  CHECK(detent_gram_observer_features(NULL) == 0 && detent_gram_observer_count(NULL) == 0);
  detent_gram_observer_free(a);
  detent_gram_observer_free(b);
  detent_gram_observer_free(NULL);
}

/* (w - v)^T G (w - v), summed over the rows, with inputs divided by `divisors`. */
static double error_of(const int8_t* codes, const float* scales, const int32_t* zero_points,
                       size_t group_size, const float* divisors) {
  const size_t groups = detent_weight_groups(columns, group_size);
  double sum = 0.0;
  size_t r, i, j;
  for (r = 0; r < rows; ++r) {
    double e[columns];
    for (i = 0; i < columns; ++i) {
      const size_t at = r * groups + i / (group_size == 0 ? columns : group_size);
      e[i] = (double)w[r * columns + i] -
             (double)scales[at] * (codes[r * columns + i] - zero_points[at]) / (double)divisors[i];
    }
    for (i = 0; i < columns; ++i) {
      for (j = 0; j < columns; ++j) {
        sum += e[i] * gram[i * columns + j] * e[j];
      }
    }
  }
  return sum;
}

static void every_algorithm(void) {
  const int32_t bits[2] = {4, 8};
  const size_t group_sizes[2] = {0, 16};
  int b, g, algorithm, calls = 0;
  size_t i;
  detent_parallel parallel;
  parallel.run = &run_backwards;
  parallel.user = &calls;
  for (i = 0; i < rows * columns; ++i) {
    w[i] = random_real();
  }
  for (b = 0; b < 2; ++b) {
    for (g = 0; g < 2; ++g) {
      const int32_t largest = (1 << (bits[b] - 1)) - 1;
      double nearest = 0.0;
      for (algorithm = 0; algorithm <= (int)DETENT_WEIGHTS_HQQ; ++algorithm) {
        int8_t codes[rows * columns], again[rows * columns];
        float scales[rows * 2], divisors[columns];
        int32_t zero_points[rows * 2];
        detent_weight_quantization o;
        detent_weight_evidence e;
        detent_status status;
        double error;
        detent_weight_quantization_init(&o);
        detent_weight_evidence_init(&e);
        o.algorithm = (detent_weight_algorithm)algorithm;
        o.scheme.qmin = algorithm == (int)DETENT_WEIGHTS_HQQ ? -largest - 1 : -largest;
        o.scheme.qmax = largest;
        o.scheme.symmetric = algorithm != (int)DETENT_WEIGHTS_HQQ;
        o.group_size = group_sizes[g];
        o.gram = algorithm == (int)DETENT_WEIGHTS_HQQ ? NULL : gram;
        o.magnitudes = algorithm == (int)DETENT_WEIGHTS_AWQ ? magnitudes : NULL;
        status = detent_quantize_weights(w, rows, columns, columns, &o, codes, scales, zero_points,
                                         divisors, &e);
        CHECK(status == DETENT_OK);
        for (i = 0; i < columns; ++i) {
          CHECK(algorithm == (int)DETENT_WEIGHTS_AWQ ? divisors[i] > 0.0F : divisors[i] == 1.0F);
        }
        for (i = 0; i < rows * columns; ++i) {
          CHECK(codes[i] >= o.scheme.qmin && codes[i] <= o.scheme.qmax);
        }
        error = error_of(codes, scales, zero_points, o.group_size, divisors);
        if (algorithm == (int)DETENT_WEIGHTS_HQQ) {
          CHECK(e.objective <= e.nearest_objective);
        } else {
          CHECK(fabs(error - e.objective) <= 1e-5 * error);
        }
        if (algorithm == (int)DETENT_WEIGHTS_NEAREST) {
          nearest = error;
          CHECK(e.objective == e.nearest_objective);
        } else if (algorithm != (int)DETENT_WEIGHTS_HQQ) {
          CHECK(fabs(e.nearest_objective - nearest) <= 1e-5 * nearest);
          CHECK(error < nearest); /* G is far from diagonal: there is much to gain */
        }
        o.parallel = &parallel;
        CHECK(detent_quantize_weights(w, rows, columns, columns, &o, again, scales, zero_points,
                                      divisors, NULL) == DETENT_OK);
        CHECK(memcmp(codes, again, sizeof codes) == 0);
      }
    }
  }
  CHECK(calls > 0);
}

/* Codes of a solver, packed as the transpose, multiply as they dequantize. */
static void codes_are_packed(void) {
  int8_t codes[rows * columns];
  float scales[rows * 2], c[rows], expected;
  int32_t zero_points[rows * 2];
  uint8_t a[columns];
  detent_weight_quantization o;
  detent_int4_weight_options po;
  detent_weights* packed = NULL;
  size_t r, i;
  detent_weight_quantization_init(&o);
  o.scheme.qmin = -8;
  o.scheme.qmax = 7;
  o.scheme.symmetric = 0;
  o.group_size = 16;
  o.algorithm = DETENT_WEIGHTS_COORDINATE_DESCENT;
  o.importance = importance;
  CHECK(detent_quantize_weights(w, rows, columns, columns, &o, codes, scales, zero_points, NULL,
                                NULL) == DETENT_OK);
  detent_int4_weight_options_init(&po);
  po.group_size = 16;
  po.scales = scales;
  po.zero_points = zero_points;
  po.group_stride = 1;
  po.column_stride = 2;
  CHECK(detent_pack_int4_weights(DETENT_S8, codes, columns, rows, 1, columns, &po, &packed) ==
        DETENT_OK);
  for (i = 0; i < columns; ++i) {
    a[i] = (uint8_t)random_bits();
  }
  CHECK(detent_gemm(DETENT_U8, a, columns, 1, packed, DETENT_F32, c, rows, NULL, NULL) ==
        DETENT_OK);
  for (r = 0; r < rows; ++r) {
    expected = 0.0F;
    for (i = 0; i < columns; ++i) {
      const size_t at = r * 2 + i / 16;
      expected += (float)a[i] * scales[at] * (float)(codes[r * columns + i] - zero_points[at]);
    }
    CHECK(fabsf(c[r] - expected) < 0.05F);
  }
  detent_weights_free(packed);
}

static void errors_of_weights(void) {
  int8_t codes[rows * columns];
  float scales[rows], divisors[columns];
  int32_t zero_points[rows];
  detent_weight_quantization o;
  detent_weight_evidence e;
  int algorithm;
#define QUANTIZE() \
  detent_quantize_weights(w, rows, columns, columns, &o, codes, scales, zero_points, divisors, NULL)
  detent_weight_quantization_init(&o);
  CHECK(detent_weight_groups(32, 0) == 1 && detent_weight_groups(33, 16) == 3);
  CHECK(detent_weight_groups(32, SIZE_MAX) == 1 && detent_weight_groups(0, 16) == 1);
  CHECK(detent_quantize_weights(w, rows, columns, columns, NULL, codes, scales, zero_points, NULL,
                                NULL) == DETENT_OK);
  CHECK(detent_quantize_weights(NULL, rows, columns, columns, &o, codes, scales, zero_points, NULL,
                                NULL) == DETENT_INVALID_ARGUMENT);
  /* Refused before memory for any column is taken. */
  CHECK_ERROR(detent_quantize_weights(NULL, 1, (size_t)1 << 40, (size_t)1 << 40, &o, codes, scales,
                                      zero_points, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null weights");
  CHECK_ERROR(
      detent_quantize_weights(w, rows, columns, columns, &o, NULL, scales, zero_points, NULL, NULL),
      DETENT_INVALID_ARGUMENT, "null codes");
  CHECK_ERROR(
      detent_quantize_weights(w, rows, columns, columns, &o, codes, NULL, zero_points, NULL, NULL),
      DETENT_INVALID_ARGUMENT, "null codes, scales");
  CHECK_ERROR(
      detent_quantize_weights(w, rows, columns, columns, &o, codes, scales, NULL, NULL, NULL),
      DETENT_INVALID_ARGUMENT, "zero points");
  CHECK(detent_quantize_weights(w, rows, 0, columns, &o, codes, scales, zero_points, NULL, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_quantize_weights(w, WRAPS, 2, 2, &o, codes, scales, zero_points, NULL, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_quantize_weights(w, 2, SIZE_MAX, 2, &o, codes, scales, zero_points, NULL, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK_ERROR(detent_quantize_weights(w, rows, columns, SIZE_MAX, &o, codes, scales, zero_points,
                                      NULL, NULL),
              DETENT_INVALID_ARGUMENT, "row stride");
  detent_weight_evidence_init(&e);
  e.size = 0;
  codes[0] = 99;
  CHECK_ERROR(
      detent_quantize_weights(w, rows, columns, columns, &o, codes, scales, zero_points, NULL, &e),
      DETENT_INVALID_ARGUMENT, "was it initialized?");
  CHECK(codes[0] == 99);
  o.size = sizeof o + 8;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "was it initialized?");
  o.size = offsetof(detent_weight_quantization, scales); /* an older program */
  o.scales = (const float*)1;
  CHECK(QUANTIZE() == DETENT_OK);
  detent_weight_quantization_init(&o);
  o.algorithm = (detent_weight_algorithm)6;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "algorithm 6");
  for (algorithm = 0; algorithm <= (int)DETENT_WEIGHTS_HQQ; ++algorithm) {
    detent_weight_quantization_init(&o);
    o.algorithm = (detent_weight_algorithm)algorithm;
    o.scheme.qmin = 8;
    o.scheme.qmax = 7;
    o.scheme.symmetric = algorithm != (int)DETENT_WEIGHTS_HQQ;
    CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "8..7 does not ascend");
    o.scheme.qmin = -128;
    o.scheme.qmax = 128; /* beyond int8 */
    CHECK(QUANTIZE() == DETENT_INVALID_ARGUMENT);
    o.scheme.qmax = 127;
    w[5] = NAN;
    CHECK(QUANTIZE() == DETENT_INVALID_ARGUMENT);
    w[5] = 1.0F;
  }
  detent_weight_quantization_init(&o);
  o.gram = gram;
  o.importance = importance;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "both a Gram matrix");
  o.importance = NULL;
  gram[1] += 1.0;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "row 0, column 1");
  gram[1] -= 1.0;
  o.gram = NULL;
  o.importance = importance;
  importance[0] = -1.0;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "-1");
  importance[0] = gram[0];
  o.zero_points = zero_points;
  CHECK(QUANTIZE() != DETENT_OK);
  o.zero_points = NULL;
  o.algorithm = DETENT_WEIGHTS_AWQ;
  CHECK_ERROR(detent_quantize_weights(w, rows, columns, columns, &o, codes, scales, zero_points,
                                      NULL, NULL),
              DETENT_INVALID_ARGUMENT, "input_scales");
  o.grid_points = 0;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "grid points");
  o.grid_points = 4;
  o.smallest_clip = 0.0F;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "clipped to 0");
  o.algorithm = DETENT_WEIGHTS_ADAROUND;
  o.learning_rate = -1.0;
  CHECK(QUANTIZE() == DETENT_INVALID_ARGUMENT);
  o.algorithm = DETENT_WEIGHTS_HQQ;
  CHECK(QUANTIZE() == DETENT_INVALID_ARGUMENT); /* symmetric */
  o.scheme.symmetric = 0;
  o.norm = 0.0;
  CHECK(QUANTIZE() == DETENT_INVALID_ARGUMENT);
#undef QUANTIZE
}

static void smooth_quant(void) {
  const float weights[4] = {2.0F, -8.0F, 4.0F, 1.0F};
  const float largest[2] = {16.0F, 2.0F}, bad[2] = {-1.0F, 1.0F};
  float s[2];
  CHECK(detent_smooth_quant_scales(largest, weights, 2, 2, 2, 0.5F, s) == DETENT_OK);
  CHECK(fabsf(s[0] - 2.0F) < 1e-6F && fabsf(s[1] - 0.5F) < 1e-6F);
  CHECK(detent_smooth_quant_scales(NULL, weights, 2, 2, 2, 0.5F, s) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_smooth_quant_scales(largest, NULL, 2, 2, 2, 0.5F, s) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_smooth_quant_scales(largest, weights, 2, 2, 2, 0.5F, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_smooth_quant_scales(largest, weights, 2, 2, 2, 1.5F, s) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_smooth_quant_scales(bad, weights, 2, 2, 2, 0.5F, s) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_smooth_quant_scales(largest, weights, WRAPS, 2, 2, 0.5F, s) ==
        DETENT_INVALID_ARGUMENT);
}

int main(int count, char** arguments) {
  begin(count, arguments);
  gram_matrices();
  every_algorithm();
  codes_are_packed();
  errors_of_weights();
  smooth_quant();
  return end();
}
