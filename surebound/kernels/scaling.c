/* BatchNorm of a training step on rows of columns, channels innermost. Sums over rows are taken in pieces of one size, each in
   float and the pieces in double: the same bits whatever the number of threads, and other roundings than PyTorch's. */

#define HEIGHT 64 /* rows of a piece */

static int64_t pieces_in(int64_t rows) { return (rows + HEIGHT - 1) / HEIGHT; }

/* out (columns) = the sum of the pieces' rows of part (pieces, stride), times factor. */
static void add_pieces(const float *part, int64_t pieces, int64_t stride, int64_t columns, double factor, float *out) {
    for (int64_t j = 0; j < columns; j++) {
        double sum = 0.0;
        for (int64_t p = 0; p < pieces; p++) sum += part[p * stride + j];
        out[j] = (float)(sum * factor);
    }
}

/* Mean and biased variance (columns) of x (rows, columns). Returns 1 without memory. */
int64_t surebound_column_moments(const float *x, int64_t rows, int64_t columns, float *mean, float *variance, int64_t threads) {
    int64_t pieces = pieces_in(rows);
    float *part = malloc(pieces * columns * sizeof *part);
    if (!part) return 1;
    for (int64_t turn = 0; turn < 2; turn++) { /* first the mean, then the squares of distances to it */
#pragma omp parallel for num_threads(threads) if (rows * columns >= SMALL) schedule(static)
        for (int64_t p = 0; p < pieces; p++) {
            float *sum = part + p * columns;
            int64_t last = (p + 1) * HEIGHT < rows ? (p + 1) * HEIGHT : rows;
            memset(sum, 0, columns * sizeof *sum);
            for (int64_t i = p * HEIGHT; i < last; i++) {
                const float *row = x + i * columns;
                if (turn) {
#pragma omp simd
                    for (int64_t j = 0; j < columns; j++) sum[j] += (row[j] - mean[j]) * (row[j] - mean[j]);
                } else {
#pragma omp simd
                    for (int64_t j = 0; j < columns; j++) sum[j] += row[j];
                }
            }
        }
        add_pieces(part, pieces, columns, columns, 1.0 / (double)rows, turn ? variance : mean);
    }
    free(part);
    return 0;
}

/* Sums over rows (columns): of g, of g x, of g_radius radius. g and x have `parts` times as many rows as the radii. Returns 1
   without memory. */
int64_t surebound_column_sums(const float *g, const float *x, const float *g_radius, const float *radius, int64_t parts,
                              int64_t rows, int64_t columns, float *sums, int64_t threads) {
    int64_t pieces = pieces_in(rows), stride = 3 * columns;
    float *part = malloc(pieces * stride * sizeof *part);
    if (!part) return 1;
#pragma omp parallel for num_threads(threads) if (rows * columns >= SMALL) schedule(static)
    for (int64_t p = 0; p < pieces; p++) {
        float *plain = part + p * stride, *product = plain + columns, *wide = product + columns;
        int64_t last = (p + 1) * HEIGHT < rows ? (p + 1) * HEIGHT : rows;
        memset(plain, 0, stride * sizeof *plain);
        for (int64_t i = p * HEIGHT; i < last; i++) {
            for (int64_t k = 0; k < parts; k++) {
                const float *a = g + (k * rows + i) * columns, *b = x + (k * rows + i) * columns;
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) plain[j] += a[j], product[j] += a[j] * b[j];
            }
            const float *a = g_radius + i * columns, *b = radius + i * columns;
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) wide[j] += a[j] * b[j];
        }
    }
    for (int64_t k = 0; k < 3; k++) add_pieces(part + k * columns, pieces, stride, columns, 1.0, sums + k * columns);
    free(part);
    return 0;
}

/* Through y = scale x + shift where scale and shift depend on the clean rows: out = scale g, on clean rows plus slope x + offset
   (NULL: nothing). `parts`: of g; out has as many as x, `x_parts`. */
void surebound_scaled_gradient(const float *g, const float *x, const float *scale, const float *slope, const float *offset,
                               int64_t parts, int64_t x_parts, int64_t rows, int64_t columns, float *out, int64_t threads) {
    int64_t without = x_parts - parts; /* clean parts that only the statistics come from */
#pragma omp parallel for num_threads(threads) if (x_parts * rows * columns >= SMALL) schedule(static)
    for (int64_t i = 0; i < x_parts * rows; i++) {
        const float *a = i < without * rows ? NULL : g + (i - without * rows) * columns, *b = x + i * columns;
        float *to = out + i * columns;
        int64_t clean = i < rows && slope;
        if (a && clean) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) to[j] = a[j] * scale[j] + (b[j] * slope[j] + offset[j]);
        } else if (a) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) to[j] = a[j] * scale[j];
        } else if (clean) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) to[j] = b[j] * slope[j] + offset[j];
        } else
            memset(to, 0, columns * sizeof *to);
    }
}
