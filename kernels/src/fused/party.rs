//! One party's part in exchanges: meets the others, does its share, and returns once nobody needs its buffers.

use super::board::Board;
use super::exchange::{Exchange, Pattern, mix};
use super::fill::{Fill, Place};
use super::sync::{Gate, Word, gate, give_up};
use crate::Isa;
use crate::reduce::simd;
use std::hint::spin_loop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

/// The buffers of a party: bytes of its source, and of its result.
pub enum Ends<'a> {
    /// One buffer that is both, or that holds the one within the other: block p of an all-gather's result is the
    /// source of party p, block p of a reduce-scatter's source becomes the result of party p.
    InPlace(&'a mut [u8]),
    /// Two.
    Apart(&'a [u8], &'a mut [u8]),
}

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

/// Sources of more bytes than this are offered to the others where they are, if they are leased; the rest goes by slots
/// sooner than two meetings take.
const OFFERED: usize = 4096;

/// An all-reduce through slots of at least this many bytes is shared out among more than two parties.
const SHARED_OUT: usize = 32 << 10;

/// Set in the label of a slot that holds an offer.
const OFFER: u64 = 1;

/// A result of at least this many bytes that does not lie where its source lies is written past the caches: what they
/// keep, and what that gains, was measured on processors of these classes.
const fn streamed(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 4 << 20,
        Isa::Avx2 | Isa::Baseline => 16 << 20,
    }
}

/// A place at a board.
pub struct Party {
    board: Arc<Board>,
    me: u32,
    desk: Desk,
}

/// What a party works with, kept from one exchange to the next.
struct Desk {
    sources: Vec<Place>,
    results: Vec<Place>,
    scratch: Vec<u64>,
}

// SAFETY: the places are pointers to buffers of an exchange that is over; none is used before it is set again.
unsafe impl Send for Desk {}

/// Marks a party as busy.
struct Busy<'a>(&'a AtomicU64);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// One exchange under way.
struct Meeting<'a> {
    board: &'a Board,
    me: u32,
    number: u64,
    /// Without [`OFFER`].
    label: u64,
    exchange: &'a Exchange,
}

/// A party's leased buffers, as the others are told: bytes from the start of the memory, plus one; 0 where it has none.
struct Offer {
    source: usize,
    result: usize,
    /// What others will write, if they all offer as well.
    written: Range<usize>,
}

impl Party {
    /// The place of party `me`. There may be more than one handle to a place, used one at a time.
    ///
    /// # Panics
    /// If there is no such party.
    pub fn new(board: Arc<Board>, me: u32) -> Party {
        assert!(me < board.parties, "party {me} of {}", board.parties);
        let places = vec![Place::NONE; board.parties as usize];
        let desk = Desk { sources: places.clone(), results: places, scratch: Vec::new() };
        Party { board, me, desk }
    }

    /// Takes part in an exchange: returns when the result is there and nobody reads or writes the buffers any more.
    /// All parties come with equal labels and exchanges, in the same order.
    ///
    /// # Errors
    /// Not all have come, or not all with the same; the result then has no meaning.
    ///
    /// # Panics
    /// If a buffer has another length than the exchange says or is not aligned to its elements, if the exchange does
    /// not work in place or is of other parties, or if this place is taken by another thread: mistakes of the caller.
    pub fn run<P: Patience>(
        &mut self,
        label: u64,
        exchange: &Exchange,
        ends: Ends<'_>,
        patience: &mut P,
    ) -> Result<(), Stopped<P::Error>> {
        let Party { board, me, desk } = self;
        // No copy of the board's handle: parties would pass its counter from core to core.
        let (board, me) = (&**board, *me);
        assert_eq!(exchange.parties, board.parties, "the exchange is of other parties");
        let blocks = exchange.most_blocks.max(1);
        let bytes = exchange.block * blocks;
        let stream = matches!(ends, Ends::Apart(..)) && bytes >= streamed(Isa::best());
        let written = match &ends {
            _ if board.one_address_space || bytes <= OFFERED => None,
            Ends::InPlace(data) => board.leased(me, &raw const **data, true),
            Ends::Apart(from, _) if !from.is_empty() && board.leased(me, *from, false).is_none() => None,
            Ends::Apart(_, []) => Some(0..0),
            Ends::Apart(_, to) => board.leased(me, &raw const **to, true),
        };
        let (source, result) = places(exchange, me, ends);
        let busy = board.busy(me);
        assert_eq!(busy.swap(1, Ordering::Acquire), 0, "party {me} is in an exchange already");
        let _busy = Busy(busy);

        let begun = board.begun(me).0;
        let number = begun.get() + 1;
        let label = mix(label, exchange.digest) & !OFFER;
        let mut meeting = Meeting { board, me, number, label, exchange };
        begun.set(number);
        if bytes > board.room && board.one_address_space {
            return desk.directly(&meeting, source, result, stream, patience);
        }
        if let Some(written) = written {
            let word = |place: Place| match place.base.is_null() {
                true => 0,
                false => place.base.addr() - board.memory.base().addr().get() + 1,
            };
            // Where every party makes its own result, or this one gets none, nobody else writes to its buffer.
            let others = exchange.is_shared_out() && !result.base.is_null();
            let written = if others { written } else { 0..0 };
            let offer = Offer { source: word(source), result: word(result), written };
            if desk.offered(&meeting, offer, stream, patience)? {
                return Ok(());
            }
            meeting.number += 1;
        }
        // The whole of every block, or as much of it as the slots take.
        let piece = match bytes <= board.room {
            true => exchange.block,
            false => match board.room / blocks {
                fits if fits >= 64 => fits / 64 * 64,
                fits => fits / 8 * 8,
            },
        };
        assert!(
            piece > 0 || exchange.block == 0,
            "the slots of this board are too small for {blocks} blocks"
        );
        let shares = exchange.pattern == Pattern::AllReduce && board.parties > 2 && bytes >= SHARED_OUT;
        let mut at = 0;
        loop {
            let range = at..exchange.block.min(at + piece);
            begun.set(meeting.number);
            let ends = (source, result);
            let done = match shares {
                true => desk.by_shares(&mut meeting, ends, range.clone(), stream, patience)?,
                false => desk.by_slots(&meeting, ends, range.clone(), stream, patience)?,
            };
            if done {
                at = range.end;
                if at >= exchange.block {
                    return Ok(());
                }
            }
            meeting.number += 1;
        }
    }
}

