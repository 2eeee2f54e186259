// Attention of 16-bit floats by tensor cores: attention.cu has the formulas and the layout of q, k, v, y, lse and delta.
//
//   attention_D_T         a block makes 128 queries, 16 per warp, and loops over tiles of keys and values
//   attention_query_D_T   dq, by the same loop
//   attention_key_D_T     dk, dv: a block makes 128 keys, 16 per warp, and loops over tiles of queries and of dy
//
//   a tile is 64 rows (32 if D > 64) in shared memory, one of two: while a tile is used, the next one is copied
//   a warp's product   c [16, 8] += a [16, 16] b [16, 8]     mma.m16n8k16, f32 sums
//       lane 4 g + t holds   c: rows g, g + 8, columns 2 t, 2 t + 1
//                            a: rows g, g + 8, columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9      b: column g, these rows
//   so two fragments c of one product, rounded to T, are the fragment a of the next: p and ds never leave their registers.
//
// p and ds are rounded to 16 bits as operands of a product. All sums, the softmax and the scale are f32.
//
// Sources: T. Dao, FlashAttention-2, 2023; NVIDIA, PTX ISA, "Matrix fragments for mma.m16n8k16".
#define BLOCKS 2
#include "element.cuh"
#include "attention.cuh"

// The rows of a block and of a warp.
#define ROWS 128u
#define OWN 16u
#define LOG2_E 1.4426950408889634f

#if defined(SHIM) || __CUDA_ARCH__ < 800
#define EMULATED
#endif

// A row of a tile. The 16 bytes at its end are never used: they place the rows of a fragment in different banks.
template <int D> struct Row { uint4 words[D / 8 + 1]; };
// The rows of a tile, and the rows of a tile that the backward kernels compute at a time: as many as registers allow.
template <int D> struct Tile {
    static const u32 SIZE = D > 64 ? 32 : 64, QUERY_STEP = D == 64 ? 16 : 32, KEY_STEP = D == 64 ? 32 : 16;
};

// The four 32-bit registers of a 16 x 16 fragment: register i has the 8 x 8 quarter of rows i % 2 and columns i / 2.
struct Fragment { u32 at[4]; };

// ---- what tensor cores and their loads do; emulated on the shim and on devices before compute 80 ----

INLINE u32 both(u16 low, u16 high) { return low | (u32)high << 16; }

#ifdef EMULATED
template <class T> INLINE f32 half_of(u32 word, u32 high) { T x; x.bits = (u16)(word >> 16 * high); return widen(x); }
template <class T> INLINE void mma(f32 (&c)[4], const Fragment& a, u32 b0, u32 b1) {
    __shared__ u32 all[THREADS][6];
    u32 lane = threadIdx.x % 32, first = threadIdx.x - lane;
    for (u32 i = 0; i < 4; i++) all[threadIdx.x][i] = a.at[i];
    all[threadIdx.x][4] = b0, all[threadIdx.x][5] = b1;
    __syncwarp();
    for (u32 e = 0; e < 4; e++)
        for (u32 k = 0; k < 16; k++) {
            u32 row = lane / 4, column = lane % 4 * 2 + e % 2, from = k % 8 / 2;
            c[e] += half_of<T>(all[first + row * 4 + from][e / 2 + k / 8 * 2], k % 2) *
                    half_of<T>(all[first + column * 4 + from][4 + k / 8], k % 2);
        }
    __syncwarp();
}
template <class T> INLINE u32 pair(f32 low, f32 high) { return both(narrow<T>(low).bits, narrow<T>(high).bits); }
INLINE f32 exp2_of(f32 x) { return exp2f(x); }
INLINE void copy(uint4* into, const void* from) { *into = *(const uint4*)from; }
INLINE void wait_for_copies() {}
#else
template <class T> INLINE void mma(f32 (&c)[4], const Fragment& a, u32 b0, u32 b1);
template <class T> INLINE u32 pair(f32 low, f32 high);
#define TENSOR_CORE(T)                                                                                                  \
    template <> INLINE void mma<T>(f32 (&c)[4], const Fragment& a, u32 b0, u32 b1) {                                    \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "    \
            "{%0, %1, %2, %3};"                                                                                         \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                            \
            : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));                                \
    }                                                                                                                   \
    template <> INLINE u32 pair<T>(f32 low, f32 high) {                                                                 \
        u32 word;                                                                                                       \
        asm("cvt.rn." #T "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));                                      \
        return word;                                                                                                    \
    }
