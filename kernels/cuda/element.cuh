// The common part of all kernels: element types, their arithmetic (bitwise equal to the CPU's), and loops over long buffers.
//
//   T          f64 f32 f16 bf16 i8 i16 i32 i64 u8, the names of Rust; 16-bit floats are computed in f32
//   Pack<T, W> W elements that move together, in words of up to 16 bytes
//   sweep      [ head | groups of W, 16-byte aligned | tail ]   grid-stride, every element once
//
// Arithmetic follows IEEE 754-2019 as the CPU's kernels do: every computed NaN is the canonical quiet NaN, minimum and maximum
// order -0 before +0 and return NaN if an operand is NaN, and no multiply-add is fused (compile with --fmad=false). This file
// includes no header, so NVRTC compiles it everywhere, and a host compiler does through shim.h.
#pragma once

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// The number of threads of every block.
#define THREADS 256u

// The number of blocks that share a multiprocessor: with four, a thread has 64 registers, and no kernel here spills. A family that
// computes more than it moves defines a smaller number before it includes this file.
#ifndef BLOCKS
#define BLOCKS 4
#endif
#ifndef SHIM
#define INLINE __device__ __forceinline__
#define KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) name(__VA_ARGS__)
#endif

INLINE u32 bits_of(f32 x) { return __float_as_uint(x); }
INLINE f32 f32_of(u32 bits) { return __uint_as_float(bits); }
INLINE u64 bits_of(f64 x) { return (u64)__double_as_longlong(x); }
INLINE f64 f64_of(u64 bits) { return __longlong_as_double((i64)bits); }
INLINE bool is_finite(f32 x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }
INLINE bool is_finite(f64 x) { return (bits_of(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }

#define MINUS_INFINITY f32_of(0xff800000u)

INLINE f32 canonical(f32 x) { return x != x ? f32_of(0x7fc00000u) : x; }
INLINE f64 canonical(f64 x) { return x != x ? f64_of(0x7ff8000000000000ull) : x; }

// ---- widening and narrowing ----

#ifndef SHIM
INLINE f32 widen(f16 x) { f32 y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
INLINE u16 f16_bits(f32 x) { u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
#else
INLINE f32 widen(f16 x) {
    u32 sign = (u32)(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return f32_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // Below the smallest normal number, the value is an integer multiple of 2^-24.
    f32 size = magnitude < 0x400u ? (f32)magnitude * f32_of(0x33800000u) : f32_of((magnitude << 13) + 0x38000000u);
    return f32_of(bits_of(size) | sign);
}
INLINE u16 f16_bits(f32 x) {
    u32 bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size >= 0x477ff000u) return (u16)(sign | 0x7c00u);
    if (size < 0x38800000u) return (u16)(sign | (bits_of(f32_of(size) + 0.5f) - 0x3f000000u));
    return (u16)(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13);
}
#endif
INLINE f32 widen(bf16 x) { return f32_of((u32)x.bits << 16); }
INLINE f32 widen(f32 x) { return x; }
INLINE f64 widen(f64 x) { return x; }

// Rounds to the nearest T, ties to even; NaN becomes T's canonical NaN.
template <class T> struct Narrow;
template <> struct Narrow<f64> { static INLINE f64 from(f64 x) { return canonical(x); } };
template <> struct Narrow<f32> {
    static INLINE f32 from(f32 x) { return canonical(x); }
    static INLINE f32 from(f64 x) { return canonical((f32)x); }
};
template <> struct Narrow<f16> {
    static INLINE f16 from(f32 x) { f16 y; y.bits = x != x ? (u16)0x7e00u : f16_bits(x); return y; }
};
template <> struct Narrow<bf16> {
    static INLINE bf16 from(f32 x) {
        u32 bits = bits_of(canonical(x));
        bf16 y;
        y.bits = (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        return y;
    }
};
template <class T> INLINE T narrow(f32 x) { return Narrow<T>::from(x); }

// f64 to f32, rounded to odd, so that further narrowing rounds as if from the exact value.
INLINE f32 to_odd(f64 x) {
    f32 near = (f32)x;
    if (x != x || (f64)near == x) return canonical(near);
    bool beyond = fabs((f64)near) > fabs(x);
    return f32_of((bits_of(near) - (beyond ? 1u : 0u)) | 1u);
}

// ---- the operators ----

enum Op { OP_SUM, OP_PROD, OP_MIN, OP_MAX };

// For f32 and f64. If neither value is less than the other, they are equal up to the sign of zero, or one is NaN. Of two
// zeros the minimum is negative if either is negative (bitwise or), the maximum only if both are (bitwise and).
template <Op OP, class F, class B> INLINE F combine_floats(F a, F b, F (*of)(B)) {
    if (OP == OP_SUM) return canonical(a + b);
    if (OP == OP_PROD) return canonical(a * b);
    B one = bits_of(a), two = bits_of(b);
    F nan = canonical(a + b);
    if (OP == OP_MIN) return a < b ? a : b < a ? b : a == b ? of(one | two) : nan;
    return a > b ? a : b > a ? b : a == b ? of(one & two) : nan;
}

template <Op OP, class T> struct Combine {
    // Integers wrap, as unsigned arithmetic does.
    static INLINE T run(T a, T b) {
        if (OP == OP_SUM) return (T)((u64)a + (u64)b);
        if (OP == OP_PROD) return (T)((u64)a * (u64)b);
        if (OP == OP_MIN) return a < b ? a : b;
        return a > b ? a : b;
    }
};
template <Op OP> struct Combine<OP, f32> {
    static INLINE f32 run(f32 a, f32 b) { return combine_floats<OP, f32, u32>(a, b, f32_of); }
};
template <Op OP> struct Combine<OP, f64> {
    static INLINE f64 run(f64 a, f64 b) { return combine_floats<OP, f64, u64>(a, b, f64_of); }
};
template <Op OP> struct Combine<OP, f16> {
    static INLINE f16 run(f16 a, f16 b) { return narrow<f16>(Combine<OP, f32>::run(widen(a), widen(b))); }
};
template <Op OP> struct Combine<OP, bf16> {
    static INLINE bf16 run(bf16 a, bf16 b) { return narrow<bf16>(Combine<OP, f32>::run(widen(a), widen(b))); }
};

// x / parts, rounded once; integers truncate towards zero.
template <class T> struct Quotient {
    static INLINE T run(T x, u32 parts) { return (T)((i64)x / (i64)parts); }
};
template <> struct Quotient<f64> {
    static INLINE f64 run(f64 x, u32 parts) { return canonical(x / (f64)parts); }
};
template <> struct Quotient<f32> {
    static INLINE f32 run(f32 x, u32 parts) { return canonical(x / (f32)parts); }
};
// A quotient between two neighbours of T differs from their midpoint by more than 2^-(p + 1 + q), for p bits of T and q bits of
// `parts`. f32 rounds by 2^-24, so up to 2^11 parts the result is as if rounded once. Above that, f64 rounded to odd is used.
template <class T> INLINE T narrow_quotient(f32 x, u32 parts) {
    return narrow<T>(parts <= 2048u ? x / (f32)parts : to_odd((f64)x / (f64)parts));
}
template <> struct Quotient<f16> {
    static INLINE f16 run(f16 x, u32 parts) { return narrow_quotient<f16>(widen(x), parts); }
};
template <> struct Quotient<bf16> {
    static INLINE bf16 run(bf16 x, u32 parts) { return narrow_quotient<bf16>(widen(x), parts); }
};

// ---- moving several elements at once ----

template <int BYTES> struct WordOf { typedef uint4 Word; static const int SIZE = 16; };
template <> struct WordOf<1> { typedef u8 Word; static const int SIZE = 1; };
template <> struct WordOf<2> { typedef u16 Word; static const int SIZE = 2; };
template <> struct WordOf<4> { typedef u32 Word; static const int SIZE = 4; };
template <> struct WordOf<8> { typedef uint2 Word; static const int SIZE = 8; };

template <class T, int W> union Pack {
    typedef typename WordOf<(int)sizeof(T) * W>::Word Word;
    static const int WORDS = (int)sizeof(T) * W / WordOf<(int)sizeof(T) * W>::SIZE;
    T at[W];
    Word words[WORDS];
};

template <class T, int W> INLINE Pack<T, W> load(const T* from) {
    Pack<T, W> pack;
    const typename Pack<T, W>::Word* words = (const typename Pack<T, W>::Word*)from;
#pragma unroll
    for (int i = 0; i < Pack<T, W>::WORDS; i++) pack.words[i] = words[i];
    return pack;
}

template <class T, int W> INLINE void store(T* into, const Pack<T, W>& pack) {
    typename Pack<T, W>::Word* words = (typename Pack<T, W>::Word*)into;
#pragma unroll
    for (int i = 0; i < Pack<T, W>::WORDS; i++) words[i] = pack.words[i];
}

// Stores a word to device memory whole. Without this, the compiler splits some 16-byte stores into four of 4 bytes.
#ifndef SHIM
INLINE void put(uint4* at, uint4 w) {
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %0; st.global.v4.u32 [g], {%1, %2, %3, %4}; }"
                 : : "l"(at), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w) : "memory");
}
INLINE void put(uint2* at, uint2 w) {
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %0; st.global.v2.u32 [g], {%1, %2}; }"
                 : : "l"(at), "r"(w.x), "r"(w.y) : "memory");
}
#endif
template <class Word> INLINE void put(Word* at, Word w) { *at = w; }

