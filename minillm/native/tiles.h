// Products of tiles: 16 rows of a matrix with 16 tokens, 32 columns at a time, bfloat16 in, sums in float32. Intel's AMX has
// eight registers of that size and an instruction for the product; elsewhere the same is done in plain C++, which nobody would
// choose for its speed: it is there so that what is built of tiles can be tested on any machine.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "vectors.h"
#include "weights.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__linux__)
#define WITH_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

constexpr int TILE = 16;                  // rows, and tokens
constexpr int STEP = 32;                  // columns
constexpr int TILE_BYTES = TILE * LINE;

// Registers 0..3 have sums, two tiles of rows by two of tokens; 4 and 5 the rows; 6 and 7 the tokens.
#if WITH_AMX

// Linux gives a process the registers only if it asks.
static bool may_use_tiles() {
    constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

struct TileShapes {  // as the processor reads them
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Shapes all registers of this thread, as long as it lives; then gives them back to whoever had shaped them before.
class Tiles {
  public:
    Tiles() {
        TileShapes all;
        for (int i = 0; i < 8; i++) all.row_bytes[i] = LINE, all.rows[i] = TILE;
        asm volatile("sttilecfg %0" : "=m"(before_));
        asm volatile("ldtilecfg %0" ::"m"(all));
    }
    ~Tiles() {
        if (before_.palette) asm volatile("ldtilecfg %0" ::"m"(before_));
        else asm volatile("tilerelease");
    }

  private:
    TileShapes before_;
};

// The rows of a tile are `apart` bytes from each other.
template <int N> static inline void tile_load(const void* from, int64_t apart) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(apart), "i"(N) : "memory");
}
template <int N> static inline void tile_store(void* to, int64_t apart) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(apart), "i"(N) : "memory");
}
template <int N> static inline void tile_clear() { asm volatile("tilezero %%tmm%c0" ::"i"(N)); }
template <int SUMS, int ROWS, int TOKENS> static inline void tile_add_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(ROWS), "i"(TOKENS));
}

#else

static bool may_use_tiles() { return false; }

static thread_local char tile_registers[8][TILE_BYTES];

struct Tiles {};

template <int N> static inline void tile_load(const void* from, int64_t apart) {
    for (int row = 0; row < TILE; row++) std::memcpy(tile_registers[N] + row * LINE, (const char*)from + row * apart, LINE);
}
template <int N> static inline void tile_store(void* to, int64_t apart) {
    for (int row = 0; row < TILE; row++) std::memcpy((char*)to + row * apart, tile_registers[N] + row * LINE, LINE);
}
template <int N> static inline void tile_clear() { std::memset(tile_registers[N], 0, TILE_BYTES); }
template <int SUMS, int ROWS, int TOKENS> static inline void tile_add_products() {
    for (int row = 0; row < TILE; row++)
        for (int token = 0; token < TILE; token++) {
            float sum;
            char* at = tile_registers[SUMS] + row * LINE + token * sizeof sum;
            std::memcpy(&sum, at, sizeof sum);
            for (int column = 0; column < STEP; column++) {
                bf16 w, x;  // a row's columns are neighbours; of the tokens, two columns of one token are
                std::memcpy(&w, tile_registers[ROWS] + row * LINE + column * sizeof w, sizeof w);
                std::memcpy(&x, tile_registers[TOKENS] + column / 2 * LINE + (2 * token + column % 2) * sizeof x, sizeof x);
                sum += widen(w) * widen(x);
            }
            std::memcpy(at, &sum, sizeof sum);
        }
}

#endif

// One token's number in each lane.
typedef uint32_t u32x16 __attribute__((vector_size(64)));
constexpr u32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Two rows of tiles, `row_apart` bytes from row to row and `tile_apart` between the two; step by step `step_bytes` further.
struct TileRows {
    const void* first;
    int64_t row_apart, tile_apart, step_bytes;
};

// Memory is slow to answer: while tiles are multiplied, the next rows of a matrix are asked for, a little in each step. They go
// to the core's second cache, not the nearest: there, they would drive out what is being multiplied.
class RowsAhead {
  public:
    // Two tiles' rows behind those from `one` and from `other`, in `steps` steps.
    RowsAhead(const Matrix& w, int one, int other, int steps)
        : lines_((TILE * w.row_bytes + LINE - 1) / LINE), per_step_(lines_ / steps + 1) {
        const int next = other == one + TILE ? 2 * TILE : TILE;
        one_ = (const char*)w.codes + (one + next) * w.row_bytes;
        other_ = (const char*)w.codes + (other + next) * w.row_bytes;
    }

    void ask() {
        for (int64_t n = 0; n < per_step_ && asked_ < lines_; n++, asked_++)
            __builtin_prefetch(one_ + asked_ * LINE, 0, 2), __builtin_prefetch(other_ + asked_ * LINE, 0, 2);
    }

