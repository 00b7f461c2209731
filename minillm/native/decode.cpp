// One decode pass of a Llama: the next token of each of a few sequences, from its embedding to its hidden state; and the
// product of a matrix with a few vectors, which makes logits of that.
//
// The same steps as in minillm/model.py, for the case in which memory is what they wait for: each weight is used for one
// token per sequence. All but the weights, the keys and the values is so small that it stays in the nearest cache, in
// float32. A layer is five phases; each begins when the work of the one before is done.

#include <algorithm>
#include <cmath>
#include <vector>

#include <omp.h>

#include "attention.h"
#include "crew.h"
#include "matvec.h"

enum CacheFormat { CACHE_FLOAT32, CACHE_BFLOAT16, CACHE_INT8 };

struct Layer {
    Matrix qkv, o, gate_up, down;
    const float *input_norm, *post_attention_norm;  // [hidden]
    CacheView cache;                                // of the first sequence
};

struct Model {
    const Layer* layers;
    const float* norm;  // [hidden]
    int32_t num_layers, hidden, intermediate, heads, kv_heads, head_dim, max_len, cache_format, batch;
    float eps;
};

namespace {

constexpr int PHASES_PER_LAYER = 5;
constexpr int PIECES_PER_THREAD = 4;  // of a phase, at least: more share better, fewer cost less to share
constexpr int PIECE_BYTES = 1 << 17;  // of weights: a longer piece reads no faster
constexpr int LEAST_POSITIONS = 32;   // of a piece of attention
constexpr int MOST_POSITIONS = 192;

// A vector per sequence, as the matrices want it. Each thread has its own, and computes it for itself where it needs it:
// that is sooner done than waiting for another to do it.
class Input {
  public:
    Input(int batch, int widest)
        : batch_(batch), widest_(widest), values_(size_t(batch) * widest), arranged_(values_.size()), codes_(values_.size()),
          scale_(size_t(batch) * (widest / GROUP + 1)), sum_(scale_.size()), last_sums_(size_t(batch) * LANES) {}

    float* row(int b) { return &values_[size_t(b) * widest_]; }
    Activation operator[](int b) {
        const size_t group = size_t(b) * (widest_ / GROUP + 1);
        return {row(b), &arranged_[size_t(b) * widest_], &codes_[size_t(b) * widest_], &scale_[group], &sum_[group],
                &last_sums_[size_t(b) * LANES]};
    }
    void ready_for(const Matrix& w) {
        for (int b = 0; b < batch_; b++) make_ready((*this)[b], w);
    }

  private:
    int batch_, widest_;
    std::vector<float> values_, arranged_;
    std::vector<int8_t> codes_;
    std::vector<float> scale_, sum_, last_sums_;
};

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    const float squares = float_dot(x, x, n);
    const float factor = 1 / std::sqrt(squares / n + eps);
    for (int i = 0; i < n; i++) out[i] = x[i] * factor * weight[i];
}

void rotate(const float* x, const float* cos, const float* sin, int head_dim, float* out) {
    const int half = head_dim / 2;
    for (int i = 0; i < half; i++) {
        const float first = x[i], second = x[i + half];
        out[i] = first * cos[i] - second * sin[i];
        out[i + half] = second * cos[i] + first * sin[i];
    }
}

float silu(float x) { return x / (1 + std::exp(-x)); }

// Into how many pieces the `rows` of a product with W are shared out.
int pieces_of(const Matrix& w, int rows) {
    const int64_t by_size = w.rows * w.row_bytes / PIECE_BYTES, least = PIECES_PER_THREAD * omp_get_num_threads();
    return int(std::min<int64_t>(rows, std::max(by_size, least)));
}

// Into how many spans the positions are shared out: `wanted`, but with neither too few positions nor too many.
int spans_of(int length, int wanted) {
    return std::max({1, std::min(length / LEAST_POSITIONS, wanted), length / MOST_POSITIONS});
}

// `take(b, row, product)` for each row from..to of W and each sequence.
template <class Take> void products(const Matrix& w, int from, int to, int batch, Input& input, Take take) {
    for (int row = from; row < to; row++)
        for (int b = 0; b < batch; b++) take(b, row, row_dot(w, row, input[b]) + (w.bias ? w.bias[row] : 0));
}

