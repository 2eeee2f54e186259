// Simple matrix products and convolutions, used where cuBLASLt or cuDNN is missing, and to check these libraries.
//
//   matmul_T        c [m, n] = a [m, k] b [k, n] + keep c + bias [n] (f32 or T; 0: none)    a, b of any strides; f32 sums, rounded once
//   matmul_wide_T   the same, c of f32
//                   a block makes a tile of 64 x 64, a thread 4 x 4, over slices of 16 of k in shared memory
//
//   conv_T          y [N, K, P, Q] = x [N, C, H, W] * w [K, C / G, R, R]      square window, stride, zero padding, G groups
//   conv_input_T    dx from dy and w       conv_weight_T   dw from x and dy, in a fixed order
//                   channels last: y [N, P, Q, K], x [N, H, W, C], w [K, R, R, C / G]
//                   one thread an output (a block for a weight): the sums of the formula, in f32
//
//   restride        rows of 16-bit elements at another distance, with zeros between; reads and writes n
#define BLOCKS 3
#include "element.cuh"

struct Product { u64 m, n, k, a_row, a_column, b_row, b_column, c_row, bias; f32 keep; u32 narrow_bias; };

template <class T, class C> INLINE void matmul(const T* a, const T* b, C* c, const Product& s) {
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
            // Consecutive threads read along the side that is contiguous in memory.
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
            C* out = c + r * s.c_row + q;
            f32 value = s.keep == 0.0f ? sum[i][j] : sum[i][j] + s.keep * widen(*out);
            if (s.bias) value += s.narrow_bias ? widen(((const T*)s.bias)[q]) : ((const f32*)s.bias)[q];
            *out = narrow<C>(value);
        }
}

struct Conv { u64 n; u32 channels, height, width, filters, rows, columns, side, stride, padding, groups, last; };

// The position of channel c of a pixel of sample n, in pictures with these numbers of channels and pixels.
INLINE u64 place(const Conv& s, u64 n, u32 c, u64 pixel, u32 channels, u64 pixels) {
    return s.last ? (n * pixels + pixel) * channels + c : (n * channels + c) * pixels + pixel;
}
INLINE u64 in_x(const Conv& s, u64 n, u32 c, u32 h, u32 v) {
    return place(s, n, c, (u64)h * s.width + v, s.channels, (u64)s.height * s.width);
}
INLINE u64 in_y(const Conv& s, u64 n, u32 f, u32 p, u32 q) {
    return place(s, n, f, (u64)p * s.columns + q, s.filters, (u64)s.rows * s.columns);
}
// The position of the weight of filter f for channel c of its group, at row r and column t.
INLINE u64 in_w(const Conv& s, u32 f, u32 c, u32 r, u32 t) {
    return place(s, f, c, (u64)r * s.side + t, s.channels / s.groups, (u64)s.side * s.side);
}

// The sample, channel and pixel of the i-th value in the memory of a batch of pictures.
struct Spot { u64 n; u32 c, row, column; };
INLINE Spot spot_of(const Conv& s, u64 i, u32 channels, u32 rows, u32 columns) {
    u64 pixel = s.last ? i / channels : i, c = s.last ? i % channels : i / columns / rows % channels;
    u64 n = s.last ? pixel / columns / rows : i / columns / rows / channels;
    Spot spot = {n, (u32)c, (u32)(pixel / columns % rows), (u32)(pixel % columns)};
    return spot;
}

template <class T> INLINE void conv(const T* x, const T* w, Conv s, T* y) {
    u64 all = s.n * s.filters * s.rows * s.columns;
    u32 per = s.channels / s.groups, each = s.filters / s.groups;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < all; i += (u64)gridDim.x * THREADS) {
        Spot at = spot_of(s, i, s.filters, s.rows, s.columns);
        u32 first = at.c / each * per;
        f32 sum = 0.0f;
        for (u32 c = 0; c < per; c++)
            for (u32 r = 0; r < s.side; r++)
                for (u32 t = 0; t < s.side; t++) {
                    u32 h = at.row * s.stride + r - s.padding, v = at.column * s.stride + t - s.padding;
                    // A pixel above or left of the picture wraps to a huge unsigned number, so it is outside as well.
                    if (h < s.height && v < s.width)
                        sum += widen(x[in_x(s, at.n, first + c, h, v)]) * widen(w[in_w(s, at.c, c, r, t)]);
                }
        y[i] = narrow<T>(sum);
    }
}

