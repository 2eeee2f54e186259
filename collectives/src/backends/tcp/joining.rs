//! The start of a rank: the control connections to all other ranks, or the reason why they cannot be made.

use super::fault::not_joined;
use super::node::{Node, Peer};
use crate::{Error, Rank, Result};
use allfold_base::lock;
use allfold_net::accept_queue;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Descriptors that every rank's process has beside its connections: three standard streams, three of the runtime, the listener and the
/// waker.
const OWN: u64 = 8;

/// Refuses a rank whose process may not open a descriptor for each of the `others`: it would wait until its time to connect is over.
pub(super) fn fits(others: usize) -> Result<()> {
    let (need, limit) = (OWN + others as u64, accept_queue::descriptors());
    match need <= limit {
        true => Ok(()),
        false => Err(Error::System(format!(
            "this rank needs {need} descriptors to be connected to all others, and its process may open {limit}: raise the limit by \
             `ulimit -n`"
        ))),
    }
}

/// Held while this rank connects its control connection to a peer.
pub(super) struct Connecting<'a>(&'a Node, Rank);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        lock(&self.0.peers)[self.1.index()].connecting = false;
        self.0.changed.notify_all();
    }
}

impl Node {
    /// Records that this rank can never connect to a peer.
    pub fn refused(&self, peer: Rank, error: Error) {
        lock(&self.peers)[peer.index()].refused.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Marks that this rank connects its control connection to a peer, until the result is dropped.
    pub fn connecting(&self, peer: Rank) -> Connecting<'_> {
        lock(&self.peers)[peer.index()].connecting = true;
        Connecting(self, peer)
    }

    /// Adds to a connection's failure that handshakes failed over the secret: the peer may have ended for this reason.
    pub fn suspects(&self, error: Error) -> Error {
        match (error, self.distrusted.load(Ordering::Relaxed)) {
            (Error::Refused { peer, why }, times @ 1..) => Error::Refused {
                peer,
                why: format!(
                    "{why}; {times} handshakes of this rank failed over the secret: all ranks of a job need the same one"
                ),
            },
            (error, _) => error,
        }
    }

    /// This rank cannot join: it sends the reason to the ranks that it has connections to. It waits for connections that are being made,
    /// because to the peer a connection that ends without a message looks like a process that died.
    pub fn give_up(&self, error: &Error) {
        self.closing.store(true, Ordering::Release);
        let connects = |peers: &mut Vec<Peer>| peers.iter().any(|peer| peer.connecting);
        drop(self.changed.wait_timeout_while(lock(&self.peers), self.drain_timeout(), connects));
        self.fail(&self.group(0), Error::Aborted { by: self.rank, why: not_joined(self.rank, error) });
    }

    /// Waits until there is a control connection to every other rank.
    pub fn gather(&self) -> Result<()> {
        self.all_connect().map_err(|error| match self.starved.load(Ordering::Relaxed) {
            true => Error::System(format!(
                "{error}; this process has no descriptors left for connections, its limit is {}: raise it by `ulimit -n`",
                accept_queue::descriptors()
            )),
            false => error,
        })
    }

    fn all_connect(&self) -> Result<()> {
        let mut left = self.deadlines.start;
        let world = self.group(0);
        let mut peers = lock(&self.peers);
        loop {
            if let Some(error) = peers.iter().find_map(|peer| peer.refused.clone()) {
                return Err(error);
            }
            // Other ranks may have begun their operations already, and may have failed.
            let lost = peers.iter().zip(0..).find_map(|(peer, rank)| {
                let cause = peer.lost.clone()?;
                Some(Error::lost(Rank(rank), cause, None))
            });
            if let Some(error) = world.calls(|calls| calls.failure()).or(lost) {
                return Err(error);
            }
            let absent = |(peer, rank): (&Peer, u32)| {
                (peer.outbox.is_none() && Rank(rank) != self.rank).then_some(Rank(rank))
            };
            let missing: Vec<Rank> = peers.iter().zip(0..).filter_map(absent).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if left.is_zero() {
                return Err(Error::Missing { missing, after: self.deadlines.start });
            }
            let timeout = left.min(Duration::from_millis(100));
            let (guard, timed) =
                self.changed.wait_timeout(peers, timeout).unwrap_or_else(std::sync::PoisonError::into_inner);
            peers = guard;
            // Only waits that time out are counted: a new connection gives the other ranks up to 100 ms more.
            if timed.timed_out() {
                left = left.saturating_sub(timeout);
            }
        }
    }
}
