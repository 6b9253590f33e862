/* SPDX-License-Identifier: BSD-3-Clause
 * Convolutions of the C interface against plain loops.
 */
#include <math.h>

#include "c_check.h"

typedef struct layer {
  size_t out, in, groups, kernel_height, kernel_width;
  size_t batch, height, width, stride, dilation, pad_top, pad_left, pad_bottom, pad_right;
} layer;

static const layer layers[] = {
    {5, 3, 1, 3, 3, 2, 7, 6, 1, 1, 1, 1, 1, 1},     {16, 8, 1, 1, 1, 1, 5, 9, 1, 1, 0, 0, 0, 0},
    {12, 6, 3, 3, 2, 1, 8, 9, 2, 1, 1, 0, 0, 1},    {20, 20, 20, 3, 3, 2, 6, 7, 1, 1, 1, 1, 1, 1},
    {7, 4, 1, 1, 5, 1, 1, 30, 1, 2, 0, 4, 0, 4},    {33, 16, 1, 3, 3, 1, 9, 9, 2, 1, 0, 1, 2, 3},
    {18, 18, 18, 5, 5, 1, 9, 11, 2, 1, 2, 2, 2, 2}, {4, 4, 1, 3, 3, 1, 2, 2, 1, 1, 0, 0, 0, 0},
};
enum { layer_count = sizeof layers / sizeof *layers };

typedef struct convolution {
  const layer* l;
  size_t out_height, out_width, taps, inputs, outputs;
  uint8_t* input; /* channels last */
  int8_t* weights;
  float *scales, *bias;
  int32_t *zero_points, *biases;
  detent_filters* filters;
  detent_window window;
} convolution;

static size_t extent(size_t in, size_t kernel, size_t dilation, size_t stride) {
  const size_t reach = dilation * (kernel - 1) + 1;
  return in < reach ? 0 : (in - reach) / stride + 1;
}

/* The same filters, after they were saved and loaded; the given ones are freed. */
static detent_filters* saved_and_loaded(detent_filters* filters, const detent_filter_shape* shape) {
  detent_filters* loaded = NULL;
  detent_filter_shape found;
  unsigned char *bytes, *again;
  size_t size = 0, same = 0;
  CHECK(detent_filters_save(filters, NULL, 0, &size) == DETENT_OK && size > 64);
  bytes = allocate(size);
  again = allocate(size);
  CHECK(detent_filters_save(filters, bytes, size, &same) == DETENT_OK && same == size);
  CHECK(detent_filters_load(bytes, size, &loaded) == DETENT_OK);
  CHECK(detent_filters_save(loaded, again, size, &same) == DETENT_OK && same == size);
  CHECK(memcmp(bytes, again, size) == 0);
  detent_filter_shape_init(&found);
  CHECK(detent_filters_shape(loaded, &found) == DETENT_OK);
  CHECK(memcmp(&found, shape, sizeof found) == 0);
  found.size = 0;
  CHECK_ERROR(detent_filters_shape(loaded, &found), DETENT_INVALID_ARGUMENT, "initialized");
  detent_filters_free(filters);
  filters = NULL;
  bytes[size / 2] ^= 1;
  CHECK(detent_filters_load(bytes, size, &filters) == DETENT_BAD_FILE && filters == NULL);
  CHECK(detent_filters_load(bytes, size - 1, &filters) == DETENT_BAD_FILE);
  CHECK_ERROR(detent_filters_load(bytes, size, NULL), DETENT_INVALID_ARGUMENT, "null result");
  CHECK_ERROR(detent_filters_load(NULL, size, &filters), DETENT_INVALID_ARGUMENT, "null bytes");
  CHECK_ERROR(detent_filters_save(NULL, NULL, 0, &size), DETENT_INVALID_ARGUMENT, "null filters");
  CHECK_ERROR(detent_filters_save(loaded, NULL, 0, NULL), DETENT_INVALID_ARGUMENT, "null needed");
  CHECK_ERROR(detent_filters_shape(NULL, &found), DETENT_INVALID_ARGUMENT, "null filters");
  CHECK_ERROR(detent_filters_shape(loaded, NULL), DETENT_INVALID_ARGUMENT, "null shape");
  free(bytes), free(again);
  return loaded;
}

