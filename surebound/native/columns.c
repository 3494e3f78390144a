/* Columns of random projections, K for each of B examples, through a ReLU's lines, a convolution and a median.

   Values lie with channels innermost: u (B, K, n), n = H W C. Products and sums may be contracted. An
   example is the work of one thread; only a matrix's gradient is added up in an order that depends on their number. */
#ifdef __clang__
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC optimize("fp-contract=fast")
#endif

/* v = slope u + gap noise for the K columns of one example; without u (NULL): v = gap noise. */
static void line_up(const float *u, const float *slope, const float *gap, const float *noise, int64_t k, int64_t n, float *v) {
    for (int64_t i = 0; i < k; i++, v += n, noise += n) {
        if (u) {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) v[j] = slope[j] * u[j] + gap[j] * noise[j];
            u += n;
        } else {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) v[j] = gap[j] * noise[j];
        }
    }
}

void surebound_lines(const float *u, const float *slope, const float *gap, const float *noise, int64_t b, int64_t k, int64_t n,
                     float *v, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t e = 0; e < b; e++)
        line_up(u ? u + e * k * n : NULL, slope ? slope + e * n : NULL, gap + e * n, noise, k, n, v + e * k * n);
}

/* Gradients of one example: gv (K, n) -> gu = slope gv (may be gv), sums over the columns of gv u and gv noise. */
static void line_back(const float *gv, const float *u, const float *slope, const float *noise, int64_t k, int64_t n, float *gu,
                      float *g_slope, float *g_gap) {
    memset(g_gap, 0, n * sizeof *g_gap);
    if (u) memset(g_slope, 0, n * sizeof *g_slope);
    for (int64_t i = 0; i < k; i++, gv += n, noise += n) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) g_gap[j] += gv[j] * noise[j];
        if (!u) continue;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            g_slope[j] += gv[j] * u[j];
            gu[j] = slope[j] * gv[j];
        }
        u += n, gu += n;
    }
}

void surebound_lines_backward(const float *gv, const float *u, const float *slope, const float *noise, int64_t b, int64_t k,
                              int64_t n, float *gu, float *g_slope, float *g_gap, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t e = 0; e < b; e++)
        line_back(gv + e * k * n, u ? u + e * k * n : NULL, slope ? slope + e * n : NULL, noise, k, n, gu ? gu + e * k * n : NULL,
                  g_slope ? g_slope + e * n : NULL, g_gap + e * n);
}

/* h, w, c -> oh, ow, o by windows of kh x kw, strides sy, sx, no padding. */
typedef struct {
    int64_t h, w, c, oh, ow, o, kh, kw, sy, sx;
} Conv;

/* Two times eight outputs of so many columns: sum over the m entries of a window that are not 0. */
#define BLOCK(NAME, COLUMNS, VECTORS)                                                                                         \
    static inline __attribute__((always_inline)) void NAME(const float *v, int64_t n, const int32_t *at, const int32_t *of,   \
                                                           int64_t m, const float *weight, float *out, int64_t step) {        \
        eight sum[COLUMNS][VECTORS] = {{{0}}};                                                                                 \
        for (int64_t i = 0; i < m; i++) {                                                                                     \
            const float *x = v + at[i], *w = weight + of[i];                                                                  \
            eight each[VECTORS];                                                                                              \
            for (int s = 0; s < VECTORS; s++) each[s] = *(const eight *)(w + 8 * s);                                          \
            for (int k = 0; k < COLUMNS; k++)                                                                                 \
                for (int s = 0; s < VECTORS; s++) sum[k][s] += x[k * n] * each[s];                                            \
        }                                                                                                                     \
        for (int k = 0; k < COLUMNS; k++)                                                                                     \
            for (int s = 0; s < VECTORS; s++) *(eight *)(out + k * step + 8 * s) = sum[k][s];                                 \
    }
BLOCK(six_by_two, 6, 2)
BLOCK(one_by_two, 1, 2)
BLOCK(six_by_one, 6, 1)
BLOCK(one_by_one, 1, 1)

