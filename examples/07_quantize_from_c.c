/* SPDX-License-Identifier: BSD-3-Clause
 * C: reads a network, quantizes it as a YAML text says, compares both, writes the quantized one.
 *
 *   07_quantize_from_c examples/digits/digits.onnx digits.int8.onnx
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <detent/c_api_graph.h>

enum { pixels = 64, classes = 10, samples = 16 };

/* Every function returns a status; the message says what was wrong with which argument. */
static int failed(const char* what, detent_status status) {
  if (status != DETENT_OK) {
    fprintf(stderr, "%s: %s: %s\n", what, detent_status_name(status), detent_last_error());
  }
  return status != DETENT_OK;
}

/* Prints how far the quantization is; a result other than 0 would end it. */
static int show(void* user, const char* step, size_t done, size_t total) {
  char* last = (char*)user;
  (void)done;
  (void)total;
  if (strncmp(last, step, 79) != 0) {
    strncpy(last, step, 79);
    printf("  %s\n", step);
  }
  return 0;
}

/* The scores of one image. */
static int run(const detent_model* model, const detent_tensor* image, float* scores) {
  detent_session* session = NULL;
  detent_results* results = NULL;
  detent_tensor y;
  int bad = failed("session", detent_session_create(model, NULL, NULL, &session)) ||
            failed("run", detent_session_run(session, image, 1, &results));
  detent_tensor_init(&y);
  bad = bad || failed("output", detent_results_tensor(results, 0, &y)) ||
        y.bytes != classes * sizeof(float);
  if (!bad) {
    memcpy(scores, y.data, y.bytes);
  }
  detent_results_free(results);
  detent_session_free(session);
  return bad;
}

int main(int count, char** arguments) {
  static const char options[] =
      "approach: static\n"
      "method: mse\n"
      "bias-correction: fast\n";
  static const int64_t shape[4] = {1, 1, 8, 8};
  static float images[samples][pixels];
  char last_step[80] = "";
  detent_tensor inputs[samples];
  detent_model *model = NULL, *quantized = NULL;
  detent_quantize_options o;
  float expected[classes], scores[classes], error = 0.0F, largest = 0.0F;
  int bad, i, k;
  if (count != 3) {
    fprintf(stderr, "usage: %s MODEL.onnx OUT.onnx\n", arguments[0]);
    return 2;
  }
  /* Bars at various places stand in for calibration images, of pixels 0..16. */
  for (i = 0; i < samples; ++i) {
    for (k = 0; k < pixels; ++k) {
      images[i][k] = k % 8 == i % 8 || k / 8 == i / 2 ? 16.0F : 0.0F;
    }
    detent_tensor_init(&inputs[i]);
    inputs[i].type = DETENT_F32;
    inputs[i].rank = 4;
    inputs[i].shape = shape;
    inputs[i].data = images[i];
    inputs[i].bytes = sizeof images[i];
  }
  detent_quantize_options_init(&o);
  o.progress = &show;
  o.user = last_step;
  bad = failed("read", detent_model_read(arguments[1], NULL, &model)) ||
        failed("quantize", detent_model_quantize(model, options, sizeof options - 1, inputs,
                                                 samples, &o, &quantized)) ||
        run(model, &inputs[3], expected) || run(quantized, &inputs[3], scores) ||
        failed("write", detent_model_write(quantized, arguments[2]));
  for (k = 0; !bad && k < classes; ++k) {
    error = fmaxf(error, fabsf(scores[k] - expected[k]));
    largest = fmaxf(largest, fabsf(expected[k]));
  }
  if (!bad) {
    printf("largest error %g, largest score %g\n", (double)error, (double)largest);
  }
  detent_model_free(quantized);
  detent_model_free(model);
  return bad || error > 0.1F * largest;
}
