// Causal (or full) attention of several heads without the matrix of scores, by tiles and a running softmax.
//
//   q, k, v      rows [B T] of `stride` elements; head h begins at column h D.  One buffer [B T, 3 H D] serves all three:
//                its parts at 0, H D and 2 H D.        D up to 128: computed in 32, 64 or 128 columns, zeros beyond D
//   y, dy, ...   as q, with a stride of their own      lse, delta [B, H, T] f32
//
//   attention_D_T         y = softmax(q k' / sqrt(D)) v,  lse = ln of a row's sum of exp(score)  a warp per 4 queries (2 if D > 64)
//   attention_delta_T     delta = sum over D of dy y
//   attention_query_D_T   dq: a warp per query over all its keys;    p = exp(s - lse),  ds = p (dy v' - delta)
//   attention_key_D_T     dk, dv: a warp per key over all its queries
//   attention_merge_T     two results over other keys of the same queries become the result over all of them
//
// With dropout (a stream, as dropout.cu has it) y = r p v, where r is 0 or `keep` by a sample's draw (row ceil(T / 4) + key / 4)
// [key % 4], row = h T + t:
// dv = (r p)' dy,  ds = p (r dy v' - delta);  lse is that without dropout.
//
// This file has delta for all types, and the other kernels for f32. attention_mma.cu has them for f16 and bf16, by tensor cores.
//
// Sources: M. Milakov and N. Gimelshein, 2018 (online softmax); T. Dao et al., FlashAttention, NeurIPS 2022.
#define BLOCKS 2
#include "element.cuh"
#include "attention.cuh"

#define TILE 32u
// The rows that each warp handles: all of them use a tile that was read once. With D = 128, four rows would need more than 48 KiB.
template <int D> struct Own { static const u32 ROWS = D > 64 ? 2 : 4; };

// The dropout factor r of the probability of query t and a key, in head h of sample b.
INLINE f32 kept(const Heads& s, u64 b, u64 h, u64 t, u64 key) {
    if (!s.stream) return 1.0f;
    Four four = draws(s, b, h, t, key);
    key += s.key;
    u32 low = key & 1 ? four.at[1] : four.at[0], high = key & 1 ? four.at[3] : four.at[2];
    return (key & 2 ? high : low) >= s.bound ? s.keep : 0.0f;
}

// Copies 32 rows of D elements to shared memory, zeros beyond the end. Rows are padded, so that lanes read different banks.
template <class T, int D> INLINE void fill(f32 (*tile)[D + 1], const T* from, u64 stride, u64 first, u64 end, u32 size) {
    // A larger unrolling would need more registers than a thread has.
#pragma unroll 4
    for (u32 i = threadIdx.x; i < TILE * D; i += THREADS) {
        u64 row = first + i / D;
        tile[i / D][i % D] = row < end && i % D < size ? widen(from[row * stride + i % D]) : 0.0f;
    }
}

// The number of a tile's keys that a query attends to; the tile begins with key `at`.
INLINE u32 seen_keys(const Heads& s, u64 at, u64 query) {
    u64 end = query >= s.length ? 0 : s.causal ? query + 1 : s.length;
    return end <= at ? 0 : end - at < TILE ? (u32)(end - at) : TILE;
}

template <class T, int D> INLINE void attention(const T* q, const T* k, const T* v, Heads s, T* y, f32* lse) {
    const u32 ROWS = Own<D>::ROWS;
    __shared__ f32 keys[TILE][D + 1], values[TILE][D + 1];
    __shared__ f32 queries[THREADS / 32 * ROWS][D];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 PER = THREADS / 32 * ROWS;
    u64 b = blockIdx.y / s.heads, h = blockIdx.y % s.heads, base = b * s.length * s.stride + h * s.size;
    u64 first = (u64)blockIdx.x * PER;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < PER * D; i += THREADS) {
        u64 row = first + i / D;
        bool in = row < s.length && i % D < s.size;
        queries[i / D][i % D] = in ? widen(q[base + row * s.stride + i % D]) * s.scale : 0.0f;
    }
    f32 most[ROWS], total[ROWS], sum[ROWS][D / 32];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        most[r] = MINUS_INFINITY, total[r] = 0.0f;
