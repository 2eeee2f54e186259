// Casts between float types, with a factor: into[n] = (B) (from[n] * factor), rounded once per operation.
//
//   cast_A_B   reads n of A, writes n of B. A factor of 1 changes nothing but the type.
#include "element.cuh"

template <class A, class B> struct Cast {
    B* into;
    const A* from;
    f32 factor;
    template <int W> INLINE void run(u64 i) const {
        Pack<A, W> a = load<A, W>(from + i);
        Pack<B, W> b;
#pragma unroll
        for (int k = 0; k < W; k++) b.at[k] = Narrow<B>::from(widen(a.at[k]) * factor);
        store<B, W>(into + i, b);
    }
};

// Groups of 8 (4 with f64): the narrower side moves 16 bytes, the wider a few words of 16.
#define CAST(A, B, W)                                                                                \
    KERNEL(cast_##A##_##B, B* into, const A* from, f32 factor, u64 n) {                              \
        Cast<A, B> body = {into, from, factor};                                                      \
        sweep<W>(n, head_of(into, from, n), body);                                                   \
    }
CAST(f32, f16, 8) CAST(f32, bf16, 8) CAST(f16, f32, 8) CAST(bf16, f32, 8)
CAST(f16, bf16, 8) CAST(bf16, f16, 8) CAST(f64, f32, 4) CAST(f32, f64, 4)
