// Batch normalisation over the channels of pictures: by moments within a rank, and by sums over several ranks.
//
//   x, y [N, C, P]  (P = H W; channels last: [N, P, C])     w, b, mean, r [C] f32      running [2 C] f32
//
//   bn_partial_T   parts [C, S] = (count, mean, M2) of slice s of a channel                reads n
//   bn_finish      merges S parts: mean, r = 1 / sqrt(var + eps), updates the running statistics
//   bn_gather      totals (1 + 2 C: count, sums, sums of squares) in f64 from the parts, for ranks to add up
//   bn_by          mean and r from totals, updates the running statistics
//   bn_running     mean and r from the running statistics, for evaluation
//   bn_apply_T     y = (x - mean) (r w) + b                                               reads n, writes n
//   bn_relu_T      y = max(0, that), of T, + other if it is not null                      reads n or 2 n, writes n
//   bn_reduce_T    parts [C, S, 2] = (sum dy, sum dy (x - mean)) in f64;   bn_params gives db and dw      reads 2 n
//   bn_input_T     dx = (dy - db / m - (x - mean) r dw / m) (r w)                         reads 2 n, writes n
//   bn_relu_reduce_T, bn_relu_input_T     the same with dy = 0 where bn_relu gives no value above 0, computed again from x
//   bn_add_reduce_T    dz = dy + more (null: dy) where y > 0, else 0, and the sums of bn_reduce with dz       reads 3 n or 4 n, writes n
//                  m = *count where the ranks added it up on the device, else the argument
//
// Grid of the kernels that read x: (channels, slices). A thread has the same channels in all its steps, so it reads the values per
// channel once; in a step it loads U packs of W values before it uses the first pack.
//
//   planes          a block a channel;   the packs of its planes one after another, thread t the packs t, t + 256, ...
//   channels last   a block 32 channels; a pack is W adjacent channels of a pixel, a block 8 W pixels side by side
//   W               4, or 1 where a pack would cross planes or pixels or is not aligned
//
// Moments are of differences from the channel's first value, so that a mean much larger than the deviation costs no digits. The U
// values of a step are summed in two passes over registers, then merged by Chan's formula.
//
// Source: T. F. Chan, G. H. Golub and R. J. LeVeque, 1979.
#include "element.cuh"

#define EPS 1e-5
#define MOMENTUM 0.1

struct Plane { u64 n, channels, plane; u32 last; };

// The first of a channel's `m` packs in a slice, which is the end of the slice before; the slices are near-equal.
INLINE u32 slice_begin(u32 m, u32 slice) { return m / gridDim.y * slice + (slice < m % gridDim.y ? slice : m % gridDim.y); }

// The packs of W values that a thread handles: `left` of them, the next at `at`. A channel has less than 2^32 values.
template <int W> struct Walk {
    // The channel of the pack's first value; channels last: its k-th value is of channel c + k.
    u64 c;
    // The distances to the next pack, within the same plane and beyond its end.
    u64 at, near, far;
    // `column` counts packs within a plane. From `back` on, the next pack is in a later plane than its predecessors.
    u32 left, column, by, back;

    INLINE Walk(const Plane& s) {
        u32 per_pixel = 32 / W, lane = s.last ? threadIdx.x % per_pixel : 0, t = s.last ? threadIdx.x / per_pixel : threadIdx.x;
        u32 step = s.last ? THREADS / per_pixel : THREADS, width = (u32)s.plane / (s.last ? 1 : W), m = (u32)s.n * width;
        u32 i = slice_begin(m, blockIdx.y) + t, end = slice_begin(m, blockIdx.y + 1);
        c = s.last ? (u64)blockIdx.x * 32 + lane * W : blockIdx.x;
        left = i < end && c < s.channels ? (end - i + step - 1) / step : 0;
        column = 0, by = 0, back = 1, at = i * s.channels + c, near = step * s.channels, far = near;
        if (s.last || width == 0) return;
        u64 sample = s.channels * s.plane;
        column = i % width, by = step % width, back = width - by;
        at = (i / width) * sample + c * s.plane + (u64)column * W;
        near = (step / width) * sample + by * W;
        far = near + sample - s.plane;
    }
    INLINE u64 next() {
        u64 here = at;
        bool beyond = column >= back;
        column = beyond ? column - back : column + by;
        at += beyond ? far : near;
        return here;
    }
    // The values of this thread's channels from a vector [C].
    INLINE void own(const Plane& s, const f32* from, f32 (&into)[W]) const {
#pragma unroll
        for (int k = 0; k < W; k++) into[k] = left ? from[c + (s.last ? k : 0)] : 0.0f;
    }
    // body.step<true>(*this) takes the next U packs, body.step<false>(*this) the `left` packs after them.
    template <class Body> INLINE void over(Body& body) {
        for (; left >= (u32)Body::U; left -= (u32)Body::U) body.template step<true>(*this);
        if (left) body.template step<false>(*this);
    }
};

