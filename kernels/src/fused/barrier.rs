//! The barriers of one exchange: a member announces its arrival and waits for the other members.

use super::exchange::Exchange;
use super::sync::{Gate, Word, gate, give_up};
use super::sync_segment::SyncSegment;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// If a yield took longer than this, another thread computes on the core. That thread runs for milliseconds after every yield, but a
/// sleeper that is woken preempts it.
const COMPUTES: Duration = Duration::from_micros(200);

/// How long a member waits at a barrier, and what the member does in the meantime.
pub trait WaitPolicy {
    /// The reason why a member stops waiting.
    type Error;

    /// Called each time this member has announced its arrival, before it checks for the other members' arrivals: work done here
    /// overlaps with the announcement.
    fn on_arrival(&mut self) {}

    /// Called before every sleep of the member; returns the longest time to sleep. `absent(member)` is true for a member that
    /// has not arrived.
    ///
    /// # Errors
    /// The reason why the member stops waiting.
    fn wait(&mut self, absent: &dyn Fn(u32) -> bool) -> Result<Duration, Self::Error>;
}

/// The reason why an exchange has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped<E> {
    /// This member's wait policy ended the wait.
    TimedOut(E),
    /// Another member's wait policy ended that member's wait.
    GivenUp,
    /// The member with this number arrived with another label or another exchange.
    Disagrees(u32),
}

/// The bit that is set in the label of a slot that holds the addresses of registered buffers instead of data.
pub(super) const REGISTERED: u64 = 1;

/// A member's view of one exchange in progress.
pub(super) struct Barrier<'a> {
    pub sync_segment: &'a SyncSegment,
    pub me: u32,
    pub number: u64,
    /// The label of the exchange, without the bit [`REGISTERED`].
    pub label: u64,
    pub exchange: &'a Exchange,
}

/// A wait policy without a timeout, for waiting for members that are computing and so will arrive.
pub(super) struct NoDeadline;

impl WaitPolicy for NoDeadline {
    type Error = std::convert::Infallible;

    fn wait(&mut self, _absent: &dyn Fn(u32) -> bool) -> Result<Duration, Self::Error> {
        Ok(Duration::from_secs(1))
    }
}

impl Barrier<'_> {
    /// Waits until `ready`: the member spins, then yields, then sleeps as long as its wait policy allows. `absent(member)` is
    /// true for a member that has not arrived.
    #[inline]
    pub fn until<P: WaitPolicy>(
        &self,
        ready: &mut impl FnMut() -> bool,
        absent: &impl Fn(u32) -> bool,
        wait_policy: &mut P,
    ) -> Result<(), P::Error> {
        wait_policy.on_arrival();
        for _ in 0..self.sync_segment.pace.looks {
            if ready() {
                self.sync_segment.wake();
                return Ok(());
            }
            spin_loop();
        }
        // Only members for which the first checks succeed wake the others. If every arrival did, 1,000 members on two cores would be woken
        // 1,000 times each.
        let waker = self.sync_segment.waker();
        if waker.is_last(&mut *ready) {
            return Ok(());
        }
        for _ in 0..self.sync_segment.pace.yields {
            if ready() {
                return Ok(());
            }
            #[allow(clippy::disallowed_methods, reason = "real time is what is measured")]
            let begun = Instant::now();
            std::thread::yield_now();
            if begun.elapsed() > COMPUTES {
                break;
            }
        }
        loop {
            let sleeper = waker.listen();
            if ready() {
                return Ok(());
            }
            sleeper.sleep(wait_policy.wait(absent)?);
        }
    }

    /// A function that is true for the number of a member that has not raised its flag.
    pub fn not_arrived(&self) -> impl Fn(u32) -> bool {
        |member| self.sync_segment.slot(member, self.number).flag.get() != self.number
    }

    /// Waits until all members have raised their flags and checks their labels. Returns how many announced registered buffers.
    #[inline]
    pub fn all_arrived<P: WaitPolicy>(&self, wait_policy: &mut P) -> Result<u32, Stopped<P::Error>> {
        let (mut next, all) = (0, self.sync_segment.members);
        let mut here = || {
            while next < all && self.sync_segment.slot(next, self.number).flag.get() == self.number {
                next += 1;
            }
            next == all
        };
        self.until(&mut here, &self.not_arrived(), wait_policy).map_err(Stopped::TimedOut)?;
        self.agree()
    }

    /// Waits until the gate `word` counts `all` arrivals. If this member stops waiting before, it closes the gate for all members.
    #[inline]
    pub fn pass_gate<P: WaitPolicy>(
        &self,
        word: &AtomicU64,
        all: u64,
        absent: &impl Fn(u32) -> bool,
        wait_policy: &mut P,
    ) -> Result<(), Stopped<P::Error>> {
        let waited = self.until(&mut || gate(word, all) != Gate::Shut, absent, wait_policy);
        let known = match &waited {
            Ok(()) => gate(word, all),
            // The gate closes, unless the last member has arrived in the meantime: then this member has to complete the exchange.
            Err(_) => give_up(word, all),
        };
        if known == Gate::GivenUp {
            self.sync_segment.wake();
            return Err(waited.err().map_or(Stopped::GivenUp, Stopped::TimedOut));
        }
        Ok(())
    }

    /// Checks that all members have this member's label; returns how many announced registered buffers. If labels differ, every
    /// member gets an error.
    #[inline]
    pub fn agree<E>(&self) -> Result<u32, Stopped<E>> {
        let mut registered = 0;
        for member in 0..self.sync_segment.members {
            let label = self.sync_segment.slot(member, self.number).label.load(Ordering::Relaxed);
            if label & !REGISTERED != self.label {
                return Err(Stopped::Disagrees(member));
            }
            registered += u32::from(label & REGISTERED != 0);
        }
        Ok(registered)
    }
}
