/* SPDX-License-Identifier: BSD-3-Clause */
/* A plugin for the command line tool: the observer "trimmed", in C. Its range leaves out the values
 * beyond the 999 in 1000 with the least magnitude. The first pass over the data finds the largest
 * magnitude, the second one counts magnitudes in 1024 equal bins up to it.
 *
 *   cmake --build build/release --target example_09_observer_plugin
 *   cd examples/digits
 *   detent quantize digits.onnx -o out.onnx --calib calibration_images.npy \
 *     --plugin ../../build/release/examples/09_observer_plugin.so --method trimmed
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <detent/c_api_plugin.h>

enum { bin_count = 1024 };

typedef struct trimmed {
  float largest;  /* magnitude of the first pass */
  float smallest; /* least value: a range without negative values begins at 0 */
  uint64_t counts[bin_count];
  uint64_t total;
  size_t phase;
} trimmed;

static int fail(char* error, size_t capacity, const char* reason) {
  snprintf(error, capacity, "%s", reason);
  return 1;
}

static int make(const detent_observer_options* options, void** state, char* error,
                size_t capacity) {
  (void)options;
  *state = calloc(1, sizeof(trimmed));
  return *state != NULL ? 0 : fail(error, capacity, "not enough memory");
}

static int copy(const void* state, void** result, char* error, size_t capacity) {
  *result = malloc(sizeof(trimmed));
  if (*result == NULL) {
    return fail(error, capacity, "not enough memory");
  }
  memcpy(*result, state, sizeof(trimmed));
  return 0;
}

static int begin_phase(void* state, size_t phase, char* error, size_t capacity) {
  trimmed* t = state;
  (void)error;
  (void)capacity;
  t->phase = phase;
  return 0;
}

static int observe(void* state, const float* values, size_t count, char* error, size_t capacity) {
  trimmed* t = state;
  size_t i;
  (void)error;
  (void)capacity;
  for (i = 0; i < count; ++i) {
    const float magnitude = fabsf(values[i]);
    if (t->phase == 0) {
      t->largest = magnitude > t->largest ? magnitude : t->largest;
      t->smallest = values[i] < t->smallest ? values[i] : t->smallest;
    } else if (t->largest > 0.0F) {
      const double place = (double)magnitude / (double)t->largest * bin_count;
      ++t->counts[place < bin_count ? (size_t)place : bin_count - 1];
      ++t->total;
    }
  }
  return 0;
}

static int merge(void* state, const void* other, char* error, size_t capacity) {
  trimmed* t = state;
  const trimmed* o = other;
  size_t i;
  if (t->phase != o->phase || (t->phase > 0 && t->largest != o->largest)) {
    return fail(error, capacity, "states of different passes do not merge");
  }
  t->largest = o->largest > t->largest ? o->largest : t->largest;
  t->smallest = o->smallest < t->smallest ? o->smallest : t->smallest;
  for (i = 0; i < bin_count; ++i) {
    t->counts[i] += o->counts[i];
  }
  t->total += o->total;
  return 0;
}

static int finalize(const void* state, detent_scheme scheme, detent_plugin_result* result,
                    char* error, size_t capacity) {
  const trimmed* t = state;
  uint64_t kept = 0;
  size_t bins = 0;
  (void)scheme;
  if (t->phase == 0) {
    return fail(error, capacity, "the second pass is missing");
  }
  while (bins < bin_count && kept * 1000 < t->total * 999) {
    kept += t->counts[bins++];
  }
  result->upper = (float)((double)t->largest * (double)bins / bin_count);
  result->lower = t->smallest < -result->upper ? -result->upper : t->smallest;
  result->objective = t->total > 0 ? 1.0 - (double)kept / (double)t->total : 0.0;
  return 0;
}

static const detent_plugin_observer observer = {sizeof(detent_plugin_observer),
                                                "trimmed",
                                                2,
                                                make,
                                                copy,
                                                free,
                                                begin_phase,
                                                observe,
                                                merge,
                                                finalize};
static const detent_plugin_observer* const observers[] = {&observer};
static const detent_plugin plugin = {sizeof(detent_plugin), DETENT_PLUGIN_VERSION, 1, observers};

const detent_plugin* detent_plugin_get(void) { return &plugin; }
