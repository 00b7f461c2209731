// Eight or sixteen numbers at a time, whatever the processor: the compiler's own vector types, which become AVX, NEON or plain
// code. Where plain code would be slow and the processor has an instruction, that is used.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__) && defined(__F16C__)
#define WITH_AVX2 1
#include <immintrin.h>
#endif

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));

constexpr int LANES = 8;

// As many as one register takes: sixteen with AVX-512, else eight.
#if defined(__AVX512F__)
typedef f32x16 f32xN;
#else
typedef f32x8 f32xN;
#endif
template <class Vector> constexpr int lanes_of = sizeof(Vector) / sizeof(float);
constexpr int WIDE = lanes_of<f32xN>;

template <int N> using Count = std::integral_constant<int, N>;  // a number that the compiler knows, to be handed on

using bf16 = uint16_t;  // the upper half of a float32: to widen it, put zeros behind
constexpr uint32_t UPPER_HALF = 0xffff0000u;

constexpr int LINE = 64;  // bytes that memory delivers at a time

// Ask for what will be needed soon. The processor guesses that too, but not across the end of a row.
static inline void fetch_ahead(const void* p, int bytes) { __builtin_prefetch((const char*)p + bytes); }

template <class Vector> static inline Vector load(const void* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);  // one instruction, and no alignment is asked for
    return v;
}
template <class Vector> static inline void store(void* to, Vector v) { std::memcpy(to, &v, sizeof v); }

static inline f32x8 load8(const float* p) { return load<f32x8>(p); }

// Neighbours, as two vectors. Where they lie in these does not matter, if only the other side of a product lies there the
// same way (see `arrange`). Two bfloat16 are one 32-bit word: its upper half is a float32 already, once the lower one is
// cleared, and its lower half becomes one when it is shifted up.
template <class Vector> static inline void load_pair(const float* p, Vector& one, Vector& other) {
    one = load<Vector>(p), other = load<Vector>(p + lanes_of<Vector>);
}
template <class Vector> static inline void load_pair(const bf16* p, Vector& even, Vector& odd) {
    using Words = decltype(even == odd);  // of 32 bits, as many
    const Words pairs = load<Words>(p);
    even = (Vector)(pairs << 16), odd = (Vector)(pairs & int32_t(UPPER_HALF));
}
static inline void load_codes(const int8_t* p, f32x8& v) {
#if WITH_AVX2
    v = (f32x8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    for (int i = 0; i < LANES; i++) v[i] = p[i];
#endif
}
#if defined(__AVX512F__)
static inline void load_codes(const int8_t* p, f32xN& v) {
    v = (f32xN)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(p)));
}
#endif
template <class Vector> static inline void load_pair(const int8_t* p, Vector& one, Vector& other) {
    load_codes(p, one), load_codes(p + lanes_of<Vector>, other);
}

// `n` numbers in the order in which `load_pair` gives numbers of the type that `pattern` points to; and back again.
template <class Vector, class Number> static inline void arrange(const float* from, int n, float* to, const Number*) {
    std::memcpy(to, from, n * sizeof(float));
}
template <class Vector> static inline void arrange(const float* from, int n, float* to, const bf16*) {
    constexpr int half = lanes_of<Vector>;
    int i = 0;
    for (; i + 2 * half <= n; i += 2 * half)
        for (int j = 0; j < half; j++) to[i + j] = from[i + 2 * j], to[i + half + j] = from[i + 2 * j + 1];
    for (; i < n; i++) to[i] = from[i];
}
template <class Vector, class Number> static inline void restore(const float* from, int n, float* to, const Number*) {
    std::memcpy(to, from, n * sizeof(float));
}
template <class Vector> static inline void restore(const float* from, int n, float* to, const bf16*) {
    constexpr int half = lanes_of<Vector>;
    for (int i = 0; i < n; i += 2 * half)
        for (int j = 0; j < half; j++) to[i + 2 * j] = from[i + j], to[i + 2 * j + 1] = from[i + half + j];
}

