// How the numbers of a prompt lie, and how they are multiplied, on any processor: as float32, one number of each of sixteen
// tokens to a vector. It has what `InTiles` has, and prompt.cpp can be made of either.
//
// A product's sums stay in registers: some rows by one or two strips. A row's number is taken alone and meets sixteen tokens; a
// vector of tokens meets all the rows that are in registers. Rows have to be in float32 before. That costs one pass over them,
// and pays as soon as they meet a few strips.
#pragma once

#include <algorithm>

#include "strips.h"
#include "weights.h"

struct InFloats {
    using Number = float;
    struct Pair {
        f32x16 even, odd;
    };
    struct Guard {};                        // there is nothing to be shaped
    static constexpr int TERMS = 7;         // of powers of two
    static constexpr int MOST_STRIPS = 16;  // at a time: half as many as of bfloat16, for a number takes twice the room

    static Pair paired(f32x16 even, f32x16 odd) { return {even, odd}; }
    static f32x16 reciprocal(f32x16 x) {
#if defined(__AVX512F__)
        const f32x16 nearly = (f32x16)_mm512_rcp14_ps((__m512)x);  // to 14 bits; a step of Newton's doubles them
        return nearly * (2 - x * nearly);
#else
        return 1 / x;
#endif
    }

    // Sixteen tokens' numbers of STEP columns, each token's side by side at rows[token], become vectors; and back.
    static void turn_in(const float* const* rows, f32x16* to) {
        for (int column = 0; column < STEP; column += TILE) {
            u32x16 square[TILE];
            for (int n = 0; n < TILE; n++) square[n] = load<u32x16>(rows[n] + column);
            transpose(square);
            std::memcpy(to + column, square, sizeof square);
        }
    }
    static void turn_out(const Pair* from, int count, float* const* rows) {
        for (int column = 0; column < STEP; column += TILE) {
            u32x16 square[TILE];
            std::memcpy(square, from + column / 2, sizeof square);
            transpose(square);
            for (int n = 0; n < count; n++) store(rows[n] + column, square[n]);
        }
    }

    // BOTH rows of TILE numbers, `apart` from row to row, become TILE rows of BOTH.
    static void turn_round(const float* from, int apart, float* to) {
        for (int half = 0; half < BOTH; half += TILE) {
            u32x16 square[TILE];
            for (int n = 0; n < TILE; n++) square[n] = load<u32x16>(from + (half + n) * apart);
            transpose(square);
            for (int n = 0; n < TILE; n++) store(to + n * BOTH + half, square[n]);
        }
    }

    using BothRows = const float*;  // [step, BOTH, STEP]

    static BothRows in_steps(const float* rows) { return rows; }
    // A tile of rows from `one`, and one from `other`, widened into `room`.
    static BothRows rows_of(const Matrix& w, int one, int other, float* room) {
        float* to = room;
        for (int column = 0; column < w.columns; column += STEP)
            for (int r = 0; r < BOTH; r++, to += STEP) widen_step(w, r < TILE ? one + r : other + r - TILE, column, to);
        return room;
    }

    // `added` to sums, or put in their place: the products of BOTH rows with STRIPS (one or two) strips of tokens, over `steps`
    // steps. A strip's sums are BOTH vectors, its tokens' pairs lie step by step; both `.._apart` from those of the next strip.
    // Some steps at a time, whose rows and tokens are then in the nearest cache. `meanwhile(step)` is done for each step.
    template <int STRIPS, class Meanwhile>
    static inline void multiply(BothRows rows, const Pair* tokens, int64_t tokens_apart, int steps, bool added, f32x16* sums,
                                int64_t sums_apart, Meanwhile meanwhile) {
        constexpr int TURNS = BOTH / ROWS<STRIPS> * (STRIPS / TOGETHER<STRIPS>);
        for (int s = 0; s < STRIPS && !added; s++) std::fill_n(sums + s * sums_apart, BOTH, f32x16{});
        for (int step = 0; step < steps; step += STEPS<STRIPS>) {
            const int some = std::min(STEPS<STRIPS>, steps - step);
            for (int turn = 0; turn < TURNS; turn++) {
                for (int n = some * turn / TURNS; n < some * (turn + 1) / TURNS; n++) meanwhile(step + n);
                const int r = turn * ROWS<STRIPS> % BOTH, s = turn * ROWS<STRIPS> / BOTH;
                add_products<ROWS<STRIPS>, TOGETHER<STRIPS>>(rows + (step * BOTH + r) * STEP, some,
                                                             tokens + s * tokens_apart + step * TILE, tokens_apart,
                                                             sums + s * sums_apart + r, sums_apart);
            }
        }
    }

