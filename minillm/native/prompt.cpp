// One pass over the tokens of a prompt: from their embeddings to their hidden states.
//
// The same steps as in minillm/model.py. Everything lies in strips of sixteen tokens, and in a strip feature by feature: a
// vector holds one number of each of sixteen tokens. That is how tiles want the tokens of a product and how they give its sums,
// and what happens between two products then needs no exchange of lanes: a norm adds up vectors, a rotation takes two features
// and their angles, a softmax goes from key to key. Sums, and the residual stream, stay in float32.
//
// What is multiplied lies in one of two ways, `InTiles` or `InFloats`.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <omp.h>

#include "array.h"
#include "cache.h"
#include "crew.h"
#include "in_floats.h"
#include "in_tiles.h"
#include "pass.h"
#include "weights.h"

namespace {

constexpr int PHASES_PER_LAYER = 9;
constexpr int MOST_BLOCKS = 1024;  // of BOTH keys each, of several sequences at a time: they are copied out of the cache
constexpr int KEYS = 512;        // whose scores are held at a time
constexpr int GROUP_STRIPS = 8;  // at least, that a thread keeps to, while others keep to theirs; see `Crew`

// Memory is slow to answer: while tiles are multiplied, the next rows of a matrix are asked for, a little in each step. They go
// to the core's second cache, not the nearest: there, they would drive out what is being multiplied.
class RowsAhead {
  public:
    // Two tiles' rows behind those from `one` and from `other` that will be this thread's, where `threads` share them; in
    // `steps` steps.
    RowsAhead(const Matrix& w, int one, int other, int threads, int steps)
        : lines_((TILE * w.row_bytes + LINE - 1) / LINE), per_step_(lines_ / steps + 1) {
        const int next = threads * (other == one + TILE ? 2 * TILE : TILE);
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

// silu(x) * y. This and the next are as exact as the way's numbers need.
template <class Way> f32x16 gated(f32x16 x, f32x16 y) {
    const f32x16 least = f32x16{} - 87.0f, most = f32x16{} + 87.0f;  // e^87 is nearly the largest float32
    const f32x16 gate = x < least ? least : x;                       // silu(-87) is as good as 0
    return gate * Way::reciprocal(1 + power_of_two<Way::TERMS>((gate > most ? most : gate) * -LOG2_OF_E)) * y;
}
template <class Way> f32x16 weight_of(f32x16 below) {  // of a score that is so much below the highest; none if far below
    const f32x16 least = f32x16{} - 126.0f;
    return below < least ? f32x16{} : power_of_two<Way::TERMS>(below);
}

// Tokens of one sequence that are computed together: `count` of them from `position` on, in strips of their own.
struct Run {
    int sequence, position, count;
    int64_t token;            // the first one's place among all new tokens
    int strip;                // the first one's strip
    size_t blocks_before;     // of BOTH keys each, of the runs before

    int strips() const { return (count + TILE - 1) / TILE; }
    int end() const { return position + count; }  // how many keys the last token sees
    int blocks() const { return (end() + BOTH - 1) / BOTH; }
};

// Two strips of a run whose queries meet its keys together; or the last one alone.
struct Strips {
    const Run* run;
    int strip, count;
};

// What one thread needs for itself.
template <class Way> struct Scratch {
    Array<typename Way::Number> rows;     // two tiles of rows of a matrix, widened
    Array<f32x16> numbers;                // a head's, of a strip; or of BOTH keys
    Array<typename Way::Pair> query;      // [2, head_dim / 2]
    Array<f32x16> scores;                 // [2, KEYS]
    Array<typename Way::Pair> weights;    // [KEYS / 2]
    Array<f32x16> mixed;                  // [2, head_dim]
    alignas(64) f32x16 gates[2][2][BOTH]; // [turn, strip, feature of gate or up]

    explicit Scratch(const Model& m)
        : rows(size_t(BOTH) * std::max({m.hidden, m.intermediate, m.heads * m.head_dim})), numbers(2 * size_t(m.head_dim)),
          query(m.head_dim), scores(2 * KEYS), weights(KEYS / 2), mixed(2 * size_t(m.head_dim)) {}
};

template <class Way> class PromptPass {
    using Number = typename Way::Number;
    using Pair = typename Way::Pair;
    using Own = Scratch<Way>;

  public:
    PromptPass(const Model& model, const Tokens& tokens, const std::vector<Run>& runs, Number* x)
        : m(model), t(tokens), runs(runs), cached(row_access(model.cache_format)), in_out(x), half(m.head_dim / 2),
          width((m.heads + 2 * m.kv_heads) * m.head_dim), mixed_width(m.heads * m.head_dim),
          strips(runs.back().strip + runs.back().strips()), blocks(runs.back().blocks_before + runs.back().blocks()),
          groups(std::clamp(strips / GROUP_STRIPS, 1, omp_get_max_threads())), sharing(omp_get_max_threads() / groups),
          crew(PHASES_PER_LAYER * m.num_layers + 2, groups), residual(size_t(strips) * m.hidden),
          qkv(size_t(strips) * std::max<size_t>(width, m.intermediate / 2 * (sizeof(Pair) / sizeof(f32x16)))),
          cos(size_t(strips) * half), sin(size_t(strips) * half),
          normed(size_t(strips) * std::max(m.hidden, mixed_width) / 2), mixed(&normed[0]), activated((Pair*)&qkv[0]),
          keys(blocks * BOTH * m.kv_heads * m.head_dim), values(blocks * BOTH * m.kv_heads * m.head_dim), pairs(groups) {
        for (const Run& run : runs)
            for (int strip = run.strip; strip < run.strip + run.strips(); strip += 2) {
                int group = 0;
                while (strip >= first_strip(group + 1)) group++;
                pairs[group].push_back({&run, strip, std::min(2, run.strip + run.strips() - strip)});
            }
    }

    // What every thread does.
    void run() {
        typename Way::Guard guard;
        (void)guard;
        Own own(m);
        int phase = 0;
        auto share = [&](size_t pieces, auto work) {
            crew.share(phase++, int(pieces), [] {}, work, omp_get_thread_num() % groups);
        };
        auto share_strips = [&](auto work) {
            share(strips / groups + 2, [&](int group, int n) {
                if (first_strip(group) + n < first_strip(group + 1)) work(first_strip(group) + n);
            });
        };
        size_t most_pairs = 0;
        for (const auto& some : pairs) most_pairs = std::max(most_pairs, some.size());
        const size_t most_blocks = (blocks + groups - 1) / groups;

        share_strips([&](int strip) { take_in(strip); });
        for (int l = 0; l < m.num_layers; l++) {
            const Layer& layer = m.layers[l];
            auto multiply_all = [&](const Matrix& w, const Pair* x, Array<f32x16>& out, bool added) {
                share(w.rows / BOTH, [&](int group, int n) { multiply(w, n, group, x, out, added, own); });
            };
            share_strips([&](int strip) { normalize(strip, layer.input_norm); });
            multiply_all(layer.qkv, &normed[0], qkv, false);
            share_strips([&](int strip) { write_to_cache(strip, layer.cache, own); });
            share(most_blocks, [&](int group, int n) {
                const size_t block = group * most_blocks + n;
                if (block < blocks) read_from_cache(block, layer.cache, own);
            });
            share(most_pairs * m.heads, [&](int group, int n) {  // those that see most keys first
                const int pair = int(pairs[group].size()) - 1 - n / m.heads;
                if (pair >= 0) attend(pairs[group][pair], n % m.heads, own);
            });
            multiply_all(layer.o, mixed, residual, true);
            share_strips([&](int strip) { normalize(strip, layer.post_attention_norm); });
            share(m.intermediate / TILE, [&](int group, int n) { gate_and_up(layer.gate_up, n, group, own); });
            multiply_all(layer.down, activated, residual, true);
        }
        share_strips([&](int strip) { normalize(strip, m.norm), give_out(strip); });
    }

  private:
    const Model& m;
    const Tokens& t;
    const std::vector<Run>& runs;
    const RowAccess cached;
    Number* in_out;  // [tokens, hidden]
    const int half, width, mixed_width, strips;
    const size_t blocks;
    const int groups;   // of strips
    const int sharing;  // threads for each
    Crew crew;
    // [strip, feature]: a vector each
    Array<f32x16> residual, qkv, cos, sin;
    // [strip, feature / 2]
    Array<Pair> normed;
    Pair *const mixed, *const activated;  // where `normed` and `qkv` lie: nobody wants the one when the other is written
    // Of all positions that a run sees, one run behind the other: [kv_head, block, head_dim / STEP, BOTH, STEP], and
    // [kv_head, block, head_dim, BOTH]
    Array<Number> keys, values;
    std::vector<std::vector<Strips>> pairs;  // of each group

    int first_strip(int group) const { return group == groups ? strips : strips * group / groups / 2 * 2; }

    const Run& run_of(int strip) const {
        return *std::find_if(runs.begin(), runs.end(), [&](const Run& run) { return strip < run.strip + run.strips(); });
    }
    // Where a head's keys, or values, begin in `keys` or `values`.
    size_t first_of(const Run& run, int kv_head) const {
        return (run.blocks_before * m.kv_heads + size_t(kv_head) * run.blocks()) * BOTH * m.head_dim;
    }
    int tokens_in(const Run& run, int strip) const { return std::min(TILE, run.count - (strip - run.strip) * TILE); }

    // A strip's embeddings, and its angles.
    void take_in(int strip) {
        const Run& run = run_of(strip);
        const int count = tokens_in(run, strip);
        const int64_t first = run.token + (strip - run.strip) * TILE;
        const Number nothing[STEP] = {}, *rows[TILE];
        for (int column = 0; column < m.hidden; column += STEP) {
            for (int n = 0; n < TILE; n++) rows[n] = n < count ? in_out + (first + n) * m.hidden + column : nothing;
            Way::turn_in(rows, &residual[size_t(strip) * m.hidden + column]);
        }
        for (int i = 0; i < half; i++)
            for (int token = 0; token < TILE; token++) {
                const int64_t at = (first + std::min(token, count - 1)) * t.angles_apart + i;
                cos[size_t(strip) * half + i][token] = t.cos[at], sin[size_t(strip) * half + i][token] = t.sin[at];
            }
    }

    void normalize(int strip, const float* weight) {
        const f32x16* x = &residual[size_t(strip) * m.hidden];
        Pair* to = &normed[size_t(strip) * m.hidden / 2];
        f32x16 squares[4] = {}, factor;
        for (int i = 0; i < m.hidden; i += 4)
            for (int n = 0; n < 4; n++) squares[n] += x[i + n] * x[i + n];
        const f32x16 mean = (squares[0] + squares[1] + squares[2] + squares[3]) / float(m.hidden);
        for (int token = 0; token < TILE; token++) factor[token] = 1 / std::sqrt(mean[token] + m.eps);
        auto feature = [&](int i) { return x[i] * factor * weight[i]; };
        for (int i = 0; i < m.hidden; i += 2) to[i / 2] = Way::paired(feature(i), feature(i + 1));
    }

    void give_out(int strip) {
        const Run& run = run_of(strip);
        const int64_t first = run.token + (strip - run.strip) * TILE;
        Number* rows[TILE];
        for (int column = 0; column < m.hidden; column += STEP) {
            for (int n = 0; n < TILE; n++) rows[n] = in_out + (first + n) * m.hidden + column;
            Way::turn_out(&normed[(size_t(strip) * m.hidden + column) / 2], tokens_in(run, strip), rows);
        }
    }

    // For two strips of a group at a time, and for the last one: products of all columns, put where `begin(count, strip)` says,
    // or `added` there; then `finish(count, strip)`. In each step, meanwhile, some of the rows that will be wanted next are
    // asked for, and `meanwhile(step)` is done.
    template <class Begin, class Meanwhile, class Finish>
    void each_pair(const Matrix& w, int one, int other, int group, const Pair* x, Own& own, bool added, int64_t sums_apart,
                   Begin begin, Meanwhile meanwhile, Finish finish) {
        const typename Way::BothRows rows = Way::rows_of(w, one, other, &own.rows[0]);
        const int first = first_strip(group), end = first_strip(group + 1), steps = w.columns / STEP;
        const int64_t apart = w.columns / 2;
        RowsAhead ahead(w, one, other, sharing, (end - first + 1) / 2 * steps);
        auto some = [&](auto count, int strip) {
            f32x16* sums = begin(count, strip);
            auto in_each_step = [&](int step) { ahead.ask(), meanwhile(step); };
            Way::template multiply<count>(rows, x + strip * apart, apart, steps, added, sums, sums_apart, in_each_step);
            finish(count, strip);
            return strip + count;
        };
        int strip = first;
        while (strip + 2 <= end) strip = some(Count<2>(), strip);
        if (strip < end) some(Count<1>(), strip);
    }

    void multiply(const Matrix& w, int n, int group, const Pair* x, Array<f32x16>& out, bool added, Own& own) {
        const int row = n * BOTH;
        auto begin = [&](int count, int strip) {
            for (int s = strip; s < strip + count && w.bias; s++)
                for (int r = 0; r < BOTH; r++) {
                    f32x16& to = out[size_t(s) * w.rows + row + r];
                    to = (added ? to : f32x16{}) + w.bias[row + r];
                }
            return &out[size_t(strip) * w.rows + row];
        };
        each_pair(w, row, row + TILE, group, x, own, added || w.bias, w.rows, begin, [](int) {}, [](int, int) {});
    }

    // A tile of gates and one of what they let through, for each strip. While the next ones are multiplied, they are joined.
    void gate_and_up(const Matrix& w, int n, int group, Own& own) {
        const int gate = n * TILE, up = m.intermediate + gate, steps = w.columns / STEP;
        int turn = 0, waiting = 0, first = 0;  // strips that are not joined yet, from `first` on
        auto join = [&](int from, int to) {    // pairs of features of all of them, of which a strip has TILE / 2
            for (int pair = from; pair < to; pair++) {
                const int s = pair / (TILE / 2), r = pair % (TILE / 2) * 2;
                const f32x16* both = own.gates[1 - turn][s];
                auto feature = [&](int r) { return gated<Way>(both[r], both[TILE + r]); };
                activated[(size_t(first + s) * m.intermediate + gate + r) / 2] = Way::paired(feature(r), feature(r + 1));
            }
        };
        auto begin = [&](int count, int) {
            for (int r = 0; r < TILE && w.bias; r++)
                for (int s = 0; s < count; s++) {
                    own.gates[turn][s][r] = f32x16{} + w.bias[gate + r];
                    own.gates[turn][s][TILE + r] = f32x16{} + w.bias[up + r];
                }
            return own.gates[turn][0];
        };
        auto meanwhile = [&](int step) {
            const int pairs = waiting * TILE / 2;
            join(pairs * step / steps, pairs * (step + 1) / steps);
        };
        auto finish = [&](int count, int strip) { turn = 1 - turn, waiting = count, first = strip; };
        each_pair(w, gate, up, group, &normed[0], own, w.bias, BOTH, begin, meanwhile, finish);
        join(0, waiting * TILE / 2);
    }

    // Features i and i + half of a head, turned; multiplied with `factor`.
    void rotate(const f32x16* x, int strip, int i, float factor, f32x16& first, f32x16& second) const {
        const f32x16 c = cos[size_t(strip) * half + i] * factor, s = sin[size_t(strip) * half + i] * factor;
        first = x[i] * c - x[i + half] * s;
        second = x[i + half] * c + x[i] * s;
    }

    // The keys and values of a strip.
    void write_to_cache(int strip, const CacheView& cache, Own& own) {
        const Run& run = run_of(strip);
        const Rows where = t.rows_of(run.sequence);
        const int first = run.position + (strip - run.strip) * TILE, count = tokens_in(run, strip);
        int64_t row_of[TILE];
        where.of(first, count, row_of);
        f32x16* turned = &own.numbers[0];
        auto write = [&](const f32x16* x, int head, void* rows, float* scales) {
            float* in_rows = (float*)(turned + m.head_dim);  // [token, head_dim]
            for (int i = 0; i < m.head_dim; i += TILE) {
                u32x16 square[TILE];
                for (int n = 0; n < TILE; n++) square[n] = (u32x16)x[i + n];
                transpose(square);
                for (int n = 0; n < TILE; n++) store(in_rows + n * m.head_dim + i, square[n]);
            }
            for (int n = 0; n < count; n++)
                cached.write(in_rows + n * m.head_dim, m.head_dim, rows, row_of[n] + head * where.rows_per_head, scales);
        };
        for (int head = 0; head < m.kv_heads; head++) {
            const f32x16* key = &qkv[size_t(strip) * width + (m.heads + head) * m.head_dim];
            for (int i = 0; i < half; i++) rotate(key, strip, i, 1, turned[i], turned[i + half]);
            write(turned, head, cache.keys, cache.key_scale);
            write(key + m.kv_heads * m.head_dim, head, cache.values, cache.value_scale);
        }
    }

    // BOTH keys and values of each head, as tiles want them: as rows of products, of which the values are turned round.
    void read_from_cache(size_t block, const CacheView& cache, Own& own) {
        const Run& run = *std::find_if(runs.begin(), runs.end(), [&](const Run& run) {
            return block < run.blocks_before + run.blocks();
        });
        const Rows where = t.rows_of(run.sequence);
        const int from = int(block - run.blocks_before) * BOTH, count = std::min(BOTH, run.end() - from);
        int64_t row_of[BOTH];
        where.of(from, count, row_of);
        float* rows = (float*)&own.numbers[0];  // [BOTH, head_dim]
        std::fill_n(rows, BOTH * m.head_dim, 0.0f);
        for (int head = 0; head < m.kv_heads; head++) {
            const size_t here = first_of(run, head) + (block - run.blocks_before) * BOTH * m.head_dim;
            auto read = [&](const void* all, const float* scales) {
                for (int n = 0; n < count; n++)
                    cached.read(all, row_of[n] + head * where.rows_per_head, scales, m.head_dim, rows + n * m.head_dim);
            };
            read(cache.keys, cache.key_scale);
            for (int n = 0; n < BOTH; n++)
                for (int i = 0; i < m.head_dim; i += WIDE) {
                    Number* to = &keys[here + (i / STEP * BOTH + n) * STEP + i % STEP];
                    store_rounded(to, load<f32xN>(rows + n * m.head_dim + i));
                }
            read(cache.values, cache.value_scale);
            for (int i = 0; i < m.head_dim; i += TILE) Way::turn_round(rows + i, m.head_dim, &values[here + i * BOTH]);
        }
    }

    void attend(const Strips& pair, int head, Own& own) {
        pair.count == 2 ? attend<2>(*pair.run, pair.strip, head, own) : attend<1>(*pair.run, pair.strip, head, own);
    }

    template <int STRIPS> void attend(const Run& run, int strip, int head, Own& own) {
        const float to_powers_of_two = LOG2_OF_E / std::sqrt(float(m.head_dim));
        const int position = run.position + (strip - run.strip) * TILE, kv_head = head / (m.heads / m.kv_heads);
        const int end = std::min(run.end(), position + STRIPS * TILE);
        const size_t head_at = first_of(run, kv_head);
        for (int s = 0; s < STRIPS; s++) {
            const f32x16* q = &qkv[size_t(strip + s) * width + head * m.head_dim];
            for (int i = 0; i < half; i += 2) {
                f32x16 first[2], second[2];
                for (int n = 0; n < 2; n++) rotate(q, strip + s, i + n, to_powers_of_two, first[n], second[n]);
                own.query[s * half + i / 2] = Way::paired(first[0], first[1]);
                own.query[s * half + (half + i) / 2] = Way::paired(second[0], second[1]);
            }
        }
        f32x16 highest[STRIPS], total[STRIPS] = {};
        std::fill_n(highest, STRIPS, f32x16{} - INFINITY);
        std::fill_n(&own.mixed[0], STRIPS * m.head_dim, f32x16{});
        for (int from = 0; from < end; from += KEYS) {
            const int to = std::min(from + KEYS, end), steps = (to - from + BOTH - 1) / BOTH;
            f32x16 most[STRIPS];
            std::copy_n(highest, STRIPS, most);
            auto look_at = [&](int n) {  // at the scores of block n
                for (int s = 0; s < STRIPS; s++)
                    most[s] = highest_of(&own.scores[s * KEYS + n * BOTH], position + s * TILE - from - n * BOTH, most[s]);
            };
            // Tiles are multiplied beside whatever else a core does: the scores of one block are looked at meanwhile.
            for (int n = 0; n < steps; n++) {
                const Number* block = &keys[head_at + size_t(from / BOTH + n) * BOTH * m.head_dim];
                Way::template multiply<STRIPS>(Way::in_steps(block), &own.query[0], half, m.head_dim / STEP, false,
                                               &own.scores[n * BOTH], KEYS, [](int) {});
                if (n) look_at(n - 1);
            }
            look_at(steps - 1);
            for (int s = 0; s < STRIPS; s++) {
                const f32x16 shrink = weight_of<Way>(highest[s] - most[s]);
                if (from > 0 && std::memcmp(&highest[s], &most[s], sizeof most[s]) != 0)
                    for (int i = 0; i < m.head_dim; i++) own.mixed[s * m.head_dim + i] *= shrink;
                highest[s] = most[s];
                const Number* first_values = &values[head_at + size_t(from) * m.head_dim];
                f32x16* all = &own.mixed[s * m.head_dim];
                total[s] = total[s] * shrink + mix(&own.scores[s * KEYS], steps, most[s], first_values, &own.weights[0], all);
            }
        }
        for (int s = 0; s < STRIPS; s++) {
            const f32x16 share = f32x16{} + 1 / total[s], *all = &own.mixed[s * m.head_dim];
            Pair* out = &mixed[(size_t(strip + s) * mixed_width + head * m.head_dim) / 2];
            for (int i = 0; i < m.head_dim; i += 2) out[i / 2] = Way::paired(all[i] * share, all[i + 1] * share);
        }
    }

    // The highest of BOTH scores and `most`, for sixteen queries, of which the first stands at key `own_key` of these. They see
    // no key behind their own: those get no score.
    static f32x16 highest_of(f32x16* scores, int own_key, f32x16 most) {
        for (int key = std::max(own_key + 1, 0); key < BOTH; key++)
            scores[key] = lane >= unsigned(key - own_key) ? scores[key] : f32x16{} - INFINITY;
        for (int key = 0; key < BOTH; key++) most = larger(scores[key], most);
        return most;
    }

    // Adds the values of some blocks, each with the weight 2^(score - most), to `mixed`; gives the sum of the weights. While
    // the tiles of one block are multiplied, the weights of the next are computed.
    f32x16 mix(const f32x16* scores, int blocks, f32x16 most, const Number* values, Pair* weights, f32x16* mixed) const {
        f32x16 sum{};
        auto features = [&](auto tiles, int i) {
            typename Way::template Column<tiles> column(mixed + i);
            for (int n = 0; n <= blocks; n++) {
                for (int key = n * BOTH; key < (n + 1) * BOTH && n < blocks && i == 0; key += 2) {
                    const f32x16 one = weight_of<Way>(scores[key] - most), other = weight_of<Way>(scores[key + 1] - most);
                    sum += one + other;
                    weights[key / 2] = Way::paired(one, other);
                }
                if (n) column.add(values + (size_t(n - 1) * m.head_dim + i) * BOTH, weights + (n - 1) * TILE);
            }
        };
        int i = 0;
        for (; i + 4 * TILE <= m.head_dim; i += 4 * TILE) features(Count<4>(), i);
        if (i < m.head_dim) features(Count<2>(), i);
        return sum;
    }
};

// The new tokens of all sequences, in runs; those of one pass have at most `most_strips` strips, and see at most
// MOST_BLOCKS blocks of keys, unless one sequence alone has more.
std::vector<std::vector<Run>> in_passes(const Tokens& tokens, int most_strips) {
    std::vector<std::vector<Run>> passes;
    int64_t token = 0;
    int strip = most_strips;
    size_t blocks = 0;
    for (int b = 0; b < tokens.batch; b++)
        for (int done = 0; done < tokens.counts[b];) {
            const int position = tokens.positions[b] + done, left = tokens.counts[b] - done;
            auto run_from = [&](int strip, size_t blocks) {
                return Run{b, position, std::min(left, (most_strips - strip) * TILE), token, strip, blocks};
            };
            Run run = run_from(strip, blocks);
            if (strip == most_strips || (strip > 0 && blocks + run.blocks() > MOST_BLOCKS)) {
                passes.emplace_back();
                run = run_from(0, 0);
            }
            passes.back().push_back(run);
            strip = run.strip + run.strips(), blocks = run.blocks_before + run.blocks();
            token += run.count, done += run.count;
        }
    return passes;
}

template <class Way> void all_layers(const Model& m, const Tokens& tokens, typename Way::Number* x) {
    for (const std::vector<Run>& runs : in_passes(tokens, Way::MOST_STRIPS)) {
        PromptPass<Way> pass(m, tokens, runs, x);
#pragma omp parallel
        pass.run();
    }
}

}  // namespace

// Whether this processor has tiles, and the system lets us use them. (`prompt_in_tiles` is right without, but slow.)
extern "C" int has_tiles() { return may_use_tiles(); }

// Whether `prompt_in_floats` is faster than PyTorch's library: not where that has instructions for bfloat16, for a model in
// bfloat16; and not where vectors are plain code.
extern "C" int floats_are_fast(int for_bfloat16) {
#if defined(__AVX512BF16__)
    return !for_bfloat16;
#elif WITH_AVX2
    return (void)for_bfloat16, true;
#else
    return (void)for_bfloat16, false;
#endif
}

// x: [tokens, hidden], the embeddings of all new tokens, one sequence behind the other; become their hidden states after the
// final norm. hidden, intermediate and head_dim are multiples of 32. In tiles, weights are bfloat16 or codes.
extern "C" void prompt_in_tiles(const Model* m, const Tokens* tokens, bf16* x) { all_layers<InTiles>(*m, *tokens, x); }
extern "C" void prompt_in_floats(const Model* m, const Tokens* tokens, float* x) { all_layers<InFloats>(*m, *tokens, x); }
