// The scheduler of shim.h: fibres with their own stacks, switched by assembly on known processors, else by ucontext.
#include "shim.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shim {
dim3 grid_dim, block_dim, block_idx;
unsigned thread;

namespace {
const size_t STACK = 64 << 10;

enum State { READY, BARRIER, WARP, ENDED };

struct Fibre {
    State state;
    const char* file;
    int line;
    // The fibre's mask and value in its warp's current exchange.
    unsigned mask;
    uint64_t value;
    char* stack;
#if defined(__x86_64__)
    void* sp;
#else
    ucontext_t context;
#endif
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
// The value of each lane of each warp in the last completed exchange.
std::vector<uint64_t> brought;
const Kernel* running;
void** arguments;
std::string failure;

#if defined(__x86_64__)
void* scheduler;
extern "C" void shim_switch(void** from, void* to);
// Saves the registers that a call must preserve, and continues where `to` was saved.
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
void leave() { shim_switch(&fibres[thread].sp, scheduler); }
void resume(unsigned t) { shim_switch(&scheduler, fibres[t].sp); }
#else
ucontext_t scheduler;
void leave() { swapcontext(&fibres[thread].context, &scheduler); }
void resume(unsigned t) { swapcontext(&scheduler, &fibres[t].context); }
#endif

void body() {
    running->call(running->kernel, arguments);
    fibres[thread].state = ENDED;
    leave();
    std::abort();
}

void prepare(Fibre& fibre) {
    fibre.state = READY;
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
    fibre.state = state, fibre.file = file, fibre.line = line;
    leave();
}

std::string place(const Fibre& fibre) {
    const char* name = std::strrchr(fibre.file, '/');
    return std::string(name ? name + 1 : fibre.file) + ":" + std::to_string(fibre.line);
}

// Completes a warp's exchange if all lanes that it names have arrived. Returns whether it did; `failure` says what is wrong.
bool release_warp(unsigned first, unsigned threads) {
    unsigned end = first + 32 < threads ? first + 32 : threads, arrived = 0;
    const Fibre* one = nullptr;
    for (unsigned t = first; t < end; t++)
        if (fibres[t].state == WARP) arrived |= 1u << (t - first), one = &fibres[t];
    if (!one) return false;
    for (unsigned t = first; t < end; t++) {
        const Fibre& other = fibres[t];
        if (other.state == WARP && (other.mask != one->mask || other.line != one->line || other.file != one->file)) {
            failure = "lanes of one warp wait at different exchanges: " + place(*one) + " and " + place(other);
            return false;
        }
    }
    unsigned exist = end - first == 32 ? 0xffffffffu : (1u << (end - first)) - 1;
    if ((one->mask & exist) != arrived) {
        // Lanes that are ready to run may still arrive.
        for (unsigned t = first; t < end; t++)
            if (fibres[t].state == READY) return false;
        failure = "not all lanes that the mask names have reached the exchange at " + place(*one);
        return false;
    }
    for (unsigned t = first; t < end; t++)
        if (fibres[t].state == WARP) brought[t] = fibres[t].value, fibres[t].state = READY;
    return true;
}

bool release_block(unsigned threads) {
    unsigned waiting = 0, ended = 0;
    const Fibre* one = nullptr;
    for (unsigned t = 0; t < threads; t++) {
        if (fibres[t].state == ENDED) ended++;
        if (fibres[t].state != BARRIER) continue;
        if (one && (one->line != fibres[t].line || one->file != fibres[t].file)) {
            failure = "threads of one block wait at different barriers: " + place(*one) + " and " + place(fibres[t]);
            return false;
        }
        one = &fibres[t];
        waiting++;
    }
    if (!one) return false;
    if (waiting != threads) {
        failure = "divergent barrier at " + place(*one) + ": " + std::to_string(waiting) + " of " +
                  std::to_string(threads) + " threads wait, " + std::to_string(ended) + " have ended";
        return false;
    }
    for (unsigned t = 0; t < threads; t++) fibres[t].state = READY;
    return true;
}

// Runs one block from start to end. If it returns false, `failure` says why the block could not end.
bool run_block(unsigned threads, bool downwards) {
    for (unsigned t = 0; t < threads; t++) prepare(fibres[t]);
    for (;;) {
        bool any = false;
        for (unsigned i = 0; i < threads; i++) {
            unsigned t = downwards ? threads - 1 - i : i;
            if (fibres[t].state != READY) continue;
            thread = t;
            resume(t);
            any = true;
        }
        bool released = false;
        for (unsigned first = 0; first < threads; first += 32) released |= release_warp(first, threads);
        if (!failure.empty()) return false;
        if (released || any) {
            bool ready = false, warp = false;
            for (unsigned t = 0; t < threads; t++) {
                ready |= fibres[t].state == READY;
                warp |= fibres[t].state == WARP;
            }
            if (ready) continue;
            if (warp) {
                failure = "a warp waits for lanes that wait elsewhere";
                return false;
            }
        }
        if (release_block(threads)) continue;
        return failure.empty();
    }
}
}  // namespace

void barrier(const char* file, int line) { wait(BARRIER, file, line); }

uint64_t exchange(unsigned mask, uint64_t value, unsigned lane, const char* file, int line) {
    Fibre& fibre = fibres[thread];
    fibre.mask = mask, fibre.value = value;
    wait(WARP, file, line);
    return brought[thread / 32 * 32 + lane];
}

unsigned ballot(unsigned mask, bool value, const char* file, int line) {
    exchange(mask, value, shim::lane(), file, line);
    unsigned votes = 0, first = thread / 32 * 32;
    for (unsigned lane = 0; lane < 32 && first + lane < brought.size(); lane++)
        if (mask >> lane & 1 && brought[first + lane]) votes |= 1u << lane;
    return votes;
}

void enrol(const char* name, const char* file, void (*call)(const void*, void**), const void* kernel, const size_t* sizes) {
    kernels()[name] = {call, kernel, file, sizes};
}
}  // namespace shim

// Runs a kernel. Returns 0 if it ended, 1 if no such kernel exists, 2 if it failed; `message` then says how.
extern "C" int shim_launch(const char* name, const unsigned grid[3], unsigned threads, void** arguments, int downwards,
                           char* message, size_t room) {
    using namespace shim;
    auto found = kernels().find(name);
    if (found == kernels().end()) return 1;
    grid_dim = {grid[0], grid[1], grid[2]};
    block_dim = {threads, 1, 1};
    if (fibres.size() < threads) fibres.resize(threads);
    brought.assign((threads + 31) / 32 * 32, 0);
    running = &found->second;
    shim::arguments = arguments;
    failure.clear();
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                block_idx = {x, y, z};
                if (!run_block(threads, downwards)) {
                    std::snprintf(message, room, "%s", failure.c_str());
                    return 2;
                }
            }
    return 0;
}

// The name of the nth kernel, or null.
extern "C" const char* shim_kernel(size_t nth) {
    for (auto& entry : shim::kernels())
        if (nth-- == 0) return entry.first.c_str();
    return nullptr;
}

// The source file of a kernel, and the sizes of its arguments in bytes, ended by 0; null if no kernel has this name.
extern "C" const char* shim_describe(const char* name, const size_t** sizes) {
    auto found = shim::kernels().find(name);
    if (found == shim::kernels().end()) return nullptr;
    *sizes = found->second.sizes;
    return found->second.file;
}