// Whether packs of 4 neither cross planes or pixels nor are unaligned in memory at any address whose bits are in `addresses`.
template <class T> INLINE bool in_packs(const Plane& s, u64 addresses) {
    return (s.last ? s.channels : s.plane) % 4 == 0 && addresses % (4 * sizeof(T)) == 0;
}

// ---- statistics ----

struct Moments { f32 count, mean, m2; };

INLINE Moments merge(Moments a, Moments b) {
    f32 count = a.count + b.count;
    if (count == 0.0f) return a;
    f32 delta = b.mean - a.mean, share = b.count / count;
    Moments both = {count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share};
    return both;
}

INLINE Moments merge_lanes(Moments one, int first) {
    for (int lane = first; lane < 32; lane *= 2) {
        Moments other = {__shfl_xor_sync(0xffffffffu, one.count, lane), __shfl_xor_sync(0xffffffffu, one.mean, lane),
                         __shfl_xor_sync(0xffffffffu, one.m2, lane)};
        one = merge(one, other);
    }
    return one;
}

template <class T, int W> struct Gather {
    static const int U = W == 1 ? 8 : sizeof(T) == 4 ? 4 : 6;
    const T* x;
    f32 origin[W], count, mean[W], m2[W];
    template <bool FULL> INLINE void step(Walk<W>& walk) {
        Pack<T, W> a[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            u64 at = walk.next();
            if (FULL || u < (int)walk.left) a[u] = load<T, W>(x + at);
        }
        f32 n = FULL ? (f32)U : (f32)walk.left, total = count + n, share = n / total;
#pragma unroll
        for (int k = 0; k < W; k++) {
            f32 from_origin[U], sum = 0.0f, spread = 0.0f;
#pragma unroll
            for (int u = 0; u < U; u++) {
                from_origin[u] = FULL || u < (int)walk.left ? widen(a[u].at[k]) - origin[k] : 0.0f;
                sum += from_origin[u];
            }
            f32 middle = FULL ? sum * (1.0f / U) : sum / n, delta = middle - mean[k];
#pragma unroll
            for (int u = 0; u < U; u++) {
                f32 apart = FULL || u < (int)walk.left ? from_origin[u] - middle : 0.0f;
                spread += apart * apart;
            }
            mean[k] += delta * share;
            m2[k] += spread + delta * delta * (count * share);
        }
        count = total;
    }
};

template <int W, class T> INLINE void partial(const T* x, const Plane& s, Moments (*shared)[32], Moments* parts) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // The first value of channel c.
    u64 apart = s.last ? 1 : s.plane;
    Walk<W> walk(s);
    Gather<T, W> mine = {x};
    mine.count = 0.0f;
