// Operations on each element alone: activations, their gradients, residual sums and biases.
//
//   relu_T, gelu_T            y[n] = f(x[n])                                reads n, writes n
//   relu_back_T, gelu_back_T  dx[n] = dy[n] f'(x[n])                        reads 2 n, writes n
//   add_T                     y[n] = a[n] + b[n], rounded to T              (NaN: the canonical one; y may be a or b)
//   add_wide_T                y[n] = a[n] + b[n], a and y of f32, b of T
//   bias_T                    y[rows, C, P] += b[C] (of f32)                P = 1 for rows of a matrix
//   bias_back_T               parts [S, C] = sums of dy [rows, C] over a slice of the rows, 32 columns per block, 8 rows at once
//   bias_planes_T             parts [S, C] = sums of dy [N, C, P] over a slice of a channel's values, one block each
//
// GELU is the tanh form that GPT-2 uses (D. Hendrycks and K. Gimpel, 2016). ReLU keeps NaN, and its gradient is 0 at 0.
#include "element.cuh"

struct Relu {
    static INLINE f32 value(f32 x) { return x < 0.0f ? 0.0f : x; }
    static INLINE f32 slope(f32 x) { return x > 0.0f ? 1.0f : 0.0f; }
};

struct Gelu {
    // sqrt(2 / pi) (x + 0.044715 x^3)
    static INLINE f32 inner(f32 x) { return 0.7978845608f * (x + 0.044715f * x * x * x); }
    static INLINE f32 value(f32 x) { return 0.5f * x * (1.0f + tanhf(inner(x))); }
    static INLINE f32 slope(f32 x) {
        f32 t = tanhf(inner(x));
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    }
};

template <class F, class T> struct Activate {
    const T* x;
    T* y;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(x + i);
#pragma unroll
        for (int k = 0; k < W; k++) a.at[k] = narrow<T>(F::value(widen(a.at[k])));
        store<T, W>(y + i, a);
    }
};

template <class F, class T> struct Slope {
    const T *x, *dy;
    T* dx;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(x + i), d = load<T, W>(dy + i);
#pragma unroll
        for (int k = 0; k < W; k++) {
            f32 slope = F::slope(widen(a.at[k]));
            // Where the slope is 0, an infinite gradient becomes 0 too.
            a.at[k] = narrow<T>(slope == 0.0f ? 0.0f : widen(d.at[k]) * slope);
        }
        store<T, W>(dx + i, a);
    }
};

template <class A, class T> struct Add {
    const A* a;
    const T* b;
    A* y;
    template <int W> INLINE void run(u64 i) const {
        Pack<A, W> p = load<A, W>(a + i);
        Pack<T, W> q = load<T, W>(b + i);
#pragma unroll
        for (int k = 0; k < W; k++) p.at[k] = narrow<A>(widen(p.at[k]) + widen(q.at[k]));
        store<A, W>(y + i, p);
    }
};

template <class T> struct Bias {
    T* y;
    const f32* b;
    u64 columns, plane;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(y + i);
        // The column of the first value; the columns of the other values follow from it.
        u64 row = plane == 1 ? i : i / plane, inside = i - row * plane;
        u64 c = (row | columns) >> 32 ? row % columns : (u32)row % (u32)columns;
#pragma unroll
        for (int k = 0; k < W; k++) {
            a.at[k] = narrow<T>(widen(a.at[k]) + b[c]);
            if (++inside == plane) inside = 0, c = c + 1 == columns ? 0 : c + 1;
        }
        store<T, W>(y + i, a);
    }
};

template <class T> INLINE void bias_back(const T* dy, u64 rows, u64 columns, f32* parts) {
    __shared__ f32 shared[8][33];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 c = (u64)blockIdx.x * 32 + lane;
    f32 sum = 0.0f;
    if (c < columns)
        for (u64 row = (u64)blockIdx.y * 8 + warp; row < rows; row += (u64)gridDim.y * 8) sum += widen(dy[row * columns + c]);
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < columns) {
        f32 total = 0.0f;
        for (u32 i = 0; i < 8; i++) total += shared[i][lane];
        parts[(u64)blockIdx.y * columns + c] = total;
    }
}

template <class T> INLINE void bias_planes(const T* dy, u64 n, u64 channels, u64 plane, f32* parts) {
    __shared__ f32 shared[THREADS / 32];
    u64 c = blockIdx.x, values = n * plane;
    f32 sum = 0.0f;
    for (u64 i = (u64)blockIdx.y * THREADS + threadIdx.x; i < values; i += (u64)gridDim.y * THREADS)
        sum += widen(dy[(i / plane * channels + c) * plane + i % plane]);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) parts[(u64)blockIdx.y * channels + c] = sum;
}

// Elements per step: 16 bytes of T for a sum; 4 for activations, since GELU computes a tanh each, and for biases, which are f32.
#define ACTIVATION(NAME, F, T)                                                                       \
    KERNEL(NAME##_##T, const T* x, T* y, u64 n) {                                                    \
        Activate<F, T> body = {x, y};                                                                \
        sweep<4>(n, head_of(x, y, n), body);                                                         \
    }                                                                                                \
    KERNEL(NAME##_back_##T, const T* x, const T* dy, T* dx, u64 n) {                                 \
        Slope<F, T> body = {x, dy, dx};                                                              \
        sweep<4>(n, until_aligned(dy) == until_aligned(x) ? head_of(x, dx, n) : n, body);            \
    }
#define ACTIVATIONS(T)                                                                               \
    ACTIVATION(relu, Relu, T)                                                                        \
    ACTIVATION(gelu, Gelu, T)                                                                        \
    KERNEL(add_##T, const T* a, const T* b, T* y, u64 n) {                                           \
        Add<T, T> body = {a, b, y};                                                                  \
        sweep<16 / sizeof(T)>(n, until_aligned(a) == until_aligned(b) ? head_of(a, y, n) : n, body); \
    }                                                                                                \
    KERNEL(add_wide_##T, const f32* a, const T* b, f32* y, u64 n) {                                  \
        Add<f32, T> body = {a, b, y};                                                                \
        sweep<8>(n, until_aligned(a) == until_aligned(b) ? head_of(a, y, n) : n, body);              \
    }                                                                                                \
    KERNEL(bias_##T, T* y, const f32* b, u64 columns, u64 plane, u64 n) {                            \
        Bias<T> body = {y, b, columns, plane};                                                       \
        sweep<4>(n, head_of(y, n), body);                                                            \
    }                                                                                                \
    KERNEL(bias_back_##T, const T* dy, u64 rows, u64 columns, f32* parts) {                          \
        bias_back<T>(dy, rows, columns, parts);                                                      \
    }                                                                                                \
    KERNEL(bias_planes_##T, const T* dy, u64 n, u64 channels, u64 plane, f32* parts) {               \
        bias_planes<T>(dy, n, channels, plane, parts);                                               \
    }
FOR_TRAINED(ACTIVATIONS)
