/* Convolutions of images with channels innermost and their two gradients, in tiles of HIGH positions by BROAD channels.

   The windows of one row of a kernel run on in memory, kw c numbers, and so do BROAD channels of an output: a tile needs no
   rearranged copy of the images. A matrix is a window of one pixel, its rows the positions of one image. Products and sums
   may be contracted. Nothing depends on the number of threads. */
#ifdef __clang__
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC optimize("fp-contract=fast")
#endif

/* A tile's sums fill half to three quarters of the registers: 32 of 16 numbers, or 16 of 8. */
#if ACROSS == 16
#define HIGH 8
#define EACH_TILE(M, P) M(1, P) M(2, P) M(3, P) M(4, P) M(5, P) M(6, P) M(7, P) M(8, P)
#define TILES(NAME, P)                                                                                                        \
    {NULL,         NAME##_1_##P, NAME##_2_##P, NAME##_3_##P, NAME##_4_##P,                                                    \
     NAME##_5_##P, NAME##_6_##P, NAME##_7_##P, NAME##_8_##P}
#else
#define HIGH 6
#define EACH_TILE(M, P) M(1, P) M(2, P) M(3, P) M(4, P) M(5, P) M(6, P)
#define TILES(NAME, P) {NULL, NAME##_1_##P, NAME##_2_##P, NAME##_3_##P, NAME##_4_##P, NAME##_5_##P, NAME##_6_##P}
#endif
#define BROAD (2 * ACROSS)

/* Do they pay on this processor? They are written for vectors of at least eight numbers and fused multiply-adds. */
int64_t surebound_products_pay(int64_t threads) {
    (void)threads;
#if defined(__AVX2__) && defined(__FMA__)
    return 1;
#else
    return 0;
#endif
}

/* And those of matrices? On processors with wider vectors the usual library may use half of them (MKL on AMD's). */
int64_t surebound_matrices_pay(int64_t threads) {
    (void)threads;
    return ACROSS == 16;
}

typedef struct {
    int64_t h, w, c, oh, ow, o, kh, kw, sy, sx, py, px;
} Shape;

/* COUNT positions, PARTS vectors: windows of `rows` x `run` numbers at x + at[k], rows `apart`, times w (rows run, BROAD),
   added to (COUNT, PARTS ACROSS). */
#define FORWARD(COUNT, PARTS)                                                                                                 \
    static __attribute__((noinline)) void forward_##COUNT##_##PARTS(const float *x, const int32_t *at, int64_t rows,          \
                                                                    int64_t run, int64_t apart, const float *w, float *to,   \
                                                                    int64_t step) {                                           \
        across sum[COUNT][PARTS], v[PARTS];                                                                                   \
        const float *from[COUNT];                                                                                             \
        UNROLLED for (int k = 0; k < COUNT; k++) {                                                                              \
            from[k] = x + at[k];                                                                                              \
            UNROLLED for (int q = 0; q < PARTS; q++) sum[k][q] = GET(to + k * step + q * ACROSS);                                \
        }                                                                                                                     \
        for (int64_t y = 0; y < rows; y++) {                                                                                  \
            for (int64_t i = 0; i < run; i++, w += BROAD) {                                                                   \
                UNROLLED for (int q = 0; q < PARTS; q++) v[q] = GET(w + q * ACROSS);                                             \
                UNROLLED for (int k = 0; k < COUNT; k++)                                                                        \
                    UNROLLED for (int q = 0; q < PARTS; q++) sum[k][q] += from[k][i] * v[q];                                    \
            }                                                                                                                 \
            UNROLLED for (int k = 0; k < COUNT; k++) from[k] += apart;                                                          \
        }                                                                                                                     \
        UNROLLED for (int k = 0; k < COUNT; k++)                                                                                \
            UNROLLED for (int q = 0; q < PARTS; q++) PUT(to + k * step + q * ACROSS) = sum[k][q];                                \
    }

