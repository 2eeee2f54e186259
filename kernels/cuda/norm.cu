// The norm of all gradients together, and clipping by that norm.
//
//   squares   parts [S] f64 = sums of x[n]^2 (f32), a block each, in a fixed order
//   clip      x *= min(1, limit / (sqrt(sum of parts) + 1e-6)): x is not written where that factor is 1; a norm that is
//             NaN makes all of x NaN.   norm = the norm before clipping
#include "element.cuh"

KERNEL(squares, const f32* x, u64 n, f64* parts) {
    __shared__ f64 shared[THREADS / 32];
    f64 sum = 0.0;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) sum += (f64)x[i] * (f64)x[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

struct Scale {
    f32* x;
    f32 by;
    template <int W> INLINE void run(u64 i) const {
        Pack<f32, W> a = load<f32, W>(x + i);
#pragma unroll
        for (int k = 0; k < W; k++) a.at[k] *= by;
        store<f32, W>(x + i, a);
    }
};

KERNEL(clip, f32* x, u64 n, const f64* parts, u32 slices, f64 limit, f32* norm) {
    __shared__ f64 shared[THREADS / 32];
    f64 sum = 0.0;
    for (u32 i = threadIdx.x; i < slices; i += THREADS) sum += parts[i];
    sum = block_sum(sum, shared);
    f64 before = sqrt(sum), by = limit / (before + 1e-6);
    if (blockIdx.x == 0 && threadIdx.x == 0) *norm = (f32)before;
    if (by >= 1.0) return;
    Scale body = {x, (f32)by};
    sweep<4>(n, head_of(x, n), body);
}
