//! One group of ranks as one of them sees it.

use super::agreement::Agreement;
use super::peer_connection::PeerConnection;
use super::waker::Waker;
use crate::contract::RemoteLedger;
use crate::{Error, Rank, Result};
use allfold_base::lock;
use allfold_net::handshake::Purpose;
use allfold_net::peer_stream::PeerStream;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Links of a group, by the peer's rank in it.
pub(super) type Links = BTreeMap<Rank, PeerConnection>;

pub(super) struct Group {
    /// The group's number on the wire; 0: the world.
    pub stream: u64,
    /// World ranks, in order of the group's.
    pub members: Vec<Rank>,
    /// This rank's number in the group.
    pub me: Rank,
    pub waker: Waker,
    ledger: Mutex<RemoteLedger>,
    /// Whether there is an error in the ledger.
    failed: AtomicBool,
    agreement: Mutex<Agreement>,
    /// The connections for collectives and those for point-to-point messages. An operation takes them and puts them back.
    collective: Mutex<Option<Links>>,
    letters: Mutex<Option<Links>>,
    /// Connections that are made and not attached to a link yet.
    arrived: Mutex<BTreeMap<(u8, Rank), PeerStream>>,
}

impl Group {
    pub fn new(stream: u64, members: Vec<Rank>, me: Rank) -> Result<Group> {
        let ledger = Mutex::new(RemoteLedger::new(me, members.len()));
        let agreement = Mutex::new(Agreement::new(me, members.len() as u32));
        Ok(Group {
            stream,
            members,
            me,
            waker: Waker::new()?,
            ledger,
            failed: AtomicBool::new(false),
            agreement,
            collective: Mutex::new(Some(Links::new())),
            letters: Mutex::new(Some(Links::new())),
            arrived: Mutex::default(),
        })
    }

    /// The group's number folded to the 32 bits that a header has for it.
    pub fn comm(&self) -> u32 {
        (self.stream >> 32) as u32 ^ self.stream as u32
    }

    /// A world rank's rank here.
    pub fn rank_of(&self, world: Rank) -> Option<Rank> {
        self.members.iter().position(|member| *member == world).map(|at| Rank(at as u32))
    }

    pub fn ledger<R>(&self, look: impl FnOnce(&mut RemoteLedger) -> R) -> R {
        let mut ledger = lock(&self.ledger);
        let result = look(&mut ledger);
        if ledger.cause().is_some() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    /// The group's first error. Costs nothing while there is none.
    pub fn failure(&self) -> Option<Error> {
        self.failed.load(Ordering::Acquire).then(|| self.ledger(|ledger| ledger.failure())).flatten()
    }

    /// The state of the agreement about the surviving ranks.
    pub fn agreement<R>(&self, look: impl FnOnce(&mut Agreement) -> R) -> R {
        look(&mut lock(&self.agreement))
    }

    /// Takes the connections of a purpose. `None`: another operation is using them.
    pub fn take(&self, purpose: Purpose) -> Option<Links> {
        lock(self.place(purpose)).take()
    }

    pub fn put_back(&self, purpose: Purpose, links: Links) {
        *lock(self.place(purpose)) = Some(links);
    }

    fn place(&self, purpose: Purpose) -> &Mutex<Option<Links>> {
        if purpose == Purpose::PointToPoint { &self.letters } else { &self.collective }
    }

    /// A connection is there; it takes the place of an earlier one that is not attached yet.
    pub fn arrive(&self, purpose: Purpose, from: Rank, stream: PeerStream) {
        lock(&self.arrived).insert((purpose as u8, from), stream);
        self.waker.ring();
    }

    pub fn arrived(&self, purpose: Purpose, from: Rank) -> Option<PeerStream> {
        lock(&self.arrived).remove(&(purpose as u8, from))
    }

    /// All connections of the group, which is no longer used.
    pub fn wires(&self) -> Vec<(Rank, PeerStream)> {
        let links =
            [Purpose::Data, Purpose::PointToPoint].into_iter().filter_map(|purpose| self.take(purpose));
        let attached = links.flatten().filter_map(|(peer, link)| Some((peer, link.into_peer_stream()?)));
        let arrived = std::mem::take(&mut *lock(&self.arrived));
        attached.chain(arrived.into_iter().map(|((_, peer), stream)| (peer, stream))).collect()
    }
}