/* COUNT positions: g (COUNT, o) times w (o, BROAD), added to PARTS vectors at x + at[k], which may overlap. */
#define INPUT(COUNT, PARTS)                                                                                                   \
    static __attribute__((noinline)) void input_##COUNT##_##PARTS(const float *g, int64_t o, int64_t n, const float *w,       \
                                                                  float *x, const int32_t *at) {                              \
        across sum[COUNT][PARTS] = {{{0}}}, v[PARTS];                                                                         \
        const float *from[COUNT];                                                                                             \
        UNROLLED for (int k = 0; k < COUNT; k++) from[k] = g + k * o;                                                           \
        for (int64_t i = 0; i < n; i++, w += BROAD) {                                                                         \
            UNROLLED for (int q = 0; q < PARTS; q++) v[q] = GET(w + q * ACROSS);                                                 \
            UNROLLED for (int k = 0; k < COUNT; k++)                                                                            \
                UNROLLED for (int q = 0; q < PARTS; q++) sum[k][q] += from[k][i] * v[q];                                        \
        }                                                                                                                     \
        UNROLLED for (int k = 0; k < COUNT; k++)                                                                                \
            UNROLLED for (int q = 0; q < PARTS; q++) PUT(x + at[k] + q * ACROSS) += sum[k][q];                                   \
    }

/* COUNT channels: sum over p positions of g (p, o) times x (p, BROAD), added to (COUNT, BROAD). */
#define WEIGHT(COUNT, PARTS)                                                                                                  \
    static __attribute__((noinline)) void weight_##COUNT##_##PARTS(const float *g, int64_t o, const float *x, int64_t p,      \
                                                                   float *to) {                                               \
        across sum[COUNT][PARTS] = {{{0}}}, v[PARTS];                                                                         \
        for (int64_t i = 0; i < p; i++, g += o, x += BROAD) {                                                                 \
            UNROLLED for (int q = 0; q < PARTS; q++) v[q] = GET(x + q * ACROSS);                                                 \
            UNROLLED for (int k = 0; k < COUNT; k++)                                                                            \
                UNROLLED for (int q = 0; q < PARTS; q++) sum[k][q] += g[k] * v[q];                                              \
        }                                                                                                                     \
        UNROLLED for (int k = 0; k < COUNT; k++)                                                                                \
            UNROLLED for (int q = 0; q < PARTS; q++) PUT(to + k * BROAD + q * ACROSS) += sum[k][q];                              \
    }

EACH_TILE(FORWARD, 1)
EACH_TILE(FORWARD, 2)
EACH_TILE(INPUT, 1)
EACH_TILE(INPUT, 2)
EACH_TILE(WEIGHT, 1)
EACH_TILE(WEIGHT, 2)
static void (*const forward_of[2][HIGH + 1])(const float *, const int32_t *, int64_t, int64_t, int64_t, const float *, float *,
                                             int64_t) = {TILES(forward, 1), TILES(forward, 2)};
static void (*const input_of[2][HIGH + 1])(const float *, int64_t, int64_t, const float *, float *,
                                           const int32_t *) = {TILES(input, 1), TILES(input, 2)};
