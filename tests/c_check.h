/* SPDX-License-Identifier: BSD-3-Clause
 * What the tests of the C interface share: checks, random numbers, every CPU target, threads.
 */
#ifndef DETENT_TESTS_C_CHECK_H
#define DETENT_TESTS_C_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <detent/c_api.h>

static int failures = 0;
static uint32_t random_state = 1;

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s\n  target %s, last error: %s\n", __FILE__, __LINE__, #condition, \
              detent_active_target(), detent_last_error());                                       \
      ++failures;                                                                                 \
    }                                                                                             \
  } while (0)

/* A call that has to fail, and what its message has to name. */
#define CHECK_ERROR(call, status, text)                 \
  do {                                                  \
    CHECK((call) == (status));                          \
    CHECK(strstr(detent_last_error(), (text)) != NULL); \
  } while (0)

/* Backwards, on the calling thread: results do not depend on the order. */
static inline void run_backwards(void* user, size_t count, detent_task task, void* context) {
  ++*(int*)user;
  while (count > 0) {
    task(context, --count);
  }
}

static inline uint32_t random_bits(void) { /* xorshift */
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state;
}
static inline int32_t random_between(int32_t lowest, int32_t highest) {
  return lowest + (int32_t)(random_bits() % (uint32_t)(highest - lowest + 1));
}
/* A multiple of 1/64 within -8..8. */
static inline float random_real(void) { return (float)random_between(-512, 512) / 64.0F; }

static inline uint16_t float_to_bfloat16(float x) { /* half to even; not for NaN */
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

/* Memory of exactly that size; of none, one byte that nobody may read. */
static inline void* allocate(size_t size) {
  void* memory = malloc(size == 0 ? 1 : size);
  if (memory == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  memset(memory, 0, size == 0 ? 1 : size);
  return memory;
}

/* Runs a test on every target that this processor has; the last one stays. */
static inline void on_every_target(void (*test)(void)) {
  static const char* const names[] = {"portable", "avx2",        "avx_vnni",
                                      "avx512",   "avx512_vnni", "amx_int8"};
  size_t i, ran = 0;
  for (i = 0; i < sizeof names / sizeof *names; ++i) {
    const detent_status status = detent_set_target(names[i]);
    if (status == DETENT_OK) {
      CHECK(strcmp(detent_active_target(), names[i]) == 0);
      test();
      ++ran;
    } else { /* not compiled in, or not of this processor */
      CHECK(status == DETENT_UNSUPPORTED || status == DETENT_INVALID_ARGUMENT);
    }
  }
  CHECK(ran > 0);
}

/* The seed may be given: PROGRAM [SEED]. */
static void begin(int count, char** arguments) {
  if (count > 1) {
    random_state = (uint32_t)strtoul(arguments[1], NULL, 10);
    random_state = random_state == 0 ? 1 : random_state;
  }
  printf("detent %s, target %s, seed %lu\n", detent_version(), detent_active_target(),
         (unsigned long)random_state);
}
static int end(void) {
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

#endif /* DETENT_TESTS_C_CHECK_H */
