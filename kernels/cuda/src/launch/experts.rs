//! Mixtures of experts, in f32.

use super::{blocks, holds, run, small};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use bytemuck::{Pod, Zeroable};

/// A mixture over N samples of T tokens of `width` numbers: each token is sent to K of E experts, each of which has C slots for each
/// sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixtureLaunch {
    /// The number of samples, N.
    pub samples: usize,
    /// Tokens of a sample, T.
    pub tokens: usize,
    /// Experts, E.
    pub experts: usize,
    /// Experts that each token is sent to, K.
    pub chosen: usize,
    /// Slots of an expert for each sample, C.
    pub capacity: usize,
    /// Numbers of a token.
    pub width: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Mixture {
    samples: u32,
    tokens: u32,
    experts: u32,
    chosen: u32,
    capacity: u32,
    width: u32,
}

/// The choices of each token: the gates and the slot numbers, both f32 `[N T, K]`.
type Gates<'a> = (Slice<'a>, Slice<'a>);

impl MixtureLaunch {
    fn shape(&self) -> Result<Mixture> {
        let MixtureLaunch { samples, tokens, experts, chosen, capacity, width } = *self;
        // Slot numbers are passed as f32, which represents whole numbers up to 2^24 exactly.
        if chosen == 0 || chosen > experts || experts * capacity >= 1 << 24 {
            return Err(Error::Argument(format!(
                "each token goes to {chosen} of {experts} experts with {capacity} slots; it must go to 1 or more of them, and they may \
                 have less than 16,777,216 slots"
            )));
        }
        Ok(Mixture {
            samples: small("a number of samples", samples)?,
            tokens: small("a number of tokens", tokens)?,
            experts: small("a number of experts", experts)?,
            chosen: small("a number of choices", chosen)?,
            capacity: small("a capacity", capacity)?,
            width: small("a width", width)?,
        })
    }

    fn choices(&self) -> u64 {
        (self.samples * self.tokens * self.chosen) as u64
    }

    fn holds_slots(&self, slots: Slice<'_>) -> Result<()> {
        holds("the slots", slots, (self.experts * self.samples * self.capacity * self.width) as u64, 4)
    }

    fn holds_tokens(&self, x: Slice<'_>) -> Result<()> {
        holds("the tokens", x, (self.samples * self.tokens * self.width) as u64, 4)
    }

    fn holds_gates(&self, (gates, numbers): Gates<'_>) -> Result<()> {
        holds("the gates", gates, self.choices(), 4)?;
        holds("the slots' numbers", numbers, self.choices(), 4)
    }

    fn holds_logits(&self, p: Slice<'_>) -> Result<()> {
        holds("the probabilities", p, (self.samples * self.tokens * self.experts) as u64, 4)
    }

