/* SPDX-License-Identifier: BSD-3-Clause
 * The C interface's observers, scale solvers, float conversions and products of two activations:
 * results worked out by hand or by the other functions, errors by status and message.
 */
#include <math.h>
#include <stddef.h>

#include <detent/c_api_observers.h>

#include "c_check.h"

#define WRAPS (SIZE_MAX / 2 + 1) /* times 2 is 2^64 */

static const detent_scheme unsigned_scheme = {0, 255, 0};
static const detent_scheme signed_scheme = {-127, 127, 1};

/* The scale of the symmetric range that reaches `largest`. */
static float symmetric_scale(float largest) {
  float scale = 0.0F;
  int32_t zero_point = -1;
  CHECK(detent_params_from_range(-largest, largest, -127, 127, 1, &scale, &zero_point) ==
        DETENT_OK);
  CHECK(zero_point == 0 && fabsf(scale - largest / 127.0F) <= 1e-6F * scale);
  return scale;
}

static void whole_tensors(void) {
  const size_t shape[1] = {4};
  const float x[4] = {-1.0F, 0.5F, 2.0F, 4.1F};
  const float more[4] = {0.0F, -3.0F, 1.0F, 2.0F};
  detent_observer *a = NULL, *b = NULL, *copy = NULL;
  detent_scale_evidence e;
  float scale = 0.0F, expected;
  int32_t zero_point = 0, z;
  CHECK(detent_observer_create("MinMax", NULL, &a) == DETENT_OK);
  CHECK(detent_observer_phases(a) == 1 && detent_observer_channels(a) == 1);
  CHECK_ERROR(detent_observer_finalize(a, unsigned_scheme, &scale, &zero_point, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "observ");
  CHECK(detent_observer_observe(a, DETENT_F32, x, shape, NULL, 1, NULL) == DETENT_OK);
  CHECK(detent_observer_copy(a, &copy) == DETENT_OK);
  CHECK(detent_observer_create("minmax", NULL, &b) == DETENT_OK);
  CHECK(detent_observer_observe(b, DETENT_F32, more, shape, NULL, 1, NULL) == DETENT_OK);
  CHECK(detent_observer_merge(a, b) == DETENT_OK);
  detent_scale_evidence_init(&e);
  CHECK(detent_observer_finalize(a, unsigned_scheme, &scale, &zero_point, &e, 1, NULL) ==
        DETENT_OK);
  CHECK(detent_params_from_range(-3.0F, 4.1F, 0, 255, 0, &expected, &z) == DETENT_OK);
  CHECK(scale == expected && zero_point == z);
  CHECK(e.lower == -3.0F && e.upper == 4.1F && e.count == 8);
  CHECK(detent_observer_finalize(copy, signed_scheme, &scale, &zero_point, NULL, 1, NULL) ==
        DETENT_OK);
  CHECK(detent_params_from_range(-1.0F, 4.1F, -127, 127, 1, &expected, &z) == DETENT_OK);
  CHECK(scale == expected && zero_point == 0);
  /* Merged with itself: the same range, twice the values. */
  CHECK(detent_observer_merge(a, a) == DETENT_OK);
  CHECK(detent_observer_finalize(a, unsigned_scheme, &scale, &zero_point, &e, 1, NULL) ==
        DETENT_OK);
  CHECK(e.count == 16 && e.lower == -3.0F);
  detent_observer_free(a);
  detent_observer_free(b);
  detent_observer_free(copy);
  detent_observer_free(NULL);
}

/* The rows of a 3 x 2 tensor, transposed in memory, on other threads. */
static void channels(void) {
  const double x[6] = {1.0, 2.0, 3.0, -10.0, 20.0, -30.0};
  const size_t shape[2] = {3, 2}, other[2] = {2, 3};
  const ptrdiff_t strides[2] = {1, 3};
  const size_t axes[2] = {0, 1}, first[1] = {0};
  int calls = 0;
  detent_parallel parallel;
  detent_observer* o = NULL;
  detent_scale_evidence e[3];
  float scales[6];
  int32_t zero_points[6];
  int i;
  parallel.run = &run_backwards;
  parallel.user = &calls;
  for (i = 0; i < 3; ++i) {
    detent_scale_evidence_init(&e[i]);
  }
  CHECK(detent_observer_create_channels("minmax", NULL, first, 1, &o) == DETENT_OK);
  CHECK(detent_observer_channels(o) == 0);
  CHECK_ERROR(detent_observer_finalize(o, signed_scheme, scales, zero_points, NULL, 3, NULL),
              DETENT_INVALID_ARGUMENT, "nothing was observed");
  CHECK(detent_observer_observe(o, DETENT_F64, x, shape, strides, 2, &parallel) == DETENT_OK);
  CHECK(detent_observer_channels(o) == 3 && calls == 1);
  CHECK_ERROR(detent_observer_observe(o, DETENT_F64, x, other, NULL, 2, NULL),
              DETENT_SHAPE_MISMATCH, "2 channels after 3");
  CHECK_ERROR(detent_observer_observe(o, DETENT_F64, x, shape, NULL, 0, NULL),
              DETENT_INVALID_ARGUMENT, "axis 0");
  { /* Strides: backwards, so that the channels change places; out of the address space. */
    const size_t none[2] = {3, 0}, wide[2] = {2, 2};
    const ptrdiff_t backwards[2] = {-1, -3};
    const ptrdiff_t least[2] = {PTRDIFF_MIN, 1}, wrapping[2] = {1, PTRDIFF_MAX / 4 + 1};
    detent_observer* copy = NULL;
    CHECK(detent_observer_copy(o, &copy) == DETENT_OK);
    CHECK(detent_observer_observe(copy, DETENT_F64, x + 5, shape, backwards, 2, NULL) == DETENT_OK);
    CHECK_ERROR(detent_observer_observe(copy, DETENT_F64, x, shape, least, 2, NULL),
                DETENT_INVALID_ARGUMENT, "of dimension 0, whose extent is 3, leaves");
    CHECK_ERROR(detent_observer_observe(copy, DETENT_F64, x, wide, wrapping, 2, NULL),
                DETENT_INVALID_ARGUMENT, "of dimension 1, whose extent is 2, leaves");
    CHECK(detent_observer_observe(copy, DETENT_F64, x, none, least, 2, NULL) == DETENT_OK);
    CHECK(detent_observer_finalize(copy, signed_scheme, scales, zero_points, e, 3, NULL) ==
          DETENT_OK);
    CHECK(scales[0] == symmetric_scale(30.0F) && scales[1] == symmetric_scale(20.0F));
    CHECK(scales[2] == scales[0] && e[0].count == 4);
    detent_observer_free(copy);
  }
  CHECK(detent_observer_finalize(o, signed_scheme, scales, zero_points, e, 3, &parallel) ==
        DETENT_OK);
  for (i = 0; i < 3; ++i) {
    CHECK(scales[i] == symmetric_scale(10.0F * (float)(i + 1)) && zero_points[i] == 0);
    CHECK(e[i].count == 2);
  }
  CHECK(e[1].lower == 2.0F && e[1].upper == 20.0F);
  CHECK_ERROR(detent_observer_finalize(o, signed_scheme, scales, zero_points, NULL, 2, NULL),
              DETENT_SHAPE_MISMATCH, "2 of 3 channels");
  detent_observer_free(o);
  CHECK(detent_observer_create_channels("minmax", NULL, axes, 2, &o) == DETENT_OK);
  CHECK(detent_observer_observe(o, DETENT_F64, x, shape, NULL, 2, NULL) == DETENT_OK);
  CHECK(detent_observer_finalize(o, signed_scheme, scales, zero_points, NULL, 6, NULL) ==
        DETENT_OK);
  CHECK(scales[5] == symmetric_scale(30.0F) && scales[0] == symmetric_scale(1.0F));
  detent_observer_free(o);
}

/* Every name can be made, observes, is saved and loaded, and then says the same. */
static void every_name(void) {
  float x[256];
  const size_t shape[2] = {16, 16};
  size_t i, phase, made = 0;
  for (i = 0; i < 256; ++i) {
    x[i] = random_real();
  }
  CHECK(detent_observer_name_count() > 20);
  CHECK(detent_observer_name(detent_observer_name_count()) == NULL);
  CHECK(detent_observer_name(SIZE_MAX) == NULL);
  for (i = 0; i < detent_observer_name_count(); ++i) {
    const char* name = detent_observer_name(i);
    detent_observer *o = NULL, *loaded = NULL;
    detent_observer_options options;
    float scales[2] = {0.0F, 0.0F};
    int32_t zero_points[2] = {0, 0};
    unsigned char* bytes;
    size_t size = 0, same = 0;
    detent_observer_options_init(&options);
    options.scheme = signed_scheme;
    if (detent_observer_create(name, &options, &o) != DETENT_OK) {
      CHECK(o == NULL);
      continue;
    }
    ++made;
    for (phase = 0; phase < detent_observer_phases(o); ++phase) {
      CHECK(detent_observer_begin_phase(o, phase) == DETENT_OK);
      CHECK(detent_observer_observe(o, DETENT_F32, x, shape, NULL, 2, NULL) == DETENT_OK);
    }
    CHECK_ERROR(detent_observer_begin_phase(o, phase), DETENT_INVALID_ARGUMENT, "phase");
    CHECK(detent_observer_finalize(o, signed_scheme, scales, zero_points, NULL, 1, NULL) ==
          DETENT_OK);
    CHECK(scales[0] > 0.0F);
    CHECK(detent_observer_save(o, NULL, 0, &size) == DETENT_OK);
    bytes = (unsigned char*)allocate(size);
    CHECK(detent_observer_save(o, bytes, size - 1, &same) == DETENT_OK && bytes[0] == 0);
    CHECK(detent_observer_save(o, bytes, size, &same) == DETENT_OK && size == same);
    CHECK(detent_observer_create(name, &options, &loaded) == DETENT_OK);
    CHECK(detent_observer_load(loaded, bytes, size - 1) == DETENT_BAD_FILE);
    CHECK(detent_observer_load(loaded, bytes, size) == DETENT_OK);
    CHECK(detent_observer_finalize(loaded, signed_scheme, scales + 1, zero_points + 1, NULL, 1,
                                   NULL) == DETENT_OK);
    CHECK(scales[0] == scales[1] && zero_points[0] == zero_points[1]);
    bytes[size / 2] ^= 1U;
    CHECK(detent_observer_load(loaded, bytes, size) == DETENT_BAD_FILE);
    free(bytes);
    detent_observer_free(o);
    detent_observer_free(loaded);
  }
  CHECK(made > 20);
}

/* Options that every observer takes. */
static void usual_options(detent_observer_options* options) {
  detent_observer_options_init(options);
  options->scheme = signed_scheme;
}

/* An observer of whole tensors, or of channels, that has seen a batch. */
static detent_observer* fed(const char* name, const detent_observer_options* options,
                            int of_channels) {
  const float x[8] = {-1.0F, 0.0F, 1.0F, 2.0F, -9.0F, 0.5F, 3.0F, 20.0F};
  const size_t shape[2] = {2, 4}, axes[1] = {0};
  detent_observer* o = NULL;
  if (of_channels) {
    CHECK(detent_observer_create_channels(name, options, axes, 1, &o) == DETENT_OK);
  } else {
    CHECK(detent_observer_create(name, options, &o) == DETENT_OK);
  }
  CHECK(detent_observer_observe(o, DETENT_F32, x, shape, NULL, 2, NULL) == DETENT_OK);
  return o;
}

static unsigned char* saved(const detent_observer* o, size_t* size) {
  unsigned char* bytes;
  CHECK(detent_observer_save(o, NULL, 0, size) == DETENT_OK);
  bytes = (unsigned char*)allocate(*size);
  CHECK(detent_observer_save(o, bytes, *size, size) == DETENT_OK);
  return bytes;
}

/* No observer takes the state of another name, neither saved nor by a merge, and stays what it is;
 * those of one name take both. */
static void names_do_not_mix(void) {
  const size_t count = detent_observer_name_count();
  size_t i, k;
  int of_channels;
  detent_observer_options options;
  usual_options(&options);
  for (of_channels = 0; of_channels < 2; ++of_channels) {
    for (i = 0; i < count; ++i) {
      const char* name = detent_observer_name(i);
      detent_observer* from = fed(name, &options, of_channels);
      size_t size = 0;
      unsigned char* bytes = saved(from, &size);
      for (k = 0; k < count; ++k) {
        const char* other = detent_observer_name(k);
        detent_observer* to = fed(other, &options, of_channels);
        size_t before_size = 0, after_size = 0;
        unsigned char *before = saved(to, &before_size), *after;
        if (i == k) {
          CHECK(detent_observer_load(to, bytes, size) == DETENT_OK);
        } else {
          CHECK_ERROR(detent_observer_load(to, bytes, size), DETENT_BAD_FILE, name);
          CHECK_ERROR(detent_observer_load(to, bytes, size), DETENT_BAD_FILE, other);
          CHECK_ERROR(detent_observer_merge(to, from), DETENT_INVALID_ARGUMENT, "another kind");
        }
        after = saved(to, &after_size);
        CHECK(before_size == after_size && memcmp(before, after, after_size) == 0);
        free(before);
        free(after);
        detent_observer_free(to);
      }
      free(bytes);
      detent_observer_free(from);
    }
  }
}

/* A state goes into observers that were made with the same options; those that the observer does
 * not read, and how histograms are stored, do not count. */
static void options_of_saved_states(void) {
  int of_channels;
  for (of_channels = 0; of_channels < 2; ++of_channels) {
    detent_observer_options options, others;
    detent_observer *from, *to;
    unsigned char *bytes, *again;
    size_t size = 0, again_size = 0;
    usual_options(&options);
    options.percentile = 60.0;
    from = fed("Percentile", &options, of_channels);
    bytes = saved(from, &size);
    others = options;
    others.percentile = 99.9;
    to = fed("percentile", &others, of_channels);
    CHECK_ERROR(detent_observer_load(to, bytes, size), DETENT_BAD_FILE, "other options");
    detent_observer_free(to);
    others = options;
    others.exact_percentile = 1;
    to = fed("percentile", &others, of_channels);
    CHECK_ERROR(detent_observer_load(to, bytes, size), DETENT_BAD_FILE, "other options");
    detent_observer_free(to);
    others = options;
    others.scheme = unsigned_scheme;
    others.moving_constant = 0.5;
    others.p = 3.0;
    others.top_k = 2;
    others.repaired = 1;
    others.sparse = 1;
    to = fed("percentile", &others, of_channels);
    CHECK(detent_observer_merge(to, from) == DETENT_OK); /* no longer the same */
    CHECK(detent_observer_load(to, bytes, size) == DETENT_OK);
    again = saved(to, &again_size);
    CHECK(size == again_size && memcmp(bytes, again, size) == 0);
    free(again);
    free(bytes);
    detent_observer_free(from);
    detent_observer_free(to);
  }
}

static void options_reach_observers(void) {
  float x[1000];
  const size_t shape[1] = {1000};
  detent_observer_options options;
  detent_observer* o = NULL;
  float whole, half;
  int32_t zero_point;
  size_t i;
  for (i = 0; i < 1000; ++i) {
    x[i] = (float)i;
  }
  detent_observer_options_init(&options);
  options.percentile = 100.0;
  options.sparse = 1;
  options.exact_percentile = 1;
  CHECK(detent_observer_create("percentile", &options, &o) == DETENT_OK);
  CHECK(detent_observer_phases(o) == 2);
  detent_observer_free(o);
  options.exact_percentile = 0;
  CHECK(detent_observer_create("percentile", &options, &o) == DETENT_OK);
  CHECK(detent_observer_observe(o, DETENT_F32, x, shape, NULL, 1, NULL) == DETENT_OK);
  CHECK(detent_observer_finalize(o, unsigned_scheme, &whole, &zero_point, NULL, 1, NULL) ==
        DETENT_OK);
  detent_observer_free(o);
  options.percentile = 60.0;
  CHECK(detent_observer_create("percentile", &options, &o) == DETENT_OK);
  CHECK(detent_observer_observe(o, DETENT_F32, x, shape, NULL, 1, NULL) == DETENT_OK);
  CHECK(detent_observer_finalize(o, unsigned_scheme, &half, &zero_point, NULL, 1, NULL) ==
        DETENT_OK);
  CHECK(whole == 999.0F / 255.0F && half < 0.85F * whole);
  detent_observer_free(o);
  o = NULL;
  options.percentile = 101.0;
  CHECK_ERROR(detent_observer_create("percentile", &options, &o), DETENT_INVALID_ARGUMENT, "101");
  options.percentile = 0.0;
  options.p = 9.0;
  CHECK_ERROR(detent_observer_create("lp", &options, &o), DETENT_INVALID_ARGUMENT, "9");
  options.p = 2.0;
  options.moving_constant = 0.0;
  CHECK(detent_observer_create("moving_average", &options, &o) == DETENT_INVALID_ARGUMENT);
  options.scheme.qmin = 256; /* reversed */
  CHECK_ERROR(detent_observer_create("kl", &options, &o), DETENT_INVALID_ARGUMENT,
              "256..255 does not ascend");
  options.size = 3;
  CHECK_ERROR(detent_observer_create("kl", &options, &o), DETENT_INVALID_ARGUMENT,
              "was it initialized?");
  CHECK(o == NULL);
}

static void errors_of_observers(void) {
  const float x[2] = {1.0F, 2.0F};
  const float bad[2] = {NAN, 1.0F};
  const size_t shape[2] = {2, 1}, wraps[3] = {WRAPS, 2, 1}, empty[2] = {0, SIZE_MAX};
  const size_t axes[8] = {1, 0, 2, 3, 4, 5, 6, 7};
  const detent_scheme reversed = {5, 4, 0}, single = {4, 4, 1};
  detent_observer *o = NULL, *other = NULL, *tensor = NULL;
  detent_scale_evidence e;
  float scale;
  int32_t zero_point;
  size_t size;
  CHECK_ERROR(detent_observer_create("minimum", NULL, &o), DETENT_INVALID_ARGUMENT,
              "no observer 'minimum'");
  CHECK_ERROR(detent_observer_create(NULL, NULL, &o), DETENT_INVALID_ARGUMENT, "null name");
  CHECK_ERROR(detent_observer_create("kl", NULL, NULL), DETENT_INVALID_ARGUMENT, "null result");
  CHECK_ERROR(detent_observer_create_channels("kl", NULL, NULL, 1, &o), DETENT_INVALID_ARGUMENT,
              "null axes");
  CHECK_ERROR(detent_observer_create_channels("kl", NULL, axes, 0, &o), DETENT_INVALID_ARGUMENT,
              "0 axes");
  CHECK_ERROR(detent_observer_create_channels("kl", NULL, axes, 8, &o), DETENT_INVALID_ARGUMENT,
              "8 axes");
  {
    const size_t beyond[1] = {8};
    CHECK_ERROR(detent_observer_create_channels("minmax", NULL, beyond, 1, &o),
                DETENT_INVALID_ARGUMENT, "axis 8 is not 0..7");
  }
  CHECK_ERROR(detent_observer_create_channels("kl", NULL, axes, SIZE_MAX, &o),
              DETENT_INVALID_ARGUMENT, "axes");
  CHECK_ERROR(detent_observer_create_channels("kl", NULL, axes, 2, &o), DETENT_INVALID_ARGUMENT,
              "axis 0 after axis 1");
  CHECK_ERROR(detent_observer_create_channels("kl", NULL, axes, 1, NULL), DETENT_INVALID_ARGUMENT,
              "null result");
  CHECK(o == NULL);
  CHECK(detent_observer_phases(NULL) == 0 && detent_observer_channels(NULL) == 0);
  CHECK_ERROR(detent_observer_copy(NULL, &o), DETENT_INVALID_ARGUMENT, "null observer");
  CHECK_ERROR(detent_observer_begin_phase(NULL, 0), DETENT_INVALID_ARGUMENT, "null observer");
  CHECK_ERROR(detent_observer_observe(NULL, DETENT_F32, x, shape, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "null observer");
  CHECK_ERROR(detent_observer_finalize(NULL, signed_scheme, &scale, &zero_point, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "null observer");
  CHECK_ERROR(detent_observer_save(NULL, NULL, 0, &size), DETENT_INVALID_ARGUMENT, "null observer");
  CHECK_ERROR(detent_observer_load(NULL, x, 8), DETENT_INVALID_ARGUMENT, "null observer");
  CHECK_ERROR(detent_observer_merge(NULL, NULL), DETENT_INVALID_ARGUMENT, "null observer");

  CHECK(detent_observer_create("minmax", NULL, &tensor) == DETENT_OK);
  CHECK(detent_observer_create("kl", NULL, &other) == DETENT_OK);
  CHECK(detent_observer_create_channels("minmax", NULL, axes, 1, &o) == DETENT_OK);
  CHECK_ERROR(detent_observer_copy(o, NULL), DETENT_INVALID_ARGUMENT, "null result");
  CHECK_ERROR(detent_observer_merge(o, tensor), DETENT_INVALID_ARGUMENT, "do not merge");
  CHECK_ERROR(detent_observer_merge(tensor, other), DETENT_INVALID_ARGUMENT, "another kind");
  CHECK_ERROR(detent_observer_merge(tensor, NULL), DETENT_INVALID_ARGUMENT, "null other");
  CHECK_ERROR(detent_observer_observe(tensor, DETENT_S8, x, shape, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "type 1 is not");
  CHECK_ERROR(detent_observer_observe(tensor, (detent_type)77, x, shape, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "type 77 is not");
  CHECK_ERROR(detent_observer_observe(tensor, DETENT_F32, NULL, shape, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "null data");
  CHECK_ERROR(detent_observer_observe(tensor, DETENT_F32, x, NULL, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "null shape");
  CHECK_ERROR(detent_observer_observe(tensor, DETENT_F32, x, shape, NULL, 9, NULL),
              DETENT_INVALID_ARGUMENT, "rank 9");
  CHECK_ERROR(detent_observer_observe(tensor, DETENT_F32, x, wraps, NULL, 3, NULL),
              DETENT_INVALID_ARGUMENT, "detent_observer_observe");
  CHECK(detent_observer_observe(tensor, DETENT_F32, NULL, empty, NULL, 1, NULL) == DETENT_OK);
  CHECK_ERROR(detent_observer_observe(tensor, DETENT_F32, NULL, empty, NULL, 2, NULL),
              DETENT_INVALID_ARGUMENT, "size");
  CHECK(detent_observer_observe(tensor, DETENT_F32, x, NULL, NULL, 0, NULL) == DETENT_OK);
  CHECK_ERROR(detent_observer_finalize(tensor, reversed, &scale, &zero_point, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "5..4");
  CHECK_ERROR(detent_observer_finalize(tensor, single, &scale, &zero_point, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "4..4");
  CHECK_ERROR(detent_observer_finalize(tensor, signed_scheme, NULL, &zero_point, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "null scales");
  CHECK_ERROR(detent_observer_finalize(tensor, signed_scheme, &scale, NULL, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "null zero points");
  detent_scale_evidence_init(&e);
  e.size = sizeof e + 8;
  scale = -1.0F;
  CHECK_ERROR(detent_observer_finalize(tensor, signed_scheme, &scale, &zero_point, &e, 1, NULL),
              DETENT_INVALID_ARGUMENT, "was it initialized?");
  CHECK(scale == -1.0F);                                 /* nothing was written */
  e.size = offsetof(detent_scale_evidence, lower_bound); /* an older program */
  e.lower_bound = 123.0;
  CHECK(detent_observer_finalize(tensor, signed_scheme, &scale, &zero_point, &e, 1, NULL) ==
        DETENT_OK);
  CHECK(e.lower_bound == 123.0 && e.size == offsetof(detent_scale_evidence, lower_bound));
  CHECK_ERROR(detent_observer_save(tensor, NULL, 0, NULL), DETENT_INVALID_ARGUMENT, "null needed");
  CHECK_ERROR(detent_observer_save(tensor, NULL, 10000, &size), DETENT_INVALID_ARGUMENT,
              "null buffer");
  CHECK_ERROR(detent_observer_load(tensor, NULL, 8), DETENT_INVALID_ARGUMENT, "null bytes");
  CHECK(detent_observer_load(tensor, NULL, 0) == DETENT_BAD_FILE);
  CHECK(detent_observer_observe(tensor, DETENT_F32, bad, shape, NULL, 2, NULL) == DETENT_OK);
  CHECK_ERROR(detent_observer_finalize(tensor, signed_scheme, &scale, &zero_point, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "NaN");
  detent_observer_free(o);
  detent_observer_free(other);
  detent_observer_free(tensor);
}

static void scales_of_every_method(void) {
  float x[120];
  float scales[4], again[4];
  int32_t zero_points[4];
  detent_scale_evidence e[4];
  detent_scale_options o;
  int method, i, calls = 0;
  detent_parallel parallel;
  parallel.run = &run_backwards;
  parallel.user = &calls;
  for (i = 0; i < 120; ++i) {
    x[i] = random_real() + 0.25F; /* never all zero */
  }
  for (i = 0; i < 4; ++i) {
    detent_scale_evidence_init(&e[i]);
  }
  for (method = 0; method <= (int)DETENT_SCALE_KL; ++method) {
    detent_scale_options_init(&o);
    o.method = (detent_scale_method)method;
    o.channels = 4;
    o.inner = 5;
    CHECK(detent_solve_scales(x, 120, &o, scales, zero_points, e, NULL) == DETENT_OK);
    CHECK(detent_solve_scales(x, 120, &o, again, zero_points, NULL, &parallel) == DETENT_OK);
    CHECK(memcmp(scales, again, sizeof scales) == 0);
    for (i = 0; i < 4; ++i) {
      float largest = 0.0F;
      int k;
      for (k = 0; k < 120; ++k) {
        if (k / 5 % 4 == i && fabsf(x[k]) > largest) {
          largest = fabsf(x[k]);
        }
      }
      CHECK(zero_points[i] == 0 && scales[i] > 0.0F && e[i].count == 30);
      CHECK(method != (int)DETENT_SCALE_ABSMAX || scales[i] == symmetric_scale(largest));
      /* A grid of which a quarter is unused has larger errors than one that fits. */
      CHECK(scales[i] <= largest / 127.0F * 1.25F);
    }
  }
  CHECK(calls > 0);
  /* The least error of all scales is no more than that of any candidate. */
  detent_scale_options_init(&o);
  o.scheme.qmin = -7;
  o.scheme.qmax = 7;
  CHECK(detent_solve_scales(x, 120, &o, scales, zero_points, e, NULL) == DETENT_OK);
  o.method = DETENT_SCALE_GRID_MSE;
  CHECK(detent_solve_scales(x, 120, &o, scales, zero_points, e + 1, NULL) == DETENT_OK);
  CHECK(e[0].objective <= e[1].objective * (1.0 + 1e-12) && e[0].lower_bound <= e[0].objective);

  CHECK_ERROR(detent_solve_scales(NULL, 120, &o, scales, zero_points, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null data");
  CHECK_ERROR(detent_solve_scales(x, 0, &o, scales, zero_points, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "no values");
  CHECK_ERROR(detent_solve_scales(x, 120, &o, NULL, zero_points, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null scales");
  CHECK_ERROR(detent_solve_scales(x, 120, &o, scales, NULL, NULL, NULL), DETENT_INVALID_ARGUMENT,
              "null zero points");
  o.steps = 0;
  CHECK(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL) ==
        DETENT_INVALID_ARGUMENT);
  o.method = DETENT_SCALE_LP_NORM;
  o.p = 0.5;
  CHECK_ERROR(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "0.5");
  o.method = (detent_scale_method)8;
  CHECK_ERROR(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "method 8");
  o.method = DETENT_SCALE_EXACT_MSE;
  o.channels = 7;
  CHECK_ERROR(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL),
              DETENT_SHAPE_MISMATCH, "120 elements");
  o.channels = WRAPS;
  o.inner = 2;
  CHECK_ERROR(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL),
              DETENT_SHAPE_MISMATCH, "120 elements");
  o.channels = 0;
  CHECK(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL) == DETENT_SHAPE_MISMATCH);
  o.channels = o.inner = 1;
  for (method = 0; method <= (int)DETENT_SCALE_KL; ++method) {
    o.method = (detent_scale_method)method;
    o.scheme.qmin = 8; /* above qmax */
    CHECK_ERROR(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL),
                DETENT_INVALID_ARGUMENT, "8..7 does not ascend");
    o.scheme.qmin = -7;
    x[3] = INFINITY;
    o.p = 2.0;
    o.steps = 3;
    CHECK(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL) ==
          DETENT_INVALID_ARGUMENT);
    x[3] = 1.0F;
  }
  o.method = DETENT_SCALE_EXACT_MSE;
  o.scheme.qmin = -2000;
  o.scheme.qmax = 2000;
  CHECK_ERROR(detent_solve_scales(x, 120, &o, scales, zero_points, NULL, NULL), DETENT_UNSUPPORTED,
              "level");
}

static void floats_of_every_format(void) {
  const detent_type types[6] = {DETENT_F32,      DETENT_F16,    DETENT_BF16,
                                DETENT_F8E4M3FN, DETENT_F8E5M2, DETENT_F64};
  /* 1, -0.5, 448: all formats have them. */
  const float x[3] = {1.0F, -0.5F, 448.0F};
  const double twice = 1.0 + 0x1p-11 + 0x1p-40;
  const float large[2] = {1e6F, NAN};
  unsigned char there[24], back[12];
  uint16_t half;
  int i, k;
  for (i = 0; i < 6; ++i) {
    for (k = 0; k < 6; ++k) {
      unsigned char between[24];
      CHECK(detent_convert_floats(DETENT_F32, x, 3, types[i], there, 0) == DETENT_OK);
      CHECK(detent_convert_floats(types[i], there, 3, types[k], between, 1) == DETENT_OK);
      CHECK(detent_convert_floats(types[k], between, 3, DETENT_F32, back, 0) == DETENT_OK);
      CHECK(memcmp(back, x, sizeof x) == 0);
    }
  }
  CHECK(detent_convert_floats(DETENT_F64, &twice, 1, DETENT_F16, &half, 0) == DETENT_OK);
  CHECK(half == 0x3C01); /* rounded once */
  CHECK(detent_convert_floats(DETENT_F32, large, 2, DETENT_F8E4M3FN, there, 1) == DETENT_OK);
  CHECK(there[0] == 0x7E && (there[1] & 0x7F) == 0x7F);
  CHECK(detent_convert_floats(DETENT_F32, large, 2, DETENT_F8E4M3FN, there, 0) == DETENT_OK);
  CHECK(there[0] == 0x7F);
  CHECK(detent_convert_floats(DETENT_F32, large, 1, DETENT_F8E5M2, there, 0) == DETENT_OK);
  CHECK(there[0] == 0x7C); /* infinity */
  CHECK(detent_convert_floats(DETENT_F32, NULL, 0, DETENT_F16, NULL, 0) == DETENT_OK);
  CHECK_ERROR(detent_convert_floats(DETENT_F32, NULL, 1, DETENT_F16, there, 0),
              DETENT_INVALID_ARGUMENT, "null data");
  CHECK_ERROR(detent_convert_floats(DETENT_F32, x, 1, DETENT_F16, NULL, 0), DETENT_INVALID_ARGUMENT,
              "null data");
  CHECK_ERROR(detent_convert_floats(DETENT_S8, x, 1, DETENT_F16, there, 0), DETENT_INVALID_ARGUMENT,
              "type 1");
  CHECK_ERROR(detent_convert_floats(DETENT_F32, x, 1, (detent_type)-1, there, 0),
              DETENT_INVALID_ARGUMENT, "type -1");
}

static void elements_of_8_bit_floats(void) {
  const float x[4] = {1.0F, -2.0F, 0.5F, 448.0F};
  const float scale[1] = {0.5F};
  const detent_type types[2] = {DETENT_F8E4M3FN, DETENT_F8E5M2};
  detent_element_params p;
  int i, k;
  detent_element_params_init(&p);
  p.scales = scale;
  for (i = 0; i < 2; ++i) {
    unsigned char narrow[4], back[4];
    int8_t q[4];
    CHECK(detent_convert_floats(DETENT_F32, x, 4, types[i], narrow, 1) == DETENT_OK);
    CHECK(detent_quantize_elements(types[i], narrow, 4, DETENT_S8, q, &p, NULL) == DETENT_OK);
    CHECK(q[0] == 2 && q[1] == -4 && q[2] == 1 && q[3] == 127);
    CHECK(detent_dequantize_elements(DETENT_S8, q, 4, types[i], back, &p, NULL) == DETENT_OK);
    for (k = 0; k < 3; ++k) {
      CHECK(back[k] == narrow[k]);
    }
  }
}

/* Heads of attention: each equals a product with packed weights. */
static void products_of_activations(void) {
  enum { heads = 3, m = 5, n = 7, k = 19 };
  uint8_t a[heads][m * k];
  int8_t b[heads][n * k]; /* transposed: n x k */
  int32_t sums[heads][m * n], expected[m * n];
  detent_activation_product p[heads];
  detent_epilogue e;
  detent_weight_options wo;
  detent_weights* w = NULL;
  int calls = 0, h;
  size_t i;
  const float scale = 1.0F;
  const int32_t zero_point = -3;
  detent_parallel parallel;
  parallel.run = &run_backwards;
  parallel.user = &calls;
  detent_epilogue_init(&e);
  e.lhs_zero_point = 11;
  for (h = 0; h < heads; ++h) {
    for (i = 0; i < sizeof a[h]; ++i) {
      a[h][i] = (uint8_t)random_bits();
    }
    for (i = 0; i < sizeof b[h]; ++i) {
      b[h][i] = (int8_t)random_bits();
    }
    detent_activation_product_init(&p[h]);
    p[h].m = m;
    p[h].n = n;
    p[h].k = k;
    p[h].a = a[h];
    p[h].a_row_stride = k;
    p[h].b = b[h];
    p[h].b_row_stride = 1;
    p[h].b_column_stride = k;
    p[h].b_zero_point = zero_point;
    p[h].c = sums[h];
    p[h].ldc = n;
    p[h].epilogue = &e;
  }
  CHECK(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, p, heads, &parallel) ==
        DETENT_OK);
  CHECK(calls > 0);
  detent_weight_options_init(&wo);
  wo.scales = &scale;
  wo.scale_count = 1;
  wo.zero_points = &zero_point;
  wo.zero_point_count = 1;
  for (h = 0; h < heads; ++h) {
    CHECK(detent_pack_weights(DETENT_S8, b[h], k, n, 1, k, &wo, &w) == DETENT_OK);
    CHECK(detent_gemm(DETENT_U8, a[h], k, m, w, DETENT_S32, expected, n, &e, NULL) == DETENT_OK);
    CHECK(memcmp(expected, sums[h], sizeof expected) == 0);
    detent_weights_free(w);
  }
  CHECK(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, NULL, 0, NULL) == DETENT_OK);
  CHECK_ERROR(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, NULL, 1, NULL),
              DETENT_INVALID_ARGUMENT, "null products");
  CHECK_ERROR(detent_multiply_activations(DETENT_F32, DETENT_S8, DETENT_S32, p, heads, NULL),
              DETENT_INVALID_ARGUMENT, "type 3");
  CHECK_ERROR(detent_multiply_activations(DETENT_U8, DETENT_F32, DETENT_S32, p, heads, NULL),
              DETENT_INVALID_ARGUMENT, "type 3");
  CHECK_ERROR(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_U4, p, heads, NULL),
              DETENT_INVALID_ARGUMENT, "type 8");
  p[1].ldc = n - 1;
  CHECK_ERROR(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, p, heads, NULL),
              DETENT_INVALID_ARGUMENT, "overwrite");
  p[1].ldc = n;
  p[2].size = sizeof p[2] - 8;
  CHECK_ERROR(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, p, heads, NULL),
              DETENT_INVALID_ARGUMENT, "product 2");
  p[2].size = sizeof p[2];
  p[0].b_scale = 0.0F;
  CHECK(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, p, heads, NULL) ==
        DETENT_INVALID_ARGUMENT);
  p[0].b_scale = 1.0F;
  p[0].b_zero_point = 128;
  CHECK_ERROR(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, p, heads, NULL),
              DETENT_INVALID_ARGUMENT, "128");
  p[0].b_zero_point = 0;
  p[0].k = WRAPS;
  CHECK(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, p, heads, NULL) ==
        DETENT_INVALID_ARGUMENT);
  p[0].k = k;
  p[0].b = NULL;
  CHECK(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, p, heads, NULL) ==
        DETENT_INVALID_ARGUMENT);
  p[0].b = b[0];
  p[0].a = NULL;
  CHECK(detent_multiply_activations(DETENT_U8, DETENT_S8, DETENT_S32, p, heads, NULL) ==
        DETENT_INVALID_ARGUMENT);
}

int main(int count, char** arguments) {
  begin(count, arguments);
  whole_tensors();
  channels();
  every_name();
  names_do_not_mix();
  options_of_saved_states();
  options_reach_observers();
  errors_of_observers();
  scales_of_every_method();
  floats_of_every_format();
  elements_of_8_bit_floats();
  on_every_target(&products_of_activations);
  return end();
}