// As `store`, by whole words. It keeps the compiler from moving loads across it: a kernel that stores one word per load is slower.
template <class T, int W> INLINE void store_whole(T* into, const Pack<T, W>& pack) {
    typename Pack<T, W>::Word* words = (typename Pack<T, W>::Word*)into;
#pragma unroll
    for (int i = 0; i < Pack<T, W>::WORDS; i++) put(words + i, pack.words[i]);
}

// The number of elements before the first one that is 16-byte aligned.
template <class T> INLINE u64 until_aligned(const T* at) { return (16u - ((u64)at & 15u)) % 16u / sizeof(T); }

// The number of elements before both pointers are 16-byte aligned; all of `n` if they never are at the same element.
template <class A, class B> INLINE u64 head_of(const A* a, const B* b, u64 n) {
    u64 head = until_aligned(a);
    return head == until_aligned(b) ? (head < n ? head : n) : n;
}
template <class A> INLINE u64 head_of(const A* a, u64 n) { return head_of(a, a, n); }

// Runs body.run<W>(i) for groups of W elements from `head` on, and body.run<1>(i) for the elements before and after, over the
// threads of one row of the grid.
template <int W, class Body> INLINE void sweep(u64 n, u64 head, const Body& body) {
    u64 me = (u64)blockIdx.x * blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    u64 groups = (n - head) / W, rest = n - groups * W;
    for (u64 i = me; i < groups; i += stride) body.template run<W>(head + i * W);
    for (u64 i = me; i < rest; i += stride) body.template run<1>(i < head ? i : i + groups * W);
}

