// Layer normalisation over the last axis (J. L. Ba, J. R. Kiros and G. E. Hinton, 2016).
//
//   x, y, dy, dx [rows, C]      w, b, dw, db [C] f32      mean, r [rows] f32
//
//   layer_norm_T, layer_norm_input_T, layer_norm_params_T     all tensors of T; with `wide` in their names, x and dx are f32
//   more [rows, C], null: none                                what has arrived of the gradient by other paths, of the type of dx
//   other [rows, C] of T, null: none                          x is sum = x + other, which is stored
//   thin [rows, C] of T, null: none                           dx, rounded to T
//
//   layer_norm_T         y = (x - mean) r w + b,  r = 1 / sqrt(var + eps)      one block per row, Welford in one pass
//   layer_norm_input_T   dx = r (g - mean(g) - hat mean(g hat)) + more,  g = dy w,  hat = (x - mean) r
//                        parts [S, 2 C], null: none; sums of dy hat, then of dy, over the rows of each block, for C up to COLUMNS
//   layer_norm_params_T  the same parts over a slice of the rows, 32 columns a block, for larger C
//   column_sums          out [n] = sum over S of parts [S, n], a warp for every eighth of the slices, 32 columns a block
#include "element.cuh"

#define COLUMNS 2048

INLINE void welford(f32 x, f32& count, f32& mean, f32& m2) {
    count += 1.0f;
    f32 delta = x - mean;
    mean += delta / count;
    m2 += delta * (x - mean);
}

template <class X, class T>
INLINE void layer_norm(const X* x, const T* other, X* sum, u64 rows, u64 columns, const f32* w, const f32* b, f32 eps,
                       f32* means, f32* rs, T* y) {
    __shared__ f32 shared[THREADS / 32];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const X* in = x + row * columns;
        f32 count = 0.0f, mean = 0.0f, m2 = 0.0f;
        if (other) {
            const T* more = other + row * columns;
            X* whole = sum + row * columns;
            for (u64 c = threadIdx.x; c < columns; c += THREADS) {
                X value = narrow<X>(widen(in[c]) + widen(more[c]));
                whole[c] = value;
                welford(widen(value), count, mean, m2);
            }
            // Each thread reads below what it has written here.
            in = whole;
        } else {
            for (u64 c = threadIdx.x; c < columns; c += THREADS) welford(widen(in[c]), count, mean, m2);
        }
        // Threads have unequal counts: first the mean of all values, then the squares about that mean (Chan et al., 1979).
        f32 all = block_sum(mean * count, shared) / (f32)columns;
        f32 var = block_sum(m2 + count * (mean - all) * (mean - all), shared) / (f32)columns;
        f32 r = 1.0f / sqrtf(var + eps);
        if (threadIdx.x == 0) means[row] = all, rs[row] = r;
        for (u64 c = threadIdx.x; c < columns; c += THREADS)
            y[row * columns + c] = narrow<T>((widen(in[c]) - all) * r * w[c] + b[c]);
    }
}

template <class X, class T>
INLINE void layer_norm_input(const X* x, const T* dy, u64 rows, u64 columns, const f32* w, const f32* means, const f32* rs,
                             const X* more, X* dx, T* thin, f32* parts) {
    __shared__ f32 shared[THREADS / 32], weight[COLUMNS], bias[COLUMNS];
    // The columns of a thread are its own in every row.
    if (parts)
        for (u64 c = threadIdx.x; c < columns; c += THREADS) weight[c] = bias[c] = 0.0f;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const X* in = x + row * columns;
        const T* from = dy + row * columns;
        f32 mean = means[row], r = rs[row], sum = 0.0f, product = 0.0f;
        for (u64 c = threadIdx.x; c < columns; c += THREADS) {
            f32 g = widen(from[c]) * w[c];
            sum += g;
            product += g * (widen(in[c]) - mean) * r;
        }
        sum = block_sum(sum, shared) / (f32)columns;
        product = block_sum(product, shared) / (f32)columns;
        for (u64 c = threadIdx.x; c < columns; c += THREADS) {
            f32 hat = (widen(in[c]) - mean) * r, d = widen(from[c]);
            X own = narrow<X>(r * (d * w[c] - sum - hat * product));
            if (parts) weight[c] += d * hat, bias[c] += d;
            if (more) own = narrow<X>(widen(own) + widen(more[row * columns + c]));
            dx[row * columns + c] = own;
            if (thin) thin[row * columns + c] = narrow<T>(widen(own));
        }
    }
    if (!parts) return;
    parts += (u64)blockIdx.x * 2 * columns;
    for (u64 c = threadIdx.x; c < columns; c += THREADS) parts[c] = weight[c], parts[columns + c] = bias[c];
}

