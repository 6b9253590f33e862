/* SPDX-License-Identifier: BSD-3-Clause
 * Element-wise functions of the C interface against plain loops.
 */
#include <math.h>

#include "c_check.h"

typedef struct integer_type {
  detent_type type;
  int32_t lowest, highest;
  int bits;
} integer_type;
static const integer_type integers[] = {
    {DETENT_U8, 0, 255, 8},
    {DETENT_S8, -128, 127, 8},
    {DETENT_U16, 0, 65535, 16},
    {DETENT_S16, -32768, 32767, 16},
    {DETENT_U4, 0, 15, 4},
    {DETENT_S4, -8, 7, 4},
    {DETENT_S32, INT32_MIN, INT32_MAX, 32},
};
enum { integer_count = sizeof integers / sizeof *integers };
static const detent_type reals[] = {DETENT_F32, DETENT_F16, DETENT_BF16};

static int32_t load_integer(const void* data, integer_type t, size_t i) {
  const unsigned char* bytes = data;
  int16_t s16;
  uint16_t u16;
  int32_t s32;
  switch (t.type) {
    case DETENT_U8:
      return bytes[i];
    case DETENT_S8:
      return (int8_t)bytes[i];
    case DETENT_U16:
      memcpy(&u16, bytes + 2 * i, 2);
      return u16;
    case DETENT_S16:
      memcpy(&s16, bytes + 2 * i, 2);
      return s16;
    case DETENT_S32:
      memcpy(&s32, bytes + 4 * i, 4);
      return s32;
    default: {
      const int32_t code = bytes[i / 2] >> (i % 2 * 4) & 0xF;
      return t.type == DETENT_S4 && code > 7 ? code - 16 : code;
    }
  }
}
static size_t bytes_of(integer_type t, size_t n) { return (n * (size_t)t.bits + 7) / 8; }

/* Reals that all three formats hold: of 1 + 7 significant bits, NaN and infinities. */
static float held_by_all(void) {
  switch (random_between(0, 40)) {
    case 0:
      return (float)NAN;
    case 1:
      return (float)INFINITY;
    case 2:
      return (float)-INFINITY;
    default:
      return ldexpf((float)random_between(-255, 255), random_between(-8, 6));
  }
}
static float load_real(const void* data, detent_type type, size_t i) {
  float x;
  uint16_t half;
  if (type == DETENT_F32) {
    memcpy(&x, (const char*)data + 4 * i, 4);
    return x;
  }
  memcpy(&half, (const char*)data + 2 * i, 2);
  if (type == DETENT_BF16) {
    const uint32_t wide = (uint32_t)half << 16;
    memcpy(&x, &wide, 4);
    return x;
  }
  {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    x = exponent == 31  ? (mantissa != 0 ? (float)NAN : (float)INFINITY)
        : exponent == 0 ? ldexpf((float)mantissa, -24)
                        : ldexpf((float)(mantissa + 1024), exponent - 25);
    return (half & 0x8000U) != 0 ? -x : x;
  }
}
/* x is one that all formats hold. */
static void store_real(void* data, detent_type type, size_t i, float x) {
  uint32_t bits;
  uint16_t half;
  memcpy(&bits, &x, 4);
  if (type == DETENT_F32) {
    memcpy((char*)data + 4 * i, &x, 4);
    return;
  }
  half = (uint16_t)(bits >> 16);
  if (type == DETENT_F16) {
    int exponent = 0;
    const uint16_t sign = half & 0x8000U;
    if (isnan(x)) {
      half = 0x7E00;
    } else if (isinf(x)) {
      half = sign | 0x7C00U;
    } else if (x == 0.0F) {
      half = sign;
    } else {
      const float fraction = frexpf(fabsf(x), &exponent);
      half = (uint16_t)(sign | (unsigned)(exponent + 14) << 10 |
                        (unsigned)(fraction * 2048.0F - 1024.0F));
    }
  }
  memcpy((char*)data + 2 * i, &half, 2);
}
/* The step between neighbours of x in a format is 2^(exponent - bits). */
static float rounded_to(float x, detent_type type) {
  int exponent;
  const int bits = type == DETENT_F32 ? 24 : type == DETENT_F16 ? 11 : 8;
  const int smallest = type == DETENT_F16 ? -13 : -125;
  float largest;
  if (type == DETENT_F32 || x == 0.0F) {
    return x;
  }
  (void)frexpf(x, &exponent);
  exponent = exponent < smallest ? smallest : exponent;
  x = ldexpf(rintf(ldexpf(x, bits - exponent)), exponent - bits);
  largest = type == DETENT_F16 ? 65504.0F : INFINITY;
  return fabsf(x) > largest ? (x < 0.0F ? -INFINITY : INFINITY) : x;
}

