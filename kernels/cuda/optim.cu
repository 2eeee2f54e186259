// Optimiser steps over many tensors at once, by PyTorch's formulas, with f32 master weights for 16-bit parameters.
//
//   tensors  param [n] of T, grad [n] f32, master [n] f32 (null: no master copy), m, v [n] f32
//   jobs     one per block: (tensor, nth part of JOB elements)
//   skip     a flag on the device: if it is not 0, nothing changes (an AMP step that found an infinity)
//   by       a factor on the device, by which `factor` is multiplied (null: 1): that of clipping
//
//   sgd_T    g = factor grad + decay p;  v = first ? g : momentum v + g;  p -= lr (nesterov ? g + momentum v : v)
//   adam_T   g = factor grad + added p;  m += (1 - b1) (g - m);  v = b2 v + (1 - b2) g g
//            p = p kept - rate (m / (sqrt(v) / root + eps))           kept = 1 - lr decay for AdamW, added = decay for Adam
//   lars_T   v = momentum v + rate (factor grad + decay p);  p -= v        rate = lr ratio
//            ratio = trust |p| / (|g| + decay |p|), 1 where a norm is 0 or `own` is 0; decay is 0 where `own` is 0
//            lars_norms_T   sums [jobs, 2] f64 = squares of p and of g = factor grad, a job each
//            lars_totals    totals [parameters, 2] f64 = the sums of the jobs of a tensor, at its number; ranks with parts add them up
//
// Every product and sum rounds once, in the order written, as on the CPU, so the bits are equal, except for LARS: its norms are
// summed in another order.
#include "element.cuh"

#define JOB 16384u

struct Tensor { u64 param, grad, master, m, v, count; };
struct Job { u32 tensor, nth; };
struct SgdRule { f32 lr, momentum, decay, factor; u32 first, nesterov; };
struct LarsRule { f64 lr, decay, trust; f32 momentum, factor; u32 own, unused; };
struct AdamRule { f32 added, kept, rate, root, eps, from_g, beta2, from_square, factor; };

INLINE f32 sgd(f32 p, f32 grad, f32& v, const SgdRule& rule) {
    f32 g = grad + rule.decay * p;
    if (rule.momentum == 0.0f) return p - rule.lr * g;
    v = rule.first ? g : rule.momentum * v + g;
    return p - rule.lr * (rule.nesterov ? g + rule.momentum * v : v);
}

INLINE f32 adam(f32 p, f32 grad, f32& m, f32& v, const AdamRule& rule) {
    f32 g = grad + rule.added * p;
    m = m + rule.from_g * (g - m);
    v = rule.beta2 * v + rule.from_square * g * g;
    return p * rule.kept - rule.rate * (m / (sqrtf(v) / rule.root + rule.eps));
}

template <class T, class Rule> struct Update {
    T* param;
    const f32* grad;
    f32 *master, *m, *v;
    Rule rule;
    const f32* by;
    INLINE f32 one(f32 p, f32 g, f32& m, f32& v, const SgdRule& rule) const { (void)m; return sgd(p, g, v, rule); }
    INLINE f32 one(f32 p, f32 g, f32& m, f32& v, const AdamRule& rule) const { return adam(p, g, m, v, rule); }
    template <int W> INLINE void run(u64 i) const {
        Pack<T, W> p = load<T, W>(param + i);
        Pack<f32, W> g = load<f32, W>(grad + i), wide, m1, v1;
#pragma unroll
        for (int k = 0; k < W; k++) wide.at[k] = widen(p.at[k]), m1.at[k] = 0.0f, v1.at[k] = 0.0f;
        if (master) wide = load<f32, W>(master + i);
        if (m) m1 = load<f32, W>(m + i);
        if (v) v1 = load<f32, W>(v + i);
        f32 factor = by ? rule.factor * *by : rule.factor;
#pragma unroll
        for (int k = 0; k < W; k++) wide.at[k] = one(wide.at[k], g.at[k] * factor, m1.at[k], v1.at[k], rule);
#pragma unroll
        for (int k = 0; k < W; k++) p.at[k] = narrow<T>(wide.at[k]);
        if (m) store<f32, W>(m + i, m1);
        if (v) store<f32, W>(v + i, v1);
        if (master) store<f32, W>(master + i, wide);
        store<T, W>(param + i, p);
    }
};

template <class T, class Rule> INLINE void step(const Tensor* tensors, const Job* jobs, Rule rule, const u32* skip, const f32* by) {
    if (skip && *skip) return;
    Tensor t = tensors[jobs[blockIdx.x].tensor];
    u64 first = (u64)jobs[blockIdx.x].nth * JOB, left = t.count - first, n = left < JOB ? left : JOB;
    f32 *master = t.master ? (f32*)t.master + first : 0, *m = t.m ? (f32*)t.m + first : 0;
    f32* v = t.v ? (f32*)t.v + first : 0;
    Update<T, Rule> body = {(T*)t.param + first, (const f32*)t.grad + first, master, m, v, rule, by};
    // Parts of JOB elements are 16-byte aligned if their tensor is; a tensor that is not aligned is handled one element at a time.
    u64 places = t.param | t.grad | t.master | t.m | t.v;
    u64 groups = places % 16 ? 0 : n / 4;
    for (u64 i = threadIdx.x; i < groups; i += blockDim.x) body.template run<4>(4 * i);
    for (u64 i = 4 * groups + threadIdx.x; i < n; i += blockDim.x) body.template run<1>(i);
}

