// Dropout by a counter-based generator, as on the CPU: no mask is stored, the backward pass draws the same numbers again.
//
//   dropout_T    y[i] = x[i] scale where draw i is `bound` or more, else 0            (with dy for x: the backward pass)
//                draw of element e of a sample = Philox4x32-10(counter (e / 4, step, sample, layer), key seed)[e % 4]
//   runs         of a sample's elements, `width` are here: `run` from `first` on, the others from `second` on
//   stream       [seed low, seed high, step, first sample, sample stride] on the device: a captured step draws anew in each replay
//
// Source: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
#include "element.cuh"

struct Runs { u64 width, run, first, second; };

template <class T> struct Drop {
    const T* x;
    T* y;
    Runs runs;
    const u32* stream;
    u32 layer, bound;
    f32 scale;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(x + i);
        u32 sample = stream[3] + stream[4] * (u32)(i / runs.width);
        u64 here = i % runs.width, element = here < runs.run ? runs.first + here : runs.second + (here - runs.run);
        Four draws = philox((u32)(element / 4), stream[2], sample, layer, stream[0], stream[1]);
#pragma unroll
        for (int k = 0; k < W; k++)
            a.at[k] = narrow<T>(draws.at[W == 4 ? k : (int)(element % 4)] >= bound ? widen(a.at[k]) * scale : 0.0f);
        store<T, W>(y + i, a);
    }
};

// Groups of four draws must stay whole: elements before the first aligned element would shift the groups, as would runs that begin or end
// within a group.
#define DROPOUT(T)                                                                                              \
    KERNEL(dropout_##T, const T* x, T* y, u64 n, Runs runs, const u32* stream, u32 layer, u32 bound, f32 scale) { \
        Drop<T> body = {x, y, runs, stream, layer, bound, scale};                                               \
        bool whole = (runs.width | runs.run | runs.first | runs.second) % 4 == 0;                               \
        sweep<4>(n, head_of(x, y, n) == 0 && whole ? 0 : n, body);                                     \
    }
FOR_TRAINED(DROPOUT)
