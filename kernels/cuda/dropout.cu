// Dropout whose draws are a function of their place in the run, as on the CPU: no mask is kept, the backward pass draws again.
//
//   dropout_T    y[i] = x[i] scale where draw i is `bound` or more, else 0            (with dy for x: the backward pass)
//                draw i = Philox4x32-10(counter (i / 4, place 0, 1, layer), key seed)[i % 4]
//   stream       [seed low, seed high, place 0, place 1] on the device: a captured step draws anew in each run
//
// Source: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
#include "element.cuh"

template <class T> struct Drop {
    const T* x;
    T* y;
    const u32* stream;
    u32 layer, bound;
    f32 scale;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(x + i);
        Four draws = philox((u32)(i / 4), stream[2], stream[3], layer, stream[0], stream[1]);
#pragma unroll
        for (int k = 0; k < W; k++)
            a.at[k] = narrow<T>(draws.at[W == 4 ? k : (int)(i % 4)] >= bound ? widen(a.at[k]) * scale : 0.0f);
        store<T, W>(y + i, a);
    }
};

// Groups of four draws must stay whole: elements before the first aligned one would shift the groups.
#define DROPOUT(T)                                                                                              \
    KERNEL(dropout_##T, const T* x, T* y, u64 n, const u32* stream, u32 layer, u32 bound, f32 scale) {          \
        Drop<T> body = {x, y, stream, layer, bound, scale};                                                     \
        sweep<4>(n, head_of(x, y, n) == 0 ? 0 : n, body);                                                       \
    }
FOR_TRAINED(DROPOUT)
