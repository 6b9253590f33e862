/* SPDX-License-Identifier: BSD-3-Clause
 * The C interface of models: reads a network of handwritten digits, quantizes it in every approach,
 * runs and writes it.
 *
 *   c_api_graph_test DIGITS.onnx OUT.onnx
 */
#include <math.h>
#include <stddef.h>

#include <detent/c_api_graph.h>

#include "c_check.h"

enum { pixels = 64, samples = 8, classes = 10 };
#define WRAPS ((int64_t)1 << 62) /* times 4 is 2^64 */

static const char* file;
static const char* out;
static float images[samples][pixels];
static const int64_t image_shape[4] = {1, 1, 8, 8};

static detent_tensor image(int i) {
  detent_tensor t;
  detent_tensor_init(&t);
  t.type = DETENT_F32;
  t.rank = 4;
  t.shape = image_shape;
  t.data = images[i];
  t.bytes = sizeof images[i];
  return t;
}

/* The logits of the first image. */
static void logits_of(const detent_model* model, float* logits) {
  detent_session* session = NULL;
  detent_results* results = NULL;
  detent_tensor in = image(0), y;
  detent_tensor_init(&y);
  CHECK(detent_session_create(model, NULL, NULL, &session) == DETENT_OK);
  CHECK(detent_session_run(session, &in, 1, &results) == DETENT_OK);
  CHECK(detent_results_count(results) == 1);
  CHECK(detent_results_tensor(results, 0, &y) == DETENT_OK);
  CHECK(y.type == DETENT_F32 && y.rank == 2 && y.shape[0] == 1 && y.shape[1] == classes);
  CHECK(y.bytes == classes * sizeof(float));
  if (y.data != NULL && y.bytes == classes * sizeof(float)) {
    memcpy(logits, y.data, y.bytes);
  }
  detent_session_free(session);
  detent_results_free(results);
}

static void models(void) {
  detent_model *model = NULL, *again = NULL, *written = NULL;
  detent_value_info info;
  unsigned char* bytes;
  size_t size = 0, same = 0;
  float expected[classes], logits[classes];
  CHECK(detent_model_read(file, NULL, &model) == DETENT_OK);
  CHECK(detent_model_input_count(model) == 1 && detent_model_output_count(model) == 1);
  detent_value_info_init(&info);
  CHECK(detent_model_input(model, 0, &info) == DETENT_OK);
  CHECK(strcmp(info.name, "image") == 0 && info.type == DETENT_F32 && info.has_shape == 1);
  CHECK(info.rank == 4 && info.shape[0] == -1 && info.shape[1] == 1 && info.shape[3] == 8);
  CHECK(detent_model_output(model, 0, &info) == DETENT_OK);
  CHECK(strcmp(info.name, "logits") == 0);
  logits_of(model, expected);

  CHECK(detent_model_serialize(model, NULL, 0, &size) == DETENT_OK && size > 1000);
  bytes = (unsigned char*)allocate(size);
  CHECK(detent_model_serialize(model, bytes, size - 1, &same) == DETENT_OK && bytes[0] == 0);
  CHECK(detent_model_serialize(model, bytes, size, &same) == DETENT_OK && same == size);
  CHECK(detent_model_parse(bytes, size, NULL, &again) == DETENT_OK);
  logits_of(again, logits);
  CHECK(memcmp(expected, logits, sizeof logits) == 0);
  CHECK(detent_model_write(again, out) == DETENT_OK);
  CHECK(detent_model_read(out, NULL, &written) == DETENT_OK);
  logits_of(written, logits);
  CHECK(memcmp(expected, logits, sizeof logits) == 0);
  detent_model_free(written);
  detent_model_free(again);
  again = NULL;
  CHECK(detent_model_parse(bytes, size / 2, NULL, &again) == DETENT_BAD_FILE);
  free(bytes);

  CHECK_ERROR(detent_model_read(NULL, NULL, &again), DETENT_INVALID_ARGUMENT, "null path");
  CHECK_ERROR(detent_model_read(file, NULL, NULL), DETENT_INVALID_ARGUMENT, "null result");
  CHECK_ERROR(detent_model_read("no such folder/m.onnx", NULL, &again), DETENT_IO,
              "no such folder");
  CHECK_ERROR(detent_model_parse(NULL, 5, NULL, &again), DETENT_INVALID_ARGUMENT, "null bytes");
  CHECK_ERROR(detent_model_parse("x", 1, NULL, NULL), DETENT_INVALID_ARGUMENT, "null result");
  CHECK(detent_model_parse("not a model", 11, NULL, &again) == DETENT_BAD_FILE);
  CHECK_ERROR(detent_model_write(NULL, out), DETENT_INVALID_ARGUMENT, "null model");
  CHECK_ERROR(detent_model_write(model, NULL), DETENT_INVALID_ARGUMENT, "null path");
  CHECK(detent_model_write(model, "no such folder/m.onnx") == DETENT_IO);
  CHECK_ERROR(detent_model_serialize(NULL, NULL, 0, &size), DETENT_INVALID_ARGUMENT, "null model");
  CHECK_ERROR(detent_model_serialize(model, NULL, 0, NULL), DETENT_INVALID_ARGUMENT, "null needed");
  CHECK_ERROR(detent_model_serialize(model, NULL, size, &size), DETENT_INVALID_ARGUMENT,
              "null buffer");
  CHECK_ERROR(detent_model_input(model, 1, &info), DETENT_INVALID_ARGUMENT, "index 1 of 1");
  CHECK_ERROR(detent_model_output(model, SIZE_MAX, &info), DETENT_INVALID_ARGUMENT, "of 1");
  CHECK_ERROR(detent_model_input(NULL, 0, &info), DETENT_INVALID_ARGUMENT, "null model");
  CHECK_ERROR(detent_model_output(NULL, 0, &info), DETENT_INVALID_ARGUMENT, "null model");
  CHECK_ERROR(detent_model_input(model, 0, NULL), DETENT_INVALID_ARGUMENT, "null info");
  info.size = 0;
  CHECK_ERROR(detent_model_output(model, 0, &info), DETENT_INVALID_ARGUMENT, "was it initialized?");
  CHECK(detent_model_input_count(NULL) == 0 && detent_model_output_count(NULL) == 0);
  CHECK(again == NULL);
  detent_model_free(model);
  detent_model_free(NULL);
}