    // Sums of TILES (two or four) tiles of rows with one strip, to which products are added one STEP after the other.
    template <int TILES> class Column {
      public:
        explicit Column(f32x16* sums) : sums_(sums) {}

        // A step of rows, which lie one behind the other.
        void add(const float* rows, const Pair* tokens) {
            for (int r = 0; r < TILES * TILE; r += ROWS<1>)
                add_products<ROWS<1>, 1>(rows + r * STEP, 1, tokens, 0, sums_ + r, 0);
        }

      private:
        f32x16* sums_;
    };

  private:
    template <int STRIPS> static constexpr int STEPS = 3 * STRIPS;
    // What is in registers at a time. With AVX-512 there are 32, and a vector needs one; elsewhere 16, and it needs two.
    template <int STRIPS> static constexpr int TOGETHER = WIDE > LANES ? STRIPS : 1;
    template <int STRIPS> static constexpr int ROWS = WIDE > LANES ? 16 / STRIPS : 4;

    // Of rows that lie [step, BOTH, STEP]. Those of the next step are asked for, a line for each column. Not inlined, for all
    // registers are needed here: the compiler would keep constants of what is done meanwhile in some of them.
    template <int COUNT, int STRIPS>
    static void __attribute__((noinline)) add_products(const float* rows, int steps, const Pair* tokens, int64_t tokens_apart,
                                                       f32x16* sums, int64_t sums_apart) {
        constexpr int PARTS = TILE / WIDE;  // of a vector
        f32xN total[COUNT][STRIPS][PARTS];
        auto sum_at = [&](int r, int s, int part) { return (f32xN*)(sums + s * sums_apart + r) + part; };
        for (int r = 0; r < COUNT; r++)
            for (int s = 0; s < STRIPS; s++)
                for (int part = 0; part < PARTS; part++) total[r][s][part] = *sum_at(r, s, part);
        for (int step = 0; step < steps; step++, rows += BOTH * STEP, tokens += TILE)
            for (int column = 0; column < STEP; column++) {
                __builtin_prefetch(rows + BOTH * STEP + column * TILE);
                f32xN x[STRIPS][PARTS];
                for (int s = 0; s < STRIPS; s++)
                    for (int part = 0; part < PARTS; part++)
                        x[s][part] = ((const f32xN*)(tokens + s * tokens_apart))[column * PARTS + part];
                for (int r = 0; r < COUNT; r++)
                    for (int s = 0; s < STRIPS; s++)
                        for (int part = 0; part < PARTS; part++) total[r][s][part] += rows[r * STEP + column] * x[s][part];
            }
        for (int r = 0; r < COUNT; r++)
            for (int s = 0; s < STRIPS; s++)
                for (int part = 0; part < PARTS; part++) *sum_at(r, s, part) = total[r][s][part];
    }

    // STEP numbers of a row, from `column` on.
    static void widen_step(const Matrix& w, int row, int column, float* to) {
        const char* codes = (const char*)w.codes + row * w.row_bytes;
        switch (w.format) {
            case FLOAT32: return widen_numbers((const float*)codes + column, to);
            case BFLOAT16: return widen_numbers((const bf16*)codes + column, to);
            default: widen_codes<f32xN>(w, row, column, STEP, [&](int i, f32xN numbers) { store(to + i, numbers); });
        }
    }
    template <class From> static void widen_numbers(const From* from, float* to) {
        for (int i = 0; i < STEP; i++) to[i] = widen(from[i]);
    }
};
