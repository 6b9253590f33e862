/* SPDX-License-Identifier: BSD-3-Clause
 * The C interface as a C program sees it: results worked out by hand, errors by status and message.
 */
#include <math.h>
#include <stddef.h>

#include "c_check.h"

static void gemm_of_every_type(void) {
  const int8_t w[6] = {1, -2, 3, 4, 5, -6}; /* 2 x 3 */
  const uint8_t shifted[6] = {129, 126, 131, 132, 133, 122};
  const uint8_t a[4] = {3, 5, 255, 0};
  const int8_t as[4] = {3, 5, 127, 0};
  const float scales[3] = {0.5F, 0.25F, 1.0F};
  const int32_t bias[1] = {10};
  const int32_t zero_points[1] = {128};
  detent_weight_options o;
  detent_weights* weights = NULL;
  detent_weights* unsigned_weights = NULL;
  detent_epilogue e;
  int32_t sums[6];
  float real[6];
  uint8_t bytes[6];

  detent_weight_options_init(&o);
  o.scales = scales;
  o.scale_count = 3;
  o.bias = bias;
  o.bias_count = 1;
  CHECK(detent_pack_weights(DETENT_S8, w, 2, 3, 3, 1, &o, &weights) == DETENT_OK);
  o.zero_points = zero_points;
  o.zero_point_count = 1;
  CHECK(detent_pack_weights(DETENT_U8, shifted, 2, 3, 3, 1, &o, &unsigned_weights) == DETENT_OK);
  CHECK(detent_weights_depth(weights) == 2);
  CHECK(detent_weights_columns(weights) == 3);
  CHECK(detent_weights_accumulator_bound(weights) == 255 * 9 + 10);

  detent_epilogue_init(&e);
  e.lhs_zero_point = 1;
  CHECK(detent_gemm(DETENT_U8, a, 2, 2, weights, DETENT_S32, sums, 3, &e, NULL) == DETENT_OK);
  /* 10 + 2 * (1, -2, 3) + 4 * (4, 5, -6), then 254 and -1 */
  CHECK(sums[0] == 28 && sums[1] == 26 && sums[2] == -8);
  CHECK(sums[3] == 260 && sums[4] == -503 && sums[5] == 778);
  CHECK(detent_gemm(DETENT_U8, a, 2, 2, unsigned_weights, DETENT_S32, sums, 3, &e, NULL) ==
        DETENT_OK);
  CHECK(sums[0] == 28 && sums[1] == 26 && sums[2] == -8);
  e.addend = sums; /* accumulates */
  e.addend_stride = 3;
  CHECK(detent_gemm(DETENT_U8, a, 2, 2, weights, DETENT_S32, sums, 3, &e, NULL) == DETENT_OK);
  CHECK(sums[0] == 56 && sums[1] == 52 && sums[2] == -16 && sums[4] == -1006);
  sums[1] = INT32_MAX;
  CHECK(detent_gemm(DETENT_U8, a, 2, 2, weights, DETENT_S32, sums, 3, &e, NULL) == DETENT_OVERFLOW);
  CHECK(strstr(detent_last_error(), "the sum 2147483673 of row 0, column 1") != NULL);
  e.addend = NULL;
  CHECK(detent_gemm(DETENT_S8, as, 2, 1, weights, DETENT_F32, real, 3, &e, NULL) == DETENT_OK);
  CHECK(real[0] == 14.0F && real[1] == 6.5F && real[2] == -8.0F);
  e.output_scale = 2.0F;
  e.output_zero_point = 4;
  e.qmin = 1;
  e.qmax = 10;
  CHECK(detent_gemm(DETENT_U8, a, 2, 1, weights, DETENT_U8, bytes, 3, &e, NULL) == DETENT_OK);
  /* 28 / 4 + 4, 26 / 8 + 4, -8 / 2 + 4, clamped */
  CHECK(bytes[0] == 10 && bytes[1] == 7 && bytes[2] == 1);

  detent_weights_free(weights);
  detent_weights_free(unsigned_weights);
  detent_weights_free(NULL);
  CHECK(detent_weights_depth(NULL) == 0 && detent_weights_columns(NULL) == 0);
  CHECK(detent_weights_accumulator_bound(NULL) == 0);
}