/* One example: v (K, h w c), weight (kh kw c, o), o a multiple of 8, live (h w c) -> u (K, oh ow o). */
static void convolve(const Conv *d, const float *v, const uint8_t *live, const float *weight, int64_t k, int32_t *at, int32_t *of,
                     float *u) {
    int64_t n = d->h * d->w * d->c, out = d->oh * d->ow * d->o;
    for (int64_t y = 0; y < d->oh; y++)
        for (int64_t x = 0; x < d->ow; x++) {
            int64_t m = 0;
            for (int64_t a = 0; a < d->kh; a++)
                for (int64_t b = 0; b < d->kw; b++) {
                    int64_t from = ((y * d->sy + a) * d->w + x * d->sx + b) * d->c, to = (a * d->kw + b) * d->c;
                    for (int64_t c = 0; c < d->c; c++) {
                        at[m] = (int32_t)(from + c), of[m] = (int32_t)((to + c) * d->o);
                        m += live[from + c];
                    }
                }
            float *place = u + (y * d->ow + x) * d->o;
            for (int64_t o = 0; o < d->o;) {
                int64_t wide = d->o - o >= 16;
                for (int64_t i = 0; i < k;) {
                    int64_t six = k - i >= 6;
                    const float *from = v + i * n;
                    float *to = place + i * out + o;
                    if (six && wide)
                        six_by_two(from, n, at, of, m, weight + o, to, out);
                    else if (six)
                        six_by_one(from, n, at, of, m, weight + o, to, out);
                    else if (wide)
                        one_by_two(from, n, at, of, m, weight + o, to, out);
                    else
                        one_by_one(from, n, at, of, m, weight + o, to, out);
                    i += six ? 6 : 1;
                }
                o += wide ? 16 : 8;
            }
        }
}

/* Lines and convolution of B examples; u_in and slope may be NULL (see line_up). */
int64_t surebound_convolve(const float *u_in, const float *slope, const float *gap, const float *noise, const float *weight,
                           int64_t b, int64_t k, int64_t h, int64_t w, int64_t c, int64_t oh, int64_t ow, int64_t o, int64_t kh,
                           int64_t kw, int64_t sy, int64_t sx, float *u, int64_t threads) {
    Conv d = {h, w, c, oh, ow, o, kh, kw, sy, sx};
    int64_t n = h * w * c, window = kh * kw * c, failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *v = malloc(k * n * sizeof *v);
        int32_t *list = malloc(2 * (window + 1) * sizeof *list);
        uint8_t *live = malloc(n);
        failed = !v || !list || !live;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++) {
            if (failed) continue;
            const float *s = slope ? slope + e * n : NULL, *g = gap + e * n;
            for (int64_t j = 0; j < n; j++) live[j] = g[j] != 0.0f || (s && s[j] != 0.0f);
            line_up(u_in ? u_in + e * k * n : NULL, s, g, noise, k, n, v);
            convolve(&d, v, live, weight, k, list, list + window + 1, u + e * k * oh * ow * o);
        }
        free(v), free(list), free(live);
    }
    return failed;
}

#define STRIP 64 /* units at a time: K rows of them, twice, stay in the first cache */

#ifdef __AVX__
#define SMALLER(x, y) __builtin_ia32_minps256(x, y)
#define LARGER(x, y) __builtin_ia32_maxps256(x, y)
#else
#define SMALLER(x, y) ((eight)(((x) < (y) & (bits)(x)) | (~((x) < (y)) & (bits)(y))))
#define LARGER(x, y) ((eight)(((x) < (y) & (bits)(y)) | (~((x) < (y)) & (bits)(x))))
#endif

static inline __attribute__((always_inline)) void compare(float *p, float *q, int smaller, int larger) {
    for (int j = 0; j < STRIP; j += 8) {
        eight x = *(eight *)(p + j), y = *(eight *)(q + j);
        if (smaller) *(eight *)(p + j) = SMALLER(x, y);
        if (larger) *(eight *)(q + j) = LARGER(x, y);
    }
}

/* Brings the middle values of K rows to their places; where only one end of a comparison is needed, only that is made. */
static void select_middle(float (*row)[STRIP], const int32_t *comparators, int64_t count) {
    for (int64_t m = 0; m < count; m++, comparators += 4) {
        float *p = row[comparators[0]], *q = row[comparators[1]];
        if (comparators[2] && comparators[3])
            compare(p, q, 1, 1);
        else if (comparators[2])
            compare(p, q, 1, 0);
        else
            compare(p, q, 0, 1);
    }
}

