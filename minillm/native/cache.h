// The KV cache: where its rows lie, and how a key or a value is written to one and read from it.
#pragma once

#include <algorithm>
#include <cmath>

#include "vectors.h"

enum CacheFormat { CACHE_FLOAT32, CACHE_BFLOAT16, CACHE_INT8 };

// Keys and values of one layer: rows of head_dim numbers, one per position and head; or of codes, and then a scale for
// each row (float32; null where they are numbers).
struct CacheView {
    void *keys, *values;
    float *key_scale, *value_scale;
};

// In which rows the positions of one sequence lie, for its first head. A sequence has blocks of `block_size` positions,
// and its table says which; in a dense cache, it has one block, as long as the cache.
struct Rows {
    const int32_t* table;
    int32_t block_size;
    int64_t rows_per_block, rows_per_position, rows_per_head;

    int64_t at(int position) const {
        return table[position / block_size] * rows_per_block + position % block_size * rows_per_position;
    }
    void of(int from, int count, int64_t* out) const {  // as `at`, with one division for all
        int block = from / block_size, inside = from % block_size;
        for (int n = 0; n < count; n++) {
            out[n] = table[block] * rows_per_block + inside * rows_per_position;
            if (++inside == block_size) inside = 0, block++;
        }
    }
};

static void write_row(const float* from, int n, float* to, float*) { std::copy(from, from + n, to); }
static void write_row(const float* from, int n, bf16* to, float*) {
    for (int i = 0; i < n; i += LANES) store_rounded(to + i, load8(from + i));
}
static void write_row(const float* from, int n, int8_t* to, float* scale) {
    const float most = largest_magnitude(from, n);
    *scale = most / 127;
    for (int i = 0; i < n; i++) to[i] = int8_t(most > 0 ? std::nearbyint(from[i] * (127 / most)) : 0);
}

template <class Number> static void read_row(const Number* from, int n, const float* scale, float* to) {
    for (int i = 0; i < n; i++) to[i] = widen(from[i]) * (scale ? *scale : 1);
}

// The same for whatever a cache keeps: row `row` of `rows`, n numbers in float32.
struct RowAccess {
    void (*write)(const float* from, int n, void* rows, int64_t row, float* scales);
    void (*read)(const void* rows, int64_t row, const float* scales, int n, float* to);
};

template <class Number> static RowAccess row_access() {
    return {
        [](const float* from, int n, void* rows, int64_t row, float* scales) {
            write_row(from, n, (Number*)rows + row * n, scales ? scales + row : nullptr);
        },
        [](const void* rows, int64_t row, const float* scales, int n, float* to) {
            read_row((const Number*)rows + row * n, n, scales ? scales + row : nullptr, to);
        },
    };
}

static RowAccess row_access(int32_t cache_format) {
    switch (cache_format) {
        case CACHE_FLOAT32: return row_access<float>();
        case CACHE_BFLOAT16: return row_access<bf16>();
        default: return row_access<int8_t>();
    }
}
