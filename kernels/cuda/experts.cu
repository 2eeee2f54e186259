// A mixture of experts: the experts that each token is sent to, its copies in their slots, and the sum of their outputs. In f32.
//
//   p        [N T, E]   the router's logits, then their softmax        N samples of T tokens, E experts with C slots for each sample
//   best     [N T, K]   u32: the experts with the largest p of a token, largest first, of equal ones the first
//   places   [N T, K]   u32: the slot of each, expert C + its turn; E C for one that is full, which drops the token
//   gates    [N T, K]   p / the sum of the chosen p; p itself with K = 1             numbers  the places as f32
//   slots    [E, N, C, width]
//
//   experts_route       p, best, places, gates, numbers             a block for each sample; an expert takes tokens in their order
//   experts_dispatch    slots of the chosen = x                     a warp for each token and choice; other slots are zeros before
//   experts_collect     x += the slots of a token's choices         a warp for each token
//   experts_combine     y = sum over a token's choices of gate * slot
//   experts_combine_back  slot = gate * dy,  dgate = slot before . dy
//   experts_logits      gradient of the logits, by the gradients of gates and by that of the balance loss
#include "element.cuh"

struct Mixture { u32 samples, tokens, experts, chosen, capacity, width; };

INLINE u32 full(const Mixture& m) { return m.experts * m.capacity; }

// The first element of slot `number` of a sample.
INLINE u64 slot_at(const Mixture& m, u32 number, u32 sample) {
    u64 row = ((u64)(number / m.capacity) * m.samples + sample) * m.capacity + number % m.capacity;
    return row * m.width;
}

// Whether expert e is among the first k of these.
INLINE bool among(const u32* best, u32 k, u32 e) {
    for (u32 j = 0; j < k; j++)
        if (best[j] == e) return true;
    return false;
}

KERNEL(experts_route, f32* p, u32* best, u32* places, f32* gates, f32* numbers, Mixture m) {
    u64 first = (u64)blockIdx.x * m.tokens;
    for (u32 t = threadIdx.x; t < m.tokens; t += THREADS) {
        f32* row = p + (first + t) * m.experts;
        u64 own = (first + t) * m.chosen;
        f32 most = row[0], sum = 0.0f;
        for (u32 e = 1; e < m.experts; e++) most = fmaxf(most, row[e]);
        for (u32 e = 0; e < m.experts; e++) sum += row[e] = expf(row[e] - most);
        for (u32 e = 0; e < m.experts; e++) row[e] /= sum;
        f32 chosen = 0.0f;
        for (u32 j = 0; j < m.chosen; j++) {
            u32 next = m.experts;
            for (u32 e = 0; e < m.experts; e++)
                if (!among(best + own, j, e) && (next == m.experts || row[e] > row[next])) next = e;
            best[own + j] = next;
            chosen += row[next];
        }
        for (u32 j = 0; j < m.chosen; j++) gates[own + j] = row[best[own + j]] / (m.chosen == 1 ? 1.0f : chosen);
    }
    __syncthreads();
    // A token is sent to an expert at most once, so an expert's turns follow from the order of tokens.
    for (u32 e = threadIdx.x; e < m.experts; e += THREADS) {
        u32 taken = 0;
        for (u64 at = first * m.chosen; at < (first + m.tokens) * m.chosen; at++) {
            if (best[at] != e) continue;
            u32 number = taken < m.capacity ? e * m.capacity + taken : full(m);
            taken++;
            places[at] = number;
            numbers[at] = (f32)number;
        }
    }
}

KERNEL(experts_dispatch, const f32* x, const u32* places, f32* slots, Mixture m) {
    u64 choices = (u64)m.samples * m.tokens * m.chosen, step = (u64)gridDim.x * (THREADS / 32);
    for (u64 at = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; at < choices; at += step) {
        u64 token = at / m.chosen;
        if (places[at] >= full(m)) continue;
        u64 slot = slot_at(m, places[at], (u32)(token / m.tokens));
        for (u32 c = threadIdx.x % 32; c < m.width; c += 32) slots[slot + c] = x[token * m.width + c];
    }
}