/* The one or two values in the middle of |u| over the K columns, and the columns they are found in: places (B, middles, n). The
   comparators (i, j, keep the smaller in i, keep the larger in j) put them where `middle` says. */
void surebound_medians(const float *u, int64_t b, int64_t k, int64_t n, const int32_t *comparators, int64_t count,
                       const int32_t *middle, int64_t middles, float *norm, uint8_t *places, int64_t threads) {
    int64_t strips = (n + STRIP - 1) / STRIP;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < b * strips; t++) {
        int64_t e = t / strips, first = t % strips * STRIP, size = n - first < STRIP ? n - first : STRIP;
        const float *from = u + e * k * n + first;
        float whole[128][STRIP], row[128][STRIP], sum[STRIP] = {0};
        for (int64_t i = 0; i < k; i++) {
            if (size < STRIP) memset(whole[i], 0, sizeof whole[i]);
            memcpy(whole[i], from + i * n, size * sizeof *from);
            for (int j = 0; j < STRIP; j += 16) __builtin_prefetch(from + i * n + STRIP + j); /* rows are far apart */
#pragma omp simd
            for (int j = 0; j < STRIP; j++) row[i][j] = whole[i][j] = fabsf(whole[i][j]);
        }
        select_middle(row, comparators, count);
        for (int64_t s = 0; s < middles; s++) {
            const float *value = row[middle[s]];
            int32_t place[STRIP] = {0};
            for (int j = 0; j < STRIP; j++) sum[j] += value[j];
            for (int64_t i = 0; i < k; i++) { /* of equal ones: the first for the lower, the last for the upper */
                int32_t at = (int32_t)(s ? i : k - 1 - i);
                for (int j = 0; j < STRIP; j += 8) {
                    bits same = *(const eight *)(whole[at] + j) == *(const eight *)(value + j);
                    *(bits *)(place + j) = (same & at) | (~same & *(bits *)(place + j));
                }
            }
            for (int64_t j = 0; j < size; j++) places[(e * middles + s) * n + first + j] = (uint8_t)place[j];
        }
        memcpy(norm + e * n + first, sum, size * sizeof *sum);
    }
}

/* Adds to sum (rows of o, one per entry of a window) for one column: v (h w c) times g, laid out with a border (see Back). */
#define WEIGHTS(NAME, ENTRIES, VECTORS)                                                                                       \
    static inline __attribute__((always_inline)) void NAME(const Conv *d, const float *v, const float *g, int64_t row,        \
                                                           int64_t column, const int32_t *at, float *sum) {                   \
        eight total[ENTRIES][VECTORS];                                                                                        \
        for (int i = 0; i < ENTRIES; i++)                                                                                     \
            for (int s = 0; s < VECTORS; s++) total[i][s] = *(const eight *)(sum + i * d->o + 8 * s);                         \
        for (int64_t y = 0; y < d->oh; y++)                                                                                   \
            for (int64_t x = 0; x < d->ow; x++) {                                                                             \
                const float *from = v + (y * d->sy * d->w + x * d->sx) * d->c, *each = g + y * row + x * column;              \
                for (int i = 0; i < ENTRIES; i++)                                                                             \
                    for (int s = 0; s < VECTORS; s++) total[i][s] += from[at[i]] * *(const eight *)(each + 8 * s);            \
            }                                                                                                                 \
        for (int i = 0; i < ENTRIES; i++)                                                                                     \
            for (int s = 0; s < VECTORS; s++) *(eight *)(sum + i * d->o + 8 * s) = total[i][s];                               \
    }
WEIGHTS(six_weights, 6, 2)
WEIGHTS(one_weight, 1, 2)
WEIGHTS(six_weights_narrow, 6, 1)
WEIGHTS(one_weight_narrow, 1, 1)