static void (*const weight_of[2][HIGH + 1])(const float *, int64_t, const float *, int64_t,
                                            float *) = {TILES(weight, 1), TILES(weight, 2)};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t tiles(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Where the window of each position begins in an image with its border. */
static int32_t *places(const Shape *d) {
    int64_t p = d->oh * d->ow, w = d->w + 2 * d->px;
    int32_t *at = malloc((p + HIGH) * sizeof *at);
    if (at)
        for (int64_t i = 0; i < p; i++) at[i] = (int32_t)((i / d->ow * d->sy * w + i % d->ow * d->sx) * d->c);
    return at;
}

static int64_t bordered(const Shape *d) { return (d->h + 2 * d->py) * (d->w + 2 * d->px) * d->c; }

/* An image into the middle of a border of zeros, which is there already. */
static const float *with_border(const Shape *d, const float *image, float *room) {
    if (!room) return image;
    int64_t row = d->w * d->c, wide = (d->w + 2 * d->px) * d->c;
    for (int64_t y = 0; y < d->h; y++) memcpy(room + (y + d->py) * wide + d->px * d->c, image + y * row, row * sizeof *room);
    return room;
}

/* Rows w (o, n), `broad` at a time, as columns (strip, n, broad), with zeros for rows that are not there. */
static void pack_rows(const float *w, int64_t o, int64_t n, int64_t broad, float *to, int64_t threads) {
    int64_t parts = broad / ACROSS, all = tiles(o, broad) * parts;
#pragma omp parallel for num_threads(threads) if (o * n >= SMALL) schedule(static)
    for (int64_t s = 0; s < all; s++) {
        const float *rows = w + s * ACROSS * n;
        float *columns = to + s / parts * broad * n + s % parts * ACROSS;
        int64_t there = least(ACROSS, o - s * ACROSS), i = 0;
        for (; i + ACROSS <= n; i += ACROSS) turn_square(rows + i, n, there, columns + i * broad, broad);
        for (; i < n; i++)
            for (int64_t j = 0; j < ACROSS; j++) columns[i * broad + j] = j < there ? rows[j * n + i] : 0.0f;
    }
}

/* Rows w (o, kh, run) cut into strips: (kh, strip, o, BROAD), with zeros after the end of a run. */
static void pack_strips(const float *w, int64_t o, int64_t kh, int64_t run, float *to, int64_t threads) {
    int64_t strips = tiles(run, BROAD);
#pragma omp parallel for num_threads(threads) if (o * kh * run >= SMALL) schedule(static)
    for (int64_t s = 0; s < kh * strips; s++)
        for (int64_t j = 0; j < o; j++) {
            int64_t first = s % strips * BROAD, part = least(BROAD, run - first);
            const float *from = w + (j * kh + s / strips) * run + first;
            float *row = to + (s * o + j) * BROAD;
            if (part == BROAD)
                PUT(row) = GET(from), PUT(row + ACROSS) = GET(from + ACROSS);
            else
                memset(row, 0, BROAD * sizeof *row), memcpy(row, from, part * sizeof *row);
        }
}

/* Numbers of a window at a time, about, from several of its rows or from one: BROAD columns of the weight stay in the first
   cache. */
#define ROWS 128
#define CHUNK 256

/* Ask for `many` numbers of the image that comes next, before `after`, while the processor is busy with this one. */
static const float *fetch(const float *next, const float *after, int64_t many) {
    for (const float *last = least(after - next, many) + next; next < last; next += 16) __builtin_prefetch(next, 0, 2);
    return next;
}

/* Into how many ranges of its p positions an image is cut, so that n images occupy all threads. */
static int64_t ranges(int64_t n, int64_t p, int64_t threads) { return least(p, tiles(threads, n)); }

/* x (n, h, w, c), weight (o, kh, kw, c) -> out (n, oh, ow, o). Not 0: no memory. */
int64_t surebound_product(const float *x, const float *weight, const float *bias, int64_t n, int64_t h, int64_t w, int64_t c,
                          int64_t oh, int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy, int64_t sx, int64_t py,
                          int64_t px, float *out, int64_t threads) {
    Shape d = {h, w, c, oh, ow, o, kh, kw, sy, sx, py, px};
    int64_t p = oh * ow, run = kw * c, window = kh * run, image = h * w * c, wide = (w + 2 * px) * c, failed = 0;
    int64_t strips = tiles(o, BROAD), rows = least(kh, run < ROWS ? ROWS / run : 1), parts = ranges(n, p, threads);
    int64_t each = tiles(image, tiles(kh, rows) * tiles(run, CHUNK) * tiles(p, HIGH)); /* fetched beside a tile */
    float *packed = aligned_alloc(64, strips * window * BROAD * sizeof *packed); /* (strip, window, BROAD) */
    int32_t *at = places(&d);
    if (!packed || !at) return free(packed), free(at), 1;
    pack_rows(weight, o, window, BROAD, packed, threads);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *room = py || px ? calloc(bordered(&d), sizeof *room) : NULL;
        float *rest = o % ACROSS ? malloc(p * BROAD * sizeof *rest) : NULL; /* the last strip, not all of it outputs */
        failed = ((py || px) && !room) || (o % ACROSS && !rest);
#pragma omp for schedule(static)
        for (int64_t job = 0; job < n * parts; job++) {
            if (failed) continue;
            int64_t e = job / parts, begin = p * (job % parts) / parts, these = p * (job % parts + 1) / parts - begin;
            const float *from = with_border(&d, x + e * image, room), *next = x + (e + 1) * image, *after = next + image;
            for (int64_t s = 0; s < strips; s++) {
                int64_t part = least(BROAD, o - BROAD * s), whole = part % ACROSS == 0, step = whole ? o : BROAD;
                float *out_here = out + (e * p + begin) * o + BROAD * s, *to = whole ? out_here : rest;
                float line[BROAD] = {0};
                for (int64_t j = 0; bias && j < part; j++) line[j] = bias[BROAD * s + j];
                for (int64_t i = 0; i < these; i++) {
                    PUT(to + i * step) = GET(line);
                    if (part > ACROSS) PUT(to + i * step + ACROSS) = GET(line + ACROSS);
                }
                for (int64_t y = 0; y < kh; y += rows)
                    for (int64_t i = 0; i < run; i += run <= CHUNK ? run : CHUNK)
                        for (int64_t t = 0, many = tiles(these, HIGH); t < many; t++) {
                            int64_t first = these * t / many, count = these * (t + 1) / many - first;
                            if (s == 0 && e + 1 < n) next = fetch(next, after, each);
                            forward_of[part > ACROSS][count](from + y * wide + i, at + begin + first, least(rows, kh - y),
                                                             run <= CHUNK ? run : least(CHUNK, run - i), wide,
                                                             packed + (s * window + y * run + i) * BROAD, to + first * step, step);
                        }
                if (!whole)
                    for (int64_t i = 0; i < these; i++) memcpy(out_here + i * o, rest + i * BROAD, part * sizeof *rest);
            }
        }
        free(room), free(rest);
    }
    free(packed), free(at);
    return failed;
}

