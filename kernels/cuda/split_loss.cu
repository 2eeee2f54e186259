// Losses of rows whose classes several ranks share, a block per row. Between the kernels ranks combine the values of each row.
//
//   x [N, C] of T: the logits of this rank's classes, of which the first is number `first` of `total`; label [N] u32
//
//   class_max_T       most[n] = the largest of x[n]                                             then: the largest over ranks
//   class_sums_T      sums[n] = { sum exp(x - most), x[label] - most, or 0 for another rank's label }    then: the sum over ranks
//   class_entropy_T   loss[n] = ln(sums[n][0]) - sums[n][1];   dx = (exp(x - most) / sums[n][0] - onehot) / divisor (dx = 0: none)
//   class_squares_T   loss[n] = sum of (x - onehot)^2 / total;   dx = 2 (x - onehot) / (total divisor)   then: the sum over ranks
//   class_best_T      best[n] i64: larger for a larger logit, and of equal ones for the first class      then: the largest over ranks
//   class_hits        hits[n] = 1 where best[n] is of the label's class, else 0
//
// A label that is no class gives a loss of NaN and no gradient for its row.
#include "element.cuh"

template <class T> INLINE void class_max(const T* x, u64 rows, u64 classes, f32* most) {
    __shared__ f32 shared[THREADS / 32];
    for (u64 n = blockIdx.x; n < rows; n += gridDim.x) {
        f32 largest = MINUS_INFINITY;
        for (u64 c = threadIdx.x; c < classes; c += THREADS) {
            f32 value = widen(x[n * classes + c]);
            largest = value > largest || value != value ? value : largest;
        }
        largest = block_max(largest, shared);
        if (threadIdx.x == 0) most[n] = largest;
    }
}

template <class T>
INLINE void class_sums(const T* x, const u32* labels, const f32* most, u64 rows, u64 classes, u64 first, f32* sums) {
    __shared__ f32 shared[THREADS / 32];
    for (u64 n = blockIdx.x; n < rows; n += gridDim.x) {
        const T* row = x + n * classes;
        f32 max = most[n], total = 0.0f;
        for (u64 c = threadIdx.x; c < classes; c += THREADS) total += expf(widen(row[c]) - max);
        total = block_sum(total, shared);
        u64 own = labels[n] - first;
        if (threadIdx.x == 0) {
            sums[2 * n] = total;
            sums[2 * n + 1] = own < classes ? widen(row[own]) - max : 0.0f;
        }
    }
}

template <class T>
INLINE void class_entropy(const T* x, const u32* labels, const f32* most, const f32* sums, u64 rows, u64 classes, u64 first,
                          u64 all, f32 divisor, T* dx, f32* loss) {
    for (u64 n = blockIdx.x; n < rows; n += gridDim.x) {
        f32 max = most[n], total = sums[2 * n];
        bool known = labels[n] < all;
        u64 own = labels[n] - first;
        if (threadIdx.x == 0) loss[n] = known ? logf(total) - sums[2 * n + 1] : f32_of(0x7fc00000u);
        if (dx)
            for (u64 c = threadIdx.x; c < classes; c += THREADS) {
                f32 p = expf(widen(x[n * classes + c]) - max) / total / divisor;
                dx[n * classes + c] = narrow<T>(known ? (c == own ? p - 1.0f / divisor : p) : 0.0f);
            }
    }
}

template <class T>
INLINE void class_squares(const T* x, const u32* labels, u64 rows, u64 classes, u64 first, u64 all, f32 divisor, T* dx,
                          f32* loss) {
    __shared__ f32 shared[THREADS / 32];
    for (u64 n = blockIdx.x; n < rows; n += gridDim.x) {
        bool known = labels[n] < all;
        u64 own = labels[n] - first;
        f32 sum = 0.0f;
        for (u64 c = threadIdx.x; c < classes; c += THREADS) {
            f32 d = widen(x[n * classes + c]) - (c == own ? 1.0f : 0.0f);
            sum += d * d;
            if (dx) dx[n * classes + c] = narrow<T>(known ? 2.0f * d / (f32)all / divisor : 0.0f);
        }
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) loss[n] = known ? sum / (f32)all : f32_of(0x7fc00000u);
    }
}

// The order of f32 values as that of integers.
INLINE i32 ordered(f32 x) {
    i32 bits = (i32)bits_of(x);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

template <class T> INLINE void class_best(const T* x, u64 rows, u64 classes, u64 first, i64* best) {
    u32 lane = threadIdx.x % 32;
    u64 warps = (u64)gridDim.x * (THREADS / 32);
    for (u64 n = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; n < rows; n += warps) {
        i64 most = (i64)0x8000000000000000ull;
        for (u64 c = lane; c < classes; c += 32) {
            u32 place = 0xffffffffu - (u32)(first + c);
            i64 value = (i64)(((u64)(u32)ordered(widen(x[n * classes + c])) << 32) | place);
            if (value > most) most = value;
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            u32 high = __shfl_xor_sync(0xffffffffu, (u32)((u64)most >> 32), step);
            u32 low = __shfl_xor_sync(0xffffffffu, (u32)(u64)most, step);
            i64 other = (i64)(((u64)high << 32) | low);
            if (other > most) most = other;
        }
        if (lane == 0) best[n] = most;
    }
}

KERNEL(class_hits, const i64* best, const u32* labels, u64 rows, u32* hits) {
    for (u64 n = (u64)blockIdx.x * THREADS + threadIdx.x; n < rows; n += (u64)gridDim.x * THREADS)
        hits[n] = 0xffffffffu - (u32)(u64)best[n] == labels[n] ? 1u : 0u;
}

#define SPLIT_LOSS(T)                                                                                                    \
    KERNEL(class_max_##T, const T* x, u64 rows, u64 classes, f32* most) { class_max<T>(x, rows, classes, most); }        \
    KERNEL(class_sums_##T, const T* x, const u32* labels, const f32* most, u64 rows, u64 classes, u64 first,             \
           f32* sums) {                                                                                                  \
        class_sums<T>(x, labels, most, rows, classes, first, sums);                                                      \
    }                                                                                                                    \
    KERNEL(class_entropy_##T, const T* x, const u32* labels, const f32* most, const f32* sums, u64 rows, u64 classes,    \
           u64 first, u64 all, f32 divisor, T* dx, f32* loss) {                                                          \
        class_entropy<T>(x, labels, most, sums, rows, classes, first, all, divisor, dx, loss);                           \
    }                                                                                                                    \
    KERNEL(class_squares_##T, const T* x, const u32* labels, u64 rows, u64 classes, u64 first, u64 all, f32 divisor,     \
           T* dx, f32* loss) {                                                                                           \
        class_squares<T>(x, labels, rows, classes, first, all, divisor, dx, loss);                                       \
    }                                                                                                                    \
    KERNEL(class_best_##T, const T* x, u64 rows, u64 classes, u64 first, i64* best) {                                    \
        class_best<T>(x, rows, classes, first, best);                                                                    \
    }
FOR_TRAINED(SPLIT_LOSS)