template <class T> INLINE void conv_input(const T* dy, const T* w, Conv s, T* dx) {
    u64 all = s.n * s.channels * s.height * s.width;
    u32 per = s.channels / s.groups, each = s.filters / s.groups;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < all; i += (u64)gridDim.x * THREADS) {
        Spot at = spot_of(s, i, s.channels, s.height, s.width);
        u32 first = at.c / per * each;
        f32 sum = 0.0f;
        for (u32 f = first; f < first + each; f++)
            for (u32 r = 0; r < s.side; r++)
                for (u32 t = 0; t < s.side; t++) {
                    u32 down = at.row + s.padding - r, right = at.column + s.padding - t;
                    if (down % s.stride || right % s.stride) continue;
                    u32 p = down / s.stride, q = right / s.stride;
                    if (at.row + s.padding >= r && at.column + s.padding >= t && p < s.rows && q < s.columns)
                        sum += widen(dy[in_y(s, at.n, f, p, q)]) * widen(w[in_w(s, f, at.c % per, r, t)]);
                }
        dx[i] = narrow<T>(sum);
    }
}

template <class T> INLINE void conv_weight(const T* x, const T* dy, Conv s, T* dw) {
    __shared__ f32 shared[THREADS / 32];
    u32 per = s.channels / s.groups, each = s.filters / s.groups;
    u64 weights = (u64)s.filters * per * s.side * s.side, outputs = s.n * s.rows * s.columns;
    for (u64 i = blockIdx.x; i < weights; i += gridDim.x) {
        Spot at = spot_of(s, i, per, s.side, s.side);
        u32 f = at.n, channel = f / each * per + at.c;
        f32 sum = 0.0f;
        for (u64 o = threadIdx.x; o < outputs; o += THREADS) {
            u32 q = o % s.columns, p = o / s.columns % s.rows;
            u64 n = o / s.columns / s.rows;
            u32 h = p * s.stride + at.row - s.padding, v = q * s.stride + at.column - s.padding;
            if (h < s.height && v < s.width)
                sum += widen(x[in_x(s, n, channel, h, v)]) * widen(dy[in_y(s, n, f, p, q)]);
        }
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) dw[i] = narrow<T>(sum);
    }
}

#define MATMUL_OF(T, C, NAME)                                                                        \
    KERNEL(NAME##_##T, const T* a, const T* b, C* c, Product s) { matmul<T, C>(a, b, c, s); }
#define WIDE_f32
#define WIDE_f16 MATMUL_OF(f16, f32, matmul_wide)
#define WIDE_bf16 MATMUL_OF(bf16, f32, matmul_wide)
#define MATMUL(T)                                                                                    \
    MATMUL_OF(T, T, matmul) WIDE_##T                                                                 \
    KERNEL(conv_##T, const T* x, const T* w, Conv s, T* y) { conv<T>(x, w, s, y); }                  \
    KERNEL(conv_input_##T, const T* dy, const T* w, Conv s, T* dx) { conv_input<T>(dy, w, s, dx); }  \
    KERNEL(conv_weight_##T, const T* x, const T* dy, Conv s, T* dw) { conv_weight<T>(x, dy, s, dw); }
FOR_TRAINED(MATMUL)

// Copies rows of 16-bit elements that are `from` elements apart to rows `to` apart, and writes zeros after them: up to the end of
// each row, and up to `all` rows. A block per row, two elements a word.
KERNEL(restride, const u16* x, u64 rows, u64 columns, u64 from, u64 to, u64 all, u16* y) {
    const u32 U = 4;
    for (u64 row = blockIdx.x; row < all; row += gridDim.x) {
        const u16* in = x + row * from;
        u16* out = y + row * to;
        u64 end = row < rows ? columns : 0, pairs = end / 2;
        bool whole_in = ((u64)in & 2) == 0, whole_out = ((u64)out & 2) == 0;
        for (u64 first = threadIdx.x; first < pairs; first += U * THREADS) {
            u32 words[U];
#pragma unroll
            for (u32 k = 0; k < U; k++) {
                u64 p = first + k * THREADS;
                if (p < pairs) words[k] = whole_in ? ((const u32*)in)[p] : in[2 * p] | (u32)in[2 * p + 1] << 16;
            }
#pragma unroll
            for (u32 k = 0; k < U; k++) {
                u64 p = first + k * THREADS;
                if (p >= pairs) continue;
                if (whole_out)
                    ((u32*)out)[p] = words[k];
                else
                    out[2 * p] = (u16)words[k], out[2 * p + 1] = (u16)(words[k] >> 16);
            }
        }
        if (end % 2 != 0 && threadIdx.x == 0) out[end - 1] = in[end - 1];
        for (u64 c = end + threadIdx.x; c < to; c += THREADS) out[c] = 0;
    }
}