// As many numbers as bfloat16 bits in the upper halves of 32-bit words: to the nearest; of two equally near, to the even one,
// as PyTorch does. What is not a number stays that: rounding could carry it over into another.
template <class Vector> static inline auto rounded(Vector v) {
    using Words = decltype(v == v);
    const Words bits = (Words)v, nearest = bits + 0x7fff + ((bits >> 16) & 1);
    return v == v ? nearest : Words{} + 0x7fc00000;
}

template <class Vector> static inline void store_pair(float* to, Vector one, Vector other) {
    store(to, one), store(to + lanes_of<Vector>, other);
}
template <class Vector> static inline void store_pair(bf16* to, Vector even, Vector odd) {
    store(to, ((rounded(even) >> 16) & 0xffff) | (rounded(odd) & int32_t(UPPER_HALF)));
}
template <class Vector> static inline void store_rounded(float* to, Vector v) { store(to, v); }
template <class Vector> static inline void store_rounded(bf16* to, Vector v) {
    typedef bf16 Halves __attribute__((vector_size(sizeof(Vector) / 2)));
    const Halves upper = __builtin_convertvector(rounded(v) >> 16, Halves);
    std::memcpy(to, &upper, sizeof upper);
}

static inline float widen(float x) { return x; }
static inline float widen(int8_t x) { return x; }
static inline float widen(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float sum(f32x8 v) {
#if WITH_AVX2
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

// Half of a vector's numbers: the first ones, or the last ones.
template <int WHICH, class Vector> static inline auto half_of(Vector v) {
    using Number = std::remove_reference_t<decltype(v[0])>;
    typedef Number Half __attribute__((vector_size(sizeof(Vector) / 2)));
    return load<Half>((const Half*)&v + WHICH);
}
template <class Vector> static inline auto lower_half(Vector v) { return half_of<0>(v); }
template <class Vector> static inline auto upper_half(Vector v) { return half_of<1>(v); }

static inline f32x8 folded(f32x8 v) { return v; }  // eight sums
static inline f32x8 folded(f32x16 v) { return lower_half(v) + upper_half(v); }
static inline float sum(f32x16 v) { return sum(folded(v)); }

template <class Item> static inline Item larger(Item a, Item b) { return a > b ? a : b; }

static inline float largest(f32x8 v) {
    const f32x4 four = larger(upper_half(v), lower_half(v));
    return larger(larger(four[3], four[2]), larger(four[1], four[0]));
}
static inline float largest(f32x16 v) { return largest(larger(lower_half(v), upper_half(v))); }

// The largest magnitude of n numbers, n a multiple of 16; a NaN if there is one among them. Without their signs, numbers have
// the order of their bits as whole numbers, and what is no number comes behind all of them.
static inline float largest_magnitude(const float* x, int n) {
    i32x16 most{};
    for (int i = 0; i < n; i += 2 * LANES) most = larger(load<i32x16>(x + i) & 0x7fffffff, most);
    const i32x8 eight = larger(lower_half(most), upper_half(most));
    const auto four = larger(lower_half(eight), upper_half(eight));
    const int32_t one = larger(larger(four[0], four[1]), larger(four[2], four[3]));
    return load<float>(&one);
}

// The sums of eight vectors: additions of neighbours, until each vector has come down to one number.
static inline f32x8 sums(const f32x8* v) {
#if WITH_AVX2
    auto pairs = [](f32x8 a, f32x8 b) { return (f32x8)_mm256_hadd_ps((__m256)a, (__m256)b); };
    const f32x8 low = pairs(pairs(v[0], v[1]), pairs(v[2], v[3])), high = pairs(pairs(v[4], v[5]), pairs(v[6], v[7]));
    return (f32x8)_mm256_permute2f128_ps((__m256)low, (__m256)high, 0x20) +
           (f32x8)_mm256_permute2f128_ps((__m256)low, (__m256)high, 0x31);
#else
    f32x8 all;
    for (int i = 0; i < LANES; i++) all[i] = sum(v[i]);
    return all;
#endif
}

// The sums of COUNT vectors, of one or of four: in the same order, so that the last digit does not depend on the company.
template <int COUNT, class Vector> static inline void sums_of(const Vector* v, float* out) {
    static_assert(COUNT == 1 || COUNT == 4);
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<Vector, f32x16>) {
        // Neighbours change places, so that one addition serves two vectors, and the next one all four.
        auto pairs = [&](int i, int j) {
            const __m512 a = (__m512)v[i % COUNT], b = (__m512)v[j % COUNT];
            return (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        };
        const __m512d one = pairs(0, 1), other = pairs(2, 3);
        const f32x8 eight = folded((f32x16)_mm512_unpacklo_pd(one, other) + (f32x16)_mm512_unpackhi_pd(one, other));
        const f32x4 all = lower_half(eight) + upper_half(eight);
        std::memcpy(out, &all, COUNT * sizeof(float));
        return;
    }
#endif
    for (int i = 0; i < COUNT; i++) out[i] = sum(v[i]);
}

// The value of a float16, from its bits: sign, 5 bits of exponent, 10 of fraction.
static inline float from_half(uint16_t half) {
#if WITH_AVX2
    return _cvtsh_ss(half);
#else
    uint32_t bits = uint32_t(half & 0x7fff) << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;  // the exponent counts from -15 in the one format and from -127 in the other
    if ((half & 0x7c00) == 0x7c00) value = half & 0x3ff ? NAN : INFINITY;
    return half & 0x8000 ? -value : value;
#endif
}

// 2^t for t from -126 to 127: 2^whole times 2^rest. The first is an exponent, the second a short polynomial, the Taylor series
// of 2^rest for rest in [-0.5, 0.5]. With all its TERMS it is exact to about 2 parts in 10^7, with five to 4 in 10^5.
template <int TERMS = 7, class Vector> static inline Vector power_of_two(Vector t) {
    constexpr float series[] = {1.0f,           6.93147181e-1f, 2.40226507e-1f, 5.55041087e-2f,
                                9.61812911e-3f, 1.33335581e-3f, 1.54035304e-4f};
#if defined(__AVX512F__)
    if constexpr (sizeof(Vector) == 64) {
        const Vector whole = (Vector)_mm512_roundscale_ps((__m512)t, 0), rest = t - whole;
        Vector p = Vector{} + series[TERMS - 1];
        for (int n = TERMS - 2; n >= 0; n--) p = p * rest + series[n];
        return (Vector)_mm512_scalef_ps((__m512)p, (__m512)whole);
    }
#endif
    using Words = decltype(t == t);
    const Vector rounder = Vector{} + 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits behind the point
    const Vector shifted = t + rounder;
    const Vector rest = t - (shifted - rounder);
    Vector p = Vector{} + series[TERMS - 1];
    for (int n = TERMS - 2; n >= 0; n--) p = p * rest + series[n];
    const Words whole = (Words)shifted - (Words)rounder;
    return (Vector)((Words)p + (whole << 23)) + (t - t);  // the last is 0, but for a NaN, which must not get lost
}

constexpr float LOG2_OF_E = 1.44269504f;  // e^x = 2^(x * this)

// e^x for x <= 0. What is below e^-87 becomes as good as 0.
template <int TERMS = 7, class Vector> static inline Vector exponential(Vector x) {
    const Vector least = Vector{} - 87.0f;
    return power_of_two<TERMS>((x < least ? least : x) * LOG2_OF_E);
}

// x / (1 + e^-x), times y. The exponential is taken of -|x|, which cannot overflow: e^-|x| / (1 + e^-|x|) for x < 0.
template <class Vector> static inline Vector silu_times(Vector x, Vector y) {
    const Vector shrunk = exponential(x > 0 ? -x : x);
    return x * (x > 0 ? Vector{} + 1 : shrunk) / (shrunk + 1) * y;
}
