// Attention of one new token over the cache, for some of the positions: the scores, their softmax as far as it can be
// known from these positions alone, and the mix of the values. The parts are put together afterwards.
#pragma once

#include <cmath>

#include "vectors.h"

// Keys and values of one sequence in one layer: [kv_heads, max_len, head_dim], as numbers or as codes with a scale per
// position and head ([kv_heads, max_len] float32; null where they are numbers).
struct CacheView {
    void *keys, *values;
    float *key_scale, *value_scale;
};

constexpr int BLOCK = 64;  // positions whose scores are held at a time
constexpr int MOST_QUERIES = 4;

// The result of some positions for one query head: the values mixed with weights e^(score - highest), not yet divided
// by the sum of these weights.
struct Part {
    float highest, total;
    float* mixed;  // [head_dim]
};

// A block's keys are read first, then its values: meanwhile, the other ones are asked for.
template <class Number> static inline void fetch_row(const Number* row, int head_dim) {
    for (size_t n = 0; n < head_dim * sizeof(Number); n += LINE) fetch_ahead((const char*)row + n, 0);
}

// q, and the sums that are made, are in the order in which `load16` gives keys and values.
template <int QUERIES, class Number>
static void add_block(const float* q, const Number* k, const Number* v, const float* k_scale, const float* v_scale,
                      int positions, int head_dim, float factor, Part* parts) {
    alignas(32) float weights[QUERIES][BLOCK];
    for (int p = 0; p < positions; p += LANES) {
        f32x8 dots[QUERIES][LANES] = {};
        for (int n = 0; n < std::min(LANES, positions - p); n++) {
            const Number* key = k + size_t(p + n) * head_dim;
            fetch_row(v + size_t(p + n) * head_dim, head_dim);
            f32x8 dot[QUERIES] = {}, one, other;
            for (int i = 0; i < head_dim; i += 2 * LANES) {
                load16(key + i, one, other);
                for (int j = 0; j < QUERIES; j++)
                    dot[j] += one * load8(q + j * head_dim + i), dot[j] += other * load8(q + j * head_dim + i + LANES);
            }
            for (int j = 0; j < QUERIES; j++) dots[j][n] = dot[j];
        }
        for (int j = 0; j < QUERIES; j++) store(weights[j] + p, sums(dots[j]) * factor);
    }
    for (int j = 0; j < QUERIES; j++) {
        float highest = parts[j].highest;
        for (int p = 0; p < positions; p++) {
            if (k_scale) weights[j][p] *= k_scale[p];
            highest = weights[j][p] > highest ? weights[j][p] : highest;
        }
        for (int p = positions; p % LANES; p++) weights[j][p] = -INFINITY;
        const float shrink = exp8(f32x8{} + (parts[j].highest - highest))[0];
        f32x8 total{};
        for (int p = 0; p < positions; p += LANES) {
            const f32x8 weight = exp8(load8(weights[j] + p) - highest);
            total += weight;
            store(weights[j] + p, weight);
        }
        parts[j].highest = highest;
        parts[j].total = parts[j].total * shrink + sum(total);
        for (int i = 0; i < head_dim; i++) parts[j].mixed[i] *= shrink;
        if (v_scale)
            for (int p = 0; p < positions; p++) weights[j][p] *= v_scale[p];
    }
    constexpr int PAIRS = QUERIES <= 3 ? 2 : 1;  // 16 numbers each: the sums of all queries stay in registers
    for (int i = 0; i < head_dim;) {
        const int wide = std::min(PAIRS, (head_dim - i) / (2 * LANES));
        f32x8 mixed[QUERIES][2 * PAIRS] = {}, one, other;
        for (int p = 0; p < positions; p++) {
            if (i == 0) fetch_row(k + size_t(p + BLOCK) * head_dim, head_dim);
            for (int n = 0; n < PAIRS; n++) {
                if (PAIRS > 1 && n >= wide) break;
                load16(v + size_t(p) * head_dim + i + 2 * n * LANES, one, other);
                for (int j = 0; j < QUERIES; j++)
                    mixed[j][2 * n] += one * weights[j][p], mixed[j][2 * n + 1] += other * weights[j][p];
            }
        }
        for (int j = 0; j < QUERIES; j++)
            for (int n = 0; n < 2 * wide; n++) {
                float* at = parts[j].mixed + i + n * LANES;
                store(at, load8(at) + mixed[j][n]);
            }
        i += 2 * wide * LANES;
    }
}

// The queries of one key head, at positions from..to. q: [queries, head_dim]; k, v: the head's first position.
template <class Number>
static void attend(const float* q, int queries, const Number* k, const Number* v, const float* k_scale,
                   const float* v_scale, int from, int to, int head_dim, Part* parts) {
    const float factor = 1 / std::sqrt(float(head_dim));
    for (int j = 0; j < queries; j++) {
        parts[j].highest = -INFINITY;
        parts[j].total = 0;
        std::memset(parts[j].mixed, 0, head_dim * sizeof(float));
    }
    for (int p = from; p < to; p += BLOCK) {
        const int n = std::min(BLOCK, to - p);
        const Number *ks = k + size_t(p) * head_dim, *vs = v + size_t(p) * head_dim;
        const float *kss = k_scale ? k_scale + p : nullptr, *vss = v_scale ? v_scale + p : nullptr;
        for (int j = 0; j < queries; j += MOST_QUERIES) {
            const float* qs = q + j * head_dim;
            switch (std::min(MOST_QUERIES, queries - j)) {
                case 1: add_block<1>(qs, ks, vs, kss, vss, n, head_dim, factor, parts + j); break;
                case 2: add_block<2>(qs, ks, vs, kss, vss, n, head_dim, factor, parts + j); break;
                case 3: add_block<3>(qs, ks, vs, kss, vss, n, head_dim, factor, parts + j); break;
                default: add_block<4>(qs, ks, vs, kss, vss, n, head_dim, factor, parts + j);
            }
        }
    }
}

// Parts of the same query over different positions, made one: each shrunk to the highest score of all.
static void join_parts(const Part* parts, int count, int stride, int head_dim, float* out) {
    float highest = -INFINITY, total = 0;
    for (int n = 0; n < count; n++) highest = std::max(highest, parts[n * stride].highest);
    std::memset(out, 0, head_dim * sizeof(float));
    for (int n = 0; n < count; n++) {
        const Part& part = parts[n * stride];
        const float shrink = std::exp(part.highest - highest);
        total += shrink * part.total;
        for (int i = 0; i < head_dim; i++) out[i] += shrink * part.mixed[i];
    }
    for (int i = 0; i < head_dim; i++) out[i] /= total;
}
