// How the numbers of a prompt lie, and how they are multiplied, where the processor has tiles: as bfloat16, two numbers of each
// of sixteen tokens to a vector.
#pragma once

#include "tiles.h"

struct InTiles {
    using Number = bf16;
    using Pair = u32x16;
    using Guard = Tiles;                    // shapes a thread's registers
    static constexpr int TERMS = 5;         // of powers of two that will be rounded to bfloat16
    static constexpr int MOST_STRIPS = 32;  // at a time: what their products read is then in a core's own cache

    // Two numbers of each of sixteen tokens, rounded, as tiles want them: the even column below, the odd one above.
    static Pair paired(f32x16 even, f32x16 odd) {
#if WITH_AMX
        const __m512i in_turn = _mm512_add_epi16(_mm512_set1_epi32(TILE << 16), (__m512i)(u32x16{} + 0x00010001 * lane));
        return (u32x16)_mm512_permutexvar_epi16(in_turn, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
#else
        u32x16 words;
        store_pair((bf16*)&words, even, odd);
        return words;
#endif
    }

    static f32x16 reciprocal(f32x16 x) {
#if WITH_AMX
        return (f32x16)_mm512_rcp14_ps((__m512)x);  // to 14 bits: more than bfloat16 has
#else
        return 1 / x;
#endif
    }

    // Sixteen tokens' numbers of STEP columns, each token's side by side at rows[token], become vectors; and back.
    static void turn_in(const bf16* const* rows, f32x16* to) {
        u32x16 square[TILE];
        for (int n = 0; n < TILE; n++) square[n] = load<u32x16>(rows[n]);
        transpose(square);
        for (int n = 0; n < TILE; n++) load_pair((const bf16*)&square[n], to[2 * n], to[2 * n + 1]);
    }
    static void turn_out(const Pair* from, int count, bf16* const* rows) {
        u32x16 square[TILE];
        std::copy_n(from, TILE, square);
        transpose(square);
        for (int n = 0; n < count; n++) store(rows[n], square[n]);
    }

    // BOTH rows of TILE numbers, `apart` from row to row, become TILE rows of BOTH.
    static void turn_round(const float* from, int apart, bf16* to) {
        u32x16 square[TILE];
        for (int n = 0; n < TILE; n++, from += 2 * apart) square[n] = paired(load<f32x16>(from), load<f32x16>(from + apart));
        transpose(square);
        for (int n = 0; n < TILE; n++) store(to + n * BOTH, square[n]);
    }

    // Two tiles of rows, `row_apart` bytes from row to row and `tile_apart` between the two; step by step `step_bytes` further.
    struct BothRows {
        const void* first;
        int64_t row_apart, tile_apart, step_bytes;
    };

    // Rows that lie [step, BOTH, STEP].
    static BothRows in_steps(const bf16* rows) { return {rows, LINE, TILE_BYTES, 2 * TILE_BYTES}; }
    // A tile of rows from `one`, and one from `other`: where they are, if they can be multiplied so; else widened into `room`.
    static BothRows rows_of(const Matrix& w, int one, int other, bf16* room) {
        if (w.format == BFLOAT16)
            return {(const char*)w.codes + one * w.row_bytes, w.row_bytes, (other - one) * w.row_bytes, LINE};
        for (int r = 0; r < BOTH; r++) widen_row(w, r < TILE ? one + r : other + r - TILE, [&](int column) {
            return room + (column / STEP * BOTH + r) * STEP + column % STEP;
        });
        return in_steps(room);
    }

    // `added` to sums, or put in their place: the products of BOTH rows with STRIPS (one or two) strips of tokens, over `steps`
    // steps. A strip's sums are BOTH vectors, its tokens' pairs lie step by step; both `.._apart` from those of the next strip.
    // Tiles are multiplied beside whatever else a core does: it does `meanwhile(step)`. Registers 0..3 have the sums.
    template <int STRIPS, class Meanwhile>
    static inline void multiply(const BothRows& rows, const Pair* tokens, int64_t tokens_apart, int steps, bool added,
                                f32x16* sums, int64_t sums_apart, Meanwhile meanwhile) {
        f32x16* next = sums + sums_apart;
        if (!added) clear_sums();
        else tile_load<0>(sums, LINE), tile_load<2>(sums + TILE, LINE);
        if constexpr (STRIPS == 2)
            if (added) tile_load<1>(next, LINE), tile_load<3>(next + TILE, LINE);
        const char* row = (const char*)rows.first;
        for (int step = 0; step < steps; step++, row += rows.step_bytes, tokens += TILE) {
            meanwhile(step);
            tile_load<4>(row, rows.row_apart), tile_load<6>(tokens, LINE);
            tile_add_products<0, 4, 6>();
            tile_load<5>(row + rows.tile_apart, rows.row_apart);
            tile_add_products<2, 5, 6>();
            if constexpr (STRIPS == 2) {
                tile_load<7>(tokens + tokens_apart, LINE);
                tile_add_products<1, 4, 7>(), tile_add_products<3, 5, 7>();
            }
        }
        tile_store<0>(sums, LINE), tile_store<2>(sums + TILE, LINE);
        if constexpr (STRIPS == 2) tile_store<1>(next, LINE), tile_store<3>(next + TILE, LINE);
    }

    // Sums of TILES (two or four) tiles of rows with one strip, to which products are added one STEP after the other. Only one
    // of these is in the registers at a time.
    template <int TILES> class Column {
      public:
        explicit Column(f32x16* sums) : sums_(sums) { load_column<TILES>(sums); }
        ~Column() { store_column<TILES>(sums_); }

        // A step of rows, which lie one behind the other.
        void add(const bf16* rows, const Pair* tokens) {
            const char* row = (const char*)rows;
            tile_load<6>(tokens, LINE);
            tile_load<4>(row, LINE), tile_add_products<0, 4, 6>();
            tile_load<5>(row + TILE_BYTES, LINE), tile_add_products<1, 5, 6>();
            if constexpr (TILES == 4) {
                tile_load<4>(row + 2 * TILE_BYTES, LINE), tile_add_products<2, 4, 6>();
                tile_load<5>(row + 3 * TILE_BYTES, LINE), tile_add_products<3, 5, 6>();
            }
        }

      private:
        f32x16* sums_;
    };

  private:
    // A row of codes, widened and rounded: `place(column)` is where the numbers of a group go that begins with this column.
    template <class Place> static void widen_row(const Matrix& w, int row, Place place) {
#if WITH_AMX
        const char* codes = (const char*)w.codes + row * w.row_bytes;
        for (int group = 0; group < w.columns / GROUP; group++) {
            const Meaning meant = meaning_of(w, row, group);
            void* to = place(group * GROUP);
            if (w.format >= Q4_0) {  // codes that stand for sixteen numbers at most: these are rounded once, then looked up
                const f32x16 numbers = __builtin_convertvector(lane, f32x16) * meant.step + meant.least;
                const __m256i table = (__m256i)_mm512_cvtneps_pbh((__m512)numbers);
                const __m256i bytes = _mm256_cvtepu8_epi16(load<__m128i>(codes + group * HALF));
                const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(bytes), _mm256_srli_epi16(bytes, 4), 1);
                const __m512i which = _mm512_and_si512(both, _mm512_set1_epi16(15));
                store(to, _mm512_permutexvar_epi16(which, _mm512_castsi256_si512(table)));
            } else {
                f32x16 first, second;
                load_pair((const int8_t*)codes + group * GROUP, first, second);
                store(to, _mm512_cvtne2ps_pbh((__m512)(second * meant.step), (__m512)(first * meant.step)));
            }
        }
#else
        widen_codes<f32xN>(w, row, 0, w.columns, [&](int column, f32xN numbers) { store_rounded(place(column), numbers); });
#endif
    }
};