impl Desk {
    /// Everybody's source, or a piece of its blocks, goes to its slot; everybody makes its own result. False if
    /// somebody came with an offer instead, and will come with the piece in the next exchange: then so do all.
    fn by_slots<P: Patience>(
        &mut self,
        meeting: &Meeting<'_>,
        (source, result): (Place, Place),
        range: Range<usize>,
        stream: bool,
        patience: &mut P,
    ) -> Result<bool, Stopped<P::Error>> {
        let Meeting { board, me, number, exchange, .. } = *meeting;
        let len = range.len();
        let slot = board.slot(me, number);
        for block in 0..exchange.source_blocks(me) {
            // SAFETY: the source has these blocks, and the slot has room for a piece of each. Nobody reads the slot:
            // all have raised the flag of the exchange before, so all have read what was here two exchanges ago.
            unsafe {
                let from = source.base.add(block * source.stride + range.start);
                simd::copy_apart(from, slot.data.add(block * len).as_ptr(), len);
            }
        }
        slot.label.store(meeting.label, Ordering::Relaxed);
        slot.flag.set(number);
        if meeting.all_here(patience)? > 0 {
            return Ok(false);
        }
        if result.base.is_null() || len == 0 {
            return Ok(true);
        }
        let here = |place: Place| Place { base: place.base.wrapping_add(range.start), ..place };
        // SAFETY: all are here; the caller's own source and result.
        unsafe {
            self.fill_from_slots(meeting, (here(source), here(result)), (range.start, 0..len), len, stream);
        }
        Ok(true)
    }

    /// An all-reduce through slots by more than two parties: everybody reduces a share of a piece into its next slot, and
    /// copies what the others have reduced. A second meeting, and one sum of everything in place of one for each party.
    /// False as in [`Desk::by_slots`]; else it took two exchanges.
    fn by_shares<P: Patience>(
        &mut self,
        meeting: &mut Meeting<'_>,
        (source, result): (Place, Place),
        range: Range<usize>,
        stream: bool,
        patience: &mut P,
    ) -> Result<bool, Stopped<P::Error>> {
        if !self.by_slots(meeting, (source, Place::NONE), range.clone(), false, patience)? {
            return Ok(false);
        }
        let (board, me, len) = (meeting.board, meeting.me, range.len());
        let own = share(len, me, board.parties);
        let slot = board.slot(me, meeting.number + 1);
        let into = Place { base: slot.data.as_ptr().wrapping_sub(own.start), stride: len };
        let here = |place: Place| Place { base: place.base.wrapping_add(range.start), ..place };
        // SAFETY: all are here. Nobody reads the next slot, and it has room for a share: as for a source's piece.
        unsafe { self.fill_from_slots(meeting, (here(source), into), (range.start, own), len, false) };
        meeting.number += 1;
        board.begun(me).0.set(meeting.number);
        slot.label.store(meeting.label, Ordering::Relaxed);
        slot.flag.set(meeting.number);
        meeting.all_here(patience)?;
        for party in 0..board.parties {
            let part = share(len, party, board.parties);
            let data = board.slot(party, meeting.number).data.as_ptr();
            // SAFETY: the result has this range, and is this party's own; the slot holds that share of it, written before
            // the flag that was seen, and is written again only after this party's next flag.
            let (into, from) = unsafe {
                let into = result.base.add(range.start + part.start);
                (
                    std::slice::from_raw_parts_mut(into, part.len()),
                    std::slice::from_raw_parts(data, part.len()),
                )
            };
            simd::copy(Isa::best(), into, from, stream);
        }
        if stream {
            simd::fence();
        }
        Ok(true)
    }

