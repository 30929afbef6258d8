/* What a decoder layer computes, on a CPU, in float32; and whole decoding steps as lists of calls.

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

/* Products of few rows with a weight in panels, as oneDNN packs it: `panel` columns of the output
   side by side, all their rows one after the other; then the next columns. Each number of the output
   is summed in one order, whatever the number of rows. */
#ifdef __AVX512F__
#define LANES 16
#define WIDE 4 /* vectors; with ROWS of them and those of a weight, what the registers hold */
#else
#define LANES 8
#define WIDE 2
#endif
#define ROWS 6
#define FETCHED 4096 /* how many bytes before their use weights are fetched */
typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));

/* `rows` times `vectors` of the output, of which `columns` are stored. Inlined with constants. */
static inline __attribute__((always_inline)) void
multiply_tile(const float *x, const int rows, long depth, const float *weight, long panel,
              const float *bias, const int vectors, long columns, const int fetch, float *out,
              long width)
{
    Vector sums[rows][vectors];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sums[r][v] = (Vector){0};
    for (long i = 0; i < depth; i++) {
        const Vector *weights = (const Vector *)(weight + i * panel);
        for (int v = 0; fetch && v < vectors; v++)
            __builtin_prefetch((const char *)(weights + v) + FETCHED);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sums[r][v] += weights[v] * x[r * depth + i];
    }
    for (int r = 0; r < rows; r++) {
        if (columns == vectors * LANES)
            memcpy(out + r * width, sums[r], sizeof sums[r]);
        else
            memcpy(out + r * width, sums[r], columns * sizeof *out);
        for (long i = 0; bias && i < columns; i++)
            out[r * width + i] += bias[i];
    }
}

#define TILE(rows)                                                                                 \
    case rows:                                                                                     \
        multiply_tile(x, rows, depth, weight, panel, bias, vectors, columns, fetch, out, width);   \
        break;

static inline __attribute__((always_inline)) void
multiply_rows(const float *x, long rows, long depth, const float *weight, long panel,
              const float *bias, const int vectors, long columns, const int fetch, float *out,
              long width)
{
    switch (rows) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
}

/* out = x * weight + bias. height: rows of a panel, at least `depth`, which are those of x. */
void multiply(const float *x, const float *weight, const float *bias, long rows, long depth,
              long height, long panel, long width, float *out)
{
    const long vectors = (width + LANES - 1) / LANES, parts = (rows + ROWS - 1) / ROWS;
    const long of_panel = panel / LANES;
#pragma omp parallel if (rows * depth * width > WORTH_A_THREAD)
    {
        const long thread = omp_get_thread_num(), threads = omp_get_num_threads();
        const long end = vectors * (thread + 1) / threads;
        for (long v = vectors * thread / threads, step; v < end; v += step) {
            step = v + WIDE <= end && v % of_panel + WIDE <= of_panel ? WIDE : 1;
            const float *from = weight + v / of_panel * panel * height + v % of_panel * LANES;
            const long first = v * LANES, left = width - first;
            const long columns = left < step * LANES ? left : step * LANES;
            for (long part = 0; part < parts; part++) {
                const long row = rows * part / parts, next = rows * (part + 1) / parts;
#define MULTIPLY(vectors, fetch)                                                                   \
    multiply_rows(x + row * depth, next - row, depth, from, panel, bias ? bias + first : NULL,     \
                  vectors, columns, fetch, out + row * width + first, width)
                if (step < WIDE)
                    MULTIPLY(1, 0);
                else if (part == 0) /* the others find the weight in the processor's cache */
                    MULTIPLY(WIDE, 1);
                else
                    MULTIPLY(WIDE, 0);
            }
        }
    }
}

/* The rows of a table with these numbers. */
void embed(const float *table, const int64_t *numbers, long rows, long width, float *out)
{
    for (long row = 0; row < rows; row++)
        memcpy(out + row * width, table + numbers[row] * width, width * sizeof *out);
}

void copy_rows(const float *x, long step, long rows, long width, float *out)
{
    for (long row = 0; row < rows; row++)
        memcpy(out + row * width, x + row * step, width * sizeof *out);
}

struct Adapters;
int add_adapters(const struct Adapters *s, const float *x, long width, const float *a, long step,
                 const float *b, long most, long slices, const int32_t *ends, float *out);

/* A call of a recorded step: its pointers, whole numbers without the rows, and epsilon, in the order
   of the function's parameters; and how many rows it has for one of the step. */
typedef struct {
    long function;
    void *p[9];
    long n[6], each;
    float epsilon;
} Call;

/* Make the calls, for as many rows. Returns 0 if there is no memory. */
int run(const Call *calls, long count, long rows)
{
    enum { NORMALIZE, SILU_AND_MUL, ROTATE, ATTEND, MULTIPLY, EMBED, COPY_ROWS, ADD_ADAPTERS };
    for (const Call *c = calls; c < calls + count; c++) {
        void *const *p = c->p;
        const long *n = c->n, all = rows * c->each;
        switch (c->function) {
        case NORMALIZE:
            normalize(p[0], p[1], p[2], p[3], c->epsilon, all, n[0], p[4]);
            break;
        case SILU_AND_MUL:
            silu_and_mul(p[0], all, n[0], p[1]);
            break;
        case ROTATE:
            rotate(p[0], n[0], n[1], n[2], p[1], n[3], p[2], all);
            break;
        case ATTEND:
            if (!attend(p[0], p[1], n[0], p[2], n[1], p[3], n[2], p[4], p[5], p[6]))
                return 0;
            break;
        case MULTIPLY:
            multiply(p[0], p[1], p[2], all, n[0], n[1], n[2], n[3], p[3]);
            break;
        case EMBED:
            embed(p[0], p[1], all, n[0], p[2]);
            break;
        case COPY_ROWS:
            copy_rows(p[0], n[0], all, n[1], p[1]);
            break;
        case ADD_ADAPTERS:
            if (!add_adapters(p[0], p[1], n[0], p[2], n[1], p[3], n[2], n[3], p[4], p[5]))
                return 0;
            break;
        }
    }
    return 1;
}
