/* SPDX-License-Identifier: BSD-3-Clause
 * Products of the C interface against plain loops: every output, both kinds of weights, batches.
 */
#include <math.h>

#include "c_check.h"

/* ---- The definitions, one value at a time ---- */

static float bfloat16_to_float(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, sizeof x);
  return x;
}
/* Of a multiple of 1/64 within -8..8, which a float16 holds. */
static uint16_t float_to_float16(float x) {
  int exponent;
  const float fraction = frexpf(fabsf(x), &exponent); /* 0.5 .. 1, times 2^exponent */
  const unsigned sign = x < 0.0F ? 0x8000U : 0U;
  if (x == 0.0F) {
    return 0;
  }
  return (uint16_t)(sign | (unsigned)(exponent + 14) << 10 |
                    (unsigned)(fraction * 2048.0F - 1024.0F));
}

static int32_t to_grid(float steps, int32_t zero_point, int32_t qmin, int32_t qmax) {
  const float low = (float)(qmin - zero_point), high = (float)(qmax - zero_point);
  if (isnan(steps)) {
    return zero_point;
  }
  return (int32_t)rintf(steps < low ? low : steps > high ? high : steps) + zero_point;
}

/* Scale and zero point of a row, quantized to 0..255 or, symmetrically, about 128. */
static void row_parameters(const float* x, size_t n, int symmetric, float* scale,
                           int32_t* zero_point) {
  double lower = 0.0, upper = 0.0, extent, steps = symmetric ? 127.0 : 255.0;
  size_t i;
  for (i = 0; i < n; ++i) {
    lower = x[i] < lower ? x[i] : lower;
    upper = x[i] > upper ? x[i] : upper;
  }
  extent = !symmetric ? upper - lower : -lower > upper ? -lower : upper;
  *scale = 1.0F;
  if (extent > 0.0) {
    *scale = (float)(extent / steps);
    if ((double)*scale * steps < extent) {
      *scale = nextafterf(*scale, INFINITY);
    }
  }
  *zero_point = symmetric ? 128 : (int32_t)rint(-lower / (double)*scale);
}

/* ---- Operands ---- */

enum { guard = 0x5A };

typedef struct operands {
  size_t m, n, k, ldc;
  int a_signed;
  int32_t *a, *b;          /* M x K and K x N, as integers */
  uint8_t *rows, *columns; /* A row-major with a stride of K + 3, column-major with one of M + 2 */
  float *scales, *lhs_scales, *bias, *residual;
  int32_t *zero_points, *lhs_zero_points, *biases, *addend;
  detent_weights* weights;
} operands;

static operands make_operands(size_t m, size_t n, size_t k, int a_signed, int is_plain) {
  operands o;
  size_t i, j;
  int8_t* w = allocate(k * n);
  detent_weight_options options;
  o.m = m, o.n = n, o.k = k, o.ldc = n + 3, o.a_signed = a_signed, o.weights = NULL;
  o.a = allocate(m * k * sizeof *o.a);
  o.b = allocate(k * n * sizeof *o.b);
  o.rows = allocate(m * (k + 3));
  o.columns = allocate((m + 2) * k);
  o.scales = allocate(n * sizeof *o.scales);
  o.lhs_scales = allocate(m * sizeof *o.lhs_scales);
  o.bias = allocate(n * sizeof *o.bias);
  o.residual = allocate(m * o.ldc * sizeof *o.residual);
  o.zero_points = allocate(n * sizeof *o.zero_points);
  o.lhs_zero_points = allocate(m * sizeof *o.lhs_zero_points);
  o.biases = allocate(n * sizeof *o.biases);
  o.addend = allocate(m * o.ldc * sizeof *o.addend);
  for (i = 0; i < m; ++i) {
    o.lhs_zero_points[i] = a_signed ? random_between(-128, 127) : random_between(0, 255);
    o.lhs_scales[i] = ldexpf((float)random_between(64, 127), -12);
    for (j = 0; j < k; ++j) {
      const int32_t extreme = a_signed ? -128 : 255;
      const int32_t any = a_signed ? random_between(-128, 127) : random_between(0, 255);
      const int32_t v = random_between(0, 3) == 0 ? extreme : any;
      o.a[i * k + j] = v;
      o.rows[i * (k + 3) + j] = o.columns[j * (m + 2) + i] = (uint8_t)(v & 0xFF);
    }
    for (j = 0; j < o.ldc; ++j) {
      o.residual[i * o.ldc + j] = random_real();
      o.addend[i * o.ldc + j] = random_between(-1000000, 1000000);
    }
  }
  for (j = 0; j < n; ++j) {
    o.scales[j] = ldexpf((float)random_between(64, 127), -13);
    o.zero_points[j] = is_plain ? 0 : random_between(-128, 127);
    o.biases[j] = random_between(-5000, 5000);
    o.bias[j] = random_real();
    for (i = 0; i < k; ++i) {
      const int32_t any = random_between(-128, 127);
      o.b[i * n + j] = random_between(0, 3) == 0 ? -128 : any;
      w[i * n + j] = (int8_t)o.b[i * n + j];
    }
  }
  detent_weight_options_init(&options);
  options.scales = o.scales;
  options.zero_points = is_plain ? NULL : o.zero_points;
  options.bias = o.biases;
  options.scale_count = options.bias_count = n;
  options.zero_point_count = is_plain ? 0 : n;
  CHECK(detent_pack_weights(DETENT_S8, w, k, n, (ptrdiff_t)n, 1, &options, &o.weights) ==
        DETENT_OK);
  free(w);
  return o;
}
static void free_operands(operands* o) {
  free(o->a), free(o->b), free(o->rows), free(o->columns), free(o->scales), free(o->lhs_scales);
  free(o->bias), free(o->residual), free(o->zero_points), free(o->lhs_zero_points);
  free(o->biases), free(o->addend);
  detent_weights_free(o->weights);
}

