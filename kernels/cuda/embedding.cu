// Embedding lookup: rows of a table by number, and the sum of the gradients of each row.
//
//   table, dtable [V, C]     tokens [n] u32     y, dy [n, C]     places [T, C]: a row per position in the sequence; null: none
//   first: the token of the table's first row
//
//   embedding_T        y[i] = table[tokens[i] - first] + places[i % T]          a token that is no row of the table reads as `outside`
//   embedding_back_T   dtable[v] = sum of dy[i] where tokens[i] - first = v, in the order of i: no atomics, always the same bits;
//                      rows without a token are not written; the sum is added to the row if `adds` is not 0
//   places_back_T      dplaces[t] = sum of dy[i] where i % T = t, in the order of i
#include "element.cuh"

// Whether any thread of the block has a value that is not 0.
INLINE bool block_any(u32 value, u32* shared) {
    u32 votes = __ballot_sync(0xffffffffu, value != 0);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = votes;
    __syncthreads();
    u32 all = 0;
    for (u32 warp = 0; warp < THREADS / 32; warp++) all |= shared[warp];
    return all != 0;
}

template <class T>
INLINE void embedding(const T* table, const u32* tokens, const T* places, u32 first, u64 vocabulary, u64 columns, u64 length, u64 n,
                      f32 outside, T* y) {
    u64 all = n * columns;
    for (u64 at = (u64)blockIdx.x * THREADS + threadIdx.x; at < all; at += (u64)gridDim.x * THREADS) {
        u64 i = at / columns, c = at % columns;
        u64 token = tokens[i] - first;
        f32 value = token < vocabulary ? widen(table[token * columns + c]) : outside;
        if (places) value += widen(places[i % length * columns + c]);
        y[at] = narrow<T>(value);
    }
}

// A block per token. If no earlier token is of the same row, the block searches the tokens from its own on, 256 at a time, lists the
// tokens of that row in order, and adds up their gradients; otherwise an earlier token's block does so.
template <class T>
INLINE void embedding_back(const u32* tokens, const T* dy, u32 first, u64 vocabulary, u64 columns, u64 n, u32 adds,
                           T* dtable) {
    __shared__ u32 hits[THREADS];
    __shared__ u32 before[THREADS / 32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u64 own = blockIdx.x; own < n; own += gridDim.x) {
        u32 row = tokens[own];
        u32 earlier = 0;
        for (u64 i = threadIdx.x; i < own; i += THREADS) earlier |= tokens[i] == row;
        u64 own_row = row - first;
        if (block_any(earlier, before) || own_row >= vocabulary) continue;
        for (u64 start_column = 0; start_column < columns; start_column += THREADS) {
            u64 c = start_column + threadIdx.x;
            f32 sum = 0.0f;
            for (u64 base = own; base < n; base += THREADS) {
                u64 i = base + threadIdx.x;
                bool hit = i < n && tokens[i] == row;
                u32 votes = __ballot_sync(0xffffffffu, hit);
                __syncthreads();
                if (lane == 0) before[warp] = (u32)__popc(votes);
                __syncthreads();
                u32 start = 0, count = 0;
                for (u32 w = 0; w < THREADS / 32; w++) {
                    if (w == warp) start = count;
                    count += before[w];
                }
                if (hit) hits[start + (u32)__popc(votes & ((1u << lane) - 1))] = threadIdx.x;
                if (count == 0) continue;
                __syncthreads();
                if (c < columns)
                    for (u32 k = 0; k < count; k++) sum += widen(dy[(base + hits[k]) * columns + c]);
            }
            if (c >= columns) continue;
            T* out = dtable + own_row * columns + c;
            *out = narrow<T>(adds ? widen(*out) + sum : sum);
        }
    }
}

template <class T> INLINE void places_back(const T* dy, u64 columns, u64 length, u64 n, T* dplaces) {
    u64 all = length * columns;
    for (u64 at = (u64)blockIdx.x * THREADS + threadIdx.x; at < all; at += (u64)gridDim.x * THREADS) {
        f32 sum = 0.0f;
        for (u64 i = at / columns; i < n; i += length) sum += widen(dy[i * columns + at % columns]);
        dplaces[at] = narrow<T>(sum);
    }
}

#define EMBEDDING(T)                                                                                                \
    KERNEL(embedding_##T, const T* table, const u32* tokens, const T* places, u32 first, u64 vocabulary,            \
           u64 columns, u64 length, u64 n, f32 outside, T* y) {                                                     \
        embedding<T>(table, tokens, places, first, vocabulary, columns, length, n, outside, y);                     \
    }                                                                                                               \
    KERNEL(embedding_back_##T, const u32* tokens, const T* dy, u32 first, u64 vocabulary, u64 columns, u64 n,       \
           u32 adds, T* dtable) {                                                                                   \
        embedding_back<T>(tokens, dy, first, vocabulary, columns, n, adds, dtable);                                 \
    }                                                                                                               \
    KERNEL(places_back_##T, const T* dy, u64 columns, u64 length, u64 n, T* dplaces) {                              \
        places_back<T>(dy, columns, length, n, dplaces);                                                            \
    }
FOR_TRAINED(EMBEDDING)