#pragma unroll
    for (int k = 0; k < W; k++) {
        mine.origin[k] = walk.left ? widen(x[(walk.c + (s.last ? k : 0)) * apart]) : 0.0f;
        mine.mean[k] = mine.m2[k] = 0.0f;
    }
    walk.over(mine);
    u64 c = s.last ? (u64)blockIdx.x * 32 + threadIdx.x : blockIdx.x;
    Moments all = {mine.count, mine.mean[0], mine.m2[0]};
    if (s.last) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            Moments one = {mine.count, mine.mean[k], mine.m2[k]};
            one = merge_lanes(one, 32 / W);
            if (lane < 32 / W) shared[warp][lane * W + k] = one;
        }
    } else {
#pragma unroll
        for (int k = 1; k < W; k++) {
            Moments one = {mine.count, mine.mean[k], mine.m2[k]};
            all = merge(all, one);
        }
        all = merge_lanes(all, 1);
        if (lane == 0) shared[warp][0] = all;
    }
    __syncthreads();
    if (threadIdx.x >= (s.last ? 32 : 1) || c >= s.channels) return;
    all = shared[0][lane];
    for (u32 i = 1; i < THREADS / 32; i++) all = merge(all, shared[i][lane]);
    if (all.count > 0.0f) all.mean += widen(x[c * apart]);
    parts[c * gridDim.y + blockIdx.y] = all;
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

// The channels of a kernel that merges parts: a warp a channel, a lane every 32nd part.
#define EACH_CHANNEL(c) \
    for (u64 c = ((u64)blockIdx.x * THREADS + threadIdx.x) / 32; c < channels; c += (u64)gridDim.x * (THREADS / 32))

KERNEL(bn_finish, const Moments* parts, u32 slices, u64 channels, f32* running, f32* means, f32* rs) {
    EACH_CHANNEL(c) {
        f64 count = 0.0, sum = 0.0, m2 = 0.0;
        for (u32 i = threadIdx.x % 32; i < slices; i += 32) {
            Moments part = parts[c * slices + i];
            count += part.count;
            sum += (f64)part.count * part.mean;
        }
        count = warp_sum(count);
        f64 mean = warp_sum(sum) / (count > 0.0 ? count : 1.0);
        for (u32 i = threadIdx.x % 32; i < slices; i += 32) {
            Moments part = parts[c * slices + i];
            f64 delta = part.mean - mean;
            m2 += part.m2 + delta * delta * part.count;
        }
        m2 = warp_sum(m2);
        if (threadIdx.x % 32 == 0) settle(c, channels, count, mean, m2 / count, running, means, rs);
    }
}

