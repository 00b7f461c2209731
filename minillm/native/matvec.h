// y = W x for one vector x, where W is stored in one of six formats. Each row of W is read once, from its first byte to
// its last, and met by x, which stays in the nearest cache: the time is the time to read W.
#pragma once

#include <algorithm>
#include <cmath>

#include "vectors.h"

enum Format { FLOAT32, BFLOAT16, INT8, Q8_0, Q4_0, Q4_1 };  // see minillm/quantization.py

constexpr int GROUP = 32;  // neighbours in a row that share a scale

struct Matrix {
    const void* codes;    // [rows, columns] float32, bfloat16 or int8; of 4 bits [rows, columns / 2], two codes per byte
    const void* scale;    // INT8: [rows] float32; Q8_0, Q4_0, Q4_1: [rows, columns / GROUP] float16
    const void* minimum;  // Q4_1: [rows, columns / GROUP] float16
    const float* bias;    // [rows], or null
    int64_t row_bytes;    // from a row to the next, of codes and of groups' scales and minima: they lie in one memory
    int32_t format, rows, columns;
};

// The vector as a matrix wants it: in float32, or in whole numbers from -127 to 127 with a scale per group.
struct Activation {
    float* values;    // [columns]
    float* arranged;  // [columns]
    int8_t* codes;    // [columns]
    float* scale;     // [columns / GROUP]
    float* sum;       // [columns / GROUP]: scale * the sum of the group's codes
    float* last_sums; // [8]: those of the groups behind the last whole eight, behind zeros
};

static void quantize(const Activation& x, int columns) {
    for (int g = 0; g < columns / GROUP; g++) {
        const float* values = x.values + g * GROUP;
        const float most = largest_magnitude(values, GROUP);
        const float to_code = most > 0 ? 127 / most : 0;
        int total = 0;
        for (int i = 0; i < GROUP; i++) {
            // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number.
            const int code = int((values[i] * to_code + 12582912.0f) - 12582912.0f);
            x.codes[g * GROUP + i] = int8_t(code);
            total += code;
        }
        x.scale[g] = most / 127;
        x.sum[g] = x.scale[g] * total;
    }
    const int groups = columns / GROUP, left = groups % LANES;
    for (int i = 0; i < LANES; i++) x.last_sums[i] = i < LANES - left ? 0 : x.sum[groups - LANES + i];
}

// The order in which codes of 4 bits are unpacked. A group's 16 bytes hold codes 0..15 in their lower halves and 16..31
// in their upper ones, so two groups in a row give first both first halves, then both second halves.
static void arrange_for_nibbles(const Activation& x, int columns) {
    constexpr int HALF = GROUP / 2;
    for (int i = 0; i + 2 * GROUP <= columns; i += 2 * GROUP)  // a | b | c | d becomes a | c | b | d
        std::swap_ranges(x.codes + i + HALF, x.codes + i + GROUP, x.codes + i + GROUP);
}

static void make_ready(const Activation& x, const Matrix& w) {
    switch (w.format) {
        case FLOAT32: arrange(x.values, w.columns, x.arranged, (float*)0); break;
        case BFLOAT16: arrange(x.values, w.columns, x.arranged, (bf16*)0); break;
        case INT8:
        case Q8_0: quantize(x, w.columns); break;
        default: quantize(x, w.columns), arrange_for_nibbles(x, w.columns);
    }
}

template <class Number> static inline float float_dot(const Number* w, const float* x, int columns) {
    f32x8 a{}, b{}, c{}, d{}, one, other;  // four sums at a time: an addition waits for the one before it
    int i = 0;
    for (; i + 4 * LANES <= columns; i += 4 * LANES) {
        for (size_t n = 0; n < 4 * LANES * sizeof(Number); n += LINE) fetch_ahead((const char*)(w + i) + n, 1024);
        load16(w + i, one, other);
        a += one * load8(x + i), b += other * load8(x + i + LANES);
        load16(w + i + 2 * LANES, one, other);
        c += one * load8(x + i + 2 * LANES), d += other * load8(x + i + 3 * LANES);
    }
    if (i + 2 * LANES <= columns) {
        load16(w + i, one, other);
        a += one * load8(x + i), b += other * load8(x + i + LANES);
        i += 2 * LANES;
    }
    float rest = 0;
    for (; i < columns; i++) rest += widen(w[i]) * x[i];
    return sum((a + b) + (c + d)) + rest;
}

#if WITH_AVX2

static inline f32x8 sums_of_four(__m256i pairs) {  // 16 sums of 2 products, in 16 bits -> 8 sums of 4, in float32
    return (f32x8)_mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// The products of 32 codes of each, as 8 sums of 4. The instruction wants one side without signs: |w|, and x with w's.
static inline f32x8 products(const int8_t* w, const int8_t* x) {
    const __m256i codes = load<__m256i>(w);
    return sums_of_four(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(load<__m256i>(x), codes)));
}

// Two groups of codes of 4 bits, in 32 bytes: four sums for the one, then four for the other.
static inline f32x8 products_of_two_groups(const uint8_t* w, const int8_t* x) {
    const __m256i bytes = load<__m256i>(w), low_half = _mm256_set1_epi8(15);
    const __m256i first = _mm256_maddubs_epi16(_mm256_and_si256(bytes, low_half), load<__m256i>(x));
    const __m256i second = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), low_half), load<__m256i>(x + 32));
    return sums_of_four(_mm256_add_epi16(first, second));
}

