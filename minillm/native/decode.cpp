// One decode pass of a Llama: the next token of each of a few sequences, from its embedding to its hidden state; and the
// product of a matrix with a few vectors, which makes logits of that.
//
// The same steps as in minillm/model.py, for the case in which memory is what they wait for: each weight is used for one
// token per sequence. All but the weights, the keys and the values is so small that it stays in the nearest cache, in
// float32. A layer is five phases; each begins when the work of the one before is done.

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <omp.h>

#include "array.h"
#include "cache_kernels.h"
#include "crew.h"
#include "matmul.h"
#include "matvec.h"
#include "pass.h"
#include "tiles.h"

namespace {

constexpr int PHASES_PER_LAYER = 5;
constexpr int PIECES_PER_THREAD = 4;  // of a phase, at least: more share better, fewer cost less to share
constexpr int PIECE_BYTES = 1 << 17;  // of weights: a longer piece reads no faster
constexpr int TILES_PER_PIECE = 12;    // where tiles are computed: they take longer, and the last piece is waited for
constexpr int SPANS_PER_THREAD = 2;   // of positions, of one sequence alone: each makes a part that has to be joined
constexpr int LEAST_POSITIONS = 32;   // of a span; and spans begin at a multiple of it
constexpr int MOST_POSITIONS = 192;
constexpr int MOST_HEAD_DIM = 1024;   // room on the stack for a head

// A vector per sequence, as the matrices want it. Each thread has its own, and computes it for itself where it needs it:
// that is sooner done than waiting for another to do it.
class Input {
  public:
    Input(int batch, int widest)
        : batch_(batch), widest_((widest + QUAD * GROUP - 1) / (QUAD * GROUP) * (QUAD * GROUP)),
          values_(size_t(batch) * widest_), arranged_(values_.size()), fine_(values_.size()), coarse_(values_.size()),
          scale_(values_.size() / GROUP), sum_(scale_.size()), last_sums_(size_t(batch) * LANES) {}

    float* row(int b) { return &values_[size_t(b) * widest_]; }
    Activation operator[](int b) {
        const size_t at = size_t(b) * widest_, group = at / GROUP;
        return {row(b), &arranged_[at], &fine_[at], &coarse_[at], &scale_[group], &sum_[group],
                &last_sums_[size_t(b) * LANES]};
    }
    void ready_for(const Matrix& w) {
        for (int b = 0; b < batch_; b++)
            if (by_tiles(w, batch_)) make_ready_for_tiles((*this)[b], w);
            else make_ready((*this)[b], w);
    }
    int batch() const { return batch_; }
    int apart() const { return widest_; }  // from a vector to the next

  private:
    int batch_, widest_;
    std::vector<float> values_, arranged_;
    std::vector<int16_t> fine_;
    std::vector<int8_t> coarse_;
    std::vector<float> scale_, sum_, last_sums_;
};

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    float squares;
    float_dots<1>(x, 0, x, n, &squares);
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

void gate(float* x, const float* y, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) store(x + i, silu_times(load8(x + i), load8(y + i)));
    for (; i < n; i++) x[i] = silu_times(f32x8{} + x[i], f32x8{} + y[i])[0];
}

// Into how many pieces the `rows` of a product with W are shared out, which are computed `unit` at a time.
int pieces_of(const Matrix& w, int rows, int unit) {
    if (unit > 1) return std::max(1, rows / (unit * TILES_PER_PIECE));
    const int64_t by_size = w.rows * w.row_bytes / PIECE_BYTES, least = PIECES_PER_THREAD * omp_get_num_threads();
    return int(std::min<int64_t>(rows, std::max(by_size, least)));
}

// Into how many spans the positions are shared out: `wanted`, but with neither too few positions nor too many.
int spans_of(int length, int wanted) {
    return std::max({1, std::min(length / LEAST_POSITIONS, wanted), length / MOST_POSITIONS});
}

// Where a span begins. The last one has the new token besides, and not a LEAST_POSITIONS more than another one.
int start_of(int span, int spans, int length) {
    const int64_t steps = (length + LEAST_POSITIONS - 1) / LEAST_POSITIONS;
    return std::min(length, int((steps * span + spans - 1) / spans) * LEAST_POSITIONS);
}

// Where products go: that of row r for sequence b to `first[b * apart + r - row]`, in the place of what is there, or added.
struct Destination {
    float* first;
    int64_t apart;
    bool added;
    int row;

    void take(int b, int r, float product) const {
        float& to = first[b * apart + r - row];
        to = added ? to + product : product;
    }
};

