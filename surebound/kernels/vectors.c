/* Vectors of as many numbers as the processor adds up at once, and squares of them turned: rows to columns. */
#ifdef __AVX512F__
#define ACROSS 16
typedef float across __attribute__((vector_size(64), aligned(4), may_alias));
#else
#define ACROSS 8
typedef float across __attribute__((vector_size(32), aligned(4), may_alias));
#endif
#define UNROLLED _Pragma("GCC unroll 16")
#define PUT(p) (*(across *)(p))
#define GET(p) (*(const across *)(p))

/* The numbers of a and then b at these places; a square is turned by halves of halves. */
#ifdef __clang__
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t places_across __attribute__((vector_size(sizeof(float) * ACROSS)));
#define MIX(a, b, ...) __builtin_shuffle(a, b, (places_across){__VA_ARGS__})
#endif
#if ACROSS == 16
#define LOW_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define TOP_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define TOP_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define TOP_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define TOP_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#else
#define LOW_1 0, 8, 2, 10, 4, 12, 6, 14
#define TOP_1 1, 9, 3, 11, 5, 13, 7, 15
#define LOW_2 0, 1, 8, 9, 4, 5, 12, 13
#define TOP_2 2, 3, 10, 11, 6, 7, 14, 15
#define LOW_4 0, 1, 2, 3, 8, 9, 10, 11
#define TOP_4 4, 5, 6, 7, 12, 13, 14, 15
#endif
#define SWAP(S)                                                                                                               \
    UNROLLED for (int k = 0; k < ACROSS; k++) if (!(k & S)) {                                                                   \
        across a = v[k], b = v[k + S];                                                                                        \
        v[k] = MIX(a, b, LOW_##S), v[k + S] = MIX(a, b, TOP_##S);                                                             \
    }

/* The square at `from`, rows `step` apart, `there` of them and zeros -> its columns at `to`, `apart` from each other. */
static void turn_square(const float *from, int64_t step, int64_t there, float *to, int64_t apart) {
    across v[ACROSS], zero = {0};
    UNROLLED for (int k = 0; k < ACROSS; k++) v[k] = k < there ? GET(from + k * step) : zero;
    SWAP(1) SWAP(2) SWAP(4)
#if ACROSS == 16
    SWAP(8)
#endif
    UNROLLED for (int k = 0; k < ACROSS; k++) PUT(to + k * apart) = v[k];
}

/* Images (pixels, channels) -> (channels, pixels), one after the other. */
void surebound_channels_outermost(const float *from, int64_t images, int64_t pixels, int64_t channels, float *to,
                                  int64_t threads) {
#pragma omp parallel for num_threads(threads) if (images * pixels * channels >= SMALL) schedule(static)
    for (int64_t i = 0; i < images; i++) {
        const float *a = from + i * pixels * channels;
        float *b = to + i * pixels * channels;
        int64_t whole = pixels - pixels % ACROSS, squares = channels - channels % ACROSS;
        for (int64_t p = 0; p < whole; p += ACROSS)
            for (int64_t c = 0; c < squares; c += ACROSS)
                turn_square(a + p * channels + c, channels, ACROSS, b + c * pixels + p, pixels);
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t c = p < whole ? squares : 0; c < channels; c++) b[c * pixels + p] = a[p * channels + c];
    }
}