INLINE f32 master_of(const Tensor& t, u64 i, f32 narrow) { return t.master ? ((const f32*)t.master)[i] : narrow; }

template <class T> INLINE void lars_norms(const Tensor* tensors, const Job* jobs, f32 factor, const f32* by, f64* sums) {
    __shared__ f64 shared[THREADS / 32];
    if (by) factor *= *by;
    Tensor t = tensors[jobs[blockIdx.x].tensor];
    u64 first = (u64)jobs[blockIdx.x].nth * JOB, end = first + JOB < t.count ? first + JOB : t.count;
    f64 params = 0.0, grads = 0.0;
    for (u64 i = first + threadIdx.x; i < end; i += THREADS) {
        f64 p = master_of(t, i, widen(((const T*)t.param)[i])), g = ((const f32*)t.grad)[i] * factor;
        params += p * p;
        grads += g * g;
    }
    params = block_sum(params, shared);
    grads = block_sum(grads, shared);
    if (threadIdx.x == 0) sums[2 * blockIdx.x] = params, sums[2 * blockIdx.x + 1] = grads;
}

// The sums over all jobs of a tensor, of which `first` is the first.
INLINE void job_sums(const Tensor& t, u64 first, const f64* sums, f64& params, f64& grads, f64* shared) {
    for (u64 i = threadIdx.x; i < (t.count + JOB - 1) / JOB; i += THREADS) {
        params += sums[2 * (first + i)];
        grads += sums[2 * (first + i) + 1];
    }
    params = block_sum(params, shared);
    grads = block_sum(grads, shared);
}

// A bit in the number of a tensor: this rank's elements do not count, because another rank counts the same elements.
#define UNCOUNTED 0x80000000u

// Without totals the norms are those of the tensor's own jobs.
template <class T>
INLINE void lars(const Tensor* tensors, const Job* jobs, LarsRule rule, const f64* sums, const f64* totals,
                 const u32* numbers, const u32* skip, const f32* by) {
    __shared__ f64 shared[THREADS / 32];
    if (skip && *skip) return;
    f32 factor = by ? rule.factor * *by : rule.factor;
    Tensor t = tensors[jobs[blockIdx.x].tensor];
    u32 nth = jobs[blockIdx.x].nth;
    u64 first = (u64)nth * JOB, end = first + JOB < t.count ? first + JOB : t.count;
    // All jobs of a tensor are consecutive.
    f64 params = 0.0, grads = 0.0;
    if (totals) {
        u64 number = numbers[jobs[blockIdx.x].tensor] & ~UNCOUNTED;
        params = sqrt(totals[2 * number]), grads = sqrt(totals[2 * number + 1]);
    } else {
        job_sums(t, blockIdx.x - nth, sums, params, grads, shared);
        params = sqrt(params), grads = sqrt(grads);
    }
    f64 ratio = rule.own && params != 0.0 && grads != 0.0 ? rule.trust * params / (grads + rule.decay * params) : 1.0;
    f32 rate = (f32)(rule.lr * ratio), decay = rule.own ? (f32)rule.decay : 0.0f;
    for (u64 i = first + threadIdx.x; i < end; i += THREADS) {
        T* param = (T*)t.param + i;
        f32 p = master_of(t, i, widen(*param)), *v = (f32*)t.v + i;
        *v = rule.momentum * *v + rate * (((const f32*)t.grad)[i] * factor + decay * p);
        p -= *v;
        if (t.master) ((f32*)t.master)[i] = p;
        *param = narrow<T>(p);
    }
}

#define OPTIM(T)                                                                                               \
    KERNEL(sgd_##T, const Tensor* tensors, const Job* jobs, SgdRule rule, const u32* skip, const f32* by) {    \
        step<T, SgdRule>(tensors, jobs, rule, skip, by);                                                       \
    }                                                                                                          \
    KERNEL(adam_##T, const Tensor* tensors, const Job* jobs, AdamRule rule, const u32* skip, const f32* by) {  \
        step<T, AdamRule>(tensors, jobs, rule, skip, by);                                                      \
    }                                                                                                          \
    KERNEL(lars_norms_##T, const Tensor* tensors, const Job* jobs, f32 factor, const f32* by, f64* sums) {     \
        lars_norms<T>(tensors, jobs, factor, by, sums);                                                        \
    }                                                                                                          \
    KERNEL(lars_##T, const Tensor* tensors, const Job* jobs, LarsRule rule, const f64* sums, const f64* totals, \
           const u32* numbers, const u32* skip, const f32* by) {                                               \
        lars<T>(tensors, jobs, rule, sums, totals, numbers, skip, by);                                         \
    }
FOR_TRAINED(OPTIM)

KERNEL(lars_totals, const Tensor* tensors, const Job* jobs, const f64* sums, const u32* numbers, f64* totals) {
    __shared__ f64 shared[THREADS / 32];
    u32 number = numbers[jobs[blockIdx.x].tensor];
    if (jobs[blockIdx.x].nth || number & UNCOUNTED) return;
    f64 params = 0.0, grads = 0.0;
    job_sums(tensors[jobs[blockIdx.x].tensor], blockIdx.x, sums, params, grads, shared);
    if (threadIdx.x == 0) totals[2 * number] = params, totals[2 * number + 1] = grads;
}
