/* Sums of rows a (S, B, n) of coefficients of B examples with vectors (B, n), in double: products of floats are exact there,
   so a sum of n of them is wrong by at most gamma(n + 4) of double, in the order of 8 lanes and a rest. A row is the work of
   one thread; the rows of an example follow each other, because they read the same vectors. NaN stays NaN.

   Sums of |a| w with w >= 0, which pay for rounding, need not be that close: RUN products each are added up in float (a
   quarter of the time), so that the sum is wrong by at most gamma(RUN + 2) of float besides. */

#define LANES 8
#define WIDE 16
#define RUN 32
#define ROW(i) ((i) % s * b + (i) / s)
#define ADD_PRODUCTS(total, x, y)                                                                                              \
    _Pragma("omp simd") for (int64_t m = 0; m < LANES; m++) total[m] += (double)(x)[m] * (double)(y)[m]
#define ADD_UP(total, sum)                                                                                                     \
    for (int64_t m = 0; m < LANES; m++) sum += total[m]

/* a.v of a row. */
static double plain_sum(const float *a, const float *v, int64_t n) {
    double total[LANES] = {0}, sum = 0.0;
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) ADD_PRODUCTS(total, a + j, v + j);
    ADD_UP(total, sum);
    for (; j < n; j++) sum += (double)a[j] * (double)v[j];
    return sum;
}

/* |a|.w of a row, w >= 0. */
static double absolute_sum(const float *a, const float *w, int64_t n) {
    double total[WIDE] = {0}, sum = 0.0;
    int64_t j = 0;
    while (j + WIDE <= n) {
        float run[WIDE] = {0};
        for (int64_t k = 0; k < RUN && j + WIDE <= n; k++, j += WIDE)
#pragma omp simd
            for (int64_t m = 0; m < WIDE; m++) run[m] += fabsf(a[j + m]) * w[j + m];
#pragma omp simd
        for (int64_t m = 0; m < WIDE; m++) total[m] += (double)run[m];
    }
    for (int64_t m = 0; m < WIDE; m++) sum += total[m];
    for (; j < n; j++) sum += (double)fabsf(a[j]) * (double)w[j];
    return sum;
}

/* a.v + |a|.w of a row; v or w may be NULL. */
static double priced(const float *a, const float *v, const float *w, int64_t n) {
    return (v ? plain_sum(a, v, n) : 0.0) + (w ? absolute_sum(a, w, n) : 0.0);
}

/* One row back through lines: to = up x where x > 0, else low x; *sum = sum of max(x, 0) t; and while `to` is in a register,
   *cost = to.v + |to|.w, v and w for as many functions as there are choices of what is NULL. */
#define PULL_ROW(NAME, V, W)                                                                                                  \
    static __attribute__((noinline)) void NAME(const float *x, const float *up, const float *low, const float *t,             \
                                               const float *v, const float *w, int64_t n, float *to, double *sum,             \
                                               double *cost) {                                                                \
        double total[LANES] = {0}, plain[LANES] = {0}, absolute[LANES] = {0}, all = 0.0, paid = 0.0;                          \
        const bits size = (bits){0} + INT32_MAX; /* all but the sign */                                                       \
        int64_t j = 0;                                                                                                        \
        while (j + LANES <= n) {                                                                                              \
            eight run = {0};                                                                                                  \
            for (int64_t k = 0; k < RUN && j + LANES <= n; k++, j += LANES) { /* written out, as in rows.c */                 \
                eight each = *(const eight *)(x + j);                                                                         \
                bits on = each > (eight){0}, some = ~(each <= (eight){0});                                                    \
                eight back = each * (eight)((on & *(const bits *)(up + j)) | (~on & *(const bits *)(low + j)));               \
                float positive[LANES];                                                                                        \
                *(eight *)(to + j) = back, *(eight *)positive = (eight)(some & (bits)each);                                   \
                ADD_PRODUCTS(total, positive, t + j);                                                                         \
                if (V) ADD_PRODUCTS(plain, to + j, v + j);                                                                    \
                if (W) run += (eight)(size & (bits)back) * *(const eight *)(w + j);                                           \
            }                                                                                                                 \
            if (W) _Pragma("omp simd") for (int64_t m = 0; m < LANES; m++) absolute[m] += (double)run[m];                     \
        }                                                                                                                     \
        ADD_UP(total, all);                                                                                                   \
        if (V) ADD_UP(plain, paid);                                                                                           \
        if (W) ADD_UP(absolute, paid);                                                                                        \
        for (; j < n; j++) {                                                                                                  \
            to[j] = x[j] * (x[j] > 0.0f ? up[j] : low[j]);                                                                    \
            all += (double)RELU(x[j]) * (double)t[j];                                                                         \
            if (V) paid += (double)to[j] * (double)v[j];                                                                      \
            if (W) paid += (double)fabsf(to[j]) * (double)w[j];                                                               \
        }                                                                                                                     \
        *sum = all, *cost = paid;                                                                                             \
    }
