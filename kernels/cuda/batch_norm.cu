// Batch normalisation over the channels of pictures: by Welford's method within a rank, and by sums over several ranks.
//
//   x, y [N, C, P]  (P = H W; channels last: [N, P, C])     w, b, mean, r [C] f32      running [2 C] f32
//
//   bn_partial_T   parts [C, S, 3] = (count, mean, M2) of slice s of a channel: one pass, Welford's update
//                  a block a channel; channels last: a block 32 channels side by side, a warp every eighth pixel
//   bn_finish      merges S parts (Chan's formula): mean, r = 1 / sqrt(var + eps), updates the running statistics
//   bn_sums_T      parts [C, S, 2] = (sum, sum of squares) in f64, for ranks to add up;   bn_gather sums over S
//   bn_by          mean and r from totals (1 + 2 C: count, sums, squares), updates the running statistics
//   bn_running     mean and r from the running statistics, for evaluation
//   bn_apply_T     y = (x - mean) (r w) + b                                               reads n, writes n
//   bn_reduce_T    parts [C, S, 2] = (sum dy, sum dy (x - mean)) in f64;   bn_params gives db and dw
//   bn_input_T     dx = (dy - db / m - (x - mean) r dw / m) (r w)                         reads 2 n, writes n
//                  m = *count where the ranks added it up on the device, else the argument
//
// Sources: B. P. Welford, Technometrics 4(3), 1962; T. F. Chan, G. H. Golub and R. J. LeVeque, 1979.
#include "element.cuh"

#define EPS 1e-5
#define MOMENTUM 0.1

struct Plane { u64 n, channels, plane; u32 last; };

// The position in memory of the i-th value of channel c.
INLINE u64 place(const Plane& s, u64 c, u64 i) {
    return s.last ? i * s.channels + c : (i / s.plane * s.channels + c) * s.plane + i % s.plane;
}

// The first of a channel's values in a slice, and so the end of the slice before it; the slices are near-equal.
INLINE u64 slice_begin(u64 m, u32 slice) { return m / gridDim.y * slice + (slice < m % gridDim.y ? slice : m % gridDim.y); }

struct Moments { f32 count, mean, m2; };

INLINE Moments merge(Moments a, Moments b) {
    f32 count = a.count + b.count;
    if (count == 0.0f) return a;
    f32 delta = b.mean - a.mean, share = b.count / count;
    Moments both = {count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share};
    return both;
}

INLINE Moments merge_block(Moments one, Moments* shared) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        Moments other = {__shfl_xor_sync(0xffffffffu, one.count, lane), __shfl_xor_sync(0xffffffffu, one.mean, lane),
                         __shfl_xor_sync(0xffffffffu, one.m2, lane)};
        one = merge(one, other);
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = one;
    __syncthreads();
    Moments all = shared[0];
    for (u32 warp = 1; warp < THREADS / 32; warp++) all = merge(all, shared[warp]);
    return all;
}

// The values of a channel's slice that this thread handles: from `begin` on, every `step`-th.
struct Share { u64 c, begin, end; u32 step; };
INLINE Share share_of(const Plane& s) {
    u64 m = s.n * s.plane, first = slice_begin(m, blockIdx.y), end = slice_begin(m, blockIdx.y + 1);
    Share all = {blockIdx.x, first + threadIdx.x, end, THREADS};
    if (!s.last) return all;
    Share column = {(u64)blockIdx.x * 32 + threadIdx.x % 32, first + threadIdx.x / 32, end, THREADS / 32};
    if (column.c >= s.channels) column.end = 0;
    return column;
}

template <class T> INLINE void bn_partial(const T* x, Plane s, Moments* parts) {
    __shared__ Moments shared[THREADS / 32][32];
    Share own = share_of(s);
    Moments mine = {0.0f, 0.0f, 0.0f};
    for (u64 i = own.begin; i < own.end; i += own.step) {
        f32 value = widen(x[place(s, own.c, i)]);
        mine.count += 1.0f;
        f32 delta = value - mine.mean;
        mine.mean += delta / mine.count;
        mine.m2 += delta * (value - mine.mean);
    }
    u64 c = own.c;
    if (s.last) {
        u32 lane = threadIdx.x % 32;
        shared[threadIdx.x / 32][lane] = mine;
        __syncthreads();
        if (threadIdx.x >= 32 || c >= s.channels) return;
        for (u32 warp = 1; warp < THREADS / 32; warp++) mine = merge(mine, shared[warp][lane]);
        parts[c * gridDim.y + blockIdx.y] = mine;
        return;
    }
    mine = merge_block(mine, shared[0]);
    if (threadIdx.x == 0) parts[c * gridDim.y + blockIdx.y] = mine;
}

