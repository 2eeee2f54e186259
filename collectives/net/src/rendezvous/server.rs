//! The server of a rendezvous: accepts callers, compares their settings of the world, and answers all of them at once.

use super::failure::{MISSING, NUMBERS, RendezvousFailure, and};
use super::messages::{HELLO, Hello, PeerKind, encode_answer, encode_table};
use super::{Peer, RendezvousTimeouts, Table};
use crate::Rank;
use crate::accept_queue::{self, AcceptQueue, PENDING};
use crate::running_time::{after, sleep_until, timeout};
use crate::{AuthenticatedStream, Authenticator, HandshakeAnswer, Purpose};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// A caller that has identified itself by its first message.
pub struct Caller {
    /// The caller's first message.
    pub hello: Hello,
    /// The caller's address.
    pub from: IpAddr,
    /// The connection.
    pub stream: AuthenticatedStream,
}

/// The connection of a server to the launcher that runs it.
pub struct Launching {
    /// Receives the calls of launchers, and reports to launchers.
    pub callers: mpsc::Sender<Caller>,
    /// The ranks of the current start whose processes have exited with 0. They join no later world of this start.
    pub exited: watch::Receiver<BTreeSet<Rank>>,
}

/// A listening port that is reserved for the rendezvous of ranks.
pub struct Server {
    listener: std::net::TcpListener,
    /// How many callers that have not identified themselves may be connected at a time.
    most: usize,
    /// Told which ranks a world waits for, if it waits for longer than [`SILENT`].
    say: Box<dyn Fn(&str) + Send + Sync>,
}

/// How long a world waits for ranks before the server says for which.
const SILENT: Duration = Duration::from_secs(2);

impl Server {
    /// Binds the address; port 0 means any free port.
    ///
    /// # Errors
    /// [`RendezvousFailure::PortInUse`], or an address that does not belong to this host.
    pub fn bind(address: SocketAddr) -> Result<Server, RendezvousFailure> {
        let listener = std::net::TcpListener::bind(address).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => RendezvousFailure::PortInUse,
            _ => RendezvousFailure::System(format!("{address}: {error}")),
        })?;
        listener.set_nonblocking(true).map_err(|error| RendezvousFailure::System(error.to_string()))?;
        Ok(Server { listener, most: PENDING, say: Box::new(|_| {}) })
    }

    /// This server, with a function for the line that says which ranks a world waits for.
    pub fn saying(self, say: impl Fn(&str) + Send + Sync + 'static) -> Server {
        Server { say: Box::new(say), ..self }
    }

    /// This server, with this limit on callers that have not identified themselves.
    #[cfg(test)]
    pub(super) fn hearing(self, most: usize) -> Server {
        Server { most, ..self }
    }

    /// The server's address.
    ///
    /// # Errors
    /// The system does not return the address.
    pub fn address(&self) -> Result<SocketAddr, RendezvousFailure> {
        self.listener.local_addr().map_err(|error| RendezvousFailure::System(error.to_string()))
    }

    /// Serves worlds one after the other, each of a later epoch, until the future is dropped. Without `launcher` the calls of launchers,
    /// and reports to launchers, are dropped. Needs a tokio runtime.
    ///
    /// # Errors
    /// The runtime cannot use the socket.
    pub async fn serve(
        self,
        authenticator: Authenticator,
        timeout: RendezvousTimeouts,
        launcher: Option<Launching>,
    ) -> Result<(), RendezvousFailure> {
        self.gather(authenticator, timeout, launcher, false).await
    }

    async fn gather(
        self,
        authenticator: Authenticator,
        timeout: RendezvousTimeouts,
        launcher: Option<Launching>,
        once: bool,
    ) -> Result<(), RendezvousFailure> {
        let listener = TcpListener::from_std(self.listener)
            .map_err(|error| RendezvousFailure::System(error.to_string()))?;
        let (send, mut callers) = mpsc::channel(self.most);
        let starved = Arc::<AtomicBool>::default();
        let arrivals = AcceptQueue::at(listener, self.most, starved.clone());
        let authenticator = tokio::spawn(admit(arrivals, authenticator, timeout.handshake, send));
        let (agents, mut exited) = match launcher {
            Some(Launching { callers, exited }) => (Some(callers), exited),
            None => (None, watch::channel(BTreeSet::new()).1),
        };
        let mut world = World::default();
        while !(once && world.is_over()) {
            tokio::select! {
                caller = callers.recv() => match caller {
                    Some(caller) if caller.hello.kind != PeerKind::Rank => {
                        if let Some(agents) = &agents {
                            // If the launcher no longer listens, it has ended, and its callers end with it.
                            let _ = agents.send(caller).await;
                        }
                    }
                    Some(caller) => world.take(caller, timeout).await,
                    None => break,
                },
                () = sleep_until(world.due) => world.expire(timeout.rendezvous, starved.load(Ordering::Relaxed)).await,
                () = sleep_until(world.silent) => (self.say)(&world.waiting(timeout.rendezvous)),
                Ok(()) = exited.changed() => {}
            }
            let exited = exited.borrow().clone();
            world.refuse_over_exited(exited).await;
        }
        authenticator.abort();
        Ok(())
    }
}

