/* Elementwise passes over the ends of bounds, some with gradients: lines of a ReLU, the tighter of two bounds, balls. */

/* Gradients of the ends from those of slope and intercept of a ReLU's chord: none where the sign is known. */
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

/* Lines of a ReLU between finite bounds [low, high] (B, n), the chord's slope, the lower line's, the
   chord's intercept as `factor` times it plus `extra`, where both are possible, and `under` (1 + the largest |bound|) of an
   example. Without `sound` the intercept is the chord's own. Returns 1 if some intercept is not finite. */
int64_t surebound_hinge(const float *lower, const float *upper, int64_t b, int64_t n, int64_t sound, float least,
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

/* ReLU of the bounds centre -+ radius, in place: centre <- new centre, radius <- new width. */
void surebound_relu_of_bounds(float *center, float *radius, int64_t total, int64_t threads) {
    int64_t block = 4096, blocks = (total + block - 1) / block;
#pragma omp parallel for num_threads(threads) if (total >= SMALL) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        float *m = center + b * block, *d = radius + b * block;
        int64_t n = total - b * block < block ? total - b * block : block;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float u = m[j] + d[j], l = u - 2.0f * d[j];
            u = RELU(u), l = RELU(l);
            float w = u - l;
            m[j] = l + 0.5f * w, d[j] = w;
        }
    }
}
