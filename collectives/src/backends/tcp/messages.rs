//! Tagged messages between the ranks of a group: sent without waiting, received by source and tag.
//!
//! ```text
//! Messages::send --> control connection of the peer ==> Node --> Mailbox of the group --> Receive::wait
//! ```

use super::frame::{FRAGMENT, FrameHeader, Kind};
use super::group::Group;
use super::mailbox::{PREFIX, ReceiveId, TaggedMessage, Wanted, call};
use super::node::Node;
use crate::backends::codec::Writer;
use crate::contract::deadline::{after, clock};
use crate::contract::interrupt;
use crate::{DType, Error, Rank, Result};
use std::sync::Arc;
use std::time::Duration;

/// A rank's tagged messages in one group: see [`crate::Communicator::messages`]. Any thread may use this handle.
///
/// Messages of one sender with one tag arrive in the order in which they were sent. Tagged messages are not part of the sequence of
/// collectives, and a late message does not fail the group.
#[derive(Clone)]
pub struct Messages {
    node: Arc<Node>,
    group: Arc<Group>,
}

/// A receive that was posted. Dropping it cancels the receive; a message that it already has is given to the next receive that matches.
pub struct Receive {
    messages: Messages,
    id: ReceiveId,
    wanted: Wanted,
    open: bool,
}

impl Messages {
    pub(super) fn new(node: Arc<Node>, group: Arc<Group>) -> Messages {
        Messages { node, group }
    }

    /// Sets the most bytes that are stored of each peer's messages that no receive has taken; 4 GiB unless this is called. The group
    /// fails with [`Error::Protocol`] where a peer sends more.
    pub fn hold_at_most(&self, bytes: usize) {
        self.group.mailbox(|mailbox| mailbox.set_bound(bytes));
    }

    /// Sends a message. Returns immediately: the bytes are copied, and stored until the peer can receive them.
    ///
    /// # Errors
    /// [`Error::Argument`] where `to` is this rank or no rank of the group; the error of the group, if it has failed;
    /// [`Error::PeerLost`] where the peer has left.
    pub fn send(&self, to: Rank, tag: u64, dtype: DType, bytes: &[u8]) -> Result<()> {
        self.is_peer(to)?;
        self.reachable(&[to])?;
        let room = FRAGMENT - PREFIX;
        let count = bytes.len().div_ceil(room).max(1);
        let frames = (0..count).map(|at| {
            let part = &bytes[at * room..bytes.len().min((at + 1) * room)];
            let mut payload = Writer::default();
            payload.word(self.group.stream).word(tag).byte(dtype as u8).byte((at + 1 == count).into());
            payload.0.extend_from_slice(part);
            let header = FrameHeader::control(Kind::Message, self.node.epoch, &payload.0);
            [&header.encode()[..], &payload.0].concat()
        });
        self.node.send_all(self.group.members[to.index()], frames);
        Ok(())
    }

    /// Posts a receive of the next message with this tag from one rank, or from any rank.
    ///
    /// # Errors
    /// [`Error::Argument`] where `from` is this rank or no rank of the group.
    pub fn receive(&self, from: Option<Rank>, tag: u64) -> Result<Receive> {
        from.map_or(Ok(()), |from| self.is_peer(from))?;
        let wanted = Wanted { from, tag };
        let id = self.group.mailbox(|mailbox| mailbox.post(wanted));
        Ok(Receive { messages: self.clone(), id, wanted, open: true })
    }

    fn is_peer(&self, peer: Rank) -> Result<()> {
        let last = self.group.members.len() - 1;
        if peer.index() > last {
            return Err(Error::Argument(format!(
                "rank {peer} is outside the group: its ranks are 0 to {last}"
            )));
        }
        if peer == self.group.me {
            return Err(Error::Argument(format!("rank {peer} cannot send a message to itself")));
        }
        Ok(())
    }

    /// The group's failure, or the loss of all of these peers.
    fn reachable(&self, peers: &[Rank]) -> Result<()> {
        self.group.calls(|calls| match calls.failure() {
            Some(error) => Err(error),
            None if peers.iter().all(|peer| calls.left(*peer).is_some()) => match peers.first() {
                Some(first) => Err(calls.lose(*first, Some(&call()))),
                None => Err(Error::Argument(
                    "this rank is alone in its group: no rank can send it a message".into(),
                )),
            },
            None => Ok(()),
        })
    }
}

impl Receive {
    /// Whether the message has arrived.
    pub fn is_ready(&self) -> bool {
        self.messages.group.mailbox(|mailbox| mailbox.is_ready(self.id))
    }