/// Serves one world: rank 0's own server, where no launcher serves. If ranks disagree, the server runs until all ranks have received the
/// error, at most for the time of a handshake.
pub async fn serve_world(
    server: Server,
    authenticator: Authenticator,
    timeout: RendezvousTimeouts,
) -> Result<(), RendezvousFailure> {
    server.gather(authenticator, timeout, None, true).await
}

/// Accepts connections for ever; each has the time `within` to identify itself.
async fn admit(
    mut arrivals: AcceptQueue,
    authenticator: Authenticator,
    within: Duration,
    callers: mpsc::Sender<Caller>,
) {
    loop {
        let (stream, from) = arrivals.next().await;
        let (callers, authenticator) = (callers.clone(), authenticator.clone());
        let task = tokio::spawn(async move {
            if let Ok(Some(caller)) = timeout(within, identify(stream, from.ip(), &authenticator)).await {
                // If the server has ended, the caller is dropped; callers that have identified themselves stay connected.
                tokio::spawn(async move { callers.send(caller).await.is_ok() });
            }
        });
        arrivals.hear(task.abort_handle());
    }
}

/// Reads a caller's first message, once the caller has proved the secret. A caller that is no Allfold program gets no answer;
/// an Allfold of another version gets the error.
async fn identify(stream: TcpStream, from: IpAddr, authenticator: &Authenticator) -> Option<Caller> {
    let here = |purpose| {
        if purpose == Purpose::Rendezvous { HandshakeAnswer::Welcome } else { HandshakeAnswer::Gone }
    };
    let (mut stream, _) = authenticator.accept(stream, |identity| here(identity.purpose)).await.ok()?;
    let mut bytes = [0; HELLO];
    stream.read_exact(&mut bytes).await.ok()?;
    match Hello::decode(&bytes) {
        Ok(hello) => Some(Caller { hello, from, stream }),
        Err(failure @ RendezvousFailure::Version { .. }) => {
            refuse(&mut stream, &failure).await;
            None
        }
        Err(_) => None,
    }
}

async fn refuse(stream: &mut AuthenticatedStream, failure: &RendezvousFailure) {
    // The caller may have closed the connection already.
    let _ = timeout(Duration::from_secs(1), stream.write_all(&encode_answer(Some(failure)))).await;
    let _ = timeout(Duration::from_secs(1), stream.shutdown()).await;
}

/// How far a caller's epoch may be beyond the world's: no launcher starts a world that often while its server runs.
const LEAP: u32 = 1 << 20;

