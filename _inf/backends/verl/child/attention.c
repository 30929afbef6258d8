/* Attention of a decoding step, on a CPU, in float32.

   A row's tokens are read in blocks, and all its heads computed with each: a cache has the heads of
   a token side by side, so memory is read in long pieces, and once. With few rows the threads share
   a row's heads. */
#include "vectors.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 16 /* of a block; while it is computed, the next one is fetched */
#define NUMBERS 64 /* of a head's output; what the registers hold */

/* A decoding step. table: a request's slots, in the order of its tokens; of each row its request,
   how many tokens it has, and the newest one's slot. window: how many tokens before its own a row
   sees, below 0 all. */
typedef struct Step {
    const int32_t *table;
    const int64_t *requests, *lengths, *slots;
    long table_step, rows, heads, kv_heads, width, value_width, window;
    float scale, cap;
} Step;

/* Make weights of a head's scores; return what their sum is to be divided by. cap: 0, or scores go
   through cap * tanh(score / cap). */
static float weigh(float *scores, long tokens, float cap)
{
    float most = -INFINITY, sum = 0;
    for (long t = 0; cap && t < tokens; t++)
        scores[t] = cap * tanhf(scores[t] / cap);
#pragma omp simd reduction(max : most)
    for (long t = 0; t < tokens; t++)
        most = scores[t] > most ? scores[t] : most;
#pragma omp simd reduction(+ : sum)
    for (long t = 0; t < tokens; t++) {
        scores[t] = exponential(scores[t] - most);
        sum += scores[t];
    }
    return sum;
}

/* Add weighted values of a block's tokens to NUMBERS of a head's output. */
static inline __attribute__((always_inline)) void
mix(const float *weights, const float *const *values, long first, long tokens, float *out)
{
    Vector sums[NUMBERS / LANES];
    for (int v = 0; v < NUMBERS / LANES; v++)
        sums[v] = ((const Vector *)out)[v];
    for (long t = 0; t < tokens; t++) {
        const Vector *value = (const Vector *)(values[t] + first), weight = all_lanes(weights[t]);
        for (int v = 0; v < NUMBERS / LANES; v++)
            sums[v] = ADD_PRODUCT(sums[v], value[v], weight);
    }
    for (int v = 0; v < NUMBERS / LANES; v++)
        ((Vector *)out)[v] = sums[v];
}

/* Where a block's tokens are in a cache. */
static inline void find(const float *cache, long step, const int32_t *slots, long tokens,
                        const float **found)
{
    for (long t = 0; t < tokens; t++)
        found[t] = cache + slots[t] * step;
}

/* Fetch the share of one of `heads` heads of the next block's numbers; left: tokens from it on. */
static inline void fetch(const float *cache, long step, const int32_t *slots, long left, long width,
                         long head, long heads)
{
    const long tokens = least(left, TOKENS);
    for (long t = tokens * head / heads; t < tokens * (head + 1) / heads; t++)
        for (long i = 0; i < width; i += LINE / sizeof *cache)
            __builtin_prefetch(cache + slots[t] * step + i);
}

static inline __attribute__((always_inline)) void
score_heads(const Step *s, const float *query, const long width, long heads, const float *keys,
            const int32_t *slots, long tokens, float *scores)
{
    const long group = s->heads / s->kv_heads, step = s->kv_heads * width;
    const float *block[TOKENS];
    for (long start = 0, count; start < tokens; start += count) {
        count = least(tokens - start, TOKENS);
        find(keys, step, slots + start, count, block);
        for (long head = 0; head < heads; head++) {
            fetch(keys, step, slots + start + count, tokens - start - count, heads / group * width,
                  head, heads);
            scaled_dots(query + head * width, width, block, head / group * width, count, s->scale,
                        scores + head * tokens + start);
        }
    }
}