TENSOR_CORE(f16)
TENSOR_CORE(bf16)
INLINE f32 exp2_of(f32 x) { f32 y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// Copies 16 bytes to shared memory without passing through registers.
INLINE void copy(uint4* into, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(into)), "l"(from) : "memory");
}
INLINE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif

// The fragment of 16 rows and 16 columns of a tile. `TURNED` transposes each of its 8 x 8 quarters, so that a register holds two
// rows of one column.
template <bool TURNED, int D> INLINE Fragment fragment(const Row<D>* rows, u32 column) {
    Fragment f;
    u32 lane = threadIdx.x % 32;
#ifdef EMULATED
    for (u32 i = 0; i < 4; i++) {
        u32 row = i % 2 * 8 + (TURNED ? lane % 4 * 2 : lane / 4), at = column + i / 2 * 8 + (TURNED ? lane / 4 : lane % 4 * 2);
        const u16 *low = (const u16*)(rows + row) + at, *high = TURNED ? (const u16*)(rows + row + 1) + at : low + 1;
        f.at[i] = both(*low, *high);
    }
#else
    u32 at = (u32)__cvta_generic_to_shared(&rows[lane % 16].words[column / 8 + lane / 16]);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f.at[0]), "=r"(f.at[1]), "=r"(f.at[2]), "=r"(f.at[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f.at[0]), "=r"(f.at[1]), "=r"(f.at[2]), "=r"(f.at[3]) : "r"(at) : "memory");
#endif
    return f;
}

// ---- the parts that the three kernels share ----

// A block's head, and the first row of the block and of this warp.
struct Place { u64 in, out; u32 first, own, length; bool wide; };

// `backwards`: the first blocks take the last rows, which attend to the most keys, so that the last blocks to run are short.
INLINE Place place_of(const Heads& s, bool backwards, u64 addresses) {
    Place p;
    u64 b = blockIdx.y / (u32)s.heads, h = blockIdx.y % (u32)s.heads;
    p.in = b * s.length * s.stride + h * s.size, p.out = b * s.length * s.y_stride + h * s.size;
    p.first = (backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * ROWS, p.own = p.first + threadIdx.x / 32 * OWN;
    p.length = (u32)s.length;
    // Whether all rows begin and end at a multiple of 16 bytes.
    p.wide = (s.stride | s.y_stride | s.size) % 8 == 0 && addresses % 16 == 0;
    return p;
}

// Copies rows of a head to shared memory, zeros beyond the last row and the last column.
template <int D, u32 COUNT, class T>
INLINE void fill(Row<D>* tile, const T* from, u64 stride, u32 first, const Heads& s, const Place& p) {
    const u32 WORDS = D / 8;
#pragma unroll
    for (u32 i = threadIdx.x; i < COUNT * WORDS; i += THREADS) {
        u32 row = first + i / WORDS, column = i % WORDS * 8;
        uint4* into = &tile[i / WORDS].words[i % WORDS];
        const T* source = from + row * stride + column;
        if (p.wide && row < p.length && column < s.size) {
            copy(into, source);
            continue;
        }
        u32 words[4];
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            bool low = row < p.length && column + 2 * e < s.size, high = row < p.length && column + 2 * e + 1 < s.size;
            words[e] = both(low ? source[2 * e].bits : (u16)0, high ? source[2 * e + 1].bits : (u16)0);
        }
        uint4 word = {words[0], words[1], words[2], words[3]};
        *into = word;
    }
}

// The fragments of the warp's 16 rows, by way of `tile`, which is free before and after.
template <int D, class T>
INLINE void own_rows(Fragment (&a)[D / 16], Row<D>* tile, const T* from, u64 stride, const Heads& s, const Place& p) {
    fill<D, ROWS>(tile, from, stride, p.first, s, p);
    wait_for_copies();
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < D / 16; k++) a[k] = fragment<false>(tile + threadIdx.x / 32 * OWN, k * 16);
    __syncthreads();
}

