/* Products of the rows of an example, margins or columns of projections, with a convolution or a matrix, without the entries that
   are 0 in all rows: those of units that are off.

   Rows of one example lie `step` numbers apart. Values have channels innermost; a matrix is a convolution of one pixel. An example
   is the work of one thread, or a part of the weight: nothing depends on the number of threads. */

/* h, w, c -> oh, ow, o by windows of kh x kw, strides sy, sx, no padding. */
typedef struct {
    int64_t h, w, c, oh, ow, o, kh, kw, sy, sx;
} Conv;

#define LONG 1024        /* entries: from there on a window is worked on in parts */
#define MOST_TOGETHER 16 /* windows that are worked on together */
#define AT(p) (*(eight *)(p))
#define OF(p) (*(const eight *)(p))
#define OF_EACH_COUNT(M) M(1) M(2) M(3) M(4) M(5) M(6)
#define EIGHTFOLD _Pragma("GCC unroll 8")

/* COUNT rows, 8 VECTORS outputs: sums over m entries of v + at[i] times weight + of[i], with what is there if `more`. */
#define GATHER(COUNT, VECTORS)                                                                                                \
    static __attribute__((noinline)) void gather_##COUNT##_##VECTORS(const float *v, int64_t step, const int32_t *at,         \
                                                                     const int32_t *of, int64_t m, const float *weight,       \
                                                                     float *to, int64_t far, int64_t more) {                  \
        eight sum[COUNT][VECTORS] = {{{0}}};                                                                                  \
        if (more) EIGHTFOLD for (int k = 0; k < COUNT; k++)                                                                   \
            for (int s = 0; s < VECTORS; s++) sum[k][s] = OF(to + k * far + 8 * s);                                           \
        for (int64_t i = 0; i < m; i++) {                                                                                     \
            const float *x = v + at[i], *w = weight + of[i];                                                                  \
            eight each[VECTORS];                                                                                              \
            for (int s = 0; s < VECTORS; s++) each[s] = OF(w + 8 * s);                                                        \
            EIGHTFOLD for (int k = 0; k < COUNT; k++)                                                                         \
                for (int s = 0; s < VECTORS; s++) sum[k][s] += x[k * step] * each[s];                                         \
        }                                                                                                                     \
        EIGHTFOLD for (int k = 0; k < COUNT; k++)                                                                             \
            for (int s = 0; s < VECTORS; s++) AT(to + k * far + 8 * s) = sum[k][s];                                           \
    }
#define GATHER_WIDE(COUNT) GATHER(COUNT, 2)
#define GATHER_NARROW(COUNT) GATHER(COUNT, 1)

/* 8 VECTORS numbers of a weight's row: sums over m positions and s rows of a (m, s) times g + at[i]. */
#define WEIGH(VECTORS)                                                                                                        \
    static __attribute__((noinline)) void weigh_##VECTORS(const float *a, const float *g, int64_t far, const int32_t *at,     \
                                                          int64_t m, int64_t s, float *to) {                                  \
        eight sum[VECTORS];                                                                                                   \
        EIGHTFOLD for (int k = 0; k < VECTORS; k++) sum[k] = OF(to + 8 * k);                                                  \
        for (int64_t i = 0; i < m; i++) {                                                                                     \
            const float *x = g + at[i];                                                                                       \
            for (int64_t r = 0; r < s; r++, x += far, a++)                                                                    \
                EIGHTFOLD for (int k = 0; k < VECTORS; k++) sum[k] += *a * OF(x + 8 * k);                                     \
        }                                                                                                                     \
        EIGHTFOLD for (int k = 0; k < VECTORS; k++) AT(to + 8 * k) = sum[k];                                                  \
    }

