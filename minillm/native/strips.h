// Sixteen tokens side by side, and what is done with such vectors whatever they are multiplied by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "vectors.h"

constexpr int TILE = 16;        // rows, and tokens
constexpr int STEP = 32;        // columns
constexpr int BOTH = 2 * TILE;  // rows of two tiles, which are multiplied at the same time

// One token's number in each lane.
typedef uint32_t u32x16 __attribute__((vector_size(64)));
constexpr u32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

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