static int32_t sum_of(const operands* o, size_t i, size_t j, int32_t lhs_zero_point) {
  int32_t sum = o->biases[j];
  size_t p;
  for (p = 0; p < o->k; ++p) {
    sum += (o->a[i * o->k + p] - lhs_zero_point) * (o->b[p * o->n + j] - o->zero_points[j]);
  }
  return sum;
}

/* What an output should be, as the bytes of its type. */
static size_t expected(const operands* o, detent_type type, const detent_epilogue* e, size_t i,
                       size_t j, unsigned char* bytes) {
  const int32_t zero_point = e->lhs_zero_points != NULL ? e->lhs_zero_points[i] : e->lhs_zero_point;
  const int32_t sum = sum_of(o, i, j, zero_point);
  const float lhs_scale = e->lhs_scales != NULL ? e->lhs_scales[i] : e->lhs_scale;
  const float product = lhs_scale * o->scales[j];
  if (type == DETENT_S32) {
    const int32_t total = sum + (e->addend != NULL ? e->addend[i * e->addend_stride + j] : 0);
    memcpy(bytes, &total, sizeof total);
    return sizeof total;
  }
  if (type == DETENT_F32 || type == DETENT_BF16) {
    float x = fmaf((float)sum, product, e->bias != NULL ? e->bias[j] : 0.0F);
    uint16_t rounded;
    x += e->residual != NULL ? e->residual[i * e->residual_stride + j] : 0.0F;
    x = x < e->lower ? e->lower : x > e->upper ? e->upper : x;
    rounded = float_to_bfloat16(x);
    memcpy(bytes, type == DETENT_F32 ? (void*)&x : (void*)&rounded,
           type == DETENT_F32 ? sizeof x : sizeof rounded);
    return type == DETENT_F32 ? sizeof x : sizeof rounded;
  }
  {
    const int is_signed = type == DETENT_S8;
    const int whole = e->qmin > e->qmax;
    *bytes = (unsigned char)to_grid((float)sum * (product / e->output_scale), e->output_zero_point,
                                    whole ? (is_signed ? -128 : 0) : e->qmin,
                                    whole ? (is_signed ? 127 : 255) : e->qmax);
    return 1;
  }
}

/* Every element, and that nothing was written between the rows. */
static void check_output(const operands* o, detent_type type, const detent_epilogue* e,
                         const unsigned char* c) {
  unsigned char bytes[4];
  size_t i, j, p, size = expected(o, type, e, 0, 0, bytes);
  int wrong = 0;
  for (i = 0; i < o->m; ++i) {
    for (j = 0; j < o->ldc; ++j) {
      const unsigned char* at = c + (i * o->ldc + j) * size;
      if (j < o->n) {
        expected(o, type, e, i, j, bytes);
        wrong += memcmp(at, bytes, size) != 0;
      } else {
        for (p = 0; p < size; ++p) {
          wrong += at[p] != guard;
        }
      }
    }
  }
  CHECK(wrong == 0);
}

static const size_t shapes[][3] = {{1, 1, 1},   {3, 5, 7},     {1, 70, 130}, {17, 33, 40},
                                   {50, 21, 9}, {100, 16, 64}, {2, 3, 300}};
enum { shape_count = sizeof shapes / sizeof *shapes };