// The products of rows from..to of W with each sequence's vector.
void products(const Matrix& w, int from, int to, Input& input, const Destination& out) {
    auto take = [&](int b, int row, float product) { out.take(b, row, product + (w.bias ? w.bias[row] : 0)); };
    if (by_tiles(w, input.batch()))
        return multiply_by_tiles(w, from, to, for_tiles(input[0], w), input.apart(), input.batch(), take);
    // STREAMS rows at a time, in as many parts of what is to be read.
    const int apart = (to - from) / STREAMS;
    float dots[STREAMS];
    for (int row = from; row < from + apart; row++)
        for (int b = 0; b < input.batch(); b++) {
            row_dots<STREAMS>(w, row, apart, input[b], dots);
            for (int n = 0; n < STREAMS; n++) take(b, row + n * apart, dots[n]);
        }
    for (int row = from + STREAMS * apart; row < to; row++)
        for (int b = 0; b < input.batch(); b++) {
            row_dots<1>(w, row, 0, input[b], dots);
            take(b, row, dots[0]);
        }
}

// `work(from, to)` for each piece of 0..rows, once `input` is prepared and made ready for W.
template <class Prepare, class Work>
void share_rows(Crew& crew, int phase, const Matrix& w, int rows, Input& input, Prepare prepare, Work work) {
    const int unit = by_tiles(w, input.batch()) ? TILE_ROWS : 1, units = (rows + unit - 1) / unit;
    const int pieces = pieces_of(w, rows, unit);
    auto get_ready = [&] { prepare(); input.ready_for(w); };
    // Long pieces first, short ones at the end: then no thread is in a long one when the others have finished.
    auto edge = [&](int piece) {
        const double left = double(pieces - piece) / pieces;
        return std::min<int64_t>(rows, int64_t(units * (1 - left * left)) * unit);
    };
    crew.share(phase, pieces, get_ready, [&](int piece) { work(edge(piece), edge(piece + 1)); });
}

template <class Prepare>
void multiply(Crew& crew, int phase, const Matrix& w, Input& input, Prepare prepare, const Destination& out) {
    share_rows(crew, phase, w, w.rows, input, prepare, [&](int from, int to) { products(w, from, to, input, out); });
}

class Pass {
  public:
    Pass(const Model& model, const Tokens& tokens, float* x, int threads)
        : m(model), t(tokens), keeping(cache_kernels(model)), cached(row_access(model.cache_format)), x(x),
          queries(m.heads / m.kv_heads), qkv_width((m.heads + 2 * m.kv_heads) * m.head_dim), mixed_width(m.heads * m.head_dim),
          crew(PHASES_PER_LAYER * m.num_layers), qkv(size_t(t.batch) * qkv_width), activated(size_t(t.batch) * m.intermediate),
          up(activated.size()) {
        size_t count = 0;
        for (int b = 0; b < t.batch; b++) {
            const int length = t.positions[b] + 1, wanted = (SPANS_PER_THREAD * threads + t.batch - 1) / t.batch;
            const int spans = spans_of(length, wanted);
            first_part.push_back(count);
            for (int span = 0; span < spans; span++, count += m.heads)
                pieces.push_back({b, start_of(span, spans, length), start_of(span + 1, spans, length), count});
        }
        first_part.push_back(count);
        mixed.resize(count * m.head_dim), parts.resize(count);
        for (size_t i = 0; i < count; i++) parts[i].mixed = &mixed[i * m.head_dim];
    }

    // What every thread does.
    void run() {
        std::optional<Tiles> shaped;
        if (attends_by_tiles(m)) shaped.emplace();
        Input input(t.batch, std::max({m.hidden, m.intermediate, mixed_width}));
        Queries turned(mixed_width, keeping.arranged(m.kv_heads, queries, m.head_dim));
        for (int l = 0; l < m.num_layers; l++) {
            const Layer& layer = m.layers[l];
            const int phase = PHASES_PER_LAYER * l;
            auto normalize = [&](const float* weight) {
                for (int b = 0; b < t.batch; b++) rms_norm(x + size_t(b) * m.hidden, weight, m.hidden, m.eps, input.row(b));
            };
            const Destination residual{x, m.hidden, true, 0};

            multiply(crew, phase, layer.qkv, input, [&] { normalize(layer.input_norm); },
                     {qkv.data(), qkv_width, false, 0});
            crew.share(phase + 1, pieces.size(), [] {}, [&](int piece) { attend_piece(piece, layer.cache, l, turned); });
            multiply(crew, phase + 2, layer.o, input, [&] { join_all(input); }, residual);
            gate_and_up(phase + 3, layer.gate_up, input, [&] { normalize(layer.post_attention_norm); });
            multiply(crew, phase + 4, layer.down, input, [&] { take_activated(input); }, residual);
        }
    }

  private:
    struct Piece {  // of attention: all heads of one sequence, over one span of its positions
        int b, from, to;
        size_t part;  // of the first head
    };

    const Model& m;
    const Tokens& t;
    const CacheKernels keeping;
    const RowAccess cached;
    float* x;  // [batch, hidden], the residual stream
    const int queries, qkv_width, mixed_width;
    Crew crew;
    std::vector<float> qkv, activated, up, mixed;  // [batch, qkv_width], 2 x [batch, intermediate], [part, head_dim]
    std::vector<Piece> pieces;
    std::vector<Part> parts;         // for each sequence [span, heads]
    std::vector<size_t> first_part;  // of each sequence, and of what would follow the last