  private:
    const char *one_, *other_;
    int64_t lines_, per_step_, asked_ = 0;
};

// Adds to the sums in registers the products of two tiles of rows with STRIPS (one or two) of tokens, over `steps` steps. A
// strip's tiles lie one behind the other; `strip_bytes` to the next strip. Tiles are multiplied beside whatever else a core
// does: it does `meanwhile(step)`.
template <int STRIPS, class Meanwhile>
static inline void multiply_tiles(const TileRows& rows, const void* tokens, int64_t strip_bytes, int steps,
                                  Meanwhile meanwhile) {
    const char *row = (const char*)rows.first, *token = (const char*)tokens;
    for (int step = 0; step < steps; step++, row += rows.step_bytes, token += TILE_BYTES) {
        meanwhile(step);
        tile_load<4>(row, rows.row_apart), tile_load<6>(token, LINE);
        tile_add_products<0, 4, 6>();
        tile_load<5>(row + rows.tile_apart, rows.row_apart);
        tile_add_products<2, 5, 6>();
        if constexpr (STRIPS == 2) {
            tile_load<7>(token + strip_bytes, LINE);
            tile_add_products<1, 4, 7>(), tile_add_products<3, 5, 7>();
        }
    }
}

// The sums in registers, from or to memory: a tile's rows lie one behind the other, `tile_bytes` from the one tile of rows to
// the other.
template <int STRIPS> static inline void load_sums(const float* sums, int64_t tile_bytes, int64_t strip_bytes) {
    const char* at = (const char*)sums;
    tile_load<0>(at, LINE), tile_load<2>(at + tile_bytes, LINE);
    if constexpr (STRIPS == 2) tile_load<1>(at + strip_bytes, LINE), tile_load<3>(at + strip_bytes + tile_bytes, LINE);
}
template <int STRIPS> static inline void store_sums(float* sums, int64_t tile_bytes, int64_t strip_bytes) {
    char* at = (char*)sums;
    tile_store<0>(at, LINE), tile_store<2>(at + tile_bytes, LINE);
    if constexpr (STRIPS == 2) tile_store<1>(at + strip_bytes, LINE), tile_store<3>(at + strip_bytes + tile_bytes, LINE);
}
static inline void clear_sums() { tile_clear<0>(), tile_clear<1>(), tile_clear<2>(), tile_clear<3>(); }

// The same for the products of two or four tiles of rows, which lie one behind the other, with one tile of tokens.
template <int TILES> static inline void multiply_column(const void* rows, const void* tokens) {
    const char* row = (const char*)rows;
    tile_load<6>(tokens, LINE);
    tile_load<4>(row, LINE), tile_add_products<0, 4, 6>();
    tile_load<5>(row + TILE_BYTES, LINE), tile_add_products<1, 5, 6>();
    if constexpr (TILES == 4) {
        tile_load<4>(row + 2 * TILE_BYTES, LINE), tile_add_products<2, 4, 6>();
        tile_load<5>(row + 3 * TILE_BYTES, LINE), tile_add_products<3, 5, 6>();
    }
}
template <int TILES> static inline void load_column(const void* sums) {
    const char* at = (const char*)sums;
    tile_load<0>(at, LINE), tile_load<1>(at + TILE_BYTES, LINE);
    if constexpr (TILES == 4) tile_load<2>(at + 2 * TILE_BYTES, LINE), tile_load<3>(at + 3 * TILE_BYTES, LINE);
}
template <int TILES> static inline void store_column(void* sums) {
    char* at = (char*)sums;
    tile_store<0>(at, LINE), tile_store<1>(at + TILE_BYTES, LINE);
    if constexpr (TILES == 4) tile_store<2>(at + 2 * TILE_BYTES, LINE), tile_store<3>(at + 3 * TILE_BYTES, LINE);
}

// Sixteen rows of sixteen numbers become sixteen columns: neighbours change places, then pairs of them, fours, eights.
#if defined(__clang__)
#define CHOSEN(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CHOSEN(a, b, ...) __builtin_shuffle(a, b, u32x16{__VA_ARGS__})
#endif
template <int APART, size_t... Lane> static inline void exchange(u32x16& one, u32x16& other, std::index_sequence<Lane...>) {
    const u32x16 a = one, b = other;
    one = CHOSEN(a, b, (Lane & APART ? TILE + Lane - APART : Lane)...);
    other = CHOSEN(a, b, (Lane & APART ? TILE + Lane : Lane + APART)...);
}
template <int APART> static inline void exchange_all(u32x16* rows) {
    for (int i = 0; i < TILE; i++)
        if (!(i & APART)) exchange<APART>(rows[i], rows[i + APART], std::make_index_sequence<TILE>());
}
static inline void transpose(u32x16* rows) {
    exchange_all<8>(rows), exchange_all<4>(rows), exchange_all<2>(rows), exchange_all<1>(rows);
}
