/* Convolutions of images with channels innermost and their two gradients, in tiles of 6 positions by 16 channels.

   The windows of one row of a kernel run on in memory, kw c numbers, and so do 16 channels of an output: a tile needs no
   rearranged copy of the images. Products and sums may be contracted. Nothing depends on the number of threads. */
#ifdef __clang__
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC optimize("fp-contract=fast")
#endif

/* Do they pay on this processor? They are written for sixteen registers of eight numbers; with wider ones the usual kernels
   are faster. */
int64_t surebound_products_pay(int64_t threads) {
    (void)threads;
#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
    return 1;
#else
    return 0;
#endif
}

typedef struct {
    int64_t h, w, c, oh, ow, o, kh, kw, sy, sx, py, px;
} Shape;

#define UNROLL _Pragma("GCC unroll 6")
#define AT(p) (*(eight *)(p))
#define OF(p) (*(const eight *)(p))

/* COUNT positions: windows of `rows` x `run` numbers at x + at[k], rows `apart`, times w (rows run, 16), added to (COUNT, 16). */
#define FORWARD(COUNT)                                                                                                        \
    static __attribute__((noinline)) void forward_##COUNT(const float *x, const int32_t *at, int64_t rows, int64_t run,       \
                                                          int64_t apart, const float *w, float *to, int64_t step) {           \
        eight sum[COUNT][2];                                                                                                  \
        const float *from[COUNT];                                                                                             \
        UNROLL for (int k = 0; k < COUNT; k++) {                                                                              \
            from[k] = x + at[k], sum[k][0] = OF(to + k * step), sum[k][1] = OF(to + k * step + 8);                            \
        }                                                                                                                     \
        for (int64_t y = 0; y < rows; y++) {                                                                                  \
            for (int64_t i = 0; i < run; i++, w += 16) {                                                                      \
                eight a = OF(w), b = OF(w + 8);                                                                               \
                UNROLL for (int k = 0; k < COUNT; k++) sum[k][0] += from[k][i] * a, sum[k][1] += from[k][i] * b;              \
            }                                                                                                                 \
            UNROLL for (int k = 0; k < COUNT; k++) from[k] += apart;                                                          \
        }                                                                                                                     \
        UNROLL for (int k = 0; k < COUNT; k++) AT(to + k * step) = sum[k][0], AT(to + k * step + 8) = sum[k][1];              \
    }

/* COUNT positions: g (COUNT, o) times w (o, 16), added to 16 numbers at x + at[k], which may overlap. */
#define INPUT(COUNT)                                                                                                          \
    static __attribute__((noinline)) void input_##COUNT(const float *g, int64_t o, const float *w, float *x,                  \
                                                        const int32_t *at) {                                                  \
        eight sum[COUNT][2] = {{{0}}};                                                                                        \
        const float *from[COUNT];                                                                                             \
        UNROLL for (int k = 0; k < COUNT; k++) from[k] = g + k * o;                                                           \
        for (int64_t i = 0; i < o; i++, w += 16) {                                                                            \
            eight a = OF(w), b = OF(w + 8);                                                                                   \
            UNROLL for (int k = 0; k < COUNT; k++) sum[k][0] += from[k][i] * a, sum[k][1] += from[k][i] * b;                  \
        }                                                                                                                     \
        UNROLL for (int k = 0; k < COUNT; k++) {                                                                              \
            AT(x + at[k]) += sum[k][0];                                                                                       \
            AT(x + at[k] + 8) += sum[k][1];                                                                                   \
        }                                                                                                                     \
    }

/* COUNT channels: sum over p positions of g (p, o) times x (p, 16), added to (COUNT, 16). */
#define WEIGHT(COUNT)                                                                                                         \
    static __attribute__((noinline)) void weight_##COUNT(const float *g, int64_t o, const float *x, int64_t p, float *to) {   \
        eight sum[COUNT][2] = {{{0}}};                                                                                        \
        for (int64_t i = 0; i < p; i++, g += o, x += 16) {                                                                    \
            eight a = OF(x), b = OF(x + 8);                                                                                   \
            UNROLL for (int k = 0; k < COUNT; k++) sum[k][0] += g[k] * a, sum[k][1] += g[k] * b;                              \
        }                                                                                                                     \
        UNROLL for (int k = 0; k < COUNT; k++) {                                                                              \
            AT(to + 16 * k) += sum[k][0];                                                                                     \
            AT(to + 16 * k + 8) += sum[k][1];                                                                                 \
        }                                                                                                                     \
    }

