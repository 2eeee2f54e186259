// A shared library with the name of one of NVIDIA's; its functions jump to the addresses in their slots. The functions' rules are
// in Rust (standin/src/libraries), which loads the library by its path and then fills the slots; later loads of the library by its
// SONAME, through the dynamic linker, get this library.
//
// `entries.h` holds one line ENTRY(name) per function, and is written to the same folder before this file is compiled.
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#define JUMP(name) "movq slot_" #name "@GOTPCREL(%rip), %r11\n jmp *(%r11)\n"
#elif defined(__aarch64__)
#define JUMP(name) "adrp x16, :got:slot_" #name "\n ldr x16, [x16, :got_lo12:slot_" #name "]\n ldr x16, [x16]\n br x16\n"
#else
#error "the stand-in libraries are written for x86_64 and aarch64"
#endif

#define ENTRY(name)                                              \
    extern "C" void* slot_##name;                                \
    void* slot_##name = nullptr;                                 \
    asm(".text\n.globl " #name "\n.type " #name ", %function\n"  \
        #name ":\n " JUMP(name) ".size " #name ", .-" #name "\n");
#include "entries.h"

// Device memory is one reserved range of this process. An access of a running kernel to a page of the range that the kernel must
// not access is recorded, and the page is opened so that the kernel can continue; the driver's rules then make it an error.
namespace {
const size_t PAGE = 4096;
const size_t NOTED = 64;
uintptr_t range_start, range_end;
volatile sig_atomic_t watching;
volatile size_t noted;
uintptr_t addresses[NOTED];
struct sigaction before;

void on_fault(int number, siginfo_t* info, void* context) {
    uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    if (watching && address >= range_start && address < range_end) {
        if (noted < NOTED) addresses[noted] = address;
        noted = noted + 1;
        if (mprotect(reinterpret_cast<void*>(address & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE) == 0) return;
    }
    if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
    signal(SIGSEGV, SIG_DFL);
}
}  // namespace

extern "C" void standin_guard(uintptr_t start, size_t bytes) {
    range_start = start, range_end = start + bytes;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before);
}

extern "C" void standin_watch() { noted = 0, watching = 1; }

// The addresses of the faults since the last call of `standin_watch`, at most NOTED; the return value counts all faults.
extern "C" size_t standin_faults(const uintptr_t** first) {
    watching = 0;
    *first = addresses;
    return noted;
}
