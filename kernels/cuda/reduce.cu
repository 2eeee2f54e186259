// The reduction of one buffer into another, and the division that ends an average: the arithmetic of a schedule's steps.
//
//   reduce_OP_T   into[n] = into[n] (+) from[n]        OP: sum prod min max; reads 2 n, writes n elements
//   divide_T      into[n] = into[n] / parts            reads n, writes n
#include "element.cuh"

template <Op OP, class T> struct Reduce {
    T* into;
    const T* from;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(into + i), b = load<T, W>(from + i);
#pragma unroll
        for (int k = 0; k < W; k++) a.at[k] = Combine<OP, T>::run(a.at[k], b.at[k]);
        store<T, W>(into + i, a);
    }
};

template <class T> struct Divide {
    T* into;
    u32 parts;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(into + i);
#pragma unroll
        for (int k = 0; k < W; k++) a.at[k] = Quotient<T>::run(a.at[k], parts);
        store<T, W>(into + i, a);
    }
};

template <Op OP, class T> INLINE void reduce(T* into, const T* from, u64 n) {
    Reduce<OP, T> body = {into, from};
    sweep<16 / sizeof(T)>(n, head_of(into, from, n), body);
}

#define REDUCE(T)                                                                                    \
    KERNEL(reduce_sum_##T, T* into, const T* from, u64 n) { reduce<OP_SUM, T>(into, from, n); }      \
    KERNEL(reduce_prod_##T, T* into, const T* from, u64 n) { reduce<OP_PROD, T>(into, from, n); }    \
    KERNEL(reduce_min_##T, T* into, const T* from, u64 n) { reduce<OP_MIN, T>(into, from, n); }      \
    KERNEL(reduce_max_##T, T* into, const T* from, u64 n) { reduce<OP_MAX, T>(into, from, n); }      \
    KERNEL(divide_##T, T* into, u32 parts, u64 n) {                                                  \
        Divide<T> body = {into, parts};                                                              \
        sweep<16 / sizeof(T)>(n, head_of(into, n), body);                                            \
    }
FOR_ELEMENTS(REDUCE)
