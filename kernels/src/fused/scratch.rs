//! The three ways of an exchange: through slots, by shares of slots, or directly on the buffers.

use super::barrier::{Barrier, NoDeadline, REGISTERED, Stopped, WaitPolicy};
use super::fill::{Fill, Place};
use super::sync::Word;
use crate::Isa;
use crate::reduce::simd;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Working memory of a member, kept from one exchange to the next.
pub(super) struct MemberScratch {
    pub sources: Vec<Place>,
    pub results: Vec<Place>,
    pub scratch: Vec<u64>,
}

// SAFETY: the places are pointers to buffers of an exchange that is over; none is used before it is set again.
unsafe impl Send for MemberScratch {}

/// A member's own source and result.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub source: Place,
    pub result: Place,
}

impl Own {
    /// Source and result from this byte of their blocks on.
    fn beyond(self, first: usize) -> Own {
        let here = |place: Place| Place { base: place.base.wrapping_add(first), ..place };
        Own { source: here(self.source), result: here(self.result) }
    }
}

/// A part of every block: the range of it that is computed, and how its bytes lie in the slots.
struct Piece {
    /// The byte of its block that the piece begins with.
    first: usize,
    /// Bytes of the piece, of which `range` is computed.
    len: usize,
    range: Range<usize>,
    /// Whether the result is written past the caches.
    stream: bool,
}

/// A member's registered buffers as it announces them: offsets in bytes from the start of the memory, plus one; 0 for none.
pub(super) struct RegisteredEnds {
    pub source: usize,
    pub result: usize,
    /// The range that other members will write, if all have registered buffers.
    pub written: Range<usize>,
}

impl MemberScratch {
    /// Each member copies its source, or a piece of its blocks, to its slot and computes its own result. Returns false if a
    /// member announced registered buffers instead; it will use slots in the next exchange, and then so do all.
    pub fn by_slots<P: WaitPolicy>(
        &mut self,
        barrier: &Barrier<'_>,
        own: Own,
        range: Range<usize>,
        stream: bool,
        wait_policy: &mut P,
    ) -> Result<bool, Stopped<P::Error>> {
        let Barrier { sync_segment, me, number, exchange, .. } = *barrier;
        let len = range.len();
        let slot = sync_segment.slot(me, number);
        for block in 0..exchange.source_blocks(me) {
            // SAFETY: the source has these blocks, and the slot has room for a piece of each. Nobody reads the slot:
            // all have raised the flag of the exchange before, so all have read what was here two exchanges ago.
            unsafe {
                let from = own.source.base.add(block * own.source.stride + range.start);
                simd::copy_apart(from, slot.data.add(block * len).as_ptr(), len);
            }
        }
        slot.label.store(barrier.label, Ordering::Relaxed);
        slot.flag.set(number);
        if barrier.all_arrived(wait_policy)? > 0 {
            return Ok(false);
        }
        if own.result.base.is_null() || len == 0 {
            return Ok(true);
        }
        let piece = Piece { first: range.start, len, range: 0..len, stream };
        // SAFETY: all are here; the caller's own source and result.
        unsafe { self.fill_from_slots(barrier, own.beyond(range.start), piece) };
        Ok(true)
    }