static int32_t to_grid(float steps, int32_t zero_point, int32_t qmin, int32_t qmax) {
  const float low = (float)(qmin - zero_point), high = (float)(qmax - zero_point);
  if (isnan(steps)) {
    return zero_point;
  }
  return (int32_t)rintf(steps < low ? low : steps > high ? high : steps) + zero_point;
}
static int same(float x, float y) { return x == y || (isnan(x) && isnan(y)); }

/* outer, channels, inner */
static const size_t shapes[][3] = {{1, 1, 1},  {1, 1, 77}, {3, 5, 1}, {2, 3, 17},
                                   {1, 9, 33}, {7, 40, 1}, {0, 3, 4}, {2, 2, 1000}};
enum { shape_count = sizeof shapes / sizeof *shapes };

typedef struct parameters {
  size_t n, channels, inner;
  float* scales;
  int32_t *zero_points, *bias;
  detent_element_params given;
} parameters;

static parameters make_parameters(const size_t* shape, int32_t lowest, int32_t highest) {
  parameters p;
  size_t i;
  p.channels = shape[1], p.inner = shape[2], p.n = shape[0] * shape[1] * shape[2];
  p.scales = allocate(p.channels * sizeof *p.scales);
  p.zero_points = allocate(p.channels * sizeof *p.zero_points);
  p.bias = allocate(p.channels * sizeof *p.bias);
  for (i = 0; i < p.channels; ++i) {
    p.scales[i] = ldexpf((float)random_between(64, 127), random_between(-14, -8));
    p.zero_points[i] = random_between(lowest, highest);
    p.bias[i] = random_between(-1000, 1000);
  }
  detent_element_params_init(&p.given);
  CHECK(p.given.channels == 1 && p.given.inner == 1 && p.given.qmin > p.given.qmax);
  p.given.scales = p.scales;
  p.given.zero_points = p.zero_points;
  p.given.channels = p.channels;
  p.given.inner = p.inner;
  return p;
}
static void free_parameters(parameters* p) { free(p->scales), free(p->zero_points), free(p->bias); }
static size_t channel_of(const parameters* p, size_t i) { return i / p->inner % p->channels; }

static void quantize_every_type(void) {
  size_t s, t, r, i;
  for (s = 0; s < shape_count; ++s) {
    for (t = 0; t + 1 < integer_count; ++t) {
      const integer_type type = integers[t];
      const int narrow = (s + t) % 2 != 0; /* a grid inside of the type */
      const int32_t qmin = type.lowest + narrow, qmax = type.highest - 2 * narrow;
      parameters p = make_parameters(shapes[s], qmin, qmax);
      unsigned char* q = allocate(bytes_of(type, p.n) + 1);
      float* y = allocate(p.n * sizeof *y);
      if (narrow) {
        p.given.qmin = qmin;
        p.given.qmax = qmax;
      }
      for (r = 0; r < 3; ++r) {
        int calls = 0, wrong = 0;
        const detent_parallel parallel = {&run_backwards, &calls};
        void* x = allocate(p.n * 4);
        for (i = 0; i < p.n; ++i) {
          store_real(x, reals[r], i, held_by_all());
        }
        memset(q, 0x5A, bytes_of(type, p.n) + 1);
        CHECK(detent_quantize_elements(reals[r], x, p.n, type.type, q, &p.given,
                                       r == 1 ? &parallel : NULL) == DETENT_OK);
        for (i = 0; i < p.n; ++i) {
          const size_t c = channel_of(&p, i);
          wrong += load_integer(q, type, i) !=
                   to_grid(load_real(x, reals[r], i) / p.scales[c], p.zero_points[c], qmin, qmax);
        }
        CHECK(wrong == 0);
        CHECK(q[bytes_of(type, p.n)] == 0x5A);
        if (reals[r] == DETENT_F32) { /* and back in one step */
          CHECK(detent_fake_quantize(x, p.n, type.type, y, &p.given) == DETENT_OK);
          for (i = 0; i < p.n; ++i) {
            const size_t c = channel_of(&p, i);
            wrong += y[i] != (float)(load_integer(q, type, i) - p.zero_points[c]) * p.scales[c];
          }
          CHECK(wrong == 0);
        }
        free(x);
      }
      free(q);
      free(y);
      free_parameters(&p);
    }
  }
}

