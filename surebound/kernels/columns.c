/* Columns of random projections, K for each of B examples, through a ReLU's lines, a convolution and a median.

   Values lie with channels innermost: u (B, K, n), n = H W C. Products and sums may be contracted. An
   example is the work of one thread; only a matrix's gradient is added up in an order that depends on their number. */

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

/* Gradients of one example: gv (K, n) -> gu = slope gv (may be gv); over the columns, gv u and gv noise are added to the sums. */
static void line_back(const float *gv, const float *u, const float *slope, const float *noise, int64_t k, int64_t n, float *gu,
                      float *g_slope, float *g_gap) {
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
    for (int64_t e = 0; e < b; e++) {
        memset(g_gap + e * n, 0, n * sizeof *g_gap);
        if (u) memset(g_slope + e * n, 0, n * sizeof *g_slope);
        line_back(gv + e * k * n, u ? u + e * k * n : NULL, slope ? slope + e * n : NULL, noise, k, n, gu ? gu + e * k * n : NULL,
                  g_slope ? g_slope + e * n : NULL, g_gap + e * n);
    }
}

/* Lines and convolution of B examples; u_in and slope may be NULL (see line_up). */
int64_t surebound_convolve(const float *u_in, const float *slope, const float *gap, const float *noise, const float *weight,
                           int64_t b, int64_t k, int64_t h, int64_t w, int64_t c, int64_t oh, int64_t ow, int64_t o, int64_t kh,
                           int64_t kw, int64_t sy, int64_t sx, float *u, int64_t threads) {
    Conv d = {h, w, c, oh, ow, o, kh, kw, sy, sx};
    int64_t n = h * w * c, window = kh * kw * c, out = oh * ow * o, failed = 0;
    float *packed = aligned_alloc(64, tiles(o, 16) * window * 16 * sizeof *packed);
    if (!packed) return 1;
    pack_rows(weight, o, window, packed, threads);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *v = malloc(k * n * sizeof *v);
        int32_t *room = room_for(&d);
        uint8_t *live = malloc(n);
        failed = !v || !room || !live;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++) {
            if (failed) continue;
            const float *s = slope ? slope + e * n : NULL, *g = gap + e * n;
            for (int64_t j = 0; j < n; j++) live[j] = g[j] != 0.0f || (s && s[j] != 0.0f);
            line_up(u_in ? u_in + e * k * n : NULL, s, g, noise, k, n, v);
            convolve(&d, v, n, live, packed, k, room, u + e * k * out, out);
        }
        free(v), free(room), free(live);
    }
    free(packed);
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
   comparators (i, j, keep the smaller in i, keep the larger in j) put them where `middle` says. Of units that are not wanted (B, n)
   the sum is infinite; NULL: all are. Not 0: no memory. */
int64_t surebound_medians(const float *u, const uint8_t *wanted, int64_t b, int64_t k, int64_t n, const int32_t *comparators,
                          int64_t count, const int32_t *middle, int64_t middles, float *norm, uint8_t *places,
                          int64_t threads) {
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        int32_t *list = malloc((n + STRIP) * sizeof *list);
        float (*whole)[STRIP] = aligned_alloc(64, 2 * k * sizeof *whole), (*row)[STRIP] = whole + k;
        failed = !list || !whole;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++) {
            int64_t m = 0;
            for (int64_t j = 0; j < n && !failed; j++) {
                list[m] = (int32_t)j;
                m += wanted ? wanted[e * n + j] : 1;
                norm[e * n + j] = INFINITY;
            }
            if (wanted && !failed) memset(places + e * middles * n, 0, middles * n);
            for (int64_t j = 0; j < STRIP && m && !failed; j++) list[m + j] = list[m - 1]; /* fills up the last strip */
            for (int64_t first = 0; first < m && !failed; first += STRIP) {
                const int32_t *these = list + first;
                int64_t size = least(STRIP, m - first), dense = these[STRIP - 1] - these[0] == STRIP - 1;
                int64_t next = list[least(first + 2 * STRIP, m) - 1];
                float sum[STRIP] = {0};
                for (int64_t i = 0; i < k; i++) {
                    const float *from = u + (e * k + i) * n;
                    if (dense)
                        memcpy(whole[i], from + these[0], sizeof *whole);
                    else
                        for (int j = 0; j < STRIP; j++) whole[i][j] = from[these[j]];
                    /* rows are far apart */
                    for (int64_t j = these[STRIP - 1] + 1; j <= next; j += 16) __builtin_prefetch(from + j);
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
                    for (int64_t j = 0; j < size; j++) places[(e * middles + s) * n + these[j]] = (uint8_t)place[j];
                }
                for (int64_t j = 0; j < size; j++) norm[e * n + these[j]] = sum[j];
            }
        }
        free(list), free(whole);
    }
    return failed;
}

/* Adds to sum (rows of o, one per entry of a window) for one column: v (h w c) times g (rows `row` and pixels `column` apart). */
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

