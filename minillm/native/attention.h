// `CacheKernels` for any processor: scores, softmax and the mix of the values, a block of positions at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache_kernels.h"
#include "vectors.h"

constexpr int MOST_QUERIES = 4;

// A block's keys are read first, then its values: meanwhile, the other ones are asked for.
template <class Number> static inline void fetch_row(const Number* row, int head_dim) {
    for (size_t n = 0; n < head_dim * sizeof(Number); n += LINE) fetch_ahead((const char*)row + n, 0);
}

// Some positions: the rows that their keys and values are, and those of the positions behind them.
struct Block {
    int positions, positions_ahead;
    int64_t rows[BLOCK], rows_ahead[BLOCK];

    Block(const Rows& where, int from, int to)
        : positions(std::min(BLOCK, to - from)), positions_ahead(std::min(BLOCK, to - from - positions)) {
        where.of(from, positions, rows);
        where.of(from + positions, positions_ahead, rows_ahead);
    }
};

// One query's scores become weights, and its part is shrunk to the highest score so far. No template, and so not inlined in
// each kind of `add_block`: the compiler would be busy with it for a third of its time.
static void weigh(float* weights, const CacheView& cache, const Block& block, int head_dim, Part& part) {
    const int positions = block.positions;
    for (int p = 0; p < positions && cache.key_scale; p++) weights[p] *= cache.key_scale[block.rows[p]];
    for (int p = positions; p % LANES; p++) weights[p] = -INFINITY;
    f32x8 most = f32x8{} + part.highest;
    for (int p = 0; p < positions; p += LANES) most = larger(load8(weights + p), most);
    const float highest = largest(most);
    const float shrink = exponential(f32x8{} + (part.highest - highest))[0];
    f32x8 total{};
    for (int p = 0; p < positions; p += LANES) {
        const f32x8 weight = exponential(load8(weights + p) - highest);
        total += weight;
        store(weights + p, weight);
    }
    part.highest = highest;
    part.total = part.total * shrink + sum(total);
    for (int i = 0; i < head_dim; i++) part.mixed[i] *= shrink;
    if (cache.value_scale)
        for (int p = 0; p < positions; p++) weights[p] *= cache.value_scale[block.rows[p]];
}

// q, and the sums that are made, are in the order in which `load_pair` gives keys and values.
template <int QUERIES, class Vector, class Number>
static void add_block(const float* q, const CacheView& cache, const Block& block, int head_dim, float factor, Part* parts) {
    const Number *k = (const Number*)cache.keys, *v = (const Number*)cache.values;
    constexpr int lanes = lanes_of<Vector>;
    const int positions = block.positions;
    alignas(32) float weights[QUERIES][BLOCK];
    for (int p = 0; p < positions; p += LANES) {
        f32x8 dots[QUERIES][LANES] = {};
        for (int n = 0; n < std::min(LANES, positions - p); n++) {
            const Number* key = k + block.rows[p + n] * head_dim;
            fetch_row(v + block.rows[p + n] * head_dim, head_dim);
            Vector dot[QUERIES] = {}, one, other;
            for (int i = 0; i < head_dim; i += 2 * lanes) {
                load_pair(key + i, one, other);
                for (int j = 0; j < QUERIES; j++) {
                    const float* query = q + j * head_dim + i;
                    dot[j] += one * load<Vector>(query), dot[j] += other * load<Vector>(query + lanes);
                }
            }
            for (int j = 0; j < QUERIES; j++) dots[j][n] = folded(dot[j]);
        }
        for (int j = 0; j < QUERIES; j++) store(weights[j] + p, sums(dots[j]) * factor);
    }
    for (int j = 0; j < QUERIES; j++) weigh(weights[j], cache, block, head_dim, parts[j]);
    constexpr int PAIRS = QUERIES <= 3 || lanes > LANES ? 2 : 1;  // of vectors: the sums of all queries stay in registers
    for (int i = 0; i < head_dim;) {
        const int wide = std::min(PAIRS, (head_dim - i) / (2 * lanes));
        Vector mixed[QUERIES][2 * PAIRS] = {}, one, other;
        for (int p = 0; p < positions; p++) {
            if (i == 0 && p < block.positions_ahead) fetch_row(k + block.rows_ahead[p] * head_dim, head_dim);
            for (int n = 0; n < PAIRS; n++) {
                if (PAIRS > 1 && n >= wide) break;
                load_pair(v + block.rows[p] * head_dim + i + 2 * n * lanes, one, other);
                for (int j = 0; j < QUERIES; j++)
                    mixed[j][2 * n] += one * weights[j][p], mixed[j][2 * n + 1] += other * weights[j][p];
            }
        }
        for (int j = 0; j < QUERIES; j++)
            for (int n = 0; n < 2 * wide; n++) {
                float* at = parts[j].mixed + i + n * lanes;
                store(at, load<Vector>(at) + mixed[j][n]);
            }
        i += 2 * wide * lanes;
    }
}

// The queries of one key head, with the keys and values of one block.
template <class Vector, class Number>
static void add_block_for(const float* q, int queries, const CacheView& cache, const Block& block, int head_dim, Part* parts) {
    const float factor = 1 / std::sqrt(float(head_dim));
    for (int j = 0; j < queries; j += MOST_QUERIES) {
        const float* qs = q + j * head_dim;
        switch (std::min(MOST_QUERIES, queries - j)) {
            case 1: add_block<1, Vector, Number>(qs, cache, block, head_dim, factor, parts + j); break;
            case 2: add_block<2, Vector, Number>(qs, cache, block, head_dim, factor, parts + j); break;
            case 3: add_block<3, Vector, Number>(qs, cache, block, head_dim, factor, parts + j); break;
            default: add_block<4, Vector, Number>(qs, cache, block, head_dim, factor, parts + j);
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
static void attend(const float* q, int kv_heads, int queries, const CacheView& cache, const Span& span, const Span&,
                   int head_dim, Part* parts) {
    const Rows& where = span.where;
    clear(parts, kv_heads * queries, head_dim);
    const Number *keys = (const Number*)cache.keys, *values = (const Number*)cache.values;
    for (int p = span.from; p < span.to; p += BLOCK) {
        const Block block(where, p, span.to);
        for (int head = 0; head < kv_heads; head++) {
            const int64_t row = head * where.rows_per_head;
            const CacheView own{(void*)(keys + row * head_dim), (void*)(values + row * head_dim),
                                cache.key_scale ? cache.key_scale + row : nullptr,
                                cache.value_scale ? cache.value_scale + row : nullptr};
            add_block_for<Vector, Number>(q + head * queries * head_dim, queries, own, block, head_dim, parts + head * queries);
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