static void saved_weights(void) {
  enum { k = 19, n = 5 };
  static const int8_t w[k * n] = {1, -2, 3, 127, -128, 0, 7};
  static const uint8_t a[k] = {1, 255, 3, 0, 17, 200};
  static unsigned char bytes[4096];
  int32_t before[n], after[n];
  size_t needed = 0, again = 0, i;
  detent_weights* weights = NULL;
  detent_weights* loaded = NULL;
  memset(bytes, 0, sizeof bytes);
  CHECK(detent_pack_weights(DETENT_S8, w, k, n, n, 1, NULL, &weights) == DETENT_OK);
  CHECK(detent_weights_save(weights, NULL, 0, &needed) == DETENT_OK);
  CHECK(needed > k * n && needed <= sizeof bytes);
  CHECK(detent_weights_save(weights, bytes, needed - 1, &again) == DETENT_OK);
  CHECK(again == needed && bytes[0] == 0);
  CHECK(detent_weights_save(weights, bytes, sizeof bytes, &needed) == DETENT_OK);
  CHECK(detent_weights_load(bytes, needed, &loaded) == DETENT_OK);
  CHECK(detent_weights_depth(loaded) == k && detent_weights_columns(loaded) == n);
  CHECK(detent_gemm(DETENT_U8, a, k, 1, weights, DETENT_S32, before, n, NULL, NULL) == DETENT_OK);
  CHECK(detent_gemm(DETENT_U8, a, k, 1, loaded, DETENT_S32, after, n, NULL, NULL) == DETENT_OK);
  CHECK(memcmp(before, after, sizeof before) == 0);
  detent_weights_free(loaded);
  loaded = NULL;
  for (i = 0; i < needed; ++i) {
    detent_status status;
    bytes[i] ^= 0x10;
    status = detent_weights_load(bytes, needed, &loaded);
    CHECK(status == DETENT_BAD_FILE || status == DETENT_UNSUPPORTED);
    CHECK(loaded == NULL);
    bytes[i] ^= 0x10;
  }
  CHECK(detent_weights_load(bytes, 3, &loaded) == DETENT_BAD_FILE);
  CHECK(detent_weights_load(NULL, 3, &loaded) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_weights_save(NULL, bytes, 9, &needed) == DETENT_INVALID_ARGUMENT);
  detent_weights_free(weights);
}