    /// An all-reduce through slots between more than two members: each reduces a share of a piece into its next slot and
    /// copies the shares of the others. This needs a second barrier, but sums everything once instead of once per member.
    /// Returns false as in [`MemberScratch::by_slots`]; otherwise it used two exchanges.
    pub fn by_shares<P: WaitPolicy>(
        &mut self,
        barrier: &mut Barrier<'_>,
        own: Own,
        range: Range<usize>,
        stream: bool,
        wait_policy: &mut P,
    ) -> Result<bool, Stopped<P::Error>> {
        if !self.by_slots(barrier, Own { result: Place::NONE, ..own }, range.clone(), false, wait_policy)? {
            return Ok(false);
        }
        let (sync_segment, me, len) = (barrier.sync_segment, barrier.me, range.len());
        let mine = share(len, me, sync_segment.members);
        let slot = sync_segment.slot(me, barrier.number + 1);
        let result = Place { base: slot.data.as_ptr().wrapping_sub(mine.start), stride: len };
        let reduced = Own { result, ..own.beyond(range.start) };
        let piece = Piece { first: range.start, len, range: mine, stream: false };
        // SAFETY: all are here. Nobody reads the next slot, and it has room for a share: as for a source's piece.
        unsafe { self.fill_from_slots(barrier, reduced, piece) };
        barrier.number += 1;
        sync_segment.begun(me).0.set(barrier.number);
        slot.label.store(barrier.label, Ordering::Relaxed);
        slot.flag.set(barrier.number);
        barrier.all_arrived(wait_policy)?;
        for member in 0..sync_segment.members {
            let part = share(len, member, sync_segment.members);
            let data = sync_segment.slot(member, barrier.number).data.as_ptr();
            // SAFETY: the result has this range, and is this member's own; the slot holds that share of it, written before
            // the flag that was seen, and is written again only after this member's next flag.
            let (into, from) = unsafe {
                let into = own.result.base.add(range.start + part.start);
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

    /// Computes a piece of this member's result from the slots of all members and its own source.
    ///
    /// # Safety
    /// All have raised their flags, and this member has not raised the next. Source and result are of this member: places of
    /// that piece, as [`Fill::run`] wants them.
    unsafe fn fill_from_slots(&mut self, barrier: &Barrier<'_>, own: Own, piece: Piece) {
        let Piece { first, len, range, stream } = piece;
        let Barrier { sync_segment, me, number, exchange, .. } = *barrier;
        for member in 0..sync_segment.members {
            let data = sync_segment.slot(member, number).data.as_ptr();
            self.sources[member as usize] = Place { base: data, stride: len };
            self.results[member as usize] = Place::NONE;
        }
        if exchange.source_blocks(me) > 0 {
            self.sources[me as usize] = own.source;
        }
        self.results[me as usize] = own.result;
        let (sources, results, scratch) = (&self.sources, &self.results, &mut self.scratch);
        let fill = Fill { exchange, sources, results, range, first, stream, scratch };
        // SAFETY: the slots hold the sources' pieces, written before the flags that were seen, and are written again
        // only after this member's next flag; the caller's promise for its source and its result.
        unsafe { fill.run() };
    }

    /// Each member announces its registered buffers and computes a share of all results: [`MemberScratch::directly`] between
    /// processes, any of which may stop or end in the middle. Returns false, with nothing done, if not all have registered
    /// buffers.
    pub fn exchange_registered<P: WaitPolicy>(
        &mut self,
        barrier: &Barrier<'_>,
        offer: RegisteredEnds,
        stream: bool,
        wait_policy: &mut P,
    ) -> Result<bool, Stopped<P::Error>> {
        let Barrier { sync_segment, me, number, exchange, .. } = *barrier;
        let slot = sync_segment.slot(me, number);
        let (from, to) = slot.ends();
        from.store(std::ptr::without_provenance_mut(offer.source), Ordering::Relaxed);
        to.store(std::ptr::without_provenance_mut(offer.result), Ordering::Relaxed);
        slot.label.store(barrier.label | REGISTERED, Ordering::Relaxed);
        slot.flag.set(number);
        if barrier.all_arrived(wait_policy)? < sync_segment.members {
            return Ok(false);
        }
        let shared = exchange.is_shared_out();
        for member in 0..sync_segment.members {
            let slot = sync_segment.slot(member, number);
            let (from, to) = slot.ends();
            let place = |word: &AtomicPtr<u8>, blocks: usize| {
                let Some(at) = word.load(Ordering::Relaxed).addr().checked_sub(1) else {
                    return (blocks == 0).then_some(Place::NONE);
                };
                let end = at.checked_add(blocks * exchange.block)?;
                let there =
                    sync_segment.registrable(member, at..end) && at.is_multiple_of(exchange.dtype.size());
                let base = sync_segment.memory.base().as_ptr().wrapping_add(at);
                there.then_some(Place { base, stride: exchange.block })
            };
            let from = place(from, exchange.source_blocks(member));
            let to = place(to, exchange.result_blocks(member));
            // What another process announces is checked before any byte is touched.
            let (Some(from), Some(to)) = (from, to) else { return Err(Stopped::Disagrees(member)) };
            self.sources[member as usize] = from;
            self.results[member as usize] = if shared || member == me { to } else { Place::NONE };
        }

        // All have arrived and know each other's registered buffers; now each confirms. After that, buffers are touched.
        let large = sync_segment.begun(me).1;
        large.set(large.get() + 1);
        let all = large.get() * u64::from(sync_segment.members);
        sync_segment.gate().count();
        let absent = |member: u32| sync_segment.begun(member).1.get() < large.get();
        barrier.pass_gate(sync_segment.gate(), all, &absent, wait_policy)?;
        let range = if shared { share(exchange.block, me, sync_segment.members) } else { 0..exchange.block };
        let (sources, results, scratch) = (&self.sources, &self.results, &mut self.scratch);
        let fill = Fill { exchange, sources, results, range, first: 0, stream, scratch };
        // SAFETY: as in `directly`; that the others' buffers are where they say was looked at above, and that they are
        // borrowed until all are through with it is what buffers are registered for.
        unsafe { fill.run() };
        sync_segment.finished(me).set(number);
        sync_segment.done().count();
        let absent = |member: u32| sync_segment.finished(member).get() != number;
        let done = barrier.pass_gate(sync_segment.done(), all, &absent, wait_policy);
        if done.is_err() && !offer.written.is_empty() {
            // SAFETY: this member's own buffer, registered for writing, whose content means nothing after an error.
            unsafe { sync_segment.detach(me, offer.written) };
        }
        done.map(|()| true)
    }

    /// Each member publishes where its buffers are and computes a share of all results.
    pub fn directly<P: WaitPolicy>(
        &mut self,
        barrier: &Barrier<'_>,
        own: Own,
        stream: bool,
        wait_policy: &mut P,
    ) -> Result<(), Stopped<P::Error>> {
        let Barrier { sync_segment, me, number, exchange, .. } = *barrier;
        let large = sync_segment.begun(me).1;
        large.set(large.get() + 1);
        let all = large.get() * u64::from(sync_segment.members);
        let slot = sync_segment.slot(me, number);
        let (from, to) = slot.ends();
        from.store(own.source.base, Ordering::Relaxed);
        to.store(own.result.base, Ordering::Relaxed);
        slot.label.store(barrier.label, Ordering::Relaxed);
        slot.flag.set(number);
        sync_segment.gate().count();
        barrier.pass_gate(sync_segment.gate(), all, &barrier.not_arrived(), wait_policy)?;
        barrier.agree()?;
        let shared = exchange.is_shared_out();
        for member in 0..sync_segment.members {
            let slot = sync_segment.slot(member, number);
            let (from, to) = slot.ends();
            let place = |base: *mut u8| Place { base, stride: exchange.block };
            self.sources[member as usize] = place(from.load(Ordering::Relaxed));
            let to = if shared || member == me { to.load(Ordering::Relaxed) } else { std::ptr::null_mut() };
            self.results[member as usize] = place(to);
        }
        let range = if shared { share(exchange.block, me, sync_segment.members) } else { 0..exchange.block };
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
        sync_segment.done().count();
        let mut done = || sync_segment.done().get() >= all;
        barrier
            .until(&mut done, &barrier.not_arrived(), &mut NoDeadline)
            .unwrap_or_else(|never| match never {});
        Ok(())
    }
}

/// A member's share of a block: whole cache lines, near-equal for all members.
fn share(block: usize, me: u32, members: u32) -> Range<usize> {
    let each = block.div_ceil(members as usize).next_multiple_of(64);
    let at = |member: usize| (member * each).min(block);
    at(me as usize)..at(me as usize + 1)
}
