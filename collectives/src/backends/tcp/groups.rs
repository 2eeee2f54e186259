//! The table of a rank's groups: its own, those that peers have made before this rank, and those that this rank has ended while peers may
//! still send frames about them.
//!
//! ```text
//!               keep            make                 end                 all members have sent `Bye` or are lost
//!  (unknown) ----------> early ------> made: delivered ------> ended: dropped ------> (forgotten)
//! ```
//!
//! Numbers on the wire are never used twice, and a member's `Bye` is its last frame about a group. So a frame with an unknown number is
//! always about a group that this rank has yet to make.

use super::frame::Kind;
use super::group::Group;
use crate::Rank;
use allfold_net::handshake::Purpose;
use allfold_net::peer_stream::PeerStream;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How many messages are retained about groups that peers have made and this rank has not yet, and how many more for each rank of the
/// world: all other ranks may split while this rank sleeps. The oldest messages are dropped first.
const EARLY: usize = 256;
const EARLY_OF_EACH: usize = 8;

/// An event of a peer for a group.
pub(super) enum News {
    Said(Kind, Vec<u8>),
    PeerStream(Purpose, PeerStream),
}

pub(super) struct Groups {
    made: BTreeMap<u32, Arc<Group>>,
    next: u32,
    /// For each group that was made, by its number on the wire: the world ranks that may still send messages about it.
    senders: BTreeMap<u64, BTreeSet<Rank>>,
    /// Messages about groups that this rank has not made yet: the group, the sender, the message.
    early: VecDeque<(u64, Rank, News)>,
    /// How many messages `early` holds at most.
    capacity: usize,
}

impl Groups {
    pub fn new(world: Group) -> Groups {
        let capacity = EARLY + EARLY_OF_EACH * world.members.len();
        let made = [(0, Arc::new(world))].into();
        Groups { made, next: 1, senders: BTreeMap::new(), early: VecDeque::new(), capacity }
    }

    /// A group that this rank is a member of.
    pub fn get(&self, id: u32) -> Arc<Group> {
        self.made[&id].clone()
    }

    pub fn all(&self) -> Vec<Arc<Group>> {
        self.made.values().cloned().collect()
    }

    fn find(&self, stream: u64) -> Option<&Arc<Group>> {
        self.made.values().find(|group| group.stream == stream)
    }

    pub fn is_member(&self, stream: u64) -> bool {
        self.find(stream).is_some()
    }

    /// Adds a group about which these peers may send messages. Returns its number and the messages that have arrived for it.
    pub fn make(&mut self, group: Arc<Group>, senders: BTreeSet<Rank>) -> (u32, Vec<(Rank, News)>) {
        let (stream, id) = (group.stream, self.next);
        self.next += 1;
        self.made.insert(id, group);
        if !senders.is_empty() {
            self.senders.insert(stream, senders);
        }
        let (mine, others): (VecDeque<_>, _) =
            std::mem::take(&mut self.early).into_iter().partition(|(to, ..)| *to == stream);
        self.early = others;
        (id, mine.into_iter().map(|(_, from, news)| (from, news)).collect())
    }

    /// The group that a message is for, with the message. `None` if the message was stored for a group that is still to be made, or
    /// dropped because the group has ended.
    pub fn deliver(&mut self, stream: u64, from: Rank, news: News) -> Option<(Arc<Group>, News)> {
        if let Some(group) = self.find(stream) {
            return Some((group.clone(), news));
        }
        match (self.senders.contains_key(&stream), news) {
            (true, News::Said(Kind::Bye, _)) => self.end_sender(Some(stream), from),
            (true, _) => {}
            (false, news) => {
                if self.early.len() == self.capacity {
                    self.early.pop_front();
                }
                self.early.push_back((stream, from, news));
            }
        }
        None
    }

    /// Ends a group for this rank. The world is never removed.
    pub fn end(&mut self, id: u32) -> Option<Arc<Group>> {
        if id == 0 { None } else { self.made.remove(&id) }
    }

    /// Records that a peer sends no more messages about a group; `None`: about any group.
    pub fn end_sender(&mut self, stream: Option<u64>, peer: Rank) {
        self.senders.retain(|of, senders| {
            if stream.is_none_or(|stream| stream == *of) {
                senders.remove(&peer);
            }
            !senders.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Rank = Rank(0);
    const OTHERS: [Rank; 2] = [Rank(1), Rank(2)];

    fn group(stream: u64) -> Group {
        Group::new(stream, [ME].into_iter().chain(OTHERS).collect(), ME).unwrap()
    }

    fn said(kind: Kind, byte: u8) -> News {
        News::Said(kind, vec![byte])
    }

    #[test]
    fn news_is_kept_until_its_group_is_made_and_dropped_once_it_is_over() {
        let mut groups = Groups::new(group(0));
        for byte in 0..3 {
            assert!(groups.deliver(7, Rank(1), said(Kind::Enter, byte)).is_none());
        }
        assert!(groups.deliver(9, Rank(1), said(Kind::Enter, 9)).is_none());
        let (id, early) = groups.make(Arc::new(group(7)), OTHERS.into());
        let bytes = early.iter().map(|(_, news)| match news {
            News::Said(_, bytes) => bytes[0],
            News::PeerStream(..) => panic!("nobody has connected"),
        });
        assert_eq!(bytes.collect::<Vec<_>>(), [0, 1, 2]);
        assert!(groups.deliver(7, Rank(2), said(Kind::Leave, 0)).is_some());

        assert!(groups.end(id).is_some() && !groups.is_member(7));
        assert!(groups.deliver(7, Rank(2), said(Kind::Fail, 0)).is_none());
        assert_eq!(groups.early.len(), 1, "of the group that is still to be made");
        assert!(groups.end(0).is_none() && groups.is_member(0), "the world stays");
    }

    #[test]
    fn a_group_is_forgotten_when_nobody_speaks_of_it_any_more() {
        let mut groups = Groups::new(group(0));
        for stream in 1..1000 {
            let (id, _) = groups.make(Arc::new(group(stream)), OTHERS.into());
            // One member ends its part of the group before this rank ends the group, and one member after.
            groups.end_sender(Some(stream), Rank(1));
            groups.end(id);
            assert_eq!(groups.senders.len(), 1);
            groups.deliver(stream, Rank(2), said(Kind::Bye, 0));
            assert!(groups.senders.is_empty() && groups.early.is_empty());
        }
        // Messages are not stored for groups whose members are lost, whether the loss came before or after the group was made.
        let (id, _) = groups.make(Arc::new(group(1000)), OTHERS.into());
        groups.end(id);
        OTHERS.into_iter().for_each(|rank| groups.end_sender(None, rank));
        groups.make(Arc::new(group(1001)), BTreeSet::new());
        assert!(groups.senders.is_empty());
    }

    #[test]
    fn stored_messages_are_bounded_and_the_newest_stay() {
        let mut groups = Groups::new(group(0));
        let capacity = EARLY + EARLY_OF_EACH * 3;
        for stream in 1..=2 * capacity as u64 {
            groups.deliver(stream, Rank(1), said(Kind::Leave, 0));
        }
        assert_eq!(groups.early.len(), capacity);
        assert_eq!(groups.make(Arc::new(group(2 * capacity as u64)), OTHERS.into()).1.len(), 1);
        assert_eq!(groups.make(Arc::new(group(1)), OTHERS.into()).1.len(), 0);
    }
}