static convolution make_convolution(const layer* l, int with_zero_points) {
  convolution c;
  detent_filter_shape shape;
  detent_weight_options options;
  size_t i;
  const size_t depth = l->in / l->groups * l->kernel_height * l->kernel_width;
  c.l = l, c.filters = NULL;
  c.taps = l->kernel_height * l->kernel_width;
  c.out_height =
      extent(l->height + l->pad_top + l->pad_bottom, l->kernel_height, l->dilation, l->stride);
  c.out_width =
      extent(l->width + l->pad_left + l->pad_right, l->kernel_width, l->dilation, l->stride);
  c.inputs = l->batch * l->height * l->width * l->in;
  c.outputs = l->batch * c.out_height * c.out_width * l->out;
  c.input = allocate(c.inputs);
  c.weights = allocate(l->out * depth);
  c.scales = allocate(l->out * sizeof *c.scales);
  c.bias = allocate(l->out * sizeof *c.bias);
  c.zero_points = allocate(l->out * sizeof *c.zero_points);
  c.biases = allocate(l->out * sizeof *c.biases);
  for (i = 0; i < c.inputs; ++i) {
    c.input[i] = (uint8_t)(random_between(0, 3) == 0 ? 255 : random_between(0, 255));
  }
  for (i = 0; i < l->out * depth; ++i) {
    c.weights[i] = (int8_t)(random_between(0, 3) == 0 ? -128 : random_between(-128, 127));
  }
  for (i = 0; i < l->out; ++i) {
    c.scales[i] = ldexpf((float)random_between(64, 127), -13);
    c.bias[i] = random_real();
    c.zero_points[i] = with_zero_points ? random_between(-128, 127) : 0;
    c.biases[i] = random_between(-5000, 5000);
  }
  detent_filter_shape_init(&shape);
  CHECK(shape.groups == 1 && shape.kernel_height == 1 && shape.kernel_width == 1);
  shape.out_channels = l->out;
  shape.in_channels = l->in;
  shape.groups = l->groups;
  shape.kernel_height = l->kernel_height;
  shape.kernel_width = l->kernel_width;
  detent_weight_options_init(&options);
  options.scales = c.scales;
  options.bias = c.biases;
  options.zero_points = with_zero_points ? c.zero_points : NULL;
  options.scale_count = options.bias_count = l->out;
  options.zero_point_count = with_zero_points ? l->out : 0;
  CHECK(detent_pack_filters(&shape, c.weights, l->out * depth, &options, &c.filters) == DETENT_OK);
  c.filters = saved_and_loaded(c.filters, &shape);
  detent_window_init(&c.window);
  c.window.batch = l->batch;
  c.window.in_height = l->height;
  c.window.in_width = l->width;
  c.window.stride_height = c.window.stride_width = l->stride;
  c.window.dilation_height = c.window.dilation_width = l->dilation;
  c.window.pad_top = l->pad_top;
  c.window.pad_left = l->pad_left;
  c.window.pad_bottom = l->pad_bottom;
  c.window.pad_right = l->pad_right;
  return c;
}
static void free_convolution(convolution* c) {
  free(c->input), free(c->weights), free(c->scales), free(c->bias), free(c->zero_points);
  free(c->biases);
  detent_filters_free(c->filters);
}

/* The sum of an output; `input` is channels last. Outside of it lies the zero point. */
static int32_t sum_at(const convolution* c, const uint8_t* input, int32_t zero_point, size_t image,
                      size_t y, size_t x, size_t channel) {
  const layer* l = c->l;
  const size_t group_in = l->in / l->groups;
  const size_t first = channel / (l->out / l->groups) * group_in;
  int32_t sum = c->biases[channel];
  size_t kh, kw, i;
  for (kh = 0; kh < l->kernel_height; ++kh) {
    for (kw = 0; kw < l->kernel_width; ++kw) {
      const ptrdiff_t iy = (ptrdiff_t)(y * l->stride + kh * l->dilation) - (ptrdiff_t)l->pad_top;
      const ptrdiff_t ix = (ptrdiff_t)(x * l->stride + kw * l->dilation) - (ptrdiff_t)l->pad_left;
      if (iy < 0 || ix < 0 || iy >= (ptrdiff_t)l->height || ix >= (ptrdiff_t)l->width) {
        continue;
      }
      for (i = 0; i < group_in; ++i) {
        const size_t pixel = (image * l->height + (size_t)iy) * l->width + (size_t)ix;
        const int8_t w = c->weights[(channel * group_in + i) * c->taps + kh * l->kernel_width + kw];
        sum += (input[pixel * l->in + first + i] - zero_point) * (w - c->zero_points[channel]);
      }
    }
  }
  return sum;
}

