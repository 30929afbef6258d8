/* Vectors of the processor's width, e^x and scalar products, for the C files beside this one. */
#pragma once
#ifdef __AVX__
#include <immintrin.h>
#endif
#include <stdint.h>

#define WORTH_A_THREAD 30000 /* multiplications; OpenMP takes microseconds to start a second thread */

#define LINE 64 /* bytes that are fetched from memory at once */

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* Explicit, because gcc 12 makes two instructions of it, which round twice, where it tunes for AMD and
   a loop has one sum: a number would depend on what is computed beside it. */
#if defined(__AVX512F__)
#define ADD_PRODUCT(sum, a, b) ((Vector)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(sum)))
#elif defined(__FMA__)
#define ADD_PRODUCT(sum, a, b) ((Vector)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(sum)))
#else
#define ADD_PRODUCT(sum, a, b) ((sum) + (a) * (b))
#endif

static inline long least(long a, long b)
{
    return a < b ? a : b;
}

static inline Vector all_lanes(float number)
{
    return number - (Vector){0};
}

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

/* scale * (x times each of `count` rows, from their `first` number on), four rows at once. Inlined with
   a constant width, the loops over it are unrolled. */
static inline __attribute__((always_inline)) void scaled_dots(const float *x, const long width,
                                                              const float *const *rows, long first,
                                                              long count, float scale, float *out)
{
    long r = 0;
    for (; r + 4 <= count; r += 4) {
        const float *e = rows[r] + first, *f = rows[r + 1] + first;
        const float *g = rows[r + 2] + first, *h = rows[r + 3] + first;
        float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
        for (long i = 0; i < width; i++) {
            a += x[i] * e[i];
            b += x[i] * f[i];
            c += x[i] * g[i];
            d += x[i] * h[i];
        }
        out[r] = a * scale, out[r + 1] = b * scale;
        out[r + 2] = c * scale, out[r + 3] = d * scale;
    }
    for (; r < count; r++) {
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (long i = 0; i < width; i++)
            dot += x[i] * rows[r][first + i];
        out[r] = dot * scale;
    }
}