OF_EACH_COUNT(GATHER_WIDE)
OF_EACH_COUNT(GATHER_NARROW)
OF_EACH_COUNT(WEIGH)
WEIGH(7)
WEIGH(8)
#define NAMED(NAME, END) {NULL, NAME##_1##END, NAME##_2##END, NAME##_3##END, NAME##_4##END, NAME##_5##END, NAME##_6##END}
typedef void (*Gather)(const float *, int64_t, const int32_t *, const int32_t *, int64_t, const float *, float *, int64_t, int64_t);
static const Gather gather_wide[] = NAMED(gather, _2), gather_narrow[] = NAMED(gather, _1);
static void (*const weigh_of[])(const float *, const float *, int64_t, const int32_t *, int64_t, int64_t, float *) = {
    NULL, weigh_1, weigh_2, weigh_3, weigh_4, weigh_5, weigh_6, weigh_7, weigh_8};

/* The numbers of live entries (pixels c) in order, with room for one more, and where those of each pixel begin (pixels + 1). */
static void list_live(const uint8_t *live, int64_t pixels, int64_t c, int32_t *list, int32_t *start) {
    int64_t m = 0;
    for (int64_t p = 0; p < pixels; p++) {
        start[p] = (int32_t)m;
        for (int64_t j = p * c; j < (p + 1) * c; j++) {
            list[m] = (int32_t)j;
            m += live[j];
        }
    }
    start[pixels] = (int32_t)m;
}

/* The live entries of one window: where they are in an image, and where their weights are in (window, 16). */
static int64_t list_window(const Conv *d, int64_t y, int64_t x, const int32_t *list, const int32_t *start, int32_t *at,
                           int32_t *of) {
    int64_t m = 0;
    for (int64_t a = 0; a < d->kh; a++) {
        int64_t pixel = (y * d->sy + a) * d->w + x * d->sx, from = start[pixel], size = start[pixel + d->kw] - from;
        int32_t base = (int32_t)((pixel - a * d->kw) * d->c);
#pragma omp simd
        for (int64_t j = 0; j < size; j++) at[m + j] = list[from + j], of[m + j] = (list[from + j] - base) * 16;
        m += size;
    }
    return m;
}

/* The live entries (oh ow o) that one pixel contributes to: where they are, and where their weights are in (kh kw o, 16), the
   columns of a window in reverse. */
static int64_t list_back(const Conv *d, int64_t y, int64_t x, const int32_t *list, const int32_t *start, int32_t *at,
                         int32_t *of) {
    int64_t m = 0, last = least(x / d->sx, d->ow - 1), first = x - d->kw + 1 < 0 ? 0 : tiles(x - d->kw + 1, d->sx);
    for (int64_t a = y % d->sy; a < d->kh && a <= y; a += d->sy) {
        int64_t row = (y - a) / d->sy, together = d->sx == 1 ? last - first + 1 : 1;
        for (int64_t column = first; row < d->oh && column <= last; column += together) {
            int64_t place = row * d->ow + column, b = x - column * d->sx;
            int64_t from = start[place], size = start[place + together] - from;
            int32_t base = (int32_t)((place - a * d->kw - (d->kw - 1 - b)) * d->o);
#pragma omp simd
            for (int64_t j = 0; j < size; j++) at[m + j] = list[from + j], of[m + j] = (list[from + j] - base) * 16;
            m += size;
        }
    }
    return m;
}

/* k rows of v at the entries of each of `many` windows, m[0], m[1], ... of them, `most` apart in the lists, times weights packed
   (strip, window, 16) -> `outs` numbers of k rows per window, one after the other. In an order in which, of short windows, what a
   few rows of v hold stays in the first cache; of long ones, 16 columns of a part of the weight do. */