static inline __attribute__((always_inline)) void
mix_heads(const Step *s, const float *weights, const long width, long heads, const float *values,
          const int32_t *slots, long tokens, float *out)
{
    const long group = s->heads / s->kv_heads, step = s->kv_heads * width;
    const long rest = width / NUMBERS * NUMBERS;
    const float *block[TOKENS];
    memset(out, 0, heads * width * sizeof *out);
    for (long start = 0, count; start < tokens; start += count) {
        count = least(tokens - start, TOKENS);
        find(values, step, slots + start, count, block);
        for (long head = 0; head < heads; head++) {
            const float *of_head = weights + head * tokens + start;
            const long first = head / group * width;
            float *to = out + head * width;
            fetch(values, step, slots + start + count, tokens - start - count, heads / group * width,
                  head, heads);
            for (long i = 0; i < rest; i += NUMBERS)
                mix(of_head, block, first + i, count, to + i);
            for (long t = 0; t < count && rest < width; t++)
#pragma omp simd
                for (long i = rest; i < width; i++)
                    to[i] += of_head[t] * block[t][first + i];
        }
    }
}

/* Attention of some heads of a row, whose cached heads begin at `keys` and `values`. scores: room for
   a number a head and token. */
static inline __attribute__((always_inline)) void
attend_heads(const Step *s, const float *query, const long width, const long value_width, long heads,
             const float *keys, const float *values, const int32_t *slots, long tokens,
             float *scores, float *out)
{
    float sums[heads];
    score_heads(s, query, width, heads, keys, slots, tokens, scores);
    for (long head = 0; head < heads; head++)
        sums[head] = weigh(scores + head * tokens, tokens, s->cap);
    mix_heads(s, scores, value_width, heads, values, slots, tokens, out);
    for (long head = 0; head < heads; head++)
        for (long i = 0; i < value_width; i++)
            out[head * value_width + i] /= sums[head];
}

/* Store each row's new keys and values, and attend. Returns 0 if there is no memory for scores. */
int attend(const Step *s, const float *query, long query_step, const float *new_keys, long key_step,
           const float *new_values, long value_step, float *keys, float *values, float *out)
{
    const long all_keys = s->kv_heads * s->width, all_values = s->kv_heads * s->value_width;
    const long threads = omp_get_max_threads();
    const long parts = s->rows < 4 * threads ? s->kv_heads : 1; /* of a row, for all threads */
    const long heads = s->heads / parts, cached = s->kv_heads / parts;
    long longest = 0, tokens = 0;
    for (long row = 0; row < s->rows; row++) {
        memcpy(keys + s->slots[row] * all_keys, new_keys + row * key_step, all_keys * sizeof *keys);
        memcpy(values + s->slots[row] * all_values, new_values + row * value_step,
               all_values * sizeof *values);
        longest = s->lengths[row] > longest ? s->lengths[row] : longest;
        tokens += s->lengths[row];
    }
    float *scores = malloc(threads * heads * longest * sizeof *scores);
#pragma omp parallel for if (tokens * s->heads * s->width > WORTH_A_THREAD)
    for (long task = 0; task < (scores ? s->rows * parts : 0); task++) {
        const long row = task / parts, part = task % parts, end = s->lengths[row];
        const long start = s->window >= 0 && end > s->window + 1 ? end - s->window - 1 : 0;
#define ATTEND(width, value_width)                                                                 \
    attend_heads(s, query + row * query_step + part * heads * (width), width, value_width, heads,  \
                 keys + part * cached * (width), values + part * cached * (value_width),           \
                 s->table + s->requests[row] * s->table_step + start, end - start,                 \
                 scores + omp_get_thread_num() * heads * longest,                                  \
                 out + (row * s->heads + part * heads) * (value_width))
        if (s->width == 64 && s->value_width == 64)
            ATTEND(64, 64);
        else if (s->width == 128 && s->value_width == 128)
            ATTEND(128, 128);
        else
            ATTEND(s->width, s->value_width);
    }
    const int enough = scores != NULL;
    free(scores);
    return enough;
}
