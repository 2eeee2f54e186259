//! How a member detects that all members have arrived, or that a member has stopped waiting. The code uses only words of memory, so that
//! threads and processes share it and a model checker can try every order of events.
//!
//! ```text
//! gate   arrivals so far | given up     each arrival adds one; open at a multiple of the members; closed only while not open
//! waker  number of wakes, sleepers      a member spins for a while, then sleeps until another member wakes it
//! nap    whether a side sleeps          between two sides: the other side wakes the sleeper
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A word that members share. Reads acquire, writes release, and all members see changes in one order.
pub(super) trait Word {
    fn get(&self) -> u64;
    fn set(&self, value: u64);
    /// Adds one and returns the sum.
    fn count(&self) -> u64;
    fn uncount(&self);
    /// Replaces `old` by `new` if the word still is `old`; returns whether it did.
    fn replace(&self, old: u64, new: u64) -> bool;
}

/// A word on which a member can sleep.
pub(super) trait Sleep: Word {
    /// Sleeps while the word is `seen`, until woken or for about `timeout`; may return early.
    fn sleep(&self, seen: u64, timeout: Duration);
    fn wake(&self);
}

macro_rules! word {
    ($atomic:ty, $int:ty) => {
        impl Word for $atomic {
            #[inline]
            fn get(&self) -> u64 {
                self.load(Ordering::Acquire).into()
            }
            #[inline]
            fn set(&self, value: u64) {
                self.store(value as $int, Ordering::Release);
            }
            #[inline]
            fn count(&self) -> u64 {
                self.fetch_add(1, Ordering::SeqCst).wrapping_add(1).into()
            }
            #[inline]
            fn uncount(&self) {
                self.fetch_sub(1, Ordering::SeqCst);
            }
            #[inline]
            fn replace(&self, old: u64, new: u64) -> bool {
                self.compare_exchange(old as $int, new as $int, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            }
        }
    };
}

word!(AtomicU64, u64);
word!(AtomicU32, u32);

/// The bit that is set in a closed gate.
const GIVEN_UP: u64 = 1 << 63;

/// The state of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Not all members have arrived.
    Shut,
    /// All members have arrived.
    Open,
    /// A member stopped waiting before all had arrived: the gate never opens again.
    GivenUp,
}

/// The state of a gate, for a member that waits for `all` arrivals.
#[inline]
pub(super) fn gate(word: &impl Word, all: u64) -> Gate {
    match word.get() {
        now if now & GIVEN_UP != 0 => Gate::GivenUp,
        now if now >= all => Gate::Open,
        _ => Gate::Shut,
    }
}

/// Closes the gate unless it is open, and returns its state afterwards.
pub(super) fn give_up(word: &impl Word, all: u64) -> Gate {
    loop {
        let now = word.get();
        match gate(word, all) {
            Gate::Shut if word.replace(now, now | GIVEN_UP) => return Gate::GivenUp,
            Gate::Shut => {}
            known => return known,
        }
    }
}

/// The counters by which members of a sync segment are woken.
pub(super) struct Waker<'a, R, S: Word> {
    /// The number of wakes so far.
    pub rung: &'a R,
    pub sleepers: &'a S,
}

impl<R: Sleep, S: Word> Waker<'_, R, S> {
    /// Wakes all sleeping members. The caller has written its change before this call.
    #[inline]
    pub fn wake(&self) {
        // This fence pairs with the sleeper's: the sleeper counts itself, then checks its condition; this side has written its
        // change, then reads the count. So the sleeper sees the change, or this side sees the sleeper.
        fence();
        self.wake_sleepers();
    }

    #[inline]
    fn wake_sleepers(&self) {
        if self.sleepers.get() > 0 {
            self.rung.count();
            self.rung.wake();
        }
    }

    /// Whether the members' common condition holds, for a member that has announced its arrival; if so, wakes all sleeping members. If all
    /// members call this or, once they see the condition, [`Waker::wake`], none sleeps on.
    #[inline]
    pub fn is_last(&self, ready: impl FnOnce() -> bool) -> bool {
        // Of the fences of all members, the last one follows all arrivals. Its member sees them, and each member that has fallen asleep
        // before; a member that falls asleep later sees all arrivals.
        fence();
        let last = ready();
        if last {
            self.wake_sleepers();
        }
        last
    }

    /// Registers a sleeper: any wake from now on ends [`Sleeper::sleep`]. Check the condition after this call, before sleeping.
    pub fn listen(&self) -> Sleeper<'_, R, S> {
        self.sleepers.count();
        fence();
        Sleeper { seen: self.rung.get(), waker: self }
    }
}

/// A member that is about to sleep.
pub(super) struct Sleeper<'a, R, S: Word> {
    seen: u64,
    waker: &'a Waker<'a, R, S>,
}

impl<R: Sleep, S: Word> Sleeper<'_, R, S> {
    /// Sleeps until woken, or for about `timeout`.
    pub fn sleep(self, timeout: Duration) {
        self.waker.rung.sleep(self.seen, timeout);
    }
}

impl<R, S: Word> Drop for Sleeper<'_, R, S> {
    fn drop(&mut self) {
        self.waker.sleepers.uncount();
    }
}

/// The sleep of one of two sides, which the other side ends.
pub(super) struct Nap<'a, W: Word>(pub &'a W);

impl<W: Word> Nap<'_, W> {
    /// Announces the sleep: any change from now on wakes the sleeper. Check the condition after this call, before sleeping.
    pub fn prepare_sleep(&self) {
        self.0.set(1);
        fence();
    }

    /// Announces that the sleep has ended.
    pub fn finish_sleep(&self) {
        self.0.set(0);
    }

    /// Whether the caller, the other side, has to wake the sleeper after a change. True once per sleep.
    #[inline]
    pub fn wake_peer(&self) -> bool {
        // This fence pairs with the sleeper's in `prepare_sleep`, as in `Waker::wake`.
        fence();
        self.0.get() == 1 && self.0.replace(1, 0)
    }
}

#[inline]
fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(target_os = "linux")]
impl Sleep for AtomicU32 {
    fn sleep(&self, seen: u64, timeout: Duration) {
        use rustix::thread::futex;
        let timeout = timeout.min(Duration::from_secs(3600));
        let limit = rustix::thread::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // A shared futex: the word may be in memory that processes share. Every reason to return counts as a wake.
        let _ = futex::wait(self, futex::Flags::empty(), seen as u32, Some(&limit));
    }

    fn wake(&self) {
        let _ = rustix::thread::futex::wake(self, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    }
}

/// Systems without a futex: short sleeps instead.
#[cfg(not(target_os = "linux"))]
impl Sleep for AtomicU32 {
    fn sleep(&self, _seen: u64, timeout: Duration) {
        std::thread::park_timeout(timeout.min(Duration::from_micros(200)));
    }

    fn wake(&self) {}
}