// `work(from, to)` for each piece of 0..rows, once `input` is prepared and made ready for W.
template <class Prepare, class Work>
void share_rows(Crew& crew, int phase, const Matrix& w, int rows, Input& input, Prepare prepare, Work work) {
    const int pieces = pieces_of(w, rows);
    auto get_ready = [&] { prepare(); input.ready_for(w); };
    crew.share(phase, pieces, get_ready,
               [&](int piece) { work(int64_t(rows) * piece / pieces, int64_t(rows) * (piece + 1) / pieces); });
}

// `take(b, row, product)` for each row of W and each sequence.
template <class Prepare, class Take>
void multiply(Crew& crew, int phase, const Matrix& w, int batch, Input& input, Prepare prepare, Take take) {
    share_rows(crew, phase, w, w.rows, input, prepare, [&](int from, int to) { products(w, from, to, batch, input, take); });
}

template <class Number> class Pass {
  public:
    Pass(const Model& model, int position, const float* cos, const float* sin, float* x, int threads)
        : m(model), position(position), length(position + 1), cos(cos), sin(sin), x(x),
          queries(model.heads / model.kv_heads), qkv_width((model.heads + 2 * model.kv_heads) * model.head_dim),
          mixed_width(model.heads * model.head_dim),
          spans(spans_of(length, PIECES_PER_THREAD * threads / (m.batch * m.kv_heads) + 1)),
          crew(PHASES_PER_LAYER * model.num_layers), qkv(size_t(m.batch) * qkv_width),
          activated(size_t(m.batch) * m.intermediate), mixed(size_t(m.batch) * spans * mixed_width),
          parts(size_t(m.batch) * spans * m.heads) {
        for (size_t i = 0; i < parts.size(); i++) parts[i].mixed = &mixed[i * m.head_dim];
    }

    // What every thread does.
    void run() {
        Input input(m.batch, std::max({m.hidden, m.intermediate, mixed_width}));
        std::vector<float> q(size_t(m.batch) * mixed_width);
        for (int l = 0; l < m.num_layers; l++) {
            const Layer& layer = m.layers[l];
            const int phase = PHASES_PER_LAYER * l;
            auto normalize = [&](const float* weight) {
                for (int b = 0; b < m.batch; b++) rms_norm(x + size_t(b) * m.hidden, weight, m.hidden, m.eps, input.row(b));
            };
            auto add = [&](int b, int row, float product) { x[size_t(b) * m.hidden + row] += product; };

            multiply(crew, phase, layer.qkv, m.batch, input, [&] { normalize(layer.input_norm); },
                     [&](int b, int row, float product) { qkv[size_t(b) * qkv_width + row] = product; });
            attend_all(phase + 1, layer.cache, q);
            multiply(crew, phase + 2, layer.o, m.batch, input, [&] { join_all(input); }, add);
            gate_and_up(phase + 3, layer.gate_up, input, [&] { normalize(layer.post_attention_norm); });
            multiply(crew, phase + 4, layer.down, m.batch, input, [&] { take_activated(input); }, add);
        }
    }

  private:
    const Model& m;
    const int position, length;
    const float *cos, *sin;  // [head_dim / 2]
    float* x;                // [batch, hidden], the residual stream
    const int queries, qkv_width, mixed_width, spans;
    Crew crew;
    std::vector<float> qkv, activated, mixed;  // [batch, qkv_width], [batch, intermediate], [batch, span, heads, head_dim]
    std::vector<Part> parts;                   // [batch, span, heads]

    // A piece is one key head of one sequence, over one span of positions. The new token's key and value are written by
    // whoever has the span that they stand in.
    void attend_all(int phase, const CacheView& cache, std::vector<float>& q) {
        auto rotate_queries = [&] {
            std::vector<float> turned(m.head_dim);
            for (int b = 0; b < m.batch; b++)
                for (int h = 0; h < m.heads; h++) {
                    rotate(&qkv[size_t(b) * qkv_width + h * m.head_dim], cos, sin, m.head_dim, turned.data());
                    arrange(turned.data(), m.head_dim, &q[size_t(b) * mixed_width + h * m.head_dim], (Number*)0);
                }
        };
        crew.share(phase, m.batch * m.kv_heads * spans, rotate_queries, [&](int piece) {
            const int span = piece % spans, head = piece / spans % m.kv_heads, b = piece / spans / m.kv_heads;
            const int from = int64_t(length) * span / spans, to = int64_t(length) * (span + 1) / spans;
            const size_t row = (size_t(b) * m.kv_heads + head) * m.max_len;
            Number *k = (Number*)cache.keys + row * m.head_dim, *v = (Number*)cache.values + row * m.head_dim;
            float *ks = cache.key_scale ? cache.key_scale + row : nullptr;
            float *vs = cache.value_scale ? cache.value_scale + row : nullptr;
            if (to == length) {
                const float* key = &qkv[size_t(b) * qkv_width + (m.heads + head) * m.head_dim];
                std::vector<float> turned(m.head_dim);
                rotate(key, cos, sin, m.head_dim, turned.data());
                write(turned.data(), k + size_t(position) * m.head_dim, ks + position);
                write(key + m.kv_heads * m.head_dim, v + size_t(position) * m.head_dim, vs + position);
            }
            attend(&q[size_t(b) * mixed_width + head * queries * m.head_dim], queries, k, v, ks, vs, from, to, m.head_dim,
                   &parts[(size_t(b) * spans + span) * m.heads + head * queries]);
        });
    }

    void write(const float* from, float* to, float*) { std::copy(from, from + m.head_dim, to); }
    void write(const float* from, bf16* to, float*) {
        for (int i = 0; i < m.head_dim; i++) narrow(from[i], to[i]);
    }
    void write(const float* from, int8_t* to, float* scale) {
        const float most = largest_magnitude(from, m.head_dim);
        *scale = most / 127;
        for (int i = 0; i < m.head_dim; i++) to[i] = int8_t(most > 0 ? std::nearbyint(from[i] * (127 / most)) : 0);
    }

    void join_all(Input& input) {
        std::vector<float> joined(m.head_dim);
        for (int b = 0; b < m.batch; b++)
            for (int h = 0; h < m.heads; h++) {
                join_parts(&parts[size_t(b) * spans * m.heads + h], spans, m.heads, m.head_dim, joined.data());
                restore(joined.data(), m.head_dim, input.row(b) + h * m.head_dim, (Number*)0);
            }
    }

    template <class Prepare> void gate_and_up(int phase, const Matrix& w, Input& input, Prepare prepare) {
        const int half = w.rows / 2;
        share_rows(crew, phase, w, half, input, prepare, [&](int from, int to) {
            auto gate = [&](int b, int row, float x) { activated[size_t(b) * half + row] = silu(x); };
            auto up = [&](int b, int row, float x) { activated[size_t(b) * half + row - half] *= x; };
            products(w, from, to, m.batch, input, gate);
            products(w, from + half, to + half, m.batch, input, up);
        });
    }

    void take_activated(Input& input) {
        for (int b = 0; b < m.batch; b++)
            std::copy_n(&activated[size_t(b) * m.intermediate], m.intermediate, input.row(b));
    }
};

