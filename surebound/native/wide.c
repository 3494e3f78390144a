/* Sums of rows a (S, B, n) of coefficients of B examples with vectors (B, n), in double: products of floats are exact there,
   so a sum of n of them is wrong by at most gamma(n + 4) of double, in the order of 8 lanes and a rest. A row is the work of
   one thread. NaN stays NaN. */

#define LANES 8
#define ADD_UP(total, sum)                                                                                                     \
    for (int64_t m = 0; m < LANES; m++) sum += total[m]

/* back = upper a where a > 0, else lower a (without lower: upper a); offset (S, B) = sum of max(a, 0) top. `stride`: between the
   lower slopes of two specifications, 0 if they share them. `planes`: a lies plane by plane, the others channels innermost. */
int64_t surebound_wide_pull(const float *a, const float *lower, int64_t stride, const float *upper, const float *top, int64_t s,
                            int64_t b, int64_t n, int64_t planes, float *back, double *offset, int64_t threads) {
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *moved = malloc(n * sizeof *moved);
        failed = !moved;
#pragma omp for schedule(static)
        for (int64_t k = 0; k < s * b; k++) {
            if (failed) continue;
            int64_t e = k % b, j = 0;
            const float *x = a + k * n, *up = upper + e * n, *t = top + e * n;
            const float *low = lower ? lower + (k / b) * stride + e * n : up;
            float *to = back + k * n;
            double total[LANES] = {0}, sum = 0.0;
            if (planes) to_innermost(x, planes, n, moved), x = moved;
            for (; j + LANES <= n; j += LANES)
#pragma omp simd
                for (int64_t m = 0; m < LANES; m++) {
                    float v = x[j + m];
                    to[j + m] = v * (v > 0.0f ? up[j + m] : low[j + m]);
                    total[m] += (double)RELU(v) * (double)t[j + m];
                }
            ADD_UP(total, sum);
            for (; j < n; j++) {
                to[j] = x[j] * (x[j] > 0.0f ? up[j] : low[j]);
                sum += (double)RELU(x[j]) * (double)t[j];
            }
            offset[k] = sum;
        }
        free(moved);
    }
    return failed;
}

/* a.v + |a|.w (S, B); v (n) or NULL, w (B, n) or NULL. */
void surebound_wide_dot(const float *a, const float *v, const float *w, int64_t s, int64_t b, int64_t n, double *out,
                        int64_t threads) {
#pragma omp parallel for num_threads(threads) if (s * b * n >= SMALL) schedule(static)
    for (int64_t k = 0; k < s * b; k++) {
        const float *x = a + k * n, *size = w ? w + (k % b) * n : NULL;
        double plain = 0.0, absolute = 0.0;
        int64_t j = 0;
        if (v) {
            double total[LANES] = {0};
            for (j = 0; j + LANES <= n; j += LANES)
#pragma omp simd
                for (int64_t m = 0; m < LANES; m++) total[m] += (double)x[j + m] * (double)v[j + m];
            ADD_UP(total, plain);
            for (; j < n; j++) plain += (double)x[j] * (double)v[j];
        }
        if (size) { /* the row is in the cache by now */
            double total[LANES] = {0};
            for (j = 0; j + LANES <= n; j += LANES)
#pragma omp simd
                for (int64_t m = 0; m < LANES; m++) total[m] += (double)fabsf(x[j + m]) * (double)size[j + m];
            ADD_UP(total, absolute);
            for (; j < n; j++) absolute += (double)fabsf(x[j]) * (double)size[j];
        }
        out[k] = plain + absolute;
    }
}

/* Over the box [low, high] (B, n), which is finite: best (S, B) = the largest a.x, size (S, B) = |a|.max(|low|, |high|). */
void surebound_wide_maximum(const float *a, const float *low, const float *high, int64_t s, int64_t b, int64_t n, double *best,
                            double *size, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (s * b * n >= SMALL) schedule(static)
    for (int64_t k = 0; k < s * b; k++) {
        const float *x = a + k * n, *l = low + (k % b) * n, *h = high + (k % b) * n;
        double top[LANES] = {0}, all[LANES] = {0}, most = 0.0, sum = 0.0;
        int64_t j = 0;
        for (; j + LANES <= n; j += LANES)
#pragma omp simd
            for (int64_t m = 0; m < LANES; m++) {
                float v = x[j + m], end = v > 0.0f ? h[j + m] : l[j + m];
                float far = h[j + m] > -l[j + m] ? h[j + m] : -l[j + m];
                top[m] += (double)v * (double)end;
                all[m] += (double)fabsf(v) * (double)far;
            }
        ADD_UP(top, most);
        ADD_UP(all, sum);
        for (; j < n; j++) {
            float end = x[j] > 0.0f ? h[j] : l[j], far = h[j] > -l[j] ? h[j] : -l[j];
            most += (double)x[j] * (double)end;
            sum += (double)fabsf(x[j]) * (double)far;
        }
        best[k] = most, size[k] = sum;
    }
}

/* Lines of a ReLU between finite bounds [low, high] (B, n), as fallback.relu_lines: the chord's slope, the lower line's, the
   chord's intercept as `factor` times it plus `extra`, where both are possible, and the largest |bound| of an example.
   Without `sound` the intercept is the chord's own. Returns 1 if some intercept is not finite. */
int64_t surebound_relu_lines(const float *lower, const float *upper, int64_t b, int64_t n, int64_t sound, float least,
                             float factor, float extra, float *chord, float *below, float *top, uint8_t *unstable,
                             float *largest, int64_t threads) {
    int64_t odd = 0;
#pragma omp parallel for num_threads(threads) if (b * n >= SMALL) schedule(static) reduction(| : odd)
    for (int64_t e = 0; e < b; e++) {
        const float *l = lower + e * n, *u = upper + e * n;
        float *s = chord + e * n, *under = below + e * n, *t = top + e * n, most = 0.0f;
        uint8_t *both = unstable + e * n;
        int32_t strange = 0;
#pragma omp simd reduction(max : most) reduction(| : strange)
        for (int64_t j = 0; j < n; j++) {
            float low = l[j] > 0.0f ? 0.0f : l[j], high = u[j] < 0.0f ? 0.0f : u[j], width = high - low;
            float slope = sound ? high / (width < least ? least : width) : high / (width == 0.0f ? 1.0f : width);
            float at_low = (0.0f - slope) * low, at_high = (1.0f - slope) * high;
            float over = at_low < at_high ? at_high : at_low, far = u[j] > -l[j] ? u[j] : -l[j];
            s[j] = slope;
            under[j] = high + low > 0.0f ? 1.0f : 0.0f;
            t[j] = sound ? over * factor + extra : at_low;
            both[j] = (low < 0.0f) & (high > 0.0f);
            strange |= !(fabsf(at_low + at_high) < INFINITY);
            most = far > most ? far : most;
        }
        largest[e] = most;
        odd |= strange;
    }
    return odd;
}
