//! The processor's time-stamp counter; a reading takes a third of the time of a call of the system's clock.

/// The time-stamp counter's value; 0 on processors other than x86-64.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction, and it touches no memory.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    0
}