PULL_ROW(pull_row, 0, 0)
PULL_ROW(pull_row_plain, 1, 0)
PULL_ROW(pull_row_absolute, 0, 1)
PULL_ROW(pull_row_both, 1, 1)

/* back = upper a where a > 0, else lower a (without lower: upper a); offset (S, B) = sum of max(a, 0) top. `stride`: between the
   lower slopes of two specifications, 0 if they share them. `planes`: a lies plane by plane, the others channels innermost.
   `more` (B) is added to the offsets. price (S, B), if asked for: back.v + |back|.w + fixed, v (n) or NULL, w (B, n) or NULL,
   fixed (B) or NULL. */
int64_t surebound_wide_pull(const float *a, const float *lower, int64_t stride, const float *upper, const float *top,
                            const double *more, const float *v, const float *w, const double *fixed, int64_t s, int64_t b,
                            int64_t n, int64_t planes, float *back, double *offset, double *price, int64_t threads) {
    void (*const row)(const float *, const float *, const float *, const float *, const float *, const float *, int64_t, float *,
                      double *, double *) = v ? (w ? pull_row_both : pull_row_plain) : (w ? pull_row_absolute : pull_row);
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *moved = malloc(n * sizeof *moved);
        failed = !moved;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < s * b; i++) {
            if (failed) continue;
            int64_t e = i / s, k = ROW(i);
            const float *x = a + k * n, *up = upper + e * n, *low = lower ? lower + (k / b) * stride + e * n : up;
            double sum, cost;
            if (planes) to_innermost(x, planes, n, moved), x = moved;
            row(x, up, low, top + e * n, v, w ? w + e * n : NULL, n, back + k * n, &sum, &cost);
            offset[k] = sum + more[e];
            if (price) price[k] = cost + (fixed ? fixed[e] : 0.0);
        }
        free(moved);
    }
    return failed;
}

/* a.v + |a|.w + fixed (S, B); v (n) or NULL, w (B, n) or NULL, fixed (B) or NULL. */
void surebound_wide_dot(const float *a, const float *v, const float *w, const double *fixed, int64_t s, int64_t b, int64_t n,
                        double *out, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (s * b * n >= SMALL) schedule(static)
    for (int64_t i = 0; i < s * b; i++) {
        int64_t e = i / s, k = ROW(i);
        out[k] = priced(a + k * n, v, w ? w + e * n : NULL, n) + (fixed ? fixed[e] : 0.0);
    }
}

/* The smallest float that is not below a number. */
static float float_above(double value) {
    float near = (float)value;
    return (double)near < value ? nextafterf(near, INFINITY) : near;
}

/* Over the box [low, high] (B, n), which is finite: at least the largest a.x + offset, offset (S, B), rounded up to float. The
   sums' own rounding is paid by `rate` times |offset| plus two or three times |a|.max(|low|, |high|). */
void surebound_wide_upper(const float *a, const float *low, const float *high, const double *offset, int64_t s, int64_t b,
                          int64_t n, double rate, float *upper, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (s * b * n >= SMALL) schedule(static)
    for (int64_t i = 0; i < s * b; i++) {
        int64_t e = i / s, k = ROW(i);
        const float *x = a + k * n, *l = low + e * n, *h = high + e * n;
        eight all = {0};
        double top[LANES] = {0}, most = 0.0, sum = 0.0;
        int64_t j = 0;
        for (; j + LANES <= n; j += LANES) {
            eight each = *(const eight *)(x + j), least = *(const eight *)(l + j), last = *(const eight *)(h + j), far = -least;
            bits on = each > (eight){0}, above = last > far, whole = (bits){0} + INT32_MAX; /* all but the sign */
            float end[LANES];
            *(eight *)end = (eight)((on & (bits)last) | (~on & (bits)least));
            ADD_PRODUCTS(top, x + j, end);
            all += (eight)(whole & (bits)each) * (eight)((above & (bits)last) | (~above & (bits)far));
        }
        ADD_UP(top, most);
        ADD_UP(all, sum);
        for (; j < n; j++) {
            float end = x[j] > 0.0f ? h[j] : l[j], far = h[j] > -l[j] ? h[j] : -l[j];
            most += (double)x[j] * (double)end;
            sum += (double)fabsf(x[j]) * (double)far;
        }
        double size = 2.0 * (sum + (double)n * FLT_MIN) + fabs(offset[k]); /* a sum in float, and products that underflow */
        upper[k] = float_above(most + offset[k] + (size * rate + DBL_MIN));
    }
}

