/* What a decoder layer computes between two matrix products, on a CPU, in float32.

   A row is a token; rows without a `step` (numbers from one row to the next) follow one another.
   OpenMP's threads share the work where there is enough: a second one takes microseconds to begin. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WORTH_A_THREAD 30000 /* multiplications */
#define AHEAD 16 /* tokens; scattered over the cache, they would be waited for one after the other */

/* e^x to 2 units in the last place from -87; below, e^-87; above 88.4, infinity; NaN stays NaN. In
   place of expf, which compilers do not vectorize: 2^n * e^r with |r| below 0.35, after Cephes. */
static inline float exponential(float x)
{
    const float shift = 12582912; /* 1.5 * 2^23: a sum with it is rounded to a whole number */
    x = x < -87 ? -87 : x > 89 ? 89 : x;
    union { float number; int32_t bits; } n = {x * 1.44269504f + shift}, power;
    const float whole = n.number - shift, r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    power.bits = (int32_t)((uint32_t)(n.bits - 0x4b400000 + 127) << 23);
    return (p * r * r + r + 1) * power.number;
}

/* RMSNorm. With a residual: sum = residual + x, and that is normalized. */
void normalize(const float *x, const float *residual, float *sum, const float *weight,
               float epsilon, long rows, long width, float *out)
{
#pragma omp parallel for if (rows * width > WORTH_A_THREAD)
    for (long row = 0; row < rows; row++) {
        const float *in = x + row * width;
        float *to = out + row * width, squares = 0;
        if (residual) {
            const float *before = residual + row * width;
            float *summed = sum + row * width;
#pragma omp simd
            for (long i = 0; i < width; i++)
                summed[i] = before[i] + in[i];
            in = summed;
        }
#pragma omp simd reduction(+ : squares)
        for (long i = 0; i < width; i++)
            squares += in[i] * in[i];
        const float scale = 1 / sqrtf(squares / width + epsilon);
#pragma omp simd
        for (long i = 0; i < width; i++)
            to[i] = in[i] * scale * weight[i];
    }
}

/* out = silu(first half of x) * second half; width: of a half. */
void silu_and_mul(const float *x, long rows, long width, float *out)
{
#pragma omp parallel for if (rows * width * 10 > WORTH_A_THREAD)
    for (long row = 0; row < rows; row++) {
        const float *gate = x + row * 2 * width, *up = gate + width;
        float *to = out + row * width;
#pragma omp simd
        for (long i = 0; i < width; i++)
            to[i] = gate[i] / (1 + exponential(-gate[i])) * up[i];
    }
}

/* Rotate the first `rotary` numbers of each head in place. angles: for each position its cosines,
   then its sines. */
void rotate(float *x, long step, long heads, long width, const float *angles, long rotary,
            const int64_t *positions, long rows)
{
#pragma omp parallel for if (rows * heads * width > WORTH_A_THREAD)
    for (long row = 0; row < rows; row++) {
        const float *cosine = angles + positions[row] * rotary, *sine = cosine + rotary / 2;
        for (long head = 0; head < heads; head++) {
            float *low = x + row * step + head * width, *high = low + rotary / 2;
#pragma omp simd
            for (long i = 0; i < rotary / 2; i++) {
                const float a = low[i], b = high[i];
                low[i] = a * cosine[i] - b * sine[i];
                high[i] = b * cosine[i] + a * sine[i];
            }
        }
    }
}

/* A head's numbers of the token in a slot of a cache, while those of a later one are fetched. */
static inline const float *in_cache(const float *cache, long width, long step, const int32_t *slots,
                                    long t, long tokens)
{
    const float *later = cache + slots[t + AHEAD < tokens ? t + AHEAD : t] * step;
    for (long i = 0; i < width; i += 16)
        __builtin_prefetch(later + i);
    return cache + slots[t] * step;
}

/* Attention of one query head; scores: room for a number a token. Inlined with constant widths,
   the loops over them are unrolled. cap: 0, or scores go through cap * tanh(score / cap). */
static inline __attribute__((always_inline)) void
attend_head(const float *query, long width, const float *keys, long key_step, const float *values,
            long value_width, long value_step, const int32_t *slots, long tokens, float scale,
            float cap, float *scores, float *out)
{
    float most = -INFINITY, sum = 0, mixed[value_width];
    for (long t = 0; t < tokens; t++) {
        const float *key = in_cache(keys, width, key_step, slots, t, tokens);
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (long i = 0; i < width; i++)
            dot += query[i] * key[i];
        scores[t] = cap ? cap * tanhf(dot * scale / cap) : dot * scale;
    }
#pragma omp simd reduction(max : most)
    for (long t = 0; t < tokens; t++)
        most = scores[t] > most ? scores[t] : most;
#pragma omp simd reduction(+ : sum)
    for (long t = 0; t < tokens; t++) {
        scores[t] = exponential(scores[t] - most);
        sum += scores[t];
    }
    memset(mixed, 0, sizeof mixed);
    for (long t = 0; t < tokens; t++) {
        const float *value = in_cache(values, value_width, value_step, slots, t, tokens);
#pragma omp simd
        for (long i = 0; i < value_width; i++)
            mixed[i] += scores[t] * value[i];
    }
#pragma omp simd
    for (long i = 0; i < value_width; i++)
        out[i] = mixed[i] / sum;
}

/* A decoding step. table: a request's slots, in the order of its tokens; of each row its request,
   how many tokens it has, and the newest one's slot. window: how many tokens before its own a row
   sees, below 0 all. */
typedef struct {
    const int32_t *table;
    const int64_t *requests, *lengths, *slots;
    long table_step, rows, heads, kv_heads, width, value_width, window;
    float scale, cap;
} Step;

/* Store each row's new keys and values, and attend. Returns 0 if there is no memory for scores. */
int attend(const Step *s, const float *query, long query_step, const float *new_keys, long key_step,
           const float *new_values, long value_step, float *keys, float *values, float *out)
{
    const long width = s->width, value_width = s->value_width, group = s->heads / s->kv_heads;
    const long all_keys = s->kv_heads * width, all_values = s->kv_heads * value_width;
    long longest = 0, tokens = 0;
    for (long row = 0; row < s->rows; row++) {
        memcpy(keys + s->slots[row] * all_keys, new_keys + row * key_step, all_keys * sizeof *keys);
        memcpy(values + s->slots[row] * all_values, new_values + row * value_step,
               all_values * sizeof *values);
        longest = s->lengths[row] > longest ? s->lengths[row] : longest;
        tokens += s->lengths[row];
    }
    float *scores = malloc(omp_get_max_threads() * longest * sizeof *scores);
#pragma omp parallel for if (tokens * s->heads * width > WORTH_A_THREAD)
    for (long task = 0; task < (scores ? s->rows * s->heads : 0); task++) {
        const long row = task / s->heads, head = task % s->heads, end = s->lengths[row];
        const long start = s->window >= 0 && end > s->window + 1 ? end - s->window - 1 : 0;
#define ATTEND(width, value_width)                                                                 \
    attend_head(query + row * query_step + head * (width), width, keys + head / group * (width),   \
                all_keys, values + head / group * (value_width), value_width, all_values,          \
                s->table + s->requests[row] * s->table_step + start, end - start, s->scale,        \
                s->cap, scores + omp_get_thread_num() * longest, out + task * (value_width))
        if (width == 64 && value_width == 64)
            ATTEND(64, 64);
        else if (width == 128 && value_width == 128)
            ATTEND(128, 128);
        else
            ATTEND(width, value_width);
    }
    const int enough = scores != NULL;
    free(scores);
    return enough;
}
