/* What a decoder layer computes, on a CPU, in float32; and whole decoding steps as lists of calls. The
   layer's products are in products.c, its attention in attention.c.

   A row is a token; rows without a `step` (numbers from one row to the next) follow one another.
   OpenMP's threads share the work where there is enough. */
#include "vectors.h"
#include <math.h>
#include <string.h>

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

struct Step;
int attend(const struct Step *s, const float *query, long query_step, const float *new_keys,
           long key_step, const float *new_values, long value_step, float *keys, float *values,
           float *out);
void multiply(const float *x, const float *weight, const float *bias, long rows, long depth,
              long height, long panel, long width, float *out);
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