static void weigh(const Conv *d, const float *v, const float *g, int64_t row, int64_t column, const int32_t *at, float *sum) {
    int64_t window = d->kh * d->kw * d->c;
    for (int64_t o = 0; o < d->o;) {
        int64_t wide = d->o - o >= 16;
        for (int64_t i = 0; i < window;) {
            int64_t six = window - i >= 6;
            float *to = sum + i * d->o + o;
            if (six && wide)
                six_weights(d, v, g + o, row, column, at + i, to);
            else if (six)
                six_weights_narrow(d, v, g + o, row, column, at + i, to);
            else if (wide)
                one_weight(d, v, g + o, row, column, at + i, to);
            else
                one_weight_narrow(d, v, g + o, row, column, at + i, to);
            i += six ? 6 : 1;
        }
        o += wide ? 16 : 8;
    }
}

/* Gradients through medians, convolution and lines.

   g (B, oh ow o): of the sums of middles, which each reach one or two of the K columns; NULL: there are none. g_u (B, K, oh ow o):
   of the convolution's values that come from further on; NULL: none. Columns whose g_u is 0 throughout, all of them in networks
   that are mostly stable, are cheap: a few windows are added up. The others are convolved with the turned kernel, laid out
   with a border of zeros and zeros between strides, whose terms are left out.

   weight (o, kh kw c), turned (kh kw o, c). Without gu nothing is asked for but the weight's gradient. Results: gu (B, K, n),
   g_slope and g_gap (B, n), g_weight (B, kh kw c, o). */
int64_t surebound_convolve_backward(const float *g, const uint8_t *places, int64_t middles, const float *g_u, const float *u,
                                    const float *u_in, const float *slope, const float *gap, const float *noise,
                                    const float *weight, const float *turned, int64_t b, int64_t k, int64_t h, int64_t w,
                                    int64_t c, int64_t oh, int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy, int64_t sx,
                                    float *gu, float *g_slope, float *g_gap, float *g_weight, int64_t threads) {
    int64_t n = h * w * c, out = oh * ow * o, window = kh * kw * c, failed = 0;
    int64_t bh = h + kh - 1, bw = w + kw - 1, border = bh * bw * o;
    Conv d = {h, w, c, oh, ow, o, kh, kw, sy, sx}, back = {bh, bw, o, h, w, c, kh, kw, 1, 1};
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *v = malloc(k * n * sizeof *v), *gv = malloc(k * n * sizeof *gv), *dense = NULL, *found = NULL;
        float *sparse = malloc(o * window * sizeof *sparse);
        int32_t *at = malloc((window + 1) * sizeof *at), *list = malloc(2 * (kh * kw * o + 1) * sizeof *list);
        int64_t *slot = malloc(k * sizeof *slot);
        uint8_t *live = calloc(border, 1);
        failed = !v || !gv || !sparse || !at || !list || !slot || !live;
        if (g_u && !failed) {
            dense = calloc(k * border, sizeof *dense), found = malloc(k * n * sizeof *found);
            failed = !dense || !found;
        }
        if (!failed) {
            for (int64_t i = 0; i < window; i++)
                at[i] = (int32_t)((i / c / kw * w + i / c % kw) * c + i % c);
            for (int64_t y = 0; y < oh; y++)
                for (int64_t x = 0; x < ow; x++) memset(live + ((y * sy + kh - 1) * bw + x * sx + kw - 1) * o, 1, o);
        }
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++) {
            if (failed) continue;
            const float *from = u_in ? u_in + e * k * n : NULL, *s = slope ? slope + e * n : NULL;
            float *gw = g_weight + e * window * o;
            int64_t slots = 0;
            line_up(from, s, gap + e * n, noise, k, n, v);
            memset(gw, 0, window * o * sizeof *gw);
            memset(sparse, 0, window * o * sizeof *sparse);
            for (int64_t i = 0; i < k; i++) {
                const float *row = g_u ? g_u + (e * k + i) * out : NULL;
                int64_t any = 0;
                for (int64_t j = 0; row && j < out && !any; j++) any = row[j] != 0.0f;
                slot[i] = any ? slots++ : -1;
                for (int64_t y = 0; any && y < oh; y++)
                    for (int64_t x = 0; x < ow; x++)
                        memcpy(dense + slot[i] * border + ((y * sy + kh - 1) * bw + x * sx + kw - 1) * o,
                               row + (y * ow + x) * o, o * sizeof *row);
                if (!any) memset(gv + i * n, 0, n * sizeof *gv);
            }
            for (int64_t j = 0; g && j < out; j++) {
                float each = g[e * out + j];
                if (each == 0.0f) continue;
                int64_t channel = j % o, x = j / o % ow, y = j / o / ow;
                for (int64_t t = 0; t < middles; t++) {
                    int64_t i = places[(e * middles + t) * out + j];
                    float value = u[(e * k + i) * out + j], signed_g = value > 0 ? each : value < 0 ? -each : 0.0f;
                    if (slot[i] >= 0) {
                        dense[slot[i] * border + ((y * sy + kh - 1) * bw + x * sx + kw - 1) * o + channel] += signed_g;
                        continue;
                    }
                    for (int64_t a = 0; a < kh; a++) {
                        int64_t place = i * n + ((y * sy + a) * w + x * sx) * c, to = channel * window + a * kw * c;
                        const float *wt = weight + to, *vt = v + place;
                        float *gvt = gv + place, *gwt = sparse + to;
#pragma omp simd
                        for (int64_t m = 0; m < kw * c; m++) {
                            gvt[m] += signed_g * wt[m];
                            gwt[m] += signed_g * vt[m];
                        }
                    }
                }
            }
            if (slots && gu) convolve(&back, dense, live, turned, slots, list, list + kh * kw * o + 1, found);
            for (int64_t i = 0; slots && i < k; i++) {
                if (slot[i] < 0) continue;
                if (gu) memcpy(gv + i * n, found + slot[i] * n, n * sizeof *gv);
                weigh(&d, v + i * n, dense + slot[i] * border + ((kh - 1) * bw + kw - 1) * o, sy * bw * o, sx * o, at, gw);
            }
            for (int64_t i = 0; i < o; i++)
                for (int64_t m = 0; m < window; m++) gw[m * o + i] += sparse[i * window + m];
            if (gu) line_back(gv, from, s, noise, k, n, gu + e * k * n, g_slope + e * n, g_gap + e * n);
        }
        free(v), free(gv), free(dense), free(found), free(sparse), free(at), free(list), free(slot), free(live);
    }
    return failed;
}

