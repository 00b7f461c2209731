// y = W x for one vector x, where W is stored in one of six formats. Each row of W is read once, from its first byte to
// its last, and met by x, which stays in the nearest cache: the time is the time to read W. A few rows are read at the same
// time, far from each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "codes.h"
#include "vectors.h"
#include "weights.h"

constexpr int AHEAD = 1024;  // bytes: what lies there is asked for; twice as far where there are more bytes to a product
constexpr int STREAMS = 4;   // places in which a matrix is read at the same time: memory is faster so

// The vector as a matrix wants it: in float32, or in codes with scales. For weights of 8 bits codes have 16, so that next to
// nothing is lost; for weights of 4 bits they have 8.
struct Activation {
    float* values;    // [columns]
    float* arranged;  // [columns]
    int16_t* fine;    // [columns], -32767 to 32767; the groups of a quad share a scale
    int8_t* coarse;   // [columns], -127 to 127; each group has a scale of its own
    float* scale;     // [columns / GROUP]
    float* sum;       // [columns / GROUP]: scale * the sum of the group's codes
    float* last_sums; // [8]: those of the groups behind the last whole eight, behind zeros
};

// To the nearest codes. `sharing` neighbouring groups have the same scale. The half of group g that begins with its number i
// goes to `place(g, i)`.
template <class Code, class Place>
static void quantize(const Activation& x, int columns, int sharing, Code* codes, Place place) {
    typedef Code Codes __attribute__((vector_size(HALF * sizeof(Code))));
    constexpr float limit = std::numeric_limits<Code>::max();
    const int groups = columns / GROUP, left = groups % LANES;
    float most = 0;
    for (int g = 0; g < groups; g++) {
        const float* values = x.values + g * GROUP;
        if (g % sharing == 0) most = largest_magnitude(values, std::min(sharing, groups - g) * GROUP);
        const float to_code = most > 0 ? limit / most : 0;
        f32x16 total{};
        for (int i = 0; i < GROUP; i += HALF) {
            // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number.
            const f32x16 code = (load<f32x16>(values + i) * to_code + 12582912.0f) - 12582912.0f;
            total += code;
            const Codes half = __builtin_convertvector(__builtin_convertvector(code, i32x16), Codes);
            std::memcpy(codes + place(g, i), &half, sizeof half);
        }
        x.scale[g] = most / limit;
        x.sum[g] = x.scale[g] * sum(total);
    }
    for (int i = 0; i < LANES; i++) x.last_sums[i] = i < LANES - left ? 0 : x.sum[groups - LANES + i];
}

static void quantize(const Activation& x, const Matrix& w) {
    auto in_order = [](int g, int i) { return g * GROUP + i; };
    w.format >= Q4_0 ? quantize(x, w.columns, 1, x.coarse, in_order) : quantize(x, w.columns, QUAD, x.fine, in_order);
}

// In the order in which codes of 4 bits are unpacked. A group's 16 bytes hold codes 0..15 in their lower halves and 16..31 in
// their upper ones, so a quad of groups gives first all first halves, then all second halves.
static void quantize_for_nibbles(const Activation& x, int columns) {
    quantize(x, columns, 1, x.coarse, [](int g, int i) { return (g / QUAD * 2 * QUAD + i / HALF * QUAD + g % QUAD) * HALF; });
}

static void make_ready(const Activation& x, const Matrix& w) {
    switch (w.format) {
        case FLOAT32: arrange<f32xN>(x.values, w.columns, x.arranged, (float*)0); break;
        case BFLOAT16: arrange<f32xN>(x.values, w.columns, x.arranged, (bf16*)0); break;
        case INT8:
        case Q8_0: quantize(x, w); break;
        default: quantize_for_nibbles(x, w.columns);
    }
}