/* Structures of a program that was compiled with an older header. */
static void older_programs(void) {
  detent_model *model = NULL, *quantized = NULL;
  detent_graph_limits limits;
  detent_quantize_options o;
  detent_graph_limits_init(&limits);
  limits.max_tensor_bytes = 16; /* of outputs */
  CHECK(detent_model_read(file, &limits, &model) == DETENT_OK);
  detent_model_free(model);
  model = NULL;
  limits.size = offsetof(detent_graph_limits, max_constant_tensor_bytes); /* of constants, too */
  CHECK_ERROR(detent_model_read(file, &limits, &model), DETENT_BAD_FILE, "16");
  limits.max_tensor_bytes = 1 << 20;
  limits.max_constant_tensor_bytes = 16; /* which the older header does not have */
  CHECK(detent_model_read(file, &limits, &model) == DETENT_OK);
  detent_graph_limits_init(&limits);
  limits.max_constant_tensor_bytes = 16;
  CHECK_ERROR(detent_model_read(file, &limits, &quantized), DETENT_BAD_FILE, "16");
  detent_quantize_options_init(&o);
  o.size = offsetof(detent_quantize_options, outcome);
  memset(&o.outcome, 0xA5, sizeof o.outcome);
  CHECK(detent_model_quantize(model, "approach: dynamic", 17, NULL, 0, &o, &quantized) ==
        DETENT_OK);
  detent_model_free(quantized);
  detent_model_free(model);
}

/* Counts its calls and ends the job with the given one. */
typedef struct steps {
  int calls, last;
  size_t largest_total;
} steps;
static int count_steps(void* user, const char* step, size_t done, size_t total) {
  steps* s = (steps*)user;
  CHECK(step != NULL && step[0] != '\0');
  CHECK(total == 0 || done <= total);
  s->largest_total = total > s->largest_total ? total : s->largest_total;
  return ++s->calls == s->last;
}

