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
            for (int64_t k = 0; k < RUN && j + LANES <= n; k++, j += LANES) { /* written out: gcc makes no vectors of the choice */                 \
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
int64_t surebound_pull(const float *a, const float *lower, int64_t stride, const float *upper, const float *top,
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

/* a.v + |a|.w + fixed (S, B); v (n), or (B, n) if `own`, or NULL; w (B, n) or NULL, fixed (B) or NULL. */
void surebound_dot(const float *a, const float *v, int64_t own, const float *w, const double *fixed, int64_t s, int64_t b, int64_t n,
                        double *out, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (s * b * n >= SMALL) schedule(static)
    for (int64_t i = 0; i < s * b; i++) {
        int64_t e = i / s, k = ROW(i);
        out[k] = priced(a + k * n, v && own ? v + e * n : v, w ? w + e * n : NULL, n) + (fixed ? fixed[e] : 0.0);
    }
}

/* The smallest float that is not below a number. */
static float float_above(double value) {
    float near = (float)value;
    return (double)near < value ? nextafterf(near, INFINITY) : near;
}

/* Over the box [low, high] (B, n), which is finite: at least the largest a.x + offset, offset (S, B), rounded up to float. The
   sums' own rounding is paid by `rate` times |offset| plus two or three times |a|.max(|low|, |high|). */
void surebound_upper(const float *a, const float *low, const float *high, const double *offset, int64_t s, int64_t b,
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

/* The gradient of a.center + |a|.radius (S, B) with respect to a from that g (S, B): g (center + sign(a) radius). */
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
