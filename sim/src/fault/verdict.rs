//! What becomes of one message: the one question that the simulators and a proxy before real sockets both ask.

use super::noise::Draw;
use super::{Faults, Pair, Rule, When, Which};
use crate::{Picos, Rank};

/// A message, as far as rules look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The operation of the communicator it belongs to; with `round` it tells the messages of a pair apart.
    pub operation: u64,
    /// The message's round in its operation.
    pub round: u64,
    /// The how-manieth it is from its sender to its receiver, from 1.
    pub nth: u64,
    /// When the message starts.
    pub at: Picos,
}

/// What a fault does to a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageEffects {
    /// Whether the message is lost.
    pub dropped: bool,
    /// A bit of the message is flipped: this one, modulo the number of bits.
    pub corrupted: Option<u64>,
    /// Whether the message is sent twice.
    pub duplicated: bool,
    /// The message is held back until the next one has passed, or at most for this long.
    pub held: Option<Picos>,
    /// The message's extra delay, in addition to `held`.
    pub delay: Picos,
}

impl Faults {
    /// The fate of a message. Jitter of links is not part of it, because it depends on the path.
    pub fn verdict(&self, message: &Message) -> MessageEffects {
        let mut verdict = MessageEffects::default();
        for (number, rule) in (0..).zip(self.rules()) {
            let hit = |pair: &Pair, which: &Which, when: &When| self.hits(number, message, pair, which, when);
            match rule {
                Rule::Drop { pair, which, when } => verdict.dropped |= hit(pair, which, when),
                Rule::Corrupt { pair, which, when } if hit(pair, which, when) => {
                    verdict.corrupted = Some(self.draw(number, 1, message).word(0));
                }
                Rule::Duplicate { pair, which, when } => verdict.duplicated |= hit(pair, which, when),
                Rule::Delay { pair, which, noise, when } if hit(pair, which, when) => {
                    verdict.delay += noise.at(self.draw(number, 2, message));
                }
                Rule::Reorder { pair, which, hold, when } if hit(pair, which, when) => {
                    verdict.held = Some(verdict.held.unwrap_or_default().max(*hold));
                }
                _ => {}
            }
        }
        verdict
    }

    fn hits(&self, number: u64, message: &Message, pair: &Pair, which: &Which, when: &When) -> bool {
        when.holds(message.at)
            && pair.has(message.from, message.to)
            && match which {
                Which::All => true,
                Which::Nth(nth) => *nth == message.nth,
                Which::Chance(millionths) => {
                    let word = self.draw(number, 0, message).word(0);
                    ((u128::from(word) * 1_000_000) >> 64) < u128::from(*millionths)
                }
            }
    }

    /// The draw of a rule for a message: by who sends it to whom in which round of which operation.
    pub(super) fn draw(&self, rule: u64, what: u64, message: &Message) -> Draw {
        let ends = u64::from(message.from.0) << 32 | u64::from(message.to.0);
        Draw::of(self.seed(), &[rule, what, ends, message.operation, message.round])
    }
}
