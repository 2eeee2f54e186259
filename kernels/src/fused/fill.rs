//! The computation of one member's share: blocks that fit into the first-level cache are evaluated from the sources to the results.

use super::exchange::{Exchange, From, Pattern};
use super::formula::{Formula, Operand};
use crate::Isa;
use crate::reduce::simd;
use crate::reduce::{Typed, dispatch};
use crate::{Element, ReduceOp};
use std::ops::Range;

/// The number of bytes that are evaluated at a time.
pub(super) const BLOCK: usize = 2048;

/// A buffer of blocks, or of the same part of every block: block b, or its part, begins at `base + b * stride`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub base: *mut u8,
    pub stride: usize,
}

impl Place {
    pub const NONE: Place = Place { base: std::ptr::null_mut(), stride: 0 };

    fn at(self, block: usize, offset: usize) -> *mut u8 {
        self.base.wrapping_add(block * self.stride + offset)
    }
}

/// A range of bytes of an exchange that is to be computed (filled), with its operands and destinations.
pub(super) struct Fill<'a> {
    pub exchange: &'a Exchange,
    /// The source of every member.
    pub sources: &'a [Place],
    /// The result of every member; [`Place::NONE`] for members whose results this share does not write.
    pub results: &'a [Place],
    /// The bytes of each block that are filled, relative to the blocks' places in `sources` and `results`.
    pub range: Range<usize>,
    /// The offset of byte 0 of a place in the exchange's block.
    pub first: usize,
    /// Whether results are written with non-temporal stores, past the caches.
    pub stream: bool,
    /// Scratch for the slots of the exchange's formulas.
    pub scratch: &'a mut Vec<u64>,
}

impl Fill<'_> {
    /// Fills the range.
    ///
    /// # Safety
    /// Every source that a route names is readable, and every place of `results` other than [`Place::NONE`] is writable, over the
    /// blocks that the exchange gives to the place's member, within the range; all are aligned to the element. Until this returns,
    /// no other code writes those bytes of the sources or accesses those of the results. A source and a result overlap only where
    /// the exchange makes an element from the same element of that source.
    pub unsafe fn run(self) {
        dispatch(self.exchange.dtype, self);
    }
}

impl Typed for Fill<'_> {
    fn run<T: Element>(self) {
        let Fill { exchange, sources, results, range, first, stream, scratch } = self;
        let isa = Isa::best();
        if scratch.len() < exchange.slots * BLOCK / 8 {
            scratch.resize(exchange.slots * BLOCK / 8, 0);
        }
        let scratch: &mut [T] = bytemuck::cast_slice_mut(scratch);
        let (slots, _) = scratch.split_at_mut(exchange.slots * BLOCK / size_of::<T>());
        let mut work = Block { isa, op: exchange.op, slots };
        let parts = (exchange.op == ReduceOp::Avg).then_some(exchange.members);
        // A member that computes its own result only must not look for the results of all others in every route.
        let has_result = |place: &Place| !place.base.is_null();
        let last = results.iter().rposition(has_result).map_or(0, |last| last as u32 + 1);
        let within = results.iter().position(has_result).map_or(last, |first| first as u32)..last;
        for route in exchange.routes() {
            let to = || route.members(&within).map(|member| results[member as usize]).filter(has_result);
            let from = route.from;
            let Some(one) = to().map(|place| place.at(route.block, 0)).next() else { continue };
            let mut at = range.start;
            if let Some((a, b)) = pair(exchange, from, sources, results).filter(|_| parts.is_none()) {
                let len = range.len() / size_of::<T>();
                // SAFETY: by the conditions of `run`; the two buffers differ, and both are source and result.
                let (a, b) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(a.at(0, at).cast::<T>(), len),
                        std::slice::from_raw_parts_mut(b.at(0, at).cast::<T>(), len),
                    )
                };
                T::join(isa, exchange.op, a, b);
                continue;
            }
            while at < range.end {
                let (len, value) = match from {
                    From::Copy { member, block } => {
                        (range.end - at, sources[member as usize].at(block, at).cast_const())
                    }
                    From::Reduce { block } => {
                        let place = block * exchange.block + first + at;
                        let (formula, end) = formula(exchange, place);
                        // Stop at the end of a cache line of the result; otherwise every block would end with a line that is
                        // written in two parts.
                        let whole = BLOCK - one.wrapping_add(at).addr() % 64;
                        let len = whole.min(range.end - at).min(end - place);
                        let read =
                            |member: u32| sources[member as usize].at(block, at).cast::<T>().cast_const();
                        // A block that is not streamed is computed in the first of the results directly.
                        let into =
                            if stream { std::ptr::null_mut() } else { one.wrapping_add(at).cast::<T>() };
                        // SAFETY: by the conditions of `run`, for `len` bytes from `at` on.
                        let value =
                            unsafe { work.evaluate(formula, &read, len / size_of::<T>(), parts, into) };
                        (len, value.cast::<u8>())
                    }
                };
                for place in to() {
                    let into = place.at(route.block, at);
                    if into.cast_const() == value {
                        continue;
                    }
                    // SAFETY: by the conditions of `run`: both ranges are `len` bytes, no other code accesses them now, and they
                    // are not the same place; the blocks of one element's source and result overlap completely or not at all.
                    let (into, from) = unsafe {
                        (std::slice::from_raw_parts_mut(into, len), std::slice::from_raw_parts(value, len))
                    };
                    simd::copy(isa, into, from, stream);
                }
                at += len;
            }
        }
        if stream {
            simd::fence();
        }
    }
}