/// The callers of one start of the world.
#[derive(Default)]
struct World {
    epoch: u32,
    /// The rank that was the first to call for this epoch.
    by: Rank,
    came: BTreeMap<Rank, Caller>,
    /// When the server stops waiting for the missing ranks; after a disagreement, for ranks that have not received the error.
    due: Option<Instant>,
    /// When the server says which ranks are missing, if it has not said so.
    silent: Option<Instant>,
    /// The outcome, once it is decided: all ranks have arrived, or the reason why they never will.
    over: Option<Result<(), RendezvousFailure>>,
    /// After a disagreement, until `due`: the number of ranks that must receive the error, and the ranks that have received it.
    telling: Option<(u32, BTreeSet<Rank>)>,
}

impl World {
    fn is_over(&self) -> bool {
        self.over.is_some() && self.telling.is_none()
    }

    /// Records that a rank has received the error after a disagreement.
    fn error_received(&mut self, rank: Rank) {
        let Some((size, received)) = &mut self.telling else { return };
        if rank.0 < *size {
            received.insert(rank);
        }
        if received.len() == *size as usize {
            self.telling = None;
        }
    }

    async fn take(&mut self, mut caller: Caller, timeout: RendezvousTimeouts) {
        let hello = caller.hello;
        // No Allfold process has a rank outside its world.
        if hello.rank.0 >= hello.size {
            return;
        }
        if hello.epoch < self.epoch {
            let failure = RendezvousFailure::Epoch { mine: hello.epoch, theirs: self.epoch, by: self.by };
            return refuse(&mut caller.stream, &failure).await;
        }
        if hello.epoch - self.epoch > LEAP {
            let failure = RendezvousFailure::EpochBeyond { mine: hello.epoch, theirs: self.epoch };
            return refuse(&mut caller.stream, &failure).await;
        }
        if hello.epoch > self.epoch {
            let (theirs, by) = (hello.epoch, hello.rank);
            self.end(|mine| RendezvousFailure::Epoch { mine, theirs, by }).await;
            *self = World { epoch: hello.epoch, by, ..World::default() };
        }
        match &self.over {
            Some(Err(failure)) => {
                refuse(&mut caller.stream, &failure.clone()).await;
                return self.error_received(hello.rank);
            }
            Some(Ok(())) => {
                return refuse(&mut caller.stream, &RendezvousFailure::DuplicateRank { rank: hello.rank })
                    .await;
            }
            None => {}
        }
        let first = self.came.values().next().map(|first| first.hello);
        if let Some(first) = first {
            if first.job != hello.job {
                return refuse(&mut caller.stream, &RendezvousFailure::Job).await;
            }
            if let Some(failure) = disagreement(&first, &hello) {
                refuse(&mut caller.stream, &failure).await;
                self.telling = Some((first.size, self.came.keys().copied().collect()));
                self.error_received(hello.rank);
                self.fail(failure).await;
                // Later callers get the same answer for a while, instead of no answer.
                self.due = Some(after(timeout.handshake));
                return;
            }
        }
        if let Some(before) = self.came.get_mut(&hello.rank)
            && is_there(&mut before.stream, Duration::from_millis(1)).await
        {
            return refuse(&mut caller.stream, &RendezvousFailure::DuplicateRank { rank: hello.rank }).await;
        }
        if self.due.is_none() {
            (self.due, self.silent) = (Some(after(timeout.rendezvous)), Some(after(SILENT)));
        }
        self.came.insert(hello.rank, caller);
        if self.came.len() == hello.size as usize && self.all_are_there().await {
            self.send_table().await;
        }
    }

    /// Whether every caller still waits. A caller that no longer waits is removed and may call again.
    async fn all_are_there(&mut self) -> bool {
        // By now every closed connection has been noticed, so each can be checked without waiting.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut gone = Vec::new();
        for (rank, caller) in &mut self.came {
            if !is_there(&mut caller.stream, Duration::ZERO).await {
                gone.push(*rank);
            }
        }
        gone.iter().for_each(|rank| drop(self.came.remove(rank)));
        gone.is_empty()
    }

