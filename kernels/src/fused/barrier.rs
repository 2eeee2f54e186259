//! One exchange under way, as one member sees it: telling the others, and waiting for them.

use super::exchange::Exchange;
use super::sync::{Gate, Word, gate, give_up};
use super::sync_segment::SyncSegment;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a member does while the others do not come.
pub trait WaitPolicy {
    /// Why it waits no longer.
    type Error;

    /// Called each time this member has told the others that it has come, before it looks for them: what is done here is
    /// done while that is under way.
    fn on_arrival(&mut self) {}

    /// Asked before every sleep. `absent` says of a member whether it has not come.
    ///
    /// # Errors
    /// It shall wait no longer. Else for how long at most until it is asked again.
    fn wait(&mut self, absent: &dyn Fn(u32) -> bool) -> Result<Duration, Self::Error>;
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped<E> {
    /// This member's wait policy was over.
    TimedOut(E),
    /// Another member's was.
    GivenUp,
    /// This member came with another label or another exchange.
    Disagrees(u32),
}

/// Set in the label of a slot that holds registered buffers.
pub(super) const REGISTERED: u64 = 1;

/// One exchange under way.
pub(super) struct Barrier<'a> {
    pub sync_segment: &'a SyncSegment,
    pub me: u32,
    pub number: u64,
    /// Without [`REGISTERED`].
    pub label: u64,
    pub exchange: &'a Exchange,
}

/// Waits for those that cannot fail to come: they are at work, which takes no waiting.
pub(super) struct NoDeadline;

impl WaitPolicy for NoDeadline {
    type Error = std::convert::Infallible;

    fn wait(&mut self, _absent: &dyn Fn(u32) -> bool) -> Result<Duration, Self::Error> {
        Ok(Duration::from_secs(1))
    }
}

impl Barrier<'_> {
    /// Tells the others that this member has come, and waits until it is `ready`: looks, lets others run, then sleeps as
    /// long as its wait policy lasts. `absent`: on whom it waits.
    #[inline]
    pub fn until<P: WaitPolicy>(
        &self,
        ready: &mut impl FnMut() -> bool,
        absent: &impl Fn(u32) -> bool,
        wait_policy: &mut P,
    ) -> Result<(), P::Error> {
        // A waker rung for sure takes a fence, which would hold back the first looks until what was written has arrived
        // everywhere: so only who is known to sleep is woken before them.
        self.sync_segment.wake_sleepers();
        wait_policy.on_arrival();
        for _ in 0..self.sync_segment.pace.looks {
            if ready() {
                self.sync_segment.wake();
                return Ok(());
            }
            spin_loop();
        }
        self.sync_segment.wake();
        for _ in 0..self.sync_segment.pace.yields {
            if ready() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let waker = self.sync_segment.waker();
        loop {
            let sleeper = waker.listen();
            if ready() {
                return Ok(());
            }
            sleeper.sleep(wait_policy.wait(absent)?);
        }
    }

    /// Whether a member has not raised its flag.
    pub fn not_arrived(&self) -> impl Fn(u32) -> bool {
        |member| self.sync_segment.slot(member, self.number).flag.get() != self.number
    }

    /// Waits until all have raised their flags, with one label. How many came with registered buffers.
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

    /// Waits until as many have come to a gate, or takes it back for all of them.
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
            // Taken back, unless the last one came meanwhile: then it is in, and has to go through with it.
            Err(_) => give_up(word, all),
        };
        if known == Gate::GivenUp {
            self.sync_segment.wake();
            return Err(waited.err().map_or(Stopped::GivenUp, Stopped::TimedOut));
        }
        Ok(())
    }

    /// Whether all came with this label, and how many with registered buffers. Those that did not all find so.
    #[inline]
    pub fn agree<E>(&self) -> Result<u32, Stopped<E>> {
        let mut offers = 0;
        for member in 0..self.sync_segment.members {
            let label = self.sync_segment.slot(member, self.number).label.load(Ordering::Relaxed);
            if label & !REGISTERED != self.label {
                return Err(Stopped::Disagrees(member));
            }
            offers += u32::from(label & REGISTERED != 0);
        }
        Ok(offers)
    }
}