#define OF_EACH_COUNT(M) M(1) M(2) M(3) M(4) M(5) M(6)
OF_EACH_COUNT(FORWARD)
OF_EACH_COUNT(INPUT)
OF_EACH_COUNT(WEIGHT)
#define TABLE(NAME) {NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6}
static void (*const forward_of[])(const float *, const int32_t *, int64_t, int64_t, int64_t, const float *, float *,
                                  int64_t) = TABLE(forward);
static void (*const input_of[])(const float *, int64_t, const float *, float *, const int32_t *) = TABLE(input);
static void (*const weight_of[])(const float *, int64_t, const float *, int64_t, float *) = TABLE(weight);

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t tiles(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Where the window of each position begins in an image with its border. */
static int32_t *places(const Shape *d) {
    int64_t p = d->oh * d->ow, w = d->w + 2 * d->px;
    int32_t *at = malloc((p + 6) * sizeof *at);
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

/* Rows w (o, n), 16 at a time, as columns (strip, n, 16), with zeros for rows that are not there. */
static void pack_rows(const float *w, int64_t o, int64_t n, float *to, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (o * n >= SMALL) schedule(static)
    for (int64_t s = 0; s < tiles(o, 16); s++)
        for (int64_t i0 = 0; i0 < n; i0 += 16) /* blocks that stay in the cache */
            for (int64_t j = 0; j < 16; j++)
                for (int64_t i = i0; i < least(i0 + 16, n); i++)
                    to[(s * n + i) * 16 + j] = 16 * s + j < o ? w[(16 * s + j) * n + i] : 0.0f;
}

/* Rows w (o, kh, run) cut into strips of 16: (kh, strip, o, 16), with zeros after the end of a run. */
static void pack_strips(const float *w, int64_t o, int64_t kh, int64_t run, float *to, int64_t threads) {
    int64_t strips = tiles(run, 16);
#pragma omp parallel for num_threads(threads) if (o * kh * run >= SMALL) schedule(static)
    for (int64_t s = 0; s < kh * strips; s++)
        for (int64_t j = 0; j < o; j++) {
            int64_t first = s % strips * 16, part = least(16, run - first);
            float *row = to + (s * o + j) * 16;
            if (part < 16) memset(row, 0, 16 * sizeof *row);
            memcpy(row, w + (j * kh + s / strips) * run + first, part * sizeof *row);
        }
}

#define CHUNK 256 /* numbers of a window at a time, about: 16 columns of the weight stay in the first cache */

/* x (n, h, w, c), weight (o, kh, kw, c) -> out (n, oh, ow, o). Not 0: no memory. */
int64_t surebound_product(const float *x, const float *weight, const float *bias, int64_t n, int64_t h, int64_t w, int64_t c,
                          int64_t oh, int64_t ow, int64_t o, int64_t kh, int64_t kw, int64_t sy, int64_t sx, int64_t py,
                          int64_t px, float *out, int64_t threads) {
    Shape d = {h, w, c, oh, ow, o, kh, kw, sy, sx, py, px};
    int64_t p = oh * ow, run = kw * c, window = kh * run, image = h * w * c, wide = (w + 2 * px) * c, failed = 0;
    int64_t strips = tiles(o, 16), many = tiles(p, 6), rows = least(kh, run < CHUNK ? CHUNK / run : 1);
    float *packed = aligned_alloc(64, strips * window * 16 * sizeof *packed); /* (strip, window, 16) */
    int32_t *at = places(&d);
    if (!packed || !at) return free(packed), free(at), 1;
    pack_rows(weight, o, window, packed, threads);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *room = py || px ? calloc(bordered(&d), sizeof *room) : NULL;
        failed = (py || px) && !room;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < n; e++) {
            if (failed) continue;
            const float *from = with_border(&d, x + e * image, room);
            float *to = out + e * p * o, line[6 * 16] = {0};
            for (int64_t i = 0; i < p; i++)
                for (int64_t j = 0; j < o; j++) to[i * o + j] = bias ? bias[j] : 0.0f;
            for (int64_t s = 0; s < strips; s++)
                for (int64_t y = 0; y < kh; y += rows)
                    for (int64_t t = 0; t < many; t++) {
                        int64_t first = p * t / many, count = p * (t + 1) / many - first, part = least(16, o - 16 * s);
                        const float *these = packed + (s * window + y * run) * 16, *those = from + y * wide;
                        float *place = to + first * o + 16 * s;
                        if (part == 16) {
                            forward_of[count](those, at + first, least(rows, kh - y), run, wide, these, place, o);
                            continue;
                        }
                        for (int64_t k = 0; k < count; k++) memcpy(line + 16 * k, place + k * o, part * sizeof *line);
                        forward_of[count](those, at + first, least(rows, kh - y), run, wide, these, line, 16);
                        for (int64_t k = 0; k < count; k++) memcpy(place + k * o, line + 16 * k, part * sizeof *line);
                    }
        }
        free(room);
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
    int64_t strips = tiles(run, 16), many = tiles(p, 6);
    float *packed = aligned_alloc(64, kh * strips * o * 16 * sizeof *packed); /* (kh, strip, o, 16) */
    int32_t *at = places(&d), ends[6] = {0, 16, 32, 48, 64, 80};
    if (!packed || !at) return free(packed), free(at), 1;
    pack_strips(weight, o, kh, run, packed, threads);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *room = py || px ? malloc(size * sizeof *room) : NULL;
        failed = (py || px) && !room;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < n; e++) {
            if (failed) continue;
            float *to = room ? room : x + e * image, end[6 * 16];
            memset(to, 0, size * sizeof *to);
            for (int64_t s = 0; s < kh * strips; s++)
                for (int64_t t = 0; t < many; t++) {
                    int64_t first = p * t / many, count = p * (t + 1) / many - first, off = s % strips * 16;
                    const float *from = g + (e * p + first) * o, *these = packed + s * o * 16;
                    float *place = to + s / strips * wide + off;
                    if (run - off >= 16) {
                        input_of[count](from, o, these, place, at + first);
                        continue;
                    }
                    memset(end, 0, sizeof end);
                    input_of[count](from, o, these, end, ends);
                    for (int64_t k = 0; k < count; k++)
                        for (int64_t i = 0; i < run - off; i++) place[at[first + k] + i] += end[16 * k + i];
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
    int64_t strips = tiles(run, 16), all = kh * strips, many = tiles(o, 6), group = least(n, tiles(TOGETHER, p));
    int32_t *at = places(&d);
    if (!at) return 1;
    if (threads > all) threads = all;
#pragma omp parallel for num_threads(threads) reduction(| : failed) schedule(static, 1)
    for (int64_t thread = 0; thread < threads; thread++) {
        int64_t begin = all * thread / threads, end = all * (thread + 1) / threads;
        float *room = py || px ? calloc(group * bordered(&d), sizeof *room) : NULL;
        float *sum = calloc((end - begin) * o * 16, sizeof *sum); /* (strip, o, 16) */
        float *strip = calloc(group * p * 16, sizeof *strip);
        if (((py || px) && !room) || !sum || !strip) failed = 1;
        for (int64_t e = 0; e < n && !failed; e += group) {
            int64_t now = least(group, n - e);
            const float *from[TOGETHER + 1];
            for (int64_t k = 0; k < now; k++)
                from[k] = with_border(&d, x + (e + k) * image, room ? room + k * bordered(&d) : NULL);
            for (int64_t s = begin; s < end; s++) {
                int64_t part = least(16, run - s % strips * 16), off = s / strips * wide + s % strips * 16;
                float *to = strip;
                for (int64_t k = 0; k < now; k++)
                    for (int64_t i = 0; i < p; i++, to += 16) {
                        const float *v = from[k] + at[i] + off;
                        if (part == 16)
                            AT(to) = OF(v), AT(to + 8) = OF(v + 8);
                        else
                            memcpy(to, v, part * sizeof *to);
                    }
                for (int64_t t = 0; t < many; t++) {
                    int64_t first = o * t / many, count = o * (t + 1) / many - first;
                    weight_of[count](g + e * p * o + first, o, strip, now * p, sum + ((s - begin) * o + first) * 16);
                }
            }
        }
        for (int64_t s = begin; s < end && !failed; s++)
            for (int64_t j = 0; j < o; j++)
                memcpy(weight + j * window + s / strips * run + s % strips * 16, sum + ((s - begin) * o + j) * 16,
                       least(16, run - s % strips * 16) * sizeof *weight);
        free(room), free(sum), free(strip);
    }
    free(at);
    return failed;
}