KERNEL(bn_gather, const Moments* parts, u32 slices, u64 channels, f64 count, f64* totals) {
    EACH_CHANNEL(c) {
        f64 sum = 0.0, squares = 0.0;
        for (u32 i = threadIdx.x % 32; i < slices; i += 32) {
            Moments part = parts[c * slices + i];
            f64 of_part = (f64)part.count * part.mean;
            sum += of_part;
            squares += part.m2 + of_part * part.mean;
        }
        sum = warp_sum(sum), squares = warp_sum(squares);
        if (threadIdx.x % 32 != 0) continue;
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

// ---- the forward pass ----

template <class T, int W, bool RELU> struct Normalise {
    static const int U = W == 1 ? 8 : (RELU ? 8 : 16) / (int)sizeof(T);
    const T *x, *other;
    T* y;
    f32 mean[W], scale[W], bias[W];
    template <bool FULL> INLINE void step(Walk<W>& walk) {
        // The places are computed a second time for the stores, which takes fewer registers than storing them.
        Walk<W> again = walk;
        Pack<T, W> a[U], b[RELU ? U : 1];
#pragma unroll
        for (int u = 0; u < U; u++) {
            u64 at = walk.next();
            if (!FULL && u >= (int)walk.left) continue;
            a[u] = load<T, W>(x + at);
            if (RELU && other) b[RELU ? u : 0] = load<T, W>(other + at);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (!FULL && u >= (int)walk.left) break;
#pragma unroll
            for (int k = 0; k < W; k++) {
                a[u].at[k] = narrow<T>((widen(a[u].at[k]) - mean[k]) * scale[k] + bias[k]);
                // Each operation rounds to T, as where it is a kernel of its own.
                if (RELU && other) a[u].at[k] = narrow<T>(widen(a[u].at[k]) + widen(b[RELU ? u : 0].at[k]));
                if (RELU) a[u].at[k] = narrow<T>(widen(a[u].at[k]) < 0.0f ? 0.0f : widen(a[u].at[k]));
            }
            store<T, W>(y + again.next(), a[u]);
        }
    }
};

template <int W, bool RELU, class T>
INLINE void normalise(const T* x, const T* other, const Plane& s, const f32* w, const f32* b, const f32* means,
                      const f32* rs, T* y) {
    Walk<W> walk(s);
    Normalise<T, W, RELU> body = {x, other, y};
    f32 r[W];
    walk.own(s, means, body.mean);
    walk.own(s, b, body.bias);
    walk.own(s, rs, r);
    walk.own(s, w, body.scale);
#pragma unroll
    for (int k = 0; k < W; k++) body.scale[k] = r[k] * body.scale[k];
    walk.over(body);
}

// ---- the backward pass ----

// The mask of a rectifier after a batch norm: whether the normalised value, of T, is above 0.
template <class T, int W> struct Mask {
    f32 scale[W], bias[W];
    INLINE bool open(f32 apart, int k) const { return widen(narrow<T>(apart * scale[k] + bias[k])) > 0.0f; }
    INLINE Mask(const Walk<W>& walk, const Plane& s, const f32* w, const f32* b, const f32* rs) {
        f32 r[W];
        walk.own(s, b, bias);
        walk.own(s, rs, r);
        walk.own(s, w, scale);
#pragma unroll
        for (int k = 0; k < W; k++) scale[k] = r[k] * scale[k];
    }
};

// The gradient that arrives at a batch norm: dy; dy behind a rectifier; or dy + more behind a sum and a rectifier, which is also stored.
enum Behind { NOTHING, RELU, ADD };

template <class T, int W, Behind B> struct Reduce {
    static const int U = B == ADD ? 1 : W == 1 ? (B == RELU ? 2 : 8) : (B == RELU ? 4 : 8) / (int)sizeof(T);
    const T *x, *dy, *y, *more;
    T* dz;
    const Mask<T, W>& mask;
    f32 mean[W];
    f64 sum[W], product[W];
    template <bool FULL> INLINE void step(Walk<W>& walk) {
        Walk<W> again = walk;
        Pack<T, W> a[U], d[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            u64 at = walk.next();
            if (FULL || u < (int)walk.left) a[u] = load<T, W>(x + at), d[u] = load<T, W>(dy + at);
        }
        if (B == ADD) {
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (!FULL && u >= (int)walk.left) break;
                u64 at = again.next();
                Pack<T, W> out = load<T, W>(y + at), e;
                if (more) e = load<T, W>(more + at);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    if (more) d[u].at[k] = narrow<T>(widen(d[u].at[k]) + widen(e.at[k]));
                    d[u].at[k] = narrow<T>(widen(out.at[k]) > 0.0f ? widen(d[u].at[k]) : 0.0f);
                }
                store<T, W>(dz + at, d[u]);
            }
        }
#pragma unroll
        for (int k = 0; k < W; k++) {
            f32 few = 0.0f, products = 0.0f;
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (!FULL && u >= (int)walk.left) break;
                f32 apart = widen(a[u].at[k]) - mean[k];
                f32 one = B == RELU && !mask.open(apart, k) ? 0.0f : widen(d[u].at[k]);
                few += one;
                products += one * apart;
            }
            sum[k] += few, product[k] += products;
        }
    }
};

// Writes the sums of a slice over all threads of the same channel to `parts`.
template <int W> INLINE void block_sums(const Plane& s, f64 (&x)[W], f64 (*shared)[32], f64* parts) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 c = s.last ? (u64)blockIdx.x * 32 + threadIdx.x : blockIdx.x;
    __syncthreads();
    if (s.last) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            for (int other = 32 / W; other < 32; other *= 2) x[k] += __shfl_xor_sync(0xffffffffu, x[k], other);
            if (lane < 32 / W) shared[warp][lane * W + k] = x[k];
        }
    } else {
#pragma unroll
        for (int k = 1; k < W; k++) x[0] += x[k];
        x[0] = warp_sum(x[0]);
        if (lane == 0) shared[warp][0] = x[0];
    }
    __syncthreads();
    if (threadIdx.x >= (s.last ? 32 : 1) || c >= s.channels) return;
    f64 all = shared[0][lane];
    for (u32 i = 1; i < THREADS / 32; i++) all += shared[i][lane];
    parts[2 * (c * gridDim.y + blockIdx.y)] = all;
}

