// Copies of many tensors' gradients into one bucket and back, scaled on the way; and the search for elements that are not finite.
//
//   pieces   tensors of any length: `tensor` is the address, `at` the offset in the bucket in elements
//   jobs     one per block: (piece, nth part of JOB elements of that piece)
//
//   pack_T       bucket[at + i] = tensor[i] / parts       (parts 0: not divided)      reads n, writes n
//   unpack_T     tensor[i] = bucket[at + i] * factor
//   found_inf_T  *found |= any element is NaN or infinite
//   unscale_T    x = x * factor, and the same search in the same pass
#include "element.cuh"

#define JOB 16384u

struct Piece { u64 tensor, at, count; };
struct Job { u32 piece, nth; };

// Both bodies load all U packs, which are `apart` elements from each other, before they use the first.
template <class T> struct PackBody {
    T* bucket;
    const T* tensor;
    u32 parts;
    template <int W, int U> INLINE void run(u32 i, u32 apart) const {
        Pack<T, W> x[U];
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = load<T, W>(tensor + i + u * apart);
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (parts) {
#pragma unroll
                for (int k = 0; k < W; k++) x[u].at[k] = Quotient<T>::run(x[u].at[k], parts);
            }
            store_whole<T, W>(bucket + i + u * apart, x[u]);
        }
    }
};

template <class T> struct UnpackBody {
    T* tensor;
    const T* bucket;
    f32 factor;
    template <int W, int U> INLINE void run(u32 i, u32 apart) const {
        Pack<T, W> x[U];
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = load<T, W>(bucket + i + u * apart);
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int k = 0; k < W; k++) x[u].at[k] = Narrow<T>::from(widen(x[u].at[k]) * factor);
            store_whole<T, W>(tensor + i + u * apart, x[u]);
        }
    }
};

// Like `sweep`, but by the threads of one block over at most JOB elements, and with 4 packs of a thread in flight.
template <int W, class Body> INLINE void sweep_block(u32 n, u32 head, const Body& body) {
    u32 groups = (n - head) / W, rest = n - groups * W, i = threadIdx.x;
    for (; i + 3 * THREADS < groups; i += 4 * THREADS) body.template run<W, 4>(head + i * W, THREADS * W);
    for (; i < groups; i += THREADS) body.template run<W, 1>(head + i * W, 0);
    for (i = threadIdx.x; i < rest; i += THREADS) body.template run<1, 1>(i < head ? i : i + groups * W, 0);
}

template <class T> INLINE void pack(T* bucket, const Piece* pieces, const Job* jobs, u32 parts) {
    Piece piece = pieces[jobs[blockIdx.x].piece];
    u64 first = (u64)jobs[blockIdx.x].nth * JOB, left = piece.count - first, n = left < JOB ? left : JOB;
    PackBody<T> body = {bucket + piece.at + first, (const T*)piece.tensor + first, parts};
    sweep_block<16 / sizeof(T)>((u32)n, (u32)head_of(body.bucket, body.tensor, n), body);
}

template <class T> INLINE void unpack(const T* bucket, const Piece* pieces, const Job* jobs, f32 factor) {
    Piece piece = pieces[jobs[blockIdx.x].piece];
    u64 first = (u64)jobs[blockIdx.x].nth * JOB, left = piece.count - first, n = left < JOB ? left : JOB;
    UnpackBody<T> body = {(T*)piece.tensor + first, bucket + piece.at + first, factor};
    sweep_block<16 / sizeof(T)>((u32)n, (u32)head_of(body.tensor, body.bucket, n), body);
}

template <class T> struct Search {
    const T* x;
    u32* found;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(x + i);
        bool all = true;
#pragma unroll
        for (int k = 0; k < W; k++) all = all && is_finite(widen(a.at[k]));
        if (!all) *found = 1;
    }
};

template <class T> struct Unscale {
    T* x;
    f32 factor;
    u32* found;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(x + i);
        bool all = true;
#pragma unroll
        for (int k = 0; k < W; k++) {
            all = all && is_finite(widen(a.at[k]));
            a.at[k] = Narrow<T>::from(widen(a.at[k]) * factor);
        }
        store<T, W>(x + i, a);
        if (!all) *found = 1;
    }
};

#define PACK(T)                                                                                              \
    KERNEL(pack_##T, T* bucket, const Piece* pieces, const Job* jobs, u32 parts) { pack<T>(bucket, pieces, jobs, parts); } \
    KERNEL(unpack_##T, const T* bucket, const Piece* pieces, const Job* jobs, f32 factor) { unpack<T>(bucket, pieces, jobs, factor); } \
    KERNEL(found_inf_##T, const T* x, u32* found, u64 n) {                                                   \
        Search<T> body = {x, found};                                                                         \
        sweep<16 / sizeof(T)>(n, head_of(x, n), body);                                                       \
    }                                                                                                        \
    KERNEL(unscale_##T, T* x, f32 factor, u32* found, u64 n) {                                               \
        Unscale<T> body = {x, factor, found};                                                                \
        sweep<16 / sizeof(T)>(n, head_of(x, n), body);                                                       \
    }
FOR_FLOATS(PACK)