static void combine(const float *v, int64_t step, const int32_t *at, const int32_t *of, const int64_t *m, int64_t many,
                    int64_t most, const float *packed, int64_t window, int64_t outs, int64_t k, float *u, int64_t far) {
    int64_t groups = tiles(k, 6), strips = tiles(outs, 16), chunk = window > LONG ? CHUNK : window;
    for (int64_t first = 0; first == 0 || first < m[0]; first += chunk)
        for (int64_t q = 0; q < groups * strips; q++) {
            int64_t t = window > LONG ? q % groups : q / strips, s = window > LONG ? q / groups : q % strips;
            int64_t i = k * t / groups, count = k * (t + 1) / groups - i, part = least(16, outs - 16 * s);
            const float *these = packed + s * window * 16;
            float line[6 * 16];
            const Gather gather = (part > 8 ? gather_wide : gather_narrow)[count];
            for (int64_t x = 0; x < many; x++) {
                int64_t begin = x * most + first, now = least(m[x] - first, chunk);
                float *to = u + i * far + x * outs + 16 * s;
                if (part % 8 == 0) {
                    gather(v + i * step, step, at + begin, of + begin, now, these, to, far, first);
                    continue;
                }
                for (int64_t r = 0; first && r < count; r++) memcpy(line + 16 * r, to + r * far, part * sizeof *to);
                gather(v + i * step, step, at + begin, of + begin, now, these, line, 16, first);
                for (int64_t r = 0; r < count; r++) memcpy(to + r * far, line + 16 * r, part * sizeof *to);
            }
        }
}

/* How many windows are worked on together: a row of them, if they are short. */
static int64_t together(int64_t window, int64_t row) { return window > LONG ? 1 : least(row, MOST_TOGETHER); }

/* What a thread needs for either of these: NULL if there is no memory. */
static int32_t *room_for(const Conv *d) {
    int64_t in = d->h * d->w * (d->c + 1), out = d->oh * d->ow * (d->o + 1), taps = d->kh * d->kw;
    int64_t windows = together(taps * d->c, d->ow) * d->c, back = together(taps * d->o, d->w) * d->o;
    return malloc(((in > out ? in : out) + 2 + 2 * taps * (windows > back ? windows : back)) * sizeof(int32_t));
}

/* One example: v (k rows of h w c), live (h w c), packed (strip, kh kw c, 16), see pack_rows -> u (k rows of oh ow o). */
static void convolve(const Conv *d, const float *v, int64_t step, const uint8_t *live, const float *packed, int64_t k,
                     int32_t *room, float *u, int64_t far) {
    int64_t n = d->h * d->w * d->c, window = d->kh * d->kw * d->c, many = together(window, d->ow), m[MOST_TOGETHER];
    int32_t *list = room, *start = list + n + 1, *at = start + d->h * d->w + 1, *of = at + window * many;
    list_live(live, d->h * d->w, d->c, list, start);
    for (int64_t y = 0; y < d->oh; y++)
        for (int64_t x = 0; x < d->ow; x += many) {
            int64_t now = least(many, d->ow - x);
            for (int64_t i = 0; i < now; i++) m[i] = list_window(d, y, x + i, list, start, at + i * window, of + i * window);
            combine(v, step, at, of, m, now, window, packed, window, d->o, k, u + (y * d->ow + x) * d->o, far);
        }
}

/* One example, back: a (k rows of oh ow o), live (oh ow o), packed (strip, kh kw o, 16), see pack_back -> x (k rows of h w c). */
static void convolve_back(const Conv *d, const float *a, int64_t step, const uint8_t *live, const float *packed, int64_t k,
                          int32_t *room, float *to, int64_t far) {
    int64_t n = d->oh * d->ow * d->o, window = d->kh * d->kw * d->o, many = together(window, d->w), m[MOST_TOGETHER];
    int32_t *list = room, *start = list + n + 1, *at = start + d->oh * d->ow + 1, *of = at + window * many;
    list_live(live, d->oh * d->ow, d->o, list, start);
    for (int64_t y = 0; y < d->h; y++)
        for (int64_t x = 0; x < d->w; x += many) {
            int64_t now = least(many, d->w - x);
            for (int64_t i = 0; i < now; i++) m[i] = list_back(d, y, x + i, list, start, at + i * window, of + i * window);
            combine(a, step, at, of, m, now, window, packed, window, d->c, k, to + (y * d->w + x) * d->c, far);
        }
}