    /// Sends the table to every rank, once all ranks are here.
    async fn send_table(&mut self) {
        let peers = self.came.iter().map(|(rank, caller)| Peer {
            rank: *rank,
            address: SocketAddr::new(caller.from, caller.hello.port as u16),
            host: caller.hello.host,
        });
        // Without random numbers two worlds could have the same identity, but their epochs would still differ.
        let world = crate::random().unwrap_or_default();
        let table = Table { world, epoch: self.epoch, peers: peers.collect() };
        let mut bytes = encode_answer(None).to_vec();
        bytes.extend(encode_table(&table));
        for caller in self.came.values_mut() {
            // If a caller has ended, the other ranks notice when they connect to it.
            let _ = timeout(Duration::from_secs(1), caller.stream.write_all(&bytes)).await;
        }
        self.came.clear();
        (self.due, self.silent) = (None, None);
        self.over = Some(Ok(()));
    }

    /// Fails the world at once if ranks wait for one of these, whose processes have exited with 0.
    async fn refuse_over_exited(&mut self, exited: BTreeSet<Rank>) {
        let Some(size) = self.came.values().next().map(|first| first.hello.size) else { return };
        let ranks: Vec<Rank> = exited.into_iter().filter(|rank| rank.0 < size).take(NUMBERS).collect();
        if !ranks.is_empty() {
            self.fail(RendezvousFailure::Exited { ranks }).await;
        }
    }

    async fn expire(&mut self, after: Duration, starved: bool) {
        if self.over.is_some() {
            (self.due, self.telling) = Default::default();
            return;
        }
        if starved {
            let limit = u32::try_from(accept_queue::descriptors()).unwrap_or(u32::MAX);
            return self.fail(RendezvousFailure::Starved { limit }).await;
        }
        let size = self.came.values().next().map_or(0, |first| first.hello.size);
        // A rank that arrived and has ended since is missing as well.
        self.all_are_there().await;
        let (ranks, more) = missing(size, &self.came);
        self.fail(RendezvousFailure::Missing { ranks, more, after }).await;
    }

    async fn fail(&mut self, failure: RendezvousFailure) {
        self.end(|_| failure.clone()).await;
        self.over = Some(Err(failure));
    }

    async fn end(&mut self, why: impl Fn(u32) -> RendezvousFailure) {
        for caller in self.came.values_mut() {
            refuse(&mut caller.stream, &why(caller.hello.epoch)).await;
        }
        self.came.clear();
        (self.due, self.silent) = (None, None);
    }

    /// The line about the ranks that have not come, for a world that waits for up to `limit`.
    fn waiting(&mut self, limit: Duration) -> String {
        self.silent = None;
        let size = self.came.values().next().map_or(0, |first| first.hello.size);
        let (ranks, more) = missing(size, &self.came);
        format!("waiting for {}{} to join, for up to {limit:?}", Rank::list(&ranks), and(more))
    }
}

/// The missing ranks, at most [`MISSING`] of them, and how many more are missing: the size comes from a caller and is not trusted.
pub(super) fn missing<T>(size: u32, came: &BTreeMap<Rank, T>) -> (Vec<Rank>, u32) {
    let ranks: Vec<Rank> =
        (0..size).map(Rank).filter(|rank| !came.contains_key(rank)).take(MISSING).collect();
    let named = came.len() + ranks.len();
    (ranks, size.saturating_sub(u32::try_from(named).unwrap_or(u32::MAX)))
}

/// The setting in which two ranks differ, so that the whole world must end.
fn disagreement(first: &Hello, other: &Hello) -> Option<RendezvousFailure> {
    let (rank, peer) = (first.rank, other.rank);
    if first.size != other.size {
        return Some(RendezvousFailure::WorldSize { rank, size: first.size, peer, theirs: other.size });
    }
    (first.configuration != other.configuration).then_some(RendezvousFailure::Configuration { rank, peer })
}

/// Whether the other side still holds the connection. A waiting caller sends nothing, so any event on the socket is its end.
async fn is_there(stream: &mut AuthenticatedStream, within: Duration) -> bool {
    timeout(within, stream.read(&mut [0])).await.is_err()
}
