// What is done to each element alone: activations, their gradients, residual sums and biases.
//
//   relu_T, gelu_T            y[n] = f(x[n])                                reads n, writes n
//   relu_back_T, gelu_back_T  dx[n] = dy[n] f'(x[n])                        reads 2 n, writes n
//   add_T                     into[n] = into[n] + from[n], rounded to T     (NaN as it comes)
//   bias_T                    y[rows, C] += b[C] (of f32)
//
// GELU is the tanh form that GPT-2 uses (D. Hendrycks and K. Gimpel, 2016). ReLU lets NaN through, and its gradient is 0 at 0.
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
            // A slope of 0 stops an infinite gradient too.
            a.at[k] = narrow<T>(slope == 0.0f ? 0.0f : widen(d.at[k]) * slope);
        }
        store<T, W>(dx + i, a);
    }
};

template <class T> struct Add {
    T* into;
    const T* from;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(into + i), b = load<T, W>(from + i);
#pragma unroll
        for (int k = 0; k < W; k++) a.at[k] = narrow<T>(widen(a.at[k]) + widen(b.at[k]));
        store<T, W>(into + i, a);
    }
};

template <class T> struct Bias {
    T* y;
    const f32* b;
    u64 columns;
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> a = load<T, W>(y + i);
#pragma unroll
        for (int k = 0; k < W; k++) a.at[k] = narrow<T>(widen(a.at[k]) + b[(i + k) % columns]);
        store<T, W>(y + i, a);
    }
};

// Elements at a time: 16 bytes of the widest operand, but no more than 4 where each costs a tanh.
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
    KERNEL(add_##T, T* into, const T* from, u64 n) {                                                 \
        Add<T> body = {into, from};                                                                  \
        sweep<16 / sizeof(T)>(n, head_of(into, from, n), body);                                      \
    }                                                                                                \
    KERNEL(bias_##T, T* y, const f32* b, u64 columns, u64 n) {                                       \
        Bias<T> body = {y, b, columns};                                                              \
        sweep<4>(n, head_of(y, n), body);                                                            \
    }
FOR_TRAINED(ACTIVATIONS)
