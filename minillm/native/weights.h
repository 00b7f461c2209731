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

// `put(column, numbers)` for columns from..from + n of one row of codes, a vector at a time; column 0 is `from`.
template <class Vector, class Put> static inline void widen_codes(const Matrix& w, int64_t row, int from, int n, Put put) {
    const int64_t at = row * w.row_bytes;
    const char* codes = (const char*)w.codes + at;
    const auto* scale = (const uint16_t*)((const char*)w.scale + at) + from / GROUP;
    const auto* minimum = w.minimum ? (const uint16_t*)((const char*)w.minimum + at) + from / GROUP : nullptr;
    for (int g = 0; g < n / GROUP; g++) {
        const float step = w.format == INT8 ? ((const float*)w.scale)[row] : from_half(scale[g]);
        const float least = w.format == Q4_1 ? from_half(minimum[g]) : w.format == Q4_0 ? -8 * step : 0;
        const int column = g * GROUP;
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
            put(column + i, v * step + least);
        }
    }
}