// The products of ROWS rows, `apart` numbers from one to the next, with x.
template <int ROWS, class Number>
static inline void float_dots(const Number* w, int64_t apart, const float* x, int columns, float* out) {
    f32xN even[ROWS] = {}, odd[ROWS] = {}, one, other;  // two sums each: an addition waits for the one before it
    int i = 0;
    for (; i + 2 * WIDE <= columns; i += 2 * WIDE)
        for (int r = 0; r < ROWS; r++) {
            const Number* numbers = w + r * apart + i;
            for (size_t n = 0; n < 2 * WIDE * sizeof(Number); n += LINE) fetch_ahead((const char*)numbers + n, 2 * AHEAD);
            load_pair(numbers, one, other);
            even[r] += one * load<f32xN>(x + i), odd[r] += other * load<f32xN>(x + i + WIDE);
        }
    for (int r = 0; r < ROWS; r++) even[r] += odd[r];
    sums_of<ROWS>(even, out);
    for (int r = 0; r < ROWS; r++)
        for (int n = i; n < columns; n++) out[r] += widen(w[r * apart + n]) * x[n];
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

// What the scales of some neighbouring groups, at most QUAD of them, come to together with those of x.
static inline f32x4 four_scales(const uint16_t* scale, const float* x, int groups) {
#if WITH_AVX2
    if (groups == QUAD) return (f32x4)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)scale)) * load<f32x4>(x);
#endif
    f32x4 all{};
    for (int g = 0; g < groups; g++) all[g] = from_half(scale[g]) * x[g];
    return all;
}

// What the least values of a row's groups contribute: least[g] * (the sum of x in group g).
static inline Sums offsets(const char* at, const Activation& x, int groups) {
    Sums total{};
#if WITH_VNNI
    for (int g = 0; g < groups; g += WIDE) {
        const __mmask16 there = first_lanes(groups - g);
        const __m512 least = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, at + g * sizeof(uint16_t)));
        total += (Sums)least * (Sums)_mm512_maskz_loadu_ps(there, x.sum + g);
    }
#else
    const uint16_t* least = (const uint16_t*)at;
    if (groups < LANES) {
        for (int g = 0; g < groups; g++) total[g] += from_half(least[g]) * x.sum[g];
        return total;
    }
    for (int g = 0; g + LANES <= groups; g += LANES) total += halves8(least + g) * load8(x.sum + g);
    if (groups % LANES) total += halves8(least + groups - LANES) * load8(x.last_sums);
#endif
    return total;
}

// For ROWS rows of codes, `apart` bytes from each other: the sum of `products(codes, g, groups, r)` over the groups of a row,
// QUAD at a time. A row's quad has `bytes` bytes.
template <int ROWS, class Products>
static inline void code_dots(const char* w, int64_t apart, int bytes, int groups, Sums* out, Products products) {
    Sums total[ROWS] = {};
    int g = 0;
    for (; g + QUAD <= groups; g += QUAD, w += bytes)
        for (int r = 0; r < ROWS; r++) {
            for (int n = 0; n < bytes; n += LINE) fetch_ahead(w + r * apart + n, AHEAD);
            total[r] += products(w + r * apart, g, QUAD, r);
        }
    for (int r = 0; r < ROWS && g < groups; r++) total[r] += products(w + r * apart, g, groups - g, r);  // what is left
    std::copy(total, total + ROWS, out);
}

