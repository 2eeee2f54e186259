//! One exchange under way, as one party sees it: telling the others, and waiting for them.

use super::board::Board;
use super::exchange::Exchange;
use super::sync::{Gate, Word, gate, give_up};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a party does while the others do not come.
pub trait Patience {
    /// Why it waits no longer.
    type Error;

    /// Called each time this party has told the others that it has come, before it looks for them: what is done here is
    /// done while that is under way.
    fn told(&mut self) {}

    /// Asked before every sleep. `absent` says of a party whether it has not come.
    ///
    /// # Errors
    /// It shall wait no longer. Else for how long at most until it is asked again.
    fn wait(&mut self, absent: &dyn Fn(u32) -> bool) -> Result<Duration, Self::Error>;
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped<E> {
    /// This party's patience was over.
    Impatient(E),
    /// Another party's was.
    GivenUp,
    /// This party came with another label or another exchange.
    Disagrees(u32),
}

/// Set in the label of a slot that holds an offer.
pub(super) const OFFER: u64 = 1;

/// One exchange under way.
pub(super) struct Meeting<'a> {
    pub board: &'a Board,
    pub me: u32,
    pub number: u64,
    /// Without [`OFFER`].
    pub label: u64,
    pub exchange: &'a Exchange,
}

/// Waits for those that cannot fail to come: they are at work, which takes no waiting.
pub(super) struct Untiring;

impl Patience for Untiring {
    type Error = std::convert::Infallible;

    fn wait(&mut self, _absent: &dyn Fn(u32) -> bool) -> Result<Duration, Self::Error> {
        Ok(Duration::from_secs(1))
    }
}

impl Meeting<'_> {
    /// Tells the others that this party has come, and waits until it is `ready`: looks, lets others run, then sleeps as
    /// long as its patience lasts. `absent`: on whom it waits.
    #[inline]
    pub fn until<P: Patience>(
        &self,
        ready: &mut impl FnMut() -> bool,
        absent: &impl Fn(u32) -> bool,
        patience: &mut P,
    ) -> Result<(), P::Error> {
        // A bell rung for sure takes a fence, which would hold back the first looks until what was written has arrived
        // everywhere: so only who is known to sleep is woken before them.
        self.board.nudge();
        patience.told();
        for _ in 0..self.board.pace.looks {
            if ready() {
                self.board.ring();
                return Ok(());
            }
            spin_loop();
        }
        self.board.ring();
        for _ in 0..self.board.pace.yields {
            if ready() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let bell = self.board.bell();
        loop {
            let ear = bell.listen();
            if ready() {
                return Ok(());
            }
            ear.sleep(patience.wait(absent)?);
        }
    }

    /// Whether a party has not raised its flag.
    pub fn not_here(&self) -> impl Fn(u32) -> bool {
        |party| self.board.slot(party, self.number).flag.get() != self.number
    }

    /// Waits until all have raised their flags, with one label. How many came with an offer.
    #[inline]
    pub fn all_here<P: Patience>(&self, patience: &mut P) -> Result<u32, Stopped<P::Error>> {
        let (mut next, all) = (0, self.board.parties);
        let mut here = || {
            while next < all && self.board.slot(next, self.number).flag.get() == self.number {
                next += 1;
            }
            next == all
        };
        self.until(&mut here, &self.not_here(), patience).map_err(Stopped::Impatient)?;
        self.agree()
    }

    /// Waits until as many have come to a gate, or takes it back for all of them.
    pub fn through<P: Patience>(
        &self,
        word: &AtomicU64,
        all: u64,
        absent: &impl Fn(u32) -> bool,
        patience: &mut P,
    ) -> Result<(), Stopped<P::Error>> {
        let waited = self.until(&mut || gate(word, all) != Gate::Shut, absent, patience);
        let known = match &waited {
            Ok(()) => gate(word, all),
            // Taken back, unless the last one came meanwhile: then it is in, and has to go through with it.
            Err(_) => give_up(word, all),
        };
        if known == Gate::GivenUp {
            self.board.ring();
            return Err(waited.err().map_or(Stopped::GivenUp, Stopped::Impatient));
        }
        Ok(())
    }

    /// Whether all came with this label, and how many with an offer. Those that did not all find so.
    #[inline]
    pub fn agree<E>(&self) -> Result<u32, Stopped<E>> {
        let mut offers = 0;
        for party in 0..self.board.parties {
            let label = self.board.slot(party, self.number).label.load(Ordering::Relaxed);
            if label & !OFFER != self.label {
                return Err(Stopped::Disagrees(party));
            }
            offers += u32::from(label & OFFER != 0);
        }
        Ok(offers)
    }
}