    fn holds_places(&self, places: [Slice<'_>; 2]) -> Result<()> {
        places.into_iter().try_for_each(|places| holds("the choices", places, self.choices(), 4))
    }

    /// Launches a kernel, with `threads` threads, or a block for each sample if `None`.
    fn run(&self, queue: &Queue, name: &str, threads: Option<u64>, arguments: Arguments) -> Result<()> {
        let grid = threads.map_or(self.samples as u32, |threads| blocks(queue, threads, 1));
        if grid == 0 || self.choices() == 0 {
            return Ok(());
        }
        run(queue, Kernel::plain(Family::Experts, name), [grid, 1, 1], arguments)
    }

    /// Replaces the logits `p` by their softmax and chooses each token's experts: writes them (u32) to `best`, their slots to `places`
    /// (u32) and to the gates' numbers.
    ///
    /// # Errors
    /// A buffer of the wrong length, a shape that the kernels do not support.
    pub fn route(
        &self,
        queue: &Queue,
        p: Slice<'_>,
        [best, places]: [Slice<'_>; 2],
        gates: Gates<'_>,
    ) -> Result<()> {
        let shape = self.shape()?;
        self.holds_logits(p)?;
        self.holds_places([best, places])?;
        self.holds_gates(gates)?;
        let arguments = Arguments::new().writes(p).writes(best).writes(places);
        self.run(queue, "experts_route", None, arguments.writes(gates.0).writes(gates.1).with(shape))
    }

    /// Copies tokens to their slots. Slots without a token are not written.
    ///
    /// # Errors
    /// The errors of [`MixtureLaunch::route`].
    pub fn dispatch(&self, queue: &Queue, x: Slice<'_>, places: Slice<'_>, slots: Slice<'_>) -> Result<()> {
        let shape = self.shape()?;
        self.holds_tokens(x)?;
        self.holds_places([places, places])?;
        self.holds_slots(slots)?;
        let arguments = Arguments::new().reads(x).reads(places).writes(slots).with(shape);
        self.run(queue, "experts_dispatch", Some(32 * self.choices()), arguments)
    }

    /// Adds to each token the values in its slots: the backward pass of [`MixtureLaunch::dispatch`].
    ///
    /// # Errors
    /// The errors of [`MixtureLaunch::route`].
    pub fn collect(&self, queue: &Queue, slots: Slice<'_>, places: Slice<'_>, x: Slice<'_>) -> Result<()> {
        let shape = self.shape()?;
        self.holds_tokens(x)?;
        self.holds_places([places, places])?;
        self.holds_slots(slots)?;
        let arguments = Arguments::new().reads(slots).reads(places).writes(x).with(shape);
        self.run(queue, "experts_collect", Some(32 * (self.samples * self.tokens) as u64), arguments)
    }

    /// `y` of each token: the sum of the values in its slots, each times its gate.
    ///
    /// # Errors
    /// The errors of [`MixtureLaunch::route`].
    pub fn combine(&self, queue: &Queue, slots: Slice<'_>, gates: Gates<'_>, y: Slice<'_>) -> Result<()> {
        let shape = self.shape()?;
        self.holds_tokens(y)?;
        self.holds_gates(gates)?;
        self.holds_slots(slots)?;
        let arguments = Arguments::new().reads(slots).reads(gates.0).reads(gates.1).writes(y).with(shape);
        self.run(queue, "experts_combine", Some(32 * (self.samples * self.tokens) as u64), arguments)
    }

    /// The gradients of [`MixtureLaunch::combine`] with respect to the slots and to the gates. Slots without a token are not written.
    ///
    /// # Errors
    /// The errors of [`MixtureLaunch::route`].
    pub fn combine_back(
        &self,
        queue: &Queue,
        (slots, dy): (Slice<'_>, Slice<'_>),
        gates: Gates<'_>,
        (dslots, dgates): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        let shape = self.shape()?;
        self.holds_tokens(dy)?;
        self.holds_gates(gates)?;
        self.holds_gates((dgates, dgates))?;
        [slots, dslots].into_iter().try_for_each(|slots| self.holds_slots(slots))?;
        let arguments = Arguments::new().reads(slots).reads(gates.0).reads(gates.1).reads(dy);
        let arguments = arguments.writes(dslots).writes(dgates).with(shape);
        self.run(queue, "experts_combine_back", Some(32 * self.choices()), arguments)
    }

    /// The gradient of the router's logits, from the gradients of the gates and of the balance loss. The balance loss of a sample is
    /// `balance` times the sum over experts of the share of choices that were sent to the expert times the expert's mean probability.
    ///
    /// # Errors
    /// The errors of [`MixtureLaunch::route`].
    pub fn logits_back(
        &self,
        queue: &Queue,
        (p, best): (Slice<'_>, Slice<'_>),
        dgates: Slice<'_>,
        balance: f32,
        dp: Slice<'_>,
    ) -> Result<()> {
        let shape = self.shape()?;
        [p, dp].into_iter().try_for_each(|p| self.holds_logits(p))?;
        self.holds_places([best, dgates])?;
        let shares = queue.memory(4 * self.samples * self.experts)?;
        let arguments = Arguments::new().reads(p).reads(best).reads(dgates).writes(shares.all());
        self.run(queue, "experts_logits", None, arguments.writes(dp).with(shape).with(balance))
    }
}