static void quantization(void) {
  static const struct {
    const char* text;
    double largest_error; /* relative to the largest logit */
  } cases[] = {
      {"", 0.2},
      {"{\"approach\": \"static\", \"method\": \"minmax\"}", 0.2},
      {"approach: static\nformat: qoperator\nmethod: mse\nignored: {last-layer: true}\n", 0.2},
      {"approach: dynamic\n", 0.2},
      {"approach: weight-only\nbits: 8\nblock-size: 16\n", 0.05},
      {"approach: weight-only\nweight-algorithm: awq\n", 0.5},
  };
  detent_tensor in[samples];
  detent_model *model = NULL, *quantized = NULL;
  float expected[classes], logits[classes], largest = 0.0F;
  size_t i, k, size, float_size;
  for (i = 0; i < samples; ++i) {
    in[i] = image((int)i);
  }
  CHECK(detent_model_read(file, NULL, &model) == DETENT_OK);
  CHECK(detent_model_serialize(model, NULL, 0, &float_size) == DETENT_OK);
  logits_of(model, expected);
  for (k = 0; k < classes; ++k) {
    largest = fabsf(expected[k]) > largest ? fabsf(expected[k]) : largest;
  }
  for (i = 0; i < sizeof cases / sizeof *cases; ++i) {
    int calls = 0;
    steps s = {0, 0, 0};
    detent_parallel parallel;
    detent_quantize_options o;
    parallel.run = &run_backwards;
    parallel.user = &calls;
    detent_quantize_options_init(&o);
    o.parallel = &parallel;
    o.progress = &count_steps;
    o.user = &s;
    CHECK(detent_model_quantize(model, cases[i].text, strlen(cases[i].text), in, samples, &o,
                                &quantized) == DETENT_OK);
    CHECK(s.calls > 0);
    CHECK(detent_model_serialize(quantized, NULL, 0, &size) == DETENT_OK);
    CHECK(size < float_size);
    logits_of(quantized, logits);
    for (k = 0; k < classes; ++k) {
      CHECK(fabs((double)(logits[k] - expected[k])) <= cases[i].largest_error * (double)largest);
    }
    detent_model_free(quantized);
    quantized = NULL;
    s.calls = 0;
    s.last = 1;
    CHECK_ERROR(detent_model_quantize(model, cases[i].text, strlen(cases[i].text), in, samples, &o,
                                      &quantized),
                DETENT_CANCELLED, "progress function");
    CHECK(s.calls == 1 && quantized == NULL);
  }
  { /* Between two matrices, which are all that is counted where there are no samples. */
    static const char text[] = "approach: weight-only\nweight-algorithm: hqq\n";
    steps s = {0, 0, 0};
    detent_quantize_options o;
    detent_quantize_options_init(&o);
    o.progress = &count_steps;
    o.user = &s;
    CHECK(detent_model_quantize(model, text, sizeof text - 1, NULL, 0, &o, &quantized) ==
          DETENT_OK);
    CHECK(s.largest_total >= 1 && (size_t)s.calls == 1 + s.largest_total);
    detent_model_free(quantized);
    quantized = NULL;
    s.calls = 0;
    s.last = 2;
    CHECK(detent_model_quantize(model, text, sizeof text - 1, NULL, 0, &o, &quantized) ==
          DETENT_CANCELLED);
    CHECK(s.calls == 2 && quantized == NULL);
  }
  { /* In the middle of a search. */
    steps s = {0, 40, 0};
    detent_quantize_options o;
    detent_quantize_options_init(&o);
    o.progress = &count_steps;
    o.user = &s;
    CHECK(detent_model_quantize(model, NULL, 0, in, samples, &o, &quantized) == DETENT_CANCELLED);
    CHECK(s.calls == 40 && s.largest_total > 0 && quantized == NULL);
  }
  detent_model_free(model);
}

static void errors_of_quantization(void) {
  static const struct {
    const char* text;
    const char* message;
  } wrong[] = {
      {"approach: quick", "options:1: 'quick' is unknown in approach"},
      {"{\"aproach\": \"static\"}", "the nearest is 'approach'"},
      {"calib: x.npy", "'calib' is unknown"},
      {"approach: weight-only\nbits: 5", "bits 5, but 4 and 8"},
      {"bits: 9", "options:1: bits: expected 2 to 8, not '9'"},
      {"bits: [4, 8]", "bits takes one value, not 2"},
      {"bits: 4x", "not '4x'"},
      {"approach: static\npercentile: 40", "options:2: percentile"},
      {"budget: -1", "a positive number"},
      {"budget: nan", "a positive number"},
      {"reduce-range: perhaps", "true or false"},
      {"block-size: 24", "0, 16, 32"},
      {"method: minmaxx", "the nearest is 'minmax'"},
      {"weight-algorithm: gptqq", "the nearest is 'gptq'"},
      {"approach: dynamic\nformat: qdq", "approach dynamic has no format qdq"},
      {"approach: dynamic\nmethod: kl", "approach dynamic has no method"},
      {"approach: dynamic\ntensors: {image: {method: kl}}", "has no tensors"},
      {"approach: dynamic\noperators: {types: {Gemm: {method: kl}}}",
       "options: approach dynamic has no method for operators 'Gemm'"},
      {"approach: weight-only\noperators: {names: {fc: {granularity: per-tensor}}}",
       "approach weight-only has no granularity for operators 'fc'"},
      {"operators: {types: {Gemm: {block-size: 16}}}",
       "approach static has no block-size for operators 'Gemm'"},
      {"method: minmax\nbudget: 3", "it does not search"},
      {"ignored: {names: [nothing]}", "nothing"},
      {"a: [1", "options:"},
      {"- static", "not a map"},
      {"approach: static\napproach: static", "twice"},
  };
  detent_tensor in[samples];
  detent_model *model = NULL, *quantized = NULL;
  detent_quantize_options o;
  int64_t shape[4] = {1, 1, 8, 8};
  size_t i;
  for (i = 0; i < samples; ++i) {
    in[i] = image((int)i);
  }
  CHECK(detent_model_read(file, NULL, &model) == DETENT_OK);
  { /* Nested more deeply than a reader that calls itself can follow. */
    char* text = (char*)allocate(1 << 16);
    memset(text, '[', 1 << 16);
    CHECK_ERROR(detent_model_quantize(model, text, 1 << 16, in, samples, NULL, &quantized),
                DETENT_INVALID_ARGUMENT, "options:1: ");
    CHECK(strstr(detent_last_error(), "levels of nesting are too many") != NULL);
    free(text);
  }
  for (i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    CHECK_ERROR(detent_model_quantize(model, wrong[i].text, strlen(wrong[i].text), in, samples,
                                      NULL, &quantized),
                DETENT_INVALID_ARGUMENT, wrong[i].message);
  }
#define QUANTIZE() detent_model_quantize(model, "method: minmax", 14, in, 2, NULL, &quantized)
  CHECK_ERROR(detent_model_quantize(model, "approach: static", 16, NULL, 0, NULL, &quantized),
              DETENT_INVALID_ARGUMENT, "needs calibration samples");
  CHECK_ERROR(detent_model_quantize(NULL, "", 0, in, 1, NULL, &quantized), DETENT_INVALID_ARGUMENT,
              "null model");
  CHECK_ERROR(detent_model_quantize(model, "", 0, in, 1, NULL, NULL), DETENT_INVALID_ARGUMENT,
              "null result");
  CHECK_ERROR(detent_model_quantize(model, NULL, 1, in, 1, NULL, &quantized),
              DETENT_INVALID_ARGUMENT, "null text");
  CHECK_ERROR(detent_model_quantize(model, NULL, 0, NULL, 1, NULL, &quantized),
              DETENT_INVALID_ARGUMENT, "null tensors");
  detent_quantize_options_init(&o);
  o.size = 1;
  CHECK_ERROR(detent_model_quantize(model, NULL, 0, in, 1, &o, &quantized), DETENT_INVALID_ARGUMENT,
              "was it initialized?");
  in[1].size = sizeof in[1] + 8;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "size");
  in[1] = image(1);
  in[1].bytes -= 1;
  CHECK_ERROR(QUANTIZE(), DETENT_SHAPE_MISMATCH, "sample 1: input 'image': 255 bytes");
  in[1] = image(1);
  in[1].data = NULL;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "null data");
  in[1] = image(1);
  in[1].shape = NULL;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "null shape");
  in[1].shape = shape;
  in[1].rank = 65;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "rank 65");
  in[1].rank = 4;
  shape[0] = -1;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "sample 1: input 'image': shape [-1,1,8,8]");
  shape[0] = WRAPS;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "sample 1: input 'image': shape [4611");
  shape[0] = shape[1] = (int64_t)1 << 31;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "has too many elements");
  shape[1] = 1;
  shape[0] = 1;
  in[1].type = (detent_type)99;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "type 99");
  in[1].type = DETENT_S32;
  CHECK_ERROR(QUANTIZE(), DETENT_INVALID_ARGUMENT, "image");
  in[1] = image(1);
  images[1][3] = NAN;
  CHECK(QUANTIZE() == DETENT_INVALID_ARGUMENT);
  images[1][3] = 0.0F;
  CHECK(QUANTIZE() == DETENT_OK);
