// The scheduler of shim.h: fibres with their own stacks, switched by assembly on known processors, else by ucontext.
#include "shim.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace shim {
dim3 grid_dim, block_dim, block_idx;
unsigned thread;

namespace {
// Not a power of two: the tops of the stacks, which are all that most fibres touch, then share no places of the caches.
const size_t STACK = (64 << 10) + 320;

enum State : unsigned char { UNBEGUN, READY, BARRIER, WARP, ENDED };

struct Fibre {
    // The place where the fibre waits, and the mask of its warp's exchange.
    const char* file;
    int line;
    unsigned mask;
    char* stack;
#if defined(__x86_64__)
    void* sp;
#else
    ucontext_t context;
#endif
};

// The current exchange of a warp: the lanes that have arrived, which of them was first, and whether they disagree.
struct Warp {
    unsigned arrived, first;
    bool mixed;
    // The lanes' values, of this exchange and of the one before, which some lanes may not have read yet.
    unsigned turn;
    uint64_t values[2][32];
};

struct Kernel {
    void (*call)(const void*, void**);
    const void* kernel;
    const char* file;
    const size_t* sizes;
};

std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}

std::vector<Fibre> fibres;
std::vector<State> states;
std::vector<Warp> warps;
// The current block: how many threads it has, whether the last runs first, how many have ended, and how many wait in warps.
struct {
    unsigned threads;
    bool downwards;
    unsigned ended, in_warps;
} block;
const Kernel* running;
void** arguments;
std::string failure;

#if defined(__x86_64__)
void* scheduler;
extern "C" void shim_switch(void** from, void* to);
// Saves the registers that a call must preserve, and continues where `to` was saved. Fibres mostly wait in the same function, so the
// processor predicts the return; a jump instead would spoil its prediction of the callers' returns.
asm(R"(
.text
.globl shim_switch
.type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size shim_switch, .-shim_switch
)");
void resume(unsigned t) { shim_switch(&scheduler, fibres[t].sp); }
void leave(unsigned t) { shim_switch(&fibres[t].sp, scheduler); }
void pass(unsigned from, unsigned to) { shim_switch(&fibres[from].sp, fibres[to].sp); }
#else
ucontext_t scheduler;
void resume(unsigned t) { swapcontext(&scheduler, &fibres[t].context); }
void leave(unsigned t) { swapcontext(&fibres[t].context, &scheduler); }
void pass(unsigned from, unsigned to) { swapcontext(&fibres[from].context, &fibres[to].context); }
#endif

void prepare(unsigned t);

// Advances to the first thread at `t` or after it, in the block's order, that can run; false if there is none.
bool find_runnable(unsigned t) {
    for (; t < block.threads; block.downwards ? t-- : t++) {
        if (states[t] > READY) continue;
        if (states[t] == UNBEGUN) prepare(t);
        thread = t;
        return true;
    }
    return false;
}

// Runs the threads after this one, in their order; this thread continues in a later round if it is ready then.
void hand_over() {
    unsigned from = thread;
    if (find_runnable(block.downwards ? from - 1 : from + 1))
        pass(from, thread);
    else
        leave(from);
}

// Threads that follow and have not begun run on the same stack, without a switch.
void body() {
    for (;;) {
        running->call(running->kernel, arguments);
        unsigned ended = thread, next = block.downwards ? ended - 1 : ended + 1;
        states[ended] = ENDED;
        block.ended++;
        if (next >= block.threads || states[next] != UNBEGUN) break;
        std::swap(fibres[ended].stack, fibres[next].stack);
        states[next] = READY;
        thread = next;
    }
    hand_over();
    std::abort();
}

void prepare(unsigned t) {
    Fibre& fibre = fibres[t];
    states[t] = READY;
    if (!fibre.stack) fibre.stack = static_cast<char*>(std::malloc(STACK));
#if defined(__x86_64__)
    // The stack as if body() had been called: a return address, with six registers below it.
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(fibre.stack) + STACK) & ~uintptr_t(15));
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(body);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fibre.sp = top;
#else
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = STACK;
    makecontext(&fibre.context, body, 0);
#endif
}

void wait(State state, const char* file, int line) {
    Fibre& fibre = fibres[thread];
    fibre.file = file, fibre.line = line;
    states[thread] = state;
    hand_over();
}

std::string place(const Fibre& fibre) {
    const char* name = std::strrchr(fibre.file, '/');
    return std::string(name ? name + 1 : fibre.file) + ":" + std::to_string(fibre.line);
}