/// The two buffers of an in-place all-reduce of two members, which needs no scratch; `None` for other exchanges.
fn pair(exchange: &Exchange, from: From, sources: &[Place], results: &[Place]) -> Option<(Place, Place)> {
    let same = |member: usize| sources[member].base == results[member].base;
    let whole = |formula: &Formula| formula.steps.len() == 1 && formula.steps[0].a != formula.steps[0].b;
    let two = exchange.pattern == Pattern::AllReduce
        && exchange.members == 2
        && same(0)
        && same(1)
        && sources[0].base != sources[1].base;
    (two && matches!(from, From::Reduce { .. })
        && exchange.formulas.iter().all(|(_, formula)| whole(formula)))
    .then(|| (sources[0], sources[1]))
}

/// The formula of byte `place` of a source, and the end of the formula's range.
fn formula(exchange: &Exchange, place: usize) -> (&Formula, usize) {
    let at = exchange.formulas.partition_point(|(range, _)| range.end <= place);
    let (range, formula) = &exchange.formulas[at];
    (formula, range.end)
}

/// The evaluation of formulas on one block.
struct Block<'a, T> {
    isa: Isa,
    op: ReduceOp,
    slots: &'a mut [T],
}

impl<T: Element> Block<'_, T> {
    const LEN: usize = BLOCK / size_of::<T>();

    /// Evaluates a formula over `len` elements and returns where the value is: at `into`, unless `into` is null, the formula has no
    /// steps, or its last step has one leaf twice; else in a slot or, for a formula of one leaf, in the leaf's source.
    ///
    /// # Safety
    /// `read` gives `len` readable and aligned elements for every leaf, which no code writes meanwhile. `into` is null, or points
    /// to `len` aligned elements that no other code accesses; it equals a leaf's place or does not overlap it.
    unsafe fn evaluate(
        &mut self,
        formula: &Formula,
        read: &impl Fn(u32) -> *const T,
        len: usize,
        parts: Option<u32>,
        into: *mut T,
    ) -> *const T {
        // SAFETY: by the conditions of `evaluate` on `read`.
        let source = |member: u32| unsafe { std::slice::from_raw_parts(read(member), len) };
        let (isa, op) = (self.isa, self.op);
        let (steps, last) = match formula.steps.split_last() {
            Some((last, before)) if !into.is_null() && last.a != last.b => (before, Some(last)),
            _ => (&formula.steps[..], None),
        };
        for step in steps {
            match (step.a, step.b) {
                (Operand::Source(a), Operand::Source(b)) => {
                    T::combine(isa, op, self.slot(step.into, len), source(a), source(b));
                }
                (Operand::Slot(into), Operand::Source(b)) | (Operand::Source(b), Operand::Slot(into)) => {
                    T::reduce(isa, op, self.slot(into, len), source(b));
                }
                (Operand::Slot(into), Operand::Slot(from)) => {
                    let (low, high) = self.slots.split_at_mut(into.max(from) * Self::LEN);
                    let (low, high) = (&mut low[into.min(from) * Self::LEN..][..len], &mut high[..len]);
                    let (into, from) = if into < from { (low, high) } else { (high, low) };
                    T::reduce(isa, op, into, from);
                }
            }
        }
        let value = match (last, formula.result, parts) {
            (Some(last), ..) => {
                let slots = self.slots.as_ptr();
                let [a, b] = [last.a, last.b].map(|operand| match operand {
                    Operand::Source(member) => read(member),
                    Operand::Slot(slot) => slots.wrapping_add(slot * Self::LEN),
                });
                // Reduction is bitwise commutative, so either operand may be at the place of the result.
                let (a, b) = if into.cast_const() == b { (b, a) } else { (a, b) };
                // SAFETY: by the conditions of `evaluate`; only this evaluation accesses the slots.
                let (value, b) = unsafe {
                    (std::slice::from_raw_parts_mut(into, len), std::slice::from_raw_parts(b, len))
                };
                match into.cast_const() == a {
                    true => T::reduce(isa, op, value, b),
                    // SAFETY: by the conditions of `evaluate`; `a` is not the result's place.
                    false => T::combine(isa, op, value, unsafe { std::slice::from_raw_parts(a, len) }, b),
                }
                value
            }
            (None, Operand::Slot(slot), _) => self.slot(slot, len),
            (None, Operand::Source(member), None) => return read(member),
            (None, Operand::Source(member), Some(_)) => {
                let value = self.slot(0, len);
                value.copy_from_slice(source(member));
                value
            }
        };
        if let Some(parts) = parts {
            simd::divide(isa, value, parts);
        }
        value.as_ptr()
    }

    fn slot(&mut self, slot: usize, len: usize) -> &mut [T] {
        &mut self.slots[slot * Self::LEN..][..len]
    }
}