#undef QUANTIZE
  detent_model_free(quantized);
  detent_model_free(model);
}

/* Writes the values 2^k with a sign, as float16: what the model below multiplies. */
static void powers_as_float16(uint16_t* bits, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    bits[i] = (uint16_t)((i % 2 == 0 ? 0x3800 : 0xbc00) + (int)(i % 3) * 0x400);
  }
}
static double of_float16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double magnitude =
      exponent == 0 ? ldexp(bits & 1023, -24) : ldexp((bits & 1023) + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/* A model of float16 keeps the types of inputs and outputs, and its product is quantized. */
static void float16_models(void) {
  /* y = MatMul(x, w), all of float16, with x [1, 8] and w [8, 4]. Opset 17. */
  static const unsigned char product[] = {
      8,   8,   58, 141, 1,   10, 17,  10,  1,  120, 10,  1,  119, 18,  1,  121, 34,  6,  77,
      97,  116, 77, 117, 108, 18, 1,   103, 42, 75,  8,   8,  8,   4,   16, 10,  66,  1,  119,
      74,  64,  0,  189, 0,   56, 0,   184, 0,  61,  0,   52, 0,   186, 0,  60,  0,   0,  0,
      188, 0,   58, 0,   180, 0,  189, 0,   56, 0,   184, 0,  61,  0,   52, 0,   186, 0,  60,
      0,   0,   0,  188, 0,   58, 0,   180, 0,  189, 0,   56, 0,   184, 0,  61,  0,   52, 0,
      186, 0,   60, 0,   0,   0,  188, 0,   58, 90,  19,  10, 1,   120, 18, 14,  10,  12, 8,
      10,  18,  8,  10,  2,   8,  1,   10,  2,  8,   8,   98, 19,  10,  1,  121, 18,  14, 10,
      12,  8,   10, 18,  8,   10, 2,   8,   1,  10,  2,   8,  4,   66,  2,  16,  17};
  static const char* const settings[] = {"method: minmax", "approach: weight-only\nbits: 8\n"};
  const int64_t shape[2] = {1, 8};
  detent_model* model = NULL;
  uint16_t x[8];
  double expected[4];
  size_t i, k;
  powers_as_float16(x, 8);
  CHECK(detent_model_parse(product, sizeof product, NULL, &model) == DETENT_OK);
  for (i = 0; i < 3; ++i) {
    const char* text = i == 0 ? NULL : settings[i - 1];
    detent_model* quantized = NULL;
    detent_session* session = NULL;
    detent_results* results = NULL;
    detent_value_info info;
    detent_tensor in, y;
    detent_value_info_init(&info);
    detent_tensor_init(&in);
    detent_tensor_init(&y);
    in.type = DETENT_F16;
    in.rank = 2;
    in.shape = shape;
    in.data = x;
    in.bytes = sizeof x;
    if (text != NULL) {
      unsigned char* bytes;
      size_t size = 0, found = 0;
      detent_quantize_options o;
      detent_quantize_outcome outcome;
      detent_quantize_options_init(&o);
      o.outcome = &outcome;
      outcome.size = 0;
      CHECK_ERROR(detent_model_quantize(model, text, strlen(text), &in, 1, &o, &quantized),
                  DETENT_INVALID_ARGUMENT, "was it initialized?");
      CHECK(quantized == NULL);
      detent_quantize_outcome_init(&outcome);
      CHECK(detent_model_quantize(model, text, strlen(text), &in, 1, &o, &quantized) == DETENT_OK);
      CHECK(outcome.size == sizeof outcome && outcome.layers == 1 && outcome.not_run == 0);
      CHECK(outcome.activations == (i == 1 ? 1U : 0U)); /* the Cast at the end takes floats */
      CHECK(detent_model_serialize(quantized, NULL, 0, &size) == DETENT_OK && size > 20);
      bytes = (unsigned char*)allocate(size);
      CHECK(detent_model_serialize(quantized, bytes, size, &size) == DETENT_OK);
      for (k = 0; k + 16 <= size; ++k) {
        found +=
            memcmp(bytes + k, i == 1 ? "DequantizeLinear" : "MatMulNBits", i == 1 ? 16 : 11) == 0;
      }
      CHECK(found > 0);
      free(bytes);
    }
    CHECK(detent_model_input(text == NULL ? model : quantized, 0, &info) == DETENT_OK);
    CHECK(strcmp(info.name, "x") == 0 && info.type == DETENT_F16);
    CHECK(detent_model_output(text == NULL ? model : quantized, 0, &info) == DETENT_OK);
    CHECK(strcmp(info.name, "y") == 0 && info.type == DETENT_F16);
    CHECK(detent_session_create(text == NULL ? model : quantized, NULL, NULL, &session) ==
          DETENT_OK);
    CHECK(detent_session_run(session, &in, 1, &results) == DETENT_OK);
    CHECK(detent_results_tensor(results, 0, &y) == DETENT_OK);
    CHECK(y.type == DETENT_F16 && y.rank == 2 && y.shape[1] == 4 && y.bytes == 8);
    for (k = 0; k < 4 && y.bytes == 8; ++k) {
      const double value = of_float16(((const uint16_t*)y.data)[k]);
      expected[k] = i == 0 ? value : expected[k];
      CHECK(fabs(expected[k]) > 3.0 && fabs(value - expected[k]) < 0.2);
    }
    detent_results_free(results);
    detent_session_free(session);
    detent_model_free(quantized);
  }
  detent_model_free(model);
}

static void sessions(void) {
  detent_model* model = NULL;
  detent_session *session = NULL, *shared = NULL;
  detent_results *results = NULL, *same = NULL;
  detent_graph_limits limits;
  detent_tensor in = image(0), x, y;
  detent_parallel parallel;
  int calls = 0;
  const int64_t flat[2] = {1, 64};
  parallel.run = &run_backwards;
  parallel.user = &calls;
  detent_tensor_init(&x);
  detent_tensor_init(&y);
  CHECK(detent_model_read(file, NULL, &model) == DETENT_OK);
  CHECK(detent_session_create(model, NULL, &parallel, &session) == DETENT_OK);
  CHECK(detent_session_run(session, &in, 1, &results) == DETENT_OK);
  CHECK(detent_session_share(session, NULL, NULL, &shared) == DETENT_OK);
  detent_session_free(session);
  detent_model_free(model);
  CHECK(detent_session_run(shared, &in, 1, &same) == DETENT_OK);
  CHECK(detent_results_tensor(results, 0, &x) == DETENT_OK);
  CHECK(detent_results_tensor(same, 0, &y) == DETENT_OK);
  CHECK(x.bytes == y.bytes && memcmp(x.data, y.data, x.bytes) == 0);
  detent_results_free(same);
  same = NULL;

  CHECK_ERROR(detent_results_tensor(results, 1, &x), DETENT_INVALID_ARGUMENT, "index 1 of 1");
  CHECK_ERROR(detent_results_tensor(NULL, 0, &x), DETENT_INVALID_ARGUMENT, "null results");
  CHECK_ERROR(detent_results_tensor(results, 0, NULL), DETENT_INVALID_ARGUMENT, "null tensor");
  CHECK(detent_results_count(NULL) == 0);
  CHECK_ERROR(detent_session_run(shared, &in, 2, &same), DETENT_INVALID_ARGUMENT,
              "2 tensors for 1 inputs");
  CHECK_ERROR(detent_session_run(shared, NULL, 1, &same), DETENT_INVALID_ARGUMENT, "null tensors");
  CHECK_ERROR(detent_session_run(NULL, &in, 1, &same), DETENT_INVALID_ARGUMENT, "null session");
  CHECK_ERROR(detent_session_run(shared, &in, 1, NULL), DETENT_INVALID_ARGUMENT, "null result");
  in.rank = 2;
  in.shape = flat;
  CHECK_ERROR(detent_session_run(shared, &in, 1, &same), DETENT_SHAPE_MISMATCH, "image");
  in = image(0);
  in.type = DETENT_S32;
  CHECK_ERROR(detent_session_run(shared, &in, 1, &same), DETENT_INVALID_ARGUMENT, "image");
  in.type = DETENT_NO_TYPE;
  CHECK_ERROR(detent_session_run(shared, &in, 1, &same), DETENT_INVALID_ARGUMENT, "type -1");
  in = image(0);
  CHECK(same == NULL && detent_session_run(shared, &in, 1, &same) == DETENT_OK);
  detent_results_free(same);
  detent_results_free(results);
  detent_results_free(NULL);
  detent_session_free(shared);
  detent_session_free(NULL);

  session = shared = NULL;
  results = NULL;
  detent_graph_limits_init(&limits);
  limits.max_memory_bytes = 64;
  CHECK(detent_model_read(file, &limits, &model) == DETENT_OK);
  CHECK(detent_session_create(model, &limits, NULL, &session) == DETENT_OK);
  CHECK(detent_session_run(session, &in, 1, &results) == DETENT_BAD_FILE && results == NULL);
  CHECK_ERROR(detent_session_create(NULL, NULL, NULL, &shared), DETENT_INVALID_ARGUMENT,
              "null model");
  CHECK_ERROR(detent_session_create(model, NULL, NULL, NULL), DETENT_INVALID_ARGUMENT,
              "null result");
  CHECK_ERROR(detent_session_share(NULL, NULL, NULL, &shared), DETENT_INVALID_ARGUMENT,
              "null session");
  CHECK_ERROR(detent_session_share(session, NULL, NULL, NULL), DETENT_INVALID_ARGUMENT,
              "null result");
  limits.size = 0;
  CHECK_ERROR(detent_session_create(model, &limits, NULL, &shared), DETENT_INVALID_ARGUMENT,
              "was it initialized?");
  detent_model_free(model);
  model = NULL;
  detent_graph_limits_init(&limits);
  limits.max_nodes = 3;
  CHECK_ERROR(detent_model_read(file, &limits, &model), DETENT_BAD_FILE, "3");
  limits.size = offsetof(detent_graph_limits, max_nodes); /* an older program */
  CHECK(detent_model_read(file, &limits, &model) == DETENT_OK);
  detent_model_free(model);
  detent_session_free(session);
}

/* y = x, z = the floats of x: five elements of every type, two to a byte where they have 4 bits. */
static void types_of_tensors(void) {
  /* ONNX, with the numbers of the type of x and y left out. */
  static const unsigned char network[] = {
      0x08, 0x0a, 0x3a, 0x61, 0x0a, 0x10, 0x0a, 0x01, 'x',  0x12, 0x01, 'y',  0x22, 0x08,
      'I',  'd',  'e',  'n',  't',  'i',  't',  'y',  0x0a, 0x17, 0x0a, 0x01, 'x',  0x12,
      0x01, 'z',  0x22, 0x04, 'C',  'a',  's',  't',  0x2a, 0x09, 0x0a, 0x02, 't',  'o',
      0x18, 0x01, 0xa0, 0x01, 0x02, 0x12, 0x01, 'g',  0x5a, 0x0f, 0x0a, 0x01, 'x',  0x12,
      0x0a, 0x0a, 0x08, 0x08, 0x00, 0x12, 0x04, 0x0a, 0x02, 0x08, 0x05, 0x62, 0x0f, 0x0a,
      0x01, 'y',  0x12, 0x0a, 0x0a, 0x08, 0x08, 0x00, 0x12, 0x04, 0x0a, 0x02, 0x08, 0x05,
      0x62, 0x0f, 0x0a, 0x01, 'z',  0x12, 0x0a, 0x0a, 0x08, 0x08, 0x01, 0x12, 0x04, 0x0a,
      0x02, 0x08, 0x05, 0x42, 0x04, 0x0a, 0x00, 0x10, 0x15};
  static const int8_t s8[5] = {1, -8, 7, -1, 0};
  static const uint8_t u8[5] = {1, 8, 7, 200, 0}, s4[3] = {0x81, 0xf7, 0x00},
                       u4[3] = {0x81, 0xf7, 0x00}, boolean[5] = {1, 0, 1, 1, 0};
  static const int16_t s16[5] = {1, -800, 7, -1, 0};
  static const uint16_t u16[5] = {1, 800, 7, 65535, 0},
                        bf16[5] = {0x3f80, 0xc100, 0x40e0, 0xbf80, 0},
                        f16[5] = {0x3c00, 0xc800, 0x4700, 0xbc00, 0};
  static const int32_t s32[5] = {1, -800, 7, -65536, 0};
  static const uint32_t u32[5] = {1, 800, 7, 65536, 0};
  static const int64_t s64[5] = {1, -800, 7, -65536, 0};
  static const uint64_t u64[5] = {1, 800, 7, 65536, 0};
  static const float f32[5] = {1, -8, 7, -1, 0};
  static const double f64[5] = {1, -8, 7, -1, 0};
  static const struct {
    detent_type type;
    unsigned char onnx; /* TensorProto.DataType */
    const void* data;
    size_t bytes;
    float floats[5];
  } cases[] = {{DETENT_F32, 1, f32, 20, {1, -8, 7, -1, 0}},
               {DETENT_U8, 2, u8, 5, {1, 8, 7, 200, 0}},
               {DETENT_S8, 3, s8, 5, {1, -8, 7, -1, 0}},
               {DETENT_U16, 4, u16, 10, {1, 800, 7, 65535, 0}},
               {DETENT_S16, 5, s16, 10, {1, -800, 7, -1, 0}},
               {DETENT_S32, 6, s32, 20, {1, -800, 7, -65536, 0}},
               {DETENT_S64, 7, s64, 40, {1, -800, 7, -65536, 0}},
               {DETENT_BOOL, 9, boolean, 5, {1, 0, 1, 1, 0}},
               {DETENT_F16, 10, f16, 10, {1, -8, 7, -1, 0}},
               {DETENT_F64, 11, f64, 40, {1, -8, 7, -1, 0}},
               {DETENT_U32, 12, u32, 20, {1, 800, 7, 65536, 0}},
               {DETENT_U64, 13, u64, 40, {1, 800, 7, 65536, 0}},
               {DETENT_BF16, 16, bf16, 10, {1, -8, 7, -1, 0}},
               {DETENT_U4, 21, u4, 3, {1, 8, 7, 15, 0}},
               {DETENT_S4, 22, s4, 3, {1, -8, 7, -1, 0}}};
  const int64_t shape[1] = {5};
  size_t i;
  for (i = 0; i < sizeof cases / sizeof *cases; ++i) {
    unsigned char bytes[sizeof network];
    detent_model* model = NULL;
    detent_session* session = NULL;
    detent_results* results = NULL;
    detent_value_info info;
    detent_tensor x, y, z;
    memcpy(bytes, network, sizeof bytes);
    bytes[60] = bytes[77] = cases[i].onnx;
    detent_value_info_init(&info);
    detent_tensor_init(&x);
    detent_tensor_init(&y);
    detent_tensor_init(&z);
    x.type = cases[i].type;
    x.rank = 1;
    x.shape = shape;
    x.data = cases[i].data;
    x.bytes = cases[i].bytes;
    CHECK(detent_model_parse(bytes, sizeof bytes, NULL, &model) == DETENT_OK);
    CHECK(detent_model_input(model, 0, &info) == DETENT_OK && info.type == x.type);
    CHECK(detent_session_create(model, NULL, NULL, &session) == DETENT_OK);
    CHECK(detent_session_run(session, &x, 1, &results) == DETENT_OK);
    CHECK(detent_results_tensor(results, 0, &y) == DETENT_OK);
    CHECK(detent_results_tensor(results, 1, &z) == DETENT_OK);
    CHECK(y.type == x.type && y.rank == 1 && y.shape != NULL && y.shape[0] == 5);
    CHECK(y.bytes == x.bytes && y.data != NULL && memcmp(y.data, x.data, y.bytes) == 0);
    CHECK(z.bytes == 20 && z.data != NULL && memcmp(z.data, cases[i].floats, 20) == 0);
    detent_results_free(results);
    results = NULL;
    ++x.bytes;
    CHECK_ERROR(detent_session_run(session, &x, 1, &results), DETENT_SHAPE_MISMATCH, "input 'x': ");
    --x.bytes;
    x.type = x.type == DETENT_U8 ? DETENT_S8 : DETENT_U8;
    x.bytes = 5;
    x.data = u8;
    CHECK_ERROR(detent_session_run(session, &x, 1, &results), DETENT_INVALID_ARGUMENT, "'x' is");
    CHECK(results == NULL);
    detent_session_free(session);
    detent_model_free(model);
  }
}

/* Protocol buffers, in which ONNX models are stored. */
typedef struct message {
  unsigned char bytes[8192];
  size_t count;
} message;

static void put_number(message* m, size_t value) {
  for (; value >= 128; value >>= 7) {
    m->bytes[m->count++] = (unsigned char)(value | 128);
  }
  m->bytes[m->count++] = (unsigned char)value;
}
static void put_field(message* m, size_t field, size_t value) {
  put_number(m, field << 3);
  put_number(m, value);
}
static void put_bytes(message* m, size_t field, const void* data, size_t count) {
  put_number(m, field << 3 | 2);
  put_number(m, count);
  memcpy(m->bytes + m->count, data, count);
  m->count += count;
}
static void put_text(message* m, size_t field, const char* text) {
  put_bytes(m, field, text, strlen(text));
}
static void put_node(message* graph, const char* op, const char* const* inputs, size_t count,
                     const char* result) {
  message node;
  size_t i;
  node.count = 0;
  for (i = 0; i < count; ++i) {
    put_text(&node, 1, inputs[i]);
  }
  put_text(&node, 2, result);
  put_text(&node, 4, op);
  put_bytes(graph, 1, node.bytes, node.count);
}
/* A constant of `rows` x 1 elements, or of one element if that is 0; `type` is a DataType. */
static void put_constant(message* graph, const char* name, size_t type, size_t rows,
                         const void* data, size_t bytes) {
  message tensor;
  tensor.count = 0;
  if (rows != 0) {
    put_field(&tensor, 1, rows);
    put_field(&tensor, 1, 1);
  }
  put_field(&tensor, 2, type);
  put_text(&tensor, 8, name);
  put_bytes(&tensor, 9, data, bytes);
  put_bytes(graph, 5, tensor.bytes, tensor.count);
}
/* An input or output of float32[1, columns]. */
static void put_value(message* graph, size_t field, const char* name, size_t columns) {
  message dim, shape, tensor, type, value;
  dim.count = shape.count = tensor.count = type.count = value.count = 0;
  put_field(&dim, 1, 1);
  put_bytes(&shape, 1, dim.bytes, dim.count);
  dim.count = 0;
  put_field(&dim, 1, columns);
  put_bytes(&shape, 1, dim.bytes, dim.count);
  put_field(&tensor, 1, 1);
  put_bytes(&tensor, 2, shape.bytes, shape.count);
  put_bytes(&type, 1, tensor.bytes, tensor.count);
  put_text(&value, 1, name);
  put_bytes(&value, 2, type.bytes, type.count);
  put_bytes(graph, field, value.bytes, value.count);
}

/* A product of many quantized values: its sum is exact in integers, and rounded once. A sum of
 * floats would be rounded at each step beyond 2^24. */
static void integer_sessions(void) {
  enum { depth = 4096 };
  static const char* const quantize[] = {"x", "one", "zero"};
  static const char* const dequantize[] = {"xq", "one", "zero"};
  static const char* const weights[] = {"w", "one", "zero_s8"};
  static const char* const product[] = {"xd", "wd"};
  static int8_t w[depth];
  static float values[depth];
  static message graph, opset, model_bytes;
  const float one = 1.0F, expected = 132616832.0F; /* 255 * (127 * 4095 + 1), rounded to float */
  const unsigned char zero = 0;
  const int64_t shape[2] = {1, depth};
  detent_model* model = NULL;
  detent_session* session = NULL;
  detent_results* results = NULL;
  detent_tensor x, y;
  int i;
  for (i = 0; i < depth; ++i) {
    w[i] = i == 0 ? 1 : 127;
    values[i] = 255.0F;
  }
  graph.count = opset.count = model_bytes.count = 0;
  put_node(&graph, "QuantizeLinear", quantize, 3, "xq");
  put_node(&graph, "DequantizeLinear", dequantize, 3, "xd");
  put_node(&graph, "DequantizeLinear", weights, 3, "wd");
  put_node(&graph, "MatMul", product, 2, "y");
  put_text(&graph, 2, "g");
  put_constant(&graph, "one", 1, 0, &one, sizeof one);
  put_constant(&graph, "zero", 2, 0, &zero, 1);
  put_constant(&graph, "zero_s8", 3, 0, &zero, 1);
  put_constant(&graph, "w", 3, depth, w, sizeof w);
  put_value(&graph, 11, "x", depth);
  put_value(&graph, 12, "y", 1);
  put_field(&model_bytes, 1, 8);
  put_bytes(&model_bytes, 7, graph.bytes, graph.count);
  put_text(&opset, 1, "");
  put_field(&opset, 2, 13);
  put_bytes(&model_bytes, 8, opset.bytes, opset.count);

  detent_tensor_init(&x);
  detent_tensor_init(&y);
  x.type = DETENT_F32;
  x.rank = 2;
  x.shape = shape;
  x.data = values;
  x.bytes = sizeof values;
  CHECK(detent_model_parse(model_bytes.bytes, model_bytes.count, NULL, &model) == DETENT_OK);
  CHECK(detent_session_create(model, NULL, NULL, &session) == DETENT_OK);
  CHECK(detent_session_run(session, &x, 1, &results) == DETENT_OK);
  CHECK(detent_results_tensor(results, 0, &y) == DETENT_OK);
  CHECK(y.bytes == sizeof expected && memcmp(y.data, &expected, sizeof expected) == 0);
  detent_results_free(results);
  detent_session_free(session);
  detent_model_free(model);
}

int main(int count, char** arguments) {
  int i, k;
  if (count != 3) {
    fprintf(stderr, "usage: c_api_graph_test DIGITS.onnx OUT.onnx\n");
    return 2;
  }
  file = arguments[1];
  out = arguments[2];
  begin(1, arguments);
  for (i = 0; i < samples; ++i) {
    for (k = 0; k < pixels; ++k) {
      images[i][k] = (float)(random_bits() % 17) / 16.0F;
    }
  }
  models();
  on_every_target(&sessions);
  quantization();
  older_programs();
  errors_of_quantization();
  float16_models();
  types_of_tensors();
  on_every_target(&integer_sessions);
  return end();
}