static void dequantize_every_type(void) {
  size_t s, t, r, i;
  for (s = 0; s < shape_count; ++s) {
    for (t = 0; t < integer_count; ++t) {
      const integer_type type = integers[t];
      const int is_bias = type.type == DETENT_S32;
      parameters p =
          make_parameters(shapes[s], is_bias ? 0 : type.lowest, is_bias ? 0 : type.highest);
      unsigned char* q = allocate(bytes_of(type, p.n));
      if (is_bias) {
        p.given.zero_points = NULL;
      }
      for (i = 0; i < bytes_of(type, p.n); ++i) {
        q[i] = (unsigned char)(random_between(0, 4) == 0 ? 255 : random_between(0, 255));
      }
      for (r = 0; r < 3; ++r) {
        int wrong = 0;
        void* x = allocate(p.n * 4);
        CHECK(detent_dequantize_elements(type.type, q, p.n, reals[r], x, &p.given, NULL) ==
              DETENT_OK);
        for (i = 0; i < p.n; ++i) {
          const size_t c = channel_of(&p, i);
          const float exact =
              (float)((int64_t)load_integer(q, type, i) - p.zero_points[c]) * p.scales[c];
          wrong += !same(load_real(x, reals[r], i), rounded_to(exact, reals[r]));
        }
        CHECK(wrong == 0);
        free(x);
      }
      free(q);
      free_parameters(&p);
    }
  }
}

static void requantize_every_type(void) {
  size_t s, t, i;
  for (s = 0; s < shape_count; ++s) {
    for (t = 0; t < 4; ++t) { /* of 8 and 16 bits */
      const integer_type type = integers[t];
      parameters p = make_parameters(shapes[s], type.lowest, type.highest);
      int32_t* acc = allocate(p.n * sizeof *acc);
      unsigned char* q = allocate(bytes_of(type, p.n));
      int wrong = 0;
      const int with_bias = (s + t) % 2 != 0;
      p.given.bias = with_bias ? p.bias : NULL;
      for (i = 0; i < p.n; ++i) {
        acc[i] = random_between(0, 9) == 0 ? INT32_MAX : random_between(-200000, 200000);
      }
      CHECK(detent_requantize(acc, p.n, type.type, q, &p.given, NULL) == DETENT_OK);
      for (i = 0; i < p.n; ++i) {
        const size_t c = channel_of(&p, i);
        const uint32_t sum = (uint32_t)acc[i] + (with_bias ? (uint32_t)p.bias[c] : 0U);
        int32_t wrapped;
        memcpy(&wrapped, &sum, sizeof wrapped);
        wrong += load_integer(q, type, i) !=
                 to_grid((float)wrapped * p.scales[c], p.zero_points[c], type.lowest, type.highest);
      }
      CHECK(wrong == 0);
      free(acc);
      free(q);
      free_parameters(&p);
    }
  }
}

