// What a pass is handed: the model, and its new tokens.
#pragma once

#include "cache.h"
#include "weights.h"

struct Layer {
    Matrix qkv, o, gate_up, down;
    const float *input_norm, *post_attention_norm;  // [hidden]
    CacheView cache;
};

struct Model {
    const Layer* layers;
    const float* norm;  // [hidden]
    int32_t num_layers, hidden, intermediate, heads, kv_heads, head_dim, cache_format;
    int32_t has_tiles;  // whether this processor has them and we may use them
    float eps;
};

// The new tokens of some sequences: where the first of each stands, how many there are (one, in a decode pass), and in which
// rows of the cache the sequence lies (`Rows`).
struct Tokens {
    const int32_t *positions, *counts, *tables;                 // 2 x [batch], [batch, blocks_per_table]
    const float *cos, *sin;                                     // [tokens, head_dim / 2], or [head_dim / 2] for all
    int64_t rows_per_block, rows_per_position, rows_per_head;
    int32_t batch, blocks_per_table, block_size, angles_apart;  // from one token's angles to the next one's: 0 for all

    Rows rows_of(int b) const {
        return {tables + size_t(b) * blocks_per_table, block_size, rows_per_block, rows_per_position, rows_per_head};
    }
};