// Completes a warp's exchange if all lanes of its mask have arrived; otherwise `failure` contains the error.
void release_warp(unsigned number) {
    Warp& warp = warps[number];
    unsigned first = number * 32, lanes = block.threads - first;
    unsigned exist = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
    const Fibre& one = fibres[warp.first];
    for (unsigned t = first; warp.mixed && t < block.threads; t++) {
        const Fibre& other = fibres[t];
        if (states[t] == WARP && (other.mask != one.mask || other.line != one.line || other.file != one.file)) {
            failure = "lanes of one warp wait at different exchanges: " + place(one) + " and " + place(other);
            return;
        }
    }
    if ((one.mask & exist) != warp.arrived) {
        failure = "not all lanes that the mask names have reached the exchange at " + place(one);
        return;
    }
    for (unsigned lane = 0; lane < 32; lane++)
        if (warp.arrived >> lane & 1) states[first + lane] = READY, block.in_warps--;
    warp.arrived = 0, warp.turn ^= 1;
}

// Lets the threads of the block continue if all of them wait at one barrier; otherwise `failure` contains the error.
void release_block() {
    unsigned waiting = 0;
    const Fibre* one = nullptr;
    for (unsigned t = 0; t < block.threads; t++) {
        if (states[t] != BARRIER) continue;
        const Fibre& other = fibres[t];
        if (one && (one->line != other.line || one->file != other.file)) {
            failure = "threads of one block wait at different barriers: " + place(*one) + " and " + place(other);
            return;
        }
        one = &other;
        waiting++;
    }
    if (waiting != block.threads) {
        failure = "divergent barrier at " + place(*one) + ": " + std::to_string(waiting) + " of " +
                  std::to_string(block.threads) + " threads wait, " + std::to_string(block.ended) + " have ended";
        return;
    }
    std::fill_n(states.begin(), block.threads, READY);
}

// Runs one block from start to end, in rounds: each thread until it ends or must wait. If this returns false, `failure` contains the
// reason why the block could not end.
bool run_block(unsigned threads, bool downwards) {
    block = {threads, downwards, 0, 0};
    std::fill_n(states.begin(), threads, UNBEGUN);
    for (;;) {
        if (find_runnable(downwards ? threads - 1 : 0)) resume(thread);
        if (block.ended == threads) return true;
        if (!block.in_warps) release_block();
        for (unsigned number = 0; block.in_warps && number * 32 < threads && failure.empty(); number++)
            if (warps[number].arrived) release_warp(number);
        if (!failure.empty()) return false;
    }
}

// The values of this lane's warp, after all lanes of `mask` have passed theirs.
const uint64_t* exchanged(unsigned mask, uint64_t value, const char* file, int line) {
    Warp& warp = warps[thread / 32];
    if (!warp.arrived) warp.first = thread, warp.mixed = false;
    const Fibre& one = fibres[warp.first];
    warp.mixed |= warp.arrived && (one.mask != mask || one.line != line || one.file != file);
    warp.arrived |= 1u << thread % 32;
    uint64_t* values = warp.values[warp.turn];
    values[thread % 32] = value;
    block.in_warps++;
    fibres[thread].mask = mask;
    wait(WARP, file, line);
    return values;
}
}  // namespace

void barrier(const char* file, int line) { wait(BARRIER, file, line); }

uint64_t exchange(unsigned mask, uint64_t value, unsigned lane, const char* file, int line) {
    return exchanged(mask, value, file, line)[lane];
}

unsigned ballot(unsigned mask, bool value, const char* file, int line) {
    const uint64_t* values = exchanged(mask, value, file, line);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && values[lane]) votes |= 1u << lane;
    return votes;
}

void enrol(const char* name, const char* file, void (*call)(const void*, void**), const void* kernel, const size_t* sizes) {
    kernels()[name] = {call, kernel, file, sizes};
}
}  // namespace shim

// Runs a kernel. Returns 0 if it ended, 1 if no such kernel exists, 2 if it failed; `message` then contains the error.
EXPORTED int shim_launch(const char* name, const unsigned grid[3], unsigned threads, void** arguments, int downwards,
                           char* message, size_t capacity) {
    using namespace shim;
    auto found = kernels().find(name);
    if (found == kernels().end()) return 1;
    grid_dim = {grid[0], grid[1], grid[2]};
    block_dim = {threads, 1, 1};
    if (fibres.size() < threads) fibres.resize(threads), states.resize(threads);
    warps.assign((threads + 31) / 32, Warp());
    running = &found->second;
    shim::arguments = arguments;
    failure.clear();
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                block_idx = {x, y, z};
                if (!run_block(threads, downwards)) {
                    std::snprintf(message, capacity, "%s", failure.c_str());
                    return 2;
                }
            }
    return 0;
}

// The name of the nth kernel, or null.
EXPORTED const char* shim_kernel(size_t nth) {
    for (auto& entry : shim::kernels())
        if (nth-- == 0) return entry.first.c_str();
    return nullptr;
}

// The source file of a kernel, and the sizes of its arguments in bytes, ended by 0; null if no kernel has this name.
EXPORTED const char* shim_describe(const char* name, const size_t** sizes) {
    auto found = shim::kernels().find(name);
    if (found == shim::kernels().end()) return nullptr;
    *sizes = found->second.sizes;
    return found->second.file;
}
