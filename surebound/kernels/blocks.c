/* Elementwise passes of bounds and of a training step on rows of channels, in one sweep over memory each.

   Nothing here adds up over rows, and the compiler may not contract products and sums (-ffp-contract=off): every
   number is the one that fallback.py computes, bit for bit, whatever the number of threads. NaN stays NaN and counts
   as "on", so that a diverged network is seen to have diverged. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ON(v) (!((v) <= 0.0f))
#define RELU(v) ((v) <= 0.0f ? 0.0f : (v))
#define SMALL 16384 /* below so many numbers starting threads costs more than it saves */

/* Which columns have a clean value or an upper bound that is not <= 0 in some row. Gives up, with -1, as soon as more
   than `limit` are known. clean, scale and shift may be NULL. */
static int64_t scan(const float *clean, const float *mu, const float *r, const float *scale, const float *shift,
                    int64_t rows, int64_t columns, int64_t limit, int32_t *on) {
    memset(on, 0, columns * sizeof *on);
    int64_t count = 0;
    int64_t every = columns >= 1024 ? 1 : 1024 / columns;
    for (int64_t i = 0; i < rows; i++) {
        const float *m = mu + i * columns, *d = r + i * columns, *c = clean ? clean + i * columns : m;
        if (scale) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) {
                float v = m[j] * scale[j] + shift[j], x = c[j] * scale[j] + shift[j];
                on[j] |= ON(v + d[j] * fabsf(scale[j])) | ON(x);
            }
        } else {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) on[j] |= ON(m[j] + d[j]) | ON(c[j]);
        }
        if ((i + 1) % every == 0 || i + 1 == rows) {
            count = 0;
            for (int64_t j = 0; j < columns; j++) count += on[j];
            if (count > limit) return -1;
        }
    }
    return count;
}

int64_t surebound_columns_on(const float *clean, const float *mu, const float *r, const float *scale, const float *shift,
                       int64_t rows, int64_t columns, int64_t limit, uint8_t *on, int64_t threads) {
    if (rows * columns < SMALL) threads = 1;
    int32_t *found = malloc(threads * columns * sizeof *found);
    if (!found) return -1;
    int64_t over = 0;
#pragma omp parallel for num_threads(threads) reduction(| : over) schedule(static, 1)
    for (int64_t t = 0; t < threads; t++) {
        int64_t first = rows * t / threads, last = rows * (t + 1) / threads, k = first * columns;
        over |= scan(clean ? clean + k : NULL, mu + k, r + k, scale, shift, last - first, columns, limit,
                     found + t * columns) < 0;
    }
    int64_t count = 0;
    for (int64_t j = 0; j < columns; j++) {
        on[j] = 0;
        for (int64_t t = 0; t < threads; t++) on[j] |= (uint8_t)found[t * columns + j];
        count += on[j];
    }
    free(found);
    return over || count > limit ? -1 : count;
}

/* ReLU of one row; bits of the mask: 1 clean, 2 lower, 4 upper. c and oc may be NULL together. */
static inline void relu_row(const float *c, const float *m, const float *d, float *oc, float *om, float *od, uint8_t *mask,
                            int64_t n) {
    if (c) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float x = c[j], l = m[j] - d[j], u = m[j] + d[j];
            mask[j] = (uint8_t)(ON(x) | ON(l) << 1 | ON(u) << 2);
            l = RELU(l), u = RELU(u);
            oc[j] = RELU(x), om[j] = (l + u) * 0.5f, od[j] = (u - l) * 0.5f;
        }
    } else {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float l = m[j] - d[j], u = m[j] + d[j];
            mask[j] = (uint8_t)(ON(l) << 1 | ON(u) << 2);
            l = RELU(l), u = RELU(u);
            om[j] = (l + u) * 0.5f, od[j] = (u - l) * 0.5f;
        }
    }
}

