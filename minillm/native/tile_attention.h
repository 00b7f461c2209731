// Attention of one new token over a cache in bfloat16, by tiles: what attention.h does, for processors that have them.
//
// A tile of the cache, 16 positions by 32 features, is multiplied as it lies there, keys and values alike; all that has to
// change places is a few scores. Queries and weights are float32, which tiles are not: each becomes two numbers of bfloat16,
// whose sum has 16 bits. That costs nothing, for a product of tiles takes as long with three queries as with sixteen.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "tiles.h"

constexpr int CHUNK = 256;    // positions whose scores are held at a time
constexpr int TOGETHER = 4;   // tiles of positions that are multiplied at a time: each has to wait for its own last product
constexpr int MIXED = 4;      // queries whose values are mixed at a time: each has four rows of a tile
constexpr int SCORED = 8;     // queries whose scores are computed at a time: each has two columns
constexpr int MOST_TILE_HEAD_DIM = 256;

// The keys and values of a span are asked for, a row of each at a time, of one head after the other: memory is faster where it
// is read in several places in turn. Much at once would hold up whoever asks.
class CacheAhead {
  public:
    CacheAhead(const CacheView& cache, const Span& span, int kv_heads, int head_dim)
        : keys_((const char*)cache.keys), values_((const char*)cache.values), row_bytes_(head_dim * sizeof(bf16)),
          head_bytes_(span.where.rows_per_head * row_bytes_), kv_heads_(kv_heads),
          count_(std::min(CHUNK, span.to - span.from)) {
        span.where.of(span.from, count_, row_of_);
    }

    void ask() {
        if (position_ < count_) ask_for_a_row();
    }

  private:
    const char *keys_, *values_;
    const int64_t row_bytes_, head_bytes_;
    const int kv_heads_, count_;
    int position_ = 0, head_ = 0;
    int64_t row_of_[CHUNK];

    void __attribute__((noinline)) ask_for_a_row() {
        const int64_t at = row_of_[position_] * row_bytes_ + head_ * head_bytes_;
        for (int64_t byte = 0; byte < row_bytes_; byte += LINE)
            __builtin_prefetch(keys_ + at + byte, 0, 2), __builtin_prefetch(values_ + at + byte, 0, 2);
        if (++head_ == kv_heads_) head_ = 0, position_++;
    }
};

// Queries of one key head, at most SCORED, in tiles of 32 features: each query has a column for its upper bits, and one for the
// rest `columns_apart` further on. The fewer columns, the shorter is the way back from products to scores.
static int columns_apart(int queries) { return queries <= MIXED ? MIXED : SCORED; }

static void arrange_in_columns(const float* q, int queries, int head_dim, u32x16* tiles) {
    const float factor = 1 / std::sqrt(float(head_dim));
    for (int i = 0; i < head_dim; i += STEP, tiles += TILE) {
        std::fill_n(tiles, TILE, u32x16{});
        for (int j = 0; j < queries; j++) {
            alignas(LINE) bf16 upper[STEP], rest[STEP];
            for (int n = 0; n < STEP; n += TILE) {
                const f32x16 x = load<f32x16>(q + j * head_dim + i + n) * factor;
                const f32x16 coarse = (f32x16)(rounded(x) & int32_t(UPPER_HALF));
                store_rounded(upper + n, coarse), store_rounded(rest + n, x - coarse);
            }
            tiles[j] = load<u32x16>(upper), tiles[columns_apart(queries) + j] = load<u32x16>(rest);
        }
        transpose(tiles);
    }
}

// One key head over one span.
class TileAttention {
  public:
    TileAttention(const bf16* keys, const bf16* values, const Span& span, int head_dim, CacheAhead& ahead)
        : keys_(keys), values_(values), where_(span.where), from_(span.from), to_(span.to), head_dim_(head_dim),
          ahead_(ahead) {}