/* out (n) = the sum of `count` arrays (n), and `rate` times that of their absolute values, and `under`. */
void surebound_sum_up(const double *const *terms, int64_t count, int64_t n, double rate, double under, double *out,
                      int64_t threads) {
#pragma omp parallel for num_threads(threads) if (count * n >= SMALL) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0, size = 0.0;
        for (int64_t t = 0; t < count; t++) sum += terms[t][i], size += fabs(terms[t][i]);
        out[i] = sum + (size * rate + under);
    }
}

/* Lines of one example's ReLUs between bounds (n); returns the largest |bound|, *odd is set if some intercept is not finite. Two
   functions and two loops: with a choice or bytes among the floats, gcc makes no vectors and it takes four times as long. */
#define LINES(NAME, DIVISOR, INTERCEPT)                                                                                       \
    static __attribute__((noinline)) float NAME(const float *l, const float *u, int64_t n, float least, float factor,         \
                                                float extra, float *chord, float *below, float *top, uint8_t *unstable,       \
                                                int32_t *odd) {                                                               \
        float most = 0.0f;                                                                                                    \
        int32_t strange = 0;                                                                                                  \
        _Pragma("omp simd reduction(max : most) reduction(| : strange)") for (int64_t j = 0; j < n; j++) {                    \
            float low = l[j] > 0.0f ? 0.0f : l[j], high = u[j] < 0.0f ? 0.0f : u[j], width = high - low;                      \
            float slope = high / (DIVISOR), at_low = (0.0f - slope) * low, at_high = (1.0f - slope) * high;                   \
            float over = at_low < at_high ? at_high : at_low, far = u[j] > -l[j] ? u[j] : -l[j];                              \
            chord[j] = slope, below[j] = high + low > 0.0f ? 1.0f : 0.0f, top[j] = (INTERCEPT);                               \
            strange |= !(fabsf(at_low + at_high) < INFINITY);                                                                 \
            most = far > most ? far : most;                                                                                   \
        }                                                                                                                     \
        _Pragma("omp simd") for (int64_t j = 0; j < n; j++) unstable[j] = (l[j] < 0.0f) & (u[j] > 0.0f);                      \
        *odd |= strange;                                                                                                      \
        return most;                                                                                                          \
    }
LINES(lines, width == 0.0f ? 1.0f : width, at_low)
LINES(sound_lines, width < least ? least : width, over * factor + extra)

/* Lines of a ReLU between finite bounds [low, high] (B, n), as fallback.relu_lines: the chord's slope, the lower line's, the
   chord's intercept as `factor` times it plus `extra`, where both are possible, and `under` (1 + the largest |bound|) of an
   example. Without `sound` the intercept is the chord's own. Returns 1 if some intercept is not finite. */
int64_t surebound_relu_lines(const float *lower, const float *upper, int64_t b, int64_t n, int64_t sound, float least,
                             float factor, float extra, double under, float *chord, float *below, float *top, uint8_t *unstable,
                             double *absolute, int64_t threads) {
    int32_t odd = 0;
#pragma omp parallel for num_threads(threads) if (b * n >= SMALL) schedule(static) reduction(| : odd)
    for (int64_t e = 0; e < b; e++) {
        int64_t i = e * n;
        float most = (sound ? sound_lines : lines)(lower + i, upper + i, n, least, factor, extra, chord + i, below + i, top + i,
                                                   unstable + i, &odd);
        absolute[e] = under * (1.0 + (double)most);
    }
    return odd;
}

/* size (B, n) = rate (size + bias) + added, added (B) = under (1 + max (size + bias) + x), x (B), the maximum by example; bias
   (n). Infinite where size + bias is beyond the limit. NaN in an example: its `added` is NaN. */
void surebound_grow(float *size, const float *bias, const float *x, int64_t b, int64_t n, float rate, double under, float limit,
                       double *added, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (b * n >= SMALL) schedule(static)
    for (int64_t e = 0; e < b; e++) {
        float *s = size + e * n, most = 0.0f;
        int32_t nan = 0;
#pragma omp simd reduction(max : most) reduction(| : nan)
        for (int64_t j = 0; j < n; j++) {
            float all = s[j] + bias[j];
            most = all > most ? all : most, nan |= all != all;
        }
        double plus = under * (1.0 + (double)(nan ? NAN : most) + (double)x[e]);
        float more = (float)plus;
        added[e] = plus;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float all = s[j] + bias[j];
            s[j] = all > limit ? INFINITY : all * rate + more;
        }
    }
}