static inline void pick(const float *from, float *to, const int64_t *on, int64_t n, const float *scale, const float *shift) {
    if (on) {
        if (scale)
#pragma omp simd
            for (int64_t j = 0; j < n; j++) to[j] = from[on[j]] * scale[on[j]] + shift[on[j]];
        else
#pragma omp simd
            for (int64_t j = 0; j < n; j++) to[j] = from[on[j]];
    } else
#pragma omp simd
        for (int64_t j = 0; j < n; j++) to[j] = from[j] * scale[j] + shift[j];
}

static inline void pick_radius(const float *from, float *to, const int64_t *on, int64_t n, const float *scale) {
    if (on) {
        if (scale)
#pragma omp simd
            for (int64_t j = 0; j < n; j++) to[j] = from[on[j]] * fabsf(scale[on[j]]);
        else
#pragma omp simd
            for (int64_t j = 0; j < n; j++) to[j] = from[on[j]];
    } else
#pragma omp simd
        for (int64_t j = 0; j < n; j++) to[j] = from[j] * fabsf(scale[j]);
}

/* (clean, centre, radius) of `rows` x `columns` -> their ReLU on the columns `on` (n of them; NULL: all). Without `on`
   and without `scale` outputs may be the inputs. */
void surebound_relu(const float *clean, const float *mu, const float *r, const float *scale, const float *shift,
                    const int64_t *on, int64_t rows, int64_t columns, int64_t n, float *out_clean, float *out_mu, float *out_r,
                    uint8_t *mask, int64_t threads) {
    if (!on && !scale) { /* one long row per thread */
        int64_t total = rows * columns, block = 4096, blocks = (total + block - 1) / block;
#pragma omp parallel for num_threads(threads) if (total >= SMALL) schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t k = b * block, m = total - k < block ? total - k : block;
            relu_row(clean ? clean + k : NULL, mu + k, r + k, clean ? out_clean + k : NULL, out_mu + k, out_r + k, mask + k, m);
        }
        return;
    }
#pragma omp parallel for num_threads(threads) if (rows * n >= SMALL) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        int64_t from = i * columns, to = i * n;
        if (clean) pick(clean + from, out_clean + to, on, n, scale, shift);
        pick(mu + from, out_mu + to, on, n, scale, shift);
        pick_radius(r + from, out_r + to, on, n, scale);
        relu_row(clean ? out_clean + to : NULL, out_mu + to, out_r + to, clean ? out_clean + to : NULL, out_mu + to, out_r + to,
                 mask + to, n);
    }
}

static inline void relu_gradient(const float *gm, const float *gr, const uint8_t *m, float *om, float *or, int64_t n) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        int32_t bits = m[j];
        float l = (bits & 2) ? (gm[j] - gr[j]) * 0.5f : 0.0f, u = (bits & 4) ? (gm[j] + gr[j]) * 0.5f : 0.0f;
        om[j] = l + u, or[j] = u - l;
    }
}

/* Gradients through it: g of the outputs (rows x n) -> of the inputs. With `to`, column j goes to column to[j] of
   `columns`, the others being 0. */
void surebound_relu_backward(const float *g_clean, const float *g_mu, const float *g_r, const uint8_t *mask, const int64_t *to,
                             int64_t rows, int64_t n, int64_t columns, float *out_clean, float *out_mu, float *out_r,
                             int64_t threads) {
    if (to) {
#pragma omp parallel for num_threads(threads) if (rows * columns >= SMALL) schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            const float *gm = g_mu + i * n, *gr = g_r + i * n;
            const uint8_t *m = mask + i * n;
            float *om = out_mu + i * columns, *or = out_r + i * columns;
            memset(om, 0, columns * sizeof *om);
            memset(or, 0, columns * sizeof *or);
            for (int64_t j = 0; j < n; j++) {
                float l = (m[j] & 2) ? (gm[j] - gr[j]) * 0.5f : 0.0f, u = (m[j] & 4) ? (gm[j] + gr[j]) * 0.5f : 0.0f;
                om[to[j]] = l + u, or[to[j]] = u - l;
            }
            if (g_clean) {
                float *oc = out_clean + i * columns;
                memset(oc, 0, columns * sizeof *oc);
                for (int64_t j = 0; j < n; j++) oc[to[j]] = (m[j] & 1) ? g_clean[i * n + j] : 0.0f;
            }
        }
        return;
    }
    int64_t total = rows * n, block = 4096, blocks = (total + block - 1) / block;