/* With everything that an epilogue has for the type, from rows and from columns. */
static void every_output(void) {
  static const detent_type types[] = {DETENT_S32, DETENT_F32, DETENT_BF16, DETENT_U8, DETENT_S8};
  size_t s, t;
  for (s = 0; s < shape_count; ++s) {
    operands o = make_operands(shapes[s][0], shapes[s][1], shapes[s][2], s % 2 != 0, s % 3 == 0);
    const detent_type a_type = o.a_signed ? DETENT_S8 : DETENT_U8;
    unsigned char* c = allocate(o.m * o.ldc * 4);
    for (t = 0; t < 2 * sizeof types / sizeof *types; ++t) {
      const detent_type type = types[t / 2];
      const int full = t % 2 != 0;
      const int is_real = type == DETENT_F32 || type == DETENT_BF16;
      int calls = 0;
      const detent_parallel parallel = {&run_backwards, &calls};
      detent_gemm_problem problem;
      detent_epilogue e;
      detent_epilogue_init(&e);
      e.lhs_scale = 0.0078125F;
      e.lhs_zero_point = o.a_signed ? -3 : 131;
      e.output_scale = 0.53F;
      e.output_zero_point = type == DETENT_S8 ? -4 : 9;
      if (full) {
        e.lhs_zero_points = o.lhs_zero_points;
        e.lhs_scales = is_real ? o.lhs_scales : NULL;
        e.bias = is_real ? o.bias : NULL;
        e.residual = is_real ? o.residual : NULL;
        e.residual_stride = o.ldc;
        e.lower = -6.5F;
        e.upper = 6.25F;
        e.addend = type == DETENT_S32 ? o.addend : NULL;
        e.addend_stride = o.ldc;
        e.qmin = 9;
        e.qmax = 100;
        e.output_zero_point = 9; /* a ReLU */
      }
      memset(c, guard, o.m * o.ldc * 4);
      CHECK(detent_gemm(a_type, o.rows, o.k + 3, o.m, o.weights, type, c, o.ldc, &e, NULL) ==
            DETENT_OK);
      check_output(&o, type, &e, c);
      detent_gemm_problem_init(&problem);
      problem.a = o.columns;
      problem.m = o.m;
      problem.row_stride = 1;
      problem.column_stride = (ptrdiff_t)(o.m + 2);
      problem.weights = o.weights;
      problem.c = c;
      problem.ldc = o.ldc;
      problem.epilogue = &e;
      memset(c, guard, o.m * o.ldc * 4);
      CHECK(detent_gemm_batch(a_type, type, &problem, 1, &parallel) == DETENT_OK);
      CHECK(calls <= 1);
      check_output(&o, type, &e, c);
    }
    free(c);
    free_operands(&o);
  }
}

static void batches(void) {
  operands o[shape_count];
  detent_gemm_problem problems[shape_count];
  detent_epilogue e[shape_count];
  unsigned char* c[shape_count];
  int calls = 0;
  const detent_parallel parallel = {&run_backwards, &calls};
  size_t s;
  for (s = 0; s < shape_count; ++s) {
    o[s] = make_operands(shapes[s][0], shapes[s][1], shapes[s][2], 0, s % 2 == 0);
    c[s] = allocate(o[s].m * o[s].ldc * sizeof(int32_t));
    memset(c[s], guard, o[s].m * o[s].ldc * sizeof(int32_t));
    detent_epilogue_init(&e[s]);
    e[s].lhs_zero_point = (int32_t)s;
    detent_gemm_problem_init(&problems[s]);
    problems[s].a = o[s].rows;
    problems[s].m = o[s].m;
    problems[s].row_stride = (ptrdiff_t)(o[s].k + 3);
    problems[s].weights = o[s].weights;
    problems[s].c = c[s];
    problems[s].ldc = o[s].ldc;
    problems[s].epilogue = &e[s];
  }
  /* The last one is wrong: no output is written. */
  e[shape_count - 1].lhs_zero_point = 256;
  CHECK_ERROR(detent_gemm_batch(DETENT_U8, DETENT_S32, problems, shape_count, NULL),
              DETENT_INVALID_ARGUMENT, "256");
  for (s = 0; s < shape_count; ++s) {
    CHECK(c[s][0] == guard);
  }
  e[shape_count - 1].lhs_zero_point = 3;
  CHECK(detent_gemm_batch(DETENT_U8, DETENT_S32, problems, shape_count, &parallel) == DETENT_OK);
  CHECK(calls == 1);
  for (s = 0; s < shape_count; ++s) {
    check_output(&o[s], DETENT_S32, &e[s], c[s]);
  }
  CHECK(detent_gemm_batch(DETENT_U8, DETENT_S32, NULL, 0, NULL) == DETENT_OK);
  CHECK_ERROR(detent_gemm_batch(DETENT_U8, DETENT_S32, NULL, 1, NULL), DETENT_INVALID_ARGUMENT,
              "null problems");
  CHECK_ERROR(detent_gemm_batch(DETENT_S32, DETENT_S32, problems, 2, NULL), DETENT_INVALID_ARGUMENT,
              "type 2 is not DETENT_U8 or DETENT_S8");
  CHECK_ERROR(detent_gemm_batch(DETENT_U8, DETENT_F16, problems, 2, NULL), DETENT_INVALID_ARGUMENT,
              "type 5 is not DETENT_S32");
  problems[1].size -= sizeof(void*);
  CHECK_ERROR(detent_gemm_batch(DETENT_U8, DETENT_S32, problems, 2, NULL), DETENT_INVALID_ARGUMENT,
              "problem 1 has size");
  problems[1].size += sizeof(void*);
  problems[1].weights = NULL;
  CHECK_ERROR(detent_gemm_batch(DETENT_U8, DETENT_S32, problems, 2, NULL), DETENT_INVALID_ARGUMENT,
              "problem 1 has null weights");
  problems[1].weights = o[1].weights;
  problems[1].row_stride = 2;
  problems[1].column_stride = 2;
  CHECK_ERROR(detent_gemm_batch(DETENT_U8, DETENT_S32, problems, 2, NULL), DETENT_UNSUPPORTED,
              "rows must be dense");
  problems[0].size = 0;
  CHECK_ERROR(detent_gemm_batch(DETENT_U8, DETENT_S32, problems, 1, NULL), DETENT_INVALID_ARGUMENT,
              "was it initialized?");
  for (s = 0; s < shape_count; ++s) {
    free(c[s]);
    free_operands(&o[s]);
  }
}