    /// Fills `range` of this party's result, or of what is to become it, from the pieces of `len` bytes in everybody's slots,
    /// which begin with byte `first` of their blocks, and its own source.
    ///
    /// # Safety
    /// All have raised their flags, and this party has not raised the next. Source and result are of this party: places of
    /// that piece, as [`Fill::run`] wants them.
    unsafe fn fill_from_slots(
        &mut self,
        meeting: &Meeting<'_>,
        (source, result): (Place, Place),
        (first, range): (usize, Range<usize>),
        len: usize,
        stream: bool,
    ) {
        let Meeting { board, me, number, exchange, .. } = *meeting;
        for party in 0..board.parties {
            let data = board.slot(party, number).data.as_ptr();
            self.sources[party as usize] = Place { base: data, stride: len };
            self.results[party as usize] = Place::NONE;
        }
        if exchange.source_blocks(me) > 0 {
            self.sources[me as usize] = source;
        }
        self.results[me as usize] = result;
        let (sources, results, scratch) = (&self.sources, &self.results, &mut self.scratch);
        let fill = Fill { exchange, sources, results, range, first, stream, scratch };
        // SAFETY: the slots hold the sources' pieces, written before the flags that were seen, and are written again
        // only after this party's next flag; the caller's promise for its source and its result.
        unsafe { fill.run() };
    }

    /// Everybody says where its leased buffers are, and works on a share of all results: [`Desk::directly`] between
    /// processes, any of which may stop or end in the middle. False if not all have leased theirs; then nothing was done.
    fn offered<P: Patience>(
        &mut self,
        meeting: &Meeting<'_>,
        offer: Offer,
        stream: bool,
        patience: &mut P,
    ) -> Result<bool, Stopped<P::Error>> {
        let Meeting { board, me, number, exchange, .. } = *meeting;
        let slot = board.slot(me, number);
        let (from, to) = slot.ends();
        from.store(std::ptr::without_provenance_mut(offer.source), Ordering::Relaxed);
        to.store(std::ptr::without_provenance_mut(offer.result), Ordering::Relaxed);
        slot.label.store(meeting.label | OFFER, Ordering::Relaxed);
        slot.flag.set(number);
        if meeting.all_here(patience)? < board.parties {
            return Ok(false);
        }
        let shared = exchange.is_shared_out();
        for party in 0..board.parties {
            let slot = board.slot(party, number);
            let (from, to) = slot.ends();
            let place = |word: &AtomicPtr<u8>, blocks: usize| {
                let Some(at) = word.load(Ordering::Relaxed).addr().checked_sub(1) else {
                    return (blocks == 0).then_some(Place::NONE);
                };
                let end = at.checked_add(blocks * exchange.block)?;
                let there = board.leasable(party, at..end) && at.is_multiple_of(exchange.dtype.size());
                let base = board.memory.base().as_ptr().wrapping_add(at);
                there.then_some(Place { base, stride: exchange.block })
            };
            let from = place(from, exchange.source_blocks(party));
            let to = place(to, exchange.result_blocks(party));
            // Nothing is touched because another process says so.
            let (Some(from), Some(to)) = (from, to) else { return Err(Stopped::Disagrees(party)) };
            self.sources[party as usize] = from;
            self.results[party as usize] = if shared || party == me { to } else { Place::NONE };
        }

        // All have come, and know of each other's offers; now each confirms. After that buffers are touched.
        let large = board.begun(me).1;
        large.set(large.get() + 1);
        let all = large.get() * u64::from(board.parties);
        board.gate().count();
        let absent = |party: u32| board.begun(party).1.get() < large.get();
        meeting.through(board.gate(), all, &absent, patience)?;
        let range = if shared { share(exchange.block, me, board.parties) } else { 0..exchange.block };
        let (sources, results, scratch) = (&self.sources, &self.results, &mut self.scratch);
        let fill = Fill { exchange, sources, results, range, first: 0, stream, scratch };
        // SAFETY: as in `directly`; that the others' buffers are where they say was looked at above, and that they are
        // borrowed until all are through with it is what leased buffers are offered for.
        unsafe { fill.run() };
        board.finished(me).set(number);
        board.done().count();
        let absent = |party: u32| board.finished(party).get() != number;
        let done = meeting.through(board.done(), all, &absent, patience);
        if done.is_err() && !offer.written.is_empty() {
            // SAFETY: this party's own buffer, leased for writing, whose content means nothing after an error.
            unsafe { board.withdraw(me, offer.written) };
        }
        done.map(|()| true)
    }