/* A weight (o, kh, kw, c) as (strip of 16 input channels, kh kw o, 16), kw in reverse, with zeros for channels that are not there. */
static void pack_back(const Conv *d, const float *weight, float *to, int64_t threads) {
    int64_t taps = d->kh * d->kw, strips = tiles(d->c, 16);
#pragma omp parallel for num_threads(threads) if (d->o * taps * d->c >= SMALL) schedule(static)
    for (int64_t s = 0; s < strips; s++)
        for (int64_t i = 0; i < taps * d->o; i++) {
            int64_t part = least(16, d->c - 16 * s), tap = i / d->o, from = tap / d->kw * d->kw + d->kw - 1 - tap % d->kw;
            float *row = to + (s * taps * d->o + i) * 16;
            if (part < 16) memset(row, 0, 16 * sizeof *row);
            memcpy(row, weight + (i % d->o * taps + from) * d->c + 16 * s, part * sizeof *row);
        }
}

/* Which entries (B, n) are not 0 in some of the rows a (S, B, n), which (n) are so in some example, and how many the former are. */
int64_t surebound_live(const float *a, int64_t s, int64_t b, int64_t n, uint8_t *live, uint8_t *any, int64_t threads) {
    int64_t count = 0;
#pragma omp parallel for num_threads(threads) if (s * b * n >= SMALL) schedule(static) reduction(+ : count)
    for (int64_t e = 0; e < b; e++) {
        uint8_t *of = live + e * n;
        memset(of, 0, n);
        for (int64_t i = 0; i < s; i++) {
            const float *x = a + (i * b + e) * n;
#pragma omp simd
            for (int64_t j = 0; j < n; j++) of[j] |= x[j] != 0.0f;
        }
        int64_t found = 0;
#pragma omp simd reduction(+ : found)
        for (int64_t j = 0; j < n; j++) found += of[j];
        count += found;
    }
    memset(any, 0, n);
    for (int64_t e = 0; e < b; e++)
#pragma omp simd
        for (int64_t j = 0; j < n; j++) any[j] |= live[e * n + j];
    return count;
}

/* Rows g (S, B, h w c), live (B, h w c), weight (o, kh kw c) -> rows out (S, B, oh ow o). Not 0: no memory. */
int64_t surebound_rows_product(const float *g, const uint8_t *live, const float *weight, int64_t s, int64_t b, int64_t h,
                               int64_t w, int64_t c, int64_t oh, int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy,
                               int64_t sx, float *out, int64_t threads) {
    Conv d = {h, w, c, oh, ow, o, kh, kw, sy, sx};
    int64_t n = h * w * c, m = oh * ow * o, window = kh * kw * c, failed = 0;
    float *packed = aligned_alloc(64, tiles(o, 16) * window * 16 * sizeof *packed);
    if (!packed) return 1;
    pack_rows(weight, o, window, 16, packed, threads);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        int32_t *room = room_for(&d);
        failed = !room;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++)
            if (!failed) convolve(&d, g + e * n, b * n, live + e * n, packed, s, room, out + e * m, b * m);
        free(room);
    }
    free(packed);
    return failed;
}

/* Rows a (S, B, oh ow o), live (B, oh ow o), weight (o, kh kw c) -> rows x (S, B, h w c), the adjoint. Not 0: no memory. */
int64_t surebound_rows_adjoint(const float *a, const uint8_t *live, const float *weight, int64_t s, int64_t b, int64_t h,
                               int64_t w, int64_t c, int64_t oh, int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy,
                               int64_t sx, float *x, int64_t threads) {
    Conv d = {h, w, c, oh, ow, o, kh, kw, sy, sx};
    int64_t n = h * w * c, m = oh * ow * o, failed = 0;
    float *packed = aligned_alloc(64, tiles(c, 16) * kh * kw * o * 16 * sizeof *packed);
    if (!packed) return 1;
    pack_back(&d, weight, packed, threads);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        int32_t *room = room_for(&d);
        failed = !room;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++)
            if (!failed) convolve_back(&d, a + e * m, b * m, live + e * m, packed, s, room, x + e * n, b * n);
        free(room);
    }
    free(packed);
    return failed;
}

