//! Ranks as processes that talk over TCP, on one host or many.
//!
//! ```text
//!             rank's own thread                            runtime of the process
//! Communicator -- Endpoint -- Link per peer == data ==>    accept, connect, handshake, TLS
//!                    |            (frames: frame.rs)        control task per peer == heartbeats, announcements,
//!                 Group: RemoteLedger, Bell <--------------------------------------------- failures, departures ==>
//! ```
//!
//! Every connection begins with a handshake under the job's secret ([`allfold_net::handshake`]), then carries frames of 64
//! bytes and what they announce (`frame`); between ranks of one host those go through memory ([`allfold_net::beside`]).
//! Control connections are made between all ranks at the start; data connections when two ranks of a group first need
//! one. The thread that calls a collective moves its bytes itself, straight between the kernel and the caller's buffer.

mod agreement;
mod bell;
mod codec;
mod control;
mod endpoint;
mod frame;
mod group;
mod groups;
mod link;
mod local;
mod node;
mod options;
mod outbox;
mod proxy;

pub use crate::contract::Fingerprint;
pub(crate) use allfold_net::random;
pub use allfold_net::{
    Claims, Door, Host, Invitation, Purpose, Refusal, Secret, Secured, Security, Stranger, Verdict, duplex,
};
pub use frame::{FRAGMENT, HEADER, Header, Kind};
pub use options::{Deadlines, Peers};
pub use proxy::{Action, Judge, Passing, Proxy, Rules};

#[cfg(feature = "mpi")]
pub(super) use codec::{Reader, Writer};
pub(crate) use control::runtime;
#[cfg(feature = "mpi")]
pub(super) use frame::CONTROL;
pub(crate) use local::Local;

use super::real_time::RealTime;
use super::{ActorId, Backend, Clock, GroupId, GroupKey, Member};
use crate::transport::Connection;
use crate::{Error, Lost, Rank, Result};
use allfold_net::handshake;
use endpoint::Endpoint;
use node::Node;
use std::sync::Arc;

/// One rank of a world that talks over TCP.
pub(crate) struct Tcp {
    node: Arc<Node>,
    time: RealTime,
    listening: tokio::task::AbortHandle,
}

impl Tcp {
    /// Connects to all other ranks.
    ///
    /// # Errors
    /// A rank that does not answer in time, holds another secret, or refuses this one; an address that needs a secret.
    pub fn connect(peers: Peers) -> Result<Tcp> {
        let Peers { rank, job, epoch, listener, addresses, host, security, deadlines } = peers;
        let failed = |error: std::io::Error| Error::System(format!("cannot listen: {error}"));
        security.allows(listener.local_addr().map_err(failed)?)?;
        if rank.index() >= addresses.len() {
            let size = addresses.len();
            return Err(Error::Argument(format!("rank {rank} is outside the world: it has {size} ranks")));
        }
        let door = Door::new(security, deadlines.handshake)?;
        let node = Arc::new(Node::new(rank, job, epoch, door, deadlines, host, addresses)?);
        let listening = control::accept(&node, listener)?;
        let tcp = Tcp { node: node.clone(), time: RealTime::start(), listening };
        for peer in (0..rank.0).map(Rank) {
            let failed = move |node: &Node, error: Error| node.refused(peer, error);
            control::connect(&node, peer, Purpose::Control, 0, deadlines.start, failed)?;
        }
        node.gather()?;
        Ok(tcp)
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.listening.abort();
        self.node.close();
    }
}

/// Reads bytes as everything that a stranger or a peer can send, and drops what came of it: for fuzzers. It may refuse
/// them; it never panics, hangs, or allocates by what they say.
pub fn read_anything(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk() {
        // A fuzzer guesses no checksum: the same header with the right one gets further.
        for header in [*header, frame::sealed(*header)] {
            if let Ok(header) = Header::decode(&header) {
                let _ = header.fingerprint.call(header.sequence, "");
            }
        }
    }
    let _ = codec::Reader { rest: bytes, known: "" }.error();
    let _ = codec::Reader { rest: bytes, known: "" }.lost();
    let secret = Security::TrustedFabric(Secret::new([1; Secret::BYTES]));
    let opening = handshake::opening(&secret, &[0; 32], &[0; 32]);
    if let Some(hello) = bytes.first_chunk() {
        let _ = handshake::read_opening(hello, &secret);
    }
    if let Some(proof) = bytes.first_chunk() {
        let _ = handshake::Acceptor::new(&secret, &opening, &opening).verify(proof);
    }
}

/// The number of a smaller group on the wire: FNV-1a of what makes it that group. Never 0.
fn wire_of(parent: u64, sequence: u64, color: u32) -> u64 {
    let words = [parent, sequence, u64::from(color)].map(u64::to_le_bytes);
    allfold_sim::fnv1a(words.as_flattened()) | 1
}

impl Backend for Tcp {
    fn main(&self, _world: Rank) -> ActorId {
        ActorId(0)
    }

    fn spawn(&self, parent: ActorId) -> ActorId {
        parent
    }

    fn retire(&self, _actor: ActorId) {}

    fn clock(&self) -> &dyn Clock {
        &self.time
    }

    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId> {
        let parent = self.node.group(key.parent.0);
        let members = members.iter().map(|member| parent.members[member.index()]).collect();
        let made = self.node.subgroup(wire_of(parent.wire, key.sequence, key.color), members);
        // Without descriptors there is no group, and the others are told.
        made.map(GroupId).map_err(|error| self.node.fail(&parent, error))
    }

    fn leave(&self, _actor: ActorId, member: Member, operations: u64, cause: Lost) {
        let group = self.node.group(member.group.0);
        self.node.leave(&group, operations, &cause);
        // What was sent still arrives; a peer that waits for more learns that there is none.
        if let Some(mut links) = group.take(Purpose::Letters) {
            links.values_mut().for_each(link::Link::finish);
            group.put_back(Purpose::Letters, links);
        }
    }

    fn release(&self, member: Member) {
        self.node.release(member.group.0);
    }

    fn survivors(&self, _actor: ActorId, member: Member) -> Result<Vec<Rank>> {
        self.node.survivors(&self.node.group(member.group.0))
    }

    fn abort(&self, _actor: ActorId, member: Member, why: String) {
        let group = self.node.group(member.group.0);
        self.node.fail(&group, Error::Aborted { by: member.rank, why });
    }

    fn connect(self: Arc<Self>, _actor: ActorId, member: Member) -> Connection {
        let group = self.node.group(member.group.0);
        Connection::by_messages(Endpoint::new(self.node.clone(), group))
    }
}
