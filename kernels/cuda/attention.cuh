// What the attention kernels of both files share: the shape, the place of a row's log-sum-exp, and the draws of dropout.
#pragma once

struct Heads {
    u64 batch, heads, length, stride, y_stride;
    u32 causal; f32 scale; u64 stream; u32 size, layer, bound; f32 keep;
};

INLINE u64 lse_at(const Heads& s, u64 b, u64 h, u64 t) { return (b * s.heads + h) * s.length + t; }

// The draws for query t and the four keys from key / 4 * 4 on, in head h of sample b.
INLINE Four draws(const Heads& s, u64 b, u64 h, u64 t, u64 key) {
    const u32* stream = (const u32*)s.stream;
    // Only the low 32 bits of the counter are drawn with.
    u32 length = (u32)s.length, group = ((u32)h * length + (u32)t) * ((length + 3) / 4) + (u32)key / 4;
    u32 sample = stream[3] + stream[4] * (u32)b;
    return philox(group, stream[2], sample, s.layer, stream[0], stream[1]);
}