/* ---- Weights of 4 bits ---- */

typedef struct int4_operands {
  size_t n, k, groups, group_size;
  int32_t* codes; /* K x N */
  float* scales;  /* groups x N */
  int32_t* zero_points;
  detent_weights* weights;
} int4_operands;

/* By rows of N; by columns, which are `columns` elements apart, packed two to a byte or not. */
static int4_operands make_int4(size_t n, size_t k, size_t group_size, detent_type type,
                               int by_columns) {
  int4_operands o;
  const int is_signed = type == DETENT_S4 || type == DETENT_S8;
  const int packed = type == DETENT_S4 || type == DETENT_U4;
  const size_t column = k + 5, elements = by_columns ? n * column : k * n;
  const size_t whole = (k + 7) / 8 * 8;
  unsigned char* data = allocate(packed ? (elements + 1) / 2 : elements);
  float* transposed_scales;
  detent_int4_weight_options options;
  size_t i, j;
  o.n = n, o.k = k, o.weights = NULL;
  o.group_size = group_size == 0 || group_size > whole ? whole : group_size;
  o.groups = (k + o.group_size - 1) / o.group_size;
  o.codes = allocate(k * n * sizeof *o.codes);
  o.scales = allocate(o.groups * n * sizeof *o.scales);
  o.zero_points = allocate(o.groups * n * sizeof *o.zero_points);
  transposed_scales = allocate(o.groups * n * sizeof *transposed_scales);
  for (i = 0; i < o.groups; ++i) {
    for (j = 0; j < n; ++j) {
      o.scales[i * n + j] = ldexpf((float)random_between(64, 127), -9);
      transposed_scales[j * o.groups + i] = o.scales[i * n + j];
      o.zero_points[i * n + j] = is_signed ? random_between(-8, 7) : random_between(0, 15);
    }
  }
  for (i = 0; i < k; ++i) {
    for (j = 0; j < n; ++j) {
      const int32_t code = is_signed ? random_between(-8, 7) : random_between(0, 15);
      const size_t at = by_columns ? j * column + i : i * n + j;
      o.codes[i * n + j] = code;
      if (packed) {
        data[at / 2] = (unsigned char)(data[at / 2] | (code & 0xF) << (at % 2 * 4));
      } else {
        data[at] = (unsigned char)code;
      }
    }
  }
  detent_int4_weight_options_init(&options);
  options.group_size = group_size;
  options.scales = o.scales;
  CHECK(detent_pack_int4_weights(type, data, k, n, by_columns ? 1 : (ptrdiff_t)n,
                                 by_columns ? (ptrdiff_t)column : 1, &options,
                                 &o.weights) == DETENT_OK);
  detent_weights_free(o.weights);
  o.weights = NULL;
  /* Both in the other order; the zero points are 0 where there are none. */
  options.scales = transposed_scales;
  options.group_stride = 1;
  options.column_stride = (ptrdiff_t)o.groups;
  if (by_columns) {
    memset(o.zero_points, 0, o.groups * n * sizeof *o.zero_points);
  } else {
    options.scales = o.scales;
    options.zero_points = o.zero_points;
    options.group_stride = (ptrdiff_t)n;
    options.column_stride = 1;
  }
  CHECK(detent_pack_int4_weights(type, data, k, n, by_columns ? 1 : (ptrdiff_t)n,
                                 by_columns ? (ptrdiff_t)column : 1, &options,
                                 &o.weights) == DETENT_OK);
  CHECK(detent_weights_bits(o.weights) == 4);
  CHECK(detent_weights_depth(o.weights) == k && detent_weights_columns(o.weights) == n);
  CHECK(detent_weights_group_size(o.weights) == o.group_size);
  CHECK(detent_weights_accumulator_bound(o.weights) == 0);
  free(data);
  free(transposed_scales);
  return o;
}
static void free_int4(int4_operands* o) {
  free(o->codes), free(o->scales), free(o->zero_points);
  detent_weights_free(o->weights);
}

