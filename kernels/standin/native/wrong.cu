// Kernels with a mistake each, which the shim must catch; they are no part of the library.
#include "element.cuh"

// Half of the block leaves before the barrier.
KERNEL(wrong_divergent_barrier, u32* out) {
    if (threadIdx.x >= 128) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

// Both halves wait, each at a barrier of its own.
KERNEL(wrong_two_barriers, u32* out) {
    if (threadIdx.x < 128) {
        __syncthreads();
    } else {
        out[0] = 1;
        __syncthreads();
    }
}

// A full mask, but the odd lanes do not come.
KERNEL(wrong_shuffle_mask, u32* out) {
    if (threadIdx.x % 2 == 0) out[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 0);
}

// Reads what its neighbour writes, without a barrier in between.
KERNEL(wrong_missing_barrier, u32* out) {
    __shared__ u32 shared[THREADS];
    shared[threadIdx.x] = 0;
    __syncthreads();
    shared[threadIdx.x] = threadIdx.x + 1;
    out[threadIdx.x] = shared[(threadIdx.x + 1) % THREADS];
}

// Writes one element beyond its buffer of n.
KERNEL(wrong_bounds, u32* out, u64 n) {
    for (u64 i = threadIdx.x; i <= n; i += THREADS) out[i] = 7;
}