template <class Number> void run_pass(const Model& m, int position, const float* cos, const float* sin, float* x) {
    Pass<Number> pass(m, position, cos, sin, x, omp_get_max_threads());
#pragma omp parallel
    pass.run();
}

}  // namespace

// x: [batch, hidden], the new tokens' embeddings; becomes their hidden states after the final norm. cos, sin:
// [head_dim / 2], for the position at which all of them stand.
extern "C" void decode_layers(const Model* m, int position, const float* cos, const float* sin, float* x) {
    switch (m->cache_format) {
        case CACHE_FLOAT32: run_pass<float>(*m, position, cos, sin, x); break;
        case CACHE_BFLOAT16: run_pass<bf16>(*m, position, cos, sin, x); break;
        default: run_pass<int8_t>(*m, position, cos, sin, x);
    }
    for (int b = 0; b < m->batch; b++) {
        float* row = x + size_t(b) * m->hidden;
        rms_norm(row, m->norm, m->hidden, m->eps, row);
    }
}

// out: [batch, rows]; x: [batch, columns]
extern "C" void multiply_rows(const Matrix* w, const float* x, int batch, float* out) {
    Crew crew(1);
#pragma omp parallel
    {
        Input input(batch, w->columns);
        auto copy = [&] {
            for (int b = 0; b < batch; b++) std::copy_n(x + size_t(b) * w->columns, w->columns, input.row(b));
        };
        multiply(crew, 0, *w, batch, input, copy,
                 [&](int b, int row, float product) { out[size_t(b) * w->rows + row] = product; });
    }
}
