// The kinds of `CacheKernels`, each for the numbers that a cache keeps. They are a unit of their own because the compiler takes
// as long for them as for the rest of a decode step: so it works on both at the same time.

#include "attention.h"
#include "tile_attention.h"

bool attends_by_tiles(const Model& m) {
    return m.has_tiles && m.cache_format == CACHE_BFLOAT16 && m.head_dim % STEP == 0 && m.head_dim <= MOST_TILE_HEAD_DIM;
}

CacheKernels cache_kernels(const Model& m) {
    if (attends_by_tiles(m)) return tile_kernels();
    switch (m.cache_format) {
        case CACHE_FLOAT32: return kernels_for<float>(m.head_dim);
        case CACHE_BFLOAT16: return kernels_for<bf16>(m.head_dim);
        default: return kernels_for<int8_t>(m.head_dim);
    }
}

void join_parts(const Part* parts, int count, int stride, int head_dim, float* out) {
    float highest = -INFINITY, total = 0;
    for (int n = 0; n < count; n++) highest = std::max(highest, parts[n * stride].highest);
    for (int first = 0; first < count; first += LANES) {
        const int some = std::min(LANES, count - first);
        const Part* here = parts + first * stride;
        f32x8 shrink{};
        for (int n = 0; n < some; n++) shrink[n] = here[n * stride].highest - highest;
        shrink = exponential(shrink);
        for (int n = 0; n < some; n++) total += shrink[n] * here[n * stride].total;
        for (int i = 0; i < head_dim; i += LANES) {
            f32x8 mixed = first ? load8(out + i) : f32x8{};
            for (int n = 0; n < some; n++) mixed += shrink[n] * load8(here[n * stride].mixed + i);
            store(out + i, mixed);
        }
    }
    for (int i = 0; i < head_dim; i++) out[i] /= total;
}
