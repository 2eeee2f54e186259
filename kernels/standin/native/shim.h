// CUDA's kernels on a CPU: the threads of a block are fibres of one thread, run in turn.
//
//   launch(name, grid, block, arguments)       blocks one after another
//     block:  fibre 0 .. 255   each runs until it ends or must wait
//             __syncthreads    waits until every thread of the block has reached the same one
//             __shfl_*_sync    waits until every lane of its warp that the mask names has arrived
//
// A barrier that some threads do not reach is an error that names both places; so is a shuffle with different masks or places.
// Fibres run upwards or downwards, as the caller requests: a kernel whose result depends on that order lacks a barrier. Only one fibre
// runs at a time, so atomics are plain operations.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#define SHIM 1
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define INLINE inline
// Blocks run one after another, so all blocks use one copy of shared memory.
#define __shared__ static

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct dim3 { unsigned x, y, z; };

namespace shim {
extern dim3 grid_dim, block_dim, block_idx;
extern unsigned thread;

void barrier(const char* file, int line);
// Passes this lane's value to its warp and returns the value of `lane`; all lanes of `mask` must take part.
uint64_t exchange(unsigned mask, uint64_t value, unsigned lane, const char* file, int line);
unsigned ballot(unsigned mask, bool value, const char* file, int line);
// `sizes` are the sizes of the arguments in bytes, ended by 0.
void enrol(const char* name, const char* file, void (*call)(const void* kernel, void** arguments), const void* kernel,
           const size_t* sizes);

template <class... A, size_t... I> void call_with(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A> void call(const void* kernel, void** arguments) {
    call_with(reinterpret_cast<void (*)(A...)>(const_cast<void*>(kernel)), arguments, std::index_sequence_for<A...>());
}
struct Enrolled {
    template <class... A> Enrolled(const char* name, const char* file, void (*kernel)(A...)) {
        static const size_t sizes[] = {sizeof(A)..., 0};
        enrol(name, file, call<A...>, reinterpret_cast<const void*>(kernel), sizes);
    }
};

template <class T> T shuffled(unsigned mask, T value, unsigned lane, const char* file, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = exchange(mask, bits, lane, file, line);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}
inline unsigned lane() { return thread % 32; }
}  // namespace shim

#define KERNEL(name, ...)                                          \
    extern "C" void name(__VA_ARGS__);                             \
    static shim::Enrolled enrolled_##name(#name, __FILE__, name);  \
    extern "C" void name(__VA_ARGS__)

#define gridDim shim::grid_dim
#define blockDim shim::block_dim
#define blockIdx shim::block_idx
#define threadIdx (dim3{shim::thread, 0, 0})
#define __syncthreads() shim::barrier(__FILE__, __LINE__)
#define __syncwarp() ((void)shim::ballot(0xffffffffu, true, __FILE__, __LINE__))
#define __shfl_sync(mask, value, from) shim::shuffled(mask, value, (unsigned)(from) % 32, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, by) shim::shuffled(mask, value, shim::lane() ^ (unsigned)(by), __FILE__, __LINE__)
#define __shfl_down_sync(mask, value, by) \
    shim::shuffled(mask, value, shim::lane() + (by) < 32 ? shim::lane() + (by) : shim::lane(), __FILE__, __LINE__)
#define __ballot_sync(mask, value) shim::ballot(mask, value, __FILE__, __LINE__)

template <class T> T atomicAdd(T* at, T value) { T old = *at; *at = old + value; return old; }
template <class T> T atomicMax(T* at, T value) { T old = *at; if (value > old) *at = value; return old; }
template <class T> T atomicOr(T* at, T value) { T old = *at; *at = old | value; return old; }

inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
inline double __longlong_as_double(long long bits) { double x; std::memcpy(&x, &bits, 8); return x; }
inline long long __double_as_longlong(double x) { long long bits; std::memcpy(&bits, &x, 8); return bits; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
using std::fabs;