/* The gradient g of one unit of a column: times its weights added to gv (h w c), times v (h w c) added to its weights' gradient. */
static void add_window(const Conv *d, int64_t unit, float g, const float *weight, const float *v, float *gv, float *gw) {
    int64_t run = d->kw * d->c, channel = unit % d->o, x = unit / d->o % d->ow, y = unit / d->o / d->ow;
    for (int64_t a = 0; a < d->kh; a++) {
        int64_t place = ((y * d->sy + a) * d->w + x * d->sx) * d->c, of = (channel * d->kh + a) * run;
#pragma omp simd
        for (int64_t m = 0; m < run; m++) {
            gv[place + m] += g * weight[of + m];
            gw[of + m] += g * v[place + m];
        }
    }
}

/* What the medians of one example add to the gradients of its columns: by column, the unit and the signed gradient. */
typedef struct {
    int64_t *start; /* (K + 1) */
    int32_t *unit;
    float *g;
} Picks;

/* g (n) of the sums of `middles` values, places (middles, n), u (K, n). */
static void pick_up(const float *g, const uint8_t *places, int64_t middles, const float *u, int64_t k, int64_t n, Picks *to) {
    memset(to->start, 0, (k + 1) * sizeof *to->start);
    for (int64_t t = 0; g && t < middles; t++)
        for (int64_t j = 0; j < n; j++)
            if (g[j] != 0.0f) to->start[places[t * n + j] + 1]++;
    for (int64_t i = 0; i < k; i++) to->start[i + 1] += to->start[i];
    for (int64_t t = 0; g && t < middles; t++)
        for (int64_t j = 0; j < n; j++) {
            if (g[j] == 0.0f) continue;
            int64_t i = places[t * n + j], at = to->start[i]++;
            float value = u[i * n + j];
            to->unit[at] = (int32_t)j, to->g[at] = value > 0 ? g[j] : value < 0 ? -g[j] : 0.0f;
        }
    for (int64_t i = k; i > 0; i--) to->start[i] = to->start[i - 1]; /* filling has moved every start to the next */
    to->start[0] = 0;
}

static int64_t make_room(Picks *of, int64_t middles, int64_t k, int64_t n) {
    of->start = malloc((k + 1) * sizeof *of->start), of->unit = malloc(middles * n * sizeof *of->unit + 4);
    of->g = malloc(middles * n * sizeof *of->g + 4);
    return of->start && of->unit && of->g;
}

static void free_room(Picks *of) { free(of->start), free(of->unit), free(of->g); }

/* Gradients through medians, convolution and lines.

   g (B, oh ow o): of the sums of middles, which each reach one or two of the K columns; NULL: there are none. g_u (B, K, oh ow o):
   of the convolution's values that come from further on; NULL: none. Columns whose g_u is 0 throughout, nearly all of them in
   networks that are mostly stable, are cheap: a few windows are added up, column by column, so that a column stays in the
   cache. The others go back through the convolution without the entries that are 0 in all of them.

   weight (o, kh kw c). Without gu nothing is asked for but the weight's gradient. Results: gu (B, K, n), g_slope and g_gap (B, n),
   g_weight (B, o, kh kw c). */
