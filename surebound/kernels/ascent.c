/* Steps of the ascent in the multipliers of a reduced network's sub-problems: rows of numbers, a sub-problem each. A split
   unit (sign not 0) has the slope of its side and a multiplier; a free one has its lower slope and the chord above. */

/* From coefficients `own` of a layer's units those of their inputs, `p`, and what the lines add to the offsets. */
void surebound_lines_back(const float *own, int64_t own_step, const int8_t *signs, int64_t sign_step, const float *alphas,
                          int64_t alpha_step, const float *betas, int64_t beta_step, const float *chord, const float *top,
                          const float *bottom, const float *middle, float left, float right, int64_t rows, int64_t count,
                          float *p, int64_t p_step, float *offset, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * count >= SMALL) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const float *o = own + i * own_step, *alpha = alphas + i * alpha_step, *beta = betas + i * beta_step;
        const int8_t *sign = signs + i * sign_step;
        float *to = p + i * p_step, sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < count; j++) {
            int32_t s = sign[j];
            float up = o[j] > 0.0f ? o[j] : 0.0f, down = o[j] - up, side = s > 0 ? right : left;
            float push = beta[j] > 0.0f ? beta[j] : 0.0f;
            float above = s ? side : chord[j], below = s ? side : alpha[j], high = s ? -bottom[j] : top[j];
            float through = up * above + down * below + (s > 0 ? push : s < 0 ? -push : 0.0f);
            to[j] = through;
            sum += up * high + through * middle[j] + down * bottom[j];
        }
        offset[i] += sum;
    }
}

/* Along these lines from the inputs `z` of a layer's units, less `middle`, to their outputs `y`; `inside`: the inputs. */
void surebound_lines_along(const float *z, int64_t z_step, const float *own, int64_t own_step, const int8_t *signs,
                           int64_t sign_step, const float *alphas, int64_t alpha_step, const float *chord, const float *top,
                           const float *bottom, const float *middle, float left, float right, int64_t rows, int64_t count,
                           float *inside, int64_t in_step, float *y, int64_t y_step, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * count >= SMALL) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const float *from = z + i * z_step, *o = own + i * own_step, *alpha = alphas + i * alpha_step;
        const int8_t *sign = signs + i * sign_step;
        float *in = inside + i * in_step, *out = y + i * y_step;
#pragma omp simd
        for (int64_t j = 0; j < count; j++) {
            int32_t s = sign[j];
            float x = from[j] + middle[j], side = s > 0 ? right : left;
            float above = s ? side : chord[j], below = s ? side : alpha[j], high = s ? -bottom[j] : top[j];
            in[j] = x;
            out[j] = o[j] > 0.0f ? above * x + high : below * x;
        }
    }
}

/* One step of Adam on the slopes of free units and the multipliers of split ones, in place, with the averages of inputs and
   outputs. Every unit has one of the two, and so one mean and one square of its derivatives. */
void surebound_ascend(const float *own, int64_t own_step, const float *inside, const float *outside, int64_t out_step,
                      const int8_t *signs, const float *unit, const float *least, const float *steepest, float weight,
                      float alpha_rate, float beta_rate, int64_t rows, int64_t count, float *alphas, float *betas, float *mean,
                      float *square, float *inputs, float *outputs, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * count >= SMALL) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const float *o = own + i * own_step, *out = outside + i * out_step;
        int64_t first = i * count;
#pragma omp simd
        for (int64_t j = 0; j < count; j++) {
            int64_t k = first + j;
            int32_t s = signs[k];
            float x = inside[k], down = o[j] < 0.0f ? o[j] : 0.0f;
            inputs[k] += weight * (x - inputs[k]);
            outputs[k] += weight * (out[j] - outputs[k]);
            float g = s ? (s > 0 ? x : -x) : down * x;
            float m = mean[k] + 0.1f * (g - mean[k]), v = 0.999f * square[k] + 0.001f * g * g;
            mean[k] = m, square[k] = v;
            float move = m / (sqrtf(v) + 1e-12f);
            float beta = betas[k] - (s ? beta_rate * unit[k] * move : 0.0f);
            float alpha = alphas[k] - (s ? 0.0f : alpha_rate * move);
            betas[k] = beta > 0.0f ? beta : 0.0f;
            alpha = alpha < least[j] ? least[j] : alpha;
            alphas[k] = alpha > steepest[j] ? steepest[j] : alpha;
        }
    }
}