// ---- work shared by the threads of a block ----

template <class F> INLINE F warp_sum(F x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}
INLINE f32 warp_max(f32 x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}

// The sum over all threads of a block of THREADS, returned in every thread. `shared` has THREADS / 32 elements.
template <class F> INLINE F block_sum(F x, F* shared) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    F total = shared[0];
    for (u32 warp = 1; warp < THREADS / 32; warp++) total += shared[warp];
    return total;
}
INLINE f32 block_max(f32 x, f32* shared) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    f32 most = shared[0];
    for (u32 warp = 1; warp < THREADS / 32; warp++) most = fmaxf(most, shared[warp]);
    return most;
}

// ---- random numbers ----

// Philox4x32-10 (J. Salmon et al., SC 2011): four draws that are a function of a counter and a key.
struct Four { u32 at[4]; };

INLINE Four philox(u32 a, u32 b, u32 c, u32 d, u32 low, u32 high) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 first = (u64)a * 0xD2511F53ull, second = (u64)c * 0xCD9E8D57ull;
        u32 a1 = (u32)(second >> 32) ^ b ^ low, c1 = (u32)(first >> 32) ^ d ^ high;
        a = a1, b = (u32)second, c = c1, d = (u32)first;
        low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
    Four four = {{a, b, c, d}};
    return four;
}

// ---- instances ----

// ONLY=T compiles the instances of one type, so that a program waits only for the type that it needs first.
#define APPLY(X, T) X(T)
#ifdef ONLY
#define FOR_TRAINED(X) APPLY(X, ONLY)
#define FOR_FLOATS(X) APPLY(X, ONLY)
#define FOR_ELEMENTS(X) APPLY(X, ONLY)
#else
#define FOR_TRAINED(X) X(f32) X(f16) X(bf16)
#define FOR_FLOATS(X) X(f64) X(f32) X(f16) X(bf16)
#define FOR_ELEMENTS(X) FOR_FLOATS(X) X(i8) X(i16) X(i32) X(i64) X(u8)
#endif