static float int4_product(const int4_operands* w, const int32_t* a, int32_t zero_point, float scale,
                          size_t j, float bias, float residual) {
  float real = 0.0F;
  size_t g, p;
  for (g = 0; g < w->groups; ++g) {
    int32_t sum = 0;
    for (p = g * w->group_size; p < w->k && p < (g + 1) * w->group_size; ++p) {
      sum += (a[p] - zero_point) * (w->codes[p * w->n + j] - w->zero_points[g * w->n + j]);
    }
    real = fmaf((float)sum, w->scales[g * w->n + j], real);
  }
  return fmaf(real, scale, bias) + residual;
}

static void int4_weights(void) {
  static const detent_type types[] = {DETENT_U4, DETENT_S4, DETENT_U8, DETENT_S8};
  static const size_t group_sizes[] = {8, 32, 0, 1024};
  size_t s, i, j;
  for (s = 0; s < 4 * (size_t)shape_count; ++s) {
    const size_t m = shapes[s / 4][0], n = shapes[s / 4][1], k = shapes[s / 4][2];
    const size_t ldc = n + 2;
    int4_operands w = make_int4(n, k, group_sizes[s % 4], types[(s + s / 4) % 4], s % 3 == 0);
    operands o = make_operands(m, n, k, s % 2 != 0, 1);
    const detent_type a_type = o.a_signed ? DETENT_S8 : DETENT_U8;
    float* c = allocate(m * ldc * sizeof *c);
    detent_epilogue e;
    detent_gemm_problem problem;
    int wrong = 0, pass;
    detent_epilogue_init(&e);
    e.lhs_zero_points = o.lhs_zero_points;
    e.lhs_scales = o.lhs_scales;
    e.bias = o.bias;
    e.residual = o.residual;
    e.residual_stride = o.ldc;
    e.lower = -1000.0F;
    detent_gemm_problem_init(&problem);
    problem.a = o.columns;
    problem.m = m;
    problem.row_stride = 1;
    problem.column_stride = (ptrdiff_t)(m + 2);
    problem.weights = w.weights;
    problem.c = c;
    problem.ldc = ldc;
    problem.epilogue = &e;
    for (pass = 0; pass < 2; ++pass) {
      memset(c, 0, m * ldc * sizeof *c);
      CHECK((pass == 0
                 ? detent_gemm(a_type, o.rows, k + 3, m, w.weights, DETENT_F32, c, ldc, &e, NULL)
                 : detent_gemm_batch(a_type, DETENT_F32, &problem, 1, NULL)) == DETENT_OK);
      for (i = 0; i < m; ++i) {
        for (j = 0; j < ldc; ++j) {
          float x = 0.0F;
          if (j < n) {
            x = int4_product(&w, o.a + i * k, o.lhs_zero_points[i], o.lhs_scales[i], j, o.bias[j],
                             o.residual[i * o.ldc + j]);
            x = x < e.lower ? e.lower : x;
          }
          wrong += c[i * ldc + j] != x;
        }
      }
    }
    CHECK(wrong == 0);
    free(c);
    free_operands(&o);
    free_int4(&w);
  }
}

