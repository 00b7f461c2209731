// `CacheKernels` for any processor: scores, softmax and the mix of the values, a block of positions at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache_kernels.h"
#include "vectors.h"

constexpr int MOST_QUERIES = 4;
constexpr int FOUR = 4;  // positions whose scores are computed together: their sums stay in registers, and come down as one

// A block's keys are read first, then its values. Beside the keys its values are asked for; beside the values, the keys that
// will be wanted next.
template <class Number> static inline void fetch_row(const Number* row, int head_dim) {
    for (size_t n = 0; n < head_dim * sizeof(Number); n += LINE) fetch_ahead((const char*)row + n, 0);
}

// Some positions, and the rows that their keys and values are.
struct Block {
    int positions;
    int64_t rows[BLOCK];

    Block(const Rows& where, int from, int to) : positions(std::clamp(to - from, 0, BLOCK)) { where.of(from, positions, rows); }
};

// Keys that will be wanted next.
template <class Number> struct KeysAhead {
    const Number* keys;
    const Block& block;
};

// The sums of four vectors.
template <class Vector> static inline void four_sums(const Vector* v, float* out) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<Vector, f32x16>) return sums_of<FOUR>(v, out);
#endif
#if WITH_AVX2
    auto pairs = [](f32x8 a, f32x8 b) { return (f32x8)_mm256_hadd_ps((__m256)a, (__m256)b); };
    const f32x8 all = pairs(pairs(folded(v[0]), folded(v[1])), pairs(folded(v[2]), folded(v[3])));
    store(out, lower_half(all) + upper_half(all));
#else
    sums_of<FOUR>(v, out);
#endif
}

// One query's products with keys become weights, and its part is shrunk to the highest score so far. A score is a product
// times `factor`, and times the key's scale where there are any. No template, and so not inlined in each kind of `add_block`:
// the compiler would be busy with it for a third of its time.
static void weigh(float* weights, float factor, const float* key_scales, const float* value_scales, int positions, int head_dim,
                  Part& part) {
    auto each = [&](auto work) {
        for (int p = 0; p < positions; p += WIDE) work(load<f32xN>(weights + p), p);
    };
    if (key_scales) each([&](f32xN products, int p) { store(weights + p, products * load<f32xN>(key_scales + p)); });
    for (int p = positions; p % WIDE; p++) weights[p] = -INFINITY;
    f32xN most = f32xN{} - INFINITY, total{};
    each([&](f32xN scores, int) { most = larger(scores, most); });
    const float highest = std::max(part.highest, largest(most) * factor);
    const float shrink = exponential(f32x8{} + (part.highest - highest))[0];
    each([&](f32xN scores, int p) {
        const f32xN weight = exponential(scores * factor - highest);
        total += weight;
        store(weights + p, value_scales ? weight * load<f32xN>(value_scales + p) : weight);
    });
    part.highest = highest;
    part.total = part.total * shrink + sum(total);
    for (int i = 0; i < head_dim; i++) part.mixed[i] *= shrink;
}

// q, and the sums that are made, are in the order in which `load_pair` gives keys and values.
template <int QUERIES, class Vector, class Number>
static void add_block(const float* q, const CacheView& cache, const Block& block, const KeysAhead<Number>& ahead, int head_dim,
                      float factor, Part* parts) {
    const Number *k = (const Number*)cache.keys, *v = (const Number*)cache.values;
    constexpr int lanes = lanes_of<Vector>;
    const int positions = block.positions;
    alignas(LINE) float weights[QUERIES][BLOCK], key_scales[BLOCK], value_scales[BLOCK];
    const bool scaled = cache.key_scale;
    for (int p = 0; p < positions && scaled; p++)
        key_scales[p] = cache.key_scale[block.rows[p]], value_scales[p] = cache.value_scale[block.rows[p]];
    constexpr int PAIRS = QUERIES <= 3 || lanes > LANES ? 2 : 1;  // of vectors: the sums of all queries stay in registers
    for (int p = 0; p < positions; p += FOUR) {
        const Number* key[FOUR];
        for (int n = 0; n < FOUR; n++) {  // behind the last one there are others, but no scores
            const int64_t at = block.rows[std::min(p + n, positions - 1)] * head_dim;
            key[n] = k + at;
            fetch_row(v + at, head_dim);
        }
        Vector dots[QUERIES][FOUR];
        auto add_dots = [&](auto pairs, int i) {
            for (int n = 0; n < FOUR; n++) {
                Vector numbers[2 * pairs];
                for (int m = 0; m < 2 * pairs; m += 2) load_pair(key[n] + i + m * lanes, numbers[m], numbers[m + 1]);
                for (int j = 0; j < QUERIES; j++) {
                    Vector dot = i > 0 ? dots[j][n] : Vector{};
                    for (int m = 0; m < 2 * pairs; m++) dot += numbers[m] * load<Vector>(q + j * head_dim + i + m * lanes);
                    dots[j][n] = dot;
                }
            }
            return i + 2 * pairs * lanes;
        };
        int i = 2 * PAIRS * lanes <= head_dim ? add_dots(Count<PAIRS>(), 0) : add_dots(Count<1>(), 0);
        while (i + 2 * PAIRS * lanes <= head_dim) i = add_dots(Count<PAIRS>(), i);
        while (i < head_dim) i = add_dots(Count<1>(), i);
        for (int j = 0; j < QUERIES; j++) four_sums(dots[j], weights[j] + p);
    }
    const float *of_keys = scaled ? key_scales : nullptr, *of_values = scaled ? value_scales : nullptr;
    for (int j = 0; j < QUERIES; j++) weigh(weights[j], factor, of_keys, of_values, positions, head_dim, parts[j]);
    auto mix = [&](auto pairs, int i) {
        constexpr int VECTORS = 2 * pairs;  // of features
        Vector mixed[QUERIES][VECTORS] = {}, one, other;
        for (int p = 0; p < positions; p++) {
            if (i == 0 && p < ahead.block.positions) fetch_row(ahead.keys + ahead.block.rows[p] * head_dim, head_dim);
            for (int n = 0; n < VECTORS; n += 2) {
                load_pair(v + block.rows[p] * head_dim + i + n * lanes, one, other);
                for (int j = 0; j < QUERIES; j++)
                    mixed[j][n] += one * weights[j][p], mixed[j][n + 1] += other * weights[j][p];
            }
        }
        for (int j = 0; j < QUERIES; j++)
            for (int n = 0; n < VECTORS; n++) {
                float* at = parts[j].mixed + i + n * lanes;
                store(at, load<Vector>(at) + mixed[j][n]);
            }
        return i + VECTORS * lanes;
    };
    int i = 0;
    while (i + 2 * PAIRS * lanes <= head_dim) i = mix(Count<PAIRS>(), i);
    while (i < head_dim) i = mix(Count<1>(), i);
}