    /// Everybody says where its buffers are, and works on a share of all results.
    fn directly<P: Patience>(
        &mut self,
        meeting: &Meeting<'_>,
        source: Place,
        result: Place,
        stream: bool,
        patience: &mut P,
    ) -> Result<(), Stopped<P::Error>> {
        let Meeting { board, me, number, exchange, .. } = *meeting;
        let large = board.begun(me).1;
        large.set(large.get() + 1);
        let all = large.get() * u64::from(board.parties);
        let slot = board.slot(me, number);
        let (from, to) = slot.ends();
        from.store(source.base, Ordering::Relaxed);
        to.store(result.base, Ordering::Relaxed);
        slot.label.store(meeting.label, Ordering::Relaxed);
        slot.flag.set(number);
        board.gate().count();
        meeting.through(board.gate(), all, &meeting.not_here(), patience)?;
        meeting.agree()?;
        let shared = exchange.is_shared_out();
        for party in 0..board.parties {
            let slot = board.slot(party, number);
            let (from, to) = slot.ends();
            let place = |base: *mut u8| Place { base, stride: exchange.block };
            self.sources[party as usize] = place(from.load(Ordering::Relaxed));
            let to = if shared || party == me { to.load(Ordering::Relaxed) } else { std::ptr::null_mut() };
            self.results[party as usize] = place(to);
        }
        let range = if shared { share(exchange.block, me, board.parties) } else { 0..exchange.block };
        let fill = Fill {
            exchange,
            sources: &self.sources,
            results: &self.results,
            range,
            first: 0,
            stream,
            scratch: &mut self.scratch,
        };
        // SAFETY: all have come and agree on the exchange, so the buffers are as long and aligned as it says, and
        // their owners wait below until every share is done. Shares are different ranges of all results, or different
        // results; what they read of sources is written by nobody, or, in place, by this very share afterwards.
        unsafe { fill.run() };
        board.done().count();
        let mut done = || board.done().get() >= all;
        meeting.until(&mut done, &meeting.not_here(), &mut Untiring).unwrap_or_else(|never| match never {});
        Ok(())
    }
}

/// Waits for those that cannot fail to come: they are at work, which takes no waiting.
struct Untiring;

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
    fn until<P: Patience>(
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
    fn not_here(&self) -> impl Fn(u32) -> bool {
        |party| self.board.slot(party, self.number).flag.get() != self.number
    }

    /// Waits until all have raised their flags, with one label. How many came with an offer.
    #[inline]
    fn all_here<P: Patience>(&self, patience: &mut P) -> Result<u32, Stopped<P::Error>> {
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
    fn through<P: Patience>(
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
    fn agree<E>(&self) -> Result<u32, Stopped<E>> {
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

/// Where the source and the result of a party begin; nowhere where it has none.
#[track_caller]
fn places(exchange: &Exchange, me: u32, ends: Ends<'_>) -> (Place, Place) {
    let block = exchange.block;
    let (source, result) = (exchange.source_blocks(me) * block, exchange.result_blocks(me) * block);
    let (source_base, result_base) = match ends {
        Ends::InPlace(data) => {
            assert!(exchange.may_be_in_place(), "{:?} does not work in place", exchange.pattern);
            let (source_at, result_at) = exchange.offsets(me);
            let whole = (source_at + source).max(result_at + result);
            assert_eq!(data.len(), whole, "the buffer of {:?}", exchange.pattern);
            let base = data.as_mut_ptr();
            (base.wrapping_add(source_at), base.wrapping_add(result_at))
        }
        Ends::Apart(from, to) => {
            assert_eq!(from.len(), source, "the source of {:?}", exchange.pattern);
            assert_eq!(to.len(), result, "the result of {:?}", exchange.pattern);
            (from.as_ptr().cast_mut(), to.as_mut_ptr())
        }
    };
    let place = |base: *mut u8, bytes: usize| {
        assert!(bytes == 0 || base.addr().is_multiple_of(exchange.dtype.size()), "a buffer is not aligned");
        if bytes == 0 { Place::NONE } else { Place { base, stride: block } }
    };
    (place(source_base, source), place(result_base, result))
}

/// The share of one party of a block: whole cache lines, near-equal.
fn share(block: usize, me: u32, parties: u32) -> Range<usize> {
    let each = block.div_ceil(parties as usize).next_multiple_of(64);
    let at = |party: usize| (party * each).min(block);
    at(me as usize)..at(me as usize + 1)
}