/* g (n, oh, ow, o), weight (o, kh, kw, c) -> the gradient x (n, h, w, c) of the images. Not 0: no memory. */
int64_t surebound_product_input(const float *g, const float *weight, int64_t n, int64_t h, int64_t w, int64_t c, int64_t oh,
                                int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy, int64_t sx, int64_t py, int64_t px,
                                float *x, int64_t threads) {
    Shape d = {h, w, c, oh, ow, o, kh, kw, sy, sx, py, px};
    int64_t p = oh * ow, run = kw * c, image = h * w * c, wide = (w + 2 * px) * c, size = bordered(&d), failed = 0;
    int64_t joined = kh > 1 && kh * run <= BROAD; /* a whole window is one strip, its sums then cut into rows */
    int64_t lines = joined ? 1 : kh, line = joined ? kh * run : run, strips = tiles(line, BROAD), chunk = least(o, CHUNK);
    int64_t pixels = h * w == p && kh * kw == 1 && !py && !px;
    int64_t parts = pixels ? ranges(n, p, threads) : 1; /* windows that overlap are added up by one thread */
    float *packed = aligned_alloc(64, lines * strips * o * BROAD * sizeof *packed); /* (line, strip, o, BROAD) */
    int32_t *at = places(&d), ends[HIGH];
    if (!packed || !at) return free(packed), free(at), 1;
    for (int k = 0; k < HIGH; k++) ends[k] = BROAD * k;
    pack_strips(weight, o, lines, line, packed, threads);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *room = py || px ? malloc(size * sizeof *room) : NULL;
        failed = (py || px) && !room;
#pragma omp for schedule(static)
        for (int64_t job = 0; job < n * parts; job++) {
            if (failed) continue;
            int64_t e = job / parts, begin = p * (job % parts) / parts, these = p * (job % parts + 1) / parts - begin;
            float *to = room ? room : x + e * image, end[HIGH * BROAD];
            memset(to + (pixels ? begin * c : 0), 0, (pixels ? these * c : size) * sizeof *to);
            for (int64_t s = 0; s < lines * strips; s++)
                for (int64_t j = 0; j < o; j += chunk)
                    for (int64_t t = 0, many = tiles(these, HIGH); t < many; t++) {
                        int64_t first = begin + these * t / many, count = begin + these * (t + 1) / many - first;
                        int64_t off = s % strips * BROAD, part = least(BROAD, line - off), both = part > ACROSS;
                        const float *from = g + (e * p + first) * o + j, *columns = packed + (s * o + j) * BROAD;
                        float *place = to + s / strips * wide + off;
                        if (part % ACROSS == 0 && !joined) {
                            input_of[both][count](from, o, least(chunk, o - j), columns, place, at + first);
                            continue;
                        }
                        memset(end, 0, sizeof end);
                        input_of[both][count](from, o, least(chunk, o - j), columns, end, ends);
                        for (int64_t k = 0; k < count; k++)
                            for (int64_t y = 0; y < (joined ? kh : 1); y++)
                                for (int64_t i = 0; i < (joined ? run : part); i++)
                                    place[at[first + k] + y * wide + i] += end[BROAD * k + y * run + i];
                    }
            if (!room) continue;
            for (int64_t y = 0; y < h; y++)
                memcpy(x + e * image + y * w * c, room + (y + py) * wide + px * c, w * c * sizeof *x);
        }
        free(room);
    }
    free(packed), free(at);
    return failed;
}