// What the kernels of the backward pass read and write; `b` is null without a rectifier of its own, `more` without a second gradient.
template <class T> struct Back { const T *x, *dy, *y, *more; T* dz; const f32 *w, *b, *means, *rs; };

template <int W, Behind B, class T>
INLINE void reduce(const Back<T>& of, const Plane& s, f64 (*shared)[32], f64* parts) {
    Walk<W> walk(s);
    const Mask<T, W> mask(walk, s, B == RELU ? of.w : of.means, B == RELU ? of.b : of.means, B == RELU ? of.rs : of.means);
    Reduce<T, W, B> body = {of.x, of.dy, of.y, of.more, of.dz, mask};
    walk.own(s, of.means, body.mean);
#pragma unroll
    for (int k = 0; k < W; k++) body.sum[k] = body.product[k] = 0.0;
    walk.over(body);
    block_sums<W>(s, body.sum, shared, parts);
    block_sums<W>(s, body.product, shared, parts + 1);
}

KERNEL(bn_params, const f64* parts, u32 slices, u64 channels, const f32* rs, f32* dw, f32* db) {
    EACH_CHANNEL(c) {
        f64 sum = 0.0, product = 0.0;
        for (u32 i = threadIdx.x % 32; i < slices; i += 32) {
            sum += parts[2 * (c * slices + i)];
            product += parts[2 * (c * slices + i) + 1];
        }
        sum = warp_sum(sum), product = warp_sum(product);
        if (threadIdx.x % 32 == 0) db[c] = (f32)sum, dw[c] = (f32)(product * rs[c]);
    }
}

template <class T, int W, Behind B> struct InputGradient {
    static const int U = W == 1 ? (B == NOTHING ? 8 : 4) : (B == NOTHING ? 8 : 4) / (int)sizeof(T);
    const T *x, *dy;
    T* dx;
    const Mask<T, W>& mask;
    f32 mean[W], r[W], scale[W], from_w[W], from_b[W];
    template <bool FULL> INLINE void step(Walk<W>& walk) {
        Walk<W> again = walk;
        Pack<T, W> a[U], d[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            u64 at = walk.next();
            if (FULL || u < (int)walk.left) a[u] = load<T, W>(x + at), d[u] = load<T, W>(dy + at);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (!FULL && u >= (int)walk.left) break;
#pragma unroll
            for (int k = 0; k < W; k++) {
                f32 apart = widen(a[u].at[k]) - mean[k], hat = apart * r[k];
                f32 one = B == RELU && !mask.open(apart, k) ? 0.0f : widen(d[u].at[k]);
                a[u].at[k] = narrow<T>((one - from_b[k] - hat * from_w[k]) * scale[k]);
            }
            store<T, W>(dx + again.next(), a[u]);
        }
    }
};

template <int W, Behind B, class T>
INLINE void input(const Back<T>& of, const Plane& s, const f32* dw, const f32* db, f32 m, T* dx) {
    Walk<W> walk(s);
    const Mask<T, W> mask(walk, s, of.w, B == RELU ? of.b : of.w, of.rs);
    InputGradient<T, W, B> body = {of.x, of.dy, dx, mask};
    walk.own(s, of.means, body.mean);
    walk.own(s, of.rs, body.r);
    walk.own(s, of.w, body.scale);
    walk.own(s, dw, body.from_w);
    walk.own(s, db, body.from_b);
#pragma unroll
    for (int k = 0; k < W; k++) {
        body.scale[k] = body.r[k] * body.scale[k];
        body.from_w[k] = body.from_w[k] / m;
        body.from_b[k] = body.from_b[k] / m;
    }
    walk.over(body);
}

