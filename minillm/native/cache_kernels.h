// Attention of one new token over the cache, for some of the positions: the scores, their softmax as far as it can be
// known from these positions alone, and the mix of the values. The parts are put together afterwards.
#pragma once

#include <cstddef>

#include "cache.h"
#include "pass.h"

constexpr int BLOCK = 192;  // positions whose scores are held at a time: the values of a head, asked for meanwhile, stay near

// The result of some positions for one query head: the values mixed with weights e^(score - highest), not yet divided
// by the sum of these weights.
struct Part {
    float highest, total;
    float* mixed;  // [head_dim]
};

// Positions from..to of one sequence, and the rows that it lies in.
struct Span {
    Rows where;
    int from, to;
};

// What attention does with keys and values, for one kind of numbers that they are kept in.
struct CacheKernels {
    // Of the queries of one token, [heads, head_dim]: what `attend` wants instead of them, and how many floats that are.
    void (*arrange)(const float* q, int kv_heads, int queries, int head_dim, float* to);
    size_t (*arranged)(int kv_heads, int queries, int head_dim);
    // q: arranged. Memory is asked for `next`, which is what this thread will probably attend to then.
    void (*attend)(const float* q, int kv_heads, int queries, const CacheView& cache, const Span& span, const Span& next,
                   int head_dim, Part* parts);
    void (*restore)(const float* from, int n, float* to);  // a mix of values, put in order
};

bool attends_by_tiles(const Model& m);
CacheKernels cache_kernels(const Model& m);

// Parts of the same query over different positions, made one: each shrunk to the highest score of all.
void join_parts(const Part* parts, int count, int stride, int head_dim, float* out);