KERNEL(experts_collect, const f32* slots, const u32* places, f32* x, Mixture m) {
    u64 tokens = (u64)m.samples * m.tokens, step = (u64)gridDim.x * (THREADS / 32);
    for (u64 token = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; token < tokens; token += step)
        for (u32 c = threadIdx.x % 32; c < m.width; c += 32) {
            f32 sum = x[token * m.width + c];
            for (u32 j = 0; j < m.chosen; j++) {
                u32 place = places[token * m.chosen + j];
                if (place < full(m)) sum += slots[slot_at(m, place, (u32)(token / m.tokens)) + c];
            }
            x[token * m.width + c] = sum;
        }
}

KERNEL(experts_combine, const f32* slots, const f32* gates, const f32* numbers, f32* y, Mixture m) {
    u64 tokens = (u64)m.samples * m.tokens, step = (u64)gridDim.x * (THREADS / 32);
    for (u64 token = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; token < tokens; token += step)
        for (u32 c = threadIdx.x % 32; c < m.width; c += 32) {
            f32 sum = 0.0f;
            for (u32 j = 0; j < m.chosen; j++) {
                u32 place = (u32)numbers[token * m.chosen + j];
                if (place >= full(m)) continue;
                sum += gates[token * m.chosen + j] * slots[slot_at(m, place, (u32)(token / m.tokens)) + c];
            }
            y[token * m.width + c] = sum;
        }
}

KERNEL(experts_combine_back, const f32* slots, const f32* gates, const f32* numbers, const f32* dy, f32* dslots, f32* dgates,
       Mixture m) {
    u64 choices = (u64)m.samples * m.tokens * m.chosen, step = (u64)gridDim.x * (THREADS / 32);
    u32 lane = threadIdx.x % 32;
    for (u64 at = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; at < choices; at += step) {
        u64 token = at / m.chosen;
        u32 place = (u32)numbers[at];
        f32 dot = 0.0f;
        if (place < full(m)) {
            u64 slot = slot_at(m, place, (u32)(token / m.tokens));
            for (u32 c = lane; c < m.width; c += 32) {
                f32 g = dy[token * m.width + c];
                dot += slots[slot + c] * g;
                dslots[slot + c] = gates[at] * g;
            }
        }
        dot = warp_sum(dot);
        if (lane == 0) dgates[at] = dot;
    }
}

// `shares` [N, E] is memory for the share of a sample's choices that were sent to each expert; `balance` is the loss's weight times the
// number of experts, divided by the number of samples.
KERNEL(experts_logits, const f32* p, const u32* best, const f32* dgates, f32* shares, f32* dp, Mixture m, f32 balance) {
    u64 first = (u64)blockIdx.x * m.tokens;
    f32* share = shares + (u64)blockIdx.x * m.experts;
    for (u32 e = threadIdx.x; e < m.experts; e += THREADS) {
        u32 taken = 0;
        for (u64 at = first * m.chosen; at < (first + m.tokens) * m.chosen; at++) taken += best[at] == e;
        share[e] = (f32)taken / (f32)(m.tokens * m.chosen);
    }
    __syncthreads();
    for (u32 t = threadIdx.x; t < m.tokens; t += THREADS) {
        const f32* row = p + (first + t) * m.experts;
        f32* d = dp + (first + t) * m.experts;
        const u32* own = best + (first + t) * m.chosen;
        const f32* dgate = dgates + (first + t) * m.chosen;
        for (u32 e = 0; e < m.experts; e++) d[e] = balance * share[e] / (f32)m.tokens;
        // With several choices a gate is divided by the sum of the chosen p; with one choice it is p itself.
        f32 sum = m.chosen == 1 ? 1.0f : 0.0f, common = 0.0f;
        if (m.chosen > 1) {
            for (u32 j = 0; j < m.chosen; j++) sum += row[own[j]];
            for (u32 j = 0; j < m.chosen; j++) common += row[own[j]] / sum * dgate[j];
        }
        for (u32 j = 0; j < m.chosen; j++) d[own[j]] += (dgate[j] - common) / sum;
        f32 dot = 0.0f;
        for (u32 e = 0; e < m.experts; e++) dot += row[e] * d[e];
        for (u32 e = 0; e < m.experts; e++) d[e] = row[e] * (d[e] - dot);
    }
}
