// Casts between float types, with a factor: into[n] = (B) (from[n] * factor), rounded once per operation.
//
//   cast_A_B   reads n of A, writes n of B. A factor of 1 changes nothing but the type.
//   turn_T     into [B, C, R] = from [B, R, C], a tile of 64 x 64 a block: pictures to channels last, and back
//              reads and writes n; in packs of 4 where C (reading) and R (writing) are multiples of 4, else element by element
#include "element.cuh"

template <class A, class B> struct Cast {
    B* into;
    const A* from;
    f32 factor;
    template <int W> INLINE void run(u64 i) const {
        Pack<A, W> a = load<A, W>(from + i);
        Pack<B, W> b;
#pragma unroll
        for (int k = 0; k < W; k++) b.at[k] = Narrow<B>::from(widen(a.at[k]) * factor);
        store<B, W>(into + i, b);
    }
};

// Elements per step: 8, or 4 with f64: the narrower type moves 16 bytes, the wider type several words of 16 bytes.
#define CAST(A, B, W)                                                                                \
    KERNEL(cast_##A##_##B, B* into, const A* from, f32 factor, u64 n) {                              \
        Cast<A, B> body = {into, from, factor};                                                      \
        sweep<W>(n, head_of(into, from, n), body);                                                   \
    }
CAST(f32, f16, 8) CAST(f32, bf16, 8) CAST(f16, f32, 8) CAST(bf16, f32, 8)
CAST(f16, bf16, 8) CAST(bf16, f16, 8) CAST(f64, f32, 4) CAST(f32, f64, 4)

// Six blocks share a multiprocessor, since half of a block's time passes without loads.
#undef BLOCKS
#define BLOCKS 6

// The side of a tile, and its row in shared memory: 4 bytes longer, so that elements of a column are in different banks.
#define SIDE 64u
#define ROW(T) (SIDE + 4u / (u32)sizeof(T))

// Loads a tile of at most SIDE x SIDE elements in packs of W, up to 8 packs of a thread at a time.
template <int W, class T> INLINE void tile_in(T (*tile)[ROW(T)], const T* from, u64 columns, u32 down, u32 across) {
    const u32 STEP = THREADS * W / SIDE, U = W == 1 ? 8 : 4;
    u32 column = threadIdx.x % (SIDE / W) * W;
    if (column >= across) return;
    from += column;
#pragma unroll 1
    for (u32 row = threadIdx.x / (SIDE / W); row < down; row += U * STEP) {
        Pack<T, W> a[U];
#pragma unroll
        for (u32 u = 0; u < U; u++)
            if (row + u * STEP < down) a[u] = load<T, W>(from + (row + u * STEP) * columns);
#pragma unroll
        for (u32 u = 0; u < U; u++)
#pragma unroll
            for (u32 k = 0; k < W; k++) tile[row + u * STEP][column + k] = a[u].at[k];
    }
}

// Stores a tile's columns as rows, in packs of W.
template <int W, class T> INLINE void tile_out(T (*tile)[ROW(T)], T* into, u64 rows, u32 down, u32 across) {
    u32 row = threadIdx.x % (SIDE / W) * W;
    if (row >= down) return;
    into += row;
#pragma unroll 2
    for (u32 column = threadIdx.x / (SIDE / W); column < across; column += THREADS * W / SIDE) {
        Pack<T, W> a;
#pragma unroll
        for (u32 k = 0; k < W; k++) a.at[k] = tile[row + k][column];
        store_whole<T, W>(into + column * rows, a);
    }
}

template <class T> INLINE void turn(T* into, const T* from, u64 rows, u64 columns) {
    __shared__ T tile[SIDE][ROW(T)];
    u64 down = (rows + SIDE - 1) / SIDE, across = (columns + SIDE - 1) / SIDE;
    u64 b = blockIdx.x / across / down, row = blockIdx.x / across % down * SIDE, column = blockIdx.x % across * SIDE;
    u32 high = rows - row < SIDE ? (u32)(rows - row) : SIDE, wide = columns - column < SIDE ? (u32)(columns - column) : SIDE;
    from += (b * rows + row) * columns + column;
    into += (b * columns + column) * rows + row;
    columns % 4 == 0 && (u64)from % (4 * sizeof(T)) == 0 ? tile_in<4>(tile, from, columns, high, wide)
                                                         : tile_in<1>(tile, from, columns, high, wide);
    __syncthreads();
    rows % 4 == 0 && (u64)into % (4 * sizeof(T)) == 0 ? tile_out<4>(tile, into, rows, high, wide)
                                                      : tile_out<1>(tile, into, rows, high, wide);
}

#define TURN(T)                                                                                      \
    KERNEL(turn_##T, T* into, const T* from, u64 rows, u64 columns) {                                \
        turn<T>(into, from, rows, columns);                                                          \
    }
FOR_TRAINED(TURN)