static int32_t requantized(float steps, int32_t zero_point, int32_t qmin, int32_t qmax) {
  const float low = (float)(qmin - zero_point), high = (float)(qmax - zero_point);
  return (int32_t)rintf(steps < low ? low : steps > high ? high : steps) + zero_point;
}

/* [batch][pixels][channels] to [batch][channels][pixels]. */
static void to_planes(const void* from, size_t batch, size_t pixels, size_t channels, size_t size,
                      void* to) {
  size_t b, p, c;
  for (b = 0; b < batch; ++b) {
    for (p = 0; p < pixels; ++p) {
      for (c = 0; c < channels; ++c) {
        memcpy((char*)to + ((b * channels + c) * pixels + p) * size,
               (const char*)from + ((b * pixels + p) * channels + c) * size, size);
      }
    }
  }
}

static void every_output_and_layout(void) {
  static const detent_type types[] = {DETENT_S32, DETENT_F32, DETENT_BF16, DETENT_U8, DETENT_S8};
  size_t n, t;
  for (n = 0; n < layer_count; ++n) {
    convolution c = make_convolution(&layers[n], n % 2 != 0);
    const layer* l = c.l;
    const size_t pixels = c.out_height * c.out_width;
    uint8_t* planes = allocate(c.inputs);
    size_t height = 99, width = 99;
    to_planes(c.input, l->batch, l->height * l->width, l->in, 1, planes);
    CHECK(detent_convolution_size(c.filters, &c.window, &height, &width) == DETENT_OK);
    CHECK(height == c.out_height && width == c.out_width);
    for (t = 0; t < sizeof types / sizeof *types; ++t) {
      const detent_type type = types[t];
      const int is_real = type == DETENT_F32 || type == DETENT_BF16;
      const size_t size = type == DETENT_S32 || type == DETENT_F32 ? 4
                          : type == DETENT_BF16                    ? 2
                                                                   : 1;
      char* expected = allocate(c.outputs * size);
      char* planar = allocate(c.outputs * size);
      char* out = allocate(c.outputs * size);
      float* residual = allocate(c.outputs * sizeof *residual);
      float* planar_residual = allocate(c.outputs * sizeof *residual);
      detent_epilogue e;
      size_t i, mode;
      detent_epilogue_init(&e);
      e.lhs_scale = 0.0078125F;
      e.lhs_zero_point = 131;
      e.output_scale = 0.53F;
      e.output_zero_point = type == DETENT_S8 ? -4 : 9;
      e.upper = 6.25F;
      e.bias = is_real ? c.bias : NULL;
      if (type == DETENT_U8) {
        e.qmin = 9;
        e.qmax = 200;
      }
      for (i = 0; i < c.outputs; ++i) {
        const size_t channel = i % l->out, pixel = i / l->out;
        const int32_t sum = sum_at(&c, c.input, e.lhs_zero_point, pixel / pixels,
                                   pixel % pixels / c.out_width, pixel % c.out_width, channel);
        const float product = e.lhs_scale * c.scales[channel];
        if (type == DETENT_S32) {
          memcpy(expected + i * size, &sum, size);
        } else if (is_real) {
          float x = fmaf((float)sum, product, c.bias[channel]);
          if (n % 3 != 0) {
            residual[i] = random_real();
            x += residual[i];
          }
          x = x > e.upper ? e.upper : x;
          if (type == DETENT_F32) {
            memcpy(expected + i * size, &x, size);
          } else {
            const uint16_t rounded = float_to_bfloat16(x);
            memcpy(expected + i * size, &rounded, size);
          }
        } else {
          expected[i] =
              (char)requantized((float)sum * (product / e.output_scale), e.output_zero_point,
                                type == DETENT_U8 ? 9 : -128, type == DETENT_U8 ? 200 : 127);
        }
      }
      to_planes(expected, l->batch, pixels, l->out, size, planar);
      to_planes(residual, l->batch, pixels, l->out, sizeof *residual, planar_residual);
      for (mode = 0; mode < 16; ++mode) {
        const int is_signed = mode >= 8, from_planes = mode % 2 != 0,
                  into_planes = mode / 2 % 2 != 0;
        const uint8_t* in = from_planes ? planes : c.input;
        uint8_t* flipped = allocate(c.inputs);
        int calls = 0;
        const detent_parallel parallel = {&run_backwards, &calls};
        for (i = 0; i < c.inputs; ++i) {
          flipped[i] = in[i] ^ 0x80U;
        }
        e.lhs_zero_point = is_signed ? 3 : 131;
        e.residual = !is_real || n % 3 == 0 ? NULL : into_planes ? planar_residual : residual;
        c.window.input_layout = from_planes ? DETENT_NCHW : DETENT_NHWC;
        c.window.output_layout = into_planes ? DETENT_NCHW : DETENT_NHWC;
        memset(out, 0x5A, c.outputs * size);
        CHECK(detent_convolve(c.filters, &c.window, is_signed ? DETENT_S8 : DETENT_U8,
                              is_signed ? flipped : in, c.inputs, type, out, c.outputs, &e,
                              mode / 4 % 2 != 0 ? &parallel : NULL) == DETENT_OK);
        CHECK(memcmp(out, into_planes ? planar : expected, c.outputs * size) == 0);
        free(flipped);
      }
      c.window.input_layout = c.window.output_layout = DETENT_NHWC;
      free(expected);
      free(planar);
      free(out);
      free(residual);
      free(planar_residual);
    }
    free(planes);
    free_convolution(&c);
  }
}