#define TOGETHER 128 /* positions whose numbers are brought side by side */

/* g (n, oh, ow, o), x (n, h, w, c) -> the gradient (o, kh, kw, c) of the weight. Every thread has strips of its own. */
int64_t surebound_product_weight(const float *g, const float *x, int64_t n, int64_t h, int64_t w, int64_t c, int64_t oh,
                                 int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy, int64_t sx, int64_t py, int64_t px,
                                 float *weight, int64_t threads) {
    Shape d = {h, w, c, oh, ow, o, kh, kw, sy, sx, py, px};
    int64_t p = oh * ow, run = kw * c, window = kh * run, image = h * w * c, wide = (w + 2 * px) * c, failed = 0;
    int64_t strips = tiles(run, BROAD), all = kh * strips, many = tiles(o, HIGH), group = least(n, tiles(TOGETHER, p));
    int32_t *at = places(&d);
    if (!at) return 1;
    if (threads > all) threads = all;
#pragma omp parallel for num_threads(threads) reduction(| : failed) schedule(static, 1)
    for (int64_t thread = 0; thread < threads; thread++) {
        int64_t begin = all * thread / threads, end = all * (thread + 1) / threads;
        float *room = py || px ? calloc(group * bordered(&d), sizeof *room) : NULL;
        float *sum = calloc((end - begin) * o * BROAD, sizeof *sum); /* (strip, o, BROAD) */
        float *strip = calloc(group * p * BROAD, sizeof *strip);
        if (((py || px) && !room) || !sum || !strip) failed = 1;
        for (int64_t e = 0; e < n && !failed; e += group) {
            int64_t now = least(group, n - e);
            const float *from[TOGETHER + 1], *next = x + (e + now) * image, *after = next + least(group, n - e - now) * image;
            for (int64_t k = 0; k < now; k++)
                from[k] = with_border(&d, x + (e + k) * image, room ? room + k * bordered(&d) : NULL);
            for (int64_t s = begin; s < end; s++) {
                int64_t part = least(BROAD, run - s % strips * BROAD), off = s / strips * wide + s % strips * BROAD;
                float *to = strip;
                for (int64_t k = 0; k < now; k++)
                    for (int64_t i = 0; i < p; i++, to += BROAD) {
                        const float *v = from[k] + at[i] + off;
                        if (part == BROAD)
                            PUT(to) = GET(v), PUT(to + ACROSS) = GET(v + ACROSS);
                        else
                            memcpy(to, v, part * sizeof *to);
                    }
                for (int64_t t = 0; t < many; t++) {
                    int64_t first = o * t / many, count = o * (t + 1) / many - first;
                    next = fetch(next, after, tiles(now * image, (end - begin) * many));
                    weight_of[part > ACROSS][count](g + e * p * o + first, o, strip, now * p,
                                                    sum + ((s - begin) * o + first) * BROAD);
                }
            }
        }
        for (int64_t s = begin; s < end && !failed; s++)
            for (int64_t j = 0; j < o; j++)
                memcpy(weight + j * window + s / strips * run + s % strips * BROAD, sum + ((s - begin) * o + j) * BROAD,
                       least(BROAD, run - s % strips * BROAD) * sizeof *weight);
        free(room), free(sum), free(strip);
    }
    free(at);
    return failed;
}

/* The same of a matrix w (o, c): x (n, c) -> x w^T + bias (n, o). */
int64_t surebound_matrix(const float *x, const float *w, const float *bias, int64_t n, int64_t c, int64_t o, float *out,
                         int64_t threads) {
    return surebound_product(x, w, bias, 1, n, 1, c, n, 1, o, 1, 1, 1, 1, 0, 0, out, threads);
}

/* g (n, o) -> g w (n, c). */
int64_t surebound_matrix_input(const float *g, const float *w, int64_t n, int64_t c, int64_t o, float *x, int64_t threads) {
    return surebound_product_input(g, w, 1, n, 1, c, n, 1, o, 1, 1, 1, 1, 0, 0, x, threads);
}

/* g (n, o), x (n, c) -> g^T x (o, c). */
int64_t surebound_matrix_weight(const float *g, const float *x, int64_t n, int64_t c, int64_t o, float *w, int64_t threads) {
    return surebound_product_weight(g, x, 1, n, 1, c, n, 1, o, 1, 1, 1, 1, 0, 0, w, threads);
}
