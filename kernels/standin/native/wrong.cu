// Kernels with one mistake each, which the shim must find; they are no part of the library.
#include "element.cuh"

// Half of the block returns before the barrier.
KERNEL(wrong_divergent_barrier, u32* out) {
    if (threadIdx.x >= 128) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

// The two halves of the block wait at different barriers.
KERNEL(wrong_two_barriers, u32* out) {
    if (threadIdx.x < 128) {
        __syncthreads();
    } else {
        out[0] = 1;
        __syncthreads();
    }
}

// The mask names all lanes, but the odd lanes do not take part.
KERNEL(wrong_shuffle_mask, u32* out) {
    if (threadIdx.x % 2 == 0) out[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 0);
}

// Every thread reads what its neighbour writes, without a barrier in between.
KERNEL(wrong_missing_barrier, u32* out) {
    __shared__ u32 shared[THREADS];
    shared[threadIdx.x] = 0;
    __syncthreads();
    shared[threadIdx.x] = threadIdx.x + 1;
    out[threadIdx.x] = shared[(threadIdx.x + 1) % THREADS];
}

// The kernel writes one element beyond its buffer of n elements.
KERNEL(wrong_bounds, u32* out, u64 n) {
    for (u64 i = threadIdx.x; i <= n; i += THREADS) out[i] = 7;
}
