/* Elementwise passes over the ends of bounds, with gradients: lines of a ReLU, and the tighter of two bounds. */

/* The line above a ReLU between its ends, of `total` units: slope, intercept, the adaptive slope below, and where both signs are
   possible. */
void surebound_chord(const float *lower, const float *upper, int64_t total, float *slope, float *top, float *below,
                     uint8_t *open, int64_t threads) {
    int64_t block = 4096, blocks = (total + block - 1) / block;
#pragma omp parallel for num_threads(threads) if (total >= SMALL) schedule(static)
    for (int64_t k = 0; k < blocks; k++) {
        int64_t last = (k + 1) * block < total ? (k + 1) * block : total;
#pragma omp simd
        for (int64_t j = k * block; j < last; j++) {
            float l = lower[j], u = upper[j], low = l > 0.0f ? 0.0f : l, high = u < 0.0f ? 0.0f : u, width = high - low;
            float inverse = 1.0f / width, s = high * (inverse == INFINITY ? 0.0f : inverse);
            slope[j] = s, top[j] = -s * low;
            below[j] = (u > 0.0f) & (l + u > 0.0f) ? 1.0f : 0.0f;
            open[j] = (l < 0.0f) & (u > 0.0f);
        }
    }
}

/* Its gradients: none where the sign is known. */
void surebound_chord_backward(const float *lower, const float *upper, const float *g_slope, const float *g_top, int64_t total,
                              float *g_lower, float *g_upper, int64_t threads) {
    int64_t block = 4096, blocks = (total + block - 1) / block;
#pragma omp parallel for num_threads(threads) if (total >= SMALL) schedule(static)
    for (int64_t k = 0; k < blocks; k++) {
        int64_t last = (k + 1) * block < total ? (k + 1) * block : total;
#pragma omp simd
        for (int64_t j = k * block; j < last; j++) {
            float l = lower[j], u = upper[j], inverse = 1.0f / (u - l), s = u * inverse, rest = l * inverse;
            float per = g_slope[j] * inverse, t = g_top[j];
            int32_t open = (l < 0.0f) & (u > 0.0f);
            g_lower[j] = open ? per * s - t * s * s : 0.0f;
            g_upper[j] = open ? t * rest * rest - per * rest : 0.0f;
        }
    }
}

/* The tighter of known ends and centre -+ radius; what is not a number says nothing. */
void surebound_within(const float *lower, const float *upper, const float *center, const float *radius, int64_t total,
                      float *new_lower, float *new_upper, int64_t threads) {
    int64_t block = 4096, blocks = (total + block - 1) / block;
#pragma omp parallel for num_threads(threads) if (total >= SMALL) schedule(static)
    for (int64_t k = 0; k < blocks; k++) {
        int64_t last = (k + 1) * block < total ? (k + 1) * block : total;
#pragma omp simd
        for (int64_t j = k * block; j < last; j++) {
            float l = lower[j], u = upper[j], low = center[j] - radius[j], high = center[j] + radius[j];
            new_lower[j] = (low > l) | (l != l) ? low : l;
            new_upper[j] = (high < u) | (u != u) ? high : u;
        }
    }
}

/* Its gradients, from the new ends and theirs. Returns whether the known ends have any. */
int64_t surebound_within_backward(const float *lower, const float *upper, const float *new_lower, const float *new_upper,
                                  const float *g_low, const float *g_high, int64_t total, float *g_lower, float *g_upper,
                                  float *g_center, float *g_radius, int64_t threads) {
    int64_t block = 4096, blocks = (total + block - 1) / block, found = 0;
#pragma omp parallel for num_threads(threads) if (total >= SMALL) schedule(static) reduction(| : found)
    for (int64_t k = 0; k < blocks; k++) {
        int64_t last = (k + 1) * block < total ? (k + 1) * block : total;
        int32_t any = 0;
#pragma omp simd reduction(| : any)
        for (int64_t j = k * block; j < last; j++) {
            int32_t own_low = new_lower[j] != lower[j], own_high = new_upper[j] != upper[j];
            float low = own_low ? g_low[j] : 0.0f, high = own_high ? g_high[j] : 0.0f;
            float old_low = own_low ? 0.0f : g_low[j], old_high = own_high ? 0.0f : g_high[j];
            g_center[j] = low + high, g_radius[j] = high - low;
            g_lower[j] = old_low, g_upper[j] = old_high;
            any |= (old_low != 0.0f) | (old_high != 0.0f);
        }
        found |= any;
    }
    return found;
}

/* What a product pays for the rounding of a centre, with its radius or width. */
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

/* a + b for b > 0, rounded up where it has to be rounded: Knuth's two-sum says where it was rounded down. */
static inline float add_up(float a, float b) {
    float sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part), whole = sum + 0.0f; /* no -0 */
    int32_t bits;
    memcpy(&bits, &whole, sizeof bits);
    bits += whole < 0.0f ? -1 : 1;
    float next;
    memcpy(&next, &bits, sizeof next);
    return error > 0.0f ? next : sum;
}

/* The ball around x with radius > 0, its ends rounded outwards, within [least, most]. */
void surebound_ball(const float *x, int64_t n, float radius, float least, float most, float *low, float *high, int64_t threads) {
#pragma omp parallel for simd num_threads(threads) if (parallel : n >= SMALL) schedule(static)
    for (int64_t j = 0; j < n; j++) {
        float down = -add_up(-x[j], radius), up = add_up(x[j], radius);
        down = down < least ? least : down, up = up < least ? least : up;
        low[j] = down > most ? most : down, high[j] = up > most ? most : up;
    }
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
