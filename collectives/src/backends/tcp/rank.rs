//! A rank of a world over TCP: its node, and the operations that a communicator needs.

use super::control;
use super::endpoint::Endpoint;
use super::joining;
use super::messages::Messages;
use super::node::Node;
use super::options::PeerOptions;
use super::peer_connection::PeerConnection;
use crate::backends::real_time::RealTime;
use crate::backends::{Backend, Clock, GroupId, GroupKey, Member, TaskId};
use crate::transport::Connection;
use crate::{Error, Lost, Rank, Result};
use allfold_net::Authenticator;
use allfold_net::handshake::Purpose;
use std::sync::Arc;
use std::time::Duration;

/// A rank of a world over TCP.
pub(crate) struct Tcp {
    pub(super) node: Arc<Node>,
    time: RealTime,
    listening: tokio::task::AbortHandle,
}

impl Tcp {
    /// Connects to all other ranks.
    ///
    /// # Errors
    /// For a rank that does not answer in time, holds another secret, or refuses this rank; for an address that needs a secret.
    pub fn connect(peers: PeerOptions) -> Result<Tcp> {
        let PeerOptions { rank, job, epoch, listener, addresses, host, security, deadlines } = peers;
        let failed = |error: std::io::Error| Error::System(format!("cannot listen: {error}"));
        security.allows(listener.local_addr().map_err(failed)?)?;
        if rank.index() >= addresses.len() {
            let size = addresses.len();
            return Err(Error::Argument(format!("rank {rank} is outside the world: it has {size} ranks")));
        }
        joining::fits(addresses.len() - 1)?;
        let authenticator = Authenticator::new(security, deadlines.handshake)?;
        let node = Arc::new(Node::new(rank, job, epoch, authenticator, deadlines, host, addresses)?);
        let listening = control::accept(&node, listener)?;
        let tcp = Tcp { node: node.clone(), time: RealTime::start(), listening };
        for peer in (0..rank.0).map(Rank) {
            let failed = move |node: &Node, error: Error| node.refused(peer, error);
            control::connect(&node, peer, Purpose::Control, 0, deadlines.start, failed)?;
        }
        node.gather().inspect_err(|error| node.give_up(error))?;
        Ok(tcp)
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.listening.abort();
        self.node.close();
    }
}

/// The number of a smaller group on the wire: FNV-1a of its parent, the operation that made it, and its color. Never 0.
fn wire_of(parent: u64, sequence: u64, color: u32) -> u64 {
    let words = [parent, sequence, u64::from(color)].map(u64::to_le_bytes);
    allfold_sim::fnv1a(words.as_flattened()) | 1
}

impl Backend for Tcp {
    fn clock(&self) -> &dyn Clock {
        &self.time
    }

    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId> {
        let parent = self.node.group(key.parent.0);
        let members = members.iter().map(|member| parent.members[member.index()]).collect();
        let made = self.node.subgroup(wire_of(parent.stream, key.sequence, key.color), members);
        // A rank that has no file descriptors left cannot make the group, so the parent group fails.
        made.map(GroupId).map_err(|error| self.node.fail(&parent, error))
    }

    fn leave(&self, _actor: TaskId, member: Member, operations: u64, cause: Lost) {
        let group = self.node.group(member.group.0);
        self.node.leave(&group, operations, &cause);
        // Messages that were sent still arrive. Then the connection ends, so that a peer does not wait for more.
        if let Some(mut links) = group.take(Purpose::PointToPoint) {
            links.values_mut().for_each(PeerConnection::finish);
            group.put_back(Purpose::PointToPoint, links);
        }
    }

    fn release(&self, member: Member) {
        self.node.release(member.group.0);
    }

    fn survivors(&self, _actor: TaskId, member: Member) -> Result<Vec<Rank>> {
        self.node.survivors(&self.node.group(member.group.0))
    }

    fn abort(&self, _actor: TaskId, member: Member, why: String) {
        let group = self.node.group(member.group.0);
        self.node.fail(&group, Error::Aborted { by: member.rank, why });
    }

    fn messages(self: Arc<Self>, member: Member) -> Option<Messages> {
        let group = self.node.group(member.group.0);
        Some(Messages::new(self.node.clone(), group))
    }

    fn set_deadline(&self, deadline: Duration) -> bool {
        self.node.set_deadline(deadline);
        true
    }

    fn connect(self: Arc<Self>, _actor: TaskId, member: Member) -> Connection {
        let group = self.node.group(member.group.0);
        Connection::by_messages(Endpoint::new(self.node.clone(), group))
    }
}