/* Gradients through medians, a matrix (o, n) and lines, where nothing further on depends on the columns themselves: each of the g
   (B, o) that is not 0 reaches one or two of the K columns. u (B, K, o) are the products. g_weight (threads, o, n). */
int64_t surebound_matrix_backward(const float *g, const uint8_t *places, int64_t middles, const float *u, const float *u_in,
                                  const float *slope, const float *gap, const float *noise, const float *weight, int64_t b,
                                  int64_t k, int64_t n, int64_t o, float *gu, float *g_slope, float *g_gap, float *g_weight,
                                  int64_t threads) {
    int64_t failed = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(| : failed)
    for (int64_t t = 0; t < threads; t++) {
        float *v = malloc(k * n * sizeof *v), *gv = malloc(k * n * sizeof *gv), *gw = g_weight + t * o * n;
        failed = !v || !gv;
        memset(gw, 0, o * n * sizeof *gw);
        for (int64_t e = b * t / threads; e < b * (t + 1) / threads && !failed; e++) {
            const float *from = u_in ? u_in + e * k * n : NULL, *s = slope ? slope + e * n : NULL;
            line_up(from, s, gap + e * n, noise, k, n, v);
            memset(gv, 0, k * n * sizeof *gv);
            for (int64_t i = 0; i < o; i++) {
                float each = g[e * o + i], *to = gw + i * n;
                const float *wt = weight + i * n;
                for (int64_t m = 0; each != 0.0f && m < middles; m++) {
                    int64_t column = places[(e * middles + m) * o + i];
                    float value = u[(e * k + column) * o + i], signed_g = value > 0 ? each : value < 0 ? -each : 0.0f;
                    const float *vt = v + column * n;
                    float *gvt = gv + column * n;
#pragma omp simd
                    for (int64_t j = 0; j < n; j++) {
                        gvt[j] += signed_g * wt[j];
                        to[j] += signed_g * vt[j];
                    }
                }
            }
            line_back(gv, from, s, noise, k, n, gu ? gu + e * k * n : NULL, g_slope ? g_slope + e * n : NULL, g_gap + e * n);
        }
        free(v), free(gv);
    }
    return failed;
}