// Threads form 8 rows of 32 columns; the 8 rows are added up through shared memory.
template <class X, class T>
INLINE void layer_norm_params(const X* x, const T* dy, u64 rows, u64 columns, const f32* means, const f32* rs, f32* parts) {
    __shared__ f32 shared[2][8][33];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 c = (u64)blockIdx.x * 32 + lane;
    f32 bias = 0.0f, weight = 0.0f;
    if (c < columns)
        for (u64 row = (u64)blockIdx.y * 8 + warp; row < rows; row += (u64)gridDim.y * 8) {
            f32 d = widen(dy[row * columns + c]);
            bias += d;
            weight += d * (widen(x[row * columns + c]) - means[row]) * rs[row];
        }
    shared[0][warp][lane] = weight;
    shared[1][warp][lane] = bias;
    __syncthreads();
    if (warp < 2 && c < columns) {
        f32 total = 0.0f;
        for (u32 i = 0; i < 8; i++) total += shared[warp][i][lane];
        parts[(u64)blockIdx.y * 2 * columns + warp * columns + c] = total;
    }
}

KERNEL(column_sums, const f32* parts, u32 slices, u64 n, f32* out) {
    __shared__ f32 shared[8][33];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 c = (u64)blockIdx.x * 32 + lane;
    f32 sum = 0.0f;
    if (c < n)
#pragma unroll 8
        for (u32 s = warp; s < slices; s += 8) sum += parts[s * n + c];
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < n) {
        f32 total = 0.0f;
        for (u32 i = 0; i < 8; i++) total += shared[i][lane];
        out[c] = total;
    }
}

#define LAYER_NORM_OF(X, T, NAME)                                                                                        \
    KERNEL(layer_norm_##NAME, const X* x, const T* other, X* sum, u64 rows, u64 columns, const f32* w, const f32* b,     \
           f32 eps, f32* means, f32* rs, T* y) {                                                                         \
        layer_norm<X, T>(x, other, sum, rows, columns, w, b, eps, means, rs, y);                                         \
    }                                                                                                                    \
    KERNEL(layer_norm_input_##NAME, const X* x, const T* dy, u64 rows, u64 columns, const f32* w, const f32* means,      \
           const f32* rs, const X* more, X* dx, T* thin, f32* parts) {                                                   \
        layer_norm_input<X, T>(x, dy, rows, columns, w, means, rs, more, dx, thin, parts);                               \
    }                                                                                                                    \
    KERNEL(layer_norm_params_##NAME, const X* x, const T* dy, u64 rows, u64 columns, const f32* means, const f32* rs,    \
           f32* parts) {                                                                                                 \
        layer_norm_params<X, T>(x, dy, rows, columns, means, rs, parts);                                                 \
    }
#define WIDE_f32
#define WIDE_f16 LAYER_NORM_OF(f32, f16, wide_f16)
#define WIDE_bf16 LAYER_NORM_OF(f32, bf16, wide_bf16)
#define LAYER_NORM(T) LAYER_NORM_OF(T, T, T) WIDE_##T
FOR_TRAINED(LAYER_NORM)
