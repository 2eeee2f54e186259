//! Tagged messages that have arrived, and the receives that wait for them.
//!
//! ```text
//! fragments of a peer --> Arriving --> the oldest matching receive; stored until there is one
//! ```
//!
//! The rule is MPI's: a receive names a source, or any source, and a tag. A receive gets the matching message that arrived first, and a
//! message is delivered to the matching receive that was posted first.
//!
//! Messages that no receive has taken are stored, up to `bound` bytes per peer. A peer that sends more fails the group.

use crate::{Call, DType, Error, Operation, Rank};
use std::collections::{BTreeMap, VecDeque};

/// Bytes in front of a fragment's data: the group, the tag, the type, whether the fragment is the last.
pub(super) const PREFIX: usize = 8 + 8 + 1 + 1;

/// A message of another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedMessage {
    /// The sender.
    pub from: Rank,
    /// The tag that the sender gave the message.
    pub tag: u64,
    /// The type of the elements.
    pub dtype: DType,
    /// The bytes of the elements.
    pub bytes: Vec<u8>,
}

/// One fragment of a message. The fragments of one sender arrive in order.
pub(super) struct Fragment<'a> {
    pub tag: u64,
    pub dtype: DType,
    pub last: bool,
    pub bytes: &'a [u8],
}

impl Fragment<'_> {
    /// Decodes the fragment in a frame's payload; `None` if the payload is no fragment.
    pub fn decode(payload: &[u8]) -> Option<Fragment<'_>> {
        let (prefix, bytes) = payload.split_at_checked(PREFIX)?;
        let tag = u64::from_le_bytes(*prefix[8..].first_chunk()?);
        let dtype = *DType::ALL.iter().find(|dtype| **dtype as u8 == prefix[16])?;
        Some(Fragment { tag, dtype, last: prefix[17] == 1, bytes })
    }
}

/// The call in errors about tagged messages: a point-to-point message.
pub(super) fn call() -> Call {
    Call::plain(Operation::PointToPoint, 0, 0, DType::U8)
}

/// The number of a receive that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReceiveId(u64);

/// The source and tag that a receive matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The source; `None` matches any rank.
    pub from: Option<Rank>,
    pub tag: u64,
}

impl Wanted {
    fn fits(&self, message: &TaggedMessage) -> bool {
        self.tag == message.tag && self.from.is_none_or(|from| from == message.from)
    }
}

/// How many bytes of one peer's messages are stored at most, unless a program sets another bound.
const BOUND: usize = 4 << 30;

/// A fragment was not taken: its peer's messages would need this many bytes, and the bound is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub held: usize,
    pub bound: usize,
}

impl Full {
    /// The error that `rank` reports, and that fails the group, when `peer` sends more than the bound.
    pub fn error(self, rank: Rank, peer: Rank) -> Error {
        let Full { held, bound } = self;
        let what = format!(
            "{held} bytes of its messages are here and no receive has taken them; at most {bound} are held"
        );
        Error::Protocol { rank, peer, call: Box::new(call()), round: 0, what }
    }
}

/// The arrived messages and the posted receives of one group.
pub(super) struct Mailbox {
    /// The bytes so far of messages that are not complete, by sender.
    arriving: BTreeMap<Rank, Vec<u8>>,
    /// Messages that match no receive yet, in order of arrival.
    kept: VecDeque<TaggedMessage>,
    /// Receives in the order in which they were posted, each with its message once it has arrived.
    posted: BTreeMap<ReceiveId, (Wanted, Option<TaggedMessage>)>,
    next: u64,
    /// Bytes of each peer's messages that have arrived and were not taken.
    held: BTreeMap<Rank, usize>,
    bound: usize,
}

impl Default for Mailbox {
    fn default() -> Mailbox {
        let (arriving, kept, posted, held) = Default::default();
        Mailbox { arriving, kept, posted, next: 0, held, bound: BOUND }
    }
}

impl Mailbox {
    /// Limits the stored bytes per peer to this many from now on.
    pub fn set_bound(&mut self, bytes: usize) {
        self.bound = bytes;
    }

    /// Posts a receive.
    pub fn post(&mut self, wanted: Wanted) -> ReceiveId {
        let id = ReceiveId(self.next);
        self.next += 1;
        let at = self.kept.iter().position(|message| wanted.fits(message));
        let message = at.and_then(|at| self.kept.remove(at));
        self.posted.insert(id, (wanted, message));
        id
    }

    /// A fragment has arrived. Returns whether it completes a message.
    ///
    /// # Errors
    /// [`Full`] where more bytes of this peer would be held than the bound allows.
    pub fn arrive(&mut self, from: Rank, fragment: Fragment<'_>) -> Result<bool, Full> {
        let held = self.held.entry(from).or_default();
        // A message without bytes takes memory too.
        let own = if fragment.last { size_of::<TaggedMessage>() } else { 0 };
        let more = held.saturating_add(fragment.bytes.len()).saturating_add(own);
        if more > self.bound {
            return Err(Full { held: more, bound: self.bound });
        }
        *held = more;
        let bytes = self.arriving.entry(from).or_default();
        bytes.extend_from_slice(fragment.bytes);
        if !fragment.last {
            return Ok(false);
        }
        let bytes = self.arriving.remove(&from).unwrap_or_default();
        let message = TaggedMessage { from, tag: fragment.tag, dtype: fragment.dtype, bytes };
        let free = self.posted.values_mut().find(|(wanted, got)| got.is_none() && wanted.fits(&message));
        match free {
            Some((_, got)) => *got = Some(message),
            None => self.kept.push_back(message),
        }
        Ok(true)
    }

