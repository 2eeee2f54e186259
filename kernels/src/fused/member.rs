//! A member of exchanges: it waits for the other members, computes its share, and returns when no member needs its buffers.

use super::barrier::{Barrier, REGISTERED, Stopped, WaitPolicy};
use super::exchange::{Exchange, Pattern, mix};
use super::fill::Place;
use super::scratch::{MemberScratch, Own, RegisteredEnds};
use super::sync::Word;
use super::sync_segment::SyncSegment;
use crate::Isa;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The buffers of a member: the bytes of its source and of its result.
pub enum CallBuffers<'a> {
    /// A single buffer for source and result, or a buffer that contains both: block p of an all-gather's result is the source of
    /// member p, and block p of a reduce-scatter's source becomes the result of member p.
    InPlace(&'a mut [u8]),
    /// Two buffers: the source and the result.
    OutOfPlace(&'a [u8], &'a mut [u8]),
}

/// Above this size in bytes, a registered source buffer is read in place by the other members. Smaller sources are copied through
/// slots, which needs one barrier instead of two.
const REGISTERED_FROM: usize = 4096;

/// From this size in bytes on, an all-reduce through slots between more than two members is divided into shares.
const SHARED_OUT: usize = 32 << 10;

/// From this size in bytes on, a result in another buffer than its source is written with non-temporal stores. The sizes were
/// measured on processors of these instruction classes.
const fn streamed(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 4 << 20,
        Isa::Avx2 | Isa::Baseline => 16 << 20,
    }
}

/// A member of a sync segment.
pub struct Member {
    sync_segment: Arc<SyncSegment>,
    me: u32,
    scratch: MemberScratch,
}

/// Marks a member as busy until dropped.
struct Busy<'a>(&'a AtomicU64);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Member {
    /// A handle to member number `me`. A member may have several handles, used one at a time.
    ///
    /// # Panics
    /// If `me` is not below the number of members.
    pub fn new(sync_segment: Arc<SyncSegment>, me: u32) -> Member {
        assert!(me < sync_segment.members, "member {me} of {}", sync_segment.members);
        let places = vec![Place::NONE; sync_segment.members as usize];
        let scratch = MemberScratch { sources: places.clone(), results: places, scratch: Vec::new() };
        Member { sync_segment, me, scratch }
    }