template <u32 N> INLINE void clear(f32 (&c)[N][4]) {
#pragma unroll
    for (u32 n = 0; n < N; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
}

// c [16, 8 N] += a rows': products of the warp's rows with 8 N rows of a tile.
template <class T, int D, u32 N> INLINE void times_rows(f32 (&c)[N][4], const Fragment (&a)[D / 16], const Row<D>* rows) {
#pragma unroll
    for (u32 k = 0; k < D / 16; k++)
#pragma unroll
        for (u32 n = 0; n < N / 2; n++) {
            Fragment b = fragment<false>(rows + n * 16, k * 16);
            mma<T>(c[2 * n], a[k], b.at[0], b.at[2]);
            mma<T>(c[2 * n + 1], a[k], b.at[1], b.at[3]);
        }
}

// sum [16, D] += p rows: p [16, 8 N], rounded to T, weighs 8 N rows of a tile.
template <class T, int D, u32 N> INLINE void weigh_rows(f32 (&sum)[D / 8][4], const f32 (&p)[N][4], const Row<D>* rows) {
#pragma unroll
    for (u32 j = 0; j < N / 2; j++) {
        Fragment a;
#pragma unroll
        for (u32 i = 0; i < 4; i++) a.at[i] = pair<T>(p[2 * j + i / 2][i % 2 * 2], p[2 * j + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (u32 n = 0; n < D / 16; n++) {
            Fragment b = fragment<true>(rows + j * 16, n * 16);
            mma<T>(sum[2 * n], a, b.at[0], b.at[1]);
            mma<T>(sum[2 * n + 1], a, b.at[2], b.at[3]);
        }
    }
}

// Writes the warp's rows, each times its factor.
template <class T, int D>
INLINE void write_rows(T* into, u64 stride, const f32 (&c)[D / 8][4], f32 upper, f32 lower, const Heads& s, const Place& p) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 row = p.own + lane / 4 + 8 * r;
        if (row >= p.length) continue;
#pragma unroll
        for (u32 n = 0; n < D / 8; n++) {
            u32 column = n * 8 + lane % 4 * 2;
            f32 factor = r ? lower : upper;
            T low = narrow<T>(c[n][2 * r] * factor), high = narrow<T>(c[n][2 * r + 1] * factor);
            T* at = into + row * stride + column;
            if (p.wide && column < s.size) *(u32*)at = both(low.bits, high.bits);
            if (!p.wide && column < s.size) at[0] = low;
            if (!p.wide && column + 1 < s.size) at[1] = high;
        }
    }
}

// The position of the row of a query of the block's head in lse and delta.
INLINE u64 norm_at(const Heads& s, u32 query) { return blockIdx.y * s.length + query; }

INLINE u32 kept_of(const Heads& s, const Four& four) {
    return (four.at[0] >= s.bound) | (four.at[1] >= s.bound) << 1 | (four.at[2] >= s.bound) << 2 | (four.at[3] >= s.bound) << 3;
}

// Whether probabilities are kept: bit 4 n + e for element e of fragment n. Four elements of a lane need one draw of four, which
// the lanes that need it share. The rows are queries and the columns keys, or with `TURNED` the reverse.
template <bool TURNED, u32 N> INLINE u32 kept(const Heads& s, const Place& p, u32 column) {
    if (!s.stream) return 0xffffffffu;
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, bits = 0;
    u64 b = blockIdx.y / (u32)s.heads, h = blockIdx.y % (u32)s.heads;
#pragma unroll 1
    for (u32 n = 0; n < N; n++) {
        if (TURNED) {
            // Lanes g = 0 .. 3 (or 4 .. 7) draw for their four keys: lane g % 4 for element g % 4 of each.
            u32 query = column + n * 8 + t * 2 + g % 2, key = p.own + g % 4 / 2 * 8 + g / 4 * 4;
            u32 drawn = kept_of(s, draws(s, b, h, query, key));
#pragma unroll
            for (u32 e = 0; e < 4; e++)
                bits |= (__shfl_sync(0xffffffffu, drawn, (g / 4 * 4 + e) * 4 + t) >> g % 4 & 1) << (n * 4 + e);
        } else {
            // Lanes t = 0 and 1 (or 2 and 3) draw for their four keys: the even one for row g, the odd one for row g + 8.
            u32 query = p.own + g + t % 2 * 8, key = column + n * 8 + t / 2 * 4;
            u32 drawn = kept_of(s, draws(s, b, h, query, key));
#pragma unroll
            for (u32 r = 0; r < 2; r++)
                bits |= (__shfl_sync(0xffffffffu, drawn, lane / 2 * 2 + r) >> t % 2 * 2 & 3) << (n * 4 + 2 * r);
        }
    }
    return bits;
}

// ---- the kernels ----

template <class T, int D>
INLINE void attention(const T* q, const T* k, const T* v, const Heads& s, T* y, f32* lse) {
    const u32 KEYS = Tile<D>::SIZE, N = KEYS / 8;
    __shared__ Row<D> tiles[2][2][KEYS];
    Place p = place_of(s, true, (u64)q | (u64)k | (u64)v | (u64)y);
    u32 lane = threadIdx.x % 32, row = p.own + lane / 4;
    Fragment queries[D / 16];
    own_rows(queries, &tiles[0][0][0], q + p.in, s.stride, s, p);
    // `total` is the sum over the keys of this lane's columns only.
    f32 most[2] = {MINUS_INFINITY, MINUS_INFINITY}, total[2] = {0.0f, 0.0f}, scale = s.scale * LOG2_E;
    f32 sum[D / 8][4];
    clear(sum);
    u32 end = s.causal && p.first + ROWS < p.length ? p.first + ROWS : p.length;
    fill<D, KEYS>(tiles[0][0], k + p.in, s.stride, 0, s, p);
    fill<D, KEYS>(tiles[0][1], v + p.in, s.stride, 0, s, p);
    for (u32 at = 0, now = 0; at < end; at += KEYS, now ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (at + KEYS < end) {
            fill<D, KEYS>(tiles[now ^ 1][0], k + p.in, s.stride, at + KEYS, s, p);
            fill<D, KEYS>(tiles[now ^ 1][1], v + p.in, s.stride, at + KEYS, s, p);
        }
        if (p.own >= p.length || s.causal && at >= p.own + OWN) continue;
        // The draws are made before the products, when most registers are free.
        u32 bits = kept<false, N>(s, p, at);
        f32 score[N][4];
        clear(score);
        times_rows<T>(score, queries, tiles[now][0]);
        if (at + KEYS > p.length || s.causal && at + KEYS > p.own + 1) {
#pragma unroll
            for (u32 i = 0; i < 4 * N; i++) {
                u32 key = at + i / 4 * 8 + lane % 4 * 2 + i % 2, query = row + i % 4 / 2 * 8;
                if (key >= p.length || s.causal && key > query) score[i / 4][i % 4] = MINUS_INFINITY;
            }
        }
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            f32 max = most[r];
#pragma unroll
            for (u32 n = 0; n < N; n++) max = fmaxf(max, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
            // Every row attends to key 0, so `max` is a score from the first tile on.
            f32 shift = -max * scale, keep = exp2_of(fmaf(most[r], scale, shift));
            most[r] = max, total[r] *= keep;
#pragma unroll
            for (u32 n = 0; n < N; n++)
#pragma unroll
                for (u32 e = 2 * r; e < 2 * r + 2; e++) {
                    score[n][e] = exp2_of(fmaf(score[n][e], scale, shift));
                    total[r] += score[n][e];
                }
#pragma unroll
            for (u32 n = 0; n < D / 8; n++) sum[n][2 * r] *= keep, sum[n][2 * r + 1] *= keep;
        }
        if (s.stream) {
#pragma unroll
            for (u32 i = 0; i < 4 * N; i++) score[i / 4][i % 4] = bits >> i & 1 ? score[i / 4][i % 4] : 0.0f;
        }
        weigh_rows<T>(sum, score, tiles[now][1]);
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        u32 query = row + 8 * r;
        if (lane % 4 == 0 && query < p.length) lse[norm_at(s, query)] = most[r] * s.scale + logf(total[r]);
    }
    write_rows<T, D>(y + p.out, s.y_stride, sum, s.keep / total[0], s.keep / total[1], s, p);
}

template <class T, int D>
INLINE void attention_query(const T* q, const T* k, const T* v, const T* dy, const f32* lse, const f32* delta, const Heads& s,
                            T* dq) {
    const u32 KEYS = Tile<D>::SIZE, STEP = Tile<D>::QUERY_STEP, N = STEP / 8;
    __shared__ Row<D> tiles[2][2][KEYS];
    Place p = place_of(s, true, (u64)q | (u64)k | (u64)v | (u64)dy | (u64)dq);
    u32 lane = threadIdx.x % 32, row = p.own + lane / 4;
    Fragment queries[D / 16], gradients[D / 16];
    own_rows(queries, &tiles[0][0][0], q + p.in, s.stride, s, p);
    own_rows(gradients, &tiles[0][0][0], dy + p.out, s.y_stride, s, p);
    f32 norm[2], shift[2], scale = s.scale * LOG2_E;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        bool there = row + 8 * r < p.length;
        norm[r] = there ? -LOG2_E * lse[norm_at(s, row + 8 * r)] : 0.0f;
        shift[r] = there ? delta[norm_at(s, row + 8 * r)] : 0.0f;
    }
    f32 sum[D / 8][4];
    clear(sum);
    u32 end = s.causal && p.first + ROWS < p.length ? p.first + ROWS : p.length;
    fill<D, KEYS>(tiles[0][0], k + p.in, s.stride, 0, s, p);
    fill<D, KEYS>(tiles[0][1], v + p.in, s.stride, 0, s, p);
    for (u32 at = 0, now = 0; at < end; at += KEYS, now ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (at + KEYS < end) {
            fill<D, KEYS>(tiles[now ^ 1][0], k + p.in, s.stride, at + KEYS, s, p);
            fill<D, KEYS>(tiles[now ^ 1][1], v + p.in, s.stride, at + KEYS, s, p);
        }
        if (p.own >= p.length) continue;
#pragma unroll 1
        for (u32 first = at; first < at + KEYS; first += STEP) {
            if (first >= p.length || s.causal && first >= p.own + OWN) break;
            const Row<D>*keys = tiles[now][0] + (first - at), *values = tiles[now][1] + (first - at);
            // The draws are made before the products, when most registers are free.
            u32 bits = kept<false, N>(s, p, first);
            f32 score[N][4], dp[N][4];
            clear(score);
            clear(dp);
            times_rows<T>(score, queries, keys);
            times_rows<T>(dp, gradients, values);
            bool edge = first + STEP > p.length || s.causal && first + STEP > p.own + 1;
#pragma unroll
            for (u32 i = 0; i < 4 * N; i++) {
                u32 n = i / 4, e = i % 4, key = first + n * 8 + lane % 4 * 2 + e % 2, query = row + e / 2 * 8;
                f32 x = exp2_of(fmaf(score[n][e], scale, norm[e / 2]));
                f32 slope = x * ((bits >> i & 1 ? dp[n][e] * s.keep : 0.0f) - shift[e / 2]);
                score[n][e] = edge && (key >= p.length || s.causal && key > query) ? 0.0f : slope;
            }
            weigh_rows<T>(sum, score, keys);
        }
    }
    write_rows<T, D>(dq + p.in, s.stride, sum, s.scale, s.scale, s, p);
}