#pragma omp parallel for num_threads(threads) if (total >= SMALL) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t k = b * block, size = total - k < block ? total - k : block;
        relu_gradient(g_mu + k, g_r + k, mask + k, out_mu + k, out_r + k, size);
        if (g_clean) {
            const float *gc = g_clean + k;
            const uint8_t *m = mask + k;
            float *oc = out_clean + k;
#pragma omp simd
            for (int64_t j = 0; j < size; j++) oc[j] = (m[j] & 1) ? gc[j] : 0.0f;
        }
    }
}

/* a + b sign(w), in place of a. */
void surebound_add_signed(float *a, const float *b, const float *w, int64_t total, int64_t threads) {
    int64_t block = 4096, blocks = (total + block - 1) / block;
#pragma omp parallel for num_threads(threads) if (total >= SMALL) schedule(static)
    for (int64_t k = 0; k < blocks; k++) {
        int64_t last = (k + 1) * block < total ? (k + 1) * block : total;
#pragma omp simd
        for (int64_t j = k * block; j < last; j++) a[j] += b[j] * (float)((w[j] > 0.0f) - (w[j] < 0.0f));
    }
}

/* Sums of windows: windows (images, oh, ow, kh, kw, c) -> images (images, h, w, c), the adjoint of cutting windows out of
   an image padded by (top, left) zeros. Every pixel adds its windows in the order of their positions. */
void surebound_fold(const float *windows, int64_t images, int64_t oh, int64_t ow, int64_t kh, int64_t kw, int64_t c, int64_t h,
                    int64_t w, int64_t sy, int64_t sx, int64_t top, int64_t left, float *out, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (images * h * w * c >= SMALL) schedule(static)
    for (int64_t i = 0; i < images; i++) {
        float *image = out + i * h * w * c;
        const float *from = windows + i * oh * ow * kh * kw * c;
        memset(image, 0, h * w * c * sizeof *image);
        for (int64_t oy = 0; oy < oh; oy++)
            for (int64_t ox = 0; ox < ow; ox++)
                for (int64_t a = 0; a < kh; a++, from += kw * c) {
                    int64_t y = oy * sy + a - top, x = ox * sx - left;
                    if (y < 0 || y >= h) continue;
                    int64_t first = x < 0 ? -x : 0, last = x + kw > w ? w - x : kw; /* columns of the window inside */
                    float *to = image + (y * w + x) * c;
#pragma omp simd
                    for (int64_t j = first * c; j < last * c; j++) to[j] += from[j];
                }
    }
}

/* Windows of images, the adjoint of surebound_fold: images (images, h, w, c) -> (images, oh, ow, kh, kw, c), no padding. */
void surebound_unfold(const float *from, int64_t images, int64_t oh, int64_t ow, int64_t kh, int64_t kw, int64_t c, int64_t h,
                      int64_t w, int64_t sy, int64_t sx, float *windows, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (images * h * w * c >= SMALL) schedule(static)
    for (int64_t i = 0; i < images; i++) {
        const float *image = from + i * h * w * c;
        float *to = windows + i * oh * ow * kh * kw * c;
        for (int64_t y = 0; y < oh; y++)
            for (int64_t x = 0; x < ow; x++)
                for (int64_t k = 0; k < kh; k++, to += kw * c)
                    memcpy(to, image + ((y * sy + k) * w + x * sx) * c, kw * c * sizeof *to);
    }
}
