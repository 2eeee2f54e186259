// Pooling: the maximum or the mean of each window of a plane. Maxima do not count the padding; means have no padding.
//
//   x, dx [planes, H, W]     y, dy [planes, P, Q]     winners [planes, P, Q] u32: where in x each maximum came from
//   planes are N C; channels last: x [N, H, W, C], y [N, P, Q, C]
//
//   max_pool_T           y, winners       the first of equals wins; NaN counts as larger than any number
//   max_pool_back_T      dx               each pixel adds up the windows that it won, in their order: no atomics
//   mean_pool_T          y                mean_pool_back_T   dx = the sum of dy / K^2 over the windows it is in
//   plane_mean_T         y [planes] = mean of each plane, a warp each (channels last: a thread);   plane_mean_back_T spreads it
#include "element.cuh"

struct Window { u64 planes; u32 height, width, rows, columns, side, stride, padding, channels, last, unused; };

// The position of the i-th value in memory. With channels last `plane` is the sample's number; otherwise `channel` is 0.
struct Spot { u64 plane; u32 row, column, channel; };
INLINE Spot spot_of(const Window& w, u64 i, u32 rows, u32 columns) {
    u64 pixel = w.last ? i / w.channels : i;
    Spot spot = {pixel / ((u64)rows * columns), (u32)(pixel / columns % rows), (u32)(pixel % columns),
                 w.last ? (u32)(i % w.channels) : 0u};
    return spot;
}
// The position of the value at a row and column of the same plane, in planes of this size.
INLINE u64 place(const Window& w, const Spot& at, u32 row, u32 column, u32 rows, u32 columns) {
    u64 pixel = (at.plane * rows + row) * columns + column;
    return w.last ? pixel * w.channels + at.channel : pixel;
}

// The range [first, last) of windows along one axis that contain a pixel.
INLINE u32 first_window(u32 pixel, const Window& w) {
    u32 at = pixel + w.padding;
    return at < w.side ? 0 : (at - w.side) / w.stride + 1;
}
INLINE u32 last_window(u32 pixel, u32 windows, const Window& w) {
    u32 last = (pixel + w.padding) / w.stride + 1;
    return last < windows ? last : windows;
}

template <class T> INLINE void max_pool(const T* x, Window w, T* y, u32* winners) {
    u64 n = w.planes * w.rows * w.columns;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) {
        Spot at = spot_of(w, i, w.rows, w.columns);
        u32 top = at.row * w.stride, left = at.column * w.stride;
        // The window's part inside the picture is never empty, since the padding is less than a window's side.
        u32 r0 = top < w.padding ? 0 : top - w.padding, c0 = left < w.padding ? 0 : left - w.padding;
        u32 r1 = top + w.side - w.padding, c1 = left + w.side - w.padding;
        r1 = r1 < w.height ? r1 : w.height, c1 = c1 < w.width ? c1 : w.width;
        u64 best = place(w, at, r0, c0, w.height, w.width);
        T most = x[best];
        for (u32 r = r0; r < r1; r++)
            for (u32 c = c0; c < c1; c++) {
                u64 pixel = place(w, at, r, c, w.height, w.width);
                T value = x[pixel];
                f32 wide = widen(value);
                if (wide > widen(most) || wide != wide) most = value, best = pixel;
            }
        y[i] = most;
        winners[i] = (u32)best;
    }
}

template <class T> INLINE void max_pool_back(const u32* winners, const T* dy, Window w, T* dx) {
    u64 n = w.planes * w.height * w.width;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) {
        Spot at = spot_of(w, i, w.height, w.width);
        f32 sum = 0.0f;
        for (u32 r = first_window(at.row, w); r < last_window(at.row, w.rows, w); r++)
            for (u32 c = first_window(at.column, w); c < last_window(at.column, w.columns, w); c++) {
                u64 out = place(w, at, r, c, w.rows, w.columns);
                if (winners[out] == (u32)i) sum += widen(dy[out]);
            }
        dx[i] = narrow<T>(sum);
    }
}

template <class T> INLINE void mean_pool(const T* x, Window w, T* y) {
    u64 n = w.planes * w.rows * w.columns;
    f32 count = (f32)(w.side * w.side);
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) {
        Spot at = spot_of(w, i, w.rows, w.columns);
        u32 top = at.row * w.stride, left = at.column * w.stride;
        f32 sum = 0.0f;
        for (u32 r = 0; r < w.side; r++)
            for (u32 c = 0; c < w.side; c++) sum += widen(x[place(w, at, top + r, left + c, w.height, w.width)]);
        y[i] = narrow<T>(sum / count);
    }
}

template <class T> INLINE void mean_pool_back(const T* dy, Window w, T* dx) {
    u64 n = w.planes * w.height * w.width;
    f32 count = (f32)(w.side * w.side);
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) {
        Spot at = spot_of(w, i, w.height, w.width);
        f32 sum = 0.0f;
        for (u32 r = first_window(at.row, w); r < last_window(at.row, w.rows, w); r++)
            for (u32 c = first_window(at.column, w); c < last_window(at.column, w.columns, w); c++)
                sum += widen(dy[place(w, at, r, c, w.rows, w.columns)]) / count;
        dx[i] = narrow<T>(sum);
    }
}

// `last` is the number of channels if channels are the last dimension, else 0.
template <class T> INLINE void plane_mean(const T* x, u64 planes, u64 plane, u64 last, T* y) {
    if (last) {
        for (u64 p = (u64)blockIdx.x * THREADS + threadIdx.x; p < planes; p += (u64)gridDim.x * THREADS) {
            const T* from = x + p / last * plane * last + p % last;
            f32 sum = 0.0f;
            for (u64 i = 0; i < plane; i++) sum += widen(from[i * last]);
            y[p] = narrow<T>(sum / (f32)plane);
        }
        return;
    }
    u32 lane = threadIdx.x % 32;
    for (u64 p = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; p < planes; p += (u64)gridDim.x * (THREADS / 32)) {
        f32 sum = 0.0f;
        for (u64 i = lane; i < plane; i += 32) sum += widen(x[p * plane + i]);
        sum = warp_sum(sum);
        if (lane == 0) y[p] = narrow<T>(sum / (f32)plane);
    }
}

template <class T> INLINE void plane_mean_back(const T* dy, u64 planes, u64 plane, u64 last, T* dx) {
    u64 n = planes * plane;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS)
        dx[i] = narrow<T>(widen(dy[last ? i / (plane * last) * last + i % last : i / plane]) / (f32)plane);
}

#define POOL(T)                                                                                                     \
    KERNEL(max_pool_##T, const T* x, Window w, T* y, u32* winners) { max_pool<T>(x, w, y, winners); }               \
    KERNEL(max_pool_back_##T, const u32* winners, const T* dy, Window w, T* dx) { max_pool_back<T>(winners, dy, w, dx); } \
    KERNEL(mean_pool_##T, const T* x, Window w, T* y) { mean_pool<T>(x, w, y); }                                    \
    KERNEL(mean_pool_back_##T, const T* dy, Window w, T* dx) { mean_pool_back<T>(dy, w, dx); }                      \
    KERNEL(plane_mean_##T, const T* x, u64 planes, u64 plane, u64 last, T* y) {                                     \
        plane_mean<T>(x, planes, plane, last, y);                                                                   \
    }                                                                                                               \
    KERNEL(plane_mean_back_##T, const T* dy, u64 planes, u64 plane, u64 last, T* dx) {                              \
        plane_mean_back<T>(dy, planes, plane, last, dx);                                                            \
    }
FOR_TRAINED(POOL)
