// Casts between float types, with a factor: into[n] = (B) (from[n] * factor), rounded once per operation.
//
//   cast_A_B   reads n of A, writes n of B. A factor of 1 changes nothing but the type.
//   turn_T     into [B, C, R] = from [B, R, C], a tile of 32 x 32 a block: pictures to channels last, and back
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

template <class T> INLINE void turn(T* into, const T* from, u64 batch, u64 rows, u64 columns) {
    __shared__ T tile[32][33];
    u64 down = (rows + 31) / 32, across = (columns + 31) / 32, tiles = batch * down * across;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u64 i = blockIdx.x; i < tiles; i += gridDim.x) {
        u64 b = i / across / down, row = i / across % down * 32, column = i % across * 32;
        __syncthreads();
        for (u32 k = warp; k < 32; k += THREADS / 32)
            if (row + k < rows && column + lane < columns)
                tile[k][lane] = from[(b * rows + row + k) * columns + column + lane];
        __syncthreads();
        for (u32 k = warp; k < 32; k += THREADS / 32)
            if (column + k < columns && row + lane < rows)
                into[(b * columns + column + k) * rows + row + lane] = tile[lane][k];
    }
}

#define TURN(T)                                                                                      \
    KERNEL(turn_##T, T* into, const T* from, u64 batch, u64 rows, u64 columns) {                     \
        turn<T>(into, from, batch, rows, columns);                                                   \
    }
FOR_TRAINED(TURN)