    /// Waits for the message, at most this long.
    ///
    /// # Errors
    /// [`Error::DeadlineExceeded`]; [`Error::PeerLost`] where the source has left and none of its messages matches; the error
    /// of the group, if it has failed; [`Error::Aborted`] where [`crate::interruptible`] ends the wait.
    pub fn wait(mut self, timeout: Duration) -> Result<TaggedMessage> {
        let Messages { group, .. } = &self.messages;
        let others = || (0..group.members.len() as u32).map(Rank).filter(|rank| *rank != group.me);
        let sources: Vec<Rank> = self.wanted.from.map_or_else(|| others().collect(), |from| vec![from]);
        let due = after(timeout);
        loop {
            let seen = group.mail_count();
            // The loss of peers is checked before the mailbox: a message that a rank sent before it left is in the mailbox by then.
            let reachable = self.messages.reachable(&sources);
            if let Some(message) = group.mailbox(|mailbox| mailbox.take(self.id)) {
                self.open = false;
                return Ok(message);
            }
            reachable?;
            if let Some(why) = interrupt::asked() {
                return Err(Error::Aborted { by: group.me, why });
            }
            let left = due.saturating_duration_since(clock());
            if left.is_zero() {
                let (rank, call) = (group.me, Box::new(call()));
                return Err(Error::DeadlineExceeded {
                    rank,
                    waiting_on: sources,
                    entered: true,
                    call,
                    round: 0,
                    after: timeout,
                });
            }
            group.await_mail(seen, left.min(interrupt::PAUSE));
        }
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        if self.open {
            self.messages.group.mailbox(|mailbox| mailbox.cancel(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Communicator, Lost, World};

    fn bytes(rank: u32, len: usize) -> Vec<u8> {
        (0..len).map(|at| (at as u32 * 7 + rank) as u8).collect()
    }

    #[test]
    fn messages_of_any_length_come_whole_by_source_and_tag() {
        World::tcp(3)
            .run(|comm: Communicator| -> Result<()> {
                let messages = comm.messages()?;
                let me = comm.rank().0;
                let others: Vec<Rank> = (0..3).map(Rank).filter(|rank| rank.0 != me).collect();
                for len in [0, 1, FRAGMENT - PREFIX, FRAGMENT, 3_000_000] {
                    // All ranks post their receives first, so that no order of sends can block.
                    let posted: Vec<Receive> =
                        others.iter().map(|from| messages.receive(Some(*from), 9)).collect::<Result<_>>()?;
                    for to in &others {
                        messages.send(*to, 8, DType::U8, &[me as u8])?;
                        messages.send(*to, 9, DType::F16, &bytes(me, len))?;
                    }
                    for (receive, from) in posted.into_iter().zip(&others) {
                        let got = receive.wait(Duration::from_secs(20))?;
                        assert_eq!((got.from, got.dtype), (*from, DType::F16));
                        assert!(got.bytes == bytes(from.0, len));
                    }
                    let mut sources = Vec::new();
                    for _ in &others {
                        sources.push(messages.receive(None, 8)?.wait(Duration::from_secs(20))?.from);
                    }
                    sources.sort();
                    assert_eq!(sources, others);
                    comm.barrier()?;
                }
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn a_missing_message_is_reported_with_its_cause() {
        World::tcp(2)
            .run(|comm: Communicator| -> Result<()> {
                let messages = comm.messages()?;
                if comm.rank() == Rank(1) {
                    messages.send(Rank(0), 1, DType::U8, &[1])?;
                    // Rank 1 leaves once rank 0 has seen a deadline pass.
                    messages.receive(Some(Rank(0)), 2)?.wait(Duration::from_secs(20))?;
                    return Ok(());
                }
                let late = messages.receive(Some(Rank(1)), 5)?.wait(Duration::from_millis(20)).unwrap_err();
                assert!(
                    matches!(&late, Error::DeadlineExceeded { waiting_on, .. } if *waiting_on == [Rank(1)]),
                    "{late}"
                );
                messages.send(Rank(1), 2, DType::U8, &[])?;
                let lost = messages.receive(None, 5)?.wait(Duration::from_secs(20)).unwrap_err();
                let Error::PeerLost { rank: Rank(1), cause: Lost::ReturnedEarly { .. }, .. } = lost else {
                    panic!("{lost}");
                };
                // A message that rank 1 sent before it left can still be received.
                assert_eq!(messages.receive(Some(Rank(1)), 1)?.wait(Duration::from_secs(20))?.bytes, [1]);
                assert!(matches!(messages.send(Rank(0), 0, DType::U8, &[]), Err(Error::Argument(_))));
                assert!(matches!(messages.receive(Some(Rank(2)), 0).map(drop), Err(Error::Argument(_))));
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn a_rank_that_sends_beyond_the_bound_fails_the_group_by_name() {
        let outcome = World::tcp(2).run_each(|comm: Communicator| -> Result<()> {
            let messages = comm.messages()?;
            if comm.rank() == Rank(1) {
                messages.receive(Some(Rank(0)), 0)?.wait(Duration::from_secs(20))?;
                for _ in 0..20 {
                    messages.send(Rank(0), 1, DType::U8, &[0; 100_000])?;
                }
                return comm.barrier();
            }
            messages.hold_at_most(1_000_000);
            messages.send(Rank(1), 0, DType::U8, &[])?;
            comm.barrier()
        });
        for rank in outcome.unwrap().ranks {
            let error = rank.unwrap_err().to_string();
            assert!(error.starts_with("rank 0 got a frame from rank 1 that does not fit"), "{error}");
            assert!(error.ends_with("at most 1000000 are held"), "{error}");
        }
    }

    #[test]
    fn a_wait_ends_when_its_own_program_asks() {
        for world in [World::shm(2), World::tcp(2)] {
            let outcome = world.run_each(|comm: Communicator| -> Result<()> {
                let messages = comm.messages()?;
                if comm.rank() == Rank(1) {
                    // Rank 1 never calls the barrier, and its receive ends with an error that names the rank that failed the
                    // group.
                    return messages.receive(Some(Rank(0)), 0)?.wait(Duration::from_secs(60)).map(drop);
                }
                let asked = || Some("interrupted".to_string());
                let wait = || messages.receive(Some(Rank(1)), 0)?.wait(Duration::from_secs(60));
                let error = interrupt::interruptible(asked, wait).unwrap_err();
                assert_eq!(error.to_string(), "aborted by rank 0: interrupted");
                interrupt::interruptible(asked, || comm.barrier())
            });
            for rank in outcome.unwrap().ranks {
                assert_eq!(rank.unwrap_err().to_string(), "aborted by rank 0: interrupted");
            }
        }
    }
}