    // queries: at most SCORED, arranged in columns.
    void attend(const u32x16* q, int queries, Part* parts) {
        for (int p = from_; p < to_; p += CHUNK) {
            const int end = std::min(p + CHUNK, to_), tiles = (end - p + TILE - 1) / TILE;
            for (int n = 0; n < tiles; n += TOGETHER)
                queries <= MIXED ? score<MIXED>(q, p, n, end, queries) : score<SCORED>(q, p, n, end, queries);
            for (int j = 0; j < queries; j += MIXED) {
                const int some = std::min(MIXED, queries - j);
                for (int n = 0; n < some; n++) weigh(scores_[j + n], tiles, n, parts[j + n]);
                for (int i = 0; i < head_dim_; i += 2 * STEP)
                    i + STEP < head_dim_ ? mix<2>(p, end, i, some, parts + j) : mix<1>(p, end, i, some, parts + j);
            }
        }
    }

  private:
    const bf16 *keys_, *values_;  // of the head
    const Rows& where_;
    const int from_, to_, head_dim_;
    CacheAhead& ahead_;
    u32x16 products_[TOGETHER][TILE];
    f32x16 scores_[SCORED][CHUNK / TILE];
    u32x16 weights_[CHUNK / TILE][TILE];
    f32x16 mixed_[2][2][TILE];
    bf16 copies_[TOGETHER][TILE * MOST_TILE_HEAD_DIM];

    // Sixteen positions from `from` on, as a tile takes them: in the cache, where they are equally far apart there; else
    // copied, with zeros behind the last.
    struct Laid {
        const bf16* first;
        int64_t apart;  // bytes
    };

    Laid lay(const bf16* rows, int from, int to, bf16* copy) const {
        if (from + TILE <= to && from % where_.block_size + TILE <= where_.block_size)
            return {rows + where_.at(from) * head_dim_, int64_t(where_.rows_per_position * head_dim_ * sizeof(bf16))};
        const int count = std::min(TILE, to - from);
        int64_t row_of[TILE];
        where_.of(from, count, row_of);
        for (int n = 0; n < count; n++) std::copy_n(rows + row_of[n] * head_dim_, head_dim_, copy + n * head_dim_);
        std::fill(copy + count * head_dim_, copy + TILE * head_dim_, bf16(0));
        return {copy, int64_t(head_dim_ * sizeof(bf16))};
    }

    // Some tiles of positions, from tile n of the chunk on. APART: the columns of a query.
    template <int APART> void score(const u32x16* q, int p, int n, int end, int queries) {
        const int at = p + n * TILE, tiles = std::min(TOGETHER, (end - at + TILE - 1) / TILE);
        Laid laid[TOGETHER];
        for (int tile = 0; tile < TOGETHER; tile++)
            laid[tile] = tile < tiles ? lay(keys_, at + tile * TILE, end, copies_[tile]) : laid[0];
        clear_sums();
        for (int i = 0; i < head_dim_; i += STEP) {
            tile_load<6>(q + i / STEP * TILE, LINE);
            ahead_.ask(), tile_load<4>(laid[0].first + i, laid[0].apart), tile_add_products<0, 4, 6>();
            ahead_.ask(), tile_load<5>(laid[1].first + i, laid[1].apart), tile_add_products<1, 5, 6>();
            ahead_.ask(), tile_load<4>(laid[2].first + i, laid[2].apart), tile_add_products<2, 4, 6>();
            ahead_.ask(), tile_load<5>(laid[3].first + i, laid[3].apart), tile_add_products<3, 5, 6>();
        }
        store_column<TOGETHER>(products_[0]);
        for (int tile = 0; tile < tiles; tile++) {
            ahead_.ask();
            u32x16 columns[TILE];
            std::copy_n(products_[tile], TILE, columns);
            transpose(columns);
            const int left = end - (at + tile * TILE);
            for (int j = 0; j < APART && j < queries; j++) {
                ahead_.ask();
                const f32x16 score = (f32x16)columns[j] + (f32x16)columns[APART + j];
                scores_[j][n + tile] = left >= TILE || lane < unsigned(left) ? score : f32x16{} - INFINITY;
            }
        }
    }