// Writes the saved statistics of a channel of m values, and updates the channel's running statistics.
INLINE void settle(u64 c, u64 channels, f64 m, f64 mean, f64 var, f32* running, f32* means, f32* rs) {
    means[c] = (f32)mean;
    rs[c] = (f32)(1.0 / sqrt(var + EPS));
    f32 *old = running + c, *variance = running + channels + c;
    f32 moved = (f32)((1.0 - MOMENTUM) * *old + MOMENTUM * mean);
    f32 spread = m > 1.0 ? (f32)((1.0 - MOMENTUM) * *variance + MOMENTUM * (var * m / (m - 1.0))) : *variance;
    // As on the CPU, running statistics stay unchanged if the batch overflowed.
    if (m > 0.0 && is_finite(moved) && is_finite(spread)) *old = moved, *variance = spread;
}

KERNEL(bn_finish, const Moments* parts, u32 slices, u64 channels, f32* running, f32* means, f32* rs) {
    for (u64 c = (u64)blockIdx.x * THREADS + threadIdx.x; c < channels; c += (u64)gridDim.x * THREADS) {
        f64 count = 0.0, mean = 0.0, m2 = 0.0;
        for (u32 i = 0; i < slices; i++) {
            Moments part = parts[c * slices + i];
            f64 total = count + part.count, delta = part.mean - mean;
            if (total == 0.0) continue;
            m2 += part.m2 + delta * delta * count * part.count / total;
            mean += delta * part.count / total;
            count = total;
        }
        settle(c, channels, count, mean, m2 / count, running, means, rs);
    }
}

// Reduces two sums of a slice over all threads of the same channel, and writes them to `parts`.
INLINE void two_sums(const Plane& s, u64 c, f64 a, f64 b, f64 (*shared)[THREADS], f64* parts) {
    bool writes = threadIdx.x == 0;
    if (s.last) {
        shared[0][threadIdx.x] = a, shared[1][threadIdx.x] = b;
        __syncthreads();
        writes = threadIdx.x < 32 && c < s.channels;
        if (writes)
            for (u32 i = threadIdx.x + 32; i < THREADS; i += 32) a += shared[0][i], b += shared[1][i];
    } else {
        a = block_sum(a, shared[0]);
        b = block_sum(b, shared[1]);
    }
    if (!writes) return;
    parts[2 * (c * gridDim.y + blockIdx.y)] = a;
    parts[2 * (c * gridDim.y + blockIdx.y) + 1] = b;
}

template <class T> INLINE void bn_sums(const T* x, Plane s, f64* parts) {
    __shared__ f64 shared[2][THREADS];
    Share own = share_of(s);
    f64 sum = 0.0, squares = 0.0;
    for (u64 i = own.begin; i < own.end; i += own.step) {
        f64 value = widen(x[place(s, own.c, i)]);
        sum += value;
        squares += value * value;
    }
    two_sums(s, own.c, sum, squares, shared, parts);
}

KERNEL(bn_gather, const f64* parts, u32 slices, u64 channels, f64 count, f64* totals) {
    for (u64 c = (u64)blockIdx.x * THREADS + threadIdx.x; c < channels; c += (u64)gridDim.x * THREADS) {
        f64 sum = 0.0, squares = 0.0;
        for (u32 i = 0; i < slices; i++) {
            sum += parts[2 * (c * slices + i)];
            squares += parts[2 * (c * slices + i) + 1];
        }
        totals[1 + c] = sum;
        totals[1 + channels + c] = squares;
        if (c == 0) totals[0] = count;
    }
}

KERNEL(bn_by, const f64* totals, u64 channels, f32* running, f32* means, f32* rs) {
    for (u64 c = (u64)blockIdx.x * THREADS + threadIdx.x; c < channels; c += (u64)gridDim.x * THREADS) {
        f64 m = totals[0], mean = totals[1 + c] / m, var = totals[1 + channels + c] / m - mean * mean;
        // Rounding can make the variance slightly negative; a NaN stays NaN.
        settle(c, channels, m, mean, var < 0.0 ? 0.0 : var, running, means, rs);
    }
}