/* Images that are quantized on the way: each from its own range, or all from one. */
static void dynamic_images(void) {
  size_t n, i;
  for (n = 0; n < 2 * (size_t)layer_count; ++n) {
    convolution c = make_convolution(&layers[n / 2], n % 3 == 0);
    const layer* l = c.l;
    const size_t pixels = c.out_height * c.out_width, image = c.inputs / l->batch;
    const int per_image = n % 2 != 0;
    float* x = allocate(c.inputs * sizeof *x);
    float* out = allocate(c.outputs * sizeof *out);
    float scales[2] = {1.0F, 1.0F};
    int32_t zero_points[2] = {0, 0};
    detent_dynamic_convolution_options o;
    int wrong = 0;
    for (i = 0; i < c.inputs; ++i) {
      x[i] = random_real() * (i < image ? 1.0F : 0.25F);
    }
    for (i = 0; i < l->batch; ++i) {
      if (per_image) {
        CHECK(detent_dynamic_quantize(x + i * image, image, DETENT_U8, c.input + i * image,
                                      &scales[i], &zero_points[i], NULL) == DETENT_OK);
      } else if (i == 0) {
        CHECK(detent_dynamic_quantize(x, c.inputs, DETENT_U8, c.input, &scales[0], &zero_points[0],
                                      NULL) == DETENT_OK);
      } else {
        scales[i] = scales[0];
        zero_points[i] = zero_points[0];
      }
    }
    detent_dynamic_convolution_options_init(&o);
    o.per_image = per_image;
    o.bias = c.bias;
    o.lower = -5.0F;
    CHECK(detent_dynamic_convolve(c.filters, &c.window, x, c.inputs, out, c.outputs, &o, NULL) ==
          DETENT_OK);
    for (i = 0; i < c.outputs; ++i) {
      const size_t channel = i % l->out, pixel = i / l->out, b = pixel / pixels;
      const int32_t sum = sum_at(&c, c.input, zero_points[b], b, pixel % pixels / c.out_width,
                                 pixel % c.out_width, channel);
      const float y = fmaf((float)sum, scales[b] * c.scales[channel], c.bias[channel]);
      wrong += out[i] != (y < -5.0F ? -5.0F : y);
    }
    CHECK(wrong == 0);
    if (c.inputs > 0 && c.outputs > 0) {
      x[0] = INFINITY;
      CHECK_ERROR(
          detent_dynamic_convolve(c.filters, &c.window, x, c.inputs, out, c.outputs, NULL, NULL),
          DETENT_INVALID_ARGUMENT, "is not finite");
    }
    free(x);
    free(out);
    free_convolution(&c);
  }
}

