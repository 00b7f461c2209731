// Products of tiles: 16 rows of a matrix with 16 tokens, 32 columns at a time, bfloat16 in, sums in float32. Intel's AMX has
// eight registers of that size and an instruction for the product; elsewhere the same is done in plain C++, which nobody would
// choose for its speed: it is there so that what is built of tiles can be tested on any machine.
#pragma once

#include <cstdint>
#include <cstring>

#include "strips.h"
#include "weights.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__linux__)
#define WITH_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

static inline void clear_sums() { tile_clear<0>(), tile_clear<1>(), tile_clear<2>(), tile_clear<3>(); }

// Two or four tiles of sums, which lie one behind the other, from or to memory.
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