KERNEL(bn_running, const f32* running, u64 channels, f32* means, f32* rs) {
    for (u64 c = (u64)blockIdx.x * THREADS + threadIdx.x; c < channels; c += (u64)gridDim.x * THREADS) {
        means[c] = running[c];
        rs[c] = (f32)(1.0 / sqrt((f64)running[channels + c] + EPS));
    }
}

template <class T> struct Normalise {
    const T* x;
    const f32 *w, *b, *means, *rs;
    T* y;
    Plane s;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(x + i);
#pragma unroll
        for (int k = 0; k < W; k++) {
            u64 c = s.last ? (i + k) % s.channels : (i + k) / s.plane % s.channels;
            a.at[k] = narrow<T>((widen(a.at[k]) - means[c]) * (rs[c] * w[c]) + b[c]);
        }
        store<T, W>(y + i, a);
    }
};

template <class T> INLINE void bn_reduce(const T* x, const T* dy, Plane s, const f32* means, f64* parts) {
    __shared__ f64 shared[2][THREADS];
    Share own = share_of(s);
    f64 sum = 0.0, product = 0.0, mean = own.c < s.channels ? means[own.c] : 0.0f;
    for (u64 i = own.begin; i < own.end; i += own.step) {
        u64 at = place(s, own.c, i);
        f64 d = widen(dy[at]);
        sum += d;
        product += d * ((f64)widen(x[at]) - mean);
    }
    two_sums(s, own.c, sum, product, shared, parts);
}

KERNEL(bn_params, const f64* parts, u32 slices, u64 channels, const f32* rs, f32* dw, f32* db) {
    for (u64 c = (u64)blockIdx.x * THREADS + threadIdx.x; c < channels; c += (u64)gridDim.x * THREADS) {
        f64 sum = 0.0, product = 0.0;
        for (u32 i = 0; i < slices; i++) {
            sum += parts[2 * (c * slices + i)];
            product += parts[2 * (c * slices + i) + 1];
        }
        db[c] = (f32)sum;
        dw[c] = (f32)(product * rs[c]);
    }
}

template <class T> struct InputGradient {
    const T *x, *dy;
    const f32 *w, *means, *rs, *dw, *db;
    f32 m;
    T* dx;
    Plane s;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(x + i), d = load<T, W>(dy + i);
#pragma unroll
        for (int k = 0; k < W; k++) {
            u64 c = s.last ? (i + k) % s.channels : (i + k) / s.plane % s.channels;
            f32 from_b = db[c] / m, from_w = dw[c] / m;
            f32 hat = (widen(a.at[k]) - means[c]) * rs[c];
            a.at[k] = narrow<T>((widen(d.at[k]) - from_b - hat * from_w) * (rs[c] * w[c]));
        }
        store<T, W>(dx + i, a);
    }
};

#define BATCH_NORM(T)                                                                                               \
    KERNEL(bn_partial_##T, const T* x, Plane s, Moments* parts) { bn_partial<T>(x, s, parts); }                     \
    KERNEL(bn_sums_##T, const T* x, Plane s, f64* parts) { bn_sums<T>(x, s, parts); }                               \
    KERNEL(bn_apply_##T, const T* x, Plane s, const f32* w, const f32* b, const f32* means, const f32* rs, T* y) {  \
        Normalise<T> body = {x, w, b, means, rs, y, s};                                                             \
        u64 n = s.n * s.channels * s.plane;                                                                         \
        sweep<4>(n, head_of(x, y, n), body);                                                                        \
    }                                                                                                               \
    KERNEL(bn_reduce_##T, const T* x, const T* dy, Plane s, const f32* means, f64* parts) {                         \
        bn_reduce<T>(x, dy, s, means, parts);                                                                       \
    }                                                                                                               \
    KERNEL(bn_input_##T, const T* x, const T* dy, Plane s, const f32* w, const f32* means, const f32* rs,           \
           const f32* dw, const f32* db, f32 m, const f64* count, T* dx) {                                          \
        InputGradient<T> body = {x, dy, w, means, rs, dw, db, count ? (f32)*count : m, dx, s};                      \
        u64 n = s.n * s.channels * s.plane, head = head_of(x, dx, n);                                               \
        sweep<4>(n, until_aligned(dy) == until_aligned(x) ? head : n, body);                                        \
    }
FOR_TRAINED(BATCH_NORM)