/* Numbers of the pieces of a weight's rows that `weigh_rows` works on, 64 at a time. */
static int64_t pieces_of(const Conv *d) { return d->kh * tiles(d->kw * d->c, 64); }

/* Room that `weigh_rows` needs, in numbers of 4 bytes. */
static int64_t room_to_weigh(const Conv *d, int64_t s) { return (d->ow + 1) * d->o + d->ow * d->o * s; }

/* One example: rows a (s of oh ow o, `step` apart), live (oh ow o), rows g (s of h w c, `far` apart), added to the gradient
   (o, kh, kw c) of the weight, as far as the pieces first .. last - 1 go. */
static void weigh_rows(const Conv *d, const float *a, int64_t step, const uint8_t *live, const float *g, int64_t far, int64_t s,
                       int64_t first, int64_t last, int32_t *room, float *weight) {
    int64_t o = d->o, run = d->kw * d->c, pieces = tiles(run, 64);
    int32_t *at = room, *many = at + d->ow * o;
    float *rows = (float *)(many + o);
    for (int64_t y = 0; y < d->oh; y++) { /* a row of positions: what it reads of g stays in the first cache */
        memset(many, 0, o * sizeof *many);
        for (int64_t x = 0; x < d->ow; x++)
            for (int64_t j = 0; j < o; j++) {
                int64_t i = (y * d->ow + x) * o + j, place = j * d->ow + many[j];
                if (!live[i]) continue;
                many[j]++, at[place] = (int32_t)(x * d->sx * d->c);
                for (int64_t r = 0; r < s; r++) rows[place * s + r] = a[r * step + i];
            }
        for (int64_t t = first; t < last; t++) {
            int64_t off = t % pieces * 64, part = least(64, run - off), most = part / 8;
            const float *from = g + (y * d->sy + t / pieces) * d->w * d->c + off;
            for (int64_t j = 0; j < o; j++) {
                float *to = weight + (j * d->kh + t / pieces) * run + off;
                const float *these = rows + j * d->ow * s;
                if (many[j] && most) weigh_of[most](these, from, far, at + j * d->ow, many[j], s, to);
                for (int64_t i = 0; part % 8 && i < many[j] * s; i++)
                    for (int64_t k = 8 * most; k < part; k++)
                        to[k] += these[i] * from[at[j * d->ow + i / s] + i % s * far + k];
            }
        }
    }
}

/* Rows a (S, B, oh ow o), live (B, oh ow o), rows g (S, B, h w c) -> the gradient (o, kh, kw c) of the weight. Not 0: no memory. */
int64_t surebound_rows_weight(const float *a, const uint8_t *live, const float *g, int64_t s, int64_t b, int64_t h, int64_t w,
                              int64_t c, int64_t oh, int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy, int64_t sx,
                              float *weight, int64_t threads) {
    Conv d = {h, w, c, oh, ow, o, kh, kw, sy, sx};
    int64_t n = h * w * c, out = oh * ow * o, all = pieces_of(&d), failed = 0;
    memset(weight, 0, o * kh * kw * c * sizeof *weight);
    if (threads > all) threads = all;
#pragma omp parallel for num_threads(threads) reduction(| : failed) schedule(static, 1)
    for (int64_t thread = 0; thread < threads; thread++) { /* every thread has pieces of the weight of its own */
        int32_t *room = malloc(room_to_weigh(&d, s) * sizeof *room);
        failed = !room;
        for (int64_t e = 0; e < b && !failed; e++)
            weigh_rows(&d, a + e * out, b * out, live + e * out, g + e * n, b * n, s, all * thread / threads,
                       all * (thread + 1) / threads, room, weight);
        free(room);
    }
    return failed;
}
