// How the weights of a matrix are stored, and the numbers that they stand for. See minillm/quantization.py.
#pragma once

#include "vectors.h"

enum Format { FLOAT32, BFLOAT16, INT8, Q8_0, Q4_0, Q4_1 };

constexpr int GROUP = 32;  // neighbours in a row that share a scale
constexpr int HALF = GROUP / 2;

struct Matrix {
    const void* codes;    // [rows, columns] float32, bfloat16 or int8; of 4 bits [rows, columns / 2], two codes per byte
    const void* scale;    // INT8: [rows] float32; Q8_0, Q4_0, Q4_1: [rows, columns / GROUP] float16
    const void* minimum;  // Q4_1: [rows, columns / GROUP] float16
    const float* bias;    // [rows], or null
    int64_t row_bytes;    // from a row to the next, of codes and of groups' scales and minima: they lie in one memory
    int32_t format, rows, columns;
};

// What the codes of a group mean: each stands for code * step + least.
struct Meaning {
    float step, least;
};
static inline Meaning meaning_of(const Matrix& w, int64_t row, int group) {
    auto half = [&](const void* all) { return from_half(((const uint16_t*)((const char*)all + row * w.row_bytes))[group]); };
    if (w.format == INT8) return {((const float*)w.scale)[row], 0};
    const float step = half(w.scale);
    return {step, w.format == Q4_1 ? half(w.minimum) : w.format == Q4_0 ? -8 * step : 0};
}

// `put(column, numbers)` for columns from..from + n of one row of codes, a vector at a time; column 0 is `from`.
template <class Vector, class Put> static inline void widen_codes(const Matrix& w, int64_t row, int from, int n, Put put) {
    const char* codes = (const char*)w.codes + row * w.row_bytes;
    for (int column = 0; column < n; column += GROUP) {
        const Meaning meant = meaning_of(w, row, (from + column) / GROUP);
        int8_t halves[GROUP];
        const int8_t* group = (const int8_t*)codes + from + column;
        if (w.format >= Q4_0) {
            typedef uint8_t Bytes __attribute__((vector_size(HALF)));
            const auto bytes = load<Bytes>(codes + (from + column) / 2);
            store(halves, bytes & 15), store(halves + HALF, bytes >> 4);
            group = halves;
        }
        for (int i = 0; i < GROUP; i += lanes_of<Vector>) {
            Vector v;
            load_codes(group + i, v);
            put(column + i, v * meant.step + meant.least);
        }
    }
}