    /// Whether a receive has its message.
    pub fn is_ready(&self, id: ReceiveId) -> bool {
        self.posted.get(&id).is_some_and(|(_, message)| message.is_some())
    }

    /// Takes the message of a receive, which ends the receive.
    pub fn take(&mut self, id: ReceiveId) -> Option<TaggedMessage> {
        if !self.is_ready(id) {
            return None;
        }
        let message = self.posted.remove(&id).and_then(|(_, message)| message)?;
        if let Some(held) = self.held.get_mut(&message.from) {
            *held = held.saturating_sub(message.bytes.len() + size_of::<TaggedMessage>());
        }
        Some(message)
    }

    /// Cancels a receive. If it has a message already, the next receive that matches gets it.
    pub fn cancel(&mut self, id: ReceiveId) {
        let Some((_, Some(message))) = self.posted.remove(&id) else { return };
        let free = self.posted.values_mut().find(|(wanted, got)| got.is_none() && wanted.fits(&message));
        match free {
            Some((_, got)) => *got = Some(message),
            None => self.kept.push_front(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(mailbox: &mut Mailbox, from: u32, tag: u64, byte: u8) {
        let fragment = Fragment { tag, dtype: DType::U8, last: true, bytes: &[byte] };
        assert_eq!(mailbox.arrive(Rank(from), fragment), Ok(true));
    }

    fn post(mailbox: &mut Mailbox, from: Option<u32>, tag: u64) -> ReceiveId {
        mailbox.post(Wanted { from: from.map(Rank), tag })
    }

    fn taken(mailbox: &mut Mailbox, id: ReceiveId) -> Option<(u32, u8)> {
        mailbox.take(id).map(|message| (message.from.0, message.bytes[0]))
    }

    #[test]
    fn receives_get_messages_by_source_and_tag_in_order() {
        let mut mailbox = Mailbox::default();
        let first = post(&mut mailbox, Some(1), 7);
        arrive(&mut mailbox, 1, 8, 10);
        arrive(&mut mailbox, 2, 7, 20);
        assert_eq!(taken(&mut mailbox, first), None);
        arrive(&mut mailbox, 1, 7, 11);
        arrive(&mut mailbox, 1, 7, 12);
        let second = post(&mut mailbox, None, 7);
        let third = post(&mut mailbox, None, 7);
        assert_eq!(taken(&mut mailbox, first), Some((1, 11)));
        assert_eq!(taken(&mut mailbox, second), Some((2, 20)), "it arrived first");
        assert_eq!(taken(&mut mailbox, third), Some((1, 12)));
        let other = post(&mut mailbox, Some(1), 8);
        assert_eq!(taken(&mut mailbox, other), Some((1, 10)));
        assert!(mailbox.kept.is_empty() && mailbox.posted.is_empty() && mailbox.arriving.is_empty());
    }

    #[test]
    fn fragments_of_two_senders_are_put_together_apart() {
        let mut mailbox = Mailbox::default();
        let (a, b) = (post(&mut mailbox, Some(1), 0), post(&mut mailbox, Some(2), 0));
        for (from, last, bytes) in
            [(1, false, [1, 2]), (2, false, [7, 8]), (1, true, [3, 4]), (2, true, [9, 0])]
        {
            let whole =
                mailbox.arrive(Rank(from), Fragment { tag: 0, dtype: DType::U8, last, bytes: &bytes });
            assert_eq!(whole, Ok(last));
        }
        assert_eq!(mailbox.take(a).unwrap().bytes, [1, 2, 3, 4]);
        assert_eq!(mailbox.take(b).unwrap().bytes, [7, 8, 9, 0]);
    }

    #[test]
    fn a_peer_holds_no_more_than_the_bound_and_has_room_again_after_a_receive() {
        let mut mailbox = Mailbox::default();
        let own = size_of::<TaggedMessage>();
        mailbox.set_bound(2 * (own + 10));
        let send = |mailbox: &mut Mailbox, from: u32, last: bool, len: usize| {
            let bytes = vec![0; len];
            mailbox.arrive(Rank(from), Fragment { tag: 0, dtype: DType::U8, last, bytes: &bytes })
        };
        assert_eq!(send(&mut mailbox, 1, true, 10), Ok(true));
        assert_eq!(send(&mut mailbox, 1, false, 6), Ok(false));
        assert_eq!(send(&mut mailbox, 1, true, 5), Err(Full { held: 2 * own + 21, bound: 2 * own + 20 }));
        assert_eq!(send(&mut mailbox, 2, true, 20), Ok(true), "each peer has its own bound");
        let taken = post(&mut mailbox, Some(1), 0);
        assert_eq!(mailbox.take(taken).unwrap().bytes.len(), 10);
        assert_eq!(send(&mut mailbox, 1, true, 5), Ok(true));
        let none = (0..100).map(|_| send(&mut mailbox, 3, true, 0)).find(Result::is_err);
        assert!(none.is_some(), "messages without bytes are bounded too");
    }

    #[test]
    fn a_receive_that_is_given_up_leaves_its_message_to_the_next() {
        let mut mailbox = Mailbox::default();
        let (late, next) = (post(&mut mailbox, Some(1), 0), post(&mut mailbox, Some(1), 0));
        arrive(&mut mailbox, 1, 0, 5);
        mailbox.cancel(late);
        assert_eq!(taken(&mut mailbox, next), Some((1, 5)));
    }
}
