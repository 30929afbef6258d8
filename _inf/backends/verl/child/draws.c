/* Filters and seeds of `_inf/backends/draws.py`, and grammars' masks, on a CPU, in float32: what
   operators compute for a whole vocabulary in a dozen passes. A row has a number for each token;
   rows follow one another, and OpenMP's threads share them. */
#pragma GCC optimize("fp-contract=off") /* numbers are rounded as PyTorch's operators round them */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DIGIT 10 /* bits that a pass of the search looks at */
#define DIGITS (1 << DIGIT)
#define NEAR 0.99999f /* of the best score: another rounding could let such a token win */

static inline uint32_t bits_of(float number)
{
    union { float number; uint32_t bits; } both = {number};
    return both.bits;
}

static inline float number_of(uint32_t bits)
{
    union { uint32_t bits; float number; } both = {bits};
    return both.number;
}

/* The probability above which a row's tokens are kept; *equal: how many of those that have just this
   one are, too. Tokens count from the likeliest to the least likely one: one is kept while fewer
   than top_k are, and while these have no more than top_p together.

   A search by digits: of positive numbers the larger one has the larger bits. left: room for a row. */
static float last_kept(const float *probs, long width, long top_k, float top_p, float min_p,
                       float *left, long *equal)
{
    float most = 0, sum = 0;
#pragma omp simd reduction(max : most) reduction(+ : sum)
    for (long i = 0; i < width; i++) {
        most = probs[i] > most ? probs[i] : most;
        sum += probs[i];
    }
    top_p = top_p < 1 ? top_p : INFINITY; /* a sum of all tokens may be above 1 */
    /* If a token and all less likely ones had no more than this, they are beyond top_p. */
    const float of_top_p = (sum * 0.9999f - top_p) / width, of_min_p = most * min_p;
    const float least = fmaxf(0, fmaxf(of_top_p, of_min_p));
    long count = 0, kept = 0;
    for (long i = 0; i < width; i++) {
        left[count] = probs[i];
        count += probs[i] >= least;
    }
    double mass = 0;
    uint32_t last = 0;
    *equal = 0;
    for (int shift = 2 * DIGIT; shift >= 0; shift -= DIGIT) {
        long counts[DIGITS] = {0}, digit = DIGITS - 1, some = 0;
        double masses[DIGITS] = {0};
        for (long i = 0; i < count; i++) {
            const uint32_t own = bits_of(left[i]) >> shift & (DIGITS - 1);
            counts[own]++;
            masses[own] += left[i];
        }
        for (; digit >= 0; digit--) {
            if (counts[digit] && (kept + counts[digit] > top_k || mass + masses[digit] > top_p))
                break;
            kept += counts[digit];
            mass += masses[digit];
        }
        if (digit < 0) { /* all that are left are kept */
            const float lowest = fmaxf(number_of(last), least);
            return lowest > 0 ? number_of(bits_of(lowest) - 1) : -1;
        }
        last |= (uint32_t)digit << shift;
        for (long i = 0; i < count; i++) {
            left[some] = left[i];
            some += (bits_of(left[i]) >> shift & (DIGITS - 1)) == digit;
        }
        count = some;
    }
    const float number = number_of(last);
    for (; *equal < count && kept < top_k && (float)(mass + number) - number <= top_p; ++*equal) {
        kept++;
        mass += number;
    }
    return number;
}

/* out: the probabilities of the tokens that the filters leave, and zero for all others. Returns 0 if
   there is no memory. */