static void errors(void) {
  convolution c = make_convolution(&layers[0], 0);
  uint8_t* out = allocate(c.outputs);
  float value = 1.0F;
  const int32_t one = 1;
  size_t height = 0, width = 0;
  detent_filter_shape shape;
  detent_filters* filters = NULL;
  detent_epilogue e;
  detent_window w = c.window;
  detent_dynamic_convolution_options o;
  detent_filter_shape_init(&shape);
  CHECK_ERROR(detent_pack_filters(NULL, c.weights, 1, NULL, &filters), DETENT_INVALID_ARGUMENT,
              "null shape");
  CHECK_ERROR(detent_pack_filters(&shape, c.weights, 1, NULL, NULL), DETENT_INVALID_ARGUMENT,
              "null result");
  shape.in_channels = 3;
  shape.out_channels = 4;
  CHECK_ERROR(detent_pack_filters(&shape, c.weights, 11, NULL, &filters), DETENT_SHAPE_MISMATCH,
              "11 weights, not 12");
  CHECK_ERROR(detent_pack_filters(&shape, NULL, 12, NULL, &filters), DETENT_INVALID_ARGUMENT,
              "null weights");
  shape.groups = 2;
  CHECK_ERROR(detent_pack_filters(&shape, c.weights, 6, NULL, &filters), DETENT_SHAPE_MISMATCH,
              "do not divide into 2 groups");
  shape.groups = 0;
  CHECK(detent_pack_filters(&shape, c.weights, 6, NULL, &filters) == DETENT_SHAPE_MISMATCH);
  shape.size = 0;
  CHECK_ERROR(detent_pack_filters(&shape, c.weights, 12, NULL, &filters), DETENT_INVALID_ARGUMENT,
              "was it initialized?");
  CHECK(filters == NULL);

  CHECK_ERROR(detent_convolution_size(NULL, &w, &height, &width), DETENT_INVALID_ARGUMENT,
              "null filters");
  CHECK_ERROR(detent_convolution_size(c.filters, NULL, &height, &width), DETENT_INVALID_ARGUMENT,
              "null window");
  CHECK_ERROR(detent_convolution_size(c.filters, &w, NULL, &width), DETENT_INVALID_ARGUMENT,
              "null height");
  CHECK_ERROR(detent_convolution_size(c.filters, &w, &height, NULL), DETENT_INVALID_ARGUMENT,
              "null width");
  w.stride_width = 0;
  CHECK_ERROR(detent_convolution_size(c.filters, &w, &height, &width), DETENT_INVALID_ARGUMENT,
              "strides and dilations must be positive");
  w = c.window;
  w.output_layout = (detent_layout)2;
  CHECK_ERROR(detent_convolve(c.filters, &w, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "layout 2 is neither DETENT_NHWC nor DETENT_NCHW");
  w = c.window;
  w.size = 4;
  CHECK_ERROR(detent_convolve(c.filters, &w, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "was it initialized?");

  CHECK_ERROR(detent_convolve(NULL, &c.window, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null filters");
  CHECK_ERROR(detent_convolve(c.filters, NULL, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null window");
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs - 1, DETENT_U8,
                              out, c.outputs, NULL, NULL),
              DETENT_SHAPE_MISMATCH, "inputs");
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs + 1, NULL, NULL),
              DETENT_SHAPE_MISMATCH, "outputs");
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_U8, NULL, c.inputs, DETENT_U8, out,
                              c.outputs, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null data");
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs, DETENT_F16, out,
                              c.outputs, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "type 5 is not DETENT_S32");
  detent_epilogue_init(&e);
  e.lhs_zero_point = -1;
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, &e, NULL),
              DETENT_INVALID_ARGUMENT, "-1");
  detent_epilogue_init(&e);
  e.bias = &value;
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, &e, NULL),
              DETENT_UNSUPPORTED, "real biases");
  detent_epilogue_init(&e);
  e.lhs_zero_points = &one;
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, &e, NULL),
              DETENT_UNSUPPORTED, "are for detent_gemm");
  detent_epilogue_init(&e);
  e.lhs_scales = &value;
  CHECK(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                        c.outputs, &e, NULL) == DETENT_UNSUPPORTED);
  detent_epilogue_init(&e);
  e.residual = &value;
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, &e, NULL),
              DETENT_UNSUPPORTED, "residuals are for");
  detent_epilogue_init(&e);
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_S32, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, &e, NULL),
              DETENT_INVALID_ARGUMENT, "type 2 is not");
  e.lhs_zero_point = 131;
  CHECK_ERROR(detent_convolve(c.filters, &c.window, DETENT_S8, c.input, c.inputs, DETENT_U8, out,
                              c.outputs, &e, NULL),
              DETENT_INVALID_ARGUMENT, "131");
  detent_epilogue_init(&e);
  e.addend = &one;
  CHECK(detent_convolve(c.filters, &c.window, DETENT_U8, c.input, c.inputs, DETENT_U8, out,
                        c.outputs, &e, NULL) == DETENT_UNSUPPORTED);

  CHECK_ERROR(detent_dynamic_convolve(NULL, &c.window, &value, 1, &value, 1, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null filters");
  CHECK_ERROR(detent_dynamic_convolve(c.filters, NULL, &value, 1, &value, 1, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null window");
  CHECK(detent_dynamic_convolve(c.filters, &c.window, &value, 1, &value, c.outputs, NULL, NULL) ==
        DETENT_SHAPE_MISMATCH);
  detent_dynamic_convolution_options_init(&o);
  o.qmax = 256;
  {
    float* x = allocate(c.inputs * sizeof *x);
    float* y = allocate(c.outputs * sizeof *y);
    CHECK_ERROR(detent_dynamic_convolve(c.filters, &c.window, x, c.inputs, y, c.outputs, &o, NULL),
                DETENT_INVALID_ARGUMENT, "256");
    free(x);
    free(y);
  }
  detent_filters_free(NULL);
  free(out);
  free_convolution(&c);
}

/* A sum beyond 32 bits is an error where the output has 32 bits, and no other is. */
static void overflow(void) {
  enum { in = 66000 };
  int8_t* weights = allocate(in);
  uint8_t* input = allocate(in);
  int32_t sum = 7;
  float real = 0;
  detent_filter_shape shape;
  detent_filters* filters = NULL;
  detent_window w;
  memset(weights, -128, in);
  memset(input, 255, in);
  detent_filter_shape_init(&shape);
  shape.in_channels = in;
  shape.out_channels = 1;
  detent_window_init(&w);
  CHECK(detent_pack_filters(&shape, weights, in, NULL, &filters) == DETENT_OK);
  CHECK_ERROR(detent_convolve(filters, &w, DETENT_U8, input, in, DETENT_S32, &sum, 1, NULL, NULL),
              DETENT_OVERFLOW, "the sum -2154240000 of pixel 0, channel 0 does not fit 32 bits");
  CHECK(sum == 7);
  CHECK(detent_convolve(filters, &w, DETENT_U8, input, in, DETENT_F32, &real, 1, NULL, NULL) ==
        DETENT_OK);
  CHECK(real == -2154240000.0F);
  input[0] = 0;
  memset(input + 1000, 0, 1000);
  CHECK(detent_convolve(filters, &w, DETENT_U8, input, in, DETENT_S32, &sum, 1, NULL, NULL) ==
        DETENT_OK);
  CHECK(sum == -128 * 255 * (in - 1001));
  detent_filters_free(filters);
  free(weights);
  free(input);
}

int main(int count, char** arguments) {
  begin(count, arguments);
  errors();
  overflow();
  on_every_target(&every_output_and_layout);
  on_every_target(&dynamic_images);
  return end();
}
