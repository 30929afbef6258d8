/* Matrix products of few rows, on a CPU, in float32. */
#include "vectors.h"
#include <omp.h>
#include <string.h>

/* Products of few rows with a weight in panels, as oneDNN packs it: `panel` columns of the output
   side by side, all their rows one after the other; then the next columns. A panel is multiplied
   block by block; the tiles of up to ROWS rows find a block in the processor's first cache, and
   meanwhile fetch the next one from memory. Each number of the output is summed in one order,
   whatever the number of rows. */
#ifdef __AVX512F__
#define WIDE 4 /* vectors; with ROWS of them and those of a weight, what the registers hold */
#define ROWS 6
#else
#define WIDE 3
#define ROWS 4
#endif
#define BLOCK 16384 /* bytes of a weight */
#define FETCHED 4096 /* how many bytes before their use a single tile fetches weights */
#define STREAMED 512 /* and each of two streams */
#define LINES ((WIDE * LANES * sizeof(float) + LINE - 1) / LINE)

#ifdef __AVX__
#define IN_REGISTER(vector) __asm__("" : "+v"(vector)) /* or each row would load it */
#else
#define IN_REGISTER(vector)
#endif

const int lanes = LANES; /* a panel's columns are a multiple of them */

/* Add to `rows` times `vectors` sums what `depth` numbers of each row and as many rows of a weight
   give; step: from one row of x to the next. next: what is fetched, `share` bytes and `lines` lines at
   a time. Inlined with constants; the arrays have fixed sizes, so that registers hold them. */
static inline __attribute__((always_inline)) void
multiply_tile(const float *x, const int rows, long depth, long step, const float *weight, long panel,
              const int vectors, const char *next, long share, const int lines, Vector (*out)[WIDE])
{
    Vector sums[ROWS][WIDE], weights[WIDE];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sums[r][v] = out[r][v];
    for (long i = 0; i < depth; i++, weight += panel, next += share) {
        for (int v = 0; v < vectors; v++) {
            weights[v] = ((const Vector *)weight)[v];
            IN_REGISTER(weights[v]);
        }
        for (int line = 0; line < lines; line++)
            __builtin_prefetch(next + line * LINE);
        for (int r = 0; r < rows; r++) {
            const Vector number = all_lanes(x[r * step + i]);
            for (int v = 0; v < vectors; v++)
                sums[r][v] = ADD_PRODUCT(sums[r][v], weights[v], number);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            out[r][v] = sums[r][v];
}

#define TILE(rows)                                                                                 \
    case rows:                                                                                     \
        multiply_tile(x, rows, depth, step, weight, panel, vectors, next, share, lines, out);      \
        break;

static inline __attribute__((always_inline)) void
multiply_rows(const float *x, long rows, long depth, long step, const float *weight, long panel,
              const int vectors, const char *next, long share, const int lines, Vector (*out)[WIDE])
{
#if ROWS == 4
    switch (rows) { TILE(1) TILE(2) TILE(3) TILE(4) }
#else
    switch (rows) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
#endif
}

/* Set sums to x times the columns of `vectors` vectors, from `weight` on. */
static void multiply_columns(const float *x, long rows, long depth, const float *weight, long panel,
                             long vectors, Vector (*sums)[WIDE])
{
    const long parts = (rows + ROWS - 1) / ROWS, share = panel * (long)sizeof(float) / parts;
    const long most = parts > 1 ? BLOCK / (long)sizeof(float) / panel : depth;
    memset(sums, 0, rows * sizeof *sums);
    for (long start = 0, block; start < depth; start += block, weight += block * panel) {
        block = least(depth - start, most);
        for (long part = 0; part < parts; part++) {
            const long row = rows * part / parts, end = rows * (part + 1) / parts;
            const char *next = (const char *)(weight + block * panel) + part * block * share;
#define MULTIPLY(vectors, next, lines)                                                             \
    multiply_rows(x + row * depth + start, end - row, block, depth, weight, panel, vectors, next,  \
                  share, lines, sums + row)
            if (vectors < WIDE)
                MULTIPLY(1, NULL, 0);
            else if (parts > 1)
                MULTIPLY(WIDE, next, LINES / 2);
            else
                MULTIPLY(WIDE, (const char *)weight + FETCHED, LINES);
        }
    }
}

/* Set the sums of two panels, `far` numbers apart, for one row: as it uses each weight once, memory
   decides, and two streams of it are read faster than one. */
static void multiply_panels(const float *x, long depth, const float *weight, long far,
                            Vector (*sums)[WIDE])
{
    Vector first[WIDE], second[WIDE];
    for (int v = 0; v < WIDE; v++)
        first[v] = second[v] = (Vector){0};
    for (long i = 0; i < depth; i++, weight += WIDE * LANES) {
        const Vector number = all_lanes(x[i]), *one = (const Vector *)weight;
        const Vector *two = (const Vector *)(weight + far);
        for (unsigned line = 0; line < LINES; line++) {
            __builtin_prefetch((const char *)one + STREAMED + line * LINE);
            __builtin_prefetch((const char *)two + STREAMED + line * LINE);
        }
        for (int v = 0; v < WIDE; v++) {
            first[v] = ADD_PRODUCT(first[v], one[v], number);
            second[v] = ADD_PRODUCT(second[v], two[v], number);
        }
    }
    memcpy(sums[0], first, sizeof first);
    memcpy(sums[1], second, sizeof second);
}

/* Store `rows` sums of the columns from `first` on. */
static void store(Vector (*sums)[WIDE], long rows, long first, long columns, const float *bias,
                  long width, float *out)
{
    columns = least(columns, width - first);
    for (long row = 0; row < rows; row++) {
        const float *sum = (const float *)sums[row];
        float *to = out + row * width + first;
        for (long i = 0; i < columns; i++)
            to[i] = bias ? sum[i] + bias[first + i] : sum[i];
    }
}

/* out = x * weight + bias, for at least one row. height: rows of a panel, at least `depth`, which are
   those of x. */
void multiply(const float *x, const float *weight, const float *bias, long rows, long depth,
              long height, long panel, long width, float *out)
{
    const long vectors = (width + LANES - 1) / LANES, of_panel = panel / LANES;
#pragma omp parallel if (rows * depth * width > WORTH_A_THREAD)
    {
        const long thread = omp_get_thread_num(), threads = omp_get_num_threads();
        const long end = vectors * (thread + 1) / threads;
        Vector sums[rows + 1][WIDE];
        for (long v = vectors * thread / threads, step; v < end; v += step) {
            const float *from = weight + v / of_panel * panel * height + v % of_panel * LANES;
            const int panels = rows == 1 && of_panel == WIDE && v % WIDE == 0;
            const long pairs = panels ? (end - v) / (2 * WIDE) : 0, far = pairs * panel;
            for (long pair = 0; pair < pairs; pair++) {
                multiply_panels(x, depth, from + pair * panel * height, far * height, sums);
                store(sums, 1, v * LANES + pair * panel, panel, bias, width, out);
                store(sums + 1, 1, v * LANES + pair * panel + far, panel, bias, width, out);
            }
            step = 2 * pairs * WIDE;
            if (!pairs) {
                step = v + WIDE <= end && v % of_panel + WIDE <= of_panel ? WIDE : 1;
                multiply_columns(x, rows, depth, from, panel, step, sums);
                store(sums, rows, v * LANES, step * LANES, bias, width, out);
            }
        }
    }
}