template <class T, int D>
INLINE void attention_key(const T* q, const T* k, const T* v, const T* dy, const f32* lse, const f32* delta, const Heads& s,
                          T* dk, T* dv) {
    const u32 QUERIES = Tile<D>::SIZE, STEP = Tile<D>::KEY_STEP, N = STEP / 8;
    __shared__ Row<D> tiles[2][2][QUERIES];
    // The tile's lse, times -log2(e), and its delta.
    __shared__ f32 norms[2][QUERIES], shifts[2][QUERIES];
    Place p = place_of(s, false, (u64)q | (u64)k | (u64)v | (u64)dy | (u64)dk | (u64)dv);
    u32 lane = threadIdx.x % 32, row = p.own + lane / 4;
    Fragment keys[D / 16], values[D / 16];
    own_rows(keys, &tiles[0][0][0], k + p.in, s.stride, s, p);
    own_rows(values, &tiles[0][0][0], v + p.in, s.stride, s, p);
    f32 dk_sum[D / 8][4], dv_sum[D / 8][4], scale = s.scale * LOG2_E;
    clear(dk_sum);
    clear(dv_sum);
    auto next = [&](u32 stage, u32 at) {
        fill<D, QUERIES>(tiles[stage][0], q + p.in, s.stride, at, s, p);
        fill<D, QUERIES>(tiles[stage][1], dy + p.out, s.y_stride, at, s, p);
        if (threadIdx.x >= QUERIES) return;
        // A query beyond the end has p = 1, and zeros for q, dy and delta, so it adds nothing.
        u32 query = at + threadIdx.x;
        norms[stage][threadIdx.x] = query < p.length ? -LOG2_E * lse[norm_at(s, query)] : 0.0f;
        shifts[stage][threadIdx.x] = query < p.length ? delta[norm_at(s, query)] : 0.0f;
    };
    u32 start = s.causal ? p.first : 0;
    next(0, start);
    for (u32 at = start, now = 0; at < p.length; at += QUERIES, now ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (at + QUERIES < p.length) next(now ^ 1, at + QUERIES);
        if (p.own >= p.length) continue;
#pragma unroll 1
        for (u32 first = at; first < at + QUERIES && first < p.length; first += STEP) {
            if (s.causal && first + STEP <= p.own) continue;
            const Row<D>*queries = tiles[now][0] + (first - at), *gradients = tiles[now][1] + (first - at);
            bool edge = s.causal && first < p.own + OWN - 1;
            u32 bits = kept<true, N>(s, p, first);
            f32 score[N][4], dp[N][4];
            clear(score);
            clear(dp);
            times_rows<T>(score, keys, queries);
            times_rows<T>(dp, values, gradients);
#pragma unroll
            for (u32 i = 0; i < 4 * N; i++) {
                u32 n = i / 4, e = i % 4, column = n * 8 + lane % 4 * 2 + e % 2, key = row + e / 2 * 8;
                f32 x = exp2_of(fmaf(score[n][e], scale, norms[now][first - at + column]));
                x = edge && key > first + column ? 0.0f : x;
                bool kept = bits >> i & 1;
                dp[n][e] = x * ((kept ? dp[n][e] * s.keep : 0.0f) - shifts[now][first - at + column]);
                score[n][e] = kept ? x : 0.0f;
            }
            weigh_rows<T>(dv_sum, score, gradients);
            weigh_rows<T>(dk_sum, dp, queries);
        }
    }
    write_rows<T, D>(dk + p.in, s.stride, dk_sum, s.scale, s.scale, s, p);
    write_rows<T, D>(dv + p.in, s.stride, dv_sum, s.keep, s.keep, s, p);
}

