// A whole collective in one kernel: every element's reduction tree is evaluated from all ranks' buffers for all receivers.
//
//   fused_OP_T
//   buffers  ranks x [n]          chunk c: elements bounds[c] .. bounds[c + 1]; one row of the grid each
//   tree     chunks x ranks x 2   per leaf, in postfix order: (rank, merges that follow it)
//   targets  chunks               bit r: rank r receives the chunk
//
//   ((0 1) (2 3)) is  0:0  1:1  2:0  3:2        the top of the stack stays in registers, the rest is in shared memory
//
// fusedN_sum_T is the canonical (balanced) tree over N = 2, 4, 8 buffers, received by all, unrolled: N loads in flight.
// Reads N n and writes N n elements: 2 N S bytes for buffers of S bytes. A rank of 255 ends a tree that has
// fewer leaves than ranks: a broadcast is a tree of one leaf. parts: the divisor of the result, 0 for none.
#include "element.cuh"

// The largest number of ranks. A tree whose deeper child is evaluated first needs one stack entry per doubling of the ranks.
#define MOST_RANKS 64
#define DEPTH 6
#define END 0xffu

struct Buffers { u64 at[MOST_RANKS]; };

// A body whose elements begin at an offset: heads and groups are counted from that offset.
template <class Body> struct Shift {
    Body body;
    u64 begin;
    template <int W> INLINE void run(u64 i) const { body.template run<W>(begin + i); }
};

template <Op OP, class T, int N> struct FusedAll {
    T* at[N];
    u32 parts;
    template <int V> INLINE void run(u64 i) const {
        Pack<T, V> leaf[N];
#pragma unroll
        for (int r = 0; r < N; r++) leaf[r] = load<T, V>(at[r] + i);
#pragma unroll
        for (int span = 1; span < N; span *= 2)
#pragma unroll
            for (int r = 0; r < N; r += 2 * span)
#pragma unroll
                for (int k = 0; k < V; k++) leaf[r].at[k] = Combine<OP, T>::run(leaf[r].at[k], leaf[r + span].at[k]);
        if (parts) {
#pragma unroll
            for (int k = 0; k < V; k++) leaf[0].at[k] = Quotient<T>::run(leaf[0].at[k], parts);
        }
#pragma unroll
        for (int r = 0; r < N; r++) store<T, V>(at[r] + i, leaf[0]);
    }
};

template <Op OP, class T, int N> INLINE void fused_all(const Buffers& buffers, u32 parts, u64 n) {
    const int W = 16 / sizeof(T);
    FusedAll<OP, T, N> body;
    u64 head = n;
    bool same = true;
#pragma unroll
    for (int r = 0; r < N; r++) {
        body.at[r] = (T*)buffers.at[r];
        same = same && until_aligned(body.at[r]) == until_aligned(body.at[0]);
    }
    if (same) head = head_of(body.at[0], n);
    body.parts = parts;
    sweep<W>(n, head, body);
}

template <Op OP, class T> struct FusedTree {
    const u64* at;
    const u8* tree;
    u32 ranks;
    u64 targets;
    u32 parts;
    uint4 (*stack)[THREADS];
    template <int W> INLINE void run(u64 i) const {
        u32 depth = 0;
        Pack<T, W> top, next = load<T, W>((const T*)at[tree[0]] + i);
        for (u32 leaf = 0; leaf < ranks && tree[2 * leaf] != END; leaf++) {
            if (leaf) {
                // A stack entry has 16 bytes; a single element uses the first bytes.
                store<T, W>((T*)&stack[depth][threadIdx.x], top);
                depth++;
            }
            top = next;
            u32 after = leaf + 1 < ranks ? tree[2 * leaf + 2] : END;
            if (after != END) next = load<T, W>((const T*)at[after] + i);
            for (u32 merges = tree[2 * leaf + 1]; merges; merges--) {
                depth--;
                Pack<T, W> under = load<T, W>((const T*)&stack[depth][threadIdx.x]);
#pragma unroll
                for (int k = 0; k < W; k++) top.at[k] = Combine<OP, T>::run(under.at[k], top.at[k]);
            }
        }
        if (parts) {
#pragma unroll
            for (int k = 0; k < W; k++) top.at[k] = Quotient<T>::run(top.at[k], parts);
        }
        for (u32 r = 0; r < ranks; r++)
            if (targets >> r & 1) store<T, W>((T*)at[r] + i, top);
    }
};

template <Op OP, class T>
INLINE void fused_tree(const Buffers& buffers, u32 ranks, u32 chunks, const u64* bounds, const u8* trees,
                       const u64* targets, u32 parts) {
    __shared__ uint4 stack[DEPTH][THREADS];
    __shared__ u64 at[MOST_RANKS];
    if (threadIdx.x < ranks) at[threadIdx.x] = buffers.at[threadIdx.x];
    __syncthreads();
    for (u32 chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
        u64 begin = bounds[chunk], n = bounds[chunk + 1] - begin;
        u64 first = until_aligned((const T*)at[0] + begin), head = first < n ? first : n;
        for (u32 r = 1; r < ranks; r++)
            if (until_aligned((const T*)at[r] + begin) != first) head = n;
        FusedTree<OP, T> body = {at, trees + (u64)chunk * ranks * 2, ranks, targets[chunk], parts, stack};
        Shift<FusedTree<OP, T>> shifted = {body, begin};
        sweep<(sizeof(T) > 1 ? 16 / sizeof(T) : 8)>(n, head, shifted);
    }
}

#define FUSED_OP(NAME, OP, T)                                                                                     \
    KERNEL(fused_##NAME##_##T, Buffers buffers, u32 ranks, u32 chunks, const u64* bounds, const u8* trees,        \
           const u64* targets, u32 parts) {                                                                       \
        fused_tree<OP, T>(buffers, ranks, chunks, bounds, trees, targets, parts);                                 \
    }
#define FUSED(T) FUSED_OP(sum, OP_SUM, T) FUSED_OP(prod, OP_PROD, T) FUSED_OP(min, OP_MIN, T) FUSED_OP(max, OP_MAX, T)
FOR_ELEMENTS(FUSED)

// Sums of floats, such as gradients, have an unrolled form of their own.
#define FUSED_ALL(T)                                                                                              \
    KERNEL(fused2_sum_##T, Buffers buffers, u32 parts, u64 n) { fused_all<OP_SUM, T, 2>(buffers, parts, n); }      \
    KERNEL(fused4_sum_##T, Buffers buffers, u32 parts, u64 n) { fused_all<OP_SUM, T, 4>(buffers, parts, n); }      \
    KERNEL(fused8_sum_##T, Buffers buffers, u32 parts, u64 n) { fused_all<OP_SUM, T, 8>(buffers, parts, n); }
FOR_FLOATS(FUSED_ALL)
