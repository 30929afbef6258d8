/* What LoRA adapters add to a layer's output, on a CPU, in float32.

   A row is a token; rows follow one another. */
#include "vectors.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUTS 32 /* that are computed at once */

/* Rows with an adapter, those of one adapter together; of each row of the step its adapter's place,
   and of each place its rank and its scaling. */
typedef struct Adapters {
    const int64_t *rows, *places, *ranks;
    const float *scalings;
    long count;
} Adapters;

/* The products of x with the adapters' inner matrices. a: for each place the inner matrices of all
   slices, `step` numbers. inner: for each of the rows in turn `room` numbers. */
static void multiply_inner(const Adapters *s, const float *x, long width, long slices,
                           const float *a, long step, float *inner, long room)
{
#pragma omp for
    for (long n = 0; n < s->count; n++) {
        const long place = s->places[s->rows[n]];
        const long ranks = slices * s->ranks[place];
        const float *of_ranks[ranks + 1];
        for (long r = 0; r < ranks; r++)
            of_ranks[r] = a + place * step + r * width;
        scaled_dots(x + s->rows[n] * width, width, of_ranks, 0, ranks, s->scalings[place],
                    inner + n * room);
    }
}

/* Add to each row's `count` outputs from `first` on. b: outputs x most, of a place. */
static void add_outputs(const Adapters *s, const float *b, long total, long most, long slice,
                        const float *inner, long room, long first, long count, float *out)
{
    float transposed[most][OUTPUTS];
    long before = -1;
    memset(transposed, 0, sizeof transposed);
    for (long n = 0; n < s->count; n++) {
        const long place = s->places[s->rows[n]], rank = s->ranks[place];
        if (place != before)
            for (long i = 0; i < count; i++)
                for (long r = 0; r < rank; r++)
                    transposed[r][i] = b[(place * total + first + i) * most + r];
        before = place;
        const float *in = inner + n * room + slice * rank;
        float *to = out + s->rows[n] * total + first;
        Vector sums[OUTPUTS / LANES] = {{0}};
        for (long r = 0; r < rank; r++) {
            const Vector *outer = (const Vector *)transposed[r], number = all_lanes(in[r]);
            for (int v = 0; v < OUTPUTS / LANES; v++)
                sums[v] = ADD_PRODUCT(sums[v], outer[v], number);
        }
        if (count == OUTPUTS)
            for (int v = 0; v < OUTPUTS / LANES; v++)
                ((Vector *)to)[v] += sums[v];
        else
            for (long i = 0; i < count; i++)
                to[i] += ((const float *)sums)[i];
    }
}

/* ends: where each slice of the output (q, k and v; gate and up) begins, and the last one ends.
   Returns 0 if there is no memory. */
int add_adapters(const Adapters *s, const float *x, long width, const float *a, long step,
                 const float *b, long most, long slices, const int32_t *ends, float *out)
{
    const long room = slices * most, total = ends[slices];
    if (!s->count)
        return 1;
    float *inner = malloc(s->count * room * sizeof *inner);
    if (!inner)
        return 0;
#pragma omp parallel if (s->count * most * (slices * width + total) > WORTH_A_THREAD)
    {
        multiply_inner(s, x, width, slices, a, step, inner, room);
        for (long slice = 0; slice < slices; slice++) {
            const long end = ends[slice + 1];
#pragma omp for nowait
            for (long first = ends[slice]; first < end; first += OUTPUTS)
                add_outputs(s, b, total, most, slice, inner, room, first,
                            least(end - first, OUTPUTS), out);
        }
    }
    free(inner);
    return 1;
}