/* Large enough to be shared out: the same weights as from one thread. */
static void packed_on_threads(void) {
  enum { k = 512, n = 520 };
  uint8_t* codes = allocate(k * n);
  uint8_t a[k];
  float serial[n], threaded[n];
  int calls = 0, i, bits;
  const detent_parallel parallel = {&run_backwards, &calls};
  for (i = 0; i < k * n; ++i) {
    codes[i] = (uint8_t)random_between(0, 15);
  }
  for (i = 0; i < k; ++i) {
    a[i] = (uint8_t)random_between(0, 255);
  }
  for (bits = 4; bits <= 8; bits += 4) {
    const int before = calls;
    detent_weights *one = NULL, *many = NULL;
    detent_weight_options o8;
    detent_int4_weight_options o4;
    detent_weight_options_init(&o8);
    o8.parallel = &parallel;
    detent_int4_weight_options_init(&o4);
    o4.parallel = &parallel;
    if (bits == 4) {
      CHECK(detent_pack_int4_weights(DETENT_U8, codes, k, n, n, 1, NULL, &one) == DETENT_OK);
      CHECK(detent_pack_int4_weights(DETENT_U8, codes, k, n, n, 1, &o4, &many) == DETENT_OK);
    } else {
      CHECK(detent_pack_weights(DETENT_U8, codes, k, n, n, 1, NULL, &one) == DETENT_OK);
      CHECK(detent_pack_weights(DETENT_U8, codes, k, n, n, 1, &o8, &many) == DETENT_OK);
    }
    CHECK(calls > before);
    CHECK(detent_weights_prepare(many, &parallel) == DETENT_OK);
    CHECK(detent_gemm(DETENT_U8, a, k, 1, one, DETENT_F32, serial, n, NULL, NULL) == DETENT_OK);
    CHECK(detent_gemm(DETENT_U8, a, k, 1, many, DETENT_F32, threaded, n, NULL, &parallel) ==
          DETENT_OK);
    CHECK(memcmp(serial, threaded, sizeof serial) == 0);
    detent_weights_free(one);
    detent_weights_free(many);
  }
  free(codes);
}

static void int4_saved(void) {
  int4_operands w = make_int4(9, 45, 16, DETENT_U4, 0);
  operands o = make_operands(2, 9, 45, 0, 1);
  float before[18], after[18];
  size_t needed = 0, i;
  unsigned char* bytes;
  detent_weights* loaded = NULL;
  CHECK(detent_weights_save(w.weights, NULL, 0, &needed) == DETENT_OK);
  bytes = allocate(needed);
  CHECK(detent_weights_save(w.weights, bytes, needed, &needed) == DETENT_OK);
  CHECK(detent_weights_load(bytes, needed, &loaded) == DETENT_OK);
  CHECK(detent_weights_bits(loaded) == 4 && detent_weights_group_size(loaded) == 16);
  CHECK(detent_gemm(DETENT_U8, o.rows, 48, 2, w.weights, DETENT_F32, before, 9, NULL, NULL) ==
        DETENT_OK);
  CHECK(detent_gemm(DETENT_U8, o.rows, 48, 2, loaded, DETENT_F32, after, 9, NULL, NULL) ==
        DETENT_OK);
  CHECK(memcmp(before, after, sizeof before) == 0);
  detent_weights_free(loaded);
  loaded = NULL;
  for (i = 0; i < needed; ++i) {
    detent_status status;
    bytes[i] ^= 0x04;
    status = detent_weights_load(bytes, needed, &loaded);
    CHECK(status == DETENT_BAD_FILE || status == DETENT_UNSUPPORTED);
    CHECK(loaded == NULL);
    bytes[i] ^= 0x04;
    CHECK(detent_weights_load(bytes, i, &loaded) == DETENT_BAD_FILE);
    CHECK(loaded == NULL);
  }
  free(bytes);
  free_operands(&o);
  free_int4(&w);
}

