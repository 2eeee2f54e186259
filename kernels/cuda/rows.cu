// Copies of rows between places with other strides: parts of samples, columns of a matrix, blocks in another order.
//
//   element (o, r, c) of outer x rows x columns is at  o * outer stride + r * row stride + c  of both sides
//
//   rows_T        into = from
//   rows_sum_T    into (f32) += from
//   rows_round_T  into = from (f32), rounded to T
#include "element.cuh"

struct Strides { u64 outer, row; };
struct Shape { u32 rows, columns; Strides from, into; };

template <class A, class B> struct Convert { static INLINE B run(A x) { return narrow<B>(widen(x)); } };
template <class T> struct Convert<T, T> { static INLINE T run(T x) { return x; } };

template <class A, class B, bool SUM> struct Rows {
    const A* from;
    B* into;
    Shape s;
    template <int W> INLINE void run(u64 i) const {
        u32 at = (u32)i, column = at % s.columns, row = at / s.columns % s.rows, outer = at / s.columns / s.rows;
        B* to = into + outer * s.into.outer + row * s.into.row + column;
        Pack<A, W> a = load<A, W>(from + outer * s.from.outer + row * s.from.row + column);
        Pack<B, W> b;
        if (SUM) b = load<B, W>(to);
#pragma unroll
        for (int k = 0; k < W; k++) {
            B x = Convert<A, B>::run(a.at[k]);
            b.at[k] = SUM ? narrow<B>(widen(b.at[k]) + widen(x)) : x;
        }
        store<B, W>(to, b);
    }
};

// Groups of W elements where each lies in one row and begins at a multiple of W on both sides.
template <int W, class A, class B, bool SUM> INLINE void rows(const A* from, B* into, Shape s, u64 n) {
    Rows<A, B, SUM> body = {from, into, s};
    u64 strides = s.columns | s.from.outer | s.from.row | s.into.outer | s.into.row;
    bool whole = strides % W == 0 && (u64)from % (W * sizeof(A)) == 0 && (u64)into % (W * sizeof(B)) == 0;
    sweep<W>(n, whole ? 0 : n, body);
}

#define ROWS(T)                                                                                                    \
    KERNEL(rows_##T, const T* from, T* into, Shape s, u64 n) { rows<16 / sizeof(T), T, T, false>(from, into, s, n); } \
    KERNEL(rows_sum_##T, const T* from, f32* into, Shape s, u64 n) { rows<4, T, f32, true>(from, into, s, n); }    \
    KERNEL(rows_round_##T, const f32* from, T* into, Shape s, u64 n) { rows<4, f32, T, false>(from, into, s, n); }
FOR_TRAINED(ROWS)