int keep_likely(const float *probs, long rows, long width, const int32_t *top_k,
                const float *top_p, const float *min_p, float *out)
{
    float *room = malloc(omp_get_max_threads() * width * sizeof *room);
#pragma omp parallel for schedule(dynamic)
    for (long row = 0; row < (room ? rows : 0); row++) {
        const float *in = probs + row * width;
        float *to = out + row * width, *left = room + omp_get_thread_num() * width;
        if (top_k[row] >= width && top_p[row] >= 1 && min_p[row] <= 0) {
            memcpy(to, in, width * sizeof *to);
            continue;
        }
        long equal;
        const float last = last_kept(in, width, top_k[row], top_p[row], min_p[row], left, &equal);
#pragma omp simd
        for (long i = 0; i < width; i++)
            to[i] = in[i] > last ? in[i] : 0;
        for (long i = 0; equal > 0; i++)
            if (in[i] == last) {
                to[i] = last;
                equal--;
            }
    }
    const int enough = room != NULL;
    free(room);
    return enough;
}

/* log(1 + x) for x in (-1, 0], to some units in the last place, after Cephes' logf: the logarithm of
   the rounded sum, and what the rounding has lost. */
static inline float logarithm_of_1_and(float x)
{
    const float sum = 1 + x, lost = x - (sum - 1);
    /* sum = 2^exponent * (1 + m), with 1 + m between the roots of 1/2 and 2 */
    const int32_t exponent = (int32_t)(bits_of(sum) - 0x3f3504f3) >> 23;
    const float m = number_of(bits_of(sum) - ((uint32_t)exponent << 23)) - 1, square = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    return (p * m * square - 2.12194440e-4f * exponent - 0.5f * square + m) + 0.693359375f * exponent
           + lost / sum;
}

/* The token that a row's key draws, or -1 where two are so close, or numbers so odd, that PyTorch's
   operators must tell. scores: room for a row. */
static int64_t draw_row(const float *probs, long width, uint32_t first, uint32_t second,
                        float *scores)
{
    float best = 0;
#pragma omp simd reduction(max : best)
    for (int32_t i = 0; i < (int32_t)width; i++) {
        uint32_t hash = (uint32_t)i * 0x9E3779B1u + first;
        hash = (hash ^ (uint32_t)((int32_t)hash >> 16)) * 0x7FEB352Du + second;
        hash = (hash ^ (uint32_t)((int32_t)hash >> 15)) * 0x846CA68Bu;
        hash ^= (uint32_t)((int32_t)hash >> 16);
        const float scaled = fabsf((float)(int32_t)hash) * (0x1p-31f * (0x1p-24f - 1));
        scores[i] = probs[i] / -logarithm_of_1_and(scaled - 0x1p-32f);
        best = scores[i] > best ? scores[i] : best;
    }
    const float near = best * NEAR;
    uint32_t close = 0, place = 0; /* unsigned: their sums may wrap */
#pragma omp simd reduction(+ : close, place)
    for (int32_t i = 0; i < (int32_t)width; i++) {
        close += scores[i] >= near;
        place += scores[i] >= near ? i : 0;
    }
    return close == 1 ? (int64_t)place : -1;
}

/* keys: two numbers of each row. Returns 0 if there is no memory. */
int draw_by_keys(const float *probs, long rows, long width, const uint32_t *keys, int64_t *tokens)
{
    float *room = malloc(omp_get_max_threads() * width * sizeof *room);
#pragma omp parallel for
    for (long row = 0; row < (room ? rows : 0); row++)
        tokens[row] = draw_row(probs + row * width, width, keys[2 * row], keys[2 * row + 1],
                               room + omp_get_thread_num() * width);
    const int enough = room != NULL;
    free(room);
    return enough;
}

/* Add -infinity to the logits of tokens whose bit is 0. words: of 32 bits, a row. */
void apply_bits(float *logits, long rows, long width, const uint32_t *bits, long words)
{
#pragma omp parallel for
    for (long row = 0; row < rows; row++)
        for (long first = 0; first < width; first += 32) {
            const uint32_t word = bits[row * words + first / 32];
            float *of_word = logits + row * width + first;
            const long count = width - first < 32 ? width - first : 32;
            for (long i = 0; i < count; i++)
                of_word[i] += word >> i & 1 ? 0 : -INFINITY;
        }
}