// The same for rows of codes of 4 bits, with a scale for each group: the row's at `scale`, and the vector's. With AVX-512 a
// register holds the scales of four quads.
#if WITH_VNNI
template <int ROWS>
static inline void nibble_dots(const char* w, const char* scale, int64_t apart, int groups, const Activation& x, Sums* out) {
    std::fill_n(out, ROWS, Sums{});
    for (int g = 0; g < groups; g += WIDE) {
        const int left = std::min(WIDE, groups - g);
        const __mmask16 there = first_lanes(left);
        const __m512 x_scales = _mm512_maskz_loadu_ps(there, x.scale + g);
        Sums scales[ROWS];
        for (int r = 0; r < ROWS; r++) {
            const __m256i halves = _mm256_maskz_loadu_epi16(there, scale + r * apart + g * sizeof(uint16_t));
            scales[r] = (Sums)_mm512_mul_ps(_mm512_cvtph_ps(halves), x_scales);
        }
        const char* codes = w + g * HALF;
        const int8_t* vector = x.coarse + g * GROUP;
        auto add = [&](int quad, auto bytes) {
            for (int r = 0; r < ROWS; r++) {
                const char* here = codes + r * apart + quad * QUAD * HALF;
                fetch_ahead(here, AHEAD);
                out[r] += scaled(nibble_products(bytes(here), vector + quad * QUAD * GROUP), scales[r], quad);
            }
        };
        auto whole = [](const char* from) { return load<__m512i>(from); };
        if (left == WIDE) {
            add(0, whole), add(1, whole), add(2, whole), add(3, whole);
            continue;
        }
        const int quads = left / QUAD, rest = left % QUAD;
        for (int quad = 0; quad < quads; quad++) add(quad, whole);
        const __mmask64 behind = (1ull << rest * HALF) - 1;
        if (rest) add(quads, [&](const char* from) { return _mm512_maskz_loadu_epi8(behind, from); });
    }
}
#else
template <int ROWS>
static inline void nibble_dots(const char* w, const char* scale, int64_t apart, int groups, const Activation& x, Sums* out) {
    code_dots<ROWS>(w, apart, QUAD * HALF, groups, out, [&](const char* codes, int g, int n, int r) {
        const f32x4 scales = four_scales((const uint16_t*)(scale + r * apart) + g, x.scale + g, n);
        return scaled_nibble_products((const uint8_t*)codes, x.coarse + g * GROUP, scales, n);
    });
}
#endif

// ROWS rows of W, `apart` rows from one to the next, times x, which `make_ready` has made ready for W.
template <int ROWS>
static inline void row_dots(const Matrix& w, int row, int apart, const Activation& x, float* out) {
    const int columns = w.columns, groups = columns / GROUP;
    const int64_t at = row * w.row_bytes, bytes = apart * w.row_bytes;
    const char* codes = (const char*)w.codes + at;
    if (w.format == FLOAT32) return float_dots<ROWS>((const float*)codes, bytes / sizeof(float), x.arranged, columns, out);
    if (w.format == BFLOAT16) return float_dots<ROWS>((const bf16*)codes, bytes / sizeof(bf16), x.arranged, columns, out);
    const char *scale = (const char*)w.scale + at, *minimum = w.minimum ? (const char*)w.minimum + at : nullptr;
    Sums sums[ROWS];
    if (w.format == INT8)
        code_dots<ROWS>(codes, bytes, QUAD * GROUP, groups, sums, [&](const char* codes, int g, int n, int) {
            return products((const int8_t*)codes, x.fine + g * GROUP, n) * x.scale[g];
        });
    else if (w.format == Q8_0)
        code_dots<ROWS>(codes, bytes, QUAD * GROUP, groups, sums, [&](const char* codes, int g, int n, int r) {
            const f32x4 scales = four_scales((const uint16_t*)(scale + r * bytes) + g, x.scale + g, n);
            return scaled_products((const int8_t*)codes, x.fine + g * GROUP, scales, n);
        });
    else
        nibble_dots<ROWS>(codes, scale, bytes, groups, x, sums);
    // Whole quads of codes have asked for what lies ahead of them; what is left of a row, scales and minima, asks here.
    const int quads = groups / QUAD * QUAD * (w.format < Q4_0 ? GROUP : HALF);  // bytes
    for (int64_t n = quads; n < w.row_bytes; n += LINE)
        for (int r = 0; r < ROWS; r++) fetch_ahead(codes + r * bytes + n, AHEAD);
    for (int r = 0; r < ROWS; r++) {
        if (w.format == Q4_0) sums[r] -= 8 * offsets(scale + r * bytes, x, groups);
        if (w.format == Q4_1) sums[r] += offsets(minimum + r * bytes, x, groups);
    }
    sums_of<ROWS>(sums, out);
    for (int r = 0; r < ROWS && w.format == INT8; r++) out[r] *= ((const float*)w.scale)[row + r * apart];
}
