// The norm of all gradients together, and the factor by which an optimiser's step clips them.
//
//   squares   parts [S] f64 = sums of x[n]^2 (f32), a block each, in a fixed order
//   clip      out = the norm before clipping, sqrt(sum of parts), and the factor that clips: min(1, limit / (norm + 1e-6)),
//             which is NaN if the norm is
#include "element.cuh"

KERNEL(squares, const f32* x, u64 n, f64* parts) {
    __shared__ f64 shared[THREADS / 32];
    f64 sum = 0.0;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) sum += (f64)x[i] * (f64)x[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

KERNEL(clip, const f64* parts, u32 slices, f64 limit, f32* out) {
    __shared__ f64 shared[THREADS / 32];
    f64 sum = 0.0;
    for (u32 i = threadIdx.x; i < slices; i += THREADS) sum += parts[i];
    sum = block_sum(sum, shared);
    f64 before = sqrt(sum), by = limit / (before + 1e-6);
    if (threadIdx.x == 0) out[0] = (f32)before, out[1] = by >= 1.0 ? 1.0f : (f32)by;
}