#define FORWARD(D, T)                                                                                                  \
    KERNEL(attention_##D##_##T, const T* q, const T* k, const T* v, Heads s, T* y, f32* lse) {                         \
        attention<T, D>(q, k, v, s, y, lse);                                                                           \
    }
#define QUERY(D, T)                                                                                                    \
    KERNEL(attention_query_##D##_##T, const T* q, const T* k, const T* v, const T* dy, const f32* lse,                 \
           const f32* delta, Heads s, T* dq) {                                                                         \
        attention_query<T, D>(q, k, v, dy, lse, delta, s, dq);                                                         \
    }
#define KEY(D, T)                                                                                                      \
    KERNEL(attention_key_##D##_##T, const T* q, const T* k, const T* v, const T* dy, const f32* lse, const f32* delta, \
           Heads s, T* dk, T* dv) {                                                                                    \
        attention_key<T, D>(q, k, v, dy, lse, delta, s, dk, dv);                                                       \
    }

// Two blocks share a multiprocessor where 128 registers a thread are enough.
#define TWO_f32
#define TWO_f16 FORWARD(32, f16) QUERY(32, f16) KEY(32, f16) FORWARD(64, f16) QUERY(64, f16)
#define TWO_bf16 FORWARD(32, bf16) QUERY(32, bf16) KEY(32, bf16) FORWARD(64, bf16) QUERY(64, bf16)
#define TWO(T) TWO_##T
FOR_TRAINED(TWO)

#undef BLOCKS
#define BLOCKS 1
#define ONE_f32
#define ONE_f16 KEY(64, f16) FORWARD(128, f16) QUERY(128, f16) KEY(128, f16)
#define ONE_bf16 KEY(64, bf16) FORWARD(128, bf16) QUERY(128, bf16) KEY(128, bf16)
#define ONE(T) ONE_##T
FOR_TRAINED(ONE)