static void rows_and_threads(void) {
  enum { m = 200, k = 137, n = 121 };
  static int8_t w[k * n];
  static float a[m * k], serial[m * n], threaded[m * n];
  detent_weights* weights = NULL;
  detent_dynamic_linear_options o;
  int calls = 0;
  const detent_parallel parallel = {&run_backwards, &calls};
  size_t i;
  for (i = 0; i < sizeof w; ++i) {
    w[i] = (int8_t)(i * 37 % 251 - 125);
  }
  for (i = 0; i < m * k; ++i) {
    a[i] = (float)(i * 29 % 97) * 0.125F - 5.0F;
  }
  /* The transpose of an n x k matrix. */
  CHECK(detent_pack_weights(DETENT_S8, w, k, n, 1, k, NULL, &weights) == DETENT_OK);
  detent_dynamic_linear_options_init(&o);
  o.lower = 0.0F;
  CHECK(detent_dynamic_linear(a, k, m, weights, serial, n, &o, NULL) == DETENT_OK);
  CHECK(detent_dynamic_linear(a, k, m, weights, threaded, n, &o, &parallel) == DETENT_OK);
  CHECK(calls == 1);
  CHECK(memcmp(serial, threaded, sizeof serial) == 0);
  {
    /* Within the error that quantizing one row makes: half a step for each of k products. */
    double exact = 0.0;
    for (i = 0; i < k; ++i) {
      exact += (double)a[i] * w[3 * k + i];
    }
    exact = exact < 0.0 ? 0.0 : exact;
    CHECK(fabs(serial[3] - exact) <= 0.5 * (12.0 / 255.0) * 127.0 * k);
  }
  /* An infinity in a task on the caller's threads becomes a status. */
  a[100 * k] = (float)INFINITY;
  CHECK(detent_dynamic_linear(a, k, m, weights, threaded, n, &o, &parallel) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(strstr(detent_last_error(), "not finite") != NULL);
  detent_weights_free(weights);
}

static void elements(void) {
  const float x[5] = {-1.0F, 0.25F, 0.75F, 1000.0F, (float)NAN};
  uint8_t q[5];
  int8_t s[5];
  float back[5], scale = 0.0F;
  int32_t zero_point = 0;
  CHECK(detent_quantize(x, 5, 0.5F, 3, DETENT_U8, q, NULL) == DETENT_OK);
  CHECK(q[0] == 1 && q[1] == 3 && q[2] == 5 && q[3] == 255 && q[4] == 3); /* ties to even */
  CHECK(detent_dequantize(DETENT_U8, q, 5, 0.5F, 3, back, NULL) == DETENT_OK);
  CHECK(back[0] == -1.0F && back[1] == 0.0F && back[2] == 1.0F && back[3] == 126.0F);
  CHECK(detent_dynamic_quantize(x, 3, DETENT_S8, s, &scale, &zero_point, NULL) == DETENT_OK);
  CHECK(scale >= 1.75F / 255.0F && scale < 1.76F / 255.0F);
  CHECK(s[0] == -128 && s[2] == 127);
}

static void errors(void) {
  const int8_t w[2] = {1, 2};
  const uint8_t a[2] = {1, 2};
  int32_t c[1];
  detent_weights* weights = NULL;
  detent_epilogue e;
  float scale;
  int32_t zero_point;
  CHECK(detent_pack_weights(DETENT_F32, w, 2, 1, 1, 1, NULL, &weights) == DETENT_INVALID_ARGUMENT);
  CHECK(weights == NULL);
  CHECK(strstr(detent_last_error(), "type 3") != NULL);
  CHECK(detent_pack_weights(DETENT_S8, NULL, 2, 1, 1, 1, NULL, &weights) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_pack_weights(DETENT_S8, w, 2, 1, 1, 1, NULL, NULL) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_pack_weights(DETENT_S8, w, 2, 1, 1, 1, NULL, &weights) == DETENT_OK);
  CHECK(detent_gemm(DETENT_U8, a, 2, 1, NULL, DETENT_S32, c, 1, NULL, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(strstr(detent_last_error(), "null weights") != NULL);
  CHECK(detent_gemm(DETENT_U8, NULL, 2, 1, weights, DETENT_S32, c, 1, NULL, NULL) ==
        DETENT_INVALID_ARGUMENT);
  /* Rows of C that would overwrite each other, and sizes that wrap. */
  CHECK(detent_gemm(DETENT_U8, a, 2, 2, weights, DETENT_S32, c, 0, NULL, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(strstr(detent_last_error(), "overwrite") != NULL);
  CHECK(detent_gemm(DETENT_U8, a, 2, 1, weights, DETENT_S32, c, 0, NULL, NULL) == DETENT_OK);
  {
    detent_weights* none = NULL;
    const size_t huge = (size_t)1 << 60;
    CHECK(detent_pack_weights(DETENT_S8, w, huge, 1, 1, 1, NULL, &none) == DETENT_INVALID_ARGUMENT);
    CHECK(detent_pack_weights(DETENT_S8, w, huge, 0, 1, 1, NULL, &none) == DETENT_INVALID_ARGUMENT);
    CHECK(none == NULL);
    CHECK(strstr(detent_last_error(), "elements") != NULL);
  }
  detent_epilogue_init(&e);
  e.lhs_zero_point = 300;
  CHECK(detent_gemm(DETENT_U8, a, 2, 1, weights, DETENT_S32, c, 1, &e, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(strstr(detent_last_error(), "300") != NULL);
  e.size = 0; /* never initialized */
  CHECK(detent_gemm(DETENT_U8, a, 2, 1, weights, DETENT_S32, c, 1, &e, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_quantize(NULL, 3, 1.0F, 0, DETENT_U8, c, NULL) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_dynamic_quantize(NULL, 0, DETENT_U8, NULL, &scale, &zero_point, NULL) == DETENT_OK);
  CHECK(detent_set_target("no such thing") == DETENT_INVALID_ARGUMENT);
  CHECK(strcmp(detent_status_name(DETENT_SHAPE_MISMATCH), "shape mismatch") == 0);
  detent_weights_free(weights);
}

static void overflow(void) {
  enum { k = 70000 };
  int8_t* w = malloc(k);
  uint8_t* a = malloc(k);
  int32_t c[1];
  detent_weights* weights = NULL;
  memset(w, -128, k);
  memset(a, 255, k);
  CHECK(detent_pack_weights(DETENT_S8, w, k, 1, 1, 1, NULL, &weights) == DETENT_OK);
  CHECK(detent_gemm(DETENT_U8, a, k, 1, weights, DETENT_S32, c, 1, NULL, NULL) == DETENT_OVERFLOW);
  detent_weights_free(weights);
  free(w);
  free(a);
}

/* Programs that know fewer fields, more, or none. */
static void structures_of_other_releases(void) {
  const int8_t w[2] = {1, 2};
  const uint8_t a[2] = {3, 4};
  int32_t c[1] = {0};
  struct {
    detent_epilogue known;
    int later;
  } newer;
  detent_epilogue e;
  detent_weight_options o;
  detent_weights* weights = NULL;
  detent_weight_options_init(&o);
  o.size = offsetof(detent_weight_options, parallel);
  memset(&o.parallel, 0xAB, sizeof o.parallel); /* not read */
  CHECK(detent_pack_weights(DETENT_S8, w, 2, 1, 1, 1, &o, &weights) == DETENT_OK);
  detent_epilogue_init(&e);
  e.size = offsetof(detent_epilogue, first_level_cache);
  memset(&e.first_level_cache, 0xAB, sizeof e.first_level_cache);
  e.lhs_zero_point = 1;
  CHECK(detent_gemm(DETENT_U8, a, 2, 1, weights, DETENT_S32, c, 1, &e, NULL) == DETENT_OK);
  CHECK(c[0] == 2 * 1 + 3 * 2);
  detent_epilogue_init(&e);
  e.first_level_cache = 4096;
  e.second_level_cache = 16384;
  e.third_level_cache = 65536;
  CHECK(detent_gemm(DETENT_U8, a, 2, 1, weights, DETENT_S32, c, 1, &e, NULL) == DETENT_OK);
  CHECK(c[0] == 3 * 1 + 4 * 2);
  newer.known = e;
  newer.known.size = sizeof newer;
  CHECK_ERROR(detent_gemm(DETENT_U8, a, 2, 1, weights, DETENT_S32, c, 1, &newer.known, NULL),
              DETENT_INVALID_ARGUMENT, "is not that of the structure");
  detent_weights_free(weights);
}

static void names_and_accessors(void) {
  static const char* const names[] = {"ok",       "invalid argument", "shape mismatch",
                                      "overflow", "unsupported",      "out of memory",
                                      "internal", "bad file",         "io",
                                      "cancelled"};
  const int8_t w[6] = {1, 2, 3, 4, 5, 6};
  detent_weights* weights = NULL;
  detent_parallel parallel;
  detent_weight_options o;
  int calls = 0, i;
  for (i = DETENT_OK; i <= DETENT_BAD_FILE; ++i) {
    CHECK(strcmp(detent_status_name((detent_status)i), names[i]) == 0);
  }
  CHECK(strcmp(detent_status_name((detent_status)99), "unknown") == 0);
  parallel.run = &run_backwards;
  parallel.user = &calls;
  detent_weight_options_init(&o);
  o.parallel = &parallel;
  CHECK(detent_pack_weights(DETENT_S8, w, 3, 2, 2, 1, &o, &weights) == DETENT_OK);
  CHECK(detent_weights_bits(weights) == 8 && detent_weights_group_size(weights) == 3);
  CHECK(detent_weights_bits(NULL) == 0 && detent_weights_group_size(NULL) == 0);
  CHECK(detent_weights_prepare(weights, NULL) == DETENT_OK);
  CHECK(detent_weights_prepare(weights, &parallel) == DETENT_OK);
  CHECK_ERROR(detent_weights_prepare(NULL, NULL), DETENT_INVALID_ARGUMENT, "null weights");
  detent_weights_free(weights);
}

static void callbacks_without_a_function(void) {
  const int8_t w[1] = {2};
  const uint8_t a[1] = {3};
  int32_t c[1] = {0};
  const detent_parallel none = {NULL, NULL};
  detent_weights* weights = NULL;
  CHECK(detent_pack_weights(DETENT_S8, w, 1, 1, 1, 1, NULL, &weights) == DETENT_OK);
  CHECK(detent_gemm(DETENT_U8, a, 1, 1, weights, DETENT_S32, c, 1, NULL, &none) == DETENT_OK);
  CHECK(c[0] == 6);
  detent_weights_free(weights);
}

int main(int count, char** arguments) {
  CHECK(strcmp(detent_last_error(), "") == 0);
  begin(count, arguments);
  names_and_accessors();
  errors();
  overflow();
  callbacks_without_a_function();
  structures_of_other_releases();
  on_every_target(&gemm_of_every_type);
  on_every_target(&rows_and_threads);
  on_every_target(&saved_weights);
  on_every_target(&elements);
  return end();
}