#define BN_REDUCE(T, B, places)                                                                                     \
    __shared__ f64 shared[THREADS / 32][32];                                                                        \
    in_packs<T>(s, places) ? reduce<4, B>(of, s, shared, parts) : reduce<1, B>(of, s, shared, parts);
#define BN_INPUT(T, B)                                                                                              \
    if (count) m = (f32)*count;                                                                                     \
    in_packs<T>(s, (u64)x | (u64)dy | (u64)dx) ? input<4, B>(of, s, dw, db, m, dx) : input<1, B>(of, s, dw, db, m, dx);

#define BATCH_NORM(T)                                                                                               \
    KERNEL(bn_partial_##T, const T* x, Plane s, Moments* parts) {                                                   \
        __shared__ Moments shared[THREADS / 32][32];                                                                \
        in_packs<T>(s, (u64)x) ? partial<4>(x, s, shared, parts) : partial<1>(x, s, shared, parts);                 \
    }                                                                                                               \
    KERNEL(bn_apply_##T, const T* x, Plane s, const f32* w, const f32* b, const f32* means, const f32* rs, T* y) {  \
        in_packs<T>(s, (u64)x | (u64)y) ? normalise<4, false>(x, (const T*)0, s, w, b, means, rs, y)                \
                                        : normalise<1, false>(x, (const T*)0, s, w, b, means, rs, y);               \
    }                                                                                                               \
    KERNEL(bn_relu_##T, const T* x, Plane s, const f32* w, const f32* b, const f32* means, const f32* rs,           \
           const T* other, T* y) {                                                                                  \
        in_packs<T>(s, (u64)x | (u64)y | (u64)other) ? normalise<4, true>(x, other, s, w, b, means, rs, y)          \
                                                     : normalise<1, true>(x, other, s, w, b, means, rs, y);         \
    }                                                                                                               \
    KERNEL(bn_reduce_##T, const T* x, const T* dy, Plane s, const f32* means, f64* parts) {                         \
        Back<T> of = {x, dy, 0, 0, 0, 0, 0, means, 0};                                                              \
        BN_REDUCE(T, NOTHING, (u64)x | (u64)dy)                                                                     \
    }                                                                                                               \
    KERNEL(bn_relu_reduce_##T, const T* x, const T* dy, Plane s, const f32* means, const f32* w, const f32* b,      \
           const f32* rs, f64* parts) {                                                                             \
        Back<T> of = {x, dy, 0, 0, 0, w, b, means, rs};                                                             \
        BN_REDUCE(T, RELU, (u64)x | (u64)dy)                                                                        \
    }                                                                                                               \
    KERNEL(bn_add_reduce_##T, const T* x, const T* dy, Plane s, const f32* means, const T* y, const T* more, T* dz, \
           f64* parts) {                                                                                            \
        Back<T> of = {x, dy, y, more, dz, 0, 0, means, 0};                                                          \
        BN_REDUCE(T, ADD, (u64)x | (u64)dy | (u64)y | (u64)more | (u64)dz)                                          \
    }                                                                                                               \
    KERNEL(bn_input_##T, const T* x, const T* dy, Plane s, const f32* w, const f32* means, const f32* rs,           \
           const f32* dw, const f32* db, f32 m, const f64* count, T* dx) {                                          \
        Back<T> of = {x, dy, 0, 0, 0, w, 0, means, rs};                                                             \
        BN_INPUT(T, NOTHING)                                                                                        \
    }                                                                                                               \
    KERNEL(bn_relu_input_##T, const T* x, const T* dy, Plane s, const f32* w, const f32* means, const f32* rs,      \
           const f32* dw, const f32* db, f32 m, const f64* count, const f32* b, T* dx) {                            \
        Back<T> of = {x, dy, 0, 0, 0, w, b, means, rs};                                                             \
        BN_INPUT(T, RELU)                                                                                           \
    }
FOR_TRAINED(BATCH_NORM)