static void int4_errors(void) {
  const uint8_t codes[16] = {1, 2, 16};
  const float scales[2] = {1.0F, -1.0F};
  const int32_t zero_points[1] = {16};
  const uint8_t a[8] = {0};
  int32_t sums[2];
  float reals[2];
  detent_int4_weight_options o;
  detent_weights *weights = NULL, *bytes = NULL;
  detent_gemm_problem problems[2];
  detent_int4_weight_options_init(&o);
  CHECK_ERROR(detent_pack_int4_weights(DETENT_F32, codes, 8, 1, 1, 1, NULL, &weights),
              DETENT_INVALID_ARGUMENT, "type 3 is not DETENT_U4");
  CHECK_ERROR(detent_pack_int4_weights(DETENT_U8, codes, 8, 1, 1, 1, NULL, NULL),
              DETENT_INVALID_ARGUMENT, "null result");
  CHECK_ERROR(detent_pack_int4_weights(DETENT_U8, codes, 8, 1, 1, 1, NULL, &weights),
              DETENT_INVALID_ARGUMENT, "the code 16 of row 2, column 0 is outside 0..15");
  CHECK(detent_pack_int4_weights(DETENT_U8, NULL, 8, 1, 1, 1, NULL, &weights) ==
        DETENT_INVALID_ARGUMENT);
  CHECK_ERROR(detent_pack_int4_weights(DETENT_U4, NULL, 8, 1, 1, 1, NULL, &weights),
              DETENT_INVALID_ARGUMENT, "null codes");
  CHECK_ERROR(detent_pack_int4_weights(DETENT_U4, codes, 8, 1, -1, 1, NULL, &weights),
              DETENT_UNSUPPORTED, "the strides -1 and 1 of a packed type are negative");
  o.group_size = 4;
  CHECK_ERROR(detent_pack_int4_weights(DETENT_U4, codes, 8, 1, 1, 1, &o, &weights),
              DETENT_INVALID_ARGUMENT, "the group size 4 is not a multiple of 8");
  o.group_size = 8;
  o.scales = scales;
  CHECK_ERROR(detent_pack_int4_weights(DETENT_U4, codes, 16, 1, 1, 1, &o, &weights),
              DETENT_INVALID_ARGUMENT, "-1");
  o.scales = NULL;
  o.zero_points = zero_points;
  CHECK_ERROR(detent_pack_int4_weights(DETENT_U4, codes, 8, 1, 1, 1, &o, &weights),
              DETENT_INVALID_ARGUMENT, "16");
  o.size = sizeof o + 1;
  CHECK(detent_pack_int4_weights(DETENT_U4, codes, 8, 1, 1, 1, &o, &weights) ==
        DETENT_INVALID_ARGUMENT);
  CHECK(weights == NULL);

  CHECK(detent_pack_int4_weights(DETENT_U4, codes, 8, 1, 1, 1, NULL, &weights) == DETENT_OK);
  CHECK(detent_pack_weights(DETENT_U8, codes, 8, 1, 1, 1, NULL, &bytes) == DETENT_OK);
  CHECK_ERROR(detent_gemm(DETENT_U8, a, 8, 1, weights, DETENT_S32, sums, 1, NULL, NULL),
              DETENT_UNSUPPORTED, "type 2 is not DETENT_F32, which 4-bit weights multiply to");
  CHECK(detent_weights_prepare(weights, NULL) == DETENT_OK);
  detent_gemm_problem_init(&problems[0]);
  problems[0].a = a;
  problems[0].m = 1;
  problems[0].row_stride = 8;
  problems[0].weights = weights;
  problems[0].c = reals;
  problems[0].ldc = 1;
  problems[1] = problems[0];
  problems[1].weights = bytes;
  CHECK_ERROR(detent_gemm_batch(DETENT_U8, DETENT_F32, problems, 2, NULL), DETENT_UNSUPPORTED,
              "problem 1 has 8-bit weights, the first one 4-bit ones");
  detent_weights_free(weights);
  detent_weights_free(bytes);
}

/* Nothing to multiply, and nothing to add up. */
static void empty(void) {
  const uint8_t a[1] = {1};
  const float x[1] = {1.0F};
  const int32_t bias[2] = {5, -6};
  int32_t sums[2] = {0, 0};
  float reals[2] = {9.0F, 9.0F};
  detent_weight_options o;
  detent_weights* weights = NULL;
  detent_weight_options_init(&o);
  o.bias = bias;
  o.bias_count = 2;
  CHECK(detent_pack_weights(DETENT_S8, NULL, 0, 2, 2, 1, &o, &weights) == DETENT_OK);
  CHECK(detent_gemm(DETENT_U8, a, 0, 1, weights, DETENT_S32, sums, 2, NULL, NULL) == DETENT_OK);
  CHECK(sums[0] == 5 && sums[1] == -6);
  CHECK(detent_gemm(DETENT_U8, NULL, 0, 0, weights, DETENT_S32, NULL, 2, NULL, NULL) == DETENT_OK);
  detent_weights_free(weights);
  CHECK(detent_pack_int4_weights(DETENT_U4, NULL, 0, 2, 2, 1, NULL, &weights) == DETENT_OK);
  CHECK(detent_dynamic_linear(x, 0, 1, weights, reals, 2, NULL, NULL) == DETENT_OK);
  CHECK(reals[0] == 0.0F && reals[1] == 0.0F);
  detent_weights_free(weights);
}

/* ---- Left sides that are quantized on the way ---- */

