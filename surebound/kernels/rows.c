/* Going back through a ReLU's lines: rows a (S, B, n) of coefficients of B examples, lower, upper, top (B, n).

   Values lie with channels innermost; rows that come from a flattened layer may lie plane by plane (`planes` of them; 0: as
   the others), and their gradients go back so. An example is the work of one thread. */

typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t bits __attribute__((vector_size(32), aligned(4), may_alias));

/* (rows, columns) -> (columns, rows), eight by eight: what is written lies side by side. */
static void turn(const float *from, int64_t rows, int64_t columns, float *to) {
    for (int64_t r = 0; r < rows; r += 8)
        for (int64_t c = 0; c < columns; c++) {
            const float *x = from + r * columns + c;
            float *y = to + c * rows + r;
            if (rows - r >= 8) {
                eight v = {x[0], x[columns], x[2 * columns], x[3 * columns], x[4 * columns], x[5 * columns], x[6 * columns],
                           x[7 * columns]};
                *(eight *)y = v;
            } else
                for (int64_t k = 0; k < rows - r; k++) y[k] = x[k * columns];
        }
}

static void to_innermost(const float *from, int64_t planes, int64_t n, float *to) { turn(from, planes, n / planes, to); }
static void to_planes(const float *from, int64_t planes, int64_t n, float *to) { turn(from, n / planes, planes, to); }

/* back = upper a where a > 0, else lower a (without lower: upper a); offset (S, B) = sum of max(a, 0) top. */
int64_t surebound_pull(const float *a, const float *lower, const float *upper, const float *top, int64_t s, int64_t b, int64_t n,
                       int64_t planes, float *back, float *offset, int64_t threads) {
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *moved = malloc(n * sizeof *moved);
        failed = !moved;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++)
            for (int64_t i = 0; i < s && !failed; i++) {
                const float *x = a + (i * b + e) * n, *up = upper + e * n, *low = lower ? lower + e * n : up, *t = top + e * n;
                float *to = back + (i * b + e) * n, sum = 0.0f;
                eight total = {0};
                if (planes) to_innermost(x, planes, n, moved), x = moved;
                int64_t j = 0;
                for (; j + 8 <= n; j += 8) { /* written out: the compiler makes no vectors of the choice by itself */
                    eight v = *(const eight *)(x + j);
                    bits on = v > (eight){0}, u = *(const bits *)(up + j), l = *(const bits *)(low + j);
                    *(eight *)(to + j) = v * (eight)((on & u) | (~on & l));
                    total += (eight)(on & (bits)v) * *(const eight *)(t + j);
                }
                for (int64_t m = 0; m < 8; m++) sum += total[m];
                for (; j < n; j++) {
                    to[j] = x[j] * (x[j] > 0.0f ? up[j] : low[j]);
                    sum += (x[j] > 0.0f ? x[j] : 0.0f) * t[j];
                }
                offset[i * b + e] = sum;
            }
        free(moved);
    }
    return failed;
}

/* Gradients of a (laid out as a), lower, upper and top (NULL where not wanted) from those g (S, B, n) of back and go (S, B) of
   the offset. */
int64_t surebound_pull_backward(const float *a, const float *g, const float *go, const float *lower, const float *upper,
                                const float *top, int64_t s, int64_t b, int64_t n, int64_t planes, float *g_a, float *g_lower,
                                float *g_upper, float *g_top, int64_t threads) {
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *moved = malloc(2 * n * sizeof *moved), *sums = malloc(3 * n * sizeof *sums);
        failed = !moved || !sums;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++) {
            if (failed) continue;
            const float *up = upper + e * n, *low = lower ? lower + e * n : up, *t = top + e * n;
            float *s_low = sums, *s_up = sums + n, *s_top = sums + 2 * n, both = lower ? 0.0f : 1.0f;
            memset(sums, 0, 3 * n * sizeof *sums);
            for (int64_t i = 0; i < s; i++) {
                const float *x = a + (i * b + e) * n, *gx = g + (i * b + e) * n;
                const float each = go[i * b + e];
                float *to = g_a + (i * b + e) * n, *out = planes ? moved + n : to;
                if (planes) to_innermost(x, planes, n, moved), x = moved;
#pragma omp simd
                for (int64_t j = 0; j < n; j++) {
                    float v = x[j], plus = v > 0.0f ? v : 0.0f, minus = v - plus, gj = gx[j];
                    out[j] = v > 0.0f ? gj * up[j] + each * t[j] : gj * low[j];
                    s_low[j] += minus * gj;
                    s_up[j] += (plus + both * minus) * gj;
                    s_top[j] += plus * each;
                }
                if (planes) to_planes(out, planes, n, to);
            }
            if (g_lower) memcpy(g_lower + e * n, s_low, n * sizeof *sums);
            if (g_upper) memcpy(g_upper + e * n, s_up, n * sizeof *sums);
            if (g_top) memcpy(g_top + e * n, s_top, n * sizeof *sums);
        }
        free(moved), free(sums);
    }
    return failed;
}

/* a.center + |a|.radius (S, B) for a (S, B, n); center, radius (B, n). */
void surebound_largest(const float *a, const float *center, const float *radius, int64_t s, int64_t b, int64_t n, float *best,
                       int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t e = 0; e < b; e++)
        for (int64_t i = 0; i < s; i++) {
            const float *x = a + (i * b + e) * n, *c = center + e * n, *r = radius + e * n;
            float total[8] = {0}, sum = 0.0f;
            int64_t j = 0;
            for (; j + 8 <= n; j += 8)
#pragma omp simd
                for (int64_t m = 0; m < 8; m++) total[m] += x[j + m] * c[j + m] + fabsf(x[j + m]) * r[j + m];
            for (int64_t m = 0; m < 8; m++) sum += total[m];
            for (; j < n; j++) sum += x[j] * c[j] + fabsf(x[j]) * r[j];
            best[i * b + e] = sum;
        }
}

/* Its gradient with respect to a from that g (S, B): g (center + sign(a) radius). */
void surebound_largest_backward(const float *a, const float *g, const float *center, const float *radius, int64_t s, int64_t b,
                                int64_t n, float *g_a, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t e = 0; e < b; e++)
        for (int64_t i = 0; i < s; i++) {
            const float *x = a + (i * b + e) * n, *c = center + e * n, *r = radius + e * n;
            const float each = g[i * b + e];
            float *to = g_a + (i * b + e) * n;
#pragma omp simd
            for (int64_t j = 0; j < n; j++)
                to[j] = each * (x[j] > 0.0f ? c[j] + r[j] : x[j] < 0.0f ? c[j] - r[j] : c[j]);
        }
}

/* Windows of images, the adjoint of surebound_fold: images (images, h, w, c) -> (images, oh, ow, kh, kw, c), no padding. */
void surebound_unfold(const float *from, int64_t images, int64_t oh, int64_t ow, int64_t kh, int64_t kw, int64_t c, int64_t h,
                      int64_t w, int64_t sy, int64_t sx, float *windows, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (images * h * w * c >= SMALL) schedule(static)
    for (int64_t i = 0; i < images; i++) {
        const float *image = from + i * h * w * c;
        float *to = windows + i * oh * ow * kh * kw * c;
        for (int64_t y = 0; y < oh; y++)
            for (int64_t x = 0; x < ow; x++)
                for (int64_t k = 0; k < kh; k++, to += kw * c)
                    memcpy(to, image + ((y * sy + k) * w + x * sx) * c, kw * c * sizeof *to);
    }
}
