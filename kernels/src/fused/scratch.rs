//! The three methods of an exchange: through slots, by shares of slots, or directly on the buffers.

use super::barrier::{Barrier, NoDeadline, REGISTERED, Stopped, WaitPolicy};
use super::fill::{Fill, Place};
use super::sync::Word;
use crate::Isa;
use crate::reduce::simd;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The scratch memory of a member, reused from one exchange to the next.
pub(super) struct MemberScratch {
    pub sources: Vec<Place>,
    pub results: Vec<Place>,
    pub scratch: Vec<u64>,
}

// SAFETY: the places point to buffers of a finished exchange; they are set again before they are used.
unsafe impl Send for MemberScratch {}

/// A member's own source and result.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub source: Place,
    pub result: Place,
}

impl Own {
    /// Source and result from byte `first` of their blocks on.
    fn beyond(self, first: usize) -> Own {
        let here = |place: Place| Place { base: place.base.wrapping_add(first), ..place };
        Own { source: here(self.source), result: here(self.result) }
    }
}

/// A part of every block: the range that is computed, and how its bytes lie in the slots.
struct Piece {
    /// The first byte of the piece in its block.
    first: usize,
    /// The length of the piece in bytes, of which `range` is computed.
    len: usize,
    range: Range<usize>,
    /// Whether the result is written with non-temporal stores, past the caches.
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
    /// Each member copies its source, or a piece of its blocks, to its slot and computes its own result. Returns false if a member
    /// announced registered buffers instead; that member uses slots in the next exchange, and then all members do.
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
            // SAFETY: the source has these blocks, and the slot has space for a piece of each. No member reads the slot: all have
            // raised the flag of the last exchange, so all have read what was in the slot two exchanges ago.
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
        // SAFETY: all members have raised their flags; the source and the result are the caller's own.
        unsafe { self.fill_from_slots(barrier, own.beyond(range.start), piece) };
        Ok(true)
    }

    /// An all-reduce through slots between more than two members: each member reduces a share of a piece into its next slot and copies
    /// the shares of the other members. This needs a second barrier, but sums each element once instead of once per member. Returns false
    /// where [`MemberScratch::by_slots`] does; otherwise two exchanges were used.
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
        // SAFETY: all members have raised their flags. No member reads the next slot, which has space for a share.
        unsafe { self.fill_from_slots(barrier, reduced, piece) };
        barrier.number += 1;
        sync_segment.begun(me).0.set(barrier.number);
        slot.label.store(barrier.label, Ordering::Relaxed);
        slot.flag.set(barrier.number);
        barrier.all_arrived(wait_policy)?;
        for member in 0..sync_segment.members {
            let part = share(len, member, sync_segment.members);
            let data = sync_segment.slot(member, barrier.number).data.as_ptr();
            // SAFETY: the result has this range and is this member's own; the slot holds the member's share, written before its
            // flag was seen, and is written again only after this member's next flag.
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
    /// All members have raised their flags, and this member has not raised its next flag. `own` is this member's source and result:
    /// places of that piece that meet the conditions of [`Fill::run`].
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
        // SAFETY: the slots hold the sources' pieces, written before the flags that were seen, and are written again only after
        // this member's next flag; the caller guarantees its source and its result.
        unsafe { fill.run() };
    }

    /// Each member announces its registered buffers and computes a share of all results, like [`MemberScratch::directly`], but
    /// between processes, any of which may stop or end in the middle. Returns false, with nothing done, if not all members have
    /// registered buffers.
    pub fn exchange_registered<P: WaitPolicy>(
        &mut self,
        barrier: &Barrier<'_>,
        ends: RegisteredEnds,
        stream: bool,
        wait_policy: &mut P,
    ) -> Result<bool, Stopped<P::Error>> {
        let Barrier { sync_segment, me, number, exchange, .. } = *barrier;
        let slot = sync_segment.slot(me, number);
        let (from, to) = slot.ends();
        from.store(std::ptr::without_provenance_mut(ends.source), Ordering::Relaxed);
        to.store(std::ptr::without_provenance_mut(ends.result), Ordering::Relaxed);
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
            // The offsets that another process announces are checked before any byte is accessed.
            let (Some(from), Some(to)) = (from, to) else { return Err(Stopped::Disagrees(member)) };
            self.sources[member as usize] = from;
            self.results[member as usize] = if shared || member == me { to } else { Place::NONE };
        }

        // All members have arrived and have each other's registered buffers; now each confirms. Only then are buffers accessed.
        let large = sync_segment.begun(me).1;
        large.set(large.get() + 1);
        let all = large.get() * u64::from(sync_segment.members);
        sync_segment.gate().count();
        let absent = |member: u32| sync_segment.begun(member).1.get() < large.get();
        barrier.pass_gate(sync_segment.gate(), all, &absent, wait_policy)?;
        let range = if shared { share(exchange.block, me, sync_segment.members) } else { 0..exchange.block };
        let (sources, results, scratch) = (&self.sources, &self.results, &mut self.scratch);
        let fill = Fill { exchange, sources, results, range, first: 0, stream, scratch };
        // SAFETY: as in `directly`: all agree on the exchange. The others' buffers were checked above to lie in their parts, and a
        // registered buffer stays borrowed until all members have finished.
        unsafe { fill.run() };
        sync_segment.finished(me).set(number);
        sync_segment.done().count();
        let absent = |member: u32| sync_segment.finished(member).get() != number;
        let done = barrier.pass_gate(sync_segment.done(), all, &absent, wait_policy);
        if done.is_err() && !ends.written.is_empty() {
            // SAFETY: the bytes are this member's own, registered for writing, and their content is not needed after an error.
            unsafe { sync_segment.detach(me, ends.written) };
        }
        done.map(|()| true)
    }

    /// Each member publishes the addresses of its buffers and computes a share of all results.
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
        // SAFETY: all members have arrived and agree on the exchange, so the buffers have its lengths and alignment, and their
        // owners wait below until every share is done. Shares are different ranges of all results, or different results; the source
        // bytes that a share reads are written by no member or, in place, by this share afterwards.
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
