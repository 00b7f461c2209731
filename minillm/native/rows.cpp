// What a prompt's rows go through between the products of a pass: the norm, the rotation of queries and keys, the gate; and
// quantized weights, widened for a product with many rows.
//
// PyTorch takes one step after the other, each over all rows: what it writes is read again from a farther cache, and what it
// computes is rounded in between. Here, a number goes through all steps in registers, in float32, and is rounded once.

#include <cmath>

#include "vectors.h"
#include "weights.h"

enum NumberFormat { NUMBERS_FLOAT32, NUMBERS_BFLOAT16 };

// x: `planes` x `heads` x `rows` rows of `width` numbers, in any order; a row's numbers are neighbours. `out` lies in order.
struct Shape {
    int64_t planes, heads, rows, width;
    int64_t plane_step, head_step, row_step;  // numbers from one to the next
};

namespace {

constexpr int64_t FEW_NUMBERS = 1 << 14;  // sooner done by one thread than shared out

template <class Work> void each_row(int64_t rows, int64_t width, Work work) {
#pragma omp parallel for schedule(static) if (rows * width > FEW_NUMBERS)
    for (int64_t row = 0; row < rows; row++) work(row);
}

template <class Vector, class Number>
void norm_row(const Number* x, const Number* weight, int n, float eps, Number* out) {
    constexpr int pair = 2 * lanes_of<Vector>;
    Vector squares{}, one, other, weight_one, weight_other;
    for (int i = 0; i < n; i += pair) load_pair(x + i, one, other), squares += one * one + other * other;
    const float factor = 1 / std::sqrt(sum(squares) / n + eps);
    for (int i = 0; i < n; i += pair) {
        load_pair(x + i, one, other), load_pair(weight + i, weight_one, weight_other);
        store_pair(out + i, one * factor * weight_one, other * factor * weight_other);
    }
}

template <class Vector, class Number>
void rotate_row(const Number* x, const Number* cos, const Number* sin, int half, Number* out) {
    Vector first[2], second[2], c[2], s[2];
    for (int i = 0; i < half; i += 2 * lanes_of<Vector>) {
        load_pair(x + i, first[0], first[1]), load_pair(x + half + i, second[0], second[1]);
        load_pair(cos + i, c[0], c[1]), load_pair(sin + i, s[0], s[1]);
        store_pair(out + i, first[0] * c[0] - second[0] * s[0], first[1] * c[1] - second[1] * s[1]);
        store_pair(out + half + i, second[0] * c[0] + first[0] * s[0], second[1] * c[1] + first[1] * s[1]);
    }
}

template <class Vector, class Number> void gate_row(const Number* gate, const Number* up, int n, Number* out) {
    Vector g[2], u[2];
    for (int i = 0; i < n; i += 2 * lanes_of<Vector>) {
        load_pair(gate + i, g[0], g[1]), load_pair(up + i, u[0], u[1]);
        store_pair(out + i, silu_times(g[0], u[0]), silu_times(g[1], u[1]));
    }
}

// `work(vector, number)`, whose types are what matters: the widest vectors that n numbers fill, the numbers of the format.
template <class Work> void with_types(int format, int64_t n, Work work) {
    auto with_vector = [&](auto number) { n % (2 * WIDE) ? work(f32x8{}, number) : work(f32xN{}, number); };
    format == NUMBERS_FLOAT32 ? with_vector(float{}) : with_vector(bf16{});
}

}  // namespace

// All of these want rows of a multiple of 16 numbers (the rotation, of 32).

extern "C" void norm_rows(const Shape* shape, const void* x, const void* weight, float eps, int format, void* out) {
    const Shape& s = *shape;
    with_types(format, s.width, [&](auto vector, auto number) {
        using Number = decltype(number);
        each_row(s.planes * s.heads * s.rows, s.width, [&](int64_t i) {
            const int64_t plane = i / (s.heads * s.rows), head = i / s.rows % s.heads, row = i % s.rows;
            norm_row<decltype(vector)>((const Number*)x + plane * s.plane_step + head * s.head_step + row * s.row_step,
                                       (const Number*)weight, s.width, eps, (Number*)out + i * s.width);
        });
    });
}

// cos, sin: [planes, rows, width / 2].
extern "C" void rotate_rows(const Shape* shape, const void* x, const void* cos, const void* sin, int format, void* out) {
    const Shape& s = *shape;
    const int64_t half = s.width / 2;
    with_types(format, half, [&](auto vector, auto number) {
        using Number = decltype(number);
        each_row(s.planes * s.rows, s.heads * s.width, [&](int64_t i) {  // all heads of a token: they share its angles
            const int64_t plane = i / s.rows, row = i % s.rows;
            for (int64_t head = 0; head < s.heads; head++)
                rotate_row<decltype(vector)>((const Number*)x + plane * s.plane_step + head * s.head_step + row * s.row_step,
                                             (const Number*)cos + i * half, (const Number*)sin + i * half, half,
                                             (Number*)out + ((plane * s.heads + head) * s.rows + row) * s.width);
        });
    });
}

// gate_up: `rows` rows of `width` gates, then as many numbers that they let through; out: [rows, width].
extern "C" void gate_rows(const void* gate_up, int64_t rows, int64_t width, int format, void* out) {
    with_types(format, width, [&](auto vector, auto number) {
        using Number = decltype(number);
        each_row(rows, width, [&](int64_t i) {
            const Number* gate = (const Number*)gate_up + 2 * i * width;
            gate_row<decltype(vector)>(gate, gate + width, width, (Number*)out + i * width);
        });
    });
}

// The numbers that W, in codes, stands for; out: [rows, columns].
extern "C" void widen_rows(const Matrix* w, int format, void* out) {
    with_types(format, w->columns, [&](auto vector, auto number) {
        using Vector = decltype(vector);
        each_row(w->rows, w->columns, [&](int64_t row) {
            auto* to = (decltype(number)*)out + row * w->columns;
            widen_codes<Vector>(*w, row, 0, w->columns, [&](int column, Vector numbers) { store_rounded(to + column, numbers); });
        });
    });
}