    // The queries of the sequence that a thread has met last, turned to its position, and as keys and values want them.
    struct Queries {
        Array<float> numbers, arranged;
        int b = -1, layer = -1;

        Queries(size_t width, size_t arranged_width) : numbers(width), arranged(arranged_width) {}
    };

    const float* queries_of(int b, int layer, const float* cos, const float* sin, Queries& turned) {
        if (turned.b != b || turned.layer != layer) {
            const float* q = &qkv[size_t(b) * qkv_width];
            for (int i = 0; i < mixed_width; i += m.head_dim) rotate(q + i, cos, sin, m.head_dim, &turned.numbers[i]);
            keeping.arrange(&turned.numbers[0], m.kv_heads, queries, m.head_dim, &turned.arranged[0]);
            turned.b = b, turned.layer = layer;
        }
        return &turned.arranged[0];
    }

    Span span_of(const Piece& piece) const { return {t.rows_of(piece.b), piece.from, piece.to}; }

    // The new token's keys and values are written by whoever has the span that they stand in.
    void attend_piece(size_t n, const CacheView& cache, int layer, Queries& turned) {
        const Piece& piece = pieces[n];
        const float *cos = t.cos + int64_t(piece.b) * t.angles_apart, *sin = t.sin + int64_t(piece.b) * t.angles_apart;
        const Span span = span_of(piece);
        for (int head = 0; head < m.kv_heads && piece.to == t.positions[piece.b] + 1; head++) {
            const float* key = &qkv[size_t(piece.b) * qkv_width + (m.heads + head) * m.head_dim];
            const int64_t row = span.where.at(piece.to - 1) + head * t.rows_per_head;
            float one[MOST_HEAD_DIM];
            rotate(key, cos, sin, m.head_dim, one);
            cached.write(one, m.head_dim, cache.keys, row, cache.key_scale);
            cached.write(key + m.kv_heads * m.head_dim, m.head_dim, cache.values, row, cache.value_scale);
        }
        const float* q = queries_of(piece.b, layer, cos, sin, turned);
        // Threads take pieces in turn: which one is next is a guess, and a good one.
        const size_t next = n + omp_get_num_threads();
        const Span guess = next < pieces.size() ? span_of(pieces[next]) : Span{span.where, 0, 0};
        keeping.attend(q, m.kv_heads, queries, cache, span, guess, m.head_dim, &parts[piece.part]);
    }

    void join_all(Input& input) {
        float joined[MOST_HEAD_DIM];
        for (int b = 0; b < t.batch; b++) {
            const int spans = int((first_part[b + 1] - first_part[b]) / m.heads);
            for (int h = 0; h < m.heads; h++) {
                join_parts(&parts[first_part[b] + h], spans, m.heads, m.head_dim, joined);
                keeping.restore(joined, m.head_dim, input.row(b) + h * m.head_dim);
            }
        }
    }

    template <class Prepare> void gate_and_up(int phase, const Matrix& w, Input& input, Prepare prepare) {
        const int half = w.rows / 2;
        share_rows(crew, phase, w, half, input, prepare, [&](int from, int to) {
            products(w, from, to, input, {activated.data(), half, false, 0});
            products(w, from + half, to + half, input, {up.data(), half, false, half});
            for (int b = 0; b < t.batch; b++)
                gate(&activated[size_t(b) * half + from], &up[size_t(b) * half + from], to - from);
        });
    }

    void take_activated(Input& input) {
        for (int b = 0; b < t.batch; b++)
            std::copy_n(&activated[size_t(b) * m.intermediate], m.intermediate, input.row(b));
    }
};

}  // namespace

// x: [count, columns]: the rows `ids` of a table, in float32. False, and nothing is read, where one of them is not there.
extern "C" int embed(const Matrix* table, const int64_t* ids, int count, float* x) {
    for (int i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= table->rows) return false;
    for (int i = 0; i < count; i++, x += table->columns) {
        const void* row = (const char*)table->codes + ids[i] * table->row_bytes;
        switch (table->format) {
            case FLOAT32: read_row((const float*)row, table->columns, nullptr, x); break;
            case BFLOAT16: read_row((const bf16*)row, table->columns, nullptr, x); break;
            default: widen_codes<f32x8>(*table, ids[i], 0, table->columns, [&](int column, f32x8 v) { store(x + column, v); });
        }
    }
    return true;
}

// x: [batch, hidden], the new tokens' embeddings; becomes their hidden states after the final norm.
extern "C" void decode_layers(const Model* m, const Tokens* tokens, float* x) {
    Pass pass(*m, *tokens, x, omp_get_max_threads());
#pragma omp parallel
    pass.run();
    for (int b = 0; b < tokens->batch; b++) {
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
        multiply(crew, 0, *w, input, copy, {out, w->rows, false, 0});
    }
}
