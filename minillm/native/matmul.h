// Y = W X for a few vectors at once: each weight is read from memory once for all of them. From a handful of vectors on,
// the time is no longer that of memory but that of the multiplications, and what counts is how often a number that has
// been loaded is used. A tile is six rows of W by two vectors: its twelve sums stay in registers, and the eight numbers
// that are loaded for a step make twelve products. AVX-512 has twice the registers, each twice as wide: there, a tile is
// six rows by four vectors.
#pragma once

#include <algorithm>
#include <vector>

#include <omp.h>

#include "matvec.h"

constexpr int TILE_ROWS = 6;
constexpr int TILE_VECTORS = WIDE > LANES ? 4 : 2;
constexpr int PANEL = 576;     // columns at a time: six rows of them, widened, stay in the nearest cache
constexpr int FEW_FLOATS = 2;  // vectors from which tiles are faster than one vector after the other,
constexpr int FEW_CODES = 8;   // for weights that have to be widened first

static bool by_tiles(const Matrix& w, int batch) { return batch >= (w.format <= BFLOAT16 ? FEW_FLOATS : FEW_CODES); }

static inline int padded(int columns) { return (columns + 2 * WIDE - 1) / (2 * WIDE) * (2 * WIDE); }

// Where the vector lies as tiles want it, once it is made ready.
static float* for_tiles(const Activation& x, const Matrix& w) { return w.format == FLOAT32 ? x.values : x.arranged; }

// In the order in which `load_pair` gives the weights, with zeros behind. For quantized weights the vector is rounded as it
// would be if it were alone, so that a sequence gets the same numbers in any company.
static void make_ready_for_tiles(const Activation& x, const Matrix& w) {
    float* ready = for_tiles(x, w);
    if (w.format == BFLOAT16) arrange<f32xN>(x.values, w.columns, ready, (bf16*)0);
    if (w.format > BFLOAT16) {
        quantize(x, w);
        for (int i = 0; i < w.columns; i++) ready[i] = (w.format >= Q4_0 ? x.coarse[i] : x.fine[i]) * x.scale[i / GROUP];
    }
    std::fill(ready + w.columns, ready + padded(w.columns), 0.0f);
}

// The rows of a tile lie in one piece: a register's numbers of the first row, of the second, ..., then the next ones.
static inline float* place(float* row, int column) { return row + column / WIDE * (WIDE * TILE_ROWS) + column % WIDE; }

template <class Number> static inline void pack(const Number* w, int n, float* tile) {
    f32xN one, other;
    int i = 0;
    for (; i + 2 * WIDE <= n; i += 2 * WIDE) {
        load_pair(w + i, one, other);
        store(place(tile, i), one), store(place(tile, i + WIDE), other);
    }
    if (i == n) return;
    for (int j = 0; j < 2 * WIDE; j++) *place(tile, i + j) = i + j < n ? widen(w[i + j]) : 0;
}

// Columns from..from + n of one row, in float32.
static void pack_row(const Matrix& w, int row, int from, int n, float* tile) {
    const char* codes = (const char*)w.codes + row * w.row_bytes;
    switch (w.format) {
        case FLOAT32: return pack((const float*)codes + from, n, tile);
        case BFLOAT16: return pack((const bf16*)codes + from, n, tile);
    }
    widen_codes<f32xN>(w, row, from, n, [&](int column, f32xN numbers) { store(place(tile, column), numbers); });
}

// Memory is slow to answer: while this tile is multiplied, the weights of the next one are asked for, a little at a time.
struct Ahead {
    const char* from;
    int step;  // bytes for each register of columns
};

// In how many tiles `batch` vectors are multiplied: whole ones, then what is left by two and by one.
static inline int tiles_across(int batch) {
    const int rest = batch % TILE_VECTORS;
    return batch / TILE_VECTORS + rest / 2 + rest % 2;
}

template <int VECTORS>
static inline void add_tile(const float* w, const float* x, int stride, int n, Ahead ahead,
                            f32xN (*sums)[TILE_ROWS]) {
    f32xN total[VECTORS][TILE_ROWS];
    std::memcpy(total, sums, sizeof total);
    for (int i = 0; i < n; i += WIDE, ahead.from += ahead.step) {
        for (int byte = 0; byte < ahead.step; byte += LINE) fetch_ahead(ahead.from, byte);
        f32xN numbers[VECTORS];
        for (int v = 0; v < VECTORS; v++) numbers[v] = load<f32xN>(x + size_t(v) * stride + i);
        for (int r = 0; r < TILE_ROWS; r++) {
            const f32xN weights = load<f32xN>(w + i * TILE_ROWS + r * WIDE);
            for (int v = 0; v < VECTORS; v++) total[v][r] += weights * numbers[v];
        }
    }
    std::memcpy(sums, total, sizeof total);
}

// `take(b, row, product)` for each row from..to of W and each of `batch` vectors, which lie `stride` apart at x.
template <class Take>
static void multiply_by_tiles(const Matrix& w, int from, int to, const float* x, int stride, int batch, Take take) {
    alignas(64) float tile[TILE_ROWS * PANEL];
    std::vector<f32xN> memory(size_t(batch) * TILE_ROWS);
    auto sums = (f32xN(*)[TILE_ROWS])memory.data();
    for (int row = from; row < to; row += TILE_ROWS) {
        const int rows = std::min(TILE_ROWS, to - row);
        std::fill(memory.begin(), memory.end(), f32xN{});
        for (int column = 0; column < w.columns; column += PANEL) {
            const int n = std::min(PANEL, w.columns - column), wide = padded(n);
            for (int r = 0; r < TILE_ROWS; r++) pack_row(w, row + std::min(r, rows - 1), column, n, tile + r * WIDE);
            const int next_row = row + TILE_ROWS < to ? row + TILE_ROWS : to + (omp_get_num_threads() - 1) * (to - from);
            const char* next = (const char*)w.codes + next_row * w.row_bytes + TILE_ROWS * w.row_bytes * column / w.columns;
            const int step = int(w.row_bytes * TILE_ROWS * WIDE / (int64_t(w.columns) * tiles_across(batch))) + 1;
            auto add = [&](auto vectors, int b) {
                add_tile<vectors>(tile, x + size_t(b) * stride + column, stride, wide, {next, step}, sums + b);
                next += wide / WIDE * step;
                return b + vectors;
            };
            int b = 0;
            while (b + TILE_VECTORS <= batch) b = add(Count<TILE_VECTORS>(), b);
            if (b + 2 <= batch) b = add(Count<2>(), b);
            if (b < batch) add(Count<1>(), b);
        }
        for (int b = 0; b < batch; b++)
            for (int r = 0; r < rows; r++) take(b, row + r, sum(sums[b][r]));
    }
}
