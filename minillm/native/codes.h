// Products of codes: weights of 8 bits with a vector in codes of 16 bits, or of 4 bits with one of 8. Sums of such products,
// in whole numbers, are exact; where a scale ends, the sum is multiplied with it. Three times the same: with the dot
// products of AVX-512 (VNNI), with AVX2, and in plain C++.
#pragma once

#include "vectors.h"
#include "weights.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define WITH_VNNI 1
typedef f32xN Sums;
#else
typedef f32x8 Sums;
#endif
typedef int32_t WholeSums __attribute__((vector_size(sizeof(Sums))));

// `QUAD` groups at a time; at the end of a row, perhaps fewer.
constexpr int QUAD = 4;

#if WITH_VNNI

// The products of a group, added to 16 sums: 2 to each.
static inline WholeSums add_products(const int8_t* w, const int16_t* x, WholeSums to) {
    return (WholeSums)_mm512_dpwssd_epi32((__m512i)to, _mm512_cvtepi8_epi16(load<__m256i>(w)), load<__m512i>(x));
}

// A quad of groups of codes of 4 bits, whose bytes are given: four sums for each group.
static inline __m512i nibble_products(__m512i bytes, const int8_t* x) {
    const __m512i low_half = _mm512_set1_epi8(15), high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_half);
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_and_si512(bytes, low_half), load<__m512i>(x));
    return _mm512_dpbusd_epi32(sums, high, load<__m512i>(x + QUAD * HALF));
}
static inline Sums scaled(__m512i sums, Sums scales, int quad) {  // with the scales of four quads
    const __m512i four_of_each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i which = _mm512_add_epi32(four_of_each, _mm512_set1_epi32(QUAD * quad));
    return (Sums)_mm512_cvtepi32_ps(sums) * (Sums)_mm512_permutexvar_ps(which, (__m512)scales);
}

static inline __mmask16 first_lanes(int count) { return (1u << (count < WIDE ? count : WIDE)) - 1; }

#else

#if WITH_AVX2

// The products of a group, added to 8 sums: 4 to each.
static inline WholeSums add_products(const int8_t* w, const int16_t* x, WholeSums to) {
    for (int i = 0; i < GROUP; i += HALF)
        to += (WholeSums)_mm256_madd_epi16(_mm256_cvtepi8_epi16(load<__m128i>(w + i)), load<__m256i>(x + i));
    return to;
}

// Two groups of codes of 4 bits, in 32 bytes: four sums for the one, then four for the other. `low` meets the codes in the
// lower halves of the bytes, `high` those in the upper ones.
static inline f32x8 nibble_products(const uint8_t* w, const int8_t* low, const int8_t* high) {
    const __m256i bytes = load<__m256i>(w), low_half = _mm256_set1_epi8(15);
    const __m256i first = _mm256_maddubs_epi16(_mm256_and_si256(bytes, low_half), load<__m256i>(low));
    const __m256i second = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), low_half), load<__m256i>(high));
    const __m256i pairs = _mm256_add_epi16(first, second);
    return (f32x8)_mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#else

static inline WholeSums add_products(const int8_t* w, const int16_t* x, WholeSums to) {
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    typedef int16_t Halves __attribute__((vector_size(2 * LANES)));
    for (int i = 0; i < GROUP; i += LANES)
        to += __builtin_convertvector(load<Bytes>(w + i), WholeSums) * __builtin_convertvector(load<Halves>(x + i), WholeSums);
    return to;
}
static inline f32x8 nibble_products(const uint8_t* w, const int8_t* low, const int8_t* high) {
    f32x8 total{};
    for (int i = 0; i < GROUP; i++) total[i / 4] += int(w[i] & 15) * int(low[i]) + int(w[i] >> 4) * int(high[i]);
    return total;
}

#endif

// One group of codes of 4 bits: the last of a row with an odd number of them.
static inline float product_of_one_group(const uint8_t* w, const int8_t* low, const int8_t* high) {
    int total = 0;
    for (int i = 0; i < HALF; i++) total += (w[i] & 15) * low[i] + (w[i] >> 4) * high[i];
    return total;
}

static inline f32x8 four_of_each(float one, float other) { return f32x8{one, one, one, one, other, other, other, other}; }

static inline Sums scaled_nibble_products(const uint8_t* w, const int8_t* x, f32x4 scales, int groups) {
    Sums total{};
    int g = 0;
    for (; g + 2 <= groups; g += 2)
        total += nibble_products(w + g * HALF, x + g * HALF, x + (QUAD + g) * HALF) * four_of_each(scales[g], scales[g + 1]);
    if (g < groups) total[0] += product_of_one_group(w + g * HALF, x + g * HALF, x + (QUAD + g) * HALF) * scales[g];
    return total;
}

#endif

// Groups of codes of 8 bits, at most QUAD of them: no sum can leave 32 bits, for 128 products of 128 times 32767 are 2^29.
static inline Sums products(const int8_t* w, const int16_t* x, int groups) {
    WholeSums total{};
    for (int g = 0; g < groups; g++) total = add_products(w + g * GROUP, x + g * GROUP, total);
    return __builtin_convertvector(total, Sums);
}

// The same with a scale for each group.
static inline Sums scaled_products(const int8_t* w, const int16_t* x, f32x4 scales, int groups) {
    Sums total{};
    for (int g = 0; g < groups; g++) total += products(w + g * GROUP, x + g * GROUP, 1) * scales[g];
    return total;
}
