//! The effects of fault rules on one message, for the simulators and for a proxy in front of real sockets.

use super::noise::Draw;
use super::{Faults, Pair, Rule, When, Which};
use crate::{Picos, Rank};

/// A message, with the properties that fault rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The rank that sends the message.
    pub from: Rank,
    /// The rank that receives the message.
    pub to: Rank,
    /// The message's operation in its communicator. Together with `round` it distinguishes the messages of a pair of ranks.
    pub operation: u64,
    /// The message's round in its operation.
    pub round: u64,
    /// The message's number among those from its sender to its receiver, from 1.
    pub nth: u64,
    /// When the message starts.
    pub at: Picos,
}

/// What fault rules do to one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageEffects {
    /// Whether the message is lost.
    pub dropped: bool,
    /// The bit of the message that is flipped, modulo the number of bits; `None` for an intact message.
    pub corrupted: Option<u64>,
    /// Whether the message is sent twice.
    pub duplicated: bool,
    /// The longest time that the message is held back for the next message to pass; `None` if it is not held back.
    pub held: Option<Picos>,
    /// The message's extra delay, in addition to `held`.
    pub delay: Picos,
}

impl Faults {
    /// The effects of all rules on `message`, except the extra latency and the jitter of links, which depend on the message's path.
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

    /// The random draw of rule number `rule` for `message`, identified by its sender, receiver, operation and round. `what`
    /// distinguishes the draws that a rule makes for different purposes.
    pub(super) fn draw(&self, rule: u64, what: u64, message: &Message) -> Draw {
        let ends = u64::from(message.from.0) << 32 | u64::from(message.to.0);
        Draw::of(self.seed(), &[rule, what, ends, message.operation, message.round])
    }
}