    // One query's scores become weights. The values lie in pairs of features, and a product of tiles adds the two of a pair up:
    // so each weight is in one row that meets the even features, beside zeros, and in one that meets the odd ones; its upper
    // bits in two such rows, and the rest in two.
    void weigh(const f32x16* scores, int tiles, int place, Part& part) {
        f32x16 most = f32x16{} + part.highest, total{};
        for (int n = 0; n < tiles; n++) most = larger(scores[n], most);
        const float highest = largest(most);
        for (int n = 0; n < tiles; n++) {
            ahead_.ask();
            const f32x16 weight = exponential(scores[n] - highest);
            total += weight;
            const u32x16 upper = (u32x16)weight & UPPER_HALF, rest = (u32x16)(weight - (f32x16)upper);
            u32x16* rows = &weights_[n][4 * place];
            rows[0] = upper >> 16, rows[1] = upper, rows[2] = rest >> 16, rows[3] = rest & UPPER_HALF;
        }
        if (part.highest > -INFINITY) {
            const float shrink = exponential(f32x8{} + (part.highest - highest))[0];
            part.total *= shrink;
            for (int i = 0; i < head_dim_; i++) part.mixed[i] *= shrink;
        }
        part.highest = highest;
        part.total += sum(total);
    }

    // The values' features from `first` on, COLUMNS * 32 of them. Every other tile of positions has sums of its own.
    template <int COLUMNS> void mix(int p, int end, int first, int queries, Part* parts) {
        clear_sums();
        for (int n = 0; p + n * TILE < end; n++) {
            const Laid laid = lay(values_, p + n * TILE, end, copies_[0]);
            n % 2 ? add_values<2, COLUMNS>(weights_[n], laid.first + first, laid.apart)
                  : add_values<0, COLUMNS>(weights_[n], laid.first + first, laid.apart);
        }
        store_column<4>(mixed_);
        for (int column = 0; column < COLUMNS; column++)
            for (int j = 0; j < queries; j++) {
                const f32x16 *one = &mixed_[0][column][4 * j], *other = &mixed_[1][column][4 * j];
                float *even = parts[j].mixed + first + column * STEP, *odd = even + TILE;
                store(even, load<f32x16>(even) + (one[0] + one[2]) + (other[0] + other[2]));
                store(odd, load<f32x16>(odd) + (one[1] + one[3]) + (other[1] + other[3]));
            }
    }

    template <int SUMS, int COLUMNS> void add_values(const void* weights, const bf16* values, int64_t apart) {
        tile_load<4>(weights, LINE);
        ahead_.ask(), tile_load<5>(values, apart), tile_add_products<SUMS, 4, 5>();
        if constexpr (COLUMNS == 2) ahead_.ask(), tile_load<6>(values + STEP, apart), tile_add_products<SUMS + 1, 4, 6>();
    }
};

static void attend_by_tiles(const float* q, int kv_heads, int queries, const CacheView& cache, const Span& span,
                            const Span& next, int head_dim, Part* parts) {
    clear(parts, kv_heads * queries, head_dim);
    CacheAhead ahead(cache, next, kv_heads, head_dim);
    const u32x16* tiles = (const u32x16*)q;
    for (int head = 0; head < kv_heads; head++) {
        const int64_t first = head * span.where.rows_per_head * head_dim;
        TileAttention attention((const bf16*)cache.keys + first, (const bf16*)cache.values + first, span, head_dim, ahead);
        for (int j = 0; j < queries; j += SCORED, tiles += head_dim / STEP * TILE)
            attention.attend(tiles, std::min(SCORED, queries - j), parts + head * queries + j);
    }
}

static CacheKernels tile_kernels() {
    return {
        [](const float* q, int kv_heads, int queries, int head_dim, float* to) {
            u32x16* tiles = (u32x16*)to;
            for (int head = 0; head < kv_heads; head++, q += queries * head_dim)
                for (int j = 0; j < queries; j += SCORED, tiles += head_dim / STEP * TILE)
                    arrange_in_columns(q + j * head_dim, std::min(SCORED, queries - j), head_dim, tiles);
        },
        [](int kv_heads, int queries, int head_dim) {
            const int groups = (queries + SCORED - 1) / SCORED;
            return size_t(kv_heads) * groups * (head_dim / STEP) * TILE_BYTES / sizeof(float);
        },
        attend_by_tiles,
        [](const float* from, int n, float* to) { restore<f32x16>(from, n, to, (bf16*)0); },
    };
}