static void rows(void) {
  enum { m = 5, k = 70, ldx = 75, ldq = 72 };
  float x[m * ldx], scales[m];
  unsigned char q[m * ldq];
  int32_t zero_points[m], sums[m];
  int mode, i, j;
  for (i = 0; i < m * ldx; ++i) {
    x[i] = random_real() - 2.0F;
  }
  for (mode = 0; mode < 4; ++mode) {
    const int is_signed = mode % 2, symmetric = mode / 2;
    const int32_t qmin = is_signed ? -128 + symmetric : 0, qmax = is_signed ? 127 : 255;
    int wrong = 0;
    memset(q, 0x5A, sizeof q);
    CHECK(detent_dynamic_quantize_rows(x, ldx, m, k, is_signed ? DETENT_S8 : DETENT_U8, symmetric,
                                       q, ldq, scales, zero_points, sums, NULL) == DETENT_OK);
    for (i = 0; i < m; ++i) {
      float lower = 0.0F, upper = 0.0F, scale = 0.0F;
      int32_t zero_point = 0, sum = 0;
      for (j = 0; j < k; ++j) {
        lower = x[i * ldx + j] < lower ? x[i * ldx + j] : lower;
        upper = x[i * ldx + j] > upper ? x[i * ldx + j] : upper;
      }
      CHECK(detent_params_from_range(lower, upper, qmin, qmax, symmetric, &scale, &zero_point) ==
            DETENT_OK);
      /* The grid covers the range, and not much more. */
      if (symmetric) {
        CHECK(zero_point == (is_signed ? 0 : 128));
        CHECK(scale * 127.0F >= -lower && scale * 126.99F < (-lower > upper ? -lower : upper));
      } else {
        CHECK(scale >= (upper - lower) / 255.0F && scale < (upper - lower) / 254.99F);
        CHECK(zero_point == qmin + (int32_t)rint(-(double)lower / scale));
      }
      CHECK(scales[i] == scale && zero_points[i] == zero_point);
      for (j = 0; j < ldq; ++j) {
        const unsigned char byte = q[i * ldq + j];
        const int32_t value = is_signed ? (int8_t)byte : byte;
        if (j >= k) {
          wrong += byte != 0x5A;
        } else {
          wrong += value != to_grid(x[i * ldx + j] / scale, zero_point, qmin, qmax);
          sum += value;
        }
      }
      CHECK(sums[i] == sum);
    }
    CHECK(wrong == 0);
  }
  CHECK(detent_dynamic_quantize_rows(x, ldx, m, k, DETENT_U8, 0, q, ldq, scales, zero_points, NULL,
                                     NULL) == DETENT_OK);
}

