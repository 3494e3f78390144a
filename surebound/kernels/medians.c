/* Medians over the columns of random projections, many units at a time. */

#define STRIP 64 /* units at a time: K rows of them, twice, stay in the first cache */

#ifdef __AVX__
#define SMALLER(x, y) __builtin_ia32_minps256(x, y)
#define LARGER(x, y) __builtin_ia32_maxps256(x, y)
#else
#define SMALLER(x, y) ((eight)(((x) < (y) & (bits)(x)) | (~((x) < (y)) & (bits)(y))))
#define LARGER(x, y) ((eight)(((x) < (y) & (bits)(y)) | (~((x) < (y)) & (bits)(x))))
#endif

static inline __attribute__((always_inline)) void compare(float *p, float *q, int smaller, int larger) {
    for (int j = 0; j < STRIP; j += 8) {
        eight x = *(eight *)(p + j), y = *(eight *)(q + j);
        if (smaller) *(eight *)(p + j) = SMALLER(x, y);
        if (larger) *(eight *)(q + j) = LARGER(x, y);
    }
}

/* Brings the middle values of K rows to their places; where only one end of a comparison is needed, only that is made. */
static void select_middle(float (*row)[STRIP], const int32_t *comparators, int64_t count) {
    for (int64_t m = 0; m < count; m++, comparators += 4) {
        float *p = row[comparators[0]], *q = row[comparators[1]];
        if (comparators[2] && comparators[3])
            compare(p, q, 1, 1);
        else if (comparators[2])
            compare(p, q, 1, 0);
        else
            compare(p, q, 0, 1);
    }
}

/* The one or two values in the middle of |u| (K, B, n) over the K columns, and the columns they are found in: places (middles, B, n). The
   comparators (i, j, keep the smaller in i, keep the larger in j) put them where `middle` says. Of units that are not wanted (B, n)
   the sum is infinite; NULL: all are. Not 0: no memory. */
int64_t surebound_middle(const float *u, const uint8_t *wanted, int64_t b, int64_t k, int64_t n, const int32_t *comparators,
                          int64_t count, const int32_t *middle, int64_t middles, float *norm, uint8_t *places,
                          int64_t threads) {
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        int32_t *list = malloc((n + STRIP) * sizeof *list);
        float (*whole)[STRIP] = aligned_alloc(64, 2 * k * sizeof *whole), (*row)[STRIP] = whole + k;
        failed = !list || !whole;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < b; e++) {
            int64_t m = 0;
            for (int64_t j = 0; j < n && !failed; j++) {
                list[m] = (int32_t)j;
                m += wanted ? wanted[e * n + j] : 1;
                norm[e * n + j] = INFINITY;
            }
            for (int64_t s = 0; wanted && s < middles; s++) memset(places + (s * b + e) * n, 0, n);
            for (int64_t j = 0; j < STRIP && m && !failed; j++) list[m + j] = list[m - 1]; /* fills up the last strip */
            for (int64_t first = 0; first < m && !failed; first += STRIP) {
                const int32_t *these = list + first;
                int64_t size = least(STRIP, m - first), dense = size == STRIP && these[STRIP - 1] - these[0] == STRIP - 1;
                int64_t next = list[least(first + 2 * STRIP, m) - 1];
                float sum[STRIP] = {0};
                for (int64_t i = 0; i < k; i++) {
                    const float *from = u + (i * b + e) * n;
                    if (dense)
                        memcpy(whole[i], from + these[0], sizeof *whole);
                    else
                        for (int j = 0; j < STRIP; j++) whole[i][j] = from[these[j]];
                    /* rows are far apart */
                    for (int64_t j = these[STRIP - 1] + 1; j <= next; j += 16) __builtin_prefetch(from + j);
#pragma omp simd
                    for (int j = 0; j < STRIP; j++) row[i][j] = whole[i][j] = fabsf(whole[i][j]);
                }
                select_middle(row, comparators, count);
                for (int64_t s = 0; s < middles; s++) {
                    const float *value = row[middle[s]];
                    int32_t place[STRIP] = {0};
                    for (int j = 0; j < STRIP; j++) sum[j] += value[j];
                    for (int64_t i = 0; i < k; i++) { /* of equal ones: the first for the lower, the last for the upper */
                        int32_t at = (int32_t)(s ? i : k - 1 - i);
                        for (int j = 0; j < STRIP; j += 8) {
                            bits same = *(const eight *)(whole[at] + j) == *(const eight *)(value + j);
                            *(bits *)(place + j) = (same & at) | (~same & *(bits *)(place + j));
                        }
                    }
                    for (int64_t j = 0; j < size; j++) places[(s * b + e) * n + these[j]] = (uint8_t)place[j];
                }
                for (int64_t j = 0; j < size; j++) norm[e * n + these[j]] = sum[j];
            }
        }
        free(list), free(whole);
    }
    return failed;
}