static void dynamic_rows(void) {
  static const detent_type types[] = {DETENT_F32, DETENT_F16, DETENT_BF16};
  size_t s, t, i, j;
  for (s = 0; s < 2 * (size_t)shape_count; ++s) {
    const size_t m = shapes[s / 2][0], n = shapes[s / 2][1], k = shapes[s / 2][2];
    const int per_row = s % 4 < 2, symmetric = s % 3 == 0;
    int4_operands w4 = make_int4(n, k, 16, DETENT_S4, 0);
    operands o = make_operands(m, n, k, 0, 0);
    const int bits = s % 2 == 0 ? 8 : 4;
    const detent_weights* weights = bits == 8 ? o.weights : w4.weights;
    float* x = allocate(m * k * sizeof *x);
    float* c = allocate(m * n * sizeof *c);
    for (t = 0; t < 6; ++t) { /* each type, row-major and column-major */
      const detent_type type = types[t / 2];
      const int by_columns = t % 2 != 0;
      const size_t size = type == DETENT_F32 ? 4 : 2;
      unsigned char* a = allocate(m * k * size);
      detent_dynamic_linear_options options;
      float scale = 1.0F;
      int32_t zero_point = 0;
      int wrong = 0;
      for (i = 0; i < m * k; ++i) {
        const size_t at = by_columns ? i % k * m + i / k : i;
        const float real = random_real();
        const uint16_t half = type == DETENT_F16 ? float_to_float16(real) : float_to_bfloat16(real);
        memcpy(a + at * size, size == 4 ? (const void*)&real : (const void*)&half, size);
        x[i] = type == DETENT_BF16 ? bfloat16_to_float(half) : real;
      }
      detent_dynamic_linear_options_init(&options);
      options.per_row = per_row;
      options.symmetric = symmetric;
      options.bias = o.bias;
      options.residual = o.residual;
      options.residual_stride = o.ldc;
      options.upper = 20.0F;
      CHECK(detent_dynamic_linear_strided(type, a, by_columns ? 1 : (ptrdiff_t)k,
                                          by_columns ? (ptrdiff_t)m : 1, m, weights, c, n, &options,
                                          NULL) == DETENT_OK);
      row_parameters(x, m * k, symmetric, &scale, &zero_point);
      for (i = 0; i < m; ++i) {
        if (per_row) {
          row_parameters(x + i * k, k, symmetric, &scale, &zero_point);
        }
        for (j = 0; j < k; ++j) {
          o.a[i * k + j] = to_grid(x[i * k + j] / scale, zero_point, 0, 255);
        }
        for (j = 0; j < n; ++j) {
          const float residual = o.residual[i * o.ldc + j];
          const float y =
              bits == 4
                  ? int4_product(&w4, o.a + i * k, zero_point, scale, j, o.bias[j], residual)
                  : fmaf((float)sum_of(&o, i, j, zero_point), scale * o.scales[j], o.bias[j]) +
                        residual;
          wrong += c[i * n + j] != (y > 20.0F ? 20.0F : y);
        }
      }
      CHECK(wrong == 0);
      if (type == DETENT_F32 && !by_columns) {
        float* again = allocate(m * n * sizeof *again);
        CHECK(detent_dynamic_linear((const float*)(const void*)a, k, m, weights, again, n, &options,
                                    NULL) == DETENT_OK);
        CHECK(memcmp(again, c, m * n * sizeof *c) == 0);
        free(again);
      }
      free(a);
    }
    CHECK_ERROR(
        detent_dynamic_linear_strided(DETENT_U8, x, (ptrdiff_t)k, 1, m, weights, c, n, NULL, NULL),
        DETENT_INVALID_ARGUMENT, "type 0 is not DETENT_F32, DETENT_F16 or DETENT_BF16");
    CHECK_ERROR(
        detent_dynamic_linear_strided(DETENT_F32, x, (ptrdiff_t)k, 1, m, NULL, c, n, NULL, NULL),
        DETENT_INVALID_ARGUMENT, "null weights");
    CHECK(detent_dynamic_linear_strided(DETENT_F32, NULL, (ptrdiff_t)k, 1, m, weights, c, n, NULL,
                                        NULL) == DETENT_INVALID_ARGUMENT);
    free(x);
    free(c);
    free_operands(&o);
    free_int4(&w4);
  }
}

int main(int count, char** arguments) {
  begin(count, arguments);
  int4_errors();
  on_every_target(&every_output);
  on_every_target(&batches);
  on_every_target(&int4_weights);
  on_every_target(&packed_on_threads);
  on_every_target(&int4_saved);
  on_every_target(&empty);
  on_every_target(&dynamic_rows);
  return end();
}