int64_t surebound_convolve_backward(const float *g, const uint8_t *places, int64_t middles, const float *g_u, const float *u,
                                    const float *u_in, const float *slope, const float *gap, const float *noise,
                                    const float *weight, int64_t b, int64_t k, int64_t h, int64_t w, int64_t c, int64_t oh,
                                    int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy, int64_t sx, float *gu,
                                    float *g_slope, float *g_gap, float *g_weight, int64_t threads) {
    int64_t n = h * w * c, out = oh * ow * o, run = kw * c, window = kh * run, failed = 0;
    Conv d = {h, w, c, oh, ow, o, kh, kw, sy, sx};
    float *packed = aligned_alloc(64, tiles(c, 16) * kh * kw * o * 16 * sizeof *packed);
    if (!packed) return 1;
    pack_back(&d, weight, packed, threads);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        int64_t rows = g_u ? k : 0, *slot = malloc((k + 1) * sizeof *slot);
        float *v = malloc((rows + 1) * n * sizeof *v), *gv = malloc((rows + 1) * n * sizeof *gv);
        float *dense = malloc(rows * out * sizeof *dense + 4), *turned = malloc(window * o * sizeof *turned);
        int32_t *at = malloc((window + 1) * sizeof *at), *room = room_for(&d);
        int32_t *more = malloc(room_to_weigh(&d, rows) * sizeof *more);
        uint8_t *live = malloc(out);
        Picks picks;
        failed = !make_room(&picks, g ? middles : 0, k, out) | !slot | !v | !gv | !dense | !turned | !at | !room | !more | !live;
        if (!failed)
            for (int64_t i = 0; i < window; i++) at[i] = (int32_t)((i / c / kw * w + i / c % kw) * c + i % c);
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++) {
            if (failed) continue;
            const float *from = u_in ? u_in + e * k * n : NULL, *s = slope ? slope + e * n : NULL, *between = gap + e * n;
            float *gw = g_weight + e * window * o, *one = v + rows * n, *g_one = gv + rows * n;
            int64_t slots = 0;
            memset(gw, 0, window * o * sizeof *gw);
            memset(live, 0, out);
            pick_up(g ? g + e * out : NULL, places + e * middles * out, middles, u + e * k * out, k, out, &picks);
            for (int64_t i = 0; i < k; i++) { /* columns with a gradient from further on, one after the other */
                const float *row = g_u ? g_u + (e * k + i) * out : NULL;
                int64_t any = 0;
                for (int64_t j = 0; row && j < out && !any; j++) any = row[j] != 0.0f;
                slot[i] = any ? slots : -1;
                if (!any) continue;
                float *to = dense + slots * out;
                memcpy(to, row, out * sizeof *to);
                for (int64_t m = picks.start[i]; m < picks.start[i + 1]; m++) to[picks.unit[m]] += picks.g[m];
#pragma omp simd
                for (int64_t j = 0; j < out; j++) live[j] |= to[j] != 0.0f;
                line_up(from ? from + i * n : NULL, s, between, noise + i * n, 1, n, v + slots++ * n);
            }
            if (slots && gu) convolve_back(&d, dense, out, live, packed, slots, room, gv, n);
            if (slots && run >= 16) weigh_rows(&d, dense, out, live, v, n, slots, 0, pieces_of(&d), more, gw);
            if (slots && run < 16) { /* too short for that: by output channels */
                memset(turned, 0, window * o * sizeof *turned);
                for (int64_t i = 0; i < slots; i++) weigh(&d, v + i * n, dense + i * out, ow * o, o, at, turned);
                for (int64_t i = 0; i < o; i++)
                    for (int64_t m = 0; m < window; m++) gw[i * window + m] = turned[m * o + i];
            }
            if (gu) memset(g_slope + e * n, 0, n * sizeof *g_slope), memset(g_gap + e * n, 0, n * sizeof *g_gap);
            for (int64_t i = 0; i < k; i++) {
                float *back = slot[i] >= 0 ? gv + slot[i] * n : g_one, *to = gu ? gu + (e * k + i) * n : NULL;
                if (slot[i] < 0 && picks.start[i] == picks.start[i + 1]) {
                    if (to) memset(to, 0, n * sizeof *to);
                    continue;
                }
                if (slot[i] < 0) {
                    line_up(from ? from + i * n : NULL, s, between, noise + i * n, 1, n, one);
                    memset(back, 0, n * sizeof *back);
                    for (int64_t m = picks.start[i]; m < picks.start[i + 1]; m++)
                        add_window(&d, picks.unit[m], picks.g[m], weight, one, back, gw);
                }
                if (to) line_back(back, from + i * n, s, noise + i * n, 1, n, to, g_slope + e * n, g_gap + e * n);
            }
        }
        free(slot), free(v), free(gv), free(dense), free(turned), free(at), free(room), free(more), free(live);
        free_room(&picks);
    }
    free(packed);
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
        float *v = malloc(n * sizeof *v), *gv = malloc(n * sizeof *gv), *gw = g_weight + t * o * n;
        Conv d = {1, 1, n, 1, 1, o, 1, 1, 1, 1};
        Picks picks;
        failed = !make_room(&picks, middles, k, o) | !v | !gv;
        memset(gw, 0, o * n * sizeof *gw);
        for (int64_t e = b * t / threads; e < b * (t + 1) / threads && !failed; e++) {
            const float *from = u_in ? u_in + e * k * n : NULL, *s = slope ? slope + e * n : NULL;
            pick_up(g + e * o, places + e * middles * o, middles, u + e * k * o, k, o, &picks);
            memset(g_gap + e * n, 0, n * sizeof *g_gap);
            if (from) memset(g_slope + e * n, 0, n * sizeof *g_slope);
            for (int64_t i = 0; i < k; i++) {
                float *to = gu ? gu + (e * k + i) * n : NULL;
                if (picks.start[i] == picks.start[i + 1]) {
                    if (to) memset(to, 0, n * sizeof *to);
                    continue;
                }
                line_up(from ? from + i * n : NULL, s, gap + e * n, noise + i * n, 1, n, v);
                memset(gv, 0, n * sizeof *gv);
                for (int64_t m = picks.start[i]; m < picks.start[i + 1]; m++)
                    add_window(&d, picks.unit[m], picks.g[m], weight, v, gv, gw);
                line_back(gv, from ? from + i * n : NULL, s, noise + i * n, 1, n, to, g_slope ? g_slope + e * n : NULL,
                          g_gap + e * n);
            }
        }
        free(v), free(gv), free_room(&picks);
    }
    return failed;
}