#pragma unroll
        for (u32 d = 0; d < D / 32; d++) sum[r][d] = 0.0f;
    }
    u64 end = s.causal && first + PER < s.length ? first + PER : s.length;
    for (u64 at = 0; at < end; at += TILE) {
        __syncthreads();
        fill<T, D>(keys, k + base, s.stride, at, s.length, s.size);
        fill<T, D>(values, v + base, s.stride, at, s.length, s.size);
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            u64 query = first + warp * ROWS + r;
            u32 count = seen_keys(s, at, query);
            if (count == 0) continue;
            f32 score = 0.0f;
#pragma unroll 8
            for (u32 d = 0; d < D; d++) score += queries[warp * ROWS + r][d] * keys[lane][d];
            bool seen = lane < count;
            score = seen ? score : MINUS_INFINITY;
            f32 max = fmaxf(most[r], warp_max(score));
            // Unseen keys, and the sum before the first seen key, get weight 0: this avoids infinity minus infinity.
            f32 p = seen ? expf(score - max) : 0.0f, keep = most[r] == MINUS_INFINITY ? 0.0f : expf(most[r] - max);
            total[r] = total[r] * keep + warp_sum(p);
            most[r] = max;
            if (seen) p *= kept(s, b, h, query, at + lane);
#pragma unroll
            for (u32 d = 0; d < D / 32; d++) sum[r][d] *= keep;
            for (u32 eight = 0; eight < count; eight += 8)
#pragma unroll
                for (u32 j = eight; j < eight + 8; j++) {
                    f32 weight = __shfl_sync(0xffffffffu, p, j);
#pragma unroll
                    for (u32 d = 0; d < D / 32; d++) sum[r][d] += weight * values[j][d * 32 + lane];
                }
        }
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        u64 query = first + warp * ROWS + r;
        if (query >= s.length) continue;
        if (lane == 0) lse[lse_at(s, b, h, query)] = most[r] + logf(total[r]);
#pragma unroll
        for (u32 d = 0; d < D / 32; d++)
            if (d * 32 + lane < s.size)
                y[(b * s.length + query) * s.y_stride + h * s.size + d * 32 + lane] = narrow<T>(sum[r][d] / total[r]);
    }
}

template <class T> INLINE void attention_delta(const T* y, const T* dy, Heads s, u32 size, f32* delta) {
    u32 lane = threadIdx.x % 32;
    u64 rows = s.batch * s.heads * s.length;
    for (u64 i = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; i < rows; i += (u64)gridDim.x * (THREADS / 32)) {
        u64 b = i / s.length / s.heads, h = i / s.length % s.heads, t = i % s.length;
        u64 at = (b * s.length + t) * s.y_stride + h * size;
        f32 sum = 0.0f;
        for (u32 d = lane; d < size; d += 32) sum += widen(y[at + d]) * widen(dy[at + d]);
        sum = warp_sum(sum);
        if (lane == 0) delta[i] = sum;
    }
}

// Merges the result of attending to some of the keys into the result of attending to others: y (f32) and lse of rows `first` on of each
// sequence of `own` rows. If these are the first keys of the rows, y and lse have no values yet.
template <class T> INLINE void attention_merge(const T* part, const f32* part_lse, Heads s, u64 own, u64 first, u32 begins, f32* y, f32* lse) {
    u32 lane = threadIdx.x % 32;
    u64 rows = s.batch * s.heads * s.length;
    for (u64 i = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; i < rows; i += (u64)gridDim.x * (THREADS / 32)) {
        u64 b = i / s.length / s.heads, h = i / s.length % s.heads, t = i % s.length;
        u64 at = (b * s.heads + h) * own + first + t;
        f32 before = lane == 0 && !begins ? lse[at] : MINUS_INFINITY, now = part_lse[i];
        before = __shfl_sync(0xffffffffu, before, 0);
        f32 most = fmaxf(before, now), sum = most + logf(expf(before - most) + expf(now - most));
        f32 keep = expf(before - sum), share = expf(now - sum);
        for (u32 d = lane; d < s.size; d += 32) {
            f32* to = y + ((b * own + first + t) * s.heads + h) * s.size + d;
            f32 old = begins ? 0.0f : *to * keep;
            *to = old + share * widen(part[((b * s.length + t) * s.heads + h) * s.size + d]);
        }
        if (lane == 0) lse[at] = sum;
    }
}

