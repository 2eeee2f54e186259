// Matrix products and convolutions without cuBLASLt and cuDNN: plain, for where those are missing, and to check them by.
//
//   matmul_T        c [m, n] = a [m, k] b [k, n] + keep c + bias [n] (f32; 0: none)    any strides; sums in f32, rounded once
//                   a block makes a tile of 64 x 64, a thread 4 x 4, over slices of 16 of k in shared memory
//
//   conv_T          y [N, K, P, Q] = x [N, C, H, W] * w [K, C, R, R]      square window, stride, zero padding
//   conv_input_T    dx from dy and w       conv_weight_T   dw from x and dy, in a fixed order
//                   one thread an output (a block for a weight): the sums of the formula, in f32
#define BLOCKS 3
#include "element.cuh"

struct Product { u64 m, n, k, a_row, a_column, b_row, b_column, c_row, bias; f32 keep; };

template <class T> INLINE void matmul(const T* a, const T* b, T* c, const Product& s) {
    __shared__ f32 left[16][65], right[16][65];
    u64 row = (u64)blockIdx.y * 64, column = (u64)blockIdx.x * 64;
    u32 ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    f32 sum[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = 0.0f;
    for (u64 at = 0; at < s.k; at += 16) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < 1024; i += THREADS) {
            // Consecutive threads along whichever side is consecutive in memory.
            u32 slow = i / 64, fast = i % 64, wide = i / 16, thin = i % 16;
            u32 ak = s.a_column == 1 ? thin : slow, am = s.a_column == 1 ? wide : fast;
            u32 bk = s.b_column == 1 ? slow : thin, bn = s.b_column == 1 ? fast : wide;
            bool a_in = row + am < s.m && at + ak < s.k, b_in = column + bn < s.n && at + bk < s.k;
            left[ak][am] = a_in ? widen(a[(row + am) * s.a_row + (at + ak) * s.a_column]) : 0.0f;
            right[bk][bn] = b_in ? widen(b[(at + bk) * s.b_row + (column + bn) * s.b_column]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) {
            f32 x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = left[k][ty + 16 * i], y[i] = right[k][tx + 16 * i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u64 r = row + ty + 16 * i, q = column + tx + 16 * j;
            if (r >= s.m || q >= s.n) continue;
            T* out = c + r * s.c_row + q;
            f32 value = s.keep == 0.0f ? sum[i][j] : sum[i][j] + s.keep * widen(*out);
            *out = narrow<T>(s.bias ? value + ((const f32*)s.bias)[q] : value);
        }
}

struct Conv { u64 n; u32 channels, height, width, filters, rows, columns, side, stride, padding; };

template <class T> INLINE void conv(const T* x, const T* w, Conv s, T* y) {
    u64 all = s.n * s.filters * s.rows * s.columns;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < all; i += (u64)gridDim.x * THREADS) {
        u32 q = i % s.columns, p = i / s.columns % s.rows, f = i / s.columns / s.rows % s.filters;
        u64 n = i / s.columns / s.rows / s.filters;
        f32 sum = 0.0f;
        for (u32 c = 0; c < s.channels; c++)
            for (u32 r = 0; r < s.side; r++)
                for (u32 t = 0; t < s.side; t++) {
                    u32 h = p * s.stride + r - s.padding, v = q * s.stride + t - s.padding;
                    // Above the edge wraps to a huge number: outside as well.
                    if (h < s.height && v < s.width)
                        sum += widen(x[((n * s.channels + c) * s.height + h) * s.width + v]) *
                               widen(w[(((u64)f * s.channels + c) * s.side + r) * s.side + t]);
                }
        y[i] = narrow<T>(sum);
    }
}

template <class T> INLINE void conv_input(const T* dy, const T* w, Conv s, T* dx) {
    u64 all = s.n * s.channels * s.height * s.width;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < all; i += (u64)gridDim.x * THREADS) {
        u32 v = i % s.width, h = i / s.width % s.height, c = i / s.width / s.height % s.channels;
        u64 n = i / s.width / s.height / s.channels;
        f32 sum = 0.0f;
        for (u32 f = 0; f < s.filters; f++)
            for (u32 r = 0; r < s.side; r++)
                for (u32 t = 0; t < s.side; t++) {
                    u32 down = h + s.padding - r, right = v + s.padding - t;
                    if (down % s.stride || right % s.stride) continue;
                    u32 p = down / s.stride, q = right / s.stride;
                    if (h + s.padding >= r && v + s.padding >= t && p < s.rows && q < s.columns)
                        sum += widen(dy[((n * s.filters + f) * s.rows + p) * s.columns + q]) *
                               widen(w[(((u64)f * s.channels + c) * s.side + r) * s.side + t]);
                }
        dx[i] = narrow<T>(sum);
    }
}

template <class T> INLINE void conv_weight(const T* x, const T* dy, Conv s, T* dw) {
    __shared__ f32 shared[THREADS / 32];
    u64 weights = (u64)s.filters * s.channels * s.side * s.side, outputs = s.n * s.rows * s.columns;
    for (u64 i = blockIdx.x; i < weights; i += gridDim.x) {
        u32 t = i % s.side, r = i / s.side % s.side, c = i / s.side / s.side % s.channels;
        u64 f = i / s.side / s.side / s.channels;
        f32 sum = 0.0f;
        for (u64 o = threadIdx.x; o < outputs; o += THREADS) {
            u32 q = o % s.columns, p = o / s.columns % s.rows;
            u64 n = o / s.columns / s.rows;
            u32 h = p * s.stride + r - s.padding, v = q * s.stride + t - s.padding;
            if (h < s.height && v < s.width)
                sum += widen(x[((n * s.channels + c) * s.height + h) * s.width + v]) *
                       widen(dy[((n * s.filters + f) * s.rows + p) * s.columns + q]);
        }
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) dw[i] = narrow<T>(sum);
    }
}

#define MATMUL(T)                                                                                    \
    KERNEL(matmul_##T, const T* a, const T* b, T* c, Product s) { matmul<T>(a, b, c, s); }           \
    KERNEL(conv_##T, const T* x, const T* w, Conv s, T* y) { conv<T>(x, w, s, y); }                  \
    KERNEL(conv_input_##T, const T* dy, const T* w, Conv s, T* dx) { conv_input<T>(dy, w, s, dx); }  \
    KERNEL(conv_weight_##T, const T* x, const T* dy, Conv s, T* dw) { conv_weight<T>(x, dy, s, dw); }
FOR_TRAINED(MATMUL)
