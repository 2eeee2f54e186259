// The common part of both files of attention kernels: the shape, the place of a row's log-sum-exp, and the draws of dropout.
#pragma once

struct Heads {
    u64 batch, heads, length, stride, y_stride;
    u32 causal; f32 scale; u64 stream; u32 size, layer, bound; f32 keep;
    // For a part of a longer sequence, for the draws: the whole length, and the first head, query and key.
    u32 whole, head, query, key;
};

INLINE u64 lse_at(const Heads& s, u64 b, u64 h, u64 t) { return (b * s.heads + h) * s.length + t; }

// The draws for query t and the four keys of which `key` is the first or a later one, in head h of sample b.
INLINE Four draws(const Heads& s, u64 b, u64 h, u64 t, u64 key) {
    const u32* stream = (const u32*)s.stream;
    // Only the low 32 bits of the counter are used for the draws.
    u32 row = (s.head + (u32)h) * s.whole + s.query + (u32)t, group = row * ((s.whole + 3) / 4) + (s.key + (u32)key) / 4;
    u32 sample = stream[3] + stream[4] * (u32)b;
    return philox(group, stream[2], sample, s.layer, stream[0], stream[1]);
}