static void errors(void) {
  const float x[4] = {1.0F, 2.0F, 3.0F, (float)INFINITY};
  const float bad_scales[2] = {1.0F, 0.0F}, scales[2] = {1.0F, 2.0F};
  const int32_t acc[4] = {1, 2, 3, 4}, zero_points[2] = {0, 300};
  uint8_t q[4] = {7, 7, 7, 7};
  float y[4], scale = 0.0F;
  int32_t zero_point = 0;
  detent_element_params p;
  detent_element_params_init(&p);
  CHECK_ERROR(detent_quantize_elements(DETENT_F32, x, 4, DETENT_U8, q, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null parameters");
  CHECK_ERROR(detent_quantize_elements(DETENT_F32, x, 4, DETENT_U8, q, &p, NULL),
              DETENT_INVALID_ARGUMENT, "null scales");
  p.scales = scales;
  CHECK_ERROR(
      detent_quantize_elements(DETENT_S32, x, 4, DETENT_U8, q, &p, NULL), DETENT_INVALID_ARGUMENT,
      "type 2 is not DETENT_F32, DETENT_F16, DETENT_BF16, DETENT_F8E4M3FN or DETENT_F8E5M2");
  CHECK_ERROR(detent_quantize_elements(DETENT_F32, x, 4, DETENT_S32, q, &p, NULL),
              DETENT_INVALID_ARGUMENT, "type 2 is not DETENT_U8");
  CHECK(detent_quantize_elements(DETENT_F32, NULL, 4, DETENT_U8, q, &p, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_quantize_elements(DETENT_F32, x, 4, DETENT_U8, NULL, &p, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_quantize_elements(DETENT_F32, x, 4, DETENT_U4, NULL, &p, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_dequantize_elements(DETENT_U8, NULL, 4, DETENT_F32, y, &p, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(detent_dequantize_elements(DETENT_U8, q, 4, DETENT_F32, NULL, &p, NULL) ==
        DETENT_INVALID_ARGUMENT);
  CHECK_ERROR(detent_dequantize_elements(DETENT_F32, q, 4, DETENT_F32, y, &p, NULL),
              DETENT_INVALID_ARGUMENT, "type 3 is not DETENT_U8");
  CHECK_ERROR(detent_dequantize_elements(DETENT_U8, q, 4, DETENT_U8, y, &p, NULL),
              DETENT_INVALID_ARGUMENT, "type 0 is not DETENT_F32");
  CHECK_ERROR(detent_requantize(acc, 4, DETENT_U4, q, &p, NULL), DETENT_INVALID_ARGUMENT,
              "type 8 is not DETENT_U8, DETENT_S8, DETENT_U16 or DETENT_S16");
  CHECK(detent_requantize(NULL, 4, DETENT_U8, q, &p, NULL) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_fake_quantize(NULL, 4, DETENT_U8, y, &p) == DETENT_INVALID_ARGUMENT);
  CHECK(detent_fake_quantize(x, 4, DETENT_U8, NULL, &p) == DETENT_INVALID_ARGUMENT);
  p.channels = 3;
  CHECK_ERROR(detent_requantize(acc, 4, DETENT_U8, q, &p, NULL), DETENT_SHAPE_MISMATCH,
              "4 elements are not a multiple of 3 channels times 1");
  p.channels = 0;
  CHECK(detent_requantize(acc, 0, DETENT_U8, q, &p, NULL) == DETENT_SHAPE_MISMATCH);
  p.channels = (size_t)-1;
  p.inner = 2;
  CHECK(detent_requantize(acc, 4, DETENT_U8, q, &p, NULL) == DETENT_SHAPE_MISMATCH);
  p.channels = 2;
  p.inner = 1;
  p.scales = bad_scales;
  CHECK_ERROR(detent_fake_quantize(x, 4, DETENT_U8, y, &p), DETENT_INVALID_ARGUMENT, "scale");
  p.scales = scales;
  p.zero_points = zero_points;
  CHECK_ERROR(detent_quantize_elements(DETENT_F32, x, 4, DETENT_U8, q, &p, NULL),
              DETENT_INVALID_ARGUMENT, "300");
  CHECK_ERROR(detent_dequantize_elements(DETENT_S32, acc, 4, DETENT_F32, y, &p, NULL),
              DETENT_INVALID_ARGUMENT, "300");
  p.zero_points = NULL;
  p.qmin = p.qmax = 0; /* one level: quantization takes it, fake quantization does not */
  CHECK_ERROR(detent_fake_quantize(x, 4, DETENT_U8, y, &p), DETENT_INVALID_ARGUMENT, "0..0");
  p.qmax = 256;
  CHECK_ERROR(detent_quantize_elements(DETENT_F32, x, 4, DETENT_U8, q, &p, NULL),
              DETENT_INVALID_ARGUMENT, "256");
  p.size = sizeof p + 8;
  CHECK_ERROR(detent_fake_quantize(x, 4, DETENT_U8, y, &p), DETENT_INVALID_ARGUMENT,
              "was it initialized?");
  CHECK(q[0] == 7 && q[3] == 7); /* nothing was written on the way */

  CHECK_ERROR(
      detent_dynamic_quantize_rows(x, 4, 1, 4, DETENT_U8, 0, q, 4, &scale, &zero_point, NULL, NULL),
      DETENT_INVALID_ARGUMENT, "is not finite");
  CHECK_ERROR(
      detent_dynamic_quantize_rows(x, 4, 1, 3, DETENT_U8, 0, q, 4, NULL, &zero_point, NULL, NULL),
      DETENT_INVALID_ARGUMENT, "null results");
  CHECK_ERROR(detent_dynamic_quantize_rows(NULL, 4, 1, 3, DETENT_U8, 0, q, 4, &scale, &zero_point,
                                           NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null data");
  CHECK(detent_dynamic_quantize_rows(x, 4, 1, 3, DETENT_F32, 0, q, 4, &scale, &zero_point, NULL,
                                     NULL) == DETENT_INVALID_ARGUMENT);
  CHECK_ERROR(detent_params_from_range(2.0F, 1.0F, 0, 255, 0, &scale, &zero_point),
              DETENT_INVALID_ARGUMENT, "2 .. 1 is not a finite range");
  CHECK_ERROR(detent_params_from_range(0.0F, 1.0F, 3, 3, 0, &scale, &zero_point),
              DETENT_INVALID_ARGUMENT, "grid 3..3");
  CHECK_ERROR(detent_params_from_range(0.0F, 1.0F, 0, 255, 0, NULL, &zero_point),
              DETENT_INVALID_ARGUMENT, "null scale");
  CHECK_ERROR(detent_params_from_range(0.0F, 1.0F, 0, 255, 0, &scale, NULL),
              DETENT_INVALID_ARGUMENT, "null zero point");
}

int main(int count, char** arguments) {
  begin(count, arguments);
  errors();
  on_every_target(&quantize_every_type);
  on_every_target(&dequantize_every_type);
  on_every_target(&requantize_every_type);
  on_every_target(&rows);
  return end();
}