static inline f32x8 four_of_each(const float* two) {  // two[0] four times, then two[1] four times
    const __m256 both = (__m256)_mm256_broadcast_sd((const double*)two);
    return (f32x8)_mm256_permutevar8x32_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
}

#else

static inline f32x8 products(const int8_t* w, const int8_t* x) {
    f32x8 total{};
    for (int i = 0; i < GROUP; i++) total[i / 4] += int(w[i]) * int(x[i]);
    return total;
}
static inline f32x8 products_of_two_groups(const uint8_t* w, const int8_t* x) {
    f32x8 total{};
    for (int i = 0; i < GROUP; i++) total[i / 4] += int(w[i] & 15) * int(x[i]) + int(w[i] >> 4) * int(x[i + GROUP]);
    return total;
}
static inline f32x8 four_of_each(const float* two) {
    f32x8 all;
    for (int i = 0; i < LANES; i++) all[i] = two[i / 4];
    return all;
}

#endif

// One group of codes of 4 bits: the last of a row with an odd number of them.
static inline float product_of_one_group(const uint8_t* w, const int8_t* x) {
    int total = 0;
    for (int i = 0; i < GROUP / 2; i++) total += (w[i] & 15) * x[i] + (w[i] >> 4) * x[i + GROUP / 2];
    return total;
}

static inline f32x8 halves8(const uint16_t* p) {
#if WITH_AVX2
    return (f32x8)_mm256_cvtph_ps(load<__m128i>(p));
#else
    f32x8 v;
    for (int i = 0; i < LANES; i++) v[i] = from_half(p[i]);
    return v;
#endif
}

// What the scales of a row's groups come to: out[g] = scale[g] * x.scale[g].
static inline void join_scales(const uint16_t* scale, const Activation& x, int groups, float* out) {
    if (groups < LANES) {
        for (int g = 0; g < groups; g++) out[g] = from_half(scale[g]) * x.scale[g];
        return;
    }
    for (int g = 0; g + LANES <= groups; g += LANES) store(out + g, halves8(scale + g) * load8(x.scale + g));
    const int last = groups - LANES;  // the last eight: some of them a second time, to the same result
    if (groups % LANES) store(out + last, halves8(scale + last) * load8(x.scale + last));
}

// What the least values of a row's groups contribute: least[g] * (the sum of x in group g), in eight sums.
static inline f32x8 offsets(const uint16_t* least, const Activation& x, int groups) {
    f32x8 total{};
    if (groups < LANES) {
        for (int g = 0; g < groups; g++) total[g] = from_half(least[g]) * x.sum[g];
        return total;
    }
    for (int g = 0; g + LANES <= groups; g += LANES) total += halves8(least + g) * load8(x.sum + g);
    if (groups % LANES) total += halves8(least + groups - LANES) * load8(x.last_sums);
    return total;
}

static inline f32x8 int8_dot(const int8_t* w, const float* scale, const Activation& x, int groups) {
    f32x8 even{}, odd{};
    int g = 0;
    for (; g + 2 <= groups; g += 2) {
        fetch_ahead(w + g * GROUP, 2048);
        even += products(w + g * GROUP, x.codes + g * GROUP) * scale[g];
        odd += products(w + (g + 1) * GROUP, x.codes + (g + 1) * GROUP) * scale[g + 1];
    }
    if (g < groups) even += products(w + g * GROUP, x.codes + g * GROUP) * scale[g];
    return even + odd;
}

static inline f32x8 int4_dot(const uint8_t* w, const float* scale, const Activation& x, int groups) {
    constexpr int BYTES = GROUP / 2;
    f32x8 one{}, other{};
    int g = 0;
    for (; g + 4 <= groups; g += 4) {
        fetch_ahead(w + g * BYTES, 2048);
        one += products_of_two_groups(w + g * BYTES, x.codes + g * GROUP) * four_of_each(scale + g);
        other += products_of_two_groups(w + (g + 2) * BYTES, x.codes + (g + 2) * GROUP) * four_of_each(scale + g + 2);
    }
    if (g + 2 <= groups) {
        one += products_of_two_groups(w + g * BYTES, x.codes + g * GROUP) * four_of_each(scale + g);
        g += 2;
    }
    if (g < groups) other[0] += product_of_one_group(w + g * BYTES, x.codes + g * GROUP) * scale[g];
    return one + other;
}

constexpr int MOST_COLUMNS = 65536;  // room on the stack for the scales of a row

// One row of W times x, which `make_ready` has made ready for W.
static inline float row_dot(const Matrix& w, int row, const Activation& x) {
    const int columns = w.columns, groups = columns / GROUP;
    const size_t at = row * w.row_bytes;
    const char* codes = (const char*)w.codes + at;
    if (w.format == FLOAT32) return float_dot((const float*)codes, x.arranged, columns);
    if (w.format == BFLOAT16) return float_dot((const bf16*)codes, x.arranged, columns);
    if (w.format == INT8) return sum(int8_dot((const int8_t*)codes, x.scale, x, groups)) * ((const float*)w.scale)[row];

    const uint16_t* scale = (const uint16_t*)((const char*)w.scale + at);
    float scales[MOST_COLUMNS / GROUP];
    join_scales(scale, x, groups, scales);
    if (w.format == Q8_0) return sum(int8_dot((const int8_t*)codes, scales, x, groups));
    const f32x8 products = int4_dot((const uint8_t*)codes, scales, x, groups);
    if (w.format == Q4_0) return sum(products - 8 * offsets(scale, x, groups));
    return sum(products + offsets((const uint16_t*)((const char*)w.minimum + at), x, groups));
}