    /// Takes part in an exchange: returns when the result is complete and no member reads or writes the buffers any more. All
    /// members call this with equal labels and exchanges, in the same order.
    ///
    /// # Errors
    /// A member did not arrive, or arrived with another label or exchange. The result is undefined then.
    ///
    /// # Panics
    /// If a buffer has the wrong length or is not aligned to its elements, if the exchange does not work in place or has another
    /// number of members, or if another thread is using this member.
    pub fn run<P: WaitPolicy>(
        &mut self,
        label: u64,
        exchange: &Exchange,
        buffers: CallBuffers<'_>,
        wait_policy: &mut P,
    ) -> Result<(), Stopped<P::Error>> {
        let Member { sync_segment: segment, me, scratch } = self;
        // The sync segment is borrowed: cloning its `Arc` would move the reference count from core to core.
        let (segment, me) = (&**segment, *me);
        assert_eq!(exchange.members, segment.members, "the members of an exchange and of its segment");
        let blocks = exchange.most_blocks.max(1);
        let bytes = exchange.block * blocks;
        let stream = matches!(buffers, CallBuffers::OutOfPlace(..)) && bytes >= streamed(Isa::best());
        let written = match &buffers {
            _ if segment.one_address_space || bytes <= REGISTERED_FROM => None,
            CallBuffers::InPlace(data) => segment.registered(me, &raw const **data, true),
            CallBuffers::OutOfPlace(from, _)
                if !from.is_empty() && segment.registered(me, *from, false).is_none() =>
            {
                None
            }
            CallBuffers::OutOfPlace(_, []) => Some(0..0),
            CallBuffers::OutOfPlace(_, to) => segment.registered(me, &raw const **to, true),
        };
        let own = places(exchange, me, buffers);
        let busy = segment.busy(me);
        assert_eq!(busy.swap(1, Ordering::Acquire), 0, "member {me} is in an exchange already");
        let _busy = Busy(busy);

        let begun = segment.begun(me).0;
        let number = begun.get() + 1;
        let label = mix(label, exchange.digest) & !REGISTERED;
        let mut barrier = Barrier { sync_segment: segment, me, number, label, exchange };
        begun.set(number);
        if bytes > segment.slot_bytes && segment.one_address_space {
            return scratch.directly(&barrier, own, stream, wait_policy);
        }
        if let Some(written) = written {
            let word = |place: Place| match place.base.is_null() {
                true => 0,
                false => place.base.addr() - segment.memory.base().addr().get() + 1,
            };
            // If every member computes its own result, or this member has no result, no other member writes to its buffer.
            let others = exchange.is_shared_out() && !own.result.base.is_null();
            let written = if others { written } else { 0..0 };
            let ends = RegisteredEnds { source: word(own.source), result: word(own.result), written };
            if scratch.exchange_registered(&barrier, ends, stream, wait_policy)? {
                return Ok(());
            }
            barrier.number += 1;
        }
        // A piece is whole blocks, or as much of each block as fits into the slots.
        let piece = match bytes <= segment.slot_bytes {
            true => exchange.block,
            false => match segment.slot_bytes / blocks {
                fits if fits >= 64 => fits / 64 * 64,
                fits => fits / 8 * 8,
            },
        };
        assert!(
            piece > 0 || exchange.block == 0,
            "the slots of this segment are too small for {blocks} blocks"
        );
        let shares = exchange.pattern == Pattern::AllReduce && segment.members > 2 && bytes >= SHARED_OUT;
        let mut at = 0;
        loop {
            let range = at..exchange.block.min(at + piece);
            begun.set(barrier.number);
            let done = match shares {
                true => scratch.by_shares(&mut barrier, own, range.clone(), stream, wait_policy)?,
                false => scratch.by_slots(&barrier, own, range.clone(), stream, wait_policy)?,
            };
            if done {
                at = range.end;
                if at >= exchange.block {
                    return Ok(());
                }
            }
            barrier.number += 1;
        }
    }
}

/// The start of a member's source and of its result; [`Place::NONE`] for a buffer that the member does not have.
#[track_caller]
fn places(exchange: &Exchange, me: u32, buffers: CallBuffers<'_>) -> Own {
    let block = exchange.block;
    let (source, result) = (exchange.source_blocks(me) * block, exchange.result_blocks(me) * block);
    let (source_base, result_base) = match buffers {
        CallBuffers::InPlace(data) => {
            assert!(exchange.may_be_in_place(), "{:?} does not work in place", exchange.pattern);
            let (source_at, result_at) = exchange.offsets(me);
            let whole = (source_at + source).max(result_at + result);
            assert_eq!(data.len(), whole, "the buffer of {:?}", exchange.pattern);
            let base = data.as_mut_ptr();
            (base.wrapping_add(source_at), base.wrapping_add(result_at))
        }
        CallBuffers::OutOfPlace(from, to) => {
            assert_eq!(from.len(), source, "the source of {:?}", exchange.pattern);
            assert_eq!(to.len(), result, "the result of {:?}", exchange.pattern);
            (from.as_ptr().cast_mut(), to.as_mut_ptr())
        }
    };
    let place = |base: *mut u8, bytes: usize| {
        assert!(bytes == 0 || base.addr().is_multiple_of(exchange.dtype.size()), "a buffer is not aligned");
        if bytes == 0 { Place::NONE } else { Place { base, stride: block } }
    };
    Own { source: place(source_base, source), result: place(result_base, result) }
}
