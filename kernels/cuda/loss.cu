// Losses, a block per sample: softmax with cross-entropy, the mean squared error; the batch's mean in a second, tiny launch.
//
//   x [N, C] of T, label [N] u32      dx [N, C] of T, loss [N] f32      rows of x and dx are `stride` elements apart
//
//   cross_entropy_T   loss[n] = ln(sum exp(x - max)) - (x[label] - max);   dx = (p - onehot) / divisor
//                     two reads of x, of which the second comes from cache, one write of dx (dx = 0: none)
//   mse_T             loss[n] = mean over C of (x - onehot)^2;   dx = 2 (x - onehot) / (C divisor)
//   correct_T         hits[n] = 1 where the largest logit (the first of equals) is the label's, else 0
//   mean_f32          out = (sum of x [n]) / n, by one block, in a fixed order
//
// A label that is no class gives a loss of NaN and no gradient for its sample, and no write outside the buffers. Elements of x
// between C and the stride are not used; those of dx become zeros.
#include "element.cuh"

template <class T>
INLINE void cross_entropy(const T* x, const u32* labels, u64 samples, u64 classes, u64 stride, f32 divisor, T* dx, f32* loss) {
    __shared__ f32 shared[THREADS / 32];
    for (u64 n = blockIdx.x; n < samples; n += gridDim.x) {
        const T* row = x + n * stride;
        u32 label = labels[n];
        // The running maximum, and the sum of exponentials relative to it, in one pass.
        f32 most = MINUS_INFINITY, total = 0.0f;
        for (u64 c = threadIdx.x; c < classes; c += THREADS) {
            f32 value = widen(row[c]);
            if (value > most) {
                total = total * expf(most - value) + 1.0f;
                most = value;
            } else if (value != MINUS_INFINITY) {
                total += expf(value - most);
            }
        }
        f32 max = block_max(most, shared);
        total = block_sum(most == MINUS_INFINITY ? 0.0f * total : total * expf(most - max), shared);
        if (threadIdx.x == 0) loss[n] = label < classes ? logf(total) - (widen(row[label]) - max) : f32_of(0x7fc00000u);
        if (dx)
            for (u64 c = threadIdx.x; c < stride; c += THREADS) {
                f32 p = c < classes ? expf(widen(row[c]) - max) / total / divisor : 0.0f;
                dx[n * stride + c] = narrow<T>(label < classes ? (c == label ? p - 1.0f / divisor : p) : 0.0f);
            }
    }
}

template <class T>
INLINE void mse(const T* x, const u32* labels, u64 samples, u64 classes, u64 stride, f32 divisor, T* dx, f32* loss) {
    __shared__ f32 shared[THREADS / 32];
    for (u64 n = blockIdx.x; n < samples; n += gridDim.x) {
        u32 label = labels[n];
        f32 sum = 0.0f;
        for (u64 c = threadIdx.x; c < stride; c += THREADS) {
            f32 d = c < classes ? widen(x[n * stride + c]) - (c == label ? 1.0f : 0.0f) : 0.0f;
            sum += d * d;
            if (dx) dx[n * stride + c] = narrow<T>(label < classes ? 2.0f * d / (f32)classes / divisor : 0.0f);
        }
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) loss[n] = label < classes ? sum / (f32)classes : f32_of(0x7fc00000u);
    }
}

// A warp per sample; of equal logits the first wins, whichever lane holds it.
template <class T> INLINE void correct(const T* x, const u32* labels, u64 samples, u64 classes, u64 stride, u32* hits) {
    u32 lane = threadIdx.x % 32;
    u64 warps = (u64)gridDim.x * (THREADS / 32);
    for (u64 n = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; n < samples; n += warps) {
        f32 most = MINUS_INFINITY;
        u32 best = 0xffffffffu;
        for (u64 c = lane; c < classes; c += 32) {
            f32 value = widen(x[n * stride + c]);
            if (value > most || best == 0xffffffffu) most = value, best = (u32)c;
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            f32 other = __shfl_xor_sync(0xffffffffu, most, step);
            u32 at = __shfl_xor_sync(0xffffffffu, best, step);
            if (at != 0xffffffffu && (best == 0xffffffffu || other > most || (other == most && at < best)))
                most = other, best = at;
        }
        if (lane == 0) hits[n] = best == labels[n] ? 1u : 0u;
    }
}

KERNEL(mean_f32, const f32* x, u64 n, f32* out) {
    __shared__ f64 shared[THREADS / 32];
    f64 total = 0.0;
    for (u64 i = threadIdx.x; i < n; i += THREADS) total += (f64)x[i];
    total = block_sum(total, shared);
    if (threadIdx.x == 0) *out = n ? (f32)(total / (f64)n) : 0.0f;
}

#define CROSS_ENTROPY(T)                                                                                             \
    KERNEL(cross_entropy_##T, const T* x, const u32* labels, u64 samples, u64 classes, u64 stride, f32 divisor,      \
           T* dx, f32* loss) {                                                                                       \
        cross_entropy<T>(x, labels, samples, classes, stride, divisor, dx, loss);                                    \
    }                                                                                                                \
    KERNEL(mse_##T, const T* x, const u32* labels, u64 samples, u64 classes, u64 stride, f32 divisor, T* dx,         \
           f32* loss) {                                                                                              \
        mse<T>(x, labels, samples, classes, stride, divisor, dx, loss);                                              \
    }                                                                                                                \
    KERNEL(correct_##T, const T* x, const u32* labels, u64 samples, u64 classes, u64 stride, u32* hits) {            \
        correct<T>(x, labels, samples, classes, stride, hits);                                                       \
    }
FOR_TRAINED(CROSS_ENTROPY)