template <class T, int D>
INLINE void attention_query(const T* q, const T* k, const T* v, const T* dy, const f32* lse, const f32* delta, Heads s, T* dq) {
    __shared__ f32 keys[TILE][D + 1], values[TILE][D + 1];
    __shared__ f32 own[2][THREADS / 32][D];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 b = blockIdx.y / s.heads, h = blockIdx.y % s.heads, base = b * s.length * s.stride + h * s.size;
    u64 first = (u64)blockIdx.x * (THREADS / 32), query = first + warp;
    bool there = query < s.length;
    for (u32 d = lane; d < D; d += 32) {
        bool in = there && d < s.size;
        own[0][warp][d] = in ? widen(q[base + query * s.stride + d]) : 0.0f;
        own[1][warp][d] = in ? widen(dy[(b * s.length + query) * s.y_stride + h * s.size + d]) : 0.0f;
    }
    f32 norm = there ? lse[lse_at(s, b, h, query)] : 0.0f, shift = there ? delta[lse_at(s, b, h, query)] : 0.0f;
    f32 sum[D / 32];
#pragma unroll
    for (u32 d = 0; d < D / 32; d++) sum[d] = 0.0f;
    u64 end = s.causal && first + THREADS / 32 < s.length ? first + THREADS / 32 : s.length;
    for (u64 at = 0; at < end; at += TILE) {
        __syncthreads();
        fill<T, D>(keys, k + base, s.stride, at, s.length, s.size);
        fill<T, D>(values, v + base, s.stride, at, s.length, s.size);
        __syncthreads();
        u32 count = seen_keys(s, at, query);
        if (count == 0) continue;
        f32 score = 0.0f, dp = 0.0f;
#pragma unroll 8
        for (u32 d = 0; d < D; d++) {
            score += own[0][warp][d] * keys[lane][d];
            dp += own[1][warp][d] * values[lane][d];
        }
        bool seen = lane < count;
        if (seen) dp *= kept(s, b, h, query, at + lane);
        f32 ds = seen ? expf(score * s.scale - norm) * (dp - shift) * s.scale : 0.0f;
        for (u32 eight = 0; eight < count; eight += 8)
#pragma unroll
            for (u32 j = eight; j < eight + 8; j++) {
                f32 weight = __shfl_sync(0xffffffffu, ds, j);
#pragma unroll
                for (u32 d = 0; d < D / 32; d++) sum[d] += weight * keys[j][d * 32 + lane];
            }
    }
    if (!there) return;
#pragma unroll
    for (u32 d = 0; d < D / 32; d++)
        if (d * 32 + lane < s.size) dq[base + query * s.stride + d * 32 + lane] = narrow<T>(sum[d]);
}

