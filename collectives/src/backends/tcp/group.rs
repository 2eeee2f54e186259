//! The state of a group on one of its ranks.

use super::agreement::Agreement;
use super::mailbox::Mailbox;
use super::peer_connection::PeerConnection;
use super::waker::Waker;
use crate::contract::RemoteCallTable;
use crate::{Error, Rank, Result};
use allfold_base::lock;
use allfold_net::handshake::Purpose;
use allfold_net::peer_stream::PeerStream;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The connections of a group, by the peer's rank in it.
pub(super) type Links = BTreeMap<Rank, PeerConnection>;

pub(super) struct Group {
    /// The number of the group on the wire; 0 for the world.
    pub stream: u64,
    /// The world ranks of the members, in order of their ranks in the group.
    pub members: Vec<Rank>,
    /// This rank's number in the group.
    pub me: Rank,
    pub waker: Waker,
    calls: Mutex<RemoteCallTable>,
    /// Whether the table holds an error.
    failed: AtomicBool,
    agreement: Mutex<Agreement>,
    mailbox: Mutex<Mailbox>,
    /// The number of events so far that a waiting receive must check.
    mail: Mutex<u64>,
    mailed: Condvar,
    /// The connections for collectives and those for point-to-point messages. An operation takes the connections and returns them.
    collective: Mutex<Option<Links>>,
    point_to_point: Mutex<Option<Links>>,
    /// Connections that were made and are not in use yet, by purpose and peer.
    arrived: Mutex<BTreeMap<(u8, Rank), PeerStream>>,
}

impl Group {
    pub fn new(stream: u64, members: Vec<Rank>, me: Rank) -> Result<Group> {
        let calls = Mutex::new(RemoteCallTable::new(me, members.len()));
        let agreement = Mutex::new(Agreement::new(me, members.len() as u32));
        Ok(Group {
            stream,
            members,
            me,
            waker: Waker::new()?,
            calls,
            failed: AtomicBool::new(false),
            agreement,
            mailbox: Mutex::default(),
            mail: Mutex::default(),
            mailed: Condvar::new(),
            collective: Mutex::new(Some(Links::new())),
            point_to_point: Mutex::new(Some(Links::new())),
            arrived: Mutex::default(),
        })
    }

    /// The group's number, folded to the 32 bits of a header.
    pub fn comm(&self) -> u32 {
        (self.stream >> 32) as u32 ^ self.stream as u32
    }

    /// The rank in this group of the rank with this number in the world.
    pub fn rank_of(&self, world: Rank) -> Option<Rank> {
        self.members.iter().position(|member| *member == world).map(|at| Rank(at as u32))
    }

    pub fn calls<R>(&self, look: impl FnOnce(&mut RemoteCallTable) -> R) -> R {
        let mut calls = lock(&self.calls);
        let result = look(&mut calls);
        if calls.cause().is_some() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    /// The group's first error. Without an error this costs one atomic load.
    pub fn failure(&self) -> Option<Error> {
        self.failed.load(Ordering::Acquire).then(|| self.calls(|calls| calls.failure())).flatten()
    }

    /// Wakes every thread that waits for an event of the group.
    pub fn ring(&self) {
        *lock(&self.mail) += 1;
        self.mailed.notify_all();
        self.waker.ring();
    }

    /// The tagged messages of this rank.
    pub fn mailbox<R>(&self, look: impl FnOnce(&mut Mailbox) -> R) -> R {
        look(&mut lock(&self.mailbox))
    }

    /// The number of events so far that a waiting receive must check.
    pub fn mail_count(&self) -> u64 {
        *lock(&self.mail)
    }

    /// Waits until there are more events than `seen`, or for `timeout`.
    pub fn await_mail(&self, seen: u64, timeout: Duration) {
        let count = lock(&self.mail);
        let wait = self.mailed.wait_timeout_while(count, timeout, |count| *count == seen);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    /// The state of the agreement about the surviving ranks.
    pub fn agreement<R>(&self, look: impl FnOnce(&mut Agreement) -> R) -> R {
        look(&mut lock(&self.agreement))
    }

    /// Takes the connections of a purpose; `None` while another operation uses them.
    pub fn take(&self, purpose: Purpose) -> Option<Links> {
        lock(self.place(purpose)).take()
    }

    pub fn put_back(&self, purpose: Purpose, links: Links) {
        *lock(self.place(purpose)) = Some(links);
    }

    fn place(&self, purpose: Purpose) -> &Mutex<Option<Links>> {
        if purpose == Purpose::PointToPoint { &self.point_to_point } else { &self.collective }
    }

    /// Stores a connection that was made. It replaces an earlier connection that is not in use yet.
    pub fn arrive(&self, purpose: Purpose, from: Rank, stream: PeerStream) {
        lock(&self.arrived).insert((purpose as u8, from), stream);
        self.waker.ring();
    }

    pub fn arrived(&self, purpose: Purpose, from: Rank) -> Option<PeerStream> {
        lock(&self.arrived).remove(&(purpose as u8, from))
    }

    /// Takes all connections of the group, which is no longer used.
    pub fn wires(&self) -> Vec<(Rank, PeerStream)> {
        let links =
            [Purpose::Data, Purpose::PointToPoint].into_iter().filter_map(|purpose| self.take(purpose));
        let attached = links.flatten().filter_map(|(peer, link)| Some((peer, link.into_peer_stream()?)));
        let arrived = std::mem::take(&mut *lock(&self.arrived));
        attached.chain(arrived.into_iter().map(|((_, peer), stream)| (peer, stream))).collect()
    }
}