// The queries of one key head, with the keys and values of one block.
template <class Vector, class Number>
static void add_block_for(const float* q, int queries, const CacheView& cache, const Block& block,
                          const KeysAhead<Number>& ahead, int head_dim, Part* parts) {
    const float factor = 1 / std::sqrt(float(head_dim));
    for (int j = 0; j < queries; j += MOST_QUERIES) {
        const float* qs = q + j * head_dim;
        switch (std::min(MOST_QUERIES, queries - j)) {
            case 1: add_block<1, Vector, Number>(qs, cache, block, ahead, head_dim, factor, parts + j); break;
            case 2: add_block<2, Vector, Number>(qs, cache, block, ahead, head_dim, factor, parts + j); break;
            case 3: add_block<3, Vector, Number>(qs, cache, block, ahead, head_dim, factor, parts + j); break;
            default: add_block<4, Vector, Number>(qs, cache, block, ahead, head_dim, factor, parts + j);
        }
    }
}

static void clear(Part* parts, int count, int head_dim) {
    for (int j = 0; j < count; j++) {
        parts[j].highest = -INFINITY;
        parts[j].total = 0;
        std::memset(parts[j].mixed, 0, head_dim * sizeof(float));
    }
}

// All heads, at positions from..to, block by block: in a paged cache, a position's keys lie side by side. q: [kv_heads,
// queries, head_dim].
template <class Vector, class Number>
static void attend(const float* q, int kv_heads, int queries, const CacheView& cache, const Span& span, const Span& next,
                   int head_dim, Part* parts) {
    clear(parts, kv_heads * queries, head_dim);
    const int64_t apart = span.where.rows_per_head;  // from a head's rows to the next one's
    const Number *keys = (const Number*)cache.keys, *values = (const Number*)cache.values;
    for (int p = span.from; p < span.to; p += BLOCK) {
        const Block block(span.where, p, span.to);
        const bool last = p + BLOCK >= span.to;
        const Block behind = last ? Block(next.where, next.from, next.to) : Block(span.where, p + BLOCK, span.to);
        for (int head = 0; head < kv_heads; head++) {
            const int64_t row = head * apart;
            const CacheView own{(void*)(keys + row * head_dim), (void*)(values + row * head_dim),
                                cache.key_scale ? cache.key_scale + row : nullptr,
                                cache.value_scale ? cache.value_scale + row : nullptr};
            const KeysAhead<Number> ahead = head + 1 < kv_heads ? KeysAhead<Number>{keys + (row + apart) * head_dim, block}
                                                                : KeysAhead<Number>{keys, behind};
            add_block_for<Vector, Number>(q + head * queries * head_dim, queries, own, block, ahead, head_dim,
                                          parts + head * queries);
        }
    }
}

template <class Number, class Vector> static CacheKernels kernels_for() {
    return {
        [](const float* q, int kv_heads, int queries, int head_dim, float* to) {
            for (int n = 0; n < kv_heads * queries * head_dim; n += head_dim)
                arrange<Vector>(q + n, head_dim, to + n, (Number*)0);
        },
        [](int kv_heads, int queries, int head_dim) { return size_t(kv_heads) * queries * head_dim; },
        attend<Vector, Number>,
        [](const float* from, int n, float* to) { restore<Vector>(from, n, to, (Number*)0); },
    };
}

template <class Number> static CacheKernels kernels_for(int head_dim) {
    return head_dim % (2 * WIDE) ? kernels_for<Number, f32x8>() : kernels_for<Number, f32xN>();
}
