/* Rounding error bounds of products and sums: what they read of bounds and weights, and sums that are rounded up. */

/* The radius or width with the rounding error bound of the product of its centre. */
static inline float paid(float center, float width, float rate) { return width + rate * fabsf(center); }

void surebound_paid(const float *center, const float *width, int64_t n, float rate, float *to, int64_t threads) {
#pragma omp parallel for simd num_threads(threads) if (parallel : n >= SMALL) schedule(static)
    for (int64_t j = 0; j < n; j++) to[j] = paid(center[j], width[j], rate);
}

/* Bounds (B, n) as a product wants them: center, width + rate |center|, and max(low, -high), which is what the largest |x| is more
   than the width; the largest |x| of each example (B). NaN stays NaN, but is not the largest. Returns how many of the third
   kind are not 0. */
int64_t surebound_entry(const float *low, const float *high, int64_t b, int64_t n, float rate, float *center, float *width,
                        float *clear, float *most, int64_t threads) {
    int64_t total = 0;
#pragma omp parallel for num_threads(threads) if (b * n >= SMALL) schedule(static) reduction(+ : total)
    for (int64_t e = 0; e < b; e++) {
        const float *l = low + e * n, *h = high + e * n;
        float *c = center + e * n, *w = width + e * n, *d = clear + e * n, largest = 0.0f;
        int32_t count = 0;
#pragma omp simd reduction(max : largest) reduction(+ : count)
        for (int64_t j = 0; j < n; j++) {
            float whole = h[j] - l[j], middle = l[j] + 0.5f * whole, far = h[j] > -l[j] ? h[j] : -l[j];
            float near = isnan(whole) ? whole : l[j] > -h[j] ? l[j] : -h[j];
            c[j] = middle, w[j] = paid(middle, whole, rate), d[j] = near;
            count += near != 0.0f;
            largest = far > largest ? far : largest;
        }
        most[e] = largest, total += count;
    }
    return total;
}

/* to = |w| (n); *most is its largest, NaN if there is a NaN. Returns whether some of it is neither 0 nor above `least`. */
int64_t surebound_sizes(const float *w, int64_t n, float least, float *to, float *most, int64_t threads) {
    float largest = 0.0f;
    int32_t small = 0, nan = 0;
#pragma omp parallel for simd num_threads(threads) if (parallel : n >= SMALL) schedule(static) reduction(max : largest)       \
    reduction(| : small, nan)
    for (int64_t j = 0; j < n; j++) {
        float size = fabsf(w[j]);
        to[j] = size;
        largest = size > largest ? size : largest;
        small |= (size > 0.0f) & (size <= least), nan |= size != size;
    }
    *most = nan ? NAN : largest;
    return small;
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
