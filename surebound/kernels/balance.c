/* Moments of the units that bounds prove on or off, for regularisers of bounds; rows of columns, channels innermost. A column may
   be scaled first: centre c scale + shift, radius r |scale| (scale and shift (columns), or NULL). */

#define WIDTH 16 /* lanes, each with sums of its own: rows are short */
#define ADD_MOMENTS(k)                                                                                                         \
    do {                                                                                                                       \
        float c = scale ? m[j + k] * scale[j + k] + shift[j + k] : m[j + k];                                                   \
        float r = scale ? d[j + k] * fabsf(scale[j + k]) : d[j + k];                                                           \
        float is_on = c - r > 0.0f ? 1.0f : 0.0f, is_off = c + r < 0.0f ? 1.0f : 0.0f;                                         \
        double x = c, above = c * is_on, below = c * is_off;                                                                   \
        lane[0][k] += x, lane[1][k] += r;                                                                                      \
        lane[2][k] += is_on, lane[3][k] += above, lane[4][k] += above * x;                                                     \
        lane[5][k] += is_off, lane[6][k] += below, lane[7][k] += below * x;                                                    \
    } while (0)

/* sums (8): of centres, of radii; of units whose lower bound is > 0 their number, centres, squares of centres; the same of units
   whose upper bound is < 0. In double, in pieces of one size: the same bits whatever the number of threads. Returns 1 without
   memory. */
int64_t surebound_moments(const float *center, const float *radius, const float *scale, const float *shift, int64_t rows,
                          int64_t columns, double *sums, int64_t threads) {
    int64_t height = columns >= 4096 ? 1 : 4096 / columns, pieces = (rows + height - 1) / height;
    double *part = malloc((pieces + 1) * 8 * sizeof *part);
    if (!part) return 1;
#pragma omp parallel for num_threads(threads) if (rows * columns >= SMALL) schedule(static)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t last = (p + 1) * height < rows ? (p + 1) * height : rows;
        double lane[8][WIDTH] = {{0}};
        for (int64_t i = p * height; i < last; i++) {
            const float *m = center + i * columns, *d = radius + i * columns;
            for (int64_t j = 0; j < columns; j += WIDTH) {
                int64_t n = columns - j < WIDTH ? columns - j : WIDTH;
                if (n == WIDTH) {
#pragma omp simd
                    for (int64_t k = 0; k < WIDTH; k++) ADD_MOMENTS(k);
                } else
                    for (int64_t k = 0; k < n; k++) ADD_MOMENTS(k);
            }
        }
        for (int64_t k = 0; k < 8; k++) {
            part[8 * p + k] = 0;
            for (int64_t l = 0; l < WIDTH; l++) part[8 * p + k] += lane[k][l];
        }
    }
    for (int64_t k = 0; k < 8; k++) {
        sums[k] = 0;
        for (int64_t p = 0; p < pieces; p++) sums[k] += part[8 * p + k];
    }
    free(part);
    return 0;
}

/* Adds the gradient, of centres and radii as scaled: all + (on + 2 on_square c) where on + (off + 2 off_square c) where off, and
   `wide`. g may not be the centres. */
void surebound_add_gradient(const float *center, const float *radius, const float *scale, const float *shift, int64_t rows,
                                int64_t columns, const double *slopes, float *g, float *g_radius, int64_t threads) {
    float all = (float)slopes[0], wide = (float)slopes[1], on = (float)slopes[3], on_square = 2.0f * (float)slopes[4];
    float off = (float)slopes[6], off_square = 2.0f * (float)slopes[7];
#pragma omp parallel for num_threads(threads) if (rows * columns >= SMALL) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const float *m = center + i * columns, *d = radius + i * columns;
        float *to = g + i * columns, *to_radius = g_radius + i * columns;
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) {
            float c = scale ? m[j] * scale[j] + shift[j] : m[j], r = scale ? d[j] * fabsf(scale[j]) : d[j];
            float above = c - r > 0.0f ? on + on_square * c : 0.0f, below = c + r < 0.0f ? off + off_square * c : 0.0f;
            to[j] += all + above + below;
            to_radius[j] += wide;
        }
    }
}