template <class T, int D>
INLINE void attention_key(const T* q, const T* k, const T* v, const T* dy, const f32* lse, const f32* delta, Heads s, T* dk,
                          T* dv) {
    __shared__ f32 queries[TILE][D + 1], gradients[TILE][D + 1];
    __shared__ f32 own[2][THREADS / 32][D];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 b = blockIdx.y / s.heads, h = blockIdx.y % s.heads, base = b * s.length * s.stride + h * s.size;
    u64 first = (u64)blockIdx.x * (THREADS / 32), key = first + warp;
    bool there = key < s.length;
    for (u32 d = lane; d < D; d += 32) {
        bool in = there && d < s.size;
        own[0][warp][d] = in ? widen(k[base + key * s.stride + d]) : 0.0f;
        own[1][warp][d] = in ? widen(v[base + key * s.stride + d]) : 0.0f;
    }
    f32 dk_sum[D / 32], dv_sum[D / 32];
#pragma unroll
    for (u32 d = 0; d < D / 32; d++) dk_sum[d] = 0.0f, dv_sum[d] = 0.0f;
    for (u64 at = s.causal ? first / TILE * TILE : 0; at < s.length; at += TILE) {
        __syncthreads();
        fill<T, D>(queries, q + base, s.stride, at, s.length, s.size);
        fill<T, D>(gradients, dy + b * s.length * s.y_stride + h * s.size, s.y_stride, at, s.length, s.size);
        __syncthreads();
        // The queries of the tile that attend to the key: from `begin` on, before `end`.
        u32 begin = s.causal && key > at ? (u32)(key - at) : 0, end = s.length - at < TILE ? (u32)(s.length - at) : TILE;
        if (!there || begin >= end) continue;
        f32 score = 0.0f, dp = 0.0f;
#pragma unroll 8
        for (u32 d = 0; d < D; d++) {
            score += own[0][warp][d] * queries[lane][d];
            dp += own[1][warp][d] * gradients[lane][d];
        }
        u64 query = at + lane;
        bool seen = begin <= lane && lane < end;
        f32 p = seen ? expf(score * s.scale - lse[lse_at(s, b, h, query)]) : 0.0f;
        f32 r = seen ? kept(s, b, h, query, key) : 0.0f;
        f32 ds = seen ? p * (dp * r - delta[lse_at(s, b, h, query)]) * s.scale : 0.0f;
        p *= r;
        for (u32 eight = begin / 8 * 8; eight < end; eight += 8)
#pragma unroll
            for (u32 j = eight; j < eight + 8; j++) {
                f32 weight = __shfl_sync(0xffffffffu, p, j), slope = __shfl_sync(0xffffffffu, ds, j);
#pragma unroll
                for (u32 d = 0; d < D / 32; d++) {
                    dv_sum[d] += weight * gradients[j][d * 32 + lane];
                    dk_sum[d] += slope * queries[j][d * 32 + lane];
                }
            }
    }
    if (!there) return;
#pragma unroll
    for (u32 d = 0; d < D / 32; d++) {
        if (d * 32 + lane >= s.size) continue;
        dk[base + key * s.stride + d * 32 + lane] = narrow<T>(dk_sum[d]);
        dv[base + key * s.stride + d * 32 + lane] = narrow<T>(dv_sum[d]);
    }
}

#define ATTENTION_OF(D, T)                                                                                             \
    KERNEL(attention_##D##_##T, const T* q, const T* k, const T* v, Heads s, T* y, f32* lse) {                         \
        attention<T, D>(q, k, v, s, y, lse);                                                                           \
    }                                                                                                                  \
    KERNEL(attention_query_##D##_##T, const T* q, const T* k, const T* v, const T* dy, const f32* lse,                 \
           const f32* delta, Heads s, T* dq) {                                                                         \
        attention_query<T, D>(q, k, v, dy, lse, delta, s, dq);                                                         \
    }                                                                                                                  \
    KERNEL(attention_key_##D##_##T, const T* q, const T* k, const T* v, const T* dy, const f32* lse, const f32* delta, \
           Heads s, T* dk, T* dv) {                                                                                    \
        attention_key<T, D>(q, k, v, dy, lse, delta, s, dk, dv);                                                       \
    }
#define ATTENTION_f32 ATTENTION_OF(32, f32) ATTENTION_OF(64, f32) ATTENTION_OF(128, f32)
#define ATTENTION_f16
#define ATTENTION_bf16
#define ATTENTION(T)                                                                                                   \
    ATTENTION_##T                                                                                                      \
    KERNEL(attention_delta_##T, const T* y, const T* dy, Heads s, u32 size, f32* delta) {                              \
        attention_delta<T>(y, dy, s, size, delta);                                                                     \
    }                                                                                                                  \
    KERNEL(attention_merge_##T, const T* part, const f32* part_lse, Heads s, u64 own, u64 first, u32 begins, f32* y,   \
           f32* lse) {                                                                                                 \
        attention_merge<T>(part, part_lse, s, own, first, begins, y, lse);                                             \
    }
FOR_TRAINED(ATTENTION)
